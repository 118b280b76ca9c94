//! How attention of large heads whose subgroups share scores and columns is laid out on a device:
//! `shaders/attend_wide.comp`.

use trine_model::KvType;

use super::{Attention, KV_BLOCK};
use crate::capabilities::Capabilities;
use crate::kernels::heads::DIM_MAX;

/// Vectors of a left factor.
const VECTORS: u32 = 16;
/// Invocations of a subgroup.
const LANES: u32 = 32;
/// Most values of a left factor's sums that an invocation's registers hold, times left factors.
const SUMS_MAX: u32 = 256;

/// Elements of a key that are loaded at a time.
const KEY_PIECE: u32 = 32;

/// Smallest heads for which it is worth it: sums of smaller ones leave registers for more vectors.
const DIM_MIN: usize = 256;

/// Shape of the kernel for many rows with large heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AttendWideShape {
    /// Query heads of a workgroup, which share a key head: a power of two up to 16.
    pub queries: u32,
    /// Left factors of a band of vectors.
    pub lefts: u32,
    /// Bands of vectors of a workgroup.
    pub bands: u32,
    /// Subgroups of a band: parts of a step's keys, and of the columns of the result.
    pub parts: u32,
    /// Keys of a step.
    pub keys: u32,
    /// Pieces of keys that are loaded before their turn: 0, 1 or 3.
    pub keys_ahead: u32,
    /// Groups of values that are loaded before their turn: 0 or 1.
    pub values_ahead: u32,
}

impl AttendWideShape {
    /// Returns what suits a device for about this many rows, or `None` if the kernel cannot do it
    /// or if there are fewer workgroups than three for two cores: those of
    /// [`super::AttendDirectShape`] share keys.
    pub fn suited(
        capabilities: &Capabilities,
        attention: &Attention,
        kind: KvType,
        rows: usize,
    ) -> Option<Self> {
        let dim = attention.heads.dim;
        let shape = Self {
            queries: (1 << attention.shared().trailing_zeros()).min(VECTORS),
            lefts: 2,
            bands: 1,
            parts: 4,
            keys: 4 * KV_BLOCK as u32,
            keys_ahead: u32::from(dim <= DIM_MIN),
            values_ahead: u32::from(dim <= DIM_MIN),
        };
        // Workgroups of a window are alike, so that fewer and larger ones are as even.
        let larger = Self { lefts: 4, keys: 2 * KV_BLOCK as u32, keys_ahead: 0, ..shape };
        let vectors = (rows * attention.heads.query) as u32;
        let fills = |shape: &Self| {
            2 * vectors / shape.vectors() >= 3 * capabilities.cores_or_guess()
                && shape.runs(capabilities, attention, kind)
        };
        let both = [attention.window.map(|_| larger), Some(shape)];
        both.into_iter().flatten().find(|shape| dim >= DIM_MIN && fills(shape))
    }

    /// Returns whether a device can run the shape.
    pub fn runs(&self, capabilities: &Capabilities, attention: &Attention, kind: KvType) -> bool {
        let Self { queries, lefts, bands, parts, keys, keys_ahead, values_ahead } = *self;
        let dim = attention.heads.dim as u32;
        capabilities.fragments
            && kind == KvType::F16
            && attention.heads.dim <= DIM_MAX
            && [1, 2, 4].contains(&parts)
            && [1, 2, 4].contains(&lefts)
            && bands >= 1
            && dim.is_multiple_of(64 * parts)
            && lefts * dim / parts <= SUMS_MAX
            && keys.is_multiple_of((VECTORS * parts).max(KV_BLOCK as u32))
            && keys <= 4 * KV_BLOCK as u32
            && keys / parts <= KV_BLOCK as u32
            && [0, 1, 3].contains(&keys_ahead)
            // The first pieces of a step are loaded where its turns look for them.
            && (dim / KEY_PIECE).is_multiple_of(keys_ahead + 1)
            && values_ahead <= 1
            && queries.is_power_of_two()
            && queries <= VECTORS
            && (attention.shared() as u32).is_multiple_of(queries)
            && self.local() <= capabilities.invocations
            && self.shared_bytes(dim) <= capabilities.shared_bytes
    }

    /// Returns the rows of a workgroup.
    pub(super) fn rows(&self) -> u32 {
        self.vectors() / self.queries
    }

    /// Returns the workgroups that share a tile of rows.
    pub(super) fn pieces(&self, attention: &Attention) -> u32 {
        (attention.tile_rows as u32).div_ceil(self.rows())
    }

    fn vectors(&self) -> u32 {
        VECTORS * self.lefts * self.bands
    }

    fn local(&self) -> u32 {
        LANES * self.bands * self.parts
    }

    /// Returns the bytes of shared memory: queries, weights of a step, and what is known of each
    /// vector.
    fn shared_bytes(&self, dim: u32) -> u32 {
        self.vectors() * (2 * dim + 2 * self.keys + 32)
    }

    /// Returns the specialisation constants, in the order of their numbers in the shader. `output`:
    /// 0 for f32, 1 for halves, 2 for fragments.
    pub(super) fn constants(&self, attention: &Attention, output: u32) -> Vec<u32> {
        let heads = attention.heads;
        vec![
            self.local(),
            heads.dim as u32,
            heads.query as u32,
            heads.kv as u32,
            self.queries,
            output,
            self.lefts,
            self.parts,
            self.keys,
            self.keys_ahead,
            self.values_ahead,
            self.pieces(attention),
        ]
    }
}
