//! Memory that the GPU shares with other devices of the machine, through files.
//!
//! A buffer of the NPU's becomes one of the GPU's without a copy ([`Gpu::import`]), or the other
//! way round ([`Gpu::share`]). Devices take turns: who writes has finished before the other begins,
//! and the host waits in between. The GPU's own caches are flushed at the end of each submission.
//! Whether a driver needs a transfer of ownership (`VK_QUEUE_FAMILY_FOREIGN_EXT`) besides is not
//! known for an NPU; none is recorded.

use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use ash::{khr, vk};

use super::gpu::Gpu;
use super::memory::{self, Buffer, MemoryUse};
use crate::error::{During, GpuError};

/// What a file of shared memory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// A dma-buf, which drivers of other devices take too.
    DmaBuf,
    /// A file that only the same Vulkan driver takes.
    Driver,
}

impl Sharing {
    fn handle(self) -> vk::ExternalMemoryHandleTypeFlags {
        match self {
            Self::DmaBuf => vk::ExternalMemoryHandleTypeFlags::DMA_BUF_EXT,
            Self::Driver => vk::ExternalMemoryHandleTypeFlags::OPAQUE_FD,
        }
    }

    /// Returns the extensions that the device has to have.
    fn extensions(self) -> &'static [&'static str] {
        match self {
            Self::DmaBuf => &["VK_KHR_external_memory_fd", "VK_EXT_external_memory_dma_buf"],
            Self::Driver => &["VK_KHR_external_memory_fd"],
        }
    }
}

/// A buffer without memory, which is destroyed unless it is taken.
struct Unbound<'a> {
    gpu: &'a Gpu,
    buffer: vk::Buffer,
}

impl Drop for Unbound<'_> {
    fn drop(&mut self) {
        // SAFETY: the buffer is this value's own, or null; nothing uses it.
        unsafe { self.gpu.device.destroy_buffer(self.buffer, None) };
    }
}

impl Gpu {
    /// Returns whether the device makes and takes buffers of this kind.
    pub fn shares(&self, sharing: Sharing) -> bool {
        use vk::ExternalMemoryFeatureFlags as Features;
        let has_all = sharing.extensions().iter().all(|name| self.capabilities().has(name));
        has_all && self.sharing(sharing).contains(Features::IMPORTABLE | Features::EXPORTABLE)
    }

    fn sharing(&self, sharing: Sharing) -> vk::ExternalMemoryFeatureFlags {
        let info = vk::PhysicalDeviceExternalBufferInfo::default()
            .usage(memory::buffer_usage())
            .handle_type(sharing.handle());
        let mut found = vk::ExternalBufferProperties::default();
        // SAFETY: the structures live until the call returns, and the device is the instance's.
        unsafe {
            let instance = self.instance();
            instance.get_physical_device_external_buffer_properties(
                self.physical(),
                &info,
                &mut found,
            );
        }
        found.external_memory_properties.external_memory_features
    }

    /// Makes a buffer of `bytes` bytes, and a file for other devices. The contents are undefined.
    ///
    /// # Errors
    /// [`GpuError::Missing`] where the device does not share such files, or the error of a failed
    /// call.
    pub fn share(
        self: &Arc<Self>,
        bytes: u64,
        sharing: Sharing,
    ) -> Result<(Buffer, OwnedFd), GpuError> {
        let unbound = self.unbound(bytes, sharing)?;
        let (raw, index) = self.allocate_for(&unbound, u32::MAX, sharing, None)?;
        let buffer = self.finish(unbound, raw, index, bytes)?;
        let info = vk::MemoryGetFdInfoKHR::default().memory(raw).handle_type(sharing.handle());
        let calls = khr::external_memory_fd::Device::new(self.instance(), &self.device);
        // SAFETY: the memory was made to be exported as such a file.
        let file = unsafe { calls.get_memory_fd(&info) }.during("vkGetMemoryFdKHR")?;
        // SAFETY: the call made this descriptor, and nothing else owns it.
        Ok((buffer, unsafe { OwnedFd::from_raw_fd(file) }))
    }

    /// Takes a file of another device's as a buffer of `bytes` bytes. The file is closed.
    ///
    /// # Errors
    /// [`GpuError::Missing`] where the device takes no such files, [`GpuError::Short`] if the file
    /// has fewer bytes than the buffer needs, or the error of a failed call.
    pub fn import(
        self: &Arc<Self>,
        file: OwnedFd,
        bytes: u64,
        sharing: Sharing,
    ) -> Result<Buffer, GpuError> {
        let unbound = self.unbound(bytes, sharing)?;
        // SAFETY: the buffer is the device's.
        let needs = unsafe { self.device.get_buffer_memory_requirements(unbound.buffer) };
        let mut file = File::from(file);
        // Where the kernel tells no length the driver has to find out.
        let found = file.seek(SeekFrom::End(0)).unwrap_or(u64::MAX);
        if found < needs.size {
            return Err(GpuError::Short { bytes: needs.size, found });
        }
        let types = match sharing {
            Sharing::DmaBuf => self.types_of(&file)?,
            // The call is not for such files: memory of the type that was exported, which is the
            // one that is chosen here as well.
            Sharing::Driver => u32::MAX,
        };
        let own = file.try_clone().map_err(|_| vk::Result::ERROR_TOO_MANY_OBJECTS);
        // The memory owns this descriptor. Where the call fails, some drivers have closed it and
        // others have not. It stays with them: closed twice, it could be somebody else's by then.
        let own = own.during("duplicating a file")?.into_raw_fd();
        let (raw, index) = self.allocate_for(&unbound, types, sharing, Some(own))?;
        self.finish(unbound, raw, index, bytes)
    }

    /// Returns the types of memory that a dma-buf can be, as bits.
    fn types_of(&self, file: &File) -> Result<u32, GpuError> {
        let calls = khr::external_memory_fd::Device::new(self.instance(), &self.device);
        let mut found = vk::MemoryFdPropertiesKHR::default();
        let (handle, file) = (Sharing::DmaBuf.handle(), file.as_raw_fd());
        // SAFETY: the file is open, and the structure lives until the call returns.
        unsafe { calls.get_memory_fd_properties(handle, file, &mut found) }
            .during("vkGetMemoryFdPropertiesKHR")?;
        Ok(found.memory_type_bits)
    }

    fn unbound(&self, bytes: u64, sharing: Sharing) -> Result<Unbound<'_>, GpuError> {
        if !self.shares(sharing) {
            let what = sharing.extensions().join(", ");
            return Err(GpuError::Missing { device: self.capabilities().name.clone(), what });
        }
        let bytes = bytes.max(1);
        if bytes > self.capabilities().allocation_bytes {
            return Err(GpuError::OutOfMemory { what: "a shared buffer".to_owned(), bytes });
        }
        let mut external =
            vk::ExternalMemoryBufferCreateInfo::default().handle_types(sharing.handle());
        let info = vk::BufferCreateInfo::default()
            .size(bytes)
            .usage(memory::buffer_usage())
            .push_next(&mut external);
        // SAFETY: the structures live until the call returns.
        let buffer = unsafe { self.device.create_buffer(&info, None) }.during("vkCreateBuffer")?;
        Ok(Unbound { gpu: self, buffer })
    }

    /// Makes memory for a buffer, of one of the types in `types`, and returns it with its type. It
    /// is that of a file, which it then owns, or new and can be exported.
    fn allocate_for(
        &self,
        unbound: &Unbound<'_>,
        types: u32,
        sharing: Sharing,
        file: Option<RawFd>,
    ) -> Result<(vk::DeviceMemory, u32), GpuError> {
        // SAFETY: the buffer is the device's.
        let needs = unsafe { self.device.get_buffer_memory_requirements(unbound.buffer) };
        let order =
            memory::types_in_order(&self.memory, self.capabilities().kind, MemoryUse::Device);
        let fits = |index: &u32| needs.memory_type_bits & types & (1 << index) != 0;
        let Some(index) = order.into_iter().find(fits) else {
            let what = "a type of memory for a shared buffer".to_owned();
            return Err(GpuError::Missing { device: self.capabilities().name.clone(), what });
        };
        let mut flags =
            vk::MemoryAllocateFlagsInfo::default().flags(vk::MemoryAllocateFlags::DEVICE_ADDRESS);
        let mut dedicated = vk::MemoryDedicatedAllocateInfo::default().buffer(unbound.buffer);
        let mut info = vk::MemoryAllocateInfo::default()
            .allocation_size(needs.size)
            .memory_type_index(index)
            .push_next(&mut flags);
        let features = self.sharing(sharing);
        if features.contains(vk::ExternalMemoryFeatureFlags::DEDICATED_ONLY) {
            info = info.push_next(&mut dedicated);
        }
        let mut export = vk::ExportMemoryAllocateInfo::default().handle_types(sharing.handle());
        let mut import = vk::ImportMemoryFdInfoKHR::default().handle_type(sharing.handle());
        info = match file {
            Some(file) => {
                import = import.fd(file);
                info.push_next(&mut import)
            }
            None => info.push_next(&mut export),
        };
        // SAFETY: the structures live until the call returns.
        let made = unsafe { self.device.allocate_memory(&info, None) }.during("vkAllocateMemory");
        let raw = made.map_err(|error| match error {
            GpuError::OutOfMemory { .. } => {
                GpuError::OutOfMemory { what: "a shared buffer".to_owned(), bytes: needs.size }
            }
            error => error,
        })?;
        Ok((raw, index))
    }

    /// Binds memory of its own to a buffer.
    fn finish(
        self: &Arc<Self>,
        mut unbound: Unbound<'_>,
        raw: vk::DeviceMemory,
        index: u32,
        bytes: u64,
    ) -> Result<Buffer, GpuError> {
        let buffer = mem::replace(&mut unbound.buffer, vk::Buffer::null());
        Buffer::with_memory(self, buffer, raw, index, bytes.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raw::transfer::Transfer;
    use crate::testing::{download, gpu};

    const BYTES: u64 = 3 << 20;

    fn pattern(seed: u32) -> Vec<u32> {
        (0..BYTES as u32 / 4).map(|i| i.wrapping_mul(2_654_435_761) ^ seed).collect()
    }

    fn write(gpu: &Arc<Gpu>, buffer: &Buffer, values: &[u32]) {
        let transfer = Transfer::staged(gpu);
        transfer.write(buffer, 0, bytemuck::cast_slice(values)).unwrap();
        transfer.finish().unwrap();
    }

    /// Returns whether the tests' device shares such files, and says so if not.
    fn shares(sharing: Sharing) -> bool {
        let gpu = gpu();
        let shares = gpu.shares(sharing);
        if !shares {
            let name = &gpu.capabilities().name;
            eprintln!("SKIPPED: {name} does not share {sharing:?}: {:?}", sharing.extensions());
        }
        shares
    }

    #[test]
    fn a_file_is_the_same_memory_in_two_buffers() {
        for sharing in [Sharing::DmaBuf, Sharing::Driver] {
            if !shares(sharing) {
                continue;
            }
            let gpu = gpu();
            let (one, file) = gpu.share(BYTES, sharing).unwrap();
            write(&gpu, &one, &pattern(1));
            let other = gpu.import(file, BYTES, sharing).unwrap();
            assert_ne!(one.address(), other.address());
            assert!(download::<u32>(&gpu, &other) == pattern(1), "{sharing:?}");
            write(&gpu, &other, &pattern(2));
            assert!(download::<u32>(&gpu, &one) == pattern(2), "{sharing:?}");
            // The memory lives as long as one of them.
            drop(one);
            assert!(download::<u32>(&gpu, &other) == pattern(2), "{sharing:?}");
        }
    }

    #[test]
    fn a_file_that_is_too_short_is_refused() {
        for sharing in [Sharing::DmaBuf, Sharing::Driver] {
            if !shares(sharing) {
                continue;
            }
            let gpu = gpu();
            let (_one, file) = gpu.share(BYTES, sharing).unwrap();
            let error = gpu.import(file, 4 * BYTES, sharing).unwrap_err();
            // The length of a driver's own file may be known to the driver only.
            let is_short = matches!(error, GpuError::Short { .. });
            let is_refused =
                matches!(error, GpuError::OutOfMemory { bytes, .. } if bytes >= 4 * BYTES);
            assert!(is_short || sharing == Sharing::Driver && is_refused, "{error}");
        }
    }

    #[test]
    fn what_the_device_does_not_share_is_refused() {
        let gpu = gpu();
        for sharing in [Sharing::DmaBuf, Sharing::Driver] {
            let shared = gpu.share(BYTES, sharing);
            assert_eq!(shared.is_ok(), gpu.shares(sharing));
            if let Err(error) = shared {
                assert!(matches!(error, GpuError::Missing { .. }), "{error}");
            }
        }
    }
}
