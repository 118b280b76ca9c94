//! From the prompts of requests to token ids. A prompt that can never be valid, or that finds no
//! place, is refused before any work is done for it.

use serde_json::Value;
use trine_engine::SOFT;
use trine_text::{Content, Message, Part, PictureForm, PicturePrompt, Specials};

use crate::error::ApiError;
use crate::models::Lease;
use crate::request::fields::{Fields, Row, token_id};

/// A prompt of a request.
#[derive(Debug)]
pub(crate) enum Prompt {
    /// A text that is not empty.
    Text(String),
    /// Token ids, at least one; whether the model has them is not known.
    Ids(Vec<u32>),
    /// Token ids and texts, one after the other, at least one of each.
    Mixed(Vec<PromptPiece>),
}

/// A part of a prompt that has texts and token ids.
#[derive(Debug)]
pub(crate) enum PromptPiece {
    /// A text, which may be empty.
    Text(String),
    /// A token id.
    Id(u32),
}

/// Reads prompts: a text, a list of texts, a list of token ids and texts, or a list of such lists
/// and texts, at most `most` of them. A list in which a number stands is one prompt, as in
/// llama.cpp.
///
/// # Errors
/// 400 naming the field.
pub(crate) fn read_prompts(
    fields: Fields<'_>,
    row: &Row<Value>,
    most: usize,
) -> Result<Vec<Prompt>, ApiError> {
    let param = row.name;
    let expected =
        "use a text, a list of texts, a list of token ids and texts, or a list of such lists";
    let wrong = |what: &str| ApiError::field(param, format!("{what}; {expected}"));
    let one = |place: &str, value: &Value| match value {
        Value::String(text) if text.is_empty() => Err(wrong(&format!("{place} is empty"))),
        Value::String(text) => Ok(Prompt::Text(text.clone())),
        Value::Array(parts) if parts.is_empty() => Err(wrong(&format!("{place} is empty"))),
        Value::Array(parts) => read_parts(parts).ok_or_else(|| {
            wrong(&format!("{place} holds something else than token ids and texts"))
        }),
        _ => Err(wrong(&format!("{place} is neither a text nor a list"))),
    };
    let value = fields.get(row).ok_or_else(|| wrong(&format!("{param} is missing")))?;
    match value {
        Value::Array(items)
            if !items.iter().any(Value::is_number)
                && items.iter().any(|item| item.is_string() || item.is_array()) =>
        {
            if items.len() > most {
                return Err(wrong(&format!("there are more than {most} in {param}")));
            }
            let items = items.iter().enumerate();
            items.map(|(index, item)| one(&format!("{param}[{index}]"), item)).collect()
        }
        value => Ok(vec![one(param, value)?]),
    }
}

/// Reads the parts of one prompt; `None` if one is neither a token id nor a text.
fn read_parts(parts: &[Value]) -> Option<Prompt> {
    if !parts.iter().any(Value::is_string) {
        return parts.iter().map(token_id).collect::<Option<_>>().map(Prompt::Ids);
    }
    let piece = |part: &Value| match part {
        Value::String(text) => Some(PromptPiece::Text(text.clone())),
        part => token_id(part).map(PromptPiece::Id),
    };
    let pieces: Vec<PromptPiece> = parts.iter().map(piece).collect::<Option<_>>()?;
    let has_ids = pieces.iter().any(|piece| matches!(piece, PromptPiece::Id(_)));
    has_ids.then_some(Prompt::Mixed(pieces))
}

impl Prompt {
    /// Returns the token ids. With `adds_bos` a prompt that begins with a text begins as the
    /// model's prompts do.
    ///
    /// # Errors
    /// If the tokenizer fails.
    pub(crate) fn ids(&self, lease: &Lease, adds_bos: bool) -> Result<Vec<u32>, ApiError> {
        let encode = |text: &str, is_first: bool| match adds_bos && is_first {
            true => lease.tokenizer.encode_prompt(text, Specials::Parse),
            false => lease.tokenizer.encode(text, Specials::Parse),
        };
        match self {
            Self::Text(text) => Ok(encode(text, true)?),
            Self::Ids(ids) => Ok(ids.clone()),
            Self::Mixed(pieces) => {
                let mut ids = Vec::new();
                for (index, piece) in pieces.iter().enumerate() {
                    match piece {
                        PromptPiece::Id(id) => ids.push(*id),
                        PromptPiece::Text(text) => ids.extend(encode(text, index == 0)?),
                    }
                }
                Ok(ids)
            }
        }
    }

    /// Returns the fewest tokens that the prompt can have.
    ///
    /// # Errors
    /// 400 if they are more than the context, and for token ids that the model does not have.
    pub(crate) fn check(&self, lease: &Lease) -> Result<usize, ApiError> {
        match self {
            Self::Text(text) => check_text(lease, text, Specials::Parse),
            Self::Ids(ids) => {
                lease.check_prompt(ids)?;
                Ok(ids.len())
            }
            Self::Mixed(pieces) => {
                let (mut ids, mut least) = (Vec::new(), 0);
                for piece in pieces {
                    match piece {
                        PromptPiece::Text(text) => {
                            least += lease.tokenizer.tokens_least(text, Specials::Parse);
                        }
                        PromptPiece::Id(id) => ids.push(*id),
                    }
                }
                lease.check_prompt(&ids)?;
                lease.check_least(least + ids.len())?;
                Ok(least + ids.len())
            }
        }
    }
}

/// Refuses a text that has more tokens than the context in any case. Returns the fewest that it can
/// have.
///
/// # Errors
/// 400 as for a prompt whose tokens were counted.
pub(crate) fn check_text(lease: &Lease, text: &str, specials: Specials) -> Result<usize, ApiError> {
    let least = lease.tokenizer.tokens_least(text, specials);
    lease.check_least(least)?;
    Ok(least)
}

/// Returns the token ids of a prompt that begins as the model's prompts do.
///
/// # Errors
/// 400 if it is longer than the context.
pub(crate) fn encode(lease: &Lease, text: &str, specials: Specials) -> Result<Vec<u32>, ApiError> {
    check_text(lease, text, specials)?;
    let ids = lease.tokenizer.encode_prompt(text, specials)?;
    lease.check_prompt(&ids)?;
    Ok(ids)
}

/// Returns the token ids of a rendered conversation, with [`SOFT`] for each soft token of its
/// pictures.
///
/// # Errors
/// 400 if the text does not have a mark for each picture.
pub(crate) fn cut(
    lease: &Lease,
    text: &str,
    soft_tokens: &[usize],
) -> Result<PicturePrompt, ApiError> {
    let (tokenizer, specials) = (&lease.tokenizer, Specials::ParseGuarded);
    if soft_tokens.is_empty() {
        let ids = tokenizer.encode_prompt(text, specials)?;
        return Ok(PicturePrompt { ids, starts: Vec::new() });
    }
    let form = PictureForm::of(tokenizer).ok_or_else(|| {
        let remedy =
            "the model's vocabulary has no tokens for images; use another copy of the model";
        ApiError::unsupported("messages", remedy)
    })?;
    Ok(form.encode_prompt(tokenizer, text, specials, soft_tokens, SOFT)?)
}

/// Does the same for a prompt that the model is to run.
///
/// # Errors
/// 400 too if it is longer than the context.
pub(crate) fn encode_conversation(
    lease: &Lease,
    text: &str,
    soft_tokens: &[usize],
) -> Result<PicturePrompt, ApiError> {
    let least = lease.tokenizer.tokens_least(text, Specials::ParseGuarded);
    // A mark may be counted in the text, and is not in the prompt.
    lease
        .check_least(least.saturating_sub(soft_tokens.len()) + soft_tokens.iter().sum::<usize>())?;
    let prompt = cut(lease, text, soft_tokens)?;
    if soft_tokens.is_empty() {
        lease.check_prompt(&prompt.ids)?;
    } else {
        let words = |id: &u32| if *id == SOFT { 0 } else { *id };
        lease.check_prompt(&prompt.ids.iter().map(words).collect::<Vec<u32>>())?;
    }
    Ok(prompt)
}

/// Refuses a conversation whose words and soft tokens are too many in any case, before a template
/// is run on them.
/// The words of assistants and tools do not count: templates leave some of them out, and the space
/// around the rest.
///
/// # Errors
/// 400 as for a prompt whose tokens were counted.
pub(crate) fn check_messages(
    lease: &Lease,
    messages: &[Message],
    soft_tokens: usize,
) -> Result<(), ApiError> {
    let is_kept = |message: &&Message| matches!(&*message.role, "system" | "user");
    let words: usize =
        messages.iter().filter(is_kept).map(|message| tokens_least(lease, message)).sum();
    lease.check_least(words + soft_tokens)
}

/// Returns the fewest tokens that the words of a message can have in a prompt that shows them.
pub(crate) fn tokens_least(lease: &Lease, message: &Message) -> usize {
    // A token may reach from one text into the next one: each may have one token less than its own
    // count.
    let least =
        |text: &str| lease.tokenizer.tokens_least(text.trim(), Specials::AsText).saturating_sub(1);
    let of_part = |part: &Part| part.text.as_deref().map_or(0, least);
    match &message.content {
        Content::Text(text) => least(text),
        Content::Parts(parts) => parts.iter().map(of_part).sum(),
        Content::Absent(()) => 0,
    }
}
