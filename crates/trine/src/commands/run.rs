//! `trine run`

use std::io::{Read, stdin};
use std::path::PathBuf;

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use trine_engine::Statistics;
use trine_hub::HubConfig;
use trine_model::KvType;
use trine_text::{MAX_TEXT_BYTES, Specials};

use crate::chat::{Conversation, Turn};
use crate::cli::RunArgs;
use crate::converse::{Chat, ending_note};
use crate::failure::{Interrupted, usage};
use crate::generate::{Answer, Ending, Listener, answer};
use crate::interrupt::Watch;
use crate::line_source::{LineSource, Piped, Typed};
use crate::model_source::{Chosen, ModelOrPrompt, find, model_or_prompt};
use crate::options::{Settings, Writing};
use crate::output;
use crate::preset;
use crate::session::{Session, Sizes};
use crate::terminal;
use crate::vocabulary::TextSide;

/// Prompts of at least this many tokens get a progress bar.
const LONG_PROMPT: usize = 256;

/// Answers once, or chats.
///
/// # Errors
/// If there is no such model, the prompt does not fit, or the device fails.
pub(crate) fn run(mut args: RunArgs, verbose: bool) -> Result<()> {
    let (Chosen { source, preset }, prompt) = what_is_asked(&args)?;
    let mut turns = Vec::new();
    if let Some(preset) = &preset {
        preset::fill(preset, &mut args.sampling, &mut args.placement);
        if !args.raw {
            turns = preset::turns(preset);
            args.system = args.system.or_else(|| preset.system.clone());
        }
    }
    let settings = Settings::new(&args.placement, KvType::F16);
    let mut session = Session::open(&source, &settings, Sizes::default())?;
    let defaults = session.model.defaults().clone();
    let text = TextSide::read(session.model.checkpoint(), &defaults.stop_ids, !args.raw)?;
    let writing = Writing::new(&args.sampling, &defaults);
    writing.sampling.check(session.engine.vocabulary())?;
    session.tell(verbose);
    let raw = args.raw || text.template.is_none();
    if raw && !args.raw {
        if args.system.is_some() {
            return Err(usage(format!(
                "{} has no chat template, so --system cannot be used; put the instructions into the prompt",
                session.name
            )));
        }
        output::note("the model has no chat template: texts are continued as they are");
    }
    match prompt {
        Some(prompt) => {
            answer_once(&mut session, &text, &writing, (turns, prompt), raw, &args, verbose)
        }
        None => chat(
            &mut session,
            &text,
            &writing,
            raw,
            Conversation { system: args.system, turns },
            verbose,
        ),
    }
}

/// The model, and the prompt unless there is to be a chat.
fn what_is_asked(args: &RunArgs) -> Result<(Chosen, Option<String>)> {
    let default = || find(None, &args.fetch);
    let (chosen, prompt) = match (&args.model, &args.prompt) {
        (Some(model), Some(prompt)) => (find(Some(model), &args.fetch)?, Some(prompt.clone())),
        (Some(text), None) if text == "-" => (default()?, Some(text.clone())),
        (Some(text), None) => match model_or_prompt(text, &args.fetch)? {
            ModelOrPrompt::Model(chosen) => (chosen, None),
            ModelOrPrompt::Prompt(prompt) if args.interactive => {
                return Err(usage(format!(
                    "--interactive takes no prompt, and {prompt:?} is no model"
                )));
            }
            ModelOrPrompt::Prompt(prompt) => (default()?, Some(prompt)),
        },
        (None, _) => (default()?, None),
    };
    let prompt = match prompt {
        Some(prompt) if prompt == "-" => Some(read_stdin()?),
        Some(prompt) => Some(prompt),
        None if args.interactive || terminal::stdin_is_terminal() && !args.json => None,
        None if terminal::stdin_is_terminal() => {
            return Err(usage("--json answers one prompt; give it as PROMPT or on standard input"));
        }
        None => Some(read_stdin()?),
    };
    if prompt.as_ref().is_some_and(|prompt| prompt.trim().is_empty()) {
        return Err(usage(
            "the prompt is empty; give one as PROMPT or on standard input, or run in a terminal to chat",
        ));
    }
    Ok((chosen, prompt))
}

fn read_stdin() -> Result<String> {
    let mut bytes = Vec::new();
    let limit = MAX_TEXT_BYTES as u64;
    stdin().lock().take(limit + 1).read_to_end(&mut bytes).context("cannot read standard input")?;
    if bytes.len() as u64 > limit {
        return Err(usage(format!(
            "standard input holds more than {limit} bytes; give a shorter prompt"
        )));
    }
    let mut text = String::from_utf8(bytes)
        .map_err(|_| usage("standard input is not UTF-8 text; convert it first"))?;
    // The line end that every file has is not part of what is asked.
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    Ok(text)
}

/// The answer on standard output as it comes.
struct Printer {
    bar: Option<ProgressBar>,
    quiet: bool,
    on_terminal: bool,
    ends_with_line: bool,
}

impl Printer {
    fn new(quiet: bool) -> Self {
        Self { bar: None, quiet, on_terminal: terminal::stdout_is_terminal(), ends_with_line: true }
    }

    fn finish(&mut self) -> Result<()> {
        self.clear_bar();
        if self.quiet || self.ends_with_line { Ok(()) } else { output::write_text("\n") }
    }

    fn clear_bar(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

impl Listener for Printer {
    fn prefill(&mut self, done: usize, total: usize) {
        if done >= total {
            self.clear_bar();
        } else if total >= LONG_PROMPT && terminal::stderr_is_terminal() {
            let bar = self.bar.get_or_insert_with(|| {
                let style = ProgressStyle::with_template(
                    "reading the prompt {bar:30} {pos}/{len} tokens, {eta} left",
                );
                let bar = ProgressBar::new(total as u64);
                if let Ok(style) = style {
                    bar.set_style(style);
                }
                bar
            });
            bar.set_position(done as u64);
        }
    }

    fn text(&mut self, text: &str) -> Result<()> {
        self.clear_bar();
        if self.quiet {
            return Ok(());
        }
        self.ends_with_line = text.ends_with('\n');
        // A model's text is not trusted with a terminal; a file gets it as it is.
        if self.on_terminal {
            output::write_text(&terminal::harmless(text))
        } else {
            output::write_text(text)
        }
    }
}

/// What `--json` prints.
#[derive(Serialize)]
struct Report<'a> {
    model: &'a str,
    device: &'a str,
    text: &'a str,
    finish_reason: Ending,
    seed: u64,
    context: usize,
    statistics: Statistics,
    prompt_tokens_per_second: Option<f64>,
    tokens_per_second: Option<f64>,
    gigabytes_per_second: Option<f64>,
}

fn answer_once(
    session: &mut Session,
    text: &TextSide,
    writing: &Writing,
    (turns, prompt): (Vec<Turn>, String),
    raw: bool,
    args: &RunArgs,
    verbose: bool,
) -> Result<()> {
    let tokens = match raw {
        true => text.tokenizer.encode_prompt(&prompt, Specials::Parse)?,
        false => Conversation { system: args.system.clone(), turns }.asking(prompt).prompt(text)?,
    };
    let watch = Watch::new();
    let mut printer = Printer::new(args.json);
    let outcome =
        answer(&mut session.engine, &text.tokenizer, tokens, writing, &watch, &mut printer);
    printer.finish()?;
    let answer = outcome?;
    if args.json {
        output::json(&Report {
            model: &session.name,
            device: &session.device,
            text: &answer.text,
            finish_reason: answer.ending,
            seed: writing.sampling.seed,
            context: session.engine.context(),
            statistics: answer.statistics,
            prompt_tokens_per_second: answer.statistics.prefill_rate(),
            tokens_per_second: answer.statistics.decode_rate(),
            gigabytes_per_second: bandwidth(session, &answer.statistics).map(|rate| rate / 1e9),
        })?;
    }
    tell_end(session, &answer, verbose);
    if verbose {
        output::note(&format!("seed: {}", writing.sampling.seed));
    }
    if answer.ending == Ending::Interrupted {
        return Err(Interrupted.into());
    }
    Ok(())
}

fn chat(
    session: &mut Session,
    text: &TextSide,
    writing: &Writing,
    raw: bool,
    conversation: Conversation,
    verbose: bool,
) -> Result<()> {
    let mut lines: Box<dyn LineSource> = match terminal::stdin_is_terminal() {
        true => {
            output::note("/help shows the commands, Ctrl-D leaves");
            Box::new(Typed::new(history_file())?)
        }
        false => Box::new(Piped(stdin().lock())),
    };
    let tokenizer = &text.tokenizer;
    let mut show = |session: &mut Session, prompt, writing: &Writing, watch: &Watch| {
        let mut printer = Printer::new(false);
        let outcome = answer(&mut session.engine, tokenizer, prompt, writing, watch, &mut printer);
        printer.finish()?;
        let answer = outcome?;
        tell_end(session, &answer, verbose);
        Ok(answer)
    };
    Chat { session, text, writing, raw, conversation }.talk(lines.as_mut(), &mut show)
}

/// Typed inputs are kept beside the models.
fn history_file() -> Option<PathBuf> {
    HubConfig::from_env().ok().map(|config| config.store.join(".chat-history"))
}

/// One line about speed on a terminal or with `-v`, and always why an answer ended early.
fn tell_end(session: &Session, answer: &Answer, verbose: bool) {
    if let Some(note) = ending_note(answer.ending) {
        output::note(note);
    }
    if !verbose && !terminal::stderr_is_terminal() {
        return;
    }
    let statistics = &answer.statistics;
    let per_second = |rate: Option<f64>| {
        rate.map_or(String::new(), |rate| format!(", {} tok/s", output::rate(rate)))
    };
    let reused = match statistics.reused_tokens {
        0 => String::new(),
        reused => format!(" ({reused} kept from before)"),
    };
    let first = statistics.first_token_seconds.map_or("-".to_owned(), output::seconds);
    let moved = bandwidth(session, statistics)
        .map_or(String::new(), |rate| format!(" ({} GB/s)", output::rate(rate / 1e9)));
    output::note(&format!(
        "prompt: {} tokens{reused}{} | generated: {} tokens{}{moved} | first token after {first}",
        statistics.prompt_tokens,
        per_second(statistics.prefill_rate()),
        statistics.generated_tokens,
        per_second(statistics.decode_rate()),
    ));
}

/// Bytes per second that the generated tokens took from memory, by the Plan's cost half-way through them.
fn bandwidth(session: &Session, statistics: &Statistics) -> Option<f64> {
    let middle = statistics.prompt_tokens + statistics.generated_tokens / 2;
    Some(session.bytes_per_token(middle) as f64 * statistics.decode_rate()?)
}
