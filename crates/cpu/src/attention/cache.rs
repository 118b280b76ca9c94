//! The stored keys and values of one layer.

use half::f16;
use half::slice::HalfFloatSliceExt;

use crate::shared::{OutOfMemory, SharedBuffer};

use super::{AttentionError, BLOCK, CacheView};

/// How cached elements are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KvKind {
    /// As computed: 4 bytes.
    F32,
    /// Half floats: 2 bytes, relative error at most 2^-11 from 6e-5 to 65504. What is larger reads
    /// back as NaN.
    F16,
    /// Signed bytes with one half-float scale per group of 32 elements (per head where head_dim
    /// is not a multiple of 32): 1.0625 bytes, error at most 1/254 of the group's largest magnitude
    /// plus the scale's rounding (2^-11 of it). The codes are chosen for the rounded scale, so
    /// that its rounding costs range, not bias. Below a largest magnitude of 0.008 the scale is
    /// subnormal, which adds at most 4e-6. A group with a magnitude above 8e6, NaN or infinity
    /// reads back as NaN.
    Int8,
}

/// Size of a layer's cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvShape {
    /// Key and value heads.
    pub kv_heads: usize,
    /// Elements per head.
    pub head_dim: usize,
    /// Positions of all sequences together: blocks times [`super::BLOCK`], or slots times ring
    /// length.
    pub positions: usize,
}

/// Elements that share a scale.
pub(super) const GROUP: usize = 32;

/// Keys and values of one layer, each laid out (kv_heads, positions, head_dim), so that a head's
/// consecutive positions stream from memory.
#[derive(Debug)]
pub struct LayerCache {
    kind: KvKind,
    shape: KvShape,
    keys: Store,
    values: Store,
}

#[derive(Debug)]
enum Store {
    F32(SharedBuffer<f32>),
    F16(SharedBuffer<f16>),
    // Scales: (kv_heads, positions, head_dim / group).
    Int8 { codes: SharedBuffer<i8>, scales: SharedBuffer<f16> },
}

/// Consecutive positions of one head, as stored: (positions, head_dim).
#[derive(Debug, Clone, Copy)]
pub(super) enum Stored<'a> {
    F32(&'a [f32]),
    F16(&'a [f16]),
    /// `scales`: (positions, head_dim / group).
    Int8 {
        codes: &'a [i8],
        scales: &'a [f16],
        group: usize,
    },
}

impl KvShape {
    /// Elements that share a scale in an int8 cache.
    pub(super) fn group(&self) -> usize {
        if self.head_dim.is_multiple_of(GROUP) { GROUP } else { self.head_dim }
    }

    /// Returns the bytes that a cache of this shape and kind reserves, keys and values together;
    /// `None` if the number overflows.
    pub fn bytes(&self, kind: KvKind) -> Option<usize> {
        let rows = self.kv_heads.checked_mul(self.positions)?;
        let row = match kind {
            KvKind::F32 => self.head_dim.checked_mul(4)?,
            KvKind::F16 => self.head_dim.checked_mul(2)?,
            KvKind::Int8 => {
                self.head_dim.checked_add(2 * self.head_dim.div_ceil(self.group().max(1)))?
            }
        };
        rows.checked_mul(row)?.checked_mul(2)
    }
}

impl LayerCache {
    /// Reserves a cache. Its pages are zero and take no memory until they are written.
    pub fn new(kind: KvKind, shape: KvShape) -> Result<Self, AttentionError> {
        if shape.kv_heads == 0 || shape.head_dim == 0 {
            return Err(AttentionError::Shape {
                query_heads: shape.kv_heads,
                kv_heads: shape.kv_heads,
                head_dim: shape.head_dim,
            });
        }
        shape.bytes(kind).ok_or(OutOfMemory { bytes: usize::MAX })?;
        Ok(LayerCache {
            kind,
            shape,
            keys: Store::new(kind, &shape)?,
            values: Store::new(kind, &shape)?,
        })
    }

    /// How elements are stored.
    pub fn kind(&self) -> KvKind {
        self.kind
    }

    /// The cache's size in positions and elements.
    pub fn shape(&self) -> KvShape {
        self.shape
    }

    /// Bytes reserved.
    pub fn bytes(&self) -> usize {
        self.keys.bytes() + self.values.bytes()
    }

    /// Stores one position's keys and values, (kv_heads, head_dim) each. Returns whether the cache
    /// can hold all of them.
    ///
    /// Panics if the view leads outside the cache; [`super::AttentionPlan::build`] checks views.
    pub fn write(
        &mut self,
        view: CacheView<'_>,
        position: usize,
        keys: &[f32],
        values: &[f32],
    ) -> bool {
        // SAFETY: the exclusive borrow leaves no other user.
        unsafe { self.write_shared(view, position, keys, values) }
    }

    /// Does the same as [`write`](Self::write), from several threads at once.
    ///
    /// # Safety
    /// Until a later phase no other thread may write the same place in the cache, nor run
    /// attention that reads it.
    pub unsafe fn write_shared(
        &self,
        view: CacheView<'_>,
        position: usize,
        keys: &[f32],
        values: &[f32],
    ) -> bool {
        let KvShape { kv_heads, head_dim, positions } = self.shape;
        assert_eq!(keys.len(), kv_heads * head_dim, "keys of one position");
        assert_eq!(values.len(), kv_heads * head_dim, "values of one position");
        let index = view.locate(position).expect("the block table covers the position");
        assert!(index < positions, "position {position} lies at {index} of {positions}");
        let mut are_held = true;
        for head in 0..kv_heads {
            let part = head * head_dim..(head + 1) * head_dim;
            let row = head * positions + index;
            // SAFETY: only this call uses this place, by the caller's promise.
            unsafe {
                are_held &= self.keys.write(&self.shape, row, &keys[part.clone()]);
                are_held &= self.values.write(&self.shape, row, &values[part]);
            }
        }
        are_held
    }

    /// Reads back one position's key and value of one head, as attention sees them.
    pub fn read(&mut self, view: CacheView<'_>, position: usize, head: usize) -> [Vec<f32>; 2] {
        let index = view.locate(position).expect("the block table covers the position");
        [self.keys_of(head, index, 1), self.values_of(head, index, 1)].map(|stored| match stored {
            Stored::F32(row) => row.to_vec(),
            Stored::F16(row) => row.iter().map(|value| value.to_f32()).collect(),
            Stored::Int8 { codes, scales, group } => codes
                .chunks_exact(group)
                .zip(scales)
                .flat_map(|(codes, scale)| codes.iter().map(|&c| f32::from(c) * scale.to_f32()))
                .collect(),
        })
    }

    /// Copies `count` positions of all heads from one place of the cache to another, for a block
    /// that stops being shared or a ring that starts from another sequence's.
    pub fn copy(&mut self, source: usize, target: usize, count: usize) {
        let KvShape { kv_heads, head_dim, positions } = self.shape;
        assert!(source.max(target) + count <= positions, "copy inside the cache");
        let groups = head_dim / self.shape.group();
        for store in [&mut self.keys, &mut self.values] {
            for head in 0..kv_heads {
                let (from, to) = (head * positions + source, head * positions + target);
                match store {
                    Store::F32(buffer) => copy_rows(buffer, from, to, count, head_dim),
                    Store::F16(buffer) => copy_rows(buffer, from, to, count, head_dim),
                    Store::Int8 { codes, scales } => {
                        copy_rows(codes, from, to, count, head_dim);
                        copy_rows(scales, from, to, count, groups);
                    }
                }
            }
        }
    }

    /// The number of bytes of [`BLOCK`](super::BLOCK) positions of all heads, keys and values.
    pub fn page_bytes(&self) -> usize {
        let page = KvShape { positions: BLOCK, ..self.shape };
        page.bytes(self.kind).expect("a part of a cache whose size does not overflow")
    }

    /// Appends the bytes of the [`BLOCK`](super::BLOCK) positions from place `start` on to `bytes`.
    /// The order is keys, then values; of each, for each head, (positions, head_dim) elements or
    /// codes; then, if these are codes, (positions, head_dim / group) scales.
    pub fn read_page(&mut self, start: usize, bytes: &mut Vec<u8>) {
        self.each_run(start, |run| bytes.extend_from_slice(run));
    }

    /// Writes the bytes from [`read_page`](Self::read_page) to place `start`.
    pub fn write_page(&mut self, start: usize, bytes: &[u8]) {
        let mut rest = bytes;
        self.each_run(start, |run| {
            let (own, others) = rest.split_at(run.len());
            run.copy_from_slice(own);
            rest = others;
        });
    }

    /// Calls `each` with every piece of memory that the [`BLOCK`](super::BLOCK) positions from
    /// place `start` on take.
    fn each_run(&mut self, start: usize, mut each: impl FnMut(&mut [u8])) {
        let KvShape { kv_heads, head_dim, positions } = self.shape;
        assert!(start + BLOCK <= positions, "a page inside the cache");
        let groups = head_dim / self.shape.group();
        for store in [&mut self.keys, &mut self.values] {
            for head in 0..kv_heads {
                let first = head * positions + start;
                match store {
                    Store::F32(buffer) => each(rows_as_bytes(buffer, first, head_dim)),
                    Store::F16(buffer) => each(rows_as_bytes(buffer, first, head_dim)),
                    Store::Int8 { codes, scales } => {
                        each(rows_as_bytes(codes, first, head_dim));
                        each(rows_as_bytes(scales, first, groups));
                    }
                }
            }
        }
    }

    /// Returns `count` consecutive keys of a head from place `index` on. By the contract of
    /// [`write_shared`](Self::write_shared) no thread writes them meanwhile.
    pub(super) fn keys_of(&self, head: usize, index: usize, count: usize) -> Stored<'_> {
        self.keys.rows(&self.shape, head, index, count)
    }

    /// Does the same as [`keys_of`](Self::keys_of) for values.
    pub(super) fn values_of(&self, head: usize, index: usize, count: usize) -> Stored<'_> {
        self.values.rows(&self.shape, head, index, count)
    }

    /// Fills everything with NaN, so that reading an element that was never written shows.
    #[cfg(test)]
    pub(super) fn poison(&mut self) {
        for store in [&mut self.keys, &mut self.values] {
            match store {
                Store::F32(buffer) => buffer.as_mut_slice().fill(f32::NAN),
                Store::F16(buffer) => buffer.as_mut_slice().fill(f16::NAN),
                Store::Int8 { codes, scales } => {
                    codes.as_mut_slice().fill(77);
                    scales.as_mut_slice().fill(f16::NAN);
                }
            }
        }
    }
}

fn copy_rows<T: bytemuck::Pod>(
    buffer: &mut SharedBuffer<T>,
    source: usize,
    target: usize,
    count: usize,
    width: usize,
) {
    let source = source * width..(source + count) * width;
    buffer.as_mut_slice().copy_within(source, target * width);
}

/// Returns the memory of [`BLOCK`] rows.
fn rows_as_bytes<T: bytemuck::Pod>(
    buffer: &mut SharedBuffer<T>,
    first: usize,
    width: usize,
) -> &mut [u8] {
    bytemuck::cast_slice_mut(&mut buffer.as_mut_slice()[first * width..(first + BLOCK) * width])
}

impl Store {
    fn new(kind: KvKind, shape: &KvShape) -> Result<Self, OutOfMemory> {
        let rows = shape.kv_heads * shape.positions;
        let elements = rows * shape.head_dim;
        Ok(match kind {
            KvKind::F32 => Store::F32(SharedBuffer::new(elements)?),
            KvKind::F16 => Store::F16(SharedBuffer::new(elements)?),
            KvKind::Int8 => Store::Int8 {
                codes: SharedBuffer::new(elements)?,
                scales: SharedBuffer::new(elements / shape.group())?,
            },
        })
    }

    fn bytes(&self) -> usize {
        match self {
            Store::F32(buffer) => buffer.bytes(),
            Store::F16(buffer) => buffer.bytes(),
            Store::Int8 { codes, scales } => codes.bytes() + scales.bytes(),
        }
    }

    /// Returns whether it can hold all elements; f32 holds any.
    ///
    /// # Safety
    /// No other thread uses row `row` (head * positions + index) meanwhile.
    unsafe fn write(&self, shape: &KvShape, row: usize, source: &[f32]) -> bool {
        let width = shape.head_dim;
        let place = row * width..(row + 1) * width;
        match self {
            Store::F32(buffer) => {
                // SAFETY: only the caller uses the row.
                unsafe { buffer.write(place) }.copy_from_slice(source);
                true
            }
            Store::F16(buffer) => {
                // SAFETY: as above.
                let halves = unsafe { buffer.write(place) };
                halves.convert_from_f32_slice(source);
                without_infinities(halves)
            }
            Store::Int8 { codes, scales } => {
                let group = shape.group();
                let groups = width / group;
                // SAFETY: as above; a row's scales belong to the row.
                let (codes, scales) =
                    unsafe { (codes.write(place), scales.write(row * groups..(row + 1) * groups)) };
                let parts = source.chunks_exact(group).zip(codes.chunks_exact_mut(group));
                let mut are_held = true;
                for ((source, codes), scale) in parts.zip(scales) {
                    *scale = quantize_group(source, codes);
                    are_held &= !scale.is_nan();
                }
                are_held
            }
        }
    }

    fn rows(&self, shape: &KvShape, head: usize, index: usize, count: usize) -> Stored<'_> {
        assert!(head < shape.kv_heads && index + count <= shape.positions, "inside the head");
        let row = head * shape.positions + index;
        let place = row * shape.head_dim..(row + count) * shape.head_dim;
        // SAFETY: every writer promises that no thread reads the same rows meanwhile.
        unsafe {
            match self {
                Store::F32(buffer) => Stored::F32(buffer.read(place)),
                Store::F16(buffer) => Stored::F16(buffer.read(place)),
                Store::Int8 { codes, scales } => {
                    let group = shape.group();
                    let groups = shape.head_dim / group;
                    Stored::Int8 {
                        codes: codes.read(place),
                        scales: scales.read(row * groups..(row + count) * groups),
                        group,
                    }
                }
            }
        }
    }
}

/// Makes infinities NaN: an infinite key would have a score of negative infinity, and so no weight.
/// Returns whether all elements are numbers.
fn without_infinities(halves: &mut [f16]) -> bool {
    const LARGEST: u16 = f16::MAX.to_bits();
    let are_numbers = |halves: &[f16]| {
        let magnitude = |half: &f16| half.to_bits() & !f16::NEG_ZERO.to_bits();
        halves.iter().map(magnitude).fold(0, u16::max) <= LARGEST
    };
    if are_numbers(halves) {
        return true;
    }
    halves.iter_mut().filter(|half| half.is_infinite()).for_each(|half| *half = f16::NAN);
    false
}

/// Rounds a group to codes of -127..=127 and returns their scale: NaN if it has an element that is
/// not finite or that no scale reaches.
fn quantize_group(source: &[f32], codes: &mut [i8]) -> f16 {
    // Adding and subtracting this rounds |x| < 2^22 to an integer without a library call.
    const MAGIC: f32 = 12_582_912.0;
    const SIGN: u32 = 1 << 31;
    // Magnitudes order like their bit patterns, and integer maxima vectorise; NaN and infinity
    // come out on top.
    let largest = source.iter().fold(0, |largest, value| (value.to_bits() & !SIGN).max(largest));
    let scale = f16::from_f32(f32::from_bits(largest) / 127.0);
    if !scale.is_finite() {
        codes.fill(0);
        return f16::NAN;
    }
    let inverse = if scale.to_f32() > 0.0 { 1.0 / scale.to_f32() } else { 0.0 };
    for (code, value) in codes.iter_mut().zip(source) {
        *code = ((value * inverse + MAGIC) - MAGIC).clamp(-127.0, 127.0) as i8;
    }
    scale
}
