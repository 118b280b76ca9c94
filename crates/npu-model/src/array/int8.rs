//! What a core does under `a8w8acc32`: exact products of whole numbers.
//!
//! All four cores of a column work on the same columns of C, each on a quarter of K. Their sums
//! meet in the core of the lowest row, which writes them where the core above it sends from.

use super::core::{Core, Kernel, Memory};
use super::engine::Problem;
use super::overlay::Overlay;
use trine_npu::layout;

/// Rows of A, inner length and columns of W of one multiplication.
const ROWS: usize = 64;
const INNER: usize = 128;
const COLUMNS: usize = 64;
/// Columns of W and C that lie together, and elements of a row of A that do.
const STRIP: usize = 8;
/// Words of the parameters.
const PARAMETER_WORDS: usize = layout::PARAMETER_BYTES / 4;
/// The core above the one that writes C, whose memory C goes to.
const SENDER: usize = 1;

/// What the core waits for.
#[derive(Debug)]
enum State {
    /// Parameters.
    Parameters,
    /// A piece of A.
    Activations,
    /// A block of W; the range is the piece of A.
    Weights(std::ops::Range<usize>),
    /// The sums of the core above, and room for its own.
    Sums,
    /// Nothing: it got parameters that it has no meaning for.
    Lost,
}

/// A core's program.
pub(super) struct Int8 {
    state: State,
    memory: Memory,
    /// Blocks of C that are to be made, and multiplications for each.
    blocks: usize,
    steps: usize,
    /// Multiplications that were done for this block.
    done: usize,
    /// (ROWS, COLUMNS)
    sums: Vec<i32>,
}

impl Int8 {
    pub(super) fn new(overlay: &Overlay, is_faulty: bool) -> Self {
        Self {
            state: State::Parameters,
            memory: Memory::new(overlay, is_faulty),
            blocks: 0,
            steps: 0,
            done: 0,
            sums: vec![0; ROWS * COLUMNS],
        }
    }

    /// Reads the parameters: a list of instructions that is repeated for each block of C, and of
    /// which the second is repeated for all multiplications but the first and the last.
    fn read_parameters(&mut self, words: &[u32]) {
        let blocks = words[2] as u16;
        let inner = (words[18] >> 16) as u16;
        let (k, n) = ((usize::from(inner) + 2) * 4 * INNER, usize::from(blocks) * 4 * COLUMNS);
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        if blocks == 0 || bytes != layout::parameters(k, n) {
            self.state = State::Lost;
            return;
        }
        (self.blocks, self.steps) = (usize::from(blocks), usize::from(inner) + 2);
        self.state = State::Activations;
    }

    /// Adds the own sums to those of the core above, and passes them on. Returns false where one of
    /// the two is not possible yet.
    fn pass_on(&mut self, cores: &mut [Core], index: usize) -> Result<bool, Problem> {
        let is_first = index + 1 == cores.len();
        if !is_first && cores[index + 1].cascade.is_none() {
            return Ok(false);
        }
        if index > 0 {
            if cores[index].cascade.is_some() {
                return Ok(false);
            }
            let sums = self.finish(cores, index);
            cores[index].cascade = Some(sums);
            return Ok(true);
        }
        let Some(range) = self.memory.results.free(&mut cores[SENDER].node) else {
            return Ok(false);
        };
        let sums = self.finish(cores, index);
        let node = &mut cores[SENDER].node;
        let words = node.data[range].chunks_exact_mut(STRIP);
        for (at, words) in words.enumerate() {
            let (strip, row) = (at / ROWS, at % ROWS);
            let first = row * COLUMNS + strip * STRIP;
            for (word, sum) in words.iter_mut().zip(&sums[first..]) {
                *word = *sum as u32;
            }
        }
        self.memory.results.release_full(node)?;
        Ok(true)
    }

    /// Returns the sums with those of the core above, and begins new ones.
    fn finish(&mut self, cores: &mut [Core], index: usize) -> Vec<i32> {
        let above = cores.get_mut(index + 1).and_then(|core| core.cascade.take());
        let mut sums = std::mem::replace(&mut self.sums, vec![0; ROWS * COLUMNS]);
        for (sum, above) in sums.iter_mut().zip(above.unwrap_or_default()) {
            *sum = sum.wrapping_add(above);
        }
        sums[0] ^= i32::from(self.memory.is_faulty);
        self.done = 0;
        self.blocks -= 1;
        self.state = if self.blocks > 0 { State::Activations } else { State::Parameters };
        sums
    }
}

impl Kernel for Int8 {
    fn wanted(&self, core: &Core) -> usize {
        match self.state {
            State::Parameters => PARAMETER_WORDS - core.port.len(),
            _ => 0,
        }
    }

    fn step(&mut self, cores: &mut [Core], index: usize) -> Result<bool, Problem> {
        match &self.state {
            State::Parameters if cores[index].port.len() == PARAMETER_WORDS => {
                let words = std::mem::take(&mut cores[index].port);
                self.read_parameters(&words);
                Ok(true)
            }
            State::Parameters | State::Lost => Ok(false),
            State::Activations => {
                let range = self.memory.activations.full(&mut cores[index].node);
                let Some(range) = range else { return Ok(false) };
                self.state = State::Weights(range);
                Ok(true)
            }
            State::Weights(activations) => {
                let node = &mut cores[index].node;
                let Some(weights) = self.memory.weights.full(node) else { return Ok(false) };
                multiply(&node.data[activations.clone()], &node.data[weights], &mut self.sums);
                self.memory.activations.release_free(node)?;
                self.memory.weights.release_free(node)?;
                self.done += 1;
                self.state = if self.done < self.steps { State::Activations } else { State::Sums };
                Ok(true)
            }
            State::Sums => self.pass_on(cores, index),
        }
    }
}

/// Adds the product of a piece of A and a block of W to the sums.
///
/// A lies in strips of 8 elements of each row, W in strips of 8 columns of each row.
fn multiply(activations: &[u32], weights: &[u32], sums: &mut [i32]) {
    // Sums of 128 products of 7 bits each are whole numbers below 2^24: exact in f32.
    let mut rows = vec![0.0_f32; ROWS * INNER];
    let mut columns = vec![0.0_f32; INNER * COLUMNS];
    let bytes = |words: &[u32], at: usize| -> [i8; STRIP] {
        let [low, high] = [words[2 * at], words[2 * at + 1]].map(u32::to_le_bytes);
        std::array::from_fn(|byte| if byte < 4 { low[byte] } else { high[byte - 4] } as i8)
    };
    for at in 0..INNER / STRIP * ROWS {
        let (strip, row) = (at / ROWS, at % ROWS);
        let place = &mut rows[row * INNER + strip * STRIP..][..STRIP];
        place.iter_mut().zip(bytes(activations, at)).for_each(|(to, from)| *to = f32::from(from));
    }
    for at in 0..COLUMNS / STRIP * INNER {
        let (strip, row) = (at / INNER, at % INNER);
        let place = &mut columns[row * COLUMNS + strip * STRIP..][..STRIP];
        place.iter_mut().zip(bytes(weights, at)).for_each(|(to, from)| *to = f32::from(from));
    }
    /// Columns whose sums stay in registers.
    const WIDTH: usize = 32;
    for (values, sums) in rows.chunks_exact(INNER).zip(sums.chunks_exact_mut(COLUMNS)) {
        for (part, sums) in sums.chunks_exact_mut(WIDTH).enumerate() {
            let mut partial = [0.0_f32; WIDTH];
            for (value, row) in values.iter().zip(columns.chunks_exact(COLUMNS)) {
                let row = &row[part * WIDTH..][..WIDTH];
                partial.iter_mut().zip(row).for_each(|(sum, weight)| *sum += value * weight);
            }
            for (sum, partial) in sums.iter_mut().zip(partial) {
                *sum = sum.wrapping_add(partial as i32);
            }
        }
    }
}
