//! What to do where images need another model.

/// The model that is named then: a small one that is downloaded with a vision tower.
pub const SEEING: &str = "gemma3:4b";

/// Returns what to do.
pub fn other() -> String {
    format!("take a model that reads them: trine run {SEEING} --image FILE")
}
