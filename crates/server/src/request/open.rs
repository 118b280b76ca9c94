//! The first half of answering a request for a model: its body is read and weighed, its model is
//! opened, and the work that comes before the model's own is done.

use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use tokio::time::timeout_at;

use crate::error::{ApiError, Code};
use crate::models::{KeepAlive, Lease, Named};
use crate::request::body::{Received, receive};
use crate::request::fields::{FieldTable, Fields};
use crate::request::pictures::{Pictured, admit, fetch};
use crate::service::app::App;

/// What is done with the pictures of a request before its work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sees {
    /// Nothing: where they stand is enough.
    Places,
    /// Their headers are read, for the numbers of their soft tokens. They take no room, and those
    /// that are only named are fetched only if these numbers depend on their sizes.
    Sizes,
    /// They are decoded.
    All,
}

/// Reads a request that is not run, by the table of its fields, opens the model that it names, and
/// does the work.
///
/// # Errors
/// As [`receive`] and [`open_named`], and 404 if there is no such model.
pub(crate) async fn open<D: Pictured + Send + 'static, T: Send + 'static>(
    app: &Arc<App>,
    request: Request<Body>,
    sees: Sees,
    table: FieldTable,
    read: impl FnOnce(Fields<'_>) -> Result<D, ApiError> + Send + 'static,
    work: impl FnOnce(D, &Arc<Lease>) -> Result<T, ApiError> + Send + 'static,
) -> Result<(T, Arc<Lease>), ApiError> {
    let received = receive(app, request, table, read).await?;
    let named = app.models.find(received.model.as_deref()).await?;
    open_named(app, received, &named, (None, sees), work).await
}

/// Opens the model for a request that has been read, and does the work for it that comes before the
/// model's own. The model has been found, and is kept loaded as long as `keep` says.
///
/// # Errors
/// 408 and 503 if the model is not loaded, 400 for pictures of a request that it does not take,
/// the errors of [`Pictured::check`], [`fetch`] and [`admit`], and those of `work`.
pub(crate) async fn open_named<D: Pictured + Send + 'static, T: Send + 'static>(
    app: &App,
    received: Received<D>,
    named: &Named,
    (keep, sees): (Option<KeepAlive>, Sees),
    work: impl FnOnce(D, &Arc<Lease>) -> Result<T, ApiError> + Send + 'static,
) -> Result<(T, Arc<Lease>), ApiError> {
    let Received { mut asked, mut weight, visitor, mut room, .. } = received;
    let mut lease = lease(app, named, keep).await?;
    lease.visitor = visitor;
    lease.context = asked.context();
    let lease = Arc::new(lease);
    if let Some(sent) = asked.pictures() {
        sent.meet(lease.pictures.is_some());
    }
    if sees == Sees::All && asked.pictures().is_some_and(|sent| sent.names_urls()) {
        // An error that is certain need not wait for other servers.
        let reading = Arc::clone(&lease);
        let check = move || asked.check(&reading).map(|()| asked);
        let checked = app.work(visitor.client, weight, check).await;
        asked = checked.inspect_err(|error| count_refused(app, &lease, error))?;
    }
    if let Some(sent) = asked.pictures()
        && let Some(param) = sent.param()
    {
        let pictures = lease.sees(param)?.clone();
        let fetches = match sees {
            Sees::Places => false,
            Sees::Sizes => pictures.preparation.depends_on_size(),
            Sees::All => true,
        };
        let admitted = async {
            if fetches {
                room.extend(fetch(app, sent).await?);
            }
            if sees == Sees::All {
                let (decoding, decodes) = admit(app, sent, &pictures).await?;
                room.push(decoding);
                weight = decodes;
            }
            Ok(())
        };
        let late = "the images were not read in the time that a request may take";
        in_time(app, lease.asked, admitted, late).await?;
    }
    let reading = Arc::clone(&lease);
    let work = move || {
        let _room = room;
        work(asked, &reading)
    };
    let done = app.work(visitor.client, weight, work).await;
    Ok((done.inspect_err(|error| count_refused(app, &lease, error))?, lease))
}

/// Counts a request that found no place in the model's queue.
fn count_refused(app: &App, lease: &Lease, error: &ApiError) {
    if error.code == Code::QueueFull {
        app.metrics.model(&lease.base).refused();
    }
}

/// Leases a model, waiting no longer than a request may take.
async fn lease(app: &App, named: &Named, keep: Option<KeepAlive>) -> Result<Lease, ApiError> {
    let acquired = app.models.acquire(named, keep);
    let late = "the model was not loaded in the time that a request may take";
    in_time(app, Instant::now(), acquired, late).await
}

/// Waits no longer than a request may take that came at `came`.
async fn in_time<T>(
    app: &App,
    came: Instant,
    work: impl Future<Output = Result<T, ApiError>>,
    late: &str,
) -> Result<T, ApiError> {
    match app.lifecycle.deadline(came) {
        None => work.await,
        Some(deadline) => timeout_at(deadline.into(), work).await.unwrap_or_else(|_| {
            Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, Code::DeadlineExceeded, late))
        }),
    }
}
