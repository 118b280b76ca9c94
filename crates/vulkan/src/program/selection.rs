//! Which kernel does which work, by the device's capabilities and by measurements.

use std::collections::BTreeSet;

use trine_backend::ProgramOptions;
use trine_model::{KvType, Op, Plan, Product, WeightId};

use super::graph::{ProductKernel, ProductWork};
use super::tuning::Shapes;
use crate::capabilities::{Capabilities, DeviceKind};
use crate::kernels::attention::{
    AttendDecodeShape, AttendTileShape, AttendUnits, Attention, DecodeLaunch, WholeLaunch,
};
use crate::kernels::experts::Grouping;
use crate::kernels::matmul::MatmulShape;
use crate::kernels::matmul::grouped::GROUP_PLACES;
use crate::kernels::matvec::WIDTH_MAX;
use crate::kernels::one_row;
use crate::kernels::operand::{GROUP, OperandKind};
use crate::kernels::product::ProductLaunch;
use crate::pack::Format;
use crate::weights::{Joint, activated, norm_before};

/// Shared memory that a product with a norm needs beyond the row, in bytes.
const SHARED_RESERVE: usize = 6 << 10;
/// Values of a row that a workgroup of a product can hold in registers.
const NORM_COLUMNS_MAX: usize = 256 * 64;

/// The kernels chosen for a device.
#[derive(Clone)]
pub(super) struct Selection {
    capabilities: Capabilities,
    /// Shapes of products.
    shapes: Shapes,
    /// Longest sequence.
    context: usize,
    /// Most sequences of a step.
    sequences: usize,
    /// How caches are stored.
    kv: KvType,
    /// Whether the Plan is for pictures, whose weights of 16 bits matrix units multiply.
    is_picture: bool,
    /// Gates of gated products and matrices of activated ones after a norm, which bounds how large
    /// their results can be.
    bounded: BTreeSet<WeightId>,
}

impl Selection {
    pub(super) fn new(capabilities: &Capabilities, plan: &Plan, options: &ProgramOptions) -> Self {
        let is_picture = plan.is_of_picture();
        let bounded = |op: &Op| match op {
            &Op::GatedMatMul { gate, .. } => norm_before(plan, gate).map(|_| gate),
            // Only products of pictures are activated.
            Op::MatMul { products, .. } if is_picture => match products[..] {
                [Product { weight, .. }] => activated(plan, weight).map(|_| weight),
                _ => None,
            },
            _ => None,
        };
        Self {
            bounded: plan.steps.iter().filter_map(|step| bounded(&step.op)).collect(),
            capabilities: capabilities.clone(),
            is_picture,
            shapes: Shapes::default(),
            context: options.context,
            sequences: options.sequences,
            kv: options.kv,
        }
    }

    pub(super) fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// Returns the same with these shapes of products. Which kernel does what, and how much memory
    /// it takes, does not depend on them.
    pub(super) fn tuned(&self, shapes: Shapes) -> Self {
        Self { shapes, ..self.clone() }
    }

    /// Returns how a product is laid out.
    pub(super) fn shape<L: ProductLaunch>(&self, launch: &L) -> L::Shape {
        self.shapes.of(launch, &self.capabilities)
    }

    /// Returns how attention of some rows is split.
    pub(super) fn decode(&self, attention: &Attention, rows: usize) -> AttendDecodeShape {
        let mut shape = AttendDecodeShape::suited(&self.capabilities, attention, self.kv, rows);
        shape.splits = shape.splits.min(DecodeLaunch::useful_splits(attention, self.context));
        shape
    }

    /// Returns the most tiles of this many rows: the last one of each sequence may not be full.
    pub(super) fn tiles(&self, attention: &Attention, rows: usize) -> usize {
        rows.min(rows.div_ceil(attention.tile_rows) + self.sequences)
    }

    /// Returns how attention by tiles is laid out where it does not use the matrix units.
    pub(super) fn attend_tiles(&self, attention: &Attention) -> AttendTileShape {
        AttendTileShape::suited(&self.capabilities, attention)
    }

    /// Returns how attention of this many rows by tiles uses the matrix units, or `None` if it does
    /// not. A cache in f32 is chosen for its exactness.
    pub(super) fn attend_matrix(&self, attention: &Attention, rows: usize) -> Option<AttendUnits> {
        if self.kv == KvType::F32 {
            None
        } else {
            let tiles = self.tiles(attention, rows);
            AttendUnits::suited(&self.capabilities, attention, self.kv, (rows, tiles))
        }
    }

    /// Bytes of the memory of products that several workgroups share.
    pub(super) fn split_bytes(&self) -> u64 {
        match self.capabilities.kind {
            DeviceKind::Discrete | DeviceKind::Virtual => 64 << 20,
            DeviceKind::Integrated | DeviceKind::Other => 16 << 20,
            DeviceKind::Processor => 1 << 20,
        }
    }

    /// The kernel of a product of `rows` rows that norms its input or does not.
    pub(super) fn product(&self, joint: &Joint, rows: usize, norms: bool) -> ProductKernel {
        if !self.is_narrow(joint.format, rows) {
            ProductKernel::Matmul
        } else if self.is_one_row(joint, rows, norms) {
            ProductKernel::OneRow
        } else {
            ProductKernel::Matvec
        }
    }

    /// Returns whether a product goes to the kernel for one row.
    fn is_one_row(&self, joint: &Joint, rows: usize, norms: bool) -> bool {
        rows == 1 && one_row::takes(&self.capabilities, joint.format, joint.columns, norms)
    }

    /// Returns whether a product of `rows` rows goes to the matrix-vector kernels.
    fn is_narrow(&self, format: Format, rows: usize) -> bool {
        format != Format::F16Fragments && rows <= self.narrow_rows(format)
    }

    /// Returns the most rows for the matrix-vector kernels. Matrix units take over as soon as the
    /// matrix-vector kernel is no longer bound by the bytes of the weights: from two rows on if
    /// their layout is known, so that activations stay in registers
    /// (`docs/benchmarks/gpu-kernels.md`).
    fn narrow_rows(&self, format: Format) -> usize {
        let units = MatmulShape::operand_for(&self.capabilities, format, 1).is_halves();
        match self.capabilities.kind {
            DeviceKind::Discrete | DeviceKind::Virtual if units && self.capabilities.fragments => 1,
            DeviceKind::Discrete | DeviceKind::Virtual if units => 2,
            _ => WIDTH_MAX,
        }
    }

    /// Returns the operand of a product of `rows` rows.
    pub(super) fn operand(&self, joint: &Joint, rows: usize) -> OperandKind {
        let format = joint.format;
        if self.is_picture && joint.is_short() && !self.is_narrow(format, rows) {
            MatmulShape::short_operand(&self.capabilities)
        } else if self.is_one_row(joint, rows, false) {
            OperandKind::Plain
        } else if self.is_narrow(format, rows) && !format.is_float() {
            OperandKind::Fixed16
        } else {
            MatmulShape::operand_for(&self.capabilities, format, rows)
        }
    }

    /// Returns the operand of matrix units for a format, as products of many rows take it; another
    /// one if they do not multiply it.
    pub(super) fn units_operand(&self, format: Format) -> OperandKind {
        MatmulShape::operand_for(&self.capabilities, format, usize::MAX)
    }

    /// Returns how the entries of up to `rows` rows are grouped for products with experts.
    pub(super) fn grouping(
        &self,
        format: Format,
        rows: usize,
        used: usize,
        experts: usize,
    ) -> Grouping {
        let kind = self.capabilities.kind;
        let most = match kind {
            // Only small shapes, which are quick to compile.
            DeviceKind::Processor => GROUP_PLACES[0],
            _ => GROUP_PLACES[GROUP_PLACES.len() - 1],
        };
        let on_units = Grouping::on_units(kind, rows, used, experts, most);
        on_units
            .filter(|_| self.units_operand(format).is_halves())
            .unwrap_or_else(|| Grouping::suited(kind, rows, used, experts))
    }

    /// Returns whether a product can norm its input itself.
    pub(super) fn can_norm(&self, joint: &Joint, rows: usize) -> bool {
        let Joint { format, columns, .. } = *joint;
        let bytes = if format.is_float() {
            OperandKind::Plain.code_bytes(columns.next_multiple_of(GROUP))
        } else {
            let kind = OperandKind::Fixed16;
            kind.code_bytes(columns) + kind.scale_bytes(columns)
        };
        if self.is_one_row(joint, rows, true) {
            return true;
        }
        rows == 1
            && self.is_narrow(format, rows)
            && columns <= NORM_COLUMNS_MAX
            && bytes + SHARED_RESERVE <= self.capabilities.shared_bytes as usize
    }

    /// Returns whether a gated product can give its result in fixed point.
    pub(super) fn gates_in_fixed(&self, joint: &Joint, rows: usize) -> bool {
        !joint.format.is_float() && self.product(joint, rows, false) == ProductKernel::Matvec
    }

    /// Returns whether a gated product with results of `columns` columns can write them in halves:
    /// on matrix units, and if it is known how large they can be.
    pub(super) fn gates_in_halves(&self, joint: &Joint, columns: usize, rows: usize) -> bool {
        self.operand(joint, rows).is_halves()
            && joint.takes_halves(&self.capabilities, self.is_picture)
            && columns.is_multiple_of(GROUP)
            && self.bounded.contains(&joint.weights[0])
    }

    /// Returns whether the kernel of a product adds biases to its results.
    pub(super) fn adds_biases(&self, work: &ProductWork) -> bool {
        work.product.matrix.format == Format::F16Fragments
    }

    /// Returns whether a product with biases can hand keys and values of a picture to its
    /// attention.
    pub(super) fn attends_whole(&self, work: &ProductWork, attention: &Attention) -> bool {
        self.is_picture
            && self.sequences == 1
            && self.adds_biases(work)
            && WholeLaunch::runs(&self.capabilities, attention, self.kv)
    }

    /// Returns whether a product with biases can write the activation of its result in halves: if
    /// its kernel does that, and if it is known how large results can be.
    pub(super) fn activates(&self, work: &ProductWork) -> bool {
        self.adds_biases(work) && self.bounded.contains(&work.product.matrix.weights[0])
    }

    /// Returns whether a gated product writes its result interleaved for the product `next`, its
    /// only reader.
    pub(super) fn interleaves(&self, gated: &Joint, next: &Joint, rows: usize) -> bool {
        // The gated product goes to the same kernel with and without a norm.
        self.is_one_row(gated, rows, true)
            && self.is_one_row(next, rows, false)
            && one_row::prefers_interleaved(&self.capabilities, next.format, next.columns)
    }

    /// Returns whether attention by a kernel that can may give its result in halves.
    pub(super) fn attends_in_halves(&self, attention: &Attention) -> bool {
        attention.gives_halves(self.kv)
    }
}
