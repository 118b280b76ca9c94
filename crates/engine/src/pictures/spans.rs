//! Which pictures a sequence has, and where. Pure: it sees places and names.

use std::ops::Range;

use trine_backend::BLOCK;

use super::queue::Name;

/// A picture in a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PictureSpan {
    /// Its first position.
    pub(crate) at: usize,
    /// The position after its last one.
    pub(crate) end: usize,
    pub(crate) name: Name,
}

/// The pictures of a sequence, in order.
///
/// Pictures without a token between them are one *unit*: their rows see one another, so they run in
/// one step, and none is of use without the others.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct PictureSpans {
    pictures: Vec<PictureSpan>,
}

impl PictureSpans {
    /// Creates one without pictures.
    pub(crate) const fn none() -> Self {
        Self { pictures: Vec::new() }
    }

    /// Creates one of pictures in order, none of which is empty or overlaps another.
    pub(crate) fn new(pictures: impl Iterator<Item = PictureSpan>) -> Self {
        Self { pictures: pictures.collect() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pictures.is_empty()
    }

    /// Returns the pictures of the first `length` positions, which end between units.
    pub(crate) fn before(&self, length: usize) -> Self {
        let count = self.pictures.partition_point(|picture| picture.at < length);
        Self { pictures: self.pictures[..count].to_vec() }
    }

    /// Returns the pictures of the units that have a position in a range.
    pub(crate) fn within(&self, range: Range<usize>) -> &[PictureSpan] {
        let mut first = self.pictures.partition_point(|picture| picture.end <= range.start);
        let mut last = self.pictures.partition_point(|picture| picture.at < range.end).max(first);
        if first == last {
            return &[];
        }
        while first > 0 && self.touch(first) {
            first -= 1;
        }
        while last < self.pictures.len() && self.touch(last) {
            last += 1;
        }
        &self.pictures[first..last]
    }

    /// Returns the units that have a position in a range.
    pub(crate) fn units(&self, range: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let touching = |a: &PictureSpan, b: &PictureSpan| a.end == b.at;
        let units = self.within(range).chunk_by(touching);
        units.map(|unit| unit[0].at..unit[unit.len() - 1].end)
    }

    /// Returns the last position up to this one that is not inside a unit.
    pub(crate) fn cut(&self, position: usize) -> usize {
        if position == 0 || self.is_empty() {
            return position;
        }
        let unit = self.units(position - 1..position).next();
        unit.filter(|unit| unit.end > position).map_or(position, |unit| unit.start)
    }

    /// Returns the last position up to this one that is not inside a unit and fills whole blocks.
    pub(crate) fn cut_to_blocks(&self, position: usize) -> usize {
        let mut cut = position;
        loop {
            let whole = cut / BLOCK * BLOCK;
            cut = self.cut(whole);
            if cut == whole {
                return cut;
            }
        }
    }

    /// Returns how many positions two sequences share whose first `common` tokens are the same. The
    /// position after them is inside no unit of either.
    pub(crate) fn common(&self, other: &Self, common: usize) -> usize {
        if self.is_empty() && other.is_empty() {
            return common;
        }
        let pairs = self.pictures.iter().zip(&other.pictures);
        let same = pairs.take_while(|(a, b)| a == b).count();
        let differing = [self, other].into_iter().filter_map(|spans| spans.pictures.get(same));
        let common = differing.map(|picture| picture.at).fold(common, usize::min);
        // Cut for one, it may be inside a unit of the other.
        let mut cut = common;
        loop {
            let next = other.cut(self.cut(cut));
            if next == cut {
                return cut;
            }
            cut = next;
        }
    }

    /// Returns whether a picture is in the same unit as the one before it.
    fn touch(&self, index: usize) -> bool {
        self.pictures[index - 1].end == self.pictures[index].at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spans(pictures: &[(usize, usize, u8)]) -> PictureSpans {
        PictureSpans::new(pictures.iter().map(|&(at, end, name)| PictureSpan {
            at,
            end,
            name: [name; 32],
        }))
    }

    #[test]
    fn no_cut_is_inside_a_unit() {
        let spans = spans(&[(3, 10, 1), (10, 40, 2), (50, 60, 1)]);
        let cuts = [0, 1, 3, 4, 10, 39, 40, 45, 50, 59, 60, 99].map(|at| spans.cut(at));
        assert_eq!(cuts, [0, 1, 3, 3, 3, 3, 40, 45, 50, 50, 60, 99]);
        let whole = [31, 63, 64, 70, 96].map(|at| spans.cut_to_blocks(at));
        assert_eq!(whole, [0, 0, 64, 64, 96]);
        let units = |range| spans.units(range).collect::<Vec<_>>();
        assert_eq!(units(0..3), Vec::new());
        assert_eq!(units(0..4), vec![3..40; 1]);
        assert_eq!(units(20..51), [3..40, 50..60]);
        assert_eq!(units(40..50), Vec::new());
        assert_eq!(units(60..70), Vec::new());
        assert_eq!(spans.within(39..40).len(), 2);
        assert_eq!(spans.before(45).pictures.len(), 2);
        assert_eq!(PictureSpans::default().cut_to_blocks(70), 64);
    }

    #[test]
    fn sequences_share_pictures_whole_and_with_their_neighbours() {
        let own = spans(&[(3, 10, 1), (20, 30, 2)]);
        let check = |other: &[(usize, usize, u8)], common, expected| {
            let other = spans(other);
            assert_eq!(own.common(&other, common), expected);
            assert_eq!(other.common(&own, common), expected);
        };
        check(&[(3, 10, 1), (20, 30, 2)], 50, 50);
        check(&[(3, 10, 1), (20, 30, 2)], 25, 20);
        check(&[(3, 10, 1), (20, 30, 3)], 50, 20);
        check(&[(3, 10, 9), (20, 30, 2)], 50, 3);
        check(&[(3, 10, 1)], 20, 20);
        // Its rows see those of the picture that touches it.
        check(&[(3, 10, 1), (10, 15, 1)], 10, 3);
        check(&[(3, 6, 1), (6, 10, 2)], 10, 3);
        check(&[], 3, 3);
        check(&[], 5, 3);
    }
}
