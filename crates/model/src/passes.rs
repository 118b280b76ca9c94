//! Plans made of Plans: fused, narrowed, cut, joined, lent.

pub mod aside;
pub mod away;
pub mod cut;
pub mod drafts;
pub(crate) mod either;
pub mod fusion;
pub mod gather;
pub(crate) mod goals;
pub mod lend;
pub mod narrow;
pub(crate) mod renumber;
