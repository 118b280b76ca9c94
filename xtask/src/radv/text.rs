//! The report on the kernels as Markdown.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::assembly::Counts;
use super::chip;
use super::kernel::{Kernel, Output};

/// Returns the report as Markdown.
pub(super) fn describe(output: &Output, version: &str, rows: &[(&Kernel, Counts)]) -> String {
    let Output { device, gbps, tops_skinny, tops_wide, gap_us, .. } = output;
    let (least, lds_gbps) = (chip::WAVES_LEAST, chip::LDS_GBPS);
    let (launched, tried): (Vec<_>, Vec<_>) = rows.iter().partition(|(kernel, _)| !kernel.is_trial);
    let mut text = format!(
        "# The kernels on a Radeon 780M, as compiled\n\
         \n\
         Written by `cargo xtask radv`; do not edit. Device: {device}, Mesa {version}: it compiles \
         for a GPU that is not there, and\n\
         nothing was run.\n\
         \n\
         The kernels are those that Programs of Gemma 3 27B, 4B, 1B, 270M and Gemma 3n E2B \
         compile, as `run` and `serve` load them, in\n\
         Q4_0, Q4_K_M and Q8_0, 4B also in Q5_K_M and, in its feed-forward, all other formats, \
         with a cache in f16 and in int8, in all passes:\n\
         the same code chooses them that chooses those of a \
         Program, for a description of the device (`vulkan/src/program/catalogue.rs`). {} are \
         launched by the static tables; {} more\n\
         may be tried by tuning. A kernel that several Programs share is listed once, with its \
         largest launch in the first.\n\
         \n\
         CI compiles all of them again and compares, unless the last line shows that nothing has \
         changed. It fails on any spill, on room for fewer than {least} waves, on more loads of \
         single bytes\n\
         than of words in the main loop of a kernel that reads packed weights or the cache, and \
         where `v_dot4` or `v_wmma` was meant and is not there.\n\
         \n\
         **Waves** are subgroups that a SIMD has room for, at most 16. All subgroups have 64 \
         invocations.\n\
         \n\
         ```text\n\
         by registers = 512 / VGPRs\n\
         by LDS       = 128 KiB / LDS of a workgroup x waves of a workgroup / 4 SIMDs     whole \
         workgroups of a workgroup processor\n\
         ```\n\
         \n\
         **Loop**: one turn of the loop with the most products, or loads where there are none, and \
         of the loops inside it; where there\n\
         is no such loop, \"-\" and the kernel as a whole. Loads are those from memory, of 128, 96 \
         or 64, 32, 16 and 8 bits.\n\
         \n\
         **Forecast**, in microseconds of the launch named, at the end of a sequence of 8192 \
         positions; nobody has measured any of them:\n\
         \n\
         - memory: weights, keys, values and all other values at {gbps} GB/s, as if nothing stayed \
         in a cache;\n\
         - arithmetic: products at {tops_skinny} Top/s up to 64 rows and {tops_wide} Top/s above, \
         attention counted twice, the rest for nothing\n\
         (these rates are those of `trine plan --device 780m`, most of them assumed);\n\
         - LDS: what the loop passes to and from it for each product, at {lds_gbps:.0} GB/s, 32 \
         banks of each of 12 units at 2.7 GHz (assumed, without\n\
         conflicts; loops inside it are counted once); \"-\" where the loop has no products;\n\
         - in all: the longest of these, and {gap_us} us until the next launch.\n\
         \n\
         ## Launched\n\
         \n\
         | kernel | shader | constants | VGPRs | LDS bytes | waves by registers | by LDS | code \
         bytes | loop: instructions | vector | loads 128, 64, 32, 16, 8 | dot4 | wmma | LDS | \
         memory us | arithmetic us | LDS us | in all us | bound by |\n\
         |---|---|---|---:|---:|---:|---:|---:|---:|---:|---|---:|---:|---:|---:|---:|---:|---:|---|\n",
        launched.len(),
        tried.len(),
    );
    for (kernel, counts) in launched {
        let cells = row(kernel, counts, *gap_us);
        writeln!(text, "| {} |", cells.join(" | ")).expect("a String takes everything");
    }
    text.push_str(&tried_table(&tried));
    text
}

fn row(kernel: &Kernel, counts: &Counts, gap_us: f64) -> Vec<String> {
    let statistic = |name: &str| {
        let value = kernel.statistic(name);
        value.map_or_else(|| "?".to_owned(), |value| value.to_string())
    };
    let constants: Vec<_> = kernel.constants.iter().map(u32::to_string).collect();
    let Counts { inner, has_loop, .. } = counts;
    let (registers, lds) = kernel.waves();
    let none = || "-".to_owned();
    let mut cells = vec![
        kernel.name(),
        format!("`{}`", kernel.shader),
        constants.join(" "),
        statistic("VGPRs"),
        kernel.statistic("LDS size").unwrap_or(0).to_string(),
        registers.to_string(),
        lds.map_or_else(none, |waves| waves.to_string()),
        statistic("Code size"),
        if *has_loop { inner.instructions.to_string() } else { none() },
        inner.vector.to_string(),
        inner.loads(),
        inner.dot4.to_string(),
        inner.wmma.to_string(),
        inner.shared.to_string(),
    ];
    cells.extend(forecast(kernel, counts, gap_us));
    cells
}

/// Returns the cells of the forecast.
fn forecast(kernel: &Kernel, counts: &Counts, gap_us: f64) -> [String; 5] {
    let Some([memory, arithmetic]) = kernel.times_us else { return ["-"; 5].map(str::to_owned) };
    let lds = chip::lds_us(&counts.inner, kernel.subgroup, kernel.operations);
    let parts = [
        ("memory", memory),
        ("arithmetic", arithmetic),
        ("LDS", lds.unwrap_or(0.0)),
        ("gap", gap_us),
    ];
    let (bound, _) = parts
        .into_iter()
        .fold(("gap", 0.0), |most, part| if part.1 > most.1 { part } else { most });
    let longest = memory.max(arithmetic).max(lds.unwrap_or(0.0));
    let us = |us: f64| format!("{us:.1}");
    let lds = lds.map_or_else(|| "-".to_owned(), us);
    [us(memory), us(arithmetic), lds, us(longest + gap_us), bound.to_owned()]
}

/// Returns what kernels that only tuning may choose have in common, by shader.
fn tried_table(tried: &[&(&Kernel, Counts)]) -> String {
    let mut shaders: BTreeMap<&str, Vec<&Kernel>> = BTreeMap::new();
    for (kernel, _) in tried {
        shaders.entry(&kernel.shader).or_default().push(kernel);
    }
    let mut text = "\n\
        ## Tried by tuning\n\
        \n\
        Shapes of products that tuning may choose instead ([decision \
        032](../decisions/032-tuning.md)), under the same rules.\n\
        \n\
        | shader | kernels | most VGPRs | most LDS bytes | fewest waves by registers | by LDS | \
        most code bytes |\n\
        |---|---:|---:|---:|---:|---:|---:|\n"
        .to_owned();
    for (shader, kernels) in shaders {
        let most = |name: &str| kernels.iter().filter_map(|kernel| kernel.statistic(name)).max();
        let most = |name: &str| most(name).unwrap_or(0);
        let fewest = |waves: &mut dyn Iterator<Item = f64>| waves.fold(f64::INFINITY, f64::min);
        let registers = fewest(&mut kernels.iter().map(|kernel| kernel.waves().0));
        let lds = fewest(&mut kernels.iter().filter_map(|kernel| kernel.waves().1));
        let lds = if lds.is_finite() { lds.to_string() } else { "-".to_owned() };
        let [vgprs, bytes, code] = ["VGPRs", "LDS size", "Code size"].map(most);
        writeln!(
            text,
            "| `{shader}` | {} | {vgprs} | {bytes} | {registers} | {lds} | {code} |",
            kernels.len()
        )
        .expect("a String takes everything");
    }
    text
}
