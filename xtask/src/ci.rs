//! Runs everything that has to pass before a change lands.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use crate::drivers::{self, Drivers};
use crate::lanes::both;
use crate::meter::{self, Spent};
use crate::programs::{self, Program};
use crate::test_runs::{self, MOST_ON_LAVAPIPE, TestRun, Validation};
use crate::timings::{self, Timings};
use crate::{chart, checks, dist, image, outside, radv, shaders, tidy, validation};

/// If this is 1, `ci` passes without the drivers that it could not install or fetch.
const OFFLINE: &str = "TRINE_CI_OFFLINE";

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

/// The test that provokes a complaint of the validation layer.
const WRONG_TEST: &str = "raw::commands::tests::copies_over_each_other_are_a_hazard";

/// Options of the checks.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Write what the steps, and the longest test programs and tests, took into this file, as
    /// Markdown.
    #[arg(long, value_name = "FILE")]
    timings: Option<PathBuf>,
}

/// Runs every check. Prints what each took, whether they pass or not.
pub(crate) fn run(root: &Path, options: &Options) -> anyhow::Result<()> {
    let timings = Timings::default();
    let (result, Spent { wall, .. }) = meter::measure(|| everything(root, &timings));
    let whole = Spent { wall, processor: meter::processor_time(std::process::id()) };
    let tables = timings.tables(whole);
    eprintln!("\n{tables}");
    if let Some(path) = &options.timings {
        timings::write(path, &tables)?;
    }
    for warning in timings.warnings(whole, processors()) {
        eprintln!("== WARNING: {warning}");
    }
    end("ci", &result?);
    Ok(())
}

/// Runs every check. Returns what was skipped.
fn everything(root: &Path, timings: &Timings) -> anyhow::Result<Vec<String>> {
    let is_offline = std::env::var_os(OFFLINE).is_some_and(|value| value == "1");
    timings.step("tidy, chart, formatting", || {
        tidy::run(root)?;
        chart::run(root, true)?;
        programs::run(root, "formatting", &["fmt", "--all", "--check"])
    })?;
    // The drivers come from the network while the compiler keeps the processors busy.
    let (drivers, built) = both(
        || timings.step("drivers installed and fetched", || drivers::ensure(root)),
        || timings.step("everything linted and built", || checks::build(root)),
    );
    let drivers = drivers?;
    if !drivers.missing.is_empty() && !is_offline {
        bail!("drivers are missing; to go on without what needs them: {OFFLINE}=1");
    }
    let programs = built?;
    let mut skipped = drivers.missing.clone();
    skipped.extend(timings.step("shaders", || shaders::check_unless_sealed(root))?);

    // Most of the other steps wait for a network or a browser.
    let (others, tested) = both(
        || around_the_program(root, (&drivers, is_offline), &programs, timings),
        || timings.step("tests", || tests(root, &drivers, &programs, timings)),
    );
    skipped.extend(others?);
    skipped.extend(tested?);
    Ok(skipped)
}

/// Returns the processors of this machine, each of which runs one test program at a time.
fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, |processors| processors.get())
}

/// Checks the program as it is built alone, packed, in a container, by a browser and by a router,
/// and its kernels for the Radeon 780M. Returns what was skipped.
fn around_the_program(
    root: &Path,
    (drivers, is_offline): (&Drivers, bool),
    programs: &[Program],
    timings: &Timings,
) -> anyhow::Result<Vec<String>> {
    let mut skipped = Vec::new();
    match &drivers.radv {
        Some(driver) => skipped.extend(timings.step("report on the Radeon's kernels", || {
            radv::check(root, driver, radv::example(programs)?)
        })?),
        None => skipped.push("the report on the Radeon 780M's code: no RADV".to_owned()),
    }
    timings.step("the program without its tests", || {
        programs::run(root, "the program without its tests", &ALONE)
    })?;
    skipped.extend(timings.step("packages", || packages(root, programs))?);
    if is_offline {
        skipped.push("the image, whose parts are fetched".to_owned());
    } else {
        skipped.extend(timings.step("image", || image::run(root))?);
    }
    skipped.extend(timings.step("page", || outside::page(root, programs))?);
    if is_offline {
        skipped.push("the test of the router, which is fetched".to_owned());
    } else {
        skipped.extend(timings.step("router", || outside::router(root, programs))?);
    }
    Ok(skipped)
}

/// Runs all tests, as many programs at a time as there are processors. Returns what was skipped.
fn tests(
    root: &Path,
    drivers: &Drivers,
    programs: &[Program],
    timings: &Timings,
) -> anyhow::Result<Vec<String>> {
    let (mut runs, skipped) = vulkan_runs(root, drivers, programs)?;
    let others = programs.iter().filter(|program| program.is_test && !program.is_test_of(VULKAN));
    let others = TestRun::new("tests", others.collect());
    runs.push(TestRun { driver: drivers.lavapipe.as_ref(), ..others });
    test_runs::run_all(root, &runs, processors(), timings)?;
    Ok(skipped)
}

/// Packs the program that was built for the tests. Returns what was skipped, if anything.
fn packages(root: &Path, programs: &[Program]) -> anyhow::Result<Option<String>> {
    if !dist::is_possible() {
        return Ok(Some("the packages: no dpkg-dev".to_owned()));
    }
    let packed = dist::pack(root, programs).context("the packages failed")?;
    eprintln!("== packages: {} files", packed.len());
    Ok(None)
}

/// Runs only the tests of the Vulkan backend, on the drivers found.
pub(crate) fn vulkan(root: &Path) -> anyhow::Result<()> {
    let programs = checks::build(root)?;
    let drivers = drivers::find(root)?;
    let (runs, skipped) = vulkan_runs(root, &drivers, &programs)?;
    test_runs::run_all(root, &runs, processors(), &Timings::default())?;
    end("vulkan", &skipped);
    Ok(())
}

/// Runs only the tests of the server from outside.
pub(crate) fn outside(root: &Path) -> anyhow::Result<()> {
    let programs = checks::build(root)?;
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

/// Returns the runs of the tests of the Vulkan backend under the validation layer: all on the
/// system's lavapipe, and on the newer one those whose work cooperative matrices change. Returns
/// with them what cannot be run.
fn vulkan_runs<'a>(
    root: &Path,
    drivers: &'a Drivers,
    programs: &'a [Program],
) -> anyhow::Result<(Vec<TestRun<'a>>, Vec<String>)> {
    let tests = |is_wanted: &dyn Fn(&Program) -> bool| -> Vec<&'a Program> {
        programs.iter().filter(|program| program.is_test_of(VULKAN) && is_wanted(program)).collect()
    };
    let library = tests(&|program| program.kind == "lib");
    let mut everything = tests(&|_| true);
    everything.sort_by_key(|program| !LONG_TESTS.contains(&program.name.as_str()));
    let everything = TestRun::new("tests of trine-vulkan", everything);
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
    let mut all = Vec::new();
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
        all.extend(runs);
    }
    Ok((all, skipped))
}
