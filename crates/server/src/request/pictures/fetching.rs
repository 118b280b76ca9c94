//! Fetches the pictures that a request only names.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::time::{Instant, timeout, timeout_at};
use trine_foreign::WebUrl;

use super::sent::Sent;
use crate::error::ApiError;
use crate::request::fetcher::{Fetch, FetchWaiter, Fetched};
use crate::request::image_urls::{AllowedUrl, ImageUrls, REDIRECTS_MAX, UrlError};
use crate::service::app::App;
use crate::service::lifecycle::Phase;
use crate::service::rooms::PERMIT_BYTES;

/// The share of the room for fetched files that one request may take: one part of this many.
const REQUEST_SHARE: usize = 4;
/// Name of threads that wait for other servers.
const THREAD: &str = "fetching";

/// Fetches the pictures of a request that it only names, one after the other, and reads their
/// headers. Returns the room that the files take. Those of earlier turns that do not come are left
/// out.
///
/// # Errors
/// 400 naming a picture of the newest turn that is not there or not what it should be, 503 if there
/// is no room in the time that fetching may take, or if the server ends.
pub(crate) async fn fetch(
    app: &App,
    sent: &mut Sent,
) -> Result<Option<OwnedSemaphorePermit>, ApiError> {
    let urls = sent.urls();
    let Some(allowed) = app.image_urls.as_ref().filter(|_| !urls.is_empty()) else {
        return Ok(None);
    };
    let time = app.limits.pictures.fetching;
    let budget = Budget::new(app.limits.pictures.each.bytes, app.limits.bodies_bytes);
    let mut room = wait_for_room(app, budget.wanted(0, urls.len()), time).await?;
    let deadline = Instant::now() + time;
    let (mut kept, count) = (0, urls.len());
    for (index, (picture, url)) in urls.into_iter().enumerate() {
        let most = budget.most(kept);
        let own = Allowance::take(&mut room, most, deadline);
        let fetched = tokio::select! {
            biased;
            () = app.lifecycle.reached(Phase::Aborting) => return Err(ApiError::draining()),
            fetched = timeout_at(deadline, fetch_one(app, allowed, &url, own)) => fetched,
        };
        let seconds = time.as_secs_f64();
        let late = || UrlError::Failed(format!("it did not come within {seconds} s"));
        let fetched = fetched.unwrap_or_else(|_| Err(late()));
        match fetched {
            Ok((file, own)) => {
                room.merge(own.room);
                kept += file.len().div_ceil(PERMIT_BYTES);
                sent.put(picture, file);
            }
            Err(error) => {
                sent.fail(picture, sent.wrong(picture, budget.explain(error, most)))?;
            }
        }
        let spare = room.num_permits().saturating_sub(budget.wanted(kept, count - index - 1));
        drop(room.split(spare));
    }
    sent.check(&app.limits.pictures, app.image_urls.as_ref())?;
    Ok(Some(room))
}

/// Waits for room, in the order in which requests come. A request has all that it may need before
/// it fetches anything, so that none waits for another while it holds a part.
async fn wait_for_room(
    app: &App,
    wanted: usize,
    time: Duration,
) -> Result<OwnedSemaphorePermit, ApiError> {
    let wanted = u32::try_from(wanted).unwrap_or(u32::MAX);
    let room = Arc::clone(&app.rooms.fetched).acquire_many_owned(wanted);
    let room = tokio::select! {
        biased;
        () = app.lifecycle.reached(Phase::Aborting) => return Err(ApiError::draining()),
        room = timeout(time, room) => room,
    };
    let full = "other requests take all the room for images that are fetched; try again later";
    // The room is never closed.
    room.map_err(|_| ApiError::overloaded(full))?.map_err(|_| ApiError::draining())
}

/// What a file may take.
#[derive(Debug)]
struct Allowance {
    /// Most bytes.
    bytes: usize,
    deadline: Instant,
    /// Room for as many bytes. The thread that reads the file keeps it until it has ended.
    room: OwnedSemaphorePermit,
}

impl Allowance {
    /// Takes room for a file of at most `bytes` from that of its request.
    fn take(room: &mut OwnedSemaphorePermit, bytes: usize, deadline: Instant) -> Self {
        let permits = bytes.div_ceil(PERMIT_BYTES).min(room.num_permits());
        let room = room.split(permits).expect("it is a part of the room");
        // A file that did not come may have taken its room with it.
        Self { bytes: bytes.min(permits * PERMIT_BYTES), deadline, room }
    }
}

/// What the files that a request names may take, in permits.
#[derive(Debug)]
struct Budget {
    /// Bytes of one file.
    each_bytes: usize,
    /// Permits of one file.
    each: usize,
    /// Permits of all of them.
    all: usize,
}

impl Budget {
    /// Returns the budget of a request if files may have `each_bytes`, and those of all requests
    /// `all_bytes`: a share of that, but room for one file.
    fn new(each_bytes: usize, all_bytes: usize) -> Self {
        let (each, all) = (each_bytes.div_ceil(PERMIT_BYTES), all_bytes / PERMIT_BYTES);
        Self { each_bytes, each, all: (all / REQUEST_SHARE).max(each).min(all) }
    }

    /// Returns the permits for a request whose files take `kept`, and that has `more` to fetch.
    fn wanted(&self, kept: usize, more: usize) -> usize {
        self.each.saturating_mul(more).saturating_add(kept).min(self.all)
    }

    /// Returns the most bytes of the next file.
    fn most(&self, kept: usize) -> usize {
        self.each_bytes.min(self.all.saturating_sub(kept) * PERMIT_BYTES)
    }

    /// Returns the error of a file that could have `most` bytes: if others have left it less, it is
    /// all of them that are too large.
    fn explain(&self, error: UrlError, most: usize) -> UrlError {
        match error {
            UrlError::TooLarge(_) if most < self.each_bytes => {
                UrlError::TooLargeTogether(self.all * PERMIT_BYTES)
            }
            error => error,
        }
    }
}

/// Fetches one file, from redirect to redirect. Returns its room with it.
async fn fetch_one(
    app: &App,
    allowed: &ImageUrls,
    url: &WebUrl,
    mut own: Allowance,
) -> Result<(Vec<u8>, Allowance), UrlError> {
    let most = own.bytes;
    let mut place = AllowedUrl::of(url, Some(allowed))?;
    let mut from: Option<WebUrl> = None;
    for _ in 0..=REDIRECTS_MAX {
        let error = match fetch_place(app, allowed, &place, own).await {
            Ok((Fetched::Body(file), own)) if file.len() <= most => return Ok((file, own)),
            Ok((Fetched::Body(_) | Fetched::TooLarge, _)) => UrlError::TooLarge(most),
            Ok((Fetched::Redirect(location), back)) => {
                let next = place.redirected(&location, Some(allowed))?;
                from = Some(std::mem::replace(&mut place, next).url);
                own = back;
                continue;
            }
            Err(error) => error,
        };
        return Err(match &from {
            Some(from) => error.after(from, Some(&place.url)),
            None => error,
        });
    }
    Err(UrlError::TooManyRedirects)
}

/// Sends one request.
async fn fetch_place(
    app: &App,
    allowed: &ImageUrls,
    place: &AllowedUrl,
    own: Allowance,
) -> Result<(Fetched, Allowance), UrlError> {
    let closed = |_| UrlError::Failed("the server ends".to_owned());
    let permit = Arc::clone(&app.rooms.fetching).acquire_owned().await.map_err(closed)?;
    let fetcher = Arc::clone(&allowed.fetcher);
    let (host, port) = (place.host(), place.url.port());
    // Nothing ends a lookup: its thread keeps the place until the system gives up.
    let look_up = move || (fetcher.addresses(&host, port), permit);
    let (found, permit) = on_thread(look_up).await?;
    let addresses = found.map_err(|_| UrlError::NotFound)?;
    place.check(&addresses)?;
    let url = place.url.to_string();
    let fetcher = Arc::clone(&allowed.fetcher);
    let waiter = FetchWaiter::default();
    let end = waiter.end();
    // The thread keeps its place and the file's room until its request has ended, also if nobody
    // waits for it.
    let fetched = on_thread(move || {
        let _permit = permit;
        // The wait for the place is over only now.
        let time = own.deadline.saturating_duration_since(Instant::now());
        let fetched = fetcher.get(&Fetch { url, addresses, bytes: own.bytes, time }, &end)?;
        Ok((fetched, own))
    });
    fetched.await?.map_err(UrlError::Failed)
}

/// Runs what waits for other servers on a thread of its own. Those of the runtimes are for texts,
/// which must not wait for it; nor does the end of the server.
async fn on_thread<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, UrlError> {
    let (done, result) = oneshot::channel();
    // If nobody waits, the result is dropped with what it holds.
    let work = move || drop(done.send(work()));
    let thread = std::thread::Builder::new().name(THREAD.to_owned()).spawn(work);
    thread.map_err(|_| UrlError::Failed("the server has no thread for it".to_owned()))?;
    let failed = |_| UrlError::Failed("the request met a defect of the server".to_owned());
    result.await.map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEGABYTE: usize = 1 << 20;

    #[test]
    fn a_request_has_room_for_all_its_files_before_it_fetches_one() {
        let budget = Budget::new(20_000_000, 256 * MEGABYTE);
        assert_eq!(budget.wanted(0, 1), 306);
        assert_eq!(budget.wanted(0, 64), budget.all);
        assert_eq!(budget.all * PERMIT_BYTES, 64 * MEGABYTE);
        // However the files come, no more is wanted than before.
        for sizes in [[1, 1, 1, 1, 1], [306, 306, 306, 106, 0], [306, 1, 306, 1, 306]] {
            let (mut kept, mut room) = (0, budget.wanted(0, sizes.len()));
            for (index, size) in sizes.into_iter().enumerate() {
                let size = size.min(budget.most(kept) / PERMIT_BYTES);
                kept += size;
                let wanted = budget.wanted(kept, sizes.len() - index - 1);
                assert!((kept..=room).contains(&wanted), "{sizes:?}: {wanted}");
                room = wanted;
            }
            assert_eq!(room, kept);
        }
    }

    #[test]
    fn a_budget_is_at_least_a_file_and_at_most_all_the_room() {
        for (each, all, permits) in
            [(MEGABYTE, 2 * MEGABYTE, 16), (MEGABYTE, 65536, 1), (70_000, 1 << 20, 4), (1, 0, 0)]
        {
            assert_eq!(Budget::new(each, all).all, permits, "{each} {all}");
        }
        let budget = Budget::new(70_000, 1 << 20);
        assert_eq!(budget.most(2), 70_000);
        assert_eq!(budget.most(3), PERMIT_BYTES);
        assert_eq!(budget.explain(UrlError::TooLarge(70_000), 70_000), UrlError::TooLarge(70_000));
        let together = UrlError::TooLargeTogether(4 * PERMIT_BYTES);
        assert_eq!(budget.explain(UrlError::TooLarge(PERMIT_BYTES), PERMIT_BYTES), together);
    }
}
