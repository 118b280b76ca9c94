//! What the arithmetic of another device's products costs: the divergence of a model's predictions
//! on a text, against exact products. Runs the scalar reference.
//!
//! ```text
//! cargo run --release -p trine --example product_accuracy -- MODEL TEXT [TOKENS]
//! ```

#![allow(clippy::print_stdout, reason = "the result")]

use std::path::Path;

use anyhow::{Context, Result, ensure};
use trine_backend::reference::{Products, ReferenceDevice};
use trine_backend::{BLOCK, Batch, Device, ProgramOptions, SequenceView};
use trine_model::{Goal, KvType, Model, Width};
use trine_text::{Specials, Tokenizer};

/// Elements that the NPU's kernels sum at once (K of the published products).
const BLOCK_ELEMENTS: usize = 2048;
const TOKENS: usize = 256;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, text, rest @ ..] = arguments.as_slice() else {
        anyhow::bail!("give a model and a text");
    };
    let tokens = rest.first().map_or(Ok(TOKENS), |tokens| tokens.parse())?;
    let model = Model::open(Path::new(model))?;
    let tokenizer = Tokenizer::from_checkpoint(model.checkpoint())?;
    let text = std::fs::read_to_string(text).with_context(|| format!("cannot read {text}"))?;
    let ids = tokenizer.encode(&text, Specials::AsText)?;
    let ids: Vec<u32> = tokenizer.bos_id().into_iter().chain(ids).take(tokens).collect();
    ensure!(ids.len() > 1, "the text has no tokens");
    let exact = logits(&model, Products::Exact, &ids)?;
    println!("{} tokens; divergence in nats, exact products first", ids.len());
    println!("| products | mean | largest | same first choice |");
    println!("|---|---|---|---|");
    let block = BLOCK_ELEMENTS;
    for (name, products) in [
        ("bf16", Products::Bf16 { block }),
        ("int8", Products::Int8 { block, terms: 1 }),
        ("int8, activations in two terms", Products::Int8 { block, terms: 2 }),
        ("int8, scales for 128 elements", Products::Int8 { block: 128, terms: 1 }),
    ] {
        let found = logits(&model, products, &ids)?;
        let rows = exact.chunks(exact.len() / ids.len()).zip(found.chunks(found.len() / ids.len()));
        let all: Vec<(f64, bool)> = rows.map(|(exact, found)| compare(exact, found)).collect();
        let mean = all.iter().map(|(divergence, _)| divergence).sum::<f64>() / all.len() as f64;
        let largest = all.iter().map(|(divergence, _)| *divergence).fold(0.0, f64::max);
        let same = all.iter().filter(|(_, same)| *same).count() as f64 / all.len() as f64;
        println!("| {name} | {mean:.6} | {largest:.5} | {:.1} % |", 100.0 * same);
    }
    Ok(())
}

/// Returns the logits after each token: (tokens, vocabulary).
fn logits(model: &Model, products: Products, ids: &[u32]) -> Result<Vec<f32>> {
    let count = ids.len();
    let options = ProgramOptions {
        width: Width { tokens: count, outputs: count },
        kv: KvType::F32,
        context: count.next_multiple_of(BLOCK),
        sequences: 1,
        blocks: count.div_ceil(BLOCK),
    };
    let device = ReferenceDevice::computing(products);
    let mut program = device.load_plan(model, model.plan(), &options)?;
    let positions: Vec<u32> = (0..count as u32).collect();
    let blocks: Vec<u32> = (0..options.blocks as u32).collect();
    let step = program.submit(&Batch {
        tokens: ids,
        positions: &positions,
        sequence_of: &vec![0; count],
        sequences: &[SequenceView { slot: 0, blocks: &blocks }],
        outputs: &positions,
        ahead: &[],
        bulk_from: count,
        inputs: &[],
        goal: Goal::Main,
    })?;
    Ok(program.wait(step)?.output(0)?.to_vec())
}

/// Returns the divergence D(exact || found) of two rows of logits, and whether their largest is the
/// same.
fn compare(exact: &[f32], found: &[f32]) -> (f64, bool) {
    let logs = |logits: &[f32]| -> Vec<f64> {
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = logits.iter().map(|&logit| f64::from(logit - largest).exp()).sum();
        logits.iter().map(|&logit| f64::from(logit - largest) - sum.ln()).collect()
    };
    let best = |logs: &[f64]| (0..logs.len()).max_by(|&a, &b| logs[a].total_cmp(&logs[b]));
    let (exact, found) = (logs(exact), logs(found));
    let divergence = exact.iter().zip(&found).map(|(p, q)| p.exp() * (p - q)).sum();
    (divergence, best(&exact) == best(&found))
}
