//! An answer on standard output as it comes, and what there is to see until it comes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};

use crate::generate::Listener;
use crate::output;
use crate::terminal;
use crate::wrap::Wrapper;

/// How long a prompt is read before that is shown: most are read sooner.
const PATIENCE: Duration = Duration::from_millis(400);
/// Time between two pictures of it.
const FRAME: Duration = Duration::from_millis(200);
/// Columns of the line that shows it, without the bar.
const WORDS: usize = 50;
/// Most columns of the bar.
const BAR: usize = 30;

/// Writes an answer. On a terminal its lines break between words.
pub(crate) struct Printer {
    reading: Option<Reading>,
    is_silent: bool,
    wrapper: Option<Wrapper>,
    ends_with_line: bool,
}

impl Printer {
    /// A printer, or one that only shows how far a prompt is read.
    pub(crate) fn new(is_silent: bool) -> Self {
        let wrapper = terminal::stdout_is_terminal().then(Wrapper::default);
        Self { reading: None, is_silent, wrapper, ends_with_line: true }
    }

    /// Writes what is left, and ends the line.
    ///
    /// # Errors
    /// If standard output cannot be written.
    pub(crate) fn finish(&mut self) -> Result<()> {
        self.reading = None;
        if self.is_silent {
            return Ok(());
        }
        if let Some(wrapper) = &mut self.wrapper {
            let rest = wrapper.finish(columns());
            if !rest.is_empty() {
                output::write_text(&rest)?;
            }
        }
        if self.ends_with_line { Ok(()) } else { output::write_text("\n") }
    }
}

/// Columns of the terminal; where it does not say, more than any line has.
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

    fn text(&mut self, text: &str) -> Result<()> {
        self.reading = None;
        if self.is_silent {
            return Ok(());
        }
        self.ends_with_line = text.ends_with('\n');
        // A model's text is not trusted with a terminal; a file gets it as it is.
        let Some(wrapper) = &mut self.wrapper else { return output::write_text(text) };
        let lines = wrapper.push(&terminal::harmless(text), columns());
        if lines.is_empty() { Ok(()) } else { output::write_text(&lines) }
    }
}

/// Shows on standard error how far a prompt is read, also while the device is at work. It is gone when this is dropped.
struct Reading {
    done: Arc<AtomicUsize>,
    /// Dropped before the thread is waited for: that ends it.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Reading {
    /// None where the system gives no thread: nobody needs to see it.
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

/// The line, for the terminal as wide as it is now.
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
            // It has nothing to say about its end.
            let _ = thread.join();
        }
    }
}
