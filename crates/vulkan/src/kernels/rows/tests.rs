use trine_backend::reference::ops;

use super::*;
use crate::kernels::operand::{SPLIT_REST, fragment_place, split_place};
use crate::testing::{download, gpu, poisoned, run, upload};
use half::f16;

/// Returns the values of a row as a Fixed16 operand holds them, and the sums of its blocks.
fn fixed(codes: &[i8], scales: &[f32], columns: usize) -> (Vec<f64>, Vec<f32>) {
    let value = |c: usize| {
        let (group, block, within) = (c / 128, c % 128 / 32, c % 32);
        let at = group * 256 + within / 16 * 64 + block * 16 + within % 16;
        let whole = 256 * i32::from(codes[at]) + i32::from(codes[at + 128]);
        f64::from(scales[2 * (c / 32)]) * f64::from(whole)
    };
    let padded = columns.next_multiple_of(GROUP);
    let sums = (0..padded / 32).map(|block| scales[2 * block + 1]).collect();
    ((0..padded).map(value).collect(), sums)
}

pub(crate) fn random(count: usize, seed: u64, size: f32) -> Vec<f32> {
    use rand::{RngExt, SeedableRng};
    let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
    (0..count).map(|_| (random.random::<f32>() - 0.5) * size).collect()
}

/// Returns the halves of a row, those that fill it up to a whole group included.
pub(crate) fn halves_of(kind: OperandKind, codes: &[u8], row: usize, columns: usize) -> Vec<f16> {
    let halves: &[f16] = bytemuck::cast_slice(codes);
    let padded = columns.next_multiple_of(GROUP);
    let place = |column| match kind {
        OperandKind::Fragments => fragment_place(row, column, columns),
        OperandKind::Split => split_place(row, column, columns),
        _ => row * padded + column,
    };
    (0..padded).map(|column| halves[place(column)]).collect()
}

/// Returns the rows that an operand's memory has.
pub(crate) fn allocated(kind: OperandKind, rows: usize) -> usize {
    if kind.is_tiled() { rows.next_multiple_of(64) } else { rows }
}

/// Checks a row of an operand, the values of which may differ by `part` of the largest one.
pub(crate) fn check_row(
    kind: OperandKind,
    codes: &[u8],
    scales: &[f32],
    row: usize,
    expected: &[f64],
    part: f64,
) {
    let columns = expected.len();
    let high = expected.iter().fold(0.0_f64, |high, x| high.max(x.abs()));
    let close = |found: f64, wanted: f64, most: f64| {
        assert!((found - wanted).abs() <= most + 1e-12, "{kind:?} {columns}: {found} {wanted}");
    };
    if kind == OperandKind::Split {
        let halves: &[f16] = bytemuck::cast_slice(codes);
        for c in 0..columns.next_multiple_of(GROUP) {
            let place = split_place(row, c, columns);
            let both = [halves[place], halves[place + SPLIT_REST]].map(|half| half.to_f64());
            let wanted = expected.get(c).copied().unwrap_or(0.0);
            assert!(both[1].abs() <= both[0].abs() / 2048.0 + 6e-8, "{both:?}");
            let value = (both[0] + both[1]) * f64::from(scales[row]);
            // What the conversion adds is less than what computing the row in f32 does.
            close(value, wanted, 1e-6 * wanted.abs() + 0.25 * part * high);
        }
        return;
    }
    if kind.is_halves() {
        let halves = halves_of(kind, codes, row, columns);
        let factor = scales[row];
        let largest = halves.iter().fold(0.0_f32, |high, x| high.max(x.to_f32().abs()));
        assert!(high == 0.0 || (8192.0..=16384.0).contains(&largest), "{largest}");
        for (c, half) in halves.iter().enumerate() {
            let wanted = expected.get(c).copied().unwrap_or(0.0);
            let value = f64::from(half.to_f32()) * f64::from(factor);
            close(value, wanted, 5e-4 * wanted.abs() + 0.25 * part * high);
        }
        return;
    }
    let codes = &codes[row * kind.code_bytes(columns)..][..kind.code_bytes(columns)];
    let count = kind.scale_bytes(columns) / 4;
    let scales = &scales[row * count..][..count];
    let (values, sums) = fixed(bytemuck::cast_slice(codes), scales, columns);
    for (c, value) in values.iter().enumerate() {
        close(*value, expected.get(c).copied().unwrap_or(0.0), part * high);
    }
    for (block, sum) in sums.iter().enumerate() {
        let wanted: f64 = expected.iter().skip(32 * block).take(32).sum();
        close(f64::from(*sum), wanted, 0.5 * part * high);
    }
}

/// Checks all rows of an operand whose values were computed in f32.
pub(crate) fn check_operand(
    kind: OperandKind,
    codes: &[u8],
    scales: &[f32],
    expected: &[f32],
    columns: usize,
) {
    for (row, values) in expected.chunks_exact(columns).enumerate() {
        let values: Vec<f64> = values.iter().map(|&x| f64::from(x)).collect();
        check_row(kind, codes, scales, row, &values, 1e-4);
    }
}

struct Found {
    plain: Vec<f32>,
    target: Vec<f32>,
    codes: Vec<u8>,
    scales: Vec<f32>,
}

/// The operands that rows become.
pub(crate) const KINDS: [OperandKind; 4] =
    [OperandKind::Fixed16, OperandKind::Halves, OperandKind::Fragments, OperandKind::Split];
/// The factor on sums.
const SCALE: f32 = 0.7;
const DEVIATIONS: f32 = 0.4;
const FLOOR: f32 = 1e-5;
/// The number of the norm with factors of 1 here.
const BARE: u32 = 20;

/// Runs a launch of `rows` of `width` rows.
fn launch(
    kind: OperandKind,
    mode: u32,
    source: &[f32],
    columns: usize,
    rows: u32,
    others: [&[f32]; 3],
) -> Found {
    let gpu = gpu();
    let width = source.len() / columns;
    let input = upload(&gpu, source);
    let count = upload(&gpu, &[rows]);
    let [weight, target, next] = others.map(|values| upload(&gpu, values));
    let plain = poisoned(&gpu, (4 * width * columns) as u64);
    let codes = poisoned(&gpu, (allocated(kind, width) * kind.code_bytes(columns)) as u64);
    let scales = poisoned(&gpu, (width * kind.scale_bytes(columns)).max(4) as u64);
    let changed = Target { old: target.span(), updated: target.span() };
    let work = match mode {
        0 => RowWork::Convert { parts: 1 },
        1 => RowWork::Norm { weight: Some(weight.address()) },
        2 => RowWork::NormAdd { weight: weight.address(), target: changed, scale: SCALE },
        3 => RowWork::NormAddNorm {
            weight: weight.address(),
            target: changed,
            scale: SCALE,
            next_weight: next.address(),
        },
        4 => RowWork::Cutoff { deviations: DEVIATIONS },
        5 => RowWork::GatedCutoff { deviations: DEVIATIONS, up: target.span() },
        6 => RowWork::Rescale { like: target.span(), floor: FLOOR },
        7 => RowWork::LayerNorm(LayerNorm { weight: weight.address(), bias: next.address() }),
        // The weights of the norm are the bias as well.
        8 => RowWork::AddLayerNorm {
            bias: Some(weight.address()),
            target: changed,
            norm: LayerNorm { weight: weight.address(), bias: next.address() },
        },
        9 => RowWork::AddLayerNorm {
            bias: None,
            target: changed,
            norm: LayerNorm { weight: weight.address(), bias: next.address() },
        },
        10 => RowWork::Gelu { bias: Some(weight.address()) },
        BARE => RowWork::Norm { weight: None },
        _ => RowWork::Gelu { bias: None },
    };
    let launch = RowsLaunch {
        work,
        source: input.span(),
        epsilon: 1e-6,
        within: RowLimits::NONE,
        made: Some(Made::Both(
            plain.span(),
            Operand { kind, codes: codes.span(), scales: scales.span() },
        )),
        extent: Extent { columns, rows: width, row_count: count.address() },
    };
    run(&gpu, &[launch.dispatch(&gpu, "rows", 0).unwrap()]);
    Found {
        plain: download(&gpu, &plain),
        target: download(&gpu, &target),
        codes: download(&gpu, &codes),
        scales: download(&gpu, &scales),
    }
}

fn norm(row: &[f32], weight: &[f32]) -> Vec<f64> {
    let total: f64 = row.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
    let factor = 1.0 / (total / row.len() as f64 + 1e-6).sqrt();
    row.iter().zip(weight).map(|(&x, &w)| f64::from(x) * factor * f64::from(w)).collect()
}

/// A row of the step may become several rows of an operand, as many as the step has rows.
#[test]
fn parts_of_rows_become_rows_of_an_operand() {
    let gpu = gpu();
    let (columns, parts, rows) = (100, 3, 2);
    let source = random(columns * parts * (rows + 1), 5, 3.0);
    let (input, count) = (upload(&gpu, &source), upload(&gpu, &[rows as u32]));
    let kind = OperandKind::Fixed16;
    let all = parts * (rows + 1);
    let codes = poisoned(&gpu, (all * kind.code_bytes(columns)) as u64);
    let scales = poisoned(&gpu, (all * kind.scale_bytes(columns)) as u64);
    let launch = RowsLaunch {
        work: RowWork::Convert { parts },
        source: input.span(),
        epsilon: 0.0,
        within: RowLimits::NONE,
        made: Some(Made::Operand(Operand { kind, codes: codes.span(), scales: scales.span() })),
        extent: Extent { columns: columns * parts, rows: rows + 1, row_count: count.address() },
    };
    run(&gpu, &[launch.dispatch(&gpu, "parts", 0).unwrap()]);
    let (codes, scales) = (download::<u8>(&gpu, &codes), download::<f32>(&gpu, &scales));
    for row in 0..parts * rows {
        let expected = source[row * columns..][..columns].iter().map(|&x| f64::from(x));
        check_row(kind, &codes, &scales, row, &expected.collect::<Vec<_>>(), 2e-5);
    }
    assert!(
        codes[parts * rows * kind.code_bytes(columns)..all * kind.code_bytes(columns)]
            .iter()
            .all(|&code| code == 0xFF)
    );
}

#[test]
fn norms_and_operands_agree_with_their_definitions() {
    let cases = [(1, 1), (31, 2), (32, 3), (100, 2), (320, 3), (1152, 2), (2500, 1)];
    for (case, (columns, rows)) in cases.into_iter().enumerate() {
        let seed = 10 * case as u64;
        let source = random(columns * rows, seed, 3.0);
        let target = random(columns * rows, seed + 1, 5.0);
        let [weight, next] = [2, 3].map(|add| random(columns, seed + add, 2.0));
        for mode in [0, 1, 2, 3, BARE] {
            let kind = KINDS[(mode as usize + case) % KINDS.len()];
            let others = [weight.as_slice(), &target, &next];
            let found = launch(kind, mode, &source, columns, rows as u32, others);
            for row in 0..rows {
                let range = row * columns..(row + 1) * columns;
                let before = &source[range.clone()];
                let normed = norm(before, &weight);
                let added: Vec<f64> = normed
                    .iter()
                    .zip(&target[range.clone()])
                    .map(|(a, &b)| (a + f64::from(b)) * f64::from(SCALE))
                    .collect();
                let singles: Vec<f32> = added.iter().map(|&x| x as f32).collect();
                let expected = match mode {
                    0 => before.iter().map(|&x| f64::from(x)).collect(),
                    1 => normed,
                    2 => added.clone(),
                    BARE => norm(before, &vec![1.0; columns]),
                    _ => norm(&singles, &next),
                };
                let high = expected.iter().fold(0.0_f64, |high, x| high.max(x.abs()));
                let close = |found: f64, wanted: f64, part: f64| {
                    assert!(
                        (found - wanted).abs() <= part * high + 1e-12,
                        "{kind:?} {mode} {columns}: {found} {wanted}"
                    );
                };
                for (at, &wanted) in range.clone().zip(&expected) {
                    close(f64::from(found.plain[at]), wanted, 2e-6);
                    if mode > 1 && mode != BARE {
                        assert!(
                            (f64::from(found.target[at]) - added[at - range.start]).abs() < 1e-4
                        );
                    }
                }
                check_row(kind, &found.codes, &found.scales, row, &expected, 2e-5);
            }
        }
    }
}

/// What is read and what is made stays within limits; rows of the operand are of limited values.
#[test]
fn limited_rows_agree_with_their_definitions() {
    let gpu = gpu();
    let limits = |low, high| ValueLimits { low, high };
    let within =
        RowLimits { row: limits(-2.0, 1.0), target: limits(0.25, 3.0), result: limits(-0.5, 0.75) };
    let gelu = |x: f64| {
        let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
        0.5 * x * (1.0 + inner.tanh())
    };
    let limited = |value: f64, ValueLimits { low, high }: ValueLimits| {
        if value.is_nan() { value } else { value.clamp(f64::from(low), f64::from(high)) }
    };
    for (case, columns) in [31, 100, 320, 1152].into_iter().enumerate() {
        let seed = 50 + 3 * case as u64;
        let source = random(columns * 3, seed, 3.0);
        let target = random(columns * 3, seed + 1, 5.0);
        let weight = random(columns, seed + 2, 2.0);
        let [input, up, factors] = [&source, &target, &weight].map(|values| upload(&gpu, values));
        let count = upload(&gpu, &[2_u32]);
        let works = [
            (RowWork::Convert { parts: 1 }, RowLimits { row: ValueLimits::NONE, ..within }),
            (RowWork::Norm { weight: Some(factors.address()) }, within),
            (RowWork::Gate { up: up.span() }, within),
            (RowWork::Gate { up: up.span() }, RowLimits::NONE),
        ];
        for (at, (work, within)) in works.into_iter().enumerate() {
            let kind = KINDS[(at + case) % KINDS.len()];
            let plain = poisoned(&gpu, (4 * 3 * columns) as u64);
            let codes = poisoned(&gpu, (allocated(kind, 3) * kind.code_bytes(columns)) as u64);
            let scales = poisoned(&gpu, (3 * kind.scale_bytes(columns)).max(4) as u64);
            let launch = RowsLaunch {
                work,
                source: input.span(),
                epsilon: 1e-6,
                within,
                made: Some(Made::Both(
                    plain.span(),
                    Operand { kind, codes: codes.span(), scales: scales.span() },
                )),
                extent: Extent { columns, rows: 3, row_count: count.address() },
            };
            run(&gpu, &[launch.dispatch(&gpu, "limited", 0).unwrap()]);
            let found: Vec<f32> = download(&gpu, &plain);
            let (codes, scales) = (download::<u8>(&gpu, &codes), download::<f32>(&gpu, &scales));
            for row in 0..2 {
                let range = row * columns..(row + 1) * columns;
                let before: Vec<f32> = source[range.clone()]
                    .iter()
                    .map(|&x| limited(f64::from(x), within.row) as f32)
                    .collect();
                let others = target[range.clone()].iter();
                let made: Vec<f64> = match work {
                    RowWork::Norm { .. } => norm(&before, &weight),
                    RowWork::Gate { .. } => {
                        let pairs = before.iter().zip(others);
                        pairs
                            .map(|(&x, &y)| {
                                gelu(f64::from(x)) * limited(f64::from(y), within.target)
                            })
                            .collect()
                    }
                    _ => before.iter().map(|&x| f64::from(x)).collect(),
                };
                let made: Vec<f64> = made.iter().map(|&x| limited(x, within.result)).collect();
                let high = made.iter().fold(0.0_f64, |high, x| high.max(x.abs()));
                for (found, wanted) in found[range].iter().zip(&made) {
                    let off = (f64::from(*found) - wanted).abs();
                    assert!(off <= 2e-6 * high, "{work:?} {columns}: {found} {wanted}");
                }
                check_row(kind, &codes, &scales, row, &made, 2e-5);
            }
            assert!(found[2 * columns..3 * columns].iter().all(|x| x.is_nan()));
        }
    }
}

#[test]
fn rows_beyond_the_step_are_left_alone() {
    let found = launch(
        OperandKind::Fixed16,
        1,
        &random(3 * 64, 1, 1.0),
        64,
        2,
        [&[1.0; 64], &[0.0], &[0.0]],
    );
    assert!(found.plain[..128].iter().all(|x| x.is_finite()));
    assert!(found.plain[128..192].iter().all(|x| x.is_nan()));
    assert!(found.codes[2 * 256..3 * 256].iter().all(|&byte| byte == 0xFF));
}

#[test]
fn magnitudes_of_every_size_are_carried_and_broken_ones_stay_broken() {
    for kind in KINDS {
        for size in [1e-20_f32, 1e-3, 1.0, 7e4, 1e6, 1e30] {
            let mut source = random(2 * 64, 5, size);
            source[64] = f32::NAN;
            let found = launch(kind, 0, &source, 64, 2, [&[0.0]; 3]);
            let value = |c: usize| match kind {
                OperandKind::Halves | OperandKind::Fragments | OperandKind::Split => {
                    let halves = halves_of(kind, &found.codes, 0, 64);
                    f64::from(halves[c].to_f32()) * f64::from(found.scales[0])
                }
                _ => fixed(bytemuck::cast_slice(&found.codes), &found.scales, 64).0[c],
            };
            for (c, &wanted) in source[..64].iter().enumerate() {
                let wanted = f64::from(wanted);
                assert!((value(c) - wanted).abs() <= 6e-4 * wanted.abs() + f64::from(size) * 2e-5);
            }
            let second = if kind == OperandKind::Fixed16 { 8 } else { 1 };
            assert!(found.scales[second].is_nan(), "{kind:?}");
        }
    }
}

#[test]
fn norms_of_broken_rows_give_broken_operands() {
    for broken in [f32::NAN, f32::INFINITY] {
        for mode in [1, 3] {
            let mut source = random(2 * 64, 6, 1.0);
            source[64 + 7] = broken;
            let others = [&[1.0; 64][..], &[0.5; 2 * 64], &[1.0; 64]];
            let found = launch(OperandKind::Halves, mode, &source, 64, 2, others);
            let halves: &[f16] = bytemuck::cast_slice(&found.codes);
            assert!(found.scales[0].is_finite() && halves[..64].iter().all(|x| x.is_finite()));
            assert!(found.scales[1].is_nan(), "{broken} in mode {mode}");
        }
    }
}

#[test]
fn cutoffs_and_magnitudes_agree_with_the_reference() {
    for (case, (columns, rows)) in
        [(1, 1), (31, 2), (320, 3), (1152, 2), (8193, 1)].into_iter().enumerate()
    {
        let seed = 500 + 10 * case as u64;
        let mut source = random(columns * rows, seed, 3.0);
        // The cutoff of rows that are below 0 is above it, and the other way round.
        source.iter_mut().for_each(|x| *x += [2.0, -2.0][case % 2]);
        if case == 2 {
            source[..columns].fill(1e-9);
        }
        let other = random(columns * rows, seed + 1, 5.0);
        for mode in 4..7 {
            let kind = KINDS[(mode as usize + case) % KINDS.len()];
            let found = launch(kind, mode, &source, columns, rows as u32, [&[0.0], &other, &[0.0]]);
            let mut expected = source.clone();
            match mode {
                4 => ops::cutoff(&mut expected, DEVIATIONS, columns),
                5 => {
                    let mut gate = source.clone();
                    ops::cutoff(&mut gate, DEVIATIONS, columns);
                    ops::geglu(&gate, &other, &mut expected);
                }
                _ => ops::rescale(&mut expected, &other, FLOOR, columns),
            }
            assert_eq!(found.target[..other.len()], other, "it is only read");
            let high = expected.iter().fold(0.0_f32, |high, x| high.max(x.abs()));
            for (found, wanted) in found.plain.iter().zip(&expected) {
                // What is about as large as the limit is small.
                assert!((found - wanted).abs() <= 1e-5 * (1.0 + high), "{mode} {columns}");
            }
            if mode == 6 {
                check_operand(kind, &found.codes, &found.scales, &expected, columns);
            }
        }
    }
}

#[test]
fn layer_norms_and_activations_agree_with_the_reference() {
    let cases = [(1, 1), (31, 2), (320, 3), (1152, 2), (4304, 1)];
    for (case, (columns, rows)) in cases.into_iter().enumerate() {
        let seed = 700 + 10 * case as u64;
        let mut source = random(columns * rows, seed, 3.0);
        // The mean is no small part of the values.
        source.iter_mut().for_each(|x| *x += 2.0);
        let target = random(columns * rows, seed + 1, 5.0);
        let [weight, bias] = [2, 3].map(|add| random(columns, seed + add, 2.0));
        for mode in 7..12 {
            let kind = KINDS[(mode as usize + case) % KINDS.len()];
            let found =
                launch(kind, mode, &source, columns, rows as u32, [&weight, &target, &bias]);
            let mut row = source.clone();
            if mode == 8 || mode == 10 {
                ops::bias(&mut row, &weight);
            }
            let mut added = target.clone();
            if mode == 8 || mode == 9 {
                ops::add(&row, &mut added);
            }
            let mut expected = vec![0.0; columns * rows];
            match mode {
                7 => ops::layer_norm(&row, &weight, &bias, 1e-6, &mut expected),
                8 | 9 => ops::layer_norm(&added, &weight, &bias, 1e-6, &mut expected),
                _ => {
                    expected.copy_from_slice(&row);
                    ops::gelu_all(&mut expected);
                }
            }
            for (found, wanted) in found.target.iter().zip(&added) {
                assert!((found - wanted).abs() <= 1e-5, "{mode} {columns}: {found} {wanted}");
            }
            let high = expected.iter().fold(0.0_f32, |high, x| high.max(x.abs()));
            for (found, wanted) in found.plain.iter().zip(&expected) {
                let fits = (found - wanted).abs() <= 1e-5 * (1.0 + high);
                assert!(fits, "{mode} {columns}: {found} {wanted}");
            }
            check_operand(kind, &found.codes, &found.scales, &expected, columns);
        }
    }
}

#[test]
fn a_row_with_a_broken_value_is_cut_off_as_one() {
    for broken in [f32::NAN, f32::INFINITY] {
        let mut source = random(2 * 100, 9, 1.0);
        source[107] = broken;
        let other = [1.0; 200];
        for mode in [4, 5] {
            let found =
                launch(OperandKind::Fixed16, mode, &source, 100, 2, [&[0.0], &other, &[0.0]]);
            assert!(found.plain[..100].iter().all(|x| x.is_finite()), "{mode}");
            assert!(found.plain[100..200].iter().all(|x| x.is_nan()), "{broken} in mode {mode}");
        }
    }
}
