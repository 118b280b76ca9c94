//! Products in a graph.

use super::values::{Ids, ValueId};
use crate::kernels::product::{Product, ProductInput, ProductOutput, Segment};

/// What a product multiplies.
pub(super) type Input = ProductInput<Ids>;

/// What happens to the results of a product.
pub(super) type Output = ProductOutput<Ids>;

/// The kernel of a product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProductKernel {
    /// For one row.
    OneRow,
    /// For few rows.
    Matvec,
    /// For more.
    Matmul,
}

/// A product, and the kernel that computes it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ProductWork {
    pub(super) kernel: ProductKernel,
    pub(super) product: Product<Ids>,
}

/// Returns that the results of one matrix with so many rows are written.
pub(super) fn whole(rows: usize, target: ValueId) -> Output {
    Output::segments(&[Segment { rows, target }])
}
