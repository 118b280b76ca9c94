//! What the kernels' Rust side has to know of a format.

use trine_weights::DType;

use super::magnitudes::Magnitudes;
use super::planes::{PlaneBytes, PlanesMut};

/// What a format is on the device. `docs/decisions/073-a-weight-format-is-a-page.md` says how one
/// is added.
pub(super) struct Page {
    /// Its part of the names of shaders.
    pub(super) name: &'static str,
    /// The file's format.
    pub(super) dtype: DType,
    /// Elements of a unit: what one load of codes of an invocation holds (`formats.glsl`).
    pub(super) unit: u32,
    /// Whether a product takes the sums of activations, because a minimum is subtracted.
    pub(super) has_minimum: bool,
    /// Whether unpacking takes so many registers that an integrated GPU multiplies more than 4 rows
    /// of activations with two rows of the matrix at a time (`docs/benchmarks/gpu-kernels.md`).
    pub(super) is_wide: bool,
    /// Bytes of each plane in a group of 128 elements; of `supers`, in two groups.
    pub(super) group: PlaneBytes,
    /// Packs one row.
    pub(super) pack: fn(&[u8], PlanesMut<'_>),
    /// Finds the largest magnitude that each block of a row in the file's format may have.
    pub(super) magnitudes: fn(&mut Magnitudes, &[u8]),
}
