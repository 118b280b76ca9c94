//! Streams for matrix products on AMD's published kernels for XDNA1.
//!
//! A stream is built from the shape: buffers in memory tiles, the descriptors and locks that move
//! blocks through them, and the tasks that start them. Streams are in canonical form
//! ([`Transaction::canonical`]) and equal those that AMD published for the same shapes in that
//! form; only those shapes are generated. Larger products are cut into them.

mod builder;
mod int4;
mod int8;

use self::builder::{COLUMNS, WORKING_COLUMNS};
use crate::contract::{Access, Buffer, Contract};
pub use crate::kernel::{Family, Kernel};
use crate::layout::PARAMETER_BYTES;
use crate::txn::Transaction;

/// Returns the stream of a kernel and shape.
///
/// # Errors
///
/// Returns an error for a shape that AMD has published no stream for.
pub fn stream(kernel: Kernel) -> Result<Transaction, String> {
    check(kernel)?;
    Ok(match kernel {
        Kernel::Int8 { m, k, n } => int8::stream(m, k, n),
        Kernel::Int4 { m, k, n, group } => int4::stream(m, k, n, group),
    })
}

/// Returns what the stream of a kernel and shape does with the kernel's buffers: 0 is C, 1 is A
/// with the kernel's parameters after it, 2 is W.
///
/// # Errors
///
/// Returns an error for a shape that AMD has published no stream for.
pub fn contract(kernel: Kernel) -> Result<Contract, String> {
    check(kernel)?;
    let (result, activations, weights, access) = match kernel {
        Kernel::Int8 { m, k, n } => {
            let activations = u64::from(m) * u64::from(k) + PARAMETER_BYTES as u64;
            let result = u64::from(m) * u64::from(n) * 4;
            (result, activations, u64::from(k) * u64::from(n), [Access::ReadTogether(1); 2])
        }
        Kernel::Int4 { m, k, n, group } => {
            let passes = m.div_ceil(int4::ROWS);
            let each = Access::ReadByEach { columns: WORKING_COLUMNS, times: 1 };
            let activations = u64::from(m) * u64::from(k) * 2 + int4::parameter_bytes(m, group);
            let result = u64::from(m) * u64::from(n) * 4;
            let weights = int4::weight_bytes(k, n, group);
            (result, activations, weights, [each, Access::ReadTogether(passes)])
        }
    };
    let buffer = |argument, name: &str, bytes, access| Buffer {
        argument,
        name: name.to_owned(),
        bytes,
        access,
    };
    Ok(Contract {
        columns: COLUMNS,
        start_column: 0,
        // Five buffers and one for the host.
        slots: 6,
        buffers: vec![
            buffer(0, "C", result, Access::WriteOnce),
            buffer(1, "A", activations, access[0]),
            buffer(2, "W", weights, access[1]),
        ],
        kernel: Some(kernel),
    })
}

fn check(kernel: Kernel) -> Result<(), String> {
    if Kernel::all().contains(&kernel) {
        return Ok(());
    }
    Err(format!(
        "{kernel} is no shape with a published stream; cut the product into those that are"
    ))
}
