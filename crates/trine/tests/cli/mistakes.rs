//! What a person gets who types something wrong: the place, the remedy, and the right exit code.

use std::path::Path;

use crate::common::{command, finish, golden, trine};

#[test]
fn numbers_that_are_none_are_answered_with_those_that_are() {
    for (arguments, said) in [
        (&["run", "demo", "hi", "--temperature", "hot"][..], "give a number such as 0.7"),
        (&["run", "demo", "hi", "--top-k", "few"], "give a whole number from 0"),
        (&["run", "demo", "hi", "--threads", "0"], "give a whole number from 1 to 512"),
        (&["bench", "demo", "-p", "8,x"], "give a whole number from 0"),
        (&["bench", "demo", "--repeats", "0"], "give a whole number from 1 to 10000"),
        (&["serve", "--port", "99999"], "give a whole number from 0 to 65535"),
        (&["serve", "--queue", "0"], "give a whole number from 1 to 1000000"),
        (&["create", "x", "--from", "demo", "--seed", "x"], "give a whole number from 0"),
        (&["create", "x", "--from", "demo", "--top-p", "x"], "give a number such as 0.7"),
    ] {
        let error = trine(arguments).fails(2);
        assert!(error.contains(said), "{arguments:?}: {error}");
    }
    let mut set = command(&["run", "demo", "hi"]);
    let error = finish(set.env("TRINE_SAMPLING_TEMPERATURE", "hot").output().unwrap()).fails(1);
    assert!(error.contains("TRINE_SAMPLING_TEMPERATURE: \"hot\": give a number"), "{error}");
}

#[test]
fn files_of_the_wrong_kind_are_named_with_a_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (here, latin, nothing) = (path(""), path("latin.txt"), path("nothing"));
    std::fs::write(&latin, b"\xff\xfe").unwrap();
    for (arguments, said) in [
        (&["run", "demo", "--prompt-file", &here][..], "give a file of text"),
        (&["run", "demo", "--prompt-file", &latin], "is not UTF-8 text; convert it first"),
        (&["run", "demo", "--prompt-file", &nothing], "check the path and its permissions"),
        (&["create", "x", "--file", &nothing], "check the path and its permissions"),
        (&["serve", "--api-key-file", &nothing], "check the path and its permissions"),
        (&["ps", "--api-key-file", &nothing], "check the path and its permissions"),
    ] {
        let error = trine(arguments).fails(1);
        assert!(error.contains(&*folder.path().to_string_lossy()), "{arguments:?}: {error}");
        assert!(error.contains(said), "{arguments:?}: {error}");
    }
    let mut named = command(&["list"]);
    let error = finish(named.env("TRINE_CONFIG", &nothing).output().unwrap()).fails(1);
    assert!(error.contains("TRINE_CONFIG names; check the path"), "{error}");
}

#[test]
fn a_server_of_an_unknown_name_is_corrected_with_its_option() {
    let error = trine(&["ps", "--url", "http://no-such-host.invalid"]).fails(1);
    assert!(error.contains("no-such-host.invalid") && error.contains("check --url"), "{error}");
}

#[test]
fn a_model_that_cannot_think_is_not_asked_to() {
    for arguments in
        [&["run", "demo", "hi", "--think"][..], &["run", "demo", "hi", "--think-budget", "9"]]
    {
        let error = trine(arguments).fails(2);
        assert!(error.contains("leave out --think"), "{arguments:?}: {error}");
    }
    for arguments in [
        &["run", "demo", "hi", "--think", "--no-think"][..],
        &["run", "demo", "hi", "--think", "--raw"],
    ] {
        let error = trine(arguments).fails(2);
        assert!(error.contains("cannot be used with"), "{arguments:?}: {error}");
    }
    for arguments in [&["--no-think"][..], &["--think-budget", "0"]] {
        let rest = ["run", "demo", "hi", "--max-tokens", "2"];
        trine(&[&rest[..], arguments].concat()).ok();
    }
}

const FEW: [&str; 6] = ["--max-tokens", "3", "--seed", "1", "--threads", "1"];

/// What the hands of people do who come from Ollama and llama.cpp.
#[test]
fn habits_mean_what_they_mean_elsewhere() {
    let answer = |arguments: &[&str]| trine(&[arguments, &FEW].concat()).ok().out;
    let expected = answer(&["run", "demo", "Tell me a story"]);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("prompt.txt").display().to_string();
    std::fs::write(&file, "Tell me a story").unwrap();
    for typed in [
        &["run", "demo", "Tell", "me", "a", "story"][..],
        &["-p", "Tell me a story", "-m", "demo"],
        &["run", "-m", "demo", "Tell me a story"],
        &["chat", "demo", "Tell me a story"],
        &["run", "demo", "-p", "Tell me a story", "--keepalive", "5m"],
        &["run", "demo", "Tell me a story", "-c", "512", "-ngl", "0"],
        &["run", "demo", "Tell me a story", "--ctx-size", "512"],
        &["-m", "demo", "-p", "Tell me a story", "-c", "0", "-fa", "on", "--jinja"],
        &["run", "demo", "-f", &file, "-ngl", "99", "-ub", "256"],
        &["run", "demo", "--file", &file, "-ngl", "all", "--device", "cpu"],
    ] {
        assert_eq!(answer(typed), expected, "{typed:?}");
    }
    let few = trine(&["run", "demo", "Tell me a story", "-n", "3", "-s", "1", "-t", "1"]);
    assert_eq!(few.ok().out, expected);
    let whole = |most: &[&str]| {
        let fixed = ["run", "demo", "Tell me a story", "--seed", "1", "--threads", "1"];
        trine(&[&fixed[..], most].concat()).ok().out
    };
    assert_eq!(whole(&["-n", "-1"]), whole(&[]));
    let cold = |option: &str| answer(&["run", "demo", "Hello", option, "0"]);
    assert_eq!(cold("--temp"), cold("--temperature"));
    assert_eq!(trine(&["ls"]).ok().out, trine(&["list"]).ok().out);
}

#[test]
fn what_is_not_understood_is_answered_with_the_right_command() {
    for (typed, said, unsaid) in [
        (&["gemma3:4b", "Why is it?"][..], "write: trine run gemma3:4b \"Why is it?\"", "similar"),
        (&["Tell me a story"], "write: trine run \"Tell me a story\"", "similar"),
        (&["Tell", "me", "a", "story"], "write: trine run \"Tell me a story\"", "similar"),
        (&["uninstall", "demo"], "trine does not remove itself", "trine rm demo"),
        (&["run", "demo", "hi", "--no-mmap"], "files are mapped", "similar"),
        (&["run", "demo", "hi", "-b", "512"], "follows from the device", "similar"),
        (&["-m", "demo", "--batch-size", "9", "-p", "hi"], "write --prefill N", "similar"),
        (&["show", "demo", "--modelfile"], "`trine show NAME` prints what", "similar"),
        (&["show", "demo", "--parameters"], "`trine show NAME` prints the param", "similar"),
        (&["show", "demo", "--system"], "`trine show NAME` prints the system", "similar"),
        (&["get", "gemma3:4b"], "write: trine pull gemma3:4b", "similar"),
        (&["status"], "write: trine ps", "similar"),
        (&["login"], "set HF_TOKEN to a token", "similar"),
        (&["push", "mine"], "write: hf upload OWNER/REPO FILE", "similar"),
        (&["import", "a.gguf"], "write: trine run FILE", "similar"),
        (&["unload", "--all"], "write: trine stop --all", "similar"),
        (&["clone", "a", "b"], "write: trine cp a b", "similar"),
        (&["launch", "claude"], "write: trine serve", "'bench'"),
        (&["lisst"], "'list'", "write"),
        (&["run", "demo", "hi", "--format", "json"], "Structured output", "--draft"),
        (&["run", "demo", "hi", "--nowordwrap"], "unexpected argument '--nowordwrap'", "-- --"),
        (&["run", "demo", "hi", "--temprature", "1"], "'--temperature'", "-- --"),
        (&["run", "demo", "hi", "-fa", "off"], "attention is always computed so", "similar"),
        (&["run", "demo", "hi", "-cnv"], "without --interactive (-cnv) it is answered", "similar"),
        (&["serve", "demo", "--api-key", "x"], "give --api-key-file FILE", "similar"),
        (&["-m", "demo", "-ctk", "q8_0"], "--kv f32, f16 or int8", "similar"),
        (&["run", "demo", "hi", "--device", "cuda"], "trine has no CUDA", "reference"),
    ] {
        let error = trine(typed).fails(2);
        assert!(error.contains(said) && !error.contains(unsaid), "{typed:?}: {error}");
    }
    let error = trine(&["run", "Tell", "me", "a", "story"]).fails(1);
    assert!(error.contains("in quotes: trine run \"Tell me a story\""), "{error}");
    let error = trine(&["run", "qwen3", "hi"]).fails(1);
    assert!(error.contains("not Qwen") && !error.contains("in quotes"), "{error}");
}

/// Files that belong to models, and what is left of downloads that went wrong.
#[test]
fn files_that_are_no_models_are_named_for_what_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let text = |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
    let gguf = |entries: &[(&str, &str)]| {
        let mut bytes = [&b"GGUF"[..], &3_u32.to_le_bytes(), &0_u64.to_le_bytes()].concat();
        bytes.extend((entries.len() as u64).to_le_bytes());
        for (key, value) in entries {
            bytes.extend([text(key), 8_u32.to_le_bytes().to_vec(), text(value)].concat());
        }
        bytes
    };
    let architecture = |name| ("general.architecture", name);
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 2489757856\n";
    for (content, said) in [
        (pointer.as_bytes().to_vec(), "a Git LFS pointer, not the file itself (2.5 GB)"),
        (b"<!DOCTYPE html><html></html>".to_vec(), "this is a web page"),
        (b"{\"error\": \"Invalid username or password\"}".to_vec(), "Invalid username or password"),
        (gguf(&[architecture("gemma3"), ("general.type", "adapter")]), "this is a LoRA adapter"),
        (gguf(&[architecture("clip"), ("general.type", "mmproj")]), "this is a vision tower"),
        (gguf(&[("general.type", "imatrix")]), "this is an importance matrix"),
        (
            gguf(&[architecture("llama")]),
            "the architecture \"llama\", and trine runs Google's Gemma",
        ),
    ] {
        std::fs::write(at("m.gguf"), content).unwrap();
        let error = trine(&["run", &at("m.gguf"), "hi"]).fails(1);
        assert!(error.contains(said) && !error.contains("--draft"), "{said}: {error}");
    }
    let entry = |name: &str| {
        let mut zip = b"PK\x03\x04".to_vec();
        zip.resize(30, 0);
        zip[26] = name.len() as u8;
        [&zip, name.as_bytes()].concat()
    };
    for (name, content, said) in [
        ("model.bin", b"PK\x03\x04".to_vec(), "PyTorch's pickle"),
        ("model.bin", entry("archive/data.pkl"), "PyTorch's pickle"),
        ("model.bin", entry("model/gemma.gguf"), "an archive (zip)"),
        ("model.zip", entry("gemma.gguf"), "an archive (zip)"),
        ("model.bin", b"tjgg\x03\0\0\0".to_vec(), "in GGML, a format before GGUF"),
        ("Modelfile", b"FROM demo".to_vec(), "write: trine create NAME -f "),
        ("config.json", b"{}".to_vec(), "give the folder that it is in"),
    ] {
        std::fs::write(at(name), content).unwrap();
        let error = trine(&["run", &at(name), "hi"]).fails(1);
        assert!(error.contains(said), "{name} {said}: {error}");
    }
    // The file is named once, and is for no command a model.
    std::fs::write(at("m.gguf"), gguf(&[("general.type", "imatrix")])).unwrap();
    let (file, store) = (at("m.gguf"), tempfile::tempdir().unwrap());
    for arguments in [
        &["run", &file, "hi"][..],
        &["eval", &file, &at("Modelfile")],
        &["create", "foo", "--from", &file],
        &["cp", &file, "foo"],
    ] {
        let mut command = command(arguments);
        let error = finish(command.env("TRINE_HOME", store.path()).output().unwrap()).fails(1);
        assert!(error.contains("this is an importance matrix"), "{arguments:?}: {error}");
        assert_eq!(error.matches("m.gguf").count(), 1, "{arguments:?}: {error}");
    }
    std::fs::create_dir(at("lora")).unwrap();
    std::fs::write(at("lora/adapter_config.json"), "{}").unwrap();
    assert!(trine(&["run", &at("lora"), "hi"]).fails(1).contains("this is a LoRA adapter"));
}

/// A model's file in which the chat template is under another key.
fn without_template(bytes: &[u8]) -> Vec<u8> {
    let key = b"tokenizer.chat_template";
    let at = bytes.windows(key.len()).position(|window| window == key).unwrap();
    let mut bytes = bytes.to_vec();
    bytes[at + key.len() - 1] = b'X';
    bytes
}

/// Runs trine on a terminal to its end, and returns how that was and what was written.
#[cfg(target_os = "linux")]
fn on_terminal(arguments: &[&str]) -> (Option<i32>, String) {
    use crate::pty::{Terminal, ended};
    let terminal = Terminal::of_columns(500);
    let code = ended(&mut terminal.spawn_whole(&mut command(arguments))).code();
    let written = terminal.written();
    terminal.close();
    (code, written)
}

/// A clone of a repository without git-lfs, and what servers answer in the place of files.
#[test]
fn files_of_a_folder_are_named_for_what_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let sources = [
        ("config.json", golden("gemma3-b")),
        ("tokenizer.json", golden("gguf/tokenizer-512")),
        ("model.safetensors", golden("gemma3-b")),
        ("chat_template.jinja", golden("")),
    ];
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 5\n";
    for (damaged, _) in &sources {
        for (name, source) in &sources {
            std::fs::copy(source.join(name), folder.path().join(name)).unwrap();
        }
        for (content, said) in [
            (pointer, "a Git LFS pointer, not the file itself (5 bytes)"),
            ("<!DOCTYPE html><html></html>", "this is a web page"),
            ("Entry not found", "an error message of a server"),
        ] {
            std::fs::write(folder.path().join(damaged), content).unwrap();
            let path = folder.path().display().to_string();
            let error = trine(&[&["run", &path, "hi"][..], &FEW].concat()).fails(1);
            assert!(error.contains(said), "{damaged} {said}: {error}");
            assert!(error.contains(damaged), "{damaged} {said}: {error}");
        }
    }
}

/// A file that a text names never costs the answer; `--image` is another matter.
#[cfg(target_os = "linux")]
#[test]
fn a_text_that_names_an_image_is_answered_by_every_model() {
    let image = golden("gemma3-vision").join("b.png").display().to_string();
    let prompt = format!("Delete {image} please");
    for arguments in [&[&*prompt][..], &["demo", &prompt], &["demo", "Delete", &image, "please"]] {
        let (code, written) = on_terminal(&[&["run"][..], arguments, &FEW].concat());
        assert_eq!(code, Some(0), "{arguments:?}: {written}");
        assert!(written.contains("b.png only: demo reads no images"), "{written}");
        assert!(written.contains("tokens in "), "{written}");
    }
    // A base model with a vision tower, and a file whose first bytes only are an image's.
    let folder = tempfile::tempdir().unwrap();
    let seeing = crate::seeing::model(folder.path(), true);
    let cut = folder.path().join("cut.png");
    std::fs::write(&cut, &std::fs::read(&image).unwrap()[..40]).unwrap();
    let base = folder.path().join("base.gguf");
    std::fs::write(&base, without_template(&std::fs::read(&seeing).unwrap())).unwrap();
    for (model, image, said) in [
        (&base, Path::new(&image), "b.png only: "),
        (&seeing, &cut, "cut.png only: "),
        (&seeing, Path::new(&image), "b.png: "),
    ] {
        let (model, prompt) = (model.display().to_string(), format!("See {}!", image.display()));
        let (code, written) = on_terminal(&[&["run", &*model, &prompt][..], &FEW].concat());
        assert_eq!(code, Some(0), "{said}: {written}");
        assert!(written.contains(said) && !written.contains("--image"), "{said}: {written}");
    }
    let typed = ["run", "demo", "What?", "--image", &image];
    let (code, written) = on_terminal(&[&typed[..], &FEW].concat());
    assert!(code == Some(1) && written.contains("demo reads no images;"), "{written}");
}

/// The model inside the program says what it is to people, and to nobody else.
#[cfg(target_os = "linux")]
#[test]
fn the_demo_says_what_it_is_on_a_terminal() {
    let said = |arguments: &[&str]| on_terminal(&[arguments, &FEW].concat()).1;
    let about = "demo is a tiny model that only tells short stories";
    assert!(said(&["run", "demo", "hi"]).contains(about));
    assert!(!said(&["run", "demo", "hi", "--quiet"]).contains(about));
    let other = crate::common::model();
    assert!(!said(&["run", &other, "hi"]).contains(about));
    let piped = trine(&[&["run", "demo", "hi"][..], &FEW].concat()).ok();
    assert!(!piped.out.contains(about) && !piped.err.contains(about));
}

#[test]
fn a_preset_says_how_long_its_name_may_be_and_what_it_replaces() {
    let store = tempfile::tempdir().unwrap();
    let create = |name: &str| {
        let mut create = command(&["create", name, "--from", "demo"]);
        finish(create.env("TRINE_HOME", store.path()).output().unwrap())
    };
    for part in ["a".repeat(97), "é".repeat(60)] {
        let error = create(&format!("x:{part}")).fails(2);
        let length = part.len();
        assert!(
            error.contains(&format!("{length} bytes; name and tag take at most 96")),
            "{error}"
        );
    }
    let longest = "a".repeat(96);
    let name = format!("{longest}:{longest}");
    assert!(create(&name).ok().err.contains("created a"));
    assert!(create(&name.to_uppercase()).ok().err.contains("replaced A"));
}
