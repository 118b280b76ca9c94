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
    /// Fewest entries that an expert is expected to have for groups on matrix units, of 8, 16 and
    /// 32 places. Groups of 64 decode a matrix less often but multiply more places without an
    /// entry: they were slower for up to 32 entries (`docs/benchmarks/gpu-kernels.md`).
    const LEAST_ON_UNITS: [(usize, usize); 3] = [(2, 8), (6, 16), (20, 32)];

    /// Returns how the entries of up to `rows` rows are grouped for the kernel of few rows: about
    /// as many together as an expert is expected to have. What a group lacks is multiplied all the
    /// same.
    ///
    /// Where entries that share an expert are rare, a GPU with memory of its own takes each for
    /// itself. That needs no sorting, and the workgroups of two entries of one expert run at about
    /// the same time, so that a cache has what the second one reads. The caches of other devices
    /// are too small for that.
    pub fn suited(kind: DeviceKind, rows: usize, used: usize, experts: usize) -> Self {
        let entries = rows * used;
        let is_discrete = matches!(kind, DeviceKind::Discrete | DeviceKind::Virtual);
        let columns = match rows {
            0..=1 => 1,
            _ if entries <= experts / 2 && is_discrete => 1,
            _ if entries <= experts / 2 => 2,
            _ if entries <= 2 * experts => 4,
            _ => WIDTH_MAX,
        };
        Self { entries, experts, columns, is_padded: false }
    }

    /// Returns how the entries of up to `rows` rows are grouped for matrix units that take groups
    /// of these numbers of places, in rising order; `None` if the kernel of few rows suits them
    /// better.
    pub fn on_units(rows: usize, used: usize, experts: usize, places: &[usize]) -> Option<Self> {
        let entries = rows * used;
        let each = entries / experts.max(1);
        let fit = Self::LEAST_ON_UNITS.iter().rev().find(|(least, _)| each >= *least);
        let (_, columns) = fit.filter(|_| rows > WIDTH_MAX)?;
        let (least, most) = (*places.first()?, *places.last()?);
        Some(Self { entries, experts, columns: (*columns).clamp(least, most), is_padded: true })
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

    /// Returns the bytes of sorted entries: 16 for a group, then the entry of each place, then, if
    /// there are places without one, the place of each entry.
    pub fn bytes(&self) -> usize {
        let back = if self.is_padded { self.entries } else { 0 };
        16 * self.groups() + 4 * (self.places() + back)
    }

    /// Returns where the entries of the places begin, in bytes.
    pub(crate) fn entries_at(&self) -> u64 {
        16 * self.groups() as u64
    }

    /// Returns where the places of the entries begin, in bytes.
    pub(crate) fn places_at(&self) -> u64 {
        self.entries_at() + 4 * self.places() as u64
    }
}
