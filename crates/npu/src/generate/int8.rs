//! Streams of the kernel `a8w8acc32`: whole numbers of 8 bits.
//!
//! Column `c` of the array's memory tiles works with the shim tile of column `c + 1`. A lies in the
//! memory tiles as a whole, a quarter of K in each. W comes by two channels in blocks of 32 KiB,
//! each of which feeds two cores, with two buffers for each channel. C leaves in blocks of 64 rows
//! and 64 columns, of which the first M rows are sent.

use super::builder::{Builder, COLUMNS, WORKING_COLUMNS, exchange, from_memory, to_memory};
use crate::descriptor::{Dimension, MemoryDescriptor, OWN_MEMORY, ShimDescriptor};
use crate::layout::PARAMETER_BYTES;
use crate::tile::Tile;
use crate::txn::Transaction;

/// Rows of a block of C.
const ROWS: u32 = 64;
/// Columns of a block of C.
const BLOCK_COLUMNS: u32 = 64;
/// Words of a block of C.
const RESULT_WORDS: u32 = ROWS * BLOCK_COLUMNS;
/// Words of W that one core takes at a time.
const WEIGHT_WORDS: u32 = 0x2000;

/// The shape and what follows from it.
struct Shape {
    m: u32,
    k: u32,
    n: u32,
    /// Blocks of C that a column makes.
    blocks: u32,
    /// How often both buffers of a channel for W are filled.
    weight_rounds: u32,
    /// Where buffers lie in a memory tile, in words.
    weights: u32,
    results: u32,
}

pub(super) fn stream(m: u32, k: u32, n: u32) -> Transaction {
    let weights = OWN_MEMORY + ROWS * k / 16;
    let shape = Shape {
        m,
        k,
        n,
        blocks: n / (u32::from(WORKING_COLUMNS) * BLOCK_COLUMNS),
        weight_rounds: k / 8 * n / 4 / (4 * WEIGHT_WORDS),
        weights,
        results: weights + 8 * WEIGHT_WORDS,
    };
    let mut builder = Builder::new(COLUMNS);
    let columns = 0..WORKING_COLUMNS;
    columns.clone().for_each(|column| builder.reset_memory(column));
    shim(&mut builder, &shape);
    columns.clone().for_each(|column| result_buffers(&mut builder, &shape, column));
    columns.clone().for_each(|column| weight_buffers(&mut builder, &shape, column));
    for column in columns.clone() {
        let rounds = shape.weight_rounds;
        for (channel, start) in [(1, 24), (2, 6), (3, 28), (4, 8)] {
            builder.task(column, from_memory(channel), start, rounds);
        }
    }
    columns.clone().for_each(|column| activation_buffers(&mut builder, &shape, column));
    for column in columns.clone() {
        builder.task(column, to_memory(0), 0, 1);
        builder.task(column, to_memory(0), 4, shape.weight_rounds);
        builder.task(column, from_memory(0), 2, shape.blocks);
    }
    for column in columns.clone() {
        builder.shim_control(column + 1, to_memory(0));
        builder.wait(Tile::new(column + 1, 0), to_memory(0));
    }
    columns.for_each(|column| builder.wait(Tile::new(column + 1, 0), to_memory(0)));
    builder.finish()
}

/// What the shim tiles read and write: descriptor 4 has the parameters, 0 a quarter of each row of
/// A and 3 after it the first half of the column's W, 1 the other half, 2 has C.
fn shim(builder: &mut Builder, shape: &Shape) {
    let Shape { m, k, n, .. } = *shape;
    let column_weights = u64::from(k) * u64::from(n) / u64::from(WORKING_COLUMNS);
    let half = (column_weights / 8) as u32;
    // The first column's stream is switched by packets between parameters and A.
    let packet = |column: u8| (column == 0).then_some((0, 0));

    let address = u64::from(m) * u64::from(k);
    let mut parameters = ShimDescriptor::linear(PARAMETER_BYTES as u32 / 4, address);
    parameters.packet = Some((0, 1));
    builder.shim_descriptor(1, 4, 1, &parameters);
    builder.shim_task(1, from_memory(0), 4, 1);
    builder.shim_control(1, from_memory(0));
    for column in 0..WORKING_COLUMNS {
        let address = u64::from(column) * u64::from(k) / 4;
        let mut activations = ShimDescriptor::linear(m * k / 16, address);
        activations.packet = packet(column);
        activations.dimensions[0].wrap = k / 16;
        activations.dimensions[1] = Dimension { step: k / 4, wrap: m };
        activations.next = Some(3);
        builder.shim_descriptor(column + 1, 0, 1, &activations);
    }
    for column in 0..WORKING_COLUMNS {
        let mut weights = ShimDescriptor::linear(half, u64::from(column) * column_weights);
        weights.packet = packet(column);
        builder.shim_descriptor(column + 1, 3, 2, &weights);
        builder.shim_task(column + 1, from_memory(0), 0, 1);
        builder.shim_control(column + 1, from_memory(0));
    }
    for column in 0..WORKING_COLUMNS {
        let address = u64::from(column) * column_weights + column_weights / 2;
        builder.shim_descriptor(column + 1, 1, 2, &ShimDescriptor::linear(half, address));
        builder.shim_task(column + 1, from_memory(1), 1, 1);
        builder.shim_control(column + 1, from_memory(1));
    }
    for column in 0..WORKING_COLUMNS {
        let mut result = ShimDescriptor::linear(m * n / 4, u64::from(column) * u64::from(n));
        result.dimensions = [
            Dimension { step: 1, wrap: BLOCK_COLUMNS },
            Dimension { step: n, wrap: m },
            Dimension { step: BLOCK_COLUMNS, wrap: 0 },
        ];
        builder.shim_descriptor(column + 1, 2, 0, &result);
        builder.shim_task(column + 1, to_memory(0), 2, 1);
        builder.shim_control(column + 1, to_memory(0));
    }
}

/// Two buffers for C. Cores send tiles of 8 by 8, which become rows.
fn result_buffers(builder: &mut Builder, shape: &Shape, column: u8) {
    builder.lock(column, 12, 1);
    builder.lock(column, 14, 1);
    let tiles = [
        Dimension { step: 1, wrap: 8 },
        Dimension { step: BLOCK_COLUMNS, wrap: ROWS },
        Dimension { step: 8, wrap: 8 },
        Dimension::UNUSED,
    ];
    let rows = [
        Dimension { step: 1, wrap: BLOCK_COLUMNS },
        Dimension { step: BLOCK_COLUMNS, wrap: shape.m },
        Dimension::UNUSED,
        Dimension::UNUSED,
    ];
    for (first, words, dimensions, channel, from) in [
        (10, RESULT_WORDS, tiles, to_memory(2), 0),
        (30, shape.m * BLOCK_COLUMNS, rows, from_memory(5), 1),
    ] {
        for buffer in 0..2 {
            let lock = 12 + 2 * buffer;
            let descriptor = MemoryDescriptor {
                dimensions,
                next: Some(first + 1 - buffer),
                locks: exchange(lock + from, lock + 1 - from, 1),
                ..MemoryDescriptor::linear(words, shape.results + u32::from(buffer) * RESULT_WORDS)
            };
            builder.descriptor(column, first + buffer, &descriptor);
        }
        builder.task(column, channel, first, 1);
    }
}

/// The second channel's buffers for W, and what all four cores read of both channels' buffers.
fn weight_buffers(builder: &mut Builder, shape: &Shape, column: u8) {
    builder.lock(column, 8, 2);
    builder.lock(column, 10, 2);
    let pair = 2 * WEIGHT_WORDS;
    let (first, second) = (shape.weights, shape.weights + pair);
    fill(builder, column, 26, second, 8);
    builder.task(column, to_memory(1), 26, shape.weight_rounds);
    for buffer in 0..2 {
        for (start, base, lock) in [
            (24, first, 4),
            (6, first + WEIGHT_WORDS, 4),
            (28, second, 8),
            (8, second + WEIGHT_WORDS, 8),
        ] {
            let (index, lock) = (start + buffer, lock + 2 * buffer);
            let base = base + u32::from(buffer) * 2 * pair;
            let descriptor = MemoryDescriptor {
                next: (buffer == 0).then_some(index + 1),
                locks: exchange(lock + 1, lock, 1),
                ..MemoryDescriptor::linear(WEIGHT_WORDS, base)
            };
            builder.descriptor(column, index, &descriptor);
        }
    }
}

/// The descriptors `index` and the one after it, which fill the two buffers of a channel for W with
/// what two cores take.
fn fill(builder: &mut Builder, column: u8, index: u8, base: u32, lock: u8) {
    for buffer in 0..2 {
        let lock = lock + 2 * buffer;
        let descriptor = MemoryDescriptor {
            next: (buffer == 0).then_some(index + 1),
            locks: exchange(lock, lock + 1, 2),
            ..MemoryDescriptor::linear(
                2 * WEIGHT_WORDS,
                base + u32::from(buffer) * 4 * WEIGHT_WORDS,
            )
        };
        builder.descriptor(column, index + buffer, &descriptor);
    }
}

/// The buffer for A, which is sent once for each block of C, and the first channel's for W.
fn activation_buffers(builder: &mut Builder, shape: &Shape, column: u8) {
    // Enough for all blocks of C: one for each buffer of W.
    let buffers = 2 * shape.weight_rounds;
    for (lock, value) in [(0, buffers), (2, buffers), (4, 2), (6, 2)] {
        builder.lock(column, lock, value);
    }
    let Shape { m, k, weights, blocks, .. } = *shape;
    let whole = ROWS * k / 16;
    let dimensions = [
        Dimension { step: 1, wrap: 2 },
        Dimension { step: 2 * ROWS, wrap: k / 32 },
        Dimension { step: 2, wrap: m },
        Dimension::UNUSED,
    ];
    let blocks = blocks as i8;
    let first = MemoryDescriptor {
        dimensions,
        locks: exchange(0, 1, blocks),
        ..MemoryDescriptor::linear(m * k / 16, OWN_MEMORY)
    };
    builder.descriptor(column, 0, &first);
    // Of a second buffer, which begins where W does and which no task uses.
    let second = MemoryDescriptor {
        dimensions,
        next: Some(4),
        locks: exchange(2, 3, blocks),
        ..MemoryDescriptor::linear(whole, weights)
    };
    builder.descriptor(column, 1, &second);
    fill(builder, column, 4, weights, 4);
    for (index, base, lock) in [(2, OWN_MEMORY, 0), (3, weights, 2)] {
        let locks = exchange(lock + 1, lock, 1);
        let descriptor = MemoryDescriptor { locks, ..MemoryDescriptor::linear(whole, base) };
        builder.descriptor(column, index, &descriptor);
    }
}
