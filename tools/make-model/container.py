"""The container of GGUF files: formats, tensors, metadata, and blocks of random weights."""

from __future__ import annotations

import math
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
class Tensor:
    """A tensor of the file: dimensions with the row length first. Without values of its own it is random."""

    name: str
    dimensions: tuple[int, ...]
    format: str
    values: tuple[float, ...] | None = None

    @property
    def blocks(self) -> int:
        return math.prod(self.dimensions) // FORMATS[self.format].elements

    @property
    def bytes(self) -> int:
        return self.blocks * FORMATS[self.format].bytes


class Tensors:
    """The tensors of a file of one type, in their order."""

    def __init__(self, kind: str) -> None:
        self.kind, self.all = kind, []
        self.main = "Q4_K" if kind == "Q4_K_M" else kind

    def matrix(self, part: str, columns: int, rows: int, wanted: str, *more: int) -> None:
        fits = columns % FORMATS[wanted].elements == 0
        self.all.append(Tensor(f"{part}.weight", (columns, rows, *more), wanted if fits else FALLBACKS[wanted]))

    def vector(self, part: str, columns: int, suffix: str = "weight", value: float | None = None) -> None:
        values = None if value is None else (value,) * columns
        self.all.append(Tensor(f"{part}.{suffix}", (columns,), "F32", values))

    def more_bits(self, layer: int, layers: int) -> bool:
        """Whether Q4_K_M gives some matrices of the layer 6 bits: the first and last eighth, and every third."""
        eighth = layers // 8
        is_end = layer < eighth or layer >= 7 * layers // 8
        return self.kind == "Q4_K_M" and (is_end or (layer - eighth) % 3 == 2)

    def better(self, layer: int, layers: int) -> str:
        """The format of values and of the feed-forward's last matrix."""
        return "Q6_K" if self.more_bits(layer, layers) else self.main

    @property
    def bytes(self) -> int:
        return sum(tensor.bytes for tensor in self.all)


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

    def start(self, architecture: str, name: str, kind: str) -> None:
        """Sets what every file begins with."""
        self.string("general.architecture", architecture)
        self.string("general.type", "model")
        self.string("general.name", f"{name} with random weights, {kind}")
        for key, value in [("quantization_version", 2), ("file_type", FILE_TYPES[kind])]:
            self.number(f"general.{key}", "u32", value)

    def strings(self, key: str, values: list[str]) -> None:
        self.key(key, self.ARRAY)
        self.raw += struct.pack("<IQ", self.STRING, len(values))
        self.raw += b"".join(map(self.text, values))


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


def write(path: str, tensors: Tensors, entries: Metadata, seed: int) -> int:
    """Writes the file. Returns its size."""
    head = bytearray(struct.pack("<4sIQQ", b"GGUF", 3, len(tensors.all), entries.count) + entries.raw)
    offset = 0
    for tensor in tensors.all:
        head += Metadata.text(tensor.name) + struct.pack("<I", len(tensor.dimensions))
        head += struct.pack(f"<{len(tensor.dimensions)}Q", *tensor.dimensions)
        head += struct.pack("<IQ", FORMATS[tensor.format].id, offset)
        offset += tensor.bytes + -tensor.bytes % ALIGNMENT
    pools: dict[str, np.ndarray] = {}
    with open(path, "wb") as file:
        file.write(head + bytes(-len(head) % ALIGNMENT))
        for tensor in tensors.all:
            if tensor.values is not None:
                file.write(np.array(tensor.values, "<f4").data)
            elif len(tensor.dimensions) == 1:
                random = np.random.default_rng([seed, zlib.crc32(tensor.name.encode())])
                file.write(random.uniform(0.9, 1.1, tensor.blocks).astype("<f4").data)
            else:
                if tensor.format not in pools:
                    pools[tensor.format] = pool(tensor.format, seed)
                write_blocks(file, tensor, pools[tensor.format])
            file.write(bytes(-tensor.bytes % ALIGNMENT))
        return file.tell()
