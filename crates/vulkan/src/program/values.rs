//! References to values of a graph: in which form they are, where, and what a launch does with
//! them.

use trine_model::{CacheId, Rope, WeightId};

use crate::kernels::handles::{self, Handles, Role, Seen};
use crate::kernels::operand::OperandKind;
use crate::weights::Joint;

/// Index of a value in the graph. A launch that holds a bare one takes f32 rows there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct ValueId(pub(super) usize);

/// An operand in scratch memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OperandValue {
    pub(super) kind: OperandKind,
    pub(super) id: ValueId,
}

/// A value in one form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// (rows, columns) f32.
    Rows(ValueId),
    /// An operand of a product.
    Operand(OperandValue),
}

impl Form {
    /// Returns the value, whatever its form.
    pub(super) fn id(self) -> ValueId {
        match self {
            Form::Rows(id) | Form::Operand(OperandValue { id, .. }) => id,
        }
    }
}

/// What launches hold while a Plan is lowered: the names of values, of weights and of caches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ids;

/// Memory that launches share beside their values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shared {
    /// So many bytes of the counters of products that several workgroups share.
    Counters(usize),
    /// The counters of attention whose positions are split.
    AttentionCounters,
    /// Results of splits before they are joined: a value that only the launch itself uses.
    Partials(ValueId),
}

/// Numbers that the host writes for a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Numbers {
    /// The frame: its header, and after it the rows.
    Frame,
    /// Those of the rows whose logits are wanted.
    Outputs,
}

impl Handles for Ids {
    type Rows = ValueId;
    type Operand = OperandValue;
    type Form = Form;
    type Vector = WeightId;
    type Matrix = WeightId;
    type Joint = Joint;
    type Cache = CacheId;
    /// Elements of a head, and how it is rotated.
    type Turns = (usize, Rope);
    type Frame = ();
    type Shared = Shared;
    type Numbers = Numbers;
    /// The weights know it.
    type Unit = ();
    /// The graph knows it.
    type Extent = ();
}

/// The result of a launch, in each form that another launch reads.
pub(super) type MadeValue = handles::Made<Ids>;

impl MadeValue {
    /// Returns the form, if it is the only one.
    pub(super) fn only(self) -> Option<Form> {
        match self {
            MadeValue::Rows(rows) => Some(Form::Rows(rows)),
            MadeValue::Operand(operand) => Some(Form::Operand(operand)),
            MadeValue::Both(..) => None,
        }
    }
}

/// Where a value is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Home {
    /// In scratch memory of its own.
    Own,
    /// In the memory of the value that it replaces.
    Of(ValueId),
    /// In the memory where the host writes the Plan's input of this index.
    Host(usize),
    /// In the memory where the host reads rows for another device, from this byte on.
    Handed(usize),
    /// In the memory where the host writes what another device computed, from this byte on.
    Lent(usize),
}

/// What a launch does with a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Touch {
    Read(Form),
    Write(Form),
    /// Memory that only the launch itself uses.
    Use(ValueId),
}

impl Touch {
    /// Returns the value, whatever its form.
    pub(super) fn id(self) -> ValueId {
        match self {
            Touch::Read(form) | Touch::Write(form) => form.id(),
            Touch::Use(id) => id,
        }
    }
}

/// The use of f32 rows.
pub(super) fn read(id: ValueId) -> Touch {
    Touch::Read(Form::Rows(id))
}

/// The making of f32 rows.
pub(super) fn write(id: ValueId) -> Touch {
    Touch::Write(Form::Rows(id))
}

/// Returns what a launch does with a value; `None` for a weight.
pub(super) fn touch(seen: Seen<'_, Ids>) -> Option<Touch> {
    let (role, form) = match seen {
        Seen::Rows(role, rows) => (role, Form::Rows(rows)),
        Seen::Operand(role, operand) => (role, Form::Operand(operand)),
        Seen::Form(form) => (Role::Read, form),
        Seen::Vector(_) | Seen::Matrix(_) | Seen::Joint(_) => return None,
        Seen::Shared(_, Shared::Partials(id)) => return Some(Touch::Use(id)),
        Seen::Cache(..) | Seen::Shared(..) => return None,
    };
    Some(match role {
        Role::Read => Touch::Read(form),
        Role::Write => Touch::Write(form),
    })
}
