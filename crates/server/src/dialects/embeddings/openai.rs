//! `POST /v1/embeddings`

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::{DIMENSION, DIMENSIONS, Inputs, TEXTS_MAX, embed, numbers, respond};
use crate::error::ApiError;
use crate::models::Lease;
use crate::request::body::MODEL;
use crate::request::fields::{FieldTable, Fields, Harmless, Rows, Unsupported, rows};
use crate::request::open::{Sees, open};
use crate::request::parameters::{PRIORITIES, PRIORITY};
use crate::request::pictures::Pictured;
use crate::request::prompts::read_prompts;
use crate::request::unsupported::PICTURES;
use crate::service::app::App;

/// Fields of other servers that would change the vector.
const UNSUPPORTED: [Unsupported; 3] = [
    ("messages", Harmless::Absent, "leave it out"),
    ("truncate_prompt_tokens", Harmless::Absent, "leave it out"),
    ("instruction", Harmless::Absent, "leave it out"),
];

/// The fields of a request.
pub(crate) const EMBEDDING: FieldTable = &[
    INPUT,
    MODEL,
    DIMENSIONS,
    TASK,
    FORM,
    PRIORITIES,
    MEANT,
    Rows::Refused(&UNSUPPORTED),
    Rows::Refused(&PICTURES),
];

rows! {
    INPUT {
        /// A text, a list of texts, a list of token ids and texts, or a list of such lists, with at
        /// most 300,000 tokens together.
        INPUTS! Value = "input", as texts_or_ids(TEXTS_MAX);
    }
    FORM {
        /// A list of numbers, or their f32, little-endian, in Base64.
        ENCODING: str = "encoding_format", as default(choice(["float", "base64"]), "float");
        /// Bytes in Base64 are little-endian.
        ENDIANNESS: str = "endianness", as choice(["native", "little"]);
        /// Whether texts begin with `<bos>`.
        ADDS_BOS: bool = "add_special_tokens", or true;
    }
    /// What the vectors are for. Of models that are trained to embed.
    TASK {
        /// Name of a task, as sentence-transformers has it: `query`, `document`, `STS`, ...
        PROMPT_NAME: str = "prompt_name";
        /// The same; `passage`, `search_query` and `search_document` are known too.
        INPUT_TYPE: str = "input_type";
    }
    /// Fields that ask at one value for what is done anyway, and are refused at others.
    MEANT {
        NORMALIZE: Value = "normalize",
            as refused("leave it out, or use true", json!([null, true]));
        EMBD_NORMALIZE: Value = "embd_normalize",
            as refused("leave it out, or use 2", json!([null, 2]));
        EMBED_DTYPE: Value = "embed_dtype",
            as refused("leave it out, or use \"float32\"", json!([null, "float32"]));
    }
}

/// How a vector is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Encoding {
    /// A list of numbers.
    Float,
    /// Its `f32`, little-endian, in Base64.
    Base64,
}

/// What a request asks for.
struct EmbeddingRequest {
    inputs: Inputs,
    encoding: Encoding,
    priority: i32,
}

/// Embeds texts.
pub(crate) async fn handle(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    let shared = Arc::clone(&app);
    let encode = move |asked: EmbeddingRequest, lease: &Arc<Lease>| {
        let EmbeddingRequest { inputs, encoding, priority } = asked;
        Ok((inputs.encode(&shared, lease)?, encoding, priority))
    };
    let ((ready, encoding, priority), lease) =
        open(&app, request, Sees::Sizes, EMBEDDING, read, encode).await?;
    let vectors = embed(&app, &lease, ready, priority).await?;
    let envelope = json!({
        "object": "list",
        "model": &*lease.name,
        "usage": {"prompt_tokens": vectors.tokens, "total_tokens": vectors.tokens},
    });
    Ok(respond(&envelope, "data", vectors, move |index, row| {
        let embedding = encoding.write(row);
        format!("{{\"object\":\"embedding\",\"index\":{index},\"embedding\":{embedding}}}")
    }))
}

impl Pictured for EmbeddingRequest {}

fn read(fields: Fields<'_>) -> Result<EmbeddingRequest, ApiError> {
    fields.refuse(&PICTURES)?;
    fields.refuse(&UNSUPPORTED)?;
    // At these values they ask for what is done anyway.
    for (row, meant) in
        [(&NORMALIZE, json!(true)), (&EMBD_NORMALIZE, json!(2)), (&EMBED_DTYPE, json!("float32"))]
    {
        if fields.get(row).is_some_and(|value| *value != meant) {
            let remedy = format!("leave it out, or use {meant}");
            return Err(ApiError::unsupported(row.name, &remedy));
        }
    }
    let dimensions = fields.read(&DIMENSION)?;
    let encoding = match fields.read(&ENCODING)? {
        None | Some("float") => Encoding::Float,
        Some("base64") => Encoding::Base64,
        Some(_) => return Err(fields.wrong("encoding_format", "float or base64")),
    };
    match fields.read(&ENDIANNESS)? {
        None | Some("native" | "little") => {}
        Some(_) => return Err(ApiError::unsupported("endianness", "leave it out, or use little")),
    }
    let priority = fields.read_or(&PRIORITY)? as i32;
    let adds_bos = fields.read_or(&ADDS_BOS)?;
    let prompts = read_prompts(fields, &INPUTS, TEXTS_MAX)?;
    let mut task: Option<(&str, String)> = None;
    for row in [&INPUT_TYPE, &PROMPT_NAME] {
        let Some(name) = fields.read(row)? else { continue };
        if let Some((other, _)) = task.filter(|(_, other)| other != name) {
            let message = format!("{other} names another task; leave one of the two out");
            return Err(ApiError::field(row.name, message));
        }
        task = Some((row.name, name.to_owned()));
    }
    Ok(EmbeddingRequest {
        inputs: Inputs {
            param: "input",
            own_field: None,
            prompts,
            adds_bos,
            cuts: false,
            dimensions,
            task,
        },
        encoding,
        priority,
    })
}

impl Encoding {
    /// Returns a vector as JSON.
    fn write(self, row: &[f32]) -> String {
        match self {
            Encoding::Float => numbers(row),
            Encoding::Base64 => {
                let bytes: Vec<u8> = row.iter().flat_map(|value| value.to_le_bytes()).collect();
                format!("\"{}\"", STANDARD.encode(bytes))
            }
        }
    }
}
