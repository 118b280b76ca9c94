//! Compiles the kernels that Gemmas need on a Radeon 780M and prints what the driver of this
//! machine's device reports of each, as JSON. `cargo xtask radv` makes its report from this.
//!
//! The kernels are those that Programs compile ([`Outline::kernels`]); nothing runs. With
//! `--inputs` nothing is compiled either: what is printed is all that is known without the driver.

mod models;

use std::collections::{BTreeMap, HashMap};
use std::process::ExitCode;

use rayon::prelude::*;
use serde_json::{Value, json};
use trine_vulkan::capabilities::{Capabilities, presets, rates};
use trine_vulkan::raw::pipeline::KernelKey;
use trine_vulkan::{Catalogued, DeviceSelector, Gpu, GpuError, Outline};

use models::Case;

/// How many Programs are looked at to compare the driver's device with the described one: those of
/// all models in one format.
const SAMPLE: usize = 10;

fn main() -> ExitCode {
    match run() {
        Ok(output) => {
            println!("{output}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// A kernel and the Program that it was found in.
struct Found {
    program: String,
    kernel: Catalogued,
}

fn run() -> Result<Value, Box<dyn std::error::Error + Send + Sync>> {
    let found = find(&presets::radeon_780m())?;
    let gpu = trine_vulkan::open_gpu(&DeviceSelector::Any, None)?;
    let keys = |capabilities: &Capabilities| -> Result<Vec<KernelKey>, GpuError> {
        // Those of one format tell devices apart.
        let found = find_in(capabilities, &models::cases()[..SAMPLE])?;
        Ok(found.into_iter().map(|found| found.kernel.key).collect())
    };
    if keys(&presets::radeon_780m())? != keys(gpu.capabilities())? {
        return Err("the driver reports a device that gets other kernels than the preset".into());
    }
    let is_compiling = !std::env::args().any(|argument| argument == "--inputs");
    let describe = |found| if is_compiling { describe(&gpu, found) } else { Ok(facts(found)) };
    let kernels: Result<Vec<Value>, GpuError> = found.par_iter().map(describe).collect();
    let rates = rates::RADEON_780M;
    Ok(json!({
        "device": gpu.capabilities().name,
        "gbps": rates.gbps,
        "tops_skinny": rates.tops_skinny,
        "tops_wide": rates.tops_wide,
        "gap_us": rates.gap_us,
        "kernels": kernels?,
    }))
}

/// Returns the kernels of all Programs on a device, each once: those that Programs launch, then
/// those that only tuning may choose.
fn find(capabilities: &Capabilities) -> Result<Vec<Found>, GpuError> {
    find_in(capabilities, &models::cases())
}

/// Returns the kernels of some Programs, as [`find`] does.
fn find_in(capabilities: &Capabilities, cases: &[Case]) -> Result<Vec<Found>, GpuError> {
    let outline = Outline::new(capabilities.clone(), false);
    let catalogues: Result<Vec<Vec<Catalogued>>, GpuError> =
        cases.par_iter().map(|case| outline.kernels(&case.plan, &case.options)).collect();
    let mut found: Vec<Found> = Vec::new();
    let mut places: HashMap<KernelKey, usize> = HashMap::new();
    for (case, catalogue) in cases.iter().zip(catalogues?) {
        for kernel in catalogue {
            match places.get(&kernel.key) {
                Some(&place) if !found[place].kernel.is_trial || kernel.is_trial => {}
                Some(&place) => found[place] = Found { program: case.name.clone(), kernel },
                None => {
                    places.insert(kernel.key.clone(), found.len());
                    found.push(Found { program: case.name.clone(), kernel });
                }
            }
        }
    }
    found.sort_by_key(|found| found.kernel.is_trial);
    Ok(found)
}

/// Compiles a kernel. Returns its facts with those of the driver.
fn describe(gpu: &Gpu, found: &Found) -> Result<Value, GpuError> {
    let report = gpu.report(&found.kernel.key)?;
    let statistics: BTreeMap<_, _> = report.statistics.into_iter().collect();
    let mut facts = facts(found);
    facts["subgroup"] = json!(report.subgroup);
    facts["statistics"] = json!(statistics);
    facts["assembly"] = json!(report.assembly);
    Ok(facts)
}

/// Returns what is known of a kernel without the driver.
fn facts(found: &Found) -> Value {
    let Catalogued { key, is_trial, launch } = &found.kernel;
    let shader = key.shader.0;
    let reads = ["one_row_", "matvec_", "matmul_", "attend", "embed_"];
    let what = launch.as_ref().map_or(shader, |launch| part(&launch.label));
    let times = launch.as_ref().map(|launch| launch.times(&rates::RADEON_780M));
    json!({
        "program": found.program,
        "what": what,
        "tokens": launch.as_ref().map(|launch| launch.tokens),
        "is_trial": is_trial,
        "operations": launch.as_ref().map_or(0, |launch| launch.operations),
        "times_us": times,
        "shader": shader,
        "constants": key.constants,
        "subgroup": key.subgroup,
        "expects": expected(shader),
        "wide": reads.iter().any(|prefix| shader.starts_with(prefix)),
    })
}

/// Returns prefixes of the instructions that a shader should be compiled to.
fn expected(shader: &str) -> &'static [&'static str] {
    let is_float = ["_f16", "_bf16", "_f32"].iter().any(|format| shader.ends_with(format));
    match shader {
        "attend_matrix" => &["v_wmma"],
        name if name.starts_with("matmul_matrix") => &["v_wmma"],
        name if name.starts_with("matmul_dot") => &["v_dot4"],
        name if name.starts_with("one_row_") => &["v_dot4"],
        name if name.starts_with("matvec_") && !is_float => &["v_dot4"],
        _ => &[],
    }
}

/// Returns a label of a layer's step without the layer.
fn part(label: &str) -> &str {
    let in_layer = label.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
    in_layer.map_or(label, |(_, part)| part)
}
