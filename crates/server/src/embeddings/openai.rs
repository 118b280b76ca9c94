//! `POST /v1/embeddings`

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;

use super::{Inputs, TEXTS_MAX, embed, numbers, read_dimensions, respond};
use crate::app::App;
use crate::error::ApiError;
use crate::json::Fields;
use crate::models::Lease;
use crate::open::{Sees, open};
use crate::pictures::Pictured;
use crate::prompts::read_prompts;
use crate::unsupported::{PICTURES, refuse};

/// Fields of other servers that would change the vector.
pub(crate) const UNSUPPORTED: [&str; 5] =
    ["messages", "truncate_prompt_tokens", "input_type", "prompt_name", "instruction"];

/// How a vector is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Encoding {
    /// A list of numbers.
    Float,
    /// Its `f32`, little-endian, in Base64.
    Base64,
}

/// What a request asks for.
struct Asked {
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
    let encode = move |asked: Asked, lease: &Arc<Lease>| {
        let Asked { inputs, encoding, priority } = asked;
        Ok((inputs.encode(&shared, lease)?, encoding, priority))
    };
    let ((ready, encoding, priority), lease) =
        open(&app, request, Sees::Sizes, read, encode).await?;
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

impl Pictured for Asked {}

fn read(fields: Fields<'_>) -> Result<Asked, ApiError> {
    refuse(fields, &PICTURES)?;
    for name in UNSUPPORTED {
        if fields.get(name).is_some() {
            return Err(ApiError::unsupported(name, "leave it out"));
        }
    }
    // At these values they ask for what is done anyway.
    for (name, meant) in [
        ("normalize", json!(true)),
        ("embd_normalize", json!(2)),
        ("embed_dtype", json!("float32")),
    ] {
        if fields.get(name).is_some_and(|value| *value != meant) {
            let remedy = format!("leave it out, or use {meant}");
            return Err(ApiError::unsupported(name, &remedy));
        }
    }
    let dimensions = read_dimensions(fields)?;
    let encoding = match fields.text("encoding_format")? {
        None | Some("float") => Encoding::Float,
        Some("base64") => Encoding::Base64,
        Some(_) => return Err(fields.wrong("encoding_format", "float or base64")),
    };
    match fields.text("endianness")? {
        None | Some("native" | "little") => {}
        Some(_) => return Err(ApiError::unsupported("endianness", "leave it out, or use little")),
    }
    let range = i64::from(i32::MIN)..=i64::from(i32::MAX);
    let priority = fields.integer("priority", range)?.unwrap_or(0) as i32;
    let adds_bos = fields.boolean("add_special_tokens")?.unwrap_or(true);
    let prompts = read_prompts(fields, "input", TEXTS_MAX)?;
    Ok(Asked {
        inputs: Inputs { param: "input", prompts, adds_bos, cuts: false, dimensions },
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
