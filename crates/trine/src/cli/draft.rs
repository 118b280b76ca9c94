//! The options about what guesses tokens.

use clap::Args;
use trine_session::device::DeviceChoice;
use trine_session::draft::DraftChoice;

use super::values::parse_guesses;

/// What guesses the tokens that follow, so that a step can verify several. Guesses change how fast
/// tokens come, and never which where logits do not depend on the width of a step.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Drafts")]
pub(crate) struct DraftArgs {
    /// What guesses tokens, which makes text faster and changes none of it on the CPU or with
    /// --batch-invariant: ngram looks them up in the text so far and in earlier answers; a MODEL
    /// with the same tokenizer guesses where that finds nothing or is less often right; auto is
    /// ngram, with demo-draft for demo, and for a Gemma 4 with the draft that was made for it, if
    /// it is on this machine; off [default: auto; bench: off]
    #[arg(long, value_name = "MODEL", value_parser = DraftChoice::parse)]
    pub(crate) draft: Option<DraftChoice>,

    /// Where the draft model runs [default: where the model does, on its first GPU if it has
    /// several]
    #[arg(long, value_name = "DEVICE", value_parser = DeviceChoice::parse)]
    pub(crate) draft_device: Option<DeviceChoice>,

    /// Guesses for each request in every step, as far as there are rows [default: as many as pay;
    /// bench --acceptance: 4]
    #[arg(long, value_name = "N", value_parser = parse_guesses)]
    pub(crate) drafts: Option<usize>,
}
