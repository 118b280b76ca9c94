//! The accept loop, and how a server ends.

mod connection;
mod error;
mod heads;
mod stall;
mod table;
mod tls;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::models::{Loader, Models};
use crate::service::app::App;
use crate::service::guard::Guard;
use crate::service::lanes::{Bulk, Switch, ride};
use crate::service::lifecycle::{Lifecycle, Phase};
use crate::service::options::{ServerOptions, is_loopback};
use crate::service::routes::router;
use connection::{Standing, serve};
use table::{ConnectionPermit, Connections};

pub use error::ServeError;

/// Pause after the system refused a connection: it is out of file descriptors, and some have to be
/// closed first.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Most time for error events to reach clients after requests were ended, and the divisor that
/// bounds it by a share of the time to drain.
const ABORT_GRACE: Duration = Duration::from_secs(2);
const ABORT_SHARE: u32 = 4;
/// Time for the last writes to reach the network: answers to clients that came while the server
/// ended.
const LAST_WRITES: Duration = Duration::from_millis(50);

/// A server that listens and is ready to run.
pub struct Server {
    app: Arc<App>,
    router: Router,
    listener: TcpListener,
    address: SocketAddr,
    tls: Option<TlsAcceptor>,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Server").field("address", &self.address).finish_non_exhaustive()
    }
}

/// Controls a running server.
#[derive(Debug, Clone)]
pub struct Handle {
    lifecycle: Lifecycle,
}

impl Handle {
    /// Accepts no more requests, and ends when those in flight are finished and their answers sent,
    /// or shortly before the time to drain is over: the rest of that time is for telling the
    /// clients whose requests have not ended.
    pub fn drain(&self) {
        self.lifecycle.enter(Phase::Draining);
    }

    /// Ends requests in flight with an error, then the server.
    pub fn abort(&self) {
        self.lifecycle.enter(Phase::Aborting);
    }
}

impl Server {
    /// Listens. No connection is taken before [`Server::run`].
    ///
    /// # Errors
    /// [`ServeError`] if the address cannot be used, is open to other machines without keys, or TLS
    /// cannot be set up.
    pub async fn bind(options: ServerOptions, loader: Arc<dyn Loader>) -> Result<Self, ServeError> {
        let failed = |problem: String| ServeError::Listen {
            host: options.host.clone(),
            port: options.port,
            taken: None,
            problem,
        };
        let host = options.host.trim_matches(['[', ']']).to_owned();
        let found = tokio::net::lookup_host((host, options.port)).await;
        let addresses: Vec<SocketAddr> =
            found.map_err(|error| failed(unresolved(&error)))?.collect();
        for &address in &addresses {
            if options.keys.is_none() && !options.allows_no_keys && !is_loopback(address.ip()) {
                return Err(ServeError::NoKeys { address });
            }
        }
        let listener = TcpListener::bind(&*addresses).await;
        let listener = listener.map_err(|error| {
            let is_taken = error.kind() == io::ErrorKind::AddrInUse;
            let mut failed = failed(unusable(&addresses, &error));
            if let ServeError::Listen { taken, .. } = &mut failed {
                *taken = addresses.first().copied().filter(|_| is_taken);
            }
            failed
        })?;
        let address = listener.local_addr().map_err(|error| failed(error.to_string()))?;
        let tls = match &options.tls {
            Some((chain, key)) => Some(tls::acceptor(chain, key)?),
            None => None,
        };
        let limits = options.limits.clone();
        let models = Models::new(loader, options.keep_alive, options.memory_budget, limits.waiters);
        let guard = Guard::new(&options);
        let bulk = Bulk::start().map_err(ServeError::Threads)?;
        let (parent, urls) = (options.trace_parent, options.image_urls);
        let app = Arc::new(App::new(models, guard, limits, parent, urls, bulk));
        Ok(Self { router: router(&app), app, listener, address, tls })
    }

    /// Returns the address that is listened on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns a handle that controls the server while it runs.
    pub fn handle(&self) -> Handle {
        Handle { lifecycle: self.app.lifecycle.clone() }
    }

    /// Loads the default model, so that the first request does not wait for it.
    ///
    /// # Errors
    /// A message that says what is wrong with the model.
    pub async fn preload(&self) -> Result<(), String> {
        self.app.models.preload().await
    }

    /// Takes connections until [`Handle::drain`] or [`Handle::abort`] is called and what is in
    /// flight has ended.
    pub async fn run(self) {
        let lifecycle = self.app.lifecycle.clone();
        let limits = &self.app.limits;
        let table = Arc::new(Connections::new(limits.connections, limits.reserve));
        let ended = async {
            lifecycle.reached(Phase::Draining).await;
            self.app.models.drain();
            tracing::info!(in_flight = lifecycle.in_flight(), "draining");
            let (to_finish, to_tell) = shares(limits.drain);
            let to_tell = tokio::select! {
                () = self.settle(&table, to_finish) => to_tell,
                () = lifecycle.reached(Phase::Aborting) => ABORT_GRACE,
            };
            lifecycle.enter(Phase::Aborting);
            self.settle(&table, to_tell).await;
            tokio::time::sleep(LAST_WRITES).await;
        };
        tokio::select! {
            () = ended => {}
            () = self.accept(&table) => {}
            () = self.app.models.expire() => {}
        }
        self.app.bulk.end();
        let models = self.app.models.clone();
        // A panic of an engine's thread was reported where it happened.
        let _ = tokio::task::spawn_blocking(move || models.stop()).await;
    }

    /// Waits until no request is in flight and the connections have ended, or some time has passed.
    /// A request ends when its answer is in its connection's buffer; a connection ends when the
    /// client has taken that.
    async fn settle(&self, table: &Connections, at_most: Duration) {
        let emptied = tokio::time::timeout(at_most, table.emptied());
        let _ = tokio::join!(self.app.lifecycle.idle(at_most), emptied);
    }

    async fn accept(&self, table: &Arc<Connections>) {
        loop {
            match self.listener.accept().await {
                Ok((stream, client)) => {
                    let is_late = self.app.lifecycle.phase() != Phase::Running;
                    match Connections::enter(table, client.ip(), is_late) {
                        Some(place) => self.spawn(stream, client, place),
                        None => tracing::warn!("a connection is refused: too many are open"),
                    }
                }
                Err(error) => {
                    // The error is of one connection only, or of the whole process: neither ends
                    // the server.
                    tracing::warn!(%error, "a connection was not accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn spawn(&self, stream: TcpStream, client: SocketAddr, place: ConnectionPermit) {
        let (app, router, tls) = (Arc::clone(&self.app), self.router.clone(), self.tls.clone());
        let switch = Switch::default();
        let standing = Standing { place, switch: switch.clone() };
        let connection = async move {
            app.metrics.connection(1);
            serve(&app, router, stream, client.ip(), tls, &standing).await;
            app.metrics.connection(-1);
        };
        ride(Box::pin(connection), switch, &self.app.bulk);
    }
}

/// Divides the time to drain into the time that requests have to finish, and the time that clients
/// have to take the errors of those that did not. The last writes come after both.
fn shares(drain: Duration) -> (Duration, Duration) {
    let to_tell = ABORT_GRACE.min(drain / ABORT_SHARE);
    (drain - to_tell, to_tell.saturating_sub(LAST_WRITES))
}

fn unresolved(error: &io::Error) -> String {
    format!("the name is unknown ({error}); give an address such as 127.0.0.1")
}

/// Returns a port near one that is in use, on which an address can be listened on now.
fn free_port(taken: &SocketAddr) -> Option<u16> {
    let next = taken.port().checked_add(1)?;
    let is_free = |port: &u16| std::net::TcpListener::bind((taken.ip(), *port)).is_ok();
    (next..=next.saturating_add(20)).find(is_free)
}

/// Says why none of the addresses can be listened on, and what helps.
fn unusable(addresses: &[SocketAddr], error: &io::Error) -> String {
    let is_ipv6 = !addresses.is_empty() && addresses.iter().all(SocketAddr::is_ipv6);
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            let free = addresses.first().and_then(free_port);
            let such =
                free.map_or(String::new(), |port| format!(", such as {port}, which is free"));
            format!(
                "the port is in use by another program; stop it, or choose another with \
                 --port{such}"
            )
        }
        io::ErrorKind::PermissionDenied => {
            "the system does not allow it; choose a port from 1024 on with --port".to_owned()
        }
        // Where IPv6 is switched off, the system knows no such addresses, or no such kind of
        // address.
        _ if is_ipv6 => format!("{error}; this machine may be without IPv6: try --host 127.0.0.1"),
        io::ErrorKind::AddrNotAvailable => {
            "this machine has no such address; choose one that it has with --host".to_owned()
        }
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_to_drain_is_enough_for_all_of_it() {
        for milliseconds in [0, 1, 100, 1000, 8000, 30_000, 86_400_000] {
            let drain = Duration::from_millis(milliseconds);
            let (to_finish, to_tell) = shares(drain);
            assert!(to_finish + to_tell + LAST_WRITES <= drain.max(to_finish + LAST_WRITES));
            assert!(
                to_finish * ABORT_SHARE >= drain * (ABORT_SHARE - 1),
                "most of it is to finish"
            );
        }
        assert_eq!(shares(Duration::from_secs(30)).0, Duration::from_secs(28));
    }

    /// Row 119 of the list of bad inputs.
    #[test]
    fn addresses_that_cannot_be_used_are_explained() {
        let addresses = |text: &str| vec![text.parse::<SocketAddr>().unwrap()];
        let (old, new) = (addresses("127.0.0.1:80"), addresses("[::1]:80"));
        let explained = |addresses: &[SocketAddr], kind: io::ErrorKind| {
            unusable(addresses, &io::Error::new(kind, "the system's words"))
        };
        // The errors that Linux returns for ::1 without the module, and with the addresses switched
        // off.
        for kind in [io::ErrorKind::Unsupported, io::ErrorKind::AddrNotAvailable] {
            let text = explained(&new, kind);
            assert!(text.contains("without IPv6") && text.contains("--host 127.0.0.1"), "{text}");
            assert!(!explained(&old, kind).contains("IPv6"));
        }
        for (kind, remedy) in
            [(io::ErrorKind::AddrInUse, "--port"), (io::ErrorKind::PermissionDenied, "1024")]
        {
            assert!(explained(&old, kind).contains(remedy));
            assert!(explained(&new, kind).contains(remedy));
        }
        // A name with both kinds of address: the failure may be that of the other kind.
        assert!(!explained(&[old, new].concat(), io::ErrorKind::AddrNotAvailable).contains("IPv6"));
    }
}
