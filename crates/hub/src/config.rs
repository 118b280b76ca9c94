//! The settings of the hub. In this crate only this module reads the environment.

use std::ffi::OsString;
use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use etcetera::BaseStrategy;

use crate::error::HubError;
use crate::local::Origin;

/// The public Hugging Face Hub.
pub(crate) const DEFAULT_ENDPOINT: &str = "https://huggingface.co";
/// The longest accepted access token in bytes.
const LONGEST_TOKEN: usize = 4096;

/// An access token. Its debug form does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// Takes a token without the white space around it; returns `None` if nothing is left.
    ///
    /// # Errors
    /// [`HubError::InvalidSetting`] if it contains a character that an HTTP header may not contain.
    pub fn new(text: &str, setting: &'static str) -> Result<Option<Self>, HubError> {
        let text = text.trim();
        if text.is_empty() {
            return Ok(None);
        }
        if text.len() > LONGEST_TOKEN || !text.bytes().all(|b| b.is_ascii_graphic()) {
            let reason = "it is not an access token (letters, digits and signs, no spaces); \
                          copy it again from your account's settings"
                .to_owned();
            return Err(HubError::InvalidSetting { setting, reason });
        }
        Ok(Some(Token(text.to_owned())))
    }

    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// Judges a model by the beginning of one of its files: `config.json` for a folder, else a GGUF
/// file. The error is the reason why the model cannot be run; nothing of it is downloaded then. A
/// beginning that does not show what the model is must not be an error.
pub type Judge = fn(file: &str, beginning: &[u8]) -> Result<(), String>;

/// Everything that the hub needs to know. [`HubConfig::from_env`] fills it for the binary; tests
/// and other programs start from [`HubConfig::new`].
#[derive(Debug, Clone)]
pub struct HubConfig {
    /// The server, e.g. `https://huggingface.co`, without a final slash. Plain `http` must be named
    /// explicitly.
    pub endpoint: String,
    /// The access token for gated and private repositories. Sent only to the endpoint, and over
    /// plain `http` only to this machine itself.
    pub token: Option<Token>,
    /// The root of the model store. Created when something is pulled.
    pub store: PathBuf,
    /// The root of the Hugging Face cache (`.../hub`), which is only read.
    pub hugging_face_cache: Option<PathBuf>,
    /// The folders of models of other programs, which are only read.
    pub neighbours: Vec<(Origin, PathBuf)>,
    /// Names that mean something else than a model of another program, as presets do.
    pub reserved: Vec<String>,
    /// Whether never to connect: `pull` then fails with [`HubError::Offline`] unless the model is
    /// here.
    pub offline: bool,
    /// The longest time for resolving a name, and for connecting.
    pub connect_timeout: Duration,
    /// The longest silence of the server before the connection counts as broken.
    pub read_timeout: Duration,
    /// The number of repetitions after a failure that brought no progress.
    pub retries: u32,
    /// The pause before the first repetition; doubles each time.
    pub backoff: Duration,
    /// The longest pause, even if the server asks for more.
    pub longest_pause: Duration,
    /// Judges a model before it is downloaded. Without a judge every model is downloaded.
    pub judge: Option<Judge>,
    /// Judges the file of a vision tower before it is downloaded. A model is pulled without one
    /// that cannot be run.
    pub judge_tower: Option<Judge>,
    /// Says whether the beginning of a file of this name has its whole header. Without it, as much
    /// is read as a header may have.
    pub holds_header: Option<fn(&str, &[u8]) -> bool>,
    /// Whether a GGUF model is pulled with the file of its vision tower.
    pub mmproj: bool,
    /// The proxy from the environment.
    proxy: Option<ureq::Proxy>,
}

impl HubConfig {
    /// Makes settings for the public Hub with a store at `store`, no token, no cache and no proxy.
    pub fn new(store: impl Into<PathBuf>) -> Self {
        HubConfig {
            endpoint: DEFAULT_ENDPOINT.to_owned(),
            token: None,
            store: store.into(),
            hugging_face_cache: None,
            neighbours: Vec::new(),
            reserved: Vec::new(),
            offline: false,
            connect_timeout: Duration::from_secs(15),
            read_timeout: Duration::from_secs(60),
            retries: 4,
            backoff: Duration::from_millis(500),
            longest_pause: Duration::from_secs(60),
            judge: None,
            judge_tower: None,
            holds_header: None,
            mmproj: true,
            proxy: None,
        }
    }

    /// Reads `TRINE_HOME`, `XDG_DATA_HOME`, `HF_ENDPOINT`, `HF_TOKEN`, `HF_TOKEN_PATH`, `HF_HOME`,
    /// `HF_HUB_CACHE`, `HF_HUB_OFFLINE`, `OLLAMA_MODELS`, `LLAMA_CACHE`, the token file of the
    /// Hugging Face cache and the usual
    /// proxy variables. Without `TRINE_HOME` the store is at `store`, or, if that is `None`, in the
    /// user's data folder.
    ///
    /// # Errors
    /// [`HubError::InvalidSetting`] if a variable cannot be used, or if there is neither
    /// `TRINE_HOME` nor a home folder.
    pub fn from_env(store: Option<PathBuf>) -> Result<Self, HubError> {
        let strategy = etcetera::choose_base_strategy().ok();
        let home = strategy.as_ref().map(|s| s.home_dir().to_owned());
        // Windows may copy the other data folder to every machine on which the user works.
        let data =
            strategy.as_ref().map(|s| if cfg!(windows) { s.cache_dir() } else { s.data_dir() });
        let default = store.or_else(|| data.map(|data| data.join("trine").join("models")));
        let mut config = Self::from_lookup(&|name| std::env::var_os(name), home, default)?;
        config.proxy = ureq::Proxy::try_from_env();
        Ok(config)
    }

    /// Does the same as [`HubConfig::from_env`] over any source of variables. An empty variable
    /// counts as unset.
    fn from_lookup(
        lookup: &dyn Fn(&str) -> Option<OsString>,
        home: Option<PathBuf>,
        default: Option<PathBuf>,
    ) -> Result<Self, HubError> {
        let path = |name: &str| lookup(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        let text = |name: &'static str| match path(name) {
            None => Ok(None),
            Some(value) => value.to_str().map(|v| Some(v.to_owned())).ok_or_else(|| {
                HubError::InvalidSetting { setting: name, reason: "it is not text".to_owned() }
            }),
        };
        let store = path("TRINE_HOME").or(default).ok_or_else(|| HubError::InvalidSetting {
            setting: "the folder of downloaded models",
            reason: "there is no home folder; set TRINE_HOME to a folder for models".to_owned(),
        })?;
        let mut config = HubConfig::new(store);
        if let Some(endpoint) = text("HF_ENDPOINT")? {
            config.endpoint = endpoint;
        }
        let cache_home = path("XDG_CACHE_HOME")
            .filter(|p| p.is_absolute())
            .or_else(|| home.as_ref().map(|home| home.join(".cache")));
        config.neighbours = neighbours(&path, home.as_deref(), cache_home.as_deref());
        let hugging_face =
            path("HF_HOME").or_else(|| cache_home.map(|cache| cache.join("huggingface")));
        config.hugging_face_cache = path("HF_HUB_CACHE")
            .or_else(|| path("HUGGINGFACE_HUB_CACHE"))
            .or_else(|| hugging_face.as_ref().map(|root| root.join("hub")));
        config.offline = text("HF_HUB_OFFLINE")?.is_some_and(|value| {
            matches!(value.to_ascii_lowercase().as_str(), "1" | "true" | "yes" | "on")
        });
        config.token = match text("HF_TOKEN")? {
            Some(token) => Token::new(&token, "HF_TOKEN")?,
            None => None,
        };
        if config.token.is_none() {
            let file =
                path("HF_TOKEN_PATH").or_else(|| hugging_face.map(|root| root.join("token")));
            config.token = file.as_deref().and_then(token_from_file);
        }
        Ok(config)
    }

    pub(crate) fn proxy(&self) -> Option<&ureq::Proxy> {
        self.proxy.as_ref()
    }
}

/// Returns the folders in which other programs keep models, whether they exist or not.
fn neighbours(
    path: &dyn Fn(&str) -> Option<PathBuf>,
    home: Option<&Path>,
    cache_home: Option<&Path>,
) -> Vec<(Origin, PathBuf)> {
    let mut places = Vec::new();
    match path("OLLAMA_MODELS") {
        Some(models) => places.push((Origin::Ollama, models)),
        None => {
            places.extend(home.map(|home| (Origin::Ollama, home.join(".ollama").join("models"))));
            // The user of its service on Linux.
            if cfg!(target_os = "linux") {
                places.push((Origin::Ollama, PathBuf::from("/usr/share/ollama/.ollama/models")));
            }
        }
    }
    for folder in [".lmstudio/models", ".cache/lm-studio/models"] {
        places.extend(home.map(|home| (Origin::LmStudio, home.join(folder))));
    }
    let llama = path("LLAMA_CACHE").or_else(|| match () {
        () if cfg!(target_os = "macos") => Some(home?.join("Library/Caches/llama.cpp")),
        () if cfg!(windows) => Some(path("LOCALAPPDATA")?.join("llama.cpp")),
        () => Some(cache_home?.join("llama.cpp")),
    });
    places.extend(llama.map(|folder| (Origin::LlamaCpp, folder)));
    places
}

/// Returns the token in a file. A file that cannot be read or contains no token is logged and
/// otherwise ignored: most models need none.
fn token_from_file(path: &Path) -> Option<Token> {
    // Opening a pipe would wait for its other end.
    if !std::fs::metadata(path).ok()?.is_file() {
        return None;
    }
    let file = std::fs::File::open(path).ok()?;
    let mut text = String::new();
    let limit = LONGEST_TOKEN as u64 + 64;
    let read = file.take(limit).read_to_string(&mut text);
    match read
        .map_err(|e| e.to_string())
        .and_then(|_| Token::new(&text, "the token file").map_err(|error| error.to_string()))
    {
        Ok(token) => token,
        Err(reason) => {
            tracing::warn!(path = %path.display(), reason,
                "the Hugging Face token file is ignored");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn config(pairs: &[(&str, &str)], home: Option<&Path>) -> Result<HubConfig, HubError> {
        let map: HashMap<String, OsString> =
            pairs.iter().map(|(k, v)| (k.to_string(), OsString::from(v))).collect();
        HubConfig::from_lookup(
            &|name| map.get(name).cloned(),
            home.map(Path::to_owned),
            home.map(|home| home.join(".local/share/trine/models")),
        )
    }

    #[test]
    fn defaults_and_overrides() {
        let home = Path::new("/nonexistent/home");
        let plain = config(&[], Some(home)).unwrap();
        assert_eq!(plain.endpoint, DEFAULT_ENDPOINT);
        assert_eq!(plain.store, home.join(".local/share/trine/models"));
        assert_eq!(plain.hugging_face_cache, Some(home.join(".cache/huggingface/hub")));
        assert!(plain.token.is_none() && !plain.offline);

        let set = config(
            &[
                ("TRINE_HOME", "/models"),
                ("HF_ENDPOINT", "https://mirror.example"),
                ("HF_TOKEN", " hf_abc\n"),
                ("HF_HOME", "/hf"),
                ("HF_HUB_OFFLINE", "1"),
            ],
            None,
        )
        .unwrap();
        assert_eq!(set.store, Path::new("/models"));
        assert_eq!(set.endpoint, "https://mirror.example");
        assert_eq!(set.hugging_face_cache.as_deref(), Some(Path::new("/hf/hub")));
        assert!(set.offline);
        assert_eq!(set.token.as_ref().unwrap().reveal(), "hf_abc");
        assert!(!format!("{set:?}").contains("hf_abc"), "the debug form must not show the token");
        let hub_cache = config(&[("HF_HUB_CACHE", "/c"), ("HF_HOME", "/hf")], Some(home)).unwrap();
        assert_eq!(hub_cache.hugging_face_cache.as_deref(), Some(Path::new("/c")));
    }

    #[cfg(windows)]
    #[test]
    fn the_store_stays_on_this_machine() {
        let store = HubConfig::from_env(None).unwrap().store;
        assert!(store.ends_with("AppData/Local/trine/models"), "{store:?}");
    }

    #[test]
    fn what_cannot_be_used_is_said() {
        assert!(config(&[], None).unwrap_err().to_string().contains("TRINE_HOME"));
        let error = config(&[("HF_TOKEN", "a b"), ("TRINE_HOME", "/m")], None).unwrap_err();
        assert!(error.to_string().contains("HF_TOKEN"), "{error}");
        assert!(Token::new("a\r\nX-Evil: 1", "HF_TOKEN").is_err());
    }

    #[test]
    fn token_file_is_read_and_the_variable_wins() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("token"), "hf_file\n").unwrap();
        let home = folder.path().to_str().unwrap();
        let base = [("TRINE_HOME", "/m"), ("HF_HOME", home)];
        let from_file = config(&base, None).unwrap();
        assert_eq!(from_file.token.unwrap().reveal(), "hf_file");
        let both = config(&[base[0], base[1], ("HF_TOKEN", "hf_variable")], None).unwrap();
        assert_eq!(both.token.unwrap().reveal(), "hf_variable");
        std::fs::write(folder.path().join("token"), [0xff, 0xfe, 0]).unwrap();
        assert!(config(&base, None).unwrap().token.is_none());
    }
}
