//! Forecasts: tokens per second from a Plan's cost and the rates of a machine.
//!
//! The time of a pass is that of [`trine_backend::rates`].
//!
//! ```text
//! plain = sequences / time(1 token each)
//! drafts = sequences x E / (time(guesses + 1 tokens each) + guesses x draft model's time(1 token each))
//! E = (1 - a^(guesses + 1)) / (1 - a)
//! ```
//!
//! `E` is the expected number of tokens of one pass that verifies guesses, each of which is right
//! with probability `a` if those before it are (Leviathan, Kalman and Matias 2023, equation 1). A
//! draft model makes each guess in a pass of its own, at the same rates; guesses from the text so
//! far cost nothing. A limit is the same with the machine's best rates, no gaps, and attention at
//! the rate of products. The work of the host between passes is not counted.
//!
//! Nothing here reads a clock, a file or a device.

pub(crate) mod absent;
pub mod drafts;
mod npu;
mod presets;
#[cfg(test)]
mod tests;

use serde::Serialize;
use trine_backend::rates::{Rates, Seconds};
use trine_backend::{BLOCK, BackendError, ProgramOptions};
use trine_model::{BufferId, KvType, Plan, Rows, Width, Workload};

pub use npu::{
    ASSUMED, CHANNELS_GBPS, FIGURES, Figure, NpuPrompt, Span, TILE, npu_generation, npu_prompts,
};
pub use presets::{PRESETS, Preset, preset};
pub use trine_backend::rates::{Bound, Work};

/// Most tokens in one pass, if memory and speed of a device make no use of more.
pub const PREFILL: usize = 512;
/// Most tokens in one pass that placement chooses
/// ([decision 087](../../../../docs/decisions/087-pieces-of-prompts.md)).
pub const PREFILL_MAX: usize = 2048;

/// The rates of a machine.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Machine {
    /// The name of the machine, for people.
    pub name: String,
    /// The rate in GB/s at which kernels read weights.
    pub gbps: f64,
    /// The rate in GB/s that nothing exceeds: from the data sheet, or the best that was measured.
    pub gbps_limit: f64,
    /// 10^12 operations per second of products with up to 64 rows.
    pub tops_skinny: f64,
    /// 10^12 operations per second of products with more rows.
    pub tops_wide: f64,
    /// 10^12 operations per second that no f16 product exceeds. On a measured machine it is the
    /// larger of the two above.
    pub tops_limit: f64,
    /// The microseconds of idle time between a launch and the next one that needs its result.
    pub gap_us: f64,
    /// The bytes of memory for a model, if known.
    pub memory_bytes: Option<u64>,
    /// Whether that is memory of its own, not the processor's.
    #[serde(skip)]
    pub has_own_memory: bool,
    /// Whether an XDNA1 NPU shares the memory with the GPU.
    #[serde(skip)]
    pub has_npu: bool,
    /// The origins of these numbers.
    pub sources: Vec<Basis>,
}

/// The origin of a number.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Basis {
    /// How reliable the number is.
    pub kind: BasisKind,
    /// Which numbers these are, and their source.
    pub text: String,
}

/// How reliable a number is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BasisKind {
    /// Measured on such a machine.
    Measured,
    /// From a data sheet, or computed from the number of units and the clock.
    Published,
    /// Assumed; nobody measured it.
    Assumed,
    /// Typed by the user.
    Given,
}

impl BasisKind {
    /// Returns the word for this kind.
    pub fn name(self) -> &'static str {
        match self {
            BasisKind::Measured => "measured",
            BasisKind::Published => "published",
            BasisKind::Assumed => "assumed",
            BasisKind::Given => "given",
        }
    }
}

impl Basis {
    /// Creates the origin of a number.
    pub fn new(kind: BasisKind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into() }
    }
}

impl Machine {
    /// Creates a machine whose speed is that of its reads: one token after the other waits for
    /// nothing else on most machines.
    pub fn of_reads(gbps: f64) -> Self {
        Self {
            name: "a machine of these reads".to_owned(),
            gbps,
            gbps_limit: gbps,
            tops_skinny: f64::INFINITY,
            tops_wide: f64::INFINITY,
            tops_limit: f64::INFINITY,
            gap_us: 0.0,
            memory_bytes: None,
            has_own_memory: false,
            has_npu: false,
            sources: Vec::new(),
        }
    }

    /// Returns the rates.
    pub fn rates(&self) -> Rates {
        let Self { gbps, gbps_limit, tops_skinny, tops_wide, tops_limit, gap_us, .. } = *self;
        Rates { gbps, gbps_limit, tops_skinny, tops_wide, tops_limit, gap_us }
    }

    /// Returns the time of a pass on this machine.
    pub fn seconds(&self, work: &Work) -> Seconds {
        self.rates().seconds(work)
    }

    /// Returns 10^12 operations per second of products with this many rows.
    fn tops(&self, rows: usize) -> f64 {
        self.rates().tops(rows)
    }

    /// Returns the time of a pass at the machine's best rates.
    pub fn limit(&self, work: &Work) -> Seconds {
        self.rates().limit(work)
    }
}

/// Says how many launches a pass of a Plan has on a machine
/// ([`Device::launches`](trine_backend::Device::launches)).
pub type CountLaunches =
    Box<dyn Fn(&Plan, &ProgramOptions, Workload) -> Result<usize, BackendError>>;

/// The passes of a model on a machine.
#[derive(Clone, Copy)]
pub struct Passes<'a> {
    /// The model's fused Plan.
    pub plan: &'a Plan,
    /// The machine that runs them.
    pub machine: &'a Machine,
    /// How many launches they have there.
    pub launches: &'a CountLaunches,
    /// How keys and values are stored.
    pub kv: KvType,
    /// The most tokens of a pass, as placement chooses them.
    pub piece: usize,
}

impl Passes<'_> {
    /// Returns the work of a pass, in a Program that is wide enough for it and for a piece of a
    /// prompt.
    ///
    /// # Errors
    /// Returns an error if the machine cannot run the Plan.
    pub fn work(&self, workload: Workload) -> Result<Work, BackendError> {
        let Workload { sequences, tokens, context, outputs, kv } = workload;
        let context = context + tokens;
        // A model that only embeds has no rows with logits.
        let is_logits = |id: &BufferId| self.plan.buffer(*id).rows == Rows::Outputs;
        let (outputs, rows) = match self.plan.outputs.iter().any(is_logits) {
            true => (outputs, outputs.max(sequences)),
            false => (0, 0),
        };
        let workload = Workload { outputs, ..workload };
        let options = ProgramOptions {
            width: Width { tokens: self.piece.min(context).max(sequences * tokens), outputs: rows },
            kv,
            context,
            sequences,
            blocks: sequences * context.div_ceil(BLOCK),
        };
        let launches = (self.launches)(self.plan, &options, workload)?;
        Ok(Work::of(self.plan, workload, launches))
    }

    /// Returns the work of a pass with `tokens` tokens of each of `sequences` sequences, whose last
    /// token stands at position `context - 1`, and the logits of all.
    fn generating(
        &self,
        sequences: usize,
        tokens: usize,
        context: usize,
    ) -> Result<Work, BackendError> {
        let before = context.saturating_sub(1);
        let outputs = sequences * tokens;
        self.work(Workload { sequences, tokens, context: before, outputs, kv: self.kv })
    }
}

/// How a speculating engine guesses.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Drafts {
    /// The number of guesses for each sequence and pass.
    pub tokens: usize,
    /// The probability, 0 to 1, that a guess is right if those before it are.
    pub acceptance: f64,
}

impl Drafts {
    /// Returns the expected number of tokens of one pass: the right guesses and the token that the
    /// pass itself produces.
    pub fn tokens_per_pass(self) -> f64 {
        // The sum of the series instead of its closed form, which is 0 / 0 if the acceptance is 1.
        (0..=self.tokens).map(|power| self.acceptance.powf(power as f64)).sum()
    }
}

/// What makes guesses.
#[derive(Clone, Copy)]
pub enum Guesser<'a> {
    /// Nothing that takes time: the text so far.
    Text,
    /// The passes of a draft model, and its longest context in positions.
    Model(Passes<'a>, usize),
}

/// A forecast of generation.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Generation {
    /// The number of sequences at once.
    pub batch: usize,
    /// The positions of each sequence, including that of the newest token.
    pub context: usize,
    /// Tokens per second over all sequences, one token for each in a pass.
    pub tokens_per_second: f64,
    /// Tokens per second over all sequences at the machine's best rates, without drafts.
    pub limit: f64,
    /// Tokens per second over all sequences with drafts.
    pub with_drafts: f64,
    /// What limits a pass without drafts.
    pub bound: Bound,
}

/// A forecast of reading a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Prompt {
    /// The number of tokens of the prompt.
    pub tokens: usize,
    /// Tokens per second.
    pub tokens_per_second: f64,
    /// Tokens per second at the machine's best rates.
    pub limit: f64,
    /// The seconds until the first token of the answer.
    pub first_token_seconds: f64,
    /// What limits the speed.
    pub bound: Bound,
}

/// Forecasts generation for `batch` sequences of `context` positions. A draft model guesses nothing
/// beyond its own positions.
///
/// # Errors
/// Returns an error if the machine cannot run a Plan.
pub fn generation(
    model: Passes<'_>,
    (drafts, guesser): (Drafts, Guesser<'_>),
    batch: usize,
    context: usize,
) -> Result<Generation, BackendError> {
    let plain = model.generating(batch, 1, context)?;
    let seconds = model.machine.seconds(&plain);
    let guessing = match guesser {
        Guesser::Text => Some(0.0),
        Guesser::Model(_, most) if context + drafts.tokens > most => None,
        Guesser::Model(draft, _) => {
            let guess = draft.generating(batch, 1, context)?;
            Some(drafts.tokens as f64 * draft.machine.seconds(&guess).total())
        }
    };
    let batch_tokens = batch as f64;
    let tokens_per_second = batch_tokens / seconds.total();
    let with_drafts = match guessing {
        Some(guessing) => {
            let verify = model.generating(batch, drafts.tokens + 1, context)?;
            let seconds = guessing + model.machine.seconds(&verify).total();
            batch_tokens * drafts.tokens_per_pass() / seconds
        }
        None => tokens_per_second,
    };
    let limit = batch_tokens / model.machine.limit(&plain).total();
    let bound = seconds.bound();
    Ok(Generation { batch, context, tokens_per_second, limit, with_drafts, bound })
}

/// Forecasts reading one prompt in the passes that the engine makes.
///
/// # Errors
/// Returns an error if the machine cannot run the Plan.
pub fn prompt(model: Passes<'_>, tokens: usize) -> Result<Prompt, BackendError> {
    let (mut seconds, mut limit) = (Seconds::default(), Seconds::default());
    for (_, work) in pieces(model, tokens)? {
        seconds.add(model.machine.seconds(&work));
        limit.add(model.machine.limit(&work));
    }
    Ok(Prompt {
        tokens,
        tokens_per_second: tokens as f64 / seconds.total(),
        limit: tokens as f64 / limit.total(),
        first_token_seconds: seconds.total(),
        bound: seconds.bound(),
    })
}

/// A forecast of embedding texts, each of which is read whole.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Texts {
    /// The number of texts.
    pub batch: usize,
    /// The number of tokens of each.
    pub tokens: usize,
    /// How many of them share a step.
    pub together: usize,
    /// Tokens per second over all texts.
    pub tokens_per_second: f64,
    /// The same at the machine's best rates.
    pub limit: f64,
    /// The seconds until all have their vectors.
    pub seconds: f64,
    /// What limits the speed.
    pub bound: Bound,
}

/// Forecasts embedding `batch` texts of `tokens` tokens. As many share a step as it has room for.
///
/// # Errors
/// Returns an error if the machine cannot run the Plan.
pub fn texts(model: Passes<'_>, batch: usize, tokens: usize) -> Result<Texts, BackendError> {
    let together = (model.piece / tokens.max(1)).clamp(1, batch.max(1));
    let (mut seconds, mut limit) = (Seconds::default(), Seconds::default());
    for first in (0..batch).step_by(together) {
        let sequences = together.min(batch - first);
        let workload = Workload { sequences, tokens, context: 0, outputs: 0, kv: model.kv };
        let work = model.work(workload)?;
        seconds.add(model.machine.seconds(&work));
        limit.add(model.machine.limit(&work));
    }
    let all = (batch * tokens) as f64;
    Ok(Texts {
        batch,
        tokens,
        together,
        tokens_per_second: all / seconds.total(),
        limit: all / limit.total(),
        seconds: seconds.total(),
        bound: seconds.bound(),
    })
}

/// Returns the passes that read one prompt, and their work.
///
/// # Errors
/// Returns an error if the machine cannot run the Plan.
fn pieces(model: Passes<'_>, tokens: usize) -> Result<Vec<(Workload, Work)>, BackendError> {
    let mut pieces = Vec::with_capacity(tokens.div_ceil(model.piece));
    // How far a piece is from the beginning changes none of its launches.
    let mut launches: Option<usize> = None;
    for context in (0..tokens).step_by(model.piece) {
        let piece = model.piece.min(tokens - context);
        let is_last = context + piece == tokens;
        let outputs = usize::from(is_last);
        let workload = Workload { sequences: 1, tokens: piece, context, outputs, kv: model.kv };
        let work = match launches.filter(|_| !is_last) {
            Some(launches) => Work::of(model.plan, workload, launches),
            None => model.work(workload)?,
        };
        launches = Some(work.launches);
        pieces.push((workload, work));
    }
    Ok(pieces)
}
