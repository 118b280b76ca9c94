//! Room in memory, counted in permits of a number of bytes.

use std::sync::Arc;

use axum::http::StatusCode;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::{ApiError, Code};
use crate::service::workers::Weight;

/// Bytes that one permit of a room stands for: of bodies, answers, or pictures.
pub(crate) const PERMIT_BYTES: usize = 1 << 16;

/// The share of the rooms for decoding and for prepared pictures that is for small or few pictures
/// only: one part of this many.
const SMALL_SHARE: usize = 8;
/// How many requests with small or few pictures that share has room for at least, if their files
/// have no large tables.
const SMALL_REQUESTS: usize = 4;
/// Bytes that decoding takes for each pixel.
const BYTES_PER_PIXEL: usize = 16;

/// Returns the permits for some bytes, rounded down: those of a whole limit are as many as there
/// are.
pub(crate) fn permits(bytes: usize) -> u32 {
    u32::try_from(bytes / PERMIT_BYTES).unwrap_or(u32::MAX)
}

/// Returns the permits for what takes some bytes. The first [`PERMIT_BYTES`] need none: the number
/// of connections bounds how often these are taken, and what is small passes even where what is
/// large takes all permits.
pub(crate) fn permits_beyond(bytes: usize) -> usize {
    bytes.saturating_sub(1) / PERMIT_BYTES
}

/// Room for what requests, or their answers, hold: it is taken before they are made.
#[derive(Debug, Clone)]
pub(crate) struct Room {
    /// What it is for, in errors: `bodies` or `answers`.
    what: &'static str,
    bytes: usize,
    free: Arc<Semaphore>,
}

impl Room {
    pub(crate) fn new(what: &'static str, bytes: usize) -> Self {
        let free = Arc::new(Semaphore::new(permits(bytes) as usize));
        Self { what, bytes, free }
    }

    /// Takes room for some bytes beyond the first [`PERMIT_BYTES`].
    ///
    /// # Errors
    /// 413 with the remedy if there is never as much, and 503 if others have taken it.
    pub(crate) fn take(
        &self,
        bytes: usize,
        remedy: &str,
    ) -> Result<OwnedSemaphorePermit, ApiError> {
        self.take_permits(permits_beyond(bytes), bytes, remedy)
    }

    /// Takes more room for something that had `before` bytes and has `bytes`.
    ///
    /// # Errors
    /// As [`Room::take`].
    pub(crate) fn grow(
        &self,
        before: usize,
        bytes: usize,
        remedy: &str,
    ) -> Result<OwnedSemaphorePermit, ApiError> {
        let wanted = permits_beyond(bytes).saturating_sub(permits_beyond(before));
        self.take_permits(wanted, bytes, remedy)
    }

    fn take_permits(
        &self,
        wanted: usize,
        bytes: usize,
        remedy: &str,
    ) -> Result<OwnedSemaphorePermit, ApiError> {
        let what = self.what;
        if permits_beyond(bytes) > permits(self.bytes) as usize {
            let message = format!(
                "the request takes {bytes} bytes of memory or more, and all {what} together may \
                 take {}; {remedy}",
                self.bytes
            );
            return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, Code::BodyTooLarge, message));
        }
        let wanted = u32::try_from(wanted).unwrap_or(u32::MAX);
        Arc::clone(&self.free).try_acquire_many_owned(wanted).map_err(|_| {
            let message = format!("other requests take all the room for {what}; try again later");
            ApiError::overloaded(message)
        })
    }
}

/// What decoding a picture takes.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Decoding {
    pub(crate) pixels: usize,
    /// About the most bytes of memory.
    pub(crate) bytes: usize,
}

/// Room to decode pictures. Requests that decode little have a part of it for themselves: they wait
/// for one another, and not for photographs of other requests. The rest is for all others, in the
/// order in which they come.
#[derive(Debug)]
pub(crate) struct DecodingRoom {
    /// Bytes of each.
    small_bytes: usize,
    large_bytes: usize,
    small: Arc<Semaphore>,
    large: Arc<Semaphore>,
}

impl DecodingRoom {
    /// Divides room of about this many bytes.
    pub(crate) fn new(bytes: usize) -> Self {
        let small_bytes = bytes / SMALL_SHARE;
        let large_bytes = bytes - small_bytes;
        let room = |bytes: usize| Arc::new(Semaphore::new(permits(bytes) as usize));
        Self { small_bytes, large_bytes, small: room(small_bytes), large: room(large_bytes) }
    }

    /// Returns where a request waits whose pictures are decoded one after the other, for how many
    /// permits, and the weight of the work.
    pub(crate) fn of(&self, each: &[Decoding]) -> (&Arc<Semaphore>, u32, Weight) {
        let most = each.iter().map(|picture| picture.bytes).max().unwrap_or(0);
        // All of them take time, which the others wait for. The memory of tables takes none.
        let all = each.iter().fold(0_usize, |all, picture| all.saturating_add(picture.pixels));
        let small_pixels = self.small_bytes / SMALL_REQUESTS / BYTES_PER_PIXEL;
        if all <= small_pixels && most <= self.small_bytes {
            return (&self.small, permits(most), Weight::SmallPictures);
        }
        // One that is larger than all the room is decoded when no other one is.
        (&self.large, permits(most.min(self.large_bytes)), Weight::Pictures)
    }
}

/// Room for the numbers of prepared pictures, which they keep until a tower has made their rows.
/// Requests with a few pictures have a part of it for themselves: they do not wait behind one with
/// many, which may wait for as long as a tower takes for all of another's.
#[derive(Debug)]
pub(crate) struct PreparedRoom {
    /// Bytes of a request with a few at most.
    few_bytes: usize,
    few: Arc<Semaphore>,
    /// Bytes of a request at most.
    pub(crate) most_bytes: usize,
    many: Arc<Semaphore>,
}

impl PreparedRoom {
    /// Divides room of this many bytes.
    pub(crate) fn new(bytes: usize) -> Self {
        let few = permits(bytes / SMALL_SHARE);
        let many = permits(bytes) - few;
        let room = |permits: u32| Arc::new(Semaphore::new(permits as usize));
        Self {
            few_bytes: few as usize * PERMIT_BYTES / SMALL_REQUESTS,
            few: room(few),
            most_bytes: many as usize * PERMIT_BYTES,
            many: room(many),
        }
    }

    /// Returns where a request waits whose pictures take these bytes and, each rounded up, these
    /// permits, and for how many.
    pub(crate) fn of(&self, bytes: usize, wanted: usize) -> (&Arc<Semaphore>, u32) {
        let (room, all) = match bytes <= self.few_bytes {
            true => (&self.few, self.few_bytes * SMALL_REQUESTS),
            false => (&self.many, self.most_bytes),
        };
        (room, permits(all).min(u32::try_from(wanted).unwrap_or(u32::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_room_tells_what_never_fits_from_what_does_not_fit_now() {
        let room = Room::new("answers", 4 * PERMIT_BYTES);
        let status =
            |bytes: usize| room.take(bytes, "ask for less").map_err(|it| it.status.as_u16());
        let whole = status(5 * PERMIT_BYTES).unwrap();
        assert_eq!(whole.num_permits(), 4, "the first bytes need none");
        assert_eq!(status(5 * PERMIT_BYTES + 1).unwrap_err(), 413);
        assert_eq!(status(2 * PERMIT_BYTES).unwrap_err(), 503);
        assert_eq!(status(PERMIT_BYTES).unwrap().num_permits(), 0);
        drop(whole);
        let grown = room.grow(PERMIT_BYTES, 3 * PERMIT_BYTES, "").unwrap();
        assert_eq!(grown.num_permits(), 2);
        assert_eq!(room.grow(3 * PERMIT_BYTES, 9 * PERMIT_BYTES, "").unwrap_err().status, 413);
        assert_eq!(room.grow(PERMIT_BYTES, 5 * PERMIT_BYTES, "").unwrap_err().status, 503);
    }

    #[test]
    fn a_few_prepared_pictures_do_not_wait_for_many() {
        let room = PreparedRoom::new(1 << 30);
        assert_eq!(room.most_bytes, 896 << 20);
        let take = |bytes: usize| {
            let (room, wanted) = room.of(bytes, bytes.div_ceil(PERMIT_BYTES));
            Arc::clone(room).try_acquire_many_owned(wanted).ok()
        };
        let many = [take(600 << 20), take(600 << 20)];
        assert!(many[0].is_some() && many[1].is_none());
        let few = [(); 4].map(|()| take(32 << 20));
        assert!(few.iter().all(Option::is_some) && take(1).is_none());
        // All that there is, however the parts are rounded.
        drop((many, few));
        let (all, wanted) = room.of(room.most_bytes, usize::MAX);
        assert_eq!(all.available_permits(), wanted as usize);
        let (all, wanted) = room.of(32 << 20, usize::MAX);
        assert_eq!(all.available_permits(), wanted as usize);
        let small = PreparedRoom::new(PERMIT_BYTES);
        assert_eq!((small.most_bytes, small.of(1, 1).1), (PERMIT_BYTES, 1));
    }

    const MEGABYTE: usize = 1 << 20;

    #[test]
    fn small_pictures_do_not_wait_for_large_ones() {
        let room = DecodingRoom::new(1 << 30);
        let of = |&bytes: &usize| Decoding { pixels: bytes / BYTES_PER_PIXEL, bytes };
        let take = |each: &[usize]| {
            let (room, wanted, weight) = room.of(&each.iter().map(of).collect::<Vec<_>>());
            (Arc::clone(room).try_acquire_many_owned(wanted).ok(), weight)
        };
        let large: Vec<_> = (0..8).map(|_| take(&[800 * MEGABYTE])).collect();
        assert!(large[0].0.is_some() && large[1..].iter().all(|(permit, _)| permit.is_none()));
        assert!(large.iter().all(|(_, weight)| *weight == Weight::Pictures));
        let small: Vec<_> = (0..4).map(|_| take(&[20 * MEGABYTE, 12 * MEGABYTE])).collect();
        assert!(small.iter().all(|(permit, _)| permit.is_some()));
        assert!(small.iter().all(|(_, weight)| *weight == Weight::SmallPictures));
        // Many small ones take as long as a large one.
        assert_eq!(take(&[MEGABYTE; 33]).1, Weight::Pictures);
    }

    /// Decoding lossy WebP takes 16 MiB of tables, however few pixels there are.
    #[test]
    fn small_pictures_with_tables_are_small() {
        let room = DecodingRoom::new(1 << 30);
        let weight = |each: &[Decoding]| room.of(each).2;
        let thumbnail = Decoding { pixels: 1 << 16, bytes: 17 * MEGABYTE };
        assert_eq!(weight(&[thumbnail; 3]), Weight::SmallPictures);
        assert_eq!(weight(&[thumbnail; 33]), Weight::Pictures);
        // Dense lossless data can need more than all their room.
        let dense = Decoding { bytes: 129 * MEGABYTE, ..thumbnail };
        assert_eq!(weight(&[dense]), Weight::Pictures);
    }

    #[test]
    fn a_picture_larger_than_the_room_takes_all_of_it() {
        for bytes in [1 << 30, 3 * PERMIT_BYTES, PERMIT_BYTES, 0] {
            let room = DecodingRoom::new(bytes);
            let (own, wanted, _) = room.of(&[Decoding { pixels: usize::MAX, bytes: usize::MAX }]);
            assert_eq!(own.available_permits(), wanted as usize, "{bytes}");
        }
    }
}
