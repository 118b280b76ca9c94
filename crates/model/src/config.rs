//! The hyper-parameters of a model, in one form for every file format.

use crate::error::ModelError;

/// Most layers that a configuration may ask for; the largest Gemma has 62.
pub(crate) const LAYERS_MAX: usize = 256;
/// Largest width (hidden, heads x head dimension, feed-forward) that a configuration may ask for.
const WIDTH_MAX: usize = 1 << 20;
/// Most vocabulary entries that a configuration may ask for.
pub(crate) const VOCABULARY_MAX: usize = 1 << 24;
/// Longest context that a configuration may ask for, in tokens.
const CONTEXT_MAX: usize = 1 << 24;

/// Everything that distinguishes one model of a family from another.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Which builder makes the Plan.
    pub family: Family,
    /// Width of the residual stream, in elements.
    pub hidden: usize,
    /// Rows of the embedding table, so also logits per position.
    pub vocabulary: usize,
    /// Longest sequence the model was trained for, in tokens.
    pub context: usize,
    /// Added to the mean square in every norm.
    pub norm_epsilon: f32,
    /// Factor on token embeddings; the square root of `hidden` for Gemma 3.
    pub embedding_scale: f32,
    /// `c` in `c * tanh(logit / c)`, where the model caps its logits.
    pub final_softcap: Option<f32>,
    /// The layers, first to last.
    pub layers: Vec<LayerConfig>,
}

/// A family of models that share one forward pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// Gemma 3, text: 270M, 1B, 4B, 12B, 27B.
    Gemma3,
}

impl Family {
    /// Its name as GGUF files have it in `general.architecture`.
    pub fn name(self) -> &'static str {
        match self {
            Family::Gemma3 => "gemma3",
        }
    }
}

/// One layer's numbers. All of them may differ from layer to layer.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerConfig {
    /// Which keys a query may see.
    pub attention: AttentionKind,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Elements per head; even.
    pub head_dim: usize,
    /// Factor on query . key before the softmax.
    pub score_scale: f32,
    /// Rotary embedding of queries and keys.
    pub rope: Rope,
    /// Feed-forward width, in elements.
    pub feed_forward: usize,
    /// The layer whose KV cache this one reads; its own index, except where layers share a cache.
    pub kv_owner: usize,
}

/// Which earlier positions a layer attends to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttentionKind {
    /// The last `window` positions, the query's own included.
    Local {
        /// Positions seen, at least 1.
        window: usize,
    },
    /// All positions up to the query's own.
    Global,
}

impl AttentionKind {
    /// The window in positions, or none for global attention.
    pub fn window(self) -> Option<usize> {
        match self {
            AttentionKind::Local { window } => Some(window),
            AttentionKind::Global => None,
        }
    }
}

/// Rotary position embedding: pair `j` of `d/2` turns by `position * theta^(-2j/d) / divisor`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rope {
    /// Base of the frequencies.
    pub theta: f32,
    /// Linear scaling factor: positions are divided by it. 1 where there is none.
    pub divisor: f32,
}

impl LayerConfig {
    /// Elements of all query heads together.
    pub fn query_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Elements of all key heads (or all value heads) together.
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }
}

impl Config {
    /// Checks every number against what a model can have, so that later arithmetic cannot overflow.
    ///
    /// # Errors
    /// [`ModelError::BadValue`] naming the first number that is out of range.
    pub(crate) fn check(&self) -> Result<(), ModelError> {
        in_range("hidden size", self.hidden, 1, WIDTH_MAX)?;
        in_range("vocabulary size", self.vocabulary, 1, VOCABULARY_MAX)?;
        in_range("context length", self.context, 1, CONTEXT_MAX)?;
        in_range("layer count", self.layers.len(), 1, LAYERS_MAX)?;
        positive("norm epsilon", self.norm_epsilon)?;
        if let Some(cap) = self.final_softcap {
            positive("final logit softcapping", cap)?;
        }
        for (index, layer) in self.layers.iter().enumerate() {
            layer.check(index)?;
        }
        Ok(())
    }
}

impl LayerConfig {
    fn check(&self, index: usize) -> Result<(), ModelError> {
        let at = |what: &str| format!("{what} of layer {index}");
        in_range(&at("head count"), self.heads, 1, 4096)?;
        in_range(&at("KV head count"), self.kv_heads, 1, self.heads)?;
        in_range(&at("head dimension"), self.head_dim, 2, 4096)?;
        in_range(&at("query width"), self.query_width(), 1, WIDTH_MAX)?;
        in_range(&at("feed-forward width"), self.feed_forward, 1, WIDTH_MAX)?;
        if !self.heads.is_multiple_of(self.kv_heads) {
            let expected = format!("a divisor of the {} query heads", self.heads);
            return Err(ModelError::bad(&at("KV head count"), self.kv_heads, expected));
        }
        if !self.head_dim.is_multiple_of(2) {
            return Err(ModelError::bad(&at("head dimension"), self.head_dim, "an even number"));
        }
        if let AttentionKind::Local { window } = self.attention {
            in_range(&at("sliding window"), window, 1, CONTEXT_MAX)?;
        }
        positive(&at("attention scale"), self.score_scale)?;
        positive(&at("rope theta"), self.rope.theta)?;
        positive(&at("rope scaling factor"), self.rope.divisor)
    }
}

fn in_range(key: &str, found: usize, low: usize, high: usize) -> Result<(), ModelError> {
    if (low..=high).contains(&found) {
        return Ok(());
    }
    Err(ModelError::bad(key, found, format!("a number from {low} to {high}")))
}

fn positive(key: &str, found: f32) -> Result<(), ModelError> {
    if found.is_finite() && found > 0.0 {
        return Ok(());
    }
    Err(ModelError::bad(key, found, "a finite number above 0"))
}

/// How a model is sampled when the user says nothing, and where it stops.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct GenerationDefaults {
    /// Softmax temperature; 0 is greedy.
    pub temperature: f32,
    /// Most likely tokens kept; 0 keeps all.
    pub top_k: usize,
    /// Probability mass kept.
    pub top_p: f32,
    /// Smallest probability kept, relative to the largest.
    pub min_p: f32,
    /// Token ids that end a generation, by the configuration (the tokenizer may add more).
    pub stop_ids: Vec<u32>,
}

impl Default for GenerationDefaults {
    /// What Google's `generation_config.json` holds for the instruction-tuned Gemma 3.
    fn default() -> Self {
        Self { temperature: 1.0, top_k: 64, top_p: 0.95, min_p: 0.0, stop_ids: Vec::new() }
    }
}
