//! Layers of one row on the device of the tests, whose launches hand their values on.

use std::ops::Range;
use std::sync::Arc;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use trine_model::{Ahead, Heads, KvType, Rope};

use crate::chain::{ChainMemory, Chains, mark};
use crate::dispatch::{Dispatch, Link, Span};
use crate::kernels::attention::bed::{Bed, Case, Sequence, random};
use crate::kernels::attention::{AttendDecodeShape, DecodeLaunch, Fused, OwnRows, Splits};
use crate::kernels::handles::Made;
use crate::kernels::heads::turns;
use crate::kernels::one_row::OneRowLaunch;
use crate::kernels::operand::{Operand, OperandKind};
use crate::kernels::product::{Product, ProductInput, ProductLaunch, ProductOutput, Segment};
use crate::pack::tests::{device_matrix, random_rows};
use crate::pack::{Format, Matrix};
use crate::raw::commands::Recording;
use crate::raw::copies::Copy;
use crate::raw::gpu::Gpu;
use crate::raw::memory::{Buffer, MemoryUse};
use crate::raw::transfer::Transfer;
use crate::testing::{download, gpu, poisoned, run, takes, upload};

const EPSILON: f32 = 1e-6;
/// Bytes from one value to the next in the memory of those that are handed on.
const APART: u64 = 16 << 10;
/// Values of a layer.
const VALUES: u64 = 9;

/// A model of some layers.
#[derive(Debug, Clone, Copy)]
struct Model {
    layers: u64,
    hidden: usize,
    inner: usize,
    heads: Heads,
    /// Positions before the row.
    depth: usize,
    kv: KvType,
    /// Whether values have a matrix of their own.
    is_apart: bool,
    seed: u64,
}

impl Model {
    /// Returns one of random sizes.
    fn random(seed: u64) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut one = |from: &[usize]| from[random.random_range(0..from.len())];
        let kv = one(&[1, 2]);
        Self {
            layers: one(&[1, 2, 3]) as u64,
            hidden: 32 * one(&[1, 5, 8, 33]),
            inner: 32 * one(&[2, 7, 16, 40]),
            heads: Heads { query: kv * one(&[1, 2, 3]), kv, dim: one(&[32, 64, 96, 256]) },
            depth: one(&[0, 3, 31, 200]),
            kv: [KvType::F32, KvType::F16, KvType::Int8][one(&[0, 1, 2])],
            is_apart: one(&[0, 1]) == 1,
            seed,
        }
    }
}

/// What the launches of a model are made from.
struct Maker {
    gpu: Arc<Gpu>,
    random: ChaCha8Rng,
    fresh: Buffer,
    values: Vec<Span>,
    kept: Vec<Buffer>,
    /// Attention's partial sums and its counters, of all layers.
    shared: Option<[Buffer; 2]>,
    dispatches: Vec<Dispatch>,
}

impl Maker {
    /// Memory of a value that is handed on.
    fn value(&mut self, count: usize) -> Span {
        let span = self.fresh.part(APART * self.values.len() as u64, 4 * count as u64).span();
        self.values.push(span);
        span
    }

    fn floats(&mut self, count: usize) -> Buffer {
        let values = random(count, 1.0, &mut self.random);
        let buffer = upload(&self.gpu, &values);
        self.kept.push(buffer.clone());
        buffer
    }

    /// A matrix of a random format: with scales of 8, 16 and 32 bits, with factors and with points.
    fn matrix(&mut self, rows: usize, columns: usize) -> Matrix {
        use Format::{Iq2Xxs, Mxfp4, Q4_0, Q4_1, Q4K, Q6K, Q8_0};
        let all = [Q4_0, Q8_0, Q4_1, Mxfp4, Q4K, Q6K, Iq2Xxs];
        let formats = if columns.is_multiple_of(256) { &all[..] } else { &all[..4] };
        let format = formats[self.random.random_range(0..formats.len())];
        let source = random_rows(format, rows, columns, self.random.random());
        let (matrix, memory) = device_matrix(&self.gpu, format, columns, &source);
        self.kept.push(memory);
        matrix
    }

    fn product(&mut self, matrix: Matrix, input: ProductInput, output: ProductOutput) {
        let launch = OneRowLaunch(Product { matrix, width: 1, input, output });
        let shapes = launch.offer(self.gpu.capabilities());
        let shape = shapes[self.random.random_range(0..shapes.len())];
        self.dispatches.push(launch.dispatch(&self.gpu, shape, "product", 0).unwrap());
    }

    /// The norms of what is added to a stream and of the sum, for a product that writes the sum and
    /// for another one; returns the sum too.
    fn norms(&mut self, x: Span, added: Span) -> ([ProductInput; 2], Span) {
        let count = x.bytes as usize / 4;
        let [weight, added_weight] = [(); 2].map(|()| self.floats(count).address());
        let x_out = self.value(count);
        let (scale, epsilon) = (0.9, EPSILON);
        let input = |x_out| ProductInput::NormAddNorm {
            x,
            scale,
            added,
            added_weight,
            weight,
            epsilon,
            x_out,
        };
        ([Some(x_out), None].map(input), x_out)
    }

    /// Attention of the row, which also norms, rotates and stores it.
    fn attention(&mut self, bed: &Bed, [query, key, value]: [Span; 3]) -> Span {
        let Heads { query: count, dim, .. } = bed.case.heads;
        let capabilities = self.gpu.capabilities();
        let shape = AttendDecodeShape::suited(capabilities, &bed.attention, bed.case.kind, 1);
        let gpu = &self.gpu;
        let [scratch, counters] = self.shared.get_or_insert_with(|| {
            let counters = DecodeLaunch::counter_bytes(bed.attention.heads, 1) as usize;
            let scratch = DecodeLaunch::scratch_bytes(&bed.attention, 1, &shape);
            [poisoned(gpu, scratch), upload(gpu, &vec![0_u8; counters])]
        });
        let [partials, counters] = [scratch, counters].map(|buffer| buffer.span());
        let [query_norm, key_norm] = [(); 2].map(|()| Some(self.floats(dim).address()));
        let rope = upload(&self.gpu, &turns(dim, Rope::full(10_000.0, 1.0)));
        let plain = self.value(count * dim);
        let launch = DecodeLaunch {
            attention: bed.attention,
            cache: bed.cache,
            frame: bed.frame.addresses,
            rows: 1,
            query,
            made: Made::Rows(plain),
            splits: (shape.splits > 1).then_some(Splits { partials, counters }),
            fused: Some(Fused {
                query_norm,
                rope: Some(rope.address()),
                epsilon: EPSILON,
                own: Some(OwnRows { key, value, key_norm, value_norm: false }),
            }),
            shape,
        };
        self.kept.push(rope);
        self.dispatches.push(launch.dispatch(&self.gpu, "attention", 0).unwrap());
        plain
    }

    /// A layer: returns the stream, and what is to be added to it.
    fn layer(&mut self, model: &Model, bed: &Bed, x: Span, added: Span) -> [Span; 2] {
        let Model { hidden, inner, heads, .. } = *model;
        let parts = [heads.query, heads.kv, heads.kv].map(|count| count * heads.dim);
        let segments = parts.map(|rows| Segment { rows, target: self.value(rows) });
        let (inputs, x) = self.norms(x, added);
        let (first, others) = segments.split_at(if model.is_apart { 2 } else { 3 });
        for (input, segments) in inputs.into_iter().zip([first, others]) {
            if !segments.is_empty() {
                let matrix = self.matrix(segments.iter().map(|part| part.rows).sum(), hidden);
                self.product(matrix, input, ProductOutput::segments(segments));
            }
        }

        let attended = self.attention(bed, segments.map(|segment| segment.target));
        let matrix = self.matrix(hidden, parts[0]);
        let segments = [Segment { rows: hidden, target: self.value(hidden) }];
        let input = ProductInput::Operand(operand(OperandKind::Plain, attended));
        self.product(matrix, input, ProductOutput::segments(&segments));

        let matrix = self.matrix(2 * inner, hidden);
        let ([input, _], x) = self.norms(x, segments[0].target);
        let gated = operand(OperandKind::Interleaved, self.value(inner));
        self.product(matrix, input, ProductOutput::Gated(Made::Operand(gated)));

        let matrix = self.matrix(hidden, inner);
        let segments = [Segment { rows: hidden, target: self.value(hidden) }];
        self.product(matrix, ProductInput::Operand(gated), ProductOutput::segments(&segments));
        [x, segments[0].target]
    }
}

fn operand(kind: OperandKind, codes: Span) -> Operand {
    Operand { kind, codes, scales: Span { address: 0, bytes: 0 } }
}

/// A model on the device.
struct Layers {
    gpu: Arc<Gpu>,
    dispatches: Vec<Dispatch>,
    /// Memory of what is handed on.
    fresh: Buffer,
    /// The values there.
    values: Vec<Span>,
    /// Each cache, and a copy of what was in it before.
    caches: Vec<[Buffer; 2]>,
    _kept: (Vec<Buffer>, Vec<Bed>),
}

/// The bits of all values, and those of the caches.
#[derive(PartialEq, Eq)]
struct Found {
    values: Vec<Vec<u32>>,
    caches: Vec<Vec<u32>>,
}

impl Layers {
    fn new(model: &Model) -> Self {
        let gpu = gpu();
        let bed = |layer: u64| {
            Bed::new(Case {
                heads: model.heads,
                kind: model.kv,
                window: None,
                sequences: vec![Sequence { depth: model.depth, rows: 1 }],
                run: 1,
                ahead: Ahead::Nothing,
                tile_rows: 1,
                spare: 0,
                sizes: [1.0; 3],
                seed: model.seed + layer,
            })
        };
        let beds: Vec<Bed> = (0..model.layers).map(bed).collect();
        let mut maker = Maker {
            fresh: poisoned(&gpu, APART * VALUES * model.layers),
            gpu: gpu.clone(),
            random: ChaCha8Rng::seed_from_u64(model.seed),
            values: Vec::new(),
            kept: Vec::new(),
            shared: None,
            dispatches: Vec::new(),
        };
        let [mut x, mut added] = [(); 2].map(|()| {
            let address = maker.floats(model.hidden).address();
            Span { address, bytes: 4 * model.hidden as u64 }
        });
        for bed in &beds {
            [x, added] = maker.layer(model, bed, x, added);
        }
        let cache = |bed: &Bed| {
            let kept = gpu.allocate(bed.memory.bytes(), MemoryUse::Device, "a test").unwrap();
            copy(&gpu, &bed.memory, &kept);
            [bed.memory.clone(), kept]
        };
        let caches = beds.iter().map(cache).collect();
        let Maker { fresh, values, mut kept, shared, dispatches, .. } = maker;
        kept.extend(shared.into_iter().flatten());
        Self { gpu, dispatches, fresh, values, caches, _kept: (kept, beds) }
    }

    /// Returns what `run` leaves. Values were NaN before, with the bit of those that are there.
    fn after(&self, run: impl FnOnce()) -> Found {
        let spoiled = poisoned(&self.gpu, self.fresh.bytes());
        copy(&self.gpu, &spoiled, &self.fresh);
        self.caches.iter().for_each(|[cache, kept]| copy(&self.gpu, kept, cache));
        run();
        let words: Vec<u32> = download(&self.gpu, &self.fresh);
        let value = |span: &Span| {
            let at = (span.address - self.fresh.address()) as usize / 4;
            words[at..at + span.bytes as usize / 4].to_vec()
        };
        Found {
            values: self.values.iter().map(value).collect(),
            caches: self.caches.iter().map(|[cache, _]| download(&self.gpu, cache)).collect(),
        }
    }

    /// Runs some of the launches of a chain. All memory of values is 0 before, or only a `missing`
    /// part. Returns whether none gave up.
    fn run_chained(&self, range: Range<usize>, missing: Option<Span>) -> bool {
        let mut dispatches = self.dispatches.clone();
        let memory = ChainMemory::new(&self.gpu, 0).unwrap();
        let transfer = Transfer::new(&self.gpu);
        let fresh = Some(self.fresh.clone());
        let chains = Chains::link(&self.gpu, &memory, &transfer, &mut dispatches, fresh);
        transfer.finish().unwrap();
        let chains = chains.unwrap().expect("they can be chained");
        let mut before = chains.before();
        assert_eq!(before.zeros.len(), 1, "they hand values on");
        if let Some(word) = missing {
            before.zeros = vec![self.fresh.part(word.address - self.fresh.address(), word.bytes)];
        }
        let dispatches = &mut dispatches[range];
        // A barrier stands before it.
        dispatches[0].link = Link::First;
        let recording = Recording::prepared(&self.gpu, &before, dispatches, &[], &[]);
        recording.unwrap().run("a test").unwrap();
        !chains.has_failed()
    }
}

fn copy(gpu: &Arc<Gpu>, from: &Buffer, to: &Buffer) {
    let copy = Copy { from: from.clone(), to: to.clone(), bytes: to.bytes() };
    Recording::record(gpu, &[], &[copy], &[]).unwrap().run("a test").unwrap();
}

#[test]
fn layers_compute_in_a_chain_what_they_compute_between_barriers() {
    let random = (0..35).filter(|&seed| takes(seed as usize, 7)).map(Model::random);
    // Layers whose attention several workgroups share, by memory that all layers use.
    let shared = (35..43).filter(|&seed| takes(seed as usize, 8)).map(|seed| Model {
        layers: 3,
        depth: 400,
        ..Model::random(seed)
    });
    for model in random.chain(shared) {
        let layers = Layers::new(&model);
        let mut marked = layers.dispatches.clone();
        mark(&mut marked, layers.fresh.span());
        let expected = layers.after(|| run(&layers.gpu, &marked));
        let plain = layers.after(|| run(&layers.gpu, &layers.dispatches));
        // Queries, keys, values and the updated stream: the bit is all that changes.
        for (marked, plain) in expected.values[..4].iter().zip(&plain.values) {
            let with_bit: Vec<u32> = plain.iter().map(|word| word | 1).collect();
            assert!(*marked == with_bit, "{model:?}");
        }
        for turn in 0..3 {
            let all = 0..layers.dispatches.len();
            let found =
                layers.after(|| assert!(layers.run_chained(all.clone(), None), "{model:?}"));
            let differs = |at: &usize| found.values[*at] != expected.values[*at];
            let first = (0..found.values.len()).find(differs);
            assert!(first.is_none(), "{model:?}, turn {turn}: value {first:?}");
            assert!(found == expected, "{model:?}, turn {turn}: the caches");
        }
    }
}

/// Not even if memory has the bit of earlier values.
#[test]
fn values_that_never_come_are_given_up() {
    for is_apart in [false, true] {
        let layers = Layers::new(&Model { layers: 2, depth: 3, is_apart, ..Model::random(1) });
        for first in 1..=layers.dispatches.len() / 2 {
            let rest = first..layers.dispatches.len();
            layers.after(|| assert!(!layers.run_chained(rest, None), "without {first} launches"));
        }
    }
}

#[test]
fn a_launch_looks_at_every_value_that_it_takes() {
    for is_apart in [false, true] {
        let layers = Layers::new(&Model { layers: 2, depth: 40, is_apart, ..Model::random(1) });
        for at in 1..layers.dispatches.len() {
            looks_at_every_value(&layers, at);
        }
    }
}

fn looks_at_every_value(layers: &Layers, at: usize) {
    let fresh = layers.fresh.span();
    let hands = layers.dispatches[at].hands.as_ref().unwrap();
    // What the first layer reads was there before the chain.
    let looked_at = hands.takes.iter().copied().chain(hands.residual);
    for span in looked_at.filter(|span| fresh.contains(*span)) {
        for word in [0, span.bytes / 8 * 4, span.bytes - 4] {
            let missing = Span { address: span.address + word, bytes: 4 };
            let run = || layers.run_chained(at..at + 1, Some(missing));
            layers.after(|| assert!(!run(), "launch {at}, {span:?}, byte {word}"));
        }
    }
    // The spoiled values have the bit.
    let elsewhere = layers.values[layers.values.len() - 1];
    let run = || layers.run_chained(at..at + 1, Some(elsewhere));
    layers.after(|| assert!(run(), "launch {at} has all"));
}
