//! The page at `/`: chats, and a live picture of the engines. Its files are part of the program.
//!
//! The page is public, as it holds no secret: it asks for a key when the server wants one and keeps
//! it in the tab. Nothing in it comes from a request or a model, and it may load nothing from
//! elsewhere: [`POLICY`].

use std::sync::LazyLock;

use axum::body::Body;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, HeaderValue, IF_NONE_MATCH,
    REFERRER_POLICY, X_FRAME_OPTIONS,
};
use axum::http::{HeaderMap, Request, Response, StatusCode};
use sha2::{Digest, Sha256};

use crate::error::{ApiError, Code};

/// What a browser lets the page do: load scripts, styles and data only from this server, and make
/// no HTML out of strings.
const POLICY: &str = "default-src 'self'; script-src 'self'; style-src 'self'; connect-src 'self'; \
    img-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors \
    'none'; require-trusted-types-for 'script'; trusted-types 'none'";

/// Bytes of the tag's digest.
const TAG_BYTES: usize = 12;

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const IMAGE: &str = "image/svg+xml";

/// A file of the page.
struct File {
    path: &'static str,
    kind: &'static str,
    text: &'static str,
    tag: LazyLock<HeaderValue>,
}

/// Makes a file from its path, its media type and its name in the folder `page`.
macro_rules! file {
    ($path:literal, $kind:ident, $name:literal) => {
        File {
            path: $path,
            kind: $kind,
            text: include_str!(concat!("page/", $name)),
            tag: LazyLock::new(|| tag(include_str!(concat!("page/", $name)))),
        }
    };
}

static FILES: [File; 27] = [
    file!("/", HTML, "index.html"),
    file!("/page/page.css", CSS, "page.css"),
    file!("/page/icon.svg", IMAGE, "icon.svg"),
    file!("/page/page.js", SCRIPT, "page.js"),
    file!("/page/access.js", SCRIPT, "access.js"),
    file!("/page/answering.js", SCRIPT, "answering.js"),
    file!("/page/api.js", SCRIPT, "api.js"),
    file!("/page/attach.js", SCRIPT, "attach.js"),
    file!("/page/begin.js", SCRIPT, "begin.js"),
    file!("/page/composer.js", SCRIPT, "composer.js"),
    file!("/page/conversation.js", SCRIPT, "conversation.js"),
    file!("/page/file.js", SCRIPT, "file.js"),
    file!("/page/fit.js", SCRIPT, "fit.js"),
    file!("/page/frame.js", SCRIPT, "frame.js"),
    file!("/page/get.js", SCRIPT, "get.js"),
    file!("/page/icons.js", SCRIPT, "icons.js"),
    file!("/page/image.js", SCRIPT, "image.js"),
    file!("/page/markdown.js", SCRIPT, "markdown.js"),
    file!("/page/notice.js", SCRIPT, "notice.js"),
    file!("/page/picture.js", SCRIPT, "picture.js"),
    file!("/page/remembered.js", SCRIPT, "remembered.js"),
    file!("/page/settings.js", SCRIPT, "settings.js"),
    file!("/page/sidebar.js", SCRIPT, "sidebar.js"),
    file!("/page/store.js", SCRIPT, "store.js"),
    file!("/page/transfer.js", SCRIPT, "transfer.js"),
    file!("/page/turn.js", SCRIPT, "turn.js"),
    file!("/page/view.js", SCRIPT, "view.js"),
];

fn find(path: &str) -> Option<&'static File> {
    FILES.iter().find(|file| file.path == path)
}

/// Returns whether a path is one of the page's files.
pub(crate) fn has(path: &str) -> bool {
    find(path).is_some()
}

/// `GET /` and `GET /page/{name}`
pub(crate) async fn file(request: Request<Body>) -> Result<Response<Body>, ApiError> {
    let file = find(request.uri().path()).ok_or_else(|| {
        ApiError::new(StatusCode::NOT_FOUND, Code::NotFound, "there is no such path")
    })?;
    let is_known = knows(request.headers(), &file.tag);
    let mut response = Response::new(if is_known { Body::empty() } else { Body::from(file.text) });
    if is_known {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
    }
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(file.kind));
    headers.insert(ETAG, file.tag.clone());
    // Another version of the program has another page at the same address: browsers ask each time.
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
    Ok(response)
}

/// Returns whether a client already has the file of a tag.
fn knows(headers: &HeaderMap, tag: &HeaderValue) -> bool {
    let known = headers.get_all(IF_NONE_MATCH).iter();
    let known = known.filter_map(|known| known.to_str().ok()).flat_map(|known| known.split(','));
    // A proxy that compresses makes the tag a weak one.
    let mut known = known.map(|known| known.trim().trim_start_matches("W/"));
    known.any(|known| known == "*" || known.as_bytes() == tag.as_bytes())
}

/// Returns a text's entity tag: the beginning of its SHA-256 in hexadecimal digits and quotes.
fn tag(text: &str) -> HeaderValue {
    let digest = Sha256::digest(text.as_bytes());
    let digits: String = digest.iter().take(TAG_BYTES).map(|byte| format!("{byte:02x}")).collect();
    HeaderValue::from_str(&format!("\"{digits}\"")).unwrap_or(HeaderValue::from_static("\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of all files together.
    const BYTES_MAX: usize = 200_000;
    /// The only address that is not a request: it names the elements of SVG.
    const SVG_NAMESPACE: &str = "http://www.w3.org/2000/svg";

    #[test]
    fn the_page_is_small() {
        let bytes: usize = FILES.iter().map(|file| file.text.len()).sum();
        assert!(bytes <= BYTES_MAX, "{bytes} bytes");
    }

    #[test]
    fn the_page_names_no_other_host() {
        for file in &FILES {
            let text = file.text.replace(SVG_NAMESPACE, "");
            for scheme in
                ["http://", "https://", "ws://", "wss://", "\"//", "'//", "url(", "@import"]
            {
                assert!(!text.contains(scheme), "{}: {scheme}", file.path);
            }
        }
    }

    #[test]
    fn texts_never_become_markup_or_code() {
        for file in &FILES {
            for word in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "DOMParser",
                "setHTML",
                "srcdoc",
                "eval(",
                "new Function",
                "import(",
                "javascript:",
            ] {
                assert!(!file.text.contains(word), "{}: {word}", file.path);
            }
        }
        let html = find("/").unwrap().text;
        for inline in [" style=", "<style", " onclick=", " onload=", " onerror=", " onsubmit="] {
            assert!(!html.contains(inline), "{inline}");
        }
        assert_eq!(
            html.matches("<script").count(),
            html.matches("<script type=\"module\" src=").count()
        );
        assert!(!POLICY.contains("unsafe"));
    }

    #[test]
    fn every_file_that_the_page_names_is_there() {
        for file in &FILES {
            for named in file.text.split(['"', '\'']) {
                let path = match named.strip_prefix("./") {
                    Some(name) if name.ends_with(".js") => format!("/page/{name}"),
                    None if named.starts_with("page/") => format!("/{named}"),
                    _ => continue,
                };
                assert!(has(&path), "{}: {path}", file.path);
            }
        }
    }

    #[test]
    fn tags_are_compared_as_browsers_send_them() {
        let tag = tag("a");
        let with = |known: &str| {
            let value = HeaderValue::from_str(known).unwrap();
            HeaderMap::from_iter([(IF_NONE_MATCH, value)])
        };
        let text = tag.to_str().unwrap();
        for known in [text.to_owned(), format!("\"x\", W/{text}"), "*".to_owned()] {
            assert!(knows(&with(&known), &tag), "{known}");
        }
        assert!(!knows(&with("\"x\""), &tag));
        assert!(!knows(&HeaderMap::new(), &tag));
    }
}
