//! The planes of a matrix.

use thiserror::Error;

/// Bytes that each plane is aligned to.
const PLANE_ALIGNMENT: u64 = 256;

/// One number for each plane: its bytes in a row, in several rows or in a matrix, or its place.
/// Absent planes have 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PlaneBytes {
    /// Codes.
    pub codes: u64,
    /// High bits of codes.
    pub high: u64,
    /// Scales of blocks.
    pub scales: u64,
    /// Factors of 256 elements.
    pub supers: u64,
}

impl PlaneBytes {
    /// No plane at all.
    pub(super) const NONE: Self = Self { codes: 0, high: 0, scales: 0, supers: 0 };

    /// Returns the planes of `rows` rows, if `self` is the planes of one row.
    pub fn times(self, rows: u64) -> Option<Self> {
        Some(Self {
            codes: self.codes.checked_mul(rows)?,
            high: self.high.checked_mul(rows)?,
            scales: self.scales.checked_mul(rows)?,
            supers: self.supers.checked_mul(rows)?,
        })
    }

    /// Returns the bytes of all planes.
    pub(crate) fn total(self) -> u64 {
        self.codes + self.high + self.scales + self.supers
    }

    /// Returns where each plane begins in one allocation (codes first, each aligned to 256 bytes)
    /// and the bytes of all planes. Returns `None` if that overflows.
    pub fn layout(self) -> Option<(PlaneBytes, u64)> {
        let after = |start: u64, bytes: u64| {
            start.checked_add(bytes)?.checked_next_multiple_of(PLANE_ALIGNMENT)
        };
        let high = after(0, self.codes)?;
        let scales = after(high, self.high)?;
        let supers = after(scales, self.scales)?;
        let end = after(supers, self.supers)?;
        Some((Self { codes: 0, high, scales, supers }, end))
    }
}

/// Why rows were not packed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PackError {
    /// The source is not whole rows.
    #[error(
        "{bytes} bytes are not whole rows of {columns} {format} elements; the file is damaged, \
         download it again"
    )]
    Source {
        /// Name of the format.
        format: &'static str,
        /// Elements of a row.
        columns: usize,
        /// Bytes of the source.
        bytes: usize,
    },
    /// A plane does not have as many bytes as the rows take.
    #[error("the {plane} plane of {rows} rows takes {expected} bytes, not {found}")]
    Plane {
        /// Name of the plane.
        plane: &'static str,
        /// Rows of the source.
        rows: usize,
        /// Bytes that they take.
        expected: u64,
        /// Bytes found.
        found: usize,
    },
}

/// The bytes of some rows in each plane. They are written from front to back and never read, so
/// they may be device memory.
#[derive(Debug, Default)]
pub struct PlanesMut<'a> {
    /// Codes.
    pub codes: &'a mut [u8],
    /// High bits of codes.
    pub high: &'a mut [u8],
    /// Scales of blocks.
    pub scales: &'a mut [u8],
    /// Factors of 256 elements.
    pub supers: &'a mut [u8],
}

impl<'a> PlanesMut<'a> {
    /// Returns the planes of a matrix in one allocation laid out by [`PlaneBytes::layout`], or
    /// `None` if the allocation is too short.
    pub fn of_allocation(bytes: &'a mut [u8], planes: PlaneBytes) -> Option<Self> {
        let (starts, total) = planes.layout()?;
        let rest = bytes.get_mut(..usize::try_from(total).ok()?)?;
        let (codes, rest) = rest.split_at_mut(starts.high as usize);
        let (high, rest) = rest.split_at_mut((starts.scales - starts.high) as usize);
        let (scales, supers) = rest.split_at_mut((starts.supers - starts.scales) as usize);
        Some(Self {
            codes: &mut codes[..planes.codes as usize],
            high: &mut high[..planes.high as usize],
            scales: &mut scales[..planes.scales as usize],
            supers: &mut supers[..planes.supers as usize],
        })
    }

    /// Returns the same planes, for a while.
    pub(super) fn reborrow(&mut self) -> PlanesMut<'_> {
        PlanesMut { codes: self.codes, high: self.high, scales: self.scales, supers: self.supers }
    }

    /// Splits the planes into the first `rows` rows and the rest, for different threads.
    ///
    /// # Panics
    /// If there are fewer rows.
    pub fn split_at_row(self, row: PlaneBytes, rows: usize) -> (Self, Self) {
        let at = |bytes: u64| bytes as usize * rows;
        let (codes, codes_rest) = self.codes.split_at_mut(at(row.codes));
        let (high, high_rest) = self.high.split_at_mut(at(row.high));
        let (scales, scales_rest) = self.scales.split_at_mut(at(row.scales));
        let (supers, supers_rest) = self.supers.split_at_mut(at(row.supers));
        (
            Self { codes, high, scales, supers },
            Self { codes: codes_rest, high: high_rest, scales: scales_rest, supers: supers_rest },
        )
    }

    /// Writes zeros: rows of padding.
    pub fn clear(&mut self) {
        self.codes.fill(0);
        self.high.fill(0);
        self.scales.fill(0);
        self.supers.fill(0);
    }

    pub(super) fn check(&self, expected: PlaneBytes, rows: usize) -> Result<(), PackError> {
        let planes = [
            ("codes", expected.codes, self.codes.len()),
            ("high", expected.high, self.high.len()),
            ("scales", expected.scales, self.scales.len()),
            ("supers", expected.supers, self.supers.len()),
        ];
        match planes.into_iter().find(|&(_, expected, found)| expected != found as u64) {
            None => Ok(()),
            Some((plane, expected, found)) => {
                Err(PackError::Plane { plane, rows, expected, found })
            }
        }
    }
}
