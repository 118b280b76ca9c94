//! Work that a few threads share for a moment.

use std::num::NonZero;
use std::sync::{Mutex, PoisonError};
use std::thread::{Builder, available_parallelism, scope};

/// Most threads of a copy, the caller's included: more of them do not make the bus of a GPU faster.
const COPYING: usize = 8;

/// Works on pieces of a copy between the host's memories, with a few threads that help the
/// caller's.
pub fn share_copy<T: Send>(
    pieces: impl ExactSizeIterator<Item = T> + Send,
    work: impl Fn(T) + Sync,
) {
    share("copy", COPYING, pieces, work);
}

/// Works on pieces, in their order, with as many threads as there are processors, but at most
/// `most`, the caller's included. The others have a name. If none can be started, the caller works
/// alone.
pub fn share<T: Send>(
    name: &str,
    most: usize,
    pieces: impl ExactSizeIterator<Item = T> + Send,
    work: impl Fn(T) + Sync,
) {
    let threads = available_parallelism().map_or(1, NonZero::get).min(most).min(pieces.len());
    let pieces = Mutex::new(pieces);
    let next = || pieces.lock().unwrap_or_else(PoisonError::into_inner).next();
    let take = || {
        while let Some(piece) = next() {
            work(piece);
        }
    };
    scope(|scope| {
        for _ in 1..threads {
            if Builder::new().name(name.to_owned()).spawn_scoped(scope, take).is_err() {
                break;
            }
        }
        take();
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_piece_is_worked_on_once() {
        for count in [0_usize, 1, 2, 7, 1000] {
            let mut values = vec![0_u32; count];
            share("test", 5, values.chunks_mut(3), |piece| {
                piece.iter_mut().for_each(|value| *value += 1)
            });
            assert!(values.iter().all(|&value| value == 1), "{count}");
        }
    }
}
