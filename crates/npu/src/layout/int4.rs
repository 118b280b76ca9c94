//! How the kernel `a16fw4acc32f` has its matrices in memory. Never run on silicon.
//!
//! `C[m, n] = A[m, k] W[k, n] + bias[n]`: A in bf16, W in 4 bits with a zero and a scale in bf16
//! for each group of rows of a column, C in f32. A and C lie row by row; after A come the kernel's
//! parameters. W lies in *sub-volumes* of `group` rows and 128 columns, each of them
//!
//! | bytes | of a sub-volume |
//! |---|---|
//! | 64 | zeros, 4 bits for each column, the even column in the low ones |
//! | 256 | scales |
//! | `group` x 64 | weights, row by row, 4 bits each |
//!
//! Four sub-volumes beside one another, one for each core of a column, come before the four below
//! them. Above the first row of sub-volumes lies one with the bias instead.
//!
//! Source: the host's side of AMD's kernel, `matrix_formatting.h`, `dtype_utils.h` and
//! `qlinear_2.hpp` in `amd/RyzenAI-SW` at 2a3c4afe (MIT).

/// Columns of a sub-volume.
pub const SUBVOLUME_COLUMNS: usize = 128;
/// Rows of A that the kernel works on at a time.
pub const ROWS: usize = 8;
/// Sub-volumes that lie beside one another.
const BESIDE: usize = 4;
/// Columns of C that all cores make at a time.
const PASS_COLUMNS: usize = 16 * SUBVOLUME_COLUMNS;
/// What a sub-volume's size is a multiple of.
const ALIGNMENT: usize = 64;

/// Returns the bytes of a sub-volume of W.
#[must_use]
pub const fn subvolume_bytes(group: usize) -> usize {
    let columns = SUBVOLUME_COLUMNS;
    (columns / 2 + 2 * columns + group * columns / 2).next_multiple_of(ALIGNMENT)
}

/// Returns the bytes of W, (k, n), with the bias.
#[must_use]
pub const fn weight_bytes(k: usize, n: usize, group: usize) -> usize {
    (k / group + 1) * (n / SUBVOLUME_COLUMNS) * subvolume_bytes(group)
}

/// Returns the bytes of the parameters: those of a piece of A.
#[must_use]
pub const fn parameter_bytes(m: usize, group: usize) -> usize {
    (if m < ROWS { m } else { ROWS }) * group * 2
}

/// Returns the number that the bits of a bf16 mean.
#[must_use]
pub const fn to_f32(bits: u16) -> f32 {
    f32::from_bits((bits as u32) << 16)
}

/// Returns the nearest bf16; of two as near the even one. NaN stays NaN.
#[must_use]
pub const fn to_bf16(number: f32) -> u16 {
    let bits = number.to_bits();
    if number.is_nan() {
        return (bits >> 16) as u16 | 0x40;
    }
    (bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

/// Returns the weight that the kernel multiplies with: `(value - zero) * scale`, rounded to bf16.
#[must_use]
pub const fn weight(value: i8, zero: i8, scale: u16) -> f32 {
    to_f32(to_bf16((value - zero) as f32 * to_f32(scale)))
}

/// A matrix of weights in 4 bits. Q4_0 of GGUF has a group of 32 and zeros of 8.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Weights {
    /// Rows, a multiple of the group.
    pub k: usize,
    /// Columns, a multiple of 512.
    pub n: usize,
    /// Rows of a column that share a zero and a scale: 32 or 128.
    pub group: usize,
    /// Weights without signs, 0 to 15: (k, n), row by row.
    pub values: Vec<u8>,
    /// Zeros, 0 to 15: (k / group, n).
    pub zeros: Vec<u8>,
    /// Scales in bf16: (k / group, n).
    pub scales: Vec<u16>,
    /// What is added to each row of the product, in bf16: (n).
    pub bias: Vec<u16>,
}

impl Weights {
    fn check(&self) {
        let Self { k, n, group, values, zeros, scales, bias } = self;
        assert!([32, 128].contains(group) && k.is_multiple_of(*group), "groups of {group} in {k}");
        assert!(n.is_multiple_of(BESIDE * SUBVOLUME_COLUMNS), "{n} columns");
        let groups = k / group * n;
        let counts = (values.len(), zeros.len(), scales.len(), bias.len());
        assert_eq!(counts, (k * n, groups, groups, *n), "an element for each place");
    }

    /// Returns the weight at a place as the kernel multiplies with it.
    #[must_use]
    pub fn at(&self, row: usize, column: usize) -> f32 {
        let group = row / self.group * self.n + column;
        let value = self.values[row * self.n + column];
        weight(value as i8, self.zeros[group] as i8, self.scales[group])
    }

    /// Returns the bytes for the kernel.
    ///
    /// # Panics
    ///
    /// Panics if the counts do not fit the shape, or a weight or zero has more than 4 bits.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        self.check();
        let Self { k, n, group, .. } = *self;
        let mut bytes = vec![0; weight_bytes(k, n, group)];
        let pair = |values: &[u8]| {
            assert!(values[0] < 16 && values[1] < 16, "four bits");
            values[0] | values[1] << 4
        };
        for column in (0..n).step_by(SUBVOLUME_COLUMNS) {
            let columns = column..column + SUBVOLUME_COLUMNS;
            let biases = self.bias[columns.clone()].iter().flat_map(|bias| bias.to_le_bytes());
            let place = &mut bytes[place(k, group, 0, column)..];
            place.iter_mut().zip(biases).for_each(|(to, from)| *to = from);
        }
        for index in 0..k / group {
            for column in (0..n).step_by(SUBVOLUME_COLUMNS) {
                let of = |row: usize| row * n + column..row * n + column + SUBVOLUME_COLUMNS;
                let zeros = self.zeros[of(index)].chunks_exact(2).map(pair);
                let scales = self.scales[of(index)].iter().flat_map(|scale| scale.to_le_bytes());
                let rows = index * group..(index + 1) * group;
                let values = rows.flat_map(|row| self.values[of(row)].chunks_exact(2).map(pair));
                let place = &mut bytes[place(k, group, index + 1, column)..];
                let all = zeros.chain(scales).chain(values);
                place.iter_mut().zip(all).for_each(|(to, from)| *to = from);
            }
        }
        bytes
    }

    /// Returns the weights from the kernel's bytes.
    ///
    /// # Panics
    ///
    /// Panics if the bytes are not as many as the shape takes.
    #[must_use]
    pub fn from_bytes(k: usize, n: usize, group: usize, bytes: &[u8]) -> Self {
        assert_eq!(bytes.len(), weight_bytes(k, n, group), "the bytes of the shape");
        let groups = k / group * n;
        let mut weights = Self {
            k,
            n,
            group,
            values: vec![0; k * n],
            zeros: vec![0; groups],
            scales: vec![0; groups],
            bias: vec![0; n],
        };
        let half = |byte: u8, column: usize| byte >> (4 * (column % 2)) & 15;
        let word = |bytes: &[u8], at: usize| u16::from_le_bytes([bytes[2 * at], bytes[2 * at + 1]]);
        for column in 0..n {
            let within = column % SUBVOLUME_COLUMNS;
            let part = |index| &bytes[place(k, group, index, column)..];
            weights.bias[column] = word(part(0), within);
            for index in 0..k / group {
                let (zeros, rest) = part(index + 1).split_at(SUBVOLUME_COLUMNS / 2);
                let (scales, values) = rest.split_at(2 * SUBVOLUME_COLUMNS);
                weights.zeros[index * n + column] = half(zeros[within / 2], within);
                weights.scales[index * n + column] = word(scales, within);
                for row in 0..group {
                    let byte = values[row * SUBVOLUME_COLUMNS / 2 + within / 2];
                    weights.values[(index * group + row) * n + column] = half(byte, within);
                }
            }
        }
        weights
    }
}

/// Returns where the sub-volume of a column begins that is the `index`-th from above. The first has
/// the bias.
const fn place(k: usize, group: usize, index: usize, column: usize) -> usize {
    let column = column / SUBVOLUME_COLUMNS;
    let rows = k / group + 1;
    let subvolume = column / BESIDE * rows * BESIDE + index * BESIDE + column % BESIDE;
    subvolume * subvolume_bytes(group)
}

/// Returns the bytes of A, (m, k) row by row in bf16, with the parameters for W of `n` columns
/// after it.
///
/// # Panics
///
/// Panics if A has not rows of `k` elements.
#[must_use]
pub fn activations(k: usize, n: usize, group: usize, activations: &[u16]) -> Vec<u8> {
    assert!(activations.len().is_multiple_of(k), "rows of {k} elements");
    let m = activations.len() / k;
    let values = activations.iter().flat_map(|value| value.to_le_bytes());
    values.chain(parameters(m, k, n, group)).collect()
}

/// Returns the kernel's parameters: how often it makes a block of C, how many sub-volumes each
/// takes, rows of A, the group, and whether weights have a sign, which they have not.
#[must_use]
pub fn parameters(m: usize, k: usize, n: usize, group: usize) -> Vec<u8> {
    let rows = m.min(ROWS);
    let numbers = [m / rows * n / PASS_COLUMNS, k / group, rows, group, 0];
    let mut bytes: Vec<u8> =
        numbers.iter().flat_map(|number| (*number as u32).to_le_bytes()).collect();
    bytes.resize(parameter_bytes(m, group), 0);
    bytes
}

/// Returns C, row by row, from the kernel's bytes.
///
/// # Panics
///
/// Panics if the bytes are no whole number of elements.
#[must_use]
pub fn result(bytes: &[u8]) -> Vec<f32> {
    assert!(bytes.len().is_multiple_of(4), "four bytes for each element");
    let words = bytes.chunks_exact(4);
    words.map(|word| f32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect()
}

/// A product in f64, and how far one in f32 may be from it.
#[derive(Debug, Clone, PartialEq)]
pub struct Product {
    /// C, (m, n), row by row.
    pub values: Vec<f64>,
    /// The error that is granted to each element.
    ///
    /// Each of `k` additions in f32 errs by up to half a unit of a sum, which is no larger than the
    /// amounts of all terms together. These are no more than the length of A's row times that of
    /// W's column. Errors have both signs, so that they grow with the root of `k`; sums are smaller
    /// than all amounts, because terms have both signs too. A quarter of that is granted.
    pub tolerances: Vec<f64>,
}

/// Returns the product of A in bf16, (m, k), and the weights that the kernel multiplies with.
///
/// # Panics
///
/// Panics if A has not rows of `k` elements, or a count does not fit the shape of the weights.
#[must_use]
pub fn product(activations: &[u16], weights: &Weights) -> Product {
    weights.check();
    let Weights { k, n, .. } = *weights;
    assert!(activations.len().is_multiple_of(k), "rows of {k} elements");
    let activations: Vec<f64> = activations.iter().map(|it| f64::from(to_f32(*it))).collect();
    let bias: Vec<f64> = weights.bias.iter().map(|bias| f64::from(to_f32(*bias))).collect();
    let mut values = bias.repeat(activations.len() / k);
    let mut squares: Vec<f64> = bias.iter().map(|bias| bias * bias).collect();
    let mut row = vec![0.0; n];
    for inner in 0..k {
        for (at, (weight, square)) in row.iter_mut().zip(&mut squares).enumerate() {
            *weight = f64::from(weights.at(inner, at));
            *square += *weight * *weight;
        }
        for (sums, of) in values.chunks_exact_mut(n).zip(activations.chunks_exact(k)) {
            let value = of[inner];
            sums.iter_mut().zip(&row).for_each(|(sum, weight)| *sum += value * weight);
        }
    }
    let unit = (k as f64).sqrt() / 4.0 * 2.0_f64.powi(-24);
    let tolerances = activations.chunks_exact(k).flat_map(|row| {
        // The bias counts as a weight of the element 1.
        let length = row.iter().fold(1.0, |sum, value| sum + value * value).sqrt();
        squares.iter().map(move |square| unit * length * square.sqrt())
    });
    let tolerances = tolerances.collect();
    Product { values, tolerances }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(k: usize, n: usize, group: usize) -> Weights {
        let mix = |at: usize, by: usize| (at.wrapping_mul(0x9e37_79b9) >> 7) ^ (at / by);
        let nibbles = |count| (0..count).map(|at| (mix(at, n) & 15) as u8).collect();
        Weights {
            k,
            n,
            group,
            values: nibbles(k * n),
            zeros: nibbles(k / group * n),
            scales: (0..k / group * n).map(|at| mix(at, 3) as u16).collect(),
            bias: (0..n).map(|at| mix(at, 5) as u16).collect(),
        }
    }

    #[test]
    fn weights_survive_their_layout() {
        for group in [32, 128] {
            let weights = numbers(256, 1024, group);
            let bytes = weights.to_bytes();
            assert_eq!(Weights::from_bytes(256, 1024, group, &bytes), weights);
        }
    }

    /// The offsets of AMD's host code for a group of 32: a sub-volume has 2368 bytes.
    #[test]
    fn the_first_elements_have_the_places_of_the_format() {
        let mut weights = numbers(64, 1024, 32);
        for part in [&mut weights.values, &mut weights.zeros] {
            part.fill(0);
        }
        weights.scales.fill(0);
        weights.bias.fill(0);
        let plain = weights.to_bytes();
        let changed = |change: &dyn Fn(&mut Weights)| {
            let mut weights = weights.clone();
            change(&mut weights);
            let bytes = weights.to_bytes();
            let places = (0..bytes.len()).filter(|at| bytes[*at] != plain[*at]);
            places.map(|at| (at, bytes[at])).collect::<Vec<_>>()
        };
        assert_eq!(changed(&|it| it.bias[129] = 1), [(2368 + 2, 1)]);
        // Below the four with the bias; zeros, scales, weights.
        let first = 4 * 2368;
        assert_eq!(changed(&|it| it.zeros[3] = 5), [(first + 1, 0x50)]);
        assert_eq!(changed(&|it| it.scales[1] = 7), [(first + 64 + 2, 7)]);
        assert_eq!(changed(&|it| it.values[0] = 9), [(first + 320, 9)]);
        assert_eq!(changed(&|it| it.values[1024 + 1] = 9), [(first + 320 + 64, 0x90)]);
        // The second group of rows, and the fifth sub-volume beside the first.
        assert_eq!(changed(&|it| it.zeros[1024] = 1), [(2 * first, 1)]);
        assert_eq!(changed(&|it| it.zeros[512] = 1), [(3 * first + first, 1)]);
    }

    #[test]
    fn parameters_count_blocks_and_subvolumes() {
        let words = |bytes: Vec<u8>| {
            let words = bytes.chunks_exact(4);
            words.map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect::<Vec<_>>()
        };
        let found = words(parameters(32, 4096, 12288, 128));
        assert_eq!(found[..6], [24, 32, 8, 128, 0, 0]);
        assert_eq!(found.len(), 512);
        let found = words(parameters(1, 11008, 4096, 32));
        assert_eq!(found, [[2, 344, 1, 32, 0].as_slice(), &[0; 11]].concat());
    }

    #[test]
    fn activations_come_before_the_parameters() {
        let bytes = activations(32, 4096, 32, &[0x3f80; 64]);
        assert_eq!(bytes[..128], [0x80, 0x3f].repeat(64));
        assert_eq!(bytes[128..], parameters(2, 32, 4096, 32));
    }

    #[test]
    fn a_weight_is_rounded_to_the_nearest_even_bf16() {
        assert_eq!(weight(15, 8, to_bf16(0.5)), 3.5);
        // 7 * (1 + 2^-7) has 9 bits after its first: half of a unit is over.
        let scale = 0x3f81;
        assert_eq!(to_f32(scale), 1.0 + 1.0 / 128.0);
        assert_eq!(weight(0, 7, scale), -7.0625);
        assert_eq!(to_bf16(1.0 + 1.0 / 256.0), 0x3f80);
        assert_eq!(to_bf16(1.0 + 3.0 / 256.0), 0x3f82);
        assert!(to_f32(to_bf16(f32::NAN)).is_nan());
    }

    #[test]
    fn products_begin_at_the_bias() {
        let mut weights = numbers(32, 512, 32);
        weights.scales.fill(to_bf16(0.5));
        weights.bias.fill(to_bf16(-2.0));
        let activations = [to_bf16(1.0), to_bf16(-3.0)].repeat(16);
        let found = product(&activations, &weights);
        let term = |row: usize| f64::from(weights.at(row, 9)) * [1.0, -3.0][row % 2];
        assert_eq!(found.values[9], (0..32).map(term).sum::<f64>() - 2.0);
        // A's length is the root of 16 * (1 + 9) and the bias's 1.
        let square = (0..32).map(|row| f64::from(weights.at(row, 9)).powi(2)).sum::<f64>() + 4.0;
        let expected = (32.0 * 161.0 * square).sqrt() / 4.0 * 2.0_f64.powi(-24);
        assert!((found.tolerances[9] / expected - 1.0).abs() < 1e-9);
        assert_eq!(result(&1.5_f32.to_le_bytes()), [1.5]);
    }
}
