//! `trine pull`, `list` and `rm`: the models on this machine.

use std::time::Duration;

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};
use trine_hub::{EntryState, HubError, ModelName, Origin, Progress, StoreEntry};

use crate::cli::{ListArgs, PullArgs, RemoveArgs};
use crate::embedded::Embedded;
use crate::failure::{Interrupted, usage};
use crate::interrupt::Watch;
use crate::model_source::hub;
use crate::output;
use crate::terminal;

const BAR: &str = "{msg} {bar:30} {bytes}/{total_bytes}, {bytes_per_sec}, {eta} left";
const COUNTER: &str = "{msg} {spinner} {bytes}, {bytes_per_sec}";

/// Shows a download: bars on a terminal, a line for each file elsewhere.
struct Shown<'a> {
    watch: &'a Watch,
    bar: Option<ProgressBar>,
}

impl Progress for Shown<'_> {
    fn start(&mut self, file: &str, total: Option<u64>) {
        let name = terminal::harmless(file).into_owned();
        if !terminal::stderr_is_terminal() {
            output::remark(match total {
                Some(total) => format!("fetching {name}, {}", output::bytes(total)),
                None => format!("fetching {name}"),
            });
            return;
        }
        let bar = total.map_or_else(ProgressBar::new_spinner, ProgressBar::new);
        if let Ok(style) = ProgressStyle::with_template(if total.is_some() { BAR } else { COUNTER })
        {
            bar.set_style(style);
        }
        bar.set_message(name);
        bar.enable_steady_tick(Duration::from_millis(200));
        if let Some(before) = self.bar.replace(bar) {
            before.finish_and_clear();
        }
    }

    fn advance(&mut self, bytes: u64) {
        if let Some(bar) = &self.bar {
            bar.inc(bytes);
        }
    }

    fn done(&mut self, file: &str) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
        output::remark(format_args!(
            "{} {}",
            terminal::on_stderr("done:", terminal::GOOD),
            terminal::harmless(file)
        ));
    }

    fn waiting(&mut self, reason: &str) {
        let reason = terminal::harmless(reason);
        match &self.bar {
            Some(bar) => bar.println(format!("waiting: {reason}")),
            None => output::remark(format_args!("waiting: {reason}")),
        }
    }

    fn cancelled(&self) -> bool {
        self.watch.raised()
    }
}

fn parse_name(text: &str) -> Result<ModelName> {
    if Embedded::find(text).is_some() {
        return Err(usage(format!(
            "{text} is a model inside this program; there is nothing to fetch or remove"
        )));
    }
    ModelName::parse(text).map_err(|error| usage(error.to_string()))
}

/// Fetches a model.
///
/// # Errors
/// If that fails; what was fetched stays and is continued next time.
pub(crate) fn pull(args: PullArgs) -> Result<()> {
    let name = parse_name(&args.model)?;
    let hub = hub()?;
    let watch = Watch::new();
    let mut shown = Shown { watch: &watch, bar: None };
    let pulled = hub.pull(&name, &mut shown);
    if let Some(bar) = shown.bar.take() {
        bar.finish_and_clear();
    }
    let model = match pulled {
        Err(HubError::Cancelled) => {
            output::note("stopped; the same command continues where it stopped");
            return Err(Interrupted.into());
        }
        other => other?,
    };
    if args.json {
        return output::json(&model);
    }
    output::remark(format_args!(
        "{}, {}, in {}",
        model.name,
        output::bytes(model.bytes),
        model.path.display()
    ));
    output::remark(format_args!("run it with: trine run {}", model.name));
    Ok(())
}

/// Lists the local models.
///
/// # Errors
/// If the store cannot be read.
pub(crate) fn list(args: ListArgs) -> Result<()> {
    let entries = hub()?.list()?;
    if args.json {
        return output::json(&entries);
    }
    let inside = |model: Embedded| {
        let size = output::bytes(model.bytes().len() as u64);
        vec![model.name().to_owned(), size, "inside this program".to_owned()]
    };
    let mut rows: Vec<_> = Embedded::ALL.into_iter().map(inside).collect();
    rows.extend(entries.iter().map(row));
    output::line(output::table(&["name", "size", "state"], rows, &[1]))
}

fn row(entry: &StoreEntry) -> Vec<String> {
    let state = match (entry.state, entry.origin) {
        (EntryState::Complete, Origin::Store) => "complete".to_owned(),
        (EntryState::Complete, Origin::HuggingFaceCache) => {
            "complete, in the Hugging Face cache".to_owned()
        }
        (EntryState::Partial, _) => {
            let share = entry.percent.map_or(String::new(), |percent| format!(" {percent} %"));
            format!("partial{share}; `trine pull` continues")
        }
    };
    vec![
        terminal::harmless(&entry.name.to_string()).into_owned(),
        output::bytes(entry.bytes),
        state,
    ]
}

/// Removes a model.
///
/// # Errors
/// If there is no such model in the store, or it cannot be removed.
pub(crate) fn remove(args: RemoveArgs) -> Result<()> {
    let name = parse_name(&args.model)?;
    let removed = hub()?.remove(&name)?;
    output::remark(format_args!(
        "removed {}: {} {}, {}",
        removed.name,
        removed.files.len(),
        if removed.files.len() == 1 { "file" } else { "files" },
        output::bytes(removed.bytes)
    ));
    Ok(())
}
