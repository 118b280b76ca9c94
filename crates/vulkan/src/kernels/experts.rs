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
use crate::dispatch::{Dispatch, Fill, Link, Push};
use crate::error::GpuError;
use crate::kernels::handles::{Addresses, Extent, Handles, Visitor, spans};
use crate::raw::pipeline::KernelKey;
use crate::shaders::Shader;

pub mod clusters;
mod gather;
mod grouping;
pub mod product;
pub mod router;

pub use gather::GatherLaunch;
pub use grouping::Grouping;

/// Most experts: the logits of a row are compared in shared memory.
pub const EXPERTS_MAX: usize = 2048;
/// Most experts of a row.
pub const USED_MAX: usize = 256;
/// Fewest invocations of the workgroup that sorts, and most: each waits for memory twice for every
/// eight of its entries.
const SORTING: (u32, u32) = (256, 1024);

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
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ChoiceLaunch<H: Handles = Addresses> {
    /// (rows, experts) f32.
    pub logits: H::Rows,
    /// The factors of the experts' shares, f32, if there are any.
    pub factors: Option<H::Vector>,
    /// Factor on the logits.
    pub scale: f32,
    /// Experts: at most [`EXPERTS_MAX`].
    pub experts: usize,
    /// Experts of a row: at most [`USED_MAX`].
    pub used: usize,
    /// (rows, used) f32: their numbers.
    pub chosen: H::Rows,
    /// (rows, used) f32: their shares.
    pub shares: H::Rows,
    /// The rows, and the experts.
    pub extent: H::Extent,
}

impl<H: Handles> ChoiceLaunch<H> {
    /// Returns the launch over what a visitor gives for its operands.
    pub(crate) fn visit<B: Handles>(&self, by: &mut impl Visitor<H, B>) -> ChoiceLaunch<B> {
        let logits = by.read(self.logits);
        self.visit_others(logits, by)
    }

    /// The same of logits that were visited.
    fn visit_others<B: Handles>(
        &self,
        logits: B::Rows,
        by: &mut impl Visitor<H, B>,
    ) -> ChoiceLaunch<B> {
        ChoiceLaunch {
            logits,
            factors: self.factors.map(|factors| by.vector(factors)),
            scale: self.scale,
            experts: self.experts,
            used: self.used,
            chosen: by.write(self.chosen),
            shares: by.write(self.shares),
            extent: by.extent(self.extent, self.logits),
        }
    }

    /// Returns what is launched.
    pub(crate) fn name(&self) -> &'static str {
        "choose experts"
    }
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
        let Extent { rows, row_count, .. } = self.extent;
        let args = ChoiceArgs { front: self.front(), rows: row_count, chain: 0 };
        let (reads, writes) = spans(|by| _ = self.visit(by));
        Ok(Dispatch {
            label: label.to_owned(),
            step,
            kernel: gpu.kernel(&key)?,
            push: Push::of(&args),
            groups: [rows as u32, 1, 1],
            reads,
            writes,
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
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SortLaunch<H: Handles = Addresses> {
    /// How they are grouped.
    pub grouping: Grouping,
    /// (rows, used) f32: the numbers of the experts.
    pub chosen: H::Rows,
    /// [`Grouping::bytes`] of memory.
    pub sorted: H::Rows,
    /// The rows, and the entries of each.
    pub extent: H::Extent,
}

impl<H: Handles> SortLaunch<H> {
    /// Returns the launch over what a visitor gives for its operands.
    pub(crate) fn visit<B: Handles>(&self, by: &mut impl Visitor<H, B>) -> SortLaunch<B> {
        SortLaunch {
            grouping: self.grouping,
            chosen: by.read(self.chosen),
            sorted: by.write(self.sorted),
            extent: by.extent(self.extent, self.chosen),
        }
    }

    /// Returns what is launched.
    pub(crate) fn name(&self) -> &'static str {
        "sort by expert"
    }
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
struct SortArgs {
    chosen: u64,
    groups: u64,
    entries: u64,
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
        let Extent { columns: used, row_count, .. } = self.extent;
        let numbers = [experts, used, columns, groups, usize::from(is_padded)];
        let constants = numbers.map(|number| number as u32);
        let most = SORTING.1.min(gpu.capabilities().invocations);
        let entries = self.grouping.entries.next_power_of_two() as u32;
        let invocations = entries.clamp(SORTING.0, most.max(SORTING.0));
        let constants = [invocations].into_iter().chain(constants).collect();
        let key = KernelKey { shader: Shader("experts_sort"), constants, subgroup: None };
        let args = SortArgs {
            chosen: self.chosen.address,
            groups: self.sorted.address,
            entries: self.sorted.address + self.grouping.entries_at(),
            rows: row_count,
        };
        let (reads, writes) = spans(|by| _ = self.visit(by));
        Ok(Dispatch {
            label: label.to_owned(),
            step,
            kernel: gpu.kernel(&key)?,
            push: Push::of(&args),
            groups: [1, 1, 1],
            reads,
            writes,
            link: Link::Outside,
            hands: None,
        })
    }
}

#[cfg(test)]
mod tests;
