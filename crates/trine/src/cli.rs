//! The command line's structure and its help. Its meaning is in [`crate::options`].

use std::path::PathBuf;

use clap::{ArgAction, Args, CommandFactory, Parser, Subcommand};
use trine_model::KvType;
use trine_weights::DType;

mod choosing;
mod documents;
mod draft;
mod explain;
mod groups;
mod logits;
mod models;
mod npu;
mod pictures;
mod placement;
mod run;
mod serve;
mod servers;
mod template;
mod think;
mod top;
mod values;

pub(crate) use choosing::ChoosingArgs;
pub(crate) use documents::{CompletionsArgs, ManArgs, Shell};
pub(crate) use draft::DraftArgs;
pub(crate) use explain::ExplainArgs;
pub(crate) use logits::LogitsArgs;
pub(crate) use models::{
    CopyArgs, CreateArgs, FetchArgs, ListArgs, PresetArgs, PullArgs, RemoveArgs, SearchArgs,
    ShowArgs,
};
pub(crate) use npu::{
    NpuArgs, NpuCommand, NpuDoctorArgs, NpuInspectArgs, NpuPackArgs, NpuSelftestArgs, NpuVerifyArgs,
};
pub(crate) use pictures::{BenchPicture, TowerArgs};
use placement::MODEL_HELP;
pub(crate) use placement::Placement;
pub(crate) use run::{RunArgs, SamplingArgs};
pub(crate) use serve::ServeArgs;
pub(crate) use servers::{ConfigArgs, PsArgs, ServerArgs, StopArgs};
pub(crate) use top::TopArgs;
use trine_session::draft::DraftChoice;
use trine_session::quantize::Recipe;
pub(crate) use values::{FITTING_LAYERS, NO_LIMIT, Seed};
use values::{
    parse_batch, parse_bytes, parse_context, parse_count, parse_drafts, parse_format, parse_gap,
    parse_kv, parse_positive, parse_probability, parse_rate, parse_recipe, parse_target, whole,
};

/// Shown at the end of every command's long help.
const EXIT_CODES: &str = "\
Exit codes:
  0    done (also when the reader of the output went away)
  1    an error; the message says what happened and what to do
  2    the command line cannot be understood
  101  a bug in trine; please report it
  130  interrupted with Ctrl-C";

/// Runs Gemma models on this machine.
#[derive(Debug, Parser)]
#[command(
    name = "trine", version, after_help = EXIT_CODES, max_term_width = 100,
    infer_subcommands = false
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) placement: Placement,

    /// Say more on standard error: decisions and timings; twice for details
    #[arg(
        short, long, action = ArgAction::Count, global = true, help_heading = None::<&'static str>
    )]
    pub(crate) verbose: u8,

    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Returns the command line's definition. Negative numbers are values of every option that takes
/// one: a message about the value says more than that `-1` is not an option.
pub(crate) fn command() -> clap::Command {
    let values = |arg: clap::Arg| {
        let takes = arg.get_action().takes_values() && !arg.is_positional();
        if takes { arg.allow_negative_numbers(true) } else { arg }
    };
    let program = groups::grouped(Cli::command());
    program.mut_args(values).mut_subcommands(|command| command.mut_args(values))
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Chat with a model, or answer one prompt
    #[command(alias = "chat", after_long_help = run::DETAILS, after_help = run::SHORT)]
    Run(RunArgs),
    /// Start a server with OpenAI, Anthropic and Ollama APIs and a chat page
    #[command(alias = "server", after_long_help = serve::DETAILS, after_help = serve::SHORT)]
    Serve(ServeArgs),
    /// Watch a server live: speed, requests, queue
    #[command(after_long_help = top::DETAILS, after_help = top::SHORT)]
    Top(TopArgs),
    /// List the models that a server has loaded
    Ps(PsArgs),
    /// Make a server unload a model
    Stop(StopArgs),
    /// Measure how fast a model runs on this machine
    Bench(BenchArgs),
    /// Measure how well a model predicts a text, or how far it is from another model
    Eval(EvalArgs),
    /// Show what running a model means: memory, cost, steps, devices
    Explain(ExplainArgs),
    /// Forecast how fast a model runs on a machine, this one or another
    Plan(PlanArgs),
    /// Write a smaller copy of a model as a GGUF file
    Quantize(QuantizeArgs),
    /// Download a model from Hugging Face
    Pull(PullArgs),
    /// List models that can be downloaded, whether they fit and how fast they would be
    Search(SearchArgs),
    /// List downloaded models and presets
    #[command(alias = "ls")]
    List(ListArgs),
    /// Remove a downloaded model or a preset
    Rm(RemoveArgs),
    /// Give a model a name, a system prompt and parameters of its own
    Create(CreateArgs),
    /// Give a model an alias
    Cp(CopyArgs),
    /// Show what a model is: size, formats, tokenizer, defaults
    Show(ShowArgs),
    /// Show the settings in effect, and where they come from
    Config(ConfigArgs),
    /// Check this machine: what is wrong, and which model suits it
    Doctor(DoctorArgs),
    /// Write a model's logits for a list of token ids
    Logits(LogitsArgs),
    /// Look for an AMD XDNA1 NPU, inspect and verify its files (never run on silicon)
    #[command(after_long_help = npu::DETAILS, after_help = npu::SHORT)]
    Npu(NpuArgs),
    /// Print a completion script for a shell
    Completions(CompletionsArgs),
    /// Print the manual page of the program or of a command
    Man(ManArgs),
}

impl Command {
    /// Returns the options of a command that runs a model, and the command's name.
    pub(crate) fn placement_mut(&mut self) -> (&'static str, Option<&mut Placement>) {
        match self {
            Command::Run(args) => ("run", Some(&mut args.placement)),
            Command::Serve(args) => ("serve", Some(&mut args.placement)),
            Command::Bench(args) => ("bench", Some(&mut args.placement)),
            Command::Eval(args) => ("eval", Some(&mut args.placement)),
            Command::Explain(args) => ("explain", Some(&mut args.placement)),
            Command::Logits(args) => ("logits", Some(&mut args.placement)),
            Command::Top(_) => ("top", None),
            Command::Ps(_) => ("ps", None),
            Command::Stop(_) => ("stop", None),
            Command::Config(_) => ("config", None),
            // Its --device is a machine, and its --context a list.
            Command::Plan(_) => ("plan", None),
            Command::Quantize(_) => ("quantize", None),
            Command::Pull(_) => ("pull", None),
            Command::Search(_) => ("search", None),
            Command::Create(_) => ("create", None),
            Command::Cp(_) => ("cp", None),
            Command::List(_) => ("list", None),
            Command::Rm(_) => ("rm", None),
            Command::Show(_) => ("show", None),
            Command::Doctor(_) => ("doctor", None),
            Command::Npu(_) => ("npu", None),
            Command::Completions(_) => ("completions", None),
            Command::Man(_) => ("man", None),
        }
    }
}

/// `trine bench`
#[derive(Debug, Args)]
#[command(after_help = "Every test runs --repeats times after one run that is not counted, all \
    tests in turn, and between them the streaming read bandwidth is measured: the GPU's, or the \
    CPU's with the same number of threads. Shown are the median, the quartiles and the extremes; \
    values beyond 1.5 interquartile ranges from the quartiles are marked and kept. With --draft or \
    --acceptance each test of generation is run without and with guesses, in turn. Where a sensor \
    of energy can be read, joules per token are shown too.")]
pub(crate) struct BenchArgs {
    /// The model to measure [default: demo]
    #[arg(value_name = "MODEL", long_help = MODEL_HELP)]
    pub(crate) model: Option<String>,

    /// Prompt lengths in tokens, separated by commas; 0 for none
    #[arg(
        short = 'p',
        long = "prompt",
        value_name = "N,...",
        value_delimiter = ',',
        default_value = "512",
        value_parser = parse_count
    )]
    pub(crate) prompt: Vec<usize>,

    /// Numbers of tokens to generate, separated by commas; 0 for none
    #[arg(
        short = 'n',
        long = "generate",
        value_name = "N,...",
        value_delimiter = ',',
        default_value = "128",
        value_parser = parse_count
    )]
    pub(crate) generate: Vec<usize>,

    /// Numbers of requests at once, separated by commas
    #[arg(
        short, long, value_name = "N,...", value_delimiter = ',', default_value = "1",
        value_parser = parse_count
    )]
    pub(crate) batch: Vec<usize>,

    /// Tokens already in the context before generation, separated by commas
    #[arg(
        short, long, value_name = "N,...", value_delimiter = ',', default_value = "0",
        value_parser = parse_count
    )]
    pub(crate) depth: Vec<usize>,

    /// How often each test runs
    #[arg(short, long, value_name = "N", default_value = "10", value_parser = whole(1u16..=10_000))]
    pub(crate) repeats: u16,

    /// Also measure each step of the pass, with a pause after each
    #[arg(long)]
    pub(crate) steps: bool,

    /// A text, UTF-8, that --draft continues from many places [default: stories inside this
    /// program]
    #[arg(long, value_name = "FILE", requires = "draft")]
    pub(crate) text: Option<PathBuf>,

    /// Measure on what --text says: the device runs every row, but the text goes on as it is
    /// written there, as with a model that always writes just that
    #[arg(long, requires = "text")]
    pub(crate) recite: bool,

    /// Measure what verifying costs: the device runs every row, but the text and its guesses are
    /// a script's, each guess right with probability P
    #[arg(long, value_name = "P", value_parser = parse_probability, conflicts_with_all = ["draft",
        "draft_device", "text", "recite"])]
    pub(crate) acceptance: Option<f64>,

    /// Measure a draft that reads the model's caches at a given acceptance: model and draft run
    /// every row, but whether a guess is right is drawn. P is the share of drafts whose first guess
    /// is right, the next one that of drafts whose first two are, and so on; there are no more
    /// guesses than numbers
    #[arg(
        long,
        value_name = "P,...",
        value_delimiter = ',',
        value_parser = parse_probability,
        requires = "draft",
        conflicts_with_all = ["acceptance", "text", "recite"]
    )]
    pub(crate) accept: Vec<f64>,

    /// Measure the vision tower in place of texts, with an image: a file, or random pixels of these
    /// sides [default: 1024x768]
    #[arg(
        long,
        value_name = "FILE|WxH",
        num_args = 0..=1,
        default_missing_value = "",
        value_parser = BenchPicture::parse,
        help_heading = "Images",
        conflicts_with_all = [
            "prompt", "generate", "batch", "depth", "steps", "draft", "drafts",
                "draft_device", "text", "recite",
            "acceptance", "accept",
                "no_mmproj",
                "temperature", "top_k", "top_p",
                "repetition_penalty",
            "presence_penalty", "grammar", "logprobs"
        ]
    )]
    pub(crate) image: Option<BenchPicture>,

    /// Print the results as JSON, with every single measurement
    #[arg(long, conflicts_with = "markdown")]
    pub(crate) json: bool,

    /// Print the results as a Markdown table
    #[arg(long)]
    pub(crate) markdown: bool,

    #[command(flatten)]
    pub(crate) fetch: FetchArgs,

    #[command(flatten)]
    pub(crate) drafting: DraftArgs,

    #[command(flatten)]
    pub(crate) tower: TowerArgs,

    #[command(flatten)]
    pub(crate) choosing: ChoosingArgs,

    #[command(flatten)]
    pub(crate) placement: Placement,
}

/// `trine eval`
#[derive(Debug, Args)]
#[command(after_help = "The text is cut into windows of --context tokens that begin --stride \
    tokens apart; each begins with <bos>. Every token is scored once, in the first window that \
    holds it. With --against, the divergence D(AGAINST || MODEL) of the predicted distributions is \
    computed at every scored token, in nats.")]
pub(crate) struct EvalArgs {
    /// The model to judge
    #[arg(value_name = "MODEL", long_help = MODEL_HELP)]
    pub(crate) model: String,

    /// The text, UTF-8
    #[arg(value_name = "FILE")]
    pub(crate) text: PathBuf,

    /// Another file of the same model, taken as the truth
    #[arg(long, value_name = "MODEL2")]
    pub(crate) against: Option<String>,

    /// Tokens between the beginnings of two windows [default: half a window]
    #[arg(long, value_name = "N", value_parser = parse_positive)]
    pub(crate) stride: Option<usize>,

    /// Read only the first N tokens of the text
    #[arg(long, value_name = "N", value_parser = parse_positive)]
    pub(crate) max_tokens: Option<usize>,

    /// Write an importance matrix for `trine quantize --imatrix`: the mean squares of what each
    /// matrix is multiplied with, as llama-imatrix writes them
    #[arg(long, value_name = "OUT")]
    pub(crate) imatrix: Option<PathBuf>,

    /// Replace OUT if it exists
    #[arg(long, requires = "imatrix")]
    pub(crate) force: bool,

    /// Print the results as JSON
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) fetch: FetchArgs,

    #[command(flatten)]
    pub(crate) placement: Placement,
}

/// `trine plan`
#[derive(Debug, Args)]
#[command(after_help = "The forecast takes bytes and operations from the model's Plan and the \
    rates of the machine. Nothing is loaded but one matrix, where this machine is measured. Limits \
    use the best rates there are and nothing else, products at the rate of f16: nothing is faster \
    without drafts or narrower products, unless the model fits into caches. The output says which \
    rates are measured, published, assumed or given. `trine explain` shows the Plan itself, `trine \
    bench` measures.")]
pub(crate) struct PlanArgs {
    /// The model to forecast [default: demo]
    #[arg(value_name = "MODEL", long_help = MODEL_HELP)]
    pub(crate) model: Option<String>,

    /// The machine: cpu or vulkan[:INDEX or :NAME] (this one, measured), 780m, 890m, strix-halo,
    /// rtx-4090, h200
    #[arg(long, value_name = "NAME")]
    pub(crate) device: Option<String>,

    /// Read bandwidth in GB/s; without --device, a machine of its own together with --tops
    #[arg(long, value_name = "X", value_parser = parse_rate)]
    pub(crate) gbps: Option<f64>,

    /// Rate of matrix products in 10^12 operations per second
    #[arg(long, value_name = "Y", value_parser = parse_rate)]
    pub(crate) tops: Option<f64>,

    /// Microseconds between a launch and the next that needs its result
    #[arg(long, value_name = "US", value_parser = parse_gap)]
    pub(crate) gap: Option<f64>,

    /// Numbers of requests at once, separated by commas
    #[arg(
        short, long, value_name = "N,...", value_delimiter = ',', default_value = "1,8,32",
        value_parser = parse_batch
    )]
    pub(crate) batch: Vec<usize>,

    /// Context lengths in tokens, and lengths of prompts, separated by commas [default: 512,8192]
    #[arg(
        short, long, alias = "ctx-size", value_name = "N,...", value_delimiter = ',',
        value_parser = parse_context
    )]
    pub(crate) context: Vec<usize>,

    /// What guesses tokens: a MODEL with the same tokenizer, in passes of its own; ngram, from the
    /// text so far, at no cost; auto is ngram, with demo-draft for demo; off [default: auto]
    #[arg(long, value_name = "MODEL", value_parser = DraftChoice::parse)]
    pub(crate) draft: Option<DraftChoice>,

    /// Guesses that a pass verifies for each request
    #[arg(long, value_name = "N", default_value = "4", value_parser = parse_drafts)]
    pub(crate) drafts: usize,

    /// Probability that a guess is right if those before it are [default: 0.7, an assumption]
    #[arg(long, value_name = "P", value_parser = parse_probability)]
    pub(crate) acceptance: Option<f64>,

    /// Format of the KV cache: f32, f16, int8 [default: f16]
    #[arg(long, value_name = "TYPE", value_parser = parse_kv)]
    pub(crate) kv: Option<KvType>,

    /// Forecast with F32, F16 and BF16 weights quantised: Q8_0, Q4_0, Q4_K, Q6_K
    #[arg(long, value_name = "TYPE", value_parser = parse_target)]
    pub(crate) quantize: Option<DType>,

    /// Threads, where this machine is measured [default: one for each physical core]
    #[arg(short, long, value_name = "N", value_parser = whole(1u16..=512))]
    pub(crate) threads: Option<u16>,

    /// Print the forecast as JSON
    #[arg(long, conflicts_with = "markdown")]
    pub(crate) json: bool,

    /// Print the tables in Markdown
    #[arg(long)]
    pub(crate) markdown: bool,

    #[command(flatten)]
    pub(crate) fetch: FetchArgs,
    #[command(flatten)]
    pub(crate) tower: TowerArgs,
}

/// `trine quantize`
#[derive(Debug, Args)]
#[command(
    after_help = "Only F32, F16 and BF16 matrices are converted; tensors that are quantised \
    already are copied as they are unless --requantize is given, norms are stored as F32. A matrix \
    whose rows are not a whole number of blocks takes another type; the report names it. The file \
    holds everything needed to run: tokenizer, chat template, defaults."
)]
pub(crate) struct QuantizeArgs {
    /// The model to convert
    #[arg(value_name = "IN", long_help = MODEL_HELP)]
    pub(crate) input: String,

    /// The GGUF file to write
    #[arg(value_name = "OUT")]
    pub(crate) output: PathBuf,

    /// How matrices are stored: Q4_K_M, Q8_0, ... as llama-quantize has them, or one format for all
    /// (Q5_K, Q4_K, Q3_K, MXFP4)
    #[arg(
        long = "type", value_name = "TYPE", value_parser = parse_recipe,
        required_unless_present = "fit", conflicts_with = "fit"
    )]
    pub(crate) recipe: Option<Recipe>,

    /// Instead of a type, the most bytes of the file, such as 12G: each matrix gets the format that
    /// its measured loss suggests
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub(crate) fit: Option<u64>,

    /// Another format for the embedding table (and so the output matrix, where they are one)
    #[arg(long, value_name = "FORMAT", value_parser = parse_format)]
    pub(crate) embedding: Option<DType>,

    /// An importance matrix: how much the columns of each matrix matter (of `eval --imatrix`)
    #[arg(long, value_name = "FILE")]
    pub(crate) imatrix: Option<PathBuf>,

    /// Convert matrices that are quantised already, which adds to their loss
    #[arg(long)]
    pub(crate) requantize: bool,

    /// Replace OUT if it exists
    #[arg(long)]
    pub(crate) force: bool,

    /// Print the report as JSON
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) fetch: FetchArgs,
}

/// `trine doctor`
#[derive(Debug, Args)]
#[command(after_help = "Ends with exit code 1 if a check fails; warnings do not count.")]
pub(crate) struct DoctorArgs {
    /// Leave out the measurements of memory bandwidth (they take a second or two)
    #[arg(long)]
    pub(crate) quick: bool,

    /// Print the findings as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[cfg(test)]
mod tests {
    use clap::error::ErrorKind;

    use super::values::{parse_bias, parse_seed};
    use super::*;
    use trine_session::device::{DeviceChoice, Tune};

    #[test]
    fn the_definition_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn negative_numbers_are_values() {
        let mut options = 0;
        for subcommand in command().get_subcommands() {
            let valued = subcommand.get_arguments().filter(|arg| arg.get_action().takes_values());
            for option in valued.filter_map(clap::Arg::get_long) {
                let typed = ["trine", subcommand.get_name(), &format!("--{option}"), "-1"];
                let kind = command().try_get_matches_from(typed).err().map(|error| error.kind());
                assert_ne!(kind, Some(ErrorKind::UnknownArgument), "{typed:?}");
                options += 1;
            }
        }
        assert!(options > 50, "{options} options");
        assert_eq!((parse_seed("-1"), parse_seed("7")), (Ok(Seed::Random), Ok(Seed::Given(7))));
        assert!(parse_seed("-2").unwrap_err().contains("-1 for another one"));
    }

    #[test]
    fn options_are_accepted_before_and_after_the_command() {
        let mut cli = Cli::try_parse_from([
            "trine",
            "--device",
            "reference",
            "--threads",
            "3",
            "--tune",
            "again",
            "run",
            "--threads",
            "2",
            "demo",
            "hi",
        ])
        .unwrap();
        let early = std::mem::take(&mut cli.placement);
        let (name, placement) = cli.command.placement_mut();
        let placement = placement.unwrap();
        placement.or(early);
        assert_eq!(name, "run");
        assert_eq!(placement.device, Some(DeviceChoice::Reference));
        assert_eq!(placement.tune, Some(Tune::Again));
        assert_eq!(placement.threads, Some(2), "the nearer one wins");
    }

    #[test]
    fn biases_and_types_are_checked() {
        assert_eq!(parse_bias("106=-2.5"), Ok((106, -2.5)));
        assert!(
            parse_bias("106").is_err() && parse_bias("x=1").is_err() && parse_bias("1=").is_err()
        );
        assert_eq!(parse_target("q4_k"), Ok(DType::Q4K));
        assert!(parse_target("F16").is_err() && parse_target("").is_err());
        assert!(parse_positive("0").is_err() && parse_positive("-1").is_err());
        for wrong in ["0", "-1", "nan", "inf", "1e300", "", "1e-300", "x"] {
            assert!(parse_rate(wrong).is_err(), "{wrong}");
        }
        assert_eq!((parse_rate("89.6"), parse_gap("0")), (Ok(89.6), Ok(0.0)));
        assert!(parse_probability("1.1").is_err() && parse_probability("nan").is_err());
        assert!(parse_drafts("65").is_err() && parse_batch("0").is_err());
        assert!(parse_context("99999999999999999999").is_err());
    }
}
