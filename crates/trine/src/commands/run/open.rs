//! A model for `trine run`: opened with what was typed, its preset and the settings.

use std::path::PathBuf;

use anyhow::Result;
use trine_model::KvType;
use trine_session::draft::Drafting;
use trine_session::library::ModelLibrary;
use trine_session::model_source::Chosen;
use trine_session::options::ContextFrom;
use trine_session::picture_file::Input;
use trine_session::session::{Session, Sizes};
use trine_session::suiting;
use trine_session::tower::{self, TowerRequest};
use trine_session::vocabulary::{TextSide, Thinking};

use crate::callbacks::tell;
use crate::chat::attachments::TurnPicture;
use crate::chat::{PICTURES_MAX, Turn};
use crate::cli::{RunArgs, SamplingArgs};
use crate::failure::usage;
use crate::interrupt;
use crate::options::{self, Writing};
use crate::settings::Settings;
use crate::{preset, terminal, terminal::output};

/// Where a model was named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Named {
    /// On the command line, whose options are meant for it.
    There,
    /// In the chat: options that name files of another model have no meaning for it.
    InChat,
}

/// A model that is ready to answer. Dropping it ends its threads.
pub(super) struct Opened {
    /// The model on its device.
    pub(super) session: Session,
    /// Its tokenizer and chat template.
    pub(super) text: TextSide,
    /// The sampling options with those of the preset and the settings.
    pub(super) sampling: SamplingArgs,
    /// Whether texts are continued as they are.
    pub(super) raw: bool,
    /// Instructions before the conversation.
    pub(super) system: Option<String>,
    /// The turns with which every conversation begins.
    pub(super) turns: Vec<Turn>,
}

impl Drop for Opened {
    fn drop(&mut self) {
        // Its thread may still hold a device.
        if let Some(vision) = &self.session.vision {
            vision.tower.stop();
        }
    }
}

/// Opens a model. `typed` are the sampling options that a person gave.
///
/// # Errors
/// Returns an error if the model cannot be loaded, or an option cannot be used with it.
pub(super) fn open(
    set: &Settings,
    args: &RunArgs,
    (chosen, named): (&Chosen, Named),
    typed: &SamplingArgs,
    verbose: bool,
) -> Result<Opened> {
    let Chosen { source, preset } = chosen;
    let is_in_chat = named == Named::InChat;
    let (mut sampling, mut placement) = (typed.clone(), args.placement.clone());
    let mut template = if is_in_chat { None } else { args.template.read()? };
    let own = args.system.clone().filter(|_| !is_in_chat);
    let (mut system, mut turns) = (own, Vec::new());
    if let Some(preset) = preset {
        template = template.or(preset::template(preset)?);
        preset::fill(preset, &mut sampling, &mut placement);
        if !args.raw {
            turns = preset::turns(preset);
            system = system.or_else(|| preset.system.clone());
        }
    }
    let library = &set.library;
    sampling.or(set.sampling());
    let mut settings = options::chosen(set, &placement, KvType::F16);
    if args.placement.context.is_none() && placement.context.is_some() {
        settings.context_from = ContextFrom::Preset;
    }
    settings.vision = wish(args, named);
    if is_in_chat && let Some(asked) = settings.context {
        settings.context = Some(asked.min(source.open(None)?.config().context));
    }
    let asked = options::drafting(set, &args.drafting);
    let drafting = Drafting::new(library, &asked, args.fetch.download(), !is_in_chat)?;
    let drafting = drafting.check(&asked)?;
    let mut session =
        Session::open_with(library, source, &settings, Sizes::default(), &drafting, |program| {
            program
        })?;
    session.engine.stop_on(interrupt::flag());
    let defaults = session.model.defaults().clone();
    let mut text =
        TextSide::read(session.model.checkpoint(), &defaults.stop_ids, !args.raw, template)?;
    if !is_in_chat {
        text.thinking = Thinking { on: args.thinking.is_on(), budget: args.thinking.think_budget };
        if text.thinking.on == Some(true) && text.format().thoughts().is_none() {
            return Err(usage(format!(
                "{} does not think before it answers; leave out --think and --think-budget",
                session.name
            )));
        }
    }
    Writing::new(&sampling, &defaults).sampling.check(session.engine.vocabulary())?;
    let raw = args.raw || text.template.is_none();
    let opened = Opened { session, text, sampling, raw, system, turns };
    opened.tell(library, args, verbose)?;
    Ok(opened)
}

impl Opened {
    /// Adds the images of files that a prompt names, as far as the model sees them. A text is
    /// answered anyway: a note says of which file the model has the name only.
    pub(super) fn see_named(&self, files: &[PathBuf], pictures: &mut Vec<TurnPicture>) {
        let (vision, name) = (self.session.vision.as_ref(), &self.session.name);
        let vision = vision.filter(|_| !self.raw);
        for path in files {
            let read = match (vision, pictures.len() < PICTURES_MAX) {
                (None, _) => Err(format!("{} reads no images", terminal::harmless(name))),
                (_, false) => Err(format!("a message has at most {PICTURES_MAX} images")),
                _ => TurnPicture::read(path, Input::Refused, vision, name)
                    .map_err(|error| format!("{error:#}")),
            };
            match read {
                Ok((picture, line)) => {
                    output::note(&line);
                    pictures.push(picture);
                }
                Err(why) => {
                    let path = terminal::shown(path);
                    output::note(&format!("the model sees the name {path} only: {why}"));
                }
            }
        }
    }

    /// Says what runs, and what it is if people may take it for something else.
    fn tell(&self, library: &ModelLibrary, args: &RunArgs, verbose: bool) -> Result<()> {
        let Self { session, system, raw, .. } = self;
        tell(session, verbose);
        if terminal::stderr_is_terminal()
            && let Some(told) = suiting::about_demo(library, &session.name)
        {
            output::note(&told);
        }
        if !raw || args.raw {
            return Ok(());
        }
        if system.is_some() {
            return Err(usage(format!(
                "{} has no chat template, so --system cannot be used; put the instructions into \
                 the prompt",
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
            "this is a base model: it continues texts and was not trained to chat; models to chat \
             with have -it in their names",
        );
        Ok(())
    }
}

/// Reads pictures' files, and says what they are.
pub(super) fn pictures(session: &Session, files: &[PathBuf]) -> Result<Vec<(TurnPicture, String)>> {
    if files.len() > PICTURES_MAX {
        return Err(usage(format!("--image takes at most {PICTURES_MAX} images")));
    }
    let read = |path: &PathBuf| {
        let (vision, name) = (session.vision.as_ref(), &session.name);
        let (picture, line) = TurnPicture::read(path, Input::Allowed, vision, name)?;
        output::note(&line);
        Ok((picture, line))
    };
    files.iter().map(read).collect()
}

/// Returns what is to read images.
fn wish(args: &RunArgs, named: Named) -> TowerRequest {
    let choice = match (args.pictures.tower.choice(), named) {
        (tower::TowerChoice::File(_), Named::InChat) => tower::TowerChoice::Found,
        (choice, _) => choice,
    };
    match args.pictures.image.is_empty() || named == Named::InChat {
        _ if args.raw => TowerRequest::None,
        true => TowerRequest::IfAny(choice),
        false => TowerRequest::Needed(choice),
    }
}
