//! Looks ahead of a reply: what may come after tokens that have not come yet.

use std::collections::VecDeque;

use super::course::{Course, has};
use super::error::GrammarError;

/// The most places that are looked at beyond the present one.
const MOST: usize = 16;

/// The most tokens of all copies of a reply's state together. A state takes up memory, and time to
/// copy, for each token before it.
const COPIED_TOKENS: usize = 16_384;

/// What masks that turn out not to be needed may cost beyond the reply itself, in units of about a
/// nanosecond.
const WASTE: u64 = 100_000_000;

/// A [`Course`], and masks of places that the reply may come to.
///
/// Looking ahead changes nothing of what the reply may say, nor the token and the error with which
/// it ends: a guess is tried on a copy that shares nothing with the course, and that is the
/// course from then on if the guess comes. Where only one token may come, the course itself goes
/// on.
#[derive(Debug)]
pub struct Outlook {
    /// The present place, and those after it, each after one more token. The last has a course.
    places: VecDeque<Place>,
    /// The tokens of the reply.
    length: usize,
    /// What masks after guesses have cost, as far as these guesses have not come.
    wasted: u64,
    /// Courses that are over. To drop them takes time.
    over: Vec<Course>,
}

/// A place in a reply.
#[derive(Debug)]
struct Place {
    /// The token before it.
    token: u32,
    /// What may come here, if that was found out.
    mask: Option<Result<Vec<u32>, GrammarError>>,
    /// What counts as wasted unless the reply comes here.
    cost: u64,
    /// The course here; `None` if only the token of the next place may come, to which it has gone
    /// on.
    course: Option<Course>,
}

impl Outlook {
    /// Begins at the place of a course.
    pub fn new(course: Course) -> Self {
        // No token leads to the first place.
        let place = Place { token: u32::MAX, mask: None, cost: 0, course: Some(course) };
        Self { places: VecDeque::from([place]), length: 0, wasted: 0, over: Vec::new() }
    }

    /// Returns whether there is a grammar. Without one masks cost nothing.
    pub fn has_grammar(&self) -> bool {
        self.mask_words() > 0
    }

    /// Returns whether [`Outlook::look`] has nothing to find out that is sure to be needed, or is
    /// guessed.
    pub fn is_known(&self, guesses: &[u32]) -> bool {
        self.places[0].mask.is_some() && (guesses.is_empty() || self.mask_after(guesses).is_some())
    }

    /// Finds out what may come next, then, as long as `goes_on` says so, what may come after more
    /// and more of the guesses, and after tokens that are the only ones that may come.
    ///
    /// After guesses it ends where a mask was likely to take long, after some that were not needed,
    /// and in very long replies.
    pub fn look(&mut self, guesses: &[u32], goes_on: impl Fn() -> bool) {
        self.over.clear();
        self.find_mask();
        // A guess that differs from the earlier call's.
        let is_other = |&at: &usize| {
            self.places[at - 1].course.is_some()
                && guesses.get(at - 1) != Some(&self.places[at].token)
        };
        let kept = (1..self.places.len()).find(is_other);
        self.places.truncate(kept.unwrap_or(self.places.len()));
        while self.places.len() <= MOST && goes_on() && self.extend(guesses).is_some() {}
    }

    /// Adds the place after the last one. Returns `None` if there is none to add.
    fn extend(&mut self, guesses: &[u32]) -> Option<()> {
        let last = self.places.len() - 1;
        let copies = self.places.iter().filter(|place| place.course.is_some()).count();
        let place = self.places.back_mut()?;
        let mask = place.mask.as_ref()?.as_ref().ok()?;
        let course = place.course.as_mut()?;
        let only = only_token(mask);
        let may_copy = copies * self.length <= COPIED_TOKENS
            && self.wasted <= course.spent().saturating_add(WASTE);
        let guess = guesses.get(last).copied().filter(|&guess| may_copy && has(mask, guess));
        let token = only.or(guess)?;
        if course.is_costly() || course.ends_with(token) {
            return None;
        }
        let before = course.spent();
        let mut next = if only.is_some() {
            // After an error it stays here, where it gives the same error again.
            course.accept(token).ok()?;
            place.course.take()?
        } else {
            let tried = course.copy().and_then(|mut copy| copy.accept(token).map(|()| copy));
            tried.inspect_err(|_| self.wasted = u64::MAX).ok()?
        };
        let mask = next.mask();
        // Only guesses may be wrong.
        let is_sure = self.places.iter().all(|place| place.course.is_none());
        let cost = match &mask {
            _ if is_sure => 0,
            Ok(_) => next.spent().saturating_sub(before),
            Err(_) => u64::MAX,
        };
        self.wasted = self.wasted.saturating_add(cost);
        self.places.push_back(Place { token, mask: Some(mask), cost, course: Some(next) });
        Some(())
    }

    /// Finds out what may come next, unless that is known.
    fn find_mask(&mut self) {
        let place = &mut self.places[0];
        if let (None, Some(course)) = (&place.mask, &mut place.course) {
            place.mask = Some(course.mask());
        }
    }

    /// Writes which tokens may come next to an empty `mask`, which gets up to `words` words, as
    /// [`Course::allowed`] does. It is found out now if it is not known.
    ///
    /// # Errors
    /// As [`Course::allowed`].
    pub fn allowed(&mut self, words: usize, mask: &mut Vec<u32>) -> Result<(), GrammarError> {
        match &mut self.places[0] {
            Place { course: Some(course), .. } if course.mask_words() == 0 => {
                mask.resize(words, 0);
                course.allowed(mask)
            }
            _ => {
                self.find_mask();
                let found = self.places[0].mask.as_ref();
                write(found.unwrap_or(&Err(GrammarError::Finished)), words, mask)
            }
        }
    }

    /// Does the same for the place after guesses. Returns false if that is not known.
    pub fn allowed_after(&self, guesses: &[u32], words: usize, mask: &mut Vec<u32>) -> bool {
        match &self.places[0].course {
            Some(course) if course.mask_words() == 0 => {
                mask.resize(words, 0);
                let copy = course.copy().and_then(|mut copy| {
                    guesses.iter().try_for_each(|&guess| copy.accept(guess))?;
                    copy.allowed(mask)
                });
                copy.is_ok()
            }
            _ => self.mask_after(guesses).is_some_and(|found| write(found, words, mask).is_ok()),
        }
    }

    /// Returns the mask after tokens, if it is known.
    fn mask_after(&self, tokens: &[u32]) -> Option<&Result<Vec<u32>, GrammarError>> {
        let places = self.places.iter().skip(1).map(|place| &place.token);
        let place = self.places.get(tokens.len())?;
        place.mask.as_ref().filter(|_| places.zip(tokens).all(|(place, token)| place == token))
    }

    /// Takes the chosen token.
    ///
    /// # Errors
    /// As [`Course::accept`].
    pub fn accept(&mut self, token: u32) -> Result<(), GrammarError> {
        self.length += 1;
        if self.places.get(1).is_some_and(|next| next.token == token) {
            let left = self.places.pop_front().and_then(|place| place.course);
            self.wasted = self.wasted.saturating_sub(std::mem::take(&mut self.places[0].cost));
            let next = self.places.iter_mut().find_map(|place| place.course.as_mut());
            if let (Some(mut left), Some(next)) = (left, next) {
                next.succeed(&mut left);
                self.over.push(left);
            }
            return Ok(());
        }
        let course = self.places[0].course.take();
        let mut course = course.ok_or(GrammarError::TokenRefused { token })?;
        self.over.extend(self.places.drain(..).filter_map(|place| place.course));
        let accepted = course.accept(token);
        self.places.push_back(Place { token, mask: None, cost: 0, course: Some(course) });
        accepted
    }

    /// Returns how many of these tokens, from the first on, [`Outlook::accept`] would take one
    /// after the other, or fewer: none where masks are likely to take long. Changes nothing.
    pub fn follow(&mut self, tokens: &[u32]) -> usize {
        let mut taken = 0;
        while self.places[taken].course.is_none() {
            if tokens.get(taken) != Some(&self.places[taken + 1].token) {
                return taken;
            }
            taken += 1;
        }
        match &mut self.places[taken].course {
            Some(course) if !course.is_costly() => taken + course.follow(&tokens[taken..]),
            _ => taken,
        }
    }

    /// Returns the number of words of 32 tokens that a mask needs, as [`Course::mask_words`] does.
    pub fn mask_words(&self) -> usize {
        self.places.iter().find_map(|place| place.course.as_ref()).map_or(0, Course::mask_words)
    }

    /// Returns whether it is likely to take long, about a millisecond or more, to find out what may
    /// come next.
    pub fn is_costly(&self) -> bool {
        let Place { mask, course, .. } = &self.places[0];
        mask.is_none() && course.as_ref().is_some_and(Course::is_costly)
    }
}

/// Writes a mask that was found to an empty one of up to `words` words.
fn write(
    found: &Result<Vec<u32>, GrammarError>,
    words: usize,
    mask: &mut Vec<u32>,
) -> Result<(), GrammarError> {
    let found = found.as_ref().map_err(Clone::clone)?;
    if found.len() > words {
        return Err(GrammarError::MaskSize { words, needed: found.len() });
    }
    mask.extend_from_slice(found);
    Ok(())
}

/// Returns the token whose bit is set, if it is the only one.
fn only_token(mask: &[u32]) -> Option<u32> {
    let mut set = (0..).zip(mask).filter(|&(_, &word)| word != 0);
    let (index, word) = set.next()?;
    let is_only = word.is_power_of_two() && set.next().is_none();
    is_only.then(|| index * 32 + word.trailing_zeros())
}
