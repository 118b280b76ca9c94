//! The tokens that a sequence may draw next.

use trine_backend::sampling::Draw;

use super::Sequence;
use crate::events::Finish;

impl Sequence {
    /// Excludes the tokens that are never chosen, if nothing is excluded yet.
    pub(super) fn allow_all_but_suppressed(&self, vocabulary: usize, draw: &mut Draw) {
        if draw.allowed.is_empty() && !self.sampler.suppressed().is_empty() {
            draw.allowed.resize(vocabulary.div_ceil(32), u32::MAX);
            self.exclude(vocabulary, &mut draw.allowed);
        }
    }

    fn forbids_stop(&self, ahead: usize) -> bool {
        self.statistics.generated_tokens + ahead < self.min_tokens && !self.stop_ids.is_empty()
    }

    /// Writes which tokens may come after `ahead` more than are known, if any but suppressed ones
    /// are excluded; otherwise leaves `allowed` empty. Returns false if that is not known yet.
    pub(super) fn restrict(
        &mut self,
        ahead: usize,
        vocabulary: usize,
        allowed: &mut Vec<u32>,
    ) -> Result<bool, Finish> {
        let forbids_stop = self.forbids_stop(ahead);
        let words = vocabulary.div_ceil(32);
        allowed.clear();
        match &mut self.constraint {
            None if !forbids_stop => return Ok(true),
            None => allowed.resize(words, u32::MAX),
            Some(constraint) if ahead > 0 => {
                if !constraint.allowed_after(ahead, words, allowed) {
                    return Ok(false);
                }
            }
            Some(constraint) => {
                if let Err(error) = constraint.allowed(words, allowed) {
                    tracing::warn!(sequence = %self.id, error, "sequence ended");
                    return Err(Finish::ConstraintFailed);
                }
            }
        }
        allowed.resize(words, 0);
        self.exclude(vocabulary, allowed);
        if forbids_stop {
            forbid(allowed, &self.stop_ids);
        }
        Ok(true)
    }

    /// Clears the bits of tokens that are never chosen, and those beyond the vocabulary.
    fn exclude(&self, vocabulary: usize, allowed: &mut [u32]) {
        if let Some(last) = allowed.last_mut().filter(|_| !vocabulary.is_multiple_of(32)) {
            *last &= (1 << (vocabulary % 32)) - 1;
        }
        for &id in self.sampler.suppressed() {
            if let Some(word) = allowed.get_mut(id as usize / 32) {
                *word &= !(1 << (id % 32));
            }
        }
    }
}

/// Clears the bits of stop ids, unless nothing else is allowed: if a grammar, or what the model's
/// files suppress, allows only the end, the text ends.
fn forbid(allowed: &mut [u32], stop_ids: &[u32]) {
    let bit = |id: u32| (id as usize / 32, 1_u32 << (id % 32));
    let are_set = |&&id: &&u32| {
        let (at, bit) = bit(id);
        allowed.get(at).is_some_and(|word| word & bit != 0)
    };
    let set: Vec<u32> = stop_ids.iter().filter(are_set).copied().collect();
    for &id in &set {
        let (at, bit) = bit(id);
        allowed[at] &= !bit;
    }
    if allowed.iter().all(|&word| word == 0) {
        for &id in &set {
            let (at, bit) = bit(id);
            allowed[at] |= bit;
        }
    }
}
