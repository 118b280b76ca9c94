//! Writing GGUF files, version 3.
//!
//! The header comes first and names every tensor's place, so shapes are declared before any data:
//! [`Writer`] collects metadata and declarations, [`Writer::start`] writes the header, and the
//! [`DataWriter`] takes the bytes of each tensor in order. The file grows under a `.part` name and
//! gets its own name, atomically, when it is whole and on disk. The same calls give the same bytes.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use super::{
    ALIGNMENT_KEY, Array, DEFAULT_ALIGNMENT, Element, GgufMetadata, KEY_BYTES_MAX, MAGIC,
    NAME_BYTES_MAX, Value, alignment_is_valid,
};
use crate::{DType, Tensor, WeightsError, create_part};

/// Metadata and tensor declarations of a file to be written.
#[derive(Debug)]
pub struct Writer {
    path: PathBuf,
    metadata: GgufMetadata,
    declared: Vec<Declared>,
}

#[derive(Debug)]
struct Declared {
    name: String,
    element: Element,
    shape: Vec<usize>,
    bytes: u64,
}

impl Writer {
    /// Starts a file at `path` with this metadata, written in its order. Nothing is on disk yet.
    ///
    /// # Errors
    ///
    /// Returns an error if a key is empty, longer than 65,535 bytes or contains NUL, or if
    /// `general.alignment` is not a u32 power of two from 8 to 65,536.
    pub fn new(path: impl Into<PathBuf>, metadata: GgufMetadata) -> Result<Self, WeightsError> {
        for (key, value) in metadata.iter() {
            if key.is_empty() || key.len() > KEY_BYTES_MAX || key.contains('\0') {
                return Err(metadata.error(key, "keys have 1 to 65535 bytes and no NUL"));
            }
            let is_valid =
                matches!(value, Value::U32(number) if alignment_is_valid(u64::from(*number)));
            if key == ALIGNMENT_KEY && !is_valid {
                return Err(metadata.error(key, "expected a u32 power of two from 8 to 65536"));
            }
        }
        Ok(Self { path: path.into(), metadata, declared: Vec::new() })
    }

    /// Declares the next tensor. `shape` is outermost first.
    ///
    /// # Errors
    ///
    /// Returns an error if the name is not of 1 to 64 bytes, contains NUL or was declared before,
    /// if there are not 1 to 4 dimensions, or if rows are not whole blocks.
    pub fn declare(
        &mut self,
        name: &str,
        dtype: DType,
        shape: &[usize],
    ) -> Result<(), WeightsError> {
        self.declare_as(name, Element::Values(dtype), shape)
    }

    /// Declares the next tensor, a list of `count` integers of 32 bits.
    ///
    /// # Errors
    ///
    /// As [`Writer::declare`].
    pub fn declare_integers(&mut self, name: &str, count: usize) -> Result<(), WeightsError> {
        self.declare_as(name, Element::I32, &[count])
    }

    fn declare_as(
        &mut self,
        name: &str,
        element: Element,
        shape: &[usize],
    ) -> Result<(), WeightsError> {
        let fail = |problem: String| Err(WeightsError::Tensor { name: name.to_owned(), problem });
        if name.is_empty() || name.len() > NAME_BYTES_MAX || name.contains('\0') {
            return fail(format!("GGUF names have 1 to {NAME_BYTES_MAX} bytes and no NUL"));
        }
        let Some((&columns, outer)) = shape.split_last().filter(|_| shape.len() <= 4) else {
            return fail(format!("shape {shape:?}: GGUF tensors have 1 to 4 dimensions"));
        };
        let bytes = element.row_bytes(columns).and_then(|row_bytes| {
            outer.iter().try_fold(row_bytes, |bytes, &dimension| bytes.checked_mul(dimension))
        });
        let Some(bytes) = bytes else {
            return fail(format!("shape {shape:?} does not fit {}", element.name()));
        };
        if self.declared.iter().any(|declared| declared.name == name) {
            return fail("was declared before".to_owned());
        }
        self.declared.push(Declared {
            name: name.to_owned(),
            element,
            shape: shape.to_vec(),
            bytes: bytes as u64,
        });
        Ok(())
    }

    /// Returns the bytes of the header with what is declared, before the first tensor.
    pub fn header_bytes(&self) -> u64 {
        let alignment = self.alignment();
        (header(&self.metadata, &self.declared, alignment).len() as u64).next_multiple_of(alignment)
    }

    /// Returns what the place of each tensor is a multiple of.
    pub fn alignment(&self) -> u64 {
        match self.metadata.get(ALIGNMENT_KEY) {
            Some(Value::U32(alignment)) => u64::from(*alignment),
            _ => u64::from(DEFAULT_ALIGNMENT),
        }
    }

    /// Writes the header and returns the writer of the tensors' bytes.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be created or written.
    pub fn start(self) -> Result<DataWriter, WeightsError> {
        let alignment = self.alignment();
        let label = self.path.display().to_string();
        let (part_path, file) = create_part(&self.path)
            .map_err(|source| WeightsError::io(&label, "create the file", source))?;
        let mut writer = DataWriter {
            path: self.path,
            part_path,
            label,
            file: Some(BufWriter::with_capacity(1 << 20, file)),
            declared: self.declared,
            alignment,
            position: 0,
            next: 0,
            written: 0,
        };
        let header = header(&self.metadata, &writer.declared, alignment);
        writer.put(&header)?;
        writer.pad()?;
        Ok(writer)
    }
}

fn header(metadata: &GgufMetadata, declared: &[Declared], alignment: u64) -> Vec<u8> {
    let mut header = Vec::new();
    header.extend_from_slice(&MAGIC);
    header.extend_from_slice(&3_u32.to_le_bytes());
    header.extend_from_slice(&(declared.len() as u64).to_le_bytes());
    header.extend_from_slice(&(metadata.len() as u64).to_le_bytes());
    for (key, value) in metadata.iter() {
        put_string(&mut header, key);
        header.extend_from_slice(&value.type_id().to_le_bytes());
        put_value(&mut header, value);
    }
    let mut offset = 0_u64;
    for tensor in declared {
        put_string(&mut header, &tensor.name);
        header.extend_from_slice(&(tensor.shape.len() as u32).to_le_bytes());
        for &dimension in tensor.shape.iter().rev() {
            header.extend_from_slice(&(dimension as u64).to_le_bytes());
        }
        header.extend_from_slice(&tensor.element.ggml_id().to_le_bytes());
        header.extend_from_slice(&offset.to_le_bytes());
        offset = (offset + tensor.bytes).next_multiple_of(alignment);
    }
    header
}

fn put_string(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(&(text.len() as u64).to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}

fn put_value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::U8(number) => out.push(*number),
        Value::I8(number) => out.extend_from_slice(&number.to_le_bytes()),
        Value::U16(number) => out.extend_from_slice(&number.to_le_bytes()),
        Value::I16(number) => out.extend_from_slice(&number.to_le_bytes()),
        Value::U32(number) => out.extend_from_slice(&number.to_le_bytes()),
        Value::I32(number) => out.extend_from_slice(&number.to_le_bytes()),
        Value::F32(number) => out.extend_from_slice(&number.to_le_bytes()),
        Value::Bool(flag) => out.push(u8::from(*flag)),
        Value::String(text) => put_string(out, text),
        Value::Array(array) => put_array(out, array),
        Value::U64(number) => out.extend_from_slice(&number.to_le_bytes()),
        Value::I64(number) => out.extend_from_slice(&number.to_le_bytes()),
        Value::F64(number) => out.extend_from_slice(&number.to_le_bytes()),
    }
}

fn put_array(out: &mut Vec<u8>, array: &Array) {
    out.extend_from_slice(&array.element_type_id().to_le_bytes());
    out.extend_from_slice(&(array.len() as u64).to_le_bytes());
    match array {
        Array::U8(items) => out.extend_from_slice(items),
        Array::I8(items) => items.iter().for_each(|item| out.extend(item.to_le_bytes())),
        Array::U16(items) => items.iter().for_each(|item| out.extend(item.to_le_bytes())),
        Array::I16(items) => items.iter().for_each(|item| out.extend(item.to_le_bytes())),
        Array::U32(items) => items.iter().for_each(|item| out.extend(item.to_le_bytes())),
        Array::I32(items) => items.iter().for_each(|item| out.extend(item.to_le_bytes())),
        Array::F32(items) => items.iter().for_each(|item| out.extend(item.to_le_bytes())),
        Array::Bool(items) => items.iter().for_each(|&item| out.push(u8::from(item))),
        Array::String(items) => items.iter().for_each(|item| put_string(out, item)),
        Array::Array(items) => items.iter().for_each(|item| put_array(out, item)),
        Array::U64(items) => items.iter().for_each(|item| out.extend(item.to_le_bytes())),
        Array::I64(items) => items.iter().for_each(|item| out.extend(item.to_le_bytes())),
        Array::F64(items) => items.iter().for_each(|item| out.extend(item.to_le_bytes())),
    }
}

/// Takes the bytes of the declared tensors in order. Dropping it before [`DataWriter::finish`]
/// removes the unfinished file.
#[derive(Debug)]
pub struct DataWriter {
    path: PathBuf,
    part_path: PathBuf,
    label: String,
    file: Option<BufWriter<File>>, // `None` once finished
    declared: Vec<Declared>,
    alignment: u64,
    position: u64, // bytes of the file so far
    next: usize,   // index of the tensor being written
    written: u64,  // bytes of that tensor so far
}

impl DataWriter {
    /// Writes the next tensor, which must be the one declared next.
    ///
    /// # Errors
    ///
    /// Returns an error if name, format or shape differ from the declaration, if the tensor has
    /// factors, which are a tensor of their own in a file, or writing fails.
    pub fn tensor(&mut self, tensor: &Tensor) -> Result<(), WeightsError> {
        if !tensor.factors().is_empty() {
            return Err(self.mismatch(tensor.name(), "has factors, which are another tensor"));
        }
        let matches = self.declared.get(self.next).is_some_and(|declared| {
            declared.name == tensor.name()
                && declared.element == Element::Values(tensor.dtype())
                && declared.shape == tensor.shape()
        });
        if !matches || self.written != 0 {
            return Err(self.mismatch(tensor.name(), "is not the tensor declared next"));
        }
        self.bytes(tensor.bytes())
    }

    /// Appends bytes of the tensor declared next; several calls may share a tensor. Tensors without
    /// elements are skipped.
    ///
    /// # Errors
    ///
    /// Returns an error if the bytes reach beyond the tensor, or writing fails.
    pub fn bytes(&mut self, bytes: &[u8]) -> Result<(), WeightsError> {
        if !bytes.is_empty() {
            while self.declared.get(self.next).is_some_and(|declared| declared.bytes == 0) {
                self.next += 1;
            }
        }
        let expected = match self.declared.get(self.next) {
            Some(declared) => declared.bytes,
            None if bytes.is_empty() => return Ok(()),
            None => return Err(self.mismatch("(none)", "all declared tensors are written")),
        };
        if bytes.len() as u64 > expected - self.written {
            let name = self.declared[self.next].name.clone();
            return Err(self.mismatch(&name, "gets more bytes than its shape has"));
        }
        self.put(bytes)?;
        self.written += bytes.len() as u64;
        if self.written == expected {
            self.next += 1;
            self.written = 0;
            self.pad()?;
        }
        Ok(())
    }

    /// Writes the file to disk and gives it its name.
    ///
    /// # Errors
    ///
    /// Returns an error if a declared tensor is missing or the system fails. No file appears then.
    pub fn finish(self) -> Result<(), WeightsError> {
        self.finish_checked(|_| Ok(()))
    }

    /// Writes the file to disk, and gives it its name once `check` has accepted it. `check` gets
    /// the path of the whole file under its temporary name.
    ///
    /// # Errors
    ///
    /// As [`DataWriter::finish`], and returns what `check` refuses the file with. No file appears
    /// then, and one that has the name stays.
    pub fn finish_checked<E: From<WeightsError>>(
        mut self,
        check: impl FnOnce(&Path) -> Result<(), E>,
    ) -> Result<(), E> {
        while self.declared.get(self.next).is_some_and(|declared| declared.bytes == 0) {
            self.bytes(&[])?;
        }
        if let Some(missing) = self.declared.get(self.next) {
            let name = missing.name.clone();
            return Err(self.mismatch(&name, "was declared but not wholly written").into());
        }
        let fail = |action, source| WeightsError::io(&self.label, action, source);
        let buffered = self.file.take().expect("the file is open until it is finished");
        let saved = buffered
            .into_inner()
            .map_err(|error| E::from(fail("write the file", error.into_error())))
            .and_then(|file| {
                file.sync_all().map_err(|source| fail("bring the file to disk", source))?;
                check(&self.part_path)?;
                // It is open, and so locked, until it has its name.
                std::fs::rename(&self.part_path, &self.path)
                    .map_err(|source| fail("give the file its name", source).into())
            });
        if saved.is_err() {
            let _ = std::fs::remove_file(&self.part_path);
        }
        saved?;
        sync_folder(&self.path);
        Ok(())
    }

    fn mismatch(&self, name: &str, problem: &str) -> WeightsError {
        WeightsError::Tensor { name: name.to_owned(), problem: problem.to_owned() }
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), WeightsError> {
        let file = self.file.as_mut().expect("the file is open until it is finished");
        file.write_all(bytes)
            .map_err(|source| WeightsError::io(&self.label, "write the file", source))?;
        self.position += bytes.len() as u64;
        Ok(())
    }

    fn pad(&mut self) -> Result<(), WeightsError> {
        let missing = self.position.next_multiple_of(self.alignment) - self.position;
        self.put(&vec![0; missing as usize])
    }
}

impl Drop for DataWriter {
    fn drop(&mut self) {
        if self.file.take().is_some() {
            let _ = std::fs::remove_file(&self.part_path);
        }
    }
}

/// Makes a rename durable. A hint: some systems cannot sync folders.
fn sync_folder(path: &Path) {
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    if let Ok(folder) = File::open(folder) {
        let _ = folder.sync_all();
    }
}
