//! What the files of several formats share.

use super::planes::PlanesMut;

/// Packs a row whose blocks are a scale and `BYTES` - 2 bytes of codes, a group is four blocks.
/// `group` orders the codes of a group.
pub(super) fn pack_scaled<const BYTES: usize, const CODES: usize>(
    source: &[u8],
    planes: PlanesMut<'_>,
    padding: [u8; BYTES],
    group: fn(&[[u8; BYTES]; 4], &mut [u8; CODES]),
) {
    let (blocks, _) = source.as_chunks::<BYTES>();
    let (codes, _) = planes.codes.as_chunks_mut::<CODES>();
    let (scales, _) = planes.scales.as_chunks_mut::<8>();
    let (whole, rest) = blocks.as_chunks::<4>();
    let mut padded = [padding; 4];
    padded[..rest.len()].copy_from_slice(rest);
    let last = (!rest.is_empty()).then_some(&padded);
    for ((blocks, codes), scales) in whole.iter().chain(last).zip(codes).zip(scales) {
        let mut out = [0; CODES];
        group(blocks, &mut out);
        *codes = out;
        let mut out = [0; 8];
        for (out, block) in out.as_chunks_mut::<2>().0.iter_mut().zip(blocks) {
            *out = [block[0], block[1]];
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
