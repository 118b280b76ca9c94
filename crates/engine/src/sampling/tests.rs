use proptest::prelude::*;
use trine_backend::TOP;
use trine_model::GenerationDefaults;

use super::*;

fn plain(temperature: f32, seed: u64) -> SamplingParams {
    SamplingParams { temperature, seed, ..SamplingParams::greedy() }
}

/// Returns (id, probability) of what can be drawn, computed by the definition with a sort.
fn naive(params: &SamplingParams, logits: &[f32], history: &[u32]) -> Vec<(u32, f64)> {
    let mut logits: Vec<f64> = logits.iter().map(|&logit| f64::from(logit)).collect();
    for &(id, bias) in &params.logit_bias {
        logits[id as usize] += f64::from(bias);
    }
    let window: Vec<u32> = history.iter().rev().take(params.penalty_window).copied().collect();
    for (id, logit) in logits.iter_mut().enumerate() {
        let count = window.iter().filter(|&&token| token as usize == id).count() as f64;
        if count > 0.0 {
            let factor = f64::from(params.repetition_penalty);
            *logit = if *logit > 0.0 { *logit / factor } else { *logit * factor };
            *logit -=
                f64::from(params.presence_penalty) + count * f64::from(params.frequency_penalty);
        }
    }
    let mut ranked: Vec<(u32, f64)> = logits
        .iter()
        .enumerate()
        .map(|(id, &logit)| (id as u32, logit / f64::from(params.temperature)))
        .collect();
    ranked.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    if params.top_k > 0 {
        ranked.truncate(params.top_k);
    }
    let best = ranked[0].1;
    ranked.iter_mut().for_each(|entry| entry.1 = (entry.1 - best).exp());
    let total: f64 = ranked.iter().map(|entry| entry.1).sum();
    let mut below = 0.0;
    ranked.retain(|entry| {
        let keep = below == 0.0 || below < f64::from(params.top_p) * total;
        below += entry.1;
        keep || params.top_p >= 1.0
    });
    ranked.retain(|entry| entry.1 >= f64::from(params.min_p));
    let total: f64 = ranked.iter().map(|entry| entry.1).sum();
    ranked.iter_mut().for_each(|entry| entry.1 /= total);
    ranked
}

/// Draws often and compares frequencies with probabilities by Pearson's chi-square. The bound is
/// its mean plus six standard deviations (`n + 6 sqrt(2n)` for `n` degrees of freedom); the seeds
/// are fixed.
fn assert_distribution(params: SamplingParams, logits: &[f32], history: &[u32]) {
    const DRAWS: usize = 60_000;
    let expected = naive(&params, logits, history);
    let mut sampler = Sampler::new(params);
    let mut counts = vec![0_usize; logits.len()];
    for _ in 0..DRAWS {
        counts[sampler.sample(&mut logits.to_vec(), history).unwrap() as usize] += 1;
    }
    // Cells with few expected draws are pooled.
    let (mut pooled_expected, mut pooled_count) = (0.0, 0.0);
    let (mut square, mut cells) = (0.0, 0);
    for &(id, probability) in &expected {
        let (mean, count) = (probability * DRAWS as f64, counts[id as usize] as f64);
        counts[id as usize] = 0;
        if mean < 10.0 {
            pooled_expected += mean;
            pooled_count += count;
        } else {
            square += (count - mean).powi(2) / mean;
            cells += 1;
        }
    }
    if pooled_expected >= 10.0 {
        square += (pooled_count - pooled_expected).powi(2) / pooled_expected;
        cells += 1;
    } else {
        assert!(
            pooled_count < 40.0,
            "{pooled_count} draws of tokens that should be drawn {pooled_expected} times"
        );
    }
    let freedom = f64::from(cells - 1);
    assert!(
        square <= freedom + 6.0 * (2.0 * freedom).sqrt() + 1e-9,
        "chi-square {square} of {freedom}"
    );
    assert_eq!(counts.iter().sum::<usize>(), 0, "a token was drawn that is not kept");
}

/// Returns a draw after a history in which the answer begins at an index, from allowed tokens.
fn asked(stream: &SamplerState, (history, answer): (&[u32], usize), allowed: &[u32]) -> Draw {
    let mut occurrences = Occurrences::default();
    stream.follow(&mut occurrences, history, history.len(), answer);
    let mut draw = Draw { allowed: allowed.to_vec(), ..Draw::default() };
    stream.write(0, &occurrences, &mut draw);
    draw
}

/// Returns the bits of all tokens but those that are suppressed.
fn unsuppressed(params: &SamplingParams, vocabulary: usize) -> Vec<u32> {
    let mut words = vec![0_u32; vocabulary.div_ceil(32)];
    for id in (0..vocabulary as u32).filter(|id| params.suppressed.binary_search(id).is_err()) {
        words[id as usize / 32] |= 1 << (id % 32);
    }
    words
}

fn wavy(count: usize) -> Vec<f32> {
    (0..count).map(|id| 3.0 * ((id * 7919 % 101) as f32 / 50.0 - 1.0)).collect()
}

#[test]
fn nothing_filtered_is_the_softmax() {
    assert_distribution(plain(1.0, 1), &wavy(40), &[]);
    assert_distribution(plain(0.5, 2), &wavy(300), &[]);
    assert_distribution(plain(50.0, 3), &wavy(90), &[]);
}

#[test]
fn filters_have_the_distribution_of_their_definition() {
    let base = plain(0.9, 7);
    for params in [
        SamplingParams { top_k: 5, ..base.clone() },
        SamplingParams { top_p: 0.8, ..base.clone() },
        SamplingParams { top_p: 0.999, ..base.clone() },
        SamplingParams { min_p: 0.2, ..base.clone() },
        SamplingParams { top_k: 64, top_p: 0.95, ..base.clone() },
        SamplingParams { top_k: 90, top_p: 0.9, min_p: 0.05, ..base.clone() },
        SamplingParams {
            repetition_penalty: 1.3,
            presence_penalty: 0.5,
            frequency_penalty: -0.4,
            logit_bias: vec![(4, 2.0), (4, 0.5), (9, -100.0)],
            ..base.clone()
        },
    ] {
        assert_distribution(params, &wavy(150), &[3, 4, 4, 77, 149, 3, 3]);
    }
}

#[test]
fn greedy_takes_the_lowest_of_the_largest() {
    let mut sampler = Sampler::new(SamplingParams::greedy());
    assert_eq!(sampler.sample(&mut [0.5, 2.0, -1.0, 2.0], &[]).unwrap(), 1);
    assert_eq!(sampler.sample(&mut [-0.0, 0.0], &[]).unwrap(), 0);
}

#[test]
fn a_tiny_temperature_or_one_candidate_is_greedy() {
    for params in [
        plain(f32::from_bits(1), 3),
        SamplingParams { top_k: 1, ..plain(100.0, 3) },
        SamplingParams { top_p: 0.0, ..plain(100.0, 3) },
        SamplingParams { min_p: 1.0, ..plain(1.0, 3) },
    ] {
        params.check(300).unwrap();
        let mut sampler = Sampler::new(params);
        let mut logits = wavy(300);
        logits[123] = 3.5;
        assert!((0..50).all(|_| sampler.sample(&mut logits, &[]).unwrap() == 123));
    }
}

#[test]
fn ties_are_cut_at_the_higher_ids() {
    let params = SamplingParams { top_k: 3, ..plain(1.0, 9) };
    let mut sampler = Sampler::new(params);
    let drawn: std::collections::BTreeSet<u32> = (0..500)
        .map(|_| sampler.sample(&mut [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0], &[]).unwrap())
        .collect();
    assert_eq!(drawn.into_iter().collect::<Vec<_>>(), [0, 1, 2]);
}

#[test]
fn a_seed_is_a_text() {
    let draw = |seed| {
        let mut sampler = Sampler::new(SamplingParams { top_p: 0.9, ..plain(1.0, seed) });
        (0..64).map(|_| sampler.sample(&mut wavy(200), &[]).unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(draw(5), draw(5));
    assert_ne!(draw(5), draw(6));
    assert_ne!(draw(5), draw(5 + (1 << 40)));
}

/// The token is a function of the kept tokens' weights and one random number, whatever order a
/// selection leaves the candidates in.
#[test]
fn a_draw_is_a_race_of_the_kept_tokens() {
    let base = plain(0.8, 21);
    for params in [
        base.clone(),
        SamplingParams { top_k: 200, ..base.clone() },
        SamplingParams { top_k: 30, ..base.clone() },
        SamplingParams { top_k: 150, ..base.clone() },
        SamplingParams { top_p: 0.9, ..base.clone() },
        SamplingParams { min_p: 0.1, ..base.clone() },
    ] {
        // Distinct logits, in no order.
        let logits: Vec<f32> = (0..200).map(|id| (id * 77 % 200) as f32 / 40.0).collect();
        let kept = naive(&params, &logits, &[]);
        let mut stream = SamplerState::new(params.clone());
        let mut sampler = Sampler::new(params.clone());
        for _ in 0..200 {
            let key = stream.random.next_u64();
            // An exponential time at the rate of the probability.
            let even = |id: u32| (numbers::bits(key, id) as f64 + 0.5) / 2_f64.powi(64);
            let time = |&(id, probability): &(u32, f64)| -(-even(id)).ln_1p() / probability;
            let first = kept.iter().min_by(|a, b| time(a).total_cmp(&time(b)));
            let token = sampler.sample(&mut logits.clone(), &[]).unwrap();
            assert_eq!(Some(token), first.map(|entry| entry.0), "{params:?}");
        }
    }
}

/// Two distributions at a distance of `d` (total variation) give different tokens with the same
/// random number in at most `2 d / (1 + d)` of all cases.
#[test]
fn similar_logits_give_the_same_token_with_the_same_number() {
    const DRAWS: usize = 4000;
    let mut random = ChaCha8Rng::seed_from_u64(3);
    let mut number = move || (random.next_u64() >> 40) as f32 / (1 << 24) as f32;
    for noise in [0.1, 0.5, 2.0] {
        let logits: Vec<f32> = (0..100).map(|_| 6.0 * number()).collect();
        let other: Vec<f32> = logits.iter().map(|logit| logit + noise * number()).collect();
        let params = plain(1.0, 8);
        let all = |logits: &[f32]| naive(&params, logits, &[]);
        let mut probability = vec![[0.0; 2]; 100];
        for (at, logits) in [&logits, &other].into_iter().enumerate() {
            all(logits).into_iter().for_each(|(id, p)| probability[id as usize][at] = p);
        }
        let distance = probability.iter().map(|[a, b]| (a - b).abs()).sum::<f64>() / 2.0;
        let mut samplers = [Sampler::new(params.clone()), Sampler::new(params.clone())];
        let differ = (0..DRAWS).filter(|_| {
            let [first, second] = &mut samplers;
            first.sample(&mut logits.clone(), &[]).unwrap()
                != second.sample(&mut other.clone(), &[]).unwrap()
        });
        let differ = differ.count() as f64 / DRAWS as f64;
        // Three standard deviations beyond the bound.
        let bound = 2.0 * distance / (1.0 + distance);
        let most = bound + 3.0 * (bound * (1.0 - bound) / DRAWS as f64).sqrt();
        assert!(distance > 0.01 && differ <= most, "{noise}: {differ} at a distance of {distance}");
    }
}

#[test]
fn logits_that_are_not_finite_are_named() {
    for hostile in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for temperature in [0.0, 1.0] {
            let mut sampler = Sampler::new(plain(temperature, 0));
            let error = sampler.sample(&mut [0.0, 1.0, hostile, 5.0], &[]).unwrap_err();
            assert!(matches!(error, EngineError::NonFiniteLogits { id: 2, .. }), "{error}");
        }
    }
    let params = SamplingParams { repetition_penalty: 100.0, ..SamplingParams::greedy() };
    assert!(Sampler::new(params).sample(&mut [-3e38, 1.0], &[0]).is_err(), "overflow in a penalty");
}

#[test]
fn the_largest_and_what_is_not_finite_are_found_anywhere() {
    let logits = wavy(203);
    for id in 0..logits.len() {
        let mut greedy = Sampler::new(SamplingParams::greedy());
        let mut changed = logits.clone();
        changed[id] = 1e6;
        assert_eq!(greedy.sample(&mut changed, &[]).unwrap(), id as u32);
        for hostile in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            changed[id] = hostile;
            let error = greedy.sample(&mut changed, &[]).unwrap_err();
            let named =
                matches!(error, EngineError::NonFiniteLogits { id: found, .. } if found == id);
            assert!(named, "{error}");
        }
    }
}

#[test]
fn history_beyond_the_window_or_the_vocabulary_is_ignored() {
    let params =
        SamplingParams { presence_penalty: 2.0, penalty_window: 2, ..SamplingParams::greedy() };
    let mut logits = [1.0; 4];
    Sampler::new(params.clone()).sample(&mut logits, &[0, 1, 2, 99]).unwrap();
    assert_eq!(logits, [1.0, 1.0, -1.0, 1.0]);
    let everything = SamplingParams { penalty_window: usize::MAX, ..params.clone() };
    let mut logits = [1.0; 4];
    Sampler::new(everything).sample(&mut logits, &[0, 1, 1]).unwrap();
    assert_eq!(logits, [-1.0, -1.0, 1.0, 1.0]);
    let nothing = SamplingParams { penalty_window: 0, ..params };
    let mut logits = [1.0; 4];
    Sampler::new(nothing).sample(&mut logits, &[0, 1]).unwrap();
    assert_eq!(logits, [1.0; 4]);
}

#[test]
fn penalties_of_an_answer_count_all_of_it_and_nothing_of_the_prompt() {
    let params = SamplingParams {
        presence_penalty: 1.0,
        frequency_penalty: 0.5,
        repetition_penalty: 2.0,
        penalty_window: 1,
        penalises_answer: true,
        ..SamplingParams::greedy()
    };
    // Token 0 is in the prompt, 1 twice in the answer, 2 in both, 3 in neither.
    let (history, answer) = ([0, 0, 2, 1, 2, 1], 3);
    let changed = |params: &SamplingParams| {
        let draw = asked(&SamplerState::new(params.clone()), (&history, answer), &[]);
        let mut logits = [8.0; 4];
        for change in draw.changes {
            let logit = &mut logits[change.token as usize];
            *logit = change.apply(*logit, draw.rule.factors);
        }
        logits
    };
    assert_eq!(changed(&params), [4.0, 2.0, 2.5, 8.0]);
    let window = SamplingParams { penalises_answer: false, ..params };
    assert_eq!(changed(&window), [8.0, 2.5, 8.0, 8.0]);
}

/// From the largest logits the same token is chosen as from all that are allowed.
#[test]
fn suppressed_tokens_are_left_out_of_the_largest() {
    let logits: Vec<f32> =
        (0..400_u32).map(|id| (id.wrapping_mul(2_654_435_761) >> 20) as f32 / 400.0).collect();
    let mut ranked: Vec<u32> = (0..400).collect();
    ranked.sort_by(|a, b| logits[*b as usize].total_cmp(&logits[*a as usize]));
    let mut suppressed = ranked[..5].to_vec();
    suppressed.sort_unstable();
    let mut allowed = vec![u32::MAX; 13];
    suppressed.iter().for_each(|id| allowed[*id as usize / 32] &= !(1 << (id % 32)));
    let top: Vec<TopLogit> = ranked[..TOP]
        .iter()
        .map(|&token| TopLogit { token, logit: logits[token as usize] })
        .collect();
    let mut workspace = Workspace::new(400);
    for (temperature, top_k) in [(0.0, 0), (1.0, 40), (1.0, TOP - 5)] {
        let params = SamplingParams {
            temperature,
            top_k,
            seed: 5,
            suppressed: suppressed.clone().into(),
            ..SamplingParams::greedy()
        };
        let mut stream = SamplerState::new(params.clone());
        let all_of_top = SamplerState::new(SamplingParams { top_k: TOP, ..params });
        let free = asked(&stream, (&[], 0), &[]);
        let short = all_of_top.sample_top(&top, 400, &free, &mut workspace).unwrap();
        assert_eq!(short.is_some(), temperature == 0.0);
        for _ in 0..50 {
            let draw = asked(&stream, (&[], 0), &allowed);
            let expected = sampling::draw(&logits, &draw).unwrap().token;
            assert!(!suppressed.contains(&expected));
            for draw in [draw, asked(&stream, (&[], 0), &[])] {
                let found = stream.sample_top(&top, 400, &draw, &mut workspace).unwrap();
                assert_eq!(found, Some(expected));
            }
            stream.advance();
        }
    }
}

#[test]
fn hostile_parameters_are_refused_by_name() {
    let base = SamplingParams::from_defaults(&GenerationDefaults::default(), 1);
    base.check(262_144).unwrap();
    let huge = 1e308_f64 as f32;
    let hostile = |field, params: SamplingParams| {
        let message = params.check(1000).unwrap_err().to_string();
        assert!(message.starts_with(field) && message.contains("; use "), "{message}");
    };
    for temperature in [f32::NAN, -1.0, huge, 999_999.0, f32::NEG_INFINITY] {
        hostile("temperature", SamplingParams { temperature, ..base.clone() });
    }
    for share in [f32::NAN, -1.0, 1.0001, 2.0, huge] {
        hostile("top_p", SamplingParams { top_p: share, ..base.clone() });
        hostile("min_p", SamplingParams { min_p: share, ..base.clone() });
    }
    for top_k in [1 << 31, usize::MAX, -5_isize as usize] {
        hostile("top_k", SamplingParams { top_k, ..base.clone() });
    }
    for repetition_penalty in [0.0, -1.0, f32::NAN, huge] {
        hostile("repetition_penalty", SamplingParams { repetition_penalty, ..base.clone() });
    }
    for penalty in [f32::NAN, 2.1, -2.1, huge] {
        hostile("presence_penalty", SamplingParams { presence_penalty: penalty, ..base.clone() });
        hostile("frequency_penalty", SamplingParams { frequency_penalty: penalty, ..base.clone() });
    }
    for logit_bias in [
        vec![(1000, 1.0)],
        vec![(u32::MAX, 1.0)],
        vec![(0, f32::INFINITY)],
        vec![(0, f32::NAN)],
        vec![(0, 101.0)],
    ] {
        hostile("logit_bias", SamplingParams { logit_bias, ..base.clone() });
    }
    hostile("logit_bias", SamplingParams { logit_bias: vec![(0, 1.0); 1_000_000], ..base });
}

proptest! {
    /// Exactly the tokens that the definition keeps can be drawn. The choice of logits (multiples
    /// of 1/8) and shares avoids values so close to a border that rounding could move them across.
    #[test]
    fn only_kept_tokens_are_drawn(
        steps in prop::collection::vec(-40_i32..40, 1..200),
        top_k in 0_usize..220,
        top_p in prop::sample::select(vec![0.0_f32, 0.1003, 0.5003, 0.9003, 0.9901, 1.0]),
        min_p in prop::sample::select(vec![0.0_f32, 0.0101, 0.1003, 0.7007]),
        temperature in prop::sample::select(vec![0.25_f32, 1.0, 2.0]),
        seed: u64,
    ) {
        let logits: Vec<f32> = steps.iter().map(|&step| step as f32 / 8.0).collect();
        let params = SamplingParams { top_k, top_p, min_p, ..plain(temperature, seed) };
        let kept = naive(&params, &logits, &[]);
        let mut sampler = Sampler::new(params);
        for _ in 0..20 {
            let token = sampler.sample(&mut logits.clone(), &[]).unwrap();
            prop_assert!(kept.iter().any(|&(id, _)| id == token), "{token} of {kept:?}");
        }
    }

    /// Compares bias and penalties with their definition, one token at a time.
    #[test]
    fn penalties_equal_their_definition(
        logits in prop::collection::vec(-10.0_f32..10.0, 12),
        history in prop::collection::vec(0_u32..12, 0..40),
        window in 0_usize..50,
        repetition in 0.5_f32..2.0,
        presence in -2.0_f32..2.0,
        frequency in -2.0_f32..2.0,
        bias in prop::collection::vec((0_u32..12, -5.0_f32..5.0), 0..5),
    ) {
        let params = SamplingParams {
            repetition_penalty: repetition,
            presence_penalty: presence,
            frequency_penalty: frequency,
            penalty_window: window,
            logit_bias: bias.clone(),
            ..SamplingParams::greedy()
        };
        let mut changed = logits.clone();
        let token = Sampler::new(params).sample(&mut changed, &history).unwrap();
        let start = history.len().saturating_sub(window);
        for id in 0..12 {
            let mut expected = logits[id];
            for entry in bias.iter().filter(|entry| entry.0 as usize == id) {
                expected += entry.1;
            }
            let count = history[start..].iter().filter(|&&token| token as usize == id).count();
            if count > 0 {
                match expected > 0.0 {
                    true => expected /= repetition,
                    false => expected *= repetition,
                }
                expected -= presence + count as f32 * frequency;
            }
            prop_assert!((changed[id] - expected).abs() < 1e-4, "{id}: {} {expected}", changed[id]);
        }
        let best = changed.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        prop_assert_eq!(token as usize, changed.iter().position(|&logit| logit == best).unwrap());
    }
}

/// Returns what a device that finds the largest logits itself hands over: all logits that are not
/// below the [`TOP`]-th largest, in any order.
fn top_of(logits: &[f32]) -> Vec<TopLogit> {
    let mut sorted = logits.to_vec();
    sorted.sort_unstable_by(|a, b| b.total_cmp(a));
    let least = sorted[TOP.min(logits.len()) - 1];
    let all = logits.iter().zip(0..).map(|(&logit, token)| TopLogit { logit, token });
    let mut top: Vec<TopLogit> = all.filter(|top| top.logit >= least).collect();
    top.reverse();
    top
}

/// Whatever is asked of a row: its largest logits give the token that all give, or say that they
/// are not enough. The random numbers stay in step.
#[test]
fn the_largest_logits_give_the_token_that_all_give() {
    let mut random = ChaCha8Rng::seed_from_u64(9);
    let mut number = move || (random.next_u64() >> 40) as f32 / (1 << 24) as f32;
    let (mut given, mut short) = (0, 0);
    for vocabulary in [1, 7, 255, 256, 257, 3000] {
        for (temperature, top_k, top_p, min_p) in [
            (0.0, 0, 1.0, 0.0),
            (0.0, 64, 0.9, 0.0),
            (1.0, 1, 1.0, 0.0),
            (1.0, 64, 0.95, 0.0),
            (3.0, 256, 1.0, 0.0),
            (0.7, 200, 0.9, 0.05),
        ] {
            for kind in 0..8 {
                let mut params =
                    SamplingParams { temperature, top_k, top_p, min_p, ..SamplingParams::greedy() };
                match kind % 4 {
                    1 => (params.presence_penalty, params.penalises_answer) = (1.3, true),
                    2 => (params.repetition_penalty, params.frequency_penalty) = (1.2, 0.4),
                    3 => {
                        let biased = (0..vocabulary as u32).step_by(3).take(50);
                        params.logit_bias = biased.map(|id| (id, -2.5)).collect();
                        params.suppressed = (0..vocabulary as u32 / 2).step_by(5).collect();
                    }
                    _ => {}
                }
                let mut stream = SamplerState::new(params.clone());
                assert!(stream.may_take_top());
                let mut workspace = Workspace::new(vocabulary);
                for _ in 0..6 {
                    // There are few distinct values, so that some are equal.
                    let logits: Vec<f32> =
                        (0..vocabulary).map(|_| (number() * 400.0).floor() / 20.0 - 10.0).collect();
                    let token = |share: f32| (share * vocabulary as f32) as u32;
                    let history: Vec<u32> = (0..40).map(|_| token(number() * number())).collect();
                    // Few tokens, half of them, or one.
                    let share = [0.02, 0.5, 0.0][(number() * 3.0) as usize];
                    let mut words = vec![0_u32; vocabulary.div_ceil(32)];
                    for id in 0..vocabulary as u32 {
                        if number() < share && params.suppressed.binary_search(&id).is_err() {
                            words[id as usize / 32] |= 1 << (id % 32);
                        }
                    }
                    let last = vocabulary as u32 - 1;
                    words[last as usize / 32] |= 1 << (last % 32);
                    if kind < 4 {
                        words = unsuppressed(&params, vocabulary);
                    }
                    let all = asked(&stream, (&history, 20), &words);
                    let expected = sampling::draw(&logits, &all).unwrap().token;
                    let draw = if kind < 4 { asked(&stream, (&history, 20), &[]) } else { all };
                    let largest = top_of(&logits);
                    let found = stream.sample_top(&largest, vocabulary, &draw, &mut workspace);
                    stream.advance();
                    match found.unwrap() {
                        Some(found) => {
                            assert_eq!(found, expected, "{vocabulary} {params:?} {words:?}");
                            given += 1;
                        }
                        None => {
                            assert!(vocabulary > TOP, "a whole row is enough");
                            short += 1;
                        }
                    }
                }
            }
        }
    }
    assert!(given > 5 * short && short > 20, "{given} of {short}");
}

#[test]
fn not_every_stream_takes_the_largest_logits() {
    let greedy = SamplingParams::greedy();
    let takes = |params| SamplerState::new(params).may_take_top();
    assert!(!takes(SamplingParams { temperature: 1.0, top_k: 0, ..greedy.clone() }));
    assert!(!takes(SamplingParams { temperature: 1.0, top_k: TOP + 1, ..greedy.clone() }));
    for raising in [
        SamplingParams { repetition_penalty: 0.9, ..greedy.clone() },
        SamplingParams { presence_penalty: -0.1, frequency_penalty: 2.0, ..greedy.clone() },
        SamplingParams { logit_bias: vec![(1, -1.0), (2, 0.5)], ..greedy.clone() },
    ] {
        assert!(!takes(raising.clone()), "{raising:?}");
    }
    assert!(takes(SamplingParams { repetition_penalty: 0.9, penalty_window: 0, ..greedy.clone() }));
    let broken = [TopLogit { logit: 1.0, token: 3 }, TopLogit { logit: f32::NAN, token: 5 }];
    let mut workspace = Workspace::new(8);
    // Also where the token is not allowed.
    let stream = SamplerState::new(greedy.clone());
    for allowed in [vec![], vec![1 << 3]] {
        let draw = asked(&stream, (&[], 0), &allowed);
        let error = stream.sample_top(&broken, 8, &draw, &mut workspace).unwrap_err();
        assert!(matches!(error, NoToken::NotFinite { token: 5, .. }), "{error}");
    }
    // The one token that is allowed is there, though a penalty puts it below the others.
    let lowering = SamplerState::new(SamplingParams { repetition_penalty: 2.0, ..greedy });
    let top = [TopLogit { logit: 1.0, token: 3 }, TopLogit { logit: 0.9, token: 4 }];
    let draw = asked(&lowering, (&[3], 0), &[1 << 3]);
    let found = lowering.sample_top(&top, 8, &draw, &mut workspace).unwrap();
    assert_eq!(found, Some(3));
    let sound = [TopLogit { logit: 1.0, token: 3 }];
    let draw = asked(&stream, (&[], 0), &[0]);
    let error = stream.sample_top(&sound, 8, &draw, &mut workspace).unwrap_err();
    assert_eq!(error, NoToken::NothingAllowed);
}
