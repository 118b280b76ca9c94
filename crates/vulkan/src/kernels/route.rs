//! A mix whose coefficients are made from a row by a router, with the norm before it and the work
//! on the first stream after it: `shaders/route.comp`.
//!
//! A row is one workgroup, which holds all streams in registers. For one row it takes the time of
//! its chain of loads and reductions; the matrices are loaded before it waits for anything.

use bytemuck::{Pod, Zeroable};
use trine_model::TERMS_MAX;

use super::mix::addresses;
use super::rows::{operand_args, registers};
use super::sum::Finish;
use crate::compiler::Compiler;
use crate::dispatch::{Dispatch, Fill, Link, Push, Span};
use crate::error::GpuError;
use crate::pack::{Format, Matrix};
use crate::raw::pipeline::KernelKey;
use crate::shaders::Shader;

/// Most columns of a row: an invocation holds all streams and the router's columns.
pub const ROUTED_COLUMNS_MAX: usize = 4096;

/// A row that is normed, and added after that.
#[derive(Debug, Clone, Copy)]
pub struct Added {
    /// (rows, columns) f32.
    pub values: Span,
    /// Address of the factors of the columns, f32.
    pub weight: u64,
}

/// How coefficients are made from a row: `coefficients (cap tanh(router norm(row) / cap))`.
#[derive(Debug, Clone, Copy)]
pub struct Router {
    /// Address of the factors of the norm, f32.
    pub norm: u64,
    /// (streams, columns), floats.
    pub router: Matrix,
    /// (streams x sources, streams), floats.
    pub coefficients: Matrix,
    /// The largest magnitude of the router's products.
    pub cap: f32,
}

/// What is made of the first stream at the end.
#[derive(Debug, Clone, Copy)]
pub enum FirstStream {
    /// Its norm.
    Normed(Finish),
    /// Its product with a vector.
    Scaled(Finish),
}

/// A launch of a mix with a router. The streams are changed in place.
#[derive(Debug, Clone)]
pub struct RouteLaunch {
    /// (rows, columns) f32 each, at most [`TERMS_MAX`].
    pub streams: Vec<Span>,
    /// The row that is routed, and whose distance from the first stream is the source; `None` if
    /// the first stream is routed, and all streams are sources.
    pub row: Option<Span>,
    /// What is added before everything else: to the row, or to all streams but the first.
    pub added: Option<Added>,
    /// The router.
    pub router: Router,
    /// Added to each scaled coefficient.
    pub bias: f32,
    /// Factor on the coefficients.
    pub scale: f32,
    /// What is made of the first stream at the end.
    pub first: Option<FirstStream>,
    /// Added to the mean squares of all norms.
    pub epsilon: f32,
    /// Columns of a row.
    pub columns: usize,
    /// Most rows.
    pub rows: usize,
    /// Address of the number of rows in the step.
    pub row_count: u64,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
struct Args {
    streams: [u64; TERMS_MAX],
    row: u64,
    added: u64,
    added_weight: u64,
    norm_weight: u64,
    router: u64,
    coefficients: u64,
    weight: u64,
    plain: u64,
    codes: u64,
    scales: u64,
    rows: u64,
    chain: u64,
}

/// Returns the shader's number of a format of floats.
pub(super) fn number(format: Format) -> u32 {
    match format {
        Format::F32 => 0,
        Format::F16 => 1,
        Format::Bf16 => 2,
        format => unreachable!("a router in {}", format.name()),
    }
}

impl RouteLaunch {
    fn constants(&self) -> Vec<u32> {
        let (local, per) = registers(self.columns);
        let (finishes, finish) = match self.first {
            None => (0, None),
            Some(FirstStream::Normed(finish)) => (1, Some(finish)),
            Some(FirstStream::Scaled(finish)) => (2, Some(finish)),
        };
        let (kind, ..) = operand_args(finish.and_then(|finish| finish.operand));
        vec![
            local as u32,
            self.streams.len() as u32,
            u32::from(self.row.is_some()),
            u32::from(self.added.is_some()),
            finishes,
            kind,
            u32::from(finish.is_some_and(|finish| finish.plain.is_some())),
            self.columns as u32,
            per as u32,
            number(self.router.router.format),
            number(self.router.coefficients.format),
            self.epsilon.to_bits(),
            self.router.cap.to_bits(),
            self.bias.to_bits(),
            self.scale.to_bits(),
        ]
    }

    /// Returns the dispatch of the launch.
    ///
    /// # Errors
    /// If the kernel cannot be compiled.
    ///
    /// # Panics
    /// If a row has more columns than [`ROUTED_COLUMNS_MAX`], if there are more streams than
    /// [`TERMS_MAX`], or if the matrices do not fit them or are no floats.
    pub fn dispatch(
        &self,
        gpu: &dyn Compiler,
        label: &str,
        step: usize,
    ) -> Result<Dispatch, GpuError> {
        let Router { norm, router, coefficients, .. } = self.router;
        let streams = self.streams.len();
        let sources = if self.row.is_some() { 1 } else { streams };
        assert!(self.columns <= ROUTED_COLUMNS_MAX, "rows of {}", self.columns);
        assert_eq!((router.rows, router.columns), (streams, self.columns), "the router");
        assert_eq!((coefficients.rows, coefficients.columns), (streams * sources, streams));
        let finish = self.first.map(|first| match first {
            FirstStream::Normed(finish) | FirstStream::Scaled(finish) => finish,
        });
        let (_, codes, scales) = operand_args(finish.and_then(|finish| finish.operand));
        let plain = finish.and_then(|finish| finish.plain);
        let args = Args {
            streams: addresses(&self.streams),
            row: self.row.map_or(0, |row| row.address),
            added: self.added.map_or(0, |added| added.values.address),
            added_weight: self.added.map_or(0, |added| added.weight),
            norm_weight: norm,
            router: router.planes.codes,
            coefficients: coefficients.planes.codes,
            weight: finish.map_or(0, |finish| finish.weight),
            plain: plain.map_or(0, |plain| plain.address),
            codes,
            scales,
            rows: self.row_count,
            chain: 0,
        };
        let key =
            KernelKey { shader: Shader("route"), constants: self.constants(), subgroup: None };
        let mut reads = self.streams.clone();
        reads.extend(self.row);
        reads.extend(self.added.map(|added| added.values));
        let mut writes = self.streams.clone();
        writes.extend(finish.iter().flat_map(Finish::writes));
        Ok(Dispatch {
            label: label.to_owned(),
            step,
            kernel: gpu.kernel(&key)?,
            push: Push::of(&args),
            groups: [self.rows as u32, 1, 1],
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
mod tests;
