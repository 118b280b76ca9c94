//! The metadata of a GGUF file: an ordered list of unique keys with typed access.

use std::borrow::Cow;
use std::sync::Arc;

use super::{Array, NUMBERS_MAX, StringArray, Value};
use crate::WeightsError;

/// Keys and values in file order. Keys are unique.
#[derive(Clone, Debug)]
pub struct GgufMetadata {
    file: Arc<str>,
    entries: Vec<(Box<str>, Value)>,
    sorted: Vec<u32>, // indices into `entries`, by key
}

impl Default for GgufMetadata {
    fn default() -> Self {
        Self::new("(metadata being built)")
    }
}

impl GgufMetadata {
    /// Makes metadata without entries. `file` names the source in errors.
    pub fn new(file: &str) -> Self {
        Self { file: file.into(), entries: Vec::new(), sorted: Vec::new() }
    }

    /// Takes entries read from a file; fails with the key that appears twice.
    pub(super) fn from_entries(
        file: &str,
        mut entries: Vec<(Box<str>, Value)>,
    ) -> Result<Self, Box<str>> {
        let mut sorted: Vec<u32> = (0..entries.len() as u32).collect();
        sorted.sort_unstable_by(|&a, &b| entries[a as usize].0.cmp(&entries[b as usize].0));
        for pair in sorted.windows(2) {
            if entries[pair[0] as usize].0 == entries[pair[1] as usize].0 {
                return Err(entries.swap_remove(pair[0] as usize).0);
            }
        }
        Ok(Self { file: file.into(), entries, sorted })
    }

    /// Sets `key`, replacing the value that it had.
    pub fn insert(&mut self, key: &str, value: Value) {
        match self.position(key) {
            Ok(found) => self.entries[self.sorted[found] as usize].1 = value,
            Err(place) => {
                self.sorted.insert(place, self.entries.len() as u32);
                self.entries.push((key.into(), value));
            }
        }
    }

    fn position(&self, key: &str) -> Result<usize, usize> {
        self.sorted.binary_search_by(|&index| (*self.entries[index as usize].0).cmp(key))
    }

    /// Returns the value of `key`.
    pub fn get(&self, key: &str) -> Option<&Value> {
        let found = self.position(key).ok()?;
        Some(&self.entries[self.sorted[found] as usize].1)
    }

    /// Returns all entries in file order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(key, value)| (&**key, value))
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the file named in errors.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Makes an error about `key`, for callers that check values further.
    pub fn error(&self, key: &str, problem: impl Into<String>) -> WeightsError {
        WeightsError::Metadata {
            file: self.file.to_string(),
            key: key.to_owned(),
            problem: problem.into(),
        }
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &str,
        convert: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, WeightsError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        convert(value).map(Some).ok_or_else(|| {
            let shown = match value {
                Value::String(_) | Value::Array(_) => value.kind().to_owned(),
                scalar => format!("{scalar:?}"),
            };
            self.error(key, format!("expected {expected}, found {shown}"))
        })
    }

    fn required<T>(&self, key: &str, found: Option<T>) -> Result<T, WeightsError> {
        found.ok_or_else(|| self.error(key, "is missing"))
    }

    /// Returns a whole number of any width, or a float without a fraction; `None` if the key is
    /// absent.
    ///
    /// # Errors
    ///
    /// Returns an error if the value is negative, has a fraction, or is not a number. (The other
    /// `optional_` getters return one if the value has another type.)
    pub fn optional_u64(&self, key: &str) -> Result<Option<u64>, WeightsError> {
        self.typed(key, "a whole number", Value::as_u64)
    }

    /// Does the same as [`Self::optional_u64`] for a key that must be there.
    ///
    /// # Errors
    ///
    /// Also returns an error if the key is missing.
    pub fn u64(&self, key: &str) -> Result<u64, WeightsError> {
        self.optional_u64(key).and_then(|found| self.required(key, found))
    }

    /// Returns any number; `None` if the key is absent.
    ///
    /// # Errors
    ///
    /// Returns an error if the value is not a number.
    pub fn optional_f64(&self, key: &str) -> Result<Option<f64>, WeightsError> {
        self.typed(key, "a number", Value::as_f64)
    }

    /// Does the same as [`Self::optional_f64`] for a key that must be there.
    ///
    /// # Errors
    ///
    /// Also returns an error if the key is missing.
    pub fn f64(&self, key: &str) -> Result<f64, WeightsError> {
        self.optional_f64(key).and_then(|found| self.required(key, found))
    }

    /// Returns a text; `None` if the key is absent.
    ///
    /// # Errors
    ///
    /// Returns an error if the value is not text.
    pub fn optional_str(&self, key: &str) -> Result<Option<&str>, WeightsError> {
        self.typed(key, "a string", Value::as_str)
    }

    /// Does the same as [`Self::optional_str`] for a key that must be there.
    ///
    /// # Errors
    ///
    /// Also returns an error if the key is missing.
    pub fn str(&self, key: &str) -> Result<&str, WeightsError> {
        self.optional_str(key).and_then(|found| self.required(key, found))
    }

    /// Returns a boolean; `None` if the key is absent.
    ///
    /// # Errors
    ///
    /// Returns an error if the value is not a boolean.
    pub fn optional_bool(&self, key: &str) -> Result<Option<bool>, WeightsError> {
        self.typed(key, "a boolean", Value::as_bool)
    }

    /// Does the same as [`Self::optional_bool`] for a key that must be there.
    ///
    /// # Errors
    ///
    /// Also returns an error if the key is missing.
    pub fn bool(&self, key: &str) -> Result<bool, WeightsError> {
        self.optional_bool(key).and_then(|found| self.required(key, found))
    }

    /// Returns an array of strings; `None` if the key is absent.
    ///
    /// # Errors
    ///
    /// Returns an error if the value is not an array of strings.
    pub fn optional_strings(&self, key: &str) -> Result<Option<&StringArray>, WeightsError> {
        self.typed(key, "an array of strings", |value| match value {
            Value::Array(Array::String(strings)) => Some(strings),
            _ => None,
        })
    }

    /// Does the same as [`Self::optional_strings`] for a key that must be there.
    ///
    /// # Errors
    ///
    /// Also returns an error if the key is missing.
    pub fn strings(&self, key: &str) -> Result<&StringArray, WeightsError> {
        self.optional_strings(key).and_then(|found| self.required(key, found))
    }

    /// Returns an array of whole numbers of any width; `None` if the key is absent.
    ///
    /// # Errors
    ///
    /// Returns an error if the value is not an array of non-negative whole numbers, or holds more
    /// than 4,194,304.
    pub fn optional_u64s(&self, key: &str) -> Result<Option<Vec<u64>>, WeightsError> {
        let length = self.get(key).and_then(Value::as_array).map_or(0, Array::len);
        if length > NUMBERS_MAX {
            let problem = format!("holds {length} numbers; at most {NUMBERS_MAX} are read");
            return Err(self.error(key, problem));
        }
        self.typed(key, "an array of whole numbers", |value| {
            let array = value.as_array()?;
            (0..array.len()).map(|index| array.get(index)?.as_u64()).collect()
        })
    }

    /// Returns an array of numbers as single precision, borrowed if the file stores it so; `None`
    /// if the key is absent.
    ///
    /// # Errors
    ///
    /// Returns an error if the value is not an array of numbers.
    pub fn optional_f32s(&self, key: &str) -> Result<Option<Cow<'_, [f32]>>, WeightsError> {
        self.typed(key, "an array of numbers", |value| match value.as_array()? {
            Array::F32(numbers) => Some(Cow::Borrowed(&numbers[..])),
            array => (0..array.len())
                .map(|index| Some(array.get(index)?.as_f64()? as f32))
                .collect::<Option<Vec<_>>>()
                .map(Cow::Owned),
        })
    }

    /// Returns one number for each of `count` layers, from an array of that length or a single
    /// number that holds for all (converters write both); `None` if the key is absent.
    ///
    /// # Errors
    ///
    /// Returns an error if the value is neither, or the array has another length.
    pub fn optional_u64_per_layer(
        &self,
        key: &str,
        count: usize,
    ) -> Result<Option<Vec<u64>>, WeightsError> {
        if let Some(number) = self.get(key).and_then(Value::as_u64) {
            return Ok(Some(vec![number; count]));
        }
        let Some(numbers) = self.optional_u64s(key)? else { return Ok(None) };
        if numbers.len() != count {
            let problem =
                format!("expected {count} numbers (one per layer), found {}", numbers.len());
            return Err(self.error(key, problem));
        }
        Ok(Some(numbers))
    }
}
