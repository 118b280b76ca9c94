//! Room for pictures, which a few bytes of a file can need much of.

use std::sync::Arc;

use tokio::sync::OwnedSemaphorePermit;

use super::sent::Sent;
use crate::error::ApiError;
use crate::models::Pictures;
use crate::service::app::App;
use crate::service::lifecycle::Phase;
use crate::service::rooms::PERMIT_BYTES;
use crate::service::workers::Weight;

/// Waits for room for the numbers of prepared pictures, which is given back as the tower makes
/// their rows, and then for room to decode them, one after the other. Returns that room, and what
/// weight the decoding has.
///
/// # Errors
/// 400 for pictures of the newest turn that never have room together (older ones are left out), 503
/// if the server ends.
pub(crate) async fn admit(
    app: &App,
    sent: &mut Sent,
    pictures: &Pictures,
) -> Result<(OwnedSemaphorePermit, Weight), ApiError> {
    let room = &app.rooms.prepared;
    let (each, bytes) = loop {
        let each = sent.prepared_bytes(&pictures.preparation);
        let bytes = each.iter().sum::<usize>();
        if bytes <= room.most_bytes {
            break (each, bytes);
        }
        let message = format!(
            "the images of the request take {bytes} bytes when they are prepared, more than {}; \
             send fewer",
            room.most_bytes
        );
        let error = ApiError::field(sent.param().unwrap_or("messages"), message);
        if !sent.fail_oldest(&error) {
            return Err(error);
        }
    };
    let wait = async {
        // Each is rounded up, and all of them may be as many as there are.
        let each: Vec<usize> = each.iter().map(|bytes| bytes.div_ceil(PERMIT_BYTES)).collect();
        let (prepared, all) = room.of(bytes, each.iter().sum());
        let prepared = Arc::clone(prepared).acquire_many_owned(all).await.ok()?;
        let (decoding, wanted, weight) = app.rooms.decoding.of(&sent.decoding());
        let decoding = Arc::clone(decoding).acquire_many_owned(wanted).await.ok()?;
        sent.house(prepared, &each);
        Some((decoding, weight))
    };
    let decoding = tokio::select! {
        biased;
        decoding = wait => decoding,
        () = app.lifecycle.reached(Phase::Aborting) => None,
    };
    decoding.ok_or_else(ApiError::draining)
}
