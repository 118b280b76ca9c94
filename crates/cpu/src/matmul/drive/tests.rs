#![allow(unsafe_code, reason = "calls the unsafe entry points, single-threaded")]

use super::*;
use crate::isa::Isa;
use trine_weights::DType;

/// Formats with shapes of short and long rows.
fn layouts() -> impl Iterator<Item = Layout> {
    [DType::Q4_0, DType::Q8_0, DType::Q4K, DType::Q6K].into_iter().flat_map(|dtype| {
        [1536, 6912, 21504].into_iter().flat_map(move |columns| {
            [Isa::Avx2, Isa::Avx512Vnni].map(|isa| {
                super::super::formats::layout(dtype, 64, columns, isa)
                    .expect("a layout of this size")
            })
        })
    })
}

/// Returns the offset of the codes of block `block`, which are in the last section.
fn codes(layout: &Layout, block: usize) -> usize {
    let start = layout.nibbles.max(layout.bytes);
    start + (layout.panel_bytes - start) * block / layout.blocks
}

#[test]
fn prefetches_are_ahead_of_the_codes_in_rows_of_any_length() {
    for layout in layouts() {
        let step = layout.panel_bytes.div_ceil(layout.blocks);
        for block in 0..layout.blocks {
            let wanted = prefetch_bytes(&layout) + block * step;
            let used = codes(&layout, block);
            assert!(wanted >= used + PREFETCH_BYTES, "{layout:?}: block {block}");
        }
    }
}

#[test]
fn a_pair_prefetches_itself_and_then_the_next_pair() {
    for layout in layouts() {
        let bytes = layout.panel_bytes;
        let prefetch = pair_prefetch(&layout, std::ptr::null(), &(0..layout.blocks), 0, 1);
        let step = prefetch.step;
        for block in 0..layout.blocks {
            let at = prefetch.pointer.addr() + block * step;
            if block < prefetch.turn {
                assert!(at < bytes + step, "{layout:?}: block {block} is of this panel");
            } else {
                // A panel further: the neighbour is the other one of this pair.
                assert!(at + step > bytes, "{layout:?}: block {block} is of the next pair");
            }
        }
        // Several tiles share the next pair's bytes among them, without a gap.
        let shares: Vec<_> = (0..3)
            .map(|index| pair_prefetch(&layout, std::ptr::null(), &(0..layout.blocks), index, 3))
            .collect();
        assert_eq!(shares[0].pointer.addr(), 2 * bytes);
        for pair in shares.windows(2) {
            let end = pair[0].pointer.addr() + layout.blocks * pair[0].step;
            assert_eq!(end, pair[1].pointer.addr());
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod pairs {
    use super::super::super::{PackedMatrix, Scratch, avx_vnni, avx2, avx512, formats};
    use super::*;
    use crate::quantize::{QuantizedRows, quantize_rows};
    use trine_weights::Tensor;

    /// Multiplies with tiles of one panel and of two, and compares the bits.
    fn compare<S: Simd, F: Format>(isa: Isa, dtype: DType) {
        if !isa.is_available() {
            return;
        }
        let (rows, columns, most) = (53, 1152, 70);
        let mut state = 1_u64;
        let mut byte = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // Keeps every f16 anywhere in a block small.
            (state >> 56) as u8 & 0x3b
        };
        let bytes = (0..rows * dtype.row_bytes(columns).unwrap()).map(|_| byte()).collect();
        let tensor = Tensor::from_owned("test", dtype, &[rows, columns], bytes).unwrap();
        let matrix = PackedMatrix::pack(&tensor, isa, 1).unwrap();
        let values: Vec<f32> =
            (0..most * columns).map(|index| ((index * 7919) % 997) as f32 / 500.0 - 1.0).collect();
        let per_row = QuantizedRows::blocks_per_row(columns);
        let mut blocks = vec![QuantizedBlock::default(); most * per_row];
        quantize_rows(isa, &values, columns, columns, &mut blocks);
        let mut scratch = Scratch::new().unwrap();
        for count in [1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16, 31, most] {
            let mut results = [vec![f32::NAN; rows * count], vec![f32::NAN; rows * count]];
            for (index, output) in results.iter_mut().enumerate() {
                let job = Job {
                    layout: &matrix.layout,
                    weights: matrix.storage.as_slice().as_ptr(),
                    panels: 0..matrix.panels(),
                    input: blocks.as_ptr(),
                    input_stride: per_row,
                    columns: count,
                    output: output.as_mut_ptr(),
                    output_stride: rows,
                    scratch: scratch.bytes.as_mut_slice().as_mut_ptr(),
                };
                // SAFETY: sizes fit, and the processor has the instruction set.
                unsafe {
                    if index == 0 {
                        run_fused::<S, F>(&job)
                    } else {
                        run_many::<S, F, F, true>(&job)
                    }
                }
            }
            assert_eq!(results[0], results[1], "{isa:?} {dtype}, {count} columns");
        }
    }

    #[test]
    fn two_panels_give_the_bits_of_one() {
        compare::<avx2::Avx2Kernel, formats::classic::Q4_0>(Isa::Avx2, DType::Q4_0);
        compare::<avx2::Avx2Kernel, formats::classic::Q8_0>(Isa::Avx2, DType::Q8_0);
        compare::<avx_vnni::AvxVnni, formats::classic::Q4_0>(Isa::AvxVnni, DType::Q4_0);
        compare::<avx_vnni::AvxVnni, formats::classic::Q8_0>(Isa::AvxVnni, DType::Q8_0);
        compare::<avx512::Avx512Kernel, formats::classic::Q4_0>(Isa::Avx512Vnni, DType::Q4_0);
        compare::<avx512::Avx512Kernel, formats::classic::Q8_0>(Isa::Avx512Vnni, DType::Q8_0);
    }
}
