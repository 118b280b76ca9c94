//! Products of a matrix with rows of activations: what they read and write, whichever kernel
//! multiplies, and how they are launched.
//!
//! The kernels are [`super::one_row`] for one row, [`super::matvec`] for few, [`super::matmul`] for
//! more. The arguments of all three begin with the same `Front`.

use std::fmt::Debug;

use bytemuck::{Pod, Zeroable};

use super::handles::{Addresses, Handles, Made, Role, Visitor, spans};
use super::operand::{GROUP, Operand, OperandKind};
use crate::capabilities::Capabilities;
use crate::compiler::Compiler;
use crate::dispatch::{Dispatch, Hands, Link, Push, Span};
use crate::error::GpuError;
use crate::pack::Matrix;
use crate::raw::pipeline::KernelKey;

/// Most pieces of memory that the results of a product go to.
pub(crate) const OUTPUTS_MAX: usize = 3;
/// Least invocations of a subgroup: this many quantise a block together.
const SUBGROUP_MIN: u32 = 8;

/// Where the activations come from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ProductInput<H: Handles = Addresses> {
    /// An operand. Which kinds are possible depends on the kernel.
    Operand(H::Form),
    /// The norm of the residual stream, which every workgroup computes for itself; one row.
    Norm {
        /// The residual stream, (columns) f32.
        x: H::Rows,
        /// The norm's factors, (columns) f32.
        weight: H::Vector,
        /// Added to the mean square.
        epsilon: f32,
    },
    /// The norm of the residual stream after the norm of something was added to it; one row.
    NormAddNorm {
        /// The residual stream, (columns) f32.
        x: H::Rows,
        /// Factor on the sum.
        scale: f32,
        /// What is normed and added, (columns) f32.
        added: H::Rows,
        /// The factors of that norm, (columns) f32.
        added_weight: H::Vector,
        /// The factors of the second norm, (columns) f32.
        weight: H::Vector,
        /// Added to the mean squares of both.
        epsilon: f32,
        /// Where the new residual stream goes; other memory than `x`, which all workgroups read.
        /// `None` if another product writes it.
        x_out: Option<H::Rows>,
    },
}

/// Consecutive rows of the matrix and where their products go.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Segment<H: Handles = Addresses> {
    /// Rows of the matrix.
    pub rows: usize,
    /// (width, rows) f32.
    pub target: H::Rows,
}

/// At most [`OUTPUTS_MAX`] segments, which together are the matrix.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Segments<H: Handles = Addresses>([Option<Segment<H>>; OUTPUTS_MAX]);

impl<H: Handles> Segments<H> {
    /// Returns these segments.
    ///
    /// # Panics
    /// If there are more than [`OUTPUTS_MAX`].
    pub fn of(segments: &[Segment<H>]) -> Self {
        assert!(segments.len() <= OUTPUTS_MAX, "{} segments", segments.len());
        Self(std::array::from_fn(|at| segments.get(at).copied()))
    }

    /// Returns them in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Segment<H>> {
        self.0.iter().flatten()
    }

    /// Returns the memory that they take, in order.
    pub(crate) fn targets(&self) -> Vec<H::Rows> {
        self.iter().map(|segment| segment.target).collect()
    }

    /// Returns the only one's memory, if there is one segment.
    pub(crate) fn only(&self) -> Option<H::Rows> {
        match self.0 {
            [Some(segment), None, None] => Some(segment.target),
            _ => None,
        }
    }

    /// Returns the same rows with other memory.
    pub(crate) fn map<B: Handles>(
        &self,
        mut target: impl FnMut(&Segment<H>) -> B::Rows,
    ) -> Segments<B> {
        Segments(
            self.0.map(|segment| segment.map(|it| Segment { rows: it.rows, target: target(&it) })),
        )
    }
}

/// The biases of each output: of each segment, or of each third.
pub type Biases<H = Addresses> = [Option<<H as Handles>::Vector>; OUTPUTS_MAX];

/// What is done with the products.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ProductOutput<H: Handles = Addresses> {
    /// They are written, the segments' rows one after another.
    Segments(Segments<H>),
    /// `gelu(gate) * up` is written; the matrix consists of the rows of the gate followed by those
    /// of `up`. (width, rows / 2); which kinds of operands are possible depends on the kernel.
    Gated(Made<H>),
    /// The products of each segment and its biases are written. For weights in
    /// [`Format::F16Fragments`](crate::pack::Format::F16Fragments).
    Biased {
        /// As in [`ProductOutput::Segments`].
        segments: Segments<H>,
        /// The biases of each segment, (rows of the segment) f32.
        biases: Biases<H>,
    },
    /// `gelu(product + bias)` is written as an operand in halves. For such weights, too.
    Activated {
        /// The biases, (rows) f32.
        bias: H::Vector,
        /// (width, rows) in [`OperandKind::Fragments`].
        operand: H::Operand,
        /// As in [`ProductOutput::GatedHalves`].
        unit: H::Unit,
    },
    /// Queries, keys and values of a picture are written with their biases, a third of the rows
    /// each. For such weights, too.
    Heads {
        /// (width, rows / 3) f32.
        query: H::Rows,
        /// As [`WholeLaunch`](crate::kernels::attention::WholeLaunch) takes them.
        keys: H::Rows,
        /// As [`WholeLaunch`](crate::kernels::attention::WholeLaunch) takes them.
        values: H::Rows,
        /// Elements of a head.
        dim: usize,
        /// The biases of each third, (rows / 3) f32.
        biases: Biases<H>,
    },
    /// `gelu(product) * by` is written.
    Gates {
        /// (1, rows) f32 after the first columns.
        by: H::Rows,
        /// Columns before these.
        first: usize,
        /// (1, rows) f32.
        target: H::Rows,
    },
    /// The same as [`ProductOutput::Gated`] as an operand in halves.
    GatedHalves {
        /// (width, rows / 2), whole groups of columns, of the same kind as the input:
        /// [`OperandKind::Halves`] or [`OperandKind::Fragments`].
        operand: H::Operand,
        /// The power of two in whose units all rows are counted. No result may exceed 65504 units;
        /// results below 2^-14 of a unit lose bits.
        unit: H::Unit,
    },
}

/// A product of a matrix with rows of activations.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Product<H: Handles = Addresses> {
    /// The matrix.
    pub matrix: H::Joint,
    /// Rows of activations; 1 with a norm.
    pub width: usize,
    /// The activations.
    pub input: ProductInput<H>,
    /// Where the products go.
    pub output: ProductOutput<H>,
}

impl<H: Handles> Product<H> {
    /// Returns the product over what a visitor gives for its operands.
    pub(crate) fn visit<B: Handles>(&self, by: &mut impl Visitor<H, B>) -> Product<B> {
        let input = match self.input {
            ProductInput::Operand(form) => ProductInput::Operand(by.form(form)),
            ProductInput::Norm { x, weight, epsilon } => {
                ProductInput::Norm { x: by.read(x), weight: by.vector(weight), epsilon }
            }
            ProductInput::NormAddNorm { x, scale, added, added_weight, weight, epsilon, x_out } => {
                ProductInput::NormAddNorm {
                    added: by.read(added),
                    x: by.read(x),
                    x_out: x_out.map(|rows| by.write(rows)),
                    added_weight: by.vector(added_weight),
                    weight: by.vector(weight),
                    scale,
                    epsilon,
                }
            }
        };
        let matrix = by.joint(&self.matrix, 0);
        Product { matrix, width: self.width, input, output: self.visit_output(by) }
    }

    /// Returns whether gate and up are multiplied.
    pub(crate) fn is_gated(&self) -> bool {
        matches!(self.output, ProductOutput::Gated(_) | ProductOutput::GatedHalves { .. })
    }

    fn visit_output<B: Handles>(&self, by: &mut impl Visitor<H, B>) -> ProductOutput<B> {
        match self.output {
            ProductOutput::Segments(segments) => {
                ProductOutput::Segments(segments.map(|segment| by.write(segment.target)))
            }
            ProductOutput::Biased { segments, biases } => ProductOutput::Biased {
                segments: segments.map(|segment| by.write(segment.target)),
                biases: biases.map(|bias| bias.map(|bias| by.vector(bias))),
            },
            ProductOutput::Gated(made) => ProductOutput::Gated(made.visit(by)),
            ProductOutput::Activated { bias, operand, unit } => ProductOutput::Activated {
                bias: by.vector(bias),
                operand: by.operand(Role::Write, operand),
                unit: by.unit(unit, &self.matrix),
            },
            ProductOutput::Heads { query, keys, values, dim, biases } => ProductOutput::Heads {
                query: by.write(query),
                keys: by.write(keys),
                values: by.write(values),
                dim,
                biases: biases.map(|bias| bias.map(|bias| by.vector(bias))),
            },
            ProductOutput::Gates { by: row, first, target } => ProductOutput::Gates {
                by: by.read_from(row, first),
                first,
                target: by.write(target),
            },
            ProductOutput::GatedHalves { operand, unit } => ProductOutput::GatedHalves {
                operand: by.operand(Role::Write, operand),
                unit: by.unit(unit, &self.matrix),
            },
        }
    }
}

/// The arguments with which those of every kernel begin.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, Pod, Zeroable)]
pub(super) struct Front {
    codes: u64,
    /// The other planes, or the biases of each output.
    high: u64,
    scales: u64,
    supers: u64,
    /// Codes of the activations, or with a norm the residual stream.
    source: u64,
    /// Scales of the activations, or with two norms what is added.
    beside: u64,
    /// Where the products go, beginning with the first.
    pub(super) outputs: [u64; OUTPUTS_MAX],
}

impl Front {
    /// Sets the planes of a matrix that has no others.
    pub(super) fn set_planes(&mut self, codes: u64, scales: u64) {
        (self.codes, self.scales) = (codes, scales);
    }
}

/// The arguments of the norms before a product.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, Pod, Zeroable)]
pub(super) struct NormArgs {
    weight: u64,
    added_weight: u64,
    x_out: u64,
}

/// A launch in one of its shapes.
#[derive(Debug, Clone)]
pub struct Layout {
    /// What the kernel is compiled from.
    pub kernel: KernelKey,
    /// Its arguments.
    pub push: Push,
    /// Workgroups.
    pub workgroups: u32,
    /// Memory that it reads and writes besides activations and products.
    pub scratch: Option<Span>,
    /// Its part in a chain.
    pub link: Link,
    /// What it can hand on in a chain.
    pub hands: Option<Hands>,
}

/// A product to be launched with one of the kernels. It has several shapes, which differ in speed
/// and in the last bits of their sums; measurements find the best.
pub trait ProductLaunch: Sync {
    /// A way to lay it out on the device.
    type Shape: Copy + Send + Sync;

    /// The kernel's part of [`ProductLaunch::key`].
    const KERNEL: &'static str;

    /// What is multiplied.
    fn product(&self) -> &Product;

    /// Returns the shapes that the device can run: at least one, if the kernel can multiply this on
    /// the device at all. The first is the one to use before anything is measured.
    fn offer(&self, capabilities: &Capabilities) -> Vec<Self::Shape>;

    /// Returns the numbers that distinguish a shape from the others.
    fn parameters(shape: &Self::Shape) -> Vec<u32>;

    /// Returns the launch in a shape. `label` names it in errors.
    ///
    /// # Errors
    /// If the device cannot run the shape.
    ///
    /// # Panics
    /// If the kernel cannot multiply the product: an operand of the wrong kind, or too little
    /// scratch memory.
    fn lay_out(
        &self,
        capabilities: &Capabilities,
        shape: Self::Shape,
        label: &str,
    ) -> Result<Layout, GpuError>;

    /// Returns what the best shape depends on: kernel, format, rows x columns of the matrix, rows
    /// of activations (w), where they come from and where the products go. Launches with one key
    /// take the same time in the same shape.
    fn key(&self) -> String {
        let Product { matrix, width, input, output } = self.product();
        let Matrix { format, rows, columns, .. } = matrix;
        let [kernel, format, input, output] =
            [Self::KERNEL, format.name(), input.name(), output.name()];
        let form = self.form();
        format!("{kernel} {format} {rows}x{columns} w{width} {input} {output}{form}")
    }

    /// Returns the end of [`ProductLaunch::key`]: what else makes the kernel offer other shapes.
    fn form(&self) -> &'static str {
        ""
    }

    /// Returns the dispatch of the launch in a shape.
    ///
    /// # Errors
    /// If the device cannot run the shape or the kernel cannot be compiled.
    ///
    /// # Panics
    /// If the product contradicts itself, for example by segments that are not the matrix, or if
    /// the kernel cannot multiply it.
    fn dispatch(
        &self,
        gpu: &dyn Compiler,
        shape: Self::Shape,
        label: &str,
        step: usize,
    ) -> Result<Dispatch, GpuError> {
        self.product().check();
        let Layout { kernel, push, workgroups, scratch, link, hands } =
            self.lay_out(gpu.capabilities(), shape, label)?;
        let (mut reads, mut writes) = spans(|look| _ = self.product().visit(look));
        reads.extend(scratch);
        writes.extend(scratch);
        Ok(Dispatch {
            label: label.to_owned(),
            step,
            kernel: gpu.kernel(&kernel)?,
            push,
            groups: [workgroups, 1, 1],
            reads,
            writes,
            link,
            hands,
        })
    }
}

impl ProductInput {
    /// Returns its part of a key of measurements.
    fn name(&self) -> &'static str {
        match self {
            ProductInput::Operand(operand) => operand.kind.name(),
            ProductInput::Norm { .. } => "norm",
            ProductInput::NormAddNorm { .. } => "norm-add-norm",
        }
    }

    /// Returns the operand, if the input is one.
    pub(super) fn operand(&self) -> Option<Operand> {
        match self {
            ProductInput::Operand(operand) => Some(*operand),
            ProductInput::Norm { .. } | ProductInput::NormAddNorm { .. } => None,
        }
    }

    /// Returns whether the product begins with a norm.
    pub(super) fn norms(&self) -> bool {
        self.operand().is_none()
    }

    /// Returns the shaders' number for it.
    pub(super) fn number(&self) -> u32 {
        match self {
            ProductInput::Operand(Operand { kind: OperandKind::Interleaved, .. }) => 3,
            ProductInput::Operand(_) => 0,
            ProductInput::Norm { .. } => 1,
            ProductInput::NormAddNorm { .. } => 2,
        }
    }

    /// Returns what is added to the mean square of a norm.
    pub(super) fn epsilon(&self) -> f32 {
        match self {
            ProductInput::Operand(_) => 0.0,
            ProductInput::Norm { epsilon, .. } | ProductInput::NormAddNorm { epsilon, .. } => {
                *epsilon
            }
        }
    }

    /// Returns the factor on the residual stream after an addition.
    pub(super) fn scale(&self) -> f32 {
        match self {
            ProductInput::NormAddNorm { scale, .. } => *scale,
            ProductInput::Operand(_) | ProductInput::Norm { .. } => 1.0,
        }
    }

    /// Returns the addresses of the norms' factors and of the new residual stream.
    pub(super) fn norm_args(&self) -> NormArgs {
        match *self {
            ProductInput::Operand(_) => NormArgs::default(),
            ProductInput::Norm { weight, .. } => NormArgs { weight, ..NormArgs::default() },
            ProductInput::NormAddNorm { weight, added_weight, x_out, .. } => {
                NormArgs { weight, added_weight, x_out: x_out.map_or(0, |span| span.address) }
            }
        }
    }

    /// Returns the addresses of the activations and of what goes with them.
    fn addresses(&self) -> [u64; 2] {
        match self {
            ProductInput::Operand(operand) => [operand.codes.address, operand.scales.address],
            ProductInput::Norm { x, .. } => [x.address, 0],
            ProductInput::NormAddNorm { x, added, .. } => [x.address, added.address],
        }
    }
}

impl<H: Handles> ProductOutput<H> {
    /// Returns that these segments are written.
    pub fn segments(segments: &[Segment<H>]) -> Self {
        ProductOutput::Segments(Segments::of(segments))
    }

    /// Returns whether it is an operand in halves.
    pub(crate) fn is_halves(&self) -> bool {
        matches!(self, ProductOutput::GatedHalves { .. } | ProductOutput::Activated { .. })
    }
}

impl ProductOutput {
    /// Returns its part of a key of measurements.
    fn name(&self) -> &'static str {
        match self {
            ProductOutput::Segments(_) => "rows",
            ProductOutput::Gated(Made::Rows(_)) => "gated",
            ProductOutput::Gated(Made::Operand(_)) => "gated-operand",
            ProductOutput::Gated(Made::Both(..)) => "gated-both",
            ProductOutput::GatedHalves { .. } => "gated halves",
            ProductOutput::Biased { .. } => "biased rows",
            ProductOutput::Activated { .. } => "activated halves",
            ProductOutput::Heads { .. } => "heads",
            ProductOutput::Gates { .. } => "gates",
        }
    }

    /// Returns its number in shaders that write gated products in only one form.
    pub(super) fn number(&self) -> u32 {
        match self {
            ProductOutput::Segments(_) => 0,
            ProductOutput::Gated(Made::Rows(_)) => 1,
            ProductOutput::Gated(_) | ProductOutput::GatedHalves { .. } => 2,
            ProductOutput::Gates { .. } => 3,
            ProductOutput::Biased { .. } => 4,
            ProductOutput::Activated { .. } => 5,
            ProductOutput::Heads { .. } => 6,
        }
    }

    /// Returns what the kernels' arguments name, in their order; what gates are multiplied by comes
    /// last.
    fn spans(&self) -> Vec<Span> {
        match self {
            ProductOutput::Segments(segments) | ProductOutput::Biased { segments, .. } => {
                segments.targets()
            }
            ProductOutput::Gated(made) => {
                let operand = made.operand();
                made.rows().into_iter().chain(operand.iter().flat_map(Operand::spans)).collect()
            }
            ProductOutput::GatedHalves { operand, .. }
            | ProductOutput::Activated { operand, .. } => operand.spans().collect(),
            ProductOutput::Heads { query, keys, values, .. } => vec![*query, *keys, *values],
            ProductOutput::Gates { by, target, .. } => vec![*target, *by],
        }
    }
}

impl Product {
    /// Returns the bytes of the weights and of the products: what a launch moves at least.
    pub fn bytes(&self) -> u64 {
        let size = if self.output.is_halves() { 2 } else { 4 };
        self.matrix.cost(self.width).0 + (size * self.width * self.outputs()) as u64
    }

    /// Returns the number of results for a row of activations.
    pub(super) fn outputs(&self) -> usize {
        if self.is_gated() { self.matrix.rows / 2 } else { self.matrix.rows }
    }

    /// Returns the number of groups of columns.
    pub(super) fn groups(&self) -> u32 {
        self.matrix.columns.div_ceil(GROUP) as u32
    }

    /// Returns the front of the arguments.
    pub(super) fn front(&self) -> Front {
        let planes = self.matrix.planes;
        let [source, beside] = self.input.addresses();
        let mut outputs = [0; OUTPUTS_MAX];
        outputs.iter_mut().zip(self.output.spans()).for_each(|(to, span)| *to = span.address);
        let [high, scales, supers] = match self.output {
            ProductOutput::Biased { biases, .. } | ProductOutput::Heads { biases, .. } => {
                biases.map(Option::unwrap_or_default)
            }
            ProductOutput::Activated { bias, .. } => [bias; OUTPUTS_MAX],
            _ => [planes.high, planes.scales, planes.supers],
        };
        Front { codes: planes.codes, high, scales, supers, source, beside, outputs }
    }

    /// Returns the rows of each segment, and where the second and the third begin; for a gated
    /// product the rows of each half, and where the second begins.
    pub(super) fn split(&self) -> ([u32; OUTPUTS_MAX], [u32; OUTPUTS_MAX - 1]) {
        let outputs = self.outputs() as u32;
        let (mut rows, mut begins) = ([0; OUTPUTS_MAX], [outputs; OUTPUTS_MAX - 1]);
        match self.output {
            ProductOutput::Segments(segments) | ProductOutput::Biased { segments, .. } => {
                let mut row = 0;
                for (index, segment) in segments.iter().enumerate() {
                    rows[index] = segment.rows as u32;
                    row += rows[index];
                    if let Some(begin) = begins.get_mut(index) {
                        *begin = row;
                    }
                }
            }
            ProductOutput::Heads { .. } => {
                rows = [outputs / 3; OUTPUTS_MAX];
                begins = [outputs / 3, outputs / 3 * 2];
            }
            ProductOutput::Gated(_)
            | ProductOutput::GatedHalves { .. }
            | ProductOutput::Activated { .. }
            | ProductOutput::Gates { .. } => rows[0] = outputs,
        }
        (rows, begins)
    }

    /// Asserts that the product does not contradict itself.
    fn check(&self) {
        let Matrix { rows, columns, .. } = self.matrix;
        assert!(self.width > 0 && rows > 0 && columns > 0, "an empty product");
        assert!(self.width == 1 || !self.input.norms(), "a norm is of one row");
        if let ProductInput::NormAddNorm { x, x_out: Some(x_out), .. } = self.input {
            assert!(!x.overlaps(x_out), "all workgroups read the old residual stream");
        }
        match self.output {
            ProductOutput::Segments(segments) | ProductOutput::Biased { segments, .. } => {
                let all: usize = segments.iter().map(|segment| segment.rows).sum();
                assert_eq!(all, rows, "rows of the segments");
                let bytes = |segment: &Segment| (4 * self.width * segment.rows) as u64;
                let fits = |segment: &Segment| segment.target.bytes >= bytes(segment);
                assert!(segments.iter().all(fits), "memory for the products");
                if let ProductOutput::Biased { biases, .. } = self.output {
                    let count = biases.iter().flatten().count();
                    assert_eq!(count, segments.iter().count(), "a bias for each segment");
                }
            }
            ProductOutput::Gated(_) => {
                assert!(rows.is_multiple_of(2), "gate and up have as many rows");
            }
            ProductOutput::Activated { operand, .. } => {
                assert_eq!(operand.kind, OperandKind::Fragments, "what activated products give");
            }
            ProductOutput::Heads { dim, biases, .. } => {
                assert!(rows.is_multiple_of(3 * dim), "queries, keys and values of whole heads");
                assert!(biases.iter().all(Option::is_some), "a bias for each third");
            }
            ProductOutput::Gates { by, .. } => {
                assert!(self.width == 1 && by.bytes >= 4 * rows as u64, "a row for the gate");
            }
            ProductOutput::GatedHalves { operand, .. } => {
                assert!(rows.is_multiple_of(2 * GROUP), "whole groups of results");
                let input = self.input.operand().map(|operand| operand.kind);
                assert!(operand.kind.is_halves(), "the result of a gated product");
                assert_eq!(input, Some(operand.kind), "what a gated product takes and gives");
            }
        }
    }
}

/// Returns the error of a launch in a shape that a device has no room for.
pub(super) fn no_room(capabilities: &Capabilities, shape: &impl Debug, label: &str) -> GpuError {
    let device = capabilities.name.clone();
    GpuError::Missing { device, what: format!("room for {shape:?} of {label}") }
}

/// Returns the invocations of a subgroup in kernels that quantise, or `None` if the device has too
/// few.
pub(super) fn subgroup(capabilities: &Capabilities) -> Option<u32> {
    let (_, most) = capabilities.subgroup_range;
    let size = capabilities.subgroup.max(SUBGROUP_MIN);
    (size == capabilities.subgroup || size <= most).then_some(size)
}

#[cfg(test)]
mod tests;
