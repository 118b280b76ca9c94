//! Devices whose capabilities are known, for decisions and questions that need no device. The
//! presets lack only what the choice of kernels does not depend on: identities, heaps, extensions.

use super::{Capabilities, CooperativeShape, DeviceKind, Element, MemoryHeap};

/// A device with only what every device has.
fn plain(name: &str, kind: DeviceKind) -> Capabilities {
    Capabilities {
        name: name.to_owned(),
        driver: "a preset".to_owned(),
        kind,
        vendor: 0,
        device: 0,
        uuid: [0; 16],
        driver_version: 0,
        pipeline_cache_uuid: [0; 16],
        api: (1, 3),
        subgroup: 8,
        subgroup_range: (8, 8),
        shared_bytes: 32 << 10,
        invocations: 1024,
        groups: [65_535; 3],
        allocation_bytes: 2 << 30,
        timestamp_ns: 1.0,
        integer_dot_accelerated: false,
        cooperative: Vec::new(),
        fragments: false,
        cores: None,
        heaps: vec![MemoryHeap { bytes: 16 << 30, device_local: true, host_visible: true }],
        extensions: Vec::new(),
    }
}

fn product(m: u32, n: u32, k: u32) -> CooperativeShape {
    CooperativeShape { m, n, k, input: Element::F16, output: Element::F32 }
}

/// Vulkan in software: subgroups of 8, no matrix units.
pub fn software() -> Capabilities {
    plain("software", DeviceKind::Processor)
}

/// A GPU whose matrix units have the layout that the fragment kernel is written for.
pub fn h200() -> Capabilities {
    Capabilities {
        cooperative: vec![product(16, 16, 16), product(16, 8, 16)],
        subgroup: 32,
        subgroup_range: (32, 32),
        shared_bytes: 48 << 10,
        allocation_bytes: (4 << 30) - (2 << 20),
        integer_dot_accelerated: true,
        cores: Some(132),
        fragments: true,
        ..plain("H200", DeviceKind::Discrete)
    }
}

/// A GPU with the matrix units of the H200. That their layout is the same is an assumption: no such
/// device was queried.
pub fn rtx_4090() -> Capabilities {
    Capabilities { name: "GeForce RTX 4090".to_owned(), cores: Some(128), ..h200() }
}

/// An integrated GPU with matrix units of another layout: RDNA 3.
pub fn radeon_780m() -> Capabilities {
    Capabilities {
        cooperative: vec![product(16, 16, 16)],
        subgroup: 64,
        subgroup_range: (32, 64),
        shared_bytes: 64 << 10,
        allocation_bytes: (4 << 30) - 4,
        integer_dot_accelerated: true,
        cores: Some(12),
        ..plain("Radeon 780M", DeviceKind::Integrated)
    }
}

/// Its successor: RDNA 3.5, which is treated as RDNA 3.
pub fn radeon_890m() -> Capabilities {
    Capabilities { name: "Radeon 890M".to_owned(), cores: Some(16), ..radeon_780m() }
}

/// The largest one of its kind, in Strix Halo.
pub fn radeon_8060s() -> Capabilities {
    Capabilities { name: "Radeon 8060S".to_owned(), cores: Some(40), ..radeon_780m() }
}
