//! The formats: what the bytes of their blocks mean, and how floats become bytes.
//!
//! One file per family: [`floats`] F32 F16 BF16, `classic` Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 (32
//! elements), `k_low` Q2_K Q3_K, `k_mid` Q4_K Q5_K, `k_high` Q6_K (256 elements), `tables` IQ4_NL
//! IQ4_XS MXFP4 NVFP4, [`codebook`] IQ2 IQ3 IQ1, [`ternary`] TQ1_0 TQ2_0. The layouts are ggml's
//! (<https://github.com/ggml-org/llama.cpp/blob/master/ggml/src/ggml-common.h>), stated at the top
//! of each file. Nibble order: unless a file says otherwise, the low nibbles of a group of bytes
//! are the first half of its elements and the high nibbles the second half.

pub(crate) mod classic;
pub mod codebook;
mod fit;
pub(crate) mod floats;
mod halves;
pub(crate) mod k_high;
pub(crate) mod k_low;
pub(crate) mod k_mid;
pub(crate) mod page;
mod supers;
pub(crate) mod tables;
pub mod ternary;
