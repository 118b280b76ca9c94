//! The command line of `trine run`.

use std::path::PathBuf;

use clap::Args;

use super::draft::DraftArgs;
use super::models::FetchArgs;
use super::pictures::PictureArgs;
use super::placement::{MODEL_HELP, Placement};
use super::template::TemplateArgs;
use super::think::ThinkArgs;
use super::values::{Seed, parse_bias, parse_count, parse_limit, parse_number, parse_seed};

pub(super) const SHORT: &str = "With PROMPT, or with text on standard input, one answer is \
    written; else a chat begins. --help tells more.";

pub(super) const DETAILS: &str = "\
With a PROMPT, or with text on standard input, one answer is written and the program ends. Without
either a chat begins (/help shows its commands). With both, the text of standard input comes after
the prompt, with an empty line between: trine run MODEL \"Summarise this\" < report.txt. A PROMPT of
`-` is only standard input. A program that starts trine in a loop over its own standard input gives
it another one: < /dev/null.

The first word is the model: trine run demo Tell me a story. A single argument of several words is
the prompt for the default model: trine run \"Once upon a time\". On a terminal, an image that the
prompt names by its path is attached.

A model that is known and not on this machine is downloaded after a question, or with --yes. A
preset's system prompt and parameters apply unless an option says otherwise.

The prompt is put into the model's chat template; --raw continues it without. A model without a
template always continues.

Sampling settings that are not given are the model's own. The same --seed gives the same text on the
same device, on a CPU with the same number of threads.

The text goes to standard output, everything else to standard error.";

/// `trine run`
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// The model to run [default: demo]
    #[arg(value_name = "MODEL", long_help = MODEL_HELP)]
    pub(crate) model: Option<String>,

    /// What to say to it; several words are joined, `-` reads standard input
    #[arg(value_name = "PROMPT")]
    pub(crate) prompt: Vec<String>,

    /// The same as PROMPT, as llama.cpp's programs take it.
    #[arg(
        short = 'p', long = "prompt", id = "prompt_option", value_name = "TEXT", hide = true,
        allow_hyphen_values = true, conflicts_with_all = ["prompt", "prompt_file"]
    )]
    pub(crate) prompt_option: Option<String>,

    /// How long Ollama's program keeps a model loaded.
    #[arg(
        long = "keepalive",
        alias = "keep-alive",
        value_name = "TIME",
        hide = true,
        allow_hyphen_values = true
    )]
    pub(crate) keepalive: Option<String>,

    /// Take the prompt from a file; `-` is standard input
    #[arg(long, short_alias = 'f', alias = "file", value_name = "FILE", conflicts_with = "prompt")]
    pub(crate) prompt_file: Option<PathBuf>,

    /// Instructions before the conversation
    #[arg(long, value_name = "TEXT", conflicts_with = "raw")]
    pub(crate) system: Option<String>,

    /// Do not apply the chat template
    #[arg(long, conflicts_with = "chat_template")]
    pub(crate) raw: bool,

    /// Chat even though standard input is not a terminal: its lines are taken as if typed
    #[arg(short, long, conflicts_with_all = ["prompt", "prompt_option", "prompt_file", "json"])]
    pub(crate) interactive: bool,

    /// Print one JSON object with text, counts, timings and the reason for the end
    #[arg(long)]
    pub(crate) json: bool,

    /// Only warnings and errors on standard error
    #[arg(short, long, conflicts_with = "verbose")]
    pub(crate) quiet: bool,

    #[command(flatten)]
    pub(crate) template: TemplateArgs,

    #[command(flatten)]
    pub(crate) fetch: FetchArgs,

    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,

    #[command(flatten)]
    pub(crate) thinking: ThinkArgs,

    #[command(flatten)]
    pub(crate) drafting: DraftArgs,

    #[command(flatten)]
    pub(crate) pictures: PictureArgs,

    #[command(flatten)]
    pub(crate) placement: Placement,
}

/// How tokens are chosen, and when to stop.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct SamplingArgs {
    /// Maximum number of tokens to generate [default: until the model ends or the context is full]
    #[arg(short = 'n', long, aliases = ["n-predict", "predict",
        "num-predict"], value_name = "N", value_parser = parse_limit)]
    pub(crate) max_tokens: Option<usize>,

    /// Randomness: 0 always takes the most likely token
    #[arg(long, alias = "temp", value_name = "T", value_parser = parse_number::<f32>)]
    pub(crate) temperature: Option<f32>,

    /// Choose among the K most likely tokens; 0 for all
    #[arg(long, value_name = "K", value_parser = parse_count)]
    pub(crate) top_k: Option<usize>,

    /// Choose among the most likely tokens that together have probability P
    #[arg(long, value_name = "P", value_parser = parse_number::<f32>)]
    pub(crate) top_p: Option<f32>,

    /// Leave out tokens less likely than P times the most likely one
    #[arg(long, value_name = "P", value_parser = parse_number::<f32>)]
    pub(crate) min_p: Option<f32>,

    /// Start of the random numbers [default: -1, another one each time]
    #[arg(long, short_alias = 's', value_name = "N", value_parser = parse_seed)]
    pub(crate) seed: Option<Seed>,

    /// Divide the scores of tokens that were used already; 1 is off
    #[arg(long, alias = "repeat-penalty", value_name = "X", value_parser = parse_number::<f32>)]
    pub(crate) repetition_penalty: Option<f32>,

    /// Subtract from the scores of tokens that were used already; 0 is off
    #[arg(long, value_name = "X", value_parser = parse_number::<f32>)]
    pub(crate) presence_penalty: Option<f32>,

    /// Subtract from the scores of tokens for each time they were used; 0 is off
    #[arg(long, value_name = "X", value_parser = parse_number::<f32>)]
    pub(crate) frequency_penalty: Option<f32>,

    /// Add VALUE to the score of token ID; can be repeated
    #[arg(long, value_name = "ID=VALUE", value_parser = parse_bias)]
    pub(crate) logit_bias: Vec<(u32, f32)>,

    /// End the answer before this text; can be repeated
    #[arg(long, value_name = "TEXT")]
    pub(crate) stop: Vec<String>,
}
