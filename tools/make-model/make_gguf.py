#!/usr/bin/env python3
"""Writes a GGUF file with random weights in the true shapes of a published Gemma.

    make_gguf.py --model 1b --type Q4_0 --out gemma-3-1b-random-Q4_0.gguf
    make_gguf.py --list

For measurements of speed and memory: names, shapes, metadata and formats are those of published files, so that trine and
llama.cpp load it; the text that it writes means nothing. The vocabulary has Gemma's size, its special ids and its
bytes, and made-up pieces.

Types are mixtures as llama-quantize makes them. Q4_K_M has Q6_K for the values and for the last matrix of the
feed-forward in half of the layers. The embedding table is Q6_K where others have 4 bits (`--embedding` says otherwise).
Rows that are no whole number of blocks get the format that llama-quantize falls back to. Vectors are F32; Gemma 3n's
matrices of AltUp, LAuReL and the projection of per-layer inputs stay F16 or F32.

Hidden states stay finite at any depth: all matrices have zero mean and the same deviation, norms have factors near 1,
and the norm after each branch bounds what a layer adds.

Each format has one pool of random blocks. A tensor is written as the pool over and over, from a place of its own. The
pool has a prime number of blocks, so that no two rows of a matrix are the same. The bytes depend on the options only.
The memory used is that of the pools, a few MB each. Needs Python 3.9 or later and numpy.
"""

from __future__ import annotations

import argparse
import math
import os
import struct
import zlib
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np

#: The standard deviation of every matrix.
DEVIATION = 0.02

#: Bytes of a pool, roughly.
POOL_BYTES = 4 << 20

#: Alignment of tensors in the file.
ALIGNMENT = 32

VOCABULARY = 262_144
NORM_EPSILON = 1e-6


@dataclass(frozen=True)
class Format:
    """A format of tensors: its id in the file, elements and bytes of a block."""

    id: int
    elements: int
    bytes: int


FORMATS = {
    "F32": Format(0, 1, 4),
    "F16": Format(1, 1, 2),
    "Q4_0": Format(2, 32, 18),
    "Q5_0": Format(6, 32, 22),
    "Q8_0": Format(8, 32, 34),
    "Q4_K": Format(12, 256, 144),
    "Q6_K": Format(14, 256, 210),
}

#: What a format becomes in rows that are no whole number of its blocks.
FALLBACKS = {"Q4_K": "Q5_0", "Q6_K": "Q8_0"}

#: llama.cpp's numbers for the types of files.
FILE_TYPES = {"F16": 1, "Q4_0": 2, "Q8_0": 7, "Q4_K": 14, "Q4_K_M": 15}


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


@dataclass(frozen=True)
class Tensor:
    """A tensor of the file: dimensions with the row length first."""

    name: str
    dimensions: tuple[int, ...]
    format: str

    @property
    def blocks(self) -> int:
        return math.prod(self.dimensions) // FORMATS[self.format].elements

    @property
    def bytes(self) -> int:
        return self.blocks * FORMATS[self.format].bytes


class Plan:
    """The tensors of a file."""

    def __init__(self, shape: Shape, kind: str, embedding: str) -> None:
        self.shape, self.kind, self.tensors = shape, kind, []
        self.main = "Q4_K" if kind == "Q4_K_M" else kind
        self.matrix("token_embd", shape.hidden, VOCABULARY, embedding)
        self.vector("output_norm", shape.hidden)
        if shape.is_3n:
            self.outside_layers_3n()
        for layer in range(shape.layers):
            self.layer(layer)

    def matrix(self, part: str, columns: int, rows: int, wanted: str, *more: int) -> None:
        fits = columns % FORMATS[wanted].elements == 0
        self.tensors.append(Tensor(f"{part}.weight", (columns, rows, *more), wanted if fits else FALLBACKS[wanted]))

    def vector(self, part: str, columns: int) -> None:
        self.tensors.append(Tensor(f"{part}.weight", (columns,), "F32"))

    def outside_layers_3n(self) -> None:
        hidden, width = self.shape.hidden, PER_LAYER * self.shape.layers
        self.matrix("per_layer_token_embd", width, VOCABULARY, self.main)
        self.matrix("per_layer_model_proj", hidden, width, "F16")
        self.vector("per_layer_proj_norm", PER_LAYER)
        for part in ["altup_proj", "altup_unembd_proj"]:
            self.matrix(part, hidden, hidden, "F16", STREAMS - 1)

    def more_bits(self, layer: int) -> bool:
        """Whether Q4_K_M gives some matrices of the layer 6 bits: the first and last eighth, and every third."""
        eighth = self.shape.layers // 8
        is_end = layer < eighth or layer >= 7 * self.shape.layers // 8
        return self.kind == "Q4_K_M" and (is_end or (layer - eighth) % 3 == 2)

    def layer(self, layer: int) -> None:
        shape, name, main = self.shape, f"blk.{layer}.", self.main
        hidden, query, kv = shape.hidden, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        better = "Q6_K" if self.more_bits(layer) else main
        for part in ["attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"]:
            self.vector(name + part, hidden)
        for part in ["attn_q_norm", "attn_k_norm"]:
            self.vector(name + part, shape.head_dim)
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
            self.matrix(name + part, columns, rows, wanted)
        if shape.is_3n:
            self.layer_3n(name)

    def layer_3n(self, name: str) -> None:
        hidden, main = self.shape.hidden, self.main
        for part in ["altup_correct_scale", "altup_router_norm", "laurel_post_norm", "post_norm"]:
            self.vector(name + part, hidden)
        for part, columns, rows, wanted in [
            ("altup_router", hidden, STREAMS, "F32"),
            ("altup_predict_coef", STREAMS, STREAMS * STREAMS, "F32"),
            ("altup_correct_coef", STREAMS, STREAMS, "F32"),
            ("laurel_l", hidden, RANK, "F16"),
            ("laurel_r", RANK, hidden, "F16"),
            ("inp_gate", hidden, PER_LAYER, main),
            ("proj", PER_LAYER, hidden, main),
        ]:
            self.matrix(name + part, columns, rows, wanted)


class Metadata:
    """Entries of the file's head, in the order in which they are set."""

    TYPES = {"u32": (4, "<I"), "i32": (5, "<i"), "f32": (6, "<f"), "bool": (7, "<?")}
    STRING, ARRAY = 8, 9

    def __init__(self) -> None:
        self.count, self.raw = 0, bytearray()

    @staticmethod
    def text(value: str) -> bytes:
        raw = value.encode()
        return struct.pack("<Q", len(raw)) + raw

    def key(self, key: str, kind: int) -> None:
        self.count += 1
        self.raw += self.text(key) + struct.pack("<I", kind)

    def string(self, key: str, value: str) -> None:
        self.key(key, self.STRING)
        self.raw += self.text(value)

    def number(self, key: str, kind: str, value: float) -> None:
        number, layout = self.TYPES[kind]
        self.key(key, number)
        self.raw += struct.pack(layout, value)

    def numbers(self, key: str, kind: str, values: list) -> None:
        number, layout = self.TYPES[kind]
        self.key(key, self.ARRAY)
        self.raw += struct.pack("<IQ", number, len(values))
        self.raw += struct.pack(f"<{len(values)}{layout[1]}", *values)

    def strings(self, key: str, values: list[str]) -> None:
        self.key(key, self.ARRAY)
        self.raw += struct.pack("<IQ", self.STRING, len(values))
        self.raw += b"".join(map(self.text, values))


def metadata(shape: Shape, kind: str) -> Metadata:
    """The hyper-parameters and the tokenizer, with the keys and types of published files."""
    entries, own = Metadata(), f"{shape.architecture}."
    entries.string("general.architecture", shape.architecture)
    entries.string("general.type", "model")
    entries.string("general.name", f"{shape.name} with random weights, {kind}")
    for key, value in [("quantization_version", 2), ("file_type", FILE_TYPES[kind])]:
        entries.number(f"general.{key}", "u32", value)
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
    tokenizer(entries)
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


NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6

TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<start_of_turn>"
    "{{ 'model' if message['role'] == 'assistant' else message['role'] }}\n"
    "{{ message['content'] | trim }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)


def pieces() -> tuple[list[str], list[int]]:
    """Pieces and their types. Special ids and bytes are where Gemma has them; the others are made up: single letters,
    words of one to three letters, then numbered ones."""
    first = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "[multimodal]"]
    first += [f"<unused{index}>" for index in range(99)] + ["<start_of_turn>", "<end_of_turn>"]
    runs = ["\n" * length for length in range(1, 32)] + ["\u2581" * length for length in range(2, 32)]
    fill = [f"<tag{index}>" for index in range(238 - len(first) - len(runs))]
    tokens = first + runs + fill + [f"<0x{byte:02X}>" for byte in range(256)]
    kinds = [CONTROL] * len(first) + [USER_DEFINED] * (len(runs) + len(fill)) + [BYTE] * 256
    kinds[tokens.index("<unk>")] = UNKNOWN
    letters = "etaoinshrdlcumwfgypbvkjxqz"
    words = [a + b for a in letters for b in letters]
    words += [a + b + c for a in letters for b in letters for c in letters]
    ordinary = ["\u2581", *(chr(code) for code in range(33, 127))]
    ordinary += [f"\u2581{word}" for word in [*letters, *words]] + words
    ordinary += [f"\u2581piece{index}" for index in range(VOCABULARY - len(tokens) - len(ordinary))]
    tokens += ordinary
    kinds += [NORMAL] * len(ordinary)
    for index, token in [(255_999, "<start_of_image>"), (256_000, "<end_of_image>")]:
        tokens[index], kinds[index] = token, CONTROL
    return tokens, kinds


def tokenizer(entries: Metadata) -> None:
    own = "tokenizer.ggml."
    tokens, kinds = pieces()
    scores = [-float(index) if kind == NORMAL else 0.0 for index, kind in enumerate(kinds)]
    entries.string(own + "model", "llama")
    entries.string(own + "pre", "default")
    entries.strings(own + "tokens", tokens)
    entries.numbers(own + "scores", "f32", scores)
    entries.numbers(own + "token_type", "i32", kinds)
    for key, value in [("bos", 2), ("eos", 1), ("eot", 106), ("unknown", 3), ("padding", 0)]:
        entries.number(f"{own}{key}_token_id", "u32", value)
    for key, value in [("add_bos_token", True), ("add_eos_token", False), ("add_space_prefix", False)]:
        entries.number(own + key, "bool", value)
    entries.string("tokenizer.chat_template", TEMPLATE)


def prime_from(number: int) -> int:
    """The first prime from a number on."""
    while any(number % divisor == 0 for divisor in range(2, math.isqrt(number) + 1)):
        number += 1
    return number


def halves(random: np.random.Generator, count: int, magnitude: float) -> np.ndarray:
    """Factors of blocks, of both signs so that codes with a mean give values without one: (count, 2) bytes."""
    values = magnitude * random.uniform(0.7, 1.3, count) * random.choice([-1.0, 1.0], count)
    return values.astype("<f2").view(np.uint8).reshape(count, 2)


def deviation_of(codes: range) -> float:
    """The root mean square of codes that are equally likely."""
    return math.sqrt(sum(code * code for code in codes) / len(codes))


def pool(format_name: str, seed: int) -> np.ndarray:
    """Random blocks of a matrix: (blocks, bytes of a block)."""
    form = FORMATS[format_name]
    count = prime_from(POOL_BYTES // form.bytes)
    random = np.random.default_rng([seed, form.id])
    if form.elements == 1:
        values = (DEVIATION * random.standard_normal(count)).astype("<f4" if format_name == "F32" else "<f2")
        return values.view(np.uint8).reshape(count, form.bytes)
    blocks = random.integers(0, 256, (count, form.bytes), dtype=np.uint8)
    if format_name in ("Q4_0", "Q5_0", "Q8_0"):
        codes = {"Q4_0": range(-8, 8), "Q5_0": range(-16, 16), "Q8_0": range(-127, 128)}[format_name]
        blocks[:, :2] = halves(random, count, DEVIATION / deviation_of(codes))
        if format_name == "Q8_0":
            # Real files have no -128.
            blocks[:, 2:][blocks[:, 2:] == 0x80] = 0x81
    elif format_name == "Q6_K":
        # Per 16 codes of -32..31 a scale of 64..127, then one factor.
        blocks[:, 192:208] = random.integers(64, 128, (count, 16), dtype=np.uint8)
        blocks[:, 208:] = halves(random, count, DEVIATION / (deviation_of(range(-32, 32)) * 96))
    else:
        blocks[:, :16] = q4_k_factors(random, count)
    return blocks


def q4_k_factors(random: np.random.Generator, count: int) -> np.ndarray:
    """Factors and scales of Q4_K blocks whose values are factor * scale * (code - 7.5): (count, 16) bytes."""
    factors = halves(random, count, DEVIATION / (deviation_of(range(-15, 16, 2)) / 2 * 48))
    least = (factors.view("<f2").astype("f4") * 7.5).astype("<f2").view(np.uint8).reshape(count, 2)
    # Eight scales of 6 bits, and as many minima, which are the same. The upper two bits of the last four are in the
    # bytes of the first four.
    scales = random.integers(32, 64, (count, 8), dtype=np.uint8)
    low, high = scales[:, :4], scales[:, 4:]
    joined = low | (high >> 4 << 6)
    return np.hstack([factors, least, joined, joined, (high & 15) | (high << 4)])


def write_blocks(file: BinaryIO, tensor: Tensor, blocks: np.ndarray) -> None:
    """Writes a matrix: the pool over and over from a place that its name decides."""
    start, left = zlib.crc32(tensor.name.encode()) % len(blocks), tensor.blocks
    while left > 0:
        part = blocks[start : start + left]
        file.write(part.data)
        left -= len(part)
        start = 0


def write(path: str, plan: Plan, seed: int) -> int:
    """Writes the file. Returns its size."""
    entries = metadata(plan.shape, plan.kind)
    head = bytearray(struct.pack("<4sIQQ", b"GGUF", 3, len(plan.tensors), entries.count) + entries.raw)
    offset = 0
    for tensor in plan.tensors:
        head += Metadata.text(tensor.name) + struct.pack("<I", len(tensor.dimensions))
        head += struct.pack(f"<{len(tensor.dimensions)}Q", *tensor.dimensions)
        head += struct.pack("<IQ", FORMATS[tensor.format].id, offset)
        offset += tensor.bytes + -tensor.bytes % ALIGNMENT
    pools: dict[str, np.ndarray] = {}
    with open(path, "wb") as file:
        file.write(head + bytes(-len(head) % ALIGNMENT))
        for tensor in plan.tensors:
            if len(tensor.dimensions) == 1:
                random = np.random.default_rng([seed, zlib.crc32(tensor.name.encode())])
                file.write(random.uniform(0.9, 1.1, tensor.blocks).astype("<f4").data)
            else:
                if tensor.format not in pools:
                    pools[tensor.format] = pool(tensor.format, seed)
                write_blocks(file, tensor, pools[tensor.format])
            file.write(bytes(-tensor.bytes % ALIGNMENT))
        return file.tell()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS)
    parser.add_argument("--type", choices=FILE_TYPES)
    parser.add_argument("--out", help="the file that is written")
    parser.add_argument("--embedding", choices=["F16", "Q4_0", "Q8_0", "Q6_K"], help="format of the embedding table")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--list", action="store_true", help="print the sizes of all models and types, and end")
    options = parser.parse_args()
    if not options.list and None in (options.model, options.type, options.out):
        parser.error("--model, --type and --out are needed")
    return options


def embedding_of(kind: str) -> str:
    """The format of the embedding table in a file of a type."""
    return kind if kind in ("F16", "Q8_0") else "Q6_K"


def main() -> None:
    options = arguments()
    if options.list:
        for name, shape in MODELS.items():
            sizes = (sum(t.bytes for t in Plan(shape, kind, embedding_of(kind)).tensors) for kind in FILE_TYPES)
            print(f"{name:5}", "  ".join(f"{kind} {size / 1e9:6.2f} GB" for kind, size in zip(FILE_TYPES, sizes)))
        return
    embedding = options.embedding or embedding_of(options.type)
    plan = Plan(MODELS[options.model], options.type, embedding)
    size = write(options.out, plan, options.seed)
    print(f"{os.path.basename(options.out)}: {size / 1e9:.3f} GB, {len(plan.tensors)} tensors")


if __name__ == "__main__":
    main()
