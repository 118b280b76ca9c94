//! The hyper-parameters of a model, in one form for every file format.

use std::ops::RangeInclusive;

use crate::error::ModelError;

/// The most layers that a configuration may ask for; the largest Gemma has 62.
pub(crate) const LAYERS_MAX: usize = 256;
/// The largest width (hidden, heads x head dimension, feed-forward) that a configuration may ask
/// for.
pub(crate) const WIDTH_MAX: usize = 1 << 20;
/// The most vocabulary entries that a configuration may ask for.
pub(crate) const VOCABULARY_MAX: usize = 1 << 24;
/// The longest context that a configuration may ask for, in tokens.
const CONTEXT_MAX: usize = 1 << 24;
/// The most experts of a layer that a configuration may ask for; Gemma 4 has 128.
const EXPERTS_MAX: usize = 1024;
/// The most experts of a layer that a token may use; Gemma 4 uses 8.
pub const EXPERTS_USED_MAX: usize = 32;
/// The most residual streams that a configuration may ask for; Gemma 3n has 4.
pub(crate) const STREAMS_MAX: usize = 4;

/// Epsilons of norms: Gemma's is 1e-6. One that outweighs the mean square makes every norm 0.
const EPSILON: RangeInclusive<f32> = f32::MIN_POSITIVE..=0.1;
/// Caps of logits: Gemma 2's is 30. Far outside this range, all logits are equal.
const SOFTCAP: RangeInclusive<f32> = 0.1..=1e6;
/// Factors on attention scores: Gemma's are from 0.06 to 0.09.
const SCORE_SCALE: RangeInclusive<f32> = 1e-4..=100.0;
/// Bases of rotary frequencies: Gemma's are 1e4 and 1e6.
const THETA: RangeInclusive<f32> = 1.0..=1e12;
/// Deviations above the mean below which a gate is cut off: Gemma 3n's are 1.6449.
const CUTOFF: RangeInclusive<f32> = -10.0..=10.0;
/// Factors on the residual stream after a layer: 256 layers of the largest leave f32.
const OUTPUT_SCALE: RangeInclusive<f32> = -1e4..=1e4;
/// Divisors of positions: Gemma's are 1 and 8.
const DIVISOR: RangeInclusive<f32> = 1e-3..=1e6;

/// Everything that distinguishes one model of a family from another.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The family, whose builder makes the Plan.
    pub family: Family,
    /// Width of the residual stream, in elements.
    pub hidden: usize,
    /// The number of rows of the embedding table, and so of logits per position.
    pub vocabulary: usize,
    /// The longest sequence that the model was trained for, in tokens.
    pub context: usize,
    /// The number added to the mean square in every norm.
    pub norm_epsilon: f32,
    /// The factor on token embeddings; the square root of `hidden` for Gemma 3.
    pub embedding_scale: f32,
    /// `c` in `c * tanh(logit / c)`, if the model caps its logits.
    pub final_softcap: Option<f32>,
    /// The layers, first to last.
    pub layers: Vec<LayerConfig>,
}

/// A family of models that share one forward pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// Gemma 3, text: 270M, 1B, 4B, 12B, 27B.
    Gemma3,
    /// Gemma 3n, text: E2B, E4B, and slices of these.
    Gemma3n(Gemma3nConfig),
    /// Gemma 4, text: E2B, E4B, 12B, 26B-A4B, 31B.
    Gemma4(Gemma4Config),
    /// EmbeddingGemma, which makes vectors of texts: Gemma 3 whose attention looks both ways.
    Embedding(EmbeddingConfig),
}

impl Family {
    /// Returns its name as GGUF files have it in `general.architecture`.
    pub fn name(self) -> &'static str {
        match self {
            Family::Gemma3 => "gemma3",
            Family::Gemma3n(_) => "gemma3n",
            Family::Gemma4(_) => "gemma4",
            Family::Embedding(_) => "gemma-embedding",
        }
    }

    /// Returns whether its models make vectors of texts, and no texts.
    pub fn only_embeds(self) -> bool {
        matches!(self, Family::Embedding(_))
    }
}

/// The numbers of a Gemma 3n that other families do not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gemma3nConfig {
    /// Residual streams (AltUp), at least 2. The layers work on the first and predict the others.
    pub streams: usize,
    /// Inner width of the low-rank residual (LAuReL), in elements.
    pub laurel_rank: usize,
    /// The inputs that each layer has of its own for a token.
    pub inputs: PerLayerConfig,
    /// Whether the corrected first stream is multiplied by a vector before it gates the per-layer
    /// input.
    pub scales_correction: bool,
}

impl Gemma3nConfig {
    fn check(&self, layers: usize) -> Result<(), ModelError> {
        in_range("AltUp stream count", self.streams, 2, STREAMS_MAX)?;
        in_range("LAuReL rank", self.laurel_rank, 1, WIDTH_MAX)?;
        self.inputs.check(layers)
    }
}

/// The inputs that each layer has of its own for a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PerLayerConfig {
    /// Width of the input of one layer, in elements.
    pub width: usize,
    /// The number of rows of the table of inputs. Token ids beyond it use row 0.
    pub vocabulary: usize,
}

impl PerLayerConfig {
    fn check(&self, layers: usize) -> Result<(), ModelError> {
        in_range("per-layer input width", self.width, 1, WIDTH_MAX / layers)?;
        in_range("per-layer vocabulary size", self.vocabulary, 1, VOCABULARY_MAX)
    }
}

/// The numbers of a Gemma 4 that belong to no single layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gemma4Config {
    /// The inputs that each layer has of its own for a token, in E2B and E4B.
    pub inputs: Option<PerLayerConfig>,
    /// Whether rows of a picture see its later rows in local layers: in 12B, 26B-A4B and 31B.
    pub sees_ahead: bool,
}

/// The widths of the two products after the last norm of an EmbeddingGemma, in elements. Files have
/// them as shapes of tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EmbeddingConfig {
    /// What the first one gives.
    pub inner: usize,
    /// What the second one gives: the elements of a text's vector.
    pub dimensions: usize,
}

/// The experts of a layer: small feed-forward parts, of which a token uses a few.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertsConfig {
    /// The number of experts.
    pub count: usize,
    /// The number of experts that a token uses.
    pub used: usize,
    /// Feed-forward width of one expert, in elements.
    pub width: usize,
    /// How the files keep the gate's and the up projection's matrices.
    pub gates: Gates,
    /// Whether each expert has a factor on its share.
    pub has_factors: bool,
}

/// How files keep the gate's and the up projection's matrices of experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gates {
    /// One tensor, with the rows of the gate before those of the up projection for each expert.
    Joined,
    /// A tensor for each of the two.
    Apart,
}

impl ExpertsConfig {
    fn check(&self, at: &dyn Fn(&str) -> String) -> Result<(), ModelError> {
        in_range(&at("expert count"), self.count, 1, EXPERTS_MAX)?;
        in_range(&at("used expert count"), self.used, 1, self.count.min(EXPERTS_USED_MAX))?;
        in_range(&at("expert width"), self.width, 1, WIDTH_MAX / self.used)
    }
}

/// The numbers of one layer. All of them may differ from layer to layer.
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
    /// What is stored as values.
    pub values: Values,
    /// The experts beside the feed-forward part, if it has any.
    pub experts: Option<ExpertsConfig>,
    /// Factor on the residual stream after the layer; 1 in families that have none. Files have it
    /// as a tensor.
    pub output_scale: f32,
    /// Standard deviations above the mean of a row at which the feed-forward's gate is cut off, so
    /// that few of its columns are active; `None` for no cutoff.
    pub cutoff: Option<f32>,
    /// The layer whose KV cache this one reads: its own index, unless layers share a cache.
    pub kv_owner: usize,
}

/// What a layer stores as values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Values {
    /// What the product of their own matrix gives.
    Plain,
    /// The norm of each head of that, without weights.
    Normed,
    /// The norm of each head of what the keys' product gives, without weights. The layer has no
    /// matrix for values.
    Keys,
}

/// Which earlier positions a layer attends to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttentionKind {
    /// The last `window` positions, the query's own included.
    Local {
        /// The number of positions seen, at least 1.
        window: usize,
    },
    /// All positions up to the query's own.
    Global,
}

impl AttentionKind {
    /// Returns the window in positions, or `None` for global attention.
    pub fn window(self) -> Option<usize> {
        match self {
            AttentionKind::Local { window } => Some(window),
            AttentionKind::Global => None,
        }
    }
}

/// Which rows after it a row sees, of those that its batch says it may see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ahead {
    /// None: attention is causal.
    Nothing,
    /// All of them, whatever the window.
    All,
    /// As many as the window lets it see before it; all in a layer without a window.
    Window,
}

impl Ahead {
    /// Returns the most rows after it that a row sees in a layer with this window.
    pub fn most(self, window: Option<usize>) -> usize {
        match (self, window) {
            (Ahead::Nothing, _) => 0,
            (Ahead::Window, Some(window)) => window - 1,
            (Ahead::All, _) | (Ahead::Window, None) => usize::MAX,
        }
    }
}

/// Rotary position embedding: pair `j` of `d/2` is rotated by `position * theta^(-2j/d) / divisor`
/// if it is one of those that rotate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rope {
    /// Base of the frequencies.
    pub theta: f32,
    /// The linear scaling factor: positions are divided by it. 1 for no scaling.
    pub divisor: f32,
    /// The number of pairs that rotate, from the first on; `None` for all.
    pub pairs: Option<usize>,
    /// Positions that are added to a row's own: 1 for drafts, whose queries stand where the next
    /// token will.
    pub shift: u32,
}

impl Rope {
    /// Returns the rotation of all pairs.
    pub fn full(theta: f32, divisor: f32) -> Self {
        Self { theta, divisor, pairs: None, shift: 0 }
    }

    /// Returns the angle in radians by which a pair of a head rotates from one position to the
    /// next.
    pub fn frequency(self, pair: usize, head_dim: usize) -> f64 {
        if self.pairs.is_some_and(|pairs| pair >= pairs) {
            return 0.0;
        }
        let exponent = -2.0 * pair as f64 / head_dim as f64;
        f64::from(self.theta).powf(exponent) / f64::from(self.divisor)
    }

    /// Checks both numbers; `of` names their owner in an error.
    ///
    /// # Errors
    /// Returns [`ModelError::BadValue`] with the number that is out of range.
    pub(crate) fn check(self, of: &str) -> Result<(), ModelError> {
        within(&format!("rope theta of {of}"), self.theta, &THETA)?;
        within(&format!("rope scaling factor of {of}"), self.divisor, &DIVISOR)
    }
}

impl LayerConfig {
    /// Returns the number of elements of all query heads together.
    pub fn query_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Returns the number of elements of all key heads (or all value heads) together.
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }
}

impl Config {
    /// Returns which rows after it a row sees in a layer: those of its picture, or of its text.
    pub(crate) fn ahead(&self, layer: usize) -> Ahead {
        let is_local = self.layers[layer].attention.window().is_some();
        match self.family {
            Family::Gemma3 | Family::Gemma3n(_) => Ahead::All,
            Family::Gemma4(own) if own.sees_ahead && is_local => Ahead::All,
            Family::Gemma4(_) => Ahead::Nothing,
            Family::Embedding(_) => Ahead::Window,
        }
    }

    /// Checks every number against the limits of any model, so that later arithmetic cannot
    /// overflow.
    ///
    /// # Errors
    /// Returns [`ModelError::BadValue`] with the first number that is out of range.
    pub(crate) fn check(&self) -> Result<(), ModelError> {
        in_range("hidden size", self.hidden, 1, WIDTH_MAX)?;
        in_range("vocabulary size", self.vocabulary, 1, VOCABULARY_MAX)?;
        in_range("context length", self.context, 1, CONTEXT_MAX)?;
        in_range("layer count", self.layers.len(), 1, LAYERS_MAX)?;
        within("norm epsilon", self.norm_epsilon, &EPSILON)?;
        if let Some(cap) = self.final_softcap {
            within("final logit softcapping", cap, &SOFTCAP)?;
        }
        for (index, layer) in self.layers.iter().enumerate() {
            layer.check(index)?;
            self.check_owner(index)?;
        }
        match self.family {
            // The widths are those of tensors that are there.
            Family::Gemma3 | Family::Embedding(_) => Ok(()),
            Family::Gemma3n(own) => own.check(self.layers.len()),
            Family::Gemma4(own) => {
                own.inputs.map_or(Ok(()), |inputs| inputs.check(self.layers.len()))
            }
        }
    }

    /// Checks that a layer reads its own KV cache, or that of an earlier layer whose keys and
    /// values have the same shape and the same rotation and window.
    fn check_owner(&self, index: usize) -> Result<(), ModelError> {
        let layer = &self.layers[index];
        let found = layer.kv_owner;
        if found == index {
            return Ok(());
        }
        let cached = |layer: &LayerConfig| {
            let LayerConfig { attention, kv_heads, head_dim, rope, .. } = *layer;
            (attention, kv_heads, head_dim, rope)
        };
        let is_owner =
            |owner: &LayerConfig| owner.kv_owner == found && cached(owner) == cached(layer);
        if self.layers[..index].get(found).is_some_and(is_owner) {
            return Ok(());
        }
        let expected = "an earlier layer of the same kind with a KV cache of its own";
        Err(ModelError::bad(&format!("KV owner of layer {index}"), found, expected))
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
        if let Some(cutoff) = self.cutoff {
            within(&at("activation sparsity"), cutoff, &CUTOFF)?;
        }
        if let Some(experts) = self.experts {
            experts.check(&at)?;
        }
        if let Some(pairs) = self.rope.pairs {
            in_range(&at("rotating pair count"), pairs, 0, self.head_dim / 2)?;
        }
        within(&at("output scale"), self.output_scale, &OUTPUT_SCALE)?;
        within(&at("attention scale"), self.score_scale, &SCORE_SCALE)?;
        self.rope.check(&format!("layer {index}"))
    }
}

/// Returns the owner of each layer's KV cache if the last `shared` layers have none of their own:
/// the last layer of the same kind before them. Returns `None` if there is no such layer.
pub(crate) fn kv_owners(kinds: &[AttentionKind], shared: usize) -> Option<Vec<usize>> {
    let (owners, sharing) = kinds.split_at(kinds.len().checked_sub(shared)?);
    let owner = |kind: &AttentionKind| owners.iter().rposition(|other| other == kind);
    (0..owners.len()).map(Some).chain(sharing.iter().map(owner)).collect()
}

/// Returns the kinds of an EmbeddingGemma, whose files say how many positions a row of a local
/// layer sees on both sides together.
pub(crate) fn both_ways(mut kinds: Vec<AttentionKind>) -> Vec<AttentionKind> {
    for kind in &mut kinds {
        if let AttentionKind::Local { window } = kind {
            *window = *window / 2 + 1;
        }
    }
    kinds
}

/// Returns the pattern of Gemma 3: layer `i` is global if `i + 1` is a multiple of `pattern`.
pub(crate) fn every_nth_global(layers: usize, pattern: usize, window: usize) -> Vec<AttentionKind> {
    let kind = |index: usize| {
        if (index + 1).is_multiple_of(pattern) {
            AttentionKind::Global
        } else {
            AttentionKind::Local { window }
        }
    };
    (0..layers).map(kind).collect()
}

pub(crate) fn in_range(key: &str, found: usize, low: usize, high: usize) -> Result<(), ModelError> {
    if (low..=high).contains(&found) {
        return Ok(());
    }
    Err(ModelError::bad(key, found, format!("a number from {low} to {high}")))
}

fn within(key: &str, found: f32, range: &RangeInclusive<f32>) -> Result<(), ModelError> {
    // NaN is in no range.
    if range.contains(&found) {
        return Ok(());
    }
    let expected = format!("a number from {:?} to {:?}", range.start(), range.end());
    Err(ModelError::bad(key, format!("{found:?}"), expected))
}

/// How a model is sampled if the user sets nothing, and where it stops.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct GenerationDefaults {
    /// Softmax temperature; 0 is greedy.
    pub temperature: f32,
    /// The number of most likely tokens kept; 0 keeps all.
    pub top_k: usize,
    /// The probability mass kept.
    pub top_p: f32,
    /// The smallest probability kept, relative to the largest.
    pub min_p: f32,
    /// The token ids that end a generation by the configuration (the tokenizer may add more).
    pub stop_ids: Vec<u32>,
}

impl GenerationDefaults {
    /// Checks the numbers against the limits of a request, so that no request is blamed for a value
    /// from the model's files.
    ///
    /// # Errors
    /// Returns [`ModelError::BadValue`] with the first number that is out of range.
    pub(crate) fn check(self) -> Result<Self, ModelError> {
        within("the default temperature", self.temperature, &(0.0..=100.0))?;
        in_range("the default top_k", self.top_k, 0, VOCABULARY_MAX)?;
        within("the default top_p", self.top_p, &(0.0..=1.0))?;
        within("the default min_p", self.min_p, &(0.0..=1.0))?;
        Ok(self)
    }
}

impl Default for GenerationDefaults {
    /// Returns the values of Google's `generation_config.json` for the instruction-tuned Gemma 3.
    fn default() -> Self {
        Self { temperature: 1.0, top_k: 64, top_p: 0.95, min_p: 0.0, stop_ids: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(owners: [usize; 4], windows: [Option<usize>; 4]) -> Config {
        let layer = |(kv_owner, window): (usize, Option<usize>)| LayerConfig {
            attention: window
                .map_or(AttentionKind::Global, |window| AttentionKind::Local { window }),
            heads: 2,
            kv_heads: 1,
            head_dim: 8,
            score_scale: 1.0,
            rope: Rope::full(1e4, 1.0),
            feed_forward: 8,
            values: Values::Plain,
            experts: None,
            output_scale: 1.0,
            cutoff: None,
            kv_owner,
        };
        Config {
            family: Family::Gemma3,
            hidden: 8,
            vocabulary: 8,
            context: 8,
            norm_epsilon: 1e-6,
            embedding_scale: 1.0,
            final_softcap: None,
            layers: owners.into_iter().zip(windows).map(layer).collect(),
        }
    }

    #[test]
    fn a_cache_is_shared_with_an_earlier_layer_of_the_same_kind_that_has_one() {
        let local = Some(4);
        let windows = [local, None, local, local];
        assert!(config([0, 1, 0, 0], windows).check().is_ok());
        for (owners, of) in [
            // Itself shares a cache.
            ([0, 1, 0, 2], 3),
            // Comes later, or is not there.
            ([0, 1, 3, 3], 2),
            ([0, 1, 2, 4], 3),
            ([0, 1, 2, usize::MAX], 3),
            ([1, 1, 2, 3], 0),
            // Is of another kind.
            ([0, 1, 2, 1], 3),
        ] {
            let error = config(owners, windows).check().unwrap_err().to_string();
            assert!(error.starts_with(&format!("KV owner of layer {of} ")), "{owners:?}: {error}");
        }
        let error = config([0, 1, 0, 0], [local, None, local, Some(3)]).check().unwrap_err();
        assert!(error.to_string().starts_with("KV owner of layer 3 "), "{error}");
        for cutoff in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 11.0] {
            let mut config = config([0, 1, 2, 3], windows);
            config.layers[2].cutoff = Some(cutoff);
            let error = config.check().unwrap_err().to_string();
            assert!(error.starts_with("activation sparsity of layer 2 "), "{error}");
        }
    }

    #[test]
    fn layers_share_the_last_cache_of_their_kind() {
        let (local, global) = (AttentionKind::Local { window: 4 }, AttentionKind::Global);
        let kinds = [local, global, local, local, global, local];
        assert_eq!(kv_owners(&kinds, 0).unwrap(), [0, 1, 2, 3, 4, 5]);
        assert_eq!(kv_owners(&kinds, 2).unwrap(), [0, 1, 2, 3, 1, 3]);
        for impossible in [5, 6, 7] {
            assert_eq!(kv_owners(&kinds, impossible), None, "{impossible}");
        }
    }
}
