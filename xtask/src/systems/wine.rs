//! Wine with a separate folder for Windows' files, so that none of the user's files are read or
//! changed.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

use crate::driver::Driver;
use crate::programs;

/// The compiler and linker for Windows.
pub(super) const COMPILER: &str = "x86_64-w64-mingw32-gcc";
/// Starts a program for Windows.
pub(super) const LAUNCHER: &str = "wine";
/// Serves the programs of one folder, and can end them all.
const SERVER: &str = "wineserver";

/// Wine, ready to run programs. Dropping it ends everything that runs in its folder.
pub(super) struct Wine {
    /// How programs are started.
    pub(super) driver: Driver,
}

impl Wine {
    /// Makes the folder if there is none yet.
    ///
    /// # Errors
    /// Returns an error if Wine or mingw-w64's compiler fails.
    pub(super) fn prepare(root: &Path) -> anyhow::Result<Self> {
        let folder = root.join("target/wine");
        let prefix = folder.join("prefix");
        std::fs::create_dir_all(&prefix).with_context(|| folder.display().to_string())?;
        let library = random_source(root, &folder)?;
        let environment = [
            ("WINEPREFIX", prefix.display().to_string()),
            ("WINEDEBUG", "-all".to_owned()),
            // Keeps Wine from offering to install Mono and Gecko.
            ("WINEDLLOVERRIDES", "mscoree,mshtml=".to_owned()),
            // It shows no window.
            ("DISPLAY", String::new()),
            ("WINEPATH", format!("Z:{}", library.display().to_string().replace('/', "\\"))),
            // The place of the snapshots; there is no cargo to ask for it.
            ("INSTA_WORKSPACE_ROOT", root.display().to_string()),
        ];
        let wine = Self {
            driver: Driver {
                environment: environment.map(|(name, value)| (name.to_owned(), value)).into(),
                launcher: vec![LAUNCHER.to_owned()],
                ..Driver::default()
            },
        };
        programs::finish(wine.command(LAUNCHER).args(["wineboot", "--init"]))?;
        Ok(wine)
    }

    /// Returns the command for one of Wine's own programs.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.envs(self.driver.environment.iter().map(|(name, value)| (name, value)));
        command
    }
}

impl Drop for Wine {
    fn drop(&mut self) {
        // This fails if nothing runs, which does no harm.
        let _ = self.command(SERVER).arg("--kill").stderr(Stdio::null()).status();
    }
}

/// Builds a library that Wine before version 9 lacks and every Rust program needs, a source of
/// random numbers, and returns its folder.
fn random_source(root: &Path, folder: &Path) -> anyhow::Result<PathBuf> {
    let mut compiler = Command::new(COMPILER);
    compiler.args(["-shared", "-O1", "-o"]).arg(folder.join("bcryptprimitives.dll"));
    compiler.arg(root.join("tools/windows/bcryptprimitives.c")).arg("-ladvapi32");
    let output = compiler.output().context("cannot start mingw-w64's compiler")?;
    if !output.status.success() {
        bail!("{}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(folder.to_owned())
}
