//! What fetches pictures for the server: looks up names, speaks HTTP, and ends when it is told to.

use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Speaks HTTP for the server, which has checked where to.
pub trait Fetcher: fmt::Debug + Send + Sync + 'static {
    /// Returns the addresses of a host, without brackets, at a port: what the system resolves the
    /// name to. Called on a thread that may wait.
    ///
    /// # Errors
    /// If the name is not found.
    fn addresses(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        Ok((host, port).to_socket_addrs()?.collect())
    }

    /// Sends one GET request and returns the answer, without following a redirect. Called on a
    /// thread that may wait.
    ///
    /// It connects to one of the addresses of the request whatever the URL's host is resolved to,
    /// through no proxy, and sends neither cookies nor credentials. Until it returns, no other
    /// request has its place: it should return soon after its `end`.
    ///
    /// # Errors
    /// Why there is no answer, for the client.
    fn get(&self, request: &Fetch, end: &FetchEnd) -> Result<Fetched, String>;
}

/// A request for a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fetch {
    /// The URL, of the scheme `http` or `https`.
    pub url: String,
    /// The addresses of its host, which were checked; not empty.
    pub addresses: Vec<SocketAddr>,
    /// Most bytes of the answer's body; a longer one is [`Fetched::TooLarge`].
    pub bytes: usize,
    /// Time for the whole answer.
    pub time: Duration,
}

/// The answer to a [`Fetch`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fetched {
    /// The body of an answer of the status 200, without a content encoding.
    Body(Vec<u8>),
    /// An answer of the status 200 whose body is too long.
    TooLarge,
    /// The `Location` of a redirect.
    Redirect(String),
}

/// Tells a fetch that nobody waits for it any more.
#[derive(Clone, Default)]
pub struct FetchEnd(Arc<Mutex<Wanted>>);

/// Does something when a fetch ends.
type Hook = Box<dyn FnOnce() + Send>;

enum Wanted {
    Yes(Vec<Hook>),
    No,
}

impl Default for Wanted {
    fn default() -> Self {
        Self::Yes(Vec::new())
    }
}

impl FetchEnd {
    /// Does something when nobody waits for the fetch any more: at once if that is so already.
    /// `hook` must not wait.
    pub fn then(&self, hook: impl FnOnce() + Send + 'static) {
        if let Wanted::Yes(hooks) = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            hooks.push(Box::new(hook));
            return;
        }
        hook();
    }

    /// Ends the fetch.
    fn end(&self) {
        let mut wanted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *wanted, Wanted::No);
        drop(wanted);
        if let Wanted::Yes(hooks) = before {
            hooks.into_iter().for_each(|hook| hook());
        }
    }
}

impl fmt::Debug for FetchEnd {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("FetchEnd")
    }
}

/// Somebody who waits for a fetch. Ends it when dropped.
#[derive(Debug, Default)]
pub(crate) struct FetchWaiter(FetchEnd);

impl FetchWaiter {
    /// Returns what tells the fetch.
    pub(crate) fn end(&self) -> FetchEnd {
        self.0.clone()
    }
}

impl Drop for FetchWaiter {
    fn drop(&mut self) {
        self.0.end();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn a_fetch_is_told_of_its_end_once() {
        let (told, tells) = channel();
        let waiter = FetchWaiter::default();
        let end = waiter.end();
        let hook = |told: std::sync::mpsc::Sender<u8>, number| move || told.send(number).unwrap();
        end.then(hook(told.clone(), 1));
        assert!(tells.try_recv().is_err());
        drop(waiter);
        assert_eq!(tells.try_recv(), Ok(1));
        end.then(hook(told, 2));
        assert_eq!(tells.try_iter().collect::<Vec<_>>(), [2]);
    }
}
