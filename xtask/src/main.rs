//! Development tasks, run as `cargo xtask TASK`.

mod apt;
mod bad_input;
mod changed;
mod chart;
mod checks;
mod ci;
mod circles;
mod dist;
mod documents;
mod driver;
mod drivers;
mod hash;
mod image;
mod imports;
mod lanes;
mod lines;
mod machine;
mod meter;
mod orphans;
mod outside;
mod programs;
mod radv;
mod shaders;
mod sources;
mod standard_library;
mod systems;
mod test_runs;
mod tidy;
mod timings;
mod type_names;
mod validation;
mod widths;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Development tasks of trine.
#[derive(Parser)]
#[command(name = "xtask")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Draw the recorded benchmarks of docs/benchmarks, and write their tables.
    Chart {
        /// Write nothing; fail if a committed chart or table is not what its record gives.
        #[arg(long)]
        check: bool,
    },
    /// Everything that has to pass before a change lands: tidy, formatting, lints, shaders, all
    /// tests, reports.
    Ci(ci::Options),
    /// Packages of the program in target/dist: an archive, a Debian package, a bill of materials,
    /// and what publishes them.
    Dist {
        /// Pack the program without optimisation, to try how it is packed.
        #[arg(long)]
        dev: bool,
    },
    /// Install and fetch the Vulkan drivers and the browser that the tests run on, and print how to
    /// use each driver.
    Drivers,
    /// Check the types of everything for macOS.
    Macos,
    /// The server from outside: its page in a headless Chromium, and several of them behind
    /// sglang-router.
    Outside,
    /// Report what RADV makes of the Vulkan backend's kernels for the Radeon 780M:
    /// docs/benchmarks/radv-phoenix.md.
    Radv {
        /// Write nothing; fail if the committed report differs.
        #[arg(long)]
        check: bool,
    },
    /// Compile the Vulkan backend's shaders to the SPIR-V that is committed. Takes a C++ compiler.
    Shaders {
        /// Write nothing; fail if a committed file is not what its source gives.
        #[arg(long)]
        check: bool,
    },
    /// What publishes the packages of all systems in target/dist: checksums, manifests for winget
    /// and Homebrew, the script that installs, the notes.
    Release(dist::ReleaseOptions),
    /// The rules of the house that no compiler checks.
    Tidy,
    /// The tests of the Vulkan backend on the drivers of `drivers`, under the validation layer.
    Vulkan,
    /// Build everything for Windows, pack the program in target/dist, and run it and the tests of
    /// the portable crates under Wine.
    Windows {
        /// Build and pack the optimised program only.
        #[arg(long)]
        release: bool,
    },
}

#[cfg(test)]
mod workflow_tests;

fn main() -> ExitCode {
    let result = match Arguments::parse().task {
        Task::Chart { check } => chart::run(&root(), check),
        Task::Ci(options) => ci::run(&root(), &options),
        Task::Dist { dev } => dist::run(&root(), dev),
        Task::Drivers => drivers::run(&root()),
        Task::Macos => systems::macos(&root()),
        Task::Outside => ci::outside(&root()),
        Task::Radv { check } => radv::run(&root(), check),
        Task::Shaders { check } => shaders::run(&root(), check).map(drop),
        Task::Release(options) => dist::publish(&root(), &options),
        Task::Tidy => tidy::run(&root()),
        Task::Vulkan => ci::vulkan(&root()),
        Task::Windows { release } => systems::windows(&root(), release),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the repository's root.
fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_owned()
}
