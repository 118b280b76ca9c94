//! Rates of GPUs, for forecasts of time.

use trine_backend::rates::Rates;

use super::{Capabilities, DeviceKind};

/// A Radeon 780M with two channels of DDR5-5600. The memory's limit and the limit of products (12
/// units x 512 x 2.7 GHz) are published, 73 GB/s were measured (clpeak, Ryzen 7 8745HS), the rates
/// of products and the gap are assumed.
pub const RADEON_780M: Rates = Rates {
    gbps: 73.0,
    gbps_limit: 89.6,
    tops_skinny: 5.0,
    tops_wide: 7.0,
    tops_limit: 16.6,
    gap_us: 5.0,
};

/// A Radeon 890M with 128 bits of LPDDR5X-7500. The memory's limit and the limit of products (16
/// units x 512 x 2.9 GHz) are published, the rest is assumed: the 780M's shares.
pub const RADEON_890M: Rates = Rates {
    gbps: 98.4,
    gbps_limit: 120.0,
    tops_skinny: 7.2,
    tops_wide: 10.0,
    tops_limit: 23.8,
    gap_us: 5.0,
};

/// A Radeon 8060S of Strix Halo with 256 bits of LPDDR5X-8000. The memory's limit and the limit of
/// products (40 units x 512 x 2.9 GHz) are published, 215 GB/s were measured (llama.cpp and
/// memtest_vulkan: 203 to 226), the rates of products and the gap are assumed.
pub const RADEON_8060S: Rates = Rates {
    gbps: 215.0,
    gbps_limit: 256.0,
    tops_skinny: 18.0,
    tops_wide: 26.0,
    tops_limit: 59.4,
    gap_us: 4.0,
};

/// A GeForce RTX 4090. The limits are published, 917 GB/s were measured (calm), the rates of
/// products and the gap are assumed.
pub const RTX_4090: Rates = Rates {
    gbps: 917.0,
    gbps_limit: 1008.0,
    tops_skinny: 80.0,
    tops_wide: 130.0,
    tops_limit: 330.0,
    gap_us: 2.0,
};

/// An NVIDIA H200. All but the rates of products is measured (`docs/benchmarks/h200.md`).
pub const H200: Rates = Rates {
    gbps: 4605.0,
    gbps_limit: 4700.0,
    tops_skinny: 250.0,
    tops_wide: 400.0,
    tops_limit: 640.0,
    gap_us: 6.0,
};

/// GPUs of which rates are known, by what is in their names.
const KNOWN: [(&str, Rates); 5] = [
    ("780M", RADEON_780M),
    ("890M", RADEON_890M),
    ("8060S", RADEON_8060S),
    ("4090", RTX_4090),
    ("H200", H200),
];
/// From this much memory of its own on, a GPU is taken for one with stacked memory, whose rates are
/// nearer to the H200's than to those of others.
const STACKED_BYTES: u64 = 40 << 30;
/// A GPU with memory of its own that is not known: 256 bits of GDDR6. Assumed.
const DISCRETE: Rates = Rates {
    gbps: 400.0,
    gbps_limit: 450.0,
    tops_skinny: 30.0,
    tops_wide: 50.0,
    tops_limit: 100.0,
    gap_us: 4.0,
};

/// Returns the rates of a GPU, as far as they follow from what it is called and is: those of one
/// that is known, or of its kind. `None` for Vulkan in software, of which nothing is known.
pub fn of(gpu: &Capabilities) -> Option<Rates> {
    let known = KNOWN.iter().find(|(name, _)| gpu.name.contains(name));
    let own = gpu.heaps.iter().filter(|heap| heap.device_local).map(|heap| heap.bytes);
    match gpu.kind {
        DeviceKind::Processor => None,
        _ if known.is_some() => known.map(|(_, rates)| *rates),
        DeviceKind::Integrated => Some(RADEON_780M),
        _ if own.max() >= Some(STACKED_BYTES) => Some(H200),
        DeviceKind::Discrete | DeviceKind::Virtual | DeviceKind::Other => Some(DISCRETE),
    }
}

#[cfg(test)]
mod tests {
    use super::super::presets;
    use super::*;

    #[test]
    fn a_gpu_has_the_rates_of_its_name_or_of_its_kind() {
        let named = |name: &str, gpu: Capabilities| Capabilities { name: name.to_owned(), ..gpu };
        let with = |bytes: u64| {
            let mut gpu = named("NVIDIA A100", presets::h200());
            gpu.heaps[0].bytes = bytes;
            gpu
        };
        for (gpu, expected) in [
            (
                named("AMD Radeon 780M Graphics (RADV PHOENIX)", presets::radeon_780m()),
                Some(RADEON_780M),
            ),
            (named("AMD Radeon 660M", presets::radeon_780m()), Some(RADEON_780M)),
            (presets::radeon_8060s(), Some(RADEON_8060S)),
            (named("NVIDIA H200", presets::h200()), Some(H200)),
            (presets::rtx_4090(), Some(RTX_4090)),
            (with(80 << 30), Some(H200)),
            (with(16 << 30), Some(DISCRETE)),
            (presets::software(), None),
        ] {
            assert_eq!(of(&gpu), expected, "{}", gpu.name);
        }
    }
}
