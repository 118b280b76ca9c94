//! Products of a quantised matrix with one row of activations, as generation needs them:
//! `shaders/one_row.comp`.
//!
//! It is bound by the bytes of the matrix. For a block of 32 weights an invocation does 16 integer
//! dot products and about 25 other operations. The activations are in registers, so the nearest
//! cache carries only the matrix. There are few large workgroups, one or two for each core, because
//! each of them norms and quantises the activations for itself. If a workgroup is one team, each
//! block of the activations belongs to one invocation: an [interleaved](OperandKind::Interleaved)
//! row gives it the block's values with eight loads next to those of its neighbours, and they stay
//! in its registers.
//!
//! In a chain it looks at the values of the launch before until they are there, and hands its own
//! on in the same way ([`Hands`]).

use bytemuck::{Pod, Zeroable};

use super::operand::{OperandKind, SCALE_BLOCK};
use super::product::{
    Front, Layout, NormArgs, Product, ProductInput, ProductLaunch, ProductOutput, no_room, subgroup,
};
use crate::capabilities::{Capabilities, DeviceKind};
use crate::dispatch::{Fill, Hands, Link, Push};
use crate::error::GpuError;
use crate::kernels::handles::Made;
use crate::pack::Format;
use crate::raw::pipeline::KernelKey;
use crate::shaders::Shader;

#[cfg(test)]
mod tests;

/// Rows between two points at which the subgroups of a team meet: ROUND of the shader.
const ROUND: u32 = 16;
/// Most pieces of four values of the residual stream that an invocation keeps.
const KEPT_MAX: u32 = 16;
/// One workgroup in this many may be left out so that the others have equal shares.
const UNEVEN_PART: u32 = 8;
/// Most blocks that an invocation keeps in registers.
const SPAN_MAX: u32 = 4;
/// Most outputs of a team that has little use for more than two rows of the matrix in flight: it
/// would load its last row again and again. Measured on an H200 only, with values handed on
/// (`docs/benchmarks/gpu-kernels.md`).
const FEW_OUTPUTS: u32 = 5;
/// Rows in flight where teams have few outputs, or rows twice the bytes of those of four bits.
const FEW_ROWS: u32 = 2;
/// About the most outputs of a team on a software renderer: Mesa's ends the loops of an invocation,
/// without an error, after 65,535 iterations of all of them (`LP_MAX_TGSI_LOOP_ITERATIONS`), and an
/// output takes up to eight, or some thirty where tests keep the loops
/// ([`Loops::Kept`](crate::raw::module::Loops)).
const SOFTWARE_OUTPUTS: u32 = 1024;

/// How the work is laid out on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct OneRowShape {
    /// Invocations of a team: whole subgroups.
    pub lanes: u32,
    /// Teams of a workgroup.
    pub teams: u32,
    /// Rows of the matrix in flight: 1, 2, 4 or 8.
    pub batch: u32,
    /// Workgroups.
    pub workgroups: u32,
    /// Batches in registers: 1, or 2 if one is loaded while the other is used.
    pub banks: u32,
    /// Whether teams take rows in turn; otherwise each has a contiguous run of rows.
    pub turns: bool,
}

/// A product with one row of activations. The matrix is of a quantised format. The activations are
/// f32, interleaved or not, or normed. Gated products go to one place, as f32, or interleaved in
/// whole blocks; a product may also be the gate of a row that is there.
#[derive(Debug, Clone, Copy)]
pub struct OneRowLaunch(pub Product);

#[repr(C)]
#[derive(Debug, Clone, Copy, Default, Pod, Zeroable)]
struct Args {
    front: Front,
    norm: NormArgs,
    rows: u32,
    columns: u32,
    splits: [u32; 2],
    epsilon: f32,
    scale: f32,
    chain: u64,
}

/// Invocations of a workgroup, rows of a batch, workgroups for each core, batches in registers.
type Sizes = (u32, u32, u32, u32);

/// Returns the sizes that are worth measuring on a kind of device, the likeliest first.
fn sizes(kind: DeviceKind) -> &'static [Sizes] {
    match kind {
        DeviceKind::Discrete | DeviceKind::Virtual => &[
            (768, 4, 1, 1),
            (768, 4, 1, 2),
            (640, 4, 1, 2),
            (512, 4, 1, 2),
            (768, 2, 1, 1),
            (1024, 4, 1, 1),
            (512, 4, 2, 1),
            (256, 4, 4, 1),
        ],
        DeviceKind::Integrated | DeviceKind::Other => &[
            (512, 2, 2, 1),
            (512, 2, 2, 2),
            (512, 4, 2, 1),
            (512, 2, 1, 1),
            (1024, 2, 1, 1),
            (256, 2, 4, 1),
            (256, 4, 4, 1),
            (128, 2, 8, 1),
        ],
        DeviceKind::Processor => &[(64, 2, 1, 1), (64, 4, 1, 2), (128, 2, 2, 1)],
    }
}

/// Returns whether the kernel can multiply with a matrix of `columns` columns, with a norm before
/// or without.
pub fn takes(capabilities: &Capabilities, format: Format, columns: usize, norm: bool) -> bool {
    Shader::of("one_row", format.name()).is_some()
        && columns.is_multiple_of(SCALE_BLOCK)
        && OneRowShape::suited(capabilities, format, columns, norm).is_some()
}

/// Returns whether the kernel is faster with interleaved activations for a product of `columns`
/// columns. It is if each workgroup has one team: then each block of the activations has one
/// invocation, which quantises it without the others.
pub fn prefers_interleaved(capabilities: &Capabilities, format: Format, columns: usize) -> bool {
    OneRowShape::suited(capabilities, format, columns, false).is_some_and(|shape| shape.teams == 1)
}

impl OneRowShape {
    /// Returns the shape for a device and a number of columns, or `None` if a row does not fit.
    fn suited(
        capabilities: &Capabilities,
        format: Format,
        columns: usize,
        norm: bool,
    ) -> Option<Self> {
        Self::of(capabilities, format, columns, norm, sizes(capabilities.kind)[0])
    }

    /// Returns the shapes that are worth measuring on a device, the likeliest first.
    pub fn candidates(
        capabilities: &Capabilities,
        format: Format,
        columns: usize,
        norm: bool,
    ) -> Vec<Self> {
        let mut shapes: Vec<Self> = Vec::new();
        for &sizes in sizes(capabilities.kind) {
            let shape = Self::of(capabilities, format, columns, norm, sizes);
            shapes.extend(shape.filter(|shape| !shapes.contains(shape)));
        }
        shapes
    }

    /// Returns a shape with about `wanted` invocations in a workgroup and `each` workgroups for
    /// each core.
    pub fn of(
        capabilities: &Capabilities,
        format: Format,
        columns: usize,
        norm: bool,
        (wanted, batch, each, banks): Sizes,
    ) -> Option<Self> {
        let subgroup = subgroup(capabilities)?;
        let blocks = (columns / SCALE_BLOCK) as u32;
        let most = wanted.max(subgroup).min(capabilities.invocations);
        let span = blocks.div_ceil(most).max(1);
        let lanes = blocks.div_ceil(span).next_multiple_of(subgroup);
        let local = most / lanes.min(most) * lanes;
        let kept = (columns as u32).div_ceil(4 * local);
        let fits = lanes <= most
            && span <= SPAN_MAX
            && batch <= subgroup
            && (!norm || kept <= KEPT_MAX)
            && staged_blocks(format, blocks, local / subgroup, norm, capabilities.shared_bytes)
                .is_some();
        fits.then_some(Self {
            lanes,
            teams: local / lanes,
            batch,
            workgroups: each * capabilities.cores_or_guess(),
            banks,
            turns: local > lanes,
        })
    }
}

/// Returns how many blocks of the activations are staged at a time: all if they are normed,
/// otherwise as many as there is room for. Returns `None` if that is too few.
fn staged_blocks(
    format: Format,
    blocks: u32,
    subgroups: u32,
    norm: bool,
    shared_bytes: u32,
) -> Option<u32> {
    // Codes and scale; in one format also the sum of the block.
    let block_bytes = if format.has_minimum() { 64 + 8 } else { 64 + 4 };
    let others = 8 * subgroups + 2 * 4 * subgroups * ROUND + 16;
    let room = shared_bytes.checked_sub(others)? / block_bytes;
    let pieces = blocks.div_ceil(room.max(1));
    if room == 0 || (norm && pieces > 1) {
        return None;
    }
    Some(blocks.div_ceil(pieces))
}

impl OneRowLaunch {
    /// Returns the workgroups in a shape: on a software renderer as many as keep loops short, no
    /// more than there are outputs for their teams, and as many as have equal shares of the
    /// outputs, if that leaves few of them out. One team with more rows than the others keeps all
    /// of them waiting: with 128 workgroups instead of 132, generation with 27B on an H200 was
    /// 2.5 % faster (`docs/benchmarks/h200.md`). One without outputs would read the activations and
    /// give nothing that says when it has (module `chain::handed`).
    fn workgroups(&self, kind: DeviceKind, shape: &OneRowShape) -> u32 {
        let outputs = self.0.outputs() as u32;
        let wanted = match kind {
            DeviceKind::Processor => {
                shape.workgroups.max(outputs.div_ceil(SOFTWARE_OUTPUTS * shape.teams))
            }
            _ => shape.workgroups,
        };
        let most = wanted.clamp(1, outputs.div_ceil(shape.teams).max(1));
        let is_even = |workgroups: &u32| outputs.is_multiple_of(workgroups * shape.teams);
        (most - most / UNEVEN_PART..=most).rev().find(is_even).unwrap_or(most)
    }

    fn args(&self) -> Args {
        let product = &self.0;
        let (_, splits) = product.split();
        Args {
            front: product.front(),
            norm: product.input.norm_args(),
            rows: product.outputs() as u32,
            columns: product.matrix.columns as u32,
            splits,
            epsilon: product.input.epsilon(),
            scale: product.input.scale(),
            ..Args::default()
        }
    }

    /// Returns what the launch can hand on in a chain.
    fn hands(&self) -> Hands {
        let mut hands = Hands::default();
        match self.0.input {
            ProductInput::Operand(operand) => hands.takes.push(operand.codes),
            ProductInput::Norm { .. } => {}
            ProductInput::NormAddNorm { x, added, x_out, .. } => {
                hands.takes.push(added);
                hands.residual = Some(x);
                hands.updated = x_out;
            }
        }
        match self.0.output {
            ProductOutput::Segments(segments) => hands.gives.extend(segments.targets()),
            ProductOutput::Gated(made) => {
                hands.gives.extend(made.rows());
                hands.gives.extend(made.operand().map(|operand| operand.codes));
            }
            ProductOutput::Gates { target, .. } => hands.gives.push(target),
            _ => unreachable!("the kernel has no other outputs"),
        }
        hands
    }

    /// Asserts that the kernel can multiply this.
    fn check(&self) {
        let product = &self.0;
        assert_eq!(product.width, 1, "rows of activations");
        if let Some(operand) = product.input.operand() {
            let is_f32 = matches!(operand.kind, OperandKind::Plain | OperandKind::Interleaved);
            assert!(is_f32, "{:?}: activations are f32", operand.kind);
        }
        match product.output {
            ProductOutput::Segments(_)
            | ProductOutput::Gates { .. }
            | ProductOutput::Gated(Made::Rows(_)) => {}
            ProductOutput::Gated(Made::Operand(operand)) => {
                assert_eq!(operand.kind, OperandKind::Interleaved, "products are f32");
                assert!(product.outputs().is_multiple_of(SCALE_BLOCK), "whole blocks");
            }
            output => panic!("gated products go to one place as f32: {output:?}"),
        }
    }
}

impl ProductLaunch for OneRowLaunch {
    type Shape = OneRowShape;

    const KERNEL: &'static str = "one_row";

    fn product(&self) -> &Product {
        &self.0
    }

    fn offer(&self, capabilities: &Capabilities) -> Vec<OneRowShape> {
        let Product { matrix, input, .. } = &self.0;
        let mut shapes =
            OneRowShape::candidates(capabilities, matrix.format, matrix.columns, input.norms());
        let likeliest = shapes[0];
        let outputs_of_teams = FEW_OUTPUTS * likeliest.workgroups * likeliest.teams;
        let has_few = self.0.outputs() as u32 <= outputs_of_teams;
        let fewer = OneRowShape { batch: FEW_ROWS, ..likeliest };
        let has_long_rows = matrix.format == Format::Q8_0;
        if (has_few || has_long_rows) && likeliest.batch > FEW_ROWS {
            let place = shapes.iter().position(|shape| *shape == fewer).unwrap_or(0);
            shapes[..=place].rotate_right(1);
        }
        shapes
    }

    fn parameters(shape: &OneRowShape) -> Vec<u32> {
        let OneRowShape { lanes, teams, batch, workgroups, banks, turns } = *shape;
        vec![lanes, teams, batch, workgroups, banks, u32::from(turns)]
    }

    fn lay_out(
        &self,
        capabilities: &Capabilities,
        shape: OneRowShape,
        label: &str,
    ) -> Result<Layout, GpuError> {
        self.check();
        let Product { matrix, input, output, .. } = &self.0;
        let format = matrix.format;
        let blocks = (matrix.columns / SCALE_BLOCK) as u32;
        let local = shape.lanes * shape.teams;
        let norms = input.norms();
        let found = subgroup(capabilities).and_then(|subgroup| {
            let subgroups = local / subgroup;
            let staged =
                staged_blocks(format, blocks, subgroups, norms, capabilities.shared_bytes)?;
            Some((Shader::of("one_row", format.name())?, subgroup, staged))
        });
        let Some((shader, subgroup, staged)) = found else {
            return Err(no_room(capabilities, &shape, label));
        };
        let constants = vec![
            local,
            shape.lanes,
            blocks.div_ceil(shape.lanes),
            shape.batch,
            subgroup,
            input.number(),
            output.number(),
            4 * staged,
            (8 * staged).div_ceil(local),
            u32::from(shape.turns),
            shape.banks,
        ];
        Ok(Layout {
            kernel: KernelKey { shader, constants, subgroup: Some(subgroup) },
            push: Push::of(&self.args()),
            workgroups: self.workgroups(capabilities.kind, &shape),
            scratch: None,
            link: Link::Able {
                offset: std::mem::offset_of!(Args, chain),
                early: None,
                fill: Fill::Anywhere,
            },
            hands: Some(self.hands()),
        })
    }
}
