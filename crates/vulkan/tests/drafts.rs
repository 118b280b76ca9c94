//! Drafts that read the caches of the model they guess for, on the GPU.

#![allow(clippy::unwrap_used, reason = "test code")]

#[path = "../../backend/tests/common/mod.rs"]
mod common;

use common::drafts::rounds;
use trine_vulkan::testing::device;

#[test]
fn guesses_are_those_of_another_implementation() {
    for (folder, window, whole) in [("gemma4-e", 8, 46), ("gemma4-dense", 9, 52)] {
        let contexts = [window - 3, window + 1, 2 * window + 3, whole];
        for chunk in [whole, 7, 1] {
            let worst = rounds(&device(), folder, contexts, chunk);
            println!("{folder} in pieces of {chunk}: {worst:?}");
            assert!(worst.iter().all(|worst| *worst <= 1e-3), "{folder}, {chunk}: {worst:?}");
        }
    }
}
