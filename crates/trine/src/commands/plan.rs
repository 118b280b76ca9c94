//! `trine plan`

mod npu;
mod pictures;
mod places;
mod texts;

use std::sync::Arc;

use anyhow::{Result, bail};
use serde::Serialize;
use serde_json::json;
use trine_backend::Device;
use trine_hub::catalog::{self, Known};
use trine_model::{KvType, Model, Workload};
use trine_session::device::{DeviceChoice, GpuOptions};
use trine_session::draft::Drafting;
use trine_session::fitting;
use trine_session::forecast::drafts::{DraftModel, GuessFacts};
use trine_session::forecast::{
    self, Basis, BasisKind, CountLaunches, Drafts, Generation, Guesser, Machine, PREFILL, PRESETS,
    Passes, Prompt, Work,
};
use trine_session::header::{Unread, find_shape};
use trine_session::library::ModelLibrary;
use trine_session::measured;
use trine_session::placed::Needs;
use trine_session::session::{Sizes, formats};
use trine_session::suiting::Suited;
use trine_session::tower;

use self::npu::NpuForecast;
use self::pictures::PictureForecast;
use self::places::Places;
use self::texts::TextRow;
use crate::cli::{Placement, PlanArgs};
use crate::failure::usage;
use crate::options;
use crate::settings::Settings;
use crate::terminal;
use crate::terminal::output;

/// The contexts that are forecast by default.
const CONTEXTS: [usize; 2] = [512, 8192];
/// The acceptance that is assumed: about that of the embedded model and its draft
/// (`docs/benchmarks/cpu.md`).
const ACCEPTANCE: f64 = 0.7;
/// The name that is typed for the processor of this machine.
const PROCESSOR: &str = "cpu";
/// The name that is typed for a GPU of this machine; `:` and its index, name or UUID may follow.
const GPU: &str = "vulkan";

/// A row of the generation table.
#[derive(Debug, Serialize)]
struct GenerationRow {
    #[serde(flatten)]
    forecast: Generation,
    /// Bytes of weights, keys and values, and activations.
    memory_bytes: u64,
    /// The same of the draft model, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    draft_bytes: Option<u64>,
    /// Whether the machine has that much memory; `None` if its memory is not known.
    fits: Option<bool>,
    /// If it does not fit: the number of layers that fit together with the output matrix. A
    /// processor beside a GPU runs the others.
    #[serde(skip_serializing_if = "Option::is_none")]
    layers_that_fit: Option<usize>,
    /// How many of these leave their experts to the processor.
    #[serde(skip_serializing_if = "Option::is_none")]
    experts_aside: Option<usize>,
}

/// A forecast and what it was computed from.
struct Forecast<'a> {
    name: String,
    model: &'a Model,
    machine: &'a Machine,
    kv: KvType,
    drafts: Drafts,
    /// The origin of the acceptance.
    acceptance: Basis,
    /// The model that guesses, if one does.
    draft: Option<DraftModel>,
    /// The work of one token of one sequence at the first context.
    token: Work,
    generation: Vec<GenerationRow>,
    prompts: Vec<Prompt>,
    /// Of a model that only embeds, in place of these two.
    texts: Vec<TextRow>,
    /// What a server runs at once, if the model fits.
    served: Option<Places>,
    /// A picture, if the model reads some.
    picture: Option<PictureForecast>,
    /// What an NPU would add, if the machine has one.
    npu: Option<NpuForecast>,
}

/// Forecasts the speed of a model on a machine.
///
/// # Errors
/// Returns an error if there is no such model or machine, the model is damaged, or a context
/// exceeds the model's.
pub(crate) fn run(set: &Settings, args: PlanArgs) -> Result<()> {
    let library = &set.library;
    check_rates(&args)?;
    check_threads(&args)?;
    let shown = match find_shape(library, args.model.as_deref(), args.fetch.unasked()) {
        Err(error) => return by_catalogue(library, &args, error),
        Ok(shown) => shown,
    };
    let source = shown.chosen.source.clone();
    let typed = Placement { kv: args.kv, quantize: args.quantize, ..Placement::default() };
    let settings = options::measuring(set, &typed, KvType::F16);
    let drafting = Drafting::typed(library, args.draft.as_ref(), args.fetch.unasked())?;
    let plain = source.open(settings.quantize)?;
    let seeing = tower::attach_if_any(library, &source, plain.clone(), &args.tower.choice())?;
    let (model, reading) = drafting.attach(library, &source, plain)?.first();
    let contexts = contexts(&source.name(), &args.context, model.config().context)?;
    let draft = drafting.find(library, &source, &model, &settings)?;
    let guessing = GuessFacts::of(draft.as_ref(), reading.as_ref(), &model);
    let (machine, launches) = machine(library, &args, &model)?;
    let plan = model.plan();
    let kv = settings.kv;
    let passes = Passes { plan: &plan, machine: &machine, launches: &launches, kv, piece: PREFILL };
    let served = Sizes::serving(None).guessing(&drafting).options(
        &source.name(),
        &model,
        &settings,
        library,
    )?;
    let placement = Places::placed(passes, &model, &served)?;
    let piece = placement.as_ref().map_or(PREFILL, |placement| placement.options.width.tokens);
    let passes = Passes { piece, ..passes };
    let embeds = model.config().family.only_embeds();
    let is_guessing = !drafting.is_off() && !embeds;
    let drafts = Drafts {
        tokens: if is_guessing { args.drafts } else { 0 },
        acceptance: args.acceptance.unwrap_or(ACCEPTANCE),
    };
    let pairs = || args.batch.iter().flat_map(|&batch| contexts.iter().map(move |&at| (batch, at)));
    // A model that only embeds has nothing to do with one of the two kinds.
    let (written, embedded) = if embeds { (0, usize::MAX) } else { (usize::MAX, 0) };
    let row = |(batch, at)| {
        generation_row(passes, (drafts, guessing.as_ref()), drafting.rows(batch), batch, at)
    };
    let draft = guessing.as_ref().map(|guessing| {
        let sizes = (args.batch[0], contexts[0]);
        DraftModel::new(guessing, passes, sizes, drafting.rows(args.batch[0]))
    });
    let forecast = Forecast {
        name: source.name(),
        model: &model,
        machine: &machine,
        kv: settings.kv,
        drafts,
        acceptance: acceptance_basis(args.acceptance),
        draft: draft.transpose()?,
        token: passes.work(Workload::decode(1, contexts[0] - 1, settings.kv))?,
        generation: pairs().take(written).map(row).collect::<Result<_>>()?,
        texts: pairs()
            .take(embedded)
            .map(|(batch, tokens)| TextRow::new(passes, batch, tokens))
            .collect::<Result<_>>()?,
        prompts: contexts
            .iter()
            .take(written)
            .map(|&at| forecast::prompt(passes, at))
            .collect::<Result<_, _>>()?,
        served: placement.map(|placement| Places::new(passes, &placement, embeds)).transpose()?,
        picture: PictureForecast::new(&seeing, &machine, &launches),
        npu: NpuForecast::new(passes, &contexts)?,
    };
    match args.json {
        true => output::json(&forecast.json()),
        false => output::block(&forecast.text(args.markdown)),
    }
}

/// Answers for a model of the catalogue whose header cannot be read what its shape says.
///
/// # Errors
/// Returns `error` if the model is not in the catalogue, or more is asked for.
fn by_catalogue(library: &ModelLibrary, args: &PlanArgs, error: anyhow::Error) -> Result<()> {
    let asks_more = args.json
        || args.markdown
        || args.device.is_some()
        || args.draft.is_some()
        || args.kv.is_some()
        || args.quantize.is_some()
        || args.threads.is_some()
        || args.acceptance.is_some()
        || [args.gbps, args.tops, args.gap].iter().any(Option::is_some)
        || !args.context.is_empty();
    let typed = args.model.as_deref().filter(|_| !asks_more);
    let (Some(unread), Some(Known::Model(model))) =
        (error.downcast_ref::<Unread>(), typed.and_then(catalog::find))
    else {
        return Err(error);
    };
    let suited = Suited::measured(library)?;
    let demand = model.demand(fitting::CONTEXT);
    output::line(format_args!(
        "About {} tokens/s on {}. Needs {} of memory{}.",
        suited.rate(model).map_or("-".to_owned(), output::short_rate),
        terminal::harmless(&suited.device()),
        output::about_bytes(demand.memory_bytes),
        suited
            .room
            .free
            .map_or(String::new(), |free| format!("; {} are free", output::bytes(free))),
    ))?;
    output::note(&format!(
        "by the sizes in the catalogue, with a context of {} tokens; the header of {} says more, \
         but cannot be read: {}",
        fitting::CONTEXT,
        model.name(),
        terminal::harmless(&unread.reason),
    ));
    Ok(())
}

/// Returns the origin of the acceptance.
fn acceptance_basis(given: Option<f64>) -> Basis {
    match given {
        Some(given) => Basis::new(BasisKind::Given, format!("acceptance of guesses {given}")),
        None => Basis::new(
            BasisKind::Assumed,
            format!(
                "acceptance of guesses {ACCEPTANCE}: demo with demo-draft and lookup has 0.71 to \
                 0.72 on held-out text (docs/benchmarks/cpu.md); it differs by model and text"
            ),
        ),
    }
}

/// Checks that a custom machine has both rates, because a forecast from only one of them would be a
/// guess.
fn check_rates(args: &PlanArgs) -> Result<()> {
    let (given, missing) = match (args.gbps, args.tops) {
        (Some(_), None) => ("--gbps", "--tops"),
        (None, Some(_)) => ("--tops", "--gbps"),
        _ => return Ok(()),
    };
    if args.device.is_none() {
        return Err(usage(format!(
            "{given} needs {missing} beside it, or --device with the machine to start from"
        )));
    }
    Ok(())
}

/// Checks that threads are given only for a machine that is measured.
fn check_threads(args: &PlanArgs) -> Result<()> {
    let is_measured = match args.device.as_deref() {
        None => args.gbps.is_none(),
        Some(name) => name == PROCESSOR,
    };
    if args.threads.is_some() && !is_measured {
        return Err(usage(format!(
            "--threads has a meaning with --device {PROCESSOR} only; leave it out"
        )));
    }
    Ok(())
}

/// Returns the contexts that were asked for, or those of [`CONTEXTS`] that the model was made for;
/// at least one.
fn contexts(name: &str, asked: &[usize], most: usize) -> Result<Vec<usize>> {
    if let Some(context) = asked.iter().find(|&&context| context > most) {
        bail!(
            "--context asks for {context} tokens, {} was made for {most}; use at most {most}",
            terminal::harmless(name)
        );
    }
    if !asked.is_empty() {
        return Ok(asked.to_vec());
    }
    let usual: Vec<usize> = CONTEXTS.into_iter().filter(|&context| context <= most).collect();
    Ok(if usual.is_empty() { vec![most.max(1)] } else { usual })
}

/// Returns the machine of a command line, and how many launches passes have on it.
fn machine(
    library: &ModelLibrary,
    args: &PlanArgs,
    model: &Model,
) -> Result<(Machine, CountLaunches)> {
    let (mut machine, launches) = match (args.device.as_deref(), args.gbps, args.tops) {
        (None, Some(gbps), Some(tops)) => {
            let launches: CountLaunches = Box::new(|plan, _, _| Ok(plan.steps.len()));
            (of_rates(gbps, tops), launches)
        }
        (None | Some(PROCESSOR), ..) => {
            let threads = args.threads.map(usize::from);
            let opened = DeviceChoice::Cpu.open(library, threads, None, GpuOptions::kept())?;
            let reads = measured::processor_reads(library, opened.threads)?;
            let device = opened.device;
            (measured::machine(library, device.as_ref(), model, &reads)?, launches_on(device))
        }
        (Some(name), ..) if is_gpu(name) => gpu(library, name, model)?,
        (Some(name), ..) => {
            let preset = forecast::preset(name).ok_or_else(|| unknown(name))?;
            (preset.machine(), launches_on(preset.gpu()))
        }
    };
    let mut given = Vec::new();
    if let Some(gbps) = args.gbps {
        given.push(format!("{} GB/s, reached and limit", output::rate(gbps)));
        (machine.gbps, machine.gbps_limit) = (gbps, gbps);
    }
    if let Some(tops) = args.tops {
        given.push(format!("{} Top/s of products with any number of rows", output::rate(tops)));
        (machine.tops_skinny, machine.tops_wide, machine.tops_limit) = (tops, tops, tops);
    }
    if let Some(gap) = args.gap {
        given.push(format!("{} us between launches", output::rate(gap)));
        machine.gap_us = gap;
    }
    machine.sources.extend(given.into_iter().map(|text| Basis::new(BasisKind::Given, text)));
    Ok((machine, launches))
}

fn launches_on(device: Arc<dyn Device>) -> CountLaunches {
    Box::new(move |plan, options, step| device.launches(plan, options, step))
}

/// Returns whether a name is that of a GPU of this machine.
fn is_gpu(name: &str) -> bool {
    name.strip_prefix(GPU).is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
}

/// Measures a GPU of this machine.
fn gpu(library: &ModelLibrary, name: &str, model: &Model) -> Result<(Machine, CountLaunches)> {
    let choice = DeviceChoice::parse(name)
        .map_err(|reason| usage(format!("--device {}: {reason}", terminal::harmless(name))))?;
    if matches!(&choice, DeviceChoice::Vulkan(choices) if choices.len() > 1) {
        return Err(usage(
            "`plan` forecasts the speed of one device: give --device with one GPU".to_owned(),
        ));
    }
    // Only rates are measured, so the GPU is opened as for a model that was loaded before.
    let opened = choice.open(library, None, None, GpuOptions::kept())?;
    let gpu = opened.gpus.first().unwrap_or(&opened.device);
    Ok((measured::gpu_machine(library, gpu.as_ref(), model)?, launches_on(Arc::clone(gpu))))
}

/// Creates a machine of which only two rates are known.
fn of_rates(gbps: f64, tops: f64) -> Machine {
    Machine {
        name: "a machine of these rates".to_owned(),
        gbps,
        gbps_limit: gbps,
        tops_skinny: tops,
        tops_wide: tops,
        tops_limit: tops,
        gap_us: 0.0,
        memory_bytes: None,
        has_own_memory: false,
        has_npu: false,
        sources: vec![Basis::new(
            BasisKind::Assumed,
            "no gap between launches, one for each step of the Plan, unless --gap gives one",
        )],
    }
}

fn unknown(name: &str) -> anyhow::Error {
    let keys: Vec<&str> =
        [PROCESSOR, GPU].into_iter().chain(PRESETS.iter().map(|preset| preset.key)).collect();
    let close = output::close_names(name, keys.iter().copied());
    let close = match close.first() {
        Some(close) => format!(" (did you mean {close}?)"),
        None => String::new(),
    };
    usage(format!(
        "--device {} is not a machine with known rates{close}. Known are {}; for any other give \
         --gbps and --tops",
        terminal::harmless(name),
        keys.join(", ")
    ))
}

fn generation_row(
    passes: Passes<'_>,
    (drafts, guessing): (Drafts, Option<&GuessFacts>),
    rows: usize,
    batch: usize,
    context: usize,
) -> Result<GenerationRow> {
    let Passes { plan, machine, kv, .. } = passes;
    let needs = Needs::new(batch, context, kv).with_outputs(rows);
    let memory_bytes = needs.memory(plan).total();
    let draft_bytes = guessing.map(|own| own.memory(plan, (batch, context), rows, kv).total());
    let guesser = guessing.map_or(Guesser::Text, |own| {
        Guesser::Model(Passes { plan: &own.guess, ..passes }, own.most.unwrap_or(usize::MAX))
    });
    // The draft model takes its part first.
    let left = |bytes: u64| bytes.saturating_sub(draft_bytes.unwrap_or(0));
    let least = machine.memory_bytes.map(left).filter(|left| memory_bytes > *left);
    let fitting = least.map(|bytes| needs.fitting(plan, bytes)).transpose()?;
    Ok(GenerationRow {
        forecast: forecast::generation(passes, (drafts, guesser), batch, context)?,
        memory_bytes,
        draft_bytes,
        fits: machine.memory_bytes.map(|_| least.is_none()),
        layers_that_fit: fitting.map(|fitting| fitting.layers),
        experts_aside: fitting.map(|found| found.without_experts).filter(|&layers| layers > 0),
    })
}

impl Forecast<'_> {
    fn json(&self) -> serde_json::Value {
        json!({
            "model": self.name,
            "formats": formats(self.model),
            "kv": self.kv,
            "machine": self.machine,
            "token": self.token,
            "drafts": {
                "tokens": self.drafts.tokens,
                "acceptance": self.drafts.acceptance,
                "acceptance_source": self.acceptance,
                "tokens_per_pass": self.drafts.tokens_per_pass(),
                "model": self.draft.as_ref().map(DraftModel::json),
            },
            "generation": self.generation,
            "prompt": self.prompts,
            "texts": self.texts,
            "served": self.served,
            "picture": self.picture,
            "npu": self.npu.as_ref().map(NpuForecast::json),
        })
    }

    fn text(&self, markdown: bool) -> String {
        let Machine { gbps, gbps_limit, tops_skinny, tops_wide, tops_limit, gap_us, .. } =
            self.machine;
        let rate = |value: &f64| output::rate(*value);
        let mut text = self.summary();
        text.push_str(&format!(
            "{}: {}; each token reads {} of weights and takes {} operations in {} launches\n{}\
             {}: {} of {} GB/s; products at {} Top/s up to 64 rows, {} above, of {}; {}\n\n",
            terminal::harmless(&self.name),
            formats(self.model).join(" "),
            output::bytes(self.token.weight_bytes),
            output::count(self.token.product_operations),
            self.token.launches,
            self.draft.as_ref().map_or(String::new(), DraftModel::text),
            terminal::harmless(&self.machine.name),
            rate(gbps),
            rate(gbps_limit),
            rate(tops_skinny),
            rate(tops_wide),
            rate(tops_limit),
            match *gap_us {
                0.0 => "pauses between launches not counted".to_owned(),
                gap => format!("{} us between launches", output::rate(gap)),
            },
        ));
        if self.texts.is_empty() {
            text.push_str(&self.generation_table(markdown));
            text.push_str("\n\n");
            text.push_str(&self.prompt_table(markdown));
        } else {
            let rows = self.texts.iter().map(TextRow::cells).collect();
            text.push_str(&table(markdown, &texts::HEADER, rows, &[1, 2, 3, 4, 6]));
        }
        if let Some(picture) = &self.picture {
            text.push_str("\n\n");
            text.push_str(&table(markdown, &pictures::HEADER, vec![picture.row()], &[1, 2, 4]));
        }
        if let Some(npu) = self.npu.as_ref().filter(|npu| npu.gains()) {
            text.push_str("\n\n");
            text.push_str(&table(markdown, &npu::HEADER, npu.rows(), &[2, 3, 4]));
        }
        text.push_str(&format!(
            "\n\nForecasts, not measurements; tokens per second are sums over all requests. KV \
             cache: {}.\n{}",
            self.kv.name(),
            if self.texts.is_empty() { self.about_drafts() } else { String::new() },
        ));
        text.push_str(&self.served.as_ref().map_or(String::new(), Places::about));
        text.push_str(&self.picture.as_ref().map_or(String::new(), PictureForecast::about));
        text.push_str(&self.misfits());
        text.push_str(&self.npu.as_ref().map_or(String::new(), NpuForecast::about));
        let acceptance = (self.drafts.tokens > 0).then_some(&self.acceptance);
        for Basis { kind, text: source } in self.machine.sources.iter().chain(acceptance) {
            text.push_str(&format!("  {:<9} {}\n", kind.name(), terminal::harmless(source)));
        }
        let npu = self.npu.as_ref().map_or(Vec::new(), NpuForecast::sources);
        for (kind, source) in npu {
            text.push_str(&format!("  {:<9} {source}\n", kind.name()));
        }
        text
    }

    /// Says in a line what most people want to know.
    fn summary(&self) -> String {
        if let Some(first) = self.texts.first() {
            return first.summary(self.machine.memory_bytes);
        }
        let (Some(row), Some(prompt)) = (self.generation.first(), self.prompts.first()) else {
            return String::new();
        };
        let memory = output::bytes(row.memory_bytes);
        let all = self.machine.memory_bytes.map(output::bytes);
        format!(
            "About {} tokens/s; the first word of a prompt of {} tokens after {}. Needs {memory}{} \
             of memory.\n\n",
            output::short_rate(row.forecast.tokens_per_second),
            prompt.tokens,
            output::seconds(prompt.first_token_seconds),
            all.map_or(String::new(), |all| format!(" of {all}")),
        )
    }

    /// Says what guesses, and what that costs in the forecast.
    fn about_drafts(&self) -> String {
        let Drafts { tokens, acceptance } = self.drafts;
        if tokens == 0 {
            return "Drafts: none.\n".to_owned();
        }
        let guesses = match tokens {
            1 => "1 guess".to_owned(),
            _ => format!("{tokens} guesses"),
        };
        let whose = match &self.draft {
            None => "from the text so far, at no cost".to_owned(),
            Some(draft) => {
                format!("by {}, each a pass at the same rates", terminal::harmless(&draft.name))
            }
        };
        let mut text = format!(
            "Drafts: {guesses} a pass and request {whose}. If each is right {:.0} % of the time, a \
             pass of {} rows gives a request {} tokens. trine guesses only if that pays.\n",
            100.0 * acceptance,
            tokens + 1,
            output::rate(self.drafts.tokens_per_pass()),
        );
        let reaches =
            |most: usize| self.generation.iter().all(|row| row.forecast.context + tokens <= most);
        let draft = self.draft.as_ref().and_then(|draft| Some((draft, draft.most?)));
        if let Some((draft, most)) = draft.filter(|(_, most)| !reaches(*most)) {
            text.push_str(&format!(
                "{} was made for {} and guesses nothing beyond: contexts without room for the \
                 guesses are as without drafts.\n",
                terminal::harmless(&draft.name),
                output::counted(most, "token"),
            ));
        }
        text
    }

    /// Explains the exclamation marks, if there are any.
    fn misfits(&self) -> String {
        let Some(bytes) = self.machine.memory_bytes else { return String::new() };
        let misfit = |row: &&GenerationRow| row.layers_that_fit.is_some();
        let Some(row) = self.generation.iter().find(misfit) else { return String::new() };
        let layers = row.layers_that_fit.unwrap_or_default();
        let experts = row
            .experts_aside
            .map_or(String::new(), |experts| format!(" without the experts of {experts}"));
        format!(
            "!: {} not fit the machine's memory of {}; {layers} of {} layers{experts} would with \
             {} of {}. A CPU beside a GPU runs the rest, at a speed of its own.\n",
            if self.draft.is_some() { "model and draft together do" } else { "does" },
            output::bytes(bytes),
            self.model.config().layers.len(),
            output::counted(row.forecast.batch, "request"),
            output::counted(row.forecast.context, "token"),
        )
    }

    fn generation_table(&self, markdown: bool) -> String {
        let mut header =
            vec!["generation", "context", "tok/s", "limit", "with drafts", "bound by", "memory"];
        if self.draft.is_some() {
            header.push("draft memory");
        }
        let row = |row: &GenerationRow| {
            let Generation { batch, context, tokens_per_second, limit, with_drafts, bound } =
                row.forecast;
            let mut cells = vec![
                output::counted(batch, "request"),
                context.to_string(),
                output::rate(tokens_per_second),
                output::rate(limit),
                output::rate(with_drafts),
                bound.name().to_owned(),
                output::bytes(row.memory_bytes),
            ];
            cells.extend(row.draft_bytes.map(output::bytes));
            if let Some(last) = cells.last_mut().filter(|_| row.fits == Some(false)) {
                last.push_str(" !");
            }
            cells
        };
        let rows = self.generation.iter().map(row).collect();
        table(markdown, &header, rows, &[1, 2, 3, 4, 6, 7])
    }

    fn prompt_table(&self, markdown: bool) -> String {
        let header = ["prompt", "tok/s", "limit", "first token", "bound by"];
        let row = |prompt: &Prompt| {
            vec![
                format!("{} tokens", prompt.tokens),
                output::rate(prompt.tokens_per_second),
                output::rate(prompt.limit),
                output::seconds(prompt.first_token_seconds),
                prompt.bound.name().to_owned(),
            ]
        };
        let rows = self.prompts.iter().map(row).collect();
        table(markdown, &header, rows, &[1, 2, 3])
    }
}

fn table(markdown: bool, header: &[&str], rows: Vec<Vec<String>>, right: &[usize]) -> String {
    match markdown {
        true => output::markdown(header, rows, right),
        false => output::table(header, rows, right),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usual_contexts_end_where_the_model_ends() {
        assert_eq!(contexts("m", &[], 131_072).unwrap(), [512, 8192]);
        assert_eq!(contexts("m", &[], 4096).unwrap(), [512]);
        assert_eq!(contexts("m", &[], 256).unwrap(), [256]);
        assert_eq!(contexts("m", &[100, 7], 256).unwrap(), [100, 7]);
        let error = contexts("m", &[257], 256).unwrap_err().to_string();
        assert!(error.contains("257") && error.contains("at most 256"), "{error}");
    }

    #[test]
    fn unknown_machines_are_named_with_those_that_are_known() {
        let error = unknown("790m").to_string();
        assert!(error.contains("790m") && error.contains("--gbps"), "{error}");
        for preset in &PRESETS {
            assert!(error.contains(preset.key), "{error}");
        }
    }
}
