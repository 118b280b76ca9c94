//! The self-test on the model: what it submits, finds, and when it stops.

use std::path::Path;
use std::time::Duration;

use trine_npu::driver::DEVICE_PATH;
use trine_npu::generate::Kernel;
use trine_npu::pack::{MANIFEST, Manifest, Pack};
use trine_npu::published;
use trine_npu::selftest::{self, Ending, Outcome, Plan, REPEATS, Results};
use trine_npu::sys::Sys;
use trine_npu::tile::Tile;
use trine_npu_model::{Behaviour, Fault, Held, Machine, ModelSys, Tiles, xclbin};

use crate::support::counting_at_once;

/// Kernels with small products.
const KERNELS: [Kernel; 2] =
    [Kernel::Int8 { m: 8, k: 2048, n: 2048 }, Kernel::Int8 { m: 1, k: 2048, n: 2048 }];

fn write(folder: &Path, kernels: &[Kernel]) -> Pack {
    let xclbin = xclbin(Behaviour::Int8.stand_in());
    for (name, bytes) in published::stand_in("a.xclbin", &xclbin, kernels).unwrap() {
        std::fs::write(folder.join(name), bytes).unwrap();
    }
    Pack::open(folder).unwrap()
}

fn plan(kernels: &[Kernel]) -> Plan {
    let folder = tempfile::tempdir().unwrap();
    Plan::new(&write(folder.path(), kernels)).unwrap()
}

fn run(sys: &ModelSys, plan: &Plan) -> Results {
    let mut told = Vec::new();
    let mut tell = |outcome: &Outcome| {
        told.push(outcome.clone());
        Ok(())
    };
    let results = selftest::run(sys.clone(), DEVICE_PATH, plan, &mut tell);
    assert_eq!(told, results.outcomes);
    // In quarantine all of it stays until the process ends.
    let files = usize::from(sys.process().quarantine().is_some());
    assert_eq!((sys.held().files, sys.leaked()), (files, Held::default()));
    assert_eq!(sys.held() == Held::default(), files == 0);
    results
}

fn model(machine: Machine, is_wrong: bool) -> ModelSys {
    let tiles = Tiles::new(7);
    let tiles = if is_wrong { tiles.with_faulty(Tile::new(3, 2)) } else { tiles };
    ModelSys::new(machine, Box::new(tiles))
}

#[test]
fn exact_products_are_right_the_smallest_first() {
    let sys = model(counting_at_once(), false);
    let results = run(&sys, &plan(&KERNELS));
    assert!(results.are_right(), "{results:#?}");
    let names: Vec<&str> = results.outcomes.iter().map(|outcome| outcome.name.as_str()).collect();
    assert_eq!(names, ["a8w8acc32_1_2048_2048", "a8w8acc32_8_2048_2048"]);
    assert_eq!(results.outcomes[1].elements, REPEATS * 8 * 2048);
    assert_eq!(results.outcomes[0].milliseconds, [2.0; REPEATS]);
    let two = Some(Duration::from_millis(2));
    assert_eq!(selftest::median(&results.outcomes[0].milliseconds), two);
}

#[test]
fn nothing_is_submitted_once_nobody_listens() {
    let sys = model(Machine::default(), false);
    let plan = plan(&KERNELS);
    let mut tell = |_: &Outcome| Err("nobody reads".to_owned());
    let results = selftest::run(sys, DEVICE_PATH, &plan, &mut tell);
    assert_eq!(results.outcomes.len(), 1);
    assert!(!results.are_right());
    let stopped = results.stopped.unwrap();
    assert!(
        stopped.starts_with("nobody reads, so that the other 1 streams were not run"),
        "{stopped}"
    );
}

#[test]
fn the_largest_shapes_are_right_too() {
    let sys = model(Machine::default(), false);
    let plan = plan(&[(2048, 8192), (8192, 2048)].map(|(k, n)| Kernel::Int8 { m: 1, k, n }));
    assert!(run(&sys, &plan).are_right());
}

#[test]
fn wrong_elements_are_counted_and_the_others_still_run() {
    let sys = model(Machine::default(), true);
    let results = run(&sys, &plan(&KERNELS));
    assert!(!results.are_right() && results.stopped.is_none());
    for outcome in &results.outcomes {
        // One of each of the 8 blocks that the last column of cores makes.
        assert_eq!((outcome.ending, outcome.wrong), (Ending::Wrong, 8 * REPEATS));
        let (row, column, found, expected) = outcome.examples[0];
        assert_eq!((row, column, found ^ expected), (0, 1536, 1));
    }
}

#[test]
fn the_first_timeout_ends_it() {
    let sys = model(Machine::default(), false);
    sys.inject([Fault::Works, Fault::Hangs]);
    let results = run(&sys, &plan(&KERNELS));
    assert_eq!(results.outcomes.len(), 1);
    let outcome = &results.outcomes[0];
    assert_eq!((outcome.ending, outcome.milliseconds.len()), (Ending::Failed, 1));
    assert!(outcome.error.as_ref().unwrap().contains("more than 1000 ms"));
    assert!(results.stopped.as_ref().unwrap().contains("the other 1 streams were not run"));
    assert_eq!(sys.injected(), 0);
}

#[test]
fn a_result_that_the_npu_did_not_write_ends_it() {
    for fault in [Fault::Dropped, Fault::DroppedAndCounted, Fault::StopsAfter(64)] {
        let sys = model(Machine::default(), false);
        sys.inject([fault]);
        let results = run(&sys, &plan(&KERNELS));
        assert!(!results.are_right());
        assert_eq!(results.outcomes.len(), 1, "{fault:?}");
        assert_eq!(results.outcomes[0].ending, Ending::Failed, "{fault:?}");
        assert!(results.stopped.unwrap().contains("the other 1 streams were not run"));
    }
}

#[test]
fn after_a_command_that_fails_the_others_still_run() {
    let sys = model(Machine::default(), false);
    sys.inject([Fault::Fails]);
    let results = run(&sys, &plan(&KERNELS));
    assert!(!results.are_right());
    let endings: Vec<Ending> = results.outcomes.iter().map(|outcome| outcome.ending).collect();
    assert_eq!(endings, [Ending::Failed, Ending::Right]);
}

#[test]
fn a_refused_context_runs_nothing() {
    let sys = model(Machine { contexts_max: 0, ..Machine::default() }, false);
    let results = run(&sys, &plan(&KERNELS));
    assert!(results.outcomes.is_empty() && !results.are_right());
    assert!(results.stopped.unwrap().contains("one at a time"));
}

#[test]
fn cores_that_stand_in_run_nothing_on_another_driver() {
    let sys = model(Machine { description: "a driver", ..Machine::default() }, false);
    let plan = plan(&KERNELS);
    assert!(plan.is_stand_in());
    let results = run(&sys, &plan);
    assert!(results.outcomes.is_empty() && !results.are_right());
    assert!(results.stopped.unwrap().contains("only stands in for that of a8w8acc32"));
}

#[test]
fn kernels_without_an_exact_product_are_left_out() {
    let int4 = Kernel::Int4 { m: 1, k: 4096, n: 4096, group: 32 };
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &KERNELS);
    let path = folder.path().join(MANIFEST);
    let text = std::fs::read_to_string(&path).unwrap();
    let mut manifest = Manifest::parse(MANIFEST, &text).unwrap();
    manifest.stream[1].kernel = None;
    std::fs::write(&path, manifest.to_text().unwrap()).unwrap();
    let mixed = Plan::new(&Pack::open(folder.path()).unwrap()).unwrap();
    assert_eq!((mixed.trials.len(), mixed.left_out.len()), (1, 1));
    let error = Plan::new(&write(folder.path(), &[int4])).unwrap_err();
    assert!(error.contains("no stream of a8w8acc32"), "{error}");
}

#[test]
fn an_unknown_xclbin_makes_no_pack() {
    let error = published::make(&xclbin(Behaviour::Int8.stand_in())).unwrap_err();
    assert!(error.contains("none of gemm_4x4_a8w8acc32.xclbin"), "{error}");
}
