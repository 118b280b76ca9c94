//! Texts to token ids and back, and conversations to prompts, as llama.cpp's server has them.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response};
use serde_json::{Value, json};
use trine_text::{Specials, Tokenizer};

use crate::app::App;
use crate::calling::Calling;
use crate::conversation::{Rendering, prompt, read_messages, render};
use crate::error::ApiError;
use crate::json::Fields;
use crate::service_routes::json_response;

/// Longest answer of `/detokenize`, in token ids.
pub(crate) const IDS_MAX: usize = 1 << 20;

/// `POST /tokenize`: llama.cpp's `content`, or vLLM's `prompt` or `messages`.
pub(crate) async fn tokenize(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    let (object, lease) = app.open(request).await?;
    let work = move || {
        let fields = Fields::new(&object);
        let model = &*lease.model;
        let with_pieces = fields.boolean("with_pieces")?.unwrap_or(false);
        let (ids, is_vllm) = if fields.get("messages").is_some() {
            let messages =
                Calling::read(fields)?.conversation(read_messages(fields)?, &lease.preset)?;
            (prompt(model, messages, &Rendering::read(fields)?)?, true)
        } else if let Some(text) = fields.text("prompt")? {
            let adds = fields.boolean("add_special_tokens")?.unwrap_or(true);
            (encode(&model.tokenizer, text, adds, true)?, true)
        } else {
            let text = fields.text("content")?.ok_or_else(|| {
                ApiError::field("content", "give a text as content or prompt, or messages")
            })?;
            let adds = fields.boolean("add_special")?.unwrap_or(false);
            let parses = fields.boolean("parse_special")?.unwrap_or(true);
            (encode(&model.tokenizer, text, adds, parses)?, false)
        };
        let mut answer = json!({ "tokens": ids });
        if with_pieces {
            let piece = |id: &u32| json!({"id": id, "piece": piece(&model.tokenizer, *id)});
            answer["tokens"] = ids.iter().map(piece).collect();
        }
        if is_vllm {
            answer["count"] = ids.len().into();
            answer["max_model_len"] = model.service.limits().context.into();
            if fields.boolean("return_token_strs")?.unwrap_or(false) {
                let strings = ids.iter().map(|&id| model.tokenizer.piece(id).unwrap_or_default());
                answer["token_strs"] = strings.collect();
            }
        }
        Ok(json_response(&answer))
    };
    app.work(work).await
}

/// `POST /detokenize`
pub(crate) async fn detokenize(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    let (object, lease) = app.open(request).await?;
    let work = move || {
        let ids = Fields::new(&object).ids("tokens")?;
        let ids =
            ids.ok_or_else(|| ApiError::field("tokens", "tokens is missing; give token ids"))?;
        let vocabulary = lease.model.service.limits().vocabulary;
        if ids.len() > IDS_MAX || ids.iter().any(|&id| id as usize >= vocabulary) {
            let message = format!("use at most {IDS_MAX} token ids below {vocabulary}");
            return Err(ApiError::field("tokens", message));
        }
        let text = lease.model.tokenizer.decode(&ids, false);
        Ok(json_response(&json!({"content": text, "prompt": text})))
    };
    app.work(work).await
}

/// `POST /apply-template`: the prompt that a conversation becomes.
pub(crate) async fn apply_template(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    let (object, lease) = app.open(request).await?;
    let work = move || {
        let fields = Fields::new(&object);
        let messages =
            Calling::read(fields)?.conversation(read_messages(fields)?, &lease.preset)?;
        let text = render(&lease.model, messages, &Rendering::read(fields)?)?;
        Ok(json_response(&json!({"prompt": Tokenizer::unguard(&text)})))
    };
    app.work(work).await
}

fn encode(
    tokenizer: &Tokenizer,
    text: &str,
    adds_bos: bool,
    parses: bool,
) -> Result<Vec<u32>, ApiError> {
    let specials = if parses { Specials::Parse } else { Specials::AsText };
    Ok(match adds_bos {
        true => tokenizer.encode_prompt(text, specials)?,
        false => tokenizer.encode(text, specials)?,
    })
}

/// A token's text, or its bytes where they are no text.
fn piece(tokenizer: &Tokenizer, id: u32) -> Value {
    let bytes = tokenizer.token_bytes(id).unwrap_or_default();
    match std::str::from_utf8(&bytes) {
        Ok(text) => text.into(),
        Err(_) => bytes.to_vec().into(),
    }
}
