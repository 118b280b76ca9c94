//! Weights of 16 bits in the order of left factors. Their kernel runs if the layout of the device's
//! matrices is known.

use super::*;
use crate::kernels::attention::WholeLaunch;
use crate::kernels::attention::whole::{key_place, value_place};

/// Returns shapes that take every path of the kernel; prints a notice if there are none, because
/// the layout of the device's matrices is another.
pub(super) fn shapes_or_notice() -> Vec<MatmulShape> {
    let gpu = gpu();
    if !gpu.capabilities().fragments {
        let name = &gpu.capabilities().name;
        eprintln!(
            "{name}: its matrices lie otherwise, the test of the kernel for halves is skipped"
        );
        return Vec::new();
    }
    let base = FloatsShape { subgroups: (2, 2), lefts: 4, rights: 8, workgroups: 0 };
    let shapes = [
        base,
        FloatsShape { workgroups: 7, ..base },
        FloatsShape { subgroups: (4, 1), lefts: 2, workgroups: 5, ..base },
        FloatsShape { subgroups: (1, 3), rights: 4, workgroups: 0, ..base },
        FloatsShape { subgroups: (8, 2), lefts: 2, rights: 2, workgroups: 3 },
    ];
    let offered = crate::kernels::matmul::floats::LAYOUTS.into_iter().flatten();
    let offered = offered.map(|&[down, across, lefts, rights, _]| FloatsShape {
        subgroups: (down, across),
        lefts,
        rights,
        workgroups: 11,
    });
    let mut all = shapes.to_vec();
    for shape in offered {
        if !all.contains(&shape) {
            all.push(shape);
        }
    }
    all.into_iter().map(MatmulShape::Floats).collect()
}

#[test]
fn products_of_halves_agree() {
    for (number, shape) in shapes_or_notice().into_iter().enumerate() {
        let cases: [(usize, usize, &[usize], bool); 8] = [
            (1, 20, &[16], false),
            (9, 131, &[48, 16, 32], false),
            (67, 290, &[64, 16], false),
            (130, 1152, &[208], false),
            (205, 600, &[128, 64, 64], false),
            (1, 129, &[16], true),
            (141, 416, &[80], true),
            (300, 290, &[192], true),
        ];
        for (index, (width, columns, rows, gated)) in cases.into_iter().enumerate() {
            let (format, rows) = (Format::F16Fragments, rows.to_vec());
            let case = Case { format, shape, width, columns, rows, gated };
            case.check(4000 + (10 * number + index) as u64);
        }
    }
}

/// Needs no device: with the known layout every width has shapes, and no other kernel takes such
/// weights.
#[test]
fn known_layouts_have_shapes_for_halves() {
    let capabilities = crate::capabilities::presets::h200();
    let span = Span { address: 4096, bytes: 0 };
    for (rows, columns, gated) in
        [(3456, 1152, false), (1152, 4304, false), (16, 20, false), (2 * 3072, 768, true)]
    {
        for width in [1, 8, 64, 256, 700, 4096] {
            let format = Format::F16Fragments;
            let kind = MatmulShape::operand_for(&capabilities, format, width);
            assert_eq!(kind, OperandKind::Fragments);
            let (matrix, _) = Matrix::at(4096, format, rows, columns).unwrap();
            let segments = [Segment { rows, target: span }];
            let output = match gated {
                true => ProductOutput::Gated(Made::Rows(span)),
                false => ProductOutput::segments(&segments),
            };
            let input = ProductInput::Operand(Operand { kind, codes: span, scales: span });
            let product = Product { matrix, width, input, output };
            let launch = MatmulLaunch { product, scratch: None };
            let all = MatmulShape::candidates(&capabilities, &launch);
            assert!(!all.is_empty(), "{rows} x {columns}, {width}");
            for shape in all {
                assert!(matches!(shape, MatmulShape::Floats(_)), "{shape:?}");
                assert!(launch.scratch_bytes(&shape) <= 64 << 20, "{shape:?} {width}");
            }
        }
    }
}

/// A product with biases, and what it has to give.
struct Biased {
    shape: MatmulShape,
    width: usize,
    rows: Vec<usize>,
    weights: Weights,
    activations: Activations,
    biases: Vec<f32>,
    _memory: Buffer,
    addresses: [u64; 3],
    /// Products with biases and how much they may differ, by rows of activations.
    expected: Vec<(f64, f64)>,
}

impl Biased {
    fn new(shape: MatmulShape, width: usize, columns: usize, rows: &[usize], seed: u64) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let total = rows.iter().sum();
        let weights = weights(&mut random, Format::F16Fragments, total, columns);
        let sources = values(&mut random, width * columns, 3.0);
        let activations = activations(OperandKind::Fragments, &sources, columns);
        let biases = values(&mut random, total, 20.0);
        let memory = upload(&gpu(), &biases);
        let mut addresses = [0; 3];
        let mut before = 0;
        for (address, rows) in addresses.iter_mut().zip(rows) {
            *address = memory.address() + 4 * before as u64;
            before += rows;
        }
        let expected = (0..width * total)
            .map(|at| {
                let (token, row) = (at / total, at % total);
                let w = &weights.values[row * columns..][..columns];
                let (sum, slack) = product(
                    OperandKind::Fragments,
                    w,
                    &activations.values[token * columns..][..columns],
                );
                (sum + f64::from(biases[row]), slack + 1e-6)
            })
            .collect();
        let rows = rows.to_vec();
        let (_memory, width) = (memory, width);
        Self { shape, width, rows, weights, activations, biases, _memory, addresses, expected }
    }

    fn run(&self, output: ProductOutput) {
        let input = ProductInput::Operand(self.activations.operand);
        let product = Product { matrix: self.weights.matrix, width: self.width, input, output };
        let mut launch = MatmulLaunch { product, scratch: None };
        let needed = launch.scratch_bytes(&self.shape);
        let scratch = scratch(&gpu(), needed as usize);
        launch.scratch = (needed > 0).then_some(scratch.span());
        run(&gpu(), &[launch.dispatch(&gpu(), self.shape, "a product", 0).unwrap()]);
    }

    /// Checks products by segments.
    fn check_rows(&self) {
        let memory = |rows: &usize| poisoned(&gpu(), (4 * rows * self.width + GUARD) as u64);
        let targets: Vec<Buffer> = self.rows.iter().map(memory).collect();
        let segment = |(rows, target): (&usize, &Buffer)| {
            let bytes = (4 * rows * self.width) as u64;
            Segment { rows: *rows, target: Span { bytes, ..target.span() } }
        };
        let segments: Vec<Segment> = self.rows.iter().zip(&targets).map(segment).collect();
        let bias = |at: usize| (at < segments.len()).then(|| self.addresses[at]);
        let biases = [0, 1, 2].map(bias);
        self.run(ProductOutput::Biased { segments: Segments::of(&segments), biases });
        let mut first = 0;
        for (rows, target) in self.rows.iter().zip(&targets) {
            let found: Vec<f32> = download(&gpu(), target);
            let (found, after) = found.split_at(rows * self.width);
            assert!(after[..GUARD / 4].iter().all(|value| value.to_bits() == u32::MAX));
            for (at, value) in found.iter().enumerate() {
                let (token, row) = (at / rows, first + at % rows);
                let (wanted, slack) = self.expected[token * self.biases.len() + row];
                let near = (f64::from(*value) - wanted).abs() <= slack;
                assert!(near, "{:?} row {row} token {token}: {value} {wanted}", self.shape);
            }
            first += rows;
        }
    }

    /// Checks activations in halves, of which the columns beyond the last are zeros.
    fn check_halves(&self) {
        let (rows, width) = (self.biases.len(), self.width);
        let (padded, all) = (rows.next_multiple_of(GROUP), width.next_multiple_of(64));
        let codes = poisoned(&gpu(), (2 * all * padded + GUARD) as u64);
        let scales = poisoned(&gpu(), (4 * width + GUARD) as u64);
        let kind = OperandKind::Fragments;
        let operand = Operand { kind, codes: codes.span(), scales: scales.span() };
        let unit = 2.0_f32.powi(-4);
        self.run(ProductOutput::Activated { bias: self.addresses[0], operand, unit });
        let codes: Vec<u16> = download(&gpu(), &codes);
        let scales: Vec<f32> = download(&gpu(), &scales);
        assert!(scales[..width].iter().all(|&scale| scale == unit), "{scales:?}");
        let after = scales[width..][..GUARD / 4].iter().map(|scale| scale.to_bits());
        assert!(after.into_iter().all(|bits| bits == u32::MAX));
        assert!(codes[all * padded..][..GUARD / 2].iter().all(|&code| code == u16::MAX));
        for token in 0..all {
            for row in 0..padded {
                let code = codes[fragment_place(token, row, padded)];
                let found = f64::from(f16::from_bits(code).to_f32()) * f64::from(unit);
                if token >= width {
                    assert_eq!(code, u16::MAX, "{:?} token {token}", self.shape);
                } else if row >= rows {
                    assert_eq!(code, 0, "{:?} row {row} token {token}", self.shape);
                } else {
                    let (sum, slack) = self.expected[token * rows + row];
                    let wanted = gelu(sum);
                    let slack = 1.2 * slack + wanted.abs() / 2048.0 + 1e-6;
                    let near = (found - wanted).abs() <= slack;
                    assert!(near, "{:?} row {row} token {token}: {found} {wanted}", self.shape);
                }
            }
        }
    }
}

#[test]
fn products_of_halves_add_biases() {
    for (number, shape) in shapes_or_notice().into_iter().enumerate() {
        let cases: [(usize, usize, &[usize]); 4] =
            [(1, 20, &[16]), (73, 290, &[48, 16, 32]), (130, 131, &[208]), (300, 600, &[64, 128])];
        for (index, (width, columns, rows)) in cases.into_iter().enumerate() {
            let seed = 4200 + (10 * number + index) as u64;
            Biased::new(shape, width, columns, rows, seed).check_rows();
        }
    }
}

#[test]
fn products_of_halves_are_activated() {
    for (number, shape) in shapes_or_notice().into_iter().enumerate() {
        // Tiles that end before a group of outputs does are not for these.
        let all: [(usize, usize, usize); 4] =
            [(1, 20, 16), (73, 290, 128), (130, 131, 208), (300, 600, 336)];
        for (index, (width, columns, rows)) in all.into_iter().enumerate() {
            let (features, _) = shape.tile();
            if rows.next_multiple_of(features as usize) >= rows.next_multiple_of(GROUP) {
                let seed = 4300 + (10 * number + index) as u64;
                Biased::new(shape, width, columns, &[rows], seed).check_halves();
            }
        }
    }
}

#[test]
fn products_of_halves_are_handed_to_attention() {
    let cases = [(1, 20, 16, 72), (73, 290, 2, 64), (130, 131, 4, 8), (300, 600, 8, 80)];
    for (number, shape) in shapes_or_notice().into_iter().enumerate() {
        let MatmulShape::Floats(halves) = shape else { unreachable!() };
        for (index, (width, columns, heads, dim)) in cases.into_iter().enumerate() {
            let third: usize = heads * dim;
            if third.is_multiple_of(16) && third.is_multiple_of(16 * halves.lefts as usize) {
                let seed = 4400 + (10 * number + index) as u64;
                Biased::new(shape, width, columns, &[third; 3], seed).check_heads(heads, dim);
            }
        }
    }
}

impl Biased {
    /// Checks queries, and keys and values in the order in which attention takes them.
    fn check_heads(&self, heads: usize, dim: usize) {
        let (gpu, width, third) = (gpu(), self.width, heads * dim);
        let tiles = WholeLaunch::tiles(width);
        let halves = 16 * tiles * heads * dim.next_multiple_of(16);
        let query = poisoned(&gpu, (4 * width * third + GUARD) as u64);
        let memory = [0; 2].map(|_| poisoned(&gpu, (2 * halves + GUARD) as u64));
        let [keys, values] = [&memory[0], &memory[1]].map(Buffer::span);
        let biases = self.addresses.map(Some);
        self.run(ProductOutput::Heads { query: query.span(), keys, values, dim, biases });
        let query: Vec<f32> = download(&gpu, &query);
        let [keys, values]: [Vec<u16>; 2] = [&memory[0], &memory[1]].map(|it| download(&gpu, it));
        assert!(query[width * third..].iter().all(|value| value.to_bits() == u32::MAX));
        assert!(keys[halves..].iter().chain(&values[halves..]).all(|&code| code == u16::MAX));
        for token in 0..width {
            for head in 0..heads {
                for element in 0..dim {
                    let column = head * dim + element;
                    let wanted =
                        |part: usize| self.expected[token * 3 * third + part * third + column];
                    let half = |code: u16| f64::from(f16::from_bits(code).to_f32());
                    let found = [
                        f64::from(query[token * third + column]),
                        half(keys[key_place(dim, tiles, head, token, element)]),
                        half(values[value_place(dim, tiles, head, token, element)]),
                    ];
                    for (part, found) in found.into_iter().enumerate() {
                        let (wanted, slack) = wanted(part);
                        let slack =
                            slack + if part > 0 { wanted.abs() / 2048.0 + 1e-6 } else { 0.0 };
                        let near = (found - wanted).abs() <= slack;
                        assert!(near, "{:?} {token} {column} {part}: {found} {wanted}", self.shape);
                    }
                }
                for element in dim..dim.next_multiple_of(16) {
                    assert_eq!(keys[key_place(dim, tiles, head, token, element)], 0);
                }
            }
        }
    }
}
