//! The page at `/`, and the state that it shows.

use std::time::Duration;

use serde_json::{Value, json};
use trine_server::Keys;

use crate::client;
use crate::harness::{CONTEXT, Harness, SEQUENCES};

const FILES: [(&str, &str); 27] = [
    ("/", "text/html; charset=utf-8"),
    ("/page/page.css", "text/css; charset=utf-8"),
    ("/page/icon.svg", "image/svg+xml"),
    ("/page/page.js", "text/javascript; charset=utf-8"),
    ("/page/access.js", "text/javascript; charset=utf-8"),
    ("/page/answering.js", "text/javascript; charset=utf-8"),
    ("/page/api.js", "text/javascript; charset=utf-8"),
    ("/page/attach.js", "text/javascript; charset=utf-8"),
    ("/page/begin.js", "text/javascript; charset=utf-8"),
    ("/page/composer.js", "text/javascript; charset=utf-8"),
    ("/page/conversation.js", "text/javascript; charset=utf-8"),
    ("/page/file.js", "text/javascript; charset=utf-8"),
    ("/page/fit.js", "text/javascript; charset=utf-8"),
    ("/page/frame.js", "text/javascript; charset=utf-8"),
    ("/page/get.js", "text/javascript; charset=utf-8"),
    ("/page/icons.js", "text/javascript; charset=utf-8"),
    ("/page/image.js", "text/javascript; charset=utf-8"),
    ("/page/markdown.js", "text/javascript; charset=utf-8"),
    ("/page/notice.js", "text/javascript; charset=utf-8"),
    ("/page/picture.js", "text/javascript; charset=utf-8"),
    ("/page/remembered.js", "text/javascript; charset=utf-8"),
    ("/page/settings.js", "text/javascript; charset=utf-8"),
    ("/page/sidebar.js", "text/javascript; charset=utf-8"),
    ("/page/store.js", "text/javascript; charset=utf-8"),
    ("/page/transfer.js", "text/javascript; charset=utf-8"),
    ("/page/turn.js", "text/javascript; charset=utf-8"),
    ("/page/view.js", "text/javascript; charset=utf-8"),
];

fn with_key() -> Harness {
    Harness::with(|options| options.keys = Some(Keys::parse("right-key\n").unwrap()))
}

#[test]
fn the_page_is_served_with_its_headers_and_needs_no_key() {
    let server = with_key();
    for (path, kind) in FILES {
        let answer = client::ask(server.address, "GET", path, &[], b"");
        assert_eq!(answer.status, 200, "{path}");
        assert_eq!(answer.header("content-type"), Some(kind), "{path}");
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"), "{path}");
        assert_eq!(answer.header("cache-control"), Some("no-cache"), "{path}");
        let policy = answer.header("content-security-policy").unwrap();
        assert!(policy.starts_with("default-src 'self';"), "{policy}");
        assert!(
            !policy.contains("unsafe") && policy.contains("frame-ancestors 'none'"),
            "{policy}"
        );
        let text = String::from_utf8(answer.body.clone()).unwrap();
        assert!(!text.is_empty() && !text.contains("right-key"), "{path}");
    }
}

#[test]
fn browsers_that_have_the_page_are_not_sent_it_again() {
    let server = Harness::start();
    for (path, kind) in FILES {
        let first = client::ask(server.address, "GET", path, &[], b"");
        let tag = first.header("etag").unwrap();
        let again = client::ask(server.address, "GET", path, &[("If-None-Match", tag)], b"");
        assert_eq!((again.status, again.body.len()), (304, 0), "{path}");
        assert_eq!((again.header("etag"), again.header("content-type")), (Some(tag), Some(kind)));
        let other = client::ask(server.address, "GET", path, &[("If-None-Match", "\"x\"")], b"");
        assert_eq!((other.status, other.body), (200, first.body), "{path}");
    }
    let head = client::ask(server.address, "HEAD", "/", &[], b"");
    assert_eq!(head.status, 200, "Ollama's clients look whether anybody is there");
}

#[test]
fn no_other_path_is_public_or_answered_beside_the_page() {
    let server = with_key();
    for path in ["/page/", "/page/other.js", "/page/../v1/models", "/page/mod.rs", "/page//page.js"]
    {
        let answer = client::ask(server.address, "GET", path, &[], b"");
        assert_eq!(answer.status, 401, "{path}");
        let key = [("Authorization", "Bearer right-key")];
        let answer = client::ask(server.address, "GET", path, &key, b"");
        assert_eq!(answer.status, 404, "{path}");
    }
}

#[test]
fn the_state_needs_a_key() {
    let server = with_key();
    let path = "/v1/trine/status";
    let refused = client::ask(server.address, "GET", path, &[], b"");
    assert_eq!(
        (refused.status, &refused.json()["error"]["code"]),
        (401, &json!("invalid_api_key"))
    );
    let key = [("Authorization", "Bearer right-key")];
    let answer = client::ask(server.address, "GET", path, &key, b"");
    assert_eq!((answer.status, answer.header("cache-control")), (200, Some("no-store")));
}

fn state(server: &Harness) -> Value {
    let (status, answer) = server.get("/v1/trine/status");
    assert_eq!(status, 200, "{answer}");
    answer
}

#[test]
fn the_state_tells_what_each_engine_does() {
    let server = Harness::start();
    server.slow_down(Duration::from_millis(5));
    let idle = state(&server);
    assert_eq!(idle["phase"], "running");
    let models = idle["models"].as_array().unwrap();
    assert!(models.len() > 1);
    assert_eq!((&models[1]["name"], &models[1]["is_loaded"]), (&json!("other"), &json!(false)));
    assert!(models[1].get("status").is_none(), "{}", models[1]);
    let main = &models[0];
    assert_eq!((&main["name"], &main["is_loaded"]), (&json!("main"), &json!(true)));
    assert_eq!(main["status"]["context"], CONTEXT);
    assert_eq!(main["status"]["sequences"], SEQUENCES);
    assert!(main["tokens_per_second"].is_null(), "nobody looked before");
    let body = json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 300});
    let address = server.address;
    let asking = std::thread::spawn(move || {
        client::post(address, "/v1/chat/completions", &[], body.to_string().as_bytes()).status
    });
    server.wait_for("the request runs", |status| status.generated_tokens > 20);
    let busy = state(&server);
    let main = &busy["models"][0];
    assert_eq!(main["status"]["running"], 1, "{main}");
    assert!(main["status"]["blocks_running"].as_u64().unwrap() > 0, "{main}");
    assert!(main["tokens_per_second"].as_f64().unwrap() > 1.0, "{main}");
    assert!(main["busy_share"].as_f64().unwrap() > 0.0, "{main}");
    assert_eq!(asking.join().unwrap(), 200);
}
