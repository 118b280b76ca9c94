//! The fields of requests. Each is a row of a table: its name, what its value may be, and a
//! sentence for clients. Readers read through rows, and a body keeps only the fields of its
//! request's table, so that nothing can be read that the document of all routes does not describe;
//! a row that no reader reads is dead code to the compiler.

use std::collections::HashSet;
use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use crate::error::{ApiError, shown};
#[cfg(test)]
use crate::service::openapi::schema;

/// A field whose value has the type `T`.
pub(crate) struct Row<T: FieldType + ?Sized> {
    pub(crate) name: &'static str,
    pub(crate) bounds: T::Bounds,
    #[cfg(test)]
    pub(crate) said: Said,
}

/// A field whose absence means a value.
pub(crate) struct RowOr<T: FieldType> {
    pub(crate) row: Row<T>,
    pub(crate) default: T,
}

/// What the document says about a field.
#[cfg(test)]
pub(crate) struct Said {
    /// A sentence, with a space before each of its lines.
    pub(crate) words: &'static str,
    /// What a value looks like, if its type does not say so.
    pub(crate) schema: Option<fn() -> Value>,
    pub(crate) default: Option<fn() -> Value>,
    /// Whether a request without it is refused.
    pub(crate) is_needed: bool,
}

/// Rows of a table. A table is a list of them, in the order of the document.
#[derive(Clone, Copy)]
pub(crate) enum Rows {
    /// Fields that are read, as [`rows`] declares them.
    Read {
        names: &'static [&'static str],
        #[cfg(test)]
        rows: &'static [&'static dyn AnyRow],
    },
    /// Fields that are refused where they are not harmless.
    Refused(&'static [Unsupported]),
    /// Fields by which other dialects say whether a model is to think.
    OthersThinking(&'static [&'static str]),
    /// The same, where nothing can be said about thinking.
    NoThinking(&'static [&'static str]),
    /// The rows of another table.
    All(FieldTable),
}

/// The fields of a request, or of an object in it.
pub(crate) type FieldTable = &'static [Rows];

/// A field's name, when it is harmless, and what to do instead.
pub(crate) type Unsupported = (&'static str, Harmless, &'static str);

/// When a field is harmless. It always is if it is absent or null.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Harmless {
    /// If it is false, or empty.
    Off,
    /// At no other value.
    Absent,
    /// If it is an empty list, or a choice that demands no call.
    NoCall,
    /// At these numbers.
    At(&'static [f64]),
    /// At this number and below.
    UpTo(f64),
    /// At this number and above.
    From(f64),
    /// At these texts.
    Text(&'static [&'static str]),
}

/// Declares groups of rows, which tables name. A row is
/// `NAME: type = "field", in bounds, of TABLE, or default, as schema;`, with `!` in place of `:` if
/// a request without the field is refused. The comment before it is the sentence of the document.
/// `in` is for numbers, `of` for objects whose fields are read ([`Within`]), and what `as` says is
/// compiled only for tests.
macro_rules! rows {
    (@type $type:ty) => { $crate::request::fields::Row<$type> };
    (@type $type:ty, $default:expr) => { $crate::request::fields::RowOr<$type> };
    (@bounds $field:literal) => { () };
    (@bounds $field:literal in $bounds:expr) => { $bounds };
    (@bounds $field:literal of $table:expr) => { (concat!($field, "."), $table) };
    (@or $row:expr) => { $row };
    (@or $row:expr, $default:expr) => {
        $crate::request::fields::RowOr { row: $row, default: $default }
    };
    (@row $name:ident) => { &$name };
    (@row $name:ident, $default:expr) => { &$name.row };
    (@some) => { None };
    (@some $value:expr) => {
        Some(|| {
            #[allow(unused_imports, reason = "a row uses some of them")]
            use {$crate::service::openapi::{schema::*, shapes::*}, serde_json::json};
            $value.into()
        })
    };
    (@needed !) => { true };
    (@needed :) => { false };
    ($(
        $(#[doc = $about:literal])*
        $group:ident {
            $(
                $(#[doc = $words:literal])*
                $name:ident $colon:tt $type:ty = $field:literal
                $(, in $bounds:expr)? $(, of $table:expr)? $(, or $default:expr)?
                $(, as $schema:expr)?;
            )+
        }
    )+) => { $(
        $(#[doc = $about])*
        pub(crate) const $group: $crate::request::fields::Rows =
            $crate::request::fields::Rows::Read {
                names: &[$($field),+],
                #[cfg(test)]
                rows: &[$(rows!(@row $name $(, $default)?)),+],
            };
        $(
            $(#[doc = $words])*
            pub(crate) const $name: rows!(@type $type $(, $default)?) = rows!(
                @or
                $crate::request::fields::Row::<$type> {
                    name: $field,
                    bounds: rows!(@bounds $field $(in $bounds)? $(of $table)?),
                    #[cfg(test)]
                    said: $crate::request::fields::Said {
                        words: concat!($($words),*),
                        schema: rows!(@some $($schema)?),
                        default: rows!(@some $($default)?),
                        is_needed: rows!(@needed $colon),
                    },
                }
                $(, $default)?
            );
        )+
    )+ };
}
pub(crate) use rows;

/// A type of values.
pub(crate) trait FieldType: 'static {
    type Bounds: Sync + 'static;
    type Value<'a>;

    /// Returns the value, if it has the type and is within bounds.
    fn of<'a>(value: &'a Value, bounds: &Self::Bounds) -> Option<Self::Value<'a>>;

    /// Says which values are taken.
    fn expected(bounds: &Self::Bounds) -> String;

    #[cfg(test)]
    fn schema(bounds: &Self::Bounds) -> Value;
}

/// Implements [`FieldType`] by its bounds, its values, what finds one, what is expected, and the
/// schema.
macro_rules! kind {
    ($type:ty, $bounds:ty, $value:ty, $of:expr, $expected:expr, $schema:expr) => {
        impl FieldType for $type {
            type Bounds = $bounds;
            type Value<'a> = $value;

            fn of<'a>(value: &'a Value, bounds: &$bounds) -> Option<$value> {
                let of: fn(&'a Value, &$bounds) -> Option<$value> = $of;
                of(value, bounds)
            }

            fn expected(bounds: &$bounds) -> String {
                let expected: fn(&$bounds) -> String = $expected;
                expected(bounds)
            }

            #[cfg(test)]
            fn schema(bounds: &$bounds) -> Value {
                let schema: fn(&$bounds) -> Value = $schema;
                schema(bounds)
            }
        }
    };
    ($type:ty, $value:ty, $of:expr, $expected:literal, $schema:expr) => {
        kind!($type, (), $value, |value, ()| $of(value), |()| $expected.into(), |()| $schema);
    };
}

kind!(bool, bool, Value::as_bool, "true or false", schema::boolean());
kind!(str, &'a str, Value::as_str, "a text", schema::text());
kind!([Value], &'a [Value], list, "a list", schema::list(schema::any()));
kind!(
    Map<String, Value>,
    &'a Map<String, Value>,
    Value::as_object,
    "an object",
    schema::free_object()
);
kind!(Value, &'a Value, Some, "a value", schema::any());
kind!(
    i64,
    RangeInclusive<i64>,
    i64,
    |value, range| value.as_i64().filter(|number| range.contains(number)),
    |range| format!("a whole number from {} to {}", range.start(), range.end()),
    |range| schema::integer(*range.start(), *range.end())
);
kind!(
    usize,
    RangeInclusive<usize>,
    usize,
    |value, range| value.as_u64().map(|number| number as usize).filter(|it| range.contains(it)),
    |range| format!("a whole number from {} to {}", range.start(), range.end()),
    |range| schema::integer(*range.start() as i64, *range.end() as i64)
);
kind!(
    f32,
    RangeInclusive<f64>,
    f32,
    |value, range| value.as_f64().filter(|it| range.contains(it)).map(|number| number as f32),
    |range| format!("a number from {} to {}", range.start(), range.end()),
    |range| schema::number_from(*range.start(), *range.end())
);
// What stands before the names of its fields, and these.
kind!(
    Within,
    (&'static str, FieldTable),
    Fields<'a>,
    |value, (prefix, table)| value.as_object().map(|map| Fields::within(map, prefix, table)),
    |_| "an object".to_owned(),
    |(_, table)| schema::body(table)
);

/// An object whose fields are read by rows of their own.
pub(crate) struct Within;

fn list(value: &Value) -> Option<&[Value]> {
    value.as_array().map(Vec::as_slice)
}

/// A row of any type.
pub(crate) trait AnyRow: Sync {
    /// Returns the field's name.
    fn name(&self) -> &'static str;

    /// Returns the schema of its value, and whether the field is needed.
    #[cfg(test)]
    fn described(&self) -> (Value, bool);
}

impl<T: FieldType + ?Sized> AnyRow for Row<T> {
    fn name(&self) -> &'static str {
        self.name
    }

    #[cfg(test)]
    fn described(&self) -> (Value, bool) {
        let Said { words, schema, default, is_needed } = self.said;
        let schema = schema.map_or_else(|| T::schema(&self.bounds), |make| make());
        let schema = default.map_or(schema.clone(), |make| schema::default(schema, make()));
        (
            if words.is_empty() { schema } else { schema::about(schema, words.trim_start()) },
            is_needed,
        )
    }
}

/// Returns the names of a table's fields.
pub(crate) fn names(table: FieldTable) -> HashSet<&'static str> {
    let mut all = HashSet::new();
    for rows in table {
        match rows {
            Rows::Read { names, .. } | Rows::OthersThinking(names) | Rows::NoThinking(names) => {
                all.extend(*names);
            }
            Rows::Refused(unsupported) => all.extend(unsupported.iter().map(|(name, ..)| *name)),
            Rows::All(table) => all.extend(names(table)),
        }
    }
    all
}

/// The fields of an object. Null is the same as absent.
#[derive(Clone, Copy)]
pub(crate) struct Fields<'a> {
    map: &'a Map<String, Value>,
    /// The prefix of names in errors: `stream_options.` for instance.
    prefix: &'a str,
    /// The rows that may be read, unless the map has no other fields.
    table: Option<FieldTable>,
}

impl<'a> Fields<'a> {
    /// Returns the fields of a body that was parsed by its table.
    pub(crate) fn new(map: &'a Map<String, Value>) -> Self {
        Self { map, prefix: "", table: None }
    }

    /// Returns the fields of an object within another one; `prefix` ends with a dot.
    pub(crate) fn within(map: &'a Map<String, Value>, prefix: &'a str, table: FieldTable) -> Self {
        Self { map, prefix, table: Some(table) }
    }

    /// Returns the value of a row.
    ///
    /// # Errors
    /// 400 naming the field if its value is not what the row says.
    pub(crate) fn read<T: FieldType + ?Sized>(
        self,
        row: &Row<T>,
    ) -> Result<Option<T::Value<'a>>, ApiError> {
        let Some(value) = self.get(row) else { return Ok(None) };
        let wrong = || self.wrong(row.name, &T::expected(&row.bounds));
        T::of(value, &row.bounds).map(Some).ok_or_else(wrong)
    }

    /// Returns the value of a row, or what its absence means.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub(crate) fn read_or<T>(self, row: &RowOr<T>) -> Result<T, ApiError>
    where
        T: FieldType<Value<'a> = T> + Copy,
    {
        Ok(self.read(&row.row)?.unwrap_or(row.default))
    }

    /// Returns a field's value of any type, if it is present.
    pub(crate) fn get(self, row: &(impl AnyRow + ?Sized)) -> Option<&'a Value> {
        self.value(row.name())
    }

    fn value(self, name: &str) -> Option<&'a Value> {
        debug_assert!(self.table.is_none_or(|table| names(table).contains(name)), "{name}");
        self.map.get(name).filter(|value| !value.is_null())
    }

    /// Returns the field's name for an error.
    pub(crate) fn path(self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// Returns an error about a field.
    pub(crate) fn wrong(self, name: &str, expected: &str) -> ApiError {
        wrong(&self.path(name), self.value(name), expected)
    }

    /// Reads a list of token ids.
    pub(crate) fn ids(self, row: &Row<[Value]>) -> Result<Option<Vec<u32>>, ApiError> {
        let Some(items) = self.read(row)? else { return Ok(None) };
        let ids: Option<Vec<u32>> = items.iter().map(token_id).collect();
        ids.map(Some).ok_or_else(|| {
            let path = self.path(row.name);
            ApiError::field(&path, format!("{path} must hold whole numbers from 0 on, token ids"))
        })
    }

    /// Looks for the fields of a list.
    ///
    /// # Errors
    /// 400 naming the first that is present and not harmless.
    pub(crate) fn refuse(self, unsupported: &[Unsupported]) -> Result<(), ApiError> {
        for (name, harmless, remedy) in unsupported {
            if self.value(name).is_some_and(|value| !harmless.holds(value)) {
                return Err(ApiError::unsupported(self.path(name), remedy));
            }
        }
        Ok(())
    }

    /// Returns the values of those fields that are present.
    pub(crate) fn among(
        self,
        names: &[&'static str],
    ) -> impl Iterator<Item = (&'static str, &'a Value)> {
        names.iter().filter_map(move |name| Some((*name, self.value(name)?)))
    }
}

impl Harmless {
    fn holds(self, value: &Value) -> bool {
        match (self, value) {
            (Self::Off, Value::Bool(truth)) => !truth,
            (Self::Off, Value::String(text)) => text.is_empty(),
            (Self::Off | Self::NoCall, Value::Array(items)) => items.is_empty(),
            (Self::Off, Value::Object(map)) => map.is_empty(),
            (Self::Off | Self::Absent, _) => false,
            (Self::NoCall, value) => matches!(value.as_str(), Some("none" | "auto")),
            (Self::At(neutral), value) => {
                value.as_f64().is_some_and(|value| neutral.contains(&value))
            }
            (Self::UpTo(most), value) => value.as_f64().is_some_and(|value| value <= most),
            (Self::From(least), value) => value.as_f64().is_some_and(|value| value >= least),
            (Self::Text(texts), value) => {
                let text = value.as_str().or_else(|| value.get("type")?.as_str());
                text.is_some_and(|text| texts.contains(&text))
            }
        }
    }
}

/// Reads a token id.
pub(crate) fn token_id(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|id| u32::try_from(id).ok())
}

/// Returns an error about a field.
pub(crate) fn wrong(path: &str, found: Option<&Value>, expected: &str) -> ApiError {
    let found = found.map_or("nothing".to_owned(), described);
    ApiError::field(path, format!("{path} is {found}; use {expected}"))
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

    rows! {
        ROWS {
            NUMBER: i64 = "n", in 1..=4;
            FRACTION: f32 = "t", in 0.0..=1.0;
            TRUTH: bool = "t", or true;
            NOTHING: str = "z";
        }
    }

    #[test]
    fn errors_name_the_field() {
        let map: Map<String, Value> =
            serde_json::from_str(r#"{"n":1.5,"t":"x","z":null}"#).unwrap();
        let fields = Fields::new(&map);
        let error = fields.read(&NUMBER).unwrap_err();
        assert_eq!(error.param.as_deref(), Some("n"));
        assert!(error.message.contains("1.5") && error.message.contains("from 1 to 4"));
        assert!(fields.read_or(&TRUTH).is_err() && fields.read(&FRACTION).is_err());
        assert_eq!(fields.read(&NOTHING).unwrap(), None);
        let within = Fields::within(&map, "o.", &[ROWS]);
        assert_eq!(within.wrong("n", "x").param.as_deref(), Some("o.n"));
    }
}
