//! Kernel packs: a folder with a manifest, an xclbin and streams.
//!
//! ```toml
//! format = 1
//! device = "npu1"
//! firmware_protocol = "5.7"     # the oldest that the pack is for
//! licence = "MIT"
//! stand_in = true               # only where the cores' program is no published one: see below
//! source = "where the files come from"
//!
//! [partition]
//! columns = 5
//! start_column = 0
//!
//! [xclbin]
//! file = "gemm.xclbin"
//! sha256 = "..."
//!
//! [[stream]]
//! file = "a8w8acc32_8_2048_2048.bin"
//! sha256 = "..."
//! operation = "matmul"
//! m = 8
//! k = 2048
//! n = 2048
//! types = { a = "i8", w = "i8", c = "i32" }
//! opcode = 3                    # a transaction stream as it is
//! slots = 6                     # buffers in the command, in the order of the kernel's arguments
//! kernel = { family = "int8", m = 8, k = 2048, n = 2048 }   # only if trine generates its streams
//!
//! [[stream.buffer]]                 # C, which is written, A and W have to be there
//! argument = 0
//! name = "C"
//! bytes = 65536
//! access = "write_once"         # or { read_together = 1 }, { read_by_each = { columns = 4, times = 1 } }
//! ```
//!
//! A pack whose streams name a kernel is refused if the xclbin's PDI is not the one that AMD
//! published for the kernel's family: [`crate::cores`]. With `stand_in` the PDI may be any, and the
//! pack is for trine's model of the driver only.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::contract::{Access, Buffer, Contract};
use crate::cores::CoreProgram;
use crate::error::PackError;
use crate::generate::{Family, Kernel};
use crate::packet::OPCODE_TRANSACTION;
use crate::product::{self, Operand};
use crate::txn::{STREAM_BYTES_MAX, Transaction};
use crate::verify::Verifier;
use crate::xclbin::{XCLBIN_BYTES_MAX, Xclbin};
use crate::{FormatError, read_file, sha256};

/// The name of the manifest in a pack's folder.
pub const MANIFEST: &str = "manifest.toml";
/// The largest manifest that is read.
const MANIFEST_BYTES_MAX: usize = 1 << 20;
/// The most streams of a pack. Of the largest family 24 are published.
const STREAMS_MAX: usize = 64;
/// The most bytes of a pack's streams together. AMD's 52 have 2 MB.
const STREAMS_BYTES_MAX: usize = 32 << 20;
/// Bytes of the longest name of a file.
const NAME_BYTES_MAX: usize = 255;
/// The oldest protocol of firmware that the Linux driver takes. It does not tell which one it has.
pub(crate) const PROTOCOL: (u16, u16) = (5, 7);
/// The device that packs are for: XDNA1.
pub const DEVICE: &str = "npu1";
/// The manifest's format.
pub(crate) const FORMAT: u32 = 1;
/// What a stream computes.
pub(crate) const OPERATION: &str = "matmul";
/// The kind of an xclbin's units that are the array's.
const ARRAY_UNIT: u32 = 7;
/// The name of the array's kernel in an xclbin's metadata.
const KERNEL_NAME: &str = "DPU";

/// A manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The manifest's format: 1.
    pub format: u32,
    /// `npu1`.
    pub device: String,
    /// The oldest firmware protocol that the pack is for, as `major.minor`.
    pub firmware_protocol: String,
    /// The licence of the files.
    pub licence: String,
    /// Where the files come from.
    pub source: String,
    /// Whether the cores' program only stands in for a published one, for trine's model.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stand_in: bool,
    /// The columns that the kernel uses.
    pub partition: PartitionEntry,
    /// The kernel.
    pub xclbin: FileEntry,
    /// The streams of commands for the kernel.
    pub stream: Vec<StreamEntry>,
}

/// The columns that a kernel uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartitionEntry {
    /// The number of columns.
    pub columns: u8,
    /// The first one in the array.
    pub start_column: u8,
}

/// A file and its hash.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileEntry {
    /// A name in the pack's folder.
    pub file: String,
    /// Its SHA-256, 64 lower-case hexadecimal digits.
    pub sha256: String,
}

/// Types of a product's matrices.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Types {
    /// The type of the activations.
    pub a: String,
    /// The type of the weights.
    pub w: String,
    /// The type of the result.
    pub c: String,
}

/// A stream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamEntry {
    /// A name in the pack's folder.
    pub file: String,
    /// Its SHA-256.
    pub sha256: String,
    /// What it computes: `matmul`.
    pub operation: String,
    /// Rows of A.
    pub m: u32,
    /// Columns of A.
    pub k: u32,
    /// Columns of C.
    pub n: u32,
    /// Types of the matrices.
    pub types: Types,
    /// The opcode in the command's payload: 3.
    pub opcode: u64,
    /// Buffers that the command has.
    pub slots: usize,
    /// The kernel, if trine generates its streams.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel: Option<Kernel>,
    /// Buffers that the stream uses.
    pub buffer: Vec<BufferEntry>,
}

/// A buffer that a stream uses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BufferEntry {
    /// The kernel's argument, from 0.
    pub argument: u32,
    /// Its name in messages.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// What is done with it.
    pub access: Access,
}

/// A pack whose files are what its manifest says. Its streams are not proven yet.
#[derive(Debug)]
pub struct Pack {
    /// The manifest.
    pub manifest: Manifest,
    /// The kernel.
    pub xclbin: Xclbin,
    /// The streams, in the manifest's order.
    pub streams: Vec<PackStream>,
    /// The xclbin's bytes.
    bytes: Vec<u8>,
    cores: Option<CoreProgram>,
}

/// A stream of a pack.
#[derive(Debug)]
pub struct PackStream {
    /// The stream.
    pub stream: Transaction,
    /// What proves it.
    pub verifier: Verifier,
}

impl StreamEntry {
    /// Compares shape, types and sizes.
    fn check_product(&self) -> Result<(), String> {
        let Types { a, w, c } = &self.types;
        let types = [a.as_str(), w, c];
        if let Some(kernel) = self.kernel.filter(|kernel| kernel.types() != types) {
            let expected = kernel.types();
            return Err(format!("types {types:?} of A, W and C; {kernel} has {expected:?}"));
        }
        let operands = self.buffer.iter().map(|buffer| Operand {
            name: &buffer.name,
            bytes: buffer.bytes,
            is_written: buffer.access == Access::WriteOnce,
        });
        let operands: Vec<Operand<'_>> = operands.collect();
        product::check((self.m, self.k, self.n), types, &operands)
    }
}

impl Manifest {
    /// Reads a manifest; `file` names it in errors.
    ///
    /// # Errors
    ///
    /// Returns an error if the text is no manifest, or names what trine does not know.
    pub fn parse(file: &str, text: &str) -> Result<Self, PackError> {
        let wrong = |problem: String| PackError::Manifest { file: file.to_owned(), problem };
        let manifest: Self = toml::from_str(text).map_err(|error| {
            let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
            let line = before.matches('\n').count() + 1;
            wrong(format!("line {line}: {}", error.message()))
        })?;
        manifest.check().map_err(wrong)?;
        Ok(manifest)
    }

    /// Reads the manifest in a folder, and no other file.
    ///
    /// # Errors
    ///
    /// Returns an error if there is none, or as [`Self::parse`].
    pub fn read(folder: &Path) -> Result<Self, PackError> {
        let bytes = read(folder, MANIFEST, MANIFEST_BYTES_MAX)?;
        let wrong = |problem: String| PackError::Manifest { file: MANIFEST.to_owned(), problem };
        let text = String::from_utf8(bytes).map_err(|error| wrong(error.to_string()))?;
        Self::parse(MANIFEST, &text)
    }

    /// Returns the text that [`Self::parse`] reads as this manifest.
    ///
    /// # Errors
    ///
    /// Returns an error for what no manifest can have.
    pub fn to_text(&self) -> Result<String, String> {
        self.check()?;
        toml::to_string(self).map_err(|error| error.to_string())
    }

    fn check(&self) -> Result<(), String> {
        let Self { format, device, firmware_protocol, .. } = self;
        if *format != FORMAT {
            return Err(format!("format {format}, this program reads {FORMAT}"));
        }
        if device != DEVICE {
            return Err(format!("device {device:?}, expected {DEVICE:?}"));
        }
        let Some(numbers) = protocol(firmware_protocol) else {
            return Err(format!(
                "firmware_protocol {firmware_protocol:?}, expected such as \"5.7\""
            ));
        };
        if numbers > PROTOCOL {
            let (major, minor) = PROTOCOL;
            return Err(format!(
                "firmware_protocol {firmware_protocol:?}; the driver does not tell more than that \
                 it is {major}.{minor} or later"
            ));
        }
        if self.licence.trim().is_empty() {
            return Err("licence is empty; name the licence of the files".to_owned());
        }
        check_file(&self.xclbin.file, &self.xclbin.sha256)?;
        let mut families = self.families();
        if let (Some(one), Some(other)) = (families.next(), families.next()) {
            return Err(format!(
                "streams of {one} and of {other}, and a pack has one program for the cores; make a \
                 pack for each"
            ));
        }
        if self.stream.is_empty() {
            return Err("no streams".to_owned());
        }
        if self.stream.len() > STREAMS_MAX {
            let count = self.stream.len();
            return Err(format!(
                "{count} streams, at most {STREAMS_MAX} are read; make several packs"
            ));
        }
        let mut known = BTreeSet::new();
        if let Some(twice) = self.stream.iter().find(|stream| !known.insert(&stream.file)) {
            return Err(format!("{} is there twice", twice.file));
        }
        let mut known = BTreeSet::new();
        let mut kernels = self.stream.iter().filter_map(|stream| stream.kernel);
        if let Some(twice) = kernels.find(|kernel| !known.insert(kernel.to_string())) {
            return Err(format!("two streams of {twice}"));
        }
        self.stream.iter().try_for_each(|stream| {
            check_file(&stream.file, &stream.sha256)?;
            let StreamEntry { file, operation, opcode, m, k, n, .. } = stream;
            if operation != OPERATION {
                return Err(format!("{file}: operation {operation:?}, expected {OPERATION:?}"));
            }
            if *opcode != OPCODE_TRANSACTION {
                return Err(format!("{file}: opcode {opcode}, expected {OPCODE_TRANSACTION}"));
            }
            if let Some(kernel) = stream.kernel
                && kernel.shape() != (*m, *k, *n)
            {
                return Err(format!("{file}: {m} x {k} x {n} is not the shape of {kernel}"));
            }
            stream.check_product().map_err(|problem| format!("{file}: {problem}"))
        })
    }

    /// Returns the families of the streams' kernels, each once.
    pub fn families(&self) -> impl Iterator<Item = Family> {
        let has = |family: &Family| {
            let mut kernels = self.stream.iter().filter_map(|stream| stream.kernel);
            kernels.any(|kernel| kernel.family() == *family)
        };
        Family::ALL.into_iter().filter(has)
    }

    /// Returns what a stream of this manifest is to do.
    #[must_use]
    pub fn contract(&self, stream: &StreamEntry) -> Contract {
        let buffers = stream.buffer.iter().map(|entry| Buffer {
            argument: entry.argument,
            name: entry.name.clone(),
            bytes: entry.bytes,
            access: entry.access,
        });
        Contract {
            columns: self.partition.columns,
            start_column: self.partition.start_column,
            slots: stream.slots,
            buffers: buffers.collect(),
            kernel: stream.kernel,
        }
    }
}

impl Pack {
    /// Reads a pack and compares all hashes.
    ///
    /// # Errors
    ///
    /// Returns an error if a file is missing, another than the manifest says, or broken, or if
    /// manifest and xclbin contradict each other.
    pub fn open(folder: &Path) -> Result<Self, PackError> {
        let manifest = Manifest::read(folder)?;
        let wrong = |problem: String| PackError::Manifest { file: MANIFEST.to_owned(), problem };
        let FileEntry { file, sha256 } = &manifest.xclbin;
        let bytes = read_hashed(folder, file, sha256, XCLBIN_BYTES_MAX)?;
        let xclbin = Xclbin::parse(&bytes).map_err(|source| broken(file, source))?;
        let mut streams = Vec::new();
        let mut left = STREAMS_BYTES_MAX;
        for entry in &manifest.stream {
            let bytes = read_hashed(folder, &entry.file, &entry.sha256, STREAM_BYTES_MAX)?;
            left = left.checked_sub(bytes.len()).ok_or_else(|| {
                wrong(format!("streams of more than {STREAMS_BYTES_MAX} bytes; make several packs"))
            })?;
            let stream =
                Transaction::parse(&bytes).map_err(|source| broken(&entry.file, source))?;
            check_kernel(&manifest, entry, &xclbin).map_err(wrong)?;
            let verifier = Verifier::new(manifest.contract(entry))
                .map_err(|problem| wrong(format!("{}: {problem}", entry.file)))?;
            streams.push(PackStream { stream, verifier });
        }
        let cores = match manifest.families().next() {
            Some(family) => Some(cores(&manifest, &xclbin, &bytes, family)?),
            None => None,
        };
        Ok(Self { manifest, xclbin, streams, bytes, cores })
    }

    /// Returns what the cores run, if a stream of the pack names a kernel.
    #[must_use]
    pub fn cores(&self) -> Option<&CoreProgram> {
        self.cores.as_ref()
    }

    /// Returns the cores' program, if the xclbin has exactly one.
    #[must_use]
    pub fn pdi(&self) -> Option<&[u8]> {
        pdi(&self.xclbin, &self.bytes)
    }
}

/// Returns the one PDI of an xclbin with these bytes.
fn pdi<'a>(xclbin: &Xclbin, bytes: &'a [u8]) -> Option<&'a [u8]> {
    match &xclbin.partition.as_ref()?.pdis[..] {
        [image] => bytes.get(image.range.clone()),
        _ => None,
    }
}

/// Compares the cores' program with the one that the streams are proven for.
fn cores(
    manifest: &Manifest,
    xclbin: &Xclbin,
    bytes: &[u8],
    family: Family,
) -> Result<CoreProgram, PackError> {
    let file = manifest.xclbin.file.clone();
    let Some(pdi) = pdi(xclbin, bytes) else {
        let problem = format!(
            "{file} has not exactly one PDI, which is what the cores of {family} run; use AMD's \
             published file"
        );
        return Err(PackError::Manifest { file: MANIFEST.to_owned(), problem });
    };
    if manifest.stand_in {
        return Ok(CoreProgram::stand_in(pdi, family));
    }
    CoreProgram::published(pdi, family).map_err(|source| PackError::Cores { file, source })
}

/// Compares what the manifest says with the xclbin.
fn check_kernel(manifest: &Manifest, entry: &StreamEntry, xclbin: &Xclbin) -> Result<(), String> {
    let file = &manifest.xclbin.file;
    let PartitionEntry { columns, start_column } = manifest.partition;
    let Some(partition) = &xclbin.partition else {
        return Err(format!("{file} has no partition of an array"));
    };
    let begins = partition.start_columns.contains(&u16::from(start_column));
    if partition.columns != u16::from(columns) || !begins {
        let (found, starts) = (partition.columns, &partition.start_columns);
        return Err(format!(
            "partition of {columns} columns from {start_column}; {file} has {found} columns from \
             one of {starts:?}"
        ));
    }
    let Some(kernel) = xclbin.kernels.iter().find(|kernel| kernel.name == KERNEL_NAME) else {
        return Err(format!("{file} has no kernel {KERNEL_NAME}"));
    };
    // The driver is told a function for each unit, and trine tells it 0.
    let mut units = xclbin.units.iter().filter(|unit| unit.kind == ARRAY_UNIT);
    if let Some(unit) = units.find(|unit| unit.function() != 0) {
        let (name, function) = (&unit.name, unit.function());
        return Err(format!("{file}: unit {name:?} has function {function}, expected 0"));
    }
    if kernel.buffers() != entry.slots {
        let (stream, slots, found) = (&entry.file, entry.slots, kernel.buffers());
        return Err(format!("{stream}: {slots} slots; the kernel in {file} has {found} buffers"));
    }
    Ok(())
}

/// Reads a version of two numbers.
fn protocol(text: &str) -> Option<(u16, u16)> {
    let number = |digits: &str| {
        let is_plain = digits.bytes().all(|byte| byte.is_ascii_digit());
        digits.parse().ok().filter(|_| is_plain)
    };
    let (major, minor) = text.split_once('.')?;
    Some((number(major)?, number(minor)?))
}

/// Refuses names that could lead out of the folder, and hashes that are none.
fn check_file(file: &str, hash: &str) -> Result<(), String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let is_named = (1..=NAME_BYTES_MAX).contains(&file.len()) && !file.starts_with('.');
    if !is_named || !file.bytes().all(is_plain) {
        return Err(format!(
            "file {file:?}, expected a name of letters, digits, '.', '_' and '-', at most \
             {NAME_BYTES_MAX}"
        ));
    }
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    if hash.len() != 64 || !hash.bytes().all(is_digit) {
        return Err(format!("{file}: sha256 {hash:?}, expected 64 lower-case hexadecimal digits"));
    }
    Ok(())
}

fn broken(file: &str, source: FormatError) -> PackError {
    PackError::Format { file: file.to_owned(), source }
}

/// Reads a file of at most `limit` bytes.
fn read(folder: &Path, file: &str, limit: usize) -> Result<Vec<u8>, PackError> {
    let path = folder.join(file);
    read_file(&path, limit).map_err(|source| {
        let file = path.display().to_string();
        if source.kind() != ErrorKind::FileTooLarge {
            return PackError::Io { file, source };
        }
        let bytes = std::fs::metadata(&path).map_or(0, |data| data.len());
        PackError::TooLarge { file, bytes, limit: limit as u64 }
    })
}

/// Reads a file and compares its hash.
fn read_hashed(
    folder: &Path,
    file: &str,
    expected: &str,
    limit: usize,
) -> Result<Vec<u8>, PackError> {
    let bytes = read(folder, file, limit)?;
    let found = sha256(&bytes);
    if found != expected {
        let (file, expected) = (file.to_owned(), expected.to_owned());
        return Err(PackError::Hash { file, expected, found });
    }
    Ok(bytes)
}
