//! What the cores run, by the family of kernels that it is known to be.
//!
//! A proof of a whole stream is one for the streams of a family, and the part of it inside of the
//! array holds only with the family's own program in the cores. So a stream and a program are
//! brought together by their family, and a program is of a family by its SHA-256.

use std::fmt;

use crate::hash::sha256;
use crate::kernel::Family;

/// A program for the cores: a PDI and the family whose streams it takes.
#[derive(Clone, PartialEq, Eq)]
pub struct CoreProgram {
    pdi: Vec<u8>,
    family: Family,
    is_stand_in: bool,
}

impl CoreProgram {
    /// Takes the program that AMD published for a family.
    ///
    /// # Errors
    ///
    /// Returns an error if the PDI is any other.
    pub fn published(pdi: &[u8], family: Family) -> Result<Self, ForeignPdi> {
        let found = sha256(pdi);
        if found != family.pdi_sha256() {
            return Err(ForeignPdi { family, found });
        }
        Ok(Self { pdi: pdi.to_vec(), family, is_stand_in: false })
    }

    /// Takes any bytes in the place of a family's program, for a model of the array.
    ///
    /// No context is made with it on a device: only a driver that says it is trine's model gives
    /// one ([`DriverError::StandIn`](crate::driver::DriverError::StandIn)).
    #[must_use]
    pub fn stand_in(pdi: &[u8], family: Family) -> Self {
        Self { pdi: pdi.to_vec(), family, is_stand_in: true }
    }

    /// Returns the PDI.
    #[must_use]
    pub fn pdi(&self) -> &[u8] {
        &self.pdi
    }

    /// Returns the family.
    #[must_use]
    pub fn family(&self) -> Family {
        self.family
    }

    /// Returns whether it is for a model only.
    #[must_use]
    pub fn is_stand_in(&self) -> bool {
        self.is_stand_in
    }
}

impl fmt::Debug for CoreProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pdi, family, is_stand_in } = self;
        let mut debug = f.debug_struct("CoreProgram");
        debug.field("family", family).field("is_stand_in", is_stand_in);
        debug.field("bytes", &pdi.len()).finish_non_exhaustive()
    }
}

/// A PDI is not the program of a family.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the cores' program has the SHA-256 {found}, and streams of {family} are proven for {}. Make \
     the pack again of AMD's published file with `trine npu pack`",
    family.pdi_sha256()
)]
pub struct ForeignPdi {
    /// The family whose program was expected.
    pub family: Family,
    /// The SHA-256 of the PDI.
    pub found: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_foreign_pdi_is_no_published_program() {
        for family in Family::ALL {
            let error = CoreProgram::published(b"another", family).unwrap_err();
            assert_eq!(error.found, sha256(b"another"));
            assert!(error.to_string().contains(family.pdi_sha256()), "{error}");
            let cores = CoreProgram::stand_in(b"another", family);
            assert!(cores.is_stand_in() && cores.family() == family);
        }
    }
}
