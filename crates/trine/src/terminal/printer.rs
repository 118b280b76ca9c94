//! Prints an answer to standard output as it arrives, and shows the progress until then.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};

use crate::chat::generate::Listener;
use crate::terminal;
use crate::terminal::output;
use crate::terminal::wrap::Wrapper;

/// How long a prompt is read before the progress is shown. Most prompts take less time.
const PATIENCE: Duration = Duration::from_millis(400);
/// The time between two frames of the progress bar.
const FRAME: Duration = Duration::from_millis(200);
/// The columns of the progress line without the bar.
const WORDS: usize = 50;
/// The most columns of the bar.
const BAR: usize = 30;

/// Writes an answer. On a terminal it breaks lines between words.
pub(crate) struct Printer {
    reading: Option<Reading>,
    is_silent: bool,
    wrapper: Option<Wrapper>,
    ends_with_line: bool,
    /// Whether thoughts were written, and no text after them.
    is_thinking: bool,
}

impl Printer {
    /// Creates a printer. A silent one shows only the progress of reading the prompt.
    pub(crate) fn new(is_silent: bool) -> Self {
        let wrapper = terminal::stdout_is_terminal().then(Wrapper::default);
        Self { reading: None, is_silent, wrapper, ends_with_line: true, is_thinking: false }
    }

    /// Writes the rest of the text and ends the line.
    ///
    /// # Errors
    /// Returns an error if standard output cannot be written.
    pub(crate) fn finish(&mut self) -> Result<()> {
        self.reading = None;
        self.end_thought();
        if self.is_silent {
            return Ok(());
        }
        if let Some(wrapper) = &mut self.wrapper {
            let rest = wrapper.finish(columns());
            if !rest.is_empty() {
                output::raw(&rest)?;
            }
        }
        if self.ends_with_line { Ok(()) } else { output::raw("\n") }
    }
}

impl Printer {
    /// Sets a thought apart from what follows.
    fn end_thought(&mut self) {
        if std::mem::take(&mut self.is_thinking) {
            output::thought("\n\n");
        }
    }
}

/// Returns the columns of the terminal; if it does not report them, more than any line has.
fn columns() -> usize {
    terminal::stdout_columns().unwrap_or(usize::MAX)
}

impl Listener for Printer {
    fn prefill(&mut self, done: usize, total: usize) {
        if done >= total {
            self.reading = None;
        } else if let Some(reading) = &self.reading {
            reading.done.store(done, Ordering::Relaxed);
        } else if terminal::stderr_is_terminal() && !output::is_quiet() {
            self.reading = Reading::start(done, total);
        }
    }

    fn thought(&mut self, thought: &str) {
        self.reading = None;
        if !self.is_silent {
            self.is_thinking = true;
            output::thought(thought);
        }
    }

    fn text(&mut self, text: &str) -> Result<()> {
        self.reading = None;
        self.end_thought();
        if self.is_silent {
            return Ok(());
        }
        self.ends_with_line = text.ends_with('\n');
        // A model's text is not trusted with a terminal. A file receives it unchanged.
        let Some(wrapper) = &mut self.wrapper else { return output::raw(text) };
        let lines = wrapper.push(&terminal::harmless(text), columns());
        if lines.is_empty() { Ok(()) } else { output::raw(&lines) }
    }
}

/// Shows the progress of reading a prompt on standard error, even while the device is busy.
/// Dropping it removes the display.
struct Reading {
    done: Arc<AtomicUsize>,
    /// Dropped before the thread is joined, which ends the thread.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Reading {
    /// Returns `None` if the system provides no thread; the display is not essential.
    fn start(done: usize, total: usize) -> Option<Self> {
        let done = Arc::new(AtomicUsize::new(done));
        let (stop, stopped) = mpsc::channel::<()>();
        let shared = Arc::clone(&done);
        let draw = move || {
            let is_over = |wait| stopped.recv_timeout(wait) != Err(RecvTimeoutError::Timeout);
            if is_over(PATIENCE) {
                return;
            }
            let bar = ProgressBar::new(total as u64).with_elapsed(PATIENCE);
            loop {
                bar.set_style(style());
                bar.set_position(shared.load(Ordering::Relaxed) as u64);
                bar.tick();
                if is_over(FRAME) {
                    break;
                }
            }
            bar.finish_and_clear();
        };
        let thread = std::thread::Builder::new().name("progress".to_owned()).spawn(draw).ok()?;
        Some(Self { done, stop: Some(stop), thread: Some(thread) })
    }
}

/// Returns the style of the line for the current width of the terminal.
fn style() -> ProgressStyle {
    let columns = terminal::stderr_columns().unwrap_or(WORDS + BAR);
    let bar = columns.saturating_sub(WORDS).min(BAR);
    let template = if bar == 0 {
        "reading: {pos}/{len} tokens, {elapsed}".to_owned()
    } else {
        format!("reading the prompt {{bar:{bar}}} {{pos}}/{{len}} tokens, {{elapsed}}")
    };
    ProgressStyle::with_template(&template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // The thread returns nothing.
            let _ = thread.join();
        }
    }
}
