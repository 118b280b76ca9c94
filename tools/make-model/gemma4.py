"""Tensors and hyper-parameters of Gemma 4 and of the assistants that guess for it."""

from __future__ import annotations

from dataclasses import dataclass

import vocabulary
from container import Metadata, Tensor, Tensors

NORM_EPSILON = 1e-6
HEAD_DIM, GLOBAL_HEAD_DIM, PER_LAYER = 256, 512, 256

#: Divisors of the frequencies of global layers: a quarter of the pairs rotates.
ROPE_DIVISORS = (1.0,) * 64 + (1e30,) * 192


@dataclass(frozen=True)
class Experts:
    """Experts of each layer, those that a row uses, and the width of each."""

    count: int
    used: int
    feed_forward: int


@dataclass(frozen=True)
class Shape:
    """The hyper-parameters of a published model."""

    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    global_kv_heads: int
    feed_forward: int
    window: int
    context: int
    #: Every layer whose number is a multiple of this is global; so is the last.
    pattern: int = 6
    #: The layers at the end that read the keys and values of others. Their feed-forward may be twice as wide.
    shared: int = 0
    is_wider_where_shared: bool = False
    #: Whether layers have inputs of their own, and whether global layers take their values from their keys.
    has_inputs: bool = False
    keys_are_values: bool = False
    experts: Experts | None = None
    #: An assistant's hidden size of the model that it guesses for.
    backbone: int | None = None

    @property
    def is_assistant(self) -> bool:
        return self.backbone is not None

    @property
    def architecture(self) -> str:
        return "gemma4-assistant" if self.is_assistant else "gemma4"

    def is_local(self, layer: int) -> bool:
        return (layer + 1) % self.pattern != 0 and layer + 1 != self.layers

    def has_cache(self, layer: int) -> bool:
        return layer < self.layers - self.shared

    def kv_heads_of(self, layer: int) -> int:
        return self.kv_heads if self.is_local(layer) else self.global_kv_heads

    def head_dim_of(self, layer: int) -> int:
        return HEAD_DIM if self.is_local(layer) else GLOBAL_HEAD_DIM

    def feed_forward_of(self, layer: int) -> int:
        return self.feed_forward * (2 if self.is_wider_where_shared and not self.has_cache(layer) else 1)


def assistant(of: str, hidden: int, heads: int, feed_forward: int) -> Shape:
    """An assistant: four layers that read the last local and the last global cache of its model."""
    model = MODELS[of]
    return Shape(
        f"{model.name}-assistant", hidden, 4, heads, model.kv_heads, model.global_kv_heads, feed_forward,
        model.window, model.context, pattern=4, shared=4, backbone=model.hidden,
    )  # fmt: skip


MODELS = {
    "4-e2b": Shape(
        "gemma-4-E2B", 1536, 35, 8, 1, 1, 6144, 512, 131072,
        pattern=5, shared=20, is_wider_where_shared=True, has_inputs=True,
    ),
    "4-e4b": Shape("gemma-4-E4B", 2560, 42, 8, 2, 2, 10240, 512, 131072, shared=18, has_inputs=True),
    "4-12b": Shape("gemma-4-12B", 3840, 48, 16, 8, 1, 15360, 1024, 262144, keys_are_values=True),
    "4-26b-a4b": Shape(
        "gemma-4-26B-A4B", 2816, 30, 16, 8, 2, 2112, 1024, 262144,
        keys_are_values=True, experts=Experts(128, 8, 704),
    ),
    "4-31b": Shape("gemma-4-31B", 5376, 60, 32, 16, 4, 21504, 1024, 262144, keys_are_values=True),
}  # fmt: skip

MODELS |= {
    f"{of}-assistant": assistant(of, *sizes)
    for of, sizes in {
        "4-e2b": (256, 4, 2048),
        "4-e4b": (256, 4, 2048),
        "4-12b": (1024, 16, 8192),
        "4-26b-a4b": (1024, 16, 8192),
        "4-31b": (1024, 32, 8192),
    }.items()
}


def tensors(shape: Shape, kind: str, embedding: str) -> Tensors:
    """The tensors of a file, with names, shapes and formats of published ones. Assistants of E2B and E4B have no
    clusters, as in files that llama.cpp's converter writes: all of the output matrix is multiplied."""
    made = Tensors(kind)
    made.matrix("token_embd", shape.hidden, vocabulary.SIZE, embedding)
    made.vector("output_norm", shape.hidden)
    made.all.append(Tensor("rope_freqs.weight", (len(ROPE_DIVISORS),), "F32", ROPE_DIVISORS))
    if shape.has_inputs:
        width = PER_LAYER * shape.layers
        made.matrix("per_layer_token_embd", width, vocabulary.SIZE, made.main)
        made.matrix("per_layer_model_proj", shape.hidden, width, "F16")
        made.vector("per_layer_proj_norm", PER_LAYER)
    if shape.backbone is not None:
        made.matrix("nextn.pre_projection", 2 * shape.backbone, shape.hidden, made.main)
        made.matrix("nextn.post_projection", shape.hidden, shape.backbone, made.main)
    for layer in range(shape.layers):
        add_layer(made, shape, layer)
    return made


def add_layer(made: Tensors, shape: Shape, layer: int) -> None:
    name, main, better = f"blk.{layer}.", made.main, made.better(layer, shape.layers)
    hidden, feed_forward, head_dim = shape.hidden, shape.feed_forward_of(layer), shape.head_dim_of(layer)
    query, kv = shape.heads * head_dim, shape.kv_heads_of(layer) * head_dim
    for part in ["attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"]:
        made.vector(name + part, hidden)
    made.vector(name + "attn_q_norm", head_dim)
    made.matrix(name + "attn_q", hidden, query, main)
    if shape.has_cache(layer):
        # Scores are not scaled: without this, softmax picks one position, and results hang on its ties.
        made.vector(name + "attn_k_norm", head_dim, value=head_dim**-0.5)
        made.matrix(name + "attn_k", hidden, kv, main)
        if shape.is_local(layer) or not shape.keys_are_values:
            made.matrix(name + "attn_v", hidden, kv, better)
    for part, columns, rows, wanted in [
        ("attn_output", query, hidden, main),
        ("ffn_gate", hidden, feed_forward, main),
        ("ffn_up", hidden, feed_forward, main),
        ("ffn_down", feed_forward, hidden, better),
    ]:
        made.matrix(name + part, columns, rows, wanted)
    made.vector(name + "layer_output_scale", 1)
    if shape.has_inputs:
        made.vector(name + "post_norm", hidden)
        made.matrix(name + "inp_gate", hidden, PER_LAYER, main)
        made.matrix(name + "proj", PER_LAYER, hidden, main)
    if shape.experts is not None:
        add_experts(made, shape, shape.experts, layer)


def add_experts(made: Tensors, shape: Shape, experts: Experts, layer: int) -> None:
    name, hidden, count = f"blk.{layer}.", shape.hidden, experts.count
    for part in ["post_ffw_norm_1", "pre_ffw_norm_2", "post_ffw_norm_2"]:
        made.vector(name + part, hidden)
    made.matrix(name + "ffn_gate_inp", hidden, count, "F32")
    made.vector(name + "ffn_gate_inp", hidden, "scale")
    made.matrix(name + "ffn_gate_up_exps", hidden, 2 * experts.feed_forward, made.main, count)
    made.matrix(name + "ffn_down_exps", experts.feed_forward, hidden, made.better(layer, shape.layers), count)
    made.vector(name + "ffn_down_exps", count, "scale")


def metadata(shape: Shape, kind: str) -> Metadata:
    """The hyper-parameters and the tokenizer, with the keys and types of published files."""
    entries, own = Metadata(), f"{shape.architecture}."
    entries.start(shape.architecture, shape.name, kind)
    layers = range(shape.layers)
    for key, value in [
        ("context_length", shape.context),
        ("embedding_length", shape.hidden),
        ("block_count", shape.layers),
        ("attention.head_count", shape.heads),
        ("attention.key_length", GLOBAL_HEAD_DIM),
        ("attention.value_length", GLOBAL_HEAD_DIM),
        ("attention.key_length_swa", HEAD_DIM),
        ("attention.value_length_swa", HEAD_DIM),
        ("attention.sliding_window", shape.window),
        ("attention.shared_kv_layers", shape.shared),
        ("embedding_length_per_layer_input", PER_LAYER if shape.has_inputs else 0),
        ("rope.dimension_count", GLOBAL_HEAD_DIM),
        ("rope.dimension_count_swa", HEAD_DIM),
    ]:
        entries.number(own + key, "u32", value)
    for key, of in [("attention.head_count_kv", shape.kv_heads_of), ("feed_forward_length", shape.feed_forward_of)]:
        values = [of(layer) for layer in layers]
        # Files have an array only where layers differ.
        if len(set(values)) == 1:
            entries.number(own + key, "u32", values[0])
        else:
            entries.numbers(own + key, "i32", values)
    entries.numbers(own + "attention.sliding_window_pattern", "bool", [shape.is_local(layer) for layer in layers])
    for key, value in [("attention.layer_norm_rms_epsilon", NORM_EPSILON), ("rope.freq_base", 1e6)]:
        entries.number(own + key, "f32", value)
    entries.number(own + "rope.freq_base_swa", "f32", 1e4)
    if shape.backbone is not None:
        entries.number(own + "embedding_length_out", "u32", shape.backbone)
        entries.number(own + "nextn_predict_layers", "u32", shape.layers)
    else:
        entries.number(own + "final_logit_softcapping", "f32", 30.0)
    if shape.experts is not None:
        entries.number(own + "expert_count", "u32", shape.experts.count)
        entries.number(own + "expert_used_count", "u32", shape.experts.used)
        entries.number(own + "expert_feed_forward_length", "u32", shape.experts.feed_forward)
    vocabulary.write_gemma4(entries)
    return entries
