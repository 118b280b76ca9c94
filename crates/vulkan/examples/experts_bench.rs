//! Times the products with experts of a layer of Gemma 4 26B-A4B in several layouts.
//!
//! ```text
//! experts_bench [--rows 64,128,512] [--format q4_0] [--skew] [--sweep]
//! ```
//!
//! Each row chooses 8 of 128 experts at random; with `--skew` some experts are chosen more often.
//! The kernel of few rows is compared with matrix units, with groups of each size and in each
//! shape, after rows in f32 or in halves were gathered. Times are medians of [`RUNS`] runs with a
//! barrier between any two launches, and include sorting and conversions. GB/s counts the matrices
//! of the chosen experts once, TFLOP/s two operations for each of their weights and each entry. The
//! device is the best one, or the one that `TRINE_TEST_VULKAN` names.
//!
//! With `--sweep` each product runs in every shape of a grid, with groups of several sizes, from 9
//! rows on also on matrix units; the best of each are printed. A run chooses other experts than the
//! one before, so that no cache of the device holds their matrices.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Parser;
use trine_testing::bench::median;
use trine_vulkan::dispatch::Dispatch;
use trine_vulkan::kernels::experts::product::{ExpertsLaunch, ExpertsOutput};
use trine_vulkan::kernels::experts::{GatherLaunch, Grouping, SortLaunch};
use trine_vulkan::kernels::handles::{Extent, Made};
use trine_vulkan::kernels::matmul::MatmulShape;
use trine_vulkan::kernels::matvec::MatvecShape;
use trine_vulkan::kernels::operand::{Operand, OperandKind};
use trine_vulkan::kernels::rows::{RowLimits, RowWork, RowsLaunch};
use trine_vulkan::pack::{Format, Matrix};
use trine_vulkan::raw::memory::{Arena, Buffer, MemoryUse};
use trine_vulkan::raw::transfer::Transfer;
use trine_vulkan::testing::{choice, timed, upload};
use trine_vulkan::{Gpu, GpuError, open_gpu};

const EXPERTS: usize = 128;
const USED: usize = 8;
const HIDDEN: usize = 2816;
const WIDTH: usize = 704;
const RUNS: usize = 9;
/// The device lowers its clocks while kernels are compiled; it takes about this long to raise them.
const WARM_UP: Duration = Duration::from_millis(1500);
/// How often all layouts are measured in turn.
const ROUNDS: usize = 2;
/// Launches before those that the sweep measures.
const WARM_LAUNCHES: usize = 2000;
/// Threads that compile kernels of the sweep.
const COMPILERS: usize = 12;
/// Shapes that it prints.
const BEST: usize = 10;
const PIECE: usize = 16 << 20;

#[derive(Parser)]
struct Options {
    #[arg(long, value_delimiter = ',', default_value = "64,128,512")]
    rows: Vec<usize>,
    #[arg(long, default_value = "q4_0", value_parser = format)]
    format: Format,
    #[arg(long)]
    skew: bool,
    #[arg(long)]
    sweep: bool,
}

fn format(name: &str) -> Result<Format, String> {
    let mut all = Format::ALL.into_iter().filter(|format| !format.is_float());
    all.find(|format| format.name() == name).ok_or(format!("no format {name}"))
}

/// Returns the numbers of the experts of each row.
fn choose(rows: usize, skew: bool, seed: u64) -> Vec<f32> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut chosen = Vec::new();
    for _ in 0..rows {
        let mut own = Vec::new();
        while own.len() < USED {
            let share = random.f64().powi(if skew { 2 } else { 1 });
            let expert = (share * EXPERTS as f64) as usize;
            if !own.contains(&expert) {
                own.push(expert);
            }
        }
        chosen.extend(own.into_iter().map(|expert| expert as f32));
    }
    chosen
}

/// Memory of a measurement.
struct Bed {
    gpu: Arc<Gpu>,
    rows: usize,
    gate_up: Matrix,
    down: Matrix,
    chosen: Buffer,
    /// The number of each expert, f32.
    every: Buffer,
    /// A number of rows that no launch has.
    plenty: Buffer,
    count: Buffer,
    input: Buffer,
    /// Codes and scales of the same in halves.
    halves: [Buffer; 2],
    sorted: Buffer,
    /// Codes and scales of the operands of both products.
    operands: [[Buffer; 2]; 2],
    gated: Buffer,
    parts: Buffer,
    _weights: Vec<Buffer>,
}

/// Returns the bytes of a matrix.
fn bytes_in(format: Format, rows: usize, columns: usize) -> u64 {
    let layout = format.plane_bytes(rows, columns).and_then(|sizes| sizes.layout());
    layout.expect("sizes of a matrix").1
}

/// Returns a matrix with some weights.
fn matrix(
    gpu: &Arc<Gpu>,
    format: Format,
    rows: usize,
    columns: usize,
    all: &mut Vec<Buffer>,
) -> Result<Matrix> {
    let total = bytes_in(format, rows, columns);
    let mut arena = Arena::new(gpu, MemoryUse::Device, total);
    let buffer = arena.allocate(total, "a matrix")?;
    // Scales of 2^-4; codes of any kind.
    let pattern: Vec<u8> = (0..PIECE).map(|at| [0x00, 0x2C][at % 2]).collect();
    let transfer = Transfer::new(gpu);
    for start in (0..total).step_by(PIECE) {
        let bytes = &pattern[..PIECE.min((total - start) as usize)];
        transfer.write(&buffer, start, bytes)?;
    }
    transfer.finish()?;
    let (matrix, _) = Matrix::at(buffer.address(), format, rows, columns).expect("a matrix");
    all.push(buffer);
    Ok(matrix)
}

impl Bed {
    fn new(gpu: &Arc<Gpu>, format: Format, most: usize) -> Result<Self> {
        let mut weights = Vec::new();
        let gate_up = matrix(gpu, format, EXPERTS * 2 * WIDTH, HIDDEN, &mut weights)?;
        let down = matrix(gpu, format, EXPERTS * HIDDEN, WIDTH, &mut weights)?;
        // In large blocks, as the engine's values are.
        let mut arena = Arena::new(gpu, MemoryUse::Device, 1 << 30);
        let mut device = |bytes: usize| arena.allocate(bytes as u64, "values");
        let entries = most * USED;
        let places = (entries + EXPERTS * 63).next_multiple_of(64);
        let kind = OperandKind::Fixed16;
        let mut operand = |rows: usize, columns: usize| -> Result<_> {
            let bytes = rows * kind.code_bytes(columns);
            Ok([device(bytes)?, device(rows * kind.scale_bytes(columns))?])
        };
        let operands = [operand(places, HIDDEN)?, operand(places, WIDTH)?];
        let halves = operand(most, HIDDEN)?;
        let values: Vec<f32> = (0..most * HIDDEN).map(|at| (at % 13) as f32 - 6.0).collect();
        Ok(Self {
            gpu: gpu.clone(),
            rows: 0,
            gate_up,
            down,
            chosen: upload(gpu, &vec![0.0_f32; entries]),
            every: upload(gpu, &(0..EXPERTS).map(|it| it as f32).collect::<Vec<_>>()),
            plenty: upload(gpu, &[EXPERTS as u32]),
            count: upload(gpu, &[0_u32]),
            input: upload(gpu, &values),
            halves,
            sorted: device(64 * places)?,
            operands,
            gated: device(4 * entries * WIDTH)?,
            parts: device(4 * entries * HIDDEN)?,
            _weights: weights,
        })
    }

    fn operand(&self, product: usize, kind: OperandKind) -> Operand {
        let [codes, scales] = &self.operands[product];
        Operand { kind, codes: codes.span(), scales: scales.span() }
    }

    fn sort(&self, grouping: Grouping) -> Result<Dispatch, GpuError> {
        let launch = SortLaunch {
            grouping,
            chosen: self.chosen.span(),
            sorted: self.sorted.span(),
            extent: self.extent(USED),
        };
        launch.dispatch(&self.gpu, "sort", 0)
    }

    /// Returns the extent of rows with this number of columns.
    fn extent(&self, columns: usize) -> Extent {
        Extent { columns, rows: self.rows, row_count: self.count.address() }
    }

    /// Returns the launches of both products.
    fn products(&self, grouping: Grouping, kind: OperandKind) -> [ExpertsLaunch; 2] {
        let fixed = kind == OperandKind::Fixed16;
        let output = ExpertsOutput::Gated {
            split: WIDTH,
            made: match fixed {
                true => Made::Operand(self.operand(1, kind)),
                false => Made::Rows(self.gated.span()),
            },
        };
        let gated = ExpertsLaunch {
            matrix: self.gate_up,
            first: 0,
            rows: WIDTH,
            step: 2 * WIDTH,
            grouping,
            order: if grouping.is_sorted() { self.sorted.span() } else { self.chosen.span() },
            input: self.operand(0, kind),
            shared: USED,
            used: USED,
            extent: self.extent(HIDDEN),
            output,
        };
        let down = ExpertsLaunch {
            matrix: self.down,
            rows: HIDDEN,
            step: HIDDEN,
            input: self.operand(1, kind),
            shared: 1,
            output: ExpertsOutput::Rows(self.parts.span()),
            ..gated
        };
        [gated, down]
    }

    /// Returns the launches of a layer with the kernel of few rows, in each of its shapes.
    fn few(&self) -> Result<Vec<(String, Vec<Dispatch>)>> {
        let capabilities = self.gpu.capabilities();
        let grouping = Grouping::suited(capabilities.kind, self.rows, USED, EXPERTS);
        let products = self.products(grouping, OperandKind::Fixed16);
        let [gated, down] = products.map(|product| product.shapes_of_few(capabilities));
        let layout = |index: usize| {
            let shapes = [gated[index % gated.len()], down[index % down.len()]];
            let name = format!("few rows, {:?} and {:?}", shapes[0], shapes[1]);
            Ok((name, self.few_as(grouping, shapes)?))
        };
        (0..gated.len().max(down.len())).map(layout).collect()
    }

    /// Returns the same with both products in a shape of their own.
    fn few_as(&self, grouping: Grouping, shapes: [MatvecShape; 2]) -> Result<Vec<Dispatch>> {
        let kind = OperandKind::Fixed16;
        let [gated, down] = self.products(grouping, kind);
        let mut launches = vec![
            self.convert(self.operand(0, kind))?,
            gated.dispatch_as(&self.gpu, shapes[0], "gated", 0)?,
            down.dispatch_as(&self.gpu, shapes[1], "down", 0)?,
        ];
        if grouping.is_sorted() {
            launches.insert(0, self.sort(grouping)?);
        }
        Ok(launches)
    }

    /// Returns a launch that reads one product's matrices of all experts.
    fn flush(&self, product: usize) -> Result<Dispatch, GpuError> {
        let grouping =
            Grouping { entries: EXPERTS, experts: EXPERTS, columns: 1, is_padded: false };
        let mut launch = self.products(grouping, OperandKind::Fixed16)[product];
        launch.order = self.every.span();
        launch.extent.row_count = self.plenty.address();
        launch.dispatch(&self.gpu, "flush", 0)
    }

    fn convert(&self, operand: Operand) -> Result<Dispatch, GpuError> {
        let launch = RowsLaunch {
            work: RowWork::Convert { parts: 1 },
            source: self.input.span(),
            epsilon: 0.0,
            within: RowLimits::NONE,
            made: Some(Made::Operand(operand)),
            extent: self.extent(HIDDEN),
        };
        launch.dispatch(&self.gpu, "convert", 0)
    }

    fn gather(
        &self,
        grouping: Grouping,
        source: Operand,
        product: usize,
        kind: OperandKind,
    ) -> GatherLaunch {
        GatherLaunch {
            grouping,
            sorted: self.sorted.span(),
            source,
            shared: [USED, 1][product],
            columns: [HIDDEN, WIDTH][product],
            operand: self.operand(product, kind),
        }
    }

    /// Returns the launches of a layer on matrix units, both products in a shape of their own, from
    /// rows in f32 or in halves.
    fn units(
        &self,
        grouping: Grouping,
        kind: OperandKind,
        is_f32: bool,
        shapes: [&MatmulShape; 2],
    ) -> Result<Vec<Dispatch>> {
        let [gated, down] = self.products(grouping, kind);
        let [codes, scales] = &self.halves;
        let halves =
            Operand { kind: OperandKind::Halves, codes: codes.span(), scales: scales.span() };
        let source = if is_f32 { Operand::plain(self.input.span()) } else { halves };
        let entries = Operand::plain(self.gated.span());
        let mut launches = vec![
            self.sort(grouping)?,
            self.gather(grouping, source, 0, kind).dispatch(&self.gpu, "gather", 0)?,
            gated.dispatch_on_units(&self.gpu, shapes[0], "gated", 0)?,
            self.gather(grouping, entries, 1, kind).dispatch(&self.gpu, "gather entries", 0)?,
            down.dispatch_on_units(&self.gpu, shapes[1], "down", 0)?,
        ];
        if !is_f32 {
            launches.insert(1, self.convert(halves)?);
        }
        Ok(launches)
    }
}

/// Returns the shapes of the sweep.
fn grid() -> Vec<MatvecShape> {
    let mut shapes = Vec::new();
    for local in [64, 128, 256, 512] {
        for lanes in [4, 8, 16, 32] {
            for (rows, unroll) in [(2, 1), (2, 2), (2, 3), (4, 1), (4, 2), (8, 1)] {
                for ahead in [false, true] {
                    shapes.push(MatvecShape { local, lanes, rows, unroll, ahead, workgroups: 0 });
                }
            }
        }
    }
    shapes
}

/// Returns the launches of a product in every shape that fits.
fn every_shape(gpu: &Arc<Gpu>, launch: &ExpertsLaunch) -> Result<Vec<(String, Dispatch)>> {
    let capabilities = gpu.capabilities();
    if launch.grouping.is_padded {
        let shapes = launch.shapes_on_units(capabilities);
        let one = |shape: &MatmulShape| {
            let dispatch = launch.dispatch_on_units(gpu, shape, "product", 0)?;
            Ok((format!("{shape:?}"), dispatch))
        };
        return shapes.iter().map(one).collect();
    }
    let usual = launch.shapes_of_few(capabilities).first().copied();
    let shapes: Vec<_> = grid().into_iter().filter(|it| launch.fits(*it, capabilities)).collect();
    let one = |shape: &MatvecShape| {
        let note = if usual == Some(*shape) { " (the kernel's first)" } else { "" };
        let dispatch = launch.dispatch_as(gpu, *shape, "product", 0)?;
        Ok((format!("{shape:?}{note}"), dispatch))
    };
    let made: Result<Vec<Vec<_>>> = std::thread::scope(|scope| {
        let make = |shapes: &[MatvecShape]| shapes.iter().map(one).collect::<Result<Vec<_>, _>>();
        let parts = shapes.chunks(shapes.len().div_ceil(COMPILERS).max(1));
        let threads: Vec<_> = parts.map(|shapes| scope.spawn(move || make(shapes))).collect();
        threads.into_iter().map(|it| it.join().expect("a compiler thread ends")).collect()
    });
    Ok(made?.into_iter().flatten().collect())
}

/// Prints the best shapes of both products for some rows.
fn sweep(bed: &mut Bed, rows: usize, skew: bool) -> Result<()> {
    bed.rows = rows;
    bed.count.write(0, &(rows as u32).to_ne_bytes());
    let widths: &[(usize, bool)] = match rows {
        1 => &[(1, false)],
        2..=8 => &[(1, false), (2, false), (4, false)],
        _ => &[(2, false), (4, false), (8, false), (16, true), (32, true)],
    };
    for &(columns, is_padded) in widths {
        let grouping = Grouping { entries: rows * USED, experts: EXPERTS, columns, is_padded };
        let kind = match is_padded {
            true => {
                MatmulShape::operand_for(bed.gpu.capabilities(), bed.gate_up.format, usize::MAX)
            }
            false => OperandKind::Fixed16,
        };
        for (product, launch) in bed.products(grouping, kind).iter().enumerate() {
            let made = every_shape(&bed.gpu, launch)?;
            // The other product's matrices leave none of this one's in a cache. They are also read
            // for long enough that the device raises its clocks.
            let flush = bed.flush(1 - product)?;
            let mut all = vec![flush.clone(); WARM_LAUNCHES];
            for (_, dispatch) in &made {
                all.extend([flush.clone(), dispatch.clone()]);
            }
            let mut times = vec![Vec::new(); made.len()];
            let mut busy = 0;
            for run in 0..RUNS {
                let chosen = choose(rows, skew, run as u64);
                busy += chosen.iter().map(|x| x.to_bits()).collect::<HashSet<_>>().len();
                bed.chosen.write(0, bytes_of(&chosen));
                if grouping.is_sorted() {
                    timed(&bed.gpu, &[bed.sort(grouping)?]);
                }
                let seconds = timed(&bed.gpu, &all);
                for (times, pair) in times.iter_mut().zip(seconds[WARM_LAUNCHES..].chunks(2)) {
                    times.push(pair[1]);
                }
            }
            let matrix = [&bed.gate_up, &bed.down][product];
            let share = busy as f64 / (RUNS * EXPERTS) as f64;
            let bytes = share * bytes_in(matrix.format, matrix.rows, matrix.columns) as f64;
            let on = if is_padded { " on matrix units" } else { "" };
            println!("{rows} rows, groups of {columns}{on}, {}:", ["gate and up", "down"][product]);
            let mut order: Vec<_> = times.into_iter().map(median).zip(&made).collect();
            order.sort_by(|a, b| a.0.total_cmp(&b.0));
            for (place, (seconds, (name, _))) in order.iter().enumerate() {
                if place < BEST || name.ends_with(')') {
                    let [us, rate] = [seconds * 1e6, bytes / seconds * 1e-9];
                    println!("  {us:>8.1} us {rate:>5.0} GB/s {name}");
                }
            }
        }
    }
    Ok(())
}

/// Prints the times of the launches of a layer.
fn report(bed: &Bed, name: &str, dispatches: &[Dispatch], facts: (f64, f64)) {
    let mut all: Vec<Vec<f64>> = (0..RUNS).map(|_| timed(&bed.gpu, dispatches)).collect();
    let total = |times: &Vec<f64>| times.iter().sum::<f64>();
    all.sort_by(|a, b| total(a).total_cmp(&total(b)));
    let times = &all[RUNS / 2];
    let parts: Vec<String> = dispatches
        .iter()
        .zip(times)
        .map(|(dispatch, seconds)| format!("{} {:.1}", dispatch.label, seconds * 1e6))
        .collect();
    let (bytes, operations) = facts;
    let sum = total(times);
    println!(
        "  {:>8.1} us {:>5.0} GB/s {:>6.1} TFLOP/s  {name}: {}",
        sum * 1e6,
        bytes / sum * 1e-9,
        operations / sum * 1e-12,
        parts.join(", ")
    );
}

fn main() -> Result<()> {
    let options = Options::parse();
    let gpu = open_gpu(&choice(), None)?;
    println!("{}: {}", gpu.capabilities().name, options.format.name());
    let most = options.rows.iter().copied().max().unwrap_or(1).max(EXPERTS / USED);
    let mut bed = Bed::new(&gpu, options.format, most)?;
    for &rows in options.rows.iter().filter(|_| options.sweep) {
        sweep(&mut bed, rows, options.skew)?;
    }
    for &rows in options.rows.iter().filter(|_| !options.sweep) {
        let chosen = choose(rows, options.skew, 0);
        bed.chosen.write(0, bytes_of(&chosen));
        bed.count.write(0, &(rows as u32).to_ne_bytes());
        bed.rows = rows;
        let busy = chosen.iter().map(|x| x.to_bits()).collect::<HashSet<_>>().len();
        let bytes = busy as f64 / EXPERTS as f64
            * [&bed.gate_up, &bed.down]
                .map(|it| bytes_in(options.format, it.rows, it.columns) as f64)
                .iter()
                .sum::<f64>();
        let operations = 2.0 * (chosen.len() * 3 * HIDDEN * WIDTH) as f64;
        println!("{rows} rows, {busy} experts");
        let mut layouts = bed.few()?;
        let kind = MatmulShape::operand_for(gpu.capabilities(), options.format, usize::MAX);
        for columns in [16, 32, 64] {
            let entries = rows * USED;
            let grouping = Grouping { entries, experts: EXPERTS, columns, is_padded: true };
            let [gated, down] = bed.products(grouping, kind);
            let [gated, down] =
                [gated, down].map(|launch| launch.shapes_on_units(gpu.capabilities()));
            for (first, second) in gated.iter().zip(&down) {
                for (is_f32, form) in [(true, "f32"), (false, "halves")] {
                    let units = bed.units(grouping, kind, is_f32, [first, second])?;
                    layouts.push((format!("groups of {columns} from {form}, {first:?}"), units));
                }
            }
        }
        let start = Instant::now();
        while start.elapsed() < WARM_UP {
            timed(&gpu, &layouts[0].1);
        }
        for _ in 0..ROUNDS {
            for (name, dispatches) in &layouts {
                report(&bed, name, dispatches, (bytes, operations));
            }
        }
    }
    Ok(())
}

/// Returns the bytes of some numbers.
fn bytes_of(values: &[f32]) -> &[u8] {
    bytemuck::cast_slice(values)
}
