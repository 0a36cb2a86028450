"""Packs: samples laid back to back up to a token budget, and the rows that a step computes.

Row p of a sample is supervised iff tokens p+1 (its input) and p+2 (its label) are output tokens:
ids, targets and mask are shifted together. Output tokens end a sample, so the supervised rows of
a sample are contiguous, and step i of training-time test finds its token, label and teacher for
row r of the supervised rows at r+i-1, r+i and r+i.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from aerie.contracts.states import Sample

_SUPERVISED_MULTIPLE = 128


@dataclass(frozen=True)
class Pack:
    """n rows of which s are supervised.

    aux [n, A*H]; token_ids int64 [n], the token p+1; positions and sample_of_row int64 [n];
    supervised int64 [s], indices of rows; labels int64 [s], the token p+2; teacher [s, H], the
    target's last state at p+1; remaining int64 [s], supervised rows after this one in its sample.

    Packs are padded to few shapes, since a CPU's matrix kernels are made anew for each: a row of
    padding belongs to sample -1, and a supervised row of padding has -1 rows remaining.
    """

    aux: Tensor
    token_ids: Tensor
    positions: Tensor
    sample_of_row: Tensor
    supervised: Tensor
    labels: Tensor
    teacher: Tensor
    remaining: Tensor

    def active(self, step: int) -> Tensor:
        """Which supervised rows have their label at `step` inside their sample, bool [s]."""
        return self.remaining >= step

    def to(self, device: torch.device) -> "Pack":
        """The pack with every tensor on `device`."""
        return Pack(**{name: tensor.to(device) for name, tensor in vars(self).items()})


def supervised_rows(loss_mask: Tensor) -> Tensor:
    """Rows p with tokens p+1 and p+2 both output tokens, int64; from uint8 [t]."""
    mask = loss_mask.bool()
    return torch.nonzero(mask[1:-1] & mask[2:]).squeeze(1)


def make_pack(samples: Sequence[Sample], rows_at_least: int = 0) -> Pack:
    """Lay `samples` back to back and pad: to `rows_at_least`, and to a multiple of 128 supervised.

    A sample needs at least three tokens to hold a row.
    """
    columns: dict[str, list[Tensor]] = {name: [] for name in Pack.__dataclass_fields__}
    base = 0
    for number, sample in enumerate(samples):
        ids = sample.token_ids.long()
        rows = max(len(ids) - 2, 0)
        supervised = supervised_rows(sample.loss_mask)
        columns["aux"].append(sample.aux[:rows])
        columns["token_ids"].append(ids[1 : rows + 1])
        columns["positions"].append(torch.arange(rows))
        columns["sample_of_row"].append(torch.full((rows,), number))
        columns["supervised"].append(supervised + base)
        columns["labels"].append(ids[supervised + 2])
        columns["teacher"].append(sample.last[supervised + 1])
        columns["remaining"].append(torch.arange(len(supervised) - 1, -1, -1))
        base += rows
    pack = Pack(**{name: torch.cat(parts) for name, parts in columns.items()})
    found = len(pack.supervised)
    wanted = -(-max(found, 1) // _SUPERVISED_MULTIPLE) * _SUPERVISED_MULTIPLE
    return _padded(pack, max(rows_at_least - base, 0), wanted - found)


def _padded(pack: Pack, rows: int, supervised: int) -> Pack:
    def pad(tensor: Tensor, count: int, value: int = 0) -> Tensor:
        return torch.cat((tensor, tensor.new_full((count, *tensor.shape[1:]), value)))

    return Pack(
        aux=pad(pack.aux, rows),
        token_ids=pad(pack.token_ids, rows),
        positions=pad(pack.positions, rows),
        sample_of_row=pad(pack.sample_of_row, rows, -1),
        supervised=pad(pack.supervised, supervised),
        labels=pad(pack.labels, supervised),
        teacher=pad(pack.teacher, supervised),
        remaining=pad(pack.remaining, supervised, -1),
    )


def plan_packs(lengths: Sequence[int], budget: int, seed: int, epoch: int) -> list[list[int]]:
    """Which samples go into which pack of an epoch: a seeded order, cut at `budget` tokens.

    A pure function of its arguments, so that a run can continue at any step. A sample longer than
    the budget has a pack of its own.
    """
    order = np.random.default_rng((seed, epoch)).permutation(len(lengths))
    packs: list[list[int]] = []
    room = 0
    for index in order.tolist():
        if not packs or lengths[index] > room:
            packs.append([])
            room = budget
        packs[-1].append(index)
        room -= lengths[index]
    return packs
