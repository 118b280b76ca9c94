//! Products of a matrix with many rows of activations: `shaders/matmul_matrix.comp`, `matmul_fragment.comp`, `matmul_dot.comp`,
//! `matmul_float.comp`.
//!
//! For a matrix of m x k weights and n rows of activations:
//!
//! | kernel | where | operand | bound |
//! |---|---|---|---|
//! | matrix | cooperative matrices f16 -> f32 | [`super::operand::OperandKind::Halves`] | small n: bytes of the matrix; large n: 2mnk over the matrix units' rate |
//! | fragment | up to 64 rows of large quantised matrices, cooperative matrices of a known layout (`probe.rs`) | the same | bytes of the matrix; decoding |
//! | dot | quantised weights, other devices | [`super::operand::OperandKind::Fixed16`] | 2mnk / 4 integer dot products (high and low bytes) |
//! | float | float weights kept as they are | [`super::operand::OperandKind::Plain`] | 2mnk over the rate of plain f32 |
//!
//! The matrix kernel decodes each tile of weights into shared memory: 2 bytes written and 2 * BN / WN bytes read for each
//! weight, BM / WM times as much for each activation. With small n that, and 2 to 4 instructions to decode a weight, come
//! second after the bytes of the matrix; with large n the reads of shared memory come close to the products, which is why a
//! subgroup's part of the tile is as large as its registers allow. On an H200 the four products of a layer of Gemma 3 27B in
//! Q4_0 reach 1.5 TB/s of weights at 8 and 16 rows and 300 TFLOP/s at 512 (`examples/matmul_bench.rs`): decoding, barriers and
//! shared memory, not the bytes or the matrix units, are what they wait for.
//!
//! The fragment kernel decodes weights in the registers that the matrix units read, and shares out equal parts of all tiles. Of a
//! weight in Q4_0 it reads 0.56 bytes (4.7 TB/s on an H200: 0.12 ps), spends 3 instructions in each lane, of which 528 units
//! issue one a cycle (0.1 ps), and reads for N rows of activations 2 N / 32 or, with 64 rows of weights in a subgroup, 2 N / 64
//! bytes of shared memory (0.03 and 0.015 ps for 16 rows). The four products of a layer of Gemma 3 27B take an H200 106 us at 8
//! rows (151 without it), 164 at 32 (222) and 243 at 64 (315): about 10 us of each launch are its beginning and its end, the
//! rest is 1.25 times the time of the bytes at 8 rows. With 32 rows, gate and up take 78 us: the loads without decoding and with
//! a quarter of the products 62, the products without loads and decoding 48, decoding without loads and with a quarter of the
//! products 44. None of them is the bound by itself; with two subgroups for each unit that issues, they overlap in part.
//!
//! Decoded weights are rounded to f16 once: relative error 2^-11. Weights beyond 65504 become infinite, and bf16 weights
//! below 2^-24 zero.

use bytemuck::{Pod, Zeroable};

use super::matvec::Segment;
use super::operand::{GROUP, Operand, OperandKind};
use super::tunable::Tunable;
use crate::capabilities::Capabilities;
use crate::dispatch::{Dispatch, Fill, Link, Push, Span};
use crate::error::GpuError;
use crate::pack::{Format, Matrix};
use crate::raw::gpu::Gpu;
use crate::raw::pipeline::KernelKey;
use crate::shaders::Shader;

mod fragment;
pub(crate) mod probe;
mod shape;
#[cfg(test)]
mod tests;

pub use fragment::FragmentShape;
pub(crate) use fragment::LARGE;
pub use shape::{MatmulShape, MatrixShape, Product, TileShape};

/// Counters at the front of the scratch memory: one for each tile that several workgroups share.
const COUNTERS: usize = 4096;

/// Most rows of activations of a dispatch that may be part of a chain.
const CHAINED_ROWS: usize = 64;

/// What the rows of a piece of a product that is too large for one dispatch are a multiple of: no tile has more rows of activations, so
/// that none reads beyond the memory of its piece.
const PIECE_ROWS: usize = 128;

/// Percent of the workgroups at once that the last tiles should fill.
const FILLED: u32 = 80;

/// What becomes of the products.
#[derive(Debug, Clone, Copy)]
pub enum MatmulOutput<'a> {
    /// They are written, the segments' rows one after the other: at most three, together the matrix.
    Segments(&'a [Segment]),
    /// `gelu(gate) * up` is written; the matrix is the rows of the gate and then those of `up`.
    Gated {
        /// (width, rows / 2) f32.
        target: Span,
    },
    /// The same as another product's operand.
    GatedHalves {
        /// (width, rows / 2) [`OperandKind::Halves`], whole groups of columns.
        operand: Operand,
        /// The power of two that all rows are counted in. No result may exceed 65504 of it; what is below 2^-14 of it loses bits.
        unit: f32,
    },
}

/// A product with many rows of activations.
#[derive(Debug, Clone, Copy)]
pub struct MatmulLaunch<'a> {
    /// The matrix.
    pub matrix: Matrix,
    /// Rows of activations.
    pub width: usize,
    /// The activations, of the kind that [`MatmulShape::operand`] names.
    pub operand: Operand,
    /// Where the products go.
    pub output: MatmulOutput<'a>,
    /// Memory for the parts of tiles that several workgroups share, at least [`MatmulLaunch::scratch_bytes`]. Its counters
    /// (the first [`MatmulLaunch::COUNTER_BYTES`]) must be 0 before the first launch that uses it; each launch leaves them so.
    pub scratch: Option<Span>,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Default, Pod, Zeroable)]
struct Args {
    codes: u64,
    high: u64,
    scales: u64,
    supers: u64,
    operand: u64,
    operand_scales: u64,
    outputs: [u64; 3],
    scratch: u64,
    chain: u64,
    features: u32,
    columns: u32,
    groups: u32,
    tokens: u32,
    splits: [u32; 2],
    whole: u32,
    parts: u32,
    aligned: u32,
    unit: f32,
}

/// Name of the shader for a kernel and a format; `None` where there is no such kernel.
fn shader(shape: &MatmulShape, format: Format) -> Option<Shader> {
    Some(Shader(match (shape, format) {
        (MatmulShape::Matrix(_), Format::F16) => "matmul_matrix_f16",
        (MatmulShape::Matrix(_), Format::Bf16) => "matmul_matrix_bf16",
        (MatmulShape::Matrix(_), Format::Q8_0) => "matmul_matrix_q8_0",
        (MatmulShape::Matrix(_), Format::Q4_0) => "matmul_matrix_q4_0",
        (MatmulShape::Matrix(_), Format::Q4K) => "matmul_matrix_q4_k",
        (MatmulShape::Matrix(_), Format::Q6K) => "matmul_matrix_q6_k",
        (MatmulShape::Matrix(_), Format::F32) => return None,
        (MatmulShape::Fragment(_), Format::Q8_0) => "matmul_fragment_q8_0",
        (MatmulShape::Fragment(_), Format::Q4_0) => "matmul_fragment_q4_0",
        (MatmulShape::Fragment(_), Format::Q4K) => "matmul_fragment_q4_k",
        (MatmulShape::Fragment(_), Format::Q6K) => "matmul_fragment_q6_k",
        (MatmulShape::Fragment(_), _) => return None,
        (MatmulShape::Tile(_), Format::F32) => "matmul_float_f32",
        (MatmulShape::Tile(_), Format::F16) => "matmul_float_f16",
        (MatmulShape::Tile(_), Format::Bf16) => "matmul_float_bf16",
        (MatmulShape::Tile(_), Format::Q8_0) => "matmul_dot_q8_0",
        (MatmulShape::Tile(_), Format::Q4_0) => "matmul_dot_q4_0",
        (MatmulShape::Tile(_), Format::Q4K) => "matmul_dot_q4_k",
        (MatmulShape::Tile(_), Format::Q6K) => "matmul_dot_q6_k",
    }))
}

/// How tiles are dealt out to workgroups.
#[derive(Debug, Clone, Copy)]
struct Rounds {
    /// Tiles that one workgroup makes.
    whole: u32,
    /// Tiles that several share.
    shared: u32,
    /// How many.
    splits: u32,
}

impl MatmulLaunch<'_> {
    /// Bytes at the front of the scratch memory that must be 0 before its first use.
    pub const COUNTER_BYTES: usize = 4 * COUNTERS;

    /// Bytes of weights that the launch reads at least once, and of outputs.
    pub fn bytes(&self) -> u64 {
        let size = if matches!(self.output, MatmulOutput::GatedHalves { .. }) { 2 } else { 4 };
        self.matrix.cost(self.width).0 + (size * self.width * self.outputs()) as u64
    }

    /// Floating-point operations of the launch.
    pub fn operations(&self) -> u64 {
        self.matrix.cost(self.width).1
    }

    /// Bytes of scratch memory that the launch needs in a shape; 0 if none.
    pub fn scratch_bytes(&self, shape: &MatmulShape) -> u64 {
        if let MatmulShape::Fragment(fragment) = shape {
            return fragment.scratch_bytes(self, self.tiles(shape));
        }
        let rounds = self.rounds(shape);
        if rounds.shared == 0 {
            return 0;
        }
        let (rows, columns) = shape.tile();
        let parts = u64::from(rounds.shared) * u64::from(rounds.splits);
        Self::COUNTER_BYTES as u64 + 4 * parts * u64::from(rows) * u64::from(columns)
    }

    /// How the tiles are dealt out to workgroups.
    fn rounds(&self, shape: &MatmulShape) -> Rounds {
        let tiles = self.tiles(shape);
        let whole = Rounds { whole: tiles, shared: 0, splits: 1 };
        let MatmulShape::Matrix(matrix) = shape else { return whole };
        if matrix.workgroups == 0 {
            return whole;
        }
        // Whole rows of tiles: a product's sum is split alike for all rows of activations.
        let (_, columns) = shape.tile();
        let token_tiles = self.width.div_ceil(columns as usize) as u32;
        let shared = (tiles % matrix.workgroups).next_multiple_of(token_tiles).min(tiles);
        if shared == 0 {
            return whole;
        }
        // The last tiles fill one round, or two or three if one would leave too much of the device idle.
        let most = (self.groups() * GROUP as u32 / matrix.step / 2).max(1);
        let fill = |rounds: u32| {
            let splits = (rounds * matrix.workgroups / shared).min(most);
            (splits, 100 * shared * splits / (rounds * matrix.workgroups))
        };
        let mut best = fill(1);
        for rounds in 2..=3 {
            let other = fill(rounds);
            if best.1 < FILLED && other.1 > best.1 {
                best = other;
            }
        }
        let (splits, _) = best;
        if splits < 2 { whole } else { Rounds { whole: tiles - shared, shared, splits } }
    }

    /// How many rows of activations a device multiplies in one dispatch: all; or, where all would be more workgroups than a
    /// dispatch may have, a part of the `allocated` rows (those with memory) such that pieces of this size fill them.
    pub fn rows_at_once(&self, capabilities: &Capabilities, allocated: usize) -> usize {
        let fits = |width: &usize| {
            let piece = Self { width: *width, ..*self };
            !MatmulShape::candidates(capabilities, &piece).is_empty()
        };
        let units = allocated / PIECE_ROWS;
        let parts = (1..units).rev().filter(|part| units.is_multiple_of(*part));
        let whole = Some(self.width);
        whole
            .into_iter()
            .chain(parts.map(|part| part * PIECE_ROWS))
            .find(fits)
            .unwrap_or(self.width)
    }

    /// The part of the launch for `rows` rows from `first` on. `segments` holds where their products go. There has to be memory for
    /// all of these rows, though it may be of rows beyond the launch's.
    pub fn piece<'b>(
        &self,
        first: usize,
        rows: usize,
        segments: &'b mut Vec<Segment>,
    ) -> MatmulLaunch<'b> {
        let after = |span: Span, row: usize| {
            let before = (first * row) as u64;
            Span { address: span.address + before, bytes: span.bytes.saturating_sub(before) }
        };
        let part = |operand: Operand, columns: usize| Operand {
            codes: after(operand.codes, operand.kind.code_bytes(columns)),
            scales: after(operand.scales, operand.kind.scale_bytes(columns)),
            ..operand
        };
        let output = match self.output {
            MatmulOutput::Segments(whole) => {
                let own = |segment: &Segment| {
                    let row = 4 * segment.rows;
                    let target = after(segment.target, row);
                    let target = Span { bytes: (rows * row) as u64, ..target };
                    Segment { target, ..*segment }
                };
                segments.clear();
                segments.extend(whole.iter().map(own));
                MatmulOutput::Segments(segments)
            }
            MatmulOutput::Gated { target } => {
                MatmulOutput::Gated { target: after(target, 4 * self.outputs()) }
            }
            MatmulOutput::GatedHalves { operand, unit } => {
                MatmulOutput::GatedHalves { operand: part(operand, self.outputs()), unit }
            }
        };
        let Self { matrix, scratch, .. } = *self;
        let operand = part(self.operand, matrix.columns);
        MatmulLaunch { matrix, width: rows, operand, output, scratch }
    }

    /// Whether the dispatch may be part of a chain. Wide ones gain less by it than they lose: with all of them in
    /// chains a prompt of 512 on 27B ran at 5,107 instead of 5,432 tokens/s on an H200 (`bench -p 512 -r 5` and `-r 10`).
    fn is_chained(&self, shape: &MatmulShape) -> bool {
        !matches!(shape, MatmulShape::Tile(_)) && self.width <= CHAINED_ROWS
    }

    fn is_gated(&self) -> bool {
        !matches!(self.output, MatmulOutput::Segments(_))
    }

    /// The shaders' number of what becomes of a product.
    fn gated_number(&self) -> u32 {
        match self.output {
            MatmulOutput::Segments(_) => 0,
            MatmulOutput::Gated { .. } => 1,
            MatmulOutput::GatedHalves { .. } => 2,
        }
    }

    fn outputs(&self) -> usize {
        if self.is_gated() { self.matrix.rows / 2 } else { self.matrix.rows }
    }

    fn groups(&self) -> u32 {
        self.matrix.columns.div_ceil(GROUP) as u32
    }

    /// Tiles of the output.
    fn tiles(&self, shape: &MatmulShape) -> u32 {
        let (features, tokens) = shape.tile();
        let features = if self.is_gated() { features / 2 } else { features };
        (self.outputs() as u32).div_ceil(features) * (self.width as u32).div_ceil(tokens)
    }

    fn args(&self, rounds: Rounds) -> Args {
        let planes = self.matrix.planes;
        let outputs = self.outputs() as u32;
        let mut args = Args {
            codes: planes.codes,
            high: planes.high,
            scales: planes.scales,
            supers: planes.supers,
            operand: self.operand.codes.address,
            operand_scales: self.operand.scales.address,
            scratch: self.scratch.map_or(0, |span| span.address),
            features: outputs,
            columns: self.matrix.columns as u32,
            groups: self.groups(),
            tokens: self.width as u32,
            splits: [outputs; 2],
            whole: rounds.whole,
            parts: rounds.splits,
            ..Args::default()
        };
        match self.output {
            MatmulOutput::Segments(segments) => {
                let mut row = 0;
                for (index, segment) in segments.iter().enumerate() {
                    args.outputs[index] = segment.target.address;
                    row += segment.rows as u32;
                    if let Some(split) = args.splits.get_mut(index) {
                        *split = row;
                    }
                }
            }
            MatmulOutput::Gated { target } => args.outputs[0] = target.address,
            MatmulOutput::GatedHalves { operand, unit } => {
                args.outputs[..2]
                    .copy_from_slice(&[operand.codes, operand.scales].map(|s| s.address));
                args.unit = unit;
            }
        }
        let by_fours = args.outputs.iter().all(|address| address.is_multiple_of(16))
            && args.splits.iter().chain([&outputs]).all(|count| count.is_multiple_of(4));
        args.aligned = u32::from(by_fours);
        args
    }

    /// Whether kernels can count its parts. They do so in 32 bits, of which the driver takes one as a sign: pieces of 8 bytes of weights,
    /// of 16 bytes of activations, and outputs.
    fn is_countable(&self) -> bool {
        let Matrix { format, rows, columns, .. } = self.matrix;
        let padded = columns.next_multiple_of(GROUP);
        let least = if format.is_float() { 2 } else { 8 };
        (rows * padded / least).max(self.width * padded).max(self.width * rows) < 1 << 31
    }

    fn check(&self, shape: &MatmulShape) {
        let matrix = self.matrix;
        assert!(self.width > 0 && matrix.rows > 0 && matrix.columns > 0, "an empty product");
        assert_eq!(self.operand.kind, shape.operand(matrix.format), "the operand of {shape:?}");
        match self.output {
            MatmulOutput::Segments(segments) => {
                assert!((1..=3).contains(&segments.len()), "{} segments", segments.len());
                let rows: usize = segments.iter().map(|segment| segment.rows).sum();
                assert_eq!(rows, matrix.rows, "rows of the segments");
            }
            MatmulOutput::Gated { .. } => {
                assert!(matrix.rows.is_multiple_of(2), "gate and up have as many rows");
            }
            MatmulOutput::GatedHalves { operand, .. } => {
                assert!(matrix.rows.is_multiple_of(2 * GROUP), "whole groups of results");
                assert_eq!(operand.kind, OperandKind::Halves, "the result of {shape:?}");
                assert!(!matches!(shape, MatmulShape::Tile(_)), "{shape:?} gives only f32");
            }
        }
        let scratch = self.scratch.map_or(0, |span| span.bytes);
        assert!(scratch >= self.scratch_bytes(shape), "{scratch} bytes of scratch memory");
    }

    fn misfit(&self, capabilities: &Capabilities, shape: &MatmulShape, label: &str) -> GpuError {
        let device = capabilities.name.clone();
        if self.is_countable() && shape.workgroups(self) <= capabilities.groups[0] {
            return GpuError::Missing { device, what: format!("room for {shape:?} of {label}") };
        }
        let Matrix { rows, columns, .. } = self.matrix;
        let what = format!("{label}, {rows} x {columns} elements times {} rows,", self.width);
        GpuError::TooWide { device, what }
    }

    /// The dispatch of the launch in a shape.
    ///
    /// # Errors
    /// If the device cannot run the shape or the kernel cannot be compiled.
    ///
    /// # Panics
    /// If the launch contradicts itself: an operand of the wrong kind, segments that are not the matrix, too little scratch
    /// memory.
    pub fn dispatch(
        &self,
        gpu: &Gpu,
        shape: MatmulShape,
        label: &str,
        step: usize,
    ) -> Result<Dispatch, GpuError> {
        self.check(&shape);
        let capabilities = gpu.capabilities();
        let shader = shader(&shape, self.matrix.format)
            .filter(|_| shape.fits(capabilities, self))
            .ok_or_else(|| self.misfit(capabilities, &shape, label))?;
        let constants = shape.constants(capabilities, self);
        let subgroup = (!matches!(shape, MatmulShape::Tile(_))).then_some(capabilities.subgroup);
        let rounds = self.rounds(&shape);
        let used = self.scratch_bytes(&shape);
        let mut reads: Vec<Span> = self.operand.spans().collect();
        let mut writes: Vec<Span> = match self.output {
            MatmulOutput::Segments(segments) => {
                segments.iter().map(|segment| segment.target).collect()
            }
            MatmulOutput::Gated { target } => vec![target],
            MatmulOutput::GatedHalves { operand, .. } => operand.spans().collect(),
        };
        if let Some(scratch) = self.scratch.filter(|_| used > 0) {
            let used = Span { bytes: used, ..scratch };
            reads.push(used);
            writes.push(used);
        }
        Ok(Dispatch {
            label: label.to_owned(),
            step,
            kernel: gpu.kernel(&KernelKey { shader, constants, subgroup })?,
            push: Push::of(&self.args(rounds)),
            groups: [shape.workgroups(self), 1, 1],
            reads,
            writes,
            link: if self.is_chained(&shape) {
                Link::Able {
                    offset: std::mem::offset_of!(Args, chain),
                    early: None,
                    fill: Fill::Evenly,
                }
            } else {
                Link::Outside
            },
        })
    }
}

impl Tunable for MatmulLaunch<'_> {
    type Shape = MatmulShape;

    fn key(&self) -> String {
        let Matrix { format, rows, columns, .. } = self.matrix;
        let (width, input) = (self.width, self.operand.kind.name());
        let output = match self.output {
            MatmulOutput::Segments(_) => "rows",
            MatmulOutput::Gated { .. } => "gated",
            MatmulOutput::GatedHalves { .. } => "gated halves",
        };
        format!("matmul {} {rows}x{columns} w{width} {input} {output}", format.name())
    }

    fn offer(&self, capabilities: &Capabilities) -> Vec<MatmulShape> {
        let room = self.scratch.map_or(0, |span| span.bytes);
        let mut shapes = MatmulShape::candidates(capabilities, self);
        shapes.retain(|shape| self.scratch_bytes(shape) <= room);
        if shapes.is_empty() {
            shapes.push(MatmulShape::default_for(capabilities, self));
        }
        shapes
    }

    fn parameters(shape: &MatmulShape) -> Vec<u32> {
        shape.parameters()
    }

    fn cost(&self) -> (u64, u64) {
        self.matrix.cost(self.width)
    }

    fn dispatch(
        &self,
        gpu: &Gpu,
        shape: MatmulShape,
        label: &str,
        step: usize,
    ) -> Result<Dispatch, GpuError> {
        MatmulLaunch::dispatch(self, gpu, shape, label, step)
    }
}
