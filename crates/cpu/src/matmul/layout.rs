//! The layout of a packed matrix.
//!
//! Rows are grouped in panels of [`Layout::rows_per_panel`] (R). A panel is one contiguous piece
//! of memory made of sections, each 64-byte aligned. The elements of a row are grouped in quads
//! of four neighbours, eight to a block of 32, because the integer dot products of every
//! processor sum four bytes at once. A *vector* holds one quad of each of the R rows: 4 R bytes.
//!
//! | section | per block of 32 | holds |
//! |---|---|---|
//! | nibbles | 4 vectors | vector j: low nibbles quad j, high nibbles quad j + 4 |
//! | pairs | 2 vectors | vector h: bits 2p, 2p+1 of a byte belong to quad 4 h + p |
//! | bits | 1 vector | bit q of a byte belongs to quad q |
//! | bytes | 8 vectors | vector q: quad q; of codebooks 1 or 2 vectors of codes |
//! | scales, minimums | R numbers, or 2 R for runs of 16 | f16, or small integers |
//! | super scales, super minimums | R numbers per 256 | f16, or f32 |
//! | shared | 4 R bytes or 13 vectors per 256 | what has no whole bytes for a block |
//!
//! Shared are four bits of each block, the even one's in the low nibble, or digits to base 3 of
//! five quads in a byte. Codes take exactly as many bits as in the file, except that all signs of
//! codebooks are stored. Scales that the file packs into 4 or 6 bits become bytes if the kernels
//! need it. Both together make a matrix at most 4 % larger, of three codebooks up to 7 %.
//!
//! A float matrix has panels of 16 rows: for every column the 16 elements, in the file's type.

use trine_weights::DType;

use crate::isa::Isa;

/// Rows of a panel of a float matrix.
pub(super) const FLOAT_ROWS: usize = 16;

/// Alignment of sections and panels, in bytes.
const ALIGNMENT: usize = 64;

/// Sizes and offsets (bytes from the start of a panel) of a packed matrix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) dtype: DType,
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) rows_per_panel: usize,
    /// Blocks of 32 per row; 0 for float matrices.
    pub(super) blocks: usize,
    pub(super) panel_bytes: usize,
    pub(super) scales: usize,
    pub(super) minimums: usize,
    pub(super) super_scales: usize,
    pub(super) super_minimums: usize,
    pub(super) shared: usize,
    pub(super) nibbles: usize,
    pub(super) pairs: usize,
    pub(super) bits: usize,
    pub(super) bytes: usize,
}

/// Bytes per row of each section, per block of 32 (`super_*` and `shared`: per 256).
#[derive(Clone, Copy)]
pub(super) struct Sections {
    pub(super) scales: usize,
    pub(super) minimums: usize,
    pub(super) super_scales: usize,
    pub(super) super_minimums: usize,
    pub(super) shared: usize,
    pub(super) nibbles: usize,
    pub(super) pairs: usize,
    pub(super) bits: usize,
    pub(super) bytes: usize,
}

impl Sections {
    /// None at all, as in a float matrix.
    pub(super) const NONE: Self = Self {
        scales: 0,
        minimums: 0,
        super_scales: 0,
        super_minimums: 0,
        shared: 0,
        nibbles: 0,
        pairs: 0,
        bits: 0,
        bytes: 0,
    };
    /// An f16 for each block.
    pub(super) const SCALES: Self = Self { scales: 2, ..Self::NONE };
    /// An f16 for each 256 elements.
    pub(super) const SUPERS: Self = Self { super_scales: 2, ..Self::NONE };
}

/// Returns the number of rows of an integer panel: the number of 32-bit sums that fill a register.
/// It divides [`FLOAT_ROWS`], so that a float matrix and an integer one can be cut at the same
/// rows.
pub(super) fn integer_rows(isa: Isa) -> usize {
    match isa {
        Isa::Avx512Vnni => 16,
        Isa::Scalar | Isa::Avx2 | Isa::AvxVnni | Isa::Neon | Isa::NeonDot => 8,
    }
}

impl Layout {
    /// Returns the layout of a matrix of a format with these sections; `None` if its size overflows
    /// or a row is not whole blocks.
    pub(super) fn new(
        dtype: DType,
        sections: &Sections,
        rows: usize,
        columns: usize,
        isa: Isa,
    ) -> Option<Self> {
        let row_bytes = dtype.row_bytes(columns)?;
        let float = !dtype.is_quantized();
        let mut layout = Layout {
            dtype,
            rows,
            columns,
            rows_per_panel: if float { FLOAT_ROWS } else { integer_rows(isa) },
            blocks: if float { 0 } else { columns / 32 },
            panel_bytes: 0,
            scales: 0,
            minimums: 0,
            super_scales: 0,
            super_minimums: 0,
            shared: 0,
            nibbles: 0,
            pairs: 0,
            bits: 0,
            bytes: 0,
        };
        if float {
            layout.panel_bytes = row_bytes.checked_mul(FLOAT_ROWS)?;
        } else {
            layout.place(sections)?;
        }
        layout.panel_bytes = layout.panel_bytes.checked_next_multiple_of(ALIGNMENT)?;
        layout.panels().checked_mul(layout.panel_bytes)?;
        Some(layout)
    }

    /// Places the sections one after another.
    fn place(&mut self, sections: &Sections) -> Option<()> {
        let supers = self.blocks.div_ceil(8);
        let (rows, blocks) = (self.rows_per_panel, self.blocks);
        for (offset, bytes, count) in [
            (&mut self.super_scales, sections.super_scales, supers),
            (&mut self.super_minimums, sections.super_minimums, supers),
            (&mut self.shared, sections.shared, supers),
            (&mut self.scales, sections.scales, blocks),
            (&mut self.minimums, sections.minimums, blocks),
            (&mut self.bits, sections.bits, blocks),
            (&mut self.pairs, sections.pairs, blocks),
            (&mut self.nibbles, sections.nibbles, blocks),
            (&mut self.bytes, sections.bytes, blocks),
        ] {
            *offset = self.panel_bytes.checked_next_multiple_of(ALIGNMENT)?;
            let size = bytes.checked_mul(count)?.checked_mul(rows)?;
            self.panel_bytes = offset.checked_add(size)?;
        }
        Some(())
    }

    /// The number of panels; the last one may be filled up with zero rows.
    pub(super) fn panels(&self) -> usize {
        self.rows.div_ceil(self.rows_per_panel)
    }

    /// The number of rows of `panel` that exist.
    pub(super) fn rows_in(&self, panel: usize) -> usize {
        (self.rows - panel * self.rows_per_panel).min(self.rows_per_panel)
    }
}
