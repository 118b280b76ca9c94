//! Bodies as JSON, parsed strictly.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use crate::error::{ApiError, shown};
use crate::request::fields::{FieldTable, names};

/// Most values (numbers, texts, lists, objects) in a body, which may spell one with two bytes.
const VALUES_MAX: usize = 1 << 20;

/// What the parts of a body take in memory, about and rather too much, in bytes. What a request
/// makes of its body before the model's work is much the same again, so that lists and objects
/// count twice; the body's own bytes count too, so that texts count twice as well.
const COPIES: usize = 2;
/// A value in its list or object.
const VALUE_BYTES: usize = 72;
/// An object with its first entries, which it has room for at once.
const OBJECT_BYTES: usize = 400;
const OBJECT_ENTRIES: usize = 3;
/// An entry beyond them without its value: an object grows to twice what it had.
const ENTRY_BYTES: usize = 160;
/// The fewest bytes of a text, a key or a list of its own, and what keeping it takes.
const PIECE_BYTES: usize = 32;

/// How often the room for a body is asked for more, in bytes.
const STEP_BYTES: usize = 1 << 16;

/// Takes room for a body that holds some bytes so far.
pub(crate) type Grow<'a> = dyn FnMut(usize) -> Result<(), ApiError> + 'a;

/// Parses a JSON object. Duplicate keys, text after the object and more than 128 levels are errors.
/// Fields that are not in the table are not kept. `grow` is told how many bytes the object takes
/// while it becomes larger.
///
/// # Errors
/// 400 with the place of the error, and the error of `grow`.
pub(crate) fn parse_object(
    bytes: &[u8],
    table: FieldTable,
    grow: &mut Grow<'_>,
) -> Result<Map<String, Value>, ApiError> {
    // RFC 8259 allows readers to ignore a byte order mark, which some Windows programs write.
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let held = BodyCost {
        values: Cell::new(0),
        bytes: Cell::new(0),
        told: Cell::new(0),
        grow: RefCell::new(grow),
        refused: RefCell::new(None),
        names: names(table),
    };
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let value = Strict { held: &held, depth: 0 }
        .deserialize(&mut deserializer)
        .and_then(|value| deserializer.end().map(|()| value));
    let value = value.map_err(|error| {
        let refused = held.refused.take();
        refused.unwrap_or_else(|| {
            ApiError::bad_request(format!("the body is not valid JSON: {error}"))
        })
    })?;
    match value {
        Value::Object(map) => Ok(map),
        _ => Err(ApiError::bad_request("the body must be a JSON object")),
    }
}

/// What a body holds so far.
struct BodyCost<'a, 'b> {
    values: Cell<usize>,
    bytes: Cell<usize>,
    /// The bytes for which there is room.
    told: Cell<usize>,
    grow: RefCell<&'a mut Grow<'b>>,
    refused: RefCell<Option<ApiError>>,
    /// The names of the fields that are read.
    names: HashSet<&'static str>,
}

impl BodyCost<'_, '_> {
    fn add<E: Error>(&self, bytes: usize) -> Result<(), E> {
        let all = self.bytes.get().saturating_add(bytes);
        self.bytes.set(all);
        if all - self.told.get() < STEP_BYTES {
            return Ok(());
        }
        self.told.set(all);
        let grown = (self.grow.borrow_mut())(all);
        grown.map_err(|error| {
            *self.refused.borrow_mut() = Some(error);
            E::custom("there is no room for it")
        })
    }

    /// Counts a text that is kept.
    fn text<E: Error>(&self, text: &str) -> Result<(), E> {
        self.add(PIECE_BYTES * COPIES + text.len())
    }
}

/// A [`Value`] without duplicate keys.
#[derive(Clone, Copy)]
struct Strict<'a, 'b, 'c> {
    held: &'a BodyCost<'b, 'c>,
    /// Number of lists and objects around it.
    depth: usize,
}

impl Strict<'_, '_, '_> {
    fn count<E: Error>(self) -> Result<(), E> {
        let values = self.held.values.get() + 1;
        self.held.values.set(values);
        if values > VALUES_MAX {
            return Err(E::custom(format!("more than {VALUES_MAX} values")));
        }
        self.held.add(VALUE_BYTES * COPIES)
    }
}

impl<'de> DeserializeSeed<'de> for Strict<'_, '_, '_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        self.count()?;
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict<'_, '_, '_> {
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
        self.held.text(text)?;
        Ok(text.into())
    }

    fn visit_string<E: Error>(self, text: String) -> Result<Value, E> {
        self.held.text(&text)?;
        Ok(text.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        self.held.add(PIECE_BYTES * COPIES)?;
        let (mut values, within) = (Vec::new(), Self { depth: self.depth + 1, ..self });
        while let Some(value) = list.next_element_seed(within)? {
            values.push(value);
        }
        // Room for four values is taken for the first one.
        values.shrink_to_fit();
        Ok(Value::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let (mut map, within) = (Map::new(), Self { depth: self.depth + 1, ..self });
        let mut skipped = HashSet::new();
        while let Some(key) = entries.next_key::<String>()? {
            if map.contains_key(&key) || skipped.contains(&key) {
                return Err(A::Error::custom(format!("the key {} is there twice", shown(&key))));
            }
            self.held.text(&key)?;
            if self.depth == 0 && !self.held.names.contains(&*key) {
                entries.next_value::<IgnoredAny>()?;
                skipped.insert(key);
                continue;
            }
            self.held.add(
                COPIES
                    * match map.len() {
                        0 => OBJECT_BYTES,
                        1..OBJECT_ENTRIES => 0,
                        _ => ENTRY_BYTES,
                    },
            )?;
            let value = entries.next_value_seed(within)?;
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::parameters::STOPS;

    const TABLE: FieldTable = &[STOPS];

    /// Parses where there is room for everything. Returns the bytes that were asked for too.
    fn parsed(bytes: &[u8]) -> Result<(Map<String, Value>, usize), ApiError> {
        let mut most = 0;
        let map = parse_object(bytes, TABLE, &mut |bytes| {
            most = bytes;
            Ok(())
        })?;
        Ok((map, most))
    }

    #[test]
    fn only_sound_objects_are_parsed() {
        let wrong: [&[u8]; 17] = [
            b"",
            b"{",
            b"[]",
            b"1",
            b"null",
            b"\"x\"",
            b"{\"stop\":NaN}",
            b"{\"stop\":Infinity}",
            b"{\"stop\":1,\"stop\":2}",
            b"{\"stop\":{\"b\":1,\"b\":1}}",
            b"{\"nothing of ours\":1,\"nothing of ours\":2}",
            b"{} x",
            b"{\"stop\":\"\\ud800\"}",
            b"{\"stop\":\"\xff\"}",
            b"\xef\xbb\xbf\xef\xbb\xbf{}",
            b"{\"stop\":1e999}",
            b"{'stop':1}",
        ];
        for bytes in wrong {
            let text = String::from_utf8_lossy(bytes);
            assert_eq!(parsed(bytes).expect_err(&text).status, 400, "{text}");
        }
        let (map, _) = parsed(b"\xef\xbb\xbf {\"stop\": [1, {\"b\": null}]} ").unwrap();
        assert_eq!(Value::Object(map), serde_json::json!({"stop": [1, {"b": null}]}));
    }

    #[test]
    fn depth_and_number_of_values_are_bounded() {
        let deep = format!("{{\"stop\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
        assert!(parsed(deep.as_bytes()).is_err());
        let wide = format!("{{\"stop\":[{}0]}}", "0,".repeat(VALUES_MAX));
        assert!(parsed(wide.as_bytes()).unwrap_err().message.contains("values"));
    }

    /// Bytes that a value takes in memory, without what the allocator needs beside.
    fn taken(value: &Value) -> usize {
        match value {
            Value::Null | Value::Bool(_) | Value::Number(_) => 0,
            Value::String(text) => text.capacity(),
            Value::Array(items) => {
                items.capacity() * size_of::<Value>() + items.iter().map(taken).sum::<usize>()
            }
            Value::Object(map) if map.is_empty() => 0,
            // A table of places with room for an eighth more than there are, and a list of entries
            // with room for as many.
            Value::Object(map) => {
                let places = (map.len() * 8 / 7 + 1).next_power_of_two().max(4);
                let entry = size_of::<(u64, String, Value)>();
                let parts = map.iter().map(|(key, value)| key.len() + taken(value));
                places * (entry + 9) + parts.sum::<usize>()
            }
        }
    }

    #[test]
    fn room_is_taken_for_what_a_body_takes() {
        let list =
            |item: &str, count: usize| format!("[{}{item}]", format!("{item},").repeat(count));
        for value in [
            list("0", 100_000),
            list("{}", 20_000),
            list("[0]", 20_000),
            list("[[[[[[[[0]]]]]]]]", 5_000),
            list("{\"a\":0}", 20_000),
            list("{\"type\":\"text\",\"text\":\"x\"}", 20_000),
            list("{\"a\":0,\"b\":0,\"c\":0,\"d\":0,\"e\":0}", 10_000),
            list("{\"a\":0,\"b\":0,\"c\":0,\"d\":{\"e\":{\"f\":\"x\"}}}", 10_000),
            list("\"\"", 20_000),
            format!("\"{}\"", "x".repeat(1 << 20)),
        ] {
            let body = format!("{{\"stop\":{value}}}");
            let (map, counted) = parsed(body.as_bytes()).unwrap();
            // What is made of it is as much again, or for a text the body itself.
            let taken = COPIES * taken(&map["stop"]);
            assert!(counted + body.len() >= taken, "{body:.40}: {counted} of {taken}");
            assert!(counted <= 3 * taken + STEP_BYTES, "{body:.40}: {counted} of {taken}");
            let mut steps = 0;
            let refused = parse_object(body.as_bytes(), TABLE, &mut |_| {
                steps += 1;
                if steps < 3 { Ok(()) } else { Err(ApiError::overloaded("full")) }
            });
            // A text comes at once.
            if value.starts_with('[') {
                assert_eq!((refused.unwrap_err().status.as_u16(), steps), (503, 3), "{body:.40}");
            }
            // Where no reader reads it, it is not kept.
            let body = format!("{{\"nothing of ours\":{value},\"stop\":1}}");
            let (map, counted) = parsed(body.as_bytes()).unwrap();
            assert_eq!((map.len(), counted), (1, 0), "{body:.40}");
        }
    }
}
