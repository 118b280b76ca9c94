//! The host's part in passes beside a guest: it hands over the rows that a submission has written,
//! and writes the guest's results for a later one.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use trine_backend::{BULK_ROWS, BackendError, Batch, Hosted, Job, ProgramOptions};
use trine_model::away::{Away, aways};
use trine_model::{BufferId, Plan, Rows, Width};

use super::graph::{Graph, Home, ValueId, Work, allocated};
use super::lent::LentWork;
use super::passes::{Attended, PassKey};
use crate::error::GpuError;
use crate::raw::gpu::Gpu;
use crate::raw::meeting::{Host, Meeting};
use crate::raw::memory::{ALIGNMENT, Buffer, MemoryUse};

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

/// Returns where `rows` rows of buffers begin in memory that the host shares, one buffer after
/// another, and where they end, in bytes.
pub(super) fn places(plan: &Plan, ids: &[BufferId], rows: usize) -> (Vec<usize>, usize) {
    let mut end = 0;
    let place = |id: &BufferId| {
        let start = usize::next_multiple_of(end, ALIGNMENT as usize);
        end = start + 4 * allocated(rows) * plan.buffer(*id).columns;
        start
    };
    (ids.iter().map(place).collect(), end)
}

/// Returns the bytes of memory for a guest in steps of up to `width`: of what the host reads for
/// it, and of its results, which the host writes. `None` if no part of the Plan is for a guest.
pub(super) fn loan_bytes(plan: &Plan, width: Width) -> Option<[u64; 2]> {
    let each = aways(plan).into_iter().map(|away| {
        let op = away.op(plan);
        let rows = width.of(plan.rows(op));
        [op.reads(), op.writes()].map(|ids| places(plan, &ids, rows).1 as u64)
    });
    each.reduce(|most, other| [most[0].max(other[0]), most[1].max(other[1])])
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

/// What a guest computes in a pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Loan {
    away: Away,
    /// What its rows are.
    rows: Rows,
    /// First value of each input in the memory that the host reads, and its columns.
    handed: Vec<(usize, usize)>,
    /// First value of each result in the memory that the host writes, and its columns.
    results: Vec<(usize, usize)>,
}

/// Returns the loans of a pass of a Plan, in their order.
pub(super) fn loans(plan: &Plan, graph: &Graph) -> Vec<Loan> {
    let aways = aways(plan);
    let place = |id: ValueId| {
        let value = graph.value(id);
        let (Home::Lent(offset) | Home::Handed(offset)) = value.home else {
            unreachable!("the host reads what is handed over, and writes what is lent")
        };
        (offset / 4, value.columns)
    };
    let (mut loans, mut handed_so_far) = (Vec::new(), Vec::new());
    for node in &graph.nodes {
        handed_so_far.extend(graph.handed_over(node).map(place));
        if let Work::Lent(LentWork::Collect { results }) = &node.work {
            let away = aways.iter().find(|away| away.step == node.step);
            loans.push(Loan {
                away: *away.expect("what is collected is away"),
                rows: node.rows,
                handed: std::mem::take(&mut handed_so_far),
                results: results.iter().map(|&id| place(id)).collect(),
            });
        }
    }
    loans
}

/// Returns where submissions end for loans, and the meetings with the host. `own` has, for each
/// loan, the dispatches between the last that writes rows for the guest and those that read its
/// results; `cuts` are the ends that keep submissions short.
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

/// Memory between device, host and guest.
pub(super) struct Loans {
    /// Rows for the guest.
    input: Buffer,
    /// What it has computed.
    output: Buffer,
    /// The rows of the step in flight.
    pub(super) rows: StepRows,
}

impl Loans {
    /// Allocates it with the sizes of [`loan_bytes`].
    pub(super) fn new(gpu: &Arc<Gpu>, [input, output]: [u64; 2]) -> Result<Self, GpuError> {
        Ok(Self {
            input: gpu.allocate(input, MemoryUse::Readback, "rows for a partner")?,
            output: gpu.allocate(output, MemoryUse::Upload, "a partner's products")?,
            rows: StepRows::default(),
        })
    }

    /// Returns the bytes that it takes.
    pub(super) fn bytes(&self) -> u64 {
        self.input.bytes() + self.output.bytes()
    }

    /// Returns the addresses of the rows for the guest and of its results.
    pub(super) fn addresses(&self) -> [u64; 2] {
        [self.input.address(), self.output.address()]
    }
}

/// The host during a pass.
pub(super) struct GuestTable<'a> {
    pub(super) loans: &'a Loans,
    pub(super) of_pass: &'a [Loan],
    pub(super) guest: &'a Hosted,
    /// The time of each step of the Plan in seconds, if they are measured.
    pub(super) profile: Option<&'a mut [f64]>,
    /// Why the guest has not computed what was handed over.
    pub(super) failure: Option<BackendError>,
}

impl GuestTable<'_> {
    /// Calls `turn` with the job of a meeting and the job's first row in the step, and notes why it
    /// fails. Without rows there is no job.
    fn meet(
        &mut self,
        meeting: usize,
        turn: impl FnOnce(&Job<'_>, usize) -> Result<(), BackendError>,
    ) {
        let Loan { away, rows, handed, .. } = &self.of_pass[meeting];
        let StepRows { tokens, outputs, exact } = self.loans.rows;
        let (rows, exact) = match rows {
            Rows::Outputs => (0..outputs, outputs),
            Rows::Tokens | Rows::Soft if away.is_whole => (0..tokens, exact),
            Rows::Tokens | Rows::Soft => (exact..tokens, 0),
        };
        if rows.is_empty() {
            return;
        }
        let values = |(first, columns): &(usize, usize)| {
            self.loans.input.values(first + rows.start * columns, rows.len() * columns)
        };
        let inputs: Vec<&[f32]> = handed.iter().map(values).collect();
        let job = Job { number: away.job, inputs: &inputs, rows: rows.len(), exact };
        self.failure = turn(&job, rows.start).err();
    }
}

impl Host for GuestTable<'_> {
    fn begin(&mut self, meeting: usize) {
        let guest = self.guest;
        self.meet(meeting, |job, _| guest.begin(job));
    }

    fn end(&mut self, meeting: usize, is_idle: &dyn Fn() -> bool) -> bool {
        if self.failure.is_some() {
            return false;
        }
        let (guest, output) = (self.guest, &self.loans.output);
        let Loan { away, results, .. } = &self.of_pass[meeting];
        let start = Instant::now();
        self.meet(meeting, |job, first_row| {
            guest.finish(job, is_idle, &mut |index, rows| {
                let (first, columns) = results[index];
                assert_eq!(rows.len(), job.rows * columns, "rows of a guest's result");
                let offset = 4 * (first + first_row * columns);
                output.write(offset as u64, bytemuck::cast_slice(rows));
            })
        });
        if let Some(profile) = &mut self.profile {
            profile[away.step] += start.elapsed().as_secs_f64();
        }
        self.failure.is_none()
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
            let buffer = gpu.allocate(256, MemoryUse::Readback, "a test").unwrap();
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
