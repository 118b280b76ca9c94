//! Time of Gemma 3's vision tower on a picture, with random weights of the true shape.
//!
//! ```text
//! tower_bench [--layers 27] [--pictures 8] [--rounds 3] [--kv f16] [--format f16] [--tune]
//!             [--device NAME] [--profile]
//! ```
//!
//! Prints the time of each picture, the rate of several in a row, and the products and sums of a
//! picture that this is. `--tune` measures shapes of kernels first. `--profile` prints how a
//! picture is divided among the operations of the Plan, with a pause after each.

#![allow(clippy::unwrap_used, reason = "a benchmark stops at the first surprise")]

use std::time::{Duration, Instant};

use clap::Parser;
use trine_backend::{Device, TowerProgram};
use trine_model::{KvType, Op, Plan, Workload};
use trine_testing::bench;
use trine_vulkan::{DeviceSelector, Tuning, TuningMode, VulkanDevice};
use trine_weights::DType;

#[path = "../../cpu/examples/tower_bench/files.rs"]
mod files;

/// The longest time in which kernels are measured.
const TUNING: Duration = Duration::from_secs(60);

/// Returns the operations of the products and of attention of a picture, in 10^12.
fn operations(plan: &Plan) -> [f64; 2] {
    let picture = Workload::prefill(files::PATCHES, KvType::F16);
    let workload = Workload { outputs: files::PATCHES / 16, ..picture };
    let mut found = [0.0; 2];
    for step in &plan.steps {
        let operations = plan.step_cost(step, workload).operations as f64 / 1e12;
        match &step.op {
            Op::MatMul { .. } => found[0] += operations,
            Op::Attend { .. } => found[1] += operations,
            _ => {}
        }
    }
    found
}

#[derive(Parser)]
struct Options {
    #[arg(long, default_value_t = 27)]
    layers: usize,
    #[arg(long, default_value_t = 8)]
    pictures: usize,
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    #[arg(long, default_value = "f16", value_parser = bench::kv)]
    kv: KvType,
    /// f16, bf16 or q8_0.
    #[arg(long, default_value = "f16", value_parser = format)]
    format: DType,
    #[arg(long)]
    device: Option<String>,
    #[arg(long)]
    tune: bool,
    #[arg(long)]
    profile: bool,
}

fn format(name: &str) -> Result<DType, String> {
    let mut all = [("f16", DType::F16), ("bf16", DType::BF16), ("q8_0", DType::Q8_0)].into_iter();
    all.find(|(known, _)| *known == name)
        .map(|(_, format)| format)
        .ok_or("it is f16, bf16 or q8_0".to_owned())
}

fn main() {
    let Options { layers, pictures, rounds, kv, format, device, tune, profile: profiles } =
        Options::parse();
    let device = device.map_or(DeviceSelector::Any, DeviceSelector::Named);
    let folder = tempfile::tempdir().unwrap();
    let model = files::model(folder.path(), layers, format);
    let mode = if tune { TuningMode::Again } else { TuningMode::Off };
    let tuning = Tuning { mode, budget: TUNING, ..Tuning::default() };
    let device = VulkanDevice::open(device, None, None).unwrap().tuned(tuning);
    let began = Instant::now();
    let mut tower = TowerProgram::load(&device, &model, kv, false).unwrap();
    let loaded = began.elapsed().as_secs_f64();
    println!("{}, {layers} layers, keys and values in {}", device.name(), kv.name());
    println!("{:?}, loaded in {loaded:.1} s", tower.program().memory());
    let [products, attention] = operations(&tower.program().facts().plan);
    println!("{products:.3} 10^12 operations in products, {attention:.3} in attention");
    let patches = files::picture();
    tower.run(&patches, (64, 64)).unwrap();
    for round in 0..rounds {
        let began = Instant::now();
        let mut times = Vec::new();
        for _ in 0..pictures {
            let began = Instant::now();
            tower.run(&patches, (64, 64)).unwrap();
            times.push(1e3 * began.elapsed().as_secs_f64());
        }
        let seconds = began.elapsed().as_secs_f64();
        times.sort_by(f64::total_cmp);
        let median = times[times.len() / 2];
        let rate = pictures as f64 / seconds;
        let tera = (products + attention) / (median / 1e3);
        println!(
            "round {round}: {median:.2} ms ({:.2} to {:.2}), {rate:.1} pictures/s, {tera:.0} \
             10^12/s",
            times[0],
            times[times.len() - 1]
        );
    }
    if profiles {
        profile(&mut tower, &patches, layers);
    }
}

/// Prints the time of each operation, of all layers together.
fn profile(tower: &mut TowerProgram, patches: &[f32], layers: usize) {
    tower.profile(true);
    tower.run(patches, (64, 64)).unwrap();
    let times = tower.profile(false);
    let groups = bench::by_operation(&tower.program().facts().plan, &times, "v.blk.");
    let total: f64 = groups.values().map(|(sum, _)| sum).sum();
    println!("{:.2} ms by operation, {layers} layers", 1e3 * total);
    for (label, (sum, count)) in groups {
        println!("  {label:<14} {:8.3} ms, {:7.1} us each", 1e3 * sum, 1e6 * sum / count as f64);
    }
}
