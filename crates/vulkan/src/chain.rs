//! Chains: dispatches that follow one another without a barrier.
//!
//! A barrier makes a device drain before it launches the next dispatch: each costs 2 to 3 us of an
//! H200's memory time. In a chain, workgroups of the next dispatch start as soon as there is room,
//! load what does not depend on the dispatch before (weights), and wait for a counter. They wait
//! only for the dispatch directly before their own. At least one of its workgroups waited for its
//! own predecessor, so everything that the chain did before is done and visible. Neighbours that
//! need nothing of one another share a link: they wait for the same dispatch, and the next one
//! waits for all of them.
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

use std::sync::Arc;

use bytemuck::{Pod, Zeroable};

use crate::capabilities::{Capabilities, DeviceKind};
use crate::dispatch::{Dispatch, Fill, Link, Push, Span};
use crate::error::GpuError;
use crate::raw::commands::{Copy, Recording};
use crate::raw::gpu::Gpu;
use crate::raw::memory::{Arena, Buffer, Place};
use crate::raw::pipeline::KernelKey;
use crate::raw::transfer::Transfer;
use crate::shaders::Shader;

/// Words from one link to the next: CHAIN_LINK_BYTES of the shader.
const LINK_WORDS: usize = 64;

/// The memory of the chains of recordings that never run at the same time.
pub(crate) struct ChainMemory {
    links: Arena,
    failed: Buffer,
}

impl ChainMemory {
    /// Creates the memory for recordings that take about `expected` bytes together.
    ///
    /// # Errors
    /// If the memory cannot be allocated.
    pub(crate) fn new(gpu: &Arc<Gpu>, expected: u64) -> Result<Self, GpuError> {
        let failed = gpu.allocate(4, Place::Readback, "the chains' state")?;
        failed.write(0, &[0; 4]);
        Ok(Self { links: Arena::new(gpu, Place::Device, expected), failed })
    }

    /// Returns the most bytes that a recording of `dispatches` dispatches takes: a link for each
    /// dispatch and one after each chain, all of it twice.
    pub(crate) fn most_bytes(dispatches: usize) -> u64 {
        (2 * 4 * LINK_WORDS * dispatches.div_ceil(2) * 3) as u64
    }

    /// Returns the bytes on the device.
    pub(crate) fn bytes(&self) -> u64 {
        self.links.allocated() + self.failed.bytes()
    }
}

/// The chains of one recording.
pub(crate) struct Chains {
    links: Buffer,
    initial: Buffer,
    failed: Buffer,
}

impl Chains {
    /// Chains neighbours whose kernels can be chained. Returns `None` if no neighbours can. What it
    /// writes to the device is in place once the transfer is finished.
    ///
    /// # Errors
    /// If memory cannot be allocated or the device fails.
    pub(crate) fn link(
        gpu: &Gpu,
        memory: &mut ChainMemory,
        transfer: &Transfer,
        dispatches: &mut [Dispatch],
    ) -> Result<Option<Self>, GpuError> {
        let (placed, initial) = place(dispatches);
        if placed.is_empty() {
            return Ok(None);
        }
        let bytes = (4 * initial.len()) as u64;
        let failed = memory.failed.clone();
        let links = memory.links.allocate(bytes, "the chains' state")?;
        let mut last = None;
        for (index, link) in placed {
            let Link::Able { offset, .. } = dispatches[index].link else {
                unreachable!("only dispatches that can be chained are placed")
            };
            dispatches[index].push.set_address(offset, links.address() + (4 * link) as u64);
            let begins = initial[link] == 0 && last != Some(link);
            dispatches[index].link = if begins { Link::First } else { Link::Next };
            last = Some(link);
        }
        let [low, high] = [failed.address() as u32, (failed.address() >> 32) as u32];
        let mut words = initial;
        for link in words.chunks_exact_mut(LINK_WORDS) {
            link[1..4].copy_from_slice(&[patience(gpu.capabilities().kind), low, high]);
        }
        let image = memory.links.allocate(bytes, "the chains' state")?;
        for target in [&image, &links] {
            transfer.write(target, 0, bytemuck::cast_slice(&words))?;
        }
        Ok(Some(Self { links, initial: image, failed }))
    }

    /// Returns the copy that makes the links ready for the next run.
    pub(crate) fn reset(&self) -> Copy {
        Copy { from: self.initial.clone(), to: self.links.clone(), bytes: self.links.bytes() }
    }

    /// Returns whether a workgroup gave up waiting in a run that has ended. The results of such a
    /// run are not valid.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.values::<u32>(0, 1)[0] != 0
    }

    /// Makes the next run wait for a workgroup that does not exist, as if the device did not run
    /// it.
    ///
    /// # Errors
    /// If the device fails.
    pub(crate) fn stall(&self, gpu: &Arc<Gpu>) -> Result<(), GpuError> {
        let transfer = Transfer::new(gpu);
        transfer.write(&self.links, 0, &1_u32.to_ne_bytes())?;
        transfer.finish()
    }
}

/// Rounds of 1024 looks at a counter before a workgroup gives up: some tenths of a second on a GPU.
/// A software driver ends loops by itself after 65,535 turns, and there no workgroup ever waits.
fn patience(kind: DeviceKind) -> u32 {
    if kind == DeviceKind::Processor { 32 } else { 512 }
}

/// Returns how many dispatches, from the first on, make a chain: those whose kernels can be
/// chained, up to one that reads early what another of them writes, or up to one that has to be
/// spread evenly although another one fills the device. In that case the chain ends after that
/// other one, and what follows it makes a chain of its own.
fn length(dispatches: &[Dispatch]) -> usize {
    let mut full = None;
    for (index, dispatch) in dispatches.iter().enumerate() {
        let Link::Able { early, fill, .. } = dispatch.link else { return index };
        let mut before = dispatches[..index].iter().flat_map(|dispatch| &dispatch.writes);
        if early.is_some_and(|early| before.any(|written| written.overlaps(early))) {
            return index;
        }
        match (fill, full) {
            (Fill::Little, _) => {}
            (Fill::Evenly, Some(last)) => return last + 1,
            (Fill::Anywhere | Fill::Evenly, _) => full = Some(index),
        }
    }
    dispatches.len()
}

/// Returns how many dispatches, from the first on, touch nothing that another of them changes. They
/// share a link: all wait for the dispatch before them, and the next one waits for all of them.
fn abreast(dispatches: &[Dispatch]) -> usize {
    let meet = |spans: &[Span], others: &[Span]| {
        spans.iter().any(|span| others.iter().any(|other| span.overlaps(*other)))
    };
    let depend = |one: &Dispatch, other: &Dispatch| {
        meet(&one.writes, &other.reads)
            || meet(&one.writes, &other.writes)
            || meet(&one.reads, &other.writes)
    };
    let free =
        |at: &usize| !dispatches[..*at].iter().any(|before| depend(before, &dispatches[*at]));
    1 + (1..dispatches.len()).take_while(free).count()
}

/// Returns which dispatches get which link (the index of its first word), and the words of the
/// links: how many workgroups each waits for.
fn place(dispatches: &[Dispatch]) -> (Vec<(usize, usize)>, Vec<u32>) {
    let (mut placed, mut words) = (Vec::new(), Vec::new());
    let push = |words: &mut Vec<u32>, left: u32| {
        let first = words.len();
        words.resize(first + LINK_WORDS, 0);
        words[first] = left;
        first
    };
    let mut rest = dispatches;
    while !rest.is_empty() {
        let first = dispatches.len() - rest.len();
        let (chain, others) = rest.split_at(length(rest));
        if chain.len() > 1 {
            let (mut left, mut index) = (0, 0);
            while index < chain.len() {
                let beside = abreast(&chain[index..]);
                let link = push(&mut words, left);
                placed.extend((index..index + beside).map(|index| (first + index, link)));
                let groups = chain[index..index + beside].iter().map(Dispatch::workgroups);
                left = groups.sum();
                index += beside;
            }
            // The last one counts itself out too.
            push(&mut words, left);
        }
        rest = if chain.is_empty() { &others[1..] } else { others };
    }
    (placed, words)
}

/// Workgroups of each probing dispatch per core: more than run at the same time.
const PROBE_GROUPS_PER_CORE: u32 = 24;
/// Probing dispatches.
const PROBE_LENGTH: u32 = 48;

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

/// Returns whether chains work on a device: whether a long one comes to its end, and whether each
/// dispatch sees what the one before it wrote.
///
/// # Errors
/// If the device fails.
pub(crate) fn probe(gpu: &Arc<Gpu>) -> Result<bool, GpuError> {
    let groups = PROBE_GROUPS_PER_CORE * gpu.capabilities().cores_or_guess();
    let key = probe_key(gpu.capabilities());
    let local = key.constants[0];
    let kernel = gpu.kernel(&key)?;
    let bytes = 4 * u64::from(groups) * u64::from(local);
    let values = [0; 2].map(|_| gpu.allocate(bytes, Place::Device, "a probe"));
    let [first, second] = values;
    let (first, second) = (first?, second?);
    let wrong = gpu.allocate(4, Place::Readback, "a probe")?;
    wrong.write(0, &[0; 4]);
    let mut dispatches: Vec<Dispatch> = (0..PROBE_LENGTH)
        .map(|turn| {
            let (source, target) =
                if turn % 2 == 0 { (&first, &second) } else { (&second, &first) };
            let args = ProbeArgs {
                chain: 0,
                source: source.address(),
                target: target.address(),
                wrong: wrong.address(),
                turn,
                groups,
            };
            Dispatch {
                label: "probe".to_owned(),
                step: 0,
                kernel,
                push: Push::of(&args),
                groups: [groups, 1, 1],
                reads: vec![source.span()],
                writes: vec![target.span()],
                link: Link::Able {
                    offset: std::mem::offset_of!(ProbeArgs, chain),
                    early: None,
                    fill: Fill::Anywhere,
                },
            }
        })
        .collect();
    let mut memory = ChainMemory::new(gpu, ChainMemory::most_bytes(dispatches.len()))?;
    let transfer = Transfer::new(gpu);
    let chains = Chains::link(gpu, &mut memory, &transfer, &mut dispatches)?;
    transfer.finish()?;
    let Some(chains) = chains else { return Ok(false) };
    Recording::record(gpu, &dispatches, &[chains.reset()], &[])?.run("probing chains")?;
    Ok(!chains.has_failed() && wrong.values::<u32>(0, 1)[0] == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raw::pipeline::Kernel;
    use crate::testing::gpu;

    fn dispatch(groups: u32, link: Link) -> Dispatch {
        Dispatch {
            label: String::new(),
            step: 0,
            kernel: Kernel::null(),
            push: Push::of(&0_u64),
            groups: [groups, 1, 1],
            // All of them depend on one another.
            reads: vec![Span { address: 64, bytes: 4 }],
            writes: vec![Span { address: 64, bytes: 4 }],
            link,
        }
    }

    #[test]
    fn integrated_gpus_have_barriers() {
        use DeviceKind::{Discrete, Integrated, Other, Processor, Virtual};
        assert!([Discrete, Virtual, Processor, Other].into_iter().all(suits));
        assert!(!suits(Integrated), "none has run a chain");
        assert!(!suits(crate::capabilities::presets::radeon_780m().kind));
    }

    #[test]
    fn neighbours_are_chained_and_chains_share_no_link() {
        let able = Link::Able { offset: 0, early: None, fill: Fill::Anywhere };
        let links = [able, Link::Outside, able, able, able, Link::Outside, able, able];
        let dispatches: Vec<Dispatch> =
            links.iter().zip(10..).map(|(&link, groups)| dispatch(groups, link)).collect();
        let (placed, words) = place(&dispatches);
        let at = |link: usize| link * LINK_WORDS;
        let expected = [(2, at(0)), (3, at(1)), (4, at(2)), (6, at(4)), (7, at(5))];
        assert_eq!(placed, expected);
        let left: Vec<u32> = words.chunks_exact(LINK_WORDS).map(|link| link[0]).collect();
        assert_eq!(left, [0, 12, 13, 14, 0, 16, 17]);
    }

    #[test]
    fn a_chain_ends_before_what_reads_early_what_it_wrote() {
        let cache = Span { address: 4096, bytes: 256 };
        let able = Link::Able { offset: 0, early: None, fill: Fill::Anywhere };
        let mut dispatches = [(); 5].map(|()| dispatch(7, able));
        dispatches[1].writes.push(cache);
        let part = Span { address: 4100, bytes: 4 };
        dispatches[3].link = Link::Able { offset: 0, early: Some(part), fill: Fill::Anywhere };
        let (placed, words) = place(&dispatches);
        let first = |place: usize| words[placed[place].1];
        assert_eq!([0, 1, 2, 3, 4].map(first), [0, 7, 7, 0, 7], "another one begins");
        dispatches[1].link = Link::Able { offset: 0, early: Some(cache), fill: Fill::Anywhere };
        assert_eq!(length(&dispatches), 3, "its own writes come after its wait");
    }

    #[test]
    fn what_has_to_be_spread_evenly_is_chained_to_nothing_that_fills_the_device() {
        let able = |fill| Link::Able { offset: 0, early: None, fill };
        let [little, anywhere, evenly] = [Fill::Little, Fill::Anywhere, Fill::Evenly].map(able);
        let chains = |links: &[Link]| {
            let dispatches: Vec<Dispatch> = links.iter().map(|&link| dispatch(7, link)).collect();
            let (placed, words) = place(&dispatches);
            placed.iter().map(|&(index, link)| (index, words[link] > 0)).collect::<Vec<_>>()
        };
        let layer = [little, evenly, anywhere, little, evenly, little, evenly];
        let expected =
            [(0, false), (1, true), (2, true), (3, false), (4, true), (5, false), (6, true)];
        assert_eq!(chains(&layer), expected);
        assert_eq!(chains(&[evenly, evenly, evenly]), [], "a single one is not a chain");
        assert_eq!(chains(&[anywhere, anywhere]), [(0, false), (1, true)]);
    }

    #[test]
    fn neighbours_that_need_nothing_of_one_another_share_a_link() {
        let able = Link::Able { offset: 0, early: None, fill: Fill::Anywhere };
        let span = |address| Span { address, bytes: 16 };
        // What each reads and writes.
        let memory = [(0, 100), (100, 200), (100, 300), (300, 400), (200, 500), (500, 100)];
        let dispatches: Vec<Dispatch> = memory
            .into_iter()
            .zip(1..)
            .map(|((read, written), groups)| Dispatch {
                reads: vec![span(read)],
                writes: vec![span(written)],
                ..dispatch(groups, able)
            })
            .collect();
        let (placed, words) = place(&dispatches);
        let at = |link: usize| link * LINK_WORDS;
        let links: Vec<usize> = placed.iter().map(|(_, link)| *link).collect();
        // The fourth reads what the third wrote. The fifth needs nothing of it.
        assert_eq!(links, [at(0), at(1), at(1), at(2), at(2), at(3)]);
        let left: Vec<u32> = words.chunks_exact(LINK_WORDS).map(|link| link[0]).collect();
        assert_eq!(left, [0, 1, 2 + 3, 4 + 5, 6]);
        // The last one writes what others read, and the first three write what one of them reads.
        assert_eq!(abreast(&dispatches[3..]), 2);
        assert_eq!(abreast(&dispatches), 1);
    }

    #[test]
    fn a_dispatch_alone_is_no_chain() {
        let alone = [dispatch(3, Link::Able { offset: 0, early: None, fill: Fill::Anywhere })];
        assert_eq!(place(&alone), (Vec::new(), Vec::new()));
    }

    #[test]
    fn a_device_of_the_tests_can_be_probed() {
        // A device that runs its dispatches one after the other never has to wait.
        assert!(probe(&gpu()).unwrap_or_else(|error| panic!("{error}")));
    }
}
