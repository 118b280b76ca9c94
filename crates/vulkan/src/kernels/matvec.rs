//! Products of a matrix with 1 to 8 rows of activations: `shaders/matvec.comp`.
//!
//! What bounds each variant, for one row of the matrix with k elements and w rows of activations:
//!
//! | format | bytes of the matrix | instructions per element (w = 1; for each further row) |
//! |---|---|---|
//! | F32, F16, BF16 | 4k, 2k | 1 + conversion 0, 0.5, 1; 1 |
//! | Q8_0 | 1.0625k | 16 dot products and about 6 others for 32: 0.7; 0.6 |
//! | Q4_0 | 0.5625k | the same and 12 to unpack nibbles: 1.1; 0.6 |
//! | Q4_1 | 0.625k | the same and 2 for the minimum: 1.1; 0.7 |
//! | Q5_0, Q5_1 | 0.688k, 0.75k | those of Q4_0, Q4_1 and 24, 16 for the fifth bits: 1.8, 1.6; 0.7 |
//! | Q2_K | 0.328k | 16 to unpack, 20 for scales and minima: 1.8; 1 |
//! | Q3_K | 0.453k | 40 to unpack, 8 for the scales: 2.2; 0.7 |
//! | Q4_K | 0.578k | the same and 8 for scale and minimum: 1.4; 0.7 |
//! | Q5_K | 0.703k | the same and 16 for the fifth bits: 1.9; 0.7 |
//! | Q6_K | 0.828k | 36 to unpack, 8 for the scales: 2.1; 0.7 |
//! | IQ4_NL, IQ4_XS | 0.563k, 0.547k | 36 to unpack, 80 for the levels: 4.3; 0.6 |
//! | MXFP4 | 0.531k | 36 to unpack, 64 for the levels: 3.8; 0.6 |
//! | NVFP4 | 0.578k | the same and 12 for the scales: 4; 0.7 |
//! | TQ2_0 | 0.266k | 16 to unpack, 6 others: 1.2; 0.6 |
//! | TQ1_0 | 0.219k | 85 for the digits, 8 others: 3.4; 0.7 |
//! | IQ2_XXS, IQ2_XS, IQ2_S | 0.266k, 0.297k, 0.328k | 36 for points, 81 for values, 15: 4.6; 0.6 |
//! | IQ3_XXS | 0.391k | 40 for points, 89 for signed values, 10: 4.8; 0.6 |
//! | IQ3_S | 0.438k | 56 for points, 48 for signed values, 10: 4.1; 0.6 |
//! | IQ1_S | 0.203k | 40 for points, 10 others: 2.1; 0.7 |
//! | IQ1_M | 0.219k | the same, 24 for shifts, 8 for scales: 3.1; 0.6 |
//!
//! At w = 1 all are bound by the bytes of the matrix, but on an H200 those of Q2_K and of levels
//! take no longer than the operations (`shaders/include/uneven.glsl`), and those of TQ1_0 and of
//! codebooks less (`shaders/include/codebook.glsl`). The operand comes from a cache: 2.25 bytes per
//! element (4 for float formats) for each row of activations and each team of invocations, so from
//! w = 4 on, with few rows of the matrix in a team, the nearest cache is the bound. More rows in a
//! team or fewer lanes lower that (teams of a subgroup read the same addresses). The prologues with
//! a norm read the residual stream (4 bytes per column for each of their two to four vectors) in
//! every workgroup and wait twice for a whole workgroup: about 1 to 2 us of latency, hidden by the
//! first weights, which are in flight meanwhile. The gated epilogue and the split of QKV cost
//! nothing that matters.

use bytemuck::{Pod, Zeroable};

use super::operand::{GROUP, OperandKind, SCALE_BLOCK};
use super::product::{
    Front, Layout, NormArgs, Product, ProductInput, ProductLaunch, ProductOutput, no_room, subgroup,
};
use crate::capabilities::{Capabilities, DeviceKind};
use crate::dispatch::{Fill, Link, Push};
use crate::error::GpuError;
use crate::kernels::handles::Made;
use crate::pack::Matrix;
use crate::raw::pipeline::KernelKey;
use crate::shaders::Shader;

#[cfg(test)]
pub(super) mod tests;

/// Most rows of activations.
pub const WIDTH_MAX: usize = 8;
/// Most pieces of four values of the residual stream in an invocation's registers: more would
/// spill.
const KEPT_MAX: u32 = 16;
/// More pieces than this make a kernel large and its first loads late.
const KEPT_WELL: u32 = 6;

/// Most elements of a matrix of floats whose product with one row can be part of a chain.
pub const CHAINED_ELEMENTS_MAX: usize = 1 << 20;

/// How the work is laid out on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MatvecShape {
    /// Invocations of a workgroup: a multiple of a subgroup.
    pub local: u32,
    /// Invocations that share the rows of a team: a power of two from 4 to `local`.
    pub lanes: u32,
    /// Rows of the matrix in a team: 1, 2, 4 or 8; for a gated product those of both matrices
    /// together, at least 2.
    pub rows: u32,
    /// Units (16 bytes of codes; 32 in Q8_0) of each row that an invocation has in flight.
    pub unroll: u32,
    /// Whether each unit is loaded again as soon as it is used, instead of all of them together:
    /// this keeps more loads of an invocation in flight, but takes more registers.
    pub ahead: bool,
    /// Most workgroups, each of which takes tiles in turn. 0: one workgroup for each tile.
    pub workgroups: u32,
}

/// A product with few rows of activations: 1 to [`WIDTH_MAX`]. Operands are [`OperandKind::Plain`]
/// for float formats and [`OperandKind::Fixed16`] for the others; gated products go to f32 rows, to
/// [`OperandKind::Fixed16`] or to both.
#[derive(Debug, Clone, Copy)]
pub struct MatvecLaunch(pub Product);

#[repr(C)]
#[derive(Debug, Clone, Copy, Default, Pod, Zeroable)]
pub(super) struct MatvecArgs {
    pub(super) front: Front,
    norm: NormArgs,
    rows: u32,
    columns: u32,
    splits: [u32; 2],
    epsilon: f32,
    scale: f32,
    chain: u64,
}

/// The specialisation constants, in the order of their numbers in `matvec.comp`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Constants {
    local: u32,
    lanes: u32,
    rows: u32,
    unroll: u32,
    columns: u32,
    subgroup: u32,
    prologue: u32,
    gated: u32,
    output: u32,
    staged: u32,
    kept: u32,
    gathered: u32,
    whole: u32,
    ahead: u32,
    chained: u32,
}

impl Constants {
    pub(super) fn list(self) -> Vec<u32> {
        vec![
            self.local,
            self.lanes,
            self.rows,
            self.unroll,
            self.columns,
            self.subgroup,
            self.prologue,
            self.gated,
            self.output,
            self.staged,
            self.kept,
            self.gathered,
            self.whole,
            self.ahead,
            self.chained,
        ]
    }
}

/// Outputs that a GPU with its own memory spreads over more workgroups than it has processors,
/// with a few for each: the usual tiles would leave one or two workgroups to read a whole router
/// (88 us for 128 x 2816 in f32 and 8 rows on an H100).
const FEW_OUTPUTS: usize = 512;

/// Returns whether an integrated GPU takes four rows of the matrix at a time first, because two
/// would read twice as much of the operand.
fn rereads(launch: &MatvecLaunch) -> bool {
    let width = launch.0.width;
    width == 4 || (width > 4 && !launch.0.matrix.format.is_wide())
}

impl MatvecShape {
    /// A shape to name in the error if none fits.
    const USUAL: Self =
        Self { local: 256, lanes: 8, rows: 2, unroll: 1, ahead: false, workgroups: 0 };

    /// Returns the shapes that are worth measuring on a device, the likeliest first.
    pub fn candidates(capabilities: &Capabilities, launch: &MatvecLaunch) -> Vec<Self> {
        let shape = |local, lanes, rows, unroll| Self {
            local,
            lanes,
            rows,
            unroll,
            ahead: false,
            workgroups: 0,
        };
        let wide = launch.0.width > 2;
        let discrete = !capabilities.is_unified();
        let list: Vec<Self> = match capabilities.kind {
            DeviceKind::Processor => {
                vec![shape(128, 8, 4, 1), shape(64, 8, 2, 1), shape(256, 8, 2, 1)]
            }
            DeviceKind::Integrated if rereads(launch) => vec![
                shape(64, 16, 4, 1),
                shape(128, 32, 4, 1),
                shape(128, 8, 4, 1),
                shape(64, 32, 2, 2),
                shape(64, 16, 2, 2),
                shape(256, 32, 2, 2),
                shape(256, 16, 2, 2),
                shape(256, 8, 2, 2),
            ],
            DeviceKind::Integrated => vec![
                shape(64, 32, 2, 2),
                shape(64, 64, 2, 2),
                shape(64, 16, 2, 2),
                shape(64, 16, 4, 1),
                shape(128, 32, 4, 1),
                shape(256, 32, 2, 2),
                shape(256, 16, 2, 2),
                shape(256, 8, 2, 2),
                shape(512, 16, 2, 2),
            ],
            _ if wide => vec![
                shape(256, 8, 4, 1),
                shape(128, 8, 4, 1),
                shape(256, 4, 4, 1),
                shape(256, 16, 4, 1),
                shape(256, 8, 2, 2),
                shape(128, 32, 4, 1),
                shape(256, 8, 8, 1),
            ],
            _ => vec![
                shape(256, 32, 2, 2),
                shape(128, 32, 2, 2),
                shape(128, 16, 2, 2),
                shape(256, 16, 2, 2),
                shape(256, 8, 2, 4),
                shape(512, 32, 2, 2),
                shape(512, 16, 2, 2),
                shape(512, 8, 2, 2),
                shape(512, 32, 4, 1),
                shape(1024, 32, 2, 2),
            ],
        };
        let few = launch.0.outputs() <= FEW_OUTPUTS && discrete;
        let spread = [shape(64, 64, 2, 2), shape(64, 32, 2, 2)].into_iter().filter(|_| few);
        let list: Vec<Self> = spread.chain(list).collect();
        let counts: &[u32] = match (launch.0.input, capabilities.kind) {
            // Every workgroup repeats the norm, so there are few, which take several tiles.
            (ProductInput::Operand(_), _) | (_, DeviceKind::Processor) => &[0],
            (_, DeviceKind::Integrated) => &[48, 96, 0],
            _ => &[264, 224, 132, 0],
        };
        let orders: &[bool] = if discrete { &[false, true] } else { &[false] };
        let mut shapes = Vec::new();
        for (shape, &ahead, &workgroups) in list
            .iter()
            .flat_map(|shape| orders.iter().map(move |ahead| (shape, ahead)))
            .flat_map(|(shape, ahead)| counts.iter().map(move |count| (shape, ahead, count)))
        {
            shapes.push(Self { ahead, workgroups, ..*shape });
        }
        shapes.retain(|shape| shape.fits(capabilities, launch));
        shapes.sort_by_key(|shape| launch.kept(shape.local) > KEPT_WELL);
        shapes
    }

    /// Returns whether a device can run a launch in this shape.
    pub fn fits(&self, capabilities: &Capabilities, launch: &MatvecLaunch) -> bool {
        let Some(subgroup) = subgroup(capabilities) else { return false };
        let gated = launch.0.is_gated();
        let fixed = launch.gives_fixed();
        let sizes = self.local.is_multiple_of(subgroup)
            && self.local > 0
            && self.local <= capabilities.invocations
            && self.lanes.is_power_of_two()
            && (4..=self.local).contains(&self.lanes)
            && self.local.is_multiple_of(self.lanes)
            && matches!(self.rows, 1 | 2 | 4 | 8)
            && self.unroll > 0;
        sizes
            && !(gated && self.rows == 1)
            && launch.kept(self.local) <= KEPT_MAX
            && (!fixed || self.tile_outputs(gated).is_multiple_of(SCALE_BLOCK as u32))
            && launch.shared_bytes(*self, subgroup) <= capabilities.shared_bytes
    }

    /// Returns the outputs of a workgroup's tile.
    fn tile_outputs(&self, gated: bool) -> u32 {
        self.local / self.lanes * if gated { self.rows / 2 } else { self.rows }
    }
}

impl MatvecLaunch {
    /// Returns whether gated products become an operand.
    fn gives_fixed(&self) -> bool {
        matches!(self.0.output, ProductOutput::Gated(made) if made.operand().is_some())
    }

    /// Returns the outputs of a workgroup's tile that it gathers to quantise them.
    fn gathered(&self, shape: MatvecShape) -> u32 {
        if self.gives_fixed() { shape.tile_outputs(true) * self.0.width as u32 } else { 0 }
    }

    /// Returns the 16-byte pieces of the operand that a norm leaves in shared memory.
    fn staged(&self) -> u32 {
        match self.0.input {
            ProductInput::Operand(_) => 0,
            _ if self.0.matrix.format.is_float() => 32 * self.0.groups(),
            _ => 16 * self.0.groups(),
        }
    }

    /// Returns the pieces of four values that an invocation of a norm keeps in registers.
    fn kept(&self, local: u32) -> u32 {
        if self.0.input.norms() { (32 * self.0.groups()).div_ceil(local) } else { 1 }
    }

    fn shared_bytes(&self, shape: MatvecShape, subgroup: u32) -> u32 {
        let staged = self.staged();
        let scales = if self.0.matrix.format.is_float() { 0 } else { 2 * staged };
        let subgroups = shape.local / subgroup;
        let parts = shape.rows * self.0.width as u32;
        let parts = if shape.lanes > subgroup { subgroups * parts } else { 1 };
        let gathered = self.gathered(shape).max(1);
        16 * staged.max(1) + scales + 8 * parts + 8 * subgroups + 4 * gathered + 16
    }

    pub(super) fn constants(&self, shape: MatvecShape, subgroup: u32) -> Constants {
        let Product { matrix, width, input, output } = self.0;
        let output = match output {
            ProductOutput::Gated(made) => {
                u32::from(made.rows().is_some()) | u32::from(made.operand().is_some()) << 1
            }
            _ => 1,
        };
        let units = self.0.groups() * GROUP as u32 / matrix.format.unit();
        Constants {
            local: shape.local,
            lanes: shape.lanes,
            rows: shape.rows,
            // More units than a row has would only be thrown away.
            unroll: shape.unroll.min(units.div_ceil(shape.lanes)),
            columns: width as u32,
            subgroup,
            prologue: input.number(),
            gated: u32::from(self.0.is_gated()),
            output,
            staged: self.staged(),
            kept: self.kept(shape.local),
            gathered: self.gathered(shape),
            whole: u32::from(matrix.columns.is_multiple_of(4)),
            ahead: u32::from(shape.ahead),
            chained: u32::from(self.chains()),
        }
    }

    /// Returns whether the launch can be part of a chain. It then reads its activations past the
    /// caches of single cores, which takes longer the more rows a matrix has.
    fn chains(&self) -> bool {
        let Product { matrix, width, .. } = &self.0;
        *width == 1
            && matrix.format.is_float()
            && matrix.rows * matrix.columns <= CHAINED_ELEMENTS_MAX
    }

    pub(super) fn args(&self) -> MatvecArgs {
        let product = &self.0;
        let (_, splits) = product.split();
        let mut args = MatvecArgs {
            front: product.front(),
            norm: product.input.norm_args(),
            rows: product.outputs() as u32,
            columns: product.matrix.columns as u32,
            splits,
            epsilon: product.input.epsilon(),
            scale: product.input.scale(),
            ..MatvecArgs::default()
        };
        if let ProductOutput::Gated(Made::Operand(_)) = product.output {
            // The address of the operand comes after those of the rows, even if there are no rows.
            args.front.outputs.rotate_right(1);
        }
        args
    }

    /// Asserts that the kernel can multiply this.
    pub(super) fn check(&self) {
        let Product { matrix, width, input, output } = self.0;
        assert!((1..=WIDTH_MAX).contains(&width), "{width} rows of activations");
        if let Some(operand) = input.operand() {
            let is_float = matrix.format.is_float();
            let kind = if is_float { OperandKind::Plain } else { OperandKind::Fixed16 };
            assert_eq!(operand.kind, kind, "the operand of {:?}", matrix.format);
        }
        match output {
            ProductOutput::Segments(_) | ProductOutput::Gated(Made::Rows(_)) => {}
            ProductOutput::Gated(Made::Operand(operand) | Made::Both(_, operand))
            | ProductOutput::GatedHalves { operand, .. } => {
                assert_eq!(operand.kind, OperandKind::Fixed16, "the result of a gated product");
            }
            ProductOutput::Gates { .. } => panic!("only the kernel for one row gates others"),
            output => panic!("only the kernel for halves adds biases: {output:?}"),
        }
    }

    /// Returns whether the kernel can count its parts, units and outputs, in 32 bits, one of which
    /// the driver takes as a sign.
    pub(super) fn is_countable(&self) -> bool {
        let Matrix { format, rows, columns, .. } = self.0.matrix;
        rows * columns.next_multiple_of(GROUP) / (format.unit() as usize) < 1 << 31
    }

    /// Returns the workgroups of a launch in a shape, on a device that takes at most `most`.
    pub(super) fn workgroups(&self, shape: MatvecShape, most: u32) -> u32 {
        let outputs = self.0.outputs();
        let padded = if self.gives_fixed() { outputs.next_multiple_of(GROUP) } else { outputs };
        let tiles = (padded as u32).div_ceil(shape.tile_outputs(self.0.is_gated()));
        let wanted = if shape.workgroups == 0 { u32::MAX } else { shape.workgroups };
        tiles.min(wanted).min(most)
    }
}

impl ProductLaunch for MatvecLaunch {
    type Shape = MatvecShape;

    const KERNEL: &'static str = "matvec";

    fn product(&self) -> &Product {
        &self.0
    }

    fn offer(&self, capabilities: &Capabilities) -> Vec<MatvecShape> {
        let mut shapes = MatvecShape::candidates(capabilities, self);
        if shapes.is_empty() {
            shapes.push(MatvecShape::USUAL);
        }
        shapes
    }

    fn parameters(shape: &MatvecShape) -> Vec<u32> {
        let MatvecShape { local, lanes, rows, unroll, ahead, workgroups } = *shape;
        vec![local, lanes, rows, unroll, u32::from(ahead), workgroups]
    }

    fn lay_out(
        &self,
        capabilities: &Capabilities,
        shape: MatvecShape,
        label: &str,
    ) -> Result<Layout, GpuError> {
        self.check();
        if !self.is_countable() {
            let Matrix { rows, columns, .. } = self.0.matrix;
            let what = format!("{label}, {rows} x {columns} elements,");
            return Err(GpuError::TooWide { device: capabilities.name.clone(), what });
        }
        let subgroup = subgroup(capabilities).filter(|_| shape.fits(capabilities, self));
        let Some(subgroup) = subgroup else {
            return Err(no_room(capabilities, &shape, label));
        };
        Ok(Layout {
            kernel: KernelKey {
                shader: Shader::of_matrix("matvec", self.0.matrix.format.name()),
                constants: self.constants(shape, subgroup).list(),
                subgroup: Some(subgroup),
            },
            push: Push::of(&self.args()),
            workgroups: self.workgroups(shape, capabilities.groups[0]),
            scratch: None,
            link: match self.chains() {
                true => Link::Able {
                    offset: std::mem::offset_of!(MatvecArgs, chain),
                    early: None,
                    fill: Fill::Anywhere,
                },
                false => Link::Outside,
            },
            hands: None,
        })
    }
}
