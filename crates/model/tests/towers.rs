//! Vision towers in files of every form, and files with towers that cannot be.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::tower_files::{damaged, golden, parts, write};
use serde_json::{Value as Json, json};
use trine_model::{Ahead, Ends, KvType, Model, Op, Pixels, Plan, Rows, Tower, Workload};
use trine_weights::gguf::{Array, Value};
use trine_weights::{Checkpoint, DType, Tensor};

const FOLDER: &str = "gemma3-vision";
const HALVES: &str = "gguf/gemma3-vision/mmproj-f16.gguf";
const EXCHANGED: &str = "gguf/gemma3-vision/mmproj-f32-swapped.gguf";
const TEXT: &str = "gguf/gemma3-vision/model-f32.gguf";

fn model(text: &str, tower: &str) -> Model {
    let tower = Tower::open(&golden(tower)).unwrap();
    Model::open(&golden(text)).unwrap().with_tower(tower).unwrap()
}

#[test]
fn every_form_of_a_tower_is_the_same() {
    let models = [(FOLDER, FOLDER), (TEXT, HALVES), (TEXT, EXCHANGED)].map(|(a, b)| model(a, b));
    let first = &models[0];
    for other in &models[1..] {
        assert_eq!(other.tower().unwrap().config(), first.tower().unwrap().config());
        for weight in other.tower_plan(false).weights {
            let stored = first.tower_plan(false).weights;
            let twin = stored.iter().find(|twin| twin.name == weight.name).unwrap();
            let (found, expected) = match weight.is_matrix() {
                true => {
                    (other.tensor(&weight).to_f32().unwrap(), first.tensor(twin).to_f32().unwrap())
                }
                false => (other.vector(&weight), first.vector(twin)),
            };
            let difference = |(a, b): (&f32, &f32)| (a - b).abs();
            let worst = found.iter().zip(&expected).map(difference).fold(0.0, f32::max);
            assert!(found.len() == expected.len() && worst < 1e-6, "{}: {worst}", weight.name);
        }
    }
}

#[test]
fn the_numbers_of_a_tower_follow_from_its_files() {
    let tower = Tower::open(&golden(HALVES)).unwrap();
    let config = tower.config();
    assert_eq!((config.side(), config.patches(), config.patch_values()), (4, 16, 588));
    assert_eq!(tower.soft_token(), 262_144);
    assert_eq!(Tower::open(&golden(FOLDER)).unwrap().soft_token(), 512);
    assert_eq!((config.pooled(), config.soft_tokens(), config.output), (4, 4, 40));
    // Squares of 2 x 2 of a grid of 4 x 4.
    assert_eq!(config.order(4, 4), [0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15]);
}

#[test]
fn the_plan_of_a_tower_is_fused() {
    let plan = model(FOLDER, FOLDER).tower_plan(true);
    insta::assert_snapshot!(plan.to_string());
    let is_attend = |op: &Op| matches!(op, Op::Attend { .. });
    assert_eq!(plan.steps.iter().filter(|step| is_attend(&step.op)).count(), 3);
    assert_eq!((plan.caches.len(), plan.outputs.len()), (1, 2));
}

#[test]
fn attention_is_counted_with_all_rows_of_a_picture_and_with_earlier_ones_of_a_text() {
    let operations = |plan: &Plan, workload: Workload| -> u64 {
        let attends = plan.steps.iter().filter(|step| matches!(step.op, Op::Attend { .. }));
        attends.map(|step| plan.step_cost(step, workload).operations).sum()
    };
    let blind = |mut plan: Plan| {
        for step in &mut plan.steps {
            if let Op::Attend { ahead, .. } = &mut step.op {
                assert_eq!(*ahead, Ahead::All, "{}", step.label);
                *ahead = Ahead::Nothing;
            }
        }
        plan
    };
    let model = model(FOLDER, FOLDER);
    let config = model.tower().unwrap().config();
    let (rows, outputs) = (config.patches(), config.soft_tokens());
    let picture = Workload { outputs, ..Workload::prefill(rows, KvType::F16) };
    let plan = model.tower_plan(true);
    let heads = plan.steps.iter().find_map(|step| match step.op {
        Op::Attend { heads, .. } => Some(heads),
        _ => None,
    });
    let pair = plan.layers() * 4 * heads.unwrap().query * heads.unwrap().dim;
    assert_eq!(operations(&plan, picture), (rows * rows * pair) as u64);
    assert_eq!(operations(&blind(plan), picture), (rows * (rows + 1) / 2 * pair) as u64);
    // The rows of a workload of a text are those of tokens: none sees ahead.
    let (plan, text) = (model.plan(), Workload::prefill(5, KvType::F16));
    assert_eq!(operations(&plan, text), operations(&blind(plan.clone()), text));
}

#[test]
fn only_a_model_with_a_tower_takes_soft_rows() {
    let plain = Model::open(&golden(FOLDER)).unwrap();
    let insert = |op: &Op| matches!(op, Op::Insert { .. });
    for plan in [plain.plan(), plain.plan_for(Ends::STATES)] {
        assert!(plan.inputs.is_empty() && !plan.steps.iter().any(|step| insert(&step.op)));
    }
    let model = model(FOLDER, FOLDER);
    for plan in [
        model.plan(),
        model.plan_for(Ends::STATES),
        model.plan_for(Ends { states: true, ..Ends::LOGITS }),
    ] {
        let [input] = plan.inputs[..] else { panic!("{plan}") };
        assert_eq!(plan.buffer(input.buffer).rows, Rows::Soft);
        assert_eq!(plan.steps.iter().position(|step| insert(&step.op)), Some(1), "{plan}");
    }
}

#[test]
fn a_tower_of_another_model_is_refused_with_both_files() {
    let tower = Tower::open(&golden(HALVES)).unwrap();
    let other = Model::open(&golden("gemma3-a")).unwrap();
    let error = other.with_tower(tower.clone()).err().unwrap().to_string();
    for part in ["gemma3-a", "mmproj-f16.gguf", "40", "mmproj file"] {
        assert!(error.contains(part), "{error}");
    }
    let other = Model::open(&golden("gemma4-dense")).unwrap();
    let error = other.with_tower(tower).err().unwrap().to_string();
    assert!(error.contains("gemma3"), "{error}");
    // Of another kind, and so without Gemma 3's projection.
    let folder = tempfile::tempdir().unwrap();
    let copy = |name: &str| fs::copy(golden("gemma3-a").join(name), folder.path().join(name));
    copy("model.safetensors").unwrap();
    let config =
        json!({"model_type": "gemma3n", "vision_config": {"model_type": "gemma3n_vision"}});
    fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    let error = Tower::open(folder.path()).err().unwrap().to_string();
    assert!(error.contains("vision_config.model_type is \"gemma3n_vision\""), "{error}");
    for text in ["gemma3-a", "gguf/gemma3-f32/model.gguf"] {
        let checkpoint = Checkpoint::open(golden(text)).unwrap();
        assert!(!Tower::is_in(&checkpoint));
        let error = Tower::open(&golden(text)).err().unwrap().to_string();
        assert!(error.contains("no vision tower") && error.contains(text), "{error}");
    }
    assert!(Tower::is_in(&Checkpoint::open(golden(FOLDER)).unwrap()));
    assert!(Tower::is_in(&Checkpoint::open(golden(EXCHANGED)).unwrap()));
}

#[test]
fn impossible_numbers_of_a_tower_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let (metadata, tensors) = parts(&golden(HALVES));
    let text = |value: &str| Value::String(value.into());
    let floats = |values: &[f32]| Value::Array(Array::F32(values.to_vec()));
    let count = Value::U32;
    for (key, value, mark) in [
        ("general.architecture", text("gemma3"), "no vision tower"),
        ("clip.has_vision_encoder", Value::Bool(false), "no vision tower"),
        ("clip.projector_type", text("gemma3nv"), "clip.projector_type"),
        ("clip.projector_type", text("gemma4v"), "clip.vision.image_mean"),
        ("clip.vision.projector_type", text("ldp"), "clip.projector_type"),
        ("clip.use_gelu", Value::Bool(false), "clip.use_gelu"),
        ("clip.vision.image_mean", floats(&[0.5, 0.5]), "image_mean"),
        ("clip.vision.image_mean", floats(&[0.5, 1.1, 0.5]), "image_mean"),
        ("clip.vision.image_std", floats(&[0.5, f32::NAN, 0.5]), "image_std"),
        ("clip.vision.image_std", floats(&[0.5, 0.5, 0.0]), "image_std"),
        ("clip.vision.image_std", text("0.5"), "image_std"),
        ("clip.vision.image_size", count(0), "side of an image"),
        ("clip.vision.image_size", count(57), "a multiple of 14"),
        ("clip.vision.image_size", count(14 << 20), "side of an image"),
        ("clip.vision.image_size", count(112), "position_embd"),
        ("clip.vision.patch_size", count(0), "side of a patch"),
        ("clip.vision.patch_size", count(u32::MAX), "side of a patch"),
        ("clip.vision.patch_size", count(7), "v.patch_embd.weight"),
        ("clip.vision.embedding_length", count(0), "hidden size"),
        ("clip.vision.embedding_length", count(u32::MAX), "hidden size"),
        ("clip.vision.embedding_length", count(64), "has shape"),
        ("clip.vision.feed_forward_length", count(0), "feed-forward size"),
        ("clip.vision.feed_forward_length", count(49), "v.blk.0.ffn_up"),
        ("clip.vision.block_count", count(0), "layer count"),
        ("clip.vision.block_count", count(2), "v.blk.2."),
        ("clip.vision.block_count", count(4), "v.blk.3."),
        ("clip.vision.block_count", count(u32::MAX), "layer count"),
        ("clip.vision.attention.head_count", count(0), "head count"),
        ("clip.vision.attention.head_count", count(3), "a multiple of 3"),
        ("clip.vision.attention.layer_norm_epsilon", Value::F32(f32::NAN), "epsilon"),
        ("clip.vision.attention.layer_norm_epsilon", Value::F32(0.0), "epsilon"),
        ("clip.vision.projection_dim", count(0), "projection"),
        ("clip.vision.projection_dim", count(41), "mm.input_projection.weight"),
        ("clip.vision.projector.scale_factor", count(0), "pooling"),
        ("clip.vision.projector.scale_factor", count(3), "a multiple of 3"),
    ] {
        let mut spoilt = metadata.clone();
        spoilt.insert(key, value.clone());
        let error = Tower::open(&write(folder.path(), &spoilt, &tensors)).err();
        let error = error.unwrap_or_else(|| panic!("{key} = {value:?} was accepted")).to_string();
        assert!(error.contains(mark) && error.contains("mmproj.gguf"), "{key}: {error}");
    }
    for name in ["v.patch_embd.bias", "v.post_ln.weight", "mm.soft_emb_norm.weight"] {
        let others: Vec<Tensor> =
            tensors.iter().filter(|tensor| tensor.name() != name).cloned().collect();
        let error = Tower::open(&write(folder.path(), &metadata, &others)).err().unwrap();
        assert!(error.to_string().contains(name), "{error}");
    }
}

/// The mean and the deviation of colours.
fn colours(tower: &Tower) -> ([f32; 3], [f32; 3]) {
    let Pixels::Square { mean, deviation, .. } = tower.config().pixels else {
        panic!("{:?}", tower.config())
    };
    (mean, deviation)
}

#[test]
fn what_colours_are_normalised_by_comes_from_the_files() {
    let folder = tempfile::tempdir().unwrap();
    let (mean, deviation) = ([0.48, 0.25, 0.0], [0.27, 0.001, 1.0]);
    let (mut metadata, tensors) = parts(&golden(HALVES));
    let floats = |values: &[f32]| Value::Array(Array::F32(values.to_vec()));
    metadata.insert("clip.vision.image_mean", floats(&mean));
    metadata.insert("clip.vision.image_std", floats(&deviation));
    let tower = Tower::open(&write(folder.path(), &metadata, &tensors)).unwrap();
    assert_eq!(colours(&tower), (mean, deviation));

    for name in ["config.json", "model.safetensors"] {
        fs::copy(golden(FOLDER).join(name), folder.path().join(name)).unwrap();
    }
    let file = folder.path().join("preprocessor_config.json");
    let open = |text: &str| {
        fs::write(&file, text).unwrap();
        let tower = Tower::open(folder.path()).map_err(|error| error.to_string())?;
        Ok::<_, String>(colours(&tower))
    };
    let given = json!({"image_mean": [0.48, 0.25, 0], "image_std": [0.27, 0.001, 1]});
    assert_eq!(open(&given.to_string()), Ok((mean, deviation)));
    assert_eq!(open(r#"{"image_mean": null}"#), Ok(([0.5; 3], [0.5; 3])));
    for (key, value) in [
        ("image_mean", json!([0.5, 0.5])),
        ("image_mean", json!([0.5, 0.5, 0.5, 0.5])),
        ("image_mean", json!([0.5, "0.5", 0.5])),
        ("image_mean", json!([0.5, -0.1, 0.5])),
        ("image_mean", json!([0.5, 1e300, 0.5])),
        ("image_mean", json!(0.5)),
        ("image_std", json!([0.5, 0.0, 0.5])),
        ("image_std", json!([0.5, 0.5, 1e-40])),
        ("image_std", json!({})),
        ("do_normalize", json!(false)),
        ("do_rescale", json!(0)),
        ("do_resize", json!(false)),
        ("do_pan_and_scan", json!(true)),
        ("rescale_factor", json!(0.5)),
        ("resample", json!(3)),
        ("size", json!({"height": 56, "width": 55})),
        ("size", json!({"shortest_edge": 56})),
        ("size", json!(56)),
    ] {
        let error = open(&json!({ key: value }).to_string()).unwrap_err();
        for part in ["preprocessor_config.json", key] {
            assert!(error.contains(part), "{key} = {value}: {error}");
        }
    }
    for damaged in ["[]", "{", ""] {
        let error = open(damaged).unwrap_err();
        assert!(error.contains("preprocessor_config.json"), "{damaged}: {error}");
    }
    // What transformers 5 writes comes first.
    fs::write(&file, given.to_string()).unwrap();
    let newer = folder.path().join("processor_config.json");
    let open = |whole: serde_json::Value| {
        fs::write(&newer, whole.to_string()).unwrap();
        let tower = Tower::open(folder.path()).map_err(|error| error.to_string())?;
        Ok::<_, String>(colours(&tower))
    };
    let nested = json!({"image_processor": {"image_mean": [0.1, 0.2, 0.3]}, "image_seq_length": 4});
    assert_eq!(open(nested), Ok(([0.1, 0.2, 0.3], [0.5; 3])));
    for others in [json!({"processor_class": "P"}), json!({"image_processor": null})] {
        assert_eq!(open(others), Ok((mean, deviation)));
    }
    for wrong in
        [json!([]), json!({"image_processor": 5}), json!({"image_processor": {"image_std": 0}})]
    {
        let error = open(wrong).unwrap_err();
        assert!(
            error.contains("processor_config.json") && !error.contains("preprocessor"),
            "{error}"
        );
    }
    fs::remove_file(&newer).unwrap();
    fs::remove_file(&file).unwrap();
    let tower = Tower::open(folder.path()).unwrap();
    assert_eq!(colours(&tower), ([0.5; 3], [0.5; 3]));
}

/// Files have the projection with its rows as columns; one of the usual orientation is taken too.
#[test]
fn a_projection_may_have_either_orientation() {
    let folder = tempfile::tempdir().unwrap();
    let (metadata, mut tensors) = parts(&golden(EXCHANGED));
    let own = tensors.iter_mut().find(|own| own.name() == "mm.input_projection.weight").unwrap();
    let values = own.to_f32().unwrap();
    let (rows, columns) = (own.rows(), own.columns());
    let flipped = (0..columns).flat_map(|c| (0..rows).map(move |r| (r, c)));
    let bytes = flipped.flat_map(|(r, c)| values[r * columns + c].to_le_bytes()).collect();
    *own = Tensor::from_owned(own.name(), DType::F32, &[columns, rows], bytes).unwrap();
    let tower = Tower::open(&write(folder.path(), &metadata, &tensors)).unwrap();
    let found = Model::open(&golden(TEXT)).unwrap().with_tower(tower).unwrap();
    let expected = model(TEXT, EXCHANGED);
    let [found, expected] = [found, expected].map(|model| {
        let weights = model.tower_plan(false).weights;
        let weight = weights.iter().find(|own| own.name == "mm.input_projection.weight").unwrap();
        assert_eq!((weight.rows, weight.columns), (40, 32));
        model.tensor(weight).to_f32().unwrap()
    });
    assert_eq!(found, expected);
}

#[test]
fn impossible_numbers_in_a_configuration_are_named() {
    let folder = tempfile::tempdir().unwrap();
    fs::copy(golden(FOLDER).join("model.safetensors"), folder.path().join("model.safetensors"))
        .unwrap();
    let config: Json =
        serde_json::from_slice(&fs::read(golden(FOLDER).join("config.json")).unwrap()).unwrap();
    let open = |config: &Json| {
        fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
        Tower::open(folder.path()).map_err(|error| error.to_string())
    };
    assert!(open(&config).is_ok());
    for (key, value, mark) in [
        ("model_type", json!("other"), "vision_config.model_type"),
        ("model_type", json!(null), "vision_config.model_type"),
        ("hidden_act", json!("relu"), "vision_config.hidden_act"),
        ("num_channels", json!(1), "vision_config.num_channels"),
        ("image_size", json!(-56), "image_size"),
        ("image_size", json!(1e14), "side of an image"),
        ("patch_size", json!(1.5), "patch_size"),
        ("hidden_size", json!(0), "hidden size"),
        ("num_hidden_layers", json!(2), "encoder.layers.2"),
        ("num_hidden_layers", json!(4), "encoder.layers.3"),
        ("num_attention_heads", json!(5), "a multiple of 5"),
        ("layer_norm_eps", json!("x"), "layer_norm_eps"),
        ("intermediate_size", json!(47), "mlp.fc1"),
    ] {
        let mut spoilt = config.clone();
        spoilt["vision_config"][key] = value.clone();
        let error = open(&spoilt).err().unwrap_or_else(|| panic!("{key} = {value} was accepted"));
        assert!(error.contains(mark), "{key} = {value}: {error}");
    }
    for soft in [0, 3, 9, 25, 1_u64 << 40] {
        let mut spoilt = config.clone();
        spoilt["mm_tokens_per_image"] = json!(soft);
        let error = open(&spoilt).err().unwrap_or_else(|| panic!("{soft} was accepted"));
        assert!(error.contains("mm_tokens_per_image"), "{soft}: {error}");
    }
    let mut spoilt = config;
    spoilt["image_token_index"] = json!(u32::MAX);
    assert!(open(&spoilt).err().unwrap().contains("image_token_index"));
    spoilt["vision_config"] = json!([]);
    assert!(open(&spoilt).err().unwrap().contains("no vision tower"));
}

/// Bytes of headers are changed, and ends cut off. What opens has a Plan whose tensors are there.
#[test]
fn damaged_files_give_an_error_or_a_tower() {
    let folder = tempfile::tempdir().unwrap();
    fs::copy(golden(FOLDER).join("model.safetensors"), folder.path().join("model.safetensors"))
        .unwrap();
    let mut state = 0x9E37_79B9_7F4A_7C15;
    let mut refused = 0;
    let text = Model::open(&golden(TEXT)).unwrap();
    let halves = fs::read(golden(HALVES)).unwrap();
    let exchanged = fs::read(golden(EXCHANGED)).unwrap();
    let json = fs::read(golden(FOLDER).join("config.json")).unwrap();
    for case in 0..1_200 {
        let (source, name, header) = match case % 3 {
            0 => (&halves, "mmproj.gguf", 4400),
            1 => (&exchanged, "mmproj.gguf", 4400),
            _ => (&json, "config.json", json.len()),
        };
        let bytes = damaged(source, header, &mut state);
        let path = folder.path().join(name);
        fs::write(&path, &bytes).unwrap();
        let path = if name == "config.json" { folder.path().to_owned() } else { path };
        let opened = catch_unwind(AssertUnwindSafe(|| Tower::open(&path)));
        let Ok(tower) = opened.unwrap_or_else(|_| panic!("case {case} panicked")) else {
            refused += 1;
            continue;
        };
        let config = tower.config();
        let order = config.order(config.side(), config.side());
        assert!(order.iter().all(|&patch| patch < config.patches()), "case {case}");
        let Ok(model) = text.clone().with_tower(tower) else { continue };
        for weight in &model.tower_plan(true).weights {
            assert_eq!(model.tensor(weight).elements(), weight.rows * weight.columns);
        }
    }
    println!("{refused} of 1200 were refused");
    assert!((300..1_200).contains(&refused), "{refused}");
}
