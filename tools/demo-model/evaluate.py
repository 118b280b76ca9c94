"""Measures: bits per character, acceptance of the draft, sampled text."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from model import BOS, Gemma3, dense_masks, make_masks

EOS, END_OF_TURN = 1, 106


@dataclass(frozen=True)
class Sampling:
    """How to draw the next token; temperature 0 is greedy."""

    temperature: float = 0.7
    top_k: int = 40
    top_p: float = 0.95


def autocast(device: torch.device) -> torch.autocast:
    """bf16 on a GPU, float32 on a CPU."""
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")


@torch.no_grad()
def bits_per_character(model: Gemma3, rows: Tensor, characters: int, flex: bool, batch_rows: int) -> float:
    """Code length of the packed text in bits, `<bos>` and `<eos>` not counted, per character."""
    model.eval()
    total = 0.0
    for batch in rows.split(batch_rows):
        ids, targets = batch[:, :-1].contiguous(), batch[:, 1:]
        targets = targets.masked_fill((targets == BOS) | (targets == EOS), -100)
        with autocast(ids.device):
            logits = model.logits(model(ids, make_masks(ids, model.config, flex)))
        loss = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="sum")
        total += loss.item()
    model.train()
    return total / math.log(2) / characters


@torch.no_grad()
def acceptance(main: Gemma3, draft: Gemma3, rows: Tensor, drafted: int = 4) -> dict[str, float]:
    """How often the draft would be right on given text.

    `greedy`: share of positions where both prefer the same token. `sampled`: mean overlap of the
    two distributions (the acceptance rate of speculative sampling at temperature 1).
    `tokens_per_verify`: mean tokens gained by one verification of `drafted` greedy guesses, over the
    places where that many tokens of one document follow.
    """
    agree: list[Tensor] = []
    counted: list[Tensor] = []
    overlap = positions = 0.0
    main.eval()
    draft.eval()
    for batch in rows.split(32):
        ids = batch[:, :-1].contiguous()
        real = batch[:, 1:] != BOS
        with autocast(ids.device):
            masks = dense_masks(ids, main.config.window)
            first = main.logits(main(ids, masks)).float()
            masks = dense_masks(ids, draft.config.window)
            second = draft.logits(draft(ids, masks)).float()
        agree.append((first.argmax(-1) == second.argmax(-1)) & real)
        counted.append(real)
        shared = torch.minimum(first.softmax(-1), second.softmax(-1)).sum(-1)
        overlap += float(shared[real].sum())
        positions += float(real.sum())
    same = torch.cat(agree).float()
    whole = torch.cat(counted).unfold(1, drafted, 1).all(-1)
    runs = same.unfold(1, drafted, 1).cumprod(-1).sum(-1)[whole]
    return {
        "greedy": float(same.sum()) / positions,
        "sampled": overlap / positions,
        "tokens_per_verify": float(runs.mean()) + 1.0,
    }


def draw_token(logits: Tensor, sampling: Sampling, generator: torch.Generator) -> Tensor:
    """One token per row from [rows, vocabulary]."""
    if sampling.temperature == 0:
        return logits.argmax(-1)
    values, indices = (logits / sampling.temperature).topk(sampling.top_k)
    p = values.softmax(-1)
    p = p.masked_fill(p.cumsum(-1) - p > sampling.top_p, 0.0)
    return indices.gather(-1, torch.multinomial(p, 1, generator=generator)).squeeze(-1)


@torch.no_grad()
def generate(
    model: Gemma3, prompts: list[list[int]], limit: int, sampling: Sampling, seed: int
) -> list[list[int]]:
    """Continues every prompt by at most `limit` tokens; ends at `<eos>` or `<end_of_turn>`.

    Prompts too long for the context lose their beginning. Every step runs the whole text again:
    slow, simple, and independent of a cache's errors.
    """
    model.eval()
    room = model.config.context - limit
    prompts = [p if len(p) <= room else [BOS, *p[1 - room :]] for p in prompts]
    device = next(model.parameters()).device
    generator = torch.Generator(device).manual_seed(seed)
    lengths = torch.tensor([len(p) for p in prompts], device=device)
    width = min(int(lengths.max()) + limit, model.config.context)
    ids = torch.zeros(len(prompts), width, dtype=torch.long, device=device)
    for row, prompt in enumerate(prompts):
        ids[row, : len(prompt)] = torch.tensor(prompt)
    ended = torch.zeros(len(prompts), dtype=torch.bool, device=device)
    rows = torch.arange(len(prompts), device=device)
    for _ in range(limit):
        used = int(lengths.max())
        if used >= width or bool(ended.all()):
            break
        view = ids[:, :used]
        with autocast(device):
            hidden = model(view, dense_masks(view, model.config.window))
            logits = model.logits(hidden[rows, lengths - 1]).float()
        token = draw_token(logits, sampling, generator)
        ended |= (token == EOS) | (token == END_OF_TURN)
        ids[rows[~ended], lengths[~ended]] = token[~ended]
        lengths = lengths + (~ended).long()
    model.train()
    return [ids[row, len(prompt) : int(lengths[row])].tolist() for row, prompt in enumerate(prompts)]
