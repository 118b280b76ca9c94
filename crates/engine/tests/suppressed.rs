//! Tokens that a model must never generate.

use crate::fake::{Fake, VOCABULARY, options};
use trine_engine::{Engine, Request, SamplingParams, Update};

fn generate(sampling: SamplingParams) -> Vec<u32> {
    let program = Fake::new(options(256, 1, 32), &[5, 20]);
    let mut engine = Engine::from_program(Box::new(program));
    let prompt = (0..10).map(|at| at * 7 % VOCABULARY as u32).collect();
    engine.submit(Request { sampling, ..Request::new(prompt, 30) }).expect("the request is sound");
    let mut tokens = Vec::new();
    while !engine.is_idle() {
        for event in engine.step().expect("the device works") {
            if let Update::Token { token, .. } = event.update {
                tokens.push(token);
            }
        }
    }
    tokens
}

#[test]
fn suppressed_tokens_are_never_generated() {
    let sampled =
        SamplingParams { temperature: 0.9, top_k: 20, seed: 3, ..SamplingParams::greedy() };
    for sampling in [SamplingParams::greedy(), sampled] {
        let text = generate(sampling.clone());
        let mut suppressed = text[..6].to_vec();
        suppressed.sort_unstable();
        suppressed.dedup();
        let other = generate(SamplingParams { suppressed: suppressed.clone().into(), ..sampling });
        assert_eq!(other.len(), 30);
        assert!(other.iter().all(|token| !suppressed.contains(token)), "{suppressed:?}: {other:?}");
    }
}

#[test]
fn a_list_without_order_is_refused() {
    let program = Fake::new(options(256, 1, 32), &[5, 20]);
    let mut engine = Engine::from_program(Box::new(program));
    let sampling = SamplingParams { suppressed: vec![2, 1].into(), ..SamplingParams::greedy() };
    let error = engine.submit(Request { sampling, ..Request::new(vec![1], 1) }).expect_err("order");
    assert!(error.to_string().contains("suppressed"), "{error}");
}

#[test]
fn a_list_of_all_tokens_is_refused() {
    let program = Fake::new(options(256, 1, 32), &[5, 20]);
    let mut engine = Engine::from_program(Box::new(program));
    let all: Vec<u32> = (0..VOCABULARY as u32).collect();
    let sampling =
        |ids: &[u32]| SamplingParams { suppressed: ids.into(), ..SamplingParams::greedy() };
    let request = |ids: &[u32]| Request { sampling: sampling(ids), ..Request::new(vec![1], 1) };
    let error = engine.submit(request(&all)).expect_err("nothing is left");
    assert!(error.to_string().contains("every token"), "{error}");
    engine.submit(request(&all[1..])).expect("one is left");
}

/// Where only the end is left, the text ends, however many tokens were to come at least.
#[test]
fn a_text_ends_where_only_its_end_is_left() {
    let program = Fake::new(options(256, 1, 32), &[5, 20]);
    let mut engine = Engine::from_program(Box::new(program));
    let others: Vec<u32> = (0..VOCABULARY as u32).filter(|&id| id != 3).collect();
    let sampling = SamplingParams { suppressed: others.into(), ..SamplingParams::greedy() };
    let request = Request::new(vec![1], 5);
    engine
        .submit(Request { sampling, stop_ids: vec![3], min_tokens: 2, ..request })
        .expect("sound");
    let mut finish = None;
    while !engine.is_idle() {
        for event in engine.step().expect("the device works") {
            if let Update::Finished { finish: end, .. } = event.update {
                finish = Some(end);
            }
        }
    }
    assert_eq!(finish, Some(trine_engine::Finish::Stop));
}
