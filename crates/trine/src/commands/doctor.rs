//! `trine doctor`

mod gpu;
mod verdict;

use std::path::{Path, PathBuf};

use anyhow::Result;
use trine_hub::EntryState;
use trine_session::bandwidth::Bandwidth;
use trine_session::embedded::Embedded;
use trine_session::library::ModelLibrary;
use trine_session::machine;
use trine_session::model_source::Source;
use trine_session::vocabulary::TextSide;

use self::verdict::Verdict;
use super::finding::{Finding, State};
use crate::cli::DoctorArgs;
use crate::failure::Negative;
use crate::terminal::output;

/// With less memory than this, a usual 4-bit model of 1 billion parameters with its context does
/// not fit.
const MEMORY_SCARCE: u64 = 2 << 30;

/// Checks this machine.
///
/// # Errors
/// Returns [`Negative`] if a check fails, after all of them are printed.
pub(crate) fn run(library: &ModelLibrary, args: DoctorArgs) -> Result<()> {
    let mut findings = vec![program(), embedded_model(), processor(), cores(), memory()];
    if !args.quick {
        findings.push(bandwidth());
    }
    findings.extend(store(library));
    findings.extend(gpu::findings(args.quick));
    findings.extend(device_nodes());
    let verdict = Verdict::new(library, args.quick);
    if args.json {
        findings.push(verdict.finding());
        output::json(&findings)?;
    } else {
        findings.iter().try_for_each(Finding::print)?;
        output::line(format_args!("\n{}", verdict.text()))?;
    }
    if findings.iter().any(|finding| finding.state == State::Fail) {
        return Err(Negative.into());
    }
    Ok(())
}

fn program() -> Finding {
    let build = if cfg!(debug_assertions) { "debug build" } else { "release build" };
    let found = format!(
        "trine {} for {} on {}, {build}",
        env!("CARGO_PKG_VERSION"),
        std::env::consts::ARCH,
        std::env::consts::OS
    );
    if cfg!(debug_assertions) {
        return Finding::warn(
            "program",
            found,
            "build with `cargo build --release`: it is many times faster",
        );
    }
    Finding::ok("program", found)
}

fn embedded_model() -> Finding {
    const CHECK: &str = "demo model";
    let opened = Source::DEMO.open(None).and_then(|model| {
        TextSide::read(model.checkpoint(), &model.defaults().stop_ids, true, None).map(|_| model)
    });
    match opened {
        Ok(model) => {
            let size = output::bytes(Embedded::Demo.bytes().len() as u64);
            Finding::ok(CHECK, format!("{size}, {} layers", model.config().layers.len()))
        }
        Err(error) => Finding::fail(
            CHECK,
            error.to_string(),
            "this file of trine is damaged: build or download it again",
        ),
    }
}

fn processor() -> Finding {
    const CHECK: &str = "processor";
    let name = machine::processor().unwrap_or_else(|| std::env::consts::ARCH.to_owned());
    let features = machine::processor_features();
    let present: Vec<&str> =
        features.iter().filter(|(_, present)| *present).map(|(name, _)| *name).collect();
    let found =
        format!("{name}; kernels: {:?}; {}", trine_cpu::isa::Isa::detect(), present.join(" "));
    if trine_cpu::isa::Isa::detect() == trine_cpu::isa::Isa::Scalar {
        let remedy = "models run slowly here; in a virtual machine pass the host's processor \
            features through (AVX2, FMA and F16C on x86-64)";
        return Finding::warn(CHECK, found, remedy);
    }
    Finding::ok(CHECK, found)
}

fn cores() -> Finding {
    const CHECK: &str = "cores";
    let cores = machine::cores();
    match machine::processor_limit() {
        Some(limit) if limit + 0.5 < cores as f64 => Finding::warn(
            CHECK,
            format!("{cores} cores, but the control group allows the time of {limit:.1}"),
            format!(
                "raise the container's CPU limit, or run with --threads {}",
                (limit.floor() as usize).max(1)
            ),
        ),
        Some(limit) => {
            Finding::ok(CHECK, format!("{cores} cores (the control group allows {limit:.1})"))
        }
        None => Finding::ok(CHECK, format!("{cores} cores, no limit by a control group")),
    }
}

fn memory() -> Finding {
    const CHECK: &str = "memory";
    let (Some(total), Some(available)) = (machine::total_memory(), machine::available_memory())
    else {
        return Finding::warn(
            CHECK,
            "unknown: the system does not tell",
            "choose models that surely fit",
        );
    };
    let mut found =
        format!("{} in all, {} available", output::bytes(total), output::bytes(available));
    if let Some((limit, _)) = machine::memory_limit() {
        found.push_str(&format!(", the control group allows {}", output::bytes(limit)));
    }
    if let Some(swapped) = machine::swap_used().filter(|&swapped| swapped > total / 8) {
        found.push_str(&format!(", {} swapped out", output::bytes(swapped)));
        return Finding::warn(
            CHECK,
            found,
            "close other programs: a model that is swapped out crawls",
        );
    }
    if available < MEMORY_SCARCE {
        let remedy = "close other programs or raise the container's limit; small models and a \
            short --context still run";
        return Finding::warn(CHECK, found, remedy);
    }
    Finding::ok(CHECK, found)
}

fn bandwidth() -> Finding {
    const CHECK: &str = "bandwidth";
    let threads = machine::cores();
    match Bandwidth::new(threads) {
        Err(error) => {
            Finding::warn(CHECK, error.to_string(), "free some memory, or check with --quick")
        }
        Ok(bandwidth) => {
            let best = (0..5).map(|_| bandwidth.measure()).fold(0.0, f64::max);
            let rate = output::rate(best / 1e9);
            Finding::ok(
                CHECK,
                format!(
                    "{rate} GB/s of streaming reads with {} (best of 5): a model of 1 GB writes at \
                     most {rate} tokens/s",
                    output::counted(threads, "thread")
                ),
            )
        }
    }
}

/// Checks the store, the cache, the token and the models.
fn store(library: &ModelLibrary) -> Vec<Finding> {
    let config = match library.hub_config() {
        Ok(config) => config,
        Err(error) => {
            return vec![Finding::fail(
                "store",
                error.to_string(),
                "correct the setting that is named",
            )];
        }
    };
    let mut findings = vec![writable("store", &config.store, "TRINE_HOME")];
    findings.push(match &config.hugging_face_cache {
        Some(cache) if cache.is_dir() => match std::fs::read_dir(cache) {
            Ok(_) => Finding::ok("cache", format!("{} is read too", cache.display())),
            Err(error) => Finding::warn(
                "cache",
                format!("{} cannot be read: {error}", cache.display()),
                "correct its permissions, or set HF_HUB_CACHE",
            ),
        },
        Some(cache) => {
            Finding::ok("cache", format!("no Hugging Face cache in {}", cache.display()))
        }
        None => Finding::ok("cache", "no Hugging Face cache"),
    });
    findings.push(Finding::ok(
        "token",
        match (&config.token, config.offline) {
            (_, true) => "not used: HF_HUB_OFFLINE is set, nothing is downloaded",
            (Some(_), _) => "present (it is not shown)",
            (None, _) => "none; only gated and private repositories need one (HF_TOKEN)",
        },
    ));
    findings.push(models(library));
    findings
}

fn models(library: &ModelLibrary) -> Finding {
    const CHECK: &str = "models";
    let entries = match library.hub().and_then(|hub| hub.list()) {
        Ok(entries) => entries,
        Err(error) => {
            return Finding::fail(CHECK, error.to_string(), "correct the folder or set TRINE_HOME");
        }
    };
    let partial = entries.iter().filter(|entry| entry.state == EntryState::Partial).count();
    let complete = entries.len() - partial;
    let size = output::bytes(entries.iter().map(|entry| entry.bytes).sum());
    let found = format!("{complete} complete, {partial} partial, {size}");
    match entries.iter().find(|entry| entry.state == EntryState::Partial) {
        Some(entry) => Finding::warn(
            CHECK,
            found,
            format!(
                "complete it with `trine pull {0}` or remove it with `trine rm {0}`",
                entry.name
            ),
        ),
        None => Finding::ok(CHECK, found),
    }
}

/// Checks whether files can be created in a folder, or in its nearest ancestor that exists.
fn writable(check: &'static str, folder: &Path, setting: &str) -> Finding {
    let existing = folder
        .ancestors()
        .find(|folder| folder.exists())
        .map_or(PathBuf::from("."), Path::to_owned);
    let probe = existing.join(format!(".trine-doctor-{}", std::process::id()));
    let written = std::fs::OpenOptions::new().write(true).create_new(true).open(&probe);
    let _ = std::fs::remove_file(&probe);
    match written {
        Ok(_) if existing == folder => {
            Finding::ok(check, format!("{} can be written", folder.display()))
        }
        Ok(_) => Finding::ok(check, format!("{} is not created yet", folder.display())),
        Err(error) => Finding::fail(
            check,
            format!("{} cannot be written: {error}", existing.display()),
            format!("correct its permissions or set {setting} to a folder that you may write"),
        ),
    }
}

/// Checks the device files of GPUs and NPUs.
fn device_nodes() -> Vec<Finding> {
    let nodes = machine::device_nodes();
    let finding = |check: &'static str, kind: &str, note: &str| {
        let found: Vec<_> = nodes.iter().filter(|node| node.0 == kind).collect();
        if found.is_empty() {
            return Finding::ok(check, format!("no {kind} device node"));
        }
        let node = |(_, path, usable): &&(&str, String, bool)| {
            format!("{path}{}", if *usable { "" } else { " (may not be opened)" })
        };
        let list = found.iter().map(node).collect::<Vec<_>>().join(", ");
        if found.iter().all(|(_, _, usable)| *usable) {
            return Finding::ok(check, format!("{list}{note}"));
        }
        Finding::warn(
            check,
            format!("{list}{note}"),
            "add your user to the group that owns them (mostly `render`, see `ls -l`) and log in \
             again",
        )
    };
    vec![finding("gpu nodes", "GPU", ""), finding("npu", "NPU", "; `trine npu doctor` says more")]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_that_can_be_written() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(writable("store", folder.path(), "X").state, State::Ok);
        let missing = folder.path().join("a/b");
        let finding = writable("store", &missing, "X");
        assert_eq!(finding.state, State::Ok);
        assert!(finding.found.contains("not created yet"), "{}", finding.found);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left behind");
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert_eq!(writable("store", &file.join("x"), "X").state, State::Fail);
    }
}
