//! Options about thinking.

use clap::Args;

use super::values::parse_count;

/// Whether and how long a model thinks before it answers.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Thinking")]
pub(crate) struct ThinkArgs {
    /// Let the model think before it answers, if it can; its reasoning is shown on standard error
    #[arg(long, conflicts_with = "raw")]
    pub(crate) think: bool,

    /// Let it answer at once [default]
    #[arg(long, conflicts_with_all = ["think", "think_budget", "raw"])]
    pub(crate) no_think: bool,

    /// Maximum number of reasoning tokens, after which the answer begins; implies --think
    #[arg(long, value_name = "N", value_parser = parse_count, conflicts_with = "raw")]
    pub(crate) think_budget: Option<usize>,
}

impl ThinkArgs {
    /// Returns whether the model is to think; `None` if nobody said so.
    pub(crate) fn is_on(&self) -> Option<bool> {
        match (self.think, self.think_budget) {
            (_, Some(0)) => Some(false),
            (true, _) | (_, Some(_)) => Some(true),
            (false, None) => self.no_think.then_some(false),
        }
    }
}
