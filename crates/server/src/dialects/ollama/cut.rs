//! Prompts of `/api/generate` that are longer than the context: Ollama leaves out what is after
//! their first tokens.

use trine_text::Specials;

use crate::error::ApiError;
use crate::models::Lease;
use crate::reply::warnings::note;

/// The most tokens that words have more after a cut between them.
const CUT_TOKENS: usize = 4;

/// Returns the token ids of a text. If they are more than the context, those between the first
/// `keeps` and the end are left out, so that a quarter of the context, or `wanted` tokens, are left
/// for the answer.
///
/// # Errors
/// 400 if the text is longer than texts may be that are cut into tokens.
pub(super) fn cut_between(
    lease: &Lease,
    text: &str,
    keeps: usize,
    wanted: usize,
) -> Result<Vec<u32>, ApiError> {
    let mut ids = lease.tokenizer.encode_prompt(text, Specials::Parse)?;
    leave_out_between(&mut ids, keeps, (lease.limits().context, 0), wanted);
    lease.check_prompt(&ids)?;
    Ok(ids)
}

/// Does the same with the words of a turn, around which there are `frame` tokens.
///
/// # Errors
/// As [`cut_between`].
pub(super) fn words_between(
    lease: &Lease,
    words: &str,
    keeps: usize,
    frame: usize,
    wanted: usize,
) -> Result<String, ApiError> {
    let mut ids = lease.tokenizer.encode(words, Specials::AsText)?;
    // Where words are cut, they may have some tokens more.
    let frame = frame + CUT_TOKENS;
    leave_out_between(&mut ids, keeps, (lease.limits().context, frame), wanted);
    Ok(lease.tokenizer.decode(&ids, false))
}

/// Leaves out the ids between the first `keeps` and the end if they and `frame` others are more
/// than the context.
fn leave_out_between(
    ids: &mut Vec<u32>,
    keeps: usize,
    (context, frame): (usize, usize),
    wanted: usize,
) {
    if ids.len() + frame <= context {
        return;
    }
    let most = (context - wanted.min(context / 4)).saturating_sub(frame);
    let keeps = keeps.min(most.saturating_sub(1));
    let left_out = ids.len().saturating_sub(most);
    ids.drain(keeps..keeps + left_out);
    note(format!(
        "{left_out} tokens of the prompt were left out after the first {keeps}: it is longer than \
         the context of {context}"
    ));
}
