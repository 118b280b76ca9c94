//! Attention of rows that all see one another, without a cache: `shaders/attend_whole.comp`.
//!
//! A product of queries, keys and values writes keys and values in the order in which subgroups
//! hold right factors (`kernels/matmul/probe.rs`), f16:
//!
//! ```text
//! keys    head, tile of 16 rows, product of 16 elements, lane 4 r + c; 16 bytes: elements 4 c.. of row r, of row r + 8
//! values  head, tile of 16 rows, 16 elements, lane 4 r + c; 16 bytes: rows 2 c, 2 c + 1, 2 c + 8, 2 c + 9 of one element, then
//!         of another: 4 (r / 2) + r % 2 and the second after it. Of heads that end with 8 elements the last ones are r, and
//!         nobody writes the others
//! ```
//!
//! Rows are padded to whole blocks of 32 with rows of any content. What keys end with beyond their
//! elements are zeros.

use bytemuck::{Pod, Zeroable};
use trine_model::{Ahead, Heads, KvType};

use super::Attention;
use crate::capabilities::Capabilities;
use crate::compiler::Compiler;
use crate::dispatch::{Dispatch, Link, Push};
use crate::error::GpuError;
use crate::kernels::handles::{Addresses, Handles, Role, Visitor, spans};
use crate::kernels::operand::OperandKind;
use crate::raw::pipeline::KernelKey;
use crate::shaders::Shader;

/// Invocations of a workgroup: four subgroups.
const LOCAL: u32 = 128;
/// Rows of a workgroup.
const ROWS: usize = 128;
/// Rows that keys and values are padded to.
const BLOCK: usize = 32;
/// Most elements of a head: registers hold the queries and sums of 32 rows, and the keys and values
/// of 32.
const DIM_MAX: usize = 80;

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
struct Args {
    rows: u64,
    query: u64,
    keys: u64,
    values: u64,
    codes: u64,
    scales: u64,
    scale: f32,
    tiles: u32,
}

/// A launch for the rows of one picture.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WholeLaunch<H: Handles = Addresses> {
    /// What is attended to.
    pub attention: Attention,
    /// The rows of the picture.
    pub extent: H::Extent,
    /// (rows, heads x dim) f32.
    pub query: H::Rows,
    /// As the module draws them.
    pub keys: H::Rows,
    /// As the module draws them.
    pub values: H::Rows,
    /// (rows, heads x dim) in [`OperandKind::Fragments`].
    pub operand: H::Operand,
}

impl<H: Handles> WholeLaunch<H> {
    /// Returns the launch over what a visitor gives for its operands.
    pub(crate) fn visit<B: Handles>(&self, by: &mut impl Visitor<H, B>) -> WholeLaunch<B> {
        WholeLaunch {
            attention: self.attention,
            extent: by.extent(self.extent, self.query),
            query: by.read(self.query),
            keys: by.read(self.keys),
            values: by.read(self.values),
            operand: by.operand(Role::Write, self.operand),
        }
    }

    /// Returns what is launched.
    #[expect(clippy::unused_self, reason = "launches say their names")]
    pub(crate) fn name(&self) -> &'static str {
        "attend to a picture"
    }
}

impl WholeLaunch {
    /// Returns whether a device can attend like this in a layer whose keys and values would be
    /// cached in this form: all rows see one another, and no heads share keys.
    pub fn runs(capabilities: &Capabilities, attention: &Attention, kind: KvType) -> bool {
        let Heads { query, kv, dim } = attention.heads;
        capabilities.fragments
            && attention.ahead == Ahead::All
            && attention.window.is_none()
            && query == kv
            && dim <= DIM_MAX
            && attention.gives_halves(kind)
    }

    /// Returns the tiles of 16 rows that there is memory for.
    pub(crate) fn tiles(rows: usize) -> usize {
        rows.next_multiple_of(BLOCK) / 16
    }

    /// Returns the rows and f32 columns of memory for the keys, and for the values.
    pub(crate) fn memory(heads: Heads, rows: usize) -> (usize, usize) {
        (rows.next_multiple_of(BLOCK), heads.query * heads.dim.next_multiple_of(16) / 2)
    }

    /// Returns the dispatch of the launch.
    ///
    /// # Errors
    /// If the kernel cannot be compiled.
    ///
    /// # Panics
    /// If the device does not run it ([`WholeLaunch::runs`]).
    pub fn dispatch(
        &self,
        gpu: &dyn Compiler,
        label: &str,
        step: usize,
    ) -> Result<Dispatch, GpuError> {
        let Self { attention, extent, query, keys, values, operand } = *self;
        assert!(Self::runs(gpu.capabilities(), &attention, KvType::F16), "{attention:?}");
        assert_eq!(operand.kind, OperandKind::Fragments, "the operand that attention gives");
        let heads = attention.heads;
        let constants = vec![LOCAL, heads.dim as u32, heads.query as u32];
        let subgroup = Some(gpu.capabilities().subgroup);
        let key = KernelKey { shader: Shader("attend_whole"), constants, subgroup };
        let args = Args {
            rows: extent.row_count,
            query: query.address,
            keys: keys.address,
            values: values.address,
            codes: operand.codes.address,
            scales: operand.scales.address,
            scale: attention.scale,
            tiles: Self::tiles(extent.rows) as u32,
        };
        let (reads, writes) = spans(|look| _ = self.visit(look));
        Ok(Dispatch {
            label: label.to_owned(),
            step,
            kernel: gpu.kernel(&key)?,
            push: Push::of(&args),
            groups: [extent.rows.div_ceil(ROWS) as u32, heads.query as u32, 1],
            reads,
            writes,
            link: Link::Outside,
            hands: None,
        })
    }
}

/// Returns where an element of a row's key stands in the keys, in halves.
#[cfg(test)]
pub(crate) fn key_place(
    dim: usize,
    tiles: usize,
    head: usize,
    row: usize,
    element: usize,
) -> usize {
    let sixteens = dim.div_ceil(16);
    let vector = ((head * tiles + row / 16) * sixteens + element / 16) * 32;
    (vector + row % 8 * 4 + element % 16 / 4) * 8 + row % 16 / 8 * 4 + element % 4
}

/// Returns where an element of a row's value stands in the values, in halves.
#[cfg(test)]
pub(crate) fn value_place(
    dim: usize,
    tiles: usize,
    head: usize,
    row: usize,
    element: usize,
) -> usize {
    let (sixteens, within) = (dim.div_ceil(16), element % 16);
    let vector = ((head * tiles + row / 16) * sixteens + element / 16) * 32;
    let ends = dim % 16 == 8 && element >= dim - 8;
    let (column, second) =
        if ends { (within, 0) } else { (within / 4 * 2 + within % 2, within % 4 / 2) };
    let lane = column * 4 + row % 8 / 2;
    (vector + lane) * 8 + second * 4 + row % 16 / 8 * 2 + row % 2
}
