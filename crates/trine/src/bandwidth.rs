//! The machine's streaming read bandwidth: the yardstick for tokens per second.

use std::hint::black_box;
use std::time::Instant;

use anyhow::{Result, bail};

use crate::machine;
use crate::output;

/// Smallest buffer worth reading, in bytes.
const SIZE_MIN: u64 = 1 << 30;
/// Caches of this many times their size are streamed through, not hit.
const CACHE_FACTOR: u64 = 4;
/// Numbers that are summed side by side, so that the additions never wait for each other.
const LANES: usize = 64;

/// A buffer too large for the caches, and the threads that read it.
pub(crate) struct Bandwidth {
    buffer: Vec<u64>,
    threads: usize,
}

impl Bandwidth {
    /// Bytes that have to be read: 1 GiB, or four times the last-level cache.
    pub(crate) fn size() -> u64 {
        machine::last_level_cache().map_or(SIZE_MIN, |cache| SIZE_MIN.max(CACHE_FACTOR * cache))
    }

    /// Allocates and touches the buffer.
    ///
    /// # Errors
    /// If the machine has not that much memory to spare.
    pub(crate) fn new(threads: usize) -> Result<Self> {
        let size = Self::size();
        if let Some(available) =
            machine::available_memory().filter(|&available| available < size + size / 8)
        {
            bail!(
                "measuring the memory bandwidth takes {}, {} are available",
                output::bytes(size),
                output::bytes(available)
            );
        }
        let mut buffer = vec![0_u64; (size / 8) as usize];
        // Pages are given out when they are written, to the memory nearest to the thread that does it.
        for_each_part(&mut buffer, threads, |part| part.fill(1));
        Ok(Self { buffer, threads })
    }

    /// Reads the buffer once and gives bytes per second.
    pub(crate) fn measure(&self) -> f64 {
        let part = self.buffer.len().div_ceil(self.threads).max(1);
        let begin = Instant::now();
        std::thread::scope(|scope| {
            for part in self.buffer.chunks(part) {
                scope.spawn(move || black_box(sum(part)));
            }
        });
        (self.buffer.len() * size_of::<u64>()) as f64 / begin.elapsed().as_secs_f64()
    }
}

fn for_each_part(buffer: &mut [u64], threads: usize, work: impl Fn(&mut [u64]) + Copy + Send) {
    let part = buffer.len().div_ceil(threads).max(1);
    std::thread::scope(|scope| {
        for part in buffer.chunks_mut(part) {
            scope.spawn(move || work(part));
        }
    });
}

fn sum(numbers: &[u64]) -> u64 {
    let mut lanes = [0_u64; LANES];
    let (whole, rest) = numbers.as_chunks::<LANES>();
    for chunk in whole {
        for (lane, number) in lanes.iter_mut().zip(chunk) {
            *lane = lane.wrapping_add(*number);
        }
    }
    let total = lanes.iter().fold(0_u64, |total, lane| total.wrapping_add(*lane));
    rest.iter().fold(total, |total, number| total.wrapping_add(*number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_read() {
        assert_eq!(sum(&vec![1; 1000]), 1000);
        let mut buffer = vec![0; 1001];
        for_each_part(&mut buffer, 3, |part| part.fill(1));
        assert_eq!(sum(&buffer), 1001);
    }

    #[test]
    fn a_pass_takes_time() {
        let speed = Bandwidth { buffer: vec![1; 1 << 16], threads: 2 }.measure();
        assert!(speed.is_finite() && speed > 0.0);
    }
}
