//! Typed access to the fields of a `config.json`.

use serde_json::Value;

use crate::error::ModelError;

/// Typed access to a JSON object's fields.
#[derive(Clone, Copy)]
pub(crate) struct Fields<'a>(pub(crate) &'a Value);

impl<'a> Fields<'a> {
    /// Returns the value of a key that is present and not null.
    pub(crate) fn given(self, key: &str) -> Option<&'a Value> {
        self.0.get(key).filter(|value| !value.is_null())
    }

    /// Returns the object of a key, if any.
    pub(crate) fn object(self, key: &str) -> Result<Option<Self>, ModelError> {
        match self.given(key) {
            Some(value) if !value.is_object() => Err(ModelError::bad(key, value, "an object")),
            value => Ok(value.map(Fields)),
        }
    }

    /// Refuses a key that is set.
    pub(crate) fn must_be_false(self, key: &str, why: &str) -> Result<(), ModelError> {
        match self.given(key) {
            None | Some(Value::Bool(false)) => Ok(()),
            Some(other) => Err(ModelError::bad(key, other, format!("false: {why}"))),
        }
    }

    /// Returns a whole number that is not negative, or the default.
    pub(crate) fn count(self, key: &str, default: usize) -> Result<usize, ModelError> {
        self.given(key).map_or(Ok(default), |value| as_count(key, value))
    }

    /// Returns a finite number, or the default.
    pub(crate) fn number(self, key: &str, default: f64) -> Result<f64, ModelError> {
        Ok(self.optional_number(key)?.unwrap_or(default))
    }

    /// Returns a finite number, if any.
    pub(crate) fn optional_number(self, key: &str) -> Result<Option<f64>, ModelError> {
        let Some(value) = self.given(key) else { return Ok(None) };
        match value.as_f64().filter(|number| number.is_finite()) {
            Some(number) => Ok(Some(number)),
            None => Err(ModelError::bad(key, value, "a number")),
        }
    }
}

/// Returns a whole number that is not negative.
pub(crate) fn as_count(key: &str, value: &Value) -> Result<usize, ModelError> {
    let whole =
        value.as_f64().filter(|number| number.fract() == 0.0 && (0.0..1e15).contains(number));
    whole.map(|number| number as usize).ok_or_else(|| ModelError::bad(key, value, "a whole number"))
}
