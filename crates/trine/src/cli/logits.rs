//! Options of `trine logits`.

use std::path::PathBuf;

use clap::Args;
use trine_session::draft::DraftChoice;

use super::models::FetchArgs;
use super::pictures::TowerArgs;
use super::placement::{MODEL_HELP, Placement};
use super::values::{parse_positive, whole};

/// `trine logits`
#[derive(Debug, Args)]
#[command(after_help = "\
FILE.json is a list of token ids, such as [2, 10, 11]; nothing is added to it. The output holds \
one tensor `logits` of shape [tokens, vocabulary], float32: row i are the scores of the token that \
follows id i. The KV cache is f32 unless --kv says otherwise.

--draft adds what a draft that reads the model's caches guesses after the ids: `draft_tokens` [N], \
int64, `draft_logits` [N, vocabulary] and `draft_hidden` [N, hidden], float32. The first guess \
follows the token with the largest logit at the last id, which is not among them.

--image gives an image to a model with a vision tower. The ids have the model's soft token for \
each row of an image (262144, 256 times, in Gemma 3). The output also holds `pixels` [images, 3, \
rows, columns], `tower` [images, patches, hidden of the tower] and `projector` [images, soft \
tokens, hidden], float32.")]
pub(crate) struct LogitsArgs {
    /// The model
    #[arg(value_name = "MODEL", long_help = MODEL_HELP)]
    pub(crate) model: String,

    /// The token ids, a JSON array
    #[arg(long, value_name = "FILE.json")]
    pub(crate) ids: PathBuf,

    /// The safetensors file to write
    #[arg(long, value_name = "FILE.safetensors")]
    pub(crate) out: PathBuf,

    /// Maximum number of tokens in one pass [default: 512]
    #[arg(long, value_name = "N", value_parser = parse_positive)]
    pub(crate) chunk: Option<usize>,

    /// A draft that reads the model's caches, to write its guesses too
    #[arg(long, value_name = "MODEL", value_parser = DraftChoice::parse)]
    pub(crate) draft: Option<DraftChoice>,

    /// An image; can be repeated, in the order of their places among the ids
    #[arg(long, value_name = "FILE", conflicts_with = "draft", help_heading = "Images")]
    pub(crate) image: Vec<PathBuf>,

    /// The guesses to write, with --draft: at most 64
    #[arg(
        long, value_name = "N", value_parser = whole(1usize..=64), default_value = "4",
        requires = "draft"
    )]
    pub(crate) steps: usize,

    #[command(flatten)]
    pub(crate) fetch: FetchArgs,

    #[command(flatten)]
    pub(crate) tower: TowerArgs,

    #[command(flatten)]
    pub(crate) placement: Placement,
}
