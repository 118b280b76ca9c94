//! Where a model runs, and with how much memory.

use trine_model::KvType;
use trine_weights::DType;

use crate::device::{DeviceChoice, Tune};
use crate::npu_options::NpuOptions;
use crate::tower::TowerRequest;

/// The source of the number of positions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ContextFrom {
    /// The command line; also if nobody set it.
    #[default]
    Option,
    /// A preset's `num_ctx`.
    Preset,
    /// The configuration file or the environment.
    Settings,
}

/// Where a model runs, and with how much memory.
#[derive(Debug, Clone)]
pub struct Options {
    /// The device.
    pub device: DeviceChoice,
    /// Layers that the GPU runs, if asked for.
    pub gpu_layers: Option<usize>,
    /// Whether a GPU's kernels are measured.
    pub tune: Tune,
    /// Whether a request's result must not depend on other requests.
    pub batch_invariant: bool,
    /// Threads, if asked for.
    pub threads: Option<usize>,
    /// The NPU beside the processor, if asked for.
    pub npu: Option<NpuOptions>,
    /// Storage of keys and values.
    pub kv: KvType,
    /// Most positions of a sequence, if asked for.
    pub context: Option<usize>,
    /// Most bytes of keys and values, if there is a limit.
    pub kv_memory: Option<u64>,
    /// Most tokens in a pass, if asked for.
    pub prefill: Option<usize>,
    /// The source of `context`.
    pub context_from: ContextFrom,
    /// Quantisation while loading, if asked for.
    pub quantize: Option<DType>,
    /// What reads pictures.
    pub vision: TowerRequest,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            device: DeviceChoice::default(),
            gpu_layers: None,
            tune: Tune::default(),
            batch_invariant: false,
            threads: None,
            npu: None,
            kv: KvType::F16,
            context: None,
            kv_memory: None,
            prefill: None,
            context_from: ContextFrom::default(),
            quantize: None,
            vision: TowerRequest::default(),
        }
    }
}
