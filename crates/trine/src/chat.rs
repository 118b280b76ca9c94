//! A conversation: its messages, and how they become a prompt that fits in the context.

pub(crate) mod attachments;
pub(crate) mod converse;
pub(crate) mod generate;
pub(crate) mod line_source;
pub(crate) mod notes;
pub(crate) mod parameters;
pub(crate) mod prompt;
pub(crate) mod saved;
pub(crate) mod settable;
pub(crate) mod slash;

use anyhow::{Result, anyhow};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};
use trine_backend::SOFT;
use trine_engine::{PictureHandle, PromptPicture};
use trine_session::vision::Vision;
use trine_session::vocabulary::TextSide;
use trine_text::{Content, Message, Part, PictureForm, Specials};

use crate::chat::attachments::TurnPicture;
use crate::chat::parameters::Parameters;
use crate::failure::Interrupted;

/// The most bytes of earlier messages that are rendered. It is far more than any context can hold
/// and far less than the limit of a template.
const RENDERED_BYTES_MAX: usize = 2 << 20;
/// The most bytes of a token, which is the tokenizer's limit. A text that is longer than this times
/// the number of positions cannot fit.
const TOKEN_BYTES_MAX: usize = 1024;
/// Old messages are left out once less than the context divided by this is free for an answer.
const ANSWER_PART: usize = 8;
/// After messages are left out, the rest takes at most the context divided by this. The model has
/// to compute that rest from its beginning, so it should not happen with every message.
const KEPT_PART: usize = 2;

/// The most pictures of a chat that a model sees. Each takes memory until its turn is left out.
pub(crate) const PICTURES_MAX: usize = 64;

/// Who speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Role {
    /// The person.
    User,
    /// The model.
    Assistant,
}

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Turn {
    /// Who speaks.
    pub(crate) role: Role,
    /// The text of the message.
    pub(crate) content: String,
    /// Its pictures, which come before the text.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "or_default")]
    pub(crate) pictures: Vec<TurnPicture>,
    /// Earlier answers in place of this one.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "or_default")]
    pub(crate) earlier: Vec<String>,
    /// Fields of other programs, which are kept for them.
    #[serde(flatten)]
    pub(crate) others: Map<String, Value>,
}

impl Turn {
    /// Creates a message.
    pub(crate) fn new(role: Role, content: impl Into<String>) -> Self {
        let (pictures, earlier, others) = (Vec::new(), Vec::new(), Map::new());
        Self { role, content: content.into(), pictures, earlier, others }
    }

    /// Returns the pictures that the model sees, in order.
    fn handles(&self) -> impl Iterator<Item = &PictureHandle> {
        self.pictures.iter().filter_map(|picture| picture.handle.as_ref())
    }

    /// Returns it as a template takes it.
    fn message(&self) -> Message {
        let role = match self.role {
            Role::User => "user",
            Role::Assistant => "assistant",
        };
        let mut parts: Vec<Part> = self.handles().map(|_| Part::picture()).collect();
        if parts.is_empty() {
            return Message::new(role, self.content.as_str());
        }
        if !self.content.is_empty() {
            parts.push(Part::text(self.content.as_str()));
        }
        Message::new(role, Content::Parts(parts))
    }
}

/// Deserialises a field so that `null` counts as absent.
pub(crate) fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    field: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(field)?.unwrap_or_default())
}

/// A conversation.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Conversation {
    /// The title, if someone gave one.
    pub(crate) title: Option<String>,
    /// Instructions before the first turn.
    pub(crate) system: Option<String>,
    /// The parameters of answers that someone chose.
    pub(crate) parameters: Parameters,
    /// The turns. They alternate, the person's first.
    pub(crate) turns: Vec<Turn>,
    /// Fields of other programs, which are kept for them.
    pub(crate) others: Map<String, Value>,
    /// The number of turns at the beginning, always even, that prompts leave out for lack of room.
    pub(crate) left_out: usize,
}

/// What a model reads: tokens and pictures.
#[derive(Debug, Default)]
pub(crate) struct PromptInput {
    /// The tokens, with [`SOFT`] for each row of a picture.
    pub(crate) tokens: Vec<u32>,
    /// The pictures, in order.
    pub(crate) pictures: Vec<PromptPicture>,
}

/// A prompt for the next answer.
#[derive(Debug)]
pub(crate) struct ChatPrompt {
    /// What the model reads.
    pub(crate) rows: PromptInput,
    /// The number of messages that this prompt leaves out and the one before it did not.
    pub(crate) newly_left_out: usize,
}

/// The error for a prompt that does not fit, even with all earlier turns left out.
#[derive(Debug)]
pub(crate) struct TooLong {
    /// The number of tokens of the prompt.
    pub(crate) tokens: usize,
    /// Whether the prompt may have more tokens than that.
    pub(crate) at_least: bool,
    /// Whether the system text is among the tokens.
    pub(crate) has_system: bool,
}

impl std::fmt::Display for TooLong {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let least = if self.at_least { "at least " } else { "" };
        let what = if self.has_system { "the message with the system text" } else { "the message" };
        write!(f, "{what} has {least}{} tokens", self.tokens)
    }
}

impl std::error::Error for TooLong {}

/// Refuses a text that cannot fit, before any other work on it.
///
/// # Errors
/// Returns [`TooLong`] if the text cannot fit into `context` tokens.
pub(crate) fn check_bytes(text: &str, context: usize) -> Result<(), TooLong> {
    let tokens = text.len() / TOKEN_BYTES_MAX;
    match tokens > context {
        true => Err(TooLong { tokens, at_least: true, has_system: false }),
        false => Ok(()),
    }
}

impl Conversation {
    /// Returns the conversation with a question about pictures appended.
    pub(crate) fn asking(mut self, content: String, pictures: Vec<TurnPicture>) -> Self {
        self.turns.push(Turn { pictures, ..Turn::new(Role::User, content) });
        self
    }

    /// Returns the number of pictures that prompts have, or may have.
    pub(crate) fn pictures(&self) -> usize {
        let pictures = self.turns[self.left_out..].iter().flat_map(|turn| &turn.pictures);
        pictures.filter(|picture| !picture.is_lost).count()
    }

    /// Loses all pictures but the `most` newest ones. Returns how many that are.
    pub(crate) fn keep_pictures(&mut self, most: usize) -> usize {
        let pictures = self.turns.iter_mut().flat_map(|turn| &mut turn.pictures);
        let old = pictures.rev().filter(|picture| !picture.is_lost).skip(most);
        old.map(|picture| (picture.handle, picture.is_lost) = (None, true)).count()
    }

    /// Prepares the conversation for another model, which may have room for other turns and reads
    /// the files of images itself.
    pub(crate) fn forget_model(&mut self) {
        self.left_out = 0;
        self.turns.iter_mut().flat_map(|turn| &mut turn.pictures).for_each(TurnPicture::forget);
    }

    /// Reads the files of pictures that the next prompt may have, of at most `context` tokens, from
    /// the newest turn on. Pictures of turns that cannot fit any more are not read. Returns the
    /// number of those that are lost.
    ///
    /// # Errors
    /// Returns the error of `check`, which is called before each file; the rest is read the next
    /// time.
    pub(crate) fn find_pictures(
        &mut self,
        vision: Option<&Vision>,
        context: usize,
        check: impl Fn() -> Result<(), Interrupted>,
    ) -> Result<usize, Interrupted> {
        let (mut rows, mut lost) = (0, 0);
        let turns = self.turns[self.left_out..].iter_mut().rev();
        for picture in turns.flat_map(|turn| &mut turn.pictures) {
            if picture.is_unread() {
                check()?;
                lost += usize::from(!picture.find(vision));
            }
            rows += picture.handle.as_ref().map_or(0, PictureHandle::soft_tokens);
            // `prompt` leaves out this turn and those before it.
            if rows > context {
                break;
            }
        }
        Ok(lost)
    }

    /// Returns the prompt, of at most `context` tokens, that asks for the next answer. If there is
    /// no room for all turns and an answer of up to `answer` tokens, it leaves out the oldest turns
    /// in this and all later prompts: as many as needed to leave half of the context free, but
    /// never the last one.
    ///
    /// # Errors
    /// Returns [`TooLong`] if the last turn does not fit; nothing is left out then. Returns another
    /// error if the model has no chat template or the template refuses the conversation.
    pub(crate) fn prompt(
        &mut self,
        text: &TextSide,
        context: usize,
        answer: usize,
    ) -> Result<ChatPrompt> {
        let last = self.turns.len().saturating_sub(1);
        if let Some(turn) = self.turns.last() {
            // The template takes less text than the tokenizer, so without this check the error
            // would blame the template.
            check_bytes(&turn.content, context)?;
            let tokens = text.tokenizer.encode(&turn.content, Specials::AsText)?.len();
            if tokens > context {
                return Err(TooLong { tokens, at_least: false, has_system: false }.into());
            }
        }
        let before = self.left_out;
        let mut first = before;
        let mut bytes: usize = self.turns[first..].iter().map(|turn| turn.content.len()).sum();
        while first + 1 < last && bytes > RENDERED_BYTES_MAX {
            bytes -= self.turns[first].content.len() + self.turns[first + 1].content.len();
            first += 2;
        }
        let spare = answer.min(context / ANSWER_PART);
        let mut rows = self.prompt_from(first, text)?;
        if rows.tokens.len() + spare > context && first < last {
            // Finds the fewest turns whose omission leaves half of the context free. It bisects,
            // because every count runs the tokenizer.
            let (mut least, mut most) = (first / 2 + 1, last / 2);
            while least < most {
                let middle = least.midpoint(most);
                let length = self.prompt_from(2 * middle, text)?.tokens.len();
                if length <= context / KEPT_PART { most = middle } else { least = middle + 1 }
            }
            first = 2 * most;
            rows = self.prompt_from(first, text)?;
        }
        if rows.tokens.len() > context {
            let has_system = self.system.is_some();
            return Err(TooLong { tokens: rows.tokens.len(), at_least: false, has_system }.into());
        }
        self.leave_out(first);
        Ok(ChatPrompt { rows, newly_left_out: first - before })
    }

    /// Leaves the turns before index `first` out of this and all later prompts.
    fn leave_out(&mut self, first: usize) {
        self.left_out = first;
        // Prepared pictures take megabytes.
        let gone = self.turns[..first].iter_mut().flat_map(|turn| &mut turn.pictures);
        gone.for_each(|picture| picture.handle = None);
    }

    /// Returns the prompt of the turns from index `first` on.
    fn prompt_from(&self, first: usize, text: &TextSide) -> Result<PromptInput> {
        let tokenizer = &text.tokenizer;
        // What people and the model said is guarded, so that its words never become control tokens.
        let system = self.system.iter().map(|text| Message::new("system", text.as_str()));
        let turns = &self.turns[first..];
        let messages = system.chain(turns.iter().map(Turn::message));
        let rendered = text.rendered(messages.collect())?;
        let handles: Vec<&PictureHandle> = turns.iter().flat_map(Turn::handles).collect();
        if handles.is_empty() {
            let tokens = tokenizer.encode_prompt(&rendered, Specials::ParseGuarded)?;
            return Ok(PromptInput { tokens, pictures: Vec::new() });
        }
        let form = PictureForm::of(tokenizer)
            .ok_or_else(|| anyhow!("the model's vocabulary has no marks of images"))?;
        let lengths: Vec<usize> = handles.iter().map(|handle| handle.soft_tokens()).collect();
        let (specials, soft) = (Specials::ParseGuarded, SOFT);
        let prompt = form.encode_prompt(tokenizer, &rendered, specials, &lengths, soft)?;
        let pictures = prompt.starts.into_iter().zip(handles);
        let pictures = pictures.map(|(at, handle)| PromptPicture { at, handle: handle.clone() });
        Ok(PromptInput { tokens: prompt.ids, pictures: pictures.collect() })
    }
}

#[cfg(test)]
mod tests {
    use trine_backend::{BackendError, Memory};
    use trine_engine::{RunsTower, Tower, TowerInput};
    use trine_pictures::Preparation;
    use trine_weights::Checkpoint;

    use super::*;
    use crate::testing;
    use trine_session::embedded::Embedded;
    use trine_session::vocabulary::Thinking;

    const CONTEXT: usize = 400;

    fn text() -> TextSide {
        let checkpoint = Checkpoint::from_static(Embedded::Demo.bytes()).unwrap();
        TextSide::read(&checkpoint, &[], true, None).unwrap()
    }

    fn ask(conversation: &mut Conversation, words: usize, text: &TextSide) -> Result<ChatPrompt> {
        conversation.turns.push(Turn::new(Role::User, "word ".repeat(words)));
        conversation.prompt(text, CONTEXT, usize::MAX)
    }

    struct Blind;

    impl RunsTower for Blind {
        fn rows(&mut self, _: &TowerInput) -> Result<Vec<f32>, BackendError> {
            Err(BackendError::Stopped)
        }
    }

    /// A chat of many turns about one file, as it is loaded.
    fn loaded(turns: usize) -> (Conversation, Vision) {
        let vision = Vision {
            tower: Tower::start(Blind, [0; 32], 0).unwrap(),
            preparation: Preparation::square(56, 14, 2, [0.5; 3], [0.5; 3]).unwrap(),
            device: String::new(),
            memory: Memory::default(),
            is_on_gpu: false,
        };
        let golden =
            concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/goldens/gemma3-vision/a.png");
        let digest = vision
            .look(golden.as_ref(), trine_session::picture_file::Input::Refused)
            .unwrap()
            .digest;
        let picture = serde_json::json!({"path": golden, "digest": digest});
        let picture: TurnPicture = serde_json::from_value(picture).unwrap();
        let question =
            Turn { pictures: vec![picture.clone(), picture], ..Turn::new(Role::User, "What?") };
        let turns = (0..turns).flat_map(|_| [question.clone(), Turn::new(Role::Assistant, "A.")]);
        (Conversation { turns: turns.collect(), ..Conversation::default() }, vision)
    }

    fn seen(conversation: &Conversation) -> usize {
        conversation.turns.iter().flat_map(Turn::handles).count()
    }

    #[test]
    fn pictures_are_read_for_the_turns_that_fit() {
        let (mut conversation, vision) = loaded(20);
        let watch = || Ok(());
        // Each has 4 rows: the sixth one is too many for 20.
        assert_eq!(conversation.find_pictures(Some(&vision), 20, watch).unwrap(), 0);
        assert_eq!((seen(&conversation), conversation.pictures()), (6, 40));
        assert_eq!(conversation.find_pictures(Some(&vision), 30, watch).unwrap(), 0);
        assert_eq!(seen(&conversation), 8);
        conversation.left_out = 30;
        assert_eq!(conversation.pictures(), 10);
        assert_eq!(conversation.find_pictures(None, 2000, watch).unwrap(), 2);
        assert_eq!(seen(&conversation), 8);
    }

    #[test]
    fn reading_pictures_can_be_interrupted() {
        let (mut conversation, vision) = loaded(20);
        let left = std::cell::Cell::new(3);
        let check = || {
            left.set(left.get() - 1);
            if left.get() == 0 { Err(Interrupted) } else { Ok(()) }
        };
        assert!(conversation.find_pictures(Some(&vision), 1 << 20, check).is_err());
        assert_eq!((seen(&conversation), conversation.pictures()), (2, 40));
    }

    #[test]
    fn turns_that_are_left_out_hold_no_pictures() {
        let (mut conversation, vision) = loaded(5);
        conversation.find_pictures(Some(&vision), 1 << 20, || Ok(())).unwrap();
        assert_eq!(seen(&conversation), 10);
        conversation.leave_out(6);
        assert_eq!((seen(&conversation), conversation.pictures()), (4, 4));
    }

    #[test]
    fn the_newest_pictures_are_kept() {
        let (mut conversation, _) = loaded(100);
        assert_eq!(conversation.keep_pictures(PICTURES_MAX), 136);
        assert_eq!(conversation.pictures(), PICTURES_MAX);
        assert!(conversation.turns[134].pictures[0].is_lost);
        assert!(!conversation.turns[136].pictures[0].is_lost);
    }

    #[test]
    fn a_model_that_can_think_is_told_whether_to() {
        let text = |on| testing::gemma4(Thinking { on, budget: None });
        for (on, opening, ending) in [
            (Some(true), "<bos><|turn>system\n<|think|>\n<turn|>\n<|turn>user\n", "<|turn>model\n"),
            (Some(false), "<bos><|turn>user\n", "<|turn>model\n<|channel>thought\n<channel|>"),
            (None, "<bos><|turn>user\n", "<|turn>model\n<|channel>thought\n<channel|>"),
        ] {
            let text = text(on);
            let prompt = ask(&mut Conversation::default(), 1, &text).unwrap();
            let prompt = text.tokenizer.decode(&prompt.rows.tokens, false);
            assert!(prompt.starts_with(opening) && prompt.ends_with(ending), "{on:?}: {prompt}");
        }
    }

    #[test]
    fn the_oldest_turns_leave_several_at_once() {
        let text = text();
        let mut conversation =
            Conversation { system: Some("Be brief.".to_owned()), ..Conversation::default() };
        let (mut times, mut messages) = (0, 0);
        for _ in 0..40 {
            let before = conversation.left_out;
            let prompt = ask(&mut conversation, 10, &text).unwrap();
            assert!(prompt.rows.tokens.len() + CONTEXT / ANSWER_PART <= CONTEXT);
            assert_eq!(conversation.left_out, before + prompt.newly_left_out);
            assert!(conversation.left_out.is_multiple_of(2));
            if prompt.newly_left_out > 0 {
                assert!(prompt.rows.tokens.len() <= CONTEXT / KEPT_PART);
                times += 1;
                messages += prompt.newly_left_out;
            }
            // The system text and the newest message stay.
            let rendered = text.tokenizer.decode(&prompt.rows.tokens, false);
            assert!(rendered.contains("Be brief.") && rendered.contains("word word"));
            conversation.turns.push(Turn::new(Role::Assistant, "answer ".repeat(10)));
        }
        assert!(times >= 2 && messages >= 6 * times, "{messages} messages in {times} times");
        assert_eq!(conversation.turns.len(), 80, "nothing is forgotten");
    }

    #[test]
    fn a_message_without_room_is_refused_and_changes_nothing() {
        let text = text();
        let mut conversation = Conversation::default();
        ask(&mut conversation, 10, &text).unwrap();
        conversation.turns.push(Turn::new(Role::Assistant, "answer"));
        for (words, at_least) in [(CONTEXT, false), (20_000_000, true)] {
            let error = ask(&mut conversation, words, &text).unwrap_err();
            let too_long: &TooLong = error.downcast_ref().unwrap();
            assert!(too_long.tokens > CONTEXT && too_long.at_least == at_least, "{too_long}");
            conversation.turns.pop();
            assert_eq!(conversation.left_out, 0);
        }
        // There is room for the message, but little for an answer.
        let prompt = ask(&mut conversation, CONTEXT * 9 / 10, &text).unwrap();
        assert_eq!(prompt.newly_left_out, 2);
    }

    #[test]
    fn an_answer_that_filled_the_context_leaves_with_its_question() {
        let text = text();
        let mut conversation = Conversation::default();
        ask(&mut conversation, 10, &text).unwrap();
        conversation.turns.push(Turn::new(Role::Assistant, "answer ".repeat(CONTEXT)));
        assert_eq!(ask(&mut conversation, 10, &text).unwrap().newly_left_out, 2);
    }

    #[test]
    fn a_file_of_many_megabytes_is_cut_before_it_is_rendered() {
        let text = text();
        let mut conversation = Conversation::default();
        for _ in 0..40 {
            conversation.turns.push(Turn::new(Role::User, "word ".repeat(20_000)));
            conversation.turns.push(Turn::new(Role::Assistant, "answer ".repeat(20_000)));
        }
        assert_eq!(ask(&mut conversation, 10, &text).unwrap().newly_left_out, 80);
    }
}
