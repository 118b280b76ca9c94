//! The chat: inputs, answers, and the commands that begin with a slash.

use std::path::Path;

use anyhow::{Result, anyhow};
use trine_text::Specials;

use crate::chat::{Conversation, Role, Turn};
use crate::generate::{Answer, Ending};
use crate::interrupt::Watch;
use crate::line_source::{Line, LineSource, next_input};
use crate::options::Writing;
use crate::output;
use crate::session::Session;
use crate::vocabulary::TextSide;

const HELP: &str = "\
/help          this list
/reset         forget the conversation (the system text stays)
/system TEXT   set the instructions that stand before the conversation; without TEXT remove them
/save FILE     keep the conversation in a file
/load FILE     go on with a conversation from a file
/exit          leave (also Ctrl-D, or Ctrl-C twice)

Several lines: end a line with \\, or put the text between \"\"\" and \"\"\".
A text that begins with a slash is sent with a space before it.
Ctrl-C while the model writes stops it.";

/// Names of the commands.
const COMMANDS: [&str; 8] =
    ["/help", "/reset", "/system", "/save", "/load", "/exit", "/bye", "/quit"];

/// A command of the chat.
#[derive(Debug, PartialEq, Eq)]
enum Slash<'a> {
    Help,
    Reset,
    System(&'a str),
    Save(&'a Path),
    Load(&'a Path),
    Exit,
}

/// Reads a command; none if the input is something to say.
fn parse(input: &str) -> Result<Option<Slash<'_>>> {
    if !input.starts_with('/') {
        return Ok(None);
    }
    let (name, rest) = input.split_once(char::is_whitespace).unwrap_or((input, ""));
    let rest = rest.trim();
    let file = || match rest {
        "" => Err(anyhow!("{name} needs a file name: {name} FILE")),
        rest => Ok(Path::new(rest)),
    };
    Ok(Some(match name {
        "/help" | "/?" => Slash::Help,
        "/reset" | "/clear" => Slash::Reset,
        "/system" => Slash::System(rest),
        "/save" => Slash::Save(file()?),
        "/load" => Slash::Load(file()?),
        "/exit" | "/bye" | "/quit" => Slash::Exit,
        other => {
            let close = output::close_names(other, COMMANDS);
            let hint = close.first().map_or(String::new(), |name| format!(" Did you mean {name}?"));
            return Err(anyhow!("there is no command {other}.{hint} /help lists the commands"));
        }
    }))
}

/// Where the answer's text and the remarks about it go.
pub(crate) type Show<'a> =
    dyn FnMut(&mut Session, Vec<u32>, &Writing, &Watch) -> Result<Answer> + 'a;

/// A chat with a model.
pub(crate) struct Chat<'a> {
    /// The model.
    pub(crate) session: &'a mut Session,
    /// Its text side.
    pub(crate) text: &'a TextSide,
    /// How answers are written.
    pub(crate) writing: &'a Writing,
    /// Whether inputs are continued as they are, without a template or memory.
    pub(crate) raw: bool,
    /// What was said.
    pub(crate) conversation: Conversation,
}

impl Chat<'_> {
    /// Talks until the end of the input, `/exit`, or Ctrl-C twice at the prompt.
    ///
    /// # Errors
    /// If the input cannot be read or the output not written. What goes wrong with a single answer is told, and the
    /// chat goes on.
    pub(crate) fn talk(&mut self, lines: &mut dyn LineSource, show: &mut Show<'_>) -> Result<()> {
        let mut interrupted_before = false;
        loop {
            let input = match next_input(lines)? {
                Line::Text(text) => text,
                Line::End => return Ok(()),
                Line::Interrupted if interrupted_before => return Ok(()),
                Line::Interrupted => {
                    output::note("Ctrl-C again, or /exit, to leave");
                    interrupted_before = true;
                    continue;
                }
            };
            interrupted_before = false;
            match parse(&input) {
                Ok(Some(Slash::Exit)) => return Ok(()),
                Ok(Some(command)) => tell(self.obey(command)),
                Ok(None) if input.trim().is_empty() => {}
                Ok(None) => {
                    let said = self.say(input, show);
                    // Nobody reads any more: there is no point in going on.
                    if let Err(error) = &said
                        && error.is::<crate::failure::OutputClosed>()
                    {
                        return said;
                    }
                    tell(said);
                }
                Err(error) => tell(Err(error)),
            }
        }
    }

    fn obey(&mut self, command: Slash<'_>) -> Result<()> {
        match command {
            Slash::Help => output::remark(HELP),
            Slash::Reset => {
                self.conversation.turns.clear();
                output::note("the conversation is forgotten");
            }
            Slash::System(_) if self.raw => {
                return Err(anyhow!(
                    "a system text needs a chat template; this chat continues texts as they are"
                ));
            }
            Slash::System("") => {
                self.conversation.system = None;
                output::note("no system text");
            }
            Slash::System(text) => {
                self.conversation.system = Some(text.to_owned());
                output::note("the system text is set");
            }
            Slash::Save(path) => {
                self.conversation.save(path, &self.session.name)?;
                output::note(&format!(
                    "{} messages are in {}",
                    self.conversation.turns.len(),
                    path.display()
                ));
            }
            Slash::Load(path) => {
                self.conversation = Conversation::load(path)?;
                output::note(&format!(
                    "{} messages from {}",
                    self.conversation.turns.len(),
                    path.display()
                ));
            }
            Slash::Exit => {}
        }
        Ok(())
    }

    /// Answers an input. If that fails, the input is not part of the conversation.
    fn say(&mut self, input: String, show: &mut Show<'_>) -> Result<()> {
        let watch = Watch::new();
        if self.raw {
            let prompt = self.text.tokenizer.encode_prompt(&input, Specials::Parse)?;
            show(self.session, prompt, self.writing, &watch)?;
            return Ok(());
        }
        let content =
            input.strip_prefix(" /").map_or_else(|| input.clone(), |rest| format!("/{rest}"));
        // A conversation loaded from a file may end with a question.
        if self.conversation.turns.last().is_some_and(|turn| turn.role == Role::User) {
            self.conversation.turns.pop();
        }
        self.conversation.turns.push(Turn { role: Role::User, content });
        let answered = self
            .conversation
            .prompt(self.text)
            .and_then(|prompt| show(self.session, prompt, self.writing, &watch));
        match answered {
            Ok(answer) => {
                self.conversation.turns.push(Turn { role: Role::Assistant, content: answer.text });
                Ok(())
            }
            Err(error) => {
                self.conversation.turns.pop();
                Err(match error.downcast_ref::<trine_engine::EngineError>() {
                    Some(trine_engine::EngineError::PromptTooLong { .. }) => {
                        error.context("the conversation has become too long; /reset begins anew")
                    }
                    _ => error,
                })
            }
        }
    }
}

fn tell(outcome: Result<()>) {
    if let Err(error) = outcome
        && let Some(message) = crate::failure::message(&error)
    {
        output::error(crate::terminal::harmless(&message));
    }
}

/// What there is to say about the end of an answer, beyond the model's own end.
pub(crate) fn ending_note(ending: Ending) -> Option<&'static str> {
    match ending {
        Ending::Stop | Ending::StopText => None,
        Ending::Length => Some("(stopped at --max-tokens)"),
        Ending::Context => {
            Some("(stopped: the context is full; a larger --context gives more room)")
        }
        Ending::Interrupted => Some("(stopped)"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands() {
        assert_eq!(parse("hello").unwrap(), None);
        assert_eq!(parse(" /help").unwrap(), None);
        assert_eq!(parse("/help").unwrap(), Some(Slash::Help));
        assert_eq!(parse("/system Be brief.  ").unwrap(), Some(Slash::System("Be brief.")));
        assert_eq!(parse("/system").unwrap(), Some(Slash::System("")));
        assert_eq!(
            parse("/save my chat.json").unwrap(),
            Some(Slash::Save(Path::new("my chat.json")))
        );
        assert_eq!(parse("/quit").unwrap(), Some(Slash::Exit));
        assert!(parse("/save").unwrap_err().to_string().contains("/save FILE"));
        assert!(parse("/hlep").unwrap_err().to_string().contains("Did you mean /help?"));
    }
}
