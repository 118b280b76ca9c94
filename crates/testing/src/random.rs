//! Random models of every shape, and traffic over them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use trine_backend::{BLOCK, Batch, Device, ProgramOptions, SOFT, SequenceView};
use trine_model::{
    Buffer, Goal, KvType, Model, Op, Plan, Rows, Step, Width, fusion, names, narrow,
};
use trine_weights::gguf::{GgufMetadata, Value, Writer};
use trine_weights::{DType, Tensor, blocks, quantize_tensor};

/// A small deterministic generator (splitmix64).
pub struct Random(pub u64);

impl Random {
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        (self.next_u64() % limit as u64) as usize
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// From -1 to 1.
    pub fn unit(&mut self) -> f32 {
        (self.next_u64() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}

/// A random Gemma 3 whose matrices are stored as `dtype`.
pub fn model(random: &mut Random, dtype: DType, folder: &Path) -> Model {
    sized(random, dtype, None, folder)
}

/// The same with a feed-forward of `ffn` columns.
pub fn sized(random: &mut Random, dtype: DType, ffn: Option<usize>, folder: &Path) -> Model {
    let drawn = Sizes::draw(random, dtype.block_elements());
    let sizes = Sizes { ffn: ffn.unwrap_or(drawn.ffn), ..drawn };
    Draft::new(random, sizes, &[dtype]).open(folder)
}

/// Every format that a file may have.
pub const FORMATS: [DType; DType::ALL.len()] = DType::ALL;

/// How large a random model is.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    pub hidden: usize,
    pub ffn: usize,
    pub kv_heads: usize,
    /// Query heads for each head of keys and values.
    pub group: usize,
    pub head_dim: usize,
    pub vocabulary: usize,
    pub layers: usize,
}

impl Sizes {
    /// Odd sizes whose rows are whole blocks of `block` elements.
    pub fn draw(random: &mut Random, block: usize) -> Self {
        // Floats take any width, blocks whole blocks.
        let width = |random: &mut Random, limit: usize| match block {
            1 => 2 * (1 + random.below(limit / 2)),
            block => block * (1 + random.below((limit / block).max(1))),
        };
        let (hidden, ffn) = (width(random, 100), width(random, 130));
        let (kv_heads, group) = (1 + random.below(3), 1 + random.below(4));
        let head_dim = match block {
            1 => 2 * (1 + random.below(24)),
            block => block / 8 * random.pick(&[8, 16]),
        };
        let vocabulary = 5 + random.below(90);
        let layers = 1 + random.below(4);
        Self { hidden, ffn, kv_heads, group, head_dim, vocabulary, layers }
    }
}

/// A random model before it is a file.
pub struct Draft {
    pub(super) metadata: GgufMetadata,
    pub(super) tensors: Vec<Tensor>,
}

impl Draft {
    /// Draws for each matrix one of the formats.
    pub fn new(random: &mut Random, sizes: Sizes, formats: &[DType]) -> Self {
        let Sizes { hidden, ffn, kv_heads, group, head_dim, vocabulary, layers } = sizes;
        let count = |value: usize| Value::U32(value as u32);
        let mut metadata = GgufMetadata::new("random model");
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
            matrix(random, names::TOKEN_EMBEDDING, vocabulary, hidden, formats),
            vector(random, names::OUTPUT_NORM, hidden),
        ];
        if random.below(3) == 0 {
            tensors.push(matrix(random, names::OUTPUT, vocabulary, hidden, formats));
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
                tensors.push(matrix(random, &name(part), rows, columns, formats));
            }
        }
        Self { metadata, tensors }
    }

    /// The same as a device holds it that has kernels for `formats` only: other matrices as Q8_0. A
    /// table that is only looked up stays as it is in the file.
    pub fn held(&self, formats: &[DType]) -> Self {
        let is_tied = !self.tensors.iter().any(|tensor| tensor.name() == names::OUTPUT);
        let is_held = |tensor: &Tensor| is_tied || tensor.name() != names::TOKEN_EMBEDDING;
        let convert = |tensor: &Tensor| match formats.contains(&tensor.dtype()) {
            false if is_held(tensor) => quantize_tensor(tensor, DType::Q8_0).unwrap(),
            _ => tensor.clone(),
        };
        let tensors = self.tensors.iter().map(convert).collect();
        Self { metadata: self.metadata.clone(), tensors }
    }

    /// The model of the draft, in a file of its own.
    pub fn open(&self, folder: &Path) -> Model {
        Model::open(&written(folder, &self.metadata, &self.tensors)).unwrap()
    }
}

/// Writes a file of its own, and returns its path.
pub fn written(folder: &Path, metadata: &GgufMetadata, tensors: &[Tensor]) -> PathBuf {
    static FILES: AtomicUsize = AtomicUsize::new(0);
    let number = FILES.fetch_add(1, Ordering::Relaxed);
    let path = folder.join(format!("random-{number}.gguf"));
    let mut writer = Writer::new(&path, metadata.clone()).unwrap();
    for tensor in tensors {
        writer.declare(tensor.name(), tensor.dtype(), tensor.shape()).unwrap();
    }
    let mut data = writer.start().unwrap();
    tensors.iter().for_each(|tensor| data.tensor(tensor).unwrap());
    data.finish().unwrap();
    path
}

/// What kinds of formats meet in the operations of some models: the formats of all matrices, and
/// for each pair of neighbours in an operation whether each is quantised.
#[derive(Default)]
pub struct Mixture {
    formats: BTreeSet<&'static str>,
    /// Of query and key, query and value, gate and up.
    pairs: BTreeSet<(&'static str, bool, bool)>,
}

impl Mixture {
    pub fn see(&mut self, model: &Model) {
        let plan = model.base_plan();
        let matrices = plan.weights.iter().filter(|weight| weight.is_matrix());
        self.formats.extend(matrices.map(|weight| weight.dtype.name()));
        let is_quantised = |layer, part| {
            let name = names::layer(layer, part);
            plan.weights.iter().find(|weight| weight.name == name).unwrap().dtype.is_quantized()
        };
        for layer in 0..plan.layers() {
            for (pair, first, second) in [
                ("keys", "attn_q", "attn_k"),
                ("values", "attn_q", "attn_v"),
                ("gated", "ffn_gate", "ffn_up"),
            ] {
                self.pairs.insert((pair, is_quantised(layer, first), is_quantised(layer, second)));
            }
        }
    }

    /// Fails a test that has not seen every format, nor every pair of floats and blocks.
    pub fn check(&self) {
        assert_eq!(self.formats.len(), FORMATS.len(), "only {:?}", self.formats);
        assert_eq!(self.pairs.len(), 3 * 4, "only {:?}", self.pairs);
    }
}

pub(super) fn floats(name: &str, shape: &[usize], values: impl Iterator<Item = f32>) -> Tensor {
    let bytes = values.flat_map(f32::to_le_bytes).collect();
    Tensor::from_owned(name, DType::F32, shape, bytes).unwrap()
}

pub(super) fn vector(random: &mut Random, name: &str, columns: usize) -> Tensor {
    floats(name, &[columns], (0..columns).map(|_| 1.0 + 0.5 * random.unit()))
}

/// One of the formats that rows of `columns` values can have: a float as often as a block format.
/// What leaves no choice draws nothing, so that models of one format stay what they are.
fn format(random: &mut Random, columns: usize, formats: &[DType]) -> DType {
    if let [one] = formats {
        return *one;
    }
    let fits = |dtype: &&DType| columns.is_multiple_of(dtype.block_elements());
    let (blocks, floats): (Vec<DType>, Vec<DType>) =
        formats.iter().filter(fits).partition(|dtype| dtype.is_quantized());
    match blocks.is_empty() || random.below(2) == 0 {
        true => random.pick(&floats),
        false => random.pick(&blocks),
    }
}

pub(super) fn matrix(
    random: &mut Random,
    name: &str,
    rows: usize,
    columns: usize,
    formats: &[DType],
) -> Tensor {
    let dtype = format(random, columns, formats);
    let scale = 2.0 / (columns as f32).sqrt();
    if !blocks::can_encode(dtype) {
        return random_blocks(random, name, [rows, columns], dtype, scale);
    }
    let tensor = floats(name, &[rows, columns], (0..rows * columns).map(|_| scale * random.unit()));
    if dtype == DType::F32 { tensor } else { quantize_tensor(&tensor, dtype).unwrap() }
}

/// Random blocks of a format without an encoder: any codes, with factors that make their largest
/// value `scale`. A second factor, of minima, makes their mean 0: matrices whose elements are all
/// positive would make every row alike.
fn random_blocks(
    random: &mut Random,
    name: &str,
    shape: [usize; 2],
    dtype: DType,
    scale: f32,
) -> Tensor {
    let set = |block: &mut [u8], factor: f32, minima: f32| {
        for (&at, factor) in dtype.halves().iter().zip([factor, factor * minima]) {
            let mut half = Vec::new();
            blocks::encode(DType::F16, &[factor], &mut half).unwrap();
            block[at..at + 2].copy_from_slice(&half);
        }
        match dtype {
            DType::Mxfp4 => block[0] = (127.0 + factor.log2().floor()) as u8,
            // Of E4M3 the exponent has four bits.
            DType::Nvfp4 => {
                block[..4].fill((7.0 + factor.log2().floor()).max(1.0) as u8 * 8 + 3);
            }
            DType::Iq1M => {
                let mut half = Vec::new();
                blocks::encode(DType::F16, &[factor], &mut half).unwrap();
                for word in 0..4 {
                    let nibble = half[word / 2] >> (4 * (word % 2)) & 15;
                    let high = &mut block[49 + 2 * word];
                    *high = *high & 15 | nibble << 4;
                }
            }
            _ => {}
        }
    };
    let mut bytes = vec![0; shape[0] * dtype.row_bytes(shape[1]).unwrap()];
    for block in bytes.chunks_exact_mut(dtype.block_bytes()) {
        block.fill_with(|| random.next_u64() as u8);
        let mut decoded = |minima: f32| {
            set(block, 1.0, minima);
            let mut values = vec![0.0; dtype.block_elements()];
            blocks::decode(dtype, block, &mut values).unwrap();
            let highest = values.iter().fold(0.0_f32, |high, x| high.max(x.abs()));
            (values.iter().sum::<f32>(), highest.max(1.0))
        };
        let (none, one) = (decoded(0.0).0, decoded(1.0).0);
        let minima = if none == one { 1.0 } else { none / (none - one) };
        let (_, highest) = decoded(minima);
        set(block, scale / highest, minima);
    }
    Tensor::from_owned(name, dtype, &shape, bytes).unwrap()
}

/// Runs steps over three sequences on a device: prompts in pieces, then single tokens, with the
/// logits of some rows each time. On the way a sequence moves to another slot. All logits, one list
/// for each step.
pub fn traffic(
    device: &dyn Device,
    model: &Model,
    plan: Plan,
    kv: KvType,
    seed: u64,
) -> Vec<Vec<f32>> {
    traffic_of(device, model, plan, kv, seed, 40)
}

/// The same in steps of at most `width` rows, at least 12.
pub fn traffic_of(
    device: &dyn Device,
    model: &Model,
    plan: Plan,
    kv: KvType,
    seed: u64,
    width: usize,
) -> Vec<Vec<f32>> {
    outputs_of(device, model, plan, kv, seed, width).swap_remove(0)
}

/// Random rows for the inputs of a Plan that come with a batch of tokens. Those of one that is
/// called `unused` are not numbers.
fn input_rows(random: &mut Random, plan: &Plan, tokens: &[u32]) -> Vec<Vec<f32>> {
    let rows = tokens.len();
    let mut values = |buffer: &Buffer| match (buffer.name.as_str(), buffer.rows) {
        ("unused", _) => vec![f32::NAN; rows * buffer.columns],
        (_, Rows::Soft) => {
            let soft = tokens.iter().filter(|token| **token == SOFT).count();
            (0..soft * buffer.columns).map(|_| random.unit()).collect()
        }
        _ => (0..rows * buffer.columns).map(|_| random.unit()).collect(),
    };
    plan.given().map(|id| values(plan.buffer(id))).collect()
}

/// Random runs of rows of one sequence that see one another, in every other step: what each row
/// sees ahead.
pub fn pictures(random: &mut Random, sequence_of: &[u32]) -> Vec<u32> {
    let mut ahead = Vec::new();
    if random.below(2) == 0 {
        return ahead;
    }
    for rows in sequence_of.chunk_by(|a, b| a == b) {
        let mut left = rows.len();
        while left > 0 {
            // Half of the runs are single rows, which see nothing ahead.
            let run = if random.below(2) == 0 { 1 } else { 1 + random.below(left) };
            ahead.extend((0..run as u32).rev());
            left -= run;
        }
    }
    ahead
}

/// The same for each output of the Plan.
pub fn outputs_of(
    device: &dyn Device,
    model: &Model,
    plan: Plan,
    kv: KvType,
    seed: u64,
    width: usize,
) -> Vec<Vec<Vec<f32>>> {
    const SEQUENCES: usize = 3;
    const CONTEXT: usize = 96;
    let mut random = Random(seed);
    let blocks_each = CONTEXT.div_ceil(BLOCK);
    let options = ProgramOptions {
        width: Width { tokens: width, outputs: 12 },
        kv,
        context: CONTEXT,
        sequences: SEQUENCES + 1,
        blocks: SEQUENCES * blocks_each,
    };
    let mut results = vec![Vec::new(); plan.outputs.len()];
    let mut program = device.load_plan(model, plan.clone(), &options).unwrap();
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
    let takes_soft = plan.given().any(|id| plan.buffer(id).rows == Rows::Soft);
    let mut lengths = [0usize; SEQUENCES];
    for step in 0..10 {
        if step == 5 {
            program.copy_slot(views[1].slot, 1, lengths[1]).unwrap();
            views[1].slot = 1;
            assert!(program.copy_slot(0, options.sequences as u32, 1).is_err());
        }
        let (mut tokens, mut positions, mut sequence_of) = (Vec::new(), Vec::new(), Vec::new());
        for (sequence, length) in lengths.iter_mut().enumerate() {
            let rows = match step {
                0..4 => random.below(width / SEQUENCES + 1),
                4..8 => 1,
                // Steps of one row, which devices have kernels of their own for.
                _ => usize::from(sequence == 1),
            };
            for _ in 0..rows {
                // Only Plans with an input for them draw soft tokens.
                let is_soft = takes_soft && random.below(3) == 0;
                let token = random.below(model.config().vocabulary) as u32;
                tokens.push(if is_soft { SOFT } else { token });
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
        let ahead = pictures(&mut Random(seed ^ (step as u64 + 1) << 32), &sequence_of);
        let inputs = input_rows(&mut random, &plan, &tokens);
        let inputs: Vec<&[f32]> = inputs.iter().map(Vec::as_slice).collect();
        let batch = Batch {
            tokens: &tokens,
            positions: &positions,
            sequence_of: &sequence_of,
            sequences: &views,
            outputs: &outputs,
            ahead: &ahead,
            bulk_from: tokens.len(),
            inputs: &inputs,
            goal: Goal::Main,
        };
        let step = program.submit(&batch).unwrap();
        let found = program.wait(step).unwrap();
        for (index, results) in results.iter_mut().enumerate() {
            results.push(found.output(index).unwrap().to_vec());
        }
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

/// A norm that is only added, and the addition after it, in one step: the fusion that a whole Plan
/// always carries further.
fn fuse_additions(mut plan: Plan) -> Plan {
    let is_read_once = |plan: &Plan, step: &Step| {
        let normed = step.op.writes()[0];
        plan.steps.iter().filter(|step| step.op.reads().contains(&normed)).count() == 1
    };
    let fits =
        |plan: &Plan, pair: &[Step]| norm_add(pair).is_some() && is_read_once(plan, &pair[0]);
    while let Some(at) = plan.steps.windows(2).position(|pair| fits(&plan, pair)) {
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
            let (input, weight, epsilon) = (*input, *weight, *epsilon);
            Some(Op::NormAdd { input, weight, epsilon, target: *target, scale: 1.0 })
        }
        _ => None,
    }
}

/// A Plan as it is built, with additions fused, narrowed and fused, and narrowed.
pub fn forms(base: &Plan) -> [Plan; 4] {
    let narrow = narrow::narrow(base.clone());
    [base.clone(), fuse_additions(base.clone()), fusion::fuse(narrow.clone()), narrow]
}
