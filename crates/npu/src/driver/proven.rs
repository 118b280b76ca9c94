//! Streams that may be submitted.

use crate::contract::Contract;
use crate::kernel::Family;
use crate::refusal::Refusal;
use crate::txn::Transaction;
use crate::verify::{Scope, Verifier};

/// A stream with a proof of [`Scope::Whole`]. There is no other way to make one, and nothing else
/// can be submitted.
#[derive(Debug, Clone)]
pub struct ProvenStream {
    bytes: Vec<u8>,
    contract: Contract,
    family: Family,
}

impl ProvenStream {
    /// Proves a stream. What is submitted is its canonical form.
    ///
    /// # Errors
    ///
    /// Returns why it is not safe, or that its proof covers memory only.
    pub fn new(verifier: &Verifier, stream: &Transaction) -> Result<Self, Unproven> {
        let stream = stream.canonical();
        let proof = verifier.verify(&stream).map_err(Unproven::Refused)?;
        let contract = verifier.contract().clone();
        let kernel = contract.kernel.filter(|_| proof.scope == Scope::Whole);
        let family = kernel.ok_or(Unproven::MemoryOnly)?.family();
        Ok(Self { bytes: stream.to_bytes(), contract, family })
    }

    /// Returns what is submitted.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns what the stream does with its buffers.
    #[must_use]
    pub fn contract(&self) -> &Contract {
        &self.contract
    }

    /// Returns the family whose program the cores have to run: the proof holds for no other.
    #[must_use]
    pub fn family(&self) -> Family {
        self.family
    }
}

/// Why a stream may not be submitted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Unproven {
    /// The verifier refused the stream.
    #[error(transparent)]
    Refused(Refusal),
    /// Whether the array ends is not known.
    #[error(
        "the proof covers memory only, and whether the array ends is unknown. Use a kernel whose \
         streams trine generates"
    )]
    MemoryOnly,
}
