//! `trine npu doctor`

use anyhow::Result;
use serde_json::json;
use trine_npu::UNTESTED;
use trine_npu::cores::CoreProgram;
use trine_npu::doctor::{Diagnosis, Finding as NpuFinding, State as NpuState};

use super::finding::Finding;
use crate::cli::NpuDoctorArgs;
use crate::failure::Negative;
use crate::npu_packs;
use crate::output;

/// Checks what this machine has for an NPU.
///
/// # Errors
/// Returns [`Negative`] if there is no NPU or something is missing, after all checks are printed.
pub(super) fn run(args: &NpuDoctorArgs) -> Result<()> {
    let diagnosis = diagnose();
    let packs = diagnosis.path.is_some().then(packs);
    let found = |finding: &NpuFinding| {
        let NpuFinding { check, found, remedy, state } = finding;
        let remedy = remedy.clone().unwrap_or_default();
        match state {
            NpuState::Ok => Finding::ok(*check, found),
            NpuState::Warn => Finding::warn(*check, found, remedy),
            NpuState::Fail => Finding::fail(*check, found, remedy),
        }
    };
    let findings: Vec<Finding> = diagnosis.findings.iter().map(found).chain(packs).collect();
    if args.json {
        let Diagnosis { path, facts, .. } = &diagnosis;
        let note = format!("trine's code for NPUs was {UNTESTED}");
        output::json(&json!({"note": note, "path": path, "findings": findings, "facts": facts}))?;
    } else {
        findings.iter().try_for_each(Finding::print)?;
        if diagnosis.is_usable() {
            output::line(format!(
                "\nNothing is known to be missing. That is no promise: trine's code for NPUs was {UNTESTED}.\nThe first try is `trine npu selftest --report FILE`."
            ))?;
        }
    }
    if diagnosis.is_usable() { Ok(()) } else { Err(Negative.into()) }
}

/// Checks this machine.
pub(super) fn diagnose() -> Diagnosis {
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    return trine_npu::doctor::diagnose(&trine_npu::sys::real::RealSys::new());
    #[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
    return Diagnosis {
        findings: vec![NpuFinding::fail(
            "device",
            "no NPU here: trine looks for one on Linux on x86-64 only",
            "use Linux on a machine with an AMD Ryzen named Phoenix or Hawk Point",
        )],
        ..Diagnosis::default()
    };
}

/// Looks for kernel packs.
fn packs() -> Finding {
    const CHECK: &str = "kernel packs";
    let folder = match npu_packs::folder() {
        Ok(folder) => folder,
        Err(error) => return Finding::warn(CHECK, error.to_string(), "correct that setting"),
    };
    let packs = npu_packs::list(&folder);
    if packs.is_empty() {
        let found = format!("none in {}", folder.display());
        let remedy =
            "make one of AMD's published kernels with `trine npu pack`; docs/npu.md says how";
        return Finding::warn(CHECK, found, remedy);
    }
    let mut refused = Vec::new();
    let mut good = Vec::new();
    for (name, pack) in packs {
        match pack {
            Ok(pack) => {
                let is_stand_in = pack.cores().is_some_and(CoreProgram::is_stand_in);
                let only = if is_stand_in { ", for trine's model only" } else { "" };
                good.push(format!("{name} ({} streams{only})", pack.streams.len()));
            }
            Err(error) => refused.push(format!("{name} is refused: {error}")),
        }
    }
    if refused.is_empty() {
        return Finding::ok(CHECK, good.join(", "));
    }
    let found = refused.into_iter().chain(good).collect::<Vec<_>>().join("; ");
    Finding::warn(CHECK, found, "make the refused ones again with `trine npu pack`")
}
