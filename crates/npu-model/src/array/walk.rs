//! The words of a descriptor, in their order, as runs of consecutive ones.

use trine_npu::descriptor::Dimension;

/// Dimensions of the longest pattern, that of a memory tile.
pub(super) const DIMENSIONS: usize = 4;

/// A place in a pattern of addresses, in words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Walk {
    base: u64,
    words: u64,
    dimensions: [Dimension; DIMENSIONS],
    at: u64,
}

impl Walk {
    /// Begins a pattern of `words` words at `base`.
    pub(super) fn new(base: u64, words: u64, dimensions: [Dimension; DIMENSIONS]) -> Self {
        Self { base, words, dimensions, at: 0 }
    }

    /// Returns how many words are left.
    pub(super) fn left(&self) -> u64 {
        self.words - self.at
    }

    /// Takes up to `words` words, and calls `run` with the address and the number of each run.
    pub(super) fn take<E>(
        &mut self,
        words: usize,
        mut run: impl FnMut(u64, usize) -> Result<(), E>,
    ) -> Result<(), E> {
        let end = self.at + self.left().min(words as u64);
        while self.at < end {
            let length = self.row_left().min(end - self.at);
            run(self.address(), length as usize)?;
            self.at += length;
        }
        Ok(())
    }

    /// Returns the address of the next word.
    fn address(&self) -> u64 {
        let mut index = self.at;
        let mut address = self.base;
        for Dimension { step, wrap } in self.dimensions {
            let wrap = if wrap == 0 { u64::MAX } else { u64::from(wrap) };
            address += index % wrap * u64::from(step);
            index /= wrap;
        }
        address
    }

    /// Returns how many words from the next one on are consecutive within the first dimension.
    fn row_left(&self) -> u64 {
        match self.dimensions[0] {
            Dimension { step: 1, wrap: 0 } => self.left(),
            Dimension { step: 1, wrap } => u64::from(wrap) - self.at % u64::from(wrap),
            _ => 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(mut walk: Walk, pieces: &[usize]) -> Vec<u64> {
        let mut found = Vec::new();
        for piece in pieces {
            let run = |start, words: usize| {
                found.extend(start..start + words as u64);
                Ok::<_, ()>(())
            };
            walk.take(*piece, run).unwrap();
        }
        assert_eq!(walk.left(), 0);
        found
    }

    #[test]
    fn pieces_of_a_pattern_are_the_pattern() {
        let dimension = |step, wrap| Dimension { step, wrap };
        let dimensions = [dimension(1, 2), dimension(10, 3), dimension(100, 2), dimension(1000, 0)];
        let walk = Walk::new(7, 24, dimensions);
        let whole = addresses(walk, &[24]);
        assert_eq!(whole[..7], [7, 8, 17, 18, 27, 28, 107]);
        assert_eq!(whole[12], 1007);
        assert_eq!(addresses(walk, &[1, 4, 0, 7, 100]), whole);
    }

    #[test]
    fn a_dimension_without_end_has_all_words() {
        let unused = [Dimension::UNUSED; DIMENSIONS];
        assert_eq!(addresses(Walk::new(3, 4, unused), &[9]), [3, 4, 5, 6]);
        let mut strided = unused;
        strided[0] = Dimension { step: 5, wrap: 0 };
        assert_eq!(addresses(Walk::new(0, 3, strided), &[9]), [0, 5, 10]);
    }
}
