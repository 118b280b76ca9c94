//! Pictures that are fetched from a server that is slow.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use trine_server::{Fetch, FetchEnd, Fetched, Fetcher, ImageUrls};

use crate::client;
use crate::harness::{Harness, wait_until};
use crate::pictures::{CHAT, file, image, message, server_with, user};

/// Time for the pictures of a request.
const TIME: Duration = Duration::from_millis(400);
/// How long the first answer takes.
const PAUSE: Duration = Duration::from_millis(50);

/// Leads on after a pause, and then answers too late. Notes the time that it is given.
#[derive(Debug, Default)]
struct Slow(Mutex<Vec<Duration>>);

impl Fetcher for Slow {
    fn get(&self, request: &Fetch, _: &FetchEnd) -> Result<Fetched, String> {
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
    fn get(&self, _: &Fetch, _: &FetchEnd) -> Result<Fetched, String> {
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
        wait_until("the first is asked for", || steady.asked.load(Ordering::SeqCst) > 0);
        // One of them may be next, and has the room for as long.
        let others = [(); 2].map(|()| scope.spawn(|| server.post(CHAT, &naming(1))));
        assert_eq!(first.join().unwrap().0, 400);
        let others = others.map(|other| other.join().unwrap());
        let full = others.iter().find(|(status, _)| *status == 503);
        let (_, error) = full.expect("there is no room for both");
        assert!(message(error).contains("that are fetched; try again later"), "{error}");
    });
}

/// A thread that reads a file has room until it ends, also where its fetcher goes on.
#[test]
fn room_is_taken_until_a_file_is_read_whoever_leaves() {
    let (server, steady) = steady(1, Duration::ZERO, TIME);
    let asked = || steady.asked.load(Ordering::SeqCst);
    let leave = || {
        let mut stream = client::connect(server.address);
        client::send(&mut stream, "POST", CHAT, &[], naming(1).to_string().as_bytes());
        wait_until("it is asked for", || asked() != 1);
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
        wait_until("there is room", || server.post(CHAT, &naming(1)).0 == 200);
    }
}

/// Places of fetches.
const PLACES: usize = 16;

/// Finds no host while it is held, and reads paths that end in `hang` until it is told to end.
#[derive(Debug, Default)]
struct Waiting {
    looked_up: AtomicUsize,
    asked: AtomicUsize,
    is_held: AtomicBool,
}

impl Fetcher for Waiting {
    fn addresses(&self, _: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        assert_eq!(std::thread::current().name(), Some("fetching"));
        self.looked_up.fetch_add(1, Ordering::SeqCst);
        while self.is_held.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(vec![SocketAddr::from(([1, 1, 1, 1], port))])
    }

    fn get(&self, request: &Fetch, end: &FetchEnd) -> Result<Fetched, String> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        if request.url.ends_with("hang") {
            let (told, ended) = channel();
            end.then(move || told.send(()).unwrap_or_default());
            let _ = ended.recv();
        }
        Ok(Fetched::Body(file("a.png")))
    }
}

fn waiting(time: Duration) -> (Harness, Arc<Waiting>) {
    let waiting = Arc::new(Waiting::default());
    let fetcher: Arc<dyn Fetcher> = waiting.clone();
    let server = server_with(|options| {
        options.image_urls = Some(ImageUrls { hosts: vec!["*.example.com".to_owned()], fetcher });
        options.limits.bodies_bytes = 1 << 30;
        options.limits.pictures.fetching = time;
    });
    (server, waiting)
}

/// A request for a picture of a host of its own.
fn of_host(number: usize, path: &str) -> Value {
    let parts = [image(&format!("https://{number}.example.com/{path}"))];
    json!({"messages": [user(&parts)], "max_tokens": 1})
}

/// Lookups take the places of fetches and their time, and no thread of texts.
#[test]
fn names_that_nobody_resolves_are_few_at_once() {
    let (server, waiting) = waiting(TIME);
    waiting.is_held.store(true, Ordering::SeqCst);
    std::thread::scope(|scope| {
        let (server, count) = (&server, PLACES + 8);
        let asked: Vec<_> = (0..count)
            .map(|number| scope.spawn(move || server.post(CHAT, &of_host(number, "a.png"))))
            .collect();
        for asked in asked {
            let (status, error) = asked.join().unwrap();
            assert_eq!(status, 400, "{error}");
            assert!(message(&error).contains("within 0.4 s"), "{error}");
        }
    });
    assert_eq!(waiting.looked_up.load(Ordering::SeqCst), PLACES);
    waiting.is_held.store(false, Ordering::SeqCst);
    wait_until("hosts are looked for again", || server.post(CHAT, &of_host(0, "a.png")).0 == 200);
}

/// A client that leaves ends its fetch, and gives back its place.
#[test]
fn fetches_end_with_their_requests() {
    let (server, waiting) = waiting(Duration::from_secs(20));
    let left: Vec<_> = (0..PLACES)
        .map(|number| {
            let mut stream = client::connect(server.address);
            let body = of_host(number, "hang").to_string();
            client::send(&mut stream, "POST", CHAT, &[], body.as_bytes());
            stream
        })
        .collect();
    wait_until("all places are taken", || waiting.asked.load(Ordering::SeqCst) >= PLACES);
    drop(left);
    let (status, answer) = server.post(CHAT, &of_host(0, "a.png"));
    assert_eq!(status, 200, "{answer}");
}
