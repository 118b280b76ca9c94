//! Schemas: what a grammar makes of them, what it leaves out of a tool's, and what it refuses
//! otherwise.
use crate::common;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::common::work::within;
use proptest::prelude::*;
use serde_json::{Map, Value, json};
use trine_text::{
    Grammar, GrammarCompiler, GrammarError, GrammarSource, Specials, Tokenizer, ToolChoice, Tools,
};

pub(crate) struct World {
    tokenizer: Arc<Tokenizer>,
    pub(crate) compiler: GrammarCompiler,
}

pub(crate) fn world() -> &'static World {
    static WORLD: OnceLock<World> = OnceLock::new();
    WORLD.get_or_init(|| {
        let tokenizer = Arc::new(common::from_json("tokenizer"));
        World { compiler: GrammarCompiler::new(tokenizer.clone()), tokenizer }
    })
}

pub(crate) fn strict(schema: &Value) -> Result<Grammar, GrammarError> {
    world().compiler.compile(&GrammarSource::JsonSchema(schema.to_string()))
}

pub(crate) fn takes(grammar: &Grammar, text: &str) -> bool {
    let mut matcher = grammar.matcher().unwrap();
    let ids = world().tokenizer.encode(text, Specials::AsText).unwrap();
    ids.iter().all(|&id| matcher.accept(id).is_ok()) && matcher.is_complete()
}

pub(crate) fn tools(parameters: &Value) -> Tools {
    let function = json!({"name": "f", "parameters": parameters});
    Tools::from_openai(&json!([{"type": "function", "function": function}])).unwrap()
}

pub(crate) fn calls(parameters: &Value) -> Result<Grammar, GrammarError> {
    let source = tools(parameters).grammar(&ToolChoice::Required, false, None).unwrap();
    world().compiler.compile(&source)
}

pub(crate) fn call(arguments: &str) -> String {
    format!("{{\"name\": \"f\", \"parameters\": {arguments}}}")
}

/// The parts of a tool's schema that are left out, as places of keywords.
fn left_out(grammar: &Grammar) -> Vec<String> {
    let place = |relaxed: &trine_text::Relaxed| {
        assert_eq!(relaxed.tool, "f");
        format!("{}/{}", relaxed.left_out.place, relaxed.left_out.keyword)
    };
    grammar.relaxed().iter().map(place).collect()
}

/// An object with the property `a` of a schema.
pub(crate) fn with(schema: Value) -> Value {
    json!({"type": "object",
        "properties": {"a": schema, "b": {"type": "integer"}}, "required": ["a"]})
}

#[test]
fn what_no_grammar_holds_is_left_out_of_tools_and_refused_elsewhere() {
    for (schema, keyword, good, bad) in [
        (
            json!({"type": "array", "items": {"type": "integer"}, "uniqueItems": true}),
            "uniqueItems",
            "[1, 2]",
            "[\"x\"]",
        ),
        (json!({"type": "integer", "not": {"const": 3}}), "not", "4", "\"x\""),
        (
            json!({"type": "object",
                "propertyNames": {"pattern": "^x"},
                "additionalProperties": {"type": "integer"}}),
            "propertyNames",
            r#"{"x": 1}"#,
            r#"{"x": "y"}"#,
        ),
        (
            json!({"type": "array", "items": {"type": "integer"}, "contains": {"const": 7}}),
            "contains",
            "[7]",
            "[\"x\"]",
        ),
        (
            json!({"type": "object",
                "properties": {"p": {"type": "integer"}, "q": {}},
                "dependentRequired": {"p": ["q"]}}),
            "dependentRequired",
            r#"{"p": 1, "q": 2}"#,
            r#"{"p": "x"}"#,
        ),
        (
            json!({"type": "object",
                "properties": {"p": {"type": "integer"}}, "if": {"required": ["p"]},
                "then": {"required": ["q"],
                "properties": {"q": {"type": "null"}}}}),
            "if",
            r#"{"p": 1, "q": null}"#,
            r#"{"p": "x"}"#,
        ),
        (
            json!({"type": "object",
                "properties": {"p": {"type": "integer"}},
                "unevaluatedProperties": false}),
            "unevaluatedProperties",
            r#"{"p": 1}"#,
            r#"{"p": "x"}"#,
        ),
        (
            json!({"oneOf": [{"type": "integer"}, {"type": "number", "minimum": 5}]}),
            "oneOf",
            "3",
            "\"x\"",
        ),
        (json!({"type": "string", "pattern": "^(?!x)[a-z]+$"}), "pattern", "\"abc\"", "5"),
        (json!({"type": "string", "pattern": "^(a)\\1$"}), "pattern", "\"aa\"", "5"),
        (json!({"type": "number", "multipleOf": 123_456.5}), "multipleOf", "123456.5", "\"x\""),
        (json!({"$ref": "https://example.com/schema.json"}), "$ref", "5", ""),
        (json!({"$ref": "#/$defs/gone"}), "$ref", "\"x\"", ""),
        (json!({"$ref": "other.json#/x", "type": "integer"}), "$ref", "5", "\"x\""),
        (
            json!({"type": "object",
                "patternProperties": {"^a": {"type": "integer"}, "b$": {}},
                "additionalProperties": false}),
            "patternProperties",
            r#"{"b": 1}"#,
            "5",
        ),
        (
            json!({"type": "object",
                "patternProperties": {"^(?!x)": {"type": "integer"}},
                "additionalProperties": false}),
            "patternProperties/^(?!x)",
            r#"{"b": 1}"#,
            "5",
        ),
    ] {
        let whole = with(schema.clone());
        let grammar = calls(&whole).unwrap_or_else(|error| panic!("{schema}: {error}"));
        assert_eq!(left_out(&grammar), [format!("#/properties/a/{keyword}")], "{schema}");
        let with_value = |value: &str| call(&format!("{{\"a\": {value}, \"b\": 1}}"));
        assert!(takes(&grammar, &with_value(good)), "{schema}: {good}");
        assert!(bad.is_empty() || !takes(&grammar, &with_value(bad)), "{schema}: {bad}");
        assert!(
            !takes(&grammar, &with_value(good).replace("1}", "\"x\"}")),
            "the rest is held: {schema}"
        );
        let error = strict(&whole).unwrap_err().to_string();
        assert!(error.contains(&format!("#/properties/a/{keyword}")), "{schema}: {error}");
    }
}

#[test]
fn keywords_that_ask_for_nothing_are_no_matter() {
    for schema in [
        json!({"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {}}),
        json!({"type": "array", "uniqueItems": false, "unevaluatedItems": true}),
        json!({"type": "string", "format": "path"}),
        json!({"type": "string", "format": "binary"}),
        json!({"type": "string", "format": "password"}),
        json!({"type": "string", "format": "uri-reference"}),
        json!({"type": "object", "then": {"required": ["x"]},
            "minContains": 2,
            "$dynamicAnchor": "x"}),
        json!({"type": "string", "minLength": 1.0, "maxLength": 1e300}),
    ] {
        let grammar =
            calls(&with(schema.clone())).unwrap_or_else(|error| panic!("{schema}: {error}"));
        assert_eq!(left_out(&grammar), Vec::<String>::new(), "{schema}");
        assert!(strict(&with(schema.clone())).is_ok(), "{schema}");
    }
    // A format that the grammar knows is held.
    let grammar = strict(&json!({"type": "string", "format": "date"})).unwrap();
    assert!(takes(&grammar, "\"2024-02-29\"") && !takes(&grammar, "\"soon\""));
}

#[test]
fn alternatives_that_exclude_each_other_are_held() {
    let of = |kind: &str| {
        json!({"type": "object",
            "properties": {"kind": {"const": kind}}, "required": ["kind"]})
    };
    for (schema, good) in [
        (
            json!({"oneOf": [{"type": "string"}, {"type": ["integer", "null"]}, {"const": true}]}),
            "null",
        ),
        (
            json!({"oneOf": [of("x"), of("y"), {"$ref": "#/$defs/z"}], "$defs": {"z": of("z")}}),
            r#"{"kind": "z"}"#,
        ),
        (json!({"oneOf": [{"allOf": [of("x")]}, {"anyOf": [of("y"), {"type": "null"}]}]}), "null"),
        (
            json!({"oneOf": [
                {"type": "object",
                    "properties": {"p": {}}, "required": ["p"],
                    "additionalProperties": false},
                {"type": "object",
                    "properties": {"q": {}}, "required": ["q"],
                    "additionalProperties": false}]}),
            r#"{"q": 1}"#,
        ),
        (
            json!({"oneOf": [{"enum": ["x", "y"]}, {"enum": ["z"]}],
                "anyOf": [{"const": "z"}, {"const": "x"}]}),
            "\"z\"",
        ),
    ] {
        let grammar = strict(&schema).unwrap_or_else(|error| panic!("{schema}: {error}"));
        assert!(takes(&grammar, good), "{schema}");
        assert!(!takes(&grammar, r#"{"kind": "w"}"#) && !takes(&grammar, "5.5"), "{schema}");
    }
    // What is added to an object may make it satisfy the other one too.
    let open = |name: &str| json!({"type": "object", "properties": {name: {}}, "required": [name]});
    let error = strict(&json!({"oneOf": [open("p"), open("q")]})).unwrap_err().to_string();
    assert!(error.contains("#/oneOf"), "{error}");
}

#[test]
fn references_may_have_escapes() {
    let schema = json!({
        "type": "object",
            "properties": {"p": {"$ref": "#/definitions/Box%3Cint%3E"},
                "q": {"$ref": "#/definitions/a~0b"}},
        "required": ["p", "q"],
            "definitions": {"Box<int>": {"type": "integer"}, "a~b": {"type": "null"}},
    });
    let grammar = strict(&schema).unwrap();
    assert!(
        takes(&grammar, r#"{"p": 1, "q": null}"#) && !takes(&grammar, r#"{"p": null, "q": null}"#)
    );
}

#[test]
fn references_may_be_names_of_this_schema() {
    let person = json!({"$anchor": "person", "type": "integer"});
    let draft_7 = json!({"$id": "#person", "type": "integer"});
    let within =
        json!({"$id": "person.json", "$defs": {"n": {"type": "integer"}}, "$ref": "#/$defs/n"});
    let whole = json!({"$id": "https://example.com/s/person.json",
        "$defs": {"n": {"type": "integer"}}, "$ref": "#/$defs/n"});
    let by = |id: &str, reference: &str, definition: &Value| {
        json!({"$id": id, "type": "array", "items": {"$ref": reference},
            "$defs": {"p": definition, "n": {}}})
    };
    let id = "https://example.com/s/list.json";
    for schema in [
        by("", "#person", &person),
        by("", "#person", &draft_7),
        by(id, "#person", &person),
        by(id, "list.json#person", &person),
        by(id, "/s/list.json#person", &person),
        by(id, "https://example.com/s/list.json#/$defs/p", &person),
        by(id, "person.json", &within),
        by(id, "https://example.com/s/person.json", &whole),
        by("", "https://example.com/s/person.json", &whole),
    ] {
        for grammar in [strict(&schema), calls(&with(schema.clone()))] {
            let grammar = grammar.unwrap_or_else(|error| panic!("{schema}: {error}"));
            assert_eq!(grammar.relaxed(), [], "{schema}");
        }
        let grammar = strict(&schema).unwrap();
        assert!(takes(&grammar, "[1, 2]") && !takes(&grammar, "[\"x\"]"), "{schema}");
    }
    // The whole schema by its own name.
    let node = json!({"$id": id, "type": "object", "properties": {"next": {"$ref": "list.json"}}});
    let grammar = strict(&node).unwrap();
    assert!(takes(&grammar, r#"{"next": {"next": {}}}"#) && !takes(&grammar, r#"{"next": 1}"#));
    for reference in ["#other", "other.json", "list.json#other", "https://example.com/s"] {
        let error = strict(&by(id, reference, &person)).unwrap_err().to_string();
        assert!(error.contains("#/items/$ref"), "{error}");
    }
}

/// A short name or reference that stands for a long place costs no more than the schema's size
/// suggests, and none means another place because of that.
#[test]
fn names_of_long_places_are_limited() {
    let long = "x".repeat(100_000);
    let named = |key: &str, mark: &str| -> Map<String, Value> {
        let one = |index| (format!("a{index}"), json!({key: format!("{mark}{index}")}));
        (0..2000).map(one).collect()
    };
    let many = |reference: &str| vec![json!({"$ref": reference}); 2000];
    let below = |schema: Value| json!({"$defs": {&long: schema}});
    for (schema, place) in [
        (json!({"anyOf": many("#n0"), "$defs": {&long: {"$anchor": "n0"}}}), "#/anyOf/4"),
        (json!({"$defs": {&long: {"$defs": named("$anchor", "n")}}}), "#/$defs/xxx"),
        (json!({"$defs": {&long: {"$defs": named("$id", "n")}}}), "#/$defs/xxx"),
        (below(json!({"$id": "a", "anyOf": many("#/$defs/n"), "$defs": {"n": {}}})), "#/$defs/xxx"),
        (json!({"$id": format!("urn:{long}"), "anyOf": many("a")}), "#/anyOf/4"),
        (json!({"$id": format!("http://a/{long}/"), "$defs": named("$id", "n")}), "#/$defs/a"),
    ] {
        let document = || strict(&schema).map(drop).map_err(|error| error.to_string());
        let error = within(Duration::from_secs(2), "references", document).unwrap_err();
        assert!(error.contains(place) && error.contains("use shorter names"), "{error}");
        let function = json!({"name": "f", "parameters": schema});
        let read = || Tools::from_openai(&json!([{ "function": function }])).unwrap();
        let tools = within(Duration::from_secs(2), "references of a tool", read);
        assert_eq!(
            tools.unread().next().map(|(_, left_out)| &*left_out.keyword),
            Some("parameters")
        );
    }
}

#[test]
fn bounds_that_no_number_reaches_are_no_bounds() {
    let long = "9".repeat(16);
    for (schema, good, bad) in [
        (
            json!({"type": "integer", "minimum": i64::MIN, "maximum": i64::MAX}),
            vec!["0", "-12", "9223372036854774784", "-9223372036854774784"],
            vec!["0.5"],
        ),
        (json!({"type": "integer", "maximum": u64::MAX}), vec!["-5", &long], vec!["\"x\""]),
        (
            json!({"type": "integer", "minimum": 1_000_000_000_000_000_000_i64}),
            vec!["1000000000000000001"],
            vec!["7"],
        ),
        (
            json!({"type": "integer", "maximum": -1_000_000_000_000_000_000_i64}),
            vec!["-1000000000000000001"],
            vec!["-7"],
        ),
        (
            json!({"type": "number", "minimum": 0.001, "maximum": 1e20}),
            vec!["0.001", "12.5", &long],
            vec!["0.0005", "-1"],
        ),
        (
            json!({"type": "number", "exclusiveMinimum": -1e20, "exclusiveMaximum": 1e20}),
            vec!["-0.5", "12.5"],
            vec!["true"],
        ),
        (
            json!({"type": "number", "minimum": f64::MIN, "maximum": f64::MAX}),
            vec!["-0.5", "1e99"],
            vec!["true"],
        ),
        (json!({"type": "number", "minimum": 1e18}), vec!["1000000000000000000.5"], vec!["7"]),
        (
            json!({"type": "integer", "multipleOf": 7, "minimum": f64::MIN}),
            vec!["49", "-7"],
            vec!["50"],
        ),
        (
            json!({"type": "number", "minimum": -1e30, "exclusiveMinimum": true}),
            vec!["-7"],
            vec!["true"],
        ),
    ] {
        for grammar in [strict(&schema), calls(&with(schema.clone()))] {
            let grammar = grammar.unwrap_or_else(|error| panic!("{schema}: {error}"));
            assert_eq!(grammar.relaxed(), [], "{schema}");
        }
        let grammar = strict(&schema).unwrap();
        good.iter().for_each(|text| assert!(takes(&grammar, text), "{schema} takes {text}"));
        bad.iter().for_each(|text| assert!(!takes(&grammar, text), "{schema} refuses {text}"));
    }
    let far = json!({"type": "number", "minimum": 1e20});
    let error = strict(&with(far.clone())).unwrap_err().to_string();
    assert!(error.contains("#/properties/a/minimum: numbers of 2^63"), "{error}");
    assert_eq!(left_out(&calls(&with(far)).unwrap()), ["#/properties/a/minimum"]);
}

/// Returns a reply of a model that writes the digits of `wishes` as long as it can, one after the
/// other, then a point, an exponent, and otherwise what comes first after `start`.
fn digits(grammar: &Grammar, start: &str, wishes: &[&str]) -> String {
    let mut matcher = grammar.matcher().unwrap();
    let one = |text: &str| world().tokenizer.encode(text, Specials::AsText).unwrap()[0];
    let mut mask = vec![0; matcher.mask_words()];
    let mut ids = world().tokenizer.encode(start, Specials::AsText).unwrap();
    ids.iter().for_each(|&id| matcher.accept(id).unwrap());
    let wishes: Vec<u32> =
        wishes.iter().chain(&[".", "e", "}", "\""]).map(|text| one(text)).collect();
    for _ in 0..200 {
        matcher.allowed(&mut mask).unwrap();
        let is_allowed = |id: &&u32| mask[**id as usize / 32] >> (**id % 32) & 1 == 1;
        let Some(&id) = wishes.iter().find(is_allowed) else { break };
        matcher.accept(id).unwrap();
        ids.push(id);
    }
    world().tokenizer.decode(&ids, false)
}

#[test]
fn numbers_end() {
    let any = |schema: &Value| {
        let grammar = strict(&json!({"type": "array", "items": schema})).unwrap();
        (grammar, "[".to_owned())
    };
    let called = |schema: &Value, choice: ToolChoice| {
        let source = tools(&with(schema.clone())).grammar(&choice, true, None).unwrap();
        (world().compiler.compile(&source).unwrap(), call("{\"a\": ").replace(": }", ": "))
    };
    let mut longest = 0;
    for schema in [
        json!({"type": "integer"}),
        json!({"type": "number"}),
        json!({}),
        json!({"type": "integer", "minimum": 5}),
        json!({"type": "integer", "maximum": 5}),
        json!({"type": "number", "minimum": 0.5}),
        json!({"type": "number", "minimum": -90, "maximum": 90}),
        json!({"type": "number", "exclusiveMinimum": 0}),
        json!({"type": "number", "exclusiveMaximum": 0}),
        json!({"type": "integer", "minimum": i64::MIN, "maximum": i64::MAX}),
        json!({"type": "number", "minimum": 0.001, "maximum": 1e20}),
        json!({"type": "integer", "multipleOf": 2}),
        json!({"type": "integer", "multipleOf": 9973}),
        json!({"type": "number", "multipleOf": 0.25}),
    ] {
        let mut grammars = vec![
            any(&schema),
            called(&schema, ToolChoice::Required),
            called(&schema, ToolChoice::Auto),
        ];
        if schema == json!({}) {
            let object = world().compiler.compile(&GrammarSource::JsonObject).unwrap();
            grammars.push((object, "{\"a\": ".to_owned()));
        }
        for (grammar, start) in &grammars {
            for wishes in [["0", "1"], ["1", "0"], ["5", "1"], ["9", "-"], ["-", "0"]] {
                let reply = digits(grammar, start, &wishes);
                let runs = reply[start.len()..].split(|sign: char| !sign.is_ascii_digit());
                let run = runs.map(str::len).max().unwrap();
                longest = longest.max(run);
                assert!(run <= 19, "{schema}: {reply}");
            }
        }
    }
    assert_eq!(longest, 19, "as many as the bounds name");
    let (grammar, start) = any(&json!({"type": "number"}));
    let nines = "9".repeat(16);
    assert_eq!(digits(&grammar, &start, &["9"]), format!("[{nines}.{nines}e99"));
    // A longer number that the schema names may come.
    let (grammar, start) = any(&json!({"const": 12_345_678_901_234_567_890_u64}));
    assert!(
        digits(&grammar, &start, &["1", "2", "3", "4", "5", "6", "7", "8", "9", "0"]).len() > 20
    );
}

#[test]
fn objects_have_the_properties_that_they_declare() {
    let integer = || json!({"type": "integer"});
    let closed = [
        json!({"type": "object", "properties": {"p": integer()}}),
        json!({"properties": {"p": integer()}}),
        json!({"$ref": "#/$defs/o", "$defs": {"o": {"type": "object",
            "properties": {"p": integer()}}}}),
        json!({"anyOf": [{"type": "object", "properties": {"p": integer()}}, {"type": "null"}]}),
        json!({"allOf": [{"type": "object", "properties": {"p": integer()}}]}),
        json!({"allOf": [{"type": "object",
            "properties": {"p": integer()}}, {"properties": {"q": integer()}}]}),
        json!({"type": "object", "properties": {"q": integer()}, "allOf": [{"$ref": "#/$defs/o"}],
            "$defs": {"o": {"properties": {"p": integer()}, "required": ["r"]}}}),
    ];
    for schema in closed {
        let grammar = strict(&schema).unwrap_or_else(|error| panic!("{schema}: {error}"));
        let has_required = schema.to_string().contains("required");
        let good = if has_required { r#"{"p": 1, "r": 5}"# } else { r#"{"p": 1}"# };
        let good = if has_required && !takes(&grammar, good) {
            r#"{"q": 2, "p": 1, "r": 5}"#
        } else {
            good
        };
        assert!(takes(&grammar, good), "{schema}");
        assert!(!takes(&grammar, &good.replace('}', r#", "z": 1}"#)), "{schema}");
        assert!(!takes(&grammar, r#"{"p": "x"}"#), "{schema}");
    }
    for schema in [
        json!({"type": "object", "properties": {"p": integer()}, "additionalProperties": true}),
        json!({"type": "object",
            "properties": {"p": integer()},
            "additionalProperties": {"type": "integer"}}),
        json!({"type": "object",
            "properties": {"p": integer()},
            "patternProperties": {"^z": integer()}}),
        json!({"type": "object"}),
        json!({"type": "object", "required": ["p"]}),
        json!({"type": "object", "properties": {"p": integer()}, "minProperties": 2}),
        json!({"allOf": [{"properties": {"p": integer()}}, {"additionalProperties": integer()}]}),
    ] {
        let grammar = strict(&schema).unwrap_or_else(|error| panic!("{schema}: {error}"));
        assert!(takes(&grammar, r#"{"p": 1, "z": 1}"#), "{schema}");
    }
    // A tool without arguments is declared like this.
    let grammar = calls(&json!({"type": "object", "properties": {}})).unwrap();
    assert!(takes(&grammar, &call("{}")) && !takes(&grammar, &call(r#"{"x": 1}"#)));
}

/// Documents with some of the properties, listed ones first, in their order, and some that no
/// schema declares.
fn documents(listed: &Map<String, Value>) -> Vec<Value> {
    let mut names = ["p", "q", "r", "s", "y", "z"];
    names.sort_by_key(|name| !listed.contains_key(*name));
    let document = |set: usize| {
        let chosen = names.iter().enumerate().filter(|(index, _)| set >> index & 1 == 1);
        Value::Object(chosen.map(|(_, name)| ((*name).to_owned(), json!(1))).collect())
    };
    (0..1 << names.len()).map(document).collect()
}

proptest! {
    #![proptest_config(
        ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() }
    )]

    /// A grammar takes exactly the documents that satisfy its schema and have, where it says
    /// nothing of others, declared properties only.
    #[test]
    fn numbers_of_properties_are_held(
        listed in prop::collection::vec(0..4_u8, 4),
        least in prop::option::of(0..6_u64),
        most in prop::option::of(0..6_u64),
        others in prop::sample::select(vec![Value::Null, json!(true), json!(false),
            json!({"const": 1})]),
        with_patterns: bool,
    ) {
        let (mut properties, mut required) = (Map::new(), Vec::new());
        for (name, kind) in ["p", "q", "r", "s"].into_iter().zip(&listed) {
            match kind {
                0 => continue,
                3 => required.push(name),
                _ => {}
            }
            properties.insert(name.to_owned(), json!({"const": 1}));
        }
        let mut schema = json!({"type": "object", "properties": properties, "required": required});
        for (key, value) in [("minProperties", least), ("maxProperties", most)] {
            if let Some(value) = value {
                schema[key] = value.into();
            }
        }
        if !others.is_null() {
            schema["additionalProperties"] = others.clone();
        }
        if with_patterns {
            schema["patternProperties"] = json!({"^y": {"const": 1}});
        }
        let validator = jsonschema::validator_for(&schema).unwrap();
        let is_wanted = |document: &Value| {
            let names: Vec<&String> = document.as_object().unwrap().keys().collect();
            let is_declared = |name: &&String| {
                properties.contains_key(*name) || (with_patterns && name.as_str() == "y")
            };
            // Where more is asked for than is declared, others may come.
            let is_open = least.unwrap_or(0) > properties.len() as u64;
            validator.is_valid(document)
                && (!others.is_null() || is_open || names.iter().all(is_declared))
        };
        let documents = documents(&properties);
        match strict(&schema) {
            Ok(grammar) => {
                prop_assert!(grammar.relaxed().is_empty());
                for document in &documents {
                    // Patterns and other properties may come in any order: the grammar's is one of
                    // them.
                    prop_assert_eq!(takes(&grammar, &document.to_string()), is_wanted(document),
                        "{}: {}", schema, document);
                }
            }
            Err(error) => {
                let possible: Vec<&Value> =
                    documents.iter().filter(|document| is_wanted(document)).collect();
                prop_assert!(possible.is_empty(), "{}: {}: {:?}", schema, error, possible);
            }
        }
    }
}

#[test]
fn wide_objects_with_bounds_are_held_or_told() {
    let names = |count: usize| -> Map<String, Value> {
        (0..count).map(|index| (format!("n{index}"), json!({"type": "integer"}))).collect()
    };
    // At least one of many; at most one of many; two of some.
    for (count, least, most) in
        [(40, Some(1), None), (40, None, Some(1)), (12, Some(2), None), (300, Some(1), None)]
    {
        let mut schema = json!({"type": "object", "properties": names(count)});
        if let Some(least) = least {
            schema["minProperties"] = least.into();
        }
        if let Some(most) = most {
            schema["maxProperties"] = most.into();
        }
        let compiled = within(Duration::from_secs(20), "a wide object", || strict(&schema));
        let Ok(grammar) = compiled else {
            assert!(count > 100, "{count} {least:?} {most:?}: {compiled:?}");
            continue;
        };
        assert_eq!(takes(&grammar, r#"{"n1": 1, "n5": 2}"#), most.is_none());
        assert_eq!(takes(&grammar, "{}"), least.is_none());
        assert!(most.is_none() || takes(&grammar, r#"{"n7": 1}"#));
    }
    let schema = json!({"type": "object", "properties": names(30), "minProperties": 10});
    assert!(strict(&schema).unwrap_err().to_string().contains("#/minProperties"));
    assert_eq!(left_out(&calls(&schema).unwrap()), ["#/minProperties"]);
}
