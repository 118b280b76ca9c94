//! Tokens that a model must never generate.

use crate::fake::{Fake, VOCABULARY, options};
use crate::texts::{prompt, run};
use trine_engine::{Engine, Request, SamplingParams};

fn engine() -> Engine {
    Engine::from_program(Box::new(Fake::new(options(256, 1, 32), &[5, 20])))
}

fn generate(sampling: SamplingParams) -> Vec<u32> {
    let request = Request { sampling, ..Request::new(prompt(1, 10), 30) };
    run(&mut engine(), vec![request]).remove(0).tokens
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
    let mut engine = engine();
    let sampling = SamplingParams { suppressed: vec![2, 1].into(), ..SamplingParams::greedy() };
    let error = engine.submit(Request { sampling, ..Request::new(vec![1], 1) }).expect_err("order");
    assert!(error.to_string().contains("suppressed"), "{error}");
}

#[test]
fn a_list_of_all_tokens_is_refused() {
    let mut engine = engine();
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
    let mut engine = engine();
    let others: Vec<u32> = (0..VOCABULARY as u32).filter(|&id| id != 3).collect();
    let sampling = SamplingParams { suppressed: others.into(), ..SamplingParams::greedy() };
    let request = Request { stop_ids: vec![3], min_tokens: 2, ..Request::new(vec![1], 5) };
    let text = run(&mut engine, vec![Request { sampling, ..request }]).remove(0);
    assert_eq!(text.end.map(|(finish, _)| finish), Some(trine_engine::Finish::Stop));
}
