//! The kernels: for each, its arguments, its choices and the memory that it touches.

pub mod elements;
pub mod operand;
pub mod rows;
