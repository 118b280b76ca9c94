//! Any bytes as a PDI: an error, or commands whose data lie in the file.

#![no_main]

use libfuzzer_sys::fuzz_target;
use trine_npu::pdi::{Command, Pdi};

fuzz_target!(|data: &[u8]| {
    let Ok(pdi) = Pdi::parse(data) else { return };
    for command in &pdi.commands {
        if let Command::DmaWrite { data: range, .. } = command {
            let _ = &data[range.clone()];
        }
    }
    let _ = pdi.cores();
});
