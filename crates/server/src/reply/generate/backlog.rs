//! What has been written and is not read yet: the engine goes on for a client that reads slowly, as
//! far as there is room for it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::OwnedSemaphorePermit;

use super::piece::Piece;
use crate::error::ApiError;
use crate::service::rooms::{Room, permits_beyond};

/// What to do about an answer for which there is never room.
const FASTER: &str = "read the answer faster, or ask for fewer tokens, texts or alternatives";

/// What waits of all texts of a request.
#[derive(Debug, Clone)]
pub(super) struct Backlog {
    room: Room,
    held: Arc<Mutex<HeldPieces>>,
}

#[derive(Debug, Default)]
struct HeldPieces {
    bytes: usize,
    permit: Option<OwnedSemaphorePermit>,
}

impl Backlog {
    pub(super) fn new(room: Room) -> Self {
        Self { room, held: Arc::default() }
    }

    /// Returns a queue for the pieces of one text.
    pub(super) fn waiting(self) -> Waiting {
        Waiting { backlog: self, pieces: VecDeque::new() }
    }

    /// Takes room for more bytes.
    fn add(&self, bytes: usize) -> Result<(), ApiError> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let all = held.bytes.saturating_add(bytes);
        if permits_beyond(all) > permits_beyond(held.bytes) {
            let more = self.room.grow(held.bytes, all, FASTER)?;
            match &mut held.permit {
                Some(permit) => permit.merge(more),
                none => *none = Some(more),
            }
        }
        held.bytes = all;
        Ok(())
    }

    /// Gives back the room of some bytes.
    fn remove(&self, bytes: usize) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.bytes = held.bytes.saturating_sub(bytes);
        let needed = permits_beyond(held.bytes);
        if let Some(permit) = &mut held.permit {
            drop(permit.split(permit.num_permits().saturating_sub(needed)));
        }
    }
}

/// Pieces of a text that wait to be read.
pub(super) struct Waiting {
    backlog: Backlog,
    pieces: VecDeque<Piece>,
}

impl Waiting {
    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Adds a piece. The end of a text, or its failure, needs no room.
    ///
    /// # Errors
    /// 413 or 503 if there is no room for it.
    pub(super) fn push(&mut self, piece: Piece) -> Result<(), ApiError> {
        self.backlog.add(counted(&piece))?;
        self.pieces.push_back(piece);
        Ok(())
    }

    pub(super) fn pop(&mut self) -> Option<Piece> {
        let piece = self.pieces.pop_front()?;
        self.backlog.remove(counted(&piece));
        Some(piece)
    }

    pub(super) fn clear(&mut self) {
        while self.pop().is_some() {}
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.clear();
    }
}

fn counted(piece: &Piece) -> usize {
    match piece {
        Piece::End(_) | Piece::Failed(_) => 0,
        piece => piece.bytes(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::rooms::PERMIT_BYTES;

    fn text(bytes: usize) -> Piece {
        Piece::Text { text: "x".repeat(bytes), tokens: Vec::new(), generated: 1 }
    }

    #[test]
    fn what_waits_takes_room_until_it_is_read() {
        let room = Room::new("answers", 2 * PERMIT_BYTES);
        let backlog = Backlog::new(room.clone());
        let (mut one, mut other) = (backlog.clone().waiting(), backlog.waiting());
        // The first bytes of a request are free, and not of each of its texts.
        for waiting in [&mut one, &mut other] {
            waiting.push(text(PERMIT_BYTES)).unwrap();
        }
        let free = || room.take(PERMIT_BYTES + 1, "").is_ok();
        assert!(!free(), "two texts and what they are kept with take all of it");
        assert_eq!(one.push(text(PERMIT_BYTES)).unwrap_err().status, 413);
        one.push(Piece::Failed(ApiError::draining())).unwrap();
        assert!(matches!(other.pop(), Some(Piece::Text { .. })) && free());
        one.clear();
        one.push(text(PERMIT_BYTES)).unwrap();
        let taken = room.take(2 * PERMIT_BYTES, "").unwrap();
        assert_eq!(one.push(text(PERMIT_BYTES)).unwrap_err().status, 503);
        drop((taken, one));
        assert!(free());
    }
}
