//! Combines the hidden states of a text's positions into one vector for the text.

/// Which hidden states make the vector of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Pooling {
    /// The mean over all positions, including the first one (`<bos>`).
    #[default]
    Mean,
    /// The hidden state of the last position, the only one that has seen the whole text.
    Last,
}

impl Pooling {
    /// Parses `mean` or `last`.
    pub fn parse(name: &str) -> Option<Self> {
        [Pooling::Mean, Pooling::Last].into_iter().find(|pooling| pooling.name() == name)
    }

    /// Returns the name, as `parse` reads it.
    pub fn name(self) -> &'static str {
        match self {
            Pooling::Mean => "mean",
            Pooling::Last => "last",
        }
    }
}

/// The vector of one text while its positions are run: as many elements as the model's hidden size.
///
/// Positions are added one after another in f64, so the vector does not depend on the pieces in
/// which a text is run.
#[derive(Debug)]
pub(crate) struct Pool {
    pooling: Pooling,
    /// (hidden)
    sum: Vec<f64>,
}

impl Pool {
    /// Creates an empty one.
    pub(crate) fn new(pooling: Pooling, dimensions: usize) -> Self {
        Self { pooling, sum: vec![0.0; dimensions] }
    }

    /// Returns whether the hidden state of every position is needed.
    pub(crate) fn needs_all(&self) -> bool {
        self.pooling == Pooling::Mean
    }

    /// Adds the hidden state of a position, (hidden). Positions must come in order; position 0
    /// begins a new text.
    pub(crate) fn add(&mut self, position: usize, row: &[f32]) {
        let goes_on = self.pooling == Pooling::Mean && position > 0;
        for (sum, &value) in self.sum.iter_mut().zip(row) {
            *sum = if goes_on { *sum + f64::from(value) } else { f64::from(value) };
        }
    }

    /// Returns the vector, scaled to length 1 (Euclidean norm), so that the divisor of the mean
    /// cancels. Returns `None` if it is not finite.
    pub(crate) fn vector(&self) -> Option<Vec<f32>> {
        let length = self.sum.iter().map(|value| value * value).sum::<f64>().sqrt();
        if !length.is_finite() {
            return None;
        }
        // Only a vector of zeros has no direction; it stays zero.
        let divisor = if length > 0.0 { length } else { 1.0 };
        Some(self.sum.iter().map(|value| (value / divisor) as f32).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vector(pooling: Pooling, rows: &[[f32; 2]]) -> Option<Vec<f32>> {
        let mut pool = Pool::new(pooling, 2);
        rows.iter().enumerate().for_each(|(position, row)| pool.add(position, row));
        pool.vector()
    }

    #[test]
    fn vectors_have_the_direction_of_the_mean_or_of_the_last_row_and_length_one() {
        let rows = [[9.0, -3.0], [-2.0, 7.0], [-4.0, 0.0]];
        assert_eq!(vector(Pooling::Mean, &rows), Some(vec![0.6, 0.8]));
        assert_eq!(vector(Pooling::Last, &rows), Some(vec![-1.0, 0.0]));
        assert_eq!(vector(Pooling::Mean, &[[0.0, 0.0]]), Some(vec![0.0, 0.0]));
        assert_eq!(vector(Pooling::Mean, &[[f32::MAX, f32::MAX]; 3]), Some(vec![0.5f32.sqrt(); 2]));
    }

    #[test]
    fn a_text_that_is_run_again_begins_anew() {
        let mut pool = Pool::new(Pooling::Mean, 2);
        for position in 0..5 {
            pool.add(position, &[f32::NAN, 1.0]);
        }
        assert_eq!(pool.vector(), None);
        pool.add(0, &[3.0, 4.0]);
        assert_eq!(pool.vector(), Some(vec![0.6, 0.8]));
    }

    #[test]
    fn what_is_not_finite_is_no_vector() {
        for broken in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert_eq!(vector(Pooling::Mean, &[[1.0, broken], [1.0, 1.0]]), None);
            assert_eq!(vector(Pooling::Last, &[[1.0, 1.0], [broken, 1.0]]), None);
        }
    }

    #[test]
    fn names_are_read() {
        for pooling in [Pooling::Mean, Pooling::Last] {
            assert_eq!(Pooling::parse(pooling.name()), Some(pooling));
        }
        assert_eq!(Pooling::parse("cls"), None);
    }
}
