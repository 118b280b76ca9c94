//! The chat of `trine run`: one conversation, with one model after the other.

use std::io::stdin;
use std::path::PathBuf;

use anyhow::Result;
use trine_session::library::ModelLibrary;
use trine_session::model_source::Chosen;
use trine_session::session::Session;
use trine_session::vocabulary::{TextSide, Thinking};

use crate::chat::Conversation;
use crate::chat::converse::{Chat, Kept, Talked};
use crate::chat::generate::answer;
use crate::chat::line_source::{LineSource, Piped, Typed};
use crate::cli::RunArgs;
use crate::commands::run::open::{Named, Opened, open, pictures};
use crate::commands::run::told::tell_end;
use crate::failure::{self, Negative};
use crate::interrupt::{self, Watch};
use crate::options::Writing;
use crate::settings::Settings;
use crate::terminal::printer::Printer;
use crate::{terminal, terminal::output, terminal::screen};

/// Chats.
///
/// # Errors
/// Returns an error if the model cannot be loaded, the input cannot be read, or the output cannot
/// be written.
pub(super) fn chat(set: &Settings, args: &RunArgs, chosen: Chosen, verbose: bool) -> Result<()> {
    let library = &set.library;
    let mut current = (chosen, Named::There);
    let mut opened = open(set, args, (&current.0, current.1), &args.sampling, verbose)?;
    let waiting = pictures(&opened.session, &args.pictures.image)?;
    let (system, turns) = (opened.system.take(), std::mem::take(&mut opened.turns));
    let conversation = Conversation { system, turns, ..Default::default() };
    let mut kept = Kept::new(conversation, waiting, args.sampling.clone());
    let is_typed = terminal::stdin_is_terminal();
    let mut lines: Box<dyn LineSource> = if is_typed {
        output::note("/help for commands, Ctrl-D to leave");
        Box::new(Typed::new(history_file(library))?)
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
    loop {
        let Opened { session, text, sampling, raw, .. } = &mut opened;
        let chat = Chat::new(library, session, text, &args.sampling, sampling.clone(), *raw, kept);
        let other = match chat.talk(lines.as_mut(), &mut show)? {
            // A person has read what went wrong; a script needs the exit code.
            Talked::Over(went_well) if went_well || is_typed => return Ok(()),
            Talked::Over(_) => return Err(Negative.into()),
            Talked::Switched(other, after) => {
                kept = *after;
                *other
            }
        };
        // While the next model is loaded, Ctrl-C must not end the program and the conversation.
        interrupt::set_unsaved(kept.is_unsaved());
        let _watch = is_typed.then(Watch::new);
        let thinking = opened.text.thinking;
        // Both of them may have no room.
        drop(opened);
        opened = match open(set, args, (&other, Named::InChat), &kept.chosen, verbose) {
            Ok(mut opened) => {
                current = (other, Named::InChat);
                kept.forget_model();
                kept.take_system(opened.system.take());
                opened
            }
            Err(error) => {
                kept.has_failed = true;
                if let Some(message) = failure::message(&error) {
                    output::error(terminal::harmless(&message));
                }
                let again = open(set, args, (&current.0, current.1), &kept.chosen, verbose);
                again.inspect_err(|_| rescue(library, &kept))?
            }
        };
        if opened.text.format().thoughts().is_some() {
            opened.text.thinking = thinking;
        } else {
            opened.text.thinking = Thinking::default();
        }
        let name = terminal::harmless(&opened.session.name).into_owned();
        output::note(&format!("the conversation goes on with {name}"));
    }
}

/// Writes a conversation that no model goes on with to a file, and says where.
fn rescue(library: &ModelLibrary, kept: &Kept) {
    let path = history_file(library).map(|history| history.with_file_name(".chat-rescued"));
    if let Some(path) = path.filter(|_| kept.is_unsaved())
        && kept.conversation.save(&path, "").is_ok()
    {
        let place = path.display().to_string();
        output::note(&format!(
            "the conversation is saved; /load {} goes on",
            terminal::harmless(&place)
        ));
    }
}

/// Returns the path of the history of typed inputs, which is beside the models.
fn history_file(library: &ModelLibrary) -> Option<PathBuf> {
    library.hub_config().ok().map(|config| config.store.join(".chat-history"))
}
