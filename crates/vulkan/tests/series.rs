//! Series: steps of which each runs what the one before it chose, without the host.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use trine_backend::{
    BackendError, Batch, Device, Program, ProgramOptions, SERIES_MAX, SequenceView,
};
use trine_cpu::CpuDevice;
use trine_model::{Goal, KvType, Model, Width, gather};
use trine_testing::{Golden, bits, folder, largest};
use trine_vulkan::testing::{device, own_device};
use trine_vulkan::{Injected, VulkanDevice};

const OPTIONS: ProgramOptions = ProgramOptions {
    width: Width { tokens: 24, outputs: 3 },
    kv: KvType::F16,
    context: 96,
    sequences: 3,
    blocks: 9,
};
/// Block table of each slot.
static TABLES: [[u32; 3]; 3] = [[0, 3, 6], [8, 1, 4], [2, 5, 7]];
/// The first position of each slot that the tests run again and again: series go past the end of a
/// block.
const STARTS: [usize; 3] = [20, 29, 50];

/// Rows of a slot.
#[derive(Debug, Clone)]
struct Part {
    slot: usize,
    position: usize,
    tokens: Vec<u32>,
}

/// The rows of a step.
#[derive(Debug)]
struct Rows {
    tokens: Vec<u32>,
    positions: Vec<u32>,
    sequence_of: Vec<u32>,
    outputs: Vec<u32>,
    views: Vec<SequenceView<'static>>,
}

impl Rows {
    /// Rows of several slots, of each of which the last has logits.
    fn new(parts: &[Part]) -> Self {
        let mut rows = Self {
            tokens: Vec::new(),
            positions: Vec::new(),
            sequence_of: Vec::new(),
            outputs: Vec::new(),
            views: Vec::new(),
        };
        for (sequence, Part { slot, position, tokens }) in parts.iter().enumerate() {
            rows.tokens.extend_from_slice(tokens);
            rows.positions.extend((*position..position + tokens.len()).map(|at| at as u32));
            rows.sequence_of.extend(vec![sequence as u32; tokens.len()]);
            rows.outputs.push(rows.tokens.len() as u32 - 1);
            rows.views.push(SequenceView { slot: *slot as u32, blocks: &TABLES[*slot] });
        }
        rows
    }

    fn batch(&self) -> Batch<'_> {
        Batch {
            tokens: &self.tokens,
            positions: &self.positions,
            sequence_of: &self.sequence_of,
            sequences: &self.views,
            outputs: &self.outputs,
            bulk_from: self.tokens.len(),
            ..trine_testing::BATCH
        }
    }
}

/// A text of a slot, by position.
fn tokens(slot: usize, positions: std::ops::Range<usize>) -> Vec<u32> {
    positions.map(|at| ((at * at + 7 * slot + 1) % 250) as u32).collect()
}

/// The first step of a series: slots and their rows.
fn first(rows: &[(usize, usize)]) -> Vec<Part> {
    let part = |&(slot, rows): &(usize, usize)| {
        let position = STARTS[slot];
        Part { slot, position, tokens: tokens(slot, position..position + rows) }
    };
    rows.iter().map(part).collect()
}

/// What a series or its steps one by one have chosen, and the bits of the last step's logits.
#[derive(PartialEq)]
struct Outcome {
    chosen: Vec<Option<u32>>,
    logits: Vec<u32>,
}

impl std::fmt::Debug for Outcome {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{:?}, logits {:?}...", self.chosen, &self.logits[..2])
    }
}

/// A Program, and the vocabulary of its model.
struct Runner {
    program: Box<dyn Program>,
    vocabulary: usize,
}

impl Runner {
    /// A Program whose slots hold the text before their starts.
    fn new(device: &VulkanDevice, model: &Model) -> Self {
        // Where the host gathers rows, there are no series.
        let plan = gather::hold(model.plan());
        let program = device.load_plan(model, plan, &OPTIONS).unwrap();
        let mut runner = Self { program, vocabulary: model.config().vocabulary };
        runner.fill();
        runner
    }

    fn fill(&mut self) {
        for (slot, start) in STARTS.into_iter().enumerate() {
            for position in (0..start).step_by(OPTIONS.width.tokens) {
                let end = start.min(position + OPTIONS.width.tokens);
                self.write(Part { slot, position, tokens: tokens(slot, position..end) });
            }
        }
    }

    /// Runs rows for what they leave in caches.
    fn write(&mut self, part: Part) {
        let rows = Rows::new(&[part]);
        self.program.run(&Batch { outputs: &[], ..rows.batch() }).unwrap();
    }

    /// Writes something else where the tests' rows go.
    fn spoil(&mut self) {
        for (slot, position) in STARTS.into_iter().enumerate() {
            self.write(Part { slot, position, tokens: vec![3; OPTIONS.width.tokens] });
        }
    }

    fn run(&mut self, parts: &[Part]) -> Vec<f32> {
        self.program.run(&Rows::new(parts).batch()).unwrap().to_vec()
    }

    /// The steps of a series one by one, with the host between them.
    fn stepwise(&mut self, first: &[Part], more: usize) -> Outcome {
        let mut parts = first.to_vec();
        let mut chosen = Vec::new();
        for step in 0..=more {
            let logits = self.run(&parts);
            chosen.extend(logits.chunks_exact(self.vocabulary).map(largest));
            if step == more {
                return Outcome { chosen, logits: bits(&logits) };
            }
            parts = after(&parts, &chosen);
        }
        unreachable!("there is a last step")
    }

    fn try_series(&mut self, first: &[Part], more: usize) -> Result<Outcome, BackendError> {
        let step = self.program.submit_series(&Rows::new(first).batch(), more)?;
        let results = self.program.wait(step)?;
        let chosen = results.chosen()?.to_vec();
        Ok(Outcome { chosen, logits: bits(results.output(0)?) })
    }

    fn series(&mut self, first: &[Part], more: usize) -> Outcome {
        self.try_series(first, more).unwrap()
    }
}

/// The step after some parts, with the tokens that were chosen last.
fn after(parts: &[Part], chosen: &[Option<u32>]) -> Vec<Part> {
    let chosen = &chosen[chosen.len() - parts.len()..];
    let part = |(part, chosen): (&Part, &Option<u32>)| Part {
        slot: part.slot,
        position: part.position + part.tokens.len(),
        tokens: vec![chosen.unwrap()],
    };
    parts.iter().zip(chosen).map(part).collect()
}

/// The step after a series.
fn after_series(first: &[Part], more: usize, chosen: &[Option<u32>]) -> Vec<Part> {
    let mut parts = after(first, chosen);
    parts.iter_mut().for_each(|part| part.position += more);
    parts
}

/// Compares series with their steps one by one: tokens, logits, and what they leave in caches.
fn compare(device: &VulkanDevice, model: &Model) {
    let (mut host, mut series) = (Runner::new(device, model), Runner::new(device, model));
    assert_eq!(series.program.facts().series_max, SERIES_MAX);
    for rows in [
        &[(0, 1)][..],
        &[(1, 4)],
        &[(0, 1), (1, 1), (2, 1)],
        &[(2, 3), (0, 1), (1, 5)],
        &[(1, 1), (2, 8)],
    ] {
        for more in [0, 1, 2, SERIES_MAX] {
            let first = first(rows);
            let expected = host.stepwise(&first, more);
            series.spoil();
            let found = series.series(&first, more);
            assert_eq!(found.chosen, expected.chosen, "{rows:?}, {more} more");
            assert!(found == expected, "{rows:?}, {more} more: other logits");
            let next = after_series(&first, more, &found.chosen);
            let same = bits(&series.run(&next)) == bits(&host.run(&next));
            assert!(same, "{rows:?}, {more} more: other caches");
        }
    }
}

#[test]
fn a_series_is_its_steps_one_by_one() {
    for name in ["gemma3-a", "gguf/gemma3-qat", "gguf/gemma4-e"] {
        compare(&device(), &Golden::load(name).model);
    }
}

#[test]
fn a_series_is_its_steps_one_by_one_where_kernels_are_invariant() {
    compare(&device().batch_invariant(), &Golden::load("gguf/gemma3-qat").model);
}

#[test]
fn a_profiled_series_is_the_same() {
    let model = Golden::load("gemma3-a").model;
    let mut runner = Runner::new(&device(), &model);
    let first = first(&[(0, 2), (2, 1)]);
    let expected = runner.series(&first, 3);
    runner.program.profile(true);
    assert_eq!(runner.series(&first, 3), expected);
    let seconds = runner.program.profile(false);
    assert!(seconds.iter().sum::<f64>() > 0.0);
    assert_eq!(runner.series(&first, 3), expected);
}

#[test]
fn the_largest_logits_are_those_of_the_last_step() {
    let model = Golden::load("gemma3-a").model;
    let mut runner = Runner::new(&device(), &model);
    let first = first(&[(1, 2), (0, 3)]);
    let rows = Rows::new(&first);
    let step = runner.program.submit_series(&rows.batch(), 2).unwrap();
    let results = runner.program.wait(step).unwrap();
    let chosen = results.chosen().unwrap().to_vec();
    assert_eq!(chosen.len(), 6);
    for (row, chosen) in chosen[4..].iter().enumerate() {
        let top = results.top(row).unwrap();
        let most = top.iter().map(|found| found.logit).fold(f32::NEG_INFINITY, f32::max);
        let least = top.iter().filter(|found| found.logit == most).map(|found| found.token).min();
        assert_eq!(*chosen, least);
    }
}

#[test]
fn a_series_that_breaks_a_rule_costs_nothing() {
    let model = Golden::load("gemma3-a").model;
    let mut runner = Runner::new(&device(), &model);
    let first = first(&[(0, 2), (2, 1)]);
    let expected = runner.series(&first, 4);
    let rows = Rows::new(&first);
    let good = rows.batch();
    let program = &mut runner.program;
    for (batch, more) in [
        (good, SERIES_MAX + 1),
        (good, usize::MAX),
        (Batch { outputs: &[], ..good }, 1),
        (Batch { outputs: &[0, 2], ..good }, 1),
        (Batch { positions: &[20, 21, 93], ..good }, 3),
        (Batch { tokens: &[1, u32::MAX, 2], ..good }, 1),
        (Batch { goal: Goal::States, ..good }, 1),
    ] {
        let refused = program.submit_series(&batch, more);
        assert!(matches!(refused, Err(BackendError::BadBatch { .. })), "{refused:?}");
    }
    let long = Part { slot: 1, position: 29, tokens: vec![1; 20] };
    let refused = program.submit_series(&Rows::new(&[long]).batch(), 5);
    assert!(matches!(refused, Err(BackendError::BadBatch { .. })), "{refused:?}");
    let step = program.submit(&good).unwrap();
    let refused = program.submit_series(&good, 1);
    assert!(matches!(refused, Err(BackendError::BadBatch { .. })), "one is in flight");
    let refused = program.wait(step).unwrap().chosen().map(<[_]>::len);
    assert!(matches!(refused, Err(BackendError::BadBatch { .. })), "it was no series");
    assert_eq!(runner.series(&first, 4), expected);
}

/// Gemma 3n takes rows of a table, which the host gathers by tokens unless the device holds it.
#[test]
fn what_needs_the_host_between_steps_has_no_series() {
    let gathered = Golden::load("gemma3n-a").model;
    let other = Golden::load("gemma3-a").model;
    let cpu = CpuDevice::new(Some(1), None).unwrap();
    for mut program in [
        device().load_plan(&gathered, gathered.plan(), &OPTIONS).unwrap(),
        cpu.load_plan(&other, other.plan(), &OPTIONS).unwrap(),
    ] {
        assert_eq!(program.facts().series_max, 0);
        let rows = Rows::new(&[Part { slot: 0, position: 0, tokens: vec![5] }]);
        for more in [0, 1] {
            let refused = program.submit_series(&rows.batch(), more);
            assert!(matches!(refused, Err(BackendError::Unsupported { .. })), "{refused:?}");
        }
    }
}

#[test]
fn logits_that_are_no_numbers_choose_no_token() {
    let from = folder("gemma3-a");
    let folder = tempfile::tempdir().unwrap();
    for file in ["config.json", "generation_config.json"] {
        std::fs::copy(from.join(file), folder.path().join(file)).unwrap();
    }
    let mut bytes = std::fs::read(from.join("model.safetensors")).unwrap();
    let table = {
        let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let names = file.names();
        let name = names.iter().find(|name| name.contains("embed_tokens")).unwrap();
        let data = file.tensor(name).unwrap();
        data.data().as_ptr() as usize - bytes.as_ptr() as usize
    };
    // An element of token 0, whose logit this is for every row.
    bytes[table..table + 4].fill(0xFF);
    std::fs::write(folder.path().join("model.safetensors"), bytes).unwrap();
    let model = Model::open(folder.path()).unwrap();
    let mut runner = Runner::new(&device(), &model);
    let found = runner.series(&first(&[(0, 1), (1, 3)]), 3);
    assert_eq!(found.chosen, [None; 8]);
    assert!(found.logits.iter().any(|&bits| f32::from_bits(bits).is_nan()));
}

#[test]
fn a_lost_device_in_a_series_is_reported_and_set_up_again() {
    let model = Golden::load("gemma3-a").model;
    let device = own_device();
    let mut runner = Runner::new(&device, &model);
    let first = first(&[(0, 3), (1, 1)]);
    let expected = runner.series(&first, 4);
    for (failure, mark) in [
        (Injected::Loss, "lost"),
        (Injected::Timeout, "did not finish"),
        (Injected::Refusal, "vkQueueSubmit"),
    ] {
        device.gpu().inject(failure);
        let error = runner.try_series(&first, 4).unwrap_err();
        assert!(matches!(error, BackendError::Failed { .. }), "{error}");
        assert!(error.to_string().contains(mark), "{error}");
        assert_eq!(runner.program.memory().weights, 0, "nothing is kept on a failed device");
        runner.fill();
        assert_eq!(runner.series(&first, 4), expected);
    }
}

/// The steps after a broken one have run tokens that are not right.
#[test]
fn a_series_whose_chain_does_not_move_is_run_again() {
    // The model with quantised weights: its products of one row are chained.
    let model = Golden::load("gguf/gemma3-qat").model;
    for (rows, more) in [(&[(0, 1)][..], 3), (&[(1, 3)], 3), (&[(2, 1)], 0)] {
        let device = own_device();
        let mut runner = Runner::new(&device, &model);
        let first = first(rows);
        let expected = runner.series(&first, more);
        let next = after_series(&first, more, &expected.chosen);
        let logits = bits(&runner.run(&next));
        runner.spoil();
        device.gpu().inject(Injected::Stall);
        assert_eq!(runner.series(&first, more), expected, "{rows:?}, {more} more");
        assert!(!device.gpu().has_injected(), "a pass had a chain");
        assert_eq!(bits(&runner.run(&next)), logits, "{rows:?}, {more} more");
        device.gpu().inject(Injected::Stall);
        assert_eq!(runner.series(&first, more), expected, "{rows:?}, {more} more");
        assert!(device.gpu().has_injected(), "there are no chains any more");
    }
}

#[test]
fn a_stopped_series_leaves_everything_else_as_it_was() {
    let model = Golden::load("gguf/gemma3-qat").model;
    let device = own_device();
    device.gpu().submit_each_step();
    let mut runner = Runner::new(&device, &model);
    let (first, more) = (first(&[(0, 2)]), 2);
    let other = [Part { slot: 1, position: STARTS[1], tokens: vec![9] }];
    let expected = runner.series(&first, more);
    let logits = bits(&runner.run(&other));
    let stop = Arc::new(AtomicBool::new(false));
    runner.program.stop_on(Arc::clone(&stop));
    let mut submissions = 0;
    loop {
        device.gpu().inject(Injected::Stop(submissions));
        match runner.try_series(&first, more) {
            Err(error) => assert!(matches!(error, BackendError::Stopped), "{error}"),
            Ok(found) => {
                assert!(device.gpu().withdraw(), "it had no such submission");
                assert_eq!(found, expected);
                break;
            }
        }
        stop.store(false, Ordering::Relaxed);
        submissions += 1;
        // A few stops at each part of a step: each is followed by two whole runs.
        if submissions % 3 == 0 {
            assert_eq!(bits(&runner.run(&other)), logits, "submission {submissions}");
            assert_eq!(runner.series(&first, more), expected, "submission {submissions}");
        }
    }
    let layers = model.config().layers.len();
    assert!(submissions > 2 * layers * (1 + more), "{submissions} submissions");
    device.gpu().inject(Injected::Stall);
    assert_eq!(runner.series(&first, more), expected);
    assert!(!device.gpu().has_injected(), "no stop has broken the chains");
}

/// A series is stopped while a chain of it is broken: what the chain left must reach no later step.
#[test]
fn a_chain_that_fails_in_a_stopped_series_is_given_up() {
    let model = Golden::load("gguf/gemma3-qat").model;
    let device = own_device();
    device.gpu().submit_each_step();
    let mut runner = Runner::new(&device, &model);
    let first = first(&[(0, 1)]);
    let expected = runner.series(&first, 2);
    let stop = Arc::new(AtomicBool::new(false));
    runner.program.stop_on(Arc::clone(&stop));
    device.gpu().inject(Injected::Stall);
    // By then the first layer's products, which are chained, have run.
    device.gpu().inject(Injected::Stop(8));
    let stopped = runner.try_series(&first, 2);
    assert!(matches!(stopped, Err(BackendError::Stopped)), "{stopped:?}");
    assert!(!device.gpu().has_injected(), "the pass had a chain and was stopped");
    stop.store(false, Ordering::Relaxed);
    device.gpu().inject(Injected::Stall);
    assert_eq!(runner.series(&first, 2), expected);
    assert!(device.gpu().has_injected(), "there are no chains any more");
}
