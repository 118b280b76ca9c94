//! Log-probabilities: what clients are told is what the model says. The model is the embedded one
//! on the scalar reference.

use serde_json::{Value, json};

use crate::client;
use crate::harness::{Harness, demo_engine};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
const TEXT: &str = "One day a little bird – so they say – sat on a tree.";
/// Two ways to run the same rows differ by so much at most.
const TOLERANCE: f64 = 1e-3;

/// Log-probabilities of all tokens after each prefix of `ids`.
fn expected(ids: &[u32]) -> Vec<Vec<f64>> {
    let mut all = Vec::new();
    let mut each = |_: usize, logits: &[f32]| {
        let sum: f64 = logits.iter().map(|&logit| f64::from(logit).exp()).sum();
        all.push(logits.iter().map(|&logit| f64::from(logit) - sum.ln()).collect());
        std::ops::ControlFlow::Continue(())
    };
    demo_engine().logits(ids, 16, &mut each).unwrap();
    all
}

fn ids(server: &Harness, body: &Value) -> Vec<u32> {
    let (status, answer) = server.post("/tokenize", body);
    assert_eq!(status, 200, "{answer}");
    serde_json::from_value(answer["tokens"].clone()).unwrap()
}

fn close(found: &Value, expected: f64) {
    let found = found.as_f64().unwrap();
    assert!((found - expected).abs() < TOLERANCE, "{found} instead of {expected}");
}

/// The request that lm-eval scores texts with, and the same without a token after the text.
#[test]
fn a_prompt_is_scored_as_clients_that_evaluate_models_ask() {
    let server = Harness::start();
    let ids = ids(&server, &json!({"model": "demo", "prompt": TEXT}));
    let known = expected(&ids);
    let mut sums = Vec::new();
    for max_tokens in [1, 0] {
        let (status, answer) = server.post(
            COMPLETIONS,
            &json!({
                "model": "demo", "prompt": ids, "max_tokens": max_tokens, "logprobs": 1,
                "echo": true, "seed": 1234, "temperature": 0,
            }),
        );
        assert_eq!(status, 200, "{answer}");
        let choice = &answer["choices"][0];
        let logprobs = &choice["logprobs"];
        let list = |name: &str| logprobs[name].as_array().unwrap().clone();
        let (tokens, chosen) = (list("tokens"), list("token_logprobs"));
        let (top, offsets) = (list("top_logprobs"), list("text_offset"));
        for length in [tokens.len(), chosen.len(), top.len(), offsets.len()] {
            assert_eq!(length, ids.len() + max_tokens);
        }
        assert!(chosen[0].is_null() && top[0].is_null());
        let text: Vec<char> = choice["text"].as_str().unwrap().chars().collect();
        let mut sum = 0.0;
        for index in 1..ids.len() {
            let expected = &known[index - 1];
            close(&chosen[index], expected[ids[index] as usize]);
            sum += chosen[index].as_f64().unwrap();
            let top = top[index].as_object().unwrap();
            let best = top.values().map(|value| value.as_f64().unwrap()).fold(f64::MIN, f64::max);
            let most = expected.iter().copied().fold(f64::MIN, f64::max);
            assert!(top.len() <= 2 && (best - most).abs() < TOLERANCE);
            let token = tokens[index].as_str().unwrap();
            assert!(top.contains_key(token), "the token is among its own alternatives");
            let offset = offsets[index].as_u64().unwrap() as usize;
            let there: String = text[offset..].iter().collect();
            // A token that is part of a character begins where that character does.
            let is_part = token.contains(char::REPLACEMENT_CHARACTER);
            assert!(is_part || there.starts_with(token), "{token:?} at {offset}");
            assert!(!is_part || there.starts_with('–'), "{token:?} at {offset}");
        }
        if max_tokens == 1 {
            let greedy = known.last().unwrap().iter().copied().fold(f64::MIN, f64::max);
            close(&chosen[ids.len()], greedy);
        }
        assert_eq!(answer["usage"]["completion_tokens"], max_tokens);
        sums.push(sum);
    }
    assert!((sums[0] - sums[1]).abs() < TOLERANCE, "{sums:?}");
}

#[test]
fn generated_tokens_of_a_completion_have_the_models_log_probabilities() {
    let server = Harness::start();
    let mut ids = ids(&server, &json!({"model": "demo", "prompt": TEXT}));
    let prompt = ids.len();
    // Sampled hot and biased: the log-probabilities are the model's own all the same.
    let body = json!({
        "model": "demo", "prompt": ids,
            "max_tokens": 5, "logprobs": 3,
            "temperature": 1.5, "seed": 7,
        "logit_bias": {"20": 3}, "ignore_eos": true, "skip_special_tokens": false,
    });
    let (status, answer) = server.post(COMPLETIONS, &body);
    assert_eq!(status, 200, "{answer}");
    let logprobs = &answer["choices"][0]["logprobs"];
    let chosen = logprobs["token_logprobs"].as_array().unwrap();
    assert_eq!(chosen.len(), 5);
    for (step, found) in chosen.iter().enumerate() {
        let known = expected(&ids[..prompt + step]);
        let found_value = found.as_f64().unwrap();
        let nearest = |&(_, value): &(usize, &f64)| (value - found_value).abs();
        let order = |a: &(usize, &f64), b: &(usize, &f64)| nearest(a).total_cmp(&nearest(b));
        let last = known.last().unwrap();
        let spelled = |id: usize| {
            let (_, answer) = server.post("/detokenize", &json!({"model": "demo", "tokens": [id]}));
            answer["content"].clone()
        };
        let mut candidates: Vec<(usize, &f64)> = last.iter().enumerate().collect();
        candidates.sort_by(order);
        let token = &logprobs["tokens"][step];
        let id = candidates.iter().take(50).map(|&(id, _)| id).find(|&id| spelled(id) == *token);
        let id = id.unwrap_or_else(|| panic!("{token} has not the log-probability {found}"));
        close(found, last[id]);
        ids.push(id as u32);
        let top = logprobs["top_logprobs"][step].as_object().unwrap();
        assert!((3..=4).contains(&top.len()), "{top:?}");
    }
}

#[test]
fn chats_have_the_same_log_probabilities_whole_and_streamed() {
    let server = Harness::start();
    let messages = json!([{"role": "user", "content": "Tell me of a bird."}]);
    let body = json!({
        "model": "demo", "messages": messages, "max_tokens": 6, "logprobs": true, "top_logprobs": 5,
        "temperature": 0,
    });
    let (status, answer) = server.post(CHAT, &body);
    assert_eq!(status, 200, "{answer}");
    let content = answer["choices"][0]["logprobs"]["content"].as_array().unwrap().clone();
    assert!(!content.is_empty());
    for token in &content {
        let top = token["top_logprobs"].as_array().unwrap();
        assert_eq!(top.len(), 5);
        assert_eq!(top[0]["token"], token["token"], "the likeliest one is chosen");
        assert_eq!(top[0]["logprob"], token["logprob"]);
        let values: Vec<f64> = top.iter().map(|entry| entry["logprob"].as_f64().unwrap()).collect();
        assert!(values.is_sorted_by(|a, b| a >= b));
        assert!(values.iter().map(|value| value.exp()).sum::<f64>() < 1.0 + TOLERANCE);
        let bytes: Vec<u8> = serde_json::from_value(token["bytes"].clone()).unwrap();
        assert_eq!(String::from_utf8_lossy(&bytes), token["token"].as_str().unwrap());
    }
    let prompt = ids(&server, &json!({"model": "demo", "messages": messages}));
    let known = expected(&prompt);
    let best = known.last().unwrap().iter().copied().fold(f64::MIN, f64::max);
    close(&content[0]["logprob"], best);
    let mut streamed = body;
    streamed["stream"] = true.into();
    let answer = client::post(server.address, CHAT, &[], streamed.to_string().as_bytes());
    let found: Vec<Value> = answer
        .events()
        .iter()
        .filter_map(|event| event["choices"][0]["logprobs"]["content"].as_array().cloned())
        .flatten()
        .collect();
    assert_eq!(found.len(), content.len());
    for (found, content) in found.iter().zip(&content) {
        assert_eq!(found["token"], content["token"]);
        close(&found["logprob"], content["logprob"].as_f64().unwrap());
    }
}

#[test]
fn what_was_in_the_cache_is_counted() {
    let server = Harness::start();
    let body = json!({"prompt": vec![5; 300], "max_tokens": 2});
    let cached = |answer: &Value| {
        answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
    };
    let (_, first) = server.post(COMPLETIONS, &body);
    assert_eq!(cached(&first), 0, "{first}");
    server.wait_idle();
    let (_, second) = server.post(COMPLETIONS, &body);
    assert!((200..300).contains(&cached(&second)), "{second}");
    assert_eq!(second["usage"]["prompt_tokens"], 300);
}
