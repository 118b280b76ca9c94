//! Seconds by size: of steps by their rows, of passes by their sequences.

/// The weight of the latest time in the average of its size, once there are more than this many.
const LATEST: f64 = 0.1;
/// The most by which a time counts as longer or shorter than the average, as a factor.
const OUTLIER: f64 = 1.25;
/// The times in a row beyond the same bound after which the latest counts as it is: what the
/// average was made of holds no more.
const CHANGED: i8 = 3;
/// The notes after which a size that was not noted follows smaller ones in full.
const STALE: f64 = 64.0;
/// The notes after which the time of a size is forgotten while smaller ones are noted, so that it
/// is tried again.
const FORGOTTEN: u64 = 1024;
/// The times that the average of a stale size counts for beside a new one.
const STALE_COUNT: u32 = 4;
/// The times of a size of which the shortest counts. First ones are often too long.
const EARLY: u32 = 3;
/// The part of a time that may be chance, divided by the square root of the number of times in the
/// average. A size that seems too slow is not tried again, so that it has the benefit of the doubt.
const CHANCE: f64 = 0.1;
/// The factor by which a try is larger than what is known.
const GROWTH: usize = 2;

/// Average times by size. Sizes up to eight are measured one by one, larger ones in groups of a
/// quarter of an octave, so that each is measured often enough.
#[derive(Debug)]
pub(crate) struct Costs {
    /// The measured times, by group of sizes.
    times: Vec<Time>,
    /// The time that each size is expected to take.
    curve: Vec<f64>,
    /// The number of times that were noted.
    notes: u64,
    /// Groups whose times are joined; kept for its memory.
    blocks: Vec<Block>,
}

/// What is known about a group of sizes.
#[derive(Debug, Clone, Copy, Default)]
struct Time {
    /// The average size.
    size: f64,
    seconds: f64,
    /// The number of times in the average; 0 if nothing is known.
    count: u32,
    /// The note that was the last one of this group.
    last: u64,
    /// The latest times in a row that were too long, or, negative, too short to count as they are.
    outliers: i8,
}

impl Time {
    /// Takes another time into the average.
    fn note(&mut self, size: f64, seconds: f64, now: u64) {
        // What was noted long ago counts less.
        let is_stale = (now - self.last) as f64 > STALE;
        let count = if is_stale { self.count.min(STALE_COUNT) } else { self.count };
        self.last = now;
        self.outliers = if seconds > self.seconds * OUTLIER {
            self.outliers.max(0) + 1
        } else if seconds < self.seconds / OUTLIER {
            self.outliers.min(0) - 1
        } else {
            0
        };
        if count == 0 || self.outliers.abs() >= CHANGED {
            *self = Self { size, seconds, count: 1, last: now, outliers: 0 };
            return;
        }
        self.count = count.saturating_add(1);
        if self.count <= EARLY && seconds < self.seconds {
            (self.size, self.seconds) = (size, seconds);
            return;
        }
        let bounded = seconds.clamp(self.seconds / OUTLIER, self.seconds * OUTLIER);
        let weight = (1.0 / f64::from(self.count)).max(LATEST);
        self.seconds += weight * (bounded - self.seconds);
        self.size += weight * (size - self.size);
    }
}

/// Groups in a row that are taken to have the same time.
#[derive(Debug, Clone, Copy)]
struct Block {
    /// The average size in the first of them.
    first: f64,
    /// The average size in the last of them.
    last: f64,
    seconds: f64,
    weight: f64,
}

/// Returns the group of a size.
fn group(size: usize) -> usize {
    let Some(octave) = size.saturating_sub(1).checked_ilog2().filter(|&octave| octave >= 3) else {
        return size;
    };
    let in_octave = size - 1 - (1 << octave);
    5 + 4 * (octave as usize - 2) + (in_octave >> (octave - 2))
}

impl Costs {
    /// Creates one for sizes up to `most`.
    pub(crate) fn new(most: usize) -> Self {
        let groups = group(most) + 1;
        Self {
            times: vec![Time::default(); groups],
            curve: vec![0.0; most + 1],
            notes: 0,
            blocks: Vec::with_capacity(groups),
        }
    }

    /// Learns from something of this size. Ignores sizes out of range and times that are none.
    pub(crate) fn note(&mut self, size: usize, seconds: f64) {
        let is_time = seconds.is_finite() && seconds > 0.0;
        if size == 0 || size >= self.curve.len() || !is_time {
            return;
        }
        self.notes += 1;
        let group = group(size);
        let before = self.times[group];
        // The change of the time is not that of the size.
        let expected = self.curve[size];
        self.times[group].note(size as f64, seconds, self.notes);
        self.draw();
        if before.count > 0 {
            self.carry_over(group, self.curve[size] / expected);
            self.draw();
        }
    }

    /// Lets larger sizes that were not noted for a while follow the change of a noted size: most
    /// changes, such as longer contexts, are common to all.
    fn carry_over(&mut self, group: usize, ratio: f64) {
        let now = self.notes;
        for time in &mut self.times[group + 1..] {
            let age = now - time.last;
            if age > FORGOTTEN {
                time.count = 0;
            }
            time.seconds *= 1.0 + (ratio - 1.0) * (age as f64 / STALE).min(1.0);
        }
    }

    /// Computes the curve: joins neighbours of which the smaller takes longer, and puts straight
    /// lines between groups that are known. A size in a group that is not takes the time of the
    /// next smaller one, so that it is tried: times may grow in steps.
    fn draw(&mut self) {
        self.blocks.clear();
        for time in self.times.iter().filter(|time| time.count > 0) {
            let weight = f64::from(time.count).min(1.0 / LATEST);
            let chance = CHANCE / f64::from(time.count).sqrt();
            let (size, seconds) = (time.size, time.seconds * (1.0 - chance));
            let mut block = Block { first: size, last: size, seconds, weight };
            while let Some(before) = self.blocks.pop_if(|before| before.seconds > block.seconds) {
                let weight = before.weight + block.weight;
                let sum = before.seconds * before.weight + block.seconds * block.weight;
                block =
                    Block { first: before.first, last: block.last, seconds: sum / weight, weight };
            }
            self.blocks.push(block);
        }
        let mut blocks = self.blocks.iter();
        let Some(mut left) = blocks.next() else { return };
        let mut right = blocks.next();
        let mut before = left.seconds;
        for (size, seconds) in self.curve.iter_mut().enumerate().skip(1) {
            let is_known = self.times[group(size)].count > 0;
            let size = size as f64;
            while let Some(block) = right.filter(|block| block.first <= size) {
                left = block;
                right = blocks.next();
            }
            let part = right.map_or(0.0, |right| (size - left.last) / (right.first - left.last));
            let rise = right.map_or(0.0, |right| right.seconds - left.seconds);
            if is_known {
                before = left.seconds + part.clamp(0.0, 1.0) * rise;
            }
            *seconds = before;
        }
    }

    /// Returns the seconds that something of this size takes, never less than something smaller. A
    /// size of which nothing is known is taken to last as long as a smaller one, so that it is
    /// tried. 0 for size 0, and while nothing was noted.
    pub(crate) fn of(&self, size: usize) -> f64 {
        self.curve[size.min(self.curve.len() - 1)]
    }

    /// Returns the number of times that the average of a size's group is made of.
    pub(crate) fn count(&self, size: usize) -> u32 {
        self.times.get(group(size)).map_or(0, |time| time.count)
    }

    /// Returns the largest size about which something is known; 0 for none.
    pub(crate) fn largest(&self) -> usize {
        self.blocks.last().map_or(0, |block| block.last as usize)
    }

    /// Returns the largest size that should be tried if one of size `from` is certain: at most
    /// twice as large as what was noted, because it may last much longer.
    pub(crate) fn reach(&self, from: usize) -> usize {
        let largest = self.largest().max(from);
        (largest * GROWTH).max(1).min(self.curve.len() - 1)
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
    fn what_is_not_known_is_taken_for_short() {
        let known = [(2, 1.0), (4, 2.0), (12, 3.0), (14, 4.0)];
        let costs = noted(&known, 10_000);
        let expected = [
            (1, 1.0),
            (2, 1.0),
            (3, 1.0),
            (4, 2.0),
            (5, 2.0),
            (10, 2.0),
            (11, 2.875),
            (12, 3.0),
            (13, 3.5),
            (14, 4.0),
            (16, 4.0),
            (99, 4.0),
        ];
        for (size, seconds) in expected {
            let ratio = costs.of(size) / seconds;
            assert!((ratio - 1.0).abs() < 0.002, "{size}: {}", costs.of(size));
        }
        assert_eq!((costs.of(0), costs.largest()), (0.0, 14));
        assert_eq!((costs.reach(2), costs.reach(15), costs.reach(16)), (16, 16, 16));
        let new = Costs::new(16);
        assert_eq!((new.of(3), new.reach(1), new.reach(4)), (0.0, 2, 8));
    }

    #[test]
    fn groups_are_quarters_of_octaves() {
        let mut last = [0; 22];
        (0..=64).for_each(|size| last[group(size)] = size);
        let expected =
            [0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 0];
        assert_eq!(last, expected);
        let groups: Vec<usize> = (0..5000).map(group).collect();
        assert!(groups.windows(2).all(|pair| pair[1] == pair[0] || pair[1] == pair[0] + 1));
    }

    #[test]
    fn first_times_count_as_shorter() {
        for (often, expected) in [(1, 0.9), (4, 0.95), (100, 0.99)] {
            assert!((noted(&[(4, 1.0)], often).of(4) - expected).abs() < 1e-9);
        }
        // A slow first run is corrected by the next one.
        let mut costs = noted(&[(4, 1.5)], 1);
        (0..3).for_each(|_| costs.note(4, 1.0));
        assert!((costs.of(4) - 0.95).abs() < 1e-9, "{}", costs.of(4));
    }

    #[test]
    fn outliers_hardly_count() {
        for outlier in [1000.0, 1e-9] {
            let mut costs = noted(&[(4, 1.0)], 20);
            for _ in 0..20 {
                (0..2).for_each(|_| costs.note(4, outlier));
                (0..8).for_each(|_| costs.note(4, 1.0));
            }
            assert!((costs.of(4) - 1.0).abs() < 0.1, "{outlier}: {}", costs.of(4));
        }
        let mut costs = noted(&[(4, 1.0)], 20);
        (0..5).for_each(|_| costs.note(4, 7.0));
        assert!((costs.of(4) - 7.0).abs() < 0.5, "a change is none: {}", costs.of(4));
    }

    #[test]
    fn what_is_no_time_changes_nothing() {
        let mut costs = noted(&[(4, 1.0)], 20);
        let before = costs.of(4);
        for seconds in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -1.0] {
            costs.note(4, seconds);
        }
        costs.note(0, 1.0);
        costs.note(17, 1.0);
        assert_eq!((costs.of(4), costs.of(0)), (before, 0.0));
    }

    #[test]
    fn sizes_that_were_not_noted_follow() {
        let mut costs = noted(&[(1, 1.0), (4, 2.0)], 20);
        (1..=200).for_each(|step| costs.note(1, 1.0 + 0.01 * f64::from(step)));
        assert!((costs.of(1) - 3.0).abs() < 0.11, "{}", costs.of(1));
        assert!((4.5..6.0).contains(&costs.of(4)), "{}", costs.of(4));
        // Those that were are measured for themselves.
        for _ in 0..200 {
            costs.note(1, 1.0);
            costs.note(4, 3.0);
        }
        assert!((costs.of(1) - 1.0).abs() < 0.05, "{}", costs.of(1));
        assert!((costs.of(4) - 3.0).abs() < 0.2, "{}", costs.of(4));
    }

    #[test]
    fn a_size_is_tried_again_after_a_long_time() {
        let mut costs = noted(&[(1, 1.0), (4, 9.0)], 20);
        (0..FORGOTTEN - 100).for_each(|_| costs.note(1, 1.0));
        assert!((costs.of(4) - 9.0).abs() < 0.3);
        (0..200).for_each(|_| costs.note(1, 1.0));
        assert!((costs.of(4) - 1.0).abs() < 0.03, "{}", costs.of(4));
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
