//! Values that say themselves that they are there.
//!
//! A dispatch of one row usually reads only what the dispatch before it wrote. Between them a
//! counter costs a row of waits: the writers' fence, their count, the readers' look at the count, a
//! barrier, and then the loads of the values. Here the readers look at the values instead: the
//! lowest bit of each mantissa is 1, in memory that is 0 before the step. A value changes by at
//! most 2^-23 of itself, or by 1.4e-45; an infinity becomes NaN, as it does in the operand after
//! it.
//!
//! ```text
//! link's address | 1  takes: looks at the values of the dispatch before, not at its counter
//!                | 2  looks at the residual stream too
//!                | 4  gives: its values have the bit; it neither fences nor counts
//! ```
//!
//! Only whole words have to arrive. Nothing orders them, so whoever reads what such a dispatch
//! wrote in the same chain has to look for the bit, and nothing that is read there may be written
//! again. A dispatch takes values if
//!
//! - all that the dispatch before hands it lies in memory that the chain writes once, and its
//!   workgroups together look at all of that;
//! - it writes nothing that the dispatch before reads or writes, and not both of them have
//!   workgroups that look at a part only. Each workgroup of a product looks at a whole row, so
//!   where one is past its wait, all dispatches before the last one have made their last access:
//!   each workgroup of a dispatch that gives values gives its last one after all that it reads;
//! - it looks for the bit in all else that it reads of this chain, because it loads that before it
//!   waits.
//!
//! A dispatch gives values if the next one takes them, and if every reader of anything else that it
//! writes looks for the bit too.

use super::places::{LINK_WORDS, Placed};
use crate::dispatch::{Dispatch, Hands, Span};

#[cfg(test)]
mod tests;

/// HANDED_TAKES of the shaders.
const TAKES: u64 = 1;
/// HANDED_RESIDUAL of the shaders.
const RESIDUAL: u64 = 2;
/// HANDED_GIVES of the shaders.
pub(super) const GIVES: u64 = 4;

/// A dispatch that touches what an earlier one of its chain wrote, both by their places.
struct Need {
    writer: usize,
    reader: usize,
    use_: Use,
}

/// What a dispatch does with what an earlier one of its chain wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    /// If it takes values, it looks for the bit there: the dispatch before it gives them.
    Taken,
    /// The same with the residual stream.
    Residual,
    /// It reads as it is.
    Read,
    /// It writes again.
    Write,
}

/// Returns the flags of the links of dispatches in chains. In `fresh` they write each word at most
/// once.
pub(super) fn flags(dispatches: &[Dispatch], placed: &[Placed], fresh: Span) -> Vec<u64> {
    let at = |place: usize| &dispatches[placed[place].index];
    let link = |place: usize| placed.get(place).map(|placed| placed.link);
    // Dispatches that share a link have several predecessors or successors.
    let is_next = |place: usize| {
        let (before, own) = (placed[place - 1], placed[place]);
        before.first == own.first
            && own.link == before.link + LINK_WORDS
            && link(place + 1) != Some(own.link)
            && (place < 2 || link(place - 2) != Some(before.link))
    };
    // One more, which takes nothing: the last one gives nothing.
    let mut takes: Vec<bool> = (0..=placed.len())
        .map(|place| {
            let has_next = (1..placed.len()).contains(&place) && is_next(place);
            has_next && fits(at(place - 1), at(place), fresh)
        })
        .collect();
    let needs = needs(dispatches, placed);
    loop {
        let looks_at_part = |place: usize| {
            takes[place] && at(place).hands.as_ref().is_some_and(|hands| hands.is_split)
        };
        let is_early = |place: &usize| looks_at_part(place - 1) && looks_at_part(*place);
        let mut broken: Vec<usize> = (1..placed.len()).filter(is_early).collect();
        for &Need { writer, reader, use_ } in &needs {
            let (gives, taken) = (takes[writer + 1], takes[reader]);
            let is_looked_at = taken && matches!(use_, Use::Taken | Use::Residual);
            if gives && !is_looked_at {
                broken.push(writer + 1);
            }
            if taken && use_ != Use::Write && !(gives && is_looked_at) {
                broken.push(reader);
            }
        }
        if broken.is_empty() {
            break;
        }
        broken.into_iter().for_each(|place| takes[place] = false);
    }
    let mut flags: Vec<u64> = (0..placed.len())
        .map(|place| {
            let given = if takes[place + 1] { GIVES } else { 0 };
            given | if takes[place] { TAKES } else { 0 }
        })
        .collect();
    for need in needs {
        if need.use_ == Use::Residual && takes[need.reader] {
            flags[need.reader] |= RESIDUAL;
        }
    }
    flags
}

/// Returns whether `next` can look at the values of the dispatch before it.
fn fits(before: &Dispatch, next: &Dispatch, fresh: Span) -> bool {
    let (Some(giver), Some(taker)) = (&before.hands, &next.hands) else { return false };
    let is_fresh = |span: &Span| fresh.contains(*span);
    let is_written_again = |written: &Span| {
        before.reads.iter().chain(&before.writes).any(|touched| touched.overlaps(*written))
    };
    !taker.takes.is_empty()
        && taker.takes.iter().all(|span| giver.gives.contains(span))
        && giver.gives.iter().all(|span| taker.takes.contains(span))
        && giver.gives.iter().chain(&giver.updated).all(is_fresh)
        && !next.writes.iter().any(is_written_again)
}

/// Returns which dispatches read or write what earlier ones of their chains wrote.
fn needs(dispatches: &[Dispatch], placed: &[Placed]) -> Vec<Need> {
    let mut needs = Vec::new();
    for (reader, of_reader) in placed.iter().enumerate() {
        let later = &dispatches[of_reader.index];
        let of_chain = placed[..reader].iter().enumerate().rev();
        for (writer, of_writer) in
            of_chain.take_while(|(_, placed)| placed.first == of_reader.first)
        {
            let earlier = &dispatches[of_writer.index];
            let (giver, taker) = (earlier.hands.as_ref(), later.hands.as_ref());
            let shares = |hands: Option<&Hands>, span: &Span| {
                hands.is_some_and(|hands| hands.shared.contains(span))
            };
            // What it leaves in shared memory is in place: others of its kind may read it, and
            // everyone may write there.
            let meets = |span: &Span, is_free: bool| {
                let met = |written: &&Span| written.overlaps(*span);
                let mut met = earlier.writes.iter().filter(met);
                met.any(|written| !(is_free && shares(giver, written)))
            };
            let use_of = |span: &Span| match (giver, taker) {
                (Some(_), Some(taker)) if writer + 1 == reader && taker.takes.contains(span) => {
                    Use::Taken
                }
                (Some(giver), Some(taker))
                    if giver.updated == Some(*span) && taker.residual == Some(*span) =>
                {
                    Use::Residual
                }
                _ => Use::Read,
            };
            let reads = later.reads.iter().filter(|span| meets(span, shares(taker, span)));
            let reads = reads.map(use_of);
            let writes = later.writes.iter().filter(|span| meets(span, true)).map(|_| Use::Write);
            needs.extend(reads.chain(writes).map(|use_| Need { writer, reader, use_ }));
        }
    }
    needs
}
