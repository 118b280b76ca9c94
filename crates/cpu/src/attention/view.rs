//! The places of a sequence's positions in a cache.

use std::ops::Range;

use super::BLOCK;

/// Maps the positions of one sequence to the positions of a layer's cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheView<'a> {
    /// Blocks of [`BLOCK`] positions: position `p` is at `table[p / BLOCK] * BLOCK + p % BLOCK`.
    Paged {
        /// The sequence's blocks in order.
        table: &'a [u32],
    },
    /// A ring: position `p` is at `slot * length + p % length`.
    Ring {
        /// The index of the ring in the cache.
        slot: usize,
        /// Positions of each ring.
        length: usize,
    },
}

/// Positions of a sequence that are adjacent in the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// First position in the sequence.
    pub position: usize,
    /// The place of the first position in the cache.
    pub index: usize,
    /// Number of positions.
    pub count: usize,
}

impl<'a> CacheView<'a> {
    /// Returns the place of `position` in the cache; `None` beyond the block table.
    pub fn locate(&self, position: usize) -> Option<usize> {
        match *self {
            CacheView::Paged { table } => {
                table.get(position / BLOCK).map(|&block| block as usize * BLOCK + position % BLOCK)
            }
            CacheView::Ring { slot, length } => Some(slot * length + position % length),
        }
    }

    /// Returns the longest contiguous run of positions that starts at the start of `range` and
    /// stays in it.
    pub fn run(&self, range: Range<usize>) -> Option<Run> {
        let position = range.start;
        let limit = range.len();
        let index = self.locate(position)?;
        let count = match *self {
            CacheView::Ring { length, .. } => limit.min(length - position % length),
            CacheView::Paged { table } => {
                let mut count = BLOCK - position % BLOCK;
                let mut block = position / BLOCK;
                while count < limit
                    && table
                        .get(block + 1)
                        .is_some_and(|&next| table[block].checked_add(1) == Some(next))
                {
                    block += 1;
                    count += BLOCK;
                }
                count.min(limit)
            }
        };
        (limit > 0).then_some(Run { position, index, count })
    }

    /// Cuts `range` into maximal runs. Ends early where the block table does.
    pub fn runs(self, range: Range<usize>) -> impl Iterator<Item = Run> + 'a {
        let mut rest = range;
        std::iter::from_fn(move || {
            let run = self.run(rest.clone())?;
            rest.start += run.count;
            Some(run)
        })
    }
}
