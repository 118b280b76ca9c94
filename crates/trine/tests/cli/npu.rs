//! `trine npu`: self-made files, and a machine without an NPU.

use trine_npu::generate::{self, Kernel};

use trine_npu::published;
use trine_npu_model::xclbin;

use crate::common::{command, finish, trine};

const NAME: &str = "a8w8acc32_8_2048_2048";

/// Writes the stream for [`NAME`] as a file of this name.
fn write(folder: &tempfile::TempDir, name: &str) -> String {
    let kernel = Kernel::from_name(NAME).unwrap();
    let path = folder.path().join(name);
    std::fs::write(&path, generate::stream(kernel).unwrap().to_bytes()).unwrap();
    path.display().to_string()
}

#[test]
fn streams_are_inspected_and_proven() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(&folder, &format!("{NAME}.bin"));
    let told = trine(&["npu", "inspect", &path, "--operations"]).ok().out;
    assert!(told.contains("320 operations, 11264 bytes"), "{told}");
    assert!(told.contains(&format!("the one for {NAME}")), "{told}");
    assert!(told.contains("patch tile (1, 0) 0x1d084 with argument 1 + 0x4000"), "{told}");
    let told = trine(&["npu", "verify", &path]).ok().out;
    let first = format!(
        "{path}: proven as a whole, for the published cores of a8w8acc32 (never run on silicon)\n"
    );
    assert!(told.starts_with(&first), "{told}");
    assert!(told.contains("  column 1, S2MM 0: 16384 bytes of C\n"), "{told}");
}

#[test]
fn streams_that_are_not_proven_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(&folder, "mine.bin");
    let told = trine(&["npu", "verify", &path]).fails(1);
    assert!(told.contains("mine is no kernel that trine generates; pass --kernel"), "{told}");
    let told = trine(&["npu", "verify", &path, "--kernel", "a8w8acc32_8_2048_8192"]).fails(1);
    assert!(told.contains("of C are written 0 times, expected 1"), "{told}");
    for (bytes, problem) in [
        (&b"nothing"[..], "is neither an xclbin nor a PDI nor a transaction stream"),
        (b"<!DOCTYPE html>", "check what was fetched"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        (&[0, 1, 3], "not a sound transaction stream: at byte 0"),
    ] {
        std::fs::write(&path, bytes).unwrap();
        for command in ["inspect", "verify"] {
            let told = trine(&["npu", command, &path]).fails(1);
            assert!(told.contains(problem), "{told}");
        }
    }
    let folder = folder.path().display().to_string();
    let told = trine(&["npu", "verify", &folder]).fails(1);
    assert!(told.contains("manifest.toml"), "{told}");
    let told = trine(&["npu", "inspect", &folder]).fails(1);
    assert!(told.contains("is not a regular file"), "{told}");
    trine(&["npu", "verify", &folder, "--kernel", NAME]).fails(2);
}

#[test]
fn a_machine_without_an_npu_is_told_so() {
    // Where the tests run on a machine with one, there is nothing to see here.
    if std::path::Path::new("/dev/accel").exists() {
        return;
    }
    let told = trine(&["npu", "doctor"]);
    assert_eq!(told.code, 1, "{}", told.err);
    assert!(told.out.starts_with("fail  device           no NPU here"), "{}", told.out);
    assert!(told.out.contains(" -> "), "{}", told.out);
    assert!(!told.out.contains("Nothing is known to be missing"), "{}", told.out);
    let json = trine(&["npu", "doctor", "--json"]).json();
    assert!(json["note"].as_str().unwrap().contains("never run on silicon"), "{json}");
    assert_eq!(json["findings"][0]["state"], "fail");
    assert!(json["path"].is_null());
}

/// Writes a pack with a self-made xclbin, whose cores no device has.
fn write_pack(folder: &std::path::Path) {
    let kernels = [Kernel::from_name(NAME).unwrap()];
    std::fs::create_dir_all(folder).unwrap();
    for (name, bytes) in published::stand_in("a.xclbin", &xclbin(b"none"), &kernels).unwrap() {
        std::fs::write(folder.join(name), bytes).unwrap();
    }
}

#[test]
fn nothing_is_tried_without_a_pack_or_an_npu() {
    if std::path::Path::new("/dev/accel").exists() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let with = |arguments: &[&str]| {
        finish(command(arguments).env("TRINE_HOME", folder.path()).output().unwrap())
    };
    let told = with(&["npu", "selftest", "--yes"]).fails(1);
    assert!(told.contains("no kernel pack in") && told.contains("trine npu pack"), "{told}");
    write_pack(&folder.path().join(".npu/one"));
    let path = folder.path().join("report.json");
    let test = || with(&["npu", "selftest", "--yes", "--report", path.to_str().unwrap()]).fails(1);
    let told = test();
    assert!(told.contains("no NPU here") && told.contains("nothing was submitted"), "{told}");
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    assert_eq!(report["doctor"]["findings"][0]["state"], "fail");
    assert!(report["results"].is_null());
    // A report is not lost to the next run.
    std::fs::write(&path, "a report of before").unwrap();
    let told = test();
    assert!(told.contains("report.json is there already"), "{told}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "a report of before");
    write_pack(&folder.path().join(".npu/two"));
    let told = with(&["npu", "selftest", "--yes"]).fails(2);
    assert!(told.contains("several packs: one, two"), "{told}");
}

#[test]
fn a_pack_is_made_of_published_files_only() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mine.xclbin");
    std::fs::write(&path, xclbin(b"none")).unwrap();
    let told = trine(&["npu", "pack", path.to_str().unwrap()]).fails(1);
    assert!(told.contains("none of gemm_4x4_a8w8acc32.xclbin"), "{told}");
    write_pack(&folder.path().join("pack"));
    let told = trine(&["npu", "verify", folder.path().join("pack").to_str().unwrap()]).ok().out;
    assert!(told.contains("proven as a whole"), "{told}");
    assert!(told.contains("for trine's model only"), "{told}");
    assert!(told.contains("\nProven as a whole: 1 of 1 streams; what they do to memory"), "{told}");
    let manifest = folder.path().join("pack/manifest.toml");
    let text = std::fs::read_to_string(&manifest).unwrap();
    std::fs::write(&manifest, text.replacen("stand_in = true\n", "", 1)).unwrap();
    let told = trine(&["npu", "verify", folder.path().join("pack").to_str().unwrap()]).fails(1);
    assert!(told.contains("the cores' program has the SHA-256"), "{told}");
}

#[test]
fn pdis_that_cannot_be_read_are_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.xclbin");
    std::fs::write(&path, xclbin(b"none")).unwrap();
    let told = trine(&["npu", "inspect", path.to_str().unwrap()]);
    assert_eq!(told.code, 1, "{}{}", told.out, told.err);
    assert!(told.out.contains("(counted from the PDI's begin)"), "{}", told.out);
    assert!(told.err.contains("1 PDI cannot be read"), "{}", told.err);
}

#[test]
fn a_verdict_needs_no_reader() {
    let folder = tempfile::tempdir().unwrap();
    let pack = folder.path().join("pack");
    write_pack(&pack);
    // The stream of another shape, under the name and with the hash of the right one.
    let stream = pack.join(format!("{NAME}.bin"));
    let before = trine_npu::sha256(&std::fs::read(&stream).unwrap());
    let other = Kernel::from_name("a8w8acc32_8_2048_8192").unwrap();
    let bytes = generate::stream(other).unwrap().to_bytes();
    std::fs::write(&stream, &bytes).unwrap();
    let manifest = pack.join("manifest.toml");
    let text = std::fs::read_to_string(&manifest).unwrap();
    std::fs::write(&manifest, text.replace(&before, &trine_npu::sha256(&bytes))).unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = command(&["npu", "verify", pack.to_str().unwrap()]);
    let told = command.stdout(writer).output().unwrap();
    let error = String::from_utf8_lossy(&told.stderr).into_owned();
    assert_eq!(told.status.code(), Some(1), "{error}");
    assert!(error.contains("1 of 1 streams are refused"), "{error}");
}

#[test]
#[cfg(unix)]
fn names_cannot_forge_lines() {
    for command in ["inspect", "verify", "pack"] {
        let told = trine(&["npu", command, "a\u{1b}[2J\nerror: b\u{202e}"]).fails(1);
        assert!(told.contains("a\u{fffd}[2J\u{fffd}error: b\u{fffd}"), "{told}");
    }
}

#[test]
fn the_one_pack_that_is_used_is_taken() {
    if std::path::Path::new("/dev/accel").exists() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let selftest = |arguments: &[&str]| {
        let arguments = [&["npu", "selftest", "--yes"], arguments].concat();
        finish(command(&arguments).env("TRINE_HOME", folder.path()).output().unwrap()).fails(1)
    };
    let packs = folder.path().join(".npu");
    std::fs::write(&packs, "no folder").unwrap();
    let told = selftest(&[]);
    assert!(told.contains("the folder of kernel packs"), "{told}");
    std::fs::remove_file(&packs).unwrap();
    let int4 = [Kernel::Int4 { m: 1, k: 4096, n: 4096, group: 32 }];
    std::fs::create_dir_all(packs.join("int4")).unwrap();
    for (name, bytes) in published::stand_in("a.xclbin", &xclbin(b"none"), &int4).unwrap() {
        std::fs::write(packs.join("int4").join(name), bytes).unwrap();
    }
    let told = selftest(&[]);
    assert!(told.contains("for no command of trine's yet"), "{told}");
    assert!(told.contains("gemm_4x4_a8w8acc32.xclbin"), "{told}");
    write_pack(&packs.join("int8"));
    let told = selftest(&["--report", "-"]);
    assert!(told.contains("`-` would be standard output"), "{told}");
    let told = selftest(&[]);
    assert!(told.contains("no NPU here"), "{told}");
}

/// An explanation needs no NPU, and times nothing on one.
#[test]
fn what_an_npu_would_take_is_explained_without_one() {
    let folder = tempfile::tempdir().unwrap();
    let kernels = [Kernel::Int8 { m: 64, k: 2048, n: 2048 }];
    for (name, bytes) in published::stand_in("a.xclbin", &xclbin(b"none"), &kernels).unwrap() {
        std::fs::write(folder.path().join(name), bytes).unwrap();
    }
    let pack = folder.path().to_str().unwrap();
    let explain =
        |options: &[&str]| trine(&[&["explain", "demo", "--npu", pack], options].concat());
    let told = explain(&["--device", "cpu", "--npu-share", "0.5", "--plan"]).ok().out;
    assert!(told.contains("npu (not opened; never run on silicon)"), "{told}");
    assert!(told.contains("away"), "{told}");
    let told = explain(&["--device", "cpu"]).fails(2);
    assert!(told.contains("give --npu-share too"), "{told}");
    let told = explain(&["--device", "780m", "--npu-share", "0.5"]).fails(2);
    assert!(told.contains("--npu is for the processor of this machine"), "{told}");
}
