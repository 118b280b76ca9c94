//! Takes the whole terminal for drawing and restores it however the work ends: normally, by an
//! error, a panic or a signal.

#![expect(
    clippy::disallowed_methods,
    reason = "draws on the terminal; what it draws is cleaned where it comes in"
)]

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

/// Whether the terminal is taken. The panic hook and signal handlers have no [`Screen`] to ask.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// How long a terminal that accepts no output may delay the end of the program.
const LEAVING: Duration = Duration::from_millis(500);

/// The terminal in raw mode on its alternate screen, so that the earlier contents come back.
/// Dropping it restores the terminal.
pub(crate) struct Screen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
}

impl Screen {
    /// Takes the terminal.
    ///
    /// # Errors
    /// Returns an error if there is no terminal or it refuses. The terminal is not taken then.
    pub(crate) fn take() -> Result<Self> {
        const FAILED: &str = "cannot draw on this terminal; --once prints text";
        // Set before the first change, because a signal may come in between.
        TAKEN.store(true, Ordering::SeqCst);
        enable_raw_mode()
            .and_then(|()| execute!(stdout(), EnterAlternateScreen))
            .and_then(|()| Terminal::new(CrosstermBackend::new(stdout())))
            .map(|terminal| Self { terminal })
            .inspect_err(|_| leave())
            .context(FAILED)
    }

    /// Draws a frame. If a panic or a signal has restored the terminal already, draws nothing.
    ///
    /// # Errors
    /// Returns an error if the terminal accepts no output.
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

/// Restores the terminal if it is taken.
pub(crate) fn leave() {
    if TAKEN.swap(false, Ordering::SeqCst) {
        // The program ends, so nothing can be done about a terminal that refuses.
        let _ = disable_raw_mode();
        let _ = execute!(stdout(), LeaveAlternateScreen, Show);
    }
}

/// Keeps what is typed out of what is written, until it is dropped: it is read as the next lines.
pub(crate) struct Hush {
    #[cfg(unix)]
    _hushed: Option<editing::Hushed>,
}

/// Hushes the terminal while an answer is written.
pub(crate) fn hush() -> Hush {
    Hush {
        #[cfg(unix)]
        _hushed: editing::Hushed::take(),
    }
}

/// Notes how the terminal is before lines are edited on it, so that [`exit`] can restore it.
pub(crate) fn note_terminal() {
    #[cfg(unix)]
    editing::note();
}

/// The terminal under the editor of lines, which restores it after each line. A signal can end the
/// program in the middle of one.
#[cfg(unix)]
mod editing {
    use std::io::stdin;
    use std::sync::OnceLock;

    use rustix::process::getpgrp;
    use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr};

    static FOUND: OnceLock<Termios> = OnceLock::new();

    pub(super) fn note() {
        if let Ok(found) = tcgetattr(stdin()) {
            let _ = FOUND.set(found);
        }
    }

    /// The terminal without an echo.
    pub(super) struct Hushed(Termios);

    impl Hushed {
        /// Switches the echo off. Ctrl-C does not take away what was typed before it. `None` if
        /// standard input is no terminal of this job.
        pub(super) fn take() -> Option<Self> {
            let found = tcgetattr(stdin()).ok().filter(|_| is_ours())?;
            let mut hushed = found.clone();
            hushed.local_modes.remove(LocalModes::ECHO | LocalModes::ECHONL);
            hushed.local_modes.insert(LocalModes::NOFLSH);
            tcsetattr(stdin(), OptionalActions::Now, &hushed).ok()?;
            Some(Self(found))
        }
    }

    impl Drop for Hushed {
        fn drop(&mut self) {
            if is_ours() {
                // The next line is edited with modes of its own.
                let _ = tcsetattr(stdin(), OptionalActions::Now, &self.0);
            }
        }
    }

    /// Returns whether this job has the terminal: the system would stop a process that changes one
    /// that another job has.
    fn is_ours() -> bool {
        tcgetpgrp(stdin()).map_or(true, |group| group == getpgrp())
    }

    pub(super) fn restore() {
        if let Some(found) = FOUND.get()
            && is_ours()
        {
            // The program ends, so nothing can be done about a terminal that refuses.
            let _ = tcsetattr(stdin(), OptionalActions::Now, found);
        }
    }
}

/// Ends the program at once. Restores the terminal first, unless it hangs.
pub(crate) fn exit(code: i32) -> ! {
    #[cfg(unix)]
    editing::restore();
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

/// Returns the target for messages of libraries: standard error, or nothing while a drawing
/// occupies the terminal.
pub(crate) fn log() -> Box<dyn Write> {
    if TAKEN.load(Ordering::SeqCst) { Box::new(io::sink()) } else { Box::new(io::stderr()) }
}
