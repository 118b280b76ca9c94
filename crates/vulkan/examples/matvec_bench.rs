//! Times the matrix-vector kernels on the matrices of Gemma 3 27B in several shapes.
//!
//! `matvec_bench [--quick] [--one-row] [--small] [--format NAME] [--case TEXT]`: `--quick` tries
//! only the shapes that the tuner would, `--small` uses matrices of an eighth of the rows and
//! columns (for software devices), `--format` is q4_0 unless given, `--case` selects the products
//! whose names contain a text. The device is the best one, or the one that TRINE_TEST_VULKAN names.
//!
//! Each time is the median of ten runs of a chain of dispatches over distinct matrices, with a
//! barrier between any two, less that of a chain of half the length, so that launch and drain count
//! and submission does not. The last line is the time of all products of one token together,
//! without attention.

use std::sync::Arc;

use anyhow::{Context, Result};
use clap::Parser;
use trine_testing::bench::median;
use trine_vulkan::capabilities::DeviceKind;
use trine_vulkan::dispatch::{Dispatch, Span};
use trine_vulkan::kernels::handles::Made;
use trine_vulkan::kernels::matvec::{MatvecLaunch, MatvecShape};
use trine_vulkan::kernels::one_row::{OneRowLaunch, OneRowShape};
use trine_vulkan::kernels::operand::{Operand, OperandKind};
use trine_vulkan::kernels::product::{
    Product, ProductInput, ProductLaunch, ProductOutput, Segment,
};
use trine_vulkan::pack::{Format, Matrix};
use trine_vulkan::raw::gpu::Gpu;
use trine_vulkan::raw::memory::{Buffer, MemoryUse};
use trine_vulkan::testing::{choice, wall};
use trine_vulkan::{GpuError, open_gpu};

/// More than the size of any cache.
const DISTINCT_BYTES: u64 = 400 << 20;
const RUNS: usize = 10;

#[derive(Clone, Copy)]
enum Before {
    Nothing,
    Norm,
    NormAddNorm,
}

/// A product of a layer.
#[derive(Clone)]
struct Case {
    name: &'static str,
    rows: usize,
    columns: usize,
    width: usize,
    before: Before,
    /// Rows of the segments; empty for a gated product.
    segments: Vec<usize>,
}

#[derive(Parser)]
struct Options {
    #[arg(long)]
    quick: bool,
    #[arg(long)]
    small: bool,
    /// Whether only the kernel for one row is measured.
    #[arg(long)]
    one_row: bool,
    #[arg(long, default_value = "q4_0", value_parser = format)]
    format: Format,
    #[arg(long, default_value = "")]
    case: String,
}

fn format(name: &str) -> Result<Format, String> {
    let found = Format::ALL.into_iter().find(|format| format.name() == name);
    found.ok_or(format!("it is one of {}", Format::ALL.map(Format::name).join(", ")))
}

/// Returns the products of a layer at one row, and its widest two at more rows.
fn cases(small: bool) -> Vec<Case> {
    let part = if small { 8 } else { 1 };
    let [hidden, heads, gate] =
        [5376, 4096, 21504].map(|size: usize| (size / part).next_multiple_of(256));
    let qkv = vec![heads, heads / 2, heads / 2];
    let case = |name, rows, columns, width, before, segments| Case {
        name,
        rows,
        columns,
        width,
        before,
        segments,
    };
    let mut cases = vec![
        case("qkv, operand", 2 * heads, hidden, 1, Before::Nothing, qkv.clone()),
        case("qkv, norm", 2 * heads, hidden, 1, Before::Norm, qkv.clone()),
        case("qkv, norm add norm", 2 * heads, hidden, 1, Before::NormAddNorm, qkv),
        case("o", hidden, heads, 1, Before::Nothing, vec![hidden]),
        case("gate up, operand", 2 * gate, hidden, 1, Before::Nothing, vec![]),
        case("gate up, norm add norm", 2 * gate, hidden, 1, Before::NormAddNorm, vec![]),
        case("down", hidden, gate, 1, Before::Nothing, vec![hidden]),
        case("head, norm", 262_144 / part, hidden, 1, Before::Norm, vec![262_144 / part]),
    ];
    for width in [2, 4, 8] {
        cases.push(case("gate up, operand", 2 * gate, hidden, width, Before::Nothing, vec![]));
        cases.push(case("down", hidden, gate, width, Before::Nothing, vec![hidden]));
    }
    cases
}

/// Returns a buffer of arbitrary bytes that contain no NaN in f16 or f32.
fn filled(gpu: &Arc<Gpu>, bytes: u64) -> Result<Buffer> {
    let buffer = gpu.allocate(bytes, MemoryUse::Upload, "a matrix")?;
    let mut random = fastrand::Rng::with_seed(1);
    let chunk: Vec<u8> =
        (0..1 << 17).flat_map(|_| (random.u64(..) & 0x2FFF_2FFF_2FFF_2FFF).to_le_bytes()).collect();
    for start in (0..bytes).step_by(chunk.len()) {
        let count = (bytes - start).min(chunk.len() as u64) as usize;
        buffer.write(start, &chunk[..count]);
    }
    Ok(buffer)
}

/// All memory that the launches of a case touch.
struct Bench {
    case: Case,
    format: Format,
    matrices: Vec<(Matrix, Buffer)>,
    /// Residual stream, addition, two norms' factors, new residual stream; plain operand.
    vectors: Vec<Buffer>,
    codes: Buffer,
    scales: Buffer,
    targets: Vec<Buffer>,
    out_codes: Buffer,
    out_scales: Buffer,
    floats: Buffer,
}

impl Bench {
    fn new(gpu: &Arc<Gpu>, case: &Case, format: Format) -> Result<Self> {
        let (_, bytes) = Matrix::at(0, format, case.rows, case.columns).context("too large")?;
        let wanted =
            if gpu.capabilities().kind == DeviceKind::Processor { 1 } else { DISTINCT_BYTES };
        let copies = wanted.div_ceil(bytes).clamp(2, 64);
        let mut matrices = Vec::new();
        for _ in 0..copies {
            let memory = filled(gpu, bytes)?;
            let at = Matrix::at(memory.address(), format, case.rows, case.columns);
            matrices.push((at.context("too large")?.0, memory));
        }
        let row = |columns: usize| (4 * case.width * columns) as u64;
        let vectors = (0..6).map(|_| filled(gpu, row(case.columns))).collect::<Result<_, _>>()?;
        let fixed = OperandKind::Fixed16;
        let outputs = case.rows / 2;
        let codes = |columns: usize| filled(gpu, (case.width * fixed.code_bytes(columns)) as u64);
        let scales = |columns: usize| filled(gpu, (case.width * fixed.scale_bytes(columns)) as u64);
        Ok(Self {
            case: case.clone(),
            format,
            matrices,
            vectors,
            codes: codes(case.columns)?,
            scales: scales(case.columns)?,
            targets: case
                .segments
                .iter()
                .map(|&rows| filled(gpu, row(rows)))
                .collect::<Result<_, _>>()?,
            out_codes: codes(outputs)?,
            out_scales: scales(outputs)?,
            floats: filled(gpu, 4 * case.rows as u64)?,
        })
    }

    fn input(&self) -> ProductInput {
        let [x, added] = [0, 1].map(|index: usize| self.vectors[index].span());
        let [first, second] = [2, 3].map(|index: usize| self.vectors[index].address());
        let epsilon = 1e-6;
        match self.case.before {
            Before::Norm => ProductInput::Norm { x, weight: second, epsilon },
            Before::NormAddNorm => ProductInput::NormAddNorm {
                x,
                scale: 1.0,
                added,
                added_weight: first,
                weight: second,
                epsilon,
                x_out: Some(self.vectors[4].span()),
            },
            Before::Nothing if self.format.is_float() => ProductInput::Operand(Operand {
                kind: OperandKind::Plain,
                codes: self.vectors[5].span(),
                scales: Span { address: 0, bytes: 0 },
            }),
            Before::Nothing => ProductInput::Operand(Operand {
                kind: OperandKind::Fixed16,
                codes: self.codes.span(),
                scales: self.scales.span(),
            }),
        }
    }

    fn segments(&self) -> Vec<Segment> {
        let rows = self.case.segments.iter().zip(&self.targets);
        rows.map(|(&rows, target)| Segment { rows, target: target.span() }).collect()
    }

    fn launch(&self, index: usize, segments: &[Segment]) -> MatvecLaunch {
        let (codes, scales) = (self.out_codes.span(), self.out_scales.span());
        let operand = Operand { kind: OperandKind::Fixed16, codes, scales };
        let output = if segments.is_empty() {
            ProductOutput::Gated(Made::Operand(operand))
        } else {
            ProductOutput::segments(segments)
        };
        let matrix = self.matrices[index % self.matrices.len()].0;
        MatvecLaunch(Product { matrix, width: self.case.width, input: self.input(), output })
    }

    /// Returns the seconds of one dispatch.
    fn time(&self, gpu: &Arc<Gpu>, shape: MatvecShape) -> Result<f64> {
        self.time_of(gpu, |index, segments| {
            self.launch(index, segments).dispatch(gpu, shape, "bench", 0)
        })
    }

    /// Returns the seconds of one dispatch of the kernel for one row.
    fn time_one_row(&self, gpu: &Arc<Gpu>, shape: OneRowShape) -> Result<f64> {
        self.time_of(gpu, |index, segments| {
            self.one_row(index, segments).dispatch(gpu, shape, "bench", 0)
        })
    }

    /// Returns the same product for the kernel for one row.
    fn one_row(&self, index: usize, segments: &[Segment]) -> OneRowLaunch {
        let input = match self.input() {
            ProductInput::Operand(_) => ProductInput::Operand(Operand {
                kind: OperandKind::Plain,
                codes: self.vectors[5].span(),
                scales: Span { address: 0, bytes: 0 },
            }),
            norm => norm,
        };
        let output = if segments.is_empty() {
            ProductOutput::Gated(Made::Rows(self.floats.span()))
        } else {
            ProductOutput::segments(segments)
        };
        let matrix = self.matrices[index % self.matrices.len()].0;
        OneRowLaunch(Product { matrix, width: 1, input, output })
    }

    fn one_row_shapes(&self, gpu: &Gpu) -> Vec<OneRowShape> {
        let norm = !matches!(self.case.before, Before::Nothing);
        let mut shapes = Vec::new();
        for (wanted, each) in
            [(1024, 1), (768, 1), (512, 1), (512, 2), (384, 2), (384, 3), (256, 4), (256, 6)]
        {
            for (batch, banks) in [(2, 1), (2, 2), (4, 1), (4, 2), (8, 1)] {
                let sizes = (wanted, batch, each, banks);
                shapes.extend(OneRowShape::of(
                    gpu.capabilities(),
                    self.format,
                    self.case.columns,
                    norm,
                    sizes,
                ));
            }
        }
        let mut seen = std::collections::HashSet::new();
        shapes.retain(|shape| seen.insert(*shape));
        shapes
    }

    fn time_of(
        &self,
        gpu: &Arc<Gpu>,
        dispatch: impl Fn(usize, &[Segment]) -> Result<Dispatch, GpuError>,
    ) -> Result<f64> {
        let segments = self.segments();
        let bytes = self.launch(0, &segments).0.bytes() as f64;
        let software = gpu.capabilities().kind == DeviceKind::Processor;
        let count = if software { 1 } else { ((1.5e-3 * 4e12 / bytes) as usize).clamp(8, 256) };
        let chain = |count: usize| -> Result<Vec<Dispatch>, GpuError> {
            let dispatch = |index| dispatch(index, &segments);
            (0..count).map(dispatch).collect()
        };
        let median = |dispatches: Vec<Dispatch>| median(wall(gpu, &dispatches, RUNS));
        let (long, short) = (median(chain(2 * count)?), median(chain(count)?));
        Ok((long - short).max(1e-9) / count as f64)
    }

    /// Returns the shapes to try.
    fn shapes(&self, gpu: &Gpu, quick: bool) -> Vec<MatvecShape> {
        let segments = self.segments();
        let launch = self.launch(0, &segments);
        let mut shapes = MatvecShape::candidates(gpu.capabilities(), &launch);
        if quick {
            return shapes;
        }
        let counts: &[u32] = match self.case.before {
            Before::Nothing => &[0],
            _ => &[0, 132, 264],
        };
        let unrolls: &[u32] = if self.case.width > 2 { &[1, 2] } else { &[1, 2, 4] };
        for local in [128, 256, 512] {
            for lanes in [8, 16, 32] {
                for rows in [1, 2, 4] {
                    for &unroll in unrolls {
                        // More registers than any device offers without spilling.
                        if rows * unroll > 8 || rows * self.case.width as u32 > 32 {
                            continue;
                        }
                        for &workgroups in counts {
                            let shape = |ahead| MatvecShape {
                                local,
                                lanes,
                                rows,
                                unroll,
                                ahead,
                                workgroups,
                            };
                            shapes.extend([false, true].map(shape));
                        }
                    }
                }
            }
        }
        let mut seen = std::collections::HashSet::new();
        shapes.retain(|shape| seen.insert(*shape) && shape.fits(gpu.capabilities(), &launch));
        shapes
    }
}

/// Returns registers and spills, if the driver reports them.
fn registers(gpu: &Gpu, launch: &MatvecLaunch, shape: MatvecShape) -> String {
    let layout = launch.lay_out(gpu.capabilities(), shape, "bench");
    let Ok(layout) = layout else { return String::new() };
    let Ok(report) = gpu.report(&layout.kernel) else { return String::new() };
    let told = report.statistics.iter().filter(|(name, _)| {
        ["Register Count", "Local Memory Size", "VGPRs", "Spilled VGPRs"].contains(&name.as_str())
    });
    told.map(|(name, value)| format!(" {name} {value}")).collect()
}

/// Returns the seconds in the default shape and in the best one.
fn bench(gpu: &Arc<Gpu>, case: &Case, options: &Options) -> Result<[f64; 2]> {
    let bench = Bench::new(gpu, case, options.format)?;
    let segments = bench.segments();
    let launch = bench.launch(0, &segments);
    let bytes = launch.0.bytes() as f64;
    println!(
        "{} ({} x {}, {}), width {}: {:.1} MB",
        case.name,
        case.rows,
        case.columns,
        options.format.name(),
        case.width,
        bytes / 1e6
    );
    if case.width == 1 && !options.format.is_float() {
        let mut found = Vec::new();
        for shape in bench.one_row_shapes(gpu) {
            found.push((bench.time_one_row(gpu, shape)?, shape));
        }
        let chosen = bench.one_row(0, &segments).offer(gpu.capabilities())[0];
        found.sort_by(|a, b| a.0.total_cmp(&b.0));
        for (seconds, shape) in &found {
            let mark = if *shape == chosen { "default" } else { "" };
            let OneRowShape { lanes, teams, batch, workgroups, .. } = shape;
            println!(
                "one_row lanes {lanes:>4} teams {teams:>2} batch {batch} workgroups \
                 {workgroups:>4}  {:>8.2} us {:>7.0} GB/s {mark}",
                1e6 * seconds,
                1e-9 * bytes / seconds,
            );
        }
        if options.one_row {
            let default = found.iter().find(|(_, shape)| *shape == chosen);
            return Ok([default, found.first()].map(|time| time.map_or(f64::NAN, |time| time.0)));
        }
    }
    let mut found = Vec::new();
    for shape in bench.shapes(gpu, options.quick) {
        found.push((bench.time(gpu, shape)?, shape));
    }
    let chosen = launch.offer(gpu.capabilities())[0];
    found.sort_by(|a, b| a.0.total_cmp(&b.0));
    let most = if options.quick { found.len() } else { 12 };
    for (place, (seconds, shape)) in found.iter().enumerate() {
        if place >= most && *shape != chosen {
            continue;
        }
        let MatvecShape { local, lanes, rows, unroll, ahead, workgroups } = shape;
        let mark = if *shape == chosen { "default" } else { "" };
        println!(
            "{place:>4}  local {local:>4} lanes {lanes:>3} rows {rows} unroll {unroll} ahead \
             {ahead:5} workgroups {workgroups:>4}  {:>8.2} us {:>7.0} GB/s {mark:7}{}",
            1e6 * seconds,
            1e-9 * bytes / seconds,
            registers(gpu, &launch, *shape)
        );
    }
    let default =
        found.iter().find(|(_, shape)| *shape == chosen).map_or(f64::NAN, |found| found.0);
    Ok([default, found.first().map_or(f64::NAN, |found| found.0)])
}

/// Layers of the model.
const LAYERS: f64 = 62.0;

fn main() -> Result<()> {
    let options = Options::parse();
    let gpu = open_gpu(&choice(), None)?;
    println!("{}, {}", gpu.capabilities().name, gpu.capabilities().driver);
    let mut token = [0.0; 2];
    for case in cases(options.small)
        .iter()
        .filter(|case| case.name.contains(&options.case) && (!options.one_row || case.width == 1))
    {
        let times = bench(&gpu, case, &options)?;
        let count = match case.name {
            "qkv, norm add norm" | "o" | "gate up, norm add norm" | "down" if case.width == 1 => {
                LAYERS
            }
            "head, norm" => 1.0,
            _ => 0.0,
        };
        (0..2).for_each(|index| token[index] += count * times[index]);
    }
    for (name, seconds) in
        ["default", "best"].into_iter().zip(token).filter(|(_, time)| *time > 0.0)
    {
        println!(
            "products of a token, {name} shapes: {:.3} ms, {:.1} a second",
            1e3 * seconds,
            1.0 / seconds
        );
    }
    Ok(())
}
