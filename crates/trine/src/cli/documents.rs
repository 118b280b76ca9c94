//! `trine completions` and `trine man`: documents about the program's own command line.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// `trine completions`
#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    pub(crate) shell: Shell,
}

/// Shells with completion scripts.
#[derive(Debug, Clone, Copy, ValueEnum)]
#[allow(missing_docs, reason = "the names say it")]
pub(crate) enum Shell {
    Bash,
    Elvish,
    Fish,
    Powershell,
    Zsh,
}

/// `trine man`
#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// The command [default: the program itself]
    pub(crate) command: Option<String>,

    /// Write the pages of the program and of all commands to this folder
    #[arg(long, value_name = "FOLDER", conflicts_with = "command")]
    pub(crate) to: Option<PathBuf>,
}
