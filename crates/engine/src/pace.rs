//! Limits the rows of prompts in steps with decoding sequences, so that these are hardly slowed
//! down. Pure: it sees counts and times.
//!
//! With one prompt a step takes less than twice its time without. Several prompts that are read or
//! wait may add more, by the cube of their number. Otherwise a few streams would keep many requests
//! from starting, and requests that do not start do not share steps with others.
//!
//! Several prompts have more than [`USUAL`] rows together only as long as the step stays shorter
//! than [`GAP`].

/// The share of the time of a step without prompts that rows of one prompt may add. With 1 the gap
/// between two tokens would double, and times vary.
const ADDED: f64 = 0.75;
/// The time that several prompts may add grows with this power of their number. With 1 the typical
/// request of a busy server waits longer for its first token than if prompts were read at once
/// (decision 074).
const CROWD: i32 = 3;
/// The weight of the latest step in the average of the steps without prompts.
const LATEST: f64 = 0.2;
/// The bounds of the change after one step.
const CHANGE: std::ops::RangeInclusive<f64> = 0.5..=1.5;
/// The fewest rows of prompts in a step with decoding sequences, because prompts must come to an
/// end.
const LEAST: f64 = 8.0;

/// The longest time between two tokens of a stream for the sake of more rows, in seconds.
const GAP: f64 = 0.1;
/// Rows of prompts that several prompts may have together however long they take.
const USUAL: f64 = 512.0;

/// Adapts the number of rows to the measured times of steps.
#[derive(Debug, Clone)]
pub struct Pace {
    /// The average seconds of a step that only decodes; `None` before the first.
    alone: Option<f64>,
    /// The rows that one prompt may add according to the times. May lie outside the bounds, so that
    /// scaling with the number of streams stays reversible.
    rows: f64,
    most: f64,
    /// The most rows of which a step stays shorter than [`GAP`], according to the times; at least
    /// [`USUAL`].
    short: f64,
}

impl Pace {
    /// Creates the pace for steps of at most `most` rows. It begins with few rows, because the time
    /// of a row is not known yet.
    pub fn new(most: usize) -> Self {
        let most = most.max(1) as f64;
        Self { alone: None, rows: LEAST, most, short: USUAL }
    }

    /// Returns how many rows of prompts, at least one, the next step may have together with
    /// decoding sequences, if `prompts` prompts (at least one) are read or wait.
    pub fn rows(&self, prompts: usize) -> usize {
        let one = self.rows.max(LEAST);
        let all = one * (prompts.max(1) as f64).powi(CROWD);
        all.min(self.short.max(one)).min(self.most) as usize
    }

    /// Learns from a step with these numbers of decoding sequences and rows of prompts.
    pub fn note(&mut self, decodes: usize, prompt_rows: usize, seconds: f64) {
        if decodes == 0 || !seconds.is_finite() || seconds <= 0.0 {
            return;
        }
        let Some(alone) = &mut self.alone else {
            if prompt_rows == 0 {
                self.alone = Some(seconds);
            }
            return;
        };
        if prompt_rows == 0 {
            let before = *alone;
            *alone += LATEST * (seconds - before);
            // The number of streams changes, and with it the time that rows of prompts may take.
            self.rows *= *alone / before;
            return;
        }
        let added = (seconds - *alone).max(*alone * ADDED / 4.0);
        // Few rows say little about many.
        if prompt_rows as f64 >= USUAL.min(self.short / 2.0) {
            let fit = (GAP - *alone).max(0.0) / added * prompt_rows as f64;
            let grown = fit.clamp(self.short * CHANGE.start(), self.short * CHANGE.end());
            self.short = grown.max(USUAL);
        }
        let allowed = *alone * ADDED;
        let rows = prompt_rows as f64 * allowed / added;
        // If few rows cost little, that says nothing about more rows.
        let wanted = self.rows.clamp(LEAST.min(self.most), self.most);
        if added > allowed || prompt_rows as f64 >= wanted.floor() {
            let change = (rows / self.rows).clamp(*CHANGE.start(), *CHANGE.end());
            self.rows *= change;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a pace after steps that take 10 ms and `row` seconds more for each row of `prompts`
    /// prompts.
    fn settled(row: f64, prompts: usize) -> Pace {
        let mut pace = Pace::new(512);
        for turn in 0..100 {
            let rows = if turn % 5 == 0 { 0 } else { pace.rows(prompts) };
            pace.note(4, rows, 0.01 + row * rows as f64);
        }
        pace
    }

    #[test]
    fn prompts_add_less_than_the_step_itself() {
        for row in [3e-5, 1e-4, 5e-4] {
            for prompts in [1, 3] {
                let pace = settled(row, prompts);
                let added = row * pace.rows(1) as f64;
                assert!((0.005..0.01).contains(&added), "{added} s with {row} s a row");
                let of_three = |rows: usize| (27 * rows).min(512);
                let bounds = of_three(pace.rows(1))..=of_three(pace.rows(1) + 1);
                assert!(bounds.contains(&pace.rows(3)), "{} rows of three", pace.rows(3));
            }
        }
    }

    #[test]
    fn it_stays_within_bounds() {
        assert_eq!(settled(1.0, 1).rows(1), 8);
        assert_eq!(settled(1e-9, 1).rows(1), 512);
        let mut narrow = Pace::new(1);
        narrow.note(1, 0, 0.01);
        narrow.note(1, 1, 1.0);
        assert_eq!(narrow.rows(1), 1);
        for seconds in [f64::NAN, f64::INFINITY, 0.0, -1.0] {
            let mut pace = Pace::new(512);
            pace.note(1, 0, seconds);
            pace.note(1, 8, seconds);
            assert_eq!(pace.rows(1), 8);
        }
    }

    #[test]
    fn steps_of_many_rows_stay_short() {
        let settled = |row: f64| {
            let mut pace = Pace::new(4096);
            for turn in 0..200 {
                let rows = if turn % 5 == 0 { 0 } else { pace.rows(16) };
                pace.note(4, rows, 0.01 + row * rows as f64);
            }
            pace.rows(16)
        };
        // Of 90 ms beside the streams.
        for (row, expected) in [(1e-4, 900), (2.2e-5, 4091), (1e-6, 4096), (5e-4, 512)] {
            let found = settled(row);
            assert!(found.abs_diff(expected) <= expected / 50, "{found} rows of {row} s");
        }
    }

    #[test]
    fn streams_that_come_back_find_the_same_room() {
        for row in [3e-3, 1e-4, 1e-6] {
            let mut pace = settled(row, 1);
            let before = pace.rows(1);
            (0..50).for_each(|_| pace.note(1, 0, 0.001));
            (0..100).for_each(|_| pace.note(12, 0, 0.01));
            assert!(pace.rows(1).abs_diff(before) <= 1, "{before} rows, then {}", pace.rows(1));
        }
    }

    #[test]
    fn shorter_steps_leave_room_for_fewer_rows() {
        let mut pace = settled(1e-4, 1);
        let before = pace.rows(1) as f64;
        (0..50).for_each(|_| pace.note(1, 0, 0.005));
        assert!((pace.rows(1) as f64 - before / 2.0).abs() <= 1.0, "{before}: {}", pace.rows(1));
        (0..50).for_each(|_| pace.note(4, 0, 0.01));
        assert!((pace.rows(1) as f64 - before).abs() <= 1.0, "{before}: {}", pace.rows(1));
    }

    #[test]
    fn a_small_prompt_says_nothing_for_large_ones() {
        let mut pace = settled(1e-4, 1);
        let before = pace.rows(1);
        (0..20).for_each(|_| pace.note(4, 2, 0.0101));
        assert_eq!(pace.rows(1), before);
    }
}
