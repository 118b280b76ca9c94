//! From messages to a prompt's token ids.

use serde_json::{Map, Value};
use trine_text::{
    Content, MAX_PROMPT_BYTES, Message, Part, RenderOptions, ReplyFormat, Tokenizer, Tools,
};

use crate::calling::{self, Calling};
use crate::error::{ApiError, Code, shown};
use crate::generate::check_queue;
use crate::json::Fields;
use crate::models::{Lease, Preset};
use crate::parameters::{ParameterFields, Parameters};
use crate::pictures::{Pictured, Sent};
use crate::places::Places;
use crate::prompts::{check_messages, cut, encode_conversation};
use crate::thinking::{Thinking, unread};
use crate::warnings::note;

/// Most messages in a conversation.
pub(crate) const MESSAGES_MAX: usize = 1 << 14;

/// How a conversation becomes a prompt.
#[derive(Debug, Clone)]
pub(crate) struct Rendering {
    /// Whether the prompt ends with the beginning of the model's turn.
    pub(crate) begins_answer: bool,
    /// Whether the model continues the last message.
    pub(crate) continues_last: bool,
    /// Further variables for the template.
    pub(crate) variables: Map<String, Value>,
    /// Whether the model thinks before it answers.
    pub(crate) thinking: Thinking,
}

impl Default for Rendering {
    fn default() -> Self {
        Self {
            begins_answer: true,
            continues_last: false,
            variables: Map::new(),
            thinking: Thinking::default(),
        }
    }
}

impl Rendering {
    /// Reads what a request says.
    pub(crate) fn read(fields: Fields<'_>) -> Result<Self, ApiError> {
        let continues_last = fields.boolean("continue_final_message")?.unwrap_or(false);
        let begins_answer = fields.boolean("add_generation_prompt")?;
        if continues_last && begins_answer == Some(true) {
            return Err(ApiError::field(
                "continue_final_message",
                "continue_final_message and add_generation_prompt exclude each other; use one",
            ));
        }
        let mut variables = fields.object("chat_template_kwargs")?.cloned().unwrap_or_default();
        if let Some(effort) = fields.text("reasoning_effort")? {
            variables.entry("reasoning_effort").or_insert_with(|| effort.into());
        }
        if let Some(thinking) = fields.boolean("enable_thinking")? {
            variables.entry("enable_thinking").or_insert_with(|| thinking.into());
        }
        let begins_answer = begins_answer.unwrap_or(!continues_last);
        let thinking = Thinking::read(fields)?;
        Ok(Self { begins_answer, continues_last, variables, thinking })
    }
}

/// A conversation of a request. Nothing in it needs the model.
#[derive(Debug)]
pub(crate) struct Conversation {
    calling: Calling,
    /// The messages, with calls and results in OpenAI's form.
    messages: Vec<Message>,
    /// The pictures of their parts.
    pictures: Sent,
    rendering: Rendering,
}

/// Messages and the pictures of their parts, in order.
#[derive(Debug, Default)]
pub(crate) struct Talk {
    pub(crate) messages: Vec<Message>,
    pub(crate) pictures: Sent,
}

impl From<Vec<Message>> for Talk {
    fn from(messages: Vec<Message>) -> Self {
        Self { messages, pictures: Sent::default() }
    }
}

impl Pictured for Conversation {
    fn pictures(&mut self) -> Option<&mut Sent> {
        Some(&mut self.pictures)
    }
}

impl Conversation {
    /// Makes a conversation in which tools may be called.
    ///
    /// # Errors
    /// 400 naming the message with a call or result of a wrong shape.
    pub(crate) fn new(
        calling: Calling,
        talk: impl Into<Talk>,
        rendering: Rendering,
    ) -> Result<Self, ApiError> {
        let Talk { messages, pictures } = talk.into();
        Tools::check_calls(&messages).map_err(calling::refused)?;
        Ok(Self { calling, messages, pictures, rendering })
    }

    /// Puts the system's instructions, if there are any, before the conversation.
    pub(crate) fn after(mut self, instructions: Option<&str>) -> Self {
        if let Some(instructions) = instructions {
            self.messages.insert(0, Message::new("system", instructions));
        }
        self
    }

    /// Names fields by their places in the request.
    pub(crate) fn placed(mut self, places: &Places) -> Self {
        self.pictures.place(|field| places.of(field));
        self
    }

    /// Reads a conversation in the form of OpenAI's chats.
    ///
    /// # Errors
    /// 400 naming the field that is wrong.
    pub(crate) fn read(fields: Fields<'_>) -> Result<Self, ApiError> {
        Self::new(Calling::read(fields)?, read_messages(fields)?, Rendering::read(fields)?)
    }

    /// Returns its text in the model's format, with the marks of [`Tokenizer::guard`], and one mark
    /// for each picture.
    ///
    /// # Errors
    /// 400 if the model has no template, or if the template refuses the conversation.
    pub(crate) fn text(mut self, lease: &Lease) -> Result<String, ApiError> {
        let (messages, rendering) = self.written(&*lease.format(), lease)?;
        render(lease, messages, &rendering)
    }

    /// Returns the messages as the model's format has them, with the preset of the model's name and
    /// with the tools, and how they are rendered.
    fn written(
        &mut self,
        format: &dyn ReplyFormat,
        lease: &Lease,
    ) -> Result<(Vec<Message>, Rendering), ApiError> {
        let messages = with_preset(&lease.preset, std::mem::take(&mut self.messages));
        let written = format.write(messages, &self.calling.offer()).map_err(calling::refused)?;
        written.left_out.into_iter().for_each(note);
        let mut rendering = self.rendering.clone();
        rendering.thinking.tell(format, &mut rendering.variables)?;
        rendering.variables.extend(written.variables);
        Ok((written.messages, rendering))
    }

    /// Returns the number of soft tokens of each picture.
    ///
    /// # Errors
    /// 400 naming a picture that the model does not take.
    fn soft_tokens(&self, lease: &Lease) -> Result<Vec<usize>, ApiError> {
        match self.pictures.param() {
            Some(param) => self.pictures.soft_tokens(lease.sees(param)?, &lease.limits()),
            None => Ok(Vec::new()),
        }
    }

    /// Returns its token ids, to be counted or looked at, with [`SOFT`](trine_engine::SOFT) for
    /// each soft token of a picture.
    ///
    /// # Errors
    /// As [`Conversation::text`], and 400 for pictures that the model does not take.
    pub(crate) fn token_ids(self, lease: &Lease) -> Result<Vec<u32>, ApiError> {
        let soft_tokens = self.soft_tokens(lease)?;
        let text = self.text(lease)?;
        Ok(cut(lease, &text, &soft_tokens)?.ids)
    }

    /// Checks what needs no picture, before pictures are fetched for it.
    ///
    /// # Errors
    /// Some of those of [`Conversation::prompt`]: if the words are longer than the context in any
    /// case, and for grammars and schemas that cannot be used.
    pub(crate) fn check(&self, fields: &ParameterFields, lease: &Lease) -> Result<(), ApiError> {
        if let Some(param) = self.pictures.param() {
            lease.sees(param)?;
        }
        lease.check_room()?;
        let format = lease.format();
        let messages = with_preset(&lease.preset, self.messages.clone());
        let written = format.write(messages, &self.calling.offer()).map_err(calling::refused)?;
        check_messages(lease, &written.messages, 0)?;
        let structure = fields.structure.as_ref();
        structure.map(|structure| structure.compile(lease)).transpose()?;
        self.calling.grammar(structure, &*format, lease).map(drop)
    }

    /// Returns its token ids as the prompt of texts, and writes its pictures and the form that the
    /// texts must have, with calls of the tools, into their parameters.
    ///
    /// # Errors
    /// As [`Conversation::token_ids`], if the prompt is longer than the context or finds no place,
    /// for grammars and schemas that cannot be used, and for pictures that cannot be decoded.
    pub(crate) fn prompt(
        mut self,
        parameters: &mut Parameters,
        lease: &Lease,
    ) -> Result<Vec<u32>, ApiError> {
        lease.check_room()?;
        let format = lease.format();
        let soft_tokens = self.soft_tokens(lease)?;
        let (messages, rendering) = self.written(&*format, lease)?;
        check_messages(lease, &messages, soft_tokens.iter().sum())?;
        let text = render(lease, messages, &rendering)?;
        let prompt = encode_conversation(lease, &text, &soft_tokens)?;
        let texts = parameters.fields.n;
        check_queue(texts, texts * prompt.ids.len(), &lease.limits())?;
        let in_thought = format.opens_thought(&prompt.ids);
        self.calling.apply(parameters, &*format, lease, in_thought)?;
        parameters.thoughts = self.rendering.thinking.thoughts(&*format, in_thought);
        if let Some(param) = self.pictures.param() {
            let pictures = lease.sees(param)?;
            let sights = self.pictures.sights(pictures, &prompt.starts, parameters.scope)?;
            parameters.pictures = sights.into();
        }
        Ok(prompt.ids)
    }
}

/// Reads the messages of a field.
///
/// # Errors
/// 400 naming the invalid message.
pub(crate) fn read_messages(fields: Fields<'_>) -> Result<Talk, ApiError> {
    let items = fields.list("messages")?.ok_or_else(|| {
        ApiError::field("messages", "messages is missing; use a list of messages")
    })?;
    check_count(items)?;
    let mut pictures = Sent::default();
    let read = |(index, item): (usize, &Value)| read_message(index, item, &mut pictures);
    let messages = items.iter().enumerate().map(read).collect::<Result<Vec<Message>, _>>()?;
    Ok(Talk { messages, pictures })
}

/// Refuses a list of messages by its length.
///
/// # Errors
/// 400 if there are none or too many.
pub(crate) fn check_count(messages: &[Value]) -> Result<(), ApiError> {
    if (1..=MESSAGES_MAX).contains(&messages.len()) {
        return Ok(());
    }
    let message = format!("there are {} messages; use 1 to {MESSAGES_MAX}", messages.len());
    Err(ApiError::field("messages", message))
}

/// The fields of a message with what the model thought before it, in several dialects.
const THOUGHTS: [&str; 3] = ["reasoning_content", "reasoning", "thinking"];

fn is_text_or_absent(value: Option<&Value>) -> bool {
    value.is_none_or(|value| value.is_null() || value.is_string())
}

fn read_message(index: usize, item: &Value, pictures: &mut Sent) -> Result<Message, ApiError> {
    let prefix = format!("messages[{index}].");
    let Value::Object(map) = item else {
        let path = format!("messages[{index}]");
        return Err(ApiError::field(&path, format!("{path} must be an object")));
    };
    let fields = Fields::within(map, &prefix);
    let role = match fields.text("role")? {
        Some("developer") => "system",
        Some(role @ ("system" | "user" | "assistant" | "tool" | "model")) => role,
        _ => return Err(fields.wrong("role", "system, developer, user, assistant or tool")),
    };
    let content = match fields.get("content") {
        Some(Value::String(text)) => Content::Text(text.clone()),
        Some(Value::Array(parts)) => Content::Parts(read_parts(fields, role, parts, pictures)?),
        None if map.get("tool_calls").is_some_and(|calls| !calls.is_null()) => Content::Absent(()),
        _ => return Err(fields.wrong("content", "a text, or a list of parts")),
    };
    if let Some(name) = THOUGHTS.iter().find(|name| !is_text_or_absent(map.get(**name))) {
        let path = fields.path(name);
        return Err(ApiError::field(&path, format!("{path} must be a text")));
    }
    let is_read = |key: &str| matches!(key, "role" | "content");
    let extra = map.iter().filter(|(key, value)| !is_read(key) && !value.is_null());
    let extra = extra.map(|(key, value)| (key.clone(), value.clone())).collect();
    Ok(Message { role: role.to_owned(), content, extra })
}

/// Reads the parts of a message; `pictures` takes the pictures among them.
fn read_parts(
    fields: Fields<'_>,
    role: &str,
    parts: &[Value],
    pictures: &mut Sent,
) -> Result<Vec<Part>, ApiError> {
    let path = fields.path("content");
    let mut read = |(index, part): (usize, &Value)| {
        let wrong = |what: &str| {
            let path = format!("{path}[{index}]");
            ApiError::field(&path, format!("{path} {what}"))
        };
        let kind = part.get("type").and_then(Value::as_str);
        match kind {
            Some("text" | "input_text" | "output_text") => {
                let text = part.get("text").and_then(Value::as_str);
                let text = text.ok_or_else(|| wrong("has no text"))?;
                Ok(Part::text(text))
            }
            Some("input_audio" | "video_url" | "file" | "input_file" | "document") => {
                Err(wrong("is neither text nor a picture; this server takes nothing else"))
            }
            // Templates read other messages as one text.
            Some("image_url" | "input_image" | "image") if !matches!(role, "user" | "tool") => {
                let role = shown(role);
                Err(wrong(&format!(
                    "is a picture in a message of the role {role}; put it into one of the user"
                )))
            }
            _ => pictures.read(part, &format!("{path}[{index}]"))?.ok_or_else(|| {
                wrong("must be a text or a picture, an object whose type says which")
            }),
        }
    };
    parts.iter().enumerate().map(&mut read).collect()
}

/// Puts the turns of a preset before those of a conversation, and its system prompt if the
/// conversation has none.
fn with_preset(preset: &Preset, mut messages: Vec<Message>) -> Vec<Message> {
    let is_system = |message: &Message| message.role == "system";
    let first = messages.iter().position(|message| !is_system(message)).unwrap_or(messages.len());
    let turns =
        preset.messages.iter().map(|(role, text)| Message::new(role.as_str(), text.as_str()));
    messages.splice(first..first, turns);
    if let Some(system) = &preset.system
        && !messages.iter().any(is_system)
    {
        messages.insert(0, Message::new("system", system.as_str()));
    }
    messages
}

/// Returns the text of a conversation in the model's format.
fn render(
    model: &Lease,
    messages: Vec<Message>,
    rendering: &Rendering,
) -> Result<String, ApiError> {
    let template = model.template().ok_or_else(|| {
        let message = "the model has no chat template; use /v1/completions";
        ApiError { code: Code::NoChatTemplate, ..ApiError::field("model", message) }
    })?;
    let bytes: usize = messages.iter().map(|message| message.content.bytes()).sum();
    if bytes > MAX_PROMPT_BYTES {
        let message = format!(
            "the conversation has {bytes} bytes, more than the {MAX_PROMPT_BYTES} of the longest prompt that is written for a \
             model; shorten it"
        );
        return Err(ApiError {
            code: Code::ContextLengthExceeded,
            ..ApiError::field("messages", message)
        });
    }
    for name in unread(&rendering.variables, template) {
        note(format!(
            "chat_template_kwargs.{name} changes nothing: the model's template does not read it; use enable_thinking"
        ));
    }
    let tokenizer = &*model.tokenizer;
    let messages = template.arranged(messages).into_iter();
    let mut messages: Vec<Message> = messages.map(|message| message.guarded(tokenizer)).collect();
    if rendering.continues_last {
        mark_last(&mut messages)?;
    }
    let options = RenderOptions {
        add_generation_prompt: rendering.begins_answer,
        bos_token: tokenizer.bos_text().into_owned(),
        eos_token: tokenizer.eos_text().into_owned(),
        extra: guarded(&rendering.variables, tokenizer),
        clock: None,
    };
    let mut text = template.render(&messages, &options)?;
    if rendering.continues_last {
        let place = text
            .rfind(MARK)
            .ok_or_else(|| wrong_to_continue("the template does not show the last message"))?;
        text.truncate(place);
    }
    Ok(model.format().mended(text, rendering.begins_answer))
}

/// Returns a request's variables with the marks of the tokenizer's guard: they are as little
/// trusted as its messages. Their names stay as they are: the template checks them.
fn guarded(variables: &Map<String, Value>, tokenizer: &Tokenizer) -> Map<String, Value> {
    let guard = |value: &Value| {
        let extra = Map::from_iter([("value".to_owned(), value.clone())]);
        let message = Message { extra, ..Message::default() }.guarded(tokenizer);
        message.extra.into_iter().next().map_or(Value::Null, |(_, value)| value)
    };
    variables.iter().map(|(name, value)| (name.clone(), guard(value))).collect()
}

/// Stands after the text that is to be continued while the template runs; everything that the
/// template writes after it is cut off. A search for the text itself could find another place, as
/// `end` is also found in `<end_of_turn>`. The mark is made of characters from Unicode's private
/// use area; a message that contains it stands before the place that counts.
const MARK: &str = "\u{F8F0}end of what is continued\u{F8F1}";

fn mark_last(messages: &mut [Message]) -> Result<(), ApiError> {
    let last = messages.last_mut().filter(|last| matches!(&*last.role, "assistant" | "model"));
    let last = last.ok_or_else(|| wrong_to_continue("the last message must be the assistant's"))?;
    // The text to be continued must be found in the prompt: one text instead of parts.
    let mut content = last.content.text();
    content.truncate(content.trim_end().len());
    if content.is_empty() {
        return Err(wrong_to_continue("the last message is empty"));
    }
    content.push_str(MARK);
    last.content = Content::Text(content);
    Ok(())
}

fn wrong_to_continue(what: &str) -> ApiError {
    ApiError::field("continue_final_message", what)
}
