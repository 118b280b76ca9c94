//! The rows of a step, in the form that the device takes.

use std::ops::Range;

use trine_backend::sampling::{Candidate, Draw, Drawn, NoToken, first_in_rank};
use trine_backend::{
    BackendError, Batch, Facts, InFlight, Program, Results, SequenceView, TopLogit,
};
use trine_model::{Goal, Plan};

/// The buffers of a step's [`Batch`].
#[derive(Default)]
pub(crate) struct BatchBuffers {
    tokens: Vec<u32>,
    positions: Vec<u32>,
    sequence_of: Vec<u32>,
    outputs: Vec<u32>,
    /// What rows see ahead; shorter than the rows if the last ones see nothing there.
    ahead: Vec<u32>,
    /// Rows of soft tokens, in the order of their places: (soft rows, hidden).
    soft: Vec<f32>,
    /// The first of the bulk rows.
    bulk_from: usize,
    /// Empty between steps; kept for its memory.
    views: Vec<SequenceView<'static>>,
}

impl BatchBuffers {
    /// Creates buffers that need not grow for steps of these numbers of rows, outputs and
    /// sequences.
    pub(crate) fn new(tokens: usize, outputs: usize, sequences: usize) -> Self {
        Self {
            tokens: Vec::with_capacity(tokens),
            positions: Vec::with_capacity(tokens),
            sequence_of: Vec::with_capacity(tokens),
            outputs: Vec::with_capacity(outputs),
            ahead: Vec::new(),
            soft: Vec::new(),
            bulk_from: 0,
            views: Vec::with_capacity(sequences),
        }
    }

    pub(crate) fn clear(&mut self) {
        self.tokens.clear();
        self.positions.clear();
        self.sequence_of.clear();
        self.outputs.clear();
        self.ahead.clear();
        self.soft.clear();
        self.bulk_from = 0;
    }

    /// Adds rows of the sequence with this index in the step, from position `first` on: rows of
    /// known tokens, then rows of guesses. The last `outputs` of them give logits. Bulk rows must
    /// come after all others.
    pub(crate) fn push(
        &mut self,
        index: u32,
        [known, guesses]: [&[u32]; 2],
        first: usize,
        outputs: usize,
        is_bulk: bool,
    ) {
        let rows = known.len() + guesses.len();
        assert!(outputs <= rows, "{outputs} outputs of {rows} rows");
        let is_in_order = is_bulk || self.bulk_from == self.tokens.len();
        assert!(is_in_order, "rows of several precisions are mixed");
        self.tokens.extend_from_slice(known);
        self.tokens.extend_from_slice(guesses);
        self.positions.extend((first..first + rows).map(|position| position as u32));
        self.sequence_of.extend(std::iter::repeat_n(index, rows));
        let end = self.tokens.len();
        self.outputs.extend((end - outputs..end).map(|row| row as u32));
        if !is_bulk {
            self.bulk_from = end;
        }
    }

    /// Returns the number of rows.
    pub(crate) fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Lets rows that were added see one another.
    pub(crate) fn see_ahead(&mut self, rows: Range<usize>) {
        assert!(self.ahead.len() <= rows.start, "images come in the order of their rows");
        assert!(rows.end <= self.tokens.len(), "an image's rows were not added");
        self.ahead.resize(rows.start, 0);
        self.ahead.extend((0..rows.len() as u32).rev());
    }

    /// Adds rows of soft tokens, (soft rows, hidden), for the next of their places.
    pub(crate) fn push_soft(&mut self, rows: &[f32]) {
        self.soft.extend_from_slice(rows);
    }

    /// Submits the rows. `views` says where their sequences keep keys and values, `goal` what
    /// is computed.
    pub(crate) fn submit<'views>(
        &mut self,
        program: &mut dyn Program,
        views: impl Iterator<Item = SequenceView<'views>>,
        goal: Goal,
    ) -> Result<InFlight, BackendError> {
        self.submit_with(program, views, goal, &[])
    }

    /// Does the same with rows of the Plan's inputs for the goal, without rows of soft tokens.
    pub(crate) fn submit_with<'views>(
        &mut self,
        program: &mut dyn Program,
        views: impl Iterator<Item = SequenceView<'views>>,
        goal: Goal,
        inputs: &[&[f32]],
    ) -> Result<InFlight, BackendError> {
        let places = soft_places(program, goal);
        self.with_batch(views, (goal, places), inputs, |batch| program.submit(batch))
    }

    /// Submits the rows as the first step of a series for a goal that `more` steps follow.
    pub(crate) fn submit_series<'views>(
        &mut self,
        program: &mut dyn Program,
        views: impl Iterator<Item = SequenceView<'views>>,
        (goal, more): (Goal, usize),
        inputs: &[&[f32]],
    ) -> Result<InFlight, BackendError> {
        let places = soft_places(program, goal);
        self.with_batch(views, (goal, places), inputs, |batch| program.submit_series(batch, more))
    }

    fn with_batch<'views>(
        &mut self,
        views: impl Iterator<Item = SequenceView<'views>>,
        (goal, soft_places): (Goal, u32),
        inputs: &[&[f32]],
        submit: impl FnOnce(&Batch<'_>) -> Result<InFlight, BackendError>,
    ) -> Result<InFlight, BackendError> {
        let mut sequences = recycle(std::mem::take(&mut self.views));
        sequences.extend(views);
        if !self.ahead.is_empty() {
            self.ahead.resize(self.tokens.len(), 0);
        }
        let mut all = [&[][..]; INPUTS_MAX];
        let mut others = inputs.iter();
        let mut count = 0;
        for (place, input) in all.iter_mut().enumerate() {
            let own = if soft_places >> place & 1 == 1 {
                Some(&self.soft[..])
            } else {
                others.next().copied()
            };
            let Some(own) = own else { break };
            *input = own;
            count += 1;
        }
        assert!(others.next().is_none(), "a step has at most {INPUTS_MAX} inputs");
        let batch = Batch {
            tokens: &self.tokens,
            positions: &self.positions,
            sequence_of: &self.sequence_of,
            sequences: &sequences,
            outputs: &self.outputs,
            ahead: &self.ahead,
            bulk_from: self.bulk_from,
            inputs: &all[..count],
            goal,
        };
        let step = submit(&batch);
        self.views = recycle(sequences);
        step
    }
}

/// The most inputs that come with a step.
const INPUTS_MAX: usize = 4;

/// Returns the columns of the rows of soft tokens that steps for the main goal are given; `None`
/// if they are given none.
pub(crate) fn soft_columns(plan: &Plan) -> Option<usize> {
    let soft = plan.given_for(Goal::Main).map(|id| plan.buffer(id));
    soft.filter(|buffer| buffer.rows == trine_model::Rows::Soft).map(|buffer| buffer.columns).next()
}

/// Returns which of the inputs that come with a step for a goal are rows of soft tokens: bit `i`
/// for input `i`.
fn soft_places(program: &dyn Program, goal: Goal) -> u32 {
    let plan = &program.facts().plan;
    let is_soft = |id| plan.buffer(id).rows == trine_model::Rows::Soft;
    let places = plan.given_for(goal).take(INPUTS_MAX).enumerate();
    places.filter(|(_, id)| is_soft(*id)).map(|(place, _)| 1 << place).sum()
}

/// Waits for a step. `states` gets the hidden states that the logits are made of, (outputs,
/// hidden).
pub(crate) fn wait<'a>(
    program: &'a mut dyn Program,
    step: InFlight,
    states: Option<&mut Vec<f32>>,
) -> Result<StepLogits<'a>, BackendError> {
    wait_and_draw(program, step, states, (&[], &mut Vec::new()))
}

/// Waits for a step, as [`wait`] does, and appends what is drawn from its rows.
pub(crate) fn wait_and_draw<'a>(
    program: &'a mut dyn Program,
    step: InFlight,
    states: Option<&mut Vec<f32>>,
    (draws, drawn): (&[Draw], &mut Vec<Result<Drawn, NoToken>>),
) -> Result<StepLogits<'a>, BackendError> {
    let Facts { plan, finds_top, .. } = program.facts();
    let (vocabulary, finds_top) = (plan.output(0).columns, *finds_top);
    let results = program.wait_and_draw(step, draws, drawn)?;
    if let Some(states) = states {
        states.clear();
        states.extend_from_slice(results.output(1)?);
    }
    Ok(StepLogits { results, output: 0, vocabulary, finds_top })
}

/// Waits for a step that computes the hidden states of all its rows: (tokens, hidden).
pub(crate) fn wait_for_states(
    program: &mut dyn Program,
    step: InFlight,
) -> Result<&[f32], BackendError> {
    let output = program.facts().plan.outputs_for(Goal::States).start;
    program.wait(step)?.output(output)
}

/// The logits of a step's output rows.
pub(crate) struct StepLogits<'a> {
    results: &'a mut dyn Results,
    /// The output of the Plan that they are.
    output: usize,
    vocabulary: usize,
    /// Whether the device finds the largest of a row.
    finds_top: bool,
}

impl<'a> StepLogits<'a> {
    /// Reads an output of a step that was waited for. `finds_top` is that of the Program's facts.
    pub(crate) fn new(
        results: &'a mut dyn Results,
        (output, vocabulary): (usize, usize),
        finds_top: bool,
    ) -> Self {
        Self { results, output, vocabulary, finds_top }
    }

    /// Brings all logits of rows to the host that will be asked for one by one.
    pub(crate) fn fetch(&mut self, rows: &[u32]) -> Result<(), BackendError> {
        if rows.is_empty() {
            return Ok(());
        }
        let part = |row: &u32| self.values(*row as usize);
        let parts: Vec<_> = rows.iter().map(part).collect();
        self.results.fetch(self.output, &parts)
    }

    /// Returns all logits of a row: (vocabulary).
    pub(crate) fn all(&mut self, row: usize) -> Result<&[f32], BackendError> {
        let values = self.values(row);
        self.results.part(self.output, values)
    }

    /// Draws from rows, as [`Results::draw`] does.
    pub(crate) fn draw(
        &mut self,
        draws: &[Draw],
        drawn: &mut Vec<Result<Drawn, NoToken>>,
    ) -> Result<(), BackendError> {
        self.results.draw(self.output, self.vocabulary, draws, drawn)
    }

    /// Draws from one row.
    pub(crate) fn draw_one(&mut self, draw: &Draw) -> Result<Result<Drawn, NoToken>, BackendError> {
        let mut drawn = Vec::with_capacity(1);
        self.draw(std::slice::from_ref(draw), &mut drawn)?;
        Ok(drawn.pop().unwrap_or(Err(NoToken::NothingAllowed)))
    }

    /// Returns the first in rank of a row, at most `count`, which is at most
    /// [`TOP`](trine_backend::TOP).
    pub(crate) fn first_in_rank(
        &mut self,
        row: usize,
        count: usize,
    ) -> Result<Vec<Candidate>, BackendError> {
        if count == 0 {
            return Ok(Vec::new());
        }
        if !self.finds_top {
            return Ok(first_in_rank(self.all(row)?, count));
        }
        let top = self.results.top(row)?.iter();
        let mut first: Vec<_> = top.map(|top| Candidate::new(top.token, top.logit)).collect();
        if count < first.len() {
            first.select_nth_unstable_by(count, Candidate::rank);
            first.truncate(count);
        }
        first.sort_unstable_by(Candidate::rank);
        Ok(first)
    }

    /// Returns the largest logits of a row, as [`Results::top`] does; `None` if the device does not
    /// find them.
    pub(crate) fn top(&mut self, row: usize) -> Result<Option<&[TopLogit]>, BackendError> {
        if !self.finds_top {
            return Ok(None);
        }
        self.results.top(row).map(Some)
    }

    /// Returns the size of the vocabulary.
    pub(crate) fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    /// Returns where the logits of a row are in the output.
    fn values(&self, row: usize) -> Range<usize> {
        row * self.vocabulary..(row + 1) * self.vocabulary
    }
}

/// Empties a list and changes the lifetime of its elements. The standard library keeps its memory,
/// because both types have the same layout.
fn recycle<'to>(mut views: Vec<SequenceView<'_>>) -> Vec<SequenceView<'to>> {
    views.clear();
    views.into_iter().map(|_| unreachable!("the list is empty")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recycled_list_keeps_its_memory() {
        let blocks = [1, 2];
        let mut views = Vec::with_capacity(5);
        views.push(SequenceView { slot: 0, blocks: &blocks });
        let before = views.as_ptr() as usize;
        let after: Vec<SequenceView<'static>> = recycle(views);
        assert!(after.is_empty());
        assert_eq!((after.capacity(), after.as_ptr() as usize), (5, before));
    }
}
