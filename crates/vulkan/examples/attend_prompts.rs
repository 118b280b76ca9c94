//! Times attention of a prompt's piece on the layers of published models, in every layout that the
//! matrix units have for it.
//!
//! ```text
//! attend_prompts [--rows ROWS,...] [--case TEXT] [--seconds SECONDS] [--check]
//! ```
//!
//! Queries, keys and values are random, and in the device's memory. Each time is the median of
//! rounds that take all layouts in turn, after the device has worked for a while. TFLOP/s count
//! four operations for each element of what a row sees and each query head, so not what is masked.
//! With `--check` nothing is measured, and printed is the distance of each result from that of the
//! kernel in plain arithmetic, as norm over norm. After SECONDS no case is begun.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::Result;
use clap::Parser;
use half::f16;
use trine_model::{Ahead, Heads, KvType};
use trine_testing::bench::median;
use trine_vulkan::kernels::attention::{
    AttendDirectShape, AttendTileShape, AttendUnits, AttendWideShape, Attention, CacheSpan,
    FrameAddresses, KV_BLOCK, MatrixLaunch, TILE_ROWS, TileLaunch,
};
use trine_vulkan::kernels::handles::Made;
use trine_vulkan::raw::memory::Buffer;
use trine_vulkan::testing::{choice, download, resident, wall};
use trine_vulkan::{Gpu, open_gpu};

/// Caches of a chain of dispatches are at least of this size together.
const DISTINCT_BYTES: usize = 64 << 20;
/// Operations of a chain of dispatches, at least.
const CHAIN: f64 = 1e11;
const THREADS: usize = 16;
/// Rounds, runs of a chain in each, and seconds of work before the first one.
const ROUNDS: usize = 3;
const RUNS: usize = 3;
const WARM: f64 = 0.3;

#[derive(Parser)]
struct Options {
    #[arg(long, default_value = "2048", value_delimiter = ',')]
    rows: Vec<usize>,
    #[arg(long, default_value = "")]
    case: String,
    #[arg(long, default_value_t = 50.0)]
    seconds: f64,
    #[arg(long)]
    check: bool,
}

/// A layer: its name, query heads, key heads, size of a head, window.
type Layer = (&'static str, usize, usize, usize, Option<usize>);

const LAYERS: [Layer; 6] = [
    ("4B local", 8, 4, 256, Some(1024)),
    ("26B-A4B global", 16, 2, 512, None),
    ("E4B local", 8, 2, 256, Some(512)),
    ("E4B global", 8, 2, 512, None),
    ("26B-A4B local", 16, 8, 256, Some(1024)),
    ("4B global", 8, 4, 256, None),
];

/// Everything of a case in device memory.
struct Bed {
    gpu: Arc<Gpu>,
    attention: Attention,
    caches: Vec<(CacheSpan, Buffer)>,
    frame: FrameAddresses,
    tiles: usize,
    query: Buffer,
    target: Buffer,
    _frame: [Buffer; 3],
    operations: f64,
    /// Elements of queries and results.
    elements: usize,
}

/// Returns numbers between -1 and 1 that no compiler and no cache foresees.
fn noise(count: usize) -> impl Iterator<Item = f32> {
    let mut state = 0x9E37_79B9_u32;
    (0..count).map(move |_| {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        (state >> 8) as f32 / 8_388_608.0 - 1.0
    })
}

impl Bed {
    fn new(gpu: &Arc<Gpu>, layer: Layer, depth: usize, rows: usize) -> Self {
        let (_, query, kv, dim, window) = layer;
        let heads = Heads { query, kv, dim };
        let tile_rows = if query > kv { TILE_ROWS } else { 4 * TILE_ROWS };
        let blocks = (depth + rows).div_ceil(KV_BLOCK);
        let (mut words, mut tiles) = (vec![rows as u32, 0, 0, 0], Vec::new());
        for row in 0..rows {
            words.extend([0, (depth + row) as u32, 0, 0]);
            if row % tile_rows == 0 {
                tiles.push([row as u32, tile_rows.min(rows - row) as u32, 0, 0]);
            }
        }
        words[2] = tiles.len() as u32;
        // Neighbouring blocks of a sequence are apart, as they are after some time of use.
        let step = if blocks.is_multiple_of(7919) { 1 } else { 7919 };
        let tables: Vec<u32> = (0..blocks).map(|at| (at * step % blocks) as u32).collect();
        let frame = [resident(gpu, &words), resident(gpu, &tables), resident(gpu, &tiles)];
        let [first, second, third] = frame.each_ref().map(Buffer::address);
        let bytes = CacheSpan::bytes(KvType::F16, kv, dim, blocks) as usize;
        let halves: Vec<f16> = noise(bytes / 2).map(f16::from_f32).collect();
        let caches = (0..DISTINCT_BYTES.div_ceil(bytes).min(8)).map(|_| {
            let memory = resident(gpu, &halves);
            let span = memory.span();
            (CacheSpan { span, kind: KvType::F16, heads: kv, dim, ring_blocks: 0 }, memory)
        });
        let seen: usize = (depth..depth + rows)
            .map(|position| window.map_or(position + 1, |window| window.min(position + 1)))
            .sum();
        let queries: Vec<f32> = noise(rows * query * dim).collect();
        Self {
            gpu: gpu.clone(),
            attention: Attention { heads, scale: 0.3, window, ahead: Ahead::All, tile_rows },
            caches: caches.collect(),
            frame: FrameAddresses { frame: first, tables: second, tiles: third, picks: 0 },
            tiles: tiles.len(),
            query: resident(gpu, &queries),
            target: resident(gpu, &vec![u32::MAX; rows * query * dim]),
            _frame: frame,
            elements: rows * query * dim,
            operations: (4 * seen * query * dim) as f64,
        }
    }

    fn launch(&self, shape: AttendUnits, cache: usize) -> MatrixLaunch {
        MatrixLaunch {
            attention: self.attention,
            cache: self.caches[cache % self.caches.len()].0,
            frame: self.frame,
            tiles: self.tiles,
            query: self.query.span(),
            made: Made::Rows(self.target.span()),
            shape,
        }
    }

    /// Returns the median seconds of a dispatch.
    fn time(&self, shape: AttendUnits) -> Result<f64> {
        let chain = |count: usize| -> Result<f64> {
            let made: Result<Vec<_>, _> = (0..count)
                .map(|at| self.launch(shape, at).dispatch(&self.gpu, "rows", 0))
                .collect();
            Ok(median(wall(&self.gpu, &made?, RUNS)))
        };
        let count = (CHAIN / self.operations).clamp(1.0, 16.0) as usize;
        Ok((chain(2 * count)? - chain(count)?) / count as f64)
    }

    /// Returns the result of a launch into memory of NaN.
    fn result(&self, shape: AttendUnits) -> Result<Vec<f32>> {
        let target = resident(&self.gpu, &vec![u32::MAX; self.elements]);
        let made = Made::Rows(target.span());
        let launch = MatrixLaunch { made, ..self.launch(shape, 0) };
        wall(&self.gpu, &[launch.dispatch(&self.gpu, "rows", 0)?], 0);
        let found = download::<f32>(&self.gpu, &target);
        Ok(found.into_iter().take(self.elements).collect())
    }

    /// Compiles the kernels of several shapes at the same time.
    fn compile(&self, shapes: &[AttendUnits]) {
        let next = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    while let Some(&shape) = shapes.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let key = self.launch(shape, 0).key(self.gpu.capabilities());
                        if let Err(error) = self.gpu.kernel(&key) {
                            println!("{shape:?}: {error}");
                        }
                    }
                });
            }
        });
    }

    /// Returns the result of the kernel in plain arithmetic.
    fn plain(&self) -> Result<Vec<f32>> {
        let shape = AttendTileShape::suited(self.gpu.capabilities(), &self.attention);
        let target = resident(&self.gpu, &vec![u32::MAX; self.elements]);
        let launch = TileLaunch {
            attention: self.attention,
            cache: self.caches[0].0,
            frame: self.frame,
            tiles: self.tiles,
            query: self.query.span(),
            target: target.span(),
            shape,
        };
        wall(&self.gpu, &[launch.dispatch(&self.gpu, "rows", 0)?], 0);
        let found = download::<f32>(&self.gpu, &target);
        Ok(found.into_iter().take(self.elements).collect())
    }
}

/// Returns the shapes that are measured.
fn shapes(bed: &Bed, rows: usize) -> Vec<AttendUnits> {
    let (capabilities, kind) = (bed.gpu.capabilities(), KvType::F16);
    let suited = AttendDirectShape::suited(capabilities, &bed.attention, kind, rows);
    let near = suited.into_iter().flat_map(|suited| {
        let near = suited.neighbours(capabilities, &bed.attention, kind).into_iter();
        let spread = [(2, 2), (4, 1), (1, 8)];
        near.filter(move |shape| spread.contains(&(shape.stacked, shape.slices)))
    });
    let direct = suited.into_iter().chain(near).map(AttendUnits::Direct);
    let layouts = [(4, 1, 4, 64), (2, 1, 4, 128), (2, 1, 2, 64), (2, 1, 4, 64), (1, 2, 2, 64)];
    let wide = layouts.into_iter().flat_map(|(lefts, bands, parts, keys)| {
        let base = AttendWideShape {
            queries: (1 << bed.attention.shared().trailing_zeros()).min(16),
            lefts,
            bands,
            parts,
            keys,
            keys_ahead: 1,
            values_ahead: 1,
        };
        [
            base,
            AttendWideShape { keys_ahead: 0, ..base },
            AttendWideShape { keys_ahead: 3, ..base },
            AttendWideShape { keys_ahead: 0, values_ahead: 0, ..base },
        ]
    });
    let runs = |shape: &AttendWideShape| {
        // Less than a quarter of the registers for sums leaves the units waiting.
        shape.lefts * bed.attention.heads.dim as u32 / shape.parts >= 128
            && shape.runs(capabilities, &bed.attention, kind)
    };
    let default = AttendUnits::suited(capabilities, &bed.attention, kind, (rows, bed.tiles));
    let others = direct.chain(wide.filter(runs).map(AttendUnits::Wide));
    default.into_iter().chain(others.filter(|shape| Some(*shape) != default)).collect()
}

/// Returns the distance of `found` from `wanted`, as norm over norm.
fn distance(found: &[f32], wanted: &[f32]) -> f64 {
    let square = |value: f32| f64::from(value) * f64::from(value);
    let error: f64 = found.iter().zip(wanted).map(|(a, b)| square(a - b)).sum();
    (error / wanted.iter().map(|&value| square(value)).sum::<f64>()).sqrt()
}

fn text(shape: AttendUnits) -> String {
    match shape {
        AttendUnits::Wide(w) => format!(
            "wide {} x {} vectors, {} parts, {} keys, ahead {} {}",
            w.bands,
            16 * w.lefts,
            w.parts,
            w.keys,
            w.keys_ahead,
            w.values_ahead
        ),
        AttendUnits::Direct(d) => format!(
            "direct stacked {} slices {} shares {} lefts {}{}",
            d.stacked,
            d.slices,
            d.shares,
            d.lefts,
            if d.staged { ", staged" } else { "" }
        ),
        AttendUnits::Staged(shape) => format!("{shape:?}"),
    }
}

fn check(bed: &Bed, all: &[AttendUnits]) -> Result<()> {
    let wanted = bed.plain()?;
    for &shape in all {
        println!("{:.1e}  {}", distance(&bed.result(shape)?, &wanted), text(shape));
    }
    Ok(())
}

fn bench(bed: &Bed, all: &[AttendUnits]) -> Result<()> {
    let begin = Instant::now();
    while begin.elapsed().as_secs_f64() < WARM {
        bed.time(all[0])?;
    }
    let mut rounds = vec![Vec::new(); all.len()];
    for _ in 0..ROUNDS {
        for (&shape, times) in all.iter().zip(&mut rounds) {
            times.push(bed.time(shape)?);
        }
    }
    let mut times: Vec<_> =
        rounds.into_iter().zip(all).map(|(times, shape)| (median(times), *shape)).collect();
    times.sort_by(|a, b| a.0.total_cmp(&b.0));
    for (seconds, shape) in times {
        let (us, rate) = (seconds * 1e6, bed.operations / seconds * 1e-12);
        let mark = if shape == all[0] { '*' } else { ' ' };
        println!("{us:>9.1} us {rate:>6.1} TFLOP/s {mark} {}", text(shape));
    }
    Ok(())
}

fn main() -> Result<()> {
    let options = Options::parse();
    let start = Instant::now();
    let gpu = open_gpu(&choice(), None)?;
    println!("{}: keys and values in f16, * is the default", gpu.capabilities().name);
    for &rows in &options.rows {
        for (depth, layer) in [0, 14_336].into_iter().flat_map(|at| LAYERS.map(|one| (at, one))) {
            let (name, query, kv, dim, window) = layer;
            let case = format!("{name}, {rows} rows at {depth}");
            if !case.contains(&options.case) || start.elapsed().as_secs_f64() > options.seconds {
                continue;
            }
            let window = window.map_or(String::new(), |window| format!(", window {window}"));
            println!("{case}: heads {query}, {kv}, {dim}{window}");
            let bed = Bed::new(&gpu, layer, depth, rows);
            let all = shapes(&bed, rows);
            bed.compile(&all);
            if all.is_empty() {
                println!("    no matrix units of a known layout");
            } else if options.check {
                check(&bed, &all)?;
            } else {
                bench(&bed, &all)?;
            }
            println!("    after {:.1} s", start.elapsed().as_secs_f64());
        }
    }
    Ok(())
}
