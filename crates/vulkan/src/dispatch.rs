//! Dispatches as data: which kernel runs, with which arguments, and which memory it reads and
//! writes.

use bytemuck::Pod;

use crate::raw::pipeline::{Kernel, PUSH_BYTES};

/// Arguments of a dispatch.
#[derive(Debug, Clone, Copy)]
pub struct Push {
    bytes: [u8; PUSH_BYTES],
    length: usize,
}

impl Push {
    /// Lays the arguments out as the shader's push-constant block has them.
    ///
    /// # Panics
    /// If they are larger than [`PUSH_BYTES`] or not a multiple of 4 bytes.
    pub fn of<T: Pod>(args: &T) -> Self {
        let source = bytemuck::bytes_of(args);
        assert!(source.len() <= PUSH_BYTES && source.len().is_multiple_of(4), "push constants");
        let mut bytes = [0; PUSH_BYTES];
        bytes[..source.len()].copy_from_slice(source);
        Self { bytes, length: source.len() }
    }

    /// Writes a device address into the arguments.
    ///
    /// # Panics
    /// If the offset is outside the arguments.
    pub fn set_address(&mut self, offset: usize, address: u64) {
        self.bytes[..self.length][offset..offset + 8].copy_from_slice(&address.to_ne_bytes());
    }

    /// Returns the bytes in use.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// A range of device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Device address of the first byte.
    pub address: u64,
    /// Length in bytes.
    pub bytes: u64,
}

impl Span {
    /// Returns whether all of another range is in this one.
    pub fn contains(self, other: Span) -> bool {
        self.address <= other.address && other.address + other.bytes <= self.address + self.bytes
    }

    /// Returns whether the ranges share a byte.
    pub fn overlaps(self, other: Span) -> bool {
        self.address < other.address + other.bytes && other.address < self.address + self.bytes
    }
}

/// How the workgroups of a dispatch that can be chained fill the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fill {
    /// Hardly: there are few, or they have little to do.
    Little,
    /// Wherever there is room.
    Anywhere,
    /// Evenly: the workgroups have equal shares of the work, and are small enough for several of
    /// them to share a core. If they started while others are at work, they would crowd onto the
    /// cores that are done first. The large workgroups of products of one row are too large to do
    /// so.
    Evenly,
}

/// A dispatch's part in a chain: in a chain (module `chain`) dispatches wait for one another by
/// themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
    /// The dispatch is ordered only by barriers.
    Outside,
    /// Its kernel can be part of a chain.
    Able {
        /// Where its arguments hold the link's address, in bytes from the first argument.
        offset: usize,
        /// Memory that no earlier dispatch of its chain may have written, because it is read before
        /// the wait. Weights and what the host writes do not count.
        early: Option<Span>,
        /// How its workgroups fill the device.
        fill: Fill,
    },
    /// The dispatch begins a chain.
    First,
    /// The dispatch waits for the one before it.
    Next,
}

/// What a dispatch of one row can hand on in a chain so that each value says itself that it is
/// there (module `chain`): spans of f32.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Hands {
    /// What it can look at until it is there.
    pub takes: Vec<Span>,
    /// The residual stream as an earlier dispatch left it, at which it can look too.
    pub residual: Option<Span>,
    /// What it writes for the next dispatch.
    pub gives: Vec<Span>,
    /// The residual stream as it leaves it.
    pub updated: Option<Span>,
    /// Whether each workgroup looks at a part of what it takes only; together they look at all.
    pub is_split: bool,
    /// Memory, of any type, in which launches of its kind follow one another: what one of them
    /// leaves there is in place before the first of its values.
    pub shared: Vec<Span>,
}

/// One kernel launch.
#[derive(Debug, Clone)]
pub struct Dispatch {
    /// What it does, for people.
    pub label: String,
    /// The step of the Plan whose time it counts to.
    pub step: usize,
    /// What runs.
    pub kernel: Kernel,
    /// Its arguments.
    pub push: Push,
    /// Workgroups in x, y and z.
    pub groups: [u32; 3],
    /// Memory whose values it uses, apart from weights and what the host writes between steps.
    pub reads: Vec<Span>,
    /// Memory whose values it sets.
    pub writes: Vec<Span>,
    /// Its part in a chain.
    pub link: Link,
    /// What it can hand on, if its kernel does so.
    pub hands: Option<Hands>,
}

impl Dispatch {
    /// Writes the address of its link, with flags, into the arguments of a dispatch that can be
    /// chained.
    ///
    /// # Panics
    /// If it cannot be chained, or is.
    pub fn set_link(&mut self, address: u64) {
        let Link::Able { offset, .. } = self.link else {
            panic!("{}: {:?} has no room for a link", self.label, self.link)
        };
        self.push.set_address(offset, address);
    }

    /// Returns the number of workgroups.
    pub fn workgroups(&self) -> u32 {
        self.groups.iter().product()
    }
}

/// Decides where barriers stand: before a dispatch that touches what another has written since the
/// last barrier, or that writes what another has read since then. Within a chain there are none.
/// Before a chain there is always one, because the dispatches that follow in it wait only for their
/// predecessors in it.
#[derive(Debug, Default)]
pub struct Hazards {
    reads: Vec<Span>,
    writes: Vec<Span>,
}

impl Hazards {
    /// Begins after something has written memory.
    pub fn after(written: impl Iterator<Item = Span>) -> Self {
        Self { reads: Vec::new(), writes: written.collect() }
    }

    /// Returns whether a barrier has to stand before this dispatch, and remembers the dispatch.
    pub fn needs_barrier(&mut self, dispatch: &Dispatch) -> bool {
        let meets = |spans: &[Span], others: &[Span]| {
            spans.iter().any(|span| others.iter().any(|other| span.overlaps(*other)))
        };
        let found = match dispatch.link {
            Link::First => !self.writes.is_empty() || !self.reads.is_empty(),
            Link::Next => false,
            Link::Outside | Link::Able { .. } => {
                meets(&dispatch.reads, &self.writes)
                    || meets(&dispatch.writes, &self.writes)
                    || meets(&dispatch.writes, &self.reads)
            }
        };
        if found {
            self.reads.clear();
            self.writes.clear();
        }
        self.reads.extend_from_slice(&dispatch.reads);
        self.writes.extend_from_slice(&dispatch.writes);
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dispatch(reads: &[(u64, u64)], writes: &[(u64, u64)]) -> Dispatch {
        let spans = |list: &[(u64, u64)]| {
            list.iter().map(|&(address, bytes)| Span { address, bytes }).collect()
        };
        Dispatch {
            label: String::new(),
            step: 0,
            kernel: Kernel::null(),
            push: Push::of(&0_u32),
            groups: [1, 1, 1],
            reads: spans(reads),
            writes: spans(writes),
            link: Link::Outside,
            hands: None,
        }
    }

    #[test]
    fn barriers_stand_at_hazards_and_nowhere_else() {
        let mut hazards = Hazards::default();
        assert!(!hazards.needs_barrier(&dispatch(&[(0, 8)], &[(8, 8)])));
        assert!(!hazards.needs_barrier(&dispatch(&[(0, 8)], &[(16, 8)])), "both only read 0..8");
        assert!(hazards.needs_barrier(&dispatch(&[(15, 1)], &[(32, 8)])), "read after write");
        assert!(
            !hazards.needs_barrier(&dispatch(&[(8, 7)], &[(64, 8)])),
            "the barrier covers 8..15"
        );
        assert!(hazards.needs_barrier(&dispatch(&[], &[(39, 9)])), "write after write");
        assert!(!hazards.needs_barrier(&dispatch(&[(100, 4)], &[])));
        assert!(hazards.needs_barrier(&dispatch(&[], &[(96, 5)])), "write after read");
    }

    #[test]
    fn a_chain_has_one_barrier_before_it() {
        let mut hazards = Hazards::default();
        let mut needs = |reads: &[(u64, u64)], writes: &[(u64, u64)], link: Link| {
            hazards.needs_barrier(&Dispatch { link, ..dispatch(reads, writes) })
        };
        assert!(!needs(&[], &[(0, 8)], Link::Outside));
        assert!(needs(&[], &[(64, 8)], Link::First), "what follows waits only for this one");
        assert!(!needs(&[(0, 8), (64, 8)], &[(128, 8)], Link::Next));
        assert!(!needs(&[(128, 8)], &[(64, 8)], Link::Next));
        assert!(
            needs(&[(128, 8)], &[], Link::Outside),
            "all that a chain wrote is complete after it"
        );
    }
}
