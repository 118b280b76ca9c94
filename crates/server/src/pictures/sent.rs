//! Pictures as requests have them.

use std::collections::{HashMap, HashSet};
use std::fmt;

use axum::http::Uri;
use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio::sync::OwnedSemaphorePermit;
use trine_engine::{EngineError, PromptPicture, Scope, Sight, TowerInput};
use trine_pictures::{Limits, Picture, Preparation, from_base64, from_data_url};
use trine_text::{Content, Part};

use crate::error::ApiError;
use crate::image_urls::{ImageUrls, Place};
use crate::models::{Lease, Pictures};
use crate::options::PictureLimits;
use crate::pictures::tower_input;
use crate::rooms::Decoding;

/// Most pictures of a request.
const MOST: usize = 64;

/// The pictures of a request, in the order of their parts in its messages.
#[derive(Debug, Default)]
pub(crate) struct Sent(Vec<SentPicture>);

/// A request that may have pictures.
pub(crate) trait Pictured {
    /// Returns its pictures; `None` if its kind has none.
    fn pictures(&mut self) -> Option<&mut Sent> {
        None
    }

    /// Checks what needs no picture, before pictures are fetched for it. For a thread that may
    /// wait.
    ///
    /// # Errors
    /// Those of the request's work that are certain already.
    fn check(&self, _: &Lease) -> Result<(), ApiError> {
        Ok(())
    }
}

impl<A: Pictured, B> Pictured for (A, B) {
    fn pictures(&mut self) -> Option<&mut Sent> {
        self.0.pictures()
    }
}

impl<A: Pictured, B, C> Pictured for (A, B, C) {
    fn pictures(&mut self) -> Option<&mut Sent> {
        self.0.pictures()
    }
}

/// A picture of a request.
struct SentPicture {
    /// Its field in the request.
    param: String,
    source: Source,
    /// The room that it takes when it is prepared.
    room: Option<OwnedSemaphorePermit>,
}

enum Source {
    File(Vec<u8>),
    /// A file whose header was read.
    Measured(Measured),
    Url(Uri),
}

struct Measured {
    file: Vec<u8>,
    /// SHA-256 of the file.
    digest: [u8; 32],
    /// The limits that it keeps.
    limits: Limits,
    /// Its width and height in pixels.
    size: (u32, u32),
}

impl fmt::Debug for SentPicture {
    /// Does not print the file, which is large and belongs to somebody.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "SentPicture({})", self.param)
    }
}

impl Sent {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the field of the first picture.
    pub(crate) fn param(&self) -> Option<&str> {
        self.0.first().map(|picture| picture.param.as_str())
    }

    /// Replaces the fields of pictures by their places in the request.
    pub(crate) fn place(&mut self, place: impl Fn(&str) -> Option<String>) {
        for picture in &mut self.0 {
            if let Some(place) = place(&picture.param) {
                picture.param = place;
            }
        }
    }

    /// Adds the picture of a part at `path` of a message, if the part is one, and returns the part
    /// that stands for it in the conversation.
    ///
    /// | type | picture |
    /// |---|---|
    /// | `image_url`, `input_image` | `image_url`, a URL or an object with it |
    /// | `image` | `source`, an object with base64 or a URL |
    ///
    /// # Errors
    /// 400 naming the field for a picture that is not there, in no form that is read, or one too
    /// many.
    pub(crate) fn read(&mut self, part: &Value, path: &str) -> Result<Option<Part>, ApiError> {
        let kind = part.get("type").and_then(Value::as_str);
        let (param, source) = match kind {
            Some("image_url" | "input_image") => read_url_part(part, path)?,
            Some("image") => read_source_part(part, path)?,
            _ => return Ok(None),
        };
        self.add(param, source)?;
        Ok(Some(Part::picture()))
    }

    /// Adds a picture of a list of files in base64.
    ///
    /// # Errors
    /// 400 naming the field.
    pub(crate) fn read_base64(&mut self, data: &Value, path: String) -> Result<(), ApiError> {
        let Some(data) = data.as_str() else {
            return Err(ApiError::field(&path, format!("{path} must be a picture in base64")));
        };
        let source = read_data(data, &path)?;
        self.add(path, source)
    }

    /// Returns the content of a message that shows all of them before a text.
    pub(crate) fn before(&self, text: String) -> Content {
        if self.is_empty() {
            return Content::Text(text);
        }
        let pictures = self.0.iter().map(|_| Part::picture());
        Content::Parts(pictures.chain([Part::text(text)]).collect())
    }

    fn add(&mut self, param: String, source: Source) -> Result<(), ApiError> {
        if self.0.len() == MOST {
            let message = format!("the request has more than {MOST} pictures; send fewer");
            return Err(ApiError::field(param, message));
        }
        self.0.push(SentPicture { param, source, room: None });
        Ok(())
    }

    /// Checks what needs no model: hosts of pictures that are named, and what files announce.
    ///
    /// # Errors
    /// 400 naming the picture.
    pub(crate) fn check(
        &mut self,
        limits: &PictureLimits,
        urls: Option<&ImageUrls>,
    ) -> Result<(), ApiError> {
        let mut pixels = 0_u64;
        for picture in &mut self.0 {
            if let Source::Url(url) = &picture.source {
                Place::of(url, urls).map_err(|what| of(&picture.param, what))?;
            }
            picture.measure(limits)?;
            if let Source::Measured(Measured { size: (width, height), .. }) = picture.source {
                pixels = pixels.saturating_add(u64::from(width) * u64::from(height));
            }
            if pixels > limits.pixels {
                let message = format!(
                    "the pictures of the request have more than {} pixels together; make them smaller, or send fewer",
                    limits.pixels
                );
                return Err(ApiError::field(&picture.param, message));
            }
        }
        Ok(())
    }

    /// Returns whether pictures are only named.
    pub(crate) fn names_urls(&self) -> bool {
        self.0.iter().any(|picture| matches!(picture.source, Source::Url(_)))
    }

    /// Returns the URLs of the pictures that are only named, with their indices.
    pub(super) fn urls(&self) -> Vec<(usize, Uri)> {
        let url = |(index, picture): (usize, &SentPicture)| match &picture.source {
            Source::Url(url) => Some((index, url.clone())),
            Source::File(_) | Source::Measured(..) => None,
        };
        self.0.iter().enumerate().filter_map(url).collect()
    }

    /// Returns an error about a picture.
    pub(super) fn wrong(&self, index: usize, what: impl fmt::Display) -> ApiError {
        of(self.0.get(index).map_or("messages", |picture| &picture.param), what)
    }

    /// Puts a file in the place of a URL.
    pub(super) fn put(&mut self, index: usize, file: Vec<u8>) {
        if let Some(picture) = self.0.get_mut(index) {
            picture.source = Source::File(file);
        }
    }

    /// Returns the width and height of each picture, which must have been checked; zeros for one
    /// that was not fetched.
    fn sizes(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.0.iter().map(|picture| match picture.source {
            Source::Measured(Measured { size, .. }) => size,
            Source::File(_) | Source::Url(_) => (0, 0),
        })
    }

    /// Returns the bytes that each picture takes when it is prepared: none for one whose file came
    /// before, which is prepared once.
    pub(super) fn prepared_bytes(&self, preparation: &Preparation) -> Vec<usize> {
        let mut seen = HashSet::new();
        let of = |picture: &SentPicture| match &picture.source {
            Source::Measured(Measured { digest, size: (width, height), .. })
                if seen.insert(*digest) =>
            {
                preparation.bytes(*width, *height)
            }
            _ => 0,
        };
        self.0.iter().map(of).collect()
    }

    /// Gives each picture its permits of a room.
    pub(super) fn house(&mut self, mut room: OwnedSemaphorePermit, each: &[usize]) {
        for (picture, &permits) in self.0.iter_mut().zip(each) {
            picture.room = room.split(permits.min(room.num_permits()));
        }
    }

    /// Returns what decoding each picture takes, one after the other.
    pub(super) fn decoding(&self) -> Vec<Decoding> {
        let of = |picture: &SentPicture| match &picture.source {
            Source::Measured(Measured { file, size, .. }) => Decoding {
                pixels: (size.0 as usize).saturating_mul(size.1 as usize),
                bytes: Picture::decoding_bytes(file, *size),
            },
            Source::File(_) | Source::Url(_) => Decoding::default(),
        };
        self.0.iter().map(of).collect()
    }

    /// Returns the number of soft tokens of each picture.
    ///
    /// # Errors
    /// 400 naming a picture that is wider than a step of the model.
    pub(crate) fn soft_tokens(
        &self,
        pictures: &Pictures,
        limits: &trine_engine::Limits,
    ) -> Result<Vec<usize>, ApiError> {
        let most = limits.picture.ok_or(EngineError::NoPictures)?;
        let of = |(index, (width, height))| {
            let soft_tokens = pictures.preparation.soft_tokens(width, height) as usize;
            if soft_tokens > most {
                return Err(self.wrong(index, EngineError::PictureTooWide { soft_tokens, most }));
            }
            Ok(soft_tokens)
        };
        self.sizes().enumerate().map(of).collect()
    }

    /// Decodes and prepares the pictures, whose first soft tokens are at `starts` of a prompt,
    /// those with one file once. Their rows are kept for requests of one scope.
    ///
    /// # Errors
    /// 400 naming a picture that is damaged.
    pub(crate) fn sights(
        self,
        pictures: &Pictures,
        starts: &[usize],
        scope: Scope,
    ) -> Result<Vec<PromptPicture>, ApiError> {
        let mut known: HashMap<[u8; 32], Sight> = HashMap::new();
        let of_picture = |(picture, &at): (SentPicture, &usize)| {
            let SentPicture { param, source, room } = picture;
            let Source::Measured(Measured { file, digest, limits, .. }) = source else {
                return Err(ApiError::internal("a picture was not measured"));
            };
            if let Some(sight) = known.get(&digest) {
                return Ok(PromptPicture { at, sight: sight.clone() });
            }
            let decoded = Picture::decode(&file, &limits).map_err(|error| of(&param, error))?;
            drop(file);
            let prepared = pictures.preparation.prepare(&decoded);
            drop(decoded);
            let input = tower_input(&prepared);
            // Otherwise the time of a request would tell who else has sent the picture.
            let input = TowerInput { digest: scope.digest(input.digest), ..input };
            let sight = pictures.tower.sight_in(input, room);
            known.insert(digest, sight.clone());
            Ok(PromptPicture { at, sight })
        };
        self.0.into_iter().zip(starts).map(of_picture).collect()
    }
}

impl SentPicture {
    /// Reads the header of a file.
    fn measure(&mut self, limits: &PictureLimits) -> Result<(), ApiError> {
        if let Source::File(file) = &mut self.source {
            let size = Picture::measure(file, &limits.each);
            let size = size.map_err(|error| of(&self.param, error))?;
            let (file, limits) = (std::mem::take(file), limits.each.clone());
            let digest = Sha256::digest(&file).into();
            self.source = Source::Measured(Measured { file, digest, limits, size });
        }
        Ok(())
    }
}

/// Files are compared with the limits when they are measured; a body bounds them before that.
fn unlimited() -> Limits {
    Limits { bytes: usize::MAX, ..Limits::default() }
}

/// Returns an error about a field.
fn of(param: &str, what: impl fmt::Display) -> ApiError {
    ApiError::field(param, format!("{param}: {what}"))
}

fn begins_with(text: &str, scheme: &str) -> bool {
    text.get(..scheme.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(scheme))
}

/// Returns whether a text is the URL of another server.
fn is_web(text: &str) -> bool {
    begins_with(text, "http://") || begins_with(text, "https://")
}

/// Reads a picture that a URL names or holds.
fn read_url(url: &str, param: &str) -> Result<Source, ApiError> {
    // As in browsers (<https://url.spec.whatwg.org/#concept-basic-url-parser>).
    let url = url.trim_matches(|sign| sign <= ' ');
    if begins_with(url, "data:") {
        let file = from_data_url(url, &unlimited()).map_err(|error| of(param, error))?;
        return Ok(Source::File(file));
    }
    if is_web(url) {
        let wrong = |_| of(param, "it is not a valid URL");
        return Ok(Source::Url(url.parse().map_err(wrong)?));
    }
    Err(of(param, "use a URL that begins like data:image/png;base64,; nothing else is read"))
}

/// Reads a picture in base64. Some clients write a data URL there.
fn read_data(data: &str, param: &str) -> Result<Source, ApiError> {
    if is_web(data) {
        return Err(of(param, "a URL is not fetched from here; send the picture itself in base64"));
    }
    let file = match begins_with(data, "data:") {
        true => from_data_url(data, &unlimited()),
        false => from_base64(data, &unlimited()),
    };
    file.map(Source::File).map_err(|error| of(param, error))
}

/// Reads a part with `image_url`, in the form of chats or in that of the Responses API.
fn read_url_part(part: &Value, path: &str) -> Result<(String, Source), ApiError> {
    let (param, url) = match part.get("image_url") {
        Some(Value::Object(object)) => (format!("{path}.image_url.url"), object.get("url")),
        Some(url) if !url.is_null() => (format!("{path}.image_url"), Some(url)),
        _ if part.get("file_id").is_some_and(|id| !id.is_null()) => {
            let remedy = "files are not kept here; send the picture in image_url";
            return Err(ApiError::unsupported(format!("{path}.file_id"), remedy));
        }
        _ => (format!("{path}.image_url"), None),
    };
    let url = url.and_then(Value::as_str);
    let url = url.ok_or_else(|| of(&param, "it must be a URL like data:image/png;base64,..."))?;
    let source = read_url(url, &param)?;
    Ok((param, source))
}

/// Reads a part with `source`, in the form of Anthropic's messages.
fn read_source_part(part: &Value, path: &str) -> Result<(String, Source), ApiError> {
    let path = format!("{path}.source");
    let source = part.get("source").unwrap_or(&Value::Null);
    let text = |field: &str, what: &str| {
        let param = format!("{path}.{field}");
        match source.get(field).and_then(Value::as_str) {
            Some(text) => Ok((param, text)),
            None => Err(of(&param, format_args!("it must be {what}"))),
        }
    };
    match source.get("type").and_then(Value::as_str) {
        Some("base64") => {
            let (param, data) = text("data", "a picture in base64")?;
            let source = read_data(data, &param)?;
            Ok((param, source))
        }
        Some("url") => {
            let (param, url) = text("url", "a URL like data:image/png;base64,...")?;
            let source = read_url(url, &param)?;
            Ok((param, source))
        }
        Some("file") => {
            let remedy = "files are not kept here; send the picture as base64";
            Err(ApiError::unsupported(format!("{path}.file_id"), remedy))
        }
        _ => Err(of(&path, "it must be an object of the type base64 or url")),
    }
}
