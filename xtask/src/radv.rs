//! What RADV's compiler makes of the Vulkan backend's kernels for a Radeon 780M: registers, spills, and the instructions
//! of the inner loops. The driver compiles for a GPU that is not there; nothing runs.

mod assembly;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, bail};
use serde::Deserialize;

use self::assembly::Counts;
use crate::drivers::{self, Driver};

/// The committed report.
const REPORT: &str = "docs/benchmarks/radv-phoenix.md";

/// The program that compiles the kernels and prints what the driver tells of each, as JSON.
const EXAMPLE: [&str; 6] =
    ["run", "--locked", "--package", "trine-vulkan", "--example", "pipeline_report"];

/// What the example prints.
#[derive(Deserialize)]
struct Output {
    /// The device's name.
    device: String,
    kernels: Vec<Kernel>,
}

/// A compiled kernel.
#[derive(Deserialize)]
struct Kernel {
    /// For people: what it computes, for which shapes.
    name: String,
    /// The shader's name.
    shader: String,
    /// Specialisation constants from 0 on.
    constants: Vec<u32>,
    /// Prefixes of instructions that it was written to be compiled to: `v_dot4`, `v_wmma`. Where there is one, the
    /// kernel multiplies packed weights, and must not load them byte by byte.
    expects: Vec<String>,
    /// As the driver names them.
    statistics: BTreeMap<String, f64>,
    /// Machine code as text.
    assembly: String,
}

/// Writes the report, or with `check` compares the committed one.
pub(crate) fn run(root: &Path, check: bool) -> anyhow::Result<()> {
    let drivers = drivers::find(root)?;
    let driver = drivers.radv.context("RADV is not there; get it with: cargo xtask drivers")?;
    if check {
        for skipped in self::check(root, &driver)? {
            eprintln!("== SKIPPED: {skipped}");
        }
        return Ok(());
    }
    let (text, count) = report(root, &driver)?;
    let path = root.join(REPORT);
    std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    eprintln!("== radv: {count} kernels are in order; {REPORT} is written");
    Ok(())
}

/// Holds the kernels to the rules and the committed report to them; returns what could not be checked.
pub(crate) fn check(root: &Path, driver: &Driver) -> anyhow::Result<Vec<String>> {
    let (text, count) = report(root, driver)?;
    if !driver.is_pinned {
        let skipped = format!(
            "comparison with {REPORT}: RADV is {}, not the version that it was made with",
            driver.version
        );
        return Ok(vec![skipped]);
    }
    let path = root.join(REPORT);
    let committed = std::fs::read_to_string(&path).with_context(|| {
        format!("cannot read {}; write it with: cargo xtask radv", path.display())
    })?;
    if committed != text {
        if let Some((number, old, new)) = first_difference(&committed, &text) {
            eprintln!("radv: line {number} of {REPORT}\n  has    {old}\n  wanted {new}");
        }
        bail!("{REPORT} is not what the kernels give; write it with: cargo xtask radv");
    }
    eprintln!("== radv: {count} kernels are in order and as {REPORT} says");
    Ok(Vec::new())
}

fn first_difference<'a>(old: &'a str, new: &'a str) -> Option<(usize, &'a str, &'a str)> {
    let (mut old, mut new) = (old.lines(), new.lines());
    for number in 1.. {
        match (old.next(), new.next()) {
            (None, None) => break,
            (left, right) if left != right => {
                return Some((number, left.unwrap_or("nothing"), right.unwrap_or("nothing")));
            }
            _ => {}
        }
    }
    None
}

/// Compiles the kernels and describes them; (the report, number of kernels). Kernels against the rules are errors.
fn report(root: &Path, driver: &Driver) -> anyhow::Result<(String, usize)> {
    let mut command = crate::cargo(root);
    command.args(EXAMPLE);
    driver.apply(&mut command);
    let output = command.stderr(Stdio::inherit()).output().context("cannot start cargo")?;
    if !output.status.success() {
        bail!("the kernels do not compile with RADV: {}", output.status);
    }
    let output: Output = serde_json::from_slice(&output.stdout)
        .context("the example's output is not as expected")?;
    if output.kernels.is_empty() {
        bail!("the example compiled no kernels");
    }
    if !output.device.to_uppercase().contains("PHOENIX") {
        bail!("the kernels were compiled for {}, not for Phoenix", output.device);
    }
    let rows: Vec<_> =
        output.kernels.iter().map(|kernel| (kernel, assembly::count(&kernel.assembly))).collect();
    let complaints: Vec<_> =
        rows.iter().flat_map(|(kernel, counts)| complaints(kernel, counts)).collect();
    complaints.iter().for_each(|complaint| eprintln!("radv: {complaint}"));
    if !complaints.is_empty() {
        bail!("{} complaints about the code for the Radeon 780M", complaints.len());
    }
    Ok((describe(&output.device, &driver.version, &rows), rows.len()))
}

/// What is wrong with a kernel's code.
fn complaints(kernel: &Kernel, counts: &Counts) -> Vec<String> {
    let mut complaints = Vec::new();
    let mut complain = |what: String| {
        complaints.push(format!("{} ({}): {what}", kernel.name, kernel.shader));
    };
    for (name, value) in &kernel.statistics {
        let lower = name.to_lowercase();
        if (lower.contains("spill") || lower.contains("scratch")) && *value != 0.0 {
            complain(format!("{name} is {value}, must be 0"));
        }
    }
    if counts.whole.instructions == 0 {
        complain("no machine code".to_owned());
    }
    for prefix in &kernel.expects {
        if !assembly::contains(&kernel.assembly, prefix) {
            complain(format!("no {prefix} in its code"));
        }
    }
    if !kernel.expects.is_empty() && counts.inner.load_8 > 0 {
        complain(format!("{} loads of single bytes in its inner loop", counts.inner.load_8));
    }
    complaints
}

/// The report as Markdown.
fn describe(device: &str, version: &str, rows: &[(&Kernel, Counts)]) -> String {
    let mut text = format!(
        "# The kernels on a Radeon 780M, as compiled\n\
        \n\
        Written by `cargo xtask radv`: do not edit. {device}, Mesa {version}, compiled for a GPU that is not there; nothing\n\
        was run. CI makes the report again and compares it; it fails on any spill, on loads of single bytes in the inner\n\
        loop of a kernel that multiplies packed weights, and where `v_dot4` or `v_wmma` was meant and is not there.\n\
        \n\
        Of the code that is outside loops nothing is counted: loads, `dot4`, `wmma`, LDS accesses and vector instructions are\n\
        those of one turn of the innermost loop with the most products (of the whole kernel where it has no loop, marked\n\
        \"-\" in the column \"loop\"). Waves are those that a SIMD can hold, of 16.\n\
        \n\
        | kernel | shader | constants | VGPRs | SGPRs | LDS bytes | waves | code bytes | loop | b128 | b96, b64 | b32 | 16 | 8 | dot4 | wmma | LDS | vector |\n\
        |---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n"
    );
    for (kernel, counts) in rows {
        let statistic = |names: &[&str]| {
            let value = names.iter().find_map(|name| kernel.statistics.get(*name));
            value.map_or_else(|| "?".to_owned(), |value| value.to_string())
        };
        let constants: Vec<_> = kernel.constants.iter().map(u32::to_string).collect();
        let inner = &counts.inner;
        let instructions =
            if counts.has_loop { inner.instructions.to_string() } else { "-".to_owned() };
        let cells = [
            kernel.name.clone(),
            format!("`{}`", kernel.shader),
            constants.join(" "),
            statistic(&["VGPRs"]),
            statistic(&["SGPRs"]),
            statistic(&["LDS size", "LDS Size"]),
            statistic(&["Subgroups per SIMD", "Max Waves"]),
            statistic(&["Code size", "Code Size"]),
            instructions,
            inner.load_128.to_string(),
            inner.load_64.to_string(),
            inner.load_32.to_string(),
            inner.load_16.to_string(),
            inner.load_8.to_string(),
            inner.dot4.to_string(),
            inner.wmma.to_string(),
            inner.shared.to_string(),
            inner.vector.to_string(),
        ];
        writeln!(text, "| {} |", cells.join(" | ")).expect("a String takes everything");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel() -> Kernel {
        Kernel {
            name: "product".to_owned(),
            shader: "matvec".to_owned(),
            constants: vec![64, 4],
            expects: vec!["v_dot4".to_owned()],
            statistics: [("VGPRs", 48.0), ("Spilled VGPRs", 0.0), ("Scratch size", 0.0)]
                .map(|(name, value)| (name.to_owned(), value))
                .into(),
            assembly:
                "BB0:\n\tglobal_load_b128 v[0:3], v4, s[0:1]\n\tv_dot4_i32_iu8 v0, v1, v2, v0\n\
                \ts_cbranch_scc1 BB0\n\ts_endpgm\n"
                    .to_owned(),
        }
    }

    fn complaints_of(kernel: &Kernel) -> Vec<String> {
        complaints(kernel, &assembly::count(&kernel.assembly))
    }

    #[test]
    fn spills_byte_loads_and_missing_products_are_complaints() {
        assert!(complaints_of(&kernel()).is_empty());

        let mut spilling = kernel();
        spilling.statistics.insert("Spilled VGPRs".to_owned(), 3.0);
        assert!(complaints_of(&spilling)[0].contains("Spilled VGPRs is 3"));

        let mut bytes = kernel();
        bytes.assembly = bytes.assembly.replace("load_b128", "load_u8");
        assert!(complaints_of(&bytes)[0].contains("1 loads of single bytes"));

        let mut plain = kernel();
        plain.assembly = plain.assembly.replace("v_dot4_i32_iu8", "v_mad_u32_u24");
        assert!(complaints_of(&plain)[0].contains("no v_dot4"));

        let mut empty = kernel();
        empty.assembly.clear();
        assert!(complaints_of(&empty)[0].contains("no machine code"));
    }

    #[test]
    fn the_report_has_a_row_for_each_kernel_with_as_many_cells_as_its_head() {
        let kernel = kernel();
        let counts = assembly::count(&kernel.assembly);
        let text = describe("PHOENIX", "25.0.7", &[(&kernel, counts)]);
        let table: Vec<_> = text.lines().filter(|line| line.starts_with('|')).collect();
        assert_eq!(table.len(), 3);
        let cells = |line: &str| line.matches('|').count();
        assert!(table.iter().all(|line| cells(line) == cells(table[0])), "{text}");
        assert!(table[2].starts_with("| product | `matvec` | 64 4 | 48 |"), "{}", table[2]);
    }

    #[test]
    fn the_first_difference_is_found() {
        assert_eq!(first_difference("a\nb\n", "a\nb\n"), None);
        assert_eq!(first_difference("a\nb", "a\nc"), Some((2, "b", "c")));
        assert_eq!(first_difference("a", "a\nc"), Some((2, "nothing", "c")));
    }
}
