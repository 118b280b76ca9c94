//! What recordings do to memory beside their dispatches.

use ash::vk;

use super::memory::Buffer;
use crate::dispatch::Span;

/// A copy between buffers. The caller keeps both as long as the recording.
#[derive(Debug, Clone)]
pub(crate) struct Copy {
    pub(crate) from: Buffer,
    pub(crate) to: Buffer,
    pub(crate) bytes: u64,
}

impl Copy {
    /// # Safety
    /// The command buffer is being recorded.
    pub(super) unsafe fn record(&self, device: &ash::Device, commands: vk::CommandBuffer) {
        let (from, src_offset) = self.from.raw();
        let (to, dst_offset) = self.to.raw();
        let region = vk::BufferCopy { src_offset, dst_offset, size: self.bytes };
        // SAFETY: the caller's duty; both buffers were made for copies.
        unsafe { device.cmd_copy_buffer(commands, from, to, &[region]) };
    }
}

/// What a recording puts into memory before its first dispatch. No two of its targets meet.
#[derive(Debug, Clone, Default)]
pub(crate) struct Before {
    pub(crate) copies: Vec<Copy>,
    /// Set to 0; offsets and lengths are multiples of 4 bytes.
    pub(crate) zeros: Vec<Buffer>,
}

impl Before {
    /// Returns whether it does nothing.
    pub(super) fn is_empty(&self) -> bool {
        self.copies.is_empty() && self.zeros.is_empty()
    }

    /// Returns the memory that is written.
    pub(super) fn spans(&self) -> impl Iterator<Item = Span> {
        let copied = self.copies.iter().map(|copy| copy.to.span());
        copied.chain(self.zeros.iter().map(Buffer::span))
    }

    /// # Safety
    /// The command buffer is being recorded.
    pub(super) unsafe fn record(&self, device: &ash::Device, commands: vk::CommandBuffer) {
        // SAFETY: the caller's duty; all buffers were made for copies.
        unsafe {
            self.copies.iter().for_each(|copy| copy.record(device, commands));
            for zeros in &self.zeros {
                let (buffer, offset) = zeros.raw();
                device.cmd_fill_buffer(commands, buffer, offset, zeros.bytes(), 0);
            }
        }
    }
}
