//! Gated products that give the operand of another product.

use super::*;

/// Widths, columns, rows of the gate, and sizes of rows of activations, whose results are beyond
/// the range of f16.
const CASES: [(usize, usize, usize); 4] =
    [(5, 512, 128), (19, 256, 384), (8, 768, 256), (2, 256, 128)];
const SIZES: [f32; 4] = [6.0, 3e4, 1.0, 500.0];

/// How far beyond the largest result the power of two that is known beforehand may lie: not at all,
/// and as far as the bound for random weights in the shapes of Gemma 3 27B.
const LOOSE: [f64; 2] = [1.0, 4096.0];

/// A gated product to be run, and the result that it has to have.
struct Gated {
    case: Case,
    weights: Weights,
    activations: Activations,
    /// Results, and how much they may differ.
    expected: Vec<(f64, f64)>,
}

impl Gated {
    fn new(format: Format, shape: MatmulShape, case: (usize, usize, usize), seed: u64) -> Self {
        let (width, columns, rows) = case;
        let width = width_within(&shape, width);
        let case = Case { format, shape, width, columns, rows: vec![rows], gated: true };
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let weights = weights(&mut random, format, 2 * rows, columns);
        let row = |token: usize| values(&mut random, columns, SIZES[token % SIZES.len()]);
        let rows_of_activations: Vec<f32> = (0..width).flat_map(row).collect();
        let activations = activations(shape.operand(format), &rows_of_activations, columns);
        let expected = (0..width * rows)
            .map(|at| case.expected(&weights, &activations.values, 0, at % rows, at / rows))
            .collect();
        Self { case, weights, activations, expected }
    }

    /// Returns the power of two in whose units the largest result still fits into a half.
    fn unit(&self) -> f64 {
        let most = self.expected.iter().fold(0.0_f64, |most, (value, _)| most.max(value.abs()));
        assert!(most > 65504.0, "{most}");
        (most.log2().ceil() - 15.0).exp2()
    }

    /// Returns codes and factors in a unit. Fails if anything after them is written.
    fn run(&self, unit: f32) -> (Vec<u16>, Vec<f32>) {
        let (gpu, width, rows) = (gpu(), self.case.width, self.case.rows[0]);
        let kind = self.case.shape.operand(self.case.format);
        let is_ordered = kind == OperandKind::Fragments;
        let all = if is_ordered { width.next_multiple_of(64) } else { width };
        let codes = poisoned(&gpu, (2 * all * rows + GUARD) as u64);
        let scales = poisoned(&gpu, (4 * width + GUARD) as u64);
        let operand = Operand { kind, codes: codes.span(), scales: scales.span() };
        let (matrix, _arranged) =
            turned_shapes::arranged(&self.case.shape, self.weights.matrix, true);
        let product = Product {
            matrix,
            width,
            input: ProductInput::Operand(self.activations.operand),
            output: ProductOutput::GatedHalves { operand, unit },
        };
        let mut launch = MatmulLaunch { product, scratch: None };
        let needed = launch.scratch_bytes(&self.case.shape);
        let scratch = scratch(&gpu, needed as usize);
        launch.scratch = (needed > 0).then_some(scratch.span());
        run(&gpu, &[launch.dispatch(&gpu, self.case.shape, "a gated product", 0).unwrap()]);
        let mut codes: Vec<u16> = download(&gpu, &codes);
        let mut scales: Vec<f32> = download(&gpu, &scales);
        assert!(scales.split_off(width)[..GUARD / 4].iter().all(|x| x.to_bits() == u32::MAX));
        assert!(codes.split_off(all * rows)[..GUARD / 2].iter().all(|&x| x == u16::MAX));
        let place = |at| if is_ordered { fragment_place(at / rows, at % rows, rows) } else { at };
        let row_major: Vec<u16> = (0..all * rows).map(|at| codes[place(at)]).collect();
        let (inside, beyond) = row_major.split_at(width * rows);
        assert!(beyond.iter().all(|&x| x == u16::MAX), "rows that are not there");
        (inside.to_vec(), scales)
    }

    /// Asserts that results keep the bits of a half in a unit that is known beforehand.
    fn check(&self, unit: f64) {
        let (codes, scales) = self.run(unit as f32);
        assert!(scales.iter().all(|&scale| f64::from(scale) == unit), "{scales:?} {unit}");
        let rows = self.case.rows[0];
        for (at, (code, (wanted, slack))) in codes.iter().zip(&self.expected).enumerate() {
            let found = f64::from(f16::from_bits(*code).to_f32()) * unit;
            // Rounding to a half, and to the last bit of the smallest ones.
            let slack = slack + wanted.abs() / 2048.0 + unit * 2.0_f64.powi(-24);
            assert!(
                (found - wanted).abs() <= slack,
                "{:?} {:?} in {unit}, row {} token {}: {found} {wanted}",
                self.case.format,
                self.case.shape,
                at % rows,
                at / rows
            );
        }
    }
}

fn check_all(shapes: Vec<MatmulShape>, formats: &[Format], seed: u64) {
    for (number, shape) in shapes.into_iter().enumerate() {
        for (index, case) in CASES.into_iter().enumerate() {
            let format = formats[(number + index) % formats.len()];
            let gated = Gated::new(format, shape, case, seed + number as u64);
            LOOSE.iter().for_each(|loose| gated.check(loose * gated.unit()));
        }
    }
}

#[test]
fn gated_products_give_halves() {
    check_all(matrix_shapes(), &quantised(), 1500);
}

#[test]
fn gated_fragments_give_halves() {
    check_all(fragment::shapes_or_notice(), &quantised(), 1600);
}

#[test]
fn gated_direct_products_give_halves() {
    check_all(direct::shapes_or_notice(), &quantised(), 1650);
}

#[test]
fn gated_turned_products_give_halves() {
    check_all(turned_shapes::shapes_or_notice(), &[Format::Q4_0], 1660);
}

#[test]
fn gated_products_of_halves_give_halves() {
    check_all(short::shapes_or_notice(), &[Format::F16Fragments], 1680);
}

/// Broken weights have no power of two that is known beforehand; the results show that they are
/// broken.
#[test]
fn results_without_a_unit_are_broken() {
    let shapes = matrix_shapes().into_iter().take(1).chain(fragment::shapes_or_notice().pop());
    let shapes = shapes.chain(direct::shapes_or_notice().pop());
    let halves = short::shapes_or_notice().into_iter().take(1);
    let shapes = shapes.map(|shape| (Format::Q4_0, shape));
    for (format, shape) in shapes.chain(halves.map(|shape| (Format::F16Fragments, shape))) {
        let gated = Gated::new(format, shape, CASES[0], 1700);
        let (_, scales) = gated.run(f32::NAN);
        assert!(scales.iter().all(|scale| scale.is_nan()), "{shape:?}: {scales:?}");
    }
}
