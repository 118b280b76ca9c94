//! Chains: dispatches that follow one another without a barrier.
//!
//! A barrier makes a device drain before it launches the next dispatch: each costs 2 to 3 us of an
//! H200's memory time. In a chain, workgroups of the next dispatch start as soon as there is room,
//! load what does not depend on the dispatch before (weights), and wait for a counter. They wait
//! only for the dispatch directly before their own. At least one of its workgroups waited for its
//! own predecessor, so everything that the chain counted before is done and visible. Neighbours
//! that need nothing of one another share a link: they wait for the same dispatch, and the next
//! one waits for all of them. Dispatches of one row need no counter where their values say that
//! they are there (module `handed`): what those wrote is seen only by dispatches that look for it,
//! or after the chain.
//!
//! ```text
//! link: workgroups of the dispatches before that are not done, patience, address of `failed`   u32, u32, u64; 256 bytes apart
//! ```
//!
//! What a kernel reads before it waits (`early` of its link) must not be written in the same chain:
//! the chain ends before such a dispatch. A chain also ends where workgroups have to be spread
//! evenly over the cores ([`Fill`]). Loads after the wait bypass the caches of single cores, except
//! for keys and values: nothing in a chain reads a row of them before it is stored, so none of
//! these caches has an older state of it.
//!
//! Vulkan promises no progress between workgroups. Chains work on devices that start workgroups in
//! the order of their dispatches, so that a workgroup that others wait for already has its place;
//! [`probe`] finds out whether a device seems to do so. The wait is bounded: a workgroup that gives
//! up sets `failed` and continues, its results are discarded, and the program returns to barriers.

mod handed;
mod places;

use std::sync::{Arc, Mutex, PoisonError};

use bytemuck::{Pod, Zeroable};

use self::places::{ChainPosition, LINK_WORDS, place};
use crate::capabilities::{Capabilities, DeviceKind};
use crate::dispatch::{Dispatch, Fill, Hands, Link, Push, Span};
use crate::error::GpuError;
use crate::raw::commands::Recording;
use crate::raw::copies::{Before, Copy};
use crate::raw::gpu::{FailurePoint, Gpu};
use crate::raw::memory::{Arena, Buffer, MemoryUse};
use crate::raw::pipeline::KernelKey;
use crate::raw::transfer::Transfer;
use crate::shaders::Shader;

/// The memory of the chains of recordings that never run at the same time. Several threads may link
/// chains in it.
pub(crate) struct ChainMemory {
    links: Mutex<Arena>,
    failed: Buffer,
}

impl ChainMemory {
    /// Creates the memory for recordings that take about `expected` bytes together.
    ///
    /// # Errors
    /// If the memory cannot be allocated.
    pub(crate) fn new(gpu: &Arc<Gpu>, expected: u64) -> Result<Self, GpuError> {
        let failed = gpu.allocate(4, MemoryUse::Readback, "the chains' state")?;
        failed.write(0, &[0; 4]);
        Ok(Self { links: Mutex::new(Arena::new(gpu, MemoryUse::Device, expected)), failed })
    }

    fn allocate(&self, bytes: u64) -> Result<Buffer, GpuError> {
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        links.allocate(bytes, "the chains' state")
    }

    /// Returns the most bytes that a recording of `dispatches` dispatches takes: a link for each
    /// dispatch and one after each chain, all of it twice.
    pub(crate) fn most_bytes(dispatches: usize) -> u64 {
        (2 * 4 * LINK_WORDS * dispatches.div_ceil(2) * 3) as u64
    }

    /// Returns the bytes on the device.
    pub(crate) fn bytes(&self) -> u64 {
        let links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        links.allocated() + self.failed.bytes()
    }
}

/// How the dispatches of a Program's chains are ordered on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// There are no chains.
    Barriers,
    /// By counters.
    Counters,
    /// By flagged values, and by counters where there are none.
    Values,
}

/// The chains of one recording.
pub(crate) struct Chains {
    links: Buffer,
    initial: Buffer,
    failed: Buffer,
    /// Memory of values that are handed on.
    fresh: Option<Buffer>,
}

impl Chains {
    /// Chains neighbours whose kernels can be chained. Returns `None` if no neighbours can. What it
    /// writes to the device is in place once the transfer is finished. Values in `fresh`, where the
    /// dispatches write each word at most once, are handed on as they come; without it all
    /// dispatches wait for counters.
    ///
    /// # Errors
    /// If memory cannot be allocated or the device fails.
    pub(crate) fn link(
        gpu: &Gpu,
        memory: &ChainMemory,
        transfer: &Transfer,
        dispatches: &mut [Dispatch],
        fresh: Option<Buffer>,
    ) -> Result<Option<Self>, GpuError> {
        let (placed, mut words) = place(dispatches);
        if placed.is_empty() {
            return Ok(None);
        }
        let flags = fresh.as_ref().map(|fresh| handed::flags(dispatches, &placed, fresh.span()));
        let flags = flags.unwrap_or_else(|| vec![0; placed.len()]);
        let fresh = fresh.filter(|_| flags.iter().any(|&flags| flags != 0));
        let bytes = (4 * words.len()) as u64;
        let failed = memory.failed.clone();
        let links = memory.allocate(bytes)?;
        for (ChainPosition { index, link, first }, flags) in placed.into_iter().zip(flags) {
            let dispatch = &mut dispatches[index];
            dispatch.set_link((links.address() + (4 * link) as u64) | flags);
            dispatch.link = if index == first { Link::First } else { Link::Next };
            let gives = flags & handed::GIVES != 0;
            if gives && gpu.injected_at(FailurePoint::Giver(dispatch.step)).is_some() {
                dispatch.groups = [0; 3];
            }
        }
        let [low, high] = [failed.address() as u32, (failed.address() >> 32) as u32];
        for link in words.chunks_exact_mut(LINK_WORDS) {
            link[1..4].copy_from_slice(&[patience(gpu.capabilities().kind), low, high]);
        }
        // Every recording copies it to the links first.
        let initial = memory.allocate(bytes)?;
        transfer.write(&initial, 0, bytemuck::cast_slice(&words))?;
        Ok(Some(Self { links, initial, failed, fresh }))
    }

    /// Returns what a recording does first: it makes links and values ready.
    pub(crate) fn before(&self) -> Before {
        let (from, to, bytes) = (self.initial.clone(), self.links.clone(), self.links.bytes());
        let zeros = self.fresh.iter().cloned().collect();
        Before { copies: vec![Copy { from, to, bytes }], zeros }
    }

    /// Returns whether a workgroup gave up waiting in a run that has ended. The results of such a
    /// run are not valid.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.values::<u32>(0, 1)[0] != 0
    }

    /// Makes each run from now on wait for a workgroup that does not exist, as if the device did
    /// not run it.
    ///
    /// # Errors
    /// If the device fails.
    pub(crate) fn stall(&self, gpu: &Arc<Gpu>) -> Result<(), GpuError> {
        let transfer = Transfer::new(gpu);
        transfer.write(&self.initial, 0, &1_u32.to_ne_bytes())?;
        transfer.finish()
    }
}

/// Gives the dispatches the values that they have in a chain without chaining them: a step has the
/// same results with barriers. See [`Chains::link`].
pub(crate) fn mark(dispatches: &mut [Dispatch], fresh: Span) {
    let (placed, _) = place(dispatches);
    let flags = handed::flags(dispatches, &placed, fresh);
    for (ChainPosition { index, .. }, flags) in placed.into_iter().zip(flags) {
        dispatches[index].set_link(flags & handed::GIVES);
    }
}

/// Rounds of 1024 looks at a counter or a value before a workgroup gives up: some tenths of a
/// second on a GPU. A software driver ends loops by itself after 65,535 turns, those within them
/// included, and there no workgroup ever waits.
fn patience(kind: DeviceKind) -> u32 {
    if kind == DeviceKind::Processor { 4 } else { 512 }
}

/// Workgroups of each probing dispatch per core: more than run at the same time.
const PROBE_GROUPS_PER_CORE: u32 = 24;
/// Probing dispatches.
const PROBE_LENGTH: u32 = 48;
/// Probing dispatches that hand on values, each of which has memory of its own.
const PROBE_VALUES_LENGTH: u32 = 12;

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
struct ProbeArgs {
    chain: u64,
    source: u64,
    target: u64,
    wrong: u64,
    turn: u32,
    groups: u32,
}

/// Returns whether Programs on a kind of device use chains if they work there. None has run on an
/// integrated GPU yet: barriers cost little beside the reads of a slow memory, and a workgroup that
/// waits for one without a place costs some tenths of a second.
pub(crate) fn suits(kind: DeviceKind) -> bool {
    kind != DeviceKind::Integrated
}

/// Returns what the kernel of [`probe`] is compiled from.
pub(crate) fn probe_key(capabilities: &Capabilities) -> KernelKey {
    let local = 256.min(capabilities.invocations);
    KernelKey { shader: Shader("chain_probe"), constants: vec![local], subgroup: None }
}

/// Returns how the dispatches of chains are ordered on a device: whether a long chain comes to its
/// end there, and each dispatch sees what the one before it wrote.
///
/// # Errors
/// If the device fails.
pub(crate) fn probe(gpu: &Arc<Gpu>) -> Result<Order, GpuError> {
    if !suits(gpu.capabilities().kind) || !works(gpu, Order::Counters)? {
        return Ok(Order::Barriers);
    }
    Ok(if works(gpu, Order::Values)? { Order::Values } else { Order::Counters })
}

/// Returns whether a chain works whose dispatches are ordered like this.
fn works(gpu: &Arc<Gpu>, order: Order) -> Result<bool, GpuError> {
    let groups = PROBE_GROUPS_PER_CORE * gpu.capabilities().cores_or_guess();
    let key = probe_key(gpu.capabilities());
    let local = key.constants[0];
    let kernel = gpu.kernel(&key)?;
    let bytes = 4 * u64::from(groups) * u64::from(local);
    // Counters order memory that is written again.
    let (length, places) = match order {
        Order::Values => (PROBE_VALUES_LENGTH, PROBE_VALUES_LENGTH),
        Order::Counters | Order::Barriers => (PROBE_LENGTH, 2),
    };
    let memory = gpu.allocate(u64::from(places) * bytes, MemoryUse::Device, "a probe")?;
    let place = |turn: u32| memory.part(u64::from(turn % places) * bytes, bytes).span();
    let wrong = gpu.allocate(4, MemoryUse::Readback, "a probe")?;
    wrong.write(0, &[0; 4]);
    let mut dispatches: Vec<Dispatch> = (0..length)
        .map(|turn| {
            let (source, target) = (place((turn + places - 1) % places), place(turn));
            let args = ProbeArgs {
                chain: 0,
                source: source.address,
                target: target.address,
                wrong: wrong.address(),
                turn,
                groups,
            };
            // The first one reads nothing.
            let reads: Vec<Span> = (turn > 0).then_some(source).into_iter().collect();
            Dispatch {
                label: "probe".to_owned(),
                step: 0,
                kernel,
                push: Push::of(&args),
                groups: [groups, 1, 1],
                reads: reads.clone(),
                writes: vec![target],
                link: Link::Able {
                    offset: std::mem::offset_of!(ProbeArgs, chain),
                    early: None,
                    fill: Fill::Anywhere,
                },
                // Its workgroups look at a part only, but nothing is written again.
                hands: Some(Hands { takes: reads, gives: vec![target], ..Hands::default() }),
            }
        })
        .collect();
    let links = ChainMemory::new(gpu, ChainMemory::most_bytes(dispatches.len()))?;
    let transfer = Transfer::new(gpu);
    let fresh = (order == Order::Values).then(|| memory.clone());
    let chains = Chains::link(gpu, &links, &transfer, &mut dispatches, fresh)?;
    transfer.finish()?;
    let Some(chains) = chains else { return Ok(false) };
    let before = chains.before();
    Recording::prepared(gpu, &before, &dispatches, &[], &[])?.run("probing chains")?;
    Ok(!chains.has_failed() && wrong.values::<u32>(0, 1)[0] == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::gpu;

    #[test]
    fn integrated_gpus_have_barriers() {
        use DeviceKind::{Discrete, Integrated, Other, Processor, Virtual};
        assert!([Discrete, Virtual, Processor, Other].into_iter().all(suits));
        assert!(!suits(Integrated), "none has run a chain");
        assert!(!suits(crate::capabilities::presets::radeon_780m().kind));
    }

    #[test]
    fn a_device_of_the_tests_can_be_probed() {
        // A device that runs its dispatches one after the other never has to wait.
        assert_eq!(probe(&gpu()).unwrap_or_else(|error| panic!("{error}")), Order::Values);
    }
}
