//! Bytes to a stream.

use super::{
    Action, FORMAT, HEADER_BYTES, Header, MaskForm, Operation, STREAM_BYTES_MAX, Spare, Transaction,
};
use crate::FormatError;
use crate::bytes::Bytes;
use crate::tile::Address;

/// No operation is shorter: the kind and a size.
const OPERATION_BYTES_MIN: usize = 8;

impl Transaction {
    /// Reads a stream. All bytes have to belong to it.
    ///
    /// # Errors
    ///
    /// Returns an error with the byte and what was expected there.
    pub fn parse(bytes: &[u8]) -> Result<Self, FormatError> {
        let bytes = Bytes::new(FORMAT, bytes);
        if bytes.len() > STREAM_BYTES_MAX {
            let problem = format!("{} bytes, at most {STREAM_BYTES_MAX} are read", bytes.len());
            return Err(bytes.error(0, problem));
        }
        let fields: [u8; 8] = bytes.array(0, "the header")?;
        let header = Header {
            version: (fields[0], fields[1]),
            generation: fields[2],
            rows: fields[3],
            columns: fields[4],
            memory_rows: fields[5],
            padding: [fields[6], fields[7]],
        };
        if header.version != (0, 1) {
            let (major, minor) = header.version;
            let problem = format!("version {major}.{minor}, only 0.1 is read");
            return Err(bytes.error(0, problem));
        }
        let count = bytes.u32(8, "the number of operations")? as usize;
        let size = bytes.u32(12, "the size of the stream")? as usize;
        if size != bytes.len() {
            let problem = format!("the stream has {} bytes, its header says {size}", bytes.len());
            return Err(bytes.error(12, problem));
        }
        if count > (size - HEADER_BYTES.min(size)) / OPERATION_BYTES_MIN {
            let problem = format!("{count} operations do not fit in {size} bytes");
            return Err(bytes.error(8, problem));
        }
        let mut operations = Vec::with_capacity(count);
        let mut offset = HEADER_BYTES;
        for _ in 0..count {
            let (operation, length) = operation(bytes, offset)?;
            operations.push(operation);
            offset += length;
        }
        if offset != size {
            let problem = format!("{count} operations end here, the stream at byte {size}");
            return Err(bytes.error(offset, problem));
        }
        Ok(Self { header, operations })
    }
}

/// Reads the operation at `offset` and returns its length.
fn operation(bytes: Bytes<'_>, offset: usize) -> Result<(Operation, usize), FormatError> {
    let code = bytes.u8(offset, "an operation")?;
    let (size_offset, sizes): (usize, &[usize]) = match code {
        0 => (20, &[24]),
        1 => (12, &[]),
        3 | 4 => (24, &[28, 32]),
        0x80 => (4, &[16]),
        0x81 => (4, &[48]),
        _ => (4, &[]),
    };
    let length = bytes.u32(offset + size_offset, "the size of an operation")? as usize;
    let least = if code == 1 { 20 } else { OPERATION_BYTES_MIN };
    let is_right = if sizes.is_empty() { length >= least } else { sizes.contains(&length) };
    if !is_right || !length.is_multiple_of(4) {
        let expected = match sizes {
            [] => format!("a multiple of 4 from {least}"),
            [one] => one.to_string(),
            more => format!("one of {more:?}"),
        };
        let problem = format!("operation {code:#x} has {length} bytes, expected {expected}");
        return Err(bytes.error(offset + size_offset, problem));
    }
    let part = bytes.part(offset, length, "an operation")?;
    let mut spare = Spare::default();
    let mut keep = |at: usize, from: usize, count: usize| -> Result<(), FormatError> {
        let kept = part.slice(from, count, "an operation")?;
        spare.0[at..at + count].copy_from_slice(kept);
        Ok(())
    };
    let action = match code {
        0 => {
            keep(0, 1, 7)?;
            Action::Write { address: address(part, 8)?, value: part.u32(16, "a value")? }
        }
        1 => {
            keep(0, 1, 7)?;
            let address = Address(part.u32(8, "an address")?);
            let words = part.all()[16..].chunks_exact(4);
            let words = words.map(|word| u32::from_le_bytes(word.try_into().expect("4 bytes")));
            Action::BlockWrite { address, words: words.collect() }
        }
        3 | 4 => {
            keep(0, 1, 7)?;
            let form = if length == 32 { MaskForm::Long } else { MaskForm::Short };
            if form == MaskForm::Long {
                keep(7, 28, 4)?;
            }
            let address = address(part, 8)?;
            let (value, mask) = (part.u32(16, "a value")?, part.u32(20, "a mask")?);
            if code == 3 {
                Action::MaskWrite { address, value, mask, form }
            } else {
                Action::MaskPoll { address, value, mask, form }
            }
        }
        0x80 => {
            keep(0, 1, 3)?;
            Action::Sync { place: part.u32(8, "a place")?, extent: part.u32(12, "an extent")? }
        }
        0x81 => {
            keep(0, 1, 3)?;
            keep(3, 8, 16)?;
            let argument = part.u64(32, "an argument")?;
            let Ok(argument) = u32::try_from(argument) else {
                return Err(part.error(32, format!("argument {argument:#x}, expected a few")));
            };
            Action::Patch {
                address: address(part, 24)?,
                argument,
                offset: part.u64(40, "an offset")?,
            }
        }
        _ => {
            keep(0, 1, 3)?;
            Action::Other { code, body: part.all()[8..].to_vec() }
        }
    };
    Ok((Operation { action, spare }, length))
}

/// Reads an address, which takes 64 bits of which 32 may be used.
fn address(part: Bytes<'_>, offset: usize) -> Result<Address, FormatError> {
    let address = part.u64(offset, "an address")?;
    u32::try_from(address)
        .map(Address)
        .map_err(|_| part.error(offset, format!("address {address:#x}, expected one of 32 bits")))
}
