//! Places for work that takes processor time, by how much of it a request may make.

use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::lanes::LIGHT_BYTES;

/// How much work a request may make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Weight {
    /// Texts that people type.
    Light,
    /// Such texts with grammars to be compiled.
    Grammar,
    /// Long conversations.
    Medium,
    /// Whole books.
    Heavy,
    /// Conversations with a few small pictures, which are decoded.
    SmallPictures,
    /// Those with more or larger ones.
    Pictures,
}

/// Most bytes of a body that makes medium work.
pub(crate) const MEDIUM_BYTES: usize = 1 << 20;

impl Weight {
    /// Returns the weight of a body of this size.
    pub(crate) fn of(bytes: usize) -> Self {
        if bytes <= LIGHT_BYTES {
            Self::Light
        } else if bytes <= MEDIUM_BYTES {
            Self::Medium
        } else {
            Self::Heavy
        }
    }
}

/// Places for work that takes processor time. Each weight has its own: light work never waits for
/// heavier work, only heavy work waits for heavy work, only pictures wait for pictures, and small
/// ones not for large ones.
#[derive(Debug)]
pub(crate) struct Workers {
    light: Arc<Semaphore>,
    grammar: Arc<Semaphore>,
    medium: Arc<Semaphore>,
    heavy: Arc<Semaphore>,
    small_pictures: Arc<Semaphore>,
    pictures: Arc<Semaphore>,
}

impl Workers {
    /// Makes `threads` places for each weight, and half as many for heavy work, which leaves
    /// processors to the rest.
    pub(crate) fn new(threads: usize) -> Self {
        let places = |count: usize| Arc::new(Semaphore::new(count.max(1)));
        Self {
            light: places(threads),
            grammar: places(threads),
            medium: places(threads),
            heavy: places(threads / 2),
            small_pictures: places(threads),
            pictures: places(threads),
        }
    }

    pub(crate) fn of(&self, weight: Weight) -> &Arc<Semaphore> {
        match weight {
            Weight::Light => &self.light,
            Weight::Grammar => &self.grammar,
            Weight::Medium => &self.medium,
            Weight::Heavy => &self.heavy,
            Weight::SmallPictures => &self.small_pictures,
            Weight::Pictures => &self.pictures,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn light_work_has_places_of_its_own() {
        let workers = Workers::new(2);
        let take = |weight| Arc::clone(workers.of(weight)).try_acquire_owned();
        let mut taken = Vec::new();
        let others = [
            Weight::Heavy,
            Weight::Medium,
            Weight::Grammar,
            Weight::Pictures,
            Weight::SmallPictures,
        ];
        for weight in others {
            while let Ok(permit) = take(weight) {
                taken.push(permit);
            }
        }
        assert_eq!(taken.len(), 9, "one heavy, two of the others");
        assert!(take(Weight::Light).is_ok());
    }
}
