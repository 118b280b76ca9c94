//! A named tensor whose bytes live in a mapped file, in memory, or in the program itself.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::map::Mapping;
use crate::{DType, WeightsError};

/// Where the bytes of a tensor live.
#[derive(Clone, Debug)]
pub(crate) enum Data {
    /// A range of a mapped file.
    Mapped(Arc<Mapping>, Range<usize>),
    /// Bytes made by this program.
    Owned(Arc<Vec<u8>>),
    /// Bytes of the program's own image.
    Static(&'static [u8]),
}

impl Data {
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Data::Mapped(mapping, range) => &mapping.bytes()[range.clone()],
            Data::Owned(bytes) => bytes,
            Data::Static(bytes) => bytes,
        }
    }
}

/// A named, shaped, read-only array. Cloning shares the bytes.
#[derive(Clone)]
pub struct Tensor {
    name: Arc<str>,
    dtype: DType,
    shape: Box<[usize]>, // outermost first
    row_bytes: usize,
    data: Data,
    factors: Option<Factors>,
}

/// What the rows of a matrix are multiplied by: a factor for each of its equal parts.
#[derive(Clone)]
struct Factors {
    values: Arc<[f32]>,
    /// The rows of a part.
    rows: usize,
    /// The place of the tensor's first row in the first part, if the tensor is a slice.
    first: usize,
}

/// A list of integers.
#[derive(Debug)]
pub(crate) struct Integers {
    /// The tensor's name.
    pub(crate) name: String,
    /// The bytes of each, 4 or 8.
    pub(crate) width: usize,
    /// The integers, little endian.
    pub(crate) data: Data,
}

impl Tensor {
    /// Makes a tensor over bytes made by this program.
    ///
    /// # Errors
    ///
    /// Returns an error if `shape` overflows, the last dimension is not whole blocks, or `bytes`
    /// has another length than `shape` needs.
    pub fn from_owned(
        name: &str,
        dtype: DType,
        shape: &[usize],
        bytes: Vec<u8>,
    ) -> Result<Self, WeightsError> {
        Self::build(name, dtype, shape, Data::Owned(Arc::new(bytes)))
    }

    pub(crate) fn build(
        name: &str,
        dtype: DType,
        shape: &[usize],
        data: Data,
    ) -> Result<Self, WeightsError> {
        let error = |problem| WeightsError::Tensor { name: name.to_owned(), problem };
        let columns = shape.last().copied().unwrap_or(1);
        let row_bytes = dtype.row_bytes(columns).ok_or_else(|| {
            error(format!(
                "a row of {columns} elements is not whole {dtype} blocks of {}",
                dtype.block_elements()
            ))
        })?;
        let needed = checked_rows(shape)
            .and_then(|rows| rows.checked_mul(row_bytes))
            .ok_or_else(|| error(format!("shape {shape:?} overflows")))?;
        let (name, shape) = (name.into(), shape.into());
        let tensor = Self { name, dtype, shape, row_bytes, data, factors: None };
        let found = tensor.bytes().len();
        if found != needed {
            let shape = &tensor.shape;
            return Err(error(format!("{dtype} {shape:?} needs {needed} bytes, found {found}")));
        }
        Ok(tensor)
    }

    /// Returns the tensor's name as the file spells it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns how the elements are stored.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns the dimensions, outermost first: `[rows, columns]` for a matrix, empty for a single
    /// number.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns the product of all dimensions but the last; 1 for a vector.
    pub fn rows(&self) -> usize {
        checked_rows(&self.shape).expect("checked when the tensor was built")
    }

    /// Returns the last dimension; 1 for a single number.
    pub fn columns(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// Returns the number of elements.
    pub fn elements(&self) -> usize {
        self.rows() * self.columns()
    }

    /// Returns all bytes, row after row. They may start at any address: read numbers through
    /// `from_le_bytes` or unaligned loads.
    pub fn bytes(&self) -> &[u8] {
        self.data.bytes()
    }

    /// Returns the bytes of one row.
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// Returns the bytes of row `row`.
    ///
    /// # Panics
    ///
    /// Panics if `row` is not below [`Self::rows`].
    pub fn row(&self, row: usize) -> &[u8] {
        assert!(row < self.rows(), "row {row} of `{}`, which has {}", self.name, self.rows());
        &self.bytes()[row * self.row_bytes..][..self.row_bytes]
    }

    /// Returns the same tensor, the rows of whose equal parts are multiplied by `factors`: one for
    /// a matrix, or one for each expert. [`Self::bytes`] are without them.
    ///
    /// # Errors
    ///
    /// Returns an error if the rows are no whole parts.
    pub fn with_factors(&self, factors: &[f32]) -> Result<Self, WeightsError> {
        if factors.is_empty() || !self.rows().is_multiple_of(factors.len()) {
            let problem = format!("{} factors for {} rows", factors.len(), self.rows());
            return Err(WeightsError::Tensor { name: self.name.to_string(), problem });
        }
        let rows = (self.rows() / factors.len()).max(1);
        let factors = Some(Factors { values: factors.into(), rows, first: 0 });
        Ok(Self { factors, ..self.clone() })
    }

    /// Returns the factors of [`Self::with_factors`]; none if the bytes are all.
    pub fn factors(&self) -> &[f32] {
        self.factors.as_ref().map_or(&[], |factors| &factors.values)
    }

    /// Returns what the elements of row `row` are multiplied by.
    pub fn factor(&self, row: usize) -> f32 {
        let Some(Factors { values, rows, first }) = &self.factors else { return 1.0 };
        values.get((first + row) / rows).copied().unwrap_or(1.0)
    }

    /// Returns all elements as floats: exactly (see [`crate::blocks::decode`]), times the factors.
    ///
    /// # Errors
    ///
    /// Returns the codec's errors, which no tensor made by this crate can cause.
    pub fn to_f32(&self) -> Result<Vec<f32>, WeightsError> {
        let mut floats = vec![0.0; self.elements()];
        if self.factors.is_none() {
            crate::blocks::decode(self.dtype, self.bytes(), &mut floats)?;
            return Ok(floats);
        }
        for (row, floats) in floats.chunks_exact_mut(self.columns().max(1)).enumerate() {
            self.decode_row(row, floats)?;
        }
        Ok(floats)
    }

    /// Writes the elements of row `row` as floats.
    ///
    /// # Errors
    ///
    /// Returns an error if `floats` has another length than a row.
    ///
    /// # Panics
    ///
    /// Panics if there is no such row.
    pub fn decode_row(&self, row: usize, floats: &mut [f32]) -> Result<(), WeightsError> {
        crate::blocks::decode(self.dtype, self.row(row), floats)?;
        if self.factors.is_some() {
            let factor = self.factor(row);
            floats.iter_mut().for_each(|value| *value *= factor);
        }
        Ok(())
    }

    /// Returns the same bytes under another name.
    pub fn renamed(&self, name: &str) -> Self {
        Self { name: name.into(), ..self.clone() }
    }

    /// Returns the same bytes in another shape.
    ///
    /// # Errors
    ///
    /// Returns an error if `shape` has another number of elements, rows that are no whole blocks,
    /// or other rows of a tensor with factors.
    pub fn reshaped(&self, shape: &[usize]) -> Result<Self, WeightsError> {
        let tensor = Self::build(&self.name, self.dtype, shape, self.data.clone())?;
        if self.factors.is_some() && tensor.rows() != self.rows() {
            let problem = format!("{shape:?} has other rows, which have factors");
            return Err(WeightsError::Tensor { name: self.name.to_string(), problem });
        }
        Ok(Self { factors: self.factors.clone(), ..tensor })
    }

    /// Returns some of the rows as a matrix of their own, such as a part of a fused matrix. The
    /// bytes are not copied if they are a file's.
    ///
    /// # Errors
    ///
    /// Returns an error if `rows` reaches beyond the tensor's rows.
    pub fn slice_rows(&self, name: &str, rows: Range<usize>) -> Result<Self, WeightsError> {
        if rows.start > rows.end || rows.end > self.rows() {
            let problem = format!("rows {rows:?} of {}", self.rows());
            return Err(WeightsError::Tensor { name: self.name.to_string(), problem });
        }
        let bytes = rows.start * self.row_bytes..rows.end * self.row_bytes;
        let data = match &self.data {
            Data::Mapped(mapping, range) => {
                Data::Mapped(mapping.clone(), range.start + bytes.start..range.start + bytes.end)
            }
            Data::Owned(owned) => Data::Owned(Arc::new(owned[bytes].to_vec())),
            Data::Static(all) => Data::Static(&all[bytes]),
        };
        let tensor = Self::build(name, self.dtype, &[rows.len(), self.columns()], data)?;
        let moved = |own: Factors| Factors { first: own.first + rows.start, ..own };
        Ok(Self { factors: self.factors.clone().map(moved), ..tensor })
    }

    /// Returns whether the bytes are pages of a mapped file.
    pub fn is_mapped(&self) -> bool {
        matches!(self.data, Data::Mapped(..))
    }

    /// Hints that the pages wholly inside `byte_range` (of this tensor's bytes) are not needed
    /// soon, so that they stop counting as this process's memory. They stay readable: touching them
    /// reads the file again. Does nothing for bytes that are not mapped.
    ///
    /// A backend that keeps its own repacked copy calls this for what it has copied.
    pub fn release_pages(&self, byte_range: Range<usize>) {
        if let Data::Mapped(mapping, range) = &self.data {
            let length = range.len();
            let start = byte_range.start.min(length);
            let end = byte_range.end.clamp(start, length);
            mapping.release(range.start + start..range.start + end);
        }
    }

    /// Hints that a row will be read soon, so that the pages of several rows are read at the same
    /// time. Does nothing for bytes that are not mapped.
    ///
    /// # Panics
    ///
    /// Panics if there is no such row.
    pub fn prefetch_row(&self, row: usize) {
        assert!(row < self.rows(), "row {row} of `{}`, which has {}", self.name, self.rows());
        if let Data::Mapped(mapping, range) = &self.data {
            let start = range.start + row * self.row_bytes;
            mapping.prefetch(start..start + self.row_bytes);
        }
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Tensor({:?}, {}, {:?})", &*self.name, self.dtype, self.shape)
    }
}

fn checked_rows(shape: &[usize]) -> Option<usize> {
    let outer = &shape[..shape.len().saturating_sub(1)];
    outer.iter().try_fold(1_usize, |product, &dimension| product.checked_mul(dimension))
}
