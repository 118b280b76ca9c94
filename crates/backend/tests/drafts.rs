//! Drafts that read the caches of the model they guess for, on the scalar reference.

use trine_backend::reference::ReferenceDevice;
use trine_testing::drafts::{broken_clusters_are_seen, rounds};

#[test]
fn broken_clusters_of_a_draft_are_seen() {
    broken_clusters_are_seen(&ReferenceDevice::new());
}

#[test]
fn guesses_are_those_of_another_implementation() {
    for (folder, window) in [("gemma4-e", 8), ("gemma4-dense", 9)] {
        let whole = if folder == "gemma4-e" { 46 } else { 52 };
        let contexts = [window - 3, window + 1, 2 * window + 3, whole];
        for chunk in [whole, 7, 1] {
            let worst = rounds(&ReferenceDevice::new(), false, folder, contexts, chunk);
            println!("{folder} in pieces of {chunk}: {worst:?}");
            assert!(worst.iter().all(|worst| *worst <= 5e-4), "{folder}, {chunk}: {worst:?}");
        }
    }
}
