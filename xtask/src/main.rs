//! Development tasks, run as `cargo xtask TASK`.

mod ci;
mod sources;
mod tidy;

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
    /// Everything that has to pass before a change lands: formatting, lints, tidy, all tests.
    Ci,
    /// The rules of the house that no compiler checks.
    Tidy,
}

fn main() -> ExitCode {
    let result = match Arguments::parse().task {
        Task::Ci => ci::run(&root()),
        Task::Tidy => tidy::run(&root()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The repository's root.
fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_owned()
}
