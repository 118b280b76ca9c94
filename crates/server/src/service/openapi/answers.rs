//! Whole answers of a model, in each dialect.

use serde_json::{Value, json};

use super::schema::{
    Field, about, any, boolean, choice, constant, count, free_object, integer, list, map, null,
    nullable, number, object, one_of, schema, text, token_id,
};

/// Returns the schemas of answers, by name.
pub(super) fn schemas() -> Vec<Field> {
    vec![
        ("InputTokens", input_tokens()),
        ("LlamaText", llama_text()),
        ("LlamaTexts", one_of(vec![schema("LlamaText"), list(schema("LlamaText"))])),
        ("ChatCompletion", chat()),
        ("ChatLogprobs", chat_logprobs()),
        ("ToolCall", tool_call([])),
        ("Completion", completion()),
        ("CompletionLogprobs", completion_logprobs()),
        ("PromptLogprobs", prompt_logprobs()),
        ("Usage", usage()),
        ("Embeddings", embeddings()),
        ("Ranking", ranking()),
        ("Response", response()),
        ("ResponseItem", response_item()),
        ("ResponseUsage", response_usage()),
        ("AnthropicAnswer", anthropic()),
        ("AnthropicBlock", anthropic_block()),
        ("AnthropicUsage", anthropic_usage()),
        ("AnthropicCount", object([("input_tokens", count())], [])),
        ("OllamaChat", ollama([("message", ollama_message())])),
        ("OllamaGenerate", ollama([("response", text())])),
        ("OllamaEmbeddings", ollama_embeddings()),
        ("OllamaEmbedding", object([("embedding", list(number()))], [])),
        ("Tokens", tokens()),
        ("Text", object([("content", text()), ("prompt", text())], [])),
        ("Prompt", object([("prompt", text())], [])),
    ]
}

/// Returns `finish_reason` and vLLM's `stop_reason`.
pub(super) fn finish() -> [Field; 2] {
    [
        ("finish_reason", choice(["stop", "length", "tool_calls"])),
        (
            "stop_reason",
            about(
                nullable(one_of(vec![text(), token_id()])),
                "The stop text that was reached, or the id of `stop_token_ids` that ended the \
                 text.",
            ),
        ),
    ]
}

/// What thoughts are, for people.
pub(super) const THOUGHTS: &str = "What the model thought before it answered.";

fn chat() -> Value {
    let message = object(
        [("role", constant("assistant")), ("content", nullable(text())), ("refusal", null())],
        [("reasoning_content", about(text(), THOUGHTS)), ("tool_calls", list(schema("ToolCall")))],
    );
    let [finish_reason, stop_reason] = finish();
    let choice = object(
        [
            ("index", count()),
            ("message", message),
            ("logprobs", nullable(schema("ChatLogprobs"))),
            finish_reason,
            stop_reason,
        ],
        [],
    );
    let [id, created, model, fingerprint] = head();
    object(
        [
            id,
            ("object", constant("chat.completion")),
            created,
            model,
            ("choices", list(choice)),
            ("usage", schema("Usage")),
            fingerprint,
        ],
        [("prompt_logprobs", schema("PromptLogprobs"))],
    )
}

/// Returns the fields that chats, completions and their chunks share.
pub(super) fn head() -> [Field; 4] {
    [
        ("id", text()),
        ("created", about(count(), "Seconds since 1970.")),
        ("model", text()),
        ("system_fingerprint", text()),
    ]
}

fn chat_logprobs() -> Value {
    object([("content", token_logprobs()), ("refusal", null())], [])
}

fn token_logprobs() -> Value {
    let bytes = about(list(integer(0, 255)), "The token's bytes, which need not be text.");
    let known = || [("token", text()), ("logprob", number()), ("bytes", bytes.clone())];
    let [token, logprob, own] = known();
    let top = ("top_logprobs", list(object(known(), [])));
    list(object([token, logprob, own, top], []))
}

/// Returns a call of a function; in streams with its place.
pub(super) fn tool_call<const N: usize>(place: [Field; N]) -> Value {
    let words = "JSON, an object that satisfies the schema of the function's parameters where the \
        whole answer is a call.";
    let arguments = about(text(), words);
    let function = object([("name", text()), ("arguments", arguments)], []);
    let call = [("id", text()), ("type", constant("function")), ("function", function)];
    object(call.into_iter().chain(place), [])
}

fn completion() -> Value {
    let [finish_reason, stop_reason] = finish();
    let choice = object(
        [
            ("index", count()),
            ("text", text()),
            ("logprobs", nullable(schema("CompletionLogprobs"))),
            finish_reason,
            stop_reason,
        ],
        [("prompt_logprobs", schema("PromptLogprobs"))],
    );
    let [id, created, model, fingerprint] = head();
    let fields = [
        id,
        ("object", constant("text_completion")),
        created,
        model,
        ("choices", list(choice)),
        ("usage", schema("Usage")),
        fingerprint,
    ];
    object(fields, [])
}

fn completion_logprobs() -> Value {
    let first = "Null for the first token of a prompt.";
    object(
        [
            ("tokens", list(text())),
            ("token_logprobs", about(list(nullable(number())), first)),
            ("top_logprobs", about(list(nullable(map(number()))), first)),
            ("text_offset", about(list(count()), "Where each token begins, in characters.")),
        ],
        [],
    )
}

fn prompt_logprobs() -> Value {
    let known = object(
        [("logprob", number()), ("rank", integer(1, u32::MAX)), ("decoded_token", text())],
        [],
    );
    let words = "For each token of the prompt itself and the most likely ones, by id; null for the \
        first and for those of images.";
    about(list(nullable(map(known))), words)
}

fn usage() -> Value {
    let cached = about(count(), "Of the prompt's tokens, those that were in the cache.");
    object(
        [
            ("prompt_tokens", count()),
            ("completion_tokens", count()),
            ("total_tokens", count()),
            ("prompt_tokens_details", object([("cached_tokens", cached)], [])),
            ("completion_tokens_details", object([("reasoning_tokens", thoughts())], [])),
        ],
        [],
    )
}

/// Returns the schema of the number of tokens of thoughts.
fn thoughts() -> Value {
    about(count(), "Of the tokens written, those of thoughts.")
}

fn embeddings() -> Value {
    let vector =
        one_of(vec![list(number()), json!({"type": "string", "contentEncoding": "base64"})]);
    let item =
        object([("object", constant("embedding")), ("index", count()), ("embedding", vector)], []);
    let usage = object([("prompt_tokens", count()), ("total_tokens", count())], []);
    let fields =
        [("object", constant("list")), ("model", text()), ("usage", usage), ("data", list(item))];
    object(fields, [])
}

fn ranking() -> Value {
    let usage = object([("prompt_tokens", count()), ("total_tokens", count())], []);
    let score = about(number(), "The cosine of the two vectors.");
    let document = object([("text", text())], []);
    let result = object([("index", count()), ("relevance_score", score)], [("document", document)]);
    let results = about(list(result), "The most similar first.");
    let fields =
        [("object", constant("list")), ("model", text()), ("usage", usage), ("results", results)];
    object(fields, [])
}

fn response() -> Value {
    let reason = object([("reason", constant("max_output_tokens"))], []);
    let effort = object([("effort", nullable(text())), ("summary", nullable(text()))], []);
    let error = object([("code", text()), ("message", text())], []);
    let given = "As in the request.";
    object(
        [
            ("id", text()),
            ("object", constant("response")),
            ("created_at", about(count(), "Seconds since 1970.")),
            ("status", choice(["in_progress", "completed", "incomplete", "failed"])),
            ("error", nullable(error)),
            ("incomplete_details", nullable(reason)),
            ("model", text()),
            ("output", list(schema("ResponseItem"))),
            ("parallel_tool_calls", about(boolean(), given)),
            ("previous_response_id", null()),
            ("reasoning", effort),
            ("store", constant(false)),
            ("text", about(free_object(), given)),
            ("tool_choice", about(any(), given)),
            ("tools", about(list(any()), given)),
            ("truncation", constant("disabled")),
            ("instructions", about(nullable(text()), given)),
            ("max_output_tokens", about(nullable(count()), given)),
            ("metadata", about(any(), given)),
            ("temperature", about(nullable(number()), given)),
            ("top_p", about(nullable(number()), given)),
        ],
        [("user", about(any(), given)), ("usage", schema("ResponseUsage"))],
    )
}

fn response_item() -> Value {
    let message = object(
        [
            ("id", text()),
            ("type", constant("message")),
            ("role", constant("assistant")),
            ("status", choice(["in_progress", "completed", "incomplete"])),
            ("content", list(output_text())),
        ],
        [],
    );
    let call = object(
        [
            ("id", text()),
            ("type", constant("function_call")),
            ("status", choice(["in_progress", "completed"])),
            ("call_id", text()),
            ("name", text()),
            ("arguments", about(text(), "JSON, an object.")),
        ],
        [("namespace", about(text(), "Of a function that was declared in one."))],
    );
    let thought = object(
        [
            ("id", text()),
            ("type", constant("reasoning")),
            ("status", choice(["in_progress", "completed"])),
            ("summary", list(any())),
            ("content", about(list(reasoning_text()), THOUGHTS)),
        ],
        [],
    );
    one_of(vec![message, call, thought])
}

/// Returns a part of an item with thoughts of the Responses API.
pub(super) fn reasoning_text() -> Value {
    object([("type", constant("reasoning_text")), ("text", text())], [])
}

/// Returns a part of a message of the Responses API.
pub(super) fn output_text() -> Value {
    let fields = [
        ("type", constant("output_text")),
        ("text", text()),
        ("annotations", list(any())),
        ("logprobs", list(any())),
    ];
    object(fields, [])
}

fn response_usage() -> Value {
    object(
        [
            ("input_tokens", count()),
            ("input_tokens_details", object([("cached_tokens", count())], [])),
            ("output_tokens", count()),
            ("output_tokens_details", object([("reasoning_tokens", thoughts())], [])),
            ("total_tokens", count()),
        ],
        [],
    )
}

fn anthropic() -> Value {
    let [reason, sequence] = anthropic_stop();
    object(
        [
            ("id", text()),
            ("type", constant("message")),
            ("role", constant("assistant")),
            ("model", text()),
            ("content", list(schema("AnthropicBlock"))),
            reason,
            sequence,
            ("usage", schema("AnthropicUsage")),
        ],
        [],
    )
}

/// Returns the fields that say why a message ended; null while it has not.
pub(super) fn anthropic_stop() -> [Field; 2] {
    let reason = choice(["end_turn", "max_tokens", "stop_sequence", "tool_use"]);
    [("stop_reason", nullable(reason)), ("stop_sequence", nullable(text()))]
}

fn anthropic_block() -> Value {
    let said = object([("type", constant("text")), ("text", text())], []);
    let call = [
        ("type", constant("tool_use")),
        ("id", text()),
        ("name", text()),
        ("input", free_object()),
    ];
    let signature = about(text(), "Clients send it back; nothing depends on it.");
    let thought = [
        ("type", constant("thinking")),
        ("thinking", about(text(), THOUGHTS)),
        ("signature", signature),
    ];
    one_of(vec![said, object(thought, []), object(call, [])])
}

fn anthropic_usage() -> Value {
    object(
        [
            ("input_tokens", about(count(), "Tokens that were not in the cache.")),
            ("cache_read_input_tokens", about(count(), "Tokens that were.")),
            ("cache_creation_input_tokens", constant(0)),
            ("output_tokens", count()),
        ],
        [],
    )
}

fn ollama_message() -> Value {
    let function = object([("index", count()), ("name", text()), ("arguments", free_object())], []);
    let calls = list(object([("id", text()), ("function", function)], []));
    let optional = [("tool_calls", calls), ("thinking", about(text(), THOUGHTS))];
    object([("role", constant("assistant")), ("content", text())], optional)
}

/// Returns a whole answer, or a line of a stream: the counts are in the last one.
fn ollama<const N: usize>(said: [Field; N]) -> Value {
    let time = json!({"type": "string", "format": "date-time"});
    let head = [("model", text()), ("created_at", time)];
    let nanoseconds = || about(count(), "Nanoseconds.");
    object(
        head.into_iter().chain(said).chain([("done", boolean())]),
        [
            ("thinking", about(text(), "Of `/api/generate`: what the model thought.")),
            ("logprobs", token_logprobs()),
            ("done_reason", choice(["stop", "length", "load", "unload"])),
            ("total_duration", nanoseconds()),
            ("load_duration", nanoseconds()),
            ("prompt_eval_count", count()),
            ("prompt_eval_duration", nanoseconds()),
            ("eval_count", count()),
            ("eval_duration", nanoseconds()),
            (
                "context",
                about(
                    list(token_id()),
                    "Of `/api/generate`, at its end: token ids of prompt and answer, up to 8,192; \
                     more have none.",
                ),
            ),
        ],
    )
}

fn ollama_embeddings() -> Value {
    object(
        [
            ("model", text()),
            ("total_duration", about(count(), "Nanoseconds.")),
            ("load_duration", about(count(), "Nanoseconds.")),
            ("prompt_eval_count", count()),
            ("embeddings", list(list(number()))),
        ],
        [],
    )
}

fn tokens() -> Value {
    let bytes = about(list(integer(0, 255)), "Bytes that are not text by themselves.");
    let piece = object([("id", token_id()), ("piece", one_of(vec![text(), bytes]))], []);
    object(
        [("tokens", list(one_of(vec![token_id(), piece])))],
        [("count", count()), ("max_model_len", count()), ("token_strs", list(text()))],
    )
}

fn input_tokens() -> Value {
    object([("object", constant("response.input_tokens")), ("input_tokens", count())], [])
}

/// Returns the fields of every part of a text in llama.cpp's dialect.
pub(super) fn llama_part(stop: bool) -> Vec<Field> {
    vec![
        ("index", count()),
        ("content", text()),
        ("stop", constant(stop)),
        ("tokens_predicted", count()),
        ("tokens_evaluated", about(count(), "Tokens of the prompt.")),
    ]
}

fn llama_text() -> Value {
    let counts = ["cache_n", "prompt_n", "predicted_n"].map(|name| (name, count()));
    let drafts = ["draft_n", "draft_n_accepted"].map(|name| (name, count()));
    let times = [
        "prompt_ms",
        "prompt_per_token_ms",
        "prompt_per_second",
        "predicted_ms",
        "predicted_per_token_ms",
        "predicted_per_second",
    ];
    let timings = object(counts.into_iter().chain(times.map(|name| (name, number()))), drafts);
    let mut fields = llama_part(true);
    fields.extend([
        ("model", text()),
        ("tokens_cached", about(count(), "Tokens of the prompt that were in the cache.")),
        ("truncated", constant(false)),
        ("stop_type", choice(["eos", "word", "limit"])),
        ("stopping_word", text()),
        ("timings", timings),
    ]);
    object(fields, [])
}
