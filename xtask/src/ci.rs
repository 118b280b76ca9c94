//! What has to pass before a change lands.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, bail};

/// The checks, cheapest first: (name, arguments of cargo).
const CHECKS: [(&str, &[&str]); 3] = [
    ("formatting", &["fmt", "--all", "--check"]),
    ("lints", &["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"]),
    ("tests", &["test", "--workspace", "--locked"]),
];

/// Runs every check and stops at the first that fails.
pub(crate) fn run(root: &Path) -> anyhow::Result<()> {
    crate::tidy::run(root)?;
    for (name, arguments) in CHECKS {
        eprintln!("== {name}: cargo {}", arguments.join(" "));
        let start = Instant::now();
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let status = Command::new(cargo)
            .args(arguments)
            .current_dir(root)
            .status()
            .with_context(|| format!("cannot start cargo for {name}"))?;
        if !status.success() {
            bail!("{name} failed; repeat it alone with: cargo {}", arguments.join(" "));
        }
        eprintln!("== {name}: passed in {:.0} s", start.elapsed().as_secs_f64());
    }
    Ok(())
}
