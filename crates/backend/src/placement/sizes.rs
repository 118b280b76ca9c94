//! How many sequences, of what length, there is memory for.

use trine_model::{Plan, Rows, Width, Workload, aside};

use super::pieces::piece;
use super::places::{CONTEXT_TYPICAL, worthwhile};
use super::tables;
use super::terms::{
    Bounds, CONTEXT_LEAST, CONTEXT_USUAL, Cuts, Demand, FlightGain, Part, Placement, Site,
    common_bytes,
};
use crate::aside::Aside;
use crate::batch::{BLOCK, ProgramOptions};
use crate::device_memory::MemoryKind;
use crate::error::BackendError;
use crate::program::Memory;

/// Wider steps take at most this part of the memory that is left for keys and values.
const PIECE_SHARE: u64 = 16;

/// The sizes of a Program with one context.
#[derive(Debug, Clone)]
pub(super) struct Sizes {
    /// Sequences that run at the same time.
    sequences: usize,
    /// How many more may run where memory and speed make use of them.
    further: usize,
    /// Further slots.
    kept: usize,
    /// How many rows more a step may have where memory and speed make use of them.
    further_rows: usize,
    /// Most rows with logits in a step, if no more sequences run.
    outputs: usize,
    /// The sizes of the whole, with a full context of blocks for each sequence.
    full: ProgramOptions,
    kv_memory: Option<u64>,
    /// Whether nothing may be less than was asked for.
    is_exact: bool,
    /// Whether a shorter context may be tried.
    may_shrink: bool,
    /// Most positions of a sequence, if memory is left once the layers have their places.
    most: usize,
}

/// Returns the sizes with the context that was asked for, then those with shorter ones if they are
/// allowed.
pub(super) fn contexts(
    plan: &Plan,
    sites: &[Site<'_>],
    demand: &Demand,
) -> impl Iterator<Item = Sizes> + use<> {
    let most_rows = sites.iter().filter_map(|site| site.most_rows).min().unwrap_or(usize::MAX);
    let has_logits = plan.outputs.iter().any(|&id| plan.buffer(id).rows == Rows::Outputs);
    let mut demand = *demand;
    if let Demand::Within(bounds) = &mut demand
        && bounds.is_context_open
    {
        let most = sites.iter().filter_map(|site| site.most_context).min().unwrap_or(usize::MAX);
        // Positions are passed as u32.
        bounds.context = bounds.context.min(most).min(u32::MAX as usize / BLOCK * BLOCK);
    }
    let first = Sizes::new(&demand, most_rows, has_logits, None);
    std::iter::successors(Some(first), move |before| {
        let shorter = (before.full.context / 2).max(CONTEXT_LEAST);
        let next = || Sizes::new(&demand, most_rows, has_logits, Some(shorter));
        before.may_shrink.then(next)
    })
}

impl Sizes {
    fn new(demand: &Demand, most_rows: usize, has_logits: bool, context: Option<usize>) -> Self {
        let bounds = match demand {
            Demand::Exactly(full) => {
                return Self {
                    sequences: full.sequences,
                    further: 0,
                    kept: 0,
                    further_rows: 0,
                    outputs: full.width.outputs,
                    full: *full,
                    kv_memory: None,
                    is_exact: true,
                    may_shrink: false,
                    most: full.context,
                };
            }
            Demand::Within(bounds) => bounds,
        };
        let Bounds { sequences, further, kept, kv, rows, unit, outputs, kv_memory, .. } = *bounds;
        let widest = rows.saturating_add(bounds.further_rows);
        let is_context_open = bounds.is_context_open;
        let usual = if is_context_open { CONTEXT_USUAL } else { usize::MAX };
        let context = context.unwrap_or(bounds.context.min(usual));
        let most_tokens = most_rows.max(unit).min(context.saturating_mul(sequences));
        let tokens = rows.min(most_tokens);
        let outputs = if has_logits { outputs.max(1) } else { 0 };
        let full = ProgramOptions {
            width: Width { tokens, outputs: outputs_of(outputs, sequences, tokens) },
            kv,
            context,
            sequences: sequences + kept,
            blocks: context.div_ceil(BLOCK).saturating_mul(sequences),
        };
        let may_shrink = is_context_open && context > CONTEXT_LEAST;
        let most = bounds.context;
        Self {
            sequences,
            further,
            kept,
            further_rows: widest.min(most_tokens) - tokens,
            outputs,
            full,
            kv_memory,
            is_exact: false,
            may_shrink,
            most,
        }
    }

    /// Returns the blocks of one whole context.
    fn context_blocks(&self) -> usize {
        self.full.context.div_ceil(BLOCK)
    }

    /// Returns the same sizes for one sequence at a time.
    pub(super) fn of_one_sequence(&self) -> Self {
        if self.is_exact {
            return self.clone();
        }
        Self { sequences: 1, further: 0, kept: 0, ..self.clone() }
    }

    /// Returns the least sizes of a part in which all these sequences can run one after another.
    /// Only the last part computes logits.
    pub(super) fn least(&self, is_last: bool) -> ProgramOptions {
        if self.is_exact {
            return part_of(self.full, is_last);
        }
        part_of(self.with(self.sequences, self.sequences, self.context_blocks()), is_last)
    }

    fn with(&self, running: usize, slots: usize, blocks: usize) -> ProgramOptions {
        let Width { tokens, .. } = self.full.width;
        let width = Width { tokens, outputs: outputs_of(self.outputs, running, tokens) };
        ProgramOptions { width, sequences: slots, blocks, ..self.full }
    }

    /// Chooses slots and blocks for parts that are cut.
    ///
    /// # Errors
    /// [`BackendError::OutOfMemory`] or [`BackendError::KvBudget`] if the keys and values of one
    /// sequence do not fit.
    pub(super) fn settle(&self, sites: &[Site<'_>], cuts: Cuts) -> Result<Placement, BackendError> {
        let parts = Cut { sites, cuts };
        if self.is_exact {
            return Ok(parts.placement(self.full, self.sequences, self.full.blocks));
        }
        if let Some((running, slots)) = self.slots(&parts) {
            let long = self.widened(&parts, running, slots).lengthened(&parts, running, slots);
            let least = self.least_blocks(running, slots).max(long.context_blocks());
            let wanted = (self.context_blocks() * running).max(least);
            // Memory grows linearly with blocks, except for rounding.
            let blocks = largest(least, wanted, (wanted / 256).max(1), |blocks| {
                self.fit(&parts, long.with(running, slots, blocks))
            });
            let (running, slots, blocks) = long.with_further(&parts, running, slots, blocks);
            let full = long.context_blocks().saturating_mul(running);
            return Ok(parts.placement(long.with(running, slots, blocks), running, full));
        }
        let least = self.with(1, 1, self.context_blocks());
        // The host's memory limits what is taken, but refuses nothing that was asked for.
        let memory = parts.memory(least);
        if !self.may_shrink && self.budget_holds(&memory) && parts.fit_hard(least, &memory) {
            return Ok(parts.placement(least, 1, least.blocks));
        }
        Err(self.no_room(&parts, least.context, &memory))
    }

    /// Returns how many sequences run at the same time and how many slots there are: as many as
    /// fit with the blocks that make them worth having. Returns `None` if not even one sequence
    /// fits.
    fn slots(&self, parts: &Cut<'_>) -> Option<(usize, usize)> {
        let fit = |running: usize, slots: usize| {
            self.fit(parts, self.with(running, slots, self.least_blocks(running, slots)))
        };
        if self.kept > 0 && fit(self.sequences, self.sequences + self.kept) {
            return Some((self.sequences, self.sequences + self.kept));
        }
        if !fit(1, 1) {
            return None;
        }
        let running = largest(1, self.sequences, 1, |running| fit(running, running));
        Some((running, running))
    }

    /// Returns the same sizes with as many rows in a step as are worth having, for which a small
    /// part of what these slots leave is taken.
    fn widened(&self, parts: &Cut<'_>, running: usize, slots: usize) -> Self {
        let Width { tokens: own, .. } = self.full.width;
        let is_own = |site: &Site<'_>| site.memory.kind == MemoryKind::Own;
        let has_aside = parts.cuts.iter().any(|(_, plan)| aside::others(plan).is_some());
        // A prompt of few pieces leaves devices without one at its beginning and at its end.
        let is_shared = parts.cuts.len() > 1;
        if self.further_rows == 0 || has_aside || is_shared || !parts.sites().all(is_own) {
            return self.clone();
        }
        let with = |tokens: usize| {
            let width = Width { tokens, ..self.full.width };
            Self { full: ProgramOptions { width, ..self.full }, ..self.clone() }
        };
        let sizes =
            |tokens: usize| with(tokens).with(running, slots, self.least_blocks(running, slots));
        let before = parts.memory(sizes(own));
        let fits = |tokens: usize| {
            let options = sizes(tokens);
            let memory = parts.memory(options);
            let little = parts.with_sites(&memory).zip(&before).all(|((site, memory), before)| {
                let left = site.free.map(|free| free.saturating_sub(before.total()));
                left.is_some_and(|left| memory.total() - before.total() <= left / PIECE_SHARE)
            });
            little && parts.fit_hard(options, &memory)
        };
        let seconds = |tokens: usize| {
            let step = Workload::prefill(tokens, self.full.kv);
            parts.seconds(sizes(tokens), step)
        };
        with(piece(own, own + self.further_rows, |tokens| seconds(tokens).filter(|_| fits(tokens))))
    }

    /// Returns the same sizes with the longest context of which one sequence fits beside these
    /// slots. Memory that is not known to be free lengthens nothing.
    fn lengthened(&self, parts: &Cut<'_>, running: usize, slots: usize) -> Self {
        let (own, most) = (self.context_blocks(), self.most.div_ceil(BLOCK));
        if self.is_exact || self.most <= self.full.context || !self.is_known(parts) {
            return self.clone();
        }
        let with = |blocks: usize| {
            let context = (blocks * BLOCK).clamp(self.full.context, self.most);
            Self { full: ProgramOptions { context, ..self.full }, ..self.clone() }
        };
        let least = self.least_blocks(running, slots);
        with(largest(own, most, (most / 256).max(1), |blocks| {
            self.fit(parts, with(blocks).with(running, slots, least.max(blocks)))
        }))
    }

    /// Returns how many sequences run, slots and blocks with those that may run beyond the ones
    /// that were asked for: as many as raise the rate of all, in two thirds of the memory that is
    /// left. The rest is for other models and programs. A further place takes a slot, and blocks
    /// for a usual text.
    fn with_further(
        &self,
        parts: &Cut<'_>,
        running: usize,
        slots: usize,
        blocks: usize,
    ) -> (usize, usize, usize) {
        let none = (running, slots, blocks);
        if self.further == 0 || running < self.sequences || !self.is_known(parts) {
            return none;
        }
        let own = CONTEXT_TYPICAL.min(self.full.context).div_ceil(BLOCK);
        let with = |more: usize| (running + more, slots + more, blocks + more * own);
        // A step has a row for each.
        let most = (running + self.further).min(self.full.width.tokens);
        let seconds = |places: usize| {
            let (running, slots, blocks) = with(places - running);
            let context = CONTEXT_TYPICAL.min(self.full.context) - 1;
            let workload = Workload::decode(places, context, self.full.kv);
            parts.seconds(self.with(running, slots, blocks), workload)
        };
        let wanted = worthwhile(running, most, seconds) - running;
        let more = largest(0, wanted, 1, |more| {
            let (running, slots, blocks) = with((3 * more).div_ceil(2));
            self.fit(parts, self.with(running, slots, blocks))
        });
        with(more)
    }

    /// Returns whether it is known how much memory is left for keys and values.
    fn is_known(&self, parts: &Cut<'_>) -> bool {
        self.kv_memory.is_some() || parts.sites().all(|site| site.free.is_some())
    }

    /// Returns the fewest blocks that make these slots worth having: a quarter of the sequences'
    /// whole contexts, or half of them if there are slots for kept sequences; at least one context.
    fn least_blocks(&self, running: usize, slots: usize) -> usize {
        let full = self.context_blocks() * running;
        let share = if slots > running { full / 2 } else { full / 4 };
        share.max(self.context_blocks())
    }

    /// Returns whether parts of these sizes fit, and leave others their share of the host's memory.
    fn fit(&self, parts: &Cut<'_>, options: ProgramOptions) -> bool {
        let memory = parts.memory(options);
        parts.fit_hard(options, &memory)
            && parts.fit_soft(options, &memory)
            && self.budget_holds(&memory)
    }

    fn budget_holds(&self, memory: &[Memory]) -> bool {
        self.kv_memory.is_none_or(|budget| cache_bytes(memory) <= budget)
    }

    fn no_room(&self, parts: &Cut<'_>, context: usize, memory: &[Memory]) -> BackendError {
        if let Some(budget) = self.kv_memory.filter(|_| !self.budget_holds(memory)) {
            let needed = cache_bytes(memory);
            return BackendError::KvBudget { positions: context, needed, budget };
        }
        BackendError::OutOfMemory {
            what: format!("the model with a context of {context}"),
            needed: memory.iter().map(Memory::total).sum(),
            device: parts.names(),
        }
    }
}

/// Returns the rows with logits in a step: at least one for each sequence that runs, and no more
/// than the step has. `wanted` is 0 for a Plan without logits.
fn outputs_of(wanted: usize, running: usize, tokens: usize) -> usize {
    if wanted == 0 { 0 } else { wanted.max(running).min(tokens) }
}

/// Returns the largest number from `low` to `high` that fits, or a number less than `step` below
/// it; `low` has to fit.
fn largest(low: usize, high: usize, step: usize, fits: impl Fn(usize) -> bool) -> usize {
    if low >= high || fits(high) {
        return high.max(low);
    }
    let (mut low, mut high) = (low, high);
    while high - low > step {
        let middle = low + (high - low) / 2;
        if fits(middle) {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
}

/// Returns the bytes of keys and values of all parts.
fn cache_bytes(memory: &[Memory]) -> u64 {
    memory.iter().map(|memory| memory.caches).sum()
}

/// Returns the sizes of a part: its rows go on to the next part, and only the last one knows whose
/// logits are wanted.
fn part_of(mut options: ProgramOptions, is_last: bool) -> ProgramOptions {
    if !is_last {
        options.width.outputs = 0;
    }
    options
}

/// Parts and their sites.
struct Cut<'a> {
    sites: &'a [Site<'a>],
    cuts: Cuts,
}

impl Cut<'_> {
    /// Returns the sites that have a part.
    fn sites(&self) -> impl Iterator<Item = &Site<'_>> {
        self.cuts.iter().map(|(site, _)| &self.sites[*site])
    }

    /// Returns the memory that each part would hold.
    fn memory(&self, options: ProgramOptions) -> Vec<Memory> {
        let last = self.cuts.len() - 1;
        let forecast = |(at, (site, plan)): (usize, &(usize, Plan))| {
            (self.sites[*site].forecast)(plan, &part_of(options, at == last))
        };
        self.cuts.iter().enumerate().map(forecast).collect()
    }

    /// Returns the seconds of a step by forecast: parts run one after another. `None` if nothing is
    /// known of the speed of a device.
    fn seconds(&self, options: ProgramOptions, workload: Workload) -> Option<f64> {
        self.part_seconds(options, workload).map(|parts| parts.iter().sum())
    }

    /// Returns what `depth` steps in flight bring, by forecast. A part that takes longer than the
    /// others lets these wait.
    fn gain(&self, options: ProgramOptions, running: usize, depth: usize) -> Option<FlightGain> {
        let context = options.context.min(CONTEXT_TYPICAL);
        let sum_and_most = |workload: Workload| {
            let parts = self.part_seconds(options, workload)?;
            Some((parts.iter().sum::<f64>(), parts.into_iter().fold(0.0, f64::max)))
        };
        let of_texts = |sequences| sum_and_most(Workload::decode(sequences, context, options.kv));
        let (all, _) = of_texts(running)?;
        let steps = depth.min(running);
        let (share, most) = of_texts(running.div_ceil(steps))?;
        let (piece, longest) = sum_and_most(Workload::prefill(options.width.tokens, options.kv))?;
        let texts = all / share.max(steps as f64 * most);
        Some(FlightGain { texts, prompts: piece / longest })
    }

    /// Returns the seconds of a step in each part by forecast; experts aside are computed beside
    /// nothing else.
    fn part_seconds(&self, options: ProgramOptions, workload: Workload) -> Option<Vec<f64>> {
        let last = self.cuts.len() - 1;
        let of_part = |(at, (site, plan)): (usize, &(usize, Plan))| {
            let options = part_of(options, at == last);
            let outputs = workload.outputs.min(options.width.outputs);
            let workload = Workload { outputs, ..workload };
            let own = (self.sites[*site].timing)(plan, &options, workload)?;
            let Some(part) = self.aside(plan, &options) else { return Some(own) };
            let aside = (self.sites[part.site].timing)(&part.plan, &part.options, workload)?;
            Some(own + aside)
        };
        self.cuts.iter().enumerate().map(of_part).collect()
    }

    fn with_sites<'a>(
        &'a self,
        memory: &'a [Memory],
    ) -> impl Iterator<Item = (&'a Site<'a>, &'a Memory)> {
        self.cuts.iter().map(|(site, _)| &self.sites[*site]).zip(memory)
    }

    /// Returns whether each device can hold its part, and the processor's memory the parts of all
    /// GPUs that use it.
    fn fit_hard(&self, options: ProgramOptions, memory: &[Memory]) -> bool {
        let last = self.cuts.len() - 1;
        let parts = self.with_sites(memory);
        let shared = parts.filter(|(site, _)| site.memory.kind == MemoryKind::Shared);
        let shared: u64 = shared.map(|(_, memory)| memory.total()).sum();
        if common_bytes(self.sites).is_some_and(|free| shared > free) {
            return false;
        }
        self.cuts.iter().zip(memory).enumerate().all(|(at, ((site, plan), memory))| {
            self.sites[*site].can_hold(plan, &part_of(options, at == last), memory)
        })
    }

    /// Returns the memory of the processor's parts that compute the experts of others.
    fn aside_memory(&self, options: ProgramOptions) -> Memory {
        let last = self.cuts.len() - 1;
        let of_part = |(at, (_, plan)): (usize, &(usize, Plan))| {
            Some(self.aside(plan, &part_of(options, at == last))?.memory)
        };
        let all = self.cuts.iter().enumerate().filter_map(of_part);
        all.fold(Memory::default(), |sum, memory| sum + memory)
    }

    /// Returns the part that computes the experts aside of a part with these sizes.
    fn aside(&self, plan: &Plan, options: &ProgramOptions) -> Option<Part> {
        let plan = aside::others(plan)?;
        let is_host = |site: &Site<'_>| site.memory.kind == MemoryKind::Host;
        let index = self.sites.iter().position(is_host)?;
        let (site, options) = (&self.sites[index], Aside::sizes(options));
        Some(Part {
            site: index,
            device: site.name.clone(),
            memory: (site.forecast)(&plan, &options),
            plan,
            options,
            device_memory: site.memory,
            most_rows: site.most_rows,
            aside: None,
        })
    }

    /// Returns whether keys and values take at most half of what weights and working memory leave
    /// of the processor's memory. The other half is for other programs and the file cache. What
    /// GPUs take of this memory and what the processor takes are counted together; if it is not
    /// known how much is free for all, each GPU's own limit takes its place.
    fn fit_soft(&self, options: ProgramOptions, memory: &[Memory]) -> bool {
        let leaves_half = |free: u64, memory: Memory| {
            memory.caches <= free.saturating_sub(memory.weights + memory.scratch) / 2
        };
        let mut of_processor =
            self.with_sites(memory).filter(|(site, _)| site.memory.kind != MemoryKind::Own);
        match common_bytes(self.sites) {
            Some(free) => {
                let aside = self.aside_memory(options);
                let sum = of_processor.fold(aside, |sum, (_, memory)| sum + *memory);
                leaves_half(free, sum)
            }
            None => of_processor
                .all(|(site, memory)| site.free.is_none_or(|free| leaves_half(free, *memory))),
        }
    }

    fn names(&self) -> String {
        let names: Vec<&str> =
            self.cuts.iter().map(|(site, _)| self.sites[*site].name.as_str()).collect();
        names.join(" with ")
    }

    fn placement(self, options: ProgramOptions, running: usize, full_blocks: usize) -> Placement {
        let ProgramOptions { sequences, blocks, context, .. } = options;
        assert!(running <= sequences, "{running} sequences run in {sequences} slots");
        assert!(blocks >= context.div_ceil(BLOCK), "{blocks} blocks for a context of {context}");
        let memory = self.memory(options);
        let last = self.cuts.len() - 1;
        let is_host = |site: usize| self.sites[site].memory.kind == MemoryKind::Host;
        let part = |(at, ((site, plan), memory)): (usize, (&(usize, Plan), Memory))| {
            let own = &self.sites[*site];
            let options = part_of(options, at == last);
            let aside = self.aside(plan, &options).map(Box::new);
            let (plan, memory) = tables::held(own, plan, &options, memory);
            Part {
                site: *site,
                device: own.name.clone(),
                plan,
                options,
                memory,
                device_memory: own.memory,
                most_rows: own.most_rows,
                aside,
            }
        };
        let parts: Vec<Part> = self.cuts.iter().zip(memory).enumerate().map(part).collect();
        let has_host = parts.iter().any(|part| is_host(part.site) || part.aside.is_some());
        let depth = if has_host { 1 } else { parts.len() };
        let gain = if depth > 1 { self.gain(options, running, depth) } else { None };
        Placement { parts, options, running, full_blocks, depth, gain }
    }
}
