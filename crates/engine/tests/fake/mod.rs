//! A device that computes nothing and checks everything: it keeps which token of which sequence was written where, in
//! blocks and rings like a real one's caches, and fails a test in which a row would see anything else than its own
//! sequence's tokens, each at its position.

use trine_backend::{BLOCK, BackendError, Batch, Memory, Program, ProgramOptions, SequenceView};
use trine_model::{Buffer, BufferId, Cache, KvType, Plan, Rows, Width};

/// Token ids of the fake model.
pub(crate) const VOCABULARY: usize = 48;

/// What a position of a cache holds.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Cell {
    slot: u32,
    position: usize,
    token: u32,
}

pub(crate) struct Fake {
    options: ProgramOptions,
    plan: Plan,
    /// (blocks, BLOCK)
    blocks: Vec<Option<Cell>>,
    /// Per window: its length and its cells, (slots, length).
    rings: Vec<(usize, usize, Vec<Option<Cell>>)>,
    logits: Vec<f32>,
    runs: usize,
    /// The run that fails, counted from 1.
    pub(crate) fails_at: Option<usize>,
    /// A token whose row gets logits that are not numbers.
    pub(crate) poison: Option<u32>,
}

impl Fake {
    pub(crate) fn new(options: ProgramOptions, windows: &[usize]) -> Self {
        let mut caches = vec![Cache { layer: 0, kv_heads: 1, head_dim: 2, window: None }];
        for (index, &window) in windows.iter().enumerate() {
            caches.push(Cache { layer: index + 1, kv_heads: 1, head_dim: 2, window: Some(window) });
        }
        let logits = Buffer { name: "logits".to_owned(), rows: Rows::Outputs, columns: VOCABULARY };
        let plan = Plan {
            buffers: vec![logits],
            weights: Vec::new(),
            caches,
            steps: Vec::new(),
            input: None,
            output: BufferId(0),
        };
        let ring = |&window: &usize| {
            let length = options.ring_length(window);
            (window, length, vec![None; length * options.sequences])
        };
        Self {
            plan,
            blocks: vec![None; options.blocks * BLOCK],
            rings: windows.iter().map(ring).collect(),
            logits: Vec::new(),
            runs: 0,
            fails_at: None,
            poison: None,
            options,
        }
    }

    fn write(&mut self, view: &SequenceView<'_>, position: usize, token: u32) {
        let cell = Some(Cell { slot: view.slot, position, token });
        self.blocks[global(view, position)] = cell;
        for (_, length, cells) in &mut self.rings {
            cells[view.slot as usize * *length + position % *length] = cell;
        }
    }

    /// The tokens that the row at `position` sees, checked cell by cell.
    fn read(&self, view: &SequenceView<'_>, position: usize) -> Vec<u32> {
        let expect = |cell: Option<Cell>, at: usize, place: &str| {
            let cell = cell.unwrap_or_else(|| panic!("{place}: position {at} was never written"));
            assert_eq!(
                (cell.slot, cell.position),
                (view.slot, at),
                "{place}: read at position {position}"
            );
            cell.token
        };
        let history: Vec<u32> =
            (0..=position).map(|at| expect(self.blocks[global(view, at)], at, "block")).collect();
        for (window, length, cells) in &self.rings {
            for at in (position + 1).saturating_sub(*window)..=position {
                let cell = cells[view.slot as usize * length + at % length];
                let token = expect(cell, at, "ring");
                assert_eq!(token, history[at], "ring of window {window}: token at position {at}");
            }
        }
        history
    }
}

fn global(view: &SequenceView<'_>, position: usize) -> usize {
    view.blocks[position / BLOCK] as usize * BLOCK + position % BLOCK
}

impl Program for Fake {
    fn run(&mut self, batch: &Batch<'_>) -> Result<&[f32], BackendError> {
        batch.check(&self.options, &self.plan, VOCABULARY)?;
        self.runs += 1;
        if self.fails_at == Some(self.runs) {
            return Err(BackendError::Failed {
                device: "fake".to_owned(),
                what: "as asked".to_owned(),
            });
        }
        let mut owners = vec![false; self.options.blocks];
        for &block in batch.sequences.iter().flat_map(|view| view.blocks) {
            assert!(
                !std::mem::replace(&mut owners[block as usize], true),
                "block {block} has two owners"
            );
        }
        let view = |row: usize| batch.sequences[batch.sequence_of[row] as usize];
        for row in 0..batch.tokens.len() {
            self.write(&view(row), batch.positions[row] as usize, batch.tokens[row]);
        }
        self.logits.clear();
        for row in 0..batch.tokens.len() {
            let history = self.read(&view(row), batch.positions[row] as usize);
            if batch.outputs.contains(&(row as u32)) {
                let poisoned = self.poison == Some(batch.tokens[row]);
                let logits = next_logits(&history);
                self.logits
                    .extend(logits.iter().map(|&logit| if poisoned { f32::NAN } else { logit }));
            }
        }
        Ok(&self.logits)
    }

    fn device(&self) -> String {
        "fake".to_owned()
    }

    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn options(&self) -> &ProgramOptions {
        &self.options
    }

    fn memory(&self) -> Memory {
        Memory::default()
    }

    fn profile(&mut self, _on: bool) -> Vec<f64> {
        Vec::new()
    }
}

/// Sizes with room for every sequence's whole context.
pub(crate) fn options(context: usize, sequences: usize, width: usize) -> ProgramOptions {
    ProgramOptions {
        width: Width { tokens: width, outputs: sequences.min(width) },
        kv: KvType::F16,
        context,
        sequences,
        blocks: context.div_ceil(BLOCK) * sequences,
    }
}

/// What the fake model says after `history`: a function of every token and its place.
pub(crate) fn next_logits(history: &[u32]) -> Vec<f32> {
    let state = history.iter().fold(1, |state, &token| mix(state ^ (u64::from(token) + 1)));
    (0..VOCABULARY as u64)
        .map(|id| (mix(state ^ (id << 32)) >> 40) as f32 / (1 << 21) as f32 - 4.0)
        .collect()
}

/// SplitMix64's step (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
fn mix(state: u64) -> u64 {
    let z = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
