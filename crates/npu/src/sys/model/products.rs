//! An array that multiplies as the kernel `a8w8acc32` is documented to.

use super::array::{Array, DeviceMemory, Task, Trap};
use crate::generate::{self, Kernel};
use crate::layout;
use crate::txn::Stream;

/// An array whose cores run `a8w8acc32`, whatever PDI they get.
///
/// It takes the streams that are generated and no others, and reads matrices in the layout of
/// [`layout`]. With other parameters after A it gets stuck, which is a guess at what cores do.
#[derive(Debug, Clone, Copy, Default)]
pub struct Products {
    /// Every result is wrong in its last element.
    pub is_wrong: bool,
}

impl Array for Products {
    fn run(&mut self, task: &Task, memory: &mut dyn DeviceMemory) -> Result<(), Trap> {
        let stream = Stream::parse(&task.instructions).map_err(|_| Trap::Stuck)?.canonical();
        let is_it = |kernel: &Kernel| generate::stream(*kernel).is_ok_and(|it| it == stream);
        let Some(Kernel::Int8 { m, k, n }) = Kernel::all().into_iter().find(is_it) else {
            return Err(Trap::Stuck);
        };
        let (m, k, n) = (m as usize, k as usize, n as usize);
        let [result, activations, weights, ..] = task.arguments[..] else {
            return Err(Trap::Stuck);
        };
        let mut read = |address, bytes| {
            let mut buffer = vec![0; bytes];
            memory.read(address, &mut buffer).map(|()| buffer)
        };
        let activations = read(activations, m * k + layout::PARAMETER_BYTES)?;
        let weights = layout::weights_from(k, n, &read(weights, k * n)?);
        let (values, parameters) = activations.split_at(m * k);
        if parameters != layout::parameters(k, n) {
            return Err(Trap::Stuck);
        }
        let values: Vec<i8> = values.iter().map(|byte| *byte as i8).collect();
        let mut product = layout::product(k, n, &values, &weights);
        if let Some(last) = product.last_mut().filter(|_| self.is_wrong) {
            *last ^= 1;
        }
        let bytes: Vec<u8> = product.iter().flat_map(|sum| sum.to_le_bytes()).collect();
        memory.write(result, &bytes)
    }
}
