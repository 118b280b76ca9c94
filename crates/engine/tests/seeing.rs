//! Prompts with pictures on the scalar reference: a whole model with its tower answers as another
//! implementation does, in steps of every width and from prefixes.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use trine_backend::reference::ReferenceDevice;
use trine_backend::{Device, DeviceGroup, LayerChoice, TowerProgram};
use trine_engine::{
    Engine, EngineOptions, Logprobs, PromptPicture, Request, SOFT, Statistics, Tower, TowerInput,
    Update, log_sum_exp,
};
use trine_model::{KvType, Model, TowerConfig};
use trine_weights::SafetensorsFile;

/// Largest difference of a log-probability: that of logits (`backend/tests/pictures.rs`), twice.
const TOLERANCE: f32 = 1e-3;

/// The prompts, each with its pictures in order.
const PROMPTS: [(&str, &[usize]); 3] = [("one", &[0]), ("two", &[0, 1]), ("back_to_back", &[1, 0])];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens/gemma3-vision")
}

struct Golden {
    file: SafetensorsFile,
    model: Model,
    tower: Tower,
}

impl Golden {
    fn open() -> Self {
        let file = folder().join("goldens.safetensors");
        let file = SafetensorsFile::open(&file).expect("the golden opens");
        let tower = trine_model::Tower::open(&folder()).expect("the tower opens");
        let model = Model::open(&folder()).expect("the model opens");
        let model = model.with_tower(tower).expect("they belong together");
        let program = TowerProgram::load(&ReferenceDevice::new(), &model, KvType::F32, false);
        let program = program.expect("the tower loads");
        let tower = Tower::start(program, [3; 32], 1 << 20).expect("there is a thread");
        Self { file, model, tower }
    }

    fn ids(&self, name: &str) -> Vec<u32> {
        let entry = self.file.entry(name).expect("the golden has it");
        let number = |bytes: &[u8; 8]| i64::from_le_bytes(*bytes) as u32;
        self.file.bytes(entry).as_chunks().0.iter().map(number).collect()
    }

    fn floats(&self, name: &str) -> Vec<f32> {
        let entry = self.file.entry(name).expect("the golden has it");
        self.file.bytes(entry).as_chunks().0.iter().map(|own| f32::from_le_bytes(*own)).collect()
    }

    fn config(&self) -> &TowerConfig {
        self.model.tower().expect("it was attached").config()
    }

    /// A picture as the tower reads it.
    fn input(&self, picture: usize) -> TowerInput {
        let pixels = self.floats("pixel_values");
        let (patch, grid) = (self.config().patch, self.config().side());
        let side = grid * patch;
        let own = &pixels[picture * 3 * side * side..];
        let mut patches = Vec::new();
        for number in 0..grid * grid {
            for at in 0..3 * patch * patch {
                let (colour, y, x) = (at / (patch * patch), at / patch % patch, at % patch);
                let (row, column) = (number / grid * patch + y, number % grid * patch + x);
                patches.push(own[colour * side * side + row * side + column]);
            }
        }
        let soft_tokens = self.config().soft_tokens();
        TowerInput { digest: [picture as u8; 32], patches, grid: (grid, grid), soft_tokens }
    }

    /// A request for ids of which soft ones stand for pictures.
    fn request(&self, ids: &[u32], pictures: &[usize], max_tokens: usize) -> Request {
        let soft = self.model.tower().expect("it was attached").soft_token();
        let soft_tokens = self.config().soft_tokens();
        let places: Vec<usize> = (0..ids.len()).filter(|&at| ids[at] == soft).collect();
        let firsts = places.into_iter().step_by(soft_tokens);
        let shown = firsts.zip(pictures).map(|(at, &picture)| PromptPicture {
            at,
            handle: self.tower.handle(self.input(picture)),
        });
        let pictures = shown.collect();
        let prompt = ids.iter().map(|&id| if id == soft { SOFT } else { id }).collect();
        Request { pictures, ..Request::new(prompt, max_tokens) }
    }

    fn engine(&self, prefill: usize, outputs: usize, embeds: bool) -> Engine {
        self.engine_on(&ReferenceDevice::new(), prefill, outputs, embeds)
    }

    fn engine_on(
        &self,
        device: &dyn Device,
        prefill: usize,
        outputs: usize,
        embeds: bool,
    ) -> Engine {
        let options = EngineOptions {
            context: Some(160),
            kv: KvType::F32,
            sequences: 2,
            further: 0,
            kept: 2,
            prefill,
            further_rows: 0,
            outputs,
            kv_memory: None,
            embeds,
        };
        Engine::new(&self.model, device, options).expect("the model loads")
    }
}

/// Runs a request beside others: its tokens, the log-probabilities of its prompt, and its cost.
fn run(engine: &mut Engine, request: Request) -> (Vec<u32>, Vec<Logprobs>, Statistics) {
    let id = engine.submit(request).expect("the request is sound");
    let (mut tokens, mut known, mut cost) = (Vec::new(), Vec::new(), Statistics::default());
    while !engine.is_idle() {
        for event in engine.step().expect("the device works") {
            match event.update {
                _ if event.sequence != id => {}
                Update::Token { token, .. } => tokens.push(token),
                Update::PromptLogprobs(more) => known.extend(more),
                Update::Finished { statistics, .. } => cost = statistics,
                _ => {}
            }
        }
        engine.check_integrity().expect("the books agree");
    }
    (tokens, known, cost)
}

#[test]
fn prompts_with_pictures_give_the_golden_texts() {
    let golden = Golden::open();
    let soft_tokens = golden.config().soft_tokens();
    for (name, pictures) in PROMPTS {
        let ids = golden.ids(&format!("{name}.input_ids"));
        let greedy = golden.ids(&format!("{name}.greedy_ids"));
        let logits = golden.floats(&format!("{name}.logits"));
        for (prefill, embeds) in [(soft_tokens, false), (soft_tokens + 3, true), (512, false)] {
            let mut engine = golden.engine(prefill, 7, embeds);
            // Another one's text, in the same steps.
            let text: Vec<u32> = (2..40).collect();
            engine.submit(Request::new(text, 20)).expect("it is sound");
            let request = golden.request(&ids, pictures, greedy.len());
            let (tokens, _, cost) = run(&mut engine, request);
            assert_eq!(tokens, greedy, "{name} in steps of {prefill} rows");
            assert_eq!(cost.pictures, pictures.len());
            // Again, from what the cache has of it.
            let more = [&ids[..], &greedy[..1]].concat();
            let request = golden.request(&more, pictures, greedy.len() - 1);
            let (tokens, _, cost) = run(&mut engine, request);
            assert_eq!(tokens, greedy[1..], "{name} in steps of {prefill} rows, again");
            assert!(cost.pictures == 0 && cost.reused_tokens >= ids.len() / 32 * 32, "{cost:?}");
            // All of it once more, for the log-probabilities of its tokens.
            let request = Request {
                prompt_logprobs: Some(0),
                ..golden.request(&ids, pictures, greedy.len())
            };
            let prompt = request.prompt.clone();
            let (tokens, known, _) = run(&mut engine, request);
            assert_eq!(tokens, greedy, "{name} in steps of {prefill} rows, with log-probabilities");
            let vocabulary = golden.model.config().vocabulary;
            let rows = logits.chunks_exact(vocabulary).zip(&prompt[1..]);
            let expected: Vec<(u32, f32)> = rows
                .filter(|(_, id)| **id != SOFT)
                .map(|(row, &id)| (id, row[id as usize] - log_sum_exp(row) as f32))
                .collect();
            assert_eq!(known.len(), expected.len());
            for (found, (id, logprob)) in known.iter().zip(expected) {
                assert_eq!(found.token, id);
                let off = (found.logprob - logprob).abs();
                assert!(off <= TOLERANCE, "{name}, steps of {prefill} rows: off by {off}");
            }
        }
    }
    // The rows of both were kept.
    let counts = golden.tower.counts();
    assert_eq!((counts.pictures, counts.failures), (2, 0));
}

/// Only the first part of a model takes rows of pictures, and steps of several sequences are in
/// flight.
#[test]
fn parts_of_a_model_give_the_golden_texts() {
    let golden = Golden::open();
    let devices: Vec<Box<dyn Device>> =
        (0..2).map(|_| Box::new(ReferenceDevice::new()) as Box<dyn Device>).collect();
    let both = DeviceGroup::new(devices, LayerChoice::Exactly(2));
    let mut engine = golden.engine_on(&both, 24, 0, false);
    let mut expected = HashMap::new();
    for (name, pictures) in PROMPTS {
        let ids = golden.ids(&format!("{name}.input_ids"));
        let greedy = golden.ids(&format!("{name}.greedy_ids"));
        let id = engine.submit(golden.request(&ids, pictures, greedy.len()));
        expected.insert(id.expect("it is sound"), greedy);
    }
    let mut found: HashMap<_, Vec<u32>> = HashMap::new();
    while !engine.is_idle() {
        for event in engine.step().expect("the devices work") {
            if let Update::Token { token, .. } = event.update {
                found.entry(event.sequence).or_default().push(token);
            }
        }
        engine.check_integrity().expect("the books agree");
    }
    assert_eq!(found, expected);
}

/// The other picture has as many soft tokens.
#[test]
fn another_picture_is_another_prompt() {
    let golden = Golden::open();
    let (ids, greedy) = (golden.ids("two.input_ids"), golden.ids("two.greedy_ids"));
    let mut engine = golden.engine(64, 0, false);
    for (pictures, is_golden) in
        [(&[1, 0][..], false), (&[0, 1], true), (&[0, 0], false), (&[0, 1], true)]
    {
        let request = golden.request(&ids, pictures, greedy.len());
        let (tokens, _, _) = run(&mut engine, request);
        assert!(!is_golden || tokens == greedy, "{pictures:?}");
    }
}

#[test]
fn a_step_is_as_wide_as_a_picture_and_wider_ones_are_refused() {
    let golden = Golden::open();
    let soft_tokens = golden.config().soft_tokens();
    // Asked for one row, a step has as many as a picture.
    let mut engine = golden.engine(1, 0, false);
    assert_eq!(engine.limits().picture, Some(soft_tokens));
    let soft = golden.model.tower().expect("it was attached").soft_token();
    let ids = [&[2][..], &vec![soft; 2 * soft_tokens], &[5]].concat();
    let wide = golden.request(&ids, &[1, 0], 1);
    let error = engine.submit(wide).expect_err("two touch").to_string();
    assert!(error.contains("put text between the images"), "{error}");
}

/// A model with a tower is the same for prompts without pictures.
#[test]
fn texts_have_the_same_logits_with_a_tower() {
    let golden = Golden::open();
    let plain = Model::open(&folder()).expect("the model opens");
    let options = EngineOptions { context: Some(64), outputs: 8, ..EngineOptions::default() };
    let logits = |model: &Model| {
        let mut engine =
            Engine::new(model, &ReferenceDevice::new(), options).expect("the model loads");
        let mut all = Vec::new();
        let each = &mut |_: usize, row: &[f32]| {
            all.extend_from_slice(row);
            std::ops::ControlFlow::Continue(())
        };
        engine.logits(&[2, 9, 4, 7, 30], 3, each).expect("the device works");
        all
    };
    assert_eq!(logits(&golden.model), logits(&plain));
}
