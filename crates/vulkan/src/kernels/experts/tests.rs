use trine_backend::reference::ops;

mod gather;
mod router;
mod units;

use self::units::{Choice, chosen_of};
use super::product::{ExpertsLaunch, ExpertsOutput};
use super::*;
use crate::capabilities::DeviceKind;
use crate::kernels::handles::Made;
use crate::kernels::matvec::tests::{columns_of, fixed_values, input, products, random, widened};
use crate::kernels::operand::{GROUP, Operand, OperandKind};
use crate::pack::Format;
use crate::pack::tests::{decoded, device_matrix, of_blocks, random_rows};
use crate::raw::memory::Buffer;
use crate::testing::{download, gpu, poisoned, run, takes, upload};

/// Returns the first values of a buffer, which may be longer than what was asked for.
fn first_of<T: bytemuck::Pod>(buffer: &Buffer, count: usize) -> Vec<T> {
    let mut values = download(&gpu(), buffer);
    values.truncate(count);
    values
}

/// Checks the choice from logits of rows, the last of which the step does not have.
fn check_choice(logits: &[f32], experts: usize, used: usize, has_factors: bool, scale: f32) {
    let gpu = gpu();
    let all = logits.len() / experts;
    let rows = all - 1;
    let factors = random(experts, 3, 4.0);
    let (memory, count) = (upload(&gpu, logits), upload(&gpu, &[rows as u32]));
    let factors_memory = upload(&gpu, &factors);
    let [chosen, shares] = [0, 1].map(|_| poisoned(&gpu, (4 * all * used) as u64));
    let launch = ChoiceLaunch {
        logits: memory.span(),
        factors: has_factors.then_some(factors_memory.address()),
        scale,
        experts,
        used,
        chosen: chosen.span(),
        shares: shares.span(),
        extent: Extent { columns: experts, rows: all, row_count: count.address() },
    };
    run(&gpu, &[launch.dispatch(&gpu, "choice", 0).unwrap()]);
    let [mut wanted, mut parts] = [0, 1].map(|_| vec![0.0; rows * used]);
    let factors = if has_factors { factors } else { vec![1.0; experts] };
    ops::route(&logits[..rows * experts], &factors, scale, &mut wanted, &mut parts);
    let [chosen, shares] = [chosen, shares].map(|buffer| first_of::<f32>(&buffer, all * used));
    assert_eq!(chosen[..rows * used], wanted, "{used} of {experts}");
    for (found, wanted) in shares.iter().zip(&parts) {
        let is_same = found.is_nan() && wanted.is_nan();
        assert!(
            is_same || (found - wanted).abs() <= 1e-5 * wanted.abs() + 1e-9,
            "{found} {wanted}"
        );
    }
    assert!(chosen[rows * used..].iter().chain(&shares[rows * used..]).all(|x| x.is_nan()));
}

#[test]
fn choices_agree_with_the_reference() {
    let many = [(513, 32), (1001, USED_MAX), (EXPERTS_MAX, 32)];
    for (experts, used) in
        [(1, 1), (7, 3), (128, 8), (300, USED_MAX), (512, 8)].into_iter().chain(many)
    {
        let logits = random(4 * experts, experts as u64, 20.0);
        check_choice(&logits, experts, used, used != 3, 0.25);
    }
}

/// Of many logits only those are compared that may have a place.
#[test]
fn equal_infinite_and_broken_logits_of_many_are_chosen_as_by_the_reference() {
    let (experts, rows) = (600, 8);
    let mut logits: Vec<f32> = random(rows * experts, 9, 5.0).iter().map(|x| x.round()).collect();
    let mut row = logits.chunks_exact_mut(experts);
    row.next().unwrap().fill(-3.5);
    row.next().unwrap()[577] = f32::NAN;
    row.next().unwrap()[44] = -f32::NAN;
    row.next().unwrap()[599] = f32::INFINITY;
    row.next().unwrap().fill(f32::NEG_INFINITY);
    row.next().unwrap()[..300].fill(-0.0);
    for used in [1, 32, USED_MAX] {
        check_choice(&logits, experts, used, used == 32, 0.5);
    }
}

#[test]
fn equal_infinite_and_broken_logits_are_chosen_as_by_the_reference() {
    let (nan, high) = (f32::NAN, f32::INFINITY);
    let rows = [
        [1.0, 2.0, 2.0, 1.0, 2.0, 2.0],
        [-0.0, 0.0, -1.0, 0.0, -0.0, -2.0],
        [5.0, 1.0, nan, 2.0, 8.0, 3.0],
        [1.0, 2.0, 3.0, 4.0, -nan, 6.0],
        [1.0, high, 3.0, -high, 2.0, 6.0],
        [-high, -high, -high, -high, -high, -high],
        [3e38, -3e38, 1e-40, -1e-40, 0.0, 3e38],
        [0.0; 6],
    ];
    check_choice(rows.as_flattened(), 6, 4, true, 1.0);
    check_choice(rows.as_flattened(), 6, 6, false, 1.0);
}

/// Sorts the experts of `rows` rows, in memory for two more, and returns groups and entries.
fn sorted(
    chosen: &[f32],
    rows: usize,
    used: usize,
    grouping: Grouping,
) -> (Vec<[u32; 4]>, Vec<u32>) {
    let gpu = gpu();
    let (memory, count) = (upload(&gpu, chosen), upload(&gpu, &[rows as u32]));
    let sorted = poisoned(&gpu, grouping.bytes() as u64);
    let launch = SortLaunch {
        grouping,
        chosen: memory.span(),
        sorted: sorted.span(),
        extent: Extent { columns: used, rows, row_count: count.address() },
    };
    run(&gpu, &[launch.dispatch(&gpu, "sort", 0).unwrap()]);
    let words = first_of::<u32>(&sorted, grouping.bytes() / 4);
    let (groups, entries) = words.split_at(4 * grouping.groups());
    (groups.as_chunks().0.to_vec(), entries.to_vec())
}

#[test]
fn each_entry_is_in_one_group_of_its_expert() {
    // Each invocation has nine of the entries of the last one.
    let many = [(5, 32, EXPERTS_MAX), (1100, 8, 16)];
    for (rows, used, experts) in
        [(2, 1, 1), (3, 2, 5), (40, 8, 128), (70, 3, 4), (30, 2, 1000)].into_iter().chain(many)
    {
        let all = (rows + 2) * used;
        let chosen = chosen_of(Choice::Random, experts, rows * used, all, rows as u64);
        let suited = Grouping::suited(DeviceKind::Integrated, rows + 2, used, experts);
        for grouping in [suited, Grouping { columns: 32, is_padded: true, ..suited }] {
            let (groups, entries) = sorted(&chosen, rows, used, grouping);
            let mut seen = vec![0; rows * used];
            for [expert, first, count, _] in groups {
                assert!(count as usize <= grouping.columns);
                assert!(!grouping.is_padded || first.is_multiple_of(32), "{grouping:?}");
                for &entry in &entries[first as usize..][..count as usize] {
                    seen[entry as usize] += 1;
                    let wanted = (chosen[entry as usize] as u32).min(experts as u32 - 1);
                    assert_eq!(expert, wanted, "{grouping:?}");
                }
            }
            assert!(seen.iter().all(|&times| times == 1), "{grouping:?}: {seen:?}");
        }
    }
}

#[test]
fn groups_of_any_choice_have_memory() {
    for (rows, used, experts) in [(1, 8, 128), (2, 8, 128), (16, 8, 128), (512, 8, 128), (9, 1, 1)]
    {
        let grouping = Grouping::suited(DeviceKind::Integrated, rows, used, experts);
        let groups = |count: usize| count.div_ceil(grouping.columns);
        // All of one expert; evenly; one for each expert and the rest of the first.
        let entries = rows * used;
        let busy = entries.min(experts);
        let even: usize = (0..experts).map(|e| groups((entries + e) / experts)).sum();
        let rest = busy - 1 + groups(entries + 1 - busy);
        for wanted in [groups(entries), even, rest] {
            assert!(wanted <= grouping.groups(), "{rows}: {wanted} {grouping:?}");
        }
        assert!(grouping.groups() <= entries);
    }
}

/// The matrices of experts, `step` rows each.
struct Case {
    format: Format,
    columns: usize,
    experts: usize,
    step: usize,
    /// Rows of an expert that are multiplied, or of its gate.
    rows: usize,
    /// Where `up` begins, for gated products.
    split: Option<usize>,
    used: usize,
    /// Rows of the step; there is memory for one more if there are several.
    tokens: usize,
    /// Whether an entry has a row of its own.
    is_own: bool,
}

fn gelu(x: f64) -> f64 {
    0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
}

impl Case {
    /// Runs it and checks every result. Memory past the last entry must keep its contents.
    fn check(&self, seed: u64) {
        let Self { format, columns, experts, step, rows, split, used, tokens, is_own } = *self;
        let gpu = gpu();
        let most = tokens + 1;
        // The one groups the entries of several rows, the other has each for itself.
        let device = [DeviceKind::Integrated, DeviceKind::Discrete][seed as usize % 2];
        let grouping = match tokens {
            1 => Grouping { entries: most * used, experts, columns: 1, is_padded: false },
            _ => Grouping::suited(device, most, used, experts),
        };
        let (entries, all) = (tokens * used, most * used);
        let source = random_rows(format, experts * step, columns, seed);
        let (matrix, _memory) = device_matrix(&gpu, format, columns, &source);
        let shared = if is_own { 1 } else { used };
        let input = input(&gpu, format, &random(all / shared * columns, seed, 3.0), columns);
        let numbers = random(all, seed + 1, experts as f32);
        let mut chosen: Vec<f32> =
            numbers.iter().map(|x| (x + experts as f32 / 2.0).floor().max(0.0)).collect();
        // Beyond the step's rows anything may stand.
        chosen[entries..].fill(f32::NAN);
        let (order, count) = (upload(&gpu, &chosen), upload(&gpu, &[tokens as u32]));
        let sorted = poisoned(&gpu, grouping.bytes() as u64);
        let extent = Extent { columns: used, rows, row_count: count.address() };
        let sort = SortLaunch { grouping, chosen: order.span(), sorted: sorted.span(), extent };
        let plain = poisoned(&gpu, (4 * all * rows) as u64);
        let kind = OperandKind::Fixed16;
        let codes = poisoned(&gpu, (all * kind.code_bytes(rows)) as u64);
        let scales = poisoned(&gpu, (all * kind.scale_bytes(rows)) as u64);
        let operand = Operand { kind, codes: codes.span(), scales: scales.span() };
        // Some gated products go to rows, some to an operand, some to both.
        let (is_plain, is_fixed) =
            (split.is_none() || seed % 3 != 1, split.is_some() && !seed.is_multiple_of(3));
        let gated = |split| ExpertsOutput::Gated {
            split,
            made: match (is_plain, is_fixed) {
                (true, true) => Made::Both(plain.span(), operand),
                (true, false) => Made::Rows(plain.span()),
                (false, _) => Made::Operand(operand),
            },
        };
        let launch = ExpertsLaunch {
            matrix,
            first: 0,
            rows,
            step,
            grouping,
            order: if grouping.is_sorted() { sorted.span() } else { order.span() },
            input: input.operand,
            shared,
            used,
            extent,
            output: split.map_or(ExpertsOutput::Rows(plain.span()), gated),
        };
        let mut dispatches = vec![launch.dispatch(&gpu, "experts", 0).unwrap()];
        if grouping.is_sorted() {
            dispatches.insert(0, sort.dispatch(&gpu, "sort", 0).unwrap());
        }
        run(&gpu, &dispatches);

        let weights = decoded(format, &source, experts * step * columns);
        let found = first_of::<f32>(&plain, all * rows);
        let codes = first_of(&codes, all * kind.code_bytes(rows));
        let scales = first_of(&scales, all * kind.scale_bytes(rows) / 4);
        let fixed = fixed_values(&codes, &scales, rows);
        let padded = rows.next_multiple_of(GROUP);
        for entry in 0..entries {
            let expert = (chosen[entry] as usize).min(experts - 1);
            let own = &weights[expert * step * columns..][..step * columns];
            let x = &input.values[entry / shared * columns..][..columns];
            let sums = products(own, x, columns);
            let mut high = 0.0_f64;
            let mut expected = Vec::new();
            for row in 0..rows {
                let (value, size) = sums[row];
                let error = 3e-6 * widened(format, size) + 1e-9;
                let (wanted, error) = match split {
                    None => (value, error),
                    Some(split) => {
                        let (up, up_size) = sums[split + row];
                        let up_error = 3e-6 * widened(format, up_size) + 1e-9;
                        let wanted = gelu(value) * up;
                        // A gate's slope is at most 1.13.
                        (wanted, 1.2 * error * up.abs() + up_error * value.abs() + 1e-5)
                    }
                };
                high = high.max(wanted.abs());
                expected.push((wanted, error));
            }
            for (row, (wanted, error)) in expected.into_iter().enumerate() {
                let what = format!("{format:?}, entry {entry}, row {row}");
                if is_plain {
                    let found = f64::from(found[entry * rows + row]);
                    assert!((found - wanted).abs() <= error, "{what}: {found} {wanted}");
                }
                if is_fixed {
                    let found = fixed[entry * padded + row];
                    assert!(
                        (found - wanted).abs() <= error + 2e-5 * high,
                        "{what}: {found} {wanted}"
                    );
                }
            }
            if is_fixed {
                let beyond = &fixed[entry * padded + rows..(entry + 1) * padded];
                assert!(beyond.iter().all(|&x| x == 0.0), "entry {entry}: padding");
            }
        }
        assert!(found[entries * rows..].iter().all(|x| x.is_nan()), "more entries than there are");
        assert!(
            fixed[entries * padded..].iter().all(|x| x.is_nan()),
            "more entries than there are"
        );
    }
}

/// Checks products of a format, plain and gated, with one row and with groups of each size.
fn check_products(format: Format) {
    // Groups of 1, 2, 4 and 8 entries.
    let sizes = [(1, 3, 5), (2, 2, 30), (4, 2, 6), (9, 3, 4)];
    for (case, (tokens, used, experts)) in sizes.into_iter().enumerate() {
        if !takes(case + format as usize, 3) {
            continue;
        }
        let columns = columns_of(format)[case];
        for is_gated in [false, true] {
            let rows = [17, 40, 130, 33][case];
            let seed = case as u64 + format as u64;
            // Gate and up of an expert together, or those of all experts one after another.
            let (step, split) = match (is_gated, case % 2) {
                (false, _) => (rows, None),
                (true, 0) => (2 * rows, Some(rows)),
                (true, _) => (2 * rows + 1, Some(rows + 1)),
            };
            let is_own = !is_gated;
            Case { format, columns, experts, step, rows, split, used, tokens, is_own }.check(seed);
        }
    }
}

#[test]
fn products_in_floats_agree_with_their_definition() {
    of_blocks(1).for_each(check_products);
}

#[test]
fn products_in_simple_blocks_agree_with_their_definition() {
    of_blocks(32).chain(of_blocks(64)).for_each(check_products);
}

#[test]
fn products_in_k_blocks_agree_with_their_definition() {
    of_blocks(256).for_each(check_products);
}
