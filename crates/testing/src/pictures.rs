//! Golden pictures, and random towers.

use std::path::Path;

use safetensors::SafeTensors;
use trine_backend::{BLOCK, Batch, Device, ProgramOptions, SOFT, SequenceView, TowerProgram};
use trine_model::{Family, Goal, KvType, Model, Pixels, Tower, TowerConfig, Width};
use trine_weights::DType;

use super::folder;
use super::random::Random;
use super::towers::{TowerDraft, gemma4_vision, unified};

/// Where the golden model is: text, tower.
pub const TWINS: [(&str, &str); 3] = [
    ("gemma3-vision", "gemma3-vision"),
    ("gguf/gemma3-vision/model-f32.gguf", "gguf/gemma3-vision/mmproj-f16.gguf"),
    ("gguf/gemma3-vision/model-f32.gguf", "gguf/gemma3-vision/mmproj-f32-swapped.gguf"),
];

/// The prompts, each with its pictures in order.
pub const PROMPTS: [(&str, &[usize]); 3] =
    [("one", &[0]), ("two", &[0, 1]), ("back_to_back", &[1, 0])];

/// The golden models of Gemma 4: the clipped tower of E sizes, the standardised one of larger ones,
/// and 12B's. Each has its tower in its folder and in a file.
pub const GEMMA4: [&str; 3] = ["gemma4-vision-e", "gemma4-vision-dense", "gemma4-vision-unified"];

/// What another implementation computed.
pub struct GoldenPictures {
    bytes: Vec<u8>,
    /// The id of a soft token in the prompts.
    soft_id: u32,
}

impl GoldenPictures {
    pub fn load() -> Self {
        Self::of("gemma3-vision", 512)
    }

    /// Loads those of a model of Gemma 4.
    pub fn load_gemma4(name: &str) -> Self {
        Self::of(name, 300)
    }

    fn of(name: &str, soft_id: u32) -> Self {
        let path = folder(name).join("goldens.safetensors");
        Self { bytes: std::fs::read(path).unwrap(), soft_id }
    }

    /// The patches of a picture of Gemma 4, row by row, and their columns and rows.
    pub fn patches_and_grid(&self, picture: usize) -> (Vec<f32>, (usize, usize)) {
        let file = SafeTensors::deserialize(&self.bytes).unwrap();
        let levels = file.tensor(&format!("levels.{picture}")).unwrap();
        let grid = self.ids(&format!("grid.{picture}"));
        let values = levels.data().iter().map(|&level| f32::from(level) / 255.0).collect();
        (values, (grid[0] as usize, grid[1] as usize))
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

    /// The tokens of a prompt.
    pub fn tokens(&self, prompt: &str) -> Vec<u32> {
        let ids = self.ids(&format!("{prompt}.input_ids"));
        ids.into_iter().map(|id| if id == self.soft_id { SOFT } else { id }).collect()
    }

    /// The patches of a picture, row by row.
    pub fn patches(&self, picture: usize, config: &TowerConfig) -> Vec<f32> {
        let pixels = self.floats("pixel_values");
        let Pixels::Square { side, .. } = config.pixels else { panic!("{config:?}") };
        let (patch, grid) = (config.patch, config.side());
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
    let found = [0, 1].map(|picture| {
        tower.run(&golden.patches(picture, &config), (config.side(), config.side())).unwrap()
    });
    let (states, rows) = (golden.floats("tower"), golden.floats("projector"));
    let [first, second] = &found;
    let worst = [
        difference(&states, &[&first.states[..], &second.states].concat()),
        difference(&rows, &[&first.rows[..], &second.rows].concat()),
    ];
    (worst[0], worst[1], found.map(|found| found.rows))
}

/// Runs both golden pictures through a tower of Gemma 4: the largest differences before and after
/// the projector, and the soft rows of each picture.
pub fn golden_rows_of_gemma4(
    device: &dyn Device,
    model: &Model,
    name: &str,
) -> (f32, f32, [Vec<f32>; 2]) {
    let golden = GoldenPictures::load_gemma4(name);
    let mut tower = TowerProgram::load(device, model, KvType::F32, true).unwrap();
    let mut worst = [0.0_f32; 2];
    let rows = [0, 1].map(|picture| {
        let (patches, grid) = golden.patches_and_grid(picture);
        let made = tower.run(&patches, grid).unwrap();
        let expected =
            ["tower", "projector"].map(|what| golden.floats(&format!("{what}.{picture}")));
        for (worst, pair) in worst.iter_mut().zip([&made.states, &made.rows].iter().zip(&expected))
        {
            *worst = worst.max(difference(pair.1, pair.0));
        }
        made.rows
    });
    (worst[0], worst[1], rows)
}

/// A sequence of a model that takes pictures.
pub struct PictureSequence<'a> {
    program: Box<dyn trine_backend::Program>,
    blocks: Vec<u32>,
    length: usize,
    /// Rows of the pictures that are still to come, in order.
    soft: &'a [f32],
    /// The id of a soft token.
    soft_id: u32,
    hidden: usize,
}

impl<'a> PictureSequence<'a> {
    pub fn new(
        device: &dyn Device,
        model: &Model,
        (context, width): (usize, usize),
        kv: KvType,
        (soft_id, soft): (u32, &'a [f32]),
    ) -> Self {
        let blocks = context.div_ceil(BLOCK);
        let width = Width { tokens: width, outputs: width };
        let options = ProgramOptions { width, kv, context, sequences: 1, blocks };
        let program = device.load_plan(model, model.plan(), &options).unwrap();
        let blocks = (0..blocks as u32).rev().collect();
        Self { program, blocks, length: 0, soft, soft_id, hidden: model.config().hidden }
    }

    /// Appends tokens, of which runs of soft ones see one another; the logits of all.
    pub fn extend(&mut self, ids: &[u32]) -> Vec<f32> {
        let tokens: Vec<u32> =
            ids.iter().map(|&id| if id == self.soft_id { SOFT } else { id }).collect();
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
            goal: Goal::Main,
        };
        self.length += tokens.len();
        self.program.run(&batch).unwrap().to_vec()
    }
}

/// Cuts ids into pieces of at most `chunk`, or longer ones where a picture would be cut.
fn pieces(ids: &[u32], chunk: usize, soft_id: u32) -> Vec<&[u32]> {
    let mut pieces = Vec::new();
    let mut rest = ids;
    while !rest.is_empty() {
        let mut end = chunk.min(rest.len());
        let is_inside = |end: usize| end < rest.len() && rest[end - 1..=end] == [soft_id; 2];
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
    prompt: (&str, &[usize]),
    chunk: usize,
) -> f32 {
    golden_logits_of(&GoldenPictures::load(), device, model, rows, prompt, chunk)
}

/// The same for any golden model.
pub fn golden_logits_of(
    golden: &GoldenPictures,
    device: &dyn Device,
    model: &Model,
    rows: &[Vec<f32>; 2],
    (prompt, pictures): (&str, &[usize]),
    chunk: usize,
) -> f32 {
    let soft: Vec<f32> = pictures.iter().flat_map(|&picture| rows[picture].clone()).collect();
    let ids = golden.ids(&format!("{prompt}.input_ids"));
    let (expected, greedy) =
        (golden.floats(&format!("{prompt}.logits")), golden.ids(&format!("{prompt}.greedy_ids")));
    let sizes = (ids.len() + greedy.len(), ids.len());
    let mut sequence =
        PictureSequence::new(device, model, sizes, KvType::F32, (golden.soft_id, &soft));
    let pieces = pieces(&ids, chunk, golden.soft_id);
    let found: Vec<f32> = pieces.into_iter().flat_map(|piece| sequence.extend(piece)).collect();
    assert!(sequence.soft.is_empty(), "{prompt} has a place for each soft row");
    let width = model.config().vocabulary;
    let mut last = found[found.len() - width..].to_vec();
    for id in greedy {
        // The token of a picture is never generated.
        if let Some(soft) = last.get_mut(golden.soft_id as usize) {
            *soft = f32::NEG_INFINITY;
        }
        let best = (0..width).reduce(|best, at| if last[at] > last[best] { at } else { best });
        assert_eq!(best, Some(id as usize), "{prompt}: greedy continuation");
        last = sequence.extend(&[id]);
    }
    difference(&expected, &found)
}

/// Gives a model a random tower of its family.
pub fn with_tower(random: &mut Random, model: Model, dtype: DType, folder: &Path) -> Model {
    let output = model.config().hidden;
    let draft = match model.config().family {
        Family::Gemma4(_) if random.below(3) == 0 => unified(random, dtype, output),
        Family::Gemma4(_) => gemma4_vision(random, dtype, output),
        _ => TowerDraft::new(random, dtype, output),
    };
    model.with_tower(draft.open(folder)).unwrap()
}

/// Columns and rows of patches of a picture that a tower takes: up to four soft tokens high and
/// wide where it takes more than one shape.
fn random_grid(random: &mut Random, config: &TowerConfig) -> (usize, usize) {
    let mut side = || config.pool * (1 + random.below(4));
    match config.pixels {
        Pixels::Square { .. } => (config.side(), config.side()),
        Pixels::Budget { .. } => (side(), side()),
    }
}

/// Runs two random pictures through a tower, one after the other: rows and states of both.
pub fn random_rows(device: &dyn Device, model: &Model, seed: u64) -> Vec<Vec<f32>> {
    let mut random = Random(seed);
    let mut tower = TowerProgram::load(device, model, KvType::F32, true).unwrap();
    let config = *model.tower().unwrap().config();
    let mut found = Vec::new();
    for _ in 0..2 {
        let (columns, rows) = random_grid(&mut random, &config);
        let count = columns * rows * config.patch_values();
        let patches: Vec<f32> = (0..count).map(|_| random.unit()).collect();
        let made = tower.run(&patches, (columns, rows)).unwrap();
        found.extend([made.rows, made.states]);
    }
    for grid in [(0, 1), (1, 1), (usize::MAX, 2), (config.side() + 1, config.side())] {
        assert!(tower.run(&[0.0], grid).is_err());
    }
    found
}
