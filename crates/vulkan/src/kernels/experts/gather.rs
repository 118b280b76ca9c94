//! Rows in the order of sorted entries, as the operand of matrix units:
//! `shaders/experts_gather.comp`.
//!
//! For `n` entries of rows with `c` columns, `p` with those that fill up whole groups of 128, it
//! writes `2 n p` bytes and reads as many of halves, or `8 n c` of f32, whose rows are read once
//! for their largest magnitude and once for their values. The second read is a cache's, and so are
//! all reads but the first of a row that entries share: such rows are better converted before, once
//! each. A gated product could give halves at their places itself, without f32 between, if its
//! results had a bound (`weights/reach.rs`): the lengths of the rows of all experts' matrices would
//! have to be found while a model is loaded.

use bytemuck::{Pod, Zeroable};

use super::Grouping;
use crate::compiler::Compiler;
use crate::dispatch::{Dispatch, Link, Push};
use crate::error::GpuError;
use crate::kernels::handles::{Addresses, Handles, Role, Visitor, spans};
use crate::kernels::operand::{GROUP, OperandKind, SCALE_BLOCK};
use crate::kernels::rows::operand_args;
use crate::raw::pipeline::KernelKey;
use crate::shaders::Shader;

/// Places of a workgroup: PLACES of the shader.
const PLACES: usize = 16;
/// Most invocations of a workgroup that reads f32, all columns of its rows, and those of one that
/// reads halves.
const LOCAL: (usize, usize) = (256, 128);

/// Brings rows into an operand of halves in the order of sorted entries.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GatherLaunch<H: Handles = Addresses> {
    /// How entries are grouped, with places for whole groups.
    pub grouping: Grouping,
    /// What [`SortLaunch`](super::SortLaunch) has made of them.
    pub sorted: H::Rows,
    /// (entries / shared, columns) f32 or [`OperandKind::Halves`].
    pub source: H::Form,
    /// Entries that share a row of the source.
    pub shared: usize,
    /// Columns of a row: whole blocks of 32.
    pub columns: usize,
    /// The operand, with a row for each place.
    pub operand: H::Operand,
}

impl<H: Handles> GatherLaunch<H> {
    /// Returns the launch over what a visitor gives for its operands.
    pub(crate) fn visit<B: Handles>(&self, by: &mut impl Visitor<H, B>) -> GatherLaunch<B> {
        GatherLaunch {
            grouping: self.grouping,
            sorted: by.read(self.sorted),
            source: by.form(self.source),
            shared: self.shared,
            columns: self.columns,
            operand: by.operand(Role::Write, self.operand),
        }
    }

    /// Returns what is launched.
    pub(crate) fn name(&self) -> &'static str {
        "gather by expert"
    }
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
struct Args {
    source: u64,
    source_scales: u64,
    groups: u64,
    entries: u64,
    codes: u64,
    scales: u64,
}

impl GatherLaunch {
    /// Returns the dispatch of the launch.
    ///
    /// # Errors
    /// If the kernel cannot be compiled.
    ///
    /// # Panics
    /// If groups are not whole tiles of 16 places, rows not whole blocks of 32, or an operand has
    /// another kind.
    pub fn dispatch(
        &self,
        gpu: &dyn Compiler,
        label: &str,
        step: usize,
    ) -> Result<Dispatch, GpuError> {
        let Self { grouping, sorted, source, shared, columns, operand } = *self;
        assert!(
            grouping.is_padded && grouping.columns.is_multiple_of(PLACES),
            "{label}: places of {grouping:?}"
        );
        assert!(columns.is_multiple_of(SCALE_BLOCK), "{label}: {columns} columns");
        let kinds = [source.kind, operand.kind];
        assert!(
            matches!(kinds[0], OperandKind::Plain | OperandKind::Halves) && kinds[1].is_halves(),
            "{label}: {kinds:?}"
        );
        // An invocation has 64 bytes of each of two rows, or 16 of one. It goes on with others only
        // if its workgroup looks for the largest magnitudes of whole rows.
        let items = columns.div_ceil(GROUP) * SCALE_BLOCK;
        let (local, parts) = match kinds[0] {
            OperandKind::Plain => (items.next_multiple_of(64).min(LOCAL.0), 1),
            _ => (LOCAL.1, items.div_ceil(LOCAL.1)),
        };
        let (from, source, source_scales) = operand_args(Some(source));
        let (to, codes, scales) = operand_args(Some(operand));
        let constants = vec![local as u32, columns as u32, shared as u32, from, to];
        let key = KernelKey { shader: Shader("experts_gather"), constants, subgroup: None };
        let args = Args {
            source,
            source_scales,
            groups: sorted.address,
            entries: sorted.address + grouping.entries_at(),
            codes,
            scales,
        };
        let (reads, writes) = spans(|by| _ = self.visit(by));
        let groups = [grouping.columns / PLACES, grouping.groups(), parts];
        Ok(Dispatch {
            label: label.to_owned(),
            step,
            kernel: gpu.kernel(&key)?,
            push: Push::of(&args),
            groups: groups.map(|count| count as u32),
            reads,
            writes,
            link: Link::Outside,
            hands: None,
        })
    }
}
