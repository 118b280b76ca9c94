//! Ctrl-C.
//!
//! While a [`Watch`] lives, Ctrl-C only raises a flag, and the work it covers ends in good order; a second Ctrl-C
//! that finds the flag still raised ends the program. Without a watch Ctrl-C ends the program at once.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::failure::Interrupted;
use crate::screen;

static WATCHES: AtomicUsize = AtomicUsize::new(0);
static RAISED: AtomicBool = AtomicBool::new(false);

/// Exit code after Ctrl-C, as shells give it (128 + SIGINT).
const EXIT_CODE: i32 = 130;

/// Takes over Ctrl-C. Without it (which systems without signals would be) the system's own way stays: the program ends.
pub(crate) fn install() {
    let installed = ctrlc::set_handler(|| {
        let watched = WATCHES.load(Ordering::SeqCst) > 0;
        if !watched || RAISED.swap(true, Ordering::SeqCst) {
            screen::exit(EXIT_CODE);
        }
    });
    if let Err(error) = installed {
        tracing::debug!(%error, "Ctrl-C is not handled");
    }
}

/// Work that ends in good order on Ctrl-C.
#[derive(Debug)]
pub(crate) struct Watch(());

impl Watch {
    /// Begins to watch; an earlier Ctrl-C is forgotten.
    pub(crate) fn new() -> Self {
        RAISED.store(false, Ordering::SeqCst);
        WATCHES.fetch_add(1, Ordering::SeqCst);
        Watch(())
    }

    /// Whether Ctrl-C was pressed.
    pub(crate) fn raised(&self) -> bool {
        RAISED.load(Ordering::SeqCst)
    }

    /// An error if Ctrl-C was pressed.
    pub(crate) fn check(&self) -> Result<(), Interrupted> {
        if self.raised() { Err(Interrupted) } else { Ok(()) }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        WATCHES.fetch_sub(1, Ordering::SeqCst);
        RAISED.store(false, Ordering::SeqCst);
    }
}
