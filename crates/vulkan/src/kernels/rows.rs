//! Norms, additions, cutoffs, magnitudes, activations, and conversions to operands:
//! `shaders/rows.comp`.

use bytemuck::{Pod, Zeroable};

use super::limits::Limits;
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
#[derive(Debug, Clone, Copy)]
pub enum RowWork {
    /// Nothing.
    Convert {
        /// Rows here for each row of the step.
        parts: usize,
    },
    /// Nothing, but it goes to places of the operand, which is in halves.
    Gather {
        /// Rows here for each row of the step.
        parts: usize,
        /// Places of a row.
        copies: usize,
        /// Memory with the places, u32, those of a row one after another.
        places: Span,
        /// Where they begin in it, in bytes.
        at: u64,
    },
    /// Its norm.
    Norm {
        /// Factors of the columns, f32; `None` for 1.
        weight: Option<u64>,
    },
    /// The norm is added to the target, which is the result.
    NormAdd {
        /// Factors of the columns, f32.
        weight: u64,
        /// (rows, columns) f32.
        target: Span,
        /// Factor on the sum.
        scale: f32,
    },
    /// The norm is added to the target, whose norm is the result.
    NormAddNorm {
        /// Factors of the columns, f32.
        weight: u64,
        /// (rows, columns) f32.
        target: Span,
        /// Factor on the sum.
        scale: f32,
        /// Factors of the columns in the second norm, f32.
        next_weight: u64,
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
        up: Span,
    },
    /// The row with the magnitude of that of `like`.
    Rescale {
        /// (rows, columns) f32.
        like: Span,
        /// The least mean square that is divided by.
        floor: f32,
    },
    /// Its layer norm.
    LayerNorm(LayerNorm),
    /// The row and its bias are added to the target, whose layer norm is the result.
    AddLayerNorm {
        /// Values of the columns, f32; `None` for 0.
        bias: Option<u64>,
        /// (rows, columns) f32.
        target: Span,
        /// The norm.
        norm: LayerNorm,
    },
    /// `gelu` of the row, times the columns of `up`.
    Gate {
        /// (rows, columns) f32.
        up: Span,
    },
    /// `gelu` of the row and its bias.
    Gelu {
        /// Values of the columns, f32; `None` for 0.
        bias: Option<u64>,
    },
}

/// Addresses of a layer norm's weights.
#[derive(Debug, Clone, Copy)]
pub struct LayerNorm {
    /// Factors of the columns, f32.
    pub weight: u64,
    /// What is added to the columns, f32.
    pub bias: u64,
}

impl RowWork {
    /// Returns whether the result goes to the target, too.
    fn updates(&self) -> bool {
        let adds = matches!(self, RowWork::NormAdd { .. } | RowWork::NormAddNorm { .. });
        adds || matches!(self, RowWork::AddLayerNorm { .. })
    }

    /// Returns the address of what is added to the row first.
    fn bias(&self) -> Option<u64> {
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
            RowWork::Convert { parts } | RowWork::Gather { parts, .. } => parts,
            _ => 1,
        }
    }

    /// Returns the places of a row, and where those of all rows are.
    fn places(&self) -> (usize, Option<Span>, u64) {
        match *self {
            RowWork::Gather { copies, places, at, .. } => {
                (copies, Some(places), places.address + at)
            }
            _ => (0, None, 0),
        }
    }
}

/// Limits of what a launch over rows reads and writes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RowLimits {
    /// Of the row, before anything is done.
    pub row: Limits,
    /// Of the row that it is added to or multiplied with, before that.
    pub target: Limits,
    /// Of the result.
    pub result: Limits,
}

impl RowLimits {
    /// No limits.
    pub const NONE: Self = Self { row: Limits::NONE, target: Limits::NONE, result: Limits::NONE };

    fn all(&self) -> [Limits; 3] {
        [self.row, self.target, self.result]
    }

    /// Returns what is limited, as bits of the shader.
    fn bits(&self) -> u32 {
        (0..).zip(self.all()).map(|(bit, limits)| u32::from(!limits.are_none()) << bit).sum()
    }
}

/// A launch over rows.
#[derive(Debug, Clone)]
pub struct RowsLaunch {
    /// What is done.
    pub work: RowWork,
    /// (rows, columns) f32.
    pub source: Span,
    /// Columns of a row.
    pub columns: usize,
    /// Most rows of the step.
    pub rows: usize,
    /// Address of the number of rows in the step.
    pub row_count: u64,
    /// Added to the mean square of the norms, or to the variance.
    pub epsilon: f32,
    /// Limits of the values that are read and of the result.
    pub within: RowLimits,
    /// Where the result goes as f32.
    pub plain: Option<Span>,
    /// Where the result goes as an operand.
    pub operand: Option<Operand>,
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
    places: u64,
    bias: u64,
    within: [Limits; 3],
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
    /// If a row has more than [`COLUMNS_MAX`] columns.
    pub fn dispatch(
        &self,
        gpu: &dyn Compiler,
        label: &str,
        step: usize,
    ) -> Result<Dispatch, GpuError> {
        let (local, per) = registers(self.columns);
        let parts = self.work.parts();
        let (copies, sorted, places) = self.work.places();
        let mut reads: Vec<Span> = [self.source].into_iter().chain(sorted).collect();
        let mut writes: Vec<Span> = self.plain.into_iter().collect();
        let none = Span { address: 0, bytes: 0 };
        let (mode, weight, target, next_weight) = match self.work {
            RowWork::Convert { .. } | RowWork::Gather { .. } => (0, 0, none, 0),
            RowWork::Norm { weight: Some(weight) } => (1, weight, none, 0),
            RowWork::Norm { weight: None } => (10, 0, none, 0),
            RowWork::NormAdd { weight, target, .. } => (2, weight, target, 0),
            RowWork::NormAddNorm { weight, target, next_weight, .. } => {
                (3, weight, target, next_weight)
            }
            RowWork::Cutoff { .. } => (4, 0, none, 0),
            RowWork::GatedCutoff { up, .. } => (5, 0, up, 0),
            RowWork::Rescale { like, .. } => (6, 0, like, 0),
            RowWork::LayerNorm(norm) => (7, norm.weight, none, norm.bias),
            RowWork::AddLayerNorm { target, norm, .. } => (8, norm.weight, target, norm.bias),
            RowWork::Gelu { .. } => (9, 0, none, 0),
            RowWork::Gate { up } => (11, 0, up, 0),
        };
        reads.extend((target.bytes > 0).then_some(target));
        if self.work.updates() {
            writes.push(target);
        }
        writes.extend(self.operand.iter().flat_map(Operand::spans));
        let (kind, codes, scales) = operand_args(self.operand);
        let constants = vec![
            local as u32,
            mode,
            kind,
            u32::from(self.plain.is_some()),
            self.columns as u32,
            per as u32,
            parts as u32,
            copies as u32,
            u32::from(self.work.bias().is_some()),
            self.within.bits(),
        ];
        let kernel =
            gpu.kernel(&KernelKey { shader: Shader("rows"), constants, subgroup: None })?;
        let args = Args {
            source: self.source.address,
            weight,
            target: target.address,
            next_weight,
            plain: self.plain.map_or(0, |span| span.address),
            codes,
            scales,
            rows: self.row_count,
            chain: 0,
            epsilon: self.number(),
            scale: self.work.scale(),
            places,
            bias: self.work.bias().unwrap_or(0),
            within: self.within.all(),
        };
        Ok(Dispatch {
            label: label.to_owned(),
            step,
            kernel,
            push: Push::of(&args),
            groups: [(self.rows * parts) as u32, 1, 1],
            reads,
            writes,
            // A link reads activations past the caches of single cores. Places are read through
            // them, so a launch that has some waits at a barrier.
            link: match sorted {
                Some(_) => Link::Outside,
                None => Link::Able {
                    offset: std::mem::offset_of!(Args, chain),
                    early: None,
                    fill: Fill::Little,
                },
            },
            hands: None,
        })
    }
}

#[cfg(test)]
pub(crate) mod tests;
