//! Products of a matrix with rows of activations: what they read and write, whichever kernel
//! multiplies, and how they are launched.
//!
//! The kernels are [`super::stream`] for one row, [`super::matvec`] for few, [`super::matmul`] for
//! more. The arguments of all three begin with the same `Front`.

use std::fmt::Debug;

use bytemuck::{Pod, Zeroable};

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
#[derive(Debug, Clone, Copy)]
pub enum ProductInput {
    /// An operand. Which kinds are possible depends on the kernel.
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
        /// Factor on the sum.
        scale: f32,
        /// What is normed and added, (columns) f32.
        added: Span,
        /// Address of the factors of that norm, (columns) f32.
        added_weight: u64,
        /// Address of the factors of the second norm, (columns) f32.
        weight: u64,
        /// Added to the mean squares of both.
        epsilon: f32,
        /// Where the new residual stream goes; other memory than `x`, which all workgroups read.
        /// `None` if another product writes it.
        x_out: Option<Span>,
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

/// What is done with the products.
#[derive(Debug, Clone, Copy)]
pub enum ProductOutput<'a> {
    /// They are written, the segments' rows one after another: at most three segments, which
    /// together are the matrix.
    Segments(&'a [Segment]),
    /// `gelu(gate) * up` is written; the matrix consists of the rows of the gate followed by those
    /// of `up`.
    Gated {
        /// (width, rows / 2) f32.
        plain: Option<Span>,
        /// The same as another product's operand. Which kinds are possible depends on the kernel.
        operand: Option<Operand>,
    },
    /// The products of each segment and its biases are written. For weights in
    /// [`Format::F16Fragments`](crate::pack::Format::F16Fragments).
    Biased {
        /// As in [`ProductOutput::Segments`].
        segments: &'a [Segment],
        /// Address of the biases of each segment, (rows of the segment) f32.
        biases: [u64; OUTPUTS_MAX],
    },
    /// `gelu(product + bias)` is written as an operand in halves. For such weights, too.
    Activated {
        /// Address of the biases, (rows) f32.
        bias: u64,
        /// (width, rows) in [`OperandKind::Fragments`].
        operand: Operand,
        /// As in [`ProductOutput::GatedHalves`].
        unit: f32,
    },
    /// Queries, keys and values of a picture are written with their biases, a third of the rows
    /// each. For such weights, too.
    Heads {
        /// (width, rows / 3) f32.
        query: Span,
        /// As [`WholeLaunch`](crate::kernels::attention::WholeLaunch) takes them.
        keys: Span,
        /// As [`WholeLaunch`](crate::kernels::attention::WholeLaunch) takes them.
        values: Span,
        /// Elements of a head.
        dim: usize,
        /// Address of the biases of each third, (rows / 3) f32.
        biases: [u64; OUTPUTS_MAX],
    },
    /// `gelu(product) * by` is written.
    Gates {
        /// (width, rows) f32; one row.
        by: Span,
        /// (width, rows) f32.
        target: Span,
    },
    /// The same as [`ProductOutput::Gated`] as an operand in halves.
    GatedHalves {
        /// (width, rows / 2), whole groups of columns, of the same kind as the input:
        /// [`OperandKind::Halves`] or [`OperandKind::Fragments`].
        operand: Operand,
        /// The power of two in whose units all rows are counted. No result may exceed 65504 units;
        /// results below 2^-14 of a unit lose bits.
        unit: f32,
    },
}

/// A product of a matrix with rows of activations.
#[derive(Debug, Clone, Copy)]
pub struct Product<'a> {
    /// The matrix.
    pub matrix: Matrix,
    /// Rows of activations; 1 with a norm.
    pub width: usize,
    /// The activations.
    pub input: ProductInput,
    /// Where the products go.
    pub output: ProductOutput<'a>,
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
    fn product(&self) -> &Product<'_>;

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
        format!("{kernel} {format} {rows}x{columns} w{width} {input} {output}")
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
        let (mut reads, mut writes) = self.product().spans();
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

impl ProductOutput<'_> {
    /// Returns its part of a key of measurements.
    fn name(&self) -> &'static str {
        match self {
            ProductOutput::Segments(_) => "rows",
            ProductOutput::Gated { operand: None, .. } => "gated",
            ProductOutput::Gated { plain: None, .. } => "gated-operand",
            ProductOutput::Gated { .. } => "gated-both",
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
            ProductOutput::Gated { operand: None, .. } => 1,
            ProductOutput::Gated { .. } | ProductOutput::GatedHalves { .. } => 2,
            ProductOutput::Gates { .. } => 3,
            ProductOutput::Biased { .. } => 4,
            ProductOutput::Activated { .. } => 5,
            ProductOutput::Heads { .. } => 6,
        }
    }

    /// Returns whether it is an operand in halves.
    pub(super) fn is_halves(&self) -> bool {
        matches!(self, ProductOutput::GatedHalves { .. } | ProductOutput::Activated { .. })
    }

    /// Returns the memory that it takes, in the order of the kernels' arguments; what gates are
    /// multiplied by comes last.
    fn spans(&self) -> Vec<Span> {
        match self {
            ProductOutput::Segments(segments) | ProductOutput::Biased { segments, .. } => {
                segments.iter().map(|segment| segment.target).collect()
            }
            ProductOutput::Gated { plain, operand } => {
                plain.iter().copied().chain(operand.iter().flat_map(Operand::spans)).collect()
            }
            ProductOutput::GatedHalves { operand, .. }
            | ProductOutput::Activated { operand, .. } => operand.spans().collect(),
            ProductOutput::Heads { query, keys, values, .. } => vec![*query, *keys, *values],
            ProductOutput::Gates { by, target } => vec![*target, *by],
        }
    }
}

impl Product<'_> {
    /// Returns the bytes of the weights and of the products: what a launch moves at least.
    pub fn bytes(&self) -> u64 {
        let size = if self.output.is_halves() { 2 } else { 4 };
        self.matrix.cost(self.width).0 + (size * self.width * self.outputs()) as u64
    }

    /// Returns whether gate and up are multiplied.
    pub(super) fn is_gated(&self) -> bool {
        matches!(self.output, ProductOutput::Gated { .. } | ProductOutput::GatedHalves { .. })
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
            ProductOutput::Biased { biases, .. } | ProductOutput::Heads { biases, .. } => biases,
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
                for (index, segment) in segments.iter().take(OUTPUTS_MAX).enumerate() {
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
            ProductOutput::Gated { .. }
            | ProductOutput::GatedHalves { .. }
            | ProductOutput::Activated { .. }
            | ProductOutput::Gates { .. } => rows[0] = outputs,
        }
        (rows, begins)
    }

    /// Returns the memory that it reads, apart from weights, and the memory that it writes.
    fn spans(&self) -> (Vec<Span>, Vec<Span>) {
        let mut writes = self.output.spans();
        let by = match self.output {
            ProductOutput::Gates { .. } => writes.pop(),
            _ => None,
        };
        let mut reads: Vec<Span> = match self.input {
            ProductInput::Operand(operand) => operand.spans().collect(),
            ProductInput::Norm { x, .. } => vec![x],
            ProductInput::NormAddNorm { x, added, x_out, .. } => {
                writes.extend(x_out);
                vec![x, added]
            }
        };
        reads.extend(by);
        (reads, writes)
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
                assert!((1..=OUTPUTS_MAX).contains(&segments.len()), "{} segments", segments.len());
                let all: usize = segments.iter().map(|segment| segment.rows).sum();
                assert_eq!(all, rows, "rows of the segments");
            }
            ProductOutput::Gated { plain, operand } => {
                assert!(rows.is_multiple_of(2), "gate and up have as many rows");
                assert!(plain.is_some() || operand.is_some(), "gated products go somewhere");
            }
            ProductOutput::Activated { operand, .. } => {
                assert_eq!(operand.kind, OperandKind::Fragments, "what activated products give");
            }
            ProductOutput::Heads { dim, .. } => {
                assert!(rows.is_multiple_of(3 * dim), "queries, keys and values of whole heads");
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
mod tests {
    use super::*;
    use crate::kernels::matmul::MatmulLaunch;
    use crate::kernels::matvec::MatvecLaunch;
    use crate::kernels::stream::StreamLaunch;
    use crate::pack::{Format, PlaneBytes};

    const MATRIX: Matrix = Matrix {
        format: Format::Q4_0,
        rows: 512,
        columns: 256,
        planes: PlaneBytes { codes: 1, high: 2, scales: 3, supers: 4 },
    };

    fn span(address: u64) -> Span {
        Span { address, bytes: 8 }
    }

    fn operand(kind: OperandKind, address: u64) -> Operand {
        let is_f32 = matches!(kind, OperandKind::Plain | OperandKind::Interleaved);
        let scales = if is_f32 { Span { address: 0, bytes: 0 } } else { span(address + 1000) };
        Operand { kind, codes: span(address), scales }
    }

    fn double_norm() -> ProductInput {
        ProductInput::NormAddNorm {
            x: span(100),
            scale: 1.0,
            added: span(200),
            added_weight: 300,
            weight: 400,
            epsilon: 0.5,
            x_out: Some(span(500)),
        }
    }

    /// Files of measurements hold these: with other keys everything would be measured again.
    #[test]
    fn keys_stay_as_files_have_them() {
        let rows = ProductOutput::Segments(&[]);
        let plain = ProductOutput::Gated { plain: Some(span(0)), operand: None };
        let gated = |kind| ProductOutput::Gated { plain: None, operand: Some(operand(kind, 0)) };
        let fixed = operand(OperandKind::Fixed16, 0);
        let both = ProductOutput::Gated { plain: Some(span(0)), operand: Some(fixed) };
        let halves = operand(OperandKind::Halves, 0);
        let halves = ProductOutput::GatedHalves { operand: halves, unit: 1.0 };
        let given = |kind| ProductInput::Operand(operand(kind, 0));
        let norm = ProductInput::Norm { x: span(0), weight: 0, epsilon: 0.0 };
        let stream =
            |input, output| StreamLaunch(Product { matrix: MATRIX, width: 1, input, output }).key();
        let matvec = |width, input, output| {
            MatvecLaunch(Product { matrix: MATRIX, width, input, output }).key()
        };
        let matmul = |width, input, output| {
            let product = Product { matrix: MATRIX, width, input, output };
            MatmulLaunch { product, scratch: None }.key()
        };
        let interleaved = OperandKind::Interleaved;
        let keys = [
            stream(given(OperandKind::Plain), rows),
            stream(given(interleaved), plain),
            stream(norm, gated(interleaved)),
            stream(double_norm(), rows),
            matvec(1, norm, rows),
            matvec(2, given(OperandKind::Fixed16), gated(OperandKind::Fixed16)),
            matvec(8, given(OperandKind::Plain), both),
            matmul(16, given(OperandKind::Halves), halves),
            matmul(64, given(OperandKind::Fixed16), plain),
            matmul(512, given(OperandKind::Plain), rows),
        ];
        let known = [
            "stream q4_0 512x256 w1 f32 rows",
            "stream q4_0 512x256 w1 interleaved gated",
            "stream q4_0 512x256 w1 norm gated-operand",
            "stream q4_0 512x256 w1 norm-add-norm rows",
            "matvec q4_0 512x256 w1 norm rows",
            "matvec q4_0 512x256 w2 fixed16 gated-operand",
            "matvec q4_0 512x256 w8 f32 gated-both",
            "matmul q4_0 512x256 w16 halves gated halves",
            "matmul q4_0 512x256 w64 fixed16 gated",
            "matmul q4_0 512x256 w512 f32 rows",
        ];
        assert_eq!(keys, known);
    }

    #[test]
    fn arguments_say_where_everything_is() {
        let segments = [(300, 10), (200, 20), (12, 30)]
            .map(|(rows, address)| Segment { rows, target: span(address) });
        let output = ProductOutput::Segments(&segments);
        let product = Product { matrix: MATRIX, width: 1, input: double_norm(), output };
        product.check();
        let words = bytemuck::cast::<_, [u64; 9]>(product.front());
        assert_eq!(words, [1, 2, 3, 4, 100, 200, 10, 20, 30]);
        assert_eq!(bytemuck::cast::<_, [u64; 3]>(product.input.norm_args()), [400, 300, 500]);
        assert_eq!(product.split(), ([300, 200, 12], [300, 500]));
        let (reads, writes) = product.spans();
        assert_eq!(reads, [span(100), span(200)]);
        assert_eq!(writes, [10, 20, 30, 500].map(span));

        let input = ProductInput::Operand(operand(OperandKind::Halves, 100));
        let output =
            ProductOutput::GatedHalves { operand: operand(OperandKind::Halves, 10), unit: 2.0 };
        let product = Product { input, output, width: 7, ..product };
        product.check();
        let words = bytemuck::cast::<_, [u64; 9]>(product.front());
        assert_eq!(words, [1, 2, 3, 4, 100, 1100, 10, 1010, 0]);
        assert_eq!(product.split(), ([256, 0, 0], [256, 256]));
        let (reads, writes) = product.spans();
        assert_eq!((reads, writes), (vec![span(100), span(1100)], vec![span(10), span(1010)]));
    }

    #[test]
    #[should_panic(expected = "rows of the segments")]
    fn segments_that_are_not_the_matrix_are_refused() {
        let segments = [Segment { rows: 500, target: span(0) }];
        let output = ProductOutput::Segments(&segments);
        Product { matrix: MATRIX, width: 1, input: double_norm(), output }.check();
    }
}
