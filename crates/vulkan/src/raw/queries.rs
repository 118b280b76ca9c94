//! Timestamps that the device writes.

use ash::vk;

use super::gpu::Gpu;
use crate::error::{During, GpuError};

/// A timestamp before the first dispatch and after each.
pub(super) struct Queries {
    pub(super) pool: vk::QueryPool,
    pub(super) count: u32,
}

impl Queries {
    /// Makes room for `count` timestamps.
    pub(super) fn new(gpu: &Gpu, count: u32) -> Result<Self, GpuError> {
        let info = vk::QueryPoolCreateInfo::default()
            .query_type(vk::QueryType::TIMESTAMP)
            .query_count(count);
        // SAFETY: the structure lives until the call returns.
        let pool =
            unsafe { gpu.device.create_query_pool(&info, None) }.during("vkCreateQueryPool")?;
        Ok(Self { pool, count })
    }

    /// Returns the seconds between any two timestamps that follow one another. The run that wrote
    /// them has ended.
    pub(super) fn seconds(&self, gpu: &Gpu) -> Result<Vec<f64>, GpuError> {
        let mut ticks = vec![0_u64; self.count as usize];
        let flags = vk::QueryResultFlags::TYPE_64;
        // SAFETY: the pool has as many queries, and the run that wrote them has ended.
        unsafe { gpu.device.get_query_pool_results(self.pool, 0, &mut ticks, flags) }
            .during("vkGetQueryPoolResults")?;
        let seconds = gpu.capabilities().timestamp_ns * 1e-9;
        Ok(ticks.windows(2).map(|pair| pair[1].wrapping_sub(pair[0]) as f64 * seconds).collect())
    }
}
