//! Fields that several requests have. Bounds and refused fields are those of the readers.

use serde_json::{Value, json};
use trine_engine::LOGPROBS_MAX;
use trine_engine::sampling::{BIAS_MAX, BIASES_MAX, PENALTY, TEMPERATURE_MAX, TOP_K_MAX};
use trine_text::MAX_TOOLS;

use super::schema::{
    Field, about, any, asked, boolean, choice, constant, default, free_object, integer, list,
    list_of, map, number_from, object, one_of, refused, schema, text, token_id,
};
use crate::messages::MESSAGES_MAX;
use crate::parameters::{CHOICES_MAX, STOP_BYTES_MAX, STOPS_MAX, TOKENS_MAX};
use crate::thinking::{BUDGETS, CHATS, EFFORTS, Refusal, Spelling};
use crate::unsupported::{EVERYWHERE, Harmless, Unsupported};

pub(super) fn model() -> Field {
    let words =
        "Name of a model, with or without `:latest`. Absent or empty: the server's default model.";
    ("model", about(text(), words))
}

pub(super) fn stream(streams: bool) -> Field {
    (
        "stream",
        about(default(boolean(), streams), "Whether the answer is sent while it is written."),
    )
}

pub(super) fn priority() -> Field {
    let words = "Of a client's requests those with lower numbers go first.";
    ("priority", about(default(integer(i32::MIN, i32::MAX), 0), words))
}

/// Returns the fields of `parameters::read_sampling`.
pub(super) fn sampling() -> Vec<Field> {
    let penalty = |words: &str| about(number_from(*PENALTY.start(), *PENALTY.end()), words);
    let repetition = |words: &str| about(number_from(0.01, 100.0), words);
    let bias = number_from(-BIAS_MAX, BIAS_MAX);
    let pair = json!({
        "type": "array", "minItems": 2, "maxItems": 2,
        "prefixItems": [token_id(), one_of(vec![bias.clone(), constant(false)])],
    });
    let mut by_id = map(one_of(vec![bias, constant(false)]));
    by_id["maxProperties"] = BIASES_MAX.into();
    let biases = one_of(vec![by_id, list_of(pair, 0, BIASES_MAX)]);
    vec![
        (
            "temperature",
            about(
                number_from(0.0, TEMPERATURE_MAX),
                "Divides the logits; 0 always takes the most likely token. Where this and the other fields of sampling are \
                 absent, the model's own defaults hold.",
            ),
        ),
        (
            "top_p",
            about(number_from(0.0, 1.0), "Keeps the most likely tokens with this share together."),
        ),
        (
            "min_p",
            about(
                number_from(0.0, 1.0),
                "Keeps tokens with this share of the most likely one's probability.",
            ),
        ),
        (
            "top_k",
            about(integer(-1, TOP_K_MAX as i64), "How many tokens to keep; 0 and -1 keep all."),
        ),
        ("repeat_penalty", repetition("llama.cpp's name of `repetition_penalty`.")),
        (
            "repetition_penalty",
            repetition("Makes tokens of prompt and answer less likely; 1 changes nothing."),
        ),
        ("presence_penalty", penalty("Subtracted from the logits of tokens that the answer has.")),
        (
            "frequency_penalty",
            penalty("Subtracted once for each time that the answer has a token."),
        ),
        (
            "repeat_last_n",
            about(
                integer(-1, 1 << 24),
                "How many of the last tokens the penalties count, prompt and answer together; -1 is the whole context. Where it is \
                 absent, they do so with 64 in Ollama's dialect.",
            ),
        ),
        (
            "seed",
            about(
                integer(-1, i64::MAX),
                "Where random numbers begin. Absent or -1: by chance. Texts of one request have seeds in sequence.",
            ),
        ),
        (
            "logit_bias",
            about(
                biases,
                "Added to logits, by token id; llama.cpp's pairs of id and number too. `false` forbids a token.",
            ),
        ),
    ]
}

pub(super) fn stops() -> Value {
    let stop = json!({"type": "string", "maxLength": STOP_BYTES_MAX});
    let words = format!(
        "Texts that end the answer: at most {STOPS_MAX}, of at most {STOP_BYTES_MAX} bytes each."
    );
    about(one_of(vec![stop.clone(), list_of(stop, 0, STOPS_MAX)]), words)
}

/// Returns the fields that `parameters::Parameters::read` reads, that is, those that chats and
/// completions share. `tokens` is the default of how many tokens are written, if it is a number.
pub(super) fn parameters(tokens: Option<i64>) -> Vec<Field> {
    let most = TOKENS_MAX as i64;
    let tokens = |words: &str| {
        let most = about(integer(-1, most), words);
        tokens.map_or(most.clone(), |tokens| default(most, tokens))
    };
    let mut fields = sampling();
    fields.extend([
        (
            "max_tokens",
            tokens(
                "Most tokens that are written. -1: until the context is full; 0: only the prompt is run.",
            ),
        ),
        ("max_completion_tokens", tokens("The same, as OpenAI calls it. Of several names this one counts, then `max_tokens`.")),
        ("n_predict", tokens("The same, as llama.cpp calls it.")),
        ("stop", stops()),
        ("stop_token_ids", about(list_of(token_id(), 0, STOPS_MAX), "Tokens that end the text.")),
        (
            "ignore_eos",
            about(default(boolean(), false), "Goes on where the model would end the text."),
        ),
        (
            "min_tokens",
            about(
                default(integer(0, most), 0),
                "The text does not end before, and no stop text begins before.",
            ),
        ),
        (
            "n",
            about(
                default(integer(1, CHOICES_MAX as i64), 1),
                "Texts for the prompt.",
            ),
        ),
        (
            "best_of",
            about(
                integer(1, CHOICES_MAX as i64),
                "Not supported: ask for n texts and choose among them. Accepted where it equals `n`.",
            ),
        ),
        (
            "include_stop_str_in_output",
            about(default(boolean(), false), "Whether the stop text is part of the answer."),
        ),
        (
            "skip_special_tokens",
            about(default(boolean(), true), "Whether control tokens are left out of the text."),
        ),
        priority(),
        (
            "prompt_logprobs",
            about(
                integer(0, LOGPROBS_MAX as i64),
                "Log-probabilities of the prompt's tokens, with this number of alternatives. In whole answers only.",
            ),
        ),
    ]);
    fields.extend(structure());
    fields.extend(everywhere());
    let words = "Answers are text.";
    fields.push(("modalities", about(list(constant("text")), words)));
    fields
}

/// Returns the fields of requests for texts in every dialect.
pub(super) fn everywhere() -> impl Iterator<Item = Field> {
    let words = "Only requests with the same salt, and the same key where there are several, use what was computed of this \
                 one's prompt.";
    refused_fields(&EVERYWHERE).chain([("cache_salt", about(text(), words))])
}

/// Returns the fields of a list for `unsupported::refuse`.
pub(super) fn refused_fields(unsupported: &[Unsupported]) -> impl Iterator<Item = Field> {
    unsupported.iter().map(|(name, harmless, remedy)| (*name, off(harmless, remedy)))
}

fn off(harmless: &Harmless, remedy: &str) -> Value {
    match harmless {
        Harmless::Off => refused(remedy, json!([null, false, "", [], {}])),
        Harmless::At(numbers) => {
            let values: Vec<Value> =
                std::iter::once(Value::Null).chain(numbers.iter().map(|&it| it.into())).collect();
            refused(remedy, values.into())
        }
        Harmless::UpTo(most) => off_within("maximum", *most, remedy),
        Harmless::From(least) => off_within("minimum", *least, remedy),
        Harmless::Text(texts) => {
            let named = asked([("type", json!({ "enum": texts }))], []);
            let schema = one_of(vec![json!({ "enum": texts }), named]);
            about(schema, format!("Not supported: {remedy}."))
        }
    }
}

fn off_within(bound: &str, number: f64, remedy: &str) -> Value {
    let mut schema = json!({"type": "number"});
    schema[bound] = number.into();
    about(schema, format!("Not supported: {remedy}. Accepted where it is off."))
}

/// Returns the fields of `structure::Structure::read`.
fn structure() -> Vec<Field> {
    let only = "At most one of the fields that say what the text looks like is taken.";
    let mut fields = vec![("response_format", about(schema("ResponseFormat"), only))];
    fields.extend(structure_of_others());
    fields
}

/// Returns the fields of `structure::of_others`.
pub(super) fn structure_of_others() -> Vec<Field> {
    let json_schema = || one_of(vec![free_object(), boolean(), text()]);
    let choices = || about(list(text()), "The text is one of these.");
    let grammar = || about(text(), "GBNF if it has `::=`, otherwise Lark.");
    let object = about(boolean(), "The text is a JSON object.");
    vec![
        ("json_schema", about(json_schema(), "llama.cpp's: a JSON schema.")),
        ("grammar", about(text(), "llama.cpp's: GBNF; with the first line `%llguidance` Lark.")),
        ("guided_json", about(json_schema(), "vLLM's: a JSON schema, or a text that holds one.")),
        ("guided_regex", about(text(), "vLLM's: a regular expression.")),
        ("regex", about(text(), "SGLang's: the same.")),
        ("guided_choice", choices()),
        ("guided_grammar", grammar()),
        ("ebnf", grammar()),
        (
            "structured_outputs",
            asked(
                [],
                [
                    ("json", json_schema()),
                    ("regex", text()),
                    ("choice", choices()),
                    ("grammar", grammar()),
                    ("json_object", object),
                    (
                        "structural_tag",
                        refused("use json, regex, choice or grammar", json!([null])),
                    ),
                    (
                        "whitespace_pattern",
                        refused("use json, regex, choice or grammar", json!([null])),
                    ),
                ],
            ),
        ),
    ]
}

/// Returns the schema of `structure::read_format`.
pub(super) fn response_format() -> Value {
    let schema = || one_of(vec![free_object(), boolean(), text()]);
    let named = asked([("schema", schema())], []);
    let kinds = asked(
        [("type", choice(["text", "json_object", "json_schema"]))],
        [
            ("schema", about(schema(), "The schema, beside the type.")),
            ("json_schema", about(named, "The schema, as chats of OpenAI have it.")),
        ],
    );
    about(kinds, "What the text looks like. `strict` changes nothing: every schema is held to.")
}

/// Returns the fields of `calling::Calling::read`.
pub(super) fn calling() -> Vec<Field> {
    vec![
        (
            "tools",
            about(list_of(schema("Tool"), 0, MAX_TOOLS), "Functions that the model may call."),
        ),
        ("tool_choice", schema("ToolChoice")),
        parallel(),
    ]
}

pub(super) fn parallel() -> Field {
    let words = "Whether an answer may have several calls.";
    ("parallel_tool_calls", about(default(boolean(), true), words))
}

/// Returns the fields of a function, wherever the dialect has it. `arguments` is the name of their
/// schema.
pub(super) fn function(arguments: &'static str) -> Vec<Field> {
    let name = json!({"type": "string", "pattern": "^[A-Za-z0-9_.:/-]{1,128}$"});
    let schema = about(free_object(), "JSON schema of the arguments, an object.");
    vec![("name", name), ("description", text()), (arguments, schema)]
}

pub(super) fn tool() -> Value {
    let other = about(asked([("type", text())], []), "Of any other type: left out with a warning.");
    one_of(vec![function_tool(), other])
}

fn function_tool() -> Value {
    let [name, rest @ ..] = &*function("parameters") else { unreachable!("it has a name") };
    let function = asked([name.clone()], rest.iter().cloned());
    object([("function", function)], [("type", constant("function"))])
}

pub(super) fn tool_choice() -> Value {
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

/// Returns the field of `openai::check_store`.
pub(super) fn store() -> Field {
    ("store", about(any(), "Answers are not kept: true is answered with a warning."))
}

/// Returns the fields of `conversation::Rendering::read`.
pub(super) fn rendering() -> Vec<Field> {
    vec![
        (
            "add_generation_prompt",
            about(
                boolean(),
                "Whether the prompt ends with the beginning of the answer. Absent: unless the last message is continued.",
            ),
        ),
        (
            "continue_final_message",
            about(default(boolean(), false), "Whether the model goes on with the last message."),
        ),
        ("chat_template_kwargs", about(free_object(), "Variables for the model's template.")),
        (
            "reasoning_effort",
            about(
                choice(EFFORTS),
                "A variable for the model's template; a model that can think does, unless it is none.",
            ),
        ),
        (
            "enable_thinking",
            about(boolean(), "Whether the model thinks before it answers, if it can."),
        ),
    ]
    .into_iter()
    .chain(budgets())
    .chain(others_thinking(CHATS))
    .collect()
}

/// Returns the fields by which other dialects say whether a model is to think.
pub(super) fn others_thinking(dialect: Spelling) -> impl Iterator<Item = Field> {
    let words = "Another dialect's word for whether the model thinks, and how long. Counts if this dialect's own says nothing.";
    dialect.others().map(move |name| (name, about(any(), words)))
}

/// Returns the fields of `thinking::Refusal::refuse`.
pub(super) fn no_thinking(refusal: Refusal) -> impl Iterator<Item = Field> {
    let words = format!("Not supported: {}. Accepted where it asks for no thoughts.", refusal.0);
    let budgets: Vec<Field> = refused_fields(&refusal.budgets()).collect();
    budgets.into_iter().chain(refusal.fields().map(move |name| (name, about(any(), &*words))))
}

/// Returns the fields with the most tokens of thoughts that every dialect takes.
pub(super) fn budgets() -> [Field; 3] {
    let most = || integer(-1, TOKENS_MAX as i64);
    let words =
        "Most tokens of thoughts, -1 for any number. By itself it lets a model think that can.";
    let same = |name| (name, about(most(), "The same."));
    [(BUDGETS[0], about(most(), words)), same(BUDGETS[1]), same(BUDGETS[2])]
}

/// Returns the schema of the most tokens of thoughts.
pub(super) fn thoughts() -> Value {
    integer(0, TOKENS_MAX as i64)
}

/// Returns the field of `messages::read_messages`.
pub(super) fn messages() -> Field {
    ("messages", list_of(schema("Message"), 1, MESSAGES_MAX))
}

/// Returns the schema of `messages::Draft::read`, with Ollama's `images`. Calls and results
/// are read where tools are.
pub(super) fn message(images: Option<Value>) -> Value {
    let part =
        asked([("type", choice(["text", "input_text", "output_text"])), ("text", text())], []);
    let arguments = about(one_of(vec![text(), free_object()]), "An object, or JSON that is one.");
    let call = asked(
        [("function", asked([("name", text())], [("arguments", arguments)]))],
        [("id", about(text(), "A text by which the result names the call."))],
    );
    let part = one_of(vec![part, schema("ImagePart"), schema("ImageBlock")]);
    let content = one_of(vec![text(), list(part)]);
    let words = "A text, or parts. May be absent beside calls. Images stand in messages of the user and in results.";
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
pub(super) fn picture_part() -> Value {
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
pub(super) fn picture_block() -> Value {
    let words = "Not compared with the image, which tells its format.";
    let data = asked(
        [("type", constant("base64")), ("data", text())],
        [("media_type", about(any(), words))],
    );
    let url = asked([("type", constant("url")), ("url", text())], []);
    asked([("type", constant("image")), ("source", one_of(vec![data, url]))], [])
}

/// Returns the fields of `openai::Streaming::read`.
pub(super) fn streaming() -> Vec<Field> {
    let options = asked(
        [],
        [
            ("include_usage", about(default(boolean(), false), "A last chunk has the counts.")),
            ("continuous_usage_stats", about(default(boolean(), false), "Every chunk has them.")),
        ],
    );
    let words = "Needs `\"stream\": true`.";
    vec![stream(false), ("stream_options", about(options, words))]
}

/// Returns the schema of `json::Fields::ids`.
pub(super) fn ids() -> Value {
    list(token_id())
}

/// Returns the schema of a text, a list of texts, a list of token ids and texts, or a list of such
/// lists.
pub(super) fn texts_or_ids(most: usize) -> Value {
    let text = || json!({"type": "string", "minLength": 1});
    let parts = || {
        let part = one_of(vec![token_id(), json!({"type": "string"})]);
        json!({"type": "array", "items": part, "contains": token_id(), "minItems": 1})
    };
    one_of(vec![text(), parts(), list_of(one_of(vec![text(), parts()]), 1, most)])
}

/// Returns the schema of the most tokens of an answer, which is at least `least`.
pub(super) fn most_tokens(least: i64) -> Value {
    integer(least, TOKENS_MAX as i64)
}
