//! The folder in which Mesa's drivers keep compiled kernels.
//!
//! Those drivers map an index in that folder and write to it. On a full disk such a write ends the
//! program with SIGBUS, so the cache is turned off where there is little room.

use std::ffi::OsString;
use std::path::PathBuf;

/// The variable that turns the cache off; this and the places of the folder:
/// <https://docs.mesa3d.org/envvars.html>.
const DISABLE: &str = "MESA_SHADER_CACHE_DISABLE";
/// Room for the index, 1.3 MB, and for the kernels of a few models.
const ENOUGH_BYTES: u64 = 16 << 20;

/// Turns the cache off, unless the user has decided, if its disk has little room. Must be called
/// before other threads start.
pub(crate) fn avoid_full_disk() {
    if std::env::var_os(DISABLE).is_some() {
        return;
    }
    let free =
        folder(|name| std::env::var_os(name)).and_then(|folder| trine_hub::available(&folder));
    if free.is_some_and(|free| free < ENOUGH_BYTES) {
        // SAFETY: no other thread runs that could read the environment.
        unsafe { std::env::set_var(DISABLE, "true") };
    }
}

/// Returns the folder, whose place these variables determine.
fn folder(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let set = |name| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set("MESA_SHADER_CACHE_DIR")
        .or_else(|| set("XDG_CACHE_HOME"))
        .or_else(|| set("HOME").map(|home| home.join(".cache")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_is_where_mesa_looks_for_it() {
        let folder = |set: &[(&str, &str)]| {
            let value = |name: &str| {
                set.iter().find(|(other, _)| *other == name).map(|(_, value)| value.into())
            };
            folder(value).map(|folder| folder.display().to_string())
        };
        assert_eq!(folder(&[]), None);
        assert_eq!(folder(&[("HOME", "/h")]).as_deref(), Some("/h/.cache"));
        let both = [("HOME", "/h"), ("XDG_CACHE_HOME", "/x")];
        assert_eq!(folder(&both).as_deref(), Some("/x"));
        let empty = [("HOME", "/h"), ("XDG_CACHE_HOME", "")];
        assert_eq!(folder(&empty).as_deref(), Some("/h/.cache"));
        let own = [("MESA_SHADER_CACHE_DIR", "/m"), ("XDG_CACHE_HOME", "/x")];
        assert_eq!(folder(&own).as_deref(), Some("/m"));
    }
}
