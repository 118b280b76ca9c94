//! How `bench` chooses tokens.

use clap::Args;
use trine_engine::LOGPROBS_MAX;

use super::values::{parse_count, parse_number, whole};

/// What writes a text of its own, which is that of the most likely tokens.
const SCRIPTS: [&str; 2] = ["acceptance", "recite"];

/// How the tokens of tests of generation are chosen.
#[derive(Debug, Clone, Default, PartialEq, Args)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct ChoosingArgs {
    /// Randomness: 0 always takes the most likely token [default: 0, or 1 with --top-k or --top-p]
    #[arg(
        long, alias = "temp", value_name = "T", value_parser = parse_number::<f32>,
        conflicts_with_all = SCRIPTS
    )]
    pub(crate) temperature: Option<f32>,

    /// Choose among the K most likely tokens; 0 for all [default: 0]
    #[arg(long, value_name = "K", value_parser = parse_count, conflicts_with_all = SCRIPTS)]
    pub(crate) top_k: Option<usize>,

    /// Choose among the most likely tokens that together have probability P [default: 1]
    #[arg(long, value_name = "P", value_parser = parse_number::<f32>, conflicts_with_all = SCRIPTS)]
    pub(crate) top_p: Option<f32>,

    /// Divide the scores of tokens that were used already; 1 is off
    #[arg(
        long, alias = "repeat-penalty", value_name = "X", value_parser = parse_number::<f32>,
        conflicts_with_all = SCRIPTS
    )]
    pub(crate) repetition_penalty: Option<f32>,

    /// Subtract from the scores of tokens that were written already; 0 is off
    #[arg(long, value_name = "X", value_parser = parse_number::<f32>, conflicts_with_all = SCRIPTS)]
    pub(crate) presence_penalty: Option<f32>,

    /// Write only what a grammar allows: a JSON schema, a grammar in GBNF (with `::=`), or else a
    /// regular expression. It must let texts go on, as `[a-z ]*` does
    #[arg(long, value_name = "GRAMMAR", conflicts_with_all = ["acceptance", "accept", "recite"])]
    pub(crate) grammar: Option<String>,

    /// Ask for the log-probability of each token, and of the N most likely ones beside it
    #[arg(long, value_name = "N", value_parser = whole(0usize..=LOGPROBS_MAX))]
    pub(crate) logprobs: Option<usize>,
}
