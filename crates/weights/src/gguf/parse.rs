//! Reading the header, the metadata and the tensor table of a GGUF file.

use std::ops::Range;

use super::cursor::Cursor;
use super::{
    ALIGNMENT_KEY, ARCHITECTURE_KEY, ARRAY_DEPTH_MAX, Array, DEFAULT_ALIGNMENT, ENTRIES_MAX,
    Element, GgufMetadata, KEY_BYTES_MAX, MAGIC, METADATA_BYTES_MAX, NAME_BYTES_MAX,
    NESTED_ARRAYS_MAX, StringArray, TENSORS_MAX, Value, alignment_is_valid,
};
use crate::dtype::foreign_ggml_name;
use crate::error::quoted;
use crate::{DType, WeightsError};

/// Everything a GGUF file says before its tensor data, checked.
#[derive(Clone, Debug)]
pub struct Layout {
    /// Format version, 2 or 3.
    pub version: u32,
    /// Alignment of tensor data, in bytes.
    pub alignment: u32,
    /// The metadata.
    pub metadata: GgufMetadata,
    /// The tensors in file order.
    pub tensors: Vec<TensorInfo>,
    /// The tensors of integers in file order.
    pub integers: Vec<IntegersInfo>,
}

/// One row of the tensor table.
#[derive(Clone, Debug)]
pub struct TensorInfo {
    /// The tensor's name, unique in the file.
    pub name: Box<str>,
    /// How its elements are stored.
    pub dtype: DType,
    /// Dimensions, outermost first.
    pub shape: Box<[usize]>,
    /// The range of its bytes in the file.
    pub range: Range<usize>,
}

/// One row of the tensor table, for a tensor of integers.
#[derive(Clone, Debug)]
pub struct IntegersInfo {
    /// The tensor's name, unique in the file.
    pub name: Box<str>,
    /// The bytes of each, 4 or 8.
    pub width: usize,
    /// The range of its bytes in the file.
    pub range: Range<usize>,
}

/// Reads a whole GGUF file given as bytes. `file` names it in errors.
///
/// Allocates no more than the text and numbers of the metadata, which are bounded, plus the two
/// tables.
///
/// # Errors
///
/// Returns an error if the bytes are not GGUF version 2 or 3, break its rules or the limits stated
/// in [the module's page](super), or use an element format that trine does not decode.
pub fn parse(bytes: &[u8], file: &str) -> Result<Layout, WeightsError> {
    let mut cursor = Cursor::new(bytes, file);
    let version = read_version(&mut cursor)?;
    let (tensor_count, entry_count) = read_counts(&mut cursor)?;
    let (metadata, alignment) = read_metadata(&mut cursor, entry_count)?;
    let mut tensors = Vec::with_capacity(tensor_count as usize);
    let table_start = cursor.offset();
    for _ in 0..tensor_count {
        tensors.push(read_tensor(&mut cursor, alignment)?);
    }
    require_unique_names(&cursor, table_start, &tensors)?;
    place_tensors(&cursor, bytes.len(), alignment, &mut tensors)?;
    let mut layout =
        Layout { version, alignment, metadata, tensors: Vec::new(), integers: Vec::new() };
    layout.tensors.reserve_exact(tensors.len());
    for Row { name, element, shape, range, .. } in tensors {
        match element {
            Element::Values(dtype) => layout.tensors.push(TensorInfo { name, dtype, shape, range }),
            Element::I32 | Element::I64 => {
                layout.integers.push(IntegersInfo { name, width: element.block_bytes(), range });
            }
        }
    }
    Ok(layout)
}

/// Returns the `general.architecture` of a GGUF file whose first part is `beginning`, as
/// [`text_of`] does. Writers put it first.
///
/// # Errors
///
/// As [`text_of`].
pub fn architecture(beginning: &[u8], file: &str) -> Result<Option<String>, WeightsError> {
    text_of(ARCHITECTURE_KEY, beginning, file)
}

/// Returns the text under a key of a GGUF file whose first part is `beginning`, or `None` if the
/// key is not in that part. `file` names the file in errors.
///
/// # Errors
///
/// Returns an error if the bytes do not begin like a GGUF file of version 2 or 3.
pub fn text_of(key: &str, beginning: &[u8], file: &str) -> Result<Option<String>, WeightsError> {
    let mut cursor = Cursor::new(beginning, file);
    read_version(&mut cursor)?;
    Ok(find_text(key, &mut cursor))
}

/// Returns whether `beginning` has all that a GGUF file says before its tensor data.
pub(crate) fn holds_header(beginning: &[u8]) -> bool {
    let mut cursor = Cursor::new(beginning, "");
    let mut read = || -> Result<(), WeightsError> {
        read_version(&mut cursor)?;
        let (tensors, entries) = read_counts(&mut cursor)?;
        let (_, alignment) = read_metadata(&mut cursor, entries)?;
        (0..tensors).try_for_each(|_| read_tensor(&mut cursor, alignment).map(drop))
    };
    read().is_ok()
}

fn find_text(wanted: &str, cursor: &mut Cursor<'_>) -> Option<String> {
    cursor.u64("").ok()?;
    let entries = cursor.u64("").ok()?;
    let mut nested = 0;
    for _ in 0..entries {
        let key = cursor.name(KEY_BYTES_MAX, "").ok()?;
        let kind_offset = cursor.offset();
        let kind = cursor.u32("").ok()?;
        let value = read_value(cursor, "", kind, kind_offset, &mut nested).ok()?;
        if &*key == wanted {
            return match value {
                Value::String(name) => Some(name.into()),
                _ => None,
            };
        }
    }
    None
}

fn read_version(cursor: &mut Cursor<'_>) -> Result<u32, WeightsError> {
    let file = cursor.file();
    let magic: [u8; 4] = cursor.array("the magic number of a GGUF file")?;
    if magic != MAGIC {
        let hint =
            if magic == [b'F', b'U', b'G', b'G'] { ", which is `GGUF` reversed" } else { "" };
        let found =
            format!("starts with {}{hint}, not with `GGUF`: not a GGUF file", quoted(&magic));
        return Err(WeightsError::not_a_model(file, found));
    }
    let version = cursor.u32("the GGUF version")?;
    let what = match version {
        2 | 3 => return Ok(version),
        1 => "GGUF version 1, which was replaced within weeks of its start".to_owned(),
        _ if matches!(version.swap_bytes(), 1..=255) => format!(
            "GGUF version {} in big-endian byte order; only little-endian files are read",
            version.swap_bytes()
        ),
        _ => format!("unsupported GGUF version {version}; versions 2 and 3 are read"),
    };
    let remedy = "Get a file made by a current converter, or convert the original model again";
    Err(WeightsError::Unsupported { file: file.to_owned(), what, remedy })
}

/// The fewest bytes of a metadata entry: key length, one byte of key, type, one byte of value.
const ENTRY_BYTES_MIN: u64 = 8 + 1 + 4 + 1;
/// The fewest bytes of a tensor row: name length, one byte of name, count, one dimension, type,
/// offset.
const TENSOR_BYTES_MIN: u64 = 8 + 1 + 4 + 8 + 4 + 8;

fn read_counts(cursor: &mut Cursor<'_>) -> Result<(u64, u64), WeightsError> {
    let mut counts = [0; 2];
    let kinds = [
        ("tensors", TENSOR_BYTES_MIN, TENSORS_MAX),
        ("metadata entries", ENTRY_BYTES_MIN, ENTRIES_MAX),
    ];
    let mut starts = [0; 2];
    for (index, (what, _, _)) in kinds.iter().enumerate() {
        starts[index] = cursor.offset();
        counts[index] = cursor.u64(&format!("the number of {what}"))?;
    }
    for (index, (what, bytes_min, limit)) in kinds.into_iter().enumerate() {
        let (count, left) = (counts[index], cursor.remaining());
        let problem = if count > left / bytes_min {
            format!("the file claims {count} {what}, but has only {left} bytes left")
        } else if count > limit {
            format!("the file has {count} {what}; at most {limit} are read")
        } else {
            continue;
        };
        return Err(cursor.error_at(starts[index], problem));
    }
    Ok((counts[0], counts[1]))
}

fn read_metadata(cursor: &mut Cursor<'_>, count: u64) -> Result<(GgufMetadata, u32), WeightsError> {
    let start = cursor.offset();
    cursor.bound(Some((METADATA_BYTES_MAX, "the metadata")));
    let mut entries = Vec::with_capacity(count as usize);
    let mut nested = 0;
    let mut alignment = DEFAULT_ALIGNMENT;
    for _ in 0..count {
        let key = cursor.name(KEY_BYTES_MAX, "a metadata key")?;
        let kind_offset = cursor.offset();
        let shown = quoted(key.as_bytes());
        let kind = cursor.u32(&shown)?;
        let value = read_value(cursor, &shown, kind, kind_offset, &mut nested)?;
        if &*key == ALIGNMENT_KEY {
            alignment = match value {
                Value::U32(number) if alignment_is_valid(number.into()) => number,
                other => {
                    let problem = format!(
                        "`{ALIGNMENT_KEY}` is {other:?}; expected a u32 power of two from 8 to \
                         65536"
                    );
                    return Err(cursor.error_at(kind_offset, problem));
                }
            };
        }
        entries.push((key, value));
    }
    cursor.bound(None);
    let metadata = GgufMetadata::from_entries(cursor.file(), entries).map_err(|key| {
        cursor.error_at(start, format!("metadata key {} appears twice", quoted(key.as_bytes())))
    })?;
    Ok((metadata, alignment))
}

fn read_value(
    cursor: &mut Cursor<'_>,
    key: &str,
    kind: u32,
    kind_offset: usize,
    nested: &mut u64,
) -> Result<Value, WeightsError> {
    Ok(match kind {
        0 => Value::U8(u8::from_le_bytes(cursor.array(key)?)),
        1 => Value::I8(i8::from_le_bytes(cursor.array(key)?)),
        2 => Value::U16(u16::from_le_bytes(cursor.array(key)?)),
        3 => Value::I16(i16::from_le_bytes(cursor.array(key)?)),
        4 => Value::U32(u32::from_le_bytes(cursor.array(key)?)),
        5 => Value::I32(i32::from_le_bytes(cursor.array(key)?)),
        6 => Value::F32(f32::from_le_bytes(cursor.array(key)?)),
        7 => {
            let start = cursor.offset();
            let byte = cursor.array::<1>(key)?[0];
            Value::Bool(to_bool(byte).ok_or_else(|| bad_bool(cursor, start, key, byte))?)
        }
        8 => {
            let start = cursor.offset();
            let bytes = cursor.string_bytes(key)?.to_vec();
            let text = String::from_utf8(bytes)
                .map_err(|_| cursor.error_at(start, format!("the text of {key} is not UTF-8")))?;
            Value::String(text.into())
        }
        9 => Value::Array(read_array(cursor, key, 1, nested)?),
        10 => Value::U64(u64::from_le_bytes(cursor.array(key)?)),
        11 => Value::I64(i64::from_le_bytes(cursor.array(key)?)),
        12 => Value::F64(f64::from_le_bytes(cursor.array(key)?)),
        _ => {
            let problem = format!("{key} has the unknown value type {kind}");
            return Err(cursor.error_at(kind_offset, problem));
        }
    })
}

fn to_bool(byte: u8) -> Option<bool> {
    match byte {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

fn bad_bool(cursor: &Cursor<'_>, offset: usize, key: &str, byte: u8) -> WeightsError {
    let problem = format!("{key} holds {byte} where 0 or 1 is expected");
    cursor.error_at(offset, problem)
}

fn read_array(
    cursor: &mut Cursor<'_>,
    key: &str,
    depth: u32,
    nested: &mut u64,
) -> Result<Array, WeightsError> {
    let start = cursor.offset();
    let kind = cursor.u32(key)?;
    let count = cursor.u64(key)?;
    Ok(match kind {
        0 => Array::U8(read_numbers(cursor, key, count, u8::from_le_bytes)?),
        1 => Array::I8(read_numbers(cursor, key, count, i8::from_le_bytes)?),
        2 => Array::U16(read_numbers(cursor, key, count, u16::from_le_bytes)?),
        3 => Array::I16(read_numbers(cursor, key, count, i16::from_le_bytes)?),
        4 => Array::U32(read_numbers(cursor, key, count, u32::from_le_bytes)?),
        5 => Array::I32(read_numbers(cursor, key, count, i32::from_le_bytes)?),
        6 => Array::F32(read_numbers(cursor, key, count, f32::from_le_bytes)?),
        7 => {
            let first = cursor.offset();
            let bytes = cursor.take(count, key)?;
            let mut flags = Vec::with_capacity(bytes.len());
            for (index, &byte) in bytes.iter().enumerate() {
                flags
                    .push(to_bool(byte).ok_or_else(|| bad_bool(cursor, first + index, key, byte))?);
            }
            Array::Bool(flags)
        }
        8 => Array::String(read_strings(cursor, key, count)?),
        9 => Array::Array(read_nested(cursor, key, start, count, depth, nested)?),
        10 => Array::U64(read_numbers(cursor, key, count, u64::from_le_bytes)?),
        11 => Array::I64(read_numbers(cursor, key, count, i64::from_le_bytes)?),
        12 => Array::F64(read_numbers(cursor, key, count, f64::from_le_bytes)?),
        _ => {
            let problem = format!("{key} has the unknown element type {kind}");
            return Err(cursor.error_at(start, problem));
        }
    })
}

fn read_numbers<T, const N: usize>(
    cursor: &mut Cursor<'_>,
    key: &str,
    count: u64,
    convert: fn([u8; N]) -> T,
) -> Result<Vec<T>, WeightsError> {
    let bytes = count
        .checked_mul(N as u64)
        .ok_or_else(|| cursor.error_here(format!("{key} claims {count} elements")))?;
    let chunks = cursor.take(bytes, key)?.chunks_exact(N);
    Ok(chunks.map(|chunk| convert(chunk.try_into().expect("chunks have N bytes"))).collect())
}

fn read_nested(
    cursor: &mut Cursor<'_>,
    key: &str,
    start: usize,
    count: u64,
    depth: u32,
    nested: &mut u64,
) -> Result<Vec<Array>, WeightsError> {
    *nested = nested.saturating_add(count);
    if depth >= ARRAY_DEPTH_MAX || *nested > NESTED_ARRAYS_MAX {
        let problem = format!(
            "{key} nests {count} arrays at depth {depth}; at most {NESTED_ARRAYS_MAX} to depth \
             {ARRAY_DEPTH_MAX} are read"
        );
        return Err(cursor.error_at(start, problem));
    }
    // Each element takes at least its type and its count.
    if count > cursor.remaining() / 12 {
        let problem = format!("{key} claims {count} arrays");
        return Err(cursor.error_at(start, problem));
    }
    let mut arrays = Vec::with_capacity(count as usize);
    for _ in 0..count {
        arrays.push(read_array(cursor, key, depth + 1, nested)?);
    }
    Ok(arrays)
}

/// Reads strings into one text. The first walk checks and sums the lengths so that the text is
/// allocated once, at its size.
fn read_strings(
    cursor: &mut Cursor<'_>,
    key: &str,
    count: u64,
) -> Result<StringArray, WeightsError> {
    let start = cursor.offset();
    if count > cursor.remaining() / 8 {
        let problem = format!(
            "{key} claims {count} strings, but the file has {} bytes left",
            cursor.remaining()
        );
        return Err(cursor.error_at(start, problem));
    }
    let mut total = 0_usize;
    for _ in 0..count {
        total += cursor.string_bytes(key)?.len(); // at most the file's length
    }
    if u32::try_from(total).is_err() {
        let problem = format!("the strings of {key} exceed 4 GiB");
        return Err(cursor.error_at(start, problem));
    }
    cursor.rewind(start);
    let mut text = Vec::with_capacity(total);
    let mut ends = Vec::with_capacity(count as usize);
    for _ in 0..count {
        let string = cursor.string_bytes(key)?;
        // A file that changes between the walks must not grow the text without bound.
        if string.len() > total - text.len() {
            return Err(cursor.error_here("the file changes while it is read".to_owned()));
        }
        text.extend_from_slice(string);
        ends.push(text.len() as u32);
    }
    let not_text = |index: usize| {
        let problem = format!("string {index} of {key} is not UTF-8");
        cursor.error_at(start, problem)
    };
    let text = String::from_utf8(text).map_err(|error| {
        let place = error.utf8_error().valid_up_to() as u32;
        not_text(ends.partition_point(|&end| end <= place))
    })?;
    StringArray::from_parts(text, ends).map_err(not_text)
}

/// A row of the tensor table. Its range is set when all rows are known.
struct Row {
    name: Box<str>,
    element: Element,
    shape: Box<[usize]>,
    range: Range<usize>,
    table_offset: usize,
    data_offset: u64,
    data_bytes: u64,
}

fn read_tensor(cursor: &mut Cursor<'_>, alignment: u32) -> Result<Row, WeightsError> {
    let table_offset = cursor.offset();
    let name = cursor.name(NAME_BYTES_MAX, "a tensor name")?;
    let shown = quoted(name.as_bytes());
    let count = cursor.u32("a tensor's number of dimensions")?;
    if !(1..=4).contains(&count) {
        let problem = format!("tensor {shown} has {count} dimensions; 1 to 4 are allowed");
        return Err(cursor.error_at(table_offset, problem));
    }
    let mut shape = Vec::with_capacity(count as usize);
    for _ in 0..count {
        shape.push(cursor.u64("a tensor's dimension")?);
    }
    shape.reverse(); // the file stores the fastest dimension first
    let element = read_element(cursor, &shown)?;
    let data_offset = cursor.u64("a tensor's offset")?;
    let fail = |problem: String| cursor.error_at(table_offset, format!("tensor {shown} {problem}"));
    let (shape, data_bytes) = measure(&shape, element).map_err(fail)?;
    if data_offset % u64::from(alignment) != 0 {
        return Err(fail(format!(
            "starts at {data_offset}, which is not a multiple of {alignment}"
        )));
    }
    Ok(Row { name, element, shape, range: 0..0, table_offset, data_offset, data_bytes })
}

fn read_element(cursor: &mut Cursor<'_>, shown: &str) -> Result<Element, WeightsError> {
    let offset = cursor.offset();
    let id = cursor.u32("a tensor's type")?;
    if let Some(element) = Element::from_ggml(id) {
        return Ok(element);
    }
    Err(match foreign_ggml_name(id) {
        Some(name) => WeightsError::Unsupported {
            file: cursor.file().to_owned(),
            what: format!("tensor {shown} is stored as {name}, which trine does not decode"),
            remedy: "Use the model's Q4_K_M, Q4_0 or Q8_0 file instead",
        },
        None => cursor.error_at(offset, format!("tensor {shown} has the unknown type {id}")),
    })
}

/// Returns the shape in machine words and the bytes that it needs, with every product checked.
fn measure(shape: &[u64], element: Element) -> Result<(Box<[usize]>, u64), String> {
    let too_large = || format!("has dimensions {shape:?}, whose product overflows");
    let words: Option<Box<[usize]>> =
        shape.iter().map(|&dimension| usize::try_from(dimension).ok()).collect();
    let words = words.ok_or_else(too_large)?;
    // The product of the non-zero dimensions counts, so that a zero cannot hide an overflow.
    let elements = shape
        .iter()
        .filter(|&&dimension| dimension != 0)
        .try_fold(1_u64, |product, &dimension| product.checked_mul(dimension))
        .filter(|&product| i64::try_from(product).is_ok())
        .ok_or_else(too_large)?;
    let (columns, rows) = words.split_last().expect("at least one dimension");
    let block = element.block_elements();
    if columns % block != 0 {
        return Err(format!(
            "has rows of {columns} elements, which are not whole {} blocks of {block}",
            element.name()
        ));
    }
    let row_bytes = element.row_bytes(*columns).ok_or_else(too_large)?;
    (elements / block as u64).checked_mul(element.block_bytes() as u64).ok_or_else(too_large)?;
    let rows = rows.iter().try_fold(1_usize, |product, &rows| product.checked_mul(rows));
    let bytes = rows.and_then(|rows| rows.checked_mul(row_bytes)).ok_or_else(too_large)?;
    Ok((words, bytes as u64))
}

fn require_unique_names(
    cursor: &Cursor<'_>,
    table_start: usize,
    tensors: &[Row],
) -> Result<(), WeightsError> {
    let mut names: Vec<&str> = tensors.iter().map(|row| &*row.name).collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        None => Ok(()),
        Some(pair) => {
            let problem = format!("tensor {} appears twice", quoted(pair[0].as_bytes()));
            Err(cursor.error_at(table_start, problem))
        }
    }
}

/// Checks that the tensors follow each other inside the file and sets their ranges.
fn place_tensors(
    cursor: &Cursor<'_>,
    file_bytes: usize,
    alignment: u32,
    tensors: &mut [Row],
) -> Result<(), WeightsError> {
    let alignment = u64::from(alignment);
    let file_bytes = file_bytes as u64;
    let data_start = (cursor.offset() as u64).next_multiple_of(alignment);
    let mut expected = 0_u64; // data offset of the next tensor
    for row in tensors {
        let fail = |problem: String| {
            let shown = quoted(row.name.as_bytes());
            cursor.error_at(row.table_offset, format!("tensor {shown} {problem}"))
        };
        if row.data_offset != expected {
            let problem = format!(
                "starts at data offset {}, where {expected} follows from the tensors before it",
                row.data_offset
            );
            return Err(fail(problem));
        }
        let start = data_start.checked_add(row.data_offset);
        let end = start.and_then(|start| start.checked_add(row.data_bytes));
        // A tensor without elements may start in padding that the file does not have.
        let fits = |&end: &u64| end <= file_bytes || row.data_bytes == 0;
        let (Some(start), Some(end)) = (start, end.filter(fits)) else {
            let problem = format!(
                "needs {} bytes at {}, but the file ends at {file_bytes}",
                row.data_bytes,
                start.unwrap_or(u64::MAX)
            );
            return Err(fail(problem));
        };
        row.range = if start == end { 0..0 } else { start as usize..end as usize };
        // Both summands are below the file's length, so rounding up cannot overflow.
        expected = (row.data_offset + row.data_bytes).next_multiple_of(alignment);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::parse;
    use crate::error::{DOWNLOAD_AGAIN, GIVE_A_MODEL};

    #[test]
    fn messages_name_the_remedy() {
        let message = parse(b"PK\x03\x04....", "model.gguf").unwrap_err().to_string();
        assert!(message.contains(GIVE_A_MODEL), "{message}");
        let message = parse(b"GGUF\x03\0\0\0\x01", "model.gguf").unwrap_err().to_string();
        assert!(message.contains(DOWNLOAD_AGAIN) && message.contains("at byte 8"), "{message}");
    }
}
