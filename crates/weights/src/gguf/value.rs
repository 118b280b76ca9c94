//! The values of GGUF metadata.

/// One metadata value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Unsigned, 8 bits.
    U8(u8),
    /// Signed, 8 bits.
    I8(i8),
    /// Unsigned, 16 bits.
    U16(u16),
    /// Signed, 16 bits.
    I16(i16),
    /// Unsigned, 32 bits.
    U32(u32),
    /// Signed, 32 bits.
    I32(i32),
    /// Single precision.
    F32(f32),
    /// True or false.
    Bool(bool),
    /// Text.
    String(Box<str>),
    /// Values of one type.
    Array(Array),
    /// Unsigned, 64 bits.
    U64(u64),
    /// Signed, 64 bits.
    I64(i64),
    /// Double precision.
    F64(f64),
}

impl Value {
    /// Returns the type as GGUF names it.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::U8(_) => "u8",
            Self::I8(_) => "i8",
            Self::U16(_) => "u16",
            Self::I16(_) => "i16",
            Self::U32(_) => "u32",
            Self::I32(_) => "i32",
            Self::F32(_) => "f32",
            Self::Bool(_) => "bool",
            Self::String(_) => "string",
            Self::Array(array) => array.kind(),
            Self::U64(_) => "u64",
            Self::I64(_) => "i64",
            Self::F64(_) => "f64",
        }
    }

    /// Returns a non-negative whole number of any integer width, or a float without a fraction
    /// (some converters write counts as floats).
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            Self::U8(number) => Some(number.into()),
            Self::U16(number) => Some(number.into()),
            Self::U32(number) => Some(number.into()),
            Self::U64(number) => Some(number),
            Self::I8(number) => number.try_into().ok(),
            Self::I16(number) => number.try_into().ok(),
            Self::I32(number) => number.try_into().ok(),
            Self::I64(number) => number.try_into().ok(),
            Self::F32(number) => whole(number.into()),
            Self::F64(number) => whole(number),
            Self::Bool(_) | Self::String(_) | Self::Array(_) => None,
        }
    }

    /// Returns any number as a double.
    pub fn as_f64(&self) -> Option<f64> {
        match *self {
            Self::F32(number) => Some(number.into()),
            Self::F64(number) => Some(number),
            Self::I8(number) => Some(number.into()),
            Self::I16(number) => Some(number.into()),
            Self::I32(number) => Some(number.into()),
            Self::I64(number) => Some(number as f64),
            _ => self.as_u64().map(|number| number as f64),
        }
    }

    /// Returns the boolean.
    pub fn as_bool(&self) -> Option<bool> {
        if let Self::Bool(value) = self { Some(*value) } else { None }
    }

    /// Returns the text.
    pub fn as_str(&self) -> Option<&str> {
        if let Self::String(text) = self { Some(text) } else { None }
    }

    /// Returns the array.
    pub fn as_array(&self) -> Option<&Array> {
        if let Self::Array(array) = self { Some(array) } else { None }
    }

    pub(super) fn type_id(&self) -> u32 {
        match self {
            Self::U8(_) => 0,
            Self::I8(_) => 1,
            Self::U16(_) => 2,
            Self::I16(_) => 3,
            Self::U32(_) => 4,
            Self::I32(_) => 5,
            Self::F32(_) => 6,
            Self::Bool(_) => 7,
            Self::String(_) => 8,
            Self::Array(_) => 9,
            Self::U64(_) => 10,
            Self::I64(_) => 11,
            Self::F64(_) => 12,
        }
    }
}

fn whole(number: f64) -> Option<u64> {
    // Up to 2^53 doubles hold every whole number, so the conversion is exact.
    let fits = (0.0..=9_007_199_254_740_992.0).contains(&number) && number.fract() == 0.0;
    fits.then_some(number as u64)
}

/// The elements of a metadata array.
#[derive(Clone, Debug, PartialEq)]
pub enum Array {
    /// Unsigned, 8 bits.
    U8(Vec<u8>),
    /// Signed, 8 bits.
    I8(Vec<i8>),
    /// Unsigned, 16 bits.
    U16(Vec<u16>),
    /// Signed, 16 bits.
    I16(Vec<i16>),
    /// Unsigned, 32 bits.
    U32(Vec<u32>),
    /// Signed, 32 bits.
    I32(Vec<i32>),
    /// Single precision.
    F32(Vec<f32>),
    /// True or false.
    Bool(Vec<bool>),
    /// Text.
    String(StringArray),
    /// Arrays.
    Array(Vec<Array>),
    /// Unsigned, 64 bits.
    U64(Vec<u64>),
    /// Signed, 64 bits.
    I64(Vec<i64>),
    /// Double precision.
    F64(Vec<f64>),
}

impl Array {
    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        match self {
            Self::U8(items) => items.len(),
            Self::I8(items) => items.len(),
            Self::U16(items) => items.len(),
            Self::I16(items) => items.len(),
            Self::U32(items) => items.len(),
            Self::I32(items) => items.len(),
            Self::F32(items) => items.len(),
            Self::Bool(items) => items.len(),
            Self::String(items) => items.len(),
            Self::Array(items) => items.len(),
            Self::U64(items) => items.len(),
            Self::I64(items) => items.len(),
            Self::F64(items) => items.len(),
        }
    }

    /// Returns whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the type as messages name it.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::U8(_) => "array of u8",
            Self::I8(_) => "array of i8",
            Self::U16(_) => "array of u16",
            Self::I16(_) => "array of i16",
            Self::U32(_) => "array of u32",
            Self::I32(_) => "array of i32",
            Self::F32(_) => "array of f32",
            Self::Bool(_) => "array of bool",
            Self::String(_) => "array of string",
            Self::Array(_) => "array of arrays",
            Self::U64(_) => "array of u64",
            Self::I64(_) => "array of i64",
            Self::F64(_) => "array of f64",
        }
    }

    /// Returns element `index` as a scalar value; `None` beyond the end and for arrays of arrays.
    pub fn get(&self, index: usize) -> Option<Value> {
        match self {
            Self::U8(items) => items.get(index).copied().map(Value::U8),
            Self::I8(items) => items.get(index).copied().map(Value::I8),
            Self::U16(items) => items.get(index).copied().map(Value::U16),
            Self::I16(items) => items.get(index).copied().map(Value::I16),
            Self::U32(items) => items.get(index).copied().map(Value::U32),
            Self::I32(items) => items.get(index).copied().map(Value::I32),
            Self::F32(items) => items.get(index).copied().map(Value::F32),
            Self::Bool(items) => items.get(index).copied().map(Value::Bool),
            Self::String(items) => items.get(index).map(|text| Value::String(text.into())),
            Self::Array(_) => None,
            Self::U64(items) => items.get(index).copied().map(Value::U64),
            Self::I64(items) => items.get(index).copied().map(Value::I64),
            Self::F64(items) => items.get(index).copied().map(Value::F64),
        }
    }

    pub(super) fn element_type_id(&self) -> u32 {
        match self {
            Self::U8(_) => 0,
            Self::I8(_) => 1,
            Self::U16(_) => 2,
            Self::I16(_) => 3,
            Self::U32(_) => 4,
            Self::I32(_) => 5,
            Self::F32(_) => 6,
            Self::Bool(_) => 7,
            Self::String(_) => 8,
            Self::Array(_) => 9,
            Self::U64(_) => 10,
            Self::I64(_) => 11,
            Self::F64(_) => 12,
        }
    }
}

/// Many strings in one allocation: a vocabulary of 262,144 pieces is one text and one list of
/// ends. The text is a checked copy, so that it stays valid whatever happens to the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StringArray {
    text: String,
    ends: Vec<u32>, // in bytes of `text`
}

impl StringArray {
    pub(super) fn with_capacity(strings: usize, bytes: usize) -> Self {
        Self { text: String::with_capacity(bytes), ends: Vec::with_capacity(strings) }
    }

    /// Builds the array from finished parts. Fails with the index at which `ends` are not
    /// ascending, cut a character, or do not end with the text.
    pub(super) fn from_parts(text: String, ends: Vec<u32>) -> Result<Self, usize> {
        let mut before = 0;
        for (index, &end) in ends.iter().enumerate() {
            if end < before || !text.is_char_boundary(end as usize) {
                return Err(index);
            }
            before = end;
        }
        if before as usize != text.len() {
            return Err(ends.len());
        }
        Ok(Self { text, ends })
    }

    /// Appends a string.
    ///
    /// # Panics
    ///
    /// Panics if the text of all strings exceeds 4 GiB.
    pub fn push(&mut self, string: &str) {
        self.text.push_str(string);
        self.ends.push(u32::try_from(self.text.len()).expect("a string array holds at most 4 GiB"));
    }

    /// Returns the number of strings.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns whether there are no strings.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Returns string `index`.
    pub fn get(&self, index: usize) -> Option<&str> {
        let end = *self.ends.get(index)? as usize;
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before] as usize);
        Some(&self.text[start..end])
    }

    /// Returns all strings in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &str> {
        (0..self.len()).map(|index| self.get(index).expect("index is below the length"))
    }

    /// Returns the bytes of all strings together.
    pub fn text_bytes(&self) -> usize {
        self.text.len()
    }
}

impl<'a> FromIterator<&'a str> for StringArray {
    fn from_iter<I: IntoIterator<Item = &'a str>>(strings: I) -> Self {
        let strings = strings.into_iter();
        let mut array = Self::with_capacity(strings.size_hint().0, 0);
        strings.for_each(|string| array.push(string));
        array
    }
}
