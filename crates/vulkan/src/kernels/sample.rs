//! The choice of tokens, and what their log-probabilities take: `shaders/sample.comp`.

use bytemuck::{Pod, Zeroable};
use trine_backend::sampling::{Draw, Drawn, NoToken, Rule, Told, is_allowed};

use crate::capabilities::Capabilities;
use crate::compiler::Compiler;
use crate::dispatch::{Dispatch, Link, Push, Span};
use crate::error::GpuError;
use crate::raw::pipeline::KernelKey;
use crate::shaders::Shader;

/// Most invocations of a workgroup.
const LOCAL: u32 = 256;
/// Logits that an invocation reads at once.
const AT_ONCE: usize = 8;
/// Fewest and most tokens of a part, powers of two.
const CHUNK: usize = AT_ONCE * LOCAL as usize;
const CHUNK_MAX: usize = 1 << 15;
/// Parts of all rows that keep a device busy: beyond that they are larger.
const BUSY: usize = 256;
/// Places for the tokens that top-k may keep.
const ROOM: usize = 1024;
/// The passes that run: where nothing of a row is left to find out after the first race, where only
/// the rank of its winner is, and where that may not be the last one.
const RUNS: [&[u32]; 3] = [&[0, 1], &[0, 1, 3], &[0, 1, 2, 2, 3]];
/// Bytes of what is known of a row, and of what is found in a part.
const STATE_BYTES: usize = 64;
const PART_BYTES: usize = 48;
/// Tokens of the largest vocabulary: that many weights have a sum in 64 bits.
pub const VOCABULARY_MAX: usize = 1 << 23;
/// The share of weights that keeps all of them.
const WHOLE: u32 = 1 << 24;
/// Stands in the place of a token where there is none.
const NONE: u32 = u32::MAX;
/// The bit of a token in a [`ChangeRecord`] that says that it is repeated.
const REPEATED: u32 = 1 << 31;

/// A launch over rows of logits.
#[derive(Debug, Clone, Copy)]
pub struct SampleLaunch {
    /// Logits of a row, at most [`VOCABULARY_MAX`].
    pub vocabulary: usize,
    /// Most rows.
    pub rows: usize,
    /// Address of the number of rows that are wanted, a u32.
    pub count: u64,
    /// [`RowRecord`]s.
    pub records: Span,
    /// [`Outcome`]s.
    pub outcomes: Span,
    /// Working memory: [`SampleLaunch::work_bytes`]. It is 0 before the first run.
    pub work: Span,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
struct Args {
    count: u64,
    records: u64,
    outcomes: u64,
    states: u64,
    parts: u64,
    maxima: u64,
    found: u64,
    vocabulary: u32,
    chunks: u32,
    chunk: u32,
    maxima_count: u32,
}

/// What is wanted of a row.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
pub struct RowRecord {
    /// Address of the row's logits.
    pub logits: u64,
    /// Address of the bits of tokens that may be chosen as they are; 0 for all.
    pub mask: u64,
    /// Address of [`ChangeRecord`]s.
    pub changes: u64,
    key: u64,
    /// The number of changes.
    pub change_count: u32,
    top_k: u32,
    share: u32,
    given: u32,
    scale: f32,
    least: f32,
    factors: [f32; 2],
    /// 1 if a log-probability is wanted, 2 in a trial.
    pub tells: u32,
    padding: u32,
}

impl RowRecord {
    /// Returns the record of a draw without mask and changes from logits at an address.
    pub fn of(draw: &Draw, logits: u64) -> Self {
        let rule = &draw.rule;
        Self {
            logits,
            mask: 0,
            changes: 0,
            key: rule.key,
            change_count: 0,
            top_k: rule.top_k,
            share: rule.share,
            given: draw.given.unwrap_or(NONE),
            scale: rule.scale,
            least: rule.least,
            factors: rule.factors,
            tells: u32::from(draw.tells),
            padding: 0,
        }
    }
}

/// A token that may be chosen with another logit.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
pub struct ChangeRecord {
    token: u32,
    bias: f32,
    less: f32,
}

/// Writes the changes of tokens that may be chosen, and which tokens may be chosen as they are.
/// Returns whether it has written these: if not, they are all that are allowed.
pub fn split(
    draw: &Draw,
    vocabulary: usize,
    mask: &mut Vec<u32>,
    changes: &mut Vec<ChangeRecord>,
) -> bool {
    mask.clear();
    changes.clear();
    if draw.changes.is_empty() {
        return false;
    }
    mask.extend_from_slice(&draw.allowed);
    if mask.is_empty() {
        mask.resize(vocabulary.div_ceil(32), u32::MAX);
    }
    for change in &draw.changes {
        let token = change.token;
        if token as usize >= vocabulary || !is_allowed(&draw.allowed, token) {
            continue;
        }
        mask[token as usize / 32] &= !(1 << (token % 32));
        let repeated = if change.is_repeated { REPEATED } else { 0 };
        changes.push(ChangeRecord {
            token: token | repeated,
            bias: change.bias,
            less: change.less,
        });
    }
    true
}

/// What was found of a row.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
pub struct Outcome {
    token: u32,
    broken: u32,
    broken_bits: u32,
    /// The number of larger logits; in a trial the sum of the keys of scores.
    pub rank: u32,
    /// The sum of weights.
    pub sum: u64,
    logit: f32,
    largest: f32,
}

impl Outcome {
    /// Returns what it says of a draw.
    ///
    /// # Errors
    /// [`NoToken`] if there is no token.
    pub fn drawn(&self, draw: &Draw) -> Result<Drawn, NoToken> {
        let Self { token, broken, broken_bits, rank, sum, logit, largest } = *self;
        if broken != NONE {
            return Err(NoToken::NotFinite { token: broken, logit: f32::from_bits(broken_bits) });
        }
        if token == NONE {
            return Err(NoToken::NothingAllowed);
        }
        Ok(Drawn { token, told: draw.tells.then_some(Told { logit, largest, sum, rank }) })
    }
}

impl SampleLaunch {
    /// Returns the bytes of working memory for at most `rows` rows.
    pub fn work_bytes(vocabulary: usize, rows: usize) -> usize {
        rows * work_parts(vocabulary).iter().sum::<usize>()
    }

    /// The number of runs.
    pub const RUNS: usize = RUNS.len();

    /// Returns the numbers of rows that launches are made for, in ascending order: workgroups for
    /// rows that nobody wants take time too.
    pub fn sizes(&self) -> impl Iterator<Item = usize> + use<> {
        let rows = self.rows;
        let powers = std::iter::successors(Some(1_usize), |rows| rows.checked_mul(4));
        powers.take_while(move |&size| size < rows).chain([rows])
    }

    /// Returns the run that is enough for some draws, below [`SampleLaunch::RUNS`].
    pub fn run(&self, capabilities: &Capabilities, draws: &[Draw]) -> usize {
        let most = u64::from(self.maxima(capabilities));
        let is_known = |draw: &Draw| draw.given.is_some() || draw.rule.scale == 0.0;
        // After the race of all, the weights before its winner have to be summed.
        let is_open = |draw: &Draw| {
            let Rule { top_k, share, .. } = draw.rule;
            let has_room = top_k > 0 && 2 * u64::from(top_k) <= most && top_k as usize <= ROOM;
            !is_known(draw) && !has_room && share < WHOLE
        };
        // A pass of one workgroup takes ten times as long as one of many.
        if draws.iter().any(is_open) {
            return 2;
        }
        usize::from(draws.iter().any(|draw| draw.tells && !is_known(draw)))
    }

    /// Returns the tokens of a part where so many rows are passed over, a power of two.
    fn chunk(&self, rows: usize) -> usize {
        (self.vocabulary * rows / BUSY).next_power_of_two().clamp(CHUNK, CHUNK_MAX)
    }

    /// Returns the maxima of a row: one of what each subgroup reads at once.
    fn maxima(&self, capabilities: &Capabilities) -> u32 {
        let local = local(capabilities);
        let at_once = AT_ONCE * local as usize;
        self.vocabulary.div_ceil(at_once) as u32 * local.div_ceil(capabilities.subgroup)
    }

    /// Returns the dispatches of a run for at most `rows` rows. Its logits, masks and changes were
    /// written by the host or before.
    ///
    /// # Errors
    /// If a kernel cannot be compiled.
    pub fn dispatches(
        &self,
        gpu: &dyn Compiler,
        rows: usize,
        run: usize,
    ) -> Result<Vec<Dispatch>, GpuError> {
        let Self { vocabulary, count, records, outcomes, work, .. } = *self;
        let capabilities = gpu.capabilities();
        let chunk = self.chunk(rows);
        let chunks = vocabulary.div_ceil(chunk) as u32;
        let [states, parts, of_maxima, _] = work_parts(vocabulary).map(|bytes| self.rows * bytes);
        let args = Args {
            count,
            records: records.address,
            outcomes: outcomes.address,
            states: work.address,
            parts: work.address + states as u64,
            maxima: work.address + (states + parts) as u64,
            found: work.address + (states + parts + of_maxima) as u64,
            vocabulary: vocabulary as u32,
            chunks,
            chunk: chunk as u32,
            maxima_count: self.maxima(capabilities),
        };
        let dispatch = |&mode: &u32| {
            let key = KernelKey {
                shader: Shader("sample"),
                constants: vec![local(capabilities), mode],
                subgroup: Some(capabilities.subgroup),
            };
            Ok(Dispatch {
                label: "sample".to_owned(),
                step: 0,
                kernel: gpu.kernel(&key)?,
                push: Push::of(&args),
                groups: [chunks, rows as u32, 1],
                reads: vec![records, work],
                writes: vec![outcomes, work],
                link: Link::Outside,
                hands: None,
            })
        };
        RUNS[run].iter().map(dispatch).collect()
    }
}

/// Returns the invocations of a workgroup, a power of two.
fn local(capabilities: &Capabilities) -> u32 {
    LOCAL.min(1 << capabilities.invocations.max(1).ilog2())
}

/// Returns the bytes of each part of a row's working memory: what is known of it, what is found in
/// its parts, the maxima, and the tokens that top-k may keep. A subgroup has at least 4
/// invocations.
fn work_parts(vocabulary: usize) -> [usize; 4] {
    let chunks = vocabulary.div_ceil(CHUNK);
    [STATE_BYTES, PART_BYTES * chunks, LOCAL as usize * chunks, 8 * ROOM]
}

#[cfg(test)]
mod tests;
