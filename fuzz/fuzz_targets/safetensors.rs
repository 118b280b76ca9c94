//! Any bytes as a safetensors file: an error, or entries that cover the data exactly.

#![no_main]

use libfuzzer_sys::fuzz_target;
use trine_weights::safetensors_file;

fuzz_target!(|data: &[u8]| {
    let Ok(entries) = safetensors_file::parse(data, "fuzz.safetensors") else { return };
    let Some(first) = entries.first() else { return };
    let mut end = first.range.start;
    for entry in &entries {
        assert_eq!(entry.range.start, end, "gap or overlap");
        end = entry.range.end;
        if let Some(dtype) = entry.dtype() {
            let elements: usize = entry.shape.iter().product();
            assert_eq!(dtype.row_bytes(elements), Some(entry.range.len()));
        }
    }
    assert_eq!(end, data.len(), "trailing bytes");
});
