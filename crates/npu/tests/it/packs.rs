//! Packs made of self-made files.

use std::path::Path;

use trine_npu::generate::{self, Kernel};
use trine_npu::pack::{MANIFEST, Manifest, Pack};
use trine_npu::published;
use trine_npu::sha256;
use trine_npu::verify::Scope;

use crate::support::xclbin;

const KERNEL: Kernel = Kernel::Int8 { m: 8, k: 2048, n: 2048 };

/// Writes a pack and returns its manifest.
fn write(folder: &Path, xclbin: &[u8]) -> String {
    let stream = generate::stream(KERNEL).expect("a stream").to_bytes();
    std::fs::write(folder.join("a.xclbin"), xclbin).expect("writing");
    std::fs::write(folder.join("s.bin"), &stream).expect("writing");
    let (kernel_hash, stream_hash) = (sha256(xclbin), sha256(&stream));
    let manifest = format!(
        r#"
format = 1
device = "npu1"
firmware_protocol = "5.7"
licence = "MIT"
source = "made for a test"
partition = {{ columns = 5, start_column = 0 }}
xclbin = {{ file = "a.xclbin", sha256 = "{kernel_hash}" }}

[[stream]]
file = "s.bin"
sha256 = "{stream_hash}"
operation = "matmul"
m = 8
k = 2048
n = 2048
types = {{ a = "i8", w = "i8", c = "i32" }}
opcode = 3
slots = 6
kernel = {{ family = "int8", m = 8, k = 2048, n = 2048 }}
buffer = [
    {{ argument = 0, name = "C", bytes = 65536, access = "write_once" }},
    {{ argument = 1, name = "A", bytes = 16584, access = {{ read_together = 1 }} }},
    {{ argument = 2, name = "W", bytes = 4194304, access = {{ read_together = 1 }} }},
]
"#
    );
    std::fs::write(folder.join(MANIFEST), &manifest).expect("writing");
    manifest
}

#[test]
fn a_pack_is_read_and_its_stream_proven() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &xclbin(6));
    let pack = Pack::open(folder.path()).unwrap();
    let stream = &pack.streams[0];
    assert_eq!(stream.verifier.verify(&stream.stream).unwrap().scope, Scope::Whole);
}

#[test]
fn a_manifest_is_read_as_it_was_written() {
    let folder = tempfile::tempdir().unwrap();
    let text = write(folder.path(), &xclbin(6));
    let manifest = Manifest::parse(MANIFEST, &text).unwrap();
    let kernels = [KERNEL, Kernel::Int4 { m: 1, k: 4096, n: 4096, group: 32 }];
    let files = published::files("a.xclbin", &xclbin(6), &kernels).unwrap();
    let (name, made) = files.last().unwrap();
    assert_eq!(name, MANIFEST);
    let made = Manifest::parse(MANIFEST, std::str::from_utf8(made).unwrap()).unwrap();
    // What is made for the kernel is what the test writes by hand, but for names.
    let mut first = made.stream[0].clone();
    first.file = "s.bin".to_owned();
    assert_eq!(first, manifest.stream[0]);
    assert_eq!((&made.xclbin, made.partition), (&manifest.xclbin, manifest.partition));
    assert_eq!(made.stream[1].types.c, "f32");
    for manifest in [manifest, made] {
        let text = manifest.to_text().unwrap();
        assert_eq!(Manifest::parse(MANIFEST, &text).unwrap(), manifest);
    }
    let wrong = published::files("../a.xclbin", &xclbin(6), &kernels).unwrap_err();
    assert!(wrong.contains("expected a name of letters"), "{wrong}");
    assert_eq!(published::files("a.xclbin", &xclbin(6), &[]).unwrap_err(), "no streams");
}

#[test]
fn a_stream_of_another_family_is_proven_for_memory() {
    let folder = tempfile::tempdir().unwrap();
    let manifest = write(folder.path(), &xclbin(6));
    let start = manifest.find("kernel = ").unwrap();
    let end = start + manifest[start..].find('\n').unwrap();
    let manifest = format!("{}{}", &manifest[..start], &manifest[end..]);
    std::fs::write(folder.path().join(MANIFEST), manifest).unwrap();
    let pack = Pack::open(folder.path()).unwrap();
    let stream = &pack.streams[0];
    assert_eq!(stream.verifier.verify(&stream.stream).unwrap().scope, Scope::Memory);
}

#[test]
fn files_with_other_hashes_are_refused() {
    for name in ["a.xclbin", "s.bin"] {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), &xclbin(6));
        let path = folder.path().join(name);
        let mut bytes = std::fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(&path, bytes).unwrap();
        let error = Pack::open(folder.path()).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{name} has the SHA-256 ")), "{error}");
    }
}

#[test]
fn manifests_that_contradict_the_files_or_themselves_are_refused() {
    for (from, to, reason) in [
        ("format = 1", "format = 2", "format 2"),
        ("npu1", "npu4", "device \"npu4\""),
        ("5.7", "5", "firmware_protocol \"5\""),
        ("\"MIT\"", "\"\"", "licence is empty"),
        ("columns = 5", "columns = 4", "a.xclbin has 5 columns"),
        ("\"s.bin\"", "\"../s.bin\"", "expected a name of letters"),
        ("\"s.bin\"", "\"/etc/passwd\"", "expected a name of letters"),
        ("opcode = 3", "opcode = 2", "opcode 2, expected 3"),
        ("slots = 6", "slots = 5", "a.xclbin has 6 buffers"),
        ("\"matmul\"", "\"add\"", "operation \"add\""),
        ("m = 8\n", "m = 9\n", "9 x 2048 x 2048 is not the shape"),
        ("bytes = 65536", "bytes = 65540", "the buffers are not those of a8w8acc32_8_2048_2048"),
        ("family = \"int8\", m = 8", "family = \"int8\", m = 7", "is not the shape of"),
        ("opcode = 3", "opcode = 3\nextra = 1", "unknown field `extra`"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let manifest = write(folder.path(), &xclbin(6)).replacen(from, to, 1);
        std::fs::write(folder.path().join(MANIFEST), manifest).unwrap();
        let error = Pack::open(folder.path()).unwrap_err().to_string();
        assert!(error.contains(reason), "{reason:?} is not in: {error}");
    }
}

#[test]
fn missing_files_and_folders_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let error = Pack::open(folder.path()).unwrap_err().to_string();
    assert!(error.contains("manifest.toml"), "{error}");
    write(folder.path(), &xclbin(6));
    std::fs::remove_file(folder.path().join("s.bin")).unwrap();
    std::fs::create_dir(folder.path().join("s.bin")).unwrap();
    let error = Pack::open(folder.path()).unwrap_err().to_string();
    assert!(error.contains("not a file"), "{error}");
}
