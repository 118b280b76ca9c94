//! `trine npu doctor`

use anyhow::Result;
use serde_json::json;
use trine_npu::UNTESTED;
use trine_npu::cores::CoreProgram;
use trine_npu::doctor::{Diagnosis, Finding as NpuFinding, State as NpuState};
use trine_npu::generate::Family;
use trine_session::library::ModelLibrary;
use trine_session::npu_packs;

use crate::cli::NpuDoctorArgs;
use crate::commands::finding::Finding;
use crate::failure::Negative;
use crate::terminal::output;
use crate::terminal::shown;

/// Checks what this machine has for an NPU.
///
/// # Errors
/// Returns [`Negative`] if there is no NPU or something is missing, after all checks are printed.
pub(super) fn run(library: &ModelLibrary, args: &NpuDoctorArgs) -> Result<()> {
    let diagnosis = diagnose();
    let packs = diagnosis.path.is_some().then(|| packs(library));
    let has_pack = packs.as_ref().is_some_and(|(_, has_pack)| *has_pack);
    let packs = packs.map(|(finding, _)| finding);
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
            output::line(if has_pack {
                format!(
                    "\nNothing is known to be missing. That is no promise: trine's code for NPUs \
                     was {UNTESTED}.\nThe first try is `trine npu selftest --report FILE`."
                )
            } else {
                format!(
                    "\nNext, a kernel pack is missing: `trine npu pack` makes one of AMD's \
                     published {}.",
                    Family::Int8.file()
                )
            })?;
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

/// Looks for kernel packs, and returns whether there is one that commands use.
fn packs(library: &ModelLibrary) -> (Finding, bool) {
    const CHECK: &str = "kernel packs";
    let folder = match npu_packs::folder(library) {
        Ok(folder) => folder,
        Err(error) => {
            return (Finding::warn(CHECK, error.to_string(), "correct that setting"), false);
        }
    };
    let packs = match npu_packs::list(&folder) {
        Ok(packs) => packs,
        Err(error) => {
            let found = format!("{error:#}");
            return (Finding::warn(CHECK, found, "make it a folder that you may read"), false);
        }
    };
    if packs.is_empty() {
        let found = format!("none in {}", shown(&folder));
        let remedy =
            "make one of AMD's published kernels with `trine npu pack`; docs/npu.md says how";
        return (Finding::warn(CHECK, found, remedy), false);
    }
    let mut refused = Vec::new();
    let mut good = Vec::new();
    let mut has_pack = false;
    for (name, pack) in packs {
        match pack {
            Ok(pack) => {
                let is_stand_in = pack.cores().is_some_and(CoreProgram::is_stand_in);
                let is_used = npu_packs::is_used(&pack.manifest);
                has_pack |= is_used;
                let only = match (is_used, is_stand_in) {
                    (false, _) => ", for no command yet",
                    (true, true) => ", for trine's model only",
                    (true, false) => "",
                };
                good.push(format!("{name} ({} streams{only})", pack.streams.len()));
            }
            Err(error) => refused.push(format!("{name} is refused: {error}")),
        }
    }
    if refused.is_empty() {
        let good = good.join(", ");
        let remedy = format!("make one of AMD's published {}", Family::Int8.file());
        let finding = match has_pack {
            true => Finding::ok(CHECK, good),
            false => Finding::warn(CHECK, good, remedy),
        };
        return (finding, has_pack);
    }
    let found = refused.into_iter().chain(good).collect::<Vec<_>>().join("; ");
    let remedy = "remove the refused ones, and make them again with `trine npu pack`";
    (Finding::warn(CHECK, found, remedy), has_pack)
}
