//! Which requests share prefixes.

use std::fmt;

use sha2::{Digest, Sha256};

/// Requests of one scope reuse what they have in common; those of different scopes never do,
/// neither in memory nor on disk. So neither counts of reused tokens nor times reveal the prompts
/// of one scope to another.
///
/// The default is a scope like any other: that of all requests that name none.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Scope([u8; 32]);

impl Scope {
    /// Returns the scope of a name within this one. Different names give different scopes, and none
    /// of them is the default.
    pub fn within(self, name: &[u8]) -> Self {
        let hash = Sha256::new_with_prefix("trine scope\n").chain_update(self.0).chain_update(name);
        Self(hash.finalize().into())
    }

    /// Returns the digest under which this scope knows what has a digest: another one in each
    /// scope, and the same in the default one. What is kept by it serves one scope only.
    pub fn digest(self, digest: [u8; 32]) -> [u8; 32] {
        if self == Self::default() { digest } else { self.within(&digest).0 }
    }

    pub(crate) fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for Scope {
    /// Does not print the scope, because names may be keys.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(if *self == Self::default() { "Scope(default)" } else { "Scope(..)" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_make_scopes() {
        let all = Scope::default();
        let scopes = [
            all,
            all.within(b""),
            all.within(b"a"),
            all.within(b"b"),
            all.within(b"a").within(b"b"),
        ];
        for (index, scope) in scopes.iter().enumerate() {
            assert_eq!(scopes.iter().position(|other| other == scope), Some(index));
        }
        assert_eq!(all.within(b"a"), all.within(b"a"));
        let digests = scopes.map(|scope| scope.digest([7; 32]));
        assert_eq!(digests[0], [7; 32]);
        for (index, digest) in digests.iter().enumerate() {
            assert_eq!(digests.iter().position(|other| other == digest), Some(index));
        }
        assert_ne!(scopes[1].digest([8; 32]), digests[1]);
        assert_eq!(format!("{:?}", all.within(b"secret")), "Scope(..)");
    }
}
