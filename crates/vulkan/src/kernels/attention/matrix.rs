//! Attention of many rows with cooperative matrices: `shaders/attend_matrix.comp`,
//! `attend_direct.comp`, `attend_wide.comp`.

use trine_model::KvType;

use super::direct::{AttendDirectShape, SUMS_MAX};
use super::tile::TileArgs;
use super::wide::AttendWideShape;
use super::{Attention, CacheSpan, KV_BLOCK, kv_number};
use crate::capabilities::{Capabilities, CooperativeShape, DeviceKind, Element};
use crate::compiler::Compiler;
use crate::dispatch::{Dispatch, Link, Push};
use crate::error::GpuError;
use crate::kernels::handles::{Addresses, Handles, Made, Role, Visitor, spans};
use crate::kernels::operand::{Operand, OperandKind};
use crate::raw::pipeline::KernelKey;
use crate::shaders::Shader;

/// Largest head dimension.
pub const UNITS_DIM_MAX: usize = 512;
/// Most invocations of a workgroup.
const LOCAL_MAX: u32 = 256;

/// Subgroups that shared memory should have room for on an integrated GPU: two for each of the four
/// vector units of a workgroup processor.
const RESIDENT: u32 = 8;

/// Returns whether heads that are cut into shares consist of whole factors of `n` and `k` elements;
/// those that are not cut are filled up.
fn divides(dim: u32, shares: u32, n: u32, k: u32) -> bool {
    shares == 1 && dim.is_multiple_of(8)
        || dim.is_multiple_of(shares * n) && dim.is_multiple_of(n) && dim.is_multiple_of(k)
}

/// How the work is laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AttendMatrixShape {
    /// Shape of a matrix product: (m, n, k).
    pub product: (u32, u32, u32),
    /// Invocations of a subgroup: a multiple of m.
    pub subgroup: u32,
    /// Subgroups of a workgroup.
    pub subgroups: u32,
    /// Query heads of a workgroup; a divisor of the number that share a key head.
    pub queries: u32,
    /// Keys in shared memory at a time; divides 32.
    pub keys: u32,
    /// Whether queries stay in registers; otherwise in shared memory.
    pub kept: bool,
    /// Parts of a head's result, each by workgroups of its own that compute the scores again.
    pub shares: u32,
}

impl AttendMatrixShape {
    /// Returns what suits a device, or `None` if it lacks the matrices for heads of this size.
    pub fn suited(capabilities: &Capabilities, attention: &Attention) -> Option<Self> {
        Self::candidates(capabilities, attention).into_iter().next()
    }

    /// Returns what a device can run, the shape that is probably best first.
    pub fn candidates(capabilities: &Capabilities, attention: &Attention) -> Vec<Self> {
        let (subgroup, dim) = (capabilities.subgroup, attention.heads.dim as u32);
        let shares = attention.heads.dim.div_ceil(SUMS_MAX) as u32;
        // Matrices of AMD's wide subgroups hold each factor twice.
        let kept = dim <= 128 || subgroup <= 32 && shares == 1;
        let fits = |product: &&CooperativeShape| {
            let CooperativeShape { m, n, k, input, output } = **product;
            let halves = input == Element::F16 && output == Element::F32;
            let whole =
                [n, k].iter().all(|side| side.is_multiple_of(8)) && divides(dim, shares, n, k);
            halves && whole && subgroup.is_multiple_of(m) && [n, k].iter().all(|&side| side <= 32)
        };
        let mut products: Vec<_> = capabilities.cooperative.iter().filter(fits).collect();
        products.sort_by_key(|product| std::cmp::Reverse((product.n * product.k, product.m)));
        products.dedup();
        let mut found = Vec::new();
        for &&CooperativeShape { m, n, k, .. } in &products {
            for keys in [32, 16, 8] {
                for queries in (1..=attention.shared() as u32).rev() {
                    if !attention.shared().is_multiple_of(queries as usize) {
                        continue;
                    }
                    // All rows of a tile, or a whole fraction of them.
                    for parts in [1, 2, 4, 8] {
                        let vectors = attention.tile_rows as u32 * queries / parts;
                        if !vectors.is_multiple_of(m) || !vectors.is_multiple_of(queries) {
                            continue;
                        }
                        let (product, subgroups) = ((m, n, k), vectors / m);
                        let shape =
                            Self { product, subgroup, subgroups, queries, keys, kept, shares };
                        if shape.runs(capabilities, dim) {
                            found.push(shape);
                        }
                    }
                }
            }
        }
        // 64 to 128 vectors use each key often enough; larger workgroups leave multiprocessors
        // without work.
        let vectors = |shape: &Self| (shape.subgroups * shape.product.0).abs_diff(64);
        found.sort_by_key(|shape| (std::cmp::Reverse(shape.keys), vectors(shape)));
        if capabilities.kind == DeviceKind::Integrated {
            // The units of such devices hide the latency of memory with other workgroups, which
            // need room in shared memory.
            let enough = |shape: &Self| shape.resident(capabilities, dim) >= RESIDENT;
            found.sort_by_key(|shape| !enough(shape));
        }
        found.sort_by_key(|shape| std::cmp::Reverse(shape.product.1 * shape.product.2));
        found
    }

    /// Returns the subgroups that two workgroups' worth of shared memory has room for: that of a
    /// workgroup processor of RDNA 3.
    fn resident(&self, capabilities: &Capabilities, dim: u32) -> u32 {
        let bytes = self.shared_bytes(dim).next_multiple_of(1 << 10);
        2 * capabilities.shared_bytes / bytes * self.subgroups
    }

    pub(super) fn runs(&self, capabilities: &Capabilities, dim: u32) -> bool {
        let (_, n, k) = self.product;
        let local = self.subgroup * self.subgroups;
        self.keys.is_multiple_of(n)
            && self.keys.is_multiple_of(k)
            && dim / self.shares <= SUMS_MAX as u32
            && dim.is_multiple_of(8 * self.shares)
            && divides(dim, self.shares, n, k)
            && (1..=LOCAL_MAX.min(capabilities.invocations)).contains(&local)
            && self.shared_bytes(dim) <= capabilities.shared_bytes
    }

    /// Returns the specialisation constants, in the order of their numbers in the shader. `output`:
    /// 0 for f32, 1 for halves, 2 for fragments.
    ///
    /// # Panics
    /// If the device cannot run the shape.
    fn constants(
        &self,
        capabilities: &Capabilities,
        attention: &Attention,
        cache: &CacheSpan,
        output: u32,
    ) -> Vec<u32> {
        let heads = attention.heads;
        let Self { product: (m, n, k), subgroup, subgroups, queries, keys, kept, shares } = *self;
        let dim = heads.dim as u32;
        assert!(
            heads.dim <= UNITS_DIM_MAX
                && self.runs(capabilities, dim)
                && (KV_BLOCK as u32).is_multiple_of(keys)
                && (attention.shared() as u32).is_multiple_of(queries),
            "{self:?} for heads of {dim}"
        );
        vec![
            subgroup * subgroups,
            dim,
            heads.query as u32,
            heads.kv as u32,
            kv_number(cache.kind),
            queries,
            m,
            n,
            k,
            keys,
            subgroups,
            subgroup,
            u32::from(kept),
            output,
            shares,
        ]
    }

    /// Returns the bytes of shared memory.
    fn shared_bytes(&self, dim: u32) -> u32 {
        let vectors = self.subgroups * self.product.0;
        let (_, n, k) = self.product;
        let padded = dim.next_multiple_of(n.max(k));
        let staged = self.keys * (2 * padded + 16) + padded / self.shares * (2 * self.keys + 16);
        let queries = vectors * (2 * padded + 16);
        let pool = if self.kept { staged.max(queries) } else { staged + queries };
        pool + vectors * (4 * self.keys + 16)
            + vectors * (2 * self.keys + 16)
            + 8 * self.subgroups
            + 16
    }
}

/// Which kernel attends on matrix units, and how it is laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AttendUnits {
    /// Keys, values and scores pass through shared memory: `shaders/attend_matrix.comp`.
    Staged(AttendMatrixShape),
    /// They go straight into registers whose layout is known: `shaders/attend_direct.comp`.
    Direct(AttendDirectShape),
    /// The same, and subgroups share scores and columns: `shaders/attend_wide.comp`.
    Wide(AttendWideShape),
}

impl AttendUnits {
    /// Returns what suits a device for about this many rows in at most this many tiles, or `None`
    /// if it lacks the matrices for heads of this size, or if they are larger than
    /// [`UNITS_DIM_MAX`]. Software devices would compile the kernel for heads that are cut into
    /// shares for minutes.
    pub fn suited(
        capabilities: &Capabilities,
        attention: &Attention,
        kind: KvType,
        (rows, tiles): (usize, usize),
    ) -> Option<Self> {
        let most = match capabilities.kind {
            DeviceKind::Processor => SUMS_MAX,
            _ => UNITS_DIM_MAX,
        };
        if attention.heads.dim > most {
            return None;
        }
        let wide = AttendWideShape::suited(capabilities, attention, kind, rows)
            .filter(|shape| {
                tiles * shape.pieces(attention) as usize <= capabilities.groups[1] as usize
            })
            .map(Self::Wide);
        let direct =
            || AttendDirectShape::suited(capabilities, attention, kind, rows).map(Self::Direct);
        let staged = || AttendMatrixShape::suited(capabilities, attention).map(Self::Staged);
        wide.or_else(direct).or_else(staged)
    }
}

/// A launch for many rows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MatrixLaunch<H: Handles = Addresses> {
    /// What is attended to.
    pub attention: Attention,
    /// Keys and values, those of the step's own rows included.
    pub cache: H::Cache,
    /// What the host writes for the step.
    pub frame: H::Frame,
    /// Most tiles.
    pub tiles: usize,
    /// (rows, heads x dim) f32.
    pub query: H::Rows,
    /// The result, (rows, heads x dim): f32 or, if [`Attention::gives_halves`], an operand of
    /// [`OperandKind::Halves`] or [`OperandKind::Fragments`]. Not both.
    pub made: Made<H>,
    /// How the work is laid out.
    pub shape: AttendUnits,
}

impl<H: Handles> MatrixLaunch<H> {
    /// Returns the launch over what a visitor gives for its operands.
    pub(crate) fn visit<B: Handles>(&self, by: &mut impl Visitor<H, B>) -> MatrixLaunch<B> {
        MatrixLaunch {
            attention: self.attention,
            cache: by.cache(Role::Read, self.cache),
            frame: by.frame(self.frame),
            tiles: self.tiles,
            query: by.read(self.query),
            made: self.made.visit(by),
            shape: self.shape,
        }
    }

    /// Returns what is launched.
    #[expect(clippy::unused_self, reason = "launches say their names")]
    pub(crate) fn name(&self) -> &'static str {
        "attend by tiles on matrix units"
    }
}

impl MatrixLaunch {
    /// Returns which kernel it runs.
    ///
    /// # Panics
    /// If the shape does not run on the device.
    pub fn key(&self, capabilities: &Capabilities) -> KernelKey {
        let output = match self.made.operand() {
            None => 0,
            Some(Operand { kind: OperandKind::Fragments, .. }) => 2,
            Some(_) => 1,
        };
        let (shader, constants, subgroup) = match self.shape {
            AttendUnits::Staged(shape) => {
                let constants = shape.constants(capabilities, &self.attention, &self.cache, output);
                ("attend_matrix", constants, shape.subgroup)
            }
            AttendUnits::Direct(shape) => {
                assert!(shape.runs(capabilities, &self.attention, self.cache.kind), "{shape:?}");
                let constants = shape.constants(&self.attention, self.cache.kind, output);
                ("attend_direct", constants, capabilities.subgroup)
            }
            AttendUnits::Wide(shape) => {
                assert!(shape.runs(capabilities, &self.attention, self.cache.kind), "{shape:?}");
                let constants = shape.constants(&self.attention, output);
                ("attend_wide", constants, capabilities.subgroup)
            }
        };
        KernelKey { shader: Shader(shader), constants, subgroup: Some(subgroup) }
    }

    /// Returns the dispatch of the launch.
    ///
    /// # Errors
    /// If the kernel cannot be compiled.
    ///
    /// # Panics
    /// If the device cannot run the shape.
    pub fn dispatch(
        &self,
        gpu: &dyn Compiler,
        label: &str,
        step: usize,
    ) -> Result<Dispatch, GpuError> {
        let (heads, tiles) = (self.attention.heads.query as u32, self.tiles as u32);
        let pieces = |rows: u32| (self.attention.tile_rows as u32).div_ceil(rows);
        let groups = match self.shape {
            AttendUnits::Staged(shape) => {
                let rows = shape.subgroups * shape.product.0 / shape.queries;
                [heads / shape.queries * shape.shares, tiles, pieces(rows)]
            }
            AttendUnits::Direct(shape) => {
                [heads / shape.queries * shape.shares, tiles, pieces(shape.rows())]
            }
            AttendUnits::Wide(shape) => {
                [heads / shape.queries, tiles * shape.pieces(&self.attention), 1]
            }
        };
        let (target, scales) = match self.made {
            Made::Rows(target) => (target, 0),
            Made::Operand(Operand { kind, codes, scales }) => {
                let able = self.attention.gives_halves(self.cache.kind);
                assert!(kind.is_halves() && able, "an operand in halves");
                (codes, scales.address)
            }
            Made::Both(..) => unreachable!("the kernel makes one of both"),
        };
        let (reads, writes) = spans(|look| _ = self.visit(look));
        let key = self.key(gpu.capabilities());
        let args =
            TileArgs::new(&self.attention, &self.cache, &self.frame, self.query, target, scales);
        Ok(Dispatch {
            label: label.to_owned(),
            step,
            kernel: gpu.kernel(&key)?,
            push: Push::of(&args),
            groups,
            reads,
            writes,
            link: Link::Outside,
            hands: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use trine_model::{Ahead, Heads};

    use super::super::TILE_ROWS;
    use super::*;
    use crate::capabilities::presets::radeon_780m;

    /// Two waves for each SIMD of a workgroup processor with 128 KiB.
    #[test]
    fn workgroups_on_an_integrated_gpu_leave_room_for_others() {
        let capabilities = radeon_780m();
        for (query, kv, dim) in [(32, 16, 128), (16, 8, 256), (8, 4, 256), (8, 2, 256), (4, 1, 256)]
        {
            let heads = Heads { query, kv, dim };
            let attention = Attention {
                heads,
                scale: 1.0,
                window: None,
                ahead: Ahead::All,
                tile_rows: TILE_ROWS,
            };
            let shape = AttendMatrixShape::suited(&capabilities, &attention).unwrap();
            let workgroups = (128 << 10) / shape.shared_bytes(dim as u32);
            assert!(workgroups * shape.subgroups >= 8, "{heads:?}: {shape:?}");
        }
    }
}
