//! Rounds of guesses, against those of another implementation.

use trine_backend::{BLOCK, Batch, Device, Facts, ProgramOptions, SequenceView};
use trine_model::{Assistant, KvType, Model, Width, drafts};
use trine_weights::SafetensorsFile;

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

/// Drafts all rounds of a golden on a device: the largest difference of the target's hidden state, of a logit
/// and of a hidden state that is handed on. The contexts are read in pieces of `chunk` rows.
pub fn rounds(device: &dyn Device, name: &str, contexts: [usize; 4], chunk: usize) -> [f32; 3] {
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
        let mut token = bonus;
        for (step, &next) in tokens.iter().enumerate() {
            let (found, after) = sequence.guess(token, &state);
            let expected = &logits[step * vocabulary..][..vocabulary];
            // Of a matrix in clusters only those of the clusters that were searched are known.
            let searched = expected.iter().copied().fold(f32::INFINITY, f32::min);
            let is_known = |logit: f32| model_is_dense(&model) || logit > searched;
            for (&found, &expected) in found.iter().zip(expected) {
                if is_known(expected) {
                    note(1, &[found], &[expected]);
                }
            }
            note(2, &after, &states[step * after.len()..][..after.len()]);
            (token, state) = (next as u32, after);
        }
    }
    worst
}

fn model_is_dense(model: &Model) -> bool {
    model.assistant().unwrap().config().centroids.is_none()
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
            width: Width { tokens: width, outputs: 1 },
            kv: KvType::F32,
            context: blocks * BLOCK,
            sequences: 1,
            blocks,
        };
        let program = device.load_plan(model, model.plan_with_drafts(), &options).unwrap();
        Self { program, blocks: (0..blocks as u32).rev().collect(), length: 0 }
    }

    /// Reads tokens; the likeliest next one, and the hidden state that it is made of.
    fn read(&mut self, tokens: &[u32]) -> (u32, Vec<f32>) {
        let positions: Vec<u32> = (self.length as u32..).take(tokens.len()).collect();
        self.length += tokens.len();
        let [logits, state] = self.run(tokens, &positions, &[], 0);
        let best = |a: &usize, b: &usize| logits[*a].total_cmp(&logits[*b]);
        ((0..logits.len()).max_by(best).unwrap() as u32, state)
    }

    /// Guesses the token after one that is not stored yet; the logits, and the next state.
    fn guess(&mut self, token: u32, state: &[f32]) -> (Vec<f32>, Vec<f32>) {
        let [logits, next] = self.run(&[token], &[self.length as u32 - 1], &[state], 1);
        (logits, next)
    }

    fn run(
        &mut self,
        tokens: &[u32],
        positions: &[u32],
        inputs: &[&[f32]],
        goal: usize,
    ) -> [Vec<f32>; 2] {
        let batch = Batch {
            tokens,
            positions,
            sequence_of: &vec![0; tokens.len()],
            sequences: &[SequenceView { slot: 0, blocks: &self.blocks }],
            outputs: &[tokens.len() as u32 - 1],
            ahead: &[],
            bulk_from: tokens.len(),
            inputs,
            goal,
        };
        let step = self.program.submit(&batch).unwrap();
        let Facts { plan, .. } = self.program.facts();
        let outputs = plan.outputs_for(goal);
        assert_eq!(outputs.len(), drafts::OUTPUTS);
        let results = self.program.wait(step).unwrap();
        let mut output = |index: usize| results.output(outputs.start + index).unwrap().to_vec();
        [output(0), output(1)]
    }
}
