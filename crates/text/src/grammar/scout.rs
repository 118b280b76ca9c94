//! Follows tokens that may not come.

use super::error::GrammarError;
use super::library::{failed, has_stopped};

/// The failures of the library after which nothing more is followed.
const FAILURES_MAX: u8 = 3;

/// A copy of a reply's state in the library, on which guesses are tried.
///
/// Guesses may lead to places that the reply never visits. The library counts what it builds there
/// against its limits, and a limit that is exceeded ends a state for good. So it has to be a copy
/// that shares nothing. It is made at the first guesses and takes the reply's tokens from then on.
#[derive(Default)]
pub(super) struct Scout {
    /// `None` before the first guesses and after a failure.
    copy: Option<llguidance::Matcher>,
    /// The reply's tokens that the copy has not taken yet; of no use if there is none.
    behind: Vec<u32>,
    failures: u8,
}

impl Scout {
    /// Takes note of a token of the reply.
    pub(super) fn note(&mut self, token: u32) {
        self.behind.push(token);
    }

    /// Takes over from the scout of an earlier place in the reply, having noted all tokens since.
    pub(super) fn succeed(&mut self, other: &mut Self) {
        self.failures = other.failures;
        self.copy = other.copy.take();
        if self.copy.is_some() {
            self.behind.splice(..0, other.behind.drain(..));
        }
    }

    /// Takes note of a failure.
    pub(super) fn fail(&mut self) {
        self.copy = None;
        self.failures = self.failures.saturating_add(1);
    }

    /// Returns how many tokens of text may follow `state`, one after the other. With `then_end` it
    /// is one more if the reply may end after all of them.
    ///
    /// # Errors
    /// [`GrammarError::Failed`] if the library fails. `state` is as before.
    pub(super) fn follow(
        &mut self,
        state: &llguidance::Matcher,
        text: &[u32],
        then_end: bool,
    ) -> Result<usize, GrammarError> {
        if self.failures >= FAILURES_MAX {
            return Ok(0);
        }
        // After an error or a panic it is not put back.
        let copy = self.copy.take();
        let behind = std::mem::take(&mut self.behind);
        let mut copy = match copy {
            Some(mut copy) => {
                copy.consume_tokens(&behind).map_err(|error| failed(&error))?;
                copy
            }
            None => state.deep_clone(),
        };
        let count = if has_stopped(&copy)? {
            usize::from(text.is_empty() && then_end)
        } else {
            let mut tokens = behind;
            tokens.clear();
            tokens.extend_from_slice(text);
            if then_end {
                let environment = copy.tok_env().map_err(|error| failed(&error))?;
                // All tokens that end a reply are the same to the grammar.
                tokens.push(environment.tok_trie().eos_token());
            }
            let count = copy.validate_tokens(&tokens).map_err(|error| failed(&error))?;
            tokens.clear();
            self.behind = tokens;
            count
        };
        self.copy = Some(copy);
        Ok(count)
    }
}
