//! The parts of streams: the data of each event, or each line.

use serde_json::{Value, json};

use super::answers::{
    THOUGHTS, anthropic_stop, finish, head, llama_part, output_text, reasoning_text, tool_call,
};
use super::schema::{Field, about, constant, count, list, nullable, object, one_of, schema, text};

/// Returns the schemas of events and lines, by name.
pub(super) fn schemas() -> Vec<Field> {
    vec![
        ("ChatEvent", one_of(vec![chat_chunk(), schema("OpenAiError"), done()])),
        ("LlamaChatEvent", one_of(vec![chat_chunk(), schema("LlamaError"), done()])),
        ("CompletionEvent", one_of(vec![completion_chunk(), schema("OpenAiError"), done()])),
        ("LlamaCompletionEvent", one_of(vec![completion_chunk(), schema("LlamaError"), done()])),
        ("LlamaTextEvent", llama_text()),
        ("ResponseEvent", response()),
        ("AnthropicEvent", anthropic()),
        ("OllamaChatLine", one_of(vec![schema("OllamaChat"), schema("OllamaError")])),
        ("OllamaGenerateLine", one_of(vec![schema("OllamaGenerate"), schema("OllamaError")])),
    ]
}

fn done() -> Value {
    about(constant("[DONE]"), "The end of a stream that did not fail. It stands without quotes.")
}

fn usage() -> Field {
    let words = "In the last chunk, which has no choices, and null in the others unless they are \
        to have it too.";
    ("usage", about(nullable(schema("Usage")), words))
}

fn chat_chunk() -> Value {
    let delta = object(
        [],
        [
            ("role", constant("assistant")),
            ("content", text()),
            ("reasoning_content", about(text(), THOUGHTS)),
            ("tool_calls", list(tool_call([("index", count())]))),
        ],
    );
    let [(reason, finish_reason), stop_reason] = finish();
    let choice = object(
        [
            ("index", count()),
            ("delta", delta),
            ("logprobs", nullable(schema("ChatLogprobs"))),
            (reason, nullable(finish_reason)),
        ],
        [stop_reason],
    );
    let [id, created, model, fingerprint] = head();
    object(
        [
            id,
            ("object", constant("chat.completion.chunk")),
            created,
            model,
            ("choices", list(choice)),
            fingerprint,
        ],
        [usage()],
    )
}

fn completion_chunk() -> Value {
    let [(reason, finish_reason), stop_reason] = finish();
    let choice = object(
        [
            ("index", count()),
            ("text", text()),
            ("logprobs", nullable(schema("CompletionLogprobs"))),
            (reason, nullable(finish_reason)),
        ],
        [stop_reason],
    );
    let [id, created, model, _] = head();
    object(
        [id, ("object", constant("text_completion")), created, model, ("choices", list(choice))],
        [usage()],
    )
}

/// Returns an event with its name in it.
fn event<const N: usize>(name: &str, fields: [Field; N]) -> Value {
    object([("type", constant(name))].into_iter().chain(fields), [])
}

fn response() -> Value {
    let numbered = |name: &str, fields: Vec<Field>| {
        let head = [("type", constant(name)), ("sequence_number", count())];
        object(head.into_iter().chain(fields), [])
    };
    let place = || vec![("item_id", text()), ("output_index", count()), ("content_index", count())];
    let part = |name: &str, field: Field| {
        let mut fields = place();
        fields.push(field);
        if name.starts_with("response.output_text") {
            fields.push(("logprobs", json!({"type": "array"})));
        }
        numbered(name, fields)
    };
    let whole = |name: &str| numbered(name, vec![("response", schema("Response"))]);
    let item = |name: &str| {
        numbered(name, vec![("output_index", count()), ("item", schema("ResponseItem"))])
    };
    let call = || vec![("item_id", text()), ("output_index", count())];
    let mut delta = call();
    delta.push(("delta", text()));
    let mut done = call();
    done.extend([("name", text()), ("arguments", text())]);
    one_of(vec![
        whole("response.created"),
        whole("response.in_progress"),
        item("response.output_item.added"),
        part(
            "response.content_part.added",
            ("part", one_of(vec![output_text(), reasoning_text()])),
        ),
        part("response.reasoning_text.delta", ("delta", text())),
        part("response.reasoning_text.done", ("text", text())),
        part("response.output_text.delta", ("delta", text())),
        part("response.output_text.done", ("text", text())),
        part("response.content_part.done", ("part", one_of(vec![output_text(), reasoning_text()]))),
        numbered("response.function_call_arguments.delta", delta),
        numbered("response.function_call_arguments.done", done),
        item("response.output_item.done"),
        whole("response.completed"),
        whole("response.incomplete"),
        numbered("error", vec![("code", text()), ("message", text()), ("param", nullable(text()))]),
        whole("response.failed"),
    ])
}

fn anthropic() -> Value {
    let said = object([("type", constant("text_delta")), ("text", text())], []);
    let thought = object([("type", constant("thinking_delta")), ("thinking", text())], []);
    let signature = object([("type", constant("signature_delta")), ("signature", text())], []);
    let call = object([("type", constant("input_json_delta")), ("partial_json", text())], []);
    one_of(vec![
        event("message_start", [("message", schema("AnthropicAnswer"))]),
        event(
            "content_block_start",
            [("index", count()), ("content_block", schema("AnthropicBlock"))],
        ),
        event(
            "content_block_delta",
            [("index", count()), ("delta", one_of(vec![said, thought, signature, call]))],
        ),
        event("content_block_stop", [("index", count())]),
        event(
            "message_delta",
            [("delta", object(anthropic_stop(), [])), ("usage", schema("AnthropicUsage"))],
        ),
        event("message_stop", []),
        event("ping", []),
        schema("AnthropicError"),
    ])
}

fn llama_text() -> Value {
    one_of(vec![object(llama_part(false), []), schema("LlamaText"), schema("LlamaError")])
}
