//! This machine as a [`Machine`]: what its memory and a device's matrix products reach here.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use trine_backend::{BLOCK, Batch, Device, ProgramOptions, SequenceView};
use trine_model::{
    Buffer, BufferId, KvType, Model, Op, Plan, Product, Rows, Step, Weight, WeightId, Width,
};

use crate::bandwidth::Bandwidth;
use crate::forecast::{Basis, BasisKind, Machine};
use crate::machine;
use crate::output;
use crate::session::PREFILL;
use crate::statistics::Summary;

/// Passes over the buffer that measures reads.
const READS: usize = 7;
/// Rows of the product that stands for all with few rows.
const FEW_ROWS: usize = 32;
/// Largest matrix, in weights, that is measured: enough work for every thread, and no long wait on a slow processor.
const WEIGHTS_MAX: usize = 32 << 20;
/// A product is repeated this often unless that takes too long.
const REPEATS: usize = 7;
/// Time after which a product is not repeated.
const PATIENCE: Duration = Duration::from_secs(2);

/// Bytes per second of streaming reads.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Reads {
    /// Median of several passes.
    pub(crate) usual: f64,
    /// Best pass.
    pub(crate) best: f64,
    /// What was read how, for people.
    pub(crate) how: String,
}

/// Streaming reads of this machine's processor.
///
/// # Errors
/// If there is not enough memory to measure with.
pub(crate) fn processor_reads(threads: usize) -> Result<Reads> {
    let bandwidth = Bandwidth::new(threads)?;
    let passes: Vec<f64> = (0..READS).map(|_| bandwidth.measure()).collect();
    let Some(Summary { median, maximum, .. }) = Summary::of(&passes) else {
        bail!("the memory bandwidth was not measured; please report this");
    };
    let how = format!("streaming reads with {threads} threads, median and best of {READS}");
    Ok(Reads { usual: median, best: maximum, how })
}

/// The rates of a device of this machine with the matrices of a model. Reads are measured apart, as each kind of device
/// has its own way.
///
/// # Errors
/// If the device cannot multiply with a matrix of the model.
pub(crate) fn machine(device: &dyn Device, model: &Model, reads: &Reads) -> Result<Machine> {
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
        memory_bytes: machine::total_memory(),
        sources: vec![
            measured(format!(
                "{} of {} GB/s: {}",
                output::rate(reads.usual / 1e9),
                output::rate(reads.best / 1e9),
                reads.how
            )),
            measured(format!(
                "{} and {} Top/s: products of {FEW_ROWS} and {PREFILL} rows with {shape}; the better one is the limit",
                output::rate(skinny / 1e12),
                output::rate(wide / 1e12)
            )),
            Basis::new(BasisKind::Assumed, "no gap between steps: it is not measured"),
        ],
    })
}

/// The matrix that stands for all: the largest that is not too large, else the smallest.
fn probe(plan: &Plan) -> Result<Weight> {
    let is_product = |step: &&Step| matches!(step.op, Op::MatMul { .. } | Op::GatedMatMul { .. });
    let weights = plan.steps.iter().filter(is_product).flat_map(|step| step.op.weights());
    let mut matrices: Vec<&Weight> = weights.map(|id| plan.weight(id)).collect();
    let size = |weight: &Weight| weight.rows.saturating_mul(weight.columns);
    matrices.sort_by_key(|weight| size(weight));
    let fitting = matrices.iter().rev().find(|weight| size(weight) <= WEIGHTS_MAX);
    match fitting.or(matrices.first()) {
        Some(weight) => Ok((*weight).clone()),
        None => bail!("the model has no matrix; please report this"),
    }
}

/// Operations per second of the product of `rows` rows with a matrix of the model: the best of several runs.
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
    };
    // The first run warms caches and pages and is not counted.
    program.run(&batch)?;
    let (begin, mut best) = (Instant::now(), Duration::MAX);
    for _ in 0..REPEATS {
        let start = Instant::now();
        program.run(&batch)?;
        best = best.min(start.elapsed());
        if begin.elapsed() > PATIENCE {
            break;
        }
    }
    let operations = 2.0 * rows as f64 * weight.rows as f64 * weight.columns as f64;
    Ok(operations / best.max(Duration::from_nanos(1)).as_secs_f64())
}

/// A Plan of one product. Nothing writes its input: the time does not depend on the values.
fn product(weight: &Weight) -> Plan {
    let buffer =
        |name: &str, columns| Buffer { name: name.to_owned(), rows: Rows::Tokens, columns };
    let (input, output) = (BufferId(0), BufferId(1));
    let products = vec![Product { weight: WeightId(0), output }];
    Plan {
        buffers: vec![buffer("input", weight.columns), buffer("output", weight.rows)],
        weights: vec![weight.clone()],
        caches: Vec::new(),
        steps: vec![Step { label: "probe".to_owned(), op: Op::MatMul { input, products } }],
        logits: output,
    }
}

#[cfg(test)]
mod tests {
    use trine_backend::reference::ReferenceDevice;
    use trine_cpu::CpuDevice;

    use super::*;
    use crate::model_source::Source;

    #[test]
    fn devices_are_measured_with_a_matrix_of_the_model() {
        let model = Source::DEMO.open(None).unwrap();
        let weight = probe(&model.plan()).unwrap();
        assert!(weight.rows > 1 && weight.rows * weight.columns <= WEIGHTS_MAX);
        let reads = Reads { usual: 20e9, best: 25e9, how: "by decree".to_owned() };
        let machine = machine(&CpuDevice::new(Some(1), None).unwrap(), &model, &reads).unwrap();
        assert_eq!((machine.gbps, machine.gbps_limit), (20.0, 25.0));
        assert!(machine.tops_skinny > 0.0 && machine.tops_wide > 0.0);
        assert!(machine.tops_limit >= machine.tops_wide.max(machine.tops_skinny));
        let slow = product_rate(&ReferenceDevice::new(), &model, &weight, 2).unwrap();
        assert!(slow / 1e12 < machine.tops_wide, "the scalar reference is slower");
    }
}
