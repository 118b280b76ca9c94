//! The kernels: for each, its arguments, its choices and the memory that it touches.

pub mod elements;
pub mod embed;
pub mod matvec;
pub mod operand;
pub mod rows;
