//! `trine run`

mod chat;
mod open;
mod told;

use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow};
use serde::Serialize;
use trine_engine::Statistics;
use trine_hub::catalog;
use trine_session::library::ModelLibrary;
use trine_session::model_source::{Chosen, ModelOrPrompt, find, model_or_prompt};
use trine_session::npu::Done;
use trine_session::picture_file::{self, expanded, is_picture};

use self::open::{Named, Opened, open, pictures};
use self::told::{bandwidth, tell_end};
use crate::chat::converse::{chat_prompt, raw_prompt};
use crate::chat::generate::{Ending, answer};
use crate::chat::prompt::Words;
use crate::chat::{Conversation, PromptInput};
use crate::cli::RunArgs;
use crate::failure::{Interrupted, usage};
use crate::interrupt::Watch;
use crate::options::Writing;
use crate::settings::Settings;
use crate::terminal::output;
use crate::terminal::printer::Printer;
use crate::{habits, terminal};

/// Answers once, or chats.
///
/// # Errors
/// Returns an error if there is no such model, the prompt does not fit, or the device fails.
pub(crate) fn run(set: &Settings, args: RunArgs, verbose: bool) -> Result<()> {
    if args.quiet {
        output::keep_quiet();
    }
    if args.keepalive.is_some() {
        output::note(
            "--keepalive has no effect here: `run` ends with its answer. `trine serve \
             --keep-alive` keeps a model loaded",
        );
    }
    let Asked { chosen, prompt, named } = what_is_asked(&set.library, &args)?;
    let Some(prompt) = prompt else { return chat::chat(set, &args, chosen, verbose) };
    let mut opened = open(set, &args, (&chosen, Named::There), &args.sampling, verbose)?;
    let pictures = pictures(&opened.session, &args.pictures.image)?;
    let mut pictures: Vec<_> = pictures.into_iter().map(|(picture, _)| picture).collect();
    opened.see_named(&named, &mut pictures);
    let (system, turns) = (opened.system.take(), std::mem::take(&mut opened.turns));
    let begun = Conversation { system, turns, ..Default::default() };
    answer_once(&mut opened, begun.asking(prompt, pictures), args.json, verbose)
}

/// Returns whether a picture is read from standard input, which is no prompt then.
///
/// # Errors
/// Returns an error if several are, or a chat reads its lines there.
fn takes_input(args: &RunArgs) -> Result<bool> {
    let takes_input = picture_file::takes_input(&args.pictures.image)?;
    if takes_input && args.interactive {
        return Err(usage(
            "--interactive reads lines from standard input, so that no image can come from there; \
             name its file",
        ));
    }
    Ok(takes_input)
}

/// What a command line asks for.
struct Asked {
    /// The model.
    chosen: Chosen,
    /// The prompt; `None` for a chat.
    prompt: Option<String>,
    /// Files of images that the prompt names and a person means to be seen.
    named: Vec<PathBuf>,
}

/// Returns the files of images among the words of a prompt that was typed. A person at a terminal
/// means them to be seen; from elsewhere the model sees words there, and a note says so.
///
/// # Errors
/// Returns an error if the prompt is nothing but images, or `--image` was given several at once.
fn look_for_pictures(args: &RunArgs, prompt: &str) -> Result<Vec<PathBuf>> {
    let picture = |word: &&String| is_picture(&expanded(Path::new(word.as_str())));
    let whole = [prompt.to_owned()];
    let words = if args.prompt.len() > 1 { &args.prompt[..] } else { &whole };
    // A list after `--image` has its others here; else a word that is none makes it a text.
    let is_list = !args.pictures.image.is_empty() && args.prompt.len() > 1;
    if let Some(word) =
        words.iter().find(picture).filter(|_| is_list || words.iter().all(|it| picture(&it)))
    {
        let (word, plain) = (terminal::harmless(word), words.len() < 2);
        let place = if plain { ", and stands in the place of PROMPT" } else { "" };
        return Err(usage(format!(
            "{word} is an image{place}; give each image by an option of its own: --image {word}"
        )));
    }
    let given = |name: &&str| !args.pictures.image.iter().any(|path| path == Path::new(name));
    let named: Vec<&str> = picture_file::named_in(prompt).into_iter().filter(given).collect();
    if terminal::stdin_is_terminal() && terminal::stderr_is_terminal() {
        return Ok(named.into_iter().map(PathBuf::from).collect());
    }
    if let Some(name) = named.first() {
        let name = terminal::harmless(name);
        output::note(&format!(
            "the model sees the name {name} only; --image {name} shows the image"
        ));
    }
    Ok(Vec::new())
}

/// Joins the words of a prompt that was typed without quotes.
fn joined(args: &RunArgs) -> Option<String> {
    let words = (!args.prompt.is_empty()).then(|| args.prompt.join(" "));
    words.or_else(|| args.prompt_option.clone())
}

/// Adds to an error about a model that may be the first word of a prompt how to give the prompt.
fn with_quotes(error: anyhow::Error, model: &str, args: &RunArgs) -> anyhow::Error {
    let is_sentence = !args.prompt.is_empty()
        && !model.contains(['/', ':', '.', '-'])
        && catalog::find(model).is_none();
    if !is_sentence {
        return error;
    }
    let prompt = habits::quoted(&format!("{model} {}", args.prompt.join(" ")));
    anyhow!("{error}; the prompt for the default model is given in quotes: trine run {prompt}")
}

/// Returns the model, and the prompt unless a chat was asked for.
fn what_is_asked(library: &ModelLibrary, args: &RunArgs) -> Result<Asked> {
    let download = args.fetch.download();
    let takes_input = takes_input(args)?;
    let default = || find(library, None, download);
    let (chosen, argument) = match (&args.model, joined(args)) {
        (Some(model), Some(prompt)) => {
            let found = find(library, Some(model), download);
            (found.map_err(|error| with_quotes(error, model, args))?, Some(prompt))
        }
        (Some(text), None) if text == "-" => (default()?, Some(text.clone())),
        (Some(text), None) if args.prompt_file.is_some() => {
            (find(library, Some(text), download)?, None)
        }
        (Some(text), None) => match model_or_prompt(library, text, download)? {
            ModelOrPrompt::Model(chosen) => (chosen, None),
            ModelOrPrompt::Prompt(prompt) if args.interactive => {
                return Err(usage(format!(
                    "--interactive takes no prompt, and {prompt:?} is not a model"
                )));
            }
            ModelOrPrompt::Prompt(prompt) => (default()?, Some(prompt)),
        },
        (None, prompt) => (default()?, prompt),
    };
    let typed = argument.as_ref().filter(|_| !args.raw);
    let named = typed.map_or(Ok(Vec::new()), |typed| look_for_pictures(args, typed))?;
    let words = match (argument, &args.prompt_file) {
        (Some(argument), None) => Words::of(argument),
        (None, Some(path)) => Words::of_file(path.clone()),
        (Some(_), Some(_)) => {
            return Err(usage("--prompt-file and `-` name two prompts; leave one of them out"));
        }
        (None, None) if args.interactive || terminal::stdin_is_terminal() && !args.json => {
            return Ok(Asked { chosen, prompt: None, named });
        }
        (None, None) if terminal::stdin_is_terminal() => {
            return Err(usage("--json answers one prompt; give it as PROMPT or on standard input"));
        }
        (None, None) => Words::Input,
    };
    Ok(Asked { chosen, prompt: Some(words.read(takes_input)?), named })
}

/// The output of `--json`.
#[derive(Serialize)]
struct Report<'a> {
    model: &'a str,
    device: &'a str,
    text: &'a str,
    /// What the model thought before it answered.
    #[serde(skip_serializing_if = "str::is_empty")]
    thoughts: &'a str,
    finish_reason: Ending,
    seed: u64,
    context: usize,
    statistics: Statistics,
    prompt_tokens_per_second: Option<f64>,
    tokens_per_second: Option<f64>,
    gigabytes_per_second: Option<f64>,
    /// Tokens of a step after the first one.
    tokens_per_step: Option<f64>,
    /// What an NPU has computed.
    #[serde(skip_serializing_if = "Option::is_none")]
    npu: Option<Done>,
}

/// Answers one prompt.
fn answer_once(
    opened: &mut Opened,
    mut asked: Conversation,
    as_json: bool,
    verbose: bool,
) -> Result<()> {
    let Opened { session, text, sampling, raw, .. } = opened;
    let writing = &Writing::new(sampling, session.model.defaults());
    let rows = match raw {
        true => {
            let prompt = asked.turns.last().map_or("", |turn| &turn.content);
            PromptInput { tokens: raw_prompt(session, text, prompt)?, ..PromptInput::default() }
        }
        false => chat_prompt(session, text, writing, &mut asked)?.rows,
    };
    let watch = Watch::new();
    let mut printer = Printer::new(as_json);
    let outcome = answer(&mut session.engine, text, rows, writing, &watch, &mut printer);
    printer.finish()?;
    let answer = outcome?;
    if as_json {
        output::json(&Report {
            model: &session.name,
            device: &session.device,
            text: &answer.text,
            thoughts: &answer.thoughts,
            finish_reason: answer.ending,
            seed: writing.sampling.seed,
            context: session.engine.context(),
            statistics: answer.statistics,
            prompt_tokens_per_second: answer.statistics.prefill_rate(),
            tokens_per_second: answer.statistics.decode_rate(),
            tokens_per_step: answer.statistics.tokens_per_step(),
            gigabytes_per_second: bandwidth(session, &answer.statistics).map(|rate| rate / 1e9),
            npu: session.npu.as_deref().map(Done::by),
        })?;
    }
    tell_end(session, &answer, verbose, false);
    if verbose {
        output::note(&format!("seed: {}", writing.sampling.seed));
    }
    if answer.ending == Ending::Interrupted {
        return Err(Interrupted.into());
    }
    Ok(())
}
