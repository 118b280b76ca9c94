//! Downloads one file from the server into its part: range requests, repetitions, verification.

use std::io::{self, Read};
use std::path::PathBuf;

use crate::api::{RemoteFile, file_url};
use crate::error::HubError;
use crate::http::{Client, Purpose, Reply, header, unusable};
use crate::name::has_extension;
use crate::part::{BLOCK, Part};
use crate::progress::Progress;
use crate::retry::{Failure, Retries};
use trine_foreign::cut_name;

/// The progress in bytes that resets the count of failures. Smaller gains do not, so that a server
/// that sends a few bytes per connection cannot keep a download alive forever.
const REAL_PROGRESS: u64 = 1 << 20;
/// The largest file in bytes that is accepted from a server (16 TiB).
const LARGEST_FILE: u64 = 16 << 40;

/// A file to download.
pub(crate) struct FileDownload<'a> {
    pub(crate) client: &'a Client,
    pub(crate) repository: &'a str,
    pub(crate) revision: &'a str,
    /// Whether the revision is a commit: only then do two answers surely hold the same bytes.
    pub(crate) pinned: bool,
    pub(crate) file: &'a RemoteFile,
    pub(crate) part: PathBuf,
    /// Whether an earlier part belongs to exactly this file.
    pub(crate) keep: bool,
}

/// A whole, verified part.
pub(crate) struct Fetched {
    pub(crate) size: u64,
    pub(crate) sha256: String,
}

/// The state of a file while it arrives.
struct Transfer<'a> {
    job: &'a FileDownload<'a>,
    part: Part,
    size: Option<u64>,
    sha256: Option<String>,
}

/// Downloads a file into its part. On an error the part keeps what can be continued.
pub(crate) fn fetch(
    job: &FileDownload<'_>,
    progress: &mut dyn Progress,
) -> Result<Fetched, HubError> {
    let file = job.file;
    if file.size.is_some_and(|size| size > LARGEST_FILE) {
        let url = job.repository.to_owned();
        let reason = format!("{} claims to be larger than any model", file.name);
        return Err(HubError::BadResponse { url, reason });
    }
    progress.start(&file.name, file.size);
    let part = Part::open(job.part.clone(), job.keep, file.size, progress)?;
    let mut carried = part.length() > 0;
    let mut transfer = Transfer { job, part, size: file.size, sha256: file.sha256.clone() };
    loop {
        transfer.complete(progress)?;
        let found = transfer.part.finish()?;
        let size = transfer.part.length();
        match transfer.sha256.clone() {
            Some(expected) if expected != found => {
                transfer.restart(progress)?;
                // The bytes from an earlier run may have been damaged since, which deserves one
                // download from zero.
                if std::mem::take(&mut carried) {
                    tracing::warn!(file = file.name, "the earlier part was damaged: starting over");
                    continue;
                }
                return Err(HubError::Checksum { file: file.name.clone(), expected, found });
            }
            Some(_) => return Ok(Fetched { size, sha256: found }),
            None => {
                if file.name.ends_with(".gguf") || file.name.ends_with(".safetensors") {
                    progress.remark(&format!(
                        "the server publishes no checksum of {}: only its size was checked",
                        file.name
                    ));
                }
                return Ok(Fetched { size, sha256: found });
            }
        }
    }
}

impl Transfer<'_> {
    /// Repeats requests until the part has its length.
    fn complete(&mut self, progress: &mut dyn Progress) -> Result<(), HubError> {
        let mut retries = Retries::new(self.job.client.config());
        let mut farthest = self.part.length();
        loop {
            if progress.cancelled() {
                return Err(HubError::Cancelled);
            }
            // Only a known length or hash shows that the bytes from an earlier run are the whole
            // file.
            if self.size == Some(self.part.length()) {
                return Ok(());
            }
            match self.attempt(progress) {
                Ok(()) => return Ok(()),
                Err(failure) => {
                    if self.part.length() >= farthest.saturating_add(REAL_PROGRESS) {
                        retries.reset();
                    }
                    farthest = farthest.max(self.part.length());
                    retries.pause(failure, progress)?;
                }
            }
        }
    }

    /// Makes one request and receives its body.
    fn attempt(&mut self, progress: &mut dyn Progress) -> Result<(), Failure> {
        if self.part.length() > 0 && !self.job.pinned && self.sha256.is_none() {
            self.restart(progress)?;
        }
        let job = self.job;
        let url = file_url(job.client, job.repository, job.revision, &job.file.name);
        let from = self.part.length();
        let mut reply = job.client.get(&url, from, None)?;
        if self.sha256.is_none() {
            self.sha256 = reply.linked_sha256.take();
        }
        let begins = self.examine(&reply, from, progress)?;
        let expected = self.body_length(&reply, begins)?;
        self.receive(reply, begins, expected, progress)
    }

    /// Checks status and headers, and returns the offset at which the body begins.
    fn examine(
        &mut self,
        reply: &Reply,
        from: u64,
        progress: &mut dyn Progress,
    ) -> Result<u64, Failure> {
        let url = reply.location.shown();
        let bad =
            |reason: String| Failure::again(HubError::BadResponse { url: url.clone(), reason });
        let range = header(&reply.response, "content-range");
        let begins = match reply.response.status().as_u16() {
            200 => 0,
            206 => {
                let text = range.ok_or_else(|| bad("a part without Content-Range".to_owned()))?;
                let (first, last, total) = content_range(text)
                    .ok_or_else(|| bad(format!("Content-Range '{}'", cut_name(text, 60))))?;
                let ends = last.checked_add(1);
                let whole = self.size.or(total);
                let fits = first == from
                    && from > 0
                    && total.is_none_or(|total| whole == Some(total))
                    && whole.is_none_or(|whole| ends == Some(whole));
                if !fits {
                    return Err(bad(format!(
                        "bytes {first} to {last} of {} instead of {from} to the end of {}",
                        shown(total),
                        shown(self.size)
                    )));
                }
                self.size = whole;
                from
            }
            416 if from > 0 => {
                // The part is longer than the file, or the server counts differently.
                self.restart(progress)?;
                return Err(bad(format!("no bytes from {from} on")));
            }
            status if (200..300).contains(&status) => {
                return Err(bad(format!("HTTP {status} instead of the file")));
            }
            _ => {
                let purpose =
                    Purpose { repository: self.job.repository, file: Some(&self.job.file.name) };
                return Err(self.job.client.status_failure(reply, purpose));
            }
        };
        if let Some(reason) = unusable(&reply.response) {
            return Err(bad(reason));
        }
        Ok(begins)
    }

    /// Returns the number of bytes that the body must have, if the server says. Also learns the
    /// file's size from it.
    fn body_length(&mut self, reply: &Reply, begins: u64) -> Result<Option<u64>, Failure> {
        let url = reply.location.shown();
        let bad =
            |reason: String| Failure::again(HubError::BadResponse { url: url.clone(), reason });
        let declared = match header(&reply.response, "content-length") {
            Some(text) => Some(
                text.trim()
                    .parse::<u64>()
                    .map_err(|_| bad(format!("Content-Length '{}'", cut_name(text, 40))))?,
            ),
            None => None,
        };
        if self.size.is_none() {
            let whole = declared.and_then(|length| length.checked_add(begins));
            self.size = reply.linked_size.or(whole).filter(|size| *size <= LARGEST_FILE);
        }
        let Some(size) = self.size else {
            let chunked = header(&reply.response, "transfer-encoding")
                .is_some_and(|coding| coding.to_ascii_lowercase().contains("chunked"));
            if self.sha256.is_none() && !chunked {
                return Err(bad("neither the length nor the hash of the file is known".to_owned()));
            }
            return Ok(None);
        };
        let expected = size.checked_sub(begins).ok_or_else(|| bad("too many bytes".to_owned()))?;
        if let Some(declared) = declared
            && declared != expected
        {
            return Err(bad(format!(
                "{declared} bytes announced instead of {expected} ({size} in all)"
            )));
        }
        Ok(Some(expected))
    }

    /// Appends the body to the part.
    fn receive(
        &mut self,
        reply: Reply,
        begins: u64,
        expected: Option<u64>,
        progress: &mut dyn Progress,
    ) -> Result<(), Failure> {
        if begins != self.part.length() {
            // The server does not serve ranges: its body is the whole file.
            self.restart(progress)?;
        }
        let url = reply.location.shown();
        let bad =
            |reason: String| Failure::again(HubError::BadResponse { url: url.clone(), reason });
        let mut body = reply.response.into_body().into_reader();
        let mut block = vec![0; BLOCK];
        let mut left = expected.unwrap_or(LARGEST_FILE);
        loop {
            if progress.cancelled() {
                return Err(HubError::Cancelled.into());
            }
            let count = match body.read(&mut block) {
                Ok(0) => break,
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    let reason = format!(
                        "{} after {} bytes",
                        cut_name(&error.to_string(), 200),
                        self.part.length()
                    );
                    return Err(Failure::again(HubError::Connection { url, reason }));
                }
            };
            if self.part.length() == 0 && is_page(&self.job.file.name, &block[..count]) {
                return Err(bad("it begins like a web page".to_owned()));
            }
            if count as u64 > left {
                // There is no way to know which of the bytes are the file's.
                self.restart(progress)?;
                return Err(bad("more bytes than the file has".to_owned()));
            }
            self.part.append(&block[..count], expected.map(|_| left))?;
            left -= count as u64;
            progress.advance(count as u64);
        }
        if expected.is_some() && left > 0 {
            let reason = format!("it ended {left} bytes too early");
            return Err(Failure::again(HubError::Connection { url, reason }));
        }
        Ok(())
    }

    fn restart(&mut self, progress: &mut dyn Progress) -> Result<(), HubError> {
        self.part.restart()?;
        progress.start(&self.job.file.name, self.size);
        Ok(())
    }
}

fn shown(size: Option<u64>) -> String {
    size.map_or_else(|| "an unknown total".to_owned(), |size| size.to_string())
}

/// Returns whether a login or error page was sent as a file that never begins with '<'.
fn is_page(name: &str, beginning: &[u8]) -> bool {
    let beginning = beginning.trim_ascii_start();
    [".gguf", ".safetensors", ".json"].iter().any(|extension| has_extension(name, extension))
        && beginning.first() == Some(&b'<')
        // A safetensors file begins with a length, whose lowest byte can be any character.
        && beginning.get(1).is_some_and(|byte| byte.is_ascii_alphabetic() || *byte == b'!')
}

/// Returns the first byte, last byte and total of `bytes 5-9/10` or `bytes 5-9/*` (RFC 9110, 14.4).
fn content_range(text: &str) -> Option<(u64, u64, Option<u64>)> {
    let (unit, rest) = text.trim().split_once(' ')?;
    if !unit.eq_ignore_ascii_case("bytes") {
        return None;
    }
    let (range, total) = rest.trim().split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let (first, last) = (first.trim().parse::<u64>().ok()?, last.trim().parse::<u64>().ok()?);
    let total = match total.trim() {
        "*" => None,
        total => Some(total.parse::<u64>().ok()?),
    };
    let sound = first <= last && total.is_none_or(|total| last < total);
    sound.then_some((first, last, total))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_ranges() {
        assert_eq!(content_range("bytes 5-9/10"), Some((5, 9, Some(10))));
        assert_eq!(content_range("Bytes 5-9/*"), Some((5, 9, None)));
        for junk in [
            "",
            "bytes",
            "bytes */10",
            "bytes 9-5/10",
            "bytes 5-10/10",
            "items 5-9/10",
            "bytes 5-99999999999999999999/*",
            "bytes -5-9/10",
            "bytes 5-9",
        ] {
            assert_eq!(content_range(junk), None, "{junk}");
        }
    }

    #[test]
    fn pages_posing_as_files() {
        assert!(is_page("x.gguf", b"<!DOCTYPE html>"));
        assert!(is_page("x.json", b"\n <html>"));
        assert!(!is_page("x.json", b"{}"));
        assert!(!is_page("x.safetensors", &[b'<', 0, 0, 0, 0, 0, 0, 0, b'{']));
        assert!(!is_page("chat_template.jinja", b"<bos>"));
    }
}
