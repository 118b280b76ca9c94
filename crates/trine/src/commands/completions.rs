//! `trine completions`

use anyhow::Result;
use clap_complete::{Shell as Generator, generate};

use crate::cli::{self, CompletionsArgs, Shell};
use crate::terminal::output;

/// Prints the completion script.
///
/// # Errors
/// Returns an error if standard output cannot be written.
pub(crate) fn run(args: CompletionsArgs) -> Result<()> {
    let shell = match args.shell {
        Shell::Bash => Generator::Bash,
        Shell::Elvish => Generator::Elvish,
        Shell::Fish => Generator::Fish,
        Shell::Powershell => Generator::PowerShell,
        Shell::Zsh => Generator::Zsh,
    };
    let mut script = Vec::new();
    generate(shell, &mut cli::command(), "trine", &mut script);
    output::block(&String::from_utf8_lossy(&script))
}
