//! Any bytes as a GGUF file: an error, or a layout whose tensors lie in the file and decode.

#![no_main]

use libfuzzer_sys::fuzz_target;
use trine_weights::{blocks, gguf};

fuzz_target!(|data: &[u8]| {
    let Ok(layout) = gguf::parse(data, "fuzz.gguf") else { return };
    let mut end_before = 0;
    for tensor in &layout.tensors {
        let bytes = &data[tensor.range.clone()];
        let elements: usize = tensor.shape.iter().product();
        assert_eq!(tensor.dtype.row_bytes(elements), Some(bytes.len()));
        if !bytes.is_empty() {
            assert!(tensor.range.start >= end_before, "tensors overlap");
            end_before = tensor.range.end;
            let first = &bytes[..tensor.dtype.block_bytes()];
            let mut floats = vec![0.0; tensor.dtype.block_elements()];
            blocks::decode(tensor.dtype, first, &mut floats).expect("one whole block");
        }
    }
    for (key, value) in layout.metadata.iter() {
        assert_eq!(layout.metadata.get(key).map(gguf::Value::kind), Some(value.kind()));
        let _ = layout.metadata.optional_u64s(key);
        if let Ok(Some(strings)) = layout.metadata.optional_strings(key) {
            assert_eq!(strings.iter().map(str::len).sum::<usize>(), strings.text_bytes());
        }
    }
});
