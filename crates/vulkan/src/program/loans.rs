//! The host's part in passes beside a partner: it hands the partner the bulk rows that a submission
//! has written, and writes the products for a later one.

use std::ops::Range;
use std::sync::Arc;

use trine_backend::{BULK_ROWS, Batch, Lent, ProgramOptions};
use trine_model::aside::{self, Pair};
use trine_model::{BufferId, Op, Plan, Rows, Width};

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

/// Returns the buffers whose rows are handed over: the input, the experts of each row, and their
/// shares.
pub(super) fn handed(plan: &Plan, pair: Pair) -> [BufferId; 3] {
    let steps = [pair.gated, pair.sum].map(|index| &plan.steps[index].op);
    let [Op::GatedExperts { input, chosen, .. }, Op::SumExperts { shares, .. }] = steps else {
        unreachable!("these are the steps of a pair")
    };
    [*input, *chosen, *shares]
}

/// Returns where the rows of the three are in the memory that the host reads, in bytes, in a pass
/// of up to `rows` rows, and where they end.
pub(super) fn places(columns: [usize; 3], rows: usize) -> ([usize; 3], usize) {
    let mut end = 0;
    let places = columns.map(|columns| {
        let start = end;
        end += (4 * allocated(rows) * columns).next_multiple_of(ALIGNMENT as usize);
        start
    });
    (places, end)
}

/// The rows of the step in flight.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct StepRows {
    pub(super) tokens: usize,
    pub(super) outputs: usize,
    /// Tokens before the first bulk row.
    pub(super) exact: usize,
}

impl StepRows {
    /// Returns the rows of a checked batch.
    pub(super) fn of(batch: &Batch<'_>) -> Self {
        let tokens = batch.tokens.len();
        Self { tokens, outputs: batch.outputs.len(), exact: batch.bulk_from.min(tokens) }
    }
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

    /// Returns the sizes for the experts of a Plan that are with another device, in steps of up to
    /// `width`; `None` if there are none.
    pub(super) fn of_aside(plan: &Plan, width: Width) -> Option<Self> {
        let mut most = Self::default();
        let pairs = aside::aside(plan);
        for pair in &pairs {
            let columns = |id: BufferId| plan.buffer(id).columns;
            let rows = width.of(plan.rows(&plan.steps[pair.sum].op));
            let (_, end) = places(handed(plan, *pair).map(columns), rows);
            let sums = columns(plan.steps[pair.sum].op.writes()[0]);
            most.input = most.input.max(end);
            most.output = most.output.max(place_after(0, rows, sums).1);
        }
        (!pairs.is_empty()).then_some(most)
    }

    /// Returns the sizes one by one.
    pub(super) fn each(self) -> [u64; 3] {
        [self.input, self.output, self.staged].map(|bytes| bytes as u64)
    }
}

/// What another device computes in a pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Loan {
    /// Index of the Plan's step that collects it.
    pub(super) step: usize,
    /// Which rows of the step these are.
    pub(super) rows: Rows,
    /// The number of the experts, if it is theirs.
    pub(super) number: usize,
    /// First value of each of the rows in the memory that the host reads, and its columns.
    pub(super) handed: Vec<(usize, usize)>,
    /// First value of each result in the memory that the host writes, and its columns.
    pub(super) products: Vec<(usize, usize)>,
}

/// Returns the loans of a pass of a Plan, in their order.
pub(super) fn loans(plan: &Plan, graph: &Graph) -> Vec<Loan> {
    let pairs = aside::aside(plan);
    let number = |step| pairs.iter().find(|pair| pair.sum == step).map_or(0, |pair| pair.number);
    let place = |id: ValueId| {
        let value = graph.value(id);
        let (Home::Lent(offset) | Home::Handed(offset)) = value.home else {
            unreachable!("the host reads what is handed over, and writes what is lent")
        };
        (offset / 4, value.columns)
    };
    let (mut loans, mut so_far) = (Vec::new(), Vec::new());
    for node in &graph.nodes {
        match &node.work {
            Work::Lent(LentWork::Hand { handed, .. } | LentWork::Delegate { handed, .. }) => {
                so_far.push(place(*handed));
            }
            Work::Lent(LentWork::Collect { results }) => {
                let products = results.iter().map(|&id| place(id)).collect();
                let handed = std::mem::take(&mut so_far);
                let (step, rows) = (node.step, node.rows);
                loans.push(Loan { step, rows, number: number(step), handed, products });
            }
            _ => {}
        }
    }
    loans
}

/// Returns where submissions end for loans, and the meetings with the host. `own` has, for each
/// loan, the dispatches between the one that writes rows for the partner and those that read its
/// products; `cuts` are the ends that keep submissions short.
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

/// Memory between device, host and another device.
pub(super) struct Loans {
    /// Rows for the other device.
    pub(super) input: Buffer,
    /// What it has computed.
    pub(super) output: Buffer,
    /// A partner's products in memory that is fast to read.
    staged: Vec<f32>,
    /// The bulk rows of the step in flight.
    bulk: Range<usize>,
    /// All rows of the step in flight.
    pub(super) step_rows: StepRows,
}

impl Loans {
    pub(super) fn new(gpu: &Arc<Gpu>, bytes: LoanBytes) -> Result<Self, GpuError> {
        let [input, output, _] = bytes.each();
        Ok(Self {
            input: gpu.allocate(input, Place::Readback, "rows for a partner")?,
            output: gpu.allocate(output, Place::Upload, "a partner's products")?,
            staged: vec![0.0; bytes.staged / 4],
            bulk: 0..0,
            step_rows: StepRows::default(),
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

    /// Notes the rows of a checked batch.
    pub(super) fn expect(&mut self, batch: &Batch<'_>) {
        let rows = batch.tokens.len();
        self.bulk = batch.bulk_from.min(rows)..rows;
        self.step_rows = StepRows::of(batch);
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

    fn end(&mut self, meeting: usize, is_idle: &dyn Fn() -> bool) -> bool {
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
        if !self.lent.finish_beside(&mut parts, is_idle) {
            return false;
        }
        for ((first, columns), part) in products.iter().zip(&parts) {
            let offset = 4 * (first + bulk.start * columns);
            output.write(offset as u64, bytemuck::cast_slice(part));
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::kernels::elements::{ElementWork, ElementsLaunch};
    use crate::kernels::handles::Extent;
    use crate::raw::commands::{Ended, Recording};
    use crate::testing::{gpu, upload};

    #[test]
    fn submissions_end_where_the_host_takes_part() {
        let meeting = |after, before| Meeting { after, before };
        assert_eq!(meetings(&[], &[3, 9]), (vec![3, 9], Vec::new()));
        let (cuts, met) = meetings(&[2..5, 7..7, 8..9], &[]);
        assert_eq!(cuts, [2, 5, 7, 8, 9]);
        assert_eq!(met, [meeting(0, 2), meeting(2, 3), meeting(3, 5)]);
        // Others lie before, within and at the device's own part.
        let (cuts, met) = meetings(&[2..5, 8..8], &[1, 3, 5, 6]);
        assert_eq!(cuts, [1, 2, 3, 5, 6, 8]);
        assert_eq!(met, [meeting(1, 4), meeting(5, 6)]);
    }

    /// A host that looks, while it is waited for, whether the device has done its own part.
    struct Watcher<'a> {
        handed: &'a Buffer,
        own: &'a Buffer,
        back: &'a Buffer,
        events: Vec<String>,
        fails: bool,
    }

    impl Watcher<'_> {
        fn becomes(is_so: &dyn Fn() -> bool) -> bool {
            let start = Instant::now();
            while start.elapsed() < Duration::from_secs(20) {
                if is_so() {
                    return true;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            false
        }
    }

    impl Host for Watcher<'_> {
        fn begin(&mut self, meeting: usize) {
            let handed = self.handed.values::<f32>(0, 1)[0];
            self.events.push(format!("begin {meeting} with {handed}"));
        }

        fn end(&mut self, meeting: usize, is_idle: &dyn Fn() -> bool) -> bool {
            // The device's own part ends although nobody has waited for it.
            let is_done = Self::becomes(&|| {
                let own = self.own.values::<f32>(0, 1)[0];
                own.to_bits() == (4.0 * (meeting as f32 + 1.0)).to_bits()
            }) && Self::becomes(is_idle);
            self.events.push(format!("end {meeting} beside {is_done}"));
            self.back.write(0, bytemuck::cast_slice(&[100.0_f32; 64]));
            !self.fails
        }
    }

    /// The part of the device is on its way before the host waits for the partner: where the order
    /// is turned, `end` sees no result.
    #[test]
    fn the_device_works_while_the_host_waits_for_the_partner() {
        let gpu = gpu();
        let buffer = |value: f32| {
            let buffer = gpu.allocate(256, Place::Readback, "a test").unwrap();
            buffer.write(0, bytemuck::cast_slice(&[value; 64]));
            buffer
        };
        let [handed, own, back, result] = [1.0, 0.0, 0.0, 0.0].map(buffer);
        let (one, four) = (upload(&gpu, &[1.0_f32; 64]), upload(&gpu, &[4.0_f32; 64]));
        let rows = upload(&gpu, &[1_u32]);
        let add = |source: &Buffer, result: &Buffer| {
            let result = result.span();
            let work = ElementWork::Add { source: source.span(), target: result };
            let extent = Extent { columns: 64, rows: 1, row_count: rows.address() };
            let launch = ElementsLaunch { work, result, extent };
            launch.dispatch(&gpu, "a test", 0).unwrap()
        };
        // Two loans: rows are handed over, the device does its part, the products are added.
        let loan = || [add(&one, &handed), add(&four, &own), add(&back, &result)];
        let dispatches: Vec<_> = [loan(), loan()].concat();
        let record = |own: &[Range<usize>]| {
            let (cuts, meetings) = meetings(own, &[]);
            let recording = Recording::record(&gpu, &dispatches, &[], &cuts).unwrap();
            recording.with_meetings(meetings)
        };
        let mut recording = record(&[1..2, 4..5]);
        let (handed, own, back) = (&handed, &own, &back);
        let mut host = Watcher { handed, own, back, events: Vec::new(), fails: false };
        recording.begin(None, "a test").unwrap();
        let ended = recording.finish(None, &mut host, "a test").unwrap();
        assert_eq!(ended, Ended::Whole);
        let expected =
            ["begin 0 with 2", "end 0 beside true", "begin 1 with 3", "end 1 beside true"];
        assert_eq!(host.events, expected);
        assert_eq!(result.values::<f32>(0, 64), [200.0; 64]);
        // A host that fails ends the run there, and the device is done with what was submitted.
        own.write(0, bytemuck::cast_slice(&[0.0_f32; 64]));
        host = Watcher { handed, own, back, events: Vec::new(), fails: true };
        recording.begin(None, "a test").unwrap();
        let ended = recording.finish(None, &mut host, "a test").unwrap();
        assert_eq!(ended, Ended::Abandoned);
        assert_eq!(host.events, ["begin 0 with 4", "end 0 beside true"]);
        assert_eq!(result.values::<f32>(0, 64), [200.0; 64]);
        assert_eq!(own.values::<f32>(0, 64), [4.0; 64]);
    }
}
