//! What a core does under `a16fw4acc32f`: products of bf16 and weights in 4 bits, summed in f32.
//!
//! Each core makes its own columns of C. It takes its parameters as the first piece of A, then for
//! each block of C a sub-volume with the bias, and a piece of A for each further sub-volume of W.

use super::core::{Core, Kernel, Memory};
use super::engine::Problem;
use super::overlay::Overlay;
use trine_npu::layout::int4::{ROWS, SUBVOLUME_COLUMNS, to_f32, weight};

/// Columns of a block of C.
const COLUMNS: usize = SUBVOLUME_COLUMNS;
/// What the flipped bit of a core that errs is: of the exponent.
const FAULT: u32 = 1 << 30;

/// The kernel's parameters.
#[derive(Debug, Clone, Copy)]
struct Parameters {
    /// Blocks of C.
    blocks: u32,
    /// Sub-volumes of W for each.
    steps: u32,
    rows: usize,
    group: usize,
    /// Whether weights and zeros have a sign.
    is_signed: bool,
}

impl Parameters {
    /// Reads parameters, or returns `None` where the host's code makes no such.
    fn read(words: &[u32]) -> Option<Self> {
        let [blocks, steps, rows, group, sign] = words.first_chunk().copied()?;
        let (rows, group) = (rows as usize, group as usize);
        let is_known = blocks > 0
            && steps > 0
            && (1..=ROWS).contains(&rows)
            && [32, 128].contains(&group)
            && sign < 2;
        is_known.then_some(Self { blocks, steps, rows, group, is_signed: sign == 1 })
    }
}

/// What the core waits for.
#[derive(Debug)]
enum State {
    Parameters,
    Bias,
    Activations,
    /// A sub-volume of W; the range is the piece of A.
    Weights(std::ops::Range<usize>),
    /// Room for C.
    Result,
    /// Nothing: it got parameters that it has no meaning for.
    Lost,
}

/// A core's program.
pub(super) struct Int4 {
    state: State,
    memory: Memory,
    parameters: Parameters,
    /// Blocks that are to be made, and sub-volumes that are left for this one.
    blocks: u32,
    steps: u32,
    /// (rows, COLUMNS)
    sums: Vec<f32>,
}

impl Int4 {
    pub(super) fn new(overlay: &Overlay, is_faulty: bool) -> Self {
        Self {
            state: State::Parameters,
            memory: Memory::new(overlay, is_faulty),
            parameters: Parameters { blocks: 0, steps: 0, rows: 0, group: 0, is_signed: false },
            blocks: 0,
            steps: 0,
            sums: Vec::new(),
        }
    }

    fn begin_block(&mut self, bias: &[u32]) {
        let bias: Vec<f32> = halves(&bias[..COLUMNS / 2]).map(to_f32).collect();
        self.sums = bias.repeat(self.parameters.rows);
        self.steps = self.parameters.steps;
        self.state = State::Activations;
    }

    /// Adds the product of a piece of A, (rows, group), and a sub-volume of W.
    fn multiply(&mut self, activations: &[u32], weights: &[u32]) {
        let Parameters { rows, group, is_signed, .. } = self.parameters;
        let (zeros, rest) = weights.split_at(COLUMNS / 8);
        let (scales, values) = rest.split_at(COLUMNS / 2);
        let zeros: Vec<i8> = nibbles(zeros, is_signed).collect();
        let scales: Vec<u16> = halves(scales).collect();
        // What 4 bits of each column mean.
        let table: Vec<[f32; 16]> = zeros
            .iter()
            .zip(&scales)
            .map(|(zero, scale)| {
                std::array::from_fn(|bits| weight(number(bits as u32, is_signed), *zero, *scale))
            })
            .collect();
        let activations: Vec<f32> = halves(&activations[..rows * group / 2]).map(to_f32).collect();
        let mut row = [0.0; COLUMNS];
        for (inner, words) in values.chunks_exact(COLUMNS / 8).take(group).enumerate() {
            for (word, (row, table)) in
                words.iter().zip(row.chunks_exact_mut(8).zip(table.chunks_exact(8)))
            {
                for (at, (to, table)) in row.iter_mut().zip(table).enumerate() {
                    *to = table[(word >> (4 * at) & 15) as usize];
                }
            }
            let columns = activations.iter().skip(inner).step_by(group);
            for (sums, value) in self.sums.chunks_exact_mut(COLUMNS).zip(columns) {
                sums.iter_mut().zip(&row).for_each(|(sum, weight)| *sum += value * weight);
            }
        }
    }
}

/// Returns the numbers of 16 bits in words.
fn halves(words: &[u32]) -> impl Iterator<Item = u16> {
    words.iter().flat_map(|word| [*word as u16, (word >> 16) as u16])
}

/// Returns the numbers of 4 bits in words.
fn nibbles(words: &[u32], is_signed: bool) -> impl Iterator<Item = i8> {
    let of = move |word: u32| (0..8).map(move |at| number(word >> (4 * at) & 15, is_signed));
    words.iter().flat_map(move |word| of(*word))
}

/// Returns what 4 bits mean.
const fn number(bits: u32, is_signed: bool) -> i8 {
    if is_signed && bits > 7 { bits as i8 - 16 } else { bits as i8 }
}

impl Kernel for Int4 {
    fn wanted(&self, _core: &Core) -> usize {
        0
    }

    fn step(&mut self, cores: &mut [Core], index: usize) -> Result<bool, Problem> {
        let node = &mut cores[index].node;
        match &self.state {
            State::Lost => return Ok(false),
            State::Parameters => {
                let Some(range) = self.memory.activations.full(node) else { return Ok(false) };
                match Parameters::read(&node.data[range]) {
                    Some(parameters) => {
                        (self.parameters, self.blocks) = (parameters, parameters.blocks);
                        self.state = State::Bias;
                    }
                    None => self.state = State::Lost,
                }
                self.memory.activations.release_free(node)?;
            }
            State::Bias => {
                let Some(range) = self.memory.weights.full(node) else { return Ok(false) };
                self.begin_block(&node.data[range]);
                self.memory.weights.release_free(node)?;
            }
            State::Activations => {
                let Some(range) = self.memory.activations.full(node) else { return Ok(false) };
                self.state = State::Weights(range);
            }
            State::Weights(activations) => {
                let Some(weights) = self.memory.weights.full(node) else { return Ok(false) };
                let activations = activations.clone();
                self.multiply(&node.data[activations], &node.data[weights]);
                self.memory.activations.release_free(node)?;
                self.memory.weights.release_free(node)?;
                self.steps -= 1;
                self.state = if self.steps > 0 { State::Activations } else { State::Result };
            }
            State::Result => {
                let Some(range) = self.memory.results.free(node) else { return Ok(false) };
                for (word, sum) in node.data[range.clone()].iter_mut().zip(&self.sums) {
                    *word = sum.to_bits();
                }
                node.data[range.start] ^= if self.memory.is_faulty { FAULT } else { 0 };
                self.memory.results.release_full(node)?;
                self.blocks -= 1;
                self.state = if self.blocks > 0 { State::Bias } else { State::Parameters };
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signs_are_taken_from_the_parameters() {
        assert_eq!([number(15, false), number(15, true), number(7, true)], [15, -1, 7]);
        assert_eq!(nibbles(&[0x8000_00f1], true).collect::<Vec<_>>(), [1, -1, 0, 0, 0, 0, 0, -8]);
        assert!(Parameters::read(&[1, 2, 8, 32, 1]).is_some_and(|read| read.is_signed));
        for words in [[0, 2, 8, 32, 0], [1, 0, 8, 32, 0], [1, 2, 9, 32, 0], [1, 2, 8, 64, 0]] {
            assert!(Parameters::read(&words).is_none(), "{words:?}");
        }
    }
}
