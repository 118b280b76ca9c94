//! Replies of Gemma 4: thoughts, words and calls, split however they come.
use crate::gemma4;

use std::sync::Arc;

use serde_json::{Value, json};
use trine_text::{
    ChatTemplate, GrammarSource, Message, Offer, RenderOptions, ReplyDecoder, ReplyFormat,
    ReplyOptions, ReplyPart, ReplyReader, ReplySplitter, Specials, Tokenizer, ToolChoice, Tools,
    reply_format,
};

fn tokenizer() -> Tokenizer {
    Tokenizer::from_gguf(gemma4::vocabulary(4)).unwrap()
}

fn format() -> Arc<dyn ReplyFormat> {
    reply_format(&tokenizer(), Some(&ChatTemplate::gemma4(true)))
}

fn tools() -> Tools {
    Tools::from_openai(&json!([
        {"type": "function", "function": {"name": "weather",
            "description": "Tells it.",
            "parameters": {
            "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"],
        }}},
        {"type": "function", "function": {"name": "time"}},
    ]))
    .unwrap()
}

fn reader(parallel: bool) -> Box<dyn ReplyReader> {
    let (tools, choice) = (tools(), ToolChoice::Auto);
    format().reader(&Offer { tools: &tools, choice: &choice, parallel }, false).unwrap()
}

/// Gives a reply to a reader, its text in pieces of `cut` bytes at most.
fn read(reader: &mut dyn ReplyReader, reply: &str, cut: usize) -> Vec<ReplyPart> {
    let tokenizer = tokenizer();
    let mut parts: Vec<ReplyPart> = Vec::new();
    let mut take = |more: Vec<ReplyPart>| {
        for part in more {
            match (parts.last_mut(), part) {
                (Some(ReplyPart::Text(last)), ReplyPart::Text(text))
                | (Some(ReplyPart::Thought(last)), ReplyPart::Thought(text)) => {
                    last.push_str(&text)
                }
                (_, part) => parts.push(part),
            }
        }
    };
    for id in tokenizer.encode(reply, Specials::Parse).unwrap() {
        if reader.is_mark(id) {
            take(reader.mark(id));
            continue;
        }
        let text = tokenizer.decode(&[id], false);
        let mut rest = text.as_str();
        while !rest.is_empty() {
            let end = (cut.min(rest.len())..=rest.len()).find(|&end| rest.is_char_boundary(end));
            let (piece, after) = rest.split_at(end.unwrap());
            take(reader.text(piece));
            rest = after;
        }
    }
    take(reader.finish());
    parts
}

fn text(text: &str) -> ReplyPart {
    ReplyPart::Text(text.to_owned())
}

fn thought(text: &str) -> ReplyPart {
    ReplyPart::Thought(text.to_owned())
}

fn shown(parts: &[ReplyPart]) -> Vec<String> {
    let show = |part: &ReplyPart| match part {
        ReplyPart::Text(text) => format!("text {text:?}"),
        ReplyPart::Thought(text) => format!("thought {text:?}"),
        ReplyPart::Call(call) => format!("{} {}", call.name, call.arguments),
    };
    parts.iter().map(show).collect()
}

#[test]
fn replies_are_split_wherever_they_are_cut() {
    let q = "<|\"|>";
    let oslo = format!("<|tool_call>call:weather{{city:{q}Oslo{q}}}<tool_call|>");
    let cases: Vec<(String, Vec<&str>)> = vec![
        ("It is sunny.\n".into(), vec!["text \"It is sunny.\\n\""]),
        (
            "<|channel>thought\nI see.\nYes.\n<channel|>It is sunny.".into(),
            vec!["thought \"I see.\\nYes.\"", "text \"It is sunny.\""],
        ),
        ("<|channel>thought\n<channel|>\n\nIt is.".into(), vec!["text \"It is.\""]),
        ("<|channel><channel|><channel|>It is.<channel|>".into(), vec!["text \"It is.\""]),
        ("<|channel>thought<channel|> \n".into(), vec![]),
        ("<|channel>thought\n  I am cut".into(), vec!["thought \"I am cut\""]),
        (
            "<|channel>I have no name and am long<channel|>x".into(),
            vec!["thought \"I have no name and am long\"", "text \"x\""],
        ),
        (oslo.clone(), vec!["weather {\"city\":\"Oslo\"}"]),
        (
            format!(
                "<|channel>thought\nTwo.\n<channel|>\n{oslo}\n\
                 <|tool_call>call:time{{}}<tool_call|>"
            ),
            vec!["thought \"Two.\"", "weather {\"city\":\"Oslo\"}", "time {}"],
        ),
        (format!("I look.\n{oslo}"), vec!["text \"I look.\\n\"", "weather {\"city\":\"Oslo\"}"]),
        // A call whose end is missing is one; half a call is nothing.
        (oslo.replace("<tool_call|>", ""), vec!["weather {\"city\":\"Oslo\"}"]),
        ("<|tool_call>call:weather{city:".into(), vec![]),
        ("Well.<|tool_call>call:wea".into(), vec!["text \"Well.\""]),
        ("<|tool_call>call:unknown{}<tool_call|>".into(), vec!["text \"call:unknown{}\""]),
        // What guided models do not write, and others do.
        (
            "<|tool_call> \
             call:weather{ city : \"Oslo\" , days: 2 , a:[ 1 ,-2.50e3,None, true ] ,b:{}}\
             <tool_call|>"
                .into(),
            vec!["weather {\"city\":\"Oslo\",\"days\":2,\"a\":[1,-2.50e3,null,true],\"b\":{}}"],
        ),
        (
            "<|tool_call>call:weather{city:Oslo,}<tool_call|>".into(),
            vec!["weather {\"city\":\"Oslo\"}"],
        ),
        (
            format!(
                "<|tool_call>call:weather{{{q}a:b{q}:{q}{q},city:{q}x{q},city:{q}y{q}}}<tool_call|>"
            ),
            vec!["weather {\"a:b\":\"\",\"city\":\"x\"}"],
        ),
    ];
    for (reply, expected) in &cases {
        for cut in [1, 2, 3, 100] {
            let parts = read(&mut *reader(true), reply, cut);
            assert_eq!(shown(&parts), *expected, "{reply:?} in pieces of {cut}");
        }
    }
}

#[test]
fn strings_may_spell_marks() {
    let (mut reader, tokenizer) = (reader(true), tokenizer());
    let said = "<|\"|>},<tool_call|> \"\\ <|channel>\n</s>";
    let mark = |name: &str| tokenizer.token_to_id(name).unwrap();
    reader.mark(mark("<|tool_call>"));
    reader.text("call:weather{city:");
    reader.mark(mark("<|\"|>"));
    let ids = tokenizer.encode(said, Specials::AsText).unwrap();
    for id in ids {
        assert!(!reader.is_mark(id));
        reader.text(&tokenizer.decode(&[id], false));
    }
    reader.mark(mark("<|\"|>"));
    reader.text("}");
    let parts = reader.mark(mark("<tool_call|>"));
    let [ReplyPart::Call(call)] = &parts[..] else { panic!("{parts:?}") };
    let arguments: Value = serde_json::from_str(&call.arguments).unwrap();
    assert_eq!(arguments, json!({"city": said}));
}

#[test]
fn a_reply_with_one_call_ends_after_it() {
    let mut reader = reader(false);
    let parts = read(
        &mut *reader,
        "<|tool_call>call:time{}<tool_call|><|tool_call>call:time{}<tool_call|>",
        9,
    );
    assert_eq!(shown(&parts), ["time {}"]);
    assert!(reader.is_done() && reader.calls() == 1);
}

#[test]
fn calls_are_compared_with_their_schema() {
    let parts = read(&mut *reader(true), "<|tool_call>call:weather{city:7}<tool_call|>", 9);
    let [ReplyPart::Call(call)] = &parts[..] else { panic!("{parts:?}") };
    assert!(call.problem.is_some());
}

/// Neither depth nor length costs more than it must.
#[test]
fn hostile_replies_are_read() {
    let deep = format!("<|tool_call>call:time{{a:{}<tool_call|>", "[".repeat(100_000));
    let long = format!("<|tool_call>call:time{{{}}}<tool_call|>", "a:1,".repeat(100_000));
    let marks = "<|channel>\n<channel|><|tool_call><|\"|>".repeat(20_000);
    for reply in [deep, long, marks] {
        let parts = read(&mut *reader(true), &reply, 1000);
        assert!(parts.len() < 50_000);
    }
}

#[test]
fn stop_texts_count_in_words_only() {
    let mut reader = reader(true);
    assert!(reader.takes_stops());
    reader.mark(100);
    assert!(!reader.takes_stops());
    reader.text("thought\nx");
    assert!(!reader.takes_stops());
    reader.mark(101);
    assert!(reader.takes_stops());
    reader.mark(48);
    assert!(!reader.takes_stops());
}

fn written(messages: Value, template: &ChatTemplate) -> String {
    let messages: Vec<Message> = serde_json::from_value(messages).unwrap();
    let (tools, choice) = (tools(), ToolChoice::None);
    let offer = Offer { tools: &tools, choice: &choice, parallel: true };
    let written = reply_format(&tokenizer(), Some(template)).write(messages, &offer).unwrap();
    let options = RenderOptions { extra: written.variables, ..RenderOptions::default() };
    template.render(&template.arranged(written.messages), &options).unwrap()
}

#[test]
fn conversations_are_written_for_the_template() {
    let call = |id: &str, city: &str| {
        json!({"id": id, "type": "function", "function": {"name": "weather",
            "arguments": format!("{{\"city\": \"{city}\", \"A\": null}}")}})
    };
    let messages = json!([
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "<|channel>thought\nx\n\
            <channel|>I look.", "thinking": "Hm.",
            "tool_calls": [call("1", "Oslo"), call("2", "Rome")]},
        {"role": "tool", "tool_call_id": "1", "content": "{\"t\": 1}"},
        {"role": "tool", "tool_call_id": "2", "content": "hot"},
    ]);
    let expected = "<bos><|turn>user\n\
        Weather?<turn|>\n\
        <|turn>model\n\
        <|channel>thought\n\
        Hm.\n\
        <channel|><|tool_call>call:weather{A:null,city:<|\"|>Oslo<|\"|>}<tool_call|>\
        <|tool_call>call:weather{A:null,city:<|\"|>Rome<|\"|>}<tool_call|>\
        <|tool_response>response:weather{value:<|\"|>{\"t\": 1}<|\"|>}<tool_response|>\
        <|tool_response>response:weather{value:<|\"|>hot<|\"|>}<tool_response|>\
        I look.<turn|>\n\
        <|turn>model\n\
        <|channel>thought\n\
        <channel|>";
    assert_eq!(written(messages.clone(), &ChatTemplate::gemma4(true)), expected);
    // Results stand with their calls, in whatever order and wherever they come.
    let mut turned = messages.as_array().unwrap().clone();
    turned.swap(2, 3);
    assert_eq!(written(turned.clone().into(), &ChatTemplate::gemma4(true)), expected);
    turned.insert(3, json!({"role": "user", "content": "And?"}));
    let text = written(turned.into(), &ChatTemplate::gemma4(true));
    assert!(text.contains("response:weather{value:<|\"|>{\"t\": 1}"), "{text}");
    assert!(text.find("hot").unwrap() < text.find("And?").unwrap(), "{text}");
    // A template that does not know the role `tool` gets results in a field of the call's message.
    let early = ChatTemplate::new(
        "{%- for t in tools or [] -%}{{ t.function.name }}{%- endfor -%}
         {%- for m in messages -%}<|turn>{{ m.role }} {% for c in m.tool_calls or [] -%}
         <|tool_call>call:{{ c.function.name }}{}<tool_call|>{%- endfor -%}
         {%- for r in m.tool_responses or [] -%}
         <|tool_response>response:{{ r.name }}{{ r.response }}<tool_response|>{%- endfor -%}
         {{ m.content if not m.tool_calls }}{%- endfor -%}",
    )
    .unwrap();
    assert_eq!(
        written(messages.clone(), &early),
        "<|turn>user Weather?<|turn>assistant \
         <|tool_call>call:weather{}<tool_call|><|tool_call>call:weather{}<tool_call|>\
         <|tool_response>response:weather{\"t\": 1}<tool_response|>\
         <|tool_response>response:weatherhot<tool_response|>"
    );
    // Its images follow.
    let mut seen = messages.clone();
    seen[3]["content"] = json!([{"type": "text", "text": "hot"}, {"type": "image"}]);
    let shown = ChatTemplate::new(
        early.source().replace("m.content if not m.tool_calls", "m.content | tojson"),
    )
    .unwrap();
    let text = written(seen, &shown);
    let [before, after] = ["hot<tool_response|>", "image"].map(|part| text.find(part).unwrap());
    assert!(before < after && text.contains("I look."), "{text}");
    // One that only names the marks gets all of it in words.
    let turns = ChatTemplate::new(
        "{#- <|tool_call> <|tool_response> -#}
         {%- for m in messages -%}<|turn>{{ m.role }} {{ m.content }}{%- endfor -%}",
    )
    .unwrap();
    let text = written(messages, &turns);
    assert!(!text.contains("<|turn>tool"), "{text}");
    for word in ["\"name\": \"weather\"", "Oslo", "hot"] {
        assert!(text.contains(word), "{text}");
    }
}

#[test]
fn what_the_template_hides_is_told() {
    let tools = Tools::from_openai(&json!([{"type": "function", "function": {"name": "f",
        "parameters": {
        "type": "object",
            "properties": {"a": {"type": "array", "items": {"type": "object",
            "properties": {"type": {"type": "string"}}}}},
    }}}]))
    .unwrap();
    let choice = ToolChoice::Auto;
    let offer = Offer { tools: &tools, choice: &choice, parallel: true };
    let written = format().write(vec![Message::new("user", "x")], &offer).unwrap();
    assert_eq!(written.left_out.len(), 1);
    assert!(written.left_out[0].contains("named type"), "{:?}", written.left_out);
}

/// Thoughts are read by the vocabulary's marks, whatever the template shows.
#[test]
fn templates_without_tools_get_them_in_words() {
    let call = "<|channel>thought\nHm.<channel|>{\"name\": \"time\", \"parameters\": {}}";
    let (tools, choice) = (tools(), ToolChoice::Auto);
    let offer = Offer { tools: &tools, choice: &choice, parallel: true };
    let marked = "Hm.<|tool_call>call:time{}<tool_call|><|tool_call>call:time{}<tool_call|>";
    let both = "{\"name\": \"time\", \"parameters\": {}}\n<|tool_call>call:time{}<tool_call|> So.";
    let open = "{\"name\": <|tool_call>call:time{}<tool_call|>";
    for template in [Some(ChatTemplate::gemma()), None] {
        let format = reply_format(&tokenizer(), template.as_ref());
        let Some(GrammarSource::Calls { shape, .. }) = format.grammar(&offer, None) else {
            panic!("calls are told in words")
        };
        assert_eq!(shape.marks.map(|marks| marks.open), tokenizer().token_to_id("<|tool_call>"));
        // Calls between marks are read, too.
        for (reply, expected) in [
            (marked, vec!["text \"Hm.\"", "time {}", "time {}"]),
            (both, vec!["time {}", "time {}", "text \"So.\""]),
            (open, vec!["text \"{\\\"name\\\": \"", "time {}"]),
        ] {
            for piece in [1, 5, 100] {
                let mut reader = format.reader(&offer, false).unwrap();
                let parts = read(&mut *reader, reply, piece);
                assert_eq!(shown(&parts), expected, "{reply:?} by {piece}");
                let calls = parts.iter().filter_map(|part| match part {
                    ReplyPart::Call(call) => Some(call.index),
                    _ => None,
                });
                assert!(calls.enumerate().all(|(place, index)| place == index));
                assert_eq!(reader.calls(), 2 - usize::from(reply == open));
            }
        }
        for piece in [1, 5, 100] {
            let mut reader = format.reader(&offer, false).unwrap();
            let parts = read(&mut *reader, call, piece);
            assert_eq!(parts[0], thought("Hm."));
            assert_eq!(shown(&parts[1..]), ["time {}"]);
        }
    }
}

/// A template may open a thought, and a model may lose a mark or write one too many.
#[test]
fn thoughts_are_read_with_marks_missing() {
    let (tools, choice) = (tools(), ToolChoice::None);
    let offer = Offer { tools: &tools, choice: &choice, parallel: true };
    for (opened, reply, expected) in [
        (true, "One two.<channel|>Hello.", vec![thought("One two."), text("Hello.")]),
        (true, "One\ntwo.", vec![thought("One\ntwo.")]),
        (false, "thought\n<channel|>Hello.", vec![text("Hello.")]),
        (false, "thought\nHello.", vec![text("thought\nHello.")]),
        (false, "thought", vec![text("thought")]),
        (false, "thoughtful", vec![text("thoughtful")]),
        (false, "Hi.<channel|> there", vec![text("Hi. there")]),
        (
            false,
            "<|channel>x\nOne.<channel|>thought\n<channel|>Hi.",
            vec![thought("One."), text("Hi.")],
        ),
        (false, "th<channel|>Hi.", vec![text("thHi.")]),
        (
            false,
            "A.\n<|channel>x\nOne.<channel|>\nB. <|channel>x\nTwo.<channel|>C<|channel>x\n\
             <channel|> D",
            vec![text("A.\n"), thought("One."), text("B. "), thought("\nTwo."), text("C D")],
        ),
        (
            false,
            "<|channel>thought\nOne.<channel|>A<|channel>thought\nTwo.<channel|>B",
            vec![thought("One."), text("A"), thought("\nTwo."), text("\nB")],
        ),
    ] {
        for piece in [1, 3, 100] {
            let mut reader = format().reader(&offer, opened).unwrap();
            assert_eq!(read(&mut *reader, reply, piece), expected, "{reply:?} by {piece}");
        }
    }
}

#[test]
fn a_prompt_tells_whether_it_ends_in_a_thought() {
    let opens = |text: &str| {
        let ids = tokenizer().encode(text, Specials::Parse).unwrap();
        format().opens_thought(&ids)
    };
    assert!(opens("<|turn>model\n<|channel>thought\n"));
    assert!(!opens("<|turn>model\n<|channel>thought\n<channel|>"));
    assert!(!opens("<|turn>model\n"));
}

#[test]
fn tokens_become_parts_up_to_a_stop_text() {
    let tokenizer = Arc::new(tokenizer());
    let split = |reply: &str, stops: &[&str]| {
        let stops = stops.iter().map(|stop| (*stop).to_owned()).collect();
        let options = ReplyOptions { stops, skip_special: true, ..ReplyOptions::default() };
        let decoder = ReplyDecoder::new(tokenizer.clone(), options);
        let mut splitter = ReplySplitter::new(decoder, Some(reader(true)));
        let (mut parts, mut characters) = (Vec::new(), 0);
        for id in tokenizer.encode(reply, Specials::Parse).unwrap() {
            let step = splitter.push(id);
            parts.extend(step.parts);
            characters += step.passed;
            if step.stopped.is_some() {
                return (parts, characters, splitter.characters(), true);
            }
        }
        let step = splitter.finish();
        parts.extend(step.parts);
        (parts, characters + step.passed, splitter.characters(), false)
    };
    let join = |parts: Vec<ReplyPart>| -> (String, String) {
        let (mut thoughts, mut words) = (String::new(), String::new());
        for part in parts {
            match part {
                ReplyPart::Thought(text) => thoughts.push_str(&text),
                ReplyPart::Text(text) => words.push_str(&text),
                ReplyPart::Call(call) => words.push_str(&call.arguments),
            }
        }
        (thoughts, words)
    };
    // The stop text is found in words only, and not across a mark.
    let reply = "<|channel>thought\nSTOP \u{1F600}ST<channel|>OP, I say: STOP it";
    let (parts, passed, characters, stopped) = split(reply, &["STOP"]);
    assert!(stopped && passed <= characters);
    assert_eq!(join(parts), ("STOP \u{1F600}ST".to_owned(), "OP, I say: ".to_owned()));
    let call = "<|tool_call>call:weather{city:<|\"|>STOP<|\"|>}<tool_call|>";
    let (parts, passed, characters, stopped) = split(call, &["STOP"]);
    assert_eq!((join(parts).1.as_str(), stopped), ("{\"city\":\"STOP\"}", false));
    assert_eq!(passed, characters);
}
