//! Which kernel does what, by the device's capabilities and by measurement.

use trine_backend::ProgramOptions;
use trine_model::{KvType, Op, Plan};

use super::Attended;
use super::graph::AttendWork;
use super::lower::Choices;
use super::tuning::Shapes;
use crate::capabilities::{Capabilities, DeviceKind};
use crate::kernels::attention::{AttentionShape, DecodeChoice, DecodeLaunch, MatrixChoice};
use crate::kernels::matmul::{LARGE, MatmulShape};
use crate::kernels::matvec::WIDTH_MAX;
use crate::kernels::operand::{GROUP, OperandKind};
use crate::kernels::stream;
use crate::kernels::tunable::Tunable;
use crate::pack::Format;
use crate::weights::Joint;

/// Shared memory that a product with a norm needs beyond the row, in bytes.
const SHARED_RESERVE: usize = 6 << 10;
/// Values of a row that a workgroup of a product can hold in registers.
const NORM_COLUMNS_MAX: usize = 256 * 64;

/// The kernels chosen for a device.
pub(super) struct Selection {
    capabilities: Capabilities,
    /// Shapes of products.
    shapes: Shapes,
    /// Longest sequence.
    context: usize,
    /// How caches are stored.
    kv: KvType,
    /// Whether gate and up are large.
    large: bool,
}

impl Selection {
    pub(super) fn new(capabilities: &Capabilities, plan: &Plan, options: &ProgramOptions) -> Self {
        let elements = |op: &Op| match op {
            Op::GatedMatMul { gate, .. } => {
                2 * plan.weight(*gate).rows * plan.weight(*gate).columns
            }
            _ => 0,
        };
        Self {
            large: plan.steps.iter().any(|step| elements(&step.op) >= LARGE),
            capabilities: capabilities.clone(),
            shapes: Shapes::default(),
            context: options.context,
            kv: options.kv,
        }
    }

    /// Chooses products by what was measured. Which kernel does what, and what memory it takes, does not depend on it.
    pub(super) fn tune(&mut self, shapes: Shapes) {
        self.shapes = shapes;
    }

    /// How a product is laid out.
    pub(super) fn shape<L: Tunable>(&self, launch: &L) -> L::Shape {
        self.shapes.of(launch, &self.capabilities)
    }

    /// How attention of some rows is split.
    pub(super) fn decode(&self, shape: &AttentionShape, rows: usize) -> DecodeChoice {
        let mut choice = DecodeChoice::suited(&self.capabilities, shape, rows);
        choice.splits = choice.splits.min(DecodeLaunch::useful_splits(shape, self.context));
        choice
    }

    /// How attention by tiles uses the matrix units; `None` where it does not. A cache in f32 is there for its exactness.
    pub(super) fn attend_matrix(&self, shape: &AttentionShape) -> Option<MatrixChoice> {
        if self.kv == KvType::F32 { None } else { MatrixChoice::suited(&self.capabilities, shape) }
    }

    /// Bytes of the memory of products that several workgroups share.
    pub(super) fn split_bytes(&self) -> u64 {
        match self.capabilities.kind {
            DeviceKind::Discrete | DeviceKind::Virtual => 64 << 20,
            DeviceKind::Integrated | DeviceKind::Other => 16 << 20,
            DeviceKind::Processor => 1 << 20,
        }
    }

    /// Whether a product goes to the kernel for one row.
    pub(super) fn streams(&self, format: Format, columns: usize, rows: usize, norm: bool) -> bool {
        rows == 1 && stream::takes(&self.capabilities, format, columns, norm)
    }

    /// Whether a product of `rows` rows goes to the matrix-vector kernels.
    pub(super) fn is_narrow(&self, format: Format, rows: usize) -> bool {
        rows <= self.narrow_rows(format)
    }

    /// Whether products of two rows are quicker on matrix units, as those of large matrices are where their layout is known.
    fn prefers_fragments(&self) -> bool {
        self.capabilities.fragments && self.large
    }

    /// Most rows for the matrix-vector kernels. With matrix units these take over as soon as the matrix-vector kernel is no
    /// longer bound by the bytes of the weights: two rows of Gemma 3 27B in Q4_0 take an H200 9.9 ms with it and 8.8 on matrix
    /// units whose layout is known, those of 4B 2.6 and 2.9.
    fn narrow_rows(&self, format: Format) -> usize {
        let units = MatmulShape::operand_for(&self.capabilities, format) == OperandKind::Halves;
        match self.capabilities.kind {
            DeviceKind::Discrete | DeviceKind::Virtual if units && self.prefers_fragments() => 1,
            DeviceKind::Discrete | DeviceKind::Virtual if units => 2,
            _ => WIDTH_MAX,
        }
    }
}

impl Choices for Selection {
    fn operand(&self, joint: &Joint, rows: usize) -> OperandKind {
        let format = joint.format;
        if format.is_float() || self.streams(format, joint.columns, rows, false) {
            OperandKind::Plain
        } else if self.is_narrow(format, rows) {
            OperandKind::Fixed16
        } else {
            MatmulShape::operand_for(&self.capabilities, format)
        }
    }

    fn can_norm(&self, joint: &Joint, rows: usize) -> bool {
        let Joint { format, columns, .. } = *joint;
        let bytes = if format.is_float() {
            OperandKind::Plain.code_bytes(columns.next_multiple_of(GROUP))
        } else {
            let kind = OperandKind::Fixed16;
            kind.code_bytes(columns) + kind.scale_bytes(columns)
        };
        if self.streams(format, columns, rows, true) {
            return true;
        }
        rows == 1
            && columns <= NORM_COLUMNS_MAX
            && bytes + SHARED_RESERVE <= self.capabilities.shared_bytes as usize
    }

    fn can_hand_on(&self, joint: &Joint, rows: usize) -> bool {
        let format = joint.format;
        !format.is_float()
            && self.is_narrow(format, rows)
            && !self.streams(format, joint.columns, rows, false)
    }

    fn interleaves(&self, gated: &Joint, next: &Joint, rows: usize) -> bool {
        // The gated product goes to the same kernel whether it norms or not.
        self.streams(gated.format, gated.columns, rows, true)
            && self.streams(next.format, next.columns, rows, false)
            && stream::prefers_interleaved(&self.capabilities, next.format, next.columns)
    }

    fn attends_in_halves(&self, shape: &AttentionShape, attended: Attended) -> bool {
        shape.gives_halves(self.kv)
            && (attended != Attended::Tiles || self.attend_matrix(shape).is_some())
    }

    fn allocated(&self, rows: usize) -> usize {
        // Tiles of activations are read whole.
        match rows {
            0..=2 => rows,
            3..=64 => rows.next_power_of_two().max(8),
            rows => rows.next_multiple_of(256),
        }
    }

    fn partial_bytes(&self, work: &AttendWork, rows: usize) -> usize {
        let choice = self.decode(&work.shape(), rows);
        if choice.splits > 1 {
            DecodeLaunch::scratch_bytes(&work.shape(), rows, &choice) as usize
        } else {
            0
        }
    }
}
