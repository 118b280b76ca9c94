//! `trine man`

use std::path::Path;

use anyhow::{Context, Result};
use clap::{Command, CommandFactory};
use clap_mangen::Man;

use crate::cli::{Cli, ManArgs};
use crate::failure::usage;
use crate::terminal::output;

/// Prints the man page of the program or of a command, or writes all of them to a folder.
///
/// # Errors
/// Returns an error if the folder or standard output cannot be written.
pub(crate) fn run(args: ManArgs) -> Result<()> {
    let mut program = Cli::command();
    if let Some(folder) = &args.to {
        return write_all(program, folder);
    }
    // After this, the names of commands are those of their pages.
    program.build();
    let page = match &args.command {
        None => program,
        Some(name) => {
            let found = program.get_subcommands().find(|command| command.get_name() == name);
            let unknown = || {
                let all: Vec<&str> = program.get_subcommands().map(Command::get_name).collect();
                usage(format!("there is no command {name}; the commands are {}", all.join(", ")))
            };
            found.ok_or_else(unknown)?.clone()
        }
    };
    let mut text = Vec::new();
    Man::new(page).render(&mut text)?;
    output::block(&String::from_utf8_lossy(&text))
}

fn write_all(program: Command, folder: &Path) -> Result<()> {
    let fail = || format!("cannot write man pages to {}; check the path", folder.display());
    std::fs::create_dir_all(folder).with_context(fail)?;
    clap_mangen::generate_to(program, folder).with_context(fail)
}
