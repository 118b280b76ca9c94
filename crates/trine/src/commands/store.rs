//! `trine pull`, `list` and `rm`: the models and presets on this machine.

use anyhow::{Result, anyhow, bail};
use serde::Serialize;
use serde_json::{Value, json};
use trine_hub::{
    EntryState, Hub, HubError, Inventory, LocalModel, ModelName, Preset, StoreEntry, catalog,
};
use trine_model::Model;
use trine_session::assistants;
use trine_session::embedded::Embedded;
use trine_session::fetch::{self, fetch};
use trine_session::library::ModelLibrary;
use trine_session::model_source::{Source, repository};
use trine_session::seeing;
use trine_session::suiting::Suited;
use trine_session::tower;

use crate::cli::{ListArgs, PullArgs, RemoveArgs};
use crate::terminal;
use crate::terminal::output;

/// Fetches a model.
///
/// # Errors
/// Returns an error if the download fails. The part that was fetched stays and is continued next
/// time.
pub(crate) fn pull(library: &ModelLibrary, args: PullArgs) -> Result<()> {
    let mut config = library.hub_config()?;
    config.mmproj = !args.no_mmproj;
    let hub = Hub::new(config)?;
    let typed = match hub.whole_preset(&args.model)? {
        Some(preset) => preset.from,
        None => args.model.clone(),
    };
    let name = repository(library, &hub.inventory(), &typed)?;
    if let Some(known) = catalog::of(&name)
        && !matches!(hub.resolve(&name), Ok(Some(_)))
        && let Some(misfit) =
            Suited::unmeasured(library).misfit(&known.name(), Some(known), known.bytes)
    {
        match args.yes || !library.callbacks.can_ask() {
            true => output::warning(misfit),
            false => fetch::ask_anyway(library, &known.name(), &misfit)?,
        }
    }
    let model = fetch(library, &hub, &name)?;
    if args.json {
        return output::json(&named(&model.name, &model.short, &model)?);
    }
    output::remark(format_args!(
        "{}, {}, in {}",
        model.short,
        output::bytes(model.bytes),
        model.path.display()
    ));
    let (mmproj, is_told) = (mmproj(&model), model.left_out.is_some());
    let source = Source::Local(Box::new(model));
    let own = source.open(None).ok();
    if let Some(draft) = source.open_assistant()? {
        let whose = assistants::size_of(draft.config().backbone)
            .map_or("the model that it was made for".to_owned(), |size| format!("Gemma 4 {size}"));
        output::remark(format_args!("it guesses for {whose}, which takes it where it is found"));
        return Ok(());
    }
    if let Some(own) = &own
        && let Some(line) = pictures_of(&source, own, mmproj.as_ref(), is_told)
    {
        output::remark(line);
    }
    output::remark(format_args!("run it with: trine run {}", args.model));
    if let Some(name) = own.and_then(|own| assistants::missing(library, &source, &own)) {
        output::remark(format_args!(
            "a draft that was made for it makes it faster: trine pull {name}"
        ));
    }
    Ok(())
}

/// Returns whether a model that was fetched reads pictures, and what to do otherwise; `None` if a
/// line tells already why it does not. `mmproj` is the file that was fetched with it.
fn pictures_of(
    source: &Source,
    model: &Model,
    mmproj: Option<&(String, u64)>,
    is_told: bool,
) -> Option<String> {
    match tower::attach_if_usable(source, model.clone()) {
        Ok(Some(_)) => Some(match mmproj {
            Some((file, bytes)) => format!(
                "its vision tower is {}, {}, which --no-mmproj leaves out; images are given with \
                 --image FILE",
                terminal::harmless(file),
                output::bytes(*bytes)
            ),
            None => "images are given with --image FILE".to_owned(),
        }),
        _ if is_told => None,
        Ok(None) => Some(match tower::why_never(model.config().family, model.config().hidden) {
            Some(why) => format!("it takes texts only: {why}; for images {}", seeing::other()),
            None => format!(
                "it takes texts only: its repository has no vision tower for it; for images name \
                 one with --mmproj FILE, or {}",
                seeing::other()
            ),
        }),
        Err(error) => Some(format!("it takes texts only: {error:#}")),
    }
}

/// Returns the name and the size in bytes of the vision tower that was fetched with a model.
fn mmproj(model: &LocalModel) -> Option<(String, u64)> {
    let path = model.mmproj.as_ref()?;
    let file = model.files.iter().find(|file| file.path == *path)?;
    Some((file.name.clone(), file.bytes))
}

/// Lists the local models and presets.
///
/// # Errors
/// Returns an error if the store cannot be read.
pub(crate) fn list(library: &ModelLibrary, args: ListArgs) -> Result<()> {
    let hub = library.hub()?;
    let entries = hub.list()?;
    if args.json {
        let entries = entries.iter().map(|entry| named(&entry.name, &entry.short, entry));
        // A preset may have a megabyte of text: only one is held at a time.
        let presets = hub.preset_names()?.into_iter();
        let presets = presets.filter_map(|name| hub.preset(&name).ok().flatten());
        return output::json_list(entries.chain(presets.map(|preset| Ok(preset_value(&preset)))));
    }
    let mut presets = Vec::new();
    hub.each_preset(|preset| presets.push(preset_row(&preset)))?;
    if args.quiet {
        let inside = Embedded::ALL.into_iter().map(|model| model.name().to_owned());
        let here = entries.iter().map(|entry| entry.short.clone());
        let mut own: Vec<String> = presets.into_iter().map(|row| row[0].clone()).collect();
        own.sort_by_key(|name| name.to_lowercase());
        let names: Vec<String> = inside.chain(here).chain(own).collect();
        return output::line(terminal::harmless(&names.join("\n")));
    }
    presets.sort_by_key(|row| row[0].to_lowercase());
    let inside = |model: Embedded| {
        let size = output::bytes(model.bytes().len() as u64);
        vec![model.name().to_owned(), size, model.purpose().to_owned()]
    };
    let mut rows: Vec<_> = Embedded::ALL.into_iter().map(inside).collect();
    rows.extend(entries.iter().map(row));
    rows.extend(presets);
    output::line(output::table(&["name", "size", "state"], rows, &[1]))
}

fn row(entry: &StoreEntry) -> Vec<String> {
    let harmless = |name: String| terminal::harmless(&name).into_owned();
    let (name, whole) = (harmless(entry.short.clone()), harmless(entry.name.to_string()));
    let mut state = match (entry.state, entry.origin) {
        (EntryState::Complete, origin) => match origin.place() {
            None => "complete".to_owned(),
            Some(place) => format!("complete, one of {place}"),
        },
        (EntryState::Partial, _) => {
            let share = entry.percent.map_or(String::new(), |percent| format!(" ({percent} %)"));
            format!("not finished{share}: `trine pull {name}` goes on")
        }
    };
    let is_cut = entry.files.iter().any(|file| !file.complete);
    if entry.state == EntryState::Complete && is_cut {
        state.push_str(&format!("; its mmproj file is not: `trine pull {name}` goes on"));
    }
    if name != whole {
        state.push_str(&format!("; {whole}"));
    }
    vec![name, output::bytes(entry.bytes), state]
}

/// Returns a model as JSON under the name by which people ask for it, with the repository beside.
fn named(name: &ModelName, short: &str, value: &impl Serialize) -> Result<Value> {
    let mut value = serde_json::to_value(value)?;
    value["name"] = short.into();
    value["repository"] = name.to_string().into();
    Ok(value)
}

fn preset_row(preset: &Preset) -> Vec<String> {
    let state = format!("preset of {}", terminal::harmless(&preset.from));
    vec![terminal::harmless(&preset.name).into_owned(), "-".to_owned(), state]
}

fn preset_value(preset: &Preset) -> Value {
    json!({
        "name": preset.name,
        "state": "preset",
        "from": preset.from,
        "system": preset.system,
        "parameters": preset.parameters,
        "messages": preset.messages,
    })
}

/// Removes a model or a preset.
///
/// # Errors
/// Returns an error if there is no such model in the store, it cannot be removed, or other presets
/// are based on the preset.
pub(crate) fn remove(library: &ModelLibrary, args: RemoveArgs) -> Result<()> {
    let hub = library.hub()?;
    if let Some(name) = preset_name(&hub, &args.model)? {
        let above = hub.presets_on(&name)?;
        if !above.is_empty() {
            bail!("{name} stays: {} on it; remove that first", stand(&above));
        }
        hub.remove_preset(&name)?;
        output::remark(format_args!("removed the preset {}", terminal::harmless(&name)));
        return Ok(());
    }
    let inventory = hub.inventory();
    let name = repository(library, &inventory, &args.model)?;
    // Looked up before the removal, because afterwards a short name no longer resolves.
    let above = presets_on(&hub, |from| {
        repository(library, &inventory, from)
            .is_ok_and(|base| base.repository() == name.repository())
    })?;
    let removed = hub.remove(&name).map_err(|error| match error {
        HubError::NotLocal { local, .. } => {
            let typed = terminal::harmless(&args.model);
            match local.is_empty() {
                true => anyhow!("{typed} is not on this machine; `trine list` shows what is"),
                false => anyhow!("{typed} is not on this machine; it has {}", local.join(", ")),
            }
        }
        error => error.into(),
    })?;
    output::remark(format_args!(
        "removed {}: {} {}, {}",
        removed.name,
        removed.files.len(),
        if removed.files.len() == 1 { "file" } else { "files" },
        output::bytes(removed.bytes)
    ));
    let rest = hub.inventory();
    let above: Vec<String> =
        above.into_iter().filter(|preset| !is_here(library, &hub, &rest, preset)).collect();
    if !above.is_empty() {
        output::warning(format_args!(
            "{} on it and cannot run until it is downloaded again",
            stand(&above)
        ));
    }
    Ok(())
}

/// Returns whether the model that a preset is based on is still in the store.
fn is_here(library: &ModelLibrary, hub: &Hub, inventory: &Inventory<'_>, preset: &str) -> bool {
    let base = hub.whole_preset(preset).ok().flatten();
    let name = base.and_then(|preset| repository(library, inventory, &preset.from).ok());
    name.is_some_and(|name| inventory.resolve(&name).is_ok_and(|model| model.is_some()))
}

/// Returns the name of a preset, even if its file is damaged, so that it can be removed.
fn preset_name(hub: &Hub, typed: &str) -> Result<Option<String>> {
    match hub.preset(typed) {
        Ok(preset) => Ok(preset.map(|preset| preset.name)),
        Err(trine_hub::HubError::InvalidPreset { .. }) => Ok(Some(typed.to_owned())),
        Err(error) => Err(error.into()),
    }
}

/// Returns the names of the presets whose base satisfies `is_meant`.
fn presets_on(hub: &Hub, is_meant: impl Fn(&str) -> bool) -> Result<Vec<String>> {
    let mut above = Vec::new();
    hub.each_preset(|preset| above.extend(is_meant(&preset.from).then_some(preset.name)))?;
    above.sort_by_key(|name| name.to_lowercase());
    Ok(above)
}

fn stand(names: &[String]) -> String {
    match names {
        [name] => format!("the preset {name} stands"),
        names => format!("the presets {} stand", names.join(", ")),
    }
}
