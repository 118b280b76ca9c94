use std::time::Duration;

use super::super::status::tests::snapshot;
use super::*;

/// Returns a view after two answers, one second apart.
pub(in crate::commands::top) fn watched() -> View {
    let mut view = View::new(Address::parse("http://127.0.0.1:8080").unwrap());
    let begin = Instant::now();
    let mut first = snapshot();
    let engine = first.models[0].engine.as_mut().unwrap();
    engine.generated_tokens -= 123;
    engine.prompt_tokens -= 40;
    engine.busy_seconds -= 0.75;
    engine.bytes -= 12.3e9;
    view.hear(Ok(first), begin);
    view.hear(Ok(snapshot()), begin + Duration::from_secs(1));
    view
}

fn key(code: KeyCode) -> KeyEvent {
    KeyEvent::new(code, KeyModifiers::NONE)
}

fn shown(view: &View) -> &str {
    &view.model().unwrap().1.name
}

#[test]
fn the_picture_as_text() {
    insta::assert_snapshot!(text(&watched()));
}

#[test]
fn keys() {
    let mut view = watched();
    assert_eq!(
        view.press(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)),
        Wish::Interrupt
    );
    assert_eq!(view.press(key(KeyCode::Char('q'))), Wish::End);
    assert_eq!(view.press(key(KeyCode::Esc)), Wish::End);
    assert_eq!(view.press(key(KeyCode::Char('x'))), Wish::Stay);
    assert_eq!(view.press(key(KeyCode::Char('?'))), Wish::Stay);
    assert!(view.is_helping);
    assert_eq!(view.press(key(KeyCode::Esc)), Wish::Stay);
    assert!(!view.is_helping, "the first Esc closes the explanations");
    let released = KeyEvent { kind: KeyEventKind::Release, ..key(KeyCode::Char('q')) };
    assert_eq!(view.press(released), Wish::Stay);
}

#[test]
fn models_are_chosen_by_name() {
    let mut view = watched();
    assert_eq!(shown(&view), "demo");
    view.press(key(KeyCode::Tab));
    assert_eq!(shown(&view), "second");
    view.press(key(KeyCode::Down));
    assert_eq!(shown(&view), "demo", "after the last comes the first");
    view.press(key(KeyCode::BackTab));
    assert_eq!(shown(&view), "second", "before the first comes the last");
    let mut other = snapshot();
    other.models.reverse();
    view.hear(Ok(other.clone()), Instant::now());
    assert_eq!(shown(&view), "second", "wherever it stands");
    other.models.remove(0);
    view.hear(Ok(other.clone()), Instant::now());
    assert_eq!(shown(&view), "demo");
    other.models.clear();
    view.hear(Ok(other), Instant::now());
    assert!(view.model().is_none());
    view.press(key(KeyCode::Left));
    let mut unasked = View::new(view.address.clone());
    unasked.press(key(KeyCode::Tab));
    assert!(unasked.model().is_none());
}

#[test]
fn the_first_loaded_model_is_shown_unasked() {
    let mut view = View::new(Address::parse("http://a").unwrap());
    let mut other = snapshot();
    other.models.reverse();
    view.hear(Ok(other), Instant::now());
    assert_eq!(shown(&view), "demo");
}

#[test]
fn a_server_that_goes_away_and_comes_back() {
    let mut view = watched();
    view.hear(Err(Problem::Passing("gone".to_owned())), Instant::now());
    assert_eq!(view.problem.as_deref(), Some("gone"));
    let (_, model) = view.model().unwrap();
    assert_eq!(view.rates(model), None, "what was is not what is");
    view.hear(Ok(snapshot()), Instant::now());
    assert_eq!(view.problem, None);
}

#[test]
fn numbers_stay_short() {
    for (value, text) in [
        (0.0, "0"),
        (-1.0, "0"),
        (0.04, "0.0"),
        (20.0, "20"),
        (9.96, "10.0"),
        (99.96, "100"),
        (12_345.0, "12.3 k"),
        (f64::MAX, "> 999 T"),
        (f64::INFINITY, "> 999 T"),
        (f64::NAN, "> 999 T"),
    ] {
        assert_eq!(number(value), text);
    }
    let engine =
        Engine { prompt_tokens: 1, reused_tokens: u64::MAX, bytes: f64::MAX, ..Engine::default() };
    let tower = Tower { pictures: 4, hits: 9, seconds: 0.5, waiting: 1 };
    let with_tower = facts(&engine, Some(&tower), None);
    let value = |label| with_tower.iter().find(|fact| fact.label == label).unwrap().value.as_str();
    assert_eq!([value("images"), value("each"), value("known")], ["4, 1 wait", "125 ms", "9"]);
    let facts = facts(&engine, None, None);
    assert!(facts.iter().any(|fact| fact.value == "100 % of 1 token"), "{facts:?}");
}
