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

/// Computes `(x - mean) / sqrt(variance + epsilon) * weight + bias` over rows of `weight.len()`
/// elements, with the variance of the whole population.
pub fn layer_norm(input: &[f32], weight: &[f32], bias: &[f32], epsilon: f32, output: &mut [f32]) {
    let width = weight.len();
    for (x, y) in input.chunks_exact(width).zip(output.chunks_exact_mut(width)) {
        let mean = x.iter().map(|&v| f64::from(v)).sum::<f64>() / width as f64;
        let squares: f64 = x.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum();
        let factor = 1.0 / (squares / width as f64 + f64::from(epsilon)).sqrt();
        for (((y, &x), &w), &b) in y.iter_mut().zip(x).zip(weight).zip(bias) {
            *y = ((f64::from(x) - mean) * factor * f64::from(w) + f64::from(b)) as f32;
        }
    }
}

/// Computes `buffer += weight` over rows of `weight.len()` elements.
pub fn bias(buffer: &mut [f32], weight: &[f32]) {
    for row in buffer.chunks_exact_mut(weight.len()) {
        add(weight, row);
    }
}

/// Computes the sums of a table's entries for the column and the row of each token's place, in a
/// grid of `side` x `side`: those of columns come first. `entry` writes an entry of the table.
pub fn places(
    entry: impl Fn(usize, &mut [f32]),
    tokens: &[u32],
    side: usize,
    columns: usize,
    output: &mut [f32],
) {
    let mut of_row = vec![f32::NAN; columns];
    for (&token, out) in tokens.iter().zip(output.chunks_exact_mut(columns)) {
        let place = token as usize;
        entry(place % side, out);
        entry(side + place / side, &mut of_row);
        add(&of_row, out);
    }
}

/// A rotation by places in a grid.
#[derive(Debug, Clone, Copy)]
pub struct PlaceRotation {
    /// Base of the frequencies.
    pub theta: f32,
    /// Places on a side of the grid.
    pub side: usize,
}

/// Applies [`rotate`] to the halves of each head in place: to the first by the column of the row's
/// place, to the second by its row.
pub fn rotate_places(
    buffer: &mut [f32],
    tokens: &[u32],
    heads: usize,
    head_dim: usize,
    rotation: PlaceRotation,
) {
    let (half, rope) = (head_dim / 2, Rope::full(rotation.theta, 1.0));
    let side = rotation.side as u32;
    for (row, &place) in buffer.chunks_exact_mut(heads * head_dim).zip(tokens) {
        for (index, part) in row.chunks_exact_mut(half).enumerate() {
            let at = if index % 2 == 0 { place % side } else { place / side };
            rotate(part, &[at], 1, half, rope);
        }
    }
}

/// Computes `output = min(max(input, low), high)`, and NaN of what is not finite.
pub fn clamp(input: &[f32], [low, high]: [f32; 2], output: &mut [f32]) {
    let within = |x: f32| if x.is_finite() { x.clamp(low, high) } else { f32::NAN };
    output.iter_mut().zip(input).for_each(|(y, x)| *y = within(*x));
}

/// Computes the means of `count` rows of `columns` values, which begin with the rows `firsts`.
pub fn pool(input: &[f32], firsts: &[u32], count: usize, columns: usize, output: &mut [f32]) {
    for (&first, out) in firsts.iter().zip(output.chunks_exact_mut(columns)) {
        for (column, y) in out.iter_mut().enumerate() {
            let value = |row| f64::from(input[(first as usize + row) * columns + column]);
            *y = ((0..count).map(value).sum::<f64>() / count as f64) as f32;
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
                let place = f64::from(position) + f64::from(rope.shift);
                let angle = place * rope.frequency(j, head_dim);
                let (sin, cos) = angle.sin_cos();
                let (x, y) = (f64::from(*a), f64::from(*b));
                *a = (x * cos - y * sin) as f32;
                *b = (y * cos + x * sin) as f32;
            }
        }
    }
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

/// Computes `x = gelu(x)`.
pub fn gelu_all(buffer: &mut [f32]) {
    buffer.iter_mut().for_each(|x| *x = gelu(f64::from(*x)) as f32);
}

/// Computes `output = gelu(gate) * up`.
pub fn geglu(gate: &[f32], up: &[f32], output: &mut [f32]) {
    for ((y, &g), &u) in output.iter_mut().zip(gate).zip(up) {
        *y = (gelu(f64::from(g)) * f64::from(u)) as f32;
    }
}

/// Puts the columns of parts side by side. Each is (rows, columns) and comes with its columns.
pub fn join(parts: &[(&[f32], usize)], output: &mut [f32]) {
    let width = parts.iter().map(|(_, columns)| columns).sum::<usize>().max(1);
    for (row, output) in output.chunks_exact_mut(width).enumerate() {
        let mut rest = output;
        for (values, columns) in parts {
            let (own, others) = rest.split_at_mut(*columns);
            own.copy_from_slice(&values[row * columns..(row + 1) * columns]);
            rest = others;
        }
    }
}

/// Finds the experts of each row: the numbers of the `used` largest of its `experts` logits, in
/// falling order and of equal ones the smaller number first, and their shares: the softmax over
/// `scale * logit` of these, times their factors. `chosen` and `shares` are (rows, used). A row
/// that holds a NaN has the first experts, and NaN as their shares.
pub fn route(logits: &[f32], factors: &[f32], scale: f32, chosen: &mut [f32], shares: &mut [f32]) {
    let experts = factors.len();
    let rows = logits.len() / experts;
    let used = chosen.len().checked_div(rows).unwrap_or(1).max(1);
    let outputs = chosen.chunks_exact_mut(used).zip(shares.chunks_exact_mut(used));
    for (logits, (chosen, shares)) in logits.chunks_exact(experts).zip(outputs) {
        let mut order: Vec<usize> = (0..experts).collect();
        let is_nan = logits.iter().any(|logit| logit.is_nan());
        if !is_nan {
            let larger = |a: &usize, b: &usize| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b));
            order.sort_by(larger);
        }
        let scaled = |expert: usize| f64::from(scale) * f64::from(logits[expert]);
        let power = |expert: usize| (scaled(expert) - scaled(order[0])).exp();
        let sum: f64 = order[..used].iter().map(|&expert| power(expert)).sum();
        for ((chosen, share), &expert) in chosen.iter_mut().zip(shares).zip(&order) {
            *chosen = expert as f32;
            let own = power(expert) / sum * f64::from(factors[expert]);
            *share = if is_nan { f32::NAN } else { own as f32 };
        }
    }
}

/// The clusters of rows and their products, for [`search`].
#[derive(Debug, Clone, Copy)]
pub struct Searched<'a> {
    /// (rows, used): the clusters of each row.
    pub chosen: &'a [f32],
    /// (rows, used): NaN makes all of a row NaN but its products.
    pub shares: &'a [f32],
    /// (rows, used, cluster size).
    pub products: &'a [f32],
    /// The column of each row of all clusters.
    pub tokens: &'a [f32],
    /// Clusters of a row.
    pub used: usize,
}

/// Puts the products of each row at the columns of its clusters' rows. All other columns are the
/// smallest of the row's products less 1, or NaN if one of its products or shares is.
pub fn search(searched: Searched<'_>, output: &mut [f32]) {
    let Searched { chosen, shares, products, tokens, used } = searched;
    let size = products.len().checked_div(chosen.len()).unwrap_or(1).max(1);
    let rows = chosen.chunks_exact(used).zip(shares.chunks_exact(used));
    let outputs = products.chunks_exact(used * size).zip(output.chunks_exact_mut(tokens.len()));
    for ((chosen, shares), (products, output)) in rows.zip(outputs) {
        let is_broken = products.iter().chain(shares).any(|value| value.is_nan());
        let smallest = products.iter().copied().fold(f32::INFINITY, f32::min);
        output.fill(if is_broken { f32::NAN } else { smallest - 1.0 });
        for (cluster, products) in chosen.iter().zip(products.chunks_exact(size)) {
            let tokens = &tokens[*cluster as usize * size..][..size];
            for (token, product) in tokens.iter().zip(products) {
                output[*token as usize] = *product;
            }
        }
    }
}

/// Computes `target += source`.
pub fn add(source: &[f32], target: &mut [f32]) {
    target.iter_mut().zip(source).for_each(|(t, s)| *t += s);
}

/// Computes `output = sum of factor * values` over the terms.
pub fn sum(terms: &[(f32, &[f32])], output: &mut [f32]) {
    for (index, y) in output.iter_mut().enumerate() {
        let products = terms.iter().map(|&(factor, x)| f64::from(factor) * f64::from(x[index]));
        *y = products.sum::<f64>() as f32;
    }
}

/// Computes `output = input + sum over j of (bias + scale * c[j]) * sources[j]` for one stream,
/// over rows of `columns` values, each with coefficients of its own.
pub fn mix(
    input: &[f32],
    sources: &[&[f32]],
    coefficients: &Coefficients<'_>,
    columns: usize,
    output: &mut [f32],
) {
    for (index, (y, &x)) in output.iter_mut().zip(input).enumerate() {
        let added = sources
            .iter()
            .enumerate()
            .map(|(j, source)| coefficients.factor(index / columns, j) * f64::from(source[index]));
        *y = (f64::from(x) + added.sum::<f64>()) as f32;
    }
}

/// The coefficients of one stream of a mix.
#[derive(Debug, Clone, Copy)]
pub struct Coefficients<'a> {
    /// (rows, width), those of all streams.
    pub values: &'a [f32],
    /// Coefficients of a row.
    pub width: usize,
    /// The stream's first coefficient in a row.
    pub first: usize,
    /// Added to each scaled coefficient.
    pub bias: f32,
    /// Factor on the coefficients.
    pub scale: f32,
}

impl Coefficients<'_> {
    fn factor(&self, row: usize, source: usize) -> f64 {
        let value = self.values[row * self.width + self.first + source];
        f64::from(self.bias) + f64::from(self.scale) * f64::from(value)
    }
}

/// Computes `buffer *= rms(like) / sqrt(max(mean(buffer^2), floor))` over rows of `columns` values.
pub fn rescale(buffer: &mut [f32], like: &[f32], floor: f32, columns: usize) {
    let mean_square =
        |x: &[f32]| x.iter().map(|&v| f64::from(v) * f64::from(v)).sum::<f64>() / columns as f64;
    for (y, x) in buffer.chunks_exact_mut(columns).zip(like.chunks_exact(columns)) {
        let own = mean_square(y);
        // NaN stays NaN.
        let divisor = if own < f64::from(floor) { f64::from(floor) } else { own };
        let factor = (mean_square(x) / divisor).sqrt();
        y.iter_mut().for_each(|y| *y = (f64::from(*y) * factor) as f32);
    }
}

/// Computes `output = input * weight` over rows of `weight.len()` values.
pub fn scale(input: &[f32], weight: &[f32], output: &mut [f32]) {
    for (x, y) in input.chunks_exact(weight.len()).zip(output.chunks_exact_mut(weight.len())) {
        y.iter_mut().zip(x).zip(weight).for_each(|((y, x), w)| *y = x * w);
    }
}

/// Computes `x = max(x - (mean + deviations * std), 0)` over rows of `columns` values, with the
/// standard deviation of the whole population. A row that holds a NaN becomes NaN.
pub fn cutoff(buffer: &mut [f32], deviations: f32, columns: usize) {
    for row in buffer.chunks_exact_mut(columns) {
        let mean = row.iter().map(|&x| f64::from(x)).sum::<f64>() / columns as f64;
        let squares = row.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>();
        let limit = mean + f64::from(deviations) * (squares / columns as f64).sqrt();
        for x in row {
            let above = f64::from(*x) - limit;
            *x = if above < 0.0 { 0.0 } else { above as f32 };
        }
    }
}

/// Computes `x = cap * tanh(x / cap)`, and NaN of what is not finite.
pub fn softcap(buffer: &mut [f32], cap: f32) {
    let cap = f64::from(cap);
    let capped = |x: f32| match x.is_finite() {
        true => (cap * (f64::from(x) / cap).tanh()) as f32,
        false => f32::NAN,
    };
    buffer.iter_mut().for_each(|x| *x = capped(*x));
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
    /// Most of the rows after it that a row sees.
    pub ahead: usize,
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
    let last = place.position + place.ahead.min(attention.ahead);
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
    use trine_model::{Ahead, Cache, KvType, Width};

    use super::*;
    use crate::{ProgramOptions, SequenceView};

    #[test]
    fn a_sum_weighs_its_terms() {
        let mut found = [f32::NAN; 2];
        sum(&[(2.0, &[1.0, -1.0]), (0.5, &[4.0, 8.0])], &mut found);
        assert_eq!(found, [4.0, 2.0]);
        sum(&[(-1.0, &[1.0, f32::NAN])], &mut found);
        assert!(found[0] == -1.0 && found[1].is_nan());
    }

    #[test]
    fn a_search_has_the_products_of_clusters_and_less_elsewhere() {
        let tokens = [4.0, 0.0, 2.0, 5.0, 3.0, 1.0];
        let find = |chosen: &[f32], shares: &[f32], products: &[f32]| {
            let mut found = [f32::NAN; 12];
            let searched = Searched { chosen, shares, products, tokens: &tokens, used: 2 };
            search(searched, &mut found[..3 * chosen.len()]);
            found
        };
        // Clusters 2 and 0 of the first row, 1 and 2 of the second.
        let (chosen, shares) = ([2.0, 0.0, 1.0, 2.0], [0.5; 4]);
        let products = [7.0, -2.0, 5.0, 6.0, -1.0, 3.0, -9.0, 1.0];
        let found = find(&chosen, &shares, &products);
        assert_eq!(found, [6.0, -2.0, -3.0, 7.0, 5.0, -3.0, -10.0, 1.0, -1.0, -9.0, -10.0, 3.0]);
        let broken = find(&chosen[..2], &[0.5, f32::NAN], &products[..4]);
        assert!(broken[2].is_nan() && broken[5].is_nan() && broken[3] == 7.0);
        let broken = find(&chosen[..2], &shares[..2], &[7.0, f32::NAN, 5.0, 6.0]);
        assert!(broken[1].is_nan() && broken[2].is_nan() && broken[3] == 7.0);
    }

    /// Two rows of two columns; two streams of two sources.
    #[test]
    fn a_mix_has_coefficients_for_each_row_stream_and_source() {
        let (input, other) = ([1.0, 2.0, 3.0, 4.0], [10.0, 20.0, 30.0, 40.0]);
        let values = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0];
        let coefficients =
            |first| Coefficients { values: &values, width: 4, first, bias: 1.0, scale: 0.5 };
        let mut found = [f32::NAN; 4];
        mix(&input, &[&input, &other], &coefficients(0), 2, &mut found);
        // Factors (1.5, 2) in the first row, (3.5, 4) in the second.
        assert_eq!(found, [22.5, 45.0, 133.5, 178.0]);
        mix(&other, &[&input, &other], &coefficients(2), 2, &mut found);
        // (2.5, 3) and (4.5, 5).
        assert_eq!(found, [42.5, 85.0, 193.5, 258.0]);
    }

    #[test]
    fn a_row_gets_the_magnitude_of_another() {
        let mut rows = [3.0, 4.0, 0.25, -0.25, f32::NAN, 1.0];
        rescale(&mut rows, &[6.0, 8.0, 1.0, 7.0, 1.0, 1.0], 0.25, 2);
        // The mean square of the second row is below the floor, so it is divided by 0.5.
        assert_eq!(rows[..4], [6.0, 8.0, 2.5, -2.5]);
        assert!(rows[4].is_nan() && rows[5].is_nan());
    }

    #[test]
    fn columns_are_scaled_by_their_own_factors() {
        let mut found = [f32::NAN; 4];
        scale(&[1.0, 2.0, 3.0, 4.0], &[2.0, -1.0], &mut found);
        assert_eq!(found, [2.0, -2.0, 6.0, -4.0]);
    }

    #[test]
    fn a_cutoff_keeps_what_is_far_above_the_mean() {
        // Mean 2, and a standard deviation of sqrt(12) over the population of 4 values.
        let mut rows = [0.0, 0.0, 0.0, 8.0, 1.0, f32::NAN, 1.0, 1.0, 5.0, 5.0, 5.0, 5.0];
        cutoff(&mut rows, 1.0, 4);
        let left = 6.0 - 12.0_f32.sqrt();
        assert_eq!(rows[..3], [0.0; 3]);
        assert!((rows[3] - left).abs() < 1e-6, "{}", rows[3]);
        assert!(rows[4..8].iter().all(|x| x.is_nan()));
        assert_eq!(rows[8..], [0.0; 4]);
        let mut low = [-1.0, 1.0];
        cutoff(&mut low, -2.0, 2);
        assert_eq!(low, [1.0, 3.0]);
    }

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
                    for kind in [Ahead::Nothing, Ahead::All, Ahead::Window] {
                        let mut found = [f32::NAN];
                        let most = kind.most(window);
                        let attention = Attention { heads, scale: 1.0, window, ahead: most };
                        attend(&[1.0], &memory, place, attention, &mut found);
                        let reach = window.map_or(usize::MAX, |window| window - 1);
                        let after = match kind {
                            Ahead::Nothing => 0,
                            Ahead::All => ahead,
                            Ahead::Window => ahead.min(reach),
                        };
                        let before = position.min(reach);
                        let mean = (position - before + position + after) as f32 / 2.0;
                        let what = format!("{kind:?} {window:?} {position} {ahead}");
                        assert!((found[0] - mean).abs() < 1e-5, "{what}");
                    }
                }
            }
        }
    }
}
