//! What a recording consists of before it has addresses: launches over named values in scratch memory.

use trine_model::{CacheId, Claim, Heads, Rope, Rows, Scratch, WeightId};

use crate::kernels::attention::AttentionShape;
use crate::kernels::operand::OperandKind;

/// Alignment of a value in scratch memory, in bytes.
const ALIGNMENT: usize = 256;

/// A value in scratch memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct ValueId(pub(super) usize);

/// An operand in scratch memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OperandValue {
    pub(super) kind: OperandKind,
    pub(super) codes: ValueId,
    pub(super) scales: ValueId,
}

/// What a product is of.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Input {
    /// (rows, columns) f32.
    Plain(ValueId),
    /// An operand.
    Operand(OperandValue),
    /// The norm of a row, worked out by the product's own workgroups.
    Norm { source: ValueId, weight: WeightId, epsilon: f32 },
    /// The same of the residual stream after a norm was added to it; the sum goes to another value, because every workgroup
    /// reads the old one.
    NormAddNorm {
        source: ValueId,
        weight: WeightId,
        target: ValueId,
        updated: ValueId,
        next_weight: WeightId,
        epsilon: f32,
    },
}

/// What becomes of a product.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Output {
    /// (rows, rows of a part) f32 for each part of the matrix.
    Parts(Vec<ValueId>),
    /// gelu(first part) * second part.
    Gated { plain: Option<ValueId>, operand: Option<OperandValue> },
}

/// Work on the heads between the projections and attention.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct HeadsWork {
    /// (tokens, query heads x dimension), in place.
    pub(super) query: Option<ValueId>,
    pub(super) key: Option<ValueId>,
    pub(super) value: Option<ValueId>,
    pub(super) query_norm: Option<WeightId>,
    pub(super) key_norm: Option<WeightId>,
    pub(super) heads: Heads,
    pub(super) epsilon: f32,
    pub(super) rope: Option<Rope>,
    /// Where keys and values go.
    pub(super) cache: Option<CacheId>,
}

/// Attention of the step's rows.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct AttendWork {
    pub(super) query: ValueId,
    pub(super) cache: CacheId,
    pub(super) heads: Heads,
    pub(super) scale: f32,
    pub(super) window: Option<usize>,
    /// The work on the heads, where it is done in the same launch.
    pub(super) fused: Option<HeadsWork>,
    pub(super) plain: Option<ValueId>,
    pub(super) operand: Option<OperandValue>,
    /// Results of parts of the cache before they are joined; `None` where the kernel needs none.
    pub(super) partials: Option<ValueId>,
}

impl AttendWork {
    pub(super) fn shape(&self) -> AttentionShape {
        AttentionShape { heads: self.heads, scale: self.scale, window: self.window }
    }
}

/// What is done to rows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum RowsKind {
    Convert,
    Norm { weight: WeightId },
    NormAdd { weight: WeightId, target: ValueId },
    NormAddNorm { weight: WeightId, target: ValueId, next_weight: WeightId },
}

/// What is done to elements.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum ElementsKind {
    Geglu { gate: ValueId, up: ValueId },
    Add { source: ValueId },
    Softcap { cap: f32 },
    Select { source: ValueId },
}

/// One launch.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Work {
    Embed {
        table: WeightId,
        scale: f32,
        output: ValueId,
    },
    Rows {
        kind: RowsKind,
        source: ValueId,
        columns: usize,
        epsilon: f32,
        plain: Option<ValueId>,
        operand: Option<OperandValue>,
    },
    Elements {
        kind: ElementsKind,
        result: ValueId,
        columns: usize,
    },
    Heads(HeadsWork),
    Attend(AttendWork),
    Product {
        weights: Vec<WeightId>,
        input: Input,
        output: Output,
    },
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

impl Node {
    /// Values that it reads or writes.
    fn touches(&self) -> Vec<ValueId> {
        let mut all = Vec::new();
        let operand = |all: &mut Vec<ValueId>, operand: &Option<OperandValue>| {
            all.extend(operand.iter().flat_map(|operand| [operand.codes, operand.scales]));
        };
        match &self.work {
            Work::Embed { output, .. } => all.push(*output),
            Work::Rows { kind, source, plain, operand: made, .. } => {
                all.push(*source);
                all.extend(plain);
                operand(&mut all, made);
                match kind {
                    RowsKind::NormAdd { target, .. } | RowsKind::NormAddNorm { target, .. } => {
                        all.push(*target);
                    }
                    RowsKind::Convert | RowsKind::Norm { .. } => {}
                }
            }
            Work::Elements { kind, result, .. } => {
                all.push(*result);
                match kind {
                    ElementsKind::Geglu { gate, up } => all.extend([gate, up]),
                    ElementsKind::Add { source } | ElementsKind::Select { source } => {
                        all.push(*source);
                    }
                    ElementsKind::Softcap { .. } => {}
                }
            }
            Work::Heads(work) => all.extend(work.touches()),
            Work::Attend(work) => {
                all.push(work.query);
                all.extend(work.plain.iter().chain(&work.partials));
                operand(&mut all, &work.operand);
                all.extend(work.fused.iter().flat_map(HeadsWork::touches));
            }
            Work::Product { input, output, .. } => {
                match input {
                    Input::Plain(value) => all.push(*value),
                    Input::Operand(made) => operand(&mut all, &Some(*made)),
                    Input::Norm { source, .. } => all.push(*source),
                    Input::NormAddNorm { source, target, updated, .. } => {
                        all.extend([source, target, updated]);
                    }
                }
                match output {
                    Output::Parts(values) => all.extend(values),
                    Output::Gated { plain, operand: made } => {
                        all.extend(plain);
                        operand(&mut all, made);
                    }
                }
            }
        }
        all
    }
}

impl HeadsWork {
    fn touches(&self) -> impl Iterator<Item = ValueId> + '_ {
        [self.query, self.key, self.value].into_iter().flatten()
    }
}

/// Launches in order, and the values that they work on.
#[derive(Debug, Default)]
pub(super) struct Graph {
    pub(super) nodes: Vec<Node>,
    /// Bytes of each value.
    pub(super) values: Vec<usize>,
    /// The Plan's inputs, f32 rows: they have memory of their own, which the host writes.
    pub(super) inputs: Vec<ValueId>,
    /// The Plan's outputs, f32 rows; `None` for one that has no row.
    pub(super) outputs: Vec<Option<ValueId>>,
}

impl Graph {
    /// Places the values in scratch memory: those that do not live at the same time share it.
    pub(super) fn place(&self) -> Scratch {
        let mut lifetimes: Vec<Option<(usize, usize)>> = vec![None; self.values.len()];
        for (at, node) in self.nodes.iter().enumerate() {
            for value in node.touches() {
                let (first, _) = lifetimes[value.0].unwrap_or((at, at));
                lifetimes[value.0] = Some((first, at));
            }
        }
        // Outputs are copied after the last launch.
        for ValueId(output) in self.outputs.iter().flatten() {
            if let Some((_, last)) = &mut lifetimes[*output] {
                *last = self.nodes.len();
            }
        }
        for ValueId(input) in &self.inputs {
            lifetimes[*input] = None;
        }
        let claim = |(buffer, lifetime): (usize, &Option<(usize, usize)>)| {
            let (first, last) = (*lifetime)?;
            let bytes = self.values[buffer].next_multiple_of(ALIGNMENT);
            Some(Claim { buffer, bytes, first, last })
        };
        let claims = lifetimes.iter().enumerate().filter_map(claim).collect();
        Scratch::place_claims(claims, self.values.len())
    }
}
