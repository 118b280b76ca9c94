//! The command line of `explain`.

use clap::Args;
use trine_session::device::DeviceChoice;
use trine_session::draft::DraftChoice;

use super::models::FetchArgs;
use super::placement::{MODEL_HELP, Placement};
use super::values::{parse_bytes, parse_count, parse_positive, whole};

const DEVICE_HELP: &str = "Show which parts of the model run on which device, what memory they \
    take and what a GPU launches: auto, cpu, vulkan[:INDEX or :NAME], several GPUs \
    (vulkan:0,vulkan:1), or a machine that need not be here: 780m, 890m, strix-halo, rtx-4090, \
    h200";

/// `trine explain`
#[derive(Debug, Args)]
#[command(
    mut_arg("device", |device| device.value_parser(DeviceChoice::parse_machine).help(DEVICE_HELP)),
    after_help = "Nothing is loaded and nothing runs. Without --device the numbers are the model's \
        own, on whatever machine. With it they are what `run` or, with --sequences, `serve` would \
        begin with on that device, their options included; layers that do the same are listed \
        once. What `bench` measures and `plan` forecasts is speed."
)]
pub(crate) struct ExplainArgs {
    /// The model to explain [default: demo]
    #[arg(value_name = "MODEL", long_help = MODEL_HELP)]
    pub(crate) model: Option<String>,

    /// Tokens of the prompt whose cost or launches are shown
    #[arg(
        short = 'p', long = "prompt", value_name = "N", default_value = "512",
        value_parser = parse_positive
    )]
    pub(crate) prompt: usize,

    /// Tokens already in the context when the shown token is generated; without --device only
    #[arg(short, long, value_name = "N", default_value = "0", value_parser = parse_count)]
    pub(crate) depth: usize,

    /// List the steps of the Plan too
    #[arg(long)]
    pub(crate) plan: bool,

    /// Memory of the machine that --device names, such as 16G [default: its GPU's own; 32G where
    /// the GPU shares the CPU's and can have half of it]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub(crate) memory: Option<u64>,

    /// With --device: show what `serve --sequences N` would do there [default: what `run` would]
    #[arg(long, value_name = "N", value_parser = whole(1u16..=4096))]
    pub(crate) sequences: Option<u16>,

    /// Print everything as JSON
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) fetch: FetchArgs,

    /// What guesses tokens: a MODEL with the same tokenizer, which is shown beside the model;
    /// ngram; auto is ngram, with demo-draft for demo; off [default: auto]
    #[arg(long, value_name = "MODEL", value_parser = DraftChoice::parse)]
    pub(crate) draft: Option<DraftChoice>,

    /// With --device: where the draft model is [default: where the model is, on its first GPU if it
    /// has several]
    #[arg(long, value_name = "DEVICE", value_parser = DeviceChoice::parse)]
    pub(crate) draft_device: Option<DeviceChoice>,

    #[command(flatten)]
    pub(crate) placement: Placement,
}
