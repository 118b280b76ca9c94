//! The first half of answering a request for a model: its body is read and weighed, its model is
//! opened, and the work that comes before the model's own is done.

use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use tokio::time::timeout_at;

use crate::app::App;
use crate::body::{Received, receive};
use crate::error::{ApiError, Code};
use crate::json::Fields;
use crate::models::{KeepAlive, Lease, Named};

/// Reads a request, opens the model that it names, and does the work for it that comes before the
/// model's own.
///
/// # Errors
/// As [`receive`] and [`open_named`], and 404 if there is no such model.
pub(crate) async fn open<D: Send + 'static, T: Send + 'static>(
    app: &Arc<App>,
    request: Request<Body>,
    read: impl FnOnce(Fields<'_>) -> Result<D, ApiError> + Send + 'static,
    work: impl FnOnce(D, &Arc<Lease>) -> Result<T, ApiError> + Send + 'static,
) -> Result<(T, Arc<Lease>), ApiError> {
    let received = receive(app, request, read).await?;
    let named = app.models.find(received.model.as_deref()).await?;
    open_named(app, received, &named, None, work).await
}

/// Does the same for a request that has been read and a model that has been found, which is kept
/// loaded as long as `keep` says.
///
/// # Errors
/// 408 and 503 if the model is not loaded, and the errors of `work`.
pub(crate) async fn open_named<D: Send + 'static, T: Send + 'static>(
    app: &App,
    received: Received<D>,
    named: &Named,
    keep: Option<KeepAlive>,
    work: impl FnOnce(D, &Arc<Lease>) -> Result<T, ApiError> + Send + 'static,
) -> Result<(T, Arc<Lease>), ApiError> {
    let Received { asked, weight, scope, room, .. } = received;
    let mut lease = lease(app, named, keep).await?;
    lease.scope = scope;
    let lease = Arc::new(lease);
    let reading = Arc::clone(&lease);
    let work = move || {
        let _room = room;
        work(asked, &reading)
    };
    let done = app.work(weight, work).await.inspect_err(|error| {
        if error.code == Code::QueueFull {
            app.metrics.model(&lease.base).refused();
        }
    })?;
    Ok((done, lease))
}

/// Leases a model, waiting no longer than a request may take.
async fn lease(app: &App, named: &Named, keep: Option<KeepAlive>) -> Result<Lease, ApiError> {
    let acquired = app.models.acquire(named, keep);
    match app.lifecycle.deadline(Instant::now()) {
        None => acquired.await,
        Some(deadline) => timeout_at(deadline.into(), acquired).await.unwrap_or_else(|_| {
            let message = "the model was not loaded in the time that a request may take";
            Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, Code::DeadlineExceeded, message))
        }),
    }
}
