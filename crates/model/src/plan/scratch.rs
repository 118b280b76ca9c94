//! Scratch memory: where each buffer of a Plan lives.
//!
//! Two buffers share memory when their lifetimes (first to last step that touches them) do not
//! meet. Placement is greedy, largest first, at the lowest offset that is free for the whole
//! lifetime.

use crate::plan::{Plan, Rows};

/// Alignment of every buffer, in bytes: a cache line, and the widest SIMD register.
pub const ALIGNMENT: usize = 64;

/// The number of rows for which a Program is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Width {
    /// Most tokens in a step.
    pub tokens: usize,
    /// Most tokens whose logits are wanted in a step.
    pub outputs: usize,
}

impl Width {
    /// Returns the rows of a kind.
    pub fn of(self, rows: Rows) -> usize {
        match rows {
            // All tokens of a step may be soft.
            Rows::Tokens | Rows::Soft => self.tokens,
            Rows::Outputs => self.outputs,
        }
    }
}

/// Offsets of all buffers in one block of memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scratch {
    /// Byte offset of each buffer of the Plan; `None` for buffers that no step touches and that are
    /// neither input nor output.
    pub offsets: Vec<Option<usize>>,
    /// Size of the block in bytes.
    pub bytes: usize,
}

/// A buffer's claim on memory: from the first to the last step that touches it, both included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    /// The buffer, in the caller's numbering.
    pub buffer: usize,
    /// Its size, a multiple of the number of which the caller wants offsets to be multiples.
    pub bytes: usize,
    /// First step.
    pub first: usize,
    /// Last step.
    pub last: usize,
}

impl Scratch {
    /// Places the buffers of `plan` for a width.
    pub fn place(plan: &Plan, width: Width) -> Self {
        Self::place_claims(claims(plan, width), plan.buffers.len())
    }

    /// Places claims of `buffers` buffers, at most one for each.
    pub fn place_claims(mut claims: Vec<Claim>, buffers: usize) -> Self {
        claims.sort_by_key(|claim| std::cmp::Reverse(claim.bytes));
        let mut offsets = vec![None; buffers];
        let mut placed: Vec<(usize, Claim)> = Vec::new();
        for claim in claims {
            let offset = lowest_free(&placed, &claim);
            offsets[claim.buffer] = Some(offset);
            placed.push((offset, claim));
        }
        let bytes = placed.iter().map(|(offset, claim)| offset + claim.bytes).max().unwrap_or(0);
        Self { offsets, bytes }
    }
}

fn claims(plan: &Plan, width: Width) -> Vec<Claim> {
    let mut lifetimes: Vec<Option<(usize, usize)>> = vec![None; plan.buffers.len()];
    for (at, step) in plan.steps.iter().enumerate() {
        for id in step.op.touches() {
            let (first, _) = lifetimes[id.0].unwrap_or((at, at));
            lifetimes[id.0] = Some((first, at));
        }
    }
    let end = plan.steps.len();
    // Inputs hold values before the first step.
    for input in &plan.inputs {
        let (_, last) = lifetimes[input.buffer.0].unwrap_or((0, 0));
        lifetimes[input.buffer.0] = Some((0, last));
    }
    // Outputs are read after the last step of those that are run for their goal.
    for goal in plan.goals() {
        let last = match plan.ends.len() {
            0 | 1 => end,
            _ => plan.serving(goal).iter().rposition(|serves| *serves).unwrap_or(end),
        };
        for id in plan.outputs_of(goal) {
            let (first, own) = lifetimes[id.0].unwrap_or((last, last));
            lifetimes[id.0] = Some((first, own.max(last)));
        }
    }
    let claim = |(buffer, lifetime): (usize, &Option<(usize, usize)>)| {
        let (first, last) = (*lifetime)?;
        let rows = width.of(plan.buffers[buffer].rows);
        let bytes =
            (rows * plan.buffers[buffer].columns * size_of::<f32>()).next_multiple_of(ALIGNMENT);
        Some(Claim { buffer, bytes, first, last })
    };
    lifetimes.iter().enumerate().filter_map(claim).collect()
}

/// Returns the lowest offset at which `claim` overlaps no placed buffer that lives at the same
/// time.
fn lowest_free(placed: &[(usize, Claim)], claim: &Claim) -> usize {
    let mut busy: Vec<(usize, usize)> = placed
        .iter()
        .filter(|(_, other)| other.first <= claim.last && claim.first <= other.last)
        .map(|(offset, other)| (*offset, offset + other.bytes))
        .collect();
    busy.sort_unstable();
    let mut offset = 0;
    for (start, end) in busy {
        if offset + claim.bytes <= start {
            break;
        }
        offset = offset.max(end);
    }
    offset
}
