//! Self-made xclbins; AMD's and their PDIs, where `TRINE_NPU_FILES` names them.

use trine_npu::pdi::Pdi;
use trine_npu::sha256;
use trine_npu::xclbin::Xclbin;
use trine_npu_model::xclbin_of;

use crate::published_files::published;
use crate::support::xclbin;

/// File, its hash, its PDI's hash, words of commands, cores, bytes of programs.
type Known = (&'static str, &'static str, &'static str, u32, usize, &'static [usize]);

const KNOWN: [Known; 5] = [
    (
        "bfloat16_256x2048_2048x2048",
        "7f282812301eb0c7105aa75a82b4ee1f574390b6f837d1f239f42f48fbb78505",
        "60cb11bb1bc4aed0ecc33fb33a7fe209218e0863277deacc2cebeb01b989e38b",
        26306,
        16,
        &[5712],
    ),
    (
        "gemm_4x4_a16fw4acc32f",
        "f0d0a9529fcb35fbade5f433298adb8b664142f49c1e578f824760a7a2bafa19",
        "1cb571eb3a0620b5275059f0f5d90ba0a626d5dce79f66befdb5487d34f4e2a2",
        264_177,
        16,
        &[6976],
    ),
    (
        "gemm_4x4_a8w8acc32",
        "58873ed5fbbbc9a364750a2928aefa7b9951dd041ef83f581ff90a255f8dfd0c",
        "eade7b019b79ecf8a299b5023701ae64ed35bcb56148248b4077e76ba679ed81",
        217_918,
        16,
        &[14336, 14352, 14512],
    ),
    (
        "mladf_gemm_4x4_a8w8acc32",
        "b01a231ca46357925638e0f08203bd5e2b7c4b26327e43bbd87bb980eb1b4b76",
        "63891f17091edcd78cf694d2cfda8cab8dd5a60d08b6bc4263cac2a175c2f2ed",
        29584,
        16,
        &[3616, 3696, 7296],
    ),
    (
        "int32_scalar",
        "a19274aa3c298b18cc67cc5f991cd3a7a7fc6dc5c329e29e525ca53ef308ff1e",
        "89eb224181788cff19a30d4c4e8ff6963bdd3d2e51c2800dd9ec4c4a17f4ef0c",
        1724,
        1,
        &[2272],
    ),
];

#[test]
fn published_xclbins_and_their_pdis_are_read() {
    for (name, file_hash, pdi_hash, words, cores, programs) in KNOWN {
        let Some(bytes) = published(&format!("{name}.xclbin")) else { return };
        assert_eq!(sha256(&bytes), file_hash, "{name}");
        let xclbin = Xclbin::parse(&bytes).unwrap();
        let head = (xclbin.version, xclbin.platform.as_str(), xclbin.sections.len());
        assert_eq!(head, ((2, 11, 598), "xilinx_v1_ipu_0_0", 12), "{name}");
        let partition = xclbin.partition.expect("a partition");
        assert_eq!((partition.columns, partition.operations_per_cycle), (5, 2048), "{name}");
        assert_eq!(partition.start_columns, [0], "{name}");
        assert_eq!(xclbin.units[1].kernel_id(), 0x100, "{name}");
        let kernel = xclbin.kernels.iter().find(|kernel| kernel.name == "DPU").expect("a kernel");
        let offsets: Vec<_> = kernel.arguments.iter().map(|argument| argument.offset).collect();
        assert_eq!(offsets[..4], [0, 8, 0x10, 0x14], "{name}");
        let [image] = &partition.pdis[..] else { panic!("{name} has one PDI") };
        assert_eq!(image.ids, [0xf0], "{name}");
        let image = &bytes[image.range.clone()];
        assert_eq!(sha256(image), pdi_hash, "{name}");
        let pdi = Pdi::parse(image).unwrap();
        let found = pdi.cores();
        assert_eq!((pdi.words, found.len()), (words, cores), "{name}");
        assert!(found.iter().all(|core| core.is_enabled), "{name}");
        let mut sizes: Vec<_> = found.iter().map(|core| core.program_bytes).collect();
        sizes.sort_unstable();
        sizes.dedup();
        assert_eq!(sizes, programs, "{name}");
    }
}

#[test]
fn a_published_pdi_with_other_commands_is_an_error() {
    let Some(bytes) = published("1x4.xclbin") else { return };
    let partition = Xclbin::parse(&bytes).unwrap().partition.expect("a partition");
    assert_eq!((partition.columns, partition.pdis.len()), (1, 15));
    let error = Pdi::parse(&bytes[partition.pdis[0].range.clone()]).unwrap_err();
    assert!(error.problem.contains("an encoding that is not read"), "{error}");
}

/// Returns where the partition begins in [`xclbin`].
fn partition_offset(bytes: &[u8]) -> usize {
    let xclbin = Xclbin::parse(bytes).expect("an xclbin");
    let section = xclbin.sections.iter().find(|section| section.kind == 32).expect("a partition");
    section.range.start
}

/// A file can have millions of what no array has ten of, and every one of them could be told.
#[test]
fn counts_that_no_array_has_are_refused() {
    let mut bytes = xclbin_of(6, Some(&[0; 257 * 80]), 0);
    let begin = partition_offset(&bytes);
    bytes[begin + 0x28..begin + 0x2c].copy_from_slice(&65_u32.to_le_bytes());
    let error = Xclbin::parse(&bytes).unwrap_err().to_string();
    assert!(error.contains("65 start columns, at most 64 are read"), "{error}");
    // The partition's section, which is long enough, becomes the one list of units.
    let mut bytes = xclbin_of(6, Some(&[0; 257 * 80]), 0);
    let begin = partition_offset(&bytes);
    (bytes[496], bytes[536]) = (8, 0);
    bytes[begin..begin + 4].copy_from_slice(&257_u32.to_le_bytes());
    let error = Xclbin::parse(&bytes).unwrap_err().to_string();
    assert!(error.contains("257 units, at most 256 are read"), "{error}");
}

#[test]
fn a_cut_xclbin_is_an_error_at_each_length() {
    let bytes = xclbin(6);
    assert_eq!(Xclbin::parse(&bytes).unwrap().kernels[0].buffers(), 6);
    for length in 0..bytes.len() {
        assert!(Xclbin::parse(&bytes[..length]).is_err(), "{length} bytes");
    }
}

/// Whatever a byte is, what was read lies in the file.
#[test]
fn an_xclbin_with_any_byte_changed_is_read_or_an_error() {
    let bytes = xclbin(6);
    let mut errors = 0;
    for at in 0..bytes.len() {
        for value in [0, 1, 0x7f, 0xff] {
            let mut changed = bytes.clone();
            changed[at] = value;
            match Xclbin::parse(&changed) {
                Ok(read) => read.sections.iter().for_each(|section| {
                    assert!(section.range.end <= changed.len(), "byte {at}");
                }),
                Err(_) => errors += 1,
            }
        }
    }
    assert!(errors > 100, "{errors} errors");
}

#[test]
fn counts_and_places_beyond_the_file_are_named() {
    for (at, value, problem) in [
        (0, 0, "no xclbin"),
        (304, 1, "its header says"),
        (449, 0xff, "65283 sections"),
        (456 + 24 + 3, 0xff, "a section: "),
        (456 + 32 + 7, 0xff, "a section: "),
        (496, 2, "a second section of kind 2"),
    ] {
        let mut bytes = xclbin(6);
        bytes[at] = value;
        if at == 304 {
            bytes[305] = 0;
        }
        let error = Xclbin::parse(&bytes).unwrap_err().to_string();
        assert!(error.contains(problem), "{problem:?} is not in: {error}");
    }
}
