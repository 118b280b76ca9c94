//! What the readers of both file formats imply for Gemma 3n.

/// The distance between global layers.
pub(crate) const PATTERN: usize = 5;
/// The cap of the logits.
pub(crate) const SOFTCAP: f64 = 30.0;
/// The share of the feed-forward's columns that a sparse layer cuts off.
const SPARSITY: f64 = 0.95;
/// The number of sparse layers of a model that has more.
const SPARSE_LAYERS: usize = 10;

/// Returns the cutoff of each layer of a model whose file has none.
pub(crate) fn default_cutoffs(layers: usize) -> Vec<Option<f32>> {
    let sparse = if layers > SPARSE_LAYERS { SPARSE_LAYERS } else { 0 };
    (0..layers).map(|index| (index < sparse).then(|| cutoff(SPARSITY))).collect()
}

/// Returns the number of standard deviations above the mean of a normal distribution below which a
/// share of its values lies, for a share between 0 and 1.
pub(crate) fn cutoff(share: f64) -> f32 {
    let (mut low, mut high) = (-8.0, 8.0);
    for _ in 0..60 {
        let middle = (low + high) / 2.0;
        if share_below(middle) < share {
            low = middle;
        } else {
            high = middle;
        }
    }
    high as f32
}

/// Returns the share of a normal distribution below `x` standard deviations: `1/2 + phi(x) (x +
/// x^3/3 + x^5/15 + ...)`.
fn share_below(x: f64) -> f64 {
    let density = (-x * x / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
    let (mut term, mut sum) = (x, x);
    for odd in 1..100 {
        term *= x * x / f64::from(2 * odd + 1);
        sum += term;
    }
    0.5 + density * sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cutoff_is_a_quantile_of_the_normal_distribution() {
        for (share, expected) in [
            (0.5, 0.0),
            (0.95, 1.644_853_6),
            (0.975, 1.959_964),
            (0.05, -1.644_853_6),
            (0.999_999, 4.753_424),
        ] {
            assert!((cutoff(share) - expected).abs() < 1e-5, "{share}: {}", cutoff(share));
        }
        let sparse = |layers| default_cutoffs(layers).iter().flatten().count();
        assert_eq!([10, 11, 35].map(sparse), [0, 10, 10]);
    }
}
