//! API keys.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use sha2::{Digest, Sha256};
use subtle::{Choice, ConstantTimeEq};

/// Longest key looked at, in bytes.
const KEY_BYTES_MAX: usize = 4096;
/// Fewest bytes of a key that nobody guesses: as hexadecimal digits they are 64 bits.
pub const KEY_BYTES_WANTED: usize = 16;
/// Wrong keys that an address may send in [`WINDOW`] before it is told to wait.
const WRONG_MAX: u32 = 30;
const WINDOW: Duration = Duration::from_secs(60);
/// Number of addresses that are counted at once.
const ADDRESSES_MAX: usize = 4096;

/// The API keys, as the SHA-256 of each. A comparison takes the same time whatever is compared.
#[derive(Clone)]
pub struct Keys {
    digests: Vec<[u8; 32]>,
    /// Number of keys with fewer than [`KEY_BYTES_WANTED`] bytes.
    short: usize,
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Keys").field("count", &self.digests.len()).finish()
    }
}

impl Keys {
    /// Reads the keys of a file's text, one per line; empty lines and lines that begin with `#` are
    /// skipped.
    ///
    /// # Errors
    /// A message if there is no key, or if a line cannot be sent as one.
    pub fn parse(text: &str) -> Result<Self, String> {
        let lines = text.lines().map(str::trim).enumerate();
        let (mut digests, mut short) = (Vec::new(), 0);
        for (index, key) in lines.filter(|(_, key)| !key.is_empty() && !key.starts_with('#')) {
            if key.len() > KEY_BYTES_MAX || !key.bytes().all(|byte| byte.is_ascii_graphic()) {
                return Err(format!(
                    "line {} is not a key: use visible ASCII characters without spaces, at most \
                     {KEY_BYTES_MAX}",
                    index + 1
                ));
            }
            let digest = Sha256::digest(key.as_bytes()).into();
            if !digests.contains(&digest) {
                short += usize::from(key.len() < KEY_BYTES_WANTED);
                digests.push(digest);
            }
        }
        if digests.is_empty() {
            return Err("there is no key in it; write one on a line".to_owned());
        }
        Ok(Self { digests, short })
    }

    /// Returns how many keys have fewer than [`KEY_BYTES_WANTED`] bytes.
    pub fn short(&self) -> usize {
        self.short
    }

    /// Returns whether there is more than one key.
    pub(crate) fn are_several(&self) -> bool {
        self.digests.len() > 1
    }

    /// Returns the digest of the key that a request carries as `Authorization: Bearer` or
    /// `x-api-key`, if it is one of these keys.
    pub(crate) fn admit(&self, headers: &HeaderMap) -> Option<[u8; 32]> {
        let bearer = headers.get(AUTHORIZATION).and_then(|value| {
            let (scheme, key) = value.as_bytes().split_at_checked(7)?;
            scheme.eq_ignore_ascii_case(b"bearer ").then(|| key.trim_ascii())
        });
        let named = headers.get("x-api-key").map(|value| value.as_bytes());
        [bearer, named].into_iter().flatten().find_map(|key| self.find(key))
    }

    fn find(&self, key: &[u8]) -> Option<[u8; 32]> {
        if key.len() > KEY_BYTES_MAX {
            return None;
        }
        let digest: [u8; 32] = Sha256::digest(key).into();
        let found = self.digests.iter().map(|known| known.ct_eq(&digest));
        let is_known: bool = found.fold(Choice::from(0), |found, this| found | this).into();
        is_known.then_some(digest)
    }
}

/// Returns what stands for a client's address where clients are counted: the address of IPv4, and
/// of IPv6 the network of 64 bits, which one subscriber has whole (RFC 6177).
pub(crate) fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            IpAddr::from([a, b, c, d, 0, 0, 0, 0])
        }
        address => address,
    }
}

/// Counts wrong keys by [network](network_of).
#[derive(Debug, Default)]
pub(crate) struct WrongKeys {
    by_network: Mutex<HashMap<IpAddr, (Instant, u32)>>,
}

impl WrongKeys {
    /// Counts a wrong key; returns false if there were too many. While the table is full, new
    /// addresses have had too many already: those that are counted stay counted.
    pub(crate) fn note(&self, address: IpAddr) -> bool {
        let network = network_of(address);
        let mut by_network = self.by_network.lock().unwrap_or_else(PoisonError::into_inner);
        if by_network.len() >= ADDRESSES_MAX && !by_network.contains_key(&network) {
            by_network.retain(|_, (since, _)| since.elapsed() < WINDOW);
            if by_network.len() >= ADDRESSES_MAX {
                return false;
            }
        }
        let (since, count) = by_network.entry(network).or_insert_with(|| (Instant::now(), 0));
        if since.elapsed() >= WINDOW {
            (*since, *count) = (Instant::now(), 0);
        }
        *count = count.saturating_add(1);
        *count <= WRONG_MAX
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn header(name: &'static str, value: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(name.parse().unwrap(), HeaderValue::from_static(value))])
    }

    #[test]
    fn only_whole_keys_are_admitted() {
        let keys = Keys::parse("# ours\n\nalpha-1\n  beta-2  \n").unwrap();
        assert_eq!(keys.short(), 2);
        assert_eq!(Keys::parse("0123456789abcdef\na\n").unwrap().short(), 1);
        for (name, value) in [
            ("authorization", "Bearer alpha-1"),
            ("authorization", "bearer  beta-2"),
            ("x-api-key", "beta-2"),
        ] {
            assert!(keys.admit(&header(name, value)).is_some(), "{name}: {value}");
        }
        for (name, value) in [
            ("authorization", "Bearer alpha-"),
            ("authorization", "Bearer alpha-11"),
            ("authorization", "Basic alpha-1"),
            ("authorization", "Bearer"),
            ("authorization", "Bearer # ours"),
            ("x-api-key", ""),
            ("x-api-keys", "beta-2"),
        ] {
            assert!(keys.admit(&header(name, value)).is_none(), "{name}: {value}");
        }
    }

    #[test]
    fn files_without_usable_keys_are_refused() {
        for text in ["", "\n# a\n", "two words", "ümlaut"] {
            assert!(Keys::parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn too_many_wrong_keys_are_noticed() {
        let wrong = WrongKeys::default();
        let address = IpAddr::from([127, 0, 0, 1]);
        assert!((0..WRONG_MAX).all(|_| wrong.note(address)));
        assert!(!wrong.note(address));
        assert!(wrong.note(IpAddr::from([127, 0, 0, 2])));
    }

    #[test]
    fn neither_many_addresses_nor_a_network_gets_more_attempts() {
        let wrong = WrongKeys::default();
        let address = |host: u16| IpAddr::from([0x2001, 0xdb8, 1, 2, 0, 0, 0, host]);
        assert!((0..30).all(|host| wrong.note(address(host))), "a network has 30 attempts");
        assert!(!wrong.note(address(30)));
        for index in 0..10_000_u32 {
            wrong.note(IpAddr::from(0x0a00_0000_u32.wrapping_add(index).to_be_bytes()));
        }
        assert!(!wrong.note(address(31)), "what was counted stays counted");
        assert!(!wrong.note(IpAddr::from([192, 0, 2, 1])), "a full table takes nobody new");
        assert_eq!(wrong.by_network.lock().unwrap().len(), ADDRESSES_MAX);
    }
}
