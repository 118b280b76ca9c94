//! Schemas of tools: those that cannot be held, calls compared with them, hostile ones.

use std::collections::HashSet;
use std::time::Duration;

use crate::common::work::within;
use crate::schemas::{call, takes, tools, with, world};
use serde_json::{Map, Value, json};
use trine_text::{ReplyPart, ToolChoice, Tools};

/// One odd tool does not end an agent's session: it loses what contradicts itself or costs too
/// much, and the others keep theirs.
#[test]
fn tools_that_cannot_be_called_lose_their_schemas() {
    let of = |parameters: &[Value]| {
        let function = |name: &str, parameters: &Value| {
            json!({"function": {"name": name,
                "parameters": parameters}})
        };
        let bad = parameters.iter().enumerate();
        let bad = bad.map(|(index, parameters)| function(&format!("bad{index}"), parameters));
        let good = function("good", &with(json!({"type": "integer"})));
        let tools: Value = [good].into_iter().chain(bad).collect();
        let tools = Tools::from_openai(&tools).unwrap();
        let source = tools.grammar(&ToolChoice::Required, true, None).unwrap();
        let grammar = world().compiler.compile(&source).unwrap();
        let lost = grammar.relaxed().iter().map(|relaxed| &*relaxed.tool);
        let lost = lost.chain(tools.unread().map(|(tool, _)| tool)).map(str::to_owned);
        let lost: HashSet<String> = lost.collect();
        (grammar, lost)
    };
    let good = |arguments: &str| format!("{{\"name\": \"good\", \"parameters\": {arguments}}}");
    let values: Vec<usize> = (0..20_000).collect();
    let properties: serde_json::Map<String, Value> =
        (0..3000).map(|index| (format!("p{index}"), json!({"type": "string"}))).collect();
    for parameters in [
        json!({"type": "object",
            "properties": {"a": {"allOf": [{"type": "string"}, {"type": "null"}]}},
            "required": ["a"]}),
        json!({"type": "object",
            "properties": {"a": {"minimum": 3, "maximum": 2, "type": "integer"}},
            "required": ["a"]}),
        json!({"type": "object",
            "properties": {"a": {"type": "integer", "enum": ["1"]}}, "required": ["a"]}),
        json!({"type": "object", "properties": {"a": false}, "required": ["a"]}),
        json!({"type": "object", "required": ["a"], "additionalProperties": false}),
        json!({"type": "object", "minProperties": 3, "maxProperties": 2}),
        json!({"properties": {"a": {"$ref": "#/properties/a"}}}),
        json!({"properties": {"a": {"not": {"$ref": "#/properties/a"}}}}),
        json!({"properties": {"a": {"enum": values}}}),
        json!({"properties": {"a": {"minItems": 1_000_000}}}),
        json!({ "properties": properties }),
    ] {
        let shown: String = parameters.to_string().chars().take(100).collect();
        let (grammar, lost) = of(&[parameters]);
        assert_eq!(lost.iter().collect::<Vec<_>>(), ["bad0"], "{shown}");
        assert!(takes(&grammar, &good(r#"{"a": 1}"#)), "{shown}");
        assert!(!takes(&grammar, &good(r#"{"a": "1"}"#)), "{shown}");
        assert!(takes(&grammar, r#"{"name": "bad0", "parameters": {"x": [1]}}"#), "{shown}");
    }
    // Together they cost too much: the largest lose theirs.
    let large: serde_json::Map<String, Value> = (0..400)
        .map(|index| (format!("p{index}"), json!({"type": "string", "maxLength": 100})))
        .collect();
    let (grammar, lost) = of(&vec![json!({"type": "object", "properties": large}); 40]);
    assert!(!lost.is_empty() && lost.len() < 40 && !lost.contains("good"), "{}", lost.len());
    assert!(!takes(&grammar, &good(r#"{"a": "1"}"#)));
}

/// The problem of a call with these arguments.
fn problem(parameters: &Value, arguments: &str) -> Option<String> {
    let mut parser = tools(parameters).parser(false);
    let parts = parser.push(&call(arguments));
    let [ReplyPart::Call(call)] = &parts[..] else { panic!("no call: {parts:?}") };
    assert_eq!(call.arguments, arguments, "the call is passed on as it is");
    call.problem.clone()
}

#[test]
fn calls_are_compared_with_their_whole_schema() {
    let schema = with(json!({"type": "array", "items": {"type": "integer"}, "uniqueItems": true}));
    assert_eq!(problem(&schema, r#"{"a": [1, 2]}"#), None);
    let found = problem(&schema, r#"{"a": [1, 1]}"#).unwrap();
    assert!(found.contains("#/properties/a/uniqueItems") && found.contains("/a"), "{found}");
    assert!(problem(&schema, r#"{"a": ["secret"]}"#).is_some_and(|text| !text.contains("secret")));
    assert!(problem(&schema, "{}").is_some_and(|text| text.contains("required")));
    // Older drafts, unknown formats and references elsewhere are no problem.
    for schema in [
        json!({"$schema": "http://json-schema.org/draft-04/schema#",
            "properties": {"a": {"type": "integer", "minimum": 1,
            "exclusiveMinimum": true}}}),
        json!({"$schema": "https://example.com/own",
            "properties": {"a": {"type": "integer", "format": "odd"}}}),
        json!({"properties": {"a": {"$ref": "https://example.com/schema.json"}}}),
        json!({"properties": {"a": {"$ref": "#/definitions/b%20c"}},
            "definitions": {"b c": {"type": "integer"}}}),
        json!({"$id": "https://example.com/x.json",
            "properties": {"a": {"$ref": "#/$defs/b"}}, "$defs": {"b": {"type": "integer"}}}),
    ] {
        assert_eq!(problem(&schema, r#"{"a": 5}"#), None, "{schema}");
    }
    let schema = json!({"type": "object", "title": 5, "properties": {"a": {"type": "integer"}}});
    assert!(problem(&schema, r#"{"a": 5}"#).is_some_and(|text| text.contains("cannot be checked")));
}

/// Each of these would take a validator minutes, all memory or the whole stack.
#[test]
fn hostile_schemas_of_tools_cost_no_more_than_their_size() {
    let twice = |count: usize, keyword: &str| {
        let mut definitions = Map::new();
        for index in 0..count {
            let next = json!({"$ref": format!("#/$defs/d{}", index + 1)});
            definitions.insert(format!("d{index}"), json!({ keyword: [next.clone(), next] }));
        }
        definitions.insert(format!("d{count}"), json!({"type": "integer"}));
        json!({"properties": {"a": {"$ref": "#/$defs/d0"}}, "$defs": definitions})
    };
    let deep = |count: usize| format!("{}1{}", "[".repeat(count), "]".repeat(count));
    let again = json!({"properties": {"a": {"$ref": "#/$defs/d"}},
        "$defs": {"d": {"items": {"$ref": "#/$defs/d"},
        "not": {"contains": {"$ref": "#/$defs/d"}, "minItems": 500}}}});
    let chain = {
        let mut definitions = Map::new();
        for index in (0..2000).rev() {
            definitions.insert(
                format!("d{index}"),
                json!({"not": {"items": {"$ref": format!("#/$defs/d{}", index + 1)}}}),
            );
        }
        definitions.insert("d2000".to_owned(), json!({}));
        json!({"properties": {"a": {"not": {"$ref": "#/$defs/d0"}}}, "$defs": definitions})
    };
    let backtracks = with(json!({"type": "string", "pattern": "^(?=(a+)+$)(a|aa)+$"}));
    let patterns: Vec<Value> = (0..500)
        .map(|index| json!({"pattern": format!("^(?!x{index})\\p{{L}}{{1,200}}$")}))
        .collect();
    for (schema, arguments) in [
        (twice(60, "allOf"), "{\"a\": 5}".to_owned()),
        (twice(60, "anyOf"), "{\"a\": \"x\"}".to_owned()),
        (again, format!("{{\"a\": {}}}", deep(100))),
        (chain, format!("{{\"a\": {}}}", deep(100))),
        (backtracks, format!("{{\"a\": \"{}b\"}}", "a".repeat(5000))),
        (with(json!({ "not": {"anyOf": patterns} })), "{\"a\": \"x\"}".to_owned()),
        (with(json!({"uniqueItems": true})), format!("{{\"a\": [{}1]}}", "1,".repeat(50_000))),
    ] {
        let shown: String = schema.to_string().chars().take(100).collect();
        within(Duration::from_secs(20), &shown, || {
            let function = json!({"name": "f", "parameters": schema});
            let Ok(tools) = Tools::from_openai(&json!([{ "function": function }])) else { return };
            tools.parser(false).push(&call(&arguments));
            let source = tools.grammar(&ToolChoice::Auto, true, None).unwrap();
            let _ = world().compiler.compile(&source);
        });
    }
}
