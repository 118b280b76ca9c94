//! What a person gets who gives pictures as other programs take them.

use std::path::Path;
use std::process::Stdio;

use crate::common::{Ran, command, finish, golden, trine};
use crate::seeing;

const FEW: [&str; 8] =
    ["--device", "cpu", "--threads", "1", "--max-tokens", "2", "--temperature", "0"];

fn picture(letter: &str) -> String {
    golden("gemma3-vision").join(format!("{letter}.png")).display().to_string()
}

fn model(folder: &Path) -> String {
    seeing::model(folder, true).display().to_string()
}

/// Runs trine with a file as its standard input.
fn with_input(file: &str, arguments: &[&str]) -> Ran {
    let mut command = command(&[arguments, &FEW].concat());
    command.stdin(Stdio::from(std::fs::File::open(file).unwrap()));
    finish(command.output().unwrap())
}

#[test]
fn a_picture_may_come_from_standard_input() {
    let place = tempfile::tempdir().unwrap();
    let (model, a, b) = (model(place.path()), picture("a"), picture("b"));
    let run = |more: &[&str]| with_input(&a, &[&["run", &model][..], more].concat());
    let expected = trine(&[&["run", &model, "What?", "--image", &a][..], &FEW].concat()).ok().out;
    let names: &[&str] = if cfg!(unix) { &["-", "/dev/stdin"] } else { &["-"] };
    for name in names {
        let ran = run(&["What?", "--image", name]).ok();
        assert_eq!(ran.out, expected);
        assert!(ran.err.contains("standard input: 91 x 67 pixels"), "{}", ran.err);
    }
    run(&["What?", "--image", &b, "--image", "-"]).ok();
    let prompt = place.path().join("prompt.txt");
    std::fs::write(&prompt, "What?").unwrap();
    run(&["--prompt-file", &prompt.display().to_string(), "--image", "-"]).ok();
    for (more, said) in [
        (&["--image", "-"][..], "give the prompt as PROMPT or with --prompt-file"),
        (&["-", "--image", "-"], "give the prompt as PROMPT"),
        (&["What?", "--image", "-", "--image", "-"], "standard input is one image"),
        (&["-i", "--image", "-"], "name its file"),
    ] {
        let error = run(more).fails(2);
        assert!(error.contains(said), "{more:?}: {error}");
    }
    let error = run(&["What?"]).fails(1);
    assert!(error.contains("standard input is an image, not a prompt"), "{error}");
    let error = trine(&["run", &model, "--prompt-file", &a]).fails(1);
    assert!(error.contains("a.png is an image, not a prompt; give it by --image"), "{error}");
    let error = trine(&["run", &model, "What?", "--image", "-"]).fails(1);
    assert!(error.contains("standard input: the image is empty"), "{error}");
}

#[test]
fn a_picture_in_the_place_of_something_else_is_told() {
    let place = tempfile::tempdir().unwrap();
    let (model, a, b) = (model(place.path()), picture("a"), picture("b"));
    let list = format!("{a},{b}");
    let empty = place.path().join("empty.png").display().to_string();
    std::fs::write(&empty, "").unwrap();
    for (code, arguments, said) in [
        (2, &["What?", "--image", &a, &b][..], "give each image by an option of its own"),
        (2, &["--image", &a, &b], "b.png is an image, and stands in the place of PROMPT"),
        (2, &[&a], "a.png is an image, and stands in the place of PROMPT"),
        (1, &["What?", "--image", &list], "it is a list of files; name each by itself"),
        (1, &["What?", "--image", &empty], "empty.png: the image is empty"),
    ] {
        let error = trine(&[&["run", &model][..], arguments].concat()).fails(code);
        assert!(error.contains(said), "{arguments:?}: {error}");
    }
    for arguments in [
        &["run", &a][..],
        &["run", &a, "What?"],
        &["run", "--image", &b, &a, &model],
        &["show", &a],
    ] {
        let error = trine(arguments).fails(1);
        assert!(error.contains("a.png is an image, not a model"), "{arguments:?}: {error}");
    }
    let about = format!("What is in {a}?");
    let told = |more: &[&str]| trine(&[&["run", &model, &about][..], &FEW, more].concat()).ok().err;
    let note = "a.png shows the image";
    assert!(told(&[]).contains(note), "{}", told(&[]));
    for more in [&["--image", &a][..], &["-q"], &["--raw"]] {
        assert!(!told(more).contains(note), "{more:?}");
    }
}

#[cfg(unix)]
#[test]
fn the_home_folder_is_found_without_a_shell() {
    let place = tempfile::tempdir().unwrap();
    let model = model(place.path());
    std::fs::copy(picture("a"), place.path().join("cat.png")).unwrap();
    std::fs::rename(place.path().join("mmproj.gguf"), place.path().join("tower.gguf")).unwrap();
    let arguments = ["run", &model, "What?", "--image=~/cat.png", "--mmproj=~/tower.gguf"];
    let mut command = command(&[&arguments[..], &FEW].concat());
    let told = finish(command.env("HOME", place.path()).output().unwrap()).ok().err;
    assert!(told.contains("cat.png: 91 x 67 pixels"), "{told}");
}

/// What is typed into a chat about pictures, and what it says.
#[test]
fn a_chat_says_how_pictures_are_given() {
    let place = tempfile::tempdir().unwrap();
    let (model, a) = (model(place.path()), picture("a"));
    let told = |line: &str| {
        let script = place.path().join("script.txt");
        std::fs::write(&script, format!("{line}\n")).unwrap();
        with_input(&script.display().to_string(), &["run", &model, "-i"])
    };
    for (line, said) in [
        (format!("/image {a} what is this"), "a path and no text: give /image"),
        ("~/no such.png".to_owned(), "cannot be read; check the path"),
        ("~/nosuch.png what is this".to_owned(), "cannot be read; check the path"),
    ] {
        let error = told(&line).fails(1);
        assert!(error.contains(said), "{line}: {error}");
    }
    let note = "a.png gives the image to the next message";
    let named = told(&format!("What is in {a}?")).ok().err;
    assert!(named.contains(note), "{named}");
    let given = told(&format!("/image {a}\nWhat is in {a}?\nAnd in {a}?")).ok().err;
    assert!(!given.contains(note), "{given}");
}
