//! How attention whose scores stay in the registers of matrix units is laid out on a device:
//! `shaders/attend_direct.comp`.

use trine_model::KvType;

use super::{Attention, KV_BLOCK, kv_number};
use crate::capabilities::Capabilities;
use crate::kernels::heads::DIM_MAX;

/// Vectors of a subgroup: rows of a left factor.
const VECTORS: u32 = 16;
/// Invocations of a subgroup.
const LANES: u32 = 32;
/// Most subgroups of a workgroup.
const SUBGROUPS_MAX: u32 = 8;
/// Subgroups that a core should have: as many as its registers hold at the same time, by the
/// reports on the kernel for NVIDIA's.
const SUBGROUPS_OF_CORE: u32 = 8;
/// Subgroups whose queries stay in registers share no keys if there is more than one for this many
/// that the cores hold: more of
/// them that share keys are slower then (`docs/benchmarks/gpu-kernels.md`).
const HELD_OF_UNSLICED: u32 = 3;
/// Most subgroups with keys and vectors of their own whose queries are in shared memory.
const UNKEPT_STACKED: u32 = 2;
/// Subgroups that share keys if heads are cut into shares: those of one workgroup whose queries
/// leave shared memory for two workgroups a core (`docs/benchmarks/gpu-kernels.md`).
const SLICES_OF_SHARES: u32 = 4;
/// Fewest subgroups with vectors of their own whose keys and values pass through shared memory:
/// each of fewer would store much of what it reads there.
const STAGED_MIN: u32 = 4;
/// Largest heads whose queries stay in registers: those of larger ones, with sums of as many
/// values, take more than the 255 that an invocation can have.
const KEPT_MAX: usize = 128;
/// Largest heads of which an invocation's registers hold queries and sums of two left factors.
const DOUBLED_MAX: usize = 96;
/// Most values of a head whose sums an invocation's registers hold.
pub(super) const SUMS_MAX: usize = 256;

/// Shape of the kernel for many rows that keeps scores in registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AttendDirectShape {
    /// Query heads of a workgroup, which share a key head: a power of two up to 16.
    pub queries: u32,
    /// Subgroups with vectors of their own.
    pub stacked: u32,
    /// Subgroups that share the keys of the same vectors.
    pub slices: u32,
    /// Whether queries stay in registers; otherwise in shared memory.
    pub kept: bool,
    /// Of an int8 cache: loads of keys that come a block of positions ahead, each of 16 elements.
    pub keys_ahead: u32,
    /// Of an int8 cache: times 16 keys of a block whose values are loaded before its products of
    /// keys.
    pub values_ahead: u32,
    /// Parts of a head's result, each by workgroups of its own that compute the scores again.
    pub shares: u32,
    /// Whether keys and values pass through shared memory, of an f16 cache: all subgroups have
    /// vectors of their own and go through the blocks together.
    pub staged: bool,
    /// Left factors of a subgroup, which share what it loads: 1, or 2 if keys and values pass
    /// through shared memory.
    pub lefts: u32,
}

impl AttendDirectShape {
    /// Returns what suits a device for about this many rows, or `None` if the kernel cannot do it:
    /// it takes a cache in f16 with heads of whole groups of 64 elements, or of whole eights from
    /// 64 to 128, or one in int8 with heads of whole groups of 128.
    pub fn suited(
        capabilities: &Capabilities,
        attention: &Attention,
        kind: KvType,
        rows: usize,
    ) -> Option<Self> {
        let shared = attention.shared() as u32;
        let queries = (1_u32 << shared.trailing_zeros()).min(VECTORS);
        // All vectors of a tile of rows.
        let all = attention.tile_rows as u32 * queries / VECTORS;
        let one = Self::of_one(attention, kind);
        let vectors = rows * attention.heads.query;
        let subgroups = vectors.div_ceil(VECTORS as usize) as u32 * one.shares;
        let room = SUBGROUPS_OF_CORE * capabilities.cores_or_guess();
        let slices = match one.shares {
            1 if one.kept && HELD_OF_UNSLICED * subgroups > room => 1,
            1 => room.div_ceil(subgroups.max(1)).next_power_of_two().min(SUBGROUPS_MAX),
            _ => SLICES_OF_SHARES,
        };
        // As many vectors together as a workgroup has room for, so that keys are read for more.
        // With queries in shared memory, more workgroups with fewer of them there are faster.
        let room_for = if one.kept {
            SUBGROUPS_MAX / slices
        } else if slices == 1 {
            UNKEPT_STACKED
        } else {
            1
        };
        let most = all.min(room_for);
        let stacked = std::iter::successors(Some(most), |stacked| Some(stacked / 2));
        stacked
            .take_while(|stacked| *stacked > 0)
            .map(|stacked| Self { queries, stacked, slices, ..one })
            .find(|shape| shape.runs(capabilities, attention, kind))
            .map(|shape| {
                // Smaller heads leave registers for several workgroups a core, which do not wait
                // for one another (`docs/benchmarks/gpu-kernels.md`).
                let is_small = attention.heads.dim < KEPT_MAX;
                let stacked = if is_small { shape.stacked.min(STAGED_MIN) } else { shape.stacked };
                let staged = Self { staged: stacked >= STAGED_MIN, stacked, ..shape };
                let doubled = Self { lefts: 2, ..staged };
                let fills = 2 * stacked <= all;
                [doubled, staged]
                    .into_iter()
                    .filter(|shape| fills || shape.lefts == 1)
                    .find(|shape| shape.runs(capabilities, attention, kind))
                    .unwrap_or(shape)
            })
    }

    /// Returns a shape of one subgroup and query head, with the registers that suit these heads.
    fn of_one(attention: &Attention, kind: KvType) -> Self {
        let kept = attention.heads.dim <= KEPT_MAX;
        // Half of a block's keys and values: more of them spill, and larger heads have no room
        // (`docs/benchmarks/gpu-kernels.md`).
        let ahead = u32::from(kind == KvType::Int8 && kept);
        let (keys_ahead, values_ahead) = (ahead, ahead);
        let shares = attention.heads.dim.div_ceil(SUMS_MAX) as u32;
        Self {
            queries: 1,
            stacked: 1,
            slices: 1,
            kept,
            keys_ahead,
            values_ahead,
            shares,
            staged: false,
            lefts: 1,
        }
    }

    /// Returns the shapes that differ from this one in a single respect and that a device can run.
    pub fn neighbours(
        &self,
        capabilities: &Capabilities,
        attention: &Attention,
        kind: KvType,
    ) -> Vec<Self> {
        let from = *self;
        let spread = [(1, 4), (1, 8), (2, 1), (2, 2), (2, 4), (4, 1), (4, 2), (8, 1)]
            .map(|(stacked, slices)| Self { stacked, slices, ..from });
        let ahead = [(0, 0), (1, 0), (2, 0), (0, 1), (0, 2), (1, 1), (2, 1), (2, 2)]
            .map(|(keys_ahead, values_ahead)| Self { keys_ahead, values_ahead, ..from });
        let kept = [
            Self { kept: !from.kept, ..from },
            Self { staged: !from.staged, lefts: 1, ..from },
            Self { lefts: 3 - from.lefts, ..from },
        ];
        let all = ahead.into_iter().chain(kept).chain(spread);
        all.filter(|shape| *shape != from && shape.runs(capabilities, attention, kind)).collect()
    }

    /// Returns whether a device can run the shape.
    pub(super) fn runs(
        &self,
        capabilities: &Capabilities,
        attention: &Attention,
        kind: KvType,
    ) -> bool {
        let dim = attention.heads.dim;
        let Self { queries, stacked, slices, shares, .. } = *self;
        let part = dim / shares.max(1) as usize;
        capabilities.fragments
            && match kind {
                KvType::F32 => false,
                KvType::F16 => part.is_multiple_of(64) || self.takes_tail(dim),
                KvType::Int8 => part.is_multiple_of(128),
            }
            && dim <= DIM_MAX
            && shares >= 1
            && dim.is_multiple_of(shares as usize)
            && part <= SUMS_MAX
            && (kind == KvType::Int8 || (self.keys_ahead, self.values_ahead) == (0, 0))
            && self.keys_ahead as usize <= dim / 64
            && self.values_ahead <= 2
            && queries.is_power_of_two()
            && queries <= VECTORS
            && (attention.shared() as u32).is_multiple_of(queries)
            && stacked >= 1
            && slices >= 1
            && (1..=2).contains(&self.lefts)
            && (self.lefts == 1 || self.staged && dim <= DOUBLED_MAX)
            && (VECTORS * self.lefts * stacked).is_multiple_of(queries)
            && (!self.staged || self.kept && kind == KvType::F16 && (slices, shares) == (1, 1))
            && stacked * slices * LANES <= capabilities.invocations
            && self.shared_bytes(dim) <= capabilities.shared_bytes
    }

    /// Returns whether heads may end with a part of a group: the queries' end stays in registers.
    fn takes_tail(&self, dim: usize) -> bool {
        self.kept && self.shares == 1 && dim.is_multiple_of(8) && (64..=KEPT_MAX).contains(&dim)
    }

    /// Returns the rows of a workgroup.
    pub(super) fn rows(&self) -> u32 {
        VECTORS * self.lefts * self.stacked / self.queries
    }

    /// Returns the bytes of shared memory: queries that do not stay in registers, and, of slices,
    /// scores with sums of weights and half a group of values.
    fn shared_bytes(&self, dim: usize) -> u32 {
        let subgroups = self.stacked * self.slices;
        let queries = if self.kept { 16 } else { 2 * self.stacked * VECTORS * dim as u32 };
        let joined = if self.slices > 1 { subgroups * LANES * (16 + 4 * 16) } else { 32 };
        // Two blocks of keys and values, whose rows are filled up.
        let quads = dim as u32 / 8;
        let (keys, fours) = ((quads + 3) / 8 * 8 + 4, (4 * quads + 5) / 8 * 8 + 2);
        let block = KV_BLOCK as u32 * keys + KV_BLOCK as u32 / 4 * fours;
        let blocks = if self.staged { 2 * block } else { 1 };
        queries + joined + 16 * blocks
    }

    /// Returns the specialisation constants, in the order of their numbers in the shader. `output`:
    /// 0 for f32, 1 for halves, 2 for fragments.
    pub(super) fn constants(&self, attention: &Attention, kind: KvType, output: u32) -> Vec<u32> {
        let heads = attention.heads;
        vec![
            self.stacked * self.slices * LANES,
            heads.dim as u32,
            heads.query as u32,
            heads.kv as u32,
            self.queries,
            self.slices,
            output,
            u32::from(self.kept),
            kv_number(kind),
            self.keys_ahead,
            self.values_ahead,
            self.shares,
            u32::from(self.staged),
            self.lefts,
        ]
    }
}
