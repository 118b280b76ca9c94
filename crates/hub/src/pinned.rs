//! One GET request to addresses that the caller has checked, for files of strangers.

use std::io::Read;
use std::net::SocketAddr;
use std::time::Duration;

use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{DefaultConnector, NextTimeout};
use ureq::{Agent, Error};

use crate::http::{header, unusable};
use trine_foreign::cut_name;

/// The longest wait for a connection.
const CONNECT: Duration = Duration::from_secs(5);
/// The most addresses that are tried.
const ADDRESSES_MAX: usize = 8;

/// The answer to [`get_pinned`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pinned {
    /// The body of an answer of the status 200.
    Body(Vec<u8>),
    /// The body of an answer of the status 200 is longer than allowed; it was not read to its end.
    TooLarge,
    /// Where a redirect leads; it is not followed.
    Redirect(String),
}

/// Gives every host these addresses.
#[derive(Debug)]
struct Fixed(Vec<SocketAddr>);

impl Resolver for Fixed {
    fn resolve(&self, _: &Uri, _: &Config, _: NextTimeout) -> Result<ResolvedSocketAddrs, Error> {
        let mut found = self.empty();
        self.0.iter().take(ADDRESSES_MAX).for_each(|address| found.push(*address));
        if self.0.is_empty() { Err(Error::HostNotFound) } else { Ok(found) }
    }
}

/// Sends one GET request for `url` to one of `addresses`, whatever its host is resolved to, through
/// no proxy, with neither cookies nor credentials. A body has at most `bytes`, and everything
/// together takes at most `time`. `stoppable` gets what ends the request from another thread: at
/// once, or after the longest wait for a connection while one is made.
///
/// # Errors
/// Returns why there is no such answer, in words.
pub fn get_pinned(
    url: &str,
    addresses: &[SocketAddr],
    bytes: usize,
    time: Duration,
    stoppable: impl FnOnce(Box<dyn FnOnce() + Send>),
) -> Result<Pinned, String> {
    let config = Agent::config_builder()
        .http_status_as_error(false)
        .max_redirects(0)
        .max_redirects_will_error(false)
        .proxy(None)
        .user_agent(concat!("trine/", env!("CARGO_PKG_VERSION")))
        .accept_encoding("identity")
        .timeout_connect(Some(CONNECT))
        .timeout_global(Some(time))
        .max_idle_connections(0)
        .build();
    let agent = Agent::with_parts(config, DefaultConnector::default(), Fixed(addresses.to_vec()));
    let stopped = agent.clone();
    stoppable(Box::new(move || stopped.shutdown()));
    let failed = |error: &dyn std::fmt::Display| cut_name(&error.to_string(), 200);
    let response = agent.get(url).call().map_err(|error| failed(&error))?;
    match response.status().as_u16() {
        200 => {}
        301 | 302 | 303 | 307 | 308 => {
            let place = header(&response, "location").ok_or("a redirect without a target")?;
            return Ok(Pinned::Redirect(place.to_owned()));
        }
        other => return Err(format!("the server answers with status {other}")),
    }
    if let Some(reason) = unusable(&response) {
        return Err(reason);
    }
    let told = header(&response, "content-length").and_then(|text| text.parse::<u64>().ok());
    if told.is_some_and(|told| told > bytes as u64) {
        return Ok(Pinned::TooLarge);
    }
    let mut body = Vec::new();
    let mut reader = response.into_body().into_reader().take(bytes as u64 + 1);
    reader.read_to_end(&mut body).map_err(|error| failed(&error))?;
    if body.len() > bytes {
        return Ok(Pinned::TooLarge);
    }
    Ok(Pinned::Body(body))
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::net::TcpListener;

    use super::*;

    const TIME: Duration = Duration::from_secs(5);

    /// Answers one request; returns the address, and the head of the request once it is joined.
    fn once(answer: &'static [u8]) -> (SocketAddr, std::thread::JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let work = move || {
            let (mut stream, _) = listener.accept().unwrap();
            let lines = BufReader::new(stream.try_clone().unwrap()).lines();
            let head: Vec<String> =
                lines.map_while(Result::ok).take_while(|line| !line.is_empty()).collect();
            let _ = stream.write_all(answer);
            head.join("\n")
        };
        (address, std::thread::spawn(work))
    }

    fn get(answer: &'static [u8]) -> Result<Pinned, String> {
        let (address, _) = once(answer);
        get_pinned("http://pictures.example/a.png", &[address], 6, TIME, |_| {})
    }

    #[test]
    fn the_addresses_given_are_the_ones_asked() {
        let (address, asked) = once(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc");
        let url = "http://pictures.example:8080/a.png?b=c";
        assert_eq!(get_pinned(url, &[address], 6, TIME, |_| {}), Ok(Pinned::Body(b"abc".to_vec())));
        let head = asked.join().unwrap().to_ascii_lowercase();
        assert!(head.starts_with("get /a.png?b=c http/1.1"), "{head}");
        assert!(head.contains("host: pictures.example:8080"), "{head}");
        assert!(!head.contains("cookie") && !head.contains("authorization"), "{head}");
        assert!(get_pinned(url, &[], 6, TIME, |_| {}).is_err());
    }

    #[test]
    fn what_is_no_small_file_is_refused() {
        let moved =
            get(b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1/\r\nContent-Length: 0\r\n\r\n");
        assert_eq!(moved, Ok(Pinned::Redirect("http://127.0.0.1/".to_owned())));
        for answer in [
            &b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\nabcdefg"[..],
            b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nabcdefg",
        ] {
            assert_eq!(get(answer), Ok(Pinned::TooLarge));
        }
        for (answer, said) in [
            (&b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"[..], "status 404"),
            (b"HTTP/1.1 204 No Content\r\n\r\n", "status 204"),
            (b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\n\r\n", "without a target"),
            (b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx", "gzip"),
            (
                b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 1\r\n\r\nx",
                "web page",
            ),
            (b"nonsense\r\n\r\n", ""),
        ] {
            let error = get(answer).unwrap_err();
            assert!(error.contains(said), "{said}: {error}");
        }
    }

    #[test]
    fn a_server_that_says_nothing_is_left() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let begin = std::time::Instant::now();
        let limit = Duration::from_millis(300);
        assert!(get_pinned("http://pictures.example/", &[address], 6, limit, |_| {}).is_err());
        assert!(begin.elapsed() < Duration::from_secs(5));
    }

    #[test]
    fn a_request_is_ended_while_it_waits() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let begin = std::time::Instant::now();
        let stop_when_asked = |stop: Box<dyn FnOnce() + Send>| {
            std::thread::spawn(move || {
                let mut stream = listener.accept().unwrap().0;
                let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\na";
                stream.read_exact(&mut [0]).unwrap();
                stream.write_all(answer).unwrap();
                stop();
                stream
            });
        };
        let hour = Duration::from_secs(3600);
        assert!(
            get_pinned("http://pictures.example/", &[address], 6, hour, stop_when_asked).is_err()
        );
        assert!(begin.elapsed() < Duration::from_secs(5));
        let at_once = |stop: Box<dyn FnOnce() + Send>| stop();
        let (address, _) = once(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        assert!(get_pinned("http://pictures.example/", &[address], 6, hour, at_once).is_err());
    }
}
