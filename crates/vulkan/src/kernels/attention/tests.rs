use half::f16;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use trine_model::{Ahead, Heads, KvType, Rope};

use super::bed::{Bed, Case, Sequence, random};
use super::*;
use crate::dispatch::{Dispatch, Span};
use crate::kernels::handles::Made;
use crate::kernels::heads::{Factors, HeadsLaunch, Rotated, Stored, turns};
use crate::kernels::limits::ValueLimits;
use crate::kernels::operand::{Operand, OperandKind, fragment_place};
use crate::kernels::rows::tests::allocated;
use crate::raw::memory::Buffer;
use crate::testing::{download, poisoned, run, takes, upload};

mod direct;
mod towers;
mod whole;
mod wide;

const KINDS: [KvType; 3] = [KvType::F32, KvType::F16, KvType::Int8];

fn heads(query: usize, kv: usize, dim: usize) -> Heads {
    Heads { query, kv, dim }
}

/// Returns a case with random sequences of `rows` rows in all.
fn traffic(
    heads: Heads,
    kind: KvType,
    window: Option<usize>,
    depth: usize,
    rows: usize,
    seed: u64,
) -> Case {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut sequences = Vec::new();
    let mut left = rows;
    while left > 0 {
        let rows = random.random_range(1..=left);
        sequences.push(Sequence { depth: random.random_range(0..=depth), rows });
        left -= rows;
    }
    sequences[0].depth = depth;
    let run = [1, 5, 40][seed as usize % 3];
    let tile_rows = TILE_ROWS * [1, 4][seed as usize % 2];
    let ahead = [Ahead::All, Ahead::Nothing, Ahead::Window][seed as usize / 3 % 3];
    let sizes = [2.0, 2.0, 3.0];
    Case { heads, kind, window, sequences, run, ahead, tile_rows, spare: 1, sizes, seed }
}

/// Memory of a decode launch.
struct Decode {
    output: Buffer,
    codes: Buffer,
    scales: Buffer,
    scratch: Buffer,
    counters: Buffer,
    query: Buffer,
}

impl Decode {
    fn new(bed: &Bed, shape: &AttendDecodeShape, query: &[f32]) -> Self {
        let kind = OperandKind::Fixed16;
        let columns = bed.columns();
        let counters = DecodeLaunch::counter_bytes(bed.attention.heads, bed.width) as usize / 4;
        Self {
            output: bed.output(),
            codes: poisoned(&bed.gpu, (bed.width * kind.code_bytes(columns)) as u64),
            scales: poisoned(&bed.gpu, (bed.width * kind.scale_bytes(columns)) as u64),
            scratch: poisoned(
                &bed.gpu,
                DecodeLaunch::scratch_bytes(&bed.attention, bed.width, shape),
            ),
            counters: upload(&bed.gpu, &vec![0_u32; counters]),
            query: bed.rows_of(query),
        }
    }

    fn launch(&self, bed: &Bed, shape: AttendDecodeShape, operand: bool) -> DecodeLaunch {
        let (plain, kind) = (self.output.span(), OperandKind::Fixed16);
        let fixed = Operand { kind, codes: self.codes.span(), scales: self.scales.span() };
        DecodeLaunch {
            attention: bed.attention,
            cache: bed.cache,
            frame: bed.frame.addresses,
            rows: bed.width,
            query: self.query.span(),
            made: if operand { Made::Both(plain, fixed) } else { Made::Rows(plain) },
            splits: (shape.splits > 1)
                .then(|| Splits { partials: self.scratch.span(), counters: self.counters.span() }),
            fused: None,
            shape,
        }
    }
}

/// Memory of an operand in halves.
struct Halves {
    kind: OperandKind,
    codes: Buffer,
    scales: Buffer,
}

impl Halves {
    fn new(bed: &Bed, kind: OperandKind) -> Self {
        let rows = allocated(kind, bed.width);
        Self {
            kind,
            codes: poisoned(&bed.gpu, (rows * kind.code_bytes(bed.columns())) as u64),
            scales: poisoned(&bed.gpu, (bed.width * kind.scale_bytes(0)) as u64),
        }
    }

    fn operand(&self) -> Operand {
        let (codes, scales) = (self.codes.span(), self.scales.span());
        Operand { kind: self.kind, codes, scales }
    }

    /// Asserts that the operand is what the launch writes in f32, rounded, and that nothing is
    /// written after the rows.
    fn check(&self, bed: &Bed, plain: &[f32]) {
        let columns = bed.columns();
        let codes: Vec<u16> = download(&bed.gpu, &self.codes);
        let scales: Vec<f32> = download(&bed.gpu, &self.scales);
        let place = |at| match self.kind {
            OperandKind::Fragments => fragment_place(at / columns, at % columns, columns),
            _ => at,
        };
        let codes: Vec<u16> =
            (0..allocated(self.kind, bed.width) * columns).map(|at| codes[place(at)]).collect();
        let (rows, rest) = codes.split_at(bed.rows * columns);
        for (at, (&code, &wanted)) in rows.iter().zip(plain).enumerate() {
            let unit = scales[at / columns];
            let found = f16::from_bits(code).to_f32() * unit;
            let slack = wanted.abs() / 2048.0 + unit * 2.0_f32.powi(-24);
            assert!((found - wanted).abs() <= slack, "{:?} {at}: {found} {wanted}", bed.case);
        }
        assert!(rest.iter().all(|&code| code == u16::MAX), "{:?}", bed.case);
        let rest = &scales[bed.rows..bed.width];
        assert!(rest.iter().all(|scale| scale.to_bits() == u32::MAX), "{:?}", bed.case);
    }
}

fn shape(bed: &Bed, splits: u32, unroll: u32) -> AttendDecodeShape {
    let suited =
        AttendDecodeShape::suited(bed.gpu.capabilities(), &bed.attention, bed.case.kind, bed.width);
    AttendDecodeShape { splits, unroll, ..suited }
}

/// Returns the values of a row of the fixed-point operand, padding included.
fn fixed(codes: &[i8], scales: &[f32], columns: usize) -> Vec<f32> {
    let value = |c: usize| {
        let (group, block, within) = (c / 128, c % 128 / 32, c % 32);
        let at = group * 256 + within / 16 * 64 + block * 16 + within % 16;
        scales[2 * (c / 32)] * (256.0 * f32::from(codes[at]) + f32::from(codes[at + 128]))
    };
    (0..columns.next_multiple_of(128)).map(value).collect()
}

/// Decodes the bed's rows twice and checks both results.
fn decode(mut bed: Bed, shape: AttendDecodeShape) {
    bed.store_rows();
    let expected = bed.expected(&bed.query);
    let memory = Decode::new(&bed, &shape, &bed.query);
    let dim = bed.case.heads.dim;
    let operand = dim.is_multiple_of(32);
    let launch = memory.launch(&bed, shape, operand);
    let dispatch = launch.dispatch(&bed.gpu, "attend", 0).unwrap();
    run(&bed.gpu, std::slice::from_ref(&dispatch));
    let found: Vec<f32> = download(&bed.gpu, &memory.output);
    bed.check(&found, &expected, 1e-5, &format!("{shape:?}"));
    let counters: Vec<u32> = download(&bed.gpu, &memory.counters);
    let used = DecodeLaunch::counter_bytes(bed.attention.heads, bed.width) as usize / 4;
    assert!(counters[..used].iter().all(|&count| count == 0), "counters are left at 0");
    if operand {
        let columns = bed.columns();
        let kind = OperandKind::Fixed16;
        let codes: Vec<i8> = download(&bed.gpu, &memory.codes);
        let scales: Vec<f32> = download(&bed.gpu, &memory.scales);
        for row in 0..bed.rows {
            let codes = &codes[row * kind.code_bytes(columns)..][..kind.code_bytes(columns)];
            let count = kind.scale_bytes(columns) / 4;
            let scales = &scales[row * count..][..count];
            let values = fixed(codes, scales, columns);
            let row = &found[row * columns..(row + 1) * columns];
            for (block, values) in values.chunks(32).enumerate() {
                let wanted: Vec<f32> =
                    (0..32).map(|c| row.get(32 * block + c).copied().unwrap_or(0.0)).collect();
                let high = wanted.iter().fold(0.0_f32, |high, x| high.max(x.abs()));
                let sum: f32 = wanted.iter().sum();
                assert!((scales[2 * block + 1] - sum).abs() <= 1e-5 * high, "sum of {block}");
                for (value, wanted) in values.iter().zip(&wanted) {
                    assert!((value - wanted).abs() <= 2e-5 * high, "{value} {wanted}");
                }
            }
        }
    }
    if bed.attention.gives_halves(bed.case.kind) {
        let launch = memory.launch(&bed, shape, false);
        for kind in [OperandKind::Halves, OperandKind::Fragments] {
            let halves = Halves::new(&bed, kind);
            let launch = DecodeLaunch { made: Made::Operand(halves.operand()), ..launch };
            run(&bed.gpu, &[launch.dispatch(&bed.gpu, "attend", 0).unwrap()]);
            halves.check(&bed, &found);
        }
    }
    run(&bed.gpu, &[dispatch]);
    let again: Vec<f32> = download(&bed.gpu, &memory.output);
    let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<u32>>();
    assert_eq!(bits(&found), bits(&again), "{shape:?} {:?}", bed.case);
}

#[test]
fn few_rows_agree_with_the_reference() {
    let cases = [
        (heads(2, 2, 64), None, 70, 3, 1),
        (heads(4, 2, 128), None, 150, 2, 4),
        (heads(8, 2, 32), Some(40), 100, 3, 3),
        (heads(8, 1, 64), Some(16), 60, 2, 2),
        (heads(2, 1, 256), Some(33), 90, 2, 16),
        (heads(3, 1, 20), None, 40, 3, 2),
        (heads(2, 1, 4), Some(5), 12, 3, 1),
        (heads(6, 2, 96), None, 34, 1, 16),
    ];
    for (at, (heads, window, depth, rows, splits)) in cases.into_iter().enumerate() {
        let kind = KINDS[at % 3];
        let bed = Bed::new(traffic(heads, kind, window, depth, rows, at as u64));
        let shape = shape(&bed, splits, [1, 2, 4][at % 3]);
        decode(bed, shape);
    }
}

#[test]
fn every_type_of_cache_agrees_in_wide_and_odd_heads() {
    for (at, kind) in KINDS.into_iter().enumerate() {
        for (dim, splits) in [(512, 5), (6, 3)] {
            let case = traffic(heads(2, 1, dim), kind, None, 200, 2, 20 + at as u64);
            let bed = Bed::new(case);
            let shape = shape(&bed, splits, 2);
            decode(bed, shape);
        }
    }
}

#[test]
fn layouts_of_every_kind_agree() {
    // Several loads of a lane, sums that teams can share out and sums that they cannot, and more
    // blocks in flight than a narrow subgroup can hold the numbers of.
    let cases = [
        (heads(4, 2, 64), KvType::F16, 64, 2, 1, 3, 1, 1, 16),
        (heads(3, 1, 32), KvType::Int8, 16, 1, 2, 2, 2, 3, 16),
        (heads(2, 1, 12), KvType::F32, 64, 8, 4, 4, 1, 1, 16),
        (heads(2, 1, 48), KvType::Int8, 16, 2, 2, 3, 1, 1, 8),
        (heads(4, 2, 128), KvType::Int8, 32, 4, 1, 4, 4, 1, 8),
        (heads(4, 2, 64), KvType::F16, 32, 8, 4, 1, 1, 1, 16),
    ];
    for (at, case) in cases.into_iter().enumerate() {
        let (heads, kind, local, lanes, unroll, splits, alone, least, elements) = case;
        let bed = Bed::new(traffic(heads, kind, [None, Some(90)][at % 2], 300, 2, 30 + at as u64));
        let subgroup = bed.gpu.capabilities().subgroup;
        let local = local.max(2 * subgroup);
        let queries = heads.query as u32 / heads.kv as u32;
        let shape =
            AttendDecodeShape { local, lanes, unroll, queries, splits, alone, least, elements };
        decode(bed, shape);
    }
}

#[test]
fn any_number_of_splits_gives_the_same() {
    for splits in (1..=16).filter(|&splits| splits == 16 || takes(splits - 1, 2)) {
        // The smallest kernel, because each number of splits is a kernel of its own.
        let mut case = traffic(heads(1, 1, 4), KvType::F32, [None, Some(100)][splits % 2], 0, 1, 5);
        case.sequences = [3, 31, 32, 260].map(|depth| Sequence { depth, rows: 1 }).to_vec();
        let bed = Bed::new(case);
        let shape = shape(&bed, splits as u32, 1);
        decode(bed, shape);
    }
}

#[test]
fn more_work_than_workgroups_takes_turns() {
    let mut bed = Bed::new(traffic(heads(4, 2, 32), KvType::F16, None, 100, 4, 8));
    bed.store_rows();
    let expected = bed.expected(&bed.query);
    let shape = shape(&bed, 3, 1);
    let memory = Decode::new(&bed, &shape, &bed.query);
    let mut dispatch = memory.launch(&bed, shape, false).dispatch(&bed.gpu, "attend", 0).unwrap();
    // Not a divisor of the work, and fewer than the shares of one row.
    dispatch.groups = [2, 1, 1];
    run(&bed.gpu, &[dispatch]);
    bed.check(&download::<f32>(&bed.gpu, &memory.output), &expected, 1e-5, "turns");
}

/// Norm weights, and the table of turns.
struct Parameters {
    weights: [Buffer; 2],
    table: Buffer,
}

impl Parameters {
    fn new(bed: &Bed) -> Self {
        let dim = bed.case.heads.dim;
        let mut source = ChaCha8Rng::seed_from_u64(77);
        let mut weights = || upload(&bed.gpu, &random(dim, 2.0, &mut source));
        let rope = Rope::full(10_000.0, 1.0);
        Self { weights: [weights(), weights()], table: upload(&bed.gpu, &turns(dim, rope)) }
    }
}

#[test]
fn a_fused_launch_does_what_two_do() {
    let cases = [
        (heads(4, 2, 512), None, &[70][..], 3),
        (heads(8, 1, 32), Some(20), &[63, 0, 70], 4),
        (heads(2, 2, 20), None, &[64], 2),
        (heads(16, 1, 64), None, &[0], 4),
        (heads(2, 1, 128), Some(64), &[96], 1),
        (heads(4, 2, 64), None, &[33, 1, 0, 96, 64], 3),
    ];
    for (at, (heads, window, depths, splits)) in cases.into_iter().enumerate() {
        for kind in (0..3).filter(|&turn| takes(turn, 3)).map(|turn| KINDS[(at + turn) % 3]) {
            let make = || {
                let mut case = traffic(heads, kind, window, 0, 1, 40 + at as u64);
                // Each row is of another sequence; some steps have fewer rows than there is room
                // for.
                case.sequences = depths.iter().map(|&depth| Sequence { depth, rows: 1 }).collect();
                case.spare = depths.len() / 2;
                Bed::new(case)
            };
            let (apart, together) = (make(), make());
            // As many subgroups as there are heads to prepare, fewer, and more.
            let local = [32, 64, 16, 128, 256, 64][at].max(apart.gpu.capabilities().subgroup);
            let shape = AttendDecodeShape { local, ..shape(&apart, splits, 2) };
            let found = [apart_launches(&apart, shape), fused_launch(&together, shape)];
            let [plain, fused] = found.map(|(memory, dispatches, kept)| {
                run(&apart.gpu, &dispatches);
                drop(kept);
                download::<f32>(&apart.gpu, &memory.output)
            });
            let plain = &plain[..apart.rows * apart.columns()];
            apart.check(&fused, plain, 1e-5, &format!("fused {shape:?}"));
            let caches = [&apart, &together].map(|bed| download::<u8>(&bed.gpu, &bed.memory));
            assert!(caches[0] == caches[1], "the caches differ: {:?}", apart.case);
        }
    }
}

/// With keys and values in the cache, several rows may be of one sequence; with value norms, the
/// launch stores normed values.
#[test]
fn a_launch_that_prepares_queries_does_what_two_do() {
    let cases = [(heads(4, 2, 64), None, 70, 3, 3), (heads(8, 1, 20), Some(16), 60, 2, 2)];
    for (at, (heads, window, depth, rows, splits)) in cases.into_iter().enumerate() {
        let kind = KINDS[at];
        let mut bed = Bed::new(traffic(heads, kind, window, depth, rows, 60 + at as u64));
        bed.store_rows();
        let parameters = Parameters::new(&bed);
        let shape = shape(&bed, splits, 2);
        let memory = Decode::new(&bed, &shape, &bed.query);
        let query_norm = Some(parameters.weights[0].address());
        let rope = Some(parameters.table.address());
        let fused = Fused { query_norm, rope, epsilon: 1e-6, own: None };
        // All rows are picked, in another order than the step has them.
        let picks: Vec<usize> = (0..rows).rev().collect();
        let frame = bed.picking(&picks);
        let launch = DecodeLaunch {
            frame: frame.addresses,
            fused: Some(fused),
            ..memory.launch(&bed, shape, false)
        };
        let dispatch = launch.dispatch(&bed.gpu, "queries", 0).unwrap();
        run(&bed.gpu, &[dispatch]);
        let dim = heads.dim;
        let rope = Rope::full(10_000.0, 1.0);
        let weight: Vec<f32> = download(&bed.gpu, &parameters.weights[0]);
        // The rows of the launch are as they are in memory; their places are those of the picks.
        let mut queries = bed.query.clone();
        trine_backend::reference::ops::norm(&bed.query, &weight[..dim], 1e-6, &mut queries);
        let positions: Vec<u32> = picks.iter().map(|&row| bed.positions[row]).collect();
        trine_backend::reference::ops::rotate(&mut queries, &positions, heads.query, dim, rope);
        let columns = bed.columns();
        let mut turned = vec![0.0; queries.len()];
        for (at, row) in picks.iter().enumerate() {
            turned[row * columns..][..columns].copy_from_slice(&queries[at * columns..][..columns]);
        }
        let attended = bed.expected(&turned);
        let expected: Vec<f32> =
            picks.iter().flat_map(|row| attended[row * columns..][..columns].to_vec()).collect();
        bed.check(&download::<f32>(&bed.gpu, &memory.output), &expected, 2e-5, "queries");
    }
}

#[test]
fn a_fused_launch_norms_values() {
    let make = || {
        let mut case = traffic(heads(4, 2, 64), KvType::F16, None, 0, 1, 71);
        case.sequences = [70, 0].map(|depth| Sequence { depth, rows: 1 }).to_vec();
        Bed::new(case)
    };
    let (bed, mut normed) = (make(), make());
    let ones = vec![1.0; 64];
    let values = normed.value.clone();
    trine_backend::reference::ops::norm(&values, &ones, 1e-6, &mut normed.value);
    let shape = shape(&bed, 3, 2);
    let found = [(&bed, true), (&normed, false)].map(|(bed, value_norm)| {
        let parameters = Parameters::new(bed);
        let memory = Decode::new(bed, &shape, &bed.query);
        let [key, value] = [&bed.key, &bed.value].map(|values| bed.rows_of(values));
        let own = OwnRows {
            key: key.span(),
            value: value.span(),
            key_norm: Some(parameters.weights[1].address()),
            value_norm,
        };
        let fused = Fused {
            query_norm: Some(parameters.weights[0].address()),
            rope: Some(parameters.table.address()),
            epsilon: 1e-6,
            own: Some(own),
        };
        let launch = DecodeLaunch { fused: Some(fused), ..memory.launch(bed, shape, false) };
        run(&bed.gpu, &[launch.dispatch(&bed.gpu, "fused", 0).unwrap()]);
        download::<f32>(&bed.gpu, &memory.output)
    });
    let [values, expected] = found;
    // A normed value may be rounded to the half beside it.
    bed.check(&values, &expected[..bed.rows * bed.columns()], 2e-3, "values");
}

type Launches = (Decode, Vec<Dispatch>, (Parameters, [Buffer; 2]));

fn apart_launches(bed: &Bed, shape: AttendDecodeShape) -> Launches {
    let parameters = Parameters::new(bed);
    let memory = Decode::new(bed, &shape, &bed.query);
    let [key, value] = [&bed.key, &bed.value].map(|values| bed.rows_of(values));
    let heads = HeadsLaunch {
        frame: bed.frame.addresses,
        rows: bed.width,
        dim: bed.case.heads.dim,
        query: Some(Rotated {
            query: memory.query.span(),
            turned: memory.query.span(),
            heads: bed.case.heads.query,
            query_norm: Some(Factors::Of(parameters.weights[0].address())),
        }),
        stored: Some(Stored {
            key: key.span(),
            value: value.span(),
            cache: bed.cache,
            biases: None,
            key_norm: Some(parameters.weights[1].address()),
            value_norm: false,
        }),
        rope: Some(parameters.table.address()),
        side: 0,
        within: [ValueLimits::NONE; 3],
        epsilon: 1e-6,
    };
    let dispatches = vec![
        heads.dispatch(&bed.gpu, "heads", 0).unwrap(),
        memory.launch(bed, shape, false).dispatch(&bed.gpu, "attend", 0).unwrap(),
    ];
    (memory, dispatches, (parameters, [key, value]))
}

fn fused_launch(bed: &Bed, shape: AttendDecodeShape) -> Launches {
    let parameters = Parameters::new(bed);
    let memory = Decode::new(bed, &shape, &bed.query);
    let [key, value] = [&bed.key, &bed.value].map(|values| bed.rows_of(values));
    let mut launch = memory.launch(bed, shape, false);
    launch.fused = Some(Fused {
        query_norm: Some(parameters.weights[0].address()),
        rope: Some(parameters.table.address()),
        epsilon: 1e-6,
        own: Some(OwnRows {
            key: key.span(),
            value: value.span(),
            key_norm: Some(parameters.weights[1].address()),
            value_norm: false,
        }),
    });
    let dispatches = vec![launch.dispatch(&bed.gpu, "fused", 0).unwrap()];
    (memory, dispatches, (parameters, [key, value]))
}

/// Runs a launch for many rows over the bed and checks it.
fn check_rows(bed: &Bed, part: f32, what: &str, make: impl Fn(&Bed, Span, Span) -> Dispatch) {
    let expected = bed.expected(&bed.query);
    let (query, output) = (bed.rows_of(&bed.query), bed.output());
    run(&bed.gpu, &[make(bed, query.span(), output.span())]);
    bed.check(&download::<f32>(&bed.gpu, &output), &expected, part, what);
}

fn tile_dispatch(bed: &Bed, query: Span, target: Span) -> Dispatch {
    let launch = TileLaunch {
        attention: bed.attention,
        cache: bed.cache,
        frame: bed.frame.addresses,
        // The step has room for more tiles than it uses.
        tiles: bed.frame.tiles + 1,
        query,
        target,
        shape: AttendTileShape::suited(bed.gpu.capabilities(), &bed.attention),
    };
    launch.dispatch(&bed.gpu, "tiles", 0).unwrap()
}

#[test]
fn many_rows_agree_with_the_reference() {
    let cases = [
        (heads(2, 1, 64), None, 0, 40),
        (heads(4, 2, 32), Some(24), 90, 45),
        (heads(2, 2, 20), Some(3), 33, 20),
        (heads(1, 1, 256), None, 50, 35),
        (heads(3, 1, 6), None, 31, 9),
        (heads(2, 1, 512), Some(40), 70, 33),
    ];
    for (at, (heads, window, depth, rows)) in cases.into_iter().enumerate() {
        for kind in (0..2).filter(|&turn| takes(turn, 2)).map(|turn| KINDS[(at + 2 * turn) % 3]) {
            let mut bed = Bed::new(traffic(heads, kind, window, depth, rows, 60 + at as u64));
            bed.store_rows();
            check_rows(&bed, 1e-5, "tiles", tile_dispatch);
        }
    }
}

/// Returns the shapes of [`AttendMatrixShape::candidates`] that the device has, at most `most`.
fn matrix_shapes(bed: &Bed, most: usize) -> Vec<AttendUnits> {
    let all = AttendMatrixShape::candidates(bed.gpu.capabilities(), &bed.attention);
    let step = all.len().div_ceil(most).max(1);
    // Some heads have no shape on a device that has units.
    if bed.gpu.capabilities().cooperative.is_empty() {
        println!("{} has no matrix units: their test is skipped", bed.gpu.capabilities().name);
    }
    // Alternates between queries in registers and in shared memory.
    let turn =
        |(at, shape): (usize, AttendMatrixShape)| AttendMatrixShape { kept: at % 2 == 0, ..shape };
    let fits =
        |shape: &AttendMatrixShape| shape.runs(bed.gpu.capabilities(), bed.case.heads.dim as u32);
    let some = all.into_iter().step_by(step).enumerate().map(turn).filter(fits);
    some.map(AttendUnits::Staged).collect()
}

fn matrix_dispatch(bed: &Bed, shape: AttendUnits, query: Span, made: Made) -> Dispatch {
    let launch = MatrixLaunch {
        attention: bed.attention,
        cache: bed.cache,
        frame: bed.frame.addresses,
        tiles: bed.frame.tiles + 1,
        query,
        made,
        shape,
    };
    launch.dispatch(&bed.gpu, "matrices", 0).unwrap()
}

/// Checks a launch with cooperative matrices, and its result in halves against its result in f32.
fn check_matrices(bed: &Bed, shape: AttendUnits, what: &str) {
    // Queries, weights and, for some caches, keys and values are rounded to 11 bits.
    check_rows(bed, 3e-3, what, |bed, query, target| {
        matrix_dispatch(bed, shape, query, Made::Rows(target))
    });
    if bed.attention.gives_halves(bed.case.kind) {
        let (query, plain) = (bed.rows_of(&bed.query), bed.output());
        let kinds = [OperandKind::Halves, OperandKind::Fragments];
        let all = kinds.map(|kind| Halves::new(bed, kind));
        let make = |output| matrix_dispatch(bed, shape, query.span(), output);
        let operands = all.iter().map(|halves| make(Made::Operand(halves.operand())));
        let plainly = make(Made::Rows(plain.span()));
        run(&bed.gpu, &operands.chain([plainly]).collect::<Vec<_>>());
        let plain: Vec<f32> = download(&bed.gpu, &plain);
        all.iter().for_each(|halves| halves.check(bed, &plain));
    }
}

#[test]
fn matrices_agree_with_the_reference() {
    let cases = [
        (heads(2, 1, 64), None, 0, 40),
        (heads(4, 2, 32), Some(24), 90, 45),
        (heads(1, 1, 96), None, 40, 33),
        (heads(4, 1, 64), Some(50), 70, 40),
        (heads(2, 2, 72), None, 20, 37),
        (heads(4, 2, 40), Some(24), 30, 40),
        (heads(3, 3, 72), None, 40, 90),
    ];
    for (at, (heads, window, depth, rows)) in cases.into_iter().enumerate() {
        let kind = KINDS[(at + 1) % 3];
        let mut bed = Bed::new(traffic(heads, kind, window, depth, rows, 80 + at as u64));
        bed.store_rows();
        for shape in matrix_shapes(&bed, 2) {
            check_matrices(&bed, shape, &format!("{shape:?}"));
        }
    }
}

/// Large heads, and smaller ones that are cut into shares all the same.
#[test]
fn shares_of_heads_in_matrices_agree_with_the_reference() {
    let cases = [
        (heads(2, 1, 64), None, 40, 35),
        (heads(2, 2, 32), Some(24), 60, 20),
        (heads(4, 1, 64), None, 20, 33),
        (heads(2, 1, 512), None, 40, 20),
    ];
    for (at, (heads, window, depth, rows)) in cases.into_iter().enumerate() {
        let mut bed = Bed::new(traffic(heads, KINDS[(at + 1) % 3], window, depth, rows, 95));
        bed.store_rows();
        let shares = if heads.dim > 256 { 2 } else { heads.dim as u32 / 16 };
        for shape in matrix_shapes(&bed, 1) {
            let AttendUnits::Staged(shape) = shape else { continue };
            let shape = AttendMatrixShape { shares, ..shape };
            if shape.runs(bed.gpu.capabilities(), heads.dim as u32) {
                check_matrices(&bed, AttendUnits::Staged(shape), &format!("{shape:?}"));
            }
        }
    }
}

#[test]
fn large_activations_neither_overflow_nor_vanish_in_matrices() {
    // Scores are a few units whatever the sizes; values are beyond the range of f16, or all far
    // below it.
    let sizes = [[1e-3, 1e3, 1e5], [1e5, 1e-5, 1e-7], [1e-3, 1e3, 6e4]];
    for (at, sizes) in sizes.into_iter().enumerate() {
        for kind in KINDS {
            let mut case = traffic(heads(2, 1, 32), kind, None, 70, 20, 90 + at as u64);
            // The kernel cannot restore what the cache itself cannot hold.
            if kind == KvType::F16 && at < 2 || kind == KvType::Int8 && at == 1 {
                continue;
            }
            case.sizes = sizes;
            let mut bed = Bed::new(case);
            // The largest value arrives late, after tiles of small ones.
            let last = bed.value.len() - 1;
            bed.value[last] = 3.0 * sizes[2].min(2e4) * if at == 1 { 100.0 } else { 1.0 };
            bed.store_rows();
            for shape in matrix_shapes(&bed, 1) {
                check_matrices(&bed, shape, &format!("sizes {sizes:?}"));
            }
            check_rows(&bed, 2e-5, "sizes in tiles", tile_dispatch);
        }
    }
}

fn plain(heads: Heads) -> Attention {
    Attention { heads, scale: 1.0, window: None, ahead: Ahead::All, tile_rows: TILE_ROWS }
}

#[test]
fn shapes_exist_for_the_heads_of_real_models() {
    use crate::capabilities::{CooperativeShape, Element};
    let mut capabilities = crate::testing::gpu().capabilities().clone();
    let product = |m, n, k| CooperativeShape { m, n, k, input: Element::F16, output: Element::F32 };
    let devices = [
        (32, 48 << 10, vec![product(16, 8, 8), product(16, 8, 16), product(16, 16, 16)]),
        (64, 64 << 10, vec![product(16, 16, 16)]),
        (8, 32 << 10, vec![product(8, 8, 8)]),
    ];
    for (subgroup, shared, products) in devices {
        capabilities.subgroup = subgroup;
        capabilities.shared_bytes = shared;
        capabilities.cooperative = products;
        let sizes = [(32, 16, 128), (8, 4, 256), (4, 1, 256), (32, 4, 512), (8, 2, 512)];
        for heads in sizes.map(|(query, kv, dim)| heads(query, kv, dim)) {
            let attention = plain(heads);
            let shape = AttendMatrixShape::suited(&capabilities, &attention);
            assert!(shape.is_some(), "{subgroup} {heads:?}");
        }
    }
    capabilities.cooperative.clear();
    let attention = plain(heads(2, 1, 64));
    assert_eq!(AttendMatrixShape::suited(&capabilities, &attention), None);
}

/// Needs no device: with few rows of Gemma 3 27B there is about one workgroup for each core of an
/// H200, as large as they come.
#[test]
fn few_rows_get_few_large_workgroups() {
    let capabilities = crate::capabilities::presets::h200();
    let heads = Heads { query: 32, kv: 16, dim: 128 };
    let attention = plain(heads);
    for (rows, splits, local) in [(1, 8, 512), (2, 4, 512), (4, 2, 512), (8, 1, 512), (16, 1, 256)]
    {
        for kind in [KvType::F16, KvType::Int8] {
            let shape = AttendDecodeShape::suited(&capabilities, &attention, kind, rows);
            assert_eq!((shape.splits, shape.local), (splits, local), "{rows} rows");
        }
    }
    // Crowds of 4B: small workgroups, except in chains and where their last round would be a third
    // of one.
    let attention = plain(Heads { query: 8, kv: 4, dim: 256 });
    for (rows, local) in [(64, 512), (128, 512), (256, 128)] {
        let shape = AttendDecodeShape::suited(&capabilities, &attention, KvType::F16, rows);
        assert_eq!((shape.splits, shape.local), (1, local), "{rows} rows");
    }
}
