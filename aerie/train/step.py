"""One optimizer step over the packs of this rank."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from aerie.train.layout import Layout
from aerie.train.objective import Frozen, objective
from aerie.train.packing import Pack
from aerie.train.ranks import Ranks

if TYPE_CHECKING:
    # A section of the configuration, whose package a bare machine that measures lacks.
    from aerie.train.settings import DraftSettings


def take_step(
    settings: "DraftSettings",
    layout: Layout,
    frozen: Frozen,
    ranks: Ranks,
    packs: Sequence[Pack],
    counts: Sequence[int],
    rate: float,
    rounds: int = 1,
    fillers: int = 0,
) -> Tensor:
    """Take the step; nothing is read back from the device. Returns the figures of a `Record`.

    `counts` are the active rows of each training-time-test step over all packs of all ranks, and
    `rounds` the most packs that any rank has. The last `fillers` of `packs` only keep this rank in
    step with others, which have more: they count for nothing.
    """
    steps, parts = settings.steps, []
    # Summed in float32: a sum in bf16 would round once for each pack.
    wide = max(rounds, len(packs)) > 1
    total = None
    for number, pack in enumerate(packs, start=1):
        shares = [math.inf] * steps if number > len(packs) - fillers else counts
        result = objective(
            layout.weights, layout.gradient, frozen, pack, steps, settings.decay, shares,
            settings.activation_checkpointing, settings.fp8,
        )  # fmt: skip
        parts.append(result.figures())
        one = layout.reduced()
        if total is None:
            total = one.to(torch.float32, copy=True) if wide else one
        else:
            total.add_(one)
    if total is None:
        total = layout.reduced().zero_()
        parts.append(torch.zeros(1 + 2 * steps, device=ranks.device))
    if ranks.world > 1:
        # All ranks send the same type, however many packs each had.
        total = total.to(torch.float32 if rounds > 1 else layout.weights.dtype)
    summed = torch.stack(parts).sum(0)
    layout.sum_(total)
    ranks.sum_(summed)
    norm, taken = layout.optimizer.step(total, summed[0], rate)
    layout.updated()
    return torch.cat((torch.stack((norm, taken)), summed))
