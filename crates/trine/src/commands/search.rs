//! `trine search`: the names of the catalogue.

use anyhow::Result;
use serde_json::{Value, json};
use trine_hub::catalog::{self, CatalogModel};
use trine_hub::{EntryState, Hub};

use crate::cli::SearchArgs;
use crate::model_source::hub;
use crate::output;
use crate::terminal;

/// Lists the models that have a short name.
///
/// # Errors
/// Returns an error if the store cannot be read.
pub(crate) fn run(args: SearchArgs) -> Result<()> {
    let text = args.text.join(" ");
    let found = catalog::search(&text);
    let hub = hub()?;
    if args.json {
        let entries: Vec<Value> =
            found.iter().map(|model| entry(model, state(&hub, model))).collect();
        return output::json(&entries);
    }
    if found.is_empty() {
        let mut words = text.split_whitespace();
        match words.find_map(|word| Some((word, catalog::find(word)?))) {
            Some((word, catalog::Known::Refused(family))) => {
                output::remark(format_args!("{}: {}", terminal::harmless(word), family.reason));
            }
            _ => output::remark(format_args!(
                "no name holds {}; trine runs Gemma 3 and 4, and any repository of them on Hugging Face by owner/repo",
                terminal::harmless(&text)
            )),
        }
        return Ok(());
    }
    let row = |model: &&CatalogModel| {
        let state = match state(&hub, model) {
            None => "",
            Some(EntryState::Complete) => "here",
            Some(EntryState::Partial) => "partly here",
        };
        vec![
            model.name(),
            model.bytes.map_or("-".to_owned(), output::about_bytes),
            state.to_owned(),
            model.model().to_string(),
        ]
    };
    let rows = found.iter().map(row).collect();
    output::line(output::table(&["name", "size", "state", "repository"], rows, &[1]))
}

/// Returns the state of a model on this machine, if it is there.
fn state(hub: &Hub, model: &CatalogModel) -> Option<EntryState> {
    hub.show(&model.model()).ok().map(|entry| entry.state)
}

fn entry(model: &CatalogModel, state: Option<EntryState>) -> Value {
    json!({
        "name": model.name(),
        "names": model.names(),
        "model": model.model(),
        "quantization": model.quant(),
        "bytes_about": model.bytes,
        "state": state,
    })
}
