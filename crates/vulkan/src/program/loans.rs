//! The host's part in passes beside a partner: it hands the partner the bulk rows that a submission
//! has written, and writes the products for a later one.

use std::ops::Range;
use std::sync::Arc;

use trine_backend::{BULK_ROWS, Batch, Lent, ProgramOptions};
use trine_model::{Op, Plan, Width};

use super::graph::{Graph, Home, ValueId, Work, allocated};
use super::lent::LentWork;
use super::passes::{Attended, PassKey};
use crate::error::GpuError;
use crate::raw::gpu::Gpu;
use crate::raw::meeting::{Host, Meeting};
use crate::raw::memory::{ALIGNMENT, Buffer, Place};

/// How many rows that are no bulk rows a pass beside a partner has room for, where steps have some.
const EXACT_ROWS: [usize; 2] = [8, BULK_ROWS];

/// Returns the passes beside a partner: those for more rows than short prompts have, each for some
/// numbers of rows that are no bulk rows.
pub(super) fn lent_keys(keys: &[PassKey], options: &ProgramOptions) -> Vec<(PassKey, usize)> {
    let is_wide = |key: &&PassKey| key.width.tokens > BULK_ROWS && key.attended == Attended::Tiles;
    // Rows of one sequence are all of a kind.
    let some = if options.sequences > 1 { &EXACT_ROWS[..] } else { &[] };
    let exact = || std::iter::once(0).chain(some.iter().copied());
    keys.iter().filter(is_wide).flat_map(|key| exact().map(|rows| (*key, rows))).collect()
}

/// Returns the index of the smallest of some passes beside a partner that a step fits into; `None`
/// if there is none, or nothing of the step is for a partner.
pub(super) fn least_lent(
    keys: impl Iterator<Item = Option<(PassKey, usize)>>,
    batch: &Batch<'_>,
) -> Option<usize> {
    let Width { tokens, outputs } =
        Width { tokens: batch.tokens.len(), outputs: batch.outputs.len() };
    if tokens <= BULK_ROWS || batch.bulk_from >= tokens {
        return None;
    }
    let fits = |(key, exact): &(PassKey, usize)| {
        key.width.tokens >= tokens
            && key.width.outputs >= outputs
            && key.goal == batch.goal
            && *exact >= batch.bulk_from
    };
    let fitting = keys.enumerate().filter_map(|(index, key)| Some((index, key.filter(fits)?)));
    let size = |(_, (key, exact)): &(usize, (PassKey, usize))| {
        (key.width.tokens, *exact, key.width.outputs)
    };
    fitting.min_by_key(size).map(|(index, _)| index)
}

/// Returns the offset of a partner's product of `rows` rows after one that ends at `end`, and where
/// it ends, in bytes.
pub(super) fn place_after(end: usize, rows: usize, columns: usize) -> (usize, usize) {
    let start = end.next_multiple_of(ALIGNMENT as usize);
    (start, start + 4 * allocated(rows) * columns)
}

/// Sizes in bytes of the memory between device, host and partner.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct LoanBytes {
    /// Rows for the partner, which the host reads.
    input: usize,
    /// The partner's products, which the host writes.
    output: usize,
    /// The same as the partner gives them.
    staged: usize,
}

impl LoanBytes {
    /// Returns the sizes for the loans of a Plan in steps of up to `tokens` rows.
    pub(super) fn of(plan: &Plan, tokens: usize) -> Self {
        let mut most = Self::default();
        for step in &plan.steps {
            if let Op::Collect { input, products, .. } = &step.op {
                let columns = products.iter().map(|product| plan.buffer(product.output).columns);
                let end =
                    columns.clone().fold(0, |end, columns| place_after(end, tokens, columns).1);
                let row = 4 * plan.buffer(*input).columns;
                most.input = most.input.max(allocated(tokens) * row);
                most.output = most.output.max(end);
                most.staged = most.staged.max(4 * tokens * columns.sum::<usize>());
            }
        }
        most
    }

    /// Returns the sizes one by one.
    pub(super) fn each(self) -> [u64; 3] {
        [self.input, self.output, self.staged].map(|bytes| bytes as u64)
    }
}

/// A partner's products in a pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Loan {
    /// Index of the Plan's step that collects them.
    step: usize,
    /// First value of each in the memory that the host writes, and its columns.
    products: Vec<(usize, usize)>,
}

/// Returns the loans of a pass, in their order.
pub(super) fn loans(graph: &Graph) -> Vec<Loan> {
    let product = |id: &ValueId| {
        let value = graph.value(*id);
        let Home::Lent(offset) = value.home else { unreachable!("a partner's product is lent") };
        (offset / 4, value.columns)
    };
    let of_node = |node: &super::graph::Node| match &node.work {
        Work::Lent(LentWork::Collect { results }) => {
            Some(Loan { step: node.step, products: results.iter().map(product).collect() })
        }
        _ => None,
    };
    graph.nodes.iter().filter_map(of_node).collect()
}

/// Returns where submissions end for loans, and the meetings with the host. `own` has, for each
/// loan, the dispatches between the one that writes rows for the partner and those that read its
/// products; `cuts` are the ends of submissions that there are anyway.
pub(super) fn meetings(own: &[Range<usize>], cuts: &[usize]) -> (Vec<usize>, Vec<Meeting>) {
    let ends = own.iter().flat_map(|own| [own.start, own.end]);
    let mut all: Vec<usize> = cuts.iter().copied().chain(ends).collect();
    all.sort_unstable();
    all.dedup();
    let submission = |first: usize| all.partition_point(|&cut| cut <= first);
    let meeting = |own: &Range<usize>| Meeting {
        after: submission(own.start) - 1,
        before: submission(own.end),
    };
    let meetings = own.iter().map(meeting).collect();
    (all, meetings)
}

/// Memory between device, host and partner.
pub(super) struct Loans {
    /// Rows for the partner.
    input: Buffer,
    /// The partner's products.
    output: Buffer,
    /// The same in memory that is fast to read.
    staged: Vec<f32>,
    /// The bulk rows of the step in flight.
    bulk: Range<usize>,
}

impl Loans {
    pub(super) fn new(gpu: &Arc<Gpu>, bytes: LoanBytes) -> Result<Self, GpuError> {
        let [input, output, _] = bytes.each();
        Ok(Self {
            input: gpu.allocate(input, Place::Readback, "rows for a partner")?,
            output: gpu.allocate(output, Place::Upload, "a partner's products")?,
            staged: vec![0.0; bytes.staged / 4],
            bulk: 0..0,
        })
    }

    /// Returns the bytes that it takes.
    pub(super) fn bytes(&self) -> u64 {
        self.input.bytes() + self.output.bytes() + 4 * self.staged.len() as u64
    }

    /// Returns the addresses of the rows for the partner and of its products.
    pub(super) fn addresses(&self) -> [u64; 2] {
        [self.input.address(), self.output.address()]
    }

    /// Notes the bulk rows of a checked batch.
    pub(super) fn expect(&mut self, batch: &Batch<'_>) {
        let rows = batch.tokens.len();
        self.bulk = batch.bulk_from.min(rows)..rows;
    }
}

/// The host during a pass.
pub(super) struct Table<'a> {
    pub(super) loans: &'a mut Loans,
    pub(super) of_pass: &'a [Loan],
    /// The Plan that is lent.
    pub(super) plan: &'a Plan,
    pub(super) lent: &'a Lent,
    /// Whether the partner has begun what was delegated last.
    pub(super) has_begun: bool,
}

impl Host for Table<'_> {
    fn begin(&mut self, meeting: usize) {
        let Op::Collect { input, products, .. } = &self.plan.steps[self.of_pass[meeting].step].op
        else {
            unreachable!("loans are collected")
        };
        let columns = self.plan.buffer(*input).columns;
        let Loans { input, bulk, .. } = &*self.loans;
        let rows = input.values(bulk.start * columns, bulk.len() * columns);
        let weights: Vec<_> = products.iter().map(|product| product.weight).collect();
        self.has_begun = self.lent.begin(rows, &weights);
    }

    fn end(&mut self, meeting: usize) -> bool {
        if !std::mem::take(&mut self.has_begun) {
            return false;
        }
        let Loans { output, staged, bulk, .. } = &mut *self.loans;
        let products = &self.of_pass[meeting].products;
        let mut rest = &mut staged[..];
        let mut parts: Vec<&mut [f32]> = Vec::with_capacity(products.len());
        for (_, columns) in products {
            let (part, others) = rest.split_at_mut(bulk.len() * columns);
            parts.push(part);
            rest = others;
        }
        if !self.lent.finish(&mut parts) {
            return false;
        }
        for ((first, columns), part) in products.iter().zip(&parts) {
            let offset = 4 * (first + bulk.start * columns);
            output.write(offset as u64, bytemuck::cast_slice(part));
        }
        true
    }
}
