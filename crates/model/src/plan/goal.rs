//! What a step of a Plan computes.

/// What a step computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Goal {
    /// What a Plan ends with if it has no other goal: the logits of texts, the rows of pictures,
    /// the residual stream for the next part.
    #[default]
    Main,
    /// The hidden states of all rows, for embeddings.
    States,
    /// A guess for each output row, from a token and the hidden state of another step
    /// ([`Source::State`](crate::Source::State)).
    Draft,
    /// The sums of the experts with this number, in the Plan of
    /// [experts aside](crate::aside::others).
    Experts(usize),
}

/// Outputs of a Plan that steps with one goal compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct End {
    /// The goal.
    pub goal: Goal,
    /// How many outputs it has.
    pub outputs: usize,
}

impl Goal {
    /// Returns whether steps with this goal write caches, as all do but drafts.
    pub fn stores(self) -> bool {
        self != Goal::Draft
    }
}
