//! A device that computes nothing and checks everything: it keeps which token of which sequence was
//! written where, in blocks and rings like a real one's caches, and fails a test in which a row
//! would see anything else than its own sequence's tokens, each at its position.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use trine_backend::sampling::{self, Draw, Drawn, NoToken};
use trine_backend::{
    BLOCK, BackendError, Batch, Facts, Flights, Idle, InFlight, KvPage, KvPart, Memory, PageLayout,
    Pages, Program, ProgramOptions, Results, SOFT, SequenceView,
};
use trine_engine::Pooling;
use trine_model::{Buffer, BufferId, Cache, End, Goal, Input, KvType, Plan, Rows, Source, Width};

/// Token ids of the fake model.
pub(crate) const VOCABULARY: usize = 48;

/// Numbers that a hidden state has more than logits.
const EXTRA: usize = 8;

/// The hidden state of a row with these logits.
pub(crate) fn states(mut logits: Vec<f32>) -> Vec<f32> {
    logits.extend_from_within(..EXTRA);
    logits
}

/// The embedding of a text by definition, without an engine.
pub(crate) fn vector_of(prompt: &[u32], pooling: Pooling) -> Vec<f32> {
    let first = match pooling {
        Pooling::Mean => 1,
        Pooling::Last => prompt.len(),
    };
    let rows: Vec<Vec<f32>> =
        (first..=prompt.len()).map(|length| states(next_logits(&prompt[..length]))).collect();
    let sum: Vec<f64> =
        (0..rows[0].len()).map(|at| rows.iter().map(|row| f64::from(row[at])).sum()).collect();
    let length = sum.iter().map(|value| value * value).sum::<f64>().sqrt();
    sum.iter().map(|value| (value / length) as f32).collect()
}

/// Columns of a soft token's row.
const SOFT_COLUMNS: usize = 3;

/// The row of a picture's soft token.
pub(crate) fn look(number: u32, index: usize, count: usize) -> [f32; SOFT_COLUMNS] {
    [number as f32, index as f32, count as f32]
}

/// The tokens in whose place soft tokens count. `rows` are those of pictures that see one another:
/// whole ones, one after the other.
pub(crate) fn unit_tokens(rows: &[f32]) -> Vec<u32> {
    let mut next = (0, 0);
    for row in rows.chunks_exact(SOFT_COLUMNS) {
        let (index, count) = (row[1] as usize, row[2] as usize);
        let expected = if next.0 == next.1 { 0 } else { next.0 };
        assert_eq!(index, expected, "an image is cut");
        next = (index + 1, count);
    }
    assert_eq!(next.0, next.1, "an image is cut");
    let unit = rows.iter().fold(START, |hash, value| mix(hash ^ u64::from(value.to_bits())));
    let token = |index: usize| 1 << 31 | mix(unit ^ index as u64) as u32;
    (0..rows.len() / SOFT_COLUMNS).map(token).collect()
}

/// What a position of a cache holds.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Cell {
    position: usize,
    token: u32,
    /// A hash of the sequence's tokens up to here: a token of another sequence in the same place
    /// differs.
    history: u64,
    /// Whether a bulk row wrote it.
    is_bulk: bool,
}

impl Cell {
    /// What all caches must agree on. The store's pages of a long prompt may come from its rows in
    /// one cache and from an answer's, which are more exact, in another.
    fn content(self) -> (usize, u32, u64) {
        (self.position, self.token, self.history)
    }
}

/// Bytes of a cell in a page.
const CELL_BYTES: usize = 32;

/// What a step has given.
#[derive(Default)]
struct Given {
    goal: Goal,
    /// The position of its first row.
    first: u32,
    logits: Vec<f32>,
    /// What a guess takes; empty without a draft.
    states: Vec<f32>,
    /// The tokens that it has chosen, if it was a series.
    chosen: Option<Vec<Option<u32>>>,
}

pub(crate) struct Fake {
    pub(crate) facts: Facts,
    /// (blocks, BLOCK)
    blocks: Vec<Option<Cell>>,
    /// Per window: its length and its cells, (slots, length).
    rings: Vec<(usize, usize, Vec<Option<Cell>>)>,
    /// What the steps in flight have given.
    flights: Flights<Given>,
    /// What the last step has given.
    given: Given,
    /// The series that have begun.
    pub(crate) series: Arc<AtomicUsize>,
    /// The runs that have begun, each step of a series being one.
    pub(crate) runs: Arc<AtomicUsize>,
    /// The times that it has drawn from rows.
    pub(crate) launches: Arc<AtomicUsize>,
    /// The runs that fail, counted from 1.
    pub(crate) fails_at: Vec<usize>,
    /// The steps from which on results cannot be read once each, counted from 1 as they are waited
    /// for, in ascending order.
    pub(crate) unreadable_at: Vec<usize>,
    waits: usize,
    /// Whether it takes no heed of the flag that stops steps.
    pub(crate) is_deaf: bool,
    /// The run that goes on until it is stopped, counted from 1.
    pub(crate) endless_at: usize,
    /// A token whose row gets logits that are not numbers.
    pub(crate) poison: Option<u32>,
    /// Runs that began while another was in flight.
    pub(crate) overlapped: Arc<AtomicUsize>,
    /// The first position of each step that was submitted, and of each that was waited for, in
    /// their order.
    pub(crate) log: Arc<Mutex<Vec<(&'static str, u32)>>>,
    /// Positions that rows which are not bulk saw as bulk rows wrote them.
    pub(crate) coarse: Arc<AtomicUsize>,
    /// How long a run takes beyond its own work.
    pub(crate) pause: Duration,
    /// What it does when no step is wanted.
    pub(crate) idle: Box<dyn FnMut() -> Result<Idle, BackendError> + Send>,
    stop: Arc<AtomicBool>,
    is_seeing: bool,
    /// Steps with more rows than steps for several sequences may have.
    pub(crate) wide: Arc<AtomicUsize>,
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
            inputs: Vec::new(),
            outputs: vec![BufferId(0)],
            ends: Vec::new(),
        };
        let ring = |&window: &usize| {
            let length = options.ring_length(window);
            (window, length, vec![None; length * options.sequences])
        };
        let layout = PageLayout::of("fake".to_owned(), &plan.caches, |_| BLOCK * CELL_BYTES);
        let facts = Facts {
            is_invariant: false,
            pages: Some(layout),
            ..Facts::new("fake".to_owned(), plan, options)
        };
        Self {
            facts,
            blocks: vec![None; options.blocks * BLOCK],
            rings: windows.iter().map(ring).collect(),
            flights: Flights::new(1),
            given: Given::default(),
            series: Arc::default(),
            runs: Arc::default(),
            launches: Arc::default(),
            fails_at: Vec::new(),
            unreadable_at: Vec::new(),
            waits: 0,
            is_deaf: false,
            endless_at: 0,
            poison: None,
            overlapped: Arc::default(),
            log: Arc::default(),
            coarse: Arc::default(),
            pause: Duration::ZERO,
            idle: Box::new(|| Ok(Idle::Done)),
            stop: Arc::default(),
            is_seeing: false,
            wide: Arc::default(),
        }
    }

    /// The same, with up to `depth` steps in flight.
    pub(crate) fn with_depth(mut self, depth: usize) -> Self {
        self.facts.depth = depth;
        self.flights = Flights::new(depth);
        self
    }

    /// The same, with up to `depth` steps in flight where all but the youngest are silent.
    pub(crate) fn with_silent_depth(mut self, depth: usize) -> Self {
        self.facts.silent_depth = depth;
        self
    }

    /// The same, with hidden states of all rows as an alternative to logits.
    pub(crate) fn with_states(mut self) -> Self {
        let plan = &mut self.facts.plan;
        let columns = VOCABULARY + EXTRA;
        plan.buffers.push(Buffer { name: "states".to_owned(), rows: Rows::Tokens, columns });
        plan.outputs.push(BufferId(1));
        plan.ends = [Goal::Main, Goal::States].map(|goal| End { goal, outputs: 1 }).to_vec();
        self
    }

    /// The same, for prompts with pictures.
    pub(crate) fn with_pictures(mut self) -> Self {
        let plan = &mut self.facts.plan;
        let buffer = BufferId(plan.buffers.len());
        let name = "soft".to_owned();
        plan.buffers.push(Buffer { name, rows: Rows::Soft, columns: SOFT_COLUMNS });
        plan.inputs.push(Input { buffer, source: Source::Plan });
        self.is_seeing = true;
        self
    }

    /// The same, with at most `rows` rows in steps that are not for a unit of pictures.
    pub(crate) fn with_mixed_rows(mut self, rows: usize) -> Self {
        self.facts.mixed_rows = rows;
        self
    }

    /// The tokens of a batch, those of pictures by what their rows are. What sees ahead must be
    /// whole pictures.
    fn seen(&self, batch: &Batch<'_>) -> Vec<u32> {
        let mut tokens = batch.tokens.to_vec();
        let mut rest =
            if self.is_seeing { *batch.inputs.last().expect("it was checked") } else { &[] };
        for span in batch.spans() {
            let mut row = span.row;
            while row < span.row + span.rows {
                let end = row + batch.ahead(row) + 1;
                if tokens[row] == SOFT {
                    let (own, others) = rest.split_at((end - row) * SOFT_COLUMNS);
                    rest = others;
                    assert!(batch.tokens[row..end].iter().all(|&token| token == SOFT));
                    let is_last = |at: usize| batch.ahead(at) == end - 1 - at;
                    assert!((row..end).all(is_last), "rows of an image see all of it");
                    let follows = end < span.row + span.rows && batch.tokens[end] == SOFT;
                    assert!(!follows, "images that touch see one another");
                    tokens[row..end].copy_from_slice(&unit_tokens(own));
                } else {
                    assert_eq!(end, row + 1, "only images see ahead");
                }
                row = end;
            }
        }
        assert!(rest.is_empty(), "there are no more rows of images than places");
        tokens
    }

    /// The same, with series of up to `1 + max` steps.
    pub(crate) fn with_series(mut self, max: usize) -> Self {
        self.facts.series_max = max;
        self
    }

    /// The same, with a goal that guesses, in series of up to `1 + max` steps. A hidden state is
    /// the history of its row, and guesses are what the model says itself.
    pub(crate) fn with_draft(mut self, max: usize) -> Self {
        let plan = &mut self.facts.plan;
        let buffer = |name: &str, rows, columns| Buffer { name: name.to_owned(), rows, columns };
        plan.buffers.extend([
            buffer("state", Rows::Outputs, STATE),
            buffer("given", Rows::Tokens, STATE),
            buffer("guesses", Rows::Outputs, VOCABULARY),
            buffer("next", Rows::Outputs, STATE),
        ]);
        plan.outputs = [0, 1, 3, 4].map(BufferId).to_vec();
        plan.inputs = vec![Input { buffer: BufferId(2), source: Source::State }];
        plan.ends = [Goal::Main, Goal::Draft].map(|goal| End { goal, outputs: 2 }).to_vec();
        self.facts.draft_series_max = max;
        self
    }

    /// The logits and next states of guesses: each row sees all that its sequence holds.
    fn guess(&mut self, batch: &Batch<'_>) -> Given {
        let mut given = Given { goal: batch.goal, ..Given::default() };
        for (row, state) in batch.inputs[0].chunks_exact(STATE).enumerate() {
            let view = batch.sequences[batch.sequence_of[row] as usize];
            self.see(&view, batch.positions[row] as usize, false);
            let history = follow(history_of(state), batch.tokens[row]);
            let is_poisoned = self.poison == Some(batch.tokens[row]);
            let logits = logits_after(history);
            let logit = |logit| if is_poisoned { f32::NAN } else { logit };
            given.logits.extend(logits.into_iter().map(logit));
            given.states.extend(state_of(history));
        }
        given
    }

    /// Runs a step, and returns what it gives.
    fn compute(&mut self, batch: &Batch<'_>) -> Result<Given, BackendError> {
        let vocabulary = self.facts.plan.output(0).columns;
        batch.check(&self.facts.options, &self.facts.plan, vocabulary)?;
        let is_unit = batch.ahead(0) + 1 == batch.tokens.len();
        let is_wide = batch.tokens.len() > self.facts.mixed_rows;
        assert!(!is_wide || is_unit, "rows of several sequences");
        self.wide.fetch_add(is_wide.into(), Ordering::Relaxed);
        self.flights.check_room_behind(self.facts.silent_depth, |given| given.logits.is_empty())?;
        let overlaps = usize::from(self.flights.check_idle().is_err());
        self.overlapped.fetch_add(overlaps, Ordering::Relaxed);
        let run = 1 + self.runs.fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(self.pause);
        if self.fails_at.contains(&run) {
            self.flights.clear();
            self.blocks.fill(None);
            self.rings.iter_mut().for_each(|(_, _, cells)| cells.fill(None));
            return Err(failed());
        }
        let begin = Instant::now();
        while run == self.endless_at && !self.stop.load(Ordering::Relaxed) {
            assert!(begin.elapsed() < Duration::from_secs(120), "nobody has stopped the step");
            std::thread::sleep(Duration::from_millis(1));
        }
        if batch.goal == Goal::Draft {
            // It writes no cache.
            return match self.stop.load(Ordering::Relaxed) {
                true => Err(BackendError::Stopped),
                false => Ok(self.guess(batch)),
            };
        }
        for span in batch.spans() {
            let own = batch.sequences[span.sequence].blocks;
            for &block in &own[span.position / BLOCK..=(span.position + span.rows - 1) / BLOCK] {
                let others = batch.sequences.iter().enumerate();
                let mut others = others.filter(|&(index, _)| index != span.sequence);
                assert!(
                    others.all(|(_, other)| !other.blocks.contains(&block)),
                    "block {block} is written and another sequence has it"
                );
            }
        }
        let tokens = self.seen(batch);
        let view = |row: usize| batch.sequences[batch.sequence_of[row] as usize];
        for (row, &token) in tokens.iter().enumerate() {
            let is_bulk = row >= batch.bulk_from;
            self.put(&view(row), batch.positions[row] as usize, token, is_bulk);
        }
        // As late as a step can be stopped: when all is overwritten.
        if self.stop.load(Ordering::Relaxed) {
            return Err(BackendError::Stopped);
        }
        let mut given = Given { goal: batch.goal, ..Given::default() };
        for row in 0..batch.tokens.len() {
            let history =
                self.see(&view(row), batch.positions[row] as usize, row >= batch.bulk_from);
            if batch.goal == Goal::States || batch.outputs.contains(&(row as u32)) {
                let poisoned = self.poison == Some(batch.tokens[row]);
                let mut logits = logits_after(history);
                if batch.goal == Goal::States {
                    logits = states(logits);
                } else {
                    logits.truncate(vocabulary);
                }
                let logit = |&logit: &f32| if poisoned { f32::NAN } else { logit };
                given.logits.extend(logits.iter().map(logit));
                if self.facts.plan.has_goal(Goal::Draft) {
                    given.states.extend(state_of(history));
                }
            }
        }
        Ok(given)
    }

    fn put(&mut self, view: &SequenceView<'_>, position: usize, token: u32, is_bulk: bool) {
        let before = match position.checked_sub(1) {
            None => START,
            Some(before) => {
                let cell =
                    self.blocks[global(view, before)].expect("the position before is written");
                assert_eq!(cell.position, before, "block: written at {position}");
                cell.history
            }
        };
        let cell = Some(Cell { position, token, history: follow(before, token), is_bulk });
        self.blocks[global(view, position)] = cell;
        for (_, length, cells) in &mut self.rings {
            cells[view.slot as usize * *length + position % *length] = cell;
        }
    }

    /// First cell of a page among the blocks' or a ring's.
    fn page_cells(&self, page: &KvPage<'_>) -> Vec<usize> {
        let windows = self.rings.iter().map(|(window, ..)| Some(*window));
        let caches = std::iter::once(None).chain(windows);
        caches.filter_map(|window| self.facts.options.page_start(page, window)).collect()
    }

    fn cells_of(&mut self, part: KvPart) -> Vec<&mut Vec<Option<Cell>>> {
        match part {
            KvPart::Global => vec![&mut self.blocks],
            KvPart::Local => self.rings.iter_mut().map(|(_, _, cells)| cells).collect(),
        }
    }

    /// The history of the row at `position`, with what it sees checked cell by cell.
    fn see(&self, view: &SequenceView<'_>, position: usize, is_bulk: bool) -> u64 {
        let block = |at: usize| {
            let cell = self.blocks[global(view, at)];
            cell.unwrap_or_else(|| panic!("block: position {at} was never written"))
        };
        let mut history = START;
        for at in 0..=position {
            let cell = block(at);
            history = follow(history, cell.token);
            assert_eq!((cell.position, cell.history), (at, history), "block: read at {position}");
            self.coarse.fetch_add(usize::from(cell.is_bulk && !is_bulk), Ordering::Relaxed);
        }
        for (window, length, cells) in &self.rings {
            for at in (position + 1).saturating_sub(*window)..=position {
                let cell = cells[view.slot as usize * length + at % length];
                let (cell, wanted) = (cell.map(Cell::content), block(at).content());
                assert_eq!(cell, Some(wanted), "ring of window {window}: position {at}");
            }
        }
        history
    }
}

fn global(view: &SequenceView<'_>, position: usize) -> usize {
    view.blocks[position / BLOCK] as usize * BLOCK + position % BLOCK
}

pub(crate) fn failed() -> BackendError {
    BackendError::Failed { device: "fake".to_owned(), what: "as asked".to_owned() }
}

impl Program for Fake {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn memory(&self) -> Memory {
        Memory::default()
    }

    fn submit(&mut self, batch: &Batch<'_>) -> Result<InFlight, BackendError> {
        let first = batch.positions[0];
        let given = Given { first, ..self.compute(batch)? };
        self.log.lock().expect("no test panics with it").push(("submit", first));
        Ok(self.flights.begin(given))
    }

    fn submit_series(&mut self, batch: &Batch<'_>, more: usize) -> Result<InFlight, BackendError> {
        let vocabulary = self.facts.plan.output(0).columns;
        self.facts.check_series(batch, vocabulary, more)?;
        self.series.fetch_add(1, Ordering::Relaxed);
        let mut given = self.compute(batch)?;
        let mut chosen: Vec<Option<u32>> = given.logits.chunks(vocabulary).map(largest).collect();
        let advance = u32::from(batch.goal.stores());
        let last = |&row: &u32| (batch.sequence_of[row as usize], batch.positions[row as usize]);
        let (sequence_of, mut positions): (Vec<u32>, Vec<u32>) =
            batch.outputs.iter().map(last).unzip();
        let outputs: Vec<u32> = (0..sequence_of.len() as u32).collect();
        for _ in 0..more {
            let before = &chosen[chosen.len() - outputs.len()..];
            let tokens: Vec<u32> = before.iter().map(|token| token.unwrap_or(0)).collect();
            positions.iter_mut().for_each(|position| *position += advance);
            let states = std::mem::take(&mut given.states);
            let inputs: &[&[f32]] = if advance == 0 { &[&states] } else { &[] };
            given = self.compute(&Batch {
                tokens: &tokens,
                positions: &positions,
                sequence_of: &sequence_of,
                outputs: &outputs,
                bulk_from: tokens.len(),
                ahead: &[],
                inputs,
                ..*batch
            })?;
            chosen.extend(given.logits.chunks(vocabulary).map(largest));
        }
        Ok(self.flights.begin(Given { chosen: Some(chosen), ..given }))
    }

    fn wait(&mut self, step: InFlight) -> Result<&mut dyn Results, BackendError> {
        self.given = self.flights.end(step)?;
        self.log.lock().expect("no test panics with it").push(("wait", self.given.first));
        self.waits += 1;
        Ok(self)
    }

    fn copy_slot(&mut self, from: u32, to: u32, positions: usize) -> Result<(), BackendError> {
        self.flights.check_idle()?;
        self.facts.options.check_slots(from, to)?;
        for (_, length, cells) in &mut self.rings {
            let start = from as usize * *length;
            let end = start + positions.min(*length);
            cells.copy_within(start..end, to as usize * *length);
        }
        Ok(())
    }

    fn pages(&mut self) -> Option<&mut dyn Pages> {
        Some(self)
    }

    fn stop_on(&mut self, stop: Arc<AtomicBool>) {
        if !self.is_deaf {
            self.stop = stop;
        }
    }

    fn profile(&mut self, _on: bool) -> Vec<f64> {
        Vec::new()
    }

    fn idle(&mut self) -> Result<Idle, BackendError> {
        self.flights.check_idle()?;
        let left = (self.idle)();
        if left.is_err() {
            self.blocks.fill(None);
            self.rings.iter_mut().for_each(|(_, _, cells)| cells.fill(None));
        }
        left
    }
}

impl Results for Fake {
    fn output(&mut self, index: usize) -> Result<&[f32], BackendError> {
        self.facts.check_output(self.given.goal, index)?;
        if self.unreadable_at.first().is_some_and(|step| *step <= self.waits) {
            self.unreadable_at.remove(0);
            return Err(failed());
        }
        let is_states = index > self.facts.plan.outputs_for(self.given.goal).start;
        Ok(if is_states { &self.given.states } else { &self.given.logits })
    }

    fn draw(
        &mut self,
        index: usize,
        vocabulary: usize,
        draws: &[Draw],
        drawn: &mut Vec<Result<Drawn, NoToken>>,
    ) -> Result<(), BackendError> {
        self.launches.fetch_add(1, Ordering::Relaxed);
        let rows: Vec<&[f32]> = self.output(index)?.chunks_exact(vocabulary).collect();
        drawn.extend(draws.iter().map(|draw| sampling::draw(rows[draw.row], draw)));
        Ok(())
    }

    fn chosen(&mut self) -> Result<&[Option<u32>], BackendError> {
        Ok(self.given.chosen.as_ref().expect("the step was a series"))
    }
}

/// The lowest id among the largest logits, if all are finite.
fn largest(logits: &[f32]) -> Option<u32> {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let is_finite = logits.iter().all(|logit| logit.is_finite());
    let first = logits.iter().position(|&logit| logit == most)?;
    is_finite.then_some(first as u32)
}

impl Pages for Fake {
    fn read(&mut self, pages: &[KvPage<'_>], bytes: &mut Vec<u8>) -> Result<(), BackendError> {
        self.flights.check_idle()?;
        self.facts.options.check_pages(pages)?;
        for page in pages {
            let starts = self.page_cells(page);
            for (cells, start) in self.cells_of(page.part).into_iter().zip(starts) {
                for cell in &cells[start..start + BLOCK] {
                    let cell = cell.unwrap_or_else(|| panic!("{page:?} was never written whole"));
                    bytes.extend((cell.position as u64).to_le_bytes());
                    bytes.extend(u64::from(cell.token).to_le_bytes());
                    bytes.extend(cell.history.to_le_bytes());
                    bytes.extend(u64::from(cell.is_bulk).to_le_bytes());
                }
            }
        }
        Ok(())
    }

    fn write(&mut self, pages: &[KvPage<'_>], bytes: &[u8]) -> Result<(), BackendError> {
        self.flights.check_idle()?;
        let Facts { options, pages: layout, .. } = &self.facts;
        options.check_page_bytes(pages, layout.as_ref(), bytes)?;
        let (numbers, _) = bytes.as_chunks::<8>();
        let mut numbers = numbers.iter().map(|bytes| u64::from_le_bytes(*bytes));
        let mut next = || numbers.next().expect("as many as the cells have");
        for page in pages {
            let starts = self.page_cells(page);
            for (cells, start) in self.cells_of(page.part).into_iter().zip(starts) {
                for cell in &mut cells[start..start + BLOCK] {
                    let (position, token, history) = (next() as usize, next() as u32, next());
                    *cell = Some(Cell { position, token, history, is_bulk: next() != 0 });
                }
            }
        }
        Ok(())
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

/// The hash of no tokens.
const START: u64 = 1;

fn follow(history: u64, token: u32) -> u64 {
    mix(history ^ (u64::from(token) + 1))
}

/// Numbers of a hidden state that a guess takes: 16 bits of a history each.
const STATE: usize = 4;

fn state_of(history: u64) -> impl Iterator<Item = f32> {
    (0..STATE).map(move |part| f32::from((history >> (16 * part)) as u16))
}

fn history_of(state: &[f32]) -> u64 {
    state.iter().rev().fold(0, |history, &part| history << 16 | part as u64)
}

/// What the fake model says after `history`: a function of every token and its place.
pub(crate) fn next_logits(history: &[u32]) -> Vec<f32> {
    logits_after(history.iter().fold(START, |state, &token| follow(state, token)))
}

fn logits_after(state: u64) -> Vec<f32> {
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
