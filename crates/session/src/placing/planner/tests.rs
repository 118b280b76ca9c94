use trine_backend::BLOCK;
use trine_backend::placement::Part;
use trine_engine::EngineOptions;
use trine_model::{KvType, Width};
use trine_vulkan::capabilities::{Capabilities, presets};
use trine_weights::DType;

use super::*;
use crate::device::layer_choice;
use crate::placing::forecast::absent;
use crate::placing::placed::plans::{plan_with_experts, small_plan};

type Gpu = fn() -> Capabilities;

/// The layers of all Plans.
const LAYERS: usize = 6;

/// A machine and what is to run on it. A model takes about 0.8 GiB, one with experts 2.7, a draft
/// model 0.8, a tower 1.9. A Plan with wider weights stands for one with a draft.
struct Row {
    /// The GPU, and its memory in MiB.
    gpu: (Gpu, u64),
    /// The memory in MiB of a second GPU of the same kind.
    second: Option<u64>,
    /// The memory in MiB of a GPU that the draft model has for itself.
    own: Option<u64>,
    layers: Option<usize>,
    model: fn(usize, DType) -> Plan,
    has_draft: bool,
    found: &'static [DType],
    has_tower: bool,
    expected: &'static str,
}

const ROW: Row = Row {
    gpu: (presets::h200, 64 << 10),
    second: None,
    own: None,
    layers: None,
    model: small_plan,
    has_draft: false,
    found: &[],
    has_tower: false,
    expected: "",
};

fn tower() -> TowerNeed {
    let width = Width { tokens: 64, outputs: 64 };
    let blocks = 64_usize.div_ceil(BLOCK);
    let options = ProgramOptions { width, kv: KvType::F16, context: 64, sequences: 1, blocks };
    let largest = Workload { sequences: 1, tokens: 64, context: 0, outputs: 64, kv: KvType::F16 };
    TowerNeed { plan: small_plan(LAYERS, DType::F16), options, largest }
}

/// Returns the layers of a placement by site, and how many leave their experts to the processor.
fn sites(placement: &Result<Placement, BackendError>) -> String {
    let Ok(placement) = placement else { return "none".to_owned() };
    let part = |(index, part): (usize, &Part)| {
        let device = match (part.device_memory.kind, part.site) {
            (MemoryKind::Host, _) => "cpu",
            (_, 2) => "second",
            _ => "gpu",
        };
        let aside = placement.aside_layers(index).len();
        let aside = if aside > 0 { format!(" less {aside}") } else { String::new() };
        format!("{device} {}{aside}", part.plan.layers())
    };
    placement.parts.iter().enumerate().map(part).collect::<Vec<_>>().join(", ")
}

/// Returns what a model would lose, in short.
fn lost(what: &str) -> &str {
    match what.split_once("no room for the ") {
        Some((_, experts)) => experts,
        None if what.contains("on one device with it, and that is not the GPU") => "layers",
        None if what.contains("could not allocate; use a shorter --context") => "its size",
        None => what,
    }
}

/// Returns the places of a row in words.
fn planned(row: &Row) -> String {
    let (gpu, mib) = row.gpu;
    let machine = |number: u8, mib: u64, layers| {
        let capabilities = Capabilities { uuid: [number; 16], ..gpu() };
        absent::machine(capabilities, false, Some(mib << 20), layers)
    };
    let mut opened = machine(0, mib, row.layers);
    if let Some(mib) = row.second {
        let gpus = vec![opened.gpus[0].clone(), machine(1, mib, None).gpus[0].clone()];
        opened = Opened::absent(absent::processor(None), gpus, layer_choice(row.layers));
    }
    let own = row.own.map(|mib| machine(2, mib, None));
    let devices = Devices { own, ..Devices::of(opened) };
    let options = EngineOptions { context: Some(8192), ..EngineOptions::default() };
    let demand = options.demand(131_072).unwrap();
    let plan = |dtype| (row.model)(LAYERS, dtype);
    let need = tower();
    let places = devices.plan(Asked {
        draft: row.has_draft.then(|| (small_plan(LAYERS, DType::Q4_0), demand)),
        model: plan(DType::Q4_0),
        demand,
        found: &mut row.found.iter().map(|&dtype| plan(dtype)).enumerate(),
        tower: row.has_tower.then_some(&need),
    });
    let dtype = places.found.map_or(DType::Q4_0, |number| row.found[number]);
    let mut told = sites(&devices.place(&plan(dtype), &demand, &places));
    if let Some(draft) = &places.draft {
        told.push_str(&format!("; draft {}", sites(draft)));
    }
    if let Some(number) = places.found {
        told.push_str(&format!("; found {number}"));
    }
    for LeftOut { what, can_be_named, .. } in &places.left_out {
        let never = if *can_be_named { "" } else { ", never to be named" };
        told.push_str(&format!("; left out for {}{never}", lost(what)));
    }
    match &places.tower {
        None => {}
        Some(TowerDevice::Gpu) => told.push_str("; tower gpu"),
        Some(TowerDevice::Processor(None)) => told.push_str("; tower cpu"),
        Some(TowerDevice::Processor(Some(why))) => {
            told.push_str(&format!("; tower cpu for {}", lost(why)));
        }
    }
    told
}

#[test]
fn everything_has_its_place() {
    let gib = |gib: u64| -> (Gpu, u64) { (presets::h200, gib << 10) };
    let shared = |gib: u64| -> (Gpu, u64) { (presets::radeon_780m, gib << 10) };
    const FOUND: &[DType] = &[DType::F16, DType::Q8_0, DType::Q4_0];
    for row in [
        Row { expected: "gpu 6", ..ROW },
        Row { gpu: gib(1), expected: "gpu 6", ..ROW },
        // A draft model is before the model, and takes its room.
        Row { gpu: gib(2), has_draft: true, expected: "gpu 6; draft gpu 6", ..ROW },
        Row { gpu: gib(1), has_draft: true, expected: "cpu 6; draft gpu 6", ..ROW },
        Row { layers: Some(2), has_draft: true, expected: "cpu 4, gpu 2; draft gpu 6", ..ROW },
        // A draft that was found makes way, and a smaller one takes its place.
        Row { found: FOUND, expected: "gpu 6; found 0", ..ROW },
        Row { gpu: gib(2), found: FOUND, expected: "gpu 6; found 1; left out for layers", ..ROW },
        Row {
            gpu: gib(1),
            found: &FOUND[..2],
            expected: "gpu 6; left out for layers; left out for layers",
            ..ROW
        },
        // So does a tower.
        Row { gpu: gib(4), has_tower: true, expected: "gpu 6; tower gpu", ..ROW },
        Row { gpu: gib(3), has_tower: true, expected: "gpu 6; tower cpu for layers", ..ROW },
        // All of them share the memory.
        Row {
            found: FOUND,
            has_draft: true,
            has_tower: true,
            expected: "gpu 6; draft gpu 6; found 0; tower gpu",
            ..ROW
        },
        Row {
            gpu: gib(4),
            found: FOUND,
            has_tower: true,
            expected: "gpu 6; found 0; tower cpu for layers",
            ..ROW
        },
        Row {
            gpu: gib(4),
            has_draft: true,
            has_tower: true,
            expected: "gpu 6; draft gpu 6; tower cpu for layers",
            ..ROW
        },
        Row {
            gpu: shared(16),
            has_draft: true,
            has_tower: true,
            expected: "gpu 6; draft gpu 6; tower gpu",
            ..ROW
        },
        Row {
            gpu: shared(4),
            has_draft: true,
            has_tower: true,
            expected: "gpu 6; draft gpu 6; tower cpu for layers",
            ..ROW
        },
        // A draft is on the first of two GPUs, or on one that it has for itself, which takes
        // nothing of the model's.
        Row {
            gpu: gib(1),
            second: Some(1 << 10),
            has_draft: true,
            expected: "second 6; draft gpu 6",
            ..ROW
        },
        Row {
            gpu: gib(1),
            own: Some(1 << 10),
            has_draft: true,
            expected: "gpu 6; draft gpu 6",
            ..ROW
        },
        Row { gpu: gib(1), own: Some(100), has_draft: true, expected: "gpu 6; draft cpu 6", ..ROW },
        Row { gpu: gib(1), second: Some(1 << 10), expected: "gpu 3, second 3", ..ROW },
        Row {
            gpu: gib(4),
            second: Some(4 << 10),
            has_tower: true,
            expected: "gpu 3, second 3; tower gpu",
            ..ROW
        },
        // A model with a draft that has no room cannot be loaded, so that it is not to be named.
        Row {
            gpu: gib(1),
            layers: Some(6),
            found: FOUND,
            expected: "gpu 6; found 2; left out for its size, never to be named; \
                       left out for its size, never to be named",
            ..ROW
        },
        // Experts leave the GPU before layers do.
        Row {
            model: plan_with_experts,
            gpu: gib(3),
            has_draft: true,
            expected: "gpu 6 less 3; draft gpu 6",
            ..ROW
        },
        Row {
            model: plan_with_experts,
            gpu: gib(4),
            found: &FOUND[1..],
            expected: "gpu 6; found 1; left out for experts of 4 layers, none without",
            ..ROW
        },
        Row {
            model: plan_with_experts,
            gpu: gib(4),
            has_tower: true,
            expected: "gpu 6; tower cpu for experts of 5 layers, none without",
            ..ROW
        },
    ] {
        assert_eq!(planned(&row), row.expected);
    }
}

/// What a tower takes of a GPU that shares the processor's memory, it takes of both.
#[test]
fn a_tower_takes_shared_memory_of_both() {
    for (gpu, is_shared) in [(presets::radeon_780m(), true), (presets::h200(), false)] {
        let devices = Devices::of(absent::machine(gpu, false, Some(16 << 30), None));
        let options = EngineOptions { context: Some(8192), ..EngineOptions::default() };
        let places = devices.plan(Asked {
            draft: None,
            model: small_plan(LAYERS, DType::Q4_0),
            demand: options.demand(131_072).unwrap(),
            found: &mut std::iter::empty(),
            tower: Some(&tower()),
        });
        assert_eq!(places.tower, Some(TowerDevice::Gpu));
        let [host, gpu] = places.reserved[..] else { panic!("two devices") };
        assert!(gpu > 0 && host == if is_shared { gpu } else { 0 }, "{host} {gpu}");
    }
}

/// The processor computes as many layers and experts, or fewer, where nothing is lost.
#[test]
fn what_a_model_loses_is_told() {
    let machine = |mib: u64| {
        let opened = absent::machine(presets::h200(), false, Some(mib << 20), None);
        let options = EngineOptions { context: Some(8192), ..EngineOptions::default() };
        let demand = options.demand(131_072).unwrap();
        let plan = plan_with_experts(LAYERS, DType::Q4_0);
        decide(&plan, opened.device.as_ref(), &demand, &[])
    };
    let [little, some, most, all] = [512, 2 << 10, 2600, 8 << 10].map(machine);
    let lost = |with: &Result<_, _>, without: &Result<_, _>| loses(with.as_ref(), without.as_ref());
    let refused = || Err(BackendError::Unsupported { device: "gpu".into(), what: "this".into() });
    assert_eq!(lost(&some, &some), None);
    assert_eq!(lost(&all, &some), None);
    assert_eq!(lost(&refused(), &refused()), None, "it is not at fault");
    assert!(lost(&refused(), &all).unwrap().contains("gpu cannot run this model: this"));
    assert!(lost(&little, &some).unwrap().contains("one device"));
    for (with, without, fewer) in [(&some, &most, "those of 3"), (&most, &all, "none")] {
        let Ok(placement) = with else { panic!("{}", sites(with)) };
        let number = placement.aside_layers(0).len();
        let expected = format!("for the experts of {number} layers, {fewer} without");
        let what = lost(with, without).unwrap();
        assert!(what.ends_with(&expected), "{what}");
    }
}
