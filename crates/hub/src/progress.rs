//! How a download reports to its caller.

/// Receives the progress of a download. All methods are called on the thread that called
/// [`Hub::pull`](crate::Hub::pull), one file after the other.
pub trait Progress {
    /// Called when a file begins, `total` bytes long if that is known. Called again for the same
    /// file if earlier bytes had to be discarded: the count then starts from zero.
    fn start(&mut self, file: &str, total: Option<u64>);

    /// Called when `bytes` more of the current file are on disk, including those from an earlier
    /// attempt.
    fn advance(&mut self, bytes: u64);

    /// Called when the current file is whole and verified.
    fn done(&mut self, file: &str);

    /// Called when the download pauses, for another process that pulls the same model or before a
    /// repetition.
    fn waiting(&mut self, reason: &str) {
        let _ = reason;
    }

    /// Called with what is worth knowing about a download: what was chosen, what was not verified.
    fn remark(&mut self, text: &str) {
        let _ = text;
    }

    /// Returns whether the download must stop with
    /// [`HubError::Cancelled`](crate::HubError::Cancelled), keeping what it has. Called between
    /// blocks, and several times a second during a wait.
    fn cancelled(&self) -> bool {
        false
    }
}

/// A [`Progress`] that shows nothing.
#[derive(Debug, Default, Clone, Copy)]
pub struct Silent;

impl Progress for Silent {
    fn start(&mut self, _file: &str, _total: Option<u64>) {}
    fn advance(&mut self, _bytes: u64) {}
    fn done(&mut self, _file: &str) {}
}
