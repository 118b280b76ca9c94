//! `trine config`: the settings in effect, and their origins.

use anyhow::Result;
use serde_json::{Map, Value, json};

use crate::cli::ConfigArgs;
use crate::settings::{KEYS, Key, Origin, Settings};
use crate::terminal;
use crate::terminal::output;

/// Prints every setting.
///
/// # Errors
/// Returns an error if standard output cannot be written.
pub(crate) fn run(settings: &Settings, args: ConfigArgs) -> Result<()> {
    let file = settings.file.as_ref().map(|file| file.display().to_string());
    if args.json {
        let values: Map<String, Value> =
            KEYS.iter().map(|key| (key.name.to_owned(), entry(settings, key))).collect();
        return output::json(
            &json!({ "file": file, "file_exists": settings.is_there, "settings": values }),
        );
    }
    match file {
        None => output::line("file: none, as there is no home folder; TRINE_CONFIG names one")?,
        Some(file) => {
            let state = if settings.is_there { "" } else { " (not there)" };
            output::line(format_args!("file: {}{state}", terminal::harmless(&file)))?;
        }
    }
    let rows = KEYS.iter().map(|key| {
        let (value, from) = held(settings, key);
        vec![key.name.to_owned(), terminal::harmless(&value).into_owned(), from]
    });
    output::line(output::table(&["setting", "value", "from"], rows.collect(), &[]))
}

/// Returns the value in effect and its origin, for people.
fn held(settings: &Settings, key: &Key) -> (String, String) {
    match settings.value(key.name) {
        Some(value) => {
            let from = match &value.origin {
                Origin::Environment(name) => name.clone(),
                Origin::File(line) => format!("file, line {line}"),
            };
            (value.texts.join(", "), from)
        }
        None => (default(settings, key), "default".to_owned()),
    }
}

fn default(settings: &Settings, key: &Key) -> String {
    let store = (key.name == "store").then(|| settings.library.hub_config().ok()).flatten();
    store.map_or(key.default.to_owned(), |config| config.store.display().to_string())
}

fn entry(settings: &Settings, key: &Key) -> Value {
    match settings.value(key.name) {
        None => json!({ "value": null, "default": default(settings, key), "from": "default" }),
        Some(value) => {
            let shown = match value.texts.as_slice() {
                [text] => json!(text),
                texts => json!(texts),
            };
            match &value.origin {
                Origin::Environment(name) => {
                    json!({ "value": shown, "from": "environment", "variable": name })
                }
                Origin::File(line) => json!({ "value": shown, "from": "file", "line": line }),
            }
        }
    }
}
