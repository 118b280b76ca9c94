//! Bodies of requests: the tables of the readers.

use serde_json::{Value, json};

use super::schema::{Field, about, body, object};
use super::shapes::{
    anthropic_message, anthropic_tool, message, named, picture_block, picture_part, response_item,
    response_tool, tool, tool_choice,
};
use crate::dialects::ollama::{manage, models, pull};
use crate::dialects::openai::{chat, completions};
use crate::dialects::{anthropic, embeddings, llama, ollama, responses, text_routes};
use crate::request::{conversation, structure};

/// Returns all schemas of requests, by name.
pub(super) fn schemas() -> Vec<Field> {
    vec![
        ("ChatRequest", body(chat::CHAT)),
        ("CompletionRequest", completion()),
        ("ResponseRequest", body(responses::RESPONSE)),
        ("ResponseCountRequest", body(responses::COUNT)),
        ("LlamaTextRequest", body(llama::COMPLETION)),
        ("EmbeddingRequest", body(embeddings::openai::EMBEDDING)),
        ("RerankRequest", body(embeddings::rerank::RERANK)),
        ("MessageRequest", body(anthropic::MESSAGE)),
        ("MessageCountRequest", message_count()),
        ("OllamaChatRequest", body(ollama::CHAT)),
        ("OllamaGenerateRequest", body(ollama::GENERATE)),
        ("OllamaEmbedRequest", body(embeddings::ollama::EMBED)),
        ("OllamaEmbeddingRequest", body(embeddings::ollama::EMBEDDING)),
        ("OllamaNameRequest", of_model(body(&[models::NAMES]))),
        ("OllamaPullRequest", of_model(body(pull::PULL))),
        ("OllamaCopyRequest", body(&[manage::COPY])),
        ("OllamaCreateRequest", of_model(body(manage::CREATE))),
        ("OllamaOptions", ollama_options()),
        ("TokenizeRequest", tokenize()),
        ("DetokenizeRequest", body(text_routes::DETOKENIZE)),
        ("TemplateRequest", body(conversation::CONVERSATION)),
        ("Message", message(None)),
        ("ImagePart", picture_part()),
        ("ImageBlock", picture_block()),
        ("Tool", tool()),
        ("ToolChoice", tool_choice()),
        ("ResponseFormat", response_format()),
        ("AnthropicMessage", anthropic_message()),
        ("AnthropicTool", anthropic_tool()),
        ("AnthropicToolChoice", anthropic_choice()),
        ("ResponseInputItem", response_item()),
        ("ResponseTool", response_tool()),
    ]
}

fn completion() -> Value {
    let mut body = body(completions::COMPLETION);
    for name in ["max_tokens", "max_completion_tokens", "n_predict"] {
        body["properties"][name]["default"] = completions::TOKENS_DEFAULT.into();
    }
    body
}

/// A request that counts tokens reads the effort only.
fn message_count() -> Value {
    let mut body = body(anthropic::COUNT);
    let config = &mut body["properties"]["output_config"];
    config["properties"].as_object_mut().expect("it is an object").remove("format");
    config.as_object_mut().expect("it is an object").remove("description");
    body
}

/// Demands a name of the model, which `model` or its older name `name` names.
fn of_model(mut body: Value) -> Value {
    let having = |name: &'static str| object([(name, named())], []);
    body["anyOf"] = json!([having("model"), having("name")]);
    body
}

fn ollama_options() -> Value {
    let words = "Others change nothing; numbers out of range are taken as the nearest in it.";
    about(body(ollama::OPTION), words)
}

fn tokenize() -> Value {
    let having = |name: &'static str, kind: &str| object([(name, json!({ "type": kind }))], []);
    let mut body = body(text_routes::TOKENIZE);
    body["anyOf"] = json!([
        having("content", "string"),
        having("prompt", "string"),
        having("messages", "array")
    ]);
    body
}

fn response_format() -> Value {
    let words = "What the text looks like. `strict` changes nothing: every schema is held to.";
    about(body(&[structure::FORMAT]), words)
}

fn anthropic_choice() -> Value {
    about(body(&[anthropic::CHOICES]), "Whether and which tool has to be called.")
}
