//! Bodies of requests.

use serde_json::{Value, json};
use trine_engine::LOGPROBS_MAX;

use super::fields::{
    budgets, calling, everywhere, function, ids, message, messages, model, most_tokens,
    no_thinking, others_thinking, parallel, parameters, picture_block, picture_part, priority,
    refused_fields, rendering, response_format, sampling, stops, store, stream, streaming,
    structure_of_others, texts_or_ids, thoughts, tool, tool_choice,
};
use super::schema::{
    Field, about, any, asked, boolean, choice, constant, default, free_object, integer, list,
    object, one_of, refused, schema, text, token_id,
};
use crate::embeddings::{self, openai as openai_embeddings};
use crate::openai::completions;
use crate::thinking::{self, EFFORTS};
use crate::unsupported::{LOGPROBS, PICTURES};
use crate::{anthropic as anthropic_dialect, ollama as ollama_dialect, responses, text_routes};

/// Returns all schemas of requests, by name.
pub(super) fn schemas() -> Vec<Field> {
    vec![
        ("ChatRequest", chat()),
        ("CompletionRequest", completion()),
        ("ResponseRequest", response()),
        ("ResponseCountRequest", response_count()),
        ("LlamaTextRequest", llama_text()),
        ("EmbeddingRequest", embedding()),
        ("MessageRequest", anthropic()),
        ("MessageCountRequest", anthropic_count()),
        ("OllamaChatRequest", ollama_chat()),
        ("OllamaGenerateRequest", ollama_generate()),
        ("OllamaEmbedRequest", ollama_embed("input")),
        ("OllamaEmbeddingRequest", ollama_embed("prompt")),
        ("OllamaNameRequest", ollama_name(Vec::new())),
        ("OllamaPullRequest", ollama_name(vec![stream(true)])),
        ("OllamaCopyRequest", ollama_copy()),
        ("OllamaCreateRequest", ollama_create()),
        ("OllamaOptions", ollama_options()),
        ("TokenizeRequest", tokenize()),
        ("DetokenizeRequest", detokenize()),
        ("TemplateRequest", template()),
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

fn chat_logprobs() -> [Field; 2] {
    let top = about(
        integer(0, LOGPROBS_MAX as i64),
        "Alternatives beside each token's log-probability. Needs `\"logprobs\": true`.",
    );
    [
        ("logprobs", about(default(boolean(), false), "Whether log-probabilities are given.")),
        ("top_logprobs", top),
    ]
}

fn chat() -> Value {
    let mut fields = vec![model()];
    fields.extend(streaming());
    fields.extend(parameters(None));
    fields.extend(chat_logprobs());
    let words = "Left out with a warning: this server searches nothing.";
    fields.extend([store(), ("web_search_options", about(any(), words))]);
    fields.extend(calling());
    fields.extend(rendering());
    asked([messages()], fields)
}

fn completion() -> Value {
    let mut fields = vec![model()];
    fields.extend(streaming());
    fields.extend(parameters(Some(completions::TOKENS_DEFAULT as i64)));
    let known = about(
        integer(0, LOGPROBS_MAX as i64),
        "Log-probabilities, with this number of alternatives; with `echo` those of the prompt too.",
    );
    let none = || refused("use /v1/chat/completions", json!([null, "none", "auto", []]));
    fields.extend([
        ("echo", about(default(boolean(), false), "Whether the prompt stands before the text.")),
        ("logprobs", known),
        ("tools", none()),
        ("tool_choice", none()),
    ]);
    fields.extend(refused_fields(&PICTURES));
    fields.extend(no_thinking(thinking::TEXTS));
    let words = "A text, a list of texts, a list of token ids and texts, or a list of such lists. All prompts together have at most \
                 256 texts.";
    asked([("prompt", about(texts_or_ids(completions::PROMPTS_MAX), words))], fields)
}

fn llama_text() -> Value {
    let mut fields = vec![model(), stream(false)];
    fields.extend(parameters(None));
    let none = || refused("use /v1/chat/completions", json!([null, "none", "auto", []]));
    fields.extend([("tools", none()), ("tool_choice", none())]);
    fields.extend(refused_fields(&LOGPROBS));
    fields.extend(refused_fields(&PICTURES));
    fields.extend(no_thinking(thinking::TEXTS));
    let words = "A text, a list of texts, a list of token ids and texts, or a list of such lists. All prompts together have at most \
                 256 texts.";
    asked([("prompt", about(texts_or_ids(completions::PROMPTS_MAX), words))], fields)
}

/// Returns the fields that make up a conversation.
fn response_conversation() -> Vec<Field> {
    vec![
        ("instructions", about(text(), "What stands before the conversation.")),
        ("tools", list(schema("ResponseTool"))),
        ("tool_choice", schema("ToolChoice")),
        parallel(),
        (
            "reasoning",
            about(
                asked([], [("effort", choice(EFFORTS))]),
                "Whether the model thinks before it answers, if it can: not with the effort none.",
            ),
        ),
    ]
    .into_iter()
    .chain(budgets())
    .chain(others_thinking(thinking::RESPONSES))
    .collect()
}

fn response_input() -> Field {
    let items = json!({"type": "array", "items": schema("ResponseInputItem"), "minItems": 1});
    ("input", about(one_of(vec![text(), items]), "The user's words, or a conversation."))
}

fn response_count() -> Value {
    asked([response_input()], [model()].into_iter().chain(response_conversation()))
}

fn response() -> Value {
    let mut fields = vec![model(), stream(false)];
    fields.extend(sampling());
    let format = asked([], [("format", schema("ResponseFormat"))]);
    fields.extend(response_conversation());
    fields.extend([
        ("max_output_tokens", about(most_tokens(1), "Absent: until the context is full.")),
        ("text", about(format, "What the text looks like.")),
        (
            "truncation",
            about(default(constant("disabled"), "disabled"), "Conversations are never cut."),
        ),
        ("metadata", about(any(), "Repeated in the answer.")),
        ("user", about(any(), "Repeated in the answer.")),
        store(),
    ]);
    fields.extend(structure_of_others());
    fields.extend(refused_fields(&responses::UNSUPPORTED));
    fields.extend(everywhere());
    let words = "Log-probabilities are not among it; what else it names no answer has.";
    fields.push(("include", about(list(text()), words)));
    asked([response_input()], fields)
}

fn response_item() -> Value {
    let call = asked(
        [
            ("type", constant("function_call")),
            ("call_id", text()),
            ("name", text()),
            ("arguments", any()),
        ],
        [("namespace", text())],
    );
    let outputs = choice(["function_call_output", "custom_tool_call_output"]);
    let output = asked([("type", outputs), ("call_id", text()), ("output", any())], []);
    let custom = asked(
        [
            ("type", constant("custom_tool_call")),
            ("call_id", text()),
            ("name", text()),
            ("input", text()),
        ],
        [],
    );
    let computer = asked(
        [("type", constant("computer_call")), ("call_id", text())],
        [("action", any()), ("actions", any())],
    );
    let screenshot = asked(
        [("type", choice(["computer_screenshot", "input_image"])), ("image_url", text())],
        [],
    );
    let screen = asked(
        [("type", constant("computer_call_output")), ("call_id", text()), ("output", screenshot)],
        [],
    );
    let words = "What tools of another server have done: left out. Thoughts (`reasoning`) belong to the calls after them.";
    let other = about(asked([("type", text())], []), words);
    let part =
        asked([("type", choice(["text", "input_text", "output_text"])), ("text", text())], []);
    let message = asked(
        [
            ("role", choice(["system", "developer", "user", "assistant", "tool", "model"])),
            ("content", one_of(vec![text(), list(one_of(vec![part, schema("ImagePart")]))])),
        ],
        [("type", constant("message"))],
    );
    one_of(vec![message, call, output, custom, computer, screen, other])
}

fn response_tool() -> Value {
    let [name, rest @ ..] = &*function("parameters") else { unreachable!("it has a name") };
    let function = asked([("type", constant("function")), name.clone()], rest.iter().cloned());
    let within =
        [("type", constant("namespace")), ("name", text()), ("tools", list(function.clone()))];
    let words = "Of any other type: left out with a warning.";
    one_of(vec![function, asked(within, []), about(asked([("type", text())], []), words)])
}

fn embedding() -> Value {
    let mut fields = vec![model(), dimensions()];
    fields.extend([
        (
            "encoding_format",
            about(
                default(choice(["float", "base64"]), "float"),
                "A list of numbers, or their f32, little-endian, in Base64.",
            ),
        ),
        ("endianness", about(choice(["native", "little"]), "Bytes in Base64 are little-endian.")),
        (
            "add_special_tokens",
            about(default(boolean(), true), "Whether texts begin with `<bos>`."),
        ),
        priority(),
        ("normalize", refused("leave it out, or use true", json!([null, true]))),
        ("embd_normalize", refused("leave it out, or use 2", json!([null, 2]))),
        ("embed_dtype", refused("leave it out, or use \"float32\"", json!([null, "float32"]))),
    ]);
    let refused = |name: &&'static str| (*name, refused("leave it out", json!([null])));
    fields.extend(openai_embeddings::UNSUPPORTED.iter().map(refused));
    fields.extend(refused_fields(&PICTURES));
    let words = "A text, a list of texts, a list of token ids and texts, or a list of such lists, with at most 300,000 tokens \
                 together.";
    asked([("input", about(texts_or_ids(embeddings::TEXTS_MAX), words))], fields)
}

fn dimensions() -> Field {
    let words = "Only the model's own number: vectors are not cut.";
    ("dimensions", about(integer(1, u32::MAX), words))
}

fn anthropic() -> Value {
    let mut fields = vec![model(), stream(false)];
    fields.extend(sampling());
    let output = asked([], [("format", schema("ResponseFormat")), ("effort", effort())]);
    fields.extend([
        ("stop_sequences", stops()),
        ("output_config", about(output, "What the text looks like.")),
        ("output_format", about(schema("ResponseFormat"), "The same, as it was called in a beta.")),
    ]);
    fields.extend(anthropic_thinking());
    fields.extend(structure_of_others());
    fields.extend(refused_fields(&anthropic_dialect::UNSUPPORTED));
    fields.extend(everywhere());
    fields.extend(anthropic_conversation());
    let most = about(most_tokens(0), "Most tokens that are written.");
    asked([("max_tokens", most), anthropic_messages()], fields)
}

fn effort() -> Value {
    about(choice(EFFORTS), "Checked, and changes nothing.")
}

/// Returns the fields of `Thinking::of_message`, without the effort.
fn anthropic_thinking() -> Vec<Field> {
    let budget = about(thoughts(), "Most tokens of thoughts.");
    let thinking = asked(
        [("type", choice(["adaptive", "enabled", "between_tools", "disabled"]))],
        [("budget_tokens", budget)],
    );
    let words = "Whether the model thinks before it answers, if it can.";
    let own = [("thinking", about(thinking, words))].into_iter();
    own.chain(budgets()).chain(others_thinking(thinking::MESSAGES)).collect()
}

fn anthropic_count() -> Value {
    let mut fields = vec![model(), ("output_config", asked([], [("effort", effort())]))];
    fields.extend(anthropic_thinking());
    fields.extend(anthropic_conversation());
    asked([anthropic_messages()], fields)
}

fn anthropic_messages() -> Field {
    ("messages", json!({"type": "array", "items": schema("AnthropicMessage"), "minItems": 1}))
}

fn anthropic_conversation() -> Vec<Field> {
    let part = asked([("text", text())], []);
    let system = about(one_of(vec![text(), list(part)]), "What stands before the conversation.");
    let remedy = "no messages are kept; send the whole conversation";
    vec![
        ("thread", refused(remedy, json!([null]))),
        ("system", system),
        ("tools", list(schema("AnthropicTool"))),
        ("tool_choice", schema("AnthropicToolChoice")),
    ]
}

fn anthropic_message() -> Value {
    let said = asked([("type", constant("text")), ("text", text())], []);
    let picture = schema("ImageBlock");
    let call = asked(
        [
            ("type", constant("tool_use")),
            ("id", text()),
            ("name", text()),
            ("input", free_object()),
        ],
        [],
    );
    let result = asked(
        [("type", constant("tool_result")), ("tool_use_id", text())],
        [("content", one_of(vec![text(), list(one_of(vec![said.clone(), picture.clone()]))]))],
    );
    let words = "What tools of another server have done: left out. Thoughts (`thinking`) belong to the calls of their message.";
    let other = about(asked([("type", text())], []), words);
    let blocks = list(one_of(vec![said, picture, call, result, other]));
    let role = choice(["user", "assistant", "system", "developer", "tool", "model"]);
    asked([("role", role), ("content", one_of(vec![text(), blocks]))], [])
}

fn anthropic_tool() -> Value {
    let [name, rest @ ..] = &*function("input_schema") else { unreachable!("it has a name") };
    let custom = asked([name.clone()], rest.iter().cloned().chain([("type", constant("custom"))]));
    let words = "Of any other type: left out with a warning, for this server runs no tools itself.";
    one_of(vec![custom, about(asked([("type", text())], []), words)])
}

fn anthropic_choice() -> Value {
    let serial = about(default(boolean(), false), "Whether an answer has one call at most.");
    let choice = asked(
        [("type", choice(["auto", "any", "none", "tool"]))],
        [
            ("name", about(text(), "The tool that has to be called, with the type `tool`.")),
            ("disable_parallel_tool_use", serial),
        ],
    );
    about(choice, "Whether and which tool has to be called.")
}

fn keep_alive() -> Field {
    let words = "How long the model stays loaded when nobody uses it: seconds, or a time such as `5m`; 0 unloads it, and a negative \
                 one keeps it forever. Absent: as it is, and when it is loaded, what `--keep-alive` says.";
    let number = "[0-9]+(\\.[0-9]+)?";
    let pattern = format!("^[-+]?({number}|({number}(ns|us|µs|ms|s|m|h))+)$");
    let time = json!({"type": "string", "pattern": pattern});
    ("keep_alive", about(one_of(vec![json!({"type": "number"}), time]), words))
}

/// Returns the fields of Ollama's chats and completions.
fn ollama() -> Vec<Field> {
    let mut fields = vec![model(), stream(true), keep_alive()];
    let format = one_of(vec![json!({"enum": ["", "json"]}), free_object()]);
    fields.extend([
        ("options", schema("OllamaOptions")),
        ("think", about(one_of(vec![boolean(), choice(EFFORTS)]), "Whether the model thinks before it answers. Other values than false and none are refused for models that cannot.")),
        ("format", about(format, "What the text looks like: JSON, or what a JSON schema says.")),
        ("truncate", about(default(boolean(), true), "Whether a conversation that is too long loses its oldest messages, and a raw prompt its middle.")),
    ]);
    fields.extend(budgets());
    fields.extend(others_thinking(thinking::OLLAMA));
    fields.extend(structure_of_others());
    fields.extend(chat_logprobs());
    fields.extend(refused_fields(&ollama_dialect::UNSUPPORTED));
    fields.extend(everywhere());
    fields
}

fn ollama_chat() -> Value {
    let mut fields = ollama();
    let words = "Absent or empty: the model is only loaded.";
    fields.push(("messages", about(list(message(Some(images()))), words)));
    fields.extend(calling());
    asked([], fields)
}

fn images() -> Value {
    about(list(text()), "Images in base64, which stand before the text.")
}

fn ollama_generate() -> Value {
    let mut fields = ollama();
    fields.extend([
        ("prompt", about(text(), "Absent or empty, without `images`: the model is only loaded.")),
        ("images", images()),
        (
            "context",
            about(
                list(token_id()),
                "The `context` of an earlier answer: what was said before the prompt. Not with `raw` or `images`.",
            ),
        ),
        ("system", about(text(), "What stands before the prompt, unless it is raw.")),
        (
            "raw",
            about(
                default(boolean(), false),
                "Whether the prompt goes to the model without a template.",
            ),
        ),
    ]);
    asked([], fields)
}

fn ollama_options() -> Value {
    let mut fields = sampling();
    let most = about(
        integer(-2, i32::MAX),
        "Most tokens that are written. Absent, -1 and -2: until the context is full.",
    );
    fields.extend([("num_predict", most), ("stop", stops())]);
    let context = about(integer(0, i32::MAX), "Most tokens of prompt and answer together.");
    let keeps = about(integer(-1, i32::MAX), "First tokens that a prompt keeps if it is cut.");
    fields.extend([("num_ctx", context), ("num_keep", keeps)]);
    about(
        asked([], fields),
        "Others change nothing; numbers out of range are taken as the nearest in it.",
    )
}

fn ollama_embed(input: &'static str) -> Value {
    let texts = match input {
        "prompt" => one_of(vec![text(), json!({"const": []})]),
        _ => one_of(vec![constant(""), json!({"const": []}), texts_or_ids(embeddings::TEXTS_MAX)]),
    };
    let words = "Whether the end of a text that is too long is left out, in `/api/embed` only.";
    let truncate = about(default(boolean(), true), words);
    let fields = [
        model(),
        keep_alive(),
        (input, about(texts, "Absent or empty: the model is only loaded.")),
        ("truncate", truncate),
        ("options", about(free_object(), "Changes nothing.")),
        dimensions(),
    ];
    asked([], fields.into_iter().chain(refused_fields(&PICTURES)))
}

/// Returns the schema of a request about one model, which `model` or its older name `name` names.
fn ollama_name(more: Vec<Field>) -> Value {
    let named =
        |name: &'static str| object([(name, json!({"type": "string", "minLength": 1}))], []);
    let name = about(text(), "Name of a model.");
    let names = [("model", name.clone()), ("name", about(name, "The same."))];
    let mut body = asked([], names.into_iter().chain(more));
    body["anyOf"] = json!([named("model"), named("name")]);
    body
}

fn ollama_copy() -> Value {
    let name = |words: &str| about(json!({"type": "string", "minLength": 1}), words);
    let source = ("source", name("Name of a model."));
    asked([source, ("destination", name("A further name for it."))], [])
}

fn ollama_create() -> Value {
    let turn = object([("role", choice(["user", "assistant"])), ("content", text())], []);
    let parameters = "Numbers and texts by their names in `options`; `stop` may be a list.";
    let mut fields = vec![
        stream(true),
        (
            "from",
            about(json!({"type": "string", "minLength": 1}), "Name of the other model. Needed."),
        ),
        ("system", about(text(), "System prompt of conversations that have none.")),
        (
            "template",
            about(
                text(),
                "Chat template in Jinja in place of the model's own. One in Go's template language is left out with a warning.",
            ),
        ),
        ("parameters", about(free_object(), parameters)),
        ("messages", about(list(turn), "Turns that every conversation begins with.")),
    ];
    fields.extend(refused_fields(&ollama_dialect::manage::UNSUPPORTED_CREATE));
    ollama_name(fields)
}

fn tokenize() -> Value {
    let tokens = |words: &str, truth: bool| about(default(boolean(), truth), words);
    let mut fields = vec![
        model(),
        ("content", about(text(), "llama.cpp's: the text.")),
        ("prompt", about(text(), "vLLM's: the text.")),
        ("with_pieces", tokens("Whether each token comes with its text.", false)),
        ("add_special", tokens("Of `content`: whether it begins with `<bos>`.", false)),
        ("parse_special", tokens("Of `content`: whether control tokens in it are ones.", true)),
        ("add_special_tokens", tokens("Of `prompt`: whether it begins with `<bos>`.", true)),
        ("return_token_strs", tokens("vLLM's: whether `token_strs` is answered.", false)),
    ];
    let (name, conversation) = messages();
    fields
        .push((name, about(conversation, "vLLM's: a conversation, which goes before the texts.")));
    fields.extend(calling());
    fields.extend(rendering());
    let named = |name: &'static str, kind: &str| object([(name, json!({ "type": kind }))], []);
    let mut body = asked([], fields);
    body["anyOf"] =
        json!([named("content", "string"), named("prompt", "string"), named("messages", "array")]);
    body
}

fn detokenize() -> Value {
    let mut tokens = ids();
    tokens["maxItems"] = text_routes::IDS_MAX.into();
    asked([("tokens", tokens)], [model()])
}

fn template() -> Value {
    let mut fields = vec![model()];
    fields.extend(calling());
    fields.extend(rendering());
    asked([messages()], fields)
}
