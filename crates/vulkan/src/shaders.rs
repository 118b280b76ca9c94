//! The compiled shaders: `cargo xtask shaders` makes them from `shaders/*.comp`.

/// A compiled shader by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Shader(pub &'static str);

impl Shader {
    /// Returns its SPIR-V.
    ///
    /// # Panics
    /// If there is no shader of this name, which is a mistake in this crate.
    pub fn code(self) -> &'static [u8] {
        let found = SHADERS.iter().find(|(name, _)| *name == self.0);
        found.map_or_else(|| panic!("no shader {}", self.0), |(_, code)| *code)
    }

    /// Returns all shaders.
    pub fn all() -> impl Iterator<Item = Shader> {
        SHADERS.iter().map(|(name, _)| Shader(name))
    }
}

macro_rules! shaders {
    ($($name:literal),* $(,)?) => {
        const SHADERS: &[(&str, &[u8])] =
            &[$(($name, include_bytes!(concat!("../shaders/spv/", $name, ".spv")))),*];
    };
}

shaders![
    "attend",
    "attend_direct",
    "attend_matrix",
    "attend_tile",
    "attend_whole",
    "chain_probe",
    "choose",
    "clusters",
    "elements",
    "embed_bf16",
    "embed_f16",
    "embed_f32",
    "embed_q4_0",
    "embed_q4_k",
    "embed_q6_k",
    "embed_q8_0",
    "experts_bf16",
    "experts_direct_q4_0",
    "experts_direct_q4_k",
    "experts_direct_q6_k",
    "experts_direct_q8_0",
    "experts_f16",
    "experts_f32",
    "experts_matrix_q4_0",
    "experts_matrix_q4_k",
    "experts_matrix_q6_k",
    "experts_matrix_q8_0",
    "experts_q4_0",
    "experts_q4_k",
    "experts_q6_k",
    "experts_q8_0",
    "experts_route",
    "experts_router",
    "experts_sort",
    "fragment_probe",
    "heads",
    "matmul_direct_q4_0",
    "matmul_direct_q4_k",
    "matmul_direct_q6_k",
    "matmul_direct_q8_0",
    "matmul_dot_q4_0",
    "matmul_dot_q4_k",
    "matmul_dot_q6_k",
    "matmul_dot_q8_0",
    "matmul_float_bf16",
    "matmul_float_f16",
    "matmul_float_f32",
    "matmul_fragment_q4_0",
    "matmul_fragment_q4_k",
    "matmul_fragment_q6_k",
    "matmul_fragment_q8_0",
    "matmul_halves",
    "matmul_matrix_bf16",
    "matmul_matrix_f16",
    "matmul_matrix_q4_0",
    "matmul_matrix_q4_k",
    "matmul_matrix_q6_k",
    "matmul_matrix_q8_0",
    "matmul_resident_q4_0",
    "matmul_resident_q4_k",
    "matmul_resident_q6_k",
    "matmul_resident_q8_0",
    "matvec_bf16",
    "matvec_f16",
    "matvec_f32",
    "matvec_q4_0",
    "matvec_q4_k",
    "matvec_q6_k",
    "matvec_q8_0",
    "mix",
    "read",
    "route",
    "rows",
    "sample",
    "stream_q4_0",
    "stream_q4_k",
    "stream_q6_k",
    "stream_q8_0",
    "sum",
    "top",
];
