//! Attention of many rows in plain f32 arithmetic: `shaders/attend_tile.comp`.

use bytemuck::{Pod, Zeroable};

use super::{Attention, CacheSpan, FrameAddresses, kv_number, power_up_to};
use crate::capabilities::{Capabilities, DeviceKind};
use crate::compiler::Compiler;
use crate::dispatch::{Dispatch, Link, Push, Span};
use crate::error::GpuError;
use crate::kernels::handles::{Addresses, Handles, Role, Visitor, spans};
use crate::kernels::heads::DIM_MAX;
use crate::raw::pipeline::KernelKey;
use crate::shaders::Shader;

/// Most rows of a tile where query heads share keys, each of which is then used for all of these
/// rows and heads.
pub const TILE_ROWS: usize = 32;
/// Bytes of shared memory for keys and values.
const STAGED_BYTES: usize = 28 << 10;

/// How the work is laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AttendTileShape {
    /// Invocations of a workgroup: a multiple of the subgroup.
    pub local: u32,
    /// Most invocations that share a row: a power of two, at most a subgroup.
    pub lanes: u32,
    /// Rows of a team of lanes.
    pub rows: u32,
    /// Most keys between two checks of the highest score.
    pub batch: u32,
}

impl AttendTileShape {
    /// Returns what suits a device. An invocation holds its part of the query and of the sum of
    /// each row: at most 128 values of both, where a subgroup has 16 invocations or more.
    pub fn suited(capabilities: &Capabilities, attention: &Attention) -> Self {
        let software = capabilities.kind == DeviceKind::Processor;
        let lanes = if attention.heads.dim > 256 { 16 } else { 8 };
        Self { local: if software { 64 } else { 128 }, lanes, rows: 2, batch: 4 }
    }
}

/// A launch for many rows. See [`super::MatrixLaunch`] for devices with cooperative matrices.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TileLaunch<H: Handles = Addresses> {
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
    /// (rows, heads x dim) f32.
    pub target: H::Rows,
    /// How the work is laid out.
    pub shape: AttendTileShape,
}

/// Arguments of both kernels for many rows; the one in plain arithmetic does not use the last.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub(super) struct TileArgs {
    frame: u64,
    tables: u64,
    tiles: u64,
    cache: u64,
    query: u64,
    target: u64,
    ring: u32,
    window: u32,
    scale: f32,
    ahead: u32,
    scales: u64,
}

impl TileArgs {
    pub(super) fn new(
        attention: &Attention,
        cache: &CacheSpan,
        frame: &FrameAddresses,
        query: Span,
        target: Span,
        scales: u64,
    ) -> Self {
        Self {
            frame: frame.frame,
            tables: frame.tables,
            tiles: frame.tiles,
            cache: cache.span.address,
            query: query.address,
            target: target.address,
            ring: cache.ring_blocks,
            window: attention.window_argument(),
            scale: attention.scale,
            ahead: attention.ahead_argument(),
            scales,
        }
    }
}

impl<H: Handles> TileLaunch<H> {
    /// Returns the launch over what a visitor gives for its operands.
    pub(crate) fn visit<B: Handles>(&self, by: &mut impl Visitor<H, B>) -> TileLaunch<B> {
        TileLaunch {
            attention: self.attention,
            cache: by.cache(Role::Read, self.cache),
            frame: by.frame(self.frame),
            tiles: self.tiles,
            query: by.read(self.query),
            target: by.write(self.target),
            shape: self.shape,
        }
    }

    /// Returns what is launched.
    #[expect(clippy::unused_self, reason = "launches say their names")]
    pub(crate) fn name(&self) -> &'static str {
        "attend by tiles"
    }
}

impl TileLaunch {
    /// Returns the dispatch of the launch.
    ///
    /// # Errors
    /// If the kernel cannot be compiled.
    ///
    /// # Panics
    /// If the kernel does not support these heads.
    pub fn dispatch(
        &self,
        gpu: &dyn Compiler,
        label: &str,
        step: usize,
    ) -> Result<Dispatch, GpuError> {
        let heads = self.attention.heads;
        assert!(heads.dim.is_multiple_of(2) && heads.dim <= DIM_MAX, "heads of {}", heads.dim);
        let capabilities = gpu.capabilities();
        assert!(self.shape.local.is_multiple_of(capabilities.subgroup), "whole subgroups");
        let slots = heads.dim.div_ceil(4);
        let least = capabilities.subgroup_range.0.max(1).min(capabilities.subgroup) as usize;
        let lanes = power_up_to(slots, least.min(self.shape.lanes as usize));
        let fitting = STAGED_BYTES / (2 * 16 * slots);
        let keys = (1 << fitting.ilog2()).min(super::KV_BLOCK);
        let rows_of_group = self.shape.local as usize / lanes * self.shape.rows as usize;
        let constants = vec![
            self.shape.local,
            heads.dim as u32,
            heads.query as u32,
            heads.kv as u32,
            kv_number(self.cache.kind),
            u32::from(self.cache.wide_elements().is_some()),
            lanes as u32,
            self.shape.rows,
            keys as u32,
            self.shape.batch.min(keys as u32),
        ];
        let key = KernelKey { shader: Shader("attend_tile"), constants, subgroup: None };
        let args =
            TileArgs::new(&self.attention, &self.cache, &self.frame, self.query, self.target, 0);
        let (reads, writes) = spans(|look| _ = self.visit(look));
        Ok(Dispatch {
            label: label.to_owned(),
            step,
            kernel: gpu.kernel(&key)?,
            push: Push::of(&args),
            groups: [
                heads.query as u32,
                self.tiles as u32,
                self.attention.tile_rows.div_ceil(rows_of_group) as u32,
            ],
            reads,
            writes,
            link: Link::Outside,
            hands: None,
        })
    }
}
