//! Numbers as values of keys.

use anyhow::Result;
use trine_model::{Config, LayerConfig};
use trine_weights::gguf::{Array, Value};

pub(super) fn number(value: usize) -> Result<Value> {
    Ok(Value::U32(u32::try_from(value)?))
}

/// Returns one number if all layers agree, else a list.
pub(super) fn per_layer(config: &Config, of: impl Fn(&LayerConfig) -> usize) -> Result<Value> {
    let numbers = config
        .layers
        .iter()
        .map(|layer| u32::try_from(of(layer)))
        .collect::<Result<Vec<_>, _>>()?;
    match numbers.iter().all(|number| *number == numbers[0]) {
        true => Ok(Value::U32(numbers[0])),
        false => Ok(Value::Array(Array::U32(numbers))),
    }
}
