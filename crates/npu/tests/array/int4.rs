//! Products of bf16 and weights in 4 bits, through all tiles.

use fastrand::Rng;
use trine_npu::generate::Kernel;
use trine_npu::layout::int4::{self, Product, Weights, to_bf16};
use trine_npu_model::{Behaviour, Overlay, Tiles, Trap};

use crate::support::{Memory, random_bytes, run, stream};

/// The most rows of A of a stream.
const ROWS: usize = 32;

/// Random matrices of a shape, and their product.
pub(crate) struct Case {
    shape: (usize, usize, usize),
    /// (ROWS, k)
    activations: Vec<u16>,
    weights: Vec<u8>,
    /// (ROWS, n)
    product: Product,
}

impl Case {
    pub(crate) fn new(k: usize, n: usize, group: usize, rows: usize, seed: u64) -> Self {
        let mut numbers = Rng::with_seed(seed);
        let mut nibbles = |count: usize| -> Vec<u8> {
            random_bytes(&mut numbers, count).into_iter().map(|byte| byte & 15).collect()
        };
        let (values, zeros) = (nibbles(k * n), nibbles(k / group * n));
        let mut floats = |count: usize, size: f32| -> Vec<u16> {
            let bytes = random_bytes(&mut numbers, 2 * count);
            let number = |pair: &[u8]| f32::from(i16::from_le_bytes([pair[0], pair[1]])) / 32768.0;
            bytes.chunks_exact(2).map(|pair| to_bf16(size * number(pair))).collect()
        };
        let scales = floats(k / group * n, 0.02);
        let bias = floats(n, 4.0);
        let activations = floats(rows * k, 3.0);
        let weights = Weights { k, n, group, values, zeros, scales, bias };
        let product = int4::product(&activations, &weights);
        let weights = weights.to_bytes();
        Self { shape: (k, n, group), activations, weights, product }
    }

    /// Returns memory with the first `m` rows of A.
    pub(crate) fn memory(&self, m: usize) -> Memory {
        let (k, n, group) = self.shape;
        let activations = int4::activations(k, n, group, &self.activations[..m * k]);
        Memory::new(4 * m * n, activations, self.weights.clone())
    }

    /// Returns how many times the tolerance the largest error of a result is.
    pub(crate) fn error(&self, memory: &Memory) -> f64 {
        let found = int4::result(&memory.buffers[0]);
        let Product { values, tolerances } = &self.product;
        let errors = found.iter().zip(values.iter().zip(tolerances));
        let errors =
            errors.map(|(found, (value, tolerance))| (f64::from(*found) - value).abs() / tolerance);
        errors.map(|error| if error.is_nan() { f64::INFINITY } else { error }).fold(0.0, f64::max)
    }
}

/// The streams of all shapes with a group.
fn check(group: usize) {
    for (k, n) in [(4096, 4096), (4096, 12288), (4096, 32768), (11008, 4096)] {
        let case = Case::new(k, n, group, ROWS, 3);
        for m in [1, 8, ROWS] {
            let [m_, k, n, group] = [m, k, n, group].map(|it| it as u32);
            let kernel = Kernel::Int4 { m: m_, k, n, group };
            let mut tiles = Tiles::new(m as u64);
            let mut memory = case.memory(m);
            let outcome = run(&mut tiles, Behaviour::Int4, &stream(kernel), &mut memory);
            assert_eq!(outcome, Ok(()), "{kernel}: {:?}", tiles.problem());
            let error = case.error(&memory);
            assert!(error < 1.0, "{kernel}: {error} times the tolerance");
        }
    }
}

#[test]
fn products_of_all_shapes_with_groups_of_32_are_within_the_tolerance() {
    check(32);
}

#[test]
fn products_of_all_shapes_with_groups_of_128_are_within_the_tolerance() {
    check(128);
}

#[test]
fn whichever_stream_of_the_array_lags_the_product_is_within_the_tolerance() {
    let kernel = Kernel::Int4 { m: 1, k: 4096, n: 4096, group: 128 };
    let case = Case::new(4096, 4096, 128, 1, 8);
    for route in Overlay::int4().routes {
        let mut memory = case.memory(1);
        let mut tiles = Tiles::new(8).with_delayed(route.from.0, route.from.1);
        let outcome = run(&mut tiles, Behaviour::Int4, &stream(kernel), &mut memory);
        assert_eq!(outcome, Ok(()), "{route:?}: {:?}", tiles.problem());
        assert!(case.error(&memory) < 1.0, "{route:?}");
    }
}

#[test]
fn a_term_that_is_missing_is_beyond_the_tolerance() {
    let kernel = Kernel::Int4 { m: 1, k: 4096, n: 4096, group: 32 };
    let mut case = Case::new(4096, 4096, 32, 1, 5);
    // The product of what the array does not get.
    case.activations[4095] = 0;
    let mut memory = case.memory(1);
    assert_eq!(run(&mut Tiles::new(5), Behaviour::Int4, &stream(kernel), &mut memory), Ok(()));
    assert!(case.error(&memory) > 100.0, "{}", case.error(&memory));
}

#[test]
fn parameters_of_another_shape_never_give_the_product() {
    let kernel = Kernel::Int4 { m: 8, k: 4096, n: 4096, group: 32 };
    let case = Case::new(4096, 4096, 32, 8, 6);
    let at = 8 * 4096 * 2;
    // Blocks, steps, rows, group, sign.
    for (word, value) in [(0, 1), (1, 127), (1, 129), (2, 7), (3, 128), (4, 1), (4, 2)] {
        let mut memory = case.memory(8);
        memory.buffers[1][at + 4 * word] = value;
        let outcome = run(&mut Tiles::new(1), Behaviour::Int4, &stream(kernel), &mut memory);
        assert!(outcome == Err(Trap::Stuck) || case.error(&memory) > 1.0, "{word} {value}");
    }
}
