//! `POST /v1/rerank`: documents by the similarity of their embeddings to that of a query.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response, StatusCode};
use serde_json::{Map, Value, json};

use super::{EncodedInputs, Inputs, TEXTS_MAX, embed};
use crate::error::{ApiError, Code};
use crate::models::Lease;
use crate::reply::written::json_of;
use crate::request::body::MODEL;
use crate::request::fields::{FieldTable, Fields, Harmless, Rows, Unsupported, rows};
use crate::request::open::{Sees, open};
use crate::request::parameters::{PRIORITIES, PRIORITY};
use crate::request::pictures::Pictured;
use crate::request::prompts::Prompt;
use crate::service::app::App;

/// Fields of other servers that would change the scores.
const UNSUPPORTED: [Unsupported; 3] = [
    ("truncate_prompt_tokens", Harmless::Absent, "leave it out"),
    ("max_tokens_per_doc", Harmless::Absent, "leave it out"),
    ("rank_fields", Harmless::Absent, "leave it out, and send texts"),
];

/// The fields of a request.
pub(crate) const RERANK: FieldTable =
    &[RANKED, MODEL, WANTED, PRIORITIES, Rows::Refused(&UNSUPPORTED)];

rows! {
    RANKED {
        /// The text that documents are compared with.
        QUERY! str = "query";
        /// Texts, or objects with a `text`, at most 2,047.
        DOCUMENTS! [Value] = "documents";
    }
    WANTED {
        /// How many of the best documents are answered; all if it is absent.
        TOP: usize = "top_n", in 1..=u32::MAX as usize;
        /// Whether the answer repeats the documents.
        RETURNS: bool = "return_documents", or false;
    }
}

/// What a request asks for: the query is the first of the texts.
struct RerankRequest {
    texts: Vec<String>,
    top: usize,
    returns: bool,
    priority: i32,
}

impl Pictured for RerankRequest {}

/// Texts that are ready for the model, and how they are answered.
struct ToRank {
    inputs: EncodedInputs,
    documents: Option<Vec<String>>,
    top: usize,
    priority: i32,
}

/// Sorts documents by their similarity to a query.
pub(crate) async fn handle(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    let shared = Arc::clone(&app);
    let encode = move |asked: RerankRequest, lease: &Arc<Lease>| asked.encode(&shared, lease);
    let (ready, lease) = open(&app, request, Sees::Sizes, RERANK, read, encode).await?;
    let ToRank { inputs, documents, top, priority } = ready;
    let vectors = embed(&app, &lease, inputs, priority).await?;
    let mut scores = similarities(&vectors.rows);
    // Equal ones stay in the order of the request.
    scores.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    scores.truncate(top);
    let result = |(index, score): (usize, f32)| {
        let mut result = Map::new();
        result.insert("index".to_owned(), index.into());
        result.insert("relevance_score".to_owned(), json!(score));
        if let Some(text) = documents.as_ref().and_then(|documents| documents.get(index)) {
            result.insert("document".to_owned(), json!({ "text": text }));
        }
        Value::Object(result)
    };
    let results: Vec<Value> = scores.into_iter().map(result).collect();
    let answer = json!({
        "object": "list",
        "model": &*lease.name,
        "usage": {"prompt_tokens": vectors.tokens, "total_tokens": vectors.tokens},
        "results": results,
    });
    Ok(json_of(Body::from(answer.to_string())))
}

/// Returns the index of each document with the cosine of its vector and the query's, which is the
/// first one. All have length 1.
fn similarities(rows: &[Vec<f32>]) -> Vec<(usize, f32)> {
    let Some((query, documents)) = rows.split_first() else { return Vec::new() };
    let cosine = |row: &Vec<f32>| -> f32 {
        let products = query.iter().zip(row).map(|(a, b)| f64::from(*a) * f64::from(*b));
        products.sum::<f64>() as f32
    };
    documents.iter().map(cosine).enumerate().collect()
}

/// Returns the name of the field that a text is in: the query is the first.
fn field_of(index: usize) -> String {
    match index.checked_sub(1) {
        None => QUERY.name.to_owned(),
        Some(document) => format!("{}[{document}]", DOCUMENTS.name),
    }
}

fn read(fields: Fields<'_>) -> Result<RerankRequest, ApiError> {
    fields.refuse(&UNSUPPORTED)?;
    let missing = |name: &str| ApiError::field(name, format!("{name} is missing"));
    let text = |param: &str, text: &str| match text {
        "" => Err(ApiError::field(param, format!("{param} is empty"))),
        text => Ok(text.to_owned()),
    };
    let query = fields.read(&QUERY)?.ok_or_else(|| missing(QUERY.name))?;
    let mut texts = vec![text(QUERY.name, query)?];
    let documents = fields.read(&DOCUMENTS)?.ok_or_else(|| missing(DOCUMENTS.name))?;
    if !(1..TEXTS_MAX).contains(&documents.len()) {
        let message = format!("documents has {} texts; send from 1 to 2047", documents.len());
        return Err(ApiError::field(DOCUMENTS.name, message));
    }
    for document in documents {
        let place = field_of(texts.len());
        let words = document.as_str().or_else(|| document.get("text")?.as_str());
        let words = words.ok_or_else(|| {
            ApiError::field(&place, format!("{place} is neither a text nor an object with one"))
        })?;
        texts.push(text(&place, words)?);
    }
    Ok(RerankRequest {
        texts,
        top: fields.read(&TOP)?.unwrap_or(usize::MAX),
        returns: fields.read_or(&RETURNS)?,
        priority: fields.read_or(&PRIORITY)? as i32,
    })
}

impl RerankRequest {
    /// Returns the texts as token ids, the query and the documents with the model's own words for
    /// them.
    ///
    /// # Errors
    /// 501 for a model that is not trained to embed, and those of [`Inputs::encode`].
    fn encode(self, app: &App, lease: &Lease) -> Result<ToRank, ApiError> {
        let Some(tasks) = &lease.tasks else {
            let message = "documents are ranked by embeddings, and the model is not trained to \
                           make them: use embeddinggemma (trine pull embeddinggemma)";
            return Err(ApiError::new(StatusCode::NOT_IMPLEMENTED, Code::NotSupported, message));
        };
        let Self { texts, top, returns, priority } = self;
        let prompt = |(index, text): (usize, &String)| {
            let before = if index == 0 { tasks.query() } else { tasks.document() };
            Prompt::Text(format!("{before}{text}"))
        };
        let inputs = Inputs {
            param: DOCUMENTS.name,
            own_field: Some(field_of),
            prompts: texts.iter().enumerate().map(prompt).collect(),
            adds_bos: true,
            cuts: false,
            dimensions: None,
            task: None,
        };
        let inputs = inputs.encode(app, lease)?;
        let documents = returns.then(|| texts.into_iter().skip(1).collect());
        Ok(ToRank { inputs, documents, top, priority })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similarities_are_cosines_with_the_first_vector() {
        let rows = [vec![0.6, 0.8], vec![-0.6, -0.8], vec![0.8, -0.6], vec![0.6, 0.8]];
        let found = similarities(&rows);
        let expected = [-1.0, 0.0, 1.0];
        assert_eq!(found.iter().map(|(index, _)| *index).collect::<Vec<_>>(), [0, 1, 2]);
        for ((_, found), expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-6, "{found} for {expected}");
        }
        assert!(similarities(&[]).is_empty());
    }
}
