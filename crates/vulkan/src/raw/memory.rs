//! Device memory: blocks that are filled from the front and freed as a whole.

use std::collections::BTreeSet;
use std::ptr::NonNull;
use std::sync::Arc;

use ash::vk;
use bytemuck::Pod;

use super::gpu::Gpu;
use crate::capabilities::DeviceKind;
use crate::dispatch::Span;
use crate::error::{During, GpuError};

/// Alignment of every buffer in bytes.
pub const ALIGNMENT: u64 = 256;
/// Largest block that is made for several buffers: on systems that account for each block as a
/// whole, smaller ones are easier to move.
const BLOCK_MAX: u64 = 1 << 30;
/// Smallest block.
const BLOCK_MIN: u64 = 1 << 20;
/// Largest window of a discrete GPU's memory that is not used for weights.
const SMALL_WINDOW: u64 = 256 << 20;
/// Most free memory that is left to others.
const RESERVE_MAX: u64 = 256 << 20;

/// What memory is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MemoryUse {
    /// Read and written by the device. Mapped where that costs the device nothing.
    Device,
    /// Written by the host, read by the device.
    Upload,
    /// Written by the device, read by the host through its caches.
    Readback,
}

/// One allocation of device memory.
struct Block {
    memory: vk::DeviceMemory,
    buffer: vk::Buffer,
    address: u64,
    bytes: u64,
    mapped: Option<NonNull<u8>>,
    gpu: Arc<Gpu>,
}

// SAFETY: the pointer is to memory that is the block's own, mapped until it is dropped; who writes
// when is the duty of Buffer's users.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

impl Block {
    /// Takes a buffer and the memory that is bound to it.
    fn of(
        gpu: &Arc<Gpu>,
        buffer: vk::Buffer,
        bytes: u64,
        memory: vk::DeviceMemory,
        mapped: Option<NonNull<u8>>,
    ) -> Self {
        let info = vk::BufferDeviceAddressInfo::default().buffer(buffer);
        // SAFETY: the buffer is bound and was made for this use.
        let address = unsafe { gpu.device.get_buffer_device_address(&info) };
        Self { memory, buffer, address, bytes, mapped, gpu: gpu.clone() }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: the handles are this block's own; a run that uses it has waited until the device
        // is done, also if it failed.
        unsafe {
            self.gpu.device.destroy_buffer(self.buffer, None);
            self.gpu.device.free_memory(self.memory, None);
        }
    }
}

/// A range of device memory. Freed when the last buffer of its block is dropped.
#[derive(Clone)]
pub struct Buffer {
    block: Arc<Block>,
    offset: u64,
    bytes: u64,
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Buffer({:#x}, {} bytes)", self.address(), self.bytes)
    }
}

impl Buffer {
    /// Binds memory of type `index`, which is the buffer's alone, and takes both.
    #[cfg(unix)]
    pub(super) fn with_memory(
        gpu: &Arc<Gpu>,
        buffer: vk::Buffer,
        memory: vk::DeviceMemory,
        index: u32,
        bytes: u64,
    ) -> Result<Self, GpuError> {
        let flags = gpu.memory.memory_types[index as usize].property_flags;
        match attach(gpu, buffer, memory, flags) {
            Ok(mapped) => {
                let block = Arc::new(Block::of(gpu, buffer, bytes, memory, mapped));
                Ok(Self { block, offset: 0, bytes })
            }
            Err(error) => {
                // SAFETY: both are in use by nobody.
                unsafe {
                    gpu.device.destroy_buffer(buffer, None);
                    gpu.device.free_memory(memory, None);
                }
                Err(error)
            }
        }
    }

    /// Address on the device; a multiple of [`ALIGNMENT`].
    pub fn address(&self) -> u64 {
        self.block.address + self.offset
    }

    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the whole range.
    pub fn span(&self) -> Span {
        Span { address: self.address(), bytes: self.bytes }
    }

    /// Returns a part of the range.
    ///
    /// # Panics
    /// If the part is outside the range.
    pub fn part(&self, offset: u64, bytes: u64) -> Buffer {
        assert!(offset + bytes <= self.bytes, "a part outside its buffer");
        Buffer { block: self.block.clone(), offset: self.offset + offset, bytes }
    }

    /// Returns whether the host can access it directly.
    pub fn is_mapped(&self) -> bool {
        self.block.mapped.is_some()
    }

    pub(super) fn raw(&self) -> (vk::Buffer, u64) {
        (self.block.buffer, self.offset)
    }

    /// Copies bytes into mapped memory. The device must not be using the range. Several threads may
    /// write disjoint ranges at the same time.
    ///
    /// # Panics
    /// If the memory is not mapped or the range is outside the buffer.
    pub fn write(&self, offset: u64, bytes: &[u8]) {
        let end = offset.checked_add(bytes.len() as u64);
        assert!(end.is_some_and(|end| end <= self.bytes), "a write outside its buffer");
        let base = self.block.mapped.expect("a buffer that the host writes is mapped");
        // SAFETY: the range is inside the buffer, which is mapped; the device is not using it.
        unsafe {
            let target = base.as_ptr().add((self.offset + offset) as usize);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len());
        }
    }

    /// Returns the values of mapped memory. The device must have finished writing them, and must
    /// not write them while they are borrowed. Reads are slow unless it is [`MemoryUse::Readback`].
    ///
    /// # Panics
    /// If the memory is not mapped, or the range is outside the buffer or not aligned.
    pub fn values<T: Pod>(&self, first: usize, count: usize) -> &[T] {
        let end = (first + count) * size_of::<T>();
        assert!(end as u64 <= self.bytes, "a read outside its buffer");
        let base = self.block.mapped.expect("a buffer that the host reads is mapped");
        // SAFETY: the range is inside the buffer, which is mapped and aligned to 256; any bytes are
        // a Pod.
        unsafe {
            let start = base.as_ptr().add(self.offset as usize).cast::<T>();
            assert!(start.is_aligned(), "a read of unaligned values");
            std::slice::from_raw_parts(start.add(first), count)
        }
    }
}

/// Makes buffers in blocks. Blocks are freed when their last buffer is.
pub struct Arena {
    gpu: Arc<Gpu>,
    usage: MemoryUse,
    /// Bytes that are still to come, as far as is known; the size of a block depends on it.
    expected: u64,
    current: Option<(Arc<Block>, u64)>,
    allocated: u64,
}

impl Arena {
    /// Creates an arena for about `expected` bytes.
    pub fn new(gpu: &Arc<Gpu>, usage: MemoryUse, expected: u64) -> Self {
        Self { gpu: gpu.clone(), usage, expected, current: None, allocated: 0 }
    }

    /// Returns the bytes of all blocks.
    pub fn allocated(&self) -> u64 {
        self.allocated
    }

    /// Returns a buffer of at least one byte. `what` is named in an error. The contents are
    /// undefined.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`].
    pub fn allocate(&mut self, bytes: u64, what: &str) -> Result<Buffer, GpuError> {
        let bytes = bytes.max(1).next_multiple_of(ALIGNMENT);
        if self.gpu.injected_at(super::gpu::FailurePoint::Allocation).is_some() {
            return Err(GpuError::OutOfMemory { what: what.to_owned(), bytes });
        }
        let left = self.current.as_ref().map_or(0, |(block, used)| block.bytes - used);
        if let Some((block, used)) = &mut self.current
            && bytes <= left
        {
            let buffer = Buffer { block: block.clone(), offset: *used, bytes };
            *used += bytes;
            self.expected = self.expected.saturating_sub(bytes);
            return Ok(buffer);
        }
        let size = block_size(self.expected, left, bytes);
        let block = match allocate_block(&self.gpu, size, self.usage) {
            // There may be too little room for everything still to come, but enough for this
            // buffer.
            Err(GpuError::OutOfMemory { .. }) if size > bytes => {
                allocate_block(&self.gpu, bytes, self.usage)
            }
            result => result,
        };
        let block = block.map_err(|error| match error {
            GpuError::OutOfMemory { .. } => GpuError::OutOfMemory { what: what.to_owned(), bytes },
            error => error,
        })?;
        self.allocated += block.bytes;
        self.expected = self.expected.saturating_sub(bytes);
        let block = Arc::new(block);
        if block.bytes - bytes >= left {
            self.current = Some((block.clone(), bytes));
        }
        Ok(Buffer { block, offset: 0, bytes })
    }
}

/// Returns the size of the block that begins with a buffer of `bytes`, while `expected` bytes are
/// still to come. If the block would have less left than the `left` bytes of the block before, it
/// holds only this buffer, and the next buffers continue in the block before.
fn block_size(expected: u64, left: u64, bytes: u64) -> u64 {
    let size = expected.clamp(BLOCK_MIN, BLOCK_MAX).max(bytes).next_multiple_of(ALIGNMENT);
    if size - bytes < left { bytes } else { size }
}

/// Returns the bytes of the blocks of an [`Arena`] for about `expected` bytes that makes buffers of
/// these sizes.
pub fn blocks_bytes(expected: u64, sizes: &[u64]) -> u64 {
    let (mut expected, mut left, mut all) = (expected, 0, 0);
    for bytes in sizes {
        let bytes = (*bytes).max(1).next_multiple_of(ALIGNMENT);
        if bytes <= left {
            left -= bytes;
        } else {
            let size = block_size(expected, left, bytes);
            all += size;
            left = left.max(size - bytes);
        }
        expected = expected.saturating_sub(bytes);
    }
    all
}

impl Gpu {
    /// Returns the bytes that weights, caches and working memory can take of what is free now. Some
    /// is left to others: compiled kernels and recordings, and programs that begin later.
    pub fn free_bytes(&self) -> u64 {
        free_bytes(&self.memory, self.capabilities().kind, self.budgets().as_deref())
    }

    /// Returns a buffer with a block of its own.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`].
    pub fn allocate(
        self: &Arc<Self>,
        bytes: u64,
        usage: MemoryUse,
        what: &str,
    ) -> Result<Buffer, GpuError> {
        Arena::new(self, usage, bytes).allocate(bytes, what)
    }
}

/// Returns what buffers are used for.
pub(super) fn buffer_usage() -> vk::BufferUsageFlags {
    vk::BufferUsageFlags::STORAGE_BUFFER
        | vk::BufferUsageFlags::SHADER_DEVICE_ADDRESS
        | vk::BufferUsageFlags::INDIRECT_BUFFER
        | vk::BufferUsageFlags::TRANSFER_SRC
        | vk::BufferUsageFlags::TRANSFER_DST
}

fn allocate_block(gpu: &Arc<Gpu>, bytes: u64, usage: MemoryUse) -> Result<Block, GpuError> {
    let full = || GpuError::OutOfMemory { what: "a block".to_owned(), bytes };
    if bytes > gpu.capabilities().allocation_bytes {
        return Err(full());
    }
    let info = vk::BufferCreateInfo::default().size(bytes).usage(buffer_usage());
    // SAFETY: the structure lives until the call returns.
    let buffer = unsafe { gpu.device.create_buffer(&info, None) }.during("vkCreateBuffer")?;
    let bound = bind(gpu, buffer, usage).map_err(|error| error.unwrap_or_else(full));
    match bound {
        Ok((memory, mapped)) => Ok(Block::of(gpu, buffer, bytes, memory, mapped)),
        Err(error) => {
            // SAFETY: the buffer is in use by nobody.
            unsafe { gpu.device.destroy_buffer(buffer, None) };
            Err(error)
        }
    }
}

/// Binds memory to a buffer. The error is `None` if no type of memory had enough.
fn bind(
    gpu: &Gpu,
    buffer: vk::Buffer,
    usage: MemoryUse,
) -> Result<(vk::DeviceMemory, Option<NonNull<u8>>), Option<GpuError>> {
    // SAFETY: the buffer is the device's.
    let needs = unsafe { gpu.device.get_buffer_memory_requirements(buffer) };
    for index in types_in_order(&gpu.memory, gpu.capabilities().kind, usage) {
        if needs.memory_type_bits & (1 << index) == 0 {
            continue;
        }
        let mut flags =
            vk::MemoryAllocateFlagsInfo::default().flags(vk::MemoryAllocateFlags::DEVICE_ADDRESS);
        let info = vk::MemoryAllocateInfo::default()
            .allocation_size(needs.size)
            .memory_type_index(index)
            .push_next(&mut flags);
        // SAFETY: the structures live until the call returns.
        let memory = match unsafe { gpu.device.allocate_memory(&info, None) } {
            Ok(memory) => memory,
            Err(
                vk::Result::ERROR_OUT_OF_DEVICE_MEMORY
                | vk::Result::ERROR_OUT_OF_HOST_MEMORY
                | vk::Result::ERROR_TOO_MANY_OBJECTS,
            ) => continue,
            Err(result) => return Err(Some(GpuError::of("vkAllocateMemory", result))),
        };
        let flags = gpu.memory.memory_types[index as usize].property_flags;
        match attach(gpu, buffer, memory, flags) {
            Ok(mapped) => return Ok((memory, mapped)),
            Err(error) => {
                // SAFETY: the memory is in use by nobody.
                unsafe { gpu.device.free_memory(memory, None) };
                return Err(Some(error));
            }
        }
    }
    Err(None)
}

fn attach(
    gpu: &Gpu,
    buffer: vk::Buffer,
    memory: vk::DeviceMemory,
    flags: vk::MemoryPropertyFlags,
) -> Result<Option<NonNull<u8>>, GpuError> {
    // SAFETY: both are fresh and the memory has the size that the buffer needs.
    unsafe { gpu.device.bind_buffer_memory(buffer, memory, 0) }.during("vkBindBufferMemory")?;
    if !flags.contains(vk::MemoryPropertyFlags::HOST_VISIBLE) {
        return Ok(None);
    }
    let whole = vk::MemoryMapFlags::empty();
    // SAFETY: the memory is host-visible and not mapped yet.
    let pointer =
        unsafe { gpu.device.map_memory(memory, 0, vk::WHOLE_SIZE, whole) }.during("vkMapMemory")?;
    Ok(NonNull::new(pointer.cast()))
}

/// Returns what [`Gpu::free_bytes`] does, from the bytes of the heaps that are in use and that can
/// be had, if the driver reports them.
fn free_bytes(
    memory: &vk::PhysicalDeviceMemoryProperties,
    kind: DeviceKind,
    budgets: Option<&[(u64, u64)]>,
) -> u64 {
    let types = memory.memory_types_as_slice();
    let order = types_in_order(memory, kind, MemoryUse::Device);
    let heaps: BTreeSet<usize> =
        order.iter().map(|index| types[*index as usize].heap_index as usize).collect();
    let free = |heap: usize| match budgets {
        Some(budgets) => budgets.get(heap).map_or(0, |(used, most)| most.saturating_sub(*used)),
        None => memory.memory_heaps[heap].size / 8 * 7,
    };
    let free = heaps.into_iter().map(free).fold(0, u64::saturating_add);
    free - (free / 16).min(RESERVE_MAX)
}

/// Returns the types of memory that serve a purpose, the best first.
pub(super) fn types_in_order(
    memory: &vk::PhysicalDeviceMemoryProperties,
    kind: DeviceKind,
    usage: MemoryUse,
) -> Vec<u32> {
    use vk::MemoryPropertyFlags as Flags;
    let unified = matches!(kind, DeviceKind::Integrated | DeviceKind::Processor);
    let heaps = memory.memory_heaps_as_slice();
    let score = |kind: &vk::MemoryType| -> Option<u32> {
        let flags = kind.property_flags;
        let has = |wanted: Flags| flags.contains(wanted);
        if flags.intersects(Flags::PROTECTED | Flags::DEVICE_COHERENT_AMD | Flags::LAZILY_ALLOCATED)
        {
            return None;
        }
        let coherent = has(Flags::HOST_VISIBLE | Flags::HOST_COHERENT);
        let local = has(Flags::DEVICE_LOCAL);
        let small = local && !unified && heaps[kind.heap_index as usize].size <= SMALL_WINDOW;
        match usage {
            // Shared memory is all the same: what the driver calls the host's serves when the
            // device's share is used up.
            MemoryUse::Device if unified => match (local, coherent) {
                (true, true) => Some(4),
                (true, false) => Some(2),
                (false, true) if !has(Flags::HOST_CACHED) => Some(3),
                (false, true) => Some(1),
                (false, false) => None,
            },
            // A discrete GPU would read host memory through the bus: having no memory is better.
            MemoryUse::Device => (local && !small).then_some(if coherent { 2 } else { 1 }),
            MemoryUse::Upload => coherent.then_some(match (local, has(Flags::HOST_CACHED)) {
                (true, _) => 3,
                (false, false) => 2,
                (false, true) => 1,
            }),
            MemoryUse::Readback => coherent.then_some(if has(Flags::HOST_CACHED) { 2 } else { 1 }),
        }
    };
    let mut scored: Vec<(u32, u32)> = memory
        .memory_types_as_slice()
        .iter()
        .enumerate()
        .filter_map(|(index, kind)| Some((score(kind)?, index as u32)))
        .collect();
    scored.sort_by_key(|&(score, index)| (std::cmp::Reverse(score), index));
    scored.into_iter().map(|(_, index)| index).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use vk::MemoryPropertyFlags as Flags;

    fn memory(heaps: &[u64], types: &[(u32, Flags)]) -> vk::PhysicalDeviceMemoryProperties {
        let mut memory = vk::PhysicalDeviceMemoryProperties {
            memory_heap_count: heaps.len() as u32,
            memory_type_count: types.len() as u32,
            ..Default::default()
        };
        heaps.iter().enumerate().for_each(|(at, &size)| memory.memory_heaps[at].size = size);
        for (at, &(heap_index, property_flags)) in types.iter().enumerate() {
            memory.memory_types[at] = vk::MemoryType { property_flags, heap_index };
        }
        memory
    }

    const LOCAL: Flags = Flags::DEVICE_LOCAL;
    const HOST: Flags =
        Flags::from_raw(Flags::HOST_VISIBLE.as_raw() | Flags::HOST_COHERENT.as_raw());
    const CACHED: Flags = Flags::from_raw(HOST.as_raw() | Flags::HOST_CACHED.as_raw());

    #[test]
    fn a_discrete_gpu_never_keeps_weights_in_host_memory() {
        let big = 16 << 30;
        let types = [(0, LOCAL), (1, HOST), (1, CACHED), (2, LOCAL | HOST)];
        let resizable = memory(&[big, big, big], &types);
        let order = |memory, usage| types_in_order(memory, DeviceKind::Discrete, usage);
        assert_eq!(order(&resizable, MemoryUse::Device), [3, 0]);
        assert_eq!(order(&resizable, MemoryUse::Upload), [3, 1, 2]);
        assert_eq!(order(&resizable, MemoryUse::Readback), [2, 1, 3]);
        let windowed = memory(&[big, big, 256 << 20], &types);
        assert_eq!(order(&windowed, MemoryUse::Device), [0]);
    }

    #[test]
    fn shared_memory_is_used_to_the_last_heap() {
        let both =
            memory(&[20 << 30, 10 << 30], &[(0, LOCAL), (1, HOST), (0, LOCAL | HOST), (1, CACHED)]);
        let order = types_in_order(&both, DeviceKind::Integrated, MemoryUse::Device);
        assert_eq!(order, [2, 1, 0, 3]);
    }

    #[test]
    fn free_memory_is_that_of_the_heaps_that_weights_may_use() {
        let types = [(0, LOCAL), (1, HOST), (2, LOCAL | HOST)];
        let heaps = memory(&[16 << 30, 32 << 30, 256 << 20], &types);
        let budgets = [(3 << 30, 15 << 30), (0, 32 << 30), (0, 256 << 20)];
        let discrete = |budgets| free_bytes(&heaps, DeviceKind::Discrete, budgets);
        assert_eq!(discrete(Some(&budgets)), (12 << 30) - RESERVE_MAX);
        assert_eq!(discrete(None), (14 << 30) - RESERVE_MAX);
        let unified = free_bytes(&heaps, DeviceKind::Integrated, Some(&budgets));
        assert_eq!(unified, (44 << 30) + (256 << 20) - RESERVE_MAX);
        // Other programs have taken more than the driver would give.
        assert_eq!(discrete(Some(&[(2 << 30, 1 << 30)])), 0);
        assert_eq!(discrete(Some(&[(0, 1600 << 20)])), 1500 << 20);
    }

    #[test]
    fn the_bytes_of_blocks_are_known_before_they_are_made() {
        let gpu = crate::testing::gpu();
        for (expected, sizes) in [
            (0, vec![5]),
            (3 << 20, vec![1 << 20, 700_000, 700_001, 3]),
            (1 << 10, vec![1 << 20, 1, 3 << 20, 1 << 19, 1 << 20]),
            (9 << 20, vec![4 << 20, 4 << 20, 4 << 20]),
            (3 << 20, vec![1 << 20, 3 << 20, 1 << 19, 2 << 20, 1 << 20]),
        ] {
            let mut arena = Arena::new(&gpu, MemoryUse::Device, expected);
            let buffers: Vec<Buffer> =
                sizes.iter().map(|bytes| arena.allocate(*bytes, "a test").unwrap()).collect();
            assert_eq!(blocks_bytes(expected, &sizes), arena.allocated(), "{sizes:?}");
            drop(buffers);
        }
    }

    #[test]
    fn large_buffers_do_not_cost_small_ones_their_block() {
        let (large, small) = (BLOCK_MAX + (70 << 20), 16 << 20);
        let mixed = [small, large, small, large, small, large];
        let total: u64 = mixed.iter().sum();
        assert!(blocks_bytes(total, &mixed) <= total + BLOCK_MAX);
        let sorted = [large, large, large, small, small, small];
        assert_eq!(blocks_bytes(total, &sorted), total);
    }
}
