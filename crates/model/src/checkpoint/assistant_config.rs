//! The numbers of a model that was made to guess for another one.

use crate::checkpoint::config::Config;
use crate::error::ModelError;

/// The most clusters, and the most of them that are searched: what GPUs take. The time that a guess
/// takes on the processor grows with the product of the two.
const CLUSTERS_MAX: usize = 2048;
const USED_MAX: usize = 256;

/// The numbers of a draft model.
#[derive(Debug, Clone, PartialEq)]
pub struct AssistantConfig {
    /// The numbers that all models have. The KV head counts are the target model's.
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
    /// Compares the numbers with the vocabulary.
    ///
    /// # Errors
    /// Returns [`ModelError::BadValue`] if clusters are not equally large, there are more than
    /// 2,048, or more are searched than there are or than 256.
    pub(crate) fn check(self, vocabulary: usize) -> Result<(), ModelError> {
        let Self { count, used } = self;
        if !(1..=CLUSTERS_MAX).contains(&count) || !vocabulary.is_multiple_of(count) {
            let expected = format!("a divisor of the {vocabulary} tokens up to {CLUSTERS_MAX}");
            return Err(ModelError::bad("num_centroids", count, expected));
        }
        let most = count.min(USED_MAX);
        if !(1..=most).contains(&used) {
            let expected = format!("a number from 1 to {most}");
            return Err(ModelError::bad("centroid_intermediate_top_k", used, expected));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_work_of_a_guess_has_a_bound() {
        let check = |count, used| CentroidsConfig { count, used }.check(262_144);
        for (count, used) in [(1, 1), (4, 4), (2048, 32), (2048, 256)] {
            assert!(check(count, used).is_ok(), "{count}, {used}");
        }
        let (clusters, searched) = ("num_centroids", "centroid_intermediate_top_k");
        for (count, used, key, most) in [
            (0, 1, clusters, "up to 2048"),
            (3, 1, clusters, "up to 2048"),
            (4096, 1, clusters, "up to 2048"),
            (262_144, 262_144, clusters, "up to 2048"),
            (usize::MAX, 1, clusters, "up to 2048"),
            (2048, 0, searched, "to 256"),
            (2048, 257, searched, "to 256"),
            (4, 5, searched, "to 4"),
        ] {
            let error = check(count, used).unwrap_err().to_string();
            let found = if key == clusters { count } else { used };
            for part in [format!("{key} is {found}"), most.to_owned()] {
                assert!(error.contains(&part), "{part}: {error}");
            }
        }
    }
}
