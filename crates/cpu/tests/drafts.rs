//! Drafts that read the caches of the model they guess for, on the processor.

use trine_cpu::CpuDevice;
use trine_cpu::isa::Isa;
use trine_testing::drafts::{broken_clusters_are_seen, clusters_agree, rounds};

#[test]
fn guesses_are_those_of_another_implementation() {
    for (folder, window, whole) in [("gemma4-e", 8, 46), ("gemma4-dense", 9, 52)] {
        let contexts = [window - 3, window + 1, 2 * window + 3, whole];
        for isa in Isa::available() {
            let device = CpuDevice::new(Some(2), Some(isa)).unwrap();
            for chunk in [whole, 7, 1] {
                let worst = rounds(&device, false, folder, contexts, chunk);
                println!("{folder}, {isa:?}, in pieces of {chunk}: {worst:?}");
                assert!(worst.iter().all(|worst| *worst <= 1e-3), "{folder}, {chunk}: {worst:?}");
            }
        }
    }
}

#[test]
fn clusters_of_any_number_are_searched_as_by_the_reference() {
    for isa in Isa::available() {
        for threads in [1, 3] {
            let device = CpuDevice::new(Some(threads), Some(isa)).unwrap();
            let worst = clusters_agree(&device);
            println!("{isa:?}, {threads} threads: {worst}");
            broken_clusters_are_seen(&device);
            assert!(worst <= 4e-4, "{isa:?}, {threads} threads: {worst}");
        }
    }
}
