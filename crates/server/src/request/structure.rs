//! Structured output: the fields that ask for it in each dialect.

use std::sync::Arc;

use serde_json::{Map, Value};
use trine_text::{Grammar, GrammarCache, GrammarCompiler, GrammarError, GrammarSource, Tokenizer};

use crate::error::{ApiError, Code};
use crate::models::LoadedModel;
use crate::request::fields::{Fields, Harmless, Row, Rows, Unsupported, Within, rows};

/// Most compiled grammars that a model keeps, and the memory for them in bytes.
const GRAMMARS_MAX: usize = 256;
const GRAMMAR_BYTES_MAX: usize = 64 << 20;

/// Returns a cache of compiled grammars for a model with this tokenizer. Costs nothing until the
/// first grammar is compiled.
pub fn grammar_cache(tokenizer: &Arc<Tokenizer>) -> GrammarCache {
    GrammarCache::new(GrammarCompiler::new(Arc::clone(tokenizer)), GRAMMARS_MAX, GRAMMAR_BYTES_MAX)
}

rows! {
    FIELDS {
        /// At most one of the fields that say what the text looks like is taken.
        RESPONSE_FORMAT: Map<String, Value> = "response_format", as schema("ResponseFormat");
    }
    /// The fields of a format of OpenAI.
    FORMAT {
        TYPE! str = "type", as choice(["text", "json_object", "json_schema"]);
        /// The schema, beside the type.
        SCHEMA: Value = "schema", as json_schema();
        /// The schema, as chats of OpenAI have it.
        NAMED_SCHEMA: Map<String, Value> = "json_schema", as body(&[NAMED]);
    }
    /// The fields of a schema with a name.
    NAMED {
        OF_NAME! Value = "schema", as json_schema();
    }
    /// The fields of llama.cpp, vLLM and SGLang, which every dialect accepts.
    OTHERS {
        /// llama.cpp's: a JSON schema.
        JSON_SCHEMA: Value = "json_schema", as json_schema();
        /// llama.cpp's: GBNF; with the first line `%llguidance` Lark.
        GRAMMAR: str = "grammar";
        /// vLLM's: a JSON schema, or a text that holds one.
        GUIDED_JSON: Value = "guided_json", as json_schema();
        /// vLLM's: a regular expression.
        GUIDED_REGEX: str = "guided_regex";
        /// SGLang's: the same.
        REGEX: str = "regex";
        /// The text is one of these.
        GUIDED_CHOICE: [Value] = "guided_choice", as list(text());
        /// GBNF if it has `::=`, otherwise Lark.
        GUIDED_GRAMMAR: str = "guided_grammar";
        /// GBNF if it has `::=`, otherwise Lark.
        EBNF: str = "ebnf";
        STRUCTURED_OUTPUTS: Within = "structured_outputs",
            of &[OUTPUT, Rows::Refused(&OUTPUT_UNSUPPORTED)];
    }
    OUTPUT {
        OUTPUT_JSON: Value = "json", as json_schema();
        OUTPUT_REGEX: str = "regex";
        /// The text is one of these.
        OUTPUT_CHOICE: [Value] = "choice", as list(text());
        /// GBNF if it has `::=`, otherwise Lark.
        OUTPUT_GRAMMAR: str = "grammar";
        /// The text is a JSON object.
        OUTPUT_OBJECT: bool = "json_object";
    }
    /// The field of the Responses API.
    RESPONSE_TEXT {
        /// What the text looks like.
        TEXT: Within = "text", of &[TEXT_FORMAT];
    }
    TEXT_FORMAT {
        TEXT_OWN: Map<String, Value> = "format", as schema("ResponseFormat");
    }
    /// The field of Anthropic's messages.
    CONFIG {
        /// What the text looks like.
        OUTPUT_CONFIG: Within = "output_config", of &[TEXT_FORMAT, EFFORT];
    }
    BETA_FORMAT {
        /// The same, as it was called in a beta.
        OUTPUT_FORMAT: Map<String, Value> = "output_format", as schema("ResponseFormat");
    }
    EFFORT {
        /// Checked, and changes nothing.
        OUTPUT_EFFORT: str = "effort", as efforts();
    }
    /// The field of Ollama's requests.
    OLLAMA {
        /// What the text looks like: JSON, or what a JSON schema says.
        OLLAMA_FORMAT: Value = "format",
            as one_of(vec![json!({"enum": ["", "json"]}), free_object()]);
    }
}

const OUTPUT_UNSUPPORTED: [Unsupported; 2] = [
    ("structural_tag", Harmless::Absent, "use json, regex, choice or grammar"),
    ("whitespace_pattern", Harmless::Absent, "use json, regex, choice or grammar"),
];

/// The form that a text must have, and the field that demands it.
#[derive(Debug, Clone)]
pub(crate) struct Structure {
    source: GrammarSource,
    pub(crate) param: String,
}

impl Structure {
    /// Reads the fields of OpenAI's chats and completions, and those of llama.cpp, vLLM and SGLang.
    ///
    /// # Errors
    /// 400 naming a field of a wrong shape, or the second one of two.
    pub(crate) fn read(fields: Fields<'_>) -> Result<Option<Self>, ApiError> {
        only_one([response_format(fields)?].into_iter().chain(of_others(fields)?))
    }

    /// Reads `text.format` of OpenAI's Responses API, in whose place a later item of the
    /// conversation may have put another one, and the fields of llama.cpp, vLLM and SGLang.
    ///
    /// # Errors
    /// 400 naming the field of a wrong shape, or the second one of two.
    pub(crate) fn of_response(
        fields: Fields<'_>,
        updated: Option<(String, &Map<String, Value>)>,
    ) -> Result<Option<Self>, ApiError> {
        let own = fields.read(&TEXT)?.map(|text| text.read(&TEXT_OWN)).transpose()?.flatten();
        let own = own.map(|format| ("text.format".to_owned(), format));
        let format = match updated.or(own) {
            None => None,
            Some((path, format)) => read_format(&path, format)?,
        };
        only_one([format].into_iter().chain(of_others(fields)?))
    }

    /// Reads `output_config.format` of Anthropic's messages, and `output_format`, its name in their
    /// beta, and the fields of llama.cpp, vLLM and SGLang.
    ///
    /// # Errors
    /// 400 naming the field of a wrong shape, or the second one of two.
    pub(crate) fn of_message(fields: Fields<'_>) -> Result<Option<Self>, ApiError> {
        let read = |path: &str, format: Option<&Map<String, Value>>| match format {
            None => Ok(None),
            Some(format) => read_format(path, format),
        };
        let config = fields.read(&OUTPUT_CONFIG)?;
        let config = config.map(|config| config.read(&TEXT_OWN)).transpose()?.flatten();
        let formats = [
            read("output_config.format", config)?,
            read("output_format", fields.read(&OUTPUT_FORMAT)?)?,
        ];
        only_one(formats.into_iter().chain(of_others(fields)?))
    }

    /// Reads Ollama's `format`, which is `json` or a schema, and the fields of llama.cpp, vLLM and
    /// SGLang.
    ///
    /// # Errors
    /// 400 for another value, naming the field, or naming the second of two fields.
    pub(crate) fn of_ollama(fields: Fields<'_>) -> Result<Option<Self>, ApiError> {
        let source = match fields.get(&OLLAMA_FORMAT) {
            None => None,
            Some(Value::String(text)) if text.is_empty() => None,
            Some(Value::String(text)) if text == "json" => Some(GrammarSource::JsonObject),
            Some(schema @ Value::Object(_)) => Some(GrammarSource::JsonSchema(schema.to_string())),
            Some(_) => return Err(fields.wrong("format", "\"json\" or a JSON schema")),
        };
        let format = source.map(|source| Self { source, param: "format".to_owned() });
        only_one([format].into_iter().chain(of_others(fields)?))
    }

    /// Returns the JSON schema, if it is one.
    pub(crate) fn schema(&self) -> Option<&str> {
        match &self.source {
            GrammarSource::JsonSchema(schema) => Some(schema),
            GrammarSource::JsonObject => Some(r#"{"type": "object"}"#),
            _ => None,
        }
    }

    /// Returns the compiled grammar. For a thread that may wait.
    ///
    /// # Errors
    /// 400 naming the field if the source is not a grammar, or costs more than one request may.
    pub(crate) fn compile(&self, model: &LoadedModel) -> Result<Arc<Grammar>, ApiError> {
        model.grammars.get(&self.source).map_err(|error| refused(&error, &self.param))
    }
}

/// Returns the error of a source that came in the field `param`.
pub(crate) fn refused(error: &GrammarError, param: &str) -> ApiError {
    match error {
        GrammarError::Invalid { .. }
        | GrammarError::TooLarge { .. }
        | GrammarError::TooMuchWork { .. }
        | GrammarError::Tool { .. }
        | GrammarError::Tokenizer(_) => {
            ApiError { code: Code::InvalidGrammar, ..ApiError::field(param, error.to_string()) }
        }
        error => ApiError::internal(error.to_string()),
    }
}

/// Reads the fields of llama.cpp, vLLM and SGLang, which every dialect accepts.
fn of_others(fields: Fields<'_>) -> Result<[Option<Structure>; 9], ApiError> {
    Ok([
        json_schema(fields, &JSON_SCHEMA),
        text(fields, &GRAMMAR, gbnf)?,
        json_schema(fields, &GUIDED_JSON),
        text(fields, &GUIDED_REGEX, GrammarSource::Regex)?,
        text(fields, &REGEX, GrammarSource::Regex)?,
        choice(fields, &GUIDED_CHOICE)?,
        text(fields, &GUIDED_GRAMMAR, gbnf_or_lark)?,
        text(fields, &EBNF, gbnf_or_lark)?,
        structured_outputs(fields)?,
    ])
}

fn only_one(
    found: impl IntoIterator<Item = Option<Structure>>,
) -> Result<Option<Structure>, ApiError> {
    let mut found = found.into_iter().flatten();
    let first = found.next();
    match (&first, found.next()) {
        (Some(first), Some(second)) => {
            let message = format!(
                "{} and {} both say what the text must look like; use one of them",
                first.param, second.param
            );
            Err(ApiError::field(second.param, message))
        }
        _ => Ok(first),
    }
}

fn response_format(fields: Fields<'_>) -> Result<Option<Structure>, ApiError> {
    match fields.read(&RESPONSE_FORMAT)? {
        None => Ok(None),
        Some(format) => read_format(OF_CHATS, format),
    }
}

/// The field of chats with the format of answers.
const OF_CHATS: &str = "response_format";

/// Reads a format of OpenAI: in chats the schema is in `json_schema`, in Responses beside the type;
/// llama.cpp has it beside the type of `json_object` too.
fn read_format(path: &str, format: &Map<String, Value>) -> Result<Option<Structure>, ApiError> {
    let prefix = format!("{path}.");
    let fields = Fields::within(format, &prefix, &[FORMAT]);
    let schema = |schema: &Value, param: String| {
        Some(Structure { source: GrammarSource::JsonSchema(schema.to_string()), param })
    };
    match fields.read(&TYPE)? {
        Some("text") => Ok(None),
        Some("json_object") => Ok(match fields.get(&SCHEMA) {
            Some(value) => schema(value, fields.path("schema")),
            None => Some(Structure { source: GrammarSource::JsonObject, param: path.to_owned() }),
        }),
        Some("json_schema") => {
            if let Some(value) = fields.get(&SCHEMA) {
                return Ok(schema(value, fields.path("schema")));
            }
            let Some(named) = fields.read(&NAMED_SCHEMA)? else {
                return Err(match path {
                    OF_CHATS => fields.wrong("json_schema", "an object with a schema"),
                    _ => fields.wrong("schema", "a JSON schema"),
                });
            };
            let prefix = format!("{path}.json_schema.");
            let named = Fields::within(named, &prefix, &[NAMED]);
            let value = named.get(&OF_NAME);
            let value = value.ok_or_else(|| named.wrong("schema", "a JSON schema"))?;
            Ok(schema(value, named.path("schema")))
        }
        _ => Err(fields.wrong("type", "text, json_object or json_schema")),
    }
}

/// Reads a schema, as JSON or as a text that holds it.
fn json_schema(fields: Fields<'_>, row: &Row<Value>) -> Option<Structure> {
    let text = match fields.get(row)? {
        Value::String(text) if text.is_empty() => return None,
        Value::String(text) => text.clone(),
        schema => schema.to_string(),
    };
    Some(Structure { source: GrammarSource::JsonSchema(text), param: fields.path(row.name) })
}

/// Distinguishes the languages of llama.cpp's `grammar`, which is GBNF unless its first line is
/// `%llguidance`.
fn gbnf(text: String) -> GrammarSource {
    let is_lark = text.starts_with("%llguidance");
    if is_lark { GrammarSource::Lark(text) } else { GrammarSource::Gbnf(text) }
}

/// Distinguishes GBNF from Lark: vLLM takes both in one field. Only rules of GBNF have this sign.
fn gbnf_or_lark(text: String) -> GrammarSource {
    if text.contains("::=") { GrammarSource::Gbnf(text) } else { GrammarSource::Lark(text) }
}

fn text(
    fields: Fields<'_>,
    row: &Row<str>,
    source: fn(String) -> GrammarSource,
) -> Result<Option<Structure>, ApiError> {
    let text = fields.read(row)?.filter(|text| !text.is_empty());
    let param = fields.path(row.name);
    Ok(text.map(|text| Structure { source: source(text.to_owned()), param }))
}

fn choice(fields: Fields<'_>, row: &Row<[Value]>) -> Result<Option<Structure>, ApiError> {
    let Some(items) = fields.read(row)? else { return Ok(None) };
    let name = row.name;
    if items.is_empty() {
        return Err(fields.wrong(name, "a list of one text or more"));
    }
    let choices: Option<Vec<String>> =
        items.iter().map(|item| item.as_str().map(str::to_owned)).collect();
    let choices = choices.ok_or_else(|| fields.wrong(name, "a list of texts"))?;
    Ok(Some(Structure { source: GrammarSource::Choice(choices), param: fields.path(name) }))
}

fn structured_outputs(fields: Fields<'_>) -> Result<Option<Structure>, ApiError> {
    let Some(fields) = fields.read(&STRUCTURED_OUTPUTS)? else { return Ok(None) };
    fields.refuse(&OUTPUT_UNSUPPORTED)?;
    let object = fields.read(&OUTPUT_OBJECT)?.filter(|wanted| *wanted);
    let object = object.map(|_| Structure {
        source: GrammarSource::JsonObject,
        param: fields.path(OUTPUT_OBJECT.name),
    });
    let found = only_one([
        json_schema(fields, &OUTPUT_JSON),
        text(fields, &OUTPUT_REGEX, GrammarSource::Regex)?,
        choice(fields, &OUTPUT_CHOICE)?,
        text(fields, &OUTPUT_GRAMMAR, gbnf_or_lark)?,
        object,
    ])?;
    match fields.among(&["json", "regex", "choice", "grammar"]).next() {
        // A client that sends the object wants the text to have some form.
        Some((name, _)) if found.is_none() => {
            Err(fields.wrong(name, "a text or a list that is not empty"))
        }
        _ => Ok(found),
    }
}
