//! A hardware context, and commands on it.

use std::collections::VecDeque;
use std::mem::{offset_of, size_of};
use std::sync::Arc;
use std::time::Duration;

use bytemuck::{bytes_of, cast_slice_mut};

use super::buffer::{DeviceBuffer, HostBuffer, PoisonedBuffer};
use super::device::Device;
use super::error::DriverError;
use super::handle::{Handle, Mapped, words};
use super::heap::Block;
use super::proven::ProvenStream;
use crate::contract::{Access, Contract};
use crate::cores::CoreProgram;
use crate::kernel::Family;
use crate::packet::{self, State};
use crate::sys::abi::{self, ContextInfo, TimelineWait};
use crate::sys::{Errno, Pointed, Sys};
use crate::uapi;

/// How long a command may take. After 2 s the kernel gives it up, which may leave the device hung.
pub const WATCHDOG: Duration = Duration::from_secs(1);
/// Bytes of a command's packet.
const PACKET_BYTES: u64 = 4096;
/// Rows of cores in a column.
const CORE_ROWS: u32 = 4;
/// Most operations each cycle, as published kernels give them.
const OPERATIONS_EACH_CYCLE: u32 = 2048;
/// The most contexts that an answer about the machine has room for. The driver has at most 6.
const CONTEXTS_LISTED: usize = 32;

/// Instructions in the device's memory.
#[derive(Debug)]
pub struct Program<S: Sys> {
    block: Block<S>,
    words: u32,
    contract: Contract,
    family: Family,
}

impl<S: Sys> Program<S> {
    /// Copies a stream to the device.
    ///
    /// # Errors
    ///
    /// Returns an error if the device's heap has no room.
    pub fn new(device: &Device<S>, stream: &ProvenStream) -> Result<Self, DriverError> {
        let block = device.block(stream.bytes())?;
        let words = (stream.bytes().len() / 4) as u32;
        let (contract, family) = (stream.contract().clone(), stream.family());
        Ok(Self { block, words, contract, family })
    }
}

/// A command: a program with its buffers.
#[derive(Debug)]
pub struct Run<'a, S: Sys> {
    /// What is run.
    pub program: &'a Program<S>,
    /// The kernel's arguments that are read, each once.
    pub inputs: Vec<(u32, &'a DeviceBuffer<S>)>,
    /// The kernel's argument that is written.
    pub result: PoisonedBuffer<S>,
}

/// The result of a command that the device has carried out: it counted it, and overwrote all of it.
#[derive(Debug)]
pub struct Executed<S: Sys> {
    result: HostBuffer<S>,
}

impl<S: Sys> Executed<S> {
    /// Returns the result.
    #[must_use]
    pub fn result(&self) -> &HostBuffer<S> {
        &self.result
    }

    /// Returns the result's buffer.
    #[must_use]
    pub fn into_result(self) -> HostBuffer<S> {
        self.result
    }
}

/// The one hardware context of a process.
#[derive(Debug)]
pub struct Context<S: Sys> {
    hardware: Hardware<S>,
    columns: u8,
    family: Family,
    /// One for each command in flight.
    packets: Vec<Mapped<S>>,
    /// The kernel's cores. It is there as long as the context.
    _cores: Block<S>,
}

/// A command in flight.
struct Flight<S: Sys> {
    point: u64,
    packet: usize,
    result: PoisonedBuffer<S>,
    result_bytes: u64,
}

impl<S: Sys> Context<S> {
    /// Makes a context with a partition of `columns` columns, whose cores run the program `cores`.
    ///
    /// # Errors
    ///
    /// - [`DriverError::StandIn`] for a program that is no published one, on any driver but trine's
    ///   model.
    /// - An error if this or another process has a context, or the kernel refuses it.
    pub fn new(device: &Device<S>, columns: u8, cores: &CoreProgram) -> Result<Self, DriverError> {
        device.handle().check_quarantine()?;
        let family = cores.family();
        if cores.is_stand_in() && !device.is_model() {
            return Err(DriverError::StandIn { family });
        }
        let hardware = Hardware::new(device.handle(), columns)?;
        let cores = device.block(cores.pdi())?;
        hardware.configure(cores.object.number)?;
        let call = DriverError::call("make a packet for commands of the NPU's");
        let packet = || Mapped::new(device.handle(), uapi::BO_COMMAND, PACKET_BYTES, PACKET_BYTES);
        let packets: Result<_, _> = (0..uapi::COMMANDS_IN_FLIGHT).map(|_| packet()).collect();
        let packets = packets.map_err(call)?;
        Ok(Self { hardware, columns, family, packets, _cores: cores })
    }

    /// Carries out commands in their order, up to four in flight, and returns their results.
    ///
    /// All or nothing: after an error no result is given out.
    ///
    /// # Errors
    ///
    /// - [`DriverError::Request`] if buffers do not fit a program's contract, and
    ///   [`DriverError::OtherCores`] if a program is proven for other cores; then nothing is run.
    /// - [`DriverError::TimedOut`], [`DriverError::Failed`] for a command; except for
    ///   [`State::Error`] the NPU is in quarantine from then on.
    /// - [`DriverError::NotCounted`], [`DriverError::Unwritten`] if the device did not do it.
    pub fn execute(&mut self, runs: Vec<Run<'_, S>>) -> Result<Vec<Executed<S>>, DriverError> {
        self.hardware.handle.check_quarantine()?;
        for run in &runs {
            self.check(run)?;
        }
        let commands = runs.len() as u64;
        let before = self.hardware.completions()?;
        let mut flying = VecDeque::new();
        let mut done = Vec::new();
        let outcome = self.fly(runs, &mut flying, &mut done);
        if outcome.is_err() && self.hardware.handle.check_quarantine().is_ok() {
            // What was submitted uses buffers that are about to go. In quarantine they stay.
            while let Some(flight) = flying.pop_front() {
                let landed = self.land(&flight);
                if landed.is_err() && self.hardware.handle.check_quarantine().is_err() {
                    break;
                }
            }
        }
        outcome?;
        let counted = i128::from(self.hardware.completions()?) - i128::from(before);
        if counted != i128::from(commands) {
            return Err(DriverError::NotCounted { commands, counted });
        }
        let executed = |flight: Flight<S>| {
            let result = flight.result.take_result(flight.result_bytes)?;
            Ok(Executed { result })
        };
        done.into_iter().map(executed).collect()
    }

    /// Submits commands and waits for all of them.
    fn fly(
        &self,
        runs: Vec<Run<'_, S>>,
        flying: &mut VecDeque<Flight<S>>,
        done: &mut Vec<Flight<S>>,
    ) -> Result<(), DriverError> {
        for (index, run) in runs.into_iter().enumerate() {
            if flying.len() == self.packets.len() {
                self.land_first(flying, done)?;
            }
            let flight = self.submit(index % self.packets.len(), run)?;
            // A wait for point 0 is one for whatever was submitted last, so that one flies alone.
            let is_first = flight.point == 0;
            flying.push_back(flight);
            if is_first {
                self.land_first(flying, done)?;
            }
        }
        while !flying.is_empty() {
            self.land_first(flying, done)?;
        }
        Ok(())
    }

    fn land_first(
        &self,
        flying: &mut VecDeque<Flight<S>>,
        done: &mut Vec<Flight<S>>,
    ) -> Result<(), DriverError> {
        if let Some(flight) = flying.pop_front() {
            self.land(&flight)?;
            done.push(flight);
        }
        Ok(())
    }

    /// Compares a command's buffers with the contract of its program.
    fn check(&self, run: &Run<'_, S>) -> Result<(), DriverError> {
        let contract = &run.program.contract;
        let request = |problem: String| Err(DriverError::Request { problem });
        if run.program.family != self.family {
            let (program, cores) = (run.program.family, self.family);
            return Err(DriverError::OtherCores { program, cores });
        }
        if contract.columns != self.columns {
            let (needs, has) = (contract.columns, self.columns);
            return request(format!("the program is for {needs} columns, the context has {has}"));
        }
        let mut results = 0;
        let mut inputs = 0;
        for buffer in &contract.buffers {
            let given = if buffer.access == Access::WriteOnce {
                results += 1;
                Some(run.result.mapped().bytes)
            } else {
                inputs += 1;
                let mut given = run.inputs.iter().filter(|(number, _)| *number == buffer.argument);
                let first = given.next().map(|(_, given)| given.mapped().bytes);
                first.filter(|_| given.next().is_none())
            };
            let (name, needs) = (&buffer.name, buffer.bytes);
            match given {
                None => return request(format!("{name} is to be given once")),
                Some(bytes) if bytes < needs => {
                    return request(format!("{name} has {bytes} bytes, and needs {needs}"));
                }
                Some(_) => {}
            }
        }
        if results != 1 || inputs != run.inputs.len() {
            let given = run.inputs.len();
            return request(format!(
                "{given} inputs and 1 result for a program with {inputs} inputs and {results} results"
            ));
        }
        Ok(())
    }

    fn submit(&self, packet: usize, run: Run<'_, S>) -> Result<Flight<S>, DriverError> {
        let Run { program, inputs, result } = run;
        let mut addresses = vec![0; program.contract.slots];
        let mut handles = vec![program.block.object.number, result.mapped().object.number];
        for (argument, buffer) in &inputs {
            addresses[*argument as usize] = buffer.mapped().device_address;
            handles.push(buffer.mapped().object.number);
        }
        // A buffer may be two arguments, and the kernel is to pin it once.
        handles.sort_unstable();
        handles.dedup();
        let mut written = program.contract.buffers.iter();
        let written = written.find(|buffer| buffer.access == Access::WriteOnce);
        let written = written.expect("`check` found one");
        addresses[written.argument as usize] = result.mapped().device_address;
        let call = DriverError::call("submit a command to the NPU");
        let packet_words =
            packet::start_transaction(program.block.device_address, program.words, &addresses)
                .ok_or_else(|| call(Errno::E2BIG))?;
        let mapped = &self.packets[packet];
        mapped.write(0, &words(&packet_words)).map_err(&call)?;
        let point = self.hardware.submit(mapped.object.number, &mut handles).map_err(&call)?;
        Ok(Flight { point, packet, result, result_bytes: written.bytes })
    }

    /// Waits for a command and reads how it ended.
    fn land(&self, flight: &Flight<S>) -> Result<(), DriverError> {
        let waited = self.hardware.wait(flight.point);
        if waited == Err(Errno::ETIME) {
            let error = DriverError::TimedOut { limit: WATCHDOG };
            self.hardware.quarantine(&error);
            return Err(error);
        }
        waited.map_err(DriverError::call("wait for a command on the NPU")).inspect_err(
            |error| {
                // Whether it still runs is unknown, and so it may write to its buffers.
                self.hardware.quarantine(error);
            },
        )?;
        let mut word = [0; 4];
        let call = DriverError::call("read how a command of the NPU's ended");
        self.packets[flight.packet].read(0, &mut word).map_err(call)?;
        let word = u32::from_le_bytes(word);
        let error = match State::from_number(word & 15) {
            Some(State::Completed) => return Ok(()),
            Some(State::Error) => return Err(DriverError::Failed { state: State::Error }),
            Some(state) => DriverError::Failed { state },
            None => DriverError::BadPacket { word },
        };
        self.hardware.quarantine(&error);
        Err(error)
    }
}

/// The kernel's part of a context.
#[derive(Debug)]
struct Hardware<S: Sys> {
    handle: Arc<Handle<S>>,
    number: u32,
    timeline: u32,
}

impl<S: Sys> Hardware<S> {
    fn new(handle: &Arc<Handle<S>>, columns: u8) -> Result<Self, DriverError> {
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
    fn configure(&self, cores: u32) -> Result<(), DriverError> {
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
    fn submit(&self, packet: u32, buffers: &mut [u32]) -> Result<u64, Errno> {
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

    /// Returns how many commands of this context the device has completed.
    fn completions(&self) -> Result<u64, DriverError> {
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

    fn quarantine(&self, error: &DriverError) {
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
