//! Conversations of any shape become prompts, and no text in them is lost.
use std::sync::OnceLock;

use crate::common::{golden, read};
use proptest::prelude::*;
use serde_json::json;
use trine_text::{ChatTemplate, Content, Message, Part, RenderOptions, ToolChoice, Tools};
use trine_weights::Checkpoint;

/// A format in which each message is a turn of its speaker.
const CHATML: &str = "{% for message in messages %}\
    {{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}{% endfor %}\
    {% if add_generation_prompt %}\
    {{ '<|im_start|>assistant\\n' }}{% endif %}";

/// One that knows no system messages.
const STRICT: &str = "{% for message in messages %}{% if message.role == 'system' %}\
    {{ raise_exception('no system') }}\
    {% elif (message.role == 'user') != (loop.index0 % 2 == 0) %}\
    {{ raise_exception('alternate') }}{% endif %}{{ '[' + message.role + ']' + message.content }}\
    {% endfor %}";

/// One that shows a system message only beside a turn, and lets any speaker follow any other.
const LAX: &str = "{% for message in messages %}{% if message.role != 'system' %}\
    {% if loop.index0 == 1 and messages[0].role == 'system' %}{{ messages[0].content + '\\n' }}\
    {% endif %}{{ '<' + message.role + '>' + message.content }}{% endif %}{% endfor %}";

fn templates() -> &'static [(&'static str, ChatTemplate)] {
    static TEMPLATES: OnceLock<Vec<(&'static str, ChatTemplate)>> = OnceLock::new();
    TEMPLATES.get_or_init(all_templates)
}

fn all_templates() -> Vec<(&'static str, ChatTemplate)> {
    let of = |source: &str| ChatTemplate::new(source).unwrap();
    let checkpoint = Checkpoint::open(golden("../../assets/demo.gguf")).unwrap();
    let demo =
        ChatTemplate::from_checkpoint(&checkpoint).unwrap().unwrap_or_else(ChatTemplate::gemma);
    vec![
        ("golden", of(std::str::from_utf8(&read("chat_template.jinja")).unwrap())),
        ("gemma", ChatTemplate::gemma()),
        ("demo", demo),
        ("chatml", of(CHATML)),
        ("strict", of(STRICT)),
        ("lax", of(LAX)),
    ]
}

fn render(template: &ChatTemplate, messages: Vec<Message>) -> String {
    let turns = template.arranged(messages);
    let prompt = template.render(&turns, &RenderOptions::default());
    prompt.unwrap_or_else(|error| panic!("{error}: {turns:?}"))
}

fn messages(roles: &[&str]) -> Vec<Message> {
    let message = |(index, role): (usize, &&str)| Message::new(*role, format!("word{index}."));
    roles.iter().enumerate().map(message).collect()
}

#[test]
fn gemma_takes_what_clients_send() {
    let template = ChatTemplate::gemma();
    for (roles, expected) in [
        (
            &["system", "system", "user"][..],
            "<start_of_turn>user\nword0.\n\nword1.\n\nword2.<end_of_turn>\n",
        ),
        (&["user", "user"], "<start_of_turn>user\nword0.\n\nword1.<end_of_turn>\n"),
        (
            &["user", "assistant", "developer", "user"],
            "<start_of_turn>user\nword0.<end_of_turn>\n<start_of_turn>model\nword1.<end_of_turn>\n\
             <start_of_turn>user\nword2.\n\nword3.<end_of_turn>\n",
        ),
        (&["user", "system"], "<start_of_turn>user\nword0.\n\nword1.<end_of_turn>\n"),
        (&["system"], "<start_of_turn>user\nword0.\n\n<end_of_turn>\n"),
        (
            &["assistant", "user"],
            "<start_of_turn>user\n<end_of_turn>\n<start_of_turn>model\nword0.<end_of_turn>\n\
             <start_of_turn>user\nword1.<end_of_turn>\n",
        ),
        (
            &["user", "assistant", "model"],
            "<start_of_turn>user\nword0.<end_of_turn>\n<start_of_turn>model\nword1.\n\n\
             word2.<end_of_turn>\n",
        ),
    ] {
        let expected = format!("<bos>{expected}<start_of_turn>model\n");
        assert_eq!(render(&template, messages(roles)), expected, "{roles:?}");
    }
}

#[test]
fn templates_keep_the_system_messages_that_they_know() {
    let chatml = ChatTemplate::new(CHATML).unwrap();
    let prompt =
        render(&chatml, messages(&["system", "user", "assistant", "system", "system", "user"]));
    assert_eq!(
        prompt,
        "<|im_start|>system\n\
         word0.<|im_end|>\n\
         <|im_start|>user\n\
         word1.<|im_end|>\n\
         <|im_start|>assistant\n\
         word2.<|im_end|>\n\
         <|im_start|>system\n\
         word3.\n\
         \n\
         word4.<|im_end|>\n\
         <|im_start|>user\n\
         word5.<|im_end|>\n\
         <|im_start|>assistant\n"
    );
    assert_eq!(
        render(&chatml, messages(&["system"])),
        "<|im_start|>system\nword0.<|im_end|>\n<|im_start|>assistant\n"
    );
    let strict = ChatTemplate::new(STRICT).unwrap();
    let prompt = render(&strict, messages(&["system", "assistant", "user"]));
    assert_eq!(prompt, "[user]word0.[assistant]word1.[user]word2.");
}

#[test]
fn parts_are_joined_without_losing_a_word() {
    let text = |text: &str| Part {
        kind: "text".to_owned(),
        text: Some(text.to_owned()),
        ..Part::default()
    };
    let parts = |parts: Vec<Part>| Content::Parts(parts);
    let image = Part { kind: "image".to_owned(), ..Part::default() };
    let messages = vec![
        Message::new("system", parts(vec![text("one"), text("two")])),
        Message::new("user", parts(vec![text("three"), image, text("four ")])),
        Message::new("user", parts(vec![text(" five"), text("six")])),
        Message::new("user", "seven"),
        Message { role: "assistant".to_owned(), ..Message::default() },
    ];
    assert_eq!(
        render(&ChatTemplate::gemma(), messages),
        "<bos><start_of_turn>user\n\
         one\n\
         two\n\
         \n\
         three<start_of_image>four \n\
         \n fivesix\n\
         \n\
         seven<end_of_turn>\n\
         <start_of_turn>model\n\
         <end_of_turn>\n\
         <start_of_turn>model\n"
    );
}

proptest! {
    #![proptest_config(
        ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() }
    )]

    #[test]
    fn no_text_is_lost(
        roles in prop::collection::vec(
            prop::sample::select(vec!["system",
                "developer", "user",
                "assistant", "model", "tool", "call", "empty"]),
            1..12,
        ),
        with_tools: bool,
        in_parts: bool,
    ) {
        let declared = json!([{"type": "function", "function": {"name": "f"}}]);
        let tools = match with_tools {
            true => Tools::from_openai(&declared).unwrap(),
            false => Tools::default(),
        };
        let mut messages = Vec::new();
        for (index, role) in roles.iter().enumerate() {
            let word = format!("word{index}.");
            messages.push(match *role {
                "call" => {
                    let call = json!({"function": {"name": "f", "arguments": {"a": word}}});
                    let calls = ("tool_calls".to_owned(), json!([call]));
                    let extra = serde_json::Map::from_iter([calls]);
                    Message { role: "assistant".to_owned(), extra, ..Message::default() }
                }
                "empty" => Message::new("user", ""),
                role if in_parts => {
                    let kind = "text".to_owned();
                    let part = Part { kind, text: Some(word), ..Part::default() };
                    Message::new(role, Content::Parts(vec![part]))
                }
                role => Message::new(role, word),
            });
        }
        let messages = tools.conversation(messages, &ToolChoice::Auto, true).unwrap();
        for (name, template) in templates() {
            if in_parts && ["chatml", "strict", "lax"].contains(name) {
                continue;
            }
            let prompt = render(template, messages.clone());
            let mut end = 0;
            for (index, _) in roles.iter().enumerate().filter(|(_, role)| **role != "empty") {
                let word = format!("word{index}.");
                prop_assert_eq!(prompt.matches(&word).count(), 1, "{}: {}: {}", name, word, prompt);
                let place = prompt.find(&word).unwrap();
                prop_assert!(place >= end, "{}: {} is out of order: {}", name, word, prompt);
                end = place;
            }
            if with_tools {
                prop_assert!(prompt.contains("You have access to functions"), "{}", prompt);
            }
        }
    }
}
