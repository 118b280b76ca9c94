//! Times the matrix-matrix products of Gemma 3 27B, or of its vision tower, on this machine's
//! device in the shapes that it could use.
//!
//! ```text
//! matmul_bench [--quick] [--all] [--tower] [--format q4_0] [--widths 16,512]
//!              [--fragment 12,2,1,3,132] [--direct 4,4,8,264] [--floats 2,2,4,8,132]
//!              [--device NAME] [--report]
//! ```
//!
//! With `--tower` the products are those of the vision tower of Gemma 3, in the format of its
//! weights on the device. With `--quick` only the default shapes are measured, with `--all` every
//! candidate instead of the three best. Each `--fragment` adds a shape of the fragment kernel
//! (subgroups, left factors, groups, slices, workgroups), each `--direct` one of the direct kernel
//! (subgroups, left factors, right factors, workgroups), each `--floats` one of the kernels for
//! floats (subgroups along weights and along activations, left factors, right factors, workgroups).
//! Times are medians of ten launches over ten different matrices, so that no cache keeps weights
//! from one launch to the next; each includes a barrier. Gate and up write halves if they do so in
//! a model. With `--report` the driver's report on the kernels follows.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Parser;
use trine_testing::bench::{self, median};
use trine_vulkan::dispatch::Dispatch;
use trine_vulkan::kernels::handles::Made;
use trine_vulkan::kernels::matmul::{
    DirectShape, FloatsShape, FragmentShape, MatmulLaunch, MatmulShape, turned,
};
use trine_vulkan::kernels::operand::{Operand, OperandKind};
use trine_vulkan::kernels::product::{
    Product, ProductInput, ProductLaunch, ProductOutput, Segment,
};
use trine_vulkan::pack::{Arranged, Format, Matrix};
use trine_vulkan::raw::memory::{Arena, Buffer, MemoryUse};
use trine_vulkan::raw::transfer::Transfer;
use trine_vulkan::{DeviceSelector, Gpu, testing};

/// Launches of a measurement.
const LAUNCHES: usize = 10;
/// The device lowers its clocks while kernels are compiled; it takes about this long to raise them.
const WARM_UP: Duration = Duration::from_millis(2000);
/// Most measurements of a shape until one is at full clocks.
const TRIES: usize = 12;

/// A product of a layer.
struct Work {
    name: &'static str,
    rows: usize,
    columns: usize,
    gated: bool,
}

/// Products of a layer of Gemma 3 27B.
const WORKS: [Work; 4] = [
    Work { name: "qkv", rows: 8192, columns: 5376, gated: false },
    Work { name: "o", rows: 5376, columns: 4096, gated: false },
    Work { name: "gate+up", rows: 2 * 21504, columns: 5376, gated: true },
    Work { name: "down", rows: 5376, columns: 21504, gated: false },
];

/// Products of a layer of the vision tower of Gemma 3.
const TOWER: [Work; 4] = [
    Work { name: "qkv", rows: 3456, columns: 1152, gated: false },
    Work { name: "o", rows: 1152, columns: 1152, gated: false },
    Work { name: "up", rows: 4304, columns: 1152, gated: false },
    Work { name: "down", rows: 1152, columns: 4304, gated: false },
];

#[derive(Parser)]
struct Options {
    #[arg(long)]
    tower: bool,
    #[arg(long)]
    quick: bool,
    #[arg(long)]
    all: bool,
    #[arg(long)]
    report: bool,
    #[arg(
        long,
        default_value = "q4_0",
        default_value_if("tower", "true", "f16_fragments"),
        value_parser = format)]
    format: Format,
    #[arg(long, value_delimiter = ',', default_value = "8,16,32,64,128,256,512")]
    widths: Vec<usize>,
    /// Subgroups, lefts, groups, slices and workgroups of fragment shapes to measure in addition to
    /// the candidates.
    #[arg(long = "fragment", value_parser = bench::numbers::<u32, 5>)]
    fragments: Vec<[u32; 5]>,
    /// Subgroups, lefts, rights and workgroups of direct shapes to measure as well.
    #[arg(long = "direct", value_parser = bench::numbers::<u32, 4>)]
    directs: Vec<[u32; 4]>,
    /// Subgroups (two numbers), lefts, rights and workgroups of shapes for floats to measure as
    /// well.
    #[arg(long = "floats", value_parser = bench::numbers::<u32, 5>)]
    floats: Vec<[u32; 5]>,
    /// Products to measure in place of those of a layer: rows, columns, and 1 if gated.
    #[arg(long = "product", value_parser = bench::numbers::<usize, 3>)]
    products: Vec<[usize; 3]>,
    #[arg(long)]
    device: Option<String>,
}

fn format(name: &str) -> Result<Format, String> {
    let mut formats = Format::ALL.into_iter().chain([Format::F16Fragments]);
    formats.find(|format| format.name() == name).ok_or(format!("no format {name}"))
}

/// Returns random 16-bit patterns: any, or positive halves from 2^-10 to 2^-8, which are valid
/// scales.
fn pattern(bytes: usize, scales: bool) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(1);
    let words = (0..bytes.div_ceil(8)).map(|_| {
        let word = random.u64(..);
        if scales { (word & 0x07FF_07FF_07FF_07FF) + 0x1400_1400_1400_1400 } else { word }
    });
    words.flat_map(u64::to_le_bytes).collect()
}

/// Returns random matrices of a format, arranged as well if there is a kernel for that.
fn matrices(gpu: &Arc<Gpu>, format: Format, work: &Work) -> Result<Vec<(Matrix, Buffer)>> {
    const PIECE: usize = 1 << 22;
    let (codes, scales) = (pattern(PIECE, false), pattern(PIECE, true));
    let sizes = format.plane_bytes(work.rows, work.columns).expect("the sizes are small");
    let (starts, total) = sizes.layout().expect("the sizes are small");
    let (plain, _) = Matrix::at(0, format, work.rows, work.columns).expect("the sizes are small");
    let arranged = if turned::suits(format, work.gated, &[work.rows]) {
        turned::arranged_bytes(&plain)
    } else {
        0
    };
    let mut arena = Arena::new(gpu, MemoryUse::Device, (total + arranged) * LAUNCHES as u64);
    let transfer = Transfer::new(gpu);
    let mut made = Vec::new();
    for _ in 0..LAUNCHES {
        let buffer = arena.allocate(total + arranged, "a matrix")?;
        let planes = [
            (starts.codes, sizes.codes, &codes),
            (starts.high, sizes.high, &codes),
            (starts.scales, sizes.scales, &scales),
            (starts.supers, sizes.supers, &scales),
        ];
        for (start, bytes, source) in planes {
            for at in (0..bytes).step_by(PIECE) {
                let length = (bytes - at).min(PIECE as u64) as usize;
                transfer.write(&buffer, start + at, &source[..length])?;
            }
        }
        let matrix = Matrix::at(buffer.address(), format, work.rows, work.columns);
        let (matrix, _) = matrix.expect("the sizes are small");
        let address = buffer.address() + total;
        let arranged = (arranged > 0).then_some(Arranged { address, is_gated: work.gated });
        made.push((Matrix { arranged, ..matrix }, buffer));
    }
    transfer.finish()?;
    if arranged > 0 {
        let arrange = |(matrix, _): &(Matrix, Buffer)| {
            matrix.arranged.map(|arranged| turned::arrange(gpu, matrix, arranged, work.name))
        };
        let dispatches = made.iter().filter_map(arrange).collect::<Result<Vec<_>, _>>()?;
        let seconds = median(testing::timed(gpu, &dispatches));
        println!("{} arranged in {:.1} us", work.name, seconds * 1e6);
    }
    Ok(made)
}

/// Returns memory of a job's activations. It is allocated in large blocks, as the engine's is:
/// products with operands in small allocations of their own took up to five times as long on an
/// H200.
fn filled(gpu: &Arc<Gpu>, arena: &mut Arena, bytes: &[u8]) -> Result<Buffer> {
    let buffer = arena.allocate(bytes.len() as u64, "activations")?;
    let transfer = Transfer::new(gpu);
    transfer.write(&buffer, 0, bytes)?;
    transfer.finish()?;
    Ok(buffer)
}

/// An operand of random halves, fixed-point numbers or floats.
fn operand(
    gpu: &Arc<Gpu>,
    arena: &mut Arena,
    kind: OperandKind,
    rows: usize,
    columns: usize,
) -> Result<(Operand, [Buffer; 2])> {
    let codes = filled(gpu, arena, &pattern(rows * kind.code_bytes(columns), true))?;
    let scales = vec![1.0_f32; rows * kind.scale_bytes(columns).max(4) / 4];
    let scales = filled(gpu, arena, bytemuck::cast_slice(&scales))?;
    Ok((Operand { kind, codes: codes.span(), scales: scales.span() }, [codes, scales]))
}

fn describe(shape: &MatmulShape) -> String {
    match shape {
        MatmulShape::Matrix(shape) => format!(
            "tile {}x{} step {} part {}x{} slices {} stages {} depth {} workgroups {} n {}",
            shape.tile.0,
            shape.tile.1,
            shape.step,
            shape.part.0,
            shape.part.1,
            shape.slices,
            shape.stages,
            shape.depth,
            shape.workgroups,
            shape.instruction.n
        ),
        MatmulShape::Fragment(shape) => format!(
            "fragment subgroups {} lefts {} rights {} groups {} slices {} workgroups {}",
            shape.subgroups,
            shape.lefts,
            shape.rights,
            shape.groups,
            shape.slices,
            shape.workgroups
        ),
        MatmulShape::Direct(shape) => format!(
            "direct subgroups {} lefts {} rights {} workgroups {}",
            shape.subgroups, shape.lefts, shape.rights, shape.workgroups
        ),
        MatmulShape::Turned(shape) => format!(
            "turned subgroups {}x{} workgroups {}",
            shape.subgroups.0, shape.subgroups.1, shape.workgroups
        ),
        MatmulShape::Floats(shape) => format!(
            "floats subgroups {}x{} lefts {} rights {} workgroups {}",
            shape.subgroups.0, shape.subgroups.1, shape.lefts, shape.rights, shape.workgroups
        ),
        MatmulShape::Resident(shape) => format!(
            "resident subgroups {} groups {} parts {} workgroups {}",
            shape.subgroups, shape.groups, shape.parts, shape.workgroups
        ),
        MatmulShape::Tile(shape) => format!(
            "tile {}x{} step {} part {}x{}",
            shape.tile.0, shape.tile.1, shape.step, shape.part.0, shape.part.1
        ),
    }
}

/// A product at a width in all its shapes, compiled.
struct Job<'a> {
    work: &'a Work,
    width: usize,
    /// Each shape's launches, one for each matrix.
    shapes: Vec<(MatmulShape, Vec<Dispatch>)>,
    _memory: Vec<Buffer>,
}

fn prepare<'a>(
    gpu: &Arc<Gpu>,
    options: &Options,
    work: &'a Work,
    width: usize,
    matrices: &[(Matrix, Buffer)],
    arena: &mut Arena,
) -> Result<Job<'a>> {
    let kind = MatmulShape::operand_for(gpu.capabilities(), options.format, width);
    let (operand, memory) = operand(gpu, arena, kind, width.next_multiple_of(64), work.columns)?;
    let outputs = if work.gated { work.rows / 2 } else { work.rows };
    let target = arena.allocate((4 * width.next_multiple_of(64) * outputs) as u64, "outputs")?;
    let factors = arena.allocate((4 * width) as u64, "factors of outputs")?;
    let segments = [Segment { rows: outputs, target: target.span() }];
    let output = match (work.gated, kind) {
        (true, OperandKind::Halves | OperandKind::Fragments) => ProductOutput::GatedHalves {
            operand: Operand { kind, codes: target.span(), scales: factors.span() },
            unit: 1.0,
        },
        (true, _) => ProductOutput::Gated(Made::Rows(target.span())),
        (false, _) => ProductOutput::segments(&segments),
    };
    let input = ProductInput::Operand(operand);
    let launch = |matrix| {
        let product = Product { matrix, width, input, output };
        MatmulLaunch { product, scratch: None }
    };
    let first = launch(matrices[0].0);
    let mut shapes = MatmulShape::candidates(gpu.capabilities(), &first);
    shapes.truncate(if options.quick { 1 } else { usize::MAX });
    let rights = (width as u32).div_ceil(16) * 2;
    let fragment = |&[subgroups, lefts, groups, slices, workgroups]: &[u32; 5]| {
        let shape = FragmentShape { subgroups, lefts, rights, groups, slices, workgroups };
        MatmulShape::Fragment(shape)
    };
    let direct = |&[subgroups, lefts, rights, workgroups]: &[u32; 4]| {
        MatmulShape::Direct(DirectShape { subgroups, lefts, rights, workgroups })
    };
    let floats = |&[down, across, lefts, rights, workgroups]: &[u32; 5]| {
        let subgroups = (down, across);
        MatmulShape::Floats(FloatsShape { subgroups, lefts, rights, workgroups })
    };
    let fragments = options.fragments.iter().map(fragment);
    let floats = options.floats.iter().map(floats);
    for shape in fragments.chain(options.directs.iter().map(direct)).chain(floats) {
        if shape.operand(options.format) == kind
            && shape.fits(gpu.capabilities(), &first)
            && !shapes.contains(&shape)
        {
            shapes.push(shape);
        }
    }
    let needed = shapes.iter().map(|shape| first.scratch_bytes(shape)).max().unwrap_or(0);
    let scratch = filled(gpu, arena, &vec![0_u8; needed.max(4) as usize])?;
    let compile = |shape: MatmulShape| {
        let dispatches = matrices.iter().map(|(matrix, _)| {
            let launch = MatmulLaunch { scratch: Some(scratch.span()), ..launch(*matrix) };
            launch.dispatch(gpu, shape, work.name, 0)
        });
        Ok((shape, dispatches.collect::<Result<Vec<_>, _>>()?))
    };
    let shapes = shapes.into_iter().map(compile).collect::<Result<Vec<_>>>()?;
    let [codes, scales] = memory;
    Ok(Job { work, width, shapes, _memory: vec![codes, scales, target, factors, scratch] })
}

/// Measures at the device's full clocks: a reference launch runs before and after what is measured,
/// and the measurement is repeated until the reference is as quick as its quickest run.
struct Clock<'a> {
    gpu: &'a Arc<Gpu>,
    reference: &'a [Dispatch],
    quickest: f64,
}

impl Clock<'_> {
    fn warm_up(&mut self) {
        let start = Instant::now();
        let chain = self.reference.repeat_to(40 * LAUNCHES);
        while start.elapsed() < WARM_UP {
            let times = testing::timed(self.gpu, &chain);
            self.quickest = self.quickest.min(median(times));
        }
    }

    /// Returns the seconds of a launch, and the reference's seconds over its quickest: 1 at full
    /// clocks.
    fn measure(&mut self, dispatches: &[Dispatch]) -> (f64, f64) {
        let mut best = (f64::NAN, f64::INFINITY);
        for _ in 0..TRIES {
            let reference = self.reference.repeat_to(LAUNCHES);
            let chain = [&reference, dispatches, dispatches, &reference].concat();
            let times = testing::timed(self.gpu, &chain);
            let end = times.len() - LAUNCHES;
            let around = median(times[..LAUNCHES].to_vec()).max(median(times[end..].to_vec()));
            self.quickest = self.quickest.min(around);
            let slow = around / self.quickest;
            if slow < best.1 {
                best = (median(times[2 * LAUNCHES..end].to_vec()), slow);
            }
            if slow < 1.03 {
                break;
            }
        }
        best
    }
}

trait RepeatTo {
    /// Returns `count` items by repeating the given ones.
    fn repeat_to(&self, count: usize) -> Vec<Dispatch>;
}

impl RepeatTo for [Dispatch] {
    fn repeat_to(&self, count: usize) -> Vec<Dispatch> {
        self.iter().cycle().take(count).cloned().collect()
    }
}

/// Prints a job's shapes, the quickest first. Returns the seconds of the best.
fn print(options: &Options, job: &Job<'_>, mut measured: Vec<(f64, f64, MatmulShape)>) -> f64 {
    let default = measured.first().map(|(_, _, shape)| *shape);
    measured.sort_by(|a, b| a.0.total_cmp(&b.0));
    let work = job.work;
    let row = options.format.row_bytes(work.columns);
    let bytes = (row.codes + row.high + row.scales + row.supers) as f64 * work.rows as f64;
    let operations = 2.0 * (work.rows * work.columns * job.width) as f64;
    for (place, (seconds, slow, shape)) in measured.iter().enumerate() {
        let is_default = Some(*shape) == default;
        if !options.all && place >= 3 && !is_default {
            continue;
        }
        println!(
            "{:8} {:>5} {:>9.1} {:>8.1} {:>7.0} {:>5.2} {} {}",
            work.name,
            job.width,
            seconds * 1e6,
            operations / seconds * 1e-12,
            bytes / seconds * 1e-9,
            slow,
            if is_default { "*" } else { " " },
            describe(shape)
        );
    }
    measured.first().map_or(f64::NAN, |(seconds, _, _)| *seconds)
}

fn main() -> Result<()> {
    let options = &Options::parse();
    let device = options.device.clone().map_or(DeviceSelector::Any, DeviceSelector::Named);
    let gpu = trine_vulkan::open_gpu(&device, None)?;
    println!("{}, {}; * is the default", gpu.capabilities().name, options.format.name());
    let mut made = Vec::new();
    let named: Vec<Work> = options
        .products
        .iter()
        .map(|&[rows, columns, gated]| Work { name: "product", rows, columns, gated: gated != 0 })
        .collect();
    for work in match (options.tower, &named[..]) {
        (true, _) => &TOWER,
        (false, []) => &WORKS[..],
        (false, named) => named,
    } {
        made.push((work, matrices(&gpu, options.format, work)?));
    }
    let mut jobs = Vec::new();
    let mut arena = Arena::new(&gpu, MemoryUse::Device, 1 << 30);
    for (work, matrices) in &made {
        for &width in &options.widths {
            jobs.push(prepare(&gpu, options, work, width, matrices, &mut arena)?);
        }
    }
    let Some((_, reference)) = jobs.first().and_then(|job| job.shapes.first()) else {
        return Ok(());
    };
    let mut clock = Clock { gpu: &gpu, reference, quickest: f64::INFINITY };
    clock.warm_up();
    println!(
        "{:8} {:>5} {:>9} {:>8} {:>7} {:>5}   shape",
        "product", "rows", "us", "TFLOP/s", "GB/s", "clock"
    );
    let mut totals = vec![0.0; options.widths.len()];
    for (index, job) in jobs.iter().enumerate() {
        let measured = job.shapes.iter().map(|(shape, dispatches)| {
            let (seconds, slow) = clock.measure(dispatches);
            (seconds, slow, *shape)
        });
        let measured = measured.collect();
        totals[index % options.widths.len()] += print(options, job, measured);
    }
    for (total, width) in totals.iter().zip(&options.widths) {
        println!("a layer's products, {width} rows: {:.1} us at best", total * 1e6);
    }
    if options.report {
        for key in gpu.kernels() {
            let statistics = gpu.report(&key)?.statistics;
            let told: Vec<String> =
                statistics.iter().map(|(name, value)| format!("{name} {value}")).collect();
            println!("{} {:?}: {}", key.shader.0, key.constants, told.join(", "));
        }
    }
    Ok(())
}
