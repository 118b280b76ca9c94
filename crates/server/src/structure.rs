//! Structured output: the fields that ask for it in each dialect.

use std::sync::Arc;

use serde_json::{Map, Value};
use trine_text::{Grammar, GrammarCache, GrammarCompiler, GrammarError, GrammarSource, Tokenizer};

use crate::error::{ApiError, Code};
use crate::json::Fields;
use crate::models::LoadedModel;

/// Most compiled grammars that a model keeps, and the memory for them in bytes.
const GRAMMARS_MAX: usize = 256;
const GRAMMAR_BYTES_MAX: usize = 64 << 20;

/// Returns a cache of compiled grammars for a model with this tokenizer. Costs nothing until the
/// first grammar is compiled.
pub fn grammar_cache(tokenizer: &Arc<Tokenizer>) -> GrammarCache {
    GrammarCache::new(GrammarCompiler::new(Arc::clone(tokenizer)), GRAMMARS_MAX, GRAMMAR_BYTES_MAX)
}

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
        let text = fields.object("text")?.map(|text| Fields::within(text, "text."));
        let own = text.map(|text| text.object("format")).transpose()?.flatten();
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
        let config = match fields.object("output_config")? {
            None => None,
            Some(config) => Fields::within(config, "output_config.").object("format")?,
        };
        let formats = [
            read("output_config.format", config)?,
            read("output_format", fields.object("output_format")?)?,
        ];
        only_one(formats.into_iter().chain(of_others(fields)?))
    }

    /// Reads Ollama's `format`, which is `json` or a schema, and the fields of llama.cpp, vLLM and
    /// SGLang.
    ///
    /// # Errors
    /// 400 for another value, naming the field, or naming the second of two fields.
    pub(crate) fn of_ollama(fields: Fields<'_>) -> Result<Option<Self>, ApiError> {
        let source = match fields.get("format") {
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
        json_schema(fields, "json_schema"),
        gbnf(fields)?,
        json_schema(fields, "guided_json"),
        text(fields, "guided_regex", GrammarSource::Regex)?,
        text(fields, "regex", GrammarSource::Regex)?,
        choice(fields, "guided_choice")?,
        text(fields, "guided_grammar", gbnf_or_lark)?,
        text(fields, "ebnf", gbnf_or_lark)?,
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
    match fields.object("response_format")? {
        None => Ok(None),
        Some(format) => read_format("response_format", format),
    }
}

/// Reads a format of OpenAI: in chats the schema is in `json_schema`, in Responses beside the type;
/// llama.cpp has it beside the type of `json_object` too.
fn read_format(path: &str, format: &Map<String, Value>) -> Result<Option<Structure>, ApiError> {
    let prefix = format!("{path}.");
    let fields = Fields::within(format, &prefix);
    let schema = |schema: &Value, param: String| {
        Some(Structure { source: GrammarSource::JsonSchema(schema.to_string()), param })
    };
    match fields.text("type")? {
        Some("text") => Ok(None),
        Some("json_object") => Ok(match fields.get("schema") {
            Some(value) => schema(value, fields.path("schema")),
            None => Some(Structure { source: GrammarSource::JsonObject, param: path.to_owned() }),
        }),
        Some("json_schema") => {
            if let Some(value) = fields.get("schema") {
                return Ok(schema(value, fields.path("schema")));
            }
            let Some(named) = fields.object("json_schema")? else {
                return Err(fields.wrong("json_schema", "an object with a schema"));
            };
            let prefix = format!("{path}.json_schema.");
            let named = Fields::within(named, &prefix);
            let value = named.get("schema");
            let value = value.ok_or_else(|| named.wrong("schema", "a JSON schema"))?;
            Ok(schema(value, named.path("schema")))
        }
        _ => Err(fields.wrong("type", "text, json_object or json_schema")),
    }
}

/// Reads a schema, as JSON or as a text that holds it.
fn json_schema(fields: Fields<'_>, name: &str) -> Option<Structure> {
    let text = match fields.get(name)? {
        Value::String(text) if text.is_empty() => return None,
        Value::String(text) => text.clone(),
        schema => schema.to_string(),
    };
    Some(Structure { source: GrammarSource::JsonSchema(text), param: fields.path(name) })
}

/// Reads llama.cpp's `grammar`, which is GBNF unless its first line is `%llguidance`.
fn gbnf(fields: Fields<'_>) -> Result<Option<Structure>, ApiError> {
    text(fields, "grammar", |text| {
        if text.starts_with("%llguidance") {
            GrammarSource::Lark(text)
        } else {
            GrammarSource::Gbnf(text)
        }
    })
}

/// Distinguishes GBNF from Lark: vLLM takes both in one field. Only rules of GBNF have this sign.
fn gbnf_or_lark(text: String) -> GrammarSource {
    if text.contains("::=") { GrammarSource::Gbnf(text) } else { GrammarSource::Lark(text) }
}

fn text(
    fields: Fields<'_>,
    name: &str,
    source: fn(String) -> GrammarSource,
) -> Result<Option<Structure>, ApiError> {
    let text = fields.text(name)?.filter(|text| !text.is_empty());
    Ok(text.map(|text| Structure { source: source(text.to_owned()), param: fields.path(name) }))
}

fn choice(fields: Fields<'_>, name: &str) -> Result<Option<Structure>, ApiError> {
    let Some(items) = fields.list(name)? else { return Ok(None) };
    if items.is_empty() {
        return Err(fields.wrong(name, "a list of one text or more"));
    }
    let choices: Option<Vec<String>> =
        items.iter().map(|item| item.as_str().map(str::to_owned)).collect();
    let choices = choices.ok_or_else(|| fields.wrong(name, "a list of texts"))?;
    Ok(Some(Structure { source: GrammarSource::Choice(choices), param: fields.path(name) }))
}

fn structured_outputs(fields: Fields<'_>) -> Result<Option<Structure>, ApiError> {
    let Some(map) = fields.object("structured_outputs")? else { return Ok(None) };
    let fields = Fields::within(map, "structured_outputs.");
    for name in ["structural_tag", "whitespace_pattern"] {
        if fields.get(name).is_some() {
            return Err(ApiError::unsupported(
                fields.path(name),
                "use json, regex, choice or grammar",
            ));
        }
    }
    let object = fields.boolean("json_object")?.unwrap_or(false);
    let object = object.then(|| Structure {
        source: GrammarSource::JsonObject,
        param: fields.path("json_object"),
    });
    let found = only_one([
        json_schema(fields, "json"),
        text(fields, "regex", GrammarSource::Regex)?,
        choice(fields, "choice")?,
        text(fields, "grammar", gbnf_or_lark)?,
        object,
    ])?;
    let named = ["json", "regex", "choice", "grammar"];
    match named.into_iter().find(|name| fields.get(name).is_some()) {
        // A client that sends the object wants the text to have some form.
        Some(name) if found.is_none() => {
            Err(fields.wrong(name, "a text or a list that is not empty"))
        }
        _ => Ok(found),
    }
}
