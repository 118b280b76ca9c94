//! Names that would control a terminal, or pose as others, in all that commands print.

use std::os::unix::fs::{PermissionsExt, symlink};

use crate::common::{model, trine};

/// Sets the title, colours, clears (also by a C1 sign), turns the direction of writing (Unicode
/// Standard Annex 9), hides.
const HOSTILE: &str =
    "o\u{1b}]0;x\u{7}\u{1b}[31m\u{9b}2J\u{202e}\u{2066}\u{200f}\u{61c}\u{200b}\u{2060}\u{feff}z";

/// Returns whether a text has signs that a terminal obeys or hides, besides the ends of lines.
fn is_hostile(text: &str) -> bool {
    let turns_or_hides = |sign: char| {
        let sign = u32::from(sign);
        [0x61c, 0xfeff].contains(&sign)
            || (0x200b..=0x200f).contains(&sign)
            || (0x2028..=0x202e).contains(&sign)
            || (0x2060..=0x206f).contains(&sign)
    };
    text.chars().any(|sign| (sign.is_control() && !"\n\t".contains(sign)) || turns_or_hides(sign))
}

#[test]
fn no_command_prints_names_as_they_are() {
    assert!(is_hostile(HOSTILE));
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let file = path(&format!("{HOSTILE}.gguf"));
    symlink(model(), &file).unwrap();
    let text = path(&format!("{HOSTILE}.txt"));
    std::fs::write(&text, "{% if %}").unwrap();
    let new = path(&format!("{HOSTILE}-new"));
    let quantized = format!("{new}.gguf");
    let option = format!("--{HOSTILE}");
    // What is meant to work says so: a command that fails early would show nothing.
    for (is_fine, command) in [
        (true, &["show", &file][..]),
        (true, &["show", &file, "--json"]),
        (true, &["plan", &file]),
        (true, &["explain", &file]),
        (true, &["explain", &file, "--json"]),
        (true, &["run", &file, "Hi", "--max-tokens", "1", "--seed", "1", "-v"]),
        (true, &["run", &file, "Hi", "--max-tokens", "1", "--json"]),
        (true, &["bench", &file, "-p", "8", "-n", "1", "--repeats", "1", "-v"]),
        (true, &["quantize", &file, &quantized, "--type", "Q8_0"]),
        (false, &["show", HOSTILE]),
        (false, &["run", HOSTILE, "Hi"]),
        (false, &["pull", HOSTILE]),
        (false, &["rm", HOSTILE]),
        (false, &["create", HOSTILE, "--from", "demo"]),
        (false, &["create", "x", "--from", HOSTILE]),
        (false, &["create", "x", "-f", &text]),
        (false, &["run", "demo", "Hi", "--chat-template", &text]),
        (false, &["run", "demo", "Hi", "--device", HOSTILE]),
        (false, &["run", "demo", "--prompt-file", &new]),
        (false, &["run", "demo", "Hi", "--temperature", HOSTILE]),
        (false, &["run", &text, "Hi"]),
        (false, &["serve", "demo", "--api-key-file", &new]),
        (false, &["serve", "demo", "--host", HOSTILE]),
        (false, &["quantize", &text, &new, "--type", "Q8_0"]),
        (false, &["quantize", &file, &new, "--type", HOSTILE]),
        (false, &["logits", &new]),
        (false, &["search", HOSTILE]),
        (false, &["ps", "--url", HOSTILE]),
        (false, &["npu", "inspect", &text]),
        (false, &["npu", "verify", &new]),
        (false, &[HOSTILE]),
        (false, &["run", &option]),
        (false, &["help", HOSTILE]),
    ] {
        let ran = trine(command);
        assert_eq!(ran.code == 0, is_fine, "{command:?}: {} {}", ran.out, ran.err);
        assert!(!is_hostile(&ran.out), "{command:?}: {:?}", ran.out);
        assert!(!is_hostile(&ran.err), "{command:?}: {:?}", ran.err);
        assert!(!ran.out.is_empty() || !ran.err.is_empty(), "{command:?} says nothing");
    }
}

/// A user who may write a file of keys can add one.
#[test]
fn key_files_that_others_may_write_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("keys");
    std::fs::write(&keys, "0123456789abcdef0123\n").unwrap();
    let path = keys.to_str().unwrap();
    for (mode, refused, warned) in [
        (0o666, true, false),
        (0o620, true, false),
        (0o602, true, false),
        (0o644, false, true),
        (0o640, false, false),
        (0o600, false, false),
    ] {
        std::fs::set_permissions(&keys, PermissionsExt::from_mode(mode)).unwrap();
        // There is no such address here, so that no server stays.
        let error =
            trine(&["serve", "demo", "--api-key-file", path, "--host", "192.0.2.1"]).fails(1);
        assert_eq!(error.contains("others than its owner may write"), refused, "{mode:o}: {error}");
        assert_eq!(
            error.contains("everybody on this machine may read"),
            warned,
            "{mode:o}: {error}"
        );
        assert_eq!(error.contains("192.0.2.1"), !refused, "{mode:o}: {error}");
    }
}
