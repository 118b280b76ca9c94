use super::*;
use crate::chain::{mark, place};
use crate::dispatch::{Fill, Hands, Link, Push};
use crate::raw::pipeline::Kernel;

const FRESH: Span = Span { address: 4096, bytes: 4096 };
/// Not in `FRESH`.
const OLD: u64 = 64;

fn span(address: u64) -> Span {
    Span { address, bytes: 16 }
}

fn spans(addresses: &[u64]) -> Vec<Span> {
    addresses.iter().copied().map(span).collect()
}

/// A dispatch that can hand on what it reads and writes, and the residual stream.
fn hands(takes: &[u64], gives: &[u64], residual: Option<(u64, u64)>) -> Dispatch {
    let (residual, updated) = residual.map(|(old, new)| (span(old), span(new))).unzip();
    let hands =
        Hands { takes: spans(takes), gives: spans(gives), residual, updated, ..Hands::default() };
    Dispatch {
        label: String::new(),
        step: 0,
        kernel: Kernel::null(),
        push: Push::of(&[0_u64]),
        groups: [3, 1, 1],
        reads: hands.takes.iter().copied().chain(residual).collect(),
        writes: hands.gives.iter().copied().chain(updated).collect(),
        link: Link::Able { offset: 0, early: None, fill: Fill::Anywhere },
        hands: Some(hands),
    }
}

fn found(dispatches: &[Dispatch]) -> Vec<u64> {
    let (placed, _) = place(dispatches);
    assert_eq!(placed.len(), dispatches.len(), "all are chained");
    flags(dispatches, &placed, FRESH)
}

/// A layer: queries, attention, and three products, the first and third with two norms. The
/// values of layer `n` begin at 4096 + 512 n.
fn layers(count: u64) -> Vec<Dispatch> {
    let layer = |number: u64| {
        let [q, k, v, a, o, g, d, x, y] =
            [0, 1, 2, 3, 4, 5, 6, 7, 8].map(|value| FRESH.address + 512 * number + 32 * value);
        let (before, stream) = match number {
            // What the first layer reads was written before the chain.
            0 => (OLD, OLD + 16),
            _ => (d - 512, y - 512),
        };
        let mut attention = hands(&[q, k, v], &[a], None);
        attention.writes.extend([span(OLD + 100), span(OLD + 200 + 16 * number)]);
        attention.reads.extend([span(OLD + 100), span(OLD + 200 + 16 * number)]);
        attention.hands.as_mut().unwrap().shared.push(span(OLD + 100));
        [
            hands(&[before], &[q, k, v], Some((stream, x))),
            attention,
            hands(&[a], &[o], None),
            hands(&[o], &[g], Some((x, y))),
            hands(&[g], &[d], None),
        ]
    };
    (0..count).flat_map(layer).collect()
}

#[test]
fn layers_hand_on_all_their_values() {
    let both = TAKES | GIVES;
    let first = [GIVES, both, both, both | RESIDUAL, both];
    let next = [both | RESIDUAL, both, both, both | RESIDUAL, both];
    let mut expected = [first, next, next].concat();
    *expected.last_mut().unwrap() = TAKES;
    assert_eq!(found(&layers(3)), expected);
}

#[test]
fn a_reader_that_does_not_look_has_a_counter() {
    let both = TAKES | GIVES;
    // A sixth dispatch cannot take what the fifth gives. What else does it touch?
    let with = |change: &dyn Fn(&mut Dispatch)| {
        let mut dispatches = layers(1);
        let mut sixth = hands(&[], &[], None);
        sixth.reads.push(dispatches[4].writes[0]);
        change(&mut sixth);
        dispatches.push(sixth);
        found(&dispatches)
    };
    let handed = [GIVES, both, both, both | RESIDUAL, TAKES, 0];
    assert_eq!(with(&|_| {}), handed);
    let without_attention = [GIVES, TAKES, GIVES, both | RESIDUAL, TAKES, 0];
    let of_attention = span(FRESH.address + 32 * 3);
    assert_eq!(with(&|sixth| sixth.reads.push(of_attention)), without_attention);
    let stored = span(OLD + 200);
    assert_eq!(with(&|sixth| sixth.reads.push(stored)), without_attention);
    assert_eq!(with(&|sixth| sixth.writes.push(stored)), without_attention);
    let shared = span(OLD + 100);
    assert_eq!(with(&|sixth| sixth.writes.push(shared)), handed);
    assert_eq!(with(&|sixth| sixth.reads.push(shared)), without_attention, "another kind");
    let stream = span(FRESH.address + 32 * 8);
    let without_stream = [GIVES, both, both, TAKES | RESIDUAL, 0, 0];
    assert_eq!(with(&|sixth| sixth.reads.push(stream)), without_stream);
    let could_look = |sixth: &mut Dispatch| {
        sixth.reads.push(stream);
        sixth.hands.as_mut().unwrap().residual = Some(stream);
    };
    assert_eq!(with(&could_look), without_stream, "it takes nothing");
}

/// It loads all that it reads before it waits.
#[test]
fn a_taker_reads_nothing_that_is_counted() {
    let both = TAKES | GIVES;
    let mut dispatches = layers(1);
    // Attention cannot take queries, so the stream that the first one updates has no bit.
    dispatches[1].hands.as_mut().unwrap().takes.clear();
    assert_eq!(found(&dispatches), [0, GIVES, TAKES, GIVES, TAKES]);
    let mut dispatches = layers(1);
    // The third one reads what the first one, which has no values for others, leaves besides.
    dispatches[0].hands = None;
    dispatches[0].writes.push(span(OLD + 300));
    dispatches[2].reads.push(span(OLD + 300));
    assert_eq!(found(&dispatches), [0, 0, 0, GIVES, TAKES]);
    dispatches[2].reads.pop();
    assert_eq!(found(&dispatches), [0, GIVES, TAKES, GIVES, TAKES]);
    let mut dispatches = layers(1);
    // Nothing in the chain wrote that.
    dispatches[2].reads.push(span(OLD + 16));
    assert_eq!(found(&dispatches), [GIVES, both, both, both | RESIDUAL, TAKES]);
}

/// Two in a row might write what the one before them still reads.
#[test]
fn a_taker_that_looks_at_a_part_follows_none_that_does() {
    let [a, b, c] = [0, 32, 64].map(|offset| FRESH.address + offset);
    let mut row = [hands(&[OLD], &[a], None), hands(&[a], &[b], None), hands(&[b], &[c], None)];
    let both = TAKES | GIVES;
    assert_eq!(found(&row), [GIVES, both, TAKES]);
    row[1].hands.as_mut().unwrap().is_split = true;
    assert_eq!(found(&row), [GIVES, both, TAKES]);
    row[2].hands.as_mut().unwrap().is_split = true;
    assert_eq!(found(&row), [GIVES, TAKES, 0]);
    row[1].hands.as_mut().unwrap().is_split = false;
    assert_eq!(found(&row), [GIVES, both, TAKES]);
}

#[test]
fn values_that_are_written_again_are_not_looked_at() {
    let [a, b, c] = [0, 32, 64].map(|offset| FRESH.address + offset);
    let one = |dispatches: [Dispatch; 2]| found(&dispatches) == [GIVES, TAKES];
    assert!(one([hands(&[OLD], &[a], None), hands(&[a], &[b], None)]));
    assert!(!one([hands(&[OLD], &[OLD + 32], None), hands(&[OLD + 32], &[b], None)]), "old");
    let residual = Some((OLD + 32, OLD + 64));
    assert!(!one([hands(&[OLD], &[a], residual), hands(&[a], &[b], None)]), "an old stream");
    assert!(!one([hands(&[OLD], &[a, b], None), hands(&[a], &[c], None)]), "not all of it");
    assert!(!one([hands(&[OLD], &[a], None), hands(&[a, b], &[c], None)]), "more than that");
    assert!(!one([hands(&[OLD], &[a], None), hands(&[a], &[OLD], None)]), "what was read");
    let mut without = hands(&[a], &[b], None);
    without.hands = None;
    assert!(!one([hands(&[OLD], &[a], None), without]), "it cannot look");
}

/// Layers whose values have a product of their own, which norms the same row.
fn layers_apart(count: u64) -> Vec<Dispatch> {
    let apart = |layer: &[Dispatch]| {
        let mut layer = layer.to_vec();
        let mut values = layer[0].clone();
        let value = layer[0].writes.remove(2);
        layer[0].hands.as_mut().unwrap().gives.pop();
        values.writes = vec![value];
        let hands = values.hands.as_mut().unwrap();
        (hands.gives, hands.updated) = (vec![value], None);
        layer.insert(1, values);
        layer
    };
    layers(count).chunks(5).flat_map(apart).collect()
}

#[test]
fn neighbours_that_share_a_link_hand_on_together() {
    let both = TAKES | GIVES;
    let first = [GIVES, GIVES, both, both, both | RESIDUAL, both];
    let next = [both | RESIDUAL, both | RESIDUAL, both, both, both | RESIDUAL, both];
    let mut expected = [first, next].concat();
    *expected.last_mut().unwrap() = TAKES;
    assert_eq!(found(&layers_apart(2)), expected);

    // What if one of the two in the second layer cannot?
    let flags_with = |change: &dyn Fn(&mut Dispatch)| {
        let mut dispatches = layers_apart(2);
        change(&mut dispatches[7]);
        found(&dispatches)
    };
    // It gives nothing, so the stream that the other one updates has no bit either.
    let without = [0, 0, 0, GIVES, TAKES, GIVES, TAKES];
    assert_eq!(flags_with(&|values| values.hands = None)[5..], without);
    // It does not look at the stream.
    let blind = |values: &mut Dispatch| values.hands.as_mut().unwrap().residual = None;
    let found = flags_with(&blind);
    assert_eq!(found[6..], [GIVES, GIVES, both, both, both | RESIDUAL, TAKES]);
    assert_eq!(found[4], TAKES | RESIDUAL, "nobody takes what is read with it");
}

#[test]
fn neighbours_that_share_a_link_and_take_other_values_have_counters() {
    let [a, b, c] = [0, 32, 64].map(|offset| FRESH.address + offset);
    let dispatches = [
        hands(&[OLD], &[a], None),
        hands(&[a], &[b], None),
        // Needs nothing of the second one.
        hands(&[OLD + 16], &[c], None),
        hands(&[c], &[c + 32], None),
    ];
    assert_eq!(found(&dispatches), [0; 4]);
}

#[test]
fn a_barrier_orders_what_was_not_counted() {
    let mut dispatches = layers(2);
    dispatches[5].link = Link::Able { offset: 0, early: Some(FRESH), fill: Fill::Anywhere };
    let (placed, _) = place(&dispatches);
    assert_eq!(placed[5].first, 5, "the second layer is a chain of its own");
    let [first, second] = [0, 5].map(|at| flags(&dispatches, &placed, FRESH)[at..at + 5].to_vec());
    let both = TAKES | GIVES;
    assert_eq!(first, [GIVES, both, both, both | RESIDUAL, TAKES]);
    assert_eq!(second, first);
}

#[test]
fn marked_dispatches_give_the_same_values_between_barriers() {
    let mut dispatches = layers(1);
    mark(&mut dispatches, FRESH);
    let links: Vec<u64> = dispatches
        .iter()
        .map(|dispatch| u64::from_ne_bytes(dispatch.push.bytes().try_into().unwrap()))
        .collect();
    assert_eq!(links, [GIVES, GIVES, GIVES, GIVES, 0]);
    assert!(dispatches.iter().all(|dispatch| matches!(dispatch.link, Link::Able { .. })));
}

mod layers;
