//! Drafts of a model that reads the caches and hidden states of the one that it guesses for.
//!
//! ```text
//! y = P [E[token] * sqrt(backbone); h]
//! for each layer:  y += norm(attention(norm(y)));  y += norm(ffn(norm(y)));  y *= s
//! logits = D norm(y), or of some of D's clusters only;  h' = Q norm(y)
//! ```
//!
//! `E` is the embedding of the model that it guesses for, `h` that model's hidden state after the
//! final norm where the last token was chosen, and `h'` takes its place for the next guess. Layers
//! have queries only: they attend to the last cache of their kind. All guesses of a round stand at
//! the position of the first, where nothing is stored yet. So their rows have the position before
//! it, up to which they see keys, and their queries are rotated by one position more.

use crate::checkpoint::assistant_config::{AssistantConfig, CentroidsConfig};
use crate::checkpoint::config::{AttentionKind, Config, LayerConfig};
use crate::error::ModelError;
use crate::families::builder::Builder;
use crate::families::layer;
use crate::names::{self, DRAFT_PREFIX as PREFIX};
use crate::plan::goal::{End, Goal};
use crate::plan::{BufferId, CacheId, ExpertMatrix, Op, Plan};

/// Adds a goal to a Plan that gives logits: one guess for each row, whose input are the token and
/// the hidden state before it. Its outputs are the logits of the guess and the next hidden state,
/// (outputs, vocabulary) and (outputs, hidden). The hidden states that the logits of the main goal
/// are made of become its second output.
///
/// # Errors
/// Returns [`ModelError::BadValue`] if the two models do not belong together.
pub(crate) fn with_drafts(
    mut plan: Plan,
    config: &Config,
    assistant: &AssistantConfig,
    dtype_of: &dyn Fn(&str) -> trine_weights::DType,
) -> Result<Plan, ModelError> {
    let own = draft(&plan, config, assistant, dtype_of)?;
    let hidden = state_of_logits(&plan);
    plan.outputs.insert(1, hidden);
    plan.ends.first_mut().into_iter().for_each(|end| end.outputs += 1);
    plan.append(own, Goal::Draft);
    Ok(plan)
}

/// Returns the buffer of which the logits are a product.
fn state_of_logits(plan: &Plan) -> BufferId {
    let logits = plan.outputs[0];
    let product = plan.steps.iter().find_map(|step| match &step.op {
        Op::MatMul { input, products } if products.iter().any(|own| own.output == logits) => {
            Some(*input)
        }
        _ => None,
    });
    product.expect("logits are a product")
}

/// Returns the Plan of a guess, over the caches of another Plan.
///
/// # Errors
/// As [`with_drafts`].
pub(crate) fn draft(
    target: &Plan,
    config: &Config,
    assistant: &AssistantConfig,
    dtype_of: &dyn Fn(&str) -> trine_weights::DType,
) -> Result<Plan, ModelError> {
    let (mut own, backbone) = (assistant.config.clone(), assistant.backbone);
    for (what, found, expected) in [
        ("a backbone of", backbone, config.hidden),
        ("a vocabulary of", own.vocabulary, config.vocabulary),
    ] {
        if found != expected {
            return Err(ModelError::other_draft(what, found, expected));
        }
    }
    if own.layers.iter().any(|layer| layer.experts.is_some()) {
        return Err(ModelError::bad("enable_moe_block of the draft", true, "false"));
    }
    let mut p = Builder::new(dtype_of);
    p.take_caches(&target.caches);
    p.scope(PREFIX);
    let (rows, scale) = (config.vocabulary, config.embedding_scale);
    let e = p.embed("embedding", names::TOKEN_EMBEDDING, rows, backbone, scale);
    let h = p.state("state", backbone);
    let x = p.join("token_and_state", vec![e, h]);
    p.of_model(PREFIX);
    let mut y = p.matmul("residual", x, names::DRAFT_INPUT, own.hidden);
    for index in 0..own.layers.len() {
        p.scope(format!("{PREFIX}blk.{index}."));
        let cache = cache_of(target, config, index, &own.layers[index])?;
        lend_heads(&mut own.layers[index], target, cache);
        let norm = names::layer(index, "attn_norm");
        let normed = p.norm("attn_norm", y, &norm, own.norm_epsilon);
        let delta = layer::attention_over(&mut p, &own, index, normed, cache);
        p.add(delta, y);
        layer::feed_forward(&mut p, &own, index, y);
        let scale = own.layers[index].output_scale;
        if scale != 1.0 {
            y = p.sum("scaled", [(y, scale)]);
        }
    }
    p.scope(PREFIX);
    let selected = p.select(y);
    let normed = p.norm("output_norm", selected, names::OUTPUT_NORM, own.norm_epsilon);
    let logits = match assistant.centroids {
        Some(clusters) => search(&mut p, &own, clusters, normed),
        None => p.matmul("logits", normed, names::TOKEN_EMBEDDING, own.vocabulary),
    };
    let next = p.matmul("next_state", normed, names::DRAFT_OUTPUT, backbone);
    let mut plan = p.finish_with(vec![logits, next]);
    plan.ends = vec![End { goal: Goal::Draft, outputs: plan.outputs.len() }];
    Ok(plan)
}

/// Adds the logits of the clusters whose centroids have the largest products.
fn search(
    p: &mut Builder<'_>,
    config: &Config,
    CentroidsConfig { count, used }: CentroidsConfig,
    normed: BufferId,
) -> BufferId {
    let scores = p.matmul("scores", normed, names::DRAFT_CENTROIDS, count);
    let routes = p.route(scores, None, 1.0, used);
    let weight = p.matrix(names::TOKEN_EMBEDDING, config.vocabulary, config.hidden);
    let clusters = ExpertMatrix { weight, first: 0, step: config.vocabulary / count };
    p.search("logits", normed, routes, clusters, names::DRAFT_ORDERING)
}

/// Returns the cache that a layer of the draft reads: the last of its kind.
fn cache_of(
    target: &Plan,
    config: &Config,
    index: usize,
    layer: &LayerConfig,
) -> Result<CacheId, ModelError> {
    let is_global = |attention: AttentionKind| attention == AttentionKind::Global;
    let fits = |id: &usize| {
        let cache = &target.caches[*id];
        let owner = &config.layers[cache.layer];
        is_global(owner.attention) == is_global(layer.attention)
    };
    let found = (0..target.caches.len()).rev().find(fits);
    let cache = found.map(|id| &target.caches[id]);
    let agrees = cache.is_some_and(|cache| {
        let is_within = match (cache.window, layer.attention.window()) {
            (Some(kept), Some(seen)) => (2..=kept).contains(&seen),
            (None, None) => true,
            _ => false,
        };
        is_within && cache.head_dim == layer.head_dim && layer.heads.is_multiple_of(cache.kv_heads)
    });
    match found.filter(|_| agrees) {
        Some(id) => Ok(CacheId(id)),
        None => {
            let shape = |window: Option<usize>, heads: usize, dim: usize| {
                let sees = window.map_or("all positions".to_owned(), |w| format!("{w} positions"));
                format!("{heads} heads of {dim} that see {sees}")
            };
            let what = format!("in layer {index}");
            let found = shape(layer.attention.window(), layer.heads, layer.head_dim);
            let expected = cache.map_or("no KV cache of this kind".to_owned(), |cache| {
                shape(cache.window, cache.kv_heads, cache.head_dim)
            });
            Err(ModelError::other_draft(what, found, expected))
        }
    }
}

/// Gives a layer the heads of the cache that it reads, and the place from which its queries look.
fn lend_heads(layer: &mut LayerConfig, target: &Plan, cache: CacheId) {
    layer.kv_heads = target.cache(cache).kv_heads;
    layer.rope.shift = 1;
    if let AttentionKind::Local { window } = &mut layer.attention {
        // The row's own position is that of the last key, one before the guess.
        *window -= 1;
    }
}

/// Returns the Plan of a guess over caches that fit the draft, without the model that has them: for
/// the shapes of its weights.
///
/// # Errors
/// As [`with_drafts`], of layers that see too few positions.
pub(crate) fn alone(assistant: &AssistantConfig) -> Result<Plan, ModelError> {
    let config = Config { hidden: assistant.backbone, ..assistant.config.clone() };
    let float = |_: &str| trine_weights::DType::F32;
    let mut target = Builder::new(&float);
    for (index, layer) in config.layers.iter().enumerate() {
        target.cache(index, layer);
    }
    let target = target.finish_with(Vec::new());
    draft(&target, &config, assistant, &float)
}
