//! What a recording consists of before it has addresses: launches over values in scratch memory.
//!
//! Every value is written by one launch. A launch that changes rows in place reads the old value
//! and writes a new one with the same [`Home`]. References to values say in which form they are, so
//! a launch can only name a form that exists.

use std::borrow::Cow;
use std::collections::BTreeSet;

use trine_model::{Claim, Rows, Scratch, WeightId, Width};

use super::lent::LentWork;
use super::passes::Attended;
pub(super) use super::products::{Input, Output, ProductKernel, ProductWork, whole};
use super::values::touch;
pub(super) use super::values::{Form, Home, Ids, MadeValue, OperandValue, Touch, ValueId};
use crate::capabilities::Capabilities;
use crate::chain;
use crate::compiler::Compiler;
use crate::dispatch::Dispatch;
use crate::error::GpuError;
use crate::kernels::attention::{Attention, DecodeLaunch, MatrixLaunch, TileLaunch, WholeLaunch};
use crate::kernels::elements::ElementsLaunch;
use crate::kernels::embed::EmbedLaunch;
use crate::kernels::experts::clusters::ClustersLaunch;
use crate::kernels::experts::product::ExpertsLaunch;
use crate::kernels::experts::router::RouterLaunch;
use crate::kernels::experts::{ChoiceLaunch, GatherLaunch, SortLaunch};
use crate::kernels::handles::{Addresses, Look, Seen, Visitor};
use crate::kernels::heads::{Factors, HeadsLaunch, Stored};
use crate::kernels::mix::MixLaunch;
use crate::kernels::operand::{FRAGMENT_ROWS, OperandKind};
use crate::kernels::route::RouteLaunch;
use crate::kernels::rows::{RowLimits, RowWork, RowsLaunch};
use crate::kernels::sum::SumLaunch;

/// Alignment of a value in scratch memory, in bytes.
const ALIGNMENT: usize = 256;
/// Pieces of memory that a value may consist of: the codes and the scales of an operand.
const PIECES: usize = 2;

/// Returns the rows of memory that buffers and operands of `rows` rows take: kernels read whole
/// tiles of activations.
pub(super) fn allocated(rows: usize) -> usize {
    match rows {
        0..=2 => rows,
        3..=64 => rows.next_power_of_two().max(8),
        rows => rows.next_multiple_of(256),
    }
}

/// A value and the memory that it takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Value {
    /// Rows of the pass.
    pub(super) rows: usize,
    pub(super) columns: usize,
    /// Bytes of its pieces, for all rows that kernels may touch.
    pub(super) bytes: [usize; PIECES],
    pub(super) home: Home,
}

/// Makes [`Work`] of launches that are described by their kernels.
macro_rules! launches {
    ($($kind:ident($launch:ident),)*) => {
        /// One launch.
        #[derive(Debug, Clone, PartialEq)]
        pub(super) enum Work {
            $($kind($launch<Ids>),)*
            Product(ProductWork),
            Lent(LentWork),
        }

        impl Work {
            /// Passes each operand of a launch that its kernel describes to `see`.
            pub(super) fn visit(&self, see: &mut dyn FnMut(Seen<'_, Ids>)) {
                match self {
                    $(Work::$kind(launch) => _ = launch.visit(&mut Look(see)),)*
                    Work::Product(work) => _ = work.product.visit(&mut Look(see)),
                    Work::Lent(_) => {}
                }
            }

            /// Returns what is launched, if its kernel says it.
            pub(super) fn kernel_name(&self) -> Option<String> {
                match self {
                    $(Work::$kind(launch) => Some(Cow::from(launch.name()).into_owned()),)*
                    Work::Product(_) | Work::Lent(_) => None,
                }
            }

            /// Returns the dispatch of a launch that its kernel describes, over the addresses that
            /// `by` gives.
            pub(super) fn dispatch(
                &self,
                by: &mut impl Visitor<Ids, Addresses>,
                gpu: &dyn Compiler,
                label: &str,
                step: usize,
            ) -> Option<Result<Dispatch, GpuError>> {
                match self {
                    $(Work::$kind(launch) => {
                        Some(launch.visit(by).dispatch(gpu, label, step))
                    })*
                    Work::Product(_) | Work::Lent(_) => None,
                }
            }
        }
    };
}

launches! {
    Embed(EmbedLaunch),
    Rows(RowsLaunch),
    Elements(ElementsLaunch),
    Sum(SumLaunch),
    Mix(MixLaunch),
    Route(RouteLaunch),
    Heads(HeadsLaunch),
    AttendRows(DecodeLaunch),
    AttendMatrix(MatrixLaunch),
    AttendTiles(TileLaunch),
    AttendWhole(WholeLaunch),
    Choose(ChoiceLaunch),
    ChooseRouted(RouterLaunch),
    Sort(SortLaunch),
    Gather(GatherLaunch),
    Experts(ExpertsLaunch),
    Clusters(ClustersLaunch),
}

/// `norm(source)`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Normed {
    pub(super) source: ValueId,
    pub(super) weight: WeightId,
    pub(super) epsilon: f32,
    pub(super) made: MadeValue,
}

impl Work {
    /// Passes each value that the launch reads or writes to `see`, those that it reads first.
    pub(super) fn touches(&self, see: &mut dyn FnMut(Touch)) {
        match self {
            Work::Lent(work) => work.touches(see),
            _ => self.visit(&mut |seen| touch(seen).into_iter().for_each(&mut *see)),
        }
    }

    /// Returns the launch over whole rows that it is, if it limits no values.
    pub(super) fn unlimited(&self) -> Option<RowsLaunch<Ids>> {
        match self {
            Work::Rows(launch) => Some(*launch).filter(|it| it.within == RowLimits::NONE),
            _ => None,
        }
    }

    /// Returns the norm that it is, if it has factors and limits no values.
    pub(super) fn normed(&self) -> Option<Normed> {
        match self.unlimited()? {
            RowsLaunch {
                work: RowWork::Norm { weight: Some(weight) },
                source,
                epsilon,
                made,
                ..
            } => Some(Normed { source, weight, epsilon, made: made? }),
            _ => None,
        }
    }

    /// Returns the keys and values, if it only stores them.
    pub(super) fn store(&self) -> Option<Stored<Ids>> {
        match self {
            Work::Heads(HeadsLaunch { query: None, stored, .. }) => *stored,
            _ => None,
        }
    }

    /// Returns the normed heads and the factors, if it only norms heads.
    pub(super) fn head_norm(&self) -> Option<(ValueId, Factors<Ids>)> {
        match self {
            Work::Heads(HeadsLaunch { query: Some(query), stored: None, rope: None, .. }) => {
                Some((query.turned, query.query_norm?))
            }
            _ => None,
        }
    }

    /// Returns the query, and what is attended to, if it attends.
    pub(super) fn attends(&self) -> Option<(ValueId, Attention)> {
        match self {
            Work::AttendRows(launch) => Some((launch.query, launch.attention)),
            Work::AttendMatrix(launch) => Some((launch.query, launch.attention)),
            Work::AttendTiles(launch) => Some((launch.query, launch.attention)),
            Work::AttendWhole(launch) => Some((launch.query, launch.attention)),
            _ => None,
        }
    }

    /// Returns the rows and the operand, if it only converts them.
    pub(super) fn conversion(&self) -> Option<(ValueId, OperandValue)> {
        match self.unlimited()? {
            RowsLaunch { work: RowWork::Convert { .. }, source, made, .. } => {
                Some((source, made?.operand()?))
            }
            _ => None,
        }
    }

    /// Returns whether its kernel can hand values on as they come, in a pass of one row.
    fn hands_on(&self) -> bool {
        match self {
            Work::Product(work) => work.kernel == ProductKernel::OneRow,
            Work::AttendRows(launch) => launch.own().is_some(),
            _ => false,
        }
    }

    fn has(&self, wanted: impl Fn(Touch) -> bool) -> bool {
        let mut found = false;
        self.touches(&mut |touch| found |= wanted(touch));
        found
    }

    /// Returns whether it reads a value.
    pub(super) fn reads(&self, id: ValueId) -> bool {
        self.has(|touch| matches!(touch, Touch::Read(form) if form.id() == id))
    }

    /// Returns whether it writes a value.
    pub(super) fn writes(&self, id: ValueId) -> bool {
        self.has(|touch| matches!(touch, Touch::Write(form) if form.id() == id))
    }
}

/// One launch and where it comes from.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Node {
    /// Index of the Plan's step.
    pub(super) step: usize,
    pub(super) label: String,
    /// What a row stands for.
    pub(super) rows: Rows,
    pub(super) work: Work,
}

/// Where the values of a graph are.
#[derive(Debug, Clone)]
pub(super) struct Placement {
    /// By [`Graph::piece`].
    pub(super) scratch: Scratch,
    /// How many bytes, from the first on, are of values that launches may hand on as they come: a
    /// step writes each of them at most once.
    pub(super) fresh: usize,
}

/// Launches in order, and the values that they work on.
#[derive(Debug, Clone)]
pub(super) struct Graph {
    /// Rows of the pass.
    pub(super) width: Width,
    /// How attention goes through these rows.
    pub(super) attended: Attended,
    pub(super) nodes: Vec<Node>,
    pub(super) values: Vec<Value>,
    /// The Plan's outputs, f32 rows; `None` for one that has no row or is not the pass's goal.
    pub(super) outputs: Vec<Option<ValueId>>,
}

impl Graph {
    /// A graph without launches.
    pub(super) fn new(width: Width, attended: Attended) -> Self {
        Self { width, attended, nodes: Vec::new(), values: Vec::new(), outputs: Vec::new() }
    }

    fn add(&mut self, value: Value) -> ValueId {
        self.values.push(value);
        ValueId(self.values.len() - 1)
    }

    /// New f32 rows.
    pub(super) fn fresh_rows(&mut self, rows: usize, columns: usize, home: Home) -> ValueId {
        let bytes = [4 * allocated(rows) * columns, 0];
        self.add(Value { rows, columns, bytes, home })
    }

    /// A new operand of as many rows and columns as a value has.
    pub(super) fn fresh_operand(&mut self, like: ValueId, kind: OperandKind) -> OperandValue {
        let Value { rows, columns, .. } = *self.value(like);
        self.fresh_operand_of(rows, columns, kind)
    }

    /// A new operand with these rows and columns.
    pub(super) fn fresh_operand_of(
        &mut self,
        rows: usize,
        columns: usize,
        kind: OperandKind,
    ) -> OperandValue {
        let held = match kind {
            kind if kind.is_tiled() => allocated(rows).next_multiple_of(FRAGMENT_ROWS),
            _ => allocated(rows),
        };
        let bytes = [kind.code_bytes(columns), kind.scale_bytes(columns)].map(|row| held * row);
        OperandValue { kind, id: self.add(Value { rows, columns, bytes, home: Home::Own }) }
    }

    /// New memory for a launch itself.
    pub(super) fn fresh_bytes(&mut self, bytes: usize) -> ValueId {
        self.add(Value { rows: 1, columns: bytes, bytes: [bytes, 0], home: Home::Own })
    }

    pub(super) fn value(&self, id: ValueId) -> &Value {
        &self.values[id.0]
    }

    /// Returns the rows that a launch hands over to a guest, if it does.
    pub(super) fn handed_over(&self, node: &Node) -> Option<ValueId> {
        let Work::Elements(ElementsLaunch { result, .. }) = node.work else { return None };
        matches!(self.value(result).home, Home::Handed(_)).then_some(result)
    }

    /// Returns how many launches read a value. A fetch of an output of the Plan counts too.
    pub(super) fn readers(&self, id: ValueId) -> usize {
        let launches = self.nodes.iter().filter(|node| node.work.reads(id)).count();
        launches + self.outputs.iter().filter(|output| **output == Some(id)).count()
    }

    /// Returns whether launches from `index` on, or a fetch, use a value as it is.
    pub(super) fn is_read_from(&self, index: usize, id: ValueId) -> bool {
        self.nodes[index..].iter().any(|node| node.work.reads(id))
            || self.outputs.contains(&Some(id))
    }

    /// Returns whether a value is still in its place after these launches.
    pub(super) fn is_kept(&self, launches: std::ops::Range<usize>, id: ValueId) -> bool {
        let (home, _) = self.home(id);
        let replaces = |touch| match touch {
            Touch::Write(form) => self.home(form.id()).0 == home,
            Touch::Read(_) | Touch::Use(_) => false,
        };
        !self.nodes[launches].iter().any(|node| node.work.has(replaces))
    }

    /// Returns the launch before `index` that writes a value.
    pub(super) fn maker(&self, index: usize, id: ValueId) -> Option<usize> {
        self.nodes[..index].iter().rposition(|node| node.work.writes(id))
    }

    /// Returns the value whose home a value has, and that home, which is never [`Home::Of`].
    pub(super) fn home(&self, id: ValueId) -> (ValueId, Home) {
        match self.value(id).home {
            Home::Of(before) => self.home(before),
            home => (id, home),
        }
    }

    /// Returns the values that launches may hand on as they come: those between two launches of one
    /// row that can do so.
    fn handed(&self) -> BTreeSet<ValueId> {
        let [mut read, mut seen, mut written, mut replaced] = [const { BTreeSet::new() }; 4];
        for Node { work, .. } in &self.nodes {
            let hands_on = work.hands_on();
            work.touches(&mut |touch| match touch {
                Touch::Read(form) if hands_on => _ = read.insert(form.id()),
                Touch::Write(form) if self.home(form.id()).0 != form.id() => {
                    replaced.insert(self.home(form.id()).0);
                }
                Touch::Write(form) => {
                    if !seen.insert(form.id()) {
                        // Its second writer replaces what the first one wrote.
                        replaced.insert(form.id());
                    }
                    if hands_on {
                        written.insert(form.id());
                    }
                }
                _ => {}
            });
        }
        let is_kept = |id: &ValueId| {
            let is_output = self.outputs.contains(&Some(*id));
            self.value(*id).home == Home::Own && !replaced.contains(id) && !is_output
        };
        read.intersection(&written).copied().filter(is_kept).collect()
    }

    /// Places the values in scratch memory: those that do not live at the same time share it. Where
    /// the launches of a device may hand values on as they come, those have memory of their own,
    /// before all others. An invariant Program has no such launches: those for one row would not
    /// compute what those for more rows do.
    pub(super) fn place(&self, capabilities: &Capabilities) -> Placement {
        let is_of_one = self.width.tokens == 1 && self.attended == Attended::Sequences;
        let hands_on = is_of_one && chain::suits(capabilities.kind);
        let handed = if hands_on { self.handed() } else { BTreeSet::new() };
        let mut fresh = 0;
        let mut apart = Vec::new();
        for &id in &handed {
            for (piece, bytes) in self.value(id).bytes.into_iter().enumerate() {
                if bytes > 0 {
                    apart.push((Self::piece(id, piece), fresh));
                    fresh += bytes.next_multiple_of(ALIGNMENT);
                }
            }
        }
        let mut scratch = self.place_others(&handed);
        scratch.bytes += fresh;
        scratch.offsets.iter_mut().flatten().for_each(|offset| *offset += fresh);
        apart.into_iter().for_each(|(piece, offset)| scratch.offsets[piece] = Some(offset));
        Placement { scratch, fresh }
    }

    /// Places the values that are not among `apart`.
    fn place_others(&self, apart: &BTreeSet<ValueId>) -> Scratch {
        // In the order in which they are first touched, which decides between values of equal size.
        let mut order: Vec<ValueId> = Vec::new();
        let mut lifetimes: Vec<Option<(usize, usize)>> = vec![None; self.values.len()];
        for (at, node) in self.nodes.iter().enumerate() {
            node.work.touches(&mut |touch| {
                let (id, home) = self.home(touch.id());
                if home != Home::Own || apart.contains(&id) {
                    return;
                }
                match &mut lifetimes[id.0] {
                    Some((_, last)) => *last = at,
                    none => {
                        *none = Some((at, at));
                        order.push(id);
                    }
                }
            });
        }
        // Outputs are copied after the last launch.
        for &output in self.outputs.iter().flatten() {
            if let Some((_, last)) = &mut lifetimes[self.home(output).0.0] {
                *last = self.nodes.len();
            }
        }
        let mut claims = Vec::with_capacity(order.len());
        for id in order {
            let Some((first, last)) = lifetimes[id.0] else { continue };
            for (piece, bytes) in self.value(id).bytes.into_iter().enumerate() {
                if bytes > 0 {
                    let bytes = bytes.next_multiple_of(ALIGNMENT);
                    claims.push(Claim { buffer: Self::piece(id, piece), bytes, first, last });
                }
            }
        }
        Scratch::place_claims(claims, PIECES * self.values.len())
    }

    /// Number of a piece of a value in scratch memory.
    pub(super) fn piece(id: ValueId, piece: usize) -> usize {
        PIECES * id.0 + piece
    }
}
