//! What a history may hold: content that a model cannot take ends no session.
//!
//! An agent sends its whole history with each request. A picture, a document or a block of another
//! server in it would be refused every time, and nobody could go on. So content is refused only in
//! the newest turn that a person wrote, where somebody waits for just this. In results of tools and
//! in other turns it becomes a line of text where it stood, and the answer says so.

use std::ops::Range;

use trine_text::{Content, Message, Part};

use crate::error::{ApiError, shown};
use crate::reply::warnings::note;

/// Most kinds of missing content that an answer tells of.
const TOLD_MAX: usize = 16;

/// The turn that content stands in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// The newest one that a person wrote: what the model cannot take of it is refused.
    Newest,
    /// An earlier one, an answer, instructions, or the result of a tool.
    Earlier,
}

/// Tells the turns of a conversation apart.
#[derive(Debug)]
pub(crate) struct Turns<'a> {
    /// The roles of its messages, as [`Draft`](crate::request::messages::Draft) has them.
    roles: Vec<&'a str>,
    newest: Range<usize>,
}

impl<'a> Turns<'a> {
    /// Finds the newest turn that a person wrote: the last message of the role `user` that is no
    /// part of a result, and those before it up to an answer or a result. Several clients put the
    /// picture of a result into a message of the user right after it.
    pub(crate) fn of(roles: Vec<&'a str>) -> Self {
        let is_persons = |index: &usize| {
            let after_result = index.checked_sub(1).is_some_and(|before| roles[before] == "tool");
            roles[*index] == "user" && !after_result
        };
        let last = (0..roles.len()).rev().find(is_persons);
        let newest = last.map_or(0..0, |last| {
            let own = (0..last).rev();
            let own = own.take_while(|index| is_persons(index) || roles[*index] == "system");
            own.filter(is_persons).last().unwrap_or(last)..last + 1
        });
        Self { roles, newest }
    }

    /// Returns the turn of a message.
    pub(crate) fn turn(&self, index: usize) -> Turn {
        let is_user = self.roles.get(index) == Some(&"user");
        if is_user && self.newest.contains(&index) { Turn::Newest } else { Turn::Earlier }
    }

    /// Returns the turn of something that stands before the message of this index, or after all: it
    /// is in the newest turn of a person if nothing but that turn is around it.
    pub(crate) fn turn_before(&self, index: usize) -> Turn {
        let is_after = self.newest.start < index || self.roles.is_empty();
        let own = self.roles.get(self.newest.start..).unwrap_or_default();
        let is_last = !own.iter().any(|role| matches!(*role, "tool" | "assistant" | "model"));
        if is_after && is_last { Turn::Newest } else { Turn::Earlier }
    }
}

/// Content that a model is not shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Missing {
    /// What it is: an image, a document and so on.
    pub(crate) what: String,
    /// Its media type and its name, as far as they are known.
    pub(crate) about: String,
    pub(crate) why: String,
    /// Its field in the request.
    pub(crate) param: String,
}

impl Missing {
    /// Returns what the model is told in its place.
    pub(crate) fn line(&self) -> String {
        let Self { what, about, why, .. } = self;
        match &**about {
            "" => format!("[{what} left out: {why}]"),
            about => format!("[{what} left out: {why} ({about})]"),
        }
    }
}

/// Returns a media type and a name, as far as they are known, for a [`Missing`].
pub(crate) fn about(media_type: Option<&str>, name: Option<&str>) -> String {
    let is_type = |text: &&str| {
        let is_sign = |byte: u8| byte.is_ascii_alphanumeric() || b"/+-.".contains(&byte);
        (1..=60).contains(&text.len()) && text.bytes().all(is_sign)
    };
    let media_type = media_type.filter(is_type).map(str::to_owned);
    let name = name.filter(|name| !name.is_empty()).map(shown);
    media_type.into_iter().chain(name).collect::<Vec<_>>().join(", ")
}

/// Returns the reason of an error about a field, without the field and without what a client could
/// do instead.
pub(crate) fn reason(error: &ApiError) -> String {
    let message = error.message.as_str();
    let rest = error.param.as_deref().and_then(|param| message.strip_prefix(param));
    let rest = rest.unwrap_or(message);
    let rest = rest.strip_prefix(" is not supported").unwrap_or(rest);
    let rest = rest.trim_start_matches([':', ' ']);
    rest.split("; ").next().unwrap_or(rest).to_owned()
}

/// What a conversation is shown without, each kind and reason once.
#[derive(Debug, Clone, Default)]
pub(crate) struct LeftOuts(Vec<(Missing, usize)>);

impl LeftOuts {
    pub(crate) fn add(&mut self, missing: Missing) {
        let is_same = |known: &Missing| (&known.what, &known.why) == (&missing.what, &missing.why);
        let is_full = self.0.len() == TOLD_MAX;
        match self.0.iter_mut().find(|(known, _)| is_same(known)) {
            Some((_, count)) => *count += 1,
            None if is_full => {}
            None => self.0.push((missing, 1)),
        }
    }

    /// Adds warnings to the answer to the present request.
    pub(crate) fn note(&self) {
        for (Missing { what, why, param, .. }, count) in &self.0 {
            let others = if *count > 1 { " and others" } else { "" };
            note(format!("the {what} at {param}{others}: left out of the conversation: {why}"));
        }
    }
}

/// Puts lines in the places of pictures, of which `missing` has one entry each, in order.
pub(crate) fn fill(messages: &mut [Message], missing: &[Option<Missing>]) {
    let mut missing = missing.iter();
    for message in messages {
        let Content::Parts(parts) = &mut message.content else { continue };
        if !parts.iter().any(Part::is_picture) {
            continue;
        }
        let pieces = std::mem::take(parts).into_iter().map(|part| {
            let missing = part.is_picture().then(|| missing.next()).flatten();
            match missing.and_then(Option::as_ref) {
                Some(missing) => (Part::text(missing.line()), true),
                None => (part, false),
            }
        });
        *parts = in_lines(pieces);
    }
}

/// Returns parts of which some stand in lines of their own: templates write nothing between parts.
pub(crate) fn in_lines(pieces: impl Iterator<Item = (Part, bool)>) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    let mut was_line = false;
    for (part, is_line) in pieces {
        let before = parts.last_mut().and_then(|part| part.text.as_mut());
        match (&part.text, before) {
            // Within one part: templates strip the edges of each.
            (Some(text), Some(before)) if is_line || was_line => {
                if !before.ends_with('\n') && !text.starts_with('\n') {
                    before.push('\n');
                }
                before.push_str(text);
            }
            _ => parts.push(part),
        }
        was_line = is_line;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `u`: user, `a`: assistant, `t`: result, `s`: system.
    #[test]
    fn the_newest_turn_of_a_person_is_found() {
        for (roles, newest) in [
            ("u", "u"),
            ("uau", "__u"),
            ("uat", "u__"),
            ("uatu", "u___"),
            ("uatuu", "____u"),
            ("uatau", "____u"),
            ("suu", "_uu"),
            ("usu", "u_u"),
            ("uausus", "__u_u_"),
            ("at", "__"),
            ("", ""),
        ] {
            let role = |role: char| match role {
                'u' => "user",
                'a' => "assistant",
                't' => "tool",
                _ => "system",
            };
            let turns = Turns::of(roles.chars().map(role).collect());
            let found = |(index, role): (usize, char)| match turns.turn(index) {
                Turn::Newest => role,
                Turn::Earlier => '_',
            };
            assert_eq!(roles.chars().enumerate().map(found).collect::<String>(), newest, "{roles}");
        }
    }

    #[test]
    fn what_stands_between_messages_is_in_a_turn() {
        for (roles, index, turn) in [
            (&[][..], 0, Turn::Newest),
            (&["user"], 0, Turn::Earlier),
            (&["user"], 1, Turn::Newest),
            (&["user", "assistant", "user"], 2, Turn::Earlier),
            (&["user", "assistant", "user"], 3, Turn::Newest),
            (&["user", "assistant", "tool"], 1, Turn::Earlier),
            (&["user", "assistant", "tool"], 3, Turn::Earlier),
        ] {
            assert_eq!(Turns::of(roles.to_vec()).turn_before(index), turn, "{roles:?} {index}");
        }
    }

    #[test]
    fn lines_say_what_is_missing_and_stand_by_themselves() {
        let missing = Missing {
            what: "image".to_owned(),
            about: about(Some("image/png"), Some("a\n.png")),
            why: "this model reads none".to_owned(),
            param: String::new(),
        };
        let line = missing.line();
        assert_eq!(line, r#"[image left out: this model reads none (image/png, "a\n.png")]"#);
        assert_eq!(about(Some("text/x\n"), None), "");
        let parts = [Part::text("a"), Part::picture(), Part::picture(), Part::text("b")];
        let mut messages = [Message::new("user", Content::Parts(parts.to_vec()))];
        fill(&mut messages, &[Some(missing), None]);
        let Content::Parts(parts) = &messages[0].content else { panic!("they are parts") };
        let expected = [Part::text(format!("a\n{line}")), Part::picture(), Part::text("b")];
        assert_eq!(*parts, expected);
    }
}
