//! `trine npu`: self-made files, and a machine without an NPU.

use trine_npu::generate::{self, Kernel};

use crate::common::trine;

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
        "{path}: proven as a whole; the programs of the cores are not checked (never run on silicon)\n"
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
    std::fs::write(&path, b"nothing").unwrap();
    for command in ["inspect", "verify"] {
        let told = trine(&["npu", command, &path]).fails(1);
        assert!(told.contains("not a sound transaction stream: at byte 0"), "{told}");
    }
    let folder = folder.path().display().to_string();
    let told = trine(&["npu", "verify", &folder]).fails(1);
    assert!(told.contains("manifest.toml"), "{told}");
    let told = trine(&["npu", "inspect", &folder]).fails(1);
    assert!(told.contains("is not a file"), "{told}");
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
