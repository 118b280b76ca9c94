//! Room for pictures, which a few bytes of a file can need much of.

use std::sync::Arc;

use tokio::sync::OwnedSemaphorePermit;

use super::sent::Sent;
use crate::app::{App, BODY_PERMIT_BYTES};
use crate::error::ApiError;
use crate::lifecycle::Phase;
use crate::models::Pictures;

/// Takes room for the numbers of prepared pictures, which they need until the request has ended,
/// and waits for room to decode them, one after the other.
///
/// # Errors
/// 400 for pictures that never have room together, 503 if those of other requests take it, or if
/// the server ends.
pub(crate) async fn admit(
    app: &App,
    sent: &Sent,
    pictures: &Pictures,
) -> Result<(OwnedSemaphorePermit, OwnedSemaphorePermit), ApiError> {
    let limits = &app.limits.pictures;
    let bytes = sent.prepared_bytes(&pictures.preparation);
    if bytes > limits.prepared_bytes {
        let message = format!(
            "the pictures of the request take {bytes} bytes when they are prepared, more than {}; send fewer",
            limits.prepared_bytes
        );
        return Err(ApiError::field(sent.param().unwrap_or("messages"), message));
    }
    let prepared = Arc::clone(&app.rooms.prepared).try_acquire_many_owned(permits(bytes));
    let prepared = prepared.map_err(|_| {
        ApiError::overloaded("pictures of other requests take all the room; try again later")
    })?;
    // A picture that is larger than all the room is decoded when no other one is.
    let wanted = permits(sent.decoding_bytes().min(limits.decoding_bytes));
    let decoding = tokio::select! {
        biased;
        permit = Arc::clone(&app.rooms.decoding).acquire_many_owned(wanted) => permit.ok(),
        () = app.lifecycle.reached(Phase::Aborting) => None,
    };
    let decoding = decoding.ok_or_else(ApiError::draining)?;
    Ok((prepared, decoding))
}

/// Returns the permits for some bytes, rounded down: those of a whole limit are as many as there
/// are.
fn permits(bytes: usize) -> u32 {
    u32::try_from(bytes / BODY_PERMIT_BYTES).unwrap_or(u32::MAX)
}
