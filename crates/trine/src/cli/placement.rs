//! The options of every command that runs a model: which model, and where.

use clap::Args;
use trine_model::KvType;
use trine_session::device::{DeviceChoice, Tune};
use trine_session::npu_options::{NpuShare, PackChoice};
use trine_weights::DType;

use super::values::{parse_bytes, parse_count, parse_kv, parse_layers, parse_target, whole};

pub(super) const MODEL_HELP: &str = "A model is a .gguf file, a folder with config.json and \
    .safetensors files, a name such as gemma3:4b (`trine search` lists them), a repository of \
    Hugging Face (owner/repo, owner/repo:Q4_0), the last part of the name of a downloaded one, a \
    preset, or `demo`: the small model inside this program.";

/// Where a model runs and what memory it may take. Accepted before and after the command's name.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Device and memory")]
pub(crate) struct Placement {
    /// Where to run: auto (a GPU if there is one, the default), cpu, vulkan[:INDEX or :NAME],
    /// several GPUs (vulkan:0,vulkan:1), reference (slow, exact)
    #[arg(long, value_name = "DEVICE", value_parser = DeviceChoice::parse)]
    pub(crate) device: Option<DeviceChoice>,

    /// Layers that GPUs run, the last ones and the output; the CPU runs the others; auto is all
    /// that fit [default: auto]
    #[arg(
        long, alias = "n-gpu-layers", value_name = "N", value_parser = parse_layers,
        hide_short_help = true
    )]
    pub(crate) gpu_layers: Option<usize>,

    /// Measure which kernels suit the GPU: auto (once, while a server has nothing to do, the
    /// default), off, again
    #[arg(long, value_name = "WHEN", value_parser = Tune::parse, hide_short_help = true)]
    pub(crate) tune: Option<Tune>,

    /// Bit-identical output on the GPU regardless of other requests, as always on the CPU (slower)
    #[arg(long, hide_short_help = true)]
    pub(crate) batch_invariant: bool,

    /// Threads of the CPU device [default: one for each physical core]
    #[arg(short, long, value_name = "N", value_parser = whole(1u16..=512))]
    pub(crate) threads: Option<u16>,

    /// Let an AMD NPU compute a part of prompts beside the CPU or a GPU, with the kernel pack in
    /// this folder, or auto for the downloaded one; never run on silicon
    #[arg(long, value_name = "PACK", value_parser = PackChoice::parse, hide_short_help = true)]
    pub(crate) npu: Option<PackChoice>,

    /// Part of each matrix that the NPU takes: auto (by measurements), or from 0 to 1
    /// [default: auto]
    #[arg(
        long, value_name = "PART", value_parser = NpuShare::parse, requires = "npu",
        hide_short_help = true
    )]
    pub(crate) npu_share: Option<NpuShare>,

    /// Format of the KV cache: f32, f16, int8 [default: f16; logits: f32]
    #[arg(long, value_name = "TYPE", value_parser = parse_kv, hide_short_help = true)]
    pub(crate) kv: Option<KvType>,

    /// Context length in tokens; 0 is the default [default: the model's, as far as memory goes]
    #[arg(
        short, long, aliases = ["ctx-size", "num-ctx"], value_name = "N", value_parser = parse_count
    )]
    pub(crate) context: Option<usize>,

    /// Maximum memory for the KV cache, such as 4G, shared by all requests [default: what is free]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, hide_short_help = true)]
    pub(crate) kv_memory: Option<u64>,

    /// Most tokens of a prompt in one pass [default: 512; up to 2048 where the GPU's memory and
    /// speed make use of more]
    #[arg(
        long, alias = "ubatch-size", value_name = "N", value_parser = whole(1u16..=u16::MAX),
        hide_short_help = true
    )]
    pub(crate) prefill: Option<u16>,

    /// Quantise F32, F16 and BF16 weights while loading: Q8_0, Q4_0, Q4_K, Q6_K
    #[arg(long, value_name = "TYPE", value_parser = parse_target, hide_short_help = true)]
    pub(crate) quantize: Option<DType>,
}

impl Placement {
    /// Returns the name of an option that is given, if any is.
    pub(crate) fn first_given(&self) -> Option<&'static str> {
        let given = [
            (self.device.is_some(), "--device"),
            (self.gpu_layers.is_some(), "--gpu-layers"),
            (self.tune.is_some(), "--tune"),
            (self.batch_invariant, "--batch-invariant"),
            (self.threads.is_some(), "--threads"),
            (self.npu.is_some(), "--npu"),
            (self.npu_share.is_some(), "--npu-share"),
            (self.kv.is_some(), "--kv"),
            (self.context.is_some(), "--context"),
            (self.kv_memory.is_some(), "--kv-memory"),
            (self.prefill.is_some(), "--prefill"),
            (self.quantize.is_some(), "--quantize"),
        ];
        given.into_iter().find(|(is_given, _)| *is_given).map(|(_, name)| name)
    }

    /// Fills what is not given here from what was typed before the command's name.
    pub(crate) fn or(&mut self, early: Placement) {
        self.device = self.device.take().or(early.device);
        self.gpu_layers = self.gpu_layers.or(early.gpu_layers);
        self.tune = self.tune.or(early.tune);
        self.batch_invariant |= early.batch_invariant;
        self.threads = self.threads.or(early.threads);
        self.npu = self.npu.take().or(early.npu);
        self.npu_share = self.npu_share.or(early.npu_share);
        self.kv = self.kv.or(early.kv);
        self.context = self.context.or(early.context);
        self.kv_memory = self.kv_memory.or(early.kv_memory);
        self.prefill = self.prefill.or(early.prefill);
        self.quantize = self.quantize.or(early.quantize);
    }
}
