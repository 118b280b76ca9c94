//! The state of pictures whose rows are wanted, and where it lets prompts be cut.

use std::ops::Range;
use std::sync::Arc;

use super::place::SlotState;
use super::sequence::Sequence;
use crate::kv::KvBooks;
use crate::pictures::{PictureError, WakeSignal};
use crate::request::{PromptPicture, Waker};
use crate::scheduler::Cuts;

/// What an engine knows about the pictures, and the constraints, that it waits for.
pub(super) struct PictureWait {
    pub(super) wake: Arc<WakeSignal>,
    /// Rings it.
    pub(super) waker: Waker,
    /// Columns of the rows of pictures.
    pub(super) columns: usize,
    /// Whether the last step could do nothing until another thread is done.
    pub(super) is_stalled: bool,
}

/// The state of a picture that is wanted.
pub(super) enum PictureState {
    Waits,
    Ready,
    Failed(PictureError),
}

impl PictureWait {
    pub(super) fn new(columns: usize) -> Self {
        let wake = Arc::new(WakeSignal::default());
        let own = Arc::clone(&wake);
        Self { wake, waker: Arc::new(move || own.ring()), columns, is_stalled: false }
    }

    /// Begins a step, which sees all that was made before.
    pub(super) fn begin(&mut self) {
        self.wake.rest();
        self.is_stalled = false;
    }
}

/// Returns the state of a picture that is wanted.
pub(super) fn state_of(picture: &PromptPicture, columns: usize) -> PictureState {
    let soft_tokens = picture.handle.soft_tokens();
    match picture.handle.rows() {
        None => PictureState::Waits,
        Some(Ok(rows)) if rows.len() == soft_tokens * columns => PictureState::Ready,
        Some(Ok(rows)) => {
            PictureState::Failed(PictureError::OtherRows { found: rows.len(), soft_tokens })
        }
        Some(Err(error)) => PictureState::Failed(error.clone()),
    }
}

/// Where the prompts of running sequences may be cut.
pub(super) struct Borders<'a> {
    pub(super) places: &'a [SlotState],
    pub(super) kv: &'a KvBooks,
    /// Columns of the rows of pictures.
    pub(super) columns: usize,
    /// Whether prompts may go on while rows of theirs are in flight.
    pub(super) follow: bool,
}

impl Borders<'_> {
    fn is_ready(&self, sequence: &Sequence, unit: Range<usize>) -> bool {
        let pictures = sequence.pictures_in(unit);
        pictures
            .iter()
            .all(|picture| matches!(state_of(picture, self.columns), PictureState::Ready))
    }

    /// Returns the sequence of a slot and its length in the cache, if it has pictures.
    fn with_pictures(&self, slot: usize) -> Option<(&Sequence, usize)> {
        let sequence = self.places[slot].running().filter(|own| !own.spans.is_empty())?;
        Some((sequence, self.kv.length(slot)))
    }

    /// Returns the sequence of a slot and the unit that its next row is in, if there is one.
    pub(super) fn next_unit(&self, slot: usize) -> Option<(&Sequence, Range<usize>)> {
        let (sequence, done) = self.with_pictures(slot)?;
        let unit = sequence.spans.units(done..done + 1).next()?;
        Some((sequence, unit))
    }
}

impl Cuts for Borders<'_> {
    fn waits(&self, slot: usize) -> bool {
        self.places[slot].running().is_some_and(|sequence| sequence.is_held)
    }

    /// What waits may begin like a prompt, and go on where the next rows overwrite its rings. And
    /// where pictures may be cut depends on what has landed.
    fn follows(&self, slot: usize) -> bool {
        let has_pictures = |sequence: &Sequence| !sequence.spans.is_empty();
        self.follow && !self.places[slot].running().is_some_and(has_pictures)
    }

    fn most(&self, slot: usize, rows: usize) -> usize {
        let Some((sequence, done)) = self.with_pictures(slot) else { return rows };
        let end = sequence.spans.cut(done + rows);
        let mut units = sequence.spans.units(done..end);
        let waiting = units.find(|unit| !self.is_ready(sequence, unit.clone()));
        waiting.map_or(end, |unit| unit.start) - done
    }

    fn least(&self, slot: usize) -> usize {
        if self.places[slot].running().is_some_and(Sequence::is_ending) {
            return 0;
        }
        match self.next_unit(slot) {
            Some((sequence, unit)) if self.is_ready(sequence, unit.clone()) => unit.len(),
            Some(_) => 0,
            None => 1,
        }
    }
}
