//! What the command line shows, asks and prints while models are found and opened.

use std::any::Any;
use std::io::{BufRead, Read, stdin};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use trine_hub::Progress;
use trine_session::library::{Callbacks, Count, Decision};
use trine_session::session::{Detail, Session};

use crate::interrupt::Watch;
use crate::{terminal, terminal::output};

const BAR: &str =
    "{msg} {bar:30} {decimal_bytes}/{decimal_total_bytes}, {decimal_bytes_per_sec}, {eta} left";
const COUNTER: &str = "{msg} {spinner} {decimal_bytes}, {decimal_bytes_per_sec}";
/// The longest reply to a question that is read, in bytes.
const REPLY_BYTES_MAX: u64 = 1024;

/// Prints decisions, asks on the terminal, and draws progress there.
pub(crate) struct CommandLine;

impl Callbacks for CommandLine {
    fn decided(&self, decision: &Decision) {
        match decision {
            Decision::Note(text) => output::note(text),
            Decision::Remark(text) => output::remark(text),
            Decision::Warning(text) => output::warning(text),
        }
    }

    fn can_ask(&self) -> bool {
        terminal::stdin_is_terminal() && terminal::stderr_is_terminal()
    }

    fn agrees(&self, question: &str, what: &str, is_usual: bool) -> bool {
        output::question(question);
        let mut reply = String::new();
        // No watch is alive here, so Ctrl-C ends the program.
        let read = stdin().lock().take(REPLY_BYTES_MAX).read_line(&mut reply);
        let is_yes = match reply.trim().to_ascii_lowercase().as_str() {
            "" => is_usual,
            reply => matches!(reply, "y" | "yes"),
        };
        // Zero bytes mean the end of the input, which is no consent.
        let agrees = is_yes && read.is_ok_and(|count| count > 0);
        if !agrees {
            output::remark(format_args!("{what} was not downloaded"));
        }
        agrees
    }

    /// Shows a download. Ctrl-C stops it in good order.
    fn download(&self) -> Box<dyn Progress> {
        Box::new(Shown { watch: Watch::new(), bar: None })
    }

    fn busy(&self, what: &'static str) -> Box<dyn Any> {
        Box::new(terminal::Sign::of(what))
    }

    fn loading(&self) -> Option<Count<u64>> {
        counting(|total| {
            let style = "loading {bar:30} {bytes} of {total_bytes} ({bytes_per_sec})";
            ProgressBar::new(total).with_style(styled(style))
        })
    }

    fn tuning(&self, gpu: &str) -> Option<Count<usize>> {
        let gpu = terminal::harmless(gpu).into_owned();
        counting(move |total| {
            ProgressBar::new(total)
                .with_style(styled("{msg}: {pos} of {len}"))
                .with_message(format!("tuning kernels for {gpu}, once"))
        })
    }
}

/// Returns how much is told of an open model: a line on a terminal, all that was chosen if asked
/// for. That a GPU has too little memory for the model is always told.
pub(crate) fn detail(verbose: bool) -> Detail {
    match (verbose, terminal::stderr_is_terminal()) {
        (true, _) => Detail::Full,
        (false, true) => Detail::Short,
        (false, false) => Detail::Least,
    }
}

/// Prints what runs where.
pub(crate) fn tell(session: &Session, verbose: bool) {
    session.description(detail(verbose)).iter().for_each(|line| output::note(line));
}

fn styled(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

/// Returns what draws a bar on the terminal, if there is one, until all is done. `bar` makes one
/// for a total.
fn counting<T: TryInto<u64> + PartialOrd + Copy>(
    bar: impl Fn(u64) -> ProgressBar + Send + Sync + 'static,
) -> Option<Count<T>> {
    if !terminal::stderr_is_terminal() {
        return None;
    }
    let shown: Mutex<Option<ProgressBar>> = Mutex::new(None);
    Some(Arc::new(move |done, total| {
        let number = |count: T| count.try_into().unwrap_or(u64::MAX);
        let mut shown = shown.lock().unwrap_or_else(PoisonError::into_inner);
        let drawn = shown.get_or_insert_with(|| bar(number(total)));
        drawn.set_position(number(done));
        if done >= total {
            drawn.finish_and_clear();
            *shown = None;
        }
    }))
}

/// Shows a download: bars on a terminal, a line for each file elsewhere.
struct Shown {
    watch: Watch,
    bar: Option<ProgressBar>,
}

impl Shown {
    fn clear(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        self.clear();
    }
}

impl Progress for Shown {
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
