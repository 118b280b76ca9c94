//! Reports what RADV's compiler does with the Vulkan backend's kernels for a Radeon 780M:
//! registers, spills, and the instructions of the main loops. The driver compiles for a GPU that is
//! not present; nothing runs.

mod assembly;
mod chip;
mod kernel;
mod text;

use std::path::Path;

use anyhow::{Context, bail};

use self::assembly::Counts;
use self::kernel::{Kernel, Output};
use self::text::describe;
use crate::driver::Driver;
use crate::hash::Hash;
use crate::programs::{self, Program};
use crate::{checks, drivers};

/// The committed report.
const REPORT: &str = "docs/benchmarks/radv-phoenix.md";

/// The beginning of the report's last line, which ends with hashes of what the kernels are compiled
/// from and of the report up to that line.
const SEAL: &str = "Sealed: ";
/// What a report is made from, beside the names of the kernels and the driver: the shaders, what
/// makes pipelines of them, and the rules.
const FOLDERS: [&str; 4] = [
    "crates/vulkan/examples/pipeline_report",
    "crates/vulkan/shaders/spv",
    "crates/vulkan/src/raw",
    "xtask/src/radv",
];

/// The example that compiles the kernels and prints the driver's facts about each, as JSON.
const EXAMPLE: &str = "pipeline_report";

/// Writes the report; with `check`, compares the committed one.
pub(crate) fn run(root: &Path, check: bool) -> anyhow::Result<()> {
    let drivers = drivers::find(root)?;
    let driver = drivers.radv.context("RADV is not there; get it with: cargo xtask drivers")?;
    let programs = checks::build(root)?;
    let example = example(&programs)?;
    if check {
        for skipped in self::check(root, &driver, example)? {
            eprintln!("== SKIPPED: {skipped}");
        }
        return Ok(());
    }
    // Written even if kernels break the rules, because it helps to mend them.
    let report = report(root, &driver, example)?;
    let path = root.join(REPORT);
    let write = |text: &str| {
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    };
    write(&report.text)?;
    eprintln!("== radv: {REPORT} is written");
    report.judge()?;
    // What is in order need not be compiled again.
    write(&sealed(&report.text, &inputs(root, &driver, example)?))?;
    eprintln!("== radv: {} kernels are in order", report.kernels);
    Ok(())
}

/// Returns the program that makes the report.
pub(crate) fn example(programs: &[Program]) -> anyhow::Result<&Program> {
    programs::find(programs, "example", EXAMPLE)
}

/// The result for the kernels.
struct Report {
    /// The report as Markdown.
    text: String,
    kernels: usize,
    /// The violations of the rules.
    complaints: Vec<String>,
}

impl Report {
    /// Fails if a kernel breaks a rule.
    fn judge(&self) -> anyhow::Result<()> {
        self.complaints.iter().for_each(|complaint| eprintln!("radv: {complaint}"));
        if !self.complaints.is_empty() {
            bail!("{} complaints about the code for the Radeon 780M", self.complaints.len());
        }
        Ok(())
    }
}

/// Checks the kernels against the rules and the committed report against the kernels. If the report
/// is sealed and nothing has changed that it is made from, nothing is compiled. Returns what could
/// not be checked.
pub(crate) fn check(
    root: &Path,
    driver: &Driver,
    example: &Program,
) -> anyhow::Result<Vec<String>> {
    let path = root.join(REPORT);
    let committed = std::fs::read_to_string(&path).with_context(|| {
        format!("cannot read {}; write it with: cargo xtask radv", path.display())
    })?;
    if driver.is_pinned && is_sealed(&committed, &inputs(root, driver, example)?) {
        eprintln!("== radv: nothing has changed since {REPORT} was written");
        return Ok(Vec::new());
    }
    let report = report(root, driver, example)?;
    report.judge()?;
    if !driver.is_pinned {
        let skipped = format!(
            "comparison with {REPORT}: RADV is {}, not the version that it was made with",
            driver.version
        );
        return Ok(vec![skipped]);
    }
    let committed = committed.split(&format!("\n{SEAL}")).next().unwrap_or_default();
    if committed != report.text {
        if let Some((number, old, new)) = first_difference(committed, &report.text) {
            eprintln!("radv: line {number} of {REPORT}\n  has    {old}\n  wanted {new}");
        }
        bail!("{REPORT} is not what the kernels give; write it with: cargo xtask radv");
    }
    eprintln!("== radv: {} kernels are in order and as {REPORT} says", report.kernels);
    eprintln!("== radv: cargo xtask radv seals it, so that they need not be compiled again");
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

/// Runs the example and returns what it prints.
fn printed(
    root: &Path,
    driver: &Driver,
    example: &Program,
    arguments: &[&str],
) -> anyhow::Result<String> {
    let mut command = example.command(root, Some(driver));
    let mut text = String::new();
    let status = programs::lines(command.args(arguments), |line| text.push_str(line))?;
    if !status.success() {
        bail!("the kernels do not compile with RADV: {status}");
    }
    Ok(text)
}

/// Returns a hash of all that a report is made from: the kernels with their launches, the shaders,
/// the driver, and the rules.
fn inputs(root: &Path, driver: &Driver, example: &Program) -> anyhow::Result<String> {
    let mut hash = Hash::default();
    hash.add(printed(root, driver, example, &["--inputs"])?.as_bytes());
    hash.add(format!("{} {:?}", driver.version, variables(driver)).as_bytes());
    hash.add(include_bytes!("radv.rs"));
    for folder in FOLDERS {
        hash.add_files(root, folder)?;
    }
    Ok(hash.end())
}

/// Returns the driver's variables, but for those that name folders.
fn variables(driver: &Driver) -> Vec<&(String, String)> {
    driver.environment.iter().filter(|(_, value)| !value.contains('/')).collect()
}

/// Returns a report with its seal.
fn sealed(text: &str, inputs: &str) -> String {
    let mut hash = Hash::default();
    hash.add(text.as_bytes());
    format!("{text}\n{SEAL}`{inputs}` `{}`\n", hash.end())
}

/// Returns whether a report was made from these inputs, and not changed since.
fn is_sealed(report: &str, inputs: &str) -> bool {
    let text = report.rsplit_once(&format!("\n{SEAL}"));
    text.is_some_and(|(text, _)| sealed(text, inputs) == report)
}

/// Compiles the kernels and describes them.
fn report(root: &Path, driver: &Driver, example: &Program) -> anyhow::Result<Report> {
    let text = printed(root, driver, example, &[])?;
    let output: Output =
        serde_json::from_str(&text).context("the example's output is not as expected")?;
    if output.kernels.is_empty() {
        bail!("the example compiled no kernels");
    }
    if !output.device.to_uppercase().contains("PHOENIX") {
        bail!("the kernels were compiled for {}, not for Phoenix", output.device);
    }
    let rows: Vec<_> =
        output.kernels.iter().map(|kernel| (kernel, assembly::count(&kernel.assembly))).collect();
    let complaints = rows.iter().flat_map(|(kernel, counts)| complaints(kernel, counts)).collect();
    let text = describe(&output, &driver.version, &rows);
    Ok(Report { text, kernels: rows.len(), complaints })
}

/// Returns the problems of a kernel's code.
fn complaints(kernel: &Kernel, counts: &Counts) -> Vec<String> {
    let mut complaints = Vec::new();
    let mut complain = |what: String| {
        let Kernel { shader, constants, .. } = kernel;
        complaints.push(format!("{} ({shader} {constants:?}): {what}", kernel.name()));
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
    let (registers, lds) = kernel.waves();
    if registers.min(lds.unwrap_or(registers)) < chip::WAVES_LEAST {
        let lds = lds.map_or_else(|| "any number".to_owned(), |waves| waves.to_string());
        complain(format!(
            "registers have room for {registers} waves of a SIMD, LDS for {lds}; at least {} are \
             needed",
            chip::WAVES_LEAST
        ));
    }
    // A byte beside each load of codes is a block's scale: no wider load would be one less.
    let assembly::Instructions { load_128, load_64, load_32, load_8, .. } = counts.inner;
    if kernel.wide && load_8 > load_128 + load_64 + load_32 {
        complain(format!("{load_8} loads of single bytes in its main loop"));
    }
    complaints
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel() -> Kernel {
        Kernel {
            program: "27B".to_owned(),
            what: "product".to_owned(),
            tokens: Some(1),
            is_trial: false,
            operations: 1e9,
            times_us: Some([7.0, 3.0]),
            shader: "matvec".to_owned(),
            constants: vec![64, 4],
            subgroup: 64,
            expects: vec!["v_dot4".to_owned()],
            wide: true,
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

        // A block's scale.
        let mut scale = kernel();
        scale.assembly =
            scale.assembly.replacen("\tv_dot4", "\tglobal_load_u8 v5, v4, s[0:1]\n\tv_dot4", 1);
        assert!(complaints_of(&scale).is_empty());

        let mut plain = kernel();
        plain.assembly = plain.assembly.replace("v_dot4_i32_iu8", "v_mad_u32_u24");
        assert!(complaints_of(&plain)[0].contains("no v_dot4"));

        let mut empty = kernel();
        empty.assembly.clear();
        assert!(complaints_of(&empty)[0].contains("no machine code"));
    }

    #[test]
    fn too_few_waves_are_a_complaint() {
        let mut large = kernel();
        large.statistics.insert("LDS size".to_owned(), 61_440.0);
        // Two workgroups of one wave.
        assert!(complaints_of(&large)[0].contains("LDS for 0.5"), "{:?}", complaints_of(&large));
        large.constants[0] = 256;
        assert!(complaints_of(&large).is_empty());
        large.statistics.insert("VGPRs".to_owned(), 257.0);
        assert!(complaints_of(&large)[0].contains("room for 1 waves"));
    }

    #[test]
    fn the_report_has_a_row_for_each_kernel_with_as_many_cells_as_its_head() {
        let tried = Kernel { is_trial: true, ..kernel() };
        let kernels = vec![kernel(), tried];
        let [gbps, tops_skinny, tops_wide, gap_us] = [73.0, 5.0, 7.0, 5.0];
        let device = "PHOENIX".to_owned();
        let output = Output { device, gbps, tops_skinny, tops_wide, gap_us, kernels };
        let rows: Vec<_> = (output.kernels.iter())
            .map(|kernel| (kernel, assembly::count(&kernel.assembly)))
            .collect();
        let text = describe(&output, "25.0.7", &rows);
        let table: Vec<_> = text.lines().filter(|line| line.starts_with('|')).collect();
        assert_eq!(table.len(), 6, "two tables of one row: {text}");
        let cells = |line: &str| line.matches('|').count();
        assert!(table[..3].iter().all(|line| cells(line) == cells(table[0])), "{text}");
        assert!(table[3..].iter().all(|line| cells(line) == cells(table[3])), "{text}");
        let row = "| 27B: product, 1 row | `matvec` | 64 4 | 48 | 0 | 10 | - |";
        assert!(table[2].starts_with(row), "{}", table[2]);
        assert!(table[2].ends_with("| 7.0 | 3.0 | 0.0 | 12.0 | memory |"), "{}", table[2]);
    }

    #[test]
    fn a_seal_holds_for_its_inputs_and_its_text() {
        let report = sealed("a\nb\n", "inputs");
        assert!(is_sealed(&report, "inputs"), "{report}");
        assert!(!is_sealed(&report, "others"));
        assert!(!is_sealed(&report.replace('b', "c"), "inputs"));
        assert!(!is_sealed("a\nb\n", "inputs"));
    }

    #[test]
    fn the_first_difference_is_found() {
        assert_eq!(first_difference("a\nb\n", "a\nb\n"), None);
        assert_eq!(first_difference("a\nb", "a\nc"), Some((2, "b", "c")));
        assert_eq!(first_difference("a", "a\nc"), Some((2, "nothing", "c")));
    }
}
