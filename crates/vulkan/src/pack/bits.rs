//! What the files of several formats share.

use super::planes::PlanesMut;

/// Packs a row of blocks that begin with their scale, four of which are a group. `CODES` and
/// `SCALES` are the bytes of a group in these planes, and `group` orders its codes.
pub(super) fn pack_scaled<const BYTES: usize, const CODES: usize, const SCALES: usize>(
    source: &[u8],
    planes: PlanesMut<'_>,
    padding: [u8; BYTES],
    group: fn(&[[u8; BYTES]; 4], &mut [u8; CODES]),
) {
    let (blocks, _) = source.as_chunks::<BYTES>();
    let (codes, _) = planes.codes.as_chunks_mut::<CODES>();
    let (scales, _) = planes.scales.as_chunks_mut::<SCALES>();
    let (whole, rest) = blocks.as_chunks::<4>();
    let mut padded = [padding; 4];
    padded[..rest.len()].copy_from_slice(rest);
    let last = (!rest.is_empty()).then_some(&padded);
    for ((blocks, codes), scales) in whole.iter().chain(last).zip(codes).zip(scales) {
        let mut out = [0; CODES];
        group(blocks, &mut out);
        *codes = out;
        let mut out = [0; SCALES];
        for (out, block) in out.chunks_exact_mut(SCALES / 4).zip(blocks) {
            out.copy_from_slice(&block[..SCALES / 4]);
        }
        *scales = out;
    }
}

/// Returns 16 bytes whose nibbles are the low (shift 0) or high (shift 4) nibbles of 16 bytes and
/// of 16 other bytes.
pub(super) fn nibbles(low: &[u8; 16], high: &[u8; 16], shift: u32) -> [u8; 16] {
    // Byte by byte: compilers make vectors of this, but not of shifts of 128 bits.
    std::array::from_fn(|at| (low[at] >> shift) & 15 | (high[at] >> shift) << 4)
}

/// Returns the words of fifth bits of eight runs: bit r of byte 4k + b of the source is bit k of
/// byte b of word r. So for each b, eight bytes of eight bits are transposed: first two by two,
/// then four by four, then all.
pub(super) fn fifth_bits(source: &[[u8; 16]]) -> [u8; 32] {
    let mut out = [0; 32];
    for byte in 0..4 {
        let bytes = std::array::from_fn(|k| source[k / 4][4 * (k % 4) + byte]);
        let mut bits = u64::from_le_bytes(bytes);
        for (distance, mask) in
            [(7, 0x00AA_00AA_00AA_00AA), (14, 0x0000_CCCC_0000_CCCC), (28, 0x0000_0000_F0F0_F0F0)]
        {
            let differ = (bits ^ bits >> distance) & mask;
            bits ^= differ ^ differ << distance;
        }
        for (run, bits) in bits.to_le_bytes().into_iter().enumerate() {
            out[4 * run + byte] = bits;
        }
    }
    out
}

/// Returns the pairs of bits of 16 elements of each of four runs, in one word each. Byte b of word
/// k of the source has the pairs of elements 4k + b, that of run r at bit 2r; byte b of word r of
/// the result has pair k at bit 2k. So the pairs at the same place of four words are transposed:
/// first two by two, then within these.
pub(super) fn pairs(source: &[u8; 16]) -> [u32; 4] {
    let bytes = source.as_chunks::<4>().0;
    let mut words: [u32; 4] = std::array::from_fn(|k| u32::from_le_bytes(bytes[k]));
    for (first, second, bits, mask) in [
        (0, 2, 4, 0x0F0F_0F0F),
        (1, 3, 4, 0x0F0F_0F0F),
        (0, 1, 2, 0x3333_3333),
        (2, 3, 2, 0x3333_3333),
    ] {
        // Exchanges the upper of the first with the lower of the second.
        let differ = (words[first] >> bits ^ words[second]) & mask;
        words[first] ^= differ << bits;
        words[second] ^= differ;
    }
    words
}

/// Returns a word of fifth bits whose bits (x >> k) & 0x01010101 are those of elements 4k.., from
/// one that has them in order.
pub(super) fn fifth_bits_in_order(bits: u32) -> u32 {
    let byte = |index: u32| {
        let mut every_fourth = bits >> index & 0x1111_1111;
        every_fourth = (every_fourth | every_fourth >> 3) & 0x0303_0303;
        every_fourth = (every_fourth | every_fourth >> 6) & 0x000F_000F;
        (every_fourth | every_fourth >> 12) & 0xFF
    };
    byte(0) | byte(1) << 8 | byte(2) << 16 | byte(3) << 24
}

/// Copies the codes of blocks that end with 16 bytes of them.
pub(super) fn last_codes<const BYTES: usize>(blocks: &[[u8; BYTES]; 4], out: &mut [u8; 64]) {
    for (block, out) in blocks.iter().zip(out.as_chunks_mut::<16>().0) {
        out.copy_from_slice(&block[BYTES - 16..]);
    }
}
