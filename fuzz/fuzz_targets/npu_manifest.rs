//! Any text as a manifest of a kernel pack: an error, or contracts that are checked.

#![no_main]

use libfuzzer_sys::fuzz_target;
use trine_npu::pack::Manifest;
use trine_npu::verify::Verifier;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(manifest) = Manifest::parse("fuzz.toml", text) else { return };
    for stream in &manifest.stream {
        let _ = Verifier::new(manifest.contract(stream));
    }
});
