//! The checks of every request before anything looks at its body.

use std::net::IpAddr;

use axum::http::header::{HOST, ORIGIN, TRANSFER_ENCODING};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, Method, Request, StatusCode};
use trine_engine::Scope;

use crate::error::{ApiError, Code, shown};
use crate::keys::{Keys, WrongKeys};
use crate::options::{ServerOptions, is_loopback};
use crate::page;
use crate::visitor::{self, Visitor};

/// Methods that at least one path takes.
pub(crate) const METHODS: &str = "GET, HEAD, POST, DELETE, OPTIONS";
/// Paths that everybody may ask for, besides the page's files.
const PUBLIC: [&str; 3] = ["/health", "/ready", "/favicon.ico"];
/// Longest request id taken from a client, in bytes.
const REQUEST_ID_BYTES_MAX: usize = 128;

/// The checks of a server.
#[derive(Debug)]
pub(crate) struct Guard {
    keys: Option<Keys>,
    /// Whether each key has a scope of its own.
    has_scopes: bool,
    wrong_keys: WrongKeys,
    origins: Vec<String>,
    /// Host names that are answered; `None` answers all.
    host_names: Option<Vec<String>>,
}

impl Guard {
    /// Returns the checks of a server that listens on `address`.
    pub(crate) fn new(options: &ServerOptions, address: IpAddr) -> Self {
        // A name that resolves to a loopback address lets foreign web pages reach the server (DNS
        // rebinding).
        let host_names = is_loopback(address).then(|| {
            let own = options.host.trim_matches(['[', ']']).to_ascii_lowercase();
            let more = options.host_names.iter().map(|name| name.to_ascii_lowercase());
            std::iter::once(own).chain(more).collect()
        });
        let several = options.keys.as_ref().is_some_and(Keys::are_several);
        Self {
            has_scopes: several && !options.shares_prefixes,
            keys: options.keys.clone(),
            wrong_keys: WrongKeys::default(),
            origins: options.origins.clone(),
            host_names,
        }
    }

    /// Checks host and origin.
    pub(crate) fn check_source<B>(&self, request: &Request<B>) -> Result<(), ApiError> {
        self.check_host(request)?;
        let Some(origin) = request.headers().get(ORIGIN) else { return Ok(()) };
        // Where keys are required a foreign page can do nothing: it has none, and is not shown the
        // answer.
        if self.keys.is_none() && !self.allows_origin(origin, host_of(request)) {
            let origin = shown(&String::from_utf8_lossy(origin.as_bytes()));
            let message = format!(
                "web pages of {origin} may not use this server; start it with --origin to let them"
            );
            return Err(ApiError::new(StatusCode::FORBIDDEN, Code::OriginNotAllowed, message));
        }
        Ok(())
    }

    fn check_host<B>(&self, request: &Request<B>) -> Result<(), ApiError> {
        if request.headers().get_all(HOST).iter().count() > 1 {
            return Err(ApiError::bad_request("a request has one Host header"));
        }
        let Some(host_names) = &self.host_names else { return Ok(()) };
        let host = host_of(request).and_then(|host| host.parse::<Authority>().ok());
        let name = host.as_ref().map(|host| host.host().trim_matches(['[', ']']));
        let is_own = name.is_some_and(|name| {
            is_local_name(name) || host_names.iter().any(|own| own.eq_ignore_ascii_case(name))
        });
        if is_own {
            return Ok(());
        }
        let message = "this server answers only for this machine, and the Host header names another; start it with \
                       --host-name to let that in";
        Err(ApiError::new(StatusCode::FORBIDDEN, Code::HostNotAllowed, message))
    }

    /// Checks the key, if one is needed. Returns who sent the request.
    pub(crate) fn check_key<B>(
        &self,
        request: &Request<B>,
        client: IpAddr,
    ) -> Result<Visitor, ApiError> {
        let visitor = Visitor { scope: Scope::default(), client: visitor::of_address(client) };
        let Some(keys) = &self.keys else { return Ok(visitor) };
        if is_public(request.uri().path()) {
            return Ok(visitor);
        }
        if let Some(digest) = keys.admit(request.headers()) {
            let scope = self.has_scopes.then(|| Scope::default().within(&digest));
            let client = visitor::of_key(&digest);
            return Ok(Visitor { scope: scope.unwrap_or_default(), client });
        }
        if self.wrong_keys.note(client) {
            let message = "a valid API key is needed; send it as `Authorization: Bearer KEY`";
            Err(ApiError::new(StatusCode::UNAUTHORIZED, Code::InvalidApiKey, message))
        } else {
            let message = "too many requests without a valid API key; wait a minute";
            Err(ApiError::new(StatusCode::TOO_MANY_REQUESTS, Code::TooManyWrongKeys, message))
        }
    }

    /// Adds the headers that let a web page read the response, if it may.
    pub(crate) fn allow_page(&self, asked: &Asked, headers: &mut HeaderMap) {
        let Some(origin) = &asked.origin else { return };
        headers.insert("vary", HeaderValue::from_static("origin"));
        if !self.allows_origin(origin, asked.host.as_deref()) {
            return;
        }
        headers.insert("access-control-allow-origin", origin.clone());
        let exposed = HeaderValue::from_static("x-request-id, x-trine-warning");
        headers.insert("access-control-expose-headers", exposed);
        if asked.method == Method::OPTIONS {
            let methods = HeaderValue::from_static(METHODS);
            headers.insert("access-control-allow-methods", methods);
            let allowed = asked.wanted_headers.clone().unwrap_or(HeaderValue::from_static("*"));
            headers.insert("access-control-allow-headers", allowed);
            headers.insert("access-control-max-age", HeaderValue::from_static("600"));
        }
    }

    fn allows_origin(&self, origin: &HeaderValue, host: Option<&str>) -> bool {
        let Ok(origin) = origin.to_str() else { return false };
        if self.origins.iter().any(|allowed| allowed == "*" || allowed == origin) {
            return true;
        }
        let Some((scheme, authority)) = origin.split_once("://") else { return false };
        if !matches!(scheme, "http" | "https") {
            return false;
        }
        let Ok(authority) = authority.parse::<Authority>() else { return false };
        host == Some(authority.as_str()) || is_local_name(authority.host().trim_matches(['[', ']']))
    }
}

/// Returns whether everybody may ask for a path.
pub(crate) fn is_public(path: &str) -> bool {
    PUBLIC.contains(&path) || page::has(path)
}

/// The facts of a request that are kept for its response.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) method: Method,
    pub(crate) path: String,
    /// The request's id, for the response and for log lines.
    pub(crate) id: String,
    /// Whether the body came in chunks.
    pub(crate) is_chunked: bool,
    origin: Option<HeaderValue>,
    host: Option<String>,
    wanted_headers: Option<HeaderValue>,
}

impl Asked {
    pub(crate) fn new<B>(request: &Request<B>) -> Self {
        let headers = request.headers();
        let given = headers.get("x-request-id").and_then(|id| id.to_str().ok());
        let given = given.filter(|id| {
            (1..=REQUEST_ID_BYTES_MAX).contains(&id.len())
                && id.bytes().all(|byte| byte.is_ascii_graphic())
        });
        Self {
            method: request.method().clone(),
            path: request.uri().path().to_owned(),
            id: given.map_or_else(|| random_id("req-"), str::to_owned),
            is_chunked: headers.contains_key(TRANSFER_ENCODING),
            origin: headers.get(ORIGIN).cloned(),
            host: host_of(request).map(str::to_owned),
            wanted_headers: headers.get("access-control-request-headers").cloned(),
        }
    }
}

/// Returns a name that begins with `prefix` and has 24 random hexadecimal digits.
pub(crate) fn random_id(prefix: &str) -> String {
    use rand::RngExt;
    let number: u128 = rand::rng().random();
    format!("{prefix}{:024x}", number >> 32)
}

/// Returns the host and port that a request is for.
fn host_of<B>(request: &Request<B>) -> Option<&str> {
    let named = request.headers().get(HOST).and_then(|host| host.to_str().ok());
    request.uri().authority().map(Authority::as_str).or(named)
}

fn is_local_name(name: &str) -> bool {
    name.eq_ignore_ascii_case("localhost") || name.parse().is_ok_and(is_loopback)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard(options: &ServerOptions) -> Guard {
        Guard::new(options, IpAddr::from([127, 0, 0, 1]))
    }

    fn request(host: &str, origin: Option<&str>) -> Request<()> {
        let mut request = Request::builder().uri("/v1/models").header(HOST, host);
        if let Some(origin) = origin {
            request = request.header(ORIGIN, origin);
        }
        request.body(()).unwrap()
    }

    #[test]
    fn loopback_servers_answer_to_their_own_names_alone() {
        let options =
            ServerOptions { host_names: vec!["box.lan".to_owned()], ..Default::default() };
        let guard = guard(&options);
        for host in
            ["127.0.0.1:8080", "localhost", "LOCALHOST:1", "[::1]:8080", "127.9.9.9", "box.lan:1"]
        {
            assert!(guard.check_source(&request(host, None)).is_ok(), "{host}");
        }
        for host in [
            "evil.com",
            "localhost.evil.com",
            "evil.com:8080",
            "",
            "a b",
            "192.168.0.1",
            "user@evil.com",
        ] {
            assert_eq!(guard.check_source(&request(host, None)).unwrap_err().status, 403, "{host}");
        }
        let bare = Request::builder().uri("/").body(()).unwrap();
        assert_eq!(guard.check_source(&bare).unwrap_err().status, 403);
        let open = Guard::new(&ServerOptions::default(), IpAddr::from([0, 0, 0, 0]));
        assert!(open.check_source(&request("anything.example", None)).is_ok());
    }

    #[test]
    fn foreign_pages_are_refused() {
        let options = ServerOptions {
            origins: vec!["https://ours.example".to_owned()],
            ..Default::default()
        };
        let guard = guard(&options);
        for origin in [
            "http://localhost:3000",
            "http://127.0.0.1:8080",
            "https://ours.example",
            "http://[::1]:1",
        ] {
            assert!(guard.check_source(&request("localhost", Some(origin))).is_ok(), "{origin}");
        }
        for origin in [
            "http://evil.com",
            "null",
            "http://localhost.evil.com",
            "file://",
            "http://ours.example",
        ] {
            let error = guard.check_source(&request("localhost", Some(origin))).unwrap_err();
            assert_eq!(error.status, 403, "{origin}");
        }
    }

    #[test]
    fn only_plain_request_ids_are_taken_over() {
        let with = |id: &str| Request::builder().header("x-request-id", id).body(()).unwrap();
        assert_eq!(Asked::new(&with("abc-1")).id, "abc-1");
        for id in ["a b", "", "\t", &"x".repeat(129)] {
            assert!(Asked::new(&with(id)).id.starts_with("req-"), "{id:?}");
        }
    }
}
