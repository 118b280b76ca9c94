//! What the example says of the kernels.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::chip;

/// The output of the example.
#[derive(Deserialize)]
pub(super) struct Output {
    /// The device's name.
    pub(super) device: String,
    /// The rates of the forecast: GB/s, 10^12 operations a second of products with up to 64 rows
    /// and with more, and the microseconds from a launch to the next.
    pub(super) gbps: f64,
    pub(super) tops_skinny: f64,
    pub(super) tops_wide: f64,
    pub(super) gap_us: f64,
    pub(super) kernels: Vec<Kernel>,
}

/// A compiled kernel.
#[derive(Deserialize)]
pub(super) struct Kernel {
    /// The Program that it was found in first: model, format and cache.
    pub(super) program: String,
    /// The step of its largest launch there.
    pub(super) what: String,
    /// The rows of the pass of that launch, if it is of a pass.
    pub(super) tokens: Option<usize>,
    /// Whether only tuning may choose it.
    pub(super) is_trial: bool,
    /// The operations of products and attention in that launch.
    pub(super) operations: f64,
    /// The microseconds forecast for its memory and for its arithmetic.
    pub(super) times_us: Option<[f64; 2]>,
    /// The shader's name.
    pub(super) shader: String,
    /// The specialisation constants from 0 on.
    pub(super) constants: Vec<u32>,
    /// The number of invocations of a subgroup.
    pub(super) subgroup: u32,
    /// Prefixes of the instructions that it should be compiled to: `v_dot4`, `v_wmma`.
    pub(super) expects: Vec<String>,
    /// Whether it reads packed weights or a cache, which must not be loaded byte by byte.
    pub(super) wide: bool,
    /// The statistics by the driver's names.
    pub(super) statistics: BTreeMap<String, f64>,
    /// The machine code as text.
    pub(super) assembly: String,
}

impl Kernel {
    /// Returns a description for people.
    pub(super) fn name(&self) -> String {
        let Self { program, what, .. } = self;
        match self.tokens {
            Some(1) => format!("{program}: {what}, 1 row"),
            Some(rows) => format!("{program}: {what}, {rows} rows"),
            None => format!("{program}: {what}"),
        }
    }

    /// Returns a number that the driver reports.
    pub(super) fn statistic(&self, name: &str) -> Option<u32> {
        self.statistics.get(name).map(|&value| value as u32)
    }

    /// Returns the waves of a SIMD that registers and LDS have room for.
    pub(super) fn waves(&self) -> (f64, Option<f64>) {
        let vgprs = self.statistic("VGPRs").unwrap_or(u32::MAX);
        let lds = self.statistic("LDS size").unwrap_or(0);
        let invocations = self.constants.first().copied().unwrap_or(1);
        (
            chip::waves_by_registers(vgprs, self.subgroup),
            chip::waves_by_lds(lds, invocations, self.subgroup),
        )
    }
}
