//! Importance matrices that are made here: what matrices were multiplied with.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Result, bail};
use trine_backend::InputSums;
use trine_model::{Op, Plan, WeightId, names};
use trine_weights::gguf::{Array, GgufMetadata, StringArray, Value, Writer};
use trine_weights::{DType, Tensor};

/// Sums of squares of what each matrix was multiplied with, as a file of importances has them
/// ([`Importance`](super::Importance)). As in llama-imatrix's files, the table that is also the
/// output is not among them.
#[derive(Debug, Default)]
pub struct Observed {
    /// By the matrix's name.
    entries: BTreeMap<String, InputSums>,
}

impl Observed {
    /// Assigns the sums of each step of a Plan to its matrices.
    pub fn new(plan: &Plan, sums: Vec<InputSums>) -> Self {
        let mut entries = BTreeMap::new();
        for (step, sums) in plan.steps.iter().zip(sums) {
            for weight in matrices(&step.op) {
                let name = &plan.weight(weight).name;
                if name != names::TOKEN_EMBEDDING && name != names::OUTPUT && !sums.rows.is_empty()
                {
                    entries.insert(name.clone(), sums.clone());
                }
            }
        }
        Self { entries }
    }

    /// Writes them to a GGUF file with the name of the text, which was read in `chunks` windows of
    /// `size` tokens.
    ///
    /// # Errors
    /// Returns an error if there are none, or the file cannot be written.
    pub fn write(&self, path: &Path, text: &str, chunks: usize, size: usize) -> Result<()> {
        if self.entries.is_empty() {
            bail!("the model has no matrices that were used");
        }
        let mut texts = StringArray::default();
        texts.push(text);
        let mut metadata = GgufMetadata::new(&path.display().to_string());
        metadata.insert("general.type", Value::String("imatrix".into()));
        metadata.insert("imatrix.datasets", Value::Array(Array::String(texts)));
        metadata.insert("imatrix.chunk_count", Value::U32(u32::try_from(chunks)?));
        metadata.insert("imatrix.chunk_size", Value::U32(u32::try_from(size)?));
        let mut tensors = Vec::with_capacity(2 * self.entries.len());
        for (name, InputSums { squares, rows }) in &self.entries {
            let experts = rows.len();
            for (what, values, columns) in [
                (
                    "in_sum2",
                    squares.iter().map(|&sum| sum as f32).collect(),
                    squares.len() / experts,
                ),
                ("counts", rows.iter().map(|&rows| rows as f32).collect::<Vec<_>>(), 1),
            ] {
                let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
                let shape = [experts, columns];
                tensors.push(Tensor::from_owned(
                    &format!("{name}.{what}"),
                    DType::F32,
                    &shape,
                    bytes,
                )?);
            }
        }
        let mut writer = Writer::new(path, metadata)?;
        for tensor in &tensors {
            writer.declare(tensor.name(), tensor.dtype(), tensor.shape())?;
        }
        let mut data = writer.start()?;
        tensors.iter().try_for_each(|tensor| data.tensor(tensor))?;
        Ok(data.finish()?)
    }

    /// Returns the number of matrices.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

/// Returns the matrices of an operation whose inputs are observed.
fn matrices(op: &Op) -> Vec<WeightId> {
    match op {
        Op::MatMul { products, .. } => products.iter().map(|product| product.weight).collect(),
        Op::GatedMatMul { gate, up, .. } => vec![*gate, *up],
        Op::GatedExperts { gate_and_up, .. } => {
            gate_and_up.iter().map(|matrix| matrix.weight).collect()
        }
        Op::SumExperts { down, .. } => vec![down.weight],
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trine_backend::BLOCK;
    use trine_cpu::CpuDevice;
    use trine_model::{KvType, Model};
    use trine_testing::OneSequence;
    use trine_weights::SafetensorsFile;

    /// The sums are those that another implementation found for the same tokens in `chunks` equal
    /// pieces, each from position 0.
    fn check(kind: &str, model: &str, chunks: usize) {
        let goldens = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens");
        let golden = SafetensorsFile::open(&goldens.join("quantize/imatrix.safetensors")).unwrap();
        let entry = |name: &str| {
            let found = golden.entries().iter().find(|entry| entry.name == name);
            golden.bytes(found.unwrap_or_else(|| panic!("{name}")))
        };
        let ids = entry(&format!("{kind}.input_ids")).as_chunks::<8>().0.iter();
        let ids: Vec<u32> = ids.map(|id| i64::from_le_bytes(*id) as u32).collect();
        let model = Model::open(&goldens.join(model)).unwrap();
        let device = CpuDevice::new(Some(2), None).unwrap();
        let size = ids.len() / chunks;
        let mut all: Vec<InputSums> = Vec::new();
        let mut plan = None;
        for chunk in ids.chunks(size) {
            let context = size.next_multiple_of(BLOCK);
            let mut sequence = OneSequence::new(&device, &model, context, size, KvType::F32);
            assert!(sequence.program.observe(true).unwrap().is_empty());
            sequence.extend(chunk);
            let sums = sequence.program.observe(false).unwrap();
            all.resize(sums.len(), InputSums::default());
            for (all, own) in all.iter_mut().zip(sums) {
                all.squares.resize(own.squares.len(), 0.0);
                all.rows.resize(own.rows.len(), 0);
                all.squares.iter_mut().zip(own.squares).for_each(|(all, own)| *all += own);
                all.rows.iter_mut().zip(own.rows).for_each(|(all, own)| *all += own);
            }
            plan = Some(sequence.program.facts().plan.clone());
        }
        let observed = Observed::new(&plan.unwrap(), all);
        let expected = golden.entries().iter();
        let expected: Vec<&str> = expected
            .filter_map(|entry| entry.name.strip_prefix(kind)?.strip_suffix(".in_sum2"))
            .map(|name| &name[1..])
            .collect();
        assert!(!expected.is_empty());
        for name in expected {
            let floats = |what: &str| {
                let words = entry(&format!("{kind}.{name}.{what}")).as_chunks::<4>().0.iter();
                words.map(|word| f32::from_le_bytes(*word)).collect::<Vec<_>>()
            };
            let (sums, counts) = (floats("in_sum2"), floats("counts"));
            let own = observed.entries.get(name).unwrap_or_else(|| panic!("{name}"));
            let rows: Vec<f32> = own.rows.iter().map(|&rows| rows as f32).collect();
            assert_eq!(rows, counts, "{name}");
            let largest = sums.iter().copied().fold(0.0, f32::max);
            for (own, sum) in own.squares.iter().zip(&sums) {
                let off = (*own as f32 - sum).abs();
                assert!(off <= 1e-4 * largest, "{name}: {own} for {sum}");
            }
            assert_eq!(own.squares.len(), sums.len(), "{name}");
        }
    }

    #[test]
    fn sums_are_those_of_another_implementation() {
        check("dense", "gemma3-a", 2);
        check("moe", "gemma4-moe", 1);
    }
}
