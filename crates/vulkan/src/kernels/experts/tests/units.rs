//! Products of experts on matrix units.

use half::f16;

use super::*;
use crate::dispatch::Span;
use crate::kernels::matmul::MatmulShape;
use crate::kernels::matmul::grouped::GROUP_PLACES;
use crate::kernels::rows::tests::allocated;
use crate::pack::Matrix;
use crate::pack::tests::quantised;

/// How much an output may differ, as a share of the sum of magnitudes.
const SHARE: f64 = 4e-5;

/// Which experts the entries have.
#[derive(Debug, Clone, Copy)]
pub(super) enum Choice {
    /// Any.
    Random,
    /// All the same.
    One,
    /// Two of many.
    Two,
}

/// Products on matrix units with the matrices of experts, `step` rows each.
#[derive(Debug, Clone, Copy)]
struct Units {
    format: Format,
    columns: usize,
    experts: usize,
    step: usize,
    /// Rows of an expert that are multiplied, or of its gate.
    rows: usize,
    /// Where `up` begins, for gated products.
    split: Option<usize>,
    used: usize,
    /// Rows of the step; there is memory for two more.
    tokens: usize,
    /// Whether an entry has a row of its own.
    is_own: bool,
    /// Places of a group.
    places: usize,
    choice: Choice,
}

/// Returns numbers of experts for some entries, and broken ones for the others.
pub(super) fn chosen_of(
    choice: Choice,
    experts: usize,
    entries: usize,
    all: usize,
    seed: u64,
) -> Vec<f32> {
    let numbers = random(all, seed, experts as f32);
    let number = |x: f32| match choice {
        Choice::Random => (x + experts as f32 / 2.0).floor().max(0.0),
        Choice::One => (experts - 1) as f32,
        Choice::Two => [1.0, 3.0][usize::from(x > 0.0)],
    };
    let mut chosen: Vec<f32> = numbers.into_iter().map(number).collect();
    chosen[entries..].fill(f32::NAN);
    chosen
}

impl Units {
    fn most(&self) -> usize {
        self.tokens + 2
    }

    /// Returns the results of all entries that have memory, and the shape that computed them: the
    /// device's shape of index `number`. Returns `None` if it has fewer shapes.
    fn results(
        &self,
        matrix: Matrix,
        source: &[f32],
        chosen: &[f32],
        number: usize,
    ) -> Option<(MatmulShape, Vec<f32>)> {
        let Self { columns, experts, step, rows, split, used, tokens, is_own, places, .. } = *self;
        let gpu = gpu();
        let kind = MatmulShape::operand_for(gpu.capabilities(), self.format, usize::MAX);
        let entries = self.most() * used;
        let grouping = Grouping { entries, experts, columns: places, is_padded: true };
        let (order, count) = (upload(&gpu, chosen), upload(&gpu, &[tokens as u32]));
        let sorted = poisoned(&gpu, grouping.bytes() as u64);
        let extent = Extent { columns, rows: self.most(), row_count: count.address() };
        let sort = SortLaunch {
            grouping,
            chosen: order.span(),
            sorted: sorted.span(),
            extent: Extent { columns: used, ..extent },
        };
        let source = upload(&gpu, source);
        let room = allocated(kind, grouping.places());
        let codes = poisoned(&gpu, (room * kind.code_bytes(columns)) as u64);
        let scales = poisoned(&gpu, (room * kind.scale_bytes(columns)) as u64);
        let operand = Operand { kind, codes: codes.span(), scales: scales.span() };
        let gather = GatherLaunch {
            grouping,
            sorted: sorted.span(),
            source: Operand::plain(source.span()),
            shared: if is_own { 1 } else { used },
            columns,
            operand,
        };
        let plain = poisoned(&gpu, (4 * entries * rows) as u64);
        let gated = |split| ExpertsOutput::Gated { split, made: Made::Rows(plain.span()) };
        let launch = ExpertsLaunch {
            matrix,
            first: 0,
            rows,
            step,
            grouping,
            order: sorted.span(),
            input: operand,
            shared: gather.shared,
            used,
            extent,
            output: split.map_or(ExpertsOutput::Rows(plain.span()), gated),
        };
        let shape = *launch.shapes_on_units(gpu.capabilities()).get(number)?;
        let dispatches = [
            sort.dispatch(&gpu, "sort", 0).unwrap(),
            gather.dispatch(&gpu, "gather", 0).unwrap(),
            launch.dispatch_on_units(&gpu, &shape, "experts", 0).unwrap(),
        ];
        run(&gpu, &dispatches);
        let found = first_of::<f32>(&plain, entries * rows);
        let after = &found[tokens * used * rows..];
        assert!(
            after.iter().all(|x| x.is_nan()),
            "more entries than there are: {self:?} {shape:?}"
        );
        Some((shape, found))
    }

    /// Runs it in one of its shapes, with the rows of the step in two orders, and checks every
    /// result. Returns whether the device has the shape.
    fn check(&self, seed: u64, number: usize) -> bool {
        let Self { format, columns, experts, step, rows, split, used, tokens, is_own, .. } = *self;
        let gpu = gpu();
        let source = random_rows(format, experts * step, columns, seed);
        let (matrix, _memory) = device_matrix(&gpu, format, columns, &source);
        let chosen = chosen_of(self.choice, experts, tokens * used, self.most() * used, seed + 1);
        let per = if is_own { used } else { 1 };
        let values = random(self.most() * per * columns, seed + 2, 3.0);
        let results = |values: &[f32], chosen: &[f32]| self.results(matrix, values, chosen, number);
        let Some((shape, found)) = results(&values, &chosen) else { return false };

        // A row's results do not depend on its place.
        let turned = |values: &[f32], row: usize| -> Vec<f32> {
            let (own, rest) = values.split_at(tokens * row);
            own.chunks(row).rev().flatten().chain(rest).copied().collect()
        };
        let (_, other) = results(&turned(&values, per * columns), &turned(&chosen, used)).unwrap();
        let bits = |all: &[f32]| all.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        let back = turned(&other, used * rows);
        assert!(bits(&found) == bits(&back), "the order counts: {self:?} {shape:?}");

        let half = |x: f32| f64::from(f16::from_f32(x).to_f32());
        let weights = decoded(format, &source, experts * step * columns);
        let weights: Vec<f64> = weights.into_iter().map(half).collect();
        for entry in 0..tokens * used {
            let expert = (chosen[entry] as usize).min(experts - 1);
            let x = &values[if is_own { entry } else { entry / used } * columns..][..columns];
            let high = x.iter().fold(0.0_f32, |high, x| high.max(x.abs()));
            let factor = (high.log2().floor() - 13.0).exp2();
            let x: Vec<f64> = x.iter().map(|x| half(x / factor) * f64::from(factor)).collect();
            let product = |row: usize| {
                let row = &weights[(expert * step + row) * columns..][..columns];
                let terms = row.iter().zip(&x).map(|(w, x)| w * x);
                let (sum, size) =
                    terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()));
                // What is added to the codes of a K format may decide how a weight is rounded.
                (sum, widened(format, size))
            };
            for row in 0..rows {
                let (sum, size) = product(row);
                let (wanted, slack) = match split {
                    None => (sum, SHARE * size),
                    Some(split) => {
                        let (up, up_size) = product(split + row);
                        let slack = size * up.abs() + up_size * (sum.abs() + SHARE * size);
                        (gelu(sum) * up, 1.2 * SHARE * slack)
                    }
                };
                let value = f64::from(found[entry * rows + row]);
                assert!(
                    (value - wanted).abs() <= slack + 1e-6,
                    "{self:?} {shape:?} entry {entry} row {row}: {value} {wanted}"
                );
            }
        }
        true
    }
}

/// Checks plain and gated products of a format, with each size of groups and with experts that have
/// all entries or none.
fn check_units(format: Format) {
    let columns = match format.dtype().block_elements() {
        256 => [256, 768, 512],
        64 => [192, 704, 320],
        _ => [96, 704, 160],
    };
    let cases = [
        // Rows of an expert, experts, used, tokens.
        (40, 4, 2, 30, Choice::Random),
        (88, 30, 3, 23, Choice::Two),
        (33, 3, 1, 70, Choice::One),
    ];
    let mut found = 0;
    for (case, (rows, experts, used, tokens, choice)) in cases.into_iter().enumerate() {
        for (turn, places) in GROUP_PLACES.into_iter().enumerate() {
            for is_gated in [false, true] {
                // Gate and up of an expert together, or those of all experts one after another.
                let (step, split) = match (is_gated, case % 2) {
                    (false, _) => (rows, None),
                    (true, 0) => (2 * rows, Some(rows)),
                    (true, _) => (2 * rows + 1, Some(rows + 1)),
                };
                let units = Units {
                    format,
                    columns: columns[case],
                    experts,
                    step,
                    rows,
                    split,
                    used,
                    tokens,
                    is_own: !is_gated,
                    places,
                    choice,
                };
                let number = case + turn + usize::from(is_gated);
                let shapes = (0..6).filter(|shape| takes(shape + number + format as usize, 3));
                found += shapes.filter(|&shape| units.check(500 + number as u64, shape)).count();
            }
        }
    }
    if found == 0 {
        println!("{} has no matrix units: their test is skipped", gpu().capabilities().name);
    }
}

#[test]
fn products_of_experts_in_matrices_agree_for_q4_0() {
    check_units(Format::Q4_0);
}

#[test]
fn products_of_experts_in_matrices_agree_for_q8_0() {
    check_units(Format::Q8_0);
}

#[test]
fn products_of_experts_in_matrices_agree_for_k_formats() {
    of_blocks(256).chain(of_blocks(64)).for_each(check_units);
}

/// Needs no device: every device with matrix units has shapes for the experts of Gemma 4 26B-A4B.
#[test]
fn experts_of_real_models_have_shapes_for_matrix_units() {
    use crate::capabilities::presets::{h200, radeon_780m, rtx_4090};
    let span = Span { address: 4096, bytes: 0 };
    for capabilities in [h200(), radeon_780m(), rtx_4090()] {
        let device = capabilities.kind;
        for format in quantised() {
            let kind = MatmulShape::operand_for(&capabilities, format, usize::MAX);
            assert!(kind.is_halves());
            for (tokens, places) in [(48, 16), (256, 16), (512, 32), (2048, 32)] {
                let grouping = Grouping::on_units(device, tokens, 8, 128, 64).unwrap();
                assert_eq!(grouping.columns, places, "{tokens} rows");
                let (matrix, _) = Matrix::at(4096, format, 128 * 1408, 2816).unwrap();
                let gated = ExpertsOutput::Gated { split: 704, made: Made::Rows(span) };
                for output in [ExpertsOutput::Rows(span), gated] {
                    let launch = ExpertsLaunch {
                        matrix,
                        first: 0,
                        rows: 704,
                        step: 1408,
                        grouping,
                        order: span,
                        input: Operand { kind, codes: span, scales: span },
                        shared: 8,
                        used: 8,
                        extent: Extent { columns: 0, rows: tokens, row_count: 0 },
                        output,
                    };
                    let shapes = launch.shapes_on_units(&capabilities);
                    assert!(!shapes.is_empty(), "{} {format:?} {tokens}", capabilities.name);
                }
            }
        }
    }
    assert_eq!(
        Grouping::on_units(DeviceKind::Integrated, 16, 8, 128, 64),
        None,
        "one entry for each expert"
    );
    assert_eq!(Grouping::on_units(DeviceKind::Discrete, 8, 8, 4, 64), None, "few rows");
}
