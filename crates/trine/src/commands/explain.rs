//! `trine explain`

use anyhow::{Context, Result, bail};
use serde::Serialize;
use serde_json::{Value, json};
use trine_backend::Memory;
use trine_backend::placement::CONTEXT_USUAL;
use trine_model::{Cost, KvType, Model, Plan, Workload};
use trine_session::device::{DeviceChoice, GpuOptions};
use trine_session::draft::{self, Drafting};
use trine_session::expert_summary::Experts;
use trine_session::forecast::PREFILL;
use trine_session::forecast::drafts::GuessFacts;
use trine_session::forecast::{PRESETS, Preset, preset};
use trine_session::header::find_shape;
use trine_session::library::ModelLibrary;
use trine_session::model_source::Source;
use trine_session::npu;
use trine_session::options::Options;
use trine_session::placed::drafts::{self as placed_drafts, PlacedDraft};
use trine_session::placed::{Needs, Placed, memory_json};
use trine_session::planner::{Asked, Devices};
use trine_session::session::{Sizes, formats};

use crate::cli::{DraftArgs, ExplainArgs};
use crate::failure::usage;
use crate::options;
use crate::settings::Settings;
use crate::{terminal, terminal::output};

/// Cost of one kind of step.
#[derive(Debug, Serialize)]
struct StepCost {
    what: String,
    tokens: usize,
    #[serde(flatten)]
    cost: Cost,
    memory_bytes: u64,
    operations_per_byte: f64,
}

/// Prints memory and cost of a model, and its Plan if asked for; with a device, how it would run
/// there.
///
/// # Errors
/// Returns an error if there is no such model, it is damaged, or the numbers asked for exceed its
/// context.
pub(crate) fn run(set: &Settings, args: ExplainArgs) -> Result<()> {
    let library = &set.library;
    check(&args)?;
    let shown = find_shape(library, args.model.as_deref(), args.fetch.unasked())?;
    let source = shown.chosen.source.clone();
    if args.placement.device.is_some() {
        return on_devices(set, &args, &source);
    }
    let settings =
        Options { kv_memory: None, ..options::measuring(set, &args.placement, KvType::F16) };
    let plain = source.open(settings.quantize)?;
    let most = plain.config().context;
    for (what, found) in [("-p", args.prompt), ("--depth", args.depth.saturating_add(1))] {
        if found > most {
            bail!(
                "{what} asks for {found} tokens, {} was made for {most}; use at most {most}",
                source.name()
            );
        }
    }
    let drafting = Drafting::typed(library, args.draft.as_ref(), args.fetch.unasked())?;
    let (model, reading) = drafting.attach(library, &source, plain)?.first();
    let draft = drafting.find(library, &source, &model, &settings)?;
    let options = Sizes::default().options(&source.name(), &model, &settings, library)?;
    let asked = options.demand(most)?.context();
    // An open context is as long as memory goes, and here no memory is looked at.
    let context = if options.context.is_none() { asked.min(CONTEXT_USUAL) } else { asked };
    let plan = model.plan();
    let memory = Needs::new(1, context, settings.kv).memory(&plan);
    let draft = GuessFacts::of(draft.as_ref(), reading.as_ref(), &model).map(|draft| {
        let memory = draft.memory(&plan, (1, context), 0, settings.kv);
        (draft.within(context), memory, draft)
    });
    let own = draft.as_ref().map(|(_, _, draft)| draft).filter(|_| reading.is_some());
    let costs = costs(&args, &plan, own, settings.kv);
    // A draft that reads the model's caches is a goal of its Plan.
    let joined = draft.as_ref().and_then(|(_, _, draft)| draft.joined.as_ref());
    let shown = joined.unwrap_or(&plan);
    let experts = Experts::of(&model);
    if args.json {
        return output::json(&json!({
            "model": source.name(),
            "context": context,
            "kv": settings.kv,
            "memory": memory_json(&memory),
            "draft": draft.as_ref().map(|(context, memory, draft)| json!({
                "model": draft.name,
                "context": context,
                "memory": memory_json(memory),
            })),
            "experts": experts,
            "costs": costs,
            "plan": steps(shown, Workload::decode(1, args.depth, settings.kv)),
        }));
    }
    let mut text = describe(&source.name(), &model, context, settings.kv, &memory, &costs);
    if let Some(experts) = experts {
        text.push_str(&format!("\nExperts\n  {}\n", experts.text()));
    }
    if let Some((context, own, draft)) = &draft {
        text.push_str(&placed_drafts::needs_text(draft, *context, own, &memory));
    }
    if args.plan {
        text.push_str(&format!(
            "\nPlan (n: tokens of the step, m: tokens whose logits are wanted)\n{shown}"
        ));
    } else {
        text.push_str(&format!("\nA pass is {} steps, which --plan lists\n", shown.steps.len()));
    }
    output::block(&text)
}

/// Checks that options are given only where they have a meaning.
fn check(args: &ExplainArgs) -> Result<()> {
    let device = args.placement.device.as_ref();
    let machine = match device {
        Some(DeviceChoice::Machine(name)) => Some(named(name)?),
        _ => None,
    };
    if args.memory.is_some() && machine.is_none() {
        let machines: Vec<&str> = PRESETS.iter().map(|preset| preset.key).collect();
        return Err(usage(format!(
            "--memory is for a machine that need not be here: give --device with one of {}",
            machines.join(", ")
        )));
    }
    for (is_given, option) in [
        (args.sequences.is_some(), "--sequences"),
        (args.placement.kv_memory.is_some(), "--kv-memory"),
        (args.placement.gpu_layers.is_some(), "--gpu-layers"),
        (args.placement.batch_invariant, "--batch-invariant"),
        (args.placement.npu.is_some(), "--npu"),
        (args.draft_device.is_some(), "--draft-device"),
    ] {
        if is_given && device.is_none() {
            return Err(usage(format!(
                "{option} changes where a model has room: give --device beside it"
            )));
        }
    }
    if args.placement.npu.is_some() && machine.is_some() {
        return Err(usage(
            "--npu is for the processor of this machine: give --device cpu beside it, or leave it \
             out"
            .to_owned(),
        ));
    }
    if args.draft_device.is_some() && machine.is_some() {
        return Err(usage(
            "--draft-device names a device of this machine: give --device with one too".to_owned(),
        ));
    }
    if args.depth > 0 && device.is_some() {
        return Err(usage("--depth changes the cost, which is shown without --device".to_owned()));
    }
    Ok(())
}

/// Returns the machine with this name.
fn named(name: &str) -> Result<&'static Preset> {
    preset(name).ok_or_else(|| {
        let machines: Vec<&str> = PRESETS.iter().map(|preset| preset.key).collect();
        let all = ["auto", "cpu", "reference", "vulkan"].into_iter().chain(machines.clone());
        let close = match output::close_names(name, all).first() {
            Some(close) => format!(" (did you mean {close}?)"),
            None => String::new(),
        };
        usage(format!(
            "--device {} is no device and no machine that is known{close}. Choose auto, cpu, \
             reference, vulkan[:INDEX or :NAME], which `trine doctor` lists, or one of {}",
            terminal::harmless(name),
            machines.join(", ")
        ))
    })
}

/// Prints where the parts of a model would run, and what they do there.
fn on_devices(set: &Settings, args: &ExplainArgs, source: &Source) -> Result<()> {
    let library = &set.library;
    let settings = options::chosen(set, &args.placement, KvType::F16);
    let (draft, draft_device) = (args.draft.clone(), args.draft_device.clone());
    let typed = options::drafting(set, &DraftArgs { draft, draft_device, drafts: None });
    let drafting = Drafting::new(library, &typed, args.fetch.unasked(), true)?;
    let name = source.name();
    let mut attached = drafting.attach(library, source, source.open(settings.quantize)?)?;
    attached.check_layers(library, settings.gpu_layers)?;
    let draft = drafting.find(library, source, attached.model(None), &settings)?;
    let sizes =
        args.sequences.map_or_else(Sizes::default, |most| Sizes::serving(Some(most.into())));
    let options =
        sizes.guessing(&drafting).options(&name, attached.model(None), &settings, library)?;
    let demand = options.demand_of(attached.model(None))?;
    let devices = devices(library, args, &settings, drafting.device().filter(|_| draft.is_some()))?;
    let sizes = sizes.of_draft(&settings);
    let needs = draft.as_ref().map(|draft| draft.needs(&settings, sizes)).transpose()?;
    let draft_demand = needs.as_ref().map(|(_, demand)| *demand);
    let places = devices.plan(Asked {
        draft: needs,
        model: options.plan(attached.model(None)),
        demand,
        found: &mut attached.plans(&options, 0),
        tower: None,
    });
    attached.tell_left_out(library, &places.left_out);
    let plan = options.plan(attached.model(places.found));
    let placed = devices.place(&plan, &demand, &places);
    let placed = placed.map(|placement| Placed::new(placement, &devices.model, &demand));
    let (model, reading) = attached.with(places.found);
    let placed_draft = draft.zip(places.draft).zip(draft_demand);
    let draft = placed_draft
        .map(|((draft, place), demand)| PlacedDraft::new(&draft, place, &demand, &devices))
        .transpose()?;
    let placed = placed.with_context(|| {
        let taking = draft.as_ref().map_or(String::new(), |draft| format!("; {}", draft.taking()));
        format!("{} cannot be placed{taking}", terminal::harmless(&name))
    })?;
    let own = GuessFacts::of(None, reading.as_ref(), &model);
    let launches = placed.launches(args.prompt, args.plan, own.as_ref().map(|own| &own.guess))?;
    if args.json {
        return output::json(&json!({
            "model": name,
            "context": placed.placement().options.context,
            "kv": settings.kv,
            "placement": placed.json(&launches),
            "draft": match &own {
                Some(own) => Some(placed_drafts::reading_json(own)),
                None => draft.as_ref().map(PlacedDraft::json),
            },
        }));
    }
    let before = draft
        .as_ref()
        .map(|draft| format!("{}\n{}\nModel\n", draft.beside(&placed, &settings), draft.text()));
    let before = before.or_else(|| own.as_ref().map(placed_drafts::reading_text));
    output::block(&format!(
        "{}: {} layers, {}\n\n{}{}",
        terminal::harmless(&name),
        model.config().layers.len(),
        formats(&model).join(" "),
        before.unwrap_or_default(),
        placed.text(&launches)
    ))
}

/// Opens the devices of this machine, or makes another machine known by its name. `own` is the
/// device that a draft model has for itself.
fn devices(
    library: &ModelLibrary,
    args: &ExplainArgs,
    settings: &Options,
    own: Option<&DeviceChoice>,
) -> Result<Devices> {
    let Options { threads, gpu_layers, tune, batch_invariant, .. } = *settings;
    if let DeviceChoice::Machine(name) = &settings.device {
        let preset = named(name)?;
        return Ok(Devices::of(preset.devices(batch_invariant, args.memory, gpu_layers)));
    }
    let gpu = GpuOptions { batch_invariant, ..GpuOptions::tuned(tune.into()) };
    let plain = settings.device.open(library, threads, gpu_layers, gpu)?;
    let model = npu::describe(library, plain.clone(), settings.npu.as_ref())?;
    let own = own.map(|own| draft::open(library, own, settings)).transpose()?;
    Ok(Devices { model, plain, own })
}

/// Returns the costs that are shown: those of a token, of a prompt, and of a guess by a draft that
/// is a goal of the model's Plan.
fn costs(args: &ExplainArgs, plan: &Plan, own: Option<&GuessFacts>, kv: KvType) -> Vec<StepCost> {
    let token = Workload::decode(1, args.depth, kv);
    let prompt = format!("a prompt of {}", output::counted(args.prompt, "token"));
    let mut costs = vec![
        step_cost(plan, format!("one token at depth {}", args.depth), 1, token),
        step_cost(plan, prompt, args.prompt, Workload::prefill(args.prompt, kv)),
    ];
    if let Some(own) = own {
        let what = format!("a guess of {} at depth {}", own.name, args.depth);
        costs.push(step_cost(&own.guess, terminal::harmless(&what).into_owned(), 1, token));
    }
    costs
}

fn step_cost(plan: &Plan, what: String, tokens: usize, workload: Workload) -> StepCost {
    let cost = plan.cost(workload);
    let memory_bytes = cost.memory_bytes();
    StepCost {
        what,
        tokens,
        cost,
        memory_bytes,
        operations_per_byte: cost.operations as f64 / memory_bytes.max(1) as f64,
    }
}

fn steps(plan: &Plan, workload: Workload) -> Vec<Value> {
    let describe = |step: &trine_model::Step| {
        json!({
            "label": step.label,
            "operation": step.op.name(),
            "text": plan.describe(&step.op),
            "cost": plan.step_cost(step, workload),
        })
    };
    plan.steps.iter().map(describe).collect()
}

fn describe(
    name: &str,
    model: &Model,
    context: usize,
    kv: KvType,
    memory: &Memory,
    costs: &[StepCost],
) -> String {
    let mut text = format!(
        "{}: {} layers, {}\n\n",
        terminal::harmless(name),
        model.config().layers.len(),
        formats(model).join(" "),
    );
    text.push_str(&format!(
        "Memory at a context of {context} tokens, one request, steps of up to {} tokens\n",
        PREFILL.min(context)
    ));
    let kv = format!("KV cache, {}", kv.name());
    for (what, bytes) in [
        ("in all", memory.total()),
        ("weights", memory.weights),
        (kv.as_str(), memory.caches),
        ("activations", memory.scratch),
    ] {
        text.push_str(&format!("  {what:<24} {:>12}\n", output::bytes(bytes)));
    }
    if memory.mapped > 0 {
        let bytes = output::bytes(memory.mapped);
        text.push_str(&format!("  {:<24} {bytes:>12}\n", "read from the file"));
    }
    for cost in costs {
        text.push_str(&format!("\nCost of {}\n", cost.what));
        for (what, bytes) in [
            ("weights read", cost.cost.weight_bytes),
            ("KV cache", cost.cost.cache_bytes),
            ("activations", cost.cost.activation_bytes),
        ] {
            text.push_str(&format!("  {what:<24} {:>12}\n", output::bytes(bytes)));
        }
        text.push_str(&format!(
            "  {:<24} {:>12} ({} for each byte from memory)\n",
            "operations",
            output::count(cost.cost.operations),
            output::rate(cost.operations_per_byte),
        ));
    }
    text
}
