//! Products of whole numbers, through all tiles.

use fastrand::Rng;
use trine_npu::generate::Kernel;
use trine_npu::layout;
use trine_npu::tile::Tile;
use trine_npu_model::{Behaviour, Overlay, Tiles, Trap};

use crate::support::{Memory, random_bytes, run, stream};

/// The most rows of A of a stream.
const ROWS: usize = 64;

/// Random matrices of a shape, and their product.
pub(crate) struct Case {
    shape: (usize, usize),
    /// (rows, k)
    activations: Vec<i8>,
    weights: Vec<u8>,
    /// (rows, n), as bytes.
    product: Vec<u8>,
}

impl Case {
    pub(crate) fn new(k: usize, n: usize, rows: usize, seed: u64) -> Self {
        let mut numbers = Rng::with_seed(seed);
        let mut take = |count| -> Vec<i8> {
            random_bytes(&mut numbers, count).into_iter().map(|byte| byte as i8).collect()
        };
        let (activations, weights) = (take(rows * k), take(k * n));
        let product = layout::product(k, n, &activations, &weights);
        Self {
            shape: (k, n),
            activations,
            weights: layout::weights(k, n, &weights),
            product: product.iter().flat_map(|sum| sum.to_le_bytes()).collect(),
        }
    }

    /// Returns memory with the first `m` rows of A.
    pub(crate) fn memory(&self, m: usize) -> Memory {
        let (k, n) = self.shape;
        let activations = layout::activations(k, n, &self.activations[..m * k]);
        Memory::new(4 * m * n, activations, self.weights.clone())
    }

    /// Returns whether memory has the product.
    pub(crate) fn is_right(&self, memory: &Memory) -> bool {
        self.product.starts_with(&memory.buffers[0])
    }
}

#[test]
fn products_of_all_shapes_are_exact() {
    for (k, n) in [(2048, 2048), (2048, 8192), (8192, 2048)] {
        let case = Case::new(k, n, ROWS, 1);
        for m in [1, 8, 16, 32, ROWS] {
            let kernel = Kernel::Int8 { m: m as u32, k: k as u32, n: n as u32 };
            let mut tiles = Tiles::new(m as u64);
            let mut memory = case.memory(m);
            let outcome = run(&mut tiles, Behaviour::Int8, &stream(kernel), &mut memory);
            assert_eq!(outcome, Ok(()), "{kernel}: {:?}", tiles.problem());
            assert!(case.is_right(&memory), "{kernel}");
        }
    }
}

#[test]
fn the_largest_sums_are_exact() {
    let (k, n) = (8192, 2048);
    let weights = layout::weights(k, n, &vec![-128; k * n]);
    let activations = layout::activations(k, n, &vec![-128; k]);
    let mut memory = Memory::new(4 * n, activations, weights);
    let kernel = Kernel::Int8 { m: 1, k: k as u32, n: n as u32 };
    assert_eq!(run(&mut Tiles::new(1), Behaviour::Int8, &stream(kernel), &mut memory), Ok(()));
    assert!(memory.buffers[0] == (128 * 128 * k as u32).to_le_bytes().repeat(n));
}

/// What a command leaves in the array, such as locks and tasks, is right for the next.
#[test]
fn commands_follow_one_another_in_any_order_of_events() {
    let (small, large) = (Case::new(2048, 2048, 8, 2), Case::new(8192, 2048, 1, 3));
    let kernels = [(1, 2048), (8, 2048), (1, 8192), (8, 2048), (1, 8192)];
    for seed in 0..3 {
        let mut tiles = Tiles::new(seed);
        for (m, k) in kernels {
            let case = if k == 2048 { &small } else { &large };
            let mut memory = case.memory(m);
            let kernel = Kernel::Int8 { m: m as u32, k, n: 2048 };
            let outcome = run(&mut tiles, Behaviour::Int8, &stream(kernel), &mut memory);
            assert_eq!(outcome, Ok(()), "{kernel}: {:?}", tiles.problem());
            assert!(case.is_right(&memory), "{kernel}, seed {seed}");
        }
    }
}

#[test]
fn whichever_stream_of_the_array_lags_the_product_is_exact() {
    let case = Case::new(2048, 2048, 1, 8);
    let kernel = Kernel::Int8 { m: 1, k: 2048, n: 2048 };
    for route in Overlay::int8().routes {
        let mut memory = case.memory(1);
        let mut tiles = Tiles::new(8).with_delayed(route.from.0, route.from.1);
        let outcome = run(&mut tiles, Behaviour::Int8, &stream(kernel), &mut memory);
        assert_eq!(outcome, Ok(()), "{route:?}: {:?}", tiles.problem());
        assert!(case.is_right(&memory), "{route:?}");
    }
}

#[test]
fn a_core_that_errs_makes_the_product_wrong() {
    let case = Case::new(2048, 2048, 8, 4);
    let kernel = Kernel::Int8 { m: 8, k: 2048, n: 2048 };
    for core in [Tile::new(0, 5), Tile::new(3, 2)] {
        let mut memory = case.memory(8);
        let mut tiles = Tiles::new(4).with_faulty(core);
        assert_eq!(run(&mut tiles, Behaviour::Int8, &stream(kernel), &mut memory), Ok(()));
        assert!(!case.is_right(&memory), "{core}");
    }
}

#[test]
fn other_parameters_get_the_cores_stuck() {
    let case = Case::new(2048, 2048, 1, 5);
    let kernel = Kernel::Int8 { m: 1, k: 2048, n: 2048 };
    for word in [0, 3, 7, 18, 49] {
        let mut memory = case.memory(1);
        memory.buffers[1][2048 + 4 * word] ^= 1;
        let mut tiles = Tiles::new(5);
        let outcome = run(&mut tiles, Behaviour::Int8, &stream(kernel), &mut memory);
        assert_eq!(outcome, Err(Trap::Stuck), "word {word}");
        assert!(tiles.problem().unwrap().contains("waits for what never comes"));
    }
}

#[test]
fn cores_that_are_to_make_too_much_break_the_next_command() {
    let case = Case::new(2048, 2048, 1, 6);
    let kernel = Kernel::Int8 { m: 1, k: 2048, n: 2048 };
    let mut tiles = Tiles::new(6);
    let mut memory = case.memory(1);
    // Blocks of C: 8 is 9.
    memory.buffers[1][2048 + 8] += 1;
    assert_eq!(run(&mut tiles, Behaviour::Int8, &stream(kernel), &mut memory), Ok(()));
    assert!(case.is_right(&memory));
    let mut memory = case.memory(1);
    let outcome = run(&mut tiles, Behaviour::Int8, &stream(kernel), &mut memory);
    assert!(outcome.is_err() || !case.is_right(&memory));
}
