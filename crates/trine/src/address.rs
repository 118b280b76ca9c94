//! Addresses of services that are named on the command line.

use std::fmt;

use trine_foreign::WebUrl;

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
        let wrong = |reason: String| format!("{reason}; write for example http://127.0.0.1:8080");
        if text.contains(['?', '#']) {
            return Err(wrong("leave out the query".to_owned()));
        }
        let url = WebUrl::parse(text).map_err(|problem| wrong(problem.to_string()))?;
        Ok(Self(url.as_str().trim_end_matches('/').to_owned()))
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
            ("HTTP://Box.LAN.:80", "http://box.lan"),
            ("http://127.1:9", "http://127.0.0.1:9"),
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
            "http:a",
            "http://a?b",
            "http://a#b",
            "http://user:secret@a",
            "http://a b",
            "http://a:99999999",
            "http://a\\b",
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
