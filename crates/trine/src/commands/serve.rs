//! `trine serve`

use std::path::Path;
use std::sync::{Arc, Once, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use trine_foreign::Host;
use trine_hub::{Pinned, get_pinned};
use trine_model::KvType;
use trine_server::{
    Fetch, FetchEnd, Fetched, Fetcher, ImageUrls, KEY_BYTES_WANTED, Keys, Limits, Loader,
    ServeError, Server, ServerOptions,
};
use trine_session::draft::Drafting;
use trine_session::embedded::Embedded;
use trine_session::library::ModelLibrary;
use trine_session::machine;
use trine_session::open_files;
use trine_session::serving::{Models, Names, served};
use trine_session::suiting;
use trine_session::tower::TowerRequest;

use super::top::fetch::is_trine;
use crate::callbacks;
use crate::cli::ServeArgs;
use crate::failure::usage;
use crate::interrupt::{self, Watch};
use crate::options;
use crate::settings::Settings;
use crate::{signals, terminal, terminal::output, traces};

/// The number of threads that serve connections; the models have their own.
const THREADS: usize = 2;
/// The default for the most disk space of prefixes.
const PREFIXES_BYTES: u64 = 10 << 30;
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
    settings.vision = TowerRequest::IfAny(args.tower.choice());
    let queue = args.queue as usize;
    let pooling = args.pooling.unwrap_or_default();
    let limit = args.prefix_cache_size.unwrap_or(PREFIXES_BYTES);
    if args.prefix_cache_dir.is_none() && args.prefix_cache_size.is_some() {
        return Err(usage("--prefix-cache-size needs --prefix-cache-dir"));
    }
    let prefixes = args.prefix_cache_dir.map(|folder| (folder, limit));
    // One draft model fits one model; of several, the others do without it.
    let (asked, download) = (options::drafting(set, &args.drafting), args.fetch.download());
    let drafting = Drafting::new(library, &asked, download, args.models.len() == 1)?;
    let drafting = drafting.check(&asked)?;
    let template = args.template.read()?;
    let loader = Models {
        template,
        drafting,
        sequences,
        pooling,
        prefixes,
        queue,
        shares_priorities: args.share_priorities,
        detail: callbacks::detail(verbose),
        ..Models::new(library.clone(), names, settings)
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
    tell(&server, &library, &default, has_tls, needs_key);
    if !needs_key {
        let names = names.iter().map(|name| format!("{name}, ")).collect::<String>();
        output::note(&format!(
            "answers to {names}localhost, addresses, names of three letters or more without a dot \
             and *.internal; --host-name adds a name"
        ));
    }
    server.run().await;
    Ok(())
}

/// Prints where the server is and how to use it, to standard error because no program needs to read
/// it.
fn tell(server: &Server, library: &ModelLibrary, model: &str, has_tls: bool, needs_key: bool) {
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
    if let Some(told) = suiting::about_demo(library, &model) {
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
                return Names::store((library, hub), default.transpose()?, &args.alias, open);
            }
            Err(error) => tracing::warn!(%error, "there is no model store; one model is served"),
        }
    }
    let usual = || library.model.as_deref().unwrap_or(Embedded::Demo.name()).to_owned();
    let models = if args.models.is_empty() { vec![usual()] } else { args.models.clone() };
    let served = models.iter().map(|model| open(model));
    Names::fixed(served.collect::<Result<_>>()?, &args.alias, open)
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
            "the limit on open files leaves room for {connections} connections at once, not \
             {wanted}; raise it, for example with `ulimit -n`, or set --connections"
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
            "{}: {} shorter than {KEY_BYTES_WANTED} characters and may be guessed; make longer \
             ones, for example with `openssl rand -hex 16`",
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
            "others than its owner may write {shown} (mode {mode:03o}), and so add keys of their \
             own: {remedy}"
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
