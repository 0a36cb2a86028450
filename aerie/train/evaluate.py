"""Simulated accept length: what serving would count, walked over answers that are already there.

A chain of k draft tokens is verified greedily, so a draft token is accepted iff it and all before
it equal the target's own tokens; a token outside the map can never be proposed and is a miss.
From row p with c accepted tokens the next round starts at row p + c + 1.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from aerie.train.model import Draft
from aerie.train.objective import ahead, unroll
from aerie.train.packing import Pack


@dataclass
class Tally:
    """Rounds of a walk: `reached[i]` of them proposed a token i, `accepted[i]` of them kept it."""

    k: int
    samples: int = 0
    rounds: int = 0
    reached: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.reached = self.reached or [0] * self.k
        self.accepted = self.accepted or [0] * self.k

    @property
    def accept_length(self) -> float:
        """1 + accepted draft tokens / rounds."""
        return 1 + sum(self.accepted) / max(self.rounds, 1)

    def count(self, accepted: int, possible: int) -> None:
        """Count one round that kept `accepted` of the `possible` draft tokens before the end."""
        self.rounds += 1
        for position in range(min(accepted + 1, possible)):
            self.reached[position] += 1
            self.accepted[position] += position < accepted

    def add(self, other: "Tally") -> None:
        """Add the rounds of `other`."""
        self.samples += other.samples
        self.rounds += other.rounds
        self.reached = [a + b for a, b in zip(self.reached, other.reached, strict=True)]
        self.accepted = [a + b for a, b in zip(self.accepted, other.accepted, strict=True)]

    def as_dict(self) -> dict[str, Any]:
        """For `eval.json`: acceptance is the joint rate of each position."""
        return {
            "accept_length": round(self.accept_length, 4),
            "samples": self.samples,
            "rounds": self.rounds,
            "acceptance": [round(kept / max(self.rounds, 1), 4) for kept in self.accepted],
        }


def walk(prefix: list[int], k: int) -> Tally:
    """Walk the rounds of one sample; `prefix[r]` is how many of k draft tokens row r gets right."""
    tally, row = Tally(k, samples=1), 0
    while row < len(prefix):
        # Draft tokens beyond the end token are no gain, and serving never counts them.
        possible = min(k, len(prefix) - row)
        accepted = min(prefix[row], possible)
        tally.count(accepted, possible)
        row += accepted + 1
    return tally


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
