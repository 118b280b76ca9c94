//! Gemma 4's template: rendered cases, and what such templates need of the engine.
use crate::common::json;
use serde_json::{Map, Value, json};
use trine_text::{ChatTemplate, Message, RenderOptions};

fn render(template: &ChatTemplate, case: &Value) -> String {
    let messages: Vec<Message> = serde_json::from_value(case["messages"].clone()).unwrap();
    let mut extra = Map::new();
    for name in ["tools", "enable_thinking"] {
        if let Some(value) = case.get(name) {
            extra.insert(name.to_owned(), value.clone());
        }
    }
    let add_generation_prompt = case["add_generation_prompt"].as_bool().unwrap();
    let options = RenderOptions { add_generation_prompt, extra, ..RenderOptions::default() };
    template.render(&messages, &options).unwrap()
}

/// Returns a case's text as the templates since July 2026 write it: those that the cases were made
/// with write `None` where these write `null`.
fn expected(case: &Value) -> String {
    case["text"].as_str().unwrap().replace("None", "null")
}

#[test]
fn golden_cases() {
    let cases = json("gemma4-template-cases.json");
    let cases = cases["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 12);
    for case in cases {
        let rendered = render(&ChatTemplate::gemma4(true), case);
        assert_eq!(rendered, expected(case), "{}", case["name"]);
    }
}

#[test]
fn small_models_get_no_empty_channel() {
    let channel = "<|channel>thought\n<channel|>";
    for case in json("gemma4-template-cases.json")["cases"].as_array().unwrap() {
        let large = expected(case);
        let expected = large.strip_suffix(channel).unwrap_or(&large);
        assert_eq!(render(&ChatTemplate::gemma4(false), case), expected, "{}", case["name"]);
    }
}

/// Constructs that the templates of Gemma 4's files use.
#[test]
fn the_engine_does_what_such_templates_need() {
    for (source, expected) in [
        (
            "{%- macro m(a, b='x') -%}{{ a }}{{ b }}{%- endmacro -%}{{ m(1, b=2) }}{{ m(a=3) }}",
            "123x",
        ),
        (
            "{%- macro depth(n) -%}{{ n }}{%- if n > 0 -%}{{ depth(n=n - 1) }}{%- endif -%}\
             {%- endmacro -%}{{ depth(3) }}",
            "3210",
        ),
        ("{{ nothing | upper }}|{{ messages[0].nothing | upper }}", "|"),
        ("{{ ['a', 'b'] | map('upper') | list | join(',') }}", "A,B"),
        ("{{ [messages[0].nothing] | map('upper') | join(',') }}", ""),
        (
            "{%- for k, v in {'b': 1, 'A': 2, 'c': 3} | dictsort -%}{{ k }}{{ v }}{%- endfor -%}",
            "A2b1c3",
        ),
        ("{%- for i in range(3, -1, -1) -%}{{ i }}{%- endfor -%}", "3210"),
        ("{{ messages[::-1] | length }}{{ 'abc'[1:] }}{{ 'abc'[:-1] }}", "1bcab"),
        ("{{ messages[0].get('role') }}{{ messages[0].get('none', 'd') }}", "userd"),
        ("{{ 'a<channel|>b'.split('<channel|>')[-1] }}", "b"),
        (
            "{{ {} is mapping }}{{ [] is sequence }}{{ 'x' is string }}{{ true is boolean }}\
             {{ 1 is boolean }}",
            "TrueTrueTrueTrueFalse",
        ),
        (
            "{%- set ns = namespace(n=1) -%}{%- for i in [1, 2] -%}{%- set ns.n = ns.n + i -%}\
             {%- endfor -%}{{ ns.n }}",
            "4",
        ),
        ("{{ none }}", "None"),
    ] {
        let rendered = ChatTemplate::new(source).and_then(|template| {
            template.render(&[Message::new("user", "x")], &RenderOptions::default())
        });
        assert_eq!(rendered.as_deref(), Ok(expected), "{source}");
    }
}

/// A schema of a tool as deep as JSON's own limit allows is written.
#[test]
fn deep_schemas_are_written() {
    let mut schema = json!({"type": "string"});
    for _ in 0..60 {
        schema = json!({"type": "object", "properties": {"a": schema}});
    }
    let case = json!({
        "messages": [{"role": "user", "content": "x"}], "add_generation_prompt": true,
        "tools": [{"type": "function", "function": {"name": "f",
            "description": "d",
            "parameters": schema}}],
    });
    let rendered = render(&ChatTemplate::gemma4(true), &case);
    assert_eq!(rendered.matches("properties:{a:{").count(), 60);
}
