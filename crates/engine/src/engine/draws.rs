//! Draws from the rows of a step where more is wanted of them than their largest logits: all that
//! are known while the step runs at once, and then all others.

use trine_backend::sampling::{Draw, Drawn, NoToken};
use trine_backend::{BackendError, InFlight, Program};

use crate::rows::{self, StepLogits};

/// What is drawn from the rows of a step.
#[derive(Default)]
pub(super) struct Draws {
    /// What is wanted, and others that are kept for their memory.
    wanted: Vec<Draw>,
    /// The number of those that are wanted.
    count: usize,
    /// The index of what is wanted of an output row.
    of_row: Vec<Option<usize>>,
    /// What was drawn, of the first of those that are wanted.
    drawn: Vec<Result<Drawn, NoToken>>,
    /// A draw from a single row.
    single: Draw,
}

impl Draws {
    /// Begins a step with a number of output rows.
    pub(super) fn begin(&mut self, outputs: usize) {
        self.count = 0;
        self.of_row.clear();
        self.of_row.resize(outputs, None);
        self.drawn.clear();
    }

    /// Adds a draw from a row, which `write` writes unless it says that there is none. A row from
    /// which one is wanted already has no other.
    pub(super) fn add(&mut self, row: usize, write: impl FnOnce(&mut Draw) -> bool) {
        if self.of_row[row].is_some() {
            return;
        }
        if self.count == self.wanted.len() {
            self.wanted.push(Draw::default());
        }
        let draw = &mut self.wanted[self.count];
        clear(draw, row);
        if write(draw) {
            self.of_row[row] = Some(self.count);
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
        self.of_row.get(row).copied().flatten().map(|at| self.drawn[at])
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
