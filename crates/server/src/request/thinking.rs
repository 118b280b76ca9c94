//! Whether and how much a model may think before it answers: the fields of each dialect.

use serde_json::{Map, Value};
use trine_text::{ChatTemplate, ReplyFormat, Thoughts};

use crate::error::ApiError;
use crate::request::fields::{Fields, Harmless, Row, Rows, Unsupported, Within, rows};
use crate::request::parameters::TOKENS_MAX;
use crate::request::structure::{OUTPUT_CONFIG, OUTPUT_EFFORT};

/// The variable of templates that turns thinking on.
const VARIABLE: &str = "enable_thinking";

/// The names by which templates of other families call what turns thinking on or bounds it.
const OTHER_VARIABLES: [&str; 4] = ["thinking", "think", "reasoning", "thinking_budget"];

/// Returns those of the variables for a template that are about thinking and that it does not read.
pub(crate) fn unread(variables: &Map<String, Value>, template: &ChatTemplate) -> Vec<&'static str> {
    let given = |name: &&str| variables.get(*name).and_then(said).is_some();
    let mut names: Vec<_> = OTHER_VARIABLES.into_iter().filter(given).collect();
    if names.is_empty() {
        return names;
    }
    // A template that cannot be compiled is an error where it is rendered.
    let Ok(read) = template.variables() else { return Vec::new() };
    names.retain(|name| !read.contains(*name));
    names
}

/// The efforts that a request may name. All but the first let the model think, and none limits it.
/// `ultra` is Ollama's, `default` Groq's.
pub(crate) const EFFORTS: [&str; 9] =
    ["none", "minimal", "low", "medium", "high", "xhigh", "max", "ultra", "default"];

rows! {
    /// The fields with the most tokens of thoughts, as vLLM, llama.cpp and Qwen call them. Every
    /// dialect takes them.
    BUDGETS {
        /// Most tokens of thoughts, -1 for any number. By itself it lets a model think that can.
        TOKEN_BUDGET: i64 = "thinking_token_budget", in -1..=TOKENS_MAX as i64;
        /// The same.
        BUDGET_TOKENS: i64 = "thinking_budget_tokens", in -1..=TOKENS_MAX as i64;
        /// The same.
        BUDGET: i64 = "thinking_budget", in -1..=TOKENS_MAX as i64;
    }
    /// The fields of OpenAI's chats, which templates read too.
    CHATS {
        /// Variables for the model's template.
        VARIABLES: Map<String, Value> = "chat_template_kwargs";
        /// A variable for the model's template; a model that can think does, unless it is none.
        REASONING_EFFORT: str = "reasoning_effort", as efforts();
        /// Whether the model thinks before it answers, if it can.
        ENABLE_THINKING: bool = "enable_thinking";
    }
    /// The fields of Anthropic's messages.
    MESSAGES {
        /// Whether the model thinks before it answers, if it can.
        MESSAGE_THINKING: Within = "thinking", of &[MESSAGE_FIELDS];
    }
    MESSAGE_FIELDS {
        TYPE! str = "type", as choice(["adaptive", "enabled", "between_tools", "disabled"]);
        /// Most tokens of thoughts.
        TYPE_BUDGET: usize = "budget_tokens", in 0..=TOKENS_MAX;
    }
    /// The field of the Responses API.
    RESPONSES {
        /// Whether the model thinks before it answers, if it can: not with the effort none.
        REASONING: Within = "reasoning", of &[RESPONSE_EFFORT];
    }
    RESPONSE_EFFORT {
        REASONING_OF: str = "effort", as efforts();
    }
    /// The field of Ollama's requests.
    OLLAMA {
        /// Whether the model thinks before it answers. Other values than false and none are refused
        /// for models that cannot.
        THINK: Value = "think", as one_of(vec![boolean(), efforts()]);
    }
}

/// The fields about thinking of each dialect.
pub(crate) const OF_CHATS: Rows =
    Rows::All(&[CHATS, BUDGETS, Rows::OthersThinking(OTHERS_OF_CHATS)]);
pub(crate) const OF_MESSAGES: Rows =
    Rows::All(&[MESSAGES, BUDGETS, Rows::OthersThinking(OTHERS_OF_MESSAGES)]);
pub(crate) const OF_RESPONSES: Rows =
    Rows::All(&[RESPONSES, BUDGETS, Rows::OthersThinking(OTHERS_OF_RESPONSES)]);
/// Those of Ollama without its own.
pub(crate) const REST_OF_OLLAMA: Rows =
    Rows::All(&[BUDGETS, Rows::OthersThinking(OTHERS_OF_OLLAMA)]);

/// The fields by which other dialects say whether a model is to think, for each dialect. They count
/// where its own say nothing: clients and the libraries between send what one large server
/// documents to all.
const OTHERS_OF_CHATS: &[&str] = &["thinking", "reasoning", "think"];
const OTHERS_OF_MESSAGES: &[&str] =
    &["reasoning_effort", "enable_thinking", "chat_template_kwargs", "reasoning", "think"];
const OTHERS_OF_RESPONSES: &[&str] =
    &["reasoning_effort", "enable_thinking", "chat_template_kwargs", "thinking", "think"];
const OTHERS_OF_OLLAMA: &[&str] =
    &["reasoning_effort", "enable_thinking", "chat_template_kwargs", "thinking", "reasoning"];

/// Why a text without a conversation has no thoughts that are told apart.
pub(crate) const RAW: &str =
    "the prompt decides whether the model thinks; use /v1/chat/completions";

/// The fields of thinking where nothing can be said about it.
pub(crate) const UNTHINKING: Rows =
    Rows::All(&[Rows::Refused(&BUDGETS_UNSUPPORTED), Rows::NoThinking(&SPELLINGS)]);

/// The fields by which requests of all dialects say whether a model is to think.
const SPELLINGS: [&str; 6] = [
    "reasoning_effort",
    "enable_thinking",
    "chat_template_kwargs",
    "thinking",
    "reasoning",
    "think",
];

const BUDGETS_UNSUPPORTED: [Unsupported; 3] = [
    (TOKEN_BUDGET.name, Harmless::UpTo(0.0), RAW),
    (BUDGET_TOKENS.name, Harmless::UpTo(0.0), RAW),
    (BUDGET.name, Harmless::UpTo(0.0), RAW),
];

/// Refuses every field that asks for thoughts, of a text without a conversation.
///
/// # Errors
/// 400 naming the first one.
pub(crate) fn refuse(fields: Fields<'_>) -> Result<(), ApiError> {
    fields.refuse(&BUDGETS_UNSUPPORTED)?;
    match fields.among(&SPELLINGS).find(|(_, value)| said(value) == Some(true)) {
        Some((name, _)) => Err(ApiError::unsupported(fields.path(name), RAW)),
        None => Ok(()),
    }
}

/// Words that say no in the place of an effort or a type.
const NO: [&str; 3] = ["none", "disabled", "off"];

/// Returns whether a value of any of the fields asks for thoughts (true) or forbids them (false);
/// `None` if it does neither.
fn said(value: &Value) -> Option<bool> {
    match value {
        Value::Null => None,
        Value::Bool(on) => Some(*on),
        Value::Number(tokens) => Some(tokens.as_f64().is_none_or(|tokens| tokens > 0.0)),
        Value::String(word) => (!word.is_empty()).then(|| !NO.contains(&word.as_str())),
        Value::Array(items) => (!items.is_empty()).then_some(true),
        Value::Object(map) => {
            let of_field = |(name, value): (&String, &Value)| match name.as_str() {
                "type" | "enabled" | VARIABLE => said(value).map(|on| (on, true)),
                "effort" | "reasoning_effort" | "max_tokens" | "budget_tokens" => {
                    said(value).map(|on| (on, false))
                }
                _ => None,
            };
            // A switch that is off counts more than how much there would be.
            let all: Vec<(bool, bool)> = map.iter().filter_map(of_field).collect();
            let is_off = all.contains(&(false, true));
            (!all.is_empty()).then(|| !is_off && all.iter().any(|(on, _)| *on))
        }
    }
}

/// Returns the most tokens of thoughts that a field of another dialect names.
fn budget_in(value: &Value) -> Option<usize> {
    let fields = ["budget_tokens", "max_tokens"];
    let tokens = fields.iter().find_map(|field| value.get(field).and_then(Value::as_u64))?;
    usize::try_from(tokens).ok().filter(|tokens| *tokens <= TOKENS_MAX)
}

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
        let of_effort = effort(fields, &REASONING_EFFORT)?;
        let of_variable = match fields.read(&VARIABLES)? {
            None => None,
            Some(variables) => {
                let variables = Fields::within(variables, "chat_template_kwargs.", &[CHATS]);
                variables.read(&ENABLE_THINKING)?
            }
        };
        let on = fields.read(&ENABLE_THINKING)?.or(of_variable).or(of_effort);
        Self { on, budget: None, demand: None }.within_budget(fields, OTHERS_OF_CHATS)
    }

    /// Reads `thinking` of Anthropic's messages, and checks the effort of `output_config`, which
    /// lets no model think there.
    ///
    /// # Errors
    /// 400 naming a field of a wrong type, and for another kind of thinking.
    pub(crate) fn of_message(fields: Fields<'_>) -> Result<Self, ApiError> {
        if let Some(config) = fields.read(&OUTPUT_CONFIG)? {
            effort(config, &OUTPUT_EFFORT)?;
        }
        let Some(thinking) = fields.read(&MESSAGE_THINKING)? else {
            return Self::default().within_budget(fields, OTHERS_OF_MESSAGES);
        };
        let on = match thinking.read(&TYPE)? {
            Some("adaptive" | "enabled" | "between_tools") => true,
            Some("disabled") => false,
            _ => {
                let expected = "adaptive, enabled, between_tools or disabled";
                return Err(thinking.wrong("type", expected));
            }
        };
        let budget = thinking.read(&TYPE_BUDGET)?;
        Self { on: Some(on), budget, demand: None }.within_budget(fields, OTHERS_OF_MESSAGES)
    }

    /// Reads `think` of Ollama's requests.
    ///
    /// # Errors
    /// 400 for another value than a boolean or an effort.
    pub(crate) fn of_ollama(fields: Fields<'_>) -> Result<Self, ApiError> {
        let on = match fields.get(&THINK) {
            None => None,
            Some(Value::Bool(on)) => Some(*on),
            Some(Value::String(name)) if name.is_empty() => None,
            Some(Value::String(name)) if EFFORTS.contains(&&**name) => Some(is_effort(name)),
            Some(_) => {
                let expected = format!("true, false, or an effort: {}", EFFORTS.join(", "));
                return Err(fields.wrong("think", &expected));
            }
        };
        let demand = (on == Some(true)).then_some("think");
        Self { on, budget: None, demand }.within_budget(fields, OTHERS_OF_OLLAMA)
    }

    /// Reads `reasoning` of the Responses API.
    ///
    /// # Errors
    /// 400 naming a field of a wrong type.
    pub(crate) fn of_response(fields: Fields<'_>) -> Result<Self, ApiError> {
        let on = match fields.read(&REASONING)? {
            None => None,
            Some(reasoning) => effort(reasoning, &REASONING_OF)?,
        };
        Self { on, ..Self::default() }.within_budget(fields, OTHERS_OF_RESPONSES)
    }

    /// Returns it with the effort that a later item of the conversation sets. `prefix` is the
    /// item's place, with a dot.
    ///
    /// # Errors
    /// 400 for an effort that is none.
    pub(crate) fn updated(self, item: &Map<String, Value>, prefix: &str) -> Result<Self, ApiError> {
        // Refuses what is no object.
        Fields::within(item, prefix, &[RESPONSES]).read(&REASONING)?;
        let Some(reasoning) = item.get(REASONING.name).and_then(Value::as_object) else {
            return Ok(self);
        };
        let prefix = format!("{prefix}{}.", REASONING.name);
        let on = effort(Fields::within(reasoning, &prefix, &[RESPONSE_EFFORT]), &REASONING_OF)?;
        Ok(Self { on: on.or(self.on), ..self })
    }

    /// Reads the budget that every dialect takes, unless there is one of the dialect's own. By
    /// itself it turns thinking on; a budget of no tokens turns it off. Then reads the fields of
    /// other dialects, which count where the dialect's own say nothing.
    fn within_budget(
        mut self,
        fields: Fields<'_>,
        others: &[&'static str],
    ) -> Result<Self, ApiError> {
        for row in [&TOKEN_BUDGET, &BUDGET_TOKENS, &BUDGET] {
            let name = row.name;
            let Some(tokens) = fields.read(row)? else { continue };
            let Ok(tokens) = usize::try_from(tokens) else { continue };
            if self.budget.is_some_and(|other| other != tokens) {
                let message = format!("{name} differs from another budget of thoughts; use one");
                return Err(ApiError::field(name, message));
            }
            self.budget = Some(tokens);
        }
        match self.budget {
            None => {}
            Some(0) => self.on = Some(false),
            Some(_) => self.on = self.on.or(Some(true)),
        }
        let others: Vec<&Value> = fields.among(others).map(|(_, value)| value).collect();
        self.on = self.on.or_else(|| others.iter().find_map(|value| said(value)));
        if self.on == Some(true) && self.budget.is_none() {
            self.budget = others.iter().find_map(|value| budget_in(value)).filter(|it| *it > 0);
        }
        Ok(self)
    }

    /// Checks that a text without a conversation can be written as the request says.
    ///
    /// # Errors
    /// 400 naming a field that asks for thoughts.
    pub(crate) fn check_raw(self) -> Result<(), ApiError> {
        let budget = self.budget.filter(|budget| *budget > 0).map(|_| TOKEN_BUDGET.name);
        match self.demand.or(budget) {
            Some(param) => Err(ApiError::unsupported(param, RAW)),
            None => Ok(()),
        }
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

    /// Returns how a reply's thoughts are held. They may come unasked, unless they are forbidden. A
    /// budget of no tokens is kept: it bars them without a grammar, too. `is_open` says whether the
    /// prompt has opened one.
    pub(crate) fn thoughts(self, format: &dyn ReplyFormat, is_open: bool) -> Option<Thoughts> {
        let marks = format.thoughts()?;
        let allowed = self.on != Some(false);
        let budget = self.budget.filter(|tokens| allowed || *tokens == 0);
        Some(Thoughts { marks, allowed, budget, is_open })
    }
}

/// Reads a field with an effort: whether the model is to think.
fn effort(fields: Fields<'_>, row: &Row<str>) -> Result<Option<bool>, ApiError> {
    let Some(effort) = fields.read(row)?.filter(|effort| !effort.is_empty()) else {
        return Ok(None);
    };
    if !EFFORTS.contains(&effort) {
        return Err(fields.wrong(row.name, &format!("one of {}", EFFORTS.join(", "))));
    }
    Ok(Some(is_effort(effort)))
}

/// Returns whether an effort is one.
fn is_effort(effort: &str) -> bool {
    effort != "none"
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const NAMES: [&str; 3] = [TOKEN_BUDGET.name, BUDGET_TOKENS.name, BUDGET.name];

    #[test]
    fn variables_that_a_template_does_not_read_are_found() {
        let given = json!({
            "thinking": true, "think": null, "reasoning": {}, "thinking_budget": 5, "a": 1,
        });
        let variables = given.as_object().unwrap();
        let found = |template: &str| unread(variables, &ChatTemplate::new(template).unwrap());
        assert_eq!(found("{{ enable_thinking }}"), ["thinking", "thinking_budget"]);
        assert_eq!(found("{% if thinking %}{% endif %}"), ["thinking_budget"]);
        assert_eq!(found("{{ thinking_budget or thinking }}"), [""; 0]);
        let default = "{% set thinking = thinking | default(false) %}{{ thinking }}";
        assert_eq!(found(default), ["thinking_budget"]);
    }

    /// It has thoughts of messages and a token by these names, which are no variables.
    #[test]
    fn the_template_of_gemma_4_reads_one_variable_of_thinking() {
        let given = json!({
            "thinking": true, "think": true, "reasoning": true, "thinking_budget": 5,
        });
        let variables = given.as_object().unwrap();
        for is_large in [false, true] {
            let template = ChatTemplate::gemma4(is_large);
            assert_eq!(unread(variables, &template), OTHER_VARIABLES);
            assert!(template.variables().unwrap().contains(VARIABLE));
        }
    }

    #[test]
    fn a_no_is_read_in_every_spelling() {
        for (value, expected) in [
            (json!(null), None),
            (json!({"type": null}), None),
            (json!({}), None),
            (json!("disabled"), Some(false)),
            (json!("off"), Some(false)),
            (json!("low"), Some(true)),
            (json!({"type": "disabled", "budget_tokens": 1024}), Some(false)),
            (json!({"enabled": false, "effort": "high"}), Some(false)),
            (json!({"effort": "none"}), Some(false)),
            (json!({"type": "enabled", "budget_tokens": 1024}), Some(true)),
            (json!({"effort": "high"}), Some(true)),
            (json!({"enable_thinking": false}), Some(false)),
        ] {
            assert_eq!(said(&value), expected, "{value}");
        }
    }

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
            (json!({"thinking_token_budget": 7}), (Some(true), Some(7))),
            (
                json!({"thinking_token_budget": 7, "thinking_budget_tokens": 7}),
                (Some(true), Some(7)),
            ),
            (
                json!({"reasoning_effort": "none", "thinking_token_budget": 7}),
                (Some(false), Some(7)),
            ),
            (json!({"thinking_token_budget": -1}), (None, None)),
        ] {
            assert_eq!(read(fields.clone(), Thinking::read).unwrap(), expected, "{fields}");
        }
        for (thinking, expected) in [
            (json!({"type": "enabled", "budget_tokens": 1024}), (Some(true), Some(1024))),
            (json!({"type": "adaptive"}), (Some(true), None)),
            (json!({"type": "between_tools"}), (Some(true), None)),
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

    type Reader = fn(Fields<'_>) -> Result<Thinking, ApiError>;

    fn read(reader: Reader, fields: &Value) -> Result<Thinking, ApiError> {
        reader(Fields::new(fields.as_object().unwrap()))
    }

    const DIALECTS: [Reader; 4] =
        [Thinking::read, Thinking::of_message, Thinking::of_ollama, Thinking::of_response];

    #[test]
    fn every_dialect_checks_efforts() {
        let fields = |effort: &str| {
            [
                (json!({ "reasoning_effort": effort }), "reasoning_effort"),
                (json!({"output_config": {"effort": effort}}), "output_config.effort"),
                (json!({ "think": effort }), "think"),
                (json!({"reasoning": {"effort": effort}}), "reasoning.effort"),
            ]
        };
        for effort in EFFORTS {
            for (reader, (fields, name)) in DIALECTS.into_iter().zip(fields(effort)) {
                let thinking = read(reader, &fields).unwrap();
                let is_on = (name != "output_config.effort").then_some(effort != "none");
                assert_eq!(thinking.on, is_on, "{fields}");
            }
        }
        for (reader, (fields, _)) in DIALECTS.into_iter().zip(fields("")) {
            assert_eq!(read(reader, &fields).unwrap().on, None, "{fields}");
        }
        for wrong in ["hard", "High"] {
            for (reader, (fields, name)) in DIALECTS.into_iter().zip(fields(wrong)) {
                let error = read(reader, &fields).unwrap_err();
                assert_eq!(error.param.as_deref(), Some(name), "{fields}");
                assert!(error.message.contains("minimal"), "{}", error.message);
            }
        }
    }

    /// Fields as one large server each documents them: OpenRouter, DeepSeek, Kimi, Ollama, vLLM.
    #[test]
    fn spellings_of_other_dialects_are_read_where_the_own_says_nothing() {
        let asking = [
            (json!({"reasoning_effort": "low"}), None),
            (json!({"enable_thinking": true}), None),
            (json!({"chat_template_kwargs": {"enable_thinking": true, "a": 1}}), None),
            (json!({"thinking": {"type": "enabled", "budget_tokens": 1024}}), Some(1024)),
            (json!({"thinking": {"type": "adaptive"}}), None),
            (json!({"reasoning": {"effort": "high"}}), None),
            (json!({"reasoning": {"max_tokens": 100}}), Some(100)),
            (json!({"reasoning": {"enabled": true}}), None),
            (json!({"think": true}), None),
            (json!({"think": "low"}), None),
        ];
        let not_asking = [
            json!({"reasoning_effort": "none"}),
            json!({"enable_thinking": false}),
            json!({"chat_template_kwargs": {"enable_thinking": false, "a": 1}}),
            json!({"chat_template_kwargs": {"a": 1}}),
            json!({"thinking": {"type": "disabled"}}),
            json!({"reasoning": {"effort": "none"}}),
            json!({"reasoning": {"summary": "auto"}}),
            json!({"think": false}),
        ];
        let own_no = [
            json!({"reasoning_effort": "none"}),
            json!({"thinking": {"type": "disabled"}}),
            json!({"think": false}),
            json!({"reasoning": {"effort": "none"}}),
        ];
        let name_of = |fields: &Value| fields.as_object().unwrap().keys().next().unwrap().clone();
        let others = [OTHERS_OF_CHATS, OTHERS_OF_MESSAGES, OTHERS_OF_OLLAMA, OTHERS_OF_RESPONSES];
        for ((reader, others), no) in DIALECTS.into_iter().zip(others).zip(own_no) {
            for (fields, budget) in &asking {
                let (name, thinking) = (name_of(fields), read(reader, fields).unwrap());
                if !others.contains(&&*name) {
                    continue;
                }
                assert_eq!((thinking.on, thinking.budget), (Some(true), *budget), "{fields}");
                // Only the own field is a demand.
                assert_eq!(thinking.demand, None, "{fields}");
                let mut both = no.clone();
                both[&name] = fields[&name].clone();
                assert_eq!(read(reader, &both).unwrap().on, Some(false), "{both}");
            }
            for fields in &not_asking {
                assert_ne!(read(reader, fields).unwrap().on, Some(true), "{fields}");
            }
        }
        assert_eq!(read(Thinking::read, &json!({"thinking": true})).unwrap().on, Some(true));
        for (fields, _) in &asking {
            let error = refuse(Fields::new(fields.as_object().unwrap())).unwrap_err();
            assert_eq!(error.param, Some(name_of(fields)));
        }
        for fields in &not_asking {
            refuse(Fields::new(fields.as_object().unwrap())).unwrap();
        }
        for name in NAMES {
            let fields = json!({ name: 5 });
            let error = refuse(Fields::new(fields.as_object().unwrap())).unwrap_err();
            assert!(error.message.contains(RAW), "{}", error.message);
        }
    }

    #[test]
    fn later_items_set_the_effort() {
        let thinking =
            read(Thinking::of_response, &json!({"reasoning": {"effort": "low"}})).unwrap();
        let updated = |thinking: Thinking, item: Value| {
            thinking.updated(item.as_object().unwrap(), "input[0].").map(|thinking| thinking.on)
        };
        let effort = |effort: &str| json!({"reasoning": {"effort": effort}});
        assert_eq!(updated(thinking, effort("none")).unwrap(), Some(false));
        assert_eq!(updated(thinking, json!({})).unwrap(), Some(true));
        assert_eq!(updated(Thinking::default(), effort("high")).unwrap(), Some(true));
        let error = updated(thinking, effort("zz")).unwrap_err();
        assert_eq!(error.param.as_deref(), Some("input[0].reasoning.effort"));
    }

    #[test]
    fn a_budget_by_itself_turns_thinking_on_in_every_dialect() {
        for reader in DIALECTS {
            for name in NAMES {
                let thinking = read(reader, &json!({ name: 9 })).unwrap();
                assert_eq!((thinking.on, thinking.budget), (Some(true), Some(9)), "{name}");
                assert!(thinking.check_raw().is_err());
                let off = read(reader, &json!({ name: 0 })).unwrap();
                assert_eq!((off.on, off.budget), (Some(false), Some(0)), "{name}");
                assert!(off.check_raw().is_ok());
                let wrong = read(reader, &json!({ name: -2 })).unwrap_err();
                assert_eq!(wrong.param.as_deref(), Some(name));
            }
            let two = json!({ NAMES[0]: 9, NAMES[1]: 8 });
            assert_eq!(read(reader, &two).unwrap_err().param.as_deref(), Some(NAMES[1]));
        }
        let two = json!({"thinking": {"type": "enabled", "budget_tokens": 5}, NAMES[0]: 6});
        assert!(read(Thinking::of_message, &two).is_err());
    }
}
