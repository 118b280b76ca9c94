//! Which hosts a server without keys answers to, and whose pages may use it.
//!
//! A page's own server can let its name lead to another address once the page is loaded (DNS
//! rebinding): the browser then takes this server for the page's, and sends it the page's name as
//! `Host` and `Origin`. So names count that nobody else can let lead here. Both tables are pure:
//! they hold for every address that is listened on.

use std::net::{IpAddr, Ipv4Addr};

use trine_foreign::{Authority, Host};

/// Fewest characters of a name without a dot. Some countries' domains of two letters have an
/// address of their own (RFC 7085); longer names without a dot have none in the public root.
const BARE_NAME_MIN: usize = 3;
/// The domain that ICANN keeps out of the public root (July 2024).
const PRIVATE_DOMAIN: &str = "internal";
/// Schemes of pages of programs on this machine. Ollama lets the same in
/// (<https://github.com/ollama/ollama/blob/v0.33.0-rc2/envconfig/config.go>).
const APP_SCHEMES: [&str; 5] = ["app", "file", "tauri", "vscode-webview", "vscode-file"];

/// Returns whether a server without keys answers to a host; `own` are those that its owner has
/// named.
pub(crate) fn is_answered(host: &Host, own: &[Host]) -> bool {
    match host {
        // Nobody can let an address lead to another one. The unspecified one is of no host.
        Host::Address(address) => !address.to_canonical().is_unspecified(),
        Host::Name(name) => {
            host.is_loopback()
                || host.is_below(PRIVATE_DOMAIN)
                || (!name.contains('.') && name.len() >= BARE_NAME_MIN)
                || own.contains(host)
        }
    }
}

/// The host in an origin.
#[derive(Debug, Clone, PartialEq, Eq)]
enum OriginHost {
    /// Of `http` and `https`.
    Web(Host),
    /// Of another scheme, in lower case. May be empty.
    Opaque(String),
}

/// The origin of a web page: scheme, host and port.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Origin {
    /// In lower case.
    scheme: String,
    host: OriginHost,
    /// The port, also where it is the scheme's.
    port: Option<u16>,
}

impl Origin {
    /// Reads the value of the header `Origin`, in the one form in which browsers write it.
    fn literal(text: &str) -> Option<Self> {
        Self::read(text, Authority::literal)
    }

    fn read(text: &str, authority: fn(&str) -> Option<Authority>) -> Option<Self> {
        let (scheme, rest) = split(text)?;
        if !is_web(&scheme) {
            let is_sign = |byte: u8| {
                byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-' | b':')
            };
            let host = rest.bytes().all(is_sign).then(|| rest.to_ascii_lowercase())?;
            let is_named = !host.is_empty() || scheme == "file";
            return is_named.then_some(Self { scheme, host: OriginHost::Opaque(host), port: None });
        }
        let authority = authority(rest)?;
        let port = authority.port_or(&scheme);
        Some(Self { scheme, host: OriginHost::Web(authority.host), port })
    }

    /// Returns whether the page is of the server that is asked as `asked`.
    fn is_of(&self, asked: &Authority) -> bool {
        self.host == OriginHost::Web(asked.host.clone()) && self.port == asked.port_or(&self.scheme)
    }

    /// Returns whether the page is of a server on this machine.
    fn is_local(&self) -> bool {
        let OriginHost::Web(host) = &self.host else { return false };
        // Some browsers open pages of this machine at the unspecified address.
        host.is_loopback() || *host == Host::Address(IpAddr::V4(Ipv4Addr::UNSPECIFIED))
    }
}

/// Returns the scheme of an origin in lower case, and what comes after `://`.
fn split(text: &str) -> Option<(String, &str)> {
    let (scheme, rest) = text.split_once("://")?;
    let is_sign = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.');
    let is_scheme =
        scheme.starts_with(|sign: char| sign.is_ascii_alphabetic()) && scheme.bytes().all(is_sign);
    is_scheme.then(|| (scheme.to_ascii_lowercase(), rest))
}

fn is_web(scheme: &str) -> bool {
    matches!(scheme, "http" | "https")
}

/// Origins of web pages that a server's owner lets in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OriginPattern(Pattern);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Pattern {
    /// `*`
    All,
    /// `scheme://*`
    Scheme(String),
    /// `scheme://*.domain`, at one port.
    Below {
        scheme: String,
        domain: String,
        port: Option<u16>,
    },
    One(Origin),
}

impl OriginPattern {
    /// Reads `*`, `scheme://*`, `https://*.domain`, or one origin. Case, a slash at the end and a
    /// default port do not matter.
    ///
    /// # Errors
    /// What an origin looks like.
    pub fn parse(text: &str) -> Result<Self, String> {
        let pattern = Self::read(text.trim());
        pattern.map(Self).ok_or_else(|| {
            "this is no origin of web pages; write one such as https://example.com, \
             https://*.example.com, chrome-extension://* or *, and the option once for each"
                .to_owned()
        })
    }

    fn read(text: &str) -> Option<Pattern> {
        if text == "*" {
            return Some(Pattern::All);
        }
        let text = match text.strip_suffix('/') {
            Some(shorter) if !shorter.ends_with(['/', ':']) => shorter,
            _ => text,
        };
        let (scheme, rest) = split(text)?;
        if rest == "*" {
            return Some(Pattern::Scheme(scheme));
        }
        if let Some(domain) = rest.strip_prefix("*.").filter(|_| is_web(&scheme)) {
            let authority = Authority::parse(domain)?;
            let port = authority.port_or(&scheme);
            let Host::Name(domain) = authority.host else { return None };
            return Some(Pattern::Below { scheme, domain, port });
        }
        Origin::read(text, Authority::parse).map(Pattern::One)
    }

    /// Returns whether every page is let in.
    pub(crate) fn is_all(&self) -> bool {
        self.0 == Pattern::All
    }

    fn fits(&self, origin: &Origin) -> bool {
        match &self.0 {
            Pattern::All => true,
            Pattern::Scheme(scheme) => *scheme == origin.scheme,
            Pattern::Below { scheme, domain, port } => {
                *scheme == origin.scheme
                    && *port == origin.port
                    && matches!(&origin.host, OriginHost::Web(host) if host.is_below(domain))
            }
            Pattern::One(one) => one == origin,
        }
    }
}

/// Returns whether pages of an origin may use the server that they ask as `asked`: those of
/// `allowed`, the server's own, those of this machine, and, with `lets_apps_in`, those of programs
/// on it.
pub(crate) fn may_use(
    origin: &str,
    asked: Option<&Authority>,
    allowed: &[OriginPattern],
    lets_apps_in: bool,
) -> bool {
    if allowed.iter().any(OriginPattern::is_all) {
        return true;
    }
    let Some(origin) = Origin::literal(origin) else { return false };
    allowed.iter().any(|pattern| pattern.fits(&origin))
        || asked.is_some_and(|asked| origin.is_of(asked))
        || origin.is_local()
        || (lets_apps_in && APP_SCHEMES.contains(&origin.scheme.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a server is asked under `host`, whose owner has named `own`.
    fn answers(host: &str, own: &[&str]) -> bool {
        let own: Vec<Host> = own.iter().map(|name| Host::literal(name).unwrap()).collect();
        Authority::literal(host).is_some_and(|authority| is_answered(&authority.host, &own))
    }

    /// The table of hosts that a server without keys answers to.
    #[test]
    fn hosts_that_nobody_can_let_lead_here_are_answered() {
        let own = ["box.lan", "Machine.Example.org", "ab"];
        for host in [
            "127.0.0.1",
            "127.9.9.9:8080",
            "192.168.0.1",
            "8.8.8.8:80",
            "[::1]:8080",
            "[fe80::1]",
            "[2001:db8::1]:1",
            "[::ffff:10.0.0.1]",
            "localhost",
            "LOCALHOST:1",
            "localhost.",
            "x.localhost",
            "a.b.localhost:8080",
            "trine",
            "trine:8080",
            "ollama-1",
            "abc",
            "host.docker.internal",
            "host.docker.internal:8080",
            "a.internal.",
            "box.lan",
            "BOX.lan.:8080",
            "machine.example.org",
            "ab",
        ] {
            assert!(answers(host, &own), "{host}");
        }
        for host in [
            "",
            "0.0.0.0",
            "0.0.0.0:8080",
            "[::]",
            "[::]:8080",
            "[::ffff:0.0.0.0]",
            "2130706433",
            "0x7f000001",
            "127.1",
            "0177.0.0.1",
            "ai",
            "to",
            "x",
            "rebind.example:8080",
            "7f000001.c0a80001.rbndr.us",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "127.0.0.1@evil",
            "evil@127.0.0.1",
            "evil.com:80@localhost",
            "[localhost]",
            "[127.0.0.1]",
            "[box.lan]",
            "localhost:evil",
            "127.0.0.1:99999",
            "localhost\\evil",
            "localhost%00",
            "%6c%6f%63alhost",
            "[fe80::1%25lo]",
            "localhost/evil",
            "localhost,evil.com",
            "printer.local",
            "box.home.arpa",
            "evilbox.lan",
            "a.box.lan",
            "internal.example",
            "evilinternal.com",
            "localhost..",
        ] {
            assert!(!answers(host, &own), "{host}");
        }
    }

    fn may(origin: &str, asked: &str, allowed: &[&str]) -> bool {
        let allowed: Vec<_> = allowed.iter().map(|it| OriginPattern::parse(it).unwrap()).collect();
        may_use(origin, Authority::literal(asked).as_ref(), &allowed, true)
    }

    #[test]
    fn pages_of_this_machine_and_of_the_server_are_let_in() {
        for (origin, asked) in [
            ("http://localhost:3000", "127.0.0.1:8080"),
            ("https://127.0.0.1:8080", "127.0.0.1:8080"),
            ("http://[::1]:1", "localhost"),
            ("http://app.localhost:5173", "localhost:8080"),
            ("http://0.0.0.0:3000", "localhost:8080"),
            ("http://192.168.0.7:8080", "192.168.0.7:8080"),
            ("http://trine:8080", "TRINE.:8080"),
            ("http://box.lan", "box.lan:80"),
            ("https://box.lan", "box.lan"),
            // Ollama's list.
            ("app://obsidian.md", "localhost:8080"),
            ("file://", "localhost:8080"),
            ("tauri://localhost", "localhost:8080"),
            ("vscode-webview://1a2b-x", "localhost:8080"),
            ("vscode-file://vscode-app", "localhost:8080"),
        ] {
            assert!(may(origin, asked, &[]), "{origin} {asked}");
        }
        for (origin, asked) in [
            ("null", "localhost"),
            ("", "localhost"),
            ("https://evil.example", "localhost"),
            ("http://localhost.evil.example", "localhost"),
            ("http://evil@localhost", "localhost"),
            ("http://127.0.0.1:abc", "127.0.0.1"),
            ("http://2130706433", "127.0.0.1"),
            ("http://192.168.0.7:3000", "192.168.0.7:8080"),
            ("https://192.168.0.7", "192.168.0.7:80"),
            ("http://192.168.0.8:8080", "192.168.0.7:8080"),
            ("ftp://localhost", "localhost"),
            ("chrome-extension://abc", "localhost"),
            ("app://", "localhost"),
            ("file", "localhost"),
        ] {
            assert!(!may(origin, asked, &[]), "{origin} {asked}");
        }
        assert!(!may_use("app://obsidian.md", None, &[], false), "keys are asked for");
    }

    #[test]
    fn patterns_fit_origins_as_values() {
        let asked = "localhost:8080";
        for (pattern, fitting, others) in [
            ("*", &["https://evil.example", "null", "moz-extension://a-b"][..], &[][..]),
            (
                "https://example.com/",
                &["https://example.com"],
                &["http://example.com", "https://a.example.com"],
            ),
            ("HTTPS://Example.com:443", &["https://example.com"], &["https://example.com:8443"]),
            ("https://b\u{fc}cher.example", &["https://xn--bcher-kva.example"], &[]),
            (
                "chrome-extension://*",
                &["chrome-extension://abc"],
                &["moz-extension://abc", "https://a.example"],
            ),
            ("moz-extension://1-A/", &["moz-extension://1-a"], &["moz-extension://1-b"]),
            (
                "https://*.example.com",
                &["https://a.example.com", "https://a.b.example.com"],
                &[
                    "https://example.com",
                    "https://evilexample.com",
                    "http://a.example.com",
                    "https://a.example.com:8443",
                    "https://a.example.com.evil.org",
                ],
            ),
            ("http://*.lan:3000", &["http://box.lan:3000"], &["http://box.lan"]),
            ("https://*", &["https://a.example:8443"], &["http://a.example"]),
        ] {
            for origin in fitting {
                assert!(may(origin, asked, &[pattern]), "{pattern} {origin}");
            }
            for origin in others {
                assert!(!may(origin, asked, &[pattern]), "{pattern} {origin}");
            }
        }
        for text in [
            "",
            "example.com",
            "https://",
            "https:///",
            "https://a.com,https://b.com",
            "https://a.com https://b.com",
            "http://192.168.1.*:3000",
            "https://*.*.example.com",
            "https://a*.example.com",
            "https://*example.com",
            "https://*.",
            "https://*.1.2.3.4",
            "https://example.com/path",
            "https://me@example.com",
            "https://example.com:",
            "https://example.com:99999",
            "https://example.com:*",
            "*://example.com",
            "null",
            "https://exa mple.com",
            "://a",
            "app://",
        ] {
            let error = OriginPattern::parse(text).unwrap_err();
            assert!(error.contains("https://*.example.com"), "{text}");
        }
    }
}
