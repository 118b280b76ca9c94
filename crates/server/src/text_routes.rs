//! From texts to token ids and back, and from conversations to prompts, as in llama.cpp's server.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response};
use serde_json::{Value, json};
use trine_engine::SOFT;
use trine_text::{PictureForm, Specials, Tokenizer};

use crate::app::App;
use crate::conversation::Conversation;
use crate::error::ApiError;
use crate::json::Fields;
use crate::models::Lease;
use crate::open::{Sees, open};
use crate::pictures::{Pictured, Sent};
use crate::service_routes::json_response;

/// Longest answer of `/detokenize`, in token ids.
pub(crate) const IDS_MAX: usize = 1 << 20;

/// The input of `/tokenize`.
enum Given {
    Conversation(Box<Conversation>),
    Text { text: String, adds_bos: bool, specials: Specials },
}

impl Pictured for Given {
    fn pictures(&mut self) -> Option<&mut Sent> {
        match self {
            Self::Conversation(conversation) => conversation.pictures(),
            Self::Text { .. } => None,
        }
    }
}

/// How `/tokenize` answers.
struct Form {
    /// Whether the answer has the text of each token, as in llama.cpp.
    with_pieces: bool,
    /// Whether the answer has vLLM's additional fields.
    is_vllm: bool,
    /// Whether the answer has the name of each token, as in vLLM.
    with_names: bool,
}

/// `POST /tokenize`: llama.cpp's `content`, or vLLM's `prompt` or `messages`.
pub(crate) async fn tokenize(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    let (answer, _) = open(&app, request, Sees::Sizes, read_tokenize, tokenized).await?;
    Ok(json_response(&answer))
}

fn read_tokenize(fields: Fields<'_>) -> Result<(Given, Form), ApiError> {
    let text = |text: &str, adds_bos: Option<bool>, parses: bool| Given::Text {
        text: text.to_owned(),
        adds_bos: adds_bos.unwrap_or(false),
        specials: if parses { Specials::Parse } else { Specials::AsText },
    };
    let with_pieces = fields.boolean("with_pieces")?.unwrap_or(false);
    let is_vllm = fields.get("messages").is_some() || fields.get("prompt").is_some();
    let given = if fields.get("messages").is_some() {
        Given::Conversation(Box::new(Conversation::read(fields)?))
    } else if let Some(prompt) = fields.text("prompt")? {
        let adds = fields.boolean("add_special_tokens")?.unwrap_or(true);
        text(prompt, Some(adds), true)
    } else {
        let content = fields.text("content")?.ok_or_else(|| {
            ApiError::field("content", "give a text as content or prompt, or messages")
        })?;
        let parses = fields.boolean("parse_special")?.unwrap_or(true);
        text(content, fields.boolean("add_special")?, parses)
    };
    let with_names = is_vllm && fields.boolean("return_token_strs")?.unwrap_or(false);
    Ok((given, Form { with_pieces, is_vllm, with_names }))
}

fn tokenized((given, form): (Given, Form), lease: &Arc<Lease>) -> Result<Value, ApiError> {
    let tokenizer = &*lease.tokenizer;
    let soft = PictureForm::of(tokenizer).and_then(|form| form.soft_id(tokenizer));
    let soft = soft.unwrap_or(tokenizer.vocabulary_size() as u32);
    let ids = match given {
        Given::Conversation(conversation) => {
            let ids = conversation.token_ids(lease)?.into_iter();
            ids.map(|id| if id == SOFT { soft } else { id }).collect()
        }
        Given::Text { text, adds_bos: true, specials } => {
            tokenizer.encode_prompt(&text, specials)?
        }
        Given::Text { text, adds_bos: false, specials } => tokenizer.encode(&text, specials)?,
    };
    let mut answer = json!({ "tokens": ids });
    if form.with_pieces {
        let piece = |id: &u32| json!({"id": id, "piece": piece(tokenizer, *id)});
        answer["tokens"] = ids.iter().map(piece).collect();
    }
    if form.is_vllm {
        answer["count"] = ids.len().into();
        answer["max_model_len"] = lease.limits().context.into();
    }
    if form.with_names {
        let names = ids.iter().map(|&id| tokenizer.piece(id).unwrap_or_default());
        answer["token_strs"] = names.collect();
    }
    Ok(answer)
}

/// The input of `/detokenize`.
struct Ids(Vec<u32>);

impl Pictured for Ids {}

/// `POST /detokenize`
pub(crate) async fn detokenize(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    let read = |fields: Fields<'_>| {
        let ids = fields.ids("tokens")?;
        let ids =
            ids.ok_or_else(|| ApiError::field("tokens", "tokens is missing; give token ids"))?;
        if ids.len() > IDS_MAX {
            return Err(ApiError::field("tokens", format!("use at most {IDS_MAX} token ids")));
        }
        Ok(Ids(ids))
    };
    let decode = |Ids(ids): Ids, lease: &Arc<Lease>| {
        let vocabulary = lease.limits().vocabulary;
        if ids.iter().any(|&id| id as usize >= vocabulary) {
            return Err(ApiError::field("tokens", format!("use token ids below {vocabulary}")));
        }
        Ok(lease.tokenizer.decode(&ids, false))
    };
    let (text, _) = open(&app, request, Sees::Sizes, read, decode).await?;
    Ok(json_response(&json!({"content": text, "prompt": text})))
}

/// `POST /apply-template`: the prompt that a conversation becomes.
pub(crate) async fn apply_template(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    let render = |conversation: Conversation, lease: &Arc<Lease>| {
        let text = conversation.text(lease)?;
        Ok(json_response(&json!({"prompt": Tokenizer::unguard(&text)})))
    };
    Ok(open(&app, request, Sees::Places, Conversation::read, render).await?.0)
}

/// Returns a token's text, or its bytes if they are not text.
fn piece(tokenizer: &Tokenizer, id: u32) -> Value {
    let bytes = tokenizer.token_bytes(id).unwrap_or_default();
    match std::str::from_utf8(&bytes) {
        Ok(text) => text.into(),
        Err(_) => bytes.to_vec().into(),
    }
}
