//! The dialect of Ollama: `/api/...`

mod context;
mod cut;
pub(crate) mod manage;
pub(crate) mod models;
mod options;
pub(crate) mod pull;
pub(crate) mod pulls;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response};
use serde::Serialize;
use serde_json::{Map, Value, json};
use trine_text::{Message, Specials, Tokenizer, ToolCall};

use context::Given;
use cut::{cut_between, words_between};

use crate::app::App;
use crate::body::{MODEL, receive};
use crate::calling::{CALLING, Calling, arguments};
use crate::clock::{rfc3339, unix_seconds};
use crate::conversation::{Conversation, Rendering};
use crate::error::{ApiError, Code, Dialect, shown};
use crate::fields::{FieldTable, Fields, Harmless, Rows, Unsupported, rows};
use crate::flow::{self, Prepared};
use crate::generate::{Ask, Ended, Piece, Reason, TokenText, Whole};
use crate::guard::random_id;
use crate::history;
use crate::messages::{Draft, Talk, check_count, role};
use crate::models::{KeepAlive, Lease, Unloaded};
use crate::openai::logprobs::List;
use crate::parameters::{
    CHAT_LOGPROBS, EVERYWHERE, ParameterFields, Penalties, SAMPLING, STOP, STOPS, TOKENS_MAX,
    UNLIMITED, read_chat_logprobs, read_stops,
};
use crate::parts;
use crate::pictures::{Pictured, Sent};
use crate::prompts::encode;
use crate::service_routes::json_response;
use crate::stream::{Writer, push_line};
use crate::structure::{self, Structure};
use crate::thinking::{self, Thinking};
use crate::warnings::note;

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

/// The roles of messages.
const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];

/// The text of a message that has none.
static EMPTY: Value = Value::String(String::new());

/// The endpoint that a request came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Chat,
    Generate,
}

/// `POST /api/chat`
pub(crate) async fn chat(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    handle(app, request, Way::Chat).await
}

/// `POST /api/generate`
pub(crate) async fn generate(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    handle(app, request, Way::Generate).await
}

async fn handle(
    app: Arc<App>,
    request: Request<Body>,
    way: Way,
) -> Result<Response<Body>, ApiError> {
    let started = Instant::now();
    let table = match way {
        Way::Chat => CHAT,
        Way::Generate => GENERATE,
    };
    let read = move |fields: Fields<'_>| read(fields, way, started);
    let received = receive(&app, request, table, read).await?;
    let named = app.models.find(received.model.as_deref()).await?;
    let Asked { keep, .. } = received.asked;
    if keep == Some(KeepAlive::For(Duration::ZERO)) && received.asked.turn.is_none() {
        let unloaded = app.models.unload(&named.base).await;
        tracing::debug!(is_gone = unloaded == Unloaded::Gone, "asked to unload the model");
        let lines = Lines::new(named.name, way, started);
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
struct Asked {
    parameters: ParameterFields,
    /// The text or conversation to continue; absent if the model is only to be loaded or unloaded.
    turn: Option<Turn>,
    streams: bool,
    keep: Option<KeepAlive>,
    /// The context that prompt and answer may have.
    context: Option<usize>,
    /// How many alternatives are told with the log-probability of each token, if it is told.
    logprobs: Option<usize>,
    way: Way,
    /// When the request came.
    started: Instant,
}

/// The text or conversation that an answer is written after.
enum Turn {
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

fn read(fields: Fields<'_>, way: Way, started: Instant) -> Result<Asked, ApiError> {
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
    let turn = match way {
        Way::Chat => read_chat(fields, truncates)?,
        Way::Generate => {
            let keeps = usize::try_from(keeps.unwrap_or(KEPT)).unwrap_or(usize::MAX);
            read_prompt(fields, truncates.then_some(keeps))?
        }
    };
    let logprobs = read_chat_logprobs(fields)?;
    Ok(Asked { parameters, turn, streams, keep, context, logprobs, way, started })
}

fn read_chat(fields: Fields<'_>, truncates: bool) -> Result<Option<Turn>, ApiError> {
    let calling = Calling::read(fields)?;
    let Some(messages) = fields.read(&ITEMS)?.filter(|messages| !messages.is_empty()) else {
        return Ok(None);
    };
    check_count("messages", messages.len())?;
    let mut open = OpenCalls::default();
    let drafts = messages.iter().enumerate();
    let drafts = drafts.map(|(index, item)| unfold(format!("messages[{index}]"), item, &mut open));
    let talk = Talk::of(drafts.collect::<Result<_, _>>()?)?;
    let conversation = Conversation::new(calling, talk, rendering(fields)?);
    Ok(Some(Turn::Chat(if truncates { conversation.shortening() } else { conversation })))
}

/// Reads how the prompt is made.
fn rendering(fields: Fields<'_>) -> Result<Rendering, ApiError> {
    Ok(Rendering { thinking: Thinking::of_ollama(fields)?, ..Rendering::default() })
}

fn read_prompt(fields: Fields<'_>, keeps: Option<usize>) -> Result<Option<Turn>, ApiError> {
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
    Ok(Some(Turn::Generate { system, prompt, context, pictures, is_raw, keeps, rendering }))
}

impl Pictured for Asked {
    fn context(&self) -> Option<usize> {
        self.context
    }

    fn pictures(&mut self) -> Option<&mut Sent> {
        match self.turn.as_mut()? {
            Turn::Chat(conversation) => conversation.pictures(),
            Turn::Generate { pictures, .. } => Some(pictures),
        }
    }

    fn check(&self, lease: &Lease) -> Result<(), ApiError> {
        match &self.turn {
            Some(Turn::Chat(conversation)) => conversation.check(&self.parameters, lease),
            // Its pictures are never only named.
            Some(Turn::Generate { .. }) | None => Ok(()),
        }
    }
}

impl flow::Asked for Asked {
    type Writer = Lines;

    fn prepare(self, lease: &Arc<Lease>) -> Result<Prepared<Lines>, ApiError> {
        let load = self.started.elapsed();
        let mut writer = Lines::new(Arc::clone(&lease.name), self.way, self.started);
        writer.load = load;
        writer.tokenizer = self.logprobs.map(|_| Arc::clone(&lease.tokenizer));
        let streams = self.streams;
        let gives = matches!(&self.turn, Some(Turn::Generate { is_raw: false, pictures, .. }) if pictures.is_empty());
        let ask = self.ask(lease)?;
        if let Some(ask) = ask.as_ref().filter(|_| gives) {
            writer.given = Given::new(&ask.request.prompt, &lease.tokenizer);
        }
        writer.prompt_tokens = ask.as_ref().map_or(0, |ask| ask.request.prompt.len());
        let asks = ask.into_iter().collect();
        Ok(Prepared { asks, streams, writer })
    }
}

impl Asked {
    /// Returns the text to be written, if there is one.
    fn ask(self, lease: &Lease) -> Result<Option<Ask>, ApiError> {
        let mut parameters = self.parameters.over(lease)?;
        let ids = match self.turn {
            None => return Ok(None),
            Some(Turn::Chat(conversation)) => conversation.prompt(&mut parameters, lease)?,
            Some(Turn::Generate {
                prompt, context, pictures, is_raw, keeps, rendering, ..
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
            Some(Turn::Generate {
                system, prompt, context, pictures, keeps, rendering, ..
            }) => {
                let ask = |prompt: String, pictures: Sent| {
                    let system = system.as_deref().map(|system| Message::new("system", system));
                    let asked = Message::new("user", pictures.before(prompt));
                    let messages = system.into_iter().chain([asked]).collect();
                    let talk = Talk { messages, pictures, ..Talk::default() };
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

/// Reads a message as Ollama would: roles are written in small letters, a text that is not there is
/// empty, and the template is given any role. The models here know no others than their own, so
/// others are the user's. Its images stand beside its text, and before it for the model.
///
/// # Errors
/// 400 for a message that is no object or has no role, and for images that are not a list.
fn unfold<'a>(path: String, item: &'a Value, open: &mut OpenCalls) -> Result<Draft<'a>, ApiError> {
    let field = format!("{path}.role");
    let mut draft = Draft::read(path, item, |name| {
        let small = name.to_lowercase();
        role(&small).filter(|_| ROLES.contains(&&*small)).or_else(|| {
            note(format!("{field} {} is taken as user", shown(name)));
            Some("user")
        })
    })?;
    open.follow(&mut draft);
    if draft.content.is_none() && !draft.extra.contains_key("tool_calls") {
        draft.content = Some(&EMPTY);
    }
    let path = format!("{}.images", draft.path);
    match &item["images"] {
        Value::Null => {}
        Value::Array(images) => {
            let images = images.iter().enumerate();
            let image = |(index, data)| (format!("{path}[{index}]"), parts::Given::Base64(data));
            draft.parts = images.map(image).collect();
        }
        _ => return Err(ApiError::field(&path, format!("{path} must be a list of images"))),
    }
    Ok(draft)
}

/// Calls without a result, in order, found by id and by function without looking at the others: a
/// client may send many.
#[derive(Default)]
struct OpenCalls {
    /// Id of each call, or `None` once it has its result.
    ids: Vec<Option<String>>,
    by_id: HashMap<String, VecDeque<usize>>,
    by_function: HashMap<String, VecDeque<usize>>,
    /// Number of calls at the beginning that all have their results.
    first: usize,
}

impl OpenCalls {
    /// Gives each call of a message an id, and a result the id of its call.
    ///
    /// Calls have no ids in answers of this dialect, so that clients make up ids for the results,
    /// or leave them out. A result belongs to the call that it names, to the first open call of the
    /// function that it names, or to the first open call.
    fn follow(&mut self, message: &mut Draft<'_>) {
        let extra = &mut message.extra;
        let calls = extra.get_mut("tool_calls").and_then(Value::as_array_mut);
        for call in calls.into_iter().flatten() {
            let name = call["function"]["name"].as_str().map(str::to_owned);
            if let Some(call) = call.as_object_mut() {
                let id = call.get("id").and_then(Value::as_str).map(str::to_owned);
                call.insert("id".to_owned(), self.add(id, name).into());
            }
        }
        if message.role != "tool" {
            return;
        }
        let named = extra.get("tool_call_id").and_then(Value::as_str);
        let function = extra.get("tool_name").or_else(|| extra.get("name"));
        match self.take(named, function) {
            Some(id) => drop(extra.insert("tool_call_id".to_owned(), id.into())),
            // It belongs to no open call: it stands for itself, under the name that it has.
            None => drop(extra.shift_remove("tool_call_id")),
        }
    }

    /// Adds a call; returns its id, made up if it has none.
    fn add(&mut self, id: Option<String>, function: Option<String>) -> String {
        let place = self.ids.len();
        let id = id.unwrap_or_else(|| format!("trine-{}", place + 1));
        self.ids.push(Some(id.clone()));
        self.by_id.entry(id.clone()).or_default().push_back(place);
        if let Some(function) = function {
            self.by_function.entry(function).or_default().push_back(place);
        }
        id
    }

    /// Returns the id of the call that a result belongs to, and closes that call.
    fn take(&mut self, named: Option<&str>, function: Option<&Value>) -> Option<String> {
        let ids = &mut self.ids;
        let mut next = |places: Option<&mut VecDeque<usize>>| {
            let places = places?;
            // Each place is looked at once: a call that is taken stays taken.
            std::iter::from_fn(|| places.pop_front()).find_map(|place| ids[place].take())
        };
        let found = named.and_then(|named| next(self.by_id.get_mut(named))).or_else(|| {
            let function = function.and_then(Value::as_str)?;
            next(self.by_function.get_mut(function))
        });
        if found.is_some() || function.is_some() {
            return found;
        }
        while self.first < self.ids.len() {
            self.first += 1;
            if let Some(id) = self.ids[self.first - 1].take() {
                return Some(id);
            }
        }
        None
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
    way: Way,
    prompt_tokens: usize,
    started: Instant,
    load: Duration,
    /// Spells tokens with their log-probabilities, if these are told.
    tokenizer: Option<Arc<Tokenizer>>,
    /// What the answer's `context` is made of, if it has one.
    given: Option<Given>,
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
    fn new(model: Arc<str>, way: Way, started: Instant) -> Self {
        let (load, tokenizer, given) = (Duration::ZERO, None, None);
        Self { model, way, prompt_tokens: 0, started, load, tokenizer, given }
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
        match self.way {
            Way::Chat => line["message"] = json!({"role": "assistant", "content": text}),
            Way::Generate => line["response"] = text.into(),
        }
        line["done"] = done.into();
        line
    }

    /// Adds thoughts to a line.
    fn thinking(&self, line: &mut Value, thoughts: String) {
        match self.way {
            Way::Chat => line["message"]["thinking"] = thoughts.into(),
            Way::Generate => line["thinking"] = thoughts.into(),
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the ids of the calls that the messages after the first one are results of.
    fn calls_of_results(messages: &[Value]) -> Vec<Option<Value>> {
        let mut open = OpenCalls::default();
        let read = |message| unfold(String::new(), message, &mut open).unwrap();
        let drafts: Vec<Draft<'_>> = messages.iter().map(read).collect();
        drafts[1..].iter().map(|draft| draft.extra.get("tool_call_id").cloned()).collect()
    }

    #[test]
    fn results_belong_to_calls() {
        let call = |id: Option<&str>, function: &str| match id {
            Some(id) => json!({"id": id, "function": {"name": function}}),
            None => json!({"function": {"name": function}}),
        };
        let result = |fields: Value| {
            let mut result = json!({"role": "tool", "content": "x"});
            result.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            result
        };
        let calls = [call(None, "a"), call(Some("own"), "b"), call(None, "a"), call(None, "c")];
        let messages = [
            json!({"role": "assistant", "tool_calls": calls}),
            result(json!({"tool_call_id": "own"})),
            result(json!({"tool_name": "c"})),
            result(json!({"tool_call_id": "unknown", "name": "a"})),
            result(json!({"tool_call_id": "unknown"})),
            result(json!({"tool_call_id": "own", "tool_name": "b"})),
            result(json!({})),
        ];
        let ids = ["own", "trine-4", "trine-1", "trine-3"].map(|id| Some(json!(id)));
        assert_eq!(calls_of_results(&messages), [&ids[..], &[None, None]].concat());
    }

    #[test]
    fn many_calls_cost_no_more_each_than_few() {
        let calls = vec![json!({}); 300_000];
        let result = json!({"role": "tool", "tool_call_id": "unknown", "tool_name": "f"});
        let mut messages = vec![json!({"role": "assistant", "tool_calls": calls})];
        messages.extend(vec![result; 100_000]);
        assert!(calls_of_results(&messages).iter().all(Option::is_none));
    }
}
