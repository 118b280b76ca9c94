//! A conversation: its messages, how they become a prompt, and the file they are kept in.

use std::io::{Read, Write};
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use serde::{Deserialize, Serialize};
use trine_text::{Message, RenderOptions, Specials};

use crate::vocabulary::TextSide;

/// Version of the file format.
const VERSION: u32 = 1;
/// Largest conversation file read.
const FILE_BYTES_MAX: u64 = 1 << 26;

/// Who speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Role {
    /// The person.
    User,
    /// The model.
    Assistant,
}

/// One turn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Turn {
    /// Who speaks.
    pub(crate) role: Role,
    /// What is said.
    pub(crate) content: String,
}

/// A conversation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Conversation {
    /// Instructions before the first turn.
    pub(crate) system: Option<String>,
    /// The turns, the person's first, alternating.
    pub(crate) turns: Vec<Turn>,
}

/// A conversation as a file.
#[derive(Serialize, Deserialize)]
struct Saved {
    /// Says what the file is.
    trine_conversation: u32,
    #[serde(default)]
    model: String,
    #[serde(default)]
    system: Option<String>,
    messages: Vec<Turn>,
}

impl Conversation {
    /// The same with a question at its end.
    pub(crate) fn asking(mut self, content: String) -> Self {
        self.turns.push(Turn { role: Role::User, content });
        self
    }

    /// The prompt that asks for the next answer.
    ///
    /// # Errors
    /// If the model has no chat template or it refuses the conversation.
    pub(crate) fn prompt(&self, text: &TextSide) -> Result<Vec<u32>> {
        let template = text
            .template
            .as_ref()
            .ok_or_else(|| anyhow!("the model has no chat template; use --raw"))?;
        let tokenizer = &text.tokenizer;
        // What people and the model said is guarded: its words never become control tokens.
        let system = self.system.iter().map(|content| ("system", content));
        let turns = self.turns.iter().map(|turn| match turn.role {
            Role::User => ("user", &turn.content),
            Role::Assistant => ("assistant", &turn.content),
        });
        let messages =
            system.chain(turns).map(|(role, content)| Message::new(role, content.as_str()));
        let messages = template.arranged(messages.collect()).into_iter();
        let messages: Vec<Message> = messages.map(|message| message.guarded(tokenizer)).collect();
        let options = RenderOptions {
            bos_token: tokenizer.bos_text().into_owned(),
            eos_token: tokenizer.eos_text().into_owned(),
            ..RenderOptions::default()
        };
        let rendered = template.render(&messages, &options)?;
        Ok(tokenizer.encode_prompt(&rendered, Specials::ParseGuarded)?)
    }

    /// Writes the conversation to a file. An existing file is replaced only if it is a conversation.
    ///
    /// # Errors
    /// If the file is something else or cannot be written.
    pub(crate) fn save(&self, path: &Path, model: &str) -> Result<()> {
        if path.exists() && Self::load(path).is_err() {
            bail!("{} exists and is no conversation; choose another name", path.display());
        }
        let saved = Saved {
            trine_conversation: VERSION,
            model: model.to_owned(),
            system: self.system.clone(),
            messages: self.turns.clone(),
        };
        let mut text = serde_json::to_string_pretty(&saved)?;
        text.push('\n');
        let fail =
            || format!("cannot write {}; check the path and its permissions", path.display());
        let mut part = path.as_os_str().to_owned();
        part.push(".part");
        let part = Path::new(&part);
        let written = std::fs::File::create(part)
            .and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()))
            .and_then(|()| std::fs::rename(part, path));
        if written.is_err() {
            let _ = std::fs::remove_file(part);
        }
        written.with_context(fail)
    }

    /// Reads a conversation from a file.
    ///
    /// # Errors
    /// If there is none, or its turns do not alternate.
    pub(crate) fn load(path: &Path) -> Result<Self> {
        let fail = || format!("cannot read {}; check the path and its permissions", path.display());
        let file = std::fs::File::open(path).with_context(fail)?;
        let mut text = String::new();
        file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).with_context(fail)?;
        if text.len() as u64 > FILE_BYTES_MAX {
            bail!(
                "{} is larger than {FILE_BYTES_MAX} bytes; it cannot be a conversation",
                path.display()
            );
        }
        let saved: Saved = serde_json::from_str(&text)
            .with_context(|| format!("{} is no conversation that /save wrote", path.display()))?;
        if saved.trine_conversation != VERSION {
            bail!(
                "{} has format version {}, this trine reads {VERSION}; use a newer trine",
                path.display(),
                saved.trine_conversation
            );
        }
        let expected =
            |index: usize| if index.is_multiple_of(2) { Role::User } else { Role::Assistant };
        if let Some(index) =
            (0..saved.messages.len()).find(|&at| saved.messages[at].role != expected(at))
        {
            bail!(
                "{}: message {index} is the {:?}'s; messages alternate, beginning with the user's: correct the file",
                path.display(),
                saved.messages[index].role
            );
        }
        Ok(Self { system: saved.system, turns: saved.messages })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(role: Role, content: &str) -> Turn {
        Turn { role, content: content.to_owned() }
    }

    #[test]
    fn saved_conversations_come_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("chat.json");
        let conversation = Conversation {
            system: Some("Be brief.".to_owned()),
            turns: vec![turn(Role::User, "a\n\"b\" ü"), turn(Role::Assistant, "c")],
        };
        conversation.save(&path, "demo").unwrap();
        assert_eq!(Conversation::load(&path).unwrap(), conversation);
        conversation.save(&path, "demo").unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "no partial file stays");
    }

    #[test]
    fn other_files_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notes.txt");
        std::fs::write(&path, "my notes").unwrap();
        let error = Conversation::default().save(&path, "demo").unwrap_err().to_string();
        assert!(error.contains("notes.txt"), "{error}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "my notes");
        let wrong = [
            r#"{"trine_conversation":2,"messages":[]}"#,
            r#"{"trine_conversation":1,"messages":[{"role":"assistant","content":"x"}]}"#,
            r#"{"trine_conversation":1,"messages":[{"role":"user","content":"x"},{"role":"user","content":"y"}]}"#,
            r#"{"messages":[]}"#,
            "[]",
        ];
        for text in wrong {
            std::fs::write(&path, text).unwrap();
            assert!(Conversation::load(&path).is_err(), "{text}");
        }
    }
}
