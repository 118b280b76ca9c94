//! What `show` says of every file: its size, and its tensors by their formats.

use std::collections::BTreeMap;

use serde::Serialize;
use trine_weights::Tensor;

use crate::{terminal, terminal::output};

/// The tensors of one element format.
#[derive(Debug, Default, Serialize)]
pub(super) struct FormatTotals {
    tensors: usize,
    elements: u64,
    bytes: u64,
}

/// Counts tensors by their formats.
pub(super) fn of<'a>(
    tensors: impl Iterator<Item = &'a Tensor>,
) -> BTreeMap<&'static str, FormatTotals> {
    let mut formats: BTreeMap<&'static str, FormatTotals> = BTreeMap::new();
    for tensor in tensors {
        let format = formats.entry(tensor.dtype().name()).or_default();
        format.tensors += 1;
        format.elements += tensor.elements() as u64;
        format.bytes += tensor.bytes().len() as u64;
    }
    formats
}

/// Describes the formats of tensors, a line for each.
pub(super) fn describe(formats: &BTreeMap<&'static str, FormatTotals>) -> Vec<String> {
    let line = |(name, format): (&&str, &FormatTotals)| {
        format!("format       {name}: {} tensors, {}", format.tensors, output::bytes(format.bytes))
    };
    formats.iter().map(line).collect()
}

/// Describes what every file has: its name and files with their bytes, its architecture and the
/// number of its parameters.
pub(super) fn describe_files(
    model: &str,
    (files, bytes): (&str, u64),
    (architecture, parameters): (&str, u64),
) -> Vec<String> {
    vec![
        format!("model        {}", terminal::harmless(model)),
        format!("files        {}, {}", terminal::harmless(files), output::bytes(bytes)),
        format!("architecture {architecture}, {} parameters", output::count(parameters)),
    ]
}
