//! Hosts and ports.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

/// Most bytes of a name and of a label in it (RFC 1035, section 2.3.4).
const NAME_BYTES_MAX: usize = 253;
const LABEL_BYTES_MAX: usize = 63;

/// The host of a URL. Hosts are equal if they are the same host: names are in lower case, in ASCII
/// (RFC 5891) and without a dot at their end, addresses are numbers.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Host {
    /// A name.
    Name(String),
    /// An address.
    Address(IpAddr),
}

impl Host {
    /// Reads a host as browsers read that of a URL (<https://url.spec.whatwg.org/#host-parsing>): a
    /// number, whatever its form, is an address of IPv4, and a name may have letters of any
    /// language. Returns `None` for what no host has.
    pub fn parse(text: &str) -> Option<Self> {
        match url::Host::parse(text).ok()? {
            url::Host::Ipv4(address) => Some(Self::Address(address.into())),
            url::Host::Ipv6(address) => Some(Self::Address(address.into())),
            url::Host::Domain(name) => {
                let name = name.strip_suffix('.').unwrap_or(&name);
                is_name(name).then(|| Self::Name(name.to_owned()))
            }
        }
    }

    /// Reads a host in the form in which browsers send it: in ASCII, an address of IPv4 as four
    /// decimal numbers, one of IPv6 in brackets. Case and a dot at the end do not matter. Returns
    /// `None` for every other form, such as `0x7f000001` for `127.0.0.1`.
    ///
    /// ```
    /// use trine_foreign::Host;
    /// assert_eq!(Host::literal("Box.LAN."), Some(Host::Name("box.lan".to_owned())));
    /// assert_eq!(Host::literal("127.0.0.1"), Host::parse("0x7f000001"));
    /// assert_eq!(Host::literal("0x7f000001"), None);
    /// ```
    pub fn literal(text: &str) -> Option<Self> {
        if let Some(rest) = text.strip_prefix('[') {
            let address: Ipv6Addr = rest.strip_suffix(']')?.parse().ok()?;
            return Some(Self::Address(address.into()));
        }
        let text = text.strip_suffix('.').unwrap_or(text);
        let host = Self::parse(text)?;
        host.to_string().eq_ignore_ascii_case(text).then_some(host)
    }

    /// Returns whether the host is this machine by definition: a loopback address, or `localhost`
    /// and the names below it (RFC 6761, section 6.3).
    pub fn is_loopback(&self) -> bool {
        match self {
            Self::Name(name) => name == "localhost" || name.ends_with(".localhost"),
            Self::Address(address) => address.to_canonical().is_loopback(),
        }
    }

    /// Returns whether the host is a name below a domain.
    pub fn is_below(&self, domain: &str) -> bool {
        let Self::Name(name) = self else { return false };
        name.strip_suffix(domain)
            .and_then(|below| below.strip_suffix('.'))
            .is_some_and(|below| !below.is_empty())
    }
}

impl fmt::Display for Host {
    /// Writes the host as it stands in a URL: an address of IPv6 in brackets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Address(IpAddr::V4(address)) => address.fmt(f),
            Self::Address(IpAddr::V6(address)) => write!(f, "[{address}]"),
        }
    }
}

/// Returns whether a text is the name of a host: labels of letters, digits, `-` and `_` (RFC 1035,
/// section 2.3.4; RFC 1123, section 2.1). Names in use have `_` too.
fn is_name(text: &str) -> bool {
    let is_sign = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    let is_label = |label: &str| {
        (1..=LABEL_BYTES_MAX).contains(&label.len())
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(is_sign)
    };
    text.len() <= NAME_BYTES_MAX && text.split('.').all(is_label)
}

/// A host and, where one is given, a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Authority {
    /// The host.
    pub host: Host,
    /// The port, if it is given.
    pub port: Option<u16>,
}

impl Authority {
    /// Reads a host as [`Host::literal`] does, with or without `:` and a port. Returns `None` for
    /// everything else, user names included.
    pub fn literal(text: &str) -> Option<Self> {
        Self::read(text, Host::literal)
    }

    /// Reads a host as [`Host::parse`] does, with or without `:` and a port. Returns `None` for
    /// everything else, user names included.
    pub fn parse(text: &str) -> Option<Self> {
        Self::read(text, Host::parse)
    }

    fn read(text: &str, read: fn(&str) -> Option<Host>) -> Option<Self> {
        let end = text.rfind(']').map_or(0, |bracket| bracket + 1);
        let Some(colon) = text[end..].find(':') else {
            return Some(Self { host: read(text)?, port: None });
        };
        let (host, port) = (&text[..end + colon], &text[end + colon + 1..]);
        if !port.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        Some(Self { host: read(host)?, port: Some(port.parse().ok()?) })
    }

    /// Returns the port, or that of a scheme if none is given.
    pub fn port_or(&self, scheme: &str) -> Option<u16> {
        self.port.or(match scheme {
            "http" => Some(80),
            "https" => Some(443),
            _ => None,
        })
    }
}

impl fmt::Display for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.host.fmt(f)?;
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_values() {
        for (text, same) in [
            ("LocalHost.", "localhost"),
            ("b\u{fc}cher.example", "xn--bcher-kva.example"),
            ("2130706433", "127.0.0.1"),
            ("0177.0.0.1", "127.0.0.1"),
            ("127.1", "127.0.0.1"),
            ("127.0.0.1.", "127.0.0.1"),
            ("%6c%6f%63alhost", "localhost"),
            ("[0:0:0:0:0:0:0:1]", "[::1]"),
        ] {
            assert_eq!(Host::parse(text), Host::literal(same), "{text}");
            assert_eq!(Host::parse(text).unwrap().to_string(), same, "{text}");
        }
        let long = "a".repeat(64);
        for text in [
            "",
            ".",
            "..",
            "a..b",
            ".a",
            "a..",
            "a b",
            "a!$&*+=.pic.example",
            "-.a",
            "a-",
            &long,
            "::1",
            "[::1",
            "[::1%25lo]",
            "[localhost]",
            "*",
            "a/b",
            "a\\b",
            "a@b",
            "a%00",
            "1.1.1.256",
        ] {
            assert_eq!(Host::parse(text), None, "{text:?}");
            assert_eq!(Host::literal(text), None, "{text:?}");
        }
    }

    /// What no browser writes, hostile.md H2.
    #[test]
    fn literal_hosts_have_one_form() {
        for text in [
            "2130706433",
            "0x7f000001",
            "127.1",
            "0177.0.0.1",
            "%6c%6f%63alhost",
            "\u{ff11}27.0.0.1",
            "localhost\u{3002}",
            "b\u{fc}cher.example",
            "evil@127.0.0.1",
            "evil.com:80@localhost",
            "localhost:evil",
            "127.0.0.1:99999",
            "localhost:",
            "localhost:+80",
            "localhost:80:80",
            "[localhost]:80",
            "[::1]80",
            "[::1%25lo]",
            "localhost,evil.com",
            " localhost",
        ] {
            assert_eq!(Authority::literal(text), None, "{text:?}");
        }
        for (text, host, port) in [
            ("LOCALHOST:1", "localhost", Some(1)),
            ("127.0.0.1", "127.0.0.1", None),
            ("[0::1]:8080", "[::1]", Some(8080)),
            ("a_b-c.d.:80", "a_b-c.d", Some(80)),
        ] {
            let authority = Authority::literal(text).unwrap();
            assert_eq!((authority.host.to_string().as_str(), authority.port), (host, port));
        }
    }
}
