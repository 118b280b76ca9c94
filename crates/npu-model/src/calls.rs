//! The ioctls, with the errors of the kernel's driver.

use std::mem::{offset_of, size_of};
use std::time::Duration;

use bytemuck::{Pod, bytes_of, pod_read_unaligned};

use super::device::{next_ending, pass, set_stage};
use super::machine::{Fault, Machine};
use super::objects::{Buffer, Command, Context, Export, State, Timeline};
use trine_npu::packet::CommandState as Stage;
use trine_npu::sys::abi::{self, ContextInfo};
use trine_npu::sys::{Errno, Pointed};
use trine_npu::uapi;

/// Bytes of a parameter of a context.
const PARAMETER_BYTES_MAX: u32 = 4096;
/// Buffer objects of a command.
const ARGUMENTS_MAX: u32 = 4095;

type Answer = Result<(), Errno>;

/// Reads the struct, calls `body`, and writes it back if that succeeds.
fn with<T: Pod>(argument: &mut [u8], body: impl FnOnce(&mut T) -> Answer) -> Answer {
    let mut value: T = pod_read_unaligned(argument);
    body(&mut value)?;
    argument.copy_from_slice(bytes_of(&value));
    Ok(())
}

fn require(holds: bool, error: Errno) -> Answer {
    if holds { Ok(()) } else { Err(error) }
}

/// Returns what the field of a struct points to.
fn pointed<'a>(parts: &'a mut [Pointed<'_>], field: usize) -> Result<&'a mut [u8], Errno> {
    let part = parts.iter_mut().find(|part| part.field == field);
    part.map(|part| &mut *part.bytes).ok_or(Errno::EFAULT)
}

/// Carries out an ioctl that [`abi::check`] has passed.
pub(super) fn call(
    state: &mut State,
    file: i32,
    number: u32,
    argument: &mut [u8],
    parts: &mut [Pointed<'_>],
) -> Answer {
    state.client(file)?;
    match number {
        abi::GEM_CLOSE => return with(argument, |value| gem_close(state, file, value)),
        uapi::DESTROY_HWCTX => return with(argument, |value| destroy_context(state, file, value)),
        abi::SYNCOBJ_DESTROY => {
            return with(argument, |value: &mut abi::SyncobjDestroy| {
                require(value.pad == 0, Errno::EINVAL)?;
                let timelines = &mut state.client(file)?.timelines;
                timelines.remove(&value.handle).map(drop).ok_or(Errno::EINVAL)
            });
        }
        _ => state.acquire()?,
    }
    match number {
        abi::VERSION => with(argument, |value| version(state, value, parts)),
        abi::PRIME_HANDLE_TO_FD => with(argument, |value| export(state, file, value)),
        abi::PRIME_FD_TO_HANDLE => with(argument, |value| import(state, file, value)),
        abi::TIMELINE_WAIT => with(argument, |value| timeline_wait(state, file, value, parts)),
        uapi::CREATE_HWCTX => with(argument, |value| create_context(state, file, value, parts)),
        uapi::CONFIG_HWCTX => with(argument, |value| configure(state, file, value, parts)),
        uapi::CREATE_BO => with(argument, |value| create_buffer(state, file, value)),
        uapi::GET_BO_INFO => with(argument, |value| buffer_info(state, file, value)),
        uapi::SYNC_BO => with(argument, |value| sync_buffer(state, file, value)),
        uapi::EXEC_CMD => with(argument, |value| execute(state, file, value, parts)),
        uapi::GET_INFO => with(argument, |value| get_info(state, value, parts)),
        uapi::SET_STATE => with(argument, |value| set_state(state, value)),
        uapi::GET_ARRAY => with(argument, |value| get_array(state, value)),
        _ => Err(Errno::EINVAL),
    }
}

fn version(state: &mut State, value: &mut abi::Version, parts: &mut [Pointed<'_>]) -> Answer {
    let Machine { node_driver, description, .. } = state.machine;
    let fields = [
        (offset_of!(abi::Version, name), &mut value.name_len, node_driver),
        (offset_of!(abi::Version, desc), &mut value.desc_len, description),
    ];
    for (field, bytes, text) in fields {
        if *bytes > 0 {
            let room = pointed(parts, field)?;
            let length = room.len().min(text.len()).min(*bytes as usize);
            room[..length].copy_from_slice(&text.as_bytes()[..length]);
        }
        *bytes = text.len() as u64;
    }
    let Machine { driver_major, driver_minor, .. } = state.machine;
    (value.major, value.minor, value.patch) = (driver_major, driver_minor, 0);
    value.date_len = 0;
    Ok(())
}

fn gem_close(state: &mut State, file: i32, value: &mut abi::GemClose) -> Answer {
    state.client(file)?.buffers.remove(&value.handle).ok_or(Errno::EINVAL)?;
    state.sweep();
    Ok(())
}

fn export(state: &mut State, file: i32, value: &mut abi::PrimeHandle) -> Answer {
    let buffers = &state.client(file)?.buffers;
    let Buffer { kind, bytes, memory, .. } = *buffers.get(&value.handle).ok_or(Errno::ENOENT)?;
    require(kind == uapi::BO_SHARE, Errno::EOPNOTSUPP)?;
    require(value.flags & !(abi::CLOSE_ON_EXEC | abi::READ_WRITE) == 0, Errno::EINVAL)?;
    value.fd = state.share(Export { memory, bytes });
    Ok(())
}

fn import(state: &mut State, file: i32, value: &mut abi::PrimeHandle) -> Answer {
    require(!state.clients.contains_key(&value.fd), Errno::EINVAL)?;
    let Export { memory, bytes } = *state.exports.get(&value.fd).ok_or(Errno::EBADF)?;
    let client = state.client(file)?;
    // A file has one handle for each buffer, also for its own that comes back.
    let known = client.buffers.iter().find(|(_, buffer)| buffer.memory == memory);
    if let Some((handle, _)) = known {
        value.handle = *handle;
        return Ok(());
    }
    client.last_handle += 1;
    value.handle = client.last_handle;
    let buffer = Buffer { kind: uapi::BO_SHARE, bytes, memory, offset: 0 };
    client.buffers.insert(value.handle, buffer);
    Ok(())
}

fn create_buffer(state: &mut State, file: i32, value: &mut uapi::CreateBo) -> Answer {
    require(value.flags == 0 && value.size > 0, Errno::EINVAL)?;
    let buffer = match value.kind {
        uapi::BO_DEVICE => place_in_heap(state, file, value.size)?,
        uapi::BO_SHARE | uapi::BO_COMMAND | uapi::BO_DEVICE_HEAP => {
            if value.kind == uapi::BO_DEVICE_HEAP {
                require(value.size <= uapi::HEAP_BYTES, Errno::EINVAL)?;
                require(heap(state, file)?.is_none(), Errno::EBUSY)?;
            }
            require(value.size <= 8 << 30, Errno::ENOMEM)?;
            let memory = state.allocate(value.size);
            Buffer { kind: value.kind, bytes: value.size, memory, offset: 0 }
        }
        _ => return Err(Errno::EINVAL),
    };
    let client = state.client(file)?;
    client.last_handle += 1;
    value.handle = client.last_handle;
    client.buffers.insert(value.handle, buffer);
    Ok(())
}

fn heap(state: &mut State, file: i32) -> Result<Option<Buffer>, Errno> {
    let mut buffers = state.client(file)?.buffers.values();
    Ok(buffers.find(|buffer| buffer.kind == uapi::BO_DEVICE_HEAP).copied())
}

/// Finds the first free piece of the device heap.
fn place_in_heap(state: &mut State, file: i32, bytes: u64) -> Result<Buffer, Errno> {
    let heap = heap(state, file)?.ok_or(Errno::EINVAL)?;
    require(state.process_addresses(heap).next().is_some(), Errno::EAGAIN)?;
    let client = state.client(file)?;
    let placed = client.buffers.values().filter(|buffer| buffer.kind == uapi::BO_DEVICE);
    let mut taken: Vec<_> = placed.map(|buffer| (buffer.offset, buffer.bytes)).collect();
    taken.sort_unstable();
    require(bytes <= heap.bytes, Errno::ENOSPC)?;
    let mut offset = 0;
    for (start, length) in taken {
        if offset + bytes <= start {
            break;
        }
        offset = (start + length).next_multiple_of(uapi::DEVICE_ALIGNMENT);
    }
    require(offset <= heap.bytes - bytes, Errno::ENOSPC)?;
    Ok(Buffer { kind: uapi::BO_DEVICE, bytes, memory: heap.memory, offset })
}

fn buffer_info(state: &mut State, file: i32, value: &mut uapi::GetBoInfo) -> Answer {
    let is_zero = value.ext == 0 && value.ext_flags == 0 && value.pad == 0;
    require(is_zero, Errno::EINVAL)?;
    let buffers = &state.client(file)?.buffers;
    let buffer = *buffers.get(&value.handle).ok_or(Errno::ENOENT)?;
    value.map_offset = map_offset(value.handle);
    value.vaddr = state.process_addresses(buffer).next().unwrap_or(uapi::INVALID_ADDRESS);
    let is_process = state.machine.addresses == super::machine::AddressMode::Process;
    value.xdna_addr = match buffer.kind {
        uapi::BO_SHARE | uapi::BO_COMMAND if is_process => uapi::INVALID_ADDRESS,
        _ => {
            let addresses = state.device_addresses(value.handle, buffer);
            addresses.first().copied().unwrap_or(uapi::INVALID_ADDRESS)
        }
    };
    Ok(())
}

/// Returns where in a file a buffer object is mapped.
pub(super) fn map_offset(handle: u32) -> u64 {
    u64::from(handle) << 32
}

fn sync_buffer(state: &mut State, file: i32, value: &mut uapi::SyncBo) -> Answer {
    let buffers = &state.client(file)?.buffers;
    let buffer = *buffers.get(&value.handle).ok_or(Errno::ENOENT)?;
    let end = value.offset.checked_add(value.size);
    let is_inside = end.is_some_and(|end| end <= buffer.bytes);
    require(is_inside && value.direction < 2, Errno::EINVAL)?;
    let memory = state.memories.get_mut(&buffer.memory).ok_or(Errno::ENOENT)?;
    memory.flush((buffer.offset + value.offset) as usize, value.size as usize);
    Ok(())
}

fn create_context(
    state: &mut State,
    file: i32,
    value: &mut uapi::CreateHwctx,
    parts: &mut [Pointed<'_>],
) -> Answer {
    require(value.ext == 0 && value.ext_flags == 0, Errno::EINVAL)?;
    pointed(parts, 16)?;
    let columns = value.num_tiles / 4;
    let is_partition = value.num_tiles.is_multiple_of(4) && (1..=5).contains(&columns);
    require(is_partition, Errno::EINVAL)?;
    require(heap(state, file)?.is_some(), Errno::ENOENT)?;
    let contexts: usize = state.clients.values().map(|client| client.contexts.len()).sum();
    require(contexts < state.machine.contexts_max, Errno::EINVAL)?;
    let client = state.client(file)?;
    client.last_context += 1;
    let handle = client.last_context;
    client.contexts.insert(handle, Context { columns, ..Context::default() });
    client.timelines.insert(handle, Timeline::default());
    value.handle = handle;
    value.syncobj_handle = handle;
    value.umq_doorbell = 0;
    Ok(())
}

fn destroy_context(state: &mut State, file: i32, value: &mut uapi::DestroyHwctx) -> Answer {
    require(value.pad == 0, Errno::EINVAL)?;
    let client = state.client(file)?;
    let context = client.contexts.remove(&value.handle).ok_or(Errno::EINVAL)?;
    if let Some(timeline) = client.timelines.get_mut(&value.handle) {
        timeline.reached = timeline.submitted;
    }
    for command in context.queue {
        set_stage(state, file, command.packet, Stage::Abort);
    }
    Ok(())
}

fn configure(
    state: &mut State,
    file: i32,
    value: &mut uapi::ConfigHwctx,
    parts: &mut [Pointed<'_>],
) -> Answer {
    require(value.pad == 0, Errno::EINVAL)?;
    require(state.client(file)?.contexts.contains_key(&value.handle), Errno::EINVAL)?;
    // Debug buffers come with drivers that are newer than the model.
    require(value.param_type == uapi::CONFIG_CU, Errno::EINVAL)?;
    require(value.param_val_size <= PARAMETER_BYTES_MAX, Errno::E2BIG)?;
    let bytes = &pointed(parts, 8)?[..value.param_val_size as usize];
    let header_bytes = size_of::<uapi::ConfigCuHeader>();
    require(bytes.len() >= header_bytes, Errno::EINVAL)?;
    let header: uapi::ConfigCuHeader = pod_read_unaligned(&bytes[..header_bytes]);
    let count = usize::from(header.num_cus);
    let entry_bytes = size_of::<uapi::CuConfig>();
    let is_counted = bytes.len() == header_bytes + count * entry_bytes;
    let is_known = header.pad == [0; 3] && (1..=uapi::COMPUTE_UNITS_MAX).contains(&count);
    require(is_counted && is_known, Errno::EINVAL)?;
    let client = state.client(file)?;
    let mut units = Vec::new();
    for entry in bytes[header_bytes..].chunks_exact(entry_bytes) {
        let entry: uapi::CuConfig = pod_read_unaligned(entry);
        let kind = client.buffers.get(&entry.cu_bo).map(|buffer| buffer.kind);
        require(entry.pad == [0; 3] && kind == Some(uapi::BO_DEVICE), Errno::EINVAL)?;
        units.push(entry.cu_bo);
    }
    let context = client.contexts.get_mut(&value.handle).ok_or(Errno::EINVAL)?;
    require(context.units.is_empty(), Errno::EINVAL)?;
    context.units = units;
    Ok(())
}

fn execute(
    state: &mut State,
    file: i32,
    value: &mut uapi::ExecCmd,
    parts: &mut [Pointed<'_>],
) -> Answer {
    let is_zero = value.ext == 0 && value.ext_flags == 0 && value.kind == 0;
    require(is_zero && value.cmd_count == 1, Errno::EINVAL)?;
    require(value.arg_count <= ARGUMENTS_MAX, Errno::EINVAL)?;
    let mut buffers = Vec::new();
    if value.arg_count > 0 {
        let bytes = &pointed(parts, 32)?[..value.arg_count as usize * 4];
        buffers.extend(
            bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().expect("four"))),
        );
    }
    // What the kernel makes of a buffer that is there twice is not known here.
    let is_twice = |(at, handle): (usize, &u32)| buffers[..at].contains(handle);
    require(!buffers.iter().enumerate().any(is_twice), Errno::EINVAL)?;
    let packet = u32::try_from(value.cmd_handles).map_err(|_| Errno::EINVAL)?;
    let client = state.client(file)?;
    let kind = client.buffers.get(&packet).map(|buffer| buffer.kind);
    require(kind == Some(uapi::BO_COMMAND), Errno::EINVAL)?;
    require(buffers.iter().all(|handle| client.buffers.contains_key(handle)), Errno::ENOENT)?;
    let context = client.contexts.get(&value.hwctx).ok_or(Errno::EINVAL)?;
    require(!context.units.is_empty(), Errno::EINVAL)?;
    // The kernel lets the caller wait until the queue has room.
    while state.client(file)?.contexts[&value.hwctx].queue.len() >= uapi::COMMANDS_IN_FLIGHT {
        let (ending, ..) = next_ending(state).ok_or(Errno::EIO)?;
        pass(state, ending);
    }
    set_stage(state, file, packet, Stage::New);
    let submitted = state.now;
    let fault = state.faults.pop_front().unwrap_or(Fault::Works);
    let client = state.client(file)?;
    let timeline = client.timelines.get_mut(&value.hwctx).ok_or(Errno::EINVAL)?;
    let point = timeline.submitted;
    timeline.submitted += 1;
    let context = client.contexts.get_mut(&value.hwctx).ok_or(Errno::EINVAL)?;
    context.submissions += 1;
    context.queue.push_back(Command { point, packet, buffers, submitted, fault });
    value.seq = point;
    Ok(())
}

fn timeline_wait(
    state: &mut State,
    file: i32,
    value: &mut abi::TimelineWait,
    parts: &mut [Pointed<'_>],
) -> Answer {
    let is_known = value.flags & !(abi::WAIT_ALL | abi::WAIT_FOR_SUBMIT) == 0;
    require(value.pad == 0 && is_known, Errno::EINVAL)?;
    let count = value.count_handles as usize;
    let handles: Vec<u32> = pointed(parts, 0)?
        .chunks_exact(4)
        .take(count)
        .map(|word| u32::from_le_bytes(word.try_into().expect("four bytes")))
        .collect();
    let points: Vec<u64> = pointed(parts, 8)?
        .chunks_exact(8)
        .take(count)
        .map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")))
        .collect();
    let deadline = Duration::from_nanos(value.timeout_ns.max(0).unsigned_abs());
    loop {
        let timelines = &state.client(file)?.timelines;
        let mut is_reached = true;
        for (handle, point) in handles.iter().zip(&points) {
            let timeline = timelines.get(handle).ok_or(Errno::ENOENT)?;
            let is_submitted = *point < timeline.submitted;
            require(is_submitted || value.flags & abi::WAIT_FOR_SUBMIT != 0, Errno::EINVAL)?;
            // Point 0 stands for whatever was submitted last.
            let wanted = if *point == 0 { timeline.submitted.max(1) } else { point + 1 };
            is_reached &= timeline.reached >= wanted;
        }
        if is_reached {
            return Ok(());
        }
        match next_ending(state).filter(|(ending, ..)| *ending <= deadline) {
            Some((ending, ..)) => pass(state, ending),
            None => {
                pass(state, deadline);
                return Err(Errno::ETIME);
            }
        }
    }
}

fn get_info(state: &mut State, value: &mut uapi::GetInfo, parts: &mut [Pointed<'_>]) -> Answer {
    let answer = match value.param {
        uapi::INFO_HW_CONTEXTS => contexts(state),
        uapi::INFO_FIRMWARE_VERSION => {
            let [major, minor, patch, build] = state.machine.firmware;
            bytes_of(&abi::FirmwareVersion { major, minor, patch, build }).to_vec()
        }
        _ if !state.machine.tells_all => return Err(Errno::EOPNOTSUPP),
        uapi::INFO_AIE_VERSION => bytes_of(&ARRAY_VERSION).to_vec(),
        uapi::INFO_AIE_METADATA => bytes_of(&metadata()).to_vec(),
        uapi::INFO_CLOCK => {
            let clock = |text: &[u8], freq_mhz| {
                let mut name = [0; 16];
                name[..text.len()].copy_from_slice(text);
                abi::Clock { name, freq_mhz, pad: 0 }
            };
            let clocks =
                abi::Clocks { mp_npu: clock(b"MP-NPU Clock", 400), h: clock(b"H Clock", 800) };
            bytes_of(&clocks).to_vec()
        }
        // From version 0.4 of the interface on.
        uapi::INFO_RESOURCE if state.machine.driver_minor >= 4 => {
            let info =
                abi::ResourceInfo { npu_clk_max: 1600, npu_task_max: 6, ..Default::default() };
            bytes_of(&info).to_vec()
        }
        _ => return Err(Errno::EOPNOTSUPP),
    };
    let room = &mut pointed(parts, 8)?[..value.buffer_size as usize];
    require(room.len() >= answer.len(), Errno::EINVAL)?;
    room[..answer.len()].copy_from_slice(&answer);
    value.buffer_size = answer.len() as u32;
    Ok(())
}

/// The version that a model tells of its array. Which one silicon tells is not known.
const ARRAY_VERSION: abi::ArrayVersion = abi::ArrayVersion { major: 1, minor: 0 };

/// Returns the tiles of the array as published streams use them.
fn metadata() -> abi::ArrayMetadata {
    let tiles = |row_start, row_count, dma_channel_count, lock_count| abi::TileMetadata {
        row_count,
        row_start,
        dma_channel_count,
        lock_count,
        ..Default::default()
    };
    abi::ArrayMetadata {
        col_size: 1 << 25,
        cols: 5,
        rows: 6,
        version: ARRAY_VERSION,
        core: tiles(2, 4, 2, 16),
        mem: tiles(1, 1, 6, 64),
        shim: tiles(0, 1, 2, 16),
    }
}

/// Returns all contexts, also of other processes.
fn contexts(state: &State) -> Vec<u8> {
    // A context of another process has the same handle, so that handles are not enough to find one.
    let other =
        ContextInfo { context_id: 1, pid: 1, command_completions: 77, ..ContextInfo::default() };
    let mut answer = bytes_of(&other).repeat(state.machine.foreign_contexts as usize);
    let clients = state.clients.values();
    for (handle, context) in clients.flat_map(|client| &client.contexts) {
        let info = ContextInfo {
            context_id: *handle,
            num_col: context.columns,
            pid: state.machine.process,
            command_submissions: context.submissions,
            command_completions: counted(context, state.now),
            errors: context.errors,
            ..ContextInfo::default()
        };
        answer.extend(bytes_of(&info));
    }
    answer
}

/// Returns how many commands of a context the driver has counted by now.
fn counted(context: &Context, now: Duration) -> u64 {
    context.counted.iter().filter(|at| **at <= now).count() as u64
}

fn set_state(state: &mut State, value: &mut uapi::GetInfo) -> Answer {
    require(state.machine.is_root, Errno::EACCES)?;
    require(value.param == uapi::INFO_POWER_MODE, Errno::EOPNOTSUPP)
}

fn get_array(state: &mut State, value: &mut uapi::GetArray) -> Answer {
    // Before version 0.1 of the interface there is no such number.
    require(state.machine.driver_minor >= 1, Errno::EINVAL)?;
    require(value.pad == 0, Errno::EINVAL)?;
    // The model lists nothing that the driver asks for this way.
    Err(Errno::EOPNOTSUPP)
}
