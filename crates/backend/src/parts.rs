//! A Program of several parts: each runs some layers of a model on a device of its own, and hands
//! its rows to the next.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use trine_model::{Goal, Input, Plan, Source, cut};

use crate::batch::{Batch, SequenceView};
use crate::error::BackendError;
use crate::flights::{Flights, InFlight};
use crate::pages::{KvPage, KvPart, PageLayout, Pages};
use crate::placement::terms::Placement;
use crate::program::{Facts, Idle, Memory, Program, Results, Share, describe};

/// Programs that run a Plan, one after another.
///
/// As many steps may be in flight as there are parts, each in another part: while the second part
/// runs a step, the first one runs the next. No thread is started for this. A step moves on when
/// another one is submitted or when it is waited for.
pub(crate) struct Parts {
    /// At least two.
    parts: Vec<Box<dyn Program>>,
    facts: Facts,
    /// For each part, where the rows of its inputs come from, in their order.
    routes: Vec<Vec<Route>>,
    vocabulary: usize,
    flights: Flights<Travel>,
    /// Batches of steps that ended, kept for their memory.
    spare: Vec<OwnedBatch>,
}

/// Where the rows of a part's input come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Route {
    /// This output of the part before.
    Before(usize),
    /// This one of [`Batch::inputs`].
    Batch(usize),
}

/// A step on its way through the parts.
struct Travel {
    batch: OwnedBatch,
    /// The part that has it.
    part: usize,
    /// `None` only while it moves to another part, and after a failure.
    step: Option<InFlight>,
}

impl Parts {
    /// Joins two or more parts that [`cut`](mod@cut) made of the Plan `whole`, in their order,
    /// loaded as `placement` says.
    pub(crate) fn new(
        whole: &Plan,
        parts: Vec<Box<dyn Program>>,
        placement: &Placement,
        vocabulary: usize,
    ) -> Self {
        let share = |part: &dyn Program, device_memory| Share {
            device: part.facts().device.clone(),
            layers: part.facts().plan.layers(),
            experts: 0,
            memory: part.memory(),
            device_memory,
        };
        let known = parts.iter().zip(&placement.parts);
        // A part whose experts are aside knows its devices.
        let of_part = |part: &dyn Program, device_memory| match part.facts().shares.as_slice() {
            [] => vec![share(part, device_memory)],
            shares => shares.to_vec(),
        };
        let shares: Vec<Share> =
            known.flat_map(|(part, placed)| of_part(part.as_ref(), placed.device_memory)).collect();
        let plan = cut::join(whole, parts.iter().map(|part| &part.facts().plan));
        let routes = routes(&plan, &parts);
        let facts = Facts {
            is_invariant: parts.iter().all(|part| part.facts().is_invariant),
            mixed_rows: parts.iter().map(|part| part.facts().mixed_rows).min().unwrap_or(0),
            finds_top: parts.last().is_some_and(|last| last.facts().finds_top),
            depth: placement.depth,
            pages: joint_layout(&parts),
            ..Facts::new(describe(&shares), plan, placement.options)
        };
        let flights = Flights::new(placement.depth);
        let facts = Facts { shares, ..facts };
        Self { parts, facts, routes, vocabulary, flights, spare: Vec::new() }
    }

    /// Starts a checked step in the first part, after the steps in the way have moved on.
    fn start(&mut self, batch: &Batch<'_>) -> Result<InFlight, BackendError> {
        let Self { parts, routes, flights, .. } = self;
        // The youngest steps, which occupy consecutive parts from the first on.
        let in_row =
            flights.iter_mut().rev().zip(0..).take_while(|(travel, at)| travel.part == *at);
        let row = in_row.count();
        // The part after the oldest of them is free.
        for travel in flights.iter_mut().rev().take(row).rev() {
            move_on(parts, routes, travel)?;
        }
        let rows = |route: &Route| match *route {
            Route::Batch(index) => batch.inputs[index],
            Route::Before(_) => unreachable!("there is no part before the first"),
        };
        let inputs: Vec<&[f32]> = routes[0].iter().map(rows).collect();
        // Only the last part needs to know whose logits are wanted.
        let first = Batch { outputs: &[], inputs: &inputs, goal: Goal::Main, ..*batch };
        let step = parts[0].submit(&first)?;
        let mut own = self.spare.pop().unwrap_or_default();
        own.copy(batch, &routes[1..]);
        Ok(self.flights.begin(Travel { batch: own, part: 0, step: Some(step) }))
    }

    /// Moves the oldest step to the last part.
    fn advance(&mut self, mut travel: Travel) -> Result<Option<InFlight>, BackendError> {
        while travel.part + 1 < self.parts.len() {
            move_on(&mut self.parts, &self.routes, &mut travel)?;
        }
        self.spare.push(travel.batch);
        Ok(travel.step)
    }
}

/// Leaves no step in flight after an error: waits for the devices that are still working.
fn drain(parts: &mut [Box<dyn Program>], flights: &mut Flights<Travel>) {
    for travel in flights.iter_mut() {
        if let Some((step, part)) = travel.step.take().zip(parts.get_mut(travel.part)) {
            // Only the first error is reported.
            let _ = part.wait(step);
        }
    }
    flights.clear();
}

/// Waits for the part that has a step and submits the step to the next one, which is free.
fn move_on(
    parts: &mut [Box<dyn Program>],
    routes: &[Vec<Route>],
    travel: &mut Travel,
) -> Result<(), BackendError> {
    let Some(step) = travel.step.take() else { return Ok(()) };
    let is_last = travel.part + 2 == parts.len();
    let (before, after) = parts.split_at_mut(travel.part + 1);
    let before = &mut before[travel.part];
    let outputs = before.facts().plan.outputs.len();
    let rows = travel.batch.handed_over(before.wait(step)?, outputs)?;
    travel.part += 1;
    let next = travel.batch.submit(after[0].as_mut(), &routes[travel.part], rows, is_last)?;
    travel.step = Some(next);
    Ok(())
}

/// Returns where the inputs of each part of a joined Plan come from.
fn routes(joined: &Plan, parts: &[Box<dyn Program>]) -> Vec<Vec<Route>> {
    let of_part = |(index, plan): (usize, &Plan)| {
        let mut handed_over = 0..;
        let given = plan.inputs.iter().filter(|input| input.is_given());
        let route = |input: &Input| match input.source {
            Source::Part if index > 0 => Route::Before(handed_over.next().expect("it has no end")),
            _ => {
                let name = &plan.buffer(input.buffer).name;
                let place = joined.given().position(|id| joined.buffer(id).name == *name);
                Route::Batch(place.expect("a joined Plan has the inputs of its parts"))
            }
        };
        given.map(route).collect()
    };
    parts.iter().map(|part| &part.facts().plan).enumerate().map(of_part).collect()
}

impl Program for Parts {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn memory(&self) -> Memory {
        self.parts.iter().map(|part| part.memory()).fold(Memory::default(), |a, b| a + b)
    }

    fn submit(&mut self, batch: &Batch<'_>) -> Result<InFlight, BackendError> {
        // Also checks the last part's rules before the first one runs.
        batch.check(&self.facts.options, &self.facts.plan, self.vocabulary)?;
        self.flights.check_room()?;
        self.start(batch).inspect_err(|_| drain(&mut self.parts, &mut self.flights))
    }

    fn wait(&mut self, step: InFlight) -> Result<&mut dyn Results, BackendError> {
        let travel = self.flights.end(step)?;
        let step =
            self.advance(travel).inspect_err(|_| drain(&mut self.parts, &mut self.flights))?;
        let Self { parts, flights, .. } = self;
        let (last, others) = parts.split_last_mut().expect("a model has at least one part");
        let step = step.expect("a step that has not failed is in flight");
        last.wait(step).inspect_err(|_| drain(others, flights))
    }

    fn copy_slot(&mut self, from: u32, to: u32, positions: usize) -> Result<(), BackendError> {
        self.flights.check_idle()?;
        self.parts.iter_mut().try_for_each(|part| part.copy_slot(from, to, positions))
    }

    fn pages(&mut self) -> Option<&mut dyn Pages> {
        self.facts.pages.is_some().then_some(self)
    }

    fn stop_on(&mut self, stop: Arc<AtomicBool>) {
        self.parts.iter_mut().for_each(|part| part.stop_on(Arc::clone(&stop)));
    }

    fn take_overflow(&mut self) -> Option<String> {
        // All are asked, so that none tells of these steps later.
        self.parts.iter_mut().filter_map(|part| part.take_overflow()).reduce(|first, _| first)
    }

    fn profile(&mut self, on: bool) -> Vec<f64> {
        self.parts.iter_mut().flat_map(|part| part.profile(on)).collect()
    }

    fn idle(&mut self) -> Result<Idle, BackendError> {
        self.flights.check_idle()?;
        let mut left = Idle::Done;
        for part in &mut self.parts {
            left = left.and(part.idle()?);
            // One piece in a call.
            if left == Idle::More {
                break;
            }
        }
        Ok(left)
    }
}

impl Pages for Parts {
    fn read(&mut self, pages: &[KvPage<'_>], bytes: &mut Vec<u8>) -> Result<(), BackendError> {
        self.flights.check_idle()?;
        let mut own = vec![Vec::new(); self.parts.len()];
        for (part, own) in self.parts.iter_mut().zip(&mut own) {
            part.pages().ok_or_else(no_pages)?.read(pages, own)?;
        }
        let mut rest: Vec<&[u8]> = own.iter().map(Vec::as_slice).collect();
        for page in pages {
            for (part, rest) in self.parts.iter().zip(&mut rest) {
                let (first, others) = rest.split_at(page_bytes(part.as_ref(), page.part));
                bytes.extend_from_slice(first);
                *rest = others;
            }
        }
        Ok(())
    }

    fn write(&mut self, pages: &[KvPage<'_>], bytes: &[u8]) -> Result<(), BackendError> {
        self.flights.check_idle()?;
        self.facts.options.check_page_bytes(pages, self.facts.pages.as_ref(), bytes)?;
        let mut own = vec![Vec::new(); self.parts.len()];
        let mut rest = bytes;
        for page in pages {
            for (part, own) in self.parts.iter().zip(&mut own) {
                let (first, others) = rest.split_at(page_bytes(part.as_ref(), page.part));
                own.extend_from_slice(first);
                rest = others;
            }
        }
        let mut parts = self.parts.iter_mut().zip(&own);
        parts.try_for_each(|(part, own)| part.pages().ok_or_else(no_pages)?.write(pages, own))
    }
}

/// Returns the bytes of a page in one part.
fn page_bytes(program: &dyn Program, part: KvPart) -> usize {
    program.facts().pages.as_ref().map_or(0, |layout| layout.page_bytes(part))
}

fn no_pages() -> BackendError {
    let what = "its KV cache cannot leave it".to_owned();
    BackendError::Unsupported { device: "one of the devices".to_owned(), what }
}

/// Returns the layout of pages that hold those of all parts, one after another, or `None` if a part
/// has none.
fn joint_layout(parts: &[Box<dyn Program>]) -> Option<PageLayout> {
    let mut joint = PageLayout { name: String::new(), global_bytes: 0, local_bytes: 0 };
    for part in parts {
        let Facts { plan, pages, .. } = part.facts();
        let PageLayout { name, global_bytes, local_bytes } = pages.as_ref()?;
        joint.name += &format!("{} layers: {name}; ", plan.layers());
        joint.global_bytes += global_bytes;
        joint.local_bytes += local_bytes;
    }
    Some(joint)
}

/// A batch that outlives its step's submission.
#[derive(Default)]
struct OwnedBatch {
    tokens: Vec<u32>,
    positions: Vec<u32>,
    sequence_of: Vec<u32>,
    ahead: Vec<u32>,
    /// Slots, and where the block tables of the sequences end in `blocks`.
    sequences: Vec<(u32, usize)>,
    blocks: Vec<u32>,
    outputs: Vec<u32>,
    bulk_from: usize,
    goal: Goal,
    /// [`Batch::inputs`]; empty for those that no part after the first reads.
    inputs: Vec<Vec<f32>>,
    /// Rows of the outputs of the part before, except the last output.
    handed_over: Vec<Vec<f32>>,
}

impl OwnedBatch {
    /// Copies what parts after the first one read, whose inputs come from `routes`.
    fn copy(&mut self, batch: &Batch<'_>, routes: &[Vec<Route>]) {
        let replace = |own: &mut Vec<u32>, values: &[u32]| {
            own.clear();
            own.extend_from_slice(values);
        };
        replace(&mut self.tokens, batch.tokens);
        replace(&mut self.positions, batch.positions);
        replace(&mut self.sequence_of, batch.sequence_of);
        replace(&mut self.ahead, batch.ahead);
        replace(&mut self.outputs, batch.outputs);
        self.sequences.clear();
        self.blocks.clear();
        for view in batch.sequences {
            self.blocks.extend_from_slice(view.blocks);
            self.sequences.push((view.slot, self.blocks.len()));
        }
        self.bulk_from = batch.bulk_from;
        self.goal = batch.goal;
        self.inputs.resize_with(batch.inputs.len(), Vec::new);
        for (index, (own, rows)) in self.inputs.iter_mut().zip(batch.inputs).enumerate() {
            own.clear();
            if routes.iter().flatten().any(|route| *route == Route::Batch(index)) {
                own.extend_from_slice(rows);
            }
        }
    }

    /// Copies the rows of a part's outputs except those of the last one, which it returns.
    fn handed_over<'r>(
        &mut self,
        results: &'r mut dyn Results,
        outputs: usize,
    ) -> Result<&'r [f32], BackendError> {
        let last = outputs - 1;
        self.handed_over.resize_with(last, Vec::new);
        for (index, own) in self.handed_over.iter_mut().enumerate() {
            own.clear();
            own.extend_from_slice(results.output(index)?);
        }
        results.output(last)
    }

    /// Submits the batch to a part that begins with rows of the one before it, whose last output is
    /// `rows`. Only the last part needs to know whose logits are wanted.
    fn submit(
        &self,
        part: &mut dyn Program,
        routes: &[Route],
        rows: &[f32],
        is_last: bool,
    ) -> Result<InFlight, BackendError> {
        let mut start = 0;
        let view = |&(slot, end): &(u32, usize)| {
            let blocks = &self.blocks[std::mem::replace(&mut start, end)..end];
            SequenceView { slot, blocks }
        };
        let sequences: Vec<SequenceView<'_>> = self.sequences.iter().map(view).collect();
        let input = |route: &Route| match *route {
            Route::Before(index) => self.handed_over.get(index).map_or(rows, Vec::as_slice),
            Route::Batch(index) => &self.inputs[index],
        };
        // One input needs no list.
        let one = if let [route] = routes { Some(input(route)) } else { None };
        let several: Vec<&[f32]> =
            if one.is_some() { Vec::new() } else { routes.iter().map(input).collect() };
        part.submit(&Batch {
            tokens: &self.tokens,
            positions: &self.positions,
            sequence_of: &self.sequence_of,
            sequences: &sequences,
            outputs: if is_last { &self.outputs } else { &[] },
            ahead: &self.ahead,
            bulk_from: self.bulk_from,
            goal: if is_last { self.goal } else { Goal::Main },
            inputs: if one.is_some() { one.as_slice() } else { &several },
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use trine_model::{Buffer, BufferId, KvType, Rows, Width};

    use super::*;
    use crate::batch::ProgramOptions;
    use crate::device_memory::{DeviceMemory, MemoryKind};
    use crate::placement::terms;

    const OPTIONS: ProgramOptions = ProgramOptions {
        width: Width { tokens: 4, outputs: 4 },
        kv: KvType::F32,
        context: 32,
        sequences: 2,
        blocks: 2,
    };

    /// The calls to the parts: the part, `submit` or `wait`, and the first token of the step.
    type Log = Arc<Mutex<Vec<(usize, &'static str, u32)>>>;

    /// A part that adds 1 to each row of its input, or begins with the tokens.
    struct Part {
        index: usize,
        facts: Facts,
        flights: Flights<(u32, Vec<f32>)>,
        rows: Vec<f32>,
        log: Log,
        /// The first token of the step that fails when it is waited for.
        fails: Option<u32>,
        /// Pieces of work for [`Program::idle`].
        pieces: usize,
    }

    impl Part {
        fn boxed(index: usize, log: &Log, fails: Option<u32>) -> Box<dyn Program> {
            let buffer = Buffer { name: "rows".to_owned(), rows: Rows::Tokens, columns: 1 };
            let input = Input { buffer: BufferId(0), source: Source::Part };
            let plan = Plan {
                buffers: vec![buffer],
                weights: Vec::new(),
                caches: Vec::new(),
                steps: Vec::new(),
                inputs: (index > 0).then_some(input).into_iter().collect(),
                outputs: vec![BufferId(0)],
                ends: Vec::new(),
            };
            let facts = Facts::new(format!("part {index}"), plan, OPTIONS);
            let (flights, log) = (Flights::new(1), Arc::clone(log));
            Box::new(Self { index, facts, flights, rows: Vec::new(), log, fails, pieces: index })
        }

        fn note(&self, what: &'static str, token: u32) {
            self.log.lock().unwrap().push((self.index, what, token));
        }
    }

    impl Program for Part {
        fn facts(&self) -> &Facts {
            &self.facts
        }

        fn memory(&self) -> Memory {
            Memory::default()
        }

        fn submit(&mut self, batch: &Batch<'_>) -> Result<InFlight, BackendError> {
            batch.check(&OPTIONS, &self.facts.plan, 100)?;
            self.flights.check_room()?;
            self.note("submit", batch.tokens[0]);
            let rows = match batch.inputs {
                [] => batch.tokens.iter().map(|&token| token as f32).collect(),
                inputs => inputs[0].iter().map(|value| value + 1.0).collect(),
            };
            Ok(self.flights.begin((batch.tokens[0], rows)))
        }

        fn wait(&mut self, step: InFlight) -> Result<&mut dyn Results, BackendError> {
            let (token, rows) = self.flights.end(step)?;
            self.note("wait", token);
            if self.fails == Some(token) {
                let (device, what) = (self.facts.device.clone(), "as asked".to_owned());
                return Err(BackendError::Failed { device, what });
            }
            self.rows = rows;
            Ok(self)
        }

        fn copy_slot(&mut self, _from: u32, _to: u32, _length: usize) -> Result<(), BackendError> {
            Ok(())
        }

        fn profile(&mut self, _on: bool) -> Vec<f64> {
            Vec::new()
        }

        fn idle(&mut self) -> Result<Idle, BackendError> {
            let Some(left) = self.pieces.checked_sub(1) else { return Ok(Idle::Done) };
            self.pieces = left;
            self.note("idle", 0);
            Ok(Idle::More)
        }
    }

    impl Results for Part {
        fn output(&mut self, _index: usize) -> Result<&[f32], BackendError> {
            Ok(&self.rows)
        }
    }

    fn parts(count: usize, fails: Option<(usize, u32)>) -> (Parts, Log) {
        let log = Log::default();
        let fails_in = |part| fails.filter(|&(failing, _)| failing == part).map(|(_, token)| token);
        let parts = (0..count).map(|part| Part::boxed(part, &log, fails_in(part)));
        let parts: Vec<_> = parts.collect();
        let whole = parts[0].facts().plan.clone();
        let placed = |part: &dyn Program| terms::Part {
            site: 0,
            device: part.facts().device.clone(),
            plan: part.facts().plan.clone(),
            options: OPTIONS,
            memory: Memory::default(),
            device_memory: DeviceMemory { kind: MemoryKind::Own, free: None, largest_buffer: None },
            most_rows: None,
            aside: None,
        };
        let placement = Placement {
            parts: parts.iter().map(|part| placed(part.as_ref())).collect(),
            options: OPTIONS,
            running: 2,
            full_blocks: 2,
            depth: count,
            gain: None,
        };
        (Parts::new(&whole, parts, &placement, 100), log)
    }

    fn submit(parts: &mut Parts, token: u32) -> Result<InFlight, BackendError> {
        parts.submit(&Batch {
            tokens: &[token, 50],
            positions: &[0, 1],
            sequence_of: &[0, 0],
            sequences: &[SequenceView { slot: 0, blocks: &[0] }],
            outputs: &[],
            ahead: &[],
            bulk_from: 2,
            inputs: &[],
            goal: Goal::Main,
        })
    }

    fn taken(log: &Log) -> Vec<(usize, &'static str, u32)> {
        std::mem::take(&mut *log.lock().unwrap())
    }

    #[test]
    fn a_step_is_in_one_part_while_another_is_in_the_next() {
        let (mut parts, log) = parts(2, None);
        let first = submit(&mut parts, 1).unwrap();
        let second = submit(&mut parts, 2).unwrap();
        let moved = [(0, "submit", 1), (0, "wait", 1), (1, "submit", 1), (0, "submit", 2)];
        assert_eq!(taken(&log), moved, "the second step starts before the first is waited for");
        assert!(matches!(submit(&mut parts, 3), Err(BackendError::BadBatch { .. })));
        assert_eq!(parts.wait(first).unwrap().output(0).unwrap(), [2.0, 51.0]);
        assert_eq!(taken(&log), [(1, "wait", 1)]);
        let third = submit(&mut parts, 3).unwrap();
        assert_eq!(taken(&log), [(0, "wait", 2), (1, "submit", 2), (0, "submit", 3)]);
        assert!(matches!(parts.copy_slot(0, 1, 1), Err(BackendError::BadBatch { .. })));
        assert_eq!(parts.wait(second).unwrap().output(0).unwrap(), [3.0, 51.0]);
        assert_eq!(parts.wait(third).unwrap().output(0).unwrap(), [4.0, 51.0]);
        parts.copy_slot(0, 1, 1).unwrap();
    }

    #[test]
    fn any_number_of_steps_goes_through_any_number_of_parts() {
        for count in 2..5 {
            for most in 1..=count {
                let (mut parts, _) = parts(count, None);
                assert_eq!(parts.facts().depth, count);
                let mut flying = std::collections::VecDeque::new();
                for token in 0..20 {
                    if flying.len() == most {
                        let (token, step) = flying.pop_front().unwrap();
                        let expected = (token + count as u32 - 1) as f32;
                        assert_eq!(parts.wait(step).unwrap().output(0).unwrap()[0], expected);
                    }
                    flying.push_back((token, submit(&mut parts, token).unwrap()));
                }
            }
        }
    }

    #[test]
    fn nothing_is_in_flight_after_a_failure() {
        for (part, in_submit) in [(0, true), (1, false)] {
            let (mut parts, log) = parts(2, Some((part, 1)));
            let first = submit(&mut parts, 1).unwrap();
            let second = submit(&mut parts, 2);
            assert_eq!(second.is_err(), in_submit);
            if let Ok(second) = second {
                assert!(matches!(parts.wait(first), Err(BackendError::Failed { .. })));
                assert!(matches!(parts.wait(second), Err(BackendError::BadBatch { .. })));
            }
            let log = taken(&log);
            let count = |wanted| log.iter().filter(|(_, what, _)| *what == wanted).count();
            assert_eq!(count("submit"), count("wait"), "{log:?}");
            let fourth = submit(&mut parts, 4).unwrap();
            assert_eq!(parts.wait(fourth).unwrap().output(0).unwrap(), [5.0, 51.0]);
        }
    }

    #[test]
    fn parts_are_idle_a_piece_at_a_time_and_never_beside_a_step() {
        let (mut parts, log) = parts(3, None);
        let step = submit(&mut parts, 1).unwrap();
        assert!(matches!(parts.idle(), Err(BackendError::BadBatch { .. })));
        parts.wait(step).unwrap();
        taken(&log);
        for part in [1, 2, 2] {
            assert_eq!(parts.idle().unwrap(), Idle::More);
            assert_eq!(taken(&log), [(part, "idle", 0)]);
        }
        assert_eq!(parts.idle().unwrap(), Idle::Done);
        assert_eq!(taken(&log), []);
    }
}
