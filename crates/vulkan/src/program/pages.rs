//! Pages of the KV caches on their way between device and host.

use trine_backend::{BLOCK, KvPage, PageLayout, ProgramOptions};
use trine_model::Plan;

use super::bound::Bound;
use super::caches::block_bytes;
use crate::error::GpuError;
use crate::raw::commands::Recording;
use crate::raw::copies::Copy;
use crate::raw::memory::{Buffer, MemoryUse};
use crate::raw::transfer::Transfer;

/// Most bytes of the staging memory through which pages are read.
const STAGING: u64 = 32 << 20;

/// Returns what the pages of a Program look like.
pub(super) fn layout(name: String, plan: &Plan, options: &ProgramOptions) -> PageLayout {
    let bytes = |cache: usize| block_bytes(options, &plan.caches[cache]) as usize;
    PageLayout::of(name, &plan.caches, bytes)
}

/// Returns the blocks of the caches that make up pages, in their order: memory of a cache, offset
/// and bytes.
fn blocks<'a>(
    caches: &'a [Buffer],
    plan: &'a Plan,
    options: &'a ProgramOptions,
    pages: &'a [KvPage<'a>],
) -> impl Iterator<Item = (&'a Buffer, u64, u64)> {
    options.page_places(&plan.caches, pages).map(move |(cache, start)| {
        let bytes = block_bytes(options, &plan.caches[cache]);
        (&caches[cache], (start / BLOCK) as u64 * bytes, bytes)
    })
}

impl Bound {
    /// Appends the bytes of checked pages.
    pub(super) fn read_pages(
        &self,
        plan: &Plan,
        options: &ProgramOptions,
        pages: &[KvPage<'_>],
        bytes: &mut Vec<u8>,
    ) -> Result<(), GpuError> {
        let all: u64 = blocks(&self.caches, plan, options, pages).map(|(.., bytes)| bytes).sum();
        let largest = plan.caches.iter().map(|cache| block_bytes(options, cache)).max();
        let Some(largest) = largest.filter(|_| all > 0) else { return Ok(()) };
        let staging = self.gpu.allocate(
            all.min(STAGING).max(largest),
            MemoryUse::Readback,
            "staging memory",
        )?;
        let (mut copies, mut used) = (Vec::new(), 0);
        let mut flush = |copies: &mut Vec<Copy>, used: &mut u64| {
            Recording::record(&self.gpu, &[], copies, &[])?.run("reading keys and values")?;
            bytes.extend_from_slice(staging.values(0, *used as usize));
            copies.clear();
            *used = 0;
            Ok::<(), GpuError>(())
        };
        for (memory, offset, bytes) in blocks(&self.caches, plan, options, pages) {
            if used + bytes > staging.bytes() {
                flush(&mut copies, &mut used)?;
            }
            let (from, to) = (memory.part(offset, bytes), staging.part(used, bytes));
            copies.push(Copy { from, to, bytes });
            used += bytes;
        }
        flush(&mut copies, &mut used)
    }

    /// Writes the bytes of checked pages into their places.
    pub(super) fn write_pages(
        &self,
        plan: &Plan,
        options: &ProgramOptions,
        pages: &[KvPage<'_>],
        bytes: &[u8],
    ) -> Result<(), GpuError> {
        let transfer = Transfer::new(&self.gpu);
        let mut rest = bytes;
        for (memory, offset, bytes) in blocks(&self.caches, plan, options, pages) {
            let (own, others) = rest.split_at(bytes as usize);
            transfer.write(memory, offset, own)?;
            rest = others;
        }
        transfer.finish()
    }
}
