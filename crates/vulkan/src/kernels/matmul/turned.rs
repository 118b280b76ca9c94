//! The product with tokens as left factors: `shaders/matmul_turned.comp`, and the launch that
//! arranges weights for it, `shaders/arrange.comp`.
//!
//! ```text
//! codes:  tile of 64 rows, group of 128 columns, word w of a unit, factors 0..3 and 4..7, lane 4 n + c, [factor],
//!         word w of unit c of row n of the factor
//! scales: tile, group, lane 4 n + c, [factor 0..7], the scale of unit c of row n of the factor, f16
//! ```
//!
//! A tile is eight right factors of 8 rows, in a gated product four of the gate and four of up.
//! Which rows these are, `shaders/include/arranged.glsl` says.

use bytemuck::{Pod, Zeroable};

use super::launch::{COUNTERS, MatmulLaunch, PIECE_ROWS};
use super::probe::LANES;
use super::rounds::{Rounds, distinct};
use crate::capabilities::Capabilities;
use crate::compiler::Compiler;
use crate::dispatch::{Dispatch, Link, Push, Span};
use crate::error::GpuError;
use crate::kernels::operand::{GROUP, OperandKind};
use crate::kernels::product::Product;
use crate::pack::{Arranged, Format, Matrix};
use crate::raw::pipeline::KernelKey;
use crate::shaders::Shader;

/// Rows of the matrix in a tile of an arranged matrix.
const TILE_ROWS: usize = 64;
/// Rows of activations of a subgroup.
const TOKENS: u32 = 64;
/// Bytes of the codes and of the scales of a tile and a group of columns.
const CODE_BYTES: u64 = 4 * 2 * 32 * 16;
const SCALE_BYTES: u64 = 32 * 16;
/// Invocations of a workgroup that arranges.
const LOCAL: u32 = 128;

/// Shape of the kernel for many rows of activations whose weights are right factors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TurnedShape {
    /// Subgroups of a workgroup: along the rows of activations, along the rows of weights.
    pub subgroups: (u32, u32),
    /// Workgroups that the device runs at the same time, if several are to share each of the tiles
    /// that would not fill it in the last round; otherwise 0.
    pub workgroups: u32,
}

impl TurnedShape {
    /// Returns the tile of a workgroup: rows of weights, rows of activations.
    pub(super) fn tile(&self) -> (u32, u32) {
        (self.subgroups.1 * TILE_ROWS as u32, self.subgroups.0 * TOKENS)
    }

    /// Returns how the tiles are distributed over workgroups.
    pub(super) fn rounds(&self, launch: &MatmulLaunch) -> Rounds {
        Rounds::filling(launch, self.tile(), self.workgroups, launch.product.groups() / 2)
    }

    fn local(&self) -> u32 {
        self.subgroups.0 * self.subgroups.1 * LANES
    }

    pub(super) fn fits(&self, capabilities: &Capabilities, launch: &MatmulLaunch) -> bool {
        let product = &launch.product;
        let kind = product.input.operand().map(|operand| operand.kind);
        capabilities.fragments
            && product.matrix.arranged.is_some_and(|it| it.is_gated == product.is_gated())
            && kind == Some(OperandKind::Fragments)
            && gives(product)
            && (1..=32).contains(&self.subgroups.0)
            && (1..=32).contains(&self.subgroups.1)
            && self.tile().1 as usize <= PIECE_ROWS
            && self.local() <= capabilities.invocations
            && self.rounds(launch).shared as usize <= COUNTERS
    }

    /// Returns the specialisation constants, in the order of their numbers in the shader.
    pub(super) fn constants(&self, launch: &MatmulLaunch) -> Vec<u32> {
        vec![
            self.local(),
            self.subgroups.1,
            launch.product.output.number(),
            u32::from(self.rounds(launch).shared > 0),
        ]
    }
}

/// Returns whether the kernel gives a product's results.
fn gives(product: &Product) -> bool {
    let (rows, _) = product.split();
    let rows: Vec<usize> = rows.iter().map(|&rows| rows as usize).collect();
    suits(product.matrix.format, product.is_gated(), &rows)
}

/// Returns whether there is a kernel for weights in a format whose results go to segments of so
/// many rows; in a gated product, for a gate of so many. It stores four features at a time.
pub fn suits(format: Format, is_gated: bool, rows: &[usize]) -> bool {
    let whole = if is_gated { GROUP } else { 4 };
    Shader::of("matmul_turned", format.name()).is_some()
        && rows.iter().all(|rows| rows.is_multiple_of(whole))
}

/// Returns the addresses of the codes and of the scales of a matrix that is arranged at an address,
/// and where it ends.
pub(super) fn planes(matrix: &Matrix, address: u64) -> [u64; 3] {
    let tiles = matrix.rows.div_ceil(TILE_ROWS);
    let places = (tiles * matrix.columns.div_ceil(GROUP)) as u64;
    let scales = address + places * CODE_BYTES;
    [address, scales, scales + places * SCALE_BYTES]
}

/// Returns the bytes of a matrix of this size when it is arranged.
pub fn arranged_bytes(matrix: &Matrix) -> u64 {
    let [_, _, end] = planes(matrix, 0);
    end
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
struct Args {
    planes: [u64; 4],
    groups: u32,
    tiles: u32,
    features: u32,
    up: u32,
}

/// Returns the dispatch that arranges a matrix. `label` names it in errors.
///
/// # Errors
/// If there is no kernel for the format, or it cannot be compiled.
pub fn arrange(
    gpu: &dyn Compiler,
    matrix: &Matrix,
    to: Arranged,
    label: &str,
) -> Result<Dispatch, GpuError> {
    let Matrix { format, rows, columns, planes: from, .. } = *matrix;
    let shader = Shader::of("arrange", format.name()).ok_or_else(|| GpuError::Missing {
        device: gpu.capabilities().name.clone(),
        what: format!("a kernel that arranges {} of {label}", format.name()),
    })?;
    let features = if to.is_gated { rows / 2 } else { rows } as u32;
    let tiles = rows.div_ceil(TILE_ROWS) as u32;
    let groups = columns.div_ceil(GROUP) as u32;
    let [codes, scales, end] = planes(matrix, to.address);
    let args = Args {
        planes: [from.codes, from.scales, codes, scales],
        groups,
        tiles,
        features,
        up: features,
    };
    let constants = vec![LOCAL, u32::from(to.is_gated)];
    let kernel = gpu.kernel(&KernelKey { shader, constants, subgroup: None })?;
    let bytes = format.plane_bytes(rows, columns).and_then(|planes| planes.layout());
    Ok(Dispatch {
        label: label.to_owned(),
        step: 0,
        kernel,
        push: Push::of(&args),
        groups: [(tiles * groups).div_ceil(LOCAL / LANES), 1, 1],
        reads: vec![Span { address: from.codes, bytes: bytes.map_or(0, |(_, bytes)| bytes) }],
        writes: vec![Span { address: codes, bytes: end - codes }],
        link: Link::Outside,
        hands: None,
    })
}

/// Fewest rows of activations for which it is the first choice
/// (`docs/benchmarks/gpu-kernels.md`).
const MANY_ROWS: usize = 257;
/// Percent of the workgroups that run at the same time which the last round should fill for tiles
/// that nobody shares.
const FILLED: u32 = 90;

/// Returns whether it is the first choice for a product.
pub(super) fn is_first(launch: &MatmulLaunch) -> bool {
    launch.product.width >= MANY_ROWS
}

/// Subgroups along the rows of activations and along those of weights, and the workgroups that a
/// core runs at the same time (0: one for each tile).
type Layout = [u32; 3];

const LAYOUTS: &[Layout] = &[[2, 2, 0], [2, 2, 2], [2, 4, 0], [2, 4, 1], [1, 2, 0], [1, 4, 0]];

/// Returns the shapes that are worth measuring, the likeliest first.
pub(super) fn candidates(capabilities: &Capabilities, launch: &MatmulLaunch) -> Vec<TurnedShape> {
    let cores = capabilities.cores_or_guess();
    let shape = |&[tokens, rows, share]: &Layout| {
        let shape = TurnedShape { subgroups: (tokens, rows), workgroups: share * cores };
        // Where no tile would be shared, it is the shape that shares none.
        let workgroups = if shape.rounds(launch).shared > 0 { shape.workgroups } else { 0 };
        TurnedShape { workgroups, ..shape }
    };
    let mut shapes = distinct(LAYOUTS.iter().map(shape));
    let (tiles, places) = (launch.tiles(shapes[0].tile()), 2 * cores);
    if 100 * tiles < FILLED * tiles.next_multiple_of(places) && shapes[1].workgroups > 0 {
        shapes.swap(0, 1);
    }
    shapes
}
