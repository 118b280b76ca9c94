//! Choosing shapes of kernels by measurement: what is kept of the measurements, and that every
//! shape gives the same results.

#![allow(clippy::unwrap_used, reason = "test code")]

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use trine_backend::{Device, Idle, Program, ProgramOptions};
use trine_model::{KvType, Model, Width};
use trine_testing::{Golden, OneSequence, greedy, logits};
use trine_vulkan::capabilities::DeviceKind;
use trine_vulkan::{
    Injected, PipelineCache, Settled, Tuning, TuningMode, VulkanDevice, testing, tuning_state,
};

const QUANTISED: &str = "gguf/gemma3-qat";

const OPTIONS: ProgramOptions =
    ProgramOptions { width: Width { tokens: 2, outputs: 1 }, ..trine_testing::OPTIONS };

fn device(tuning: Tuning) -> VulkanDevice {
    testing::own_device().tuned(tuning)
}

/// A folder for measurements.
struct Store {
    folder: tempfile::TempDir,
}

impl Store {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn cache(&self) -> PipelineCache {
        PipelineCache::in_folder(self.folder.path())
    }

    /// Loads a model as a process of its own would. Returns how many kernels it measured.
    fn load(&self, model: &Model, mode: TuningMode, budget: Duration) -> usize {
        let told = Arc::new(Mutex::new(Vec::new()));
        let teller = told.clone();
        let progress = Arc::new(move |done, total| teller.lock().unwrap().push((done, total)));
        let device = device(Tuning {
            mode,
            cache: Some(self.cache()),
            budget,
            software: true,
            progress: Some(progress),
            ..Tuning::default()
        });
        device.load_plan(model, model.plan(), &OPTIONS).unwrap();
        let first = told.lock().unwrap().clone();
        // What the process has already decided is not measured again.
        device.load_plan(model, model.plan(), &OPTIONS).unwrap();
        assert_eq!(*told.lock().unwrap(), first);
        let Some(&(last, total)) = first.last() else { return 0 };
        assert_eq!(last, total, "the end is told");
        first.len() - 2
    }

    fn file(&self) -> PathBuf {
        tuning_state(&self.cache(), testing::gpu().capabilities()).path
    }

    /// Returns the number of kernels in the file.
    fn kernels(&self) -> Option<usize> {
        let state = tuning_state(&self.cache(), testing::gpu().capabilities());
        assert_eq!(state.damage, None);
        assert!(state.improved <= state.kernels.unwrap_or_default());
        state.kernels
    }
}

const LONG: Duration = Duration::MAX;

#[test]
fn kernels_are_measured_once() {
    let model = Golden::load(QUANTISED).model;
    let store = Store::new();
    assert_eq!(store.load(&model, TuningMode::Kept, LONG), 0);
    assert_eq!(store.kernels(), None);
    let count = store.load(&model, TuningMode::Missing, LONG);
    assert!(count >= 4, "products of several kinds: {count}");
    assert_eq!(store.kernels(), Some(count));
    let before = std::fs::read(store.file()).unwrap();
    assert_eq!(store.load(&model, TuningMode::Missing, LONG), 0);
    assert_eq!(store.load(&model, TuningMode::Kept, LONG), 0);
    assert_eq!(std::fs::read(store.file()).unwrap(), before);
    assert_eq!(store.load(&model, TuningMode::Again, LONG), count);
    assert_eq!(store.kernels(), Some(count));
    assert_eq!(store.load(&model, TuningMode::Off, LONG), 0);
    let files = std::fs::read_dir(store.folder.path()).unwrap();
    assert_eq!(files.count(), 1, "the table and nothing else");
}

#[test]
fn what_there_was_no_time_for_is_measured_at_later_times() {
    let model = Golden::load(QUANTISED).model;
    let store = Store::new();
    let mut seen = 0;
    // The first kernel is measured however short the time is.
    while store.load(&model, TuningMode::Missing, Duration::ZERO) == 1 {
        seen += 1;
        assert_eq!(store.kernels(), Some(seen));
    }
    assert_eq!(store.load(&model, TuningMode::Missing, LONG), 0, "nothing is left");
    assert!(seen >= 4, "{seen}");
}

fn edit(path: &Path, change: impl Fn(&mut serde_json::Value)) {
    let mut contents = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    change(&mut contents);
    std::fs::write(path, contents.to_string()).unwrap();
}

#[test]
fn damaged_files_are_replaced_and_shapes_that_are_not_offered_are_not_taken() {
    let model = Golden::load(QUANTISED).model;
    let store = Store::new();
    let count = store.load(&model, TuningMode::Missing, LONG);
    let whole = std::fs::read(store.file()).unwrap();
    for damage in [&whole[..whole.len() / 2], b"\xFF\xFE", b"{}", b""] {
        std::fs::write(store.file(), damage).unwrap();
        let state = tuning_state(&store.cache(), testing::gpu().capabilities());
        assert!(state.damage.is_some() && state.kernels.is_none(), "{state:?}");
        assert_eq!(store.load(&model, TuningMode::Kept, LONG), 0);
        assert_eq!(store.load(&model, TuningMode::Missing, LONG), count);
        assert_eq!(store.kernels(), Some(count));
    }
    // A shape that this device or this kernel cannot have, and one that would launch far too much.
    edit(&store.file(), |contents| {
        let kernels = contents["kernels"].as_object_mut().unwrap();
        let shapes = [vec![7; 6], vec![u32::MAX; 6]];
        for (kernel, shape) in kernels.values_mut().zip(shapes) {
            kernel["shape"] = shape.into();
        }
    });
    assert_eq!(store.load(&model, TuningMode::Missing, LONG), 2, "these two are measured again");
    assert_eq!(store.kernels(), Some(count));
    edit(&store.file(), |contents| contents["kernels"]["of another model"] = whole_kernel());
    assert_eq!(store.load(&model, TuningMode::Missing, LONG), 0);
    assert_eq!(store.kernels(), Some(count + 1), "other models' kernels stay");
}

fn whole_kernel() -> serde_json::Value {
    serde_json::json!({"offer": "00", "shape": [1], "us": 1.0, "default_us": 1.0})
}

#[test]
fn a_device_that_fails_meanwhile_is_reported() {
    let model = Golden::load(QUANTISED).model;
    let mode = TuningMode::Missing;
    // The first submission of a load brings the weights to the device if they are not mapped.
    let device = device(Tuning { mode, software: true, ..Tuning::default() });
    for failure in [Injected::Loss, Injected::Timeout, Injected::Refusal] {
        let progress_device = device.clone();
        let tuned = device.clone().tuned(Tuning {
            mode,
            software: true,
            // On a busy machine what comes after the first measurement would not be measured.
            budget: LONG,
            progress: Some(Arc::new(move |done, _| {
                if done == 1 {
                    progress_device.gpu().inject(failure);
                }
            })),
            ..Tuning::default()
        });
        let error = tuned.load_plan(&model, model.plan(), &OPTIONS).map(|_| ()).unwrap_err();
        assert!(error.to_string().contains("--tune off"), "{error}");
    }
    device.load_plan(&model, model.plan(), &OPTIONS).unwrap();
}

/// Lets a Program do at most this many pieces of work of its own. Returns whether some is left.
fn rest(program: &mut dyn Program, mut pieces: usize) -> bool {
    while pieces > 0 {
        match program.idle().unwrap() {
            Idle::Done => return false,
            Idle::More => pieces -= 1,
            Idle::Later(pause) => std::thread::sleep(pause),
        }
    }
    true
}

/// The tuning of a server.
fn in_pieces(store: &Store) -> Tuning {
    let (mode, cache) = (TuningMode::Idle, Some(store.cache()));
    Tuning { mode, cache, software: true, ..Tuning::default() }
}

#[test]
fn what_is_missing_is_measured_between_steps_and_changes_no_result() {
    let golden = Golden::load(QUANTISED);
    let (model, ids) = (&golden.model, &golden.ids);
    let store = Store::new();
    let device = device(in_pieces(&store));
    let calm = logits(&device, model, ids, 2, KvType::F32);
    assert_eq!(store.kernels(), None, "a load measures nothing");
    let new = || OneSequence::new(&device, model, ids.len(), 2, KvType::F32);
    let mut sequence = new();
    let (mut found, mut is_left) = (Vec::new(), true);
    for piece in ids.chunks(2) {
        found.extend(sequence.extend(piece));
        is_left = rest(sequence.program.as_mut(), 2);
    }
    assert_eq!(found, calm, "not a bit of a step's results");
    // A GPU raises its clocks first.
    while is_left && store.kernels().is_none() {
        is_left = rest(sequence.program.as_mut(), 1);
    }
    assert!(is_left && store.kernels().is_some(), "each result is kept at once");
    // Another Program of the device goes on where this one stopped.
    drop(sequence);
    let mut sequence = new();
    assert!(!rest(sequence.program.as_mut(), usize::MAX));
    let found: Vec<f32> = ids.chunks(2).flat_map(|piece| sequence.extend(piece)).collect();
    assert_eq!(found, calm);
    let count = store.kernels().unwrap();
    assert!(count >= 4, "products of several kinds: {count}");
    assert_eq!(sequence.program.idle().unwrap(), Idle::Done);
    // In this process nothing changes; another one knows all.
    assert_eq!(logits(&device, model, ids, 2, KvType::F32), calm);
    let other = self::device(in_pieces(&store));
    let mut sequence = OneSequence::new(&other, model, ids.len(), 2, KvType::F32);
    sequence.extend(&ids[..1]);
    assert_eq!(sequence.program.idle().unwrap(), Idle::Done);
    assert_eq!(store.kernels(), Some(count));
}

#[test]
fn a_device_that_fails_between_steps_is_set_up_again_and_measures_no_more() {
    let golden = Golden::load(QUANTISED);
    let ids = &golden.ids[..8];
    for failure in [Injected::Loss, Injected::Timeout, Injected::Refusal] {
        let device = device(in_pieces(&Store::new()));
        let calm = logits(&device, &golden.model, ids, 2, KvType::F32);
        let mut sequence = OneSequence::new(&device, &golden.model, ids.len(), 2, KvType::F32);
        device.gpu().inject(failure);
        let error = loop {
            match sequence.program.idle() {
                Ok(Idle::Later(pause)) => std::thread::sleep(pause),
                Ok(left) => assert_eq!(left, Idle::More, "{failure:?}"),
                Err(error) => break error,
            }
        };
        assert!(error.to_string().contains("--tune off"), "{error}");
        assert_eq!(sequence.program.idle().unwrap(), Idle::Done);
        let found: Vec<f32> = ids.chunks(2).flat_map(|piece| sequence.extend(piece)).collect();
        assert_eq!(found, calm, "{failure:?}");
        assert_eq!(sequence.program.idle().unwrap(), Idle::Done);
    }
}

/// Lets the chain of the next step that is run for its time break, once the last break is over.
/// Returns how many have broken.
fn breaking(device: &VulkanDevice, breaks: &Mutex<usize>) -> usize {
    let mut breaks = breaks.lock().unwrap();
    if !device.gpu().has_injected() {
        *breaks += 1;
        device.gpu().inject(Injected::Stall);
    }
    *breaks
}

#[test]
fn a_chain_that_breaks_in_a_load_costs_one_measurement() {
    let golden = Golden::load(QUANTISED);
    let (model, ids) = (&golden.model, &golden.ids);
    let tuning =
        |store: &Store, mode: TuningMode| Tuning { mode, budget: LONG, ..in_pieces(store) };
    let new = |device: &VulkanDevice| OneSequence::new(device, model, ids.len(), 1, KvType::F32);
    let [calm, store] = [Store::new(), Store::new()];
    new(&device(tuning(&calm, TuningMode::Missing)));
    let count = calm.kernels().unwrap();
    let device = device(Tuning::default());
    device.gpu().inject(Injected::Stall);
    let breaks = Arc::new(Mutex::new(0));
    let (told, counted) = (device.clone(), breaks.clone());
    let progress = Arc::new(move |_: usize, _: usize| {
        breaking(&told, &counted);
    });
    let missing = Tuning { progress: Some(progress), ..tuning(&store, TuningMode::Missing) };
    let mut sequence = new(&device.clone().tuned(missing));
    assert_eq!(*breaks.lock().unwrap(), 1, "what came later was not measured in a chain");
    assert!(device.gpu().withdraw());
    assert_eq!(store.kernels(), Some(count - 1), "all but one were measured");
    // The chains of steps are whole.
    let kept = self::device(tuning(&store, TuningMode::Kept));
    assert!(one_by_one(&mut sequence, ids) == one_by_one(&mut new(&kept), ids));
    new(&self::device(tuning(&store, TuningMode::Missing)));
    assert_eq!(store.kernels(), Some(count), "the one is measured by the next process");
}

/// Returns the logits of a prompt, one step for each token.
fn one_by_one(sequence: &mut OneSequence, ids: &[u32]) -> Vec<f32> {
    ids.chunks(1).flat_map(|id| sequence.extend(id)).collect()
}

#[test]
fn a_chain_that_breaks_between_steps_costs_one_measurement() {
    let golden = Golden::load(QUANTISED);
    let (model, ids) = (&golden.model, &golden.ids);
    let new = |device: &VulkanDevice| OneSequence::new(device, model, ids.len(), 1, KvType::F32);
    let [calm, store] = [Store::new(), Store::new()];
    let mut sequence = new(&device(in_pieces(&calm)));
    rest(sequence.program.as_mut(), usize::MAX);
    let count = calm.kernels().unwrap();
    let calm = one_by_one(&mut new(&testing::own_device()), ids);
    let device = device(in_pieces(&store));
    let mut sequence = new(&device);
    device.gpu().inject(Injected::Stall);
    let breaks = Mutex::new(0);
    let (mut pieces, mut known) = (0, store.kernels());
    while rest(sequence.program.as_mut(), 1) && breaking(&device, &breaks) == 0 {
        let kernels = store.kernels();
        pieces = if kernels == known { pieces + 1 } else { 0 };
        known = kernels;
    }
    // It looked for the kernel, had it compiled, recorded a step for each of at least two shapes,
    // and found that none was left.
    assert!(pieces >= 5, "one at a time: {pieces}");
    assert!(!rest(sequence.program.as_mut(), usize::MAX));
    assert_eq!(breaking(&device, &breaks), 1, "what came later was not measured in a chain");
    assert_eq!(store.kernels(), Some(count - 1), "all but one were measured");
    assert!(device.gpu().withdraw());
    // Its steps still have their chains.
    device.gpu().inject(Injected::Stall);
    assert!(one_by_one(&mut sequence, ids) == calm, "not a bit of a step's results");
    assert!(!device.gpu().has_injected());
}

#[test]
fn a_program_may_end_between_any_two_pieces() {
    let model = Golden::load(QUANTISED).model;
    let store = Store::new();
    let device = device(in_pieces(&store));
    for pieces in 0..40 {
        let mut program = device.load_plan(&model, model.plan(), &OPTIONS).unwrap();
        rest(program.as_mut(), pieces % 13);
    }
    let mut program = device.load_plan(&model, model.plan(), &OPTIONS).unwrap();
    assert!(!rest(program.as_mut(), usize::MAX));
    assert_eq!(store.load(&model, TuningMode::Missing, LONG), 0, "nothing was forgotten");
}

/// Returns the number of shapes in the longest list for a kind of device.
fn shapes() -> usize {
    match testing::gpu().capabilities().kind {
        DeviceKind::Processor => 3,
        _ => 24,
    }
}

#[test]
fn goldens_agree_in_every_shape() {
    let golden = Golden::load(QUANTISED);
    let exact = Golden::load("gguf/gemma3-f32");
    for number in 0..shapes() {
        let device = device(Tuning { mode: TuningMode::Forced(number), ..Tuning::default() });
        let found = logits(&device, &exact.model, &exact.ids, 32, KvType::F32);
        let worst = exact.largest_difference(&found);
        assert!(worst <= 5e-4, "shape {number}: {worst}");
        let chunks = [golden.ids.len(), 7, 1].into_iter().enumerate();
        for (_, chunk) in chunks.filter(|(at, _)| testing::takes(number + at, 3)) {
            let found = logits(&device, &golden.model, &golden.ids, chunk, KvType::F32);
            let divergence = golden.mean_divergence(&found);
            assert!(divergence <= 1e-3, "shape {number} in pieces of {chunk}: {divergence}");
        }
        let count = golden.greedy.len();
        let found = greedy(&device, &golden.model, &golden.ids, count, KvType::F32);
        assert_eq!(found, golden.greedy, "shape {number}");
    }
}

#[test]
fn a_tuned_model_writes_what_it_should() {
    let golden = Golden::load(QUANTISED);
    let store = Store::new();
    let tuning = Tuning {
        mode: TuningMode::Missing,
        cache: Some(store.cache()),
        budget: LONG,
        software: true,
        ..Tuning::default()
    };
    for _ in 0..2 {
        let device = device(Tuning { settled: Settled::default(), ..tuning.clone() });
        let found = greedy(&device, &golden.model, &golden.ids, golden.greedy.len(), KvType::F32);
        assert_eq!(found, golden.greedy);
    }
}
