//! A model of the kernel's driver `amdxdna` and of an NPU, at the bytes of [`Sys`].
//!
//! It holds to the published driver: fields that must be zero, errors, the order of calls, memory
//! that the device does not see until it is flushed. What follows from silicon only is a guess, and
//! a strict one: only buffers that a command lists are there for the device, and a device whose
//! command was given up does not work again. Time is virtual, so tests of timeouts take none.
//!
//! Only tests use it: those of `trine-npu` and, below the whole program, of `trine-npu-preload`.
//!
//! | file | holds |
//! |---|---|
//! | `machine.rs` | what is modelled, and what goes wrong |
//! | `files.rs` | what `/sys`, `/proc` and `/dev` show of it |
//! | `memory.rs` | memory as process and device see it |
//! | `objects.rs` | buffers, contexts, commands of a file |
//! | `array.rs` | what the array does with a command, operation by operation |
//! | `container.rs` | an xclbin for it |
//! | `device.rs` | commands over time |
//! | `packets.rs` | packets |
//! | `calls.rs` | ioctls and their errors |
//!
//! Not modelled: debug buffers; buffers made of the process's own pages.

#![forbid(unsafe_code)]

mod array;
mod calls;
mod container;
mod device;
mod files;
mod machine;
mod memory;
mod objects;
mod packets;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub use self::array::{
    Array, Behaviour, Buffers, Core, Cores, DeviceMemory, End, Overlay, Route, Task, Tiles, Trap,
};
pub use self::container::{xclbin, xclbin_of};
pub use self::machine::{AddressMode, Fault, Machine};
pub use self::objects::Held;
use self::objects::{Client, Export, Mapping, State};
use trine_npu::sys::{Errno, File, Pointed, Process, Sys, abi};
use trine_npu::uapi;

/// The path of a model's device.
pub const PATH: &str = "/dev/accel/accel0";
/// Bytes of a page.
const PAGE_BYTES: u64 = 4096;
/// Bytes that are compared at once, where the process reads and writes a mapping itself.
const PIECE_BYTES: usize = 4096;

/// A model. Clones are the same machine and the same process.
#[derive(Clone)]
pub struct ModelSys {
    shared: Arc<Shared>,
}

struct Shared {
    process: Process,
    state: Mutex<State>,
}

impl fmt::Debug for ModelSys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelSys").field("held", &self.held()).finish_non_exhaustive()
    }
}

impl ModelSys {
    /// A machine with this array. Nothing is open.
    #[must_use]
    pub fn new(machine: Machine, array: Box<dyn Array>) -> Self {
        let state = State {
            machine,
            array,
            now: Duration::from_secs(1),
            clients: BTreeMap::new(),
            memories: BTreeMap::new(),
            mappings: BTreeMap::new(),
            exports: BTreeMap::new(),
            last_file: 2,
            last_memory: 0,
            last_address: 0x7000_0000_0000,
            faults: VecDeque::new(),
            calls: 0,
            failure: None,
            is_hung: false,
            refused_accesses: 0,
            leaked: Held::default(),
        };
        Self { shared: Arc::new(Shared { process: Process::new(), state: Mutex::new(state) }) }
    }

    /// Says what happens to the commands that are submitted next, one after the other.
    pub fn inject(&self, faults: impl IntoIterator<Item = Fault>) {
        self.state().faults.extend(faults);
    }

    /// Returns how many injected faults have not met their command.
    #[must_use]
    pub fn injected(&self) -> usize {
        self.state().faults.len()
    }

    /// Lets a call that acquires something fail: the `call`-th from now on, from 0.
    pub fn fail(&self, call: usize, error: Errno) {
        let mut state = self.state();
        state.failure = Some((state.calls + call, error));
    }

    /// Returns how many calls have acquired something.
    #[must_use]
    pub fn calls(&self) -> usize {
        self.state().calls
    }

    /// Returns what the process has and has not given back.
    #[must_use]
    pub fn held(&self) -> Held {
        self.state().held()
    }

    /// Returns what files still had when they were closed.
    #[must_use]
    pub fn leaked(&self) -> Held {
        self.state().leaked
    }

    /// Returns how many accesses the IOMMU has refused.
    #[must_use]
    pub fn refused_accesses(&self) -> usize {
        self.state().refused_accesses
    }

    /// Maps a buffer where the caller has made room, as [`Sys::map`] does where the model has.
    ///
    /// # Errors
    ///
    /// Returns the error of the kernel's driver.
    pub fn map_at(&self, file: File, offset: u64, bytes: u64, address: u64) -> Result<(), Errno> {
        let alignment = 1 << address.trailing_zeros().min(63);
        map_at(&mut self.state(), file, offset, bytes, alignment, address)
    }

    /// Returns address and bytes of all mappings.
    #[must_use]
    pub fn mappings(&self) -> Vec<(u64, u64)> {
        self.state().mappings.iter().map(|(address, mapping)| (*address, mapping.bytes)).collect()
    }

    /// Takes over the bytes of a mapping that the process writes itself, and flushes what has
    /// changed.
    ///
    /// # Errors
    ///
    /// Returns `EFAULT` if nothing is mapped there.
    pub fn take_over(&self, address: u64, bytes: &[u8]) -> Result<(), Errno> {
        let mut state = self.state();
        let (memory, start) = state.mapped(address, bytes.len() as u64)?;
        for (index, piece) in bytes.chunks(PIECE_BYTES).enumerate() {
            let offset = start + index * PIECE_BYTES;
            if memory.process(offset, piece.len()) != piece {
                memory.write_process(offset, piece);
                memory.flush(offset, piece.len());
            }
        }
        Ok(())
    }

    /// Flushes a mapping that the process reads itself, and writes there what has changed.
    ///
    /// # Errors
    ///
    /// Returns `EFAULT` if nothing is mapped there.
    pub fn hand_over(&self, address: u64, bytes: &mut [u8]) -> Result<(), Errno> {
        let mut state = self.state();
        let (memory, start) = state.mapped(address, bytes.len() as u64)?;
        for (index, piece) in bytes.chunks_mut(PIECE_BYTES).enumerate() {
            let offset = start + index * PIECE_BYTES;
            memory.flush(offset, piece.len());
            let seen = memory.process(offset, piece.len());
            if piece != seen {
                piece.copy_from_slice(seen);
            }
        }
        Ok(())
    }

    /// Opens a dma-buf of another device's, with `bytes` bytes.
    #[must_use]
    pub fn other_dma_buf(&self, bytes: u64) -> File {
        let mut state = self.state();
        let memory = state.allocate(bytes);
        File(state.share(Export { memory, bytes }))
    }

    /// Copies from a dma-buf as another device sees it.
    ///
    /// # Errors
    ///
    /// Returns `EBADF` if it is not open, and `EFAULT` if it is shorter.
    pub fn read_dma_buf(&self, file: File, bytes: &mut [u8]) -> Result<(), Errno> {
        let mut state = self.state();
        let memory = state.dma_buf(file, bytes.len() as u64)?;
        bytes.copy_from_slice(memory.device(0, bytes.len()));
        Ok(())
    }

    /// Copies to a dma-buf as another device does.
    ///
    /// # Errors
    ///
    /// Returns `EBADF` if it is not open, and `EFAULT` if it is shorter.
    pub fn write_dma_buf(&self, file: File, bytes: &[u8]) -> Result<(), Errno> {
        let mut state = self.state();
        state.dma_buf(file, bytes.len() as u64)?.write_device(0, bytes);
        Ok(())
    }

    /// Lets time pass.
    pub fn pass(&self, time: Duration) {
        let mut state = self.state();
        let to = state.now + time;
        device::pass(&mut state, to);
    }

    /// Lets time pass unless a command runs, which would end on what the model knows of memory.
    pub fn pass_idle(&self, time: Duration) {
        let mut state = self.state();
        if device::next_ending(&state).is_none() {
            let to = state.now + time;
            device::pass(&mut state, to);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic in here is a test that fails already.
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sys for ModelSys {
    fn process(&self) -> &Process {
        &self.shared.process
    }

    fn read_text(&self, path: &str) -> Result<String, Errno> {
        let mut state = self.state();
        state.acquire()?;
        state.machine.files().remove(path).ok_or(Errno::ENOENT)
    }

    fn list(&self, path: &str) -> Result<Vec<String>, Errno> {
        let mut state = self.state();
        state.acquire()?;
        let files = state.machine.files();
        let inside = |file: &String| {
            let name = file.strip_prefix(path)?.strip_prefix('/')?;
            Some(name.split('/').next().unwrap_or(name).to_owned())
        };
        let mut names: Vec<String> = files.keys().filter_map(inside).collect();
        names.dedup();
        if names.is_empty() { Err(Errno::ENOENT) } else { Ok(names) }
    }

    fn open(&self, path: &str) -> Result<File, Errno> {
        let mut state = self.state();
        state.acquire()?;
        if path != PATH || !state.machine.files().contains_key(PATH) {
            return Err(Errno::ENOENT);
        }
        if let Some(error) = state.machine.open_error {
            return Err(error);
        }
        state.last_file += 1;
        let file = state.last_file;
        state.clients.insert(file, Client::default());
        Ok(File(file))
    }

    fn close(&self, file: File) {
        let mut state = self.state();
        state.exports.remove(&file.0);
        state.sweep();
        let Some(client) = state.clients.remove(&file.0) else { return };
        state.leaked.buffers += client.buffers.len();
        state.leaked.contexts += client.contexts.len();
        state.leaked.timelines += client.timelines.len();
        state.leaked.mappings +=
            state.mappings.values().filter(|mapping| mapping.file == file.0).count();
        state.sweep();
    }

    fn ioctl(
        &self,
        file: File,
        number: u32,
        argument: &mut [u8],
        pointed: &mut [Pointed<'_>],
    ) -> Result<(), Errno> {
        abi::check(number, argument, pointed)?;
        calls::call(&mut self.state(), file.0, number, argument, pointed)
    }

    fn map(&self, file: File, offset: u64, bytes: u64, alignment: u64) -> Result<u64, Errno> {
        // A page lies between mappings, so that none runs on into the next.
        let mut state = self.state();
        let after = state.last_address + PAGE_BYTES;
        let address = after.checked_next_multiple_of(alignment.max(PAGE_BYTES));
        let address = address.ok_or(Errno::EINVAL)?;
        map_at(&mut state, file, offset, bytes, alignment, address)?;
        state.last_address = address + bytes.next_multiple_of(PAGE_BYTES);
        Ok(address)
    }

    fn unmap(&self, address: u64) {
        let mut state = self.state();
        state.mappings.remove(&address);
        state.sweep();
    }

    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), Errno> {
        let mut state = self.state();
        let (memory, offset) = state.mapped(address, bytes.len() as u64)?;
        bytes.copy_from_slice(memory.process(offset, bytes.len()));
        Ok(())
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), Errno> {
        let mut state = self.state();
        let (memory, offset) = state.mapped(address, bytes.len() as u64)?;
        memory.write_process(offset, bytes);
        Ok(())
    }

    fn flush(&self, address: u64, bytes: u64) -> Result<(), Errno> {
        let mut state = self.state();
        let (memory, offset) = state.mapped(address, bytes)?;
        memory.flush(offset, bytes as usize);
        Ok(())
    }

    fn now(&self) -> Duration {
        self.state().now
    }

    fn sleep(&self, time: Duration) {
        self.pass(time);
    }
}

/// Maps a buffer at an address of the caller's choice.
fn map_at(
    state: &mut State,
    file: File,
    offset: u64,
    bytes: u64,
    alignment: u64,
    address: u64,
) -> Result<(), Errno> {
    state.acquire()?;
    let handle = (offset >> 32) as u32;
    let buffers = &state.client(file.0)?.buffers;
    let buffer = *buffers.get(&handle).ok_or(Errno::EINVAL)?;
    let is_whole = offset == calls::map_offset(handle)
        && bytes > 0
        && bytes <= buffer.bytes.next_multiple_of(PAGE_BYTES);
    let is_heap = buffer.kind == uapi::BO_DEVICE_HEAP;
    let is_aligned = alignment.is_power_of_two() && (!is_heap || alignment >= uapi::HEAP_BYTES);
    if !is_whole || !is_aligned || buffer.kind == uapi::BO_DEVICE {
        return Err(Errno::EINVAL);
    }
    let locked: u64 = state.mappings.values().map(|mapping| mapping.bytes).sum();
    if locked + bytes > state.machine.lockable_bytes {
        return Err(Errno::EAGAIN);
    }
    let mapping = Mapping { bytes: bytes.min(buffer.bytes), memory: buffer.memory, file: file.0 };
    state.mappings.insert(address, mapping);
    Ok(())
}
