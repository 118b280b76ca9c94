//! Timestamps that the device writes.

use ash::vk;

use super::gpu::Gpu;
use crate::error::{During, GpuError};

/// A timestamp before the first dispatch, and after each of them or after the last.
pub(super) struct Queries {
    pub(super) pool: vk::QueryPool,
    count: u32,
    /// Whether one stands after each dispatch.
    pub(super) is_of_each: bool,
}

impl Queries {
    /// Makes room for the timestamps of each of `dispatches` dispatches.
    pub(super) fn of_each(gpu: &Gpu, dispatches: usize) -> Result<Self, GpuError> {
        Self::new(gpu, dispatches as u32 + 1, true)
    }

    /// Makes room for the timestamps of all dispatches together.
    pub(super) fn of_all(gpu: &Gpu) -> Result<Self, GpuError> {
        Self::new(gpu, 2, false)
    }

    fn new(gpu: &Gpu, count: u32, is_of_each: bool) -> Result<Self, GpuError> {
        let info = vk::QueryPoolCreateInfo::default()
            .query_type(vk::QueryType::TIMESTAMP)
            .query_count(count);
        // SAFETY: the structure lives until the call returns.
        let pool =
            unsafe { gpu.device.create_query_pool(&info, None) }.during("vkCreateQueryPool")?;
        Ok(Self { pool, count, is_of_each })
    }

    /// Records the first timestamp.
    ///
    /// # Safety
    /// The command buffer is being recorded.
    pub(super) unsafe fn begin(&self, device: &ash::Device, commands: vk::CommandBuffer) {
        // SAFETY: the caller's duty.
        unsafe {
            device.cmd_reset_query_pool(commands, self.pool, 0, self.count);
            self.stamp(device, commands, 0);
        }
    }

    /// Records the timestamp of this number.
    ///
    /// # Safety
    /// The command buffer is being recorded, and there is room for it.
    pub(super) unsafe fn stamp(
        &self,
        device: &ash::Device,
        commands: vk::CommandBuffer,
        index: usize,
    ) {
        let stage = vk::PipelineStageFlags2::COMPUTE_SHADER;
        // SAFETY: the caller's duty.
        unsafe { device.cmd_write_timestamp2(commands, stage, self.pool, index as u32) };
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
