//! Recorded command buffers and their submission.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use ash::vk;

use super::access::{ANYTHING_WRITTEN, Access, COMPUTE, EVERYTHING, HOST, TRANSFER};
use super::copies::{Before, Copy};
use super::gpu::{Gpu, Injected};
use super::hold::Hold;
use super::meeting::{Absent, Host, Meeting};
use super::memory::Buffer;
use super::queries::Queries;
use super::usual::{Next, Usual};
use crate::dispatch::{Dispatch, Hazards};
use crate::error::{During, GpuError};

/// Time after which a submission counts as hung. Submissions are cut to about 100 ms; a software
/// device is slower.
const PATIENCE: Duration = Duration::from_secs(120);
/// Time between two attempts to wait for a device whose driver could not even begin to wait.
const IDLE_RETRY: Duration = Duration::from_millis(10);

/// Submissions of a recording that are on the device at the same time: while one runs, the next one
/// waits there, so that the device need not wait for the host.
const IN_FLIGHT: usize = 2;

/// Commands that can be submitted any number of times, in one submission or several.
pub(crate) struct Recording {
    gpu: Arc<Gpu>,
    /// The pool of the command buffers; null if these belong to other recordings.
    pool: vk::CommandPool,
    commands: Vec<vk::CommandBuffer>,
    /// Where the command buffers of each submission end among them.
    ends: Vec<usize>,
    /// Signalled by the submissions in turn.
    fences: Vec<vk::Fence>,
    queries: Option<Queries>,
    /// Where the host takes part, in their order.
    meetings: Vec<Meeting>,
    /// The run that was begun and is not finished.
    begun: Option<Begun>,
    usual: Usual,
}

/// How far a run has come.
#[derive(Debug, Clone, Copy)]
struct Begun {
    /// Submissions made.
    submitted: usize,
    /// How many of them were waited for.
    done: usize,
    /// Whether it was stopped and makes no further submission.
    is_stopped: bool,
}

/// How a run ended that did not fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(crate) enum Ended {
    /// All commands ran.
    Whole,
    /// The run was stopped before one of its submissions.
    Stopped,
    /// The host did not do its part, and no further submission was made.
    Abandoned,
}

impl Recording {
    /// Records dispatches with the barriers that they need, then copies. A new submission begins
    /// before each dispatch whose index is in `cuts`, which is in ascending order.
    pub(crate) fn record(
        gpu: &Arc<Gpu>,
        dispatches: &[Dispatch],
        copies: &[Copy],
        cuts: &[usize],
    ) -> Result<Self, GpuError> {
        Self::prepared(gpu, &Before::default(), dispatches, copies, cuts)
    }

    /// Records what [`Recording::record`] does, after `before`.
    pub(crate) fn prepared(
        gpu: &Arc<Gpu>,
        before: &Before,
        dispatches: &[Dispatch],
        copies: &[Copy],
        cuts: &[usize],
    ) -> Result<Self, GpuError> {
        let recording = Self::empty(gpu, cuts.len() + 1)?;
        recording.filled(before, dispatches, copies, cuts)
    }

    /// Records that memory is set to 0; offsets and lengths are multiples of 4 bytes.
    pub(crate) fn zeros(gpu: &Arc<Gpu>, targets: &[Buffer]) -> Result<Self, GpuError> {
        let zeros = targets.iter().filter(|target| target.bytes() > 0).cloned().collect();
        Self::prepared(gpu, &Before { copies: Vec::new(), zeros }, &[], &[], &[])
    }

    /// Records what [`Recording::prepared`] does, without copies, and with a timestamp before and
    /// after all of it.
    pub(crate) fn clocked(
        gpu: &Arc<Gpu>,
        before: &Before,
        dispatches: &[Dispatch],
        cuts: &[usize],
    ) -> Result<Self, GpuError> {
        let mut recording = Self::empty(gpu, cuts.len() + 1)?;
        recording.queries = Some(Queries::of_all(gpu)?);
        recording.filled(before, dispatches, &[], cuts)
    }

    fn filled(
        mut self,
        before: &Before,
        dispatches: &[Dispatch],
        copies: &[Copy],
        cuts: &[usize],
    ) -> Result<Self, GpuError> {
        let nothing = Before::default();
        let ends = cuts.iter().copied().chain([dispatches.len()]);
        let mut start = 0;
        for (index, end) in ends.enumerate() {
            let copies = if index == cuts.len() { copies } else { &[] };
            let before = if index == 0 { before } else { &nothing };
            self.fill(index, before, &dispatches[start..end], copies)?;
            start = end;
        }
        Ok(self)
    }

    /// Records dispatches with a barrier and a timestamp after each, then copies.
    pub(crate) fn timed(
        gpu: &Arc<Gpu>,
        dispatches: &[Dispatch],
        copies: &[Copy],
    ) -> Result<Self, GpuError> {
        let mut recording = Self::empty(gpu, 1)?;
        recording.queries = Some(Queries::of_each(gpu, dispatches.len())?);
        recording.fill(0, &Before::default(), dispatches, copies)?;
        Ok(recording)
    }

    /// Makes a recording without commands that runs those of others: [`Recording::follow`].
    pub(crate) fn series(gpu: &Arc<Gpu>) -> Result<Self, GpuError> {
        let mut recording = Self::bare(gpu);
        recording.add_fences(IN_FLIGHT)?;
        Ok(recording)
    }

    /// Makes the next run that of other recordings, one after the other, without any wait of the
    /// host. Each comes with the seconds that its submissions are predicted to take. Those that
    /// come to no more than `most_seconds` together become one. The recordings must not have
    /// meetings, and stay until the run is finished, as their buffers do.
    pub(crate) fn follow<'a>(
        &mut self,
        parts: impl Iterator<Item = (&'a Recording, &'a [f64])>,
        most_seconds: f64,
    ) {
        debug_assert!(self.begun.is_none(), "the run before was finished");
        self.commands.clear();
        self.ends.clear();
        let mut sum = 0.0;
        for (part, seconds) in parts {
            debug_assert!(part.meetings.is_empty(), "nobody meets the host");
            debug_assert_eq!(part.commands.len(), seconds.len(), "each is predicted");
            for (&commands, seconds) in part.commands.iter().zip(seconds) {
                if !self.commands.is_empty() && sum + seconds > most_seconds {
                    self.ends.push(self.commands.len());
                    sum = 0.0;
                }
                self.commands.push(commands);
                sum += seconds;
            }
        }
        self.ends.push(self.commands.len());
    }

    fn bare(gpu: &Arc<Gpu>) -> Self {
        Self {
            gpu: gpu.clone(),
            pool: vk::CommandPool::null(),
            commands: Vec::new(),
            ends: Vec::new(),
            fences: Vec::new(),
            queries: None,
            meetings: Vec::new(),
            begun: None,
            usual: Usual::of(gpu.capabilities().kind),
        }
    }

    fn add_fences(&mut self, count: usize) -> Result<(), GpuError> {
        let info = vk::FenceCreateInfo::default();
        for _ in 0..count {
            // SAFETY: the structure lives until the call returns.
            let fence = unsafe { self.gpu.device.create_fence(&info, None) };
            self.fences.push(fence.during("vkCreateFence")?);
        }
        Ok(())
    }

    fn empty(gpu: &Arc<Gpu>, submissions: usize) -> Result<Self, GpuError> {
        let mut recording = Self::bare(gpu);
        recording.ends = (1..=submissions).collect();
        let info = vk::CommandPoolCreateInfo::default().queue_family_index(gpu.family);
        // SAFETY: the structures of these calls live until they return. What was made before a
        // failure is destroyed by drop, which ignores null handles.
        unsafe {
            recording.pool =
                gpu.device.create_command_pool(&info, None).during("vkCreateCommandPool")?;
            let info = vk::CommandBufferAllocateInfo::default()
                .command_pool(recording.pool)
                .level(vk::CommandBufferLevel::PRIMARY)
                .command_buffer_count(submissions as u32);
            recording.commands =
                gpu.device.allocate_command_buffers(&info).during("vkAllocateCommandBuffers")?;
        }
        recording.add_fences(submissions.min(IN_FLIGHT))?;
        Ok(recording)
    }

    fn fill(
        &mut self,
        submission: usize,
        before: &Before,
        dispatches: &[Dispatch],
        copies: &[Copy],
    ) -> Result<(), GpuError> {
        self.check(dispatches)?;
        let device = &self.gpu.device;
        let commands = self.commands[submission];
        // A series runs a recording again before its run before has ended.
        let begin = vk::CommandBufferBeginInfo::default()
            .flags(vk::CommandBufferUsageFlags::SIMULTANEOUS_USE);
        // SAFETY: the command buffer is this value's own and is not pending; kernels and buffers
        // outlive it by the rules of the module.
        unsafe {
            device.begin_command_buffer(commands, &begin).during("vkBeginCommandBuffer")?;
            // Makes visible what earlier submissions wrote.
            self.barrier(commands, EVERYTHING, EVERYTHING);
            if let Some(queries) = self.queries.as_ref().filter(|_| submission == 0) {
                queries.begin(device, commands);
            }
            // After the barrier: a series may just have run this recording.
            before.record(device, commands);
            let mut hazards = Hazards::after(before.spans());
            // What the next barrier waits for.
            let mut written = if before.is_empty() { COMPUTE } else { ANYTHING_WRITTEN };
            let mut bound = vk::Pipeline::null();
            let of_each = self.queries.as_ref().filter(|queries| queries.is_of_each);
            for (index, dispatch) in dispatches.iter().enumerate() {
                if hazards.needs_barrier(dispatch) || of_each.is_some() {
                    self.barrier(commands, written, COMPUTE);
                    written = COMPUTE;
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
                if let Some(queries) = of_each {
                    queries.stamp(device, commands, index + 1);
                }
            }
            let is_last = submission + 1 == self.submissions();
            if let Some(queries) = self.queries.as_ref().filter(|_| is_last && of_each.is_none()) {
                queries.stamp(device, commands, 1);
            }
            self.copy(commands, written, copies);
            self.barrier(commands, EVERYTHING, HOST);
            device.end_command_buffer(commands).during("vkEndCommandBuffer")
        }
    }

    /// Refuses dispatches of more workgroups than the device takes.
    fn check(&self, dispatches: &[Dispatch]) -> Result<(), GpuError> {
        let capabilities = self.gpu.capabilities();
        let exceeds = |dispatch: &&Dispatch| {
            dispatch.groups.iter().zip(capabilities.groups).any(|(&found, most)| found > most)
        };
        match dispatches.iter().find(exceeds) {
            Some(Dispatch { label, groups, .. }) => Err(GpuError::TooWide {
                device: capabilities.name.clone(),
                what: format!("{label} in {groups:?} workgroups"),
            }),
            None => Ok(()),
        }
    }

    /// # Safety
    /// The command buffer is being recorded.
    unsafe fn copy(&self, commands: vk::CommandBuffer, written: Access, copies: &[Copy]) {
        if copies.is_empty() {
            return;
        }
        // SAFETY: the caller's duty.
        unsafe {
            self.barrier(commands, written, TRANSFER);
            copies.iter().for_each(|copy| copy.record(&self.gpu.device, commands));
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

    /// Has the host take part in each run: meetings in ascending order, of which none begins before
    /// the one before it has ended.
    pub(crate) fn with_meetings(mut self, meetings: Vec<Meeting>) -> Self {
        debug_assert!(meetings.iter().all(|meeting| meeting.after < meeting.before));
        debug_assert!(meetings.windows(2).all(|pair| pair[0].before <= pair[1].after));
        self.meetings = meetings;
        self
    }

    /// Returns the number of submissions.
    pub(crate) fn submissions(&self) -> usize {
        self.ends.len()
    }

    /// Runs the commands and waits for their end. `during` is named in an error.
    ///
    /// When it returns, with or without an error, the device has finished with the commands:
    /// whatever they use may be changed and freed. After an error it waits for that as long as the
    /// driver keeps the device for them.
    pub(crate) fn run(&mut self, during: &str) -> Result<(), GpuError> {
        self.begin(None, during)?;
        self.finish(None, &mut Absent, during).map(|_| ())
    }

    /// Begins a run: makes the first submissions, as many as may be on the device at the same time,
    /// and returns. Makes no further submission once `stop` is raised. [`Recording::finish`] has to
    /// follow; a recording that is dropped before that waits for the device.
    ///
    /// # Errors
    /// Any error of the driver. The device has then finished with what was submitted.
    pub(crate) fn begin(
        &mut self,
        stop: Option<&AtomicBool>,
        during: &str,
    ) -> Result<(), GpuError> {
        debug_assert!(self.begun.is_none(), "the run before was finished");
        self.usual.begin();
        let (result, hold) = match self.gpu.injected_at(super::gpu::FailurePoint::Submission) {
            None => (self.submit_first(stop, during), None),
            Some(injected) => {
                let hold = Hold::new(&self.gpu)?;
                (Err(self.fail(injected, &hold, during)), Some(hold))
            }
        };
        match result {
            Ok(begun) => {
                self.begun = Some(begun);
                Ok(())
            }
            Err(error) => {
                self.settle(during, hold);
                Err(error)
            }
        }
    }

    /// Returns whether the run that was begun has made all of its submissions.
    pub(crate) fn is_submitted(&self) -> bool {
        let is_all = |begun: &Begun| !begun.is_stopped && begun.submitted == self.submissions();
        self.begun.as_ref().is_some_and(is_all)
    }

    /// Makes the remaining submissions of the run that was begun, until `stop` is raised, so that
    /// others can follow. None of them needs the host.
    ///
    /// # Errors
    /// As [`Recording::finish`].
    pub(crate) fn submit_all(
        &mut self,
        stop: Option<&AtomicBool>,
        during: &str,
    ) -> Result<(), GpuError> {
        debug_assert!(self.meetings.is_empty(), "nobody meets the host");
        let Some(mut begun) = self.begun.take() else { return Ok(()) };
        let submitted = self.submit_others(&mut begun, stop, during);
        submitted.inspect_err(|_| self.settle(during, None))?;
        self.begun = Some(begun);
        Ok(())
    }

    fn submit_others(
        &mut self,
        begun: &mut Begun,
        stop: Option<&AtomicBool>,
        during: &str,
    ) -> Result<(), GpuError> {
        while begun.submitted < self.submissions() && !begun.is_stopped {
            while begun.done + IN_FLIGHT <= begun.submitted {
                self.wait(begun.done, during, PATIENCE)?;
                begun.done += 1;
            }
            begun.is_stopped = stop.is_some_and(|stop| self.is_stopped(stop, begun.submitted));
            if !begun.is_stopped {
                self.submit(begun.submitted, during, None)?;
                begun.submitted += 1;
            }
        }
        Ok(())
    }

    /// Counts the time of the run that was begun from now on: what ran before it on the device has
    /// just ended.
    pub(crate) fn count_from_now(&mut self) {
        self.usual.begin();
    }

    /// Ends the run that was begun: makes the remaining submissions, until `stop` is raised or
    /// `host` does not do its part at a meeting, and waits for all of them.
    ///
    /// # Errors
    /// Any error of the driver. With or without one, the device has finished with the commands.
    pub(crate) fn finish(
        &mut self,
        stop: Option<&AtomicBool>,
        host: &mut dyn Host,
        during: &str,
    ) -> Result<Ended, GpuError> {
        let Some(begun) = self.begun.take() else { return Ok(Ended::Whole) };
        self.submit_rest(begun, stop, host, during).inspect_err(|_| self.settle(during, None))
    }

    /// Waits for a run that was begun and will not be finished. The device has then finished with
    /// the commands.
    pub(crate) fn cancel(&mut self) {
        if self.begun.take().is_some_and(|begun| begun.submitted > 0) {
            self.settle("dropping a step that nobody waited for", None);
        }
    }

    /// Makes the first submissions, at most [`IN_FLIGHT`], and none that needs the host.
    fn submit_first(&mut self, stop: Option<&AtomicBool>, during: &str) -> Result<Begun, GpuError> {
        let needs_host = self.meetings.first().map_or(IN_FLIGHT, |meeting| meeting.before);
        let first = self.submissions().min(IN_FLIGHT).min(needs_host);
        for next in 0..first {
            if stop.is_some_and(|stop| self.is_stopped(stop, next)) {
                return Ok(Begun { submitted: next, done: 0, is_stopped: true });
            }
            self.submit(next, during, None)?;
        }
        Ok(Begun { submitted: first, done: 0, is_stopped: false })
    }

    /// Makes the other submissions, each once an earlier one has ended and the host has done what
    /// it needs, and waits for the last.
    fn submit_rest(
        &mut self,
        begun: Begun,
        stop: Option<&AtomicBool>,
        host: &mut dyn Host,
        during: &str,
    ) -> Result<Ended, GpuError> {
        let Begun { submitted: mut next, mut done, is_stopped } = begun;
        let mut met = 0;
        let mut ended = if is_stopped { Ended::Stopped } else { Ended::Whole };
        while next < self.submissions() && ended == Ended::Whole {
            let meeting = self.meetings.get(met).copied();
            let has_to_meet = meeting.is_some_and(|meeting| meeting.before == next);
            let needed = meeting.filter(|_| has_to_meet).map_or(0, |meeting| meeting.after + 1);
            let room = (next + 1).saturating_sub(IN_FLIGHT);
            while done < room.max(needed) {
                self.wait(done, during, PATIENCE)?;
                if meeting.is_some_and(|meeting| meeting.after == done) {
                    host.begin(met);
                }
                done += 1;
            }
            if has_to_meet {
                if !host.end(met, &|| self.has_ended(next - 1)) {
                    ended = Ended::Abandoned;
                    break;
                }
                met += 1;
            }
            if stop.is_some_and(|stop| self.is_stopped(stop, next)) {
                ended = Ended::Stopped;
                break;
            }
            self.submit(next, during, None)?;
            next += 1;
        }
        while done < next {
            if done + 1 == next && ended == Ended::Whole {
                self.watch(done);
            }
            self.wait(done, during, PATIENCE)?;
            done += 1;
        }
        if ended == Ended::Whole {
            self.usual.end();
        }
        Ok(ended)
    }

    /// Waits for the last submission of a run while that is better than the driver's wait.
    fn watch(&mut self, last: usize) {
        if self.has_ended(last) {
            self.usual.miss();
        }
        loop {
            match self.usual.next() {
                Next::Wait => break,
                Next::Sleep(time) => std::thread::sleep(time),
                Next::Look => std::hint::spin_loop(),
            }
            if self.has_ended(last) {
                break;
            }
        }
    }

    /// Returns whether the last submission that was made has ended.
    fn has_ended(&self, last: usize) -> bool {
        let fence = self.fences[last % IN_FLIGHT];
        // SAFETY: the fence is this value's own.
        let status = unsafe { self.gpu.device.get_fence_status(fence) };
        // The wait for this submission reports an error.
        status.unwrap_or(true)
    }

    /// Returns whether the run is to end before the submission `next`.
    fn is_stopped(&self, stop: &AtomicBool, next: usize) -> bool {
        if self.gpu.injected_at(super::gpu::FailurePoint::Before(next)).is_some() {
            stop.store(true, Ordering::Relaxed);
        }
        stop.load(Ordering::Relaxed)
    }

    /// Fails on purpose, after making as many submissions as may be in flight, or one fewer, and
    /// holding them back.
    fn fail(&mut self, injected: Injected, hold: &Hold, during: &str) -> GpuError {
        let most = self.submissions().min(IN_FLIGHT);
        let count = if injected == Injected::Refusal { most - 1 } else { most };
        for index in 0..count {
            let hold = (index == 0).then_some(hold);
            if let Err(error) = self.submit(index, during, hold) {
                return error;
            }
        }
        match injected {
            Injected::Refusal => refused(during, vk::Result::ERROR_OUT_OF_HOST_MEMORY),
            Injected::Loss => GpuError::Lost { during: during.to_owned() },
            _ => {
                let waited = self.wait(count - 1, during, Duration::ZERO);
                waited.err().unwrap_or_else(|| timeout(during))
            }
        }
    }

    /// Makes a submission, which waits for `hold` if there is one. The submission that used its
    /// fence before has already been waited for.
    fn submit(&mut self, index: usize, during: &str, hold: Option<&Hold>) -> Result<(), GpuError> {
        let queue = self.gpu.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let fence = self.fences[index % IN_FLIGHT];
        let first = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        let commands = &self.commands[first..self.ends[index]];
        let held = hold.map(|hold| hold.semaphore);
        let waits: &[vk::Semaphore] = held.as_slice();
        let values = &[1][..waits.len()];
        let stages = &[vk::PipelineStageFlags::ALL_COMMANDS][..waits.len()];
        let mut timeline = vk::TimelineSemaphoreSubmitInfo::default().wait_semaphore_values(values);
        let info = vk::SubmitInfo::default()
            .command_buffers(commands)
            .wait_semaphores(waits)
            .wait_dst_stage_mask(stages);
        let info = if waits.is_empty() { info } else { info.push_next(&mut timeline) };
        // SAFETY: the commands are recorded, and may be pending: they were made for it. A fence is
        // not: a run is begun when the one before it is finished. The structures live until the
        // calls return.
        unsafe {
            self.gpu.device.reset_fences(&[fence]).during("vkResetFences")?;
            let submitted = self.gpu.device.queue_submit(*queue, &[info], fence);
            submitted.map_err(|result| refused(during, result))
        }
    }

    /// Waits until the device has finished with a submission.
    fn wait(&mut self, index: usize, during: &str, patience: Duration) -> Result<(), GpuError> {
        let most = patience.as_nanos() as u64;
        let fence = self.fences[index % IN_FLIGHT];
        // SAFETY: the fence is this value's own.
        let result = unsafe { self.gpu.device.wait_for_fences(&[fence], true, most) };
        result.map_err(|result| match result {
            vk::Result::ERROR_DEVICE_LOST => GpuError::Lost { during: during.to_owned() },
            vk::Result::TIMEOUT => timeout(during),
            result => GpuError::of("vkWaitForFences", result),
        })
    }

    /// Waits until the device has finished with everything that a failed run has submitted, after
    /// releasing what was held back.
    fn settle(&self, during: &str, hold: Option<Hold>) {
        if let Some(hold) = &hold {
            hold.release();
        }
        let device = self.gpu.capabilities().name.as_str();
        tracing::warn!(device, during, "a run broke off: waiting until the GPU has stopped");
        let queue = self.gpu.queue.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the queue is the device's and used under its mutex.
        while let Err(result) = unsafe { self.gpu.device.queue_wait_idle(*queue) } {
            // A lost device runs nothing any more. Any other failure says nothing about what still
            // runs.
            if result == vk::Result::ERROR_DEVICE_LOST {
                break;
            }
            std::thread::sleep(IDLE_RETRY);
        }
    }

    /// Returns the seconds of each dispatch in the last run, or of all together, for a recording
    /// with timestamps.
    pub(crate) fn times(&self) -> Result<Vec<f64>, GpuError> {
        self.queries.as_ref().map_or(Ok(Vec::new()), |queries| queries.seconds(&self.gpu))
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        self.cancel();
        let device = &self.gpu.device;
        // SAFETY: the handles are this value's own, and the device has finished with all that was
        // submitted: each run was waited for, by `finish` or just now.
        unsafe {
            if let Some(queries) = &self.queries {
                device.destroy_query_pool(queries.pool, None);
            }
            for &fence in &self.fences {
                device.destroy_fence(fence, None);
            }
            device.destroy_command_pool(self.pool, None);
        }
    }
}

/// Returns the error of a driver that takes no submission.
fn refused(during: &str, result: vk::Result) -> GpuError {
    match result {
        vk::Result::ERROR_DEVICE_LOST => GpuError::Lost { during: during.to_owned() },
        result => GpuError::of(&format!("vkQueueSubmit while {during}"), result),
    }
}

fn timeout(during: &str) -> GpuError {
    GpuError::Timeout { seconds: PATIENCE.as_secs(), during: during.to_owned() }
}

#[cfg(test)]
mod tests;
