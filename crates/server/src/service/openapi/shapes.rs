//! What values of requests look like where their type does not say it: lists, objects that are not
//! read field by field, and what else stands behind `as` in a row.

use serde_json::{Value, json};
use trine_engine::sampling::{BIAS_MAX, BIASES_MAX};

use super::schema::{
    Field, about, any, asked, boolean, choice, constant, free_object, list, list_of, map,
    number_from, object, one_of, schema, text, token_id,
};
use crate::dialects::text_routes::IDS_MAX;
pub(crate) use crate::request::messages::MESSAGES_MAX;
use crate::request::parameters::{STOP_BYTES_MAX, STOPS_MAX};
use crate::request::thinking::EFFORTS;
pub(crate) use trine_text::MAX_TOOLS;

pub(crate) fn biases() -> Value {
    let bias = number_from(f64::from(-BIAS_MAX), f64::from(BIAS_MAX));
    let pair = json!({
        "type": "array", "minItems": 2, "maxItems": 2,
        "prefixItems": [token_id(), one_of(vec![bias.clone(), constant(false)])],
    });
    let mut by_id = map(one_of(vec![bias, constant(false)]));
    by_id["maxProperties"] = BIASES_MAX.into();
    one_of(vec![by_id, list_of(pair, 0, BIASES_MAX)])
}

pub(crate) fn stops() -> Value {
    let stop = json!({"type": "string", "maxLength": STOP_BYTES_MAX});
    one_of(vec![stop.clone(), list_of(stop, 0, STOPS_MAX)])
}

pub(crate) fn stop_ids() -> Value {
    list_of(token_id(), 0, STOPS_MAX)
}

pub(crate) fn token_ids() -> Value {
    let mut ids = list(token_id());
    ids["maxItems"] = IDS_MAX.into();
    ids
}

pub(crate) fn json_schema() -> Value {
    one_of(vec![free_object(), boolean(), text()])
}

pub(crate) fn efforts() -> Value {
    choice(EFFORTS)
}

pub(crate) fn response_input() -> Value {
    let items = json!({"type": "array", "items": schema("ResponseInputItem"), "minItems": 1});
    one_of(vec![text(), items])
}

pub(crate) fn anthropic_messages() -> Value {
    json!({"type": "array", "items": schema("AnthropicMessage"), "minItems": 1})
}

pub(crate) fn keep_alive() -> Value {
    let number = "[0-9]+(\\.[0-9]+)?";
    let pattern = format!("^[-+]?({number}|({number}(ns|us|µs|ms|s|m|h))+)$");
    one_of(vec![json!({"type": "number"}), json!({"type": "string", "pattern": pattern})])
}

/// Returns the schema of a name that is not empty.
pub(crate) fn named() -> Value {
    json!({"type": "string", "minLength": 1})
}

/// Returns the fields of a function, wherever the dialect has it. `arguments` is the name of their
/// schema.
pub(crate) fn function(arguments: &'static str) -> Vec<Field> {
    let name = json!({"type": "string", "pattern": "^[A-Za-z0-9_.:/-]{1,128}$"});
    let schema = about(free_object(), "JSON schema of the arguments, an object.");
    vec![("name", name), ("description", text()), (arguments, schema)]
}

pub(crate) fn tool() -> Value {
    let other = about(asked([("type", text())], []), "Of any other type: left out with a warning.");
    one_of(vec![function_tool(), other])
}

fn function_tool() -> Value {
    let [name, rest @ ..] = &*function("parameters") else { unreachable!("it has a name") };
    let function = asked([name.clone()], rest.iter().cloned());
    object([("function", function)], [("type", constant("function"))])
}

pub(crate) fn tool_choice() -> Value {
    let words = choice(["auto", "none", "required", "any"]);
    let function = asked([("name", text())], []);
    let named = object([("function", function)], [("type", constant("function"))]);
    let flat = object([("name", text())], [("type", constant("function"))]);
    let mode = || ("mode", choice(["auto", "required"]));
    let tools = || ("tools", list(free_object()));
    let kind = || ("type", constant("allowed_tools"));
    let allowed = asked([kind(), ("allowed_tools", asked([mode(), tools()], []))], []);
    let flat_allowed = asked([kind(), mode(), tools()], []);
    about(
        one_of(vec![words, named, flat, allowed, flat_allowed]),
        "Whether and which function has to be called, or which may be.",
    )
}

/// Returns the schema of `messages::Draft::read`, with Ollama's `images`. Calls and results
/// are read where tools are.
pub(crate) fn message(images: Option<Value>) -> Value {
    let part =
        asked([("type", choice(["text", "input_text", "output_text"])), ("text", text())], []);
    let arguments = about(one_of(vec![text(), free_object()]), "An object, or JSON that is one.");
    let call = asked(
        [("function", asked([("name", text())], [("arguments", arguments)]))],
        [("id", about(text(), "A text by which the result names the call."))],
    );
    let part = one_of(vec![part, schema("ImagePart"), schema("ImageBlock")]);
    let content = one_of(vec![text(), list(part)]);
    let words = "A text, or parts. May be absent beside calls. Images stand in messages of the \
        user and in results.";
    let content = about(content, words);
    let images = images.map(|images| ("images", images));
    let said = asked(
        [("role", choice(["system", "developer", "user", "assistant", "model"]))],
        [
            ("content", content.clone()),
            ("tool_calls", about(list(call), "Calls that the assistant made.")),
            ("reasoning_content", about(text(), "What it thought before.")),
            ("reasoning", about(text(), "The same, as vLLM calls it.")),
            ("thinking", about(text(), "The same, as Ollama calls it.")),
        ]
        .into_iter()
        .chain(images.clone()),
    );
    let result = asked(
        [("role", constant("tool"))],
        [
            ("content", content),
            ("tool_call_id", about(text(), "The `id` of a call before it.")),
            ("name", about(text(), "Without it: the function's name.")),
            ("tool_name", about(text(), "The same, as Ollama calls it.")),
        ]
        .into_iter()
        .chain(images),
    );
    about(one_of(vec![said, result]), "Further fields are handed to the model's template.")
}

/// Returns the schema of `pictures::Sent::read` in the form of OpenAI's APIs.
pub(crate) fn picture_part() -> Value {
    let words =
        "`data:image/...;base64,...`, or a URL of a host that the server's owner has named.";
    let url = about(text(), words);
    let detail = || about(any(), "Changes nothing.");
    let object = asked([("url", url.clone())], [("detail", detail())]);
    asked(
        [("type", choice(["image_url", "input_image"])), ("image_url", one_of(vec![url, object]))],
        [("detail", detail())],
    )
}

/// Returns the schema of the same in the form of Anthropic's API.
pub(crate) fn picture_block() -> Value {
    let words = "Not compared with the image, which tells its format.";
    let data = asked(
        [("type", constant("base64")), ("data", text())],
        [("media_type", about(any(), words))],
    );
    let url = asked([("type", constant("url")), ("url", text())], []);
    asked([("type", constant("image")), ("source", one_of(vec![data, url]))], [])
}

/// Returns the schema of a text, a list of texts, a list of token ids and texts, or a list of such
/// lists.
pub(crate) fn texts_or_ids(most: usize) -> Value {
    let text = || json!({"type": "string", "minLength": 1});
    let parts = || {
        let part = one_of(vec![token_id(), json!({"type": "string"})]);
        json!({"type": "array", "items": part, "contains": token_id(), "minItems": 1})
    };
    one_of(vec![text(), parts(), list_of(one_of(vec![text(), parts()]), 1, most)])
}

pub(crate) fn response_item() -> Value {
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
    let words = "What tools of another server have done: left out. Thoughts (`reasoning`) belong \
        to the calls after them.";
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

pub(crate) fn response_tool() -> Value {
    let [name, rest @ ..] = &*function("parameters") else { unreachable!("it has a name") };
    let function = asked([("type", constant("function")), name.clone()], rest.iter().cloned());
    let within =
        [("type", constant("namespace")), ("name", text()), ("tools", list(function.clone()))];
    let words = "Of any other type: left out with a warning.";
    one_of(vec![function, asked(within, []), about(asked([("type", text())], []), words)])
}

pub(crate) fn anthropic_message() -> Value {
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
    let words = "What tools of another server have done: left out. Thoughts (`thinking`) belong to \
                 the calls of their message.";
    let other = about(asked([("type", text())], []), words);
    let blocks = list(one_of(vec![said, picture, call, result, other]));
    let role = choice(["user", "assistant", "system", "developer", "tool", "model"]);
    asked([("role", role), ("content", one_of(vec![text(), blocks]))], [])
}

pub(crate) fn anthropic_tool() -> Value {
    let [name, rest @ ..] = &*function("input_schema") else { unreachable!("it has a name") };
    let custom = asked([name.clone()], rest.iter().cloned().chain([("type", constant("custom"))]));
    let words = "Of any other type: left out with a warning, for this server runs no tools itself.";
    one_of(vec![custom, about(asked([("type", text())], []), words)])
}

pub(crate) fn images() -> Value {
    about(list(text()), "Images in base64, which stand before the text.")
}
