//! Writing bytes from the host into device memory.

use std::sync::{Arc, Mutex, PoisonError};

use super::commands::Recording;

use super::copies::Copy;
use super::gpu::Gpu;
use super::memory::{Buffer, MemoryUse};
use crate::error::GpuError;

/// Bytes of the staging memory, which writes go through if the device's own memory is not mapped.
const STAGING: u64 = 64 << 20;

/// Writes buffers that the device is not using: directly if they are mapped, otherwise through
/// staging memory. Several threads may write disjoint ranges at the same time. Everything is in
/// place after [`Transfer::finish`].
pub struct Transfer {
    gpu: Arc<Gpu>,
    staging: Mutex<Option<Staging>>,
    /// Whether mapped memory is also written through staging memory, for tests of that path.
    always_staged: bool,
}

struct Staging {
    memory: Buffer,
    used: u64,
    copies: Vec<Copy>,
}

impl Transfer {
    /// Creates a transfer to a device's buffers.
    pub fn new(gpu: &Arc<Gpu>) -> Self {
        Self { gpu: gpu.clone(), staging: Mutex::new(None), always_staged: false }
    }

    /// Creates a transfer that never writes directly.
    #[cfg(test)]
    pub(crate) fn staged(gpu: &Arc<Gpu>) -> Self {
        Self { always_staged: true, ..Self::new(gpu) }
    }

    /// Writes bytes at an offset of a buffer; offsets and lengths are multiples of 4.
    ///
    /// # Errors
    /// If the device fails or staging memory cannot be allocated.
    pub fn write(&self, target: &Buffer, offset: u64, bytes: &[u8]) -> Result<(), GpuError> {
        if target.is_mapped() && !self.always_staged {
            target.write(offset, bytes);
            return Ok(());
        }
        let mut guard = self.staging.lock().unwrap_or_else(PoisonError::into_inner);
        if guard.is_none() {
            let memory = self.gpu.allocate(STAGING, MemoryUse::Upload, "staging memory")?;
            *guard = Some(Staging { memory, used: 0, copies: Vec::new() });
        }
        let Some(staging) = guard.as_mut() else { return Ok(()) };
        let mut offset = offset;
        for piece in bytes.chunks(STAGING as usize / 2) {
            if staging.used + piece.len() as u64 > staging.memory.bytes() {
                self.flush(staging)?;
            }
            staging.memory.write(staging.used, piece);
            staging.copies.push(Copy {
                from: staging.memory.part(staging.used, piece.len() as u64),
                to: target.part(offset, piece.len() as u64),
                bytes: piece.len() as u64,
            });
            staging.used += piece.len() as u64;
            offset += piece.len() as u64;
        }
        Ok(())
    }

    fn flush(&self, staging: &mut Staging) -> Result<(), GpuError> {
        if !staging.copies.is_empty() {
            Recording::record(&self.gpu, &[], &staging.copies, &[])?.run("loading weights")?;
        }
        staging.copies.clear();
        staging.used = 0;
        Ok(())
    }

    /// Waits until everything is in place.
    ///
    /// # Errors
    /// If the device fails.
    pub fn finish(&self) -> Result<(), GpuError> {
        let mut guard = self.staging.lock().unwrap_or_else(PoisonError::into_inner);
        guard.as_mut().map_or(Ok(()), |staging| self.flush(staging))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{download, gpu};

    #[test]
    fn staged_writes_arrive() {
        let gpu = gpu();
        let target = gpu.allocate(STAGING + (3 << 20), MemoryUse::Device, "a test").unwrap();
        let bytes: Vec<u8> = (0..target.bytes() as u32)
            .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
            .collect();
        let transfer = Transfer::staged(&gpu);
        let cut = 5 << 20;
        transfer.write(&target, cut as u64, &bytes[cut..]).unwrap();
        transfer.write(&target, 0, &bytes[..cut]).unwrap();
        transfer.finish().unwrap();
        assert!(download::<u8>(&gpu, &target) == bytes);
    }
}
