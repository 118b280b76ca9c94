//! Norms, additions, cutoffs, magnitudes, activations, and conversions to operands:
//! `shaders/rows.comp`.

use bytemuck::{Pod, Zeroable};

use super::handles::{Addresses, Extent, Handles, Made, Visitor, spans};
use super::limits::ValueLimits;
use super::operand::{GROUP, Operand, OperandKind};
use crate::compiler::Compiler;
use crate::dispatch::{Dispatch, Fill, Link, Push, Span};
use crate::error::GpuError;
use crate::raw::pipeline::KernelKey;
use crate::shaders::Shader;

/// Most invocations of a workgroup.
const LOCAL_MAX: usize = 512;
/// Most values of a row that an invocation keeps in registers; with a norm and an addition it keeps
/// that many factors and old values as well.
const REGISTERS_MAX: usize = 64;

/// What is done to a row before it is written.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RowWork<H: Handles = Addresses> {
    /// Nothing.
    Convert {
        /// Rows here for each row of the step.
        parts: usize,
    },
    /// Its norm.
    Norm {
        /// Factors of the columns, f32; `None` for 1.
        weight: Option<H::Vector>,
    },
    /// The norm is added to the target, which is the result.
    NormAdd {
        /// Factors of the columns, f32.
        weight: H::Vector,
        /// What the norm is added to.
        target: Target<H>,
        /// Factor on the sum.
        scale: f32,
    },
    /// The norm is added to the target, whose norm is the result.
    NormAddNorm {
        /// Factors of the columns, f32.
        weight: H::Vector,
        /// What the norm is added to.
        target: Target<H>,
        /// Factor on the sum.
        scale: f32,
        /// Factors of the columns in the second norm, f32.
        next_weight: H::Vector,
    },
    /// What is above `deviations` standard deviations over the mean, and 0 for the rest.
    Cutoff {
        /// Standard deviations.
        deviations: f32,
    },
    /// `gelu` of a cutoff, times the columns of `up`.
    GatedCutoff {
        /// Standard deviations.
        deviations: f32,
        /// (rows, columns) f32.
        up: H::Rows,
    },
    /// The row with the magnitude of that of `like`.
    Rescale {
        /// (rows, columns) f32.
        like: H::Rows,
        /// The least mean square that is divided by.
        floor: f32,
    },
    /// Its layer norm.
    LayerNorm(LayerNorm<H>),
    /// The row and its bias are added to the target, whose layer norm is the result.
    AddLayerNorm {
        /// Values of the columns, f32; `None` for 0.
        bias: Option<H::Vector>,
        /// What the row is added to.
        target: Target<H>,
        /// The norm.
        norm: LayerNorm<H>,
    },
    /// `gelu` of the row, times the columns of `up`.
    Gate {
        /// (rows, columns) f32.
        up: H::Rows,
    },
    /// `gelu` of the row and its bias.
    Gelu {
        /// Values of the columns, f32; `None` for 0.
        bias: Option<H::Vector>,
    },
}

/// Rows to which others are added in place.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Target<H: Handles = Addresses> {
    /// (rows, columns) f32.
    pub old: H::Rows,
    /// The sums, in the same place.
    pub updated: H::Rows,
}

impl<H: Handles> Target<H> {
    fn visit<B: Handles>(self, by: &mut impl Visitor<H, B>) -> Target<B> {
        Target { old: by.read(self.old), updated: by.write(self.updated) }
    }
}

/// A layer norm's weights.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LayerNorm<H: Handles = Addresses> {
    /// Factors of the columns, f32.
    pub weight: H::Vector,
    /// What is added to the columns, f32.
    pub bias: H::Vector,
}

impl<H: Handles> LayerNorm<H> {
    fn visit<B: Handles>(self, by: &mut impl Visitor<H, B>) -> LayerNorm<B> {
        LayerNorm { weight: by.vector(self.weight), bias: by.vector(self.bias) }
    }
}

impl<H: Handles> RowWork<H> {
    fn visit<B: Handles>(&self, by: &mut impl Visitor<H, B>) -> RowWork<B> {
        match *self {
            RowWork::Convert { parts } => RowWork::Convert { parts },
            RowWork::Norm { weight } => {
                RowWork::Norm { weight: weight.map(|weight| by.vector(weight)) }
            }
            RowWork::NormAdd { weight, target, scale } => {
                RowWork::NormAdd { weight: by.vector(weight), target: target.visit(by), scale }
            }
            RowWork::NormAddNorm { weight, target, scale, next_weight } => RowWork::NormAddNorm {
                weight: by.vector(weight),
                target: target.visit(by),
                scale,
                next_weight: by.vector(next_weight),
            },
            RowWork::Cutoff { deviations } => RowWork::Cutoff { deviations },
            RowWork::GatedCutoff { deviations, up } => {
                RowWork::GatedCutoff { deviations, up: by.read(up) }
            }
            RowWork::Rescale { like, floor } => RowWork::Rescale { like: by.read(like), floor },
            RowWork::LayerNorm(norm) => RowWork::LayerNorm(norm.visit(by)),
            RowWork::AddLayerNorm { bias, target, norm } => RowWork::AddLayerNorm {
                bias: bias.map(|bias| by.vector(bias)),
                target: target.visit(by),
                norm: norm.visit(by),
            },
            RowWork::Gate { up } => RowWork::Gate { up: by.read(up) },
            RowWork::Gelu { bias } => RowWork::Gelu { bias: bias.map(|bias| by.vector(bias)) },
        }
    }

    fn name(&self) -> &'static str {
        match self {
            RowWork::Convert { .. } => "convert",
            RowWork::Norm { .. } => "norm",
            RowWork::NormAdd { .. } => "norm_add",
            RowWork::NormAddNorm { .. } => "norm_add_norm",
            RowWork::Cutoff { .. } => "cutoff",
            RowWork::GatedCutoff { .. } => "cutoff + geglu",
            RowWork::Rescale { .. } => "rescale",
            RowWork::LayerNorm(_) => "layer_norm",
            RowWork::AddLayerNorm { bias: None, .. } => "add_layer_norm",
            RowWork::AddLayerNorm { bias: Some(_), .. } => "bias + add_layer_norm",
            RowWork::Gate { .. } => "geglu",
            RowWork::Gelu { bias: None } => "gelu",
            RowWork::Gelu { bias: Some(_) } => "bias + gelu",
        }
    }

    /// Returns what is added first.
    fn bias(&self) -> Option<H::Vector> {
        match *self {
            RowWork::AddLayerNorm { bias, .. } | RowWork::Gelu { bias } => bias,
            _ => None,
        }
    }

    /// Returns the factor on a sum.
    fn scale(&self) -> f32 {
        match *self {
            RowWork::NormAdd { scale, .. } | RowWork::NormAddNorm { scale, .. } => scale,
            _ => 1.0,
        }
    }

    /// Returns the rows here for each row of the step.
    fn parts(&self) -> usize {
        match *self {
            RowWork::Convert { parts } => parts,
            _ => 1,
        }
    }
}

impl RowWork {
    /// Returns its number in the shader, the factors, the rows beside the source, and the factors
    /// of a second norm or what a layer norm adds.
    fn mode(&self) -> (u32, u64, Option<Span>, u64) {
        match *self {
            RowWork::Convert { .. } => (0, 0, None, 0),
            RowWork::Norm { weight: Some(weight) } => (1, weight, None, 0),
            RowWork::Norm { weight: None } => (10, 0, None, 0),
            RowWork::NormAdd { weight, target, .. } => (2, weight, Some(target.old), 0),
            RowWork::NormAddNorm { weight, target, next_weight, .. } => {
                (3, weight, Some(target.old), next_weight)
            }
            RowWork::Cutoff { .. } => (4, 0, None, 0),
            RowWork::GatedCutoff { up, .. } => (5, 0, Some(up), 0),
            RowWork::Rescale { like, .. } => (6, 0, Some(like), 0),
            RowWork::LayerNorm(norm) => (7, norm.weight, None, norm.bias),
            RowWork::AddLayerNorm { target, norm, .. } => {
                (8, norm.weight, Some(target.old), norm.bias)
            }
            RowWork::Gelu { .. } => (9, 0, None, 0),
            RowWork::Gate { up } => (11, 0, Some(up), 0),
        }
    }
}

/// Limits of what a launch over rows reads and writes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RowLimits {
    /// Of the row, before anything is done.
    pub row: ValueLimits,
    /// Of the row that it is added to or multiplied with, before that.
    pub target: ValueLimits,
    /// Of the result.
    pub result: ValueLimits,
}

impl RowLimits {
    /// No limits.
    pub const NONE: Self =
        Self { row: ValueLimits::NONE, target: ValueLimits::NONE, result: ValueLimits::NONE };

    fn all(&self) -> [ValueLimits; 3] {
        [self.row, self.target, self.result]
    }

    /// Returns what is limited, as bits of the shader.
    fn bits(&self) -> u32 {
        (0..).zip(self.all()).map(|(bit, limits)| u32::from(!limits.are_none()) << bit).sum()
    }
}

/// A launch over rows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RowsLaunch<H: Handles = Addresses> {
    /// What is done.
    pub work: RowWork<H>,
    /// (rows, columns) f32: the rows of the step, with all of their parts.
    pub source: H::Rows,
    /// Added to the mean square of the norms, or to the variance.
    pub epsilon: f32,
    /// Limits of the values that are read and of the result.
    pub within: RowLimits,
    /// Where the result goes, if it is not only in place of a target.
    pub made: Option<Made<H>>,
    /// The rows of the step, and the columns of the source.
    pub extent: H::Extent,
}

impl<H: Handles<Extent = ()>> RowsLaunch<H> {
    /// A launch without limits.
    pub(crate) fn of(work: RowWork<H>, source: H::Rows, epsilon: f32, made: Made<H>) -> Self {
        let (within, made) = (RowLimits::NONE, Some(made));
        Self { work, source, epsilon, within, made, extent: () }
    }
}

impl<H: Handles> RowsLaunch<H> {
    /// Returns the launch over what a visitor gives for its operands.
    pub(crate) fn visit<B: Handles>(&self, by: &mut impl Visitor<H, B>) -> RowsLaunch<B> {
        RowsLaunch {
            source: by.read(self.source),
            work: self.work.visit(by),
            epsilon: self.epsilon,
            within: self.within,
            made: self.made.map(|made| made.visit(by)),
            extent: by.extent(self.extent, self.source),
        }
    }

    /// Returns what is launched.
    pub(crate) fn name(&self) -> String {
        let RowLimits { row, target, result } = self.within;
        let is_limited = self.within != RowLimits::NONE;
        let converts = matches!(self.work, RowWork::Convert { .. });
        let limits_first = !row.are_none() || !target.are_none() || converts && is_limited;
        let before = if limits_first { "clamp + " } else { "" };
        let after = if result.are_none() || converts { "" } else { " + clamp" };
        format!("{before}{}{after}", self.work.name())
    }
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
struct Args {
    source: u64,
    weight: u64,
    target: u64,
    next_weight: u64,
    plain: u64,
    codes: u64,
    scales: u64,
    rows: u64,
    chain: u64,
    epsilon: f32,
    scale: f32,
    bias: u64,
    within: [ValueLimits; 3],
}

/// Most columns of a row.
pub const COLUMNS_MAX: usize = LOCAL_MAX * REGISTERS_MAX;

/// Returns the invocations of a workgroup that holds a row in registers, and how many pieces of
/// four values each holds.
///
/// # Panics
/// If a row has more than [`COLUMNS_MAX`] columns.
pub(super) fn registers(columns: usize) -> (usize, usize) {
    let padded = columns.next_multiple_of(GROUP);
    assert!(padded <= COLUMNS_MAX, "rows of {columns} columns");
    let local = (padded / 4).next_power_of_two().clamp(64, LOCAL_MAX);
    (local, padded.div_ceil(4 * local))
}

/// Returns the shaders' number of what a row becomes, and the addresses of its codes and scales.
pub(super) fn operand_args(operand: Option<Operand>) -> (u32, u64, u64) {
    let Some(operand) = operand else { return (0, 0, 0) };
    let kind = match operand.kind {
        OperandKind::Plain => 0,
        OperandKind::Fixed16 => 1,
        OperandKind::Halves => 2,
        OperandKind::Fragments => 3,
        OperandKind::Split => 4,
        OperandKind::Interleaved => unreachable!("only products interleave rows"),
    };
    (kind, operand.codes.address, operand.scales.address)
}

impl RowsLaunch {
    /// Returns the number that the work depends on.
    fn number(&self) -> f32 {
        match self.work {
            RowWork::Cutoff { deviations } | RowWork::GatedCutoff { deviations, .. } => deviations,
            RowWork::Rescale { floor, .. } => floor,
            _ => self.epsilon,
        }
    }

    /// Returns the dispatch of the launch.
    ///
    /// # Errors
    /// If the kernel cannot be compiled.
    ///
    /// # Panics
    /// If a row has more than [`COLUMNS_MAX`] columns, or sums do not replace what is added to.
    pub fn dispatch(
        &self,
        gpu: &dyn Compiler,
        label: &str,
        step: usize,
    ) -> Result<Dispatch, GpuError> {
        let Extent { columns, rows, row_count } = self.extent;
        let parts = self.work.parts();
        let columns = columns / parts;
        let (local, per) = registers(columns);
        let (mode, weight, beside, next_weight) = self.work.mode();
        if let RowWork::NormAdd { target, .. }
        | RowWork::NormAddNorm { target, .. }
        | RowWork::AddLayerNorm { target, .. } = self.work
        {
            assert_eq!(target.old, target.updated, "{label} adds in place");
        }
        let (reads, writes) = spans(|by| _ = self.visit(by));
        let plain = self.made.and_then(Made::rows);
        let (kind, codes, scales) = operand_args(self.made.and_then(Made::operand));
        let constants = vec![
            local as u32,
            mode,
            kind,
            u32::from(plain.is_some()),
            columns as u32,
            per as u32,
            parts as u32,
            u32::from(self.work.bias().is_some()),
            self.within.bits(),
        ];
        let kernel =
            gpu.kernel(&KernelKey { shader: Shader("rows"), constants, subgroup: None })?;
        let args = Args {
            source: self.source.address,
            weight,
            target: beside.map_or(0, |beside| beside.address),
            next_weight,
            plain: plain.map_or(0, |span| span.address),
            codes,
            scales,
            rows: row_count,
            chain: 0,
            epsilon: self.number(),
            scale: self.work.scale(),
            bias: self.work.bias().unwrap_or(0),
            within: self.within.all(),
        };
        Ok(Dispatch {
            label: label.to_owned(),
            step,
            kernel,
            push: Push::of(&args),
            groups: [(rows * parts) as u32, 1, 1],
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

#[cfg(test)]
pub(crate) mod tests;
