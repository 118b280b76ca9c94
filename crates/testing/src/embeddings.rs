//! Texts with vectors that another implementation computed.

use trine_backend::{BLOCK, BULK_ROWS, Batch, Device, ProgramOptions, SequenceView};
use trine_model::{Goal, KvType, Model, Plan, Width};

use crate::folder;

/// A model, token ids of texts, and their vectors.
pub struct EmbeddingGolden {
    pub model: Model,
    pub ids: Vec<Vec<u32>>,
    pub vectors: Vec<Vec<f32>>,
}

impl EmbeddingGolden {
    pub fn load(name: &str) -> Self {
        let folder = folder(name);
        let gguf = folder.join("model.gguf");
        let path = if gguf.exists() { gguf } else { folder.clone() };
        let bytes = std::fs::read(folder.join("goldens.safetensors")).unwrap();
        let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let ids = |text: usize| -> Vec<u32> {
            let data = file.tensor(&format!("{text}.input_ids")).unwrap();
            data.data().as_chunks().0.iter().map(|b| i64::from_le_bytes(*b) as u32).collect()
        };
        let vector = |text: usize| -> Vec<f32> {
            let data = file.tensor(&format!("{text}.embedding")).unwrap();
            data.data().as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
        };
        Self {
            model: Model::open(&path).unwrap(),
            ids: (0..6).map(ids).collect(),
            vectors: (0..6).map(vector).collect(),
        }
    }

    /// 1 - cosine of each text's vector and a found one.
    pub fn distances(&self, found: &[Vec<f32>]) -> Vec<f64> {
        assert_eq!(found.len(), self.vectors.len());
        let pairs = self.vectors.iter().zip(found);
        pairs.map(|(golden, found)| distance(golden, found)).collect()
    }
}

/// 1 - cosine of two vectors; infinite if one is not finite.
pub fn distance(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let dot = |a: &[f32], b: &[f32]| -> f64 {
        a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
    };
    let cosine = dot(a, b) / (dot(a, a) * dot(b, b)).sqrt();
    if cosine.is_nan() { f64::INFINITY } else { 1.0 - cosine }
}

/// The mean of each text's rows in one step of all texts, whose rows all see one another.
pub fn embeddings(
    device: &dyn Device,
    model: &Model,
    plan: Plan,
    texts: &[Vec<u32>],
    kv: KvType,
) -> Vec<Vec<f32>> {
    let blocks: Vec<usize> = texts.iter().map(|text| text.len().div_ceil(BLOCK)).collect();
    let options = ProgramOptions {
        width: Width { tokens: texts.iter().map(Vec::len).sum(), outputs: 1 },
        kv,
        context: texts.iter().map(Vec::len).max().unwrap(),
        sequences: texts.len(),
        blocks: blocks.iter().sum(),
    };
    let mut free = 0..options.blocks as u32;
    let tables: Vec<Vec<u32>> =
        blocks.iter().map(|&count| free.by_ref().take(count).collect()).collect();
    let slots = tables.iter().zip(0..);
    let sequences: Vec<SequenceView<'_>> =
        slots.map(|(blocks, slot)| SequenceView { slot, blocks }).collect();
    let (mut tokens, mut positions, mut sequence_of, mut ahead) = (vec![], vec![], vec![], vec![]);
    for (index, text) in texts.iter().enumerate() {
        assert!(text.len() <= BULK_ROWS, "rows of texts have one precision");
        tokens.extend_from_slice(text);
        positions.extend(0..text.len() as u32);
        sequence_of.extend(std::iter::repeat_n(index as u32, text.len()));
        ahead.extend((0..text.len() as u32).rev());
    }
    let columns = plan.output(0).columns;
    let mut program = device.load_plan(model, plan, &options).unwrap();
    let batch = Batch {
        tokens: &tokens,
        positions: &positions,
        sequence_of: &sequence_of,
        sequences: &sequences,
        outputs: &[],
        ahead: &ahead,
        bulk_from: tokens.len(),
        inputs: &[],
        goal: Goal::States,
    };
    let step = program.submit(&batch).unwrap();
    let rows = program.wait(step).unwrap().output(0).unwrap().to_vec();
    let mut rows = rows.chunks_exact(columns);
    let mean = |text: &Vec<u32>| -> Vec<f32> {
        let mut sum = vec![0.0_f64; columns];
        for row in rows.by_ref().take(text.len()) {
            sum.iter_mut().zip(row).for_each(|(sum, value)| *sum += f64::from(*value));
        }
        sum.into_iter().map(|sum| (sum / text.len() as f64) as f32).collect()
    };
    texts.iter().map(mean).collect()
}
