//! Runs an engine on a separate thread, with handles for many clients.
//!
//! ```text
//! Service::submit -> checks, place in the queue -> command -> engine thread: Engine::submit, Engine::step ... -> Updates
//! Generation::next <- unbounded channel, at most a few updates for each token that the request allows
//! ```
//!
//! A client that reads slowly delays nobody: what it has not read yet is bounded by its own
//! `max_tokens`. A client that goes away drops its [`Generation`], and the engine thread ends the
//! sequence before its next step. An engine without requests lets its device do work of its own in
//! short pieces, after some time ([`Leisure`]).

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use trine_backend::Idle;

use crate::engine::Engine;
use crate::error::EngineError;
use crate::events::{Event, SequenceId, Update};
use crate::queue::{ClientId, Crowd, Load};
use crate::request::{Request, RequestLimits};
use crate::status::Status;

/// How long the thread waits after a step in which the device failed, so that a device that fails
/// immediately does not fill the log.
const AFTER_FAILURE: Duration = Duration::from_millis(100);

/// The interval at which an engine that has nothing else to do checks whether its store of prefixes
/// has answered.
const STORE_INTERVAL: Duration = Duration::from_millis(1);

/// The interval at which it looks after deadlines while it waits for another thread.
const STALL_INTERVAL: Duration = Duration::from_millis(50);

/// When an engine without requests lets its device do work of its own ([`Engine::idle`]).
#[derive(Debug, Clone, Copy)]
pub struct Leisure {
    /// The least time after the start of the service: its first request comes soon.
    pub after_start: Duration,
    /// The least time after a request was there.
    pub after_work: Duration,
}

impl Default for Leisure {
    fn default() -> Self {
        Self { after_start: Duration::from_secs(60), after_work: Duration::from_secs(5) }
    }
}

/// A handle to a running engine. Clones are cheap. When the last one and all [`Generation`]s are
/// dropped, the thread ends.
#[derive(Debug, Clone)]
pub struct Service {
    link: Arc<Link>,
}

/// A request that was submitted. Dropping it cancels the request.
#[derive(Debug)]
pub struct Generation {
    ticket: u64,
    updates: UnboundedReceiver<Update>,
    is_over: bool,
    link: Arc<Link>,
}

/// The part that all handles share.
#[derive(Debug)]
struct Link {
    commands: Sender<Command>,
    tickets: AtomicU64,
    limits: RequestLimits,
    board: Arc<Board>,
    /// Stops the step that is running ([`Engine::stop_on`]).
    stop: Arc<AtomicBool>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// What the handles and the thread share.
#[derive(Debug)]
struct Board {
    /// The requests in the engine's queue, and those not yet handed to it.
    waiting: Mutex<Waiting>,
    is_draining: AtomicBool,
    status: Mutex<Status>,
}

/// Requests that wait.
#[derive(Debug, Default)]
struct Waiting {
    all: Load,
    /// The waiting requests of each client that has any.
    clients: HashMap<ClientId, Load>,
}

#[derive(Debug)]
enum Command {
    Submit {
        ticket: u64,
        request: Box<Request>,
        updates: UnboundedSender<Update>,
    },
    Cancel {
        ticket: u64,
    },
    /// Rows of a picture are made.
    Wake,
    Stop,
}

impl Service {
    /// Starts a thread that runs the engine until [`Service::stop`] or until all handles are
    /// dropped. The limits of the queue are the engine's.
    ///
    /// # Errors
    /// Returns an error if the system provides no thread.
    pub fn start(engine: Engine) -> std::io::Result<Service> {
        Self::start_with(engine, Leisure::default())
    }

    /// Does the same with other times after which the device may do work of its own.
    ///
    /// # Errors
    /// As [`Service::start`].
    pub fn start_with(mut engine: Engine, leisure: Leisure) -> std::io::Result<Service> {
        let (commands, inbox) = std::sync::mpsc::channel();
        let limits = engine.limits();
        // Places in the queue are assigned before the engine sees a request.
        engine.set_queue(usize::MAX, usize::MAX);
        let board = Arc::new(Board {
            waiting: Mutex::default(),
            is_draining: AtomicBool::new(false),
            status: Mutex::new(engine.status()),
        });
        let stop = Arc::new(AtomicBool::new(false));
        engine.stop_on(Arc::clone(&stop));
        let tickets = AtomicU64::new(0);
        let thread = Mutex::new(None);
        let own = Arc::clone(&board);
        let link = Arc::new(Link { commands, tickets, limits, board: own, stop, thread });
        // A tower must not keep the thread alive.
        let weak = Arc::downgrade(&link);
        engine.set_waker(move || {
            if let Some(link) = weak.upgrade() {
                // If the thread has ended, nobody waits.
                let _ = link.commands.send(Command::Wake);
            }
        });
        let worker = Worker {
            engine,
            board,
            clients: HashMap::new(),
            sequences: HashMap::new(),
            queued: HashMap::new(),
            events: Vec::new(),
            leisure,
            began: Instant::now(),
            resumes: None,
        };
        let body = move || worker.run(&inbox);
        let thread = std::thread::Builder::new().name("engine".to_owned()).spawn(body)?;
        *link.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
        Ok(Service { link })
    }

    /// Queues a request. Never blocks.
    ///
    /// # Errors
    /// Returns the errors of [`RequestLimits::check`], [`EngineError::QueueFull`], and after
    /// [`Service::drain`] or [`Service::stop`] [`EngineError::Draining`].
    pub fn submit(&self, request: Request) -> Result<Generation, EngineError> {
        let Link { commands, tickets, limits, board, .. } = &*self.link;
        limits.check(&request)?;
        if board.is_draining.load(Ordering::Acquire) {
            return Err(EngineError::Draining);
        }
        let (client, tokens) = (request.client, request.prompt.len());
        board.enter(client, tokens, limits)?;
        let ticket = tickets.fetch_add(1, Ordering::Relaxed);
        let (sender, updates) = unbounded_channel();
        let command = Command::Submit { ticket, request: Box::new(request), updates: sender };
        if commands.send(command).is_err() {
            board.waiting().leave(client, tokens);
            return Err(EngineError::Draining);
        }
        Ok(Generation { ticket, updates, is_over: false, link: Arc::clone(&self.link) })
    }

    /// Checks whether the queue would accept a request of a client at the moment, so that no work
    /// is done for one that it would refuse.
    ///
    /// # Errors
    /// Returns [`EngineError::QueueFull`], and after [`Service::drain`] or [`Service::stop`]
    /// [`EngineError::Draining`].
    pub fn check_room(&self, client: ClientId, tokens: usize) -> Result<(), EngineError> {
        let Link { limits, board, .. } = &*self.link;
        if board.is_draining.load(Ordering::Acquire) {
            return Err(EngineError::Draining);
        }
        limits.check_queue(board.waiting().crowd(client), tokens)
    }

    /// Returns the limits for requests.
    pub fn limits(&self) -> RequestLimits {
        self.link.limits
    }

    /// Returns the status of the engine after its last step.
    pub fn status(&self) -> Status {
        let board = &self.link.board;
        let status = *board.status.lock().unwrap_or_else(PoisonError::into_inner);
        let all = board.waiting().all;
        Status {
            waiting: all.requests,
            waiting_tokens: all.tokens,
            draining: board.is_draining.load(Ordering::Relaxed),
            ..status
        }
    }

    /// Returns whether the thread runs. It does not after [`Service::stop`], nor after a defect in
    /// trine ended it.
    pub fn is_alive(&self) -> bool {
        let thread = self.link.thread.lock().unwrap_or_else(PoisonError::into_inner);
        thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Accepts no more requests; those that were accepted go on.
    pub fn drain(&self) {
        self.link.board.is_draining.store(true, Ordering::Release);
    }

    /// Ends all requests ([`Finish::Cancelled`](crate::Finish::Cancelled)) without waiting for
    /// that. The step that is running is stopped on the way ([`Engine::stop_on`]).
    pub fn end(&self) {
        self.drain();
        self.link.stop.store(true, Ordering::Release);
        // If the thread has ended, there is nothing to end.
        let _ = self.link.commands.send(Command::Stop);
    }

    /// Does the same as [`Service::end`] and waits for the thread, which frees the device.
    pub fn stop(&self) {
        self.end();
        let thread = self.link.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the engine's thread had ended with a panic");
        }
    }
}

impl Generation {
    /// Returns the next update; `None` after [`Update::Finished`], or without it if a defect ended
    /// the engine's thread.
    pub async fn next(&mut self) -> Option<Update> {
        let update = self.updates.recv().await;
        self.note(update)
    }

    /// Does the same and blocks the thread. Must not be called in asynchronous code.
    pub fn blocking_next(&mut self) -> Option<Update> {
        let update = self.updates.blocking_recv();
        self.note(update)
    }

    fn note(&mut self, update: Option<Update>) -> Option<Update> {
        self.is_over |= matches!(update, None | Some(Update::Finished { .. }));
        update
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        if !self.is_over {
            // If the thread has ended, there is nothing to cancel.
            let _ = self.link.commands.send(Command::Cancel { ticket: self.ticket });
        }
    }
}

impl Board {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place in the queue.
    fn enter(
        &self,
        client: ClientId,
        tokens: usize,
        limits: &RequestLimits,
    ) -> Result<(), EngineError> {
        let mut waiting = self.waiting();
        limits.check_queue(waiting.crowd(client), tokens)?;
        waiting.all.add(tokens);
        waiting.clients.entry(client).or_default().add(tokens);
        Ok(())
    }
}

impl Waiting {
    fn crowd(&self, client: ClientId) -> Crowd {
        let own = self.clients.get(&client).copied();
        let others = self.clients.len() - usize::from(own.is_some());
        Crowd { all: self.all, own: own.unwrap_or_default(), others }
    }

    fn leave(&mut self, client: ClientId, tokens: usize) {
        self.all.remove(tokens);
        if let Some(own) = self.clients.get_mut(&client) {
            own.remove(tokens);
            if own.requests == 0 {
                self.clients.remove(&client);
            }
        }
    }

    /// Counts what the engine's queue has got or lost since `before`, which is brought up to date.
    fn follow(
        &mut self,
        before: &mut HashMap<ClientId, Load>,
        now: impl Iterator<Item = (ClientId, Load)>,
    ) {
        let gone = std::mem::take(before);
        before.extend(now);
        let clients = gone.keys().chain(before.keys().filter(|client| !gone.contains_key(client)));
        for client in clients {
            let of =
                |loads: &HashMap<ClientId, Load>| loads.get(client).copied().unwrap_or_default();
            let (old, new) = (of(&gone), of(before));
            let moved = |count: usize, old: usize, new: usize| count + new - old;
            for load in [&mut self.all, self.clients.entry(*client).or_default()] {
                load.requests = moved(load.requests, old.requests, new.requests);
                load.tokens = moved(load.tokens, old.tokens, new.tokens);
            }
        }
        self.clients.retain(|_, load| load.requests > 0);
    }
}

/// What the thread owns.
struct Worker {
    engine: Engine,
    board: Arc<Board>,
    clients: HashMap<SequenceId, Client>,
    /// The sequences by ticket.
    sequences: HashMap<u64, SequenceId>,
    /// The engine's queue as the board counts it.
    queued: HashMap<ClientId, Load>,
    events: Vec<Event>,
    leisure: Leisure,
    began: Instant,
    /// When the device may do more work of its own; `None` if it has none.
    resumes: Option<Instant>,
}

/// The client that waits for a sequence.
struct Client {
    ticket: u64,
    updates: UnboundedSender<Update>,
}

impl Worker {
    fn run(mut self, inbox: &Receiver<Command>) {
        self.rest();
        loop {
            let command = if self.engine.is_idle() {
                self.receive_idle(inbox)
            } else if let Some(pause) = self.pause() {
                inbox.recv_timeout(pause).map_err(|error| match error {
                    RecvTimeoutError::Timeout => TryRecvError::Empty,
                    RecvTimeoutError::Disconnected => TryRecvError::Disconnected,
                })
            } else {
                inbox.try_recv()
            };
            match command {
                Ok(Command::Stop) | Err(TryRecvError::Disconnected) => break,
                Ok(command) => {
                    self.obey(command);
                    continue;
                }
                Err(TryRecvError::Empty) => {}
            }
            self.step();
            self.rest();
        }
        self.board.is_draining.store(true, Ordering::Release);
        let all: Vec<SequenceId> = self.clients.keys().copied().collect();
        for sequence in all {
            self.engine.cancel(sequence);
        }
        // Sequences in flight end when their steps have. No more are submitted, and after one that
        // fails none is in flight, so this comes to an end.
        self.step();
        while !self.engine.is_idle() {
            self.step();
        }
        if let Err(error) = self.engine.spill_kept() {
            tracing::error!(%error, "not all prefixes are kept on disk");
        }
        // Handles commands that were sent meanwhile.
        while let Ok(command) = inbox.try_recv() {
            if let Command::Submit { request, updates, .. } = command {
                self.board.waiting().leave(request.client, request.prompt.len());
                drop(updates);
            }
        }
    }

    /// Returns how long the thread may wait for a command while nothing can be done.
    fn pause(&self) -> Option<Duration> {
        if self.engine.waits_for_store() {
            return Some(STORE_INTERVAL);
        }
        self.engine.is_stalled().then_some(STALL_INTERVAL)
    }

    /// Lets the device be for a while after the start or a step.
    fn rest(&mut self) {
        let Leisure { after_start, after_work } = self.leisure;
        let (first, next) =
            (self.began.checked_add(after_start), Instant::now().checked_add(after_work));
        self.resumes = first.zip(next).map(|(first, next)| first.max(next));
    }

    /// Waits for a command while the engine is idle. Between commands the device may do work of
    /// its own. An error means that all handles are dropped.
    fn receive_idle(&mut self, inbox: &Receiver<Command>) -> Result<Command, TryRecvError> {
        loop {
            let Some(resumes) = self.resumes else {
                return inbox.recv().map_err(|_| TryRecvError::Disconnected);
            };
            match inbox.recv_timeout(resumes.saturating_duration_since(Instant::now())) {
                Ok(command) => return Ok(command),
                Err(RecvTimeoutError::Disconnected) => return Err(TryRecvError::Disconnected),
                Err(RecvTimeoutError::Timeout) => self.idle(),
            }
        }
    }

    /// Lets the device do a piece of work of its own.
    fn idle(&mut self) {
        let left = self.engine.idle().unwrap_or_else(|error| {
            tracing::error!(%error, "the device failed without a request");
            Idle::Done
        });
        self.resumes = match left {
            Idle::Done => None,
            Idle::More => Some(Instant::now()),
            Idle::Later(pause) => Instant::now().checked_add(pause),
        };
        *self.board.status.lock().unwrap_or_else(PoisonError::into_inner) = self.engine.status();
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Submit { ticket, request, updates } => {
                let (client, tokens) = (request.client, request.prompt.len());
                match self.engine.submit(*request) {
                    Ok(sequence) => {
                        self.clients.insert(sequence, Client { ticket, updates });
                        self.sequences.insert(ticket, sequence);
                        // The board has counted it before the engine got it.
                        self.queued.entry(client).or_default().add(tokens);
                    }
                    Err(error) => {
                        // The request was checked against the same limits before.
                        tracing::error!(%error, "an accepted request was refused by the engine");
                        self.board.waiting().leave(client, tokens);
                    }
                }
            }
            Command::Cancel { ticket } => {
                if let Some(&sequence) = self.sequences.get(&ticket) {
                    self.engine.cancel(sequence);
                }
            }
            Command::Wake => {}
            Command::Stop => unreachable!("the loop ends with it"),
        }
    }

    fn step(&mut self) {
        let mut events = std::mem::take(&mut self.events);
        if let Err(error) = self.engine.step_into(&mut events) {
            tracing::error!(%error, "the step failed");
            std::thread::sleep(AFTER_FAILURE);
        }
        let status = self.engine.status();
        self.board.waiting().follow(&mut self.queued, self.engine.loads());
        // Who has an answer sees a status that knows of it.
        *self.board.status.lock().unwrap_or_else(PoisonError::into_inner) = status;
        events.drain(..).for_each(|event| self.deliver(event));
        self.events = events;
    }

    fn deliver(&mut self, Event { sequence, update }: Event) {
        let Some(client) = self.clients.get(&sequence) else { return };
        let is_last = matches!(update, Update::Finished { .. });
        // A client that is gone has sent a cancellation, so a failed send can be ignored.
        let _ = client.updates.send(update);
        if is_last {
            let ticket = client.ticket;
            self.clients.remove(&sequence);
            self.sequences.remove(&ticket);
        }
    }
}
