//! xclbins: containers of kernels for an XDNA array.
//!
//! An xclbin (`axlf`) begins with `xclbin2`, has its header at byte 304 and the table of sections
//! after it. Of the sections three are read: the partition of the array with its PDIs, the list of
//! compute units, and the kernels' arguments.

mod metadata;

use std::fmt;
use std::ops::Range;

use crate::FormatError;
use crate::bytes::{Bytes, index};

pub use metadata::{Argument, KernelMetadata};

const FORMAT: &str = "xclbin";
const MAGIC: &[u8; 8] = b"xclbin2\0";
const HEADER_OFFSET: usize = 304;
const SECTIONS_OFFSET: usize = 456;
const SECTION_BYTES: usize = 40;
/// Section kinds.
const EMBEDDED_METADATA: u32 = 2;
const IP_LAYOUT: u32 = 8;
const AIE_PARTITION: u32 = 32;
/// Published files have 12.
const SECTIONS_MAX: u32 = 256;
const PARTITION_BYTES: usize = 184;
/// The most PDIs of a partition, and groups of a PDI, that are read: they may lie over one another.
const PDIS_MAX: usize = 16;
const GROUPS_MAX: usize = 64;
/// The most start columns and compute units that are read. Published files have up to 5 and 17.
const START_COLUMNS_MAX: usize = 64;
const UNITS_MAX: usize = 256;
const PDI_BYTES: usize = 96;
const GROUP_BYTES: usize = 96;
const UNIT_BYTES: usize = 80;
/// The largest file that is read. The largest that AMD published has 3.7 MB.
pub const XCLBIN_BYTES_MAX: usize = 64 << 20;

/// An xclbin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Xclbin {
    /// Version of the tool that wrote it.
    pub version: (u8, u8, u16),
    /// Its identity.
    pub uuid: Uuid,
    /// The platform's name.
    pub platform: String,
    /// All sections.
    pub sections: Vec<Section>,
    /// The partition, if there is one.
    pub partition: Option<Partition>,
    /// The compute units.
    pub units: Vec<Unit>,
    /// The kernels with their arguments.
    pub kernels: Vec<KernelMetadata>,
}

/// Sixteen bytes that name something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Uuid(pub [u8; 16]);

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A section.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Section {
    /// Its kind.
    pub kind: u32,
    /// Its name.
    pub name: String,
    /// Its bytes in the file.
    pub range: Range<usize>,
}

/// Columns of the array, and what they are configured with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partition {
    /// Most operations in a cycle.
    pub operations_per_cycle: u32,
    /// Columns.
    pub columns: u16,
    /// Columns of the array at which it may begin.
    pub start_columns: Vec<u16>,
    /// Configurations.
    pub pdis: Vec<PdiImage>,
}

/// A configuration inside of an xclbin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PdiImage {
    /// Its identity.
    pub uuid: Uuid,
    /// Its bytes in the file.
    pub range: Range<usize>,
    /// Numbers by which kernels name it.
    pub ids: Vec<u64>,
}

/// A compute unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unit {
    /// Its kind; 7 for one of the array.
    pub kind: u32,
    /// Bits: what it is (1:0), its function (5:4), its kernel's number (27:16).
    pub properties: u32,
    /// Its name.
    pub name: String,
}

impl Unit {
    /// Returns the function with which a context is configured.
    #[must_use]
    pub const fn function(&self) -> u8 {
        (self.properties >> 4 & 3) as u8
    }

    /// Returns the number of the unit's kernel.
    #[must_use]
    pub const fn kernel_id(&self) -> u16 {
        (self.properties >> 16 & 0xfff) as u16
    }
}

impl Xclbin {
    /// Reads an xclbin.
    ///
    /// # Errors
    ///
    /// Returns an error with the byte and what was expected there.
    pub fn parse(bytes: &[u8]) -> Result<Self, FormatError> {
        let bytes = Bytes::new(FORMAT, bytes);
        if bytes.array::<8>(0, "the magic")? != *MAGIC {
            return Err(bytes.error(0, "no xclbin: it begins otherwise"));
        }
        if bytes.len() > XCLBIN_BYTES_MAX {
            let problem = format!("{} bytes, at most {XCLBIN_BYTES_MAX} are read", bytes.len());
            return Err(bytes.error(0, problem));
        }
        let header = |at| HEADER_OFFSET + at;
        let length = bytes.u64(header(0), "the length")?;
        if length != bytes.len() as u64 {
            let problem = format!("the file has {} bytes, its header says {length}", bytes.len());
            return Err(bytes.error(header(0), problem));
        }
        let patch = bytes.u16(header(24), "the version")?;
        let [major, minor] = bytes.array(header(26), "the version")?;
        let platform = name(bytes.slice(header(48), 64, "the platform")?);
        let uuid = Uuid(bytes.array(header(112), "the identity")?);
        let sections = sections(bytes)?;
        let mut xclbin = Self {
            version: (major, minor, patch),
            uuid,
            platform,
            sections,
            partition: None,
            units: Vec::new(),
            kernels: Vec::new(),
        };
        if let Some((start, section)) = xclbin.section(bytes, AIE_PARTITION)? {
            xclbin.partition = Some(partition(section, start)?);
        }
        if let Some((_, section)) = xclbin.section(bytes, IP_LAYOUT)? {
            xclbin.units = units(section)?;
        }
        if let Some((_, section)) = xclbin.section(bytes, EMBEDDED_METADATA)? {
            xclbin.kernels = metadata::kernels(section)?;
        }
        Ok(xclbin)
    }

    /// Returns where the one section of a kind begins in the file, and its bytes.
    fn section<'a>(
        &self,
        bytes: Bytes<'a>,
        kind: u32,
    ) -> Result<Option<(usize, Bytes<'a>)>, FormatError> {
        let mut found = self.sections.iter().filter(|section| section.kind == kind);
        let Some(first) = found.next() else { return Ok(None) };
        if let Some(second) = found.next() {
            let problem = format!("a second section of kind {kind}, expected one");
            return Err(bytes.error(second.range.start, problem));
        }
        let part = bytes.part(first.range.start, first.range.len(), "a section")?;
        Ok(Some((first.range.start, part)))
    }
}

/// Reads the table of sections.
fn sections(bytes: Bytes<'_>) -> Result<Vec<Section>, FormatError> {
    let count_offset = HEADER_OFFSET + 144;
    let count = bytes.u32(count_offset, "the number of sections")?;
    if count > SECTIONS_MAX {
        let problem = format!("{count} sections, at most {SECTIONS_MAX} are read");
        return Err(bytes.error(count_offset, problem));
    }
    let table = (0..count as usize).map(|at| {
        let offset = SECTIONS_OFFSET + at * SECTION_BYTES;
        let entry = bytes.part(offset, SECTION_BYTES, "the table of sections")?;
        let name = name(entry.slice(4, 16, "a section's name")?);
        let start = index(entry.u64(24, "a section's offset")?);
        let length = index(entry.u64(32, "a section's size")?);
        bytes.slice(start, length, "a section")?;
        let kind = entry.u32(0, "a section's kind")?;
        Ok(Section { kind, name, range: start..start + length })
    });
    table.collect()
}

/// Reads the partition in the section that begins at `start` of the file.
fn partition(section: Bytes<'_>, start: usize) -> Result<Partition, FormatError> {
    section.slice(0, PARTITION_BYTES, "the partition")?;
    let list = |at: usize, entry: usize, what: &str| {
        let count = section.u32(at, what)? as usize;
        let offset = section.u32(at + 4, what)? as usize;
        section.part(offset, count.saturating_mul(entry), what)?;
        Ok((count, offset))
    };
    let (count, offset) = list(0x28, 2, "the start columns")?;
    if count > START_COLUMNS_MAX {
        let problem = format!("{count} start columns, at most {START_COLUMNS_MAX} are read");
        return Err(section.error(0x28, problem));
    }
    let start_columns = (0..count)
        .map(|at| section.u16(offset + 2 * at, "a start column"))
        .collect::<Result<_, _>>();
    let (count, offset) = list(0x78, PDI_BYTES, "the list of PDIs")?;
    if count > PDIS_MAX {
        let problem = format!("{count} PDIs, at most {PDIS_MAX} are read");
        return Err(section.error(0x78, problem));
    }
    let pdis = (0..count).map(|at| pdi_image(section, start, offset + at * PDI_BYTES));
    Ok(Partition {
        operations_per_cycle: section.u32(8, "the operations of a cycle")?,
        columns: section.u16(0x20, "the columns")?,
        start_columns: start_columns?,
        pdis: pdis.collect::<Result<_, _>>()?,
    })
}

/// Reads the entry of a PDI at `offset` of the section.
fn pdi_image(section: Bytes<'_>, start: usize, offset: usize) -> Result<PdiImage, FormatError> {
    let entry = section.part(offset, PDI_BYTES, "a PDI's entry")?;
    let length = entry.u32(16, "a PDI's size")? as usize;
    let place = entry.u32(20, "a PDI's offset")? as usize;
    section.slice(place, length, "a PDI")?;
    let count = entry.u32(24, "a PDI's groups")? as usize;
    let groups = entry.u32(28, "a PDI's groups")? as usize;
    section.slice(groups, count.saturating_mul(GROUP_BYTES), "a PDI's groups")?;
    if count > GROUPS_MAX {
        let problem = format!("{count} groups of a PDI, at most {GROUPS_MAX} are read");
        return Err(section.error(offset + 24, problem));
    }
    let ids = (0..count).map(|at| section.u64(groups + at * GROUP_BYTES + 8, "a PDI's number"));
    Ok(PdiImage {
        uuid: Uuid(entry.array(0, "a PDI's identity")?),
        range: start + place..start + place + length,
        ids: ids.collect::<Result<_, _>>()?,
    })
}

/// Reads the list of compute units.
fn units(section: Bytes<'_>) -> Result<Vec<Unit>, FormatError> {
    let count = section.u32(0, "the number of units")? as usize;
    section.slice(8, count.saturating_mul(UNIT_BYTES), "the units")?;
    if count > UNITS_MAX {
        let problem = format!("{count} units, at most {UNITS_MAX} are read");
        return Err(section.error(0, problem));
    }
    let units = (0..count).map(|at| {
        let unit = section.part(8 + at * UNIT_BYTES, UNIT_BYTES, "a unit")?;
        Ok(Unit {
            kind: unit.u32(0, "a unit's kind")?,
            properties: unit.u32(4, "a unit's properties")?,
            name: name(unit.slice(16, 64, "a unit's name")?),
        })
    });
    units.collect()
}

/// Reads a name that ends with its field or at a zero.
fn name(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}
