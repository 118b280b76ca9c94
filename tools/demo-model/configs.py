"""Named shapes of the main model and of its draft.

All main shapes hold about 13 million weights, which in Q8_0 (8.5 bits a weight) leaves room for the
draft inside 16 MB. Row lengths are multiples of 256 where the name does not say otherwise, so that
the K-quant formats apply.
"""

from __future__ import annotations

from model import ModelConfig


def shape(vocabulary: int, hidden: int, layers: int, heads: int, kv_heads: int, ffn: int) -> ModelConfig:
    """A shape with head dimension 64 and the default window and context."""
    return ModelConfig(vocabulary, hidden, layers, heads, kv_heads, 64, ffn)


MAIN: dict[str, ModelConfig] = {
    "v4096-h256-l12": shape(4096, 256, 12, 4, 2, 1024),
    "v4096-h256-l18": shape(4096, 256, 18, 4, 2, 512),
    "v4096-h512-l6": shape(4096, 512, 6, 8, 2, 768),
    "v4096-h384-l7": shape(4096, 384, 7, 6, 2, 1024),
    "v2048-h256-l12": shape(2048, 256, 12, 4, 2, 1024),
    "v8192-h256-l12": shape(8192, 256, 12, 4, 2, 768),
    "v8192-h512-l6": shape(8192, 512, 6, 8, 2, 512),
}

#: (hidden, layers, heads, key/value heads, ffn); the vocabulary is the main model's.
DRAFT: dict[str, tuple[int, int, int, int, int]] = {
    "h128-l4": (128, 4, 2, 1, 384),
    "h256-l1": (256, 1, 4, 1, 512),
}


def draft_config(name: str, vocabulary: int) -> ModelConfig:
    """A draft's shape for the main model's vocabulary."""
    return shape(vocabulary, *DRAFT[name])


def tiny_config(vocabulary: int) -> ModelConfig:
    """A shape for trying the chain on a CPU."""
    return ModelConfig(vocabulary, 64, 6, 2, 1, 32, 128, window=32, context=128)
