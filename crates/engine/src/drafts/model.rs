//! Guesses with a smaller model of the same vocabulary.

use trine_backend::{BackendError, Facts, Program, SequenceView};

use super::{Ask, Drafter};
use crate::events::SequenceId;
use crate::kv::{KvCache, KvShape};
use crate::rows::{self, Rows};
use crate::sampling::{Stream, Workspace};
use crate::scope::Scope;

/// A smaller model that has a Program and caches of its own.
///
/// It learns of forks, preemptions and ends only by what it is asked: a sequence that it does not
/// know gets a seat, if need be that of the one that was asked for longest ago. Keys and values of
/// guesses stand where those of the right tokens would be. What turns out to be right is kept;
/// what was wrong is overwritten, as in the model that it guesses for.
pub struct ModelDrafter {
    program: Box<dyn Program>,
    kv: KvCache,
    seats: Vec<Seat>,
    rows: Rows,
    workspace: Workspace,
    /// Drafts so far.
    clock: u64,
    /// The sequences that take part in a draft; kept for its memory.
    parties: Vec<Party>,
}

/// What one of the Program's slots holds.
#[derive(Default)]
struct Seat {
    id: Option<SequenceId>,
    scope: Scope,
    /// The tokens whose keys and values are in the cache.
    tokens: Vec<u32>,
    /// Guesses after those tokens that have keys and values too.
    guesses: Vec<u32>,
    /// The draft in which it was last asked for.
    used: u64,
}

/// A sequence in a draft.
struct Party {
    /// Index in what is asked.
    ask: usize,
    seat: usize,
    /// The random numbers that the sequence will use.
    stream: Stream,
}

impl ModelDrafter {
    /// Makes a loaded Program guess. It guesses for as many sequences at once as it has slots.
    pub fn new(program: Box<dyn Program>) -> Self {
        let Facts { plan, options, .. } = program.facts();
        let vocabulary = plan.output(0).columns;
        let slots = options.sequences;
        let kv = KvCache::new(KvShape::of(options, &plan.caches));
        let rows = Rows::new(options.width.tokens, options.width.outputs, slots);
        Self {
            kv,
            seats: (0..slots).map(|_| Seat::default()).collect(),
            rows,
            workspace: Workspace::new(vocabulary),
            clock: 0,
            parties: Vec::with_capacity(slots),
            program,
        }
    }

    /// Returns the Program, for reports.
    pub fn program(&self) -> &dyn Program {
        self.program.as_ref()
    }

    /// Gives each sequence a seat whose cache holds its tokens but for as many as a step takes, and
    /// notes them as parties. A sequence that needs more waits until a later draft.
    fn gather(&mut self, asks: &[Ask<'_>]) -> Result<(), BackendError> {
        self.parties.clear();
        self.clock += 1;
        let width = self.program.facts().options.width;
        let mut free = width.tokens;
        for (index, ask) in asks.iter().enumerate().take(width.outputs) {
            let Some(seat) = self.seat_of(ask)? else { continue };
            self.keep_right_guesses(seat, ask.tokens);
            let missing = ask.tokens.len() - self.kv.length(seat);
            if missing <= free && self.reserve(seat, ask.tokens.len() + ask.most) {
                free -= missing;
                self.parties.push(Party { ask: index, seat, stream: ask.stream.clone() });
            }
        }
        Ok(())
    }

    /// Makes room for the positions of a seat up to `end`. Seats of sequences that are not in this
    /// draft, which may have ended, give way, the one that was asked for longest ago first. Returns
    /// whether there is room.
    fn reserve(&mut self, seat: usize, end: usize) -> bool {
        while self.kv.reserve(seat, end).is_err() {
            let is_idle =
                |&idle: &usize| self.seats[idle].id.is_some() && self.seats[idle].used < self.clock;
            let idle = (0..self.seats.len()).filter(is_idle);
            let Some(oldest) = idle.min_by_key(|&seat| self.seats[seat].used) else {
                return false;
            };
            self.seats[oldest].id = None;
            self.kv.release(oldest, true);
        }
        true
    }

    /// Returns the seat of a sequence, which may be new; `None` if all belong to sequences of this
    /// draft, its context is too long, or it has tokens that the model does not know.
    fn seat_of(&mut self, ask: &Ask<'_>) -> Result<Option<usize>, BackendError> {
        let Self { seats, kv, clock, .. } = self;
        let Facts { plan, options, .. } = self.program.facts();
        let vocabulary = plan.output(0).columns;
        let knows = |tokens: &[u32]| tokens.iter().all(|&token| (token as usize) < vocabulary);
        let known = seats.iter().position(|seat| seat.id == Some(ask.id));
        if ask.tokens.len() + ask.most > options.context {
            // It grows only, so its seat is of no further use to it.
            if let Some(known) = known {
                seats[known].id = None;
                kv.release(known, true);
            }
            return Ok(None);
        }
        let held = known.map_or(0, |seat| seats[seat].tokens.len());
        // The model that it guesses for may have more ids.
        if !ask.tokens.get(held..).is_none_or(knows) {
            return Ok(None);
        }
        if let Some(known) = known {
            if seats[known].tokens.len() < ask.tokens.len() {
                seats[known].used = *clock;
                return Ok(Some(known));
            }
            // Its last token was run, but has to be run again.
            seats[known].id = None;
            kv.release(known, true);
        }
        if seats.iter().all(|seat| seat.id.is_some()) {
            let idle = (0..seats.len()).filter(|&seat| seats[seat].used < *clock);
            let Some(oldest) = idle.min_by_key(|&seat| seats[seat].used) else { return Ok(None) };
            seats[oldest].id = None;
            kv.release(oldest, true);
        }
        let common = |seat: usize| {
            let Seat { scope, tokens, .. } = &seats[seat];
            let pairs = tokens.iter().zip(ask.tokens);
            if *scope == ask.scope { pairs.take_while(|(a, b)| a == b).count() } else { 0 }
        };
        let Some(lease) = kv.lease(ask.tokens.len(), common) else { return Ok(None) };
        let seat = &mut seats[lease.slot];
        seat.id = Some(ask.id);
        seat.scope = ask.scope;
        seat.used = *clock;
        seat.guesses.clear();
        seat.tokens.clear();
        seat.tokens.extend_from_slice(&ask.tokens[..lease.reused]);
        if let Some(from) = lease.copied_from {
            self.program.copy_slot(from as u32, lease.slot as u32, kv.written(from))?;
        }
        Ok(Some(lease.slot))
    }

    /// Counts guesses that became tokens as computed, except for the last token.
    fn keep_right_guesses(&mut self, seat: usize, tokens: &[u32]) {
        let Seat { tokens: held, guesses, .. } = &mut self.seats[seat];
        let next = &tokens[held.len()..tokens.len() - 1];
        let right = guesses.iter().zip(next).take_while(|(guess, token)| guess == token).count();
        held.extend_from_slice(&next[..right]);
        guesses.clear();
        self.kv.advance(seat, right);
    }

    /// Runs a piece of the tokens of one sequence whose cache lacks more than a step takes. It gets
    /// guesses when less is missing.
    fn catch_up(&mut self, asks: &[Ask<'_>]) -> Result<(), BackendError> {
        let width = self.program.facts().options.width.tokens;
        for ask in asks {
            let Some(seat) = self.seats.iter().position(|seat| seat.id == Some(ask.id)) else {
                continue;
            };
            let done = self.kv.length(seat);
            if ask.tokens.len() - done <= width || !self.reserve(seat, done + width) {
                continue;
            }
            let piece = &ask.tokens[done..done + width];
            self.rows.clear();
            self.rows.push(0, [piece, &[]], done, 0, true);
            let view = SequenceView { slot: seat as u32, blocks: self.kv.blocks(seat) };
            let step = self.rows.submit(self.program.as_mut(), std::iter::once(view), 0)?;
            self.program.wait(step)?;
            self.kv.advance(seat, piece.len());
            self.seats[seat].tokens.extend_from_slice(piece);
            return Ok(());
        }
        Ok(())
    }

    /// Runs the rows of one guess for each party and appends the guesses. The first time these are
    /// all rows that its cache lacks.
    fn guess(
        &mut self,
        asks: &[Ask<'_>],
        guesses: &mut [Vec<u32>],
        is_first: bool,
    ) -> Result<(), BackendError> {
        self.rows.clear();
        for (index, party) in self.parties.iter().enumerate() {
            let (known, guessed) = (asks[party.ask].tokens, &guesses[party.ask]);
            let held = self.kv.length(party.seat);
            let last = guessed.len().saturating_sub(1);
            let (rows, first) = match is_first {
                true => (&known[held..], held),
                false => (&guessed[last..], known.len() + last),
            };
            self.rows.push(index as u32, [rows, &[]], first, 1, false);
        }
        let (kv, parties) = (&self.kv, &self.parties);
        let views = parties
            .iter()
            .map(|party| SequenceView { slot: party.seat as u32, blocks: kv.blocks(party.seat) });
        let step = self.rows.submit(self.program.as_mut(), views, 0)?;
        let vocabulary = self.program.facts().plan.output(0).columns;
        let logits = rows::wait(self.program.as_mut(), step, true)?;
        let mut given = logits.rows(vocabulary);
        let workspace = &mut self.workspace;
        // Logits that are not finite give no guess, and so no further one.
        let mut guess = |party: &mut Party| {
            let logits = given.next()?;
            party.stream.guess(logits, workspace).ok()
        };
        for party in &mut self.parties {
            guesses[party.ask].extend(guess(party));
        }
        if !is_first {
            return Ok(());
        }
        for party in &self.parties {
            let (seat, known) = (&mut self.seats[party.seat], asks[party.ask].tokens);
            self.kv.advance(party.seat, known.len() - seat.tokens.len());
            seat.tokens.extend_from_slice(&known[seat.tokens.len()..]);
        }
        Ok(())
    }

    /// Does the work of [`Drafter::draft`].
    fn try_draft(
        &mut self,
        asks: &[Ask<'_>],
        guesses: &mut [Vec<u32>],
    ) -> Result<(), BackendError> {
        self.gather(asks)?;
        let deepest = asks.iter().map(|ask| ask.most).max().unwrap_or(0);
        for depth in 0..deepest {
            self.parties
                .retain(|party| asks[party.ask].most > depth && guesses[party.ask].len() == depth);
            if self.parties.is_empty() {
                break;
            }
            self.guess(asks, guesses, depth == 0)?;
        }
        // All but the last guess of each were run.
        for (ask, guesses) in asks.iter().zip(&*guesses) {
            let seat = self.seats.iter().position(|seat| seat.id == Some(ask.id));
            let Some((seat, [run @ .., _])) = seat.zip(Some(guesses.as_slice())) else { continue };
            self.seats[seat].guesses.extend_from_slice(run);
            self.kv.overwrite(seat, run.len());
        }
        self.catch_up(asks)
    }
}

impl Drafter for ModelDrafter {
    fn draft(&mut self, asks: &[Ask<'_>], guesses: &mut [Vec<u32>]) -> Result<(), BackendError> {
        let drafted = self.try_draft(asks, guesses);
        if drafted.is_err() {
            // What the caches hold is unknown.
            for seat in 0..self.seats.len() {
                if self.seats[seat].id.take().is_some() {
                    self.kv.release(seat, false);
                }
            }
            self.kv.forget();
        }
        drafted
    }
}
