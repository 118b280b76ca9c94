//! Time passes, and the device works.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use super::array::{DeviceMemory, Task, Trap};
use super::machine::{Fault, Machine};
use super::memory::Memory;
use super::objects::{Command, State};
use super::packets::{self, Work};
use trine_npu::packet::CommandState as Stage;

/// How a packet has ended.
struct Ending {
    stage: Stage,
    /// Whether the driver counts it, as it does with what fails too.
    is_counted: bool,
}

impl Ending {
    const fn of(stage: Stage) -> Self {
        Self { stage, is_counted: true }
    }
}

/// Lets time pass and commands end until `to`.
pub(super) fn pass(state: &mut State, to: Duration) {
    loop {
        let next = next_ending(state).filter(|(ending, ..)| *ending <= to);
        let Some((ending, file, context)) = next else { break };
        state.now = state.now.max(ending);
        end_first(state, file, context, ending);
    }
    state.now = state.now.max(to);
}

/// Returns when the next command ends, and of which file and context it is.
pub(super) fn next_ending(state: &State) -> Option<(Duration, i32, u32)> {
    let mut endings = Vec::new();
    for (file, client) in &state.clients {
        for (handle, context) in &client.contexts {
            let Some(command) = context.queue.front() else { continue };
            let start = command.submitted.max(context.free_from);
            let lasts = match command.fault {
                _ if state.is_hung => state.machine.command_time_max,
                Fault::Hangs => state.machine.command_time_max,
                Fault::Takes(time) => time.min(state.machine.command_time_max),
                Fault::Aborted => Duration::ZERO,
                _ => state.machine.command_time,
            };
            endings.push((start + lasts, *file, *handle));
        }
    }
    endings.into_iter().min()
}

/// Ends the first command of a context; after a timeout all others too.
fn end_first(state: &mut State, file: i32, handle: u32, at: Duration) {
    let Some(command) = context(state, file, handle).queue.pop_front() else { return };
    let mut ending = carry_out(state, file, handle, &command);
    // An array that is stuck keeps the command until the driver gives it up.
    let given_up = command.submitted.max(context(state, file, handle).free_from)
        + state.machine.command_time_max;
    if ending.stage == Stage::Timeout && given_up > at {
        let command = Command { fault: Fault::Hangs, ..command };
        context(state, file, handle).queue.push_front(command);
        return;
    }
    let others = if ending.stage == Stage::Timeout {
        state.is_hung = !state.machine.recovers;
        std::mem::take(&mut context(state, file, handle).queue)
    } else {
        Default::default()
    };
    finish(state, file, handle, &command, &ending, at);
    for other in others {
        ending = Ending::of(Stage::Abort);
        finish(state, file, handle, &other, &ending, at);
    }
}

fn context(state: &mut State, file: i32, handle: u32) -> &mut super::objects::Context {
    let client = state.clients.get_mut(&file).expect("it has a command");
    client.contexts.get_mut(&handle).expect("it has a command")
}

/// Writes the packet's state and reaches the timeline's point.
fn finish(
    state: &mut State,
    file: i32,
    handle: u32,
    command: &Command,
    ending: &Ending,
    at: Duration,
) {
    set_stage(state, file, command.packet, ending.stage);
    if ending.stage.is_final() && ending.stage != Stage::Completed {
        packets::spoil(state, file, command.packet);
    }
    let client = state.clients.get_mut(&file).expect("it has a command");
    if let Some(timeline) = client.timelines.get_mut(&handle) {
        timeline.reached = command.point + 1;
    }
    let Machine { counted_late, seed, .. } = state.machine;
    let context = context(state, file, handle);
    context.free_from = at;
    if ending.is_counted {
        let mut hasher = DefaultHasher::new();
        (seed, context.counted.len()).hash(&mut hasher);
        let late = counted_late.mul_f64(hasher.finish() as f64 / u64::MAX as f64);
        context.counted.push(at + late);
    }
    context.errors += u64::from(ending.stage != Stage::Completed);
}

/// Writes the state into a packet, as the kernel sees memory: as the process does.
pub(super) fn set_stage(state: &mut State, file: i32, packet: u32, stage: Stage) {
    let Some(buffer) = state.clients.get(&file).and_then(|client| client.buffers.get(&packet))
    else {
        return;
    };
    let Some(memory) = state.memories.get_mut(&buffer.memory) else { return };
    let byte = memory.process(buffer.offset as usize, 1)[0];
    memory.write_process(buffer.offset as usize, &[byte & 0xf0 | stage as u8]);
}

fn carry_out(state: &mut State, file: i32, handle: u32, command: &Command) -> Ending {
    let limit = state.machine.command_time_max;
    match command.fault {
        _ if state.is_hung => return Ending::of(Stage::Timeout),
        Fault::Hangs => return Ending::of(Stage::Timeout),
        Fault::Takes(time) if time >= limit => return Ending::of(Stage::Timeout),
        Fault::Dropped => {
            return Ending { is_counted: false, stage: Stage::Completed };
        }
        Fault::DroppedAndCounted => return Ending::of(Stage::Completed),
        Fault::Fails => return Ending::of(Stage::Error),
        Fault::Aborted => return Ending::of(Stage::Abort),
        Fault::NoResponse => return Ending::of(Stage::NoResponse),
        Fault::Unfinished => return Ending::of(Stage::Running),
        Fault::Works | Fault::Takes(_) | Fault::Uncounted | Fault::StopsAfter(_) => {}
    }
    let units = context(state, file, handle).units.clone();
    let Some(work) = packets::decode(state, file, command.packet, units.len()) else {
        return Ending::of(Stage::Abort);
    };
    match run(state, file, command, &units, work) {
        Stage::Completed => {
            let is_counted = command.fault != Fault::Uncounted;
            Ending { is_counted, stage: Stage::Completed }
        }
        stage => Ending::of(stage),
    }
}

/// Lets the array do one command, and returns how it has ended.
fn run(state: &mut State, file: i32, command: &Command, units: &[u32], work: Work) -> Stage {
    let mut windows = windows(state, file, command.buffers.iter().copied());
    let Some(program) = windows_of_units(state, file, units, work.unit) else {
        return Stage::Abort;
    };
    let writable = match command.fault {
        Fault::StopsAfter(bytes) => bytes,
        _ => u64::MAX,
    };
    windows.retain(|window| window.bytes > 0);
    let State { memories, array, .. } = state;
    let mut reach = Reach { memories, windows, writable };
    let mut instructions = vec![0; work.instruction_bytes as usize];
    let outcome = reach.read(work.instructions, &mut instructions).and_then(|()| {
        let task = Task { program, instructions, arguments: work.arguments };
        array.run(&task, &mut reach)
    });
    match outcome {
        Ok(()) => Stage::Completed,
        Err(Trap::Unreachable { .. }) => {
            state.refused_accesses += 1;
            Stage::Error
        }
        Err(Trap::Stuck) => Stage::Timeout,
    }
}

/// A buffer object where the device sees it.
struct Window {
    address: u64,
    bytes: u64,
    memory: u64,
    offset: u64,
}

fn windows(state: &State, file: i32, handles: impl Iterator<Item = u32>) -> Vec<Window> {
    let mut windows = Vec::new();
    for handle in handles {
        let buffers = state.clients.get(&file).map(|client| &client.buffers);
        let Some(buffer) = buffers.and_then(|buffers| buffers.get(&handle)).copied() else {
            continue;
        };
        let super::objects::Buffer { bytes, memory, offset, .. } = buffer;
        let addresses = state.device_addresses(handle, buffer).into_iter();
        windows.extend(addresses.map(|address| Window { address, bytes, memory, offset }));
    }
    windows
}

/// Returns the program of a compute unit as the device sees it.
fn windows_of_units(state: &State, file: i32, units: &[u32], unit: usize) -> Option<Vec<u8>> {
    let window = windows(state, file, units.get(unit).copied().into_iter()).pop()?;
    let memory = state.memories.get(&window.memory)?;
    Some(memory.device(window.offset as usize, window.bytes as usize).to_vec())
}

/// What a command can reach.
struct Reach<'a> {
    memories: &'a mut BTreeMap<u64, Memory>,
    windows: Vec<Window>,
    writable: u64,
}

impl Reach<'_> {
    fn find(&mut self, address: u64, bytes: u64) -> Result<(&mut Memory, usize), Trap> {
        let trap = Trap::Unreachable { address };
        let contains = |window: &&Window| {
            let offset = address.checked_sub(window.address);
            let end = offset.and_then(|offset| offset.checked_add(bytes));
            end.is_some_and(|end| end <= window.bytes)
        };
        let window = self.windows.iter().find(contains).ok_or(trap)?;
        let offset = window.offset + (address - window.address);
        let memory = self.memories.get_mut(&window.memory).ok_or(trap)?;
        Ok((memory, offset as usize))
    }
}

impl DeviceMemory for Reach<'_> {
    fn read(&mut self, address: u64, bytes: &mut [u8]) -> Result<(), Trap> {
        let length = bytes.len();
        let (memory, offset) = self.find(address, length as u64)?;
        bytes.copy_from_slice(memory.device(offset, length));
        Ok(())
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), Trap> {
        let length = (bytes.len() as u64).min(self.writable);
        self.writable -= length;
        let (memory, offset) = self.find(address, bytes.len() as u64)?;
        memory.write_device(offset, &bytes[..length as usize]);
        Ok(())
    }
}
