//! Bodies as JSON: parsed strictly, and read field by field so that an error names the field.

use std::cell::Cell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use crate::error::{ApiError, shown};
#[cfg(test)]
use crate::openapi::reads::{Form, note};

/// Most values (numbers, texts, lists, objects) in a body, which may spell one with two bytes.
const VALUES_MAX: usize = 1 << 20;

/// Approximate bytes that a value takes in memory.
pub(crate) const VALUE_BYTES: usize = 72;

/// Parses a JSON object; returns it and the number of values in it. Duplicate keys, text after the
/// object and more than 128 levels are errors.
///
/// # Errors
/// 400 with the place of the error.
pub(crate) fn parse_object(bytes: &[u8]) -> Result<(Map<String, Value>, usize), ApiError> {
    // RFC 8259 allows readers to ignore a byte order mark, which some Windows programs write.
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let left = Cell::new(VALUES_MAX);
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let value = Strict { left: &left }
        .deserialize(&mut deserializer)
        .and_then(|value| deserializer.end().map(|()| value))
        .map_err(|error| ApiError::bad_request(format!("the body is not valid JSON: {error}")))?;
    match value {
        Value::Object(map) => Ok((map, VALUES_MAX - left.get())),
        _ => Err(ApiError::bad_request("the body must be a JSON object")),
    }
}

/// A [`Value`] without duplicate keys.
#[derive(Clone, Copy)]
struct Strict<'a> {
    /// Number of values that may still come.
    left: &'a Cell<usize>,
}

impl Strict<'_> {
    fn count<E: Error>(self) -> Result<(), E> {
        let left = self.left.get().checked_sub(1);
        self.left.set(left.ok_or_else(|| E::custom(format!("more than {VALUES_MAX} values")))?);
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Strict<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        self.count()?;
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict<'_> {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: Error>(self, truth: bool) -> Result<Value, E> {
        Ok(truth.into())
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Value, E> {
        Ok(text.into())
    }

    fn visit_string<E: Error>(self, text: String) -> Result<Value, E> {
        Ok(text.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = list.next_element_seed(self)? {
            values.push(value);
        }
        Ok(Value::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            if map.contains_key(&key) {
                return Err(A::Error::custom(format!("the key {} is there twice", shown(&key))));
            }
            let value = entries.next_value_seed(self)?;
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}

/// The fields of an object. Null is the same as absent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fields<'a> {
    map: &'a Map<String, Value>,
    /// The prefix of names in errors: `stream_options.` for instance.
    prefix: &'a str,
}

impl<'a> Fields<'a> {
    pub(crate) fn new(map: &'a Map<String, Value>) -> Self {
        Self { map, prefix: "" }
    }

    /// Returns the fields of an object within another one; `prefix` ends with a dot.
    pub(crate) fn within(map: &'a Map<String, Value>, prefix: &'a str) -> Self {
        Self { map, prefix }
    }

    /// Tells the test of the OpenAPI document which field is read, and in which form.
    #[cfg(test)]
    fn note(self, name: &str, form: Form) {
        note(&self.path(name), form);
    }

    /// Returns the field, if it is present.
    pub(crate) fn get(self, name: &str) -> Option<&'a Value> {
        #[cfg(test)]
        self.note(name, Form::Any);
        self.map.get(name).filter(|value| !value.is_null())
    }

    /// Returns the field's name for an error.
    pub(crate) fn path(self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// Returns an error about a field.
    pub(crate) fn wrong(self, name: &str, expected: &str) -> ApiError {
        let found = self.get(name).map_or("nothing".to_owned(), described);
        let path = self.path(name);
        ApiError::field(&path, format!("{path} is {found}; use {expected}"))
    }

    pub(crate) fn boolean(self, name: &str) -> Result<Option<bool>, ApiError> {
        #[cfg(test)]
        self.note(name, Form::Boolean);
        match self.get(name) {
            None => Ok(None),
            Some(Value::Bool(truth)) => Ok(Some(*truth)),
            Some(_) => Err(self.wrong(name, "true or false")),
        }
    }

    pub(crate) fn integer(
        self,
        name: &str,
        range: std::ops::RangeInclusive<i64>,
    ) -> Result<Option<i64>, ApiError> {
        #[cfg(test)]
        self.note(name, Form::Integer(range.clone()));
        let Some(value) = self.get(name) else { return Ok(None) };
        let number = value.as_i64().filter(|number| range.contains(number));
        let expected = || format!("a whole number from {} to {}", range.start(), range.end());
        number.map(Some).ok_or_else(|| self.wrong(name, &expected()))
    }

    /// Reads a whole number from `least` to `most`.
    pub(crate) fn count(
        self,
        name: &str,
        least: usize,
        most: usize,
    ) -> Result<Option<usize>, ApiError> {
        Ok(self.integer(name, least as i64..=most as i64)?.map(|number| number as usize))
    }

    pub(crate) fn number(
        self,
        name: &str,
        range: std::ops::RangeInclusive<f64>,
    ) -> Result<Option<f32>, ApiError> {
        #[cfg(test)]
        self.note(name, Form::Number(range.clone()));
        let Some(value) = self.get(name) else { return Ok(None) };
        let number = value.as_f64().filter(|number| range.contains(number));
        let expected = || format!("a number from {} to {}", range.start(), range.end());
        number.map(|number| Some(number as f32)).ok_or_else(|| self.wrong(name, &expected()))
    }

    pub(crate) fn text(self, name: &str) -> Result<Option<&'a str>, ApiError> {
        #[cfg(test)]
        self.note(name, Form::Text);
        match self.get(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(self.wrong(name, "a text")),
        }
    }

    pub(crate) fn list(self, name: &str) -> Result<Option<&'a [Value]>, ApiError> {
        #[cfg(test)]
        self.note(name, Form::List);
        match self.get(name) {
            None => Ok(None),
            Some(Value::Array(items)) => Ok(Some(items)),
            Some(_) => Err(self.wrong(name, "a list")),
        }
    }

    pub(crate) fn object(self, name: &str) -> Result<Option<&'a Map<String, Value>>, ApiError> {
        #[cfg(test)]
        self.note(name, Form::Object);
        match self.get(name) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(map)),
            Some(_) => Err(self.wrong(name, "an object")),
        }
    }

    /// Reads a list of token ids.
    pub(crate) fn ids(self, name: &str) -> Result<Option<Vec<u32>>, ApiError> {
        let Some(items) = self.list(name)? else { return Ok(None) };
        let ids: Option<Vec<u32>> = items.iter().map(token_id).collect();
        ids.map(Some).ok_or_else(|| {
            let path = self.path(name);
            ApiError::field(&path, format!("{path} must hold whole numbers from 0 on, token ids"))
        })
    }
}

/// Reads a token id.
pub(crate) fn token_id(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|id| u32::try_from(id).ok())
}

/// Describes a value for a message.
fn described(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(truth) => truth.to_string(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => shown(text),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sound_objects_are_parsed() {
        let wrong: [&[u8]; 16] = [
            b"",
            b"{",
            b"[]",
            b"1",
            b"null",
            b"\"x\"",
            b"{\"a\":NaN}",
            b"{\"a\":Infinity}",
            b"{\"a\":1,\"a\":2}",
            b"{\"a\":{\"b\":1,\"b\":1}}",
            b"{} x",
            b"{\"a\":\"\\ud800\"}",
            b"{\"a\":\"\xff\"}",
            b"\xef\xbb\xbf\xef\xbb\xbf{}",
            b"{\"a\":1e999}",
            b"{'a':1}",
        ];
        for bytes in wrong {
            let text = String::from_utf8_lossy(bytes);
            assert_eq!(parse_object(bytes).expect_err(&text).status, 400, "{text}");
        }
        assert_eq!(parse_object(b" {\"a\": [1, {\"b\": null}]} ").unwrap().1, 5);
        assert_eq!(parse_object(b"\xef\xbb\xbf{\"a\": 1}").unwrap().1, 2);
    }

    #[test]
    fn depth_and_number_of_values_are_bounded() {
        let deep = format!("{{\"a\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
        assert!(parse_object(deep.as_bytes()).is_err());
        let wide = format!("{{\"a\":[{}0]}}", "0,".repeat(VALUES_MAX));
        assert!(parse_object(wide.as_bytes()).unwrap_err().message.contains("values"));
    }

    #[test]
    fn errors_name_the_field() {
        let map = parse_object(b"{\"n\":1.5,\"t\":\"x\",\"z\":null}").unwrap().0;
        let fields = Fields::new(&map);
        let error = fields.integer("n", 1..=4).unwrap_err();
        assert_eq!(error.param.as_deref(), Some("n"));
        assert!(error.message.contains("1.5") && error.message.contains("from 1 to 4"));
        assert!(fields.boolean("t").is_err() && fields.number("t", 0.0..=1.0).is_err());
        assert_eq!(fields.text("z").unwrap(), None);
        assert_eq!(Fields::within(&map, "o.").wrong("n", "x").param.as_deref(), Some("o.n"));
    }
}
