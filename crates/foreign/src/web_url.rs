//! URLs.

use std::fmt;

use url::Url;

use crate::host::Host;

/// Why a text is not taken for a URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UrlProblem {
    /// The scheme is another one, or absent.
    #[error("the address begins with neither http:// nor https://")]
    Scheme,
    /// It has a user name or a password.
    #[error("the address has a user name or password; leave it out")]
    User,
    /// The host is missing or cannot be one.
    #[error("the address names no host")]
    Host,
    /// The port is no number, or too large.
    #[error("the port is not a number from 0 to 65535")]
    Port,
    /// Something else is wrong.
    #[error("this is not an address")]
    Malformed,
}

/// An absolute `http` or `https` URL without user and fragment, read as browsers read it
/// (<https://url.spec.whatwg.org/>). URLs are equal if they lead to the same place: a default port
/// and a dot at the end of the host are left out, `.` and `..` of the path are resolved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebUrl(Url);

impl WebUrl {
    /// Reads an absolute URL. Browsers mend more than is taken here: `\` for `/`, tabs and line
    /// breaks, and other numbers of slashes than two.
    ///
    /// # Errors
    /// [`UrlProblem`] if it is none of `http` or `https`.
    pub fn parse(text: &str) -> Result<Self, UrlProblem> {
        check_signs(text)?;
        check_slashes(text)?;
        Self::checked(Url::parse(text).map_err(problem)?)
    }

    /// Returns the URL that a reference in a document at this one means, as of a redirect.
    ///
    /// # Errors
    /// As [`WebUrl::parse`].
    pub fn join(&self, reference: &str) -> Result<Self, UrlProblem> {
        check_signs(reference)?;
        let before_path = reference.find(['/', '?', '#']).unwrap_or(reference.len());
        if reference[..before_path].contains(':') {
            return Self::parse(reference);
        }
        if reference.starts_with("//") {
            return Self::parse(&format!("{}:{reference}", self.0.scheme()));
        }
        Self::checked(self.0.join(reference).map_err(problem)?)
    }

    fn checked(mut url: Url) -> Result<Self, UrlProblem> {
        if !matches!(url.scheme(), "http" | "https") {
            return Err(UrlProblem::Scheme);
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(UrlProblem::User);
        }
        let host = url.host_str().and_then(Host::parse).ok_or(UrlProblem::Host)?;
        url.set_host(Some(&host.to_string())).map_err(|_| UrlProblem::Host)?;
        url.set_fragment(None);
        Ok(Self(url))
    }

    /// Returns the host.
    pub fn host(&self) -> Host {
        self.0.host_str().and_then(Host::parse).expect("it was checked")
    }

    /// Returns the port, or that of the scheme if none is given.
    pub fn port(&self) -> u16 {
        self.0.port_or_known_default().expect("http and https have one")
    }

    /// Returns the port of the scheme.
    pub fn usual_port(&self) -> u16 {
        if self.is_https() { 443 } else { 80 }
    }

    /// Returns whether connections are encrypted.
    pub fn is_https(&self) -> bool {
        self.0.scheme() == "https"
    }

    /// Returns the path, which begins with `/`.
    pub fn path(&self) -> &str {
        self.0.path()
    }

    /// Returns the query without its `?`, if there is one.
    pub fn query(&self) -> Option<&str> {
        self.0.query()
    }

    /// Returns scheme, host and a port that is not the scheme's.
    pub fn origin(&self) -> String {
        self.0.origin().ascii_serialization()
    }

    /// Returns whether scheme, host and port are those of another URL.
    pub fn has_origin_of(&self, other: &Self) -> bool {
        self.0.origin() == other.0.origin()
    }

    /// Returns the whole URL.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

impl fmt::Display for WebUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Refuses what parsers read differently.
fn check_signs(text: &str) -> Result<(), UrlProblem> {
    let is_odd = |sign: char| sign.is_control() || sign == '\\';
    if text.contains(is_odd) { Err(UrlProblem::Malformed) } else { Ok(()) }
}

/// Refuses other numbers of slashes between scheme and host than two, and an empty port.
fn check_slashes(text: &str) -> Result<(), UrlProblem> {
    let (scheme, rest) = text.split_once(':').ok_or(UrlProblem::Scheme)?;
    if !matches!(scheme.to_ascii_lowercase().as_str(), "http" | "https") {
        return Err(UrlProblem::Scheme);
    }
    let rest = rest.strip_prefix("//").ok_or(UrlProblem::Scheme)?;
    let authority = &rest[..rest.find(['/', '?', '#']).unwrap_or(rest.len())];
    match authority {
        "" => Err(UrlProblem::Host),
        authority if authority.ends_with(':') => Err(UrlProblem::Port),
        _ => Ok(()),
    }
}

fn problem(error: url::ParseError) -> UrlProblem {
    match error {
        url::ParseError::InvalidPort => UrlProblem::Port,
        url::ParseError::RelativeUrlWithoutBase => UrlProblem::Scheme,
        url::ParseError::EmptyHost
        | url::ParseError::IdnaError
        | url::ParseError::InvalidIpv4Address
        | url::ParseError::InvalidIpv6Address
        | url::ParseError::InvalidDomainCharacter => UrlProblem::Host,
        _ => UrlProblem::Malformed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_values() {
        for (text, same) in [
            ("HTTPS://Example.COM", "https://example.com/"),
            ("https://example.com:443/a", "https://example.com/a"),
            ("https://example.com./a#b", "https://example.com/a"),
            ("http://127.1:9/../..", "http://127.0.0.1:9/"),
            ("http://[0::1]:80/?a=b", "http://[::1]/?a=b"),
            ("https://b\u{fc}cher.example/\u{e4}", "https://xn--bcher-kva.example/%C3%A4"),
        ] {
            assert_eq!(WebUrl::parse(text).unwrap().as_str(), same, "{text}");
        }
        for (text, expected) in [
            ("", UrlProblem::Scheme),
            ("/a.png", UrlProblem::Scheme),
            ("localhost:80", UrlProblem::Scheme),
            ("ftp://example.com/", UrlProblem::Scheme),
            ("file:///etc/passwd", UrlProblem::Scheme),
            ("https:evil.org", UrlProblem::Scheme),
            ("https:///a", UrlProblem::Host),
            ("http://", UrlProblem::Host),
            ("https://a b/", UrlProblem::Host),
            ("https://a!b/", UrlProblem::Host),
            ("https://..a/", UrlProblem::Host),
            ("http://[::1%25lo]:9", UrlProblem::Host),
            ("https://me@example.com/", UrlProblem::User),
            ("https://:secret@example.com/", UrlProblem::User),
            ("https://example.com:99999/", UrlProblem::Port),
            ("https://example.com:/", UrlProblem::Port),
            ("https://example.com\\@evil.org/", UrlProblem::Malformed),
            ("https://exam\tple.com/", UrlProblem::Malformed),
        ] {
            assert_eq!(WebUrl::parse(text), Err(expected), "{text}");
        }
    }

    /// The examples of RFC 3986, section 5.4, with a scheme that is fetched.
    #[test]
    fn references_are_resolved() {
        let base = WebUrl::parse("http://a/b/c/d;p?q").unwrap();
        for (reference, expected) in [
            ("g", "http://a/b/c/g"),
            ("./g", "http://a/b/c/g"),
            ("g/", "http://a/b/c/g/"),
            ("/g", "http://a/g"),
            ("//g", "http://g/"),
            ("?y", "http://a/b/c/d;p?y"),
            ("g?y", "http://a/b/c/g?y"),
            ("#s", "http://a/b/c/d;p?q"),
            ("g?y#s", "http://a/b/c/g?y"),
            (";x", "http://a/b/c/;x"),
            ("g;x?y#s", "http://a/b/c/g;x?y"),
            ("", "http://a/b/c/d;p?q"),
            (".", "http://a/b/c/"),
            ("..", "http://a/b/"),
            ("../../../g", "http://a/g"),
            ("/../g", "http://a/g"),
            ("g.", "http://a/b/c/g."),
            ("./g/.", "http://a/b/c/g/"),
            ("g/../h", "http://a/b/c/h"),
            ("g?y/../x", "http://a/b/c/g?y/../x"),
            ("https://cdn.example:8443/f?u=http://a", "https://cdn.example:8443/f?u=http://a"),
        ] {
            assert_eq!(base.join(reference).unwrap().as_str(), expected, "{reference:?}");
        }
        for reference in
            ["file:///a", "data:,a", "javascript:alert(1)", "//", "https:", "c:d", "\0"]
        {
            assert!(base.join(reference).is_err(), "{reference:?}");
        }
    }
}
