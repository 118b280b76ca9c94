//! Archives: gzip for Unix, zip for Windows. The same files give the same bytes on every system.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;
use flate2::{Compression, GzBuilder};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipArchive, ZipWriter};

use super::release::{ENDINGS, Release};
use super::tree::Tree;

/// Writes the archive of a tree, with everything in one folder of the archive's name.
pub(super) fn write(tree: &Tree, folder: &Path, release: &Release) -> anyhow::Result<PathBuf> {
    let name = release.name();
    let path = folder.join(release.archive());
    let file = File::create(&path).with_context(|| path.display().to_string())?;
    if release.is_for_windows() {
        zip(tree, file, &name)
    } else {
        tar(tree, file, &name, release.time)
    }
    .with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

fn tar(tree: &Tree, file: File, name: &str, time: u64) -> anyhow::Result<()> {
    // Without the time of packing in its header.
    let gzip = GzBuilder::new().mtime(0).write(file, Compression::best());
    let mut tar = tar::Builder::new(gzip);
    for (place, content, mode) in tree.sorted() {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(mode);
        header.set_mtime(time);
        tar.append_data(&mut header, format!("{name}/{place}"), content)?;
    }
    tar.into_inner()?.finish()?.flush()?;
    Ok(())
}

/// Times are left at the earliest that the format has, 1980: it keeps them without a time zone.
fn zip(tree: &Tree, file: File, name: &str) -> anyhow::Result<()> {
    let mut zip = ZipWriter::new(file);
    for (place, content, mode) in tree.sorted() {
        let options = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Deflated)
            .last_modified_time(zip::DateTime::default())
            .unix_permissions(mode);
        zip.start_file(format!("{name}/{place}"), options)?;
        zip.write_all(content)?;
    }
    zip.finish()?.flush()?;
    Ok(())
}

/// Unpacks an archive into a folder and returns the path of what is in it.
pub(super) fn unpack(path: &Path, to: &Path) -> anyhow::Result<PathBuf> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let file = File::open(path).with_context(|| path.display().to_string())?;
    let [zip, gzip] = ENDINGS.map(|ending| name.strip_suffix(ending));
    if zip.is_some() {
        ZipArchive::new(file)?.extract(to)?;
    } else {
        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(file));
        archive.set_preserve_permissions(true);
        archive.unpack(to)?;
    }
    Ok(to.join(zip.or(gzip).context("an archive without its ending")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archives_have_the_same_bytes_each_time_and_unpack_to_their_files() {
        let folder = tempfile::tempdir().unwrap();
        for target in ["x86_64-pc-windows-gnu", "x86_64-unknown-linux-gnu"] {
            let release = Release { target: target.into(), ..Release::example() };
            let mut tree = Tree::default();
            let long = "d/".repeat(80);
            tree.add("share/doc/b", b"text".repeat(1000));
            tree.add(&format!("share/{long}a"), b"far below".to_vec());
            tree.add_program("bin/trine", b"#!/bin/sh\n".to_vec());
            let path = write(&tree, folder.path(), &release).unwrap();
            let first = std::fs::read(&path).unwrap();
            assert!(first.len() < 4000, "{target}: {} bytes", first.len());
            write(&tree, folder.path(), &release).unwrap();
            assert_eq!(first, std::fs::read(&path).unwrap(), "{target}");
            let prefix = unpack(&path, folder.path()).unwrap();
            assert_eq!(prefix, folder.path().join(format!("trine-1.2.3-{target}")));
            assert_eq!(std::fs::read(prefix.join("share/doc/b")).unwrap().len(), 4000);
            assert_eq!(std::fs::read(prefix.join("share").join(long).join("a")).unwrap().len(), 9);
            #[cfg(unix)]
            {
                use std::os::unix::fs::PermissionsExt;
                let mode = |place| prefix.join(place).metadata().unwrap().permissions().mode();
                assert_eq!(
                    (mode("bin/trine") & 0o777, mode("share/doc/b") & 0o777),
                    (0o755, 0o644)
                );
            }
        }
    }
}
