//! Rounds of guesses, against those of another implementation.

use std::path::Path;

use safetensors::Dtype;
use safetensors::tensor::{TensorView, serialize_to_file};
use trine_backend::reference::ReferenceDevice;
use trine_backend::{BLOCK, Batch, Device, Facts, ProgramOptions, SequenceView};
use trine_model::{Assistant, Ends, Goal, KvType, Model, Width};
use trine_weights::{DType, SafetensorsFile};

use super::random::Random;
use super::{Golden, folder};

/// The numbers of a file of results.
struct Results(SafetensorsFile);

impl Results {
    fn open(name: &str) -> Self {
        Self(SafetensorsFile::open(&folder(name).join("drafter.safetensors")).unwrap())
    }

    fn bytes(&self, name: &str) -> &[u8] {
        self.0.bytes(self.0.entry(name).unwrap_or_else(|| panic!("{name}")))
    }

    fn floats(&self, name: &str) -> Vec<f32> {
        let (words, _) = self.bytes(name).as_chunks::<4>();
        words.iter().map(|word| f32::from_le_bytes(*word)).collect()
    }

    fn integers(&self, name: &str) -> Vec<i64> {
        let (words, _) = self.bytes(name).as_chunks::<8>();
        words.iter().map(|word| i64::from_le_bytes(*word)).collect()
    }
}

/// Drafts all rounds of a golden on a device: the largest difference of the target's hidden state,
/// of a logit and of a hidden state that is handed on. The contexts are read in pieces of `chunk`
/// rows. A device that `has_series` has to make the same guesses in one series.
pub fn rounds(
    device: &dyn Device,
    has_series: bool,
    name: &str,
    contexts: [usize; 4],
    chunk: usize,
) -> [f32; 3] {
    let golden = Golden::load(name);
    let assistant = Assistant::open(&folder(name).join("assistant")).unwrap();
    let model = golden.model.with_assistant(assistant).unwrap();
    let results = Results::open(name);
    let mut worst = [0.0_f32; 3];
    let mut note = |kind: usize, found: &[f32], expected: &[f32]| {
        assert_eq!(found.len(), expected.len());
        for (a, b) in found.iter().zip(expected) {
            let difference = (a - b).abs();
            worst[kind] = if difference.is_nan() { f32::NAN } else { worst[kind].max(difference) };
        }
    };
    for context in contexts {
        let ids = &golden.ids[..context];
        let mut sequence = Sequence::new(device, &model, context, chunk);
        let of = |what: &str| format!("n{context}.{what}");
        let own = |what: &str| format!("window.n{context}.{what}");
        let mut state = Vec::new();
        let mut bonus = 0;
        for piece in ids.chunks(chunk) {
            (bonus, state) = sequence.read(piece);
        }
        note(0, &state, &results.floats(&of("target_hidden")));
        assert_eq!(i64::from(bonus), results.integers(&of("bonus"))[0], "{context}");
        let (logits, states) = (results.floats(&own("logits")), results.floats(&own("hidden_out")));
        let tokens = results.integers(&own("tokens"));
        let vocabulary = logits.len() / tokens.len();
        assert_eq!(sequence.program.facts().series_for(Goal::Draft) > 0, has_series, "{name}");
        if has_series {
            let chosen = sequence.series(bonus, &state, tokens.len());
            assert_eq!(chosen, tokens, "{context}, in one series");
        }
        let mut token = bonus;
        for (step, &next) in tokens.iter().enumerate() {
            let (found, after) = sequence.guess(token, &state);
            note(1, &found, &logits[step * vocabulary..][..vocabulary]);
            assert_eq!(best(&found), next as usize, "{context}, guess {step}");
            note(2, &after, &states[step * after.len()..][..after.len()]);
            (token, state) = (next as u32, after);
        }
    }
    worst
}

/// A draft for `gemma4-e` in random numbers, with a hidden size, a number of clusters and a number
/// of them that are searched. Every other cluster has the same centroid as the one before it. Each
/// row of the `broken` tensor begins with NaN.
fn clustered(
    seed: u64,
    [hidden, clusters, used]: [usize; 3],
    broken: Option<&str>,
    target: &Path,
) -> Assistant {
    let random = &mut Random(seed);
    let own = folder("gemma4-e").join("assistant");
    let config = std::fs::read_to_string(own.join("config.json")).unwrap();
    let config = config
        .replace("\"hidden_size\": 40", &format!("\"hidden_size\": {hidden}"))
        .replace("\"num_centroids\": 33", &format!("\"num_centroids\": {clusters}"))
        .replace("_top_k\": 4", &format!("_top_k\": {used}"));
    std::fs::write(target.join("config.json"), config).unwrap();
    let file = SafetensorsFile::open(&own.join("model.safetensors")).unwrap();
    let mut tensors = Vec::new();
    for entry in file.entries() {
        let sizes = entry.shape.iter().map(|&size| match size {
            40 => hidden,
            33 => clusters,
            size => size,
        });
        let shape: Vec<usize> = sizes.collect();
        let count = shape.iter().product();
        if entry.name.ends_with("token_ordering") {
            let mut tokens: Vec<i64> = (0..count as i64).collect();
            (1..count).for_each(|at| tokens.swap(at, random.below(at + 1)));
            let bytes = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
            tensors.push((entry.name.clone(), Dtype::I64, shape, bytes));
            continue;
        }
        let is_matrix = shape.len() > 1;
        let mut values: Vec<f32> =
            (0..count).map(|_| random.unit() + f32::from(u8::from(!is_matrix))).collect();
        if entry.name.ends_with("centroids.weight") {
            values.chunks_mut(2 * hidden).filter(|two| two.len() == 2 * hidden).for_each(|two| {
                let (one, other) = two.split_at_mut(hidden);
                other.copy_from_slice(one);
            });
        }
        if broken.is_some_and(|broken| entry.name.ends_with(broken)) {
            values.iter_mut().step_by(hidden).for_each(|value| *value = f32::NAN);
        }
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        tensors.push((entry.name.clone(), Dtype::F32, shape, bytes));
    }
    let views = tensors.iter().map(|(name, dtype, shape, bytes)| {
        (name.clone(), TensorView::new(*dtype, shape.clone(), bytes).unwrap())
    });
    serialize_to_file(views, None, &target.join("model.safetensors")).unwrap();
    Assistant::open(target).unwrap()
}

/// Compares guesses of drafts with random clusters, for one row and for several, with those of the
/// reference: the largest difference of a logit, as a share of the largest logit. Logits of tokens
/// that are not searched have to be the smallest of the others less 1, and those of a broken row
/// NaN.
pub fn clusters_agree(device: &dyn Device) -> f32 {
    let cases = [
        ([64, 33, 5], None),
        ([64, 528, 9], Some(DType::Q8_0)),
        ([32, 132, 32], Some(DType::Q4_0)),
        ([96, 4, 3], Some(DType::Q8_0)),
        ([33, 12, 12], None),
        ([32, 1, 1], Some(DType::Q8_0)),
    ];
    let mut worst = 0.0_f32;
    for (seed, (sizes, dtype)) in cases.into_iter().enumerate() {
        let target = tempfile::tempdir().unwrap();
        let assistant = clustered(seed as u64, sizes, None, target.path());
        let golden = Golden::load("gemma4-e");
        let model = golden.model.with_assistant(assistant).unwrap();
        let model = dtype.into_iter().fold(model, Model::quantized_draft);
        let ids: Vec<u32> = golden.ids[..24].to_vec();
        let random = &mut Random(seed as u64);
        let mut states: Vec<f32> = (0..24 * 56).map(|_| random.unit()).collect();
        let of = |device: &dyn Device, rows: usize, states: &[f32]| {
            let mut sequence = Sequence::new(device, &model, 24, 24);
            sequence.read(&ids);
            let positions: Vec<u32> = (24 - rows as u32..24).collect();
            sequence.guess_all(&ids[..rows], &positions, &states[..rows * 56])
        };
        for rows in [1, 3, 20] {
            let (found, expected) =
                (of(device, rows, &states), of(&ReferenceDevice::new(), rows, &states));
            assert_eq!(found.len(), rows * 528);
            let most = expected.iter().fold(1.0_f32, |most, logit| most.max(logit.abs()));
            for (found, expected) in found.iter().zip(&expected) {
                let difference = (found - expected).abs() / most;
                worst = if difference.is_nan() { f32::NAN } else { worst.max(difference) };
            }
            assert!(!worst.is_nan(), "{sizes:?}, {dtype:?}, {rows} rows");
            for row in expected.chunks_exact(528) {
                let least = row.iter().copied().fold(f32::INFINITY, f32::min);
                let rest = row.iter().filter(|logit| **logit == least).count();
                let others = 528 - 528 / sizes[1] * sizes[2];
                assert_eq!(rest.max(1), others.max(1), "{sizes:?}");
            }
        }
        // A broken row is seen, and breaks no other.
        let whole = of(device, 3, &states);
        states[56] = f32::NAN;
        let broken = of(device, 3, &states);
        assert!(broken[528..2 * 528].iter().all(|logit| logit.is_nan()), "{sizes:?}, {dtype:?}");
        assert_eq!((&broken[..528], &broken[2 * 528..]), (&whole[..528], &whole[2 * 528..]));
    }
    worst
}

/// Checks that only the tokens of the first clusters have logits other than NaN if centroids are
/// NaN, and that no token has if the output matrix is NaN.
pub fn broken_clusters_are_seen(device: &dyn Device) {
    broken_tensor_is_seen(device, "centroids.weight", 5);
    broken_tensor_is_seen(device, "embed_tokens.weight", 0);
}

fn broken_tensor_is_seen(device: &dyn Device, tensor: &str, left: usize) {
    let target = tempfile::tempdir().unwrap();
    let assistant = clustered(3, [64, 33, 5], Some(tensor), target.path());
    let golden = Golden::load("gemma4-e");
    let searched: Vec<usize> =
        assistant.ordering()[..left * 16].iter().map(|token| *token as usize).collect();
    let model = golden.model.with_assistant(assistant).unwrap();
    let mut sequence = Sequence::new(device, &model, 24, 24);
    sequence.read(&golden.ids[..24]);
    let logits = sequence.guess_all(&[7, 8], &[22, 23], &[0.5; 2 * 56]);
    for (at, logit) in logits.iter().enumerate() {
        assert_eq!(logit.is_nan(), !searched.contains(&(at % 528)), "{tensor}, {at}: {logit}");
    }
}

fn best(logits: &[f32]) -> usize {
    (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap()
}

/// A text and guesses about it, on a Program with both models.
struct Sequence {
    program: Box<dyn trine_backend::Program>,
    blocks: Vec<u32>,
    length: usize,
}

impl Sequence {
    fn new(device: &dyn Device, model: &Model, context: usize, width: usize) -> Self {
        let blocks = context.div_ceil(BLOCK).max(1);
        let options = ProgramOptions {
            width: Width { tokens: width, outputs: width.min(20) },
            kv: KvType::F32,
            context: blocks * BLOCK,
            sequences: 1,
            blocks,
        };
        let program = device
            .load_plan(model, model.plan_for(Ends { drafts: true, ..Ends::LOGITS }), &options)
            .unwrap();
        Self { program, blocks: (0..blocks as u32).rev().collect(), length: 0 }
    }

    /// Reads tokens; the likeliest next one, and the hidden state that it is made of.
    fn read(&mut self, tokens: &[u32]) -> (u32, Vec<f32>) {
        let positions: Vec<u32> = (self.length as u32..).take(tokens.len()).collect();
        self.length += tokens.len();
        let mut outputs = self.run(tokens, &positions, &[], Goal::Main);
        let (state, logits) = (outputs.remove(1), outputs.remove(0));
        (best(&logits) as u32, state)
    }

    /// Guesses the token after one that is not stored yet; the logits, and the next state.
    fn guess(&mut self, token: u32, state: &[f32]) -> (Vec<f32>, Vec<f32>) {
        let mut outputs = self.run(&[token], &[self.length as u32 - 1], &[state], Goal::Draft);
        (outputs.remove(0), outputs.remove(0))
    }

    /// The tokens of `count` guesses in one series.
    fn series(&mut self, token: u32, state: &[f32], count: usize) -> Vec<i64> {
        let batch = Batch {
            tokens: &[token],
            positions: &[self.length as u32 - 1],
            sequence_of: &[0],
            sequences: &[SequenceView { slot: 0, blocks: &self.blocks }],
            outputs: &[0],
            ahead: &[],
            bulk_from: 1,
            inputs: &[state],
            goal: Goal::Draft,
        };
        let step = self.program.submit_series(&batch, count - 1).unwrap();
        let chosen = self.program.wait(step).unwrap().chosen().unwrap();
        chosen.iter().map(|token| i64::from(token.unwrap())).collect()
    }

    /// Guesses from several rows at once; their logits.
    fn guess_all(&mut self, tokens: &[u32], positions: &[u32], states: &[f32]) -> Vec<f32> {
        let outputs: Vec<u32> = (0..tokens.len() as u32).collect();
        self.run_rows(tokens, positions, &[states], Goal::Draft, &outputs).remove(0)
    }

    fn run(
        &mut self,
        tokens: &[u32],
        positions: &[u32],
        inputs: &[&[f32]],
        goal: Goal,
    ) -> Vec<Vec<f32>> {
        self.run_rows(tokens, positions, inputs, goal, &[tokens.len() as u32 - 1])
    }

    fn run_rows(
        &mut self,
        tokens: &[u32],
        positions: &[u32],
        inputs: &[&[f32]],
        goal: Goal,
        outputs: &[u32],
    ) -> Vec<Vec<f32>> {
        let batch = Batch {
            tokens,
            positions,
            sequence_of: &vec![0; tokens.len()],
            sequences: &[SequenceView { slot: 0, blocks: &self.blocks }],
            outputs,
            ahead: &[],
            bulk_from: tokens.len(),
            inputs,
            goal,
        };
        let step = self.program.submit(&batch).unwrap();
        let Facts { plan, .. } = self.program.facts();
        let outputs = plan.outputs_for(goal);
        let results = self.program.wait(step).unwrap();
        outputs.map(|index| results.output(index).unwrap().to_vec()).collect()
    }
}
