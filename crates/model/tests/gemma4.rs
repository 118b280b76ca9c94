//! Gemma 4: Plans of published sizes, what a token costs, and files that are spoilt.

use std::path::{Path, PathBuf};

use trine_model::cut::cut;
use trine_model::{
    AttentionKind, Config, ExpertsConfig, Family, Gates, Gemma4Config, Goal, KvType, LayerConfig,
    Model, Op, PerLayerConfig, Plan, Rope, Scratch, Values, WeightPlace, Width, Workload, aside,
    away, base_plan, fusion, gather, names, narrow,
};
use trine_weights::DType;

fn goldens() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens")
}

/// What published sizes differ in.
#[derive(Clone, Copy)]
struct Sizes {
    hidden: usize,
    layers: usize,
    heads: usize,
    kv: usize,
    global_kv: usize,
    feed_forward: usize,
    pattern: usize,
    window: usize,
    shared: usize,
    inputs: bool,
    values_are_keys: bool,
    experts: Option<ExpertsConfig>,
    is_double_wide: bool,
}

const E2B: Sizes = Sizes {
    hidden: 1536,
    layers: 35,
    heads: 8,
    kv: 1,
    global_kv: 1,
    feed_forward: 6144,
    pattern: 5,
    window: 512,
    shared: 20,
    inputs: true,
    values_are_keys: false,
    experts: None,
    is_double_wide: true,
};

const A4B: Sizes = Sizes {
    hidden: 2816,
    layers: 30,
    heads: 16,
    kv: 8,
    global_kv: 2,
    feed_forward: 2112,
    pattern: 6,
    window: 1024,
    shared: 0,
    inputs: false,
    values_are_keys: true,
    experts: Some(ExpertsConfig {
        count: 128,
        used: 8,
        width: 704,
        gates: Gates::Joined,
        has_factors: true,
    }),
    is_double_wide: false,
};

const LARGE: Sizes = Sizes {
    hidden: 5376,
    layers: 60,
    heads: 32,
    kv: 16,
    global_kv: 4,
    feed_forward: 21_504,
    experts: None,
    ..A4B
};

impl Sizes {
    fn config(self) -> Config {
        let owners = self.layers - self.shared;
        let is_global = |index: usize| (index + 1).is_multiple_of(self.pattern);
        let layer = |index: usize| {
            let kind = is_global(index);
            let last = (0..owners).rev().find(|&other| is_global(other) == kind).unwrap();
            let wide = if self.is_double_wide && index >= owners { 2 } else { 1 };
            LayerConfig {
                attention: match kind {
                    true => AttentionKind::Global,
                    false => AttentionKind::Local { window: self.window },
                },
                heads: self.heads,
                kv_heads: if kind { self.global_kv } else { self.kv },
                head_dim: if kind { 512 } else { 256 },
                score_scale: 1.0,
                rope: match kind {
                    true => Rope { pairs: Some(64), ..Rope::full(1e6, 1.0) },
                    false => Rope::full(1e4, 1.0),
                },
                feed_forward: wide * self.feed_forward,
                values: match kind && self.values_are_keys {
                    true => Values::Keys,
                    false => Values::Normed,
                },
                experts: self.experts,
                output_scale: 0.5,
                cutoff: None,
                kv_owner: if index < owners { index } else { last },
            }
        };
        let inputs = PerLayerConfig { width: 256, vocabulary: 262_144 };
        Config {
            family: Family::Gemma4(Gemma4Config {
                inputs: self.inputs.then_some(inputs),
                sees_ahead: !self.inputs,
            }),
            hidden: self.hidden,
            vocabulary: 262_144,
            context: 131_072,
            norm_epsilon: 1e-6,
            embedding_scale: (self.hidden as f32).sqrt(),
            final_softcap: Some(30.0),
            layers: (0..self.layers).map(layer).collect(),
        }
    }

    fn base(self) -> Plan {
        base_plan(&self.config(), true, &|_| DType::Q8_0)
    }

    fn fused(self) -> Plan {
        gather::gather(fusion::fuse(narrow::narrow(self.base())))
    }
}

#[test]
fn the_plans_read_like_their_paper() {
    insta::assert_snapshot!("26b_base", A4B.base().listing());
    insta::assert_snapshot!("26b_fused", A4B.fused().listing());
    insta::assert_snapshot!("e2b_fused", E2B.fused().listing());
    insta::assert_snapshot!("31b_fused", LARGE.fused().listing());
}

#[test]
fn a_token_reads_the_experts_that_it_uses() {
    let plan = A4B.fused();
    let weights = |workload| plan.cost(workload).weight_bytes as f64 / 34.0 * 32.0;
    let one = weights(Workload::decode(1, 0, KvType::F16));
    let experts = 30.0 * 3.0 * 704.0 * 2816.0 * 128.0;
    let head = 262_144.0 * 2816.0;
    // 3.1 G weights of layers and 0.74 G of the head.
    assert!((3.05e9..3.2e9).contains(&(one - head)), "{one}");
    let rest = one - experts * 8.0 / 128.0;
    for rows in [2, 8, 32, 512] {
        let found = weights(Workload::decode(rows, 0, KvType::F16)) - rest;
        let expected = experts * (1.0 - (1.0 - 8.0_f64 / 128.0).powi(rows as i32));
        assert!((found / expected - 1.0).abs() < 0.01, "{rows}: {found} {expected}");
    }
    let operations = plan.cost(Workload::decode(1, 0, KvType::F16)).operations as f64;
    assert!((operations / 2.0 / one - 1.0).abs() < 0.02, "{operations} {one}");
}

/// The dense part of a layer lies between what hands its experts over and what takes their sums.
#[test]
fn experts_set_aside_leave_the_rest_where_it_is() {
    let plan = A4B.fused();
    assert_eq!(aside::layers(&plan), 30);
    assert_eq!(aside::set_aside(&plan, 0), plan);
    assert!(aside::aside(&plan).is_empty() && aside::others(&plan).is_none());
    for layers in [1, 7, 30] {
        let found = aside::set_aside(&plan, layers);
        assert_eq!(aside::aside_layers(&found), (0..layers).collect::<Vec<_>>());
        let experts = layers as u64 * 3 * 704 * 2816 * 128 / 32 * 34;
        assert_eq!(found.bytes_at(WeightPlace::Aside), experts);
        let all = plan.bytes_at(WeightPlace::Device);
        assert_eq!(found.bytes_at(WeightPlace::Device), all - experts);
        for kind in [Workload::decode(3, 50, KvType::F16), Workload::prefill(9, KvType::F16)] {
            assert_eq!(found.cost(kind), plan.cost(kind));
        }
        // The same steps in another order.
        let sorted = |plan: &Plan| {
            let mut steps: Vec<String> =
                plan.steps.iter().map(|step| format!("{step:?}")).collect();
            steps.sort();
            steps
        };
        assert_eq!(sorted(&away::here(found.clone())), sorted(&plan));
        assert_eq!(aside::set_aside(&found, layers), found);
    }
    let found = aside::set_aside(&plan, 30);
    for away in aside::aside(&found) {
        let between = found.steps[away.begin..away.step].iter().map(|step| step.op.name());
        assert_eq!(between.collect::<Vec<_>>(), ["gated_matmul", "matmul", "norm"]);
    }
}

/// The Plan of the other device has a goal for each layer, and no more scratch memory for many.
#[test]
fn the_experts_aside_are_a_plan() {
    let plan = A4B.fused();
    let others = |layers| aside::others(&aside::set_aside(&plan, layers)).unwrap();
    let (one, all) = (others(1), others(30));
    assert_eq!((one.goals().len(), all.goals().len(), all.layers()), (1, 30, 0));
    for number in 0..30 {
        let serving = all.serving(Goal::Experts(number));
        let own: Vec<usize> = (0..60).filter(|&step| serving[step]).collect();
        assert_eq!(own, [2 * number, 2 * number + 1]);
        assert!(all.steps[own[0]].label.starts_with(&format!("blk.{number}.")));
    }
    let width = Width { tokens: 512, outputs: 0 };
    assert_eq!(Scratch::place(&all, width).bytes, Scratch::place(&others(2), width).bytes);
    let workload = Workload::decode(4, 0, KvType::F16);
    let cost = aside::cost(&aside::set_aside(&plan, 30), workload);
    let sum: u64 = (0..30).map(|of| all.cost_of(Goal::Experts(of), workload).weight_bytes).sum();
    assert_eq!(cost.weight_bytes, sum);
    // What is cut off has its own.
    let [first, second] = cut(&aside::set_aside(&plan, 20), 12).unwrap();
    let layers = [&first, &second].map(aside::aside_layers);
    assert_eq!(layers, [(0..12).collect::<Vec<_>>(), (0..8).collect()]);
    assert_eq!(aside::others(&second).unwrap().goals().len(), 8);
}

#[test]
fn tables_of_inputs_stay_in_the_file() {
    let plan = E2B.fused();
    let in_file = plan.weights.iter().filter(|weight| weight.place == WeightPlace::File);
    let values: usize = in_file.map(|weight| weight.rows * weight.columns).sum();
    assert_eq!(values, 262_144 * 35 * 256);
    assert_eq!(plan.caches.len(), 15);
    let positions = |layer: usize| {
        let cache = plan.caches.iter().find(|cache| cache.layer == layer).unwrap();
        (cache.kv_heads, cache.head_dim, cache.window)
    };
    assert_eq!((positions(13), positions(14)), ((1, 256, Some(512)), (1, 512, None)));
}

#[test]
fn both_formats_of_a_small_model_give_one_plan() {
    for name in ["gemma4-e", "gemma4-dense", "gemma4-moe"] {
        let open = |path: &Path| Model::open(path).unwrap();
        let folder = open(&goldens().join(name));
        let file = open(&goldens().join("gguf").join(name).join("model.gguf"));
        let (mut first, mut second) = (folder.config().clone(), file.config().clone());
        for config in [&mut first, &mut second] {
            assert!(config.layers.iter().all(|layer| layer.output_scale != 1.0), "{name}");
            // Files do not say what rows of pictures see.
            let Family::Gemma4(own) = &mut config.family else { panic!("{name}") };
            own.sees_ahead = false;
        }
        assert_eq!(first, second, "{name}");
        assert_eq!((folder.norm_offset(), file.norm_offset()), (0.0, 0.0));
    }
    let split = Model::open(&goldens().join("gguf/gemma4-moe-split/model.gguf")).unwrap();
    let has_apart = |step: &trine_model::Step| match &step.op {
        Op::GatedExperts { gate_and_up: [gate, up], .. } => gate.weight != up.weight,
        _ => false,
    };
    assert_eq!(split.base_plan().steps.iter().filter(|step| has_apart(step)).count(), 6);
}

/// Returns a number that the last one determines.
fn next(state: &mut u64) -> usize {
    *state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
    (*state >> 33) as usize
}

/// A spoilt file is refused, or is a model whose Plan is sound; it never ends the program.
#[test]
fn spoilt_files_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let (mut state, mut refused) = (11, 0);
    let names = ["gemma4-e", "gemma4-dense", "gemma4-moe", "gemma4-moe-split", "embedding-gemma"];
    for name in names {
        let good = std::fs::read(goldens().join("gguf").join(name).join("model.gguf")).unwrap();
        // Keys and the list of tensors; what follows are numbers of any value.
        let head = good.windows(12).rposition(|bytes| bytes == b"post_ffw_nor").unwrap() + 64;
        let path = folder.path().join("model.gguf");
        for _ in 0..400 {
            let mut bad = good.clone();
            for _ in 0..1 + next(&mut state) % 3 {
                let at = next(&mut state) % head;
                match next(&mut state) % 3 {
                    0 => bad[at] = next(&mut state) as u8,
                    1 => bad[at] ^= 1 << (next(&mut state) % 8),
                    _ => bad.truncate(at.max(8)),
                }
                if bad.len() < head {
                    break;
                }
            }
            std::fs::write(&path, &bad).unwrap();
            match Model::open(&path) {
                Ok(model) => drop(model.plan()),
                Err(error) => {
                    assert!(!error.to_string().is_empty());
                    refused += 1;
                }
            }
        }
    }
    assert!(refused > 800, "{refused}");
}

/// The same for each number, word and list of a `config.json`.
#[test]
fn spoilt_configurations_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let mut state = 5;
    let values = [
        "null",
        "0",
        "1",
        "-1",
        "3",
        "1e15",
        "1.5",
        "\"\"",
        "\"all\"",
        "true",
        "[]",
        "{}",
        "[0]",
        "{\"5\": {\"head_dim\": 1e9}}",
    ];
    for name in ["gemma4-e", "gemma4-dense", "gemma4-moe"] {
        let source = goldens().join(name);
        let target = folder.path().join(name);
        std::fs::create_dir(&target).unwrap();
        std::fs::copy(source.join("model.safetensors"), target.join("model.safetensors")).unwrap();
        let good = std::fs::read_to_string(source.join("config.json")).unwrap();
        let config: serde_json::Value = serde_json::from_str(&good).unwrap();
        let text = config.get("text_config").unwrap_or(&config);
        let keys: Vec<&String> = text.as_object().unwrap().keys().collect();
        for _ in 0..200 {
            let mut bad = config.clone();
            let text = match bad.get("text_config") {
                Some(_) => &mut bad["text_config"],
                None => &mut bad,
            };
            for _ in 0..1 + next(&mut state) % 2 {
                let value = values[next(&mut state) % values.len()];
                text[keys[next(&mut state) % keys.len()]] = serde_json::from_str(value).unwrap();
            }
            std::fs::write(target.join("config.json"), bad.to_string()).unwrap();
            if let Ok(model) = Model::open(&target) {
                drop(model.plan());
            }
        }
    }
}

#[test]
fn factors_that_no_file_has_are_named() {
    let source = goldens().join("gemma4-dense");
    let folder = tempfile::tempdir().unwrap();
    let bytes = std::fs::read(source.join("model.safetensors")).unwrap();
    std::fs::copy(source.join("config.json"), folder.path().join("config.json")).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let scale = &header["model.layers.3.layer_scalar"]["data_offsets"][0];
    let at = 8 + length + scale.as_u64().unwrap() as usize;
    for broken in [f32::NAN, f32::INFINITY, 1e30] {
        let mut bad = bytes.clone();
        bad[at..at + 2].copy_from_slice(&broken.to_le_bytes()[2..]);
        std::fs::write(folder.path().join("model.safetensors"), &bad).unwrap();
        let error = Model::open(folder.path()).err().unwrap().to_string();
        assert!(error.contains("output scale of layer 3"), "{error}");
    }
    assert!(names::layer(3, "layer_output_scale").ends_with(".weight"));
}

/// A copy of a golden folder in which a setting and tensors can be changed.
struct Folder {
    directory: tempfile::TempDir,
    config: serde_json::Value,
    /// Name, dtype, shape and bytes.
    tensors: Vec<(String, String, Vec<usize>, Vec<u8>)>,
}

impl Folder {
    fn of(name: &str) -> Self {
        let source = goldens().join(name);
        let bytes = std::fs::read(source.join("model.safetensors")).unwrap();
        let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
        let tensors =
            header.as_object().unwrap().iter().filter(|(name, _)| *name != "__metadata__");
        let number = |value: &serde_json::Value| value.as_u64().unwrap() as usize;
        let tensors = tensors.map(|(name, facts)| {
            let place = &facts["data_offsets"];
            let (start, end) = (8 + length + number(&place[0]), 8 + length + number(&place[1]));
            let shape = facts["shape"].as_array().unwrap().iter().map(number).collect();
            let dtype = facts["dtype"].as_str().unwrap().to_owned();
            (name.clone(), dtype, shape, bytes[start..end].to_vec())
        });
        let config = std::fs::read(source.join("config.json")).unwrap();
        Self {
            directory: tempfile::tempdir().unwrap(),
            config: serde_json::from_slice(&config).unwrap(),
            tensors: tensors.collect(),
        }
    }

    fn text(&mut self) -> &mut serde_json::Value {
        match self.config.get("text_config") {
            Some(_) => &mut self.config["text_config"],
            None => &mut self.config,
        }
    }

    fn set(mut self, key: &str, value: serde_json::Value) -> Self {
        self.text()[key] = value;
        self
    }

    fn without(mut self, part: &str) -> Self {
        let before = self.tensors.len();
        self.tensors.retain(|(name, ..)| !name.contains(part));
        assert_ne!(self.tensors.len(), before, "{part}");
        self
    }

    /// Adds a copy of a tensor under another name.
    fn with(mut self, like: &str, part: &str) -> Self {
        let find = |(name, ..): &&(String, String, Vec<usize>, Vec<u8>)| name.contains(like);
        let (name, dtype, shape, bytes) = self.tensors.iter().find(find).unwrap().clone();
        self.tensors.push((name.replace(like, part), dtype, shape, bytes));
        self
    }

    fn open(self) -> Result<Model, String> {
        let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
        for (name, dtype, shape, bytes) in self.tensors {
            let start = data.len();
            data.extend(bytes);
            let facts = serde_json::json!({
                "dtype": dtype, "shape": shape, "data_offsets": [start, data.len()],
            });
            header.insert(name, facts);
        }
        let mut header = serde_json::to_vec(&header).unwrap();
        header.resize(header.len().next_multiple_of(8), b' ');
        let file = [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat();
        std::fs::write(self.directory.path().join("model.safetensors"), file).unwrap();
        let config = self.config.to_string();
        std::fs::write(self.directory.path().join("config.json"), config).unwrap();
        Model::open(self.directory.path()).map_err(|error| error.to_string())
    }
}

/// A part of a model that is turned off while its tensors are there would change the text without a
/// word.
#[test]
fn settings_that_contradict_tensors_are_refused() {
    use serde_json::{Value, json};
    for name in ["gemma4-e", "gemma4-dense", "gemma4-moe"] {
        Folder::of(name).open().unwrap();
    }
    let moe = || Folder::of("gemma4-moe");
    let dense = || Folder::of("gemma4-dense");
    let inputs = || Folder::of("gemma4-e");
    let global = "layers.5.self_attn.";
    let (key, value) = (format!("{global}k_proj"), format!("{global}v_proj"));
    for (folder, setting, tensor) in [
        (
            moe().set("enable_moe_block", Value::Null),
            "enable_moe_block is null",
            "layers.0.router.proj.weight is in the files",
        ),
        (moe().set("enable_moe_block", json!(false)), "enable_moe_block is false", "layers.0."),
        (
            moe().set("enable_moe_block", json!(false)).without("router").without("experts"),
            "enable_moe_block is false",
            "post_feedforward_layernorm_1.weight is in the files",
        ),
        (
            moe().without("layers.4.router.proj"),
            "enable_moe_block is true",
            "layers.4.router.proj.weight is missing",
        ),
        (
            moe().without("layers.2.experts.down"),
            "enable_moe_block is true",
            "layers.2.experts.down_proj is missing",
        ),
        (
            dense().with(&key, &value),
            "attention_k_eq_v is true",
            "layers.5.self_attn.v_proj.weight is in the files",
        ),
        (
            dense().set("attention_k_eq_v", json!(false)),
            "attention_k_eq_v is false",
            "layers.5.self_attn.v_proj.weight is missing",
        ),
        (
            dense().set("attention_k_eq_v", Value::Null),
            "attention_k_eq_v is null",
            "v_proj.weight is missing",
        ),
        (
            inputs().set("hidden_size_per_layer_input", json!(0)),
            "hidden_size_per_layer_input is 0",
            "embed_tokens_per_layer.weight is in the files",
        ),
        (
            inputs()
                .set("hidden_size_per_layer_input", json!(0))
                .without("embed_tokens_per_layer")
                .without("per_layer_model")
                .without("per_layer_projection_norm"),
            "hidden_size_per_layer_input is 0",
            "layers.0.per_layer_input_gate.weight is in the files",
        ),
        (
            inputs().without("embed_tokens_per_layer"),
            "hidden_size_per_layer_input is 8",
            "embed_tokens_per_layer.weight is missing",
        ),
        (
            inputs().without("layers.7.per_layer_projection"),
            "hidden_size_per_layer_input is 8",
            "layers.7.per_layer_projection.weight is missing",
        ),
    ] {
        let error = folder.open().err().unwrap_or_else(|| panic!("{setting} is taken"));
        for part in [setting, tensor, "config.json: "] {
            assert!(error.contains(part), "{error} has no {part:?}");
        }
    }
}

/// The embedding table takes the place of the output matrix only where the files say so.
#[test]
fn an_output_matrix_that_is_missing_is_refused() {
    use serde_json::{Value, json};
    let dense = || Folder::of("gemma4-dense").set("tie_word_embeddings", json!(false));
    let error = dense().open().err().expect("it is refused");
    for part in ["config.json: tie_word_embeddings is false", "lm_head.weight is missing"] {
        assert!(error.contains(part), "{error} has no {part:?}");
    }
    let embedding = "model.embed_tokens.weight";
    assert!(!dense().with(embedding, "lm_head.weight").open().unwrap().is_tied());
    for value in [Value::Null, json!(true)] {
        let tied = Folder::of("gemma4-dense").set("tie_word_embeddings", value);
        assert!(tied.open().unwrap().is_tied());
    }
    // One in a format that cannot be read is there all the same.
    let mut folder = Folder::of("gemma4-dense").with(embedding, "lm_head.weight");
    let (_, dtype, shape, bytes) = folder.tensors.last_mut().unwrap();
    *dtype = "F8_E4M3".to_owned();
    bytes.truncate(shape.iter().product());
    let error = folder.open().err().expect("it is refused");
    assert!(error.contains("lm_head.weight") && error.contains("F8_E4M3"), "{error}");
}

/// The same for the keys of GGUF files.
#[test]
fn keys_that_contradict_tensors_are_refused() {
    use trine_weights::gguf::{Value, Writer};
    use trine_weights::{Checkpoint, Metadata};
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let open = |name: &str, change: Option<(&str, u32)>, without: &[&str]| {
        let source = goldens().join("gguf").join(name).join("model.gguf");
        let checkpoint = Checkpoint::open(source).unwrap();
        let Metadata::Gguf(mut metadata) = checkpoint.metadata().clone() else { panic!("{name}") };
        if let Some((key, value)) = change {
            assert!(metadata.get(key).is_some(), "{key}");
            metadata.insert(key, Value::U32(value));
        }
        let is_kept = |name: &str| !without.iter().any(|part| name.contains(part));
        let kept: Vec<_> = checkpoint.tensors().filter(|tensor| is_kept(tensor.name())).collect();
        let mut writer = Writer::new(&path, metadata).unwrap();
        for tensor in &kept {
            writer.declare(tensor.name(), tensor.dtype(), tensor.shape()).unwrap();
        }
        let mut data = writer.start().unwrap();
        kept.iter().for_each(|tensor| data.tensor(tensor).unwrap());
        data.finish().unwrap();
        Model::open(&path).map_err(|error| error.to_string())
    };
    for name in ["gemma4-e", "gemma4-dense", "gemma4-moe", "gemma4-moe-split"] {
        open(name, None, &[]).unwrap();
    }
    let (count, width) = ("gemma4.expert_count", "gemma4.embedding_length_per_layer_input");
    for (name, change, without, setting, tensor) in [
        (
            "gemma4-moe",
            Some((count, 0)),
            &[][..],
            "expert_count is 0",
            "blk.0.ffn_gate_inp.weight is in the files",
        ),
        (
            "gemma4-moe-split",
            Some((count, 0)),
            &["ffn_gate_inp"],
            "expert_count is 0",
            "blk.0.ffn_gate_exps.weight is in the files",
        ),
        (
            "gemma4-moe",
            None,
            &["blk.3.ffn_gate_inp.weight"],
            "expert_count is 6",
            "blk.3.ffn_gate_inp.weight is missing",
        ),
        (
            "gemma4-moe",
            None,
            &["blk.3.ffn_gate_inp", "blk.3.ffn_down_exps"],
            "expert_count is 6",
            "blk.3.ffn_gate_inp.weight is missing",
        ),
        (
            "gemma4-e",
            Some((width, 0)),
            &[],
            "per_layer_input is 0",
            "per_layer_token_embd.weight is in the files",
        ),
        (
            "gemma4-e",
            None,
            &["per_layer_token_embd"],
            "per_layer_input is 8",
            "per_layer_token_embd.weight is missing",
        ),
        (
            "gemma4-e",
            None,
            &["blk.2.post_norm"],
            "per_layer_input is 8",
            "blk.2.post_norm.weight is missing",
        ),
    ] {
        let error = open(name, change, without).err().unwrap_or_else(|| panic!("{setting}"));
        for part in [setting, tensor, "model.gguf: "] {
            assert!(error.contains(part), "{error} has no {part:?}");
        }
    }
}

#[test]
fn errors_name_their_file_and_repeat_little_of_it() {
    let long = "x".repeat(900_000);
    for (key, value) in [
        ("hidden_size", serde_json::json!(long)),
        ("layer_types", serde_json::json!([long])),
        ("model_type", serde_json::json!(long)),
        ("rope_parameters", serde_json::json!({ long.clone(): 1 })),
        ("per_layer_config", serde_json::json!({ long.clone(): {} })),
    ] {
        let error = Folder::of("gemma4-dense").set(key, value).open().err().unwrap();
        assert!(error.len() < 1500, "{key}: {} bytes", error.len());
        assert!(error.contains("/config.json: "), "{error}");
    }
    let folder = Folder::of("gemma4-dense");
    let wrong = folder.directory.path().join("generation_config.json");
    std::fs::write(wrong, r#"{"temperature": "hot"}"#).unwrap();
    let error = folder.open().err().unwrap();
    assert!(error.contains("/generation_config.json: temperature is \"hot\""), "{error}");
}
