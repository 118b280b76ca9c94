//! What a Program keeps from step to step and lends to all threads of each.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use trine_backend::{Facts, Hosted, InputSums, Noted};
use trine_model::away::Away;
use trine_model::{BufferId, ExpertMatrix, Goal, Scratch, WeightId};
use trine_weights::Tensor;

use crate::attention::{AttentionScratch, LayerCache};
use crate::isa::Isa;
use crate::matmul::{MatrixSlice, PackedMatrix, Scratch as MatmulScratch};
use crate::vector::VectorKernels;

/// A tensor as the kernels use it.
pub(super) enum Loaded {
    /// A matrix; also the embedding table where the two are tied.
    Matrix(PackedMatrix),
    /// Matrices of experts.
    Experts(Vec<ExpertPart>),
    /// A norm's factors.
    Vector(Vec<f32>),
    /// A table of which single rows are read, where the file is mapped.
    Table(Tensor),
    /// Rows of another weight, which is a matrix.
    Slice { of: WeightId, rows: Range<usize> },
}

/// One of the matrices that each expert has in a weight.
pub(super) struct ExpertPart {
    /// The row at which the first expert's begins.
    pub(super) first: usize,
    /// The matrices of all experts.
    pub(super) matrices: Vec<PackedMatrix>,
}

/// One thread's own memory.
pub(super) struct ThreadState {
    pub(super) matmul: MatmulScratch,
    /// One for each [`AttentionKind`](super::layers::AttentionKind).
    pub(super) attention: Vec<AttentionScratch>,
    /// What the first term of a row leaves to the second.
    pub(super) residual: Vec<f32>,
    /// Products of both terms with a chunk of panels: (2 x rows, rows of the chunk).
    pub(super) terms: Vec<f32>,
}

/// What a step reads but never changes.
pub(super) struct Fixed {
    pub(super) facts: Facts,
    pub(super) isa: Isa,
    pub(super) kernels: VectorKernels,
    pub(super) scratch: Scratch,
    /// One for each weight of the Plan.
    pub(super) weights: Vec<Loaded>,
    /// What computes the bulk rows of the Plan's [`Op::Away`](trine_model::Op::Away).
    pub(super) guest: Option<Hosted>,
    pub(super) aways: Vec<Away>,
    /// One for each cache of the Plan.
    pub(super) caches: Vec<LayerCache>,
    /// For each goal of the Plan, which steps are run.
    pub(super) serving: BTreeMap<Goal, Vec<bool>>,
    pub(super) attention_of_step: Vec<usize>,
    /// For each cache, the kind of attention that addresses it.
    pub(super) attention_of_cache: Vec<usize>,
    pub(super) rotary_of_step: Vec<usize>,
    pub(super) threads: Vec<Mutex<ThreadState>>,
    /// Seconds spent in each step since profiling began; `None` while it is off.
    pub(super) profile: Mutex<Option<Vec<f64>>>,
    /// What matrices were multiplied with since it is observed, by step of the Plan.
    pub(super) observed: Mutex<Option<Vec<InputSums>>>,
    /// Where values first were not finite.
    pub(super) noted: Noted,
    /// Whether the step is to be stopped, because its caller does not want its result any more.
    pub(super) stop: Arc<AtomicBool>,
}

impl Fixed {
    /// First element of a buffer in the activations' memory.
    ///
    /// # Panics
    /// If no step of the Plan touches the buffer, and it is neither input nor output.
    pub(super) fn offset(&self, id: BufferId) -> usize {
        self.scratch.offsets[id.0].expect("a buffer that a step touches is placed")
            / size_of::<f32>()
    }

    pub(super) fn matrix(&self, id: WeightId) -> MatrixSlice<'_> {
        match &self.weights[id.0] {
            Loaded::Matrix(matrix) => matrix.slice(0..matrix.rows()),
            Loaded::Slice { of, rows } => match &self.weights[of.0] {
                Loaded::Matrix(matrix) => matrix.slice(rows.clone()),
                _ => unreachable!("slices are of matrices"),
            },
            _ => unreachable!("weights of products are loaded as matrices"),
        }
    }

    /// Returns a matrix of all experts.
    pub(super) fn experts(&self, matrix: ExpertMatrix) -> &[PackedMatrix] {
        let Loaded::Experts(parts) = &self.weights[matrix.weight.0] else {
            unreachable!("weights of experts are loaded as matrices of experts")
        };
        let own = parts.iter().find(|part| part.first == matrix.first);
        own.map_or(&[], |part| &part.matrices)
    }

    /// Returns a matrix of one expert.
    pub(super) fn expert(&self, matrix: ExpertMatrix, expert: usize) -> MatrixSlice<'_> {
        let matrix = &self.experts(matrix)[expert];
        matrix.slice(0..matrix.rows())
    }

    pub(super) fn table(&self, id: WeightId) -> &Tensor {
        match &self.weights[id.0] {
            Loaded::Table(tensor) => tensor,
            _ => unreachable!("weights in the file are loaded as tables"),
        }
    }

    pub(super) fn vector(&self, id: WeightId) -> &[f32] {
        match &self.weights[id.0] {
            Loaded::Vector(values) => values,
            _ => unreachable!("weights of norms are loaded as vectors"),
        }
    }
}
