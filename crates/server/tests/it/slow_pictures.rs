//! Pictures that are fetched from a server that is slow.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use trine_server::{Fetch, Fetched, Fetcher, ImageUrls};

use crate::client;
use crate::harness::Harness;
use crate::pictures::{CHAT, file, image, message, server_with, user};

/// Time for the pictures of a request.
const TIME: Duration = Duration::from_millis(400);
/// How long the first answer takes.
const PAUSE: Duration = Duration::from_millis(50);

/// Leads on after a pause, and then answers too late. Notes the time that it is given.
#[derive(Debug, Default)]
struct Slow(Mutex<Vec<Duration>>);

impl Fetcher for Slow {
    fn get(&self, request: &Fetch) -> Result<Fetched, String> {
        self.0.lock().unwrap().push(request.time);
        if request.url.ends_with("moved") {
            std::thread::sleep(PAUSE);
            return Ok(Fetched::Redirect("slow".to_owned()));
        }
        std::thread::sleep(request.time + PAUSE);
        Ok(Fetched::Body(Vec::new()))
    }
}

/// The whole way of a request's pictures has one time, which a fetcher is told the rest of.
#[test]
fn pictures_that_do_not_come_in_time_are_an_error() {
    let slow = Arc::new(Slow::default());
    let fetcher: Arc<dyn Fetcher> = slow.clone();
    let server = server_with(|options| {
        options.image_urls = Some(ImageUrls { hosts: vec!["1.1.1.1".to_owned()], fetcher });
        options.limits.pictures.fetching = TIME;
    });
    let parts = [image("https://1.1.1.1/moved"), image("https://1.1.1.1/never")];
    let (status, error) = server.post(CHAT, &json!({"messages": [user(&parts)]}));
    assert_eq!(status, 400, "{error}");
    assert_eq!(error["error"]["param"], "messages[0].content[0].image_url.url");
    assert!(message(&error).contains("within 0.4 s"), "{error}");
    let times = slow.0.lock().unwrap();
    assert_eq!(times.len(), 2, "the second picture is not asked for");
    assert!(times[0] <= TIME && times[1] + PAUSE <= times[0], "{times:?}");
}

/// Answers after a pause, and not while it is held; counts.
#[derive(Debug)]
struct Steady {
    pause: Duration,
    asked: AtomicUsize,
    is_held: AtomicBool,
}

impl Fetcher for Steady {
    fn get(&self, _: &Fetch) -> Result<Fetched, String> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        std::thread::sleep(self.pause);
        while self.is_held.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(Fetched::Body(file("a.png")))
    }
}

/// A server with room for `files` of the largest size.
fn steady(files: usize, pause: Duration, time: Duration) -> (Harness, Arc<Steady>) {
    let steady = Arc::new(Steady { pause, asked: AtomicUsize::default(), is_held: false.into() });
    let fetcher: Arc<dyn Fetcher> = steady.clone();
    let server = server_with(|options| {
        options.image_urls = Some(ImageUrls { hosts: vec!["1.1.1.1".to_owned()], fetcher });
        let each = options.limits.pictures.each.bytes.next_multiple_of(1 << 16);
        options.limits.bodies_bytes = files * each;
        options.limits.pictures.fetching = time;
    });
    (server, steady)
}

/// A request that names pictures.
fn naming(count: usize) -> Value {
    let parts = vec![image("https://1.1.1.1/a.png"); count];
    json!({"messages": [user(&parts)], "max_tokens": 1})
}

/// The room is counted by the largest files, of which it has few.
#[test]
fn requests_wait_for_one_another_s_fetched_pictures() {
    let (server, steady) = steady(4, PAUSE, Duration::from_secs(60));
    std::thread::scope(|scope| {
        let ask = |count: usize| server.post(CHAT, &naming(count)).0;
        let asked: Vec<_> =
            [1, 3, 1, 5, 2, 1, 4, 1].map(|count| scope.spawn(move || ask(count))).into();
        for status in asked {
            assert_eq!(status.join().unwrap(), 200);
        }
    });
    assert_eq!(steady.asked.load(Ordering::SeqCst), 18);
}

#[test]
fn a_request_waits_for_room_no_longer_than_for_its_pictures() {
    let (server, steady) = steady(1, 2 * TIME, TIME);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| server.post(CHAT, &naming(1)));
        while steady.asked.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        // One of them may be next, and has the room for as long.
        let others = [(); 2].map(|()| scope.spawn(|| server.post(CHAT, &naming(1))));
        assert_eq!(first.join().unwrap().0, 400);
        let others = others.map(|other| other.join().unwrap());
        let full = others.iter().find(|(status, _)| *status == 503);
        let (_, error) = full.expect("there is no room for both");
        assert!(message(error).contains("that are fetched; try again later"), "{error}");
    });
}

/// Nobody stops the thread that reads a file: it has room until it ends.
#[test]
fn room_is_taken_until_a_file_is_read_whoever_leaves() {
    let (server, steady) = steady(1, Duration::ZERO, TIME);
    let asked = || steady.asked.load(Ordering::SeqCst);
    let leave = || {
        let mut stream = client::connect(server.address);
        client::send(&mut stream, "POST", CHAT, &[], naming(1).to_string().as_bytes());
        while asked() == 1 {
            std::thread::yield_now();
        }
    };
    for round in 0..2 {
        steady.is_held.store(true, Ordering::SeqCst);
        steady.asked.store(1, Ordering::SeqCst);
        match round {
            0 => leave(),
            _ => assert_eq!(server.post(CHAT, &naming(1)).0, 400, "it does not come in time"),
        }
        assert_eq!(asked(), 2);
        let (status, error) = server.post(CHAT, &naming(1));
        assert_eq!((status, asked()), (503, 2), "{error}");
        steady.is_held.store(false, Ordering::SeqCst);
        while server.post(CHAT, &naming(1)).0 != 200 {
            std::thread::yield_now();
        }
    }
}
