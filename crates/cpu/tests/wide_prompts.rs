//! Tests prompts wide enough for activations in one 8-bit term, on a trained model.

use std::path::Path;

use trine_backend::reference::ReferenceDevice;
use trine_cpu::CpuDevice;
use trine_cpu::isa::Isa;
use trine_model::{KvType, Model};
use trine_testing::random::{Random, model};
use trine_testing::{divergence, logits};
use trine_weights::DType;

/// The largest mean KL divergence, in nats, from the scalar reference with the same weights.
const DIVERGENCE: f64 = 1e-3;

#[test]
fn a_wide_prompt_stays_close_to_the_reference() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/demo.gguf");
    let model = Model::open(&path).unwrap();
    let vocabulary = model.config().vocabulary;
    // Ordinary pieces. Their meaning does not matter, only that the model reacts to them as
    // trained.
    let ids: Vec<u32> = (0..96).map(|at| if at == 0 { 2 } else { 400 + at * at % 1500 }).collect();
    let expected = logits(&ReferenceDevice::new(), &model, &ids, ids.len(), KvType::F32);
    for isa in Isa::available() {
        let device = CpuDevice::new(Some(2), Some(isa)).unwrap();
        let mean = |chunk| {
            let found = logits(&device, &model, &ids, chunk, KvType::F32);
            let rows = expected.chunks_exact(vocabulary).zip(found.chunks_exact(vocabulary));
            rows.map(|(expected, found)| divergence(expected, found)).sum::<f64>()
                / ids.len() as f64
        };
        let (wide, narrow) = (mean(ids.len()), mean(32));
        println!(
            "{isa:?}: mean KL divergence {wide:.1e} in one piece, {narrow:.1e} in pieces of 32"
        );
        assert!(wide <= DIVERGENCE, "{isa:?}: {wide}");
        // Two terms are much better than one, which shows that the narrow pieces use two.
        assert!(narrow <= wide / 10.0, "{isa:?}: {narrow} in narrow pieces, {wide} in one");
    }
}

#[test]
fn products_of_floats_are_the_same_by_rows_and_by_panels() {
    let folder = tempfile::tempdir().unwrap();
    for (seed, dtype) in [(3, DType::F16), (4, DType::BF16), (5, DType::F32)] {
        let model = model(&mut Random(seed), dtype, folder.path());
        let vocabulary = model.config().vocabulary as u32;
        let ids: Vec<u32> = (0..300).map(|at| at * at % vocabulary).collect();
        for isa in Isa::available() {
            let run = |threads, chunk| {
                let device = CpuDevice::new(Some(threads), Some(isa)).unwrap();
                logits(&device, &model, &ids, chunk, KvType::F32)
            };
            // One thread cuts 256 rows and more by rows; three do not before 768.
            let by_rows = run(1, 300);
            assert!(by_rows.iter().all(|logit| logit.is_finite()));
            assert!(by_rows == run(3, 300), "{isa:?}, {dtype:?}: by panels");
            assert!(by_rows == run(1, 50), "{isa:?}, {dtype:?}: in pieces");
        }
    }
}
