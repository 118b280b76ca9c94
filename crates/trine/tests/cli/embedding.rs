//! A model that only embeds, from its files to the answers of a server.

use serde_json::{Value, json};

use crate::common::{floats, golden, trine};
use crate::drafting::unchunked;
use crate::serving::Serving;

const FOLDER: &str = "embedding-gemma";
const FILE: &str = "gguf/embedding-gemma/model.gguf";
/// 1 - cosine; the mistakes of the golden's manifest make 7e-5 and more.
const TOLERANCE: f64 = 1e-5;

fn serve(name: &str, options: &[&str]) -> Serving {
    let path = golden(name);
    Serving::start(&[&[path.to_str().unwrap()], options].concat())
}

/// Status and body of an answer.
fn ask(serving: &Serving, path: &str, body: &Value) -> (u16, Value) {
    let answer = serving.ask("POST", path, &body.to_string());
    let (head, text) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let text = match head.to_lowercase().contains("chunked") {
        true => unchunked(text),
        false => text.to_owned(),
    };
    (status, serde_json::from_str(&text).unwrap())
}

fn good(serving: &Serving, path: &str, body: &Value) -> Value {
    let (status, answer) = ask(serving, path, body);
    assert_eq!(status, 200, "{path} {body}: {answer}");
    answer
}

fn vector(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
}

fn cosine(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

fn cases() -> Vec<Value> {
    let text = std::fs::read_to_string(golden(FOLDER).join("cases.json")).unwrap();
    serde_json::from_str::<Value>(&text).unwrap().as_array().unwrap().clone()
}

/// The golden vector of a case.
fn expected(case: usize) -> Vec<f64> {
    let path = golden(FOLDER).join("goldens.safetensors");
    let (_, values) = floats(&path, &format!("text.{case}.embedding"));
    values.into_iter().map(f64::from).collect()
}

#[test]
fn texts_get_the_vectors_of_the_definition() {
    let serving = serve(FOLDER, &["--pooling", "last"]);
    for (index, case) in cases().iter().enumerate() {
        let body = json!({"input": case["text"], "prompt_name": case["prompt_name"]});
        let ids = case["input_ids"].as_array().unwrap();
        let answer = good(&serving, "/v1/embeddings", &body);
        assert_eq!(answer["usage"]["prompt_tokens"], ids.len(), "{case}");
        let golden = expected(index);
        let close = |found: &Value, what: &str| {
            let off = 1.0 - cosine(&vector(found), &golden);
            assert!(off.abs() <= TOLERANCE, "case {index}, {what}: {off}");
        };
        close(&answer["data"][0]["embedding"], "by task");
        // Clients of Ollama write the prompt themselves, and lists of ids are complete.
        let answer = good(&serving, "/api/embed", &json!({"input": case["with_prompt"]}));
        close(&answer["embeddings"][0], "with its prompt");
        let answer = good(&serving, "/v1/embeddings", &json!({"input": [ids]}));
        close(&answer["data"][0]["embedding"], "as ids");
        for dimensions in [64, 32, 16] {
            let mut body = body.clone();
            body["dimensions"] = dimensions.into();
            let answer = good(&serving, "/v1/embeddings", &body);
            let cut = vector(&answer["data"][0]["embedding"]);
            let length = cut.iter().map(|value| value * value).sum::<f64>().sqrt();
            assert!((length - 1.0).abs() < 1e-5, "{length}");
            let off = 1.0 - cosine(&cut, &golden[..dimensions]);
            assert!(off.abs() <= TOLERANCE, "case {index}, {dimensions}: {off}");
        }
    }
}

#[test]
fn documents_are_ranked_by_the_cosines_of_their_vectors() {
    let serving = serve(FOLDER, &[]);
    let (query, documents) = ("a cold river", ["It rains.", "The river was cold.", "12 eggs"]);
    let embed = |text: &str, task: &str| {
        let body = json!({"input": text, "input_type": task});
        vector(&good(&serving, "/v1/embeddings", &body)["data"][0]["embedding"])
    };
    let own = embed(query, "query");
    let scores = documents.map(|text| cosine(&own, &embed(text, "passage")));
    let body = json!({"query": query, "documents": documents});
    for path in ["/v1/rerank", "/rerank", "/v1/reranking", "/reranking"] {
        let answer = good(&serving, path, &body);
        let results = answer["results"].as_array().unwrap();
        let mut before = f64::INFINITY;
        for result in results {
            let index = result["index"].as_u64().unwrap() as usize;
            let score = result["relevance_score"].as_f64().unwrap();
            assert!((score - scores[index]).abs() < 1e-5 && score <= before, "{answer}");
            before = score;
        }
        assert_eq!(results.len(), 3);
    }
    let body = json!({
        "query": query, "documents": [{"text": documents[0]}, documents[1]], "top_n": 1,
        "return_documents": true
    });
    let answer = good(&serving, "/v1/rerank", &body);
    let best = usize::from(scores[1] > scores[0]);
    let results = answer["results"].as_array().unwrap();
    assert_eq!((results.len(), &results[0]["index"]), (1, &json!(best)));
    assert_eq!(results[0]["document"]["text"], documents[best]);
}

#[test]
fn what_it_cannot_do_is_refused_with_what_to_do() {
    let serving = serve(FILE, &[]);
    let texts = good(&serving, "/v1/embeddings", &json!({"input": ["It rains.", "No"]}));
    assert_eq!(texts["data"].as_array().unwrap().len(), 2);
    let long = "a ".repeat(3000);
    let of = |field: &str| -> &str { format!("\"param\":\"{field}\"").leak() };
    for (path, body, status, mark) in [
        ("/v1/embeddings", json!({"input": long}), 400, "context"),
        ("/v1/embeddings", json!({"input": "a", "dimensions": 97}), 400, "at most"),
        ("/v1/embeddings", json!({"input": "a", "prompt_name": "poem"}), 400, "Clustering"),
        ("/v1/embeddings", json!({"input": [[5]], "input_type": "query"}), 400, "texts"),
        (
            "/v1/embeddings",
            json!({"input": "a", "input_type": "query", "prompt_name": "document"}),
            400,
            "another task",
        ),
        ("/v1/rerank", json!({"query": "a", "documents": []}), 400, "documents"),
        ("/v1/rerank", json!({"query": "", "documents": ["a"]}), 400, of("query")),
        ("/v1/rerank", json!({"query": long, "documents": ["a"]}), 400, of("query")),
        ("/v1/rerank", json!({"query": "a", "documents": ["a", 5]}), 400, of("documents[1]")),
        ("/v1/rerank", json!({"query": "a", "documents": ["a", ""]}), 400, of("documents[1]")),
        ("/v1/rerank", json!({"query": "a", "documents": [long, "a"]}), 400, of("documents[0]")),
        (
            "/v1/rerank",
            json!({"query": "a", "documents": ["a", {"text": long}]}),
            400,
            of("documents[1]"),
        ),
        ("/v1/completions", json!({"prompt": "a"}), 501, "embeddings"),
        ("/api/embed", json!({"input": long, "truncate": false}), 400, "context"),
    ] {
        let (found, answer) = ask(&serving, path, &body);
        assert_eq!(found, status, "{path}: {answer}");
        assert!(answer.to_string().contains(mark), "{path}: {answer}");
    }
    // What is cut keeps the token that ends a text.
    let cut = good(&serving, "/api/embed", &json!({"input": long}));
    assert_eq!(cut["prompt_eval_count"], 2048);
    let path = golden(FILE);
    let model = path.to_str().unwrap();
    let listed = serving.ask("GET", "/v1/models", "");
    let (_, listed) = listed.split_once("\r\n\r\n").unwrap();
    let listed: Value = serde_json::from_str(listed).unwrap();
    let shown = good(&serving, "/api/show", &json!({"model": listed["data"][0]["id"]}));
    assert_eq!(shown["capabilities"], json!(["embedding"]), "{shown}");
    for command in [&["run", model, "Hi"][..], &["bench", model]] {
        let ran = trine(&[command, &["--device", "cpu"]].concat());
        assert!(ran.code != 0 && ran.err.contains("trine serve"), "{command:?}: {}", ran.err);
    }
    for command in ["show", "explain", "plan"] {
        let ran = trine(&[command, model]);
        assert_eq!(ran.code, 0, "{command}: {}", ran.err);
    }
}

/// What a text gets depends on neither its company nor its place, and it may be as long as the
/// context.
#[test]
fn vectors_are_the_same_in_any_company_and_at_any_length() {
    let serving = serve(FILE, &[]);
    let embed = |inputs: &[Vec<u32>]| -> Vec<Vec<f64>> {
        let answer = good(&serving, "/v1/embeddings", &json!({"input": inputs}));
        let data = answer["data"].as_array().unwrap();
        assert_eq!(data.len(), inputs.len());
        data.iter().map(|item| vector(&item["embedding"])).collect()
    };
    // Of one block and beside its end, of a bulk row, of the context.
    let lengths = [1, 2, 31, 32, 33, 64, 65, 500, 2047, 2048];
    let text = |length: usize| (0..length as u32).map(|at| 3 + (at * at + 7) % 300).collect();
    let texts: Vec<Vec<u32>> = lengths.into_iter().map(text).collect();
    let all = embed(&texts);
    for (text, found) in texts.iter().zip(&all) {
        assert_eq!(embed(std::slice::from_ref(text)), std::slice::from_ref(found));
    }
    let backwards: Vec<Vec<u32>> = texts.iter().rev().cloned().collect();
    assert!(embed(&backwards).iter().rev().eq(&all));
    let twice = vec![texts[3].clone(); 40];
    assert!(embed(&twice).iter().all(|found| *found == all[3]));
    for (shorter, longer) in all.iter().zip(&all[1..]) {
        assert_ne!(shorter, longer, "each text goes on from the one before");
    }
    for body in [json!({"input": [text(2049)]}), json!({"input": [[5], text(2049)]})] {
        let (status, answer) = ask(&serving, "/v1/embeddings", &body);
        assert_eq!((status, &answer["error"]["param"]), (400, &json!("input")), "{answer}");
        assert_eq!(answer["error"]["code"], "context_length_exceeded");
    }
}

/// Attention's factor is implied by the head dimension, as in the file that is read.
#[test]
fn a_quantised_copy_makes_the_same_vectors() {
    let (folder, source) = (tempfile::tempdir().unwrap(), golden(FILE));
    let copy = folder.path().join("copy.gguf");
    let flags = ["--type", "Q8_0", "--requantize"];
    let paths = [source.to_str().unwrap(), copy.to_str().unwrap()];
    trine(&[&["quantize"][..], &paths, &flags].concat()).ok();
    let [before, after] = paths.map(|path| {
        let serving = Serving::start(&[path]);
        let answer = good(&serving, "/v1/embeddings", &json!({"input": "It rains."}));
        vector(&answer["data"][0]["embedding"])
    });
    let off = 1.0 - cosine(&before, &after);
    assert!(off < 1e-3, "{off}");
}

/// Whatever dialect asks for a text is told what the model is for, before anything is done.
#[test]
fn conversations_are_refused_in_every_dialect() {
    let serving = serve(FILE, &[]);
    let messages = json!([{"role": "user", "content": "Hi"}]);
    for (path, body) in [
        ("/v1/chat/completions", json!({"messages": messages})),
        ("/v1/chat/completions", json!({"messages": messages, "stream": true})),
        ("/v1/messages", json!({"model": "model", "max_tokens": 4, "messages": messages})),
        ("/v1/responses", json!({"input": "Hi"})),
        ("/api/chat", json!({"messages": messages})),
    ] {
        let (status, answer) = ask(&serving, path, &body);
        let text = answer.to_string();
        assert!(status >= 400 && text.contains("embeddings"), "{path}: {status} {text}");
    }
}
