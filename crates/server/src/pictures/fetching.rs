//! Fetches the pictures that a request only names.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::lookup_host;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, timeout_at};

use super::sent::Sent;
use crate::app::App;
use crate::error::ApiError;
use crate::image_urls::{Fetch, Fetched, ImageUrls, Place, REDIRECTS_MAX, UrlError};
use crate::lifecycle::Phase;
use crate::rooms::PERMIT_BYTES;

/// Fetches the pictures of a request that it only names, one after the other, and reads their
/// headers. Returns the room that the files take.
///
/// # Errors
/// 400 naming the picture that is not there or not what it should be, 503 if there is no room, or
/// if the server ends.
pub(crate) async fn fetch(
    app: &App,
    sent: &mut Sent,
) -> Result<Vec<OwnedSemaphorePermit>, ApiError> {
    let mut room = Vec::new();
    let urls = sent.urls();
    let Some(allowed) = app.image_urls.as_ref().filter(|_| !urls.is_empty()) else {
        return Ok(room);
    };
    let time = app.limits.pictures.fetching;
    let deadline = Instant::now() + time;
    let most = app.limits.pictures.each.bytes;
    for (index, url) in urls {
        let permits = most.div_ceil(PERMIT_BYTES) as u32;
        let permit = Arc::clone(&app.rooms.fetched).try_acquire_many_owned(permits);
        let own: usize = room.iter().map(OwnedSemaphorePermit::num_permits).sum();
        let mut permit = permit.map_err(|_| full(app, sent, index, own + permits as usize))?;
        let fetched = tokio::select! {
            biased;
            () = app.lifecycle.reached(Phase::Aborting) => return Err(ApiError::draining()),
            fetched = timeout_at(deadline, fetch_one(app, allowed, &url, deadline)) => fetched,
        };
        let seconds = time.as_secs_f64();
        let late = || UrlError::Failed(format!("it did not come within {seconds} s"));
        let file = fetched.unwrap_or_else(|_| Err(late()));
        let file = file.map_err(|error| sent.wrong(index, error))?;
        // Only the room that the file takes is kept.
        let kept = file.len().div_ceil(PERMIT_BYTES);
        room.extend(permit.split(kept));
        sent.put(index, file);
    }
    sent.check(&app.limits.pictures, app.image_urls.as_ref())?;
    Ok(room)
}

/// Returns the error of a request for whose picture the room has no permits left; with those of its
/// own files it would take `wanted`.
fn full(app: &App, sent: &Sent, index: usize, wanted: usize) -> ApiError {
    if wanted > app.limits.bodies_bytes / PERMIT_BYTES {
        return sent
            .wrong(index, "the files that the request names take too much together; name fewer");
    }
    ApiError::overloaded("other requests take all the room for pictures; try again later")
}

/// Fetches one file, from redirect to redirect.
async fn fetch_one(
    app: &App,
    allowed: &ImageUrls,
    url: &axum::http::Uri,
    deadline: Instant,
) -> Result<Vec<u8>, UrlError> {
    let mut place = Place::of(url, Some(allowed))?;
    for _ in 0..=REDIRECTS_MAX {
        let found = lookup_host((place.host.trim_matches(['[', ']']), place.port)).await;
        let addresses: Vec<SocketAddr> = found.map_err(|_| UrlError::NotFound)?.collect();
        place.check(&addresses)?;
        let (url, most) = (place.url.to_string(), app.limits.pictures.each.bytes);
        let closed = |_| UrlError::Failed("the server ends".to_owned());
        // The thread keeps its place until its request has ended, also if nobody waits for it.
        let permit = Arc::clone(&app.rooms.fetching).acquire_owned().await.map_err(closed)?;
        let fetcher = Arc::clone(&allowed.fetcher);
        let fetched = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            // The wait for the place is over only now.
            let time = deadline.saturating_duration_since(Instant::now());
            fetcher.get(&Fetch { url, addresses, bytes: most, time })
        });
        let failed = |_| UrlError::Failed("the request met a defect of the server".to_owned());
        match fetched.await.map_err(failed)?.map_err(UrlError::Failed)? {
            Fetched::Body(file) if file.len() <= most => return Ok(file),
            Fetched::Body(_) => {
                return Err(UrlError::Failed(format!("it has more than {most} bytes")));
            }
            Fetched::Redirect(location) => place = place.redirected(&location, Some(allowed))?,
        }
    }
    Err(UrlError::TooManyRedirects)
}
