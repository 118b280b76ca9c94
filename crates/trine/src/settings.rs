//! The values that apply if nothing was typed: from the environment, then from one TOML file, then
//! the defaults.
//!
//! The file is `trine/config.toml` in the user's folder for configuration, or the one that
//! `TRINE_CONFIG` names. Every value keeps its origin, which `trine config` prints. [`keys`] lists
//! what can be set.

use std::ffi::OsString;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use clap::{ArgMatches, Args, Command, CommandFactory, FromArgMatches, Parser};
use etcetera::BaseStrategy;
use toml::Spanned;
use toml::de::{DeTable, DeValue};
use trine_engine::SamplingParams;

use crate::callbacks::CommandLine;
use crate::cli::{DraftArgs, Placement, SamplingArgs, ServeArgs, ServerArgs};
use crate::terminal;
use crate::terminal::output;

mod keys;

pub(crate) use keys::{KEYS, Key};
use keys::{OptionGroup, SettingKind};
use trine_session::library::ModelLibrary;

/// The variable that names the file.
const FILE_VARIABLE: &str = "TRINE_CONFIG";
/// The largest file that is read, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The origin of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A variable of the environment.
    Environment(String),
    /// A line of the file, from 1.
    File(usize),
}

/// A setting with its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Value {
    /// The setting.
    pub(crate) key: &'static Key,
    /// The value as it would be typed; several if the option can be repeated.
    pub(crate) texts: Vec<String>,
    /// The origin of the value.
    pub(crate) origin: Origin,
}

/// All values that are set.
#[derive(Debug, Clone, Default)]
pub(crate) struct Settings {
    /// The path of the file; `None` if there is no folder for it.
    pub(crate) file: Option<PathBuf>,
    /// Whether the file exists.
    pub(crate) is_there: bool,
    /// Where models are found, and a command line that is told of them.
    pub(crate) library: ModelLibrary,
    values: Vec<Value>,
    placement: Placement,
    sampling: SamplingArgs,
    drafts: DraftArgs,
}

/// A command for checking the values of options of `run`.
#[derive(Debug, Parser)]
struct RunProbe {
    #[command(flatten)]
    placement: Placement,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    drafts: DraftArgs,
}

impl Settings {
    /// Reads the environment and the file.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, or something in it or in the environment cannot
    /// be used; the message names the place.
    pub(crate) fn read() -> Result<Self> {
        let strategy = etcetera::choose_base_strategy().ok();
        let home = strategy.as_ref().map(|strategy| strategy.home_dir().to_owned());
        let folder = strategy.as_ref().map(BaseStrategy::config_dir);
        Self::from_lookup(&|name| std::env::var_os(name), home.as_deref(), folder.as_deref())
    }

    /// Does the same with any source of variables. An empty variable counts as unset.
    fn from_lookup(
        lookup: &dyn Fn(&str) -> Option<OsString>,
        home: Option<&Path>,
        folder: Option<&Path>,
    ) -> Result<Self> {
        let variable = |name: &str| lookup(name).filter(|value| !value.is_empty());
        let named = variable(FILE_VARIABLE).map(PathBuf::from);
        let usual = folder.map(|folder| folder.join("trine").join("config.toml"));
        let mut settings = Self::default();
        for key in &KEYS {
            let Some(value) = variable(&key.variable()) else { continue };
            let origin = Origin::Environment(key.variable());
            // The hub reads its own variable; it is recorded here only to be shown.
            let text = match key.name {
                "store" => value.to_string_lossy().into_owned(),
                _ => value.into_string().map_err(|_| anyhow!("{} is not text", key.variable()))?,
            };
            check(key, &text).map_err(|problem| anyhow!("{}: {problem}", key.variable()))?;
            settings.values.push(Value { key, texts: vec![text], origin });
        }
        if let Some(path) = named.clone().or(usual) {
            if let Some(text) = read_file(&path, named.is_some())? {
                settings.is_there = true;
                let shown = path.display();
                let values = parse(&text, &path, home)
                    .map_err(|(line, problem)| anyhow!("{shown}, line {line}: {problem}"))?;
                let is_new = |value: &Value| settings.value(value.key.name).is_none();
                let values: Vec<Value> = values.into_iter().filter(is_new).collect();
                settings.values.extend(values);
            }
            settings.file = Some(path);
        }
        let typed = settings.typed(OptionGroup::Run);
        let probe =
            RunProbe::try_parse_from(typed).context("the settings contradict each other")?;
        (settings.placement, settings.sampling) = (probe.placement, probe.sampling);
        settings.drafts = probe.drafts;
        settings.library = settings.made_library();
        Ok(settings)
    }

    /// Returns a value by its name, if it is set.
    pub(crate) fn value(&self, name: &str) -> Option<&Value> {
        self.values.iter().find(|value| value.key.name == name)
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.value(name)?.texts.first().map(String::as_str)
    }

    /// Says where a value is set, for people: a variable, or a line of the file.
    pub(crate) fn origin(&self, name: &str) -> Option<String> {
        Some(match &self.value(name)?.origin {
            Origin::Environment(variable) => variable.clone(),
            Origin::File(line) => {
                let file =
                    self.file.as_ref().map_or("the file".into(), |file| file.to_string_lossy());
                format!("{}, line {line},", terminal::harmless(&file))
            }
        })
    }

    fn made_library(&self) -> ModelLibrary {
        let mut library = ModelLibrary::new(Arc::new(CommandLine));
        library.model = self.text("model").map(str::to_owned);
        library.store = self.text("store").map(PathBuf::from);
        library
    }

    /// Returns where a model runs.
    pub(crate) fn placement(&self) -> &Placement {
        &self.placement
    }

    /// Returns what guesses tokens.
    pub(crate) fn drafts(&self) -> &DraftArgs {
        &self.drafts
    }

    /// Returns how tokens are sampled.
    pub(crate) fn sampling(&self) -> &SamplingArgs {
        &self.sampling
    }

    /// Returns the values of `place` as a command line.
    fn typed(&self, place: OptionGroup) -> Vec<String> {
        let mut typed = vec!["trine".to_owned()];
        for value in self.values.iter().filter(|value| value.key.place == place) {
            typed.extend(value.texts.iter().filter_map(|text| value.key.typed(text)));
        }
        typed
    }

    /// Makes the values the defaults of the options of `serve` and of the commands that ask a
    /// server. Values for other commands are filled in after presets, which override them.
    pub(crate) fn fill(&self, command: Command) -> Command {
        let mut command = command;
        for value in self.values.iter().filter(|value| value.key.place == OptionGroup::Serve) {
            command = command.mut_subcommand("serve", |serve| {
                set_default(serve, value.key.argument(), &value.texts)
            });
        }
        for name in ["top", "ps", "stop"] {
            let Some(found) = command.find_subcommand(name) else { continue };
            let has =
                |argument: &str| found.get_arguments().any(|found| found.get_id() == argument);
            let mut defaults: Vec<(&str, String)> = Vec::new();
            defaults.extend(self.url().map(|url| ("url", url)));
            for (key, argument) in
                [("server.api-key-file", "api_key_file"), ("server.tls-ca", "tls_ca")]
            {
                defaults.extend(self.text(key).map(|text| (argument, text.to_owned())));
            }
            defaults.retain(|(argument, _)| has(argument));
            for (argument, text) in defaults {
                command = command.mut_subcommand(name, |client| {
                    set_default(client, argument.to_owned(), std::slice::from_ref(&text))
                });
            }
        }
        command
    }

    /// Returns the address of the server for commands that ask one: the one that is set, else where
    /// `serve` would listen.
    fn url(&self) -> Option<String> {
        if let Some(url) = self.text("server.url") {
            return Some(url.to_owned());
        }
        let (host, port) = (self.text("server.host"), self.text("server.port"));
        if host.is_none() && port.is_none() {
            return None;
        }
        let host = match host {
            None | Some("0.0.0.0" | "") => "127.0.0.1".to_owned(),
            Some("::" | "[::]") => "[::1]".to_owned(),
            Some(host) if host.contains(':') && !host.starts_with('[') => format!("[{host}]"),
            Some(host) => host.to_owned(),
        };
        let scheme = if self.value("server.tls-cert").is_some() { "https" } else { "http" };
        Some(format!("{scheme}://{host}:{}", port.unwrap_or("8080")))
    }
}

/// Sets another default of an option.
fn set_default(command: Command, argument: String, texts: &[String]) -> Command {
    // clap needs texts for the life of the process. The settings are read once, so the leak is
    // bounded.
    let texts: Vec<&'static str> =
        texts.iter().map(|text| &*Box::leak(text.clone().into_boxed_str())).collect();
    command.mut_arg(argument, |option| {
        // A switch has no value that help could show.
        let has_value = option.get_action().takes_values();
        option.default_values(texts).hide_default_value(has_value)
    })
}

/// Reads the text of the file; returns `None` if it does not exist and was not named explicitly.
fn read_file(path: &Path, is_named: bool) -> Result<Option<String>> {
    let shown = path.display();
    let metadata = match std::fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if !is_named && error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => {
            let hint =
                if is_named { format!(", which {FILE_VARIABLE} names") } else { String::new() };
            return Err(error).with_context(|| {
                format!(
                    "cannot read the settings of {shown}{hint}; check the path and its permissions"
                )
            });
        }
    };
    if !metadata.is_file() || metadata.len() > FILE_BYTES_MAX {
        return Err(anyhow!(
            "{shown} is not a file of settings: it is a folder or device, or has more than \
             {FILE_BYTES_MAX} bytes"
        ));
    }
    let mut bytes = Vec::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes))
        .with_context(|| format!("cannot read the settings of {shown}; check its permissions"))?;
    String::from_utf8(bytes).map(Some).map_err(|_| anyhow!("{shown} is not UTF-8 text"))
}

/// Returns the values of a file in its order, or the line and the problem of the first value that
/// cannot be used.
fn parse(text: &str, path: &Path, home: Option<&Path>) -> Result<Vec<Value>, (usize, String)> {
    let line =
        |start: usize| text.get(..start).map_or(1, |before| before.matches('\n').count() + 1);
    let table = DeTable::parse(text).map_err(|error| {
        let start = error.span().map_or(0, |span| span.start);
        let message = terminal::harmless(error.message()).replace('\n', " ");
        (line(start), message)
    })?;
    let mut found: Vec<(usize, String, &Spanned<DeValue<'_>>)> = Vec::new();
    for (key, value) in table.get_ref() {
        let (start, name) = (key.span().start, key.get_ref());
        match value.get_ref().as_table() {
            // A table whose name is that of a setting is reported as a wrong value.
            Some(inner) if !KEYS.iter().any(|key| *key.name == **name) => {
                if inner.is_empty() && !keys::is_section(name) {
                    return Err((line(start), unknown(name)));
                }
                for (key, value) in inner {
                    found.push((key.span().start, format!("{name}.{}", key.get_ref()), value));
                }
            }
            _ => found.push((start, name.to_string(), value)),
        }
    }
    found.sort_by_key(|(start, ..)| *start);
    let mut values = Vec::new();
    for (start, name, value) in found {
        let number = line(start);
        let Some(key) = KEYS.iter().find(|key| key.name == name) else {
            return Err((number, unknown(&name)));
        };
        let wrong = |problem: String| (number, format!("{name}: {problem}"));
        let mut texts = texts(key, value.get_ref()).map_err(wrong)?;
        if key.kind == SettingKind::Path {
            texts = texts.iter().map(|text| whole_path(text, path, home)).collect();
        }
        for text in &texts {
            check(key, text).map_err(wrong)?;
        }
        values.push(Value { key, texts, origin: Origin::File(number) });
    }
    Ok(values)
}

fn unknown(name: &str) -> String {
    let name = terminal::harmless(name);
    let mut close = output::close_names(&name, KEYS.iter().map(|key| key.name));
    // The right key may be meant without its section, or with a wrong one.
    let last = |name: &str| name.rsplit('.').next().unwrap_or_default().to_owned();
    close.extend(KEYS.iter().map(|key| key.name).filter(|key| last(key) == last(&name)));
    let hint = close.first().map_or(";".to_owned(), |close| format!(". Did you mean {close}?"));
    format!("there is no setting {name}{hint} `trine config` lists all")
}

/// Returns a value of the file as it would be typed.
fn texts(key: &Key, value: &DeValue<'_>) -> Result<Vec<String>, String> {
    let wrong = || format!("this is of type {}; write {}", value.type_str(), key.kind.expected());
    match (key.kind, value) {
        (SettingKind::Text | SettingKind::Path | SettingKind::Size, DeValue::String(text)) => {
            Ok(vec![text.to_string()])
        }
        (SettingKind::Number | SettingKind::Size, DeValue::Integer(number)) => {
            let number = i128::from_str_radix(number.as_str(), number.radix());
            Ok(vec![number.map_err(|_| "the number is too large".to_owned())?.to_string()])
        }
        (SettingKind::Number, DeValue::Float(number)) => Ok(vec![number.as_str().to_owned()]),
        (SettingKind::Switch, DeValue::Boolean(is_on)) => Ok(vec![is_on.to_string()]),
        (SettingKind::Texts, DeValue::String(text)) => Ok(vec![text.to_string()]),
        (SettingKind::Texts, DeValue::Array(all)) => {
            let text = |value: &Spanned<DeValue<'_>>| value.get_ref().as_str().map(str::to_owned);
            all.iter().map(text).collect::<Option<_>>().ok_or_else(wrong)
        }
        _ => Err(wrong()),
    }
}

/// Resolves a path of the file: `~/` is the home folder, and relative paths are relative to the
/// file's folder.
fn whole_path(text: &str, file: &Path, home: Option<&Path>) -> String {
    let path = match (text.strip_prefix("~/"), home) {
        (Some(rest), Some(home)) => home.join(rest),
        _ => file.parent().unwrap_or(Path::new("")).join(text),
    };
    path.to_str().map_or_else(|| text.to_owned(), str::to_owned)
}

/// Checks whether a value could be typed for its option.
fn check(key: &Key, text: &str) -> Result<(), String> {
    if text.is_empty() {
        return Err("it is empty; leave it out".to_owned());
    }
    if key.kind == SettingKind::Switch && !matches!(text, "true" | "false") {
        return Err("write true or false".to_owned());
    }
    let probe = match key.place {
        OptionGroup::Program => return Ok(()),
        OptionGroup::Run => RunProbe::command(),
        OptionGroup::Serve => ServeArgs::augment_args(Command::new("trine")),
        OptionGroup::Client => ServerArgs::augment_args(Command::new("trine")),
    };
    let Some(typed) = key.typed(text) else { return Ok(()) };
    match probe.try_get_matches_from(["trine".to_owned(), typed]) {
        Err(error)
            if matches!(
                error.kind(),
                clap::error::ErrorKind::ValueValidation | clap::error::ErrorKind::InvalidValue
            ) =>
        {
            let source = std::error::Error::source(&error).map(ToString::to_string);
            let problem = source.unwrap_or_else(|| "it cannot be used".to_owned());
            Err(format!("{:?}: {problem}", terminal::harmless(text)))
        }
        Ok(matches) if key.place == OptionGroup::Run => check_sampling(&matches),
        // Other requirements of an option are reported when the command runs.
        _ => Ok(()),
    }
}

/// Checks whether the sampling parameters are within the bounds that apply to every model.
fn check_sampling(matches: &ArgMatches) -> Result<(), String> {
    let probe = RunProbe::from_arg_matches(matches).map_err(|error| error.to_string())?;
    let mut sampling = SamplingParams::greedy();
    probe.sampling.change(&mut sampling);
    sampling.check(usize::MAX).map_err(|error| error.to_string())
}

#[cfg(test)]
#[path = "settings/tests.rs"]
mod tests;
