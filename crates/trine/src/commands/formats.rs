//! The tensors of a file by their formats.

use std::collections::BTreeMap;

use serde::Serialize;
use trine_weights::Tensor;

use crate::output;

/// The tensors of one element format.
#[derive(Debug, Default, Serialize)]
pub(super) struct Format {
    tensors: usize,
    elements: u64,
    bytes: u64,
}

/// Counts tensors by their formats.
pub(super) fn of<'a>(tensors: impl Iterator<Item = &'a Tensor>) -> BTreeMap<&'static str, Format> {
    let mut formats: BTreeMap<&'static str, Format> = BTreeMap::new();
    for tensor in tensors {
        let format = formats.entry(tensor.dtype().name()).or_default();
        format.tensors += 1;
        format.elements += tensor.elements() as u64;
        format.bytes += tensor.bytes().len() as u64;
    }
    formats
}

/// Describes the formats of tensors, a line for each.
pub(super) fn describe(formats: &BTreeMap<&'static str, Format>) -> Vec<String> {
    let line = |(name, format): (&&str, &Format)| {
        format!("format       {name}: {} tensors, {}", format.tensors, output::bytes(format.bytes))
    };
    formats.iter().map(line).collect()
}
