//! `trine show`

mod draft;

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde::Serialize;
use serde_json::{Value, json};
use trine_backend::Memory;
use trine_engine::EngineOptions;
use trine_hub::{EntryState, Preset, StoreEntry};
use trine_model::{AttentionKind, GenerationDefaults, KvType, Model};
use trine_session::draft::{Draft, Drafting};
use trine_session::expert_summary::Experts;
use trine_session::forecast::drafts::GuessFacts;
use trine_session::header::find_shape;
use trine_session::library::ModelLibrary;
use trine_session::model_source::{Chosen, Resolved, Source, resolve};
use trine_session::placed::{Needs, memory_json};
use trine_session::tower;
use trine_session::vocabulary;
use trine_weights::Tensor;

use super::formats::{self, FormatTotals};
use crate::cli::{Placement, ShowArgs};
use crate::options;
use crate::preset;
use crate::settings::Settings;
use crate::terminal;
use crate::terminal::output;

/// Facts about the tokenizer and the chat template.
#[derive(Serialize)]
struct TextFacts {
    tokens: usize,
    bos: Option<u32>,
    eos: Vec<u32>,
    chat_template: bool,
}

/// The output of `show`.
#[derive(Serialize)]
struct Report {
    model: String,
    files: String,
    file_bytes: u64,
    architecture: &'static str,
    parameters: u64,
    context: usize,
    layers: usize,
    global_layers: usize,
    window: Option<usize>,
    hidden: usize,
    feed_forward: Vec<usize>,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    vocabulary: usize,
    tied: bool,
    formats: BTreeMap<&'static str, FormatTotals>,
    text: Option<TextFacts>,
    text_problem: Option<String>,
    defaults: GenerationDefaults,
    /// The experts of its layers, if it has any.
    #[serde(skip_serializing_if = "Option::is_none")]
    experts: Option<Experts>,
    /// What reads pictures for it, if anything.
    #[serde(skip_serializing_if = "Option::is_none")]
    vision: Option<tower::Report>,
    memory: Footprint,
    /// The model that guesses tokens for it, if one does.
    draft: Option<DraftReport>,
}

/// The memory of a model that runs one sequence.
#[derive(Serialize)]
struct Footprint {
    /// Positions of the sequence.
    context: usize,
    #[serde(flatten)]
    bytes: Value,
    #[serde(skip)]
    memory: Memory,
}

/// A model that guesses tokens.
#[derive(Serialize)]
struct DraftReport {
    model: String,
    parameters: u64,
    file_bytes: u64,
    memory: Footprint,
}

/// Describes a model.
///
/// # Errors
/// Returns an error if there is no such model or it is damaged.
pub(crate) fn run(set: &Settings, args: ShowArgs) -> Result<()> {
    let library = &set.library;
    if let Some(entry) = partial(library, args.model.as_deref())? {
        return show_partial(&entry, args.json);
    }
    let shown = find_shape(library, args.model.as_deref(), args.fetch.unasked())?;
    let Chosen { source, preset } = shown.chosen.clone();
    if args.template {
        return show_template(&source, preset.as_deref());
    }
    if let Some(draft) = source.open_assistant()? {
        return draft::run(&source, &draft, &args);
    }
    let plain = source.open(None)?;
    let settings = options::measuring(set, &Placement::default(), KvType::F16);
    let drafting = Drafting::typed(library, args.draft.as_ref(), args.fetch.unasked())?;
    let (model, reading) = drafting.attach(library, &source, plain)?.first();
    let draft = match drafting.find(library, &source, &model, &settings)? {
        Some(draft) => Some(draft_report(&draft)?),
        None => reading_report(reading.as_ref(), &model)?,
    };
    let seeing = tower::attach_if_any(library, &source, model.clone(), &tower::TowerChoice::Found)?;
    let mut report =
        Report { vision: tower::Report::of(&seeing), ..report(&source, &model, draft)? };
    if let Some(file) = &shown.on_server {
        report.files = format!("{file} on the server");
    }
    if args.json {
        let mut value = serde_json::to_value(&report)?;
        if let Some(preset) = &preset {
            value["preset"] = serde_json::to_value(preset)?;
        }
        if args.tensors {
            value["tensors"] = model
                .tensors()
                .map(|(name, tensor)| {
                    let format = tensor.dtype().name();
                    json!({"name": name, "format": format, "shape": tensor.shape()})
                })
                .collect();
        }
        return output::json(&value);
    }
    if let Some(preset) = &preset {
        output::line(describe_preset(preset))?;
    }
    output::line(describe(&report))?;
    if args.tensors {
        let rows = model.tensors().map(|(name, tensor)| {
            vec![name, tensor.dtype().name().to_owned(), format!("{:?}", tensor.shape())]
        });
        output::line(output::table(&["tensor", "format", "shape"], rows.collect(), &[]))?;
    }
    Ok(())
}

/// Prints the chat template of a model as it is.
fn show_template(source: &Source, preset: Option<&Preset>) -> Result<()> {
    let own = preset.map(preset::template).transpose()?.flatten();
    let template = match own {
        Some(own) => own,
        None => vocabulary::template(source.open(None)?.checkpoint())?
            .with_context(|| format!("{} has no chat template", source.name()))?,
    };
    output::text(template.source())
}

/// Returns the entry of a model whose download is not complete.
fn partial(library: &ModelLibrary, text: Option<&str>) -> Result<Option<StoreEntry>> {
    let Some(Resolved::Missing(missing)) = text.map(|text| resolve(library, text)).transpose()?
    else {
        return Ok(None);
    };
    let entry = library.hub()?.show(&missing.name).ok();
    Ok(entry.filter(|entry| entry.state == EntryState::Partial))
}

fn show_partial(entry: &StoreEntry, as_json: bool) -> Result<()> {
    if as_json {
        return output::json(entry);
    }
    let share = entry.percent.map_or("partly".to_owned(), |percent| format!("{percent} %"));
    output::line(format_args!(
        "{} is not complete: {share} ({}) is here; `trine pull {0}` continues",
        entry.name,
        output::bytes(entry.bytes)
    ))?;
    for file in &entry.files {
        let total = file.total.map_or("unknown size".to_owned(), output::bytes);
        let state = if file.complete { "complete" } else { "partial" };
        let name = terminal::harmless(&file.name).into_owned();
        output::line(format_args!("  {name}: {} of {total}, {state}", output::bytes(file.bytes)))?;
    }
    Ok(())
}

/// Returns what one sequence of the usual length takes.
fn footprint(model: &Model) -> Result<Footprint> {
    let demand = EngineOptions::default().demand(model.config().context)?;
    let memory = Needs::new(1, demand.context(), KvType::F16).memory(&model.plan());
    Ok(Footprint { context: demand.context(), bytes: memory_json(&memory), memory })
}

/// Returns the elements of all tensors.
fn parameters(model: &Model) -> u64 {
    model.tensors().map(|(_, tensor)| tensor.elements() as u64).sum()
}

fn draft_report(draft: &Draft) -> Result<DraftReport> {
    Ok(DraftReport {
        model: draft.source.name(),
        parameters: parameters(&draft.model),
        file_bytes: draft.model.checkpoint().file_bytes(),
        memory: footprint(&draft.model)?,
    })
}

/// Reports on a draft that reads the caches of a model, if it has one.
fn reading_report(source: Option<&Source>, model: &Model) -> Result<Option<DraftReport>> {
    let Some((source, draft)) = source.zip(model.assistant()) else { return Ok(None) };
    let Some(guessing) = GuessFacts::of(None, Some(source), model) else { return Ok(None) };
    let context = EngineOptions::default().demand(model.config().context)?.context();
    let memory = guessing.memory(&model.plan(), (1, context), 0, KvType::F16);
    let tensors = draft.tensors()?;
    Ok(Some(DraftReport {
        model: source.name(),
        parameters: tensors.iter().map(|(_, tensor)| tensor.elements() as u64).sum(),
        file_bytes: draft.checkpoint().file_bytes(),
        memory: Footprint { context, bytes: memory_json(&memory), memory },
    }))
}

fn report(source: &Source, model: &Model, draft: Option<DraftReport>) -> Result<Report> {
    let config = model.config();
    let first = &config.layers[0];
    let tensors: Vec<(String, &Tensor)> = model.tensors().collect();
    let formats = formats::of(tensors.iter().map(|(_, tensor)| *tensor));
    let mut feed_forward: Vec<usize> =
        config.layers.iter().map(|layer| layer.feed_forward).collect();
    feed_forward.dedup();
    let (text, text_problem) = match text_facts(model) {
        Ok(facts) => (Some(facts), None),
        Err(error) => (None, crate::failure::message(&error)),
    };
    Ok(Report {
        model: source.name(),
        files: model.checkpoint().source().display().to_string(),
        file_bytes: model.checkpoint().file_bytes(),
        architecture: config.family.name(),
        parameters: parameters(model),
        context: config.context,
        layers: config.layers.len(),
        global_layers: config
            .layers
            .iter()
            .filter(|layer| layer.attention == AttentionKind::Global)
            .count(),
        window: config.layers.iter().find_map(|layer| layer.attention.window()),
        hidden: config.hidden,
        feed_forward,
        heads: first.heads,
        kv_heads: first.kv_heads,
        head_dim: first.head_dim,
        vocabulary: config.vocabulary,
        tied: model.is_tied(),
        formats,
        text,
        text_problem,
        defaults: model.defaults().clone(),
        experts: Experts::of(model),
        vision: None,
        memory: footprint(model)?,
        draft,
    })
}

fn text_facts(model: &Model) -> Result<TextFacts> {
    let mut tokenizer = vocabulary::tokenizer(model.checkpoint())?;
    tokenizer.add_eos_ids(&model.defaults().stop_ids);
    Ok(TextFacts {
        tokens: tokenizer.vocabulary_size(),
        bos: tokenizer.bos_id(),
        eos: tokenizer.eos_ids().to_vec(),
        chat_template: vocabulary::template(model.checkpoint())?.is_some(),
    })
}

/// Describes what a preset sets, including the presets that it is based on.
fn describe_preset(preset: &Preset) -> String {
    let mut lines = vec![format!("preset       {}, on {}", preset.name, preset.from)];
    if let Some(system) = &preset.system {
        lines.push(format!("system       {}", system.replace('\n', "\n             ")));
    }
    for (name, value) in preset::described(&preset.parameters) {
        lines.push(format!("parameter    {name} {value}"));
    }
    if !preset.messages.is_empty() {
        lines.push(format!("messages     {}", preset.messages.len()));
    }
    terminal::harmless(&lines.join("\n")).into_owned()
}

fn describe_memory(footprint: &Footprint) -> String {
    let Footprint { context, memory, .. } = footprint;
    format!(
        "{} with one request of {}: {} of weights, {} of KV cache, {} of activations",
        output::bytes(memory.total()),
        output::counted(*context, "token"),
        output::bytes(memory.weights),
        output::bytes(memory.caches),
        output::bytes(memory.scratch),
    )
}

fn describe(report: &Report) -> String {
    let mut lines = formats::describe_files(
        &report.model,
        (&report.files, report.file_bytes),
        (report.architecture, report.parameters),
    );
    lines.extend([
        format!("context      {} tokens", report.context),
        format!(
            "layers       {} ({} global{})",
            report.layers,
            report.global_layers,
            report
                .window
                .map_or(String::new(), |window| format!(", the others see {window} tokens"))
        ),
        format!(
            "sizes        hidden {}, feed-forward {}, {} heads, {} key-value heads of {}",
            report.hidden,
            report.feed_forward.iter().map(ToString::to_string).collect::<Vec<_>>().join("/"),
            report.heads,
            report.kv_heads,
            report.head_dim
        ),
        format!(
            "vocabulary   {}, output matrix {}",
            report.vocabulary,
            if report.tied { "tied to the embedding" } else { "of its own" }
        ),
    ]);
    lines.extend(report.experts.map(|experts| format!("experts      {}", experts.text())));
    lines.extend(formats::describe(&report.formats));
    lines.extend(report.vision.iter().flat_map(tower::Report::lines));
    match &report.text {
        Some(text) => lines.push(format!(
            "tokenizer    {} tokens; texts begin with {}, answers end at {}",
            text.tokens,
            text.bos.map_or("none of their own".to_owned(), |id| format!("token {id}")),
            match text.eos.as_slice() {
                [] => "no token".to_owned(),
                [id] => format!("token {id}"),
                [ids @ .., last] => format!(
                    "tokens {} and {last}",
                    ids.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
                ),
            }
        )),
        None => lines.push(format!(
            "tokenizer    {}",
            terminal::harmless(report.text_problem.as_deref().unwrap_or("no tokenizer"))
        )),
    }
    lines.extend(report.text.as_ref().map(|text| match text.chat_template {
        true => "chat         has a chat template".to_owned(),
        false => "chat         none: a base model, which continues texts".to_owned(),
    }));
    let defaults = &report.defaults;
    lines.push(format!(
        "defaults     temperature {}, top-k {}, top-p {}, min-p {}",
        defaults.temperature, defaults.top_k, defaults.top_p, defaults.min_p
    ));
    lines.push(format!("memory       {}", describe_memory(&report.memory)));
    if let Some(draft) = &report.draft {
        lines.push(format!(
            "draft        {}, {}, {} parameters",
            terminal::harmless(&draft.model),
            output::bytes(draft.file_bytes),
            output::count(draft.parameters)
        ));
        lines.push(format!("  memory     {}", describe_memory(&draft.memory)));
        lines.push(format!(
            "  both       {}; `trine explain --device` says where they have room",
            output::bytes(report.memory.memory.total() + draft.memory.memory.total())
        ));
    }
    lines.join("\n")
}
