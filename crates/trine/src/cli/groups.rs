//! The program's own help: commands in groups, for people who look for one.

use anstyle::Style;
use clap::Command;

/// The commands by what they are for. A test shows that each is in one group.
const GROUPS: [(&str, &[&str]); 5] = [
    ("Talk", &["run", "serve"]),
    ("Models", &["search", "pull", "list", "show", "rm", "create", "cp", "quantize"]),
    ("Server", &["top", "ps", "stop", "config"]),
    ("This machine", &["doctor", "plan", "bench", "npu"]),
    ("For developers", &["explain", "eval", "logits", "completions", "man"]),
];

const HEADING: Style = Style::new().bold().underline();

/// Returns the program with its commands in groups. The options of commands that run a model are
/// taken before the command's name too; there they are not listed.
pub(super) fn grouped(program: Command) -> Command {
    let mut help = "{about-with-newline}\n{usage-heading} {usage}\n".to_owned();
    for (heading, names) in GROUPS {
        help.push_str(&format!("\n{HEADING}{heading}:{HEADING:#}\n"));
        for name in names {
            let about = program.find_subcommand(name).and_then(Command::get_about);
            let about = about.map(|about| about.to_string()).unwrap_or_default();
            help.push_str(&format!("  {name:<12} {about}\n"));
        }
    }
    help.push_str(&format!(
        "\n{HEADING}Options:{HEADING:#}\n{{options}}\n\n`trine COMMAND -h` lists a command's \
         options, `--help` explains them.{{after-help}}"
    ));
    let shown = ["verbose", "help", "version"];
    program
        .mut_args(|arg| {
            let is_shown = shown.contains(&arg.get_id().as_str());
            if is_shown { arg } else { arg.hide(true) }
        })
        .help_template(help)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::CommandFactory;

    use super::*;
    use crate::cli::Cli;

    #[test]
    fn every_command_is_in_one_group() {
        let mut all = BTreeSet::new();
        for name in GROUPS.iter().flat_map(|(_, names)| *names) {
            assert!(all.insert(*name), "{name} is there twice");
        }
        let program = Cli::command();
        let commands: BTreeSet<&str> = program.get_subcommands().map(Command::get_name).collect();
        assert_eq!(all, commands);
    }
}
