//! Vectors of texts on the CPU against those of another implementation.

use trine_cpu::CpuDevice;
use trine_cpu::isa::Isa;
use trine_model::{Ends, KvType};
use trine_testing::embeddings::{EmbeddingGolden, embeddings};

/// 1 - cosine: below each mistake of `backend/tests/embeddings.rs`.
const TOLERANCE: f64 = 1e-5;

#[test]
fn vectors_are_those_of_the_definition() {
    for name in ["embedding-gemma", "gguf/embedding-gemma"] {
        let golden = EmbeddingGolden::load(name);
        let plan = golden.model.plan_for(Ends::STATES);
        for isa in Isa::available() {
            let device = CpuDevice::new(Some(2), Some(isa)).unwrap();
            for kv in [KvType::F32, KvType::F16] {
                let found = embeddings(&device, &golden.model, plan.clone(), &golden.ids, kv);
                let off = golden.distances(&found);
                let is_close = off.iter().all(|off| off.abs() <= TOLERANCE);
                assert!(is_close, "{name}, {device:?}, {kv:?}: {off:?}");
            }
        }
    }
}
