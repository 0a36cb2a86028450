"""Packs: samples laid back to back up to a token budget, and the rows that a step computes.

Row p of a sample is supervised iff tokens p+1 (its input) and p+2 (its label) are output tokens:
ids, targets and mask are shifted together. Output tokens end a sample, so the supervised rows of
a sample are its last ones, and step i of training-time test finds its token, label and teacher for
row r of the supervised rows at r+i-1, r+i and r+i.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from aerie.contracts.codecs import decode
from aerie.contracts.states import Sample, Stretch, shifted

_SUPERVISED_MULTIPLE = 128


@dataclass(frozen=True)
class Segments:
    """Which rows see which: sample m's rows are keys [m] to [m+1] of `key_bounds` int32 [m + 1],
    its supervised rows, the last of them, queries [m] to [m+1] of `query_bounds`.

    The longest of each are numbers, so that no kernel waits for the host to read them. The last
    segment is the padding; both of its lengths may be zero.
    """

    key_bounds: Tensor
    query_bounds: Tensor
    longest_keys: int
    longest_queries: int
    rows: int

    @cached_property
    def visible(self) -> Tensor:
        """The same as a mask, bool [s, n], for kernels that know no segments."""
        queries = torch.arange(int(self.query_bounds[-1]), device=self.key_bounds.device)
        keys = torch.arange(self.rows, device=self.key_bounds.device)
        sample = torch.searchsorted(self.query_bounds, queries, right=True) - 1
        end = self.key_bounds[sample + 1]
        own = end - self.query_bounds[sample + 1] + queries
        start = self.key_bounds[sample]
        return (keys >= start[:, None]) & (keys <= own[:, None])


@dataclass(frozen=True)
class Pack:
    """n rows of which s are supervised.

    aux [n, A*H]; token_ids int64 [n], the token p+1; positions int64 [n]; supervised int64 [s],
    indices of rows; labels int64 [s], the token p+2; teacher [s, H], the target's last state at
    p+1; remaining int64 [s], supervised rows after this one in its sample. `answers` holds the
    number of supervised rows of each sample, `tokens` that of all rows; both without padding.

    States that are stored in fp8 have scales beside them until the pack is on its device. With the
    codec teacher there is no `teacher`, and `top_ids` int32 [s, k], `top_logprobs` float16 [s, k]
    and `tail` float32 [s, 1] of the same rows stand for it.

    Packs are padded to few shapes, since kernels are made anew for each. A supervised row of
    padding stands for row 0 and has -1 rows remaining: it sees nothing, and no one sees it.
    """

    aux: Tensor
    token_ids: Tensor
    positions: Tensor
    supervised: Tensor
    labels: Tensor
    teacher: Tensor | None
    remaining: Tensor
    segments: Segments
    answers: tuple[int, ...]
    tokens: int
    aux_scale: Tensor | None = None
    teacher_scale: Tensor | None = None
    top_ids: Tensor | None = None
    top_logprobs: Tensor | None = None
    tail: Tensor | None = None

    def active(self, step: int) -> Tensor:
        """Which supervised rows have their label at `step` inside their sample, bool [s]."""
        return self.remaining >= step

    def count(self, step: int) -> int:
        """How many rows are active at `step`."""
        return sum(max(rows - step, 0) for rows in self.answers)

    def tensors(self) -> list[Tensor]:
        """All of its tensors."""
        everything = [*vars(self).values(), self.segments.key_bounds, self.segments.query_bounds]
        return [each for each in everything if isinstance(each, Tensor)]

    def to(self, device: torch.device) -> "Pack":
        """The pack with every tensor on `device` and its states in bf16.

        The host does not wait for pinned memory.
        """

        def moved(owner: object) -> dict[str, Any]:
            return {
                name: value.to(device, non_blocking=True)
                for name, value in vars(owner).items()
                if isinstance(value, Tensor) and name != "visible"
            }

        segments = replace(self.segments, **moved(self.segments))
        return replace(self, **moved(self), segments=segments)._decoded()

    def _decoded(self) -> "Pack":
        if self.aux_scale is None:
            return self
        aux, teacher = decode(self.aux, self.aux_scale), self.teacher
        if teacher is not None and self.teacher_scale is not None:
            teacher = decode(teacher, self.teacher_scale)
        return replace(self, aux=aux, teacher=teacher, aux_scale=None, teacher_scale=None)


def supervised_rows(loss_mask: Tensor) -> Tensor:
    """Rows p with tokens p+1 and p+2 both output tokens, int64; from uint8 [t]."""
    mask = loss_mask.bool()
    return torch.nonzero(shifted(mask, 1) & shifted(mask, 2)).squeeze(1)


class Source(Protocol):
    """A sample that a pack is made of, wherever it lies: `length` tokens, `answer` supervised rows.

    `like` holds no row of each of its tensors, of their dtype and width.
    """

    @property
    def length(self) -> int: ...

    @property
    def answer(self) -> int: ...

    @property
    def like(self) -> Mapping[str, Tensor]: ...

    def read(self, into: Mapping[str, Stretch]) -> None:
        """Fill the rows of each tensor that is named."""


class _InMemory:
    def __init__(self, sample: Sample) -> None:
        self.length = len(sample.token_ids)
        self.answer = len(supervised_rows(sample.loss_mask))
        self._tensors = {name: each for name, each in vars(sample).items() if each is not None}
        self.like = {name: each[:0] for name, each in self._tensors.items()}

    def read(self, into: Mapping[str, Stretch]) -> None:
        for name, (rows, first) in into.items():
            rows.copy_(self._tensors[name][first : first + len(rows)])


def make_pack(samples: Sequence[Sample], rows_at_least: int = 0, pinned: bool = False) -> Pack:
    """`fill_pack` of samples in memory."""
    return fill_pack([_InMemory(sample) for sample in samples], rows_at_least, pinned)


def fill_pack(samples: Sequence[Source], rows_at_least: int = 0, pinned: bool = False) -> Pack:
    """Lay `samples` back to back and pad: to `rows_at_least`, and to a multiple of 128 supervised.

    A sample needs at least three tokens to hold a row. States are read to where they stay;
    `pinned` memory is what a GPU can fetch by itself.
    """
    rows = [max(sample.length - 2, 0) for sample in samples]
    answers = tuple(sample.answer for sample in samples)
    count, supervised = max(sum(rows), rows_at_least), max(sum(answers), 1)
    supervised = -(-supervised // _SUPERVISED_MULTIPLE) * _SUPERVISED_MULTIPLE
    like = samples[0].like
    states = {
        name: _memory(like[name], count if name.startswith("aux") else supervised, pinned)
        for name in like.keys() - {"token_ids", "loss_mask"}
    }
    ids, masks = [], []
    places = zip(samples, _spans(rows), _spans(answers), strict=True)
    for sample, (first, end), (first_answer, end_answer) in places:
        ids.append(like["token_ids"].new_empty(sample.length))
        masks.append(like["loss_mask"].new_empty(sample.length))
        into = {"token_ids": Stretch(ids[-1]), "loss_mask": Stretch(masks[-1])}
        for name, memory in states.items():
            if name.startswith("aux"):
                into[name] = Stretch(memory[first:end])
            else:
                # Row p learns from the state at p+1, and the last row is two before the end.
                of_answer = memory[first_answer:end_answer]
                into[name] = Stretch(of_answer, sample.length - len(of_answer) - 1)
        sample.read(into)
    for name, memory in states.items():
        memory[sum(rows if name.startswith("aux") else answers) :] = 0
    return _pack(ids, masks, states, rows, answers)


def _pack(
    token_ids: Sequence[Tensor],
    masks: Sequence[Tensor],
    states: Mapping[str, Tensor],
    rows: Sequence[int],
    answers: tuple[int, ...],
) -> Pack:
    """The pack of `states`, which are laid out, and of the ids and masks of its samples."""
    count = len(states["aux"])
    supervised = next(len(each) for name, each in states.items() if not name.startswith("aux"))
    found = [supervised_rows(mask) for mask in masks]
    starts = [start for start, _ in _spans(rows)]
    ids = [each.long() for each in token_ids]

    def joined(parts: Iterable[Tensor], length: int, padding: int = 0) -> Tensor:
        out = torch.full((length,), padding)
        whole = torch.cat([*parts])
        out[: len(whole)] = whole
        return out

    keys, queries = [*rows, count - sum(rows)], [*answers, supervised - sum(answers)]
    return Pack(
        aux=states["aux"],
        token_ids=joined((shifted(i, 1)[:n] for i, n in zip(ids, rows, strict=True)), count),
        positions=joined((torch.arange(n) for n in rows), count),
        supervised=joined((f + s for f, s in zip(found, starts, strict=True)), supervised),
        labels=joined((shifted(i, 2)[f] for i, f in zip(ids, found, strict=True)), supervised),
        teacher=states.get("last"),
        remaining=joined((torch.arange(n - 1, -1, -1) for n in answers), supervised, -1),
        segments=Segments(
            torch.tensor([0, *accumulate(keys)], dtype=torch.int32),
            torch.tensor([0, *accumulate(queries)], dtype=torch.int32),
            max(keys),
            max(queries),
            count,
        ),
        answers=answers,
        tokens=sum(rows),
        aux_scale=states.get("aux_scale"),
        teacher_scale=states.get("last_scale"),
        top_ids=states.get("top_ids"),
        top_logprobs=states.get("top_logprobs"),
        tail=states.get("tail"),
    )


def _memory(like: Tensor, rows: int, pinned: bool) -> Tensor:
    return torch.empty((rows, *like.shape[1:]), dtype=like.dtype, pin_memory=pinned)


def _spans(lengths: Iterable[int]) -> list[tuple[int, int]]:
    ends = [*accumulate(lengths)]
    return [*zip([0, *ends], ends, strict=False)]


def plan_packs(
    lengths: Sequence[int], budget: int, seed: int, epoch: int, window: int = 0
) -> list[list[int]]:
    """Which samples go into which pack of an epoch: a seeded order, cut at `budget` tokens.

    A pure function of its arguments, so that a run can continue at any step. A sample longer than
    the budget has a pack of its own. `window` counts those that are shuffled apart in an epoch.
    """
    key = (seed, epoch, window) if window else (seed, epoch)
    order = np.random.default_rng(key).permutation(len(lengths))
    packs: list[list[int]] = []
    room = 0
    for index in order.tolist():
        if not packs or lengths[index] > room:
            packs.append([])
            room = budget
        packs[-1].append(index)
        room -= lengths[index]
    return packs
