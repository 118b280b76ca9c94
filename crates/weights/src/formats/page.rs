//! What a format is.

use super::fit::Importance;

/// What a format is. `docs/decisions/073-a-weight-format-is-a-page.md` says how one is added.
pub(crate) struct Page {
    /// The name as llama.cpp spells it.
    pub(crate) name: &'static str,
    /// The ggml type id.
    pub(crate) ggml_id: u32,
    /// llama.cpp's number for a file that is mostly of this format (`enum llama_ftype`), if trine
    /// writes such files.
    pub(crate) file_type: Option<u32>,
    /// Elements of a block.
    pub(crate) elements: usize,
    /// Bytes of a block.
    pub(crate) bytes: usize,
    /// Where a block has numbers in half precision.
    pub(crate) halves: &'static [usize],
    /// The format for rows that are not whole blocks.
    pub(crate) fallback: Option<&'static Page>,
    /// Decodes whole blocks.
    pub(crate) decode: fn(&[u8], &mut [f32]),
    /// Encodes, if trine does.
    pub(crate) encoder: Option<Encoder>,
}

impl Page {
    /// Returns a format that is only decoded. `block` has its elements and bytes.
    pub(super) const fn new(
        name: &'static str,
        ggml_id: u32,
        block: (usize, usize),
        halves: &'static [usize],
        decode: fn(&[u8], &mut [f32]),
    ) -> Self {
        let (elements, bytes) = block;
        let (file_type, fallback, encoder) = (None, None, None);
        Self { name, ggml_id, file_type, elements, bytes, halves, fallback, decode, encoder }
    }
}

/// How floats become a format's bytes.
#[derive(Clone, Copy)]
pub(crate) struct Encoder {
    /// The largest magnitude that the format stores; for blocks, that a scale in half precision
    /// reaches.
    pub(crate) magnitude_max: f32,
    /// Encodes whole blocks. The second are the importances of the elements, if they are known, as
    /// many as there are elements.
    pub(crate) encode: fn(&[f32], Option<&[f32]>, &mut [u8]),
}

/// The largest number in half precision.
pub(super) const HALF_MAX: f32 = 65_504.0;

/// Decodes block by block.
pub(super) fn decode_each<const BYTES: usize, const ELEMENTS: usize>(
    bytes: &[u8],
    out: &mut [f32],
    decode: fn(&[u8; BYTES], &mut [f32; ELEMENTS]),
) {
    let (blocks, _) = bytes.as_chunks::<BYTES>();
    let (outs, _) = out.as_chunks_mut::<ELEMENTS>();
    for (block, out) in blocks.iter().zip(outs) {
        decode(block, out);
    }
}

/// Encodes block by block.
pub(super) fn encode_each<const BYTES: usize, const ELEMENTS: usize>(
    input: &[f32],
    importance: Option<&[f32]>,
    out: &mut [u8],
    encode: fn(&[f32; ELEMENTS], Importance<'_, ELEMENTS>, &mut [u8; BYTES]),
) {
    let (inputs, _) = input.as_chunks::<ELEMENTS>();
    let (blocks, _) = out.as_chunks_mut::<BYTES>();
    let importances = importance.map(|all| all.as_chunks::<ELEMENTS>().0);
    for (index, (input, block)) in inputs.iter().zip(blocks).enumerate() {
        encode(input, importances.and_then(|all| all.get(index)), block);
    }
}
