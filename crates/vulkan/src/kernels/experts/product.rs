//! Products of rows of activations with the matrices of their experts: `shaders/experts.comp`, the
//! kernel of [`matvec`](crate::kernels::matvec) for rows and matrices that are found on the device.
//!
//! Entries with places (`Grouping::is_padded`) go to the matrix units instead
//! (`kernels/matmul/grouped.rs`).
//!
//! One row reads the matrices of its experts once and is bound by these bytes. A group of w entries
//! reads its matrix once and takes the instructions of that kernel for w rows. An expert with more
//! entries than a group has its matrix read again for each group, mostly from a cache, since the
//! groups of an expert follow one another.

use bytemuck::{Pod, Zeroable};

use super::grouping::Grouping;
use crate::capabilities::{Capabilities, DeviceKind};
use crate::compiler::Compiler;
use crate::dispatch::{Dispatch, Link, Push};
use crate::error::GpuError;
use crate::kernels::handles::{Addresses, Handles, Made, Visitor, spans};
use crate::kernels::matmul::MatmulShape;
use crate::kernels::matmul::grouped::GroupedLaunch;
use crate::kernels::matvec::{MatvecLaunch, MatvecShape};
use crate::kernels::product::{
    Front, Product, ProductInput, ProductOutput, Segment, no_room, subgroup,
};
use crate::pack::Matrix;
use crate::raw::pipeline::KernelKey;
use crate::shaders::Shader;

/// Where the products of entries go.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ExpertsOutput<H: Handles = Addresses> {
    /// (entries, rows of an expert) f32.
    Rows(H::Rows),
    /// `gelu(gate) * up`.
    Gated {
        /// Rows of the matrix from those of the gate to those of `up`.
        split: usize,
        /// (entries, rows of an expert) f32, or as fixed point.
        made: Made<H>,
    },
}

/// A product of rows with the matrices of their experts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ExpertsLaunch<H: Handles = Addresses> {
    /// The matrices of all experts.
    pub matrix: H::Joint,
    /// The first row of the first expert's matrix, or of its gate; 0 over addresses, where the
    /// matrix begins with it.
    pub first: usize,
    /// Results of an entry: rows of an expert, or of its gate.
    pub rows: usize,
    /// Rows of the matrix from one expert to the next.
    pub step: usize,
    /// How entries are grouped.
    pub grouping: Grouping,
    /// Their experts' numbers, f32, or what [`SortLaunch`](super::SortLaunch) has made of them.
    pub order: H::Rows,
    /// The activations: halves of each place on matrix units; otherwise f32 for float formats and
    /// fixed point for others.
    pub input: H::Form,
    /// Entries that share a row of the activations, if these are not of places.
    pub shared: usize,
    /// Entries of a row of the step.
    pub used: usize,
    /// The rows of the step.
    pub extent: H::Extent,
    /// Where the products go.
    pub output: ExpertsOutput<H>,
}

impl<H: Handles> ExpertsLaunch<H> {
    /// Returns the launch over what a visitor gives for its operands.
    pub(crate) fn visit<B: Handles>(&self, by: &mut impl Visitor<H, B>) -> ExpertsLaunch<B> {
        ExpertsLaunch {
            matrix: by.joint(&self.matrix, self.first),
            first: 0,
            rows: self.rows,
            step: self.step,
            grouping: self.grouping,
            input: by.form(self.input),
            order: by.read(self.order),
            shared: self.shared,
            used: self.used,
            extent: by.extent(self.extent, self.order),
            output: match self.output {
                ExpertsOutput::Rows(rows) => ExpertsOutput::Rows(by.write(rows)),
                ExpertsOutput::Gated { split, made } => {
                    ExpertsOutput::Gated { split, made: made.visit(by) }
                }
            },
        }
    }

    /// Returns what is launched.
    pub(crate) fn name(&self) -> &'static str {
        match self.output {
            ExpertsOutput::Rows(_) => "experts",
            ExpertsOutput::Gated { .. } => "experts + geglu",
        }
    }
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
struct Args {
    front: Front,
    groups: u64,
    entries: u64,
    rows: u32,
    columns: u32,
    split: u32,
    step: u32,
    experts: u32,
    used: u32,
}

/// Fewest columns of a long row.
const LONG_ROW: usize = 1024;
/// Groups whose workgroups fill a discrete GPU, so that each may take longer.
const MANY_GROUPS: usize = 20;

/// Returns the shapes for a kind of device and columns of the matrix, the likeliest first.
/// Gated products that become fixed point take those with 32 outputs in a tile.
///
/// A workgroup has only one tile of one expert, so what counts is how many loads its invocations
/// have in flight: on a discrete GPU each slot is loaded again at once (`ahead`), and rows of few
/// units have fewer lanes, which all have work.
fn shapes(kind: DeviceKind, grouping: &Grouping, columns: usize) -> Vec<MatvecShape> {
    let width = grouping.columns;
    let is_long = columns >= LONG_ROW;
    let is_alone = grouping.groups() < MANY_GROUPS;
    let sizes: &[[u32; 4]] = match kind {
        DeviceKind::Processor => &[[64, 8, 4, 1], [128, 8, 4, 1], [128, 4, 2, 1], [256, 8, 2, 1]],
        DeviceKind::Integrated if width > 2 => &[[128, 8, 4, 1], [256, 16, 4, 1], [256, 8, 2, 1]],
        DeviceKind::Integrated => &[[64, 16, 4, 1], [256, 16, 4, 1], [256, 8, 2, 2]],
        _ if width > 4 => &[[128, 4, 2, 2], [256, 8, 2, 1], [128, 8, 4, 1]],
        _ if width > 1 => &[[64, 4, 4, 2], [256, 8, 2, 1], [128, 8, 4, 1]],
        _ if is_long && is_alone => &[[512, 16, 2, 1], [256, 16, 4, 1], [256, 8, 2, 2]],
        _ => &[[128, 8, 4, 1], [64, 8, 4, 1], [256, 8, 2, 2]],
    };
    let ahead = !kind.is_unified();
    let shape = |&[local, lanes, rows, unroll]: &[u32; 4]| MatvecShape {
        local,
        lanes,
        rows,
        unroll,
        ahead,
        workgroups: 0,
    };
    sizes.iter().map(shape).collect()
}

impl ExpertsLaunch {
    /// Returns the product of a full group with one expert, for the kernel's shape and arguments.
    fn of_one(&self, segments: &[Segment]) -> MatvecLaunch {
        let (rows, output) = match self.output {
            ExpertsOutput::Rows(_) => (self.rows, ProductOutput::segments(segments)),
            ExpertsOutput::Gated { made, .. } => (2 * self.rows, ProductOutput::Gated(made)),
        };
        let matrix = Matrix { rows, ..self.matrix };
        let input = ProductInput::Operand(self.input);
        MatvecLaunch(Product { matrix, width: self.grouping.columns, input, output })
    }

    /// Returns the dispatch of the launch.
    ///
    /// # Errors
    /// If the device has no room for the kernel, if it cannot be compiled, or if the matrix has
    /// more parts than it can count.
    ///
    /// # Panics
    /// If the operands are of the wrong kind.
    pub fn dispatch(
        &self,
        gpu: &dyn Compiler,
        label: &str,
        step: usize,
    ) -> Result<Dispatch, GpuError> {
        let capabilities = gpu.capabilities();
        if self.grouping.is_padded {
            let shape = *self.shapes_on_units(capabilities).first().ok_or_else(|| {
                no_room(capabilities, &format!("groups of {}", self.grouping.columns), label)
            })?;
            return self.dispatch_on_units(gpu, &shape, label, step);
        }
        let usual = self.all_shapes(capabilities)[0];
        let shapes = self.shapes_of_few(capabilities);
        let shape = *shapes.first().ok_or_else(|| no_room(capabilities, &usual, label))?;
        self.dispatch_as(gpu, shape, label, step)
    }

    /// Returns the shapes in which a device can run it on matrix units, the likeliest first.
    pub fn shapes_on_units(&self, capabilities: &Capabilities) -> Vec<MatmulShape> {
        self.grouped(&self.segments()).shapes(capabilities)
    }

    /// Returns the dispatch of the launch on matrix units in a shape.
    ///
    /// # Errors
    /// If the device cannot run the shape or the kernel cannot be compiled.
    ///
    /// # Panics
    /// If the operand is of the wrong kind.
    pub fn dispatch_on_units(
        &self,
        gpu: &dyn Compiler,
        shape: &MatmulShape,
        label: &str,
        step: usize,
    ) -> Result<Dispatch, GpuError> {
        self.grouped(&self.segments()).dispatch(gpu, shape, label, step)
    }

    /// Returns where the results of an entry go, if they are rows.
    fn segments(&self) -> [Segment; 1] {
        let target = match self.output {
            ExpertsOutput::Rows(target)
            | ExpertsOutput::Gated { made: Made::Rows(target) | Made::Both(target, _), .. } => {
                target
            }
            ExpertsOutput::Gated { made: Made::Operand(operand), .. } => operand.codes,
        };
        [Segment { rows: self.rows, target }]
    }

    fn grouped(&self, segments: &[Segment]) -> GroupedLaunch {
        GroupedLaunch {
            one: self.of_one(segments).0,
            matrix: self.matrix,
            split: match self.output {
                ExpertsOutput::Rows(_) => self.rows,
                ExpertsOutput::Gated { split, .. } => split,
            },
            step: self.step,
            experts: self.grouping.experts,
            groups: self.grouping.groups(),
            sorted: self.order,
            entries: self.order.address + self.grouping.entries_at(),
        }
    }

    /// Returns the shapes that a device can run it in with the kernel of few rows, the likeliest
    /// first.
    pub fn shapes_of_few(&self, capabilities: &Capabilities) -> Vec<MatvecShape> {
        let mut shapes = self.all_shapes(capabilities);
        shapes.retain(|shape| self.fits(*shape, capabilities));
        shapes
    }

    fn all_shapes(&self, capabilities: &Capabilities) -> Vec<MatvecShape> {
        shapes(capabilities.kind, &self.grouping, self.matrix.columns)
    }

    /// Returns whether a device can run it in a shape.
    pub fn fits(&self, shape: MatvecShape, capabilities: &Capabilities) -> bool {
        shape.fits(capabilities, &self.of_one(&[]))
    }

    /// Returns the dispatch of the launch in a shape that fits.
    pub fn dispatch_as(
        &self,
        gpu: &dyn Compiler,
        shape: MatvecShape,
        label: &str,
        step: usize,
    ) -> Result<Dispatch, GpuError> {
        let Self { matrix, grouping, .. } = *self;
        let (reads, writes) = spans(|by| _ = self.visit(by));
        let capabilities = gpu.capabilities();
        let segments = self.segments();
        let launch = self.of_one(&segments);
        launch.check();
        let all = MatvecLaunch(Product { matrix, ..launch.0 });
        if !all.is_countable() || grouping.groups() > capabilities.groups[1] as usize {
            let what = format!("{label}, {} x {} elements,", matrix.rows, matrix.columns);
            return Err(GpuError::TooWide { device: capabilities.name.clone(), what });
        }
        let subgroup = subgroup(capabilities).filter(|_| self.fits(shape, capabilities));
        let subgroup = subgroup.ok_or_else(|| no_room(capabilities, &shape, label))?;
        let mut constants = launch.constants(shape, subgroup).list();
        constants.extend([self.shared as u32, u32::from(grouping.is_sorted())]);
        let shader = Shader::of_matrix("experts", matrix.format.name());
        let kernel = gpu.kernel(&KernelKey { shader, constants, subgroup: Some(subgroup) })?;
        let tiles = launch.workgroups(shape, capabilities.groups[0]);
        Ok(Dispatch {
            label: label.to_owned(),
            step,
            kernel,
            push: Push::of(&self.args(&launch)),
            groups: [tiles, grouping.groups() as u32, 1],
            reads,
            writes,
            link: Link::Outside,
            hands: None,
        })
    }

    fn args(&self, launch: &MatvecLaunch) -> Args {
        let Grouping { experts, .. } = self.grouping;
        Args {
            front: launch.args().front,
            groups: self.order.address,
            entries: match self.grouping.is_sorted() {
                true => self.order.address + self.grouping.entries_at(),
                false => self.extent.row_count,
            },
            rows: self.rows as u32,
            columns: self.matrix.columns as u32,
            split: match self.output {
                ExpertsOutput::Rows(_) => self.rows as u32,
                ExpertsOutput::Gated { split, .. } => split as u32,
            },
            step: self.step as u32,
            experts: experts as u32,
            used: self.used as u32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capabilities::presets::{h200, radeon_780m, software};
    use crate::dispatch::Span;
    use crate::kernels::handles::Extent;
    use crate::kernels::operand::{Operand, OperandKind};
    use crate::pack::{Format, PlaneBytes};

    /// Each device has a shape for groups of each size, for both products of Gemma 4 26B-A4B.
    #[test]
    fn every_device_has_a_shape() {
        let span = Span { address: 256, bytes: 256 };
        let planes = PlaneBytes { codes: 256, high: 256, scales: 256, supers: 256 };
        for capabilities in [h200(), radeon_780m(), software()] {
            for format in Format::ALL {
                let kind =
                    if format.is_float() { OperandKind::Plain } else { OperandKind::Fixed16 };
                let input = Operand { kind, codes: span, scales: span };
                let fixed = Operand { kind: OperandKind::Fixed16, ..input };
                for tokens in [1, 2, 8, 16, 32, 512] {
                    let grouping = Grouping::suited(capabilities.kind, tokens, 8, 128);
                    let launch = |rows, columns, output| ExpertsLaunch {
                        matrix: Matrix {
                            format,
                            rows: 128 * rows,
                            columns,
                            planes,
                            unit: 1.0,
                            arranged: None,
                        },
                        first: 0,
                        rows,
                        step: 2 * rows,
                        grouping,
                        order: span,
                        input,
                        shared: 8,
                        used: 8,
                        extent: Extent { columns, rows: tokens, row_count: 0 },
                        output,
                    };
                    let gated = |made| ExpertsOutput::Gated { split: 704, made };
                    for launch in [
                        launch(704, 2816, gated(Made::Operand(fixed))),
                        launch(704, 2816, gated(Made::Rows(span))),
                        launch(2816, 704, ExpertsOutput::Rows(span)),
                    ] {
                        let found = launch.shapes_of_few(&capabilities);
                        assert!(
                            !found.is_empty(),
                            "{}, {format:?}, {tokens}: {launch:?}",
                            capabilities.name
                        );
                    }
                }
            }
        }
    }
}
