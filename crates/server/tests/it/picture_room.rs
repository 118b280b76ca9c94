//! Room for the prepared pictures of all requests.

use std::io::Write as _;
use std::net::TcpStream;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::client;
use crate::harness::Harness;
use crate::pictures::{CHAT, file, image, message, server_with, text, url, user};

/// Sends a request for a stream, and does not read the answer.
fn begin(server: &Harness, body: &Value) -> TcpStream {
    let body = body.to_string();
    let mut stream = client::connect(server.address);
    let length = body.len().to_string();
    let fields = [("Content-Length", &*length), ("Content-Type", "application/json")];
    let head = client::head("POST", CHAT, &fields);
    stream.write_all((head + &body).as_bytes()).unwrap();
    stream
}

/// A prepared picture takes 37,632 bytes here; room is counted in 64 KiB.
#[test]
fn pictures_of_a_request_take_room_once() {
    let server = server_with(|options| options.limits.pictures.prepared_bytes = 1 << 16);
    let body = |names: [&str; 3]| {
        json!({"messages": [user(&names.map(|name| image(&url(name))))],
        "max_tokens": 1})
    };
    let (status, error) = server.post(CHAT, &body(["a.png", "b.png", "a.png"]));
    assert_eq!(status, 400, "never");
    assert!(message(&error).contains("75264 bytes"), "{error}");
    for _ in 0..3 {
        let (status, answer) = server.post(CHAT, &body(["a.png"; 3]));
        assert_eq!(status, 200, "{answer}");
    }
    assert_eq!(server.loader.eye.seen.lock().unwrap().len(), 1);
}

/// The room is given back when rows are made, and not when the answer ends.
#[test]
fn pictures_wait_for_the_room_of_others() {
    let server = server_with(|options| options.limits.pictures.prepared_bytes = 1 << 16);
    let body = |name: &str, most: usize| {
        json!({"messages": [user(&[image(&url(name))])],
        "max_tokens": most, "stream": true})
    };
    server.slow_down(Duration::from_millis(20));
    let held = &server.loader.eye.is_held;
    held.store(true, Ordering::SeqCst);
    let first = begin(&server, &body("a.png", 400));
    server.wait_for("its picture is run", |status| status.waiting + status.running == 1);
    let second = begin(&server, &body("b.png", 400));
    // What only counts takes no room, and neither does what has no pictures.
    let words = json!({"messages": [user(&[text("a")])], "max_tokens": 1});
    assert_eq!(server.post(CHAT, &words).0, 200);
    for path in ["/v1/messages/count_tokens", "/tokenize", "/apply-template"] {
        let (status, answer) = server.post(path, &body("b.png", 1));
        assert_eq!(status, 200, "{path}: {answer}");
    }
    let status = server.status();
    assert_eq!(status.waiting + status.running, 1, "the second one waits for room");
    held.store(false, Ordering::SeqCst);
    server.wait_for("both run", |status| status.running == 2);
    drop((first, second));
    server.wait_idle();
    assert_eq!(server.loader.eye.seen.lock().unwrap().len(), 2);
}

/// A request with many pictures waits until a tower has made the rows of others'.
#[test]
fn a_picture_does_not_wait_behind_many_that_wait() {
    let server = server_with(|options| options.limits.pictures.prepared_bytes = 32 << 16);
    // Each with a palette of its own.
    let copy = |number: u8| {
        let mut file = file("decoded/plain.gif");
        let colours = 2 << (file[10] & 7);
        file[13..13 + 3 * colours].iter_mut().for_each(|level| *level = level.wrapping_add(number));
        image(&format!("data:image/gif;base64,{}", STANDARD.encode(file)))
    };
    let body = |numbers: Range<u8>| {
        let parts: Vec<_> = numbers.map(copy).collect();
        json!({"messages": [user(&parts)], "max_tokens": 400, "stream": true})
    };
    server.slow_down(Duration::from_millis(20));
    let held = &server.loader.eye.is_held;
    held.store(true, Ordering::SeqCst);
    let first = begin(&server, &body(0..20));
    server.wait_for("its pictures are run", |status| status.waiting + status.running == 1);
    let second = begin(&server, &body(20..40));
    let third = begin(&server, &body(40..41));
    server.wait_for("the third one overtakes", |status| status.waiting + status.running == 2);
    held.store(false, Ordering::SeqCst);
    server.wait_for("all run", |status| status.running == 3);
    drop((first, second, third));
    server.wait_idle();
}
