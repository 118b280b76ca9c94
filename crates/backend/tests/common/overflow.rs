//! Models whose values overflow f32: a device's logits are those of the reference, or not finite
//! and the device says where. They are never silently other ones.

use std::path::Path;

use tempfile::TempDir;
use trine_backend::Device;
use trine_backend::reference::ReferenceDevice;
use trine_model::{KvType, Model, Plan};

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

/// How a device compares with the reference on a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// All logits agree.
    Same,
    /// Rows have logits that are not finite, and the device says where it began.
    Told,
}

/// Multiplies each kind of tensor of a model (that of the first layer that has it) with each
/// factor, and calls `check` for those whose elements stay finite.
pub fn each_tensor(name: &str, mut check: impl FnMut(&str, &Model, &[u32])) {
    let ids = Golden::load(name).ids;
    let from = folder(name);
    let bytes = std::fs::read(from.join("model.safetensors")).unwrap();
    let head = 8 + u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let mut kinds: Vec<(String, String)> =
        file.names().into_iter().map(|tensor| (kind(tensor), tensor.to_owned())).collect();
    kinds.sort();
    kinds.dedup_by(|after, first| after.0 == first.0);
    let target = tempfile::tempdir().unwrap();
    std::fs::copy(from.join("config.json"), target.path().join("config.json")).unwrap();
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
                // A layer's output scale is refused when it is read.
                if let Ok(model) = Model::open(target.path()) {
                    check(&format!("{name}, {tensor} x {factor:e}"), &model, &ids);
                }
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

/// A GGUF file of floats with random bytes among its weights, from one to 4,096 of them.
pub fn damaged(seed: u64) -> (Model, Vec<u32>, TempDir) {
    const NAME: &str = "gguf/gemma3-f32";
    let golden = Golden::load(NAME);
    let mut bytes = std::fs::read(folder(NAME).join("model.gguf")).unwrap();
    let weights: u64 = golden.model.base_plan().weights.iter().map(|own| own.bytes()).sum();
    let mut random = Random(seed);
    for _ in 0..1 << (seed % 13) {
        let back = 1 + random.below(weights as usize);
        let at = bytes.len() - back;
        bytes[at] = random.next() as u8;
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
        let rows = expected.chunks_exact(vocabulary).zip(logits.chunks_exact(vocabulary));
        let mut is_broken = false;
        for (row, (expected, found)) in rows.enumerate() {
            if found.iter().any(|logit| !logit.is_finite()) {
                is_broken = true;
                continue;
            }
            if let Some(broken) = expected.iter().find(|logit| !logit.is_finite()) {
                return Err(format!("row {row} is finite, the reference has {broken}"));
            }
            let high = expected.iter().fold(0.0f32, |high, logit| high.max(logit.abs()));
            let differences = expected.iter().zip(found).map(|(a, b)| (a - b).abs() / high);
            let worst = differences.fold(0.0, f32::max);
            if worst > TOLERANCE {
                return Err(format!("row {row} is off by {worst} of the largest logit"));
            }
        }
        if is_broken {
            let place = found.program.overflow(0);
            if !names_a_place(&found.program.facts().plan, &place) {
                return Err(format!("no place of the Plan is named: {place}"));
            }
            outcome = Outcome::Told;
        }
    }
    Ok(outcome)
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
