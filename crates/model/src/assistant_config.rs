//! The numbers of a model that was made to guess for another one.

use crate::config::Config;
use crate::error::ModelError;

/// The numbers of a draft model.
#[derive(Debug, Clone, PartialEq)]
pub struct AssistantConfig {
    /// Those that it has in common with other models. Its KV head counts are those of the model
    /// that it guesses for.
    pub config: Config,
    /// The hidden size of the model that it guesses for.
    pub backbone: usize,
    /// How its output matrix is searched, if only a part of it need be.
    pub centroids: Option<CentroidsConfig>,
}

/// An output matrix in clusters of tokens, each with a centroid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CentroidsConfig {
    /// The number of clusters.
    pub count: usize,
    /// How many of them are searched, those whose centroids have the largest products.
    pub used: usize,
}

impl CentroidsConfig {
    /// Compares the numbers with those of the vocabulary.
    ///
    /// # Errors
    /// Returns [`ModelError::BadValue`] if clusters are not equally large, or more are searched
    /// than there are.
    pub(crate) fn check(self, vocabulary: usize) -> Result<(), ModelError> {
        let Self { count, used } = self;
        if count == 0 || !vocabulary.is_multiple_of(count) {
            let expected = format!("a divisor of the {vocabulary} tokens");
            return Err(ModelError::bad("num_centroids", count, expected));
        }
        if !(1..=count).contains(&used) {
            let expected = format!("a number from 1 to {count}");
            return Err(ModelError::bad("centroid_intermediate_top_k", used, expected));
        }
        Ok(())
    }
}
