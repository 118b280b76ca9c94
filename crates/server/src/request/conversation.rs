//! From messages to a prompt's token ids.

use std::ops::Range;

use serde_json::{Map, Value};
use trine_engine::{EngineError, PromptPicture};
use trine_text::{
    Content, MAX_PROMPT_BYTES, Message, PicturePrompt, RenderOptions, ReplyFormat, Tokenizer,
};

use crate::error::{ApiError, Code};
use crate::models::{Lease, Preset};
use crate::reply::generate::check_queue;
use crate::reply::warnings::note;
use crate::request::body::MODEL;
use crate::request::calling::{self, CALLING, Calling};
use crate::request::fields::{FieldTable, Fields, Rows, rows};
use crate::request::history::{LeftOuts, fill};
use crate::request::messages::{self, ChatInput, read_messages};
use crate::request::parameters::{ParameterFields, Parameters};
use crate::request::pictures::{Pictured, Sent};
use crate::request::prompts::{check_messages, cut, encode_conversation, tokens_least};
use crate::request::thinking::{
    self, ENABLE_THINKING, REASONING_EFFORT, Thinking, VARIABLES, unread,
};

/// The fields of a conversation in the form of OpenAI's chats, without a text after it.
pub(crate) const CONVERSATION: FieldTable = &[messages::MESSAGES, MODEL, CALLING, RENDERING];

/// The fields that say how a conversation becomes a prompt.
pub(crate) const RENDERING: Rows = Rows::All(&[ENDING, thinking::OF_CHATS]);

rows! {
    ENDING {
        /// Whether the prompt ends with the beginning of the answer. Absent: unless the last
        /// message is continued.
        BEGINS_ANSWER: bool = "add_generation_prompt";
        /// Whether the model goes on with the last message.
        CONTINUES_LAST: bool = "continue_final_message", or false;
    }
}

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
        let continues_last = fields.read_or(&CONTINUES_LAST)?;
        let begins_answer = fields.read(&BEGINS_ANSWER)?;
        if continues_last && begins_answer == Some(true) {
            return Err(ApiError::field(
                "continue_final_message",
                "continue_final_message and add_generation_prompt exclude each other; use one",
            ));
        }
        let mut variables = fields.read(&VARIABLES)?.cloned().unwrap_or_default();
        if let Some(effort) = fields.read(&REASONING_EFFORT)?.filter(|effort| !effort.is_empty()) {
            variables.entry("reasoning_effort").or_insert_with(|| effort.into());
        }
        if let Some(thinking) = fields.read(&ENABLE_THINKING)? {
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
    /// What the model is not shown.
    left_out: LeftOuts,
    rendering: Rendering,
    /// Whether its oldest messages may be left out.
    shortens: bool,
}

impl Pictured for Conversation {
    fn pictures(&mut self) -> Option<&mut Sent> {
        Some(&mut self.pictures)
    }
}

impl Conversation {
    /// Makes a conversation in which tools may be called.
    pub(crate) fn new(calling: Calling, talk: impl Into<ChatInput>, rendering: Rendering) -> Self {
        let ChatInput { messages, pictures, left_out } = talk.into();
        Self { calling, messages, pictures, left_out, rendering, shortens: false }
    }

    /// Puts the system's instructions, if there are any, before the conversation.
    pub(crate) fn after(mut self, instructions: Option<&str>) -> Self {
        if let Some(instructions) = instructions {
            self.messages.insert(0, Message::new("system", instructions));
        }
        self
    }

    /// Lets its oldest messages be left out if it is longer than the context, as Ollama does.
    pub(crate) fn shortening(self) -> Self {
        Self { shortens: true, ..self }
    }

    /// Reads a conversation in the form of OpenAI's chats.
    ///
    /// # Errors
    /// 400 naming the field that is wrong.
    pub(crate) fn read(fields: Fields<'_>) -> Result<Self, ApiError> {
        let (calling, talk) = (Calling::read(fields)?, read_messages(fields)?);
        Ok(Self::new(calling, talk, Rendering::read(fields)?))
    }

    /// Returns its text in the model's format, with the marks of [`Tokenizer::guard`], and one mark
    /// for each picture.
    ///
    /// # Errors
    /// 400 if the model has no template, or if the template refuses the conversation.
    pub(crate) fn text(mut self, lease: &Lease) -> Result<String, ApiError> {
        self.pictures.meet(lease.pictures.is_some());
        self.tell_missing();
        self.left_out.note();
        let (messages, rendering) = self.written(&*lease.format(), lease)?;
        render(lease, messages, &rendering)
    }

    /// Puts words in the places of pictures that are left out.
    fn tell_missing(&mut self) {
        let missing = self.pictures.missing();
        fill(&mut self.messages, &missing);
        missing.into_iter().flatten().for_each(|missing| self.left_out.add(missing));
        self.pictures.forget_missing();
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

    /// Puts words in the places of pictures that the model does not take, and returns the number of
    /// soft tokens of each of the others.
    ///
    /// # Errors
    /// 400 naming a picture of the newest turn that the model does not take.
    fn soft_tokens(&mut self, lease: &Lease) -> Result<Vec<usize>, ApiError> {
        self.pictures.meet(lease.pictures.is_some());
        let soft_tokens = match self.pictures.param() {
            Some(param) => {
                let pictures = lease.sees(param)?;
                self.pictures.soft_tokens(pictures, &lease.limits())?
            }
            None => Vec::new(),
        };
        self.tell_missing();
        Ok(soft_tokens)
    }

    /// Returns its token ids, to be counted or looked at, with [`SOFT`](trine_engine::SOFT) for
    /// each soft token of a picture.
    ///
    /// # Errors
    /// As [`Conversation::text`], and 400 for pictures that the model does not take.
    pub(crate) fn token_ids(mut self, lease: &Lease) -> Result<Vec<u32>, ApiError> {
        let format = lease.format();
        let write = |own: &mut Self, soft_tokens: &[usize]| {
            let (messages, rendering) = own.written(&*format, lease)?;
            cut(lease, &render(lease, messages, &rendering)?, soft_tokens)
        };
        let First { prompt, .. } = self.first(lease, write)?;
        self.left_out.note();
        Ok(prompt.ids)
    }

    /// Writes its prompt with the pictures that can be shown, as far as that is known before they
    /// are decoded. A template need not show those of results: earlier ones that it does not show
    /// are left out.
    ///
    /// # Errors
    /// The errors of `write`, which takes the messages.
    fn first(
        &mut self,
        lease: &Lease,
        write: impl Fn(&mut Self, &[usize]) -> Result<PicturePrompt, ApiError>,
    ) -> Result<First, ApiError> {
        let soft_tokens = self.soft_tokens(lease)?;
        let has_earlier = self.pictures.has_earlier();
        let again = (has_earlier || self.shortens).then(|| self.messages.clone());
        match (write(self, &soft_tokens), again) {
            (Err(error), Some(messages)) if error.code == Code::TemplateError && has_earlier => {
                self.messages = messages;
                self.pictures.leave_out_earlier("the model's template does not show it here");
                self.first(lease, write)
            }
            (Err(error), Some(messages))
                if error.code == Code::ContextLengthExceeded && self.shortens =>
            {
                self.shorten((messages, soft_tokens), lease, write, error)
            }
            (prompt, again) => Ok(First { prompt: prompt?, soft_tokens, again }),
        }
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
        let mut messages = self.messages.clone();
        fill(&mut messages, &self.pictures.missing());
        let messages = with_preset(&lease.preset, messages);
        let written = format.write(messages, &self.calling.offer()).map_err(calling::refused)?;
        if !self.shortens {
            check_messages(lease, &written.messages, 0)?;
        }
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
        let write =
            |own: &mut Self, soft_tokens: &[usize]| own.encoded(&*format, soft_tokens, lease);
        let First { mut prompt, mut soft_tokens, again } = self.first(lease, write)?;
        let texts = parameters.fields.n;
        check_queue(texts, texts * prompt.ids.len(), &lease.limits())?;
        let in_thought = format.opens_thought(&prompt.ids);
        self.calling.apply(parameters, &*format, lease, in_thought)?;
        parameters.thoughts = self.rendering.thinking.thoughts(&*format, in_thought);
        if let Some(param) = self.pictures.param() {
            let handles = self.pictures.handles(lease.sees(param)?, parameters.scope)?;
            // That a picture is damaged is known only now.
            if let Some(messages) = again.filter(|_| handles.iter().any(Option::is_none)) {
                let mut is_shown = handles.iter().map(Option::is_some);
                soft_tokens.retain(|_| is_shown.next().unwrap_or(true));
                self.messages = messages;
                self.tell_missing();
                prompt = self.encoded(&*format, &soft_tokens, lease)?;
            }
            let handles = handles.into_iter().flatten().zip(&prompt.starts);
            let pictures = handles.map(|(handle, &at)| PromptPicture { at, handle });
            parameters.pictures = pictures.collect();
        }
        self.left_out.note();
        Ok(prompt.ids)
    }

    /// Leaves out the fewest of the oldest messages with which the others fit, with their pictures,
    /// of which there are as many as `soft_tokens`. A turn is left out with its answer, calls and
    /// results; if the newest one is too long, its oldest calls with their results. System messages
    /// and the newest words of a person stay.
    ///
    /// # Errors
    /// `error` if what stays does not fit.
    fn shorten(
        &mut self,
        (whole, soft_tokens): (Vec<Message>, Vec<usize>),
        lease: &Lease,
        write: impl Fn(&mut Self, &[usize]) -> Result<PicturePrompt, ApiError>,
        error: ApiError,
    ) -> Result<First, ApiError> {
        let context = lease.limits().context;
        let cuts = cuts(&whole, |message| tokens_least(lease, message), context);
        let kept = |cut: &Cut| -> Vec<Message> {
            let messages = whole.iter().enumerate();
            let kept = messages.filter(|&(at, message)| cut.keeps(at, message));
            kept.map(|(_, message)| message.clone()).collect()
        };
        let shows = |cut: &Cut| -> Vec<bool> {
            let messages = whole.iter().enumerate();
            let of = |(at, message): (usize, &Message)| {
                std::iter::repeat_n(cut.keeps(at, message), message.content.pictures().count())
            };
            messages.flat_map(of).collect()
        };
        let soft_of = |cut: &Cut| -> Vec<usize> {
            let all = soft_tokens.iter().zip(shows(cut));
            all.filter_map(|(&soft, is_kept)| is_kept.then_some(soft)).collect()
        };
        // The fewer are left, the sooner they fit.
        let (mut best, mut range) = (None, 0..cuts.len());
        while !range.is_empty() {
            let middle = range.start + range.len() / 2;
            self.messages = kept(&cuts[middle]);
            match write(self, &soft_of(&cuts[middle])) {
                Ok(prompt) => {
                    best = Some((prompt, &cuts[middle]));
                    range.start = middle + 1;
                }
                Err(error) if error.code == Code::ContextLengthExceeded => range.end = middle,
                Err(error) => return Err(error),
            }
        }
        let (prompt, cut) = best.ok_or(error)?;
        let messages = kept(cut);
        note(format!(
            "the {} oldest messages were left out: the conversation is longer than the context of \
             {context} tokens",
            whole.len() - messages.len()
        ));
        self.pictures.keep(shows(cut));
        let again = self.pictures.has_earlier().then_some(messages);
        Ok(First { prompt, soft_tokens: soft_of(cut), again })
    }

    /// Returns its prompt; takes its messages.
    fn encoded(
        &mut self,
        format: &dyn ReplyFormat,
        soft_tokens: &[usize],
        lease: &Lease,
    ) -> Result<PicturePrompt, ApiError> {
        let (messages, rendering) = self.written(format, lease)?;
        check_messages(lease, &messages, soft_tokens.iter().sum())?;
        let text = render(lease, messages, &rendering)?;
        encode_conversation(lease, &text, soft_tokens)
    }
}

/// A conversation that was written.
struct First {
    prompt: PicturePrompt,
    /// The soft tokens of each picture.
    soft_tokens: Vec<usize>,
    /// The messages, if it may have to be written again without a picture of an earlier turn.
    again: Option<Vec<Message>>,
}

/// What is left of a conversation beside its system messages.
struct Cut {
    /// The words of a person with which the newest turn begins, if something after them is left
    /// out.
    asked: Range<usize>,
    /// The first message of the rest.
    first: usize,
}

impl Cut {
    fn keeps(&self, at: usize, message: &Message) -> bool {
        at >= self.first || self.asked.contains(&at) || message.role == "system"
    }
}

/// Returns the ways to shorten a conversation, those first that leave least, but for some that
/// cannot fit. `least` returns the fewest tokens of a message.
fn cuts(messages: &[Message], least: impl Fn(&Message) -> usize, context: usize) -> Vec<Cut> {
    let role = |at: usize| &*messages[at].role;
    // What follows a result belongs to it, and words of a person to those before them.
    let begins = |at: usize| {
        let is_later =
            at.checked_sub(1).is_some_and(|before| matches!(role(before), "user" | "tool"));
        role(at) == "user" && !is_later
    };
    let newest = (0..messages.len()).rev().find(|&at| begins(at)).unwrap_or(0);
    let answered = (newest..messages.len()).find(|&at| role(at) == "assistant");
    let asked = newest..answered.unwrap_or(newest);
    let mut cuts = Vec::new();
    let mut sum = 0;
    for (at, message) in messages.iter().enumerate().rev() {
        sum += least(message);
        if sum > context {
            break;
        }
        if at > asked.end && role(at) == "assistant" {
            cuts.push(Cut { asked: asked.clone(), first: at });
        } else if begins(at) {
            cuts.push(Cut { asked: 0..0, first: at });
        }
    }
    cuts
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
    if !model.limits().generates {
        return Err(EngineError::OnlyEmbeds.into());
    }
    let template = model.template().ok_or_else(|| {
        let message = "this is a base model: it continues text and was not trained to chat; choose \
            one with -it in its name, or use /v1/completions";
        ApiError { code: Code::NoChatTemplate, ..ApiError::field("model", message) }
    })?;
    let bytes: usize = messages.iter().map(|message| message.content.bytes()).sum();
    if bytes > MAX_PROMPT_BYTES {
        let message = format!(
            "the conversation has {bytes} bytes, more than the {MAX_PROMPT_BYTES} of the longest \
             prompt that is written for a model; shorten it"
        );
        return Err(ApiError {
            code: Code::ContextLengthExceeded,
            ..ApiError::field("messages", message)
        });
    }
    for name in unread(&rendering.variables, template) {
        note(format!(
            "chat_template_kwargs.{name} changes nothing: the model's template does not read it; \
             use enable_thinking"
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
