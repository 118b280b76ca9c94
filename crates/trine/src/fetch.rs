//! Downloads models: asks first, and shows the progress.

use std::io::stdin;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};
use trine_hub::{
    EntryState, Header, Hub, HubError, LeftOut, LocalModel, ModelName, Progress, catalog,
};

use crate::failure::{Interrupted, Negative};
use crate::interrupt::Watch;
use crate::output;
use crate::seeing;
use crate::suiting::Suited;
use crate::terminal;

const BAR: &str =
    "{msg} {bar:30} {decimal_bytes}/{decimal_total_bytes}, {decimal_bytes_per_sec}, {eta} left";
const COUNTER: &str = "{msg} {spinner} {decimal_bytes}, {decimal_bytes_per_sec}";
/// The longest reply to a question that is read, in bytes.
const REPLY_BYTES_MAX: u64 = 1024;

/// Fetches a model. Ctrl-C stops the download in good order.
///
/// # Errors
/// Returns an error if the download fails. The part that was fetched stays and is continued next
/// time.
pub(crate) fn fetch(hub: &Hub, name: &ModelName) -> Result<LocalModel> {
    let watch = Watch::new();
    let mut shown = Shown::new(&watch);
    let pulled = hub.pull(name, &mut shown);
    shown.clear();
    match pulled {
        Err(HubError::Cancelled) => {
            output::note("stopped; the same command continues where it stopped");
            Err(Interrupted.into())
        }
        other => {
            let model = other?;
            if let Some(left_out) = &model.left_out {
                output::remark(without_tower(&model.name, left_out));
            }
            Ok(model)
        }
    }
}

/// Reads the headers of a model on the server into a folder. Ctrl-C stops it.
///
/// # Errors
/// Returns an error if the server does not have the model or does not give its header, or the model
/// cannot be run.
pub(crate) fn header(hub: &Hub, name: &ModelName, folder: &Path) -> Result<Header> {
    let watch = Watch::new();
    let mut shown = Shown::new(&watch);
    let _sign = terminal::Sign::of("reading the model's header");
    match hub.header(name, folder, &mut shown) {
        Err(HubError::Cancelled) => Err(Interrupted.into()),
        other => Ok(other?),
    }
}

/// Returns that a model was fetched without its vision tower, why, and what to do.
fn without_tower(name: &ModelName, left_out: &LeftOut) -> String {
    let (name, file) = (name.to_string(), terminal::harmless(&left_out.file));
    let name = terminal::harmless(&name);
    match &left_out.reason {
        None => format!(
            "its vision tower {file} is left out: {name} takes texts only; `trine pull {name}` without --no-mmproj downloads it"
        ),
        Some(reason) => format!(
            "its vision tower {file} is left out: {}; {name} takes texts only; for images name another tower with --mmproj \
             FILE, or {}",
            terminal::harmless(reason),
            seeing::other()
        ),
    }
}

/// Asks on the terminal whether to download a model. `bytes` is its size if that is known without
/// asking the server. A model that has no memory here is told as such, and Enter means no then.
///
/// # Errors
/// Returns [`Negative`] if the answer is no, or an error if the server does not have the model.
pub(crate) fn ask(hub: &Hub, typed: &str, name: &ModelName, bytes: Option<u64>) -> Result<()> {
    let (bytes, size) = match bytes {
        Some(bytes) => (bytes, output::about_bytes(bytes)),
        None => {
            let watch = Watch::new();
            let mut shown = Shown::new(&watch);
            match hub.remote_bytes(name, &mut shown) {
                Err(HubError::Cancelled) => return Err(Interrupted.into()),
                other => match other? {
                    Some(bytes) => (bytes, output::bytes(bytes)),
                    None => (0, "of unknown size".to_owned()),
                },
            }
        }
    };
    let (misfit, here) = (misfit(name, bytes), share_here(hub, name));
    let typed = terminal::harmless(typed);
    let what = match name.to_string() {
        name if name == typed => name,
        name => format!("{typed} ({name})"),
    };
    let question = match (&misfit, here) {
        (None, None) => format!("{what} is not on this machine. Download it, {size}? [Y/n] "),
        (None, Some(share)) => {
            format!("{what} is here {share}. Go on with its download, {size} in all? [Y/n] ")
        }
        (Some(misfit), _) => format!(
            "{what} is not on this machine; its files have {size}.\n{misfit}\nDownload it anyway? [y/N] "
        ),
    };
    agree(&question, &what, misfit.is_none())
}

/// Returns whether there is a terminal to ask on.
pub(crate) fn can_ask() -> bool {
    terminal::stdin_is_terminal() && terminal::stderr_is_terminal()
}

/// Asks on the terminal whether to download a model although it has no memory here.
///
/// # Errors
/// Returns [`Negative`] if the answer is no.
pub(crate) fn ask_anyway(what: &str, misfit: &str) -> Result<()> {
    agree(&format!("{misfit}\nDownload it anyway? [y/N] "), what, false)
}

/// Asks a question about a download; `is_usual` says whether Enter means yes.
fn agree(question: &str, what: &str, is_usual: bool) -> Result<()> {
    output::question(question);
    let mut reply = String::new();
    // No watch is alive here, so Ctrl-C ends the program.
    let read = std::io::BufRead::read_line(
        &mut std::io::Read::take(stdin().lock(), REPLY_BYTES_MAX),
        &mut reply,
    );
    let is_yes = match reply.trim().to_ascii_lowercase().as_str() {
        "" => is_usual,
        reply => matches!(reply, "y" | "yes"),
    };
    match read {
        // Zero bytes mean the end of the input, which is no consent.
        Ok(count) if count > 0 && is_yes => Ok(()),
        // The person decided so: this is no error to explain.
        _ => {
            output::remark(format_args!("{what} was not downloaded"));
            Err(Negative.into())
        }
    }
}

/// Returns how much of a model an interrupted download has left here, for people.
pub(crate) fn share_here(hub: &Hub, name: &ModelName) -> Option<String> {
    let entries = hub.list().ok()?;
    let partial =
        entries.iter().find(|entry| entry.name == *name && entry.state == EntryState::Partial);
    partial.map(|entry| match entry.percent {
        Some(percent) => format!("to {percent} %"),
        None => "in part".to_owned(),
    })
}

/// Returns what there is to say before a download of a model that has no memory here.
pub(crate) fn misfit(name: &ModelName, bytes: u64) -> Option<String> {
    Suited::unmeasured().misfit("It", catalog::of(name), bytes)
}

/// Shows a download: bars on a terminal, a line for each file elsewhere.
struct Shown<'a> {
    watch: &'a Watch,
    bar: Option<ProgressBar>,
}

impl<'a> Shown<'a> {
    fn new(watch: &'a Watch) -> Self {
        Self { watch, bar: None }
    }

    fn clear(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

impl Progress for Shown<'_> {
    fn start(&mut self, file: &str, total: Option<u64>) {
        let name = terminal::harmless(file).into_owned();
        if !terminal::stderr_is_terminal() {
            output::remark(match total {
                Some(total) => format!("downloading {name}, {}", output::bytes(total)),
                None => format!("downloading {name}"),
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
        if let Some(bar) = &self.bar
            && let Some(length) = bar.length()
        {
            bar.set_position(length);
        }
        self.clear();
        output::remark(format_args!(
            "{} {}",
            terminal::on_stderr("done:", terminal::GOOD),
            terminal::harmless(file)
        ));
    }

    fn remark(&mut self, text: &str) {
        let text = terminal::harmless(text);
        match &self.bar {
            Some(bar) => bar.println(text),
            None => output::remark(text),
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tower_that_is_left_out_is_named_with_the_remedy() {
        let name = ModelName::parse("a/b").unwrap();
        let told = |reason: Option<&str>| {
            let reason = reason.map(str::to_owned);
            without_tower(&name, &LeftOut { file: "mmproj\u{1b}.gguf".to_owned(), reason })
        };
        let unwanted = told(None);
        assert!(unwanted.contains("`trine pull a/b` without --no-mmproj"), "{unwanted}");
        let refused = told(Some("a tower of another kind"));
        assert!(refused.contains("is left out: a tower of another kind; a/b takes texts only"));
        assert!(refused.contains("--mmproj FILE") && !refused.contains('\u{1b}'), "{refused}");
    }
}
