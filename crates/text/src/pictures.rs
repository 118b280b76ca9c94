//! How families of models write pictures in prompts.
//!
//! A chat template writes one mark for a picture. What the model reads in its place is a run of
//! soft tokens between two control tokens. Only the picture decides its length.

use crate::error::TextError;
use crate::tokenizer::{Specials, Tokenizer};

/// How a model's family writes a picture in a prompt.
///
/// | family | the template writes | the prompt has |
/// |---|---|---|
/// | Gemma 3 | `<start_of_image>` | two line breaks, `<start_of_image>`, soft tokens, `<end_of_image>`, two line breaks |
/// | Gemma 4 | `<|image|>` | `<|image>`, soft tokens, `<image|>` |
///
/// Both forms are those of the processors in transformers 5.23 (`processing_gemma3.py`,
/// `processing_gemma4.py`). Soft tokens have no spelling here: in some files of Gemma 3 their id
/// lies outside of the vocabulary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PictureForm {
    mark: &'static str,
    /// What stands in the place of a mark when the text is cut into tokens.
    written: &'static str,
    /// The control tokens around the soft tokens.
    around: [u32; 2],
}

/// A prompt in which pictures have their places.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PicturePrompt {
    /// The token ids, with the soft tokens of all pictures.
    pub ids: Vec<u32>,
    /// The place of the first soft token of each picture in `ids`, in order.
    pub starts: Vec<usize>,
}

/// The forms, with the control tokens around soft tokens.
const FORMS: [(&str, &str, [&str; 2]); 2] = [
    ("<|image|>", "<|image><image|>", ["<|image>", "<image|>"]),
    (
        "<start_of_image>",
        "\n\n<start_of_image><end_of_image>\n\n",
        ["<start_of_image>", "<end_of_image>"],
    ),
];

/// The spellings of soft tokens, where a vocabulary has them.
const SOFT_TOKENS: [&str; 2] = ["<|image|>", "<image_soft_token>"];

impl PictureForm {
    /// Returns the form that a vocabulary has the control tokens of, or `None` if it has none.
    pub fn of(tokenizer: &Tokenizer) -> Option<Self> {
        let control =
            |spelled: &str| tokenizer.token_to_id(spelled).filter(|&id| tokenizer.is_special(id));
        FORMS.iter().find_map(|&(mark, written, [begin, end])| {
            control(mark)?;
            Some(Self { mark, written, around: [control(begin)?, control(end)?] })
        })
    }

    /// Returns the mark that a template writes in the place of a picture.
    pub fn mark(&self) -> &'static str {
        self.mark
    }

    /// Returns the id that the family gives soft tokens, if the vocabulary has it.
    pub fn soft_id(&self, tokenizer: &Tokenizer) -> Option<u32> {
        SOFT_TOKENS.iter().find_map(|spelled| tokenizer.token_to_id(spelled))
    }

    /// Returns the token ids of a rendered conversation with pictures: those of
    /// [`Tokenizer::encode_prompt`], where the picture of the mark `i` has `lengths[i]` times the
    /// id `soft`.
    ///
    /// The text around a mark is cut into tokens together with the line breaks of the form: they
    /// join others beside them.
    ///
    /// # Errors
    /// [`TextError::Pictures`] if the text does not have one mark for each length, and the errors
    /// of [`Tokenizer::encode_prompt`]. Marks in text that [`Tokenizer::guard`] has marked as
    /// untrusted are words.
    pub fn encode_prompt(
        &self,
        tokenizer: &Tokenizer,
        text: &str,
        specials: Specials,
        lengths: &[usize],
        soft: u32,
    ) -> Result<PicturePrompt, TextError> {
        let (expanded, shown) = self.expanded(text, specials);
        let wrong = |shown| TextError::Pictures { shown, pictures: lengths.len(), mark: self.mark };
        if shown != lengths.len() {
            return Err(wrong(shown));
        }
        let encoded = tokenizer.encode_prompt(&expanded, specials)?;
        let soft_tokens: usize = lengths.iter().sum();
        let mut ids = Vec::with_capacity(encoded.len() + soft_tokens);
        let (mut starts, mut left) = (Vec::with_capacity(lengths.len()), lengths.iter());
        for (index, &id) in encoded.iter().enumerate() {
            ids.push(id);
            if encoded[index..].starts_with(&self.around) {
                let length = *left.next().ok_or_else(|| wrong(shown + 1))?;
                starts.push(ids.len());
                ids.extend(std::iter::repeat_n(soft, length));
            }
        }
        // The tokenizer reads a mark wherever it was found.
        if starts.len() == lengths.len() {
            Ok(PicturePrompt { ids, starts })
        } else {
            Err(wrong(starts.len()))
        }
    }

    /// Returns the text with what stands for marks, and the number of marks.
    fn expanded(&self, text: &str, specials: Specials) -> (String, usize) {
        let (mut expanded, mut done, mut shown) = (String::with_capacity(text.len()), 0, 0);
        for (start, mark) in text.match_indices(self.mark) {
            let after = start + mark.len();
            let is_read = match specials {
                Specials::Parse => true,
                Specials::AsText => false,
                Specials::ParseGuarded => !Tokenizer::begins_guarded(&text[after..]),
            };
            if is_read {
                expanded.push_str(&text[done..start]);
                expanded.push_str(self.written);
                (done, shown) = (after, shown + 1);
            }
        }
        expanded.push_str(&text[done..]);
        (expanded, shown)
    }
}
