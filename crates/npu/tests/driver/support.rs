//! A kernel with a stream, a model with its core, and calls by hand.

use std::sync::OnceLock;

use bytemuck::{Pod, bytes_of_mut};
use trine_npu::contract::Contract;
use trine_npu::cores::CoreProgram;
use trine_npu::driver::{
    Context, DEVICE_PATH, Device, DeviceBuffer, DriverError, Executed, Program, ProvenStream, Run,
};
use trine_npu::generate::{self, Kernel};
use trine_npu::sys::{Errno, File, Pointed, Sys};
use trine_npu::verify::Verifier;
use trine_npu_model::{Cores, Machine, ModelSys};

pub(crate) use crate::changed::Changed;

/// The smallest kernel.
pub(crate) const KERNEL: Kernel = Kernel::Int8 { m: 1, k: 2048, n: 2048 };
/// What stands for the cores' program.
pub(crate) const PDI: &[u8] = b"a program that no core runs";

/// Returns it in the place of the published program.
pub(crate) fn cores() -> CoreProgram {
    CoreProgram::stand_in(PDI, KERNEL.family())
}
/// Bytes of the result.
pub(crate) const RESULT_BYTES: u64 = 2048 * 4;

/// Returns the stream with its proof.
pub(crate) fn proven() -> &'static ProvenStream {
    static PROVEN: OnceLock<ProvenStream> = OnceLock::new();
    PROVEN.get_or_init(|| {
        let verifier = Verifier::new(contract()).unwrap();
        ProvenStream::new(&verifier, &generate::stream(KERNEL).unwrap()).unwrap()
    })
}

pub(crate) fn contract() -> Contract {
    generate::contract(KERNEL).unwrap()
}

/// What the core of the model does: each word of the result depends on all of A, and on W. The
/// order of the bytes is not that of AMD's kernel, which no test here is about.
pub(crate) fn product(inputs: &[Vec<u8>]) -> Vec<u8> {
    let [activations, weights] = inputs else { panic!("two inputs") };
    let sum: u32 = activations.iter().map(|byte| u32::from(*byte)).sum();
    let words = RESULT_BYTES as usize / 4;
    let row = weights.len() / words;
    let word = |index: usize| {
        let row = &weights[index * row..(index + 1) * row];
        row.iter().map(|byte| u32::from(*byte)).sum::<u32>().wrapping_mul(sum) & 0xff_ffff
    };
    (0..words).flat_map(|index| word(index).to_le_bytes()).collect()
}

/// A machine whose driver counts a command before it tells its end, as Linux 6.14 does.
pub(crate) fn counting_at_once() -> Machine {
    Machine { counted_late: std::time::Duration::ZERO, ..Machine::default() }
}

/// Returns inputs that differ by `seed`: A and W.
pub(crate) fn inputs(seed: u8) -> [Vec<u8>; 2] {
    let contract = contract();
    let bytes = |argument: u32| {
        let mut buffers = contract.buffers.iter();
        let buffer = buffers.find(|buffer| buffer.argument == argument).unwrap();
        let byte =
            |index: u64| (index as u8).wrapping_mul(31).wrapping_add(seed) ^ (index >> 8) as u8;
        (0..buffer.bytes).map(byte).collect()
    };
    [bytes(1), bytes(2)]
}

/// Returns a model of a machine whose array knows [`PDI`].
pub(crate) fn model(machine: Machine) -> ModelSys {
    let cores = Cores::new().with(PDI, contract(), Box::new(product)).unwrap();
    ModelSys::new(machine, Box::new(cores))
}

/// A device with a context, a program and inputs.
pub(crate) struct Bench<S: Sys> {
    // Dropped in this order.
    pub(crate) context: Context<S>,
    pub(crate) program: Program<S>,
    pub(crate) inputs: [DeviceBuffer<S>; 2],
    pub(crate) device: Device<S>,
}

impl<S: Sys> Bench<S> {
    pub(crate) fn new(sys: S, seed: u8) -> Result<Self, DriverError> {
        let device = Device::open(sys, DEVICE_PATH)?;
        let context = Context::new(&device, contract().columns, &cores())?;
        let program = Program::new(&device, proven())?;
        let [activations, weights] = inputs(seed);
        let inputs = [upload(&device, &activations)?, upload(&device, &weights)?];
        Ok(Self { context, program, inputs, device })
    }

    /// Runs `count` commands.
    pub(crate) fn run(&mut self, count: usize) -> Result<Vec<Executed<S>>, DriverError> {
        let mut runs = Vec::new();
        for _ in 0..count {
            let result = self.device.buffer(RESULT_BYTES)?.poison()?;
            let inputs = vec![(1, &self.inputs[0]), (2, &self.inputs[1])];
            runs.push(Run { program: &self.program, inputs, result });
        }
        self.context.execute(runs)
    }
}

pub(crate) fn upload<S: Sys>(
    device: &Device<S>,
    bytes: &[u8],
) -> Result<DeviceBuffer<S>, DriverError> {
    let mut buffer = device.buffer(bytes.len() as u64)?;
    buffer.write(0, bytes)?;
    buffer.to_device()
}

pub(crate) fn bytes_of_result<S: Sys>(executed: &Executed<S>) -> Vec<u8> {
    let mut bytes = vec![0; RESULT_BYTES as usize];
    executed.result().read(0, &mut bytes).unwrap();
    bytes
}

/// Calls an ioctl by hand, with what one field points to.
pub(crate) fn call<T: Pod>(
    sys: &dyn Sys,
    file: File,
    number: u32,
    mut argument: T,
    pointed: Option<(usize, &mut [u8])>,
) -> Result<T, Errno> {
    let mut pointed: Vec<Pointed<'_>> =
        pointed.into_iter().map(|(field, bytes)| Pointed { field, bytes }).collect();
    sys.ioctl(file, number, bytes_of_mut(&mut argument), &mut pointed)?;
    Ok(argument)
}
