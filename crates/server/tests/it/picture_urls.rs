//! Pictures that requests name by URL.

use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use trine_server::{Fetch, FetchEnd, Fetched, Fetcher, ImageUrls, ServerOptions};

use crate::harness::Harness;
use crate::pictures::{
    CHAT, MESSAGES, file, header_only, image, message, server, server_with, text, url, user,
};

/// Answers as a table says, and notes what it was asked for.
#[derive(Debug, Default)]
struct Web {
    answers: Vec<(&'static str, Fetched)>,
    asked: Mutex<Vec<Fetch>>,
}

impl Fetcher for Web {
    fn get(&self, request: &Fetch, _: &FetchEnd) -> Result<Fetched, String> {
        self.asked.lock().unwrap().push(request.clone());
        let found = self.answers.iter().find(|(url, _)| *url == request.url);
        found
            .map(|(_, answer)| answer.clone())
            .ok_or_else(|| "its server answers with status 404".to_owned())
    }
}

/// A picture of 12 MB.
fn heavy() -> Vec<u8> {
    let mut file = file("a.png");
    file.resize(12_000_000, 0);
    file
}

/// Public addresses of their own, so that nothing is resolved.
fn web() -> (Harness, Arc<Web>) {
    web_with(|_| {})
}

fn web_with(change: impl FnOnce(&mut ServerOptions)) -> (Harness, Arc<Web>) {
    let web = Arc::new(Web {
        answers: vec![
            ("https://1.1.1.1/a.png", Fetched::Body(file("a.png"))),
            ("https://1.1.1.1/moved", Fetched::Redirect("https://1.0.0.1/b.png".to_owned())),
            ("https://1.0.0.1/b.png", Fetched::Body(file("b.png"))),
            ("https://1.1.1.1/loop", Fetched::Redirect("/loop".to_owned())),
            ("https://1.1.1.1/away", Fetched::Redirect("https://8.8.8.8/".to_owned())),
            ("http://1.1.1.1/private", Fetched::Redirect("http://127.0.0.1/".to_owned())),
            ("https://1.1.1.1/inside", Fetched::Redirect("http://127.0.0.1/".to_owned())),
            ("https://1.1.1.1/plain", Fetched::Redirect("http://1.1.1.1/a.png".to_owned())),
            ("https://1.1.1.1/page", Fetched::Body(b"<html>".to_vec())),
            ("https://1.1.1.1/bomb", Fetched::Body(header_only(10_000, 10_000))),
            ("https://1.1.1.1/heavy", Fetched::Body(heavy())),
            ("https://1.1.1.1/huge", Fetched::TooLarge),
            ("https://1.1.1.1/away/large", Fetched::Redirect("../large".to_owned())),
            ("https://1.1.1.1/large", Fetched::Body(vec![0; 20_000_001])),
        ],
        asked: Mutex::default(),
    });
    let fetcher: Arc<dyn Fetcher> = web.clone();
    let hosts = ["1.1.1.1", "1.0.0.1", "localhost", "127.0.0.1", "no.invalid"];
    let hosts = hosts.map(str::to_owned).to_vec();
    let server = server_with(|options| {
        options.image_urls = Some(ImageUrls { hosts, fetcher });
        change(options);
    });
    (server, web)
}

/// A file is counted as it is once it has come.
#[test]
fn files_of_a_request_that_never_have_room_are_its_error() {
    let (server, _) = web_with(|options| {
        options.limits.bodies_bytes = 20_000_000_usize.next_multiple_of(1 << 16);
    });
    let body = |places: &[&str]| {
        let parts: Vec<Value> =
            places.iter().map(|place| image(&format!("https://1.1.1.1/{place}"))).collect();
        json!({"messages": [user(&parts)], "max_tokens": 1})
    };
    assert_eq!(server.post(CHAT, &body(&["a.png"; 9])).0, 200);
    let (status, error) = server.post(CHAT, &body(&["heavy", "heavy"]));
    assert_eq!(status, 400, "{error}");
    assert_eq!(error["error"]["param"], "messages[0].content[1].image_url.url");
    assert!(message(&error).contains("20054016 bytes together; name fewer"), "{error}");
}

#[test]
fn urls_of_named_hosts_are_fetched() {
    let (server, web) = web();
    let parts = [
        image(" https://1.1.1.1/a.png\n"),
        image(&url("a.png")),
        image("https://1.1.1.1/moved"),
        text("Compare."),
    ];
    let (status, answer) = server.post(CHAT, &json!({"messages": [user(&parts)], "max_tokens": 1}));
    assert_eq!(status, 200, "{answer}");
    assert_eq!(server.loader.eye.seen.lock().unwrap().len(), 2, "two are the same");
    let asked = web.asked.lock().unwrap();
    let urls: Vec<&str> = asked.iter().map(|fetch| fetch.url.as_str()).collect();
    assert_eq!(urls, ["https://1.1.1.1/a.png", "https://1.1.1.1/moved", "https://1.0.0.1/b.png"]);
    assert_eq!(asked[0].addresses, ["1.1.1.1:443".parse().unwrap()]);
    assert!(asked.iter().all(|fetch| fetch.bytes == 20_000_000));
}

#[test]
fn other_urls_are_refused_with_their_reason() {
    let (server, _) = web();
    for (url, words) in [
        ("https://example.com/a.png", "--allow-image-urls"),
        ("http://169.254.169.254/latest/meta-data", "--allow-image-urls"),
        ("http://[::1]/", "--allow-image-urls"),
        ("http://2130706433/", "public"),
        ("http://127.0.0.1/", "public"),
        ("http://localhost/", "public"),
        ("https://no.invalid/", "not found"),
        ("https://1.1.1.1:22/", "--allow-image-urls"),
        ("https://me:secret@1.1.1.1/", "password"),
        ("file:///etc/passwd", "data:image"),
        ("ftp://1.1.1.1/a.png", "data:image"),
        ("gopher://1.1.1.1/", "data:image"),
        ("/etc/passwd", "data:image"),
        ("http://", "URL"),
        ("https://1.1.1.1/none", "404"),
        ("https://1.1.1.1/loop", "more than 3 times"),
        (
            "https://1.1.1.1/away",
            "https://1.1.1.1/away redirects to the host 8.8.8.8, which --allow-image-urls does not \
             name",
        ),
        ("https://1.1.1.1/inside", "redirects to the host 127.0.0.1: a redirect from https"),
        (
            "http://1.1.1.1/private",
            "redirects to the host 127.0.0.1: the host of the URL is not at",
        ),
        ("https://1.1.1.1/plain", "redirects to the host 1.1.1.1: a redirect from https"),
        ("https://1.1.1.1/page", "PNG, JPEG"),
        ("https://1.1.1.1/bomb", "50,331,648"),
        ("https://1.1.1.1/large", "more than 20000000 bytes"),
        ("https://1.1.1.1/huge", "more than 20000000 bytes"),
        (
            "https://1.1.1.1/away/large",
            "away/large redirects to the host 1.1.1.1: the image has more than 20000000 bytes",
        ),
    ] {
        let (status, error) = server.post(CHAT, &json!({"messages": [user(&[image(url)])]}));
        assert_eq!(status, 400, "{url}: {error}");
        assert_eq!(error["error"]["param"], "messages[0].content[0].image_url.url", "{url}");
        assert!(message(&error).contains(words), "{url}: {error}");
    }
}

/// What counts tokens reads headers: this picture is damaged, and a tower of squares needs none.
#[test]
fn pictures_are_counted_by_their_headers() {
    let (server, web) = web();
    let damaged = format!("data:image/png;base64,{}", STANDARD.encode(header_only(9, 9)));
    let count = |path: &str, url: &str| {
        let (status, answer) = server.post(path, &json!({"messages": [user(&[image(url)])]}));
        assert_eq!(status, 200, "{path}: {answer}");
        answer
    };
    for path in ["/v1/chat/completions/input_tokens", "/tokenize", "/apply-template"] {
        let known = count(path, &url("a.png"));
        assert_eq!(count(path, &damaged), known, "{path}");
        assert_eq!(count(path, "https://1.1.1.1/a.png"), known, "{path}");
    }
    assert!(web.asked.lock().unwrap().is_empty(), "nothing is fetched");
}

/// Ollama's own server takes none there either.
#[test]
fn urls_in_the_place_of_base64_are_refused_as_such() {
    let (server, _) = web();
    let url = "https://1.1.1.1/a.png";
    for (path, body, param) in [
        ("/api/generate", json!({"prompt": "a", "images": [url]}), "images[0]"),
        (
            "/api/chat",
            json!({"messages": [{"role": "user", "content": "a", "images": [url]}]}),
            "messages[0].images[0]",
        ),
        (
            MESSAGES,
            json!({"max_tokens": 1, "messages": [user(&[
                json!({"type": "image", "source": {"type": "base64", "data": url}}),
            ])]}),
            "messages[0].content[0].source.data",
        ),
    ] {
        let (status, error) = server.post(path, &body);
        assert_eq!(status, 400, "{path}: {error}");
        let words = format!("{param}: a URL is not fetched from here; send the image itself");
        assert!(message(&error).contains(&words), "{path}: {error}");
    }
}

#[test]
fn nothing_is_fetched_unless_hosts_are_named() {
    let server = server();
    for url in ["https://example.com/a.png", "http://127.0.0.1/", "HTTPS://[::1]/"] {
        let (status, error) = server.post(CHAT, &json!({"messages": [user(&[image(url)])]}));
        assert_eq!(status, 400);
        let words = message(&error);
        assert!(words.contains("--allow-image-urls") && words.contains("data:image"), "{error}");
    }
    // A model is not asked for either.
    let body =
        json!({"model": "broken", "messages": [user(&[image("https://example.com/a.png")])]});
    assert_eq!(server.post(CHAT, &body).0, 400);
}

/// What is wrong without its pictures is refused before another server is asked for them.
#[test]
fn nothing_is_fetched_for_a_request_that_is_refused_without_it() {
    let (server, web) = web();
    let picture = image("https://1.1.1.1/a.png");
    let chat = json!({"messages": [user(std::slice::from_ref(&picture))]});
    let with = |field: &str, value: Value| {
        let mut body = chat.clone();
        body[field] = value;
        body
    };
    let schema = json!({"type": "nonsense"});
    let long = [picture.clone(), text(&"one word and another ".repeat(2000))];
    let format = json!({"type": "json_schema", "json_schema": {"name": "a", "schema": schema}});
    for (path, body, words) in [
        (CHAT, with("response_format", format), "nonsense"),
        (CHAT, with("guided_regex", json!("(")), "guided_regex"),
        (CHAT, json!({"messages": [user(&long)]}), "context"),
        ("/api/chat", with("format", schema.clone()), "nonsense"),
    ] {
        let (status, error) = server.post(path, &body);
        assert_eq!(status, 400, "{error}");
        assert!(error.to_string().contains(words), "{words}: {error}");
        assert!(web.asked.lock().unwrap().is_empty(), "{words}");
    }
    assert_eq!(server.post(CHAT, &with("max_tokens", json!(1))).0, 200);
}
