//! The names that a server answers to, and the models that they mean.
//!
//! A server that was started with models serves these and no others. One that was started without
//! any serves the model of the settings, the one inside the program, the models of the store, and
//! its presets; clients may change the store.

mod files;
mod offers;
mod presets;
mod refusals;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use anyhow::{Context, Result, anyhow};
use trine_hub::catalog::{self, Known, Refused};
use trine_hub::{
    EntryState, Hub, HubError, Inventory, LocalModel, ModelName, Preset, PresetMessage, PresetName,
    PresetRole, PresetRoom, Progress, StoreEntry,
};
use trine_server::{
    Catalog, Found, Library, LibraryError, Listed, Preset as Laid, PullProgress, Recipe, Refusal,
};

use crate::failure::usage;
use crate::finding::embedded::Embedded;
use crate::finding::model_source::Source;
use crate::library::ModelLibrary;
use refusals::told;

pub(super) use {files::digest, files::stamp, presets::laid};

/// Room for presets while clients make them: what users of this machine make counts and is not
/// bound.
const PRESETS: PresetRoom = PresetRoom { count: 1000, bytes: 64 << 20 };
/// The alias that answers to every name that nothing else has.
const ANY: &str = "*";

/// The mapping from names to models.
pub enum Names {
    /// The models of the command line, the default one first.
    Fixed(Vec<Served>),
    /// The model of the settings, the one inside the program, and those of the store.
    Store(Box<StoreNames>),
}

/// A model of the command line.
#[derive(Debug, Clone)]
pub struct Served {
    /// The name that is listed.
    pub name: String,
    /// The name of the model. Entries with the same name share the loaded model.
    pub model: String,
    /// Its files.
    pub source: Source,
    /// What a preset adds to the model, if the name is that of a preset.
    pub laid: Option<Arc<Laid>>,
}

impl Served {
    /// Returns whether another model has its model's name.
    fn clashes(&self, other: &Self) -> bool {
        self.model == other.model && place(&self.source) != place(&other.source)
    }

    fn found(&self) -> Found {
        let preset = self.laid.clone().unwrap_or_default();
        Found { model: self.model.clone(), preset }
    }

    fn listed(&self) -> Listed {
        let context = self.laid.as_ref().and_then(|laid| laid.context);
        Listed { context, ..listed(&self.name, &self.model, &self.source) }
    }

    /// Returns the file or folder, if the model comes from neither a preset nor the store.
    fn path(&self) -> Option<&Path> {
        match &self.source {
            Source::Path(path) if self.laid.is_none() => Some(path),
            _ => None,
        }
    }
}

/// The store, and further names for its models.
pub struct StoreNames {
    hub: Hub,
    aliases: Vec<(String, String)>,
    /// Models outside of the store, each under the name of its alias.
    typed: Vec<Served>,
    /// The model for requests that name none, if it is not the one inside the program.
    default: Option<Served>,
    machine: offers::ThisMachine,
}

impl Names {
    /// Creates the names of a server that was started with models. `open` finds models that are
    /// only in aliases; an alias without a model means the first one.
    ///
    /// # Errors
    /// Returns an error if two models would have the same name, or an alias names no model.
    pub fn fixed(
        models: Vec<Served>,
        aliases: &[(String, String)],
        open: impl Fn(&str) -> Result<Served>,
    ) -> Result<Self> {
        let mut all: Vec<Served> = Vec::new();
        for served in models {
            let has_its_name = |other: &Served| other.name == served.name;
            if all.iter().any(|other| has_its_name(other) || other.clashes(&served)) {
                return Err(two_models(&served.name));
            }
            all.push(served);
        }
        for (name, model) in aliases {
            let known = match model.is_empty() {
                true => all.first(),
                false => meant(&all, model),
            };
            let meant = match known {
                Some(served) => served.clone(),
                None => open(model).with_context(|| format!("--alias {name}={model}"))?,
            };
            if all.iter().any(|served| served.name == *name) {
                return Err(usage(format!("--alias: two models would have the name {name}")));
            }
            if all.iter().any(|other| other.clashes(&meant)) {
                return Err(two_models(&meant.model));
            }
            all.push(Served { name: name.clone(), ..meant });
        }
        Ok(Self::Fixed(all))
    }

    /// Creates the names of a server that was started without models. The default model is that of
    /// the settings, if they name one. `open` finds models outside of the store that are in
    /// aliases; an alias without a model means the default one.
    ///
    /// # Errors
    /// Returns an error if an alias names no model, or two models would have the same name.
    pub fn store(
        (library, hub): (&ModelLibrary, Hub),
        default: Option<Served>,
        aliases: &[(String, String)],
        open: impl Fn(&str) -> Result<Served>,
    ) -> Result<Self> {
        let (aliased, typed, machine) = (Vec::new(), Vec::new(), offers::ThisMachine::new(library));
        let mut shop = StoreNames { hub, aliases: aliased, typed, default, machine };
        let find =
            |shop: &StoreNames, name: &str| shop.find(name).map_err(|message| anyhow!(message));
        for (name, model) in aliases {
            let default = || match &shop.default {
                Some(default) => default.name.clone(),
                None => Embedded::Demo.name().to_owned(),
            };
            let model = if model.is_empty() { default() } else { model.clone() };
            if find(&shop, &model)?.is_none() {
                let served = open(&model).with_context(|| format!("--alias {name}={model}"))?;
                // It may have come into the store with that.
                if find(&shop, &model)?.is_none() {
                    let is_taken = find(&shop, &served.model)?.is_some();
                    if is_taken || shop.typed.iter().any(|other| other.clashes(&served)) {
                        return Err(two_models(&served.model));
                    }
                    shop.typed.push(Served { name: name.clone(), ..served });
                    continue;
                }
            }
            shop.aliases.push((name.clone(), model));
        }
        Ok(Self::Store(Box::new(shop)))
    }

    /// See [`Loader::list`](trine_server::Loader::list).
    pub(super) fn list(&self) -> Vec<Listed> {
        match self {
            Self::Fixed(all) => {
                let named = all.iter().filter(|served| served.name != ANY).map(Served::listed);
                // The name of a preset's model means nothing here.
                let asked = |listed: Listed| match meant(all, &listed.short) {
                    Some(_) => listed,
                    None => Listed { short: listed.name.clone(), ..listed },
                };
                named.map(asked).collect()
            }
            Self::Store(shop) => shop.list(),
        }
    }

    /// See [`Loader::find`](trine_server::Loader::find).
    pub(super) fn find(&self, name: &str) -> Result<Option<Found>, String> {
        let all = match self {
            Self::Fixed(all) => all,
            Self::Store(shop) => {
                let found = shop.find(name)?;
                return if found.is_none() { shop.find(ANY) } else { Ok(found) };
            }
        };
        Ok(meant(all, name).or_else(|| meant(all, ANY)).map(Served::found))
    }

    /// Returns the models for names that [`Names::find`] or [`Names::list`] returned.
    pub(super) fn sources(&self) -> Sources<'_> {
        match self {
            Self::Fixed(all) => Sources::Fixed(all),
            Self::Store(shop) => Sources::Store(shop, shop.hub.inventory()),
        }
    }

    /// Returns the store if clients may change it.
    pub(super) fn library(&self) -> Option<&dyn Library> {
        match self {
            Self::Fixed(_) => None,
            Self::Store(shop) => Some(&**shop),
        }
    }
}

/// The models of names as they are at one time, for any number of names.
pub(super) enum Sources<'a> {
    Fixed(&'a [Served]),
    Store(&'a StoreNames, Inventory<'a>),
}

impl Sources<'_> {
    /// Returns the model for a name that [`Names::find`] or [`Names::list`] returned.
    pub(super) fn of(&self, model: &str) -> Option<Source> {
        match self {
            Self::Fixed(all) => {
                all.iter().find(|served| served.model == model).map(|served| served.source.clone())
            }
            Self::Store(shop, inventory) => shop.source(inventory, model),
        }
    }
}

fn two_models(name: &str) -> anyhow::Error {
    usage(format!(
        "two models would have the name {name}; rename a file, or serve them from two servers"
    ))
}

/// Finds the model that a name means among those of the command line: by its own name, a name of
/// the catalogue, or the last part of a name.
fn meant<'a>(all: &'a [Served], name: &str) -> Option<&'a Served> {
    // Under its own name a model is without what a preset adds.
    let plain = || all.iter().filter(|served| served.laid.is_none());
    let named = |name: &str| {
        let listed = all.iter().find(|served| served.name == name);
        listed.or_else(|| plain().find(|served| served.model == name))
    };
    let known = || match catalog::find(name) {
        Some(Known::Model(entry)) => {
            named(&entry.name()).or_else(|| named(&entry.model().to_string()))
        }
        _ => None,
    };
    let mut short: Vec<&Served> = plain().filter(|served| is_short(name, &served.model)).collect();
    short.dedup_by(|one, other| one.model == other.model);
    named(name).or_else(known).or(match &short[..] {
        [one] => Some(one),
        _ => None,
    })
}

/// Returns the name by which a server knows a model. Clients must not see the path of a file, so it
/// is only the file's name.
pub(super) fn served_name(source: &Source) -> String {
    match source {
        Source::Path(path) => {
            let absolute = path.canonicalize().unwrap_or_else(|_| path.clone());
            let name = if absolute.is_dir() { absolute.file_name() } else { absolute.file_stem() };
            name.unwrap_or_default().to_string_lossy().into_owned()
        }
        source => source.lasting_name(),
    }
}

/// Returns whether a name is the last part of `whole`, with or without what follows its colon,
/// ignoring case.
fn is_short(name: &str, whole: &str) -> bool {
    let Some((_, last)) = whole.rsplit_once('/') else { return false };
    let stem = last.split_once(':').map_or(last, |(stem, _)| stem);
    name.eq_ignore_ascii_case(last) || name.eq_ignore_ascii_case(stem)
}

/// Returns the path of a model.
fn place(source: &Source) -> PathBuf {
    match source {
        Source::Embedded(model) => PathBuf::from(model.name()),
        Source::Path(path) => path.canonicalize().unwrap_or_else(|_| path.clone()),
        Source::Local(model) => model.path.clone(),
    }
}

fn listed(name: &str, model: &str, source: &Source) -> Listed {
    let digest = match source {
        Source::Local(model) => {
            let is_own = |path: &Path| model.mmproj.as_deref() != Some(path);
            let mut own = model.files.iter().filter(|file| is_own(&file.path));
            own.next().filter(|_| own.next().is_none()).and_then(|file| file.sha256.clone())
        }
        Source::Embedded(_) | Source::Path(_) => None,
    };
    let modified = match source {
        Source::Embedded(_) => None,
        source => std::fs::metadata(place(source)).and_then(|facts| facts.modified()).ok(),
    };
    let modified = modified.and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    let short = match source {
        Source::Local(local) => local.short.clone(),
        Source::Embedded(_) | Source::Path(_) => model.to_owned(),
    };
    Listed {
        name: name.to_owned(),
        model: model.to_owned(),
        short,
        bytes: source.file_bytes(),
        modified: modified.map(|since| since.as_secs()),
        digest: digest.unwrap_or_default(),
        context: None,
    }
}

impl StoreNames {
    fn list(&self) -> Vec<Listed> {
        let (demo, inventory) = (Embedded::Demo, self.hub.inventory());
        let mut all = Vec::new();
        if let Some(default) = &self.default {
            // If the default model is removed, it stays in the list, because another model is not
            // what the user meant.
            let found = self.find_among(&inventory, &default.name).ok().flatten();
            let Found { model, preset } = found.unwrap_or_else(|| Found::plain(&default.model));
            let source = self.source(&inventory, &model);
            let source = source.as_ref().unwrap_or(&default.source);
            let context = preset.context;
            all.push(Listed { context, ..listed(&default.name, &model, source) });
        }
        all.push(listed(demo.name(), demo.name(), &Source::Embedded(demo)));
        let entries = inventory.entries().unwrap_or_else(|error| {
            tracing::error!(%error, "the models cannot be listed");
            &[]
        });
        for entry in entries.iter().filter(|entry| entry.state == EntryState::Complete) {
            if let Ok(Some(model)) = inventory.resolve(&entry.name) {
                let own = entry.name.to_string();
                let name = self.listed_name(&inventory, entry);
                all.push(listed(&name, &own, &Source::Local(Box::new(model))));
            }
        }
        let names = self.hub.preset_names().unwrap_or_else(|error| {
            tracing::error!(%error, "the presets cannot be listed");
            Vec::new()
        });
        let names: Vec<String> =
            self.aliases.iter().map(|(name, _)| name.clone()).chain(names).collect();
        for name in names {
            if let Ok(Some(found)) = self.find_among(&inventory, &name)
                && let Some(source) = self.source(&inventory, &found.model)
            {
                let context = found.preset.context;
                all.push(Listed { context, ..listed(&name, &found.model, &source) });
            }
        }
        all.extend(self.typed.iter().map(Served::listed));
        let mut names = HashSet::from([ANY.to_owned()]);
        all.retain(|listed| names.insert(listed.name.clone()));
        all
    }

    /// Returns the name under which a model is listed: the short one if it means that model here,
    /// else its own.
    fn listed_name(&self, inventory: &Inventory<'_>, entry: &StoreEntry) -> String {
        let own_name = entry.name.to_string();
        let found = self.find_among(inventory, &entry.short).ok().flatten();
        let is_it = |found: Found| found.model == own_name && *found.preset == Laid::default();
        if found.is_some_and(is_it) { entry.short.clone() } else { own_name }
    }

    fn find(&self, name: &str) -> Result<Option<Found>, String> {
        self.find_among(&self.hub.inventory(), name)
    }

    fn find_among(&self, inventory: &Inventory<'_>, name: &str) -> Result<Option<Found>, String> {
        let bare = name.strip_suffix(":latest").unwrap_or(name);
        if let Some(typed) = self.typed.iter().find(|typed| [name, bare].contains(&&*typed.name)) {
            return Ok(Some(typed.found()));
        }
        let name = self.meant(name);
        let Some(default) = self.default.as_ref().filter(|default| default.name == name) else {
            return self.find_in_store(inventory, name);
        };
        if default.path().is_some() {
            return Ok(Some(Found::plain(default.model.clone())));
        }
        // Clients may have changed or removed the model.
        let found = self.find_in_store(inventory, name)?;
        let gone =
            || format!("{name}, the model of the server's settings, is not here any more; pull it");
        found.map(Some).ok_or_else(gone)
    }

    /// Returns the name that an alias means. Like any other name, an alias may have the tag that
    /// Ollama's clients add.
    fn meant<'a>(&'a self, name: &'a str) -> &'a str {
        let bare = name.strip_suffix(":latest").unwrap_or(name);
        let alias = self.aliases.iter().find(|(alias, _)| alias == name || alias == bare);
        alias.map_or(name, |(_, model)| model)
    }

    fn find_in_store(
        &self,
        inventory: &Inventory<'_>,
        name: &str,
    ) -> Result<Option<Found>, String> {
        if let Some(model) = Embedded::find(name) {
            return Ok(Some(Found::plain(model.name())));
        }
        let told = |error: HubError| told(error).message;
        let Some(preset) = self.hub.whole_preset(name).map_err(told)? else {
            if let Some(Known::Refused(_)) = catalog::find(name) {
                // A model of another family is not here, as any other that is not.
                return Ok(None);
            }
            let local = self.machine.local(inventory, name).map_err(|error| error.to_string())?;
            return Ok(local.map(|model| Found::plain(own_name(inventory, &model))));
        };
        let from = preset.from.as_str();
        let model = match Embedded::find(from) {
            Some(model) => Some(model.name().to_owned()),
            // A user of this machine may have made a preset with a path. Clients may not use paths,
            // and the path is not shown to them.
            None if Path::new(from).is_absolute() => Some(preset.name.clone()),
            None => {
                let local =
                    self.machine.local(inventory, from).map_err(|error| error.to_string())?;
                local.map(|model| own_name(inventory, &model))
            }
        };
        let model = model.ok_or_else(|| {
            let is_preset = PresetName::parse(from).is_ok() && catalog::find(from).is_none();
            let remedy = if is_preset { "create it again" } else { "pull it" };
            format!("the preset {} stands on {from}, which is not here; {remedy}", preset.name)
        })?;
        Ok(Some(Found { model, preset: Arc::new(laid(&preset)) }))
    }

    fn source(&self, inventory: &Inventory<'_>, model: &str) -> Option<Source> {
        if let Some(default) = self.default.as_ref().filter(|default| default.model == model)
            && let Some(path) = default.path()
        {
            return Some(Source::Path(path.to_owned()));
        }
        if let Some(typed) = self.typed.iter().find(|typed| typed.model == model) {
            return Some(typed.source.clone());
        }
        if let Some(model) = Embedded::find(model) {
            return Some(Source::Embedded(model));
        }
        if let Ok(Some(preset)) = self.hub.whole_preset(model)
            && Path::new(&preset.from).is_absolute()
        {
            return Some(Source::Path(preset.from.into()));
        }
        let local = self.machine.local(inventory, model).ok().flatten();
        local.map(|model| Source::Local(Box::new(model)))
    }

    /// Returns whether the store has an incomplete model of this name.
    fn has_rest(&self, name: &str) -> bool {
        let entries = self.hub.list().unwrap_or_default();
        let mut rests = entries.iter().filter(|entry| entry.state != EntryState::Complete);
        ModelName::parse(name)
            .is_ok_and(|name| rests.any(|rest| rest.name.repository() == name.repository()))
    }

    /// Returns the preset with this name; `None` if the name is that of a model.
    fn preset(&self, name: &str) -> Result<Option<Preset>, LibraryError> {
        if Embedded::find(name).is_some() {
            return Ok(None);
        }
        self.hub.preset(name).map_err(told)
    }

    /// Returns what a new preset may be based on: a preset or a model on this machine, never a
    /// path.
    fn base(&self, name: &str) -> Result<String, LibraryError> {
        let bare = name.strip_suffix(":latest").unwrap_or(name);
        if let Some(preset) = self.preset(bare)? {
            return Ok(preset.name);
        }
        let found =
            self.find(bare).map_err(|message| LibraryError::new(Refusal::Invalid, message))?;
        found.map(|found| found.model).ok_or_else(|| {
            let message = format!("there is no model {name:.100} on this machine; pull it first");
            LibraryError::new(Refusal::Unknown, message)
        })
    }
}

/// Returns the name under which a model is listed; other names may mean the same files.
fn own_name(inventory: &Inventory<'_>, model: &LocalModel) -> String {
    inventory.name_of(model).to_string()
}

impl Library for StoreNames {
    fn catalog(&self, measures: bool) -> Result<Catalog, LibraryError> {
        // A store that cannot be read is an error, not an empty store.
        let inventory = self.hub.inventory();
        let here = inventory.entries().map_err(told)?;
        let machine = self.machine.suited(measures);
        Ok(offers::catalog(&machine, here, |own| self.listed_name(&inventory, own)))
    }

    fn pullable(&self, name: &str) -> Result<String, LibraryError> {
        let name = name.strip_suffix(":latest").unwrap_or(name);
        if Embedded::find(name).is_some() {
            let message = format!("{name} is inside the program; there is nothing to download");
            return Err(LibraryError::new(Refusal::Invalid, message));
        }
        if self.preset(name)?.is_some() {
            let message =
                format!("{name:.100} is a preset of this machine; pull what it stands on");
            return Err(LibraryError::new(Refusal::Invalid, message));
        }
        let refusal = |name: &str, refused: Refused| {
            let reason = refused.reason(self.machine.suited(false).best());
            let message = format!("trine does not run {name:.100}: {reason}");
            LibraryError::new(Refusal::Invalid, message)
        };
        match catalog::find(name) {
            Some(Known::Model(entry)) => return Ok(entry.model().to_string()),
            Some(Known::Refused(refused)) => return Err(refusal(name, refused)),
            None => {}
        }
        if let Ok(name) = ModelName::parse(name) {
            if let Some(refused) = catalog::other_family(&name) {
                return Err(refusal(&name.to_string(), refused));
            }
            return Ok(name.to_string());
        }
        if let Some(local) = self.hub.short_name(name).map_err(told)? {
            return Ok(local.to_string());
        }
        let near = catalog::close(name);
        let near = match near.is_empty() {
            true => String::new(),
            false => format!("; near: {}", near.join(", ")),
        };
        let message = format!(
            "there is no model {name:.100}{near}. Name a repository of Hugging Face (owner/repo), \
             or one of `trine search`"
        );
        Err(LibraryError::new(Refusal::Unknown, message))
    }

    fn pull(&self, name: &str, progress: &mut dyn PullProgress) -> Result<(), LibraryError> {
        let name = ModelName::parse(name).map_err(told)?;
        self.hub.pull(&name, &mut Passed(progress)).map(drop).map_err(told)
    }

    fn owned(&self, name: &str) -> Result<Option<String>, LibraryError> {
        let name = name.strip_suffix(":latest").unwrap_or(name);
        if Embedded::find(name).is_some() {
            let message = format!("{name} is inside the program; it cannot be removed");
            return Err(LibraryError::new(Refusal::Invalid, message));
        }
        if self.preset(name)?.is_some() {
            return Ok(None);
        }
        let refused = |error: anyhow::Error| LibraryError::new(Refusal::Invalid, error.to_string());
        let inventory = self.hub.inventory();
        if let Some(local) = self.machine.local(&inventory, name).map_err(refused)? {
            return Ok(Some(own_name(&inventory, &local)));
        }
        // Maybe only an incomplete download is left.
        let rest = self.pullable(name).ok().filter(|name| self.has_rest(name));
        rest.map(Some).ok_or_else(|| {
            let message = format!("there is no model {name:.100} on this machine");
            LibraryError::new(Refusal::Unknown, message)
        })
    }

    fn delete(&self, name: &str) -> Result<(), LibraryError> {
        let Some(model) = self.owned(name)? else {
            let name = name.strip_suffix(":latest").unwrap_or(name);
            let above = self.hub.presets_on(name).map_err(told)?;
            if let Some(first) = above.first() {
                let message = format!(
                    "{name:.100} stays: the preset {first} stands on it; remove that first"
                );
                return Err(LibraryError::new(Refusal::Busy, message));
            }
            return self.hub.remove_preset(name).map(drop).map_err(told);
        };
        let model = ModelName::parse(&model).map_err(told)?;
        self.hub.remove(&model).map(drop).map_err(told)
    }

    fn copy(&self, from: &str, to: &str) -> Result<(), LibraryError> {
        let to = self.new_name(to)?;
        let bare = from.strip_suffix(":latest").unwrap_or(from);
        let copy = match self.preset(bare)? {
            // The copy does not depend on the first preset, which may be deleted.
            Some(mut preset) => {
                preset.name = to.to_string();
                preset
            }
            None => Preset::new(&to, self.base(bare)?),
        };
        self.hub.save_preset_within(&copy, PRESETS).map_err(told)
    }

    fn create(&self, name: &str, recipe: &Recipe) -> Result<(), LibraryError> {
        let invalid = |message: String| LibraryError::new(Refusal::Invalid, message);
        let mut preset = Preset::new(&self.new_name(name)?, self.base(&recipe.from)?);
        preset.system.clone_from(&recipe.system);
        preset.template.clone_from(&recipe.template);
        for (name, value) in &recipe.parameters {
            let set = preset.parameters.set(name, value);
            set.map_err(|reason| invalid(format!("parameters.{name:.100}: {reason}")))?;
        }
        let turn = |(role, content): &(String, String)| PresetMessage {
            role: if role == "user" { PresetRole::User } else { PresetRole::Assistant },
            content: content.clone(),
        };
        preset.messages = recipe.messages.iter().map(turn).collect();
        self.hub.save_preset_within(&preset, PRESETS).map_err(told)
    }
}

impl StoreNames {
    /// Parses the name of a new preset, which must not be that of a model inside the program.
    fn new_name(&self, name: &str) -> Result<PresetName, LibraryError> {
        let name = PresetName::parse(name).map_err(told)?;
        if Embedded::find(&name.to_string()).is_some() {
            let message =
                format!("{name} is the name of a model inside the program; choose another");
            return Err(LibraryError::new(Refusal::Invalid, message));
        }
        Ok(name)
    }
}

/// Passes the progress of a download on to the server.
struct Passed<'a>(&'a mut dyn PullProgress);

impl Progress for Passed<'_> {
    fn start(&mut self, file: &str, total: Option<u64>) {
        self.0.file(file, total);
    }

    fn advance(&mut self, bytes: u64) {
        self.0.advance(bytes);
    }

    fn done(&mut self, _file: &str) {}

    fn waiting(&mut self, reason: &str) {
        self.0.waiting(reason);
    }

    fn cancelled(&self) -> bool {
        self.0.is_cancelled()
    }
}

#[cfg(test)]
mod tests;
