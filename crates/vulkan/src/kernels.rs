//! The kernels: for each, its arguments, its shapes and the memory that it touches.

pub mod attention;
pub mod choose;
pub mod elements;
pub mod embed;
pub mod experts;
pub mod handles;
pub mod heads;
pub mod limits;
pub mod matmul;
pub mod matvec;
pub mod mix;
pub mod one_row;
pub mod operand;
pub mod product;
pub mod read;
pub mod route;
pub mod rows;
pub mod sample;
pub mod sum;
pub mod top;
