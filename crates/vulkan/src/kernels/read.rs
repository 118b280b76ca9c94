//! Streaming reads that measure the device's bandwidth: `shaders/read.comp`.

use std::sync::Arc;

use bytemuck::{Pod, Zeroable};

use crate::capabilities::DeviceKind;
use crate::dispatch::{Dispatch, Link, Push};
use crate::error::GpuError;
use crate::raw::commands::Recording;
use crate::raw::gpu::Gpu;
use crate::raw::memory::{Buffer, MemoryUse};
use crate::raw::pipeline::KernelKey;
use crate::raw::transfer::Transfer;
use crate::shaders::Shader;

/// Invocations of a workgroup.
const LOCAL: u32 = 256;
/// Bytes that a workgroup reads.
const GROUP_BYTES: u64 = 64 * LOCAL as u64;
/// Dispatches in a pass; each reads a part, so that the grid stays small.
const DISPATCHES: u64 = 4;

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
struct Args {
    source: u64,
    result: u64,
    absent: u32,
    _padding: u32,
}

/// A buffer that is too large for any cache, and the commands that read it once.
pub struct ReadSpeed {
    recording: Recording,
    bytes: u64,
    _memory: [Buffer; 2],
}

impl ReadSpeed {
    /// Allocates the buffer: 1 GiB, on a discrete GPU 2, in software 64 MiB.
    ///
    /// # Errors
    /// If the device does not have that much memory, or fails.
    pub fn new(gpu: &Arc<Gpu>) -> Result<Self, GpuError> {
        let bytes: u64 = match gpu.capabilities().kind {
            DeviceKind::Discrete | DeviceKind::Virtual => 2 << 30,
            DeviceKind::Integrated | DeviceKind::Other => 1 << 30,
            DeviceKind::Processor => 64 << 20,
        };
        let what = "measuring the memory bandwidth";
        let source = gpu.allocate(bytes, MemoryUse::Device, what)?;
        let result = gpu.allocate(4, MemoryUse::Device, what)?;
        // Written once, so that the pages are backed by memory and no value is special.
        let transfer = Transfer::new(gpu);
        let ones = vec![1_u8; 16 << 20];
        for offset in (0..bytes).step_by(ones.len()) {
            transfer.write(&source, offset, &ones)?;
        }
        transfer.finish()?;
        let key = KernelKey { shader: Shader("read"), constants: vec![LOCAL], subgroup: None };
        let kernel = gpu.kernel(&key)?;
        let part = bytes / DISPATCHES;
        let dispatch = |index: u64| {
            let source = source.address() + index * part;
            let args = Args { source, result: result.address(), absent: 2, _padding: 0 };
            Dispatch {
                label: "read".to_owned(),
                step: 0,
                kernel,
                push: Push::of(&args),
                groups: [(part / GROUP_BYTES) as u32, 1, 1],
                reads: Vec::new(),
                writes: Vec::new(),
                link: Link::Outside,
                hands: None,
            }
        };
        let dispatches: Vec<Dispatch> = (0..DISPATCHES).map(dispatch).collect();
        let recording = Recording::timed(gpu, &dispatches, &[])?;
        Ok(Self { recording, bytes, _memory: [source, result] })
    }

    /// Reads the buffer once. Returns the bytes per second by the device's own clock.
    ///
    /// # Errors
    /// If the device fails.
    pub fn measure(&mut self) -> Result<f64, GpuError> {
        self.recording.run("measuring the memory bandwidth")?;
        let seconds: f64 = self.recording.times()?.iter().sum();
        Ok(self.bytes as f64 / seconds.max(1e-9))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_takes_time() {
        let mut speed = ReadSpeed::new(&crate::testing::gpu()).unwrap();
        let found = speed.measure().unwrap();
        assert!(found > 1e6 && found < 1e14, "{found}");
    }
}
