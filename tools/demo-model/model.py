"""Gemma 3 text model in PyTorch, small enough to be read in one sitting.

The module names are those of the Hugging Face checkpoint, so that `state_dict()` is the
checkpoint up to the prefix `model.`. Shapes: B rows of a batch, T positions, C hidden size,
H query heads, K key/value heads, D head dimension.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

BOS = 2


@dataclass(frozen=True)
class ModelConfig:
    """Shape of a model; everything else about Gemma 3 is fixed."""

    vocabulary: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    window: int = 256
    context: int = 1024
    pattern: int = 6
    local_theta: float = 1e4
    global_theta: float = 1e6
    epsilon: float = 1e-6

    def is_global(self, layer: int) -> bool:
        """Whether a layer (counted from 0) attends to the whole past: every sixth does."""
        return (layer + 1) % self.pattern == 0

    def parameters(self) -> int:
        """Number of weights, the tied embedding counted once."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        norms = 4 * self.hidden + 2 * self.head_dim
        layer = attention + 3 * self.hidden * self.ffn + norms
        return self.vocabulary * self.hidden + self.layers * layer + self.hidden

    def to_json(self) -> dict[str, Any]:
        """The fields as plain data."""
        return asdict(self)


class Norm(nn.Module):
    """RMSNorm in float32 with the multiplier stored as 1 + weight."""

    def __init__(self, size: int, epsilon: float, multiplier: float = 1.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((size,), multiplier - 1.0))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.epsilon)
        return (wide * (1.0 + self.weight.float())).to(x.dtype)


def rotation_table(length: int, head_dim: int, theta: float) -> Tensor:
    """Cosines and sines of the rotary embedding, [2, length, head_dim] (halves repeated)."""
    frequency = theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    angle = torch.outer(torch.arange(length, dtype=torch.float64), frequency)
    angle = torch.cat((angle, angle), dim=-1)
    return torch.stack((angle.cos(), angle.sin())).float()


def rotate(x: Tensor, table: Tensor) -> Tensor:
    """Applies rotary positions to [B, heads, T, D]; element j is paired with j + D/2."""
    first, second = x.float().chunk(2, dim=-1)
    turned = torch.cat((-second, first), dim=-1)
    return (x.float() * table[0] + turned * table[1]).to(x.dtype)


class Attention(nn.Module):
    """Grouped-query attention with RMS-normalised queries and keys."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        width, kv_width = config.heads * config.head_dim, config.kv_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden, width, bias=False)
        self.k_proj = nn.Linear(config.hidden, kv_width, bias=False)
        self.v_proj = nn.Linear(config.hidden, kv_width, bias=False)
        self.o_proj = nn.Linear(width, config.hidden, bias=False)
        self.q_norm = Norm(config.head_dim, config.epsilon)
        self.k_norm = Norm(config.head_dim, config.epsilon)

    def forward(self, x: Tensor, table: Tensor, mask: Any) -> Tensor:
        rows, length, _ = x.shape

        def split(y: Tensor) -> Tensor:
            return y.view(rows, length, -1, self.config.head_dim).transpose(1, 2)

        q = rotate(self.q_norm(split(self.q_proj(x))), table)
        k = rotate(self.k_norm(split(self.k_proj(x))), table)
        v = split(self.v_proj(x))
        if isinstance(mask, Tensor):
            group = self.config.heads // self.config.kv_heads
            k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        else:
            out = flex_attention(q, k, v, block_mask=mask, enable_gqa=True)
        return self.o_proj(out.transpose(1, 2).reshape(rows, length, -1))


class FeedForward(nn.Module):
    """Gated feed-forward network with tanh-approximated GELU."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden, config.ffn, bias=False)
        self.up_proj = nn.Linear(config.hidden, config.ffn, bias=False)
        self.down_proj = nn.Linear(config.ffn, config.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.gelu(self.gate_proj(x), approximate="tanh") * self.up_proj(x))


class Layer(nn.Module):
    """One block: norm, branch, norm, add; for attention and for the feed-forward network.

    The norms after the branches start small, so that a fresh residual stream does not grow
    with depth.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        size, epsilon = config.hidden, config.epsilon
        start = 1.0 / math.sqrt(2 * config.layers)
        self.self_attn = Attention(config)
        self.mlp = FeedForward(config)
        self.input_layernorm = Norm(size, epsilon)
        self.post_attention_layernorm = Norm(size, epsilon, start)
        self.pre_feedforward_layernorm = Norm(size, epsilon)
        self.post_feedforward_layernorm = Norm(size, epsilon, start)

    def forward(self, h: Tensor, table: Tensor, mask: Any, dropout: float) -> Tensor:
        branch = self.self_attn(self.input_layernorm(h), table, mask)
        branch = self.post_attention_layernorm(branch)
        h = h + F.dropout(branch, dropout, self.training)
        branch = self.mlp(self.pre_feedforward_layernorm(h))
        branch = self.post_feedforward_layernorm(branch)
        return h + F.dropout(branch, dropout, self.training)


class Gemma3(nn.Module):
    """The model; `forward` gives final hidden states, `logits` multiplies them with the embedding."""

    local_table: Tensor
    global_table: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.dropout = 0.0
        self.embed_tokens = nn.Embedding(config.vocabulary, config.hidden)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.norm = Norm(config.hidden, config.epsilon)
        for name in ("local", "global"):
            theta = getattr(config, f"{name}_theta")
            table = rotation_table(config.context, config.head_dim, theta)
            self.register_buffer(f"{name}_table", table, persistent=False)
        nn.init.normal_(self.embed_tokens.weight, std=0.02)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.5 / math.sqrt(module.in_features))

    def forward(self, ids: Tensor, masks: tuple[Any, Any]) -> Tensor:
        """ids [B, T] and (local mask, global mask) of `make_masks` -> hidden [B, T, C]."""
        length = ids.shape[1]
        tables = (self.local_table[:, :length], self.global_table[:, :length])
        h = self.embed_tokens(ids) * math.sqrt(self.config.hidden)
        for index, layer in enumerate(self.layers):
            kind = int(self.config.is_global(index))
            h = layer(h, tables[kind], masks[kind], self.dropout)
        return self.norm(h)

    def logits(self, hidden: Tensor) -> Tensor:
        """Final hidden states [..., C] -> logits [..., vocabulary]."""
        return F.linear(hidden, self.embed_tokens.weight)

    def compile_layers(self) -> None:
        """Compiles every layer; layers of one kind share the compiled code."""
        for layer in self.layers:
            layer.compile()


def dense_masks(ids: Tensor, window: int) -> tuple[Tensor, Tensor]:
    """(local, global) boolean masks [B, 1, T, T]: causal, inside one document, inside the window.

    A document begins at each `<bos>`.
    """
    document = (ids == BOS).cumsum(1)
    position = torch.arange(ids.shape[1], device=ids.device)
    distance = position[:, None] - position[None, :]
    same = document[:, :, None] == document[:, None, :]
    everything = (same & (distance >= 0))[:, None]
    return everything & (distance < window), everything


def flex_masks(ids: Tensor, window: int) -> tuple[Any, Any]:
    """The same two masks as block masks for flex attention."""
    document = (ids == BOS).cumsum(1)
    rows, length = ids.shape

    def everything(b: Tensor, _h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (q >= k) & (document[b, q] == document[b, k])

    def local(b: Tensor, _h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (q >= k) & (q - k < window) & (document[b, q] == document[b, k])

    build = compiled_block_mask()
    device = str(ids.device)
    return (
        build(local, rows, None, length, length, device=device),
        build(everything, rows, None, length, length, device=device),
    )


@cache
def compiled_block_mask() -> Any:
    """`create_block_mask`, compiled: uncompiled it would take a tenth of every step."""
    return torch.compile(create_block_mask, dynamic=False)


def make_masks(ids: Tensor, config: ModelConfig, flex: bool) -> tuple[Any, Any]:
    """Masks for one batch, for flex attention or for `scaled_dot_product_attention`."""
    return (flex_masks if flex else dense_masks)(ids, config.window)


def flex_works(device: torch.device) -> bool:
    """Tries compiled flex attention forwards and backwards on a tiny layer.

    Shapes are compiled as they are: a model and its draft share code and must not turn each
    other's sizes into variables.
    """
    torch._dynamo.config.automatic_dynamic_shapes = False
    torch._dynamo.config.recompile_limit = 64
    if device.type != "cuda":
        return False
    try:
        config = ModelConfig(128, 64, 1, 2, 1, 64, 64, context=256)
        layer = Gemma3(config).to(device)
        layer.compile_layers()
        ids = torch.full((2, 256), BOS, device=device)
        with torch.autocast("cuda", torch.bfloat16):
            layer(ids, flex_masks(ids, config.window)).float().sum().backward()
        torch.cuda.synchronize()
    except Exception as error:  # any failure of the compiler only costs speed
        print(f"flex attention is not usable here, using dense masks: {error!r}"[:300])
        return False
    return True
