//! Kernels over rows of floats: norms, rotary embedding, GELU, conversions.

pub(crate) mod dispatch;
pub(crate) mod lanes;
pub(crate) mod math;
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;
mod rope;
mod rows;
#[cfg(target_arch = "x86_64")]
pub(crate) mod x86;

#[cfg(test)]
mod tests;

use half::f16;

use crate::isa::Isa;
use dispatch::dispatch_table;
pub use rope::RopeTable;

dispatch_table! {
    rows;
    fn rms_norm(x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) -> bool;
    fn layer_norm(x: &[f32], weight: &[f32], bias: &[f32], epsilon: f32, out: &mut [f32]) -> bool;
    fn rms_norm_plain(x: &mut [f32], epsilon: f32) -> bool;
    fn rms_norm_add(
        delta: &[f32], weight: &[f32], epsilon: f32, factor: f32, target: &mut [f32],
    ) -> bool;
    fn head_norm_rope(
        heads: &mut [f32], weight: &[f32], epsilon: f32, cosines: &[f32], sines: &[f32],
    ) -> bool;
    fn geglu(gate: &[f32], up: &[f32], out: &mut [f32]);
    fn gelu(x: &mut [f32]);
    fn softcap(x: &mut [f32], cap: f32);
    fn tanh(x: &mut [f32]);
    fn exp(x: &mut [f32]);
    fn add(target: &mut [f32], delta: &[f32]);
    fn multiply(target: &mut [f32], factor: &[f32]);
    fn scale(target: &mut [f32], factor: f32);
    fn product(a: &[f32], b: &[f32], out: &mut [f32]);
    fn combine(terms: &[(f32, &[f32])], out: &mut [f32]);
    fn rescale(x: &mut [f32], like: &[f32], floor: f32) -> bool;
    fn cutoff(x: &mut [f32], deviations: f32) -> bool;
    fn stream(x: &[f32]) -> f32;
    fn widen_f16(source: &[f16], target: &mut [f32]);
}

/// The row kernels for one instruction set.
///
/// Every method works on one row (or any run of elements, where elements are independent), so that
/// the caller can split rows among threads. The operands of one call must have equal lengths, else
/// the method panics. NaN is passed on unless stated otherwise.
///
/// Norms, and what else sums over a row, return whether the sum is finite: it is, unless an element
/// is not, because a sum that overflows f32 is taken once more in f64. Without such a sum the whole
/// row becomes NaN.
#[derive(Clone, Copy)]
pub struct VectorKernels {
    isa: Isa,
    table: &'static Table,
}

impl std::fmt::Debug for VectorKernels {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "VectorKernels({:?})", self.isa)
    }
}

/// Calls an entry of the table.
macro_rules! call {
    ($self:ident.$name:ident($($argument:expr),*)) => {
        // SAFETY: `for_isa` handed out the table only because the processor has its instructions.
        unsafe { ($self.table.$name)($($argument),*) }
    };
}

impl VectorKernels {
    /// Returns the kernels for `isa`, or `None` if the processor lacks it.
    pub fn for_isa(isa: Isa) -> Option<Self> {
        Table::for_isa(isa).map(|table| VectorKernels { isa, table })
    }

    /// The instruction set in use.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// `out = x / sqrt(mean(x^2) + epsilon) * weight`.
    pub fn rms_norm(&self, x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) -> bool {
        call!(self.rms_norm(x, weight, epsilon, out))
    }

    /// `out = (x - mean) / sqrt(variance + epsilon) * weight + bias`, with the variance of the
    /// whole row.
    pub fn layer_norm(
        &self,
        x: &[f32],
        weight: &[f32],
        bias: &[f32],
        epsilon: f32,
        out: &mut [f32],
    ) -> bool {
        call!(self.layer_norm(x, weight, bias, epsilon, out))
    }

    /// `x = x / sqrt(mean(x^2) + epsilon)`: the norm without a weight (Gemma 3n's values).
    pub fn rms_norm_plain(&self, x: &mut [f32], epsilon: f32) -> bool {
        call!(self.rms_norm_plain(x, epsilon))
    }

    /// `target = (target + delta / sqrt(mean(delta^2) + epsilon) * weight) * factor`: Gemma's norm
    /// after a branch, together with the addition to its residual.
    pub fn rms_norm_add(
        &self,
        delta: &[f32],
        weight: &[f32],
        epsilon: f32,
        factor: f32,
        target: &mut [f32],
    ) -> bool {
        call!(self.rms_norm_add(delta, weight, epsilon, factor, target))
    }

    /// Norms each head and rotates it by its position's angles, in place.
    ///
    /// `heads`: (count, head_dim); `weight`: head_dim, shared by all heads; `cosines` and `sines`:
    /// head_dim / 2 each, from [`RopeTable::fill`]. Element `j` is paired with `j + head_dim / 2`.
    pub fn head_norm_rope(
        &self,
        heads: &mut [f32],
        weight: &[f32],
        epsilon: f32,
        cosines: &[f32],
        sines: &[f32],
    ) -> bool {
        call!(self.head_norm_rope(heads, weight, epsilon, cosines, sines))
    }

    /// `out = gelu(gate) * up` with GELU in its tanh form, whose absolute error is at most 1e-6 on
    /// [-20, 20].
    pub fn geglu(&self, gate: &[f32], up: &[f32], out: &mut [f32]) {
        call!(self.geglu(gate, up, out))
    }

    /// `x = gelu(x)`, tanh form. Negative infinity becomes NaN.
    pub fn gelu(&self, x: &mut [f32]) {
        call!(self.gelu(x))
    }

    /// `x = cap * tanh(x / cap)`; `cap` is positive. An infinity becomes NaN.
    pub fn softcap(&self, x: &mut [f32], cap: f32) {
        call!(self.softcap(x, cap))
    }

    /// `x = tanh(x)`, relative error at most 2.5e-7.
    pub fn tanh(&self, x: &mut [f32]) {
        call!(self.tanh(x))
    }

    /// `x = e^x`, relative error at most 2e-7; underflows to 0, overflows to infinity.
    pub fn exp(&self, x: &mut [f32]) {
        call!(self.exp(x))
    }

    /// `target += delta`.
    pub fn add(&self, target: &mut [f32], delta: &[f32]) {
        call!(self.add(target, delta))
    }

    /// `target *= factor`, element by element.
    pub fn multiply(&self, target: &mut [f32], factor: &[f32]) {
        call!(self.multiply(target, factor))
    }

    /// `target *= factor`.
    pub fn scale(&self, target: &mut [f32], factor: f32) {
        call!(self.scale(target, factor))
    }

    /// `out = a * b`, element by element.
    pub fn product(&self, a: &[f32], b: &[f32], out: &mut [f32]) {
        call!(self.product(a, b, out))
    }

    /// `out = sum of factor * values` over the terms, of which there are from 1 to 5.
    pub fn combine(&self, terms: &[(f32, &[f32])], out: &mut [f32]) {
        call!(self.combine(terms, out))
    }

    /// `x *= sqrt(mean(like^2) / max(mean(x^2), floor))`: the row gets another's magnitude.
    pub fn rescale(&self, x: &mut [f32], like: &[f32], floor: f32) -> bool {
        call!(self.rescale(x, like, floor))
    }

    /// `x = max(x - (mean + deviations * std), 0)` with the standard deviation of the whole row. A
    /// row with a NaN becomes NaN.
    pub fn cutoff(&self, x: &mut [f32], deviations: f32) -> bool {
        call!(self.cutoff(x, deviations))
    }

    /// The sum, as fast as memory gives the elements: eight wide loads are added to eight sums,
    /// each in f32.
    pub fn stream(&self, x: &[f32]) -> f32 {
        call!(self.stream(x))
    }

    /// Widens halves to floats (exact).
    pub fn widen_f16(&self, source: &[f16], target: &mut [f32]) {
        call!(self.widen_f16(source, target))
    }
}
