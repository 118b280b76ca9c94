//! Places of dispatches in chains, and the links that they get.

use crate::dispatch::{Dispatch, Fill, Link, Span};

/// Words from one link to the next: CHAIN_LINK_BYTES of the shader.
pub(super) const LINK_WORDS: usize = 64;

/// Returns how many dispatches, from the first on, make a chain: those whose kernels can be
/// chained, up to one that reads early what another of them writes, or up to one that has to be
/// spread evenly although another one fills the device. In that case the chain ends after that
/// other one, and what follows it makes a chain of its own.
fn length(dispatches: &[Dispatch]) -> usize {
    let mut full = None;
    for (index, dispatch) in dispatches.iter().enumerate() {
        let Link::Able { early, fill, .. } = dispatch.link else { return index };
        let mut before = dispatches[..index].iter().flat_map(|dispatch| &dispatch.writes);
        if early.is_some_and(|early| before.any(|written| written.overlaps(early))) {
            return index;
        }
        match (fill, full) {
            (Fill::Little, _) => {}
            (Fill::Evenly, Some(last)) => return last + 1,
            (Fill::Anywhere | Fill::Evenly, _) => full = Some(index),
        }
    }
    dispatches.len()
}

/// Returns how many dispatches, from the first on, touch nothing that another of them changes. They
/// share a link: all wait for the dispatch before them, and the next one waits for all of them.
fn abreast(dispatches: &[Dispatch]) -> usize {
    let meet = |spans: &[Span], others: &[Span]| {
        spans.iter().any(|span| others.iter().any(|other| span.overlaps(*other)))
    };
    let depend = |one: &Dispatch, other: &Dispatch| {
        meet(&one.writes, &other.reads)
            || meet(&one.writes, &other.writes)
            || meet(&one.reads, &other.writes)
    };
    let free =
        |at: &usize| !dispatches[..*at].iter().any(|before| depend(before, &dispatches[*at]));
    1 + (1..dispatches.len()).take_while(free).count()
}

/// A dispatch's place in a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ChainPosition {
    /// Which it is.
    pub(super) index: usize,
    /// Index of the first word of its link.
    pub(super) link: usize,
    /// Index of the chain's first dispatch.
    pub(super) first: usize,
}

/// Returns the places of the dispatches that are chained, in their order, and the words of the
/// links: how many workgroups each waits for.
pub(super) fn place(dispatches: &[Dispatch]) -> (Vec<ChainPosition>, Vec<u32>) {
    let (mut placed, mut words) = (Vec::new(), Vec::new());
    let push = |words: &mut Vec<u32>, left: u32| {
        let first = words.len();
        words.resize(first + LINK_WORDS, 0);
        words[first] = left;
        first
    };
    let mut rest = dispatches;
    while !rest.is_empty() {
        let first = dispatches.len() - rest.len();
        let (chain, others) = rest.split_at(length(rest));
        if chain.len() > 1 {
            let (mut left, mut index) = (0, 0);
            while index < chain.len() {
                let beside = abreast(&chain[index..]);
                let link = push(&mut words, left);
                let place = |index: usize| ChainPosition { index: first + index, link, first };
                placed.extend((index..index + beside).map(place));
                let groups = chain[index..index + beside].iter().map(Dispatch::workgroups);
                left = groups.sum();
                index += beside;
            }
            // The last one counts itself out too.
            push(&mut words, left);
        }
        rest = if chain.is_empty() { &others[1..] } else { others };
    }
    (placed, words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatch::Push;
    use crate::raw::pipeline::Kernel;

    fn dispatch(groups: u32, link: Link) -> Dispatch {
        Dispatch {
            label: String::new(),
            step: 0,
            kernel: Kernel::null(),
            push: Push::of(&0_u64),
            groups: [groups, 1, 1],
            // All of them depend on one another.
            reads: vec![Span { address: 64, bytes: 4 }],
            writes: vec![Span { address: 64, bytes: 4 }],
            link,
            hands: None,
        }
    }

    #[test]
    fn neighbours_are_chained_and_chains_share_no_link() {
        let able = Link::Able { offset: 0, early: None, fill: Fill::Anywhere };
        let links = [able, Link::Outside, able, able, able, Link::Outside, able, able];
        let dispatches: Vec<Dispatch> =
            links.iter().zip(10..).map(|(&link, groups)| dispatch(groups, link)).collect();
        let (placed, words) = place(&dispatches);
        let at = |link: usize| link * LINK_WORDS;
        let expected = [(2, at(0), 2), (3, at(1), 2), (4, at(2), 2), (6, at(4), 6), (7, at(5), 6)];
        assert_eq!(
            placed,
            expected.map(|(index, link, first)| ChainPosition { index, link, first })
        );
        let left: Vec<u32> = words.chunks_exact(LINK_WORDS).map(|link| link[0]).collect();
        assert_eq!(left, [0, 12, 13, 14, 0, 16, 17]);
    }

    #[test]
    fn a_chain_ends_before_what_reads_early_what_it_wrote() {
        let cache = Span { address: 4096, bytes: 256 };
        let able = Link::Able { offset: 0, early: None, fill: Fill::Anywhere };
        let mut dispatches = [(); 5].map(|()| dispatch(7, able));
        dispatches[1].writes.push(cache);
        let part = Span { address: 4100, bytes: 4 };
        dispatches[3].link = Link::Able { offset: 0, early: Some(part), fill: Fill::Anywhere };
        let (placed, words) = place(&dispatches);
        let first = |place: usize| words[placed[place].link];
        assert_eq!([0, 1, 2, 3, 4].map(first), [0, 7, 7, 0, 7], "another one begins");
        dispatches[1].link = Link::Able { offset: 0, early: Some(cache), fill: Fill::Anywhere };
        assert_eq!(length(&dispatches), 3, "its own writes come after its wait");
    }

    #[test]
    fn what_has_to_be_spread_evenly_is_chained_to_nothing_that_fills_the_device() {
        let able = |fill| Link::Able { offset: 0, early: None, fill };
        let [little, anywhere, evenly] = [Fill::Little, Fill::Anywhere, Fill::Evenly].map(able);
        let chains = |links: &[Link]| {
            let dispatches: Vec<Dispatch> = links.iter().map(|&link| dispatch(7, link)).collect();
            let (placed, words) = place(&dispatches);
            placed.iter().map(|at| (at.index, words[at.link] > 0)).collect::<Vec<_>>()
        };
        let layer = [little, evenly, anywhere, little, evenly, little, evenly];
        let expected =
            [(0, false), (1, true), (2, true), (3, false), (4, true), (5, false), (6, true)];
        assert_eq!(chains(&layer), expected);
        assert_eq!(chains(&[evenly, evenly, evenly]), [], "a single one is not a chain");
        assert_eq!(chains(&[anywhere, anywhere]), [(0, false), (1, true)]);
    }

    #[test]
    fn neighbours_that_need_nothing_of_one_another_share_a_link() {
        let able = Link::Able { offset: 0, early: None, fill: Fill::Anywhere };
        let span = |address| Span { address, bytes: 16 };
        // What each reads and writes.
        let memory = [(0, 100), (100, 200), (100, 300), (300, 400), (200, 500), (500, 100)];
        let dispatches: Vec<Dispatch> = memory
            .into_iter()
            .zip(1..)
            .map(|((read, written), groups)| Dispatch {
                reads: vec![span(read)],
                writes: vec![span(written)],
                ..dispatch(groups, able)
            })
            .collect();
        let (placed, words) = place(&dispatches);
        let at = |link: usize| link * LINK_WORDS;
        let links: Vec<usize> = placed.iter().map(|placed| placed.link).collect();
        // The fourth reads what the third wrote. The fifth needs nothing of it.
        assert_eq!(links, [at(0), at(1), at(1), at(2), at(2), at(3)]);
        let left: Vec<u32> = words.chunks_exact(LINK_WORDS).map(|link| link[0]).collect();
        assert_eq!(left, [0, 1, 2 + 3, 4 + 5, 6]);
        // The last one writes what others read, and the first three write what one of them reads.
        assert_eq!(abreast(&dispatches[3..]), 2);
        assert_eq!(abreast(&dispatches), 1);
    }

    #[test]
    fn a_dispatch_alone_is_no_chain() {
        let alone = [dispatch(3, Link::Able { offset: 0, early: None, fill: Fill::Anywhere })];
        assert_eq!(place(&alone), (Vec::new(), Vec::new()));
    }
}
