//! The kernels whose streams are generated.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A family of kernels: a program for the cores, and streams that it takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// `a8w8acc32`.
    Int8,
    /// `a16fw4acc32f`.
    Int4,
}

impl Family {
    /// All families.
    pub const ALL: [Self; 2] = [Self::Int8, Self::Int4];

    /// Returns the name that AMD has given it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Int8 => "a8w8acc32",
            Self::Int4 => "a16fw4acc32f",
        }
    }

    /// Returns the name of the file in which AMD published it.
    #[must_use]
    pub const fn file(self) -> &'static str {
        match self {
            Self::Int8 => "gemm_4x4_a8w8acc32.xclbin",
            Self::Int4 => "gemm_4x4_a16fw4acc32f.xclbin",
        }
    }

    /// Returns whether a command of trine's uses its kernels yet.
    #[must_use]
    pub const fn is_used(self) -> bool {
        matches!(self, Self::Int8)
    }

    /// Returns the SHA-256 of its cores' program: the one PDI in `gemm_4x4_a8w8acc32.xclbin` and in
    /// `gemm_4x4_a16fw4acc32f.xclbin` of `amd/RyzenAI-SW` at 2a3c4afe.
    #[must_use]
    pub const fn pdi_sha256(self) -> &'static str {
        match self {
            Self::Int8 => "eade7b019b79ecf8a299b5023701ae64ed35bcb56148248b4077e76ba679ed81",
            Self::Int4 => "1cb571eb3a0620b5275059f0f5d90ba0a626d5dce79f66befdb5487d34f4e2a2",
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A kernel and the shape of a product on it: `C[m, n] = A[m, k] W[k, n]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "family", rename_all = "snake_case", deny_unknown_fields)]
pub enum Kernel {
    /// `a8w8acc32`: A and W of 8 bits, C of 32 bits, whole numbers.
    Int8 {
        /// Rows of A.
        m: u32,
        /// Columns of A.
        k: u32,
        /// Columns of C.
        n: u32,
    },
    /// `a16fw4acc32f`: A in bf16, W in 4 bits with a scale for each group, C in f32.
    Int4 {
        /// Rows of A.
        m: u32,
        /// Columns of A.
        k: u32,
        /// Columns of C.
        n: u32,
        /// Weights that share a scale.
        group: u32,
    },
}

impl Kernel {
    /// Returns all kernels and shapes for which a stream is generated.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let int8 = [1, 8, 16, 32, 64].into_iter().flat_map(|m| {
            [(2048, 2048), (2048, 8192), (8192, 2048)].map(|(k, n)| Self::Int8 { m, k, n })
        });
        let int4 = [32, 128].into_iter().flat_map(|group| {
            [1, 8, 32].into_iter().flat_map(move |m| {
                [(4096, 4096), (4096, 12288), (4096, 32768), (11008, 4096)]
                    .map(|(k, n)| Self::Int4 { m, k, n, group })
            })
        });
        int8.chain(int4).collect()
    }
}

impl Kernel {
    /// Returns the family, whose program the cores have to run.
    #[must_use]
    pub const fn family(self) -> Family {
        match self {
            Self::Int8 { .. } => Family::Int8,
            Self::Int4 { .. } => Family::Int4,
        }
    }

    /// Returns `m`, `k` and `n`.
    #[must_use]
    pub const fn shape(self) -> (u32, u32, u32) {
        match self {
            Self::Int8 { m, k, n } | Self::Int4 { m, k, n, .. } => (m, k, n),
        }
    }

    /// Returns the types of A, W and C, as manifests have them.
    #[must_use]
    pub const fn types(&self) -> [&'static str; 3] {
        match self {
            Self::Int8 { .. } => ["i8", "i8", "i32"],
            Self::Int4 { .. } => ["bf16", "i4", "f32"],
        }
    }

    /// Returns the kernel and shape of a stream that is named as AMD names them: the family and the
    /// numbers, joined by `_`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::all().into_iter().find(|kernel| kernel.to_string() == name)
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Int8 { m, k, n } => write!(f, "{}_{m}_{k}_{n}", self.family()),
            Self::Int4 { m, k, n, group } => write!(f, "{}_{m}_{k}_{n}_{group}", self.family()),
        }
    }
}
