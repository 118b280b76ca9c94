//! Streams that AMD published: what is generated equals them, and what is read of them is proven.
//!
//! The first test needs no files: it compares hashes. The others read the files where
//! `TRINE_NPU_FILES` names them.

use trine_npu::contract::{Access, Buffer, Contract};
use trine_npu::generate::{self, Kernel};
use trine_npu::pack::Pack;
use trine_npu::sha256;
use trine_npu::txn::Transaction;
use trine_npu::verify::{Proof, Scope, Verifier};

use crate::hashes::hashes;
use crate::published_files::published;

#[test]
fn all_generated_streams_equal_the_published_ones() {
    let mut equal = 0;
    for kernel in Kernel::all() {
        let name = kernel.to_string();
        let known = hashes().into_iter().find(|known| known.name == name);
        let canonical = known.unwrap_or_else(|| panic!("{name} is not published")).canonical;
        let stream = generate::stream(kernel).unwrap();
        assert_eq!(stream, stream.canonical(), "{name}");
        assert_eq!(sha256(&stream.to_bytes()), canonical, "{name}");
        equal += 1;
    }
    // 15 of whole numbers, 24 of 4 bits.
    assert_eq!(equal, 39);
}

#[test]
fn published_files_are_read_and_written_byte_for_byte() {
    for known in hashes() {
        let Some(bytes) = published(&format!("{}.bin", known.name)) else { return };
        assert_eq!(sha256(&bytes), known.file, "{}", known.name);
        let stream = Transaction::parse(&bytes).unwrap();
        assert_eq!(stream.to_bytes(), bytes, "{}", known.name);
        let canonical = stream.canonical();
        assert_eq!(sha256(&canonical.to_bytes()), known.canonical, "{}", known.name);
    }
}

/// Eight streams, AMD's defective one among them, rewrite a shim descriptor that only a lock inside
/// the array shows to be free. The model does not follow those locks.
#[test]
fn published_files_are_proven_or_refused_for_a_known_reason() {
    let (mut whole, mut memory, mut refused) = (0, 0, 0);
    for known in hashes() {
        let Some(bytes) = published(&format!("{}.bin", known.name)) else { return };
        let stream = Transaction::parse(&bytes).unwrap();
        let contract = match Kernel::from_name(known.name) {
            Some(kernel) => generate::contract(kernel).unwrap(),
            None => other_contract(known.name),
        };
        match Verifier::new(contract).unwrap().verify(&stream) {
            Ok(Proof { scope: Scope::Whole, .. }) => whole += 1,
            Ok(Proof { scope: Scope::Memory, .. }) => memory += 1,
            Err(refusal) => {
                let is_short = ["mladf_a8w8acc32_8_", "mladf_a8w8acc32_16_"]
                    .iter()
                    .any(|family| known.name.starts_with(family));
                assert!(is_short, "{}: {refusal}", known.name);
                let problem = "descriptor 0 changes while a task may use it";
                assert_eq!(refusal.problem, problem, "{}", known.name);
                refused += 1;
            }
        }
    }
    assert_eq!((whole, memory, refused), (39, 5, 8));
}

/// What streams of the families that are not generated do, by their names.
fn other_contract(name: &str) -> Contract {
    let (bytes, reads) = if let Some(shape) = name.strip_prefix("mladf_a8w8acc32_") {
        let numbers: Vec<u64> =
            shape.split('_').map(|number| number.parse().expect("a number")).collect();
        let &[m, k, n] = &numbers[..] else { panic!("{name} has three numbers") };
        ([m * n * 4, m * k, k * n], [1, if m == 32 { 2 } else { 1 }])
    } else {
        ([256 * 2048 * 2, 256 * 2048 * 2, 2048 * 2048 * 2], [8, 1])
    };
    let accesses =
        [Access::WriteOnce, Access::ReadTogether(reads[0]), Access::ReadTogether(reads[1])];
    let buffers = ["C", "A", "W"].into_iter().zip(bytes).zip(accesses).zip(0..);
    let buffers = buffers.map(|(((name, bytes), access), argument)| Buffer {
        argument,
        name: name.to_owned(),
        bytes,
        access,
    });
    Contract { columns: 5, start_column: 0, slots: 5, buffers: buffers.collect(), kernel: None }
}

#[test]
fn traffic_is_what_the_kernels_were_seen_to_move() {
    let kernel = Kernel::Int8 { m: 64, k: 2048, n: 2048 };
    let verifier = Verifier::new(generate::contract(kernel).unwrap()).unwrap();
    let proof = verifier.verify(&generate::stream(kernel).unwrap()).unwrap();
    let column = proof.traffic.iter().filter(|traffic| traffic.column == 1);
    let bytes: Vec<_> = column.map(|traffic| (traffic.argument, traffic.bytes)).collect();
    // C; A with the parameters and the first half of W; the other half.
    assert_eq!(bytes, [(0, 131_072), (1, 32_968), (2, 524_288), (2, 524_288)]);
}

#[test]
fn packs_are_made_of_published_kernels() {
    for (name, streams) in [("gemm_4x4_a8w8acc32", 15), ("gemm_4x4_a16fw4acc32f", 24)] {
        let Some(xclbin) = published(&format!("{name}.xclbin")) else { return };
        let folder = tempfile::tempdir().unwrap();
        for (name, bytes) in trine_npu::published::make(&xclbin).unwrap() {
            std::fs::write(folder.path().join(name), bytes).unwrap();
        }
        let pack = Pack::open(folder.path()).unwrap();
        assert_eq!(pack.streams.len(), streams);
        assert!(pack.pdi().is_some_and(|pdi| trine_npu::pdi::Pdi::parse(pdi).is_ok()));
        assert!(pack.cores().is_some_and(|cores| !cores.is_stand_in()));
    }
}
