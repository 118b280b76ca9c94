//! Names by their parts: family and generation, size, training and format. `gemma-4-e4b-it`,
//! `google/gemma-4-E4B` and `gemma4:e4b` have the same parts, whatever their letters.

use crate::stems::is_quant;

/// What a name of a Gemma says.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Parts {
    /// The generation: `3`, `3n`, `4`.
    pub(super) generation: Option<String>,
    /// The size: `4b`, `e4b`, `270m`.
    pub(super) size: Option<String>,
    /// Whether it was trained for its few bits.
    pub(super) qat: bool,
    /// The format: `q4_0`, `f16`.
    pub(super) quant: Option<String>,
    /// Words of which nothing is known.
    pub(super) unknown: usize,
}

impl Parts {
    /// Reads a name, with its owner or without; `None` if it is not one of a plain Gemma.
    pub(super) fn of(name: &str) -> Option<Self> {
        let mut words = words(name).into_iter().peekable();
        let first = words.next()?;
        let mut parts = Self::default();
        match first.strip_prefix("gemma")? {
            "" => parts.generation = words.next_if(|word| is_generation(word)),
            rest if is_generation(rest) => parts.generation = Some(rest.to_owned()),
            _ => return None,
        }
        for word in words {
            match word.as_str() {
                "it" | "latest" | "gguf" | "text" => {}
                "qat" => parts.qat = true,
                word if is_size(word) => {
                    parts.size.get_or_insert_with(|| word.to_owned());
                }
                // The weights that a token reads: 26B-A4B.
                word if word.strip_prefix('a').is_some_and(is_size) => {}
                word if is_quant(word) => parts.quant = Some(word.replace("fp16", "f16")),
                _ => parts.unknown += 1,
            }
        }
        Some(parts)
    }
}

/// Returns the words of a name without its owner, in lower case.
pub(super) fn words(name: &str) -> Vec<String> {
    let name = name.to_lowercase();
    let name = name.rsplit('/').next().unwrap_or_default();
    let split = |word: &str| match is_quant(word) {
        true => vec![word.to_owned()],
        false => word.split('_').map(str::to_owned).collect(),
    };
    let words = name.split(['-', ':', ' ']).flat_map(split);
    words.filter(|word| !word.is_empty()).collect()
}

fn is_generation(word: &str) -> bool {
    let digits = word.strip_suffix('n').unwrap_or(word);
    digits.len() == 1 && digits.bytes().all(|byte| byte.is_ascii_digit())
}

fn is_size(word: &str) -> bool {
    size(word).is_some()
}

/// Returns the billions of parameters that a word of a name says: `8b`, `e4b`, `270m`, `8x7b`.
pub(super) fn size(word: &str) -> Option<f64> {
    let word = word.strip_prefix('e').unwrap_or(word);
    let (count, factor) = match word.strip_suffix('b') {
        Some(count) => (count, 1.0),
        None => (word.strip_suffix('m')?, 1e-3),
    };
    let number = |text: &str| {
        let is_plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        text.parse::<f64>().ok().filter(|number| is_plain && *number > 0.0)
    };
    let product = || {
        let (experts, each) = count.split_once('x')?;
        Some(number(experts)? * number(each)?)
    };
    Some(number(count).or_else(product)? * factor)
}
