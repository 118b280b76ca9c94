//! What a history may hold, in every dialect: content that the model cannot take ends no session.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::client::{self, Answer};
use crate::harness::{Harness, SEEING, UNSHOWN};
use crate::pictures::{CHAT, MESSAGES, RESPONSES, base64, file, message, server, text, url};

const COUNT: &str = "/v1/messages/count_tokens";

fn post(server: &Harness, path: &str, body: &Value) -> Answer {
    client::post(server.address, path, &[], body.to_string().as_bytes())
}

fn warnings(answer: &Answer) -> Vec<&str> {
    let all = answer.headers.iter().filter(|(name, _)| name == "x-trine-warning");
    all.map(|(_, text)| text.as_str()).collect()
}

/// Where content stands in a conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// In the result of a tool.
    Result,
    /// Of the user, directly after a result.
    AfterResult,
    /// Of the user, before an answer.
    Earlier,
    /// In an answer.
    Answer,
    /// Of the user, at the end.
    Newest,
}

const PLACES: [Place; 5] =
    [Place::Result, Place::AfterResult, Place::Earlier, Place::Answer, Place::Newest];

/// A conversation in a dialect with this content at a place; the path that counts its tokens, and
/// where the count is.
fn conversation(
    dialect: &str,
    place: Place,
    content: &[Value],
) -> (Value, &'static str, &'static str) {
    let said = |role: &str, text: &str| json!({"role": role, "content": text});
    let own = |role: &str| json!({ "role": role, "content": content });
    let result = if place == Place::Result { json!(content) } else { json!("done") };
    let mut messages = vec![said("user", "look")];
    let (call, output) = match dialect {
        MESSAGES => {
            let block = json!({"type": "tool_use", "id": "t", "name": "read", "input": {}});
            let mut blocks =
                vec![json!({"type": "tool_result", "tool_use_id": "t", "content": result})];
            if place == Place::AfterResult {
                blocks.extend(content.iter().cloned());
            }
            (
                json!({"role": "assistant", "content": [block]}),
                json!({"role": "user", "content": blocks}),
            )
        }
        RESPONSES => (
            json!({"type": "function_call", "call_id": "t", "name": "read", "arguments": "{}"}),
            json!({"type": "function_call_output", "call_id": "t", "output": result}),
        ),
        _ => (
            json!({"role": "assistant", "content": null, "tool_calls": [
                {"id": "t", "type": "function", "function": {"name": "read", "arguments": "{}"}},
            ]}),
            json!({"role": "tool", "tool_call_id": "t", "content": result}),
        ),
    };
    match place {
        Place::Result | Place::AfterResult => {
            messages.extend([call, output]);
            if place == Place::AfterResult && dialect != MESSAGES {
                messages.push(own("user"));
            }
            messages.extend([said("assistant", "a"), said("user", "b")]);
        }
        Place::Earlier => messages.extend([own("user"), said("assistant", "a"), said("user", "b")]),
        Place::Answer => messages.extend([own("assistant"), said("user", "b")]),
        Place::Newest => messages.extend([said("assistant", "a"), own("user")]),
    }
    match dialect {
        RESPONSES => {
            let body = json!({"model": "main", "input": messages, "max_output_tokens": 2});
            (body, "/v1/responses/input_tokens", "/input_tokens")
        }
        MESSAGES => (
            json!({"model": "main", "messages": messages, "max_tokens": 2}),
            COUNT,
            "/input_tokens",
        ),
        _ => {
            let path = "/v1/chat/completions/input_tokens";
            (json!({"model": "main", "messages": messages, "max_tokens": 2}), path, "/input_tokens")
        }
    }
}

/// Content of each dialect that a model without a tower cannot take, and the line that stands for
/// it; none for what is only left out.
fn foreign(dialect: &str) -> Vec<(Value, Option<&'static str>)> {
    let none = "this model reads none";
    let line = |what: &str, about: &str| -> Option<&'static str> {
        let about = if about.is_empty() { String::new() } else { format!(" ({about})") };
        Some(String::leak(format!("[{what} left out: {none}{about}]")))
    };
    let unknown = Some("[part of type \"hologram\" left out: its type is not known here]");
    let hologram = json!({"type": "hologram", "data": "x"});
    let pdf = "data:application/pdf;base64,JVBERi0xLjc=";
    let svg = STANDARD.encode("<svg xmlns='http://www.w3.org/2000/svg'/>");
    match dialect {
        MESSAGES => {
            let source = |kind: &str, data: &str| {
                json!({"type": "base64",
                    "media_type": kind, "data": data})
            };
            vec![
                (
                    json!({"type": "image", "source": source("image/png", &base64("a.png"))}),
                    line("image", "image/png"),
                ),
                (
                    json!({"type": "document", "title": "a.pdf",
                        "source": source("application/pdf", "JVBERi0=")}),
                    line("document", "application/pdf, \"a.pdf\""),
                ),
                (hologram, unknown),
            ]
        }
        RESPONSES => vec![
            (json!({"type": "input_image", "image_url": url("a.png")}), line("image", "image/png")),
            (
                json!({"type": "input_file", "filename": "a.pdf", "file_data": pdf}),
                line("file", "application/pdf, \"a.pdf\""),
            ),
            (
                json!({"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}),
                line("sound", "audio/wav"),
            ),
            (hologram, unknown),
        ],
        _ => vec![
            (
                json!({"type": "image_url", "image_url": {"url": url("a.png")}}),
                line("image", "image/png"),
            ),
            // Nothing is fetched: it would need a server that no test has.
            (
                json!({"type": "image_url", "image_url": {"url": "https://no.invalid/a.png"}}),
                Some("?"),
            ),
            (
                json!({"type": "image_url",
                    "image_url": {"url": format!("data:image/svg+xml;base64,{svg}")}}),
                Some("?"),
            ),
            (
                json!({"type": "file", "file": {"filename": "a.pdf", "file_data": pdf}}),
                line("file", "application/pdf, \"a.pdf\""),
            ),
            (
                json!({"type": "input_audio", "input_audio": {"data": "AA==", "format": "mp3"}}),
                line("sound", "audio/mp3"),
            ),
            (json!({"type": "video_url", "video_url": {"url": "x"}}), line("video", "")),
            (hologram, unknown),
        ],
    }
}

#[test]
fn what_a_model_cannot_take_is_refused_only_in_the_newest_turn() {
    let server = server();
    for dialect in [CHAT, MESSAGES, RESPONSES] {
        for (part, line) in foreign(dialect) {
            for place in PLACES {
                let (body, count, pointer) =
                    conversation(dialect, place, std::slice::from_ref(&part));
                let answer = post(&server, dialect, &body);
                let words = answer.json();
                let at = format!("{dialect} {place:?} {part:.80}");
                if place == Place::Newest {
                    assert_eq!(answer.status, 400, "{at}: {words}");
                    assert_eq!(post(&server, count, &body).status, 400, "{at}");
                    continue;
                }
                assert_eq!(answer.status, 200, "{at}: {words}");
                let counted = post(&server, count, &body);
                for answer in [&answer, &counted] {
                    let told = warnings(answer);
                    assert!(told.len() == 1 && told[0].contains("left out"), "{at}: {told:?}");
                    let array = if dialect == RESPONSES { "input[" } else { "messages[" };
                    assert!(told[0].contains(array), "{at}: {told:?}");
                }
                // The line is all that the model is told. An answer need not have had the unknown.
                if line == Some("?") || (place == Place::Answer && part["type"] == "hologram") {
                    continue;
                }
                let own = "only messages of users and results of tools have images here";
                let line = line.map(|line| match (place, line.contains("[image")) {
                    (Place::Answer, true) => line.replace("this model reads none", own),
                    _ => line.to_owned(),
                });
                let said: Vec<Value> = line.iter().map(|line| text(line)).collect();
                let (body, ..) = conversation(dialect, place, &said);
                let expected = post(&server, count, &body);
                assert_eq!(expected.status, 200, "{at}: {}", expected.json());
                let (found, expected) = (counted.json(), expected.json());
                assert_eq!(found.pointer(pointer), expected.pointer(pointer), "{at}");
            }
        }
    }
}

/// Images stand beside the words in Ollama's dialect, also in results.
#[test]
fn images_of_earlier_messages_are_words_in_ollamas_dialect() {
    let server = server();
    let images = json!([base64("a.png")]);
    let call = json!({"role": "assistant", "content": "", "tool_calls": [
        {"function": {"name": "read", "arguments": {}}},
    ]});
    let last = json!({"role": "user", "content": "b"});
    for (messages, status) in [
        (
            json!([{"role": "user", "content": "a", "images": images},
                {"role": "assistant", "content": "c"}, last]),
            200,
        ),
        (
            json!([last, call, {"role": "tool",
                "tool_name": "read", "content": "d", "images": images}]),
            200,
        ),
        (
            json!([last, call, {"role": "tool", "content": "d"},
                {"role": "user", "content": "", "images": images}]),
            200,
        ),
        (json!([{"role": "assistant", "content": "c", "images": images}, last]), 200),
        (
            json!([call, {"role": "tool", "content": "d"}, {"role": "assistant", "content": "e"},
                {"role": "user", "content": "a", "images": images}]),
            400,
        ),
    ] {
        let body = json!({
            "model": "main", "stream": false, "messages": messages, "options": {"num_predict": 2},
        });
        let answer = post(&server, "/api/chat", &body);
        assert_eq!(answer.status, status, "{messages:.200}: {}", answer.json());
        let told = warnings(&answer);
        assert_eq!(told.len(), usize::from(status == 200), "{told:?}");
        assert!(told.iter().all(|told| told.contains(".images[0]")), "{told:?}");
    }
}

/// A conversation that is too long for Ollama's dialect loses its oldest turns with their images.
#[test]
fn the_oldest_turns_of_long_conversations_go_with_their_images() {
    let server = server();
    let turn = |name: &str| {
        [
            json!({"role": "user", "content": "bird ".repeat(16), "images": [base64(name)]}),
            json!({"role": "assistant", "content": "tree ".repeat(16)}),
        ]
    };
    let mut messages = vec![json!({"role": "system", "content": "Be kind."})];
    messages.extend(turn("a.png"));
    messages.extend((0..12).flat_map(|_| turn("b.png")));
    messages.push(json!({"role": "user", "content": "Why?", "images": [base64("b.png")]}));
    let ask = |messages: &[Value], truncate: bool| {
        let options = json!({"num_predict": 2});
        let body = json!({
            "model": SEEING, "stream": false, "messages": messages, "options": options,
            "truncate": truncate,
        });
        post(&server, "/api/chat", &body)
    };
    assert_eq!(ask(&messages, false).status, 400);
    let answer = ask(&messages, true);
    assert_eq!(answer.status, 200, "{}", answer.json());
    let told = warnings(&answer);
    let left_out = told[0].split_whitespace().find_map(|word| word.parse::<usize>().ok()).unwrap();
    assert!(told.len() == 1 && left_out > 0 && left_out.is_multiple_of(2), "{told:?}");
    assert_eq!(server.loader.eye.seen.lock().unwrap().len(), 1, "the oldest is not looked at");
    let mut kept = messages.clone();
    kept.drain(1..=left_out);
    let whole = ask(&kept, false);
    assert_eq!((whole.status, warnings(&whole).len()), (200, 0));
    assert_eq!(answer.json()["prompt_eval_count"], whole.json()["prompt_eval_count"]);
    let mut more = messages.clone();
    more.drain(1..left_out - 1);
    assert_eq!(ask(&more, false).status, 400, "one turn more would not have fitted");
}

/// Words of documents are words, also in the newest turn.
#[test]
fn documents_of_words_are_read_everywhere() {
    let server = server();
    let source = json!({"type": "text", "media_type": "text/plain", "data": "words"});
    for (part, shown) in [
        (
            json!({"type": "document", "title": "T", "context": "C", "source": source}),
            "[document: T, C]\nwords",
        ),
        (
            json!({"type": "search_result", "title": "T", "source": "https://a.example",
                "content": [{"type": "text", "text": "words"}], "citations": {"enabled": true}}),
            "[search result: T, https://a.example]\nwords",
        ),
    ] {
        for place in PLACES {
            let count = |content: &[Value]| {
                let (body, count, pointer) = conversation(MESSAGES, place, content);
                let answer = post(&server, count, &body);
                assert_eq!(answer.status, 200, "{place:?}: {}", answer.json());
                assert_eq!(warnings(&answer), [""; 0]);
                assert_eq!(post(&server, MESSAGES, &body).status, 200);
                answer.json().pointer(pointer).cloned()
            };
            assert_eq!(
                count(std::slice::from_ref(&part)),
                count(&[text(shown)]),
                "{place:?} {part}"
            );
        }
    }
    // Claude Code's search for tools.
    let found = json!({"type": "tool_reference", "tool_name": "read"});
    let (body, ..) = conversation(MESSAGES, Place::Result, &[found]);
    assert_eq!(post(&server, MESSAGES, &body).status, 200);
}

/// A model that reads images gets those that can be read.
#[test]
fn broken_images_of_earlier_turns_are_words_for_models_that_see() {
    let server = server();
    let mut cut = file("decoded/444.jpg");
    cut.truncate(cut.len() / 2);
    let data = |bytes: &[u8]| format!("data:image/png;base64,{}", STANDARD.encode(bytes));
    let image = |url: &str| json!({"type": "image_url", "image_url": {"url": url}});
    let good = image(&url("a.png"));
    for (part, words) in [
        (image(&data(b"<svg xmlns='http://www.w3.org/2000/svg'/>")), "SVG"),
        (image(&data(b"%PDF-1.7")), "PDF"),
        (image(&data(b"hello")), "PNG"),
        // Its header is good.
        (image(&data(&cut)), "damaged"),
        (image("https://no.invalid/a.png"), "not fetched"),
        (json!({"type": "image_url", "file_id": "f"}), "not kept"),
    ] {
        for place in [Place::Result, Place::AfterResult, Place::Earlier] {
            let (mut body, count, _) = conversation(CHAT, place, &[part.clone(), good.clone()]);
            body["model"] = SEEING.into();
            let answer = post(&server, CHAT, &body);
            assert_eq!(answer.status, 200, "{place:?} {words}: {}", answer.json());
            let told = warnings(&answer);
            assert!(told.len() == 1 && told[0].contains(words), "{place:?} {words}: {told:?}");
            assert_eq!(post(&server, count, &body).status, 200);
        }
        let (mut body, ..) = conversation(CHAT, Place::Newest, &[part, good.clone()]);
        body["model"] = SEEING.into();
        let (status, error) = server.post(CHAT, &body);
        assert!(status == 400 && message(&error).contains(words), "{words}: {error}");
    }
    assert_eq!(server.loader.eye.seen.lock().unwrap().len(), 1, "the good one is seen");
    let (mut body, ..) = conversation(CHAT, Place::Answer, &[good]);
    body["model"] = SEEING.into();
    assert_eq!(server.post(CHAT, &body).0, 200, "answers have no images");
}

/// A template need not show the images of results, or any.
#[test]
fn images_that_a_template_does_not_show_are_words() {
    let server = server();
    let good = json!({"type": "image_url", "image_url": {"url": url("a.png")}});
    for place in [Place::Result, Place::AfterResult, Place::Earlier, Place::Newest] {
        let (mut body, count, _) = conversation(CHAT, place, std::slice::from_ref(&good));
        body["model"] = UNSHOWN.into();
        for path in [CHAT, count] {
            let answer = post(&server, path, &body);
            if place == Place::Newest {
                assert_eq!(answer.status, 400);
                continue;
            }
            assert_eq!(answer.status, 200, "{place:?} {path}: {}", answer.json());
            assert!(warnings(&answer)[0].contains("template"), "{:?}", warnings(&answer));
        }
    }
}

/// An agent that takes screenshots has more than a request may have.
#[test]
fn the_oldest_images_of_many_are_words() {
    let server = server();
    let good = json!({"type": "image_url", "image_url": {"url": url("a.png")}});
    // The newest are 64, of which one is in the newest turn.
    let mut messages = vec![json!({"role": "user", "content": vec![good.clone(); 66]})];
    messages.push(json!({"role": "assistant", "content": "a"}));
    messages.push(json!({"role": "user", "content": [text("b"), good]}));
    let (status, shown) = server.post("/apply-template", &json!({ "messages": messages }));
    assert_eq!(status, 200, "{shown}");
    let prompt = shown["prompt"].as_str().unwrap();
    let line = "[image left out: only the newest 64 are shown (image/png)]";
    assert_eq!(prompt.matches("<start_of_image>").count(), 64, "{prompt}");
    assert_eq!(prompt.matches(line).count(), 3, "{prompt}");
    let last = prompt.rfind(line).unwrap();
    assert!(last < prompt.find("<start_of_image>").unwrap(), "the oldest are left out");
}

/// What models of other servers have left in a history: forms of OpenAI's chats.
#[test]
fn histories_of_other_servers_go_on_in_chats() {
    let server = Harness::start();
    let with = |between: Value| {
        let mut messages = vec![json!({"role": "user", "content": "a"})];
        messages.extend(between.as_array().unwrap().clone());
        messages.push(json!({"role": "user", "content": "b"}));
        json!({"model": "main", "messages": messages, "max_tokens": 2})
    };
    let prompt = |between: Value| {
        let (status, shown) = server.post("/apply-template", &with(between.clone()));
        assert_eq!(status, 200, "{between}: {shown}");
        let (status, answer) = server.post(CHAT, &with(between));
        assert_eq!(status, 200, "{answer}");
        shown["prompt"].as_str().unwrap().to_owned()
    };
    let call = |arguments: &str| {
        json!([
            {"role": "assistant", "content": null, "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}},
            ]},
            {"role": "tool", "tool_call_id": "c", "content": "r"},
        ])
    };
    for (between, shown) in [
        (call("{\"a\": "), "{\"name\": \"f\", \"parameters\": {\"a\": }"),
        (call("null"), "\"parameters\": null}"),
        (call("[1]"), "\"parameters\": [1]}"),
        (json!([{"role": "assistant", "content": null, "refusal": "I won't"}]), "I won't"),
        (
            json!([{"role": "assistant", "content": [{"type": "refusal", "refusal": "I won't"}]}]),
            "I won't",
        ),
        (json!([{"role": "assistant", "content": null}]), "a"),
        (json!([{"role": "assistant"}]), "a"),
        (
            json!([{"role": "assistant", "content": null, "tool_calls": [
                {"id": "c", "type": "custom", "custom": {"name": "patch", "input": "*** Begin"}},
            ]}]),
            "{\"name\": \"patch\", \"parameters\": {\"input\":\"*** Begin\"}}",
        ),
        (
            json!([
                {"role": "assistant", "content": null,
                    "function_call": {"name": "f",
                    "arguments": "{}"}},
                {"role": "function", "name": "f", "content": "found"},
            ]),
            "{\"name\": \"f\", \"content\": \"found\"}",
        ),
        (json!([{"role": "assistant", "content": "w", "reasoning": {"text": "t"}}]), "w"),
        (json!([{"role": "assistant", "content": "w", "thinking": [{"text": "t"}]}]), "w"),
        (
            json!([{"role": "assistant", "content": [
                {"type": "thinking", "thinking": [{"type": "text", "text": "t"}]},
                {"type": "reasoning", "text": "t"}, {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "w"},
            ]}]),
            "w",
        ),
    ] {
        let prompt = prompt(between.clone());
        assert!(prompt.contains(shown), "{between}: {prompt}");
    }
}

/// The same of the Responses API: openai 3.57.0, `types/responses/response_input_item_param.py`,
/// and Codex's list of items.
#[test]
fn histories_of_other_servers_go_on_in_responses() {
    let server = Harness::start();
    let user = |text: &str| json!({"role": "user", "content": text});
    for (item, told) in [
        (json!({"type": "compaction", "encrypted_content": "x"}), 1),
        (json!({"type": "program", "id": "p", "call_id": "c", "code": "x", "fingerprint": "y"}), 1),
        (json!({"type": "program_output", "id": "p", "call_id": "c", "result": "x"}), 1),
        (json!({"type": "agent_message", "content": [{"type": "encrypted_content"}]}), 1),
        (json!({"type": "configuration_update", "reasoning": {"effort": "high"}}), 0),
        (json!({"type": "additional_tools", "role": "developer", "tools": []}), 0),
        (json!({"type": "from_next_month", "id": "x"}), 1),
        (json!({"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}), 0),
        (json!({"type": "function_call", "call_id": "c", "name": "f", "arguments": "{\"a"}), 0),
    ] {
        let input = json!([user("a"), {"role": "assistant", "content": "b"}, item, user("c")]);
        let body = json!({"model": "main", "input": input, "max_output_tokens": 2});
        let answer = post(&server, RESPONSES, &body);
        assert_eq!(answer.status, 200, "{item}: {}", answer.json());
        assert_eq!(warnings(&answer).len(), told, "{item}: {:?}", warnings(&answer));
    }
    for (input, param) in [
        (json!([user("a"), {"type": "item_reference", "id": "msg_7"}]), "msg_7"),
        (json!([user("a"), {"id": "msg_7"}]), "msg_7"),
        (json!([user("a"), {"type": "from_next_month"}]), "from_next_month"),
        (json!([{"type": "from_next_month"}]), "from_next_month"),
    ] {
        let (status, error) = server.post(RESPONSES, &json!({"model": "main", "input": input}));
        assert!(status == 400 && message(&error).contains(param), "{input}: {error}");
    }
    // The last form of the text holds.
    let form = |format: Value| json!({"type": "configuration_update", "text": {"format": format}});
    let schema = json!({"type": "object", "properties": {"k": {"const": 1}}, "required": ["k"]});
    let input = json!([
        form(json!({"type": "text"})),
        user("a"),
        form(json!({"type": "json_schema", "schema": schema}))
    ]);
    let body = json!({"model": "demo", "input": input, "text": {"format": {"type": "text"}}});
    let (status, answer) = server.post(RESPONSES, &body);
    assert_eq!(status, 200, "{answer}");
    let text = answer["output"][0]["content"][0]["text"].as_str().unwrap();
    assert_eq!(serde_json::from_str::<Value>(text).unwrap(), json!({"k": 1}), "{text}");
    // Tools that are added can be called, the last declaration of each.
    let function = |name: &str, field: &str| {
        let schema = json!({"type": "object",
            "properties": {field: {"type": "string"}}, "required": [field]});
        json!({"type": "function", "name": name, "parameters": schema})
    };
    let add =
        |tool: Value| json!({"type": "additional_tools", "role": "developer", "tools": [tool]});
    let input = json!([add(function("f", "x")), user("a"), add(function("f", "y"))]);
    server.reply(r#"{"name": "f", "parameters": {"y": "z"}}"#);
    let body = json!({"model": "main", "input": input, "tools": [function("g", "x")],
        "tool_choice": "required"});
    let (status, answer) = server.post(RESPONSES, &body);
    assert_eq!(status, 200, "{answer}");
    assert_eq!(answer["output"][0]["arguments"], r#"{"y": "z"}"#, "{answer}");
}

/// The same of Anthropic's API: anthropic 2.14.0, `types/beta`.
#[test]
fn histories_of_other_servers_go_on_in_messages() {
    let server = Harness::start();
    let prompt = |content: Value| {
        let messages = json!([
            {"role": "user", "content": "a"}, {"role": "assistant", "content": content},
            {"role": "user", "content": "c"},
        ]);
        let body = json!({"model": "main", "messages": messages, "max_tokens": 2});
        let answer = post(&server, MESSAGES, &body);
        assert_eq!(answer.status, 200, "{content}: {}", answer.json());
        let counted = post(&server, COUNT, &body).json()["input_tokens"].clone();
        (warnings(&answer).len(), counted)
    };
    let words = text("b");
    let (_, plain) = prompt(json!([words]));
    for block in [
        json!({"type": "compaction", "content": null, "encrypted_content": "x"}),
        json!({"type": "fallback", "from": {"model": "a"}, "to": {"model": "b"}}),
        json!({"type": "container_upload", "file_id": "f"}),
        json!({"type": "mcp_tool_listing", "mcp_server_name": "s", "tools": []}),
        json!({"type": "from_next_month"}),
    ] {
        assert_eq!(prompt(json!([block, words])), (1, plain.clone()), "{block}");
    }
    let summary = json!({"type": "compaction", "content": "b"});
    assert_eq!(prompt(json!([summary])), (0, plain));
    let broken = json!({"type": "tool_use", "id": "t", "name": "f", "input": "{\"a"});
    prompt(json!([broken]));
}

/// `add_tools` and `remove_tools` of the SDKs' tool runners.
#[test]
fn tools_come_and_go_in_messages() {
    let server = Harness::start();
    let tool = |name: &str, field: &str| {
        let schema = json!({"type": "object",
            "properties": {field: {"type": "string"}}, "required": [field]});
        json!({"name": name, "input_schema": schema})
    };
    let reference = |name: &str| json!({"type": "tool_reference", "name": name});
    let change = |kind: &str, tool: Value| json!({"type": kind, "tool": tool});
    let removal = |name: &str| change("tool_removal", reference(name));
    let addition = |name: &str| change("tool_addition", reference(name));
    let definition = |tool: Value| {
        change("tool_addition", json!({"type": "tool_definition", "definition": tool}))
    };
    let ask = |changes: Value, name: &str| {
        let messages = json!([
            {"role": "user", "content": "a"}, {"role": "system", "content": changes},
            {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"},
        ]);
        let body = json!({
            "model": "main",
                "max_tokens": 60, "messages": messages, "tools": [tool("f", "x"), tool("g", "x")],
            "tool_choice": {"type": "tool", "name": name},
        });
        let (status, answer) = server.post(MESSAGES, &body);
        (status, answer)
    };
    for (changes, name, status) in [
        (json!([removal("f")]), "f", 400),
        (json!([removal("f")]), "g", 200),
        (json!([removal("f"), addition("f")]), "f", 200),
        (json!([definition(tool("h", "x"))]), "h", 200),
        (json!([definition(tool("h", "x")), removal("h")]), "h", 400),
        (
            json!([removal("f"), {"type": "compaction", "content": "s",
                "tool_changes": [addition("f")]}]),
            "f",
            200,
        ),
    ] {
        server.post(
            MESSAGES,
            &json!({"max_tokens": 1, "messages": [{"role": "user", "content": "a"}]}),
        );
        server.reply(&format!(r#"{{"name": "{name}", "parameters": {{"x": "z"}}}}"#));
        let (found, answer) = ask(changes.clone(), name);
        assert_eq!(found, status, "{changes} {name}: {answer}");
        if status == 200 {
            assert_eq!(answer["content"][0]["name"], name, "{answer}");
        }
    }
    // A new definition takes the place of the old one.
    server.reply(r#"{"name": "f", "parameters": {"y": "z"}}"#);
    let (_, answer) = ask(json!([definition(tool("f", "y"))]), "f");
    assert_eq!(answer["content"][0]["input"], json!({"y": "z"}), "{answer}");
}

/// Anthropic's SDKs go on without threads if the errors are these (anthropic 2.14.0,
/// `lib/threads/_thread_state.py`).
#[test]
fn threads_are_refused_as_the_sdks_expect() {
    let server = Harness::start();
    for path in [MESSAGES, COUNT] {
        // Nothing else of the request is looked at.
        let body = |thread: Value| {
            json!({
                "max_tokens": 5, "thread": thread,
                    "tool_choice": {"type": "tool", "name": "weather"},
                "messages": [{"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": "t", "content": "x"},
                ]}],
            })
        };
        let (status, error) = server.post(path, &body(json!({"type": "create"})));
        assert_eq!((status, &error["error"]["type"]), (400, &json!("invalid_request_error")));
        let details =
            json!({"error_code": "thread_unsupported_request", "unsupported": ["thread"]});
        assert_eq!(error["error"]["details"], details, "{error}");
        let thread = json!({"type": "continue", "previous_message_id": "msg_1"});
        let (status, error) = server.post(path, &body(thread));
        assert_eq!((status, &error["error"]["type"]), (404, &json!("not_found_error")));
        assert_eq!(error["error"]["details"], json!({"error_code": "thread_not_found"}), "{error}");
        assert_eq!(error["type"], "error");
    }
    let messages = json!([{"role": "user", "content": "a"}]);
    let body = json!({"max_tokens": 1, "thread": null, "messages": messages});
    let (status, answer) = server.post(MESSAGES, &body);
    assert_eq!(status, 200, "{answer}");
    let (_, error) = server.post(MESSAGES, &json!({ "messages": messages }));
    assert!(error["error"].get("details").is_none(), "{error}");
}
