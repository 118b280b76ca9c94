//! The chat: inputs, answers, and the commands that begin with a slash.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use trine_session::model_source::{Chosen, find_for_chat};
use trine_session::picture_file::{Input, expanded, named_in};
use trine_session::vocabulary::{TextSide, Thinking, template};
use trine_session::{ModelLibrary, Session, embedded::Embedded};
use trine_text::Specials;

use crate::chat::attachments::{TurnPicture, advice, dragged, leading, with_words};
use crate::chat::generate::{Answer, Ending};
use crate::chat::line_source::{Line, LineSource, next_input};
use crate::chat::notes::{explained, lost_note, messages, thinking_note};
use crate::chat::slash::{HELP, LEAVING, Slash, parse};
use crate::chat::{
    ChatPrompt, Conversation, PICTURES_MAX, PromptInput, Role, TooLong, Turn, check_bytes,
};
use crate::cli::SamplingArgs;
use crate::failure::{Interrupted, Negative, OutputClosed};
use crate::interrupt::{self, Watch};
use crate::{
    chat::parameters::Parameters, chat::settable, options::Writing, terminal, terminal::output,
};

/// Runs a prompt and shows the answer and the remarks about it.
pub(crate) type Show<'a> =
    dyn FnMut(&mut Session, &TextSide, PromptInput, &Writing, &Watch) -> Result<Answer> + 'a;

/// What a chat takes along from one model to the next.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    /// The messages so far.
    pub(crate) conversation: Conversation,
    /// Images for the next message, each with a line about it.
    pub(crate) waiting: Vec<(TurnPicture, String)>,
    /// The sampling options of the command line, changed by `/set`.
    pub(crate) chosen: SamplingArgs,
    /// The parameters of the conversation's file, if it was loaded from one.
    loaded: Option<Parameters>,
    /// Whether a file holds the conversation as it is.
    is_saved: bool,
    /// The file that the conversation was loaded from or saved to, with all links resolved.
    file: Option<PathBuf>,
    /// Whether anything went wrong.
    pub(crate) has_failed: bool,
}

impl Kept {
    /// Returns a conversation that begins. `chosen` are the sampling options of the command line.
    pub(crate) fn new(
        conversation: Conversation,
        waiting: Vec<(TurnPicture, String)>,
        chosen: SamplingArgs,
    ) -> Self {
        Self { conversation, waiting, chosen, is_saved: true, ..Self::default() }
    }

    /// Prepares the conversation for another model.
    pub(crate) fn forget_model(&mut self) {
        self.conversation.forget_model();
        self.waiting.iter_mut().for_each(|(picture, _)| picture.forget());
    }

    /// Takes the instructions of a preset if there are none.
    pub(crate) fn take_system(&mut self, system: Option<String>) {
        let own = &mut self.conversation.system;
        *own = own.take().or(system);
    }

    /// Returns whether leaving would lose something.
    pub(crate) fn is_unsaved(&self) -> bool {
        !self.is_saved && !self.conversation.turns.is_empty()
    }
}

/// How talking to a model ended.
#[derive(Debug)]
pub(crate) enum Talked {
    /// The chat is over; whether all went well.
    Over(bool),
    /// It goes on with another model.
    Switched(Box<Chosen>, Box<Kept>),
}

/// A chat with a model.
pub(crate) struct Chat<'a> {
    /// Where other models are found.
    library: &'a ModelLibrary,
    /// The model.
    session: &'a mut Session,
    /// The tokenizer and chat template of the model, and how it thinks.
    text: &'a mut TextSide,
    /// The sampling options from the command line. They override those in a conversation file.
    typed: &'a SamplingArgs,
    /// The same with the values of a preset and of `/set` added, which a conversation file
    /// overrides.
    preset: SamplingArgs,
    /// How answers are written.
    writing: Writing,
    /// Whether inputs are continued as they are, without a template or memory.
    raw: bool,
    /// What another model goes on with.
    kept: Kept,
    /// Whether a person types the messages.
    is_typed: bool,
    /// The last command that was refused because it would have lost something. If it is typed
    /// again, it is obeyed.
    refused: Option<String>,
}

impl<'a> Chat<'a> {
    /// Creates a chat that continues a conversation. The sampling options are given as they were
    /// typed, and with `/set` and the values of a preset added.
    pub(crate) fn new(
        library: &'a ModelLibrary,
        session: &'a mut Session,
        text: &'a mut TextSide,
        typed: &'a SamplingArgs,
        preset: SamplingArgs,
        raw: bool,
        mut kept: Kept,
    ) -> Self {
        let parameters = match &kept.loaded {
            Some(loaded) => loaded.beneath(&kept.chosen),
            None => Parameters::of(&preset),
        };
        let writing = Writing::new(&parameters.over(&preset), session.model.defaults());
        kept.conversation.parameters = parameters;
        let (is_typed, refused) = (false, None);
        Self { library, session, text, typed, preset, writing, raw, kept, is_typed, refused }
    }

    /// Talks until the end of the input, `/exit`, repeated Ctrl-C at the prompt, or `/model`.
    ///
    /// # Errors
    /// Returns an error if the input cannot be read or the output cannot be written. An error in a
    /// single answer is printed, and the chat goes on.
    pub(crate) fn talk(
        mut self,
        lines: &mut dyn LineSource,
        show: &mut Show<'_>,
    ) -> Result<Talked> {
        // Between an answer and the next input, Ctrl-C is briefly a signal, which must not end the
        // program.
        let _watch = lines.is_typed().then(Watch::new);
        self.is_typed = lines.is_typed();
        loop {
            interrupt::set_unsaved(self.kept.is_unsaved());
            let prompt = interrupt::PromptWait::new(i32::from(self.kept.has_failed));
            let Some((input, is_block)) = typed(lines)? else {
                return Ok(Talked::Over(!self.kept.has_failed));
            };
            prompt.answered();
            let refused = self.refused.take();
            let may_name_files = !self.raw && !is_block;
            let pictures = if may_name_files { dragged(&input) } else { Vec::new() };
            if !pictures.is_empty() {
                let attached = self.attach(&pictures);
                self.tell(attached);
                continue;
            }
            let parsed = match parse(&input) {
                Ok(Some(command)) => Ok(Some(command)),
                // What a block begins with is no slip of the keyboard.
                Err(_) if is_block => Ok(None),
                other => match leading(&input).filter(|_| may_name_files) {
                    Some(path) => Err(anyhow!(advice(&path))),
                    None => other,
                },
            };
            match parsed {
                Ok(Some(Slash::Exit)) => return Ok(Talked::Over(!self.kept.has_failed)),
                Ok(Some(Slash::Model(name))) if !name.is_empty() => {
                    let is_repeated = refused.is_some_and(|line| line == input.trim());
                    match self.other_model(name, is_repeated) {
                        Ok(chosen) => {
                            let kept = Box::new(self.kept);
                            return Ok(Talked::Switched(Box::new(chosen), kept));
                        }
                        Err(error) => {
                            self.refused = Some(input.trim().to_owned());
                            self.tell(Err(error));
                        }
                    }
                }
                Ok(Some(Slash::Retry)) => {
                    let answered = self.retry(show);
                    self.tell(answered);
                }
                Ok(None) if self.asks(&input, refused.as_deref()) => {
                    self.refused = Some(input.trim().to_owned());
                }
                Ok(Some(command)) => {
                    let is_repeated = refused.is_some_and(|line| line == input.trim());
                    let obeyed = match self.check_loss(&command) {
                        Err(error) if !is_repeated => {
                            self.refused = Some(input.trim().to_owned());
                            Err(error)
                        }
                        _ => self.obey(command),
                    };
                    self.tell(obeyed);
                }
                Ok(None) if input.trim().is_empty() => {}
                Ok(None) => {
                    let said = self.say(input, show);
                    // Nobody reads the output any more, so there is no point in going on.
                    if let Err(error) = &said
                        && error.is::<OutputClosed>()
                    {
                        return said.map(|()| Talked::Over(true));
                    }
                    self.tell(said);
                }
                Err(error) => self.tell(Err(error)),
            }
        }
    }

    /// Asks about a word that leaves, or helps, in other programs, unless it is repeated. Returns
    /// whether it did.
    fn asks(&self, input: &str, refused: Option<&str>) -> bool {
        let word = input.trim();
        if !self.is_typed || !LEAVING.contains(&word) || refused == Some(word) {
            return false;
        }
        let command = if word == "help" { "/help shows the commands" } else { "/exit to leave" };
        output::note(&format!("{command}; type {word} again to say it to the model"));
        true
    }

    /// Returns another model to go on with, which is here and can be opened. `may_download` says
    /// that one that is not here was asked for twice.
    fn other_model(&self, name: &str, may_download: bool) -> Result<Chosen> {
        if self.raw {
            bail!(
                "this chat continues texts as they are: leave, and start it with the other model"
            );
        }
        let chosen = find_for_chat(self.library, name, may_download)?;
        // Refused before this model gives up its memory.
        let model = chosen.source.open(None)?;
        let preset = chosen.preset.as_ref().is_some_and(|preset| preset.template.is_some());
        if !preset && template(model.checkpoint())?.is_none() {
            bail!(
                "{} is a base model: it continues texts and was not trained to chat; choose one \
                 with -it in its name",
                terminal::harmless(&chosen.source.name())
            );
        }
        Ok(chosen)
    }

    /// Lists the models that the chat can go on with.
    fn models(&self) -> String {
        let inside = std::iter::once(Embedded::Demo.name().to_owned());
        let here: Vec<String> = inside.chain(self.library.local_names()).collect();
        let next = if self.raw { "/exit leaves, for" } else { "/model NAME goes on with" };
        let (name, here) = (&self.session.name, here.join(", "));
        let told = format!("this chat is with {name}; on this machine: {here}. {next} another one");
        terminal::harmless(&told).into_owned()
    }

    fn tell(&mut self, outcome: Result<()>) {
        let Err(error) = outcome else { return };
        let message = crate::failure::message(&error);
        self.kept.has_failed |= message.is_some() || error.is::<Negative>();
        if let Some(message) = message {
            output::error(terminal::harmless(&message));
        }
    }

    /// Refuses a command that replaces a conversation that exists nowhere else.
    fn check_loss(&self, command: &Slash<'_>) -> Result<()> {
        match command {
            Slash::Load(_) if self.kept.is_unsaved() => {
                bail!("this conversation is not saved; /save it, or repeat /load to leave it")
            }
            Slash::Save(path) if self.is_anothers(path) => bail!(
                "{} holds another conversation; choose another name, or repeat /save to replace it",
                path.display()
            ),
            _ => Ok(()),
        }
    }

    /// Returns whether a file holds a conversation other than this one.
    fn is_anothers(&self, path: &Path) -> bool {
        let Ok(there) = path.canonicalize() else { return false };
        self.kept.file.as_ref() != Some(&there) && Conversation::load(path).is_ok()
    }

    fn obey(&mut self, command: Slash<'_>) -> Result<()> {
        match command {
            Slash::Help => output::help(HELP),
            Slash::Reset => {
                self.kept.conversation.turns.clear();
                self.kept.waiting.clear();
                self.kept.file = None;
                self.kept.conversation.left_out = 0;
                output::note("the conversation is forgotten");
            }
            Slash::System(_) if self.raw => {
                bail!("a system text needs a chat template; this chat continues texts as they are")
            }
            Slash::System("") => {
                self.kept.conversation.system = None;
                self.kept.is_saved = false;
                output::note("no system text");
            }
            Slash::System(text) => {
                self.kept.conversation.system = Some(text.to_owned());
                self.kept.is_saved = false;
                output::note("the system text is set");
            }
            Slash::Think(_) if self.raw => {
                bail!("this chat continues texts as they are: the texts say whether to think")
            }
            Slash::Think(thinking) => self.think(thinking)?,
            Slash::Image(_) if self.raw => {
                bail!("this chat continues texts as they are; images need a chat template")
            }
            Slash::Image(rest) => self.image(rest)?,
            Slash::Save(_) | Slash::Load(_) if self.raw => {
                bail!("this chat continues texts as they are: it keeps no conversation")
            }
            Slash::Save(path) => {
                self.kept.conversation.save(path, &self.session.name)?;
                self.kept.is_saved = true;
                self.kept.file = path.canonicalize().ok();
                output::note(&format!(
                    "{} in {}",
                    messages(self.kept.conversation.turns.len()),
                    path.display()
                ));
            }
            Slash::Load(path) => self.load(path)?,
            Slash::Set("") | Slash::Show => output::help(&self.shown()),
            Slash::Set(text) => self.set(text)?,
            Slash::Model(_) => output::help(&self.models()),
            Slash::Exit | Slash::Retry => {}
        }
        Ok(())
    }

    /// Sets whether and how long the model thinks from the next message on, and tells it.
    fn think(&mut self, thinking: Option<Thinking>) -> Result<()> {
        if self.text.format().thoughts().is_none() {
            bail!(
                "{} does not think before it answers; Gemma 4 does: /model gemma4:e4b",
                terminal::harmless(&self.session.name)
            );
        }
        if let Some(thinking) = thinking {
            self.text.thinking = thinking;
        }
        output::note(&thinking_note(self.text.thinking));
        Ok(())
    }

    /// Changes a parameter from the next answer on.
    fn set(&mut self, text: &str) -> Result<()> {
        let one = settable::changed(&SamplingArgs::default(), text)?;
        let preset = settable::changed(&self.preset, text)?;
        let parameters = self.kept.conversation.parameters.beneath(&one);
        let writing = Writing::new(&parameters.over(&preset), self.session.model.defaults());
        writing.sampling.check(self.session.engine.vocabulary())?;
        let chosen = settable::changed(&self.kept.chosen, text)?;
        (self.writing, self.preset, self.kept.chosen) = (writing, preset, chosen);
        self.kept.conversation.parameters = parameters;
        let text = terminal::harmless(text.strip_prefix("parameter ").unwrap_or(text).trim());
        output::note(&format!("{text} from the next answer on; /show lists what applies"));
        Ok(())
    }

    /// Returns what applies to the chat, for people.
    fn shown(&self) -> String {
        let Self { session, kept: Kept { conversation, .. }, writing, .. } = self;
        let system = conversation.system.as_ref();
        format!(
            "model               {}\ndevice              {}\ncontext             {} tokens\n\
             conversation        {}\n{}{}",
            terminal::harmless(&session.name),
            terminal::harmless(&session.device),
            session.engine.context(),
            messages(conversation.turns.len()),
            settable::shown(writing),
            system.map_or(String::new(), |text| format!("\nsystem              {text}")),
        )
    }

    /// Answers the last message again; the answer that was there is kept beside the new one.
    fn retry(&mut self, show: &mut Show<'_>) -> Result<()> {
        let watch = Watch::new();
        let Some(before) = self.kept.conversation.turns.pop_if(|turn| turn.role == Role::Assistant)
        else {
            bail!("there is no answer to try again");
        };
        // Another seed: the same one would write the same text.
        let chosen = self.kept.conversation.parameters.over(&self.preset);
        self.writing = Writing::new(&chosen, self.session.model.defaults());
        match self.answer(&watch, show) {
            Ok(answer) if answer.ending != Ending::Interrupted || !answer.text.is_empty() => {
                let mut earlier = before.earlier.clone();
                earlier.push(before.content);
                let turn = Turn { earlier, ..Turn::new(Role::Assistant, answer.text) };
                self.kept.conversation.turns.push(turn);
                self.kept.is_saved = false;
                Ok(())
            }
            other => {
                self.kept.conversation.turns.push(before);
                other.map(drop).or_else(|error| match error.is::<Interrupted>() {
                    true => Ok(()),
                    false => Err(error),
                })
            }
        }
    }

    /// Lists the pictures that wait for the next message, takes them back, or adds those of a file.
    fn image(&mut self, rest: &str) -> Result<()> {
        match rest {
            "" if self.kept.waiting.is_empty() => {
                output::note("no image waits; /image FILE gives one to the next message");
            }
            "" => {
                self.kept.waiting.iter().for_each(|(_, line)| output::note(line));
                output::note("they go with the next message; /image - takes them back");
            }
            "-" => {
                self.kept.waiting.clear();
                output::note("no image waits");
            }
            // Quoted and escaped as terminals write it, or just a path.
            path => match &dragged(path)[..] {
                [] => match with_words(path).filter(|_| !Path::new(path).exists()) {
                    Some(picture) => bail!(
                        "/image takes a path and no text: give /image {}, and ask on the next line",
                        picture.display()
                    ),
                    None => self.attach(&[PathBuf::from(path)])?,
                },
                paths => self.attach(paths)?,
            },
        }
        Ok(())
    }

    /// Adds pictures to the next message.
    fn attach(&mut self, paths: &[PathBuf]) -> Result<()> {
        let watch = Watch::new();
        for path in paths {
            watch.check()?;
            if self.kept.waiting.len() + self.kept.conversation.pictures() >= PICTURES_MAX {
                bail!(
                    "a chat has at most {PICTURES_MAX} images; /reset begins another one, /image - \
                     takes back those that wait"
                );
            }
            let Session { vision, name, .. } = &*self.session;
            let (picture, line) = TurnPicture::read(path, Input::Refused, vision.as_ref(), name)?;
            output::note(&line);
            self.kept.waiting.push((picture, line));
        }
        Ok(())
    }

    /// Continues the conversation of a file with its parameters, except those that were typed on
    /// the command line.
    fn load(&mut self, path: &Path) -> Result<()> {
        let mut conversation = Conversation::load(path)?;
        let lost = conversation.keep_pictures(PICTURES_MAX.saturating_sub(self.kept.waiting.len()));
        let parameters = conversation.parameters.beneath(self.typed);
        let writing = Writing::new(&parameters.over(&self.preset), self.session.model.defaults());
        writing
            .sampling
            .check(self.session.engine.vocabulary())
            .with_context(|| format!("the parameters of {} cannot be used", path.display()))?;
        self.kept.loaded = Some(std::mem::replace(&mut conversation.parameters, parameters));
        self.kept.chosen = self.typed.clone();
        (self.kept.conversation, self.writing, self.kept.is_saved) = (conversation, writing, true);
        self.kept.file = path.canonicalize().ok();
        let Conversation { turns, parameters, system, .. } = &self.kept.conversation;
        output::note(&format!("{} from {}", messages(turns.len()), path.display()));
        if system.is_some() {
            output::note("it has a system text; /system sets another");
        }
        if lost > 0 {
            let why = format!("a chat has at most {PICTURES_MAX}, the newest ones");
            output::note(&lost_note(lost, &why));
        }
        if let Some(chosen) = parameters.shown() {
            output::note(&format!("answers are written with {chosen}"));
        }
        Ok(())
    }

    /// Answers an input. If the answer fails, or is stopped before its first text, the input does
    /// not become part of the conversation, and its pictures wait for the next one.
    fn say(&mut self, input: String, show: &mut Show<'_>) -> Result<()> {
        let watch = Watch::new();
        if self.raw {
            let prompt = raw_prompt(self.session, self.text, &input)?;
            let rows = PromptInput { tokens: prompt, ..PromptInput::default() };
            return show(self.session, self.text, rows, &self.writing, &watch).map(drop);
        }
        let content =
            input.strip_prefix(" /").map_or_else(|| input.clone(), |rest| format!("/{rest}"));
        // A conversation that was loaded from a file may end with a question.
        if self.kept.conversation.turns.last().is_some_and(|turn| turn.role == Role::User) {
            self.kept.conversation.turns.pop();
        }
        self.tell_of_names(&content);
        let pictures = self.kept.waiting.iter().map(|(picture, _)| picture.clone()).collect();
        self.kept.conversation.turns.push(Turn { pictures, ..Turn::new(Role::User, content) });
        interrupt::set_unsaved(true);
        match self.answer(&watch, show) {
            Ok(answer) if answer.ending == Ending::Interrupted && answer.text.is_empty() => {
                self.kept.conversation.turns.pop();
                output::note("the message is not part of the conversation");
                Ok(())
            }
            Ok(answer) => {
                self.kept.conversation.turns.push(Turn::new(Role::Assistant, answer.text));
                self.kept.waiting.clear();
                self.kept.is_saved = false;
                Ok(())
            }
            Err(error) => {
                self.kept.conversation.turns.pop();
                if error.is::<Interrupted>() {
                    output::note("the message is not part of the conversation");
                    return Ok(());
                }
                Err(error)
            }
        }
    }

    /// Attaches the first image that a text names and that was not given, if a person typed it and
    /// the model sees images; else says that the model does not see it.
    fn tell_of_names(&mut self, text: &str) {
        let given = self.kept.conversation.turns.iter().flat_map(|turn| &turn.pictures);
        let given: Vec<_> =
            given.chain(self.kept.waiting.iter().map(|(picture, _)| picture)).collect();
        let is_new = |name: &&str| {
            let path = expanded(Path::new(name));
            !given.iter().any(|picture| picture.is_at(&path))
        };
        let Some(name) = named_in(text).into_iter().find(is_new) else { return };
        let attached = match self.is_typed && self.session.vision.is_some() {
            true => self.attach(&[expanded(Path::new(name))]),
            false => Err(anyhow!("/image {name} gives the image to the next message")),
        };
        if let Err(why) = attached {
            let told = format!("the model sees the name {name} only; {why:#}");
            output::note(&terminal::harmless(&told));
        }
    }

    fn answer(&mut self, watch: &Watch, show: &mut Show<'_>) -> Result<Answer> {
        let (vision, context) = (self.session.vision.as_ref(), self.session.engine.context());
        let lost = self.kept.conversation.find_pictures(vision, context, || watch.check())?;
        if lost > 0 {
            let why = "the files are gone or changed, or it reads none";
            output::note(&lost_note(lost, why));
        }
        let prompt =
            chat_prompt(self.session, self.text, &self.writing, &mut self.kept.conversation)?;
        if prompt.newly_left_out > 0 {
            output::note(&format!(
                "the context of {} tokens is full: from here on the model does not see the oldest \
                 {}{}",
                self.session.engine.context(),
                messages(self.kept.conversation.left_out),
                if self.kept.conversation.system.is_some() {
                    ", but still the system text"
                } else {
                    ""
                },
            ));
        }
        show(self.session, self.text, prompt.rows, &self.writing, watch)
    }
}

/// Returns the prompt of a conversation, which fits in the context.
///
/// # Errors
/// Returns an error if the last message does not fit, or the model's template refuses the
/// conversation.
pub(crate) fn chat_prompt(
    session: &Session,
    text: &TextSide,
    writing: &Writing,
    conversation: &mut Conversation,
) -> Result<ChatPrompt> {
    let answer = writing.max_tokens.unwrap_or(usize::MAX);
    let prompt = conversation.prompt(text, session.engine.context(), answer);
    prompt.map_err(|error| explained(error, session))
}

/// Returns the prompt of a text that is continued as it is.
///
/// # Errors
/// Returns an error if the text does not fit in the context or cannot be turned into tokens.
pub(crate) fn raw_prompt(session: &Session, text: &TextSide, input: &str) -> Result<Vec<u32>> {
    let context = session.engine.context();
    check_bytes(input, context).map_err(|error| explained(error.into(), session))?;
    let tokens = text.tokenizer.encode_prompt(input, Specials::Parse)?;
    if tokens.len() > context {
        let error = TooLong { tokens: tokens.len(), at_least: false, has_system: false };
        return Err(explained(error.into(), session));
    }
    Ok(tokens)
}

/// Returns the next input and whether it is a block; `None` at the end, or after a second Ctrl-C.
fn typed(lines: &mut dyn LineSource) -> Result<Option<(String, bool)>> {
    loop {
        match next_input(lines)? {
            Line::Text(text) => return Ok(Some((text, false))),
            Line::Block(text) => return Ok(Some((text, true))),
            Line::End => return Ok(None),
            Line::Interrupted => match interrupt::pressed_at_prompt() {
                Some(note) => output::note(note),
                None => return Ok(None),
            },
        }
    }
}
