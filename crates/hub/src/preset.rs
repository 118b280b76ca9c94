//! Presets: another model with a name, a system prompt and parameters of its own, each in a TOML
//! file in the store's `.presets`.
//!
//! A preset is based on a model or on another preset, at most eight deep. A preset without settings
//! of its own is a copy under another name.

use std::fmt;
use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use crate::catalog;
use crate::error::HubError;
use crate::hub::Hub;
use crate::name::{LONGEST_REPOSITORY_PART, valid_component, valid_repository_part};
use crate::once::warn_once;
use crate::spelling::closest;
use crate::temporary::{Readers, create_temporary, remove_dead};
use trine_foreign::cut_name;

/// The folder of the store for presets. No owner's name begins with a dot.
const FOLDER: &str = ".presets";
const VERSION: u32 = 1;
/// The largest file of a preset, in bytes.
const LARGEST: u64 = 1 << 20;
/// The most presets that are listed.
const MOST: usize = 10_000;
/// The most presets in a chain in which each is based on the next.
const DEEPEST: usize = 8;
/// The most texts that end an answer.
const MOST_STOPS: usize = 64;
/// The number of presets that this process has begun to write.
static WRITTEN: AtomicU64 = AtomicU64::new(0);
/// The replacement in a file's name for the colon of a preset's name; no name contains it.
const COLON: &str = "@";

/// Room for presets.
#[derive(Debug, Clone, Copy)]
pub struct PresetRoom {
    /// The most presets.
    pub count: usize,
    /// The most bytes of all their files.
    pub bytes: u64,
}

/// The name of a preset: `mario` or `mario:formal`, of letters, digits, `-`, `_` and `.`. Upper and
/// lower case are equal, and `:latest` is left out.
#[derive(Debug, Clone)]
pub struct PresetName(String);

impl PresetName {
    /// Parses a typed name.
    ///
    /// # Errors
    /// [`HubError::InvalidPreset`] if the text cannot be a preset's name, or is the name of a model
    /// of the catalogue.
    pub fn parse(text: &str) -> Result<Self, HubError> {
        let wrong = |reason: &str| HubError::InvalidPreset {
            name: cut_name(text, 80),
            reason: reason.to_owned(),
        };
        let longest = text.split(':').map(str::len).max().unwrap_or_default();
        if longest > LONGEST_REPOSITORY_PART {
            return Err(wrong(&format!(
                "a part of it has {longest} bytes; name and tag take at most \
                 {LONGEST_REPOSITORY_PART} each"
            )));
        }
        let form = "a name holds letters, digits, '-', '_' and '.', as in mario or mario:formal";
        let (name, tag) = match text.split_once(':') {
            None => (text, None),
            Some((name, tag)) => (name, Some(tag)),
        };
        let is_valid = |part: &str| valid_repository_part(part) && valid_component(part);
        if !is_valid(name) || tag.is_some_and(|tag| !is_valid(tag)) {
            return Err(wrong(form));
        }
        if matches!(catalog::find(text), Some(catalog::Known::Model(_))) {
            return Err(wrong(
                "this is the name of a model that can be downloaded; choose another",
            ));
        }
        let tag = tag.filter(|tag| !tag.eq_ignore_ascii_case("latest"));
        Ok(PresetName(tag.map_or(name.to_owned(), |tag| format!("{name}:{tag}"))))
    }

    fn key(&self) -> String {
        self.0.to_ascii_lowercase()
    }

    fn file(&self) -> String {
        format!("{}.toml", self.key().replace(':', COLON))
    }
}

impl fmt::Display for PresetName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl PartialEq for PresetName {
    fn eq(&self, other: &Self) -> bool {
        self.0.eq_ignore_ascii_case(&other.0)
    }
}

impl Eq for PresetName {}

/// A preset.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Preset {
    version: u32,
    /// Its name, as it was typed.
    pub name: String,
    /// The base: a model's name, a path, or another preset.
    pub from: String,
    /// Instructions at the beginning of every conversation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system: Option<String>,
    /// The source of its chat template, in Jinja.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// How its answers are generated.
    #[serde(default, skip_serializing_if = "PresetParameters::is_empty")]
    pub parameters: PresetParameters,
    /// Turns at the beginning of every conversation.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub messages: Vec<PresetMessage>,
}

/// One turn at the beginning of every conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PresetMessage {
    /// The speaker.
    pub role: PresetRole,
    /// The text of the turn.
    pub content: String,
}

/// The speaker of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PresetRole {
    /// The person.
    User,
    /// The model.
    Assistant,
}

/// How the answers of a preset are generated. Values that are not set come from its base.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PresetParameters {
    /// Randomness, from 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    /// The total probability of the tokens to choose among.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f64>,
    /// The number of tokens to choose among; 0 for all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_k: Option<u32>,
    /// The least probability of a token, as a share of the likeliest token's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_p: Option<f64>,
    /// The divisor of the scores of tokens that were used already; 1 is off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repetition_penalty: Option<f64>,
    /// The amount subtracted from the scores of tokens that were used already.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub presence_penalty: Option<f64>,
    /// The amount subtracted from a token's score for each time that it was used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frequency_penalty: Option<f64>,
    /// The seed of the random numbers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// The most tokens of an answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u32>,
    /// The most positions of a conversation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context: Option<u32>,
    /// Texts that end an answer.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stop: Vec<String>,
}

/// The effect of a parameter that another program writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// The parameter was set.
    Set,
    /// The parameter has no meaning here, for this reason.
    Ignored(&'static str),
}

impl PresetParameters {
    /// Returns whether nothing is set.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Sets a parameter by its name in Ollama or here to the value in a text. A `stop` is added to
    /// the earlier ones.
    ///
    /// # Errors
    /// Returns a message if the name is unknown, if the parameter would change the answers but is
    /// not supported, or if the value is out of its range.
    pub fn set(&mut self, name: &str, value: &str) -> Result<Taken, String> {
        let mut next = self.clone();
        match name.to_ascii_lowercase().as_str() {
            "temperature" => next.temperature = Some(number(value)?),
            "top_p" => next.top_p = Some(number(value)?),
            "top_k" => next.top_k = Some(number(value)?),
            "min_p" => next.min_p = Some(number(value)?),
            "repeat_penalty" | "repetition_penalty" => {
                next.repetition_penalty = Some(number(value)?);
            }
            "presence_penalty" => next.presence_penalty = Some(number(value)?),
            "frequency_penalty" => next.frequency_penalty = Some(number(value)?),
            // In Ollama -1 means a different seed each time, which is what an unset seed means
            // here.
            "seed" if value.trim() == "-1" => next.seed = None,
            "seed" => next.seed = Some(number(value)?),
            // -1 means no limit, -2 until the context is full. Without a limit an answer ends there
            // too.
            "num_predict" | "max_tokens" if matches!(value.trim(), "-1" | "-2") => {
                next.max_tokens = None;
            }
            "num_predict" | "max_tokens" => next.max_tokens = Some(number(value)?),
            "num_ctx" | "context" => next.context = Some(number(value)?),
            "stop" => next.stop.push(value.to_owned()),
            "mirostat" if number::<f64>(value)? == 0.0 => return Ok(Taken::Ignored("it is off")),
            "tfs_z" | "typical_p" if number::<f64>(value)? == 1.0 => {
                return Ok(Taken::Ignored("it is off"));
            }
            "mirostat" | "mirostat_eta" | "mirostat_tau" | "tfs_z" | "typical_p" => {
                return Err(
                    "trine does not sample this way; use temperature, top_p or min_p".into()
                );
            }
            "repeat_last_n" if value.trim() == "64" => {
                return Ok(Taken::Ignored("64 is usual here"));
            }
            "repeat_last_n" => {
                return Err("penalties look back 64 tokens; leave it out".to_owned());
            }
            "num_gpu" | "main_gpu" | "low_vram" | "num_thread" | "num_batch" | "num_keep"
            | "numa" | "use_mmap" | "use_mlock" | "f16_kv" | "vocab_only" => {
                return Ok(Taken::Ignored("where a model runs is an option of run and serve"));
            }
            "penalize_newline" => {
                return Ok(Taken::Ignored("newlines are penalised like other tokens"));
            }
            _ => {
                let names = PARAMETERS.map(String::from);
                let close = closest(name, &names);
                let hint = close.first().map_or(String::new(), |close| format!("; near: {close}"));
                return Err(format!("there is no such parameter{hint}"));
            }
        }
        next.check()?;
        *self = next;
        Ok(Taken::Set)
    }

    /// Refuses values with which no answer can be generated.
    fn check(&self) -> Result<(), String> {
        let within = |name: &str, value: Option<f64>, least: f64, most: f64| match value {
            // NaN is in no range.
            Some(value) if !(least..=most).contains(&value) => {
                Err(format!("{name} is {value}, and must be from {least} to {most}"))
            }
            _ => Ok(()),
        };
        within("temperature", self.temperature, 0.0, 100.0)?;
        within("top_p", self.top_p, 0.0, 1.0)?;
        within("min_p", self.min_p, 0.0, 1.0)?;
        within("repetition_penalty", self.repetition_penalty, 0.01, 100.0)?;
        within("presence_penalty", self.presence_penalty, -100.0, 100.0)?;
        within("frequency_penalty", self.frequency_penalty, -100.0, 100.0)?;
        within("top_k", self.top_k.map(f64::from), 0.0, f64::from(1 << 24))?;
        within("max_tokens", self.max_tokens.map(f64::from), 1.0, f64::from(u32::MAX))?;
        within("context", self.context.map(f64::from), 1.0, f64::from(1 << 24))?;
        if self.stop.len() > MOST_STOPS {
            return Err(format!("{} stop texts are more than {MOST_STOPS}", self.stop.len()));
        }
        if self.stop.iter().any(String::is_empty) {
            return Err("a stop text is empty".to_owned());
        }
        Ok(())
    }

    /// Returns the values set here, and the values of `base` for the rest.
    fn over(self, base: Self) -> Self {
        Self {
            temperature: self.temperature.or(base.temperature),
            top_p: self.top_p.or(base.top_p),
            top_k: self.top_k.or(base.top_k),
            min_p: self.min_p.or(base.min_p),
            repetition_penalty: self.repetition_penalty.or(base.repetition_penalty),
            presence_penalty: self.presence_penalty.or(base.presence_penalty),
            frequency_penalty: self.frequency_penalty.or(base.frequency_penalty),
            seed: self.seed.or(base.seed),
            max_tokens: self.max_tokens.or(base.max_tokens),
            context: self.context.or(base.context),
            stop: if self.stop.is_empty() { base.stop } else { self.stop },
        }
    }
}

/// The names that [`PresetParameters::set`] takes, for messages.
const PARAMETERS: [&str; 11] = [
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repeat_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "num_predict",
    "num_ctx",
    "stop",
];

fn number<N: std::str::FromStr>(text: &str) -> Result<N, String> {
    text.trim().parse().map_err(|_| format!("{:?} is not a number that fits", cut_name(text, 40)))
}

impl Preset {
    /// Makes a preset without settings of its own.
    pub fn new(name: &PresetName, from: impl Into<String>) -> Self {
        Preset {
            version: VERSION,
            name: name.to_string(),
            from: from.into(),
            system: None,
            template: None,
            parameters: PresetParameters::default(),
            messages: Vec::new(),
        }
    }

    fn check(&self) -> Result<(), String> {
        if self.version != VERSION {
            return Err(format!("it has version {}, not {VERSION}", self.version));
        }
        if self.from.trim().is_empty() {
            return Err("it names no model to stand on; write it after `from`".to_owned());
        }
        let mut expected = PresetRole::User;
        for message in &self.messages {
            if message.role != expected {
                return Err("its messages must alternate, the user's first".to_owned());
            }
            expected = match expected {
                PresetRole::User => PresetRole::Assistant,
                PresetRole::Assistant => PresetRole::User,
            };
        }
        if expected == PresetRole::Assistant {
            return Err("its last message is the user's and has no answer".to_owned());
        }
        self.parameters.check()
    }

    /// Returns this preset with the values of `base` for everything that it does not set.
    fn over(self, base: Self) -> Self {
        Preset {
            version: VERSION,
            name: self.name,
            from: base.from,
            system: self.system.or(base.system),
            template: self.template.or(base.template),
            parameters: self.parameters.over(base.parameters),
            messages: if self.messages.is_empty() { base.messages } else { self.messages },
        }
    }
}

impl Hub {
    /// Returns the preset of a name, as it was created; `None` also for a text that cannot be a
    /// preset's name.
    ///
    /// # Errors
    /// [`HubError::InvalidPreset`] when its file is damaged, [`HubError::File`] if it cannot be
    /// read.
    pub fn preset(&self, name: &str) -> Result<Option<Preset>, HubError> {
        let Ok(name) = PresetName::parse(name) else { return Ok(None) };
        let path = self.preset_path(&name);
        read(&path, &name.to_string())
    }

    /// Returns the preset of a name merged with those that it is based on; its `from` is then a
    /// model.
    ///
    /// # Errors
    /// Same as [`Hub::preset`]; [`HubError::InvalidPreset`] also if presets are based on one
    /// another in a circle or deeper than eight.
    pub fn whole_preset(&self, name: &str) -> Result<Option<Preset>, HubError> {
        let Some(mut preset) = self.preset(name)? else { return Ok(None) };
        let mut names = vec![preset.name.clone()];
        while let Some(base) = self.preset(&preset.from)? {
            let is_known = names.iter().any(|name| name.eq_ignore_ascii_case(&base.name));
            names.push(base.name.clone());
            let reason = match (is_known, names.len() > DEEPEST) {
                (true, _) => "presets stand on one another in a circle",
                (_, true) => "more than eight presets stand on one another",
                _ => {
                    preset = preset.over(base);
                    continue;
                }
            };
            let reason = format!("{reason}: {}", names.join(" on "));
            return Err(HubError::InvalidPreset { name: preset.name, reason });
        }
        Ok(Some(preset))
    }

    /// Returns the names of all presets that can be read, in order. One that cannot is logged.
    ///
    /// # Errors
    /// As [`Hub::each_preset`].
    pub fn preset_names(&self) -> Result<Vec<String>, HubError> {
        let mut names = Vec::new();
        self.each_preset(|preset| names.push(preset.name))?;
        names.sort_by_key(|name| name.to_lowercase());
        Ok(names)
    }

    /// Reads one preset after the other, in no order, and holds no more than one. One that cannot
    /// be read is logged, and what killed processes left beside them is removed.
    ///
    /// # Errors
    /// [`HubError::File`] if their folder exists and cannot be read.
    pub fn each_preset(&self, mut each: impl FnMut(Preset)) -> Result<(), HubError> {
        for (file, _) in self.preset_files()? {
            let Some(name) = file.strip_suffix(".toml") else { continue };
            match self.preset(&name.replace(COLON, ":")) {
                Ok(preset) => preset.into_iter().for_each(&mut each),
                Err(error) => warn_once(format_args!("a preset is left out: {error}")),
            }
        }
        Ok(())
    }

    /// Returns the names of the files of presets, and their bytes. What killed processes left
    /// beside them is removed.
    fn preset_files(&self) -> Result<Vec<(String, u64)>, HubError> {
        let folder = self.presets_folder();
        let entries = match fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(HubError::file("read", folder, error)),
        };
        let mut files = Vec::new();
        for entry in entries.flatten() {
            let Ok(file) = entry.file_name().into_string() else { continue };
            if file.starts_with('.') && file.contains(".toml.") && file.ends_with(".tmp") {
                remove_dead(&entry.path());
            } else if file.ends_with(".toml") && files.len() < MOST {
                files.push((file, entry.metadata().map_or(0, |found| found.len())));
            }
        }
        Ok(files)
    }

    /// Stores a preset, replacing one of the same name.
    ///
    /// # Errors
    /// [`HubError::InvalidPreset`] if its name or its values cannot be used, or if it would be
    /// based on itself; [`HubError::File`] if it cannot be written.
    pub fn save_preset(&self, preset: &Preset) -> Result<(), HubError> {
        self.save(preset, None)
    }

    /// Does the same for somebody who may not fill the disk: all presets together, this one
    /// included, are bounded.
    ///
    /// # Errors
    /// As [`Hub::save_preset`], and [`HubError::InvalidPreset`] if there is no room for it.
    pub fn save_preset_within(&self, preset: &Preset, room: PresetRoom) -> Result<(), HubError> {
        // Two that are saved at once do not both take what is left.
        static SAVING: Mutex<()> = Mutex::new(());
        let _one = SAVING.lock().unwrap_or_else(PoisonError::into_inner);
        self.save(preset, Some(room))
    }

    fn save(&self, preset: &Preset, room: Option<PresetRoom>) -> Result<(), HubError> {
        let name = PresetName::parse(&preset.name)?;
        let invalid = |reason: String| HubError::InvalidPreset { name: name.to_string(), reason };
        preset.check().map_err(invalid)?;
        self.check_base(&name, preset)?;
        let text = toml::to_string_pretty(preset).map_err(|error| invalid(error.to_string()))?;
        if text.len() as u64 > LARGEST {
            return Err(invalid(format!("it has more than {LARGEST} bytes")));
        }
        let mut files = self.preset_files()?;
        files.retain(|(file, _)| *file != name.file());
        if let Some(room) = room {
            let bytes = files.iter().map(|(_, bytes)| bytes).sum::<u64>();
            if files.len() >= room.count || bytes + text.len() as u64 > room.bytes {
                return Err(invalid(format!(
                    "it has {} bytes, and there are {} presets with {bytes} bytes already, of at \
                     most {} with {} bytes; remove some",
                    text.len(),
                    files.len(),
                    room.count,
                    room.bytes
                )));
            }
        }
        let folder = self.presets_folder();
        self.store.create_inside(&folder)?;
        let path = self.preset_path(&name);
        // Written to a temporary file and renamed, so that a reader sees the old preset or the new
        // one. Other processes and threads use other temporary names. System prompts may be secret.
        let count = WRITTEN.fetch_add(1, Ordering::Relaxed);
        let process = std::process::id();
        let temporary = folder.join(format!(".{}.{process}.{count}.tmp", name.file()));
        let written = create_temporary(&temporary, Readers::Nobody).and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            Ok(file)
        });
        // The file is open, and so locked, until it has its name.
        let renamed =
            written.map_err(|error| HubError::file("write", &temporary, error)).and_then(|file| {
                fs::rename(&temporary, &path)
                    .map_err(|error| HubError::file("replace", &path, error))?;
                drop(file);
                Ok(())
            });
        if renamed.is_err() {
            // The first error says what is wrong.
            let _ = fs::remove_file(&temporary);
        }
        renamed
    }

    /// Refuses a preset whose chain of bases would not end at a model.
    fn check_base(&self, name: &PresetName, preset: &Preset) -> Result<(), HubError> {
        let mut names = vec![name.to_string()];
        let mut from = preset.from.clone();
        while let Ok(next) = PresetName::parse(&from) {
            names.push(next.to_string());
            let reason = if next == *name {
                "it would stand on itself"
            } else {
                let Some(base) = self.preset(&from)? else { return Ok(()) };
                if names.len() <= DEEPEST {
                    from = base.from;
                    continue;
                }
                "it would stand on eight presets or more"
            };
            let reason = format!("{reason}: {}", names.join(" on "));
            return Err(HubError::InvalidPreset { name: name.to_string(), reason });
        }
        Ok(())
    }

    /// Returns the names of the presets that are directly based on a preset.
    ///
    /// # Errors
    /// [`HubError::File`] if the presets cannot be read.
    pub fn presets_on(&self, name: &str) -> Result<Vec<String>, HubError> {
        let Ok(name) = PresetName::parse(name) else { return Ok(Vec::new()) };
        let mut above = Vec::new();
        self.each_preset(|preset| {
            if PresetName::parse(&preset.from).is_ok_and(|from| from == name) {
                above.push(preset.name);
            }
        })?;
        above.sort_by_key(|name| name.to_lowercase());
        Ok(above)
    }

    /// Removes a preset and returns whether there was one.
    ///
    /// # Errors
    /// [`HubError::File`] if it cannot be removed.
    pub fn remove_preset(&self, name: &str) -> Result<bool, HubError> {
        let Ok(name) = PresetName::parse(name) else { return Ok(false) };
        let path = self.preset_path(&name);
        match fs::remove_file(&path) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(HubError::file("delete", path, error)),
        }
    }

    fn presets_folder(&self) -> PathBuf {
        self.store.root().join(FOLDER)
    }

    fn preset_path(&self, name: &PresetName) -> PathBuf {
        self.presets_folder().join(name.file())
    }
}

/// Returns the preset in a file, if the file exists.
fn read(path: &Path, name: &str) -> Result<Option<Preset>, HubError> {
    let fail = |error| HubError::file("read", path, error);
    let metadata = match fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(fail(error)),
    };
    let invalid = |reason: String| HubError::InvalidPreset {
        name: name.to_owned(),
        reason: format!(
            "{reason} (in {}); mend or delete that file, or create the preset again",
            path.display()
        ),
    };
    if !metadata.is_file() || metadata.len() > LARGEST {
        return Err(invalid("it is not a file, or too large for a preset".to_owned()));
    }
    let mut bytes = Vec::new();
    match fs::File::open(path) {
        // Another process removed it meanwhile.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        file => file.and_then(|file| file.take(LARGEST + 1).read_to_end(&mut bytes)),
    }
    .map_err(fail)?;
    let text = String::from_utf8(bytes).map_err(|_| invalid("it is not UTF-8 text".to_owned()))?;
    let mut preset: Preset =
        toml::from_str(&text).map_err(|error| invalid(toml_problem(&text, &error)))?;
    preset.check().map_err(invalid)?;
    // A preset is found by its file's name, whatever the file says.
    if PresetName::parse(&preset.name).map_or(true, |own| Some(own) != PresetName::parse(name).ok())
    {
        name.clone_into(&mut preset.name);
    }
    Ok(Some(preset))
}

/// Describes the problem of a TOML text on one line, with the line's number.
fn toml_problem(text: &str, error: &toml::de::Error) -> String {
    let message = cut_name(&error.message().replace('\n', " "), 300);
    match error.span() {
        Some(span) => {
            let before = text.get(..span.start).unwrap_or_default();
            format!("line {}: {message}", before.matches('\n').count() + 1)
        }
        None => message,
    }
}

#[cfg(test)]
#[path = "preset_tests.rs"]
mod tests;
