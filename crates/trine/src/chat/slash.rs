//! The commands of the chat, which begin with a slash.

use std::path::Path;

use anyhow::{Result, anyhow, bail};
use trine_session::vocabulary::Thinking;

use crate::terminal::output;

/// The list of commands.
pub(crate) const HELP: &str = "\
/help          this list
/retry         answer the last message again
/set NAME X    change a parameter, such as temperature 0.5; /show lists them
/show          the model, the parameters, and how long the conversation is
/model NAME    go on with another model; without NAME list those on this machine
/reset         forget the conversation (the system text stays)
/system TEXT   set the instructions that stand before the conversation; without TEXT remove them
/think WHAT    whether the model thinks before it answers: on, off, or the most tokens of thoughts;
               without WHAT tell which holds
/image FILE    give an image to the next message; so does dragging its file here. Without FILE list
               those that wait; - takes them back
/save FILE     keep the conversation in a file
/load FILE     go on with a conversation from a file
/exit          leave (also Ctrl-D, or Ctrl-C twice)

Several lines: end a line with \\, or put the text between \"\"\" and \"\"\".
A text that begins with a slash is sent with a space before it.
Ctrl-C while the model writes stops it.";

/// The names of the commands.
const COMMANDS: [&str; 17] = [
    "/help",
    "/reset",
    "/clear",
    "/system",
    "/think",
    "/image",
    "/save",
    "/load",
    "/exit",
    "/bye",
    "/quit",
    "/set",
    "/show",
    "/retry",
    "/regenerate",
    "/model",
    "/models",
];

/// Words that leave or help in other programs. Alone on a line they are asked about once.
pub(crate) const LEAVING: [&str; 4] = ["exit", "quit", "bye", "help"];

/// A command of the chat.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Slash<'a> {
    /// List the commands.
    Help,
    /// Forget the conversation.
    Reset,
    /// Set the system text; none if it is empty.
    System(&'a str),
    /// Set whether the model thinks, or tell it.
    Think(Option<Thinking>),
    /// Attach an image, list those that wait, or take them back.
    Image(&'a str),
    /// Keep the conversation.
    Save(&'a Path),
    /// Go on with another one.
    Load(&'a Path),
    /// Change a parameter.
    Set(&'a str),
    /// Show what applies.
    Show,
    /// Answer the last message again.
    Retry,
    /// Take another model.
    Model(&'a str),
    /// Leave.
    Exit,
}

/// Parses a command; returns `None` if the input is a message to the model.
pub(crate) fn parse(input: &str) -> Result<Option<Slash<'_>>> {
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
        "/set" => match rest.split_once(char::is_whitespace).unwrap_or((rest, "")) {
            ("system", text) => Slash::System(text.trim()),
            ("think", _) => Slash::Think(thinking("on")?),
            ("nothink", _) => Slash::Think(thinking("off")?),
            _ => Slash::Set(rest),
        },
        "/show" => Slash::Show,
        "/retry" | "/regenerate" => Slash::Retry,
        "/model" | "/models" => Slash::Model(rest),
        "/think" => Slash::Think(thinking(rest)?),
        "/image" => Slash::Image(rest),
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

/// Parses what a model is to think; `None` for no text.
fn thinking(text: &str) -> Result<Option<Thinking>> {
    Ok(Some(match text {
        "" => return Ok(None),
        "on" => Thinking { on: Some(true), budget: None },
        "off" => Thinking { on: Some(false), budget: None },
        number => match number.parse() {
            Ok(0) => Thinking { on: Some(false), budget: None },
            Ok(tokens) => Thinking { on: Some(true), budget: Some(tokens) },
            Err(_) => bail!("/think takes on, off, or the most tokens of thoughts"),
        },
    }))
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
        let set = "/set parameter temperature 1";
        assert_eq!(parse(set).unwrap(), Some(Slash::Set("parameter temperature 1")));
        assert_eq!(parse("/set system Be brief.").unwrap(), Some(Slash::System("Be brief.")));
        assert_eq!(parse("/show info").unwrap(), Some(Slash::Show));
        assert_eq!(parse("/regenerate").unwrap(), Some(Slash::Retry));
        let think = |on, budget| Some(Slash::Think(Some(Thinking { on: Some(on), budget })));
        assert_eq!(parse("/think on").unwrap(), think(true, None));
        assert_eq!(parse("/think off").unwrap(), think(false, None));
        assert_eq!(parse("/think 200").unwrap(), think(true, Some(200)));
        assert_eq!(parse("/think 0").unwrap(), think(false, None));
        assert_eq!(parse("/think").unwrap(), Some(Slash::Think(None)));
        assert!(parse("/think hard").unwrap_err().to_string().contains("on, off, or"));
        assert_eq!(parse("/image my cat.png").unwrap(), Some(Slash::Image("my cat.png")));
        assert!(parse("/save").unwrap_err().to_string().contains("/save FILE"));
        assert!(parse("/hlep").unwrap_err().to_string().contains("Did you mean /help?"));
    }
}
