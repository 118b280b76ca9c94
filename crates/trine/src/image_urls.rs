//! Fetches pictures for the server, which decides where from.

use std::net::SocketAddr;
use std::time::Duration;

use trine_server::{Fetch, Fetched, Fetcher};
use ureq::config::Config;
use ureq::http::Uri;
use ureq::http::header::{CONTENT_ENCODING, LOCATION};
use ureq::unversioned::resolver::{ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{DefaultConnector, NextTimeout};
use ureq::{Agent, Error};

/// Longest wait for a connection.
const CONNECT: Duration = Duration::from_secs(5);

/// Fetches with one connection for each request, straight to an address that the server has
/// checked.
#[derive(Debug)]
pub(crate) struct Direct;

/// Gives the addresses that were checked, whatever a name means at the moment.
#[derive(Debug)]
struct Checked(Vec<SocketAddr>);

impl Resolver for Checked {
    fn resolve(&self, _: &Uri, _: &Config, _: NextTimeout) -> Result<ResolvedSocketAddrs, Error> {
        let mut addresses = self.empty();
        // ureq has room for 16.
        self.0.iter().take(16).for_each(|address| addresses.push(*address));
        if addresses.is_empty() { Err(Error::HostNotFound) } else { Ok(addresses) }
    }
}

impl Fetcher for Direct {
    fn get(&self, request: &Fetch) -> Result<Fetched, String> {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            // Proxies of the environment would connect elsewhere.
            .proxy(None)
            .user_agent(concat!("trine/", env!("CARGO_PKG_VERSION")))
            .accept_encoding("identity")
            .timeout_connect(Some(CONNECT))
            .timeout_global(Some(request.time))
            .max_idle_connections(0)
            .build();
        let resolver = Checked(request.addresses.clone());
        let agent = Agent::with_parts(config, DefaultConnector::default(), resolver);
        let mut response = agent.get(&request.url).call().map_err(|error| said(&error))?;
        let status = response.status().as_u16();
        let header = |name| response.headers().get(name).and_then(|value| value.to_str().ok());
        match status {
            200 if header(CONTENT_ENCODING).is_none_or(|encoding| encoding == "identity") => {}
            200 => return Err("its server compresses what should not be".to_owned()),
            301 | 302 | 303 | 307 | 308 => {
                let location = header(LOCATION).map(str::to_owned);
                return location.map(Fetched::Redirect).ok_or_else(|| {
                    format!("its server answers with status {status} and no place to go to")
                });
            }
            _ => return Err(format!("its server answers with status {status}")),
        }
        // ureq takes a body that is as long as its limit for a longer one.
        let limit = (request.bytes as u64).saturating_add(1);
        let body = response.body_mut().with_config().limit(limit).read_to_vec();
        match body {
            Ok(body) if body.len() <= request.bytes => Ok(Fetched::Body(body)),
            Ok(_) | Err(Error::BodyExceedsLimit(_)) => {
                Err(format!("it has more than {} bytes", request.bytes))
            }
            Err(error) => Err(said(&error)),
        }
    }
}

/// Returns what went wrong, without the words of the other side.
fn said(error: &Error) -> String {
    match error {
        Error::Timeout(_) => "its server is too slow".to_owned(),
        Error::Tls(_) | Error::Rustls(_) => "its server's certificate is not valid".to_owned(),
        _ => "its server does not answer as one should".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::time::Instant;

    use super::*;

    /// Answers one connection with some bytes, and gives the head of the request.
    fn answering(answer: &'static [u8]) -> (SocketAddr, std::thread::JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let thread = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut head = Vec::new();
            let mut piece = [0; 1024];
            while !head.ends_with(b"\r\n\r\n") {
                let length = stream.read(&mut piece).unwrap();
                assert_ne!(length, 0);
                head.extend_from_slice(&piece[..length]);
            }
            stream.write_all(answer).unwrap();
            if answer.is_empty() {
                // The other side waits for an answer that does not come.
                let _ = stream.read(&mut piece);
            }
            String::from_utf8(head).unwrap()
        });
        (address, thread)
    }

    fn get(answer: &'static [u8]) -> (Result<Fetched, String>, String) {
        let (address, thread) = answering(answer);
        let request = Fetch {
            // The name exists nowhere (RFC 6761).
            url: "http://pictures.invalid/a.png?b=c".to_owned(),
            addresses: vec![address],
            bytes: 8,
            time: Duration::from_millis(500),
        };
        let fetched = Direct.get(&request);
        (fetched, thread.join().unwrap())
    }

    #[test]
    fn the_connection_goes_to_the_address_that_was_checked() {
        let (fetched, head) = get(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n12345678");
        assert_eq!(fetched, Ok(Fetched::Body(b"12345678".to_vec())));
        let head = head.to_ascii_lowercase();
        assert!(head.starts_with("get /a.png?b=c http/1.1\r\n"), "{head}");
        assert!(head.contains("host: pictures.invalid\r\n"), "{head}");
        assert!(!head.contains("cookie") && !head.contains("authorization"), "{head}");
    }

    #[test]
    fn redirects_are_returned_and_not_followed() {
        let location = "http://169.254.169.254/";
        let (fetched, _) = get(
            b"HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/\r\nContent-Length: 0\r\n\r\n",
        );
        assert_eq!(fetched, Ok(Fetched::Redirect(location.to_owned())));
        let (fetched, _) = get(b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\n\r\n");
        assert!(fetched.unwrap_err().contains("302"));
    }

    #[test]
    fn answers_are_bounded_in_size_and_time() {
        let (fetched, _) = get(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n123456789");
        assert_eq!(fetched.unwrap_err(), "it has more than 8 bytes");
        let chunked =
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\n123456789\r\n0\r\n\r\n";
        assert_eq!(get(chunked).0.unwrap_err(), "it has more than 8 bytes");
        let start = Instant::now();
        assert_eq!(get(b"").0.unwrap_err(), "its server is too slow");
        assert!(start.elapsed() < Duration::from_secs(4), "{:?}", start.elapsed());
    }

    #[test]
    fn other_answers_are_errors_that_quote_nothing() {
        for answer in [
            &b"HTTP/1.1 404 Secret\r\nContent-Length: 6\r\n\r\nsecret"[..],
            b"HTTP/1.1 200 OK\r\nContent-Encoding: secret\r\nContent-Length: 1\r\n\r\n1",
            b"HTTP/1.1 200 OK\r\nContent-Length: secret\r\n\r\n",
            b"secret\r\n\r\n",
        ] {
            let error = get(answer).0.unwrap_err();
            assert!(!error.contains("ecret"), "{error}");
        }
    }
}
