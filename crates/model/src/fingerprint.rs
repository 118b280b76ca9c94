//! Which model this is, told by its numbers: for files that hold what it computed.

use sha2::{Digest, Sha256};
use trine_weights::Tensor;

use crate::model::Model;

/// Most bytes of a tensor that is hashed whole: norms, and all matrices of small models.
const WHOLE: usize = 64 << 10;
/// Pieces that are hashed of larger ones, spread evenly, the first and the last bytes among them.
const PIECES: usize = 16;
/// Bytes of a piece.
const PIECE: usize = 4 << 10;

impl Model {
    /// SHA-256 of what decides the model's numbers: its configuration, the formats it is run in, and for each tensor its name,
    /// format, shape and a sample of its bytes.
    ///
    /// A sample, because a file of 16 GB takes many seconds to read. Whatever is made of a model on purpose differs in it: another
    /// training changes nearly all numbers, an adapter that is merged into a matrix nearly all of that matrix, another
    /// quantisation the formats or the numbers of whole tensors. What it does not see is an edit of single numbers by hand that misses
    /// every piece.
    pub fn fingerprint(&self) -> [u8; 32] {
        let mut hash = Sha256::new();
        hash.update(format!("{:?}, {}\n", self.config(), self.norm_offset()));
        for weight in self.base_plan().weights {
            hash.update(format!("{weight:?}\n"));
        }
        for (name, tensor) in self.tensors() {
            hash.update(format!("{name}, {}, {:?}\n", tensor.dtype(), tensor.shape()));
            sample(tensor, &mut hash);
        }
        hash.finalize().into()
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
        // Products of sizes below 2^60.
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
