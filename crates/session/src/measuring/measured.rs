//! This machine as a [`Machine`]: the rates that its memory and a device's matrix products reach.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use trine_backend::{
    BLOCK, BULK_ROWS, Batch, Device, MemoryKind, Program, ProgramOptions, SequenceView,
};
use trine_model::{
    Buffer, BufferId, Goal, KvType, Model, Op, Plan, Product, Rows, Step, Weight, WeightId, Width,
};

use crate::failure::please_report;
use crate::gpus::{self, DeviceKind};
use crate::library::ModelLibrary;
use crate::measuring::bandwidth::Bandwidth;
use crate::measuring::machine;
use crate::measuring::statistics::Summary;
use crate::placing::forecast::{Basis, BasisKind, Machine, PREFILL};
use crate::words;

/// Passes over the buffer that measures reads.
const READS: usize = 7;
/// The same on a GPU, which reads steadily.
const GPU_READS: usize = 5;
/// Rows of the product that stands for all products with few rows.
const FEW_ROWS: usize = 32;
/// Largest matrix, in weights, that is measured: enough work for every thread, and no long wait on
/// a slow processor.
const WEIGHTS_MAX: usize = 32 << 20;
/// Number of runs of a product, unless they take too long.
const REPEATS: usize = 7;
/// Time after which a product is not repeated.
const PATIENCE: Duration = Duration::from_secs(2);

/// Bytes per second of streaming reads.
#[derive(Debug, Clone, PartialEq)]
pub struct Reads {
    /// Median of several passes.
    pub usual: f64,
    /// Best pass.
    pub best: f64,
    /// What was read and how, for people.
    pub how: String,
    /// Bytes of the memory that was read, if the system reports it.
    pub memory_bytes: Option<u64>,
}

/// Measures streaming reads of this machine's processor.
///
/// # Errors
/// Returns an error if there is not enough memory to measure with.
pub fn processor_reads(library: &ModelLibrary, threads: usize) -> Result<Reads> {
    let _sign = library.callbacks.busy("measuring this machine");
    let bandwidth = Bandwidth::brief(threads)?;
    let passes: Vec<f64> = (0..READS).map(|_| bandwidth.measure()).collect();
    let threads = words::counted(threads, "thread");
    let how = format!("streaming reads with {threads}, median and best of {READS}");
    reads(&passes, how, machine::total_memory())
}

/// Measures streaming reads of a GPU of this machine, which has this memory for models.
///
/// # Errors
/// Returns an error if the GPU fails.
pub fn gpu_reads<E: Into<anyhow::Error>>(
    mut read: impl FnMut() -> Result<f64, E>,
    memory_bytes: Option<u64>,
) -> Result<Reads> {
    // The first pass wakes the GPU's clocks and is not counted.
    read().map_err(Into::into)?;
    let passes =
        (0..GPU_READS).map(|_| read().map_err(Into::into)).collect::<Result<Vec<f64>>>()?;
    let how = format!("streaming reads of the GPU, median and best of {GPU_READS}");
    reads(&passes, how, memory_bytes)
}

/// Measures the rates of a GPU of this machine with the matrices of a model.
///
/// # Errors
/// Returns an error if the device is no GPU, as [`machine`], and as [`gpu_reads`].
pub fn gpu_machine(library: &ModelLibrary, gpu: &dyn Device, model: &Model) -> Result<Machine> {
    let Some(reader) = gpu.reader()? else {
        bail!("{} is no GPU; {}", gpu.name(), please_report());
    };
    let found = gpus::with_uuid(gpu.uuid());
    let reads = gpu_reads(reader, found.as_ref().and_then(gpus::memory))?;
    // An NPU shares the memory with the GPU of its own chip only.
    let is_integrated = found.is_some_and(|found| found.kind == DeviceKind::Integrated);
    let has_npu = is_integrated && machine::has_npu(Path::new("/sys"));
    Ok(Machine { has_npu, ..machine(library, gpu, model, &reads)? })
}

fn reads(passes: &[f64], how: String, memory_bytes: Option<u64>) -> Result<Reads> {
    match Summary::of(passes) {
        Some(Summary { median, maximum, .. }) => {
            Ok(Reads { usual: median, best: maximum, how, memory_bytes })
        }
        None => bail!("the memory bandwidth was not measured; {}", please_report()),
    }
}

/// Measures the rates of a device of this machine with the matrices of a model. Reads are measured
/// separately, as each kind of device has its own way.
///
/// # Errors
/// Returns an error if the device cannot multiply with a matrix of the model.
pub fn machine(
    library: &ModelLibrary,
    device: &dyn Device,
    model: &Model,
    reads: &Reads,
) -> Result<Machine> {
    let _sign = library.callbacks.busy("measuring this machine");
    let weight = probe(&model.plan())?;
    let skinny = product_rate(device, model, &weight, FEW_ROWS)?;
    let wide = product_rate(device, model, &weight, PREFILL)?;
    let shape = format!("{} x {} in {}", weight.rows, weight.columns, weight.dtype.name());
    let name = match machine::processor() {
        Some(processor) => format!("this machine, {}: {processor}", device.name()),
        None => format!("this machine, {}", device.name()),
    };
    let measured = |text: String| Basis::new(BasisKind::Measured, text);
    Ok(Machine {
        name,
        gbps: reads.usual / 1e9,
        gbps_limit: reads.best / 1e9,
        tops_skinny: skinny / 1e12,
        tops_wide: wide / 1e12,
        tops_limit: skinny.max(wide) / 1e12,
        gap_us: 0.0,
        memory_bytes: reads.memory_bytes,
        has_own_memory: device.memory().kind == MemoryKind::Own,
        has_npu: false,
        sources: vec![
            measured(format!(
                "{} of {} GB/s: {}",
                words::rate(reads.usual / 1e9),
                words::rate(reads.best / 1e9),
                reads.how
            )),
            measured(format!(
                "{} and {} Top/s: products of {FEW_ROWS} and {PREFILL} rows with {shape}; the \
                 better one is the limit",
                words::rate(skinny / 1e12),
                words::rate(wide / 1e12)
            )),
            Basis::new(BasisKind::Assumed, "no gap between launches: it is not measured"),
        ],
    })
}

/// Measures the operations per second of a device's products in prompts, with a matrix of a model.
///
/// # Errors
/// Returns an error if the device cannot multiply with it.
pub fn prompt_rate(device: &dyn Device, model: &Model) -> Result<f64> {
    product_rate(device, model, &probe(&model.plan())?, PREFILL)
}

/// Returns the matrix that stands for all: the largest that is not too large, else the smallest.
fn probe(plan: &Plan) -> Result<Weight> {
    let is_product = |step: &&Step| matches!(step.op, Op::MatMul { .. } | Op::GatedMatMul { .. });
    let weights = plan.steps.iter().filter(is_product).flat_map(|step| step.op.weights());
    let mut matrices: Vec<&Weight> = weights.map(|id| plan.weight(id)).collect();
    let size = |weight: &Weight| weight.rows.saturating_mul(weight.columns);
    matrices.sort_by_key(|weight| size(weight));
    let fitting = matrices.iter().rev().find(|weight| size(weight) <= WEIGHTS_MAX);
    match fitting.or(matrices.first()) {
        Some(weight) => Ok((*weight).clone()),
        None => bail!("the model has no matrix; {}", please_report()),
    }
}

/// Returns the operations per second of the product of `rows` rows with a matrix of the model: the
/// best of several runs.
fn product_rate(device: &dyn Device, model: &Model, weight: &Weight, rows: usize) -> Result<f64> {
    let options = ProgramOptions {
        width: Width { tokens: rows, outputs: 1 },
        kv: KvType::F16,
        context: rows,
        sequences: 1,
        blocks: rows.div_ceil(BLOCK),
    };
    let mut program = device.load_plan(model, product(weight), &options)?;
    let positions: Vec<u32> = (0..rows as u32).collect();
    let zeros = vec![0_u32; rows];
    let blocks: Vec<u32> = (0..options.blocks as u32).collect();
    let batch = Batch {
        tokens: &zeros,
        positions: &positions,
        sequence_of: &zeros,
        sequences: &[SequenceView { slot: 0, blocks: &blocks }],
        outputs: &[rows as u32 - 1],
        ahead: &[],
        bulk_from: if rows > BULK_ROWS { 0 } else { rows },
        inputs: &[],
        goal: Goal::Main,
    };
    // The first run warms caches and pages and is not counted.
    product_seconds(program.as_mut(), &batch)?;
    let (begin, mut best) = (Instant::now(), f64::INFINITY);
    for _ in 0..REPEATS {
        best = best.min(product_seconds(program.as_mut(), &batch)?);
        if begin.elapsed() > PATIENCE {
            break;
        }
    }
    let operations = 2.0 * rows as f64 * weight.rows as f64 * weight.columns as f64;
    Ok(operations / best.max(1e-9))
}

/// Returns the seconds of one run, by the device's own clock if it has one: the way to a GPU and
/// back is not part of the product.
fn product_seconds(program: &mut dyn Program, batch: &Batch<'_>) -> Result<f64> {
    program.profile(true);
    let start = Instant::now();
    program.run(batch)?;
    let elapsed = start.elapsed().as_secs_f64();
    // The product is the Plan's last step.
    let own = program.profile(false).last().copied().unwrap_or_default();
    Ok(if own > 0.0 { own } else { elapsed })
}

/// Returns a Plan of one product. Its input is a row of the matrix itself, which every model has:
/// the time does not depend on the values.
fn product(weight: &Weight) -> Plan {
    let buffer =
        |name: &str, columns| Buffer { name: name.to_owned(), rows: Rows::Tokens, columns };
    let step = |label: &str, op| Step { label: label.to_owned(), op };
    let (input, output) = (BufferId(0), BufferId(1));
    let products = vec![Product { weight: WeightId(0), output }];
    Plan {
        buffers: vec![buffer("input", weight.columns), buffer("output", weight.rows)],
        weights: vec![weight.clone()],
        caches: Vec::new(),
        steps: vec![
            step("input", Op::Embed { table: WeightId(0), scale: 1.0, output: input }),
            step("product", Op::MatMul { input, products }),
        ],
        inputs: Vec::new(),
        outputs: vec![output],
        ends: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use trine_backend::reference::ReferenceDevice;
    use trine_cpu::CpuDevice;

    use super::*;
    use crate::finding::model_source::Source;

    #[test]
    fn devices_are_measured_with_a_matrix_of_the_model() {
        let model = Source::DEMO.open(None).unwrap();
        let weight = probe(&model.plan()).unwrap();
        assert!(weight.is_matrix() && weight.rows * weight.columns <= WEIGHTS_MAX);
        let reads =
            Reads { usual: 20e9, best: 25e9, how: "by decree".to_owned(), memory_bytes: Some(7) };
        let device = CpuDevice::new(Some(1), None).unwrap();
        let machine = machine(&ModelLibrary::default(), &device, &model, &reads).unwrap();
        assert_eq!((machine.gbps, machine.gbps_limit), (20.0, 25.0));
        assert_eq!(machine.memory_bytes, Some(7));
        assert!(machine.tops_skinny > 0.0 && machine.tops_wide > 0.0);
        assert!(machine.tops_limit >= machine.tops_wide.max(machine.tops_skinny));
        let slow = product_rate(&ReferenceDevice::new(), &model, &weight, 2).unwrap();
        assert!(slow / 1e12 < machine.tops_wide, "the scalar reference is slower");
    }
}
