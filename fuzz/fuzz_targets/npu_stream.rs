//! Any bytes as a transaction stream: an error, or a stream that is written again byte for byte.
//! What the verifier makes of it is a proof or a refusal, in bounded time.

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use trine_npu::generate::{self, Kernel};
use trine_npu::txn::Transaction;
use trine_npu::verify::Verifier;

static VERIFIER: LazyLock<Verifier> = LazyLock::new(|| {
    let kernel = Kernel::Int8 { m: 8, k: 2048, n: 2048 };
    let contract = generate::contract(kernel).expect("a published shape");
    Verifier::new(contract).expect("a sound contract")
});

fuzz_target!(|data: &[u8]| {
    let Ok(stream) = Transaction::parse(data) else { return };
    assert_eq!(stream.to_bytes(), data);
    assert_eq!(stream.file_bytes(), data.len());
    let canonical = stream.canonical();
    assert_eq!(Transaction::parse(&canonical.to_bytes()).as_ref(), Ok(&canonical));
    for operation in &stream.operations {
        let _ = operation.action.to_string();
    }
    if VERIFIER.verify(&stream).is_ok() {
        let expected = VERIFIER.contract().kernel.expect("a kernel");
        assert_eq!(Ok(canonical), generate::stream(expected));
    }
});
