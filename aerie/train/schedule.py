"""Which samples each rank reads for each optimizer step of a run."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from aerie.train.data import Located
from aerie.train.packing import plan_packs


@dataclass(frozen=True)
class Step:
    """The packs of one optimizer step, of all ranks: rank r has every world-th from the r-th.

    `window` counts, in its epoch, the parts that are shuffled together; no step has packs of two.
    """

    epoch: int
    packs: tuple[tuple[Located, ...], ...]
    window: int = 0

    def of(self, rank: int, world: int, parts: int) -> list[tuple[Located, ...]]:
        """The packs of one rank, each cut into at most `parts` of about the same size."""
        return [part for pack in self.packs[rank::world] for part in _cut(pack, parts)]

    def rounds(self, world: int) -> int:
        """The most packs that one rank has."""
        return -(-len(self.packs) // world)

    def count(self, step: int) -> int:
        """Rows that are active at a training-time-test step, in all packs."""
        return sum(max(sample.answer - step, 0) for pack in self.packs for sample in pack)

    @property
    def tokens(self) -> int:
        """Rows of all packs."""
        return sum(sample.rows for pack in self.packs for sample in pack)


@dataclass(frozen=True)
class Window:
    """Steps up to `end`, exclusive, which need the states of `parts`, folders, and of no other."""

    parts: frozenset[Path]
    end: int
    ends_epoch: bool


def plan_steps(
    samples: Sequence[Located], budget: int, seed: int, epochs: int, packs_per_step: int,
    shuffle_tokens: int | None = None,
) -> list[Step]:  # fmt: skip
    """The whole run: a pure function of its arguments, so that it can continue at any step.

    Parts are put into a seeded order and cut into windows of at most `shuffle_tokens` rows, or of
    one part that is larger; samples are shuffled inside a window. Without, all are in one.
    """
    return [
        Step(epoch, tuple(group), number)
        for epoch in range(epochs)
        for number, window in enumerate(_windows(samples, shuffle_tokens, seed, epoch))
        for group in _grouped(window, budget, (seed, epoch, number), packs_per_step)
    ]


def windows_of(steps: Sequence[Step]) -> list[Window]:
    """The windows of a run, in their order."""
    windows: list[Window] = []
    end = 0
    for _, group in groupby(steps, key=lambda step: (step.epoch, step.window)):
        own = list(group)
        end += len(own)
        parts = {sample.file.parent for step in own for pack in step.packs for sample in pack}
        ends_epoch = end == len(steps) or steps[end].epoch != own[0].epoch
        windows.append(Window(frozenset(parts), end, ends_epoch))
    return windows


def _windows(
    samples: Sequence[Located], shuffle_tokens: int | None, seed: int, epoch: int
) -> list[Sequence[Located]]:
    if shuffle_tokens is None:
        return [samples]
    rows: dict[Path, int] = {}
    for sample in samples:
        rows[sample.file.parent] = rows.get(sample.file.parent, 0) + sample.rows
    parts = list(rows)
    groups = plan_packs(list(rows.values()), shuffle_tokens, seed, epoch)
    place = {parts[index]: number for number, group in enumerate(groups) for index in group}
    windows: list[list[Located]] = [[] for _ in groups]
    for sample in samples:
        windows[place[sample.file.parent]].append(sample)
    return list(windows)


def _grouped(
    samples: Sequence[Located], budget: int, place: tuple[int, int, int], size: int
) -> Iterator[list[tuple[Located, ...]]]:
    packs = plan_packs([sample.rows for sample in samples], budget, *place)
    chosen = [tuple(samples[index] for index in pack) for pack in packs]
    for start in range(0, len(chosen), size):
        yield chosen[start : start + size]


def _cut(pack: tuple[Located, ...], parts: int) -> list[tuple[Located, ...]]:
    room = -(-sum(sample.rows for sample in pack) // parts)
    cut: list[list[Located]] = [[]]
    for sample in pack:
        if cut[-1] and sum(each.rows for each in cut[-1]) + sample.rows > room:
            cut.append([])
        cut[-1].append(sample)
    return [tuple(part) for part in cut]
