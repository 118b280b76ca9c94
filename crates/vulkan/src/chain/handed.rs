//! Flagged values: each says by one bit that it has been written.
//!
//! A dispatch of one row usually reads only what the dispatches before it wrote. Between them a
//! counter costs a row of waits: the writers' fence, their count, the readers' look at the count, a
//! barrier, and then the loads of the values. Here the readers look at the values instead: the
//! lowest bit of each mantissa is 1, in memory that is 0 before the step. A value changes by at
//! most 2^-23 of itself, or by 1.4e-45; an infinity becomes NaN, as it does in the operand after
//! it.
//!
//! ```text
//! link's address | 1  takes: looks at the values of the link before, not at its counter
//!                | 2  looks at the residual stream too
//!                | 4  gives: its values have the bit; it neither fences nor counts
//! ```
//!
//! Only whole words have to arrive. Nothing orders them, so each dispatch that reads what such
//! a dispatch wrote in the same chain has to look for the bit, and nothing that is read there may
//! be written again. Dispatches that share a link take or give together, since they share a
//! counter. They take values if
//!
//! - all that those of the link before hand them lies in memory that the chain writes once, and
//!   each of them looks at all of that: its workgroups together do;
//! - none of them writes anything that one of the link before reads or writes, and not both of the
//!   links have workgroups that look at a part only. Each workgroup of a product looks at a whole
//!   row, so where one is past its wait, all dispatches before the last ones have made their last
//!   access: each workgroup of a dispatch that gives values gives its last one after all that it
//!   reads;
//! - they look for the bit in all else that they read of this chain, because they load that before
//!   they wait.
//!
//! Dispatches give values if the next ones take them, and if every reader of anything else that
//! they write looks for the bit too.

use std::iter::repeat_n;

use super::places::ChainPosition;
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
    /// If it takes values, it looks for the bit there: a dispatch of the link before gives them.
    Taken,
    /// Like [`Use::Taken`], for the residual stream.
    Residual,
    /// The dispatch reads the memory as it is.
    Read,
    /// The dispatch writes the memory again.
    Write,
}

/// Returns the flags of the links of dispatches in chains. In `fresh` they write each word at most
/// once.
pub(super) fn flags(dispatches: &[Dispatch], placed: &[ChainPosition], fresh: Span) -> Vec<u64> {
    let links: Vec<&[ChainPosition]> =
        placed.chunk_by(|one, other| one.link == other.link).collect();
    let link_of: Vec<usize> =
        (0..).zip(&links).flat_map(|(link, abreast)| repeat_n(link, abreast.len())).collect();
    let dispatches_of = |link: usize| links[link].iter().map(|placed| &dispatches[placed.index]);
    let is_next = |link: usize| links[link - 1][0].first == links[link][0].first;
    // One more, which takes nothing: the last ones give nothing.
    let mut takes: Vec<bool> = (0..=links.len())
        .map(|link| {
            (1..links.len()).contains(&link)
                && is_next(link)
                && can_take(
                    &Vec::from_iter(dispatches_of(link)),
                    &Vec::from_iter(dispatches_of(link - 1)),
                    fresh,
                )
        })
        .collect();
    let needs = needs(dispatches, placed, &link_of);
    loop {
        let look_at_part = |link: usize| {
            takes[link]
                && dispatches_of(link).any(|one| one.hands.as_ref().is_some_and(|it| it.is_split))
        };
        let is_early = |link: &usize| look_at_part(link - 1) && look_at_part(*link);
        let mut broken: Vec<usize> = (1..links.len()).filter(is_early).collect();
        for &Need { writer, reader, use_ } in &needs {
            let (writer, reader) = (link_of[writer], link_of[reader]);
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
        broken.into_iter().for_each(|link| takes[link] = false);
    }
    let mut flags: Vec<u64> = link_of
        .iter()
        .map(|&link| {
            let given = if takes[link + 1] { GIVES } else { 0 };
            given | if takes[link] { TAKES } else { 0 }
        })
        .collect();
    for need in needs {
        if need.use_ == Use::Residual && takes[link_of[need.reader]] {
            flags[need.reader] |= RESIDUAL;
        }
    }
    flags
}

/// Returns whether the dispatches of a link can look at the values of those of the link before.
fn can_take<'a>(next: &[&'a Dispatch], before: &[&'a Dispatch], fresh: Span) -> bool {
    let hands = |dispatches: &[&'a Dispatch]| {
        dispatches.iter().map(|one| one.hands.as_ref()).collect::<Option<Vec<&Hands>>>()
    };
    let (Some(givers), Some(takers)) = (hands(before), hands(next)) else { return false };
    let given: Vec<Span> = givers.iter().flat_map(|giver| &giver.gives).copied().collect();
    let takes_all = |taker: &&Hands| {
        taker.takes.iter().all(|span| given.contains(span))
            && given.iter().all(|span| taker.takes.contains(span))
    };
    let is_fresh = |span: &Span| fresh.contains(*span);
    let is_written_again = |written: &Span| {
        let mut touched = before.iter().flat_map(|one| one.reads.iter().chain(&one.writes));
        touched.any(|touched| touched.overlaps(*written))
    };
    givers.iter().all(|giver| !giver.gives.is_empty())
        && takers.iter().all(takes_all)
        && given.iter().chain(givers.iter().flat_map(|giver| &giver.updated)).all(is_fresh)
        && !next.iter().flat_map(|one| &one.writes).any(is_written_again)
}

/// Returns which dispatches read or write what earlier ones of their chains wrote, given the link
/// of each place.
fn needs(dispatches: &[Dispatch], placed: &[ChainPosition], link_of: &[usize]) -> Vec<Need> {
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
                (Some(_), Some(taker))
                    if link_of[writer] + 1 == link_of[reader] && taker.takes.contains(span) =>
                {
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
