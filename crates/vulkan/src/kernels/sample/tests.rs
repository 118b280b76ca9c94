use std::sync::Arc;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use trine_backend::sampling::{self, Change, Rule, numbers};

use super::*;
use crate::raw::commands::Recording;
use crate::raw::gpu::Gpu;
use crate::raw::memory::Buffer;
use crate::testing::{download, gpu, poisoned, run, upload};

/// Returns device memory that is 0.
fn cleared(gpu: &Arc<Gpu>, bytes: usize) -> Buffer {
    let buffer = poisoned(gpu, bytes as u64);
    Recording::zeros(gpu, std::slice::from_ref(&buffer)).unwrap().run("a test").unwrap();
    buffer
}

/// Draws on the device. `logits` are rows, of which some may be wanted several times.
fn drawn(logits: &[f32], vocabulary: usize, draws: &[Draw]) -> Vec<Result<Drawn, NoToken>> {
    let gpu = gpu();
    let rows = upload(&gpu, logits);
    let (mut mask, mut changes) = (Vec::new(), Vec::new());
    let mut kept = Vec::new();
    let mut records = Vec::new();
    for draw in draws {
        let mut record = RowRecord::of(draw, rows.address() + 4 * (draw.row * vocabulary) as u64);
        let is_split = split(draw, vocabulary, &mut mask, &mut changes);
        let mask = if is_split { &mask } else { &draw.allowed };
        if !mask.is_empty() {
            let buffer = upload(&gpu, mask);
            record.mask = buffer.address();
            kept.push(buffer);
        }
        if !changes.is_empty() {
            let buffer = upload(&gpu, &changes);
            (record.changes, record.change_count) = (buffer.address(), changes.len() as u32);
            kept.push(buffer);
        }
        records.push(record);
    }
    let records = upload(&gpu, &records);
    let count = upload(&gpu, &[draws.len() as u32]);
    // Room for one more than are wanted.
    let outcomes = poisoned(&gpu, (size_of::<Outcome>() * (draws.len() + 1)) as u64);
    let rows = draws.len() + 1;
    let work = cleared(&gpu, SampleLaunch::work_bytes(vocabulary, rows));
    let launch = SampleLaunch {
        vocabulary,
        rows,
        count: count.address(),
        records: records.span(),
        outcomes: outcomes.span(),
        work: work.span(),
    };
    let size = launch.sizes().find(|&size| size >= draws.len()).unwrap();
    let chosen = launch.run(gpu.capabilities(), draws);
    run(&gpu, &launch.dispatches(&gpu, size, chosen).unwrap());
    let outcomes = download::<Outcome>(&gpu, &outcomes);
    assert!(outcomes[draws.len()].token == u32::MAX, "a row that nobody wants was written");
    draws.iter().zip(&outcomes).map(|(draw, outcome)| outcome.drawn(draw)).collect()
}

/// Returns a draw of anything that requests can ask for.
fn any_draw(random: &mut ChaCha8Rng, vocabulary: usize, row: usize) -> Draw {
    let mut pick = |count: usize| random.random_range(0..count);
    let top_k = [0, 0, 0, 1, 2, 40, 64, 300, 600, 1 << 24][pick(10)].min(vocabulary + 5);
    let temperature = [1e-30, 0.2, 0.7, 1.0, 1.0, 5.0, 100.0][pick(7)];
    let scale = if pick(6) == 0 { 0.0 } else { numbers::scale(temperature) };
    let share = [1 << 24, 1 << 24, (1 << 24) - 1, 15_938_355, 8_388_608, 200_000, 0][pick(7)];
    let least = [numbers::LEAST, numbers::LEAST, -5.643_856, -0.1, 0.0][pick(5)];
    let (changes, mask, tells) = (pick(3), pick(5), pick(3) == 0);
    let factors = [[1.0 / 1.1, 1.1], [2.0, 0.5]][pick(2)];
    let rule = Rule { scale, top_k: top_k as u32, share, least, factors, key: random.random() };
    let mut draw = Draw { row, rule, tells, ..Draw::default() };
    if changes > 0 {
        // Few, or a third of all.
        let of = if changes == 1 { vocabulary.div_ceil(10) } else { 3 };
        for token in 0..vocabulary as u32 {
            if random.random_range(0..of) == 0 {
                let bias = [0.0, 4.0 * random.random::<f32>() - 2.0][random.random_range(0..2)];
                let less = [0.0, 2.0 * random.random::<f32>() - 0.5][random.random_range(0..2)];
                draw.changes.push(Change { token, bias, is_repeated: random.random(), less });
            }
        }
    }
    if mask > 0 {
        // None, one, few, or half of them.
        let mut allowed = vec![0_u32; vocabulary.div_ceil(32)];
        let count = [0, 1, 30, vocabulary / 2][mask - 1];
        for _ in 0..count {
            let token = random.random_range(0..vocabulary);
            allowed[token / 32] |= 1 << (token % 32);
        }
        draw.allowed = allowed;
    }
    draw
}

/// A device draws what the host does: over vocabularies that are multiples of nothing, with equal
/// logits, from one row and from many at once, of which each wants something else.
#[test]
fn a_device_draws_what_the_host_does() {
    let mut random = ChaCha8Rng::seed_from_u64(52);
    for (vocabulary, rows, draws) in [
        (1, 1, 4),
        (2, 3, 12),
        (31, 2, 20),
        (257, 4, 40),
        (1023, 1, 1),
        (1025, 7, 60),
        (4099, 5, 70),
        (30_011, 4, 60),
        (700, 64, 512),
    ] {
        // Many equal logits, some, or none.
        let steps = [4.0, 900.0, 1e7][random.random_range(0..3)];
        let spread = [1.0, 30.0, 90.0][random.random_range(0..3)];
        let logits: Vec<f32> = (0..vocabulary * rows)
            .map(|_| ((random.random::<f32>() * steps).floor() / steps - 0.5) * spread)
            .collect();
        let draws: Vec<Draw> =
            (0..draws).map(|index| any_draw(&mut random, vocabulary, index % rows)).collect();
        // At once, and in twos, for which other runs are enough.
        let mut all = drawn(&logits, vocabulary, &draws);
        let twos = draws.chunks(2).take(20);
        all.extend(twos.clone().flat_map(|draws| drawn(&logits, vocabulary, draws)));
        for (found, draw) in all.into_iter().zip(draws.iter().chain(twos.flatten())) {
            let row = &logits[draw.row * vocabulary..][..vocabulary];
            let expected = sampling::draw(row, draw);
            assert_eq!(
                found,
                expected,
                "{vocabulary}, {steps} steps of {spread}: {:?}, {} changes, mask of {}",
                draw.rule,
                draw.changes.len(),
                draw.allowed.iter().map(|word| word.count_ones()).sum::<u32>()
            );
        }
    }
}

#[test]
fn logits_that_are_not_finite_are_named() {
    let vocabulary = 3001;
    let broken = [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
    let mut logits = vec![0.5_f32; vocabulary * (broken.len() + 1)];
    let mut draws = Vec::new();
    for (row, &value) in broken.iter().enumerate() {
        logits[row * vocabulary + 100 * row + 7] = value;
        logits[row * vocabulary + 2900] = f32::NAN;
        let mut allowed = vec![0; vocabulary.div_ceil(32)];
        allowed[3] = 2;
        draws.push(Draw { row, ..Draw::default() });
        draws.push(Draw { row, allowed, ..Draw::default() });
        draws.push(Draw { row, given: Some(9), tells: true, ..Draw::default() });
    }
    // A change that goes too far, of a token that may be chosen and of one that may not.
    let row = broken.len();
    logits[row * vocabulary + 40] = f32::MAX;
    let change = Change { token: 40, bias: f32::MAX, is_repeated: false, less: 0.0 };
    let mut allowed = vec![0; vocabulary.div_ceil(32)];
    allowed[0] = 2;
    draws.push(Draw { row, changes: vec![change], ..Draw::default() });
    draws.push(Draw { row, changes: vec![change], allowed, ..Draw::default() });
    let bits = |outcome: Result<Drawn, NoToken>| match outcome {
        Err(NoToken::NotFinite { token, logit }) => Err((token, logit.to_bits())),
        other => Ok(other),
    };
    for (found, draw) in drawn(&logits, vocabulary, &draws).into_iter().zip(&draws) {
        let expected = sampling::draw(&logits[draw.row * vocabulary..][..vocabulary], draw);
        assert_eq!(bits(found), bits(expected), "row {}", draw.row);
    }
}

/// More tokens are equal than the few that are kept have room for, and the order of rank still
/// decides.
#[test]
fn equal_logits_rank_by_token() {
    let vocabulary = 5000;
    let logits: Vec<f32> = (0..vocabulary).map(|token| -((token % 3) as f32)).collect();
    let draws: Vec<Draw> = [1, 40, 500, 1666, 1667, 1668, 1700, 4999]
        .into_iter()
        .flat_map(|top_k| {
            (0..8_u64).map(move |key| Draw {
                rule: Rule {
                    scale: numbers::scale(1.0),
                    top_k,
                    share: [1 << 24, 12_000_000][key as usize % 2],
                    least: numbers::LEAST,
                    factors: [1.0; 2],
                    key,
                },
                ..Draw::default()
            })
        })
        .collect();
    for (found, draw) in drawn(&logits, vocabulary, &draws).into_iter().zip(&draws) {
        assert_eq!(found, sampling::draw(&logits, draw), "{:?}", draw.rule);
    }
}

/// Top-p passes over one winner after the other, more often than there are launches for it.
#[test]
fn winners_that_top_p_excludes_are_passed_over() {
    for vocabulary in [31_usize, 300, 9000] {
        let logits: Vec<f32> =
            (0..vocabulary).map(|token| (token * 7919 % vocabulary) as f32 / 9000.0).collect();
        let draw = |key: u64| Draw {
            rule: Rule {
                scale: numbers::scale(100.0),
                top_k: [0, 0, 20][key as usize % 3],
                share: [200_000, 1_000_000, 5_000_000, 0][key as usize % 4],
                least: numbers::LEAST,
                factors: [1.0; 2],
                key,
            },
            tells: key.is_multiple_of(5),
            ..Draw::default()
        };
        let draws: Vec<Draw> = (0..300).map(draw).collect();
        for (found, draw) in drawn(&logits, vocabulary, &draws).into_iter().zip(&draws) {
            assert_eq!(found, sampling::draw(&logits, draw), "{vocabulary} {:?}", draw.rule);
        }
    }
}
