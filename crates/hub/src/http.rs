//! One GET request by the hub's rules: it follows redirects itself, sends the token only to the
//! endpoint, accepts no compression, and sorts errors into final and repeatable ones.

use std::io;
use std::time::Duration;

use ureq::http::Response;
use ureq::{Agent, Body};

use crate::config::{DEFAULT_ENDPOINT, HubConfig};
use crate::error::HubError;
use crate::location::Location;
use crate::name::sha256_text;
use crate::retry::{Failure, retry_after};
use trine_foreign::cut_name;

/// The longest chain of redirects that is followed. The Hub uses up to three.
const MOST_REDIRECTS: usize = 8;

/// The HTTP client of one hub.
pub(crate) struct Client {
    agent: Agent,
    endpoint: Location,
    endpoint_text: String,
    config: HubConfig,
}

/// An answer that is not a redirect.
pub(crate) struct Reply {
    pub(crate) response: Response<Body>,
    /// The address that it came from.
    pub(crate) location: Location,
    /// Whether the endpoint itself sent it, rather than a file server that it redirected to.
    pub(crate) from_endpoint: bool,
    /// The SHA-256 of the file that the endpoint announced in `X-Linked-ETag`.
    pub(crate) linked_sha256: Option<String>,
    /// The size of the file in bytes that the endpoint announced in `X-Linked-Size`.
    pub(crate) linked_size: Option<u64>,
}

/// The purpose of a request, so that its errors can name it.
#[derive(Clone, Copy)]
pub(crate) struct Purpose<'a> {
    pub(crate) repository: &'a str,
    pub(crate) file: Option<&'a str>,
}

impl Client {
    pub(crate) fn new(config: &HubConfig) -> Result<Self, HubError> {
        let invalid = |reason: String| HubError::InvalidSetting {
            setting: "HF_ENDPOINT",
            reason: format!("{reason}; write for example {DEFAULT_ENDPOINT}"),
        };
        let text = config.endpoint.trim().trim_end_matches('/');
        if text.contains(['?', '#']) || text.chars().any(char::is_whitespace) {
            return Err(invalid("it is not the address of a server".to_owned()));
        }
        let endpoint = Location::parse(text).map_err(invalid)?;
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .https_only(endpoint.is_https())
            .proxy(config.proxy().cloned())
            .user_agent(concat!("trine/", env!("CARGO_PKG_VERSION")))
            .accept_encoding("identity")
            .timeout_resolve(Some(config.connect_timeout))
            .timeout_connect(Some(config.connect_timeout))
            .timeout_recv_response(Some(config.read_timeout))
            .timeout_per_read(Some(config.read_timeout))
            .timeout_per_write(Some(config.read_timeout))
            .build()
            .new_agent();
        if config.token.is_some() && !endpoint.keeps_secrets() {
            tracing::warn!(endpoint = text, "the access token is not sent over plain http");
        }
        let endpoint_text = endpoint.address().trim_end_matches('/').to_owned();
        Ok(Client { agent, endpoint, endpoint_text, config: config.clone() })
    }

    /// Returns the server's address without a final slash.
    pub(crate) fn endpoint(&self) -> &str {
        &self.endpoint_text
    }

    pub(crate) fn config(&self) -> &HubConfig {
        &self.config
    }

    /// Requests `url` from byte `from` on, following redirects. `limit` bounds the time of the
    /// whole exchange, body included.
    pub(crate) fn get(
        &self,
        url: &str,
        from: u64,
        limit: Option<Duration>,
    ) -> Result<Reply, Failure> {
        let range = (from > 0).then(|| format!("bytes={from}-"));
        self.get_range(url, range, limit)
    }

    /// Requests the first `bytes` of `url`; a server may answer with more.
    pub(crate) fn get_beginning(
        &self,
        url: &str,
        bytes: u64,
        limit: Option<Duration>,
    ) -> Result<Reply, Failure> {
        self.get_range(url, Some(format!("bytes=0-{}", bytes.saturating_sub(1))), limit)
    }

    fn get_range(
        &self,
        url: &str,
        range: Option<String>,
        limit: Option<Duration>,
    ) -> Result<Reply, Failure> {
        if self.config.offline {
            let reason = "HF_HUB_OFFLINE forbids connections".to_owned();
            return Err(HubError::Connection { url: url.to_owned(), reason }.into());
        }
        let mut location = Location::parse(url)
            .map_err(|reason| HubError::BadResponse { url: cut_name(url, 300), reason })?;
        let mut from_endpoint = true;
        let mut linked_sha256 = None;
        let mut linked_size = None;
        for _ in 0..=MOST_REDIRECTS {
            // Once the chain has left the endpoint, others choose its targets, even if one of them
            // leads back.
            from_endpoint = from_endpoint && location.same_origin(&self.endpoint);
            let response = self.exchange(&location, range.as_deref(), limit, from_endpoint)?;
            if from_endpoint {
                let etag = header(&response, "x-linked-etag")
                    .map(|tag| tag.trim_start_matches("W/").trim_matches('"').to_owned());
                linked_sha256 = linked_sha256.or(etag.and_then(|tag| sha256_text(&tag)));
                linked_size = linked_size
                    .or(header(&response, "x-linked-size").and_then(|text| text.parse().ok()));
            }
            if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
                return Ok(Reply { response, location, from_endpoint, linked_sha256, linked_size });
            }
            let bad = |reason: String| HubError::BadResponse { url: location.shown(), reason };
            let target = header(&response, "location")
                .ok_or_else(|| bad("a redirect without a target".to_owned()))?;
            location = location.redirect(target).map_err(|reason| {
                bad(format!("a redirect to {}: {reason}", cut_name(without_query(target), 120)))
            })?;
        }
        let reason = format!("more than {MOST_REDIRECTS} redirects");
        Err(HubError::BadResponse { url: cut_name(without_query(url), 300), reason }.into())
    }

    fn exchange(
        &self,
        location: &Location,
        range: Option<&str>,
        limit: Option<Duration>,
        trusted: bool,
    ) -> Result<Response<Body>, Failure> {
        let mut request = self.agent.get(location.address());
        if let Some(range) = range {
            request = request.header("range", range);
        }
        if trusted
            && self.endpoint.keeps_secrets()
            && let Some(token) = &self.config.token
        {
            request = request.header("authorization", format!("Bearer {}", token.reveal()));
        }
        let request = request.config().timeout_global(limit).build();
        request.call().map_err(|error| request_failure(error, location))
    }

    /// Turns an error status into a failure. The caller handles success statuses.
    pub(crate) fn status_failure(&self, reply: &Reply, purpose: Purpose<'_>) -> Failure {
        let status = reply.response.status().as_u16();
        let url = reply.location.shown();
        let code = header(&reply.response, "x-error-code").unwrap_or_default();
        let message = header(&reply.response, "x-error-message").unwrap_or_default();
        let repository = purpose.repository.to_owned();
        let missing = || HubError::RepositoryNotFound {
            repository: repository.clone(),
            endpoint: self.endpoint_text.clone(),
            close: Vec::new(),
        };
        let plain =
            || HubError::Status { url: url.clone(), status, message: cut_name(message, 200) };
        match status {
            429 => {
                let after = header(&reply.response, "retry-after").and_then(retry_after);
                let error = HubError::RateLimited { url, retry_after: after.map(|a| a.as_secs()) };
                Failure::Again { error, after, unconnected: false }
            }
            408 | 500..=599 => {
                let after = header(&reply.response, "retry-after").and_then(retry_after);
                Failure::Again { error: plain(), after, unconnected: false }
            }
            // A file server's signed address expires; the endpoint returns a fresh one.
            400..=499 if !reply.from_endpoint => Failure::again(plain()),
            401 | 404 if code == "RepoNotFound" => missing().into(),
            401 | 403 => HubError::AccessDenied {
                page: format!("{}/{repository}", self.endpoint_text),
                repository,
                status,
                token_sent: self.config.token.is_some() && self.endpoint.keeps_secrets(),
            }
            .into(),
            404 => match purpose.file {
                None => missing().into(),
                Some(file) => HubError::FileNotFound {
                    repository,
                    file: file.to_owned(),
                    close: Vec::new(),
                    available: Vec::new(),
                }
                .into(),
            },
            _ => plain().into(),
        }
    }
}

/// Returns a header's value if it is text.
pub(crate) fn header<'a>(response: &'a Response<Body>, name: &str) -> Option<&'a str> {
    response.headers().get(name).and_then(|value| value.to_str().ok())
}

fn without_query(url: &str) -> &str {
    url.split('?').next().unwrap_or_default()
}

/// Returns why an answer cannot be the file itself: it is compressed although plain bytes were
/// requested, or it is a web page.
pub(crate) fn unusable(response: &Response<Body>) -> Option<String> {
    let coding = header(response, "content-encoding").unwrap_or("identity").trim();
    if !coding.is_empty() && !coding.eq_ignore_ascii_case("identity") {
        return Some(format!(
            "it is compressed ({}), which was not asked for",
            cut_name(coding, 40)
        ));
    }
    let kind = header(response, "content-type").unwrap_or_default().trim().to_ascii_lowercase();
    if kind.starts_with("text/html") || kind.starts_with("application/xhtml") {
        return Some("it is a web page (HTML)".to_owned());
    }
    None
}

/// Sorts an error of the transport into final and repeatable ones.
fn request_failure(error: ureq::Error, location: &Location) -> Failure {
    use ureq::{Error, Timeout};
    let unconnected = match &error {
        Error::HostNotFound
        | Error::ConnectionFailed
        | Error::Timeout(Timeout::Connect | Timeout::Resolve) => true,
        Error::Io(error) => {
            is_unresolved(error)
                || matches!(
                    error.kind(),
                    io::ErrorKind::ConnectionRefused
                        | io::ErrorKind::NetworkUnreachable
                        | io::ErrorKind::HostUnreachable
                        | io::ErrorKind::NetworkDown
                        | io::ErrorKind::AddrNotAvailable
                )
        }
        Error::Timeout(_) | Error::BodyStalled => false,
        // A malformed answer, a certificate that is not trusted, a proxy that refuses.
        _ => {
            let reason = cut_name(&error.to_string(), 300);
            return HubError::BadResponse { url: location.shown(), reason }.into();
        }
    };
    let reason = match &error {
        Error::HostNotFound => UNRESOLVED.to_owned(),
        Error::Io(error) if is_unresolved(error) => UNRESOLVED.to_owned(),
        Error::Io(error) => cut_name(&error.to_string(), 300),
        error => cut_name(&error.to_string(), 300),
    };
    let error = HubError::Connection { url: location.shown(), reason };
    Failure::Again { error, after: None, unconnected }
}

const UNRESOLVED: &str = "its name cannot be resolved";

/// Returns whether the system knows no address of a name. Its error has no kind of its own.
fn is_unresolved(error: &io::Error) -> bool {
    error.to_string().contains("failed to lookup address information")
}
