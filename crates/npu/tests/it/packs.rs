//! Packs made of self-made files.

use std::path::Path;

use trine_npu::generate::{self, Family, Kernel};
use trine_npu::pack::{MANIFEST, Manifest, Pack};
use trine_npu::published;
use trine_npu::verify::Scope;
use trine_npu::{PackError, sha256};
use trine_npu_model::xclbin_of;

const KERNEL: Kernel = Kernel::Int8 { m: 8, k: 2048, n: 2048 };

/// Writes a pack and returns its manifest.
fn write(folder: &Path) -> String {
    write_with(folder, &xclbin_of(6, Some(b"no program"), 0))
}

/// Writes a pack with an xclbin and returns its manifest.
fn write_with(folder: &Path, xclbin: &[u8]) -> String {
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
stand_in = true
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
    write(folder.path());
    let pack = Pack::open(folder.path()).unwrap();
    let stream = &pack.streams[0];
    assert_eq!(stream.verifier.verify(&stream.stream).unwrap().scope, Scope::Whole);
}

#[test]
fn a_manifest_is_read_as_it_was_written() {
    let folder = tempfile::tempdir().unwrap();
    let text = write(folder.path());
    let manifest = Manifest::parse(MANIFEST, &text).unwrap();
    let xclbin = xclbin_of(6, Some(b"no program"), 0);
    let make = |kernel| {
        let files = published::stand_in("a.xclbin", &xclbin, &[kernel]).unwrap();
        let (name, made) = files.last().unwrap();
        assert_eq!(name, MANIFEST);
        Manifest::parse(MANIFEST, std::str::from_utf8(made).unwrap()).unwrap()
    };
    let int4 = Kernel::Int4 { m: 1, k: 4096, n: 4096, group: 32 };
    let (made, other) = (make(KERNEL), make(int4));
    // What is made for the kernel is what the test writes by hand, but for names.
    let mut first = made.stream[0].clone();
    first.file = "s.bin".to_owned();
    assert_eq!(first, manifest.stream[0]);
    assert_eq!((&made.xclbin, made.partition), (&manifest.xclbin, manifest.partition));
    assert_eq!(other.stream[0].types.c, "f32");
    for manifest in [manifest, made, other] {
        let text = manifest.to_text().unwrap();
        assert_eq!(Manifest::parse(MANIFEST, &text).unwrap(), manifest);
    }
    for (file, kernels, reason) in [
        ("../a.xclbin", &[KERNEL][..], "expected a name of letters"),
        ("a.xclbin", &[], "no streams"),
        ("a.xclbin", &[KERNEL, int4], "a pack has one program for the cores"),
    ] {
        let wrong = published::stand_in(file, &xclbin, kernels).unwrap_err();
        assert!(wrong.contains(reason), "{wrong}");
    }
}

#[test]
fn a_foreign_program_of_the_cores_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let manifest = write(folder.path());
    let pack = Pack::open(folder.path()).unwrap();
    let cores = pack.cores().unwrap();
    assert!(cores.is_stand_in());
    assert_eq!((cores.pdi(), cores.family()), (&b"no program"[..], Family::Int8));
    for stated in ["", "stand_in = false\n"] {
        let manifest = manifest.replacen("stand_in = true\n", stated, 1);
        std::fs::write(folder.path().join(MANIFEST), manifest).unwrap();
        let error = Pack::open(folder.path()).unwrap_err();
        assert!(matches!(&error, PackError::Cores { .. }), "{error}");
        let told = error.to_string();
        assert!(told.starts_with("a.xclbin: ") && told.contains("trine npu pack"), "{told}");
        assert!(told.contains(&sha256(b"no program")), "{told}");
    }
    write_with(folder.path(), &xclbin_of(6, None, 0));
    let error = Pack::open(folder.path()).unwrap_err().to_string();
    assert!(error.contains("not exactly one PDI"), "{error}");
}

#[test]
fn a_stream_of_another_family_is_proven_for_memory() {
    let folder = tempfile::tempdir().unwrap();
    let manifest = without_kernel(&write(folder.path()));
    std::fs::write(folder.path().join(MANIFEST), manifest).unwrap();
    let pack = Pack::open(folder.path()).unwrap();
    let stream = &pack.streams[0];
    assert_eq!(stream.verifier.verify(&stream.stream).unwrap().scope, Scope::Memory);
    assert!(pack.cores().is_none());
}

#[test]
fn files_with_other_hashes_are_refused() {
    for name in ["a.xclbin", "s.bin"] {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path());
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
        ("\"5.7\"", "\"5.8\"", "does not tell more than that it is 5.7"),
        ("\"5.7\"", "\"6.0\"", "does not tell more than that it is 5.7"),
        ("\"MIT\"", "\"\"", "licence is empty"),
        ("columns = 5", "columns = 4", "a.xclbin has 5 columns"),
        ("\"s.bin\"", "\"../s.bin\"", "expected a name of letters"),
        ("\"s.bin\"", "\"/etc/passwd\"", "expected a name of letters"),
        ("opcode = 3", "opcode = 2", "opcode 2, expected 3"),
        ("slots = 6", "slots = 5", "a.xclbin has 6 buffers"),
        ("\"matmul\"", "\"add\"", "operation \"add\""),
        ("m = 8\n", "m = 9\n", "9 x 2048 x 2048 is not the shape"),
        ("bytes = 65536", "bytes = 65540", "8 x 2048 in i32 are 65536"),
        ("bytes = 16584", "bytes = 16588", "the buffers are not those of a8w8acc32_8_2048_2048"),
        ("family = \"int8\", m = 8", "family = \"int8\", m = 7", "is not the shape of"),
        ("opcode = 3", "opcode = 3\nextra = 1", "unknown field `extra`"),
        ("5.7", "65535.65535", "does not tell more than that it is 5.7"),
        ("5.7", "+5.+7", "expected such as \"5.7\""),
        ("a = \"i8\"", "a = \"lies\"", "s.bin: types [\"lies\", \"i8\", \"i32\"] of A, W and C"),
        ("w = \"i8\"", "w = \"i4\"", "a8w8acc32_8_2048_2048 has [\"i8\", \"i8\", \"i32\"]"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let manifest = write(folder.path()).replacen(from, to, 1);
        std::fs::write(folder.path().join(MANIFEST), manifest).unwrap();
        let error = Pack::open(folder.path()).unwrap_err().to_string();
        assert!(error.contains(reason), "{reason:?} is not in: {error}");
    }
}

/// A kernel's generator knows its buffers. Without one, they have to have room for the product.
#[test]
fn sizes_without_a_kernel_are_compared() {
    for (from, to, reason) in [
        ("m = 8\nk = 2048", "m = 77\nk = 3", "A has 16584 bytes; 77 x 3 in i8 are 231 to 4558"),
        ("n = 2048", "n = 1024", "C has 65536 bytes; 8 x 1024 in i32 are 32768"),
        ("k = 2048", "k = 4096", "A has 16584 bytes; 8 x 4096 in i8 are 32768 to"),
        ("k = 2048", "k = 3", "A has 16584 bytes; 8 x 3 in i8 are 24 to 4144"),
        ("a = \"i8\"", "a = \"lies\"", "\"lies\" as the type of A"),
        ("c = \"i32\"", "c = \"bf16\"", "8 x 2048 in bf16 are 32768"),
        ("name = \"W\"", "name = \"B\"", "expected one buffer named W"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let manifest = without_kernel(&write(folder.path()));
        std::fs::write(folder.path().join(MANIFEST), manifest.replacen(from, to, 1)).unwrap();
        let error = Pack::open(folder.path()).unwrap_err().to_string();
        assert!(error.contains("s.bin: ") && error.contains(reason), "{reason:?}: {error}");
    }
}

#[test]
fn what_a_manifest_has_is_told_in_short() {
    let long = "\\u001b".repeat(100_000);
    for (from, to) in [
        ("npu1", long.as_str()),
        ("5.7", &long),
        ("\"matmul\"", &format!("\"{long}\"")),
        ("\"s.bin\"", &format!("\"{long}\"")),
        ("\"s.bin\"", &format!("\"{}\"", "a".repeat(900_000))),
        ("slots", &format!("\"{long}\" = 1\nslots")),
        ("family = \"int8\"", &format!("family = \"{long}\"")),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let manifest = write(folder.path()).replacen(from, to, 1);
        std::fs::write(folder.path().join(MANIFEST), manifest).unwrap();
        let error = Pack::open(folder.path()).unwrap_err().to_string();
        assert!(error.len() < 4000 && !error.contains('\u{1b}'), "{from}: {error}");
    }
    let missing = Path::new("a\u{1b}[2J\nerror: b");
    let error = Pack::open(missing).unwrap_err().to_string();
    assert!(error.contains("cannot read a\\u{1b}[2J\\nerror: b/manifest.toml"), "{error}");
}

/// Returns a manifest whose stream is of no kernel that is generated.
fn without_kernel(manifest: &str) -> String {
    let start = manifest.find("kernel = ").expect("a kernel");
    let end = start + manifest[start..].find('\n').expect("a line's end");
    format!("{}{}", &manifest[..start], &manifest[end..])
}

/// Each entry costs what trine generates for it, so that a short manifest could ask for much.
#[test]
fn a_manifest_names_each_stream_once() {
    let folder = tempfile::tempdir().unwrap();
    let manifest = write(folder.path());
    let open = |manifest: String| {
        std::fs::write(folder.path().join(MANIFEST), manifest).unwrap();
        Pack::open(folder.path()).unwrap_err().to_string()
    };
    let (head, entry) = manifest.split_at(manifest.find("[[stream]]").unwrap());
    let twice = format!("{head}{entry}{entry}");
    let error = open(twice);
    assert!(error.contains("s.bin is there twice"), "{error}");
    let other = entry.replace("s.bin", "t.bin");
    let error = open(format!("{head}{entry}{other}"));
    assert!(error.contains("two streams of a8w8acc32_8_2048_2048"), "{error}");
    let without = entry.replace("kernel = {", "# kernel = {");
    let many = (0..65).map(|at| without.replace("s.bin", &format!("{at}.bin")));
    let error = open(format!("{head}{}", many.collect::<String>()));
    assert!(error.contains("65 streams, at most 64"), "{error}");
}

#[test]
fn a_unit_with_another_function_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    for function in 1..4 {
        write_with(folder.path(), &xclbin_of(6, Some(b"no program"), function));
        let error = Pack::open(folder.path()).unwrap_err().to_string();
        let reason = format!("unit \"DPU:one\" has function {function}, expected 0");
        assert!(error.contains(&reason), "{error}");
    }
}

#[test]
fn missing_files_and_folders_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let error = Pack::open(folder.path()).unwrap_err().to_string();
    assert!(error.contains("manifest.toml"), "{error}");
    write(folder.path());
    std::fs::remove_file(folder.path().join("s.bin")).unwrap();
    std::fs::create_dir(folder.path().join("s.bin")).unwrap();
    let error = Pack::open(folder.path()).unwrap_err().to_string();
    assert!(error.contains("not a regular file"), "{error}");
}
