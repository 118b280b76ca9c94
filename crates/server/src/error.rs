//! The errors that a request can be answered with, in each dialect's words.

use std::borrow::Cow;

use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use axum::http::{Response, StatusCode};
use axum::response::IntoResponse;
use serde::Serialize;
use serde_json::{Value, json};
use trine_engine::{EngineError, Finish, PictureError};
use trine_text::TextError;

/// Seconds after which a client may try again when the server is full.
const RETRY_SECONDS: u32 = 1;

/// An answer that is not a result.
///
/// As a response it is a status without a body; the outermost layer writes the body in the dialect
/// of the request's path.
#[derive(Debug, Clone)]
pub(crate) struct ApiError {
    /// HTTP status.
    pub(crate) status: StatusCode,
    /// What went wrong and what to do, for people.
    pub(crate) message: String,
    /// What went wrong, for programs.
    pub(crate) code: Code,
    /// The field of the request that the error is about.
    pub(crate) param: Option<String>,
    /// Tokens of a prompt that is too long, or the fewest that it can have, and the context.
    pub(crate) counts: Option<(usize, usize)>,
    /// What else programs look for, in Anthropic's dialect.
    pub(crate) details: Option<Box<Value>>,
}

/// What went wrong, for programs. On the wire it is the variant's name in snake case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Code {
    /// The whole request makes no sense.
    InvalidRequest,
    /// A field has a value that is not allowed.
    InvalidValue,
    /// A field asks for something that this server does not support.
    UnsupportedParameter,
    /// The prompt is longer than the context.
    ContextLengthExceeded,
    /// The chat template refuses the conversation.
    TemplateError,
    /// The model has no chat template.
    NoChatTemplate,
    /// The required form of the text cannot be enforced.
    InvalidGrammar,
    /// The API key is missing or unknown.
    InvalidApiKey,
    /// A client has tried too many keys.
    TooManyWrongKeys,
    /// Web pages of this origin may not send requests.
    OriginNotAllowed,
    /// The server is not known under this name.
    HostNotAllowed,
    /// Models may not be changed here.
    LibraryClosed,
    /// There is no such path.
    NotFound,
    /// The path does not take this method.
    MethodNotAllowed,
    /// There is no such model.
    ModelNotFound,
    /// Requests use the model.
    ModelInUse,
    /// The body comes too slowly.
    BodyTimeout,
    /// The body is larger than bodies may be.
    BodyTooLarge,
    /// The body is of a media type that is not accepted.
    UnsupportedMediaType,
    /// The time that a request may take is over.
    DeadlineExceeded,
    /// The model does not support this kind of work.
    NotSupported,
    /// A defect of the server.
    InternalError,
    /// The model computes a value that is not a number.
    NonFiniteLogits,
    /// The vision tower failed on a picture.
    ImageFailed,
    /// A grammar could not be followed to its end.
    ConstraintFailed,
    /// Models could not be looked up, fetched or changed.
    LibraryFailed,
    /// The server is shutting down.
    Draining,
    /// There is no room for the request at the moment.
    Overloaded,
    /// The engine's queue is full.
    QueueFull,
    /// The device has failed.
    DeviceFailed,
    /// The model is not loaded, or cannot be.
    ModelNotLoaded,
}

/// The API whose wire format a path has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// `/v1/...`
    OpenAi,
    /// The same without `/v1`, as in llama.cpp's server.
    Llama,
    /// `/v1/messages`
    Anthropic,
    /// `/api/...`
    Ollama,
}

impl Dialect {
    /// Returns the dialect of a path.
    pub(crate) fn of(path: &str) -> Self {
        if path.starts_with("/v1/messages") {
            Dialect::Anthropic
        } else if path.starts_with("/api/") {
            Dialect::Ollama
        } else if path.starts_with("/v1/") || path == "/v1" {
            Dialect::OpenAi
        } else {
            Dialect::Llama
        }
    }

    /// Returns whether OpenAI's and Anthropic's API both have a path. The client's headers say
    /// whose it means.
    pub(crate) fn is_shared(path: &str) -> bool {
        path.strip_prefix("/v1").unwrap_or(path).starts_with("/models")
    }
}

impl ApiError {
    pub(crate) fn new(status: StatusCode, code: Code, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { status, message, code, param: None, counts: None, details: None }
    }

    /// Returns a 400 for the whole body.
    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, Code::InvalidRequest, message)
    }

    /// Returns a 400 for one field.
    pub(crate) fn field(param: impl Into<String>, message: impl Into<String>) -> Self {
        let param = Some(param.into());
        Self { param, ..Self::new(StatusCode::BAD_REQUEST, Code::InvalidValue, message) }
    }

    /// Returns a 400 for a field that would change what the answer means, and that this server does
    /// not support.
    pub(crate) fn unsupported(param: impl Into<String>, remedy: &str) -> Self {
        let param = param.into();
        let message = format!("{param} is not supported: {remedy}");
        Self { code: Code::UnsupportedParameter, ..Self::field(param, message) }
    }

    /// Returns a 404 for a model.
    pub(crate) fn unknown_model<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Self {
        let known: Vec<&str> = known.collect();
        let message = format!(
            "the model {} does not exist here; there are: {}",
            shown(name),
            known.join(", ")
        );
        Self {
            param: Some("model".to_owned()),
            ..Self::new(StatusCode::NOT_FOUND, Code::ModelNotFound, message)
        }
    }

    /// Returns a 403 for something that this server allows nobody.
    pub(crate) fn forbidden(code: Code, message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, code, message)
    }

    /// Returns the 503 of a server that is shutting down.
    pub(crate) fn draining() -> Self {
        let message = "the server is shutting down; send the request to another one";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, Code::Draining, message)
    }

    /// Returns a 503 for something other than the engine's queue being full.
    pub(crate) fn overloaded(message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, Code::Overloaded, message)
    }

    /// Returns a 500 for a defect.
    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, Code::InternalError, message)
    }

    /// Names the field that the error is about, unless one is named already.
    #[must_use]
    pub(crate) fn of_field(mut self, param: &str) -> Self {
        self.param.get_or_insert_with(|| param.to_owned());
        self
    }

    /// Adds what programs look for in Anthropic's dialect.
    #[must_use]
    pub(crate) fn with_details(self, details: Value) -> Self {
        Self { details: Some(Box::new(details)), ..self }
    }

    /// Returns the body in a dialect.
    pub(crate) fn body(&self, dialect: Dialect) -> Value {
        let message = &*self.message_in(dialect);
        match dialect {
            Dialect::OpenAi => json!({"error": {
                "message": message, "type": self.openai_type(), "param": self.param,
                "code": self.code,
            }}),
            Dialect::Llama => {
                let mut error = json!({
                    "code": self.status.as_u16(), "message": message,
                    "type": self.llama_type(), "param": self.param,
                });
                if let Some((prompt, context)) = self.counts {
                    error["n_prompt_tokens"] = prompt.into();
                    error["n_ctx"] = context.into();
                }
                json!({ "error": error })
            }
            Dialect::Anthropic => {
                let mut error = json!({"type": self.anthropic_type(), "message": message});
                if let Some(details) = &self.details {
                    error["details"] = (**details).clone();
                }
                json!({"type": "error", "error": error})
            }
            Dialect::Ollama => json!({ "error": message }),
        }
    }

    /// Returns the message. For a prompt that is too long it begins with the words of the dialect's
    /// own servers: clients look for these words to shorten a conversation and try again. Where
    /// errors have no field of their own for it, it names the field that is wrong.
    fn message_in(&self, dialect: Dialect) -> Cow<'_, str> {
        let Some((prompt, context)) = self.counts else {
            return match (&self.param, dialect) {
                (Some(param), Dialect::Anthropic | Dialect::Ollama)
                    if self.status == StatusCode::BAD_REQUEST && !self.message.contains(param) =>
                {
                    format!("{param}: {}", self.message).into()
                }
                _ => (&*self.message).into(),
            };
        };
        let begin = match dialect {
            Dialect::OpenAi => {
                let what = self.param.as_deref().unwrap_or("messages");
                format!(
                    "This model's maximum context length is {context} tokens. However, your {what} \
                     resulted in {prompt} tokens"
                )
            }
            Dialect::Llama => format!(
                "request ({prompt} tokens) exceeds the available context size ({context} tokens)"
            ),
            Dialect::Anthropic => {
                format!("prompt is too long: {prompt} tokens > {context} maximum")
            }
            Dialect::Ollama => "the input length exceeds the context length".to_owned(),
        };
        format!("{begin}: {}", self.message).into()
    }

    /// Returns the whole response in a dialect.
    pub(crate) fn response(&self, dialect: Dialect) -> Response<Body> {
        let mut response = Response::new(Body::from(self.body(dialect).to_string()));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if matches!(self.status.as_u16(), 429 | 503) {
            headers.insert(RETRY_AFTER, RETRY_SECONDS.into());
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert("www-authenticate", HeaderValue::from_static("Bearer"));
        }
        response
    }

    fn openai_type(&self) -> &'static str {
        match self.status.as_u16() {
            429 => "rate_limit_error",
            401 => "authentication_error",
            400..=499 => "invalid_request_error",
            503 => "service_unavailable",
            _ => "server_error",
        }
    }

    fn llama_type(&self) -> &'static str {
        match self.status.as_u16() {
            400 if self.counts.is_some() => "exceed_context_size_error",
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            400..=499 => "invalid_request_error",
            501 => "not_supported_error",
            503 => "unavailable_error",
            _ => "server_error",
        }
    }

    fn anthropic_type(&self) -> &'static str {
        match self.status.as_u16() {
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            413 => "request_too_large",
            429 => "rate_limit_error",
            503 => "overloaded_error",
            400..=499 => "invalid_request_error",
            _ => "api_error",
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response<Body> {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = self.status;
        response.extensions_mut().insert(self);
        response
    }
}

impl From<EngineError> for ApiError {
    fn from(error: EngineError) -> Self {
        let message = error.to_string();
        match error {
            EngineError::PromptTooLong { prompt, context } => Self {
                code: Code::ContextLengthExceeded,
                counts: Some((prompt, context)),
                ..Self::bad_request(message)
            },
            EngineError::PromptFarTooLong { least, context } => Self {
                code: Code::ContextLengthExceeded,
                counts: Some((least, context)),
                ..Self::bad_request(message)
            },
            EngineError::EmptyPrompt | EngineError::UnknownToken { .. } => {
                Self::bad_request(message)
            }
            EngineError::NoPictures
            | EngineError::PicturePlaces { .. }
            | EngineError::PictureTooWide { .. } => Self::bad_request(message),
            EngineError::BadSampling { field, .. } => Self::field(field, message),
            EngineError::BadOption { option, .. } => Self::field(option, message),
            EngineError::QueueFull { .. } => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, Code::QueueFull, message)
            }
            EngineError::Draining => Self::draining(),
            EngineError::NoEmbeddings | EngineError::OnlyEmbeds => {
                Self::new(StatusCode::NOT_IMPLEMENTED, Code::NotSupported, message)
            }
            EngineError::NonFiniteLogits { .. } => {
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, Code::NonFiniteLogits, message)
            }
            _ => Self::overloaded(message),
        }
    }
}

impl From<TextError> for ApiError {
    fn from(error: TextError) -> Self {
        let message = error.to_string();
        match error {
            TextError::TextTooLong { .. } => {
                Self { code: Code::ContextLengthExceeded, ..Self::bad_request(message) }
            }
            TextError::TemplateArgument { .. } => Self::field("chat_template_kwargs", message),
            TextError::TemplateRefused { .. }
            | TextError::Template { .. }
            | TextError::TemplateLimit { .. }
            | TextError::Pictures { .. } => {
                Self { code: Code::TemplateError, ..Self::field("messages", message) }
            }
            _ => Self::internal(message),
        }
    }
}

/// Returns the error of a generation that ended without a usable text, or `None` if its text is an
/// answer.
///
/// `picture` says why a picture failed, `overflow` where values first were not finite.
pub(crate) fn failure(
    finish: Finish,
    picture: Option<&PictureError>,
    overflow: Option<&str>,
) -> Option<ApiError> {
    let status = match finish {
        Finish::Stop | Finish::Length | Finish::Context => return None,
        Finish::DeviceFailed => StatusCode::SERVICE_UNAVAILABLE,
        Finish::Cancelled => return Some(ApiError::draining()),
        Finish::Deadline => StatusCode::REQUEST_TIMEOUT,
        // The grammar is the client's, and would fail again.
        Finish::ConstraintFailed => StatusCode::BAD_REQUEST,
        Finish::NonFiniteLogits | Finish::PictureFailed => StatusCode::INTERNAL_SERVER_ERROR,
    };
    let code = match finish {
        Finish::DeviceFailed => Code::DeviceFailed,
        Finish::Deadline => Code::DeadlineExceeded,
        Finish::ConstraintFailed => Code::ConstraintFailed,
        Finish::PictureFailed => Code::ImageFailed,
        _ => Code::NonFiniteLogits,
    };
    let message = match (finish, picture) {
        (Finish::PictureFailed, Some(error)) => {
            let error = error.to_string();
            format!("an image of the prompt could not be used: {}", without_remedy(&error))
        }
        _ => {
            let what = without_remedy(&finish.to_string()).to_owned();
            overflow.map_or(what.clone(), |place| format!("{what}: {place}"))
        }
    };
    Some(ApiError::new(status, code, message))
}

/// Leaves out a remedy that names options of the command line, which no client can change.
fn without_remedy(message: &str) -> &str {
    match message.split_once("; ") {
        Some((what, remedy)) if remedy.contains("--") => what,
        _ => message,
    }
}

/// Returns a client's text for a message or a log line: in quotes, control characters escaped, at
/// most 100 characters.
pub(crate) fn shown(text: &str) -> String {
    let mut short: String = text.chars().take(100).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    format!("{short:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_dialect_has_its_own_shape() {
        let error = ApiError::from(EngineError::PromptTooLong { prompt: 9, context: 8 });
        let openai = error.body(Dialect::OpenAi);
        assert_eq!(openai["error"]["code"], "context_length_exceeded");
        assert_eq!(openai["error"]["type"], "invalid_request_error");
        assert!(openai["error"].as_object().unwrap().contains_key("param"));
        let llama = error.body(Dialect::Llama);
        assert_eq!(llama["error"]["code"], 400);
        assert_eq!(llama["error"]["type"], "exceed_context_size_error");
        assert_eq!(llama["error"]["n_prompt_tokens"], 9);
        assert_eq!(error.body(Dialect::Anthropic)["type"], "error");
        assert!(error.body(Dialect::Ollama)["error"].is_string());
    }

    #[test]
    fn a_text_that_is_too_long_is_called_by_its_field() {
        let error = ApiError::from(EngineError::PromptTooLong { prompt: 9, context: 8 });
        let body = error.of_field("input").body(Dialect::OpenAi);
        let message = body["error"]["message"].as_str().unwrap();
        assert!(message.contains("However, your input resulted in 9 tokens"), "{message}");
    }

    /// The words that litellm and Claude Code look for.
    #[test]
    fn a_prompt_that_is_too_long_is_told_in_the_words_of_each_dialect() {
        let error = ApiError::from(EngineError::PromptTooLong { prompt: 9, context: 8 });
        for (dialect, words) in [
            (
                Dialect::OpenAi,
                "This model's maximum context length is 8 tokens. However, your messages",
            ),
            (Dialect::Llama, "request (9 tokens) exceeds the available context size (8 tokens)"),
            (Dialect::Anthropic, "prompt is too long: 9 tokens > 8 maximum"),
            (Dialect::Ollama, "the input length exceeds the context length"),
        ] {
            let body = error.body(dialect);
            let message = body["error"]["message"].as_str().or(body["error"].as_str()).unwrap();
            assert!(message.starts_with(words) && message.contains("--context"), "{message}");
        }
    }

    #[test]
    fn paths_have_dialects() {
        for (path, dialect) in [
            ("/v1/chat/completions", Dialect::OpenAi),
            ("/v1/messages/count_tokens", Dialect::Anthropic),
            ("/api/chat", Dialect::Ollama),
            ("/chat/completions", Dialect::Llama),
            ("/v1x", Dialect::Llama),
        ] {
            assert_eq!(Dialect::of(path), dialect, "{path}");
        }
    }

    #[test]
    fn strangers_texts_are_escaped() {
        assert_eq!(shown("a\n\u{1b}[31m"), "\"a\\n\\u{1b}[31m\"");
        assert!(shown(&"x".repeat(1 << 20)).len() < 120);
    }
}
