//! Writes Plans: one method per operation, so that a model family's builder reads like its paper.

use std::collections::HashMap;

use trine_weights::DType;

use crate::checkpoint::config::{Ahead, LayerConfig, Rope};
use crate::plan::{
    Buffer, BufferId, Cache, CacheId, ExpertMatrix, Heads, Input, Op, Plan, Product, Routes, Rows,
    Source, Step, Stream, Term, Weight, WeightId, WeightKind, WeightPlace,
};

/// A Plan under construction.
pub(crate) struct Builder<'a> {
    plan: Plan,
    dtype_of: &'a dyn Fn(&str) -> DType,
    /// The weights that the Plan has already, by name.
    known: HashMap<String, WeightId>,
    /// Prefix of labels and buffer names, such as `blk.3.`.
    scope: String,
    /// Prefix of the names of weights, for weights of another model.
    model: &'static str,
}

impl<'a> Builder<'a> {
    /// Starts an empty Plan. `dtype_of` returns how a tensor is stored.
    pub(crate) fn new(dtype_of: &'a dyn Fn(&str) -> DType) -> Self {
        let plan = Plan {
            buffers: Vec::new(),
            weights: Vec::new(),
            caches: Vec::new(),
            steps: Vec::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            ends: Vec::new(),
        };
        Self { plan, dtype_of, known: HashMap::new(), scope: String::new(), model: "" }
    }

    /// Returns the finished Plan, which computes only the rows of `output`.
    pub(crate) fn finish(mut self, output: BufferId) -> Plan {
        self.plan.outputs = vec![output];
        self.plan
    }

    /// Sets the prefix of the names of weights that follow.
    pub(crate) fn of_model(&mut self, model: &'static str) {
        self.model = model;
    }

    /// Makes caches of another Plan known, so that steps can read them.
    pub(crate) fn take_caches(&mut self, caches: &[Cache]) {
        self.plan.caches.extend_from_slice(caches);
    }

    /// Adds the patches of a picture, (patches, columns): all rows of the Plan are patches then.
    pub(crate) fn patches(&mut self, columns: usize) -> BufferId {
        let buffer = self.buffer("patches", Rows::Tokens, columns);
        self.plan.inputs.push(Input { buffer, source: Source::Picture });
        buffer
    }

    /// Adds the hidden states that drafts are given: (tokens, columns).
    pub(crate) fn state(&mut self, name: &str, columns: usize) -> BufferId {
        let buffer = self.buffer(name, Rows::Tokens, columns);
        self.plan.inputs.push(Input { buffer, source: Source::State });
        buffer
    }

    /// Puts buffers side by side.
    pub(crate) fn join(&mut self, name: &str, parts: Vec<BufferId>) -> BufferId {
        let columns = parts.iter().map(|part| self.columns(*part)).sum();
        let output = self.sibling(name, parts[0], columns);
        self.step(name, Op::Join { parts, output });
        output
    }

    /// Ends the Plan with several outputs.
    pub(crate) fn finish_with(mut self, outputs: Vec<BufferId>) -> Plan {
        self.plan.outputs = outputs;
        self.plan
    }

    /// Sets the prefix of the labels and buffer names that follow.
    pub(crate) fn scope(&mut self, scope: impl Into<String>) {
        self.scope = scope.into();
    }

    fn buffer(&mut self, name: &str, rows: Rows, columns: usize) -> BufferId {
        self.plan.buffers.push(Buffer { name: format!("{}{name}", self.scope), rows, columns });
        BufferId(self.plan.buffers.len() - 1)
    }

    /// Adds a buffer with as many rows as `like`.
    fn sibling(&mut self, name: &str, like: BufferId, columns: usize) -> BufferId {
        let rows = self.plan.buffer(like).rows;
        self.buffer(name, rows, columns)
    }

    fn columns(&self, id: BufferId) -> usize {
        self.plan.buffer(id).columns
    }

    fn vector(&mut self, name: &str, columns: usize) -> WeightId {
        self.weight(name, WeightKind::Vector, 1, columns)
    }

    pub(crate) fn matrix(&mut self, name: &str, rows: usize, columns: usize) -> WeightId {
        self.weight(name, WeightKind::Matrix, rows, columns)
    }

    fn weight(&mut self, name: &str, kind: WeightKind, rows: usize, columns: usize) -> WeightId {
        let name = &format!("{}{name}", self.model);
        if let Some(id) = self.known.get(name) {
            return *id;
        }
        let dtype = (self.dtype_of)(name);
        let id = WeightId(self.plan.weights.len());
        let (name, place) = (name.to_owned(), WeightPlace::Device);
        self.plan.weights.push(Weight { name: name.clone(), kind, rows, columns, dtype, place });
        self.known.insert(name, id);
        id
    }

    fn step(&mut self, label: &str, op: Op) {
        self.plan.steps.push(Step { label: format!("{}{label}", self.scope), op });
    }

    /// Adds rows of a table by token times `scale`: a buffer (tokens, columns).
    pub(crate) fn embed(
        &mut self,
        name: &str,
        table: &str,
        rows: usize,
        columns: usize,
        scale: f32,
    ) -> BufferId {
        let table = self.matrix(table, rows, columns);
        let output = self.buffer(name, Rows::Tokens, columns);
        self.step("embed", Op::Embed { table, scale, output });
        output
    }

    /// Adds a normalised copy of `input`.
    pub(crate) fn norm(
        &mut self,
        name: &str,
        input: BufferId,
        weight: &str,
        epsilon: f32,
    ) -> BufferId {
        let columns = self.columns(input);
        let weight = self.vector(weight, columns);
        let output = self.sibling(name, input, columns);
        self.step(name, Op::Norm { input, weight, epsilon, output });
        output
    }

    /// Adds a copy of `input` with mean 0 and variance 1, times a weight, plus a bias: the vectors
    /// `name.weight` and `name.bias`.
    pub(crate) fn layer_norm(
        &mut self,
        label: &str,
        input: BufferId,
        name: &str,
        epsilon: f32,
    ) -> BufferId {
        let columns = self.columns(input);
        let weight = self.vector(&format!("{name}.weight"), columns);
        let bias = self.vector(&format!("{name}.bias"), columns);
        let output = self.sibling(label, input, columns);
        self.step(label, Op::LayerNorm { input, weight, bias, epsilon, output });
        output
    }

    /// Adds a vector to each row of `buffer`, in place.
    pub(crate) fn bias(&mut self, buffer: BufferId, weight: &str) {
        let weight = self.vector(weight, self.columns(buffer));
        self.step("bias", Op::Bias { buffer, weight });
    }

    /// Adds the entries of places in a grid of `side` x `side`, by token: those of columns and
    /// those of rows of a table (2 x side, columns).
    pub(crate) fn places(
        &mut self,
        name: &str,
        table: &str,
        side: usize,
        columns: usize,
    ) -> BufferId {
        let table = self.matrix(table, 2 * side, columns);
        let output = self.buffer(name, Rows::Tokens, columns);
        self.step("places", Op::PositionEmbedding { table, side, output });
        output
    }

    /// Rotates each head of `buffer` by places in a grid of `side` x `side`, in place.
    pub(crate) fn rotate_places(
        &mut self,
        buffer: BufferId,
        heads: usize,
        theta: f32,
        side: usize,
    ) {
        self.step("rotate_places", Op::RotateByPosition { buffer, heads, theta, side });
    }

    /// Adds a copy of `input` with values from `low` to `high`.
    pub(crate) fn clamp(&mut self, name: &str, input: BufferId, [low, high]: [f32; 2]) -> BufferId {
        let output = self.sibling(name, input, self.columns(input));
        self.step("clamp", Op::Clamp { input, low, high, output });
        output
    }

    /// Applies gelu to `buffer`, in place.
    pub(crate) fn gelu(&mut self, buffer: BufferId) {
        self.step("gelu", Op::Gelu { buffer });
    }

    /// Adds the means of `count` rows each, which begin with the wanted rows.
    pub(crate) fn pool(&mut self, name: &str, input: BufferId, count: usize) -> BufferId {
        let output = self.buffer(name, Rows::Outputs, self.columns(input));
        self.step(name, Op::Pool { input, count, output });
        output
    }

    /// Normalises each head of `buffer` in place, with factors of 1 if there is no weight.
    pub(crate) fn head_norm(
        &mut self,
        buffer: BufferId,
        weight: Option<&str>,
        heads: usize,
        epsilon: f32,
    ) {
        let columns = self.columns(buffer) / heads;
        let weight = weight.map(|weight| self.vector(weight, columns));
        self.step("head_norm", Op::HeadNorm { buffer, weight, heads, epsilon });
    }

    /// Rotates each head of `buffer` in place.
    pub(crate) fn rotate(&mut self, buffer: BufferId, heads: usize, rope: Rope) {
        self.step("rotate", Op::Rotate { buffer, heads, rope });
    }

    /// Multiplies `input` with a matrix of `rows` out-features.
    pub(crate) fn matmul(
        &mut self,
        name: &str,
        input: BufferId,
        weight: &str,
        rows: usize,
    ) -> BufferId {
        let weight = self.matrix(weight, rows, self.columns(input));
        let output = self.sibling(name, input, rows);
        self.step(name, Op::MatMul { input, products: vec![Product { weight, output }] });
        output
    }

    /// Adds a KV cache for a layer.
    pub(crate) fn cache(&mut self, layer: usize, config: &LayerConfig) -> CacheId {
        self.cache_of(Cache {
            layer,
            kv_heads: config.kv_heads,
            head_dim: config.head_dim,
            window: config.attention.window(),
        })
    }

    /// Adds a KV cache.
    pub(crate) fn cache_of(&mut self, cache: Cache) -> CacheId {
        self.plan.caches.push(cache);
        CacheId(self.plan.caches.len() - 1)
    }

    /// Appends keys and values to a cache.
    pub(crate) fn store_kv(&mut self, key: BufferId, value: BufferId, cache: CacheId) {
        self.step("store_kv", Op::StoreKv { key, value, cache });
    }

    /// Adds attention of `query` over a cache. `ahead` says which
    /// rows after them rows see.
    pub(crate) fn attend(
        &mut self,
        query: BufferId,
        cache: CacheId,
        config: &LayerConfig,
        ahead: Ahead,
    ) -> BufferId {
        let heads = Heads { query: config.heads, kv: config.kv_heads, dim: config.head_dim };
        let (scale, window) = (config.score_scale, config.attention.window());
        let output = self.sibling("attended", query, self.columns(query));
        self.step("attend", Op::Attend { query, cache, heads, scale, window, ahead, output });
        output
    }

    /// Adds attention of `query` over a cache of rows that all see one another.
    pub(crate) fn attend_all(
        &mut self,
        query: BufferId,
        cache: CacheId,
        heads: Heads,
        scale: f32,
    ) -> BufferId {
        let output = self.sibling("attended", query, self.columns(query));
        let (window, ahead) = (None, Ahead::All);
        self.step("attend", Op::Attend { query, cache, heads, scale, window, ahead, output });
        output
    }

    /// Adds `gelu(gate) * up`, with the columns of `up` from `first` on.
    pub(crate) fn geglu(
        &mut self,
        name: &str,
        gate: BufferId,
        up: BufferId,
        first: usize,
    ) -> BufferId {
        let output = self.sibling(name, gate, self.columns(gate));
        self.step("geglu", Op::Geglu { gate, up, first, output });
        output
    }

    /// Sets what lies less than `deviations` above the mean of its row to 0, and subtracts that
    /// limit from the rest, in place.
    pub(crate) fn cutoff(&mut self, buffer: BufferId, deviations: f32) {
        self.step("cutoff", Op::Cutoff { buffer, deviations });
    }

    /// Adds the weighted sum of some buffers.
    pub(crate) fn sum<const N: usize>(
        &mut self,
        name: &str,
        terms: [(BufferId, f32); N],
    ) -> BufferId {
        self.sum_of(name, terms.map(|(buffer, factor)| Term { buffer, factor }).to_vec())
    }

    /// Adds the weighted sum of at least one buffer.
    pub(crate) fn sum_of(&mut self, name: &str, terms: Vec<Term>) -> BufferId {
        let first = terms[0].buffer;
        let output = self.sibling(name, first, self.columns(first));
        self.step(name, Op::Sum { terms, output });
        output
    }

    /// Adds streams to which sources are added, with coefficients of each row:
    /// `bias + scale * coefficient`.
    pub(crate) fn mix(
        &mut self,
        name: &str,
        inputs: &[BufferId],
        sources: &[BufferId],
        coefficients: BufferId,
        [bias, scale]: [f32; 2],
    ) -> Vec<BufferId> {
        let stream = |(index, &input): (usize, &BufferId)| {
            let output = self.sibling(&format!("{name}.{index}"), input, self.columns(input));
            Stream { input, output }
        };
        let streams: Vec<Stream> = inputs.iter().enumerate().map(stream).collect();
        let outputs = streams.iter().map(|stream| stream.output).collect();
        self.step(name, Op::Mix { streams, sources: sources.to_vec(), coefficients, bias, scale });
        outputs
    }

    /// Gives the rows of `buffer` the magnitude of those of `like`, in place.
    pub(crate) fn rescale(&mut self, buffer: BufferId, like: BufferId, floor: f32) {
        self.step("rescale", Op::Rescale { buffer, like, floor });
    }

    /// Adds a copy of `input` with each column multiplied by its factor.
    pub(crate) fn scale(&mut self, name: &str, input: BufferId, weight: &str) -> BufferId {
        let columns = self.columns(input);
        let weight = self.vector(weight, columns);
        let output = self.sibling(name, input, columns);
        self.step(name, Op::Scale { input, weight, output });
        output
    }

    /// Adds `target += source`.
    pub(crate) fn add(&mut self, source: BufferId, target: BufferId) {
        self.step("add", Op::Add { source, target });
    }

    /// Adds the experts of each row by their logits.
    pub(crate) fn route(
        &mut self,
        logits: BufferId,
        factors: Option<&str>,
        scale: f32,
        used: usize,
    ) -> Routes {
        let experts = self.columns(logits);
        let factors = factors.map(|factors| self.vector(factors, experts));
        let [chosen, shares] = ["chosen", "shares"].map(|name| self.sibling(name, logits, used));
        self.step("route", Op::Route { logits, factors, scale, chosen, shares });
        Routes { chosen, shares }
    }

    /// Adds the gated products of each row with the matrices of its experts, `width` columns for
    /// each.
    pub(crate) fn gated_experts(
        &mut self,
        input: BufferId,
        routes: Routes,
        gate_and_up: [ExpertMatrix; 2],
        width: usize,
    ) -> BufferId {
        let chosen = routes.chosen;
        let output = self.sibling("experts_gated", input, self.columns(chosen) * width);
        self.step("experts_gated", Op::GatedExperts { input, chosen, gate_and_up, output });
        output
    }

    /// Adds the sum of the products of each row with the matrices of its experts, by their shares.
    pub(crate) fn sum_experts(
        &mut self,
        input: BufferId,
        Routes { chosen, shares }: Routes,
        down: ExpertMatrix,
        rows: usize,
    ) -> BufferId {
        let output = self.sibling("experts_delta", input, rows);
        self.step("experts_delta", Op::SumExperts { input, chosen, shares, down, output });
        output
    }

    /// Adds the products of each row with the rows of its clusters, at the columns that `tokens`
    /// says.
    pub(crate) fn search(
        &mut self,
        name: &str,
        input: BufferId,
        routes: Routes,
        clusters: ExpertMatrix,
        tokens: &str,
    ) -> BufferId {
        let columns = self.plan.weight(clusters.weight).rows;
        let tokens = self.vector(tokens, columns);
        let output = self.sibling(name, input, columns);
        self.step(name, Op::Search { input, routes, clusters, tokens, output });
        output
    }

    /// Selects the rows of `input` whose logits are wanted.
    pub(crate) fn select(&mut self, input: BufferId) -> BufferId {
        let output = self.buffer("selected", Rows::Outputs, self.columns(input));
        self.step("select", Op::Select { input, output });
        output
    }

    /// Caps the magnitude of `buffer` in place.
    pub(crate) fn softcap(&mut self, buffer: BufferId, cap: f32) {
        self.step("softcap", Op::Softcap { buffer, cap });
    }
}
