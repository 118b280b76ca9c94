//! Times attention on the shapes of Gemma 3 27B in several layouts.
//!
//! ```text
//! attend_bench [--quick] [--direct] [--small] [--fused] [--report] [--kv f32|f16|int8] [--heads QUERY,KV,DIM]
//!              [--case TEXT] [--layout LOCAL,LANES,UNROLL,QUERIES,SPLITS,ALONE,LEAST,ELEMENTS]...
//! ```
//!
//! Shapes around the default one are searched. With `--layout` the named ones are measured together
//! with the default, with `--quick` only the default, and with `--direct` all layouts of the kernel
//! that keeps the scores of many rows in registers. With `--report` the driver's report on the
//! kernels is printed and nothing is measured. `--fused` leaves out launches that are not fused,
//! `--small` uses short contexts (for software devices), `--case` only the cases whose names
//! contain a text. Rows of crowds, each of another sequence, stand at position 543: after a prompt
//! of 512 and some of an answer. The device is the best one, or the one that `TRINE_TEST_VULKAN`
//! names.
//!
//! Each time is the median of ten runs of a chain of dispatches with a barrier between any two,
//! over several caches, so that none stays in the device's caches. The time of a chain of half the
//! length is subtracted, so that launch and drain count and submission does not. GB/s counts the
//! keys and values that the rows see, the share after it is that of what the device reads, where
//! that is known, TFLOP/s four operations for each of their elements and each query head.

use std::collections::HashSet;
use std::sync::Arc;

use anyhow::Result;
use clap::Parser;
use trine_model::{Ahead, Heads, KvType, Rope};
use trine_testing::bench::{self, median};
use trine_vulkan::capabilities::{DeviceKind, rates};
use trine_vulkan::dispatch::Dispatch;
use trine_vulkan::kernels::attention::{
    AttendDecodeShape, AttendMatrixShape, AttendTileShape, AttendUnits, Attention, CacheSpan,
    DecodeLaunch, FrameAddresses, Fused, KV_BLOCK, MatrixLaunch, OwnRows, Splits, TILE_ROWS,
    TileLaunch,
};
use trine_vulkan::kernels::handles::Made;
use trine_vulkan::kernels::heads::{Factors, HeadsLaunch, Rotated, Stored, turns};
use trine_vulkan::kernels::limits::ValueLimits;
use trine_vulkan::raw::memory::{Buffer, MemoryUse};
use trine_vulkan::raw::pipeline::KernelKey;
use trine_vulkan::shaders::Shader;
use trine_vulkan::testing::{choice, resident, upload, wall};
use trine_vulkan::{Gpu, GpuError, open_gpu};

/// More than the size of any cache.
const DISTINCT_BYTES: u64 = 1 << 30;
/// Largest cache that is allocated.
const CACHE_BYTES_MAX: u64 = 4 << 30;
const RUNS: usize = 10;
const DISPATCHES: usize = 32;
/// The same of dispatches with more operations than this.
const LONG: (f64, usize) = (3e10, 4);
/// The same of dispatches that read more bytes than this.
const LARGE: (f64, usize) = (1e8, 12);
/// Layouts of a search that are printed, and how often they are measured again.
const SHOWN: usize = 6;
const ROUNDS: usize = 3;

#[derive(Parser)]
struct Options {
    #[arg(long)]
    quick: bool,
    #[arg(long)]
    direct: bool,
    #[arg(long)]
    small: bool,
    #[arg(long, default_value = "f16", value_parser = bench::kv)]
    kv: KvType,
    #[arg(long, default_value = "32,16,128", value_parser = heads)]
    heads: Heads,
    #[arg(long, default_value = "")]
    case: String,
    /// Measured instead of the layouts that a search would try.
    #[arg(long = "layout", value_parser = shape)]
    layouts: Vec<AttendDecodeShape>,
    #[arg(long)]
    report: bool,
    /// Whether only fused launches are measured.
    #[arg(long)]
    fused: bool,
}

fn heads(text: &str) -> Result<Heads, String> {
    bench::numbers(text).map(|[query, kv, dim]| Heads { query, kv, dim })
}

fn shape(text: &str) -> Result<AttendDecodeShape, String> {
    let [local, lanes, unroll, queries, splits, alone, least, elements] = bench::numbers(text)?;
    Ok(AttendDecodeShape { local, lanes, unroll, queries, splits, alone, least, elements })
}

/// What is timed: `sequences` of `rows` rows each after `depth` positions.
struct Case {
    name: String,
    depth: usize,
    sequences: usize,
    rows: usize,
    window: Option<usize>,
    /// Whether the rows of a sequence see one another, as those of a picture do.
    together: bool,
}

impl Case {
    /// Returns how many rows after it a row sees.
    fn ahead(&self, row: usize) -> u32 {
        if self.together { (self.rows - 1 - row) as u32 } else { 0 }
    }

    /// Returns the words of the frame, and tiles of so many rows, of sequences that have so many
    /// blocks each.
    fn frame(&self, tile_rows: usize, blocks: usize) -> (Vec<u32>, Vec<[u32; 4]>) {
        let (mut words, mut tiles) =
            (vec![(self.sequences * self.rows) as u32, 0, 0, 0], Vec::new());
        for sequence in 0..self.sequences {
            let table = (sequence * blocks) as u32;
            for row in 0..self.rows {
                let slot = sequence as u32 | self.ahead(row) << 16;
                words.extend([0, (self.depth + row) as u32, slot, table]);
                if row % tile_rows == 0 {
                    let count = tile_rows.min(self.rows - row) as u32;
                    tiles.push([(sequence * self.rows + row) as u32, count, 0, 0]);
                }
            }
        }
        words[2] = tiles.len() as u32;
        (words, tiles)
    }
}

fn cases(small: bool) -> Vec<Case> {
    let of = |depth: usize, sequences, rows, window: Option<usize>| {
        let depth = if small { depth / 16 } else { depth };
        let local = window.map_or(String::new(), |window| format!(", window {window}"));
        let name = format!("{sequences} x {rows} at {depth}{local}");
        Case { name, depth, sequences, rows, window, together: false }
    };
    let patches = if small { 256 } else { 4096 };
    let name = format!("a picture of {patches}");
    let picture = Case { name, together: true, ..of(0, 1, patches, None) };
    vec![
        of(32, 1, 1, None),
        of(512, 1, 1, None),
        of(8192, 1, 1, None),
        of(8192, 1, 1, Some(1024)),
        of(8192, 1, 1, Some(512)),
        of(65536, 1, 1, None),
        of(512, 1, 8, None),
        of(8192, 1, 8, None),
        of(512, 8, 1, None),
        of(8192, 8, 1, None),
        of(8192, 8, 1, Some(1024)),
        of(32768, 8, 1, None),
        of(512, 32, 1, None),
        of(8192, 32, 1, None),
        of(543, 64, 1, None),
        of(543, 64, 1, Some(1024)),
        of(543, 128, 1, Some(1024)),
        of(543, 256, 1, None),
        of(543, 256, 1, Some(1024)),
        of(2047, 256, 1, Some(1024)),
        of(512, 1, 16, None),
        of(8192, 1, 16, None),
        of(512, 1, 32, None),
        of(8192, 1, 32, None),
        of(512, 1, 64, None),
        of(8192, 1, 64, None),
        of(512, 1, 128, None),
        of(8192, 1, 128, None),
        of(0, 1, 512, None),
        of(8192, 1, 512, None),
        of(8192, 1, 512, Some(1024)),
        of(65536, 1, 512, None),
        picture,
    ]
}

/// Everything of a case in device memory.
struct Bed {
    gpu: Arc<Gpu>,
    attention: Attention,
    caches: Vec<(CacheSpan, Buffer)>,
    frame: FrameAddresses,
    rows: usize,
    /// Whether each row is of another sequence, so that launches can be fused.
    is_lone: bool,
    tiles: usize,
    query: Buffer,
    key: Buffer,
    target: Buffer,
    weights: Buffer,
    rope: Buffer,
    scratch: Buffer,
    counters: Buffer,
    _frame: [Buffer; 3],
    /// Bytes of keys and values that the rows see, and operations on them.
    bytes: f64,
    operations: f64,
}

impl Bed {
    fn new(gpu: &Arc<Gpu>, case: &Case, options: &Options) -> Result<Option<Self>> {
        let (heads, kv) = (options.heads, options.kv);
        let needed = (case.depth + case.rows).div_ceil(KV_BLOCK);
        // Layers with a window keep its positions and those of the step in rings.
        let ring =
            case.window.map(|window| needed.min((window + case.rows).div_ceil(KV_BLOCK) + 1));
        let blocks_of_sequence = ring.unwrap_or(needed);
        let blocks = blocks_of_sequence * case.sequences;
        let bytes = CacheSpan::bytes(kv, heads.kv, heads.dim, blocks);
        if bytes > CACHE_BYTES_MAX {
            return Ok(None);
        }
        let rows = case.sequences * case.rows;
        let tile_rows = if heads.query > heads.kv { TILE_ROWS } else { 4 * TILE_ROWS };
        let (words, tiles) = case.frame(tile_rows, blocks_of_sequence);
        // Neighbouring blocks of a sequence are apart, as they are after some time of use.
        let tables: Vec<u32> = (0..blocks).map(|at| spread(at, blocks) as u32).collect();
        let frame = [upload(gpu, &words), upload(gpu, &tables), upload(gpu, &tiles)];
        let [first, second, third] = frame.each_ref().map(Buffer::address);
        let count = (DISTINCT_BYTES / bytes).clamp(1, DISPATCHES as u64);
        let ring_blocks = ring.unwrap_or(0) as u32;
        let allocate = |bytes: u64| gpu.allocate(bytes, MemoryUse::Device, "a cache");
        let caches = (0..count).map(|_| {
            let memory = allocate(bytes)?;
            let (span, dim) = (memory.span(), heads.dim);
            let cache = CacheSpan { span, kind: kv, heads: heads.kv, dim, ring_blocks };
            Ok((cache, memory))
        });
        let caches: Vec<_> = caches.collect::<Result<_>>()?;
        let attention =
            Attention { heads, scale: 0.08, window: case.window, ahead: Ahead::All, tile_rows };
        let values =
            |count: usize| -> Vec<f32> { (0..count).map(|at| (at as f32 * 0.7).sin()).collect() };
        let most = AttendDecodeShape {
            local: 32,
            lanes: 1,
            unroll: 1,
            queries: 1,
            splits: 64,
            alone: 1,
            least: 1,
            elements: 16,
        };
        let zero = |bytes: u64| resident(gpu, &vec![0_u8; bytes as usize]);
        let seen: usize = (0..case.rows)
            .map(|row| row + case.ahead(row) as usize)
            .map(|row| case.window.map_or(case.depth + row + 1, |w| w.min(case.depth + row + 1)))
            .sum();
        // A single row reads everything it sees; rows of a sequence share the reads.
        let read = case.window.map_or(case.depth + case.rows, |window| {
            (window - 1 + case.rows).min(case.depth + case.rows)
        });
        let position = 2 * heads.kv * kv.head_bytes(heads.dim);
        let table = turns(heads.dim, Rope::full(1e6, 8.0));
        Ok(Some(Self {
            gpu: gpu.clone(),
            attention,
            caches,
            frame: FrameAddresses { frame: first, tables: second, tiles: third, picks: 0 },
            rows,
            is_lone: case.rows == 1,
            tiles: tiles.len(),
            query: resident(gpu, &values(rows * heads.query * heads.dim)),
            key: resident(gpu, &values(rows * heads.kv * heads.dim)),
            target: zero((4 * rows * heads.query * heads.dim) as u64),
            weights: resident(gpu, &values(heads.dim)),
            rope: resident(gpu, &table),
            scratch: zero(DecodeLaunch::scratch_bytes(&attention, rows.min(32), &most)),
            counters: zero(DecodeLaunch::counter_bytes(attention.heads, rows)),
            _frame: frame,
            bytes: (case.sequences * read * position) as f64,
            operations: (4 * case.sequences * seen * heads.query * heads.dim) as f64,
        }))
    }

    /// Returns the median seconds of a dispatch that `make` creates for a cache.
    fn time(&self, make: impl Fn(CacheSpan) -> Result<Dispatch, GpuError>) -> Result<f64> {
        let chain = |count: usize| -> Result<f64> {
            let caches = self.caches.iter().cycle().take(count);
            let made: Result<Vec<_>, _> = caches.map(|(cache, _)| make(*cache)).collect();
            Ok(median(wall(&self.gpu, &made?, RUNS)))
        };
        let count = if self.operations > LONG.0 {
            LONG.1
        } else if self.bytes > LARGE.0 {
            LARGE.1
        } else {
            DISPATCHES
        };
        Ok((chain(2 * count)? - chain(count)?) / count as f64)
    }

    fn launch(&self, shape: AttendDecodeShape, is_fused: bool, cache: CacheSpan) -> DecodeLaunch {
        let fused = Fused {
            query_norm: Some(self.weights.address()),
            rope: Some(self.rope.address()),
            epsilon: 1e-6,
            own: Some(OwnRows {
                key: self.key.span(),
                value: self.key.span(),
                key_norm: Some(self.weights.address()),
                value_norm: false,
            }),
        };
        DecodeLaunch {
            attention: self.attention,
            cache,
            frame: self.frame,
            rows: self.rows,
            query: self.query.span(),
            made: Made::Rows(self.target.span()),
            splits: (shape.splits > 1)
                .then(|| Splits { partials: self.scratch.span(), counters: self.counters.span() }),
            fused: is_fused.then_some(fused),
            shape,
        }
    }

    fn decode(&self, shape: AttendDecodeShape, is_fused: bool) -> Result<f64> {
        self.time(|cache| {
            let launch = self.launch(shape, is_fused, cache);
            launch.dispatch(&self.gpu, "attend", 0)
        })
    }

    /// Returns the driver's report on a layout.
    fn report(&self, shape: AttendDecodeShape, is_fused: bool) -> Result<String> {
        let launch = self.launch(shape, is_fused, self.caches[0].0);
        let key = KernelKey {
            shader: Shader("attend"),
            constants: launch.constants(self.gpu.capabilities()),
            subgroup: Some(self.gpu.capabilities().subgroup),
        };
        self.report_of(&key)
    }

    fn report_of(&self, key: &KernelKey) -> Result<String> {
        let report = self.gpu.report(key)?;
        let shown = report.statistics.iter().map(|(name, value)| format!("{name} {value}"));
        Ok(shown.collect::<Vec<_>>().join(", "))
    }

    /// Returns the layouts that differ from one in a single respect.
    fn neighbours(&self, from: AttendDecodeShape) -> Vec<AttendDecodeShape> {
        let locals = [128, 256, 512].map(|local| AttendDecodeShape { local, ..from });
        let unrolls = [1, 2, 4, 8].map(|unroll| AttendDecodeShape { unroll, ..from });
        let lanes = [8, 16, 32].map(|lanes| AttendDecodeShape { lanes, ..from });
        let queries = [1, 2, 4, 8].map(|queries| AttendDecodeShape { queries, ..from });
        let splits = [1, 2, 4, 8, 16, 32, 64].map(|splits| AttendDecodeShape { splits, ..from });
        let alone = [1, 4, 8, 16, 32].map(|alone| AttendDecodeShape { alone, ..from });
        let least = [1, 2, 4, 8].map(|least| AttendDecodeShape { least, ..from });
        let all = locals.into_iter().chain(unrolls).chain(lanes).chain(queries);
        let elements = [8, 16].map(|elements| AttendDecodeShape { elements, ..from });
        let all = all.chain(splits).chain(alone).chain(least).chain(elements);
        let divides = |shape: &AttendDecodeShape| {
            self.attention.shared().is_multiple_of(shape.queries as usize)
        };
        all.filter(divides).collect()
    }

    /// Returns the default layout and, unless `quick`, those around it and around the best of them,
    /// with their times.
    fn decode_times(
        &self,
        is_fused: bool,
        options: &Options,
    ) -> Result<Vec<(f64, AttendDecodeShape)>> {
        let (capabilities, kind) = (self.gpu.capabilities(), self.caches[0].0.kind);
        let suited = AttendDecodeShape::suited(capabilities, &self.attention, kind, self.rows);
        let mut times = vec![(self.decode(suited, is_fused)?, suited)];
        for &shape in &options.layouts {
            times.push((self.decode(shape, is_fused)?, shape));
        }
        let searches = !options.quick && options.layouts.is_empty();
        for _ in 0..if searches { 2 } else { 0 } {
            let (_, best) = times.iter().copied().min_by(|a, b| a.0.total_cmp(&b.0)).expect("one");
            for shape in self.neighbours(best) {
                if !times.iter().any(|(_, known)| *known == shape) {
                    times.push((self.decode(shape, is_fused)?, shape));
                }
            }
        }
        // Measured again, one after another: clocks fall while kernels are compiled.
        times.sort_by(|a, b| a.0.total_cmp(&b.0));
        let is_shown = |at: usize, shape: AttendDecodeShape| {
            at < SHOWN || shape == suited || options.layouts.contains(&shape)
        };
        let shown: Vec<AttendDecodeShape> = times
            .into_iter()
            .enumerate()
            .filter_map(|(at, (_, shape))| is_shown(at, shape).then_some(shape))
            .collect();
        let mut rounds = vec![Vec::new(); shown.len()];
        for _ in 0..ROUNDS {
            for (shape, times) in shown.iter().zip(&mut rounds) {
                times.push(self.decode(*shape, is_fused)?);
            }
        }
        let mut found: Vec<_> = rounds.into_iter().map(median).zip(shown).collect();
        let place = found.iter().position(|(_, shape)| *shape == suited).expect("it is shown");
        found.swap(0, place);
        Ok(found)
    }

    /// Prints layouts, the fastest first; the first of the lines is the default one.
    fn print(&self, mut lines: Vec<(f64, String)>) {
        let name = lines[0].1.clone();
        lines.sort_by(|a, b| a.0.total_cmp(&b.0));
        let is_default = |text: &str| text == name;
        for (seconds, text) in &lines {
            let (rate, speed) = (self.bytes / seconds * 1e-9, self.operations / seconds * 1e-12);
            let share = rates::of(self.gpu.capabilities()).map_or(0.0, |known| rate / known.gbps);
            let mark = if is_default(text) { '*' } else { ' ' };
            println!(
                "{:>9.2} us {rate:>7.0} GB/s {share:>5.2} {speed:>6.1} TFLOP/s {mark} {text}",
                seconds * 1e6
            );
        }
    }
}

/// A permutation of `0..count`.
fn spread(at: usize, count: usize) -> usize {
    let step = [7919, 104_729, 1_299_709].into_iter().find(|step| !count.is_multiple_of(*step));
    at * step.unwrap_or(1) % count
}

fn layout(shape: AttendDecodeShape, is_fused: bool) -> String {
    let AttendDecodeShape { local, lanes, unroll, queries, splits, alone, least, elements } = shape;
    let kind = if is_fused { "fused " } else { "" };
    format!(
        "{kind}local {local} lanes {lanes} unroll {unroll} queries {queries} splits {splits} alone \
         {alone} least {least} elements {elements}"
    )
}

fn bench_decode(bed: &Bed, options: &Options) -> Result<()> {
    for is_fused in [true, false] {
        if if is_fused { !bed.is_lone } else { options.fused && bed.is_lone } {
            continue;
        }
        if options.report {
            for &shape in &options.layouts {
                println!("{}: {}", layout(shape, is_fused), bed.report(shape, is_fused)?);
            }
            continue;
        }
        let times = bed.decode_times(is_fused, options)?.into_iter();
        let lines = times.map(|(seconds, shape)| (seconds, layout(shape, is_fused))).collect();
        bed.print(lines);
    }
    Ok(())
}

fn bench_rows(bed: &Bed, options: &Options) -> Result<()> {
    let capabilities = bed.gpu.capabilities();
    let mut shapes = AttendMatrixShape::candidates(capabilities, &bed.attention);
    shapes.truncate(match (options.direct, options.quick) {
        (true, _) => 0,
        (false, true) => 1,
        (false, false) => 24,
    });
    let (attention, frame, tiles) = (bed.attention, bed.frame, bed.tiles);
    let (query, target) = (bed.query.span(), bed.target.span());
    let mut lines = Vec::new();
    let (kind, rows) = (bed.caches[0].0.kind, bed.rows);
    let suited = AttendUnits::suited(capabilities, &attention, kind, (rows, tiles));
    let direct = match suited {
        Some(AttendUnits::Direct(shape)) if options.direct => {
            let near = shape.neighbours(capabilities, &attention, kind);
            let far =
                near.iter().flat_map(|shape| shape.neighbours(capabilities, &attention, kind));
            let mut all = near.clone();
            all.extend(far.filter(|far| *far != shape));
            let mut seen = HashSet::new();
            all.retain(|shape| seen.insert(*shape));
            all
        }
        _ => Vec::new(),
    };
    let direct = direct.into_iter().map(AttendUnits::Direct);
    let others = direct.chain(shapes.into_iter().map(AttendUnits::Staged));
    for shape in suited.into_iter().chain(others) {
        let launch = |cache| {
            let made = Made::Rows(target);
            MatrixLaunch { attention, cache, frame, tiles, query, made, shape }
        };
        if options.report {
            let key = launch(bed.caches[0].0).key(capabilities);
            println!("{shape:?}: {}", bed.report_of(&key)?);
            continue;
        }
        let seconds = bed.time(|cache| launch(cache).dispatch(&bed.gpu, "rows", 0))?;
        lines.push((seconds, format!("{shape:?}")));
    }
    if options.report {
        return Ok(());
    }
    if !options.quick || lines.is_empty() {
        let shape = AttendTileShape::suited(capabilities, &attention);
        let seconds = bed.time(|cache| {
            let launch = TileLaunch { attention, cache, frame, tiles, query, target, shape };
            launch.dispatch(&bed.gpu, "rows", 0)
        })?;
        lines.push((seconds, "tiles".to_owned()));
    }
    bed.print(lines);
    Ok(())
}

/// Norm, rotation and store of all rows.
fn bench_heads(bed: &Bed) -> Result<f64> {
    bed.time(|cache| {
        let launch = HeadsLaunch {
            frame: bed.frame,
            rows: bed.rows,
            dim: bed.attention.heads.dim,
            query: Some(Rotated {
                query: bed.query.span(),
                turned: bed.query.span(),
                heads: bed.attention.heads.query,
                query_norm: Some(Factors::Of(bed.weights.address())),
            }),
            stored: Some(Stored {
                key: bed.key.span(),
                value: bed.key.span(),
                cache,
                biases: None,
                key_norm: Some(bed.weights.address()),
                value_norm: false,
            }),
            rope: Some(bed.rope.address()),
            side: 0,
            within: [ValueLimits::NONE; 3],
            epsilon: 1e-6,
        };
        launch.dispatch(&bed.gpu, "heads", 0)
    })
}

fn main() -> Result<()> {
    let options = Options::parse();
    let gpu = open_gpu(&choice(), None)?;
    let software = gpu.capabilities().kind == DeviceKind::Processor;
    println!(
        "{}: {:?}, keys and values in {}; * is the default",
        gpu.capabilities().name,
        options.heads,
        options.kv.name()
    );
    for case in cases(options.small || software) {
        if !case.name.contains(&options.case) {
            continue;
        }
        println!("{}", case.name);
        let Some(bed) = Bed::new(&gpu, &case, &options)? else {
            println!("          skipped: more than {CACHE_BYTES_MAX} bytes");
            continue;
        };
        // The most rows of a sequence that are not attended to by tiles.
        if case.rows <= 8 {
            bench_decode(&bed, &options)?;
        } else {
            bench_rows(&bed, &options)?;
        }
        if !options.report {
            println!("{:>9.2} us for norm, rotation and store", bench_heads(&bed)? * 1e6);
        }
    }
    Ok(())
}
