//! The checks of every request before anything looks at its body.

use std::net::IpAddr;

use axum::http::header::{HOST, ORIGIN, TRANSFER_ENCODING};
use axum::http::uri::Authority as UriAuthority;
use axum::http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Version};
use trine_engine::Scope;
use trine_foreign::{Authority, Host};

use crate::error::{ApiError, Code, shown};
use crate::request::visitor::{self, Visitor};
use crate::service::hosts::{OriginPattern, is_answered, may_use};
use crate::service::keys::{Keys, WrongKeys};
use crate::service::options::ServerOptions;
use crate::service::page;

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
    origins: Vec<OriginPattern>,
    /// Further hosts that are answered to.
    own: Vec<Host>,
}

impl Guard {
    /// Returns the checks of a server.
    pub(crate) fn new(options: &ServerOptions) -> Self {
        let several = options.keys.as_ref().is_some_and(Keys::are_several);
        let named = Host::parse(&options.host);
        Self {
            has_scopes: several && !options.shares_prefixes,
            keys: options.keys.clone(),
            wrong_keys: WrongKeys::default(),
            origins: options.origins.clone(),
            own: named.into_iter().chain(options.host_names.iter().cloned()).collect(),
        }
    }

    /// Checks from where a request comes: its host, and the page that sends it.
    pub(crate) fn check_source<B>(&self, request: &Request<B>) -> Result<(), ApiError> {
        check_one_host(request)?;
        // Where keys are required a foreign page can do nothing: it has none, and is not shown the
        // answer.
        if self.keys.is_some() {
            return Ok(());
        }
        self.check_host(request)?;
        self.check_page(request)
    }

    fn check_host<B>(&self, request: &Request<B>) -> Result<(), ApiError> {
        let given = host_of(request);
        // Browsers always name a host. Health checks of HTTP/1.0 need not.
        if given.is_none() && request.version() == Version::HTTP_10 {
            return Ok(());
        }
        let host = given.and_then(Authority::literal).map(|authority| authority.host);
        let message = match host {
            Some(host) if is_answered(&host, &self.own) => return Ok(()),
            Some(host @ Host::Name(_)) => format!(
                "this server does not answer to the name {host}, which the Host header has; start \
                 it with --host-name {host} to let that in"
            ),
            Some(Host::Address(_)) | None => {
                "the Host header names no host that this server answers to; use its address or a \
                 name, and start it with --host-name NAME to let a further name in"
                    .to_owned()
            }
        };
        Err(ApiError::new(StatusCode::FORBIDDEN, Code::HostNotAllowed, message))
    }

    fn check_page<B>(&self, request: &Request<B>) -> Result<(), ApiError> {
        let headers = request.headers();
        let whose = match headers.get(ORIGIN) {
            Some(origin) if self.allows_origin(origin, asked_host(request).as_ref()) => {
                return Ok(());
            }
            Some(origin) => shown(&String::from_utf8_lossy(origin.as_bytes())),
            // A browser that sends no origin still says whether a page of another site asks
            // (https://www.w3.org/TR/fetch-metadata/).
            None if !is_foreign(headers) || self.allows_all() || opens_page(request) => {
                return Ok(());
            }
            None => "other sites".to_owned(),
        };
        let message = format!(
            "web pages of {whose} may not use this server; start it with --origin to let them"
        );
        Err(ApiError::new(StatusCode::FORBIDDEN, Code::OriginNotAllowed, message))
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

    /// Adds the header that says which pages may show a response within themselves
    /// (<https://fetch.spec.whatwg.org/#cross-origin-resource-policy-header>).
    pub(crate) fn keep_from_pages(&self, headers: &mut HeaderMap) {
        let policy = if self.allows_all() { "cross-origin" } else { "same-origin" };
        headers.insert("cross-origin-resource-policy", HeaderValue::from_static(policy));
    }

    /// Adds the headers that let a web page read the response, if it may.
    pub(crate) fn allow_page(&self, asked: &RequestFacts, headers: &mut HeaderMap) {
        let Some(origin) = &asked.origin else { return };
        headers.insert("vary", HeaderValue::from_static("origin"));
        if !self.allows_origin(origin, asked.host.as_ref()) {
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

    fn allows_all(&self) -> bool {
        self.origins.iter().any(OriginPattern::is_all)
    }

    fn allows_origin(&self, origin: &HeaderValue, host: Option<&Authority>) -> bool {
        let lets_apps_in = self.keys.is_none();
        origin.to_str().is_ok_and(|origin| may_use(origin, host, &self.origins, lets_apps_in))
    }
}

/// Returns whether a browser says that a page of another site asks.
fn is_foreign(headers: &HeaderMap) -> bool {
    let site = headers.get("sec-fetch-site").map(HeaderValue::as_bytes);
    matches!(site, Some(b"cross-site" | b"same-site"))
}

/// Returns whether a person opens the server's page, from a link on another site.
fn opens_page<B>(request: &Request<B>) -> bool {
    let is = |name: &str, value: &str| request.headers().get(name).is_some_and(|it| it == value);
    matches!(*request.method(), Method::GET | Method::HEAD)
        && page::has(request.uri().path())
        && is("sec-fetch-mode", "navigate")
        && is("sec-fetch-dest", "document")
}

/// Returns whether everybody may ask for a path.
pub(crate) fn is_public(path: &str) -> bool {
    PUBLIC.contains(&path) || page::has(path)
}

/// The facts of a request that are kept for its response.
#[derive(Debug)]
pub(crate) struct RequestFacts {
    pub(crate) method: Method,
    pub(crate) path: String,
    /// The request's id, for the response and for log lines.
    pub(crate) id: String,
    /// Whether the body came in chunks.
    pub(crate) is_chunked: bool,
    /// Whether it names a version of Anthropic's API.
    pub(crate) is_anthropic: bool,
    origin: Option<HeaderValue>,
    host: Option<Authority>,
    wanted_headers: Option<HeaderValue>,
}

impl RequestFacts {
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
            is_anthropic: headers.contains_key("anthropic-version"),
            origin: headers.get(ORIGIN).cloned(),
            host: asked_host(request),
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

/// Returns the host and port that a request is for, as it writes them.
fn host_of<B>(request: &Request<B>) -> Option<&str> {
    let named = request.headers().get(HOST).and_then(|host| host.to_str().ok());
    request.uri().authority().map(UriAuthority::as_str).or(named)
}

/// Returns the host and port that a request is for.
fn asked_host<B>(request: &Request<B>) -> Option<Authority> {
    host_of(request).and_then(Authority::literal)
}

/// Refuses a request that names several hosts or origins: another program on its way may take the
/// other one.
fn check_one_host<B>(request: &Request<B>) -> Result<(), ApiError> {
    if request.headers().get_all(ORIGIN).iter().nth(1).is_some() {
        return Err(ApiError::bad_request("a request has one Origin header"));
    }
    let mut named = request.headers().get_all(HOST).iter();
    let first = named.next();
    if named.next().is_some() {
        return Err(ApiError::bad_request("a request has one Host header"));
    }
    if let (Some(in_path), Some(first)) = (request.uri().authority(), first) {
        let scheme = request.uri().scheme_str().unwrap_or("http");
        let read = |text: &str| {
            let authority = Authority::literal(text)?;
            Some((authority.port_or(scheme), authority.host))
        };
        let same = first
            .to_str()
            .ok()
            .and_then(read)
            .is_some_and(|first| Some(first) == read(in_path.as_str()));
        if !same {
            return Err(ApiError::bad_request(
                "the request's address and its Host header name different hosts",
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(host: &str, headers: &[(&str, &str)]) -> Request<()> {
        let request = Request::builder().uri("/v1/models").header(HOST, host);
        let add = |request: axum::http::request::Builder, &(name, value): &(&str, &str)| {
            request.header(name, value)
        };
        headers.iter().fold(request, add).body(()).unwrap()
    }

    fn status(guard: &Guard, request: &Request<()>) -> u16 {
        guard.check_source(request).map_or_else(|error| error.status.as_u16(), |()| 200)
    }

    /// The same wherever the server listens, the container's default included.
    #[test]
    fn servers_without_keys_answer_to_their_own_names() {
        for host in ["127.0.0.1", "0.0.0.0", "::", "box.lan"] {
            let options = ServerOptions {
                host: host.to_owned(),
                host_names: vec![Host::literal("named.lan").unwrap()],
                ..Default::default()
            };
            let guard = Guard::new(&options);
            let answered = |name: &str| status(&guard, &request(name, &[]));
            for name in ["127.0.0.1:8080", "[::1]", "192.168.0.1", "trine:8080", "named.lan.:1"] {
                assert_eq!(answered(name), 200, "{host} {name}");
            }
            assert_eq!(answered("box.lan") == 200, host == "box.lan");
            let rebound = [("Origin", "http://rebind.example:8080")];
            assert_eq!(status(&guard, &request("rebind.example:8080", &rebound)), 403);
            for name in ["evil.com", "0.0.0.0:8080", "", "a b", "user@localhost"] {
                assert_eq!(answered(name), 403, "{host} {name}");
            }
            let error = guard.check_source(&request("a.example", &[])).unwrap_err();
            assert!(error.message.contains("--host-name a.example"), "{}", error.message);
            let bare = |version| Request::builder().version(version).uri("/").body(()).unwrap();
            assert_eq!(status(&guard, &bare(Version::HTTP_11)), 403);
            assert_eq!(status(&guard, &bare(Version::HTTP_10)), 200);
        }
        let keys = Some(Keys::parse("0123456789abcdef").unwrap());
        let guard = Guard::new(&ServerOptions { keys, ..Default::default() });
        let foreign = request("anything.example", &[("Origin", "https://evil.example")]);
        assert_eq!(status(&guard, &foreign), 200, "a page has no key");
    }

    #[test]
    fn a_request_names_one_host() {
        let guard = Guard::new(&ServerOptions::default());
        for (url, host, expected) in [
            ("http://127.0.0.1/", "127.0.0.1:80", 200),
            ("http://localhost:8080/", "LOCALHOST.:8080", 200),
            ("http://127.0.0.1/", "evil", 400),
            ("http://evil.example/", "127.0.0.1", 400),
            ("http://evil.example/", "evil.example", 403),
        ] {
            let request = Request::builder().uri(url).header(HOST, host).body(()).unwrap();
            assert_eq!(status(&guard, &request), expected, "{url} {host}");
        }
        let twice = request("localhost", &[("Host", "localhost")]);
        assert_eq!(status(&guard, &twice), 400);
    }

    #[test]
    fn foreign_pages_are_refused_with_and_without_an_origin() {
        let guard = |origin: &str| {
            let origins = vec![OriginPattern::parse(origin).unwrap()];
            Guard::new(&ServerOptions { origins, ..Default::default() })
        };
        let (ours, all) = (guard("https://ours.example"), guard("*"));
        let sent = |headers: &[(&str, &str)]| {
            let request = request("localhost:8080", headers);
            (status(&ours, &request), status(&all, &request))
        };
        let site = |site| ("Sec-Fetch-Site", site);
        for origin in ["https://ours.example", "http://localhost:3000", "app://obsidian.md"] {
            assert_eq!(sent(&[("Origin", origin), site("cross-site")]), (200, 200), "{origin}");
        }
        for origin in ["https://evil.example", "null", "http://ours.example"] {
            assert_eq!(sent(&[("Origin", origin)]), (403, 200), "{origin}");
        }
        for (value, expected) in
            [("cross-site", 403), ("same-site", 403), ("same-origin", 200), ("none", 200)]
        {
            assert_eq!(sent(&[site(value)]), (expected, 200), "{value}");
        }
        // A link on another site may open the page, but not be shown within it, nor open more.
        let opened = |path: &str, dest: &str| {
            let request = Request::builder().uri(path).header(HOST, "localhost");
            let request = request.header("Sec-Fetch-Site", "cross-site");
            let request =
                request.header("Sec-Fetch-Mode", "navigate").header("Sec-Fetch-Dest", dest);
            status(&ours, &request.body(()).unwrap())
        };
        assert_eq!(opened("/", "document"), 200);
        assert_eq!([opened("/", "iframe"), opened("/metrics", "document")], [403, 403]);
    }

    #[test]
    fn only_plain_request_ids_are_taken_over() {
        let with = |id: &str| Request::builder().header("x-request-id", id).body(()).unwrap();
        assert_eq!(RequestFacts::new(&with("abc-1")).id, "abc-1");
        for id in ["a b", "", "\t", &"x".repeat(129)] {
            assert!(RequestFacts::new(&with(id)).id.starts_with("req-"), "{id:?}");
        }
    }
}
