//! Guesses with a smaller model of the same vocabulary.

use trine_backend::{BackendError, Facts, Idle, Program, SERIES_MAX, SequenceView};
use trine_model::Goal;

use super::{Ask, Drafter, GUESSES_MAX, Target};
use crate::events::SequenceId;
use crate::kv::{KvBooks, KvShape};
use crate::rows::{self, BatchBuffers};
use crate::sampling::{SamplerState, Workspace};
use crate::scope::Scope;

/// A smaller model that has a Program and caches of its own.
///
/// It learns of forks, preemptions and ends only by what it is asked: a sequence that it does not
/// know gets a seat. If no seat is free, the sequence that was asked for longest ago loses its own.
/// Keys and values of guesses stand at the positions of the right tokens. What turns out to be
/// right is kept; what was wrong is overwritten, as in the model that it guesses for.
pub struct ModelDrafter {
    program: Box<dyn Program>,
    kv: KvBooks,
    seats: Vec<DraftSlot>,
    rows: BatchBuffers,
    workspace: Workspace,
    /// Whether logits were not finite.
    is_broken: bool,
    /// Drafts so far.
    drafts: u64,
    /// The sequences that take part in a draft; kept for its memory.
    parties: Vec<Party>,
    /// The sequences that wait until more of their text is read; kept for its memory.
    readers: Vec<Reader>,
    /// The guesses that a step or a series has made; kept for its memory.
    found: Vec<Option<u32>>,
}

/// What one of the Program's slots holds.
#[derive(Default)]
struct DraftSlot {
    id: Option<SequenceId>,
    scope: Scope,
    /// The tokens whose keys and values are in the cache.
    tokens: Vec<u32>,
    /// Guesses after those tokens that have keys and values too.
    guesses: Vec<u32>,
    /// The draft in which it was last asked for.
    used: u64,
}

impl DraftSlot {
    /// Returns how many tokens a sequence begins with that are in the cache and may serve it.
    fn common(&self, ask: &Ask<'_>) -> usize {
        let pairs = self.tokens.iter().zip(ask.tokens);
        if self.scope == ask.scope { pairs.take_while(|(a, b)| a == b).count() } else { 0 }
    }
}

/// A sequence in a draft.
struct Party {
    /// Index in what is asked.
    ask: usize,
    seat: usize,
    /// The random numbers that the sequence will use.
    sampler: SamplerState,
}

/// A sequence whose text is read on.
struct Reader {
    /// Index in what is asked.
    ask: usize,
    seat: usize,
    /// The tokens that are read.
    count: usize,
}

impl ModelDrafter {
    /// Makes a loaded Program guess. It guesses for as many sequences at once as it has slots.
    pub fn new(program: Box<dyn Program>) -> Self {
        let Facts { plan, options, .. } = program.facts();
        let vocabulary = plan.output(0).columns;
        let slots = options.sequences;
        let kv = KvBooks::new(KvShape::of(options, &plan.caches));
        let rows = BatchBuffers::new(options.width.tokens, options.width.outputs, slots);
        Self {
            kv,
            seats: (0..slots).map(|_| DraftSlot::default()).collect(),
            rows,
            workspace: Workspace::new(vocabulary),
            is_broken: false,
            drafts: 0,
            parties: Vec::with_capacity(slots),
            readers: Vec::with_capacity(slots),
            found: Vec::with_capacity(slots * (1 + SERIES_MAX)),
            program,
        }
    }

    /// Returns the Program, for reports.
    pub fn program(&self) -> &dyn Program {
        self.program.as_ref()
    }

    /// Gives each sequence a seat, and notes those as parties whose caches lack few tokens, or no
    /// more than `readable` in all, which is lowered by their number. The others wait until a later
    /// draft.
    fn gather(&mut self, asks: &[Ask<'_>], readable: &mut usize) -> Result<(), BackendError> {
        self.parties.clear();
        self.readers.clear();
        self.drafts += 1;
        for ask in asks {
            // A sequence that is new takes the seat of none of the others.
            if let Some(seat) = self.seat_with(ask) {
                self.seats[seat].used = self.drafts;
            }
        }
        let width = self.program.facts().options.width;
        let mut free = width.tokens;
        for (index, ask) in asks.iter().enumerate().take(width.outputs) {
            let Some(seat) = self.seat_of(ask)? else { continue };
            self.keep_right_guesses(seat, ask.tokens);
            let missing = ask.tokens.len() - self.kv.length(seat);
            let unread = unread(missing);
            let fits = missing <= free && unread <= *readable;
            if fits && self.reserve(seat, ask.tokens.len() + ask.most) {
                free -= missing;
                *readable -= unread;
                self.parties.push(Party { ask: index, seat, sampler: ask.sampler.clone() });
            } else if unread > 0 {
                self.readers.push(Reader { ask: index, seat, count: 0 });
            }
        }
        Ok(())
    }

    /// Returns the seat that a sequence has.
    fn seat_with(&self, ask: &Ask<'_>) -> Option<usize> {
        self.seats.iter().position(|seat| seat.id == Some(ask.id))
    }

    /// Makes room for the positions of a seat up to `end`. Seats of sequences that are not in this
    /// draft, which may have ended, give way, the one that was asked for longest ago first. Returns
    /// whether there is room.
    fn reserve(&mut self, seat: usize, end: usize) -> bool {
        while self.kv.reserve(seat, end).is_err() {
            let is_idle = |&idle: &usize| {
                self.seats[idle].id.is_some() && self.seats[idle].used < self.drafts
            };
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
        let known = self.seat_with(ask);
        let Self { seats, kv, drafts, .. } = self;
        let Facts { plan, options, .. } = self.program.facts();
        let vocabulary = plan.output(0).columns;
        let knows = |tokens: &[u32]| tokens.iter().all(|&token| (token as usize) < vocabulary);
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
                seats[known].used = *drafts;
                return Ok(Some(known));
            }
            // Its last token was run, but has to be run again.
            seats[known].id = None;
            kv.release(known, true);
        }
        if seats.iter().all(|seat| seat.id.is_some()) {
            let idle = (0..seats.len()).filter(|&seat| seats[seat].used < *drafts);
            let Some(oldest) = idle.min_by_key(|&seat| seats[seat].used) else { return Ok(None) };
            seats[oldest].id = None;
            kv.release(oldest, true);
        }
        let common = |seat: usize| seats[seat].common(ask);
        let Some(lease) = kv.lease(ask.tokens.len(), common) else { return Ok(None) };
        let seat = &mut seats[lease.slot];
        seat.id = Some(ask.id);
        seat.scope = ask.scope;
        seat.used = *drafts;
        seat.guesses.clear();
        seat.tokens.clear();
        seat.tokens.extend_from_slice(&ask.tokens[..lease.reused]);
        if let Some(from) = lease.copied_from {
            self.program.copy_slot(from as u32, lease.slot as u32, kv.written(from))?;
        }
        Ok(Some(lease.slot))
    }

    /// Empties all seats, after a failure: what the caches hold is unknown.
    fn forget(&mut self) {
        for seat in 0..self.seats.len() {
            if self.seats[seat].id.take().is_some() {
                self.kv.release(seat, false);
            }
        }
        self.kv.forget();
    }

    /// Counts guesses that became tokens as computed, except for the last token.
    fn keep_right_guesses(&mut self, seat: usize, tokens: &[u32]) {
        let DraftSlot { tokens: held, guesses, .. } = &mut self.seats[seat];
        let next = &tokens[held.len()..tokens.len() - 1];
        let right = guesses.iter().zip(next).take_while(|(guess, token)| guess == token).count();
        held.extend_from_slice(&next[..right]);
        guesses.clear();
        self.kv.advance(seat, right);
    }

    /// Reads at most `readable` tokens of the sequences that [`Self::gather`] made wait. They get
    /// guesses when little is missing. Returns how many it read.
    fn catch_up(&mut self, asks: &[Ask<'_>], readable: usize) -> Result<usize, BackendError> {
        let width = self.program.facts().options.width.tokens;
        let mut free = readable.min(width);
        let mut readers = std::mem::take(&mut self.readers);
        for Reader { ask, seat, count } in &mut readers {
            let done = self.kv.length(*seat);
            // The last token is run for its logits.
            let most = free.min(asks[*ask].tokens.len() - done - 1);
            *count = if self.reserve(*seat, done + most) { most } else { 0 };
            free -= *count;
        }
        readers.retain(|reader| reader.count > 0);
        self.readers = readers;
        if self.readers.is_empty() {
            return Ok(0);
        }
        self.rows.clear();
        for (index, &Reader { ask, seat, count }) in self.readers.iter().enumerate() {
            let done = self.kv.length(seat);
            let piece = &asks[ask].tokens[done..done + count];
            self.rows.push(index as u32, [piece, &[]], done, 0, true);
        }
        let (kv, readers) = (&self.kv, &self.readers);
        let views = readers.iter().map(|reader| SequenceView {
            slot: reader.seat as u32,
            blocks: kv.blocks(reader.seat),
        });
        let step = self.rows.submit(self.program.as_mut(), views, Goal::Main)?;
        self.program.wait(step)?;
        for &Reader { ask, seat, count } in &self.readers {
            let done = self.kv.length(seat);
            self.seats[seat].tokens.extend_from_slice(&asks[ask].tokens[done..done + count]);
            self.kv.advance(seat, count);
        }
        Ok(self.readers.iter().map(|reader| reader.count).sum())
    }

    /// Collects the rows of one guess for each party: the first time all that its cache lacks,
    /// then its last guess.
    fn push_rows(&mut self, asks: &[Ask<'_>], guesses: &[Vec<u32>], is_first: bool) {
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
    }

    /// Books that the rows of one guess for each party were run.
    fn book_rows(&mut self, asks: &[Ask<'_>], guesses: &[Vec<u32>], is_first: bool) {
        for party in &self.parties {
            let (seat, known) = (&mut self.seats[party.seat], asks[party.ask].tokens);
            if is_first {
                self.kv.advance(party.seat, known.len() - seat.tokens.len());
                seat.tokens.extend_from_slice(&known[seat.tokens.len()..]);
            } else if let Some(&run) = guesses[party.ask].last() {
                seat.guesses.push(run);
                self.kv.overwrite(party.seat, seat.guesses.len());
            }
        }
    }

    /// Runs the rows of one guess for each party and appends the guesses. The first time these are
    /// all rows that its cache lacks.
    fn guess(
        &mut self,
        asks: &[Ask<'_>],
        guesses: &mut [Vec<u32>],
        is_first: bool,
    ) -> Result<(), BackendError> {
        self.push_rows(asks, guesses, is_first);
        let step =
            self.rows.submit(self.program.as_mut(), views(&self.kv, &self.parties), Goal::Main)?;
        let mut logits = rows::wait(self.program.as_mut(), step, None)?;
        let Self { workspace, parties, found, .. } = self;
        found.clear();
        for (row, party) in parties.iter_mut().enumerate() {
            found.push(party.sampler.guess(&mut logits, row, workspace)?);
        }
        self.book_rows(asks, guesses, is_first);
        for index in 0..self.parties.len() {
            let guess = self.found[index];
            self.note(guess);
            guesses[self.parties[index].ask].extend(guess);
        }
        Ok(())
    }

    /// Returns how many guesses the device can make for all parties in one series, beyond the
    /// first; `None` if it makes none.
    fn more(&self, asks: &[Ask<'_>], depth: usize) -> Option<usize> {
        let Facts { series_max, options, .. } = self.program.facts();
        let is_due = *series_max > 0 && self.parties.iter().all(|p| p.sampler.guesses_largest());
        let more = |party: &Party| {
            let ask = &asks[party.ask];
            let rows = if depth == 0 { ask.tokens.len() - self.kv.length(party.seat) } else { 1 };
            (ask.most - depth - 1).min(options.width.tokens - rows)
        };
        let least = self.parties.iter().map(more).min();
        least.filter(|_| is_due).map(|least| least.min(*series_max))
    }

    /// Appends `1 + more` guesses for each party, which the device makes in one series, up to one
    /// that ends the text.
    fn guess_series(
        &mut self,
        asks: &[Ask<'_>],
        guesses: &mut [Vec<u32>],
        is_first: bool,
        more: usize,
    ) -> Result<(), BackendError> {
        self.push_rows(asks, guesses, is_first);
        let views = views(&self.kv, &self.parties);
        let step =
            self.rows.submit_series(self.program.as_mut(), views, (Goal::Main, more), &[])?;
        let chosen = self.program.wait(step)?.chosen()?;
        self.found.clear();
        self.found.extend_from_slice(chosen);
        self.book_rows(asks, guesses, is_first);
        let count = self.parties.len();
        for index in 0..count {
            let Party { ask, seat, .. } = self.parties[index];
            let before = self.seats[seat].guesses.len();
            let mut has_ended = false;
            for step in 0..=more {
                let guess = self.found[step * count + index];
                self.note(guess);
                // What the device went on with is no guess.
                let Some(guess) = guess else { break };
                if !has_ended {
                    guesses[ask].push(guess);
                    has_ended = asks[ask].stop_ids.contains(&guess);
                }
                if step < more {
                    self.seats[seat].guesses.push(guess);
                }
            }
            self.kv.overwrite(seat, before + more);
        }
        Ok(())
    }

    /// Warns of the first guess that was not made because logits were not finite.
    fn note(&mut self, guess: Option<u32>) {
        if guess.is_none() && !std::mem::replace(&mut self.is_broken, true) {
            tracing::warn!(
                place = self.program.overflow(Goal::Main),
                "the draft model's logits are not finite, so it guesses nothing; its file may be \
                 damaged: download it again, or choose another with --draft"
            );
        }
    }

    /// Does the work of [`Drafter::draft`].
    fn try_draft(
        &mut self,
        asks: &[Ask<'_>],
        readable: usize,
        guesses: &mut [Vec<u32>],
    ) -> Result<usize, BackendError> {
        let mut left = readable;
        self.gather(asks, &mut left)?;
        let deepest = asks.iter().map(|ask| ask.most).max().unwrap_or(0);
        let mut depth = 0;
        while depth < deepest {
            self.parties.retain(|party| {
                let (ask, guesses) = (&asks[party.ask], &guesses[party.ask]);
                let is_end = guesses.last().is_some_and(|guess| ask.stop_ids.contains(guess));
                ask.most > depth && guesses.len() == depth && !is_end
            });
            if self.parties.is_empty() {
                break;
            }
            let is_first = depth == 0;
            depth += 1;
            match self.more(asks, depth - 1) {
                None => self.guess(asks, guesses, is_first)?,
                Some(more) => {
                    self.guess_series(asks, guesses, is_first, more)?;
                    depth += more;
                }
            }
        }
        let read = self.catch_up(asks, left)?;
        Ok(readable - left + read)
    }
}

/// Returns where the parties of a draft keep keys and values.
fn views<'a>(kv: &'a KvBooks, parties: &'a [Party]) -> impl Iterator<Item = SequenceView<'a>> {
    let view =
        |party: &'a Party| SequenceView { slot: party.seat as u32, blocks: kv.blocks(party.seat) };
    parties.iter().map(view)
}

/// Returns how many of the tokens that a cache lacks count as unread: all, unless they are no more
/// than a step of the model that is drafted for gives.
fn unread(missing: usize) -> usize {
    if missing > GUESSES_MAX + 1 { missing } else { 0 }
}

impl Drafter for ModelDrafter {
    fn sequences(&self) -> usize {
        self.seats.len().min(self.program.facts().options.width.outputs)
    }

    fn most(&self, ask: &Ask<'_>) -> usize {
        let Facts { plan, options, .. } = self.program.facts();
        let vocabulary = plan.output(0).columns;
        let held = self.seat_with(ask).map_or(0, |seat| self.seats[seat].tokens.len());
        let is_known = |&token: &u32| (token as usize) < vocabulary;
        match ask.tokens.get(held..) {
            Some(new) if !new.iter().all(is_known) => 0,
            _ => ask.most.min(options.context.saturating_sub(ask.tokens.len())),
        }
    }

    fn unread(&self, ask: &Ask<'_>) -> usize {
        let held = match self.seat_with(ask) {
            Some(seat) => self.kv.length(seat),
            None => self.kv.reusable(ask.tokens.len(), |seat| self.seats[seat].common(ask)),
        };
        unread(ask.tokens.len().saturating_sub(held))
    }

    fn draft(
        &mut self,
        _: &mut Target<'_>,
        asks: &[Ask<'_>],
        readable: usize,
        guesses: &mut [Vec<u32>],
    ) -> Result<usize, BackendError> {
        let drafted = self.try_draft(asks, readable, guesses);
        if drafted.is_err() {
            self.forget();
        }
        drafted
    }

    fn idle(&mut self) -> Result<Idle, BackendError> {
        let left = self.program.idle();
        if left.is_err() {
            self.forget();
        }
        left
    }
}
