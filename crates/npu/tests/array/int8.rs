//! Products of whole numbers, through all tiles.

use trine_npu::generate::Kernel;
use trine_npu::layout;
use trine_npu::sys::model::{Behaviour, Tiles};

use crate::support::{Memory, Numbers, run, stream};

/// Random matrices of a shape, and their product.
struct Case {
    memory: Memory,
    /// (m, n), row by row, as bytes.
    product: Vec<u8>,
}

impl Case {
    fn new(m: usize, k: usize, n: usize, seed: u64) -> Self {
        let mut numbers = Numbers(seed);
        let mut take = |count| -> Vec<i8> {
            numbers.bytes(count).into_iter().map(|byte| byte as i8).collect()
        };
        let (activations, weights) = (take(m * k), take(k * n));
        let product = layout::product(k, n, &activations, &weights);
        let memory = Memory::new(
            4 * m * n,
            layout::activations(k, n, &activations),
            layout::weights(k, n, &weights),
        );
        Self { memory, product: product.iter().flat_map(|sum| sum.to_le_bytes()).collect() }
    }
}

fn check(kernel: Kernel, seed: u64) {
    let (m, k, n) = kernel.shape();
    let mut case = Case::new(m as usize, k as usize, n as usize, seed);
    let mut tiles = Tiles::new(seed);
    let outcome = run(&mut tiles, Behaviour::Int8, &stream(kernel), &mut case.memory);
    assert_eq!(outcome, Ok(()), "{kernel}: {:?}", tiles.problem());
    assert!(case.memory.buffers[0] == case.product, "{kernel}");
}

#[test]
fn products_of_all_shapes_are_exact() {
    for kernel in Kernel::all().into_iter().filter(|kernel| matches!(kernel, Kernel::Int8 { .. })) {
        check(kernel, 1);
    }
}
