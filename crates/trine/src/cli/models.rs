//! The command lines of the commands for the models on this machine.

use std::path::PathBuf;

use clap::Args;
use trine_session::draft::DraftChoice;
use trine_session::fetch::Download;

use super::placement::MODEL_HELP;
use super::template::TemplateArgs;
use super::values::{parse_number, parse_positive, whole};

/// What a command may do about a model that is not here.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct FetchArgs {
    /// Download the model without asking if it is not on this machine
    #[arg(short, long)]
    pub(crate) yes: bool,
}

impl FetchArgs {
    /// Returns what is given.
    pub(crate) fn download(&self) -> Download {
        if self.yes { Download::Always } else { Download::Ask }
    }

    /// Returns what is given, for a command that runs nothing: it downloads what `--yes` says, and
    /// is no reason to ask.
    pub(crate) fn unasked(&self) -> Download {
        if self.yes { Download::Always } else { Download::Never }
    }
}

/// `trine pull`
#[derive(Debug, Args)]
#[command(after_help = "HF_TOKEN is sent to repositories that need it, HF_ENDPOINT names another \
    server, TRINE_HOME another folder for models. An interrupted download continues where it \
    stopped. A GGUF model comes with the mmproj file that goes with it, if its repository has one: \
    in F16, else BF16, F32 or Q8_0. Another pull adds it to a model without.")]
pub(crate) struct PullArgs {
    /// gemma3:4b (`trine search` lists such names), owner/repo, owner/repo:Q4_K_M or
    /// owner/repo/file.gguf
    #[arg(value_name = "MODEL")]
    pub(crate) model: String,

    /// Download a model that has no memory here without asking
    #[arg(short, long)]
    pub(crate) yes: bool,

    /// Leave out the vision tower of a GGUF model, its mmproj file: texts only
    #[arg(long)]
    pub(crate) no_mmproj: bool,

    /// Print the files as JSON when done
    #[arg(long)]
    pub(crate) json: bool,
}

/// `trine search`
#[derive(Debug, Args)]
#[command(after_help = "The list is part of the program and needs no network. Tokens per second \
    are forecasts for this machine, from its memory bandwidth. Any other repository of Hugging \
    Face with GGUF or safetensors files of Gemma 3, 3n or 4 is named owner/repo or \
    owner/repo:Q4_0.")]
pub(crate) struct SearchArgs {
    /// Words that the name, the repository or the quantisation holds, such as `qat 4b`
    #[arg(value_name = "TEXT")]
    pub(crate) text: Vec<String>,

    /// Leave out the measurement of this machine (it takes a second), and with it tokens per second
    #[arg(long)]
    pub(crate) quick: bool,

    /// Print the list as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `trine list`
#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Print the names only, one a line
    #[arg(short, long, conflicts_with = "json")]
    pub(crate) quiet: bool,

    /// Print the list as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `trine rm`
#[derive(Debug, Args)]
pub(crate) struct RemoveArgs {
    /// A downloaded model or a preset, as `trine list` names it
    #[arg(value_name = "MODEL")]
    pub(crate) model: String,

    /// Accepted because other commands take it: a removal asks nothing.
    #[arg(short, long, hide = true)]
    pub(crate) yes: bool,
}

/// `trine show`
#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// The model to show [default: demo]
    #[arg(value_name = "MODEL", long_help = MODEL_HELP)]
    pub(crate) model: Option<String>,

    /// Print the chat template, and nothing else
    #[arg(long, conflicts_with_all = ["tensors", "json"])]
    pub(crate) template: bool,

    /// List every tensor
    #[arg(long)]
    pub(crate) tensors: bool,

    /// The draft MODEL to show beside it: its size and memory; auto is demo-draft for demo; off
    /// [default: auto]
    #[arg(long, value_name = "MODEL", value_parser = DraftChoice::parse)]
    pub(crate) draft: Option<DraftChoice>,

    /// Print everything as JSON
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) fetch: FetchArgs,
}

/// `trine create`
#[derive(Debug, Args)]
#[command(
    after_help = "A preset is a name for a model with a system prompt and parameters; it holds no \
        weights. What it does not set is the model's own, and options of `run` come before it. \
        --from takes another preset too. --help tells what is read of a Modelfile.",
    after_long_help = "\
A preset is a name for a model with a system prompt and parameters; it holds no weights. What it
does not set is the model's own, and options of `run` come before it. --from takes another preset
too, eight deep at most. A preset of the same name is replaced.

Of a Modelfile of Ollama's FROM, SYSTEM, PARAMETER and MESSAGE are taken, texts in \"\"\" over
several lines too. TEMPLATE and ADAPTER are refused: trine uses the model's own template, and has no
adapters. LICENSE and parameters about where a model runs are left out, with a note. Options come
before what the file says."
)]
pub(crate) struct CreateArgs {
    /// The preset's name, such as mario or mario:formal
    #[arg(value_name = "NAME")]
    pub(crate) name: String,

    /// The model or preset that it stands on
    #[arg(long, value_name = "MODEL", required_unless_present = "file")]
    pub(crate) from: Option<String>,

    /// Read a Modelfile
    #[arg(short, long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,

    /// Instructions that stand before a conversation
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,

    #[command(flatten)]
    pub(crate) template: TemplateArgs,

    #[command(flatten)]
    pub(crate) fetch: FetchArgs,

    #[command(flatten)]
    pub(crate) parameters: PresetArgs,
}

/// Parameters of a preset.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Parameters")]
pub(crate) struct PresetArgs {
    /// Randomness: 0 always takes the most likely token
    #[arg(long, alias = "temp", value_name = "T", value_parser = parse_number::<f64>)]
    pub(crate) temperature: Option<f64>,

    /// Choose among the K most likely tokens; 0 for all
    #[arg(long, value_name = "K", value_parser = whole(0..=u32::MAX))]
    pub(crate) top_k: Option<u32>,

    /// Choose among the most likely tokens that together have probability P
    #[arg(long, value_name = "P", value_parser = parse_number::<f64>)]
    pub(crate) top_p: Option<f64>,

    /// Leave out tokens less likely than P times the most likely one
    #[arg(long, value_name = "P", value_parser = parse_number::<f64>)]
    pub(crate) min_p: Option<f64>,

    /// Divide the scores of tokens that were used already; 1 is off
    #[arg(
        long, visible_alias = "repeat-penalty", value_name = "X", value_parser = parse_number::<f64>
    )]
    pub(crate) repetition_penalty: Option<f64>,

    /// Subtract from the scores of tokens that were used already; 0 is off
    #[arg(long, value_name = "X", value_parser = parse_number::<f64>)]
    pub(crate) presence_penalty: Option<f64>,

    /// Subtract from the scores of tokens for each time they were used; 0 is off
    #[arg(long, value_name = "X", value_parser = parse_number::<f64>)]
    pub(crate) frequency_penalty: Option<f64>,

    /// Start of the random numbers
    #[arg(long, value_name = "N", value_parser = whole(0..=u64::MAX))]
    pub(crate) seed: Option<u64>,

    /// Maximum number of tokens to generate
    #[arg(long, value_name = "N", value_parser = parse_positive)]
    pub(crate) max_tokens: Option<usize>,

    /// Context length in tokens
    #[arg(
        short, long, aliases = ["ctx-size", "num-ctx"], value_name = "N",
        value_parser = parse_positive
    )]
    pub(crate) context: Option<usize>,

    /// End the answer before this text; can be repeated
    #[arg(long, value_name = "TEXT")]
    pub(crate) stop: Vec<String>,
}

/// `trine cp`
#[derive(Debug, Args)]
#[command(
    after_help = "The copy is a preset: it uses the same weights and takes no disk space. A \
    preset is copied unchanged."
)]
pub(crate) struct CopyArgs {
    /// The model or preset to copy
    #[arg(value_name = "FROM")]
    pub(crate) from: String,

    /// The alias
    #[arg(value_name = "NAME")]
    pub(crate) name: String,

    #[command(flatten)]
    pub(crate) fetch: FetchArgs,
}
