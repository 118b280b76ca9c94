//! Rounds of guesses, against those of another implementation.

use trine_backend::{BLOCK, Batch, Device, Facts, ProgramOptions, SequenceView};
use trine_model::{Assistant, KvType, Model, Width};
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

/// Drafts all rounds of a golden on a device: the largest difference of the target's hidden state,
/// of a logit and of a hidden state that is handed on. The contexts are read in pieces of `chunk`
/// rows.
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
            let (found, after) = sequence.guess(&model, token, &state);
            note(1, &found, &logits[step * vocabulary..][..vocabulary]);
            assert_eq!(best(&found), next as usize, "{context}, guess {step}");
            note(2, &after, &states[step * after.len()..][..after.len()]);
            (token, state) = (next as u32, after);
        }
    }
    worst
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
            width: Width { tokens: width, outputs: 1 },
            kv: KvType::F32,
            context: blocks * BLOCK,
            sequences: 1,
            blocks,
        };
        let program = device.load_plan(model, model.plan_with_drafts(false), &options).unwrap();
        Self { program, blocks: (0..blocks as u32).rev().collect(), length: 0 }
    }

    /// Reads tokens; the likeliest next one, and the hidden state that it is made of.
    fn read(&mut self, tokens: &[u32]) -> (u32, Vec<f32>) {
        let positions: Vec<u32> = (self.length as u32..).take(tokens.len()).collect();
        self.length += tokens.len();
        let mut outputs = self.run(tokens, &positions, &[], 0);
        let (state, logits) = (outputs.remove(1), outputs.remove(0));
        (best(&logits) as u32, state)
    }

    /// Guesses the token after one that is not stored yet; the logits, and the next state.
    fn guess(&mut self, model: &Model, token: u32, state: &[f32]) -> (Vec<f32>, Vec<f32>) {
        let mut outputs = self.run(&[token], &[self.length as u32 - 1], &[state], 1);
        let scores = outputs.get(2).cloned().unwrap_or_default();
        model.assistant().unwrap().search(&scores, &mut outputs[0]);
        (outputs.remove(0), outputs.remove(0))
    }

    fn run(
        &mut self,
        tokens: &[u32],
        positions: &[u32],
        inputs: &[&[f32]],
        goal: usize,
    ) -> Vec<Vec<f32>> {
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
        let results = self.program.wait(step).unwrap();
        outputs.map(|index| results.output(index).unwrap().to_vec()).collect()
    }
}
