//! The notes of a release, from `packaging/release-notes.md`.

use std::path::Path;

use anyhow::{Context, ensure};

use super::release::Release;

pub(super) const NAME: &str = "release-notes.md";
/// The last line of the template is for those who edit it.
const FOR_EDITORS: &str = "\nDelete a line when it stops being true";

/// Fills in the version and the addresses.
pub(super) fn write(root: &Path, release: &Release) -> anyhow::Result<String> {
    let path = root.join("packaging").join(NAME);
    let template = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let (text, _) = template.split_once(FOR_EDITORS).unwrap_or((&template, ""));
    let folder = release.download("");
    let text = text
        .replace("@VERSION@", &release.version)
        .replace("@DOWNLOAD@", folder.trim_end_matches('/'))
        .replace("@IMAGE@", &image(release));
    ensure!(!text.contains('@'), "{} has a placeholder that is not known", path.display());
    Ok(text)
}

/// Returns the name of the container image in GitHub's registry, which has small letters only.
pub(super) fn image(release: &Release) -> String {
    format!("ghcr.io/{}/trine", release.address.owner().to_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_say_what_has_never_run_and_how_to_install() {
        let notes = write(&crate::root(), &Release::example()).unwrap();
        for said in [
            "trine_1.2.3_amd64.deb",
            "https://git.example/some-one/trine/releases/download/v1.2.3/install.sh",
            "ghcr.io/some-one/trine:1.2.3",
            "## What has never run",
        ] {
            assert!(notes.contains(said), "{said}: {notes}");
        }
        for never in ["NPU", "Windows", "macOS", "Radeon", "Gemma 4 files"] {
            assert!(notes.split_once("never run").unwrap().1.contains(never), "{never}");
        }
        assert!(!notes.contains("Delete a line"));
    }
}
