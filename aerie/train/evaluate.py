"""Simulated accept length: what serving would count, walked over answers that are already there.

A chain of k draft tokens is verified greedily, so a draft token is accepted iff it and all before
it equal the target's own tokens; a token outside the map can never be proposed and is a miss.
From row p with c accepted tokens the next round starts at row p + c + 1.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from aerie.train.model import Draft
from aerie.train.objective import ahead, unroll
from aerie.train.packing import Pack
from aerie.train.tally import Tally, walk


def simulate(
    draft: Draft, embedding: Tensor, draft_ids: Tensor, packs: Iterable[Pack], k: int
) -> list[Tally]:
    """The walk of every sample of `packs`, in their order."""
    tallies = []
    with torch.inference_mode():
        for pack in packs:
            prefix = correct_prefix(draft, embedding, draft_ids, pack, k)
            real = pack.active(0)
            samples = int(pack.sample_of_row.max()) + 1
            owner = pack.sample_of_row[pack.supervised[real]]
            sizes = torch.bincount(owner, minlength=samples).tolist()
            for rows in prefix[real].split(sizes):
                tallies.append(walk(rows.tolist(), k))
    return tallies


def correct_prefix(
    draft: Draft, embedding: Tensor, draft_ids: Tensor, pack: Pack, k: int
) -> Tensor:
    """How many leading draft tokens of each supervised row equal the target's, int64 [s].

    Feeding the target's token at step i is exact up to the first miss, and nothing after it counts.
    """
    alive = torch.ones_like(pack.labels, dtype=torch.bool)
    prefix = torch.zeros_like(pack.labels)
    for step, logits in enumerate(unroll(draft, embedding, pack, k)):
        hits = logits.argmax(-1) == draft_ids[ahead(pack.labels, step)]
        alive &= hits & pack.active(step)
        prefix += alive
    return prefix
