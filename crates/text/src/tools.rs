//! Tools: functions that a model may ask its caller to run.
//!
//! Gemma 3 has no token and no template for them. Google's documentation
//! (ai.google.dev/gemma/docs/capabilities/function-calling) describes the functions in the prompt
//! and has the model answer `{"name": ..., "parameters": {...}}`; results go back in a user's turn
//! as a `tool_output` block. So:
//!
//! - [`Tools`] checks declarations of the OpenAI form; [`Tools::conversation`] writes them and
//!   all earlier calls and results into messages that a template without tools takes.
//! - [`Tools::grammar`] makes a reply be a call, or be text or a call, with arguments that
//!   satisfy those parts of their schema that a grammar can enforce.
//! - [`CallParser`] splits the generated text into text and calls while it arrives, and compares
//!   calls with the whole schema.
//!
//! A list of calls is `[{...}, {...}]`, this crate's extension of the documented form for several
//! calls in one reply.

mod conversation;
mod error;
mod history;
mod parser;
mod part;
mod tool;

use std::sync::OnceLock;

use serde_json::{Map, Value};

pub(crate) use conversation::with_pictures;
pub use error::ToolError;
pub(crate) use history::{EarlierCall, calls_of, is_result, result_name};
pub use parser::CallParser;
pub use part::{ReplyPart, ToolCall};
pub use tool::Declaration;
pub(crate) use tool::ToolList;

use crate::grammar::schema::readable;
use crate::grammar::{
    CallShape, GrammarSource, LeftOut, MAX_SCHEMA_BYTES, Otherwise, check_tool_schema,
};
use crate::template::Message;
use crate::vocabulary::shortened;
use tool::Tool;

/// The most tools of one request.
pub const MAX_TOOLS: usize = 1024;

/// The longest name of a tool in bytes, as in Anthropic's API.
const MAX_NAME_BYTES: usize = 128;

/// Whether a reply has to call a tool, and which.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ToolChoice {
    /// The model decides.
    #[default]
    Auto,
    /// No tool; the tools are not even mentioned.
    None,
    /// At least one tool.
    Required,
    /// The tool of this name.
    Named(String),
}

impl ToolChoice {
    /// Reads the field `tool_choice` of an OpenAI request, as [`Tools::choice_from_openai`].
    ///
    /// # Errors
    /// Returns a [`ToolError`] for another shape.
    pub fn from_openai(value: &Value) -> Result<Self, ToolError> {
        let wrong = || {
            ToolError::new(
                "tool_choice",
                "use \"auto\", \"none\", \"required\" or \
                 {\"type\": \"function\", \"function\": {\"name\": ...}}",
            )
        };
        match value {
            Value::Null => Ok(Self::Auto),
            Value::String(word) => match word.as_str() {
                "auto" => Ok(Self::Auto),
                "none" => Ok(Self::None),
                "required" | "any" => Ok(Self::Required),
                _ => Err(wrong()),
            },
            Value::Object(map) => {
                let name = map.get("function").and_then(|function| function.get("name"));
                let name = name.or_else(|| map.get("name")).and_then(Value::as_str);
                Ok(Self::Named(name.ok_or_else(wrong)?.to_owned()))
            }
            _ => Err(wrong()),
        }
    }
}

/// The checked tools of a request.
#[derive(Debug, Clone, Default)]
pub struct Tools {
    tools: ToolList,
}

impl Tools {
    /// What names of tools are, for errors.
    pub const NAMES: &str = "a name has 1 to 128 letters, digits, `_`, `-`, `.`, `:` or `/`";

    /// Returns whether a tool can have this name.
    pub fn can_be_named(name: &str) -> bool {
        let good = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.:/".contains(&byte);
        (1..=MAX_NAME_BYTES).contains(&name.len()) && name.bytes().all(good)
    }

    /// Reads the field `tools` of an OpenAI request: a list of
    /// `{"type": "function", "function": {"name", "description", "parameters"}}`. `null` means no
    /// tools.
    ///
    /// # Errors
    /// Returns a [`ToolError`] for a wrong shape, and as [`Tools::new`].
    pub fn from_openai(value: &Value) -> Result<Self, ToolError> {
        let list = match value {
            Value::Null => return Ok(Self::default()),
            Value::Array(list) => list,
            _ => return Err(ToolError::new("tools", "it must be a list of tools")),
        };
        let entries = list.iter().enumerate();
        let declared = entries
            .map(|(index, entry)| Declaration::from_openai(&format!("tools[{index}]"), entry));
        Self::new(declared.collect::<Result<_, _>>()?)
    }

    /// Checks the declarations of tools.
    ///
    /// # Errors
    /// Returns a [`ToolError`] for more than [`MAX_TOOLS`], and for a name that is missing,
    /// malformed or used twice. What cannot be read of the parameters' schema is left out
    /// ([`Tools::unread`]).
    pub fn new(declared: Vec<Declaration>) -> Result<Self, ToolError> {
        if declared.len() > MAX_TOOLS {
            return Err(ToolError::new(
                "tools",
                format!("{} tools are given; at most {MAX_TOOLS} are taken", declared.len()),
            ));
        }
        let mut tools: Vec<Tool> = Vec::with_capacity(declared.len());
        let mut bytes = 0;
        for declaration in declared {
            let mut tool = read_tool(&declaration)?;
            if tools.iter().any(|other| other.name == tool.name) {
                let problem = format!("another tool is named `{}` too; rename one", tool.name);
                return Err(ToolError::new(format!("{}.name", declaration.field), problem));
            }
            // Beyond what a grammar is made of, arguments are any.
            if bytes + tool.bare.len() > MAX_SCHEMA_BYTES {
                tool.bare = ANYTHING.to_owned();
                tool.unread.push(all_of_it());
            }
            bytes += tool.bare.len();
            tools.push(tool);
        }
        Ok(Self { tools: ToolList(tools.into()) })
    }

    /// Reads the field `tool_choice` of an OpenAI request: `auto`, `none`, `required` or
    /// `{"type": "function", "function": {"name": ...}}`. `null` is `auto`.
    ///
    /// # Errors
    /// Returns a [`ToolError`] for another shape, a name that no tool has, and a demand for a tool
    /// if there are no tools.
    pub fn choice_from_openai(&self, value: &Value) -> Result<ToolChoice, ToolError> {
        let choice = ToolChoice::from_openai(value)?;
        self.check_choice(&choice, "tool_choice.function.name")?;
        Ok(choice)
    }

    /// Checks that a choice can be met; `name_field` is where the request has its name.
    ///
    /// # Errors
    /// Returns a [`ToolError`] for a name that no tool has, and a demand for a tool if there are no
    /// tools.
    pub fn check_choice(&self, choice: &ToolChoice, name_field: &str) -> Result<(), ToolError> {
        match choice {
            ToolChoice::Required if self.tools.is_empty() => {
                Err(ToolError::new("tool_choice", "a call is required, but `tools` is empty"))
            }
            ToolChoice::Named(name) if self.tools.find(name).is_none() => {
                let problem =
                    format!("no tool is named `{}`; name one of `tools`", shortened(name));
                Err(ToolError::new(name_field, problem))
            }
            _ => Ok(()),
        }
    }

    /// Returns whether there are no tools.
    pub fn is_empty(&self) -> bool {
        self.tools.is_empty()
    }

    /// Returns the field with the arguments' schema of the tool of this name.
    pub fn field(&self, name: &str) -> Option<&str> {
        self.tools.find(name).map(|tool| &*tool.field)
    }

    /// Returns what could not be read of the schemas, each with the name of its tool: it is left
    /// out, and the rest of the schema holds.
    pub fn unread(&self) -> impl Iterator<Item = (&str, &LeftOut)> {
        self.tools
            .iter()
            .flat_map(|tool| tool.unread.iter().map(move |left_out| (&*tool.name, left_out)))
    }

    /// Checks calls and results in a conversation. `field` names a field within the message of an
    /// index.
    ///
    /// # Errors
    /// Returns a [`ToolError`] for calls and results of a wrong shape, and for results of calls
    /// that were not made.
    pub fn check_calls(
        messages: &[Message],
        field: impl Fn(usize, &str) -> String,
    ) -> Result<(), ToolError> {
        history::check(messages, field)
    }

    /// Returns the tools themselves.
    pub(crate) fn list(&self) -> &ToolList {
        &self.tools
    }

    /// Returns the chosen tools' names and the schemas of their arguments.
    pub(crate) fn chosen(&self, choice: &ToolChoice) -> Vec<(String, String)> {
        let chosen: Vec<&Tool> = match choice {
            ToolChoice::None => Vec::new(),
            ToolChoice::Named(name) => self.tools.find(name).into_iter().collect(),
            ToolChoice::Auto | ToolChoice::Required => self.tools.iter().collect(),
        };
        chosen.iter().map(|tool| (tool.name.clone(), tool.bare.clone())).collect()
    }

    /// Returns the tools in the form of an OpenAI request.
    pub(crate) fn declared(&self) -> Vec<Value> {
        self.tools.iter().map(tool::openai).collect()
    }

    /// Returns the grammar of a reply, or `None` if nothing is to be called.
    ///
    /// The reply is a call of one of the chosen tools, or with `parallel` also a list of calls. In
    /// [`ToolChoice::Auto`] it may also be JSON that satisfies the schema `answer`, or without such
    /// a schema text that does not begin like a call. In that last case only a call that opens the
    /// reply is guided; [`CallParser`] finds others.
    pub fn grammar(
        &self,
        choice: &ToolChoice,
        parallel: bool,
        answer: Option<&str>,
    ) -> Option<GrammarSource> {
        let calls = self.chosen(choice);
        if calls.is_empty() {
            return None;
        }
        let shape = CallShape {
            parallel: parallel && !matches!(choice, ToolChoice::Named(_)),
            marks: None,
            otherwise: match (choice, answer) {
                (ToolChoice::Auto, Some(schema)) => Otherwise::Json(schema.to_owned()),
                (ToolChoice::Auto, None) => Otherwise::Text,
                _ => Otherwise::Nothing,
            },
        };
        Some(GrammarSource::Calls { calls, shape })
    }

    /// Returns a parser for one reply. Without `parallel` the reply ends at its first call.
    pub fn parser(&self, parallel: bool) -> CallParser {
        CallParser::new(self.tools.clone(), parallel)
    }
}

fn read_tool(declaration: &Declaration) -> Result<Tool, ToolError> {
    let Declaration { field, name, description, schema_name, schema } = declaration;
    let name = name.as_str().unwrap_or_default();
    if !Tools::can_be_named(name) {
        return Err(ToolError::new(format!("{field}.name"), Tools::NAMES));
    }
    let description = match description {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        _ => return Err(ToolError::new(format!("{field}.description"), "it must be text")),
    };
    let (schema, bare, unread) = read_parameters(schema);
    let (name, field) = (name.to_owned(), format!("{field}.{schema_name}"));
    Ok(Tool { name, description, schema, bare, field, unread, checker: OnceLock::new() })
}

/// The schema of arguments of which nothing is known.
const ANYTHING: &str = r#"{"type":"object"}"#;

fn all_of_it() -> LeftOut {
    LeftOut { place: "#".to_owned(), keyword: "parameters".to_owned() }
}

/// Returns the schema of a function's arguments as text, the same without words for readers and
/// without what no grammar may cost, and what could not be read of it.
fn read_parameters(value: &Value) -> (String, String, Vec<LeftOut>) {
    let mut parameters = match value {
        Value::Null => {
            let mut none = Map::new();
            none.insert("properties".to_owned(), Value::Object(Map::new()));
            none.insert("additionalProperties".to_owned(), Value::Bool(false));
            none
        }
        Value::Object(parameters) => parameters.clone(),
        // Any arguments.
        _ => Map::new(),
    };
    let mut unread = readable::of_arguments(&mut parameters);
    if !value.is_null() && !value.is_object() {
        unread.push(all_of_it());
    }
    let mut parameters = Value::Object(parameters);
    let schema = parameters.to_string();
    if schema.len() > MAX_SCHEMA_BYTES {
        unread.push(all_of_it());
        return (ANYTHING.to_owned(), ANYTHING.to_owned(), unread);
    }
    if check_tool_schema(&schema).is_err() {
        unread.push(all_of_it());
        return (schema, ANYTHING.to_owned(), unread);
    }
    readable::strip(&mut parameters);
    (schema, parameters.to_string(), unread)
}
