//! `trine serve`

use std::path::{Path, PathBuf};
use std::sync::{Arc, Once, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use trine_backend::placement::CONTEXT_USUAL;
use trine_engine::disk::{DiskStore, Folder, Origin};
use trine_engine::{Pooling, SamplingParams, Service};
use trine_foreign::Host;
use trine_hub::{Pinned, StoreEntry, get_pinned};
use trine_model::{KvType, Model};
use trine_server::{
    Description, Fetch, FetchEnd, Fetched, Fetcher, Files, Found, ImageUrls, KEY_BYTES_WANTED,
    Keys, Library, Limits, Listed, LoadError, LoadedModel, Loader, ModelSummary, Pictures,
    ServeError, Server, ServerOptions,
};
use trine_session::draft::{DraftFacts, Drafting};
use trine_session::embedded::Embedded;
use trine_session::fetch::Download;
use trine_session::library::ModelLibrary;
use trine_session::machine;
use trine_session::model_source::{Source, find};
use trine_session::open_files;
use trine_session::options::Options;
use trine_session::session::{PLACES_LEAST, Session, Sizes, formats};
use trine_session::suiting;
use trine_session::tower::Wish;
use trine_session::vocabulary::{TextSide, template};
use trine_text::ChatTemplate;

use super::serve_names::{Names, Served, Sources, digest, laid, served_name, stamp};
use super::top::fetch::is_trine;
use crate::callbacks;
use crate::cli::ServeArgs;
use crate::failure::{lacks_memory, message, usage};
use crate::interrupt::{self, Watch};
use crate::options;
use crate::settings::Settings;
use crate::{output, signals, terminal, traces};

/// The number of threads that serve connections; the models have their own.
const THREADS: usize = 2;
/// The most prompt tokens in a model's queue, in multiples of the context.
const QUEUE_CONTEXTS: usize = 64;
/// The default for the most disk space of prefixes.
const PREFIXES_BYTES: u64 = 10 << 30;
/// The most bytes of prefixes that wait to be written, unless a single prefix is larger.
const PREFIXES_WAITING: usize = 256 << 20;
/// The longest and the shortest time that the end of the program waits for work that nobody needs
/// any more.
const LEFTOVERS: Duration = Duration::from_secs(1);
const LEFTOVERS_LEAST: Duration = Duration::from_millis(50);
/// The largest file of keys, in bytes.
const KEYS_BYTES_MAX: u64 = 1 << 20;

/// Serves until a signal ends it.
///
/// # Errors
/// Returns an error if there is no such model, it cannot be loaded, or the address cannot be
/// listened on.
pub(crate) fn run(set: &Settings, args: ServeArgs, verbose: bool) -> Result<()> {
    let library = &set.library;
    let names = names(library, &args)?;
    let options = options(&args)?;
    let sequences = args.sequences.map(usize::from);
    let mut settings = options::chosen(set, &args.placement, KvType::F16);
    settings.vision = Wish::IfAny(args.tower.choice());
    let queue = args.queue as usize;
    let pooling = args.pooling.unwrap_or_default();
    let limit = args.prefix_cache_size.unwrap_or(PREFIXES_BYTES);
    if args.prefix_cache_dir.is_none() && args.prefix_cache_size.is_some() {
        return Err(usage("--prefix-cache-size needs --prefix-cache-dir"));
    }
    let prefixes = args.prefix_cache_dir.map(|folder| (folder, limit));
    // One draft model fits one model; of several, the others do without it.
    let (asked, download) = (args.drafting.options(set), args.fetch.download());
    let drafting = Drafting::new(library, &asked, download, args.models.len() == 1)?;
    let drafting = drafting.check(&asked)?;
    let template = args.template.read()?;
    let loader = Models {
        library: library.clone(),
        template,
        names,
        settings,
        drafting,
        sequences,
        pooling,
        prefixes,
        queue,
        shares_priorities: args.share_priorities,
        verbose,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(THREADS)
        .thread_name("http")
        .enable_all()
        .build()
        .context("the system gives no threads for the server")?;
    let end = Arc::new(OnceLock::new());
    let outcome = runtime.block_on(serve(options, Arc::new(loader), Arc::clone(&end)));
    let left =
        end.get().map_or(LEFTOVERS, |end: &Instant| end.saturating_duration_since(Instant::now()));
    runtime.shutdown_timeout(left.clamp(LEFTOVERS_LEAST, LEFTOVERS));
    outcome
}

/// Serves. Once a signal has come, `end` is set to the time by which the program has to end.
async fn serve(
    options: ServerOptions,
    loader: Arc<Models>,
    end: Arc<OnceLock<Instant>>,
) -> Result<()> {
    let default = loader.list()[0].name.clone();
    let library = loader.library.clone();
    let (has_tls, needs_key) = (options.tls.is_some(), options.keys.is_some());
    let names: Vec<String> = options.host_names.iter().map(Host::to_string).collect();
    let drain = options.limits.drain;
    let server = Server::bind(options, loader).await.map_err(|error| match error {
        ServeError::NoKeys { .. } => usage(error.to_string()),
        ServeError::Listen { taken: Some(address), .. } if is_trine(address) => anyhow!(
            "{error}. It is a trine server that uses it: open http://{address}/ in a browser"
        ),
        error => anyhow!(error),
    })?;
    let handle = server.handle();
    watch_signals(move || {
        let latest = *end.get_or_init(|| Instant::now() + drain);
        traces::end_by(latest);
        handle.drain();
    })?;
    // From here on the server listens, so the first Ctrl-C no longer ends the program directly.
    let _watch = Watch::new();
    server.preload().await.map_err(|problem| anyhow!(problem))?;
    tell(&server, &library.all_here(), &default, has_tls, needs_key);
    if !needs_key {
        let names = names.iter().map(|name| format!("{name}, ")).collect::<String>();
        output::note(&format!(
            "answers to {names}localhost, addresses, names without a dot and *.internal; --host-name adds a name"
        ));
    }
    server.run().await;
    Ok(())
}

/// Prints where the server is and how to use it, to standard error because no program needs to read
/// it.
fn tell(server: &Server, here: &[StoreEntry], model: &str, has_tls: bool, needs_key: bool) {
    let scheme = if has_tls { "https" } else { "http" };
    let address = server.address();
    let url = format!("{scheme}://{address}");
    let key = if needs_key { ", with `Authorization: Bearer KEY`" } else { "" };
    let model = terminal::harmless(model);
    output::remark(format_args!("serving {model} at {url}"));
    // A server that listens on all addresses cannot be reached under the unspecified address.
    let own = match address.ip().is_unspecified() {
        true => format!("{scheme}://localhost:{}", address.port()),
        false => url.clone(),
    };
    output::remark(format_args!("Chat in your browser: {own}/"));
    output::remark(format_args!("For programs: {own}/v1 (OpenAI), {own} (Anthropic, Ollama){key}"));
    if let Some(told) = suiting::about_demo(&model, here) {
        output::remark(told);
    }
    output::remark("Ctrl-C ends the server.");
}

/// Makes the first signal drain the server and the second end the program.
fn watch_signals(drain: impl Fn() + Send + Sync + 'static) -> Result<()> {
    let once = Once::new();
    let first = Arc::new(move || {
        once.call_once(|| {
            output::remark("finishing running requests; press Ctrl-C again to quit now");
            drain();
        });
    });
    // A Ctrl-C that came before the signals are watched is told by its own handler only.
    let pressed = Arc::clone(&first);
    interrupt::call(move || pressed());
    #[cfg(unix)]
    {
        use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
        signals::watch(&[SIGTERM, SIGHUP, SIGINT], move |_| first())
    }
    #[cfg(windows)]
    signals::watch(move || first())
}

/// Returns the names by which clients ask for models.
fn names(library: &ModelLibrary, args: &ServeArgs) -> Result<Names> {
    let open = |model: &str| served(library, model, args.fetch.download());
    if args.models.is_empty() {
        match library.hub() {
            Ok(hub) => {
                let default = library.model.as_deref().map(open);
                return Names::store(hub, default.transpose()?, &args.alias, open);
            }
            Err(error) => tracing::warn!(%error, "there is no model store; one model is served"),
        }
    }
    let usual = || library.model.as_deref().unwrap_or(Embedded::Demo.name()).to_owned();
    let models = if args.models.is_empty() { vec![usual()] } else { args.models.clone() };
    let served = models.iter().map(|model| open(model));
    Names::fixed(served.collect::<Result<_>>()?, &args.alias, open)
}

/// Returns the model that an argument names. A preset has its own name, and `model` is the name of
/// the model that it is based on.
fn served(library: &ModelLibrary, typed: &str, download: Download) -> Result<Served> {
    let chosen = find(library, Some(typed), download)?;
    let model = served_name(&chosen.source);
    let preset = chosen.preset.as_ref();
    let name = match (preset, &chosen.source) {
        (Some(preset), _) => preset.name.clone(),
        (None, Source::Local(local)) => local.short.clone(),
        (None, _) => model.clone(),
    };
    let laid = preset.map(|preset| Arc::new(laid(preset)));
    Ok(Served { name, model, source: chosen.source, laid })
}

fn options(args: &ServeArgs) -> Result<ServerOptions> {
    let keys = args.api_key_file.as_deref().map(read_keys).transpose()?;
    // One of them may be typed and the other one set.
    let tls = match (&args.tls_cert, &args.tls_key) {
        (Some(chain), Some(key)) => Some((chain.clone(), key.clone())),
        (None, None) => None,
        _ => return Err(usage("TLS needs a certificate and its key: --tls-cert and --tls-key")),
    };
    let (wanted, reserve) = (args.connections as usize, Limits::default().reserve);
    let connections =
        open_files::connections(wanted, reserve).map_err(|problem| anyhow!(problem))?;
    if connections < wanted {
        output::warning(format_args!(
            "the limit on open files leaves room for {connections} connections at once, not {wanted}; raise it, for example \
             with `ulimit -n`, or set --connections"
        ));
    }
    let limits = Limits {
        body_bytes: args.body_limit.saturating_mul(1 << 20),
        bodies_bytes: Limits::default().bodies_bytes.max(args.body_limit.saturating_mul(1 << 21)),
        connections,
        waiters: args.queue as usize,
        request: args.request_seconds.map(|seconds| Duration::from_secs(seconds.into())),
        drain: Duration::from_secs(args.drain_seconds.into()),
        ..Limits::default()
    };
    Ok(ServerOptions {
        host: args.host.clone(),
        port: args.port,
        keys,
        shares_prefixes: args.share_prefixes,
        allows_no_keys: args.insecure_no_auth,
        tls,
        origins: args.origin.clone(),
        host_names: host_names(args),
        keep_alive: args.keep_alive.unwrap_or_default(),
        memory_budget: args.memory,
        image_urls: (!args.allow_image_urls.is_empty()).then(|| ImageUrls {
            hosts: args.allow_image_urls.clone(),
            fetcher: Arc::new(Fetching),
        }),
        trace_parent: Some(traces::follow),
        limits,
    })
}

/// Returns the names that a server without keys answers to, besides those that every one does.
fn host_names(args: &ServeArgs) -> Vec<Host> {
    let machine = machine::host_name().and_then(|name| Host::literal(&name));
    let mut names: Vec<Host> = machine.into_iter().chain(args.host_name.iter().cloned()).collect();
    names.dedup();
    names
}

fn read_keys(path: &Path) -> Result<Keys> {
    let fail = || {
        let path = path.display();
        format!("cannot read the keys of {path}; check the path and its permissions")
    };
    let facts = std::fs::metadata(path).with_context(fail)?;
    let size = facts.len();
    check_mode(path, &facts)?;
    if size > KEYS_BYTES_MAX {
        return Err(anyhow!("{} has {size} bytes; it cannot be a file of keys", path.display()));
    }
    let text = std::fs::read_to_string(path).with_context(fail)?;
    let keys = Keys::parse(&text).map_err(|problem| anyhow!("{}: {problem}", path.display()))?;
    let short = keys.short();
    if short > 0 {
        output::warning(format_args!(
            "{}: {} shorter than {KEY_BYTES_WANTED} characters and may be guessed; make longer ones, for example with \
             `openssl rand -hex 16`",
            path.display(),
            if short == 1 { "a key is".to_owned() } else { format!("{short} keys are") },
        ));
    }
    Ok(keys)
}

/// Checks who may write and read a file of keys.
#[cfg(unix)]
fn check_mode(path: &Path, facts: &std::fs::Metadata) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let mode = facts.permissions().mode() & 0o777;
    let shown = path.display();
    let remedy = format!("chmod 600 {shown}");
    if mode & 0o022 != 0 {
        return Err(anyhow!(
            "others than its owner may write {shown} (mode {mode:03o}), and so add keys of their own: {remedy}"
        ));
    }
    // A group is how a service gets its keys.
    if mode & 0o004 != 0 {
        output::warning(format_args!(
            "everybody on this machine may read the keys of {shown} (mode {mode:03o}): {remedy}"
        ));
    }
    Ok(())
}

#[cfg(not(unix))]
fn check_mode(_: &Path, _: &std::fs::Metadata) -> Result<()> {
    Ok(())
}

/// Fetches pictures for the server.
#[derive(Debug)]
struct Fetching;

impl Fetcher for Fetching {
    fn get(&self, request: &Fetch, end: &FetchEnd) -> Result<Fetched, String> {
        let Fetch { url, addresses, bytes, time } = request;
        Ok(match get_pinned(url, addresses, *bytes, *time, |stop| end.then(stop))? {
            Pinned::Body(body) => Fetched::Body(body),
            Pinned::TooLarge => Fetched::TooLarge,
            Pinned::Redirect(place) => Fetched::Redirect(place),
        })
    }
}

/// Opens models for the server.
struct Models {
    library: ModelLibrary,
    names: Names,
    /// The chat template of all models, in place of their own.
    template: Option<ChatTemplate>,
    settings: Options,
    /// What guesses tokens.
    drafting: Drafting,
    /// Requests that a model runs at once, if that was chosen.
    sequences: Option<usize>,
    /// How texts are embedded.
    pooling: Pooling,
    /// The folder for prefixes that memory has no room for, and how many bytes they may take there.
    prefixes: Option<(PathBuf, u64)>,
    /// The most requests that wait in the queue.
    queue: usize,
    /// Whether priorities count across clients.
    shares_priorities: bool,
    verbose: bool,
}

/// Makes an engine keep prefixes in a folder.
///
/// # Errors
/// Returns an error if its device does not export the KV cache, or the folder cannot be used.
fn keep_prefixes(session: &mut Session, folder: &Path, limit: u64) -> Result<()> {
    let origin = Origin::new(session.model.fingerprint(), session.engine.program().facts());
    let origin = origin.ok_or_else(|| anyhow!("{} does not give its KV cache", session.device))?;
    let store = DiskStore::start(Folder::open(folder, limit)?, PREFIXES_WAITING)
        .with_context(|| format!("the folder {} cannot be read", folder.display()))?;
    session.engine.set_page_store(Box::new(store), origin);
    Ok(())
}

impl Models {
    fn source(&self, model: &str) -> Result<Source> {
        self.names.sources().of(model).ok_or_else(|| gone(model))
    }

    fn looked_at(&self) -> LookedAt<'_> {
        LookedAt { models: self, sources: self.names.sources() }
    }

    fn summarised(&self, source: &Source) -> Result<ModelSummary> {
        let opened = source.open(self.settings.quantize)?;
        let opened = self.settings.vision.fulfil_silently(source, opened)?;
        let most = opened.config().context;
        let served = self.settings.context.map_or(most, |context| context.min(most));
        let own = self.template.clone();
        let template = own.map_or_else(|| template(opened.checkpoint()), |own| Ok(Some(own)))?;
        Ok(ModelSummary {
            description: Description { served, ..described(&opened) },
            template: template.map(|template| template.source().to_owned()),
        })
    }

    fn open(&self, name: &str) -> Result<LoadedModel> {
        let source = self.source(name)?;
        let (library, settings) = (&self.library, &self.settings);
        let sizes = Sizes::serving(self.sequences);
        let drafting = &self.drafting;
        let mut session =
            Session::open_with(library, &source, settings, sizes, drafting, |program| program)?;
        let tokens = session.engine.context().saturating_mul(QUEUE_CONTEXTS);
        session.engine.set_queue(self.queue, tokens);
        session.engine.share_priorities(self.shares_priorities);
        if let Some((folder, limit)) = &self.prefixes
            && let Err(error) = keep_prefixes(&mut session, folder, *limit)
        {
            tracing::warn!("no prefixes are kept on disk: {error:#}");
        }
        let defaults = session.model.defaults().clone();
        let text = TextSide::read(
            session.model.checkpoint(),
            &defaults.stop_ids,
            true,
            self.template.clone(),
        )?;
        callbacks::tell(&session, self.verbose);
        let program = session.engine.program();
        let memory = program.memory();
        let draft = session.draft.take();
        let (draft_bytes, draft_gpu_bytes) = draft.as_ref().map_or((0, 0), DraftFacts::beside);
        let vision = session.vision.as_ref();
        // It is set aside for the tower from the start.
        let vision_bytes = vision.map_or(0, |vision| vision.memory.total());
        let bytes = memory.total() + draft_bytes + vision_bytes;
        let reduced = Reduced {
            device: &session.device,
            sequences: (self.sequences, session.engine.limits().sequences),
            context: (session.model.config().context, session.engine.context()),
            is_context_chosen: self.settings.context.is_some(),
            most_context: session.most_context,
            kv: self.settings.kv,
            kv_memory: self.settings.kv_memory,
            caches: memory.caches,
            taking: draft
                .as_ref()
                .and_then(|draft| draft.taking(program.facts().has_layers_on_gpus())),
        };
        // Chosen contexts are as short as they are whatever others hold.
        let is_short = self.settings.context.is_none()
            && session.engine.context() < session.model.config().context.min(CONTEXT_USUAL);
        reduced.lines().iter().for_each(|line| output::note(line));
        if let (Some(npu), Some(asked)) = (&session.npu, &self.settings.npu) {
            output::note(&format!("{}, for prompts; share: {}", npu.name(), asked.share));
        }
        let description = Description {
            device: session.device.clone(),
            gpu_bytes: program.facts().gpu_bytes(&memory)
                + draft_gpu_bytes
                + vision.filter(|vision| vision.is_on_gpu).map_or(0, |_| vision_bytes),
            draft: draft
                .map(|draft| served_name(&draft.source))
                .or_else(|| self.drafting.lookup_name()),
            sees: vision.is_some(),
            served: session.engine.context(),
            ..described(&session.model)
        };
        let service = Service::start(session.engine).context("the system gives no thread")?;
        Ok(LoadedModel {
            sampling: SamplingParams {
                suppressed: text.tokenizer.suppressed_ids().into(),
                ..SamplingParams::from_defaults(&defaults, 0)
            },
            grammars: trine_server::grammar_cache(&text.tokenizer),
            tokenizer: text.tokenizer,
            template: text.template,
            pooling: self.pooling,
            pictures: session
                .vision
                .map(|vision| Pictures { preparation: vision.preparation, tower: vision.tower }),
            service,
            description,
            bytes,
            is_short,
        })
    }
}

/// What a model got of what it could have, to say where it is less, and why.
#[cfg_attr(test, derive(Clone))]
struct Reduced<'a> {
    device: &'a str,
    /// Sequences at once: asked for, if somebody did, and those that run.
    sequences: (Option<usize>, usize),
    /// Positions: those of the model, and those that are served.
    context: (usize, usize),
    /// Whether the context was asked for.
    is_context_chosen: bool,
    /// Most positions that the device computes, whatever its memory.
    most_context: Option<usize>,
    kv: KvType,
    /// The most bytes for keys and values, if that is set.
    kv_memory: Option<u64>,
    /// The bytes that they take.
    caches: u64,
    /// What a draft model takes of the device's memory, in words, if it takes something.
    taking: Option<String>,
}

impl Reduced<'_> {
    /// Returns a line for the context, with what limited it, and one for the sequences if nobody
    /// chose their number, or if fewer run, with the reason and what helps.
    fn lines(&self) -> Vec<String> {
        // What is left of a limit that decided is less than what was taken.
        let budget = self.kv_memory.filter(|&budget| budget < 2 * self.caches);
        let (limit, more) = match budget {
            Some(budget) => (format!("--kv-memory {}", output::bytes(budget)), "more of it"),
            None => (format!("the free memory of {}", terminal::harmless(self.device)), ""),
        };
        // What a draft model takes does not count against a limit that is set.
        let taking = self.taking.as_ref().filter(|_| budget.is_none());
        let taking = taking.map_or(String::new(), |taking| format!("; {taking}"));
        let smaller = if self.kv == KvType::Int8 { "" } else { "--kv int8" };
        let remedies = |others: &[&str]| {
            let all = [&[more, smaller], others].concat();
            all.into_iter().filter(|remedy| !remedy.is_empty()).collect::<Vec<_>>().join(" or ")
        };
        let mut lines = Vec::new();
        let (chosen, running) = self.sequences;
        let asked = chosen.unwrap_or(PLACES_LEAST);
        if running < asked {
            let (asked, run) =
                (output::counted(asked, "request"), if running == 1 { "runs" } else { "run" });
            lines.push(format!(
                "{running} of {asked} {run} at once: {limit} has room for no more; {} makes room, others wait{taking}",
                remedies(&["a shorter --context"])
            ));
        }
        if running >= asked && chosen.is_none() {
            lines.push(format!(
                "up to {} at once, as suits the device and its memory: --sequences chooses another number",
                output::counted(running, "request")
            ));
        }
        let (models, context) = self.context;
        let reason = match self.most_context {
            _ if self.is_context_chosen => "that was asked for".to_owned(),
            _ if context == models => "all that the model has".to_owned(),
            Some(most) if context == most => {
                format!("{} computes no more", terminal::harmless(self.device))
            }
            _ => format!(
                "{limit} has room for no more of the model's {models}; {} makes room{taking}",
                remedies(&["a smaller model"])
            ),
        };
        lines.push(format!("the context is {context} tokens: {reason}"));
        lines
    }
}

fn described(model: &Model) -> Description {
    let weights = model.base_plan().weights;
    Description {
        family: model.config().family.name().to_owned(),
        formats: formats(model),
        parameters: weights.iter().map(|weight| (weight.rows * weight.columns) as u64).sum(),
        context: model.config().context,
        hidden: model.config().hidden,
        sees: model.tower().is_some(),
        ..Description::default()
    }
}

fn gone(model: &str) -> anyhow::Error {
    anyhow!("there is no model {model} any more")
}

/// The files of models as they are at one time.
struct LookedAt<'a> {
    models: &'a Models,
    sources: Sources<'a>,
}

impl Files for LookedAt<'_> {
    fn stamp(&self, model: &str) -> u64 {
        self.sources.of(model).map_or(0, |source| stamp(&source))
    }

    fn digest(&self, model: &str) -> String {
        self.sources.of(model).map_or_else(String::new, |source| digest(&source))
    }

    fn summary(&self, model: &str) -> Result<ModelSummary, String> {
        let source = self.sources.of(model).ok_or_else(|| gone(model));
        let summary = source.and_then(|source| self.models.summarised(&source));
        summary.map_err(|error| message(&error).unwrap_or_default())
    }
}

impl Files for Models {
    fn stamp(&self, model: &str) -> u64 {
        self.looked_at().stamp(model)
    }

    fn digest(&self, model: &str) -> String {
        self.looked_at().digest(model)
    }

    fn summary(&self, model: &str) -> Result<ModelSummary, String> {
        self.looked_at().summary(model)
    }
}

impl Loader for Models {
    fn list(&self) -> Vec<Listed> {
        self.names.list()
    }

    fn find(&self, name: &str) -> Result<Option<Found>, String> {
        let mut found = self.names.find(name)?;
        if let (Some(found), Some(_)) = (&mut found, &self.template) {
            // The option comes before the preset.
            Arc::make_mut(&mut found.preset).template = None;
        }
        Ok(found)
    }

    fn bytes(&self, model: &str) -> u64 {
        self.names.sources().of(model).map_or(0, |source| source.file_bytes())
    }

    fn files(&self) -> Option<Box<dyn Files + '_>> {
        Some(Box::new(self.looked_at()))
    }

    fn load(&self, model: &str) -> Result<LoadedModel, LoadError> {
        self.open(model).map_err(|error| LoadError {
            lacks_memory: lacks_memory(&error),
            message: message(&error).unwrap_or_default(),
        })
    }

    fn library(&self) -> Option<&dyn Library> {
        self.names.library()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_less_than_asked_for_is_said_with_what_helps() {
        let full = Reduced {
            device: "gpu",
            sequences: (Some(8), 8),
            context: (8192, 8192),
            is_context_chosen: false,
            most_context: None,
            kv: KvType::F16,
            kv_memory: Some(1 << 30),
            caches: 1 << 30,
            taking: None,
        };
        let whole = "the context is 8192 tokens: all that the model has";
        assert_eq!(full.lines(), [whole]);
        let taking = Some("the draft takes 3 MB".to_owned());
        let with_draft = || Reduced { taking: taking.clone(), ..full.clone() };
        assert_eq!(with_draft().lines(), [whole]);
        let lines = Reduced { sequences: (Some(8), 2), ..with_draft() }.lines();
        assert_eq!(
            lines,
            [
                "2 of 8 requests run at once: --kv-memory 1.1 GB has room for no more; more of it or --kv int8 or a \
              shorter --context makes room, others wait",
                whole
            ]
        );
        // Where the budget is not reached, the device is what is full.
        let lines =
            Reduced { sequences: (Some(8), 1), kv: KvType::Int8, caches: 1 << 20, ..full.clone() }
                .lines();
        assert_eq!(
            lines,
            [
                "1 of 8 requests runs at once: the free memory of gpu has room for no more; a shorter --context makes \
              room, others wait",
                whole
            ]
        );
        let lines = Reduced { sequences: (None, 1), caches: 1 << 20, ..with_draft() }.lines();
        assert!(lines[0].ends_with("others wait; the draft takes 3 MB"), "{lines:?}");
        let lines = Reduced { context: (8192, 2048), kv_memory: None, ..with_draft() }.lines();
        assert_eq!(
            lines,
            [
                "the context is 2048 tokens: the free memory of gpu has room for no more of the model's 8192; --kv int8 \
              or a smaller model makes room; the draft takes 3 MB"
            ]
        );
        let open = Reduced { sequences: (None, 64), ..full.clone() };
        let said = "up to 64 requests at once, as suits the device and its memory: --sequences chooses another number";
        assert_eq!(open.lines(), [said, whole]);
        let chosen = Reduced { context: (8192, 2048), is_context_chosen: true, ..full.clone() };
        assert_eq!(chosen.lines(), ["the context is 2048 tokens: that was asked for"]);
        let bounded = Reduced { context: (8192, 2048), most_context: Some(2048), ..full.clone() };
        assert_eq!(bounded.lines(), ["the context is 2048 tokens: gpu computes no more"]);
    }
}
