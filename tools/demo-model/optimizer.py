"""Optimiser: Muon for the matrices inside the layers, AdamW for the embedding and the norms.

Muon (Jordan et al. 2024) replaces the momentum of each matrix by the nearest orthogonal matrix,
found with a few Newton-Schulz steps. Matrices of one shape are processed as one batch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

from model import Gemma3


def orthogonalise(batch: Tensor, steps: int = 5) -> Tensor:
    """Newton-Schulz iteration in bf16 on [N, rows, columns]: all singular values go to about 1."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = batch.to(torch.bfloat16)
    tall = x.shape[1] > x.shape[2]
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """Momentum with orthogonalised updates and decoupled weight decay."""

    def __init__(self, matrices: Sequence[Tensor], lr: float, momentum: float, decay: float) -> None:
        by_shape: dict[torch.Size, list[Tensor]] = defaultdict(list)
        for matrix in matrices:
            by_shape[matrix.shape].append(matrix)
        groups = [{"params": same} for same in by_shape.values()]
        super().__init__(groups, {"lr": lr, "momentum": momentum, "decay": decay})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Applies one update."""
        for group in self.param_groups:
            params = group["params"]
            gradients = [p.grad for p in params]
            for p in params:
                if "momentum" not in self.state[p]:
                    self.state[p]["momentum"] = torch.zeros_like(p)
            buffers = [self.state[p]["momentum"] for p in params]
            torch._foreach_lerp_(buffers, gradients, 1 - group["momentum"])
            nesterov = torch._foreach_lerp(gradients, buffers, group["momentum"])
            rows, columns = params[0].shape
            scale = max(1.0, rows / columns) ** 0.5
            update = orthogonalise(torch.stack(nesterov)).to(params[0].dtype)
            torch._foreach_mul_(params, 1 - group["lr"] * group["decay"])
            torch._foreach_add_(params, list(update.unbind()), alpha=-group["lr"] * scale)


def make_optimizers(model: Gemma3, lr: float, decay: float) -> list[torch.optim.Optimizer]:
    """Muon at `lr` for the layers' matrices; AdamW at 0.15 `lr` for all the rest."""
    matrices = [p for p in model.layers.parameters() if p.ndim == 2]
    vectors = [p for p in model.parameters() if p.ndim == 1]
    muon = Muon(matrices, lr=lr, momentum=0.95, decay=decay)
    adam = torch.optim.AdamW(
        [
            {"params": [model.embed_tokens.weight], "weight_decay": decay},
            {"params": vectors, "weight_decay": 0.0},
        ],
        lr=0.15 * lr,
        betas=(0.9, 0.95),
        fused=next(model.parameters()).is_cuda,
    )
    for optimizer in (muon, adam):
        for group in optimizer.param_groups:
            group["peak"] = group["lr"]
    return [muon, adam]


def schedule(progress: float, warmup: float = 0.02, decay: float = 0.4) -> float:
    """Warm-up, constant, then linear decay to zero; `progress` runs from 0 to 1."""
    if progress < warmup:
        return progress / warmup
    return min(1.0, max(0.0, (1.0 - progress) / decay))
