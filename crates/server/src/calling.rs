//! Calls of tools: what a request declares, in the form of OpenAI's API, and how that changes the
//! prompt and the answer.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use trine_text::{
    Grammar, GrammarError, Offer, Relaxed, ReplyFormat, ToolCall, ToolChoice, ToolError, Tools,
};

use crate::error::ApiError;
use crate::guard::random_id;
use crate::json::Fields;
use crate::models::LoadedModel;
use crate::parameters::Parameters;
use crate::places::Places;
use crate::structure::{self, Structure};
use crate::unsupported;
use crate::warnings::{Warnings, note};

/// The tools of a request, and how they may be called.
#[derive(Debug, Default)]
pub(crate) struct Calling {
    tools: Tools,
    choice: ToolChoice,
    parallel: bool,
    /// Where the request has the tools.
    places: Places,
}

/// Tools of a request that no model here can call: those that another server runs, or knows without
/// a schema.
#[derive(Debug, Default)]
pub(crate) struct LeftOut {
    kinds: Vec<String>,
    names: Vec<String>,
}

impl LeftOut {
    pub(crate) fn add(&mut self, kind: &str, name: Option<&str>) {
        self.kinds.push(kind.to_owned());
        self.names.extend(name.map(str::to_owned));
    }

    /// Returns whether a choice, in OpenAI's form, can be met only by these tools: it names one of
    /// them, or demands any call where there are no other tools.
    fn is_demanded(&self, choice: &Value, others: &[Value]) -> bool {
        let is_one = |all: &[String], wanted: &str| all.iter().any(|one| one == wanted);
        match choice {
            Value::String(word) => {
                matches!(&**word, "required" | "any") && others.is_empty() && !self.kinds.is_empty()
            }
            choice => match choice["function"]["name"].as_str().or(choice["name"].as_str()) {
                Some(name) => {
                    is_one(&self.names, name)
                        && others.iter().all(|tool| tool["function"]["name"] != name)
                }
                None => choice["type"].as_str().is_some_and(|kind| is_one(&self.kinds, kind)),
            },
        }
    }
}

impl Calling {
    /// As [`Calling::new`], for tools that the request has in another form, in `places`, some of
    /// which were left out. A demand for one of those is dropped: the model calls another tool, or
    /// answers in words.
    ///
    /// # Errors
    /// 400 naming what is wrong with the other tools or the choice.
    pub(crate) fn without(
        left_out: &LeftOut,
        tools: Vec<Value>,
        choice: &Value,
        parallel: bool,
        places: Places,
        warnings: &mut Warnings,
    ) -> Result<Self, ApiError> {
        let auto = Value::from("auto");
        let choice = if left_out.is_demanded(choice, &tools) {
            warnings.push(
                "tool_choice demands a tool that is left out: the model may answer without it",
            );
            &auto
        } else {
            choice
        };
        match Self::new(&tools.into(), choice, parallel) {
            Ok(calling) => Ok(Self { places, ..calling }),
            Err(error) => Err(error.placed(&places)),
        }
    }

    /// Reads `tools`, `tool_choice` and `parallel_tool_calls` of a chat.
    ///
    /// # Errors
    /// 400 naming what is wrong with them.
    pub(crate) fn read(fields: Fields<'_>) -> Result<Self, ApiError> {
        let value = |name: &str| fields.get(name).unwrap_or(&Value::Null);
        let parallel = fields.boolean("parallel_tool_calls")?.unwrap_or(true);
        Self::new(value("tools"), value("tool_choice"), parallel)
    }

    /// Makes it from OpenAI's forms of tools and choice; null is absent.
    ///
    /// # Errors
    /// 400 naming what is wrong with them.
    pub(crate) fn new(tools: &Value, choice: &Value, parallel: bool) -> Result<Self, ApiError> {
        let tools = Tools::from_openai(tools).map_err(refused)?;
        let choice = tools.choice_from_openai(choice).map_err(refused)?;
        Ok(Self { tools, choice, parallel, places: Places::default() })
    }

    /// Returns the tools as the model's format takes them.
    pub(crate) fn offer(&self) -> Offer<'_> {
        Offer { tools: &self.tools, choice: &self.choice, parallel: self.parallel }
    }

    /// Returns the error of a grammar of calls, which names the tool at fault.
    fn not_held(&self, error: &GrammarError) -> ApiError {
        let field = match error {
            GrammarError::Tool { tool, .. } => self.tools.field(tool),
            _ => None,
        };
        structure::refused(error, field.as_deref().unwrap_or("tools")).placed(&self.places)
    }

    /// Constrains the texts to the requested form, and to calls of tools as requested. With
    /// `in_thought` they begin in a thought, which the prompt has opened. For a thread that may
    /// wait.
    ///
    /// # Errors
    /// 400 if the texts must have a form other than JSON though they may be calls, and for schemas
    /// that cost too much.
    pub(crate) fn apply(
        &self,
        parameters: &mut Parameters,
        format: &dyn ReplyFormat,
        model: &LoadedModel,
        in_thought: bool,
    ) -> Result<(), ApiError> {
        // First by itself, so that an error names its field and not the tools.
        parameters.compile(model)?;
        parameters.reader = format.reader(&self.offer(), in_thought);
        let structure = parameters.fields.structure.as_ref();
        if let Some(grammar) = self.grammar(structure, format, model)? {
            warn_of(grammar.relaxed());
            parameters.grammar = Some(grammar);
        }
        Ok(())
    }

    /// Returns the grammar of texts that may be calls; an answer has the form of `structure`.
    /// `None` if calls need none. For a thread that may wait.
    ///
    /// # Errors
    /// As [`Calling::apply`].
    pub(crate) fn grammar(
        &self,
        structure: Option<&Structure>,
        format: &dyn ReplyFormat,
        model: &LoadedModel,
    ) -> Result<Option<Arc<Grammar>>, ApiError> {
        let offer = self.offer();
        if !offer.is_open() {
            return Ok(None);
        }
        let answer = match structure {
            None => None,
            Some(structure) => Some(structure.schema().ok_or_else(|| {
                let remedy = "an answer may be a call of a tool, beside which it can be held to a JSON schema; use one, or \
                    \"tool_choice\": \"none\"";
                ApiError::unsupported(structure.param.clone(), remedy)
            })?),
        };
        let Some(source) = format.grammar(&offer, answer) else { return Ok(None) };
        model.grammars.get(&source).map(Some).map_err(|error| self.not_held(&error))
    }
}

/// Logs the parts of the tools' schemas that are not enforced while an answer is written. Calls are
/// checked against them when they are complete.
fn warn_of(relaxed: &[Relaxed]) {
    for Relaxed { tool, left_out } in relaxed {
        let (place, keyword) = (&left_out.place, &left_out.keyword);
        note(format!(
            "the tool {tool}: no grammar holds {place}/{keyword}; calls are written without it and checked after"
        ));
    }
}

/// Refuses tools and pictures at an endpoint that continues texts.
///
/// # Errors
/// 400 naming the field.
pub(crate) fn refuse(fields: Fields<'_>) -> Result<(), ApiError> {
    let is_there = |name: &str| {
        fields.get(name).is_some_and(|value| {
            !matches!(value.as_str(), Some("none" | "auto"))
                && value.as_array().is_none_or(|items| !items.is_empty())
        })
    };
    match ["tools", "tool_choice"].into_iter().find(|name| is_there(name)) {
        Some(name) => Err(ApiError::unsupported(name, "use /v1/chat/completions")),
        None => unsupported::refuse(fields, &unsupported::PICTURES),
    }
}

/// Returns the error for tools, calls or results of a wrong shape.
pub(crate) fn refused(error: ToolError) -> ApiError {
    let message = error.to_string();
    ApiError::field(error.param, message)
}

/// Returns a call as an entry of `tool_calls`, with an id of its own.
pub(crate) fn openai_call(call: &ToolCall) -> Value {
    json!({
        "id": random_id("call_"),
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    })
}

/// Returns a call's arguments as JSON.
pub(crate) fn arguments(call: &ToolCall) -> Value {
    // The parser of calls passes on only objects.
    serde_json::from_str(&call.arguments).unwrap_or_else(|_| Value::Object(Map::new()))
}
