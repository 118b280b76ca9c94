//! Recorded command buffers and their submission.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use ash::vk;

use super::gpu::{Gpu, Injected};
use super::memory::Buffer;
use crate::dispatch::{Dispatch, Hazards};
use crate::error::{During, GpuError};

/// A submission that takes longer counts as hung. Submissions are cut to about 100 ms; a software device is slower.
const PATIENCE: Duration = Duration::from_secs(120);

/// Commands that can be submitted again and again, in one submission or several.
pub(crate) struct Recording {
    gpu: Arc<Gpu>,
    pool: vk::CommandPool,
    /// One for each submission.
    commands: Vec<vk::CommandBuffer>,
    fence: vk::Fence,
    queries: Option<Queries>,
}

/// A timestamp before the first dispatch and after each.
struct Queries {
    pool: vk::QueryPool,
    count: u32,
}

// SAFETY: the handles are used through &mut alone, and what they refer to by no other value.
unsafe impl Send for Recording {}

/// A copy between buffers at the end of a recording.
#[derive(Debug, Clone)]
pub(crate) struct Copy {
    pub(crate) from: Buffer,
    pub(crate) to: Buffer,
    pub(crate) bytes: u64,
}

impl Recording {
    /// Records dispatches with the barriers that they need, then copies. A new submission begins before each dispatch whose
    /// index is among `cuts`, which ascend.
    pub(crate) fn record(
        gpu: &Arc<Gpu>,
        dispatches: &[Dispatch],
        copies: &[Copy],
        cuts: &[usize],
    ) -> Result<Self, GpuError> {
        let mut recording = Self::empty(gpu, cuts.len() + 1)?;
        let ends = cuts.iter().copied().chain([dispatches.len()]);
        let mut start = 0;
        for (index, end) in ends.enumerate() {
            let copies = if index == cuts.len() { copies } else { &[] };
            recording.fill(index, &dispatches[start..end], copies)?;
            start = end;
        }
        Ok(recording)
    }

    /// Records dispatches with a barrier and a timestamp behind each, then copies.
    pub(crate) fn timed(
        gpu: &Arc<Gpu>,
        dispatches: &[Dispatch],
        copies: &[Copy],
    ) -> Result<Self, GpuError> {
        let mut recording = Self::empty(gpu, 1)?;
        recording.queries = Some(Queries::new(gpu, dispatches.len() as u32 + 1)?);
        recording.fill(0, dispatches, copies)?;
        Ok(recording)
    }

    fn empty(gpu: &Arc<Gpu>, submissions: usize) -> Result<Self, GpuError> {
        let mut recording = Self {
            gpu: gpu.clone(),
            pool: vk::CommandPool::null(),
            commands: Vec::new(),
            fence: vk::Fence::null(),
            queries: None,
        };
        let info = vk::CommandPoolCreateInfo::default().queue_family_index(gpu.family);
        // SAFETY: the structures of these calls live until they return. What was made before a failure is destroyed by
        // drop, which ignores null handles.
        unsafe {
            recording.pool =
                gpu.device.create_command_pool(&info, None).during("vkCreateCommandPool")?;
            let info = vk::CommandBufferAllocateInfo::default()
                .command_pool(recording.pool)
                .level(vk::CommandBufferLevel::PRIMARY)
                .command_buffer_count(submissions as u32);
            recording.commands =
                gpu.device.allocate_command_buffers(&info).during("vkAllocateCommandBuffers")?;
            let info = vk::FenceCreateInfo::default();
            recording.fence = gpu.device.create_fence(&info, None).during("vkCreateFence")?;
        }
        Ok(recording)
    }

    fn fill(
        &mut self,
        submission: usize,
        dispatches: &[Dispatch],
        copies: &[Copy],
    ) -> Result<(), GpuError> {
        let device = &self.gpu.device;
        let commands = self.commands[submission];
        let begin = vk::CommandBufferBeginInfo::default();
        // SAFETY: the command buffer is this value's own and is not pending; kernels and buffers outlive it by the rules of
        // the module.
        unsafe {
            device.begin_command_buffer(commands, &begin).during("vkBeginCommandBuffer")?;
            // What submissions before this one wrote.
            self.barrier(commands, EVERYTHING, EVERYTHING);
            if let Some(queries) = &self.queries {
                device.cmd_reset_query_pool(commands, queries.pool, 0, queries.count);
                self.stamp(commands, queries, 0);
            }
            let mut hazards = Hazards::default();
            let mut bound = vk::Pipeline::null();
            for (index, dispatch) in dispatches.iter().enumerate() {
                if hazards.needs_barrier(dispatch) || self.queries.is_some() {
                    self.barrier(commands, COMPUTE, COMPUTE);
                }
                if dispatch.kernel.pipeline != bound {
                    bound = dispatch.kernel.pipeline;
                    let point = vk::PipelineBindPoint::COMPUTE;
                    device.cmd_bind_pipeline(commands, point, bound);
                }
                let (layout, stage) = (dispatch.kernel.layout, vk::ShaderStageFlags::COMPUTE);
                let push = dispatch.push.bytes();
                device.cmd_push_constants(commands, layout, stage, 0, push);
                let [x, y, z] = dispatch.groups;
                device.cmd_dispatch(commands, x, y, z);
                if let Some(queries) = &self.queries {
                    self.stamp(commands, queries, index as u32 + 1);
                }
            }
            self.copy(commands, copies);
            self.barrier(commands, EVERYTHING, HOST);
            device.end_command_buffer(commands).during("vkEndCommandBuffer")
        }
    }

    /// # Safety
    /// The command buffer is being recorded.
    unsafe fn copy(&self, commands: vk::CommandBuffer, copies: &[Copy]) {
        if copies.is_empty() {
            return;
        }
        // SAFETY: the caller's duty; both buffers were made for copies.
        unsafe {
            self.barrier(commands, COMPUTE, TRANSFER);
            for copy in copies {
                let (from, src_offset) = copy.from.raw();
                let (to, dst_offset) = copy.to.raw();
                let region = vk::BufferCopy { src_offset, dst_offset, size: copy.bytes };
                self.gpu.device.cmd_copy_buffer(commands, from, to, &[region]);
            }
        }
    }

    /// # Safety
    /// The command buffer is being recorded.
    unsafe fn barrier(&self, commands: vk::CommandBuffer, before: Access, after: Access) {
        let barriers = [vk::MemoryBarrier2::default()
            .src_stage_mask(before.0)
            .src_access_mask(before.1)
            .dst_stage_mask(after.0)
            .dst_access_mask(after.1)];
        let info = vk::DependencyInfo::default().memory_barriers(&barriers);
        // SAFETY: the caller's duty.
        unsafe { self.gpu.device.cmd_pipeline_barrier2(commands, &info) };
    }

    /// # Safety
    /// The command buffer is being recorded.
    unsafe fn stamp(&self, commands: vk::CommandBuffer, queries: &Queries, index: u32) {
        let stage = vk::PipelineStageFlags2::COMPUTE_SHADER;
        // SAFETY: the caller's duty; the index is inside the pool.
        unsafe { self.gpu.device.cmd_write_timestamp2(commands, stage, queries.pool, index) };
    }

    /// Runs the commands and waits for their end. `during` is named in an error.
    pub(crate) fn run(&mut self, during: &str) -> Result<(), GpuError> {
        self.submit(during)?;
        self.wait(during)
    }

    fn submit(&mut self, during: &str) -> Result<(), GpuError> {
        let lost = || GpuError::Lost { during: during.to_owned() };
        match self.gpu.injected_at(super::gpu::Place::Submission) {
            None => {}
            Some(Injected::Timeout) => return Err(timeout(during)),
            Some(_) => return Err(lost()),
        }
        // Each command buffer is a job of its own to the driver, and has its own time.
        let queue = self.gpu.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let (last, first) = self.commands.split_last().expect("there is a submission");
        // SAFETY: the commands are recorded and not pending: every submission is waited for.
        unsafe {
            self.gpu.device.reset_fences(&[self.fence]).during("vkResetFences")?;
            let submit = |commands: &vk::CommandBuffer, fence: vk::Fence| {
                let list = [*commands];
                let info = [vk::SubmitInfo::default().command_buffers(&list)];
                self.gpu.device.queue_submit(*queue, &info, fence).map_err(|result| match result {
                    vk::Result::ERROR_DEVICE_LOST => lost(),
                    result => GpuError::of("vkQueueSubmit", result),
                })
            };
            first.iter().try_for_each(|commands| submit(commands, vk::Fence::null()))?;
            submit(last, self.fence)
        }
    }

    fn wait(&mut self, during: &str) -> Result<(), GpuError> {
        let most = PATIENCE.as_nanos() as u64;
        // SAFETY: the fence is this value's own.
        let result = unsafe { self.gpu.device.wait_for_fences(&[self.fence], true, most) };
        result.map_err(|result| match result {
            vk::Result::ERROR_DEVICE_LOST => GpuError::Lost { during: during.to_owned() },
            vk::Result::TIMEOUT => timeout(during),
            result => GpuError::of("vkWaitForFences", result),
        })
    }

    /// Seconds of each dispatch in the last run, for a recording with timestamps.
    pub(crate) fn times(&self) -> Result<Vec<f64>, GpuError> {
        let Some(queries) = &self.queries else { return Ok(Vec::new()) };
        let mut ticks = vec![0_u64; queries.count as usize];
        let flags = vk::QueryResultFlags::TYPE_64;
        // SAFETY: the pool has as many queries, and the run that wrote them has ended.
        unsafe { self.gpu.device.get_query_pool_results(queries.pool, 0, &mut ticks, flags) }
            .during("vkGetQueryPoolResults")?;
        let seconds = self.gpu.capabilities().timestamp_ns * 1e-9;
        Ok(ticks.windows(2).map(|pair| pair[1].wrapping_sub(pair[0]) as f64 * seconds).collect())
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        let device = &self.gpu.device;
        // SAFETY: the handles are this value's own, and a submission is either ended or, after a failed wait, waited for
        // here: the call returns at once when the device is lost.
        unsafe {
            let queue = self.gpu.queue.lock().unwrap_or_else(PoisonError::into_inner);
            let _ = device.queue_wait_idle(*queue);
            if let Some(queries) = &self.queries {
                device.destroy_query_pool(queries.pool, None);
            }
            device.destroy_fence(self.fence, None);
            device.destroy_command_pool(self.pool, None);
        }
    }
}

impl Queries {
    fn new(gpu: &Gpu, count: u32) -> Result<Self, GpuError> {
        let info = vk::QueryPoolCreateInfo::default()
            .query_type(vk::QueryType::TIMESTAMP)
            .query_count(count);
        // SAFETY: the structure lives until the call returns.
        let pool =
            unsafe { gpu.device.create_query_pool(&info, None) }.during("vkCreateQueryPool")?;
        Ok(Self { pool, count })
    }
}

fn timeout(during: &str) -> GpuError {
    GpuError::Timeout { seconds: PATIENCE.as_secs(), during: during.to_owned() }
}

/// Stages and what they do with memory.
type Access = (vk::PipelineStageFlags2, vk::AccessFlags2);

const COMPUTE: Access = (
    vk::PipelineStageFlags2::COMPUTE_SHADER,
    vk::AccessFlags2::from_raw(
        vk::AccessFlags2::SHADER_STORAGE_READ.as_raw()
            | vk::AccessFlags2::SHADER_STORAGE_WRITE.as_raw(),
    ),
);
const TRANSFER: Access = (
    vk::PipelineStageFlags2::COPY,
    vk::AccessFlags2::from_raw(
        vk::AccessFlags2::TRANSFER_READ.as_raw() | vk::AccessFlags2::TRANSFER_WRITE.as_raw(),
    ),
);
const EVERYTHING: Access = (
    vk::PipelineStageFlags2::ALL_COMMANDS,
    vk::AccessFlags2::from_raw(
        vk::AccessFlags2::MEMORY_READ.as_raw() | vk::AccessFlags2::MEMORY_WRITE.as_raw(),
    ),
);
const HOST: Access = (
    vk::PipelineStageFlags2::from_raw(
        vk::PipelineStageFlags2::HOST.as_raw() | vk::PipelineStageFlags2::ALL_COMMANDS.as_raw(),
    ),
    vk::AccessFlags2::from_raw(
        vk::AccessFlags2::HOST_READ.as_raw()
            | vk::AccessFlags2::MEMORY_READ.as_raw()
            | vk::AccessFlags2::MEMORY_WRITE.as_raw(),
    ),
);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raw::memory::Place;
    use crate::testing::gpu;

    /// Wrong on purpose: copies of a recording stand without barriers, so none may write what another one writes.
    #[test]
    #[ignore = "a hazard that the validation layer has to see: cargo xtask ci runs it"]
    fn copies_over_each_other_are_a_hazard() {
        let gpu = gpu();
        let from = gpu.allocate(256, Place::Upload, "a test's source").unwrap();
        let to = gpu.allocate(256, Place::Readback, "a test's target").unwrap();
        from.write(0, &[1; 256]);
        let copy = Copy { from, to, bytes: 256 };
        let copies = [copy.clone(), copy];
        let recording = Recording::record(&gpu, &[], &copies, &[]);
        recording.and_then(|mut recording| recording.run("a test")).unwrap();
    }
}
