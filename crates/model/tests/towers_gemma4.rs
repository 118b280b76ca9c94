//! Towers of Gemma 4 in files of both forms, and files with towers that cannot be.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use crate::tower_files::{damaged, golden, parts, write};
use serde_json::{Value as Json, json};
use trine_model::{Ahead, Ends, Model, Op, Pixels, Plan, Rows, Tower, TowerKind};
use trine_weights::gguf::{Array, GgufMetadata, Value};
use trine_weights::{DType, Tensor};

const NAMES: [&str; 3] = ["gemma4-vision-e", "gemma4-vision-dense", "gemma4-vision-unified"];

fn mmproj(name: &str) -> PathBuf {
    golden(name).join("mmproj.gguf")
}

fn model(name: &str, tower: &Path) -> Model {
    Model::open(&golden(name)).unwrap().with_tower(Tower::open(tower).unwrap()).unwrap()
}

fn steps(plan: &Plan, is: impl Fn(&Op) -> bool) -> usize {
    plan.steps.iter().filter(|step| is(&step.op)).count()
}

#[test]
fn both_forms_of_a_tower_are_the_same() {
    for name in NAMES {
        let [folder, file] = [golden(name), mmproj(name)].map(|tower| model(name, &tower));
        let [own, other] = [&folder, &file].map(|model| model.tower().unwrap());
        assert_eq!((own.soft_token(), other.soft_token()), (300, 258_880), "{name}");
        assert_eq!(own.config().kind, other.config().kind, "{name}");
        // Files do not say the budget.
        assert_eq!((own.config().soft_tokens(), other.config().soft_tokens()), (70, 280));
        assert_eq!(own.config().side(), other.config().side());
        let [own, other] = [&folder, &file].map(|model| model.tower_plan(true));
        assert_eq!(own.steps.len(), other.steps.len());
        for (weight, twin) in own.weights.iter().zip(&other.weights) {
            assert_eq!(weight.name, twin.name);
            let values = |model: &Model, weight| match model.tensor(weight).shape().len() {
                1 => model.vector(weight),
                _ => model.tensor(weight).to_f32().unwrap(),
            };
            let found = values(&file, twin);
            assert_eq!(values(&folder, weight), found, "{name}: {}", weight.name);
        }
    }
}

#[test]
fn the_plans_of_towers_are_fused() {
    let plans = NAMES.map(|name| model(name, &golden(name)).tower_plan(true));
    insta::assert_snapshot!(plans[0].to_string());
    let clamps = |plan: &Plan| steps(plan, |op| matches!(op, Op::Clamp { .. }));
    // Of the first layer queries and keys have equal limits of what they read, of the second none.
    assert_eq!((clamps(&plans[0]), clamps(&plans[1])), (7 + 6 + 7 + 7, 0));
    let products = |plan: &Plan| steps(plan, |op| matches!(op, Op::MatMul { .. }));
    assert_eq!(products(&plans[0]), 1 + (6 + 7) + 1);
    let gated = |plan: &Plan| steps(plan, |op| matches!(op, Op::GatedMatMul { .. }));
    assert_eq!((gated(&plans[0]), gated(&plans[1])), (0, 2));
    assert_eq!(plans.each_ref().map(|plan| plan.caches.len()), [1, 1, 0]);
    for plan in &plans[..2] {
        assert!(plan.outputs.iter().all(|id| plan.buffer(*id).rows == Rows::Outputs));
    }
}

/// Global layers never see ahead, local ones do where the configuration says so.
#[test]
fn attention_of_the_text_model_says_what_it_sees() {
    let expected = [[false; 4], [true, false, true, false], [true, false, true, false]];
    for (name, expected) in NAMES.into_iter().zip(expected) {
        let model = model(name, &golden(name));
        for plan in [model.plan(), model.plan_for(Ends { states: true, ..Ends::LOGITS })] {
            let sees = |step: &trine_model::Step| match step.op {
                Op::Attend { ahead, .. } => Some(ahead == Ahead::All),
                _ => None,
            };
            let found: Vec<bool> = plan.steps.iter().filter_map(sees).take(4).collect();
            assert_eq!(found, expected, "{name}");
            let insert = |op: &Op| matches!(op, Op::Insert { .. });
            assert_eq!(steps(&plan, insert), 1, "{name}");
        }
    }
}

#[test]
fn pictures_have_any_shape_within_the_budget() {
    let tower = Tower::open(&golden(NAMES[0])).unwrap();
    let config = tower.config();
    assert_eq!((config.patches(), config.side(), config.places()), (630, 840, 840 * 840));
    for (grid, takes) in [
        ((3, 3), true),
        ((210, 3), true),
        ((3, 210), true),
        ((213, 3), false),
        ((24, 27), false),
        ((21, 30), true),
        ((4, 3), false),
        ((0, 3), false),
        ((usize::MAX, usize::MAX), false),
    ] {
        assert_eq!(config.takes(grid.0, grid.1), takes, "{grid:?}");
    }
    // Squares of 3 x 3 of a grid of 6 x 3.
    let order = config.order(6, 3);
    assert_eq!(order[..9], [0, 1, 2, 6, 7, 8, 12, 13, 14]);
    assert_eq!(order[9..], [3, 4, 5, 9, 10, 11, 15, 16, 17]);
}

fn single(name: &str, value: f32) -> Tensor {
    Tensor::from_owned(name, DType::F32, &[1], value.to_le_bytes().to_vec()).unwrap()
}

/// These towers scale colours themselves; a file that wants them scaled before is for another one.
#[test]
fn colours_that_are_scaled_otherwise_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    for name in NAMES {
        let (metadata, tensors) = parts(&mmproj(name));
        let open = |key: &str, values: &[f32]| {
            let mut changed = metadata.clone();
            let values = Value::Array(Array::F32(values.to_vec()));
            changed.insert(&format!("clip.vision.{key}"), values);
            Tower::open(&write(folder.path(), &changed, &tensors))
                .map_err(|error| error.to_string())
        };
        assert!(open("image_mean", &[0.0; 3]).is_ok() && open("image_std", &[1.0; 3]).is_ok());
        for (key, values) in [
            ("image_mean", &[0.5; 3][..]),
            ("image_mean", &[0.0, 0.0, f32::NAN]),
            ("image_mean", &[0.0; 4]),
            ("image_std", &[0.5; 3]),
            ("image_std", &[]),
        ] {
            let error = open(key, values).err().unwrap_or_else(|| panic!("{key} = {values:?}"));
            assert!(error.contains(&format!("clip.vision.{key}")), "{error}");
        }
    }
}

#[test]
fn impossible_numbers_in_files_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let (metadata, tensors) = parts(&mmproj(NAMES[0]));
    let open = |metadata: &GgufMetadata, tensors: &[Tensor]| {
        Tower::open(&write(folder.path(), metadata, tensors)).map_err(|error| error.to_string())
    };
    assert!(open(&metadata, &tensors).is_ok());
    for (key, value, mark) in [
        ("patch_size", 0, "side of a patch"),
        ("patch_size", 7, "v.patch_embd.weight"),
        ("projector.scale_factor", 0, "pooling"),
        ("projector.scale_factor", 4, "number of places on a side"),
        ("embedding_length", 0, "hidden size"),
        ("embedding_length", 32, "has shape"),
        ("attention.head_count", 5, "a multiple of 5"),
        ("attention.head_count", 4, "head dimension"),
        ("block_count", 1, "v.blk.1."),
        ("block_count", 3, "v.blk.2."),
        ("block_count", u32::MAX, "layer count"),
        ("feed_forward_length", 41, "ffn_gate"),
        ("projection_dim", 41, "mm.input_projection.weight"),
    ] {
        let mut spoilt = metadata.clone();
        spoilt.insert(&format!("clip.vision.{key}"), Value::U32(value));
        let error = open(&spoilt, &tensors).err().unwrap_or_else(|| panic!("{key} = {value}"));
        assert!(error.contains(mark) && error.contains("mmproj.gguf"), "{key} = {value}: {error}");
    }
    for (name, value) in [
        ("v.blk.1.attn_k.input_max", f32::NAN),
        ("v.blk.0.attn_k.output_max", -50.0),
        ("v.blk.0.ffn_down.input_min", 50.0),
    ] {
        let replaced = |tensor: &Tensor| match tensor.name() == name {
            true => single(name, value),
            false => tensor.clone(),
        };
        let spoilt: Vec<Tensor> = tensors.iter().map(replaced).collect();
        let error = open(&metadata, &spoilt).err().unwrap();
        assert!(error.contains(name.rsplit_once('_').unwrap().0), "{name} = {value}: {error}");
    }
    for name in
        ["v.blk.1.ffn_up.output_min", "v.position_embd.weight", "v.blk.0.attn_q_norm.weight"]
    {
        let others: Vec<Tensor> =
            tensors.iter().filter(|tensor| tensor.name() != name).cloned().collect();
        let error = open(&metadata, &others).err().unwrap();
        assert!(error.contains(name), "{name}: {error}");
    }
    let mut more = tensors.clone();
    for (dtype, bytes, expected) in [
        (DType::F32, vec![0; 8], "has shape [2]"),
        (DType::Q8_0, vec![0; 34], "is stored as Q8_0, but only matrices may be"),
    ] {
        let name = "v.blk.0.out_scale.weight";
        let elements = if dtype == DType::F32 { 2 } else { 32 };
        more.push(Tensor::from_owned(name, dtype, &[elements], bytes).unwrap());
        let error = open(&metadata, &more).err().unwrap();
        assert!(error.contains(&format!("tensor {name} {expected}")), "{error}");
        more.pop();
    }
    more.push(single("v.blk.0.out_scale.weight", f32::INFINITY));
    assert!(open(&metadata, &more).err().unwrap().contains("v.blk.0.out_scale.weight"));
    *more.last_mut().unwrap() = single("v.blk.0.out_scale.weight", 0.5);
    let scaled = model_of(open(&metadata, &more).unwrap()).tower_plan(false);
    let is_factor =
        |op: &Op| matches!(op, Op::NormAdd { scale: 0.5, .. } | Op::NormAddNorm { scale: 0.5, .. });
    assert_eq!(steps(&scaled, is_factor), 1, "{scaled}");
}

/// The most patches of a picture do not follow from the limits on its soft tokens, on pooling and
/// on places.
#[test]
fn patches_of_a_picture_are_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let (metadata, mut tensors) = parts(&mmproj(NAMES[0]));
    let places = tensors.iter_mut().find(|tensor| tensor.name() == "v.position_embd.weight");
    let places = places.unwrap();
    let (side, columns) = (280 * 117, places.columns());
    let (dtype, bytes) = (places.dtype(), vec![0; places.bytes().len() / places.rows() * 2 * side]);
    *places = Tensor::from_owned(places.name(), dtype, &[2, side, columns], bytes).unwrap();
    let open = |pool: u32| {
        let mut metadata = metadata.clone();
        metadata.insert("clip.vision.projector.scale_factor", Value::U32(pool));
        Tower::open(&write(folder.path(), &metadata, &tensors)).map_err(|error| error.to_string())
    };
    assert_eq!(open(7).unwrap().config().patches(), 280 * 49);
    for (pool, patches) in [(8, 17_920), (117, 3_832_920)] {
        let error = open(pool).err().unwrap();
        let expected = format!("number of patches of an image of the vision tower is {patches}");
        assert!(error.contains(&expected) && error.contains("from 1 to 16384"), "{error}");
    }
}

/// Limits and factors are tensors in files and numbers in Plans.
#[test]
fn towers_that_differ_in_one_number_have_other_fingerprints() {
    let folder = tempfile::tempdir().unwrap();
    let (metadata, mut tensors) = parts(&mmproj(NAMES[0]));
    let name = "v.blk.1.attn_k.input_max";
    let high = tensors.iter_mut().find(|tensor| tensor.name() == name).unwrap();
    let stored = high.to_f32().unwrap()[0];
    *high = single(name, stored);
    tensors.push(single("v.blk.0.out_scale.weight", 0.5));
    let of = |tensors: &[Tensor]| {
        let tower = Tower::open(&write(folder.path(), &metadata, tensors)).unwrap();
        model_of(tower).tower_fingerprint().unwrap()
    };
    let first = of(&tensors);
    for (name, stored, other) in
        [(name, stored, stored.next_up()), ("v.blk.0.out_scale.weight", 0.5, 0.25)]
    {
        for (value, is_same) in [(stored, true), (other, false)] {
            let replaced = |tensor: &Tensor| match tensor.name() == name {
                true => single(name, value),
                false => tensor.clone(),
            };
            let tensors: Vec<Tensor> = tensors.iter().map(replaced).collect();
            assert_eq!(of(&tensors) == first, is_same, "{name} = {value}");
        }
    }
}

fn model_of(tower: Tower) -> Model {
    Model::open(&golden(NAMES[0])).unwrap().with_tower(tower).unwrap()
}

/// A folder with a model's weights, to which configurations are written.
fn copied(name: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors", "preprocessor_config.json"] {
        fs::copy(golden(name).join(file), folder.path().join(file)).unwrap();
    }
    folder
}

fn json_of(name: &str, file: &str) -> Json {
    serde_json::from_slice(&fs::read(golden(name).join(file)).unwrap()).unwrap()
}

#[test]
fn impossible_numbers_in_a_configuration_are_named() {
    let cases = [
        (0, "hidden_activation", json!("silu"), "hidden_activation"),
        (0, "attention_bias", json!(true), "attention_bias"),
        (0, "rope_parameters", json!({"rope_type": "linear"}), "rope_type"),
        (0, "rope_parameters", json!({"rope_theta": 0.5}), "rope theta"),
        (0, "head_dim", json!(10), "head dimension"),
        (0, "num_key_value_heads", json!(3), "KV head count"),
        (0, "num_hidden_layers", json!(1), "encoder.layers.1"),
        (0, "num_hidden_layers", json!(3), "encoder.layers.2"),
        (0, "use_clipped_linears", json!(1), "use_clipped_linears"),
        (0, "standardize", json!(true), "std_"),
        (0, "position_embedding_size", json!(209), "number of places on a side"),
        (0, "position_embedding_size", json!(841), "position_embedding_table"),
        (0, "patch_size", json!(4), "patch_size x pooling_kernel_size"),
        (1, "use_clipped_linears", json!(true), "q_proj.input_min"),
        (1, "rms_norm_eps", json!(0), "epsilon"),
        (2, "mm_posemb_size", json!(281), "pos_embedding"),
        (2, "mm_embed_dim", json!(25), "patch_dense"),
        (2, "model_patch_size", json!(48), "model_patch_size"),
        (2, "patch_size", json!(1e12), "side of a patch"),
    ];
    for (which, key, value, mark) in cases {
        let name = NAMES[which];
        let folder = copied(name);
        let mut config = json_of(name, "config.json");
        config["vision_config"][key] = value.clone();
        fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
        let error = Tower::open(folder.path()).err();
        let error = error.unwrap_or_else(|| panic!("{key} = {value} was accepted")).to_string();
        assert!(error.contains(mark), "{key} = {value}: {error}");
    }
    let folder = copied(NAMES[0]);
    let mut config = json_of(NAMES[0], "config.json");
    config["text_config"]["pad_token_id"] = json!(3);
    fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    assert!(Tower::open(folder.path()).err().unwrap().to_string().contains("pad_token_id"));
}

#[test]
fn the_preparation_of_pictures_comes_from_the_files() {
    for name in NAMES {
        let folder = copied(name);
        let open = |key: &str, value: Json| {
            let mut config = json_of(name, "preprocessor_config.json");
            config[key] = value;
            fs::write(folder.path().join("preprocessor_config.json"), config.to_string()).unwrap();
            Tower::open(folder.path()).map_err(|error| error.to_string())
        };
        let tower = open("max_soft_tokens", json!(140)).unwrap();
        let Pixels::Budget { soft_tokens: 140, .. } = tower.config().pixels else { panic!() };
        for (key, value) in [
            ("max_soft_tokens", json!(0)),
            ("max_soft_tokens", json!(1121)),
            ("max_soft_tokens", json!("70")),
            ("do_normalize", json!(true)),
            ("do_resize", json!(false)),
            ("do_rescale", json!(false)),
            ("rescale_factor", json!(1)),
            ("resample", json!(2)),
            ("resample", json!("bicubic")),
            ("pooling_kernel_size", json!(2)),
            ("patch_size", json!(null)),
        ] {
            let error = open(key, value.clone()).err().unwrap_or_else(|| panic!("{key} = {value}"));
            for mark in ["preprocessor_config.json", key] {
                assert!(error.contains(mark), "{key} = {value}: {error}");
            }
        }
        for (key, value) in
            [("resample", json!(3)), ("rescale_factor", json!(1.0_f32 / 255.0)), ("size", json!(4))]
        {
            open(key, value).unwrap();
        }
        fs::remove_file(folder.path().join("preprocessor_config.json")).unwrap();
        let tower = Tower::open(folder.path()).unwrap();
        assert_eq!(tower.config().soft_tokens(), 280);
        let is_whole = matches!(tower.config().kind, TowerKind::Unified);
        assert_eq!(tower.config().pool, if is_whole { 1 } else { 3 });
    }
}

#[test]
fn a_smaller_budget_needs_fewer_places() {
    let (name, key) = (NAMES[2], "mm_posemb_size");
    let folder = copied(name);
    let mut config = json_of(name, "config.json");
    // The golden's budget is 70 soft tokens, its table has 280 places.
    for (places, expected) in [(69, "at least 70"), (70, "pos_embedding")] {
        config["vision_config"][key] = json!(places);
        fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
        let error = Tower::open(folder.path()).err().unwrap().to_string();
        assert!(error.contains(expected), "{places}: {error}");
    }
}

/// Parts that a setting turns off would leave their tensors unread.
#[test]
fn settings_that_contradict_tensors_are_named() {
    for (which, key, tensor) in [
        (
            0,
            "use_clipped_linears",
            "model.vision_tower.encoder.layers.0.self_attn.q_proj.input_min",
        ),
        (1, "standardize", "model.vision_tower.std_bias"),
    ] {
        let name = NAMES[which];
        let folder = copied(name);
        for (value, shown) in [(json!(false), "false"), (json!(null), "null")] {
            let mut config = json_of(name, "config.json");
            config["vision_config"][key] = value;
            fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
            let error = Tower::open(folder.path()).err().unwrap().to_string();
            let expected = format!(
                "vision_config.{key} is {shown}, but tensor {tensor} is in the files; settings"
            );
            assert!(error.contains(&expected), "{error}");
        }
        let mut config = json_of(name, "config.json");
        config["vision_config"].as_object_mut().unwrap().remove(key);
        fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
        let error = Tower::open(folder.path()).err().unwrap().to_string();
        assert!(error.contains(&format!("vision_config.{key} is not set, but tensor")), "{error}");
        let other = NAMES[1 - which];
        let folder = copied(other);
        let mut config = json_of(other, "config.json");
        config["vision_config"][key] = json!(true);
        fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
        let error = Tower::open(folder.path()).err().unwrap().to_string();
        let expected = format!("vision_config.{key} is true, but tensor {tensor} is missing");
        assert!(error.contains(&expected), "{error}");
    }
    // A GGUF file has no settings: a part of which one tensor is there has to be whole.
    let folder = tempfile::tempdir().unwrap();
    for (which, missing) in [
        (0, "v.blk.0.attn_q.input_max"),
        (0, "v.blk.1.ffn_down.output_min"),
        (1, "v.std_bias"),
        (1, "v.std_scale"),
    ] {
        let (metadata, mut tensors) = parts(&mmproj(NAMES[which]));
        tensors.retain(|tensor| tensor.name() != missing);
        let error = Tower::open(&write(folder.path(), &metadata, &tensors)).err().unwrap();
        assert!(error.to_string().contains(&format!("tensor {missing} is missing")), "{error}");
        let is_of_part = |name: &str| match which {
            0 => name.ends_with("_min") || name.ends_with("_max"),
            _ => name.starts_with("v.std_"),
        };
        tensors.retain(|tensor| !is_of_part(tensor.name()));
        assert!(Tower::open(&write(folder.path(), &metadata, &tensors)).is_ok());
    }
}

#[test]
fn towers_and_models_of_other_families_are_refused() {
    let tower = Tower::open(&golden(NAMES[0])).unwrap();
    let error = Model::open(&golden("gemma3-vision")).unwrap().with_tower(tower).err().unwrap();
    assert!(error.to_string().contains("the model's family is gemma3, expected gemma4"), "{error}");
    let tower = Tower::open(&golden("gemma3-vision")).unwrap();
    let error = Model::open(&golden(NAMES[1])).unwrap().with_tower(tower).err().unwrap();
    assert!(error.to_string().contains("the model's family is gemma4, expected gemma3"), "{error}");
}

/// Bytes of headers are changed, and ends cut off. What opens has a Plan whose tensors are there.
#[test]
fn damaged_files_give_an_error_or_a_tower() {
    let mut state = 0x9E37_79B9_7F4A_7C15;
    let mut refused = 0;
    for name in NAMES {
        let folder = copied(name);
        let text = Model::open(&golden(name)).unwrap();
        let file = fs::read(mmproj(name)).unwrap();
        // Keys and the list of tensors; what follows are numbers of any value.
        let header =
            file.windows(24).rposition(|bytes| bytes.starts_with(b"input_projection.weight"));
        let header = header.unwrap() + 60;
        let json = ["config.json", "preprocessor_config.json"]
            .map(|file| fs::read(golden(name).join(file)).unwrap());
        for case in 0..330 {
            let (source, file_name, limit) = match case % 3 {
                0 => (&file, "mmproj.gguf", header),
                1 => (&json[0], "config.json", json[0].len()),
                _ => (&json[1], "preprocessor_config.json", json[1].len()),
            };
            let bytes = damaged(source, limit, &mut state);
            let path = folder.path().join(file_name);
            fs::write(&path, &bytes).unwrap();
            let opens = if case % 3 == 0 { path.clone() } else { folder.path().to_owned() };
            let opened = catch_unwind(AssertUnwindSafe(|| Tower::open(&opens)));
            let opened = opened.unwrap_or_else(|_| panic!("{name}, case {case} panicked"));
            if case % 3 > 0 {
                fs::write(&path, source).unwrap();
            }
            let Ok(tower) = opened else {
                refused += 1;
                continue;
            };
            let config = *tower.config();
            assert!(config.places() <= 1 << 30 && config.patches() <= 1 << 14);
            let Ok(model) = text.clone().with_tower(tower) else { continue };
            for weight in &model.tower_plan(true).weights {
                assert_eq!(model.tensor(weight).elements(), weight.rows * weight.columns);
            }
        }
    }
    println!("{refused} of 990 were refused");
    assert!((250..990).contains(&refused), "{refused}");
}
