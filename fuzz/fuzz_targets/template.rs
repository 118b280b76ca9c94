//! Any text as a chat template, rendered over a conversation: an error or a bounded prompt. The
//! input is the template, a NUL, the user's message.

#![no_main]

use libfuzzer_sys::fuzz_target;
use trine_text::{ChatTemplate, Message, RenderOptions};

fuzz_target!(|data: &[u8]| {
    let text = String::from_utf8_lossy(data);
    let (source, said) = text.split_once('\0').unwrap_or((&text, "hello"));
    let Ok(template) = ChatTemplate::new(source) else { return };
    let messages = [
        Message::new("system", "Be brief."),
        Message::new("user", said),
        Message::new("assistant", "Yes."),
        Message::new("user", said),
    ];
    let _ = template.render(&messages, &RenderOptions::default());
});
