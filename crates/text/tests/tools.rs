//! Tools: declarations, prompts, grammars of calls, and calls found in replies.
use crate::common;

use std::sync::Arc;
use std::time::Duration;

use crate::common::work::within;
use serde_json::{Value, json};
use trine_text::{
    ChatTemplate, GrammarCompiler, Message, Offer, RenderOptions, ReplyPart, Specials, ToolChoice,
    Tools, reply_format,
};

fn function(name: &str, parameters: Value) -> Value {
    json!({"type": "function", "function": {"name": name,
        "description": "Does it.",
        "parameters": parameters}})
}

fn tools() -> Tools {
    let city = json!({"type": "object",
        "properties": {"city": {"type": "string"}}, "required": ["city"],
        "additionalProperties": false});
    Tools::from_openai(
        &json!([function("weather", city), {"type": "function", "function": {"name": "time"}}]),
    )
    .unwrap()
}

/// The text and the calls of a reply, the same wherever it is cut.
fn parse(reply: &str, parallel: bool) -> (String, Vec<(String, String)>) {
    let run = |cut: usize| {
        let characters: Vec<char> = reply.chars().collect();
        let mut parser = tools().parser(parallel);
        let mut parts = Vec::new();
        for piece in characters.chunks(cut) {
            parts.extend(parser.push(&piece.iter().collect::<String>()));
        }
        parts.extend(parser.finish());
        let (mut text, mut calls) = (String::new(), Vec::new());
        for part in parts {
            match part {
                ReplyPart::Text(piece) => {
                    assert!(!piece.is_empty());
                    text.push_str(&piece);
                }
                ReplyPart::Thought(_) => panic!("there are no thoughts in JSON"),
                ReplyPart::Call(call) => {
                    assert_eq!(call.index, calls.len());
                    calls.push((call.name, call.arguments));
                }
            }
        }
        (text, calls)
    };
    let whole = run(usize::MAX);
    for cut in 1..12 {
        assert_eq!(run(cut), whole, "{reply:?} in pieces of {cut}");
    }
    whole
}

fn call(name: &str, arguments: &str) -> (String, String) {
    (name.to_owned(), arguments.to_owned())
}

#[test]
fn calls_are_found_wherever_a_reply_is_cut() {
    let bare = r#"{"name": "weather", "parameters": {"city": "A}\"]{"}}"#;
    let found = vec![call("weather", r#"{"city": "A}\"]{"}"#)];
    for reply in [
        bare.to_owned(),
        format!("  \n{bare}\n"),
        format!("```json\n{bare}\n```"),
        format!("```tool_code\n{bare}\n```\n"),
        format!("```\n{bare}"),
        format!("[{bare}]"),
        bare.replace("parameters", "arguments").replace(": ", " :\n"),
    ] {
        let (text, calls) = parse(&reply, true);
        assert_eq!(text, "", "{reply:?}");
        assert_eq!(calls.len(), 1, "{reply:?}");
        assert_eq!(calls[0].0, "weather");
        let arguments: Value = serde_json::from_str(&calls[0].1).unwrap();
        assert_eq!(arguments, json!({"city": "A}\"]{"}));
    }
    assert_eq!(parse(bare, true), (String::new(), found.clone()));
    assert_eq!(parse(&format!("I look.\n{bare}"), true), ("I look.\n".to_owned(), found));
    let two = format!(r#"[{bare}, {{"name":"time","arguments":{{}}}}]"#);
    assert_eq!(parse(&two, true).1.len(), 2);
    assert_eq!(parse(&two, true).1[1], call("time", "{}"));
    assert_eq!(parse(&two, false).1.len(), 1);
    assert_eq!(parse(&format!("{bare}\n{bare} and so on"), false).1.len(), 1);
    assert_eq!(parse(&format!("{bare}\n{bare}"), true).1.len(), 2);
}

/// A call is complete when its object is, not when the list around it is.
#[test]
fn calls_of_a_list_come_one_by_one() {
    let first = r#"{"name": "weather", "parameters": {"city": "Bern"}}"#;
    let second = r#"{"name": "time", "parameters": {}}"#;
    let mut parser = tools().parser(true);
    let count = |parts: Vec<ReplyPart>| {
        assert!(parts.iter().all(|part| matches!(part, ReplyPart::Call(_))), "{parts:?}");
        parts.len()
    };
    assert_eq!(count(parser.push(&format!("[{first}"))), 1, "before the list goes on");
    assert_eq!(count(parser.push(&format!(", {second}"))), 1);
    assert_eq!(count(parser.push("]")) + count(parser.finish()), 0);
    // What breaks off within a list takes no call with it, and is not text.
    for rest in ["", ",", ", {\"name\": \"weather\", \"parameters\": {\"city\": \"O", ", {\"na"] {
        let (text, calls) = parse(&format!("[{first}, {second}{rest}"), true);
        assert_eq!((text.as_str(), calls.len()), ("", 2), "{rest:?}");
    }
    let fenced = format!("```json\n[{first},\n {second}]\n```\nDone.");
    assert_eq!((parse(&fenced, true).0.trim(), parse(&fenced, true).1.len()), ("Done.", 2));
    let foreign = format!("[{first}, {{\"name\": \"nope\"}}] and so on");
    assert_eq!(parse(&foreign, true).0, "{\"name\": \"nope\"}] and so on");
    assert_eq!(parse(&foreign, true).1.len(), 1);
    assert_eq!(parse(&format!("[{first}, {second}]"), false).1.len(), 1);
}

#[test]
fn arguments_keep_their_spelling() {
    let reply =
        r#"{"name":"weather","parameters":{"city":"\u0041","n":12345678901234567890123,"f":1.50}}"#;
    let (_, calls) = parse(reply, true);
    assert_eq!(calls[0].1, r#"{"city":"\u0041","n":12345678901234567890123,"f":1.50}"#);
}

#[test]
fn what_is_no_call_is_text_unchanged() {
    for reply in [
        "",
        "Hello",
        "  Hello\n\n  {x}\n",
        "{",
        "{\"name\": \"other\", \"parameters\": {}}",
        "{\"name\": \"weather\", \"parameters\": []}",
        "{\"name\": \"weather\" \"parameters\": {}}",
        "{\"a\": 1}",
        "[1, 2]",
        "```python\nprint(1)\n```",
        "```json\n{\"a\": 1}\n```",
        "``",
        "`x`",
        "See {\"name\": \"weather\", \"parameters\": {}}",
        "[{\"name\": \"nope\"}, {\"name\": \"weather\", \"parameters\": {}}]",
        "é\n  ",
    ] {
        assert_eq!(parse(reply, true), (reply.to_owned(), Vec::new()), "{reply:?}");
    }
}

#[test]
fn a_call_in_which_a_reply_ends_is_no_text() {
    let format = reply_format(&common::from_json(common::TOKENIZERS[0]), None);
    let call = r#"{"name": "weather", "parameters": {"city": "Bern"}}"#;
    for whole in [
        call.to_owned(),
        format!("[{call}"),
        format!("```json\n{call}"),
        format!("```tool_code\n[ {call}"),
    ] {
        let name = whole.find("\"parameters\":").unwrap() + "\"parameters\":".len();
        for end in name..whole.len() {
            let (text, calls) = parse(&format!("I look.\n{}", &whole[..end]), true);
            assert_eq!((text.as_str(), calls.len()), ("I look.\n", 0), "{:?}", &whole[..end]);
        }
        // Before the arguments it may be anything, unless nothing but calls may come.
        let begun = &whole[..name - 1];
        assert_eq!(parse(begun, true).0, begun);
        for end in 1..whole.len() {
            for (choice, expected) in [
                (ToolChoice::Required, ""),
                (ToolChoice::Named("weather".into()), ""),
                (ToolChoice::Auto, begun),
            ] {
                let tools = tools();
                let offer = Offer { tools: &tools, choice: &choice, parallel: true };
                let mut reader = format.reader(&offer, false).unwrap();
                let mut parts = reader.text(&whole[..end]);
                parts.extend(reader.finish());
                let is_text = end < name && !expected.is_empty();
                assert_eq!(parts.is_empty(), !is_text, "{:?} {choice:?}", &whole[..end]);
                assert_eq!(reader.is_cut(), !is_text);
            }
        }
    }
    assert!(!tools().parser(true).is_cut());
}

#[test]
fn a_long_call_is_scanned_once() {
    let mut parser = tools().parser(true);
    parser.push("{\"name\": \"weather\", \"parameters\": {\"city\": \"");
    // Scanning from the beginning each time would take minutes.
    within(Duration::from_secs(10), "a long call", || {
        for _ in 0..200_000 {
            assert!(parser.push("abc").is_empty());
        }
    });
    assert!(matches!(&parser.push("\"}}")[..], [ReplyPart::Call(_)]));
    let mut parser = tools().parser(true);
    parser.push("{\"name\": \"");
    assert!(!parser.push(&"x".repeat(100)).is_empty(), "an unknown name is decided at once");
    assert!(!parser.push(&" ".repeat(10_000)).is_empty(), "space is not held forever");
}

#[test]
fn a_reply_of_one_call_ends_there() {
    let mut parser = tools().parser(false);
    assert_eq!(parser.push("{\"name\": \"time\", \"parameters\": {}} x").len(), 1);
    assert!(parser.is_done());
    assert!(parser.push("more").is_empty() && parser.finish().is_empty());
}

#[test]
fn hostile_tools_are_refused_with_their_place() {
    let many: Vec<Value> =
        (0..10_000).map(|index| function(&format!("f{index}"), json!({}))).collect();
    let long = "x".repeat(129);
    let cases = [
        (json!("x"), "tools"),
        (json!(many), "tools"),
        (json!([1]), "tools[0]"),
        (json!([{"type": "function"}]), "tools[0].function"),
        (json!([{"type": "web_search", "function": {"name": "a"}}]), "tools[0].type"),
        (json!([{"function": {}}]), "tools[0].function.name"),
        (json!([function("", json!({}))]), "tools[0].function.name"),
        (json!([function(&long, json!({}))]), "tools[0].function.name"),
        (json!([function("a b", json!({}))]), "tools[0].function.name"),
        (json!([function("a", json!({})), function("a", json!({}))]), "tools[1].function.name"),
        (json!([{"function": {"name": "a", "description": 5}}]), "tools[0].function.description"),
    ];
    for (value, param) in cases {
        let error = Tools::from_openai(&value).unwrap_err();
        assert_eq!(error.param, param, "{error}");
    }
    // Schemas that are too large, alone or together, are any.
    let large = |name: &str| function(name, json!({"const": "x".repeat(200_000)}));
    for (value, lost) in [
        (json!([function("a", json!({"title": "x".repeat(300_000)}))]), "a"),
        (json!([large("a"), large("b")]), "b"),
    ] {
        let tools = Tools::from_openai(&value).unwrap();
        let unread: Vec<_> =
            tools.unread().map(|(name, left_out)| (name, &*left_out.keyword)).collect();
        assert_eq!(unread, [(lost, "parameters")]);
    }
    assert!(Tools::from_openai(&Value::Null).unwrap().is_empty());
    assert!(Tools::from_openai(&json!([])).unwrap().is_empty());
}

/// Schemas as servers of tools send them. Ollama reads null as absent, and takes any word as a type
/// (`api/types.go`).
#[test]
fn what_cannot_be_read_of_a_schema_is_left_out() {
    let compiler = GrammarCompiler::new(Arc::new(common::from_json("tokenizer")));
    let within = |schema: Value| json!({"type": "object", "properties": {"a": schema}});
    for (parameters, unread) in [
        (json!({"type": "object", "properties": null, "required": null}), ""),
        (json!({"type": "object", "properties": []}), ""),
        (json!({"type": null}), ""),
        (json!({"type": "any"}), "#/type"),
        (json!({"type": ""}), "#/type"),
        (json!({"type": "string", "enum": ["x"]}), "#/type"),
        (json!({"type": "array", "items": {"type": "date"}}), "#/type"),
        (json!([]), "#/parameters"),
        (json!("x"), "#/parameters"),
        (json!({"type": ["object", "null"], "required": true}), "#/required"),
        (json!({"type": "OBJECT", "properties": {"a": {"type": "STRING"}}}), ""),
        (json!({"properties": {"a": null}}), "#/properties/a"),
        (within(json!({"type": "date"})), "#/properties/a/type"),
        (within(json!({"type": ["STRING", null]})), ""),
        (within(json!({"type": "string", "required": true})), "#/properties/a/required"),
        (within(json!({"enum": null, "items": null, "anyOf": null})), ""),
        (within(json!({"enum": []})), "#/properties/a/enum"),
        (within(json!({"anyOf": [{"type": "string"}, "x"]})), "#/properties/a/anyOf/1"),
        (within(json!({"anyOf": []})), "#/properties/a/anyOf"),
        (within(json!({"items": "string"})), "#/properties/a/items"),
        (
            within(json!({"minimum": null, "minLength": null, "maxItems": null, "pattern": null})),
            "",
        ),
        (within(json!({"type": "number", "maximum": ""})), "#/properties/a/maximum"),
        (within(json!({"type": "string", "minLength": "1"})), "#/properties/a/minLength"),
        (within(json!({"type": "string", "pattern": 5})), "#/properties/a/pattern"),
        (within(json!({"type": "string", "pattern": r"[\w-\.]+"})), "pattern"),
        (within(json!({"type": "string", "pattern": "^{.*}$"})), "pattern"),
        (within(json!({"type": "string", "pattern": "["})), "pattern"),
        (within(json!({"additionalProperties": null})), ""),
        (within(json!({"default": null, "example": {"type": "x"}, "const": null})), ""),
    ] {
        let tools = Tools::from_openai(&json!([function("f", parameters.clone())]));
        let tools = tools.unwrap_or_else(|error| panic!("{parameters}: {error}"));
        let place = |(name, left_out): (&str, &trine_text::LeftOut)| {
            assert_eq!(name, "f");
            format!("{}/{}", left_out.place, left_out.keyword)
        };
        let found: Vec<String> = tools.unread().map(place).collect();
        let expected = if unread == "pattern" { "" } else { unread };
        assert_eq!(found.join(" "), expected, "{parameters}");
        let grammar = compiler.compile(&tools.grammar(&ToolChoice::Required, true, None).unwrap());
        let grammar = grammar.unwrap_or_else(|error| panic!("{parameters}: {error}"));
        let is_relaxed = grammar.relaxed().iter().any(|one| one.left_out.keyword == "pattern");
        assert_eq!(is_relaxed, unread == "pattern", "{parameters}");
        // What can be read is checked.
        let mut parser = tools.parser(true);
        let parts = parser.push(r#"{"name": "f", "parameters": {}}"#);
        let [ReplyPart::Call(call)] = &parts[..] else { panic!("{parts:?}") };
        assert_eq!(call.problem, None, "{parameters}");
    }
}

/// As many tools as a request may have, and names as long as they may be.
#[test]
fn a_thousand_tools_have_a_grammar() {
    let name = |index: usize| format!("mcp__{}__{index:04}", "server_".repeat(16));
    // Words for readers are no part of the grammar.
    let words = "What it is. ".repeat(20);
    let schema = json!({"description": words, "properties": {
        "path": {"type": "string", "description": words}, "description": {"type": "integer"},
    }});
    let many: Value = (0..1024).map(|index| function(&name(index), schema.clone())).collect();
    assert!(name(0).len() > 120 && name(0).len() <= 128);
    let tools = Tools::from_openai(&many).unwrap();
    let tokenizer = Arc::new(common::from_json("tokenizer"));
    let compiler = GrammarCompiler::new(tokenizer.clone());
    within(Duration::from_secs(20), "a thousand tools", move || {
        let source = tools.grammar(&ToolChoice::Auto, true, None).unwrap();
        let mut matcher = compiler.compile(&source).unwrap().matcher().unwrap();
        let call = format!(r#"{{"name": "{}", "parameters": {{"path": "a"}}}}"#, name(1023));
        for id in tokenizer.encode(&call, Specials::AsText).unwrap() {
            matcher.accept(id).unwrap();
        }
        assert!(matcher.is_complete());
    });
}

/// A call that broke off, or that is no object, is shown as the text that it is.
#[test]
fn arguments_of_earlier_calls_may_be_any_text() {
    for (arguments, shown) in [
        (json!("{\"a\": "), "{\"a\": "),
        (json!("null"), "null"),
        (json!("[1]"), "[1]"),
        (json!([1]), "[1]"),
        (json!("rm -rf"), "rm -rf"),
        (json!("{\"a\": 1}"), "{\"a\": 1}"),
    ] {
        let message: Message = serde_json::from_value(json!({
            "role": "assistant", "content": null, "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}},
            ],
        }))
        .unwrap();
        Tools::check_calls(std::slice::from_ref(&message), |_, field| field.to_owned()).unwrap();
        let written = Tools::write_calls(vec![message]).unwrap();
        let expected = format!("{{\"name\": \"f\", \"parameters\": {shown}}}");
        assert_eq!(written[0].content.text(), expected);
    }
}

#[test]
fn choices_are_checked() {
    let tools = tools();
    let named = |name: &str| json!({"type": "function", "function": {"name": name}});
    assert_eq!(tools.choice_from_openai(&Value::Null), Ok(ToolChoice::Auto));
    assert_eq!(tools.choice_from_openai(&json!("none")), Ok(ToolChoice::None));
    assert_eq!(tools.choice_from_openai(&named("time")), Ok(ToolChoice::Named("time".into())));
    assert_eq!(
        tools.choice_from_openai(&named("gone")).unwrap_err().param,
        "tool_choice.function.name"
    );
    for wrong in [json!("x"), json!(1), json!({}), json!([])] {
        assert_eq!(tools.choice_from_openai(&wrong).unwrap_err().param, "tool_choice");
    }
    let none = Tools::default();
    assert_eq!(none.choice_from_openai(&json!("required")).unwrap_err().param, "tool_choice");
    assert_eq!(none.choice_from_openai(&json!("auto")), Ok(ToolChoice::Auto));
    assert_eq!(none.grammar(&ToolChoice::Auto, true, None), None);
    assert_eq!(tools.grammar(&ToolChoice::None, true, None), None);
}

#[test]
fn grammars_of_calls_take_calls() {
    let tokenizer = Arc::new(common::from_json("tokenizer"));
    let compiler = GrammarCompiler::new(tokenizer.clone());
    let tools = tools();
    let takes = |choice: &ToolChoice, parallel: bool, text: &str| {
        let mut matcher = compiler
            .compile(&tools.grammar(choice, parallel, None).unwrap())
            .unwrap()
            .matcher()
            .unwrap();
        let ids = tokenizer.encode(text, Specials::AsText).unwrap();
        ids.iter().all(|&id| matcher.accept(id).is_ok()) && matcher.is_complete()
    };
    let weather = r#"{"name": "weather", "parameters": {"city": "Bern"}}"#;
    let time = r#"{"name": "time", "parameters": {}}"#;
    let list = format!("[{weather}, {time}]");
    let other = r#"{"name": "other", "parameters": {}}"#;
    let said = r#"{"name": "weather", "arguments": {"city": "Bern"}}"#;
    let pretty = "{\n  \"name\": \"weather\",\n  \"parameters\": {\n    \"city\": \"Bern\"\n  }\n}";
    let bad_pretty = pretty.replace("city", "town");
    let bad_list = format!("[{weather},\n{bad_pretty}]");
    let blanks = format!("{}{}}}", time.strip_suffix('}').unwrap(), " ".repeat(100));
    assert!(!takes(&ToolChoice::Required, true, &blanks), "a call has an end");
    let mixed = format!("[{weather}, {{\"x\": 1}}, 2] and so on");
    let named = ToolChoice::Named("time".into());
    for (choice, parallel, good) in [
        (&ToolChoice::Required, true, vec![weather, time, &list, pretty]),
        (&ToolChoice::Required, false, vec![weather, time, pretty]),
        (&named, true, vec![time]),
        (
            &ToolChoice::Auto,
            true,
            vec![
                weather,
                time,
                &list,
                pretty,
                &mixed,
                "Hello",
                "[1]",
                "{\"a\": 1}",
                "{\"name\": x",
                "``` x",
                " ",
                other,
                "{\"name\": \"Paris\", \"country\": \"France\"}",
                "{\"name\": \"weather\", \"country\": \"France\"}",
                "{\"name\": \"weatherman\", \"parameters\": {}}",
                "[{\"name\": \"Paris\"}]",
            ],
        ),
    ] {
        let bad = r#"{"name": "weather", "parameters": {"city": 1}}"#;
        let texts = [weather, time, &list, "Hello", bad, other, said, pretty, &mixed];
        for text in texts.into_iter().chain([&*bad_pretty, &bad_list]) {
            let expected = good.contains(&text);
            assert_eq!(takes(choice, parallel, text), expected, "{choice:?} {parallel} {text}");
        }
        for text in good.iter().filter(|text| **text != "{\"name\": x") {
            assert!(takes(choice, parallel, text), "{choice:?} {parallel} {text}");
        }
    }
}

#[test]
fn calls_stand_beside_json_of_a_schema() {
    let tokenizer = Arc::new(common::from_json("tokenizer"));
    let compiler = GrammarCompiler::new(tokenizer.clone());
    // Its references are those of a document of its own, and its first key begins as a call does.
    let answer = r##"{"type": "object", "properties": {"name": {"$ref": "#/$defs/n"}, "inner": {"$ref": "#"},
        "$ref": {"const": {"$ref": "#"}}}, "required": ["name"], "additionalProperties": false,
        "$defs": {"n": {"type": "string", "maxLength": 3}}}"##;
    let grammar = |choice: &ToolChoice, parallel: bool| {
        let source = tools().grammar(choice, parallel, Some(answer)).unwrap();
        compiler.compile(&source).unwrap()
    };
    let takes = |choice: &ToolChoice, parallel: bool, text: &str| {
        let mut matcher = grammar(choice, parallel).matcher().unwrap();
        let ids = tokenizer.encode(text, Specials::AsText).unwrap();
        ids.iter().all(|&id| matcher.accept(id).is_ok()) && matcher.is_complete()
    };
    let weather = r#"{"name": "weather", "parameters": {"city": "Bern"}}"#;
    let list = format!("[{weather}]");
    for text in [
        weather,
        r#"{"name": "Jo"}"#,
        r#"{"name": "Jo", "inner": {"name": "Al"}}"#,
        r##"{"name": "Jo", "$ref": {"$ref": "#"}}"##,
    ] {
        assert!(takes(&ToolChoice::Auto, true, text), "{text}");
        assert!(takes(&ToolChoice::Auto, false, text), "{text}");
        assert_eq!(takes(&ToolChoice::Required, true, text), text == weather, "{text}");
    }
    assert!(takes(&ToolChoice::Auto, true, &list));
    assert!(!takes(&ToolChoice::Auto, false, &list));
    for text in [
        "Hello",
        "[]",
        r#"{"name": "Johannes"}"#,
        r#"{"name": "weather", "parameters": {"city": 1}}"#,
        r#"{"name": "other", "parameters": {}}"#,
        r#"{"name": "Jo", "inner": {"name": 1}}"#,
    ] {
        assert!(!takes(&ToolChoice::Auto, true, text), "{text}");
    }
}

#[test]
fn conversations_fit_a_template_without_tools() {
    let tools = tools();
    let messages: Vec<Message> = serde_json::from_value(json!([
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": null, "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "weather",
                "arguments": "{\"city\":\"Bern\"}"}},
            {"id": "2", "type": "function", "function": {"name": "time", "arguments": ""}}]},
        {"role": "tool", "tool_call_id": "1", "content": "{\"t\": 3}"},
        {"role": "tool", "tool_call_id": "2", "content": "noon\n```"},
        {"role": "user", "content": "And?"},
    ]))
    .unwrap();
    let written = tools.conversation(messages.clone(), &ToolChoice::Auto, true).unwrap();
    let template = ChatTemplate::gemma();
    let turns = template.arranged(written);
    let prompt = template.render(&turns, &RenderOptions::default()).unwrap();
    assert!(
        prompt.starts_with("<bos><start_of_turn>user\nBe kind.\n\nYou have access to functions."),
        "{prompt}"
    );
    assert!(
        prompt.contains(r#"[{"name":"weather","description":"Does it.","parameters":{"#),
        "{prompt}"
    );
    assert!(prompt.ends_with(concat!(
        "Weather?<end_of_turn>\n<start_of_turn>model\n",
        r#"[{"name": "weather", "parameters": {"city":"Bern"}}, {"name": "time", "parameters": {}}]"#,
        "<end_of_turn>\n<start_of_turn>user\n```tool_output\n",
        r#"{"name": "weather", "content": {"t":3}}"#,
        "\n```\n\n```tool_output\n",
        r#"{"name": "time", "content": "noon\n```"}"#,
        "\n```\n\nAnd?<end_of_turn>\n<start_of_turn>model\n",
    )), "{prompt}");
    // Results come in the order of their calls, since nothing else tells whose they are.
    let mut turned = messages.clone();
    turned.swap(3, 4);
    let written = |messages| tools.conversation(messages, &ToolChoice::Auto, true).unwrap();
    assert_eq!(written(turned), written(messages.clone()));
    let plain = tools.conversation(messages[1..2].to_vec(), &ToolChoice::Required, false).unwrap();
    assert_eq!(plain.len(), 2);
    let first = messages[..2].to_vec();
    assert_eq!(tools.conversation(first, &ToolChoice::None, true).unwrap(), messages[..2]);
}

#[test]
fn broken_conversations_are_refused_with_their_place() {
    let cases = [
        (
            json!([{"role": "tool", "tool_call_id": "9", "content": "x"}]),
            "messages[0].tool_call_id",
        ),
        (json!([{"role": "assistant", "tool_calls": 1}]), "messages[0].tool_calls"),
        (json!([{"role": "assistant", "tool_calls": [1]}]), "messages[0].tool_calls[0].function"),
        (
            json!([{"role": "assistant", "tool_calls": [{"function": {}}]}]),
            "messages[0].tool_calls[0].function.name",
        ),
    ];
    for (messages, param) in cases {
        let messages: Vec<Message> = serde_json::from_value(messages).unwrap();
        assert_eq!(
            tools().conversation(messages, &ToolChoice::Auto, true).unwrap_err().param,
            param
        );
    }
}
