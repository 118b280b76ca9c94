//! A model that writes a script: the token at each place is known, whatever the prompt is.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use trine_backend::{
    BLOCK, BackendError, Batch, Facts, Flights, InFlight, Memory, Program, ProgramOptions, Results,
};
use trine_model::{Buffer, BufferId, Cache, End, Goal, Input, KvType, Plan, Rows, Source, Width};

/// Tokens that end answers in the vocabularies of these tests.
const ENDS: [u32; 3] = [1, 50, 106];

/// What tests can see and change of a running model.
#[derive(Debug, Default)]
pub(crate) struct Controls {
    /// Time that each step takes, in microseconds.
    pub(crate) step_us: AtomicU64,
    /// Steps run.
    pub(crate) steps: AtomicUsize,
    /// The step from which on the device fails; 0 for none.
    pub(crate) fails_at: AtomicUsize,
    /// The step in which the device meets a defect and panics; 0 for none.
    pub(crate) panics_at: AtomicUsize,
    /// Whether logits are not numbers.
    pub(crate) is_broken: AtomicBool,
    /// What every answer is instead of the script, from its first token on; its last token is
    /// repeated.
    pub(crate) reply: Mutex<Option<Vec<u32>>>,
}

/// The device side of the model.
pub(crate) struct Script {
    /// A second output of the Plan are hidden states: 1 at the place of the position, over and
    /// over.
    pub(crate) facts: Facts,
    flights: Flights<()>,
    vocabulary: usize,
    /// Token that follows each position, over and over.
    script: Vec<u32>,
    controls: Arc<Controls>,
    logits: Vec<f32>,
    /// The first and the last position of each slot's present answer, the last row's input, and its
    /// token.
    answers: HashMap<u32, (usize, usize, u32, u32)>,
}

impl Script {
    pub(crate) fn new(
        vocabulary: usize,
        script: Vec<u32>,
        context: usize,
        sequences: usize,
        controls: Arc<Controls>,
    ) -> Self {
        let logits = Buffer { name: "logits".to_owned(), rows: Rows::Outputs, columns: vocabulary };
        let width = 256;
        let plan = Plan {
            buffers: vec![logits],
            weights: Vec::new(),
            caches: vec![Cache { layer: 0, kv_heads: 1, head_dim: 2, window: None }],
            steps: Vec::new(),
            inputs: Vec::new(),
            outputs: vec![BufferId(0)],
            ends: Vec::new(),
        };
        let options = ProgramOptions {
            width: Width { tokens: width, outputs: width },
            kv: KvType::F16,
            context,
            sequences,
            blocks: context.div_ceil(BLOCK) * sequences,
        };
        let facts = Facts::new("script".to_owned(), plan, options);
        Self {
            facts: Facts { is_invariant: false, ..facts },
            flights: Flights::new(1),
            vocabulary,
            script,
            controls,
            logits: Vec::new(),
            answers: HashMap::new(),
        }
    }
}

impl Script {
    /// The same, with hidden states of `dimensions` numbers as an alternative to logits.
    pub(crate) fn with_states(mut self, dimensions: usize) -> Self {
        let plan = &mut self.facts.plan;
        plan.buffers.push(Buffer {
            name: "states".to_owned(),
            rows: Rows::Tokens,
            columns: dimensions,
        });
        plan.outputs.push(BufferId(1));
        plan.ends = [Goal::Main, Goal::States].map(|goal| End { goal, outputs: 1 }).to_vec();
        self
    }

    /// The same, whose prompts may have pictures with rows of `columns` numbers.
    pub(crate) fn with_soft_rows(mut self, columns: usize) -> Self {
        let plan = &mut self.facts.plan;
        let buffer = BufferId(plan.buffers.len());
        plan.buffers.push(Buffer { name: "soft".to_owned(), rows: Rows::Soft, columns });
        plan.inputs.push(Input { buffer, source: Source::Plan });
        self
    }

    /// The token after a position, whose own token is `input`: an answer begins where the slot's
    /// last one does not go on, and its last row is not run again.
    fn token(&mut self, slot: u32, position: usize, input: u32) -> u32 {
        let reply = self.controls.reply.lock().unwrap();
        // After its end an answer goes on only where a grammar or a client ignores the end: the
        // position after it may also be that of the next prompt's last token.
        let is_free = reply.is_none();
        let goes_on = |&(first, last, of_last, token): &(usize, usize, u32, u32)| {
            let is_next = position == last + 1;
            let is_again = position == last && input == of_last;
            (is_again || is_next && (is_free || token == input || !ENDS.contains(&token)))
                .then_some(first)
        };
        let first = self.answers.get(&slot).and_then(goes_on).unwrap_or(position);
        let token = match &*reply {
            Some(reply) => reply[(position - first).min(reply.len() - 1)],
            None => self.script[position % self.script.len()],
        };
        self.answers.insert(slot, (first, position, input, token));
        token
    }
}

impl Program for Script {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn memory(&self) -> Memory {
        Memory::default()
    }

    fn submit(&mut self, batch: &Batch<'_>) -> Result<InFlight, BackendError> {
        batch.check(&self.facts.options, &self.facts.plan, self.vocabulary)?;
        self.flights.check_room()?;
        let step = self.controls.steps.fetch_add(1, Ordering::SeqCst) + 1;
        std::thread::sleep(Duration::from_micros(self.controls.step_us.load(Ordering::SeqCst)));
        assert_ne!(step, self.controls.panics_at.load(Ordering::SeqCst), "as asked");
        let fails_at = self.controls.fails_at.load(Ordering::SeqCst);
        if fails_at > 0 && step >= fails_at {
            return Err(BackendError::Failed {
                device: "script".to_owned(),
                what: "as asked".to_owned(),
            });
        }
        let is_broken = self.controls.is_broken.load(Ordering::SeqCst);
        self.logits.clear();
        if batch.goal == Goal::States {
            let columns = self.facts.plan.output(1).columns;
            for &position in batch.positions {
                let start = self.logits.len();
                self.logits.resize(start + columns, 0.0);
                self.logits[start + position as usize % columns] = 1.0;
            }
            return Ok(self.flights.begin(()));
        }
        for &row in batch.outputs {
            let position = batch.positions[row as usize] as usize;
            let start = self.logits.len();
            self.logits.resize(start + self.vocabulary, if is_broken { f32::NAN } else { 0.0 });
            let slot = batch.sequences[batch.sequence_of[row as usize] as usize].slot;
            let token = self.token(slot, position, batch.tokens[row as usize]);
            self.logits[start + token as usize] = 20.0;
        }
        Ok(self.flights.begin(()))
    }

    fn wait(&mut self, step: InFlight) -> Result<&mut dyn Results, BackendError> {
        self.flights.end(step)?;
        Ok(self)
    }

    fn copy_slot(&mut self, from: u32, to: u32, _: usize) -> Result<(), BackendError> {
        self.facts.options.check_slots(from, to)
    }

    fn profile(&mut self, _on: bool) -> Vec<f64> {
        Vec::new()
    }
}

impl Results for Script {
    fn output(&mut self, _index: usize) -> Result<&[f32], BackendError> {
        Ok(&self.logits)
    }
}
