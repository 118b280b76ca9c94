use super::*;

/// Random numbers for tests: those of the draw itself.
struct Random(u64, u32);

impl Random {
    fn bits(&mut self) -> u64 {
        self.1 += 1;
        numbers::bits(self.0, self.1)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.bits() % end as u64) as usize
    }

    fn share(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1 << 24) as f32
    }
}

/// Draws by the order of the module's documentation, with a sort.
fn defined(logits: &[f32], draw: &Draw) -> Option<u32> {
    let mut ranked: Vec<(f32, u32)> = Vec::new();
    for (&logit, token) in logits.iter().zip(0..) {
        if !draw.allowed.is_empty() && draw.allowed[token as usize / 32] >> (token % 32) & 1 == 0 {
            continue;
        }
        let change = draw.changes.iter().find(|change| change.token == token);
        let mut logit = logit;
        if let Some(change) = change {
            logit += change.bias;
            if change.is_repeated {
                logit *= draw.rule.factors[usize::from(logit <= 0.0)];
            }
            logit -= change.less;
        }
        ranked.push((logit + 0.0, token));
    }
    ranked.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    let Rule { scale, top_k, share, least, key, .. } = draw.rule;
    let largest = ranked.first()?.0;
    if scale == 0.0 || draw.rule.top_k == 1 {
        return Some(ranked[0].1);
    }
    if top_k > 0 {
        ranked.truncate(top_k as usize);
    }
    let exponent = |logit: f32| numbers::exponent(logit, largest, scale);
    ranked.retain(|&(logit, _)| exponent(logit) >= numbers::LEAST);
    let weights: Vec<u64> =
        ranked.iter().map(|&(logit, _)| numbers::weight(exponent(logit))).collect();
    if share < 1 << 24 {
        let all: u128 = weights.iter().map(|&weight| u128::from(weight)).sum();
        let goal = ((all * u128::from(share)) >> 24).max(1);
        let mut sum = 0;
        let reaches = |&weight: &u64| {
            sum += u128::from(weight);
            sum >= goal
        };
        let last = weights.iter().position(reaches).unwrap();
        ranked.truncate(last + 1);
    }
    ranked.retain(|&(logit, _)| exponent(logit) >= least);
    let score =
        |&(logit, token): &(f32, u32)| exponent(logit) + numbers::gumbel(numbers::bits(key, token));
    let best = ranked.iter().max_by(|a, b| score(a).total_cmp(&score(b)).then(b.1.cmp(&a.1)));
    best.map(|best| best.1)
}

/// A row and a draw from it, with few distinct logits, so that some are equal. In some rows a few
/// tokens have nearly all of the weight, as after a prompt.
fn case(random: &mut Random, vocabulary: usize) -> (Vec<f32>, Draw) {
    let steps = [6.0, 400.0, 1e6][random.below(3)];
    let spread = [0.5, 20.0, 200.0][random.below(3)];
    let mut logits: Vec<f32> = (0..vocabulary)
        .map(|_| (random.share() * steps).floor() / steps * spread - spread / 2.0)
        .collect();
    for _ in 0..[0, 4, 30][random.below(3)] {
        logits[random.below(vocabulary)] += random.below(20) as f32;
    }
    let rule = Rule {
        scale: [0.0, numbers::scale(0.3), numbers::scale(1.0), numbers::scale(20.0)]
            [random.below(4)],
        top_k: [0, 0, 1, 40, random.below(vocabulary + 20)][random.below(5)] as u32,
        share: [1 << 24, 1 << 24, 16_000_000, 5_000_000, 0][random.below(5)],
        least: [numbers::LEAST, -4.3, 0.0][random.below(3)],
        factors: [1.0 / 1.3, 1.3],
        key: random.bits(),
    };
    let mut changes: Vec<Change> = Vec::new();
    if random.below(2) == 0 {
        for token in 0..vocabulary as u32 {
            if random.below(5) == 0 {
                let bias = if random.below(2) == 0 { 0.0 } else { 3.0 * random.share() - 1.0 };
                let (is_repeated, less) = (random.below(2) == 0, random.share() - 0.3);
                changes.push(Change { token, bias, is_repeated, less });
            }
        }
    }
    let mut allowed = Vec::new();
    if random.below(2) == 0 {
        allowed = vec![0_u32; vocabulary.div_ceil(32)];
        let kept = [1, 2, 50][random.below(3)];
        (0..vocabulary).filter(|_| random.below(kept) == 0).for_each(|token| {
            allowed[token / 32] |= 1 << (token % 32);
        });
    }
    (logits, Draw { rule, changes, allowed, ..Draw::default() })
}

#[test]
fn a_draw_is_what_its_definition_says() {
    let mut random = Random(7, 0);
    for vocabulary in [1, 2, 31, 32, 33, 257, 1000, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE + 7] {
        for _ in 0..if vocabulary > 1000 { 12 } else { 200 } {
            let (logits, wanted) = case(&mut random, vocabulary);
            let found = draw(&logits, &wanted);
            let expected = defined(&logits, &wanted);
            assert_eq!(
                found.map(|found| found.token).ok(),
                expected,
                "{vocabulary} {:?} {} changes",
                wanted.rule,
                wanted.changes.len()
            );
            assert!(expected.is_some() || found == Err(NoToken::NothingAllowed));
            let Some(token) = expected else { continue };
            let told = draw(&logits, &Draw { tells: true, ..wanted.clone() }).unwrap();
            let given = Draw { given: Some(token), tells: true, ..Draw::default() };
            assert_eq!(draw(&logits, &given), Ok(told));
        }
    }
}

/// Equal logits leave the bounds of a word no room.
#[test]
fn a_race_of_words_has_the_winner_of_one_token_after_the_other() {
    let logits = [1.0_f32; 130];
    let row = Row::of_all(&logits);
    for key in 0..1000 {
        let rule = Rule { scale: 1.0, least: numbers::LEAST, key, ..Rule::default() };
        let race = Race::new(&rule, Candidate::new(0, 1.0));
        let all = (0..130).map(|token| Candidate::new(token, 1.0));
        assert_eq!(hold_of_piece(&race, row.piece(0), None), race.hold(all, None));
    }
    let [low, high] = [3, 5].map(|token| (1.5, Candidate::new(token, 0.0)));
    assert_eq!([better(low, high), better(high, low)], [low; 2]);
}

/// Whatever may be chosen: a row with a logit that is not finite gives no token.
#[test]
fn logits_that_are_not_finite_are_named() {
    for broken in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for at in [0, 5, 31, 32, 99, PIECE - 1, PIECE, PIECE + 31, PIECE + 35] {
            let mut logits = vec![1.0_f32; if at < 100 { 100 } else { PIECE + 36 }];
            logits[at] = broken;
            *logits.last_mut().unwrap() = broken;
            let mut allowed = vec![0; logits.len().div_ceil(32)];
            allowed[0] = 1 << 7;
            let change = Change { token: 7, bias: 1.0, is_repeated: false, less: 0.0 };
            for (allowed, changes) in [(vec![], vec![]), (allowed, vec![]), (vec![], vec![change])]
            {
                let wanted = Draw { allowed, changes, ..Draw::default() };
                let Err(NoToken::NotFinite { token, logit }) = draw(&logits, &wanted) else {
                    panic!("{at}");
                };
                assert_eq!((token as usize, logit.to_bits()), (at, broken.to_bits()));
            }
        }
    }
    let change = Change { token: 3, bias: f32::MAX, is_repeated: false, less: 0.0 };
    let wanted =
        |allowed: u32| Draw { changes: vec![change], allowed: vec![allowed], ..Draw::default() };
    let logits = [1.0, 1.0, 1.0, f32::MAX];
    let overflow = NoToken::NotFinite { token: 3, logit: f32::INFINITY };
    assert_eq!(draw(&logits, &wanted(0b1001)), Err(overflow));
    assert_eq!(draw(&logits, &wanted(0b0001)).map(|drawn| drawn.token), Ok(0));
    // A change that overflows is named where it comes before a logit that is broken, and only
    // there.
    for (at, token) in [(2, 2), (4, 3)] {
        let mut logits = [1.0, 1.0, 1.0, f32::MAX, 1.0];
        logits[at] = f32::INFINITY;
        let infinite = NoToken::NotFinite { token, logit: f32::INFINITY };
        assert_eq!(draw(&logits, &wanted(0b11111)), Err(infinite));
    }
}

#[test]
fn log_probabilities_are_those_of_the_softmax() {
    let mut random = Random(3, 0);
    for spread in [1.0, 30.0, 300.0] {
        let logits: Vec<f32> = (0..50_000).map(|_| spread * random.share()).collect();
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = logits.iter().map(|&logit| f64::from(logit - largest).exp()).sum();
        for token in [0, 17, 49_999] {
            let wanted = Draw { given: Some(token), tells: true, ..Draw::default() };
            let told = draw(&logits, &wanted).unwrap().told.unwrap();
            let logit = logits[token as usize];
            let expected = f64::from(logit) - f64::from(largest) - sum.ln();
            let found = f64::from(told.logprob(logit));
            assert!((found - expected).abs() < 1e-6 * (1.0 + expected.abs()), "{found} {expected}");
            let larger = logits.iter().filter(|&&other| other > logit).count();
            assert_eq!((told.rank as usize, told.largest), (larger, largest));
        }
    }
}

#[test]
fn the_first_in_rank_are_in_order() {
    let mut random = Random(4, 0);
    for vocabulary in [1, 40, 3 * PIECE] {
        let logits: Vec<f32> = (0..vocabulary).map(|_| random.below(1000) as f32).collect();
        let mut sorted: Vec<u32> = (0..vocabulary as u32).collect();
        sorted.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b)));
        for count in [0, 1, 20, vocabulary, vocabulary + 1] {
            let found = first_in_rank(&logits, count);
            let tokens: Vec<u32> = found.iter().map(|candidate| candidate.token).collect();
            assert_eq!(tokens, sorted[..count.min(vocabulary)]);
        }
    }
    // What is infinite or no number has its place in the order.
    let mut logits: Vec<f32> = (0..PIECE + 40).map(|_| random.below(1000) as f32).collect();
    for (at, broken) in [(0, f32::INFINITY), (PIECE - 1, f32::NAN), (PIECE + 39, f32::NAN)] {
        logits[at] = broken;
    }
    for (count, expected) in [(1, vec![PIECE - 1]), (3, vec![PIECE - 1, PIECE + 39, 0])] {
        let tokens = first_in_rank(&logits, count).into_iter().map(|first| first.token as usize);
        assert_eq!(tokens.collect::<Vec<_>>(), expected);
    }
}

/// Numbers that a device may take for zero are zero.
#[test]
fn changes_know_no_subnormal_numbers() {
    let apply = |logit, bias, less| {
        Change { token: 0, bias, is_repeated: true, less }.apply(logit, [0.5, 2.0])
    };
    assert_eq!(apply(1e-40, 0.0, 0.0), 0.0);
    assert_eq!(apply(1.5e-38, 0.0, 0.0), 0.0, "half of it is too small");
    assert_eq!(apply(-1.5e-38, 1e-39, 0.0), -3e-38);
    assert_eq!(apply(4.0, -2.0, 0.25), 0.75);
    assert_eq!(apply(-4.0, 2.0, 0.25), -4.25);
}
