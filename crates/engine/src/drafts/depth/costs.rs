//! Seconds by size: of steps by their rows, of passes by their sequences.

/// The weight of the latest time in the average of its size, once there are more than this many.
const LATEST: f64 = 0.1;
/// A time counts as at most this many times the average and at least one of so many parts of it.
const OUTLIER: f64 = 1.25;
/// The times in a row beyond the same bound after which the latest counts as it is: what the average
/// was made of holds no more.
const CHANGED: i8 = 3;
/// The notes after which a size that was not noted follows smaller ones in full, and hardly counts
/// beside a new time of its own.
const STALE: f64 = 64.0;
/// The notes after which the time of a size is forgotten while smaller ones are noted, so that it is
/// tried again.
const FORGOTTEN: u64 = 4096;
/// What the time of a size counts for after its first notes, because the first ones are often too
/// long, and a size that seems too slow is not tried again.
const FIRST: [f64; 2] = [0.8, 0.9];
/// The factor by which a try is larger than what is known.
const GROWTH: f64 = 1.5;

/// Average times by size.
#[derive(Debug)]
pub(crate) struct Costs {
    /// By size.
    times: Vec<Time>,
    /// By size: the time that is taken for it.
    curve: Vec<f64>,
    /// The number of times that were noted.
    notes: u64,
    /// Blocks of neighbours whose times are joined; kept for its memory.
    blocks: Vec<Block>,
}

/// What is known about a size.
#[derive(Debug, Clone, Copy, Default)]
struct Time {
    seconds: f64,
    /// The number of times in the average; 0 if nothing is known.
    count: u32,
    /// The note that was the last one of this size.
    last: u64,
    /// The latest times in a row that were too long, or, negative, too short to count as they are.
    outliers: i8,
}

impl Time {
    /// Takes another time into the average.
    fn note(&mut self, seconds: f64, now: u64) {
        // Of what was noted long ago, only a little is known.
        let is_stale = (now - self.last) as f64 > STALE;
        let count = if is_stale { self.count.min(1) } else { self.count };
        let is_early = (count as usize) <= FIRST.len();
        self.last = now;
        self.outliers = if seconds > self.seconds * OUTLIER {
            self.outliers.max(0) + 1
        } else if seconds < self.seconds / OUTLIER {
            self.outliers.min(0) - 1
        } else {
            0
        };
        if count == 0 || self.outliers.abs() >= CHANGED {
            *self = Self { seconds, count: 1, last: now, outliers: 0 };
            return;
        }
        self.count = count.saturating_add(1);
        if is_early && seconds < self.seconds {
            self.seconds = seconds;
            return;
        }
        let bounded = seconds.clamp(self.seconds / OUTLIER, self.seconds * OUTLIER);
        let weight = (1.0 / f64::from(self.count)).max(LATEST);
        self.seconds += weight * (bounded - self.seconds);
    }
}

/// Sizes in a row that are taken to have the same time.
#[derive(Debug, Clone, Copy)]
struct Block {
    first: usize,
    last: usize,
    seconds: f64,
    weight: f64,
}

impl Costs {
    /// Creates one for sizes up to `most`.
    pub(crate) fn new(most: usize) -> Self {
        Self {
            times: vec![Time::default(); most + 1],
            curve: vec![0.0; most + 1],
            notes: 0,
            blocks: Vec::with_capacity(most + 1),
        }
    }

    /// Learns from something of this size. Ignores sizes out of range and times that are none.
    pub(crate) fn note(&mut self, size: usize, seconds: f64) {
        let is_time = seconds.is_finite() && seconds > 0.0;
        if size == 0 || size >= self.times.len() || !is_time {
            return;
        }
        self.notes += 1;
        let before = self.times[size];
        self.times[size].note(seconds, self.notes);
        if before.count > 0 {
            self.carry_over(size, self.times[size].seconds / before.seconds);
        }
        self.draw();
    }

    /// Lets larger sizes that were not noted for a while follow the change of one that was: most
    /// changes, such as longer contexts, are common to all.
    fn carry_over(&mut self, size: usize, ratio: f64) {
        let now = self.notes;
        for time in &mut self.times[size + 1..] {
            let age = now - time.last;
            if age > FORGOTTEN {
                time.count = 0;
            }
            time.seconds *= 1.0 + (ratio - 1.0) * (age as f64 / STALE).min(1.0);
        }
    }

    /// Computes the curve: joins neighbours of which the smaller takes longer, and puts straight
    /// lines between what is known. Smaller sizes than those take the time of the smallest, larger
    /// ones that of the largest.
    fn draw(&mut self) {
        self.blocks.clear();
        let known = self.times.iter().enumerate().filter(|(_, time)| time.count > 0);
        for (size, time) in known {
            let early = FIRST.get(time.count as usize - 1).copied().unwrap_or(1.0);
            let weight = f64::from(time.count).min(1.0 / LATEST);
            let mut block =
                Block { first: size, last: size, seconds: time.seconds * early, weight };
            while let Some(before) = self.blocks.pop_if(|before| before.seconds > block.seconds) {
                let weight = before.weight + block.weight;
                let seconds = before.seconds * before.weight + block.seconds * block.weight;
                block = Block {
                    first: before.first,
                    last: block.last,
                    seconds: seconds / weight,
                    weight,
                };
            }
            self.blocks.push(block);
        }
        let Some(first) = self.blocks.first() else { return };
        let mut left = (first.first, first.seconds);
        self.curve[1..=first.first].fill(first.seconds);
        for block in &self.blocks {
            let span = (block.first - left.0).max(1) as f64;
            for size in left.0 + 1..block.first {
                let part = (size - left.0) as f64 / span;
                self.curve[size] = left.1 + part * (block.seconds - left.1);
            }
            self.curve[block.first..=block.last].fill(block.seconds);
            left = (block.last, block.seconds);
        }
        self.curve[left.0..].fill(left.1);
    }

    /// Returns the seconds that something of this size takes, never less than something smaller. A
    /// size beyond all that were noted is taken to last as long as the largest of them, so that it
    /// is tried. 0 for size 0, and while nothing was noted.
    pub(crate) fn of(&self, size: usize) -> f64 {
        self.curve[size.min(self.curve.len() - 1)]
    }

    /// Returns the largest size that should be tried if one of size `from` is certain: half as large
    /// again as what was noted, because it may last much longer.
    pub(crate) fn reach(&self, from: usize) -> usize {
        let largest = self.blocks.last().map_or(0, |block| block.last).max(from);
        ((largest as f64 * GROWTH) as usize).max(largest + 1).min(self.times.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn noted(times: &[(usize, f64)], often: usize) -> Costs {
        let mut costs = Costs::new(16);
        for _ in 0..often {
            times.iter().for_each(|&(size, seconds)| costs.note(size, seconds));
        }
        costs
    }

    #[test]
    fn what_lies_between_is_interpolated_and_what_lies_beyond_is_tried() {
        let costs = noted(&[(2, 1.0), (4, 2.0), (8, 10.0)], 5);
        let expected = [
            (0, 0.0),
            (1, 1.0),
            (2, 1.0),
            (3, 1.5),
            (4, 2.0),
            (5, 4.0),
            (7, 8.0),
            (8, 10.0),
            (9, 10.0),
            (16, 10.0),
            (99, 10.0),
        ];
        for (size, seconds) in expected {
            assert!((costs.of(size) - seconds).abs() < 1e-9, "{size}: {}", costs.of(size));
        }
        assert_eq!((costs.reach(2), costs.reach(15), costs.reach(16)), (12, 16, 16));
        let new = Costs::new(16);
        assert_eq!((new.of(3), new.reach(1), new.reach(4)), (0.0, 2, 6));
    }

    #[test]
    fn first_times_count_as_shorter() {
        for (often, expected) in [(1, 0.8), (2, 0.9), (3, 1.0)] {
            assert!((noted(&[(4, 1.0)], often).of(4) - expected).abs() < 1e-9);
        }
        // A slow first run is corrected by the next one.
        let mut costs = noted(&[(4, 1.5)], 1);
        (0..2).for_each(|_| costs.note(4, 1.0));
        assert!((costs.of(4) - 1.0).abs() < 1e-9, "{}", costs.of(4));
    }

    #[test]
    fn outliers_hardly_count() {
        for outlier in [1000.0, 1e-9] {
            let mut costs = noted(&[(4, 1.0)], 20);
            for _ in 0..20 {
                costs.note(4, outlier);
                costs.note(4, outlier);
                costs.note(4, 1.0);
            }
            assert!((costs.of(4) - 1.0).abs() < 0.5, "{outlier}: {}", costs.of(4));
        }
        let mut costs = noted(&[(4, 1.0)], 20);
        (0..5).for_each(|_| costs.note(4, 7.0));
        assert!((costs.of(4) - 7.0).abs() < 1e-9, "a change is none: {}", costs.of(4));
    }

    #[test]
    fn what_is_no_time_changes_nothing() {
        let mut costs = noted(&[(4, 1.0)], 20);
        for seconds in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -1.0] {
            costs.note(4, seconds);
        }
        costs.note(0, 1.0);
        costs.note(17, 1.0);
        assert!((costs.of(4) - 1.0).abs() < 1e-9);
        assert_eq!(costs.of(0), 0.0);
    }

    #[test]
    fn sizes_that_were_not_noted_follow() {
        let mut costs = noted(&[(1, 1.0), (4, 2.0)], 20);
        (0..200).for_each(|_| costs.note(1, 3.0));
        assert!((costs.of(1) - 3.0).abs() < 0.01, "{}", costs.of(1));
        assert!((costs.of(4) - 6.0).abs() < 1.0, "{}", costs.of(4));
        // Those that were are measured for themselves.
        for _ in 0..200 {
            costs.note(1, 1.0);
            costs.note(4, 3.0);
        }
        assert!((costs.of(1) - 1.0).abs() < 0.05, "{}", costs.of(1));
        assert!((costs.of(4) - 3.0).abs() < 0.15, "{}", costs.of(4));
    }

    #[test]
    fn a_size_is_tried_again_after_a_long_time() {
        let mut costs = noted(&[(1, 1.0), (4, 9.0)], 20);
        (0..FORGOTTEN - 100).for_each(|_| costs.note(1, 1.0));
        assert!((costs.of(4) - 9.0).abs() < 1e-6);
        (0..200).for_each(|_| costs.note(1, 1.0));
        assert!((costs.of(4) - 1.0).abs() < 1e-6, "{}", costs.of(4));
        assert_eq!(costs.reach(1), 2);
    }

    proptest! {
        #[test]
        fn it_never_falls_and_stays_within_what_was_noted(
            notes in vec((0..20_usize, prop_oneof![1e-4..1.0, Just(f64::NAN), Just(0.0)]), 1..200),
        ) {
            let mut costs = Costs::new(16);
            for (size, seconds) in notes {
                costs.note(size, seconds);
                let curve: Vec<f64> = (0..=16).map(|size| costs.of(size)).collect();
                prop_assert!(curve.iter().all(|seconds| seconds.is_finite() && *seconds >= 0.0));
                let falls = curve.windows(2).any(|pair| pair[1] < pair[0] * (1.0 - 1e-12));
                prop_assert!(!falls, "{:?}", curve);
                prop_assert_eq!(curve[1] == 0.0, costs.notes == 0);
            }
        }
    }
}
