//! Who sent a request, as far as prefixes and turns are concerned.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;

use trine_engine::{ClientId, Scope};

/// Who sent a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Visitor {
    /// The scope of the prefixes that the request may use.
    pub(crate) scope: Scope,
    /// Whose turn it takes.
    pub(crate) client: ClientId,
}

/// Returns whose turn the requests with a key take.
pub(crate) fn of_key(digest: &[u8; 32]) -> ClientId {
    of(("key", digest))
}

/// Returns whose turn the requests from an address take. A network of IPv6 is one client: its owner
/// has 2^64 addresses (RFC 4291, 2.5.4).
pub(crate) fn of_address(address: IpAddr) -> ClientId {
    match address.to_canonical() {
        IpAddr::V4(address) => of(("IPv4", address.octets())),
        IpAddr::V6(address) => of(("IPv6", &address.octets()[..8])),
    }
}

fn of(name: impl Hash) -> ClientId {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    ClientId(hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_keys_addresses_and_networks() {
        let address = |text: &str| of_address(text.parse().unwrap());
        assert_eq!(address("192.0.2.1"), address("::ffff:192.0.2.1"));
        assert_ne!(address("192.0.2.1"), address("192.0.2.2"));
        assert_eq!(address("2001:db8:1:2::1"), address("2001:db8:1:2:ffff::9"));
        assert_ne!(address("2001:db8:1:2::1"), address("2001:db8:1:3::1"));
        assert_ne!(of_key(&[1; 32]), of_key(&[2; 32]));
    }
}
