//! A model file whose weights write a scripted reply, token by token, whatever the prompt says.
//!
//! The last three tokens say which one comes next. One layer of Gemma 3 does it:
//!
//! - An embedding is 1 at the place of its token's code and 1 at a constant place. The pieces of
//!   the script have codes of their own, and so has what prompts end with; all others share one.
//! - Two heads look back. Their queries and keys are constants, turned against each other by the
//!   head's distance: the first pair of a head turns by one radian for each token, so that the
//!   score is the cosine of how far a token is from the one that is looked for. Each copies its
//!   code to a place of its own.
//! - The feed-forward part is a table. A neuron for each place of the script has as its input the
//!   tokens before it, as many as tell it from all others, and writes the next token, and half as
//!   strongly the one after that, for where a mask forbids the first.
//!
//! A model that likes blanks has one neuron more, which is always on and wants a blank twice as
//! much as the script. Only the first token is wanted more: after it come blanks, wherever a mask
//! does not forbid them.
//!
//! Pieces of the script stand in the vocabulary as unused ones, which no prompt is made of. So only
//! marks can come twice, and the tokens before one say which it is.

use std::collections::BTreeMap;
use std::path::Path;

use trine_weights::DType;
use trine_weights::gguf::{Array, GgufMetadata, StringArray, Value, Writer};

/// Which marks a vocabulary has, by their ids.
pub(crate) type Marks = &'static [(usize, &'static str)];

/// Of all families. Gemma's vocabularies begin with them.
const COMMON: Marks = &[(0, "<pad>"), (1, "<eos>"), (2, "<bos>"), (3, "<unk>"), (4, "<mask>")];
/// Gemma 3's.
pub(crate) const GEMMA3: Marks = &[(105, "<start_of_turn>"), (106, "<end_of_turn>")];
/// FunctionGemma's.
pub(crate) const FUNCTION_GEMMA: Marks = &[
    (46, "<start_function_declaration>"),
    (47, "<end_function_declaration>"),
    (48, "<start_function_call>"),
    (49, "<end_function_call>"),
    (50, "<start_function_response>"),
    (51, "<end_function_response>"),
    (52, "<escape>"),
    (105, "<start_of_turn>"),
    (106, "<end_of_turn>"),
];
/// Gemma 4's.
pub(crate) const GEMMA4: Marks = &[
    (46, "<|tool>"),
    (47, "<tool|>"),
    (48, "<|tool_call>"),
    (49, "<tool_call|>"),
    (50, "<|tool_response>"),
    (51, "<tool_response|>"),
    (52, "<|\"|>"),
    (98, "<|think|>"),
    (100, "<|channel>"),
    (101, "<channel|>"),
    (105, "<|turn>"),
    (106, "<turn|>"),
];

/// The first id that is no mark: a line break.
const LINE: u32 = 107;
/// What a prompt may end with, where the reply begins. Its words are one token a character.
const STARTS: [&[&str]; 5] = [
    &["e", "l", "\n"],
    &["t", "\n", "<channel|>"],
    &["h", "t", "\n"],
    &["}", "<tool_response|>"],
    &["}", "<end_function_response>"],
];
/// The lengths of the pieces of the script, in characters, in turn.
const LENGTHS: [usize; 5] = [5, 3, 7, 2, 4];
/// The tokens that say what comes next.
const ORDER: usize = 3;
/// Positions of a sequence.
pub(crate) const CONTEXT: usize = 4096;

/// The tokens of a model.
struct Vocabulary {
    tokens: Vec<String>,
    types: Vec<i32>,
    /// The script's, with the end of the turn.
    script: Vec<u32>,
}

impl Vocabulary {
    fn new(marks: Marks, script: &str) -> Self {
        let mut tokens: Vec<String> = (0..LINE).map(|id| format!("<unused{id}>")).collect();
        for (id, name) in COMMON.iter().chain(marks) {
            tokens[*id] = (*name).to_owned();
        }
        let mut types = vec![3; tokens.len()];
        types[3] = 2;
        tokens.push("\n".to_owned());
        types.push(1);
        tokens.extend((0..256).map(|byte| format!("<0x{byte:02X}>")));
        types.resize(tokens.len(), 6);
        tokens.push("▁".to_owned());
        tokens.extend(('!'..='~').map(String::from));
        types.resize(tokens.len(), 1);
        let mut vocabulary = Self { tokens, types, script: Vec::new() };
        let mut rest = script;
        while !rest.is_empty() {
            let mark = marks.iter().find(|(_, name)| rest.starts_with(name));
            let (id, length) = match mark {
                Some((id, name)) => (*id as u32, name.len()),
                None => vocabulary.piece(marks, rest),
            };
            vocabulary.script.push(id);
            rest = &rest[length..];
        }
        vocabulary.script.push(106);
        vocabulary
    }

    /// Adds the piece that a text begins with. Returns its id and its length.
    fn piece(&mut self, marks: Marks, text: &str) -> (u32, usize) {
        let next = marks.iter().filter_map(|(_, name)| text.find(name)).min();
        let text = &text[..next.unwrap_or(text.len())];
        let most = LENGTHS[self.script.len() % LENGTHS.len()];
        let end = text.char_indices().nth(most).map_or(text.len(), |(at, _)| at);
        let piece = text[..end].replace(' ', "▁");
        self.tokens.push(piece);
        self.types.push(5);
        (self.tokens.len() as u32 - 1, end)
    }

    fn id(&self, name: &str) -> Option<u32> {
        self.tokens.iter().position(|token| token == name).map(|id| id as u32)
    }

    /// Returns contexts with the tokens that follow them: the next, and the one after it.
    fn rules(&self) -> Vec<(Vec<u32>, [u32; 2])> {
        let starts = STARTS.iter().filter_map(|start| {
            start.iter().map(|name| self.id(name)).collect::<Option<Vec<u32>>>()
        });
        let starts: Vec<Vec<u32>> = starts.collect();
        let after = |place: usize| {
            let at = |place: usize| self.script[place.min(self.script.len() - 1)];
            [at(place), at(place + 1)]
        };
        let mut rules: Vec<(Vec<u32>, [u32; 2])> = Vec::new();
        // What a prompt ends with also stands before the second token, and the third.
        for start in &starts {
            rules.push((start.clone(), after(0)));
        }
        for place in 1..self.script.len() {
            let lines = starts.iter().map(|start| [start, &self.script[..place]].concat());
            for line in lines {
                let is_unique = |context: &&[u32]| {
                    let others = self.script.windows(context.len()).enumerate();
                    let mut others = others
                        .filter(|(at, window)| *window == *context && at + context.len() != place);
                    others.next().is_none() && !starts.iter().any(|start| start.ends_with(context))
                };
                let contexts =
                    (1..=ORDER.min(line.len())).map(|length| &line[line.len() - length..]);
                let context = contexts.clone().find(is_unique);
                let context = context.expect("the tokens before a place of the script tell it");
                let rule = (context.to_vec(), after(place));
                if !rules.contains(&rule) {
                    rules.push(rule);
                }
            }
        }
        rules
    }
}

/// A matrix, row by row.
struct Matrix {
    columns: usize,
    values: Vec<f32>,
}

impl Matrix {
    fn new(rows: usize, columns: usize) -> Self {
        Self { columns, values: vec![0.0; rows * columns] }
    }

    fn set(&mut self, row: usize, column: usize, value: f32) {
        self.values[row * self.columns + column] = value;
    }
}

/// What the model of a test writes.
pub(crate) struct Script<'a> {
    pub(crate) marks: Marks,
    /// Its chat template.
    pub(crate) template: &'a str,
    pub(crate) text: &'a str,
    /// Whether it writes a blank wherever one may come after the first token.
    pub(crate) likes_blanks: bool,
}

/// Writes a model that answers a script to a GGUF file.
pub(crate) fn write(path: &Path, script: &Script<'_>) {
    let vocabulary = Vocabulary::new(script.marks, script.text);
    let rules = vocabulary.rules();
    let blank = vocabulary.id("▁").expect("the vocabulary has a blank");
    let mut codes: BTreeMap<u32, usize> = BTreeMap::new();
    let known = rules.iter().flat_map(|(context, next)| context.iter().chain(next));
    for id in known.chain([&blank]) {
        let code = codes.len() + 1;
        codes.entry(*id).or_insert(code);
    }
    let width = codes.len() + 1;
    let constant = ORDER * width;
    let hidden = (constant + 1).next_multiple_of(32);
    let (head, wide) = (width.next_multiple_of(32), (rules.len() + 1).next_multiple_of(32));
    let heads = ORDER - 1;
    let size = (hidden as f32).sqrt();
    let count = vocabulary.tokens.len();

    let mut embedding = Matrix::new(count, hidden);
    for id in 0..count {
        embedding.set(id, codes.get(&(id as u32)).copied().unwrap_or(0), 1.0);
        embedding.set(id, constant, 1.0);
    }
    let [mut q, mut k, mut v, mut o] =
        [(heads * head, hidden), (head, hidden), (head, hidden), (hidden, heads * head)]
            .map(|(rows, columns)| Matrix::new(rows, columns));
    k.set(0, constant, 1.0);
    for back in 1..=heads {
        let (first, angle) = ((back - 1) * head, back as f32);
        q.set(first, constant, angle.cos());
        q.set(first + head / 2, constant, -angle.sin());
        for code in 0..width {
            o.set(back * width + code, first + code, 1.0);
        }
    }
    (0..width).for_each(|code| v.set(code, code, 1.0));
    let (mut gate, mut up) = (Matrix::new(wide, hidden), Matrix::new(wide, hidden));
    let mut down = Matrix::new(hidden, wide);
    for (row, (context, next)) in rules.iter().enumerate() {
        for (back, id) in context.iter().rev().enumerate() {
            gate.set(row, back * width + codes[id], 40.0);
        }
        // 20 where all are there, and at most -20 elsewhere.
        gate.set(row, constant, -40.0 * (context.len() as f32 - 0.5));
        up.set(row, constant, 1.0);
        let is_first = script.likes_blanks && next[0] == vocabulary.script[0];
        let strength = if is_first { 0.2 } else { 0.05 };
        down.set(codes[&next[1]], row, strength / 2.0);
        down.set(codes[&next[0]], row, strength);
    }
    if script.likes_blanks {
        gate.set(rules.len(), constant, 20.0);
        up.set(rules.len(), constant, 1.0);
        down.set(codes[&blank], rules.len(), 0.1);
    }
    // The score of the token that is looked for is 200, that of its neighbours half of it.
    let sharp = (200.0 / (head as f32).sqrt()).sqrt();
    let norm = |count: usize, weight: f32| Matrix { columns: count, values: vec![weight; count] };
    let tensors = [
        ("token_embd", embedding),
        // After it a row is 1 at its token's code and at the constant place.
        ("blk.0.attn_norm", norm(hidden, (2.0 / hidden as f32).sqrt())),
        ("blk.0.attn_q", q),
        ("blk.0.attn_k", k),
        ("blk.0.attn_v", v),
        ("blk.0.attn_output", o),
        ("blk.0.attn_q_norm", norm(head, sharp)),
        ("blk.0.attn_k_norm", norm(head, sharp)),
        // Each code is then as large as in the embedding.
        ("blk.0.post_attention_norm", norm(hidden, (heads as f32).sqrt())),
        ("blk.0.ffn_norm", norm(hidden, ((ORDER + 1) as f32).sqrt() / size)),
        ("blk.0.ffn_gate", gate),
        ("blk.0.ffn_up", up),
        ("blk.0.ffn_down", down),
        ("blk.0.post_ffw_norm", norm(hidden, 30.0)),
        ("output_norm", norm(hidden, 10.0)),
    ];
    let sizes = [hidden, wide, heads, head];
    let mut writer = Writer::new(path, metadata(&vocabulary, script.template, sizes)).unwrap();
    for (name, matrix) in &tensors {
        let rows = matrix.values.len() / matrix.columns;
        let shape = if rows == 1 { vec![matrix.columns] } else { vec![rows, matrix.columns] };
        writer.declare(&format!("{name}.weight"), DType::F32, &shape).unwrap();
    }
    let mut data = writer.start().unwrap();
    for (_, matrix) in &tensors {
        let bytes = matrix.values.iter().flat_map(|value| value.to_le_bytes());
        data.bytes(&bytes.collect::<Vec<u8>>()).unwrap();
    }
    data.finish().unwrap();
}

fn metadata(vocabulary: &Vocabulary, template: &str, sizes: [usize; 4]) -> GgufMetadata {
    let mut metadata = GgufMetadata::new("replay");
    let number = |value: usize| Value::U32(value as u32);
    let text = |value: &str| Value::String(value.into());
    let mut tokens = StringArray::default();
    vocabulary.tokens.iter().for_each(|token| tokens.push(token));
    let [hidden, wide, heads, head] = sizes;
    for (key, value) in [
        ("general.architecture", text("gemma3")),
        ("gemma3.block_count", number(1)),
        ("gemma3.context_length", number(CONTEXT)),
        ("gemma3.embedding_length", number(hidden)),
        ("gemma3.feed_forward_length", number(wide)),
        ("gemma3.attention.head_count", number(heads)),
        ("gemma3.attention.head_count_kv", number(1)),
        ("gemma3.attention.key_length", number(head)),
        ("gemma3.attention.value_length", number(head)),
        ("gemma3.attention.sliding_window", number(ORDER)),
        ("gemma3.attention.layer_norm_rms_epsilon", Value::F32(1e-6)),
        ("tokenizer.ggml.model", text("llama")),
        ("tokenizer.ggml.tokens", Value::Array(Array::String(tokens))),
        ("tokenizer.ggml.scores", Value::Array(Array::F32(vec![-1.0; vocabulary.tokens.len()]))),
        ("tokenizer.ggml.token_type", Value::Array(Array::I32(vocabulary.types.clone()))),
        ("tokenizer.ggml.bos_token_id", number(2)),
        ("tokenizer.ggml.eos_token_id", number(1)),
        ("tokenizer.ggml.eot_token_id", number(106)),
        ("tokenizer.ggml.unknown_token_id", number(3)),
        ("tokenizer.ggml.add_bos_token", Value::Bool(true)),
        ("tokenizer.ggml.add_space_prefix", Value::Bool(false)),
        ("tokenizer.chat_template", text(template)),
    ] {
        metadata.insert(key, value);
    }
    metadata
}
