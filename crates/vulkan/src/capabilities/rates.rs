//! Rates of machines, for forecasts of time.

/// The most rows that kernels for few rows take. Products of more rows run at
/// [`Rates::tops_wide`].
pub const SKINNY_ROWS_MAX: usize = 64;
/// The factor by which operations of attention count: its tiles are narrow, and half of a causal
/// tile is masked.
pub const ATTENTION_FACTOR: f64 = 2.0;

/// The rates of a machine's GPU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rates {
    /// The rate in GB/s at which kernels read weights.
    pub gbps: f64,
    /// The rate in GB/s that nothing exceeds.
    pub gbps_limit: f64,
    /// 10^12 operations per second of products with up to [`SKINNY_ROWS_MAX`] rows.
    pub tops_skinny: f64,
    /// 10^12 operations per second of products with more rows.
    pub tops_wide: f64,
    /// 10^12 operations per second that no f16 product exceeds.
    pub tops_limit: f64,
    /// The microseconds of idle time between a launch and the next one that needs its result.
    pub gap_us: f64,
}

impl Rates {
    /// Returns 10^12 operations per second of products with this many rows.
    pub fn tops(&self, rows: usize) -> f64 {
        if rows > SKINNY_ROWS_MAX { self.tops_wide } else { self.tops_skinny }
    }
}

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
