//! Experts: which ones each row has, and their products.
//!
//! An entry is a row of activations with one of its experts; entries are numbered row after row.
//! For more than one row they are sorted by expert and cut into groups, so that a group reads the
//! matrix of its expert once. [`product`] multiplies groups, whatever the number of rows: on matrix
//! units if experts have many entries, for which [`GatherLaunch`] brings the rows into the order of
//! the groups.

use bytemuck::{Pod, Zeroable};

use crate::capabilities::Capabilities;
use crate::compiler::Compiler;
use crate::dispatch::{Dispatch, Fill, Link, Push, Span};
use crate::error::GpuError;
use crate::kernels::handles::{Extent, Made};
use crate::kernels::operand::Operand;
use crate::kernels::rows::{RowLimits, RowWork, RowsLaunch};
use crate::raw::pipeline::KernelKey;
use crate::shaders::Shader;

pub mod clusters;
mod grouping;
pub mod product;
pub mod router;

pub use grouping::Grouping;

/// Most experts: the logits of a row are compared in shared memory.
pub const EXPERTS_MAX: usize = 2048;
/// Most experts of a row.
pub const USED_MAX: usize = 256;
/// Invocations of the workgroup that sorts.
const SORTING: u32 = 256;

/// Logits up to which a choice compares all with one another: CHOICE_MANY of the shader.
const COMPARED_MAX: usize = 512;

/// Returns whether a row can choose `used` of this number of experts on a device.
pub fn chooses(capabilities: &Capabilities, experts: usize, used: usize) -> bool {
    (1..=EXPERTS_MAX).contains(&experts)
        && (1..=experts.min(USED_MAX)).contains(&used)
        && choice_bytes(experts, used) <= capabilities.shared_bytes as usize
}

/// Returns the shared memory of a choice in bytes: `shaders/include/choice.glsl`.
fn choice_bytes(experts: usize, used: usize) -> usize {
    let kept = if experts > COMPARED_MAX { experts } else { 1 };
    4 * (experts.next_multiple_of(4) + used + kept + 32 + 2)
}

/// The experts of each row, from the logits of its router: `shaders/experts_route.comp`.
#[derive(Debug, Clone, Copy)]
pub struct ChoiceLaunch {
    /// (rows, experts) f32.
    pub logits: Span,
    /// Address of the factors of the experts' shares, f32, if there are any.
    pub factors: Option<u64>,
    /// Factor on the logits.
    pub scale: f32,
    /// Experts: at most [`EXPERTS_MAX`].
    pub experts: usize,
    /// Experts of a row: at most [`USED_MAX`].
    pub used: usize,
    /// (rows, used) f32: their numbers.
    pub chosen: Span,
    /// (rows, used) f32: their shares.
    pub shares: Span,
    /// Most rows.
    pub rows: usize,
    /// Address of the number of rows in the step.
    pub row_count: u64,
}

/// ChoiceArgs of the shaders.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
struct ChoiceFront {
    logits: u64,
    factors: u64,
    chosen: u64,
    shares: u64,
    scale: f32,
    _padding: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
struct ChoiceArgs {
    front: ChoiceFront,
    rows: u64,
    chain: u64,
}

impl ChoiceLaunch {
    fn front(&self) -> ChoiceFront {
        ChoiceFront {
            logits: self.logits.address,
            factors: self.factors.unwrap_or(0),
            chosen: self.chosen.address,
            shares: self.shares.address,
            scale: self.scale,
            _padding: 0,
        }
    }

    /// Returns the dispatch of the launch.
    ///
    /// # Errors
    /// If the kernel cannot be compiled.
    ///
    /// # Panics
    /// If the device cannot choose from the experts ([`chooses`]).
    pub fn dispatch(
        &self,
        gpu: &dyn Compiler,
        label: &str,
        step: usize,
    ) -> Result<Dispatch, GpuError> {
        let Self { experts, used, .. } = *self;
        assert!(chooses(gpu.capabilities(), experts, used), "{used} of {experts} experts");
        let local = experts.next_power_of_two().clamp(32, 256) as u32;
        let factors = u32::from(self.factors.is_some());
        let constants = vec![local, experts as u32, used as u32, factors];
        let key = KernelKey { shader: Shader("experts_route"), constants, subgroup: None };
        let args = ChoiceArgs { front: self.front(), rows: self.row_count, chain: 0 };
        Ok(Dispatch {
            label: label.to_owned(),
            step,
            kernel: gpu.kernel(&key)?,
            push: Push::of(&args),
            groups: [self.rows as u32, 1, 1],
            reads: vec![self.logits],
            writes: vec![self.chosen, self.shares],
            link: Link::Able {
                offset: std::mem::offset_of!(ChoiceArgs, chain),
                early: None,
                fill: Fill::Little,
            },
            hands: None,
        })
    }
}

/// Sorts entries by expert: `shaders/experts_sort.comp`.
#[derive(Debug, Clone, Copy)]
pub struct SortLaunch {
    /// How they are grouped.
    pub grouping: Grouping,
    /// Entries of a row.
    pub used: usize,
    /// (rows, used) f32: the numbers of the experts.
    pub chosen: Span,
    /// [`Grouping::bytes`] of memory.
    pub sorted: Span,
    /// Address of the number of rows in the step.
    pub row_count: u64,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
struct SortArgs {
    chosen: u64,
    groups: u64,
    entries: u64,
    places: u64,
    rows: u64,
}

impl SortLaunch {
    /// Returns the dispatch of the launch.
    ///
    /// # Errors
    /// If the kernel cannot be compiled.
    ///
    /// # Panics
    /// If there are more experts than [`EXPERTS_MAX`], or too little memory.
    pub fn dispatch(
        &self,
        gpu: &dyn Compiler,
        label: &str,
        step: usize,
    ) -> Result<Dispatch, GpuError> {
        let Grouping { experts, columns, is_padded, .. } = self.grouping;
        assert!((1..=EXPERTS_MAX).contains(&experts), "{experts} experts");
        assert!(self.sorted.bytes >= self.grouping.bytes() as u64, "memory for sorted entries");
        let groups = self.grouping.groups();
        let numbers = [experts, self.used, columns, groups, usize::from(is_padded)];
        let constants = numbers.map(|number| number as u32);
        let constants = [SORTING].into_iter().chain(constants).collect();
        let key = KernelKey { shader: Shader("experts_sort"), constants, subgroup: None };
        let args = SortArgs {
            chosen: self.chosen.address,
            groups: self.sorted.address,
            entries: self.sorted.address + self.grouping.entries_at(),
            places: self.sorted.address + self.grouping.places_at(),
            rows: self.row_count,
        };
        Ok(Dispatch {
            label: label.to_owned(),
            step,
            kernel: gpu.kernel(&key)?,
            push: Push::of(&args),
            groups: [1, 1, 1],
            reads: vec![self.chosen],
            writes: vec![self.sorted],
            link: Link::Outside,
            hands: None,
        })
    }
}

/// Brings rows into an operand of halves in the order of sorted entries: `shaders/rows.comp`.
#[derive(Debug, Clone, Copy)]
pub struct GatherLaunch {
    /// How entries are grouped, with places.
    pub grouping: Grouping,
    /// What [`SortLaunch`] has made of them.
    pub sorted: Span,
    /// (rows, columns) or (rows x used, columns) f32.
    pub source: Span,
    /// Columns of a row.
    pub columns: usize,
    /// Entries that share a row of the source: `used`, or 1.
    pub shared: usize,
    /// Entries of a row of the step.
    pub used: usize,
    /// The operand, with a row for each place.
    pub operand: Operand,
    /// Most rows of the step.
    pub rows: usize,
    /// Address of the number of rows in the step.
    pub row_count: u64,
}

impl GatherLaunch {
    /// Returns the dispatch of the launch.
    ///
    /// # Errors
    /// If the kernel cannot be compiled.
    ///
    /// # Panics
    /// If entries have no places, or the operand is not in halves.
    pub fn dispatch(
        &self,
        gpu: &dyn Compiler,
        label: &str,
        step: usize,
    ) -> Result<Dispatch, GpuError> {
        assert!(self.grouping.is_padded && self.operand.kind.is_halves(), "an operand of places");
        let launch = RowsLaunch {
            work: RowWork::Gather {
                parts: self.used / self.shared,
                copies: self.shared,
                places: self.sorted,
                at: self.grouping.places_at(),
            },
            source: self.source,
            epsilon: 0.0,
            within: RowLimits::NONE,
            made: Some(Made::Operand(self.operand)),
            extent: Extent {
                columns: self.columns * (self.used / self.shared),
                rows: self.rows,
                row_count: self.row_count,
            },
        };
        launch.dispatch(gpu, label, step)
    }
}

#[cfg(test)]
mod tests;
