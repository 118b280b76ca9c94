//! Pictures in data URLs and in base64, as requests carry them.

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD_PAD_INDIFFERENT, URL_SAFE_PAD_INDIFFERENT};
use percent_encoding::percent_decode_str;

use crate::{Limits, PictureError};

/// Returns the bytes of the file in a data URL such as `data:image/png;base64,iVBORw0...`, as RFC
/// 2397 and browsers read it (<https://fetch.spec.whatwg.org/#data-url-processor>): in base64 or
/// percent-encoded, with parameters, with blanks around them and within base64.
///
/// The media type has to begin with `image/`. It is not compared with the content, which
/// [`Picture::decode`](crate::Picture::decode) recognises. Base64 is that of [`from_base64`].
///
/// # Errors
///
/// If the text is no such URL, or if it stands for more bytes than `limits` allow, which its
/// length tells before it is decoded.
pub fn from_data_url(url: &str, limits: &Limits) -> Result<Vec<u8>, PictureError> {
    let (head, data) = url.split_once(',').ok_or(PictureError::NoDataUrl)?;
    let head = head.to_ascii_lowercase();
    let head = head.strip_prefix("data:").ok_or(PictureError::NoDataUrl)?.trim_matches(is_blank);
    let in_base64 = head.strip_suffix("base64").map(|rest| rest.trim_end_matches(is_blank));
    let in_base64 = in_base64.and_then(|rest| rest.strip_suffix(';'));
    if !in_base64.unwrap_or(head).starts_with("image/") {
        return Err(PictureError::NoDataUrl);
    }
    // What follows `#` is no part of what a URL names.
    let data = data.split('#').next().unwrap_or_default();
    if in_base64.is_none() {
        // Three characters stand for one byte at most.
        let encoded = data.bytes().filter(|byte| *byte == b'%').count();
        limits.check_bytes(data.len().saturating_sub(encoded.saturating_mul(2)))?;
        let bytes: Vec<u8> = percent_decode_str(data).collect();
        limits.check_bytes(bytes.len())?;
        return Ok(bytes);
    }
    let text = percent_decode_str(data).decode_utf8_lossy();
    match text.contains(is_blank) {
        true => from_base64(&text.replace(is_blank, ""), limits),
        false => from_base64(&text, limits),
    }
}

fn is_blank(character: char) -> bool {
    matches!(character, ' ' | '\t' | '\u{c}')
}

/// Returns the bytes of a file that is written in base64: in one of the two alphabets of RFC 4648,
/// with padding or without it. Line breaks (CR and LF) may be in it, as MIME has them (RFC 2045).
///
/// # Errors
///
/// If the text is no base64, with the first character that is wrong, or if it stands for more bytes
/// than `limits` allow, which its length tells before it is decoded.
pub fn from_base64(data: &str, limits: &Limits) -> Result<Vec<u8>, PictureError> {
    let breaks = ['\r', '\n'];
    let joined = match data.contains(breaks) {
        true => Cow::Owned(data.split(breaks).collect::<String>()),
        false => Cow::Borrowed(data),
    };
    // Four characters stand for three bytes; the last two may be padding.
    limits.check_bytes((joined.len() / 4 * 3).saturating_sub(2))?;
    let is_url_safe = joined.contains(['-', '_']);
    let engine = if is_url_safe { URL_SAFE_PAD_INDIFFERENT } else { STANDARD_PAD_INDIFFERENT };
    let decoded = engine.decode(joined.as_bytes());
    let bytes = decoded.map_err(|_| PictureError::NoBase64 { at: wrong(data, is_url_safe) })?;
    limits.check_bytes(bytes.len())?;
    Ok(bytes)
}

/// Returns the number, from 1, of the first character that is not in the alphabet, or that follows
/// padding. If there is none, the text ends in the wrong place, and it is that of its last one.
fn wrong(data: &str, is_url_safe: bool) -> usize {
    let mut is_padded = false;
    let is_wrong = |character: char| match character {
        '\r' | '\n' => false,
        '=' => {
            is_padded = true;
            false
        }
        '+' | '/' => is_padded || is_url_safe,
        '-' | '_' => is_padded || !is_url_safe,
        _ => is_padded || !character.is_ascii_alphanumeric(),
    };
    let at = data.chars().position(is_wrong);
    at.map_or_else(|| data.trim_end().chars().count(), |at| at + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> Result<Vec<u8>, PictureError> {
        from_data_url(url, &Limits { bytes: 6, ..Limits::default() })
    }

    #[test]
    fn data_urls_are_read() {
        assert_eq!(read("data:image/png;base64,AQID").unwrap(), [1, 2, 3]);
        assert_eq!(read("DATA:Image/JPEG;BASE64,AQIDBA==").unwrap(), [1, 2, 3, 4]);
        assert_eq!(read("data:image/png;name=a;base64,").unwrap(), []);
        assert_eq!(read("data: image/png ; charset=utf-8 ; base64 , AQ ID\t").unwrap(), [1, 2, 3]);
        assert_eq!(read("data:image/png;base64,%41Q%49D%0A#part").unwrap(), [1, 2, 3]);
        assert_eq!(read("data:image/png,%89PNG%2c#part").unwrap(), *b"\x89PNG,");
        assert_eq!(read("data:image/png;base64;x=1,AQID").unwrap(), *b"AQID", "not the last one");
        // Without padding, and in the alphabet of URLs.
        for data in ["-_-_AQ==", "-_-_AQ", "+/+/AQ==", "+/+/AQ"] {
            let found = read(&format!("data:image/png;base64,{data}"));
            assert_eq!(found.unwrap(), [251, 255, 191, 1], "{data}");
        }
        // Line breaks count for no bytes: these are six.
        let lines = "data:image/png;base64,AQ\r\nID\nBAUG\r\n\r\n\n\n\n\n\n\n";
        assert_eq!(read(lines).unwrap(), [1, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn other_urls_are_refused() {
        for url in [
            "",
            "data:image/png;base64",
            "data:text/plain;base64,AQID",
            "data:text/plain,AQID",
            "data:;base64,image/png",
            "data:;base64,AQID",
            "https://example.com/a.png;base64,AQID",
        ] {
            assert_eq!(read(url), Err(PictureError::NoDataUrl), "{url}");
        }
        for (data, at) in [
            ("AQ*ID", 3),
            ("A\r\nQ*ID", 5),
            ("AQ-/", 4),
            ("+Q-/", 1),
            ("AQI=A", 5),
            ("AQIDBB==", 8),
            ("AQIDB", 5),
            ("%zzQID", 1),
            ("AQ\u{e9}D", 3),
            ("AQID====", 8),
        ] {
            let found = read(&format!("data:image/png;base64,{data}"));
            assert_eq!(found, Err(PictureError::NoBase64 { at }), "{data}");
        }
    }

    #[test]
    fn long_ones_are_refused_by_their_length() {
        let url = format!("data:image/png;base64,{}", "A".repeat(8));
        assert_eq!(read(&url).unwrap().len(), 6);
        // The length is checked before the characters are.
        let url = format!("data:image/png;base64,{}", "!".repeat(12));
        assert_eq!(read(&url), Err(PictureError::TooManyBytes { bytes: 7, limit: 6 }));
        let url = format!("data:image/png,{}", "%41".repeat(6));
        assert_eq!(read(&url).unwrap().len(), 6);
        let url = format!("data:image/png,{}", "%41".repeat(7));
        assert_eq!(read(&url), Err(PictureError::TooManyBytes { bytes: 7, limit: 6 }));
        let url = format!("data:image/png;base64,{}", "A".repeat(10) + "A=");
        assert!(matches!(read(&url), Err(PictureError::TooManyBytes { .. })));
    }
}
