//! Draws from the rows of a step: all at once where more is wanted of rows than their largest
//! logits.

use trine_backend::BackendError;
use trine_backend::sampling::{Draw, Drawn, NoToken};

use crate::rows::StepLogits;

/// What is drawn from the rows of a step.
#[derive(Default)]
pub(super) struct Draws {
    /// What is wanted, and others that are kept for their memory.
    wanted: Vec<Draw>,
    /// The number of those that are wanted.
    count: usize,
    /// The index of what is wanted of an output row.
    of_row: Vec<Option<usize>>,
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

    /// Adds a draw from a row, which `write` writes unless it says that there is none.
    pub(super) fn add(&mut self, row: usize, write: impl FnOnce(&mut Draw) -> bool) {
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

    /// Draws what is wanted.
    pub(super) fn draw(&mut self, logits: &mut StepLogits<'_>) -> Result<(), BackendError> {
        if self.count == 0 {
            return Ok(());
        }
        logits.draw(&self.wanted[..self.count], &mut self.drawn)
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
