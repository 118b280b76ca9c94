//! How a program is started on a Vulkan driver, or on a layer between systems such as Wine.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A driver's environment: the variables to set, and the launcher of a test program.
#[derive(Clone, Debug, Default)]
pub(crate) struct Driver {
    /// Environment variables: (name, value).
    pub(crate) environment: Vec<(String, String)>,
    /// The command before the test program's path; empty if none is needed.
    pub(crate) launcher: Vec<String>,
    /// The package's version, if this program fetched it.
    pub(crate) version: String,
    /// Whether `version` is the pinned one.
    pub(crate) is_pinned: bool,
    /// The folder with the description of a validation layer that works with the driver.
    pub(crate) layers: Option<PathBuf>,
}

impl Driver {
    /// Returns the command for a program on this driver.
    pub(crate) fn command(&self, program: &Path) -> Command {
        let mut words = self.launcher.iter().map(OsStr::new).chain([program.as_os_str()]);
        let mut command = Command::new(words.next().unwrap_or(program.as_os_str()));
        command.args(words);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }
}
