//! How entries are grouped by expert.

use crate::capabilities::DeviceKind;
use crate::kernels::matvec::WIDTH_MAX;

/// How the entries of a step are grouped.
///
/// Each entry has a place; the places of a group follow one another. With [`Grouping::is_padded`]
/// every group has as many places as it may have entries, so that it begins a tile of the operand
/// of matrix units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grouping {
    /// Most entries.
    pub entries: usize,
    /// Experts.
    pub experts: usize,
    /// Most entries of a group.
    pub columns: usize,
    /// Whether groups have places without an entry.
    pub is_padded: bool,
}

impl Grouping {
    /// Entries that an expert is expected to have from which on groups on matrix units have 32
    /// places instead of 16. Groups of 64 decode a matrix less often but multiply more places
    /// without an entry: they were slower for up to 32 entries, and groups of 8 no quicker for two
    /// (`docs/benchmarks/gpu-kernels.md`).
    const LARGE_GROUPS: usize = 20;

    /// Returns how the entries of up to `rows` rows are grouped for the kernel of few rows: about
    /// as many together as an expert is expected to have. What a group lacks is multiplied all the
    /// same.
    ///
    /// Where entries that share an expert are rare, a GPU with memory of its own takes each for
    /// itself. That needs no sorting, and the workgroups of two entries of one expert run at about
    /// the same time, so that a cache has what the second one reads. Up to three entries for each
    /// expert it takes groups of two. This was measured on an H200 only; integrated GPUs, whose
    /// caches are small, have larger groups, which read less.
    pub fn suited(kind: DeviceKind, rows: usize, used: usize, experts: usize) -> Self {
        let entries = rows * used;
        let columns = match rows {
            0..=1 => 1,
            _ if entries <= experts / 2 => 1 + usize::from(kind.is_unified()),
            _ if entries <= 3 * experts && !kind.is_unified() => 2,
            _ if entries <= 2 * experts => 4,
            _ => WIDTH_MAX,
        };
        Self { entries, experts, columns, is_padded: false }
    }

    /// Returns how the entries of up to `rows` rows are grouped for matrix units, in groups of at
    /// most `most`; `None` if the kernel of few rows suits them better.
    pub fn on_units(
        kind: DeviceKind,
        rows: usize,
        used: usize,
        experts: usize,
        most: usize,
    ) -> Option<Self> {
        let entries = rows * used;
        let each = entries / experts.max(1);
        // With fewer the kernel of few rows was quicker on an H200, with the launches that gather.
        let least = if kind.is_unified() { 2 } else { 3 };
        if rows <= WIDTH_MAX || each < least {
            return None;
        }
        let columns = if each < Self::LARGE_GROUPS { 16 } else { 32 };
        Some(Self { entries, experts, columns: columns.min(most), is_padded: true })
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

    /// Returns the most places.
    pub fn places(&self) -> usize {
        if self.is_padded { self.groups() * self.columns } else { self.entries }
    }

    /// Returns the bytes of sorted entries: 16 for a group, then the entry of each place.
    pub fn bytes(&self) -> usize {
        16 * self.groups() + 4 * self.places()
    }

    /// Returns where the entries of the places begin, in bytes.
    pub(crate) fn entries_at(&self) -> u64 {
        16 * self.groups() as u64
    }
}
