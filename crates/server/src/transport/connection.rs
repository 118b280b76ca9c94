//! One connection: HTTP/1.1 with limits of size and time.

use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::StatusCode;
use http_body::Body as _;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

use super::heads::Heads;
use super::stall::Impatient;
use super::table::ConnectionPermit;
use crate::request::body::Held;
use crate::service::answer::answer;
use crate::service::app::App;
use crate::service::lanes::Switch;
use crate::service::lifecycle::Phase;

/// Most bytes of a request's head; more is answered with 431.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// Most headers of a request; more is answered with 431.
const HEADERS_MAX: usize = 100;

/// Most bytes of a refused request that are thrown away, and most time for it.
const DRAIN_BYTES: usize = 64 << 20;
const DRAIN_TIME: Duration = Duration::from_secs(5);
/// Most bytes of those that have shown no key.
const UNKNOWN_DRAIN_BYTES: usize = 64 << 10;
/// Bytes that are read at once of what is thrown away.
const DRAIN_PIECE: usize = 16 << 10;

/// The parts of the server that belong to a connection: its place, and the switch of its lanes.
pub(crate) struct Standing {
    pub(crate) place: ConnectionPermit,
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
    let is_unknown = Arc::new(AtomicBool::new(false));
    let service = service_fn(|request: hyper::Request<Incoming>| {
        let (app, router) = (Arc::clone(app), router.clone());
        let turn = place.turn(!request.body().is_end_stream());
        let (switch, is_unknown) = (switch.clone(), Arc::clone(&is_unknown));
        async move {
            let mut request = request.map(|body| Body::new(turn.watch(body)));
            request.extensions_mut().insert(switch);
            let response = answer(app, router, request, client, turn.is_reserve).await;
            let is_refused = matches!(
                response.status(),
                StatusCode::UNAUTHORIZED | StatusCode::TOO_MANY_REQUESTS
            );
            is_unknown.store(is_refused, Ordering::Relaxed);
            // The connection is busy as long as the body lives.
            Ok::<_, Infallible>(response.map(|body| Held::new(body, turn)))
        }
    });
    let mut connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(app.limits.header)
        .max_buf_size(HEAD_BYTES_MAX)
        .max_headers(HEADERS_MAX)
        .keep_alive(!place.is_late())
        .serve_connection(TokioIo::new(Heads::new(stream, HEAD_BYTES_MAX)), service);
    let ended = tokio::select! {
        // A request that has come is read before the connection is told to end.
        biased;
        ended = &mut connection => Some(ended),
        () = place.must_leave() => return,
        () = app.lifecycle.reached(last) => {
            Pin::new(&mut connection).graceful_shutdown();
            None
        }
    };
    // An idle connection ends at once, a busy one when its answer is sent.
    let ended = match ended {
        Some(ended) => ended,
        None => tokio::select! {
            ended = &mut connection => ended,
            () = place.must_leave() => return,
        },
    };
    log(ended);
    place.drains();
    let most = if is_unknown.load(Ordering::Relaxed) { UNKNOWN_DRAIN_BYTES } else { DRAIN_BYTES };
    let stream = connection.into_parts().io.into_inner().into_inner();
    tokio::select! {
        _ = tokio::time::timeout(DRAIN_TIME, drain(stream, most, switch)) => {}
        () = place.must_leave() => {}
        () = app.lifecycle.reached(last) => {}
    }
}

/// Sends no more, and throws away what the client still sends, until it sends no more either. A
/// connection that is closed with bytes unread is reset, and the client may then lose an answer
/// that it has not read (RFC 9112, 9.6).
async fn drain<S>(mut stream: S, most: usize, switch: &Switch) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    poll_fn(|context| Pin::new(&mut stream).poll_shutdown(context)).await?;
    let mut piece = vec![0; DRAIN_PIECE];
    let (mut read, mut is_bulk) = (0, false);
    while read < most {
        let more = poll_fn(|context| {
            let mut piece = ReadBuf::new(&mut piece);
            let polled = Pin::new(&mut stream).poll_read(context, &mut piece);
            polled.map_ok(|()| piece.filled().len())
        });
        match more.await? {
            0 => return Ok(()),
            more => read += more,
        }
        // It gives way to what is worked on, as a large body that is wanted does.
        if read > UNKNOWN_DRAIN_BYTES && !is_bulk {
            is_bulk = true;
            switch.change(true).await;
        }
    }
    Ok(())
}

fn log(ended: Result<(), hyper::Error>) {
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection broke off");
    }
}
