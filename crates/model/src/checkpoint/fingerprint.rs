//! Identifies a model by its numbers, for files that hold its results.

use sha2::{Digest, Sha256};
use trine_weights::Tensor;

use crate::checkpoint::model::Model;
use crate::checkpoint::tower_names as names;

/// The most bytes of a tensor that is hashed whole: norms, and all matrices of small models.
const WHOLE: usize = 64 << 10;
/// The number of pieces of a larger tensor that are hashed, spread evenly, including the first and
/// the last bytes.
const PIECES: usize = 16;
/// The bytes of a piece.
const PIECE: usize = 4 << 10;

impl Model {
    /// Returns the SHA-256 of everything that determines the model's numbers: its configuration,
    /// the formats in which it is run, and for each tensor its name, format, shape and a sample of
    /// its bytes.
    ///
    /// Only a sample, because a file of 16 GB takes many seconds to read. Every deliberate change
    /// of a model shows in it: further training changes nearly all numbers, an adapter that is
    /// merged into a matrix nearly all of that matrix, another quantisation the formats or the
    /// numbers of whole tensors. Only an edit of single numbers by hand that misses every piece
    /// does not show.
    pub fn fingerprint(&self) -> [u8; 32] {
        let mut hash = Sha256::new();
        hash.update(format!("{:?}, {}\n", self.config(), self.norm_offset()));
        for weight in self.base_plan().weights {
            hash.update(format!("{weight:?}\n"));
        }
        for (name, tensor) in self.tensors() {
            hash.update(format!("{name}, {}, {:?}\n", tensor.dtype(), tensor.shape()));
            sample(tensor, &mut hash);
            tensor.factors().iter().for_each(|factor| hash.update(factor.to_le_bytes()));
        }
        hash.finalize().into()
    }

    /// Returns what tells the vision tower apart from others, in the same way; `None` if the model
    /// has none.
    pub fn tower_fingerprint(&self) -> Option<[u8; 32]> {
        let tower = self.tower()?;
        let mut hash = Sha256::new_with_prefix("tower\n");
        hash.update(format!("{:?}, {}\n", tower.config(), tower.offset(names::SOFT_NORM)));
        // Limits and factors are tensors in files and numbers in Plans. Fusion is left out: its
        // rules may change.
        let plan = tower.plan(false);
        for step in &plan.steps {
            hash.update(format!("{:?}\n", step.op));
        }
        for weight in plan.weights {
            let tensor = self.tensor(&weight);
            hash.update(format!("{weight:?}, {:?}\n", tensor.shape()));
            sample(tensor, &mut hash);
            tensor.factors().iter().for_each(|factor| hash.update(factor.to_le_bytes()));
        }
        Some(hash.finalize().into())
    }
}

fn sample(tensor: &Tensor, hash: &mut Sha256) {
    let bytes = tensor.bytes();
    if bytes.len() <= WHOLE {
        hash.update(bytes);
        return;
    }
    let last = bytes.len() - PIECE;
    for piece in 0..PIECES {
        // The products are of sizes below 2^60.
        let start = last / (PIECES - 1) * piece + last % (PIECES - 1) * piece / (PIECES - 1);
        hash.update(&bytes[start..start + PIECE]);
    }
}

#[cfg(test)]
mod tests {
    use trine_weights::DType;

    use super::*;

    fn of(bytes: Vec<u8>) -> [u8; 32] {
        let shape = [bytes.len() / 4];
        let tensor = Tensor::from_owned("a", DType::F32, &shape, bytes).unwrap();
        let mut hash = Sha256::new();
        sample(&tensor, &mut hash);
        hash.finalize().into()
    }

    #[test]
    fn samples_reach_from_the_first_byte_to_the_last() {
        for size in [WHOLE, WHOLE + 4, 3 * WHOLE + 20] {
            let bytes = vec![7; size];
            for at in [0, size - 1] {
                let mut other = bytes.clone();
                other[at] = 8;
                assert_ne!(of(bytes.clone()), of(other), "{size} bytes, the one at {at}");
            }
        }
        let mut other = vec![7; WHOLE];
        other[WHOLE / 2] = 8;
        assert_ne!(of(vec![7; WHOLE]), of(other), "a small tensor is hashed whole");
    }
}
