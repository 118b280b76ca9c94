//! The share of guesses that are right.

/// The trials that count: older ones fade.
const MEMORY: f32 = 24.0;
/// The trials that count in the average of many sequences.
const LONG_MEMORY: f32 = 400.0;
/// The trials that the rate at the start counts for.
const PRIOR: f32 = 4.0;
/// The rate at which the first sequence starts.
const START: f32 = 0.5;

/// The share of right guesses among those whose predecessors were right, for one sequence and one
/// kind of guesses. Follows the text.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Acceptance {
    right: f32,
    tried: f32,
}

impl Acceptance {
    fn starting(rate: f32) -> Self {
        Self { right: PRIOR * rate, tried: PRIOR }
    }

    /// Takes note of a chain of `guessed` guesses of which the first `accepted` were right. Guesses
    /// that were not compared with the text, because it ended before them, do not count as guessed.
    pub(crate) fn note(&mut self, guessed: usize, accepted: usize) {
        self.add(guessed, accepted, MEMORY);
    }

    /// Returns the expected share of right guesses at the next position, if those before it were
    /// right: 0 to 1.
    pub(crate) fn rate(&self) -> f64 {
        f64::from(self.right / self.tried).clamp(0.0, 1.0)
    }

    fn add(&mut self, guessed: usize, accepted: usize, memory: f32) {
        // What comes after a wrong guess was never tried.
        for trial in 0..guessed.min(accepted.saturating_add(1)) {
            let kept = 1.0 - 1.0 / memory;
            self.tried = self.tried * kept + 1.0;
            self.right = self.right * kept + f32::from(u8::from(trial < accepted));
        }
    }
}

/// The acceptance over all sequences: where new ones start.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Average(Acceptance);

impl Default for Average {
    fn default() -> Self {
        Self(Acceptance::starting(START))
    }
}

impl Average {
    /// Takes note of guesses of any sequence, as [`Acceptance::note`] does.
    pub(crate) fn note(&mut self, guessed: usize, accepted: usize) {
        self.0.add(guessed, accepted, LONG_MEMORY);
    }

    /// Returns the acceptance of a sequence that has not guessed yet.
    pub(crate) fn start(&self) -> Acceptance {
        Acceptance::starting(self.0.rate() as f32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settled(guessed: usize, accepted: usize) -> Acceptance {
        let mut acceptance = Average::default().start();
        (0..200).for_each(|_| acceptance.note(guessed, accepted));
        acceptance
    }

    #[test]
    fn it_counts_what_was_tried() {
        for (guessed, accepted, expected) in
            [(1, 0, 0.0), (1, 1, 1.0), (4, 4, 1.0), (4, 0, 0.0), (4, 1, 0.5), (4, 3, 0.75)]
        {
            let rate = settled(guessed, accepted).rate();
            assert!((rate - expected).abs() < 0.03, "{accepted} of {guessed}: {rate}");
        }
        let start = Average::default().start();
        let mut same = start;
        same.note(0, 0);
        assert_eq!((same, start.rate()), (start, 0.5));
        // Numbers that cannot be do no harm.
        same.note(2, usize::MAX);
        assert!((0.5..=1.0).contains(&same.rate()));
    }

    #[test]
    fn it_follows_the_text() {
        let mut acceptance = settled(1, 1);
        (0..24).for_each(|_| acceptance.note(1, 0));
        assert!((0.25..0.45).contains(&acceptance.rate()), "{}", acceptance.rate());
        (0..100).for_each(|_| acceptance.note(1, 0));
        assert!(acceptance.rate() < 0.01, "{}", acceptance.rate());
    }

    #[test]
    fn sequences_start_where_others_are_and_find_their_own_rate_soon() {
        let mut average = Average::default();
        (0..1000).for_each(|_| average.note(1, 0));
        let mut acceptance = average.start();
        assert!(acceptance.rate() < 0.05);
        (0..4).for_each(|_| acceptance.note(1, 1));
        assert!(acceptance.rate() > 0.45, "{}", acceptance.rate());
    }
}
