//! Streams of the kernel `a16fw4acc32f`: A in bf16, W in 4 bits.
//!
//! Each of four columns makes a quarter of C, 8 rows and 512 columns at a time: a *pass*. All four
//! read all of A. W comes in *sub-volumes*, each of `group` rows and 128 columns; the kernel always
//! takes [`SUBVOLUME_WORDS`] words, so that of shorter ones it gets words that follow, and it
//! ignores them. The same holds for rows of A.
//!
//! Buffers for W and C are two of each. Their descriptors form chains: a task runs the first
//! buffer's, then the second's.

use super::builder::{
    Builder, COLUMNS, WORKING_COLUMNS, exchange, from_memory, take_and_give, to_memory,
};
use crate::descriptor::{Dimension, MemoryDescriptor, OWN_MEMORY, ShimDescriptor};
use crate::layout::int4 as matrices;
use crate::registers::Channel;
use crate::tile::Tile;
use crate::txn::Transaction;

/// Rows of a pass, unless there is only one.
pub(super) const ROWS: u32 = matrices::ROWS as u32;

/// Columns of a sub-volume.
const SUBVOLUME_COLUMNS: u32 = matrices::SUBVOLUME_COLUMNS as u32;
/// Columns of C that a column of the array makes in a pass: one sub-volume for each core.
const PASS_COLUMNS: u32 = 4 * SUBVOLUME_COLUMNS;
/// Words that a core takes as a sub-volume of W.
const SUBVOLUME_WORDS: u32 = 0x850;
/// Words that cores take as parameters or as a piece of A.
const PIECE_WORDS: u32 = 0x200;
/// Words of C that a core sends.
const RESULT_WORDS: u32 = 0x400;
/// Above this many passes, each is started and waited for on its own.
const QUEUED_PASSES: u32 = 6;
/// The lock that is always 0: descriptors that wait for nothing acquire it.
const OPEN: u8 = 0;
/// How many times the iteration of C's descriptor moves before it starts again.
const ITERATION_WRAP: u32 = 64;

/// Bytes of W.
pub(super) fn weight_bytes(k: u32, n: u32, group: u32) -> u64 {
    matrices::weight_bytes(k as usize, n as usize, group as usize) as u64
}

/// Bytes of the kernel's parameters, after A.
pub(super) fn parameter_bytes(m: u32, group: u32) -> u64 {
    matrices::parameter_bytes(m as usize, group as usize) as u64
}

/// The shape and what follows from it.
struct Shape {
    m: u32,
    k: u32,
    n: u32,
    group: u32,
    /// Rows of a pass.
    rows: u32,
    /// Passes of a column for the same rows.
    passes: u32,
    /// Words of a sub-volume in memory.
    subvolume: u32,
    /// Words of a piece of A in memory.
    piece: u32,
    /// Sub-volumes of a core in a pass.
    steps: u32,
    /// Where buffers lie in a memory tile, in words.
    activations: u32,
    weights: u32,
}

impl Shape {
    /// Whether each pass is started on its own. Then A has no locks.
    fn is_stepped(&self) -> bool {
        self.passes > QUEUED_PASSES
    }

    fn is_single_row(&self) -> bool {
        self.rows == 1
    }
}

/// Descriptors of a memory tile: channels with even numbers use the first 24, others the rest.
#[derive(Default)]
struct Descriptors {
    used: [u8; 2],
}

impl Descriptors {
    fn take(&mut self, channel: Channel) -> u8 {
        let half = usize::from(channel.index % 2);
        self.used[half] += 1;
        self.used[half] - 1 + 24 * half as u8
    }
}

/// The tasks of a channel: a chain over two buffers, and a chain over the second one.
#[derive(Debug, Clone, Copy)]
struct Stage {
    channel: Channel,
    both: u8,
    second: u8,
}

/// The descriptors of one channel for one of its buffers, in their order.
type Chain = Vec<(u8, MemoryDescriptor)>;

pub(super) fn stream(m: u32, k: u32, n: u32, group: u32) -> Transaction {
    let rows = m.min(ROWS);
    let activations = OWN_MEMORY + PIECE_WORDS;
    let shape = Shape {
        m,
        k,
        n,
        group,
        rows,
        passes: n / (u32::from(WORKING_COLUMNS) * PASS_COLUMNS),
        subvolume: (matrices::subvolume_bytes(group as usize) / 4) as u32,
        piece: rows * group / 2,
        steps: k / group + 1,
        activations,
        weights: activations + rows * k / 2,
    };
    let mut builder = Builder::new(COLUMNS);
    let columns = 1..=WORKING_COLUMNS;
    for column in columns.clone() {
        builder.reset_memory(column);
        shim(&mut builder, &shape, column);
    }
    let layout = Layout::new(&shape);
    layout.write(&mut builder);
    for column in columns.clone() {
        builder.lock(column, OPEN, 0);
    }
    for column in columns.clone() {
        builder.shim_lock(column, 0, 0);
    }
    run(&mut builder, &shape, &layout);
    columns.for_each(|column| builder.wait(Tile::new(column, 0), to_memory(0)));
    builder.finish()
}

/// What a shim tile reads and writes: descriptor 3 has the parameters, 0 A, 1 W (for one row also
/// 4), 2 C.
fn shim(builder: &mut Builder, shape: &Shape, column: u8) {
    let Shape { m, k, n, group, rows, .. } = *shape;
    let passes = (m / rows) as u16;
    let quarter = u64::from(column - 1);
    let words = (parameter_bytes(m, group) / 4) as u32;
    let address = u64::from(m) * u64::from(k) * 2;
    builder.shim_descriptor(column, 3, 1, &ShimDescriptor::linear(words, address));
    builder.shim_task(column, from_memory(0), 3, 1);
    builder.shim_descriptor(column, 0, 1, &ShimDescriptor::linear(m * k / 2, 0));
    builder.shim_task(column, from_memory(0), 0, 1);

    let bytes = weight_bytes(k, n, group) / u64::from(WORKING_COLUMNS);
    let words = (bytes / 4) as u32;
    if shape.is_single_row() {
        let pair = 2 * shape.subvolume;
        for (index, channel) in [(4, 0), (1, 1)] {
            let address = quarter * bytes + u64::from(channel) * u64::from(pair) * 4;
            let mut weights = ShimDescriptor::linear(words / 2, address);
            // A row of the pattern has at most 1023 words.
            weights.dimensions = [
                Dimension { step: 1, wrap: pair / 8 },
                Dimension { step: pair / 8, wrap: 8 },
                Dimension { step: 2 * pair, wrap: 0 },
            ];
            builder.shim_descriptor(column, index, 2, &weights);
            builder.shim_task(column, from_memory(channel), index, 1);
            builder.shim_control(column, from_memory(channel));
        }
    } else {
        builder.shim_control(column, from_memory(0));
        builder.shim_descriptor(column, 1, 2, &ShimDescriptor::linear(words, quarter * bytes));
        builder.shim_task(column, from_memory(1), 1, passes);
        builder.shim_control(column, from_memory(1));
    }

    let mut result = ShimDescriptor::linear(rows * n / 4, quarter * u64::from(n));
    if !shape.is_single_row() {
        result.dimensions = [
            Dimension { step: 1, wrap: PASS_COLUMNS },
            Dimension { step: n, wrap: rows },
            Dimension { step: PASS_COLUMNS, wrap: 0 },
        ];
        result.iteration = Dimension { step: rows * n, wrap: ITERATION_WRAP };
    }
    builder.shim_descriptor(column, 2, 0, &result);
    builder.shim_task(column, to_memory(0), 2, passes);
    builder.shim_control(column, to_memory(0));
}

/// The descriptors, locks and tasks of a memory tile: the same in each column.
struct Layout {
    descriptors: Descriptors,
    next_lock: u8,
    /// Descriptors and the locks after them, in groups that are written for one column after
    /// another.
    groups: Vec<(Chain, Vec<(u8, u32)>)>,
    /// Groups of stages that are started for one column after another.
    weights: Vec<Vec<Stage>>,
    results: Vec<Stage>,
}

impl Layout {
    fn new(shape: &Shape) -> Self {
        let mut layout = Self {
            descriptors: Descriptors::default(),
            next_lock: OPEN + 1,
            groups: Vec::new(),
            weights: Vec::new(),
            results: Vec::new(),
        };
        layout.parameters(shape);
        layout.activations(shape);
        let mut base = shape.weights;
        if shape.is_single_row() {
            let pair = 2 * shape.subvolume;
            layout.split_weights(shape, to_memory(0), [1, 2], [base, base + 2 * pair]);
            base += pair;
            layout.split_weights(shape, to_memory(1), [3, 4], [base, base + 2 * pair]);
            base += 3 * pair;
        } else {
            let four = 4 * shape.subvolume;
            let bases = [base, base + four];
            if shape.subvolume == SUBVOLUME_WORDS {
                layout.chained_weights(shape, bases);
            } else {
                layout.split_weights(shape, to_memory(1), [1, 2, 3, 4], bases);
            }
            base += 2 * four;
        }
        layout.results(shape, base);
        layout
    }

    /// Takes the next locks.
    fn locks(&mut self, count: usize) -> Vec<u8> {
        let first = self.next_lock;
        self.next_lock += count as u8;
        (first..self.next_lock).collect()
    }

    fn write(&self, builder: &mut Builder) {
        for (descriptors, locks) in &self.groups {
            for column in 1..=WORKING_COLUMNS {
                for (index, descriptor) in descriptors {
                    builder.descriptor(column, *index, descriptor);
                }
                locks.iter().for_each(|(lock, value)| builder.lock(column, *lock, *value));
            }
        }
    }

    fn parameters(&mut self, shape: &Shape) {
        let locks = self.locks(2);
        let words = (parameter_bytes(shape.m, shape.group) / 4) as u32;
        let descriptors = [(to_memory(0), words, 0), (from_memory(0), PIECE_WORDS, 1)];
        let descriptors = descriptors.map(|(channel, words, from)| {
            let exchanged = exchange(locks[from], locks[1 - from], 1);
            let descriptor = MemoryDescriptor {
                locks: exchanged,
                ..MemoryDescriptor::linear(words, OWN_MEMORY)
            };
            (self.descriptors.take(channel), descriptor)
        });
        self.groups.push((descriptors.into(), vec![(locks[0], 1), (locks[1], 0)]));
    }

    /// A comes row by row, and is kept and sent in pieces of `group` columns.
    fn activations(&mut self, shape: &Shape) {
        let Shape { k, group, rows, piece, passes, .. } = *shape;
        let locks = if shape.is_stepped() { Vec::new() } else { self.locks(2) };
        let mut filled = MemoryDescriptor::linear(rows * k / 2, shape.activations);
        if rows > 1 {
            filled.dimensions[0].wrap = group / 2;
            filled.dimensions[1] = Dimension { step: piece, wrap: k / group };
            filled.dimensions[2].step = group / 2;
        }
        // Four descriptors, where four can share the pieces.
        let words = k / group * PIECE_WORDS;
        let parts = if piece == PIECE_WORDS || (k / group).is_multiple_of(4) { 4 } else { 1 };
        let mut sent =
            vec![MemoryDescriptor::linear(words / parts, shape.activations); parts as usize];
        let shift = rows * k / 2 / parts;
        if let [free, taken] = locks[..] {
            filled.locks = exchange(free, taken, passes as i8);
            let last = sent.len() - 1;
            if last > 0 {
                sent[0].locks = take_and_give(taken, 1, OPEN, 0);
                sent[last].locks = take_and_give(OPEN, 0, free, 1);
            } else {
                sent[0].locks = exchange(taken, free, 1);
            }
        }
        let mut chain = vec![(self.descriptors.take(to_memory(0)), filled)];
        if shape.is_stepped() {
            self.groups.push((std::mem::take(&mut chain), Vec::new()));
        }
        let indices: Vec<_> = sent.iter().map(|_| self.descriptors.take(from_memory(0))).collect();
        for (at, mut descriptor) in sent.into_iter().enumerate() {
            descriptor.base += at as u32 * shift;
            descriptor.dimensions[0].wrap = PIECE_WORDS;
            descriptor.dimensions[1].step = piece;
            descriptor.next = indices.get(at + 1).copied();
            chain.push((indices[at], descriptor));
        }
        let values = locks.iter().zip([passes, 0]).map(|(lock, value)| (*lock, value)).collect();
        self.groups.push((chain, values));
    }

    /// Buffers for W that all readers read at once: the channel that fills one waits for all of
    /// them.
    fn split_weights(
        &mut self,
        shape: &Shape,
        filler: Channel,
        readers: impl IntoIterator<Item = u8, IntoIter: Clone>,
        bases: [u32; 2],
    ) {
        let readers: Vec<_> = readers.into_iter().map(from_memory).collect();
        let mut buffers = Vec::new();
        let mut values = Vec::new();
        for base in bases {
            let locks = self.locks(readers.len() + 1);
            let words = readers.len() as u32 * shape.subvolume;
            let taken = take_and_give(locks[0], readers.len() as i8, locks[1], 1);
            let fill = MemoryDescriptor { locks: taken, ..MemoryDescriptor::linear(words, base) };
            let fill = self.signalling(filler, fill, &locks[2..]);
            let mut chains = vec![fill];
            for (at, reader) in readers.iter().enumerate() {
                let base = base + at as u32 * shape.subvolume;
                let locks = exchange(locks[at + 1], locks[0], 1);
                let read =
                    MemoryDescriptor { locks, ..MemoryDescriptor::linear(SUBVOLUME_WORDS, base) };
                chains.push(vec![(self.descriptors.take(*reader), read)]);
            }
            buffers.push(chains);
            values.push((locks[0], readers.len() as u32));
            values.extend(locks[1..].iter().map(|lock| (*lock, 0)));
        }
        let channels = [&[filler], &readers[..]].concat();
        let stages = self.join(&channels, buffers, values);
        self.weights.push(stages);
    }

    /// Buffers for W that are read by one core after the other.
    fn chained_weights(&mut self, shape: &Shape, bases: [u32; 2]) {
        let channels =
            [to_memory(1), from_memory(1), from_memory(2), from_memory(3), from_memory(4)];
        let mut buffers = Vec::new();
        let mut values = Vec::new();
        for base in bases {
            let locks = self.locks(channels.len());
            let chains = channels.iter().enumerate().map(|(at, channel)| {
                let (words, base) = if at == 0 {
                    (4 * shape.subvolume, base)
                } else {
                    (SUBVOLUME_WORDS, base + (at as u32 - 1) * shape.subvolume)
                };
                let exchanged = exchange(locks[at], locks[(at + 1) % locks.len()], 1);
                let descriptor =
                    MemoryDescriptor { locks: exchanged, ..MemoryDescriptor::linear(words, base) };
                vec![(self.descriptors.take(*channel), descriptor)]
            });
            buffers.push(chains.collect());
            values.extend(locks.iter().enumerate().map(|(at, lock)| (*lock, u32::from(at == 0))));
        }
        let stages = self.join(&channels, buffers, values);
        self.weights.push(stages);
    }

    /// Buffers for C: four cores send blocks, which leave as rows.
    fn results(&mut self, shape: &Shape, base: u32) {
        let fillers = [2, 3, 4, 5].map(to_memory);
        let sender = from_memory(5);
        let rows = Dimension { step: SUBVOLUME_COLUMNS, wrap: 0 };
        let blocks = Dimension { step: RESULT_WORDS, wrap: 0 };
        let pattern = if shape.is_single_row() {
            [Dimension { wrap: 1, ..rows }, blocks]
        } else {
            [Dimension { wrap: 4, ..blocks }, rows]
        };
        let mut buffers = Vec::new();
        let mut values = Vec::new();
        for base in [base, base + 4 * RESULT_WORDS] {
            let locks = self.locks(fillers.len() + 1);
            let all = locks[4];
            let mut chains: Vec<Chain> = Vec::new();
            for (at, filler) in fillers.iter().enumerate() {
                let base = base + at as u32 * RESULT_WORDS;
                let locks = exchange(locks[at], all, 1);
                let fill =
                    MemoryDescriptor { locks, ..MemoryDescriptor::linear(RESULT_WORDS, base) };
                chains.push(vec![(self.descriptors.take(*filler), fill)]);
            }
            let mut send = MemoryDescriptor::linear(shape.rows * PASS_COLUMNS, base);
            send.dimensions[0].wrap = SUBVOLUME_COLUMNS;
            send.dimensions[1..3].copy_from_slice(&pattern);
            send.locks = take_and_give(all, 4, locks[0], 1);
            chains.push(self.signalling(sender, send, &locks[1..4]));
            buffers.push(chains);
            values.extend(locks.iter().map(|lock| (*lock, u32::from(*lock != all))));
        }
        let channels = [&fillers[..], &[sender]].concat();
        self.results = self.join(&channels, buffers, values);
    }

    /// A descriptor, and one without words after it for each further lock that it releases: a
    /// descriptor can release only one.
    fn signalling(&mut self, channel: Channel, first: MemoryDescriptor, locks: &[u8]) -> Chain {
        let signals = locks.iter().map(|lock| MemoryDescriptor {
            locks: take_and_give(OPEN, 0, *lock, 1),
            ..MemoryDescriptor::linear(0, OWN_MEMORY)
        });
        let descriptors = [first].into_iter().chain(signals);
        descriptors.map(|descriptor| (self.descriptors.take(channel), descriptor)).collect()
    }

    /// Links the chains of both buffers of each channel, and writes them down as a group.
    fn join(
        &mut self,
        channels: &[Channel],
        mut buffers: Vec<Vec<Chain>>,
        values: Vec<(u8, u32)>,
    ) -> Vec<Stage> {
        let starts = |buffer: &[Chain]| buffer.iter().map(|chain| chain[0].0).collect::<Vec<_>>();
        let (both, second) = (starts(&buffers[0]), starts(&buffers[1]));
        for (buffer, after) in buffers.iter_mut().zip([Some(&second), None]) {
            for (at, chain) in buffer.iter_mut().enumerate() {
                let mut next = after.map(|starts| starts[at]);
                for (index, descriptor) in chain.iter_mut().rev() {
                    descriptor.next = next;
                    next = Some(*index);
                }
            }
        }
        self.groups.push((buffers.into_iter().flatten().flatten().collect(), values));
        let stages = channels.iter().zip(both).zip(second);
        stages.map(|((channel, both), second)| Stage { channel: *channel, both, second }).collect()
    }
}

/// Starts everything in the memory tiles and waits for it.
fn run(builder: &mut Builder, shape: &Shape, layout: &Layout) {
    let columns = || 1..=WORKING_COLUMNS;
    let (parameters_in, parameters_out) = (0, 1);
    let (activations_in, activations_out) = (2, 3);
    let input = [vec![to_memory(0)], vec![to_memory(0), from_memory(0)]];
    for column in columns() {
        builder.task(column, to_memory(0), parameters_in, 1);
        builder.task(column, from_memory(0), parameters_out, 1);
    }
    for round in 0..shape.m / shape.rows {
        if shape.is_stepped() {
            for column in columns() {
                builder.task(column, to_memory(0), activations_in, 1);
            }
            // The parameters left in the first round.
            wait(builder, &input[usize::from(round == 0)]);
            for _ in 0..shape.passes {
                for column in columns() {
                    builder.task(column, from_memory(0), activations_out, 1);
                }
                stages(builder, layout, shape.steps, 1);
                finish(builder, layout, &[from_memory(0)]);
            }
        } else {
            for column in columns() {
                builder.task(column, to_memory(0), activations_in, 1);
                builder.task(column, from_memory(0), activations_out, shape.passes);
            }
            stages(builder, layout, shape.steps * shape.passes, shape.passes);
            finish(builder, layout, &input[1]);
        }
    }
}

/// Starts the tasks of W and C.
fn stages(builder: &mut Builder, layout: &Layout, weights: u32, results: u32) {
    let groups = layout.weights.iter().map(|group| (group, weights));
    for (group, uses) in groups.chain([(&layout.results, results)]) {
        for column in 1..=WORKING_COLUMNS {
            for stage in group {
                builder.task(column, stage.channel, stage.both, uses / 2);
                builder.task(column, stage.channel, stage.second, uses % 2);
            }
        }
    }
}

/// Waits for A, W and C. A channel that was waited for is not waited for again.
fn finish(builder: &mut Builder, layout: &Layout, first: &[Channel]) {
    wait(builder, first);
    let mut done = first.to_vec();
    for group in layout.weights.iter().chain([&layout.results]) {
        let left: Vec<_> = group
            .iter()
            .map(|stage| stage.channel)
            .filter(|channel| !done.contains(channel))
            .collect();
        wait(builder, &left);
        done.extend(left);
    }
}

fn wait(builder: &mut Builder, channels: &[Channel]) {
    for column in 1..=WORKING_COLUMNS {
        channels.iter().for_each(|channel| builder.wait(Tile::new(column, 1), *channel));
    }
}
