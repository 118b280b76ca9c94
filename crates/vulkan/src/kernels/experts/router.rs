//! The choice of experts with the router before it: `shaders/experts_router.comp`.
//!
//! A norm, a product with few outputs and a choice are three launches that wait for one another,
//! and the norm of the same row for the experts is a fourth one. Here several workgroups multiply a
//! share of the router's rows each, and the last of a row chooses.
//!
//! Each row reads the whole router from a cache, 1.4 MB for the 128 experts of Gemma 4 26B-A4B,
//! where a product reads it once for all rows.

use bytemuck::{Pod, Zeroable};

use super::{ChoiceFront, ChoiceLaunch, choice_bytes, chooses};
use crate::capabilities::{Capabilities, DeviceKind};
use crate::compiler::Compiler;
use crate::dispatch::{Dispatch, Fill, Link, Push};
use crate::error::GpuError;
use crate::kernels::handles::{Addresses, Extent, Handles, Role, Visitor, spans};
use crate::kernels::route::number;
use crate::kernels::rows::{operand_args, registers};
use crate::kernels::sum::Finish;
use crate::raw::pipeline::KernelKey;
use crate::shaders::Shader;

/// Most rows: a whole pass of 64 rows was measured on an H200.
pub const ROUTED_ROWS_MAX: usize = 64;
/// Bytes of the counters of a launch: one for each row.
pub const COUNTER_BYTES: usize = 4 * ROUTED_ROWS_MAX;
/// Most rows of a device that shares its memory with the processor: its caches are slower, and were
/// not measured.
const ROUTED_ROWS_UNIFIED: usize = 8;
/// Most columns of a row: it is in shared memory.
pub const ROUTED_COLUMNS_MAX: usize = 4096;
/// Most workgroups that share the experts of a row.
const SLICES_MAX: usize = 16;
/// Experts of a workgroup: a subgroup of 32 for each, if the workgroup has 512 invocations.
const EXPERTS_AT_ONCE: usize = 16;
/// Shared memory of reductions, in bytes: REDUCE_PARTS of `shaders/include/reduce.glsl`.
const REDUCTION_BYTES: usize = 3 * 256 * 4;

/// Returns whether a device runs the kernel, and not the launches that it replaces, for this number
/// of rows and columns.
pub fn routes(
    capabilities: &Capabilities,
    (experts, used): (usize, usize),
    columns: usize,
    rows: usize,
) -> bool {
    let most = if capabilities.is_unified() { ROUTED_ROWS_UNIFIED } else { ROUTED_ROWS_MAX };
    let row = 16 * columns.div_ceil(4);
    let bytes = choice_bytes(experts, used) + row + REDUCTION_BYTES + 4;
    chooses(capabilities, experts, used)
        && rows <= most
        && columns <= ROUTED_COLUMNS_MAX
        && bytes <= capabilities.shared_bytes as usize
}

/// A launch of a router and the choice from its logits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RouterLaunch<H: Handles = Addresses> {
    /// The choice; its logits are written and read again.
    pub choice: ChoiceLaunch<H>,
    /// (rows, columns) f32.
    pub source: H::Rows,
    /// The factors of the norm, f32.
    pub norm: H::Vector,
    /// Added to the mean squares of both norms.
    pub epsilon: f32,
    /// (experts, columns), floats.
    pub router: H::Matrix,
    /// Another norm of the same rows, if it is wanted too.
    pub other: Option<Finish<H>>,
    /// [`COUNTER_BYTES`] of memory with counters, u32. They are 0 before the first launch, and
    /// after each.
    pub counters: H::Shared,
}

impl<H: Handles> RouterLaunch<H> {
    /// Returns the launch over what a visitor gives for its operands.
    pub(crate) fn visit<B: Handles>(&self, by: &mut impl Visitor<H, B>) -> RouterLaunch<B> {
        let source = by.read(self.source);
        let (norm, router) = (by.vector(self.norm), by.matrix(self.router));
        let logits = by.write(self.choice.logits);
        let other = self.other.map(|other| other.visit(by));
        RouterLaunch {
            choice: self.choice.visit_others(logits, by),
            source,
            norm,
            epsilon: self.epsilon,
            router,
            other,
            counters: by.shared(Role::Write, self.counters),
        }
    }

    /// Returns what is launched.
    pub(crate) fn name(&self) -> &'static str {
        match self.other {
            None => "norm + router + choose experts",
            Some(_) => "norm + router + choose experts + norm",
        }
    }
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
struct Args {
    choice: ChoiceFront,
    source: u64,
    weight: u64,
    router: u64,
    counters: u64,
    other_weight: u64,
    plain: u64,
    codes: u64,
    scales: u64,
    rows: u64,
    chain: u64,
}

impl RouterLaunch {
    /// Returns the dispatch of the launch.
    ///
    /// # Errors
    /// If the kernel cannot be compiled.
    ///
    /// # Panics
    /// If the device does not take it ([`routes`]; rows up to [`ROUTED_ROWS_MAX`]), or if the
    /// router does not fit the choice or is not of floats.
    pub fn dispatch(
        &self,
        gpu: &dyn Compiler,
        label: &str,
        step: usize,
    ) -> Result<Dispatch, GpuError> {
        let slices = match gpu.capabilities().kind {
            DeviceKind::Processor => 1,
            _ => self.choice.experts.div_ceil(EXPERTS_AT_ONCE).min(SLICES_MAX),
        };
        self.dispatch_sliced(gpu, slices, label, step)
    }

    /// Returns the dispatch with this number of workgroups that share the experts of a row.
    pub(super) fn dispatch_sliced(
        &self,
        gpu: &dyn Compiler,
        slices: usize,
        label: &str,
        step: usize,
    ) -> Result<Dispatch, GpuError> {
        let ChoiceLaunch { experts, used, extent, .. } = self.choice;
        let Extent { rows, row_count, .. } = extent;
        let columns = self.router.columns;
        let takes = routes(gpu.capabilities(), (experts, used), columns, 1);
        assert!(takes && rows <= ROUTED_ROWS_MAX, "{rows} rows of {columns}, {used} of {experts}");
        assert_eq!(self.router.rows, experts, "a row of the router for each expert");
        let (local, per) = registers(columns);
        let (kind, codes, scales) = operand_args(self.other.and_then(|other| other.made.operand()));
        let plain = self.other.and_then(|other| other.made.rows());
        let constants = vec![
            local as u32,
            experts as u32,
            used as u32,
            u32::from(self.choice.factors.is_some()),
            slices as u32,
            kind,
            u32::from(plain.is_some()),
            columns as u32,
            per as u32,
            number(self.router.format),
            self.epsilon.to_bits(),
        ];
        let key = KernelKey { shader: Shader("experts_router"), constants, subgroup: None };
        let args = Args {
            choice: self.choice.front(),
            source: self.source.address,
            weight: self.norm,
            router: self.router.planes.codes,
            counters: self.counters.address,
            other_weight: self.other.map_or(0, |other| other.weight),
            plain: plain.map_or(0, |plain| plain.address),
            codes,
            scales,
            rows: row_count,
            chain: 0,
        };
        let (reads, writes) = spans(|by| _ = self.visit(by));
        Ok(Dispatch {
            label: label.to_owned(),
            step,
            kernel: gpu.kernel(&key)?,
            push: Push::of(&args),
            groups: [(slices + usize::from(self.other.is_some())) as u32, rows as u32, 1],
            reads,
            writes,
            link: Link::Able {
                offset: std::mem::offset_of!(Args, chain),
                early: None,
                fill: Fill::Little,
            },
            hands: None,
        })
    }
}
