//! Pictures' files, and standard input as a picture.

use std::fs::File;
use std::io::{IsTerminal, Read, stdin};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use trine_pictures::{Format, Limits, Picture, PictureError, Preparation, Prepared};

use crate::failure::usage;
use crate::words;

/// The most bytes of a file that show whether it is a picture.
const BEGINNING: u64 = 64;
/// How names of pictures' files end.
const ENDINGS: [&str; 5] = ["png", "jpg", "jpeg", "webp", "gif"];

/// Whether a path may mean standard input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Input {
    /// [`is_input`] says which do.
    Allowed,
    /// It has other uses, or the path is not the user's.
    Refused,
}

/// A picture's file as a tower reads it.
#[derive(Debug)]
pub struct PictureFile {
    /// Pixels from left to right and from top to bottom, upright, as they are in the file.
    pub size: (u32, u32),
    /// The picture as patches.
    pub prepared: Prepared,
}

impl PictureFile {
    /// Reads a picture's file and prepares it for a tower.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, is no plain file, is no picture, or is larger
    /// than [`Limits`]; the message names it.
    pub fn read(path: &Path, input: Input, preparation: &Preparation) -> Result<Self> {
        let picture = decode(path, input)?;
        let size = (picture.width(), picture.height());
        Ok(Self { size, prepared: preparation.prepare(&picture) })
    }
}

/// Reads and decodes a picture's file.
///
/// # Errors
/// As [`PictureFile::read`].
pub fn decode(path: &Path, input: Input) -> Result<Picture> {
    let limits = Limits::default();
    let is_input = input == Input::Allowed && is_input(path);
    let name = || match is_input {
        true => "standard input".to_owned(),
        false => words::harmless(&path.display().to_string()).into_owned(),
    };
    let bytes = if is_input { read_input(&limits) } else { read(&expanded(path), &limits) };
    Picture::decode(&bytes.with_context(name)?, &limits).with_context(name)
}

/// Reads a picture's file, or standard input, and prepares it for a tower.
///
/// # Errors
/// As [`PictureFile::read`].
pub fn prepare(path: &Path, preparation: &Preparation) -> Result<Prepared> {
    Ok(PictureFile::read(path, Input::Allowed, preparation)?.prepared)
}

/// Returns whether a path of the command line means standard input.
pub fn is_input(path: &Path) -> bool {
    let names = ["/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"];
    path == Path::new("-") || cfg!(unix) && names.iter().any(|name| path == Path::new(name))
}

/// Returns whether one of a command's pictures comes from standard input.
///
/// # Errors
/// Returns an error if several do: it can be read only once.
pub fn takes_input(files: &[PathBuf]) -> Result<bool> {
    match files.iter().filter(|path| is_input(path)).count() {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(usage("standard input is one image; name the files of the others")),
    }
}

/// Returns the path that a person means, in which `~` may stand for the home folder where no shell
/// has read it: in quotes, or after `=`.
pub fn expanded(path: &Path) -> PathBuf {
    let home = || Some(etcetera::home_dir().ok()?.join(path.strip_prefix("~").ok()?));
    match path.exists() {
        true => path.to_owned(),
        false => home().unwrap_or_else(|| path.to_owned()),
    }
}

/// Returns whether a path is a file that begins as a picture does.
pub fn is_picture(path: &Path) -> bool {
    // Nothing else is opened: a pipe would wait for its other end.
    if !std::fs::metadata(path).is_ok_and(|facts| facts.is_file()) {
        return false;
    }
    let mut beginning = Vec::new();
    let read = File::open(path).and_then(|file| file.take(BEGINNING).read_to_end(&mut beginning));
    read.is_ok() && Format::recognise(&beginning).is_ok()
}

/// Returns the files of pictures that are words of a text, by the endings of their names.
pub fn named_in(text: &str) -> Vec<&str> {
    let words = text.split_whitespace().map(|word| {
        let word = word.trim_start_matches(['"', '\'', '(', '<', '`']);
        word.trim_end_matches(['"', '\'', ')', '>', '`', '.', ',', ';', ':', '?', '!'])
    });
    let is_named = |word: &&str| {
        let ending = word.rsplit_once('.').map(|(_, ending)| ending.to_ascii_lowercase());
        ending.is_some_and(|ending| ENDINGS.contains(&&*ending))
            && is_picture(&expanded(Path::new(word)))
    };
    words.filter(is_named).collect()
}

/// Returns whether a path is an address of the web, or of a file of another machine.
fn is_address(path: &Path) -> bool {
    let text = path.to_string_lossy();
    ["http://", "https://", "file://", "data:"].iter().any(|start| text.starts_with(start))
}

/// Returns whether a path is a list of pictures' files with commas between them.
fn is_list(path: &Path) -> bool {
    let text = path.to_string_lossy();
    text.contains(',') && text.split(',').all(|part| is_picture(&expanded(Path::new(part.trim()))))
}

/// Reads the bytes of a picture's file. Nothing else is opened: a pipe would wait for its other
/// end.
fn read(path: &Path, limits: &Limits) -> Result<Vec<u8>> {
    let fail = "it cannot be read; check the path and its permissions";
    let facts = match std::fs::metadata(path) {
        Err(_) if is_address(path) => {
            bail!("it is an address; download the image and name its file")
        }
        Err(_) if is_list(path) => {
            bail!("it is a list of files; name each by itself, as in --image A --image B")
        }
        facts => facts.context(fail)?,
    };
    if facts.is_dir() {
        bail!("it is a folder; name the image's file");
    }
    if !facts.is_file() {
        bail!(
            "it is not a plain file; save the image and name its file, or pipe it into --image -"
        );
    }
    let check = |bytes: u64| match bytes > limits.bytes as u64 {
        true => Err(too_large(bytes, limits)),
        false => Ok(()),
    };
    check(facts.len())?;
    let file = File::open(path).context(fail)?;
    read_all(file, limits).context(fail)?
}

/// Reads a picture from standard input.
fn read_input(limits: &Limits) -> Result<Vec<u8>> {
    if stdin().is_terminal() {
        bail!("it is a terminal; pipe an image into it, or name a file");
    }
    read_all(stdin().lock(), limits).context("it cannot be read; name a file")?
}

/// Reads the bytes of a picture, of which there may be more than a file's length told.
fn read_all(source: impl Read, limits: &Limits) -> std::io::Result<Result<Vec<u8>>> {
    let mut bytes = Vec::new();
    source.take(limits.bytes as u64 + 1).read_to_end(&mut bytes)?;
    Ok(match bytes.len() > limits.bytes {
        true => Err(too_large(bytes.len() as u64, limits).into()),
        false => Ok(bytes),
    })
}

fn too_large(bytes: u64, limits: &Limits) -> PictureError {
    PictureError::TooManyBytes { bytes, limit: limits.bytes as u64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(path: &Path) -> String {
        let preparation = Preparation::square(56, 14, 2, [0.5; 3], [0.5; 3]).unwrap();
        format!("{:#}", prepare(path, &preparation).unwrap_err())
    }

    #[test]
    fn what_is_no_file_of_a_picture_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        assert!(error(folder.path()).contains("is a folder"));
        assert!(error(&at("nothing.png")).contains("nothing.png: it cannot be read"));
        for address in
            ["https://example.com/a.png", "data:image/png;base64,AAAA", "file://host/a.png"]
        {
            let error = error(Path::new(address));
            assert!(error.contains("it is an address") && !error.contains("os error"), "{error}");
        }
        std::fs::write(at("empty.png"), "").unwrap();
        assert!(error(&at("empty.png")).contains("empty.png: the image is empty"));
        std::fs::write(at("notes.png"), "my notes about an image").unwrap();
        assert!(error(&at("notes.png")).contains("no PNG, JPEG, WebP or GIF"));
        // A file of any size is known by its length.
        let huge = File::create(at("huge.png")).unwrap();
        huge.set_len(1 << 40).unwrap();
        assert!(error(&at("huge.png")).contains("1,099,511,627,776 bytes"));
    }

    /// It would wait for somebody who writes.
    #[cfg(unix)]
    #[test]
    fn pipes_and_devices_are_not_opened() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe.png");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
        assert!(made.success());
        assert!(error(&pipe).contains("not a plain file"));
        assert!(error(Path::new("/dev/zero")).contains("not a plain file"));
    }

    #[test]
    fn paths_are_those_that_a_person_means() {
        let home = etcetera::home_dir().unwrap();
        let of = |path: &str| expanded(Path::new(path));
        assert_eq!(of("~/a b.png"), home.join("a b.png"));
        assert_eq!(of("a~/b.png"), PathBuf::from("a~/b.png"));
        assert_eq!(of("~me/b.png"), PathBuf::from("~me/b.png"));
        assert_eq!(of("/"), PathBuf::from("/"));
        assert!(is_input(Path::new("-")) && !is_input(Path::new("./-")));
        assert_eq!(is_input(Path::new("/dev/stdin")), cfg!(unix));
        // Only where it was asked for.
        let error = decode(Path::new("-"), Input::Refused).unwrap_err();
        assert!(format!("{error:#}").contains("cannot be read"), "{error:#}");
    }

    #[test]
    fn files_in_texts_and_lists_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name).display().to_string();
        let (cat, notes) = (at("cat.PNG"), at("notes.png"));
        std::fs::write(&cat, b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR").unwrap();
        std::fs::write(&notes, "notes").unwrap();
        let text = format!("what is in {cat}? And ({cat}), '{notes}', {} or gif", at("no.png"));
        assert_eq!(named_in(&text), [&cat, &cat]);
        assert!(named_in("").is_empty() && named_in(". , .png").is_empty());
        assert!(error(Path::new(&format!("{cat},{cat}"))).contains("--image A --image B"));
        assert!(error(Path::new(&format!("{cat},{notes}"))).contains("cannot be read"));
    }
}
