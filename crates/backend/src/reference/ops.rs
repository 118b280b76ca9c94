//! One function for each operation, on whole buffers of row-major f32.

use trine_model::{Heads, Rope};

use super::cache::{ReferenceCache, RowPlace};

/// Computes `x / sqrt(mean(x^2) + epsilon) * weight` over each run of `weight.len()` elements: a
/// row, or each head of a row.
pub fn norm(input: &[f32], weight: &[f32], epsilon: f32, output: &mut [f32]) {
    let width = weight.len();
    for (x, y) in input.chunks_exact(width).zip(output.chunks_exact_mut(width)) {
        let squares: f64 = x.iter().map(|&v| f64::from(v) * f64::from(v)).sum();
        let factor = 1.0 / (squares / width as f64 + f64::from(epsilon)).sqrt();
        for ((y, &x), &w) in y.iter_mut().zip(x).zip(weight) {
            *y = (f64::from(x) * factor * f64::from(w)) as f32;
        }
    }
}

/// Applies half-split rotary embedding in place: elements `j` and `j + d/2` of a head rotate
/// together by `position * theta^(-2j/d) / divisor`. `buffer` is (rows, heads x head_dim),
/// `positions` has one entry for each row.
pub fn rotate(buffer: &mut [f32], positions: &[u32], heads: usize, head_dim: usize, rope: Rope) {
    let half = head_dim / 2;
    for (row, &position) in buffer.chunks_exact_mut(heads * head_dim).zip(positions) {
        for head in row.chunks_exact_mut(head_dim) {
            let (low, high) = head.split_at_mut(half);
            for (j, (a, b)) in low.iter_mut().zip(high).enumerate() {
                let (sin, cos) = rotary_angle(position, j, head_dim, rope).sin_cos();
                let (x, y) = (f64::from(*a), f64::from(*b));
                *a = (x * cos - y * sin) as f32;
                *b = (y * cos + x * sin) as f32;
            }
        }
    }
}

/// Returns the angle, in radians, by which pair `pair` of a head rotates at a position.
pub fn rotary_angle(position: u32, pair: usize, head_dim: usize, rope: Rope) -> f64 {
    let exponent = -2.0 * pair as f64 / head_dim as f64;
    f64::from(position) / f64::from(rope.divisor) * f64::from(rope.theta).powf(exponent)
}

/// Computes `output[r][o] = sum_i input[r][i] * weight[o][i]` for one out-feature: `weight` is one
/// row of the matrix, and the result is column `column` of `output`, which is (rows, out_features).
pub fn matmul_column(
    input: &[f32],
    weight: &[f32],
    column: usize,
    out_features: usize,
    output: &mut [f32],
) {
    for (x, y) in input.chunks_exact(weight.len()).zip(output.chunks_exact_mut(out_features)) {
        let sum: f64 = x.iter().zip(weight).map(|(&x, &w)| f64::from(x) * f64::from(w)).sum();
        y[column] = sum as f32;
    }
}

/// Returns `gelu(x) = 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`.
pub fn gelu(x: f64) -> f64 {
    let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
    0.5 * x * (1.0 + inner.tanh())
}

/// Computes `output = gelu(gate) * up`.
pub fn geglu(gate: &[f32], up: &[f32], output: &mut [f32]) {
    for ((y, &g), &u) in output.iter_mut().zip(gate).zip(up) {
        *y = (gelu(f64::from(g)) * f64::from(u)) as f32;
    }
}

/// Computes `target += source`.
pub fn add(source: &[f32], target: &mut [f32]) {
    target.iter_mut().zip(source).for_each(|(t, s)| *t += s);
}

/// Computes `x = cap * tanh(x / cap)`.
pub fn softcap(buffer: &mut [f32], cap: f32) {
    let cap = f64::from(cap);
    buffer.iter_mut().for_each(|x| *x = (cap * (f64::from(*x) / cap).tanh()) as f32);
}

/// What attention needs to know besides queries and keys.
#[derive(Debug, Clone, Copy)]
pub struct Attention {
    /// Head counts and size; query head `h` reads KV head `h / (query / kv)`.
    pub heads: Heads,
    /// Factor on the scores.
    pub scale: f32,
    /// Positions seen, the row's own included; `None` for all.
    pub window: Option<usize>,
}

/// Computes attention of one row: `query` and `output` are (heads, head_dim).
pub fn attend(
    query: &[f32],
    cache: &ReferenceCache,
    place: RowPlace<'_>,
    attention: Attention,
    output: &mut [f32],
) {
    let Heads { query: heads, kv, dim } = attention.heads;
    let first = attention.window.map_or(0, |window| (place.position + 1).saturating_sub(window));
    let last = place.position + place.ahead;
    for head in 0..heads {
        let q = &query[head * dim..(head + 1) * dim];
        let kv_head = head / (heads / kv);
        let score = |position| {
            let key = cache.key(place, position, kv_head);
            let dot: f64 = q.iter().zip(key).map(|(&q, &k)| f64::from(q) * f64::from(k)).sum();
            dot * f64::from(attention.scale)
        };
        let scores: Vec<f64> = (first..=last).map(score).collect();
        let highest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|score| (score - highest).exp()).collect();
        let total: f64 = weights.iter().sum();
        let mut sum = vec![0.0f64; dim];
        for (position, weight) in (first..=last).zip(&weights) {
            let value = cache.value(place, position, kv_head);
            sum.iter_mut().zip(value).for_each(|(s, &v)| *s += weight / total * f64::from(v));
        }
        let out = &mut output[head * dim..(head + 1) * dim];
        out.iter_mut().zip(&sum).for_each(|(o, s)| *o = *s as f32);
    }
}

#[cfg(test)]
mod tests {
    use trine_model::{Cache, KvType, Width};

    use super::*;
    use crate::{ProgramOptions, SequenceView};

    /// Keys of 0 give all positions equal weight, so the result is the mean of the values that a
    /// row sees.
    #[test]
    fn a_row_sees_its_window_itself_and_what_is_ahead() {
        let sequence = SequenceView { slot: 0, blocks: &[0] };
        let heads = Heads { query: 1, kv: 1, dim: 1 };
        for window in [None, Some(1), Some(3), Some(30)] {
            let cache = Cache { layer: 0, window, kv_heads: 1, head_dim: 1 };
            let options = ProgramOptions {
                width: Width { tokens: 20, outputs: 1 },
                kv: KvType::F32,
                context: 20,
                sequences: 1,
                blocks: 1,
            };
            let mut memory = ReferenceCache::new(&cache, &options);
            for position in 0..20 {
                let place = RowPlace { sequence, position, ahead: 0 };
                memory.store(place, &[0.0], &[position as f32]);
            }
            for position in 0..20 {
                for ahead in 0..20 - position {
                    let place = RowPlace { sequence, position, ahead };
                    let mut found = [f32::NAN];
                    let attention = Attention { heads, scale: 1.0, window };
                    attend(&[1.0], &memory, place, attention, &mut found);
                    let before = position.min(window.map_or(usize::MAX, |window| window - 1));
                    let mean = (position - before + position + ahead) as f32 / 2.0;
                    assert!((found[0] - mean).abs() < 1e-5, "{window:?} {position} {ahead}");
                }
            }
        }
    }
}
