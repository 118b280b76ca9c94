//! Addresses: parsing, redirects, and which of them may receive the token.

use ureq::http::Uri;

/// The longest accepted address in bytes. Signed addresses of file servers reach two thousand.
const LONGEST: usize = 16 * 1024;

/// An absolute `http` or `https` address without user information and fragment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Location {
    secure: bool,
    host: String,
    port: u16,
    path_and_query: String,
}

impl Location {
    /// Parses an absolute address.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        if text.len() > LONGEST {
            return Err("the address is too long".to_owned());
        }
        let (scheme, rest) = text.split_once("://").ok_or("it is not an http or https address")?;
        let secure = match scheme.to_ascii_lowercase().as_str() {
            "https" => true,
            "http" => false,
            _ => return Err("only http and https addresses are followed".to_owned()),
        };
        let end = rest.find('#').unwrap_or(rest.len());
        let uri: Uri = format!("{}://{}", if secure { "https" } else { "http" }, &rest[..end])
            .parse()
            .map_err(|error| format!("the address is malformed: {error}"))?;
        let authority = uri.authority().ok_or("the address names no host")?;
        if authority.as_str().contains('@') {
            return Err("the address contains a user name".to_owned());
        }
        if authority.host().is_empty() {
            return Err("the address names no host".to_owned());
        }
        let port = match authority.port() {
            Some(port) => port.as_u16(),
            None if authority.as_str().ends_with(':') || authority.host() == authority.as_str() => {
                if secure {
                    443
                } else {
                    80
                }
            }
            None => return Err("the address has a malformed port".to_owned()),
        };
        let path_and_query = match uri.path_and_query().map(|p| p.as_str()) {
            None | Some("") => "/".to_owned(),
            Some(path) if path.starts_with('/') => path.to_owned(),
            Some(query) => format!("/{query}"),
        };
        Ok(Location { secure, host: authority.host().to_ascii_lowercase(), port, path_and_query })
    }

    /// Returns the address that a redirect from here leads to. Relative addresses are resolved
    /// against this one.
    pub(crate) fn redirect(&self, target: &str) -> Result<Self, String> {
        let before_path = target.find(['/', '?', '#']).unwrap_or(target.len());
        let target = if target[..before_path].contains(':') {
            target.to_owned()
        } else if let Some(authority) = target.strip_prefix("//") {
            format!("{}://{authority}", self.scheme())
        } else if target.starts_with('/') {
            format!("{}{target}", self.origin())
        } else {
            let path = self.path();
            let folder = &path[..path.rfind('/').map_or(0, |slash| slash + 1)];
            let base = if target.starts_with('?') { path } else { folder };
            format!("{}{base}{target}", self.origin())
        };
        let next = Location::parse(&target)?;
        if self.secure && !next.secure {
            return Err("it leads from https to plain http".to_owned());
        }
        Ok(next)
    }

    pub(crate) fn same_origin(&self, other: &Location) -> bool {
        self.secure == other.secure && self.host == other.host && self.port == other.port
    }

    /// Returns whether a secret may be sent to this address: encrypted, or without leaving this
    /// machine.
    pub(crate) fn keeps_secrets(&self) -> bool {
        self.secure || matches!(self.host.as_str(), "127.0.0.1" | "[::1]" | "localhost")
    }

    /// Returns the whole address, as a request needs it.
    pub(crate) fn address(&self) -> String {
        format!("{}{}", self.origin(), self.path_and_query)
    }

    /// Returns the address without its query: queries of file servers contain signatures, which do
    /// not belong in messages.
    pub(crate) fn shown(&self) -> String {
        crate::spelling::printable(&format!("{}{}", self.origin(), self.path()), 300)
    }

    fn scheme(&self) -> &'static str {
        if self.secure { "https" } else { "http" }
    }

    fn origin(&self) -> String {
        format!("{}://{}:{}", self.scheme(), self.host, self.port)
            .trim_end_matches(if self.secure { ":443" } else { ":80" })
            .to_owned()
    }

    fn path(&self) -> &str {
        self.path_and_query.split('?').next().unwrap_or("/")
    }
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
        assert!(!parse("http://mirror.example").keeps_secrets());
        assert_eq!(parse("https://a.example/x?sig=secret").shown(), "https://a.example/x");
        assert_eq!(encode_path("a b/ü#?.gguf"), "a%20b/%C3%BC%23%3F.gguf");
    }
}
