//! Ctrl-C.
//!
//! While a [`Watch`] lives, Ctrl-C only raises a flag, and the work it covers ends in good order; a second Ctrl-C
//! that finds the flag still raised ends the program, but for one that asks first where something would be lost. Without
//! a watch Ctrl-C ends the program at once.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

use crate::failure::Interrupted;
use crate::{output, screen};

static WATCHES: AtomicUsize = AtomicUsize::new(0);
/// How often Ctrl-C was pressed since the watch began.
static PRESSED: AtomicUsize = AtomicUsize::new(0);
/// Whether it was pressed; what works for a long time looks at it.
static RAISED: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);
/// Whether the end of the program would lose a conversation.
static UNSAVED: AtomicBool = AtomicBool::new(false);

/// Exit code after Ctrl-C, as shells give it (128 + SIGINT).
pub(crate) const EXIT_CODE: i32 = 130;

/// Warning before a conversation is lost.
pub(crate) const UNSAVED_NOTE: &str =
    "the conversation is not saved (/save FILE does that); Ctrl-C once more leaves without it";

/// Takes over Ctrl-C, unless the program was started to ignore it. Without it (which systems without signals would be) the
/// system's own way stays: the program ends.
pub(crate) fn install() {
    LazyLock::force(&RAISED);
    let installed = ctrlc::try_set_handler(|| {
        if WATCHES.load(Ordering::SeqCst) == 0 {
            screen::exit(EXIT_CODE);
        }
        RAISED.store(true, Ordering::SeqCst);
        match PRESSED.fetch_add(1, Ordering::SeqCst) {
            0 => {}
            1 if UNSAVED.load(Ordering::SeqCst) => output::note(UNSAVED_NOTE),
            _ => screen::exit(EXIT_CODE),
        }
    });
    if let Err(error) = installed {
        tracing::debug!(%error, "Ctrl-C is not handled");
    }
}

/// Says whether the end of the program would lose a conversation.
pub(crate) fn set_unsaved(is_unsaved: bool) {
    UNSAVED.store(is_unsaved, Ordering::SeqCst);
}

/// The flag that Ctrl-C raises while a [`Watch`] lives.
pub(crate) fn flag() -> Arc<AtomicBool> {
    Arc::clone(&RAISED)
}

/// Work that ends in good order on Ctrl-C.
#[derive(Debug)]
pub(crate) struct Watch(());

impl Watch {
    /// Begins to watch; an earlier Ctrl-C is forgotten.
    pub(crate) fn new() -> Self {
        forget();
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
        forget();
    }
}

fn forget() {
    RAISED.store(false, Ordering::SeqCst);
    PRESSED.store(0, Ordering::SeqCst);
}
