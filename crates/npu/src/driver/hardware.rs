//! The kernel's part of a context.

use std::mem::{offset_of, size_of};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytemuck::{bytes_of, cast_slice_mut};

use super::contexts::contexts;
use super::error::DriverError;
use super::handle::Handle;
use crate::sys::abi::{self, ContextInfo, TimelineWait};
use crate::sys::{Errno, Pointed, Sys};
use crate::uapi;

/// How long a command may take. After 2 s the kernel gives it up, which may leave the device hung.
pub const WATCHDOG: Duration = Duration::from_secs(1);

/// The first and the longest pause between two looks at the driver's counter.
const COUNTER_PAUSE: Duration = Duration::from_micros(20);
const COUNTER_PAUSE_MAX: Duration = Duration::from_millis(5);
/// Rows of cores in a column.
const CORE_ROWS: u32 = 4;
/// Most operations each cycle, as published kernels give them.
const OPERATIONS_EACH_CYCLE: u32 = 2048;

/// The kernel's part of a context.
#[derive(Debug)]
pub(super) struct Hardware<S: Sys> {
    pub(super) handle: Arc<Handle<S>>,
    number: u32,
    timeline: u32,
    /// The process that the driver lists the context for, by the kernel's own number: in a
    /// container the process knows itself by another.
    process: i64,
    /// The commands that the driver has taken.
    submissions: AtomicU64,
}

impl<S: Sys> Hardware<S> {
    pub(super) fn new(handle: &Arc<Handle<S>>, columns: u8) -> Result<Self, DriverError> {
        let before = listed(handle)?;
        if !handle.sys.process().take_context() {
            return Err(DriverError::ContextTaken);
        }
        let mut hardware = match Self::create(handle, columns) {
            Ok(hardware) => hardware,
            Err(error) => {
                handle.sys.process().give_context();
                return Err(error);
            }
        };
        hardware.process = hardware.find(&before)?;
        Ok(hardware)
    }

    fn create(handle: &Arc<Handle<S>>, columns: u8) -> Result<Self, DriverError> {
        let mut create = uapi::CreateHwctx {
            max_opc: OPERATIONS_EACH_CYCLE,
            num_tiles: u32::from(columns) * CORE_ROWS,
            ..Default::default()
        };
        let mut wishes = [0; size_of::<uapi::QosInfo>()];
        let field = offset_of!(uapi::CreateHwctx, qos_p);
        let mut pointed = [Pointed { field, bytes: &mut wishes }];
        handle
            .call(uapi::CREATE_HWCTX, &mut create, &mut pointed)
            .map_err(|errno| DriverError::ContextRefused { errno })?;
        let handle = Arc::clone(handle);
        let (number, timeline) = (create.handle, create.syncobj_handle);
        Ok(Self { handle, number, timeline, process: 0, submissions: AtomicU64::new(0) })
    }

    /// Returns the process of the one context that is listed now and was not before.
    fn find(&self, before: &[ContextInfo]) -> Result<i64, DriverError> {
        let key = |context: &ContextInfo| (context.context_id, context.pid);
        // Handles count from 1 in each process.
        let mut new = listed(&self.handle)?;
        new.retain(|context| {
            context.context_id == self.number
                && !before.iter().any(|known| key(known) == key(context))
        });
        match &new[..] {
            [own] => Ok(own.pid),
            [] => Err(DriverError::NoCounter),
            _ => Err(DriverError::UnclearCounter),
        }
    }

    /// Gives the context its one compute unit.
    pub(super) fn configure(&self, cores: u32) -> Result<(), DriverError> {
        let header = uapi::ConfigCuHeader { num_cus: 1, pad: [0; 3] };
        // A pack whose unit has another function is refused.
        let unit = uapi::CuConfig { cu_bo: cores, cu_func: 0, pad: [0; 3] };
        let mut bytes = [bytes_of(&header), bytes_of(&unit)].concat();
        let mut configure = uapi::ConfigHwctx {
            handle: self.number,
            param_type: uapi::CONFIG_CU,
            param_val_size: bytes.len() as u32,
            ..Default::default()
        };
        let field = offset_of!(uapi::ConfigHwctx, param_val);
        let mut pointed = [Pointed { field, bytes: &mut bytes }];
        self.handle
            .call(uapi::CONFIG_HWCTX, &mut configure, &mut pointed)
            .map_err(DriverError::call("load the kernel onto the NPU"))
    }

    /// Returns the command's point on the timeline.
    pub(super) fn submit(&self, packet: u32, buffers: &mut [u32]) -> Result<u64, Errno> {
        let mut execute = uapi::ExecCmd {
            hwctx: self.number,
            cmd_handles: u64::from(packet),
            cmd_count: 1,
            arg_count: buffers.len() as u32,
            ..Default::default()
        };
        let field = offset_of!(uapi::ExecCmd, args);
        let mut pointed = [Pointed { field, bytes: cast_slice_mut(buffers) }];
        self.handle.call(uapi::EXEC_CMD, &mut execute, &mut pointed)?;
        self.handle.takes_off();
        self.submissions.fetch_add(1, Ordering::Relaxed);
        Ok(execute.seq)
    }

    /// Waits for a point, as long as the watchdog allows.
    fn wait(&self, point: u64) -> Result<(), Errno> {
        let deadline = self.handle.sys.now() + WATCHDOG;
        let mut wait = TimelineWait {
            timeout_ns: i64::try_from(deadline.as_nanos()).map_err(|_| Errno::EINVAL)?,
            count_handles: 1,
            flags: abi::WAIT_ALL | abi::WAIT_FOR_SUBMIT,
            ..Default::default()
        };
        let mut timeline = self.timeline.to_le_bytes();
        let mut point = point.to_le_bytes();
        let mut pointed = [
            Pointed { field: offset_of!(TimelineWait, handles), bytes: &mut timeline },
            Pointed { field: offset_of!(TimelineWait, points), bytes: &mut point },
        ];
        self.handle.call(abi::TIMELINE_WAIT, &mut wait, &mut pointed)
    }

    /// Waits for a point. If that fails the NPU is in quarantine.
    pub(super) fn wait_or_quarantine(&self, point: u64) -> Result<(), DriverError> {
        let error = match self.wait(point) {
            Ok(()) => {
                self.handle.lands();
                return Ok(());
            }
            Err(Errno::ETIME) => DriverError::TimedOut { limit: WATCHDOG },
            // Whether it still runs is unknown, and so it may write to its buffers.
            Err(errno) => DriverError::call("wait for a command on the NPU")(errno),
        };
        self.quarantine(&error);
        Err(error)
    }

    /// Returns how many commands the driver has taken.
    pub(super) fn submissions(&self) -> u64 {
        self.submissions.load(Ordering::Relaxed)
    }

    /// Waits until the driver has counted this many submissions since `before`, as long as the
    /// watchdog allows: some versions count a submission only after its end has been told.
    ///
    /// # Errors
    ///
    /// [`DriverError::NotCounted`] if the driver counts fewer or more.
    pub(super) fn settle(&self, before: u64, submitted: u64) -> Result<(), DriverError> {
        let deadline = self.handle.sys.now() + WATCHDOG;
        let mut pause = COUNTER_PAUSE;
        loop {
            let counted = i128::from(self.completions()?) - i128::from(before);
            if counted == i128::from(submitted) {
                return Ok(());
            }
            if counted > i128::from(submitted) || self.handle.sys.now() >= deadline {
                return Err(DriverError::NotCounted { submitted, counted });
            }
            self.handle.sys.sleep(pause);
            pause = (2 * pause).min(COUNTER_PAUSE_MAX);
        }
    }

    /// Returns how many submissions of this context have ended, as the driver counts them: a chain
    /// counts as one, and so does a failed submission.
    pub(super) fn completions(&self) -> Result<u64, DriverError> {
        let listed = listed(&self.handle)?;
        let is_own =
            |info: &&ContextInfo| info.context_id == self.number && info.pid == self.process;
        let own = listed.iter().find(is_own).ok_or(DriverError::NoCounter)?;
        Ok(own.command_completions)
    }

    pub(super) fn quarantine(&self, error: &DriverError) {
        self.handle.sys.process().set_quarantine(error.cause());
    }
}

fn listed<S: Sys>(handle: &Handle<S>) -> Result<Vec<ContextInfo>, DriverError> {
    contexts(&handle.sys, handle.file).map_err(DriverError::call("ask what has ended on the NPU"))
}

impl<S: Sys> Drop for Hardware<S> {
    fn drop(&mut self) {
        // In quarantine the kernel ends the context with the process: to destroy it may take as
        // long as its command hangs.
        if !self.handle.gives_back() {
            return;
        }
        let mut destroy = uapi::DestroyHwctx { handle: self.number, pad: 0 };
        // The kernel ends what is left with the file at the latest.
        let _ = self.handle.call(uapi::DESTROY_HWCTX, &mut destroy, &mut []);
        let mut timeline = abi::SyncobjDestroy { handle: self.timeline, pad: 0 };
        let _ = self.handle.call(abi::SYNCOBJ_DESTROY, &mut timeline, &mut []);
        self.handle.sys.process().give_context();
    }
}
