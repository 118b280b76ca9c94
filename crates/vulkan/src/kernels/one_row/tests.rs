use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use trine_backend::reference::ops;

use super::*;
use crate::capabilities::presets;
use crate::dispatch::Span;
use crate::kernels::operand::Operand;
use crate::kernels::product::{ProductInput, Segment};
use crate::pack::Matrix;
use crate::pack::tests::{decoded, device_matrix, quantised, random_rows};
use crate::testing::{download, gpu, poisoned, run, takes, upload};

const EPSILON: f32 = 1e-6;
/// The factor on sums.
const SCALE: f32 = 0.7;

fn random(count: usize, seed: u64, size: f32) -> Vec<f32> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    (0..count).map(|_| (random.random::<f32>() - 0.5) * size).collect()
}

fn norm(x: &[f64], weight: &[f32]) -> Vec<f64> {
    let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
    let factor = 1.0 / (mean + f64::from(EPSILON)).sqrt();
    x.iter().zip(weight).map(|(x, &w)| x * factor * f64::from(w)).collect()
}

/// Returns the place of an element of a row that is interleaved.
fn place(at: usize, columns: usize) -> usize {
    let (block, quad) = (at / SCALE_BLOCK, at % SCALE_BLOCK / 4);
    4 * (quad * (columns / SCALE_BLOCK) + block) + at % 4
}

fn interleaved(row: &[f32]) -> Vec<f32> {
    let mut values = vec![f32::NAN; row.len()];
    row.iter().enumerate().for_each(|(at, &value)| values[place(at, row.len())] = value);
    values
}

struct Case {
    format: Format,
    rows: usize,
    columns: usize,
    /// 3: the activations are interleaved, and so are gated products of whole blocks. 4: as 2, but
    /// another product writes the residual stream.
    prologue: u32,
    gated: bool,
    size: f32,
}

/// Returns the results of the launch and, after an addition, the residual stream as the last.
fn found(case: &Case, shape: Option<OneRowShape>) -> (Vec<f32>, Vec<f32>, Vec<(f64, f64)>) {
    let gpu = gpu();
    let Case { format, rows, columns, prologue, gated, size } = *case;
    let source = random_rows(format, rows, columns, 7);
    let (matrix, _memory) = device_matrix(&gpu, format, columns, &source);
    let x = random(columns, 1, size);
    let added = random(columns, 2, 3.0);
    let [w, v] = [random(columns, 3, 2.0), random(columns, 4, 2.0)];
    let source_row = if prologue == 3 { interleaved(&x) } else { x.clone() };
    let [x_memory, added_memory, w_memory, v_memory] =
        [&source_row, &added, &w, &v].map(|values| upload(&gpu, values));
    let updated = poisoned(&gpu, 4 * columns as u64);
    let plain = Span { address: x_memory.address(), bytes: 4 * columns as u64 };
    let none = Span { address: 0, bytes: 0 };
    let input = match prologue {
        0 => {
            ProductInput::Operand(Operand { kind: OperandKind::Plain, codes: plain, scales: none })
        }
        3 => {
            let kind = OperandKind::Interleaved;
            ProductInput::Operand(Operand { kind, codes: plain, scales: none })
        }
        1 => ProductInput::Norm { x: plain, weight: w_memory.address(), epsilon: EPSILON },
        _ => ProductInput::NormAddNorm {
            x: plain,
            scale: SCALE,
            added: added_memory.span(),
            added_weight: v_memory.address(),
            weight: w_memory.address(),
            epsilon: EPSILON,
            x_out: (prologue == 2).then(|| updated.span()),
        },
    };
    let outputs = if gated { rows / 2 } else { rows };
    let target = poisoned(&gpu, 4 * outputs as u64);
    // Uneven segments.
    let cuts = [outputs / 3, outputs / 2 - outputs / 3, outputs - outputs / 2];
    let mut at = 0;
    let segments: Vec<Segment> = cuts
        .into_iter()
        .map(|rows| {
            let span = Span { address: target.address() + 4 * at as u64, bytes: 4 * rows as u64 };
            at += rows;
            Segment { rows, target: span }
        })
        .collect();
    let turns_over = gated && prologue == 3 && outputs.is_multiple_of(SCALE_BLOCK);
    let output = if turns_over {
        let (kind, codes) = (OperandKind::Interleaved, target.span());
        ProductOutput::Gated(Made::Operand(Operand { kind, codes, scales: none }))
    } else if gated {
        ProductOutput::Gated(Made::Rows(target.span()))
    } else {
        ProductOutput::segments(&segments)
    };
    let launch = OneRowLaunch(Product { matrix, width: 1, input, output });
    let shape = shape.unwrap_or_else(|| launch.offer(gpu.capabilities())[0]);
    run(&gpu, &[launch.dispatch(&gpu, shape, "stream", 0).unwrap()]);

    let wide: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
    let summed: Vec<f64> = match prologue {
        2 | 4 => {
            let added: Vec<f64> = added.iter().map(|&x| f64::from(x)).collect();
            let sums = wide.iter().zip(norm(&added, &v)).map(|(x, y)| x + y);
            sums.map(|sum| sum * f64::from(SCALE)).collect()
        }
        _ => wide,
    };
    let activations = if matches!(prologue, 1 | 2 | 4) { norm(&summed, &w) } else { summed };
    let weights = decoded(format, &source, rows * columns);
    let product = |row: usize| {
        let terms = weights[row * columns..][..columns].iter().zip(&activations);
        terms.fold((0.0, 0.0), |(sum, all), (&w, x)| {
            let term = f64::from(w) * x;
            (sum + term, all + term.abs())
        })
    };
    let wanted = (0..outputs).map(|row| {
        let (gate, gate_size) = product(row);
        if !gated {
            return (gate, gate_size);
        }
        let (up, up_size) = product(outputs + row);
        let gelu = ops::gelu;
        (gelu(gate) * up, (gelu(gate).abs() + gate_size) * up_size + gate_size * up.abs())
    });
    let wanted = wanted.collect();
    let mut values = download::<f32>(&gpu, &target);
    values.truncate(outputs);
    if turns_over {
        values = (0..outputs).map(|at| values[place(at, outputs)]).collect();
    }
    let mut updated = download::<f32>(&gpu, &updated);
    updated.truncate(columns);
    (values, updated, wanted)
}

fn check(case: &Case, shape: Option<OneRowShape>) {
    let (values, _, wanted) = found(case, shape);
    for (row, (&value, &(wanted, size))) in values.iter().zip(&wanted).enumerate() {
        let slack = 5e-5 * size + 1e-6;
        let name = format!("{:?} {}x{}", case.format, case.rows, case.columns);
        assert!(
            (f64::from(value) - wanted).abs() <= slack,
            "{name} {} {} {shape:?} row {row}: {value} {wanted} within {slack}",
            case.prologue,
            case.gated
        );
    }
}

#[test]
fn products_of_every_format_agree_with_their_definition() {
    let mut number = 0..;
    for format in quantised() {
        let all: &[usize] = match format.dtype().block_elements() {
            256 => &[256, 1280],
            64 => &[64, 192, 1152],
            _ => &[32, 160, 1152],
        };
        for (at, &columns) in all.iter().enumerate() {
            let rows = [6, 50, 134][at % 3];
            for prologue in [0, 1, 2, 4] {
                for gated in [false, true] {
                    if number.next().is_some_and(|number| takes(number, 5)) {
                        check(&Case { format, rows, columns, prologue, gated, size: 4.0 }, None);
                    }
                }
            }
        }
    }
}

#[test]
fn interleaved_rows_agree_with_their_definition() {
    let mut number = 0..;
    for format in quantised() {
        for (columns, rows) in [(256, 128), (1280, 64), (1280, 50), (2304, 192)] {
            for gated in [false, true] {
                if number.next().is_some_and(|number| takes(number, 3)) {
                    check(&Case { format, rows, columns, prologue: 3, gated, size: 4.0 }, None);
                }
            }
        }
    }
}

/// A product that is the gate of a row that is there, from the middle of a longer one on.
#[test]
fn a_product_gates_a_row() {
    let gpu = gpu();
    for (number, format) in (0..).zip(quantised()).filter(|&(number, _)| takes(number, 2)) {
        let (rows, columns, first) = ([33, 256][number % 2], 256, 7);
        let source = random_rows(format, rows, columns, 9);
        let (matrix, _memory) = device_matrix(&gpu, format, columns, &source);
        let x = random(columns, 1, 2.0);
        let long = random(first + rows, 2, 3.0);
        let (x_memory, by_memory) = (upload(&gpu, &x), upload(&gpu, &long));
        let target = poisoned(&gpu, 4 * rows as u64);
        let none = Span { address: 0, bytes: 0 };
        let codes = Span { address: x_memory.address(), bytes: 4 * columns as u64 };
        let operand = Operand { kind: OperandKind::Plain, codes, scales: none };
        let by = Span { address: by_memory.address() + 4 * first as u64, bytes: 4 * rows as u64 };
        let output = ProductOutput::Gates { by, first: 0, target: target.span() };
        let input = ProductInput::Operand(operand);
        let launch = OneRowLaunch(Product { matrix, width: 1, input, output });
        let shape = launch.offer(gpu.capabilities())[0];
        let dispatch = launch.dispatch(&gpu, shape, "gates", 0).unwrap();
        assert!(dispatch.reads.contains(&by) && !dispatch.writes.contains(&by));
        run(&gpu, &[dispatch]);
        let found: Vec<f32> = download(&gpu, &target);
        let weights = decoded(format, &source, rows * columns);
        for (row, weights) in weights.chunks_exact(columns).enumerate() {
            let products = weights.iter().zip(&x).map(|(&w, &x)| f64::from(w) * f64::from(x));
            let wanted = ops::gelu(products.sum()) * f64::from(long[first + row]);
            let off = (f64::from(found[row]) - wanted).abs();
            assert!(off <= 1e-3 * (1.0 + wanted.abs()), "{format:?} {row}: {off} of {wanted}");
        }
    }
}

#[test]
fn rows_are_interleaved_where_a_workgroup_has_one_team() {
    let capabilities = Capabilities {
        kind: DeviceKind::Discrete,
        subgroup: 32,
        invocations: 1024,
        shared_bytes: 48 << 10,
        ..gpu().capabilities().clone()
    };
    let prefers = |columns| prefers_interleaved(&capabilities, Format::Q4_0, columns);
    assert_eq!([6912, 10_240, 15_360, 21_504].map(prefers), [false, false, true, true]);
}

#[test]
fn every_shape_gives_the_same() {
    let capabilities = gpu().capabilities().clone();
    let mut number = 0..;
    for (columns, rows) in [(736, 71), (2048, 300)] {
        for wanted in [(8, 1, 1, 1), (32, 2, 3, 2), (64, 8, 1, 2), (128, 4, 7, 1)] {
            for (gated, prologue) in [(false, 2), (true, 2), (false, 3)] {
                let rows = rows / 2 * 2;
                let format = Format::Q4_0;
                let case = Case { format, rows, columns, prologue, gated, size: 4.0 };
                if let Some(shape) = OneRowShape::of(&capabilities, format, columns, true, wanted) {
                    for turns in [false, true] {
                        if number.next().is_some_and(|number| takes(number, 5)) {
                            check(&case, Some(OneRowShape { turns, ..shape }));
                        }
                    }
                }
            }
        }
    }
}

/// A shape that was measured on any kind of device computes the right result on this one, as far as
/// it has room for it.
#[test]
fn every_shape_of_every_kind_of_device_agrees() {
    let mut shapes = Vec::new();
    for kind in [DeviceKind::Discrete, DeviceKind::Integrated, DeviceKind::Processor] {
        let capabilities = Capabilities { kind, ..gpu().capabilities().clone() };
        let list = OneRowShape::candidates(&capabilities, Format::Q4_0, 2080, true);
        assert_eq!(list[0], OneRowShape::suited(&capabilities, Format::Q4_0, 2080, true).unwrap());
        shapes.extend(list);
    }
    let mut seen = std::collections::HashSet::new();
    shapes.retain(|shape| seen.insert(*shape));
    assert!(shapes.len() >= 8, "{shapes:?}");
    for (number, shape) in shapes.into_iter().enumerate().filter(|&(number, _)| takes(number, 5)) {
        let format = quantised()[number % 2];
        let case = Case {
            format,
            rows: 110,
            columns: 2080,
            prologue: 2,
            gated: number % 3 == 0,
            size: 4.0,
        };
        check(&case, Some(shape));
    }
}

/// As many rows as the vocabulary of Gemma has, in workgroups of one subgroup, which have the
/// longest loops: a software renderer ends long ones early.
#[test]
fn a_tall_matrix_has_all_its_outputs() {
    let (format, rows, columns) = (Format::Q4_0, 262_144, 32);
    let shape = OneRowShape::of(gpu().capabilities(), format, columns, false, (8, 1, 1, 1));
    assert!(shape.is_some_and(|shape| shape.teams == 1), "{shape:?}");
    check(&Case { format, rows, columns, prologue: 0, gated: false, size: 4.0 }, shape);
}

#[test]
fn the_residual_stream_is_updated() {
    let case =
        Case { format: Format::Q4_0, rows: 40, columns: 160, prologue: 2, gated: false, size: 1e5 };
    let (values, updated, _) = found(&case, None);
    let x = random(160, 1, 1e5);
    let added: Vec<f64> = random(160, 2, 3.0).iter().map(|&x| f64::from(x)).collect();
    for ((found, x), y) in updated.iter().zip(&x).zip(norm(&added, &random(160, 4, 2.0))) {
        let wanted = (f64::from(*x) + y) * f64::from(SCALE);
        assert!((f64::from(*found) - wanted).abs() <= 1e-6 * 1e5, "{found} {wanted}");
    }
    assert!(values.iter().all(|value| value.is_finite()));
    let (same, untouched, _) = found(&Case { prologue: 4, ..case }, None);
    assert_eq!(values, same);
    assert!(untouched.iter().all(|value| value.is_nan()), "another product writes it");
}

/// A norm's factor comes after the product, so what is multiplied may be of any size.
#[test]
fn norms_of_rows_of_any_size_agree_with_their_definition() {
    let formats = [Format::Q8_0, Format::Q2K, Format::Q4K, Format::Iq4Xs];
    for (number, size) in [1e-20, 1e-6, 1e6, 1e15].into_iter().enumerate() {
        let (format, gated) = (formats[number], number % 2 == 1);
        let case = Case { format, rows: 40, columns: 256, prologue: 1, gated: false, size };
        let (values, _, wanted) = found(&case, None);
        for (row, (&value, &(wanted, all))) in values.iter().zip(&wanted).enumerate() {
            let off = (f64::from(value) - wanted).abs();
            assert!(off <= 5e-5 * all, "{format:?} {size} {row}: {value} {wanted}");
        }
        let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&found(&case, None).0), bits(&values), "the same bits each time");
        check(&Case { gated, prologue: 2, ..case }, None);
    }
}

#[test]
fn broken_activations_break_the_products() {
    let gpu = gpu();
    let source = random_rows(Format::Q4_0, 20, 64, 7);
    let (matrix, _memory) = device_matrix(&gpu, Format::Q4_0, 64, &source);
    let sound = random(64, 1, 1.0);
    for broken in [f32::NAN, f32::INFINITY] {
        let mut row = sound.clone();
        row[33] = broken;
        let [row, sound, updated] = [&row, &sound, &sound].map(|row| upload(&gpu, row));
        let none = Span { address: 0, bytes: 0 };
        let operand =
            |kind| ProductInput::Operand(Operand { kind, codes: row.span(), scales: none });
        let [weight, added_weight] = [sound.address(); 2];
        let (epsilon, x_out) = (EPSILON, Some(updated.span()));
        let normed = |x, added| ProductInput::NormAddNorm {
            x,
            scale: 1.0,
            added,
            added_weight,
            weight,
            epsilon,
            x_out,
        };
        let inputs = [
            operand(OperandKind::Plain),
            operand(OperandKind::Interleaved),
            ProductInput::Norm { x: row.span(), weight, epsilon },
            normed(row.span(), sound.span()),
            normed(sound.span(), row.span()),
        ];
        for (number, input) in inputs.into_iter().enumerate() {
            let target = upload(&gpu, &[0_f32; 20]);
            let segments = [Segment { rows: 20, target: target.span() }];
            let output = ProductOutput::segments(&segments);
            let launch = OneRowLaunch(Product { matrix, width: 1, input, output });
            let shape = launch.offer(gpu.capabilities())[0];
            run(&gpu, &[launch.dispatch(&gpu, shape, "stream", 0).unwrap()]);
            let found = &download::<f32>(&gpu, &target)[..20];
            assert!(found.iter().all(|value| value.is_nan()), "{number} {broken}: {found:?}");
        }
    }
}

#[test]
fn a_shape_without_room_is_an_error() {
    let (matrix, _) = Matrix::at(0, Format::Q4_0, 64, 5376).unwrap();
    let span = Span { address: 0, bytes: 0 };
    let input = ProductInput::Norm { x: span, weight: 0, epsilon: EPSILON };
    let segments = [Segment { rows: 64, target: span }];
    let output = ProductOutput::segments(&segments);
    let launch = OneRowLaunch(Product { matrix, width: 1, input, output });
    let large = Capabilities {
        kind: DeviceKind::Discrete,
        subgroup: 32,
        invocations: 1024,
        shared_bytes: 48 << 10,
        ..gpu().capabilities().clone()
    };
    let shape = launch.offer(&large)[0];
    assert!(launch.lay_out(&large, shape, "product").is_ok());
    let small = Capabilities { shared_bytes: 8 << 10, ..large };
    let error = launch.lay_out(&small, shape, "product").unwrap_err();
    assert!(matches!(error, GpuError::Missing { .. }), "{error}");
}

#[test]
fn workgroups_share_outputs_evenly_where_few_are_left_out() {
    let workgroups = |rows: usize, gated: bool, teams: u32| {
        let (matrix, _) = Matrix::at(0, Format::Q4_0, rows, 5376).unwrap();
        let span = Span { address: 0, bytes: 0 };
        let x = Operand { kind: OperandKind::Plain, codes: span, scales: span };
        let output = if gated {
            ProductOutput::Gated(Made::Rows(span))
        } else {
            ProductOutput::segments(&[])
        };
        let launch =
            OneRowLaunch(Product { matrix, width: 1, input: ProductInput::Operand(x), output });
        let shape =
            OneRowShape { lanes: 192, teams, batch: 4, workgroups: 132, banks: 1, turns: true };
        launch.workgroups(DeviceKind::Discrete, &shape)
    };
    assert_eq!(workgroups(8192, false, 4), 128);
    assert_eq!(workgroups(5376, false, 1), 128);
    assert_eq!(workgroups(2 * 21504, true, 4), 128);
    assert_eq!(workgroups(2 * 6912, true, 12), 132, "none of 116 to 132 divides 576");
    assert_eq!(workgroups(100, false, 1), 100, "one for each output");
    assert_eq!(workgroups(3, false, 8), 1);
}

#[test]
fn teams_with_few_outputs_have_few_rows_in_flight() {
    let offer = |rows: usize, columns: usize| {
        let (matrix, _) = Matrix::at(0, Format::Q4_0, rows, columns).unwrap();
        let span = Span { address: 0, bytes: 0 };
        let x = Operand { kind: OperandKind::Plain, codes: span, scales: span };
        let (input, output) = (ProductInput::Operand(x), ProductOutput::segments(&[]));
        OneRowLaunch(Product { matrix, width: 1, input, output }).offer(&presets::h200())
    };
    // The output of attention in 4B: 132 workgroups of 12 teams, and in 27B, of 6; query, key and
    // value in 4B: of 8, and there are shapes with fewer teams.
    for (rows, columns, batch) in [(2560, 2048, 2), (5376, 4096, 4), (4096, 2560, 2)] {
        let (found, many) = (offer(rows, columns), offer(1 << 20, columns));
        assert_eq!(found[0], OneRowShape { batch, ..many[0] });
        let others = |shapes: &[OneRowShape]| {
            let mut others = shapes.to_vec();
            others.retain(|shape| *shape != found[0]);
            others
        };
        assert_eq!(others(&found), others(&many), "the others stand as they did");
    }
}
