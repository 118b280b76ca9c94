//! Calls of Gemma 4 are held to the schemas of their tools, from the first mark of a call on.
use crate::common;
use crate::gemma4;

use std::sync::Arc;

use crate::calls::{Chance, call, is_bare, object, value};
use serde_json::{Value, json};
use trine_text::{
    ChatTemplate, Course, Grammar, GrammarCompiler, Message, Offer, RenderOptions, ReplyFormat,
    ReplyPart, Specials, StreamDecoder, Thoughts, Tokenizer, ToolChoice, Tools, reply_format,
};

struct World {
    tokenizer: Arc<Tokenizer>,
    compiler: GrammarCompiler,
    format: Arc<dyn ReplyFormat>,
    template: ChatTemplate,
}

fn world() -> World {
    let tokenizer = Arc::new(Tokenizer::from_gguf(gemma4::vocabulary(4)).unwrap());
    let compiler = GrammarCompiler::new(tokenizer.clone());
    let template = ChatTemplate::gemma4(true);
    let format = reply_format(&tokenizer, Some(&template));
    World { tokenizer, compiler, format, template }
}

fn tools(schema: &Value) -> Tools {
    Tools::from_openai(&json!([
        {"type": "function", "function": {"name": "f", "description": "d", "parameters": schema}},
        {"type": "function", "function": {"name": "ff",
            "parameters": {"type": "object",
            "properties": {}}}},
    ]))
    .unwrap()
}

impl World {
    fn grammar(&self, tools: &Tools, choice: &ToolChoice, parallel: bool) -> Grammar {
        let offer = Offer { tools, choice, parallel };
        self.compiler.compile(&self.format.grammar(&offer, None).unwrap()).unwrap()
    }

    fn mask(&self, course: &mut Course) -> Vec<u32> {
        let mut mask = vec![0; self.tokenizer.vocabulary_size().div_ceil(32)];
        course.allowed(&mut mask).unwrap();
        mask
    }

    fn takes(&self, course: &mut Course, id: u32) -> bool {
        let mask = self.mask(course);
        let is_allowed = mask[id as usize / 32] >> (id % 32) & 1 == 1;
        if is_allowed {
            course.accept(id).unwrap();
        }
        is_allowed
    }

    /// The calls in tokens.
    fn read(&self, tools: &Tools, ids: &[u32]) -> Vec<ReplyPart> {
        let offer = Offer { tools, choice: &ToolChoice::Auto, parallel: true };
        let mut reader = self.format.reader(&offer, false).unwrap();
        let mut decoder = StreamDecoder::new(self.tokenizer.clone(), true);
        let mut parts = Vec::new();
        for &id in ids {
            if reader.is_mark(id) {
                parts.extend(reader.text(decoder.finish()));
                parts.extend(reader.mark(id));
            } else {
                parts.extend(reader.text(decoder.push(id)));
            }
        }
        parts.extend(reader.finish());
        parts
    }
}

/// Chooses allowed tokens until the end; after some steps those that close.
fn walk(world: &World, grammar: &Grammar, chance: &mut Chance) -> Vec<u32> {
    let mut course = Course::start(Some(grammar), None).unwrap().unwrap();
    let mut ids = Vec::new();
    let free = 5 + chance.below(60);
    for step in 0..4000 {
        let mask = world.mask(&mut course);
        let allowed: Vec<u32> = (0..mask.len() as u32 * 32)
            .filter(|id| mask[*id as usize / 32] >> (id % 32) & 1 == 1)
            .collect();
        let ends = world.tokenizer.eos_ids();
        if let Some(end) = allowed.iter().find(|id| ends.contains(id)) {
            course.accept(*end).unwrap();
            return ids;
        }
        let closes = |id: &&u32| {
            let bytes = world.tokenizer.token_bytes(**id).unwrap();
            matches!(&bytes[..], b"<|\"|>" | b"}" | b"]" | b"<tool_call|>")
        };
        // Single bytes would be half a character most of the time.
        let is_whole = |id: &&u32| {
            world
                .tokenizer
                .token_bytes(**id)
                .is_some_and(|bytes| std::str::from_utf8(&bytes).is_ok())
        };
        let closing = if step > free { allowed.iter().find(closes) } else { None };
        let whole: Vec<&u32> = allowed.iter().filter(is_whole).collect();
        let chosen = *closing.unwrap_or_else(|| match whole.len() {
            0 => &allowed[chance.below(allowed.len())],
            count => whole[chance.below(count)],
        });
        course.accept(chosen).unwrap();
        ids.push(chosen);
    }
    panic!("no end: {}", world.tokenizer.decode(&ids, false));
}

#[test]
fn every_call_of_200_schemas_parses_and_satisfies_its_schema() {
    let world = world();
    let mut chance = Chance(18);
    let mut identical = 0;
    for round in 0..200 {
        let schema = object(&mut chance, 3);
        let tools = tools(&schema);
        let grammar = world.grammar(&tools, &ToolChoice::Required, true);
        assert!(grammar.relaxed().is_empty(), "{schema}: {:?}", grammar.relaxed());
        // Every value that satisfies the schema can be written, and is read as what it was.
        let arguments = value(&mut chance, &schema);
        let mut ids = call(&world.tokenizer, "f", &arguments);
        ids.extend(call(&world.tokenizer, "ff", &json!({})));
        let mut course = Course::start(Some(&grammar), None).unwrap().unwrap();
        for (index, &id) in ids.iter().enumerate() {
            assert!(
                world.takes(&mut course, id),
                "round {round}, {schema}: {arguments} after {:?} not {:?}",
                world.tokenizer.decode(&ids[..index], false),
                world.tokenizer.piece(id)
            );
        }
        assert!(world.takes(&mut course, 50), "{schema}: the end after {arguments}");
        let parts = world.read(&tools, &ids);
        let [ReplyPart::Call(first), ReplyPart::Call(second)] = &parts[..] else {
            panic!("{parts:?}")
        };
        assert_eq!(
            (first.problem.as_deref(), second.problem.as_deref()),
            (None, None),
            "{schema}: {first:?}"
        );
        let read: Value = serde_json::from_str(&first.arguments).unwrap();
        assert_eq!(read, arguments, "{schema}");
        // Whatever the grammar lets a model write is a call that satisfies the schema.
        let walked = walk(&world, &grammar, &mut chance);
        let parts = world.read(&tools, &walked);
        assert!(!parts.is_empty());
        for part in &parts {
            let ReplyPart::Call(call) = part else {
                panic!("{schema}: {part:?} of {}", world.tokenizer.decode(&walked, false))
            };
            assert_eq!(call.problem, None, "{schema}: {}", call.arguments);
        }
        identical += usize::from(is_written_again(&world, &arguments, &ids));
    }
    // Null and names that are not bare are written in another way by templates.
    assert!(identical > 40, "{identical}");
}

/// The template writes the call of an earlier turn with the tokens that the model wrote, so that
/// the cache still has them.
fn is_written_again(world: &World, arguments: &Value, ids: &[u32]) -> bool {
    let text = arguments.to_string();
    let is_plain = |value: &Value| all_keys(value, &|key| is_bare(key)) && !text.contains("null");
    if !is_plain(arguments) {
        return false;
    }
    let mut message = Message::new("assistant", "");
    let calls = json!([
        {"id": "1", "type": "function", "function": {"name": "f", "arguments": text}},
        {"id": "2", "type": "function", "function": {"name": "ff", "arguments": ""}},
    ]);
    message.extra.insert("tool_calls".to_owned(), calls);
    let tools = Tools::default();
    let offer = Offer { tools: &tools, choice: &ToolChoice::Auto, parallel: true };
    let messages = vec![Message::new("user", "x"), message];
    let written = world.format.write(messages, &offer).unwrap();
    let messages = world.template.arranged(written.messages).into_iter();
    let messages: Vec<Message> =
        messages.map(|message| message.guarded(&world.tokenizer)).collect();
    let prompt = world.template.render(&messages, &RenderOptions::default()).unwrap();
    let prompt = world.tokenizer.encode(&prompt, Specials::ParseGuarded).unwrap();
    let found = prompt.windows(ids.len()).any(|window| window == ids);
    assert!(
        found,
        "{}\n{}",
        world.tokenizer.decode(&prompt, false),
        world.tokenizer.decode(ids, false)
    );
    true
}

fn all_keys(value: &Value, check: &dyn Fn(&str) -> bool) -> bool {
    match value {
        Value::Object(map) => map.iter().all(|(key, value)| check(key) && all_keys(value, check)),
        Value::Array(items) => items.iter().all(|item| all_keys(item, check)),
        _ => true,
    }
}

fn ids(world: &World, text: &str) -> Vec<u32> {
    world.tokenizer.encode(text, Specials::Parse).unwrap()
}

#[track_caller]
fn check(world: &World, grammar: &Grammar, text: &str, is_taken: bool) {
    let mut course = Course::start(Some(grammar), None).unwrap().unwrap();
    let mut all = ids(world, text);
    all.push(50);
    let taken = all.iter().take_while(|&&id| world.takes(&mut course, id)).count();
    assert_eq!(taken == all.len(), is_taken, "{text}: {taken} of {}", all.len());
}

#[test]
fn schemas_of_all_kinds_are_held() {
    let world = world();
    let q = "<|\"|>";
    let string = |text: &str| format!("{q}{text}{q}");
    for (property, good, bad) in [
        (json!({"const": "a"}), vec![format!("{q}a{q}")], vec![format!("{q}b{q}"), "a".into()]),
        (
            json!({"enum": [1, 12, null, ""]}),
            vec!["1".into(), "12".into(), "null".into(), format!("{q}{q}")],
            vec!["2".into(), "11".into()],
        ),
        (
            json!({"type": "string", "pattern": "^[a-c]{2}$"}),
            vec![format!("{q}ab{q}")],
            vec![format!("{q}abc{q}"), format!("{q}{q}")],
        ),
        (
            json!({"type": "string", "pattern": "b/"}),
            vec![format!("{q}ab/c{q}")],
            vec![format!("{q}ac{q}")],
        ),
        (
            json!({"type": "string", "format": "date"}),
            vec![format!("{q}2026-11-30{q}"), format!("{q}2026-12-31{q}")],
            vec![
                format!("{q}2026-13-25{q}"),
                format!("{q}2026-04-31{q}"),
                format!("{q}2026-02-30{q}"),
                format!("{q}12026-01-01{q}"),
            ],
        ),
        (
            json!({"type": "string", "format": "date-time"}),
            vec![
                format!("{q}2026-01-31T23:59:59Z{q}"),
                format!("{q}2026-01-31T00:00:00.25+01:30{q}"),
            ],
            vec![format!("{q}2026-01-31 23:59:59Z{q}"), format!("{q}2026-01-31T24:00:00Z{q}")],
        ),
        (
            json!({"type": "string", "format": "ipv4"}),
            vec![format!("{q}192.168.0.255{q}")],
            vec![format!("{q}192.168.0.256{q}"), format!("{q}1.2.3{q}")],
        ),
        (
            json!({"type": "string", "format": "uuid"}),
            vec![format!("{q}0123abcd-0123-ABCD-0123-0123456789ab{q}")],
            vec![format!("{q}0123abcd-0123-ABCD-0123{q}")],
        ),
        (
            json!({"type": "string", "format": "duration"}),
            ["P1D", "P1Y2M3D", "PT5M", "P1DT12H30M5S", "P3W"].map(string).into(),
            ["P", "PT", "1D", "P1W2D", "P1H", "P1DT"].map(string).into(),
        ),
        (
            json!({"type": "string", "format": "ipv6"}),
            ["::", "::1", "2001:db8::ff00:42:8329", "1:2:3:4:5:6:7:8", "1::"].map(string).into(),
            ["1:2", ":1", "1:2:3:4:5:6:7:8:9", "1::2::3", "g::"].map(string).into(),
        ),
        (
            json!({"type": "string", "format": "hostname"}),
            ["a", "example.org", "a-1.b2.example"].map(string).into(),
            ["-a", "a.", "a..b", "a_b", "a-.b"].map(string).into(),
        ),
        (
            json!({"type": "string", "format": "email"}),
            ["a@b", "jo.doe+x@example.org"].map(string).into(),
            ["a", "@b", "a@", "a@b@c", ".a@b", "a b@c"].map(string).into(),
        ),
        (
            json!({"type": "string", "format": "uri"}),
            ["https://example.org/a/b?c=%20#d", "mailto:a@b.c", "file:///tmp/x", "urn:a:b"]
                .map(string)
                .into(),
            ["example.org", "/a", "http://a b", "http://a/%2", "1a:b", "a:b#c#d"]
                .map(string)
                .into(),
        ),
        (
            json!({"type": "string", "pattern": "^a|b$"}),
            ["ax", "xb", "a", "b"].map(string).into(),
            ["xa", "bx"].map(string).into(),
        ),
        (
            json!({"type": "string", "pattern": "(^no$|^yes [0-9]+$)"}),
            ["no", "yes 12"].map(string).into(),
            ["no ", "yes", "yes 1x"].map(string).into(),
        ),
        (
            json!({"type": "object",
                "patternProperties": {"^n_": {"type": "integer"}},
                "additionalProperties": false}),
            vec!["{}".into(), "{n_a:1}".into(), "{n_a:1,n_:2}".into()],
            vec!["{a:1}".into(), "{n_a:true}".into(), "{an_:1}".into()],
        ),
        (
            json!({
                "type": "object", "properties": {"a": {"type": "null"}}, "required": ["a"],
                "patternProperties": {"^x": {"type": "integer"}, "^y": {"type": "boolean"}},
                "additionalProperties": {"type": "null"},
            }),
            vec!["{a:null}".into(), "{a:null,x1:3}".into(), "{a:null,y1:true,x:1,z:null}".into()],
            vec![
                "{a:null,x1:true}".into(),
                "{a:null,y1:1}".into(),
                "{a:null,z:1}".into(),
                "{x1:3}".into(),
            ],
        ),
        (
            json!({"type": "string", "maxLength": 0}),
            vec![format!("{q}{q}")],
            vec![format!("{q}a{q}")],
        ),
        (
            json!({"type": "string", "maxLength": 2}),
            vec![format!("{q}{q}"), format!("{q}ab{q}")],
            vec![format!("{q}abc{q}")],
        ),
        (
            json!({"type": "integer", "exclusiveMinimum": 2, "maximum": 30, "multipleOf": 5}),
            vec!["5".into(), "30".into()],
            vec!["2".into(), "7".into(), " 5".into(), "35".into()],
        ),
        (
            json!({"type": ["integer", "null"]}),
            vec!["-7".into(), "null".into()],
            vec!["1.5".into(), "true".into()],
        ),
        (
            json!({"type": "array",
                "prefixItems": [{"type": "integer"}, {"type": "boolean"}],
                "items": {"type": "null"}, "minItems": 1, "maxItems": 4}),
            vec!["[1]".into(), "[1,true]".into(), "[1,true,null,null]".into()],
            vec!["[]".into(), "[true]".into(), "[1,true,null,null,null]".into(), "[1,null]".into()],
        ),
        (
            json!({"type": "array", "items": {"type": "integer"}, "minItems": 2}),
            vec!["[1,2]".into(), "[1,2,3]".into()],
            vec!["[1]".into(), "[]".into()],
        ),
        (json!({"type": "array", "maxItems": 0}), vec!["[]".into()], vec!["[1]".into()]),
        (
            json!({"type": "object", "additionalProperties": {"type": "integer"}}),
            vec!["{}".into(), "{k:1,m:2}".into()],
            vec!["{k:a}".into(), "{k:1,}".into()],
        ),
        (
            json!({"type": "object",
                "properties": {"b": {"type": "integer"}, "A": {"type": "integer"}},
                "additionalProperties": {"type": "boolean"}}),
            vec![
                "{}".into(),
                "{A:1}".into(),
                "{A:1,b:2}".into(),
                "{b:1,z:true}".into(),
                "{z:true}".into(),
            ],
            vec!["{b:1,A:2}".into(), "{b:true}".into()],
        ),
        (
            json!({"allOf": [{"type": "object",
                "properties": {"a": {"type": "integer"}}, "required": ["a"]},
            {"properties": {"b": {"type": "integer"}}}]}),
            vec!["{a:1}".into(), "{a:1,b:2}".into()],
            vec!["{b:1}".into(), "{a:1,c:2}".into()],
        ),
        (
            json!({"anyOf": [{"type": "object",
                "properties": {"a": {"type": "integer"}}, "required": ["a"]}, {"type": "object",
                "properties": {"a": {"type": "boolean"}}}]}),
            vec!["{a:1}".into(), "{a:true}".into(), "{}".into()],
            vec!["{a:null}".into()],
        ),
        (
            json!({}),
            vec!["{a:[1,{b:null}]}".into(), format!("[{q}x{q},true]"), "[]".into()],
            vec!["{a}".into(), "x".into()],
        ),
    ] {
        let schema = json!({"type": "object", "properties": {"v": property}, "required": ["v"]});
        let grammar = world.grammar(&tools(&schema), &ToolChoice::Required, false);
        assert!(grammar.relaxed().is_empty(), "{schema}: {:?}", grammar.relaxed());
        for (values, is_taken) in [(good, true), (bad, false)] {
            for value in values {
                check(
                    &world,
                    &grammar,
                    &format!("<|tool_call>call:f{{v:{value}}}<tool_call|>"),
                    is_taken,
                );
            }
        }
    }
}

/// Whatever a grammar lets a model write has the format, by the library that checks calls.
#[test]
fn formats_allow_nothing_that_does_not_have_them() {
    let world = world();
    let mut chance = Chance(7);
    for format in [
        "date",
        "time",
        "date-time",
        "duration",
        "uuid",
        "ipv4",
        "ipv6",
        "hostname",
        "email",
        "uri",
    ] {
        let text = json!({"type": "string", "format": format, "maxLength": 60});
        let schema = json!({"type": "object", "properties": {"v": text}, "required": ["v"]});
        let tools = tools(&schema);
        let grammar = world.grammar(&tools, &ToolChoice::Required, false);
        assert!(grammar.relaxed().is_empty(), "{format}: {:?}", grammar.relaxed());
        for _ in 0..30 {
            let parts = world.read(&tools, &walk(&world, &grammar, &mut chance));
            for part in &parts {
                let ReplyPart::Call(call) = part else { panic!("{format}: {part:?}") };
                assert_eq!(call.problem, None, "{format}: {}", call.arguments);
            }
        }
    }
}

#[test]
fn schemas_may_refer_to_themselves() {
    let world = world();
    let schema = json!({
        "type": "object", "properties": {"root": {"$ref": "#/$defs/node"}}, "required": ["root"],
        "$defs": {"node": {"type": "object",
            "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
            "required": ["next"]}},
    });
    let grammar = world.grammar(&tools(&schema), &ToolChoice::Required, false);
    check(&world, &grammar, "<|tool_call>call:f{root:{next:{next:null}}}<tool_call|>", true);
    check(&world, &grammar, "<|tool_call>call:f{root:{next:{}}}<tool_call|>", false);
}

#[test]
fn what_no_grammar_holds_is_left_out_and_told() {
    let world = world();
    let schema = json!({"type": "object", "properties": {
        "a": {"type": "object",
            "propertyNames": {"pattern": "x"}}, "b": {"type": "array",
            "uniqueItems": true},
        "c": {"type": "string", "pattern": "(a$)(b)?"},
    }});
    let grammar = world.grammar(&tools(&schema), &ToolChoice::Required, false);
    let mut keywords: Vec<&str> =
        grammar.relaxed().iter().map(|relaxed| relaxed.left_out.keyword.as_str()).collect();
    keywords.sort_unstable();
    assert_eq!(keywords, ["pattern", "propertyNames", "uniqueItems"]);
}

#[test]
fn words_and_thoughts_may_come_before_calls() {
    let world = world();
    let schema =
        json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]});
    let tools = tools(&schema);
    let auto = world.grammar(&tools, &ToolChoice::Auto, false);
    for (text, is_taken) in [
        ("It is sunny.", true),
        ("call:f{a:x}", true),
        ("I look.\n<|tool_call>call:f{a:1}<tool_call|>", true),
        ("I look.\n<|tool_call>call:f{a:x}<tool_call|>", false),
        ("<|tool_call>call:f{a:1}<tool_call|> and more", false),
        ("<|tool_call>call:f{a:1}<tool_call|><|tool_call>call:f{a:1}<tool_call|>", false),
        ("<|turn>user", false),
    ] {
        check(&world, &auto, text, is_taken);
    }
    let thoughts = |allowed, budget| {
        world.format.thoughts().map(|marks| Thoughts { marks, allowed, budget, is_open: false })
    };
    let required = world.grammar(&tools, &ToolChoice::Required, false);
    let takes = |grammar: Option<&Grammar>, thoughts, text: &str| {
        let mut course = Course::start(grammar, thoughts).unwrap().unwrap();
        let mut all = ids(&world, text);
        all.push(50);
        let taken = all.iter().take_while(|&&id| world.takes(&mut course, id)).count();
        // What may follow is never more than what may come.
        let mut fresh = Course::start(grammar, thoughts).unwrap().unwrap();
        assert!(fresh.follow(&all) <= taken);
        taken == all.len()
    };
    let thinking = "<|channel>thought\nabcd<channel|><|tool_call>call:f{a:1}<tool_call|>";
    for grammar in [&auto, &required] {
        assert!(takes(Some(grammar), thoughts(true, None), thinking));
        assert!(takes(Some(grammar), thoughts(true, Some(100)), thinking));
        assert!(!takes(Some(grammar), thoughts(false, None), thinking));
        assert!(!takes(Some(grammar), thoughts(true, Some(2)), thinking));
        // A call in a thought ends it.
        let in_thought = "<|channel>thought\nabcd<|tool_call>call:f{a:1}<tool_call|>";
        assert!(takes(Some(grammar), thoughts(true, None), in_thought));
    }
    // The reply may end in a thought, unless a call has to come.
    let ended = "<|channel>thought\n<turn|>";
    assert!(takes(Some(&auto), thoughts(true, None), ended));
    assert!(!takes(Some(&required), thoughts(true, None), ended));
    // Thoughts come between words and calls, too, and marks that end nothing.
    let several = world.grammar(&tools, &ToolChoice::Auto, true);
    let call = "<|tool_call>call:f{a:1}<tool_call|>";
    let thought = "<|channel>thought\nx<channel|>";
    for text in [
        format!("{call}{thought}{call}"),
        format!("{call}{thought}"),
        format!("It is.{thought}I look.{call}"),
        "It is.<channel|> So.".to_owned(),
        format!("<channel|>{call}<channel|>"),
    ] {
        assert!(takes(Some(&several), thoughts(true, None), &text), "{text}");
    }
    assert!(!takes(Some(&several), thoughts(true, None), "<|tool_call>call:f{a:<|channel>"));
    // A prompt may have opened the thought.
    let opened = |budget| Some(Thoughts { is_open: true, ..thoughts(true, budget).unwrap() });
    assert!(takes(Some(&auto), opened(None), "abcd<channel|>It is."));
    assert!(takes(None, opened(Some(4)), "abcd<channel|>It is."));
    assert!(!takes(None, opened(Some(3)), "abcd<channel|>It is."));
    assert!(!takes(Some(&required), opened(None), "abcd<channel|>It is."));
    assert!(!takes(Some(&required), thoughts(true, None), "<|channel>x<channel|>It is sunny."));
    // A budget without a grammar.
    assert!(takes(None, thoughts(true, Some(3)), "<|channel>abc<channel|>It is."));
    assert!(!takes(None, thoughts(true, Some(3)), "<|channel>abcd<channel|>It is."));
    assert!(!takes(None, thoughts(true, Some(3)), "<|channel>abc<channel|>It<|channel>"));
    // Thoughts without a token count, too.
    let empty = "<|channel><channel|>";
    assert!(takes(None, thoughts(true, Some(3)), &empty.repeat(3)));
    assert!(!takes(None, thoughts(true, Some(3)), &empty.repeat(4)));
    assert!(Course::start(None, thoughts(true, None)).unwrap().is_none());
}

#[test]
fn json_of_a_schema_stands_beside_calls() {
    let world = world();
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
    let tools = tools(&schema);
    let answer =
        json!({"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]});
    let offer = Offer { tools: &tools, choice: &ToolChoice::Auto, parallel: true };
    let source = world.format.grammar(&offer, Some(&answer.to_string())).unwrap();
    let grammar = world.compiler.compile(&source).unwrap();
    check(&world, &grammar, "{\"x\": \"y\"}", true);
    check(&world, &grammar, "<|tool_call>call:f{a:1}<tool_call|>", true);
    check(&world, &grammar, "It is", false);
}

/// Bad-input list: schemas cost no more than their size suggests.
#[test]
fn hostile_schemas_are_refused_or_held() {
    let world = world();
    let mut deep = json!({"type": "string"});
    for _ in 0..40 {
        deep = json!({"type": "object", "properties": {"a": deep}, "required": ["a"]});
    }
    let wide: Value = (0..400)
        .map(|index| (format!("p{index}"), json!({"type": "integer"})))
        .collect::<serde_json::Map<_, _>>()
        .into();
    let part: Value = (0..60)
        .map(|index| {
            (
                format!("p{index}"),
                json!({"anyOf": [{"type": "integer"}, {"type": "string", "maxLength": index}]}),
            )
        })
        .collect::<serde_json::Map<_, _>>()
        .into();
    let mut crossed = json!({"type": "object", "properties": part});
    for _ in 0..6 {
        crossed = json!({"allOf": [crossed,
            {"anyOf": [{"required": ["p1"]}, {"required": ["p2"]}, {"required": ["p3"]},
                {"required": ["p4"]}]}]});
    }
    let crossed = json!({"type": "object", "properties": {"v": crossed}});
    // Each definition has two ways to the next one, and says something itself.
    let mut chain = serde_json::Map::new();
    for index in 0..60 {
        let next = json!({"$ref": format!("#/$defs/d{}", index + 1), "minProperties": 0});
        let part = json!({"anyOf": [next, next], "properties": {"a": {"type": "integer"}}});
        chain.insert(format!("d{index}"), part);
    }
    chain.insert("d60".to_owned(), json!({"type": "object"}));
    let chain =
        json!({"type": "object", "properties": {"v": {"$ref": "#/$defs/d0"}}, "$defs": chain});
    let values: Vec<String> = (0..5000).map(|index| format!("v{index}")).collect();
    let names: Vec<String> = (0..2000).map(|index| format!("a{index}")).collect();
    let patterns: serde_json::Map<_, _> =
        ('a'..='p').map(|sign| (format!("^{sign}"), json!({"type": "integer"}))).collect();
    let mut chance = Chance(1);
    let long: String = (0..60_000).map(|_| ['a', 'b'][chance.below(2)]).collect();
    for schema in [
        deep,
        json!({"type": "object", "required": names, "patternProperties": patterns}),
        json!({"type": "object", "required": names}),
        json!({"type": "object", "required": [long],
            "patternProperties": {"[ab]*a[ab]{400}c": {}}}),
        json!({"type": "object", "properties": wide}),
        crossed,
        chain,
        json!({"type": "object", "properties": {"v": {"enum": values}}}),
        json!({"type": "object",
            "properties": {"v": {"type": "array", "items": {"type": "integer"},
                "minItems": 4000}}}),
        json!({"type": "object", "properties": {"v": {"type": "string", "minLength": 60000}}}),
        json!({"type": "object", "properties": {"v": false}, "required": ["v"]}),
    ] {
        let tools = tools(&schema);
        let offer = Offer { tools: &tools, choice: &ToolChoice::Required, parallel: false };
        let source = world.format.grammar(&offer, None).unwrap();
        let most = std::time::Duration::from_secs(20);
        let compiled =
            common::work::within(most, &schema.to_string(), || world.compiler.compile(&source));
        if let Ok(grammar) = compiled {
            let mut course = Course::start(Some(&grammar), None).unwrap().unwrap();
            assert!(
                ids(&world, "<|tool_call>call:f{").iter().all(|&id| world.takes(&mut course, id))
            );
        }
    }
}
