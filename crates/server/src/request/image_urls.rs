//! Which pictures the server may fetch: those of hosts that its owner has named, at addresses that
//! anybody could reach.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use trine_foreign::{Authority, Host, UrlProblem, WebUrl};

use crate::request::fetcher::Fetcher;

/// Most redirects from one picture.
pub(crate) const REDIRECTS_MAX: usize = 3;

/// Longest URL of a picture in bytes.
const URL_BYTES_MAX: usize = 8192;

/// The hosts of pictures that requests may name by URL, and what fetches them.
#[derive(Debug, Clone)]
pub struct ImageUrls {
    /// Hosts as [`ImageUrls::read_host`] reads them: names such as `example.com`. With a port, such
    /// as `example.com:8443`, that port is allowed too, else only those of the schemes.
    /// `*.example.com` stands for every host below `example.com`.
    pub hosts: Vec<String>,
    /// What speaks HTTP.
    pub fetcher: Arc<dyn Fetcher>,
}

impl ImageUrls {
    /// Reads an entry of the list of hosts.
    ///
    /// # Errors
    /// What an entry looks like, or that nothing is fetched from it: it is this machine, or an
    /// address that is not public.
    pub fn read_host(text: &str) -> Result<String, String> {
        let entry = HostEntry::read(text).ok_or_else(|| {
            "use the name of a host such as example.com, *.example.com or example.com:8443"
                .to_owned()
        })?;
        let is_private = match &entry.authority.host {
            Host::Name(name) => entry.authority.host.is_loopback() || name == "localhost",
            Host::Address(address) => !is_public(*address),
        };
        if is_private {
            return Err(
                "images are never fetched from this machine or its network; name a host at \
                a public address"
                    .to_owned(),
            );
        }
        Ok(entry.to_string())
    }
}

/// An entry of the list of hosts.
#[derive(Debug)]
struct HostEntry {
    /// Whether it stands for the hosts below its own.
    is_wild: bool,
    authority: Authority,
}

impl HostEntry {
    fn read(text: &str) -> Option<Self> {
        let (is_wild, rest) = match text.strip_prefix("*.") {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        // An address in disguise is no name that somebody means.
        let is_ascii = rest.is_ascii();
        let read = if is_ascii { Authority::literal } else { Authority::parse };
        let authority = read(rest).filter(|authority| authority.port != Some(0))?;
        let is_name = matches!(authority.host, Host::Name(_));
        // There are no hosts below an address, and lists name addresses of IPv4 only.
        let is_v4 = matches!(authority.host, Host::Address(IpAddr::V4(_)));
        (is_name || (is_v4 && !is_wild)).then_some(Self { is_wild, authority })
    }

    /// Returns whether the entry names a host and port.
    fn names(&self, host: &Host, port: u16, usual: u16) -> bool {
        let is_host = match &self.authority.host {
            Host::Name(domain) if self.is_wild => host.is_below(domain),
            own => own == host,
        };
        is_host && (self.authority.port == Some(port) || port == usual)
    }
}

impl fmt::Display for HostEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", if self.is_wild { "*." } else { "" }, self.authority)
    }
}

/// Why a URL is not fetched.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UrlError {
    #[error(
        "images are not fetched from other servers here; send it as data:image/png;base64,..., or \
         start the server with --allow-image-urls HOST"
    )]
    Off,
    #[error(
        "images of this host and port are not fetched; send it as data:image/png;base64,..., or \
         name the host with --allow-image-urls"
    )]
    OtherHost,
    #[error("the URL is not one of an image: use http or https, a host, and no name or password")]
    Malformed,
    #[error("the URL is longer than {URL_BYTES_MAX} bytes")]
    TooLong,
    #[error("the host of the URL is not at a public address")]
    NotPublic,
    #[error("the host of the URL is not found")]
    NotFound,
    #[error("the URL leads on from one place to the next more than {REDIRECTS_MAX} times")]
    TooManyRedirects,
    #[error("the image has more than {0} bytes")]
    TooLarge(usize),
    #[error(
        "the files that the request names have more than {0} bytes together; name fewer, or \
         smaller ones"
    )]
    TooLargeTogether(usize),
    #[error("a redirect from https to http is not followed")]
    Unencrypted,
    #[error("the image is not there: {0}")]
    Failed(String),
    #[error(
        "{from} redirects to the host {host}, which --allow-image-urls does not name; send the \
         image as data:image/png;base64,..., or name the host with --allow-image-urls"
    )]
    RedirectedAway { from: String, host: String },
    #[error("{from} redirects to {to}: {why}")]
    Redirected { from: String, to: String, why: Box<UrlError> },
}

/// Longest URL or host of a redirect that an error quotes, in bytes.
const QUOTED_MAX: usize = 200;

/// Returns the beginning of a URL or host for an error.
fn quoted(text: &str) -> String {
    if text.len() <= QUOTED_MAX {
        return text.to_owned();
    }
    let end = (0..=QUOTED_MAX).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
    format!("{}...", &text[..end])
}

/// Returns a URL for an error, without its query, which may hold a key.
fn shown(url: &WebUrl) -> String {
    quoted(&format!("{}{}", url.origin(), url.path()))
}

impl From<UrlProblem> for UrlError {
    fn from(_: UrlProblem) -> Self {
        Self::Malformed
    }
}

impl UrlError {
    /// Adds to the error of a place which redirect led there: one of `from`, to `to` if that is a
    /// URL.
    pub(crate) fn after(self, from: &WebUrl, to: Option<&WebUrl>) -> Self {
        let host = to.map(|to| quoted(&to.host().to_string()));
        let from = shown(from);
        match (self, host, to) {
            (Self::OtherHost, Some(host), Some(to)) => {
                // A host that is named may be asked at another port.
                let is_usual = to.port() == to.usual_port();
                let port = if is_usual { String::new() } else { format!(":{}", to.port()) };
                Self::RedirectedAway { from, host: host + &port }
            }
            (why, Some(host), _) => {
                Self::Redirected { from, to: format!("the host {host}"), why: Box::new(why) }
            }
            (why, None, _) => {
                Self::Redirected { from, to: "another place".to_owned(), why: Box::new(why) }
            }
        }
    }
}

/// Reads the URL of a picture.
///
/// # Errors
/// [`UrlError::TooLong`], or [`UrlError::Malformed`] if it is no URL that is fetched.
pub(crate) fn read_url(text: &str) -> Result<WebUrl, UrlError> {
    if text.len() > URL_BYTES_MAX {
        return Err(UrlError::TooLong);
    }
    Ok(WebUrl::parse(text)?)
}

/// A URL whose host is allowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AllowedUrl {
    pub(crate) url: WebUrl,
}

impl AllowedUrl {
    /// Returns the URL to fetch, if its host is among those that are allowed.
    ///
    /// # Errors
    /// Why it is not fetched.
    pub(crate) fn of(url: &WebUrl, allowed: Option<&ImageUrls>) -> Result<Self, UrlError> {
        let allowed = allowed.ok_or(UrlError::Off)?;
        let (host, port) = (url.host(), url.port());
        let is_named = |entry: &String| {
            HostEntry::read(entry).is_some_and(|entry| entry.names(&host, port, url.usual_port()))
        };
        if !allowed.hosts.iter().any(is_named) {
            return Err(UrlError::OtherHost);
        }
        Ok(Self { url: url.clone() })
    }

    /// Returns the host to look up: a name, or an address without brackets.
    pub(crate) fn host(&self) -> String {
        match self.url.host() {
            Host::Name(name) => name,
            Host::Address(address) => address.to_string(),
        }
    }

    /// Returns the place that a redirect leads to.
    ///
    /// # Errors
    /// If it is not fetched: as for [`AllowedUrl::of`], and if it gives up encryption. The error
    /// says that a redirect led there, and to which host.
    pub(crate) fn redirected(
        &self,
        location: &str,
        allowed: Option<&ImageUrls>,
    ) -> Result<Self, UrlError> {
        let is_long = location.len() > URL_BYTES_MAX;
        let next = if is_long {
            Err(UrlError::TooLong)
        } else {
            self.url.join(location).map_err(UrlError::from)
        };
        let next = next.map_err(|error| error.after(&self.url, None))?;
        let place = Self::of(&next, allowed).and_then(|place| {
            match (self.url.is_https(), place.url.is_https()) {
                (true, false) => Err(UrlError::Unencrypted),
                _ => Ok(place),
            }
        });
        place.map_err(|error| error.after(&self.url, Some(&next)))
    }

    /// Checks what the host was resolved to.
    ///
    /// # Errors
    /// If there are no addresses, or if some are not public: then the name may be somebody's who
    /// wants to reach this network.
    pub(crate) fn check(&self, addresses: &[SocketAddr]) -> Result<(), UrlError> {
        if addresses.is_empty() {
            return Err(UrlError::NotFound);
        }
        if addresses.iter().all(|address| is_public(address.ip())) {
            Ok(())
        } else {
            Err(UrlError::NotPublic)
        }
    }
}

/// Returns whether an address is one of the internet that is reached from everywhere, by the
/// registries of special addresses
/// (<https://www.iana.org/assignments/iana-ipv4-special-registry/>,
/// <https://www.iana.org/assignments/iana-ipv6-special-registry/>).
pub(crate) fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let is_special = match address.octets() {
        [0 | 10 | 127, ..] => true,
        [100, second, ..] => second & 0xc0 == 64,
        [169, 254, ..] => true,
        [172, second, ..] => second & 0xf0 == 16,
        [192, 0, 0 | 2, _] | [192, 88, 99, _] | [192, 168, ..] => true,
        [198, 18 | 19, ..] | [198, 51, 100, _] | [203, 0, 113, _] => true,
        // Multicast, reserved, broadcast.
        [first, ..] => first >= 224,
    };
    !is_special
}

/// Of IPv6 only global unicast is public, without what holds or leads to an address of IPv4.
fn is_public_v6(address: Ipv6Addr) -> bool {
    if let Some(inner) = address.to_ipv4_mapped() {
        return is_public_v4(inner);
    }
    let [first, second, ..] = address.segments();
    let is_special = match first {
        // Teredo, benchmarking, ORCHID and other protocols; documentation.
        0x2001 => second < 0x0200 || second == 0x0db8,
        // 6to4.
        0x2002 => true,
        0x3fff => second < 0x1000,
        _ => first & 0xe000 != 0x2000,
    };
    !is_special
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::request::fetcher::{Fetch, FetchEnd, Fetched};

    /// Answers as a table of URLs says.
    #[derive(Debug, Default)]
    pub(crate) struct UrlTable(pub(crate) Vec<(&'static str, Fetched)>);

    impl Fetcher for UrlTable {
        fn get(&self, request: &Fetch, _: &FetchEnd) -> Result<Fetched, String> {
            assert!(request.addresses.iter().all(|address| is_public(address.ip())));
            let found = self.0.iter().find(|(url, _)| *url == request.url);
            found.map(|(_, answer)| answer.clone()).ok_or_else(|| "status 404".to_owned())
        }
    }

    pub(crate) fn allowed(hosts: &[&str], table: UrlTable) -> ImageUrls {
        let hosts = hosts.iter().map(|host| (*host).to_owned()).collect();
        ImageUrls { hosts, fetcher: Arc::new(table) }
    }

    fn place(url: &str, hosts: &[&str]) -> Result<(String, u16), UrlError> {
        let place = AllowedUrl::of(&read_url(url)?, Some(&allowed(hosts, UrlTable::default())))?;
        Ok((place.host(), place.url.port()))
    }

    #[test]
    fn only_named_hosts_are_allowed() {
        let hosts = ["example.com", "*.pictures.org", "ports.net:8443", "1.1.1.1"];
        for (url, host, port) in [
            ("https://example.com/a.png", "example.com", 443),
            ("http://EXAMPLE.com", "example.com", 80),
            ("http://example.com:80/a?b=c", "example.com", 80),
            ("https://a.b.pictures.org/", "a.b.pictures.org", 443),
            ("https://ports.net:8443/", "ports.net", 8443),
            ("https://ports.net/", "ports.net", 443),
            ("https://1.1.1.1/", "1.1.1.1", 443),
            ("https://example.com./", "example.com", 443),
        ] {
            assert_eq!(place(url, &hosts), Ok((host.to_owned(), port)), "{url}");
        }
        for url in [
            "https://example.org/",
            "https://example.com.evil.org/",
            "https://evil-example.com/",
            "https://sub.example.com/",
            "https://pictures.org/",
            "https://evilpictures.org/",
            "https://example.com:8443/",
            "http://ports.net:443/",
            "http://127.0.0.1/",
            "http://2130706433/",
            "http://0x7f.1/",
            "http://[::1]/",
            "http://[::ffff:127.0.0.1]/",
        ] {
            assert_eq!(place(url, &hosts), Err(UrlError::OtherHost), "{url}");
        }
        for url in [
            "ftp://example.com/",
            "file:///etc/passwd",
            "/a.png",
            "https://me@example.com/",
            "https://example.com@evil.org/",
            "https://example.com:99999/",
            "https://example.com:/",
            "https:///a",
            "https://..pictures.org/",
            "https://a!b.pictures.org/",
            "https://-.pictures.org/",
            "https://example.com\\@evil.org/",
        ] {
            assert_eq!(place(url, &hosts), Err(UrlError::Malformed), "{url}");
        }
        let long = format!("https://example.com/{}", "a".repeat(URL_BYTES_MAX));
        assert_eq!(place(&long, &hosts), Err(UrlError::TooLong));
        let url = read_url("https://example.com/").unwrap();
        assert_eq!(AllowedUrl::of(&url, None), Err(UrlError::Off));
    }

    #[test]
    fn entries_are_names_of_hosts() {
        let longest = format!("{0}.{0}.{0}.{1}", "a".repeat(63), "a".repeat(61));
        for text in [
            "example.com",
            "*.Example.com",
            "*.example.com:1",
            "example.com:8443",
            "1.1.1.1",
            "1.1.1.1:65535",
            "a_b-c.d",
            "localhost.com",
            "1and1.com",
            "xn--bcher-kva.example",
            &longest,
        ] {
            assert_eq!(ImageUrls::read_host(text), Ok(text.to_ascii_lowercase()));
        }
        for text in [
            "",
            "*",
            "*.",
            "https://example.com",
            "example.com/",
            "example.com:",
            "example.com:99999",
            "a b",
            "[::1]",
            "me@example.com",
            "exa*mple.com",
            ".",
            "..",
            ".com",
            "a..b",
            "*..com",
            "*.*.com",
            ":0",
            ":80",
            "*.:80",
            "example.com:0",
            "example.com:+80",
            "example.com:80:80",
            "-a.com",
            "a-.com",
            "-",
            "1.1.1",
            "1.1.1.256",
            "*.1.1.1",
            "2130706433",
            &format!("{}.com", "a".repeat(64)),
            &format!("a{longest}"),
        ] {
            let error = ImageUrls::read_host(text).unwrap_err();
            assert!(error.contains("example.com:8443"), "{text}");
        }
        for text in [
            "localhost",
            "LOCALHOST:8080",
            "*.localhost",
            "pictures.localhost",
            "127.0.0.1",
            "10.0.0.1:80",
            "192.168.1.1",
            "169.254.169.254",
            "0.0.0.0",
        ] {
            let error = ImageUrls::read_host(text).unwrap_err();
            assert!(error.contains("never fetched from this machine"), "{text}: {error}");
        }
    }

    #[test]
    fn redirects_stay_within_the_list() {
        let allowed = allowed(&["example.com", "cdn.example.com"], UrlTable::default());
        let next = |from: &str, location: &str| {
            let place = AllowedUrl::of(&read_url(from).unwrap(), Some(&allowed)).unwrap();
            place.redirected(location, Some(&allowed)).map(|place| place.url.to_string())
        };
        let from = "https://example.com/a?b=1";
        assert_eq!(next(from, "/c?d=2").unwrap(), "https://example.com/c?d=2");
        assert_eq!(next(from, "https://cdn.example.com/c").unwrap(), "https://cdn.example.com/c");
        assert_eq!(next("http://example.com/", from).unwrap(), from);
        let told = |from: &str, location: &str| next(from, location).unwrap_err().to_string();
        let begin = "https://example.com/a redirects to the host";
        for (location, expected) in [
            ("http://example.com/c", "example.com: a redirect from https to http"),
            ("https://evil.org/", "evil.org, which --allow-image-urls does not name"),
            ("http://169.254.169.254/", "169.254.169.254, which"),
            ("https://cdn.example.com:22/", "cdn.example.com:22, which"),
            ("//evil.org/", "evil.org, which"),
            ("//127.0.0.1/", "127.0.0.1, which"),
        ] {
            let told = told(from, location);
            assert!(told.starts_with(&format!("{begin} {expected}")), "{location}: {told}");
            assert!(!told.contains("b=1"), "a query may hold a key: {told}");
        }
        assert!(next(from, "https:evil.org@example.com").is_err());
        for location in ["file:///etc/passwd", "\u{0}", "c:d", "https:", "//", "//me@example.com/"]
        {
            let told = told(from, location);
            assert!(told.contains("redirects to another place: the URL is not"), "{told}");
        }
        // Also where the last byte that is quoted is inside a character, in one of the two.
        for path in ["a".repeat(5000), "\u{e4}".repeat(2500), format!("a{}", "\u{e4}".repeat(2500))]
        {
            let told = told(&format!("https://example.com/{path}"), "https://evil.org/");
            assert!(told.contains("... redirects to") && told.len() < 500, "{}", told.len());
        }
        let long = told(from, &"a".repeat(URL_BYTES_MAX + 1));
        assert!(long.contains("longer than"), "{long}");
    }

    #[test]
    fn special_addresses_are_not_public() {
        for address in [
            "0.0.0.0",
            "10.1.2.3",
            "100.64.0.1",
            "100.127.255.255",
            "127.0.0.1",
            "127.9.9.9",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.8",
            "192.0.2.1",
            "192.168.1.1",
            "198.18.0.1",
            "198.51.100.7",
            "203.0.113.9",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "::127.0.0.1",
            "64:ff9b::7f00:1",
            "100::1",
            "2001::1",
            "2001:db8::1",
            "2002:7f00:1::",
            "3fff::1",
            "fc00::1",
            "fd12::1",
            "fe80::1",
            "fec0::1",
            "ff02::1",
        ] {
            assert!(!is_public(address.parse().unwrap()), "{address}");
        }
        for address in [
            "1.1.1.1",
            "100.63.0.1",
            "100.128.0.1",
            "172.15.0.1",
            "172.32.0.1",
            "192.0.1.1",
            "223.255.255.255",
            "2606:4700::1111",
            "2001:4860:4860::8888",
            "::ffff:1.1.1.1",
        ] {
            assert!(is_public(address.parse().unwrap()), "{address}");
        }
    }

    #[test]
    fn one_private_address_among_public_ones_is_refused() {
        let allowed = allowed(&["example.com"], UrlTable::default());
        let place =
            AllowedUrl::of(&read_url("https://example.com/").unwrap(), Some(&allowed)).unwrap();
        let addresses = |all: &[&str]| -> Vec<SocketAddr> {
            all.iter().map(|address| SocketAddr::new(address.parse().unwrap(), 443)).collect()
        };
        assert_eq!(place.check(&addresses(&["1.1.1.1", "2606:4700::1"])), Ok(()));
        assert_eq!(place.check(&addresses(&["1.1.1.1", "10.0.0.1"])), Err(UrlError::NotPublic));
        assert_eq!(place.check(&[]), Err(UrlError::NotFound));
    }
}
