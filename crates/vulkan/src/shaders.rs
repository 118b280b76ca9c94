//! The compiled shaders: `cargo xtask shaders` makes them, and the list of them, from
//! `shaders/*.comp` and `shaders/variants.toml`.

/// A compiled shader by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Shader(pub &'static str);

const SHADERS: &[(&str, &[u8])] = &include!("../shaders/spv/list.inc");

impl Shader {
    /// Returns a kernel's shader for a format of weights, or `None` if it has none for it.
    pub(crate) fn of(kernel: &str, format: &str) -> Option<Self> {
        let suffix = |name: &'static str| name.strip_prefix(kernel)?.strip_prefix('_');
        Self::all().find(|shader| suffix(shader.0) == Some(format))
    }

    /// Returns the shader of a kernel that takes all formats of matrices.
    ///
    /// # Panics
    /// If the format is that of fragments, which only products of many rows take.
    pub(crate) fn of_matrix(kernel: &str, format: &str) -> Self {
        Self::of(kernel, format).unwrap_or_else(|| panic!("{kernel} of {format}"))
    }

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
