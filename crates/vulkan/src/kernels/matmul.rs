//! Products of a matrix with several rows of activations: `shaders/matmul_matrix.comp`,
//! `matmul_fragment.comp`, `matmul_resident.comp`, `matmul_direct.comp`, `matmul_turned.comp`,
//! `matmul_halves.comp`, `matmul_split.comp`, `matmul_dot.comp`, `matmul_float.comp`.
//!
//! For a matrix of m x k weights and n rows of activations:
//!
//! | kernel | where | operand | bound |
//! |---|---|---|---|
//! | matrix | cooperative matrices f16 -> f32 | [`super::operand::OperandKind::Halves`] | small n: bytes of the matrix; large n: 2mnk over the matrix units' rate |
//! | resident | up to 8 rows of quantised matrices, cooperative matrices of a known layout (`probe.rs`) | the same | bytes of the matrix |
//! | fragment | 9 to 64 rows of quantised matrices, on the same units | [`super::operand::OperandKind::Fragments`] | bytes of the matrix; 2mnk over the matrix units' rate |
//! | direct | more rows, on the same units | the same | 2mnk over the matrix units' rate |
//! | turned | rows of prompts, matrices that lie arranged, on the same units | the same | 2mnk over the matrix units' rate |
//! | halves | weights of pictures in f16 fragments, on the same units | the same | 2mnk over the matrix units' rate; bytes of the products |
//! | split | weights in f16, bf16 and f32, as exact as f32, on the same units | [`super::operand::OperandKind::Split`] | 4mnk (f32: 6mnk) over the matrix units' rate; bytes of the matrix |
//! | dot | quantised weights, other devices | [`super::operand::OperandKind::Fixed16`] | 2mnk / 4 integer dot products (high and low bytes) |
//! | float | float weights, other devices; on all up to 64 rows of f32 | [`super::operand::OperandKind::Plain`] | 2mnk over the rate of plain f32 |
//!
//! The matrix kernel decodes each tile of weights into shared memory: 2 bytes written and 2 * BN /
//! WN bytes read for each weight, BM / WM times as much for each activation. With small n these,
//! and 2 to 4 instructions to decode a weight, are second to the bytes of the matrix. With large n
//! the reads of shared memory take nearly as long as the products, which is why a subgroup's part
//! of the tile is as large as its registers allow. On an H200 the four products of a layer of Gemma
//! 3 27B in Q4_0 reach 1.5 TB/s of weights at 8 and 16 rows and 300 TFLOP/s at 512
//! (`examples/matmul_bench.rs`): they wait for decoding, barriers and shared memory, not for the
//! bytes or the matrix units.
//!
//! The fragment kernel loads both factors into the registers that the matrix units read, and
//! divides all tiles into equal parts. For a weight in Q4_0 it reads 0.56 bytes (3.35 TB/s on an
//! H100: 0.17 ps), spends about 13 instructions in each lane on 256 weights, which 528 units issue
//! at one per cycle (0.05 ps), and the matrix units take 5.9 clocks for these weights and 8 rows
//! of activations (0.1 ps for 32 rows, 0.2 for 64). So bytes bound the four products of a layer of
//! Gemma 3 27B at 69 us up to 48 rows, and the matrix units at 82 us at 64. They take 140 us at 16
//! rows, 166 at 32 and 236 at 64 (`docs/benchmarks/gpu-kernels.md`): 0.49, 0.42 and 0.35 of the
//! bound. About 10 us of each launch by itself are its beginning and its end. At 16 rows it
//! matters most how much of a row of weights is read at about the same time: gate and up take 63
//! to 76 us where it is 128 bytes or more, and 83 to 91 where it is 64, whatever else is changed.
//!
//! The resident kernel keeps the activations of its columns in registers and streams rows of
//! weights past them. For a weight in Q4_0 it reads the same 0.56 bytes (0.12 ps on an H200),
//! spends about 14 instructions in each lane on a product of 16 x 16 weights, which 528 units
//! issue at one per cycle (0.06 ps), and nothing on shared memory but one sum of each subgroup for
//! 16 rows. The four products of a layer of Gemma 3 27B take an H200 96 us at 8 rows, by
//! themselves and with a barrier each, where activations in shared memory take 106 and the bytes
//! 50. Gate and up are 44 of that; without decoding and products they are 33, without the sums of
//! the subgroups 43, without loads of scales 42: decoding holds up the next loads, which wait for
//! its registers. What gains most is that its workgroups need not be spread over the cores: chains
//! do not end before them.
//!
//! The direct kernel loads weights and activations into the registers of the matrix units, without
//! shared memory and barriers. For 16 x 16 weights and 64 rows of activations a subgroup issues
//! eight products, 47 clocks at the 640 TFLOP/s that the matrix units of an H200 reach from
//! registers (1.755 GHz), and by the driver's code about 24 other instructions. It reads 144 bytes
//! of weights, and 2 KiB of activations through the core's first cache for each 16 columns,
//! whatever the number of left factors. The products of a layer of Gemma 3 27B in Q4_0 at 512 rows
//! reach 300 to 374 TFLOP/s on an H100 (`docs/benchmarks/gpu-kernels.md`). What holds it up is that
//! a subgroup issues in order: its decoding waits for loads, and its products for decoding, with
//! two subgroups for each unit that issues to fill the gaps.
//!
//! The turned kernel has tokens as left factors and arranged weights ([`turned`]) as right ones. For
//! 16 columns of its 64 x 64 results a subgroup issues 32 products, 188 clocks at 640 TFLOP/s, loads
//! 2 KiB of activations and 576 bytes of weights, each 512 bytes in a row, and decodes eight right
//! factors with some 50 other instructions. The products of layers of Gemma 3 4B and 27B at 2,048
//! rows reach 290 to 400 TFLOP/s on an H200 (`docs/benchmarks/gpu-kernels.md`).
//!
//! The halves kernel decodes nothing: both factors lie in memory in the order in which the matrix
//! units hold them. For a product of 16 columns a subgroup with 64 rows of weights and 64 of
//! activations loads 4 KiB through the core's first cache, and issues 32 products, 188 clocks at
//! 640 TFLOP/s. A tile of 128 x 128 reads 8 KiB from the second cache for that: 10 TB/s if all
//! cores did it at that rate, and 5.5 at 350 TFLOP/s. Without the outputs the products of a layer
//! of the tower of Gemma 3 reach 340 to 420 TFLOP/s on an H100, with them 220 to 300: 57 MB of f32
//! for queries, keys and values take about as long as memory does, which is why activations are
//! written as halves.
//!
//! The split kernel multiplies 22 bits of each activation, and of each weight in f32, as two halves:
//! two terms, of weights in f32 three. Weights in bf16 and f32 are counted in a unit of their matrix
//! (`weights/reach.rs`), so that their range does not matter. The other kernels on matrix units
//! round decoded weights to f16 once, with a relative error of 2^-11; beyond 65504 these become
//! infinite, and those in bf16 below 2^-24 become zero.

use bytemuck::{Pod, Zeroable};

use super::attention::WholeLaunch;
use super::handles::Made;
use super::operand::{Operand, OperandKind};
use super::product::{
    Front, Layout, Product, ProductInput, ProductLaunch, ProductOutput, Segments, no_room,
};
use crate::capabilities::Capabilities;
use crate::dispatch::{Fill, Link, Push, Span};
use crate::error::GpuError;
use crate::pack::{Format, Matrix};
use crate::raw::pipeline::KernelKey;
use crate::shaders::Shader;

mod direct;
mod floats;
mod fragment;
pub(crate) mod grouped;
mod launch;
pub(crate) mod probe;
mod resident;
mod rounds;
mod shape;
#[cfg(test)]
mod tests;
pub mod turned;

pub use direct::DirectShape;
pub use floats::FloatsShape;
pub use fragment::FragmentShape;
pub use launch::MatmulLaunch;
use launch::PIECE_ROWS;
pub use probe::Instruction;
pub use resident::ResidentShape;
pub use shape::{MatmulShape, MatrixShape, TileShape};
pub use turned::TurnedShape;

#[repr(C)]
#[derive(Debug, Clone, Copy, Default, Pod, Zeroable)]
struct Args {
    front: Front,
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

/// Returns the shader of a kernel and a format, or `None` if there is no such kernel.
fn shader(shape: &MatmulShape, format: Format) -> Option<Shader> {
    let kernel = match shape {
        MatmulShape::Floats(_) if format == Format::F16Fragments => {
            return Some(Shader("matmul_halves"));
        }
        MatmulShape::Floats(_) => "matmul_split",
        MatmulShape::Matrix(_) => "matmul_matrix",
        MatmulShape::Fragment(_) => "matmul_fragment",
        MatmulShape::Resident(_) => "matmul_resident",
        MatmulShape::Direct(_) => "matmul_direct",
        MatmulShape::Turned(_) => "matmul_turned",
        MatmulShape::Tile(_) if format.is_float() => "matmul_float",
        MatmulShape::Tile(_) => "matmul_dot",
    };
    Shader::of(kernel, format.name())
}

impl MatmulLaunch {
    /// Returns the bytes of scratch memory that the launch needs in a shape; 0 if it needs none.
    pub fn scratch_bytes(&self, shape: &MatmulShape) -> u64 {
        match shape {
            MatmulShape::Fragment(shape) => return shape.scratch_bytes(self),
            MatmulShape::Resident(shape) => return shape.scratch_bytes(self),
            MatmulShape::Matrix(_)
            | MatmulShape::Direct(_)
            | MatmulShape::Turned(_)
            | MatmulShape::Floats(_)
            | MatmulShape::Tile(_) => {}
        }
        let rounds = shape.rounds(self);
        if rounds.shared == 0 {
            return 0;
        }
        let (rows, columns) = shape.tile();
        let parts = u64::from(rounds.shared) * u64::from(rounds.splits);
        Self::COUNTER_BYTES as u64 + 4 * parts * u64::from(rows) * u64::from(columns)
    }

    /// Returns how many rows of activations a device multiplies in one dispatch: all of them, or,
    /// if all would be more workgroups than a dispatch may have, a part of the `allocated` rows
    /// (those with memory) such that pieces of this size fill them.
    pub fn rows_at_once(&self, capabilities: &Capabilities, allocated: usize) -> usize {
        let whole = self.product.width;
        let fits = |width: &usize| {
            let product = Product { width: *width, ..self.product };
            !MatmulShape::candidates(capabilities, &Self { product, ..*self }).is_empty()
        };
        let units = allocated / PIECE_ROWS;
        let parts = (1..units).rev().filter(|part| units.is_multiple_of(*part));
        let mut sizes = std::iter::once(whole).chain(parts.map(|part| part * PIECE_ROWS));
        sizes.find(fits).unwrap_or(whole)
    }

    /// Returns the part of the launch for `rows` rows from `first` on. There has to be memory for
    /// all of these rows, even for those beyond the launch's.
    pub fn piece(&self, first: usize, rows: usize) -> MatmulLaunch {
        let after = |span: Span, row: usize| {
            let before = (first * row) as u64;
            Span { address: span.address + before, bytes: span.bytes.saturating_sub(before) }
        };
        let part = |operand: Operand, columns: usize| Operand {
            codes: after(operand.codes, operand.kind.code_bytes(columns)),
            scales: after(operand.scales, operand.kind.scale_bytes(columns)),
            ..operand
        };
        let cut = |whole: Segments| {
            whole.map(|segment| {
                let row = 4 * segment.rows;
                Span { bytes: (rows * row) as u64, ..after(segment.target, row) }
            })
        };
        let Product { matrix, input, output, .. } = self.product;
        let outputs = self.product.outputs();
        let output = match output {
            ProductOutput::Segments(whole) => ProductOutput::Segments(cut(whole)),
            ProductOutput::Biased { segments, biases } => {
                ProductOutput::Biased { segments: cut(segments), biases }
            }
            ProductOutput::Activated { bias, operand, unit } => {
                ProductOutput::Activated { bias, operand: part(operand, outputs), unit }
            }
            ProductOutput::Gated(Made::Rows(rows)) => {
                ProductOutput::Gated(Made::Rows(after(rows, 4 * outputs)))
            }
            ProductOutput::Gated(_) => unreachable!("gated products of many rows give only f32"),
            ProductOutput::Gates { .. } => unreachable!("only the kernel for one row gates others"),
            ProductOutput::Heads { .. } => unreachable!("pictures are not multiplied in pieces"),
            ProductOutput::GatedHalves { operand, unit } => {
                ProductOutput::GatedHalves { operand: part(operand, outputs), unit }
            }
        };
        let input = match input {
            ProductInput::Operand(operand) => ProductInput::Operand(part(operand, matrix.columns)),
            norm => norm,
        };
        let product = Product { matrix, width: rows, input, output };
        MatmulLaunch { product, scratch: self.scratch }
    }

    fn args(&self, shape: &MatmulShape) -> Args {
        let (product, rounds) = (&self.product, shape.rounds(self));
        let (mut front, outputs) = (product.front(), product.outputs() as u32);
        if let (MatmulShape::Turned(_), Some(arranged)) = (shape, product.matrix.arranged) {
            let [codes, scales, _] = turned::planes(&product.matrix, arranged.address);
            front.set_planes(codes, scales);
        }
        let (_, splits) = product.split();
        let by_fours = front.outputs.iter().all(|address| address.is_multiple_of(16))
            && splits.iter().chain([&outputs]).all(|count| count.is_multiple_of(4));
        Args {
            front,
            scratch: self.scratch.map_or(0, |span| span.address),
            chain: 0,
            features: outputs,
            columns: match product.output {
                ProductOutput::Heads { .. } => WholeLaunch::tiles(product.width) as u32,
                _ => product.matrix.columns as u32,
            },
            groups: product.groups(),
            tokens: product.width as u32,
            splits,
            whole: rounds.whole,
            parts: rounds.splits,
            aligned: u32::from(by_fours),
            unit: match product.output {
                ProductOutput::GatedHalves { unit, .. } | ProductOutput::Activated { unit, .. } => {
                    unit
                }
                _ => product.matrix.unit,
            },
        }
    }

    /// Asserts that the kernel can multiply this.
    fn check(&self, shape: &MatmulShape) {
        let Product { matrix, input, output, .. } = self.product;
        let kind = input.operand().map(|operand| operand.kind);
        assert_eq!(kind, Some(shape.operand(matrix.format)), "the operand of {shape:?}");
        match output {
            ProductOutput::Segments(_) | ProductOutput::Gated(Made::Rows(_)) => {}
            ProductOutput::Gated(_) => panic!("{shape:?} gives only f32 and halves"),
            ProductOutput::Gates { .. } => panic!("only the kernel for one row gates others"),
            ProductOutput::Biased { .. }
            | ProductOutput::Activated { .. }
            | ProductOutput::Heads { .. } => {
                let is_halves = matrix.format == Format::F16Fragments;
                let is_able = is_halves && matches!(shape, MatmulShape::Floats(_));
                assert!(is_able, "{shape:?} adds no biases to products of {:?}", matrix.format);
            }
            ProductOutput::GatedHalves { .. } => {
                let is_f32 =
                    matches!(shape, MatmulShape::Tile(_)) || kind == Some(OperandKind::Split);
                assert!(!is_f32, "{shape:?} gives only f32");
            }
        }
        if matrix.format == Format::F16Fragments {
            let targets = self.product.front().outputs;
            let aligned = targets.iter().all(|address| address.is_multiple_of(16));
            assert!(aligned, "outputs are stored by fours: {targets:?}");
        }
        let scratch = self.scratch.map_or(0, |span| span.bytes);
        assert!(scratch >= self.scratch_bytes(shape), "{scratch} bytes of scratch memory");
    }

    fn misfit(&self, capabilities: &Capabilities, shape: &MatmulShape, label: &str) -> GpuError {
        if self.is_countable() && shape.workgroups(self) <= capabilities.groups[0] {
            return no_room(capabilities, shape, label);
        }
        let Matrix { rows, columns, .. } = self.product.matrix;
        let width = self.product.width;
        let what = format!("{label}, {rows} x {columns} elements times {width} rows,");
        GpuError::TooWide { device: capabilities.name.clone(), what }
    }
}

impl ProductLaunch for MatmulLaunch {
    type Shape = MatmulShape;

    const KERNEL: &'static str = "matmul";

    fn product(&self) -> &Product {
        &self.product
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

    fn form(&self) -> &'static str {
        self.product.matrix.arranged.map_or("", |_| " arranged")
    }

    fn parameters(shape: &MatmulShape) -> Vec<u32> {
        shape.parameters()
    }

    fn lay_out(
        &self,
        capabilities: &Capabilities,
        shape: MatmulShape,
        label: &str,
    ) -> Result<Layout, GpuError> {
        self.check(&shape);
        let shader = shader(&shape, self.product.matrix.format)
            .filter(|_| shape.fits(capabilities, self))
            .ok_or_else(|| self.misfit(capabilities, &shape, label))?;
        let constants = shape.constants(capabilities, self, shape.is_chained(self));
        let subgroup = (!matches!(shape, MatmulShape::Tile(_))).then_some(capabilities.subgroup);
        let used = self.scratch_bytes(&shape);
        let scratch = self.scratch.filter(|_| used > 0);
        Ok(Layout {
            kernel: KernelKey { shader, constants, subgroup },
            push: Push::of(&self.args(&shape)),
            workgroups: shape.workgroups(self),
            scratch: scratch.map(|scratch| Span { bytes: used, ..scratch }),
            link: if shape.is_chained(self) {
                Link::Able {
                    offset: std::mem::offset_of!(Args, chain),
                    early: None,
                    fill: match shape {
                        // Its workgroups are too large to crowd onto a core.
                        MatmulShape::Resident(_) => Fill::Anywhere,
                        _ => Fill::Evenly,
                    },
                }
            } else {
                Link::Outside
            },
            hands: None,
        })
    }
}
