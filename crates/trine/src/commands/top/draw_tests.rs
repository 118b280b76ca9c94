use std::time::{Duration, Instant};

use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::super::fetch::Problem;
use super::super::status::tests::{answer, snapshot};
use super::super::status::{Snapshot, parse};
use super::super::view::tests::watched;
use super::*;
use crate::address::Address;

/// Draws on a terminal of this size.
fn drawn(view: &View, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, view, Palette::new(true))).unwrap();
    terminal.backend().to_string()
}

fn unasked() -> View {
    View::new(Address::parse("http://127.0.0.1:8080").unwrap())
}

/// Returns a view of minutes of a server whose load rises and falls, with a pause in which it did
/// not answer.
fn busy() -> View {
    let mut view = unasked();
    let (begin, mut snapshot) = (Instant::now(), snapshot());
    for second in 0..200_u64 {
        let engine = snapshot.models[0].engine.as_mut().unwrap();
        let load = (second % 40).min(40 - second % 40);
        engine.generated_tokens += 10 * load;
        engine.prompt_tokens += if second % 25 == 0 { 900 } else { 0 };
        engine.busy_seconds += 0.9;
        engine.bytes += 5e10;
        engine.width = load;
        engine.blocks_running = 4 * load;
        let at = begin + Duration::from_secs(second);
        if (150..160).contains(&second) {
            view.hear(Err(Problem::Passing("gone".to_owned())), at);
        } else {
            view.hear(Ok(snapshot.clone()), at);
        }
    }
    view
}

/// Returns the most extreme answer that is still a valid status.
fn absurd() -> Snapshot {
    let mut document = answer();
    let model = &mut document["models"][0];
    model["name"] = "\u{1b}[2J wide 漢字 \u{202e}e\u{301}\u{301}\u{301} 👩‍👩‍👧".repeat(50).into();
    model["device"] = "d".repeat(5000).into();
    model["bytes"] = u64::MAX.into();
    for (_, value) in model["status"].as_object_mut().unwrap() {
        if value.is_u64() {
            *value = u64::MAX.into();
        } else if value.is_f64() {
            *value = f64::MAX.into();
        }
    }
    parse(document.to_string().as_bytes()).unwrap()
}

#[test]
fn pictures() {
    let view = busy();
    for (width, height) in [(20, 5), (40, 12), (80, 24), (120, 40)] {
        insta::assert_snapshot!(format!("picture_{width}x{height}"), drawn(&view, width, height));
    }
}

#[test]
fn what_is_not_a_picture_of_an_engine() {
    insta::assert_snapshot!("unasked", drawn(&unasked(), 60, 8));
    let mut view = watched();
    view.is_helping = true;
    insta::assert_snapshot!("help", drawn(&view, 80, 24));
    view.is_helping = false;
    view.hear(
        Err(Problem::Passing("no answer from http://127.0.0.1:8080: it hung up".to_owned())),
        Instant::now(),
    );
    insta::assert_snapshot!("gone", drawn(&view, 60, 16));
    let mut view = unasked();
    view.hear(
        Err(Problem::Passing("no server at http://127.0.0.1:8080".to_owned())),
        Instant::now(),
    );
    insta::assert_snapshot!("never_there", drawn(&view, 60, 8));
    let mut unloaded = snapshot();
    unloaded.models.remove(0);
    let mut view = unasked();
    view.hear(Ok(unloaded), Instant::now());
    insta::assert_snapshot!("unloaded", drawn(&view, 60, 8));
}

#[test]
fn every_size_is_drawn() {
    let mut gone = busy();
    gone.hear(Err(Problem::Passing("g o n e ".repeat(40))), Instant::now());
    let mut strange = unasked();
    for second in 0..3 {
        let snapshot = if second == 1 { snapshot() } else { absurd() };
        strange.hear(Ok(snapshot), Instant::now() + Duration::from_secs(second));
    }
    let mut helping = watched();
    helping.is_helping = true;
    let mut empty = snapshot();
    empty.models.clear();
    let mut without = unasked();
    without.hear(Ok(empty), Instant::now());
    for view in [&unasked(), &busy(), &gone, &strange, &helping, &without] {
        for width in (0..24).chain([40, 71, 72, 99, 100, 101, 108, 200]) {
            for height in (0..16).chain([24, 40, 60]) {
                let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
                terminal.draw(|frame| draw(frame, view, Palette::new(true))).unwrap();
                let cells = terminal.backend().buffer().content();
                let is_harmless = |text: &str| !text.contains(char::is_control);
                assert!(cells.iter().all(|cell| is_harmless(cell.symbol())), "{width} x {height}");
            }
        }
    }
}

#[test]
fn what_matters_most_is_seen_in_little_room() {
    let picture = drawn(&watched(), 20, 5);
    assert!(picture.contains("demo") && picture.contains("123 tok/s"), "{picture}");
    let mut view = watched();
    view.hear(Err(Problem::Passing("the server hung up".to_owned())), Instant::now());
    let picture = drawn(&view, 20, 5);
    assert!(picture.contains("hung up") && picture.contains("no answer"), "{picture}");
}

#[test]
fn a_problem_is_given_the_lines_that_it_takes() {
    let text = "aa bbb cccc ddddddddddddddd e";
    for (width, lines) in [(80, 1), (29, 1), (28, 2), (15, 3), (10, 4), (1, 25), (0, 25)] {
        assert!(wrapped_lines(text, width) >= lines, "{width}: {}", wrapped_lines(text, width));
    }
    assert_eq!(
        (wrapped_lines("", 10), wrapped_lines("ab cd", 5), wrapped_lines("ab cd", 4)),
        (1, 1, 2)
    );
}

#[test]
fn colours_can_be_left_out() {
    let mut terminal = Terminal::new(TestBackend::new(100, 30)).unwrap();
    terminal.draw(|frame| draw(frame, &busy(), Palette::new(false))).unwrap();
    let cells = terminal.backend().buffer().content();
    assert!(cells.iter().all(|cell| cell.fg == Color::Reset && cell.bg == Color::Reset));
}
