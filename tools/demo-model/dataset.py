"""From documents to shuffled, packed batches of token ids on the device."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer

BOS, EOS = 2, 1
CHAT_START = "<start_of_turn>"


@dataclass(frozen=True)
class TokenPart:
    """Tokenised documents end to end; document i is `tokens[starts[i] : starts[i] + lengths[i]]`."""

    tokens: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray


def encode_documents(documents: list[str], tokenizer: Tokenizer) -> TokenPart:
    """Puts `<bos>` before every document and `<eos>` after those that are not chats."""
    pieces: list[np.ndarray] = []
    for first in range(0, len(documents), 2000):
        chunk = documents[first : first + 2000]
        encoded = tokenizer.encode_batch_fast(chunk, add_special_tokens=False)
        for text, result in zip(chunk, encoded, strict=True):
            tail = [] if text.startswith(CHAT_START) else [EOS]
            pieces.append(np.array([BOS, *result.ids, *tail], dtype=np.uint16))
    lengths = np.array([len(p) for p in pieces], dtype=np.int64)
    starts = np.concatenate(([0], np.cumsum(lengths)[:-1])).astype(np.int64)
    return TokenPart(np.concatenate(pieces), starts, lengths)


def encode_parts(parts: dict[str, list[str]], tokenizer_file: Path, cache: Path) -> dict[str, TokenPart]:
    """Tokenises all parts, or takes them from `cache` if the same were tokenised before."""
    key = hashlib.sha256(tokenizer_file.read_bytes())
    for name, documents in parts.items():
        key.update(name.encode())
        for document in documents:
            key.update(document.encode())
    path = cache / f"tokens-{key.hexdigest()[:16]}.npz"
    if path.exists():
        stored = np.load(path)
        names = {name.split(".")[0] for name in stored.files}
        return {
            n: TokenPart(*(stored[f"{n}.{field}"] for field in ("tokens", "starts", "lengths")))
            for n in names
        }
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    result = {name: encode_documents(d, tokenizer) for name, d in parts.items()}
    arrays = {f"{n}.{f}": getattr(p, f) for n, p in result.items() for f in p.__dataclass_fields__}
    cache.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays)
    return result


def epoch_stream(
    parts: dict[str, TokenPart], weights: dict[str, float], draw: np.random.Generator
) -> np.ndarray:
    """One epoch: every document of a part `weight` times (fractions by lot), in random order."""
    chosen: list[np.ndarray] = []
    for name, weight in weights.items():
        part = parts[name]
        count = len(part.lengths)
        times = int(weight) + (draw.random(count) < weight % 1)
        indices = np.repeat(np.arange(count), times)
        chosen += [part.tokens[part.starts[i] : part.starts[i] + part.lengths[i]] for i in indices]
    order = draw.permutation(len(chosen))
    return np.concatenate([chosen[i] for i in order])


class Batches:
    """Endless batches [rows, length + 1] on the device; the next epoch is drawn in the background."""

    def __init__(
        self,
        parts: dict[str, TokenPart],
        weights: dict[str, float],
        rows: int,
        length: int,
        device: torch.device,
        seed: int,
    ) -> None:
        self.parts, self.rows, self.length, self.device = parts, rows, length, device
        self.weights = weights
        self.draw = np.random.default_rng(seed)
        self.pool = ThreadPoolExecutor(1)
        self.iterator = self._iterate()

    def change_weights(self, weights: dict[str, float]) -> None:
        """Goes over to another mixture at once."""
        self.weights = weights
        self.iterator = self._iterate()

    def next(self) -> torch.Tensor:
        """The next batch."""
        return next(self.iterator)

    def _submit(self) -> Future[np.ndarray]:
        return self.pool.submit(epoch_stream, self.parts, self.weights, self.draw)

    def _iterate(self) -> Iterator[torch.Tensor]:
        pending = self._submit()
        while True:
            stream = torch.from_numpy(pending.result().astype(np.int32)).to(self.device)
            pending = self._submit()
            windows = stream.unfold(0, self.length + 1, self.length)
            for first in range(0, len(windows) - self.rows + 1, self.rows):
                yield windows[first : first + self.rows].long()
            if len(windows) < self.rows:
                raise ValueError(f"an epoch has {len(windows)} rows, fewer than one batch of {self.rows}")


def evaluation_rows(part: TokenPart, length: int, device: torch.device, multiple: int = 1) -> torch.Tensor:
    """All documents in order, packed to [rows, length + 1]; the tail is padded with `<bos>`.

    The number of rows is a multiple of `multiple`, so that batches of that size come out even.
    """
    missing = -(len(part.tokens) - 1) % (length * multiple)
    stream = np.concatenate((part.tokens.astype(np.int64), np.full(missing, BOS)))
    return torch.from_numpy(stream).to(device).unfold(0, length + 1, length)
