//! Guesses of a model that reads the caches of the one it guesses for, one after the other.

use std::ops::ControlFlow;

use trine_backend::SequenceView;
use trine_model::Goal;

use super::precision::Precision;
use super::{Each, Engine};
use crate::error::EngineError;

/// A guess, and what it comes from.
#[derive(Debug, Clone, PartialEq)]
pub struct Guess {
    /// The token with the largest logit.
    pub token: u32,
    /// All logits.
    pub logits: Vec<f32>,
    /// The hidden state that takes the place of the model's own for the next guess.
    pub state: Vec<f32>,
}

impl Engine {
    /// Calls `each(position, logits)` for every position of `ids`, as [`Engine::logits`] does, then
    /// makes `count` guesses. The first follows the token with the largest logit at the last
    /// position, which is no guess itself.
    ///
    /// # Errors
    /// As [`Engine::logits`], and [`EngineError::BadOption`] if the Program has no draft.
    pub fn logits_and_guesses(
        &mut self,
        ids: &[u32],
        chunk: usize,
        count: usize,
        each: Each<'_>,
    ) -> Result<Vec<Guess>, EngineError> {
        if !self.program.facts().plan.has_goal(Goal::Draft) {
            return Err(EngineError::option("guesses", count, "a model with a draft"));
        }
        self.with_lease(ids, chunk, |engine, slot, rows| {
            match engine.run_all(slot, ids, rows, each)? {
                ControlFlow::Break(()) => Ok(Vec::new()),
                ControlFlow::Continue(()) => engine.guess_on(slot, count, ids),
            }
        })
    }

    /// Makes guesses after the tokens in a slot, of which the last is run again for its hidden
    /// state.
    fn guess_on(
        &mut self,
        slot: usize,
        count: usize,
        ids: &[u32],
    ) -> Result<Vec<Guess>, EngineError> {
        let Some((&last, before)) = ids.split_last() else { return Ok(Vec::new()) };
        let position = before.len();
        let is_bulk = Precision::of_prompt(1).is_bulk();
        let mut outputs = self.run_one(slot, (last, position, is_bulk), Goal::Main, &[])?;
        let mut token = largest(&outputs[0]);
        let mut state = outputs.swap_remove(1);
        let mut guesses = Vec::with_capacity(count);
        for _ in 0..count {
            let Some(before) = token else { break };
            let mut outputs =
                self.run_one(slot, (before, position, false), Goal::Draft, &[&state])?;
            token = largest(&outputs[0]);
            state.clone_from(&outputs[1]);
            let next = outputs.swap_remove(1);
            let logits = outputs.swap_remove(0);
            guesses.extend(token.map(|token| Guess { token, logits, state: next }));
        }
        Ok(guesses)
    }

    /// Runs a step of one row for a goal; its outputs.
    fn run_one(
        &mut self,
        slot: usize,
        (token, position, is_bulk): (u32, usize, bool),
        goal: Goal,
        inputs: &[&[f32]],
    ) -> Result<Vec<Vec<f32>>, EngineError> {
        self.rows.clear();
        self.rows.push(0, [&[token], &[]], position, 1, is_bulk);
        let view = SequenceView { slot: slot as u32, blocks: self.kv.blocks(slot) };
        let views = std::iter::once(view);
        let program = self.program.as_mut();
        let step = self.rows.submit_with(program, views, goal, inputs)?;
        let outputs = program.facts().plan.outputs_for(goal);
        let results = program.wait(step)?;
        let mut found = Vec::with_capacity(outputs.len());
        for index in outputs {
            found.push(results.output(index)?.to_vec());
        }
        Ok(found)
    }
}

/// Returns the token with the largest logit; of equal ones the first.
fn largest(logits: &[f32]) -> Option<u32> {
    let larger = |a: &usize, b: &usize| logits[*a].total_cmp(&logits[*b]).then(b.cmp(a));
    (0..logits.len()).max_by(larger).map(|token| token as u32)
}
