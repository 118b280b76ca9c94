//! Models that are not on this machine, as their headers and the catalogue tell of them.

use trine_weights::gguf::{self, Value, Writer};
use trine_weights::{Checkpoint, Metadata, Tensor};

use crate::common::{golden, model};
use crate::stores::{Store, TestHub};

/// What a model would take is known from its header: nothing of it is downloaded.
#[test]
fn a_model_that_is_not_here_is_shown_by_its_header() {
    let hub = TestHub::start(&[("ggml-org/gemma-3-4b-it-GGUF", "gemma-3-4b-it-Q4_K_M.gguf")]);
    let mut store = Store::new();
    store.endpoint = hub.address.clone();
    for command in [
        &["plan", "gemma3:4b", "--device", "780m"][..],
        &["explain", "gemma3:4b"],
        &["show", "gemma3:4b"],
    ] {
        let ran = store.trine(command).ok();
        assert!(ran.err.contains("is not on this machine: its header was read"), "{}", ran.err);
        assert!(ran.out.contains("gemma3:4b"), "{}", ran.out);
    }
    assert_eq!(std::fs::read_dir(store.folder.path()).unwrap().count(), 0, "nothing is kept");
    let plan = store.trine(&["plan", "gemma3:4b", "--device", "780m"]).ok().out;
    assert!(plan.starts_with("About ") && plan.contains("Needs "), "{plan}");
}

/// The golden model in two files, each with half of the tensors.
fn split() -> Vec<(String, Vec<u8>)> {
    let whole = Checkpoint::open(model()).unwrap();
    let Metadata::Gguf(metadata) = whole.metadata() else { panic!("a GGUF file") };
    let tensors: Vec<_> = whole.tensors().collect();
    let half = tensors.len() / 2;
    let folder = tempfile::tempdir().unwrap();
    let part = |(number, tensors): (u16, &[&Tensor])| {
        let name = format!("b-F32-{:05}-of-00002.gguf", number + 1);
        let mut own = if number == 0 { metadata.clone() } else { gguf::GgufMetadata::new(&name) };
        own.insert("split.no", Value::U16(number));
        own.insert("split.count", Value::U16(2));
        let mut writer = Writer::new(folder.path().join(&name), own).unwrap();
        tensors.iter().for_each(|tensor| {
            writer.declare(tensor.name(), tensor.dtype(), tensor.shape()).unwrap();
        });
        let mut writer = writer.start().unwrap();
        tensors.iter().for_each(|tensor| writer.tensor(tensor).unwrap());
        writer.finish().unwrap();
        let bytes = std::fs::read(folder.path().join(&name)).unwrap();
        (name, bytes)
    };
    [(0, &tensors[..half]), (1, &tensors[half..])].map(part).into()
}

/// Models in parts and folders say as much by their headers as those in one file.
#[test]
fn models_of_several_files_are_shown_by_their_headers() {
    let folder = std::fs::read_dir(golden("gemma3-a")).unwrap().flatten();
    let folder = folder.filter(|entry| entry.file_type().unwrap().is_file()).map(|entry| {
        (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap())
    });
    let is_published = |name: &String| {
        ["config.json", "generation_config.json", "model.safetensors"].contains(&name.as_str())
    };
    let folder: Vec<_> = folder.filter(|(name, _)| is_published(name)).collect();
    for (files, here) in [(split(), model()), (folder, golden("gemma3-a").display().to_string())] {
        let count = files.len();
        let hub = TestHub::several("a/b-GGUF", files);
        let mut store = Store::new();
        store.endpoint = hub.address.clone();
        let shown = store.trine(&["show", "a/b-GGUF", "--json"]).ok().json();
        let own = store.trine(&["show", &here, "--json"]).ok().json();
        for fact in ["parameters", "formats", "layers", "context", "memory"] {
            assert_eq!(shown[fact], own[fact], "{fact}: {shown}");
        }
        assert_eq!(shown["files"], format!("a/b-GGUF, {count} files on the server"), "{shown}");
        store.trine(&["plan", "a/b-GGUF", "--device", "780m"]).ok();
        assert_eq!(std::fs::read_dir(store.folder.path()).unwrap().count(), 0, "nothing is kept");
    }
}

/// What is wrong with a header is said of the file on the server, not of its copy that is gone.
#[test]
fn a_broken_header_is_told_by_its_repository() {
    let whole = std::fs::read(model()).unwrap();
    let changed = |from: &[u8], to: &[u8]| {
        let at = whole.windows(from.len()).position(|part| part == from).unwrap();
        [&whole[..at], to, &whole[at + from.len()..]].concat()
    };
    for (bytes, problem) in [
        (changed(b"blk.0.attn_q.weight", b"blk.0.attn_x.weight"), "blk.0.attn_q.weight"),
        (changed(b"blk.0.attn_q.weight\x02", b"blk.0.attn_q.weight\x63"), "dimensions"),
    ] {
        let hub = TestHub::several("a/b-GGUF", vec![("b-F32.gguf".to_owned(), bytes)]);
        let mut store = Store::new();
        store.endpoint = hub.address.clone();
        for command in ["show", "explain", "plan"] {
            let error = store.trine(&[command, "a/b-GGUF"]).fails(1);
            let wanted = ["a/b-GGUF/b-F32.gguf", problem, "name another file of it"];
            assert!(wanted.iter().all(|part| error.contains(part)), "{command}: {error}");
            let temporary = std::env::temp_dir();
            let is_damaged = error.contains("trine rm") || error.contains(".tmp");
            assert!(!is_damaged && !error.contains(temporary.to_str().unwrap()), "{error}");
        }
    }
}

/// Commands that run nothing are no reason to ask for gigabytes: what fails is told with the
/// command that downloads the model.
#[cfg(target_os = "linux")]
#[test]
fn a_header_that_cannot_be_read_is_no_question_about_a_download() {
    use crate::pty::{Terminal, ended};
    let hub = TestHub::cut("a/b-GGUF", "b-F32.gguf", 5000);
    let (here, mut store) = (model(), Store::new());
    store.endpoint = hub.address.clone();
    for command in [
        &["plan", "a/b-GGUF"][..],
        &["explain", "a/b-GGUF"],
        &["show", "a/b-GGUF"],
        &["plan", &here, "--draft", "a/b-GGUF"],
        &["explain", &here, "--draft", "a/b-GGUF"],
        &["show", &here, "--draft", "a/b-GGUF"],
    ] {
        let terminal = Terminal::of_columns(400);
        let mut child = terminal.spawn_whole(&mut store.command(command));
        assert_eq!(ended(&mut child).code(), Some(1), "{command:?}");
        let (pull, reason) = ("`trine pull a/b-GGUF`", "the server ended its answer too early");
        terminal.wait_for_written(pull);
        let written = terminal.written();
        terminal.close();
        assert!(written.contains(pull) && !written.contains("[Y/n]"), "{command:?}: {written}");
        assert!(command.len() > 2 || written.contains(reason), "{command:?}: {written}");
    }
    let unknown = store.trine(&["show", "a/c-GGUF"]).fails(1);
    assert!(unknown.contains("has no repository a/c-GGUF"), "{unknown}");
    assert!(!unknown.contains("trine pull"), "it would not help: {unknown}");
}

/// Without a server the catalogue says what a model takes.
#[test]
fn the_plan_of_a_name_of_the_catalogue_needs_no_network() {
    let ran = Store::new().trine(&["plan", "gemma3:4b"]).ok();
    assert!(ran.out.starts_with("About ") && ran.out.contains("Needs about 4"), "{}", ran.out);
    for said in ["by the sizes in the catalogue", "no connection to http://127.0.0.1:9"] {
        assert!(ran.err.contains(said), "{said}: {}", ran.err);
    }
    for more in [
        &["--json"][..],
        &["--markdown"],
        &["--device", "780m"],
        &["--context", "100"],
        &["--kv", "int8"],
        &["--quantize", "q8_0"],
        &["--threads", "1"],
        &["--draft", "ngram"],
        &["--acceptance", "0.5"],
    ] {
        let error = Store::new().trine(&[&["plan", "gemma3:4b"][..], more].concat()).fails(1);
        assert!(error.contains("Its header cannot be read: no connection"), "{error}");
    }
}
