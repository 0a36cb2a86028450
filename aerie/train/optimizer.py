"""AdamW on the flat weights: clipped by the gradient's norm, not taken where that is not finite.

Nothing is read back: norm, clipping and the decision stay on the device, so the host never waits
for a step to end before it starts the next.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from aerie.train.ops.interface import operations


class AdamW:
    """Float32 `master` weights and moments, and `products`, their copy in the products' dtype.

    `products` may be `master` itself. All may be a shard: `sum_` then adds up, in place, what each
    rank has of a scalar.
    """

    def __init__(
        self,
        master: Tensor,
        products: Tensor,
        betas: tuple[float, float],
        decay: float,
        clip: float,
        sum_: Callable[[Tensor], None] | None = None,
    ) -> None:
        self.master, self.products = master, products
        self.first, self.second = torch.zeros_like(master), torch.zeros_like(master)
        self.taken = torch.zeros((), device=master.device)
        self._betas, self._decay, self._clip, self._sum = betas, decay, clip, sum_

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint holds."""
        return {
            "weights": self.master,
            "first": self.first,
            "second": self.second,
            "taken": self.taken,
        }

    def step(self, gradient: Tensor, loss: Tensor, rate: float) -> tuple[Tensor, Tensor]:
        """Take one step; returns the norm of the whole gradient and whether it was taken, 1 or 0.

        `gradient` is in the products' dtype, and may be overwritten.
        """
        norm = torch.linalg.vector_norm(gradient, dtype=torch.float32)
        if self._sum is not None:
            squared = norm.square()
            self._sum(squared)
            norm = squared.sqrt()
        fine = (norm.isfinite() & loss.isfinite()).float()
        scalars = torch.stack((self._clip / norm.clamp(min=self._clip), self.taken + 1, fine))
        operations(self.products).adamw_(
            self.master, self.first, self.second, gradient, self.products, scalars, rate,
            self._betas, self._decay,
        )  # fmt: skip
        self.taken += fine
        return norm, fine


def learning_rate(peak: float, warmup_share: float, step: int, total: int) -> float:
    """Linear warm-up, then a cosine to zero."""
    warmup = max(1, round(warmup_share * total))
    if step < warmup:
        return peak * (step + 1) / warmup
    done = (step - warmup) / max(1, total - warmup)
    return peak * 0.5 * (1 + math.cos(math.pi * done))
