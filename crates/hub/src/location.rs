//! Addresses: parsing, redirects, and which of them may receive the token.

use trine_foreign::{Host, WebUrl, cut_name};

/// The longest accepted address in bytes. Signed addresses of file servers reach two thousand.
const LONGEST: usize = 16 * 1024;

/// An absolute `http` or `https` address without user information and fragment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Location(WebUrl);

impl Location {
    /// Parses an absolute address.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        check_length(text)?;
        WebUrl::parse(text).map(Self).map_err(|problem| problem.to_string())
    }

    /// Returns the address that a redirect from here leads to. Relative addresses are resolved
    /// against this one.
    pub(crate) fn redirect(&self, target: &str) -> Result<Self, String> {
        check_length(target)?;
        let next = self.0.join(target).map_err(|problem| problem.to_string())?;
        if self.0.is_https() && !next.is_https() {
            return Err("it leads from https to plain http".to_owned());
        }
        Ok(Self(next))
    }

    pub(crate) fn same_origin(&self, other: &Location) -> bool {
        self.0.has_origin_of(&other.0)
    }

    /// Returns whether connections to this address are encrypted.
    pub(crate) fn is_https(&self) -> bool {
        self.0.is_https()
    }

    /// Returns whether a secret may be sent to this address: encrypted, or without leaving this
    /// machine.
    pub(crate) fn keeps_secrets(&self) -> bool {
        self.0.is_https()
            || match self.0.host() {
                // A resolver may know names below it elsewhere.
                Host::Name(name) => name == "localhost",
                host @ Host::Address(_) => host.is_loopback(),
            }
    }

    /// Returns the whole address, as a request needs it.
    pub(crate) fn address(&self) -> &str {
        self.0.as_str()
    }

    /// Returns the address without its query: queries of file servers contain signatures, which do
    /// not belong in messages.
    pub(crate) fn shown(&self) -> String {
        cut_name(&format!("{}{}", self.0.origin(), self.0.path()), 300)
    }
}

fn check_length(text: &str) -> Result<(), String> {
    if text.len() > LONGEST { Err("the address is too long".to_owned()) } else { Ok(()) }
}

/// Percent-encodes a path, keeping its slashes.
pub(crate) fn encode_path(path: &str) -> String {
    let mut encoded = String::with_capacity(path.len());
    for byte in path.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~' | b'/') {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_resolve_like_a_browser_does() {
        let base = Location::parse("https://Hub.example/a/b?x=1#frag").unwrap();
        assert_eq!(base.address(), "https://hub.example/a/b?x=1");
        for (target, expected) in [
            ("/c/d", "https://hub.example/c/d"),
            ("c", "https://hub.example/a/c"),
            ("?y=2", "https://hub.example/a/b?y=2"),
            ("//cdn.example/f?sig=a:b", "https://cdn.example/f?sig=a:b"),
            ("https://cdn.example:8443/f", "https://cdn.example:8443/f"),
            ("/x?u=http://a", "https://hub.example/x?u=http://a"),
        ] {
            assert_eq!(base.redirect(target).unwrap().address(), expected, "{target}");
        }
    }

    #[test]
    fn hostile_redirects_are_refused() {
        let base = Location::parse("https://hub.example/a").unwrap();
        for target in [
            "file:///etc/passwd",
            "file:/etc/passwd",
            "ftp://hub.example/a",
            "data:text/plain,a",
            "javascript:alert(1)",
            "http://hub.example/a",
            "https://hub.example@evil.example/",
            "https://",
            "https:///x",
            "https://a b/",
            "https://host:99999/",
        ] {
            assert!(base.redirect(target).is_err(), "{target}");
        }
        assert!(base.redirect(&format!("/{}", "a".repeat(LONGEST))).is_err());
    }

    #[test]
    fn origins_compare_scheme_host_and_port() {
        let parse = |text: &str| Location::parse(text).unwrap();
        assert!(parse("https://a.example/x").same_origin(&parse("https://A.example:443/y")));
        assert!(!parse("https://a.example").same_origin(&parse("https://a.example:444")));
        assert!(!parse("https://a.example").same_origin(&parse("https://a.example.evil")));
        assert!(!parse("http://127.0.0.1:1").same_origin(&parse("http://127.0.0.1:2")));
        assert!(parse("http://127.0.0.1:1").keeps_secrets());
        for (place, keeps) in [
            ("http://mirror.example", false),
            ("http://127.0.0.1.mirror.example", false),
            ("http://a.localhost", false),
            ("http://localhost.:9", true),
            ("http://127.1:9", true),
            ("http://[::1]", true),
        ] {
            assert_eq!(parse(place).keeps_secrets(), keeps, "{place}");
        }
        assert_eq!(parse("https://a.example/x?sig=secret").shown(), "https://a.example/x");
        assert_eq!(encode_path("a b/ü#?.gguf"), "a%20b/%C3%BC%23%3F.gguf");
    }
}
