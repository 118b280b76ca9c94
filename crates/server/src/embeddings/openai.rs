//! `POST /v1/embeddings`

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use super::{Prompts, check_dimensions, embed, numbers, respond, shape};
use crate::app::App;
use crate::error::ApiError;
use crate::json::Fields;
use crate::models::LoadedModel;

/// Fields that would make another vector, of servers that have them.
pub(crate) const UNSUPPORTED: [&str; 5] =
    ["messages", "truncate_prompt_tokens", "input_type", "prompt_name", "instruction"];

/// How a vector is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Encoding {
    /// A list of numbers.
    Float,
    /// Its f32, little-endian, in Base64.
    Base64,
}

/// A request understood.
struct Asked {
    prompts: Vec<Vec<u32>>,
    encoding: Encoding,
    priority: i32,
}

/// Embeds texts.
pub(crate) async fn handle(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    let (object, lease) = app.open(request).await?;
    let reading = Arc::clone(&lease);
    let asked = app.work(move || read(&object, &reading.model)).await?;
    let vectors = embed(&app, &lease, asked.prompts, asked.priority).await?;
    let envelope = json!({
        "object": "list",
        "model": &*lease.name,
        "usage": {"prompt_tokens": vectors.tokens, "total_tokens": vectors.tokens},
    });
    Ok(respond(&envelope, "data", vectors, move |index, row| {
        let embedding = asked.encoding.write(row);
        format!("{{\"object\":\"embedding\",\"index\":{index},\"embedding\":{embedding}}}")
    }))
}

fn read(object: &Map<String, Value>, model: &LoadedModel) -> Result<Asked, ApiError> {
    let fields = Fields::new(object);
    let shape = shape(model)?;
    for name in UNSUPPORTED {
        if fields.get(name).is_some() {
            return Err(ApiError::unsupported(name, "leave it out"));
        }
    }
    // At these values they mean what is done anyway.
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
    check_dimensions(fields, shape)?;
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
    let prompts = Prompts::new(model, "input", adds_bos);
    let input = fields.get("input").ok_or_else(|| prompts.wrong("input is missing"))?;
    Ok(Asked { prompts: prompts.read(input)?, encoding, priority })
}

impl Encoding {
    /// A vector as JSON.
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
