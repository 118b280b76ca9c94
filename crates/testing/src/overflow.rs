//! Models whose values overflow f32: a device's logits are those of the reference, or not finite
//! and the device says where. They are never silently other ones.

use std::path::Path;

use tempfile::TempDir;
use trine_backend::reference::ReferenceDevice;
use trine_backend::{Device, TowerProgram};
use trine_model::{Goal, KvType, Model, Plan, Tower};

use super::pictures::GoldenPictures;
use super::random::Random;
use super::{Golden, OneSequence, folder};

/// The golden models, which have every kind of tensor of their family.
pub const MODELS: [&str; 5] = ["gemma3-a", "gemma3n-a", "gemma4-e", "gemma4-dense", "gemma4-moe"];

/// What tensors are multiplied with: squares of values beyond 1.8e19 overflow, and so do products
/// of others that are.
const FACTORS: [f32; 3] = [1e12, 1e22, 1e30];

/// The largest difference of a logit, relative to the largest of its row. Norms of large values
/// leave the rounding of f32 as it is; a value that is lost changes logits by 0.3 and more.
const TOLERANCE: f32 = 5e-3;

/// Tokens of a prompt; one more follows by itself.
const PROMPT: usize = 9;

/// Golden models with towers, of which those of Gemma 4 take pictures in patches of their own.
pub const TOWERS: [&str; 4] =
    ["gemma3-vision", "gemma4-vision-e", "gemma4-vision-dense", "gemma4-vision-unified"];

/// How a device compares with the reference on a model. It says where values first were not finite
/// if some of its own are not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// All values agree.
    Same,
    /// Where some are not finite, the reference has no others.
    Both,
    /// Some are not finite where those of the reference are.
    Told,
}

/// Multiplies each kind of tensor of a model (that of the first layer that has it) with each
/// factor, and calls `check` for those whose elements stay finite.
pub fn each_tensor(name: &str, mut check: impl FnMut(&str, &Model, &[u32])) {
    let ids = Golden::load(name).ids;
    // A layer's output scale is refused when it is read.
    each_changed(
        name,
        |_| true,
        |case, folder| {
            if let Ok(model) = Model::open(folder) {
                check(case, &model, &ids);
            }
        },
    );
}

/// Does the same for the tensors of a model's tower.
pub fn each_tower(name: &str, mut check: impl FnMut(&str, &Model)) {
    let is_of_tower = |tensor: &str| tensor.contains("vision") || tensor.contains("projector");
    each_changed(name, is_of_tower, |case, folder| {
        // Limits that are too large are refused.
        if let Ok(tower) = Tower::open(folder) {
            check(case, &Model::open(folder).unwrap().with_tower(tower).unwrap());
        }
    });
}

/// Calls `check` with a folder for each kind of tensor that is `wanted` and each factor.
fn each_changed(name: &str, wanted: impl Fn(&str) -> bool, mut check: impl FnMut(&str, &Path)) {
    let from = folder(name);
    let bytes = std::fs::read(from.join("model.safetensors")).unwrap();
    let head = 8 + u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let mut kinds: Vec<(String, String)> =
        file.names().into_iter().map(|tensor| (kind(tensor), tensor.to_owned())).collect();
    kinds.retain(|(_, tensor)| wanted(tensor));
    kinds.sort();
    kinds.dedup_by(|after, first| after.0 == first.0);
    let target = tempfile::tempdir().unwrap();
    for other in ["config.json", "preprocessor_config.json"] {
        std::fs::copy(from.join(other), target.path().join(other)).ok();
    }
    for (_, tensor) in kinds {
        let view = file.tensor(&tensor).unwrap();
        let start = view.data().as_ptr() as usize - bytes.as_ptr() as usize;
        assert!(start >= head, "data follow the head");
        for factor in FACTORS {
            let mut changed = bytes.clone();
            let data = &mut changed[start..start + view.data().len()];
            if multiply(view.dtype(), data, factor) {
                let path = target.path().join("model.safetensors");
                // Another file: the one before may be mapped.
                std::fs::remove_file(&path).ok();
                std::fs::write(&path, &changed).unwrap();
                check(&format!("{name}, {tensor} x {factor:e}"), target.path());
            }
        }
    }
}

/// Returns a tensor's name without the numbers of layers.
fn kind(tensor: &str) -> String {
    let is_number = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    tensor.split('.').filter(|part| !is_number(part)).collect::<Vec<_>>().join(".")
}

/// Multiplies elements; returns whether they stay finite.
fn multiply(dtype: safetensors::Dtype, data: &mut [u8], factor: f32) -> bool {
    let mut are_finite = true;
    let mut product = |value: f32| {
        are_finite &= (value * factor).is_finite();
        value * factor
    };
    match dtype {
        safetensors::Dtype::F32 => {
            for value in data.as_chunks_mut().0 {
                *value = product(f32::from_le_bytes(*value)).to_le_bytes();
            }
        }
        safetensors::Dtype::BF16 => {
            for value in data.as_chunks_mut().0 {
                let bits = u32::from(u16::from_le_bytes(*value)) << 16;
                let bits = product(f32::from_bits(bits)).to_bits();
                *value = ((bits >> 16) as u16).to_le_bytes();
            }
        }
        other => panic!("goldens have no {other:?}"),
    }
    are_finite
}

/// A golden GGUF file with random bytes among its weights, from one to 4,096 of them.
pub fn damaged(name: &str, seed: u64) -> (Model, Vec<u32>, TempDir) {
    let golden = Golden::load(name);
    let mut bytes = std::fs::read(folder(name).join("model.gguf")).unwrap();
    let weights: u64 = golden.model.base_plan().weights.iter().map(|own| own.bytes()).sum();
    let mut random = Random(seed);
    for _ in 0..1 << (seed % 13) {
        let back = 1 + random.below(weights as usize);
        let at = bytes.len() - back;
        bytes[at] = random.next_u64() as u8;
    }
    let target = tempfile::tempdir().unwrap();
    (write(target.path(), &bytes), golden.ids, target)
}

fn write(folder: &Path, bytes: &[u8]) -> Model {
    let path = folder.join("model.gguf");
    std::fs::write(&path, bytes).unwrap();
    Model::open(&path).unwrap()
}

/// Compares the logits of a prompt and of a token after it with those of the reference.
///
/// # Errors
/// What is wrong.
pub fn compare(
    device: &dyn Device,
    model: &Model,
    ids: &[u32],
    kv: KvType,
) -> Result<Outcome, String> {
    let mut expected = OneSequence::new(&ReferenceDevice::new(), model, PROMPT + 1, PROMPT, kv);
    let mut found = OneSequence::new(device, model, PROMPT + 1, PROMPT, kv);
    let vocabulary = model.config().vocabulary;
    let mut outcome = Outcome::Same;
    for piece in [&ids[..PROMPT], &ids[PROMPT..=PROMPT]] {
        let (expected, logits) = (expected.extend(piece), found.extend(piece));
        let own = compare_rows(&expected, &logits, vocabulary)?;
        if own != Outcome::Same {
            let place = found.program.overflow(Goal::Main);
            check_place(&found.program.facts().plan, &place)?;
            if outcome != Outcome::Told {
                outcome = own;
            }
        }
    }
    Ok(outcome)
}

/// Compares the rows that a tower makes of a picture with those of the reference.
///
/// # Errors
/// What is wrong.
pub fn compare_tower(device: &dyn Device, model: &Model, name: &str) -> Result<Outcome, String> {
    let config = *model.tower().unwrap().config();
    let (patches, grid) = match name {
        "gemma3-vision" => {
            let patches = GoldenPictures::load().patches(0, &config);
            (patches, (config.side(), config.side()))
        }
        name => GoldenPictures::load_gemma4(name).patches_and_grid(0),
    };
    let load = |device| TowerProgram::load(device, model, KvType::F32, false).unwrap();
    let mut tower = load(device);
    let expected = load(&ReferenceDevice::new()).run(&patches, grid).unwrap().rows;
    let found = tower.run(&patches, grid).unwrap().rows;
    let outcome = compare_rows(&expected, &found, model.config().hidden)?;
    if outcome != Outcome::Same {
        check_place(&model.tower_plan(false), &tower.overflow())?;
    }
    Ok(outcome)
}

/// Compares rows, of which those with values that are not finite are not wrong.
fn compare_rows(expected: &[f32], found: &[f32], columns: usize) -> Result<Outcome, String> {
    let is_finite = |row: &[f32]| row.iter().all(|value| value.is_finite());
    let mut outcome = Outcome::Same;
    let rows = expected.chunks_exact(columns).zip(found.chunks_exact(columns));
    for (row, (expected, found)) in rows.enumerate() {
        match (is_finite(expected), is_finite(found)) {
            (false, true) => return Err(format!("row {row} is finite, the reference's is not")),
            (false, false) if outcome == Outcome::Same => outcome = Outcome::Both,
            (false, false) => {}
            (true, false) => outcome = Outcome::Told,
            (true, true) => {
                let high = expected.iter().fold(0.0f32, |high, value| high.max(value.abs()));
                let differences = expected.iter().zip(found).map(|(a, b)| (a - b).abs());
                let worst = differences.fold(0.0, f32::max);
                if worst > TOLERANCE * high {
                    return Err(format!("row {row} is off by {worst} of {high}"));
                }
            }
        }
    }
    Ok(outcome)
}

fn check_place(plan: &Plan, place: &str) -> Result<(), String> {
    match names_a_place(plan, place) {
        true => Ok(()),
        false => Err(format!("no place of the Plan is named: {place}")),
    }
}

/// Returns whether a text names a weight or a step, and its layer if it is of one.
fn names_a_place(plan: &Plan, text: &str) -> bool {
    let steps = plan.steps.iter().map(|step| step.label.as_str());
    let mut names = steps.chain(plan.weights.iter().map(|weight| weight.name.as_str()));
    let layer = |name: &str| {
        let number = name.split_once("blk.")?.1.split('.').next()?;
        Some(format!("layer {number}: "))
    };
    names
        .any(|name| text.contains(name) && layer(name).is_none_or(|layer| text.starts_with(&layer)))
}
