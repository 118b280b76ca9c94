//! Damaged GGUF files, one case each. Every error names the file and, if the damage has a place,
//! its byte. The names follow llama.cpp's `tests/test-gguf.cpp` for the cases that it has.

use crate::support;

use std::time::{Duration, Instant};

use crate::support::{Raw, entry, row, string};
use trine_weights::gguf::{Array, Value};
use trine_weights::{Checkpoint, WeightsError, gguf};

/// Returns the error of parsing `bytes`, which must name the file, contain `expected`, and occur
/// within 10 s.
#[track_caller]
fn refuse(bytes: &[u8], expected: &str) -> WeightsError {
    let start = Instant::now();
    let error = gguf::parse(bytes, "case.gguf").expect_err("the file was accepted");
    assert!(start.elapsed() < Duration::from_secs(10));
    let message = error.to_string();
    assert!(message.contains("case.gguf"), "{message}");
    assert!(message.contains(expected), "no {expected:?} in: {message}");
    if let WeightsError::Malformed { offset, .. } = &error {
        assert!(*offset <= bytes.len() as u64, "{message}");
    }
    error
}

#[track_caller]
fn accept(bytes: &[u8]) -> gguf::Layout {
    gguf::parse(bytes, "case.gguf").expect("the file was refused")
}

#[test]
fn the_sound_file_is_accepted() {
    for version in [2, 3] {
        let layout = accept(&Raw { version, ..Raw::sound() }.bytes());
        assert_eq!(layout.version, version);
        assert_eq!(layout.metadata.str("general.architecture").unwrap(), "gemma3");
        assert_eq!(&*layout.tensors[0].shape, [2, 8]);
        assert_eq!(layout.tensors[1].range.len(), 32);
    }
}

#[test]
fn header_bad_magic() {
    refuse(&Raw { magic: *b"GGML", ..Raw::sound() }.bytes(), "not a GGUF");
    refuse(&Raw { magic: *b"FUGG", ..Raw::sound() }.bytes(), "reversed");
    refuse(b"", "file has 0 left");
    refuse(b"GGU", "file has 3 left");
}

#[test]
fn header_bad_version() {
    refuse(&Raw { version: 0, ..Raw::sound() }.bytes(), "version 0");
    refuse(&Raw { version: 1, ..Raw::sound() }.bytes(), "version 1");
    refuse(&Raw { version: u32::MAX, ..Raw::sound() }.bytes(), "version 4294967295");
    refuse(&Raw { version: 3_u32.swap_bytes(), ..Raw::sound() }.bytes(), "big-endian");
}

#[test]
fn header_bad_n_tensors() {
    for count in [3, 1 << 20, 1 << 63, u64::MAX] {
        refuse(&Raw { tensor_count: Some(count), ..Raw::sound() }.bytes(), "tensor");
    }
    let error = refuse(&Raw { tensor_count: Some(1 << 63), ..Raw::sound() }.bytes(), "bytes left");
    assert!(matches!(error, WeightsError::Malformed { offset: 8, .. }), "{error}");
}

#[test]
fn header_bad_n_kv() {
    for count in [1 << 20, 1 << 63, u64::MAX] {
        let bytes = Raw { entry_count: Some(count), ..Raw::sound() }.bytes();
        let error = refuse(&bytes, "metadata entries");
        assert!(matches!(error, WeightsError::Malformed { offset: 16, .. }), "{error}");
    }
}

#[test]
fn header_empty_is_a_sound_file() {
    let layout = accept(&Raw::default().bytes());
    assert!(layout.metadata.is_empty() && layout.tensors.is_empty());
    let without_padding = &Raw::default().bytes()[..24];
    assert!(accept(without_padding).tensors.is_empty());
}

#[test]
fn kv_bad_key_size() {
    for length in [0, 1 << 40, u64::MAX] {
        let mut bad = entry("key", 4, &[0; 4]);
        bad[..8].copy_from_slice(&u64::to_le_bytes(length));
        refuse(&Raw::with_entry(bad).bytes(), "key");
    }
    refuse(&Raw::with_entry(entry("", 4, &[0; 4])).bytes(), "0 bytes long");
    refuse(&Raw::with_entry(entry(vec![b'k'; 65_536], 4, &[0; 4])).bytes(), "65536 bytes long");
    refuse(&Raw::with_entry(entry(b"\xff\xfe", 4, &[0; 4])).bytes(), "not UTF-8");
    refuse(&Raw::with_entry(entry("a\0b", 4, &[0; 4])).bytes(), "NUL");
}

#[test]
fn kv_bad_type() {
    for kind in [13, 99, u32::MAX] {
        refuse(&Raw::with_entry(entry("k", kind, &[0; 8])).bytes(), "unknown value type");
        let array = [&kind.to_le_bytes()[..], &1_u64.to_le_bytes(), &[0; 8]].concat();
        refuse(&Raw::with_entry(entry("k", 9, &array)).bytes(), "unknown element type");
    }
}

#[test]
fn kv_nested_arrays() {
    let nest = |depth: usize| {
        let level = [&9_u32.to_le_bytes()[..], &1_u64.to_le_bytes()].concat();
        let inner = [&4_u32.to_le_bytes()[..], &1_u64.to_le_bytes(), &[7, 0, 0, 0]].concat();
        [level.repeat(depth), inner].concat()
    };
    accept(&Raw::with_entry(entry("k", 9, &nest(3))).bytes());
    refuse(&Raw::with_entry(entry("k", 9, &nest(4))).bytes(), "nests");
    refuse(&Raw::with_entry(entry("k", 9, &nest(10_000))).bytes(), "nests");

    let empty = [&4_u32.to_le_bytes()[..], &0_u64.to_le_bytes()].concat();
    let count = 70_000_u64;
    let wide = [&9_u32.to_le_bytes()[..], &count.to_le_bytes(), &empty.repeat(70_000)].concat();
    refuse(&Raw::with_entry(entry("k", 9, &wide)).bytes(), "nests 70000");
}

#[test]
fn kv_value_larger_than_the_file() {
    for length in [1_000, 1 << 40, u64::MAX] {
        refuse(&Raw::with_entry(entry("k", 8, &u64::to_le_bytes(length))).bytes(), "bytes");
        for kind in 0..13_u32 {
            let array = [&kind.to_le_bytes()[..], &u64::to_le_bytes(length)].concat();
            refuse(&Raw::with_entry(entry("k", 9, &array)).bytes(), "`k`");
        }
    }
}

/// Long enough for its claim, and of nothing.
#[test]
fn kv_metadata_that_takes_too_much() {
    let length = 1_u64 << 27;
    let text = u64::to_le_bytes(length).to_vec();
    let bytes =
        |kind: u32, each: u64| [&kind.to_le_bytes()[..], &u64::to_le_bytes(length / each)].concat();
    let values = [(8, text), (9, bytes(0, 1)), (9, bytes(7, 1)), (9, bytes(4, 4))];
    for (kind, value) in values {
        let mut file = Raw::with_entry(entry("k", kind, &value)).bytes();
        file.resize(file.len() + length as usize, 0);
        refuse(&file, "the metadata take more than 134217728 bytes with `k`");
    }
}

#[test]
fn kv_duplicate_key() {
    let mut raw = Raw::with_entry(entry("twice", 4, &[0; 4]));
    raw.entries.push(entry("twice", 5, &[0; 4]));
    refuse(&raw.bytes(), "`twice` appears twice");
}

#[test]
fn kv_bad_values() {
    refuse(&Raw::with_entry(entry("k", 7, &[2])).bytes(), "0 or 1");
    refuse(&Raw::with_entry(entry("k", 8, &string(b"\xc3\x28"))).bytes(), "not UTF-8");
    let split_character = [string(b"\xc3"), string(b"\xa9")].concat();
    let array = [&8_u32.to_le_bytes()[..], &2_u64.to_le_bytes(), &split_character].concat();
    refuse(&Raw::with_entry(entry("k", 9, &array)).bytes(), "string 0 of `k` is not UTF-8");
}

#[test]
fn kv_bad_align() {
    for alignment in [0_u32, 1, 3, 4, 48, 1 << 17, 1 << 31] {
        let bad = entry("general.alignment", 4, &alignment.to_le_bytes());
        refuse(&Raw::with_entry(bad).bytes(), "power of two");
    }
    refuse(
        &Raw::with_entry(entry("general.alignment", 10, &[32, 0, 0, 0, 0, 0, 0, 0])).bytes(),
        "u32",
    );
    let mut raw = Raw::with_entry(entry("general.alignment", 4, &64_u32.to_le_bytes()));
    raw.alignment = 64;
    assert_eq!(accept(&raw.bytes()).alignment, 64);
}

#[test]
fn tensors_bad_name_size() {
    accept(&Raw::with_rows(vec![row("n".repeat(64), &[8], 0, 0)], 32).bytes());
    refuse(&Raw::with_rows(vec![row("n".repeat(65), &[8], 0, 0)], 32).bytes(), "65 bytes long");
    refuse(&Raw::with_rows(vec![row("n".repeat(100_000), &[8], 0, 0)], 32).bytes(), "100000 bytes");
    refuse(&Raw::with_rows(vec![row("", &[8], 0, 0)], 32).bytes(), "0 bytes long");
    refuse(&Raw::with_rows(vec![row(b"\xff", &[8], 0, 0)], 32).bytes(), "not UTF-8");
    refuse(&Raw::with_rows(vec![row("a\0", &[8], 0, 0)], 32).bytes(), "NUL");
}

#[test]
fn tensors_bad_n_dims() {
    refuse(&Raw::with_rows(vec![row("t", &[], 0, 0)], 32).bytes(), "0 dimensions");
    refuse(&Raw::with_rows(vec![row("t", &[2, 1, 1, 1, 1], 0, 0)], 32).bytes(), "5 dimensions");
    let mut bad = row("t", &[8], 0, 0);
    bad[9..13].copy_from_slice(&u32::MAX.to_le_bytes());
    refuse(&Raw::with_rows(vec![bad], 32).bytes(), "4294967295 dimensions");
}

#[test]
fn tensors_zero_dim_is_parsed() {
    let rows = vec![row("empty", &[8, 0], 0, 0), row("t", &[8], 0, 0), row("last", &[0], 0, 32)];
    let layout = accept(&Raw::with_rows(rows, 32).bytes());
    assert_eq!(layout.tensors[0].range.len(), 0);
    accept(&Raw::with_rows(vec![row("only", &[0], 0, 0)], 0).bytes()[..60]);
}

#[test]
fn tensors_ne_too_big() {
    for dimensions in [
        &[u64::MAX][..],
        &[1 << 63],
        &[1 << 32, 1 << 32],
        &[1 << 20, 1 << 20, 1 << 20, 1 << 20],
        &[1 << 32, 1 << 31, 0],
        &[1 << 62, 2],
    ] {
        refuse(&Raw::with_rows(vec![row("t", dimensions, 0, 0)], 32).bytes(), "tensor `t`");
    }
}

#[test]
fn tensors_nbytes_too_big() {
    // Fewer than 2^63 elements, but more than 2^64 bytes.
    refuse(&Raw::with_rows(vec![row("t", &[1 << 62], 0, 0)], 32).bytes(), "overflows");
    // Rounding the end up to the alignment would wrap.
    let bytes_near_max = (u64::MAX / 4) & !7;
    refuse(&Raw::with_rows(vec![row("t", &[bytes_near_max], 0, 0)], 32).bytes(), "tensor `t`");
    let halves = (u64::MAX - 31) / 2;
    refuse(&Raw::with_rows(vec![row("t", &[halves], 1, 0)], 32).bytes(), "tensor `t`");
}

#[test]
fn tensors_bad_shape() {
    refuse(&Raw::with_rows(vec![row("t", &[33], 2, 0)], 36).bytes(), "not whole Q4_0 blocks");
    refuse(&Raw::with_rows(vec![row("t", &[128, 2], 12, 0)], 144).bytes(), "not whole Q4_K blocks");
}

#[test]
fn tensors_bad_type() {
    for kind in [4, 5, 31, 99, u32::MAX] {
        refuse(&Raw::with_rows(vec![row("t", &[8], kind, 0)], 32).bytes(), "unknown type");
    }
    let error = refuse(&Raw::with_rows(vec![row("t", &[256], 15, 0)], 96).bytes(), "Q8_K");
    assert!(matches!(error, WeightsError::Unsupported { .. }), "{error}");
}

#[test]
fn tensors_bad_offset() {
    refuse(&Raw::with_rows(vec![row("t", &[8], 0, 1)], 64).bytes(), "not a multiple of 32");
    refuse(&Raw::with_rows(vec![row("t", &[8], 0, 1 << 40)], 64).bytes(), "data offset");
    refuse(&Raw::with_rows(vec![row("t", &[8], 0, u64::MAX - 31)], 64).bytes(), "data offset");
    let overlapping = vec![row("a", &[16], 0, 0), row("b", &[16], 0, 32)];
    refuse(&Raw::with_rows(overlapping, 128).bytes(), "tensor `b` starts at data offset 32");
    let same = vec![row("a", &[8], 0, 0), row("b", &[8], 0, 0)];
    refuse(&Raw::with_rows(same, 64).bytes(), "tensor `b`");
    let descending = vec![row("a", &[8], 0, 32), row("b", &[8], 0, 0)];
    refuse(&Raw::with_rows(descending, 64).bytes(), "tensor `a`");
    let gap = vec![row("a", &[8], 0, 0), row("b", &[8], 0, 64)];
    refuse(&Raw::with_rows(gap, 128).bytes(), "32 follows");
    // Aligned to 32 in a file that declares 64.
    let mut raw = Raw::with_rows(vec![row("a", &[8], 0, 0), row("b", &[8], 0, 32)], 128);
    raw.entries.push(entry("general.alignment", 4, &64_u32.to_le_bytes()));
    raw.alignment = 64;
    refuse(&raw.bytes(), "not a multiple of 64");
}

#[test]
fn tensor_larger_than_the_file() {
    refuse(&Raw::with_rows(vec![row("t", &[1 << 20], 0, 0)], 64).bytes(), "the file ends at");
    refuse(&Raw::with_rows(vec![row("t", &[17], 0, 0)], 64).bytes(), "the file ends at");
}

#[test]
fn tensors_duplicate_name() {
    let rows = vec![row("t", &[8], 0, 0), row("u", &[8], 0, 32), row("t", &[8], 0, 64)];
    refuse(&Raw::with_rows(rows, 96).bytes(), "`t` appears twice");
}

#[test]
fn data_mem_size_overflow() {
    let huge = u64::MAX / 64;
    let rows = (0..64).map(|i| row(format!("t{i}"), &[huge / 4], 0, 0)).collect();
    refuse(&Raw::with_rows(rows, 32).bytes(), "tensor `t0`");
}

#[test]
fn data_not_enough_data_at_every_length() {
    // About 2 KB: metadata of every kind and two tensors.
    let mut raw = Raw::sound();
    for kind in [0_u32, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12] {
        raw.entries.push(entry(
            format!("kind.{kind}"),
            kind,
            &[0; 8][..[1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8][kind as usize]],
        ));
    }
    let words = (0..60).flat_map(|i| string(format!("word {i}"))).collect::<Vec<_>>();
    let array = [&8_u32.to_le_bytes()[..], &60_u64.to_le_bytes(), &words].concat();
    raw.entries.push(entry("words", 9, &array));
    let whole = raw.bytes();
    accept(&whole);
    for length in 0..whole.len() {
        assert!(
            gguf::parse(&whole[..length], "case.gguf").is_err(),
            "{length} bytes were accepted"
        );
    }
}

/// Fails if a file with ten times as many parts takes much longer than ten files: it takes ten
/// times as long as these if the time grows by the square.
fn takes_time_in_proportion(parts: usize, bytes_of: impl Fn(usize) -> Vec<u8>) {
    let seconds = |parts, times| {
        let bytes = bytes_of(parts);
        let start = Instant::now();
        (0..times).for_each(|_| drop(accept(&bytes)));
        start.elapsed().as_secs_f64()
    };
    let (small, large) = (seconds(parts / 10, 10), seconds(parts, 1));
    assert!(large < 5.0 * small, "{large} s for a file of {parts} parts, {small} s for ten");
}

#[test]
fn kv_junk_and_many_tensors_load_in_bounded_time() {
    let junk = |count| {
        let mut junk = Raw::default();
        for i in 0..count {
            junk.entries.push(entry(format!("junk.{i}"), 8, &string([b'x'; 150])));
        }
        junk.bytes()
    };
    let bytes = junk(60_000);
    assert!(bytes.len() > 10_000_000);
    assert_eq!(accept(&bytes).metadata.len(), 60_000);
    takes_time_in_proportion(60_000, junk);

    let rows = |count| (0..count).map(|i| row(format!("t{i}"), &[8], 0, 32 * i)).collect();
    let tensors = |count| Raw::with_rows(rows(count as u64), 32 * count).bytes();
    assert_eq!(accept(&tensors(100_000)).tensors.len(), 100_000);
    takes_time_in_proportion(100_000, tensors);
    refuse(&tensors(1_000_000), "at most 131072");
}

#[test]
fn typed_getters_name_the_key() {
    let mut raw = Raw::with_entry(entry("float.count", 6, &15.0_f32.to_le_bytes()));
    raw.entries.push(entry("fraction", 6, &1.5_f32.to_le_bytes()));
    raw.entries.push(entry("negative", 5, &(-3_i32).to_le_bytes()));
    raw.entries.push(entry("byte", 0, &[9]));
    let layers = [&7_u32.to_le_bytes()[..], &3_u64.to_le_bytes(), &[1, 0, 1]].concat();
    raw.entries.push(entry("layers", 9, &layers));
    let metadata = accept(&raw.bytes()).metadata;
    assert_eq!(metadata.u64("float.count").unwrap(), 15);
    assert_eq!(metadata.u64("byte").unwrap(), 9);
    assert_eq!(metadata.f64("fraction").unwrap(), 1.5);
    assert_eq!(metadata.f64("negative").unwrap(), -3.0);
    assert_eq!(metadata.optional_u64("absent").unwrap(), None);
    let layers = metadata.get("layers").unwrap();
    assert!(matches!(layers, Value::Array(Array::Bool(flags)) if *flags == [true, false, true]));
    assert_eq!(metadata.optional_u64_per_layer("byte", 2).unwrap().unwrap(), [9, 9]);
    for (key, problem) in [
        ("absent", "is missing"),
        ("fraction", "expected a whole number, found F32(1.5)"),
        ("negative", "expected a whole number, found I32(-3)"),
        ("layers", "found array of bool"),
        ("general.architecture", "found string"),
    ] {
        let message = metadata.u64(key).unwrap_err().to_string();
        assert!(message.contains(key) && message.contains(problem), "{message}");
    }
}

#[test]
fn the_golden_files_open() {
    for (name, tensors, architecture) in
        [("gemma3-f32", 106, "gemma3"), ("gemma3-qat", 93, "gemma3")]
    {
        let path = support::goldens().join("gguf").join(name).join("model.gguf");
        let checkpoint = Checkpoint::open(&path).unwrap();
        assert_eq!(checkpoint.tensors().len(), tensors);
        let trine_weights::Metadata::Gguf(metadata) = checkpoint.metadata() else { panic!() };
        assert_eq!(metadata.str("general.architecture").unwrap(), architecture);
        assert_eq!(metadata.strings("tokenizer.ggml.tokens").unwrap().len(), 512);
        let embedding = checkpoint.tensor("token_embd.weight").unwrap();
        assert_eq!(embedding.shape(), [512, 64]);
        assert!(embedding.is_mapped());
        assert!(embedding.to_f32().unwrap().iter().all(|x| x.is_finite()));
        checkpoint.check_intact().unwrap();

        let bytes: &'static [u8] = std::fs::read(&path).unwrap().leak();
        let embedded = Checkpoint::from_static(bytes).unwrap();
        for (a, b) in checkpoint.tensors().zip(embedded.tensors()) {
            assert_eq!((a.name(), a.bytes()), (b.name(), b.bytes()));
        }
        assert_eq!(embedded.file_bytes(), checkpoint.file_bytes());
    }
}
