//! What happens when the device fails: an error that says so, and a device that works again afterwards.

#![allow(clippy::unwrap_used, reason = "test code")]

#[path = "../../backend/tests/common/mod.rs"]
mod common;

use common::Golden;
use trine_backend::{BLOCK, BackendError, Batch, Device, ProgramOptions, SequenceView};
use trine_model::{KvType, Width};
use trine_vulkan::{Choice, Injected, VulkanDevice, testing};

/// A device of the test's own: others run on theirs meanwhile.
fn device() -> VulkanDevice {
    let choice = std::env::var(testing::DEVICE_VARIABLE).map_or(Choice::Any, Choice::Named);
    VulkanDevice::open(choice, None, None).unwrap()
}

const OPTIONS: ProgramOptions = ProgramOptions {
    width: Width { tokens: 4, outputs: 1 },
    kv: KvType::F32,
    context: BLOCK,
    sequences: 1,
    blocks: 1,
};

const BATCH: Batch<'static> = Batch {
    tokens: &[5, 6, 7],
    positions: &[0, 1, 2],
    sequence_of: &[0, 0, 0],
    sequences: &[SequenceView { slot: 0, blocks: &[0] }],
    outputs: &[2],
    input: &[],
};

#[test]
fn a_lost_device_is_reported_and_set_up_anew() {
    let model = Golden::load("gemma3-a").model;
    let device = device();
    let mut program = device.load(&model, &OPTIONS).unwrap();
    let before = program.run(&BATCH).unwrap().to_vec();
    for (failure, mark) in [(Injected::Loss, "lost"), (Injected::Timeout, "did not finish")] {
        device.gpu().inject(failure);
        let error = program.run(&BATCH).unwrap_err();
        assert!(matches!(error, BackendError::Failed { .. }), "{error}");
        assert!(error.to_string().contains(mark), "{error}");
        assert_eq!(program.memory().weights, 0, "nothing is kept on a failed device");
        assert_eq!(program.run(&BATCH).unwrap(), before);
    }
}

#[test]
fn missing_memory_is_reported_and_nothing_is_kept() {
    let model = Golden::load("gemma3-a").model;
    let device = device();
    device.gpu().inject(Injected::Memory);
    let error = device.load(&model, &OPTIONS).map(|_| ()).unwrap_err();
    let BackendError::OutOfMemory { needed, .. } = error else { panic!("{error}") };
    assert!(needed > 0);
    let mut program = device.load(&model, &OPTIONS).unwrap();
    assert!(program.run(&BATCH).unwrap().iter().all(|logit| logit.is_finite()));
}

#[test]
fn a_chain_that_does_not_move_is_given_up() {
    // The one with quantised weights: its products of one row are chained.
    let model = Golden::load("gguf/gemma3-qat").model;
    let device = device();
    let mut program = device.load(&model, &OPTIONS).unwrap();
    let batch = Batch { tokens: &[5], positions: &[0], sequence_of: &[0], outputs: &[0], ..BATCH };
    let before = program.run(&batch).unwrap().to_vec();
    device.gpu().inject(Injected::Stall);
    assert_eq!(program.run(&batch).unwrap(), before, "the step is done again with barriers");
    assert!(!device.gpu().has_injected(), "the pass had a chain");
    device.gpu().inject(Injected::Stall);
    assert_eq!(program.run(&batch).unwrap(), before);
    assert!(device.gpu().has_injected(), "there are no chains any more");
    let next = Batch { tokens: &[6], positions: &[1], ..batch };
    assert!(program.run(&next).unwrap().iter().all(|logit| logit.is_finite()));
}

#[test]
fn a_batch_that_breaks_a_rule_costs_nothing() {
    let model = Golden::load("gemma3-a").model;
    let mut program = device().load(&model, &OPTIONS).unwrap();
    let before = program.run(&BATCH).unwrap().to_vec();
    let bad = Batch { tokens: &[5, 6, u32::MAX], ..BATCH };
    assert!(matches!(program.run(&bad), Err(BackendError::BadBatch { .. })));
    assert_eq!(program.run(&BATCH).unwrap(), before);
}
