//! Drafts that read the caches of the model they guess for, on the GPU.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use trine_backend::{
    BackendError, Batch, Device, Program, ProgramOptions, Results, SERIES_MAX, SequenceView,
};
use trine_model::{Assistant, Ends, Goal, KvType, Model, Width};
use trine_testing::drafts::{broken_clusters_are_seen, clusters_agree, rounds};
use trine_testing::{Golden, bits, folder, largest};
use trine_vulkan::testing::{device, own_device};
use trine_vulkan::{Injected, VulkanDevice};

#[test]
fn guesses_are_those_of_another_implementation() {
    for (folder, window, whole) in [("gemma4-e", 8, 46), ("gemma4-dense", 9, 52)] {
        let contexts = [window - 3, window + 1, 2 * window + 3, whole];
        for chunk in [whole, 7, 1] {
            let worst = rounds(&device(), true, folder, contexts, chunk);
            println!("{folder} in pieces of {chunk}: {worst:?}");
            assert!(worst.iter().all(|worst| *worst <= 1e-3), "{folder}, {chunk}: {worst:?}");
        }
    }
}

#[test]
fn clusters_of_any_number_are_searched_as_by_the_reference() {
    for device in [device(), device().batch_invariant()] {
        broken_clusters_are_seen(&device);
        let worst = clusters_agree(&device);
        println!("{worst}");
        // Matrix units round activations to halves; another cluster differs by its whole logits.
        assert!(worst <= 3e-3, "{worst}");
    }
}

const OPTIONS: ProgramOptions = ProgramOptions {
    width: Width { tokens: 24, outputs: 3 },
    kv: KvType::F16,
    context: 96,
    sequences: 3,
    blocks: 9,
};
/// Block table of each slot.
static TABLES: [[u32; 3]; 3] = [[0, 3, 6], [8, 1, 4], [2, 5, 7]];
/// The tokens that each slot holds: one text ends with a block.
const LENGTHS: [usize; 3] = [20, 32, 50];

fn model(name: &str) -> Model {
    let assistant = Assistant::open(&folder(name).join("assistant")).unwrap();
    Golden::load(name).model.with_assistant(assistant).unwrap()
}

/// Where a draft begins: a slot, and what its text ends with.
#[derive(Debug, Clone, PartialEq)]
struct Start {
    slot: usize,
    /// The token that follows the text.
    token: u32,
    /// The hidden state that it was chosen by.
    state: Vec<f32>,
}

/// What guesses gave: tokens, (steps, sequences), and the bits of the last step's logits and
/// states.
#[derive(PartialEq)]
struct Outcome {
    chosen: Vec<Option<u32>>,
    logits: Vec<u32>,
    states: Vec<u32>,
}

impl std::fmt::Debug for Outcome {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { chosen, logits, states } = self;
        write!(formatter, "{chosen:?}, {:?}..., {:?}...", &logits[..2], &states[..2])
    }
}

/// A Program with a draft, whose slots hold texts.
struct Runner {
    program: Box<dyn Program>,
    /// The places of a guess's logits and next states among the outputs.
    outputs: [usize; 2],
    /// Columns of these.
    columns: [usize; 2],
    starts: Vec<Start>,
}

impl Runner {
    fn new(device: &dyn Device, model: &Model) -> Self {
        let plan = model.plan_for(Ends { drafts: true, ..Ends::LOGITS });
        let first = plan.outputs_for(Goal::Draft).start;
        let outputs = [first, first + 1];
        let columns = outputs.map(|index| plan.output(index).columns);
        let program = device.load_plan(model, plan, &OPTIONS).unwrap();
        let mut runner = Self { program, outputs, columns, starts: Vec::new() };
        runner.fill();
        runner
    }

    /// Reads the texts of all slots.
    fn fill(&mut self) {
        self.starts.clear();
        for (slot, length) in LENGTHS.into_iter().enumerate() {
            let token = |at: usize| ((at * at + 7 * slot + 1) % 250) as u32;
            let (tokens, positions): (Vec<u32>, Vec<u32>) =
                (0..length).map(|at| (token(at), at as u32)).unzip();
            let (mut next, mut state) = (0, Vec::new());
            let width = OPTIONS.width.tokens;
            for (tokens, positions) in tokens.chunks(width).zip(positions.chunks(width)) {
                let batch = Batch {
                    tokens,
                    positions,
                    sequence_of: &vec![0; tokens.len()],
                    sequences: &[SequenceView { slot: slot as u32, blocks: &TABLES[slot] }],
                    outputs: &[tokens.len() as u32 - 1],
                    bulk_from: tokens.len(),
                    ..trine_testing::BATCH
                };
                let step = self.program.submit(&batch).unwrap();
                let results = self.program.wait(step).unwrap();
                next = largest(results.output(0).unwrap()).unwrap();
                state = results.output(1).unwrap().to_vec();
            }
            self.starts.push(Start { slot, token: next, state });
        }
    }

    fn starts(&self, slots: &[usize]) -> Vec<Start> {
        slots.iter().map(|&slot| self.starts[slot].clone()).collect()
    }

    /// Runs a step or a series from these rows.
    fn with<T>(
        &mut self,
        starts: &[Start],
        more: Option<usize>,
        read: impl FnOnce(&mut dyn Results, [usize; 2]) -> T,
    ) -> Result<T, BackendError> {
        let tokens: Vec<u32> = starts.iter().map(|start| start.token).collect();
        let position = |start: &Start| LENGTHS[start.slot] as u32 - 1;
        let positions: Vec<u32> = starts.iter().map(position).collect();
        let rows: Vec<u32> = (0..starts.len() as u32).collect();
        // No block but those that the texts have.
        let blocks = |slot: usize| &TABLES[slot][..LENGTHS[slot].div_ceil(32)];
        let view =
            |start: &Start| SequenceView { slot: start.slot as u32, blocks: blocks(start.slot) };
        let sequences: Vec<SequenceView<'_>> = starts.iter().map(view).collect();
        let states: Vec<f32> = starts.iter().flat_map(|start| start.state.clone()).collect();
        let batch = Batch {
            tokens: &tokens,
            positions: &positions,
            sequence_of: &rows,
            sequences: &sequences,
            outputs: &rows,
            ahead: &[],
            bulk_from: rows.len(),
            inputs: &[&states],
            goal: Goal::Draft,
        };
        let step = match more {
            Some(more) => self.program.submit_series(&batch, more)?,
            None => self.program.submit(&batch)?,
        };
        Ok(read(self.program.wait(step)?, self.outputs))
    }

    /// The guesses of a series one by one, with the host between them.
    fn stepwise(&mut self, slots: &[usize], more: usize) -> Outcome {
        let mut starts = self.starts(slots);
        let mut chosen = Vec::new();
        let [vocabulary, hidden] = self.columns;
        let mut last = (Vec::new(), Vec::new());
        for _ in 0..=more {
            let read = |results: &mut dyn Results, [logits, states]: [usize; 2]| {
                let logits = results.output(logits).unwrap().to_vec();
                (logits, results.output(states).unwrap().to_vec())
            };
            last = self.with(&starts, None, read).unwrap();
            let tokens = last.0.chunks_exact(vocabulary).map(largest);
            let made = tokens.zip(last.1.chunks_exact(hidden));
            for (start, (token, state)) in starts.iter_mut().zip(made) {
                (start.token, start.state) = (token.unwrap(), state.to_vec());
                chosen.push(token);
            }
        }
        Outcome { chosen, logits: bits(&last.0), states: bits(&last.1) }
    }

    fn try_series(&mut self, slots: &[usize], more: usize) -> Result<Outcome, BackendError> {
        let starts = self.starts(slots);
        self.with(&starts, Some(more), |results, [logits, states]| Outcome {
            chosen: results.chosen().unwrap().to_vec(),
            logits: bits(results.output(logits).unwrap()),
            states: bits(results.output(states).unwrap()),
        })
    }

    fn series(&mut self, slots: &[usize], more: usize) -> Outcome {
        self.try_series(slots, more).unwrap()
    }
}

/// Compares series with their guesses one by one. They leave caches as they are.
fn compare(device: &VulkanDevice, name: &str) {
    let mut runner = Runner::new(device, &model(name));
    assert_eq!(runner.program.facts().series_for(Goal::Draft), SERIES_MAX, "{name}");
    for slots in [&[0][..], &[1], &[2, 0, 1]] {
        for more in [0, 1, 3, SERIES_MAX] {
            let expected = runner.stepwise(slots, more);
            assert_eq!(runner.series(slots, more), expected, "{name}, {slots:?}, {more} more");
        }
    }
    let before = runner.starts.clone();
    runner.fill();
    assert_eq!(runner.starts, before);
}

#[test]
fn a_series_is_its_guesses_one_by_one() {
    // Of the first, rows of a table come from the host in steps of the model, not in guesses.
    for name in ["gemma4-e", "gemma4-dense"] {
        compare(&device(), name);
    }
}

#[test]
fn a_series_is_its_guesses_one_by_one_where_kernels_are_invariant() {
    compare(&device().batch_invariant(), "gemma4-dense");
}

#[test]
fn a_guess_has_its_largest_logits() {
    let mut runner = Runner::new(&device(), &model("gemma4-dense"));
    for more in [None, Some(2)] {
        let starts = runner.starts(&[1, 2]);
        let vocabulary = runner.columns[0];
        let read = |results: &mut dyn Results, [logits, _]: [usize; 2]| {
            let top = [0, 1].map(|row| results.top(row).unwrap().to_vec());
            (top, results.output(logits).unwrap().to_vec())
        };
        let (top, logits) = runner.with(&starts, more, read).unwrap();
        for (top, logits) in top.iter().zip(logits.chunks_exact(vocabulary)) {
            let most = top.iter().max_by(|a, b| a.logit.total_cmp(&b.logit)).unwrap();
            assert_eq!(Some(most.token), largest(logits));
            assert!(top.iter().all(|top| logits[top.token as usize] == top.logit));
        }
    }
}

#[test]
fn a_profiled_series_is_the_same() {
    let mut runner = Runner::new(&device(), &model("gemma4-dense"));
    let expected = runner.series(&[2, 1], 3);
    runner.program.profile(true);
    assert_eq!(runner.series(&[2, 1], 3), expected);
    assert!(runner.program.profile(false).iter().sum::<f64>() > 0.0);
    assert_eq!(runner.series(&[2, 1], 3), expected);
}

#[test]
fn a_series_that_breaks_a_rule_costs_nothing() {
    let mut runner = Runner::new(&device(), &model("gemma4-e"));
    let expected = runner.series(&[0, 1], 4);
    let state = runner.starts[0].state.repeat(2);
    let sequences = [SequenceView { slot: 0, blocks: &TABLES[0] }];
    let good = Batch {
        tokens: &[3],
        positions: &[19],
        sequence_of: &[0],
        sequences: &sequences,
        outputs: &[0],
        ahead: &[],
        bulk_from: 1,
        inputs: &[&state[..state.len() / 2]],
        goal: Goal::Draft,
    };
    let two = Batch { tokens: &[3, 4], positions: &[19, 20], sequence_of: &[0, 0], ..good };
    let program = &mut runner.program;
    for (batch, more) in [
        (good, SERIES_MAX + 1),
        (good, usize::MAX),
        (Batch { outputs: &[], ..good }, 1),
        (Batch { inputs: &[], ..good }, 1),
        (Batch { inputs: &[&state], ..good }, 1),
        (Batch { inputs: &[&state], outputs: &[1], ..two }, 1),
        (Batch { goal: Goal::States, ..good }, 1),
    ] {
        let refused = program.submit_series(&batch, more);
        assert!(matches!(refused, Err(BackendError::BadBatch { .. })), "{refused:?}");
    }
    // Steps of this model take rows of a table.
    let refused = program.submit_series(&Batch { goal: Goal::Main, inputs: &[], ..good }, 1);
    assert!(matches!(refused, Err(BackendError::Unsupported { .. })), "{refused:?}");
    assert_eq!(runner.series(&[0, 1], 4), expected);
}

#[test]
fn a_lost_device_in_a_series_is_reported_and_set_up_again() {
    let device = own_device();
    let mut runner = Runner::new(&device, &model("gemma4-dense"));
    let expected = runner.series(&[0, 1], 3);
    for failure in [Injected::Loss, Injected::Timeout, Injected::Refusal] {
        device.gpu().inject(failure);
        let error = runner.try_series(&[0, 1], 3).unwrap_err();
        assert!(matches!(error, BackendError::Failed { .. }), "{error}");
        assert_eq!(runner.program.memory().weights, 0, "nothing is kept on a failed device");
        runner.fill();
        assert_eq!(runner.series(&[0, 1], 3), expected);
    }
}

/// The guesses after a broken one were made of states that are not right, and what the host wrote
/// of the first was overwritten.
#[test]
fn a_series_whose_chain_does_not_move_is_run_again() {
    for more in [0, 3] {
        let device = own_device();
        let mut runner = Runner::new(&device, &model("gemma4-dense"));
        let expected = runner.series(&[2], more);
        device.gpu().inject(Injected::Stall);
        assert_eq!(runner.series(&[2], more), expected, "{more} more");
        assert!(!device.gpu().has_injected(), "a pass had a chain");
        device.gpu().inject(Injected::Stall);
        assert_eq!(runner.series(&[2], more), expected, "{more} more");
        assert!(device.gpu().has_injected(), "there are no chains any more");
    }
}

#[test]
fn a_stopped_series_leaves_everything_as_it_was() {
    let device = own_device();
    device.gpu().submit_each_step();
    let mut runner = Runner::new(&device, &model("gemma4-dense"));
    let expected = runner.series(&[1], 2);
    let stop = Arc::new(AtomicBool::new(false));
    runner.program.stop_on(Arc::clone(&stop));
    let mut submissions = 0;
    loop {
        device.gpu().inject(Injected::Stop(submissions));
        match runner.try_series(&[1], 2) {
            Err(error) => assert!(matches!(error, BackendError::Stopped), "{error}"),
            Ok(found) => {
                assert!(device.gpu().withdraw(), "it had no such submission");
                assert_eq!(found, expected);
                break;
            }
        }
        stop.store(false, Ordering::Relaxed);
        submissions += 1;
        if submissions % 5 == 0 {
            assert_eq!(runner.series(&[1], 2), expected, "submission {submissions}");
        }
    }
    assert!(submissions > 3 * 4, "{submissions} submissions");
    device.gpu().inject(Injected::Stall);
    assert_eq!(runner.series(&[1], 2), expected);
    assert!(!device.gpu().has_injected(), "no stop has broken the chains");
}
