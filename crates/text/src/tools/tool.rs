//! The tools of a request.

use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use serde_json::Value;

use super::error::ToolError;
use super::part::ToolCall;
use crate::grammar::LeftOut;
use crate::validation::Checker;

/// A function as a request declares it, unchecked.
#[derive(Debug, Clone)]
pub struct Declaration {
    /// The field of the request that has its `name` and `description`.
    pub field: String,
    /// Its name, text.
    pub name: Value,
    /// Its purpose, text or null.
    pub description: Value,
    /// The name of the field with the schema of its arguments.
    pub schema_name: &'static str,
    /// The JSON schema of its arguments, or null.
    pub schema: Value,
}

impl Declaration {
    /// Makes it of the fields of a function.
    pub fn new(field: String, function: &Value, schema_name: &'static str) -> Self {
        let [name, description, schema] =
            ["name", "description", schema_name].map(|name| function[name].clone());
        Self { field, name, description, schema_name, schema }
    }

    /// Reads `{"type": "function", "function": {"name", "description", "parameters"}}` at a field.
    ///
    /// # Errors
    /// Returns a [`ToolError`] for another shape.
    pub fn from_openai(field: &str, entry: &Value) -> Result<Self, ToolError> {
        if !entry.is_object() {
            return Err(ToolError::new(field, "a tool must be an object"));
        }
        if entry.get("type").is_some_and(|kind| kind != "function") {
            let problem = "only tools of type \"function\" are supported";
            return Err(ToolError::new(format!("{field}.type"), problem));
        }
        let field = format!("{field}.function");
        if !entry["function"].is_object() {
            return Err(ToolError::new(field, "it is missing; describe the function in it"));
        }
        Ok(Self::new(field, &entry["function"], "parameters"))
    }
}

/// One function.
#[derive(Debug)]
pub(crate) struct Tool {
    /// Letters, digits and `_-.:/`, at most 128.
    pub(super) name: String,
    /// Its purpose.
    pub(super) description: Option<String>,
    /// The JSON schema of its arguments, an object, as text.
    pub(super) schema: String,
    /// The schema without words for readers, which demand nothing.
    pub(super) bare: String,
    /// The field of the request with the schema.
    pub(super) field: String,
    /// What could not be read of it.
    pub(super) unread: Vec<LeftOut>,
    /// Compares calls with the schema, once there was one.
    pub(super) checker: OnceLock<Checker>,
}

impl Tool {
    pub(super) fn checker(&self) -> &Checker {
        self.checker.get_or_init(|| Checker::new(&self.schema))
    }
}

/// The tools of a request.
#[derive(Debug, Clone, Default)]
pub(crate) struct ToolList(pub(super) Arc<[Tool]>);

impl Deref for ToolList {
    type Target = [Tool];

    fn deref(&self) -> &[Tool] {
        &self.0
    }
}

impl ToolList {
    /// Returns the tool of this name.
    pub(super) fn find(&self, name: &str) -> Option<&Tool> {
        self.iter().find(|tool| tool.name == name)
    }

    /// Returns a call of a declared tool as the `index`-th of a reply, compared with the schema of
    /// its arguments, which are the text of a JSON object. Returns `None` if no tool has the name.
    pub(crate) fn call(&self, index: usize, name: &str, arguments: String) -> Option<ToolCall> {
        let problem = self.find(name)?.checker().problem(&arguments);
        Some(ToolCall { index, name: name.to_owned(), arguments, problem })
    }
}

/// Returns a tool in the form of an OpenAI request.
pub(super) fn openai(tool: &Tool) -> Value {
    // The schema was written by serde_json.
    let parameters: Value = serde_json::from_str(&tool.schema).unwrap_or_default();
    let mut function = serde_json::json!({"name": tool.name, "parameters": parameters});
    if let Some(description) = &tool.description {
        function["description"] = description.as_str().into();
    }
    serde_json::json!({"type": "function", "function": function})
}

/// Writes a tool as JSON.
pub(super) fn declaration(tool: &Tool) -> String {
    let name = Value::from(&*tool.name);
    let description = tool.description.as_deref().map(Value::from);
    let description =
        description.map(|text| format!(",\"description\":{text}")).unwrap_or_default();
    format!("{{\"name\":{name}{description},\"parameters\":{}}}", tool.schema)
}
