//! Forecasts: what an XDNA1 NPU would add to reading prompts beside the GPU of its chip.
//!
//! **Never run on silicon.** The numbers are from others' publications and from command streams.
//!
//! Each product of a pass is split by output columns, in tiles of 2048 x 2048 weights, so that GPU
//! and NPU end at the same time, as far as whole tiles allow. With `t` tiles of columns on the NPU,
//! which are a share `f` of the product's columns:
//!
//! ```text
//! time(0)     = gpu = max(weights / reads, product / matrices(rows))
//! time(t)     = max((1 - f) gpu / speed, npu(t), bytes(t) / reads)
//! npu(t)      = rows / kernel's rows x runs x depth / 2048 x commands(t) x command [+ host(t) / reads]
//! command     = data + stream + dispatch, or max(data, stream) + dispatch    (or operations / published rate)
//! data        = busiest channel's bytes / channel's rate
//! stream      = cycles in which the firmware reads the command stream / clock
//! bytes(t)    = weights + expanded weights written + what commands read and write + results read again
//! host(t)     = f weights + expanded weights written + results read again
//! ```
//!
//! All quotients are rounded up. The best `t` is taken, so a product that gains nothing stays with
//! the GPU. The host expands weights into the kernel's format once a pass and product, and adds the
//! results of commands along the depth. In the highest forecast that happens beside the NPU's work,
//! in the lowest one in front of it; the same goes for the firmware and the data of a command. The
//! work of the host for starting the GPU's part of each product is not counted.

#[cfg(test)]
mod tests;

use serde::Serialize;
use trine_backend::BackendError;
use trine_model::{Op, Plan, Workload};

use super::{BasisKind, Machine, Passes, Work, pieces};

/// The rows and columns of the block of weights that a command of every kernel takes.
pub const TILE: usize = 2048;

/// The smallest and the largest value that sources give for one number.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Span {
    /// The smallest value.
    pub lowest: f64,
    /// The largest value.
    pub highest: f64,
}

/// A number that the forecast is made of.
#[derive(Debug, Serialize)]
pub struct Figure {
    /// What it is.
    pub what: &'static str,
    /// Its value, from the least to the most.
    #[serde(flatten)]
    pub span: Span,
    /// Its unit.
    pub unit: &'static str,
    /// How reliable it is.
    pub kind: BasisKind,
    /// Who says so.
    pub source: &'static str,
}

/// The numbers of the device.
pub static FIGURES: [Figure; 7] = [
    Figure {
        what: "for each of eight shim channels",
        span: CHANNEL_GBPS,
        unit: "GB/s",
        kind: BasisKind::Published,
        source: "3.8 to 4.0 bytes a cycle, and 1.03 GHz on a Phoenix in performance mode: findings \
            of FIM43-Redeye/xdna-emu; 1.6 GHz: the fastest clock in npu1_regs.c of amd/xdna-driver",
    },
    Figure {
        what: "for the firmware to read the stream of an int8 command",
        span: Span {
            lowest: INT8_STREAM_CYCLES.lowest / (CLOCK_GHZ.highest * 1e3),
            highest: INT8_STREAM_CYCLES.highest / (CLOCK_GHZ.lowest * 1e3),
        },
        unit: "us",
        kind: BasisKind::Measured,
        source: "cycles of each kind of operation, findings of 2026-05-04 to 2026-05-27 of \
            FIM43-Redeye/xdna-emu, for the operations of the int8 kernel's stream",
    },
    Figure {
        what: "for each command",
        span: DISPATCH_US,
        unit: "us",
        kind: BasisKind::Measured,
        source: "37: batches from C++, README of jdominick05/ignite-xdna; 130: kernel that copies \
            4 kB, RESULTS.md of Scottcjn/open-xdna",
    },
    Figure {
        what: "for the bf16 kernel, each 256 x 2048 x 2048",
        span: Span {
            lowest: BF16_BYTES / (CHANNEL_GBPS.highest * 1e6),
            highest: BF16_BYTES / (CHANNEL_GBPS.lowest * 1e6),
        },
        unit: "ms",
        kind: BasisKind::Published,
        source: "8.39 MB of weights through one channel, by its stream in amd/RyzenAI-SW 2a3c4af",
    },
    Figure {
        what: "for the int8 kernel, each 64 x 2048 x 2048",
        span: Span {
            lowest: (INT8_BYTES + INT8_ROW_BYTES) / (CHANNEL_GBPS.highest * 1e6),
            highest: (INT8_BYTES + INT8_ROW_BYTES) / (CHANNEL_GBPS.lowest * 1e6),
        },
        unit: "ms",
        kind: BasisKind::Published,
        source: "weights once through eight channels, by its stream in amd/RyzenAI-SW 2a3c4af; it \
            runs twice, for activations in two terms (docs/decisions/036-npu-arithmetic.md)",
    },
    Figure {
        what: "for the best bf16 kernels of others, which trine does not have",
        span: BEST_BF16_TOPS,
        unit: "Top/s",
        kind: BasisKind::Measured,
        source: "end to end; 2.07: 1024 x 1024 x 1024, README of jdominick05/ignite-xdna; 3.14: \
            arXiv 2512.13282",
    },
    Figure {
        what: "of the GPU's speed beside a busy NPU",
        span: GPU_SPEED,
        unit: "",
        kind: BasisKind::Assumed,
        source: "lowest: all power is in use, and what the NPU takes slows the GPU down in \
            proportion; 6.6 and 25.9 W: BENCHMARKS.md of Scottcjn/open-xdna",
    },
];

/// What is assumed of the device and the host.
pub const ASSUMED: [&str; 3] = [
    "cores keep up with their channels (others' int8 kernels reach 4.45 to 6.76 Top/s: \
     ignite-xdna, arXiv 2512.13282); the GPU's starts for each product take no time",
    "the host expands weights and adds partial results beside the NPU's work (highest) or in front \
     of it (lowest)",
    "the firmware reads the stream of an int8 command while its data flow (highest) or before \
     (lowest); the bf16 stream takes it no time",
];

/// The 10^9 cycles per second of the array.
const CLOCK_GHZ: Span = Span { lowest: 1.028, highest: 1.6 };
/// The 10^9 bytes per second of a shim channel, which moves 3.8 to 4 bytes a cycle.
const CHANNEL_GBPS: Span =
    Span { lowest: 3.8 * CLOCK_GHZ.lowest, highest: 4.0 * CLOCK_GHZ.highest };
/// The cycles in which the firmware reads the stream of an int8 command: 96 masked writes of 210,
/// 97 block writes of 203, 49 writes of 100.5, 53 writes to the queues of channels of 830 to 900,
/// and at times 2,780 more for a whole stream. Its 17 patches and 8 waits were not measured.
const INT8_STREAM_CYCLES: Span = Span {
    lowest: 96.0 * 210.0 + 97.0 * 203.0 + 49.0 * 100.5 + 53.0 * 830.0,
    highest: 96.0 * 210.0 + 97.0 * 203.0 + 49.0 * 100.5 + 53.0 * 900.0 + 2780.0,
};
/// The 10^9 bytes per second of the eight channels that read memory, together, at most.
pub const CHANNELS_GBPS: f64 = 8.0 * CHANNEL_GBPS.highest;
/// The microseconds that a command takes beside its work.
const DISPATCH_US: Span = Span { lowest: 37.0, highest: 130.0 };
/// The share of its speed that the GPU keeps beside a busy NPU.
const GPU_SPEED: Span = Span { lowest: 1.0 - 6.6 / 25.9, highest: 1.0 };
/// The end-to-end rate of published bf16 kernels.
#[expect(clippy::approx_constant, reason = "a rate that happens to be near pi")]
const BEST_BF16_TOPS: Span = Span { lowest: 2.07, highest: 3.14 };
/// The bytes of a tile of weights on the busiest channel of the bf16 kernel.
const BF16_BYTES: f64 = (TILE * TILE * 2) as f64;
/// The same of the int8 kernel.
const INT8_BYTES: f64 = (TILE * TILE / 8) as f64;
/// The bytes of a command's activations on the busiest channel of the int8 kernel.
const INT8_ROW_BYTES: f64 = (64 * TILE / 4) as f64;

/// How long a command takes.
#[derive(Debug, Clone, Copy)]
enum Speed {
    /// By the bytes on the busiest channel, of each tile of weights and of activations, and by the
    /// cycles in which the firmware reads a command's stream.
    Channel { tile: f64, activations: f64, stream: Span },
    /// By an end-to-end rate in 10^12 operations per second, with nothing added for a command.
    Published(Span),
}

/// A kernel for products.
#[derive(Debug)]
pub(super) struct Kernel {
    /// The name of its arithmetic.
    pub name: &'static str,
    /// The rows of a command.
    rows: usize,
    /// The most tiles of a command beside each other.
    widest: usize,
    /// The runs that a product takes.
    runs: usize,
    /// The bytes of a weight.
    weight_bytes: usize,
    /// The bytes of activations that a command reads.
    activation_bytes: usize,
    /// The bytes of a command's result for each tile.
    result_bytes: usize,
    speed: Speed,
}

/// The kernels: two that AMD published, and one of the speed that others reached.
pub(super) static KERNELS: [Kernel; 3] = [
    Kernel {
        name: "bf16",
        rows: 256,
        widest: 1,
        runs: 1,
        weight_bytes: 2,
        // The stream reads its activations eight times.
        activation_bytes: 8 * 256 * TILE * 2,
        result_bytes: 256 * TILE * 2,
        speed: Speed::Channel {
            tile: BF16_BYTES,
            activations: 0.0,
            stream: Span { lowest: 0.0, highest: 0.0 },
        },
    },
    Kernel {
        name: "int8, twice",
        rows: 64,
        widest: 4,
        runs: 2,
        weight_bytes: 1,
        activation_bytes: 64 * TILE,
        result_bytes: 64 * TILE * 4,
        speed: Speed::Channel {
            tile: INT8_BYTES,
            activations: INT8_ROW_BYTES,
            stream: INT8_STREAM_CYCLES,
        },
    },
    Kernel {
        name: "best bf16",
        rows: 256,
        widest: 1,
        runs: 1,
        weight_bytes: 2,
        activation_bytes: 8 * 256 * TILE * 2,
        result_bytes: 256 * TILE * 2,
        speed: Speed::Published(BEST_BF16_TOPS),
    },
];

/// One value of every number that sources differ about.
#[derive(Debug, Clone, Copy)]
struct Conditions {
    clock_ghz: f64,
    channel_gbps: f64,
    dispatch_us: f64,
    gpu_speed: f64,
    published_tops: fn(Span) -> f64,
    /// Whether the host's work takes place beside the NPU's, and the firmware's beside the data's.
    is_hidden: bool,
}

/// The values that make the forecast lowest.
const WORST: Conditions = Conditions {
    clock_ghz: CLOCK_GHZ.lowest,
    channel_gbps: CHANNEL_GBPS.lowest,
    dispatch_us: DISPATCH_US.highest,
    gpu_speed: GPU_SPEED.lowest,
    published_tops: |span| span.lowest,
    is_hidden: false,
};

/// The values that make it highest.
const BEST: Conditions = Conditions {
    clock_ghz: CLOCK_GHZ.highest,
    channel_gbps: CHANNEL_GBPS.highest,
    dispatch_us: DISPATCH_US.lowest,
    gpu_speed: GPU_SPEED.highest,
    published_tops: |span| span.highest,
    is_hidden: true,
};

impl Kernel {
    /// Returns the commands for `tiles` tiles beside each other: (of the widest, of one tile).
    fn commands(&self, tiles: usize) -> (f64, f64) {
        match self.widest {
            1 => (0.0, tiles as f64),
            widest => ((tiles / widest) as f64, (tiles % widest) as f64),
        }
    }

    /// Returns the seconds of a command with `tiles` tiles.
    fn command_seconds(&self, tiles: usize, conditions: Conditions) -> f64 {
        match self.speed {
            Speed::Channel { tile, activations, stream } => {
                let bytes = tile * tiles as f64 + activations;
                let data = bytes / (conditions.channel_gbps * 1e9);
                let work = match conditions.is_hidden {
                    true => data.max(stream.lowest / (conditions.clock_ghz * 1e9)),
                    false => data + stream.highest / (conditions.clock_ghz * 1e9),
                };
                work + conditions.dispatch_us * 1e-6
            }
            Speed::Published(tops) => {
                let operations = 2.0 * (self.rows * TILE * TILE * tiles) as f64;
                operations / ((conditions.published_tops)(tops) * 1e12)
            }
        }
    }
}

/// A step of a pass other than attention.
#[derive(Debug, Clone, Copy)]
struct Product {
    rows: usize,
    /// The inputs of each output.
    depth: usize,
    /// The output columns of all its matrices.
    columns: usize,
    /// The whole tiles of these columns; 0 for a step that is no product.
    tiles: usize,
    weight_bytes: f64,
    operations: f64,
}

/// How a product is split.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Split {
    seconds: f64,
    /// The tiles of columns on the NPU.
    tiles: usize,
}

impl Product {
    /// Returns the steps of a pass other than attention.
    fn all(plan: &Plan, workload: Workload) -> Vec<Self> {
        let steps = plan.steps.iter().filter(|step| !matches!(step.op, Op::Attend { .. }));
        let product = |step: &trine_model::Step| {
            let cost = plan.step_cost(step, workload);
            let weights = match step.op {
                Op::MatMul { .. } | Op::GatedMatMul { .. } => step.op.weights(),
                _ => Vec::new(),
            };
            let weights = || weights.iter().map(|id| plan.weight(*id));
            Self {
                rows: workload.width().of(plan.rows(&step.op)),
                depth: weights().map(|weight| weight.columns).max().unwrap_or(0),
                columns: weights().map(|weight| weight.rows).sum(),
                tiles: weights().map(|weight| weight.rows / TILE).sum(),
                weight_bytes: cost.weight_bytes as f64,
                operations: cost.operations as f64,
            }
        };
        steps.map(product).collect()
    }

    /// Returns the share of its columns that are in this many tiles.
    fn share(&self, tiles: usize) -> f64 {
        if tiles == 0 { 0.0 } else { (tiles * TILE) as f64 / self.columns as f64 }
    }

    /// Returns the seconds of the product with these tiles of columns on the NPU, `alone` being
    /// those of the GPU with all of them.
    fn seconds(
        &self,
        kernel: &Kernel,
        tiles: usize,
        (alone, gbps): (f64, f64),
        conditions: Conditions,
    ) -> f64 {
        if tiles == 0 {
            return alone;
        }
        let share = self.share(tiles);
        let blocks = self.depth.div_ceil(TILE) as f64;
        let passes = (self.rows.div_ceil(kernel.rows) * kernel.runs) as f64 * blocks;
        let (wide, narrow) = kernel.commands(tiles);
        let commands = passes * (wide + narrow);
        let each = |tiles| kernel.command_seconds(tiles, conditions);
        let work = passes * (wide * each(kernel.widest) + narrow * each(1));

        let bytes = |of_tile: usize| (tiles * of_tile) as f64;
        let expanded = blocks * bytes(TILE * TILE * kernel.weight_bytes);
        let results = passes * bytes(kernel.result_bytes);
        let reads = passes * bytes(TILE * TILE * kernel.weight_bytes)
            + commands * kernel.activation_bytes as f64;
        let host = (share * self.weight_bytes + expanded + results) / (gbps * 1e9);
        let memory = (self.weight_bytes + expanded + reads + 2.0 * results) / (gbps * 1e9);
        let npu = if conditions.is_hidden { work } else { work + host };
        ((1.0 - share) * alone / conditions.gpu_speed).max(npu).max(memory)
    }

    /// Returns the split that takes the least time.
    fn split(
        &self,
        kernel: &Kernel,
        machine: &Machine,
        tops: f64,
        conditions: Conditions,
    ) -> Split {
        let alone = (self.weight_bytes / (machine.gbps * 1e9)).max(self.operations / (tops * 1e12));
        let mut best = Split { seconds: alone, tiles: 0 };
        for tiles in 1..=self.tiles {
            let seconds = self.seconds(kernel, tiles, (alone, machine.gbps), conditions);
            if seconds < best.seconds {
                best = Split { seconds, tiles };
            }
        }
        best
    }
}

/// The products of a pass, split.
#[derive(Debug, Clone, Copy, Default)]
struct Splits {
    /// The seconds of the GPU with all of them.
    alone: f64,
    /// The seconds with the NPU.
    seconds: f64,
    operations: f64,
    /// The operations on the NPU.
    npu_operations: f64,
}

impl Splits {
    fn of(
        plan: &Plan,
        workload: Workload,
        kernel: &Kernel,
        machine: &Machine,
        at: Conditions,
    ) -> Self {
        let tops = machine.tops(workload.sequences * workload.tokens);
        let mut sum = Self::default();
        for product in Product::all(plan, workload) {
            let split = product.split(kernel, machine, tops, at);
            sum.alone += Product { tiles: 0, ..product }.split(kernel, machine, tops, at).seconds;
            sum.seconds += split.seconds;
            sum.operations += product.operations;
            sum.npu_operations += product.share(split.tiles) * product.operations;
        }
        sum
    }
}

/// A forecast of reading a prompt with GPU and NPU.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct NpuPrompt {
    /// The number of tokens of the prompt.
    pub tokens: usize,
    /// The NPU's kernel.
    pub kernel: &'static str,
    /// Tokens per second.
    pub tokens_per_second: Span,
    /// What the NPU adds to the GPU's tokens per second, as a share of them.
    pub gain: Span,
    /// The share of the operations of products that the NPU does.
    pub npu_share: Span,
}

/// Forecasts reading one prompt with GPU and NPU, with each of [`KERNELS`], in the same passes as
/// [`super::prompt`].
///
/// # Errors
/// Returns an error if the machine cannot run the Plan.
pub fn npu_prompts(model: Passes<'_>, tokens: usize) -> Result<Vec<NpuPrompt>, BackendError> {
    let pieces = pieces(model, tokens)?;
    let alone: f64 = pieces.iter().map(|(_, work)| model.machine.seconds(work).total()).sum();
    let prompt = |kernel: &Kernel| {
        let at = |conditions| {
            let (seconds, share) = together(model, kernel, &pieces, conditions);
            (tokens as f64 / seconds, gain(alone, (seconds, share)), share)
        };
        let (lowest, highest) = (at(WORST), at(BEST));
        NpuPrompt {
            tokens,
            kernel: kernel.name,
            tokens_per_second: Span { lowest: lowest.0, highest: highest.0 },
            gain: Span { lowest: lowest.1, highest: highest.1 },
            npu_share: Span { lowest: lowest.2, highest: highest.2 },
        }
    };
    Ok(KERNELS.iter().map(prompt).collect())
}

/// Forecasts what the NPU adds to the tokens per second of one sequence of `context` positions, as
/// a share of them, with the kernel that adds most. Where memory bounds the GPU it is nothing,
/// because the weights that the NPU takes are read, written and read again.
///
/// # Errors
/// Returns an error if the machine cannot run the Plan.
pub fn npu_generation(model: Passes<'_>, context: usize) -> Result<Span, BackendError> {
    let workload = Workload::decode(1, context.saturating_sub(1), model.kv);
    let token = [(workload, model.work(workload)?)];
    let alone = model.machine.seconds(&token[0].1).total();
    let best = |conditions| {
        let of = |kernel| gain(alone, together(model, kernel, &token, conditions));
        KERNELS.iter().map(of).fold(0.0, f64::max)
    };
    Ok(Span { lowest: best(WORST), highest: best(BEST) })
}

/// Returns what is gained, as a share of the GPU's speed; exactly nothing if the NPU does nothing.
fn gain(alone: f64, (seconds, npu_share): (f64, f64)) -> f64 {
    if npu_share > 0.0 { alone / seconds - 1.0 } else { 0.0 }
}

/// Returns the seconds of passes with GPU and NPU, and the NPU's share of products.
fn together(
    Passes { plan, machine, .. }: Passes<'_>,
    kernel: &Kernel,
    pieces: &[(Workload, Work)],
    conditions: Conditions,
) -> (f64, f64) {
    let (mut seconds, mut share, mut operations) = (0.0, 0.0, 0.0);
    // Products do not depend on how far a piece is from the beginning.
    let mut known: Option<((usize, usize), Splits)> = None;
    for (workload, work) in pieces {
        let key = (workload.tokens, workload.outputs);
        let splits = match known {
            Some((of, splits)) if of == key => splits,
            _ => Splits::of(plan, *workload, kernel, machine, conditions),
        };
        known = Some((key, splits));
        let rest = Work { weight_bytes: 0, product_operations: 0, ..*work };
        let rest = machine.seconds(&rest).total();
        // The parts of a product overlap in a pass as a whole, not one by one: the sum over
        // products is only used for what the NPU changes about it.
        let products = machine.seconds(work).total() - rest;
        seconds += rest + products * splits.seconds / splits.alone.max(f64::MIN_POSITIVE);
        share += splits.npu_operations;
        operations += splits.operations;
    }
    (seconds, share / f64::max(operations, 1.0))
}
