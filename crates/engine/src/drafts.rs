//! Guesses of the tokens that follow, for a step to verify several at once
//! (`docs/decisions/034-drafts.md`).

pub(crate) mod depth;
pub(crate) mod kinds;
pub(crate) mod lookup;
mod model;
mod reading;

use trine_backend::{BackendError, Idle, Program};

use crate::events::SequenceId;
use crate::kv::KvBooks;
use crate::sampling::SamplerState;
use crate::scope::Scope;
pub use model::ModelDrafter;
pub use reading::ReadingDrafter;

/// The most guesses for a sequence in a step.
pub const GUESSES_MAX: usize = 15;

/// A running sequence whose next tokens are to be guessed.
#[derive(Debug, Clone, Copy)]
pub struct Ask<'a> {
    /// Its identifier, which no other request has. Its tokens only ever grow.
    pub id: SequenceId,
    /// Its slot in the model that is drafted for, below the number of slots. No two sequences of a
    /// step share one.
    pub slot: usize,
    /// The requests that may learn from it.
    pub scope: Scope,
    /// Prompt and answer so far, at least one token.
    pub tokens: &'a [u32],
    /// The tokens that end the text. Nothing after one of them is of use.
    pub stop_ids: &'a [u32],
    /// The most guesses wanted, at least one.
    pub most: usize,
    /// The hidden state that the last token was chosen by; empty if the Program's steps give none.
    pub(crate) state: &'a [f32],
    /// How the sequence chooses its tokens.
    pub(crate) sampler: &'a SamplerState,
}

/// The Program that is guessed for, with nothing in flight if it has a goal that drafts.
pub struct Target<'a> {
    pub(crate) program: &'a mut dyn Program,
    pub(crate) kv: &'a KvBooks,
    /// Why a step of it failed, after which the contents of its caches are undefined.
    pub(crate) failure: Option<BackendError>,
}

/// Guesses tokens with a model, which takes time that guesses have to win back.
pub trait Drafter: Send {
    /// Returns for how many sequences it can guess at the same time.
    fn sequences(&self) -> usize {
        usize::MAX
    }

    /// Returns how many guesses it can make for a sequence, at most `ask.most`: 0 if it cannot
    /// serve it, so that it is not asked.
    fn most(&self, ask: &Ask<'_>) -> usize {
        ask.most
    }

    /// Returns how many tokens of a sequence's text have to be read before guesses for it can be
    /// made, beyond those that may come with a draft. 0 for a drafter that keeps nothing of texts.
    fn unread(&self, _ask: &Ask<'_>) -> usize {
        0
    }

    /// Appends guesses for each sequence to the list of its index: at most as many as it asks for,
    /// or none. What it appends decides how fast tokens come, never which. It may run steps of
    /// `target` that write no cache.
    ///
    /// Reads at most `readable` of the tokens that [`unread`](Drafter::unread) counts, and returns
    /// how many it read.
    ///
    /// # Errors
    /// Returns [`BackendError`] if a device failed. It is asked again later, but not after
    /// [`BackendError::Weights`], which stays as it is.
    fn draft(
        &mut self,
        target: &mut Target<'_>,
        asks: &[Ask<'_>],
        readable: usize,
        guesses: &mut [Vec<u32>],
    ) -> Result<usize, BackendError>;

    /// Does a short piece of work that no draft needs, as [`Program::idle`] does.
    ///
    /// # Errors
    /// Returns [`BackendError`] if a device failed.
    ///
    /// [`Program::idle`]: trine_backend::Program::idle
    fn idle(&mut self) -> Result<Idle, BackendError> {
        Ok(Idle::Done)
    }
}

/// What an engine guesses with.
#[derive(Default)]
pub struct Drafts {
    /// Whether it looks for the last tokens in the sequence itself and in earlier answers.
    pub lookup: bool,
    /// A model that guesses where nothing is found, or where its guesses are right more often.
    pub drafter: Option<Box<dyn Drafter>>,
}
