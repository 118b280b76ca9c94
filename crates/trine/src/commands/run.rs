//! `trine run`

use std::io::stdin;
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow};
use serde::Serialize;
use trine_engine::Statistics;
use trine_model::KvType;
use trine_text::ChatTemplate;

use crate::attachments::TurnPicture;
use crate::chat::{Conversation, PICTURES_MAX, Rows, Turn};
use crate::cli::{RunArgs, SamplingArgs};
use crate::converse::{Chat, chat_prompt, ending_note, raw_prompt};
use crate::draft::Drafting;
use crate::failure::{Interrupted, Negative, usage};
use crate::generate::{Answer, Ending, answer};
use crate::interrupt::{self, Watch};
use crate::line_source::{LineSource, Piped, Typed};
use crate::model_source::{Chosen, ModelOrPrompt, find, hub_config, model_or_prompt};
use crate::npu::Done;
use crate::options::{ContextFrom, Settings, Writing};
use crate::output;
use crate::picture_file::{self, Input, expanded, is_picture};
use crate::preset;
use crate::printer::Printer;
use crate::prompt::Words;
use crate::session::{Session, Sizes};
use crate::tower::{self, Wish};
use crate::vocabulary::{TextSide, Thinking};
use crate::{fitting, habits, screen, settings, terminal};

/// Answers once, or chats.
///
/// # Errors
/// Returns an error if there is no such model, the prompt does not fit, or the device fails.
pub(crate) fn run(mut args: RunArgs, verbose: bool) -> Result<()> {
    if args.quiet {
        output::keep_quiet();
    }
    if args.keepalive.is_some() {
        output::note(
            "--keepalive has no effect here: `run` ends with its answer. `trine serve --keep-alive` keeps a model loaded",
        );
    }
    let (Chosen { source, preset }, prompt) = what_is_asked(&mut args)?;
    let typed = args.sampling.clone();
    let (typed_context, mut turns) = (args.placement.context, Vec::new());
    let mut template = args.template.read()?;
    if let Some(preset) = &preset {
        template = template.or(preset::template(preset)?);
        preset::fill(preset, &mut args.sampling, &mut args.placement);
        if !args.raw {
            turns = preset::turns(preset);
            args.system = args.system.or_else(|| preset.system.clone());
        }
    }
    args.sampling.or(settings::get().sampling());
    let mut settings = Settings::new(&args.placement, KvType::F16);
    if typed_context.is_none() && args.placement.context.is_some() {
        settings.context_from = ContextFrom::Preset;
    }
    settings.vision = wish(&args);
    let drafting = Drafting::new(&args.drafting, &args.fetch, true)?.check(&args.drafting)?;
    let mut session =
        Session::open_with(&source, &settings, Sizes::default(), &drafting, |program| program)?;
    let outcome = write(&mut session, (typed, turns, template), prompt, args, verbose);
    // Its thread may still hold a device.
    if let Some(vision) = &session.vision {
        vision.tower.stop();
    }
    outcome
}

/// Answers the prompt, or chats. The conversation begins with `turns`; `typed` are the sampling
/// options of the command line; `template` takes the place of the model's.
fn write(
    session: &mut Session,
    (typed, turns, template): (SamplingArgs, Vec<Turn>, Option<ChatTemplate>),
    prompt: Option<String>,
    args: RunArgs,
    verbose: bool,
) -> Result<()> {
    session.engine.heed(interrupt::flag());
    let defaults = session.model.defaults().clone();
    let mut text =
        TextSide::read(session.model.checkpoint(), &defaults.stop_ids, !args.raw, template)?;
    text.thinking = Thinking { on: args.thinking.is_on(), budget: args.thinking.think_budget };
    if text.thinking.on == Some(true) && text.format().thoughts().is_none() {
        return Err(usage(format!(
            "{} answers at once: it cannot think before; leave out --think and --think-budget",
            session.name
        )));
    }
    let writing = Writing::new(&args.sampling, &defaults);
    writing.sampling.check(session.engine.vocabulary())?;
    session.tell(verbose);
    if terminal::stderr_is_terminal()
        && let Some(told) = fitting::about_demo(&session.name)
    {
        output::note(&told);
    }
    let raw = args.raw || text.template.is_none();
    if raw && !args.raw {
        if args.system.is_some() {
            return Err(usage(format!(
                "{} has no chat template, so --system cannot be used; put the instructions into the prompt",
                session.name
            )));
        }
        if !args.pictures.image.is_empty() {
            return Err(usage(format!(
                "{} has no chat template, so --image cannot be used; take a model for chats",
                session.name
            )));
        }
        output::note(
            "this is a base model: it continues texts and was not trained to chat; models to chat with have -it in their names",
        );
    }
    let pictures = pictures(session, &args.pictures.image)?;
    match prompt {
        Some(prompt) => {
            let begun = Conversation { system: args.system.clone(), turns, ..Default::default() };
            let pictures = pictures.into_iter().map(|(picture, _)| picture).collect();
            let asked = begun.asking(prompt, pictures);
            answer_once(session, &text, &writing, asked, raw, &args, verbose)
        }
        None => {
            let conversation = Conversation { system: args.system, turns, ..Default::default() };
            let begun = (conversation, pictures);
            chat(session, &mut text, [&typed, &args.sampling], raw, begun, verbose)
        }
    }
}

/// Returns what is to read pictures.
fn wish(args: &RunArgs) -> Wish {
    let choice = tower::Choice::typed(&args.pictures.tower);
    match args.pictures.image.is_empty() {
        _ if args.raw => Wish::None,
        true => Wish::IfAny(choice),
        false => Wish::Needed(choice),
    }
}

/// Reads pictures' files, and says what they are.
fn pictures(session: &Session, files: &[PathBuf]) -> Result<Vec<(TurnPicture, String)>> {
    if files.len() > PICTURES_MAX {
        return Err(usage(format!("--image takes at most {PICTURES_MAX} pictures")));
    }
    let read = |path: &PathBuf| {
        let (vision, name) = (session.vision.as_ref(), &session.name);
        let (picture, line) = TurnPicture::read(path, Input::Allowed, vision, name)?;
        output::note(&line);
        Ok((picture, line))
    };
    files.iter().map(read).collect()
}

/// Returns whether a picture is read from standard input, which is no prompt then.
///
/// # Errors
/// Returns an error if several are, or a chat reads its lines there.
fn takes_input(args: &RunArgs) -> Result<bool> {
    let takes_input = picture_file::takes_input(&args.pictures.image)?;
    if takes_input && args.interactive {
        return Err(usage(
            "--interactive reads lines from standard input, so that no picture can come from there; name its file",
        ));
    }
    Ok(takes_input)
}

/// Looks for images among the words of a prompt that was typed. A person at a terminal means them
/// to be seen; from elsewhere the model sees words there, and a note says so.
///
/// # Errors
/// Returns an error if one of the arguments that make up the prompt is an image's path.
fn look_for_pictures(args: &mut RunArgs, prompt: &str) -> Result<()> {
    let whole = [prompt.to_owned()];
    let picture = |word: &&String| is_picture(&expanded(Path::new(word.as_str())));
    if let Some(word) = args.prompt.iter().chain(&whole).find(picture) {
        let (word, plain) = (terminal::harmless(word), args.prompt.len() < 2);
        let place = if plain { ", and stands in the place of PROMPT" } else { "" };
        return Err(usage(format!(
            "{word} is an image{place}; give each image by an option of its own: --image {word}"
        )));
    }
    let given = |name: &&str| !args.pictures.image.iter().any(|path| path == Path::new(name));
    let named: Vec<&str> = picture_file::named_in(prompt).into_iter().filter(given).collect();
    if terminal::stdin_is_terminal() && terminal::stderr_is_terminal() {
        args.pictures.image.extend(named.iter().map(|name| PathBuf::from(*name)));
    } else if let Some(name) = named.first() {
        let name = terminal::harmless(name);
        output::note(&format!(
            "the model sees the name {name} only; --image {name} shows the image"
        ));
    }
    Ok(())
}

/// Joins the words of a prompt that was typed without quotes.
fn joined(args: &RunArgs) -> Option<String> {
    let words = (!args.prompt.is_empty()).then(|| args.prompt.join(" "));
    words.or_else(|| args.prompt_option.clone())
}

/// Adds to an error about a model that may be the first word of a prompt how to give the prompt.
fn with_quotes(error: anyhow::Error, model: &str, args: &RunArgs) -> anyhow::Error {
    let is_sentence = !args.prompt.is_empty() && !model.contains(['/', ':', '.', '-']);
    if !is_sentence {
        return error;
    }
    let prompt = habits::quoted(&format!("{model} {}", args.prompt.join(" ")));
    anyhow!("{error}; the prompt for the default model is given in quotes: trine run {prompt}")
}

/// Returns the model, and the prompt unless a chat was asked for.
fn what_is_asked(args: &mut RunArgs) -> Result<(Chosen, Option<String>)> {
    let takes_input = takes_input(args)?;
    let default = || find(None, &args.fetch);
    let (chosen, argument) = match (&args.model, joined(args)) {
        (Some(model), Some(prompt)) => {
            let found = find(Some(model), &args.fetch);
            (found.map_err(|error| with_quotes(error, model, args))?, Some(prompt))
        }
        (Some(text), None) if text == "-" => (default()?, Some(text.clone())),
        (Some(text), None) if args.prompt_file.is_some() => (find(Some(text), &args.fetch)?, None),
        (Some(text), None) => match model_or_prompt(text, &args.fetch)? {
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
    if let Some(argument) = argument.as_ref().filter(|_| !args.raw) {
        look_for_pictures(args, argument)?;
    }
    let words = match (argument, &args.prompt_file) {
        (Some(argument), None) => Words::of(argument),
        (None, Some(path)) => Words::of_file(path.clone()),
        (Some(_), Some(_)) => {
            return Err(usage("--prompt-file and `-` name two prompts; leave one of them out"));
        }
        (None, None) if args.interactive || terminal::stdin_is_terminal() && !args.json => {
            return Ok((chosen, None));
        }
        (None, None) if terminal::stdin_is_terminal() => {
            return Err(usage("--json answers one prompt; give it as PROMPT or on standard input"));
        }
        (None, None) => Words::Input,
    };
    Ok((chosen, Some(words.read(takes_input)?)))
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

fn answer_once(
    session: &mut Session,
    text: &TextSide,
    writing: &Writing,
    mut asked: Conversation,
    raw: bool,
    args: &RunArgs,
    verbose: bool,
) -> Result<()> {
    let rows = match raw {
        true => {
            let prompt = asked.turns.last().map_or("", |turn| &turn.content);
            Rows { tokens: raw_prompt(session, text, prompt)?, ..Rows::default() }
        }
        false => chat_prompt(session, text, writing, &mut asked)?.rows,
    };
    let watch = Watch::new();
    let mut printer = Printer::new(args.json);
    let outcome = answer(&mut session.engine, text, rows, writing, &watch, &mut printer);
    printer.finish()?;
    let answer = outcome?;
    if args.json {
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

fn chat(
    session: &mut Session,
    text: &mut TextSide,
    sampling: [&SamplingArgs; 2],
    raw: bool,
    (conversation, waiting): (Conversation, Vec<(TurnPicture, String)>),
    verbose: bool,
) -> Result<()> {
    let is_typed = terminal::stdin_is_terminal();
    let mut lines: Box<dyn LineSource> = if is_typed {
        output::note("/help for commands, Ctrl-D to leave");
        Box::new(Typed::new(history_file())?)
    } else {
        Box::new(Piped(stdin().lock()))
    };
    let mut show =
        |session: &mut Session, text: &TextSide, prompt, writing: &Writing, watch: &Watch| {
            let _hush = is_typed.then(screen::hush);
            let mut printer = Printer::new(false);
            let outcome = answer(&mut session.engine, text, prompt, writing, watch, &mut printer);
            printer.finish()?;
            let answer = outcome?;
            tell_end(session, &answer, verbose, true);
            Ok(answer)
        };
    let chat = Chat::new(session, text, sampling, raw, conversation, waiting);
    let went_well = chat.talk(lines.as_mut(), &mut show)?;
    // A person has read what went wrong; a script needs the exit code.
    if went_well || is_typed { Ok(()) } else { Err(Negative.into()) }
}

/// Returns the path of the history of typed inputs, which is beside the models.
fn history_file() -> Option<PathBuf> {
    hub_config().ok().map(|config| config.store.join(".chat-history"))
}

/// Prints why an answer ended early, if it did. On a terminal it also prints one line about speed,
/// with `-v` more.
fn tell_end(session: &Session, answer: &Answer, verbose: bool, is_chat: bool) {
    if let Some(note) = ending_note(answer.ending, session, is_chat) {
        output::note(&note);
    }
    if verbose {
        output::note(&details(session, &answer.statistics));
        if let Some(npu) = &session.npu {
            output::note(&Done::by(npu.as_ref()).to_string());
        }
    } else if terminal::stderr_is_terminal()
        && let Some(summary) = summary(&answer.statistics)
    {
        output::note(&summary);
    }
}

/// Formats the time and speed of an answer in short; `None` if nothing was written.
fn summary(statistics: &Statistics) -> Option<String> {
    let first = statistics.first_token_seconds?;
    let tokens = statistics.generated_tokens;
    let all = first + statistics.decode_seconds;
    let speed = statistics
        .decode_rate()
        .map_or(String::new(), |rate| format!(", {} tokens/s", output::rate(rate)));
    let noun = if tokens == 1 { "token" } else { "tokens" };
    let [all, first] = [all, first].map(|seconds| match seconds {
        short if short < 0.1 => output::seconds(short),
        long => format!("{long:.1} s"),
    });
    Some(format!("{tokens} {noun} in {all}{speed}; first after {first}"))
}

/// Formats the time and speed of an answer in full.
fn details(session: &Session, statistics: &Statistics) -> String {
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
    let guesses = match statistics.drafted_tokens {
        0 => String::new(),
        drafted => format!(
            " | guesses: {} of {drafted} right, {} tokens a step",
            statistics.accepted_tokens,
            output::rate(statistics.tokens_per_step().unwrap_or(1.0)),
        ),
    };
    let pictures = match statistics.pictures {
        0 => String::new(),
        count => format!(
            " ({} read in {})",
            output::counted(count, "picture"),
            output::seconds(statistics.tower_seconds)
        ),
    };
    format!(
        "prompt: {}{pictures}{reused}{} | generated: {}{}{moved}{guesses} | first token after {first}",
        output::counted(statistics.prompt_tokens, "token"),
        per_second(statistics.prefill_rate()),
        output::counted(statistics.generated_tokens, "token"),
        per_second(statistics.decode_rate()),
    )
}

/// Returns the bytes per second that the steps after the first token took from memory, computed
/// from the Plan's cost half-way through them.
fn bandwidth(session: &Session, statistics: &Statistics) -> Option<f64> {
    let middle = statistics.prompt_tokens + statistics.generated_tokens / 2;
    let steps = statistics.decode_rate()? / statistics.tokens_per_step()?;
    Some(session.bytes_per_step(middle, rows_per_step(statistics)) as f64 * steps)
}

/// Returns the rows of a usual step after the first token: its token, and the guesses that it
/// verifies. More rows read more experts.
fn rows_per_step(statistics: &Statistics) -> usize {
    let guesses = statistics.drafted_tokens as f64 / statistics.decode_steps.max(1) as f64;
    1 + guesses.round() as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_answer_took() {
        let mut statistics = Statistics {
            generated_tokens: 12,
            decode_steps: 11,
            decode_tokens: 11,
            decode_seconds: 0.9,
            first_token_seconds: Some(0.4),
            ..Statistics::default()
        };
        assert_eq!(
            summary(&statistics).unwrap(),
            "12 tokens in 1.3 s, 12.2 tokens/s; first after 0.4 s"
        );
        statistics.generated_tokens = 1;
        (statistics.decode_tokens, statistics.decode_seconds) = (0, 0.0);
        assert_eq!(summary(&statistics).unwrap(), "1 token in 0.4 s; first after 0.4 s");
        statistics.first_token_seconds = Some(0.031);
        assert_eq!(summary(&statistics).unwrap(), "1 token in 31 ms; first after 31 ms");
        assert_eq!(summary(&Statistics::default()), None);
    }

    #[test]
    fn a_step_has_rows_for_its_guesses() {
        let rows = |decode_steps, drafted_tokens| {
            rows_per_step(&Statistics { decode_steps, drafted_tokens, ..Statistics::default() })
        };
        assert_eq!([rows(0, 0), rows(10, 0), rows(10, 26), rows(10, 40)], [1, 1, 4, 5]);
    }
}
