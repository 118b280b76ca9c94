//! Whole models on the GPU against the logits of another implementation.

use trine_backend::sampling::{self, Change, Draw, Rule, numbers};
use trine_backend::{BackendError, Batch, Device, DeviceGroup, LayerChoice, ProgramOptions};
use trine_cpu::CpuDevice;
use trine_model::{KvType, Width};
use trine_testing::tables::Holding;
use trine_testing::{Golden, bits, greedy, logits};
use trine_vulkan::testing::{device, pieces, takes};

/// Models whose weights and activations stay in f32.
const EXACT: [&str; 4] = ["gemma3-a", "gemma3-b", "gemma3-c", "gguf/gemma3-f32"];
/// The same, of several streams.
const STREAMS: [&str; 2] = ["gemma3n-a", "gemma3n-b"];
/// Of Gemma 4: with inputs of each layer, dense, with experts.
const GEMMA4: [&str; 3] = ["gemma4-e", "gemma4-dense", "gemma4-moe"];
/// The same with quantised matrices; in the last, gate and up of the experts are apart.
const GEMMA4_QUANTISED: [&str; 4] =
    ["gguf/gemma4-e", "gguf/gemma4-dense", "gguf/gemma4-moe", "gguf/gemma4-moe-split"];
const QUANTISED: &str = "gguf/gemma3-qat";
/// Of several streams, with a format for each matrix.
const MIXED: &str = "gguf/gemma3n";

#[test]
fn logits_agree_in_pieces_of_every_size() {
    for (number, name) in EXACT.into_iter().chain(STREAMS).chain(GEMMA4).enumerate() {
        let golden = Golden::load(name);
        for chunk in pieces(number, golden.ids.len()) {
            let found = logits(&device(), &golden.model, &golden.ids, chunk, KvType::F32);
            let worst = golden.largest_difference(&found);
            assert!(worst <= 5e-4, "{name} in pieces of {chunk}: {worst}");
        }
    }
}

#[test]
fn greedy_continuations_are_exact() {
    let exact = EXACT.into_iter().chain(STREAMS).chain(GEMMA4);
    for name in exact.chain([QUANTISED, MIXED]).chain(GEMMA4_QUANTISED) {
        let golden = Golden::load(name);
        let count = golden.greedy.len();
        let found = greedy(&device(), &golden.model, &golden.ids, count, KvType::F32);
        assert_eq!(found, golden.greedy, "{name}");
    }
}

#[test]
fn quantised_models_stay_within_the_divergence() {
    for (number, name) in [QUANTISED, MIXED].into_iter().chain(GEMMA4_QUANTISED).enumerate() {
        let golden = Golden::load(name);
        for chunk in pieces(number, golden.ids.len()) {
            let found = logits(&device(), &golden.model, &golden.ids, chunk, KvType::F32);
            let divergence = golden.mean_divergence(&found);
            assert!(divergence <= 1e-3, "{name} in pieces of {chunk}: {divergence}");
        }
    }
}

/// Files whose matrices have every format, dense and with experts.
#[test]
fn every_format_of_a_file_agrees() {
    for (number, name) in ["gguf/formats", "gguf/formats-moe"].into_iter().enumerate() {
        let golden = Golden::load(name);
        for chunk in pieces(number, golden.ids.len()) {
            let found = logits(&device(), &golden.model, &golden.ids, chunk, KvType::F32);
            let divergence = golden.mean_divergence(&found);
            println!("{name} in pieces of {chunk}: {divergence:.2e}");
            assert!(divergence <= 1e-6, "{name} in pieces of {chunk}: {divergence}");
        }
    }
}

/// The device looks up what the host gathers otherwise, by the same arithmetic.
#[test]
fn tables_on_the_device_change_no_bit() {
    for (name, chunk) in [("gemma3n-a", 1), ("gguf/gemma4-e", 7)] {
        let golden = Golden::load(name);
        let found = |device: &dyn Device| {
            bits(&logits(device, &golden.model, &golden.ids, chunk, KvType::F32))
        };
        assert!(found(&Holding(device())) == found(&device()), "{name} in pieces of {chunk}");
    }
}

#[test]
fn small_caches_stay_within_the_divergence() {
    for (at, (kv, most)) in [(KvType::F16, 1e-4), (KvType::Int8, 3e-2)].into_iter().enumerate() {
        let names = EXACT.into_iter().chain(STREAMS).chain(GEMMA4).enumerate();
        for (_, name) in names.filter(|(number, _)| takes(at + number, 2)) {
            let golden = Golden::load(name);
            let found = logits(&device(), &golden.model, &golden.ids, 32, kv);
            let divergence = golden.mean_divergence(&found);
            assert!(divergence <= most, "{name}, {kv:?}: {divergence}");
        }
    }
}

/// The last layers on the GPU, the others on the processor, and a model on two GPUs.
#[test]
fn goldens_do_not_depend_on_the_cut() {
    for (number, name) in EXACT.into_iter().chain([QUANTISED, "gemma4-moe"]).enumerate() {
        let golden = Golden::load(name);
        let layers = golden.model.plan().layers();
        let cpu = || -> Box<dyn Device> { Box::new(CpuDevice::new(Some(2), None).unwrap()) };
        let gpu = || -> Box<dyn Device> { Box::new(device()) };
        let cuts = [(vec![cpu(), gpu()], 1), (vec![gpu(), gpu()], layers)].into_iter().enumerate();
        for (_, (devices, layers)) in cuts.filter(|(at, _)| takes(at + number, 2)) {
            let both = DeviceGroup::new(devices, LayerChoice::Exactly(layers));
            let count = golden.greedy.len();
            let found = greedy(&both, &golden.model, &golden.ids, count, KvType::F32);
            assert_eq!(found, golden.greedy, "{name}, {}", both.name());
            let found = logits(&both, &golden.model, &golden.ids, 7, KvType::F32);
            if name == QUANTISED {
                assert!(golden.mean_divergence(&found) <= 1e-3, "{name}, {}", both.name());
            } else {
                assert!(golden.largest_difference(&found) <= 5e-4, "{name}, {}", both.name());
            }
        }
    }
}

/// The device after the cut finds the largest logits of the rows that it is given.
#[test]
fn the_largest_logits_are_found_behind_a_cut() {
    let golden = Golden::load(QUANTISED);
    let tokens = &golden.ids[..5];
    let options =
        ProgramOptions { width: Width { tokens: 8, outputs: 2 }, ..trine_testing::OPTIONS };
    let batch = Batch {
        tokens,
        positions: &[0, 1, 2, 3, 4],
        sequence_of: &[0; 5],
        outputs: &[1, 4],
        bulk_from: 5,
        ..trine_testing::BATCH
    };
    let cpu = Box::new(CpuDevice::new(Some(2), None).unwrap());
    let both = DeviceGroup::new(vec![cpu, Box::new(device())], LayerChoice::Exactly(2));
    let mut program = both.load_plan(&golden.model, golden.model.plan(), &options).unwrap();
    assert!(program.facts().finds_top);
    let all = program.run(&batch).unwrap().to_vec();
    let vocabulary = golden.model.config().vocabulary;
    let step = program.submit(&batch).unwrap();
    let results = program.wait(step).unwrap();
    // One row comes without the other.
    assert_eq!(results.part(0, vocabulary..2 * vocabulary).unwrap(), &all[vocabulary..]);
    results.fetch(0, &[0..vocabulary, vocabulary..2 * vocabulary]).unwrap();
    assert_eq!(results.part(0, 3..vocabulary).unwrap(), &all[3..vocabulary]);
    assert!(matches!(results.part(0, 0..2 * vocabulary + 1), Err(BackendError::BadBatch { .. })));
    assert!(matches!(results.top(2), Err(BackendError::BadBatch { .. })));
    for (at, row) in all.chunks_exact(vocabulary).enumerate() {
        let top = results.top(at).unwrap();
        assert!(top.len() >= trine_backend::TOP.min(vocabulary));
        assert!(top.iter().all(|found| row[found.token as usize] == found.logit));
        let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        assert!(top.iter().any(|found| found.logit == largest));
    }
    // More draws than there is room for at once; some change more tokens than others.
    let draw = |index: usize| {
        let changes =
            (0..if index.is_multiple_of(3) { vocabulary } else { 5 * index }).map(|token| Change {
                token: token as u32,
                bias: (token % 7) as f32 / 3.0,
                is_repeated: token % 2 == 0,
                less: 0.3,
            });
        Draw {
            row: index % 2,
            rule: Rule {
                scale: numbers::scale(0.8),
                top_k: [0, 40][index % 2],
                share: [1 << 24, 15_000_000][index / 2 % 2],
                least: numbers::LEAST,
                factors: [1.0 / 1.2, 1.2],
                key: index as u64,
            },
            changes: changes.collect(),
            tells: index % 4 == 1,
            ..Draw::default()
        }
    };
    let draws: Vec<Draw> = (0..9).map(draw).collect();
    let mut drawn = Vec::new();
    results.draw(0, vocabulary, &draws, &mut drawn).unwrap();
    let row = |index: usize| &all[index * vocabulary..][..vocabulary];
    let expected: Vec<_> = draws.iter().map(|draw| sampling::draw(row(draw.row), draw)).collect();
    assert_eq!(drawn, expected);
    let beyond = Draw { row: 2, ..Draw::default() };
    let refused = results.draw(0, vocabulary, &[beyond], &mut drawn);
    assert!(matches!(refused, Err(BackendError::BadBatch { .. })), "{refused:?}");
    assert_eq!(results.part(0, 0..vocabulary).unwrap(), row(0), "draws change no logits");
}
