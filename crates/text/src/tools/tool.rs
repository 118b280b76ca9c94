//! One tool.

use std::sync::OnceLock;

use serde_json::Value;

use crate::validation::Checker;

/// One function.
#[derive(Debug)]
pub(super) struct Tool {
    /// Letters, digits and `_-.:/`, at most 64.
    pub(super) name: String,
    /// Its purpose.
    pub(super) description: Option<String>,
    /// The JSON schema of its arguments, an object, as text.
    pub(super) schema: String,
    /// Compares calls with the schema, once there was one.
    pub(super) checker: OnceLock<Checker>,
}

impl Tool {
    pub(super) fn checker(&self) -> &Checker {
        self.checker.get_or_init(|| Checker::new(&self.schema))
    }
}

/// Writes a tool as JSON.
pub(super) fn declaration(tool: &Tool) -> String {
    let name = Value::from(&*tool.name);
    let description = tool.description.as_deref().map(Value::from);
    let description =
        description.map(|text| format!(",\"description\":{text}")).unwrap_or_default();
    format!("{{\"name\":{name}{description},\"parameters\":{}}}", tool.schema)
}
