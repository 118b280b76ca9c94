//! A picture with its name, whose rows are made when they are wanted.

use std::fmt;
use std::sync::Arc;

use super::queue::{Picture, TowerQueue, TowerRows};
use crate::request::Waker;

/// A picture in a prompt: its name, the number of its soft tokens, and its rows once the engine
/// wants them. Clones are the same picture.
///
/// It holds the patches until its rows are made, then the rows.
#[derive(Clone)]
pub struct PictureHandle {
    picture: Arc<Picture>,
    queue: Arc<TowerQueue>,
}

impl PictureHandle {
    pub(super) fn new(picture: Arc<Picture>, queue: Arc<TowerQueue>) -> Self {
        Self { picture, queue }
    }

    /// Returns the digest of the pixels, of how they were prepared, and of the tower. Sights with
    /// equal ones have equal rows.
    pub fn digest(&self) -> [u8; 32] {
        self.picture.name
    }

    /// Returns the number of its rows, which are places in the prompt.
    pub fn soft_tokens(&self) -> usize {
        self.picture.soft_tokens
    }

    /// Asks for the rows, for the requests whose list of pictures is at this address. `waker`,
    /// which stands for their engine, is called from another thread when
    /// [`PictureHandle::rows`] changes.
    pub(crate) fn want(&self, list: usize, waker: &Waker) {
        self.queue.want(&self.picture, list, waker);
    }

    /// Returns the rows, (soft tokens, hidden size of the text model), or why there are none;
    /// `None` if they are not made yet. Takes no lock.
    pub(crate) fn rows(&self) -> Option<&TowerRows> {
        self.picture.made()
    }

    /// Returns the seconds in which its rows were made; 0 if they were kept.
    pub(crate) fn seconds(&self) -> f64 {
        self.picture.seconds()
    }
}

impl fmt::Debug for PictureHandle {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, ..] = self.picture.name;
        write!(formatter, "Sight({a:02x}{b:02x}{c:02x}{d:02x}.., {})", self.soft_tokens())
    }
}
