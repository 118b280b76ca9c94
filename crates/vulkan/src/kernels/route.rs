//! A mix whose coefficients are made from a row by a router, with the norm before it and the work
//! on the first stream after it: `shaders/route.comp`.
//!
//! A row is one workgroup, which holds all streams in registers. For one row it takes the time of
//! its chain of loads and reductions; the matrices are loaded before it waits for anything.

use bytemuck::{Pod, Zeroable};
use trine_model::TERMS_MAX;

use super::handles::{Addresses, Extent, Handles, Visitor, spans};
use super::mix::{Stream, addresses};
use super::rows::{operand_args, registers};
use super::sum::Finish;
use crate::compiler::Compiler;
use crate::dispatch::{Dispatch, Fill, Link, Push};
use crate::error::GpuError;
use crate::pack::Format;
use crate::raw::pipeline::KernelKey;
use crate::shaders::Shader;

/// Most columns of a row: an invocation holds all streams and the router's columns.
pub const ROUTED_COLUMNS_MAX: usize = 4096;

/// A row that is normed, and added after that.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Added<H: Handles = Addresses> {
    /// (rows, columns) f32.
    pub values: H::Rows,
    /// The factors of the columns, f32.
    pub weight: H::Vector,
}

/// How coefficients are made from a row: `coefficients (cap tanh(router norm(row) / cap))`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Router<H: Handles = Addresses> {
    /// The factors of the norm, f32.
    pub norm: H::Vector,
    /// (streams, columns), floats.
    pub router: H::Matrix,
    /// (streams x sources, streams), floats.
    pub coefficients: H::Matrix,
    /// The largest magnitude of the router's products.
    pub cap: f32,
}

/// What is made of the first stream at the end.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum FirstStream<H: Handles = Addresses> {
    /// Its norm.
    Normed(Finish<H>),
    /// Its product with a vector.
    Scaled(Finish<H>),
}

impl<H: Handles> FirstStream<H> {
    /// Returns the factors, and where the result goes.
    pub(crate) fn finish_mut(&mut self) -> &mut Finish<H> {
        match self {
            FirstStream::Normed(finish) | FirstStream::Scaled(finish) => finish,
        }
    }
}

/// A launch of a mix with a router. The streams are changed in place.
#[derive(Debug, Clone, PartialEq)]
pub struct RouteLaunch<H: Handles = Addresses> {
    /// At most [`TERMS_MAX`].
    pub streams: Vec<Stream<H>>,
    /// The row that is routed, and whose distance from the first stream is the source; `None` if
    /// the first stream is routed, and all streams are sources.
    pub row: Option<H::Rows>,
    /// What is added before everything else: to the row, or to all streams but the first.
    pub added: Option<Added<H>>,
    /// The router.
    pub router: Router<H>,
    /// Added to each scaled coefficient.
    pub bias: f32,
    /// Factor on the coefficients.
    pub scale: f32,
    /// What is made of the first stream at the end.
    pub first: Option<FirstStream<H>>,
    /// Added to the mean squares of all norms.
    pub epsilon: f32,
    /// The rows and columns.
    pub extent: H::Extent,
}

impl<H: Handles> RouteLaunch<H> {
    /// Returns the launch over what a visitor gives for its operands.
    pub(crate) fn visit<B: Handles>(&self, by: &mut impl Visitor<H, B>) -> RouteLaunch<B> {
        let inputs: Vec<_> = self.streams.iter().map(|stream| by.read(stream.input)).collect();
        let row = self.row.map(|row| by.read(row));
        let added = self.added.map(|Added { values, weight }| Added {
            values: by.read(values),
            weight: by.vector(weight),
        });
        let Router { norm, router, coefficients, cap } = self.router;
        let (norm, router) = (by.vector(norm), by.matrix(router));
        let router = Router { norm, router, coefficients: by.matrix(coefficients), cap };
        let outputs = self.streams.iter().map(|stream| by.write(stream.output));
        let streams = inputs.into_iter().zip(outputs);
        RouteLaunch {
            streams: streams.map(|(input, output)| Stream { input, output }).collect(),
            row,
            added,
            router,
            bias: self.bias,
            scale: self.scale,
            first: self.first.map(|first| match first {
                FirstStream::Normed(finish) => FirstStream::Normed(finish.visit(by)),
                FirstStream::Scaled(finish) => FirstStream::Scaled(finish.visit(by)),
            }),
            epsilon: self.epsilon,
            extent: by.extent(self.extent, self.streams[0].input),
        }
    }

    /// Returns what is launched.
    pub(crate) fn name(&self) -> String {
        let before = match (&self.added, self.row) {
            (None, _) => "",
            (Some(_), Some(_)) => "norm_add + ",
            (Some(_), None) => "norm + add + ",
        };
        let after = match self.first {
            None => "",
            Some(FirstStream::Normed(_)) => " + norm",
            Some(FirstStream::Scaled(_)) => " + scale",
        };
        format!("{before}router + mix{after}")
    }
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
        let columns = self.extent.columns;
        let (local, per) = registers(columns);
        let (finishes, finish) = match self.first {
            None => (0, None),
            Some(FirstStream::Normed(finish)) => (1, Some(finish)),
            Some(FirstStream::Scaled(finish)) => (2, Some(finish)),
        };
        let (kind, ..) = operand_args(finish.and_then(|finish| finish.made.operand()));
        vec![
            local as u32,
            self.streams.len() as u32,
            u32::from(self.row.is_some()),
            u32::from(self.added.is_some()),
            finishes,
            kind,
            u32::from(finish.is_some_and(|finish| finish.made.rows().is_some())),
            columns as u32,
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
    /// [`TERMS_MAX`], if they are not changed in place, or if the matrices do not fit them or are
    /// no floats.
    pub fn dispatch(
        &self,
        gpu: &dyn Compiler,
        label: &str,
        step: usize,
    ) -> Result<Dispatch, GpuError> {
        let Router { norm, router, coefficients, .. } = self.router;
        let streams = self.streams.len();
        let sources = if self.row.is_some() { 1 } else { streams };
        let Extent { columns, rows, row_count } = self.extent;
        assert!(columns <= ROUTED_COLUMNS_MAX, "rows of {columns}");
        let is_in_place = self.streams.iter().all(|stream| stream.input == stream.output);
        assert!(is_in_place, "{label} gives streams elsewhere");
        assert_eq!((router.rows, router.columns), (streams, columns), "the router");
        assert_eq!((coefficients.rows, coefficients.columns), (streams * sources, streams));
        let finish = self.first.map(|mut first| *first.finish_mut());
        let (_, codes, scales) = operand_args(finish.and_then(|finish| finish.made.operand()));
        let plain = finish.and_then(|finish| finish.made.rows());
        let args = Args {
            streams: addresses(self.streams.iter().map(|stream| stream.output)),
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
            rows: row_count,
            chain: 0,
        };
        let key =
            KernelKey { shader: Shader("route"), constants: self.constants(), subgroup: None };
        let (reads, writes) = spans(|by| _ = self.visit(by));
        Ok(Dispatch {
            label: label.to_owned(),
            step,
            kernel: gpu.kernel(&key)?,
            push: Push::of(&args),
            groups: [rows as u32, 1, 1],
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
