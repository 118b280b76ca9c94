//! The whole terminal for a picture, given back on every way out: the end of the work, errors, panics and signals.

use std::io::{self, Stdout, Write, stdout};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::{Frame, Terminal};

/// Whether the terminal is taken. The panic hook and the handlers of signals know no [`Screen`].
static TAKEN: AtomicBool = AtomicBool::new(false);

/// How long a terminal that takes no output may hold up the end of the program.
const LEAVING: Duration = Duration::from_millis(500);

/// The terminal in raw mode with a second page, so that what stood on it comes back. Dropping gives it back.
pub(crate) struct Screen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
}

impl Screen {
    /// Takes the terminal.
    ///
    /// # Errors
    /// If there is no terminal, or it refuses. Nothing is taken then.
    pub(crate) fn take() -> Result<Self> {
        const FAILED: &str = "cannot draw on this terminal; --once prints text";
        // Before the first change: a signal may come between.
        TAKEN.store(true, Ordering::SeqCst);
        enable_raw_mode()
            .and_then(|()| execute!(stdout(), EnterAlternateScreen))
            .and_then(|()| Terminal::new(CrosstermBackend::new(stdout())))
            .map(|terminal| Self { terminal })
            .inspect_err(|_| leave())
            .context(FAILED)
    }

    /// Draws a frame. Where a panic or a signal has given the terminal back already, nothing is drawn.
    ///
    /// # Errors
    /// If the terminal takes no output.
    pub(crate) fn draw(&mut self, draw: impl FnOnce(&mut Frame<'_>)) -> Result<()> {
        if TAKEN.load(Ordering::SeqCst) {
            self.terminal.draw(draw).context("cannot draw on this terminal")?;
        }
        Ok(())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        leave();
    }
}

/// Gives the terminal back if it is taken.
pub(crate) fn leave() {
    if TAKEN.swap(false, Ordering::SeqCst) {
        // The program ends: there is nothing to be done about a terminal that refuses.
        let _ = disable_raw_mode();
        let _ = execute!(stdout(), LeaveAlternateScreen, Show);
    }
}

/// Ends the program at once, with the terminal given back unless it hangs.
pub(crate) fn exit(code: i32) -> ! {
    if TAKEN.load(Ordering::SeqCst)
        && let Ok(leaving) = thread::Builder::new().spawn(leave)
    {
        let deadline = Instant::now() + LEAVING;
        while !leaving.is_finished() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
    }
    std::process::exit(code)
}

/// Where messages of libraries go: standard error, and nowhere while a picture stands on the terminal.
pub(crate) fn log() -> Box<dyn Write> {
    if TAKEN.load(Ordering::SeqCst) { Box::new(io::sink()) } else { Box::new(io::stderr()) }
}
