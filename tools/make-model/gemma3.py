"""Tensors and hyper-parameters of Gemma 3 and Gemma 3n."""

from __future__ import annotations

import math
from dataclasses import dataclass

import vocabulary
from container import Metadata, Tensors

NORM_EPSILON = 1e-6


@dataclass(frozen=True)
class Shape:
    """The hyper-parameters of a published model."""

    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    feed_forward: int
    window: int
    context: int
    #: The divisor of positions in global layers.
    rope_divisor: float = 1.0
    #: Gemma 3n: the layers at the end without keys and values of their own. None for Gemma 3.
    shared: int | None = None

    @property
    def is_3n(self) -> bool:
        return self.shared is not None

    @property
    def architecture(self) -> str:
        return "gemma3n" if self.is_3n else "gemma3"


MODELS = {
    "270m": Shape("gemma-3-270m", 640, 18, 4, 1, 256, 2048, 512, 32768),
    "1b": Shape("gemma-3-1b", 1152, 26, 4, 1, 256, 6912, 512, 32768),
    "4b": Shape("gemma-3-4b", 2560, 34, 8, 4, 256, 10240, 1024, 131072, 8.0),
    "12b": Shape("gemma-3-12b", 3840, 48, 16, 8, 256, 15360, 1024, 131072, 8.0),
    "27b": Shape("gemma-3-27b", 5376, 62, 32, 16, 128, 21504, 1024, 131072, 8.0),
    "e2b": Shape("gemma-3n-E2B", 2048, 30, 8, 2, 256, 8192, 512, 32768, shared=10),
    "e4b": Shape("gemma-3n-E4B", 2048, 35, 8, 2, 256, 16384, 512, 32768, shared=15),
}

#: Gemma 3n: streams, width of a per-layer input, rank of LAuReL, sparse layers and their cutoff in deviations, distance
#: of global layers.
STREAMS, PER_LAYER, RANK, SPARSE_LAYERS, CUTOFF, PATTERN_3N = 4, 256, 64, 10, 1.6448536, 5


def tensors(shape: Shape, kind: str, embedding: str) -> Tensors:
    """The tensors of a file, with names, shapes and formats of published ones."""
    made = Tensors(kind)
    made.matrix("token_embd", shape.hidden, vocabulary.SIZE, embedding)
    made.vector("output_norm", shape.hidden)
    if shape.is_3n:
        outside_layers_3n(made, shape)
    for layer in range(shape.layers):
        add_layer(made, shape, layer)
    return made


def outside_layers_3n(made: Tensors, shape: Shape) -> None:
    hidden, width = shape.hidden, PER_LAYER * shape.layers
    made.matrix("per_layer_token_embd", width, vocabulary.SIZE, made.main)
    made.matrix("per_layer_model_proj", hidden, width, "F16")
    made.vector("per_layer_proj_norm", PER_LAYER)
    for part in ["altup_proj", "altup_unembd_proj"]:
        made.matrix(part, hidden, hidden, "F16", STREAMS - 1)


def add_layer(made: Tensors, shape: Shape, layer: int) -> None:
    name, main, better = f"blk.{layer}.", made.main, made.better(layer, shape.layers)
    hidden, query, kv = shape.hidden, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    for part in ["attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"]:
        made.vector(name + part, hidden)
    for part in ["attn_q_norm", "attn_k_norm"]:
        made.vector(name + part, shape.head_dim)
    for part, columns, rows, wanted in [
        ("attn_q", hidden, query, main),
        # Published files of Gemma 3n have these also in layers that do not use them.
        ("attn_k", hidden, kv, main),
        ("attn_v", hidden, kv, better),
        ("attn_output", query, hidden, main),
        ("ffn_gate", hidden, shape.feed_forward, main),
        ("ffn_up", hidden, shape.feed_forward, main),
        ("ffn_down", shape.feed_forward, hidden, better),
    ]:
        made.matrix(name + part, columns, rows, wanted)
    if shape.is_3n:
        add_layer_3n(made, shape, name)


def add_layer_3n(made: Tensors, shape: Shape, name: str) -> None:
    hidden, main = shape.hidden, made.main
    for part in ["altup_correct_scale", "altup_router_norm", "laurel_post_norm", "post_norm"]:
        made.vector(name + part, hidden)
    for part, columns, rows, wanted in [
        ("altup_router", hidden, STREAMS, "F32"),
        ("altup_predict_coef", STREAMS, STREAMS * STREAMS, "F32"),
        ("altup_correct_coef", STREAMS, STREAMS, "F32"),
        ("laurel_l", hidden, RANK, "F16"),
        ("laurel_r", RANK, hidden, "F16"),
        ("inp_gate", hidden, PER_LAYER, main),
        ("proj", PER_LAYER, hidden, main),
    ]:
        made.matrix(name + part, columns, rows, wanted)


def metadata(shape: Shape, kind: str) -> Metadata:
    """The hyper-parameters and the tokenizer, with the keys and types of published files."""
    entries, own = Metadata(), f"{shape.architecture}."
    entries.start(shape.architecture, shape.name, kind)
    for key, value in [
        ("context_length", shape.context),
        ("embedding_length", shape.hidden),
        ("block_count", shape.layers),
        ("attention.head_count", shape.heads),
        ("attention.head_count_kv", shape.kv_heads),
        ("attention.key_length", shape.head_dim),
        ("attention.value_length", shape.head_dim),
        ("attention.sliding_window", shape.window),
    ]:
        entries.number(own + key, "u32", value)
    entries.number(own + "attention.layer_norm_rms_epsilon", "f32", NORM_EPSILON)
    entries.number(own + "rope.freq_base", "f32", 1e6)
    if shape.rope_divisor != 1.0:
        entries.string(own + "rope.scaling.type", "linear")
        entries.number(own + "rope.scaling.factor", "f32", shape.rope_divisor)
    if shape.is_3n:
        metadata_3n(entries, shape, own)
    else:
        entries.number(own + "feed_forward_length", "u32", shape.feed_forward)
    vocabulary.write_gemma3(entries)
    return entries


def metadata_3n(entries: Metadata, shape: Shape, own: str) -> None:
    """What only Gemma 3n has. Published files have the number of shared caches as a float, and minus infinity for the
    cutoff of layers without one."""
    layers = range(shape.layers)
    entries.numbers(own + "feed_forward_length", "i32", [shape.feed_forward for _ in layers])
    entries.number(own + "altup.active_idx", "u32", 0)
    entries.number(own + "altup.num_inputs", "u32", STREAMS)
    entries.number(own + "embedding_length_per_layer_input", "u32", PER_LAYER)
    entries.number(own + "attention.shared_kv_layers", "f32", float(shape.shared))
    is_local = [(layer + 1) % PATTERN_3N != 0 for layer in layers]
    entries.numbers(own + "attention.sliding_window_pattern", "bool", is_local)
    cutoffs = [CUTOFF if layer < SPARSE_LAYERS else -math.inf for layer in layers]
    entries.numbers(own + "activation_sparsity_scale", "f32", cutoffs)
    entries.number(own + "final_logit_softcapping", "f32", 30.0)
