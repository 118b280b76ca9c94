//! The two inner loops of attention: scores of keys, and weighted sums of values.
//!
//! Both keep a small rectangle of sums in registers (up to 4 query vectors by 2 to 4 keys or
//! vectors of columns), so that each loaded and converted cache element serves several queries.
//! Whatever the rectangle, a score is one vector sum over the columns in order, and an output
//! element one sum over the keys in order: the result does not depend on the tile.

use half::f16;

use crate::vector::lanes::Lanes;

use super::BLOCK;
use super::cache::GROUP;

/// Rows of cached elements that can be loaded as vectors of floats.
pub(super) trait Rows: Copy {
    /// Asserts that rows `0..count`, each of `width` elements, may be loaded.
    fn check(self, count: usize, width: usize);

    /// Loads the `COUNT` elements of `row` from `column` on.
    ///
    /// # Safety
    /// `row < count` and `column + COUNT <= width` of an earlier `check`; `column` is a multiple
    /// of `COUNT`.
    unsafe fn vector<S: Lanes>(self, s: S, row: usize, column: usize) -> S::Vector;
}

#[derive(Clone, Copy)]
pub(super) struct FloatRows<'a> {
    pub(super) elements: &'a [f32],
    pub(super) stride: usize,
}

#[derive(Clone, Copy)]
pub(super) struct HalfRows<'a> {
    pub(super) elements: &'a [f16],
    pub(super) stride: usize,
}

/// Bytes with a scale per [`GROUP`]; the row length is a multiple of it.
#[derive(Clone, Copy)]
pub(super) struct ByteRows<'a> {
    pub(super) codes: &'a [i8],
    pub(super) scales: &'a [f16],
    pub(super) stride: usize,
}

impl Rows for FloatRows<'_> {
    #[inline(always)]
    fn check(self, count: usize, width: usize) {
        assert!(count == 0 || (count - 1) * self.stride + width <= self.elements.len());
    }
    #[inline(always)]
    unsafe fn vector<S: Lanes>(self, s: S, row: usize, column: usize) -> S::Vector {
        // SAFETY: inside the rows that `check` admitted.
        unsafe { s.load(self.elements.as_ptr().add(row * self.stride + column)) }
    }
}

impl Rows for HalfRows<'_> {
    #[inline(always)]
    fn check(self, count: usize, width: usize) {
        assert!(count == 0 || (count - 1) * self.stride + width <= self.elements.len());
    }
    #[inline(always)]
    unsafe fn vector<S: Lanes>(self, s: S, row: usize, column: usize) -> S::Vector {
        // SAFETY: inside the rows that `check` admitted.
        unsafe { s.load_f16(self.elements.as_ptr().add(row * self.stride + column)) }
    }
}

impl Rows for ByteRows<'_> {
    #[inline(always)]
    fn check(self, count: usize, width: usize) {
        assert!(width <= self.stride && self.stride.is_multiple_of(GROUP));
        assert!(count * self.stride <= self.codes.len());
        assert!(count * (self.stride / GROUP) <= self.scales.len());
    }
    #[inline(always)]
    unsafe fn vector<S: Lanes>(self, s: S, row: usize, column: usize) -> S::Vector {
        let place = row * self.stride + column;
        // SAFETY: inside the rows that `check` admitted; groups tile the rows, so the element's
        // group is inside the scales.
        unsafe {
            let scale = *self.scales.get_unchecked(place / GROUP);
            let codes = s.load_i8(self.codes.as_ptr().add(place));
            s.mul(codes, s.splat(crate::vector::lanes::widen(scale)))
        }
    }
}

/// `scores[m * BLOCK + n] = queries[m] . rows[n]` for `m < vectors`, `n < count`.
///
/// `queries`: (vectors, width); `width` is a multiple of `COUNT`; `count <= BLOCK`.
#[inline(always)]
pub(super) fn scores<S: Lanes, R: Rows>(
    s: S,
    queries: &[f32],
    vectors: usize,
    width: usize,
    rows: R,
    count: usize,
    scores: &mut [f32],
) {
    assert!(queries.len() >= vectors * width && width.is_multiple_of(S::COUNT));
    assert!(scores.len() >= vectors * BLOCK && count <= BLOCK);
    rows.check(count, width);
    let mut first = 0;
    while first < vectors {
        let left = vectors - first;
        let queries = &queries[first * width..];
        let scores = &mut scores[first * BLOCK..];
        // SAFETY: each call stays within `left` vectors and `count` rows, which were checked.
        unsafe {
            first += if left >= 4 {
                score_strip::<S, R, 4, 2>(s, queries, width, rows, count, scores)
            } else if left >= 2 {
                score_strip::<S, R, 2, 4>(s, queries, width, rows, count, scores)
            } else {
                score_strip::<S, R, 1, 4>(s, queries, width, rows, count, scores)
            };
        }
    }
}

/// Scores of `M` query vectors against all keys, `N` keys at a time. Returns `M`.
///
/// # Safety
/// `queries` holds `M` vectors, `scores` `M` rows, and `rows` was checked for `count` and `width`.
#[inline(always)]
unsafe fn score_strip<S: Lanes, R: Rows, const M: usize, const N: usize>(
    s: S,
    queries: &[f32],
    width: usize,
    rows: R,
    count: usize,
    scores: &mut [f32],
) -> usize {
    let whole = count - count % N;
    for row in (0..whole).step_by(N) {
        // SAFETY: row + N <= count.
        unsafe { score_rectangle::<S, R, M, N>(s, queries, width, rows, row, scores) };
    }
    for row in whole..count {
        // SAFETY: row + 1 <= count.
        unsafe { score_rectangle::<S, R, M, 1>(s, queries, width, rows, row, scores) };
    }
    M
}

/// # Safety
/// As for [`score_strip`], with `first + N` at most the count of rows.
#[inline(always)]
unsafe fn score_rectangle<S: Lanes, R: Rows, const M: usize, const N: usize>(
    s: S,
    queries: &[f32],
    width: usize,
    rows: R,
    first: usize,
    scores: &mut [f32],
) {
    let mut sums = [[s.splat(0.0); N]; M];
    let mut column = 0;
    while column < width {
        let mut keys = [s.splat(0.0); N];
        for (n, key) in keys.iter_mut().enumerate() {
            // SAFETY: the row is below the checked count, the column below the width.
            *key = unsafe { rows.vector(s, first + n, column) };
        }
        for (m, sums) in sums.iter_mut().enumerate() {
            // SAFETY: `queries` holds M vectors of `width`.
            let query = unsafe { s.load(queries.as_ptr().add(m * width + column)) };
            for (sum, key) in sums.iter_mut().zip(keys) {
                *sum = s.fma(query, key, *sum);
            }
        }
        column += S::COUNT;
    }
    for (m, sums) in sums.into_iter().enumerate() {
        for (n, sum) in sums.into_iter().enumerate() {
            scores[m * BLOCK + first + n] = s.sum(sum);
        }
    }
}

/// `sums[m] += sum over n of weights[m * BLOCK + n] * rows[n]` for `m < vectors`, `n < count`.
///
/// `sums`: (vectors, width); `width` is a multiple of `COUNT`; `count <= BLOCK`.
#[inline(always)]
pub(super) fn accumulate<S: Lanes, R: Rows>(
    s: S,
    weights: &[f32],
    vectors: usize,
    width: usize,
    rows: R,
    count: usize,
    sums: &mut [f32],
) {
    assert!(sums.len() >= vectors * width && width.is_multiple_of(S::COUNT));
    assert!(weights.len() >= vectors * BLOCK && count <= BLOCK);
    rows.check(count, width);
    let mut first = 0;
    while first < vectors {
        let left = vectors - first;
        let weights = &weights[first * BLOCK..];
        let sums = &mut sums[first * width..];
        // SAFETY: each call stays within `left` vectors and `count` rows, which were checked.
        unsafe {
            first += if left >= 4 {
                accumulate_strip::<S, R, 4, 2>(s, weights, width, rows, count, sums)
            } else if left >= 2 {
                accumulate_strip::<S, R, 2, 4>(s, weights, width, rows, count, sums)
            } else {
                accumulate_strip::<S, R, 1, 8>(s, weights, width, rows, count, sums)
            };
        }
    }
}

/// Weighted sums of `M` query vectors over all columns, `N` vectors of columns at a time.
/// Returns `M`.
///
/// # Safety
/// `weights` holds `M` rows, `sums` `M` vectors, and `rows` was checked for `count` and `width`.
#[inline(always)]
unsafe fn accumulate_strip<S: Lanes, R: Rows, const M: usize, const N: usize>(
    s: S,
    weights: &[f32],
    width: usize,
    rows: R,
    count: usize,
    sums: &mut [f32],
) -> usize {
    let mut column = 0;
    while column + N * S::COUNT <= width {
        // SAFETY: the columns lie below the width.
        unsafe { accumulate_rectangle::<S, R, M, N>(s, weights, width, rows, count, column, sums) };
        column += N * S::COUNT;
    }
    while column < width {
        // SAFETY: the width is a multiple of COUNT, so a whole vector is left.
        unsafe { accumulate_rectangle::<S, R, M, 1>(s, weights, width, rows, count, column, sums) };
        column += S::COUNT;
    }
    M
}

/// # Safety
/// As for [`accumulate_strip`], with `column + N * COUNT <= width`.
#[inline(always)]
unsafe fn accumulate_rectangle<S: Lanes, R: Rows, const M: usize, const N: usize>(
    s: S,
    weights: &[f32],
    width: usize,
    rows: R,
    count: usize,
    column: usize,
    sums: &mut [f32],
) {
    let mut registers = [[s.splat(0.0); N]; M];
    for (m, registers) in registers.iter_mut().enumerate() {
        for (n, register) in registers.iter_mut().enumerate() {
            // SAFETY: `sums` holds M vectors of `width`.
            *register = unsafe { s.load(sums.as_ptr().add(m * width + column + n * S::COUNT)) };
        }
    }
    for row in 0..count {
        let mut values = [s.splat(0.0); N];
        for (n, value) in values.iter_mut().enumerate() {
            // SAFETY: the row is below the checked count, the column below the width.
            *value = unsafe { rows.vector(s, row, column + n * S::COUNT) };
        }
        for (m, registers) in registers.iter_mut().enumerate() {
            // SAFETY: `weights` holds M rows of BLOCK, and `count <= BLOCK`.
            let weight = s.splat(unsafe { *weights.get_unchecked(m * BLOCK + row) });
            for (register, value) in registers.iter_mut().zip(values) {
                *register = s.fma(weight, value, *register);
            }
        }
    }
    for (m, registers) in registers.into_iter().enumerate() {
        for (n, register) in registers.into_iter().enumerate() {
            // SAFETY: `sums` holds M vectors of `width`.
            unsafe { s.store(sums.as_mut_ptr().add(m * width + column + n * S::COUNT), register) };
        }
    }
}
