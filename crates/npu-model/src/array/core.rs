//! A core: memory with DMA, a port for words, and a program that is modelled by what it does.

use super::engine::Problem;
use super::node::Node;
use super::overlay::{Buffers, Overlay};

/// A core and what its program can reach.
#[derive(Debug)]
pub(super) struct Core {
    /// Memory, locks and DMA.
    pub(super) node: Node,
    /// Words that have come over the port and were not read.
    pub(super) port: Vec<u32>,
    /// Sums on their way to the core below.
    pub(super) cascade: Option<Vec<i32>>,
}

impl Core {
    pub(super) fn new(node: Node) -> Self {
        Self { node, port: Vec::new(), cascade: None }
    }
}

/// What a core's program does.
pub(super) trait Kernel: Send {
    /// Returns how many words it would take from its port now.
    fn wanted(&self, core: &Core) -> usize;

    /// Does the next thing that it can, and returns whether it did something. `cores` are those of
    /// the column, of which the one at `index` is its own.
    fn step(&mut self, cores: &mut [Core], index: usize) -> Result<bool, Problem>;
}

/// Where a program is in its core's memory.
#[derive(Debug, Clone)]
pub(super) struct Memory {
    pub(super) activations: Turns,
    pub(super) weights: Turns,
    pub(super) results: Turns,
    /// Whether a bit of the first element of each block that it writes is another.
    pub(super) is_faulty: bool,
}

impl Memory {
    pub(super) fn new(overlay: &Overlay, is_faulty: bool) -> Self {
        Self {
            activations: Turns::new(&overlay.activations),
            weights: Turns::new(&overlay.weights),
            results: Turns::new(&overlay.results),
            is_faulty,
        }
    }
}

/// A program's place in the buffers that a channel of its core works through.
#[derive(Debug, Clone)]
pub(super) struct Turns {
    buffers: Buffers,
    turn: usize,
}

impl Turns {
    pub(super) fn new(buffers: &Buffers) -> Self {
        Self { buffers: buffers.clone(), turn: 0 }
    }

    /// Takes the next full buffer, and returns where it begins and its words, if there is one.
    pub(super) fn full(&mut self, node: &mut Node) -> Option<std::ops::Range<usize>> {
        let full = self.buffers.full;
        node.acquire(full).then(|| self.next())
    }

    /// Takes the next free buffer, and returns where it begins and its words, if there is one.
    pub(super) fn free(&mut self, node: &mut Node) -> Option<std::ops::Range<usize>> {
        let free = self.buffers.free;
        node.acquire(free).then(|| self.next())
    }

    /// Says that a buffer was read.
    pub(super) fn release_free(&self, node: &mut Node) -> Result<(), Problem> {
        node.release(self.buffers.free)
    }

    /// Says that a buffer was written.
    pub(super) fn release_full(&self, node: &mut Node) -> Result<(), Problem> {
        node.release(self.buffers.full)
    }

    fn next(&mut self) -> std::ops::Range<usize> {
        let start = self.buffers.starts[self.turn] as usize / 4;
        self.turn = (self.turn + 1) % self.buffers.starts.len();
        start..start + self.buffers.words as usize
    }
}
