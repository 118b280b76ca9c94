//! The kernel's part of a context.

use std::mem::{offset_of, size_of};
use std::sync::Arc;
use std::time::Duration;

use bytemuck::{bytes_of, cast_slice_mut};

use super::error::DriverError;
use super::handle::Handle;
use crate::sys::abi::{self, ContextInfo, TimelineWait};
use crate::sys::{Errno, Pointed, Sys};
use crate::uapi;

/// How long a command may take. After 2 s the kernel gives it up, which may leave the device hung.
pub const WATCHDOG: Duration = Duration::from_secs(1);
/// Rows of cores in a column.
const CORE_ROWS: u32 = 4;
/// Most operations each cycle, as published kernels give them.
const OPERATIONS_EACH_CYCLE: u32 = 2048;
/// The most contexts that an answer about the machine has room for. The driver has at most 6.
const CONTEXTS_LISTED: usize = 32;

/// The kernel's part of a context.
#[derive(Debug)]
pub(super) struct Hardware<S: Sys> {
    pub(super) handle: Arc<Handle<S>>,
    number: u32,
    timeline: u32,
}

impl<S: Sys> Hardware<S> {
    pub(super) fn new(handle: &Arc<Handle<S>>, columns: u8) -> Result<Self, DriverError> {
        if !handle.sys.process().take_context() {
            return Err(DriverError::ContextTaken);
        }
        let mut create = uapi::CreateHwctx {
            max_opc: OPERATIONS_EACH_CYCLE,
            num_tiles: u32::from(columns) * CORE_ROWS,
            ..Default::default()
        };
        let mut wishes = [0; size_of::<uapi::QosInfo>()];
        let field = offset_of!(uapi::CreateHwctx, qos_p);
        let mut pointed = [Pointed { field, bytes: &mut wishes }];
        if let Err(errno) = handle.call(uapi::CREATE_HWCTX, &mut create, &mut pointed) {
            handle.sys.process().give_context();
            return Err(DriverError::ContextRefused { errno });
        }
        let handle = Arc::clone(handle);
        Ok(Self { handle, number: create.handle, timeline: create.syncobj_handle })
    }

    /// Gives the context its one compute unit.
    pub(super) fn configure(&self, cores: u32) -> Result<(), DriverError> {
        let header = uapi::ConfigCuHeader { num_cus: 1, pad: [0; 3] };
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

    /// Returns how many commands of this context the device has completed.
    pub(super) fn completions(&self) -> Result<u64, DriverError> {
        let mut contexts = [ContextInfo::default(); CONTEXTS_LISTED];
        let bytes = cast_slice_mut(&mut contexts);
        let mut question = uapi::GetInfo {
            param: uapi::INFO_HW_CONTEXTS,
            buffer_size: bytes.len() as u32,
            buffer: 0,
        };
        let field = offset_of!(uapi::GetInfo, buffer);
        self.handle
            .call(uapi::GET_INFO, &mut question, &mut [Pointed { field, bytes }])
            .map_err(DriverError::call("ask what the NPU has completed"))?;
        // Handles count from 1 in each process.
        let process = self.handle.sys.process_id();
        let is_own = |info: &&ContextInfo| info.context_id == self.number && info.pid == process;
        let own = contexts.iter().find(is_own).ok_or(DriverError::NoCounter)?;
        Ok(own.command_completions)
    }

    pub(super) fn quarantine(&self, error: &DriverError) {
        self.handle.sys.process().set_quarantine(error.to_string());
    }
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
