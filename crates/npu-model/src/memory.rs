//! Memory that the process and the device see differently until it is flushed.

use trine_npu::sys::CACHE_LINE_BYTES;

const LINE: usize = CACHE_LINE_BYTES as usize;

/// A buffer as the process sees it through its caches, and as the device sees it.
///
/// Every line is taken to be cached: what the device writes stays unseen until a flush. A flush of
/// a line that the process has written sends it to the device, over what the device wrote.
#[derive(Debug)]
pub(super) struct Memory {
    process: Vec<u8>,
    device: Vec<u8>,
    /// For each line whether the process has written it since the last flush.
    is_dirty: Vec<bool>,
}

impl Memory {
    pub(super) fn new(bytes: usize) -> Self {
        let lines = bytes.div_ceil(LINE);
        Self {
            process: vec![0; lines * LINE],
            device: vec![0; lines * LINE],
            is_dirty: vec![false; lines],
        }
    }

    pub(super) fn process(&self, offset: usize, bytes: usize) -> &[u8] {
        &self.process[offset..offset + bytes]
    }

    pub(super) fn write_process(&mut self, offset: usize, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let end = offset + bytes.len();
        self.process[offset..end].copy_from_slice(bytes);
        self.is_dirty[offset / LINE..end.div_ceil(LINE)].fill(true);
    }

    pub(super) fn device(&self, offset: usize, bytes: usize) -> &[u8] {
        &self.device[offset..offset + bytes]
    }

    pub(super) fn write_device(&mut self, offset: usize, bytes: &[u8]) {
        self.device[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    pub(super) fn flush(&mut self, offset: usize, bytes: usize) {
        for line in offset / LINE..(offset + bytes).div_ceil(LINE) {
            let range = line * LINE..(line + 1) * LINE;
            if std::mem::take(&mut self.is_dirty[line]) {
                self.device[range.clone()].copy_from_slice(&self.process[range]);
            } else {
                self.process[range.clone()].copy_from_slice(&self.device[range]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_moves_without_a_flush() {
        let mut memory = Memory::new(130);
        memory.write_process(60, &[7; 8]);
        assert_eq!(memory.device(60, 8), [0; 8]);
        memory.flush(0, 64);
        assert_eq!(memory.device(60, 8), [7, 7, 7, 7, 0, 0, 0, 0]);
        memory.write_device(100, &[9]);
        assert_eq!(memory.process(100, 1), [0]);
        // The second line is dirty: what the device wrote there is lost.
        memory.flush(64, 1);
        assert_eq!(memory.device(100, 1), [0]);
        memory.write_device(100, &[9]);
        memory.flush(64, 1);
        assert_eq!(memory.process(100, 1), [9]);
    }
}
