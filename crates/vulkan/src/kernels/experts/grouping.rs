//! How entries are grouped by expert.

use crate::kernels::matvec::WIDTH_MAX;

/// How the entries of a step are grouped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grouping {
    /// Most entries.
    pub entries: usize,
    /// Experts.
    pub experts: usize,
    /// Most entries of a group.
    pub columns: usize,
}

impl Grouping {
    /// Returns how the entries of up to `rows` rows are grouped: about as many together as an
    /// expert is expected to have. What a group lacks is multiplied all the same.
    pub fn suited(rows: usize, used: usize, experts: usize) -> Self {
        let entries = rows * used;
        let columns = match rows {
            0..=1 => 1,
            _ if entries <= experts / 2 => 2,
            _ if entries <= 2 * experts => 4,
            _ => WIDTH_MAX,
        };
        Self { entries, experts, columns }
    }

    /// Returns whether entries are sorted; otherwise each is a group, in their order.
    pub fn is_sorted(&self) -> bool {
        self.columns > 1
    }

    /// Returns the most groups.
    pub fn groups(&self) -> usize {
        let begun = self.experts * (self.columns - 1);
        self.entries.min((self.entries + begun) / self.columns)
    }

    /// Returns the bytes of sorted entries: 16 for a group, then 4 for an entry.
    pub fn bytes(&self) -> usize {
        16 * self.groups() + 4 * self.entries
    }
}
