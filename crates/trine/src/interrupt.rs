//! Ctrl-C.
//!
//! While a [`Watch`] lives, Ctrl-C only raises a flag, and the work that the watch covers ends in
//! good order. If the flag is still raised, a second Ctrl-C ends the program, except that if a
//! conversation would be lost, the second one prints a warning and the third one ends the program.
//! At a prompt the first one prints what the second one does: it ends the program. Without a watch
//! Ctrl-C ends the program at once.
//!
//! At a [`PromptWait`] the editor of lines reads Ctrl-C as a key, but between two lines the
//! terminal sends it as a signal. Both count, and both are answered alike.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, OnceLock};

use crate::failure::Interrupted;
use crate::{terminal::output, terminal::screen};

static WATCHES: AtomicUsize = AtomicUsize::new(0);
/// The number of times that Ctrl-C was pressed since the watch began, or since the last line that
/// was typed at a prompt.
static PRESSED: AtomicUsize = AtomicUsize::new(0);
/// Whether Ctrl-C was pressed. Long work polls this flag.
static RAISED: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);
/// What Ctrl-C does besides raising the flag.
static HOOK: OnceLock<Box<dyn Fn() + Send + Sync>> = OnceLock::new();
/// Whether the end of the program would lose a conversation.
static UNSAVED: AtomicBool = AtomicBool::new(false);

/// The exit code for leaving at the prompt, or [`NO_PROMPT`].
static PROMPT: AtomicI32 = AtomicI32::new(NO_PROMPT);
const NO_PROMPT: i32 = -1;

/// The exit code after Ctrl-C as in shells: 128 + SIGINT.
pub(crate) const EXIT_CODE: i32 = 130;

/// The warning before a conversation is lost: the answer to the first Ctrl-C at a prompt, or to the
/// second one while an answer is stopped.
const UNSAVED_NOTE: &str =
    "the conversation is not saved (/save FILE does that); Ctrl-C again leaves without it";

/// The answer to the first Ctrl-C at a prompt if nothing would be lost.
const AGAIN_NOTE: &str = "Ctrl-C again, or /exit, to leave";

/// Installs the handler of Ctrl-C, unless the program was started with the signal ignored. If the
/// handler cannot be installed (for example on a system without signals), the system's default
/// stays: the program ends.
pub(crate) fn install() {
    LazyLock::force(&RAISED);
    let installed = ctrlc::try_set_handler(|| {
        if WATCHES.load(Ordering::SeqCst) == 0 {
            screen::exit(EXIT_CODE);
        }
        let code = PROMPT.load(Ordering::SeqCst);
        if code != NO_PROMPT {
            match pressed_at_prompt() {
                Some(note) => output::note(note),
                None => screen::exit(code),
            }
            return;
        }
        RAISED.store(true, Ordering::SeqCst);
        if let Some(hook) = HOOK.get() {
            hook();
        }
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

/// Calls `hook` at each Ctrl-C from now on while a [`Watch`] lives. The handler runs some time
/// after the signal, so one that came before a watch may find it there. Only the first hook counts.
pub(crate) fn call(hook: impl Fn() + Send + Sync + 'static) {
    // A program has one piece of work that does not poll the flag.
    let _ = HOOK.set(Box::new(hook));
}

/// Sets whether the end of the program would lose a conversation.
pub(crate) fn set_unsaved(is_unsaved: bool) {
    UNSAVED.store(is_unsaved, Ordering::SeqCst);
}

/// Returns the flag that Ctrl-C raises while a [`Watch`] lives.
pub(crate) fn flag() -> Arc<AtomicBool> {
    Arc::clone(&RAISED)
}

/// Counts a Ctrl-C at a prompt. Returns the note to print, or `None` if it ends the program.
pub(crate) fn pressed_at_prompt() -> Option<&'static str> {
    match PRESSED.fetch_add(1, Ordering::SeqCst) {
        0 if UNSAVED.load(Ordering::SeqCst) => Some(UNSAVED_NOTE),
        0 => Some(AGAIN_NOTE),
        _ => None,
    }
}

/// A wait for a typed line. The count of Ctrl-C goes on from one prompt to the next until
/// [`PromptWait::answered`].
#[derive(Debug)]
pub(crate) struct PromptWait(());

impl PromptWait {
    /// Begins to wait. A signal that ends the program gives it the exit code `code`.
    pub(crate) fn new(code: i32) -> Self {
        PROMPT.store(code, Ordering::SeqCst);
        PromptWait(())
    }

    /// Ends the wait because a line was typed: the next Ctrl-C is the first again.
    pub(crate) fn answered(self) {
        drop(self);
        forget();
    }
}

impl Drop for PromptWait {
    fn drop(&mut self) {
        PROMPT.store(NO_PROMPT, Ordering::SeqCst);
    }
}

/// Work that ends in good order on Ctrl-C.
#[derive(Debug)]
pub(crate) struct Watch(());

impl Watch {
    /// Begins to watch. An earlier Ctrl-C is forgotten.
    pub(crate) fn new() -> Self {
        forget();
        WATCHES.fetch_add(1, Ordering::SeqCst);
        Watch(())
    }

    /// Returns whether Ctrl-C was pressed.
    pub(crate) fn raised(&self) -> bool {
        RAISED.load(Ordering::SeqCst)
    }

    /// Returns an error if Ctrl-C was pressed.
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
