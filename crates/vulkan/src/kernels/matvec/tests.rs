use std::sync::Arc;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use trine_backend::reference::ops;

use super::*;
use crate::dispatch::Span;
use crate::kernels::operand::Operand;
use crate::kernels::product::Segment;
use crate::pack::Format;
use crate::pack::tests::{decoded, device_matrix, of_blocks, random_rows};
use crate::raw::gpu::Gpu;
use crate::raw::memory::Buffer;
use crate::testing::{download, gpu, poisoned, run, takes, upload};

const EPSILON: f32 = 1e-6;
/// The factor on sums.
const SCALE: f32 = 0.7;

pub(crate) fn random(count: usize, seed: u64, size: f32) -> Vec<f32> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    (0..count).map(|_| (random.random::<f32>() - 0.5) * size).collect()
}

/// The fixed-point operand of rows, by its definition, and the values that it stands for.
struct Fixed {
    codes: Vec<u8>,
    scales: Vec<f32>,
    values: Vec<f64>,
}

/// Returns the byte of the high part of column `c` in a row's codes; the low part is 128 bytes
/// later.
fn fixed_byte(c: usize) -> usize {
    c / 128 * 256 + c % 32 / 16 * 64 + c % 128 / 32 * 16 + c % 16
}

fn fixed(rows: &[f32], columns: usize) -> Fixed {
    let padded = columns.next_multiple_of(GROUP);
    let count = rows.len() / columns;
    let mut found = Fixed {
        codes: vec![0; 2 * padded * count],
        scales: Vec::new(),
        values: vec![0.0; rows.len()],
    };
    for row in 0..count {
        for block in 0..padded / SCALE_BLOCK {
            let range =
                (block * SCALE_BLOCK).min(columns)..((block + 1) * SCALE_BLOCK).min(columns);
            let values = &rows[row * columns..][range.clone()];
            let highest = values.iter().fold(0.0_f32, |high, x| high.max(x.abs()));
            if !values.iter().all(|x| x.is_finite()) {
                found.scales.extend([f32::NAN; 2]);
                continue;
            }
            let scale = highest / 32512.0;
            let mut sum = 0.0;
            for (c, &x) in range.zip(values) {
                let whole = if highest > 0.0 {
                    (f64::from(x) / f64::from(scale)).round() as i32
                } else {
                    0
                };
                let high = (whole + 128) >> 8;
                let at = row * 2 * padded + fixed_byte(c);
                found.codes[at] = high as i8 as u8;
                found.codes[at + 128] = (whole - 256 * high) as i8 as u8;
                found.values[row * columns + c] = f64::from(whole) * f64::from(scale);
                sum += found.values[row * columns + c];
            }
            found.scales.extend([scale, sum as f32]);
        }
    }
    found
}

/// Returns the values of a fixed-point operand on the device.
pub(crate) fn fixed_values(codes: &[u8], scales: &[f32], columns: usize) -> Vec<f64> {
    let padded = columns.next_multiple_of(GROUP);
    let rows = codes.len() / (2 * padded);
    let value = |index: usize| {
        let (row, c) = (index / padded, index % padded);
        let at = row * 2 * padded + fixed_byte(c);
        let whole = 256 * i32::from(codes[at] as i8) + i32::from(codes[at + 128] as i8);
        f64::from(scales[2 * (row * padded / SCALE_BLOCK + c / SCALE_BLOCK)]) * f64::from(whole)
    };
    (0..rows * padded).map(value).collect()
}

/// An operand on the device, and the values that it represents.
pub(crate) struct Input {
    pub(crate) operand: Operand,
    pub(crate) values: Vec<f64>,
    _memory: [Buffer; 2],
}

pub(crate) fn input(gpu: &Arc<Gpu>, format: Format, rows: &[f32], columns: usize) -> Input {
    if format.is_float() {
        let memory = upload(gpu, rows);
        let codes = Span { address: memory.address(), bytes: 4 * rows.len() as u64 };
        let scales = Span { address: 0, bytes: 0 };
        let values = rows.iter().map(|&x| f64::from(x)).collect();
        let operand = Operand { kind: OperandKind::Plain, codes, scales };
        return Input { operand, values, _memory: [memory.clone(), memory] };
    }
    let fixed = fixed(rows, columns);
    let (codes, scales) = (upload(gpu, &fixed.codes), upload(gpu, &fixed.scales));
    let operand =
        Operand { kind: OperandKind::Fixed16, codes: codes.span(), scales: scales.span() };
    Input { operand, values: fixed.values, _memory: [codes, scales] }
}

/// Returns products in f64, and the effect of a relative error of one part in each term on them.
pub(crate) fn products(weights: &[f32], inputs: &[f64], columns: usize) -> Vec<(f64, f64)> {
    let row = |x: &[f64]| {
        weights
            .chunks_exact(columns)
            .map(|w| {
                let terms = w.iter().zip(x).map(|(&w, &x)| f64::from(w) * x);
                terms.fold((0.0, 0.0), |(sum, size): (f64, f64), term| {
                    (sum + term, size + term.abs())
                })
            })
            .collect::<Vec<_>>()
    };
    inputs.chunks_exact(columns).flat_map(row).collect()
}

/// Returns the size that errors of a K format's product scale with: its two parts may be larger
/// than their difference.
pub(crate) fn widened(format: Format, size: f64) -> f64 {
    if format.has_minimum() { 4.0 * size } else { size }
}

fn shape(local: u32, lanes: u32, rows: u32, unroll: u32, workgroups: u32) -> MatvecShape {
    MatvecShape { local, lanes, rows, unroll, ahead: unroll > 1, workgroups }
}

pub(crate) fn columns_of(format: Format) -> &'static [usize] {
    match format.dtype().block_elements() {
        256 => &[256, 512, 768, 1280],
        32 => &[32, 96, 160, 1152],
        64 => &[64, 192, 320, 1152],
        _ => &[20, 131, 160, 516],
    }
}

/// Checks every width of a format, in shapes with teams smaller than, as large as and larger than a
/// subgroup.
fn check_widths(format: Format) {
    let gpu = gpu();
    let subgroup = gpu.capabilities().subgroup;
    let shapes = [
        shape(4 * subgroup, 4, 2, 2, 0),
        shape(2 * subgroup, subgroup, 1, 1, 2),
        shape(4 * subgroup, 2 * subgroup, 4, 1, 3),
        shape(4 * subgroup, 4 * subgroup, 1, 3, 0),
    ];
    for width in 1..=WIDTH_MAX {
        for (case, &columns) in columns_of(format).iter().enumerate() {
            if !takes(4 * width + case + format as usize, 3) {
                continue;
            }
            let rows = [1, 3, 17, 50][(case + width) % 4];
            let mut shape = shapes[width % 4];
            if width > 2 {
                // Large kernels take long to compile if the processor runs them.
                shape = MatvecShape { unroll: 1, rows: shape.rows.min(2), ..shape };
            }
            let seed = 100 * columns as u64 + width as u64;
            let source = random_rows(format, rows, columns, seed);
            let (matrix, _memory) = device_matrix(&gpu, format, columns, &source);
            let input = input(&gpu, format, &random(width * columns, seed, 3.0), columns);
            let cut = [rows, 0, 0, rows / 3][case % 4];
            let parts: Vec<usize> = match case % 4 {
                3 => vec![cut, rows / 2 - cut, rows - rows / 2],
                2 if rows > 1 => vec![1, rows - 1],
                _ => vec![rows],
            };
            let targets: Vec<Buffer> =
                parts.iter().map(|part| poisoned(&gpu, (4 * width * part).max(4) as u64)).collect();
            let segments: Vec<Segment> = parts
                .iter()
                .zip(&targets)
                .map(|(&rows, target)| Segment { rows, target: target.span() })
                .collect();
            let launch = MatvecLaunch(Product {
                matrix,
                width,
                input: ProductInput::Operand(input.operand),
                output: ProductOutput::segments(&segments),
            });
            run(&gpu, &[launch.dispatch(&gpu, shape, "product", 0).unwrap()]);
            let weights = decoded(format, &source, rows * columns);
            let expected = products(&weights, &input.values, columns);
            let found: Vec<Vec<f32>> =
                targets.iter().map(|target| download(&gpu, target)).collect();
            for row in 0..width {
                let mut first = 0;
                for (part, found) in parts.iter().zip(&found) {
                    for at in 0..*part {
                        let (wanted, size) = expected[row * rows + first + at];
                        let found = f64::from(found[row * part + at]);
                        assert!(
                            (found - wanted).abs() <= 2e-6 * widened(format, size) + 1e-9,
                            "{format:?} {rows} x {columns}, width {width}, {shape:?}, row {row}: \
                             {found} {wanted}"
                        );
                    }
                    first += part;
                }
            }
        }
    }
}

#[test]
fn every_width_of_floats_agrees_with_its_definition() {
    of_blocks(1).for_each(check_widths);
}

#[test]
fn every_width_of_blocks_of_32_agrees_with_its_definition() {
    of_blocks(32).chain(of_blocks(64)).for_each(check_widths);
}

#[test]
fn every_width_of_blocks_of_256_agrees_with_its_definition() {
    of_blocks(256).for_each(check_widths);
}

/// Returns a row after a norm, and how far each element may be off when it becomes fixed point.
fn normed(x: &[f32], weight: &[f32], format: Format) -> (Vec<f64>, Vec<f64>) {
    let mut single = vec![0.0; x.len()];
    ops::norm(x, weight, EPSILON, &mut single);
    let values: Vec<f64> = single.iter().map(|&x| f64::from(x)).collect();
    let blocks = values.chunks(SCALE_BLOCK).flat_map(|block| {
        let high = block.iter().fold(0.0_f64, |high, x| high.max(x.abs()));
        block
            .iter()
            .map(move |x| 2e-6 * x.abs() + if format.is_float() { 0.0 } else { high / 64_000.0 })
    });
    let errors = blocks.collect();
    (values, errors)
}

/// Returns the error of a product whose inputs are off by `errors`.
fn slack(weights: &[f32], errors: &[f64]) -> f64 {
    weights.iter().zip(errors).map(|(&w, &error)| f64::from(w).abs() * error).sum()
}

/// Checks one row through a norm, or an addition and a norm, including large values of the residual
/// stream. In one case another product writes that.
fn check_norms(format: Format) {
    let gpu = gpu();
    let subgroup = gpu.capabilities().subgroup;
    for (case, &columns) in columns_of(format)[1..].iter().enumerate() {
        for add in [false, true] {
            // Both kinds of operand in every case, the other formats in one: each needs another
            // kernel.
            let main = matches!(format, Format::F32 | Format::Q4_0);
            if !main && case != format as usize % 3 {
                continue;
            }
            let rows = [17, 50, 3][case];
            let seed = 7 + columns as u64;
            let size = [3.0, 1e5, 1e-3][case];
            let updates = case != 1;
            let source = random_rows(format, rows, columns, seed);
            let (matrix, _memory) = device_matrix(&gpu, format, columns, &source);
            let before = random(columns, seed, size);
            let added = random(columns, seed + 1, 1e4);
            let [added_weight, weight] = [2, 3].map(|more| random(columns, seed + more, 4.0));
            let mut x = before.clone();
            if add {
                let mut normed = vec![0.0; columns];
                ops::norm(&added, &added_weight, EPSILON, &mut normed);
                ops::add(&normed, &mut x);
                x.iter_mut().for_each(|x| *x *= SCALE);
            }
            let buffers =
                [&before, &added, &added_weight, &weight].map(|values| upload(&gpu, values));
            let x_out = poisoned(&gpu, 4 * columns as u64);
            let target = poisoned(&gpu, 4 * rows as u64);
            let input = if add {
                ProductInput::NormAddNorm {
                    x: buffers[0].span(),
                    scale: SCALE,
                    added: buffers[1].span(),
                    added_weight: buffers[2].address(),
                    weight: buffers[3].address(),
                    epsilon: EPSILON,
                    x_out: updates.then(|| x_out.span()),
                }
            } else {
                let weight = buffers[3].address();
                ProductInput::Norm { x: buffers[0].span(), weight, epsilon: EPSILON }
            };
            let segments = [Segment { rows, target: target.span() }];
            let output = ProductOutput::segments(&segments);
            let launch = MatvecLaunch(Product { matrix, width: 1, input, output });
            let shape = shape(8 * subgroup, 2 * subgroup, 2, 2, 2);
            run(&gpu, &[launch.dispatch(&gpu, shape, "normed", 0).unwrap()]);
            if add && updates {
                let found = download::<f32>(&gpu, &x_out);
                let high = x.iter().fold(0.0_f32, |high, x| high.max(x.abs()));
                for (found, wanted) in found.iter().zip(&x) {
                    assert!((found - wanted).abs() <= 1e-6 * high, "{found} {wanted}");
                }
            }
            let (values, errors) = normed(&x, &weight, format);
            let weights = decoded(format, &source, rows * columns);
            let expected = products(&weights, &values, columns);
            let found = download::<f32>(&gpu, &target);
            for (row, (wanted, size)) in expected.iter().enumerate() {
                let found = f64::from(found[row]);
                let slack = slack(&weights[row * columns..][..columns], &errors);
                assert!(
                    (found - wanted).abs() <= slack + 2e-6 * widened(format, *size),
                    "{format:?} {rows} x {columns}, add {add}, row {row}: {found} {wanted} \
                     ({slack})"
                );
            }
        }
    }
}

#[test]
fn norms_before_a_product_agree_with_their_definition() {
    Format::ALL.into_iter().for_each(check_norms);
}

/// Checks gelu(gate) * up as f32 and in fixed point, in tiles that divide the outputs and in tiles
/// that do not.
fn check_gate(format: Format) {
    let gpu = gpu();
    let subgroup = gpu.capabilities().subgroup;
    let columns = columns_of(format)[1];
    let cases =
        [(1, 50, true, false), (2, 17, false, true), (5, 160, true, true), (1, 128, false, true)];
    for (case, (width, outputs, with_plain, with_operand)) in cases.into_iter().enumerate() {
        if !takes(case + format as usize, 2) {
            continue;
        }
        let seed = 50 + case as u64;
        let source = random_rows(format, 2 * outputs, columns, seed);
        let (matrix, _memory) = device_matrix(&gpu, format, columns, &source);
        let values = random(width * columns, seed, [3.0, 30.0, 3000.0, 1e30][case]);
        let input = input(&gpu, format, &values, columns);
        let plain = poisoned(&gpu, (4 * width * outputs) as u64);
        let codes = poisoned(&gpu, (width * OperandKind::Fixed16.code_bytes(outputs)) as u64);
        let scales = poisoned(&gpu, (width * OperandKind::Fixed16.scale_bytes(outputs)) as u64);
        let operand =
            Operand { kind: OperandKind::Fixed16, codes: codes.span(), scales: scales.span() };
        let launch = MatvecLaunch(Product {
            matrix,
            width,
            input: ProductInput::Operand(input.operand),
            output: ProductOutput::Gated(match (with_plain, with_operand) {
                (true, true) => Made::Both(plain.span(), operand),
                (true, false) => Made::Rows(plain.span()),
                (false, _) => Made::Operand(operand),
            }),
        });
        // Tiles of 32 and 64 outputs.
        let lanes = subgroup / 2;
        let shape = shape(16 * subgroup, lanes, if case == 1 { 4 } else { 2 }, 1, 2);
        run(&gpu, &[launch.dispatch(&gpu, shape, "gated", 0).unwrap()]);
        let weights = decoded(format, &source, 2 * outputs * columns);
        let both = products(&weights, &input.values, columns);
        let wanted = |row: usize, at: usize| {
            let (gate, gate_size) = both[row * 2 * outputs + at];
            let (up, up_size) = both[row * 2 * outputs + outputs + at];
            let gelu = ops::gelu(gate);
            let size = 1.2 * gate_size * up.abs() + gelu.abs() * up_size;
            (gelu * up, 1e-5 * widened(format, size) + 2e-6 * (gate * up).abs())
        };
        if with_plain {
            let found = download::<f32>(&gpu, &plain);
            for index in 0..width * outputs {
                let (wanted, slack) = wanted(index / outputs, index % outputs);
                let found = f64::from(found[index]);
                assert!(
                    (found - wanted).abs() <= slack,
                    "{format:?} {case} {index}: {found} {wanted}"
                );
            }
        }
        if with_operand {
            let scales = download::<f32>(&gpu, &scales);
            let found = fixed_values(&download::<u8>(&gpu, &codes), &scales, outputs);
            check_fixed(&found, &scales, (width, outputs), wanted);
        }
    }
}

/// Checks values and sums of a fixed-point operand against (value, error) of each output.
fn check_fixed(
    found: &[f64],
    scales: &[f32],
    (width, outputs): (usize, usize),
    wanted: impl Fn(usize, usize) -> (f64, f64),
) {
    let padded = outputs.next_multiple_of(GROUP);
    for row in 0..width {
        for block in 0..padded / SCALE_BLOCK {
            let range = block * SCALE_BLOCK..(block + 1) * SCALE_BLOCK;
            let values: Vec<(f64, f64)> =
                range.map(|at| if at < outputs { wanted(row, at) } else { (0.0, 0.0) }).collect();
            let high = values.iter().fold(0.0_f64, |high, (x, slack)| high.max(x.abs() + slack));
            let mut sum = (0.0, 0.0);
            // A block that is too large for f32 is NaN, because its values are of no use.
            if high > f64::from(f32::MAX) {
                continue;
            }
            for (at, &(value, slack)) in values.iter().enumerate() {
                let found = found[row * padded + block * SCALE_BLOCK + at];
                let tolerance = slack + high / 64_000.0 + 1e-30;
                assert!((found - value).abs() <= tolerance, "{row} {block} {at}: {found} {value}");
                sum = (sum.0 + value, sum.1 + slack + high / 64_000.0);
            }
            let found = f64::from(scales[2 * (row * padded / SCALE_BLOCK + block) + 1]);
            assert!(
                (found - sum.0).abs() <= sum.1 + 1e-29,
                "sum of {row} {block}: {found} {}",
                sum.0
            );
        }
    }
}

#[test]
fn gated_products_agree_with_their_definition() {
    Format::ALL.into_iter().filter(|format| *format != Format::F16).for_each(check_gate);
}

#[test]
fn a_norm_before_a_gated_product_agrees_with_its_definition() {
    let gpu = gpu();
    let subgroup = gpu.capabilities().subgroup;
    let (format, outputs, columns) = (Format::Q4_0, 96, 1152);
    let source = random_rows(format, 2 * outputs, columns, 11);
    let (matrix, _memory) = device_matrix(&gpu, format, columns, &source);
    let (x, weight) = (random(columns, 12, 9.0), random(columns, 13, 2.0));
    let (x_memory, weight_memory) = (upload(&gpu, &x), upload(&gpu, &weight));
    let codes = poisoned(&gpu, OperandKind::Fixed16.code_bytes(outputs) as u64);
    let scales = poisoned(&gpu, OperandKind::Fixed16.scale_bytes(outputs) as u64);
    let launch = MatvecLaunch(Product {
        matrix,
        width: 1,
        input: ProductInput::Norm {
            x: x_memory.span(),
            weight: weight_memory.address(),
            epsilon: EPSILON,
        },
        output: ProductOutput::Gated(Made::Operand(Operand {
            kind: OperandKind::Fixed16,
            codes: codes.span(),
            scales: scales.span(),
        })),
    });
    let shape = shape(16 * subgroup, 8, 4, 2, 1);
    run(&gpu, &[launch.dispatch(&gpu, shape, "normed and gated", 0).unwrap()]);
    let (values, errors) = normed(&x, &weight, format);
    let weights = decoded(format, &source, 2 * outputs * columns);
    let both = products(&weights, &values, columns);
    let scales = download::<f32>(&gpu, &scales);
    let found = fixed_values(&download::<u8>(&gpu, &codes), &scales, outputs);
    check_fixed(&found, &scales, (1, outputs), |_, at| {
        let error = |row: usize| slack(&weights[row * columns..][..columns], &errors);
        let ((gate, _), (up, _)) = (both[at], both[outputs + at]);
        let gelu = ops::gelu(gate);
        let slack = 1.2 * error(at) * up.abs() + gelu.abs() * error(outputs + at);
        (gelu * up, 1.1 * slack + 1e-6)
    });
}

#[test]
fn a_broken_row_of_activations_breaks_no_other() {
    let gpu = gpu();
    let (rows, columns, width) = (20, 256, 3);
    for format in Format::ALL {
        for broken in [f32::NAN, f32::INFINITY] {
            let source = random_rows(format, rows, columns, 5);
            let (matrix, _memory) = device_matrix(&gpu, format, columns, &source);
            let mut values = random(width * columns, 6, 2e30);
            values[columns + 77] = broken;
            let input = input(&gpu, format, &values, columns);
            let target = poisoned(&gpu, (4 * width * rows) as u64);
            let segments = [Segment { rows, target: target.span() }];
            let launch = MatvecLaunch(Product {
                matrix,
                width,
                input: ProductInput::Operand(input.operand),
                output: ProductOutput::segments(&segments),
            });
            let shape = shape(64, 8, 2, 1, 0);
            run(&gpu, &[launch.dispatch(&gpu, shape, "product", 0).unwrap()]);
            let found = download::<f32>(&gpu, &target);
            let expected =
                products(&decoded(format, &source, rows * columns), &input.values, columns);
            for (at, found) in found.iter().take(width * rows).enumerate() {
                if at / rows == 1 {
                    assert!(!found.is_finite(), "{format:?} {at}: {found}");
                } else {
                    let (wanted, size) = expected[at];
                    let slack = 2e-6 * widened(format, size);
                    assert!(
                        (f64::from(*found) - wanted).abs() <= slack,
                        "{format:?} {found} {wanted}"
                    );
                }
            }
        }
    }
}

#[test]
fn a_broken_residual_stream_breaks_the_product() {
    let gpu = gpu();
    let (format, rows, columns) = (Format::Q4_0, 20, 160);
    let source = random_rows(format, rows, columns, 5);
    let (matrix, _memory) = device_matrix(&gpu, format, columns, &source);
    let mut x = random(columns, 6, 2.0);
    x[100] = f32::NAN;
    let (x, weight) = (upload(&gpu, &x), upload(&gpu, &vec![1.0_f32; columns]));
    let target = poisoned(&gpu, 4 * rows as u64);
    let segments = [Segment { rows, target: target.span() }];
    let launch = MatvecLaunch(Product {
        matrix,
        width: 1,
        input: ProductInput::Norm { x: x.span(), weight: weight.address(), epsilon: EPSILON },
        output: ProductOutput::segments(&segments),
    });
    run(&gpu, &[launch.dispatch(&gpu, shape(64, 8, 2, 1, 0), "product", 0).unwrap()]);
    assert!(download::<f32>(&gpu, &target)[..rows].iter().all(|x| x.is_nan()));
}

#[test]
fn an_input_of_zeros_gives_zeros() {
    let gpu = gpu();
    let (format, rows, columns) = (Format::Q4K, 20, 256);
    let source = random_rows(format, rows, columns, 5);
    let (matrix, _memory) = device_matrix(&gpu, format, columns, &source);
    let (x, weight) =
        (upload(&gpu, &vec![0.0_f32; columns]), upload(&gpu, &vec![1.0_f32; columns]));
    let target = poisoned(&gpu, 4 * rows as u64);
    let segments = [Segment { rows, target: target.span() }];
    let launch = MatvecLaunch(Product {
        matrix,
        width: 1,
        input: ProductInput::Norm { x: x.span(), weight: weight.address(), epsilon: EPSILON },
        output: ProductOutput::segments(&segments),
    });
    run(&gpu, &[launch.dispatch(&gpu, shape(64, 8, 2, 1, 0), "product", 0).unwrap()]);
    assert!(download::<f32>(&gpu, &target)[..rows].iter().all(|x| *x == 0.0));
}

#[test]
fn shapes_that_a_device_or_a_launch_cannot_have_are_refused() {
    let gpu = gpu();
    let planes = Default::default();
    let matrix = Matrix { format: Format::Q4_0, rows: 64, columns: 128, planes, unit: 1.0 };
    let span = Span { address: 0, bytes: 0 };
    let operand = Operand { kind: OperandKind::Fixed16, codes: span, scales: span };
    let gated = ProductOutput::Gated(Made::Operand(operand));
    let input = ProductInput::Operand(operand);
    let launch = MatvecLaunch(Product { matrix, width: 1, input, output: gated });
    let fits = |shape: MatvecShape| shape.fits(gpu.capabilities(), &launch);
    assert!(fits(shape(128, 4, 2, 1, 0)));
    assert!(!fits(shape(128, 8, 2, 1, 0)), "a tile of 16 outputs is not a block");
    assert!(!fits(shape(128, 4, 1, 1, 0)), "a row of each matrix");
    assert!(!fits(shape(128, 4, 2, 0, 0)));
    assert!(!fits(shape(1 << 20, 4, 2, 1, 0)));
    assert!(!fits(shape(96, 12, 2, 1, 0)), "lanes are a power of two");
    assert!(launch.dispatch(&gpu, shape(128, 8, 2, 1, 0), "gated", 0).is_err());
    let huge = Matrix { columns: 1 << 20, ..matrix };
    let norm = ProductInput::Norm { x: span, weight: 0, epsilon: 0.0 };
    let staged = MatvecLaunch(Product { matrix: huge, input: norm, ..launch.0 });
    assert!(!shape(128, 4, 2, 1, 0).fits(gpu.capabilities(), &staged), "too large to stage");
    for kind in [Format::Q4_0, Format::F16] {
        let launch =
            MatvecLaunch(Product { matrix: Matrix { format: kind, ..matrix }, ..launch.0 });
        assert!(!MatvecShape::candidates(gpu.capabilities(), &launch).is_empty());
        assert!(launch.offer(gpu.capabilities())[0].fits(gpu.capabilities(), &launch));
    }
}

#[test]
fn a_matrix_with_more_units_than_the_kernel_counts_is_an_error() {
    let gpu = gpu();
    let span = Span { address: 0, bytes: 0 };
    let operand = Operand { kind: OperandKind::Plain, codes: span, scales: span };
    let found = |rows: usize| {
        let matrix = Matrix {
            format: Format::F32,
            rows,
            columns: 1 << 13,
            planes: Default::default(),
            unit: 1.0,
        };
        let segments = [Segment { rows, target: span }];
        let output = ProductOutput::segments(&segments);
        let input = ProductInput::Operand(operand);
        let launch = MatvecLaunch(Product { matrix, width: 1, input, output });
        launch.lay_out(gpu.capabilities(), shape(64, 8, 2, 1, 0), "logits")
    };
    assert!(found((1 << 20) - 1).is_ok());
    let error = found(1 << 20).unwrap_err();
    assert!(matches!(error, GpuError::TooWide { .. }), "{error}");
}

/// A shape that was measured on any kind of device computes the right result on this one, as far as
/// it has room for it.
#[test]
fn every_shape_of_every_kind_of_device_agrees() {
    let gpu = gpu();
    let (format, rows, columns) = (Format::Q4_0, 37, 2080);
    let source = random_rows(format, rows, columns, 21);
    let weights = decoded(format, &source, rows * columns);
    let (matrix, _memory) = device_matrix(&gpu, format, columns, &source);
    let mut seen = std::collections::HashSet::new();
    for kind in [DeviceKind::Discrete, DeviceKind::Integrated, DeviceKind::Processor] {
        let capabilities = Capabilities { kind, ..gpu.capabilities().clone() };
        for width in [1, 3] {
            let input = input(&gpu, format, &random(width * columns, 22, 3.0), columns);
            let expected = products(&weights, &input.values, columns);
            let target = poisoned(&gpu, (4 * width * rows) as u64);
            let segments = [Segment { rows, target: target.span() }];
            let launch = MatvecLaunch(Product {
                matrix,
                width,
                input: ProductInput::Operand(input.operand),
                output: ProductOutput::segments(&segments),
            });
            for shape in MatvecShape::candidates(&capabilities, &launch) {
                if !seen.insert((width, shape)) || !takes(seen.len(), 3) {
                    continue;
                }
                run(&gpu, &[launch.dispatch(&gpu, shape, "product", 0).unwrap()]);
                let found = download::<f32>(&gpu, &target);
                for (&found, (wanted, size)) in found.iter().zip(&expected) {
                    assert!(
                        (f64::from(found) - wanted).abs() <= 2e-6 * size + 1e-9,
                        "width {width}, {shape:?}: {found} {wanted}"
                    );
                }
            }
        }
    }
    assert!(seen.len() >= 20, "{}", seen.len());
}
