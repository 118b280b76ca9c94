//! Thousands of damaged copies of real files: each must give an error or a sound checkpoint, in
//! bounded time and memory, and never a panic.
//!
//! The corpus is generated from a fixed seed. The damage is in headers, where a parser can be
//! misled; the tensor data after them is a hole of the right length, so that a copy costs
//! kilobytes. Some damage leaves a file valid, such as a different letter in a token's text. Such
//! files are counted separately, and their tensors are walked and decoded.

#![allow(clippy::unwrap_used, reason = "a failure of a test helper is a failure of the test")]

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use fastrand::Rng;
use support::{Raw, entry, goldens, row, string};
use trine_weights::{Checkpoint, Metadata, blocks, gguf};

/// Counts live bytes and their peak.
struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

fn grow(bytes: usize) {
    let live = LIVE.fetch_add(bytes, Ordering::Relaxed) + bytes;
    PEAK.fetch_max(live, Ordering::Relaxed);
}

// SAFETY: every call is passed to the system's allocator unchanged; in addition only counters are
// updated.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        grow(layout.size());
        // SAFETY: the caller's contract is the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's contract is the system allocator's.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // During a move the old and the new place both count.
        grow(size);
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's contract is the system allocator's.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The bytes that loading may allocate in addition to twice the file: paths, messages, parsed JSON
/// of small files.
const CONSTANT_BYTES: usize = 256 << 10;
/// The longest time of one load, on a machine that is busy with other work.
const TIME_LIMIT: Duration = Duration::from_secs(10);

fn range(random: &mut Rng, limit: usize, length_max: usize) -> std::ops::Range<usize> {
    let start = random.usize(..limit.max(1));
    start..(start + random.usize(1..=length_max)).min(limit)
}

/// A real file whose header is damaged.
struct Source {
    name: &'static str,
    header: Vec<u8>,
    /// The length of the data after the header, which is written as a hole.
    data_bytes: u64,
    /// The part that a parser depends on most. Half of all damage is there.
    hot: std::ops::Range<usize>,
    /// The file to write and, below it, the path to open (its folder for safetensors).
    write_to: PathBuf,
    open: PathBuf,
}

fn gguf_source(name: &'static str, bytes: Vec<u8>, folder: &Path) -> Source {
    let layout = gguf::parse(&bytes, name).unwrap();
    let data_start = layout.tensors.iter().map(|t| t.range.start).min().unwrap();
    let first_row = layout.tensors[0].name.as_bytes();
    let table = bytes.windows(first_row.len()).position(|window| window == first_row).unwrap();
    let path = folder.join(format!("{name}.gguf"));
    Source {
        name,
        header: bytes[..data_start].to_vec(),
        data_bytes: (bytes.len() - data_start) as u64,
        hot: table - 8..data_start,
        write_to: path.clone(),
        open: path,
    }
}

fn sources(folder: &Path) -> Vec<Source> {
    let mut sources = vec![gguf_source("small", small_gguf(), folder)];
    for name in ["gemma3-f32", "gemma3-qat", "formats", "formats-moe"] {
        let bytes = fs::read(goldens().join("gguf").join(name).join("model.gguf")).unwrap();
        sources.push(gguf_source(name, bytes, folder));
    }
    let model = folder.join("safetensors");
    fs::create_dir(&model).unwrap();
    fs::copy(goldens().join("gemma3-a/config.json"), model.join("config.json")).unwrap();
    let bytes = fs::read(goldens().join("gemma3-a/model.safetensors")).unwrap();
    let header_bytes = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    sources.push(Source {
        name: "safetensors",
        header: bytes[..header_bytes].to_vec(),
        data_bytes: (bytes.len() - header_bytes) as u64,
        hot: 0..header_bytes.min(400),
        write_to: model.join("model.safetensors"),
        open: model,
    });
    let sharded = folder.join("sharded");
    fs::create_dir(&sharded).unwrap();
    for entry in fs::read_dir(goldens().join("gemma3-c")).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, sharded.join(path.file_name().unwrap())).unwrap();
    }
    for (name, file) in [("index", "model.safetensors.index.json"), ("config", "config.json")] {
        let header = fs::read(sharded.join(file)).unwrap();
        let hot = 0..header.len();
        let write_to = sharded.join(file);
        sources.push(Source { name, header, data_bytes: 0, hot, write_to, open: sharded.clone() });
    }
    sources.extend(of_modules(&folder.join("modules")));
    sources
}

/// The lists and settings of an embedding model's modules. Each is read again, whichever is
/// damaged.
fn of_modules(model: &Path) -> Vec<Source> {
    let golden = goldens().join("embedding-gemma");
    for folder in ["1_Pooling", "2_Dense", "3_Dense"] {
        fs::create_dir_all(model.join(folder)).unwrap();
    }
    for file in [
        "config.json",
        "model.safetensors",
        "modules.json",
        "1_Pooling/config.json",
        "2_Dense/config.json",
        "2_Dense/model.safetensors",
        "3_Dense/config.json",
        "3_Dense/model.safetensors",
    ] {
        fs::copy(golden.join(file), model.join(file)).unwrap();
    }
    let source = |(name, file): (&'static str, &str)| {
        let (write_to, open) = (model.join(file), model.to_owned());
        let header = fs::read(&write_to).unwrap();
        Source { name, hot: 0..header.len(), header, data_bytes: 0, write_to, open }
    };
    let files = [
        ("modules", "modules.json"),
        ("pooling", "1_Pooling/config.json"),
        ("dense", "2_Dense/config.json"),
    ];
    files.into_iter().map(source).collect()
}

/// Creates a file of about 2 KB with metadata of every kind and two tensors.
fn small_gguf() -> Vec<u8> {
    let mut raw = Raw::sound();
    let sizes = [1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8];
    for kind in [0_u32, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12] {
        let value = &[1, 0, 0, 0, 0, 0, 0, 0][..sizes[kind as usize]];
        raw.entries.push(entry(format!("kind.{kind}"), kind, value));
    }
    let words: Vec<u8> = (0..70).flat_map(|i| string(format!("word {i}"))).collect();
    let array = [&8_u32.to_le_bytes()[..], &70_u64.to_le_bytes(), &words].concat();
    raw.entries.push(entry("words", 9, &array));
    let inner = [&4_u32.to_le_bytes()[..], &2_u64.to_le_bytes(), &[7; 8]].concat();
    let nested = [&9_u32.to_le_bytes()[..], &2_u64.to_le_bytes(), &inner, &inner].concat();
    raw.entries.push(entry("nested", 9, &nested));
    raw.rows.push(row("q", &[64, 3], 2, 96));
    raw.data.resize(96 + 108, 0);
    raw.bytes()
}

/// Returns integers that overflow, wrap, or point just beyond something.
fn extreme(random: &mut Rng, file_bytes: u64) -> u64 {
    let choices = [
        0,
        1,
        u64::MAX,
        u64::MAX - 31,
        1 << 63,
        (1 << 63) - 1,
        1 << 62,
        1 << 40,
        1 << 32,
        (1 << 32) - 1,
        1 << 31,
        file_bytes,
        file_bytes + 1,
        file_bytes - 1,
        random.u64(..),
        random.u64(..0x1_0000),
    ];
    choices[random.usize(..choices.len())]
}

const KINDS: [&str; 7] =
    ["bit flip", "extreme integer", "cut", "splice", "duplicate", "delete", "swap"];

/// Returns a damaged header and the length of the whole file.
fn damage(random: &mut Rng, kind: &str, source: &Source, other: &[u8]) -> (Vec<u8>, u64) {
    let mut bytes = source.header.clone();
    let file_bytes = bytes.len() as u64 + source.data_bytes;
    let place = |random: &mut Rng| {
        if random.usize(..2) == 0 {
            source.hot.start + random.usize(..source.hot.len())
        } else {
            random.usize(..source.header.len())
        }
    };
    match kind {
        "bit flip" => {
            for _ in 0..=random.usize(..3) {
                bytes[place(random)] ^= 1 << random.usize(..8);
            }
        }
        "extreme integer" => {
            // Sizes and counts are at the start and in the table.
            let at = if random.usize(..4) == 0 { random.usize(..32) } else { place(random) };
            let width = [1, 2, 4, 8][random.usize(..4)];
            let value = extreme(random, file_bytes).to_le_bytes();
            let end = (at + width).min(bytes.len());
            bytes[at..end].copy_from_slice(&value[..end - at]);
        }
        "cut" => {
            let length = random.u64(..file_bytes);
            bytes.truncate(usize::try_from(length).unwrap());
            return (bytes, length);
        }
        "splice" => {
            let from = range(random, other.len(), 200);
            let at = place(random);
            let end = (at + from.len()).min(bytes.len());
            bytes[at..end].copy_from_slice(&other[from][..end - at]);
        }
        "duplicate" => {
            let range = range(random, bytes.len(), 300);
            let copy = bytes[range.clone()].to_vec();
            bytes.splice(range.end..range.end, copy);
        }
        "delete" => {
            let range = range(random, bytes.len(), 300);
            bytes.drain(range);
        }
        "swap" => {
            let (a, b, length) = (place(random), place(random), 1 + random.usize(..16));
            for i in 0..length {
                if a + i < bytes.len() && b + i < bytes.len() {
                    bytes.swap(a + i, b + i);
                }
            }
        }
        _ => unreachable!(),
    }
    let length = bytes.len() as u64 + source.data_bytes;
    (bytes, length)
}

fn write(source: &Source, header: &[u8], length: u64) {
    // Creates a new file each time, because truncating an existing one makes some file systems
    // flush to disk.
    let _ = fs::remove_file(&source.write_to);
    let mut file = File::create(&source.write_to).unwrap();
    file.write_all(header).unwrap();
    file.set_len(length).unwrap();
}

/// Walks a checkpoint that was accepted and checks that every tensor's bytes are there and decode.
fn walk(checkpoint: &Checkpoint) {
    for tensor in checkpoint.tensors() {
        assert_eq!(tensor.bytes().len(), tensor.rows() * tensor.row_bytes());
        assert_eq!(checkpoint.tensor(tensor.name()).unwrap().name(), tensor.name());
        if tensor.rows() > 0 {
            let mut floats = vec![0.0; tensor.columns()];
            let last = tensor.row(tensor.rows() - 1);
            blocks::decode(tensor.dtype(), last, &mut floats).unwrap();
        }
    }
    match checkpoint.metadata() {
        Metadata::Gguf(keys) => {
            for (key, value) in keys.iter() {
                assert_eq!(keys.get(key).unwrap().kind(), value.kind());
                if let Ok(Some(strings)) = keys.optional_strings(key) {
                    assert_eq!(strings.iter().map(str::len).sum::<usize>(), strings.text_bytes());
                }
            }
        }
        Metadata::HuggingFace(files) => assert!(files.config.is_object()),
    }
    checkpoint.check_intact().unwrap();
}

/// Counts per source and kind of damage.
#[derive(Default)]
struct Report {
    counts: BTreeMap<(&'static str, &'static str), (usize, usize)>, // refused, still valid
    failures: Vec<String>,
    worst_bytes: f64, // peak as a share of what is allowed
    worst_time: Duration,
}

impl Report {
    fn run(&mut self, source: &Source, kind: &'static str, what: &str, file_bytes: u64) {
        let before = LIVE.load(Ordering::Relaxed);
        PEAK.store(before, Ordering::Relaxed);
        let start = Instant::now();
        let result = catch_unwind(AssertUnwindSafe(|| Checkpoint::open(&source.open)));
        let (time, peak) = (start.elapsed(), PEAK.load(Ordering::Relaxed) - before);
        let limit = 2 * file_bytes as usize + CONSTANT_BYTES;
        self.worst_bytes = self.worst_bytes.max(peak as f64 / limit as f64);
        self.worst_time = self.worst_time.max(time);
        let tally = self.counts.entry((source.name, kind)).or_default();
        let mut fail = |problem: &str| {
            self.failures.push(format!("{} {kind} {what}: {problem}", source.name));
        };
        match result {
            Ok(Err(error)) => {
                tally.0 += 1;
                if error.to_string().len() > 2000 {
                    fail("an endless message");
                }
            }
            Ok(Ok(checkpoint)) => {
                tally.1 += 1;
                if catch_unwind(AssertUnwindSafe(|| walk(&checkpoint))).is_err() {
                    fail("accepted but unsound");
                }
            }
            Err(_) => fail("panic"),
        }
        if time > TIME_LIMIT {
            fail(&format!("took {time:?}"));
        }
        if peak > limit {
            fail(&format!("allocated {peak} bytes for a file of {file_bytes}"));
        }
    }

    fn print(&self) {
        println!("{:<12} {:<16} {:>8} {:>12}", "file", "damage", "refused", "still valid");
        for ((source, kind), (refused, valid)) in &self.counts {
            println!("{source:<12} {kind:<16} {refused:>8} {valid:>12}");
        }
        println!(
            "peak memory at most {:.0} % of the limit, longest load {:?}",
            self.worst_bytes * 100.0,
            self.worst_time
        );
    }
}

#[test]
fn damaged_files_give_errors_or_sound_checkpoints() {
    let folder = tempfile::tempdir().unwrap();
    let sources = sources(folder.path());
    let mut report = Report::default();
    let mut random = Rng::with_seed(20_251);
    for (index, source) in sources.iter().enumerate() {
        write(source, &source.header, source.header.len() as u64 + source.data_bytes);
        walk(&Checkpoint::open(&source.open).unwrap());
        let other = &sources[(index + 1) % sources.len()].header;
        for kind in KINDS {
            for round in 0..300 {
                let (header, length) = damage(&mut random, kind, source, other);
                if header == source.header && kind != "cut" {
                    continue;
                }
                write(source, &header, length);
                report.run(source, kind, &format!("round {round}"), length);
            }
        }
        write(source, &source.header, source.header.len() as u64 + source.data_bytes);
    }
    // Tries every length of the small file.
    let small = &sources[0];
    let whole = small.header.len() as u64 + small.data_bytes;
    for length in 0..whole {
        let kept = (length as usize).min(small.header.len());
        write(small, &small.header[..kept], length);
        report.run(small, "every length", &length.to_string(), length);
    }
    report.print();

    let (mut refused, mut valid) = (0, 0);
    for ((_, kind), counts) in &report.counts {
        if *kind != "every length" {
            refused += counts.0;
            valid += counts.1;
        }
    }
    let by_length = report.counts[&("small", "every length")];
    println!("{refused} refused, {valid} still valid, besides {} lengths of one file", by_length.0);
    assert!(report.failures.is_empty(), "{:#?}", report.failures);
    assert_eq!(by_length, (whole as usize, 0));
    assert!(refused >= 2000, "only {refused} of the damaged files were refused");
}
