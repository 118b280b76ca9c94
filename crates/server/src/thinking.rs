//! Whether and how much a model may think before it answers: the fields of each dialect.

use serde_json::{Map, Value};
use trine_text::{ReplyFormat, Thoughts};

use crate::error::ApiError;
use crate::json::Fields;
use crate::parameters::TOKENS_MAX;

/// The variable of templates that turns thinking on.
const VARIABLE: &str = "enable_thinking";

/// What a request says about thinking.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Thinking {
    /// Whether the model is to think; `None` if the request leaves it to the template.
    on: Option<bool>,
    /// Most tokens of thoughts.
    budget: Option<usize>,
    /// The field that is refused if the model cannot think. Others only allow it.
    demand: Option<&'static str>,
}

impl Thinking {
    /// Reads the fields of OpenAI's chats, with those of vLLM and llama.cpp.
    ///
    /// # Errors
    /// 400 naming a field of a wrong type.
    pub(crate) fn read(fields: Fields<'_>) -> Result<Self, ApiError> {
        let of_effort = fields.text("reasoning_effort")?.map(is_effort);
        let variables = fields.object("chat_template_kwargs")?;
        let of_variable = match variables {
            None => None,
            Some(variables) => {
                Fields::within(variables, "chat_template_kwargs.").boolean(VARIABLE)?
            }
        };
        let on = fields.boolean(VARIABLE)?.or(of_variable).or(of_effort);
        let mut budget = None;
        for name in ["thinking_token_budget", "thinking_budget_tokens"] {
            budget = budget.or(fields.count(name, 0, TOKENS_MAX)?);
        }
        Ok(Self { on, budget, demand: None }.settled())
    }

    /// Reads `thinking` of Anthropic's messages.
    ///
    /// # Errors
    /// 400 naming a field of a wrong type, and for another kind of thinking.
    pub(crate) fn of_message(fields: Fields<'_>) -> Result<Self, ApiError> {
        let Some(thinking) = fields.object("thinking")? else { return Ok(Self::default()) };
        let thinking = Fields::within(thinking, "thinking.");
        let on = match thinking.text("type")? {
            Some("adaptive" | "enabled") => true,
            Some("disabled") => false,
            _ => return Err(thinking.wrong("type", "adaptive, enabled or disabled")),
        };
        let budget = thinking.count("budget_tokens", 0, TOKENS_MAX)?;
        Ok(Self { on: Some(on), budget, demand: None }.settled())
    }

    /// Reads `think` of Ollama's requests.
    ///
    /// # Errors
    /// 400 for another value than a boolean or an effort.
    pub(crate) fn of_ollama(fields: Fields<'_>) -> Result<Self, ApiError> {
        let on = match fields.get("think") {
            None => return Ok(Self::default()),
            Some(Value::Bool(on)) => *on,
            Some(Value::String(effort)) => is_effort(effort),
            Some(_) => {
                return Err(
                    fields.wrong("think", "true, false, or \"low\", \"medium\" or \"high\"")
                );
            }
        };
        Ok(Self { on: Some(on), budget: None, demand: on.then_some("think") })
    }

    /// Reads `reasoning` of the Responses API.
    ///
    /// # Errors
    /// 400 naming a field of a wrong type.
    pub(crate) fn of_response(fields: Fields<'_>) -> Result<Self, ApiError> {
        let Some(reasoning) = fields.object("reasoning")? else { return Ok(Self::default()) };
        let effort = Fields::within(reasoning, "reasoning.").text("effort")?;
        Ok(Self { on: effort.map(is_effort), ..Self::default() })
    }

    /// Without any tokens there are no thoughts.
    fn settled(mut self) -> Self {
        if self.budget == Some(0) {
            self.on = Some(false);
        }
        self
    }

    /// Adds what the template has to know to its variables.
    ///
    /// # Errors
    /// 400 if the request demands thoughts of a model that has none.
    pub(crate) fn tell(
        self,
        format: &dyn ReplyFormat,
        variables: &mut Map<String, Value>,
    ) -> Result<(), ApiError> {
        match (format.thoughts(), self.demand, self.on) {
            (None, Some(param), _) => {
                Err(ApiError::unsupported(param, "the model answers at once"))
            }
            (Some(_), _, Some(on)) => {
                variables.insert(VARIABLE.to_owned(), on.into());
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Returns how a reply's thoughts are held.
    pub(crate) fn thoughts(self, format: &dyn ReplyFormat) -> Option<Thoughts> {
        let marks = format.thoughts()?;
        let allowed = self.on == Some(true);
        Some(Thoughts { marks, allowed, budget: self.budget.filter(|_| allowed) })
    }
}

/// Returns whether an effort is one.
fn is_effort(effort: &str) -> bool {
    effort != "none"
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn dialects_say_it_in_their_own_fields() {
        let read = |fields: Value, read: fn(Fields<'_>) -> Result<Thinking, ApiError>| {
            let Value::Object(map) = fields else { panic!("it is an object") };
            read(Fields::new(&map)).map(|thinking| (thinking.on, thinking.budget))
        };
        for (fields, expected) in [
            (json!({}), (None, None)),
            (json!({"reasoning_effort": "none"}), (Some(false), None)),
            (json!({"reasoning_effort": "high"}), (Some(true), None)),
            (json!({"reasoning_effort": "high", "enable_thinking": false}), (Some(false), None)),
            (json!({"chat_template_kwargs": {"enable_thinking": true}}), (Some(true), None)),
            (json!({"enable_thinking": true, "thinking_token_budget": 7}), (Some(true), Some(7))),
            (json!({"enable_thinking": true, "thinking_budget_tokens": 0}), (Some(false), Some(0))),
        ] {
            assert_eq!(read(fields.clone(), Thinking::read).unwrap(), expected, "{fields}");
        }
        for (thinking, expected) in [
            (json!({"type": "enabled", "budget_tokens": 1024}), (Some(true), Some(1024))),
            (json!({"type": "adaptive"}), (Some(true), None)),
            (json!({"type": "disabled"}), (Some(false), None)),
        ] {
            let fields = json!({ "thinking": thinking });
            assert_eq!(read(fields, Thinking::of_message).unwrap(), expected);
        }
        assert!(read(json!({"thinking": {"type": "much"}}), Thinking::of_message).is_err());
        for (think, expected) in [(json!(true), true), (json!("high"), true), (json!(false), false)]
        {
            let fields = json!({ "think": think });
            assert_eq!(read(fields, Thinking::of_ollama).unwrap(), (Some(expected), None));
        }
        assert!(read(json!({"think": 3}), Thinking::of_ollama).is_err());
        let fields = json!({"reasoning": {"effort": "none"}});
        assert_eq!(read(fields, Thinking::of_response).unwrap(), (Some(false), None));
        let fields = json!({"reasoning": {"summary": "auto"}});
        assert_eq!(read(fields, Thinking::of_response).unwrap(), (None, None));
    }
}
