//! `trine search`: the names of the catalogue.

use anyhow::Result;
use serde_json::{Value, json};
use trine_hub::catalog::{self, CatalogModel, Known};
use trine_hub::{EntryState, StoreEntry};
use trine_session::library::ModelLibrary;
use trine_session::suiting::Suited;

use crate::cli::SearchArgs;
use crate::failure::Negative;
use crate::settings::Settings;
use crate::terminal;
use crate::terminal::output;

/// Lists the models that have a short name, with what is forecast for this machine. `verbose` adds
/// the repositories.
///
/// # Errors
/// Returns [`Negative`] if no name has the text, or an error if the store cannot be read.
pub(crate) fn run(set: &Settings, args: SearchArgs, verbose: bool) -> Result<()> {
    let library = &set.library;
    let text = args.text.join(" ");
    let found = catalog::search(&text);
    // The catalogue is there without a store.
    let here = library.hub()?.list().unwrap_or_default();
    if found.is_empty() && !args.json {
        output::remark(nothing(library, &text));
        return Err(Negative.into());
    }
    // Without a measurement only the memory is known.
    let suited = match args.quick {
        true => Suited::unmeasured(library),
        false => Suited::measured(library).unwrap_or_else(|_| Suited::unmeasured(library)),
    };
    let best = suited.best();
    if args.json {
        let entries: Vec<Value> =
            found.iter().map(|model| entry(model, state(&here, model), &suited)).collect();
        return output::json(&entries);
    }
    let row = |model: &&'static CatalogModel| {
        let fits = match suited.room.fits(model) {
            Some(true) => "yes",
            Some(false) => "no",
            None => "-",
        };
        let rate = suited.rate(model).filter(|_| suited.room.fits(model) != Some(false));
        let state = state(&here, model).map(|state| match state {
            EntryState::Complete => "here",
            EntryState::Partial => "partly here",
        });
        let recommended = (*model == best).then_some("recommended");
        let finest = suited.loses_least(model).then_some("least loss");
        let notes: Vec<&str> = [state, recommended, finest].into_iter().flatten().collect();
        let mut cells = vec![
            model.name(),
            output::bytes(model.bytes),
            fits.to_owned(),
            rate.map_or("-".to_owned(), output::short_rate),
            notes.join(", "),
        ];
        if verbose {
            cells.push(model.model().to_string());
        }
        cells
    };
    let rows = found.iter().map(row).collect();
    let mut header = vec!["name", "size", "fits", "about tokens/s", ""];
    if verbose {
        header.push("repository");
    }
    output::line(output::table(&header, rows, &[1, 3]))?;
    output::note(&format!(
        "sizes are rounded; tokens/s are a forecast for {}; least loss: the best file of a size \
         that runs well here\n{}",
        terminal::harmless(&suited.device()),
        next(&found, best, &suited)
    ));
    Ok(())
}

/// Returns what to type next: with the recommended model if it is in the list, else with the first
/// that fits.
fn next(found: &[&CatalogModel], best: &CatalogModel, suited: &Suited) -> String {
    let fits = |model: &&&CatalogModel| suited.room.fits(model) != Some(false);
    let model = match found.contains(&best) {
        true => best,
        false => found.iter().find(fits).or(found.first()).map_or(best, |model| model),
    };
    let (name, recommended) = (model.name(), best.name());
    let recommended = match model == best {
        true => String::new(),
        false => format!("; recommended here is {recommended}"),
    };
    format!(
        "next: `trine run {name}` starts a chat, and downloads it before if it is not here; `trine \
         pull {name}` only downloads it{recommended}"
    )
}

/// Returns what there is to say if no model of the catalogue has the words.
fn nothing(library: &ModelLibrary, text: &str) -> String {
    let mut words = text.split_whitespace();
    match words.find_map(catalog::find) {
        Some(Known::Refused(refused)) => refused.reason(Suited::unmeasured(library).best()),
        _ => format!(
            "no name has {}; trine runs Gemma 3, 3n and 4, and any repository of them on Hugging \
             Face by owner/repo",
            terminal::harmless(text)
        ),
    }
}

/// Returns the state of a model on this machine, if it is there.
fn state(here: &[StoreEntry], model: &CatalogModel) -> Option<EntryState> {
    let states = here.iter().filter(|entry| entry.short == model.name()).map(|entry| entry.state);
    states.min_by_key(|state| *state != EntryState::Complete)
}

fn entry(model: &'static CatalogModel, state: Option<EntryState>, suited: &Suited) -> Value {
    json!({
        "name": model.name(),
        "names": model.names(),
        "model": model.model(),
        "quantization": model.quant(),
        "bytes_about": model.bytes,
        "fits": suited.room.fits(model),
        "tokens_per_second_about": suited.rate(model),
        "recommended": model == suited.best(),
        "least_loss": suited.loses_least(model),
        "state": state,
    })
}
