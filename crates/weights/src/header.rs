//! How far a file has to be read to know what is in it.

use crate::gguf;

/// Returns whether the first bytes of a GGUF or safetensors file of this name say all that comes
/// before its tensor data.
pub fn holds_header(file: &str, beginning: &[u8]) -> bool {
    let file = file.to_ascii_lowercase();
    if file.ends_with(".safetensors") {
        let length = beginning.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
        return length.is_some_and(|length| length <= beginning.len() as u64 - 8);
    }
    file.ends_with(".gguf") && gguf::holds_header(beginning)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOLDENS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/goldens/");

    #[test]
    fn a_header_is_held_from_its_last_byte_on() {
        let file = std::fs::read(format!("{GOLDENS}gguf/gemma3-qat/model.gguf")).unwrap();
        let layout = gguf::parse(&file, "model.gguf").unwrap();
        let data = layout.tensors.iter().map(|tensor| tensor.range.start).min().unwrap();
        // Before the data comes less padding than the alignment.
        let held = |bytes: usize| holds_header("a/Model.GGUF", &file[..bytes]);
        assert!(held(data) && held(file.len()) && !held(data - layout.alignment as usize));
        for bytes in [0, 4, 8, 24, 100, data / 2] {
            assert!(!held(bytes), "{bytes}");
        }
        let mut tensors = 5_u64.to_le_bytes().to_vec();
        tensors.extend(b"{   }and data");
        let held = |bytes: usize| holds_header("a.safetensors", &tensors[..bytes]);
        assert!(held(13) && held(20) && !held(12) && !held(7) && !held(0));
        assert!(!holds_header("config.json", &tensors));
    }
}
