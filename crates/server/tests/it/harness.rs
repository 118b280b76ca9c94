//! A server in this process.

#[path = "../../src/models/testing/demo.rs"]
mod demo;
#[path = "../../../text/tests/common/gemma4.rs"]
pub(crate) mod gemma4_vocabulary;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;
use trine_backend::BackendError;
use trine_backend::reference::ReferenceDevice;
use trine_engine::{Engine, EngineOptions, RunsTower, Service, Status, Tower, TowerInput};
use trine_model::{KvType, Model};
use trine_pictures::Preparation;
use trine_server::{
    Catalog, Description, Files, Found, Handle, Library, LibraryError, Listed, LoadError,
    LoadedModel, Loader, ModelSummary, Offer, OfferState, Pictures, Preset, PullProgress, Recipe,
    Refusal, Server, ServerOptions, grammar_cache,
};
use trine_text::{ChatTemplate, GgufVocabulary, Specials, TaskPrompts, Tokenizer};
use trine_weights::{Checkpoint, Metadata};

use crate::client;
use crate::fake::{Controls, Script};

/// What the model writes, over and over: each position has its own place in it.
pub(crate) const TEXT: &str =
    " One day a little bird sat on a tall tree and sang: \"Hello, all of you!\" Then it flew away.";
/// Positions of a sequence.
pub(crate) const CONTEXT: usize = 512;
/// The same of the model `long`.
pub(crate) const LONG_CONTEXT: usize = 2048;
/// A model with Gemma 4's marks, whose vocabulary is small: prompts have a token for each
/// character.
pub(crate) const GEMMA4: &str = "gemma4";
pub(crate) const GEMMA4_CONTEXT: usize = 1 << 14;
/// A model that takes pictures, of 4 soft tokens each.
pub(crate) const SEEING: &str = "seeing";
/// The same with a template that knows no pictures.
pub(crate) const UNSHOWN: &str = "unshown";
/// The model of [`Scripted::replay`].
pub(crate) const REPLAY: &str = "replay";
/// Numbers of a row of a picture.
const SOFT_COLUMNS: usize = 3;
/// Most requests that wait for a place.
pub(crate) const QUEUE: usize = 40;
/// Sequences at once.
pub(crate) const SEQUENCES: usize = 4;
/// Positions of a model that is not loaded, as its file has it.
pub(crate) const OUTLINED: usize = 4096;
/// A model as `embedder`, trained to embed.
pub(crate) const TASKS: &str = "tasks";
/// Numbers in the embeddings of `embedder`.
pub(crate) const DIMENSIONS: usize = 256;

const DEMO: EngineOptions = EngineOptions {
    context: Some(128),
    kv: KvType::F32,
    sequences: 2,
    further: 0,
    kept: 1,
    prefill: 16,
    further_rows: 0,
    outputs: 0,
    kv_memory: None,
    embeds: false,
};

/// The embedded model on the scalar reference.
pub(crate) fn demo_engine() -> Engine {
    let model = Model::open(&demo::path()).expect("the embedded model opens");
    Engine::new(&model, &ReferenceDevice::new(), DEMO).expect("the embedded model is small")
}

/// The same, for embeddings too.
pub(crate) fn demo_embedder() -> Engine {
    let model = Model::open(&demo::path()).expect("the embedded model opens");
    let options = EngineOptions { embeds: true, ..DEMO };
    let engine = Engine::new(&model, &ReferenceDevice::new(), options);
    engine.expect("the embedded model is small")
}

/// Models on a disk that is not there, which clients may change. A download waits while it is held.
#[derive(Default)]
pub(crate) struct Shelf {
    pub(crate) is_held: AtomicBool,
    /// Downloads that have begun, and those that nobody wanted any more.
    pub(crate) begun: AtomicUsize,
    pub(crate) cancelled: AtomicUsize,
}

/// Loads scripted models called `main`, `other` and `third`, and `long`, which has a context of
/// [`LONG_CONTEXT`]; `broken` cannot be loaded, and `defect` panics. `demo` is the embedded model
/// itself; no grammar can guide `narrow`, whose logits are fewer than its tokenizer's tokens.
/// `demo-embedder` and `embedder` give embeddings: of the embedded model, and scripted ones of
/// [`DIMENSIONS`] numbers.
pub(crate) struct Scripted {
    pub(crate) controls: Arc<Controls>,
    pub(crate) loads: AtomicUsize,
    /// Questions for a model's bytes, which are answered with 100.
    pub(crate) sizes_asked: AtomicUsize,
    /// All names.
    pub(crate) names: Mutex<Vec<(String, Found)>>,
    /// The stamp of all files.
    pub(crate) stamp: AtomicU64,
    /// While this is set no load ends.
    pub(crate) is_held: AtomicBool,
    /// Where clients may change the models.
    pub(crate) shelf: Option<Shelf>,
    /// Bytes that the next model takes once it is loaded.
    pub(crate) size: AtomicU64,
    /// How many of the next models find no memory beside others.
    pub(crate) cramped: AtomicUsize,
    /// How many of the next models have too short a context beside others.
    pub(crate) short: AtomicUsize,
    /// The last engine made, to look at.
    pub(crate) service: Mutex<Option<Service>>,
    tokenizer: Mutex<Option<Arc<Tokenizer>>>,
    /// What the tower of the next model sees.
    pub(crate) eye: Eye,
    /// The file of a model that is run as it is.
    pub(crate) replay: Option<PathBuf>,
}

/// A tower that remembers what it was given.
#[derive(Clone, Default)]
pub(crate) struct Eye {
    /// The numbers of its pictures, of each the first value and the count.
    pub(crate) seen: Arc<Mutex<Vec<(f32, usize)>>>,
    /// Whether it fails.
    pub(crate) is_blind: Arc<AtomicBool>,
    /// While this is set no run ends.
    pub(crate) is_held: Arc<AtomicBool>,
}

impl RunsTower for Eye {
    fn rows(&mut self, picture: &TowerInput) -> Result<Vec<f32>, BackendError> {
        while self.is_held.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        if self.is_blind.load(Ordering::SeqCst) {
            return Err(BackendError::Failed {
                device: "eye".to_owned(),
                what: "as asked".to_owned(),
            });
        }
        assert_eq!((picture.grid, picture.soft_tokens), ((4, 4), 4));
        self.seen.lock().unwrap().push((picture.patches[0], picture.patches.len()));
        Ok(vec![picture.patches[0]; picture.soft_tokens * SOFT_COLUMNS])
    }
}

impl Scripted {
    pub(crate) fn new(controls: Arc<Controls>) -> Self {
        let texts = ["main", "other", "third", "broken", "defect", "demo", "narrow"];
        let names = texts.into_iter().chain(["demo-embedder", "embedder", TASKS, "long"]);
        let names = names.map(|name| (name.to_owned(), Found::plain(name)));
        Self {
            controls,
            names: Mutex::new(names.collect()),
            stamp: AtomicU64::new(1),
            is_held: AtomicBool::new(false),
            shelf: None,
            loads: AtomicUsize::new(0),
            sizes_asked: AtomicUsize::new(0),
            size: AtomicU64::new(100),
            cramped: AtomicUsize::new(0),
            short: AtomicUsize::new(0),
            service: Mutex::default(),
            tokenizer: Mutex::default(),
            eye: Eye::default(),
            replay: None,
        }
    }
}

impl Files for Scripted {
    fn stamp(&self, _model: &str) -> u64 {
        self.stamp.load(Ordering::SeqCst)
    }

    fn digest(&self, _model: &str) -> String {
        "d".repeat(64)
    }

    fn summary(&self, model: &str) -> Result<ModelSummary, String> {
        if model == "broken" {
            return Err("its header is damaged".to_owned());
        }
        let sees = model == SEEING;
        let description = Description {
            family: "gemma3".to_owned(),
            sees,
            served: OUTLINED,
            ..Description::default()
        };
        let template = (model == GEMMA4).then(|| ChatTemplate::gemma4(true).source().to_owned());
        Ok(ModelSummary { description, template })
    }
}

/// Takes one of a number; returns whether one was left.
fn take(left: &AtomicUsize) -> bool {
    let one_less = |left: usize| left.checked_sub(1);
    left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).is_ok()
}

impl Loader for Scripted {
    fn list(&self) -> Vec<Listed> {
        let names = self.names.lock().unwrap();
        let listed = |(name, found): &(String, Found)| Listed {
            model: found.model.clone(),
            context: found.preset.context,
            ..Listed::plain(name.clone(), 100)
        };
        names.iter().map(listed).collect()
    }

    fn find(&self, name: &str) -> Result<Option<Found>, String> {
        let names = self.names.lock().unwrap();
        Ok(names.iter().find(|(other, _)| other == name).map(|(_, found)| found.clone()))
    }

    fn bytes(&self, _model: &str) -> u64 {
        self.sizes_asked.fetch_add(1, Ordering::SeqCst);
        100
    }

    fn library(&self) -> Option<&dyn Library> {
        self.shelf.as_ref().map(|_| self as &dyn Library)
    }

    fn load(&self, name: &str) -> Result<LoadedModel, LoadError> {
        while self.is_held.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(2));
        }
        match name {
            GEMMA4 => return Ok(self.gemma4()),
            SEEING => return Ok(self.seeing()),
            REPLAY => return Ok(self.replayed()),
            UNSHOWN => {
                let source =
                    "{{ bos_token }}{% for turn in messages %}{{ turn.content }}{% endfor %}";
                let template = ChatTemplate::new(source).expect("it is a template");
                return Ok(LoadedModel { template: Some(template), ..self.seeing() });
            }
            _ => {}
        }
        if take(&self.cramped) {
            return Err(LoadError { message: "no memory".to_owned(), lacks_memory: true });
        }
        match name {
            "broken" if self.loads.fetch_add(1, Ordering::SeqCst).is_multiple_of(2) => {
                return Err("its file /secret/path is damaged".to_owned().into());
            }
            "defect" => panic!("as asked"),
            _ => {}
        }
        let tokenizer = demo::tokenizer();
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
            "embedder" | TASKS => {
                let program = Script::new(vocabulary, script, CONTEXT, SEQUENCES, controls);
                Engine::from_program(Box::new(program.with_states(DIMENSIONS)))
            }
            _ => scripted(vocabulary, script),
        };
        engine.set_queue(QUEUE, 1 << 20);
        *self.tokenizer.lock().unwrap() = Some(Arc::clone(&tokenizer));
        let mut loaded = demo::loaded(engine, tokenizer, self.size.load(Ordering::SeqCst));
        loaded.tasks = (name == TASKS).then(TaskPrompts::default);
        loaded.is_short = take(&self.short);
        *self.service.lock().unwrap() = Some(loaded.service.clone());
        Ok(loaded)
    }
}

impl Scripted {
    /// A scripted model with Gemma 4's marks and template, which can think.
    fn gemma4(&self) -> LoadedModel {
        let tokenizer = Tokenizer::from_gguf(gemma4_vocabulary::vocabulary(4));
        let tokenizer = Arc::new(tokenizer.expect("the vocabulary is well formed"));
        let script = tokenizer.encode(TEXT, Specials::AsText).expect("the text is short");
        let (vocabulary, controls) = (tokenizer.vocabulary_size(), Arc::clone(&self.controls));
        let program = Script::new(vocabulary, script, GEMMA4_CONTEXT, SEQUENCES, controls);
        let mut engine = Engine::from_program(Box::new(program));
        engine.set_queue(QUEUE, 1 << 20);
        let loaded = demo::loaded(engine, tokenizer, self.size.load(Ordering::SeqCst));
        *self.service.lock().unwrap() = Some(loaded.service.clone());
        LoadedModel { template: Some(ChatTemplate::gemma4(true)), ..loaded }
    }

    /// A model file, on the scalar reference.
    fn replayed(&self) -> LoadedModel {
        let path = self.replay.as_ref().expect("the test names a file");
        let checkpoint = Checkpoint::open(path).expect("the file opens");
        let tokenizer = Tokenizer::from_checkpoint(&checkpoint).expect("it has a tokenizer");
        let template = ChatTemplate::from_checkpoint(&checkpoint).expect("its template is one");
        let model = Model::open(path).expect("it is a model");
        let options = EngineOptions { context: None, prefill: 64, ..DEMO };
        let engine = Engine::new(&model, &ReferenceDevice::new(), options);
        let engine = engine.expect("the model is small");
        LoadedModel { template, ..demo::loaded(engine, Arc::new(tokenizer), 100) }
    }

    /// A scripted model with Gemma 3's tokens for pictures, whose tower is `eye`.
    fn seeing(&self) -> LoadedModel {
        let checkpoint = Checkpoint::open(demo::path()).expect("the embedded model opens");
        let Metadata::Gguf(metadata) = checkpoint.metadata() else { panic!("it is a GGUF file") };
        let vocabulary = GgufVocabulary::from_metadata(metadata);
        let mut vocabulary = vocabulary.expect("it has a vocabulary");
        for name in ["<start_of_image>", "<end_of_image>"] {
            vocabulary.tokens.push(name.as_bytes().to_vec());
            vocabulary.token_types.iter_mut().for_each(|types| types.push(3));
            vocabulary.scores.iter_mut().for_each(|scores| scores.push(0.0));
        }
        let tokenizer = Tokenizer::from_gguf(vocabulary).expect("the vocabulary is well formed");
        let tokenizer = Arc::new(tokenizer);
        let script = tokenizer.encode(TEXT, Specials::AsText).expect("the text is short");
        let (vocabulary, controls) = (tokenizer.vocabulary_size(), Arc::clone(&self.controls));
        let program = Script::new(vocabulary, script, CONTEXT, SEQUENCES, controls);
        let program = program.with_soft_rows(SOFT_COLUMNS);
        let mut engine = Engine::from_program(Box::new(program));
        engine.set_queue(QUEUE, 1 << 20);
        *self.tokenizer.lock().unwrap() = Some(Arc::clone(&tokenizer));
        let loaded = demo::loaded(engine, tokenizer, self.size.load(Ordering::SeqCst));
        *self.service.lock().unwrap() = Some(loaded.service.clone());
        let preparation = Preparation::square(56, 14, 2, [0.5; 3], [0.5; 3]);
        let preparation = preparation.expect("the sizes fit one another");
        let tower = Tower::start(self.eye.clone(), [1; 32], 1 << 20);
        let pictures = Pictures { preparation, tower: tower.expect("there are threads") };
        LoadedModel { pictures: Some(pictures), ..loaded }
    }

    fn add(&self, name: &str, found: Found) {
        let mut names = self.names.lock().unwrap();
        names.retain(|(other, _)| other != name);
        names.push((name.to_owned(), found));
    }

    fn known(&self, name: &str) -> Result<Found, LibraryError> {
        let found = self.find(name).expect("no name is ambiguous");
        found.ok_or_else(|| LibraryError::new(Refusal::Unknown, format!("there is no {name}")))
    }

    fn shelf(&self) -> &Shelf {
        self.shelf.as_ref().expect("clients may change the models")
    }
}

impl Library for Scripted {
    fn catalog(&self, measures: bool) -> Result<Catalog, LibraryError> {
        let offer = |name: &str, state| Offer {
            names: vec![name.to_owned(), format!("{name}-it")],
            model: format!("owner/{name}:Q4_0"),
            quantization: "Q4_0".to_owned(),
            bytes: 5_000_000_000,
            fits: Some(true),
            tokens_per_second: measures.then_some(7.5),
            is_recommended: state == OfferState::Absent,
            is_usual: true,
            sees: true,
            state,
        };
        Ok(Catalog {
            device: measures.then(|| "the CPU".to_owned()),
            free_bytes: Some(24 << 30),
            models: vec![
                offer("new", OfferState::Absent),
                offer("half", OfferState::Partial(Some(40))),
                offer("whole", OfferState::Here("whole".to_owned())),
            ],
        })
    }

    fn pullable(&self, name: &str) -> Result<String, LibraryError> {
        match name.contains("..") {
            true => Err(LibraryError::new(Refusal::Invalid, "it is not a name")),
            false => Ok(name.to_lowercase()),
        }
    }

    fn pull(&self, name: &str, progress: &mut dyn PullProgress) -> Result<(), LibraryError> {
        let shelf = self.shelf();
        shelf.begun.fetch_add(1, Ordering::SeqCst);
        if name == "no/such" {
            return Err(LibraryError::new(Refusal::Unknown, "there is no such repository"));
        }
        progress.file("model.gguf", Some(100));
        progress.advance(40);
        while shelf.is_held.load(Ordering::SeqCst) {
            if progress.is_cancelled() {
                shelf.cancelled.fetch_add(1, Ordering::SeqCst);
                return Err(LibraryError::new(Refusal::Cancelled, "nobody wants it"));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        if name == "breaks/off" {
            return Err(LibraryError::new(Refusal::Failed, "the other side went away"));
        }
        progress.advance(60);
        self.add(name, Found::plain(name));
        Ok(())
    }

    fn owned(&self, name: &str) -> Result<Option<String>, LibraryError> {
        let found = self.known(name)?;
        Ok((found.model == name).then_some(found.model))
    }

    fn delete(&self, name: &str) -> Result<(), LibraryError> {
        self.names.lock().unwrap().retain(|(other, _)| other != name);
        Ok(())
    }

    fn copy(&self, from: &str, to: &str) -> Result<(), LibraryError> {
        self.add(to, self.known(from)?);
        Ok(())
    }

    fn create(&self, name: &str, recipe: &Recipe) -> Result<(), LibraryError> {
        let template = recipe.template.as_deref().map(ChatTemplate::new).transpose();
        let template = template
            .map_err(|error| LibraryError::new(Refusal::Invalid, format!("template: {error}")))?;
        let mut preset = Preset { system: recipe.system.clone(), template, ..Preset::default() };
        for (name, value) in &recipe.parameters {
            match name.as_str() {
                "temperature" => preset.sampling.temperature = value.parse().ok(),
                "num_predict" => preset.max_tokens = value.parse().ok(),
                "stop" => preset.stops.push(value.clone()),
                _ => {
                    return Err(LibraryError::new(
                        Refusal::Invalid,
                        format!("no parameter {name}"),
                    ));
                }
            }
        }
        preset.messages.clone_from(&recipe.messages);
        let model = self.known(&recipe.from)?.model;
        self.add(name, Found { model, preset: Arc::new(preset) });
        Ok(())
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
        Self::of(Scripted::new(Arc::default()), change)
    }

    /// A server whose models clients may change.
    pub(crate) fn library() -> Self {
        let shelf = Some(Shelf::default());
        Self::of(Scripted { shelf, ..Scripted::new(Arc::default()) }, |_| {})
    }

    /// A server of a loader.
    pub(crate) fn of(loader: Scripted, change: impl FnOnce(&mut ServerOptions)) -> Self {
        let mut options = ServerOptions { port: 0, ..ServerOptions::default() };
        change(&mut options);
        let loader = Arc::new(loader);
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

    /// Makes every answer this text, which the model then ends.
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
        let deadline = Instant::now() + Duration::from_secs(120);
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

/// Waits until something is so.
#[track_caller]
pub(crate) fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(120);
    while !is_so() {
        assert!(Instant::now() < deadline, "waited until {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
