//! Replies as models write them, from the weights of a model to the answers of every dialect, whole
//! and streamed.

#[path = "replay/model.rs"]
mod model;

use std::path::Path;

use serde_json::{Value, json};
use trine_server::Found;

use crate::client;
use crate::harness::{Harness, REPLAY, Scripted};
use crate::said::{
    CHAT, MESSAGES, OLLAMA, RESPONSES, Said, at_once, joined, stream, thinking, whole, with,
};
use model::{FUNCTION_GEMMA, GEMMA3, GEMMA4, Marks, Script};

/// A call, as Gemma 4 writes it.
const CALL: &str = "<|tool_call>call:weather{city:<|\"|>Oslo<|\"|>}<tool_call|>";
/// The same between FunctionGemma's marks.
const CALL_F: &str =
    "<start_function_call>call:weather{city:<escape>Oslo<escape>}<end_function_call>";
/// A result, as the templates here write it.
const RESULT: &str = "<|tool_response>response:weather{value:<|\"|>sun<|\"|>}<tool_response|>";
/// A thought.
const THOUGHT: &str = "<|channel>thought\nHm.\n<channel|>";

/// Turns of any role, and nothing else: fine-tuned models come so.
const TURNS: &str = "{{ bos_token }}{% for m in messages %}<|turn>\
    {{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content }}<turn|>\n{% endfor %}\
    {{ '<|turn>model\n' if add_generation_prompt }}";
/// The same, which opens a thought for each answer.
const OPENS: &str = "{{ bos_token }}{% for m in messages %}<|turn>\
    {{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content }}<turn|>\n{% endfor %}\
    {{ '<|turn>model\n<|channel>thought\n' if add_generation_prompt }}";
/// As Gemma 4's first one: each message is a turn of its role, and results are known as a field of
/// the message with the calls. The marks of calls are put together from pieces.
const EARLY: &str = "{{ bos_token }}{% if tools %}<|turn>system\n\
    {% for t in tools %}<|tool>{{ t.function.name }}<tool|>{% endfor %}<turn|>\n\
    {% endif %}{% set ns = namespace(last='') %}{% for m in messages %}{% set ns.last = '' %}\
    <|turn>{{ 'model' if m.role == 'assistant' else m.role }}\n\
    {% for c in m.tool_calls or [] %}{{ '<|' + 'tool_call>call:' + c.function.name }}\
    {city:<|\"|>{{ c.function.arguments.city }}<|\"|>}{{ '<tool_call' + '|>' }}{% endfor %}\
    {% for r in m.tool_responses or [] %}<|tool_response>response:{{ r.name }}\
    {value:<|\"|>{{ r.response }}<|\"|>}<tool_response|>{% set ns.last = 'result' %}{% endfor %}\
    {{ m.content }}{{ '<turn|>\n\
    ' if not m.tool_responses or m.content }}{% endfor %}{{ '<|turn>model\n\
    ' if add_generation_prompt and ns.last != 'result' }}";
/// As FunctionGemma's: what follows a result gets no turn of its own.
const FUNCTION: &str = "{{ bos_token }}{% if tools %}<start_of_turn>developer\n\
    {% for t in tools %}<start_function_declaration>declaration:{{ t.function.name }}\
    <end_function_declaration>{% endfor %}<end_of_turn>\n\
    {% endif %}{% set ns = namespace(last='') %}{% for m in messages %}{% if m.role == 'tool' %}\
    <start_function_response>response:{{ m.name }}{value:<escape>{{ m.content }}\
    <escape>}<end_function_response>{% set ns.last = 'result' %}{% else %}\
    {{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\n\
    ' if ns.last != 'result' }}{% set ns.last = '' %}{{ m.content }}\
    {% for c in m.tool_calls or [] %}<start_function_call>call:{{ c.function.name }}\
    {city:<escape>{{ c.function.arguments.city }}\
    <escape>}<end_function_call>{% set ns.last = 'call' %}{% endfor %}{{ '<end_of_turn>\n\
    ' if ns.last != 'call' }}{% endif %}{% endfor %}{{ '<start_of_turn>model\n\
    ' if add_generation_prompt and ns.last != 'result' }}";
/// As Gemma 3's.
const THREE: &str = "{{ bos_token }}{% for m in messages %}<start_of_turn>\
    {{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content }}<end_of_turn>\n{% endfor %}\
    {{ '<start_of_turn>model\n' if add_generation_prompt }}";

/// A message of a conversation.
#[derive(Clone, Copy)]
enum Turn {
    User(&'static str),
    /// Words, and a call of `weather` with this id.
    Model(&'static str, &'static str),
    /// The result of a call.
    Result(&'static str),
}

use Turn::{Model, Result, User};

/// What is asked.
#[derive(Clone, Copy)]
struct Ask {
    turns: &'static [Turn],
    has_tools: bool,
    choice: Option<&'static str>,
    thinks: Option<bool>,
}

const PLAIN: Ask = Ask { turns: &[User("Hi")], has_tools: false, choice: None, thinks: None };
const TOOLS: Ask = Ask { has_tools: true, ..PLAIN };
const CALLED: &[Turn] = &[User("Hi"), Model("", "1"), Result("1")];
const ROUNDS: &[Turn] =
    &[User("Hi"), Model("I look.", "1"), Result("1"), Model("And again.", "2"), Result("2")];
const ASKED_ON: &[Turn] = &[User("Hi"), Model("", "1"), Result("1"), User("And?")];

/// A family's marks with a template, and what its model writes.
struct Case {
    marks: Marks,
    template: String,
    script: String,
    ask: Ask,
    says: Said,
    /// How the prompt ends; empty if that is no matter.
    prompt: String,
}

fn case(marks: Marks, template: &str, script: impl Into<String>, ask: Ask, says: Said) -> Case {
    let (template, script) = (template.to_owned(), script.into());
    Case { marks, template, script, ask, says, prompt: String::new() }
}

fn words(words: &str) -> Said {
    Said { words: words.to_owned(), reason: "stop".to_owned(), ..Said::default() }
}

/// Thoughts, words, and a number of calls.
fn said(thoughts: &str, words: &str, calls: usize) -> Said {
    let reason = if calls == 0 { "stop" } else { "tool_calls" };
    let call = ("weather".to_owned(), json!({"city": "Oslo"}));
    Said {
        thoughts: thoughts.to_owned(),
        words: words.to_owned(),
        calls: vec![call; calls],
        reason: reason.to_owned(),
    }
}

/// The reason for an end in a dialect's words.
fn reason(path: &str, chat: &str) -> &'static str {
    match (path, chat) {
        (CHAT, "tool_calls") => "tool_calls",
        (MESSAGES, "tool_calls") => "tool_use",
        (MESSAGES, _) => "end_turn",
        (RESPONSES, _) => "completed",
        _ => "stop",
    }
}

fn tools(path: &str) -> Value {
    let city =
        json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]});
    match path {
        MESSAGES => json!([{"name": "weather", "description": "d", "input_schema": city}]),
        RESPONSES => json!([{"type": "function", "name": "weather", "parameters": city}]),
        _ => json!([{"type": "function", "function": {"name": "weather", "parameters": city}}]),
    }
}

/// A message in a dialect's form.
fn messages(path: &str, turn: Turn) -> Vec<Value> {
    let city = json!({"city": "Oslo"});
    match (path, turn) {
        (_, User(words)) => vec![json!({"role": "user", "content": words})],
        (CHAT, Model(words, id)) => {
            let function = json!({"name": "weather", "arguments": city.to_string()});
            let call = json!({"id": id, "type": "function", "function": function});
            vec![json!({"role": "assistant", "content": words, "tool_calls": [call]})]
        }
        (OLLAMA, Model(words, _)) => {
            let call = json!({"function": {"name": "weather", "arguments": city}});
            vec![json!({"role": "assistant", "content": words, "tool_calls": [call]})]
        }
        (MESSAGES, Model(words, id)) => {
            let said = (!words.is_empty()).then(|| json!({"type": "text", "text": words}));
            let call = json!({"type": "tool_use", "id": id, "name": "weather", "input": city});
            let blocks: Vec<Value> = said.into_iter().chain([call]).collect();
            vec![json!({"role": "assistant", "content": blocks})]
        }
        (_, Model(words, id)) => {
            let said = json!({"role": "assistant", "content": words});
            let said = Some(said).filter(|_| !words.is_empty());
            let call = json!({"type": "function_call", "call_id": id, "name": "weather",
                "arguments": city.to_string()});
            said.into_iter().chain([call]).collect()
        }
        (CHAT, Result(id)) => vec![json!({"role": "tool", "tool_call_id": id, "content": "sun"})],
        (OLLAMA, Result(_)) => {
            vec![json!({"role": "tool", "tool_name": "weather", "content": "sun"})]
        }
        (MESSAGES, Result(id)) => {
            let block = json!({"type": "tool_result", "tool_use_id": id, "content": "sun"});
            vec![json!({"role": "user", "content": [block]})]
        }
        (_, Result(id)) => {
            vec![json!({"type": "function_call_output", "call_id": id, "output": "sun"})]
        }
    }
}

/// A request of a dialect; `None` if the dialect cannot ask for it.
fn request(path: &str, ask: &Ask) -> Option<Value> {
    let turns: Vec<Value> = ask.turns.iter().flat_map(|&turn| messages(path, turn)).collect();
    let mut body = match path {
        CHAT => json!({"messages": turns, "max_tokens": 200}),
        MESSAGES => json!({"messages": turns, "max_tokens": 200}),
        OLLAMA => json!({"messages": turns, "stream": false, "options": {"num_predict": 200}}),
        _ => json!({"input": turns, "max_output_tokens": 200}),
    };
    body["model"] = REPLAY.into();
    if ask.has_tools {
        body["tools"] = tools(path);
    }
    match (path, ask.choice) {
        (_, None) => {}
        (OLLAMA, Some(_)) => return None,
        (MESSAGES, Some("required")) => body["tool_choice"] = json!({"type": "any"}),
        (MESSAGES, Some(choice)) => body["tool_choice"] = json!({ "type": choice }),
        (_, Some(choice)) => body["tool_choice"] = choice.into(),
    }
    Some(match ask.thinks {
        None => body,
        Some(true) => with(body, thinking(path)),
        Some(false) => with(body, at_once(path)),
    })
}

/// Starts a server with the model of a case.
fn start(folder: &Path, index: usize, case: &Case, likes_blanks: bool) -> Harness {
    let file = folder.join(format!("{index}.gguf"));
    let (template, text) = (case.template.as_str(), case.script.as_str());
    model::write(&file, &Script { marks: case.marks, template, text, likes_blanks });
    let mut loader = Scripted::new(Default::default());
    loader.replay = Some(file);
    loader.names.lock().unwrap().push((REPLAY.to_owned(), Found::plain(REPLAY)));
    Harness::of(loader, |_| {})
}

/// Runs cases through all dialects.
fn replay(cases: &[Case]) {
    let folder = tempfile::tempdir().unwrap();
    for (index, case) in cases.iter().enumerate() {
        let server = start(folder.path(), index, case, false);
        if !case.prompt.is_empty() {
            let asked = request(CHAT, &case.ask).unwrap();
            let (_, shown) = server.post("/apply-template", &asked);
            let prompt = shown["prompt"].as_str().unwrap();
            assert!(prompt.ends_with(&case.prompt), "{index}: {prompt}\nnot {}", case.prompt);
        }
        for path in [CHAT, RESPONSES, MESSAGES, OLLAMA] {
            let Some(asked) = request(path, &case.ask) else { continue };
            let reason = reason(path, &case.says.reason).to_owned();
            let expected = Said { reason, ..case.says.clone() };
            let answer = client::post(server.address, path, &[], asked.to_string().as_bytes());
            let answer = answer.json();
            let shown = format!("{index}, {path}: {:?}: {answer}", case.script);
            assert_eq!(whole(path, &answer), expected, "{shown}");
            assert_eq!(joined(path, &stream(&server, path, &asked)), expected, "streamed {shown}");
        }
    }
}

fn own() -> String {
    trine_text::ChatTemplate::gemma4(true).source().to_owned()
}

#[test]
fn results_and_rounds_stand_in_the_models_turn() {
    let two = format!("{CALL}{RESULT}I look.{CALL}{RESULT}And again.<turn|>\n<|turn>model\n");
    let call = CALL_F.replace("<start_function_call>", "");
    replay(&[
        Case {
            prompt: format!("<|turn>model\n{CALL}{RESULT}"),
            ..case(GEMMA4, EARLY, "Sunny.", Ask { turns: CALLED, ..TOOLS }, words("Sunny."))
        },
        Case {
            prompt: format!("<|turn>model\n{two}<|channel>thought\n<channel|>"),
            ..case(GEMMA4, &own(), "Sunny.", Ask { turns: ROUNDS, ..TOOLS }, words("Sunny."))
        },
        Case {
            prompt: format!(
                "{call}<start_function_response>response:weather{{value:<escape>sun<escape>}}\
                 <end_function_response>"
            ),
            ..case(
                FUNCTION_GEMMA,
                FUNCTION,
                "Sunny.",
                Ask { turns: CALLED, ..TOOLS },
                words("Sunny."),
            )
        },
        // The next question has a turn of its own.
        Case {
            prompt:
                "<end_function_response><end_of_turn>\n<start_of_turn>user\nAnd?<end_of_turn>\n\
                     <start_of_turn>model\n"
                    .to_owned(),
            ..case(
                FUNCTION_GEMMA,
                FUNCTION,
                "Sunny.",
                Ask { turns: ASKED_ON, ..TOOLS },
                words("Sunny."),
            )
        },
    ]);
}

#[test]
fn thoughts_come_wherever_models_write_them() {
    let own = own();
    let two = "<|channel>thought\nOne.\n<channel|>A.<|channel>thought\nTwo.\n<channel|>B.";
    let spaced = "A. <|channel>thought\nHm.\n<channel|> B.<|channel>thought\nHm.\n<channel|> C.";
    let mut cases = vec![
        // The prompt has opened it.
        case(GEMMA4, OPENS, "I think.<channel|>Sunny.", PLAIN, said("I think.", "Sunny.", 0)),
        case(GEMMA4, OPENS, "I think.", TOOLS, said("I think.", "", 0)),
        // Nobody has asked, and between calls.
        case(
            GEMMA4,
            &own,
            format!("{THOUGHT}{CALL}{THOUGHT}{CALL}"),
            TOOLS,
            said("Hm.\nHm.", "", 2),
        ),
        case(GEMMA4, TURNS, format!("{THOUGHT}Sunny."), PLAIN, said("Hm.", "Sunny.", 0)),
        // It may not come.
        case(
            GEMMA4,
            &own,
            format!("Hi.{THOUGHT}"),
            Ask { thinks: Some(false), ..TOOLS },
            words("Hi.thought\nHm.\n"),
        ),
        // A call, and the end, in a thought.
        case(GEMMA4, &own, format!("<|channel>thought\nHm.{CALL}"), TOOLS, said("Hm.", "", 1)),
        case(GEMMA4, &own, "<|channel>thought\nHm.", TOOLS, said("Hm.", "", 0)),
        // Marks without their others.
        case(GEMMA4, &own, "Hello.<channel|> Bye.", TOOLS, words("Hello. Bye.")),
        case(GEMMA4, &own, "thought\n<channel|>Hello.", TOOLS, words("Hello.")),
    ];
    for ask in [PLAIN, TOOLS, Ask { thinks: Some(true), ..PLAIN }] {
        cases.push(case(GEMMA4, &own, two, ask, said("One.\nTwo.", "A.\nB.", 0)));
        cases.push(case(GEMMA4, &own, spaced, ask, said("Hm.\nHm.", "A. B. C.", 0)));
    }
    replay(&cases);
}

#[test]
fn calls_between_marks_are_read_wherever_they_may_come() {
    let own = own();
    let none = Ask { choice: Some("none"), ..TOOLS };
    let shown =
        |call: &str| format!("A {}.", call.replace("<escape>", "\"").replace("<|\"|>", "\""));
    let required = Ask { choice: Some("required"), ..TOOLS };
    let json = r#"{"name": "weather", "parameters": {"city": "Oslo"}}"#;
    replay(&[
        case(GEMMA4, EARLY, format!("I look.{CALL}{CALL}"), TOOLS, said("", "I look.", 2)),
        case(FUNCTION_GEMMA, FUNCTION, CALL_F, TOOLS, said("", "", 1)),
        case(FUNCTION_GEMMA, FUNCTION, format!("I look. {CALL_F}"), TOOLS, said("", "I look. ", 1)),
        // No call may come: they are words.
        case(GEMMA4, &own, format!("A {CALL}."), PLAIN, words(&shown(CALL))),
        case(GEMMA4, &own, format!("A {CALL}."), none, words(&shown(CALL))),
        case(FUNCTION_GEMMA, FUNCTION, format!("A {CALL_F}."), none, words(&shown(CALL_F))),
        // The mark of strings in words.
        case(FUNCTION_GEMMA, FUNCTION, "Say <escape>a<escape>.", TOOLS, words("Say \"a\".")),
        case(GEMMA4, TURNS, "Say <|\"|>a<|\"|>.", TOOLS, words("Say \"a\".")),
        // The template shows no tools: they are told in words, and called as models know it.
        case(GEMMA4, TURNS, CALL, TOOLS, said("", "", 1)),
        case(
            GEMMA4,
            TURNS,
            format!("{THOUGHT}I look.{CALL}{CALL}"),
            TOOLS,
            said("Hm.", "I look.", 2),
        ),
        case(GEMMA4, TURNS, format!("<|channel>thought\nHm.{CALL}"), TOOLS, said("Hm.", "", 1)),
        case(GEMMA4, TURNS, CALL, required, said("", "", 1)),
        case(GEMMA4, TURNS, format!("{THOUGHT}{json}"), TOOLS, said("Hm.", "", 1)),
        case(GEMMA4, TURNS, format!("A {CALL}."), none, words(&shown(CALL))),
    ]);
}

#[test]
fn calls_in_json_are_told_from_other_json() {
    let call = r#"{"name": "weather", "parameters": {"city": "Oslo"}}"#;
    let pretty = "{\n  \"name\": \"weather\",\n  \"parameters\": {\n    \"city\": \"Oslo\"\n  }\n}";
    let mut cases = vec![
        case(GEMMA3, THREE, call, TOOLS, said("", "", 1)),
        case(GEMMA3, THREE, pretty, TOOLS, said("", "", 1)),
        case(GEMMA3, THREE, call.replace(": ", ":").replace(", ", ","), TOOLS, said("", "", 1)),
        case(GEMMA3, THREE, format!("[\n  {pretty},\n  {call}\n]"), TOOLS, said("", "", 2)),
        case(GEMMA3, THREE, format!("[{call}, {{\"x\": 1}}]"), TOOLS, said("", "{\"x\": 1}]", 1)),
        case(GEMMA3, THREE, call, Ask { choice: Some("none"), ..TOOLS }, words(call)),
    ];
    for text in [
        r#"{"name": "Paris", "country": "France"}"#,
        r#"{"name": "weather", "country": "France"}"#,
        r#"{"name": "weather_station", "parameters": {"a": 1}}"#,
        "{\n  \"name\": \"weather\",\n  \"country\": 1\n}",
        r#"[{"name": "Paris"}, {"name": "Rome"}]"#,
    ] {
        cases.push(case(GEMMA3, THREE, text, TOOLS, words(text)));
    }
    replay(&cases);
}

/// Between the elements of a call blanks may come, and some models like nothing better.
#[test]
fn calls_of_models_that_like_blanks_end() {
    let json = r#"{"name": "weather", "parameters": {"city": "Oslo"}}"#;
    let required = Ask { choice: Some("required"), ..TOOLS };
    let folder = tempfile::tempdir().unwrap();
    for (index, (case, marks, least)) in [
        (case(GEMMA3, THREE, json, required, said("", "", 1)), false, 64),
        (case(GEMMA4, TURNS, json, required, said("", "", 1)), false, 64),
        (case(GEMMA4, &own(), CALL, required, said("", "", 1)), true, 0),
        (case(FUNCTION_GEMMA, FUNCTION, CALL_F, required, said("", "", 1)), true, 0),
    ]
    .into_iter()
    .enumerate()
    {
        let server = start(folder.path(), index, &case, true);
        let mut asked = request(CHAT, &case.ask).unwrap();
        // Of a text any sign may be a blank.
        asked["tools"][0]["function"]["parameters"]["properties"]["city"] =
            json!({"enum": ["Oslo"]});
        let more = json!({"max_tokens": 1000, "temperature": 0, "parallel_tool_calls": false});
        let asked = with(asked, more);
        let answer = client::post(server.address, CHAT, &[], asked.to_string().as_bytes()).json();
        assert_eq!(whole(CHAT, &answer), case.says, "{index}: {answer}");
        let tokens = answer["usage"]["completion_tokens"].as_u64().unwrap();
        assert!(tokens >= least && (marks || tokens < 400), "{index}: {answer}");
        assert_eq!(joined(CHAT, &stream(&server, CHAT, &asked)), case.says, "{index}");
    }
}
