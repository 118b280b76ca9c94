//! Runs everything that has to pass before a change lands.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, bail};

use crate::drivers::{self, Drivers};
use crate::programs::{self, Program};
use crate::test_runs::{MOST_ON_LAVAPIPE, TestRun, Validation};
use crate::{chart, checks, dist, image, outside, radv, shaders, test_runs, tidy, validation};

/// If this is 1, `ci` passes without the drivers that it could not install or fetch.
const OFFLINE: &str = "TRINE_CI_OFFLINE";

/// All tests, without the examples, which `cargo test` would also treat as tests.
const EVERYTHING: [&str; 4] = ["--workspace", "--lib", "--bins", "--tests"];
/// Checks the program with the features that its packages have without tests, as `cargo install`
/// and the first command of the README build it. Linking is tried with the features of the tests.
const ALONE: [&str; 5] = ["check", "--package", "trine", "--bins", "--locked"];

/// The folder of the Vulkan backend's package.
const VULKAN: &str = "crates/vulkan";
/// Parts of the names of the tests whose kernels use cooperative matrices.
const MATRIX_TESTS: [&str; 4] = ["matri", "large_", "finite", "candidates_fit"];
/// The words that these tests print if there are no cooperative matrices.
const WITHOUT_MATRICES: &str = "no matrix units";
/// The fewest such tests.
const MATRIX_TESTS_LEAST: u64 = 9;
/// Programs that test whole models, which use cooperative matrices wherever the device has them.
const MODEL_TESTS: [&str; 2] = ["goldens", "invariance"];
/// Parts of the names of the tests in them that run such matrices and compare logits: those of
/// quantised matrices, small caches and company. Tests of cuts and of continuations run the same
/// kernels.
const MATRIX_MODEL_TESTS: [&str; 3] =
    ["stay_within_the_divergence", "depend_on_company", "depend_on_31_others"];
/// The fewest such tests.
const MATRIX_MODEL_TESTS_LEAST: u64 = 6;
/// The same among the tests of random models: with matrix units, halves are passed on.
const OPERATION_TESTS: [&str; 1] = ["quantised_models_with_small_caches"];
/// The test programs that take longest, which so begin first.
const LONG_TESTS: [&str; 2] = ["operations", "goldens"];
/// The programs that run at a time: a driver compiles one kernel at a time in each, which is most
/// of the time.
const WORKERS: usize = 2;

/// The test that provokes a complaint of the validation layer.
const WRONG_TEST: &str = "raw::commands::tests::copies_over_each_other_are_a_hazard";

/// Runs every check and stops at the first that fails.
pub(crate) fn run(root: &Path) -> anyhow::Result<()> {
    let is_offline = std::env::var_os(OFFLINE).is_some_and(|value| value == "1");
    let drivers = drivers::ensure(root)?;
    if !drivers.missing.is_empty() && !is_offline {
        bail!("drivers are missing; to go on without what needs them: {OFFLINE}=1");
    }
    let mut skipped = drivers.missing.clone();

    tidy::run(root)?;
    chart::run(root, true)?;
    programs::run(root, "formatting", &["fmt", "--all", "--check"])?;
    checks::lint(root, "lints", &["--workspace"])?;
    skipped.extend(shaders::check_unless_sealed(root)?);

    let programs = tests(root)?;
    let report = radv::build(root)?;
    let others = programs.iter().filter(|program| program.is_test && !program.is_test_of(VULKAN));
    let others = TestRun::new("tests", others.collect());
    TestRun { driver: drivers.lavapipe.as_ref(), ..others }.run(root)?;
    programs::run(root, "the program without its tests", &ALONE)?;
    skipped.extend(packages(root, &programs)?);
    if is_offline {
        skipped.push("the image, whose parts are fetched".to_owned());
    } else {
        skipped.extend(image::run(root)?);
    }
    skipped.extend(outside::page(root, &programs)?);
    if is_offline {
        skipped.push("the test of the router, which is fetched".to_owned());
    } else {
        skipped.extend(outside::router(root, &programs)?);
    }
    skipped.extend(vulkan_tests(root, &drivers, &programs)?);
    match &drivers.radv {
        Some(driver) => skipped.extend(radv::check(root, driver, &report)?),
        None => skipped.push("the report on the Radeon 780M's code: no RADV".to_owned()),
    }

    end("ci", &skipped);
    Ok(())
}

/// Builds the tests of the whole workspace.
fn tests(root: &Path) -> anyhow::Result<Vec<Program>> {
    checks::build_tests(root, "building the tests", &EVERYTHING)
}

/// Packs the program that was built for the tests. Returns what was skipped, if anything.
fn packages(root: &Path, programs: &[Program]) -> anyhow::Result<Option<String>> {
    if !dist::is_possible() {
        return Ok(Some("the packages: no dpkg-dev".to_owned()));
    }
    let start = Instant::now();
    let packed = dist::pack(root, programs).context("the packages failed")?;
    eprintln!("== packages: {} files in {:.0} s", packed.len(), start.elapsed().as_secs_f64());
    Ok(None)
}

/// Runs only the tests of the Vulkan backend, on the drivers found.
pub(crate) fn vulkan(root: &Path) -> anyhow::Result<()> {
    let programs = tests(root)?;
    let skipped = vulkan_tests(root, &drivers::find(root)?, &programs)?;
    end("vulkan", &skipped);
    Ok(())
}

/// Runs only the tests of the server from outside.
pub(crate) fn outside(root: &Path) -> anyhow::Result<()> {
    let build = ["build", "--locked", "--package", "trine"];
    let programs = programs::build(root, "building trine", &build)?;
    let skipped = [outside::page(root, &programs)?, outside::router(root, &programs)?];
    end("outside", &skipped.into_iter().flatten().collect::<Vec<_>>());
    Ok(())
}

fn end(what: &str, skipped: &[String]) {
    for what in skipped {
        eprintln!("== SKIPPED: {what}");
    }
    let but = if skipped.is_empty() { "" } else { ", but for what was SKIPPED" };
    eprintln!("== {what}: passed{but}");
}

/// Runs the tests of the Vulkan backend under the validation layer: all on the system's lavapipe,
/// and on the newer one those whose work cooperative matrices change. Returns what could not be
/// run.
fn vulkan_tests(
    root: &Path,
    drivers: &Drivers,
    programs: &[Program],
) -> anyhow::Result<Vec<String>> {
    let tests = |is_wanted: &dyn Fn(&Program) -> bool| -> Vec<&Program> {
        programs.iter().filter(|program| program.is_test_of(VULKAN) && is_wanted(program)).collect()
    };
    let library = tests(&|program| program.kind == "lib");
    let mut everything = tests(&|_| true);
    everything.sort_by_key(|program| !LONG_TESTS.contains(&program.name.as_str()));
    let everything =
        TestRun { workers: WORKERS, ..TestRun::new("tests of trine-vulkan", everything) };
    let kernels = TestRun {
        arguments: [&["--show-output"], &MATRIX_TESTS[..]].concat(),
        least: MATRIX_TESTS_LEAST,
        forbidden: Some(WITHOUT_MATRICES),
        ..TestRun::new("kernels with cooperative matrices", library.clone())
    };
    let models = tests(&|program| MODEL_TESTS.contains(&program.name.as_str()));
    if models.len() != MODEL_TESTS.len() {
        bail!("trine-vulkan has not all of the tests {}", MODEL_TESTS.join(", "));
    }
    let models = TestRun {
        arguments: MATRIX_MODEL_TESTS.to_vec(),
        least: MATRIX_MODEL_TESTS_LEAST,
        ..TestRun::new("models with cooperative matrices", models)
    };
    let operations = TestRun {
        arguments: OPERATION_TESTS.to_vec(),
        ..TestRun::new(
            "operations with cooperative matrices",
            tests(&|program| program.name == "operations"),
        )
    };
    validation::prepare(root)?;

    let mut skipped = Vec::new();
    let mut at_once = Vec::new();
    for (name, driver, mut runs) in [
        ("the system's lavapipe", &drivers.lavapipe, vec![everything]),
        ("the newer lavapipe", &drivers.matrix, vec![kernels, models, operations]),
    ] {
        let Some(driver) = driver else {
            skipped.push(format!("tests of trine-vulkan on {name}: it is missing"));
            continue;
        };
        if driver.layers.is_some() {
            runs.iter_mut().for_each(|run| run.validation = Validation::Silent);
            let wrong = TestRun {
                arguments: vec!["--ignored", "--exact", WRONG_TEST],
                validation: Validation::Hazard,
                ..TestRun::new("a hazard on purpose", library.clone())
            };
            runs.insert(0, wrong);
        } else {
            skipped.push(format!("validation of trine-vulkan on {name}: there is no layer"));
        }
        for run in &mut runs {
            (run.driver, run.place, run.most) = (Some(driver), name, MOST_ON_LAVAPIPE);
        }
        at_once.push(runs);
    }
    let work = at_once.iter().map(|runs| || runs.iter().try_for_each(|run| run.run(root)));
    // All are waited for, and the first failure is the result.
    test_runs::at_once(work).into_iter().collect::<anyhow::Result<()>>()?;
    Ok(skipped)
}
