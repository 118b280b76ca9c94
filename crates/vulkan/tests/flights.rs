//! Pieces of prompts that follow one another: each is written and submitted while the one before
//! runs.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use trine_backend::{
    BackendError, Batch, Device, DeviceGroup, InFlight, LayerChoice, Program, ProgramOptions,
    Results, SequenceView,
};
use trine_model::{KvType, Model, Width};
use trine_testing::{BATCH, Golden, bits, folder};
use trine_vulkan::testing::own_device;
use trine_vulkan::{Injected, VulkanDevice};

/// Rows of a piece, more than short prompts have.
const ROWS: usize = 80;
const OPTIONS: ProgramOptions = ProgramOptions {
    // Drivers need seconds for the kernels of passes with more rows of logits.
    width: Width { tokens: ROWS, outputs: 1 },
    kv: KvType::F16,
    context: 512,
    sequences: 1,
    blocks: 16,
};
const BLOCKS: [u32; 16] = [3, 1, 4, 15, 9, 2, 6, 5, 8, 7, 10, 11, 12, 13, 14, 0];

/// Submits `rows` rows from a position on, with the logits of the last `outputs`.
fn submit(
    program: &mut dyn Program,
    (first, rows): (usize, usize),
    outputs: usize,
) -> Result<InFlight, BackendError> {
    let positions: Vec<u32> = (first..first + rows).map(|at| at as u32).collect();
    let tokens: Vec<u32> = positions.iter().map(|at| (at * 37 + 11) % 90 + 3).collect();
    let outputs: Vec<u32> = (rows - outputs..rows).map(|row| row as u32).collect();
    program.submit(&Batch {
        tokens: &tokens,
        positions: &positions,
        sequence_of: &vec![0; rows],
        sequences: &[SequenceView { slot: 0, blocks: &BLOCKS }],
        outputs: &outputs,
        bulk_from: 0,
        ..BATCH
    })
}

/// Runs a prompt in pieces of these numbers of rows with at most `depth` steps in flight, and
/// returns the logits of its last row.
fn prompt(
    program: &mut dyn Program,
    pieces: &[usize],
    depth: usize,
) -> Result<Vec<u32>, BackendError> {
    let mut flying = std::collections::VecDeque::new();
    let mut first = 0;
    for (at, &rows) in pieces.iter().enumerate() {
        if flying.len() == depth
            && let Some(step) = flying.pop_front()
        {
            program.wait(step)?;
        }
        let outputs = usize::from(at + 1 == pieces.len());
        flying.push_back(submit(program, (first, rows), outputs)?);
        first += rows;
    }
    while flying.len() > 1
        && let Some(step) = flying.pop_front()
    {
        program.wait(step)?;
    }
    let last = flying.pop_front().expect("a prompt has a piece");
    Ok(bits(program.wait(last)?.output(0)?))
}

fn load(device: &VulkanDevice, model: &Model) -> Box<dyn Program> {
    device.load_plan(model, model.plan(), &OPTIONS).unwrap()
}

/// Returns a golden, and a device for it. The golden comes first: a test that has none ends before
/// it opens a device.
fn golden(name: &str) -> (Model, VulkanDevice) {
    (Golden::load(name).model, own_device())
}

/// The rows of the last piece of a prompt, or of one between others, have a recording for one side
/// only.
fn check_pieces(name: &str) {
    let (model, device) = golden(name);
    let mut program = load(&device, &model);
    assert_eq!((program.facts().depth, program.facts().silent_depth), (1, 2));
    for pieces in [[ROWS, ROWS, ROWS, 75], [ROWS, 9, ROWS, 20]] {
        let expected = prompt(&mut *program, &pieces, 1).unwrap();
        assert!(prompt(&mut *program, &pieces, 2).unwrap() == expected, "{pieces:?}");
    }
}

#[test]
fn pieces_in_flight_compute_what_they_do_one_after_the_other() {
    check_pieces("gguf/gemma3-qat");
}

#[test]
fn pieces_with_rows_that_the_host_gathers_do_so_too() {
    check_pieces("gguf/gemma4-e");
}

#[test]
fn steps_with_results_have_none_behind_them() {
    let (model, device) = golden("gguf/gemma3-qat");
    let mut program = load(&device, &model);
    let steps = [0, ROWS].map(|first| submit(&mut *program, (first, ROWS), 0).unwrap());
    let third = submit(&mut *program, (2 * ROWS, ROWS), 0);
    assert!(matches!(third, Err(BackendError::BadBatch { .. })), "two are in flight");
    assert!(matches!(program.copy_slot(0, 0, 1), Err(BackendError::BadBatch { .. })));
    for step in steps {
        assert_eq!(program.wait(step).unwrap().output(0).unwrap().len(), 0);
    }
    let last = submit(&mut *program, (2 * ROWS, ROWS), 1).unwrap();
    let behind = submit(&mut *program, (3 * ROWS, ROWS), 0);
    assert!(matches!(behind, Err(BackendError::BadBatch { .. })), "somebody reads its logits");
    program.wait(last).unwrap();
}

#[test]
fn a_step_that_fails_behind_another_takes_it_along() {
    let (model, device) = golden("gguf/gemma3-qat");
    let mut program = load(&device, &model);
    let pieces = [ROWS; 3];
    let expected = prompt(&mut *program, &pieces, 1).unwrap();
    for failure in [Injected::Loss, Injected::Timeout, Injected::Refusal] {
        let first = submit(&mut *program, (0, ROWS), 0).unwrap();
        device.gpu().inject(failure);
        let error = submit(&mut *program, (ROWS, ROWS), 0).unwrap_err();
        assert!(matches!(error, BackendError::Failed { .. }), "{error}");
        assert_eq!(program.memory().weights, 0, "nothing is kept on a failed device");
        assert!(matches!(program.wait(first), Err(BackendError::BadBatch { .. })));
        assert!(prompt(&mut *program, &pieces, 2).unwrap() == expected);
    }
}

/// The step behind has ended, too: caches may be copied.
#[test]
fn a_file_that_changes_leaves_no_step_in_flight() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("model.gguf");
    std::fs::copy(folder("gguf/gemma3-qat").join("model.gguf"), &path).unwrap();
    let (model, device) = (Model::open(&path).unwrap(), own_device());
    let options = ProgramOptions { sequences: 2, ..OPTIONS };
    let mut program = device.load_plan(&model, model.plan(), &options).unwrap();
    let [first, second] = [0, ROWS].map(|at| submit(&mut *program, (at, ROWS), 0).unwrap());
    let mut file = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
    file.write_all(&[0]).unwrap();
    assert!(matches!(program.wait(first), Err(BackendError::Weights(_))));
    program.copy_slot(0, 1, 1).unwrap();
    assert!(matches!(program.wait(second), Err(BackendError::BadBatch { .. })));
}

/// Where each step of the Plan is a submission, the step behind is submitted once the one before
/// has made all of its own; not if that one fails or is stopped before.
#[test]
fn a_step_behind_one_of_many_submissions_comes_after_all_of_them() {
    let (model, device) = golden("gguf/gemma3-qat");
    device.gpu().submit_each_step();
    let mut program = load(&device, &model);
    let stop = Arc::new(AtomicBool::new(false));
    program.stop_on(Arc::clone(&stop));
    let pieces = [ROWS; 3];
    let expected = prompt(&mut *program, &pieces, 1).unwrap();
    assert!(prompt(&mut *program, &pieces, 2).unwrap() == expected);
    let stopped = |result: Result<&mut dyn Results, BackendError>| {
        assert!(matches!(result, Err(BackendError::Stopped)));
    };
    // In the first of two, or in the second.
    for in_second in [false, true] {
        let [first, second] = [0, ROWS].map(|at| submit(&mut *program, (at, ROWS), 0).unwrap());
        if in_second {
            program.wait(first).unwrap();
            device.gpu().inject(Injected::Stop(5));
        } else {
            device.gpu().inject(Injected::Stop(5));
            stopped(program.wait(first));
        }
        stopped(program.wait(second));
        assert!(!device.gpu().withdraw(), "it was stopped");
        stop.store(false, Ordering::Relaxed);
        assert!(prompt(&mut *program, &pieces, 2).unwrap() == expected);
    }
    // A step that is dropped in flight leaves nothing on the device.
    let _ = [0, ROWS].map(|at| submit(&mut *program, (at, ROWS), 0).unwrap());
}

/// Two devices, each with a part of the layers: one computes a piece while the other has the piece
/// before it.
#[test]
fn pieces_go_through_parts_one_behind_the_other() {
    let model = Golden::load("gguf/gemma3-qat").model;
    let devices = [own_device(), own_device()];
    let members: Vec<Box<dyn Device>> =
        devices.iter().map(|device| -> Box<dyn Device> { Box::new(device.clone()) }).collect();
    let group = DeviceGroup::new(members, LayerChoice::Exactly(model.plan().layers()));
    let mut program = group.load_plan(&model, model.plan(), &OPTIONS).unwrap();
    assert_eq!(program.facts().depth, 2);
    let pieces = [ROWS, ROWS, 75, ROWS];
    let expected = prompt(&mut *program, &pieces, 1).unwrap();
    assert!(prompt(&mut *program, &pieces, 2).unwrap() == expected);
    // The second device fails with the first piece while the first one has the second piece.
    let first = submit(&mut *program, (0, ROWS), 0).unwrap();
    devices[1].gpu().inject(Injected::Loss);
    let error = submit(&mut *program, (ROWS, ROWS), 0).unwrap_err();
    assert!(matches!(error, BackendError::Failed { .. }), "{error}");
    assert!(matches!(program.wait(first), Err(BackendError::BadBatch { .. })));
    assert!(prompt(&mut *program, &pieces, 2).unwrap() == expected);
}
