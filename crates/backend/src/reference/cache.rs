//! The reference KV cache: values as they would be read back from a cache of the chosen type, kept
//! as f32.

use half::f16;
use trine_model::{Cache, KvType};

use crate::batch::{BLOCK, ProgramOptions, SequenceView};

/// Keys and values of one layer for all sequences.
pub struct ReferenceCache {
    kv: KvType,
    head_dim: usize,
    width: usize,
    /// Ring length of a local layer; `None` for paged blocks.
    ring: Option<usize>,
    keys: Vec<f32>,
    values: Vec<f32>,
}

/// A row's sequence and position, and what it sees.
#[derive(Debug, Clone, Copy)]
pub struct RowPlace<'a> {
    /// Where the sequence keeps its cache.
    pub sequence: SequenceView<'a>,
    /// The row's own position.
    pub position: usize,
    /// The number of positions after its own that it sees.
    pub ahead: usize,
}

impl ReferenceCache {
    /// Creates an empty cache; unwritten positions hold NaN.
    pub fn new(cache: &Cache, options: &ProgramOptions) -> Self {
        let ring = cache.window.map(|window| options.ring_length(window));
        let positions = ring.map_or(options.blocks * BLOCK, |ring| options.sequences * ring);
        let width = cache.kv_heads * cache.head_dim;
        let empty = vec![f32::NAN; positions * width];
        Self {
            kv: options.kv,
            head_dim: cache.head_dim,
            width,
            ring,
            keys: empty.clone(),
            values: empty,
        }
    }

    /// Copies the first `positions` places of slot `from`'s ring to that of slot `to`. Paged blocks
    /// are not affected.
    pub fn copy_slot(&mut self, from: u32, to: u32, positions: usize) {
        let Some(ring) = self.ring else { return };
        let (size, copied) = (ring * self.width, ring.min(positions) * self.width);
        let start = from as usize * size;
        for cache in [&mut self.keys, &mut self.values] {
            cache.copy_within(start..start + copied, to as usize * size);
        }
    }

    /// Returns the bytes of [`BLOCK`] positions: keys, then values, each (BLOCK, kv heads x
    /// head_dim) as little-endian f32.
    pub fn page_bytes(&self) -> usize {
        2 * BLOCK * self.width * size_of::<f32>()
    }

    /// Appends the bytes of the [`BLOCK`] positions from place `start` of the cache on.
    pub fn read_page(&self, start: usize, bytes: &mut Vec<u8>) {
        let range = start * self.width..(start + BLOCK) * self.width;
        for cache in [&self.keys, &self.values] {
            bytes.extend(cache[range.clone()].iter().flat_map(|value| value.to_le_bytes()));
        }
    }

    /// Writes what [`Self::read_page`] returned to place `start`.
    pub fn write_page(&mut self, start: usize, bytes: &[u8]) {
        let range = start * self.width..(start + BLOCK) * self.width;
        let halves = bytes.chunks_exact(bytes.len() / 2);
        for (cache, bytes) in [&mut self.keys, &mut self.values].into_iter().zip(halves) {
            let values = bytes.as_chunks().0.iter().map(|value| f32::from_le_bytes(*value));
            cache[range.clone()].iter_mut().zip(values).for_each(|(target, value)| *target = value);
        }
    }

    /// Writes the key and value of a row, each (kv heads x head_dim).
    pub fn store(&mut self, place: RowPlace<'_>, key: &[f32], value: &[f32]) {
        let start = self.index(place.sequence, place.position) * self.width;
        let (kv, head_dim) = (self.kv, self.head_dim);
        for (source, cache) in [(key, &mut self.keys), (value, &mut self.values)] {
            let target = &mut cache[start..start + self.width];
            for (source, target) in
                source.chunks_exact(head_dim).zip(target.chunks_exact_mut(head_dim))
            {
                round_trip(kv, source, target);
            }
        }
    }

    /// Returns the key that the row at `place` sees at `position`.
    pub fn key(&self, place: RowPlace<'_>, position: usize, head: usize) -> &[f32] {
        let start = self.index(place.sequence, position) * self.width + head * self.head_dim;
        &self.keys[start..start + self.head_dim]
    }

    /// Returns the value that the row at `place` sees at `position`.
    pub fn value(&self, place: RowPlace<'_>, position: usize, head: usize) -> &[f32] {
        let start = self.index(place.sequence, position) * self.width + head * self.head_dim;
        &self.values[start..start + self.head_dim]
    }

    fn index(&self, sequence: SequenceView<'_>, position: usize) -> usize {
        match self.ring {
            Some(ring) => sequence.slot as usize * ring + position % ring,
            None => sequence.blocks[position / BLOCK] as usize * BLOCK + position % BLOCK,
        }
    }
}

/// Writes a head's key or value as it would be read back from the cache. Int8: codes `round(x /
/// scale)` with `scale = max|x| / 127` rounded to f16, one scale for each [`KvType::int8_group`]
/// values. What f16, as value or as scale, cannot hold is NaN.
fn round_trip(kv: KvType, source: &[f32], target: &mut [f32]) {
    match kv {
        KvType::F32 => target.copy_from_slice(source),
        KvType::F16 => {
            target.iter_mut().zip(source).for_each(|(t, &s)| *t = half(s));
        }
        KvType::Int8 => {
            let group = KvType::int8_group(source.len());
            for (source, target) in source.chunks_exact(group).zip(target.chunks_exact_mut(group)) {
                round_trip_int8(source, target);
            }
        }
    }
}

/// Returns what an f16 keeps of a value: NaN if it is too large.
fn half(value: f32) -> f32 {
    let half = f16::from_f32(value);
    if half.is_finite() { half.to_f32() } else { f32::NAN }
}

fn round_trip_int8(source: &[f32], target: &mut [f32]) {
    let highest = source.iter().fold(0.0f32, |high, x| high.max(x.abs()));
    let scale = half(highest / 127.0);
    let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
    for (t, &s) in target.iter_mut().zip(source) {
        *t = (s * inverse).round_ties_even().clamp(-127.0, 127.0) * scale;
    }
}
