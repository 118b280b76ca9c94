//! `trine ps` and `trine stop`: the models that a running server has loaded.

use anyhow::{Result, anyhow, bail};
use serde_json::{Value, json};

use super::top::fetch::Client;
use crate::cli::{PsArgs, ServerArgs, StopArgs};
use crate::terminal;
use crate::terminal::output;

/// Times from this year on mean that a model stays loaded until someone stops it.
const NEVER: &str = "2100";

/// Lists the loaded models.
///
/// # Errors
/// Returns an error if the server does not answer.
pub(crate) fn ps(args: PsArgs) -> Result<()> {
    let answer = Client::new(&args.server)?.send("/api/ps", None)?;
    let answer = read(&args.server, &answer)?;
    if args.json {
        return output::json(&answer["models"]);
    }
    let models = models(&args.server, &answer)?;
    if models.is_empty() {
        output::remark(format_args!(
            "no model is loaded at {}; the next request loads one",
            args.server.url
        ));
        return Ok(());
    }
    let rows = models.iter().map(row).collect();
    output::line(output::table(&["name", "size", "context", "loaded until"], rows, &[1, 2]))
}

fn row(model: &Value) -> Vec<String> {
    let text = |value: &Value| terminal::harmless(value.as_str().unwrap_or("-")).into_owned();
    let until = match model["expires_at"].as_str() {
        Some(until) if until < NEVER => text(&model["expires_at"]),
        _ => "forever".to_owned(),
    };
    vec![
        text(&model["name"]),
        model["size"].as_u64().map_or("-".to_owned(), output::bytes),
        model["context_length"].as_u64().map_or("-".to_owned(), |context| context.to_string()),
        until,
    ]
}

/// Unloads a model, or all.
///
/// # Errors
/// Returns an error if the server does not answer, or has no such model.
pub(crate) fn stop(args: StopArgs) -> Result<()> {
    let client = Client::new(&args.server)?;
    let loaded = || -> Result<Vec<String>> {
        let answer = read(&args.server, &client.send("/api/ps", None)?)?;
        let models = models(&args.server, &answer)?.iter();
        Ok(models.filter_map(|model| model["name"].as_str().map(str::to_owned)).collect())
    };
    let before = loaded()?;
    let wanted = args.model.map_or_else(|| before.clone(), |model| vec![model]);
    for model in &wanted {
        let body = json!({ "model": model, "keep_alive": 0, "stream": false });
        let answer = client.send("/api/generate", Some(&body))?;
        if read(&args.server, &answer)?["done_reason"] != "unload" {
            bail!("the server at {} does not unload models on demand", args.server.url);
        }
    }
    // The argument may be a preset or an alias; the model that is gone is the one that was meant.
    let after = loaded()?;
    let gone: Vec<&str> =
        before.iter().filter(|name| !after.contains(name)).map(String::as_str).collect();
    let wanted = wanted.join(", ");
    let model = terminal::harmless(&wanted);
    match gone.as_slice() {
        [] if before.is_empty() => output::remark("no model was loaded"),
        [] => output::remark(format_args!(
            "{model} was not loaded, or is in use and goes when its requests end"
        )),
        gone => output::remark(format_args!("stopped {}", terminal::harmless(&gone.join(", ")))),
    }
    Ok(())
}

fn read(server: &ServerArgs, answer: &[u8]) -> Result<Value> {
    serde_json::from_slice(answer).map_err(|_| {
        anyhow!("what answers at {} is not a trine server: it does not send JSON", server.url)
    })
}

fn models<'a>(server: &ServerArgs, answer: &'a Value) -> Result<&'a Vec<Value>> {
    answer["models"].as_array().ok_or_else(|| {
        anyhow!("what answers at {} is not a trine server: it lists no models", server.url)
    })
}
