//! Grammars: that replies follow them, and that nothing hostile gets through.
use crate::common;

use std::sync::Arc;
use std::time::Duration;

use crate::common::work::within;
use trine_text::{
    Course, GrammarCache, GrammarCompiler, GrammarError, GrammarSource, Matcher, Outlook, Tokenizer,
};

fn tokenizer() -> Arc<Tokenizer> {
    Arc::new(common::from_json("tokenizer"))
}

fn matcher(compiler: &GrammarCompiler, source: GrammarSource) -> Matcher {
    compiler.compile(&source).unwrap().matcher().unwrap()
}

/// Whether a reply may be exactly `text`, in the tokenizer's segmentation.
fn takes(
    compiler: &GrammarCompiler,
    tokenizer: &Tokenizer,
    source: &GrammarSource,
    text: &str,
) -> bool {
    let mut matcher = matcher(compiler, source.clone());
    let ids = tokenizer.encode(text, trine_text::Specials::AsText).unwrap();
    ids.iter().all(|&id| matcher.accept(id).is_ok()) && matcher.is_complete()
}

fn check(source: &GrammarSource, good: &[&str], bad: &[&str]) {
    let tokenizer = tokenizer();
    let compiler = GrammarCompiler::new(tokenizer.clone());
    for text in good {
        assert!(takes(&compiler, &tokenizer, source, text), "{source:?} takes {text:?}");
    }
    for text in bad {
        assert!(!takes(&compiler, &tokenizer, source, text), "{source:?} refuses {text:?}");
    }
}

fn schema(text: &str) -> GrammarSource {
    GrammarSource::JsonSchema(text.to_owned())
}

fn gbnf(text: &str) -> GrammarSource {
    GrammarSource::Gbnf(text.to_owned())
}

fn bits(mask: &[u32]) -> Vec<u32> {
    let bits = mask.iter().enumerate().flat_map(|(index, word)| {
        (0..32).filter(move |bit| word >> bit & 1 == 1).map(move |bit| index as u32 * 32 + bit)
    });
    bits.collect()
}

#[test]
fn schemas_take_what_satisfies_them() {
    check(
        &schema(
            r#"{"type":"object","properties":{"a":{"type":"integer","minimum":3},"b":{"enum":["x","y"]}},"required":["a"],"additionalProperties":false}"#,
        ),
        &[r#"{"a":3}"#, r#"{"a": 7, "b": "x"}"#, "{\n  \"a\": 3\n}"],
        &[
            r#"{"a":2}"#,
            r#"{"b":"x"}"#,
            r#"{"a":3,"b":"z"}"#,
            r#"{"a":3"#,
            r#"{"a":3}x"#,
            "{\n\n\"a\":3}",
        ],
    );
    check(
        &GrammarSource::JsonObject,
        &["{}", r#"{"a":[1,{"b":null}]}"#],
        &["[]", "1", r#"{"a":}"#, ""],
    );
}

#[test]
fn references_may_be_recursive_and_alternatives_referenced() {
    check(
        &schema(
            r##"{"$ref":"#/$defs/n","$defs":{"n":{"type":"object","properties":{"next":{"anyOf":[{"$ref":"#/$defs/n"},{"type":"null"}]}},"required":["next"],"additionalProperties":false}}}"##,
        ),
        &[r#"{"next":null}"#, r#"{"next":{"next":null}}"#],
        &[r#"{"next":{}}"#],
    );
    let of = |kind: &str| {
        format!(
            r#"{{"type":"object","properties":{{"kind":{{"const":"{kind}"}}}},"required":["kind"],"additionalProperties":false}}"#
        )
    };
    check(
        &schema(&format!(
            r##"{{"oneOf":[{{"$ref":"#/$defs/a"}},{{"$ref":"#/$defs/b"}}],"$defs":{{"a":{},"b":{}}}}}"##,
            of("a"),
            of("b")
        )),
        &[r#"{"kind":"a"}"#, r#"{"kind":"b"}"#],
        &[r#"{"kind":"c"}"#],
    );
}

#[test]
fn bounds_that_cannot_bind_are_left_out() {
    check(
        &schema(r#"{"type":"array","items":{"type":"integer"},"maxItems":2147483647}"#),
        &["[1,2]", "[]"],
        &["[1,]"],
    );
    check(&schema(r#"{"type":"string","maxLength":9223372036854775807}"#), &[r#""abc""#], &["abc"]);
}

#[test]
fn other_grammars_take_what_they_say() {
    check(
        &GrammarSource::Regex("[a-c]+/[0-9]{2,3}".into()),
        &["ab/12", "c/123"],
        &["ab/1", "d/12", "a/1234"],
    );
    check(
        &GrammarSource::Choice(vec!["yes".into(), "no \"q\"\n\u{7f}é".into()]),
        &["yes", "no \"q\"\n\u{7f}é"],
        &["ye", "no"],
    );
    check(
        &GrammarSource::Lark("start: \"a\" b*\nb: \"(\" b \")\" | /[0-9]/\n".into()),
        &["a", "a(1)((2))"],
        &["a(", "(1)"],
    );
}

#[test]
fn gbnf_takes_what_it_says() {
    check(
        &gbnf("root ::= \"a\" (\"b\" | [c-e\\n])* \"x\"? # end\n"),
        &["a", "abc\nx", "ax"],
        &["b", "axx"],
    );
    check(&gbnf("root ::= item{2,3}\nitem ::= [0-9] |\n  \"-\"\n"), &["12", "1-2"], &["1", "1234"]);
    check(&gbnf("root ::= [^a\\]/] . \"\\x41\\u00e9\"\n"), &["b/Aé", "^\nAé"], &["abAé", "/bAé"]);
    check(
        &gbnf("root ::= sum\nsum ::= sum \"+\" term | term\nterm ::= [0-9]+ | \"(\" sum \")\"\n"),
        &["1", "1+(2+3)+45"],
        &["1+", "(1", ""],
    );
    let json = r#"
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
"#;
    check(
        &gbnf(json),
        &["{}", r#"{"a": [1, -2.5e3, {"b": null}], "c": "\u00e9\n"}"#, "{\n \"a\": true }"],
        &["[]", r#"{"a" 1}"#, r#"{"a": 1,}"#],
    );
}

/// Follows a text of small words until it ends or `most` tokens are taken, looking ahead at some
/// guesses before each, the last of which may be wrong. Returns how many were taken, and the error.
fn march(source: &GrammarSource, most: usize, guesses: usize) -> (usize, Option<GrammarError>) {
    let tokenizer = tokenizer();
    let grammar = GrammarCompiler::new(tokenizer.clone()).compile(source).unwrap();
    let mut outlook = Outlook::new(Course::start(Some(&grammar), None).unwrap().unwrap());
    let (words, mut mask) = (outlook.mask_words(), Vec::new());
    let text = tokenizer.encode("the cat sat on a mat ", trine_text::Specials::AsText).unwrap();
    for (count, &id) in text.iter().cycle().take(most).enumerate() {
        if guesses > 0 {
            let right = text.iter().cycle().skip(count % text.len()).take(guesses - 1);
            outlook.look(&right.chain(&text[..1]).copied().collect::<Vec<_>>(), || true);
        }
        mask.clear();
        if let Err(error) = outlook.allowed(words, &mut mask) {
            return (count, Some(error));
        }
        assert_eq!(mask[id as usize / 32] >> (id % 32) & 1, 1, "{source:?} at {count}");
        if let Err(error) = outlook.accept(id) {
            return (count, Some(error));
        }
    }
    (most, None)
}

#[test]
fn repetition_by_recursion_costs_what_repetition_costs() {
    for source in [
        "root ::= [a-z ] root | [a-z ]",
        "root ::= ([a-z ] root)?",
        "root ::= item\nitem ::= [a-z] item | \" \" item | \"\"",
        "root ::= s\ns ::= s s | [a-z ]",
        "root ::= s\ns ::= s s | s s s | [a-z] | \" \" | \"\"",
        "root ::= root [a-z ] | [a-z ]",
    ] {
        let name = format!("5,000 tokens of {source}");
        let outcome = within(Duration::from_secs(5), &name, || march(&gbnf(source), 5_000, 0));
        assert_eq!(outcome, (5_000, None), "{source}");
    }
}

#[test]
fn a_reply_that_takes_too_much_work_ends() {
    let ambiguous = gbnf("root ::= s\ns ::= [a-z ] s [a-z ] | s s | [a-z ]");
    let lark = GrammarSource::Lark("start: /[a-z ]/ start | start start | /[a-z ]/".to_owned());
    for source in [ambiguous, lark] {
        let (count, error) = march(&source, 5_000, 0);
        let message = error.clone().unwrap().to_string();
        assert!(message.contains("too much work") && message.contains("repetition"), "{message}");
        // Work is counted, not time, and only that of the reply.
        assert_eq!(march(&source, 5_000, 3), (count, error));
    }
}

#[test]
fn control_tokens_are_never_allowed() {
    let tokenizer = tokenizer();
    let compiler = GrammarCompiler::new(tokenizer.clone());
    let turn = tokenizer.token_to_id("<start_of_turn>").unwrap();
    let end = tokenizer.eos_ids()[0];
    for lark in [
        "start: <[*]>",
        "start: <start_of_turn> \"a\"",
        "start: <[1]> \"a\"",
        "start: <[0-300]>+",
        "start: /(?s:.)*/",
    ] {
        let Ok(grammar) = compiler.compile(&GrammarSource::Lark(lark.into())) else { continue };
        let mut matcher = grammar.matcher().unwrap();
        let mut mask = vec![u32::MAX; matcher.mask_words()];
        if matcher.allowed(&mut mask).is_ok() {
            let open = matcher.is_complete();
            for id in bits(&mask) {
                assert!(
                    !tokenizer.is_special(id) || (open && tokenizer.eos_ids().contains(&id)),
                    "{lark}: {id}"
                );
            }
            assert_eq!(open, bits(&mask).contains(&end), "{lark}");
        } else {
            assert!(mask.iter().all(|&word| word == 0));
        }
        let mut matcher = grammar.matcher().unwrap();
        assert_eq!(matcher.accept(turn), Err(GrammarError::TokenRefused { token: turn }));
        assert!(matcher.allowed(&mut mask).is_err(), "an error is final");
    }
}

#[test]
fn the_spelling_of_a_control_token_is_text() {
    let tokenizer = tokenizer();
    let compiler = GrammarCompiler::new(tokenizer.clone());
    let source = GrammarSource::Choice(vec!["<end_of_turn>".into()]);
    assert!(takes(&compiler, &tokenizer, &source, "<end_of_turn>"));
}

#[test]
fn a_reply_ends_where_its_grammar_may() {
    let tokenizer = tokenizer();
    let compiler = GrammarCompiler::new(tokenizer.clone());
    let end = tokenizer.eos_ids()[0];
    let mut one = matcher(&compiler, GrammarSource::Choice(vec!["a".into()]));
    assert_eq!(one.accept(end), Err(GrammarError::TokenRefused { token: end }));

    let mut two = matcher(&compiler, GrammarSource::Choice(vec!["a".into()]));
    let a = tokenizer.encode("a", trine_text::Specials::AsText).unwrap();
    two.accept(a[0]).unwrap();
    assert!(two.is_complete());
    let mut mask = vec![0; two.mask_words() + 5];
    two.allowed(&mut mask).unwrap();
    assert_eq!(bits(&mask), tokenizer.eos_ids());
    two.accept(end).unwrap();
    assert_eq!(two.accept(end), Err(GrammarError::Finished));
    assert_eq!(two.allowed(&mut mask), Err(GrammarError::Finished));
    assert!(mask.iter().all(|&word| word == 0));
}

#[test]
fn a_matcher_moves_between_threads_and_checks_its_mask() {
    fn is_send<T: Send>(_: &T) {}
    fn is_shared<T: Send + Sync>(_: &T) {}
    let compiler = GrammarCompiler::new(tokenizer());
    let grammar = compiler.compile(&GrammarSource::JsonObject).unwrap();
    is_shared(&grammar);
    is_shared(&compiler);
    let mut matcher = grammar.matcher().unwrap();
    is_send(&matcher);
    let needed = matcher.mask_words();
    assert_eq!(
        matcher.allowed(&mut vec![0; needed - 1]),
        Err(GrammarError::MaskSize { words: needed - 1, needed })
    );
    let moved = std::thread::spawn(move || matcher.allowed(&mut vec![0; needed])).join().unwrap();
    assert_eq!(moved, Ok(()), "a short mask is the caller's fault and not final");
}

#[test]
fn the_cache_stays_within_its_bounds() {
    let compiler = GrammarCompiler::new(tokenizer());
    let cache = GrammarCache::new(compiler.clone(), 8, 1 << 20);
    let first = schema(r#"{"const":0}"#);
    let kept = cache.get(&first).unwrap();
    for value in 1..200 {
        cache.get(&schema(&format!(r#"{{"const":{value}}}"#))).unwrap();
        assert!(Arc::ptr_eq(&kept, &cache.get(&first).unwrap()), "the one in use stays");
        assert!(cache.len() <= 8 && cache.bytes() <= 1 << 20);
    }
    assert_eq!(cache.len(), 8);
    let none = GrammarCache::new(compiler, 8, 1);
    none.get(&first).unwrap();
    assert!(none.is_empty());
}

/// Compiles a hostile source; its error if it is refused, within the time: runaway cases took ten
/// times as long.
fn refused(compiler: &GrammarCompiler, source: &GrammarSource) -> Option<String> {
    let shown = format!("{source:?}");
    let outcome = within(Duration::from_secs(5), &shown, || compiler.compile(source));
    outcome.err().map(|error| {
        let text = error.to_string();
        assert!(text.len() < 700, "{text}");
        text
    })
}

/// A schema of a text to which as many expressions apply.
fn patterns(count: usize) -> String {
    let part = |index: usize| format!(r#"{{"pattern":"^(.*[a-m].{{{index}}})*$"}}"#);
    let parts: Vec<String> = (5..5 + count).map(part).collect();
    format!(r#"{{"type":"string","allOf":[{}]}}"#, parts.join(","))
}

#[test]
fn hostile_schemas_are_refused_with_their_place() {
    let compiler = GrammarCompiler::new(tokenizer());
    let deep = |count: usize| format!("{}true{}", r#"{"items":"#.repeat(count), "}".repeat(count));
    let values: Vec<String> = (0..30_000).map(|value| value.to_string()).collect();
    let long_enum = format!(r#"{{"enum":[{}]}}"#, values.join(","));
    let endless = patterns(13);
    let huge_enum = format!(r#"{{"enum":[{}]}}"#, "123,".repeat(100_000) + "1");
    let cases = [
        ("{", "line 1, column 1"),
        ("[1]", "#"),
        (r#"{"type":"strin"}"#, "#/type"),
        (r#"{"type":"object","properties":{"a":{"type":7}}}"#, "#/properties/a/type"),
        (r#"{"properties":{"foo":"bar"}}"#, "#/properties/foo"),
        (r#"{"properties":"bar"}"#, "#/properties"),
        (r##"{"$ref":"#/$defs/gone"}"##, "#/$ref"),
        (r#"{"$ref":"https://example.com/s.json"}"#, "nothing is fetched"),
        (r#"{"$ref":"file:///etc/passwd"}"#, "nothing is fetched"),
        (r##"{"$ref":"#"}"##, "refers to itself"),
        (
            r##"{"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/b"},"b":{"allOf":[{"$ref":"#/$defs/a"}]}}}"##,
            "refers to itself",
        ),
        (r#"{"type":"array","minItems":1000000000}"#, "#/minItems"),
        (r#"{"type":"array","minItems":1e9}"#, "#/minItems"),
        (r#"{"type":"array","minItems":-1}"#, "#/minItems"),
        (r#"{"type":"string","minLength":1000000000}"#, "#/minLength"),
        (r#"{"type":"integer","multipleOf":10007}"#, "#/multipleOf"),
        (r#"{"type":"integer","multipleOf":4000000000}"#, "#/multipleOf"),
        (r#"{"type":"number","multipleOf":0.3333333333}"#, "#/multipleOf"),
        (r#"{"type":"number","multipleOf":0}"#, "#/multipleOf"),
        (r#"{"type":"number","multipleOf":"2"}"#, "#/multipleOf"),
        (r#"{"allOf":[{"multipleOf":9973},{"multipleOf":0.9973}]}"#, "least common multiple"),
        (r#"{"allOf":[{"multipleOf":9973},{"multipleOf":9967},{"multipleOf":7}]}"#, "4294967295"),
        (r#"{"type":"array","items":{"uniqueItems":true}}"#, "#/items/uniqueItems"),
        (r#"{"enum":[]}"#, "#/enum"),
        (r#"{"enum":5}"#, "#/enum"),
        (r#"{"required":"a"}"#, "#/required"),
        (r#"{"type":"string","pattern":"foo("}"#, "#/pattern"),
        (r#"{"patternProperties":{"[a":{}}}"#, "#/patternProperties/[a"),
        (r#"{"type":"string","pattern":5}"#, "#/pattern"),
        (r#"{"not":{"type":"string"}}"#, "not"),
        (r#"{"allOf":[{"type":"string"},{"type":"number"}]}"#, "nsatisfiable"),
        ("false", "allows nothing"),
        (endless.as_str(), "apply to one text exceeds"),
    ];
    for (source, expected) in cases {
        let error =
            refused(&compiler, &schema(source)).unwrap_or_else(|| panic!("{source} is accepted"));
        assert!(error.contains(expected), "{source}: {error}");
    }
    for source in [deep(10_000), deep(200), long_enum, huge_enum] {
        assert!(refused(&compiler, &schema(&source)).is_some(), "{source:.60}");
    }
}

#[test]
fn what_is_too_much_work_is_not_called_a_contradiction() {
    let compiler = GrammarCompiler::new(Arc::new(crate::vocabulary::synthetic(600)));
    for source in [patterns(3).replace(")*", ")+"), patterns(4), patterns(6)] {
        let error = refused(&compiler, &schema(&source)).unwrap();
        assert!(error.contains("takes more work than trine allows"), "{source}: {error}");
    }
}

#[test]
fn multiples_are_kept_to() {
    let source = schema(
        r#"{"type":"array","items":{"type":"number","multipleOf":0.25},"prefixItems":[
            {"type":"integer","multipleOf":9973,"minimum":1000000,"maximum":9000000}]}"#,
    );
    check(
        &source,
        &["[2991900]", "[2991900, 0.75, 12.25]"],
        &["[2992000]", "[9973]", "[2991900, 0.3]"],
    );
    let source = schema(r#"{"allOf":[{"type":"integer","multipleOf":12},{"multipleOf":100}]}"#);
    check(&source, &["300", "1200"], &["100", "12", "350"]);
}

#[test]
fn large_schemas_cost_no_more_than_their_size() {
    let compiler = GrammarCompiler::new(tokenizer());
    let chain = |count: usize, link: &dyn Fn(usize) -> String| {
        let defs: Vec<String> =
            (0..count).map(|index| format!(r#""d{index}":{}"#, link(index + 1))).collect();
        format!(
            r##"{{"$ref":"#/$defs/d0","$defs":{{{},"d{count}":{{"type":"null"}}}}}}"##,
            defs.join(",")
        )
    };
    let pure = chain(4000, &|next| format!(r##"{{"$ref":"#/$defs/d{next}"}}"##));
    assert!(refused(&compiler, &schema(&pure)).unwrap().contains("chain"));
    let through =
        chain(2400, &|next| format!(r##"{{"properties":{{"p":{{"$ref":"#/$defs/d{next}"}}}}}}"##));
    refused(&compiler, &schema(&through));
    let items = chain(2400, &|next| format!(r##"{{"items":{{"$ref":"#/$defs/d{next}"}}}}"##));
    refused(&compiler, &schema(&items));
    let siblings = chain(1200, &|next| {
        format!(r##"{{"minItems":1,"items":{{"minItems":1,"$ref":"#/$defs/d{next}"}}}}"##)
    });
    refused(&compiler, &schema(&siblings));
    let any = (0..2000).map(|index| {
        format!(r#"{{"type":"object","properties":{{"p{index}":{{"type":"string"}}}}}}"#)
    });
    let any = any.collect::<Vec<_>>().join(",");
    refused(
        &compiler,
        &schema(&format!(r#"{{"allOf":[{{"anyOf":[{any}]}},{{"anyOf":[{any}]}}]}}"#)),
    );
    let one =
        (0..250).map(|index| format!(r#"{{"const":"v{index}"}}"#)).collect::<Vec<_>>().join(",");
    assert_eq!(refused(&compiler, &schema(&format!(r#"{{"oneOf":[{one}]}}"#))), None);
    let patterns = (0..16)
        .map(|index| format!(r#""^(a|b|c)*{index}x{{0,50}}$":{{}}"#))
        .collect::<Vec<_>>()
        .join(",");
    refused(
        &compiler,
        &schema(&format!(r#"{{"type":"object","patternProperties":{{{patterns}}}}}"#)),
    );
    let words: Vec<String> = (0..10_000).map(|index| format!("\"w{index}\"")).collect();
    assert_eq!(refused(&compiler, &schema(&format!(r#"{{"enum":[{}]}}"#, words.join(",")))), None);
    let wide: Vec<String> = (0..5000).map(|index| format!(r#""n{index}":{{}}"#)).collect();
    let wide = refused(&compiler, &schema(&format!(r#"{{"properties":{{{}}}}}"#, wide.join(","))));
    assert!(wide.unwrap().contains("number of"));
    let names: Vec<String> =
        (0..700).map(|index| format!(r#""n{index}":{{"type":"string"}}"#)).collect();
    assert_eq!(
        refused(&compiler, &schema(&format!(r#"{{"properties":{{{}}}}}"#, names.join(",")))),
        None
    );
}

#[test]
fn hostile_expressions_are_refused_or_followed() {
    let compiler = GrammarCompiler::new(tokenizer());
    let regex = |text: &str| GrammarSource::Regex(text.to_owned());
    for text in ["[.*", "(", "a{2,1}", "foo\\", "(?<=a)b", "", "\\1", "*a"] {
        let error =
            refused(&compiler, &regex(text)).unwrap_or_else(|| panic!("{text} is accepted"));
        assert!(error.starts_with("regular expression"), "{error}");
    }
    for text in [
        "foo**",
        "(a+)+b",
        ".{1000000}",
        "((a{100}){100}){100}",
        "(a|aa|aaa)*{50}",
        "(.*a){20}",
        ".*a.{200}",
    ] {
        let Ok(grammar) = compiler.compile(&regex(text)) else { continue };
        follow(&grammar, text);
    }
    let nested = format!("{}a{}", "(".repeat(8000), ")".repeat(8000));
    assert!(refused(&compiler, &regex(&nested)).is_some());
    let wide = vec!["[a-z]{1,50}x"; 1200].join("|");
    refused(&compiler, &regex(&wide));
}

/// Takes a hundred steps; each must be fast, an error is an answer.
fn follow(grammar: &trine_text::Grammar, name: &str) {
    let mut matcher = grammar.matcher().unwrap();
    let mut mask = vec![0; matcher.mask_words()];
    for step in 0..100_usize {
        let allowed = within(Duration::from_secs(1), name, || matcher.allowed(&mut mask));
        if allowed.is_err() {
            return;
        }
        let choices = bits(&mask);
        if matcher.accept(choices[(step * 31) % choices.len()]).is_err() {
            return;
        }
    }
}

#[test]
fn hostile_gbnf_is_refused_or_followed() {
    let compiler = GrammarCompiler::new(tokenizer());
    let deep = |count: usize| format!("root ::= {}\"a\"{}", "(".repeat(count), ")".repeat(count));
    let cases = [
        ("", "root"),
        ("start ::= \"a\"", "root"),
        ("root ::= other", "line 1"),
        ("root ::= root", "ends"),
        ("root ::= root \"a\"", "ends"),
        ("root ::= \"a\" root", "ends"),
        ("root ::= a\na ::= b\nb ::= a", "ends"),
        ("root ::= \"a", "line 1"),
        ("root ::= [a", "line 1"),
        ("root ::= []", "line 1"),
        ("root ::= (\"a\"", "line 1"),
        ("root ::= \"a\")", "line 1"),
        ("root = \"a\"", "line 1"),
        ("root ::= \"a\"\n\nroot ::= \"b\"", "line 3"),
        ("root ::= \"a\"{1000000}", "10000"),
        ("root ::= \"a\"{99999999999999999999}", "10000"),
        ("root ::= \"a\"{3,2}", "smaller"),
        ("root ::= \"\\q\"", "escape"),
        ("root ::= \"\\ud800\"", "escape"),
        ("root ::= [z-a]", "backwards"),
        ("root ::= <start_of_turn>", "tokens"),
        ("root ::= é", "line 1"),
    ];
    for (source, expected) in cases {
        let error =
            refused(&compiler, &gbnf(source)).unwrap_or_else(|| panic!("{source} is accepted"));
        assert!(error.contains(expected), "{source}: {error}");
    }
    for source in [
        deep(10_000),
        deep(21),
        format!("root ::= \"a\"{}", "*".repeat(10_000)),
        "root ::= ".repeat(3000),
    ] {
        assert!(refused(&compiler, &gbnf(&source)).is_some(), "{source:.40}");
    }
    let chain = |last: &str| {
        let rules: Vec<String> =
            (0..700).map(|index| format!("r{index} ::= \"a\" r{} | \"b\"", index + 1)).collect();
        format!("root ::= r0\n{}\nr700 ::= {last}\n", rules.join("\n"))
    };
    let sources = [
        chain("\"c\""),
        chain("r0 \"c\" | \"d\""),
        "root ::= root root | \"a\"".to_owned(),
        "root ::= (root? root?){9000} \"a\"".to_owned(),
        "root ::= ((((\"a\"{0,10000}){0,10000}){0,10000}){0,10000}){0,10000}".to_owned(),
        "root ::= x{10000}\nx ::= \"(\" root \")\" | \"a\"".to_owned(),
        "root ::= x*\nx ::= y*\ny ::= x* | \"a\"".to_owned(),
        format!("root ::= {}", vec!["[a-z]*"; 2300].join(" ")),
    ];
    for source in sources {
        if refused(&compiler, &gbnf(&source)).is_none() {
            follow(&compiler.compile(&gbnf(&source)).unwrap(), &format!("{source:.60}"));
        }
    }
}

#[test]
fn hostile_lark_is_refused_or_followed() {
    let compiler = GrammarCompiler::new(tokenizer());
    let lark = |text: &str| GrammarSource::Lark(text.to_owned());
    let chain = |left: &str, capital: char| {
        let rules: Vec<String> = (0..5000)
            .map(|index| format!("{capital}{index}: {left}{capital}{}", index + 1))
            .collect();
        format!("start: {capital}0\n{}\n{capital}1000: \"z\"\n", rules.join("\n"))
    };
    for text in [
        "",
        "start: missing",
        "start: \"a",
        "other: \"a\"",
        "start: A\nA: A \"b\"",
        "start: %json {\"type\":\"strin\"}",
        "start: @other",
        "start: A\nA: /(.*[a-m].{5})*/ & /(.*[a-m].{6})*/ & /(.*[a-m].{7})*/ & /(.*[a-m].{8})*/ & \
         /(.*[a-m].{9})*/ & /.*/",
        "start: A\nA: ~(/(.*[a-m].{5})*/ | /(.*[a-m].{6})*/ | ~/(.*[a-m].{7})*/)",
        &format!("start: %json {}", patterns(13)),
    ] {
        assert!(refused(&compiler, &lark(text)).is_some(), "{text}");
    }
    for text in [
        chain("\"a\" ", 'r'),
        chain("\"a\" ", 'R'),
        chain("~", 'R'),
        format!("start: {}\"a\"{}", "(".repeat(8000), ")".repeat(8000)),
        format!("start: {}A\nA: \"a\"", "~".repeat(16_000)),
        format!("start: %json {}1{}", "[".repeat(8000), "]".repeat(8000)),
        format!("start::_: \"a\" %if {}true{}\n", "not(".repeat(3200), ")".repeat(3200)),
        format!(
            "start: x::0\nx::_: \"a\" %if {}true{}\n",
            "not(".repeat(15_000),
            ")".repeat(15_000)
        ),
        "start: %regex {\"substring_chars\": \"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"}".to_owned(),
        "start: start start | start | \"a\" |".to_owned(),
    ] {
        if refused(&compiler, &lark(&text)).is_none() {
            follow(&compiler.compile(&lark(&text)).unwrap(), &format!("{text:.60}"));
        }
    }
}

#[test]
fn sources_beyond_the_limits_are_refused() {
    let compiler = GrammarCompiler::new(tokenizer());
    let long = "a".repeat(trine_text::MAX_SCHEMA_BYTES + 1);
    let many = vec!["a".to_owned(); trine_text::MAX_CHOICES + 1];
    for source in [
        schema(&long),
        gbnf(&long),
        GrammarSource::Regex(long.clone()),
        GrammarSource::Lark(long.clone()),
        GrammarSource::Choice(vec![long.clone()]),
        GrammarSource::Choice(many),
    ] {
        let compile = || compiler.compile(&source);
        let outcome = within(Duration::from_millis(100), "a long source", compile);
        assert!(matches!(outcome, Err(GrammarError::TooLarge { .. })));
    }
    assert!(refused(&compiler, &GrammarSource::Choice(Vec::new())).is_some());
}
