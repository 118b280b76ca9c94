//! Time passes, and the device works.

use std::collections::BTreeMap;
use std::time::Duration;

use super::array::{DeviceMemory, Task, Trap};
use super::machine::Fault;
use super::memory::Memory;
use super::objects::{Command, State};
use crate::packet::{Header, Opcode, PAYLOAD_WORDS_MAX, State as Stage};
use crate::uapi;

/// How a command has ended.
struct Ending {
    stage: Stage,
    is_counted: bool,
}

impl Ending {
    const fn of(stage: Stage) -> Self {
        Self { stage, is_counted: false }
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
    let client = state.clients.get_mut(&file).expect("it has a command");
    if let Some(timeline) = client.timelines.get_mut(&handle) {
        timeline.reached = command.point + 1;
    }
    let context = context(state, file, handle);
    context.free_from = at;
    context.completions += u64::from(ending.is_counted);
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
        Fault::Dropped => return Ending::of(Stage::Completed),
        Fault::DroppedAndCounted => {
            return Ending { stage: Stage::Completed, is_counted: true };
        }
        Fault::Fails => return Ending::of(Stage::Error),
        Fault::Aborted => return Ending::of(Stage::Abort),
        Fault::NoResponse => return Ending::of(Stage::NoResponse),
        Fault::Unfinished => return Ending::of(Stage::Running),
        Fault::Works | Fault::Takes(_) | Fault::Uncounted | Fault::StopsAfter(_) => {}
    }
    let Some(work) = decode(state, file, handle, command) else {
        return Ending::of(Stage::Abort);
    };
    let mut windows = windows(state, file, command.buffers.iter().copied());
    let units = context(state, file, handle).units.clone();
    let program = windows_of_units(state, file, &units, work.unit);
    let writable = match command.fault {
        Fault::StopsAfter(bytes) => bytes,
        _ => u64::MAX,
    };
    windows.retain(|window| window.bytes > 0);
    let State { memories, array, .. } = state;
    let mut reach = Reach { memories, windows, writable };
    let Some(program) = program else { return Ending::of(Stage::Abort) };
    let mut instructions = vec![0; work.instruction_bytes as usize];
    let outcome = reach.read(work.instructions, &mut instructions).and_then(|()| {
        let task = Task { program, instructions, arguments: work.arguments };
        array.run(&task, &mut reach)
    });
    match outcome {
        Ok(()) => {
            let is_counted = command.fault != Fault::Uncounted;
            Ending { stage: Stage::Completed, is_counted }
        }
        Err(Trap::Unreachable { .. }) => {
            state.refused_accesses += 1;
            Ending::of(Stage::Error)
        }
        Err(Trap::Stuck) => Ending::of(Stage::Timeout),
    }
}

/// What a packet asks for.
struct Work {
    unit: usize,
    instructions: u64,
    instruction_bytes: u64,
    arguments: Vec<u64>,
}

/// Reads a packet as the driver does. `None` for what it or the firmware refuses.
fn decode(state: &mut State, file: i32, handle: u32, command: &Command) -> Option<Work> {
    let buffer = *state.clients.get(&file)?.buffers.get(&command.packet)?;
    let memory = state.memories.get(&buffer.memory)?;
    let bytes = memory.process(buffer.offset as usize, buffer.bytes as usize);
    let words: Vec<u32> = bytes
        .chunks_exact(4)
        .map(|word| u32::from_le_bytes(word.try_into().expect("four bytes")))
        .collect();
    let header = Header::decode(*words.first()?)?;
    let count = usize::from(header.count);
    let payload = words.get(2..1 + count)?;
    let mask = *words.get(1)?;
    let unit = mask.trailing_zeros() as usize;
    if header.custom != 0 || mask == 0 || unit >= context(state, file, handle).units.len() {
        return None;
    }
    let pair = |at: usize| {
        let low = payload.get(at)?;
        Some(u64::from(*payload.get(at + 1)?) << 32 | u64::from(*low))
    };
    let (instructions, instruction_bytes, first) = match header.opcode {
        Opcode::StartCu if payload.len() <= PAYLOAD_WORDS_MAX => {
            if pair(0)? != crate::packet::OPCODE_TRANSACTION {
                return None;
            }
            (pair(2)?, u64::from(*payload.get(4)?) * 4, 5)
        }
        Opcode::StartNpu if state.machine.protocol_minor >= 8 => {
            (pair(0)?, u64::from(*payload.get(2)?), 4)
        }
        _ => return None,
    };
    if instruction_bytes > uapi::HEAP_BYTES {
        return None;
    }
    let arguments = (first..payload.len()).step_by(2).map(pair).collect::<Option<Vec<u64>>>()?;
    Some(Work { unit, instructions, instruction_bytes, arguments })
}

/// A buffer object where the device sees it.
struct Window {
    address: u64,
    bytes: u64,
    memory: u64,
    offset: u64,
}

fn windows(state: &State, file: i32, handles: impl Iterator<Item = u32>) -> Vec<Window> {
    let window = |handle: u32| {
        let buffer = *state.clients.get(&file)?.buffers.get(&handle)?;
        let address = state.device_address(handle, buffer)?;
        Some(Window { address, bytes: buffer.bytes, memory: buffer.memory, offset: buffer.offset })
    };
    handles.filter_map(window).collect()
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
