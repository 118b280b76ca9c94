//! Draws from the rows of a step where more is wanted of them than their largest logits: all that
//! are known while the step runs at once, and then all others.

use trine_backend::sampling::{Draw, Drawn, NoToken};
use trine_backend::{BackendError, InFlight, Program};

use crate::rows::{self, StepLogits};

/// What the logits of an output row are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RowUse {
    /// Nothing: the token after it is known and its log-probability not wanted.
    Nothing,
    /// The log-probability of this token of the prompt, which comes after it.
    Given(u32),
    /// The next token of the text.
    Next,
    /// The token after the guess of this index, which the row runs.
    AfterGuess(usize),
}

/// What is drawn from the rows of a step.
#[derive(Default)]
pub(super) struct Draws {
    /// What is wanted, and others that are kept for their memory.
    wanted: Vec<Draw>,
    /// The number of those that are wanted.
    count: usize,
    /// For each output row what it is for, and the index of what is wanted of it.
    rows: Vec<(RowUse, Option<usize>)>,
    /// What was drawn, of the first of those that are wanted.
    drawn: Vec<Result<Drawn, NoToken>>,
    /// A draw from a single row.
    single: Draw,
}

impl Draws {
    /// Begins a step.
    pub(super) fn begin(&mut self) {
        self.count = 0;
        self.rows.clear();
        self.drawn.clear();
    }

    /// Adds the next output row of the step.
    pub(super) fn add_row(&mut self, row: RowUse) {
        self.rows.push((row, None));
    }

    /// Returns what an output row is for.
    pub(super) fn use_of(&self, row: usize) -> RowUse {
        self.rows[row].0
    }

    /// Adds a draw from a row, which `write` writes unless it returns false. A row has one draw at
    /// most.
    pub(super) fn add(&mut self, row: usize, write: impl FnOnce(&mut Draw) -> bool) {
        if self.rows[row].1.is_some() {
            return;
        }
        if self.count == self.wanted.len() {
            self.wanted.push(Draw::default());
        }
        let draw = &mut self.wanted[self.count];
        clear(draw, row);
        if write(draw) {
            self.rows[row].1 = Some(self.count);
            self.count += 1;
        }
    }

    /// Waits for the step, as [`rows::wait`] does, and draws what is wanted.
    pub(super) fn wait<'a>(
        &mut self,
        program: &'a mut dyn Program,
        step: InFlight,
        states: Option<&mut Vec<f32>>,
    ) -> Result<StepLogits<'a>, BackendError> {
        let wanted = &self.wanted[..self.count];
        rows::wait_and_draw(program, step, states, (wanted, &mut self.drawn))
    }

    /// Draws what is wanted and was not drawn yet.
    pub(super) fn draw(&mut self, logits: &mut StepLogits<'_>) -> Result<(), BackendError> {
        match &self.wanted[self.drawn.len()..self.count] {
            [] => Ok(()),
            rest => logits.draw(rest, &mut self.drawn),
        }
    }

    /// Returns what was drawn from a row; `None` if nothing was wanted.
    pub(super) fn of(&self, row: usize) -> Option<Result<Drawn, NoToken>> {
        self.rows.get(row).and_then(|(_, at)| *at).map(|at| self.drawn[at])
    }

    /// Takes the memory for a draw from a single row, which is to be given back.
    pub(super) fn take_single(&mut self, row: usize) -> Draw {
        let mut draw = std::mem::take(&mut self.single);
        clear(&mut draw, row);
        draw
    }

    pub(super) fn give_back(&mut self, single: Draw) {
        self.single = single;
    }
}

fn clear(draw: &mut Draw, row: usize) {
    draw.row = row;
    draw.changes.clear();
    draw.allowed.clear();
    draw.given = None;
    draw.tells = false;
}
