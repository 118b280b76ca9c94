//! Any bytes as an xclbin: an error, or sections and PDIs that lie in the file.

#![no_main]

use libfuzzer_sys::fuzz_target;
use trine_npu::pdi::Pdi;
use trine_npu::xclbin::Xclbin;

fuzz_target!(|data: &[u8]| {
    let Ok(xclbin) = Xclbin::parse(data) else { return };
    for section in &xclbin.sections {
        let _ = &data[section.range.clone()];
    }
    for image in xclbin.partition.iter().flat_map(|partition| &partition.pdis) {
        let _ = Pdi::parse(&data[image.range.clone()]);
    }
});
