//! Pictures as requests have them.

use std::collections::{HashMap, HashSet};
use std::fmt;

use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio::sync::OwnedSemaphorePermit;
use trine_engine::{EngineError, PictureHandle, Scope, TowerInput};
use trine_foreign::WebUrl;
use trine_pictures::{Limits, Picture, Preparation, from_base64, from_data_url};
use trine_text::{Content, Part};

use crate::error::ApiError;
use crate::models::{Lease, Pictures};
use crate::request::history::{Missing, Turn, reason};
use crate::request::image_urls::{self, AllowedUrl, ImageUrls};
use crate::request::pictures::tower_input;
use crate::service::options::PictureLimits;
use crate::service::rooms::Decoding;

/// Most pictures of a request.
const MOST: usize = 64;

/// The pictures of a request, in the order of their parts in its messages.
///
/// A picture of an earlier turn that cannot be shown is no error: it is left out, and its message
/// says so in words ([`Sent::missing`]).
#[derive(Debug, Default)]
pub(crate) struct Sent {
    pictures: Vec<SentPicture>,
    /// Number of pictures in the newest turn.
    newest: usize,
}

/// A request that may have pictures.
pub(crate) trait Pictured {
    /// Returns its pictures; `None` if its kind has none.
    fn pictures(&mut self) -> Option<&mut Sent> {
        None
    }

    /// Returns the context that it asks for, for its prompt and answer.
    fn context(&self) -> Option<usize> {
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
    turn: Turn,
    /// Its media type and name, as far as the request says so.
    about: String,
    source: PictureSource,
    /// The room that it takes when it is prepared.
    room: Option<OwnedSemaphorePermit>,
}

enum PictureSource {
    File(Vec<u8>),
    /// A file whose header was read.
    Measured(Measured),
    Url(WebUrl),
    /// It was decoded.
    Decoded,
    /// It is not shown, for this reason.
    LeftOut(String),
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
        self.pictures.is_empty()
    }

    /// Returns the field of the first picture that is not left out.
    pub(crate) fn param(&self) -> Option<&str> {
        self.shown().next().map(|picture| picture.param.as_str())
    }

    /// Returns the pictures that are not left out.
    fn shown(&self) -> impl Iterator<Item = &SentPicture> {
        self.pictures.iter().filter(|picture| !matches!(picture.source, PictureSource::LeftOut(_)))
    }

    /// Leaves out pictures of earlier turns for a model that takes none.
    pub(crate) fn meet(&mut self, sees: bool) {
        if !sees {
            self.leave_out_earlier("this model reads none");
        }
    }

    /// Leaves out the pictures of earlier turns.
    pub(crate) fn leave_out_earlier(&mut self, why: &str) {
        let earlier = self.pictures.iter_mut().filter(|picture| picture.turn == Turn::Earlier);
        for picture in earlier {
            if !matches!(picture.source, PictureSource::LeftOut(_)) {
                picture.leave_out(why.to_owned());
            }
        }
    }

    /// Returns for each picture, in order, what its message says instead if it is left out.
    pub(crate) fn missing(&self) -> Vec<Option<Missing>> {
        let of = |picture: &SentPicture| match &picture.source {
            PictureSource::LeftOut(why) => Some(Missing {
                what: "image".to_owned(),
                about: picture.about.clone(),
                why: why.clone(),
                param: picture.param.clone(),
            }),
            _ => None,
        };
        self.pictures.iter().map(of).collect()
    }

    /// Forgets the pictures that are left out, once the messages say so.
    pub(crate) fn forget_missing(&mut self) {
        self.pictures.retain(|picture| !matches!(picture.source, PictureSource::LeftOut(_)));
    }

    /// Forgets the pictures whose messages are left out, given for each whether it is kept.
    pub(crate) fn keep(&mut self, is_kept: impl IntoIterator<Item = bool>) {
        let mut is_kept = is_kept.into_iter();
        self.pictures.retain(|_| is_kept.next().unwrap_or(true));
    }

    /// Returns whether a picture is of an earlier turn.
    pub(crate) fn has_earlier(&self) -> bool {
        self.shown().any(|picture| picture.turn == Turn::Earlier)
    }

    /// Leaves a picture out because of an error.
    ///
    /// # Errors
    /// The error, if the picture is in the newest turn.
    pub(super) fn fail(&mut self, index: usize, error: ApiError) -> Result<(), ApiError> {
        match self.pictures.get_mut(index) {
            Some(picture) if picture.turn == Turn::Earlier => {
                picture.leave_out(reason(&error));
                Ok(())
            }
            _ => Err(error),
        }
    }

    /// Leaves out the oldest picture of earlier turns; returns whether there was one.
    pub(super) fn fail_oldest(&mut self, error: &ApiError) -> bool {
        let is_earlier = |picture: &&mut SentPicture| {
            picture.turn == Turn::Earlier && !matches!(picture.source, PictureSource::LeftOut(_))
        };
        let oldest = self.pictures.iter_mut().find(is_earlier);
        oldest.map(|picture| picture.leave_out(reason(error))).is_some()
    }

    /// Returns the indices of all pictures: those of the newest turn, which have to be shown, and
    /// then the others, the newest first.
    pub(super) fn by_weight(&self) -> Vec<usize> {
        let of = |turn: Turn| {
            let is_of = move |index: &usize| self.pictures[*index].turn == turn;
            (0..self.pictures.len()).filter(is_of)
        };
        of(Turn::Newest).chain(of(Turn::Earlier).rev()).collect()
    }

    /// Adds the picture of a part at `path` of a message.
    ///
    /// | type | picture |
    /// |---|---|
    /// | `image_url`, `input_image` | `image_url`, a URL or an object with it |
    /// | `image` | `source`, an object with base64 or a URL |
    ///
    /// # Errors
    /// 400 naming the field for a picture that is not there, in no form that is read, or one too
    /// many in the newest turn.
    pub(crate) fn read(
        &mut self,
        part: &Value,
        path: &str,
        turn: Turn,
        about: &str,
    ) -> Result<(), ApiError> {
        let (param, source) = match part.get("type").and_then(Value::as_str) {
            Some("image") => read_source_part(part, path)?,
            _ => read_url_part(part, path)?,
        };
        self.add(param, source, turn, about)
    }

    /// Adds a picture that is a file in base64.
    ///
    /// # Errors
    /// As [`Sent::read`].
    pub(crate) fn read_base64(
        &mut self,
        data: &Value,
        path: &str,
        turn: Turn,
        about: &str,
    ) -> Result<(), ApiError> {
        let text = data.as_str().ok_or_else(|| of(path, "it must be an image in base64"))?;
        let source = read_data(text, path)?;
        self.add(path.to_owned(), source, turn, about)
    }

    /// Returns the content of a message that shows all of them before a text.
    pub(crate) fn before(&self, text: String) -> Content {
        if self.is_empty() {
            return Content::Text(text);
        }
        let pictures = self.pictures.iter().map(|_| Part::picture());
        Content::Parts(pictures.chain([Part::text(text)]).collect())
    }

    fn add(
        &mut self,
        param: String,
        source: PictureSource,
        turn: Turn,
        about: &str,
    ) -> Result<(), ApiError> {
        if turn == Turn::Newest {
            self.newest += 1;
            if self.newest > MOST {
                let message = format!("the request has more than {MOST} images; send fewer");
                return Err(ApiError::field(param, message));
            }
        }
        let about = about.to_owned();
        self.pictures.push(SentPicture { param, turn, about, source, room: None });
        Ok(())
    }

    /// Checks what needs no model: hosts of pictures that are named, what files announce, and how
    /// many there are. Those of the newest turn count first, and then the newest of the others.
    ///
    /// # Errors
    /// 400 naming a picture of the newest turn.
    pub(crate) fn check(
        &mut self,
        limits: &PictureLimits,
        urls: Option<&ImageUrls>,
    ) -> Result<(), ApiError> {
        let (mut pixels, mut count) = (0_u64, 0);
        for index in self.by_weight() {
            let picture = &mut self.pictures[index];
            if matches!(picture.source, PictureSource::LeftOut(_)) {
                continue;
            }
            if count == MOST {
                picture.leave_out(format!("only the newest {MOST} are shown"));
                continue;
            }
            match picture.check(limits, urls, pixels) {
                Ok(all) => (pixels, count) = (all, count + 1),
                Err(error) => self.fail(index, error)?,
            }
        }
        Ok(())
    }

    /// Returns whether pictures are only named.
    pub(crate) fn names_urls(&self) -> bool {
        self.pictures.iter().any(|picture| matches!(picture.source, PictureSource::Url(_)))
    }

    /// Returns the URLs of the pictures that are only named, with their indices, those first that
    /// have to be shown.
    pub(super) fn urls(&self) -> Vec<(usize, WebUrl)> {
        let url = |index: usize| match &self.pictures[index].source {
            PictureSource::Url(url) => Some((index, url.clone())),
            _ => None,
        };
        self.by_weight().into_iter().filter_map(url).collect()
    }

    /// Returns an error about a picture.
    pub(super) fn wrong(&self, index: usize, what: impl fmt::Display) -> ApiError {
        of(self.pictures.get(index).map_or("messages", |picture| &picture.param), what)
    }

    /// Puts a file in the place of a URL.
    pub(super) fn put(&mut self, index: usize, file: Vec<u8>) {
        if let Some(picture) = self.pictures.get_mut(index) {
            picture.source = PictureSource::File(file);
        }
    }

    /// Returns the bytes that each picture takes when it is prepared: none for one whose file came
    /// before, which is prepared once.
    pub(super) fn prepared_bytes(&self, preparation: &Preparation) -> Vec<usize> {
        let mut seen = HashSet::new();
        let of = |picture: &SentPicture| match &picture.source {
            PictureSource::Measured(Measured { digest, size: (width, height), .. })
                if seen.insert(*digest) =>
            {
                preparation.bytes(*width, *height)
            }
            _ => 0,
        };
        self.pictures.iter().map(of).collect()
    }

    /// Gives each picture its permits of a room.
    pub(super) fn house(&mut self, mut room: OwnedSemaphorePermit, each: &[usize]) {
        for (picture, &permits) in self.pictures.iter_mut().zip(each) {
            picture.room = room.split(permits.min(room.num_permits()));
        }
    }

    /// Returns what decoding each picture takes, one after the other.
    pub(super) fn decoding(&self) -> Vec<Decoding> {
        let of = |picture: &SentPicture| match &picture.source {
            PictureSource::Measured(Measured { file, size, .. }) => Decoding {
                pixels: (size.0 as usize).saturating_mul(size.1 as usize),
                bytes: Picture::decoding_bytes(file, *size),
            },
            _ => Decoding::default(),
        };
        self.pictures.iter().map(of).collect()
    }

    /// Returns the number of soft tokens of each picture that is not left out.
    ///
    /// # Errors
    /// 400 naming a picture of the newest turn that is wider than a step of the model.
    pub(crate) fn soft_tokens(
        &mut self,
        pictures: &Pictures,
        limits: &trine_engine::RequestLimits,
    ) -> Result<Vec<usize>, ApiError> {
        let most = limits.picture.ok_or(EngineError::NoPictures)?;
        let mut counts = Vec::with_capacity(self.pictures.len());
        for index in 0..self.pictures.len() {
            let (width, height) = match self.pictures[index].source {
                PictureSource::LeftOut(_) => continue,
                PictureSource::Measured(Measured { size, .. }) => size,
                // It was not fetched.
                PictureSource::File(_) | PictureSource::Url(_) | PictureSource::Decoded => (0, 0),
            };
            let soft_tokens = pictures.preparation.soft_tokens(width, height) as usize;
            if soft_tokens <= most {
                counts.push(soft_tokens);
            } else {
                let wide = EngineError::PictureTooWide { soft_tokens, most };
                self.fail(index, self.wrong(index, wide))?;
            }
        }
        Ok(counts)
    }

    /// Decodes and prepares the pictures, those with one file once; `None` for one that is left out
    /// because it is damaged. Their rows are kept for requests of one scope.
    ///
    /// # Errors
    /// 400 naming a picture of the newest turn that is damaged.
    pub(crate) fn handles(
        &mut self,
        pictures: &Pictures,
        scope: Scope,
    ) -> Result<Vec<Option<PictureHandle>>, ApiError> {
        let mut known: HashMap<[u8; 32], PictureHandle> = HashMap::new();
        let mut handles = Vec::with_capacity(self.pictures.len());
        for index in 0..self.pictures.len() {
            let picture = &mut self.pictures[index];
            let room = picture.room.take();
            let source = std::mem::replace(&mut picture.source, PictureSource::Decoded);
            let PictureSource::Measured(Measured { file, digest, limits, .. }) = source else {
                return Err(ApiError::internal("a picture was not measured"));
            };
            if let Some(handle) = known.get(&digest) {
                handles.push(Some(handle.clone()));
                continue;
            }
            let decoded = match Picture::decode(&file, &limits) {
                Ok(decoded) => decoded,
                Err(error) => {
                    self.fail(index, self.wrong(index, error))?;
                    handles.push(None);
                    continue;
                }
            };
            drop(file);
            let prepared = pictures.preparation.prepare(&decoded);
            drop(decoded);
            let input = tower_input(&prepared);
            // Otherwise the time of a request would tell who else has sent the picture.
            let input = TowerInput { digest: scope.digest(input.digest), ..input };
            let handle = pictures.tower.handle_in(input, room);
            known.insert(digest, handle.clone());
            handles.push(Some(handle));
        }
        Ok(handles)
    }
}

impl SentPicture {
    fn leave_out(&mut self, why: String) {
        self.source = PictureSource::LeftOut(why);
        self.room = None;
    }

    /// Checks the picture beside others, which have `pixels` together; returns the pixels with its
    /// own.
    fn check(
        &mut self,
        limits: &PictureLimits,
        urls: Option<&ImageUrls>,
        pixels: u64,
    ) -> Result<u64, ApiError> {
        if let PictureSource::Url(url) = &self.source {
            AllowedUrl::of(url, urls).map_err(|what| of(&self.param, what))?;
        }
        self.measure(limits)?;
        let PictureSource::Measured(Measured { size: (width, height), .. }) = self.source else {
            return Ok(pixels);
        };
        let pixels = pixels.saturating_add(u64::from(width) * u64::from(height));
        if pixels > limits.pixels {
            let message = format!(
                "the images of the request have more than {} pixels together; make them smaller, \
                 or send fewer",
                limits.pixels
            );
            return Err(ApiError::field(&self.param, message));
        }
        Ok(pixels)
    }

    /// Reads the header of a file.
    fn measure(&mut self, limits: &PictureLimits) -> Result<(), ApiError> {
        if let PictureSource::File(file) = &mut self.source {
            let size = Picture::measure(file, &limits.each);
            let size = size.map_err(|error| of(&self.param, error))?;
            let (file, limits) = (std::mem::take(file), limits.each.clone());
            let digest = Sha256::digest(&file).into();
            self.source = PictureSource::Measured(Measured { file, digest, limits, size });
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
fn read_url(url: &str, param: &str) -> Result<PictureSource, ApiError> {
    // As in browsers (<https://url.spec.whatwg.org/#concept-basic-url-parser>).
    let url = url.trim_matches(|sign| sign <= ' ');
    if begins_with(url, "data:") {
        let file = from_data_url(url, &unlimited()).map_err(|error| of(param, error))?;
        return Ok(PictureSource::File(file));
    }
    if is_web(url) {
        let url = image_urls::read_url(url).map_err(|error| of(param, error))?;
        return Ok(PictureSource::Url(url));
    }
    Err(of(param, "use a URL that begins like data:image/png;base64,; nothing else is read"))
}

/// Reads an image in base64. Some clients write a data URL there.
fn read_data(data: &str, param: &str) -> Result<PictureSource, ApiError> {
    if is_web(data) {
        return Err(of(param, "a URL is not fetched from here; send the image itself in base64"));
    }
    let file = match begins_with(data, "data:") {
        true => from_data_url(data, &unlimited()),
        false => from_base64(data, &unlimited()),
    };
    file.map(PictureSource::File).map_err(|error| of(param, error))
}

/// Reads a part with `image_url`, in the form of chats or in that of the Responses API.
fn read_url_part(part: &Value, path: &str) -> Result<(String, PictureSource), ApiError> {
    let (param, url) = match part.get("image_url") {
        Some(Value::Object(object)) => (format!("{path}.image_url.url"), object.get("url")),
        Some(url) if !url.is_null() => (format!("{path}.image_url"), Some(url)),
        _ if part.get("file_id").is_some_and(|id| !id.is_null()) => {
            let remedy = "files are not kept here; send the image in image_url";
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
fn read_source_part(part: &Value, path: &str) -> Result<(String, PictureSource), ApiError> {
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
            let (param, data) = text("data", "an image in base64")?;
            let source = read_data(data, &param)?;
            Ok((param, source))
        }
        Some("url") => {
            let (param, url) = text("url", "a URL like data:image/png;base64,...")?;
            let source = read_url(url, &param)?;
            Ok((param, source))
        }
        Some("file") => {
            let remedy = "files are not kept here; send the image as base64";
            Err(ApiError::unsupported(format!("{path}.file_id"), remedy))
        }
        _ => Err(of(&path, "it must be an object of the type base64 or url")),
    }
}
