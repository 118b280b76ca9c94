//! Machines whose rates are known well enough for a forecast.

use std::sync::Arc;

use trine_backend::Device;
use trine_backend::rates::Rates;
use trine_vulkan::capabilities::{Capabilities, presets as vulkan, rates};

use super::{Basis, BasisKind, Machine, absent};
use crate::device::Opened;
use BasisKind::{Assumed, Measured, Published};

/// The known rates of a machine, from which a [`Machine`] is made.
pub struct Preset {
    /// The name that is typed for the machine.
    pub key: &'static str,
    /// What its GPU can do.
    gpu: fn() -> Capabilities,
    /// Other spellings, without punctuation.
    aliases: &'static [&'static str],
    name: &'static str,
    rates: Rates,
    /// The bytes of the GPU's own memory, if it has any.
    memory_bytes: Option<u64>,
    /// Whether such chips have an XDNA1 NPU.
    has_npu: bool,
    sources: &'static [(BasisKind, &'static str)],
}

/// The machines, the one with the slowest memory first.
pub static PRESETS: [Preset; 5] = [
    Preset {
        key: "780m",
        gpu: vulkan::radeon_780m,
        aliases: &["radeon780m", "amdradeon780m", "phoenix", "hawkpoint"],
        name: "Radeon 780M, DDR5-5600",
        rates: rates::RADEON_780M,
        memory_bytes: None,
        has_npu: true,
        sources: &[
            (
                Published,
                "89.6 GB/s: two channels of DDR5-5600; 16.6 Top/s: 12 units x 512 x 2.7 GHz",
            ),
            (Measured, "73 GB/s reached: clpeak, michaelstinkerings.org, Ryzen 7 8745HS part II"),
            (
                Assumed,
                "7.0 Top/s of wide products, 42 % of the peak (llama.cpp on Vulkan reaches 24 %)",
            ),
            (Assumed, "5.0 Top/s of products with up to 64 rows; 5 us between launches"),
        ],
    },
    Preset {
        key: "890m",
        gpu: vulkan::radeon_890m,
        aliases: &["radeon890m", "amdradeon890m"],
        name: "Radeon 890M, LPDDR5X-7500",
        rates: rates::RADEON_890M,
        memory_bytes: None,
        has_npu: false,
        sources: &[
            (Published, "120 GB/s: 128 bits of LPDDR5X-7500; 23.8 Top/s: 16 units x 512 x 2.9 GHz"),
            (
                Assumed,
                "82 % of the bandwidth is reached, as on a 780M; with DDR5-5600 give --gbps 73",
            ),
            (
                Assumed,
                "7.2 and 10.0 Top/s of products: the 780M's assumed shares; 5 us between launches",
            ),
        ],
    },
    Preset {
        key: "strix-halo",
        gpu: vulkan::radeon_8060s,
        aliases: &["strixhalo", "radeon8060s", "8060s", "ryzenaimax395"],
        name: "Strix Halo (Radeon 8060S)",
        rates: rates::RADEON_8060S,
        memory_bytes: None,
        has_npu: false,
        sources: &[
            (Published, "256 GB/s: 256 bits of LPDDR5X-8000; 59.4 Top/s: 40 units x 512 x 2.9 GHz"),
            (
                Measured,
                "215 GB/s reached: llama.cpp generation 203 to 220, memtest_vulkan 212 to 226",
            ),
            (Assumed, "26 Top/s of wide products, 44 % of the peak (ROCm bf16 reaches 47 to 50 %)"),
            (Assumed, "18 Top/s of products with up to 64 rows; 4 us between launches"),
        ],
    },
    Preset {
        key: "rtx-4090",
        gpu: vulkan::rtx_4090,
        aliases: &["rtx4090", "4090", "geforcertx4090", "nvidiageforcertx4090"],
        name: "GeForce RTX 4090",
        rates: rates::RTX_4090,
        memory_bytes: Some(24 << 30),
        has_npu: false,
        sources: &[
            (
                Published,
                "1008 GB/s; 330 Top/s of dense f16 products with f16 sums (8-bit ones: 660); 24 \
                 GiB",
            ),
            (Measured, "917 GB/s reached: 91 %, calm reads weights at 884 to 923"),
            (
                Assumed,
                "80 and 130 Top/s of products with up to 64 rows and more; 2 us between launches",
            ),
        ],
    },
    Preset {
        key: "h200",
        gpu: vulkan::h200,
        aliases: &["nvidiah200", "h200sxm"],
        name: "NVIDIA H200",
        rates: rates::H200,
        memory_bytes: Some(150_750_000_000),
        has_npu: false,
        sources: &[
            (Measured, "4700 GB/s: streaming read of a Vulkan compute shader (data sheet: 4800)"),
            (
                Measured,
                "4605 GB/s reached: 27B weights at 4.5 bits without barriers; 6 us for each launch \
                 beside that: 5.5 to 6.9 in steps of 1B, 4B and 27B in Q4_0",
            ),
            (
                Measured,
                "640 Top/s: f16 cooperative matrices with f32 sums, from registers (8-bit products \
                 reach 1200)",
            ),
            (Assumed, "250 and 400 Top/s of products with up to 64 rows and more"),
        ],
    },
];

impl Preset {
    /// Returns the machine with its rates.
    pub fn machine(&self) -> Machine {
        let source = |(kind, text): &(BasisKind, &str)| Basis::new(*kind, *text);
        Machine {
            name: self.name.to_owned(),
            gbps: self.rates.gbps,
            gbps_limit: self.rates.gbps_limit,
            tops_skinny: self.rates.tops_skinny,
            tops_wide: self.rates.tops_wide,
            tops_limit: self.rates.tops_limit,
            gap_us: self.rates.gap_us,
            memory_bytes: self.memory_bytes,
            has_own_memory: self.memory_bytes.is_some(),
            has_npu: self.has_npu,
            sources: self.sources.iter().map(source).collect(),
        }
    }

    /// Returns its GPU, with the memory that it has of its own.
    pub fn gpu(&self) -> Arc<dyn Device> {
        absent::gpu((self.gpu)(), false, self.memory_bytes.unwrap_or(0))
    }

    /// Returns its devices, with `bytes` of memory in place of its own; `layers` is how many layers
    /// the GPU runs, if that was chosen.
    pub fn devices(&self, is_invariant: bool, bytes: Option<u64>, layers: Option<usize>) -> Opened {
        absent::machine((self.gpu)(), is_invariant, bytes.or(self.memory_bytes), layers)
    }
}

/// Returns the machine with this name, ignoring case, spaces and dashes.
pub fn preset(name: &str) -> Option<&'static Preset> {
    let plain = |text: &str| -> String {
        text.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_ascii_lowercase()
    };
    let wanted = plain(name);
    let is_it =
        |preset: &&Preset| plain(preset.key) == wanted || preset.aliases.contains(&wanted.as_str());
    PRESETS.iter().find(is_it)
}
