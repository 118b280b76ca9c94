//! A server in this process.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;
use trine_backend::reference::ReferenceDevice;
use trine_engine::{Engine, EngineOptions, Pooling, SamplingParams, Service, Status};
use trine_model::{KvType, Model, Rows};
use trine_server::{
    Description, Handle, LoadedModel, Loader, Server, ServerOptions, grammar_cache,
};
use trine_text::{ChatTemplate, Specials, Tokenizer};
use trine_weights::Checkpoint;

use crate::client;
use crate::fake::{Controls, Script};

/// What the model writes, over and over: each position has its own place in it.
pub(crate) const TEXT: &str =
    " One day a little bird sat on a tall tree and sang: \"Hello, all of you!\" Then it flew away.";
/// Positions of a sequence.
pub(crate) const CONTEXT: usize = 512;
/// The same of the model `long`.
pub(crate) const LONG_CONTEXT: usize = 2048;
/// Most requests that wait for a place.
pub(crate) const QUEUE: usize = 40;
/// Sequences at once.
pub(crate) const SEQUENCES: usize = 4;
/// Numbers in the embeddings of `embedder`.
pub(crate) const DIMENSIONS: usize = 256;

/// The embedded model's file.
fn demo_path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/demo.gguf")
}

const DEMO: EngineOptions = EngineOptions {
    context: Some(128),
    kv: KvType::F32,
    sequences: 2,
    kept: 1,
    prefill: 16,
    outputs: 0,
};

/// The embedded model on the scalar reference.
pub(crate) fn demo_engine() -> Engine {
    let model = Model::open(&demo_path()).expect("the embedded model opens");
    Engine::new(&model, &ReferenceDevice::new(), DEMO).expect("the embedded model is small")
}

/// The same for embeddings.
pub(crate) fn demo_embedder() -> Engine {
    let model = Model::open(&demo_path()).expect("the embedded model opens");
    let engine = Engine::for_embeddings(&model, &ReferenceDevice::new(), DEMO, Pooling::Mean);
    engine.expect("the embedded model is small")
}

/// Loads scripted models called `main`, `other` and `third`, and `long`, which has a context of [`LONG_CONTEXT`]; `broken` cannot be loaded, and `defect` panics. `demo` is the
/// embedded model itself; no grammar can guide `narrow`, whose logits are fewer than its tokenizer's tokens. `demo-embedder` and
/// `embedder` give embeddings: of the embedded model, and scripted ones of [`DIMENSIONS`] numbers.
pub(crate) struct Scripted {
    pub(crate) controls: Arc<Controls>,
    pub(crate) loads: AtomicUsize,
    /// Questions for a model's bytes, which are answered with 100.
    pub(crate) sizes_asked: AtomicUsize,
    /// Bytes that the next model takes once it is loaded.
    pub(crate) size: AtomicU64,
    /// The last engine made, to look at.
    pub(crate) service: Mutex<Option<Service>>,
    tokenizer: Mutex<Option<Arc<Tokenizer>>>,
}

impl Scripted {
    pub(crate) fn new(controls: Arc<Controls>) -> Self {
        Self {
            controls,
            loads: AtomicUsize::new(0),
            sizes_asked: AtomicUsize::new(0),
            size: AtomicU64::new(100),
            service: Mutex::default(),
            tokenizer: Mutex::default(),
        }
    }
}

impl Loader for Scripted {
    fn names(&self) -> Vec<String> {
        let texts = ["main", "other", "third", "broken", "defect", "demo", "narrow"];
        texts.into_iter().chain(["demo-embedder", "embedder", "long"]).map(str::to_owned).collect()
    }

    fn bytes(&self, _name: &str) -> u64 {
        self.sizes_asked.fetch_add(1, Ordering::SeqCst);
        100
    }

    fn load(&self, name: &str) -> Result<LoadedModel, String> {
        match name {
            "broken" if self.loads.fetch_add(1, Ordering::SeqCst).is_multiple_of(2) => {
                return Err("its file /secret/path is damaged".to_owned());
            }
            "defect" => panic!("as asked"),
            _ => {}
        }
        let checkpoint = Checkpoint::open(demo_path()).expect("the embedded model opens");
        let tokenizer = Tokenizer::from_checkpoint(&checkpoint).expect("it has a tokenizer");
        let script = tokenizer.encode(TEXT, Specials::AsText).expect("the text is short");
        let vocabulary = tokenizer.vocabulary_size();
        let controls = Arc::clone(&self.controls);
        let context = if name == "long" { LONG_CONTEXT } else { CONTEXT };
        let scripted = |vocabulary: usize, script: Vec<u32>| {
            let program =
                Script::new(vocabulary, script, context, SEQUENCES, Arc::clone(&controls));
            Engine::from_program(Box::new(program))
        };
        let mut engine = match name {
            "demo" => demo_engine(),
            "narrow" => scripted(vocabulary - 32, vec![5]),
            "demo-embedder" => demo_embedder(),
            "embedder" => {
                let mut program = Script::new(vocabulary, script, CONTEXT, SEQUENCES, controls);
                program.plan.buffers[0].rows = Rows::Tokens;
                program.plan.buffers[0].columns = DIMENSIONS;
                Engine::embedding(Box::new(program), SEQUENCES, vocabulary, Pooling::Mean)
            }
            _ => scripted(vocabulary, script),
        };
        engine.set_queue(QUEUE, 1 << 20);
        let service = Service::start(engine);
        let service = service.expect("there are threads");
        *self.service.lock().unwrap() = Some(service.clone());
        let tokenizer = Arc::new(tokenizer);
        *self.tokenizer.lock().unwrap() = Some(Arc::clone(&tokenizer));
        Ok(LoadedModel {
            grammars: grammar_cache(&tokenizer),
            tokenizer,
            template: Some(ChatTemplate::gemma()),
            sampling: SamplingParams::greedy(),
            service,
            description: Description { family: "gemma3".to_owned(), ..Description::default() },
            bytes: self.size.load(Ordering::SeqCst),
        })
    }
}

/// A running server. Ends when dropped.
pub(crate) struct Harness {
    pub(crate) address: SocketAddr,
    pub(crate) handle: Handle,
    pub(crate) loader: Arc<Scripted>,
    thread: Option<JoinHandle<()>>,
}

impl Harness {
    /// A server with the usual options.
    pub(crate) fn start() -> Self {
        Self::with(|_| {})
    }

    /// A server with other options.
    pub(crate) fn with(change: impl FnOnce(&mut ServerOptions)) -> Self {
        let mut options = ServerOptions { port: 0, ..ServerOptions::default() };
        change(&mut options);
        let loader = Arc::new(Scripted::new(Arc::new(Controls::default())));
        let (sender, receiver) = std::sync::mpsc::channel();
        let shared = Arc::clone(&loader);
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()
                .expect("a runtime can be made");
            runtime.block_on(async move {
                let server = Server::bind(options, shared).await.expect("a port is free");
                server.preload().await.expect("the model loads");
                sender.send((server.address(), server.handle())).expect("the test waits");
                server.run().await;
            });
            runtime.shutdown_timeout(Duration::from_secs(5));
        });
        let (address, handle) = receiver.recv().expect("the server starts");
        Self { address, handle, loader, thread: Some(thread) }
    }

    /// Posts JSON, and gives status and answer.
    pub(crate) fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let answer = client::post(self.address, path, &[], body.to_string().as_bytes());
        (answer.status, answer.json())
    }

    pub(crate) fn get(&self, path: &str) -> (u16, Value) {
        let answer = client::ask(self.address, "GET", path, &[], b"");
        (answer.status, answer.json())
    }

    /// Lets each step take so long.
    pub(crate) fn slow_down(&self, step: Duration) {
        self.loader.controls.step_us.store(step.as_micros() as u64, Ordering::SeqCst);
    }

    /// Makes every answer this text, which the model ends behind it.
    pub(crate) fn reply(&self, text: &str) {
        let tokenizer = self.loader.tokenizer.lock().unwrap();
        let tokenizer = tokenizer.as_ref().expect("a model is loaded");
        let mut ids = tokenizer.encode(text, Specials::AsText).expect("the text is short");
        ids.push(tokenizer.eos_ids()[0]);
        *self.loader.controls.reply.lock().unwrap() = Some(ids);
    }

    /// What the last loaded model's engine does.
    pub(crate) fn status(&self) -> Status {
        let service = self.loader.service.lock().unwrap();
        service.as_ref().expect("a model is loaded").status()
    }

    /// Waits until the engine has nothing to do.
    pub(crate) fn wait_idle(&self) {
        self.wait_for("the engine is idle", |status| status.running == 0 && status.waiting == 0);
    }

    pub(crate) fn wait_for(&self, what: &str, is_so: impl Fn(&Status) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while !is_so(&self.status()) {
            assert!(Instant::now() < deadline, "waited for: {what}; {:?}", self.status());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Ends the server in good order and waits for it.
    pub(crate) fn join(&mut self) {
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the server does not panic");
        }
    }
}

impl Drop for Harness {
    fn drop(&mut self) {
        self.handle.abort();
        if !std::thread::panicking() {
            self.join();
        }
    }
}
