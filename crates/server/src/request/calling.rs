//! Calls of tools: what a request declares, and how that changes the prompt and the answer.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use serde_json::{Map, Value, json};
use trine_text::{
    Declaration, Grammar, GrammarError, Offer, Relaxed, ReplyFormat, ToolCall, ToolChoice,
    ToolError, Tools,
};

use crate::error::{ApiError, shown};
use crate::models::LoadedModel;
use crate::reply::warnings::note;
use crate::request::fields::{Fields, Rows, rows};
use crate::request::parameters::Parameters;
use crate::request::structure::{self, Structure};
use crate::request::unsupported;
use crate::service::guard::random_id;

/// The fields of chats about tools.
pub(crate) const CALLING: Rows = Rows::All(&[TOOLS, CHOOSING]);

rows! {
    TOOLS {
        /// Functions that the model may call.
        FUNCTIONS: [Value] = "tools", as list_of(schema("Tool"), 0, MAX_TOOLS);
    }
    CHOOSING {
        TOOL_CHOICE: Value = "tool_choice", as schema("ToolChoice");
        /// Whether an answer may have several calls.
        PARALLEL_CALLS: bool = "parallel_tool_calls", or true;
    }
}

/// What to do instead of offering a tool of another type.
pub(crate) const ONLY_FUNCTIONS: &str = "only functions can be called here";

/// The warning about a choice that is dropped.
const LEFT_OUT: &str =
    "tool_choice demands a tool that is left out: the model may answer without it";

/// The tools of a request, and how they may be called.
#[derive(Debug, Default)]
pub(crate) struct Calling {
    tools: Tools,
    choice: ToolChoice,
    parallel: bool,
}

/// Tools of a request that no model here can call: those that another server runs, or knows without
/// a schema.
#[derive(Debug, Default)]
struct LeftOut {
    kinds: Vec<String>,
    names: HashSet<String>,
}

impl LeftOut {
    /// Returns whether a choice can be met only by these tools: it names one of them, or demands
    /// any call where there are no other tools.
    fn is_demanded(&self, choice: &ToolChoice, others: &HashMap<String, usize>) -> bool {
        match choice {
            ToolChoice::Required => others.is_empty() && !self.kinds.is_empty(),
            ToolChoice::Named(name) => self.names.contains(name) && !others.contains_key(name),
            ToolChoice::Auto | ToolChoice::None => false,
        }
    }
}

/// Returns the name of a tool, or of the tool that a choice names, in a form of OpenAI's.
fn name_of(tool: &Value) -> Option<&str> {
    ["function", "custom"]
        .iter()
        .find_map(|kind| tool[*kind]["name"].as_str())
        .or(tool["name"].as_str())
}

/// Returns the field with the name of the tool that a choice names, in a form of OpenAI's.
pub(crate) fn name_field(choice: &Value) -> &'static str {
    match choice {
        choice if choice["function"]["name"].is_string() => "tool_choice.function.name",
        choice if choice["custom"]["name"].is_string() => "tool_choice.custom.name",
        _ => "tool_choice.name",
    }
}

/// The tools of a request while they are gathered. The last declaration of a name counts where
/// tools are added or removed in the course of a conversation.
#[derive(Debug, Default)]
pub(crate) struct Offered {
    tools: Vec<Option<Declaration>>,
    /// The tools by their names.
    names: HashMap<String, usize>,
    left_out: LeftOut,
}

impl Offered {
    /// Adds a tool. One that is declared twice is the first, and one whose name no model here can
    /// write is left out: an agent sends the tools of all its servers with each request.
    pub(crate) fn add(&mut self, tool: Declaration) {
        if let Some(name) = tool.name.as_str() {
            if self.names.contains_key(name) {
                note(format!("the tool {} is declared twice: the first one counts", shown(name)));
                return;
            }
            if !name.is_empty() && !Tools::can_be_named(name) {
                self.leave_out("function", Some(name), Tools::NAMES);
                return;
            }
            self.names.entry(name.to_owned()).or_insert(self.tools.len());
        }
        self.tools.push(Some(tool));
    }

    /// Adds a tool in the place of an earlier one of its name.
    pub(crate) fn replace(&mut self, tool: Declaration) {
        if let Some(name) = tool.name.as_str() {
            self.remove(name);
        }
        self.add(tool);
    }

    /// Takes a tool back.
    pub(crate) fn remove(&mut self, name: &str) -> Option<Declaration> {
        self.names.remove(name).and_then(|index| self.tools[index].take())
    }

    /// Notes a tool that is no function of the client's, and the warning about it.
    pub(crate) fn leave_out(&mut self, kind: &str, name: Option<&str>, remedy: &str) {
        let named = name.map_or(String::new(), |name| format!(" {}", shown(name)));
        note(format!("the tool{named} of type {} is left out: {remedy}", shown(kind)));
        if !self.left_out.kinds.iter().any(|other| other == kind) {
            self.left_out.kinds.push(kind.to_owned());
        }
        self.left_out.names.extend(name.map(str::to_owned));
    }

    /// Keeps the tools that OpenAI's `allowed_tools` names, and returns its mode.
    fn allow(&mut self, choice: &Value) -> Result<ToolChoice, ApiError> {
        let (path, own) = match choice.get("allowed_tools") {
            Some(own) => ("tool_choice.allowed_tools", own),
            None => ("tool_choice", choice),
        };
        let wrong = |field: &str, what: &str| {
            let path = format!("{path}.{field}");
            ApiError::field(&path, format!("{path} {what}"))
        };
        let mode = match own.get("mode").and_then(Value::as_str) {
            None | Some("auto") => ToolChoice::Auto,
            Some("required") => ToolChoice::Required,
            Some(_) => return Err(wrong("mode", "must be auto or required")),
        };
        let allowed = own.get("tools").and_then(Value::as_array);
        let allowed = allowed.ok_or_else(|| wrong("tools", "must be a list of tools"))?;
        let mut indices = HashSet::new();
        for (index, tool) in allowed.iter().enumerate() {
            let space = tool["namespace"].as_str();
            let name = name_of(tool).map(|name| match space {
                Some(space) => joined(space, name),
                None => name.to_owned(),
            });
            let is_left_out = name.as_ref().is_some_and(|name| self.left_out.names.contains(name));
            match name.and_then(|name| self.names.get(&name)) {
                Some(&index) => drop(indices.insert(index)),
                // It is left out of the tools, too.
                None if is_left_out => {}
                None if tool["type"].as_str().is_some_and(|kind| kind != "function") => {}
                None => return Err(wrong(&format!("tools[{index}]"), "names no tool of `tools`")),
            }
        }
        for (index, tool) in self.tools.iter_mut().enumerate() {
            if !indices.contains(&index) {
                *tool = None;
            }
        }
        self.names.retain(|_, index| indices.contains(index));
        Ok(mode)
    }

    /// Reads a choice in a form of OpenAI's; null is absent.
    ///
    /// # Errors
    /// 400 naming what is wrong with it.
    pub(crate) fn read_choice(&mut self, choice: &Value) -> Result<ToolChoice, ApiError> {
        let kind = choice["type"].as_str().filter(|kind| *kind != "function");
        match (kind, name_of(choice)) {
            (Some("allowed_tools"), _) => self.allow(choice),
            (_, Some(name)) if self.left_out.names.contains(name) => {
                Ok(ToolChoice::Named(name.to_owned()))
            }
            (Some(kind), None) if self.left_out.kinds.iter().any(|other| other == kind) => {
                note(LEFT_OUT);
                Ok(ToolChoice::Auto)
            }
            _ => ToolChoice::from_openai(choice).map_err(refused),
        }
    }

    /// Returns the tools with a choice, whose name is at `name_field` of the request. A demand for
    /// a tool that is left out is dropped: the model calls another one, or answers in words.
    ///
    /// # Errors
    /// 400 naming what is wrong with the tools or the choice.
    pub(crate) fn choose(
        self,
        mut choice: ToolChoice,
        parallel: bool,
        name_field: &str,
    ) -> Result<Calling, ApiError> {
        if self.left_out.is_demanded(&choice, &self.names) {
            note(LEFT_OUT);
            choice = ToolChoice::Auto;
        }
        let tools = self.tools.into_iter().flatten().collect();
        let tools = Tools::new(tools).map_err(refused)?;
        for (tool, unread) in tools.unread() {
            let (place, keyword) = (&unread.place, &unread.keyword);
            note(format!(
                "the tool {tool}: {place}/{keyword} cannot be read, and is left out of its schema"
            ));
        }
        tools.check_choice(&choice, name_field).map_err(refused)?;
        Ok(Calling { tools, choice, parallel })
    }
}

/// Returns the name under which the model knows a function of a namespace of Responses.
pub(crate) fn joined(space: &str, name: &str) -> String {
    format!("{space}.{name}")
}

impl Calling {
    /// Reads `tools`, `tool_choice` and `parallel_tool_calls` of a chat. Tools of other types than
    /// functions are left out.
    ///
    /// # Errors
    /// 400 naming what is wrong with them.
    pub(crate) fn read(fields: Fields<'_>) -> Result<Self, ApiError> {
        let mut offered = Offered::default();
        for (index, tool) in fields.read(&FUNCTIONS)?.unwrap_or_default().iter().enumerate() {
            match tool.get("type").and_then(Value::as_str).filter(|kind| *kind != "function") {
                Some(kind) => offered.leave_out(kind, name_of(tool), ONLY_FUNCTIONS),
                None => offered.add(
                    Declaration::from_openai(&format!("tools[{index}]"), tool).map_err(refused)?,
                ),
            }
        }
        let parallel = fields.read_or(&PARALLEL_CALLS)?;
        let given = fields.get(&TOOL_CHOICE).unwrap_or(&Value::Null);
        let choice = offered.read_choice(given)?;
        offered.choose(choice, parallel, name_field(given))
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
        structure::refused(error, field.unwrap_or("tools"))
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
                let remedy = "an answer may be a call of a tool, beside which it can be held to a \
                    JSON schema; use one, or \"tool_choice\": \"none\"";
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
            "the tool {tool}: no grammar holds {place}/{keyword}; calls are written without it and \
             checked after"
        ));
    }
}

/// Refuses tools and pictures at an endpoint that continues texts.
///
/// # Errors
/// 400 naming the field.
pub(crate) fn refuse(fields: Fields<'_>) -> Result<(), ApiError> {
    fields.refuse(&unsupported::TOOLS)?;
    fields.refuse(&unsupported::PICTURES)
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
