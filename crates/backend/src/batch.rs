//! The rows of a step, and the sizes that they must not exceed.

use trine_model::{Buffer, Cache, Goal, Input, KvType, Plan, Rows, Source, Width};

use crate::error::BackendError;

/// Positions in one block of a global layer's KV cache.
pub const BLOCK: usize = 32;

/// Prompts of more rows than this are run as bulk rows ([`Batch::bulk_from`]).
pub const BULK_ROWS: usize = 64;

/// The token of a row that comes from an input of the Plan instead of a table: a soft token
/// ([`Rows::Soft`]).
pub const SOFT: u32 = u32::MAX;

/// Sizes that are fixed when a Program is created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProgramOptions {
    /// Most rows in a step, and most rows with logits.
    pub width: Width,
    /// How keys and values are stored.
    pub kv: KvType,
    /// Longest sequence, in positions.
    pub context: usize,
    /// Sequences that hold a cache at the same time: slots are `0..sequences`.
    pub sequences: usize,
    /// Blocks of [`BLOCK`] positions in the pool that the global layers share.
    pub blocks: usize,
}

impl ProgramOptions {
    /// Returns the positions in a slot's ring for a local layer. A step writes all its rows before
    /// it attends, so the ring holds the window of the first row and all rows after it.
    pub fn ring_length(&self, window: usize) -> usize {
        (window - 1 + self.width.tokens).min(self.context).next_multiple_of(BLOCK)
    }

    /// Checks the slots of a [`Program::copy_slot`](crate::Program::copy_slot).
    ///
    /// # Errors
    /// [`BackendError::BadBatch`] if there is no such slot.
    pub fn check_slots(&self, from: u32, to: u32) -> Result<(), BackendError> {
        let slots = self.sequences;
        if (from.max(to) as usize) < slots {
            return Ok(());
        }
        let what = format!("the rings of slot {from} are to be copied to {to}, there are {slots}");
        Err(BackendError::BadBatch { what })
    }

    /// Returns the bytes of one KV cache.
    pub fn cache_bytes(&self, cache: &Cache) -> u64 {
        let positions = match cache.window {
            Some(window) => self.sequences * self.ring_length(window),
            None => self.blocks * BLOCK,
        };
        (positions * 2 * cache.kv_heads * self.kv.head_bytes(cache.head_dim)) as u64
    }
}

/// The rows of one step. Row `r` is `tokens[r]` at `positions[r]` of sequence `sequence_of[r]`.
///
/// Rules, checked by [`Batch::check`]: all three have one entry for each row, and at least one row;
/// the rows of a sequence are adjacent and at consecutive positions; a sequence's blocks cover its
/// positions; no two sequences share a slot; rows see ahead only within their sequence's rows, and
/// no less far than the row before; outputs ascend, and each is followed by the rows of the mean
/// that begins with it, where the Plan has means of rows; there are [`SOFT`] tokens only where the
/// Plan has an input for them; the inputs have the number and sizes of the
/// Plan's; the goal is one of the Plan's, and a goal with a row for each token has no outputs. Not
/// checked: no block that a row reads is written in the same step by a row of another sequence, so
/// sequences share only full blocks.
#[derive(Debug, Clone, Copy)]
pub struct Batch<'a> {
    /// Token ids, or [`SOFT`]. In a Plan for pictures the numbers of patches in their grid, row by
    /// row.
    pub tokens: &'a [u32],
    /// Positions in their sequences, from 0.
    pub positions: &'a [u32],
    /// Indices into `sequences`.
    pub sequence_of: &'a [u32],
    /// How many of its sequence's rows after each row the row sees as well. Empty if each row sees
    /// only itself and what is before it. The rows of a picture that see one another have `n - 1`,
    /// `n - 2`, ... 0. A window limits what a row sees before it, and after it only where attention
    /// says [`Ahead::Window`](trine_model::Ahead::Window)
    /// (`docs/decisions/028-rows-that-see-ahead.md`).
    pub ahead: &'a [u32],
    /// Where the sequences keep their keys and values.
    pub sequences: &'a [SequenceView<'a>],
    /// Rows whose logits are wanted.
    pub outputs: &'a [u32],
    /// First of the *bulk rows*, which are all rows from there on; the number of rows or more if
    /// there are none. Bulk rows are those of long prompts: a device may compute their products
    /// less exactly (`docs/decisions/001-two-term-activations.md`). How a device treats a row may
    /// depend on its kind. It must not depend on the number of rows of each kind if the device says
    /// that it is [invariant](crate::Facts::is_invariant).
    pub bulk_from: usize,
    /// Rows of those inputs of the Plan that [come with the batch](trine_model::Plan::given_for),
    /// in their order: (rows, columns) row-major each. Empty for a Plan that begins with token ids.
    pub inputs: &'a [&'a [f32]],
    /// What the rows are for: one of the Plan's [goals](trine_model::Plan::goals).
    pub goal: Goal,
}

/// Where a sequence keeps its keys and values.
#[derive(Debug, Clone, Copy)]
pub struct SequenceView<'a> {
    /// The ring of each local layer.
    pub slot: u32,
    /// Block table of the global layers: position `p` is in block `blocks[p / BLOCK]`.
    pub blocks: &'a [u32],
}

/// Rows of one sequence in a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Index into [`Batch::sequences`].
    pub sequence: usize,
    /// First row.
    pub row: usize,
    /// Number of rows.
    pub rows: usize,
    /// Position of the first row.
    pub position: usize,
}

impl Batch<'_> {
    /// Returns each sequence's rows, in order.
    pub fn spans(&self) -> impl Iterator<Item = Span> + '_ {
        let mut row = 0;
        std::iter::from_fn(move || {
            let sequence = *self.sequence_of.get(row)?;
            let rows =
                self.sequence_of[row..].iter().take_while(|&&other| other == sequence).count();
            let position = self.positions[row] as usize;
            let span = Span { sequence: sequence as usize, row, rows, position };
            row += rows;
            Some(span)
        })
    }

    /// Returns the number of rows after a row that it sees.
    pub fn ahead(&self, row: usize) -> usize {
        self.ahead.get(row).map_or(0, |&ahead| ahead as usize)
    }

    /// Returns the rows of soft tokens, in order.
    pub fn soft_rows(&self) -> impl Iterator<Item = usize> + '_ {
        let soft = self.tokens.iter().enumerate().filter(|(_, token)| **token == SOFT);
        soft.map(|(row, _)| row)
    }

    /// Returns the number of rows of a kind.
    pub fn rows(&self, rows: Rows) -> usize {
        match rows {
            Rows::Soft => self.soft_rows().count(),
            Rows::Tokens => self.tokens.len(),
            Rows::Outputs => self.outputs.len(),
        }
    }

    /// Checks the rules of a batch against what a Program was made for.
    ///
    /// # Errors
    /// [`BackendError::BadBatch`] naming the rule.
    pub fn check(
        &self,
        options: &ProgramOptions,
        plan: &Plan,
        vocabulary: usize,
    ) -> Result<(), BackendError> {
        let rows = self.tokens.len();
        let fail = |what: String| Err(BackendError::BadBatch { what });
        if rows == 0 || rows > options.width.tokens {
            return fail(format!("{rows} rows, the program is for 1 to {}", options.width.tokens));
        }
        if self.positions.len() != rows || self.sequence_of.len() != rows {
            return fail("tokens, positions and sequences differ in number".to_owned());
        }
        if !self.ahead.is_empty() && self.ahead.len() != rows {
            return fail(format!("{} of {rows} rows say what they see ahead", self.ahead.len()));
        }
        // A later part of a model is given what the first one made of soft rows.
        let is_soft = |input: &Input| {
            input.source == Source::Part || plan.buffer(input.buffer).rows == Rows::Soft
        };
        let takes_soft = plan.inputs.iter().any(is_soft);
        let is_known = |token: u32| (token as usize) < vocabulary || takes_soft && token == SOFT;
        if let Some(token) = self.tokens.iter().find(|&&token| !is_known(token)) {
            return fail(format!("token id {token} is outside the vocabulary of {vocabulary}"));
        }
        self.check_outputs(options, plan)?;
        self.check_goal(plan)?;
        self.check_inputs(plan)?;
        for (index, span) in self.spans().enumerate() {
            let Some(view) = self.sequences.get(span.sequence) else {
                return fail(format!(
                    "row {} names sequence {}; the batch has none",
                    span.row, span.sequence
                ));
            };
            if view.slot as usize >= options.sequences {
                return fail(format!("slot {} of {}", view.slot, options.sequences));
            }
            // Compared with each earlier one instead of a table of all: a step allocates nothing.
            for earlier in self.spans().take(index) {
                if earlier.sequence == span.sequence {
                    let sequence = span.sequence;
                    return fail(format!("the rows of sequence {sequence} do not stand together"));
                }
                if self.sequences[earlier.sequence].slot == view.slot {
                    return fail(format!("two sequences share slot {}", view.slot));
                }
            }
            self.check_span(options, span, view)?;
            self.check_ahead(span)?;
        }
        Ok(())
    }

    /// Checks the rules of a batch that `more` steps are to follow in a
    /// [series](crate::Program::submit_series), beyond those of [`Batch::check`], which it keeps:
    /// its goal is the main one or a draft; the last row of each sequence is an output row and no
    /// other one is. For the main goal: context and blocks of each sequence are long enough for
    /// `more` further positions; a sequence has no more rows in all steps together than a step may
    /// have, so that the series leaves in rings what its first row sees. For drafts: each sequence
    /// has one row.
    ///
    /// # Errors
    /// [`BackendError::BadBatch`] naming the rule.
    pub fn check_series(
        &self,
        options: &ProgramOptions,
        plan: &Plan,
        more: usize,
    ) -> Result<(), BackendError> {
        let fail = |what: String| Err(BackendError::BadBatch { what });
        let drafts = self.goal == Goal::Draft && plan.has_goal(Goal::Draft);
        if self.goal != Goal::Main && !drafts {
            return fail(format!("a series with goal {:?}", self.goal));
        }
        let lasts = self.spans().map(|span| span.row + span.rows - 1);
        if !lasts.eq(self.outputs.iter().map(|&row| row as usize)) {
            return fail("a series has logits of other rows than each sequence's last".to_owned());
        }
        if drafts {
            return match self.spans().find(|span| span.rows > 1) {
                Some(span) => {
                    fail(format!("{} rows of a sequence in a series of guesses", span.rows))
                }
                None => Ok(()),
            };
        }
        for Span { sequence, rows, position, .. } in self.spans() {
            let all = rows.saturating_add(more);
            if all > options.width.tokens {
                let most = options.width.tokens;
                return fail(format!("{all} rows of a sequence in a series, at most {most} fit"));
            }
            let end = position + all;
            if end > options.context {
                let context = options.context;
                return fail(format!("a series up to position {end}, the context is {context}"));
            }
            let covered = self.sequences[sequence].blocks.len() * BLOCK;
            if end > covered {
                return fail(format!(
                    "sequence {sequence} has blocks for {covered} of a series' {end} positions"
                ));
            }
        }
        Ok(())
    }

    fn check_span(
        &self,
        options: &ProgramOptions,
        span: Span,
        view: &SequenceView<'_>,
    ) -> Result<(), BackendError> {
        let fail = |what: String| Err(BackendError::BadBatch { what });
        let positions = &self.positions[span.row..span.row + span.rows];
        let ascend = positions.iter().enumerate().all(|(at, &p)| p as usize == span.position + at);
        let end = span.position + span.rows;
        if !ascend {
            return fail(format!(
                "the positions of sequence {} are not consecutive",
                span.sequence
            ));
        }
        if end > options.context {
            return fail(format!(
                "position {} is beyond the context of {}",
                end - 1,
                options.context
            ));
        }
        let covered = view.blocks.len() * BLOCK;
        if end > covered {
            return fail(format!(
                "sequence {} has blocks for {covered} of {end} positions",
                span.sequence
            ));
        }
        match view.blocks.iter().find(|&&block| block as usize >= options.blocks) {
            Some(block) => fail(format!("block {block} of {}", options.blocks)),
            None => Ok(()),
        }
    }

    /// Checks what the rows of a sequence see ahead. Because no row sees less far than the one
    /// before, a device may look at only the last of several rows.
    fn check_ahead(&self, span: Span) -> Result<(), BackendError> {
        let fail = |what: String| Err(BackendError::BadBatch { what });
        let mut furthest = 0;
        for row in span.row..span.row + span.rows {
            let after = span.row + span.rows - 1 - row;
            let ahead = self.ahead(row);
            if ahead > after {
                return fail(format!(
                    "row {row} sees {ahead} rows ahead, its sequence has {after}"
                ));
            }
            if row + ahead < furthest {
                return fail(format!("row {row} sees less far than the row before"));
            }
            furthest = row + ahead;
        }
        Ok(())
    }

    fn check_inputs(&self, plan: &Plan) -> Result<(), BackendError> {
        let fail = |what: String| Err(BackendError::BadBatch { what });
        let given = || plan.given_for(self.goal);
        let wanted = given().count();
        if self.inputs.len() != wanted {
            return fail(format!("{} inputs, the Plan takes {wanted}", self.inputs.len()));
        }
        for (input, id) in self.inputs.iter().zip(given()) {
            let Buffer { name, rows, columns } = plan.buffer(id);
            let (found, rows) = (input.len(), self.rows(*rows));
            if found != rows * columns {
                return fail(format!("{found} values of {name}, {rows} rows have {columns} each"));
            }
        }
        Ok(())
    }

    fn check_goal(&self, plan: &Plan) -> Result<(), BackendError> {
        let fail = |what: String| Err(BackendError::BadBatch { what });
        let Self { goal, outputs, .. } = self;
        if !plan.has_goal(*goal) {
            return fail(format!("goal {goal:?}, the Plan has {:?}", plan.goals()));
        }
        if plan.ends.len() > 1
            && let Some(first) = plan.outputs_of(*goal).first()
            && let Buffer { name, rows: Rows::Tokens, .. } = plan.buffer(*first)
            && !outputs.is_empty()
        {
            return fail(format!("{} output rows, {name} has a row for each token", outputs.len()));
        }
        Ok(())
    }

    fn check_outputs(&self, options: &ProgramOptions, plan: &Plan) -> Result<(), BackendError> {
        let (rows, pooled) = (self.tokens.len(), plan.largest_pool());
        if let Some(last) = self.outputs.last()
            && pooled > rows.saturating_sub(*last as usize)
        {
            let what = format!("a mean of {pooled} rows begins with row {last} of {rows}");
            return Err(BackendError::BadBatch { what });
        }
        let ascend = self.outputs.windows(2).all(|pair| pair[0] < pair[1]);
        let inside = self.outputs.last().is_none_or(|&last| (last as usize) < self.tokens.len());
        if self.outputs.len() <= options.width.outputs && ascend && inside {
            return Ok(());
        }
        let what = format!(
            "{} output rows, the program is for {} ascending ones within the batch",
            self.outputs.len(),
            options.width.outputs
        );
        Err(BackendError::BadBatch { what })
    }
}

#[cfg(test)]
mod tests {
    use trine_model::{BufferId, Op, Step, WeightId};

    use super::*;

    const OPTIONS: ProgramOptions = ProgramOptions {
        width: Width { tokens: 4, outputs: 2 },
        kv: KvType::F16,
        context: 40,
        sequences: 2,
        blocks: 4,
    };

    /// Returns what is wrong with a batch of rows (token, position, sequence).
    fn complaint(rows: &[(u32, u32, u32)], slots: [u32; 2], outputs: &[u32]) -> Option<String> {
        let (tokens, rest): (Vec<u32>, Vec<(u32, u32)>) =
            rows.iter().map(|&(token, position, sequence)| (token, (position, sequence))).unzip();
        let (positions, sequence_of): (Vec<u32>, Vec<u32>) = rest.into_iter().unzip();
        let [first, second] = slots;
        let sequences = [
            SequenceView { slot: first, blocks: &[0, 1] },
            SequenceView { slot: second, blocks: &[3] },
        ];
        let batch = Batch {
            tokens: &tokens,
            positions: &positions,
            sequence_of: &sequence_of,
            sequences: &sequences,
            outputs,
            ahead: &[],
            bulk_from: tokens.len(),
            inputs: &[],
            goal: Goal::Main,
        };
        batch.check(&OPTIONS, &plan(&[]), 10).err().map(|error| error.to_string())
    }

    /// Returns a Plan without steps, with inputs of these rows and 3 columns, and a gathered input
    /// before each.
    fn plan(inputs: &[Rows]) -> Plan {
        let table = Source::Table { table: WeightId(0), scale: 1.0 };
        let sources = [table, Source::Part, table, Source::Plan];
        let all: Vec<Rows> = inputs.iter().flat_map(|&rows| [Rows::Tokens, rows]).collect();
        let name = |index| format!("input {index}");
        let buffer = |(index, &rows)| Buffer { name: name(index), rows, columns: 3 };
        let input = |(index, source)| Input { buffer: BufferId(index), source };
        Plan {
            buffers: all.iter().enumerate().map(buffer).collect(),
            weights: Vec::new(),
            caches: Vec::new(),
            steps: Vec::new(),
            inputs: sources.into_iter().take(all.len()).enumerate().map(input).collect(),
            outputs: vec![BufferId(0)],
            ends: Vec::new(),
        }
    }

    #[test]
    fn the_inputs_have_the_plans_number_and_sizes() {
        let sequences = [SequenceView { slot: 0, blocks: &[0] }];
        let found = |inputs: &[&[f32]], rows: &[Rows]| {
            let batch = Batch {
                tokens: &[1, 2],
                positions: &[0, 1],
                sequence_of: &[0, 0],
                sequences: &sequences,
                outputs: &[1],
                ahead: &[],
                bulk_from: 2,
                inputs,
                goal: Goal::Main,
            };
            let result = batch.check(&OPTIONS, &plan(rows), 10);
            result.err().map(|error| error.to_string()).unwrap_or_default()
        };
        let values = [0.0; 8];
        assert_eq!(found(&[], &[]), "");
        assert!(found(&[&[]], &[]).contains("1 inputs, the Plan takes 0"));
        for (rows, expected) in [(Rows::Tokens, 6), (Rows::Outputs, 3)] {
            assert!(found(&[], &[rows]).contains("0 inputs, the Plan takes 1"));
            for length in 0..8 {
                let what = found(&[&values[..length]], &[rows]);
                assert_eq!(what.is_empty(), length == expected, "{rows:?}: {what}");
            }
        }
        let both = [Rows::Tokens, Rows::Outputs];
        assert_eq!(found(&[&values[..6], &values[..3]], &both), "");
        let what = found(&[&values[..6], &values[..6]], &both);
        assert!(what.contains("6 values of input 3, 1 rows have 3 each"), "{what}");
        assert!(!found(&[&values[..3], &values[..6]], &both).is_empty());
    }

    #[test]
    fn soft_tokens_are_for_plans_that_take_their_rows() {
        let sequences = [SequenceView { slot: 0, blocks: &[0] }];
        let found = |tokens: &[u32], inputs: &[&[f32]], plan: &Plan| {
            let batch = Batch {
                tokens,
                positions: &[0, 1, 2],
                sequence_of: &[0, 0, 0],
                sequences: &sequences,
                outputs: &[1],
                ahead: &[],
                bulk_from: 3,
                inputs,
                goal: Goal::Main,
            };
            let result = batch.check(&OPTIONS, plan, 10);
            result.err().map(|error| error.to_string()).unwrap_or_default()
        };
        let tokens = [SOFT, 1, SOFT];
        let outside = format!("token id {SOFT} is outside");
        assert!(found(&tokens, &[], &plan(&[])).contains(&outside));
        let soft = plan(&[Rows::Soft]);
        let values = [0.0; 9];
        assert_eq!(found(&tokens, &[&values[..6]], &soft), "");
        assert_eq!(found(&[1, 2, 3], &[&[]], &soft), "");
        assert!(found(&tokens, &[&values], &soft).contains("9 values of input 1, 2 rows have 3"));
        assert!(found(&[1, 10, SOFT], &[&values[..3]], &soft).contains("token id 10"));
        assert_eq!(found(&tokens, &[&values], &plan(&[Rows::Tokens])), "", "rows of a part");
    }

    #[test]
    fn means_of_rows_end_within_the_step() {
        let sequences = [SequenceView { slot: 0, blocks: &[0] }];
        let mut plan = plan(&[]);
        let pool = |count| Op::Pool { input: BufferId(0), count, output: BufferId(0) };
        plan.steps = [2, 3].map(|count| Step { label: String::new(), op: pool(count) }).to_vec();
        let found = |outputs: &[u32]| {
            let batch = Batch {
                tokens: &[0; 4],
                positions: &[0, 1, 2, 3],
                sequence_of: &[0; 4],
                sequences: &sequences,
                outputs,
                ahead: &[],
                bulk_from: 4,
                inputs: &[],
                goal: Goal::Main,
            };
            let result = batch.check(&OPTIONS, &plan, 10);
            result.err().map(|error| error.to_string()).unwrap_or_default()
        };
        assert_eq!(found(&[0, 1]), "");
        assert_eq!(found(&[]), "");
        assert!(found(&[2]).contains("a mean of 3 rows begins with row 2 of 4"));
        assert!(found(&[0, u32::MAX]).contains("a mean"));
    }

    #[test]
    fn a_series_has_room_for_all_its_steps() {
        // Three rows, then one.
        let sequences =
            [SequenceView { slot: 0, blocks: &[0, 1] }, SequenceView { slot: 1, blocks: &[2] }];
        let good = Batch {
            tokens: &[1; 4],
            positions: &[35, 36, 37, 30],
            sequence_of: &[0, 0, 0, 1],
            sequences: &sequences,
            outputs: &[2, 3],
            ahead: &[],
            bulk_from: 4,
            inputs: &[],
            goal: Goal::Main,
        };
        let found = |batch: Batch<'_>, more: usize| {
            batch.check(&OPTIONS, &plan(&[]), 10).unwrap();
            let result = batch.check_series(&OPTIONS, &plan(&[]), more);
            result.err().map(|error| error.to_string()).unwrap_or_default()
        };
        assert_eq!(found(good, 0), "");
        assert_eq!(found(good, 1), "");
        let lone = Batch { positions: &[0, 1, 2, 30], ..good };
        for (batch, more, mark) in [
            (good, 2, "5 rows of a sequence in a series, at most 4"),
            (good, usize::MAX, "at most 4"),
            (lone, 2, "at most 4"),
            (Batch { positions: &[37, 38, 39, 0], ..good }, 1, "position 41, the context is 40"),
            (Batch { positions: &[0, 1, 2, 31], ..good }, 1, "blocks for 32 of a series' 33"),
            (Batch { outputs: &[2], ..good }, 0, "other rows than each sequence's last"),
            (Batch { outputs: &[1, 3], ..good }, 0, "other rows"),
            (Batch { outputs: &[], ..good }, 0, "other rows"),
            (
                Batch { outputs: &[0, 2], sequence_of: &[0; 4], positions: &[0, 1, 2, 3], ..good },
                0,
                "other rows",
            ),
        ] {
            let what = found(batch, more);
            assert!(what.contains(mark), "{more} more: {what}");
        }
        let goal = Batch { goal: Goal::States, outputs: &[], ..good };
        let error = goal.check_series(&OPTIONS, &plan(&[]), 0).unwrap_err().to_string();
        assert!(error.contains("goal States"), "{error}");
    }

    #[test]
    fn rows_see_ahead_within_their_sequence() {
        let sequences = [0, 1].map(|slot| SequenceView { slot, blocks: &[0] });
        let found = |ahead: &[u32]| {
            let batch = Batch {
                tokens: &[1; 4],
                positions: &[0, 1, 2, 7],
                sequence_of: &[0, 0, 0, 1],
                sequences: &sequences,
                ahead,
                outputs: &[3],
                bulk_from: 4,
                inputs: &[],
                goal: Goal::Main,
            };
            let result = batch.check(&OPTIONS, &plan(&[]), 10);
            result.err().map(|error| error.to_string()).unwrap_or_default()
        };
        for good in [&[][..], &[0; 4], &[2, 1, 0, 0], &[0, 1, 0, 0], &[1, 1, 0, 0]] {
            assert_eq!(found(good), "", "{good:?}");
        }
        for (bad, mark) in [
            (&[0; 3][..], "3 of 4 rows"),
            (&[3, 2, 1, 0], "row 0 sees 3 rows ahead, its sequence has 2"),
            (&[0, 0, 1, 0], "row 2 sees 1 rows ahead"),
            (&[0, 0, 0, 1], "row 3 sees 1 rows ahead, its sequence has 0"),
            (&[2, 0, 0, 0], "row 1 sees less far"),
            (&[u32::MAX, 0, 0, 0], "rows ahead"),
        ] {
            assert!(found(bad).contains(mark), "{bad:?}: {}", found(bad));
        }
    }

    #[test]
    fn every_rule_of_a_batch_is_checked() {
        let good = [(1, 38, 0), (9, 39, 0), (2, 0, 1)];
        assert_eq!(complaint(&good, [0, 1], &[0, 2]), None);
        type Case<'a> = (&'a [(u32, u32, u32)], [u32; 2], &'a [u32], &'a str);
        let cases: [Case<'_>; 12] = [
            (&[], [0, 1], &[], "0 rows"),
            (&[(1, 0, 0), (1, 1, 0), (1, 2, 0), (1, 3, 0), (1, 4, 0)], [0, 1], &[], "5 rows"),
            (&[(10, 0, 0)], [0, 1], &[], "token id 10"),
            (&good, [0, 0], &[], "share slot 0"),
            (&good, [0, 2], &[], "slot 2 of 2"),
            (&[(1, 0, 0), (1, 0, 1), (1, 1, 0)], [0, 1], &[], "do not stand together"),
            (&[(1, 0, 2)], [0, 1], &[], "sequence 2; the batch has none"),
            (&[(1, 3, 0), (1, 5, 0)], [0, 1], &[], "not consecutive"),
            (&[(1, 40, 0)], [0, 1], &[], "beyond the context"),
            (&[(1, 32, 1)], [0, 1], &[], "has blocks for 32 of 33"),
            (&good, [0, 1], &[2, 0], "ascending"),
            (&good, [0, 1], &[0, 3], "within the batch"),
        ];
        for (rows, slots, outputs, mark) in cases {
            let found = complaint(rows, slots, outputs).unwrap_or_default();
            assert!(found.contains(mark), "{rows:?} {slots:?} {outputs:?}: {found:?}");
        }
    }
}
