//! Checkpoints on disk: folders, shards, split files, odd paths, files that change while open,
//! and the writer.

use std::fs;
use std::path::{Path, PathBuf};
#[cfg(unix)]
use std::process::Command;
use std::time::{Duration, Instant};

use crate::support::{Raw, entry, goldens, row, safetensors};
use trine_weights::gguf::{Array, GgufMetadata as Keys, StringArray, Value, Writer};
use trine_weights::{
    Checkpoint, DType, Metadata, SafetensorsFile, Tensor, WeightsError, safetensors_file,
};

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

/// Opens `path`, which must fail, and returns the message of the error, which must contain
/// `expected`.
#[track_caller]
fn refuse(path: &Path, expected: &str) -> String {
    let start = Instant::now();
    let message = Checkpoint::open(path).expect_err("the path was accepted").to_string();
    assert!(start.elapsed() < Duration::from_secs(10));
    assert!(message.contains(expected), "no {expected:?} in: {message}");
    message
}

#[test]
fn odd_paths_are_refused_without_blocking() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    refuse(&at("missing.gguf"), "Check the path");
    fs::write(at("empty.gguf"), b"").unwrap();
    refuse(&at("empty.gguf"), "is empty");
    fs::write(at("short.gguf"), b"GGU").unwrap();
    refuse(&at("short.gguf"), "3 left");
    fs::write(at("text.txt"), b"hello, I am no model").unwrap();
    refuse(&at("text.txt"), "neither a GGUF nor a safetensors");
    fs::create_dir(at("folder")).unwrap();
    refuse(&at("folder"), "without config.json");
    fs::copy(goldens().join("gguf/gemma3-qat/model.gguf"), at("folder/model.gguf")).unwrap();
    refuse(&at("folder"), "folder's .gguf files");
}

#[cfg(unix)]
#[test]
fn devices_and_pipes_are_refused_without_blocking() {
    let folder = folder();
    refuse(Path::new("/dev/null"), "device");
    let pipe = folder.path().join("pipe.gguf");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    refuse(&pipe, "pipe");
}

#[test]
fn pickles_are_refused() {
    let folder = folder();
    // A local file header (APPNOTE 4.3.7), with the entry that `torch.save` writes first.
    let mut bytes = b"PK\x03\x04".to_vec();
    bytes.resize(26, 0);
    bytes.extend(b"\x10\0\0\0archive/data.pkl and a program in a pickle");
    for name in ["pytorch_model.bin", "model.pt", "noextension"] {
        let path = folder.path().join(name);
        fs::write(&path, &bytes).unwrap();
        refuse(&path, "pickle");
    }
    fs::remove_file(folder.path().join("noextension")).unwrap();
    fs::write(folder.path().join("config.json"), "{}").unwrap();
    refuse(folder.path(), "pickle");
}

#[test]
fn a_gguf_is_known_by_its_content() {
    let folder = folder();
    let path = folder.path().join("model.bin");
    fs::copy(goldens().join("gguf/gemma3-qat/model.gguf"), &path).unwrap();
    assert_eq!(Checkpoint::open(&path).unwrap().tensors().len(), 93);
}

#[test]
fn hugging_face_folders_open() {
    for (name, dtype) in
        [("gemma3-a", DType::F32), ("gemma3-b", DType::BF16), ("gemma3-c", DType::BF16)]
    {
        let directory = goldens().join(name);
        let checkpoint = Checkpoint::open(&directory).unwrap();
        let Metadata::HuggingFace(metadata) = checkpoint.metadata() else { panic!() };
        assert!(metadata.config.is_object() && metadata.generation_config.is_some());
        assert!(checkpoint.unreadable().is_empty());
        assert!(checkpoint.tensors().len() > 50 && checkpoint.tensors().all(Tensor::is_mapped));
        assert!(checkpoint.tensors().any(|tensor| tensor.dtype() == dtype), "{name}");
        let names: Vec<&str> = checkpoint.tensors().map(Tensor::name).collect();
        assert!(names.iter().any(|name| name.ends_with("embed_tokens.weight")));
        for name in names {
            assert_eq!(checkpoint.tensor(name).unwrap().name(), name);
        }
        assert!(checkpoint.tensor("absent").is_none());
    }
}

#[test]
fn a_shard_opens_its_whole_model_and_a_single_file_itself() {
    let whole = Checkpoint::open(goldens().join("gemma3-c")).unwrap();
    let shard = goldens().join("gemma3-c/model-00002-of-00002.safetensors");
    assert_eq!(Checkpoint::open(shard).unwrap().tensors().len(), whole.tensors().len());
    let single = goldens().join("gemma3-a/model.safetensors");
    assert!(Checkpoint::open(single).unwrap().tensors().len() > 50);
    let folder = folder();
    let alone = folder.path().join("model.safetensors");
    fs::copy(goldens().join("gemma3-a/model.safetensors"), &alone).unwrap();
    refuse(&alone, "no config.json");
}

fn sharded(folder: &Path, weight_map: &str) -> PathBuf {
    fs::write(folder.join("config.json"), "{}").unwrap();
    let index = format!("{{\"metadata\": {{}}, \"weight_map\": {{{weight_map}}}}}");
    fs::write(folder.join("model.safetensors.index.json"), index).unwrap();
    let header = r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
    fs::write(folder.join("one.safetensors"), safetensors(header, &[0; 8])).unwrap();
    folder.to_owned()
}

#[test]
fn shard_names_stay_in_the_folder() {
    let folder = folder();
    for shard in [
        "../../etc/passwd",
        "../one.safetensors",
        "/etc/one.safetensors",
        "sub/one.safetensors",
        "..\\\\one.safetensors",
        "C:one.safetensors",
        ".safetensors",
        "one.bin",
        "",
    ] {
        let path = sharded(folder.path(), &format!("\"a\": \"{shard}\""));
        refuse(&path, "not the plain name");
    }
    refuse(
        &sharded(folder.path(), r#""a": "two.safetensors""#),
        "`two.safetensors`, which is missing",
    );
    refuse(&sharded(folder.path(), r#""b": "one.safetensors""#), "`b` is not in its shard");
    refuse(
        &sharded(folder.path(), r#""a": "one.safetensors", "a": "one.safetensors""#),
        "appears twice",
    );
    refuse(&sharded(folder.path(), ""), "weight_map is empty");
    Checkpoint::open(sharded(folder.path(), r#""a": "one.safetensors""#)).unwrap();
}

#[test]
fn damaged_json_is_located() {
    let folder = folder();
    fs::copy(goldens().join("gemma3-a/model.safetensors"), folder.path().join("model.safetensors"))
        .unwrap();
    let config = folder.path().join("config.json");
    fs::write(&config, "{\n \"a\": ]}").unwrap();
    refuse(folder.path(), "at byte 8");
    fs::write(&config, "[1]").unwrap();
    refuse(folder.path(), "expected a JSON object");
    fs::write(&config, "[".repeat(100_000)).unwrap();
    refuse(folder.path(), "recursion");
    fs::write(&config, vec![b' '; 2 << 20]).unwrap();
    refuse(folder.path(), "at most 1048576");
}

#[test]
fn safetensors_headers_are_checked() {
    let row = |name: &str, dtype: &str, shape: &str, begin: u64, end: u64| {
        format!(
            r#""{name}":{{"dtype":"{dtype}","shape":[{shape}],"data_offsets":[{begin},{end}]}}"#
        )
    };
    let file = |rows: &[String], data: usize| {
        safetensors(&format!("{{{}}}", rows.join(",")), &vec![0; data])
    };
    #[track_caller]
    fn refuse(bytes: &[u8], expected: &str) {
        let message = safetensors_file::parse(bytes, "case").unwrap_err().to_string();
        assert!(message.contains("case: at byte") && message.contains(expected), "{message}");
    }
    let a = row("a", "F32", "2", 0, 8);
    let sound = file(std::slice::from_ref(&a), 8);
    assert_eq!(safetensors_file::parse(&sound, "case").unwrap().len(), 1);
    for length in 0..sound.len() {
        assert!(safetensors_file::parse(&sound[..length], "case").is_err(), "{length}");
    }
    for length in [0_u64, 1, 1 << 63, u64::MAX, 100_000_001, sound.len() as u64] {
        let mut bytes = sound.clone();
        bytes[..8].copy_from_slice(&length.to_le_bytes());
        refuse(&bytes, "the header claims");
    }
    refuse(&safetensors("\u{feff}{}", b""), "the header starts with");
    refuse(&safetensors("{nonsense}", b""), "unsound");
    refuse(&safetensors("{} {}", b""), "unsound");
    refuse(&[sound.clone(), vec![0]].concat(), "the tensors do not end where the file ends");
    refuse(&file(&[a.clone(), a.clone()], 8), "appears twice");
    refuse(&file(&[a.clone(), row("b", "F32", "2", 4, 12)], 12), "overlaps or leaves a gap");
    refuse(&file(&[a.clone(), row("b", "F32", "2", 12, 20)], 20), "overlaps or leaves a gap");
    refuse(&file(&[row("a", "F32", "2", 8, 0)], 8), "lies at 8..0");
    refuse(&file(&[row("a", "F32", "2", 0, 16)], 8), "lies at 0..16");
    refuse(&file(&[row("a", "U8", "18446744073709551615", 0, u64::MAX)], 8), "lies at");
    refuse(&file(&[row("a", "F32", "3", 0, 8)], 8), "another length");
    refuse(&file(&[row("a", "F32", "4294967296,4294967296,4", 0, 8)], 8), "unsound");
    refuse(&file(&[row("a", "Q9", "2", 0, 8)], 8), "unsound");
    refuse(&file(&[row("a", "F32", "1,1,1,1,1,1,1,1,2", 0, 8)], 8), "at most 8 dimensions");
    refuse(&file(&[row(&"n".repeat(600), "F32", "2", 0, 8)], 8), "name of 600 bytes");
}

#[test]
fn tensors_in_other_formats_are_listed_apart() {
    let golden = SafetensorsFile::open(&goldens().join("gemma3-a/goldens.safetensors")).unwrap();
    assert_eq!(golden.entry("input_ids").unwrap().format, "I64");
    assert_eq!(golden.entry("logits").unwrap().dtype(), Some(DType::F32));
    let beside_config = goldens().join("gemma3-a/goldens.safetensors");
    let checkpoint = Checkpoint::open(beside_config).unwrap();
    assert!(checkpoint.unreadable().iter().any(|t| t.name == "input_ids" && t.format == "I64"));
}

/// Creates one file of a split model with tensor `name`.
fn part(number: u16, count: u16, total: i32, name: &str) -> Vec<u8> {
    let mut raw = Raw::with_rows(vec![row(name, &[8], 0, 0)], 32);
    raw.entries.push(entry("split.no", 2, &number.to_le_bytes()));
    raw.entries.push(entry("split.count", 2, &count.to_le_bytes()));
    raw.entries.push(entry("split.tensors.count", 5, &total.to_le_bytes()));
    raw.bytes()
}

#[test]
fn split_models_open_from_any_part() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    let (first, second) = (at("m-00001-of-00002.gguf"), at("m-00002-of-00002.gguf"));
    fs::write(&first, part(0, 2, 2, "a")).unwrap();
    refuse(&first, "m-00002-of-00002.gguf");
    fs::write(&second, part(1, 2, 2, "b")).unwrap();
    for path in [&first, &second] {
        let checkpoint = Checkpoint::open(path).unwrap();
        assert_eq!(checkpoint.tensors().map(Tensor::name).collect::<Vec<_>>(), ["a", "b"]);
    }
    fs::write(&second, part(1, 2, 2, "a")).unwrap();
    refuse(&first, "more than one part");
    fs::write(&second, part(0, 2, 2, "b")).unwrap();
    refuse(&first, "says inside that it is part 1 of 2");
    fs::write(&second, part(1, 3, 2, "b")).unwrap();
    refuse(&first, "part 2 of 3");
    fs::write(&second, part(1, 2, 2, "b")).unwrap();
    fs::write(&first, part(0, 2, 7, "a")).unwrap();
    refuse(&first, "hold 2 tensors, 7 are announced");
    fs::write(at("renamed.gguf"), part(0, 2, 2, "a")).unwrap();
    refuse(&at("renamed.gguf"), "is not named like");
}

#[cfg(unix)]
#[test]
fn a_file_cut_while_open_is_an_error_and_the_process_lives() {
    let folder = folder();
    let path = folder.path().join("model.gguf");
    fs::copy(goldens().join("gguf/gemma3-f32/model.gguf"), &path).unwrap();
    let cut = Checkpoint::open(&path).unwrap();
    let other_path = goldens().join("gguf/gemma3-f32/model.gguf");
    let other = Checkpoint::open(&other_path).unwrap();
    let last = cut.tensors().last().unwrap().clone();
    cut.check_intact().unwrap();

    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(4096).unwrap();
    // Several threads touch missing pages at once. Each read ends and returns zeros.
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for tensor in cut.tensors() {
                    std::hint::black_box(tensor.bytes().iter().map(|&b| u64::from(b)).sum::<u64>());
                }
            });
        }
    });
    assert!(last.bytes().iter().all(|&byte| byte == 0));
    match cut.check_intact() {
        Err(error @ WeightsError::Changed { .. }) => {
            let message = error.to_string();
            assert!(message.contains("model.gguf") && message.contains("lost pages"), "{message}");
        }
        result => panic!("{result:?}"),
    }
    // The other model is not affected, and a slot can be used again after its map is gone.
    other.check_intact().unwrap();
    drop((cut, last));
    Checkpoint::open(&other_path).unwrap().check_intact().unwrap();
}

#[cfg(unix)]
#[test]
fn a_file_written_while_open_is_an_error() {
    let folder = folder();
    let path = folder.path().join("model.gguf");
    fs::copy(goldens().join("gguf/gemma3-qat/model.gguf"), &path).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    // Cut inside the last page: no page is missing, but the size differs.
    let length = fs::metadata(&path).unwrap().len();
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(length - 1).unwrap();
    assert!(checkpoint.check_intact().unwrap_err().to_string().contains("changed its size"));
    file.set_len(length).unwrap();
    file.set_modified(std::time::SystemTime::now() + Duration::from_secs(5)).unwrap();
    assert!(checkpoint.check_intact().unwrap_err().to_string().contains("was written to"));
    // Replacing the file by renaming does not affect the open one.
    let again = Checkpoint::open(&path).unwrap();
    let replacement = folder.path().join("replacement");
    fs::write(&replacement, b"something else").unwrap();
    fs::rename(&replacement, &path).unwrap();
    again.check_intact().unwrap();
}

/// Windows does not let a file be cut while it is mapped.
#[cfg(windows)]
#[test]
fn an_open_file_cannot_be_cut_and_its_change_is_an_error() {
    let folder = folder();
    let path = folder.path().join("model.gguf");
    fs::copy(goldens().join("gguf/gemma3-qat/model.gguf"), &path).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(4096).unwrap_err();
    checkpoint.check_intact().unwrap();
    file.set_modified(std::time::SystemTime::now() + Duration::from_secs(5)).unwrap();
    assert!(checkpoint.check_intact().unwrap_err().to_string().contains("was written to"));
}

/// A fault outside our maps still ends the process, as without the guard. The fault happens in a
/// child process.
#[cfg(unix)]
#[test]
fn foreign_bus_errors_still_kill() {
    use std::os::unix::process::ExitStatusExt;
    if std::env::var_os("TRINE_TEST_FOREIGN_FAULT").is_some() {
        let _open = Checkpoint::open(goldens().join("gguf/gemma3-qat/model.gguf")).unwrap();
        let file = tempfile::tempfile().unwrap();
        file.set_len(8192).unwrap();
        // SAFETY: the file belongs to this test alone; reading the pages that it loses is the
        // purpose.
        let foreign = unsafe { memmap2::Mmap::map(&file).unwrap() };
        file.set_len(0).unwrap();
        std::hint::black_box(foreign[0]);
        return;
    }
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["files::foreign_bus_errors_still_kill", "--exact", "--nocapture"])
        .env("TRINE_TEST_FOREIGN_FAULT", "1")
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .status()
        .unwrap();
    assert_eq!(status.signal(), Some(libc::SIGBUS), "{status:?}");
}

#[test]
fn released_pages_are_read_again() {
    let path = goldens().join("gguf/gemma3-f32/model.gguf");
    let checkpoint = Checkpoint::open(&path).unwrap();
    let tensor = checkpoint.tensor("token_embd.weight").unwrap();
    let before = tensor.bytes().to_vec();
    (0..tensor.rows()).for_each(|row| tensor.prefetch_row(row));
    tensor.release_pages(0..tensor.bytes().len());
    tensor.release_pages(5..7);
    tensor.release_pages(usize::MAX - 1..usize::MAX);
    assert_eq!(tensor.bytes(), before);
    checkpoint.check_intact().unwrap();
    let owned = Tensor::from_owned("o", DType::F32, &[2], vec![0; 8]).unwrap();
    owned.release_pages(0..8);
    owned.prefetch_row(0);
    assert!(!owned.is_mapped());
}

/// Creates metadata with a value of every kind.
fn rich_metadata() -> Keys {
    let mut keys = Keys::default();
    let strings: StringArray = ["<pad>", "", "é", "▁the"].into_iter().collect();
    for (key, value) in [
        ("general.architecture", Value::String("gemma3".into())),
        ("general.alignment", Value::U32(64)),
        ("kinds.u8", Value::U8(200)),
        ("kinds.i8", Value::I8(-100)),
        ("kinds.u16", Value::U16(60_000)),
        ("kinds.i16", Value::I16(-30_000)),
        ("kinds.i32", Value::I32(-2_000_000_000)),
        ("kinds.f32", Value::F32(1e-6)),
        ("kinds.bool", Value::Bool(true)),
        ("kinds.u64", Value::U64(u64::MAX)),
        ("kinds.i64", Value::I64(i64::MIN)),
        ("kinds.f64", Value::F64(std::f64::consts::PI)),
        ("arrays.string", Value::Array(Array::String(strings))),
        ("arrays.f32", Value::Array(Array::F32(vec![f32::NEG_INFINITY, 1.5]))),
        ("arrays.bool", Value::Array(Array::Bool(vec![true, false]))),
        ("arrays.i32", Value::Array(Array::I32(vec![1, -1]))),
        (
            "arrays.nested",
            Value::Array(Array::Array(vec![Array::U8(vec![1]), Array::U16(vec![2])])),
        ),
        ("arrays.empty", Value::Array(Array::U64(vec![]))),
    ] {
        keys.insert(key, value);
    }
    keys
}

fn write_rich(path: &Path) {
    let mut writer = Writer::new(path, rich_metadata()).unwrap();
    let matrix = Tensor::from_owned("blk.0.w", DType::Q8_0, &[3, 64], (0..204).collect()).unwrap();
    let norm = Tensor::from_owned("norm", DType::F32, &[5], vec![1; 20]).unwrap();
    for tensor in [&matrix, &norm] {
        writer.declare(tensor.name(), tensor.dtype(), tensor.shape()).unwrap();
    }
    writer.declare("cube", DType::F16, &[2, 3, 4]).unwrap();
    writer.declare("nothing", DType::F32, &[0]).unwrap();
    let mut data = writer.start().unwrap();
    data.tensor(&matrix).unwrap();
    data.tensor(&norm).unwrap();
    data.bytes(&[3; 40]).unwrap();
    data.bytes(&[4; 8]).unwrap();
    data.finish().unwrap();
}

#[test]
fn what_is_written_is_read_back() {
    let folder = folder();
    let path = folder.path().join("out.gguf");
    write_rich(&path);
    let checkpoint = Checkpoint::open(&path).unwrap();
    let Metadata::Gguf(found) = checkpoint.metadata() else { panic!() };
    let expected = rich_metadata();
    assert!(found.iter().eq(expected.iter()));
    assert_eq!(found.strings("arrays.string").unwrap().get(3), Some("▁the"));
    let shapes: Vec<_> = checkpoint.tensors().map(|t| (t.name(), t.shape().to_vec())).collect();
    let expected = [
        ("blk.0.w", vec![3, 64]),
        ("norm", vec![5]),
        ("cube", vec![2, 3, 4]),
        ("nothing", vec![0]),
    ];
    assert_eq!(shapes, expected);
    assert_eq!(checkpoint.tensor("blk.0.w").unwrap().row(2), (136..204).collect::<Vec<u8>>());
    assert_eq!(checkpoint.tensor("cube").unwrap().rows(), 6);
    assert_eq!(&checkpoint.tensor("cube").unwrap().bytes()[39..41], [3, 4]);

    let again = folder.path().join("again.gguf");
    write_rich(&again);
    assert_eq!(fs::read(&path).unwrap(), fs::read(&again).unwrap());
    let leftovers: Vec<_> = fs::read_dir(folder.path()).unwrap().collect();
    assert_eq!(leftovers.len(), 2);
}

#[test]
fn a_golden_rewritten_is_the_same_file() {
    let path = goldens().join("gguf/gemma3-qat/model.gguf");
    let checkpoint = Checkpoint::open(&path).unwrap();
    let Metadata::Gguf(keys) = checkpoint.metadata() else { panic!() };
    let folder = folder();
    let copy = folder.path().join("copy.gguf");
    let mut writer = Writer::new(&copy, keys.clone()).unwrap();
    for tensor in checkpoint.tensors() {
        writer.declare(tensor.name(), tensor.dtype(), tensor.shape()).unwrap();
    }
    let mut data = writer.start().unwrap();
    checkpoint.tensors().for_each(|tensor| data.tensor(tensor).unwrap());
    data.finish().unwrap();
    assert_eq!(fs::read(&path).unwrap(), fs::read(&copy).unwrap());
}

#[test]
fn integers_are_lists_beside_the_tensors() {
    let folder = folder();
    let path = folder.path().join("out.gguf");
    let mut writer = Writer::new(&path, Keys::default()).unwrap();
    writer.declare("a", DType::F32, &[1]).unwrap();
    writer.declare_integers("order", 3).unwrap();
    writer.declare("b", DType::F32, &[1]).unwrap();
    let mut data = writer.start().unwrap();
    for bytes in [vec![0; 4], [7_i32, -2, 1 << 20].map(i32::to_le_bytes).concat(), vec![1; 4]] {
        data.bytes(&bytes).unwrap();
    }
    data.finish().unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    assert_eq!(checkpoint.integers("order", 3).unwrap(), [7, -2, 1 << 20]);
    assert!(checkpoint.integers("order", 4).is_none() && checkpoint.integers("a", 1).is_none());
    assert_eq!(checkpoint.tensors().len(), 2);
    assert_eq!(checkpoint.tensor("b").unwrap().bytes(), [1; 4]);
    let [unreadable] = checkpoint.unreadable() else { panic!("one tensor is no weight") };
    assert_eq!((unreadable.name.as_str(), unreadable.format.as_str()), ("order", "I32"));
}

#[test]
fn unfinished_files_never_appear() {
    let folder = folder();
    let path = folder.path().join("out.gguf");
    let start = || {
        let mut writer = Writer::new(&path, Keys::default()).unwrap();
        writer.declare("a", DType::F32, &[4]).unwrap();
        writer.start().unwrap()
    };
    let mut data = start();
    data.bytes(&[0; 8]).unwrap();
    assert!(data.finish().unwrap_err().to_string().contains("not wholly written"));
    let mut data = start();
    assert!(data.bytes(&[0; 17]).unwrap_err().to_string().contains("more bytes"));
    drop(data);
    let mut data = start();
    let other = Tensor::from_owned("b", DType::F32, &[4], vec![0; 16]).unwrap();
    assert!(data.tensor(&other).is_err());
    drop(data);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    // What is checked is whole and readable, and one that is refused replaces nothing.
    fs::write(&path, "old").unwrap();
    let mut data = start();
    data.bytes(&[0; 16]).unwrap();
    let refused = data.finish_checked(|part| {
        assert_eq!(Checkpoint::open(part).unwrap().tensors().len(), 1);
        Err(WeightsError::Tensor { name: "a".to_owned(), problem: "is not wanted".to_owned() })
    });
    assert!(refused.unwrap_err().to_string().contains("is not wanted"));
    assert_eq!(fs::read(&path).unwrap(), b"old");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    let mut data = start();
    data.bytes(&[0; 16]).unwrap();
    data.finish_checked::<WeightsError>(|_| Ok(())).unwrap();
    assert_eq!(Checkpoint::open(&path).unwrap().tensors().len(), 1);

    let mut writer = Writer::new(&path, Keys::default()).unwrap();
    assert!(writer.declare(&"n".repeat(65), DType::F32, &[1]).is_err());
    assert!(writer.declare("w", DType::Q4_0, &[33]).is_err());
    assert!(writer.declare("w", DType::F32, &[]).is_err());
    writer.declare("w", DType::F32, &[1]).unwrap();
    assert!(writer.declare("w", DType::F32, &[1]).is_err());
    let mut keys = Keys::default();
    keys.insert("general.alignment", Value::U32(3));
    assert!(Writer::new(&path, keys).is_err());
}

#[test]
fn tensors_of_the_wrong_size_are_refused() {
    for (dtype, shape, bytes) in [
        (DType::F32, &[2, 3][..], 23),
        (DType::Q4_0, &[2, 33], 36),
        (DType::F32, &[usize::MAX, 2], 8),
        (DType::F32, &[1 << 40, 1 << 40, 0], 0),
    ] {
        assert!(
            Tensor::from_owned("t", dtype, shape, vec![0; bytes]).is_err(),
            "{dtype} {shape:?}"
        );
    }
    let scalar = Tensor::from_owned("s", DType::F32, &[], vec![0; 4]).unwrap();
    assert_eq!((scalar.rows(), scalar.columns()), (1, 1));
}

/// Three matrices of two rows, each with a factor, and rows that begin in the second.
#[test]
fn factors_follow_their_rows() {
    let bytes: Vec<u8> = (1..=6).flat_map(|row| (row as f32).to_le_bytes()).collect();
    let tensor = Tensor::from_owned("w", DType::F32, &[3, 2, 1], bytes).unwrap();
    assert!(tensor.factors().is_empty());
    for wrong in [&[][..], &[1.0; 4], &[1.0; 7]] {
        assert!(tensor.with_factors(wrong).is_err(), "{wrong:?}");
    }
    let tensor = tensor.with_factors(&[10.0, 0.5, -1.0]).unwrap();
    assert_eq!(tensor.to_f32().unwrap(), [10.0, 20.0, 1.5, 2.0, -5.0, -6.0]);
    let slice = tensor.slice_rows("part", 3..6).unwrap();
    assert_eq!(slice.to_f32().unwrap(), [2.0, -5.0, -6.0]);
    let mut row = [f32::NAN];
    slice.decode_row(1, &mut row).unwrap();
    assert_eq!(row, [-5.0]);
    assert_eq!(slice.slice_rows("less", 2..3).unwrap().to_f32().unwrap(), [-6.0]);
    let flat = tensor.renamed("v").reshaped(&[6, 1]).unwrap();
    assert_eq!(flat.to_f32().unwrap(), tensor.to_f32().unwrap());
    assert!(tensor.reshaped(&[2, 3]).is_err());
    let converted = trine_weights::quantize_tensor(&tensor, DType::F16).unwrap();
    assert!(converted.factors().is_empty());
    assert_eq!(converted.to_f32().unwrap(), tensor.to_f32().unwrap());
}
