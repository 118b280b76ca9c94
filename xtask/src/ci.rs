//! Runs everything that has to pass before a change lands.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, bail};

use crate::changed::{Part, Scope};
use crate::drivers::{self, Drivers};
use crate::lanes::both;
use crate::meter::{self, Spent};
use crate::programs::{self, Program};
use crate::test_runs::{self, MOST_ON_LAVAPIPE, TestRun, Validation, say};
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
/// Parts of the names of the tests of whole models that run such matrices and compare logits: those
/// of quantised matrices, small caches and company. Tests of cuts and of continuations run the same
/// kernels. The first are those of goldens; among the others, random models pass halves on.
const MATRIX_MODEL_TESTS: [&[&str]; 2] = [
    &["stay_within_the_divergence"],
    &["depend_on_company", "depend_on_31_others", "quantised_models_with_small_caches"],
];
/// The fewest such tests.
const MATRIX_MODEL_TESTS_LEAST: [u64; 2] = [2, 5];
/// The modules of tests of models that take longest, which run as if each were a program, and begin
/// first; and whether their time is that of compiling kernels.
const LONG_MODULES: [(&str, bool); 5] = [
    ("goldens::", false),
    ("operations::", true),
    ("lent::", false),
    ("invariance::", false),
    ("drafts::", false),
];
/// Test programs that take long, which begin before the other ones.
const LONG_PROGRAMS: [&str; 5] = ["cli", "it", "storm", "array", "driver"];
/// Makes Mesa optimise kernels, for tests that run them for longer than they compile them.
const OPTIMISED: (&str, &str) = ("GALLIVM_PERF", "");

/// The test that provokes a complaint of the validation layer.
const WRONG_TEST: &str = "raw::commands::tests::copies_over_each_other_are_a_hazard";

/// Options of the checks.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Write what the steps, and the longest test programs and tests, took into this file, as
    /// Markdown.
    #[arg(long, value_name = "FILE")]
    timings: Option<PathBuf>,
    /// Leave out what cannot be affected by the difference between the working tree and the commit
    /// at which the branch left `origin/main`, and say what and why.
    #[arg(long)]
    changed: bool,
    /// The same, by itself, with where the branch left another commit.
    #[arg(long, value_name = "COMMIT")]
    since: Option<String>,
}

/// Runs the checks. Prints what each took, whether they pass or not.
pub(crate) fn run(root: &Path, options: &Options) -> anyhow::Result<()> {
    options.timings.as_deref().map_or(Ok(()), timings::check)?;
    let scope = if options.changed || options.since.is_some() {
        Scope::changed(root, options.since.as_deref())?
    } else {
        Scope::everything(root)?
    };
    scope.print();
    let timings = Timings::default();
    let (result, Spent { wall, .. }) = meter::measure(|| checks(root, &scope, &timings));
    let whole = Spent { wall, processor: meter::processor_time(std::process::id()) };
    let tables = timings.tables(whole);
    let written = options.timings.as_ref().map_or(Ok(()), |path| timings::write(path, &tables));
    say(&format!("\n{tables}"));
    for warning in timings.warnings(whole, processors()) {
        say(&format!("== WARNING: {warning}"));
    }
    let (skipped, ()) = all(result, written)?;
    end("ci", &skipped, if scope.is_whole() { "" } else { ", but for what was LEFT OUT" });
    Ok(())
}

/// Runs the checks of a scope. Returns what was skipped.
fn checks(root: &Path, scope: &Scope, timings: &Timings) -> anyhow::Result<Vec<String>> {
    let is_offline = std::env::var_os(OFFLINE).is_some_and(|value| value == "1");
    timings.step("tidy, chart, formatting", || {
        tidy::run(root)?;
        chart::run(root, true)?;
        programs::run(root, "formatting", &["fmt", "--all", "--check"])
    })?;
    if scope.is_empty() {
        return Ok(Vec::new());
    }
    // The drivers come from the network while the compiler keeps the processors busy.
    let lacks_drivers = AtomicBool::new(false);
    let get_drivers = || {
        if scope.needs_drivers() { wanted(root, is_offline) } else { drivers::find(root) }
    };
    let (drivers, built) = both(
        || {
            let drivers = timings.step("drivers installed and fetched", get_drivers);
            lacks_drivers.store(drivers.is_err(), Ordering::Relaxed);
            drivers.inspect_err(|error| say(&format!("== FAILED: {error:#}")))
        },
        || {
            timings.step("lints", || checks::lint_all(root))?;
            if lacks_drivers.load(Ordering::Relaxed) {
                return Ok(Vec::new());
            }
            timings.step("everything built", || checks::build(root))
        },
    );
    let (drivers, programs) = all(drivers, built)?;
    let mut skipped = drivers.missing.clone();
    let run = Run { root, scope, is_offline, drivers, programs, timings };
    skipped.extend(run.part(Part::Shaders, || shaders::check_unless_sealed(root))?);
    // Most of the other parts wait for a network or a browser.
    let (others, tested) = both(|| run.around_the_program(), || run.tests());
    let (others, tested) = all(others, tested)?;
    skipped.extend(others);
    skipped.extend(tested);
    Ok(skipped)
}

/// Installs and fetches the drivers. Returns an error that says how to go on if one is missing.
fn wanted(root: &Path, is_offline: bool) -> anyhow::Result<Drivers> {
    let drivers = drivers::ensure(root)?;
    if !drivers.missing.is_empty() && !is_offline {
        let missing = drivers.missing.join("; ");
        bail!("{missing}; to go on without the checks that need it: {OFFLINE}=1");
    }
    Ok(drivers)
}

/// Returns both results, or the errors of both.
fn all<A, B>(first: anyhow::Result<A>, second: anyhow::Result<B>) -> anyhow::Result<(A, B)> {
    match (first, second) {
        (Ok(first), Ok(second)) => Ok((first, second)),
        (Err(first), Err(second)) => bail!("{first:#}; {second:#}"),
        (Err(error), Ok(_)) | (Ok(_), Err(error)) => Err(error),
    }
}

/// Returns the processors of this machine, each of which runs one test program at a time.
fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, |processors| processors.get())
}

/// A run of the checks, once everything is built.
struct Run<'a> {
    root: &'a Path,
    scope: &'a Scope,
    is_offline: bool,
    drivers: Drivers,
    programs: Vec<Program>,
    timings: &'a Timings,
}

impl Run<'_> {
    /// Does a part if it is in the scope. Returns what was skipped.
    fn part<T: IntoIterator<Item = String>>(
        &self,
        part: Part,
        work: impl FnOnce() -> anyhow::Result<T>,
    ) -> anyhow::Result<Vec<String>> {
        if !self.scope.has(part) {
            return Ok(Vec::new());
        }
        let skipped = self.timings.step(part.title(), work);
        // The tests beside it take minutes more.
        let skipped = skipped.inspect_err(|error| eprintln!("== FAILED: {error:#}"))?;
        Ok(skipped.into_iter().collect())
    }

    /// Checks the kernels for the Radeon 780M, and the program: built alone, packed, in a
    /// container, by a browser and by a router. Returns what was skipped.
    fn around_the_program(&self) -> anyhow::Result<Vec<String>> {
        let Self { root, programs, .. } = self;
        let online = |what: &str, work: &dyn Fn() -> anyhow::Result<Option<String>>| {
            if self.is_offline { Ok(Some(format!("{what}, which is fetched"))) } else { work() }
        };
        let mut skipped = self.part(Part::Radv, || match &self.drivers.radv {
            Some(driver) => radv::check(root, driver, radv::example(programs)?),
            None => Ok(vec!["the report on the Radeon 780M's code: no RADV".to_owned()]),
        })?;
        skipped.extend(self.part(Part::Alone, || {
            programs::run(root, Part::Alone.title(), &ALONE)?;
            Ok(None)
        })?);
        skipped.extend(self.part(Part::Packages, || packages(root, programs, self.timings))?);
        skipped.extend(self.part(Part::Image, || online("the image", &|| image::run(root)))?);
        skipped.extend(self.part(Part::Page, || outside::page(root, programs))?);
        let router = || outside::router(root, programs);
        skipped.extend(self.part(Part::Router, || online("the router", &router))?);
        Ok(skipped)
    }

    /// Runs the tests, one program more at a time than there are processors. Returns what was
    /// skipped.
    fn tests(&self) -> anyhow::Result<Vec<String>> {
        let is_wanted =
            |program: &&Program| program.is_test && self.scope.has_package(program.folder());
        let (mut runs, mut skipped) = (Vec::new(), Vec::new());
        if self.scope.has_package(VULKAN) {
            (runs, skipped) = vulkan_runs(self.root, &self.drivers, &self.programs)?;
        }
        let others = self.programs.iter().filter(is_wanted);
        let mut others: Vec<_> = others.filter(|program| !program.is_test_of(VULKAN)).collect();
        others.sort_by_key(|program| !LONG_PROGRAMS.contains(&program.name.as_str()));
        if !others.is_empty() {
            let driver = self.drivers.lavapipe.as_ref();
            runs.push(TestRun { driver, ..TestRun::new("tests", others) });
        }
        // Some wait for others, such as servers and drivers: one more keeps the processors busy.
        let at_once = processors() + 1;
        self.timings
            .step("tests", || test_runs::run_all(self.root, &runs, at_once, self.timings))?;
        Ok(skipped)
    }
}

/// Packs the program that was built for the tests. Returns what was skipped, if anything.
fn packages(
    root: &Path,
    programs: &[Program],
    timings: &Timings,
) -> anyhow::Result<Option<String>> {
    if !dist::is_possible() {
        return Ok(Some("the packages: no dpkg-dev".to_owned()));
    }
    let packed = dist::pack(root, programs, timings).context("the packages failed")?;
    eprintln!("== packages: {} files", packed.len());
    Ok(None)
}

/// Runs only the tests of the Vulkan backend, on the drivers found.
pub(crate) fn vulkan(root: &Path) -> anyhow::Result<()> {
    let programs = checks::build(root)?;
    let drivers = drivers::find(root)?;
    let (runs, skipped) = vulkan_runs(root, &drivers, &programs)?;
    test_runs::run_all(root, &runs, processors(), &Timings::default())?;
    end("vulkan", &skipped, "");
    Ok(())
}

/// Runs only the tests of the server from outside.
pub(crate) fn outside(root: &Path) -> anyhow::Result<()> {
    let programs = checks::build(root)?;
    let skipped = [outside::page(root, &programs)?, outside::router(root, &programs)?];
    end("outside", &skipped.into_iter().flatten().collect::<Vec<_>>(), "");
    Ok(())
}

/// Prints that all has passed but for what was skipped, and for what `left_out` says.
fn end(what: &str, skipped: &[String], left_out: &str) {
    for what in skipped {
        say(&format!("== SKIPPED: {what}"));
    }
    let but = if skipped.is_empty() { "" } else { ", but for what was SKIPPED" };
    say(&format!("== {what}: passed{but}{left_out}"));
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
    let models = tests(&|program| program.kind == "test" && program.name == "it");
    let others = tests(&|program| program.kind == "test" && program.name != "it");
    let optimised = Some((OPTIMISED.0, OsStr::new(OPTIMISED.1)));
    let long = LONG_MODULES.map(|(module, compiles)| TestRun {
        arguments: vec![module],
        variable: if compiles { None } else { optimised },
        ..TestRun::new("tests of models", models.clone())
    });
    let rest = TestRun {
        arguments: LONG_MODULES.iter().flat_map(|(module, _)| ["--skip", module]).collect(),
        variable: optimised,
        ..TestRun::new("tests of models", models.clone())
    };
    let plain = [TestRun::new("tests of kernels", library.clone()), TestRun::new("tuning", others)];
    let kernels = TestRun {
        arguments: [&["--show-output"], &MATRIX_TESTS[..]].concat(),
        least: MATRIX_TESTS_LEAST,
        forbidden: Some(WITHOUT_MATRICES),
        ..TestRun::new("kernels with cooperative matrices", library.clone())
    };
    let matrices = MATRIX_MODEL_TESTS.into_iter().zip(MATRIX_MODEL_TESTS_LEAST);
    let matrices = matrices.map(|(names, least)| TestRun {
        arguments: names.to_vec(),
        least,
        ..TestRun::new("models with cooperative matrices", models.clone())
    });
    validation::prepare(root)?;

    let mut skipped = Vec::new();
    let mut all = Vec::new();
    for (name, driver, mut runs) in [
        ("the newer lavapipe", &drivers.matrix, matrices.chain([kernels]).collect()),
        (
            "the system's lavapipe",
            &drivers.lavapipe,
            long.into_iter().chain([rest]).chain(plain).collect::<Vec<_>>(),
        ),
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
