//! One connection: HTTP/1.1 with limits of size and time.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

use super::heads::Heads;
use super::stall::Impatient;
use super::table::Place;
use crate::answer::answer;
use crate::app::App;
use crate::body::Held;
use crate::lanes::Switch;
use crate::lifecycle::Phase;

/// Most bytes of a request's head; more is answered with 431.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// Most headers of a request; more is answered with 431.
const HEADERS_MAX: usize = 100;

/// The parts of the server that belong to a connection: its place, and the switch of its lanes.
pub(crate) struct Standing {
    pub(crate) place: Place,
    pub(crate) switch: Switch,
}

/// Serves a connection until one side ends it, or until the server ends and has sent its answers.
pub(crate) async fn serve(
    app: &Arc<App>,
    router: Router,
    stream: TcpStream,
    client: IpAddr,
    tls: Option<TlsAcceptor>,
    standing: &Standing,
) {
    let place = &standing.place;
    // Tokens are small and have to leave at once.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "packets of the connection are joined");
    }
    let stream = Impatient::new(stream, app.limits.write_stall);
    // A client that comes while the server drains gets one answer.
    let last = if place.is_late() { Phase::Aborting } else { Phase::Draining };
    let Some(tls) = tls else { return talk(app, router, stream, client, standing, last).await };
    let accepted = tokio::select! {
        accepted = tokio::time::timeout(app.limits.handshake, tls.accept(stream)) => accepted,
        // Nothing was asked yet.
        () = app.lifecycle.reached(last) => return,
    };
    match accepted {
        Ok(Ok(stream)) => talk(app, router, stream, client, standing, last).await,
        Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
        Err(_) => tracing::debug!("a TLS handshake took too long"),
    }
}

/// Answers requests until the server is in the phase `last`, then only the one in progress.
async fn talk<S>(
    app: &Arc<App>,
    router: Router,
    stream: S,
    client: IpAddr,
    standing: &Standing,
    last: Phase,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let Standing { place, switch } = standing;
    let is_reserve = place.is_reserve;
    let service = service_fn(|request: hyper::Request<Incoming>| {
        let (app, router, turn) = (Arc::clone(app), router.clone(), place.turn());
        let switch = switch.clone();
        async move {
            let mut request = request.map(Body::new);
            request.extensions_mut().insert(switch);
            let response = answer(app, router, request, client, is_reserve).await;
            // The connection is busy as long as the body lives.
            Ok::<_, Infallible>(response.map(|body| Held::new(body, turn)))
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(app.limits.header)
        .max_buf_size(HEAD_BYTES_MAX)
        .max_headers(HEADERS_MAX)
        .keep_alive(!place.is_late())
        .serve_connection(TokioIo::new(Heads::new(stream, HEAD_BYTES_MAX)), service);
    tokio::pin!(connection);
    tokio::select! {
        // A request that has come is read before the connection is told to end.
        biased;
        ended = connection.as_mut() => return log(ended),
        () = place.must_leave() => return,
        () = app.lifecycle.reached(last) => connection.as_mut().graceful_shutdown(),
    }
    // An idle connection ends at once, a busy one when its answer is sent.
    tokio::select! {
        ended = connection => log(ended),
        () = place.must_leave() => {}
    }
}

fn log(ended: Result<(), hyper::Error>) {
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection broke off");
    }
}
