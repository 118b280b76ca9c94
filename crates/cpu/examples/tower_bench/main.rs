//! Time of Gemma 3's vision tower on a picture, by operation, with random weights in F16.
//!
//! `cargo run --release -p trine-cpu --example tower_bench -- [LAYERS] [PICTURES] [KV] [FOLDER]`
//!
//! The tower has the true shape but for the number of layers, 2 unless given; the published one
//! has 27. Its files are left in the folder, where one is given, for other programs. A busy
//! neighbour halves anything: run it on an idle machine.

#![allow(clippy::unwrap_used, reason = "a benchmark stops at the first surprise")]

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use trine_backend::{Device, TowerProgram};
use trine_cpu::CpuDevice;
use trine_model::KvType;
use trine_weights::DType;

mod files;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let count = |index: usize, default: usize| {
        arguments.get(index).map_or(default, |text| text.parse().unwrap())
    };
    let (layers, pictures) = (count(0, 2), count(1, 3));
    let kv = arguments.get(2).map_or(KvType::F32, |text| KvType::parse(text).unwrap());
    let temporary = tempfile::tempdir().unwrap();
    let folder = arguments.get(3).map_or(temporary.path(), Path::new);
    let model = files::model(folder, layers, DType::F16);
    let device = CpuDevice::new(Some(2), None).unwrap();
    let mut tower = TowerProgram::load(&device, &model, kv, false).unwrap();
    println!("{}, {layers} layers, keys and values in {}", device.name(), kv.name());
    println!("{:?}", tower.program().memory());
    let patches = files::picture();
    for picture in 0..pictures {
        tower.profile(true);
        let began = Instant::now();
        tower.run(&patches, (64, 64)).unwrap();
        let seconds = began.elapsed().as_secs_f64();
        let times = tower.profile(false);
        let mut by_name: BTreeMap<String, f64> = BTreeMap::new();
        for (step, time) in tower.program().facts().plan.steps.iter().zip(times) {
            let label = step.label.rsplit('.').next().unwrap_or_default().to_owned();
            *by_name.entry(label).or_default() += time;
        }
        println!("picture {picture}: {seconds:.3} s");
        for (name, time) in by_name {
            println!("  {name:<12} {time:.3} s, {:.1} %", 100.0 * time / seconds);
        }
    }
}
