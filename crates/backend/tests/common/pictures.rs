//! Golden pictures, and random towers.

use std::path::Path;

use safetensors::SafeTensors;
use trine_backend::{BLOCK, Batch, Device, ProgramOptions, SOFT, SequenceView, TowerProgram};
use trine_model::{KvType, Model, Tower, TowerConfig, Width};
use trine_weights::gguf::{Metadata, Value};
use trine_weights::{DType, Tensor};

use super::folder;
use super::random::{Random, matrix, vector, written};

/// Where the golden model is: text, tower.
pub const TWINS: [(&str, &str); 3] = [
    ("gemma3-vision", "gemma3-vision"),
    ("gguf/gemma3-vision/model-f32.gguf", "gguf/gemma3-vision/mmproj-f16.gguf"),
    ("gguf/gemma3-vision/model-f32.gguf", "gguf/gemma3-vision/mmproj-f32-swapped.gguf"),
];

/// The prompts, each with its pictures in order.
pub const PROMPTS: [(&str, &[usize]); 3] =
    [("one", &[0]), ("two", &[0, 1]), ("back_to_back", &[1, 0])];

/// The id of a soft token in the golden prompts.
const SOFT_ID: u32 = 512;

/// What another implementation computed.
pub struct GoldenPictures {
    bytes: Vec<u8>,
}

impl GoldenPictures {
    pub fn load() -> Self {
        let path = folder("gemma3-vision").join("goldens.safetensors");
        Self { bytes: std::fs::read(path).unwrap() }
    }

    pub fn floats(&self, name: &str) -> Vec<f32> {
        let file = SafeTensors::deserialize(&self.bytes).unwrap();
        let data = file.tensor(name).unwrap();
        data.data().as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
    }

    pub fn ids(&self, name: &str) -> Vec<u32> {
        let file = SafeTensors::deserialize(&self.bytes).unwrap();
        let data = file.tensor(name).unwrap();
        data.data().as_chunks().0.iter().map(|b| i64::from_le_bytes(*b) as u32).collect()
    }

    /// The patches of a picture, row by row.
    pub fn patches(&self, picture: usize, config: &TowerConfig) -> Vec<f32> {
        let pixels = self.floats("pixel_values");
        let (side, patch, grid) = (config.picture, config.patch, config.grid());
        let own = &pixels[picture * 3 * side * side..];
        let value = |(number, at): (usize, usize)| {
            let (colour, y, x) = (at / (patch * patch), at / patch % patch, at % patch);
            let (row, column) = (number / grid * patch + y, number % grid * patch + x);
            own[colour * side * side + row * side + column]
        };
        let places = (0..config.patches())
            .flat_map(|number| (0..config.patch_values()).map(move |at| (number, at)));
        places.map(value).collect()
    }
}

pub fn open_golden((model, tower): (&str, &str)) -> Model {
    let tower = Tower::open(&folder(tower)).unwrap();
    Model::open(&folder(model)).unwrap().with_tower(tower).unwrap()
}

pub fn difference(expected: &[f32], found: &[f32]) -> f32 {
    assert_eq!(expected.len(), found.len());
    let one = |(a, b): (&f32, &f32)| if b.is_nan() { f32::INFINITY } else { (a - b).abs() };
    expected.iter().zip(found).map(one).fold(0.0, f32::max)
}

/// Runs both golden pictures through a tower: the largest differences before and after the
/// projector, and the soft rows of each picture.
pub fn golden_rows(device: &dyn Device, model: &Model, kv: KvType) -> (f32, f32, [Vec<f32>; 2]) {
    let golden = GoldenPictures::load();
    let mut tower = TowerProgram::load(device, model, kv, true).unwrap();
    let config = *model.tower().unwrap().config();
    let found = [0, 1].map(|picture| tower.run(&golden.patches(picture, &config)).unwrap());
    let (states, rows) = (golden.floats("tower"), golden.floats("projector"));
    let [first, second] = &found;
    let worst = [
        difference(&states, &[&first.states[..], &second.states].concat()),
        difference(&rows, &[&first.rows[..], &second.rows].concat()),
    ];
    (worst[0], worst[1], found.map(|found| found.rows))
}

/// A sequence of a model that takes pictures.
pub struct PictureSequence<'a> {
    program: Box<dyn trine_backend::Program>,
    blocks: Vec<u32>,
    length: usize,
    /// Rows of the pictures that are still to come, in order.
    soft: &'a [f32],
    hidden: usize,
}

impl<'a> PictureSequence<'a> {
    pub fn new(
        device: &dyn Device,
        model: &Model,
        (context, width): (usize, usize),
        kv: KvType,
        soft: &'a [f32],
    ) -> Self {
        let blocks = context.div_ceil(BLOCK);
        let width = Width { tokens: width, outputs: width };
        let options = ProgramOptions { width, kv, context, sequences: 1, blocks };
        let program = device.load_plan(model, model.plan(), &options).unwrap();
        let blocks = (0..blocks as u32).rev().collect();
        Self { program, blocks, length: 0, soft, hidden: model.config().hidden }
    }

    /// Appends tokens, of which runs of soft ones see one another; the logits of all.
    pub fn extend(&mut self, ids: &[u32]) -> Vec<f32> {
        let tokens: Vec<u32> =
            ids.iter().map(|&id| if id == SOFT_ID { SOFT } else { id }).collect();
        let run = |run: &[u32]| -> Vec<u32> {
            if run[0] == SOFT { (0..run.len() as u32).rev().collect() } else { vec![0; run.len()] }
        };
        let ahead: Vec<u32> =
            tokens.chunk_by(|a, b| (*a == SOFT) == (*b == SOFT)).flat_map(run).collect();
        let count = tokens.iter().filter(|token| **token == SOFT).count();
        let (own, rest) = self.soft.split_at(count * self.hidden);
        self.soft = rest;
        let positions: Vec<u32> = (self.length as u32..).take(tokens.len()).collect();
        let batch = Batch {
            tokens: &tokens,
            positions: &positions,
            sequence_of: &vec![0; tokens.len()],
            sequences: &[SequenceView { slot: 0, blocks: &self.blocks }],
            outputs: &(0..tokens.len() as u32).collect::<Vec<_>>(),
            ahead: &ahead,
            bulk_from: tokens.len(),
            inputs: &[own],
            goal: 0,
        };
        self.length += tokens.len();
        self.program.run(&batch).unwrap().to_vec()
    }
}

/// Cuts ids into pieces of at most `chunk`, or longer ones where a picture would be cut.
fn pieces(ids: &[u32], chunk: usize) -> Vec<&[u32]> {
    let mut pieces = Vec::new();
    let mut rest = ids;
    while !rest.is_empty() {
        let mut end = chunk.min(rest.len());
        let is_inside = |end: usize| end < rest.len() && rest[end - 1..=end] == [SOFT_ID; 2];
        while is_inside(end) {
            end += 1;
        }
        let (piece, others) = rest.split_at(end);
        pieces.push(piece);
        rest = others;
    }
    pieces
}

/// The largest difference of a logit of a golden prompt in pieces of `chunk`, and the greedy ids.
pub fn golden_logits(
    device: &dyn Device,
    model: &Model,
    rows: &[Vec<f32>; 2],
    (prompt, pictures): (&str, &[usize]),
    chunk: usize,
) -> f32 {
    let golden = GoldenPictures::load();
    let soft: Vec<f32> = pictures.iter().flat_map(|&picture| rows[picture].clone()).collect();
    let ids = golden.ids(&format!("{prompt}.input_ids"));
    let (expected, greedy) =
        (golden.floats(&format!("{prompt}.logits")), golden.ids(&format!("{prompt}.greedy_ids")));
    let sizes = (ids.len() + greedy.len(), ids.len());
    let mut sequence = PictureSequence::new(device, model, sizes, KvType::F32, &soft);
    let pieces = pieces(&ids, chunk);
    let found: Vec<f32> = pieces.into_iter().flat_map(|piece| sequence.extend(piece)).collect();
    assert!(sequence.soft.is_empty(), "{prompt} has a place for each soft row");
    let width = model.config().vocabulary;
    let mut last = found[found.len() - width..].to_vec();
    for id in greedy {
        let best = (0..width).reduce(|best, at| if last[at] > last[best] { at } else { best });
        assert_eq!(best, Some(id as usize), "{prompt}: greedy continuation");
        last = sequence.extend(&[id]);
    }
    difference(&expected, &found)
}

/// The tensors and numbers of a random tower.
pub struct TowerDraft {
    pub metadata: Metadata,
    pub tensors: Vec<Tensor>,
}

impl TowerDraft {
    /// A tower with rows of `output` values, whose matrices are stored as `dtype`, or as F32 where
    /// rows are no whole blocks.
    pub fn new(random: &mut Random, dtype: DType, output: usize) -> Self {
        let block = dtype.block_elements();
        let (patch, pool) = (1 + random.below(4), 1 + random.below(3));
        let grid = pool * (1 + random.below(3));
        let heads = 1 + random.below(3);
        let dim = if block == 1 { 1 + random.below(40) } else { block };
        let hidden = heads * dim;
        let ffn = 1 + random.below(4 * hidden);
        let layers = 1 + random.below(3);
        let mut metadata = Metadata::new("random tower");
        metadata.insert("general.architecture", Value::String("clip".into()));
        metadata.insert("clip.projector_type", Value::String("gemma3".into()));
        metadata.insert("clip.vision.attention.layer_norm_epsilon", Value::F32(1e-4));
        for (key, value) in [
            ("image_size", grid * patch),
            ("patch_size", patch),
            ("embedding_length", hidden),
            ("feed_forward_length", ffn),
            ("block_count", layers),
            ("projection_dim", output),
            ("attention.head_count", heads),
            ("projector.scale_factor", pool),
        ] {
            metadata.insert(&format!("clip.vision.{key}"), Value::U32(value as u32));
        }
        let mut tensors = Vec::new();
        let mut push = |name: &str, rows: usize, columns: usize| {
            let fits = columns.is_multiple_of(block);
            let formats = [if fits { dtype } else { DType::F32 }];
            tensors.push(matrix(random, &format!("{name}.weight"), rows, columns, &formats));
            tensors.push(vector(random, &format!("{name}.bias"), rows));
        };
        push("v.patch_embd", hidden, 3 * patch * patch);
        for layer in 0..layers {
            let name = |part| format!("v.blk.{layer}.{part}");
            for part in ["attn_q", "attn_k", "attn_v", "attn_out"] {
                push(&name(part), hidden, hidden);
            }
            push(&name("ffn_up"), ffn, hidden);
            push(&name("ffn_down"), hidden, ffn);
        }
        for norm in (0..layers)
            .flat_map(|layer| ["ln1", "ln2"].map(|part| format!("v.blk.{layer}.{part}")))
            .chain(["v.post_ln".to_owned()])
        {
            tensors.push(vector(random, &format!("{norm}.weight"), hidden));
            tensors.push(vector(random, &format!("{norm}.bias"), hidden));
        }
        tensors.push(vector(random, "mm.soft_emb_norm.weight", hidden));
        let places = matrix(random, "v.position_embd.weight", grid * grid, hidden, &[dtype]);
        tensors.push(places);
        let float = [DType::F32];
        tensors.push(matrix(random, "mm.input_projection.weight", hidden, output, &float));
        Self { metadata, tensors }
    }

    pub fn open(&self, folder: &Path) -> Tower {
        Tower::open(&written(folder, &self.metadata, &self.tensors)).unwrap()
    }
}

/// Gives a model a random tower.
pub fn with_tower(random: &mut Random, model: Model, dtype: DType, folder: &Path) -> Model {
    let tower = TowerDraft::new(random, dtype, model.config().hidden).open(folder);
    model.with_tower(tower).unwrap()
}

/// Runs two random pictures through a tower, one after the other: rows and states of both.
pub fn random_rows(device: &dyn Device, model: &Model, seed: u64) -> Vec<Vec<f32>> {
    let mut random = Random(seed);
    let mut tower = TowerProgram::load(device, model, KvType::F32, true).unwrap();
    let config = *model.tower().unwrap().config();
    let mut found = Vec::new();
    for _ in 0..2 {
        let count = config.patches() * config.patch_values();
        let patches: Vec<f32> = (0..count).map(|_| random.unit()).collect();
        let made = tower.run(&patches).unwrap();
        found.extend([made.rows, made.states]);
    }
    assert!(tower.run(&[0.0]).is_err());
    found
}
