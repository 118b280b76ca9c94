//! Angles of rotary position embedding.

use std::f64;

use trine_model::Rope;

/// The inverse frequencies of one kind of layer, which turn positions into cosines and sines.
///
/// `Rope::frequency` has the formula (Su et al., arXiv 2104.09864). All angles are computed in f64:
/// in f32 a position of 100,000 would leave them wrong in the third decimal.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeTable {
    /// Radians per position, for each pair (head_dim / 2).
    frequencies: Vec<f64>,
}

impl RopeTable {
    /// Computes the frequencies for heads of `head_dim` elements (even).
    pub fn new(head_dim: usize, rope: Rope) -> Self {
        assert!(head_dim.is_multiple_of(2), "rope turns pairs: head_dim {head_dim} is odd");
        let frequencies = (0..head_dim / 2).map(|pair| rope.frequency(pair, head_dim)).collect();
        RopeTable { frequencies }
    }

    /// The number of pairs per head: the length of each row of cosines and sines.
    pub fn pairs(&self) -> usize {
        self.frequencies.len()
    }

    /// Writes the cosines and sines of one position (head_dim / 2 each).
    ///
    /// Costs about 20 ns per pair. A batch needs it once per row and kind of layer, not per layer.
    pub fn fill(&self, position: usize, cosines: &mut [f32], sines: &mut [f32]) {
        assert_eq!(cosines.len(), self.pairs(), "a row of cosines has one entry per pair");
        assert_eq!(sines.len(), self.pairs(), "a row of sines has one entry per pair");
        let outputs = cosines.iter_mut().zip(sines);
        for (frequency, (cosine, sine)) in self.frequencies.iter().zip(outputs) {
            // Reduced to one turn first: the library's own reduction is slower and no better.
            let angle = (position as f64 * frequency) % f64::consts::TAU;
            let (exact_sine, exact_cosine) = angle.sin_cos();
            *cosine = exact_cosine as f32;
            *sine = exact_sine as f32;
        }
    }
}
