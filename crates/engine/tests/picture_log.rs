//! What the log has of pictures without rows.

#[allow(dead_code, reason = "other tests use the rest")]
mod fake;
#[allow(dead_code, reason = "other tests use the rest")]
mod looks;

use std::fmt::{Debug, Write as _};
use std::sync::Mutex;

use fake::{Fake, options};
use looks::{BAD, Gated, picture, quick, request};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Level, Metadata, Subscriber};
use trine_engine::{Engine, Event, Finish, Tower};

static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Keeps warnings and errors of all threads.
struct Keeper;

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = write!(self.0, "{}={value:?} ", field.name());
    }
}

impl Subscriber for Keeper {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }

    fn new_span(&self, _span: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _span: &Id, _values: &Record<'_>) {}

    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        LINES.lock().expect("nobody panics with it").push(line.0);
    }

    fn enter(&self, _span: &Id) {}

    fn exit(&self, _span: &Id) {}
}

fn lines() -> Vec<String> {
    std::mem::take(&mut *LINES.lock().expect("nobody panics with it"))
}

/// Asks about a picture, and then does something with the tower. Returns how it ended.
fn asked(tower: &Tower, number: u32, then: impl FnOnce()) -> Vec<Finish> {
    let fake = Fake::new(options(256, 2, 80), &[20]).with_pictures();
    let mut engine = Engine::with_running(Box::new(fake), 2);
    let codes = [&[1][..], &picture(number), &[3]].concat();
    engine.submit(request(tower, &codes, 5)).expect("it is sound");
    engine.step().expect("the device works");
    then();
    let mut finishes = Vec::new();
    while !engine.is_idle() {
        finishes.extend(engine.step().expect("the device works").iter().filter_map(Event::finish));
    }
    finishes
}

#[test]
fn a_failure_is_told_once_and_a_stop_is_not() {
    tracing::subscriber::set_global_default(Keeper).expect("no other test sets one");
    assert_eq!(asked(&quick(1 << 20), BAD[1], || {}), [Finish::PictureFailed]);
    let told = lines();
    assert!(told.len() == 1 && told[0].contains("not finite"), "{told:?}");
    let gated = Gated::new(1 << 20);
    let tower = gated.tower.clone();
    let stop = || {
        assert!(gated.settle());
        gated.into_tower().stop();
    };
    assert_eq!(asked(&tower, 5, stop), [Finish::PictureFailed]);
    assert_eq!(lines(), Vec::<String>::new());
}
