//! Products of a matrix with 1 to 8 rows of activations: `shaders/matvec.comp`.
//!
//! What bounds each variant, for one row of the matrix of k elements and w rows of activations:
//!
//! | format | bytes of the matrix | instructions per element (w = 1; for each further row) |
//! |---|---|---|
//! | F32, F16, BF16 | 4k, 2k | 1 + conversion 0, 0.5, 1; 1 |
//! | Q8_0 | 1.0625k | 16 dot products and about 6 others for 32: 0.7; 0.6 |
//! | Q4_0 | 0.5625k | the same and 12 to unpack nibbles: 1.1; 0.6 |
//! | Q4_K | 0.578k | the same and 8 for scale and minimum: 1.4; 0.7 |
//! | Q6_K | 0.828k | 36 to unpack, 8 for the scales: 2.1; 0.7 |
//!
//! At w = 1 all are bound by the bytes of the matrix. The operand comes from a cache: 2.25 bytes an element (4 for float
//! formats) for each row of activations and each team of invocations, so that from w = 4 on, with few rows of the matrix in a
//! team, the nearest cache is the bound; more rows in a team or fewer lanes (teams of a subgroup read the same addresses)
//! lower that. The prologues with a norm read the residual stream (4 bytes a column for each of their two to four vectors) in
//! every workgroup and wait two times for a whole workgroup: latency, about 1 to 2 us, hidden by the first weights that are
//! under way meanwhile. The gated epilogue and the split of QKV cost nothing that counts.

use bytemuck::{Pod, Zeroable};

use super::operand::{BLOCK, GROUP, Operand, OperandKind};
use super::tunable::Tunable;
use crate::capabilities::{Capabilities, DeviceKind};
use crate::dispatch::{Dispatch, Link, Push, Span};
use crate::error::GpuError;
use crate::pack::{Format, Matrix};
use crate::raw::gpu::Gpu;
use crate::raw::pipeline::KernelKey;
use crate::shaders::Shader;

#[cfg(test)]
mod tests;

/// Most rows of activations.
pub const WIDTH_MAX: usize = 8;
/// Most pieces of four values of the residual stream in an invocation's registers: with more they would spill.
const KEPT_MAX: u32 = 16;
/// More than these make a kernel large and its first loads late.
const KEPT_WELL: u32 = 6;
/// Least invocations of a subgroup: those that quantise a block together.
const SUBGROUP_MIN: u32 = 8;

/// How the work is laid out on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MatvecShape {
    /// Invocations of a workgroup: a multiple of a subgroup.
    pub local: u32,
    /// Invocations that share the rows of a team: a power of two from 4 to `local`.
    pub lanes: u32,
    /// Rows of the matrix in a team: 1, 2, 4 or 8; of a gated product both matrices' together, at least 2.
    pub rows: u32,
    /// Units (16 bytes of codes; 32 in Q8_0) of each row that an invocation has under way.
    pub unroll: u32,
    /// Whether each unit is loaded again as soon as it is used, not all of them together: more loads under way in an
    /// invocation, for more registers.
    pub ahead: bool,
    /// Most workgroups; each takes tiles in turn. 0 for one for each tile.
    pub workgroups: u32,
}

/// Where the activations come from.
#[derive(Debug, Clone, Copy)]
pub enum MatvecInput {
    /// An operand: [`OperandKind::Plain`] for float formats, [`OperandKind::Fixed16`] for the others. The kernel for one row
    /// takes [`OperandKind::Plain`] and [`OperandKind::Interleaved`].
    Operand(Operand),
    /// The norm of the residual stream; one row.
    Norm {
        /// The residual stream, (columns) f32.
        x: Span,
        /// Address of the norm's factors, (columns) f32.
        weight: u64,
        /// Added to the mean square.
        epsilon: f32,
    },
    /// The norm of the residual stream after the norm of something was added to it; one row.
    NormAddNorm {
        /// The residual stream, (columns) f32.
        x: Span,
        /// What is normed and added, (columns) f32.
        added: Span,
        /// Address of the factors of that norm, (columns) f32.
        added_weight: u64,
        /// Address of the factors of the second norm, (columns) f32.
        weight: u64,
        /// Added to the mean squares of both.
        epsilon: f32,
        /// Where the new residual stream goes; other memory than `x`, which all workgroups read.
        x_out: Span,
    },
}

/// Consecutive rows of the matrix and where their products go.
#[derive(Debug, Clone, Copy)]
pub struct Segment {
    /// Rows of the matrix.
    pub rows: usize,
    /// (width, rows) f32.
    pub target: Span,
}

/// What becomes of the products.
#[derive(Debug, Clone, Copy)]
pub enum MatvecOutput<'a> {
    /// They are written, the segments' rows one after the other: at most three, together the matrix.
    Segments(&'a [Segment]),
    /// `gelu(gate) * up` is written; the matrix is the rows of the gate and then those of `up`.
    Gated {
        /// (width, rows / 2) f32.
        plain: Option<Span>,
        /// The same as a [`OperandKind::Fixed16`] operand; by the kernel for one row as [`OperandKind::Interleaved`].
        operand: Option<Operand>,
    },
}

impl MatvecInput {
    /// Its part of a key of measurements.
    pub(super) fn name(&self) -> &'static str {
        match self {
            MatvecInput::Operand(operand) => operand.kind.name(),
            MatvecInput::Norm { .. } => "norm",
            MatvecInput::NormAddNorm { .. } => "norm-add-norm",
        }
    }
}

impl MatvecOutput<'_> {
    /// Its part of a key of measurements.
    pub(super) fn name(&self) -> &'static str {
        match self {
            MatvecOutput::Segments(_) => "rows",
            MatvecOutput::Gated { operand: None, .. } => "gated",
            MatvecOutput::Gated { plain: None, .. } => "gated-operand",
            MatvecOutput::Gated { .. } => "gated-both",
        }
    }
}

/// A product with few rows of activations.
#[derive(Debug, Clone, Copy)]
pub struct MatvecLaunch<'a> {
    /// The matrix.
    pub matrix: Matrix,
    /// Rows of activations, 1 to [`WIDTH_MAX`]; 1 with a norm.
    pub width: usize,
    /// The activations.
    pub input: MatvecInput,
    /// Where the products go.
    pub output: MatvecOutput<'a>,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Default, Pod, Zeroable)]
struct Args {
    codes: u64,
    high: u64,
    scales: u64,
    supers: u64,
    operand: u64,
    sums: u64,
    outputs: [u64; 3],
    weight: u64,
    added_weight: u64,
    x_out: u64,
    rows: u32,
    columns: u32,
    splits: [u32; 2],
    strides: [u32; 3],
    epsilon: f32,
}

/// The specialisation constants, in the order of their numbers in `matvec.comp`.
#[derive(Debug, Clone, Copy)]
struct Constants {
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
}

impl Constants {
    fn list(self) -> Vec<u32> {
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
        ]
    }
}

/// Name of the shader for a format.
fn shader(format: Format) -> Shader {
    Shader(match format {
        Format::F32 => "matvec_f32",
        Format::F16 => "matvec_f16",
        Format::Bf16 => "matvec_bf16",
        Format::Q8_0 => "matvec_q8_0",
        Format::Q4_0 => "matvec_q4_0",
        Format::Q4K => "matvec_q4_k",
        Format::Q6K => "matvec_q6_k",
    })
}

/// Elements of a unit: what one load of codes of an invocation holds.
fn unit(format: Format) -> u32 {
    match format {
        Format::F32 => 4,
        Format::F16 | Format::Bf16 => 8,
        _ => BLOCK as u32,
    }
}

impl MatvecShape {
    /// A shape that does well on a device, before anything is measured.
    pub fn default_for(capabilities: &Capabilities, launch: &MatvecLaunch<'_>) -> Self {
        let all = Self::candidates(capabilities, launch);
        let fallback =
            Self { local: 256, lanes: 8, rows: 2, unroll: 1, ahead: false, workgroups: 0 };
        all.first().copied().unwrap_or(fallback)
    }

    /// The shapes that are worth measuring on a device, the likeliest first.
    pub fn candidates(capabilities: &Capabilities, launch: &MatvecLaunch<'_>) -> Vec<Self> {
        let shape = |local, lanes, rows, unroll| Self {
            local,
            lanes,
            rows,
            unroll,
            ahead: false,
            workgroups: 0,
        };
        let wide = launch.width > 2;
        let list: Vec<Self> = match capabilities.kind {
            DeviceKind::Processor => {
                vec![shape(128, 8, 4, 1), shape(64, 8, 2, 1), shape(256, 8, 2, 1)]
            }
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
        let counts: &[u32] = match (launch.input, capabilities.kind) {
            // Every workgroup repeats the norm: few that stay.
            (MatvecInput::Operand(_), _) | (_, DeviceKind::Processor) => &[0],
            (_, DeviceKind::Integrated) => &[48, 96, 0],
            _ => &[264, 224, 132, 0],
        };
        let discrete = !matches!(capabilities.kind, DeviceKind::Processor | DeviceKind::Integrated);
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

    /// Whether a device can run a launch in this shape.
    pub fn fits(&self, capabilities: &Capabilities, launch: &MatvecLaunch<'_>) -> bool {
        let Some(subgroup) = subgroup(capabilities) else { return false };
        let gated = matches!(launch.output, MatvecOutput::Gated { .. });
        let fixed = matches!(launch.output, MatvecOutput::Gated { operand: Some(_), .. });
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
            && (!fixed || self.tile_outputs(gated).is_multiple_of(BLOCK as u32))
            && launch.shared_bytes(*self, subgroup) <= capabilities.shared_bytes
    }

    /// Outputs of a workgroup's tile.
    fn tile_outputs(&self, gated: bool) -> u32 {
        self.local / self.lanes * if gated { self.rows / 2 } else { self.rows }
    }
}

/// Invocations of a subgroup in kernels that quantise; `None` if the device has too few.
pub(super) fn subgroup(capabilities: &Capabilities) -> Option<u32> {
    let (_, most) = capabilities.subgroup_range;
    let size = capabilities.subgroup.max(SUBGROUP_MIN);
    (size == capabilities.subgroup || size <= most).then_some(size)
}

impl MatvecLaunch<'_> {
    /// Bytes of activations and outputs that do not depend on the shape, and of weights: what the launch moves at least.
    pub fn bytes(&self) -> u64 {
        self.matrix.cost(self.width).0 + (4 * self.width * self.outputs()) as u64
    }

    fn is_gated(&self) -> bool {
        matches!(self.output, MatvecOutput::Gated { .. })
    }

    fn outputs(&self) -> usize {
        if self.is_gated() { self.matrix.rows / 2 } else { self.matrix.rows }
    }

    fn groups(&self) -> u32 {
        self.matrix.columns.div_ceil(GROUP) as u32
    }

    /// 16-byte pieces of the operand that a norm leaves in shared memory.
    fn staged(&self) -> u32 {
        match self.input {
            MatvecInput::Operand(_) => 0,
            _ if self.matrix.format.is_float() => 32 * self.groups(),
            _ => 16 * self.groups(),
        }
    }

    /// Pieces of four values that an invocation of a norm keeps in registers.
    fn kept(&self, local: u32) -> u32 {
        match self.input {
            MatvecInput::Operand(_) => 1,
            _ => (32 * self.groups()).div_ceil(local),
        }
    }

    fn shared_bytes(&self, shape: MatvecShape, subgroup: u32) -> u32 {
        let width = self.width as u32;
        let staged = self.staged();
        let scales = if self.matrix.format.is_float() { 0 } else { 2 * staged };
        let subgroups = shape.local / subgroup;
        let parts = if shape.lanes > subgroup { subgroups * shape.rows * width } else { 1 };
        let gathered = match self.output {
            MatvecOutput::Gated { operand: Some(_), .. } => shape.tile_outputs(true) * width,
            _ => 1,
        };
        16 * staged.max(1) + scales + 8 * parts + 8 * subgroups + 4 * gathered + 16
    }

    fn constants(&self, shape: MatvecShape, subgroup: u32) -> Constants {
        let (gated, output, gathered) = match self.output {
            MatvecOutput::Segments(_) => (0, 1, 0),
            MatvecOutput::Gated { plain, operand } => {
                let width = self.width as u32;
                let gathered = operand.map_or(0, |_| shape.tile_outputs(true) * width);
                (1, u32::from(plain.is_some()) | u32::from(operand.is_some()) << 1, gathered)
            }
        };
        let prologue = match self.input {
            MatvecInput::Operand(_) => 0,
            MatvecInput::Norm { .. } => 1,
            MatvecInput::NormAddNorm { .. } => 2,
        };
        Constants {
            local: shape.local,
            lanes: shape.lanes,
            rows: shape.rows,
            // More than a row holds would only be thrown away.
            unroll: shape.unroll.min(
                (self.groups() * GROUP as u32 / unit(self.matrix.format)).div_ceil(shape.lanes),
            ),
            columns: self.width as u32,
            subgroup,
            prologue,
            gated,
            output,
            staged: self.staged(),
            kept: self.kept(shape.local),
            gathered,
            whole: u32::from(self.matrix.columns.is_multiple_of(4)),
            ahead: u32::from(shape.ahead),
        }
    }

    fn args(&self) -> Args {
        let planes = self.matrix.planes;
        let outputs = self.outputs() as u32;
        let mut args = Args {
            codes: planes.codes,
            high: planes.high,
            scales: planes.scales,
            supers: planes.supers,
            rows: outputs,
            columns: self.matrix.columns as u32,
            ..Args::default()
        };
        match self.input {
            MatvecInput::Operand(operand) => {
                args.operand = operand.codes.address;
                args.sums = operand.scales.address;
            }
            MatvecInput::Norm { x, weight, epsilon } => {
                (args.operand, args.weight, args.epsilon) = (x.address, weight, epsilon);
            }
            MatvecInput::NormAddNorm { x, added, added_weight, weight, epsilon, x_out } => {
                (args.operand, args.weight, args.epsilon) = (x.address, weight, epsilon);
                (args.sums, args.added_weight) = (added.address, added_weight);
                args.x_out = x_out.address;
            }
        }
        match self.output {
            MatvecOutput::Segments(segments) => {
                args.splits = [outputs; 2];
                let mut row = 0;
                for (index, segment) in segments.iter().enumerate() {
                    args.outputs[index] = segment.target.address;
                    args.strides[index] = segment.rows as u32;
                    row += segment.rows as u32;
                    if let Some(split) = args.splits.get_mut(index) {
                        *split = row;
                    }
                }
            }
            MatvecOutput::Gated { plain, operand } => {
                args.splits = [outputs, 2 * outputs];
                args.strides[0] = outputs;
                args.outputs = [
                    plain.map_or(0, |span| span.address),
                    operand.map_or(0, |operand| operand.codes.address),
                    operand.map_or(0, |operand| operand.scales.address),
                ];
            }
        }
        args
    }

    fn check(&self) {
        let matrix = self.matrix;
        assert!((1..=WIDTH_MAX).contains(&self.width), "{} rows of activations", self.width);
        assert!(matrix.rows > 0 && matrix.columns > 0, "an empty matrix");
        // Kernels count units and outputs in 32 bits, of which the driver takes one as a sign.
        let units =
            matrix.rows * matrix.columns.next_multiple_of(GROUP) / unit(matrix.format) as usize;
        assert!(units < 1 << 31, "a matrix of {} x {}", matrix.rows, matrix.columns);
        match self.input {
            MatvecInput::Operand(operand) => {
                let kind = if matrix.format.is_float() {
                    OperandKind::Plain
                } else {
                    OperandKind::Fixed16
                };
                assert_eq!(operand.kind, kind, "the operand of {:?}", matrix.format);
            }
            MatvecInput::Norm { .. } => assert_eq!(self.width, 1, "a norm is of one row"),
            MatvecInput::NormAddNorm { x, x_out, .. } => {
                assert_eq!(self.width, 1, "a norm is of one row");
                assert!(!x.overlaps(x_out), "all workgroups read the old residual stream");
            }
        }
        match self.output {
            MatvecOutput::Segments(segments) => {
                assert!((1..=3).contains(&segments.len()), "{} segments", segments.len());
                let rows: usize = segments.iter().map(|segment| segment.rows).sum();
                assert_eq!(rows, matrix.rows, "rows of the segments");
            }
            MatvecOutput::Gated { operand, .. } => {
                assert!(matrix.rows.is_multiple_of(2), "gate and up have as many rows");
                assert!(operand.is_none_or(|operand| operand.kind == OperandKind::Fixed16));
            }
        }
    }

    /// What the launch in a shape is compiled from.
    ///
    /// # Errors
    /// If the device cannot run the shape.
    pub fn key(
        &self,
        capabilities: &Capabilities,
        shape: MatvecShape,
    ) -> Result<KernelKey, GpuError> {
        let subgroup = subgroup(capabilities).filter(|_| shape.fits(capabilities, self));
        let Some(subgroup) = subgroup else {
            return Err(GpuError::Missing {
                device: capabilities.name.clone(),
                what: format!("room for a matrix-vector product in {shape:?}"),
            });
        };
        let constants = self.constants(shape, subgroup).list();
        Ok(KernelKey { shader: shader(self.matrix.format), constants, subgroup: Some(subgroup) })
    }

    /// The dispatch of the launch in a shape.
    ///
    /// # Errors
    /// If the device cannot run the shape or the kernel cannot be compiled.
    ///
    /// # Panics
    /// If the launch contradicts itself: an operand of the wrong kind, several rows with a norm, segments that are not the
    /// matrix.
    pub fn dispatch(
        &self,
        gpu: &Gpu,
        shape: MatvecShape,
        label: &str,
        step: usize,
    ) -> Result<Dispatch, GpuError> {
        self.check();
        let key = self.key(gpu.capabilities(), shape)?;
        let padded = match self.output {
            MatvecOutput::Gated { operand: Some(_), .. } => self.outputs().next_multiple_of(GROUP),
            _ => self.outputs(),
        };
        let tiles = (padded as u32).div_ceil(shape.tile_outputs(self.is_gated()));
        let most = if shape.workgroups == 0 { u32::MAX } else { shape.workgroups };
        let (reads, writes) = self.spans();
        Ok(Dispatch {
            label: label.to_owned(),
            step,
            kernel: gpu.kernel(&key)?,
            push: Push::of(&self.args()),
            groups: [tiles.min(most).min(gpu.capabilities().groups[0]), 1, 1],
            reads,
            writes,
            link: Link::Outside,
        })
    }

    fn spans(&self) -> (Vec<Span>, Vec<Span>) {
        let mut writes = Vec::new();
        let reads = match self.input {
            MatvecInput::Operand(operand) => operand.spans().collect(),
            MatvecInput::Norm { x, .. } => vec![x],
            MatvecInput::NormAddNorm { x, added, x_out, .. } => {
                writes.push(x_out);
                vec![x, added]
            }
        };
        match self.output {
            MatvecOutput::Segments(segments) => {
                writes.extend(segments.iter().map(|segment| segment.target));
            }
            MatvecOutput::Gated { plain, operand } => {
                writes.extend(plain);
                writes.extend(operand.iter().flat_map(Operand::spans));
            }
        }
        (reads, writes)
    }
}

impl Tunable for MatvecLaunch<'_> {
    type Shape = MatvecShape;

    fn key(&self) -> String {
        let Matrix { format, rows, columns, .. } = self.matrix;
        let (width, input, output) = (self.width, self.input.name(), self.output.name());
        format!("matvec {} {rows}x{columns} w{width} {input} {output}", format.name())
    }

    fn offer(&self, capabilities: &Capabilities) -> Vec<MatvecShape> {
        let mut shapes = MatvecShape::candidates(capabilities, self);
        if shapes.is_empty() {
            shapes.push(MatvecShape::default_for(capabilities, self));
        }
        shapes
    }

    fn parameters(shape: &MatvecShape) -> Vec<u32> {
        let MatvecShape { local, lanes, rows, unroll, ahead, workgroups } = *shape;
        vec![local, lanes, rows, unroll, u32::from(ahead), workgroups]
    }

    fn cost(&self) -> (u64, u64) {
        self.matrix.cost(self.width)
    }

    fn dispatch(
        &self,
        gpu: &Gpu,
        shape: MatvecShape,
        label: &str,
        step: usize,
    ) -> Result<Dispatch, GpuError> {
        MatvecLaunch::dispatch(self, gpu, shape, label, step)
    }
}
