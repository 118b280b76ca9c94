//! Addresses of services that are named on the command line.

use std::fmt;

use ureq::http::Uri;

/// The address of a server: scheme, host and port, and the path that precedes the server's own
/// paths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Address(String);

impl Address {
    /// Reads an `http` or `https` URL that has no user, query or fragment.
    ///
    /// # Errors
    /// Returns the problem in words if the text is not an address.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let wrong =
            |reason: &str| Err(format!("{reason}; write for example http://127.0.0.1:8080"));
        // The parser of `Uri` drops a fragment silently.
        if text.contains(['?', '#']) {
            return wrong("leave out the query");
        }
        let Ok(uri) = text.trim_end_matches('/').parse::<Uri>() else {
            return wrong("this is not an address");
        };
        if !matches!(uri.scheme_str(), Some("http" | "https")) {
            return wrong("the address begins with neither http:// nor https://");
        }
        match uri.authority() {
            Some(authority) if authority.as_str().contains('@') => {
                wrong("leave out the user name and password")
            }
            Some(authority)
                if authority.port_u16().is_none() && authority.as_str() != authority.host() =>
            {
                wrong("the port is not a number from 0 to 65535")
            }
            Some(authority) if !authority.host().is_empty() => {
                Ok(Self(text.trim_end_matches('/').to_owned()))
            }
            _ => wrong("the address names no host"),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_checked() {
        for (text, address) in [
            ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
            ("http://[::1]:8080/", "http://[::1]:8080"),
            ("https://models.example/gemma//", "https://models.example/gemma"),
        ] {
            assert_eq!(Address::parse(text).unwrap().to_string(), address);
        }
        for wrong in [
            "",
            "127.0.0.1:8080",
            "localhost",
            "ftp://a",
            "http://",
            "http:///a",
            "http://a?b",
            "http://a#b",
            "http://user:secret@a",
            "http://a b",
            "http://a:99999999",
            "file:///etc/passwd",
            "http://\u{1b}[31m",
        ] {
            assert!(
                Address::parse(wrong).unwrap_err().contains("http://127.0.0.1:8080"),
                "{wrong}"
            );
        }
    }
}
