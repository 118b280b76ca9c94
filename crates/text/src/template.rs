//! Chat templates: turn a conversation into the text of a prompt.
//!
//! Templates come with model files and are untrusted programs. They run in an environment that
//! holds only what [`library`] lists, with limits on source, steps, recursion, work, memory and
//! output ([`limits`]), on a thread of their own whose stack fits the deepest nesting that these
//! limits allow.

mod clock;
mod known;
mod library;
mod limits;
mod message;
mod operators;
mod program;
mod trials;
mod turns;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use minijinja::machinery::{eval, make_string_output};
use minijinja::{AutoEscape, Environment};
use serde_json::{Map, Value};

pub use clock::CalendarTime;
pub use limits::MAX_OUTPUT_BYTES as MAX_PROMPT_BYTES;
pub use message::{Content, Message, Part};
pub use program::MAX_SOURCE_BYTES as MAX_TEMPLATE_BYTES;
pub(crate) use trials::{ResultsIn, Trials};

use crate::error::TextError;
use known::Known;
use limits::{MAX_OUTPUT_BYTES, Purpose, RenderBudget, render_error};
use turns::Ways;

/// The stack of a rendering thread. Only touched pages take memory. The deepest use is dropping as
/// many lists in one another as [`limits`] allows.
const STACK_BYTES: usize = 256 << 20;

/// Gemma 3's turn format, equal to the template that its checkpoints carry.
const GEMMA: &str = include_str!("template/gemma.jinja");

/// Gemma 4's format of turns, tools and thoughts, written from its facts. The larger models get
/// [`EMPTY_CHANNEL`] before it.
const GEMMA4: &str = include_str!("template/gemma4.jinja");

/// What the larger models of Gemma 4 are given at the beginning of an answer without thoughts.
const EMPTY_CHANNEL: &str = "{%- set empty_channel = '<|channel>thought\n<channel|>' -%}\n";

/// Names that a template finds defined already, which `extra` must not replace.
const RESERVED: [&str; 16] = [
    "messages",
    "add_generation_prompt",
    "bos_token",
    "eos_token",
    "chat_template",
    "tokenize",
    "raise_exception",
    "strftime_now",
    "range",
    "namespace",
    "dict",
    "loop",
    "self",
    "super",
    "caller",
    "return_dict",
];

/// A chat template in Jinja, as it comes with a model.
#[derive(Debug, Clone)]
pub struct ChatTemplate {
    known: Arc<Known>,
}

/// The values that a template gets in addition to the messages.
#[derive(Debug, Clone)]
pub struct RenderOptions {
    /// Whether to end with the beginning of the model's turn.
    pub add_generation_prompt: bool,
    /// The text of the beginning-of-sequence token.
    pub bos_token: String,
    /// The text of the end-of-sequence token.
    pub eos_token: String,
    /// Further variables (`tools`, `enable_thinking`, ...). A name that the template finds defined
    /// already is refused.
    pub extra: Map<String, Value>,
    /// The time for `strftime_now`, which is undefined without it.
    pub clock: Option<CalendarTime>,
}

impl Default for RenderOptions {
    fn default() -> Self {
        Self {
            add_generation_prompt: true,
            bos_token: "<bos>".to_owned(),
            eos_token: "<eos>".to_owned(),
            extra: Map::new(),
            clock: None,
        }
    }
}

impl PartialEq for ChatTemplate {
    fn eq(&self, other: &Self) -> bool {
        self.known.source == other.known.source
    }
}

impl ChatTemplate {
    /// Checks and stores a template.
    ///
    /// # Errors
    /// [`TextError::Template`] with the line of a syntax error or of a construct that is not
    /// supported; [`TextError::TemplateLimit`] for a template that is too long or nested too
    /// deeply.
    pub fn new(source: impl Into<Arc<str>>) -> Result<Self, TextError> {
        let source = source.into();
        if let Some(known) = Known::again(&source) {
            return Ok(Self { known });
        }
        on_deep_stack(|| program::compile(&source).map(drop))?;
        Ok(Self::of(source))
    }

    fn of(source: Arc<str>) -> Self {
        Self { known: Known::of(source) }
    }

    /// Returns what it does with tools and thoughts.
    pub(crate) fn trials(&self) -> &Trials {
        self.known.trials.get_or_init(|| {
            Trials::of(|messages, extra| {
                let options = RenderOptions { extra, ..RenderOptions::default() };
                self.tried(messages, &options)
            })
        })
    }

    /// Returns whether it can be told to have the model think before it answers. For a model that
    /// is not loaded, whose vocabulary is not known.
    pub fn thinks(&self) -> bool {
        self.trials().thinks()
    }

    /// Returns Gemma 3's turn format, for models that come without a template.
    pub fn gemma() -> Self {
        Self::of(GEMMA.into())
    }

    /// Returns Gemma 4's format of turns, tools and thoughts, for models that come without a
    /// template. `is_large` says whether the model is one of those that are given an empty channel
    /// to answer without thinking: all but E2B and E4B.
    pub fn gemma4(is_large: bool) -> Self {
        let source = if is_large { format!("{EMPTY_CHANNEL}{GEMMA4}") } else { GEMMA4.to_owned() };
        Self::of(source.into())
    }

    /// Returns whether a source is in Jinja, not in Go's template language as Ollama's templates
    /// are: both write values in `{{`, but only Jinja has statements in `{%`.
    pub fn is_jinja(source: &str) -> bool {
        source.contains("{%")
    }

    /// Returns the template's source.
    pub fn source(&self) -> &str {
        &self.known.source
    }

    /// Returns the names of the variables that it reads. Its own are among them: whether one is set
    /// before it is read can depend on the conversation.
    ///
    /// # Errors
    /// As [`ChatTemplate::new`].
    pub fn variables(&self) -> Result<BTreeSet<String>, TextError> {
        on_deep_stack(|| Ok(program::variables(&program::compile(self.source())?)))
    }

    /// Arranges a conversation of any shape in turns that this template takes.
    ///
    /// Adjacent messages of one role become one message. A system message goes where the template
    /// has a place for it, which is found by trying; if there is none, it goes into the user's
    /// turn. If the template wants a turn of the user first, an empty one is added. No message's
    /// text is left out.
    pub fn arranged(&self, messages: Vec<Message>) -> Vec<Message> {
        let options = RenderOptions::default();
        let render = |messages: &[Message]| self.tried(messages, &options);
        self.known.ways.get_or_init(|| Ways::of(render, &options.bos_token)).arrange(messages)
    }

    /// Renders the prompt for a conversation, whose turns the template must take
    /// ([`ChatTemplate::arranged`]).
    ///
    /// To keep control tokens out of untrusted text, pass messages that went through
    /// [`Message::guarded`] and encode the prompt with [`crate::Specials::ParseGuarded`].
    ///
    /// # Errors
    /// [`TextError::TemplateRefused`] with the template's own words if it calls `raise_exception`;
    /// [`TextError::TemplateArgument`] for a reserved name in `extra`; [`TextError::TemplateLimit`]
    /// if it wants more than a prompt may cost; [`TextError::Template`] for any other failure.
    pub fn render(
        &self,
        messages: &[Message],
        options: &RenderOptions,
    ) -> Result<String, TextError> {
        check_extra(&options.extra)?;
        on_deep_stack(|| render(self.source(), messages, options, Purpose::Prompt))
    }

    /// Renders a short conversation to see what the template does; `None` if it refuses it or takes
    /// too long.
    fn tried(&self, messages: &[Message], options: &RenderOptions) -> Option<String> {
        on_deep_stack(|| render(self.source(), messages, options, Purpose::Trial)).ok()
    }
}

fn check_extra(extra: &Map<String, Value>) -> Result<(), TextError> {
    for name in extra.keys() {
        let mut characters = name.chars();
        let identifier = characters
            .next()
            .is_some_and(|first| first.is_ascii_alphabetic() || first == '_')
            && characters.all(|character| character.is_ascii_alphanumeric() || character == '_');
        let problem = if RESERVED.contains(&name.as_str()) {
            "it is set by the server and cannot be replaced"
        } else if !identifier || name.starts_with("__") {
            "it is not a name that a template could use"
        } else {
            continue;
        };
        return Err(TextError::TemplateArgument {
            name: crate::vocabulary::shortened(name),
            problem: problem.to_owned(),
        });
    }
    Ok(())
}

/// Runs `work` on a stack that is safe for deep recursion; a panic becomes an error.
fn on_deep_stack<T: Send>(
    work: impl FnOnce() -> Result<T, TextError> + Send,
) -> Result<T, TextError> {
    let failed = |problem: String| TextError::Template { line: 0, problem };
    std::thread::scope(|scope| {
        std::thread::Builder::new()
            .name("chat template".to_owned())
            .stack_size(STACK_BYTES)
            .spawn_scoped(scope, work)
            .map_err(|error| TextError::TemplateThread { problem: error.to_string() })?
            .join()
            .unwrap_or_else(|_| Err(failed("the template engine failed".to_owned())))
    })
}

/// Counts the bytes written to it.
struct Length(usize);

impl io::Write for Length {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn render(
    source: &str,
    messages: &[Message],
    options: &RenderOptions,
    purpose: Purpose,
) -> Result<String, TextError> {
    let mut variables: Map<String, Value> = options.extra.clone();
    let messages = serde_json::to_value(messages)
        .map_err(|error| TextError::Template { line: 0, problem: error.to_string() })?;
    variables.insert("messages".to_owned(), messages);
    variables.insert("add_generation_prompt".to_owned(), options.add_generation_prompt.into());
    variables.insert("bos_token".to_owned(), options.bos_token.clone().into());
    variables.insert("eos_token".to_owned(), options.eos_token.clone().into());
    let mut length = Length(0);
    serde_json::to_writer(&mut length, &variables)
        .map_err(|error| TextError::Template { line: 0, problem: error.to_string() })?;

    let program = program::compile(source)?;
    let budget = Arc::new(RenderBudget::new(length.0, purpose));
    let mut environment = Environment::empty();
    environment.set_fuel(Some(budget.steps()));
    operators::install(&mut environment, &budget);
    library::install(&mut environment, &budget, options.clock);
    library::install_formatter(&mut environment, &budget);

    let mut prompt = String::new();
    let root = value_of(Value::Object(variables));
    let blocks = BTreeMap::new();
    let outcome = {
        let mut output = make_string_output(&mut prompt);
        let result = eval(&environment, &program, root, &blocks, &mut output, AutoEscape::None);
        result.map(drop)
    };
    if let Err(error) = outcome {
        return Err(render_error(&error, &budget));
    }
    if prompt.len() > MAX_OUTPUT_BYTES {
        let limit = MAX_OUTPUT_BYTES as u64;
        return Err(TextError::TemplateLimit { what: "the length of the prompt in bytes", limit });
    }
    Ok(prompt)
}

/// Converts a JSON value to the engine's.
fn value_of(json: Value) -> minijinja::Value {
    match json {
        Value::Null => minijinja::Value::from(()),
        Value::Bool(truth) => truth.into(),
        Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(integer), _) => integer.into(),
            (None, Some(integer)) => integer.into(),
            (None, None) => number.as_f64().unwrap_or(f64::NAN).into(),
        },
        Value::String(text) => text.into(),
        Value::Array(items) => items.into_iter().map(value_of).collect(),
        Value::Object(map) => {
            minijinja::Value::from_pairs(map.into_iter().map(|(key, value)| (key, value_of(value))))
        }
    }
}
