//! The products against f64 sums over the exact values that weights and operands hold.

use std::sync::Arc;

use half::f16;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use trine_weights::blocks;

use super::launch::COUNTERS;
use super::*;
use crate::capabilities::{DeviceKind, Element};
use crate::dispatch::Dispatch;
use crate::kernels::operand::{GROUP, OperandKind, fragment_place};
use crate::kernels::product::Segment;
use crate::pack::tests::{of_blocks, quantised, random_rows};
use crate::pack::{PlanesMut, pack_rows};
use crate::raw::gpu::Gpu;
use crate::raw::memory::Buffer;
use crate::testing::{download, gpu, poisoned, run, takes, upload};

mod direct;
mod fragment;
mod halves;
mod pieces;
mod resident;
mod short;
mod split;

/// Bytes after each output that nothing may touch.
const GUARD: usize = 1024;

fn values(random: &mut ChaCha8Rng, count: usize, size: f32) -> Vec<f32> {
    (0..count).map(|_| (random.random::<f32>() - 0.5) * size).collect()
}

struct Weights {
    matrix: Matrix,
    /// Row-major, as the format holds them.
    values: Vec<f32>,
    _memory: Buffer,
}

fn weights(random: &mut ChaCha8Rng, format: Format, rows: usize, columns: usize) -> Weights {
    let mut encoded = Vec::new();
    if !blocks::can_encode(format.dtype()) {
        encoded = random_rows(format, rows, columns, random.random());
    }
    while encoded.len() < rows * format.dtype().row_bytes(columns).unwrap() {
        let size = 0.01 + random.random::<f32>();
        let row = values(random, columns, size);
        blocks::encode(format.dtype(), &row, &mut encoded).unwrap();
    }
    let mut decoded = vec![0.0; rows * columns];
    blocks::decode(format.dtype(), &encoded, &mut decoded).unwrap();
    let sizes = format.plane_bytes(rows, columns).unwrap();
    let (_, total) = sizes.layout().unwrap();
    let mut bytes = vec![0_u8; total as usize];
    let planes = PlanesMut::of_allocation(&mut bytes, sizes).unwrap();
    let (mut planes, padding) = planes.split_at_row(format.row_bytes(columns), rows);
    pack_rows(format, columns, &encoded, &mut planes).unwrap();
    let table = format.table();
    if !table.is_empty() {
        padding.scales.copy_from_slice(&table);
    }
    let memory = upload(&gpu(), &bytes);
    let (matrix, _) = Matrix::at(memory.address(), format, rows, columns).unwrap();
    let most = decoded.iter().fold(0.0_f32, |most, weight| most.max(weight.abs()));
    let unit = if format == Format::F16 { 1.0 } else { (most.log2().ceil() - 15.0).exp2() };
    let matrix = Matrix { unit, ..matrix };
    Weights { matrix, values: decoded, _memory: memory }
}

/// An operand and the values that it holds.
struct Activations {
    operand: Operand,
    values: Vec<f64>,
    _memory: [Buffer; 2],
}

fn activations(kind: OperandKind, rows: &[f32], columns: usize) -> Activations {
    let padded = columns.next_multiple_of(GROUP);
    let mut codes: Vec<u8> = Vec::new();
    let mut scales: Vec<f32> = Vec::new();
    let mut held = Vec::new();
    for row in rows.chunks(columns) {
        let mut row = row.to_vec();
        match kind {
            OperandKind::Plain => {
                codes.extend_from_slice(bytemuck::cast_slice(&row));
                held.extend(row.iter().map(|&x| f64::from(x)));
            }
            OperandKind::Halves | OperandKind::Fragments => {
                let high = row.iter().fold(0.0_f32, |high, x| high.max(x.abs()));
                let factor = if high > 0.0 { (high.log2().floor() - 13.0).exp2() } else { 1.0 };
                scales.push(if row.iter().all(|x| x.is_finite()) { factor } else { f32::NAN });
                row.resize(padded, 0.0);
                let halves: Vec<f16> = row.iter().map(|x| f16::from_f32(x / factor)).collect();
                codes.extend_from_slice(bytemuck::cast_slice(&halves));
                held.extend(
                    halves[..columns].iter().map(|x| f64::from(x.to_f32()) * f64::from(factor)),
                );
            }
            OperandKind::Fixed16 => {
                row.resize(padded, 0.0);
                for group in row.chunks(GROUP) {
                    let start = codes.len();
                    codes.resize(start + 2 * GROUP, 0);
                    for (index, block) in group.chunks(32).enumerate() {
                        let high = block.iter().fold(0.0_f32, |high, x| high.max(x.abs()));
                        let scale = high / 32512.0;
                        let mut sum = 0.0;
                        for (c, &x) in block.iter().enumerate() {
                            let whole = if high > 0.0 { (x / scale).round() as i32 } else { 0 };
                            let whole = whole.clamp(-32512, 32512);
                            let upper = (whole + 128) >> 8;
                            let at = start + c / 16 * 64 + index * 16 + c % 16;
                            codes[at] = upper as u8;
                            codes[at + 128] = (whole - 256 * upper) as u8;
                            let value = f64::from(scale) * f64::from(whole);
                            sum += value;
                            held.push(value);
                        }
                        scales.extend([scale, sum as f32]);
                    }
                }
                held.truncate(held.len() - (padded - columns));
            }
            OperandKind::Split => {
                let high = row.iter().fold(0.0_f32, |high, x| high.max(x.abs()));
                let factor = if high > 0.0 { (high.log2().floor() - 13.0).exp2() } else { 1.0 };
                scales.push(if row.iter().all(|x| x.is_finite()) { factor } else { f32::NAN });
                held.extend(row.iter().map(|&x| f64::from(x)));
                row.resize(padded, 0.0);
                let scaled = row.iter().map(|x| x / factor);
                codes.extend_from_slice(bytemuck::cast_slice(&scaled.collect::<Vec<f32>>()));
            }
            OperandKind::Interleaved => unreachable!("only the kernel for one row takes it"),
        }
    }
    if kind == OperandKind::Fragments {
        codes = in_order(&codes, padded);
    }
    if kind == OperandKind::Split {
        codes = split::in_order(bytemuck::cast_slice(&codes), padded);
    }
    if scales.is_empty() {
        scales.push(f32::NAN);
    }
    let memory = [upload(&gpu(), &codes), upload(&gpu(), &scales)];
    let none = Span { address: 0, bytes: 0 };
    let scales = if kind == OperandKind::Plain { none } else { memory[1].span() };
    let operand = Operand { kind, codes: memory[0].span(), scales };
    Activations { operand, values: held, _memory: memory }
}

/// Returns rows of halves in fragment order. Rows that nobody writes are NaN.
fn in_order(codes: &[u8], padded: usize) -> Vec<u8> {
    let halves: &[u16] = bytemuck::cast_slice(codes);
    let rows = halves.len() / padded;
    let mut found = vec![u16::MAX; rows.next_multiple_of(64) * padded];
    for (row, halves) in halves.chunks(padded).enumerate() {
        for (column, half) in halves.iter().enumerate() {
            found[fragment_place(row, column, padded)] = *half;
        }
    }
    bytemuck::cast_slice(&found).to_vec()
}

fn gelu(x: f64) -> f64 {
    let root = (2.0 / std::f64::consts::PI).sqrt();
    0.5 * x * (1.0 + (root * (x + 0.044715 * x.powi(3))).tanh())
}

/// Returns a weight as a kernel that takes such an operand multiplies with it.
fn rounded(kind: OperandKind, weight: f32) -> f64 {
    match kind {
        OperandKind::Halves | OperandKind::Fragments => f64::from(f16::from_f32(weight).to_f32()),
        _ => f64::from(weight),
    }
}

/// Returns the product of a row of weights and a row of activations, and how much it may differ.
fn product(kind: OperandKind, w: &[f32], x: &[f64]) -> (f64, f64) {
    let (sum, size, squares) =
        w.iter().zip(x).fold((0.0, 0.0, 0.0_f64), |(sum, size, squares), (&w, x)| {
            let term = rounded(kind, w) * x;
            (sum + term, size + term.abs(), squares + term * term)
        });
    match kind {
        OperandKind::Split => (sum, SPLIT_SHARE * size),
        _ => (sum, SHARE * size + HALF_STEP * squares.sqrt()),
    }
}

/// How much an output may differ, as a share of the sum of magnitudes.
const SHARE: f64 = 4e-5;
/// The same of a split product: 2^-22 of each factor, and sums in f32.
const SPLIT_SHARE: f64 = 3e-6;
/// What the step between two halves is at most, as a share of a half: a kernel may round weights to
/// the other neighbour of what it decodes, in a format of few bits several alike.
const HALF_STEP: f64 = 1.0 / 1024.0;

struct Case {
    format: Format,
    shape: MatmulShape,
    width: usize,
    columns: usize,
    /// Rows of the segments, or of the gate.
    rows: Vec<usize>,
    gated: bool,
}

impl Case {
    fn total(&self) -> usize {
        if self.gated { 2 * self.rows[0] } else { self.rows.iter().sum() }
    }

    /// Runs the product twice and checks that both runs agree. Returns the outputs of the segments.
    fn outputs(&self, weights: &Weights, operand: Operand) -> Vec<Vec<f32>> {
        let gpu = gpu();
        let size = |rows: &usize| 4 * rows * self.width;
        let targets: Vec<Buffer> =
            self.rows.iter().map(|rows| poisoned(&gpu, (size(rows) + GUARD) as u64)).collect();
        let span = |index: usize| {
            let bytes = size(&self.rows[index]) as u64;
            Span { address: targets[index].address(), bytes }
        };
        let segments: Vec<Segment> = (0..self.rows.len())
            .map(|index| Segment { rows: self.rows[index], target: span(index) })
            .collect();
        let output = if self.gated {
            ProductOutput::Gated(Made::Rows(span(0)))
        } else {
            ProductOutput::segments(&segments)
        };
        let product = Product {
            matrix: weights.matrix,
            width: self.width,
            input: ProductInput::Operand(operand),
            output,
        };
        let mut launch = MatmulLaunch { product, scratch: None };
        let needed = launch.scratch_bytes(&self.shape);
        let scratch = scratch(&gpu, needed as usize);
        launch.scratch = (needed > 0).then_some(scratch.span());
        assert!(self.shape.fits(gpu.capabilities(), &launch), "{:?}", self.shape);
        let dispatch = launch.dispatch(&gpu, self.shape, "a product", 0).unwrap();
        let read =
            || -> Vec<Vec<f32>> { targets.iter().map(|target| download(&gpu, target)).collect() };
        run(&gpu, std::slice::from_ref(&dispatch));
        let first = read();
        run(&gpu, &[dispatch]);
        let bits = |all: &[Vec<f32>]| -> Vec<u32> {
            all.iter().flatten().map(|value| value.to_bits()).collect()
        };
        assert_eq!(bits(&first), bits(&read()), "a second run differs: {:?}", self.shape);
        if needed > 0 {
            let counters: Vec<u32> = download(&gpu, &scratch);
            assert!(counters[..COUNTERS].iter().all(|&counter| counter == 0));
        }
        first
            .into_iter()
            .zip(&self.rows)
            .map(|(found, rows)| {
                let (inside, after) = found.split_at(rows * self.width);
                let untouched = after[..GUARD / 4].iter().all(|value| value.to_bits() == u32::MAX);
                assert!(untouched, "{:?} {rows} rows, width {}", self.shape, self.width);
                inside.to_vec()
            })
            .collect()
    }

    fn expected(
        &self,
        weights: &Weights,
        x: &[f64],
        segment: usize,
        row: usize,
        token: usize,
    ) -> (f64, f64) {
        let kind = self.shape.operand(self.format);
        let x = &x[token * self.columns..(token + 1) * self.columns];
        let before: usize = self.rows[..segment].iter().sum();
        let w = |row: usize| &weights.values[row * self.columns..(row + 1) * self.columns];
        let (sum, slack) = product(kind, w(before + row), x);
        if !self.gated {
            return (sum, slack);
        }
        let (up, up_slack) = product(kind, w(self.rows[0] + row), x);
        let both = 1.2 * (slack * up.abs() + up_slack * gelu(sum).abs());
        (gelu(sum) * up, both + up_slack * slack)
    }

    fn check(&self, seed: u64) {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let weights = weights(&mut random, self.format, self.total(), self.columns);
        let rows = values(&mut random, self.width * self.columns, 6.0);
        let kind = self.shape.operand(self.format);
        let activations = activations(kind, &rows, self.columns);
        let outputs = self.outputs(&weights, activations.operand);
        for (segment, found) in outputs.iter().enumerate() {
            for (at, &value) in found.iter().enumerate() {
                let (token, row) = (at / self.rows[segment], at % self.rows[segment]);
                let (wanted, slack) =
                    self.expected(&weights, &activations.values, segment, row, token);
                assert!(
                    (f64::from(value) - wanted).abs() <= slack + 1e-6,
                    "{:?} {:?} columns {} segment {segment} row {row} token {token}: {value} \
                     {wanted}",
                    self.format,
                    self.shape,
                    self.columns
                );
            }
        }
    }
}

fn scratch(gpu: &Arc<Gpu>, bytes: usize) -> Buffer {
    let mut start = vec![0xFF_u8; bytes.max(MatmulLaunch::COUNTER_BYTES)];
    start[..MatmulLaunch::COUNTER_BYTES].fill(0);
    upload(gpu, &start)
}

/// Returns shapes for the device's matrix units, whatever their size; if it has none, prints a
/// notice and returns none.
fn matrix_shapes() -> Vec<MatmulShape> {
    let gpu = gpu();
    let halves = |shape: &&crate::capabilities::CooperativeShape| {
        (shape.input, shape.output) == (Element::F16, Element::F32)
            && 16 % shape.k == 0
            && shape.k >= 8
    };
    let Some(found) = gpu.capabilities().cooperative.iter().find(halves) else {
        println!("{} has no matrix units: their test is skipped", gpu.capabilities().name);
        return Vec::new();
    };
    let (m, n, k) = (found.m, found.n, found.k);
    let instruction = Instruction { m, n, k };
    let base = MatrixShape {
        tile: (4 * m, 2 * n),
        step: 32,
        part: (2 * m, 2 * n),
        slices: 32 / k / 2,
        stages: 2,
        depth: 2,
        workgroups: 0,
        instruction,
    };
    let shapes = [
        base,
        MatrixShape {
            tile: (4 * m, 4 * n),
            step: 64,
            slices: 1,
            stages: 1,
            depth: 1,
            workgroups: 6,
            ..base
        },
        MatrixShape {
            tile: (2 * m, n),
            step: 128,
            part: (2 * m, n),
            slices: 2,
            stages: 1,
            workgroups: 5,
            ..base
        },
    ];
    shapes.map(MatmulShape::Matrix).to_vec()
}

/// Returns all of them on a GPU, one on a software device: another one for each `number`.
fn some_matrix_shapes(number: usize) -> Vec<MatmulShape> {
    let mut shapes = matrix_shapes();
    let count = shapes.len();
    shapes.rotate_left(number % count.max(1));
    let taken = shapes.into_iter().enumerate().filter(|&(at, _)| takes(at, count));
    taken.map(|(_, shape)| shape).collect()
}

/// Returns column counts that a format can have, some of them not whole groups.
fn columns(format: Format) -> [usize; 3] {
    match format.dtype().block_elements() {
        32 => [288, 416, 160],
        64 => [320, 448, 192],
        256 => [256, 768, 512],
        _ => [131, 290, 129],
    }
}

/// Returns a number of rows of activations, or the most that the shape takes if that is less.
fn width_within(shape: &MatmulShape, width: usize) -> usize {
    match shape {
        MatmulShape::Fragment(_) | MatmulShape::Resident(_) => width.min(shape.tile().1 as usize),
        MatmulShape::Matrix(_)
        | MatmulShape::Direct(_)
        | MatmulShape::Floats(_)
        | MatmulShape::Tile(_) => width,
    }
}

fn check_all(format: Format, shapes: &[MatmulShape], seed: u64) {
    for (index, &shape) in shapes.iter().enumerate() {
        let cases: [(usize, usize, Vec<usize>, bool); 7] = [
            (1, 0, vec![17], false),
            (9, 1, vec![5, 1, 35], false),
            (33, 2, vec![52, 4], false),
            (130, 0, vec![33], false),
            (1, 1, vec![1], true),
            (17, 1, vec![41], true),
            (5, 1, vec![44], true),
        ];
        for (number, (width, columns_at, rows, gated)) in cases.into_iter().enumerate() {
            // Others for each shape and each format.
            let turn = 10 * index + number + format as usize;
            if takes(turn, 3) {
                let columns = columns(format)[columns_at];
                let width = width_within(&shape, width);
                let case = Case { format, shape, width, columns, rows, gated };
                case.check(seed + (10 * index + number) as u64);
            }
        }
    }
}

#[test]
fn matrix_units_agree_for_q4_0() {
    check_all(Format::Q4_0, &matrix_shapes(), 100);
}

#[test]
fn matrix_units_agree_for_q8_0() {
    check_all(Format::Q8_0, &some_matrix_shapes(1), 200);
}

#[test]
fn matrix_units_agree_for_k_formats() {
    for (number, format) in of_blocks(256).enumerate() {
        check_all(format, &some_matrix_shapes(number + 2), 300);
    }
}

#[test]
fn matrix_units_agree_for_half_floats() {
    for (number, format) in [Format::F16, Format::Bf16].into_iter().enumerate() {
        check_all(format, &some_matrix_shapes(number), 400);
    }
}

#[test]
fn integer_dot_products_agree() {
    let shapes = [
        MatmulShape::Tile(TileShape { tile: (32, 32), part: (4, 4), step: 32, slices: 1 }),
        MatmulShape::Tile(TileShape { tile: (64, 16), part: (4, 2), step: 64, slices: 1 }),
    ];
    for format in quantised() {
        check_all(format, &shapes, 500);
    }
}

#[test]
fn plain_products_agree() {
    let shapes = [
        MatmulShape::Tile(TileShape { tile: (32, 32), part: (4, 4), step: 32, slices: 1 }),
        MatmulShape::Tile(TileShape { tile: (64, 16), part: (4, 2), step: 16, slices: 1 }),
        MatmulShape::Tile(TileShape { tile: (8, 16), part: (2, 2), step: 128, slices: 16 }),
    ];
    for format in [Format::F32, Format::F16, Format::Bf16] {
        check_all(format, &shapes, 600);
    }
}

/// Returns one shape of each kernel that the device has, with its format.
fn kernels() -> Vec<(Format, MatmulShape)> {
    let tile = MatmulShape::Tile(TileShape { tile: (32, 32), part: (4, 4), step: 32, slices: 1 });
    let matrix = matrix_shapes().into_iter().take(2).map(|shape| (Format::Q4_0, shape));
    let fragment =
        fragment::shapes_or_notice().into_iter().take(1).map(|shape| (Format::Q4_0, shape));
    let direct = direct::shapes_or_notice().into_iter().take(1).map(|shape| (Format::Q4_0, shape));
    let halves = short::shapes_or_notice().into_iter().take(1);
    matrix
        .chain(fragment)
        .chain(direct)
        .chain(halves.map(|shape| (Format::F16Fragments, shape)))
        .chain(split::kernels())
        .chain([(Format::Q8_0, tile), (Format::F32, tile)])
        .collect()
}

/// Equal rows of activations give equal products, to the bit, wherever they are: over several
/// tiles, some of which several workgroups share.
#[test]
fn matrices_treat_all_rows_alike() {
    let units = matrix_shapes().into_iter().chain(fragment::shapes_or_notice());
    let units = units.chain(direct::shapes_or_notice());
    let units = units.chain(resident::for_512_columns());
    let is_tile = |(_, shape): &(Format, MatmulShape)| matches!(shape, MatmulShape::Tile(_));
    let tiles = kernels().into_iter().filter(is_tile);
    let halves = short::shapes_or_notice().into_iter();
    let floats = halves.map(|shape| (Format::F16Fragments, shape)).chain(split::kernels());
    for (format, shape) in units.map(|shape| (Format::Q4_0, shape)).chain(floats).chain(tiles) {
        let (width, columns) = (width_within(&shape, 53), 512);
        let rows = if format == Format::F16Fragments { vec![144, 64] } else { vec![130, 67] };
        let case = Case { format, shape, width, columns, rows, gated: false };
        let mut random = ChaCha8Rng::seed_from_u64(9);
        let weights = weights(&mut random, format, case.total(), columns);
        let row = values(&mut random, columns, 2.0);
        let activations = activations(shape.operand(format), &row.repeat(width), columns);
        for (found, rows) in case.outputs(&weights, activations.operand).iter().zip(&case.rows) {
            let bits: Vec<u32> = found.iter().map(|x| x.to_bits()).collect();
            let (first, others) = bits.split_at(*rows);
            for (token, other) in others.chunks(*rows).enumerate() {
                assert!(other == first, "{format:?} {shape:?}: token {} differs", token + 1);
            }
        }
    }
}

#[test]
fn rows_that_are_not_finite_poison_only_themselves() {
    for (format, shape) in kernels() {
        let (width, columns, own) = (19, 288, 40_usize.next_multiple_of(format.rows_together()));
        let case = Case { format, shape, width, columns, rows: vec![own], gated: false };
        let mut random = ChaCha8Rng::seed_from_u64(7);
        let weights = weights(&mut random, format, own, columns);
        let mut rows = values(&mut random, width * columns, 2.0);
        let kind = shape.operand(format);
        if kind == OperandKind::Fixed16 {
            // Its blocks hold no such values; their scale does, as the conversion writes it.
            let activations = activations(kind, &rows, columns);
            let mut scales: Vec<f32> = download(&gpu(), &activations._memory[1]);
            let row = 2 * columns.next_multiple_of(GROUP) / 32;
            scales[4 * row] = f32::NAN;
            let scales = upload(&gpu(), &scales);
            let operand = Operand { scales: scales.span(), ..activations.operand };
            check_poison(&case.outputs(&weights, operand)[0], own, 4);
        } else {
            rows[4 * columns + 100] = f32::NAN;
            let activations = activations(kind, &rows, columns);
            check_poison(&case.outputs(&weights, activations.operand)[0], own, 4);
        }
    }
}

fn check_poison(found: &[f32], rows: usize, poisoned: usize) {
    for (at, value) in found.iter().enumerate() {
        assert_eq!(value.is_nan(), at / rows == poisoned, "row {} has {value}", at / rows);
    }
}

#[test]
fn large_and_small_activations_keep_their_precision() {
    for (format, shape) in kernels() {
        let (columns, own) = (288, 21_usize.next_multiple_of(format.rows_together()));
        let sizes = [1e4_f32, 1e-20, 1e8, 1e30, 3e35, 1e-30, 65504.0, 1e15, 1.0];
        let case =
            Case { format, shape, width: sizes.len(), columns, rows: vec![own], gated: false };
        let mut random = ChaCha8Rng::seed_from_u64(8);
        let weights = weights(&mut random, format, own, columns);
        let rows: Vec<f32> =
            sizes.iter().flat_map(|&size| values(&mut random, columns, size)).collect();
        let activations = activations(shape.operand(format), &rows, columns);
        let found = &case.outputs(&weights, activations.operand)[0];
        for (at, &value) in found.iter().enumerate() {
            let (token, row) = (at / own, at % own);
            let (wanted, slack) = case.expected(&weights, &activations.values, 0, row, token);
            assert!(
                (f64::from(value) - wanted).abs() <= slack,
                "{shape:?} {token}: {value} {wanted}"
            );
        }
    }
}

#[test]
fn candidates_fit_and_the_first_is_right() {
    let gpu = gpu();
    let kinds = [OperandKind::Halves, OperandKind::Fixed16, OperandKind::Fragments];
    for (number, kind) in kinds.into_iter().enumerate() {
        let format = Format::Q4_0;
        let is_there = match kind {
            OperandKind::Halves => !matrix_shapes().is_empty(),
            OperandKind::Fragments => gpu.capabilities().fragments,
            _ => true,
        };
        if !is_there {
            continue;
        }
        for width in [9, 64, 130] {
            let mut random = ChaCha8Rng::seed_from_u64(9);
            let weights = weights(&mut random, format, 48, 512);
            let rows = values(&mut random, width * 512, 2.0);
            let activations = activations(kind, &rows, 512);
            let target = poisoned(&gpu, (4 * width * 48) as u64);
            let segments = [Segment { rows: 48, target: target.span() }];
            let product = Product {
                matrix: weights.matrix,
                width,
                input: ProductInput::Operand(activations.operand),
                output: ProductOutput::segments(&segments),
            };
            let launch = MatmulLaunch { product, scratch: None };
            let all = MatmulShape::candidates(gpu.capabilities(), &launch);
            assert!(
                !all.is_empty() && all.iter().all(|shape| shape.fits(gpu.capabilities(), &launch))
            );
            assert_eq!(all[0], MatmulShape::default_for(gpu.capabilities(), &launch));
            let case =
                Case { format, shape: all[0], width, columns: 512, rows: vec![48], gated: false };
            case.check(900 + number as u64);
        }
    }
}

/// Software takes minutes to compile the large tiles of matrix units.
fn is_too_large(gpu: &Gpu, shape: &MatmulShape) -> bool {
    let MatmulShape::Matrix(MatrixShape { part, .. }) = shape else { return false };
    gpu.capabilities().kind == DeviceKind::Processor && part.0 * part.1 > 16 * 16
}

/// A shape that was measured on any kind of device computes the right result on this one, as far as
/// it has room for it.
#[test]
fn every_shape_of_every_kind_of_device_agrees() {
    let gpu = gpu();
    let span = Span { address: 4096, bytes: 0 };
    let mut seen = std::collections::HashSet::new();
    for kind in [DeviceKind::Discrete, DeviceKind::Integrated, DeviceKind::Processor] {
        let capabilities = Capabilities { kind, ..gpu.capabilities().clone() };
        for (operand, format) in [
            (OperandKind::Halves, Format::Q4_0),
            (OperandKind::Fragments, Format::Q4_0),
            (OperandKind::Fixed16, Format::Q4_0),
            (OperandKind::Plain, Format::F16),
        ] {
            for (width, gated) in [(7, true), (16, false), (27, false), (50, true), (130, false)] {
                let (rows, columns) = (vec![70], 416);
                let (matrix, _) = Matrix::at(4096, format, 140, columns).unwrap();
                let segments = [Segment { rows: 140, target: span }];
                let operand = Operand { kind: operand, codes: span, scales: span };
                let input = ProductInput::Operand(operand);
                let output = if gated {
                    ProductOutput::Gated(Made::Rows(span))
                } else {
                    ProductOutput::segments(&segments)
                };
                let product = Product { matrix, width, input, output };
                let launch = MatmulLaunch { product, scratch: None };
                for shape in MatmulShape::candidates(&capabilities, &launch) {
                    let case = Case { format, shape, width, columns, rows: rows.clone(), gated };
                    if !is_too_large(&gpu, &shape) && seen.insert((format, width, shape)) {
                        case.check(700 + width as u64);
                    }
                }
            }
        }
    }
    assert!(seen.len() >= 20, "{}", seen.len());
}

/// Returns the capabilities of the devices that trine targets, as far as shapes depend on them.
#[test]
fn every_target_device_has_shapes() {
    use crate::capabilities::CooperativeShape;
    let gpu = gpu();
    let shape = |m, n, k| CooperativeShape { m, n, k, input: Element::F16, output: Element::F32 };
    let nvidia = vec![shape(16, 16, 16), shape(16, 8, 16), shape(16, 8, 8)];
    let devices = [
        (DeviceKind::Discrete, 32, 48 << 10, nvidia),
        (DeviceKind::Integrated, 64, 64 << 10, vec![shape(16, 16, 16)]),
        (DeviceKind::Integrated, 64, 32 << 10, vec![shape(16, 16, 16)]),
        (DeviceKind::Processor, 8, 32 << 10, vec![shape(8, 8, 8)]),
    ];
    let span = Span { address: 4096, bytes: 0 };
    for (kind, subgroup, shared_bytes, cooperative) in devices {
        let mut capabilities = gpu.capabilities().clone();
        (capabilities.kind, capabilities.subgroup) = (kind, subgroup);
        (capabilities.shared_bytes, capabilities.cooperative) = (shared_bytes, cooperative);
        capabilities.invocations = 1024;
        for format in quantised() {
            assert!(MatmulShape::operand_for(&capabilities, format, 1).is_halves());
            for width in [8, 9, 16, 17, 32, 64, 128, 256, 512] {
                let (matrix, _) = Matrix::at(4096, format, 2 * 21504, 5376).unwrap();
                let operand = Operand { kind: OperandKind::Halves, codes: span, scales: span };
                let input = ProductInput::Operand(operand);
                let output = ProductOutput::Gated(Made::Rows(span));
                let product = Product { matrix, width, input, output };
                let launch = MatmulLaunch { product, scratch: None };
                let all = MatmulShape::candidates(&capabilities, &launch);
                assert!(!all.is_empty(), "{kind:?} {format:?} {width}: {all:?}");
                let tile = all[0].tile().1 as usize;
                assert!(tile < 2 * width.next_multiple_of(16), "{kind:?} {width}: {tile}");
            }
        }
    }
}
