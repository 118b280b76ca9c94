//! The quantised formats, one file per family: how they lie in panels, and how kernels decode them.
//!
//! `docs/decisions/073-a-weight-format-is-a-page.md` says how one is added.

use trine_weights::DType;

use super::drive::{self, Job};
use super::layout::{Layout, Sections};
use super::panel::{Packed, Reader, Writer};
use super::simd::Simd;
use crate::isa::Isa;
use crate::quantize::QuantizedBlock;

pub(super) mod classic;
mod codebook;
mod k_high;
mod k_low;
mod k_mid;
mod tables;
mod ternary;

/// From the file's format to what `drive` runs for it, and its type here.
macro_rules! formats {
    ($($name:ident: $run:ident $format:ty,)*) => {
        fn sections(dtype: DType) -> Sections {
            match dtype {
                $(DType::$name => <$format>::SECTIONS,)*
                DType::F32 | DType::F16 | DType::BF16 => Sections::NONE,
            }
        }

        /// Packs block `index` of the file's row.
        pub(super) fn pack(writer: &mut Writer<'_>, index: usize, block: &[u8]) {
            match writer.layout.dtype {
                $(DType::$name => <$format>::pack(writer, index, block),)*
                DType::F32 | DType::F16 | DType::BF16 => unreachable!("not quantised"),
            }
        }

        /// Returns the code of an element of a block of 32.
        pub(super) fn code(reader: &Reader<'_>, block: usize, element: usize) -> i16 {
            match reader.layout.dtype {
                $(DType::$name => <$format>::code(reader, block, element),)*
                DType::F32 | DType::F16 | DType::BF16 => unreachable!("not quantised"),
            }
        }

        /// Returns the scale and the minimum of half `half` of a block.
        pub(super) fn scale(reader: &Reader<'_>, block: usize, half: usize) -> (f32, f32) {
            match reader.layout.dtype {
                $(DType::$name => <$format>::scale(reader, block, half),)*
                DType::F32 | DType::F16 | DType::BF16 => unreachable!("not quantised"),
            }
        }

        /// # Safety
        /// Same as [`drive::run_fused`].
        #[allow(unsafe_code, reason = "calls the kernels")]
        pub(super) unsafe fn run<S: Simd>(job: &Job<'_, QuantizedBlock>) {
            // SAFETY: the caller's promise.
            unsafe {
                match job.layout.dtype {
                    $(DType::$name => drive::$run::<S, $format>(job),)*
                    DType::F32 | DType::F16 | DType::BF16 => unreachable!("not quantised"),
                }
            }
        }
    };
}

formats! {
    Q4_0: run_cheap classic::Q4_0,
    Q8_0: run_cheap classic::Q8_0,
    Q4_1: run_costly classic::Q4_1,
    Q5_0: run_costly classic::Q5_0,
    Q5_1: run_costly classic::Q5_1,
    Q2K: run_costly k_low::Q2K,
    Q3K: run_costly k_low::Q3K,
    Q4K: run_costly k_mid::Q4K,
    Q5K: run_costly k_mid::Q5K,
    Q6K: run_costly k_high::Q6K,
    Iq4Nl: run_costly tables::Iq4Nl,
    Iq4Xs: run_costly tables::Iq4Xs,
    Mxfp4: run_costly tables::Mxfp4,
    Nvfp4: run_costly tables::Nvfp4,
    Iq1S: run_costly codebook::Iq1S,
    Iq1M: run_costly codebook::Iq1M,
    Iq2Xxs: run_costly codebook::Iq2Xxs,
    Iq2Xs: run_costly codebook::Iq2Xs,
    Iq2S: run_costly codebook::Iq2S,
    Iq3Xxs: run_costly codebook::Iq3Xxs,
    Iq3S: run_costly codebook::Iq3S,
    Tq1_0: run_costly ternary::Tq1_0,
    Tq2_0: run_costly ternary::Tq2_0,
}

/// Returns the layout of a matrix; `None` if its size overflows or a row is not whole blocks.
pub(super) fn layout(dtype: DType, rows: usize, columns: usize, isa: Isa) -> Option<Layout> {
    Layout::new(dtype, &sections(dtype), rows, columns, isa)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packing_grows_no_format_by_more_than_a_tenth() {
        for dtype in DType::ALL {
            for isa in [Isa::Avx2, Isa::Avx512Vnni] {
                let layout = layout(dtype, 1024, 2560, isa).unwrap();
                let packed = layout.panels() * layout.panel_bytes;
                let file = 1024 * dtype.row_bytes(2560).unwrap();
                assert!(packed <= file + file / 10, "{dtype} {isa:?}: {packed} from {file}");
                assert!(packed >= file, "{dtype} {isa:?}: {packed} from {file}");
            }
        }
    }

    #[test]
    fn impossible_sizes_are_refused() {
        assert!(layout(DType::Q4_0, usize::MAX / 2, 1 << 20, Isa::Avx2).is_none());
        assert!(layout(DType::Q4_0, 8, 33, Isa::Avx2).is_none());
        assert!(layout(DType::F32, usize::MAX / 4, 1 << 20, Isa::Scalar).is_none());
    }
}
