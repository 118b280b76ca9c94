//! The rows of a step by the experts that they use.
//!
//! An entry is a row and one of its experts: entry `row * used + slot`. Entries are sorted by
//! expert, and within one by row, so that each expert's matrix is read once, with all rows that use
//! it.

use super::terms::InputRows;

/// Words of a group: expert, place of the first entry, entries, and how many of these have two
/// terms.
const GROUP_WORDS: usize = 4;

/// The entries of one expert.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Group {
    pub(super) expert: usize,
    /// Its first entry among the sorted ones.
    pub(super) first: usize,
    /// The rows of its entries as rows of a product's input.
    pub(super) rows: InputRows,
}

/// How many entries there may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct GroupShape {
    /// Experts of the layer, at least 1.
    pub(super) experts: usize,
    /// Experts of a row.
    pub(super) used: usize,
    /// Rows of the step.
    pub(super) rows: InputRows,
}

impl GroupShape {
    /// Returns the number of entries.
    pub(super) fn entries(self) -> usize {
        self.rows.rows * self.used
    }

    /// Returns the words that [`sort`] writes.
    pub(super) fn words(self) -> usize {
        1 + GROUP_WORDS * self.experts + 2 * self.entries()
    }
}

/// Sorts the entries into `words`: the number of groups, the groups in order of experts, the sorted
/// entries, and the place of each entry. `chosen` returns the expert of an entry; one that the
/// layer does not have counts as its last.
pub(super) fn sort(shape: GroupShape, chosen: impl Fn(usize) -> usize, words: &mut [u32]) {
    let GroupShape { experts, used, rows } = shape;
    let (count, rest) = words.split_at_mut(1);
    let (groups, rest) = rest.split_at_mut(GROUP_WORDS * experts);
    let (sorted, places) = rest.split_at_mut(shape.entries());
    let expert_of = |entry: usize| chosen(entry).min(experts - 1);
    groups.fill(0);
    for entry in 0..shape.entries() {
        let group = &mut groups[GROUP_WORDS * expert_of(entry)..][..GROUP_WORDS];
        group[2] += 1;
        group[3] += u32::from(entry / used < rows.fine);
    }
    let mut next = 0;
    for group in groups.chunks_exact_mut(GROUP_WORDS) {
        // The first word is where the next entry goes until all have a place.
        (group[0], group[1]) = (next, next);
        next += group[2];
    }
    for entry in 0..shape.entries() {
        let place = &mut groups[GROUP_WORDS * expert_of(entry)];
        (sorted[*place as usize], places[entry]) = (entry as u32, *place);
        *place += 1;
    }
    let mut active = 0;
    for expert in 0..experts {
        let from = GROUP_WORDS * expert;
        if groups[from + 2] > 0 {
            groups[from] = expert as u32;
            groups.copy_within(from..from + GROUP_WORDS, GROUP_WORDS * active);
            active += 1;
        }
    }
    count[0] = active as u32;
}

/// Sorted entries, as [`sort`] writes them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Groups<'a> {
    groups: &'a [u32],
    sorted: &'a [u32],
    places: &'a [u32],
}

impl<'a> Groups<'a> {
    /// Reads the words of a shape.
    pub(super) fn of(shape: GroupShape, words: &'a [u32]) -> Self {
        let (groups, rest) = words[1..].split_at(GROUP_WORDS * shape.experts);
        let groups = &groups[..GROUP_WORDS * words[0] as usize];
        let (sorted, places) = rest.split_at(shape.entries());
        Self { groups, sorted, places: &places[..shape.entries()] }
    }

    /// Returns the number of experts that any row uses.
    pub(super) fn count(self) -> usize {
        self.groups.len() / GROUP_WORDS
    }

    /// Returns a group.
    pub(super) fn get(self, index: usize) -> Group {
        let words = &self.groups[GROUP_WORDS * index..][..GROUP_WORDS];
        let [expert, first, rows, fine] = [0, 1, 2, 3].map(|word: usize| words[word] as usize);
        Group { expert, first, rows: InputRows { rows, fine } }
    }

    /// Returns the group of a place among the sorted entries, and the place within it.
    pub(super) fn at(self, place: usize) -> (Group, usize) {
        let index = self.groups.chunks_exact(GROUP_WORDS).rposition(|own| own[1] as usize <= place);
        let group = self.get(index.unwrap_or(0));
        (group, place - group.first)
    }

    /// Returns the entries of a group.
    pub(super) fn entries(self, group: Group) -> impl Iterator<Item = usize> + use<'a> {
        let sorted = &self.sorted[group.first..group.first + group.rows.rows];
        sorted.iter().map(|&entry| entry as usize)
    }

    /// Returns the entry of a place.
    pub(super) fn entry(self, place: usize) -> usize {
        self.sorted[place] as usize
    }

    /// Returns the place of an entry among the sorted ones.
    pub(super) fn place(self, entry: usize) -> usize {
        self.places[entry] as usize
    }
}

/// Finds the experts of a row: see `Op::Route`, whose formula this computes. `factors` is empty for
/// factors of 1.
pub(super) fn route(
    logits: &[f32],
    factors: &[f32],
    scale: f32,
    chosen: &mut [f32],
    shares: &mut [f32],
) {
    if logits.iter().any(|logit| logit.is_nan()) {
        chosen.iter_mut().enumerate().for_each(|(expert, slot)| *slot = expert as f32);
        return shares.fill(f32::NAN);
    }
    let mut last: Option<(f32, usize)> = None;
    for (slot, share) in chosen.iter_mut().zip(&mut *shares) {
        let mut best: Option<(f32, usize)> = None;
        for (expert, &logit) in logits.iter().enumerate() {
            let is_after =
                |(other, at): (f32, usize)| other.total_cmp(&logit).then(expert.cmp(&at)).is_gt();
            if last.is_none_or(is_after)
                && best.is_none_or(|(largest, _)| logit.total_cmp(&largest).is_gt())
            {
                best = Some((logit, expert));
            }
        }
        let Some((logit, expert)) = best else { break };
        (*slot, *share, last) = (expert as f32, logit, best);
    }
    let largest = shares.first().copied().unwrap_or(0.0);
    let mut sum = 0.0;
    for share in &mut *shares {
        *share = (scale * (*share - largest)).exp();
        sum += *share;
    }
    for (share, expert) in shares.iter_mut().zip(chosen) {
        *share *= factors.get(*expert as usize).unwrap_or(&1.0) / sum;
    }
}

#[cfg(test)]
mod tests {
    use trine_backend::reference::ops;

    use super::*;

    fn random(state: &mut u64) -> usize {
        *state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
        (*state >> 33) as usize
    }

    #[test]
    fn entries_are_sorted_by_expert_and_row() {
        let mut state = 7;
        for (experts, used, rows, fine) in
            [(1, 1, 1, 1), (6, 2, 5, 3), (128, 8, 40, 0), (3, 3, 9, 9), (5, 2, 0, 0)]
        {
            let shape = GroupShape { experts, used, rows: InputRows { rows, fine } };
            let chosen: Vec<usize> =
                (0..shape.entries()).map(|_| random(&mut state) % (experts + 1)).collect();
            let mut words = vec![u32::MAX; shape.words()];
            sort(shape, |entry| chosen[entry], &mut words);
            let groups = Groups::of(shape, &words);
            let mut expected: Vec<usize> = (0..shape.entries()).collect();
            expected.sort_by_key(|&entry| (chosen[entry].min(experts - 1), entry));
            let mut place = 0;
            for index in 0..groups.count() {
                let group = groups.get(index);
                assert_eq!(group.first, place);
                let own: Vec<usize> = groups.entries(group).collect();
                assert_eq!(own, expected[place..place + own.len()]);
                assert!(own.iter().all(|&entry| chosen[entry].min(experts - 1) == group.expert));
                assert_eq!(
                    own.iter().filter(|&&entry| entry / used < fine).count(),
                    group.rows.fine
                );
                for (offset, &entry) in own.iter().enumerate() {
                    assert_eq!(
                        (groups.place(entry), groups.entry(place + offset)),
                        (place + offset, entry)
                    );
                    assert_eq!(groups.at(place + offset), (group, offset));
                }
                place += own.len();
            }
            assert_eq!(place, shape.entries());
        }
    }

    #[test]
    fn routes_are_those_of_the_reference() {
        let mut state = 3;
        for (experts, used) in [(1, 1), (6, 2), (128, 8), (9, 9)] {
            for case in 0..20 {
                let mut logits: Vec<f32> =
                    (0..experts).map(|_| (random(&mut state) % 9) as f32 - 4.0).collect();
                if case == 19 {
                    logits[experts / 2] = f32::NAN;
                }
                let factors: Vec<f32> =
                    (0..experts).map(|_| (random(&mut state) % 5) as f32 * 0.5).collect();
                let mut expected = [vec![f32::NAN; used], vec![f32::NAN; used]];
                let [chosen, shares] = &mut expected;
                ops::route(&logits, &factors, 0.3, chosen, shares);
                let mut found = [vec![f32::NAN; used], vec![f32::NAN; used]];
                let [chosen, shares] = &mut found;
                route(&logits, &factors, 0.3, chosen, shares);
                assert_eq!(found[0], expected[0]);
                for (found, expected) in found[1].iter().zip(&expected[1]) {
                    let is_same = (found - expected).abs() < 1e-6;
                    assert!(is_same || found.is_nan() && expected.is_nan());
                }
            }
        }
    }
}
