//! What is known of the Radeon 780M (gfx1103): how many waves its units hold, and the rate of LDS.
//!
//! ```text
//! waves by registers = 512 / VGPRs                      of a SIMD, at most 16; 1024 / VGPRs for subgroups of 32
//! waves by LDS       = 128 KiB / LDS of a workgroup     whole workgroups, LDS rounded up to 1 KiB
//!                      x waves of a workgroup / 4       spread over the SIMDs of a workgroup processor
//! ```
//!
//! 1024 registers of 32 lanes, the granule of 1 KiB and 16 waves are those of Mesa's
//! `ac_gpu_info.c`. A workgroup takes LDS of its workgroup processor, two compute units with 64 KiB
//! and two SIMDs each, because RADV runs compute shaders in WGP mode on such chips.

use super::assembly::Instructions;

/// Registers of a SIMD for a lane of a subgroup of 32.
const REGISTERS: u32 = 1024;
/// Most waves of a SIMD.
const WAVES_MAX: f64 = 16.0;
/// LDS of a workgroup processor in bytes, and its granule.
const LDS_BYTES: u32 = 128 << 10;
const LDS_GRANULE: u32 = 1 << 10;
/// SIMDs of a workgroup processor.
const SIMDS: f64 = 4.0;
/// Fewest waves of a SIMD: one waits for memory, another one computes.
pub(super) const WAVES_LEAST: f64 = 2.0;
/// GB/s of LDS: 12 compute units, 32 banks of 4 bytes, 2.7 GHz.
pub(super) const LDS_GBPS: f64 = 12.0 * 128.0 * 2.7;
/// Operations of a matrix product of a wave.
const WMMA_OPERATIONS: u32 = 2 * 16 * 16 * 16;
/// Operations of a lane in a dot product of four bytes.
const DOT4_OPERATIONS: u32 = 8;

/// Returns the waves that the registers of a SIMD have room for.
pub(super) fn waves_by_registers(vgprs: u32, subgroup: u32) -> f64 {
    f64::from(REGISTERS * 32 / subgroup.max(32) / vgprs.max(1)).min(WAVES_MAX)
}

/// Returns the waves of a SIMD for whose workgroups LDS has room, `None` for workgroups without
/// LDS.
pub(super) fn waves_by_lds(bytes: u32, invocations: u32, subgroup: u32) -> Option<f64> {
    let workgroups = LDS_BYTES.checked_div(bytes.next_multiple_of(LDS_GRANULE))?;
    let waves = f64::from(workgroups * invocations.div_ceil(subgroup.max(1))) / SIMDS;
    Some(waves.min(WAVES_MAX))
}

/// Returns the microseconds that LDS needs for the traffic of `operations` operations, from the
/// ratio of bytes to products in the loop `inner`; `None` for a loop without products.
pub(super) fn lds_us(inner: &Instructions, subgroup: u32, operations: f64) -> Option<f64> {
    let products = inner.wmma * WMMA_OPERATIONS + inner.dot4 * DOT4_OPERATIONS * subgroup;
    let bytes = f64::from(inner.shared_bytes * subgroup);
    (products > 0).then(|| operations * bytes / f64::from(products) / (LDS_GBPS * 1e3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_and_lds_limit_waves() {
        assert_eq!(waves_by_registers(96, 64), 5.0);
        assert_eq!(waves_by_registers(96, 32), 10.0);
        assert_eq!(waves_by_registers(8, 64), 16.0, "no SIMD holds more");
        assert_eq!(waves_by_lds(0, 256, 64), None);
        // Two workgroups of two waves for four SIMDs.
        assert_eq!(waves_by_lds(61_440, 128, 64), Some(1.0));
        assert_eq!(waves_by_lds(62_976, 256, 64), Some(2.0));
        assert_eq!(waves_by_lds(33_280, 256, 64), Some(3.0), "33 KiB three times");
        assert_eq!(waves_by_lds(40 << 10, 64, 64), Some(0.75));
    }

    #[test]
    fn lds_time_follows_from_what_products_need() {
        // 8192 operations and 16 bytes of each of 64 lanes.
        let inner = Instructions { wmma: 1, shared_bytes: 16, ..Instructions::default() };
        let us = lds_us(&inner, 64, 8192e6).unwrap();
        assert!((us - 1024e6 / (LDS_GBPS * 1e3)).abs() < 1e-6, "{us}");
        assert_eq!(lds_us(&Instructions::default(), 64, 1.0), None);
    }
}
