//! From texts to token ids and back, and from conversations to prompts, as in llama.cpp's server.

use std::collections::HashMap;
use std::io::Write;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response};
use serde_json::{Value, json};
use tokio::sync::OwnedSemaphorePermit;
use trine_engine::SOFT;
use trine_text::{Encoder, PictureForm, StreamDecoder, Tokenizer};

use crate::error::ApiError;
use crate::models::Lease;
use crate::reply::written::{AnswerSource, push_inner, push_text, written};
use crate::request::body::MODEL;
use crate::request::calling::CALLING;
use crate::request::conversation::{CONVERSATION, Conversation, RENDERING};
use crate::request::fields::{FieldTable, Fields, rows};
use crate::request::open::{Sees, open};
use crate::request::pictures::{Pictured, Sent};
use crate::service::app::App;
use crate::service::service_routes::json_response;
use crate::service::workers::Weight;

/// Longest answer of `/detokenize`, in token ids.
pub(crate) const IDS_MAX: usize = 1 << 20;

/// Ids of which the answer is made at once.
const IDS_BATCH: usize = 1 << 12;

/// The fields of `/tokenize`.
pub(crate) const TOKENIZE: FieldTable = &[MODEL, TEXTS, MESSAGES, CALLING, RENDERING];

rows! {
    TEXTS {
        /// llama.cpp's: the text.
        CONTENT: str = "content";
        /// vLLM's: the text.
        PROMPT: str = "prompt";
        /// Whether each token comes with its text.
        WITH_PIECES: bool = "with_pieces", or false;
        /// Of `content`: whether it begins with `<bos>`.
        ADD_SPECIAL: bool = "add_special", or false;
        /// Of `content`: whether control tokens in it are ones.
        PARSE_SPECIAL: bool = "parse_special", or true;
        /// Of `prompt`: whether it begins with `<bos>`.
        ADD_SPECIAL_TOKENS: bool = "add_special_tokens", or true;
        /// vLLM's: whether `token_strs` is answered.
        RETURN_NAMES: bool = "return_token_strs", or false;
    }
    MESSAGES {
        /// vLLM's: a conversation, which goes before the texts.
        ITEMS: [Value] = "messages", as list_of(schema("Message"), 1, MESSAGES_MAX);
    }
}

/// The fields of `/detokenize`.
pub(crate) const DETOKENIZE: FieldTable = &[IDS, MODEL];

rows! {
    IDS {
        TOKENS! [Value] = "tokens", as token_ids();
    }
}

/// The input of `/tokenize`.
enum TokenizeInput {
    Conversation(Box<Conversation>),
    Text { text: String, adds_bos: bool, parses: bool },
}

impl Pictured for TokenizeInput {
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
    let answers = Arc::clone(&app);
    let begin = move |asked, lease: &Arc<Lease>| tokens(&answers, asked, lease);
    let ((tokens, weight, room), lease) =
        open(&app, request, Sees::Sizes, TOKENIZE, read_tokenize, begin).await?;
    written(&app, (lease.visitor.client, weight), tokens, room).await
}

fn read_tokenize(fields: Fields<'_>) -> Result<(TokenizeInput, Form), ApiError> {
    let text = |text: &str, adds_bos: bool, parses: bool| TokenizeInput::Text {
        text: text.to_owned(),
        adds_bos,
        parses,
    };
    let with_pieces = fields.read_or(&WITH_PIECES)?;
    let is_vllm = fields.get(&ITEMS).is_some() || fields.get(&PROMPT).is_some();
    let given = if fields.get(&ITEMS).is_some() {
        TokenizeInput::Conversation(Box::new(Conversation::read(fields)?))
    } else if let Some(prompt) = fields.read(&PROMPT)? {
        text(prompt, fields.read_or(&ADD_SPECIAL_TOKENS)?, true)
    } else {
        let content = fields.read(&CONTENT)?.ok_or_else(|| {
            ApiError::field("content", "give a text as content or prompt, or messages")
        })?;
        let parses = fields.read_or(&PARSE_SPECIAL)?;
        text(content, fields.read_or(&ADD_SPECIAL)?, parses)
    };
    let with_names = is_vllm && fields.read_or(&RETURN_NAMES)?;
    Ok((given, Form { with_pieces, is_vllm, with_names }))
}

/// What to do about a text for which there is never room.
const SHORTER: &str = "send a shorter text";

/// Returns what writes the answer, the weight of that work, and the room for what it holds.
fn tokens(
    app: &App,
    (given, form): (TokenizeInput, Form),
    lease: &Arc<Lease>,
) -> Result<(Tokens, Weight, OwnedSemaphorePermit), ApiError> {
    let (ids, held) = match given {
        TokenizeInput::Conversation(conversation) => {
            let tokenizer = &*lease.tokenizer;
            let soft = PictureForm::of(tokenizer).and_then(|form| form.soft_id(tokenizer));
            let soft = soft.unwrap_or(tokenizer.vocabulary_size() as u32);
            let ids = conversation.token_ids(lease)?.into_iter();
            let ids: Vec<u32> = ids.map(|id| if id == SOFT { soft } else { id }).collect();
            let held = size_of_val(&*ids);
            (Ids::Whole { ids, place: 0 }, held)
        }
        TokenizeInput::Text { text, adds_bos, parses } => {
            let held = text.len();
            let tokenizer = Arc::clone(&lease.tokenizer);
            let encoder = Encoder::new(tokenizer, text, parses, adds_bos)?;
            (Ids::Of(Box::new(encoder)), held)
        }
    };
    let room = app.answers.take(held, SHORTER)?;
    let tokens = Tokens {
        lease: Arc::clone(lease),
        ids,
        form,
        part: AnswerPart::Beginning,
        count: 0,
        batch: Vec::new(),
        spelled: HashMap::new(),
    };
    Ok((tokens, Weight::of(held), room))
}

/// Token ids, some after the other, twice if need be.
enum Ids {
    Whole { ids: Vec<u32>, place: usize },
    Of(Box<Encoder>),
}

impl Ids {
    /// Adds the next ids. Returns false after the last ones.
    fn more(&mut self, batch: &mut Vec<u32>) -> bool {
        match self {
            Self::Of(encoder) => encoder.more(batch),
            Self::Whole { ids, place } => {
                let rest = &ids[*place..];
                let next = &rest[..rest.len().min(IDS_BATCH)];
                batch.extend_from_slice(next);
                *place += next.len();
                *place < ids.len()
            }
        }
    }

    fn rewind(&mut self) {
        match self {
            Self::Of(encoder) => encoder.rewind(),
            Self::Whole { place, .. } => *place = 0,
        }
    }
}

/// Writes the answer of `/tokenize`.
struct Tokens {
    lease: Arc<Lease>,
    ids: Ids,
    form: Form,
    part: AnswerPart,
    /// Number of ids.
    count: usize,
    batch: Vec<u32>,
    /// What is written of each id, as far as it is known: there may be millions of one.
    spelled: HashMap<u32, Box<[u8]>>,
}

/// The part of the answer that is written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AnswerPart {
    Beginning,
    Tokens,
    Names,
}

impl AnswerSource for Tokens {
    fn more(&mut self, out: &mut Vec<u8>) -> bool {
        if self.part == AnswerPart::Beginning {
            out.extend_from_slice(b"{\"tokens\":[");
            self.part = AnswerPart::Tokens;
        }
        self.batch.clear();
        let goes_on = self.ids.more(&mut self.batch);
        let tokenizer = &self.lease.tokenizer;
        for &id in &self.batch {
            if self.count > 0 {
                out.push(b',');
            }
            self.count += 1;
            let spell = || match self.part {
                AnswerPart::Names => {
                    let mut name = Vec::new();
                    push_text(&mut name, &tokenizer.piece(id).unwrap_or_default());
                    name
                }
                _ if self.form.with_pieces => piece(tokenizer, id),
                _ => id.to_string().into_bytes(),
            };
            out.extend_from_slice(
                self.spelled.entry(id).or_insert_with(|| spell().into_boxed_slice()),
            );
        }
        if goes_on {
            return true;
        }
        out.push(b']');
        let count = std::mem::take(&mut self.count);
        if self.part == AnswerPart::Tokens && self.form.is_vllm {
            let context = self.lease.limits().context;
            push(out, format_args!(",\"count\":{count},\"max_model_len\":{context}"));
        }
        if self.part == AnswerPart::Tokens && self.form.with_names {
            out.extend_from_slice(b",\"token_strs\":[");
            self.part = AnswerPart::Names;
            self.ids.rewind();
            self.spelled.clear();
            return true;
        }
        out.push(b'}');
        false
    }
}

fn push(out: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    out.write_fmt(text).expect("memory takes what is written");
}

/// The input of `/detokenize`.
struct DetokenizeInput(Vec<u32>);

impl Pictured for DetokenizeInput {}

/// `POST /detokenize`
pub(crate) async fn detokenize(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    let read = |fields: Fields<'_>| {
        let ids = fields.ids(&TOKENS)?;
        let ids =
            ids.ok_or_else(|| ApiError::field("tokens", "tokens is missing; give token ids"))?;
        if ids.len() > IDS_MAX {
            return Err(ApiError::field("tokens", format!("use at most {IDS_MAX} token ids")));
        }
        Ok(DetokenizeInput(ids))
    };
    let answers = Arc::clone(&app);
    let begin = move |DetokenizeInput(ids): DetokenizeInput, lease: &Arc<Lease>| {
        let vocabulary = lease.limits().vocabulary;
        if ids.iter().any(|&id| id as usize >= vocabulary) {
            return Err(ApiError::field("tokens", format!("use token ids below {vocabulary}")));
        }
        let (held, room) = (ids.len() * 4, answers.answers.take(size_of_val(&*ids), SHORTER)?);
        let decoder = StreamDecoder::new(Arc::clone(&lease.tokenizer), false);
        Ok((Text { ids, place: 0, is_second: false, decoder }, Weight::of(held), room))
    };
    let ((text, weight, room), lease) =
        open(&app, request, Sees::Sizes, DETOKENIZE, read, begin).await?;
    written(&app, (lease.visitor.client, weight), text, room).await
}

/// Writes the answer of `/detokenize`: the text twice, under llama.cpp's name and under vLLM's.
struct Text {
    ids: Vec<u32>,
    place: usize,
    is_second: bool,
    decoder: StreamDecoder,
}

impl AnswerSource for Text {
    fn more(&mut self, out: &mut Vec<u8>) -> bool {
        if self.place == 0 {
            let begin: &[u8] = if self.is_second { b",\"prompt\":\"" } else { b"{\"content\":\"" };
            out.extend_from_slice(begin);
        }
        let rest = &self.ids[self.place..];
        let batch = &rest[..rest.len().min(IDS_BATCH)];
        for &id in batch {
            push_inner(out, self.decoder.push(id));
        }
        self.place += batch.len();
        if self.place < self.ids.len() {
            return true;
        }
        push_inner(out, self.decoder.finish());
        out.push(b'"');
        self.place = 0;
        if std::mem::replace(&mut self.is_second, true) {
            out.push(b'}');
            return false;
        }
        true
    }
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
    let read = Conversation::read;
    Ok(open(&app, request, Sees::Places, CONVERSATION, read, render).await?.0)
}

/// Returns an entry of `tokens` with the token's text, or with its bytes if they are not text.
fn piece(tokenizer: &Tokenizer, id: u32) -> Vec<u8> {
    let bytes = tokenizer.token_bytes(id).unwrap_or_default();
    let piece = match std::str::from_utf8(&bytes) {
        Ok(text) => json!({"id": id, "piece": text}),
        Err(_) => json!({"id": id, "piece": bytes}),
    };
    piece.to_string().into_bytes()
}
