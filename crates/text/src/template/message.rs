//! Conversations as templates see them.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::tokenizer::Tokenizer;

/// One turn of a conversation, in the shape that Hugging Face templates and
/// the OpenAI wire format share.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Message {
    /// The speaker: `system`, `user`, `assistant`, `tool`, ... The template decides which ones it
    /// accepts.
    pub role: String,
    /// The text, or its parts.
    #[serde(default)]
    pub content: Content,
    /// Further fields (`name`, `tool_calls`, ...), passed to the template as they are.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// The content of a [`Message`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Content {
    /// Plain text.
    Text(String),
    /// A list of text, images and the like.
    Parts(Vec<Part>),
    /// Nothing (JSON `null`), as in a message that only calls tools.
    Absent(()),
}

impl Default for Content {
    fn default() -> Self {
        Self::Absent(())
    }
}

impl Content {
    /// Returns all texts in it, one per line. Other parts are left out.
    pub fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Parts(parts) => {
                parts.iter().filter_map(|part| part.text.as_deref()).collect::<Vec<_>>().join("\n")
            }
            Self::Absent(()) => String::new(),
        }
    }

    /// Returns the bytes of all texts in it.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Parts(parts) => {
                parts.iter().filter_map(|part| part.text.as_ref()).map(String::len).sum()
            }
            Self::Absent(()) => 0,
        }
    }

    /// Returns the parts of it that are pictures.
    pub fn pictures(&self) -> impl Iterator<Item = &Part> {
        let parts: &[Part] = if let Self::Parts(parts) = self { parts } else { &[] };
        parts.iter().filter(|part| part.is_picture())
    }
}

impl From<&str> for Content {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Content {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

/// The type of a part that stands for a picture, as templates know it.
const PICTURE: &str = "image";

/// One part of a multimodal content.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Part {
    /// `text`, `image`, `audio`, ...
    #[serde(rename = "type")]
    pub kind: String,
    /// The text of a `text` part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Further fields of the part.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

impl Part {
    /// Makes a part of text.
    pub fn text(text: impl Into<String>) -> Self {
        Self { kind: "text".to_owned(), text: Some(text.into()), extra: Map::new() }
    }

    /// Makes the part that stands for a picture.
    pub fn picture() -> Self {
        Self { kind: PICTURE.to_owned(), text: None, extra: Map::new() }
    }

    /// Returns whether the part stands for a picture.
    pub fn is_picture(&self) -> bool {
        self.kind == PICTURE
    }
}

impl Message {
    /// Makes a message of text.
    pub fn new(role: impl Into<String>, content: impl Into<Content>) -> Self {
        Self { role: role.into(), content: content.into(), extra: Map::new() }
    }

    /// Returns the message with every text in it (role, content and further fields) marked as
    /// untrusted by [`Tokenizer::guard`]: encoded with [`crate::Specials::ParseGuarded`], none of
    /// it can become a control token.
    #[must_use]
    pub fn guarded(mut self, tokenizer: &Tokenizer) -> Self {
        let guard = |text: &mut String| *text = tokenizer.guard(text).into_owned();
        guard(&mut self.role);
        match &mut self.content {
            Content::Text(text) => guard(text),
            Content::Parts(parts) => {
                for part in parts {
                    part.text.as_mut().map(guard);
                    guard_map(&mut part.extra, tokenizer);
                }
            }
            Content::Absent(()) => {}
        }
        guard_map(&mut self.extra, tokenizer);
        self
    }
}

fn guard_map(map: &mut Map<String, Value>, tokenizer: &Tokenizer) {
    let guarded = std::mem::take(map).into_iter().map(|(key, mut value)| {
        guard_value(&mut value, tokenizer);
        (tokenizer.guard(&key).into_owned(), value)
    });
    *map = guarded.collect();
}

fn guard_value(value: &mut Value, tokenizer: &Tokenizer) {
    match value {
        Value::String(text) => *text = tokenizer.guard(text).into_owned(),
        Value::Array(items) => items.iter_mut().for_each(|item| guard_value(item, tokenizer)),
        Value::Object(map) => guard_map(map, tokenizer),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}
