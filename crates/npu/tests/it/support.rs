//! What the tests share.

use trine_npu_model::xclbin_of;

/// An xclbin of five columns whose kernel has `buffers` buffers, and no PDI.
pub(crate) fn xclbin(buffers: usize) -> Vec<u8> {
    xclbin_of(buffers, None, 0)
}
