//! What publishes packages: their checksums, manifests for winget and Homebrew, the script that
//! installs, and the notes of the release. All of it comes from one version, one address and the
//! hashes of the packages that are there.

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

use super::packages::{LINUX, MACOS, Packages, SUMS, WINDOWS};
use super::release::{Address, Release};
use super::{homebrew, install, notes, winget};

/// What a release is compared with.
#[derive(clap::Args)]
pub(crate) struct ReleaseOptions {
    /// The tag of the commit, which has to be `v` and the version.
    #[arg(long)]
    tag: String,
    /// The address at which it will be published, which has to be that of Cargo.toml.
    #[arg(long, value_name = "URL")]
    at: String,
    /// Compare tag and address only; there are no packages yet.
    #[arg(long)]
    check: bool,
}

/// Writes it for the packages that are in the folder, and returns the files. Manifests of a system
/// are there if its archive is.
pub(super) fn write(root: &Path, folder: &Path, release: &Release) -> anyhow::Result<Vec<PathBuf>> {
    let script = install::script(root, release)?;
    std::fs::write(folder.join(install::NAME), script)?;
    let packages = Packages::of(folder)?;
    let mut files = vec![(SUMS.to_owned(), packages.checksums())];
    files.extend(winget::manifests(&packages, release));
    files.extend(homebrew::formula(&packages, release));
    let mut paths = vec![folder.join(install::NAME)];
    for (name, text) in files {
        let path = folder.join(name);
        let parent = path.parent().unwrap_or(folder);
        std::fs::create_dir_all(parent).with_context(|| parent.display().to_string())?;
        std::fs::write(&path, text).with_context(|| path.display().to_string())?;
        paths.push(path);
    }
    Ok(paths)
}

/// Writes it for a release that has the packages of all systems, and its notes.
pub(super) fn run(root: &Path, folder: &Path, options: &ReleaseOptions) -> anyhow::Result<()> {
    let release = Release::for_target(root, LINUX)?;
    check(&release, options)?;
    if options.check {
        return Ok(());
    }
    let packages = Packages::of(folder)?;
    for target in [LINUX, WINDOWS, MACOS] {
        packages.archive(&release, target).with_context(|| {
            format!("{} has no archive for {target} of {}", folder.display(), release.version)
        })?;
    }
    for path in write(root, folder, &release)? {
        println!("{}", path.display());
    }
    let path = folder.join(notes::NAME);
    std::fs::write(&path, notes::write(root, &release)?)?;
    println!("{}", path.display());
    Ok(())
}

/// Refuses a tag or an address that is not that of the release.
fn check(release: &Release, options: &ReleaseOptions) -> anyhow::Result<()> {
    let (tag, version) = (release.tag(), &release.version);
    ensure!(
        options.tag == tag,
        "the tag is {}, the version in Cargo.toml {version}: tag the commit {tag}, or change the \
         version",
        options.tag
    );
    let (at, here) = (Address::new(&options.at)?, &release.address);
    ensure!(
        at == *here && !here.is_placeholder(),
        "this is published at {}, and repository in Cargo.toml is {}: write the former there and \
         commit it",
        at.url(),
        here.url()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_has_the_tag_and_the_address_of_its_manifest() {
        let release = Release::example();
        let (tag, at) = ("v1.2.3", "https://git.example/some-one/trine");
        let check = |tag: &str, at: &str, release: &Release| {
            let options = ReleaseOptions { tag: tag.into(), at: at.into(), check: true };
            check(release, &options).map_err(|error| error.to_string())
        };
        check(tag, at, &release).unwrap();
        let error = check("v1.2.4", at, &release).unwrap_err();
        assert!(error.contains("tag the commit v1.2.3"), "{error}");
        let error = check(tag, "https://git.example/other/trine", &release).unwrap_err();
        assert!(error.contains("is https://git.example/some-one/trine"), "{error}");
        let nowhere = "https://git.invalid/some-one/trine";
        let unpublished = Release { address: Address::new(nowhere).unwrap(), ..release };
        check(tag, nowhere, &unpublished).unwrap_err();
    }

    #[test]
    fn a_folder_gets_checksums_and_the_manifests_of_what_is_in_it() {
        let folder = tempfile::tempdir().unwrap();
        let release = Release::example();
        let archive = folder.path().join(release.archive());
        std::fs::write(&archive, "abc").unwrap();
        let written = |release: &Release| {
            write(&crate::root(), folder.path(), release).unwrap();
            std::fs::read_to_string(folder.path().join(SUMS)).unwrap()
        };
        let sums = written(&release);
        // The SHA-256 of "abc" is the first example of FIPS 180-2.
        let sum = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert!(sums.contains(&format!("{sum}  {}\n", release.archive())), "{sums}");
        assert!(sums.contains("  install.sh\n") && !sums.contains(SUMS), "{sums}");
        assert_eq!(sums, written(&release), "the second time changes nothing");
        assert!(folder.path().join("homebrew/trine.rb").exists());
        assert!(!folder.path().join("winget").exists());
        let windows = Release { target: WINDOWS.into(), ..release.clone() };
        std::fs::write(folder.path().join(windows.archive()), "abc").unwrap();
        assert_eq!(written(&release).lines().count(), 3);
        let manifests = std::fs::read_dir(folder.path().join("winget")).unwrap();
        assert_eq!(manifests.count(), 3);
    }
}
