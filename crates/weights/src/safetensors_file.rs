//! One safetensors file: a JSON header that names ranges of the bytes after it.
//!
//! ```text
//! u64 header length, JSON { "name": {"dtype", "shape", "data_offsets": [begin, end]}, ... }, data
//! ```
//!
//! The format's own library parses the header. It keeps the last of two entries with one name and
//! trusts offsets in a sum, so the header is walked once before: names must be unique, offsets
//! inside the file, and counts bounded (the limits are constants below). The library then confirms
//! that the ranges fit their shapes and cover the data without gap, overlap or trailing bytes.

use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use safetensors::SafeTensors;
use safetensors::tensor::SafeTensorError;
use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, de};

use crate::error::quoted;
use crate::map::Mapping;
use crate::{DType, WeightsError, foreign};

/// The most bytes of a header, the format's own limit.
const HEADER_BYTES_MAX: u64 = 100_000_000;
/// The most tensors of one file.
const TENSORS_MAX: usize = 1 << 17;
/// The most dimensions of a tensor.
const RANK_MAX: usize = 8;
/// The most bytes of a tensor's name.
const NAME_BYTES_MAX: usize = 512;

/// One tensor of the file, in whatever element format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The tensor's name.
    pub name: String,
    /// The element format as the file names it, for example `BF16` or `I64`.
    pub format: String,
    /// Dimensions, outermost first.
    pub shape: Vec<usize>,
    /// The range of its bytes in the file.
    pub range: Range<usize>,
}

impl Entry {
    /// Returns the element format, or `None` if trine does not read it.
    pub fn dtype(&self) -> Option<DType> {
        match self.format.as_str() {
            "F32" => Some(DType::F32),
            "F16" => Some(DType::F16),
            "BF16" => Some(DType::BF16),
            _ => None,
        }
    }
}

/// A mapped safetensors file with a checked header.
#[derive(Clone, Debug)]
pub struct SafetensorsFile {
    mapping: Arc<Mapping>,
    entries: Vec<Entry>, // by offset
}

impl SafetensorsFile {
    /// Maps the file and checks its header.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be mapped or breaks the format's rules.
    pub fn open(path: &Path) -> Result<Self, WeightsError> {
        let mapping = Mapping::open(path)?;
        let entries = parse(mapping.bytes(), mapping.label())?;
        Ok(Self { mapping, entries })
    }

    /// Returns the tensors, in the order of their bytes.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Returns the tensor called `name`.
    pub fn entry(&self, name: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.name == name)
    }

    /// Returns the bytes of a tensor of this file.
    ///
    /// # Panics
    ///
    /// Panics if `entry` is from a larger file.
    pub fn bytes(&self, entry: &Entry) -> &[u8] {
        &self.mapping.bytes()[entry.range.clone()]
    }

    pub(crate) fn into_parts(self) -> (Arc<Mapping>, Vec<Entry>) {
        (self.mapping, self.entries)
    }
}

/// Checks the header of a whole safetensors file given as bytes. `file` names it in errors.
///
/// # Errors
///
/// Returns an error if the header is too long, is not a JSON object or names a tensor twice, or if
/// its offsets do not cover the data exactly.
pub fn parse(bytes: &[u8], file: &str) -> Result<Vec<Entry>, WeightsError> {
    // A sound file may begin with any bytes, so only an unsound one is looked at for what it is.
    parse_sound(bytes, file).map_err(|error| foreign::recognise(file, bytes).unwrap_or(error))
}

fn parse_sound(bytes: &[u8], file: &str) -> Result<Vec<Entry>, WeightsError> {
    let fail = |offset: u64, problem: String| WeightsError::malformed(file, offset, problem);
    let Some((length, rest)) = bytes.split_first_chunk::<8>() else {
        let problem = format!("the file has {} bytes; a safetensors header needs 8", bytes.len());
        return Err(fail(0, problem));
    };
    let length = u64::from_le_bytes(*length);
    if !(2..=HEADER_BYTES_MAX).contains(&length) || length > rest.len() as u64 {
        let problem = format!(
            "the header claims {length} bytes; 2 to {HEADER_BYTES_MAX} are allowed and {} follow",
            rest.len()
        );
        return Err(fail(0, problem));
    }
    let (header, data) = rest.split_at(length as usize);
    if header[0] != b'{' {
        let shown = quoted(&header[..header.len().min(8)]);
        return Err(fail(8, format!("the header starts with {shown} where `{{` is expected")));
    }
    check_header(header, data.len()).map_err(|error| {
        fail(8 + error.column() as u64, format!("the header is unsound: {error}"))
    })?;
    let (_, metadata) =
        SafeTensors::read_metadata(bytes).map_err(|error| explain(file, &error, length))?;
    let data_start = 8 + length as usize;
    let mut entries = Vec::with_capacity(metadata.tensors().len());
    for (name, info) in metadata.tensors() {
        entries.push(Entry {
            name,
            format: info.dtype.to_string(),
            shape: info.shape.clone(),
            range: data_start + info.data_offsets.0..data_start + info.data_offsets.1,
        });
    }
    entries.sort_by(|a, b| {
        (a.range.start, a.range.end, &a.name).cmp(&(b.range.start, b.range.end, &b.name))
    });
    Ok(entries)
}

fn explain(file: &str, error: &SafeTensorError, header_bytes: u64) -> WeightsError {
    let problem = match error {
        SafeTensorError::InvalidOffset(name) => format!(
            "the data of tensor {} overlaps or leaves a gap to the tensor before it",
            quoted(name.as_bytes())
        ),
        SafeTensorError::MetadataIncompleteBuffer => {
            "the tensors do not end where the file ends (it is cut, or something was appended)"
                .into()
        }
        SafeTensorError::TensorInvalidInfo => {
            "a tensor's range has another length than its shape and format need".into()
        }
        other => format!("the header is unsound: {other}"),
    };
    let offset = match error {
        SafeTensorError::MetadataIncompleteBuffer => 8 + header_bytes,
        _ => 8,
    };
    WeightsError::malformed(file, offset, problem)
}

/// Walks the header, keeping only the names, and checks uniqueness and bounds.
fn check_header(header: &[u8], data_bytes: usize) -> Result<(), serde_json::Error> {
    let mut json = serde_json::Deserializer::from_slice(header);
    let mut names = json.deserialize_map(HeaderVisitor { data_bytes })?;
    json.end()?;
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        None => Ok(()),
        Some(pair) => {
            let shown = quoted(pair[0].as_bytes());
            Err(serde_json::Error::custom(format!("tensor {shown} appears twice")))
        }
    }
}

struct HeaderVisitor {
    data_bytes: usize,
}

impl<'de> Visitor<'de> for HeaderVisitor {
    type Value = Vec<Box<str>>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut names: Vec<Box<str>> = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            if name.len() > NAME_BYTES_MAX {
                return Err(A::Error::custom(format!(
                    "a name of {} bytes; at most {NAME_BYTES_MAX} are read",
                    name.len()
                )));
            }
            if names.len() == TENSORS_MAX {
                return Err(A::Error::custom(format!("more than {TENSORS_MAX} tensors")));
            }
            if name == "__metadata__" {
                map.next_value::<IgnoredAny>()?;
            } else {
                let row: HeaderRow = map.next_value()?;
                let [begin, end] = row.data_offsets;
                if begin > end || end > self.data_bytes as u64 {
                    return Err(A::Error::custom(format!(
                        "tensor {} lies at {begin}..{end} of {} bytes of data",
                        quoted(name.as_bytes()),
                        self.data_bytes
                    )));
                }
            }
            names.push(name.into());
        }
        Ok(names)
    }
}

#[derive(Deserialize)]
struct HeaderRow {
    data_offsets: [u64; 2],
    #[serde(rename = "shape", deserialize_with = "short_sequence")]
    _shape: (),
}

/// Reads a list of at most [`RANK_MAX`] numbers without keeping it.
fn short_sequence<'de, D: Deserializer<'de>>(deserializer: D) -> Result<(), D::Error> {
    struct Short;
    impl<'de> Visitor<'de> for Short {
        type Value = ();

        fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(formatter, "at most {RANK_MAX} dimensions")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut dimensions: A) -> Result<(), A::Error> {
            let mut count = 0;
            while dimensions.next_element::<u64>()?.is_some() {
                count += 1;
                if count > RANK_MAX {
                    return Err(de::Error::invalid_length(count, &self));
                }
            }
            Ok(())
        }
    }
    deserializer.deserialize_seq(Short)
}
