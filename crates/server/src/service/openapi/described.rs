//! Answers that describe the server and its models.

use serde_json::{Value, json};
use trine_engine::disk::StoreCounts;
use trine_engine::{PartnerCounts, SamplingParams, Status, TowerCounts};

use super::schema::{
    Field, about, boolean, choice, constant, count, free_object, list, nullable, number, object,
    one_of, schema, text, token_id,
};

/// Returns the schemas of these answers, by name.
pub(super) fn schemas() -> Vec<Field> {
    vec![
        ("Model", one_of(vec![model(), anthropic_model()])),
        ("Models", models()),
        ("OllamaModel", object(ollama_model().into_iter().chain([able()]), [])),
        ("OllamaModels", object([("models", list(schema("OllamaModel")))], [])),
        ("OllamaRunning", ollama_running()),
        ("OllamaDetails", ollama_details()),
        ("OllamaShow", ollama_show()),
        ("OllamaSuccess", object([("status", constant("success"))], [])),
        ("OllamaDone", object([], [])),
        ("OllamaProgressLine", ollama_progress()),
        ("Version", object([("version", text())], [])),
        ("Health", health()),
        ("Ready", object([("status", constant("ready"))], [])),
        ("Props", props()),
        ("TokenizerInfo", tokenizer_info()),
        ("Slots", slots()),
        ("SamplingDefaults", sampling_defaults()),
        ("ServerStatus", status()),
        ("Catalog", catalog()),
        ("EngineStatus", counted(&Status::default(), nullable_part)),
        ("StoreCounts", counted(&StoreCounts::default(), |_| None)),
        ("PartnerCounts", counted(&PartnerCounts::default(), |_| None)),
        ("TowerCounts", counted(&TowerCounts::default(), |_| None)),
        ("ModelInfo", model_info()),
        ("ServerInfo", server_info()),
        ("Load", load()),
        ("ServerLoad", object([("server_load", count())], [])),
    ]
}

/// Returns the schema of a field of an engine's status that is not a number.
fn nullable_part(name: &str) -> Option<Value> {
    let (part, none) = match name {
        "store" => ("StoreCounts", "Null without a store of prefixes."),
        "partner" => ("PartnerCounts", "What the NPU does for all models; null without one."),
        _ => return None,
    };
    Some(about(nullable(schema(part)), none))
}

fn model() -> Value {
    let message = about(text(), "Why it cannot be used, and what to do.");
    let value = choice(["loaded", "unloaded", "failed"]);
    let loaded = object([("value", value)], [("message", message)]);
    object(
        [
            ("id", text()),
            ("object", constant("model")),
            (
                "created",
                about(count(), "When it came, or the server started, in seconds since 1970."),
            ),
            ("owned_by", constant("trine")),
            (
                "root",
                about(
                    text(),
                    "The model that it stands for, as the status and the metrics name it.",
                ),
            ),
            ("status", loaded),
        ],
        [
            (
                "max_model_len",
                about(
                    count(),
                    "Tokens of a conversation under this name; before the model is loaded, the \
                     most that there can be.",
                ),
            ),
            ("meta", object([("size", about(count(), "Bytes of its files."))], [])),
        ],
    )
}

/// What a client gets that names a version of Anthropic's API.
fn anthropic_model() -> Value {
    let kind = ("type", constant("model"));
    object([kind, ("id", text()), ("display_name", text()), ("created_at", time())], [])
}

fn models() -> Value {
    let whole = object([("object", constant("list")), ("data", list(model()))], []);
    let page = [
        ("data", list(anthropic_model())),
        ("has_more", boolean()),
        ("first_id", nullable(text())),
        ("last_id", nullable(text())),
    ];
    one_of(vec![whole, object(page, [])])
}

fn time() -> Value {
    json!({"type": "string", "format": "date-time"})
}

fn ollama_model() -> [Field; 6] {
    [
        ("name", text()),
        ("model", text()),
        ("modified_at", time()),
        ("size", about(count(), "Bytes of its files; of a model that runs, in memory.")),
        (
            "digest",
            about(text(), "SHA-256 of its file where it is known, otherwise of parts of it."),
        ),
        ("details", schema("OllamaDetails")),
    ]
}

fn able() -> Field {
    ("capabilities", list(choice(["completion", "tools", "thinking", "vision", "embedding"])))
}

fn ollama_running() -> Value {
    let more = [("expires_at", time()), ("size_vram", count()), ("context_length", count())];
    let model = object(ollama_model().into_iter().chain(more), []);
    object([("models", list(model))], [])
}

fn ollama_details() -> Value {
    object(
        [
            ("parent_model", about(text(), "What a name stands for that is no model's own.")),
            ("format", constant("gguf")),
            ("family", text()),
            ("families", list(text())),
            ("parameter_size", text()),
            ("quantization_level", text()),
        ],
        [
            ("context_length", about(count(), "Positions of a sequence that are served.")),
            ("embedding_length", count()),
        ],
    )
}

fn ollama_show() -> Value {
    object(
        [
            ("modelfile", text()),
            ("parameters", about(text(), "One a line.")),
            ("template", text()),
            ("system", text()),
            ("details", schema("OllamaDetails")),
            ("model_info", free_object()),
            able(),
            ("modified_at", time()),
        ],
        [],
    )
}

fn ollama_progress() -> Value {
    let file = about(text(), "The file that is being fetched.");
    let error = ("error", about(text(), "What went wrong; the last line."));
    let counts = [("total", count()), ("completed", count())];
    object([], [("status", text()), ("digest", file), error].into_iter().chain(counts))
}

fn health() -> Value {
    let words = "`degraded` where a model has failed, or could not be loaded, and has not been \
        loaded again.";
    object([("status", about(choice(["ok", "degraded"]), words))], [])
}

fn props() -> Value {
    let defaults = object([("n_ctx", count()), ("params", schema("SamplingDefaults"))], []);
    let modalities = object([("vision", boolean()), ("audio", constant(false))], []);
    object(
        [
            ("default_generation_settings", defaults),
            ("total_slots", count()),
            ("model_alias", text()),
            ("model_path", about(text(), "The same: where its file lies is not told.")),
            ("chat_template", text()),
            ("bos_token", text()),
            ("eos_token", text()),
            ("modalities", modalities),
            ("build_info", text()),
            ("device", text()),
            ("is_sleeping", constant(false)),
        ],
        [],
    )
}

fn tokenizer_info() -> Value {
    object(
        [
            ("tokenizer_class", text()),
            ("bos_token", text()),
            ("eos_token", text()),
            ("add_bos_token", boolean()),
            ("add_eos_token", boolean()),
            ("model_max_length", count()),
            ("vocab_size", count()),
            ("chat_template", nullable(text())),
        ],
        [],
    )
}

fn slots() -> Value {
    let slot = object(
        [
            ("id", count()),
            ("n_ctx", count()),
            ("speculative", boolean()),
            ("is_processing", boolean()),
        ],
        [],
    );
    list(slot)
}

/// Returns the schema of the object that a struct of numbers is written as. `other` returns the
/// schemas of fields that are not plain numbers or booleans.
fn counted(example: &impl serde::Serialize, other: fn(&str) -> Option<Value>) -> Value {
    let example = serde_json::to_value(example).expect("numbers are written as JSON");
    let fields = example.as_object().expect("a struct is written as an object");
    let mut schema = free_object();
    for (name, value) in fields {
        let kind = match value {
            Value::Bool(_) => boolean(),
            Value::Number(number_of) if number_of.is_u64() => count(),
            _ => number(),
        };
        schema["properties"][name] = other(name).unwrap_or(kind);
    }
    let names: Vec<&String> = fields.keys().collect();
    schema["required"] = json!(names);
    schema
}

fn sampling_defaults() -> Value {
    let of_preset = [
        (
            "max_tokens",
            about(json!({"type": "integer"}), "-1 where the context is the only bound."),
        ),
        ("stop", list(text())),
    ];
    let mut schema = counted(&SamplingParams::greedy(), sampling_type);
    for (name, kind) in of_preset {
        schema["properties"][name] = kind;
        schema["required"].as_array_mut().expect("it is a list").push(name.into());
    }
    schema
}

/// Returns the schemas of sampling's fields that are not plain numbers.
fn sampling_type(name: &str) -> Option<Value> {
    let bias = json!({
        "type": "array", "minItems": 2, "maxItems": 2, "prefixItems": [token_id(), number()],
    });
    match name {
        "logit_bias" => Some(list(bias)),
        "seed" => Some(about(json!({"type": "integer"}), "-1 where each text has another one.")),
        _ => None,
    }
}

fn status() -> Value {
    let rate = |words: &str| about(nullable(number()), words);
    let model = object(
        [
            ("name", text()),
            ("root", text()),
            ("is_loaded", boolean()),
            ("bytes", count()),
            ("problem", about(nullable(text()), "Why it cannot be used, and what to do.")),
        ],
        [
            ("family", text()),
            ("formats", list(text())),
            ("device", text()),
            ("draft", about(nullable(text()), "What guesses tokens: ngram or a model's name.")),
            ("tokens_per_second", rate("Tokens generated, over the last second.")),
            ("prompt_tokens_per_second", rate("Prompt tokens of started requests.")),
            ("busy_share", rate("Share of the time spent in steps, 0 to 1.")),
            ("status", schema("EngineStatus")),
            (
                "tower",
                about(nullable(schema("TowerCounts")), "Null for a model without a vision tower."),
            ),
        ],
    );
    object(
        [
            ("version", text()),
            ("phase", choice(["running", "draining"])),
            ("started", about(count(), "Seconds since 1970.")),
            (
                "can_pull",
                about(
                    boolean(),
                    "Whether clients may pull models: the server was started without any.",
                ),
            ),
            ("models", about(list(model), "Those that are not loaded have three fields.")),
        ],
        [],
    )
}

fn catalog() -> Value {
    let model = object(
        [
            ("name", text()),
            ("names", about(list(text()), "All its names, the usual one first.")),
            ("model", about(text(), "The repository with the quantisation.")),
            ("quantization", text()),
            ("bytes_about", about(count(), "The size of the download, rounded.")),
            (
                "fits",
                about(
                    nullable(boolean()),
                    "Whether free memory has room for it; null if nobody knows.",
                ),
            ),
            (
                "tokens_per_second_about",
                about(nullable(number()), "A forecast; null if nothing was measured."),
            ),
            ("recommended", about(boolean(), "Whether it is the one to take on this machine.")),
            ("usual", about(boolean(), "Whether it is the usual file of its size.")),
            ("sees", about(boolean(), "Whether it reads images.")),
            ("state", choice(["absent", "partial", "complete"])),
            ("percent", about(nullable(count()), "The share that is here, where that is known.")),
            (
                "served_as",
                about(nullable(text()), "The name that requests use for a model that is here."),
            ),
        ],
        [],
    );
    let device = "Where models run, for people; null if nothing was measured.";
    object(
        [
            ("device", about(nullable(text()), device)),
            ("free_bytes", about(nullable(count()), "Free memory, if the system tells.")),
            ("models", list(model)),
        ],
        [],
    )
}

fn model_info() -> Value {
    object(
        [
            ("model_path", text()),
            ("tokenizer_path", text()),
            ("served_model_name", text()),
            ("is_generation", boolean()),
        ],
        [],
    )
}

fn server_info() -> Value {
    object(
        [
            ("version", text()),
            ("model_path", text()),
            ("served_model_name", text()),
            ("tp_size", constant(1)),
            ("dp_size", constant(1)),
            ("max_total_num_tokens", nullable(count())),
            ("max_running_requests", nullable(count())),
            ("context_length", nullable(count())),
        ],
        [],
    )
}

fn load() -> Value {
    let of_one = object(
        [
            ("dp_rank", constant(0)),
            ("num_reqs", count()),
            ("num_waiting_reqs", count()),
            ("num_tokens", count()),
        ],
        [],
    );
    json!({"type": "array", "items": of_one, "minItems": 1, "maxItems": 1})
}
