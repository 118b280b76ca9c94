//! The machine's streaming read bandwidth, with which tokens per second are compared.

use std::hint::black_box;
use std::sync::{Barrier, LazyLock};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use memmap2::MmapMut;
use trine_backend::{Device, Reader};
use trine_cpu::isa::Isa;
use trine_cpu::vector::VectorKernels;

use crate::measuring::machine;
use crate::words;

/// The smallest buffer that gives a useful measurement, in bytes.
const SIZE_MIN: u64 = 1 << 30;
/// The smallest buffer that does for a forecast, in bytes.
const BRIEF_SIZE_MIN: u64 = 256 << 20;
/// A buffer of this many times the size of a cache is streamed through the cache instead of hitting
/// it.
const CACHE_FACTOR: u64 = 4;

/// A buffer that is too large for the caches, and the number of threads that read it.
pub struct Bandwidth {
    memory: MmapMut,
    threads: usize,
}

impl Bandwidth {
    /// Returns the number of bytes to read: 1 GiB, or four times the last-level cache if that is
    /// more.
    pub fn size() -> u64 {
        Self::size_from(SIZE_MIN)
    }

    fn size_from(least: u64) -> u64 {
        machine::last_level_cache().map_or(least, |cache| least.max(CACHE_FACTOR * cache))
    }

    /// Allocates the buffer and touches its pages.
    ///
    /// # Errors
    /// Returns an error if the machine does not have enough free memory.
    pub fn new(threads: usize) -> Result<Self> {
        Self::of(Self::size(), threads)
    }

    /// Does the same with a buffer that is only as large as a forecast needs: most of the time goes
    /// into touching its pages.
    ///
    /// # Errors
    /// As [`Bandwidth::new`].
    pub fn brief(threads: usize) -> Result<Self> {
        Self::of(Self::size_from(BRIEF_SIZE_MIN), threads)
    }

    fn of(size: u64, threads: usize) -> Result<Self> {
        if let Some(available) =
            machine::available_memory().filter(|&available| available < size + size / 8)
        {
            bail!(
                "measuring the memory bandwidth takes {}, {} are available",
                words::bytes(size),
                words::bytes(available)
            );
        }
        Self::with_size(usize::try_from(size)?, threads)
    }

    fn with_size(size: usize, threads: usize) -> Result<Self> {
        let mut memory = MmapMut::map_anon(size.next_multiple_of(size_of::<f32>()))?;
        // With small pages the measurement would be one of the pages: the processor waits for
        // address translations, and its prefetchers stop at the end of every page. If the system
        // has no huge pages, small ones have to do.
        #[cfg(target_os = "linux")]
        let _ = memory.advise(memmap2::Advice::HugePage);
        // The system allocates a page when it is first written, in the memory nearest to the
        // writing thread.
        for_each_part(bytemuck::cast_slice_mut(&mut memory), threads, |part| part.fill(1.0));
        Ok(Self { memory, threads })
    }

    /// Reads the buffer once and returns bytes per second, not counting the start of the threads.
    pub fn measure(&self) -> f64 {
        let numbers: &[f32] = bytemuck::cast_slice(&self.memory);
        let parts: Vec<&[f32]> = numbers.chunks(part_length(numbers, self.threads)).collect();
        let barrier = Barrier::new(parts.len());
        let read = |part: &[f32]| {
            barrier.wait();
            let begin = Instant::now();
            black_box(sum(part));
            (begin, Instant::now())
        };
        let times: Vec<(Instant, Instant)> = std::thread::scope(|scope| {
            let read = &read;
            let workers: Vec<_> =
                parts.iter().map(|part| scope.spawn(move || read(part))).collect();
            let times = workers.into_iter().map(|worker| worker.join());
            times.map(|time| time.expect("a sum does not panic")).collect()
        });
        let begin = times.iter().map(|(begin, _)| *begin).min();
        let end = times.iter().map(|(_, end)| *end).max();
        let elapsed = match (begin, end) {
            (Some(begin), Some(end)) => end - begin,
            _ => Duration::ZERO,
        };
        size_of_val(numbers) as f64 / elapsed.max(Duration::from_nanos(1)).as_secs_f64()
    }
}

/// The streaming read bandwidth of the memory that a device works from, with which its speed is
/// compared.
pub enum Yardstick {
    /// The memory of the processor.
    Processor(Bandwidth),
    /// The memory of a GPU.
    Gpu(Reader),
}

impl Yardstick {
    /// Measures `gpu` if there is one, otherwise the processor with `threads` threads.
    ///
    /// # Errors
    /// Returns an error if there is not enough memory to measure with, or the GPU fails.
    pub fn new(gpu: Option<&dyn Device>, threads: usize) -> Result<Self> {
        match gpu.map(Device::reader).transpose()?.flatten() {
            Some(reader) => Ok(Yardstick::Gpu(reader)),
            None => Ok(Yardstick::Processor(Bandwidth::new(threads)?)),
        }
    }

    /// Measures one pass and returns bytes per second.
    ///
    /// # Errors
    /// Returns an error if the GPU fails.
    pub fn measure(&mut self) -> Result<f64> {
        match self {
            Yardstick::Processor(bandwidth) => Ok(bandwidth.measure()),
            Yardstick::Gpu(read) => Ok(read()?),
        }
    }
}

/// Returns the number of elements in the part of one thread.
fn part_length(numbers: &[f32], threads: usize) -> usize {
    numbers.len().div_ceil(threads).max(1)
}

fn for_each_part(buffer: &mut [f32], threads: usize, work: impl Fn(&mut [f32]) + Copy + Send) {
    let length = part_length(buffer, threads);
    std::thread::scope(|scope| {
        for part in buffer.chunks_mut(length) {
            scope.spawn(move || work(part));
        }
    });
}

/// Sums with the widest loads of the processor: with those that every x86-64 has, a core has too
/// few reads under way, and a Xeon showed two thirds of the rate of its widest.
fn sum(numbers: &[f32]) -> f32 {
    static KERNELS: LazyLock<VectorKernels> = LazyLock::new(|| {
        VectorKernels::for_isa(Isa::detect()).expect("the processor has what was detected")
    });
    KERNELS.stream(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_read() {
        assert_eq!(sum(&vec![1.0; 1000]), 1000.0);
        let mut buffer = vec![0.0; 1001];
        for_each_part(&mut buffer, 3, |part| part.fill(1.0));
        assert_eq!(sum(&buffer), 1001.0);
        let bandwidth = Bandwidth::with_size(4001, 3).unwrap();
        assert_eq!(sum(bytemuck::cast_slice(&bandwidth.memory)), 1001.0, "a part counts");
    }

    #[test]
    fn a_pass_takes_time() {
        for threads in [1, 2, 7] {
            let speed = Bandwidth::with_size(1 << 19, threads).unwrap().measure();
            assert!(speed.is_finite() && speed > 0.0);
        }
    }
}
