//! The embedded model's file as a model of the server, for the tests in this crate and, included by
//! its path, for those of the whole server.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use trine_engine::{Engine, Pooling, SamplingParams, Service};
use trine_text::{ChatTemplate, Tokenizer};
use trine_weights::Checkpoint;

use super::{Description, LoadedModel, grammar_cache};

/// Returns the path of the file.
pub(crate) fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/demo.gguf")
}

/// Returns its tokenizer.
pub(crate) fn tokenizer() -> Arc<Tokenizer> {
    let checkpoint = Checkpoint::open(path()).expect("the embedded model opens");
    Arc::new(Tokenizer::from_checkpoint(&checkpoint).expect("it has a tokenizer"))
}

/// Returns an engine with this tokenizer and the template of Gemma, ready for requests. Samples
/// greedily.
pub(crate) fn loaded(engine: Engine, tokenizer: Arc<Tokenizer>, bytes: u64) -> LoadedModel {
    LoadedModel {
        grammars: grammar_cache(&tokenizer),
        tokenizer,
        template: Some(ChatTemplate::gemma()),
        sampling: SamplingParams::greedy(),
        pooling: Pooling::Mean,
        tasks: None,
        pictures: None,
        service: Service::start(engine).expect("there are threads"),
        description: Description { family: "gemma3".to_owned(), ..Description::default() },
        bytes,
        is_short: false,
    }
}
