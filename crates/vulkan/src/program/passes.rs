//! The passes that a Program records: widths, and how attention goes through the rows.

use trine_backend::{BULK_ROWS, ProgramOptions};
use trine_model::away::aways;
use trine_model::{Goal, Input, Plan, Rows, Source, Width, Workload};

/// Widths that passes are recorded for. A step takes the smallest that is large enough.
const LADDER: [usize; 15] = [1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512];

/// Most rows in a step that suit a device whose Programs are invariant, unless it runs a unit of
/// pictures: each step takes as long as one of this many rows, and kernels for few tokens take no
/// more rows than this.
pub const INVARIANT_ROWS: usize = 64;

/// Returns the most rows of a step that mixes sequences, in a Program of this width.
pub(super) fn most_mixed(width: usize, is_invariant: bool) -> usize {
    if is_invariant { width.min(INVARIANT_ROWS) } else { width }
}

/// What a recording is made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PassKey {
    pub(crate) width: Width,
    pub(crate) attended: Attended,
    /// Which of the Plan's goals it is for.
    pub(crate) goal: Goal,
}

impl PassKey {
    /// Returns the most work of a step in this pass: at the end of sequences as long as a Program
    /// with these options has room for.
    pub(super) fn workload(&self, options: &ProgramOptions) -> Workload {
        let Width { tokens, outputs } = self.width;
        let (sequences, tokens) = match self.attended {
            Attended::Sequences | Attended::Rows => (tokens, 1),
            Attended::Tiles => (1, tokens),
        };
        let context = options.context.saturating_sub(tokens);
        Workload { sequences, tokens, context, outputs, kv: options.kv }
    }
}

/// Returns whether a pass of a Plan is recorded twice, each time for other memory of the host's:
/// then a step in it can be written while another one runs. Those for pieces of prompts are, and
/// for the end of one. Where a guest takes part the host has no time for that, and a part of a
/// model has one step at a time: pieces follow one another from part to part.
pub(super) fn is_two_sided(plan: &Plan, key: &PassKey) -> bool {
    let Width { tokens, outputs } = key.width;
    let is_of_prompt = key.goal == Goal::Main && key.attended == Attended::Tiles;
    let is_wide = tokens > BULK_ROWS && outputs <= 1;
    is_of_prompt && is_wide && is_whole(plan) && aways(plan).is_empty()
}

/// Returns whether a Plan takes tokens and gives logits: it has the first and the last layer.
fn is_whole(plan: &Plan) -> bool {
    let begins = |input: &Input| !matches!(input.source, Source::Part | Source::Picture);
    plan.inputs.iter().all(begins) && plan.output(0).rows == Rows::Outputs
}

/// How attention goes through the rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Attended {
    /// One by one; each is of another sequence, so attention can do a row's work on the heads
    /// itself.
    Sequences,
    /// One by one; several may be of one sequence.
    Rows,
    /// In tiles of neighbouring rows.
    Tiles,
}

/// Returns what a Program is recorded for: each number of rows of the ladder up to its widest step,
/// with no logits, with those of one row, of some, and of all. Passes of one width are neighbours.
///
/// A Program that has to be invariant has only one rung for rows of several sequences: each kernel
/// treats all rows of its launch alike, but kernels for other widths add in another order. For the
/// same reason rows are attended to one by one, not together with their neighbours. Its other rungs
/// are for units of pictures, each of which has a step for itself: the request decides how many
/// rows that has.
///
/// A Plan for pictures has one pass: each step is a picture.
pub(crate) fn pass_keys(plan: &Plan, options: &ProgramOptions, is_invariant: bool) -> Vec<PassKey> {
    if plan.is_of_picture() {
        let lone = options.width.tokens == 1;
        let attended =
            if lone { Attended::Sequences } else { Attended::of_mixed(options.width.tokens) };
        return vec![PassKey { width: options.width, attended, goal: Goal::Main }];
    }
    let keys = |goal: Goal| {
        // A goal with a row for each token has no outputs.
        let has_outputs = plan.output(plan.outputs_for(goal).start).rows == Rows::Outputs;
        let outputs = if goal == Goal::Main || has_outputs { options.width.outputs } else { 0 };
        // A guess is made for each row.
        let is_draft = goal == Goal::Draft;
        let tokens = if is_draft { outputs } else { options.width.tokens };
        let options = ProgramOptions { width: Width { tokens, outputs }, ..*options };
        let keys = keys_of_goal(&options, is_invariant);
        keys.into_iter().map(move |key| PassKey { goal, ..key })
    };
    plan.goals().into_iter().flat_map(keys).collect()
}

fn keys_of_goal(options: &ProgramOptions, is_invariant: bool) -> Vec<PassKey> {
    let Width { tokens: widest, outputs: most_outputs } = options.width;
    let goal = Goal::Main;
    let rungs = |most: usize| {
        let below = LADDER.into_iter().filter(move |&rung| rung < most);
        let above = (LADDER[LADDER.len() - 1]..most).step_by(256).skip(1);
        below.chain(above).chain([most])
    };
    if is_invariant {
        let least = most_mixed(widest, true);
        let key = |tokens: usize| {
            let most = tokens.min(most_outputs);
            let outputs = if most > 0 { vec![0, most] } else { vec![0] };
            outputs.into_iter().map(move |outputs| PassKey {
                width: Width { tokens, outputs },
                attended: Attended::Rows,
                goal,
            })
        };
        return rungs(widest).filter(|&tokens| tokens >= least).flat_map(key).collect();
    }
    // No step has more rows of different sequences than the Program has sequences.
    let lone = rungs(widest).find(|&rung| rung >= options.sequences).unwrap_or(widest);
    let mut keys = Vec::new();
    for tokens in rungs(widest) {
        let most = tokens.min(most_outputs);
        let mut outputs = vec![0, 1.min(most), most];
        outputs.extend([8, 32].into_iter().filter(|&some| some < most));
        outputs.sort_unstable();
        outputs.dedup();
        for outputs in outputs {
            let width = Width { tokens, outputs };
            if tokens <= lone {
                keys.push(PassKey { width, attended: Attended::Sequences, goal });
            }
            if tokens > 1 {
                keys.push(PassKey { width, attended: Attended::of_mixed(tokens), goal });
            }
        }
    }
    keys
}

/// This few rows are always attended to one by one.
const BY_ROWS_ALWAYS: usize = 8;

impl Attended {
    /// Returns what suits `rows` rows of which several may be of one sequence.
    fn of_mixed(rows: usize) -> Self {
        if rows <= BY_ROWS_ALWAYS { Attended::Rows } else { Attended::Tiles }
    }
}

/// Returns the index of the smallest of some passes for a goal that these numbers of rows and
/// outputs fit into. `lone` says that each row is of another sequence.
pub(super) fn least(
    keys: impl Iterator<Item = PassKey>,
    rows: usize,
    outputs: usize,
    lone: bool,
    goal: Goal,
) -> Option<usize> {
    let fits = |key: &PassKey| {
        let suits = lone || key.attended != Attended::Sequences;
        let fits = key.width.tokens >= rows && key.width.outputs >= outputs;
        suits && fits && key.goal == goal
    };
    let order = |key: &PassKey| {
        let Width { tokens, outputs } = key.width;
        (tokens, outputs, key.attended != Attended::Sequences)
    };
    let fitting = keys.enumerate().filter(|(_, key)| fits(key));
    fitting.min_by_key(|(_, key)| order(key)).map(|(index, _)| index)
}

/// Returns the passes whose products a survey sees, with their indices: those of one row first,
/// then those of the longest prompts, which are `most` rows long. How attention works makes no
/// difference to products: one pass of each width shows them all.
pub(super) fn survey_order(
    passes: impl Iterator<Item = (PassKey, Option<usize>)>,
    most: usize,
) -> Vec<(usize, (PassKey, Option<usize>))> {
    let mut order: Vec<_> = passes.enumerate().collect();
    order.dedup_by_key(|(_, (key, exact))| (key.width, key.goal, *exact));
    order.sort_by_key(|(_, (key, _))| {
        let tokens = key.width.tokens;
        (tokens > 1, tokens < most, tokens)
    });
    order
}

#[cfg(test)]
mod tests {
    use trine_model::{Buffer, BufferId, KvType, Op, Step, WeightId};

    use super::*;

    #[test]
    fn an_invariant_program_has_one_rung_for_rows_of_several_sequences() {
        for tokens in [1, 5, 64] {
            let width = Width { tokens, outputs: tokens.min(8) };
            let options =
                ProgramOptions { width, kv: KvType::F16, context: 1024, sequences: 8, blocks: 32 };
            let keys = keys_of_goal(&options, true);
            assert!(keys.iter().all(|key| key.width.tokens == tokens), "{keys:?}");
            for (rows, outputs) in [(1, 0), (1, 1), (tokens, width.outputs)] {
                for lone in [false, true] {
                    let found = least(keys.iter().copied(), rows, outputs, lone, Goal::Main)
                        .expect("a pass");
                    let expected = if outputs == 0 { 0 } else { width.outputs };
                    assert_eq!(keys[found].width.outputs, expected);
                }
            }
        }
    }

    /// Steps of up to 64 rows have one rung, also in a Program that is wider for pictures.
    #[test]
    fn units_of_pictures_have_rungs_of_their_own() {
        let width = Width { tokens: 512, outputs: 100 };
        let options =
            ProgramOptions { width, kv: KvType::F16, context: 1024, sequences: 8, blocks: 32 };
        let keys = keys_of_goal(&options, true);
        assert!(keys.iter().all(|key| key.attended == Attended::Rows));
        let found = |rows: usize, outputs: usize| {
            let found =
                least(keys.iter().copied(), rows, outputs, false, Goal::Main).expect("a pass");
            keys[found].width
        };
        for rows in 1..=64 {
            assert_eq!(found(rows, 0), Width { tokens: 64, outputs: 0 });
            assert_eq!(found(rows, rows), Width { tokens: 64, outputs: 64 });
        }
        assert_eq!(found(65, 0), Width { tokens: 96, outputs: 0 });
        assert_eq!(found(256, 0), Width { tokens: 256, outputs: 0 });
        assert_eq!(found(512, 1), Width { tokens: 512, outputs: 100 });
    }

    #[test]
    fn a_picture_has_one_pass() {
        for (tokens, attended) in
            [(1, Attended::Sequences), (4, Attended::Rows), (4096, Attended::Tiles)]
        {
            let width = Width { tokens, outputs: tokens.div_ceil(16) };
            let options = ProgramOptions {
                width,
                kv: KvType::F16,
                context: tokens,
                sequences: 1,
                blocks: tokens.div_ceil(32),
            };
            let rows = |rows, columns| Buffer { name: "rows".to_owned(), rows, columns };
            let op = Op::Pool { input: BufferId(0), count: 16, output: BufferId(1) };
            let plan = Plan {
                buffers: vec![rows(Rows::Tokens, 8), rows(Rows::Outputs, 8)],
                weights: Vec::new(),
                caches: Vec::new(),
                steps: vec![Step { label: "pool".to_owned(), op }],
                inputs: vec![Input { buffer: BufferId(0), source: Source::Picture }],
                outputs: vec![BufferId(1)],
                ends: Vec::new(),
            };
            for is_invariant in [false, true] {
                let keys = pass_keys(&plan, &options, is_invariant);
                assert_eq!(keys, [PassKey { width, attended, goal: Goal::Main }]);
            }
        }
    }

    /// Parts of a model have one step at a time each.
    #[test]
    fn wide_passes_of_whole_models_have_two_sides() {
        let key = |tokens, outputs| PassKey {
            width: Width { tokens, outputs },
            attended: Attended::Tiles,
            goal: Goal::Main,
        };
        let table = Source::Table { table: WeightId(0), scale: 1.0 };
        for (source, rows, is_whole) in [
            (table, Rows::Outputs, true),
            (table, Rows::Tokens, false),
            (Source::Part, Rows::Tokens, false),
            (Source::Part, Rows::Outputs, false),
        ] {
            let buffer = |rows| Buffer { name: "rows".to_owned(), rows, columns: 8 };
            let plan = Plan {
                buffers: vec![buffer(Rows::Tokens), buffer(rows)],
                weights: Vec::new(),
                caches: Vec::new(),
                steps: Vec::new(),
                inputs: vec![Input { buffer: BufferId(0), source }],
                outputs: vec![BufferId(1)],
                ends: Vec::new(),
            };
            assert_eq!(is_two_sided(&plan, &key(96, 1)), is_whole, "{source:?} {rows:?}");
            assert!(!is_two_sided(&plan, &key(64, 0)) && !is_two_sided(&plan, &key(96, 2)));
        }
    }

    #[test]
    fn every_step_finds_a_pass() {
        for (tokens, outputs, sequences) in
            [(1, 1, 1), (3, 3, 4), (8, 8, 2), (40, 12, 3), (512, 32, 32), (700, 1, 1), (64, 64, 64)]
        {
            let width = Width { tokens, outputs };
            let options =
                ProgramOptions { width, kv: KvType::F16, context: 1024, sequences, blocks: 32 };
            let keys = keys_of_goal(&options, false);
            for rows in 1..=tokens {
                for outputs in 0..=outputs.min(rows) {
                    for lone in [false, true] {
                        if (lone && rows > sequences) || (!lone && rows == 1) {
                            continue;
                        }
                        let found = least(keys.iter().copied(), rows, outputs, lone, Goal::Main);
                        let key = keys[found.expect("there is a pass")];
                        assert!(key.width.tokens >= rows && key.width.outputs >= outputs);
                        assert_eq!(key.attended == Attended::Sequences, lone, "{key:?} {rows}");
                        let near = rows <= 8 || key.attended != Attended::Rows;
                        assert!(near && key.width.tokens <= tokens, "{key:?} for {rows} rows");
                    }
                }
            }
            let lone = keys.iter().filter(|key| key.attended == Attended::Sequences);
            let widest = lone.map(|key| key.width.tokens).max().unwrap();
            assert!(widest == 1 || widest / 2 < sequences.min(tokens), "{widest} rows");
        }
    }
}
