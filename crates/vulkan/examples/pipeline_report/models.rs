//! The Gemmas that the report is for: what `run` and `serve` load of their files.

use trine_backend::{BLOCK, ProgramOptions, TowerProgram};
use trine_model::gemma4_vision::Limits;
use trine_model::{
    AttentionKind, Config, Family, Gemma3nConfig, KvType, LayerConfig, PerLayerConfig, Plan, Rope,
    Values, Width, base_plan, either, fusion, gemma3, gemma3n, narrow,
};
use trine_vulkan::testing::towers::{self, Gemma4Tower};
use trine_weights::DType;

/// Positions of a sequence, unless the user wants others: `CONTEXT_USUAL` of placement.
const CONTEXT: usize = 8192;

/// A Program of a model.
pub(crate) struct Case {
    /// The model, the format of its file and of its cache.
    pub(crate) name: String,
    pub(crate) plan: Plan,
    pub(crate) options: ProgramOptions,
}

/// Sizes of a model: table of Gemma 3's sizes in its technical report (arXiv 2503.19786), and
/// `config.json` of each.
struct Sizes {
    name: &'static str,
    layers: usize,
    hidden: usize,
    feed_forward: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    window: usize,
    /// A layer in this many is global.
    period: usize,
    /// The last layers that have no cache of their own, of a Gemma 3n.
    shared: Option<usize>,
}

/// The largest first: a kernel that several of them share is listed with the first.
const MODELS: [Sizes; 5] = [
    Sizes {
        name: "27B",
        layers: 62,
        hidden: 5376,
        feed_forward: 21504,
        heads: 32,
        kv_heads: 16,
        head_dim: 128,
        window: 1024,
        period: 6,
        shared: None,
    },
    Sizes {
        name: "4B",
        layers: 34,
        hidden: 2560,
        feed_forward: 10240,
        heads: 8,
        kv_heads: 4,
        head_dim: 256,
        window: 1024,
        period: 6,
        shared: None,
    },
    Sizes {
        name: "1B",
        layers: 26,
        hidden: 1152,
        feed_forward: 6912,
        heads: 4,
        kv_heads: 1,
        head_dim: 256,
        window: 512,
        period: 6,
        shared: None,
    },
    Sizes {
        name: "270M",
        layers: 18,
        hidden: 640,
        feed_forward: 2048,
        heads: 4,
        kv_heads: 1,
        head_dim: 256,
        window: 512,
        period: 6,
        shared: None,
    },
    Sizes {
        name: "E2B",
        layers: 30,
        hidden: 2048,
        feed_forward: 8192,
        heads: 8,
        kv_heads: 2,
        head_dim: 256,
        window: 512,
        period: 5,
        shared: Some(10),
    },
];

/// What a file's matrices are stored as.
#[derive(Clone, Copy, PartialEq)]
enum Mix {
    /// As Google's files after quantisation-aware training: the embedding table in f16.
    Q4_0,
    /// As llama.cpp makes Q4_K_M and Q5_K_M.
    Q4KM,
    Q5KM,
    Q8_0,
    /// Q4_0, but for the feed-forward, whose layers take turns in the formats of no other mixture.
    Each,
}

/// The formats of [`Mix::Each`].
const OTHERS: [DType; 17] = [
    DType::Q4_1,
    DType::Q5_1,
    DType::Q2K,
    DType::Q3K,
    DType::Iq4Nl,
    DType::Iq4Xs,
    DType::Mxfp4,
    DType::Nvfp4,
    DType::Iq1S,
    DType::Iq1M,
    DType::Iq2Xxs,
    DType::Iq2Xs,
    DType::Iq2S,
    DType::Iq3Xxs,
    DType::Iq3S,
    DType::Tq1_0,
    DType::Tq2_0,
];

impl Mix {
    const ALL: [Self; 5] = [Mix::Q4_0, Mix::Q4KM, Mix::Q5KM, Mix::Q8_0, Mix::Each];

    fn name(self) -> &'static str {
        match self {
            Mix::Q4_0 => "Q4_0",
            Mix::Q4KM => "Q4_K_M",
            Mix::Q5KM => "Q5_K_M",
            Mix::Q8_0 => "Q8_0",
            Mix::Each => "in other formats",
        }
    }

    /// Returns the format of a matrix with rows of `columns` elements. Formats in blocks of 256 are
    /// only for rows of whole blocks.
    fn of(self, name: &str, layers: usize, columns: usize) -> DType {
        let layer: usize = name.split('.').nth(1).and_then(|n| n.parse().ok()).unwrap_or(0);
        let larger = || {
            // llama.cpp's `use_more_bits`.
            layer < layers / 8 || layer >= 7 * layers / 8 || (layer - layers / 8) % 3 == 2
        };
        let is_embedding = name.contains("token_embd");
        match self {
            Mix::Q4_0 | Mix::Each if is_embedding => DType::F16,
            Mix::Each if name.contains("ffn_") => OTHERS[layer % OTHERS.len()],
            Mix::Q4_0 | Mix::Each => DType::Q4_0,
            Mix::Q8_0 => DType::Q8_0,
            Mix::Q4KM | Mix::Q5KM => {
                let is_mixed = name.contains("attn_v") || name.contains("ffn_down");
                match (is_embedding || is_mixed && larger(), columns.is_multiple_of(256)) {
                    (true, true) => DType::Q6K,
                    (true, false) => DType::Q8_0,
                    (false, true) if self == Mix::Q5KM => DType::Q5K,
                    (false, true) => DType::Q4K,
                    (false, false) => DType::Q5_0,
                }
            }
        }
    }
}

impl Sizes {
    fn config(&self) -> Config {
        let own = self.layers - self.shared.unwrap_or(0);
        let is_global = |index: usize| (index + 1).is_multiple_of(self.period);
        let owner = |index: usize| {
            let owners = (0..own).rev();
            owners.into_iter().find(|&other| is_global(other) == is_global(index)).unwrap_or(index)
        };
        let is_n = self.shared.is_some();
        let layer = |index: usize| LayerConfig {
            attention: match is_global(index) {
                true => AttentionKind::Global,
                false => AttentionKind::Local { window: self.window },
            },
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            score_scale: 1.0,
            rope: match is_global(index) {
                true => Rope::full(1e6, 1.0),
                false => Rope::full(1e4, 1.0),
            },
            feed_forward: self.feed_forward,
            values: if is_n { Values::Normed } else { Values::Plain },
            experts: None,
            output_scale: 1.0,
            cutoff: (is_n && index < 10).then_some(1.644_853_6),
            kv_owner: if index < own { index } else { owner(index) },
        };
        let family = Gemma3nConfig {
            streams: 4,
            laurel_rank: 64,
            inputs: PerLayerConfig { width: 256, vocabulary: 262_144 },
            scales_correction: true,
        };
        Config {
            family: if is_n { Family::Gemma3n(family) } else { Family::Gemma3 },
            hidden: self.hidden,
            vocabulary: if is_n { 262_400 } else { 262_144 },
            context: 32_768,
            norm_epsilon: 1e-6,
            embedding_scale: (self.hidden as f32).sqrt(),
            final_softcap: is_n.then_some(30.0),
            layers: (0..self.layers).map(layer).collect(),
        }
    }

    /// Returns the Plan for logits and, for a server, the one for hidden states beside it.
    fn plan(&self, mix: Mix, serves: bool) -> Plan {
        let config = self.config();
        let dtype_of = |name: &str| match name {
            name if name.contains("norm") || name.contains("altup_correct_scale") => DType::F32,
            name if name.contains("altup") || name.contains("laurel") => DType::F16,
            "per_layer_model_proj.weight" => DType::BF16,
            name if name.contains("ffn_down") => mix.of(name, self.layers, self.feed_forward),
            name if name.contains("attn_output") => {
                mix.of(name, self.layers, self.heads * self.head_dim)
            }
            name => mix.of(name, self.layers, self.hidden),
        };
        let plan = fusion::fuse(narrow::narrow(base_plan(&config, true, &dtype_of)));
        if !serves {
            return plan;
        }
        let states = match config.family {
            Family::Gemma3n(own) => gemma3n::hidden_states(&config, own, &dtype_of),
            _ => gemma3::hidden_states(&config, &dtype_of),
        };
        let states = fusion::fuse(states);
        either(plan, states).expect("a family's two Plans differ only after the last cache")
    }
}

/// Returns the Programs of vision towers: that of 27B, and of Gemma 4's that of E2B, whose products
/// have limits, and that of 31B. A step is the largest picture.
fn towers() -> impl Iterator<Item = Case> {
    let of_27b = |format: DType, name: &str| {
        // Their rows are no whole blocks.
        let is_odd = |name: &str| name.contains("patch_embd") || name.contains("ffn_down");
        let dtype_of = |name: &str| if is_odd(name) { DType::F16 } else { format };
        (format!("tower {name}"), towers::gemma3(27, &dtype_of))
    };
    let limits = |_| Limits { input: [-10.0, 10.0], output: [-20.0, 20.0] };
    let of_gemma4 = |tower: Gemma4Tower, layers: usize, size: &str| {
        (format!("tower of {size} F16"), towers::gemma4(tower, layers, &limits))
    };
    let all = [
        of_27b(DType::F16, "F16"),
        of_27b(DType::Q8_0, "Q8_0"),
        of_gemma4(Gemma4Tower::E2b, 16, "E2B"),
        of_gemma4(Gemma4Tower::Large, 27, "31B"),
    ];
    all.into_iter().map(|(name, (config, plan))| {
        let options = TowerProgram::options(&config, KvType::F16);
        Case { name: format!("{name}, f16 cache"), plan, options }
    })
}

/// Returns the Programs of all models: those of `run`, then those of `serve`, then towers.
pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for serves in [false, true] {
        // What these commands begin with: sequences and slots kept besides, and rows with logits,
        // guesses included.
        let (sequences, outputs) = if serves { (8, 40) } else { (1, 16) };
        let slots = if serves { 16 } else { 1 };
        for mix in Mix::ALL {
            // One model shows the kernels of a format.
            let is_known = ![Mix::Q5KM, Mix::Each].contains(&mix);
            let shown = |sizes: &&Sizes| is_known || sizes.name == "4B";
            for sizes in MODELS.iter().filter(shown) {
                let plan = sizes.plan(mix, serves);
                for kv in [KvType::F16, KvType::Int8] {
                    let options = ProgramOptions {
                        width: Width { tokens: 512, outputs },
                        kv,
                        context: CONTEXT,
                        sequences: slots,
                        blocks: sequences * CONTEXT / BLOCK,
                    };
                    let cache = if kv == KvType::Int8 { "int8" } else { "f16" };
                    let name = format!("{} {}, {cache} cache", sizes.name, mix.name());
                    cases.push(Case { name, plan: plan.clone(), options });
                }
            }
        }
    }
    cases.extend(towers());
    cases
}
