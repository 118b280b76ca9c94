//! The status that a server reports (`GET /v1/trine/status`), checked and made harmless for a
//! terminal.

use std::collections::HashSet;

use serde::Deserialize;

/// The most models that are read; further ones are left out.
const MODELS_MAX: usize = 256;
/// The most formats of a model's weights; further ones are left out.
const FORMATS_MAX: usize = 8;
/// The most characters of a name.
const NAME_CHARACTERS: usize = 120;

/// An answer of a server.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(super) struct Snapshot {
    /// The version of the server's program.
    pub(super) version: String,
    /// `running` or `draining`.
    pub(super) phase: String,
    /// When the server started, in seconds since 1970. Another number means another server.
    pub(super) started: u64,
    /// The models, the default one first.
    pub(super) models: Vec<Model>,
}

/// A model of a server.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(super) struct Model {
    /// Its name in requests.
    pub(super) name: String,
    /// The memory that it takes, or would take, in bytes.
    pub(super) bytes: u64,
    /// Its architecture, if it is loaded.
    #[serde(default)]
    pub(super) family: String,
    /// The formats of its weights, if it is loaded.
    #[serde(default)]
    pub(super) formats: Vec<String>,
    /// The device that runs it, if it is loaded.
    #[serde(default)]
    pub(super) device: String,
    /// The counters of its engine, if it is loaded.
    #[serde(rename = "status")]
    pub(super) engine: Option<Engine>,
    /// The counters of its vision tower, if it has one and is loaded.
    #[serde(default)]
    pub(super) tower: Option<Tower>,
}

/// The counters of a vision tower: the part of `trine_engine::TowerCounts` that is shown.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub(super) struct Tower {
    /// The pictures that it was run for.
    pub(super) pictures: u64,
    /// The pictures whose rows were there.
    pub(super) hits: u64,
    /// Seconds of all runs.
    pub(super) seconds: f64,
    /// The pictures that wait for their run.
    pub(super) waiting: u64,
}

/// The counters of an engine: the part of `trine_engine::Status` that is shown.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub(super) struct Engine {
    /// The number of sequences being run.
    pub(super) running: u64,
    /// The number of requests in the queue.
    pub(super) waiting: u64,
    /// The number of prompt tokens of the requests in the queue.
    pub(super) waiting_tokens: u64,
    /// The most sequences at once.
    pub(super) sequences: u64,
    /// The bytes of the memory for keys and values.
    pub(super) kv_bytes: u64,
    /// The total number of KV blocks.
    pub(super) blocks: u64,
    /// KV blocks of running sequences.
    pub(super) blocks_running: u64,
    /// KV blocks that belong only to ended sequences.
    pub(super) blocks_kept: u64,
    /// KV blocks that several sequences share.
    pub(super) blocks_shared: u64,
    /// Seconds spent in steps and on drafts for them.
    pub(super) busy_seconds: f64,
    /// The number of rows of the last step.
    pub(super) width: u64,
    /// The number of sequences of the last step.
    pub(super) step_sequences: u64,
    /// The bytes that the steps had to move.
    pub(super) bytes: f64,
    /// The number of requests accepted.
    pub(super) requests: u64,
    /// The number of prompt tokens of the requests that started.
    pub(super) prompt_tokens: u64,
    /// The number of these tokens that were in the cache.
    pub(super) reused_tokens: u64,
    /// The number of tokens generated.
    pub(super) generated_tokens: u64,
    /// How often a sequence had guesses in a step.
    pub(super) drafts: u64,
    /// The number of guesses that were verified.
    pub(super) drafted_tokens: u64,
    /// The number of guesses that were right.
    pub(super) accepted_tokens: u64,
    /// How often a sequence gave its blocks to another one.
    pub(super) preemptions: u64,
    /// The number of steps in which the device failed.
    pub(super) device_failures: u64,
}

impl Engine {
    /// Returns the number of free KV blocks.
    pub(super) fn blocks_free(&self) -> u64 {
        self.blocks.saturating_sub(self.blocks_running).saturating_sub(self.blocks_kept)
    }

    /// Returns the rows and sequences of the last step; 0 if nothing runs.
    pub(super) fn batch(&self) -> (u64, u64) {
        if self.running == 0 { (0, 0) } else { (self.width, self.step_sequences) }
    }
}

/// Parses an answer. Every text in the result is [`harmless`], and every model has a unique name.
///
/// # Errors
/// Returns a message if the answer is not JSON or is another document.
pub(super) fn parse(answer: &[u8]) -> Result<Snapshot, String> {
    let mut snapshot: Snapshot =
        serde_json::from_slice(answer).map_err(|error| harmless(&error.to_string()))?;
    for text in [&mut snapshot.version, &mut snapshot.phase] {
        *text = harmless(text);
    }
    snapshot.models.truncate(MODELS_MAX);
    for model in &mut snapshot.models {
        model.formats.truncate(FORMATS_MAX);
        let texts = [&mut model.name, &mut model.family, &mut model.device];
        for text in texts.into_iter().chain(&mut model.formats) {
            *text = harmless(text);
        }
    }
    let mut names = HashSet::new();
    snapshot.models.retain(|model| names.insert(model.name.clone()));
    Ok(snapshot)
}

/// Turns untrusted text into one short line.
pub(super) fn harmless(text: &str) -> String {
    trine_foreign::cut_name(text, NAME_CHARACTERS)
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Returns an answer with one loaded model and one that is not loaded.
    pub(in crate::commands::top) fn answer() -> Value {
        json!({
            "version": "0.1.0", "phase": "running", "started": 1_700_000_000, "models": [
                {
                    "name": "demo",
                    "is_loaded": true, "bytes": 24_100_000, "family": "gemma3",
                    "formats": ["Q8_0", "F32"],
                    "device": "cpu (avx2, 2 threads)", "tokens_per_second": null,
                    "status": {
                        "running": 3, "waiting": 2,
                            "waiting_tokens": 1234,
                            "sequences": 8, "context": 2048,
                        "block_positions": 32, "kv_bytes": 268_435_456, "blocks": 512,
                            "blocks_running": 96,
                            "blocks_kept": 128,
                        "blocks_shared": 24, "steps": 1000,
                            "busy_seconds": 12.5, "width": 35,
                            "step_sequences": 3,
                        "bytes": 1e12, "requests": 40, "prompt_tokens": 8000, "reused_tokens": 2960,
                        "generated_tokens": 5000, "drafts": 800,
                            "drafted_tokens": 2400,
                            "accepted_tokens": 1200,
                            "preemptions": 1,
                            "device_failures": 0, "draining": false,
                    },
                },
                {"name": "second", "is_loaded": false, "bytes": 806_000_000},
            ],
        })
    }

    /// Returns the same answer, parsed.
    pub(in crate::commands::top) fn snapshot() -> Snapshot {
        parse(answer().to_string().as_bytes()).unwrap()
    }

    #[test]
    fn a_servers_answer_is_read() {
        let snapshot = snapshot();
        assert_eq!((snapshot.models.len(), &*snapshot.phase), (2, "running"));
        let engine = snapshot.models[0].engine.as_ref().unwrap();
        assert_eq!((engine.blocks_free(), engine.batch()), (288, (35, 3)));
        assert!(snapshot.models[1].engine.is_none());
        let idle = Engine { width: 9, blocks: 1, blocks_kept: 5, ..Engine::default() };
        assert_eq!((idle.batch(), idle.blocks_free()), ((0, 0), 0));
    }

    #[test]
    fn the_engines_own_counts_are_what_is_read() {
        let status = trine_engine::Status { blocks_shared: 7, ..Default::default() };
        let engine: Engine = serde_json::from_value(serde_json::to_value(status).unwrap()).unwrap();
        assert_eq!(engine.blocks_shared, 7);
        let counts = trine_engine::TowerCounts { hits: 3, ..Default::default() };
        let tower: Tower = serde_json::from_value(serde_json::to_value(counts).unwrap()).unwrap();
        assert_eq!(tower.hits, 3);
    }

    #[test]
    fn other_documents_are_refused() {
        let deep = "[".repeat(100_000);
        for text in ["", "<html>", "{}", "[]", "null", "\u{0}", "{\"models\":7}", &deep] {
            assert!(parse(text.as_bytes()).is_err(), "{}", &text[..text.len().min(20)]);
        }
        assert!(parse(b"\xff\xfe").is_err());
        for (pointer, wrong) in [
            ("/version", json!(1)),
            ("/phase", json!(null)),
            ("/started", json!(-1)),
            ("/models", json!({})),
            ("/models/0", json!("demo")),
            ("/models/0/name", json!(["a"])),
            ("/models/0/bytes", json!("many")),
            ("/models/0/formats", json!("Q8_0")),
            ("/models/0/formats", json!([["Q8_0"]])),
            ("/models/0/device", json!({"\u{1b}[31m": 1})),
            ("/models/0/status", json!([1])),
            ("/models/0/status/running", json!(-3)),
            ("/models/0/status/blocks", json!(1.5)),
            ("/models/0/status/bytes", json!("\u{1b}]0;x\u{7}")),
            ("/models/0/status/generated_tokens", json!("5")),
        ] {
            let mut document = answer();
            *document.pointer_mut(pointer).unwrap() = wrong;
            let error = parse(document.to_string().as_bytes()).unwrap_err();
            assert!(
                !error.contains(char::is_control) && error.len() < 1000,
                "{pointer}: {error:?}"
            );
        }
        let huge = answer().to_string().replace("1000000000000.0", "1e999");
        assert!(parse(huge.as_bytes()).unwrap_err().contains("out of range"));
    }

    #[test]
    fn names_lose_what_a_terminal_obeys() {
        let mut document = answer();
        document["models"][0]["name"] = "a\u{1b}[2J\u{9b}31m\r\nb\u{202e}c".into();
        document["models"][0]["device"] = "x".repeat(100_000).into();
        document["models"][0]["formats"] = vec!["\u{1b}c"; 1000].into();
        document["phase"] = "\u{1b}]52;c;AAAA\u{7}".into();
        let snapshot = parse(document.to_string().as_bytes()).unwrap();
        assert_eq!(snapshot.models[0].name, "a\u{fffd}[2J\u{fffd}31m\u{fffd}\u{fffd}b\u{fffd}c");
        assert_eq!(snapshot.models[0].device.chars().count(), NAME_CHARACTERS + 3);
        assert_eq!(snapshot.models[0].formats, ["\u{fffd}c"; FORMATS_MAX]);
        assert_eq!(snapshot.phase, "\u{fffd}]52;c;AAAA\u{fffd}");
    }

    #[test]
    fn models_are_bounded_and_differ_in_name() {
        let mut document = answer();
        let model = |index: usize| json!({"name": format!("m{}", index / 2), "bytes": 1});
        document["models"] = (0..10_000).map(model).collect();
        let snapshot = parse(document.to_string().as_bytes()).unwrap();
        assert_eq!(snapshot.models.len(), MODELS_MAX / 2);
    }
}
