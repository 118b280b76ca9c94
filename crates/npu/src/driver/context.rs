//! A hardware context, and commands on it.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use super::buffer::{DeviceBuffer, HostBuffer, PoisonedBuffer};
use super::device::Device;
use super::error::DriverError;
use super::handle::{Handle, Mapped, words};
use super::hardware::Hardware;
use super::heap::Block;
use super::proven::ProvenStream;
use crate::contract::{Access, Contract};
use crate::cores::CoreProgram;
use crate::kernel::Family;
use crate::packet::{self, CommandState};
use crate::sys::{Errno, Sys};
use crate::uapi;

/// Bytes of a command's packet.
const PACKET_BYTES: u64 = 4096;

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
    /// The program that is run.
    pub program: &'a Program<S>,
    /// The kernel's arguments that are read, each once.
    pub inputs: Vec<(u32, &'a DeviceBuffer<S>)>,
    /// The kernel's argument that is written.
    pub result: PoisonedBuffer<S>,
}

/// The result of a command that the device has carried out: it is counted, and all of the result
/// was overwritten.
#[derive(Debug)]
pub struct Executed<S: Sys> {
    result: HostBuffer<S>,
    bytes: Vec<u8>,
}

impl<S: Sys> Executed<S> {
    /// Returns the result.
    #[must_use]
    pub fn result(&self) -> &HostBuffer<S> {
        &self.result
    }

    /// Returns the bytes of the result, which is as long as the program's contract says.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
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

/// Makes room for a packet.
fn packet<S: Sys>(handle: &Arc<Handle<S>>) -> Result<Mapped<S>, DriverError> {
    let what = "make a packet for commands of the NPU's";
    Mapped::new(handle, uapi::BO_COMMAND, PACKET_BYTES, PACKET_BYTES, what)
}

/// Refuses a result that is another buffer of commands which may be in flight at once: one that was
/// shared and taken back has two names.
fn check_results<S: Sys>(runs: &[Run<'_, S>]) -> Result<(), DriverError> {
    let inputs = runs.iter().flat_map(|run| &run.inputs);
    let mut taken: BTreeSet<u32> = inputs.map(|(_, input)| input.mapped().object.number).collect();
    match runs.iter().all(|run| taken.insert(run.result.mapped().object.number)) {
        true => Ok(()),
        false => {
            let problem = "a result is also another buffer of the commands".to_owned();
            Err(DriverError::Request { problem })
        }
    }
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
        let packets = (0..uapi::COMMANDS_IN_FLIGHT).map(|_| packet(device.handle()));
        let packets = packets.collect::<Result<_, _>>()?;
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
    ///   [`CommandState::Error`], all of whose batch the driver has counted, the NPU is in
    ///   quarantine from then on.
    /// - [`DriverError::NotCounted`], [`DriverError::Unwritten`], [`DriverError::Overrun`] if the
    ///   device did not do what was reported as done. Since it may do it later, the NPU is in
    ///   quarantine from then on.
    pub fn execute(&mut self, runs: Vec<Run<'_, S>>) -> Result<Vec<Executed<S>>, DriverError> {
        self.hardware.handle.check_quarantine()?;
        for run in &runs {
            self.check(run)?;
        }
        check_results(&runs)?;
        let (before, taken) = (self.hardware.completions()?, self.hardware.submissions());
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
        if let Err(error) = &outcome
            && self.hardware.handle.check_quarantine().is_err()
        {
            return Err(error.clone());
        }
        let submitted = self.hardware.submissions() - taken;
        if submitted == 0 {
            outcome?;
            return Ok(Vec::new());
        }
        // After an error too: what is counted late must not count for the next commands.
        let settled = self.hardware.settle(before, submitted);
        // What was not done by now may be done later: the buffers must not be given back.
        let settled = settled.inspect_err(|error| self.hardware.quarantine(error));
        outcome.and(settled)?;
        let results = done.iter().map(|flight| flight.result.result(flight.result_bytes));
        let results: Vec<Vec<u8>> = results
            .collect::<Result<_, _>>()
            .inspect_err(|error| self.hardware.quarantine(error))?;
        let executed = done.into_iter().zip(results);
        let executed =
            executed.map(|(flight, bytes)| Executed { result: flight.result.take_back(), bytes });
        Ok(executed.collect())
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
            // Point 0 stands for the last submission, so that the first one flies alone.
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
        let own = &self.hardware.handle;
        let mut buffers = run.inputs.iter().map(|(_, input)| input.mapped());
        if !Arc::ptr_eq(own, &run.program.block.object.handle)
            || !Arc::ptr_eq(own, &run.result.mapped().object.handle)
            || !buffers.all(|mapped| Arc::ptr_eq(own, &mapped.object.handle))
        {
            return request("the program or a buffer is of another open device".to_owned());
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
                "{given} inputs and 1 result for a program with {inputs} inputs and {results} \
                 results"
            ));
        }
        Ok(())
    }

    /// Writes the packet of a command and submits it.
    fn submit(&self, packet: usize, run: Run<'_, S>) -> Result<Flight<S>, DriverError> {
        let mapped = &self.packets[packet];
        let Run { program, inputs, result } = run;
        let mut addresses = vec![0; program.contract.slots];
        let mut handles = vec![program.block.object.number, result.mapped().object.number];
        for (argument, buffer) in &inputs {
            addresses[*argument as usize] = buffer.mapped().device_address;
            handles.push(buffer.mapped().object.number);
        }
        let mut written = program.contract.buffers.iter();
        let written = written.find(|buffer| buffer.access == Access::WriteOnce);
        let written = written.expect("`check` found one");
        addresses[written.argument as usize] = result.mapped().device_address;
        let call = DriverError::call("write a command for the NPU");
        let packet_words =
            packet::start_transaction(program.block.device_address, program.words, &addresses)
                .ok_or_else(|| call(Errno::E2BIG))?;
        mapped.write(0, &words(&packet_words)).map_err(&call)?;
        // A buffer may be two arguments, and the kernel is to pin it once.
        handles.sort_unstable();
        handles.dedup();
        let call = DriverError::call("submit a command to the NPU");
        let point = self.hardware.submit(mapped.object.number, &mut handles).map_err(call)?;
        Ok(Flight { point, packet, result, result_bytes: written.bytes })
    }

    /// Waits for a command and reads how it ended.
    fn land(&self, flight: &Flight<S>) -> Result<(), DriverError> {
        self.hardware.wait_or_quarantine(flight.point)?;
        let mut word = [0; 4];
        let call = DriverError::call("read how a command of the NPU's ended");
        self.packets[flight.packet].read(0, &mut word).map_err(call)?;
        let word = u32::from_le_bytes(word);
        let error = match CommandState::from_number(word & 15) {
            Some(CommandState::Completed) => return Ok(()),
            Some(CommandState::Error) => {
                return Err(DriverError::Failed { state: CommandState::Error });
            }
            Some(state) => DriverError::Failed { state },
            None => DriverError::BadPacket { word },
        };
        self.hardware.quarantine(&error);
        Err(error)
    }
}
