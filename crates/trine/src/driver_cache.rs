//! The folder in which Mesa's drivers keep compiled kernels.
//!
//! Some versions, 22.3 among them, map an index in that folder and write to it. On a full disk such
//! a write ends the program with SIGBUS, so the cache is turned off where there is little room.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// The variable that turns the cache off; this and the places of the folder:
/// <https://docs.mesa3d.org/envvars.html>.
const DISABLE: &str = "MESA_SHADER_CACHE_DISABLE";
/// The folder's name where only its parent is named.
const NAME: &str = "mesa_shader_cache";
/// Room for the index, 1.3 MB, and for the kernels of a few models.
const ENOUGH_BYTES: u64 = 16 << 20;

/// Turns the cache off, unless the user has decided, if its disk has little room. Must be called
/// before other threads start. Returns the folder with too little room.
pub(crate) fn avoid_full_disk() -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name);
    let homes = [std::env::home_dir(), entered_home()];
    let folders = folders(variable, &homes);
    let full = full(variable(DISABLE).as_deref(), folders, trine_hub::available_bytes)?;
    // SAFETY: `app::main` calls this first, when no other thread could read the environment.
    unsafe { std::env::set_var(DISABLE, "true") };
    Some(full)
}

/// Returns a folder with too little room, unless the user has turned the cache on or off.
fn full(
    decided: Option<&OsStr>,
    folders: Vec<PathBuf>,
    available: impl Fn(&Path) -> Option<u64>,
) -> Option<PathBuf> {
    // Mesa takes an empty value as none.
    if decided.is_some_and(|value| !value.is_empty()) {
        return None;
    }
    let is_full = |folder: &PathBuf| available(folder).is_some_and(|free| free < ENOUGH_BYTES);
    folders.into_iter().find(is_full)
}

/// Returns the folders that Mesa may use, by these variables and the user's home folders.
fn folders(variable: impl Fn(&str) -> Option<OsString>, homes: &[Option<PathBuf>]) -> Vec<PathBuf> {
    let named = ["MESA_SHADER_CACHE_DIR", "MESA_GLSL_CACHE_DIR", "XDG_CACHE_HOME"];
    if let Some(parent) = named.into_iter().find_map(variable) {
        return vec![Path::new(&parent).join(NAME)];
    }
    // Versions differ in whether they heed HOME.
    homes.iter().flatten().map(|home| home.join(".cache").join(NAME)).collect()
}

/// Returns the home folder in the system's list of users, whatever HOME says.
#[cfg(target_os = "linux")]
fn entered_home() -> Option<PathBuf> {
    use std::ffi::CStr;
    use std::os::unix::ffi::OsStrExt;

    // SAFETY: the entry that `getpwuid` returns, and its texts, stay until the next call, and no
    // other thread makes one.
    let home = unsafe {
        let entry = libc::getpwuid(libc::getuid()).as_ref()?;
        if entry.pw_dir.is_null() {
            return None;
        }
        CStr::from_ptr(entry.pw_dir)
    };
    Some(PathBuf::from(OsStr::from_bytes(home.to_bytes())))
}

#[cfg(not(target_os = "linux"))]
fn entered_home() -> Option<PathBuf> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_is_where_mesa_looks_for_it() {
        let folders = |set: &[(&str, &str)], homes: &[&str]| {
            let value = |name: &str| {
                set.iter().find(|(other, _)| *other == name).map(|(_, value)| value.into())
            };
            let homes: Vec<_> = homes.iter().map(|home| Some(PathBuf::from(home))).collect();
            let found = folders(value, &homes);
            found.iter().map(|folder| folder.display().to_string()).collect::<Vec<_>>()
        };
        assert!(folders(&[], &[]).is_empty());
        let both = ["/h/.cache/mesa_shader_cache", "/p/.cache/mesa_shader_cache"];
        assert_eq!(folders(&[], &["/h", "/p"]), both);
        let cache = ("XDG_CACHE_HOME", "/x");
        assert_eq!(folders(&[cache], &["/h"]), ["/x/mesa_shader_cache"]);
        let old = ("MESA_GLSL_CACHE_DIR", "/g");
        assert_eq!(folders(&[cache, old], &["/h"]), ["/g/mesa_shader_cache"]);
        let own = ("MESA_SHADER_CACHE_DIR", "/m");
        assert_eq!(folders(&[cache, old, own], &["/h"]), ["/m/mesa_shader_cache"]);
    }

    #[test]
    fn only_a_disk_with_little_room_turns_the_cache_off() {
        let full = |decided: Option<&str>, free: Option<u64>| {
            let folders = vec![PathBuf::from("/roomy"), PathBuf::from("/x")];
            let available = |folder: &Path| match folder.ends_with("x") {
                true => free,
                false => Some(u64::MAX),
            };
            full(decided.map(OsStr::new), folders, available)
        };
        let found = Some(PathBuf::from("/x"));
        assert_eq!(full(None, Some(ENOUGH_BYTES - 1)), found);
        assert_eq!(full(Some(""), Some(0)), found);
        assert_eq!(full(None, Some(ENOUGH_BYTES)), None);
        assert_eq!(full(None, None), None);
        assert_eq!(full(Some("false"), Some(0)), None, "the user has decided");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn users_have_a_home_folder() {
        assert!(entered_home().is_none_or(|home| home.is_absolute()));
    }
}
