//! The dialect of Ollama: `/api/...`

mod context;
mod cut;
pub(crate) mod manage;
mod messages;
pub(crate) mod models;
mod options;
pub(crate) mod pull;
pub(crate) mod pulls;

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response};
use serde::Serialize;
use serde_json::{Map, Value, json};
use trine_text::{Message, Specials, Tokenizer, ToolCall};

use context::ContextInput;
use cut::{cut_between, words_between};
use messages::{OpenCalls, unfold};

use crate::clock::{rfc3339, unix_seconds};
use crate::dialects::openai::logprobs::List;
use crate::error::{ApiError, Code, Dialect};
use crate::flow::{self, Prepared};
use crate::models::{KeepAlive, Lease, Unloaded};
use crate::reply::generate::{Ask, Ended, Piece, Reason, TokenText, Whole};
use crate::reply::stream::{Writer, push_line};
use crate::request::body::{MODEL, receive};
use crate::request::calling::{CALLING, Calling, arguments};
use crate::request::conversation::{Conversation, Rendering};
use crate::request::fields::{FieldTable, Fields, Harmless, Rows, Unsupported, rows};
use crate::request::history;
use crate::request::messages::{ChatInput, check_count};
use crate::request::parameters::{
    CHAT_LOGPROBS, EVERYWHERE, ParameterFields, Penalties, SAMPLING, STOP, STOPS, TOKENS_MAX,
    UNLIMITED, read_chat_logprobs, read_stops,
};
use crate::request::pictures::{Pictured, Sent};
use crate::request::prompts::encode;
use crate::request::structure::{self, Structure};
use crate::request::thinking::{self, Thinking};
use crate::service::app::App;
use crate::service::guard::random_id;
use crate::service::service_routes::json_response;

/// Fields of the API that this server does not support.
pub(crate) const UNSUPPORTED: [Unsupported; 1] =
    [("template", Harmless::Off, "templates of requests are not run; the model's own is used")];

/// The fields of `/api/chat`.
pub(crate) const CHAT: FieldTable = &[BOTH, MESSAGES, CALLING];

/// The fields of `/api/generate`.
pub(crate) const GENERATE: FieldTable = &[BOTH, PROMPT];

/// The fields of chats and completions.
const BOTH: Rows = Rows::All(&[
    MODEL,
    STREAM,
    KEEP_ALIVE,
    OPTIONS,
    thinking::OLLAMA,
    structure::OLLAMA,
    TRUNCATE,
    thinking::REST_OF_OLLAMA,
    structure::OTHERS,
    CHAT_LOGPROBS,
    Rows::Refused(&UNSUPPORTED),
    EVERYWHERE,
]);

/// The fields of `options`.
pub(crate) const OPTION: FieldTable = &[SAMPLING, LENGTH, STOPS, ROOM];

rows! {
    /// The field of requests whose answers are streams unless they say otherwise.
    STREAM {
        /// Whether the answer is sent while it is written.
        STREAMS: bool = "stream", or true;
    }
    KEEP_ALIVE {
        /// How long the model stays loaded when nobody uses it: seconds, or a time such as `5m`; 0
        /// unloads it, and a negative one keeps it forever. Absent: as it is, and when it is
        /// loaded, what `--keep-alive` says.
        KEEPS_ALIVE: Value = "keep_alive", as keep_alive();
    }
    OPTIONS {
        OPTION_MAP: Map<String, Value> = "options", as schema("OllamaOptions");
    }
    TRUNCATE {
        /// Whether a conversation that is too long loses its oldest messages, and a raw prompt its
        /// middle.
        TRUNCATES: bool = "truncate", or true;
    }
    MESSAGES {
        /// Absent or empty: the model is only loaded.
        ITEMS: [Value] = "messages", as list(message(Some(images())));
    }
    PROMPT {
        /// Absent or empty, without `images`: the model is only loaded.
        PROMPT_TEXT: str = "prompt";
        /// Images in base64, which stand before the text.
        IMAGES: [Value] = "images", as list(text());
        /// The `context` of an earlier answer: what was said before the prompt. Not with `raw` or
        /// `images`.
        CONTEXT: [Value] = "context", as list(token_id());
        /// What stands before the prompt, unless it is raw.
        SYSTEM: str = "system";
        /// Whether the prompt goes to the model without a template.
        RAW: bool = "raw", or false;
    }
    LENGTH {
        /// Most tokens that are written. Absent, -1 and -2: until the context is full.
        NUM_PREDICT: i64 = "num_predict", in -2..=TOKENS_MAX as i64;
    }
    ROOM {
        /// Most tokens of prompt and answer together.
        NUM_CTX: usize = "num_ctx", in 0..=TOKENS_MAX;
        /// First tokens that a prompt keeps if it is cut.
        NUM_KEEP: i64 = "num_keep", in -1..=TOKENS_MAX as i64;
    }
}

/// The first tokens of a prompt that are kept if it is cut (`num_keep` in Ollama's `api/types.go`).
const KEPT: i64 = 4;

/// The endpoint that a request came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Endpoint {
    Chat,
    Generate,
}

/// `POST /api/chat`
pub(crate) async fn chat(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    handle(app, request, Endpoint::Chat).await
}

/// `POST /api/generate`
pub(crate) async fn generate(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    handle(app, request, Endpoint::Generate).await
}

async fn handle(
    app: Arc<App>,
    request: Request<Body>,
    endpoint: Endpoint,
) -> Result<Response<Body>, ApiError> {
    let started = Instant::now();
    let table = match endpoint {
        Endpoint::Chat => CHAT,
        Endpoint::Generate => GENERATE,
    };
    let read = move |fields: Fields<'_>| read(fields, endpoint, started);
    let received = receive(&app, request, table, read).await?;
    let named = app.models.find(received.model.as_deref()).await?;
    let OllamaRequest { keep, .. } = received.asked;
    if keep == Some(KeepAlive::For(Duration::ZERO)) && received.asked.prompt.is_none() {
        let unloaded = app.models.unload(&named.base).await;
        tracing::debug!(is_gone = unloaded == Unloaded::Gone, "asked to unload the model");
        let lines = Lines::new(named.name, endpoint, started);
        return Ok(json_response(&lines.without_text("unload")));
    }
    flow::answer_named(&app, received, &named, keep).await
}

/// Reads how long the model stays loaded after the request, if the request says so.
///
/// # Errors
/// 400 for a value that is not a time.
pub(crate) fn read_keep_alive(fields: Fields<'_>) -> Result<Option<KeepAlive>, ApiError> {
    let Some(value) = fields.get(&KEEPS_ALIVE) else { return Ok(None) };
    let expected = "a time such as \"5m\", a number of seconds, 0, or -1 forever";
    let keep = KeepAlive::of_value(value);
    keep.map(Some).ok_or_else(|| fields.wrong("keep_alive", expected))
}

/// What a request asks for.
struct OllamaRequest {
    parameters: ParameterFields,
    /// The text or conversation to continue; absent if the model is only to be loaded or unloaded.
    prompt: Option<OllamaPrompt>,
    streams: bool,
    keep: Option<KeepAlive>,
    /// The context that prompt and answer may have.
    context: Option<usize>,
    /// How many alternatives are told with the log-probability of each token, if it is told.
    logprobs: Option<usize>,
    endpoint: Endpoint,
    /// When the request came.
    started: Instant,
}

/// The text or conversation that an answer is written after.
enum OllamaPrompt {
    Chat(Conversation),
    Generate {
        system: Option<String>,
        prompt: String,
        /// Token ids of earlier prompts and answers.
        context: Vec<u32>,
        pictures: Sent,
        /// Whether the text is used without the model's format around it.
        is_raw: bool,
        /// How many of its first tokens are kept if it is too long and the rest is cut from its
        /// beginning on; `None` if it may not be cut.
        keeps: Option<usize>,
        rendering: Rendering,
    },
}

fn read(
    fields: Fields<'_>,
    endpoint: Endpoint,
    started: Instant,
) -> Result<OllamaRequest, ApiError> {
    let streams = fields.read_or(&STREAMS)?;
    let keep = read_keep_alive(fields)?;
    fields.refuse(&UNSUPPORTED)?;
    let mut parameters = ParameterFields::begin(fields)?;
    let truncates = fields.read_or(&TRUNCATES)?;
    let (mut context, mut keeps) = (None, None);
    if let Some(options) = fields.read(&OPTION_MAP)? {
        let options = options::readable(options);
        let options = Fields::within(&options, "options.", OPTION);
        read_options(options, &mut parameters)?;
        context = options.read(&NUM_CTX)?.filter(|context| *context > 0);
        keeps = options.read(&NUM_KEEP)?;
    }
    parameters.structure = Structure::of_ollama(fields)?;
    let prompt = match endpoint {
        Endpoint::Chat => read_chat(fields, truncates)?,
        Endpoint::Generate => {
            let keeps = usize::try_from(keeps.unwrap_or(KEPT)).unwrap_or(usize::MAX);
            read_prompt(fields, truncates.then_some(keeps))?
        }
    };
    let logprobs = read_chat_logprobs(fields)?;
    Ok(OllamaRequest { parameters, prompt, streams, keep, context, logprobs, endpoint, started })
}

fn read_chat(fields: Fields<'_>, truncates: bool) -> Result<Option<OllamaPrompt>, ApiError> {
    let calling = Calling::read(fields)?;
    let Some(messages) = fields.read(&ITEMS)?.filter(|messages| !messages.is_empty()) else {
        return Ok(None);
    };
    check_count("messages", messages.len())?;
    let mut open = OpenCalls::default();
    let drafts = messages.iter().enumerate();
    let drafts = drafts.map(|(index, item)| unfold(format!("messages[{index}]"), item, &mut open));
    let talk = ChatInput::of(drafts.collect::<Result<_, _>>()?)?;
    let conversation = Conversation::new(calling, talk, rendering(fields)?);
    Ok(Some(OllamaPrompt::Chat(if truncates { conversation.shortening() } else { conversation })))
}

/// Reads how the prompt is made.
fn rendering(fields: Fields<'_>) -> Result<Rendering, ApiError> {
    Ok(Rendering { thinking: Thinking::of_ollama(fields)?, ..Rendering::default() })
}

fn read_prompt(fields: Fields<'_>, keeps: Option<usize>) -> Result<Option<OllamaPrompt>, ApiError> {
    let is_raw = fields.read_or(&RAW)?;
    let system = fields.read(&SYSTEM)?.filter(|system| !system.is_empty());
    let mut pictures = Sent::default();
    for (index, image) in fields.read(&IMAGES)?.unwrap_or_default().iter().enumerate() {
        let path = format!("images[{index}]");
        if !image.is_string() {
            return Err(ApiError::field(&path, format!("{path} must be an image in base64")));
        }
        pictures.read_base64(image, &path, history::Turn::Newest, "")?;
    }
    if is_raw && !pictures.is_empty() {
        return Err(ApiError::unsupported("images", "leave out raw, or use /api/chat"));
    }
    let context = fields.ids(&CONTEXT)?.unwrap_or_default();
    if !context.is_empty() && (is_raw || !pictures.is_empty()) {
        let remedy = "it goes with neither raw nor images; use /api/chat";
        return Err(ApiError::unsupported("context", remedy));
    }
    let prompt = fields.read(&PROMPT_TEXT)?.unwrap_or_default();
    if prompt.is_empty() && pictures.is_empty() {
        return Ok(None);
    }
    let (system, prompt) = (system.map(str::to_owned), prompt.to_owned());
    let rendering = rendering(fields)?;
    Ok(Some(OllamaPrompt::Generate { system, prompt, context, pictures, is_raw, keeps, rendering }))
}

impl Pictured for OllamaRequest {
    fn context(&self) -> Option<usize> {
        self.context
    }

    fn pictures(&mut self) -> Option<&mut Sent> {
        match self.prompt.as_mut()? {
            OllamaPrompt::Chat(conversation) => conversation.pictures(),
            OllamaPrompt::Generate { pictures, .. } => Some(pictures),
        }
    }

    fn check(&self, lease: &Lease) -> Result<(), ApiError> {
        match &self.prompt {
            Some(OllamaPrompt::Chat(conversation)) => conversation.check(&self.parameters, lease),
            // Its pictures are never only named.
            Some(OllamaPrompt::Generate { .. }) | None => Ok(()),
        }
    }
}

impl flow::Asked for OllamaRequest {
    type Writer = Lines;

    fn prepare(self, lease: &Arc<Lease>) -> Result<Prepared<Lines>, ApiError> {
        let load = self.started.elapsed();
        let mut writer = Lines::new(Arc::clone(&lease.name), self.endpoint, self.started);
        writer.load = load;
        writer.tokenizer = self.logprobs.map(|_| Arc::clone(&lease.tokenizer));
        let streams = self.streams;
        let gives = matches!(
            &self.prompt,
            Some(OllamaPrompt::Generate { is_raw: false, pictures, .. }) if pictures.is_empty()
        );
        let ask = self.ask(lease)?;
        if let Some(ask) = ask.as_ref().filter(|_| gives) {
            writer.given = ContextInput::new(&ask.request.prompt, &lease.tokenizer);
        }
        writer.prompt_tokens = ask.as_ref().map_or(0, |ask| ask.request.prompt.len());
        let asks = ask.into_iter().collect();
        Ok(Prepared { asks, streams, writer })
    }
}

impl OllamaRequest {
    /// Returns the text to be written, if there is one.
    fn ask(self, lease: &Lease) -> Result<Option<Ask>, ApiError> {
        let mut parameters = self.parameters.over(lease)?;
        let ids = match self.prompt {
            None => return Ok(None),
            Some(OllamaPrompt::Chat(conversation)) => {
                conversation.prompt(&mut parameters, lease)?
            }
            Some(OllamaPrompt::Generate {
                prompt,
                context,
                pictures,
                is_raw,
                keeps,
                rendering,
                ..
            }) if is_raw || (lease.template().is_none() && pictures.is_empty()) => {
                rendering.thinking.check_raw()?;
                lease.check_room()?;
                let ids = match keeps {
                    Some(keeps) => cut_between(lease, &prompt, keeps, parameters.max_tokens)?,
                    None => encode(lease, &prompt, Specials::Parse)?,
                };
                let ids = context::after(context, ids, keeps.is_some(), lease)?;
                parameters.compile(lease)?;
                return Ok(Some(parameters.ask(ids, self.logprobs, lease)));
            }
            Some(OllamaPrompt::Generate {
                system,
                prompt,
                context,
                pictures,
                keeps,
                rendering,
                ..
            }) => {
                let ask = |prompt: String, pictures: Sent| {
                    let system = system.as_deref().map(|system| Message::new("system", system));
                    let asked = Message::new("user", pictures.before(prompt));
                    let messages = system.into_iter().chain([asked]).collect();
                    let talk = ChatInput { messages, pictures, ..ChatInput::default() };
                    Conversation::new(Calling::default(), talk, rendering.clone())
                };
                let words = keeps.filter(|_| pictures.is_empty()).zip(Some(prompt.clone()));
                let ids = match (ask(prompt, pictures).prompt(&mut parameters, lease), words) {
                    (Err(error), Some((keeps, words)))
                        if error.code == Code::ContextLengthExceeded =>
                    {
                        let frame = ask(String::new(), Sent::default()).token_ids(lease)?.len();
                        let words =
                            words_between(lease, &words, keeps, frame, parameters.max_tokens)?;
                        ask(words, Sent::default()).prompt(&mut parameters, lease)?
                    }
                    (ids, _) => ids?,
                };
                context::after(context, ids, keeps.is_some(), lease)?
            }
        };
        Ok(Some(parameters.ask(ids, self.logprobs, lease)))
    }
}

fn read_options(options: Fields<'_>, parameters: &mut ParameterFields) -> Result<(), ApiError> {
    parameters.read_sampling(options, Penalties::OfWindow)?;
    // -1 and -2 are Ollama's spellings of "until the end".
    let most = options.read(&NUM_PREDICT)?;
    parameters.max_tokens = most.map(|most| usize::try_from(most).unwrap_or(UNLIMITED));
    parameters.stops = read_stops(options, &STOP)?;
    Ok(())
}

/// Writes lines of JSON.
struct Lines {
    model: Arc<str>,
    endpoint: Endpoint,
    prompt_tokens: usize,
    started: Instant,
    load: Duration,
    /// Spells tokens with their log-probabilities, if these are told.
    tokenizer: Option<Arc<Tokenizer>>,
    /// What the answer's `context` is made of, if it has one.
    given: Option<ContextInput>,
}

/// A line, and the log-probabilities and token ids in it.
#[derive(Serialize)]
struct Line<'a> {
    #[serde(flatten)]
    line: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<List<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    context: Option<Vec<u32>>,
}

impl Lines {
    fn new(model: Arc<str>, endpoint: Endpoint, started: Instant) -> Self {
        let (load, tokenizer, given) = (Duration::ZERO, None, None);
        Self { model, endpoint, prompt_tokens: 0, started, load, tokenizer, given }
    }

    /// Returns a line with the log-probabilities of tokens, if they are told.
    fn with_logprobs<'a>(&'a self, line: Value, tokens: &'a [TokenText]) -> Line<'a> {
        let tokenizer = self.tokenizer.as_deref().filter(|_| !tokens.is_empty());
        let logprobs = tokenizer.map(|tokenizer| List { tokenizer, tokens });
        Line { line, logprobs, context: None }
    }

    /// Returns the `context` of an answer that ends with a text.
    fn context(&self, rest: &str) -> Option<Vec<u32>> {
        self.given.as_ref().and_then(|given| given.ids(rest))
    }

    /// Returns the answer to a request that asks for no text.
    fn without_text(&self, reason: &str) -> Value {
        let mut line = self.line("", true);
        line["done_reason"] = reason.into();
        line
    }

    fn line(&self, text: &str, done: bool) -> Value {
        let mut line = json!({"model": &*self.model, "created_at": rfc3339(unix_seconds())});
        match self.endpoint {
            Endpoint::Chat => line["message"] = json!({"role": "assistant", "content": text}),
            Endpoint::Generate => line["response"] = text.into(),
        }
        line["done"] = done.into();
        line
    }

    /// Adds thoughts to a line.
    fn thinking(&self, line: &mut Value, thoughts: String) {
        match self.endpoint {
            Endpoint::Chat => line["message"]["thinking"] = thoughts.into(),
            Endpoint::Generate => line["thinking"] = thoughts.into(),
        }
    }

    fn last(&self, text: &str, ended: &Ended) -> Value {
        let mut line = self.line(text, true);
        let nanoseconds = |seconds: f64| (seconds * 1e9) as u64;
        let reason = if ended.reason == Reason::Length { "length" } else { "stop" };
        line["done_reason"] = reason.into();
        line["total_duration"] = nanoseconds(self.started.elapsed().as_secs_f64()).into();
        line["load_duration"] = nanoseconds(self.load.as_secs_f64()).into();
        line["prompt_eval_count"] = self.prompt_tokens.into();
        line["prompt_eval_duration"] = nanoseconds(ended.prefill_seconds).into();
        line["eval_count"] = ended.generated.into();
        line["eval_duration"] = nanoseconds(ended.decode_seconds).into();
        line
    }
}

/// Returns a call in Ollama's form: arguments are JSON there.
fn written(call: &ToolCall) -> Value {
    let function = json!({"index": call.index, "name": call.name, "arguments": arguments(call)});
    json!({"id": random_id("call_"), "function": function})
}

impl Writer for Lines {
    const MEDIA_TYPE: &'static str = "application/x-ndjson";

    fn whole<'a>(&'a self, texts: &'a [Whole]) -> impl Serialize {
        let Some(whole) = texts.first() else {
            return self.with_logprobs(self.without_text("load"), &[]);
        };
        let mut line = self.last(&whole.text(), &whole.ended);
        if let Some(thoughts) = whole.thoughts() {
            self.thinking(&mut line, thoughts);
        }
        let calls: Vec<Value> = whole.calls().map(written).collect();
        if !calls.is_empty() {
            line["message"]["tool_calls"] = calls.into();
        }
        let context = self.context(&whole.text());
        Line { context, ..self.with_logprobs(line, &whole.tokens) }
    }

    fn piece(&mut self, _index: usize, piece: Piece, out: &mut Vec<u8>) {
        match piece {
            Piece::Text { text, tokens, .. } => {
                if let Some(given) = &mut self.given {
                    given.add(&text);
                }
                push_line(out, &self.with_logprobs(self.line(&text, false), &tokens));
            }
            Piece::End(ended) => {
                let context = self.context("");
                let line = self.last("", &ended);
                push_line(out, &Line { context, ..self.with_logprobs(line, &[]) });
            }
            Piece::Thought { text, .. } => {
                let mut line = self.line("", false);
                self.thinking(&mut line, text);
                push_line(out, &line);
            }
            Piece::Call(call) => {
                let mut line = self.line("", false);
                line["message"]["tool_calls"] = json!([written(&call)]);
                push_line(out, &line);
            }
            Piece::Prompt(_) | Piece::Failed(_) => {}
        }
    }

    fn fail(&mut self, error: &ApiError, dialect: Dialect, out: &mut Vec<u8>) {
        push_line(out, &error.body(dialect));
    }

    /// Writes nothing: lines of JSON have no form that readers skip.
    fn keep_alive(&mut self, _out: &mut Vec<u8>) {}
}
