//! `trine create` and `cp`: presets.

use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, anyhow};
use trine_hub::{Hub, Preset, PresetName, PresetParameters};
use trine_session::embedded::Embedded;
use trine_session::fetch::Download;
use trine_session::library::ModelLibrary;
use trine_session::model_source::{Source, find};
use trine_session::modelfile::{self, Modelfile};

use crate::cli::{CopyArgs, CreateArgs, PresetArgs};
use crate::failure::usage;
use crate::preset;
use crate::settings::Settings;
use crate::terminal;
use crate::terminal::output;

/// The largest Modelfile that is read, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Creates a preset.
///
/// # Errors
/// Returns an error if there is no such model, the file holds something that cannot be used, or a
/// value is out of its range.
pub(crate) fn run(set: &Settings, args: CreateArgs) -> Result<()> {
    let library = &set.library;
    let name = name(&args.name)?;
    let file = args.file.as_deref().map(read).transpose()?;
    let (from, file) = match (args.from, file) {
        (from, Some(file)) => (from.unwrap_or_else(|| file.from.clone()), file),
        (Some(from), None) => (from, Modelfile::default()),
        (None, None) => return Err(usage("give the model with --from, or a Modelfile with -f")),
    };
    // Wrong parameters are refused before anything is fetched.
    let parameters = merged(&args.parameters, file.parameters)?;
    for note in &file.notes {
        output::note(note);
    }
    let hub = library.hub()?;
    let mut preset = Preset::new(&name, base(library, &hub, &from, args.fetch.download())?);
    preset.system = args.system.or(file.system);
    let template = args.template.read()?.map(|template| template.source().to_owned());
    preset.template = template.or(file.template);
    preset::template(&preset)?;
    preset.parameters = parameters;
    preset.messages = file.messages;
    save(&hub, &name, &preset)
}

/// Gives a model or preset another name.
///
/// # Errors
/// Returns an error if there is no such model, or the name is not valid.
pub(crate) fn copy(set: &Settings, args: CopyArgs) -> Result<()> {
    let library = &set.library;
    let name = name(&args.name)?;
    let hub = library.hub()?;
    let preset = match hub.preset(&args.from)? {
        Some(mut preset) => {
            preset.name = name.to_string();
            preset
        }
        None => Preset::new(&name, base(library, &hub, &args.from, args.fetch.download())?),
    };
    save(&hub, &name, &preset)
}

/// Saves a preset and prints whether it replaced another one.
fn save(hub: &Hub, name: &PresetName, preset: &Preset) -> Result<()> {
    // A preset that cannot be read is replaced too.
    let is_new = matches!(hub.preset(&name.to_string()), Ok(None));
    hub.save_preset(preset)?;
    let done = if is_new { "created" } else { "replaced" };
    output::remark(format_args!("{done} {name}, on {}", terminal::harmless(&preset.from)));
    output::remark(format_args!("run it with: trine run {name}"));
    Ok(())
}

/// Parses the name of a preset to be created.
fn name(typed: &str) -> Result<PresetName> {
    if Embedded::find(typed.strip_suffix(":latest").unwrap_or(typed)).is_some() {
        return Err(usage(format!("{typed} is a model inside this program; choose another name")));
    }
    PresetName::parse(typed).map_err(|error| usage(error.to_string()))
}

/// Returns the name of the base that a preset keeps: a preset's name as it is, else one that means
/// the same from every folder.
fn base(library: &ModelLibrary, hub: &Hub, from: &str, download: Download) -> Result<String> {
    if let Some(preset) = hub.preset(from)? {
        return Ok(preset.name);
    }
    let source = find(library, Some(from), download)?.source;
    // What was downloaded was judged then.
    if let Source::Path(_) = source {
        source.open(None)?;
    }
    Ok(source.lasting_name())
}

/// Merges the options with the parameters of a file; the options take precedence.
fn merged(typed: &PresetArgs, file: PresetParameters) -> Result<PresetParameters> {
    let mut merged = file;
    if !typed.stop.is_empty() {
        merged.stop.clear();
    }
    let text = |value: Option<f64>| value.map(|value| value.to_string());
    let number = |value: Option<usize>| value.map(|value| value.to_string());
    let mut options: Vec<(&str, &str, Option<String>)> = vec![
        ("temperature", "--temperature", text(typed.temperature)),
        ("top_k", "--top-k", typed.top_k.map(|value| value.to_string())),
        ("top_p", "--top-p", text(typed.top_p)),
        ("min_p", "--min-p", text(typed.min_p)),
        ("repetition_penalty", "--repetition-penalty", text(typed.repetition_penalty)),
        ("presence_penalty", "--presence-penalty", text(typed.presence_penalty)),
        ("frequency_penalty", "--frequency-penalty", text(typed.frequency_penalty)),
        ("seed", "--seed", typed.seed.map(|value| value.to_string())),
        ("max_tokens", "--max-tokens", number(typed.max_tokens)),
        ("context", "--context", number(typed.context)),
    ];
    options.extend(typed.stop.iter().map(|stop| ("stop", "--stop", Some(stop.clone()))));
    for (name, option, value) in options {
        if let Some(value) = value {
            merged.set(name, &value).map_err(|problem| usage(format!("{option}: {problem}")))?;
        }
    }
    Ok(merged)
}

fn read(path: &Path) -> Result<Modelfile> {
    let shown = path.display();
    let mut bytes = Vec::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes))
        .with_context(|| format!("cannot read {shown}; check the path and its permissions"))?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(anyhow!(
            "{shown} has more than {FILE_BYTES_MAX} bytes; it cannot be a Modelfile"
        ));
    }
    let text = String::from_utf8(bytes).map_err(|_| anyhow!("{shown} is not UTF-8 text"))?;
    let mut file = modelfile::parse(&text).map_err(|problem| anyhow!("{shown}, {problem}"))?;
    // A path in the file is relative to the file's folder, whatever the current folder is.
    let beside = path.parent().unwrap_or(Path::new("")).join(&file.from);
    let is_path = file.from.contains(['/', '\\']) || file.from.ends_with(".gguf");
    if is_path && beside.exists() {
        file.from = beside.display().to_string();
    }
    Ok(file)
}
