//! What the readers of both file formats imply for Gemma 3n.

use crate::config::AttentionKind;

/// The distance between global layers.
pub(crate) const PATTERN: usize = 5;
/// The cap of the logits.
pub(crate) const SOFTCAP: f64 = 30.0;
/// The share of the feed-forward's columns that a sparse layer cuts off.
const SPARSITY: f64 = 0.95;
/// The number of sparse layers of a model that has more.
const SPARSE_LAYERS: usize = 10;

/// Returns the owner of each layer's KV cache if the last `shared` layers have none of their own:
/// the last layer of the same kind before them. Returns `None` if there is no such layer.
pub(crate) fn kv_owners(kinds: &[AttentionKind], shared: usize) -> Option<Vec<usize>> {
    let (owners, sharing) = kinds.split_at(kinds.len().checked_sub(shared)?);
    let owner = |kind: &AttentionKind| owners.iter().rposition(|other| other == kind);
    (0..owners.len()).map(Some).chain(sharing.iter().map(owner)).collect()
}

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

    #[test]
    fn layers_share_the_last_cache_of_their_kind() {
        let (local, global) = (AttentionKind::Local { window: 4 }, AttentionKind::Global);
        let kinds = [local, global, local, local, global, local];
        assert_eq!(kv_owners(&kinds, 0).unwrap(), [0, 1, 2, 3, 4, 5]);
        assert_eq!(kv_owners(&kinds, 2).unwrap(), [0, 1, 2, 3, 1, 3]);
        for impossible in [5, 6, 7] {
            assert_eq!(kv_owners(&kinds, impossible), None, "{impossible}");
        }
    }
}
