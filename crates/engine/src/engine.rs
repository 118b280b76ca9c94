//! The engine's loop: schedule, run, sample.

mod admission;
mod drafting;
mod draws;
mod flight;
mod guesses;
mod landing;
mod picture_state;
mod picture_wait;
mod place;
mod precision;
mod prefixes;
mod reading;
mod rotation;
mod sequence;
mod spill;
mod step;

pub use reading::Guess;

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use trine_backend::{
    BackendError, Device, Facts, Idle, InputSums, Partner, Placement, Program, ProgramOptions,
    SequenceView, placement,
};
use trine_model::{Ahead, Goal, Model, Op, Plan, Width, names};

use crate::error::EngineError;
use crate::events::{Event, Finish, SequenceId, Statistics};
use crate::kv::{KvBooks, KvShape};
use crate::options::EngineOptions;
use crate::pace::Pace;
use crate::pooling::Pool;
use crate::queue::{ClientId, Load, Queue, Rank};
use crate::request::{Request, RequestLimits, ResultKind};
use crate::rows::{self, BatchBuffers, soft_columns};
use crate::sampling::Workspace;
use crate::scheduler::{Pick, Scheduler};
use crate::sharing::Sharing;
use crate::status::Status;
use crate::traffic::Traffic;
use drafting::Drafting;
use draws::Draws;
use flight::{Flight, Landed};
use picture_state::PictureWait;
use place::{Kept, SlotState};
use precision::Precision;
use prefixes::Prefixes;
use sequence::Sequence;

/// The default for the most requests in the queue.
const QUEUE: usize = 1024;
/// The default for the most prompt tokens in the queue, in contexts.
const QUEUE_CONTEXTS: usize = 256;

/// Generates text for many sequences at the same time on one device.
///
/// Requests wait in a queue until there is a slot and memory for their prompts. Prompts are run in
/// pieces beside decoding sequences. If a sequence finds no memory, the one that is last in rank
/// gives way: it is queued again and later recomputed from its tokens.
///
/// [`Engine::step_into`] allocates nothing for a token except for log-probabilities, constraints,
/// draws from all logits of a row and guesses of a model. Requests that begin and end do allocate.
pub struct Engine {
    program: Box<dyn Program>,
    limits: RequestLimits,
    kv: KvBooks,
    scheduler: Scheduler,
    pace: Pace,
    is_paced: bool,
    /// The clock that times steps: the time since some fixed moment.
    clock: Box<dyn Fn() -> Duration + Send>,
    queue: Queue<Box<Sequence>>,
    /// The contents of each slot.
    places: Vec<SlotState>,
    /// Last events that [`Engine::step_into`] has not reported yet.
    ended: Vec<Event>,
    /// Steps in flight, the oldest first.
    flights: VecDeque<Flight>,
    /// When the last step ended.
    landed: Duration,
    /// The picks of the current step.
    picks: Vec<Pick>,
    /// Unused lists of picks, kept for their memory.
    spare_picks: Vec<Vec<Pick>>,
    draws: Draws,
    /// What the current step gave for each pick.
    landings: Vec<Landed>,
    rows: BatchBuffers,
    workspace: Workspace,
    /// The number of tokens that a request shares with each slot; kept for its memory.
    common: Vec<usize>,
    traffic: Traffic,
    status: Status,
    /// How often a waiting request was looked at to start one.
    visits: u64,
    /// The store that keeps prefixes beyond the cache.
    prefixes: Option<Prefixes>,
    /// What guesses tokens, if anything does.
    drafting: Option<Box<Drafting>>,
    /// The device's partner, if it has one.
    sharing: Option<Sharing>,
    /// Whether each text is one step, as its rows see those after them.
    runs_whole: bool,
    /// Columns of the hidden states that steps can give for a drafter; 0 if there are none.
    state_columns: usize,
    /// The hidden states that were taken of a step last.
    states: Vec<f32>,
    picture_wait: PictureWait,
}

fn system_clock() -> Box<dyn Fn() -> Duration + Send> {
    let start = Instant::now();
    Box::new(move || start.elapsed())
}

/// Loads a model's Plan as placement decides.
fn load(
    model: &Model,
    device: &dyn Device,
    options: EngineOptions,
    plan: &Plan,
    taken: &[u64],
) -> Result<(Box<dyn Program>, Placement), EngineError> {
    let model_context = model.config().context;
    let demand = options.demand_of(model)?;
    let (program, placement) = placement::load(model, plan, device, &demand, taken)?;
    if options.context.is_none() {
        tracing::info!(
            context = placement.options.context,
            model = model_context,
            "the context is as long as the model's own and the free memory allow; --context sets \
             another"
        );
    }
    Ok((program, placement))
}

/// Sees the logits of a position, and says whether to go on.
pub type Each<'a> = &'a mut dyn FnMut(usize, &[f32]) -> ControlFlow<()>;

/// Returns the number of token ids that a Plan takes: the columns of its logits, or where it has
/// none, the rows of its table.
fn vocabulary_of(plan: &Plan) -> usize {
    if plan.has_goal(Goal::Main) {
        return plan.output(0).columns;
    }
    let table = plan.weights.iter().find(|weight| weight.name == names::TOKEN_EMBEDDING);
    table.map_or(0, |table| table.rows)
}

/// Returns whether rows of a text see those after them, so that it is run in one step.
fn runs_whole(plan: &Plan) -> bool {
    let both_ways = |op: &Op| matches!(op, Op::Attend { ahead: Ahead::Window, .. });
    plan.steps.iter().any(|step| both_ways(&step.op))
}

/// Returns the columns of the hidden states that texts are embedded with, if the Plan has a goal
/// for them.
fn states_of(plan: &Plan) -> Option<usize> {
    plan.outputs_of(Goal::States).first().map(|id| plan.buffer(*id).columns)
}

impl Engine {
    /// Loads a model on a device. If the options set no context, it is the longest one that memory
    /// has room for, at most the model's.
    ///
    /// # Errors
    /// Returns [`EngineError::BadOption`] for a number out of range, and [`EngineError::Backend`]
    /// if the device cannot run the model or has too little memory.
    pub fn new(
        model: &Model,
        device: &dyn Device,
        options: EngineOptions,
    ) -> Result<Engine, EngineError> {
        let (program, running) = Self::load(model, device, options, &[])?;
        Ok(Self::with_running(program, running))
    }

    /// Loads a model as [`Engine::new`] does, without an engine, and without the bytes that are
    /// `taken` of the device's members ([`placement::load`]). Returns the Program and how many
    /// sequences run at the same time, for [`Engine::with_running`].
    ///
    /// # Errors
    /// As [`Engine::new`].
    pub fn load(
        model: &Model,
        device: &dyn Device,
        options: EngineOptions,
        taken: &[u64],
    ) -> Result<(Box<dyn Program>, usize), EngineError> {
        let (program, placement) = load(model, device, options, &options.plan(model), taken)?;
        Ok((program, placement.running))
    }

    /// Creates an engine for a loaded Program that runs as many sequences as the Program has slots.
    pub fn from_program(program: Box<dyn Program>) -> Engine {
        let sequences = program.facts().options.sequences;
        Self::with_running(program, sequences)
    }

    /// Creates an engine that runs at most `running` sequences (at least one) at the same time. The
    /// Program's other slots keep sequences that ended.
    pub fn with_running(program: Box<dyn Program>, running: usize) -> Engine {
        let Facts { plan, options, depth, mixed_rows, .. } = program.facts();
        let depth = *depth;
        let ProgramOptions { width, sequences: slots, context, .. } = *options;
        let (vocabulary, runs_whole) = (vocabulary_of(plan), runs_whole(plan));
        let soft_columns = soft_columns(plan);
        let state_columns = if plan.has_goal(Goal::Draft) { plan.output(1).columns } else { 0 };
        let kv = KvBooks::new(KvShape::of(options, &plan.caches));
        let sequences = running.clamp(1, slots);
        let mixed = Width { tokens: *mixed_rows, ..width };
        let limits = RequestLimits {
            context,
            vocabulary,
            sequences,
            queue: QUEUE,
            queue_tokens: context.saturating_mul(QUEUE_CONTEXTS),
            dimensions: states_of(plan),
            generates: plan.has_goal(Goal::Main),
            picture: soft_columns.map(|_| width.tokens),
        };
        let status = Status {
            sequences,
            context,
            block_positions: trine_backend::BLOCK,
            kv_bytes: program.memory().caches,
            blocks: kv.total_blocks(),
            ..Status::default()
        };
        Engine {
            limits,
            kv,
            scheduler: Scheduler::new(slots, mixed).with_units(width.tokens),
            pace: Pace::new(mixed.tokens),
            is_paced: true,
            clock: system_clock(),
            queue: Queue::default(),
            places: (0..slots).map(|_| SlotState::Kept(Kept::default())).collect(),
            ended: Vec::with_capacity(slots),
            flights: VecDeque::with_capacity(depth),
            landed: Duration::ZERO,
            picks: Vec::with_capacity(slots),
            draws: Draws::default(),
            spare_picks: (0..depth).map(|_| Vec::with_capacity(slots)).collect(),
            landings: Vec::with_capacity(slots),
            rows: BatchBuffers::new(width.tokens, width.outputs, slots),
            workspace: Workspace::new(vocabulary),
            common: Vec::with_capacity(slots),
            traffic: Traffic::new(plan, options),
            status,
            visits: 0,
            prefixes: None,
            drafting: None,
            sharing: None,
            runs_whole,
            state_columns,
            states: Vec::new(),
            picture_wait: PictureWait::new(soft_columns.unwrap_or(0)),
            program,
        }
    }

    /// Sets the most requests and the most prompt tokens that may wait.
    pub fn set_queue(&mut self, requests: usize, tokens: usize) {
        self.limits.queue = requests;
        self.limits.queue_tokens = tokens;
    }

    /// Sets whether prompts are run in pieces that keep the gaps between the tokens of decoding
    /// sequences below twice their length without a prompt ([`Pace`]; several prompts add more).
    /// This is the default. Without it, pieces are as large as a step allows.
    pub fn set_pacing(&mut self, paced: bool) {
        self.is_paced = paced;
    }

    /// Sets a flag that stops steps on the way. A step that finds it raised ends soon, and all
    /// running sequences end as cancelled. What was in the cache before the step stays reusable. On
    /// a device that cannot stop on the way ([`Program::stop_on`]) the step runs to its end.
    pub fn stop_on(&mut self, stop: Arc<AtomicBool>) {
        self.program.stop_on(stop);
    }

    /// Names the partner of the Program's device, so that [`Status::partner`] and
    /// [`Update::Shared`](crate::Update::Shared) tell what it does.
    pub fn set_partner(&mut self, partner: Arc<dyn Partner>) {
        self.sharing = Some(Sharing::new(partner));
    }

    /// Sets the clock that times steps: a function that returns the time since some fixed moment. A
    /// simulator sets one for a device that only computes what it would take. Deadlines use the
    /// system's clock.
    pub fn set_clock(&mut self, clock: impl Fn() -> Duration + Send + 'static) {
        self.clock = Box::new(clock);
    }

    /// Returns the number of positions per sequence.
    pub fn context(&self) -> usize {
        self.limits.context
    }

    /// Returns the number of token ids.
    pub fn vocabulary(&self) -> usize {
        self.limits.vocabulary
    }

    /// Returns the limits for requests.
    pub fn limits(&self) -> RequestLimits {
        self.limits
    }

    /// Returns the present status.
    pub fn status(&self) -> Status {
        let running = self.kv.running_blocks();
        Status {
            running: self.scheduler.sequences(),
            waiting: self.queue.len(),
            waiting_tokens: self.queue.tokens(),
            blocks_running: running,
            blocks_kept: self.kv.total_blocks() - self.kv.free_blocks() - running,
            blocks_shared: self.kv.shared_blocks(),
            store: self.prefixes.as_ref().map(Prefixes::counts),
            partner: self.sharing.as_ref().map(Sharing::counts),
            ..self.status
        }
    }

    /// Returns how often waiting requests were looked at to start one: what the queue costs.
    pub fn visits(&self) -> u64 {
        self.visits
    }

    /// Returns the Program, for reports about its Plan, memory and options.
    pub fn program(&self) -> &dyn Program {
        self.program.as_ref()
    }

    /// Starts to measure the seconds spent in each operation of the Plan, or stops and returns them
    /// ([`Program::profile`]). Waits for the steps in flight before.
    ///
    /// # Errors
    /// Returns [`EngineError::Backend`] if the device failed.
    pub fn profile(&mut self, on: bool) -> Result<Vec<f64>, EngineError> {
        self.come_to_rest()?;
        Ok(self.program.profile(on))
    }

    /// Starts to sum the squares of what matrices are multiplied with, or stops and returns the
    /// sums ([`Program::observe`]). Waits for the steps in flight before.
    ///
    /// # Errors
    /// Returns [`EngineError::Backend`] if the device failed.
    pub fn observe(&mut self, on: bool) -> Result<Option<Vec<InputSums>>, EngineError> {
        self.come_to_rest()?;
        Ok(self.program.observe(on))
    }

    /// Queues a request. The prompt is always the whole list of tokens: the part that a sequence in
    /// the cache shares is not run again, except for the last token. If the rings of local layers
    /// have lost positions that are needed to go on there, the part is recomputed (see
    /// [`crate::kv::Ring::keeps`]).
    ///
    /// # Errors
    /// Returns the errors of [`RequestLimits::check`], and [`EngineError::QueueFull`]. Nothing is
    /// changed then.
    pub fn submit(&mut self, request: Request) -> Result<SequenceId, EngineError> {
        self.limits.check(&request)?;
        self.limits.check_queue(self.queue.crowd(request.client), request.prompt.len())?;
        self.picture_wait.is_stalled = false;
        let (priority, client) = (request.priority, request.client);
        let rank = Rank { priority, arrival: self.status.requests, client };
        self.status.requests += 1;
        let id = SequenceId(self.status.requests);
        // One more than the context: the token after the last position can be sampled too.
        let most = self.context() + 1 - request.prompt.len();
        let mut sequence = Box::new(Sequence::new(id, request, most));
        if let (ResultKind::Embed(pooling), Some(dimensions)) =
            (sequence.job, self.limits.dimensions)
        {
            sequence.pool = Some(Pool::new(pooling, dimensions));
        }
        if self.runs_whole {
            sequence.keep_whole();
        }
        self.queue.push(rank, sequence.prompt, sequence);
        Ok(id)
    }

    /// Makes one pass: admits, schedules, runs and samples. Returns no events if there is nothing
    /// to do. If nothing can be done until another thread is done, it waits for that, for 50 ms at
    /// most, unless another one is [woken](Engine::set_waker).
    ///
    /// # Errors
    /// Same as [`Engine::step_into`].
    pub fn step(&mut self) -> Result<Vec<Event>, EngineError> {
        let mut events = Vec::new();
        let result = self.step_into(&mut events);
        if let Err(error) = result {
            // The next step reports them.
            self.ended.splice(..0, events);
            return Err(error);
        }
        Ok(events)
    }

    /// Does the same as [`Engine::step`] and appends the events to a list.
    ///
    /// # Errors
    /// Returns [`EngineError::Backend`] if the device failed; a [stopped](Engine::stop_on) step is
    /// not a failure. Nothing in the cache is used again. Sequences without any generated token are
    /// queued again, once. The others have ended, which the next step reports
    /// ([`Finish::DeviceFailed`]).
    pub fn step_into(&mut self, events: &mut Vec<Event>) -> Result<(), EngineError> {
        events.append(&mut self.ended);
        match self.try_step(events) {
            Err(EngineError::Backend(BackendError::Stopped)) => {
                self.withdraw(events);
                Ok(())
            }
            Err(error) => {
                self.abandon();
                Err(error)
            }
            Ok(()) => Ok(()),
        }
    }

    fn try_step(&mut self, events: &mut Vec<Event>) -> Result<(), EngineError> {
        self.picture_wait.begin();
        self.expire(events);
        self.end_failed_pictures(events);
        self.admit(events)?;
        self.submit_steps(events)?;
        if self.flights.is_empty() {
            self.note_stall(events.is_empty());
        }
        self.land(events)
    }

    /// Ends a waiting or running request. What it has in the cache stays reusable until the memory
    /// is needed, and the next step reports [`Finish::Cancelled`]. Returns what the request cost;
    /// `None` if it has already ended.
    pub fn cancel(&mut self, id: SequenceId) -> Option<Statistics> {
        self.picture_wait.is_stalled = false;
        let slot = (0..self.places.len())
            .find(|&slot| self.places[slot].running().is_some_and(|sequence| sequence.has_id(id)));
        let ended = match slot {
            Some(slot) if self.scheduler.is_flying(slot) => {
                // The sequence ends when its steps have run.
                let sequence = self.places[slot].running_mut()?;
                sequence.is_cancelled = true;
                return Some(sequence.statistics);
            }
            Some(slot) => self.end(slot, true),
            None => {
                let found = self.queue.iter().find(|(_, sequence)| sequence.id == id);
                let (rank, _) = found?;
                self.queue.remove(rank)?
            }
        };
        self.learn(&ended);
        self.ended.push(ended.finished(Finish::Cancelled));
        Some(ended.statistics)
    }

    /// Returns whether there is nothing to run and nothing to report.
    pub fn is_idle(&self) -> bool {
        self.ended.is_empty() && self.scheduler.is_idle() && self.queue.is_empty()
    }

    /// Lets the Program, and then what guesses, do a short piece of work that no request needs
    /// ([`Program::idle`]). There is none for an engine that is not [idle](Engine::is_idle).
    ///
    /// # Errors
    /// Returns [`EngineError::Backend`] if the device failed. Nothing in the cache is used again.
    pub fn idle(&mut self) -> Result<Idle, EngineError> {
        self.come_to_rest()?;
        if !self.is_idle() {
            return Ok(Idle::Done);
        }
        let left = self.program.idle().inspect_err(|_| self.abandon())?;
        let drafting = self.drafting.as_mut().filter(|_| left != Idle::More);
        Ok(left.and(drafting.map_or(Idle::Done, |drafting| drafting.idle())))
    }

    /// Sets whether priorities order the requests of all clients. Otherwise a priority orders the
    /// requests of its own client, which takes turns with the others.
    pub fn share_priorities(&mut self, shares_priorities: bool) {
        self.queue.share_priorities(shares_priorities);
    }

    /// Returns what waits of each client.
    pub fn loads(&self) -> impl Iterator<Item = (ClientId, Load)> {
        self.queue.loads()
    }

    /// Drops all reusable prefixes.
    pub fn forget(&mut self) {
        self.kv.forget();
    }

    /// Checks the books: blocks and slots ([`KvBooks::check_integrity`]), rows to run
    /// ([`Scheduler::check_integrity`]), the queue, and that they agree with the sequences.
    ///
    /// # Errors
    /// Returns what is wrong.
    pub fn check_integrity(&self) -> Result<(), String> {
        self.kv.check_integrity()?;
        self.scheduler.check_integrity()?;
        self.queue.check_integrity()?;
        self.check_pages()?;
        for (slot, place) in self.places.iter().enumerate() {
            let is_running = self.kv.is_running(slot);
            if is_running != self.scheduler.holds(slot) || is_running != place.running().is_some() {
                return Err(format!(
                    "slot {slot}: cache, scheduler and sequences disagree on whether it is running"
                ));
            }
            let (known, length) = (place.tokens().len(), self.kv.length(slot));
            if length > known || (is_running && length == known) {
                return Err(format!(
                    "slot {slot} has {known} tokens, {length} of them in the cache"
                ));
            }
        }
        if self.scheduler.sequences() > self.limits.sequences {
            return Err(format!(
                "{} sequences run, {} may",
                self.scheduler.sequences(),
                self.limits.sequences
            ));
        }
        Ok(())
    }

    /// Computes the logits of every position of `ids`, in steps of at most `chunk` rows (fewer if
    /// the engine was made for fewer rows or outputs), and calls `each(position, logits)` in order.
    ///
    /// # Errors
    /// Returns the errors of [`Engine::submit`] for the ids, [`EngineError::BadOption`] if `chunk`
    /// is 0, [`EngineError::NoFreeSequence`], and [`EngineError::Backend`] if the device failed.
    pub fn logits(&mut self, ids: &[u32], chunk: usize, each: Each<'_>) -> Result<(), EngineError> {
        self.with_lease(ids, chunk, |engine, slot, rows| {
            engine.run_all(slot, ids, rows, each).map(drop)
        })
    }

    /// Lends a slot to `run` for tokens in pieces of at most `chunk`, with the rows of a piece.
    fn with_lease<T>(
        &mut self,
        ids: &[u32],
        chunk: usize,
        run: impl FnOnce(&mut Self, usize, usize) -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        self.limits.check_prompt(ids)?;
        if chunk == 0 {
            return Err(EngineError::option("chunk", chunk, "at least 1"));
        }
        let Facts { options, mixed_rows, .. } = self.program.facts();
        let rows = chunk.min(*mixed_rows).min(options.width.outputs);
        self.come_to_rest()?;
        let lease = self
            .kv
            .lease(ids.len(), |_| 0)
            .ok_or(EngineError::NoFreeSequence { sequences: self.places.len() })?;
        let spilled = self.spill_lost();
        self.places[lease.slot] = SlotState::Kept(Kept::default());
        let result = spilled.and_then(|()| run(self, lease.slot, rows));
        self.kv.release(lease.slot, false);
        if matches!(result, Err(EngineError::Backend(_))) {
            self.abandon();
        }
        result
    }

    /// Says where values first were not finite, as [`Program::overflow`] does: for logits that are
    /// not.
    pub fn overflow(&mut self) -> String {
        self.program.overflow(Goal::Main)
    }

    fn run_all(
        &mut self,
        slot: usize,
        ids: &[u32],
        rows: usize,
        each: Each<'_>,
    ) -> Result<ControlFlow<()>, EngineError> {
        for piece in ids.chunks(rows) {
            let first = self.kv.length(slot);
            self.kv.reserve(slot, first + piece.len())?;
            self.spill_lost()?;
            self.rows.clear();
            let is_bulk = Precision::of_prompt(rows).is_bulk();
            self.rows.push(0, [piece, &[]], first, piece.len(), is_bulk);
            let view = SequenceView { slot: slot as u32, blocks: self.kv.blocks(slot) };
            let step =
                self.rows.submit(self.program.as_mut(), std::iter::once(view), Goal::Main)?;
            let mut logits = rows::wait(self.program.as_mut(), step, None)?;
            logits.fetch(&(0..piece.len() as u32).collect::<Vec<_>>())?;
            for row in 0..piece.len() {
                if each(first + row, logits.all(row)?).is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
            self.kv.advance(slot, piece.len());
        }
        Ok(ControlFlow::Continue(()))
    }
}
