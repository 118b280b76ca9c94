//! The demonstration model inside the program.

/// The name under which it is asked for.
pub(crate) const NAME: &str = "demo";

/// The GGUF file of the model.
static MODEL: &[u8] =
    include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../assets/demo.gguf"));

/// The GGUF file's bytes.
pub(crate) fn model() -> &'static [u8] {
    MODEL
}
