"""Simulated accept length: what serving would count, walked over answers that are already there.

A chain of k draft tokens is verified greedily, so a draft token is accepted iff it and all before
it equal the target's own tokens; a token outside the map can never be proposed and is a miss.
From row p with c accepted tokens the next round starts at row p + c + 1.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from aerie.train.objective import labels_ahead, logits_of
from aerie.train.packing import Pack
from aerie.train.tally import Tally, walk
from aerie.train.unroll import unroll
from aerie.train.weights import Matrices


def simulate(
    weights: Matrices, embedding: Tensor, draft_ids: Tensor, packs: Iterable[Pack], k: int
) -> list[Tally]:
    """The walk of every sample of `packs`, in their order."""
    tallies = []
    with torch.inference_mode():
        for pack in packs:
            prefix = correct_prefix(weights, embedding, draft_ids, pack, k)
            real = prefix[: sum(pack.answers)]
            for rows in real.split(list(pack.answers)):
                tallies.append(walk(rows.tolist(), k))
    return tallies


def correct_prefix(
    weights: Matrices, embedding: Tensor, draft_ids: Tensor, pack: Pack, k: int
) -> Tensor:
    """How many leading draft tokens of each supervised row equal the target's, int64 [s].

    Feeding the target's token at step i is exact up to the first miss, and nothing after it counts.
    """
    _, labels, active = labels_ahead(pack, draft_ids, k)
    alive = torch.ones_like(pack.labels, dtype=torch.bool)
    prefix = torch.zeros_like(pack.labels)
    outputs = unroll(weights, embedding, pack, k).outputs
    for step, output in enumerate(outputs):
        alive &= (logits_of(weights, output).argmax(-1) == labels[step]) & active[step]
        prefix += alive
    return prefix
