//! Conversations as files: the formats that `/save` and the server's page write now or wrote
//! earlier.

use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::chat::parameters::Parameters;
use crate::chat::{Conversation, Role, Turn, or_default};
use crate::destination;

/// The version of the file format.
const VERSION: u64 = 2;
/// The versions that can be read.
const READ: std::ops::RangeInclusive<u64> = 1..=VERSION;
/// The version of the format that the page exported before it used this one.
const PAGE_VERSION: u64 = 1;
/// The largest conversation file that is read, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 26;

/// A conversation as a file.
#[derive(Serialize, Deserialize)]
struct Saved {
    /// The version of the format; the name of the field identifies the file.
    trine_conversation: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    title: Option<String>,
    #[serde(default)]
    model: Option<String>,
    #[serde(default)]
    system: Option<String>,
    #[serde(
        default,
        skip_serializing_if = "Parameters::is_empty",
        deserialize_with = "or_default"
    )]
    parameters: Parameters,
    messages: Vec<Turn>,
    #[serde(flatten)]
    others: Map<String, Value>,
}

/// The format that the page exported before it used this one.
#[derive(Deserialize)]
struct PageExport {
    #[serde(default)]
    model: Option<String>,
    #[serde(default, deserialize_with = "or_default")]
    system: String,
    #[serde(default, deserialize_with = "or_default")]
    parameters: Parameters,
    turns: Vec<Turn>,
}

impl From<PageExport> for Saved {
    fn from(page: PageExport) -> Self {
        let mut messages: Vec<Turn> = Vec::with_capacity(page.turns.len());
        for turn in page.turns {
            // The page kept questions whose answers had failed.
            if turn.role == Role::User
                && messages.last().is_some_and(|last| last.role == Role::User)
            {
                messages.pop();
            }
            messages.push(turn);
        }
        Self {
            trine_conversation: VERSION,
            title: None,
            model: page.model,
            system: Some(page.system).filter(|system| !system.is_empty()),
            parameters: page.parameters,
            messages,
            others: Map::new(),
        }
    }
}

impl Conversation {
    /// Writes the conversation to a file. Replaces an existing file only if it is a conversation.
    ///
    /// # Errors
    /// Returns an error if the file is something else or cannot be written.
    pub(crate) fn save(&self, path: &Path, model: &str) -> Result<()> {
        let path = &destination::behind_links(path)?;
        if path.exists() && Self::load(path).is_err() {
            bail!("{} exists and is not a conversation; choose another name", path.display());
        }
        let saved = Saved {
            trine_conversation: VERSION,
            title: self.title.clone(),
            model: Some(model.to_owned()),
            system: self.system.clone(),
            parameters: self.parameters.clone(),
            messages: self.turns.clone(),
            others: self.others.clone(),
        };
        let mut text = serde_json::to_string_pretty(&saved)?;
        text.push('\n');
        destination::replace(path, text.as_bytes())
    }

    /// Reads a conversation from a file.
    ///
    /// # Errors
    /// Returns an error if the file is no plain one or holds no conversation, or its turns do not
    /// alternate.
    pub(crate) fn load(path: &Path) -> Result<Self> {
        let shown = path.display();
        let fail = || format!("cannot read {shown}; check the path and its permissions");
        // Opening a pipe would wait for its writer.
        if !std::fs::metadata(path).with_context(fail)?.is_file() {
            bail!("{shown} is not a plain file; name the file of a conversation");
        }
        let file = std::fs::File::open(path).with_context(fail)?;
        let mut bytes = Vec::new();
        file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).with_context(fail)?;
        if bytes.len() as u64 > FILE_BYTES_MAX {
            bail!("{shown} is larger than {FILE_BYTES_MAX} bytes; it cannot be a conversation");
        }
        let saved = read(&bytes).with_context(|| {
            format!("{shown} is not a conversation that /save or the server's page wrote")
        })?;
        let expected =
            |index: usize| if index.is_multiple_of(2) { Role::User } else { Role::Assistant };
        if let Some(index) =
            (0..saved.messages.len()).find(|&at| saved.messages[at].role != expected(at))
        {
            bail!(
                "{shown}: message {index} is the {:?}'s; messages alternate, beginning with the \
                 user's: correct the file",
                saved.messages[index].role
            );
        }
        if saved.parameters.max_tokens == Some(0) {
            bail!("{shown}: max_tokens is 0; correct the file: leave it out or give at least 1");
        }
        let Saved { title, system, parameters, messages, others, .. } = saved;
        Ok(Self { title, system, parameters, turns: messages, others, left_out: 0 })
    }
}

/// Reads any of the formats.
fn read(bytes: &[u8]) -> Result<Saved> {
    /// The fields that distinguish the formats.
    #[derive(Deserialize)]
    struct Marks {
        trine_conversation: Option<u64>,
        format: Option<u64>,
    }
    if bytes.trim_ascii_start().starts_with(b"[") {
        // The page exports all its conversations as a list.
        let list: Vec<Value> = serde_json::from_slice(bytes)?;
        return match list.as_slice() {
            [one] => read(&serde_json::to_vec(one)?),
            several => bail!(
                "it is a list of {} conversations; give the file of one, which the page exports \
                 too",
                several.len()
            ),
        };
    }
    let marks: Marks = serde_json::from_slice(bytes)?;
    match marks {
        Marks { trine_conversation: Some(version), .. } if READ.contains(&version) => {
            Ok(serde_json::from_slice(bytes)?)
        }
        Marks { trine_conversation: Some(version), .. } => bail!(
            "it has format version {version}, this trine reads {} to {}; use a newer trine",
            READ.start(),
            READ.end()
        ),
        Marks { format: Some(PAGE_VERSION), .. } => {
            Ok(serde_json::from_slice::<PageExport>(bytes)?.into())
        }
        _ => Err(anyhow!("it has no field trine_conversation")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(text: &str) -> Result<Conversation> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("chat.json");
        std::fs::write(&path, text).unwrap();
        Conversation::load(&path)
    }

    /// Returns the text of a conversation's file, and the conversation that is read back from it.
    fn saved(conversation: &Conversation) -> (String, Conversation) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("chat.json");
        conversation.save(&path, "demo").unwrap();
        conversation.save(&path, "demo").unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "no partial file stays");
        let text = std::fs::read_to_string(&path).unwrap();
        (text, Conversation::load(&path).unwrap())
    }

    #[cfg(unix)]
    #[test]
    fn pipes_are_refused_without_waiting_for_a_writer() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
        assert!(made.success());
        let error = Conversation::load(&pipe).unwrap_err().to_string();
        assert!(error.contains("not a plain file"), "{error}");
        let error = Conversation::default().save(&pipe, "demo").unwrap_err().to_string();
        assert!(error.contains("choose another name"), "{error}");
    }

    #[test]
    fn files_keep_everything() {
        let conversation = Conversation {
            title: Some("Greetings".to_owned()),
            system: Some("Be brief.".to_owned()),
            parameters: Parameters {
                temperature: Some(0.7),
                top_k: Some(40),
                seed: Some(u64::MAX),
                ..Parameters::default()
            },
            turns: vec![
                Turn::new(Role::User, "a\n\"b\" ü"),
                Turn { earlier: vec!["d".to_owned()], ..Turn::new(Role::Assistant, "c") },
            ],
            ..Conversation::default()
        };
        let (text, again) = saved(&conversation);
        assert_eq!(again, conversation);
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["trine_conversation"], 2);
        assert_eq!((&value["model"], &value["title"]), (&"demo".into(), &"Greetings".into()));
        assert_eq!(value["parameters"]["temperature"], 0.7);
        assert_eq!(value["messages"][1]["earlier"][0], "d");
        assert!(value["messages"][0].get("earlier").is_none());
    }

    #[test]
    fn fields_of_others_are_kept() {
        let text = r#"{"trine_conversation":2,"model":"m","system":null,"mood":"good","parameters":{"mirostat":2},
            "messages":[{"role":"user","content":"x","at":5},{"role":"assistant","content":"y","figures":{"speed":9.5}}]}"#;
        let (text, again) = saved(&load(text).unwrap());
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&value["mood"], &value["parameters"]["mirostat"]), (&"good".into(), &2.into()));
        assert_eq!(value["messages"][0]["at"], 5);
        assert_eq!(value["messages"][1]["figures"]["speed"], 9.5);
        assert_eq!(again.others.len(), 1);
    }

    #[test]
    fn older_files_are_read() {
        let first = r#"{"trine_conversation":1,"model":"demo","system":"s","messages":[{"role":"user","content":"x"}]}"#;
        let first = load(first).unwrap();
        assert_eq!((first.system.as_deref(), first.turns.len()), (Some("s"), 1));
        let page = r#"{"format":1,"model":"demo","system":"","parameters":{"temperature":0.5,"top_k":3},
            "turns":[{"role":"user","content":"failed"},{"role":"user","content":"x"},
            {"role":"assistant","content":"y","figures":{"tokens":3,"reason":"stop"}}]}"#;
        let page = load(page).unwrap();
        assert_eq!((page.system.clone(), page.turns.len()), (None, 2));
        assert_eq!(page.turns[0].content, "x");
        assert_eq!((page.parameters.temperature, page.parameters.top_k), (Some(0.5), Some(3)));
        assert_eq!(page.turns[1].others["figures"]["tokens"], 3);
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
            (r#"{"trine_conversation":3,"messages":[]}"#, "newer trine"),
            (r#"{"trine_conversation":0,"messages":[]}"#, "version 0"),
            (r#"{"trine_conversation":"2","messages":[]}"#, "invalid type"),
            (r#"{"trine_conversation":2}"#, "messages"),
            (
                r#"{"trine_conversation":2,"messages":[{"role":"assistant","content":"x"}]}"#,
                "message 0",
            ),
            (
                r#"{"trine_conversation":2,"messages":[{"role":"user","content":"x"},{"role":"user","content":"y"}]}"#,
                "message 1",
            ),
            (r#"{"trine_conversation":2,"messages":[{"role":"user","content":5}]}"#, "line 1"),
            (r#"{"trine_conversation":2,"messages":[],"parameters":{"top_k":"many"}}"#, "line 1"),
            (
                r#"{"trine_conversation":2,"messages":[],"parameters":{"max_tokens":0}}"#,
                "max_tokens",
            ),
            (r#"{"format":2,"turns":[]}"#, "trine_conversation"),
            (r#"{"format":1}"#, "turns"),
            (r#"{"messages":[]}"#, "trine_conversation"),
            ("[]", "a list of 0"),
            (r#"[{"trine_conversation":2,"messages":[]},{}]"#, "a list of 2"),
            ("", "not a conversation"),
        ];
        for (text, expected) in wrong {
            let error = format!("{:#}", load(text).unwrap_err());
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn a_list_of_one_conversation_is_that_conversation() {
        let text = r#"[{"trine_conversation":2,"messages":[{"role":"user","content":"x","unanswered":["w"]}]}]"#;
        assert_eq!(load(text).unwrap().turns[0].content, "x");
    }

    #[test]
    fn a_deep_file_is_refused() {
        assert!(load(&"[".repeat(100_000)).is_err());
        let deep =
            format!("{{\"trine_conversation\":2,\"messages\":[],\"x\":{}", "[".repeat(100_000));
        assert!(load(&deep).is_err());
    }
}
