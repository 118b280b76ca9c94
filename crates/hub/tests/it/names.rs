//! Model names: a table of what people type, and arbitrary text.

use proptest::prelude::*;
use trine_hub::{ModelName, Selection};

#[test]
fn what_people_type() {
    let quant = |text: &str| Selection::Quant(text.to_owned());
    let file = |text: &str| Selection::File(text.to_owned());
    for (typed, repository, selection) in [
        (
            "google/gemma-3-4b-it-qat-q4_0-gguf",
            "google/gemma-3-4b-it-qat-q4_0-gguf",
            Selection::Default,
        ),
        ("ggml-org/gemma-3-1b-it-GGUF:Q8_0", "ggml-org/gemma-3-1b-it-GGUF", quant("Q8_0")),
        (
            "unsloth/gemma-3n-E4B-it-GGUF:UD-Q4_K_XL",
            "unsloth/gemma-3n-E4B-it-GGUF",
            quant("UD-Q4_K_XL"),
        ),
        (
            "hf.co/bartowski/google_gemma-3-4b-it-GGUF:iq4_xs",
            "bartowski/google_gemma-3-4b-it-GGUF",
            quant("iq4_xs"),
        ),
        ("huggingface.co/a/b", "a/b", Selection::Default),
        ("https://huggingface.co/a/b", "a/b", Selection::Default),
        ("https://huggingface.co/a/b/", "a/b", Selection::Default),
        ("https://huggingface.co/a/b/blob/main/c/d.gguf", "a/b", file("c/d.gguf")),
        ("https://huggingface.co/a/b/resolve/main/d.gguf?download=true", "a/b", file("d.gguf")),
        ("hf://a/b/d.gguf", "a/b", file("d.gguf")),
        ("a/b/gemma-3-4b-it-q4_0_s.gguf", "a/b", file("gemma-3-4b-it-q4_0_s.gguf")),
        ("a/b/BF16/g-BF16-00001-of-00002.gguf", "a/b", file("BF16/g-BF16-00001-of-00002.gguf")),
        ("a/b/X.GGUF", "a/b", file("X.GGUF")),
        ("a/b:latest", "a/b", Selection::Default),
        ("a.b/c_d-e.f", "a.b/c_d-e.f", Selection::Default),
    ] {
        let name = ModelName::parse(typed).unwrap();
        assert_eq!(name.repository(), repository, "{typed}");
        assert_eq!(name.selection(), &selection, "{typed}");
        assert_eq!(ModelName::parse(&name.to_string()).unwrap(), name, "{typed}");
    }
}

#[test]
fn what_must_not_become_a_path() {
    let long = "a".repeat(1 << 20);
    let long_repository = format!("{}/b", "a".repeat(97));
    for typed in [
        "",
        "/",
        "a",
        "a/",
        "/b",
        "//",
        "a//b",
        "gemma",
        "..",
        "../b",
        "a/..",
        "../../etc/passwd",
        "a/../b.gguf",
        "a/b/../c.gguf",
        "a/b/..\\c.gguf",
        "a/b/./c.gguf",
        "a/b//c.gguf",
        "/a/b",
        "a/b/",
        "a\\b",
        "a\\b/c",
        "a/b\\c",
        "C:\\a/b",
        "a/b\0",
        "a\0/b",
        "a/b\n",
        "a/b\u{1b}[31m",
        "a/b:",
        "a/b:..",
        "a/b:../x",
        "a/b:a/b",
        "a/b:a:b",
        "a/b:Q4 K",
        "a/.b",
        ".a/b",
        "-a/b",
        "a/-b",
        "a--b/c",
        "a/b--c",
        "a/b..c",
        "a b/c",
        "a/b c",
        "ä/b",
        "a/b/c.bin",
        "a/b/.gguf",
        "a/b/con.gguf",
        "a/b/COM1.gguf",
        "nul/b",
        "a/aux.x",
        "a/b/c:d.gguf",
        "a/b/c*.gguf",
        "a/b/\u{202e}c.gguf",
        "a/b/c/d/e/f/g/h/i.gguf",
        "a./b",
        "a/b.",
        "file:///etc/passwd",
        "https://evil.example/a/b",
        "https://huggingface.co/a/b/blob/v1/c.gguf",
        "hf.co/",
        "hf.co/a",
        "hf.co/hf.co/a",
        "hf.co/huggingface.co/a/b.gguf",
        "a/b/c.gguf/",
        "a/b/c.gguf:Q4_0",
        "a/b/c .gguf /d.gguf",
        "~/b",
        "$HOME/b",
        "%2e%2e/b",
        &long,
        &long_repository,
        &format!("a/{long}"),
        &format!("a/b:{long}"),
        &format!("a/b/{}.gguf", "c".repeat(300)),
        &"../".repeat(200),
    ] {
        let error = ModelName::parse(typed);
        assert!(error.is_err(), "{typed:?} was taken as {error:?}");
        let text = error.unwrap_err().to_string();
        assert!(text.len() < 700, "a message of {} bytes", text.len());
        assert!(!text.chars().any(char::is_control), "{text:?}");
    }
}

proptest! {
    #![proptest_config(
        ProptestConfig { failure_persistence: None, cases: 20_000, ..ProptestConfig::default() }
    )]

    #[test]
    fn accepted_names_are_safe_paths_and_round_trip(typed in any_name()) {
        if let Ok(name) = ModelName::parse(&typed) {
            let mut path = std::path::PathBuf::from("/store");
            path.push(name.owner());
            path.push(name.repo());
            if let Selection::File(file) = name.selection() {
                path.push(file);
            }
            prop_assert!(path.starts_with("/store"));
            let normal = |c: std::path::Component| matches!(c, std::path::Component::Normal(_));
            prop_assert!(path.components().skip(1).all(normal), "{path:?}");
            // Windows joins with its own separator, a backslash.
            let parts = path.iter().skip(1).map(|part| part.to_str().unwrap());
            prop_assert!(!parts.collect::<String>().contains(['\\', '/', '\0', ':']), "{path:?}");
            prop_assert_eq!(ModelName::parse(&name.to_string()).unwrap(), name);
        }
    }
}

fn any_name() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        Just("..".to_owned()),
        Just("/".to_owned()),
        Just(":".to_owned()),
        Just("a".to_owned()),
        Just(".gguf".to_owned()),
        Just("\\".to_owned()),
        Just("hf.co/".to_owned()),
        Just("Q4_0".to_owned()),
        Just("https://huggingface.co/".to_owned()),
        Just("-".to_owned()),
        Just("blob/main/".to_owned()),
        "[a-zA-Z0-9._-]{1,8}",
        "\\PC{0,3}",
        any::<char>().prop_map(String::from),
    ];
    let pieces = proptest::collection::vec(piece, 0..9).prop_map(|pieces| pieces.concat());
    let shaped =
        ("[a-zA-Z0-9._-]{1,6}", "[a-zA-Z0-9._-]{1,6}", "[:/]?[a-zA-Z0-9._/ -]{0,8}(\\.gguf)?")
            .prop_map(|(owner, repo, rest)| format!("{owner}/{repo}{rest}"));
    prop_oneof![any::<String>(), pieces, shaped]
}
