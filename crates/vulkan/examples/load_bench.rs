//! Times what a start takes: bytes written into the device's memory, rows packed, what bounds their
//! results found, and a model's Program loaded.
//!
//! ```text
//! load_bench MODEL.gguf [--loads 4] [--device NAME]
//! load_bench --no-device
//! ```
//!
//! Writes and rows are shared by 1 to all threads, from and to memory of the host's that is no
//! file. Loads are one after the other; the file should be in the page cache.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result};
use clap::Parser;
use rayon::prelude::*;
use trine_backend::{BLOCK, Device, ProgramOptions};
use trine_model::{KvType, Model, Width};
use trine_vulkan::pack::{Format, PlanesMut, pack_rows};
use trine_vulkan::raw::memory::MemoryUse;
use trine_vulkan::{DeviceSelector, Reach, VulkanDevice};
use trine_weights::Checkpoint;

/// Bytes that are written or packed in a measurement.
const BYTES: usize = 1 << 30;
/// Bytes that a thread takes at a time.
const PIECE: usize = 1 << 20;
/// Columns of a row.
const COLUMNS: usize = 5376;

#[derive(Parser)]
struct Options {
    model: Option<PathBuf>,
    #[arg(long, default_value_t = 4)]
    loads: usize,
    #[arg(long)]
    device: Option<String>,
    #[arg(long)]
    no_device: bool,
}

fn main() -> Result<()> {
    let Options { model, loads, device, no_device } = Options::parse();
    let choice = (!no_device).then(|| device.map_or(DeviceSelector::Any, DeviceSelector::Named));
    let device = choice.map(open).transpose()?;
    if let Some(device) = &device {
        writes(device)?;
    }
    for format in Format::ALL {
        packs(format)?;
        bounds(format)?;
    }
    let (Some(path), Some(device)) = (model, device) else { return Ok(()) };
    let begin = Instant::now();
    let checkpoint = Checkpoint::open(&path)?;
    let bytes = checkpoint.file_bytes();
    let model = Model::from_checkpoint(checkpoint)?;
    println!("{}: read in {:.3} s", path.display(), begin.elapsed().as_secs_f64());
    let (context, sequences) = (4096, 1);
    let width = Width { tokens: 512, outputs: 1 };
    let (kv, blocks) = (KvType::F16, context / BLOCK);
    let options = ProgramOptions { width, kv, context, sequences, blocks };
    for _ in 0..loads {
        let begin = Instant::now();
        let program = device.load_plan(&model, model.plan(), &options);
        let program = program?;
        let loaded = begin.elapsed().as_secs_f64();
        drop(program);
        let all = begin.elapsed().as_secs_f64();
        println!(
            "loaded in {loaded:.3} s, {:.1} GB/s of the file; given back in {:.3} s",
            bytes as f64 / loaded / 1e9,
            all - loaded
        );
    }
    Ok(())
}

fn open(choice: DeviceSelector) -> Result<VulkanDevice> {
    let begin = Instant::now();
    let device = VulkanDevice::open(choice, None, None)?;
    println!("{}: opened in {:.3} s", device.name(), begin.elapsed().as_secs_f64());
    Ok(device)
}

/// Returns numbers of threads: powers of two, and all.
fn threads() -> Vec<usize> {
    let all = std::thread::available_parallelism().map_or(1, usize::from);
    let mut found: Vec<usize> = (0..).map(|power| 1 << power).take_while(|n| *n < all).collect();
    found.push(all);
    found
}

/// Prints how fast each number of threads does something with pieces of [`BYTES`]. What `take`
/// returns serves many pieces.
fn time<T>(
    what: &str,
    take: impl Fn() -> T + Sync,
    work: impl Fn(&mut T, usize) + Sync,
) -> Result<()> {
    for threads in threads() {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
        let pool = pool?;
        let all = || (0..BYTES / PIECE).into_par_iter().for_each_init(&take, &work);
        pool.install(all);
        let begin = Instant::now();
        pool.install(all);
        let rate = BYTES as f64 / begin.elapsed().as_secs_f64() / 1e9;
        println!("{what}: {threads} threads {rate:.1} GB/s");
    }
    Ok(())
}

fn writes(device: &VulkanDevice) -> Result<()> {
    let target = device.gpu().allocate(BYTES as u64, MemoryUse::Device, "a bench");
    let target = target?;
    if !target.is_mapped() {
        println!("the device's memory is not mapped: writes are not measured");
        return Ok(());
    }
    let source = vec![1_u8; BYTES];
    let nothing = || ();
    time("write", nothing, |(), piece| {
        let at = piece * PIECE;
        target.write(at as u64, &source[at..at + PIECE]);
    })
}

/// Returns bytes of a file, all in memory.
fn source() -> Vec<u8> {
    (0..BYTES).map(|at| (at.wrapping_mul(2_654_435_761) >> 16) as u8).collect()
}

/// Returns the bytes of a row in a file, and the rows of a piece.
fn rows(format: Format) -> Result<(usize, usize)> {
    let row = format.dtype().row_bytes(COLUMNS).context("rows of whole blocks")?;
    Ok((row, PIECE / row))
}

fn packs(format: Format) -> Result<()> {
    let ((row, rows), source) = (rows(format)?, source());
    let planes = format.row_bytes(COLUMNS).times(rows as u64).context("a small piece")?;
    let plane = |bytes: u64| vec![0; bytes as usize];
    let take = || [planes.codes, planes.high, planes.scales, planes.supers].map(plane);
    time(&format!("pack {}", format.name()), take, |[codes, high, scales, supers], piece| {
        let mut target = PlanesMut { codes, high, scales, supers };
        let from = &source[piece * PIECE..][..rows * row];
        pack_rows(format, COLUMNS, from, &mut target).expect("planes of the format's sizes");
    })
}

fn bounds(format: Format) -> Result<()> {
    let ((row, rows), source) = (rows(format)?, source());
    let take = || Reach::new(&[1.0; COLUMNS], rows);
    time(&format!("bound {}", format.name()), take, |reach, piece| {
        reach.see(format, COLUMNS, 0, &source[piece * PIECE..][..rows * row]);
    })
}
