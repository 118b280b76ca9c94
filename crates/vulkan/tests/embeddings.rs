//! Vectors of texts on the GPU against those of another implementation.

use trine_model::{Ends, KvType};
use trine_testing::embeddings::{EmbeddingGolden, embeddings};
use trine_vulkan::testing::device;

/// 1 - cosine: below each mistake of `backend/tests/embeddings.rs`.
const TOLERANCE: f64 = 1e-5;

#[test]
fn vectors_are_those_of_the_definition() {
    for name in ["embedding-gemma", "gguf/embedding-gemma"] {
        let golden = EmbeddingGolden::load(name);
        let plan = golden.model.plan_for(Ends::STATES);
        let device = device();
        let found = embeddings(&device, &golden.model, plan, &golden.ids, KvType::F16);
        let off = golden.distances(&found);
        assert!(off.iter().all(|off| off.abs() <= TOLERANCE), "{name}: {off:?}");
    }
}
