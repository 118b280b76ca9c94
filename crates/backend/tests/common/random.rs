//! Random models of every shape, and traffic over them.

use std::path::Path;

use trine_backend::{BLOCK, Batch, Device, ProgramOptions, SequenceView};
use trine_model::{KvType, Model, Op, Plan, Step, Width, fusion, names, narrow};
use trine_weights::gguf::{Metadata, Value, Writer};
use trine_weights::{DType, Tensor, quantize_tensor};

/// A small deterministic generator (splitmix64).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// From -1 to 1.
    pub fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}

/// A random Gemma 3 whose matrices are stored as `dtype`.
pub fn model(random: &mut Random, dtype: DType, folder: &Path) -> Model {
    sized(random, dtype, None, folder)
}

/// The same with a feed-forward of so many columns.
pub fn sized(random: &mut Random, dtype: DType, ffn: Option<usize>, folder: &Path) -> Model {
    let block = dtype.block_elements();
    // Floats take any width, blocks whole blocks.
    let width = |random: &mut Random, limit: usize| match block {
        1 => 2 * (1 + random.below(limit / 2)),
        block => block * (1 + random.below((limit / block).max(1))),
    };
    let (hidden, drawn) = (width(random, 100), width(random, 130));
    let ffn = ffn.unwrap_or(drawn);
    let (kv_heads, group) = (1 + random.below(3), 1 + random.below(4));
    let head_dim = match block {
        1 => 2 * (1 + random.below(24)),
        block => block / 8 * random.pick(&[8, 16]),
    };
    let vocabulary = 5 + random.below(90);
    let layers = 1 + random.below(4);
    let count = |value: usize| Value::U32(value as u32);
    let mut metadata = Metadata::new("random model");
    metadata.insert("general.architecture", Value::String("gemma3".into()));
    for (key, value) in [
        ("context_length", 512),
        ("embedding_length", hidden),
        ("block_count", layers),
        ("feed_forward_length", ffn),
        ("attention.head_count", kv_heads * group),
        ("attention.head_count_kv", kv_heads),
        ("attention.key_length", head_dim),
        ("attention.value_length", head_dim),
        ("attention.sliding_window", 1 + random.below(40)),
        ("attention.sliding_window_pattern", 1 + random.below(3)),
    ] {
        metadata.insert(&format!("gemma3.{key}"), count(value));
    }
    if random.below(2) == 0 {
        metadata.insert("gemma3.final_logit_softcapping", Value::F32(4.0));
    }
    let query = kv_heads * group * head_dim;
    let kv = kv_heads * head_dim;
    let mut tensors = vec![
        matrix(random, names::TOKEN_EMBEDDING, vocabulary, hidden, dtype),
        vector(random, names::OUTPUT_NORM, hidden),
    ];
    if random.below(3) == 0 {
        tensors.push(matrix(random, names::OUTPUT, vocabulary, hidden, dtype));
    }
    for layer in 0..layers {
        let name = |part| names::layer(layer, part);
        for part in ["attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"] {
            tensors.push(vector(random, &name(part), hidden));
        }
        for part in ["attn_q_norm", "attn_k_norm"] {
            tensors.push(vector(random, &name(part), head_dim));
        }
        for (part, rows, columns) in [
            ("attn_q", query, hidden),
            ("attn_k", kv, hidden),
            ("attn_v", kv, hidden),
            ("attn_output", hidden, query),
            ("ffn_gate", ffn, hidden),
            ("ffn_up", ffn, hidden),
            ("ffn_down", hidden, ffn),
        ] {
            tensors.push(matrix(random, &name(part), rows, columns, dtype));
        }
    }
    let path = folder.join("random.gguf");
    write(&path, metadata, &tensors);
    Model::open(&path).unwrap()
}

fn write(path: &Path, metadata: Metadata, tensors: &[Tensor]) {
    let mut writer = Writer::new(path, metadata).unwrap();
    for tensor in tensors {
        writer.declare(tensor.name(), tensor.dtype(), tensor.shape()).unwrap();
    }
    let mut data = writer.start().unwrap();
    tensors.iter().for_each(|tensor| data.tensor(tensor).unwrap());
    data.finish().unwrap();
}

fn floats(name: &str, shape: &[usize], values: impl Iterator<Item = f32>) -> Tensor {
    let bytes = values.flat_map(f32::to_le_bytes).collect();
    Tensor::from_owned(name, DType::F32, shape, bytes).unwrap()
}

fn vector(random: &mut Random, name: &str, columns: usize) -> Tensor {
    floats(name, &[columns], (0..columns).map(|_| 1.0 + 0.5 * random.unit()))
}

fn matrix(random: &mut Random, name: &str, rows: usize, columns: usize, dtype: DType) -> Tensor {
    let scale = 2.0 / (columns as f32).sqrt();
    let tensor = floats(name, &[rows, columns], (0..rows * columns).map(|_| scale * random.unit()));
    if dtype == DType::F32 { tensor } else { quantize_tensor(&tensor, dtype).unwrap() }
}

/// Runs steps over three sequences on a device: prompts in pieces, then single tokens, with the logits of some rows
/// each time. On the way a sequence moves to another slot. All logits, one list for each step.
pub fn traffic(
    device: &dyn Device,
    model: &Model,
    plan: Plan,
    kv: KvType,
    seed: u64,
) -> Vec<Vec<f32>> {
    const SEQUENCES: usize = 3;
    const CONTEXT: usize = 96;
    let mut random = Random(seed);
    let blocks_each = CONTEXT.div_ceil(BLOCK);
    let options = ProgramOptions {
        width: Width { tokens: 40, outputs: 12 },
        kv,
        context: CONTEXT,
        sequences: SEQUENCES + 1,
        blocks: SEQUENCES * blocks_each,
    };
    let mut program = device.load_plan(model, plan, &options).unwrap();
    // The sequences' blocks alternate, so that no table is a plain range.
    let table = |sequence: usize| -> Vec<u32> {
        (0..blocks_each).map(|block| (block * SEQUENCES + sequence) as u32).collect()
    };
    let tables: Vec<_> = (0..SEQUENCES).map(table).collect();
    let slots = [2, 0, 3];
    let mut views: Vec<_> = tables
        .iter()
        .zip(slots)
        .map(|(blocks, slot)| SequenceView { slot, blocks: blocks.as_slice() })
        .collect();
    let mut lengths = [0usize; SEQUENCES];
    let mut results = Vec::new();
    for step in 0..10 {
        if step == 5 {
            program.copy_slot(views[1].slot, 1, lengths[1]).unwrap();
            views[1].slot = 1;
            assert!(program.copy_slot(0, options.sequences as u32, 1).is_err());
        }
        let (mut tokens, mut positions, mut sequence_of) = (Vec::new(), Vec::new(), Vec::new());
        for (sequence, length) in lengths.iter_mut().enumerate() {
            let rows = match step {
                0..4 => random.below(14),
                4..8 => 1,
                // Steps of one row, which devices have kernels of their own for.
                _ => usize::from(sequence == 1),
            };
            for _ in 0..rows {
                tokens.push(random.below(model.config().vocabulary) as u32);
                positions.push(*length as u32);
                sequence_of.push(sequence as u32);
                *length += 1;
            }
        }
        if tokens.is_empty() {
            continue;
        }
        let wanted = |random: &mut Random, step: usize| step >= 4 || random.below(4) == 0;
        let outputs: Vec<u32> =
            (0..tokens.len() as u32).filter(|_| wanted(&mut random, step)).take(12).collect();
        let batch = Batch {
            tokens: &tokens,
            positions: &positions,
            sequence_of: &sequence_of,
            sequences: &views,
            outputs: &outputs,
            bulk_from: tokens.len(),
            input: &[],
        };
        results.push(program.run(&batch).unwrap().to_vec());
    }
    results
}

/// A random model of at least two layers, which can be cut.
pub fn model_of_layers(random: &mut Random, dtype: DType, folder: &Path) -> Model {
    let models = (0..50).map(|_| model(random, dtype, folder));
    models.into_iter().find(|model| model.plan().layers() > 1).unwrap()
}

/// Largest difference of two runs, relative to the largest logit.
pub fn relative_difference(expected: &[Vec<f32>], found: &[Vec<f32>]) -> f32 {
    let highest = expected.iter().flatten().fold(0.0f32, |high, x| high.max(x.abs()));
    assert!(highest > 0.0 && highest.is_finite(), "the expected logits are {highest} at most");
    assert_eq!(expected.len(), found.len());
    let mut worst = 0.0f32;
    for (expected, found) in expected.iter().zip(found) {
        assert_eq!(expected.len(), found.len());
        for (a, b) in expected.iter().zip(found) {
            worst = if b.is_nan() { f32::INFINITY } else { worst.max((a - b).abs() / highest) };
        }
    }
    worst
}

/// A norm and the addition behind it in one step: the fusion that a whole Plan always carries further.
fn fuse_additions(mut plan: Plan) -> Plan {
    while let Some(at) = plan.steps.windows(2).position(|pair| norm_add(pair).is_some()) {
        let op = norm_add(&plan.steps[at..at + 2]).unwrap();
        let label = plan.steps[at].label.clone();
        plan.steps.splice(at..at + 2, [Step { label, op }]);
    }
    plan
}

fn norm_add(pair: &[Step]) -> Option<Op> {
    match (&pair[0].op, &pair[1].op) {
        (Op::Norm { input, weight, epsilon, output }, Op::Add { source, target })
            if output == source =>
        {
            Some(Op::NormAdd { input: *input, weight: *weight, epsilon: *epsilon, target: *target })
        }
        _ => None,
    }
}

/// A Plan as it is built, with additions fused, narrowed and fused, and narrowed.
pub fn forms(base: &Plan) -> [Plan; 4] {
    let narrow = narrow::narrow(base.clone());
    [base.clone(), fuse_additions(base.clone()), fusion::fuse(narrow.clone()), narrow]
}
