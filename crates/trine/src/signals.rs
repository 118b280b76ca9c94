//! Signals that end the program in good order.
//!
//! A separate thread watches the signals until the program has ended. Whatever the program is busy
//! with by then, a second signal ends it.
//!
//! A signal that is ignored when the program starts stays ignored. `nohup` and shells without job
//! control start programs that way so that a closed terminal, or Ctrl-C for another program, does
//! not end them.

/// Lets a write beyond the limit on the size of files (`ulimit -f`) fail instead of ending the
/// program, so that what was written is cleared away or kept to be continued. Nothing else is done
/// about the signal. A program that is started from here has the usual treatment.
#[cfg(unix)]
pub(crate) fn let_long_files_fail() {
    use rustix::process::Signal;

    // The flag is only what the library wants to have.
    let number = Signal::XFSZ.as_raw();
    if let Err(error) = signal_hook::flag::register(number, Default::default()) {
        tracing::debug!(%error, "a file that is too long ends the program");
    }
}

/// Calls `first` with the number of the first signal; the second signal ends the program at once.
/// Signals that the program inherited as ignored stay ignored.
///
/// # Errors
/// Returns an error if the system provides no thread or no signals.
#[cfg(unix)]
pub(crate) fn watch(
    signals: &[i32],
    first: impl FnOnce(u8) + Send + 'static,
) -> anyhow::Result<()> {
    use anyhow::Context;
    use signal_hook::iterator::Signals;

    let ignored = ignored();
    let heeded = signals.iter().filter(|&&number| !contains(ignored, number));
    let mut signals = Signals::new(heeded).context("the system does not deliver signals")?;
    let wait = move || {
        let mut coming = signals.forever();
        if let Some(number) = coming.next() {
            first(number as u8);
        }
        if let Some(number) = coming.next() {
            crate::terminal::screen::exit(128 + number);
        }
    };
    let thread = std::thread::Builder::new().name("signals".to_owned());
    thread.spawn(wait).context("the system gives no thread for signals")?;
    Ok(())
}

/// Calls `first` at the first event that ends programs of a console: Ctrl-C, Ctrl-Break, closing
/// the console, or shutdown. A second Ctrl-C or Ctrl-Break ends the program at once; after the
/// other events Windows ends it some seconds later.
///
/// # Errors
/// Returns an error if the system provides no thread or no events.
#[cfg(windows)]
pub(crate) fn watch(first: impl FnOnce() + Send + 'static) -> anyhow::Result<()> {
    use anyhow::Context;
    use tokio::signal::windows::{ctrl_break, ctrl_c, ctrl_close, ctrl_shutdown};

    const FAILED: &str = "the system does not deliver events of the console";
    let (mut interrupt, mut stop) = (ctrl_c().context(FAILED)?, ctrl_break().context(FAILED)?);
    let (mut close, mut shutdown) =
        (ctrl_close().context(FAILED)?, ctrl_shutdown().context(FAILED)?);
    let runtime = tokio::runtime::Builder::new_current_thread().build().context(FAILED)?;
    let wait = move || {
        let mut next = || {
            runtime.block_on(async {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = stop.recv() => {}
                    _ = close.recv() => {}
                    _ = shutdown.recv() => {}
                }
            });
        };
        next();
        first();
        next();
        crate::terminal::screen::exit(crate::interrupt::EXIT_CODE);
    };
    let thread = std::thread::Builder::new().name("signals".to_owned());
    thread.spawn(wait).context("the system gives no thread for events of the console")?;
    Ok(())
}

/// Returns the set of signals that the program ignores, as far as the system reports it. Safe code
/// can read it only from Linux's `/proc`.
#[cfg(unix)]
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    ignored_in(&status)
}

/// Returns the set in the text of `/proc/self/status` (`man 5 proc_pid_status`), empty if it has
/// none.
#[cfg(unix)]
fn ignored_in(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(unix)]
fn contains(set: u64, number: i32) -> bool {
    set >> (number - 1) & 1 == 1
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn sets_of_signals_are_read() {
        let status =
            "SigBlk:\t0000000000000003\nSigIgn:\t0000000000001001\nSigCgt:\t0000000000000002\n";
        let set = ignored_in(status);
        assert!(contains(set, 1) && contains(set, 13));
        assert!(!contains(set, 2) && !contains(set, 15) && !contains(set, 64));
        assert_eq!(ignored_in("SigIgn:\tnonsense\n"), 0);
        assert_eq!(ignored_in(""), 0);
    }
}
