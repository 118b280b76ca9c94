//! Warnings about files of the store, each given once.
//!
//! The store is read again for every requested name, so a problem with a file would otherwise be
//! reported each time.

use std::collections::HashSet;
use std::fmt::Display;
use std::sync::{LazyLock, Mutex, PoisonError};

/// The most warnings that are remembered. After that all are forgotten, so that a lasting problem
/// is reported again from time to time.
const MOST: usize = 1024;

static TOLD: LazyLock<Mutex<HashSet<String>>> = LazyLock::new(Mutex::default);

/// Gives a warning unless it has been given before.
pub(crate) fn warn_once(warning: impl Display) {
    let warning = warning.to_string();
    if is_new(&mut TOLD.lock().unwrap_or_else(PoisonError::into_inner), &warning) {
        tracing::warn!("{warning}");
    }
}

fn is_new(told: &mut HashSet<String>, warning: &str) -> bool {
    if told.contains(warning) {
        return false;
    }
    if told.len() >= MOST {
        told.clear();
    }
    told.insert(warning.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_warning_is_new_once_and_memory_is_bounded() {
        let mut told = HashSet::new();
        assert!(is_new(&mut told, "a"));
        assert!(!is_new(&mut told, "a"));
        for index in 0..5000 {
            assert!(is_new(&mut told, &format!("b{index}")));
            assert!(told.len() <= MOST);
        }
        assert!(is_new(&mut told, "a"));
    }
}
