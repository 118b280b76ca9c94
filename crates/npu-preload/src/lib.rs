//! A model of the NPU's kernel driver below an unmodified program.
//!
//! With this library in `LD_PRELOAD`, calls of the C library that concern an NPU go to
//! [`ModelSys`](trine_npu_model::ModelSys), the same model as in the tests of `trine-npu`;
//! all others go on. So a program is tried as it is shipped, its own system calls included.
//!
//! | variable | says |
//! |---|---|
//! | `TRINE_NPU_MODEL` | an empty folder, for what the model shows in `/sys`, `/proc` and `/dev`. Without it nothing is modelled |
//! | `TRINE_NPU_FAULTS` | what goes wrong, by names joined with commas: see `model::FAULTS` |
//!
//! Cache lines are flushed by an instruction that no library can catch. A mapped buffer is one
//! memory here, for the process and for the device. That a flush is missing is found by the tests
//! of `trine-npu`, where each sees its own copy.
//!
//! Never run on silicon: this is the model, and says nothing about one.

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod hooks;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod model;
