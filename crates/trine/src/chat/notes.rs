//! Notes of a chat: on texts that do not fit, thinking, pictures that are left out, ends.

use anyhow::anyhow;
use trine_session::Session;
use trine_session::vocabulary::Thinking;

use crate::chat::TooLong;
use crate::chat::generate::Ending;
use crate::terminal::output;

/// Adds to an error about a text that does not fit what the user can do about it.
pub(crate) fn explained(error: anyhow::Error, session: &Session) -> anyhow::Error {
    let context = session.engine.context();
    match error.downcast_ref::<TooLong>() {
        None => error,
        Some(too_long) => anyhow!(
            "{too_long}, the context takes {context}: shorten {}{}",
            if too_long.has_system { "the one or the other (/system)" } else { "it" },
            session.longer_context().map_or(String::new(), |most| format!(
                ", or start with a larger --context (up to {most})"
            ))
        ),
    }
}

/// Returns a note about whether and how long the model thinks.
pub(crate) fn thinking_note(thinking: Thinking) -> String {
    match (thinking.on, thinking.budget) {
        (Some(true), None) => "the model thinks before it answers".to_owned(),
        (Some(true), Some(tokens)) => {
            let tokens = output::counted(tokens, "token");
            format!("the model thinks before it answers, for at most {tokens}")
        }
        (Some(false), _) => "the model answers at once".to_owned(),
        (None, _) => "the chat template decides whether the model thinks".to_owned(),
    }
}

/// Returns a note about pictures that the model does not see.
pub(crate) fn lost_note(count: usize, why: &str) -> String {
    let are = if count == 1 { "1 image is".to_owned() } else { format!("{count} images are") };
    format!("{are} left out of what the model sees: {why}")
}

pub(crate) fn messages(count: usize) -> String {
    if count == 1 { "1 message".to_owned() } else { format!("{count} messages") }
}

/// Returns a note about the end of an answer, unless the model itself or a stop text ended it.
pub(crate) fn ending_note(ending: Ending, session: &Session, is_chat: bool) -> Option<String> {
    match ending {
        Ending::Stop | Ending::StopText => None,
        Ending::Length => Some("(stopped at --max-tokens)".to_owned()),
        Ending::Context => {
            let advice = match session.longer_context() {
                _ if is_chat => "; the next message goes on without the oldest ones".to_owned(),
                Some(most) => format!("; --context gives more room, up to {most}"),
                None => String::new(),
            };
            let context = session.engine.context();
            Some(format!("(stopped: the context of {context} tokens is full{advice})"))
        }
        Ending::Interrupted => Some("(stopped)".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_about_thinking() {
        let note = |on, budget| thinking_note(Thinking { on, budget });
        assert_eq!(note(Some(true), None), "the model thinks before it answers");
        assert_eq!(
            note(Some(true), Some(1)),
            "the model thinks before it answers, for at most 1 token"
        );
        assert_eq!(note(Some(false), None), "the model answers at once");
        assert_eq!(note(None, None), "the chat template decides whether the model thinks");
    }
}
