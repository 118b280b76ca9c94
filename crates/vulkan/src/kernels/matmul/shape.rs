//! How a matrix-matrix product is laid out on a device.

use super::direct::{self, DirectShape};
use super::floats::{self, FloatsShape};
use super::fragment::{self, FragmentShape};
use super::launch::{COUNTERS, MatmulLaunch};
use super::probe::Instruction;
use super::resident::{self, ResidentShape};
use super::rounds::Rounds;
use super::turned::{self, TurnedShape};
use crate::capabilities::{Capabilities, DeviceKind, Element};
use crate::kernels::operand::{GROUP, OperandKind, SCALE_BLOCK};
use crate::pack::Format;

/// Most rows of activations of a dispatch that may be part of a chain.
const CHAINED_ROWS: usize = 64;

/// Fewest rows of activations for the kernels that load them straight into registers: more than the
/// one that keeps them there takes.
pub(super) const FRAGMENTS_ROWS: usize = 9;

/// Fewest rows of activations for matrices in f32 on matrix units: routers of 26B-A4B made 32
/// sequences 3 % slower on an H200.
const SPLIT_ROWS: usize = 65;

/// Shape of the kernel for matrix units.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MatrixShape {
    /// Rows of weights (in a gated product half from each matrix) and rows of activations of a
    /// workgroup's tile.
    pub tile: (u32, u32),
    /// Columns of a step: 32, 64 or 128.
    pub step: u32,
    /// A subgroup's part of the tile.
    pub part: (u32, u32),
    /// Subgroups that share the columns of a step.
    pub slices: u32,
    /// Copies of the tiles in shared memory: 1 or 2.
    pub stages: u32,
    /// Steps whose loads are in flight: 1 to 4.
    pub depth: u32,
    /// Workgroups that the device runs at the same time, if several are to share each of the tiles
    /// that would not fill it in the last round; otherwise 0.
    pub workgroups: u32,
    /// The instruction.
    pub instruction: Instruction,
}

/// Shape of the kernels for plain and integer arithmetic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TileShape {
    /// Rows of weights (in a gated product half from each matrix) and rows of activations of a
    /// workgroup's tile.
    pub tile: (u32, u32),
    /// The same for an invocation.
    pub part: (u32, u32),
    /// Columns of a step: 32, 64 or 128 with quantised weights; with floats a multiple of 4 that
    /// divides 128.
    pub step: u32,
    /// Invocations that share each part, and take the columns of a step in turn: 1 with quantised
    /// weights, otherwise a divisor of the step.
    pub slices: u32,
}

/// How the work is laid out on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MatmulShape {
    /// On matrix units.
    Matrix(MatrixShape),
    /// On matrix units whose layout is known, for up to 64 rows of activations, which several
    /// subgroups read from a cache.
    Fragment(FragmentShape),
    /// On the same units, for up to eight rows of activations, which stay in registers.
    Resident(ResidentShape),
    /// On the same units, for many rows of activations.
    Direct(DirectShape),
    /// On the same units, for many rows of activations, with weights as right factors.
    Turned(TurnedShape),
    /// On the same units, for many rows of activations and weights in floats.
    Floats(FloatsShape),
    /// Integer dot products for quantised weights, plain f32 for others.
    Tile(TileShape),
}

impl MatrixShape {
    /// Returns how the tiles are distributed over workgroups.
    fn rounds(&self, launch: &MatmulLaunch) -> Rounds {
        let most = launch.product.groups() * GROUP as u32 / self.step / 2;
        Rounds::filling(launch, self.tile, self.workgroups, most)
    }

    fn subgroups(&self) -> u32 {
        self.tile.0 / self.part.0 * (self.tile.1 / self.part.1) * self.slices
    }

    fn local(&self, subgroup: u32) -> u32 {
        self.subgroups() * subgroup
    }

    /// Returns the 16-byte vectors of shared memory: rows of the tiles have one more than their
    /// halves need, and at the end each subgroup lays out the sums of `instruction.n` rows of
    /// activations.
    fn shared(&self) -> u32 {
        let tiles = self.stages * (self.tile.0 + self.tile.1) * (self.step / 8 + 1);
        let sums = self.subgroups() * self.instruction.n * (self.part.0 / 4 + 1);
        tiles.max(sums)
    }

    fn fits(&self, capabilities: &Capabilities, launch: &MatmulLaunch) -> bool {
        let Instruction { m, n, k } = self.instruction;
        let there = capabilities.cooperative.iter().any(|shape| {
            (shape.m, shape.n, shape.k) == (m, n, k)
                && (shape.input, shape.output) == (Element::F16, Element::F32)
        });
        let sizes = [self.tile.0, self.tile.1, self.part.0, self.part.1, self.slices];
        if !there || sizes.contains(&0) || !matches!(self.step, 32 | 64 | 128) {
            return false;
        }
        let rows = if launch.product.is_gated() { 2 * m } else { m };
        let divide = self.tile.0.is_multiple_of(self.part.0)
            && self.tile.1.is_multiple_of(self.part.1)
            && self.part.0.is_multiple_of(rows)
            && self.part.1.is_multiple_of(n)
            && self.step.is_multiple_of(k * self.slices)
            && k.is_multiple_of(8)
            && m.is_multiple_of(4);
        let shared = self.shared().checked_mul(16).and_then(|bytes| bytes.checked_add(16));
        let rounds = self.rounds(launch);
        divide
            && matches!(self.stages, 1 | 2)
            && matches!(self.depth, 1..=4)
            && rounds.shared as usize <= COUNTERS
            && self.local(capabilities.subgroup) <= capabilities.invocations
            && shared.is_some_and(|bytes| bytes <= capabilities.shared_bytes)
    }
}

impl TileShape {
    fn local(&self) -> u32 {
        self.tile.0 / self.part.0 * (self.tile.1 / self.part.1) * self.slices
    }

    fn shared_bytes(&self, is_float: bool) -> u32 {
        if is_float {
            let sums = ((self.slices - 1) * self.tile.0 * self.tile.1).max(1);
            4 * (self.step * (self.tile.0 + self.tile.1) + sums)
        } else {
            self.step / 32 * (40 * self.tile.0 + 72 * self.tile.1)
        }
    }

    fn fits(&self, capabilities: &Capabilities, launch: &MatmulLaunch) -> bool {
        let sizes = [self.tile.0, self.tile.1, self.part.0, self.part.1, self.step, self.slices];
        if sizes.contains(&0) {
            return false;
        }
        let is_float = launch.product.matrix.format.is_float();
        let step = if is_float {
            self.step.is_multiple_of(4)
                && 128_u32.is_multiple_of(self.step)
                && self.step.is_multiple_of(self.slices)
        } else {
            matches!(self.step, 32 | 64 | 128) && self.slices == 1
        };
        step && self.tile.0.is_multiple_of(self.part.0)
            && self.tile.1.is_multiple_of(self.part.1)
            && (!launch.product.is_gated() || self.part.0.is_multiple_of(2))
            && self.local() <= capabilities.invocations
            && self.shared_bytes(is_float) <= capabilities.shared_bytes
    }
}

impl MatmulShape {
    /// Returns the tile of a workgroup: rows of weights, rows of activations.
    pub fn tile(&self) -> (u32, u32) {
        match self {
            MatmulShape::Matrix(shape) => shape.tile,
            MatmulShape::Fragment(shape) => shape.tile(),
            MatmulShape::Resident(_) => ResidentShape::tile(),
            MatmulShape::Direct(shape) => shape.tile(),
            MatmulShape::Turned(shape) => shape.tile(),
            MatmulShape::Floats(shape) => shape.tile(),
            MatmulShape::Tile(shape) => shape.tile,
        }
    }

    /// Returns the operand that the kernel takes.
    pub fn operand(&self, format: Format) -> OperandKind {
        match self {
            MatmulShape::Matrix(_) | MatmulShape::Resident(_) => OperandKind::Halves,
            MatmulShape::Floats(_) if format != Format::F16Fragments => OperandKind::Split,
            MatmulShape::Fragment(_)
            | MatmulShape::Direct(_)
            | MatmulShape::Turned(_)
            | MatmulShape::Floats(_) => OperandKind::Fragments,
            MatmulShape::Tile(_) if format.is_float() => OperandKind::Plain,
            MatmulShape::Tile(_) => OperandKind::Fixed16,
        }
    }

    /// Returns the operand of the kernel that a device uses for a format and this many rows of
    /// activations. Float weights are kept for their exactness and are multiplied in f32 on every
    /// device, or as exactly as that.
    pub fn operand_for(capabilities: &Capabilities, format: Format, rows: usize) -> OperandKind {
        if format == Format::F16Fragments {
            OperandKind::Fragments
        } else if format.is_float() {
            let least = if format == Format::F32 { SPLIT_ROWS } else { FRAGMENTS_ROWS };
            match capabilities.fragments && rows >= least {
                true => OperandKind::Split,
                false => OperandKind::Plain,
            }
        } else if instructions(capabilities).is_empty() {
            OperandKind::Fixed16
        } else if capabilities.fragments && rows >= FRAGMENTS_ROWS {
            OperandKind::Fragments
        } else {
            OperandKind::Halves
        }
    }

    /// Returns the operand of the kernel that a device uses for weights in f16 or bf16 that are not
    /// kept for their exactness.
    pub fn short_operand(capabilities: &Capabilities) -> OperandKind {
        match instructions(capabilities)[..] {
            [] => OperandKind::Plain,
            [..] => OperandKind::Halves,
        }
    }

    /// Returns a shape that does well on a device, before anything is measured.
    pub fn default_for(capabilities: &Capabilities, launch: &MatmulLaunch) -> Self {
        let all = Self::candidates(capabilities, launch);
        let fallback = Self::Tile(TileShape { tile: (32, 32), part: (4, 4), step: 32, slices: 1 });
        all.first().copied().unwrap_or(fallback)
    }

    /// Returns the shapes that are worth measuring on a device for the operand of a launch, the
    /// likeliest first.
    pub fn candidates(capabilities: &Capabilities, launch: &MatmulLaunch) -> Vec<Self> {
        let list = match launch.product.input.operand().map(|operand| operand.kind) {
            Some(OperandKind::Halves) => {
                let resident = resident::candidates(capabilities, launch);
                let mut list: Vec<Self> = resident.into_iter().map(Self::Resident).collect();
                list.extend(matrix_candidates(capabilities, launch));
                list
            }
            Some(OperandKind::Fragments) => {
                let fragments = fragment::candidates(capabilities, launch);
                if launch.product.matrix.format == Format::F16Fragments {
                    floats::candidates(capabilities, launch).into_iter().map(Self::Floats).collect()
                } else if fragments.is_empty() {
                    let direct = direct::candidates(capabilities, launch);
                    let turned = turned::candidates(capabilities, launch);
                    let mut direct: Vec<Self> = direct.into_iter().map(Self::Direct).collect();
                    let turned = turned.into_iter().map(Self::Turned);
                    if turned::is_first(launch) {
                        turned.chain(direct).collect()
                    } else {
                        direct.extend(turned);
                        direct
                    }
                } else {
                    fragments.into_iter().map(Self::Fragment).collect()
                }
            }
            Some(OperandKind::Split) => {
                floats::candidates(capabilities, launch).into_iter().map(Self::Floats).collect()
            }
            _ => tile_candidates(capabilities, launch),
        };
        list.into_iter().filter(|shape| shape.fits(capabilities, launch)).collect()
    }

    /// Returns whether a device can run a launch in this shape.
    pub fn fits(&self, capabilities: &Capabilities, launch: &MatmulLaunch) -> bool {
        let (rows, columns) = self.tile();
        rows > 1
            && columns > 0
            && launch.is_countable()
            && self.workgroups(launch) <= capabilities.groups[0]
            && match self {
                MatmulShape::Matrix(shape) => shape.fits(capabilities, launch),
                MatmulShape::Fragment(shape) => shape.fits(capabilities, launch),
                MatmulShape::Resident(shape) => shape.fits(capabilities, launch),
                MatmulShape::Direct(shape) => shape.fits(capabilities, launch),
                MatmulShape::Turned(shape) => shape.fits(capabilities, launch),
                MatmulShape::Floats(shape) => shape.fits(capabilities, launch),
                MatmulShape::Tile(shape) => shape.fits(capabilities, launch),
            }
    }

    /// Returns how the tiles of the kernels that count them are distributed over workgroups.
    pub(super) fn rounds(&self, launch: &MatmulLaunch) -> Rounds {
        match self {
            MatmulShape::Matrix(shape) => shape.rounds(launch),
            MatmulShape::Direct(shape) => shape.rounds(launch),
            MatmulShape::Turned(shape) => shape.rounds(launch),
            MatmulShape::Floats(shape) => shape.rounds(launch),
            MatmulShape::Fragment(_) | MatmulShape::Resident(_) | MatmulShape::Tile(_) => {
                Rounds::whole(launch.tiles(self.tile()))
            }
        }
    }

    /// Returns whether the dispatch may be part of a chain. Wide ones lose more than they gain:
    /// with all of them in chains a prompt of 512 on 27B ran at 5,107 instead of 5,432 tokens/s on
    /// an H200 (`bench -p 512 -r 5` and `-r 10`).
    pub(super) fn is_chained(&self, launch: &MatmulLaunch) -> bool {
        matches!(self, MatmulShape::Matrix(_) | MatmulShape::Fragment(_) | MatmulShape::Resident(_))
            && launch.product.width <= CHAINED_ROWS
    }

    /// Returns the workgroups of a launch.
    pub(super) fn workgroups(&self, launch: &MatmulLaunch) -> u32 {
        match self {
            MatmulShape::Fragment(shape) => shape.workgroups(launch),
            MatmulShape::Resident(shape) => shape.workgroups(launch),
            MatmulShape::Matrix(_)
            | MatmulShape::Direct(_)
            | MatmulShape::Turned(_)
            | MatmulShape::Floats(_)
            | MatmulShape::Tile(_) => {
                let Rounds { whole, shared, splits } = self.rounds(launch);
                whole + shared * splits
            }
        }
    }

    /// Returns the numbers that distinguish the shape from others, the kernel's first.
    pub(super) fn parameters(&self) -> Vec<u32> {
        match *self {
            MatmulShape::Matrix(shape) => {
                let MatrixShape {
                    tile,
                    step,
                    part,
                    slices,
                    stages,
                    depth,
                    workgroups,
                    instruction,
                } = shape;
                let Instruction { m, n, k } = instruction;
                let ((rows, columns), (part_rows, part_columns)) = (tile, part);
                let tiles = [0, rows, columns, step, part_rows, part_columns];
                [&tiles[..], &[slices, stages, depth, workgroups, m, n, k]].concat()
            }
            MatmulShape::Fragment(shape) => {
                let FragmentShape { subgroups, lefts, rights, groups, slices, workgroups } = shape;
                vec![5, subgroups, lefts, rights, groups, slices, workgroups]
            }
            MatmulShape::Resident(shape) => {
                let ResidentShape { subgroups, groups, parts, workgroups } = shape;
                vec![3, subgroups, groups, parts, workgroups]
            }
            MatmulShape::Direct(DirectShape { subgroups, lefts, rights, workgroups }) => {
                vec![4, subgroups, lefts, rights, workgroups]
            }
            MatmulShape::Turned(TurnedShape { subgroups, workgroups }) => {
                vec![7, subgroups.0, subgroups.1, workgroups]
            }
            MatmulShape::Floats(FloatsShape { subgroups, lefts, rights, workgroups }) => {
                vec![6, subgroups.0, subgroups.1, lefts, rights, workgroups]
            }
            MatmulShape::Tile(TileShape { tile, part, step, slices }) => {
                vec![1, tile.0, tile.1, part.0, part.1, step, slices]
            }
        }
    }

    /// Returns the specialisation constants, in the order of their numbers in the shader, of a
    /// dispatch that may be part of a chain or not.
    pub(super) fn constants(
        &self,
        capabilities: &Capabilities,
        launch: &MatmulLaunch,
        is_chained: bool,
    ) -> Vec<u32> {
        let gated = launch.product.output.number();
        match self {
            MatmulShape::Fragment(shape) => shape.constants(launch),
            MatmulShape::Resident(shape) => shape.constants(launch),
            MatmulShape::Direct(shape) => shape.constants(launch),
            MatmulShape::Turned(shape) => shape.constants(launch),
            MatmulShape::Floats(shape) => shape.constants(launch),
            MatmulShape::Matrix(shape) => vec![
                shape.local(capabilities.subgroup),
                shape.tile.0,
                shape.tile.1,
                shape.step,
                shape.part.0,
                shape.part.1,
                shape.slices,
                shape.instruction.m,
                shape.instruction.n,
                shape.instruction.k,
                shape.stages,
                shape.shared(),
                gated,
                u32::from(self.rounds(launch).shared > 0),
                shape.depth,
                u32::from(is_chained),
            ],
            MatmulShape::Tile(shape) => {
                // The quantised kernel counts its steps in blocks.
                let is_float = launch.product.matrix.format.is_float();
                let step = if is_float { shape.step } else { shape.step / SCALE_BLOCK as u32 };
                let (rows, columns) = shape.tile;
                let (first, second) = shape.part;
                let mut list = vec![shape.local(), rows, columns, first, second, step, gated];
                list.extend(is_float.then_some(shape.slices));
                list
            }
        }
    }
}

/// Returns the device's products of halves with sums in f32, the best first: as square as possible,
/// then small.
fn instructions(capabilities: &Capabilities) -> Vec<Instruction> {
    let mut list: Vec<Instruction> = capabilities
        .cooperative
        .iter()
        .filter(|shape| (shape.input, shape.output) == (Element::F16, Element::F32))
        .map(|shape| Instruction { m: shape.m, n: shape.n, k: shape.k })
        .filter(|instruction| {
            instruction.k.is_multiple_of(8) && 32_u32.is_multiple_of(instruction.k)
        })
        .collect();
    list.sort_by_key(|instruction| {
        let square = instruction.m == instruction.n && instruction.n == instruction.k;
        (!square, u32::abs_diff(instruction.m, 16), u32::abs_diff(instruction.n, 16))
    });
    list.dedup();
    list
}

/// Tile, columns of a step, a subgroup's part, slices, stages, depth.
type Layout = ((u32, u32), u32, (u32, u32), u32, u32, u32);

/// For software devices: small, because compiling them takes longer than running them.
const SOFTWARE: &[Layout] = &[((32, 16), 32, (16, 16), 1, 1, 1), ((16, 16), 32, (16, 16), 2, 2, 1)];

/// For GPUs with a memory of their own: up to 8, 16, 32 and 64 rows of activations, and more. Few
/// rows are bound by the bytes of the matrix; subgroups that share the columns read each activation
/// from shared memory once for 64 rows of weights. Many rows are bound by products and reads of
/// shared memory, so subgroups have large parts.
const DISCRETE: [(usize, &[Layout]); 5] = [
    (
        8,
        &[
            ((64, 8), 128, (64, 8), 4, 1, 1),
            ((64, 8), 64, (64, 8), 4, 2, 2),
            ((64, 8), 64, (64, 8), 2, 1, 1),
            ((64, 8), 64, (64, 8), 4, 1, 1),
            ((128, 8), 64, (64, 8), 2, 1, 1),
        ],
    ),
    (
        16,
        &[
            ((64, 16), 128, (64, 16), 4, 1, 1),
            ((64, 16), 64, (64, 16), 4, 2, 2),
            ((64, 16), 64, (64, 16), 2, 1, 1),
            ((64, 16), 64, (64, 16), 4, 1, 1),
            ((128, 16), 64, (64, 16), 2, 1, 1),
        ],
    ),
    (
        32,
        &[
            ((64, 32), 64, (64, 32), 2, 1, 1),
            ((128, 32), 64, (32, 32), 1, 1, 1),
            ((64, 32), 64, (64, 32), 4, 1, 1),
            ((64, 32), 64, (32, 32), 2, 2, 1),
        ],
    ),
    (
        64,
        &[
            ((64, 64), 64, (64, 64), 2, 1, 1),
            ((128, 64), 64, (64, 32), 1, 1, 1),
            ((128, 64), 64, (64, 64), 2, 1, 1),
            ((64, 64), 64, (64, 32), 2, 1, 1),
        ],
    ),
    (
        usize::MAX,
        &[
            ((128, 128), 64, (64, 64), 1, 1, 1),
            ((128, 128), 64, (64, 32), 1, 1, 1),
            ((128, 128), 64, (64, 64), 2, 1, 1),
            ((128, 128), 32, (64, 64), 1, 2, 1),
            ((128, 64), 64, (64, 32), 1, 1, 1),
        ],
    ),
];

/// For GPUs that share the processor's memory: few compute units, subgroups of 64, at most 16 KiB
/// of tiles so that several workgroups share a unit.
const INTEGRATED: [(usize, &[Layout]); 4] = [
    (
        16,
        &[
            ((64, 16), 64, (32, 16), 2, 1, 1),
            ((64, 16), 64, (16, 16), 1, 1, 1),
            ((32, 16), 64, (32, 16), 4, 1, 1),
            ((64, 16), 32, (32, 16), 1, 2, 1),
        ],
    ),
    (
        32,
        &[
            ((64, 32), 64, (32, 32), 2, 1, 1),
            ((64, 32), 64, (32, 16), 1, 1, 1),
            ((64, 32), 32, (32, 16), 1, 2, 1),
        ],
    ),
    (
        64,
        &[
            ((64, 64), 32, (32, 32), 1, 1, 1),
            ((64, 64), 32, (32, 32), 1, 2, 1),
            ((128, 64), 32, (64, 32), 1, 1, 1),
        ],
    ),
    (
        usize::MAX,
        &[
            ((128, 128), 32, (64, 64), 1, 1, 1),
            ((128, 64), 32, (64, 32), 1, 1, 1),
            ((128, 128), 32, (64, 32), 1, 1, 1),
            ((64, 64), 32, (32, 32), 1, 1, 1),
        ],
    ),
];

/// Most groups of columns that are too few to be shared out again: with many rows of activations,
/// one round of few workgroups is quicker (98 instead of 122 us for 5376 x 4096 and 512 rows on an
/// H200).
const SHORT_GROUPS: u32 = 32;

/// Returns numbers of workgroups that may fill a device, the likeliest first.
fn workgroups(kind: DeviceKind, tokens: u32) -> &'static [u32] {
    match kind {
        DeviceKind::Processor => &[0, 4],
        DeviceKind::Integrated => &[24, 48, 0],
        // Two for each of an H200's 132 multiprocessors, or four and more if each waits for memory.
        _ if tokens > 64 => &[264, 528, 132, 396],
        _ => &[528, 792, 1056],
    }
}

fn matrix_candidates(capabilities: &Capabilities, launch: &MatmulLaunch) -> Vec<MatmulShape> {
    let layouts = |table: &[(usize, &'static [Layout])]| {
        let found = table.iter().find(|(width, _)| launch.product.width <= *width);
        found.map_or(&[] as &[Layout], |(_, layouts)| layouts)
    };
    let layouts = match capabilities.kind {
        DeviceKind::Processor => SOFTWARE,
        DeviceKind::Integrated => layouts(&INTEGRATED),
        _ => layouts(&DISCRETE),
    };
    let instructions = instructions(capabilities);
    let mut list = Vec::new();
    for &(tile, step, part, slices, stages, depth) in layouts {
        let instruction = instructions.iter().find(|unit| part.1.is_multiple_of(unit.n));
        let Some(&instruction) = instruction else { continue };
        let base =
            MatrixShape { tile, step, part, slices, stages, depth, workgroups: 0, instruction };
        let mut seen = Vec::new();
        let mut counts = workgroups(capabilities.kind, tile.1).to_vec();
        if tile.1 > 64 && launch.product.groups() <= SHORT_GROUPS {
            counts.sort_unstable();
        }
        for workgroups in counts {
            let shape = MatrixShape { workgroups, ..base };
            let Rounds { whole, splits, .. } = shape.rounds(launch);
            if !seen.contains(&(whole, splits)) {
                seen.push((whole, splits));
                list.push(MatmulShape::Matrix(shape));
            }
        }
    }
    list
}

/// Outputs of a float matrix for which the usual tiles would be a few workgroups: those of a router
/// (217 us for 128 x 2816 in f32 and 32 rows on an H100).
const FEW_OUTPUTS: usize = 512;

fn tile_candidates(capabilities: &Capabilities, launch: &MatmulLaunch) -> Vec<MatmulShape> {
    let sliced =
        |tile, part, step, slices| MatmulShape::Tile(TileShape { tile, part, step, slices });
    let shape = |tile, part, step| sliced(tile, part, step, 1);
    let small = shape((32, 32), (4, 4), 32);
    let skinny = shape((64, 16), (4, 2), 32);
    let large = [shape((64, 64), (4, 4), 64), shape((64, 64), (4, 4), 32), small];
    let few = launch.product.matrix.format.is_float() && launch.product.outputs() <= FEW_OUTPUTS;
    match capabilities.kind {
        DeviceKind::Processor => vec![small],
        // Steps wait for memory: tiles are small and steps long, so that many wait at once.
        DeviceKind::Discrete | DeviceKind::Virtual if few => vec![
            sliced((8, 16), (2, 2), 128, 16),
            sliced((8, 16), (2, 1), 128, 8),
            sliced((16, 16), (2, 2), 128, 8),
            small,
        ],
        _ if launch.product.width <= 16 => vec![skinny, small],
        _ => large.to_vec(),
    }
}
