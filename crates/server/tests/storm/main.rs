//! A storm: 10,000 requests of all kinds at once, most of them sound, many of them not. Each is
//! answered with a status that its dialect allows, or closed; afterwards nothing is left of them.
//!
//! A program of its own, because it measures what the process takes.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

#[path = "../it/client.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod client;
mod dialect;
/// The other tests hold answers to the OpenAPI document. Its validators take memory, which is
/// measured here.
mod document {
    pub(crate) fn check(_method: &str, _path: &str, _answer: &crate::client::Answer) {}
}
#[path = "../it/fake.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod fake;
#[path = "../it/harness.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod harness;
mod kinds;
mod memory;
mod wire;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rand::SeedableRng;
use rand::rngs::StdRng;
use serde_json::json;
use trine_server::{Found, Keys};

use client::{ask, connect, post, read_chunk, read_head, send};
use harness::{Harness, SEEING, SEQUENCES, Scripted};
use kinds::{End, Kind, begin, end_of_flood};
use memory::Held;
use wire::Cut;

/// The key that is admitted.
pub(crate) const KEY: &str = "storm-key";
/// Bytes of a body, at most.
pub(crate) const BODY_BYTES_MAX: usize = 64 << 10;
/// Time that a write may wait.
pub(crate) const WRITE_STALL: Duration = Duration::from_millis(500);
/// Requests in a round.
const ROUND: usize = 2000;
const ROUNDS: usize = 5;
/// Rounds that warm everything up: each kind of request has met each other at its worst.
const WARM: usize = 2;
/// Clients beside those of floods.
const CLIENTS: usize = 24;
/// Floods in a round, and requests in each: more than connections and queue take.
const FLOODS: usize = 2;
const FLOOD: usize = 150;
/// Open connections, and those that may only ask about health.
const CONNECTIONS: usize = 64;
const RESERVE: usize = 16;
/// Part of the memory after warming up by which it may have grown in the end.
const GROWTH_MAX: f64 = 0.05;

type Tally = BTreeMap<(Kind, End), usize>;

/// What all clients share.
struct Storm {
    address: SocketAddr,
    tally: Mutex<Tally>,
    /// The next request.
    next: AtomicUsize,
    /// Floods that began or ended so far, and whether there is one.
    floods: AtomicUsize,
    is_flooded: AtomicBool,
    /// One flood at a time.
    flooding: Mutex<()>,
}

impl Storm {
    /// A round's requests: some of a flood together, the others by clients beside each other.
    fn round(&self, round: usize) {
        let singles = ROUND - FLOODS * FLOOD;
        self.next.store(0, Ordering::SeqCst);
        std::thread::scope(|scope| {
            for _ in 0..CLIENTS {
                scope.spawn(|| {
                    loop {
                        let index = self.next.fetch_add(1, Ordering::SeqCst);
                        if index >= singles {
                            break;
                        }
                        if (index + 1).is_multiple_of(singles / FLOODS) {
                            self.flood(round * ROUND + index);
                        }
                        self.single(round * ROUND + index);
                    }
                });
            }
        });
    }

    fn single(&self, seed: usize) {
        let mut random = StdRng::seed_from_u64(seed as u64);
        let kind = Kind::any(&mut random);
        let floods = self.floods.load(Ordering::SeqCst);
        let was_flooded = self.is_flooded.load(Ordering::SeqCst);
        let end = kind.run(self.address, &mut random).unwrap_or_else(|cut| {
            assert_eq!(cut, Cut::Silent, "{kind:?}: an answer that was begun is finished");
            let is_calm = !was_flooded && floods == self.floods.load(Ordering::SeqCst);
            assert!(!is_calm, "{kind:?} got no answer, though there were places");
            End::ClosedByServer
        });
        self.note(kind, end);
    }

    /// More requests at once than there are places, for connections as for texts.
    fn flood(&self, seed: usize) {
        let _one = self.flooding.lock().unwrap();
        self.is_flooded.store(true, Ordering::SeqCst);
        self.floods.fetch_add(1, Ordering::SeqCst);
        let mut random = StdRng::seed_from_u64(seed as u64);
        let wires: Vec<_> = (0..FLOOD).map(|_| begin(self.address, &mut random)).collect();
        for wire in wires {
            let end = wire.and_then(|mut wire| end_of_flood(&mut wire));
            let end = end.unwrap_or_else(|cut| {
                assert_eq!(cut, Cut::Silent, "an answer that was begun is finished");
                End::ClosedByServer
            });
            self.note(Kind::Flood, end);
        }
        // It is over when the others and whoever else has come have places again.
        until("there are places again", || connections(self.address) + CLIENTS < CONNECTIONS);
        self.floods.fetch_add(1, Ordering::SeqCst);
        self.is_flooded.store(false, Ordering::SeqCst);
    }

    fn note(&self, kind: Kind, end: End) {
        *self.tally.lock().unwrap().entry((kind, end)).or_default() += 1;
    }
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(120);
    while !is_so() {
        assert!(Instant::now() < deadline, "waited for: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A number that the server tells of itself; none where it has no place for the question.
fn metric(address: SocketAddr, name: &str) -> Option<usize> {
    let bearer = format!("Bearer {KEY}");
    let headers = [("Authorization", &*bearer), ("Connection", "close")];
    let mut wire = wire::Wire::open(address).ok()?;
    wire.send(client::head("GET", "/metrics", &headers).as_bytes());
    let answer = wire.answer().ok().filter(|answer| answer.status == 200)?;
    let text = String::from_utf8(answer.body).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    Some(line.unwrap_or_else(|| panic!("there is no {name}")).parse().unwrap())
}

/// Open connections beside the one that asks.
fn connections(address: SocketAddr) -> usize {
    metric(address, "trine_connections").map_or(usize::MAX - CLIENTS, |open| open - 1)
}

/// Waits until nothing is left of the requests, and fails if something is.
fn settle(server: &Harness, before: Held) {
    server.wait_idle();
    until("all connections are closed", || connections(server.address) == 0);
    until("all files are closed", || Held::look().files <= before.files);
    let status = server.status();
    assert_eq!((status.running, status.waiting, status.waiting_tokens), (0, 0, 0));
    assert_eq!(status.blocks_running, 0, "no block is in use, {} are kept", status.blocks_kept);
    assert_eq!(metric(server.address, "trine_handler_panics_total"), Some(0));
}

/// Sequences as long as the context on every place: together they need every block there is.
fn fill_all_blocks(server: &Harness) {
    server.slow_down(Duration::from_millis(2));
    // Short prompts, so that all begin together and are long at the same time.
    let mut streams: Vec<_> = (0..SEQUENCES)
        .map(|index| {
            let prompt = vec![5 + index; 8];
            let body = json!({"prompt": prompt, "max_tokens": -1, "stream": true}).to_string();
            let bearer = format!("Bearer {KEY}");
            let mut stream = connect(server.address);
            let headers = [("Authorization", &*bearer)];
            send(&mut stream, "POST", "/v1/completions", &headers, body.as_bytes());
            let mut reader = std::io::BufReader::new(stream);
            assert_eq!(read_head(&mut reader).0, 200);
            reader
        })
        .collect();
    let before = server.status().preemptions;
    let blocks = server.status().blocks;
    server.wait_for("every block is in use", |status| status.blocks_running == blocks);
    for stream in &mut streams {
        while read_chunk(stream).is_some() {}
    }
    assert_eq!(server.status().preemptions, before, "nobody had to give way");
    drop(streams);
}

/// Fails if more is held than at any time before by more than a small part. What is resident goes
/// up and down by some megabytes.
fn check_growth(warm: &[Held], last: Held) {
    let most = |bytes: usize| (bytes as f64 * (1.0 + GROWTH_MAX)) as usize;
    let live = warm.iter().map(|held| held.live).max().unwrap_or(0);
    let resident = warm.iter().filter_map(|held| held.resident).max();
    assert!(last.live <= most(live), "from {live} bytes to {last}");
    assert!(last.resident <= resident.map(most), "from {resident:?} bytes to {last}");
}

fn report(tally: &Tally, seconds: f64) {
    for ((kind, end), count) in tally {
        eprintln!("{count:6} {kind:?}: {end:?}");
    }
    eprintln!("{} requests in {seconds:.0} s", tally.values().sum::<usize>());
}

#[test]
fn ten_thousand_requests_leave_nothing_behind() {
    // Left alone, glibc keeps an arena for each of many threads, and in each of them whatever it
    // once held: the process grows for long without holding more. So it is told to give back what
    // is free.
    let ended = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "storm", "--ignored", "--nocapture"])
        .env("MALLOC_ARENA_MAX", "1")
        .env("MALLOC_MMAP_THRESHOLD_", "65536")
        .env("MALLOC_TRIM_THRESHOLD_", "65536")
        .status();
    assert!(ended.unwrap().success());
}

/// A server with a model of its own size, and one that takes pictures, beside the scripted one that
/// the storm is about.
fn start() -> Harness {
    let loader = Scripted::new(Arc::default());
    loader.names.lock().unwrap().push((SEEING.to_owned(), Found::plain(SEEING)));
    let server = Harness::of(loader, |options| {
        options.keys = Some(Keys::parse(KEY).unwrap());
        options.limits.body_bytes = BODY_BYTES_MAX;
        options.limits.bodies_bytes = 16 << 20;
        options.limits.connections = CONNECTIONS;
        options.limits.reserve = RESERVE;
        options.limits.body_idle = Duration::from_secs(1);
        options.limits.write_stall = WRITE_STALL;
    });
    let scripted = server.loader.service.lock().unwrap().clone();
    for model in ["demo", SEEING] {
        let body = json!({"model": model, "prompt": "a", "max_tokens": 2}).to_string();
        let bearer = format!("Bearer {KEY}");
        let headers = [("Authorization", &*bearer)];
        let answer = post(server.address, "/v1/completions", &headers, body.as_bytes());
        assert_eq!(answer.status, 200);
    }
    *server.loader.service.lock().unwrap() = scripted;
    server.slow_down(Duration::from_micros(100));
    server
}

#[test]
#[ignore = "runs as a child of the test above"]
fn storm() {
    let mut server = start();
    settle(&server, Held::most());
    let before = Held::look();
    let storm = Storm {
        address: server.address,
        tally: Mutex::default(),
        next: AtomicUsize::new(0),
        floods: AtomicUsize::new(0),
        is_flooded: AtomicBool::new(false),
        flooding: Mutex::default(),
    };
    let started = Instant::now();
    let mut held = Vec::new();
    for round in 0..ROUNDS {
        storm.round(round);
        settle(&server, before);
        held.push(Held::look());
    }
    let tally = storm.tally.into_inner().unwrap();
    report(&tally, started.elapsed().as_secs_f64());
    held.iter().for_each(|held| eprintln!("after each {ROUND}: {held}"));
    assert_eq!(tally.values().sum::<usize>(), ROUND * ROUNDS, "each request is counted once");
    let answered = |status: u16| -> usize {
        let of_status = tally.iter().filter(|((_, end), _)| *end == End::Answered(status));
        of_status.map(|(_, count)| count).sum()
    };
    assert!(answered(200) > ROUND * ROUNDS / 2, "most requests were sound");
    for status in [400, 401, 404, 405, 408, 413, 429, 501, 503] {
        assert!(answered(status) > 0, "no request was answered with {status}");
    }
    check_growth(&held[..WARM], held[ROUNDS - 1]);
    fill_all_blocks(&server);
    settle(&server, before);
    assert_eq!(ask(server.address, "GET", "/health", &[], b"").status, 200);
    // With a request in flight it would not end before its time to drain is over.
    let ending = Instant::now();
    server.handle.drain();
    server.join();
    assert!(ending.elapsed() < Duration::from_secs(25));
}
