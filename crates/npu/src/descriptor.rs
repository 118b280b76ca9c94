//! DMA buffer descriptors of shim and memory tiles: eight words each.
//!
//! Steps and wraps count words of 32 bits. The hardware stores steps minus one; here they are what
//! they mean. A wrap of 0 means that the dimension has no end.

use crate::registers::DESCRIPTOR_WORDS;

/// One dimension of an address pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dimension {
    /// Words from one element to the next, at least 1.
    pub step: u32,
    /// Elements before the next dimension steps; 0 for no end.
    pub wrap: u32,
}

impl Dimension {
    /// A dimension that is not used: its fields are zero.
    pub const UNUSED: Self = Self { step: 1, wrap: 0 };

    /// Whether all fields are zero.
    #[must_use]
    pub fn is_unused(self) -> bool {
        self == Self::UNUSED
    }
}

/// What a descriptor does with locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Locks {
    /// Whether a lock is acquired before the transfer.
    pub acquires: bool,
    /// The lock that is acquired.
    pub acquire_lock: u8,
    /// What the lock has to be: at least `-value` where this is negative, else exactly this.
    pub acquire_value: i8,
    /// The lock that is released after the transfer.
    pub release_lock: u8,
    /// The number that is added to the released lock.
    pub release_value: i8,
}

impl Locks {
    /// A descriptor that handles no locks.
    pub const UNUSED: Self = Self {
        acquires: false,
        acquire_lock: 0,
        acquire_value: 0,
        release_lock: 0,
        release_value: 0,
    };
}

/// A descriptor of a shim tile: a pattern of addresses in the machine's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShimDescriptor {
    /// Words that one run moves.
    pub words: u32,
    /// The address, which a patch replaces when the stream is run, 48 bits.
    pub address: u64,
    /// The stream's packet header: type and id.
    pub packet: Option<(u8, u8)>,
    /// The innermost dimensions. The third has no wrap.
    pub dimensions: [Dimension; 3],
    /// How far the base moves from run to run, and after how many runs it starts again. Off where
    /// the fields are zero.
    pub iteration: Dimension,
    /// The longest burst, as the hardware's code: 0 for 64 bytes, 1 for 128, 2 for 256.
    pub burst: u8,
    /// Cache attributes of accesses.
    pub cache: u8,
    /// Whether the descriptor may be run.
    pub valid: bool,
    /// The descriptor that is run next.
    pub next: Option<u8>,
    /// A field that is set and that trine gives no meaning: its name. It is not written.
    pub strange: Option<&'static str>,
    /// Locks.
    pub locks: Locks,
}

impl ShimDescriptor {
    /// A descriptor of `words` consecutive words at `address`, as published streams have them.
    #[must_use]
    pub const fn linear(words: u32, address: u64) -> Self {
        Self {
            words,
            address,
            packet: None,
            dimensions: [Dimension::UNUSED; 3],
            iteration: Dimension::UNUSED,
            burst: 2,
            cache: 2,
            valid: true,
            next: None,
            strange: None,
            locks: Locks::UNUSED,
        }
    }

    /// Reads a descriptor. Every bit counts for some field, be it `strange`.
    #[must_use]
    pub fn decode(words: [u32; DESCRIPTOR_WORDS]) -> Self {
        let [w0, w1, w2, w3, w4, w5, w6, w7] = words;
        let dimension =
            |word: u32| Dimension { step: field(word, 0, 20) + 1, wrap: field(word, 20, 10) };
        let iterates = field(w6, 0, 26) != 0;
        let iteration = Dimension { step: field(w6, 0, 20) + 1, wrap: field(w6, 20, 6) + 1 };
        let next = field(w7, 27, 4) as u8;
        let uses_next = field(w7, 26, 1) == 1;
        Self {
            words: w0,
            address: u64::from(w1) | u64::from(field(w2, 0, 16)) << 32,
            packet: (w2 >> 30 & 1 == 1).then(|| (field(w2, 16, 3) as u8, field(w2, 19, 5) as u8)),
            dimensions: [
                dimension(w3 & 0x3fff_ffff),
                dimension(w4 & 0x3fff_ffff),
                Dimension { step: field(w5, 0, 20) + 1, wrap: 0 },
            ],
            iteration: if iterates { iteration } else { Dimension::UNUSED },
            burst: field(w4, 30, 2) as u8,
            cache: field(w5, 24, 4) as u8,
            valid: field(w7, 25, 1) == 1,
            next: uses_next.then_some(next),
            strange: strange(words),
            locks: Locks {
                acquires: field(w7, 12, 1) == 1,
                acquire_lock: field(w7, 0, 4) as u8,
                acquire_value: signed_7(field(w7, 5, 7)),
                release_lock: field(w7, 13, 4) as u8,
                release_value: signed_7(field(w7, 18, 7)),
            },
        }
    }

    /// Returns the words. Fields that are wider than their bits are cut.
    #[must_use]
    pub fn encode(&self) -> [u32; DESCRIPTOR_WORDS] {
        let dimension =
            |at: Dimension| (at.step.wrapping_sub(1) & 0xf_ffff) | (at.wrap & 0x3ff) << 20;
        let [first, second, third] = self.dimensions;
        let packet = self
            .packet
            .map_or(0, |(kind, id)| 1 << 30 | u32::from(kind & 7) << 16 | u32::from(id & 31) << 19);
        let iteration = if self.iteration.is_unused() {
            0
        } else {
            (self.iteration.step.wrapping_sub(1) & 0xf_ffff)
                | (self.iteration.wrap.wrapping_sub(1) & 0x3f) << 20
        };
        let next = match self.next {
            Some(next) => 1 << 26 | u32::from(next & 15) << 27,
            None => 0,
        };
        let locks = self.locks;
        [
            self.words,
            self.address as u32,
            (self.address >> 32) as u32 & 0xffff | packet,
            dimension(first),
            dimension(second) | u32::from(self.burst & 3) << 30,
            (third.step.wrapping_sub(1) & 0xf_ffff) | u32::from(self.cache & 15) << 24,
            iteration,
            next | u32::from(self.valid) << 25
                | bits_7(locks.release_value) << 18
                | u32::from(locks.release_lock & 15) << 13
                | u32::from(locks.acquires) << 12
                | bits_7(locks.acquire_value) << 5
                | u32::from(locks.acquire_lock & 15),
        ]
    }
}

/// Names the first field of a shim descriptor that is set and has no meaning here.
fn strange(words: [u32; DESCRIPTOR_WORDS]) -> Option<&'static str> {
    let [_, _, w2, w3, _, w5, w6, w7] = words;
    let has_packet = w2 >> 30 & 1 == 1;
    let fields = [
        (w2 >> 31, "bit 31 of word 2"),
        (field(w2, 24, 6), "the number for transfers out of order"),
        (if has_packet { 0 } else { field(w2, 16, 8) }, "a packet header that is switched off"),
        (field(w3, 30, 2), "secure access"),
        (field(w5, 20, 4), "quality of service"),
        (field(w5, 28, 4), "a stream id of the IOMMU"),
        (field(w6, 26, 6), "the current iteration"),
        (if w7 >> 26 & 1 == 1 { 0 } else { field(w7, 27, 4) }, "a next descriptor that is off"),
        (field(w7, 31, 1), "suppression of the last word's mark"),
        (field(w7, 17, 1) | field(w7, 4, 1), "free bits of word 7"),
    ];
    fields.iter().find(|(value, _)| *value != 0).map(|(_, name)| *name)
}

/// A descriptor of a memory tile: a pattern of addresses in memory tiles.
///
/// Addresses are those that a tile sees: its own memory begins at word 0x20000, that of its left
/// neighbour at 0. Locks likewise: its own begin at 64.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryDescriptor {
    /// Words that one run moves; 0 for a descriptor that only handles locks.
    pub words: u32,
    /// The first word.
    pub base: u32,
    /// The innermost dimensions. The last has no wrap.
    pub dimensions: [Dimension; 4],
    /// The descriptor that is run next.
    pub next: Option<u8>,
    /// Locks.
    pub locks: Locks,
}

/// The first word of a memory tile's own memory, as its descriptors see it.
pub const OWN_MEMORY: u32 = 0x2_0000;
/// The first of a memory tile's own locks, as its descriptors see it.
pub const OWN_LOCKS: u8 = 64;

impl MemoryDescriptor {
    /// A descriptor of `words` consecutive words at `base` that handles no locks.
    #[must_use]
    pub const fn linear(words: u32, base: u32) -> Self {
        Self { words, base, dimensions: [Dimension::UNUSED; 4], next: None, locks: Locks::UNUSED }
    }

    /// Reads a descriptor.
    ///
    /// # Errors
    ///
    /// Returns the name of the first field that is set and that [`Self::encode`] does not write, or
    /// says that the descriptor is not valid.
    pub fn decode(words: [u32; DESCRIPTOR_WORDS]) -> Result<Self, &'static str> {
        let [w0, w1, w2, w3, w4, w5, w6, w7] = words;
        let uses_next = field(w1, 19, 1) == 1;
        let fields = [
            (field(w0, 17, 15), "a packet header"),
            (field(w1, 26, 6), "padding"),
            (if uses_next { 0 } else { field(w1, 20, 6) }, "a next descriptor that is off"),
            (field(w2, 31, 1), "suppression of the last word's mark"),
            (field(w2, 27, 4) | field(w3, 27, 5) | field(w4, 27, 4), "padding"),
            (field(w4, 31, 1), "compression"),
            (field(w5, 17, 15), "padding"),
            (w6, "an iteration"),
            (field(!w7, 31, 1), "no mark that it is valid"),
        ];
        if let Some((_, name)) = fields.iter().find(|(value, _)| *value != 0) {
            return Err(name);
        }
        let dimension =
            |word: u32| Dimension { step: field(word, 0, 17) + 1, wrap: field(word, 17, 10) };
        Ok(Self {
            words: field(w0, 0, 17),
            base: field(w1, 0, 19),
            dimensions: [
                dimension(w2),
                dimension(w3),
                dimension(w4),
                Dimension { step: field(w5, 0, 17) + 1, wrap: 0 },
            ],
            next: uses_next.then_some(field(w1, 20, 6) as u8),
            locks: Locks {
                acquires: field(w7, 15, 1) == 1,
                acquire_lock: field(w7, 0, 8) as u8,
                acquire_value: signed_7(field(w7, 8, 7)),
                release_lock: field(w7, 16, 8) as u8,
                release_value: signed_7(field(w7, 24, 7)),
            },
        })
    }

    /// Returns the words of a valid descriptor without packet, padding or iteration.
    #[must_use]
    pub fn encode(&self) -> [u32; DESCRIPTOR_WORDS] {
        let dimension =
            |at: Dimension| (at.step.wrapping_sub(1) & 0x1_ffff) | (at.wrap & 0x3ff) << 17;
        let next = self.next.map_or(0, |next| 1 << 19 | u32::from(next & 0x3f) << 20);
        let [first, second, third, fourth] = self.dimensions;
        let locks = self.locks;
        [
            self.words & 0x1_ffff,
            (self.base & 0x7_ffff) | next,
            dimension(first),
            dimension(second),
            dimension(third),
            fourth.step.wrapping_sub(1) & 0x1_ffff,
            0,
            1 << 31
                | bits_7(locks.release_value) << 24
                | u32::from(locks.release_lock) << 16
                | u32::from(locks.acquires) << 15
                | bits_7(locks.acquire_value) << 8
                | u32::from(locks.acquire_lock),
        ]
    }
}

/// Returns `bits` bits of `word` from `shift` up.
const fn field(word: u32, shift: u32, bits: u32) -> u32 {
    word >> shift & ((1 << bits) - 1)
}

/// Reads a number of 7 bits in two's complement.
const fn signed_7(bits: u32) -> i8 {
    ((bits as u8) << 1) as i8 >> 1
}

/// Writes a number of 7 bits in two's complement.
const fn bits_7(value: i8) -> u32 {
    value as u8 as u32 & 0x7f
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_strided_descriptor_has_the_words_of_the_format() {
        let mut descriptor = ShimDescriptor::linear(0x2000, 0x600);
        descriptor.packet = Some((0, 1));
        descriptor.dimensions[0].wrap = 0x80;
        descriptor.dimensions[1] = Dimension { step: 0x200, wrap: 0x40 };
        descriptor.next = Some(3);
        let words =
            [0x2000, 0x600, 0x4008_0000, 0x0800_0000, 0x8400_01ff, 0x0200_0000, 0, 0x1e00_0000];
        assert_eq!(descriptor.encode(), words);
        assert_eq!(ShimDescriptor::decode(words), descriptor);
    }

    #[test]
    fn locks_of_a_shim_descriptor() {
        let mut descriptor = ShimDescriptor::linear(1, 0);
        descriptor.locks = Locks {
            acquires: true,
            acquire_lock: 3,
            acquire_value: 0,
            release_lock: 2,
            release_value: 1,
        };
        assert_eq!(descriptor.encode()[7], 0x0204_5003);
        assert_eq!(ShimDescriptor::decode(descriptor.encode()), descriptor);
    }

    #[test]
    fn each_bit_of_a_shim_descriptor_is_seen() {
        let words = ShimDescriptor::linear(64, 0).encode();
        let plain = ShimDescriptor::decode(words);
        for bit in 0..256 {
            let mut changed = words;
            changed[bit / 32] ^= 1 << (bit % 32);
            assert_ne!(ShimDescriptor::decode(changed), plain, "bit {bit}");
        }
    }

    #[test]
    fn a_memory_descriptor_has_the_words_of_the_format() {
        let descriptor = MemoryDescriptor {
            words: 0x4000,
            base: OWN_MEMORY + 0x200,
            dimensions: [
                Dimension { step: 1, wrap: 0x40 },
                Dimension { step: 0x200, wrap: 0x20 },
                Dimension { step: 0x40, wrap: 0 },
                Dimension::UNUSED,
            ],
            next: Some(4),
            locks: Locks {
                acquires: true,
                acquire_lock: 67,
                acquire_value: -2,
                release_lock: 68,
                release_value: 2,
            },
        };
        let words = [0x4000, 0x004a_0200, 0x0080_0000, 0x0040_01ff, 0x3f, 0, 0, 0x8244_fe43];
        assert_eq!(descriptor.encode(), words);
        assert_eq!(MemoryDescriptor::decode(words), Ok(descriptor));
    }

    #[test]
    fn each_bit_of_a_memory_descriptor_is_seen() {
        let plain = MemoryDescriptor::linear(64, OWN_MEMORY);
        let words = plain.encode();
        for bit in 0..256 {
            let mut changed = words;
            changed[bit / 32] ^= 1 << (bit % 32);
            assert_ne!(MemoryDescriptor::decode(changed), Ok(plain), "bit {bit}");
        }
    }
}
