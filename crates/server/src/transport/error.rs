//! Why a server does not start.

use std::io;
use std::net::SocketAddr;

use thiserror::Error;

/// Why a server does not start.
#[derive(Debug, Error)]
pub enum ServeError {
    /// The server cannot listen on the address.
    #[error("cannot listen on {host}:{port}: {problem}")]
    Listen {
        /// The name or address given.
        host: String,
        /// The port given.
        port: u16,
        /// The address whose port another program has, if that is what is wrong.
        taken: Option<SocketAddr>,
        /// What is wrong and what to do.
        problem: String,
    },
    /// Other machines could reach a server that asks for no key.
    #[error(
        "{address} is reached from other machines; give --api-key-file so that only those with a \
         key can use the server, or --insecure-no-auth to let everybody"
    )]
    NoKeys {
        /// The address.
        address: SocketAddr,
    },
    /// The certificate or its key cannot be used.
    #[error("TLS cannot be set up: {0}")]
    Tls(String),
    /// The system has no threads left.
    #[error("the system gives no threads for the server: {0}")]
    Threads(io::Error),
}
