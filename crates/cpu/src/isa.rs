//! Instruction sets that the kernels are written for, and which of them this processor has.

/// An instruction set with kernels of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Isa {
    /// Portable Rust: runs everywhere, and is the yardstick for the others.
    Scalar,
    /// x86-64 with AVX2, FMA and F16C (2013 and later).
    Avx2,
    /// The same with AVX-VNNI (Alder Lake, Zen 5 and later).
    AvxVnni,
    /// x86-64 with AVX-512 F, BW, DQ, VL and VNNI (Zen 4, Ice Lake and later).
    Avx512Vnni,
    /// 64-bit ARM with NEON.
    Neon,
    /// The same with the dot products of ARMv8.2 (2018 and later, all of ARMv8.4).
    NeonDot,
}

impl Isa {
    /// Returns the best instruction set of this processor.
    pub fn detect() -> Isa {
        [Isa::Avx512Vnni, Isa::AvxVnni, Isa::Avx2, Isa::NeonDot, Isa::Neon]
            .into_iter()
            .find(|isa| isa.is_available())
            .unwrap_or(Isa::Scalar)
    }

    /// Returns every instruction set that this processor can run, the portable one first.
    pub fn available() -> Vec<Isa> {
        [Isa::Scalar, Isa::Avx2, Isa::AvxVnni, Isa::Avx512Vnni, Isa::Neon, Isa::NeonDot]
            .into_iter()
            .filter(|isa| isa.is_available())
            .collect()
    }

    /// Returns whether this processor, and the operating system on it, can run the instruction set.
    pub fn is_available(self) -> bool {
        match self {
            Isa::Scalar => true,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => has_avx2(),
            #[cfg(target_arch = "x86_64")]
            Isa::AvxVnni => has_avx2() && is_x86_feature_detected!("avxvnni"),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Vnni => has_avx512(),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => true,
            #[cfg(target_arch = "aarch64")]
            Isa::NeonDot => std::arch::is_aarch64_feature_detected!("dotprod"),
            #[allow(unreachable_patterns)]
            _ => false,
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c")
}

#[cfg(target_arch = "x86_64")]
fn has_avx512() -> bool {
    has_avx2()
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512vnni")
}

/// Returns whether the processor is one of Intel's, whose kernels are bound by other things than
/// AMD's with the same instructions: only AMD's have SSE4a.
#[cfg(target_arch = "x86_64")]
pub(crate) fn is_intel() -> bool {
    !is_x86_feature_detected!("sse4a")
}
