//! SIMD kernels and thread pool: runs Plans on the CPU
