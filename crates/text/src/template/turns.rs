//! Arranges conversations of any shape in the turns that a template takes.
//!
//! Templates are written for a system message and alternating turns of user and assistant. Clients
//! send more: several system messages, some of them in the middle or at the end, the same speaker
//! twice, an assistant who speaks first. What a template does with those is found by trying
//! ([`Ways`]). Everything else is arranged in turns that it takes, with no text left out.

use super::message::{Content, Message, Part};

/// What a template takes in addition to alternating turns of user and assistant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ways {
    /// A system message before all turns.
    system_first: bool,
    /// System messages between turns and after them, each written like the first one.
    system_later: bool,
    /// A system message without any turn.
    system_only: bool,
    /// The assistant's turn as the first one, with and without a system message before it.
    answer_first: bool,
}

impl Ways {
    /// Finds out what a template takes. `render` returns the text of a conversation, or `None` if
    /// the template refuses it; `bos` is the text that the template writes for the beginning of a
    /// sequence.
    pub(super) fn of(render: impl Fn(&[Message]) -> Option<String>, bos: &str) -> Self {
        let try_roles = |roles: &[&str]| Tried::of(&render, roles);
        let takes = |roles: &[&str]| try_roles(roles).is_some();
        let first = try_roles(&["system", "user", "assistant", "user"]);
        let system_first = first.is_some();
        // A system message between every two kinds of turns, and at the end.
        let mixed = [
            "user",
            "system",
            "user",
            "assistant",
            "system",
            "user",
            "system",
            "assistant",
            "user",
            "assistant",
            "system",
            "assistant",
            "system",
        ];
        // Templates that know system messages only at the beginning may write later ones as a turn
        // of an unknown speaker.
        let alike = |first: &Tried, later: &Tried| {
            let opening = first.before(0).trim_start();
            let opening = opening.strip_prefix(bos).unwrap_or(opening).trim_start();
            let mut places = (0..mixed.len()).filter(|&place| mixed[place] == "system");
            !opening.is_empty() && places.all(|place| later.before(place).ends_with(opening))
        };
        let later = try_roles(&mixed);
        let system_later =
            first.as_ref().zip(later.as_ref()).is_some_and(|(first, later)| alike(first, later));
        Self {
            system_first,
            system_later,
            system_only: takes(&["system"]),
            answer_first: takes(&["assistant", "user"])
                && (!system_first || takes(&["system", "assistant", "user"])),
        }
    }

    /// Returns the conversation in turns that the template takes.
    pub(super) fn arrange(self, messages: Vec<Message>) -> Vec<Message> {
        let mut turns: Vec<Message> = Vec::with_capacity(messages.len() + 1);
        let mut is_beginning = true;
        for message in messages {
            let Some(message) = self.place(message, &mut is_beginning) else { continue };
            match turns.last_mut() {
                Some(last)
                    if last.role == message.role
                        && is_merged(&message.role)
                        && !has_calls(last)
                        && !has_calls(&message) =>
                {
                    merge(last, message);
                }
                _ => turns.push(message),
            }
        }
        let first = turns.iter().position(|turn| turn.role != "system").unwrap_or(turns.len());
        let wants_user = match turns.get(first) {
            Some(turn) => turn.role == "assistant" && !self.answer_first,
            None => turns.is_empty() || !self.system_only,
        };
        if wants_user {
            turns.insert(first, Message::new("user", ""));
        }
        turns
    }

    /// Returns a message with the role in which the template takes it at this place; `None` for a
    /// system message without text.
    fn place(self, mut message: Message, is_beginning: &mut bool) -> Option<Message> {
        match message.role.as_str() {
            "developer" => message.role = "system".to_owned(),
            "model" => message.role = "assistant".to_owned(),
            _ => {}
        }
        if message.role == "system" {
            // Templates read a system message as one text.
            let text = message.content.text();
            if text.trim().is_empty() {
                return None;
            }
            message.content = Content::Text(text);
            let is_taken = if *is_beginning { self.system_first } else { self.system_later };
            if !is_taken {
                // If the template has no place for it, it goes into the user's turn at its place in
                // the conversation: a prompt that continues an earlier one still begins with that.
                message.role = "user".to_owned();
            }
        } else {
            *is_beginning = false;
        }
        if matches!(message.content, Content::Absent(())) {
            message.content = Content::Text(String::new());
        }
        Some(message)
    }
}

/// The rendering of a conversation in which each message is a word of its own.
struct Tried {
    text: String,
    /// The beginning and the end of each word.
    words: Vec<(usize, usize)>,
}

impl Tried {
    /// Returns `None` if the template refuses the conversation, or shows a word not at all, twice
    /// or in another order.
    fn of(render: impl Fn(&[Message]) -> Option<String>, roles: &[&str]) -> Option<Self> {
        let word = |index: usize| format!("qx{}zj", char::from(b'a' + (index % 26) as u8));
        let messages = roles.iter().enumerate();
        let messages: Vec<Message> =
            messages.map(|(index, role)| Message::new(*role, word(index))).collect();
        let text = render(&messages)?;
        let mut words: Vec<(usize, usize)> = Vec::with_capacity(roles.len());
        for index in 0..roles.len() {
            let word = word(index);
            let mut places = text.match_indices(&word);
            let (start, _) = places.next()?;
            let end = words.last().map_or(0, |&(_, end)| end);
            if places.next().is_some() || start < end {
                return None;
            }
            words.push((start, start + word.len()));
        }
        Some(Self { text, words })
    }

    /// Returns the template's text between a word and the previous one.
    fn before(&self, index: usize) -> &str {
        let start = index.checked_sub(1).map_or(0, |before| self.words[before].1);
        &self.text[start..self.words[index].0]
    }
}

/// Returns whether adjacent messages of a role become one message. Other roles are the template's
/// own.
fn is_merged(role: &str) -> bool {
    matches!(role, "system" | "user" | "assistant")
}

/// Returns whether a message calls tools, in a field that only the template can write.
fn has_calls(message: &Message) -> bool {
    message.extra.contains_key("tool_calls")
}

/// Appends the content of a second message to the first.
fn merge(first: &mut Message, second: Message) {
    first.content = match (std::mem::take(&mut first.content), second.content) {
        (Content::Text(before), Content::Text(after)) => Content::Text(joined(before, &after)),
        (before, after) => {
            let (mut parts, mut after) = (parts_of(before), parts_of(after).into_iter().peekable());
            // Templates trim each part, so a space between two texts has to be inside one.
            let last = parts.last_mut().and_then(|part| part.text.as_mut());
            if let Some(last) = last
                && let Some(next) = after.next_if(|part| part.text.is_some())
            {
                *last = joined(std::mem::take(last), next.text.as_deref().unwrap_or_default());
            }
            parts.extend(after);
            Content::Parts(parts)
        }
    };
    for (name, value) in second.extra {
        first.extra.entry(name).or_insert(value);
    }
}

/// Joins two texts with an empty line between them.
fn joined(mut before: String, after: &str) -> String {
    if !before.is_empty() && !after.is_empty() {
        before.push_str("\n\n");
    }
    before.push_str(after);
    before
}

fn parts_of(content: Content) -> Vec<Part> {
    match content {
        Content::Parts(parts) => parts,
        Content::Text(text) => {
            vec![Part::text(text)]
        }
        Content::Absent(()) => Vec::new(),
    }
}
