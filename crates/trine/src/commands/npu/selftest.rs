//! `trine npu selftest`

use std::fs::File;
use std::io::{BufRead, ErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use serde_json::{Value, json};
use trine_npu::UNTESTED;
use trine_npu::doctor::{Diagnosis, State};
use trine_npu::pack::Pack;
use trine_npu::selftest::{Ending, Outcome, Plan, REPEATS, Results, median};
use trine_session::library::ModelLibrary;
use trine_session::npu_packs;

use crate::cli::NpuSelftestArgs;
use crate::commands::npu::doctor;
use crate::destination::behind_links;
use crate::failure::{Interrupted, Negative, OutputClosed, usage};
use crate::interrupt::Watch;
use crate::terminal::output;
use crate::terminal::{self, shown};

/// The format of a report.
const REPORT_FORMAT: u32 = 1;

/// Tries the NPU with products and compares them with exact ones.
///
/// # Errors
/// Returns an error without a pack, without an answer to the question, and if the report cannot be
/// written; [`Negative`] if the NPU cannot be used or a product is not right.
pub(super) fn run(library: &ModelLibrary, args: &NpuSelftestArgs) -> Result<()> {
    let folder = match &args.pack {
        Some(folder) => folder.clone(),
        None => npu_packs::only_pack(library)?,
    };
    let pack = Pack::open(&folder).with_context(|| format!("{} is refused", shown(&folder)))?;
    let plan = Plan::new(&pack).map_err(anyhow::Error::msg)?;
    let diagnosis = doctor::diagnose();
    let mut report = Report::new(args.report.as_deref(), &diagnosis, &pack, &plan)?;
    let Some(path) = diagnosis.path.clone().filter(|_| diagnosis.is_usable()) else {
        report.write(None)?;
        for finding in &diagnosis.findings {
            if finding.state == State::Fail {
                let (found, check) = (&finding.found, finding.check);
                let remedy = finding.remedy.as_deref().unwrap_or_default();
                output::error(format!("{check}: {found}\n  -> {remedy}"));
            }
        }
        if let Some(path) = &args.report {
            output::note(&format!("{} has what is missing, for who helps you", shown(path)));
        }
        bail!("the NPU cannot be used, and nothing was submitted; `trine npu doctor` says more");
    };
    for (file, reason) in &plan.left_out {
        output::note(&format!("{file} is not run: {reason}"));
    }
    let is_model = diagnosis.facts.is_model;
    if is_model {
        output::warning("the driver is trine's model, and no result here is an NPU's");
    } else if plan.is_stand_in() {
        output::warning(
            "the pack's cores stand in for published ones: it is for trine's model of the driver, \
             and this is another",
        );
    }
    if !agrees(args.yes, &plan)? {
        output::line("Nothing was submitted.")?;
        return Err(Negative.into());
    }
    report.write(None)?;
    let watch = Watch::new();
    let header = format!("{:<26} {:>7} {:>10} {:>9}", "product", "result", "wrong", "ms");
    if let Err(error) = output::line(header) {
        bail!("{error}, and nothing was submitted");
    }
    let mut results = Results::default();
    let mut failure = None;
    let mut tell = |outcome: &Outcome| {
        results.outcomes.push(outcome.clone());
        let written = report.write(Some(&results));
        if let Err(error) = written.and(print(outcome)) {
            let reason = error.to_string();
            failure = failure.take().or(Some(error));
            return Err(reason);
        }
        watch.check().map_err(|Interrupted| "Ctrl-C was pressed".to_owned())
    };
    let results = submit(&path, &plan, &mut tell);
    let written = report.write(Some(&results));
    let verdict = conclude(&results, args.report.as_deref(), is_model);
    written?;
    // Nobody reads it, and the verdict counts all the same.
    if let Some(error) = failure.filter(|error| !error.is::<OutputClosed>()) {
        return Err(error);
    }
    watch.check()?;
    verdict
}

/// Says what is about to happen, and asks.
fn agrees(yes: bool, plan: &Plan) -> Result<bool> {
    let commands = plan.trials.len() * REPEATS;
    output::warning(format!(
        "as far as its makers know, this was {UNTESTED}. {commands} commands are about to be \
         submitted. A command that hangs can take a restart of the machine: save your work"
    ));
    if yes {
        return Ok(true);
    }
    if !terminal::stdin_is_terminal() {
        return Err(usage("nobody can be asked here; --yes submits without a question"));
    }
    output::remark("Submit them? Type yes:");
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer).context("cannot read the answer")?;
    Ok(answer.trim().eq_ignore_ascii_case("yes"))
}

/// Runs the plan on the device.
fn submit(
    path: &str,
    plan: &Plan,
    tell: &mut dyn FnMut(&Outcome) -> Result<(), String>,
) -> Results {
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    return trine_npu::selftest::run(trine_npu::sys::real::RealSys::new(), path, plan, tell);
    #[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
    {
        let _ = (path, plan, tell);
        Results { stopped: Some("no NPU can be used here".to_owned()), ..Results::default() }
    }
}

fn print(outcome: &Outcome) -> Result<()> {
    let Outcome { name, milliseconds, wrong, elements, error, .. } = outcome;
    let (word, style) = match outcome.ending {
        Ending::Right => ("  right", terminal::GOOD),
        Ending::Wrong => ("  wrong", terminal::ERROR),
        Ending::Failed => (" failed", terminal::ERROR),
    };
    let word = terminal::on_stdout(word, style);
    // Of a product that has no result some runs may have ended.
    let time = median(milliseconds).filter(|_| outcome.ending != Ending::Failed);
    let time = time.map(|time| format!("{:.3}", 1e3 * time.as_secs_f64()));
    let time = time.unwrap_or_default();
    let share = format!("{wrong}/{elements}");
    output::line(format!("{name:<26} {word} {share:>10} {time:>9}"))?;
    match error {
        Some(error) => output::line(format!("  {error}")),
        None => Ok(()),
    }
}

fn conclude(results: &Results, report: Option<&Path>, is_model: bool) -> Result<()> {
    if let Some(stopped) = &results.stopped {
        output::error(stopped);
    }
    if let Some(report) = report {
        output::note(&format!(
            "{} has what a developer needs, and no name of a user, host or folder. To send it, \
             open an issue in the repository that you got trine from; docs/npu.md says what else \
             to send",
            shown(report)
        ));
    }
    if !results.are_right() {
        return Err(Negative.into());
    }
    output::line(match is_model {
        true => "All products are exact, on trine's model.",
        false => "All products are exact.",
    })
}

/// A report that is written again with every outcome: the machine may hang at the next.
struct Report {
    path: Option<PathBuf>,
    /// Made with the first outcome.
    file: Option<File>,
    value: Value,
}

impl Report {
    fn new(path: Option<&Path>, diagnosis: &Diagnosis, pack: &Pack, plan: &Plan) -> Result<Self> {
        if let Some(path) = path {
            behind_links(path)?;
        }
        // The one of a run that ended in a restart is worth more than the next.
        if let Some(path) = path.filter(|path| path.exists()) {
            return Err(is_there(path));
        }
        let planned: Vec<&str> = plan.trials.iter().map(|trial| trial.name.as_str()).collect();
        let streams: Vec<Value> = pack.manifest.stream.iter().map(|entry| {
            json!({"kernel": entry.kernel.map(|kernel| kernel.to_string()), "sha256": entry.sha256})
        }).collect();
        let value = json!({
            "format": REPORT_FORMAT,
            "note": format!("the version of trine that wrote this was {UNTESTED} by its makers"),
            "trine": env!("CARGO_PKG_VERSION"),
            "build": if cfg!(debug_assertions) { "debug" } else { "release" },
            "doctor": diagnosis,
            "pack": {
                "stand_in": pack.manifest.stand_in,
                "xclbin_sha256": pack.manifest.xclbin.sha256,
                "firmware_protocol": pack.manifest.firmware_protocol,
                "streams": streams,
            },
            "planned": planned,
            "repeats": REPEATS,
            "results": null,
        });
        Ok(Self { path: path.map(Path::to_owned), file: None, value })
    }

    /// Writes the report with what is known by now, onto the disk.
    fn write(&mut self, results: Option<&Results>) -> Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        if self.file.is_none() {
            let made = File::create_new(path).map_err(|error| match error.kind() {
                ErrorKind::AlreadyExists => is_there(path),
                _ => anyhow::Error::new(error).context(cannot_write(path)),
            });
            self.file = Some(made?);
        }
        let Some(file) = &mut self.file else { return Ok(()) };
        self.value["results"] = serde_json::to_value(results)?;
        let text = format!("{}\n", serde_json::to_string_pretty(&self.value)?);
        let written = std::io::Seek::rewind(file)
            .and_then(|()| file.set_len(0))
            .and_then(|()| file.write_all(text.as_bytes()))
            .and_then(|()| file.sync_all());
        written.with_context(|| cannot_write(path))
    }
}

fn is_there(path: &Path) -> anyhow::Error {
    anyhow!(
        "{} is there already, and may be the report of a run before: move it, or name another file",
        shown(path)
    )
}

fn cannot_write(path: &Path) -> String {
    format!("cannot write {}; name a file in a folder that you may write", shown(path))
}
