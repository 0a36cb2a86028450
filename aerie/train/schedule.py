"""Which samples each rank reads for each optimizer step of a run."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from aerie.train.data import Located
from aerie.train.packing import plan_packs


@dataclass(frozen=True)
class Step:
    """The packs of one optimizer step, of all ranks: rank r has every world-th from the r-th."""

    epoch: int
    packs: tuple[tuple[Located, ...], ...]

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


def plan_steps(
    samples: Sequence[Located], budget: int, seed: int, epochs: int, packs_per_step: int
) -> list[Step]:
    """The whole run: a pure function of its arguments, so that it can continue at any step."""
    return [
        Step(epoch, tuple(group))
        for epoch in range(epochs)
        for group in _grouped(samples, budget, seed, epoch, packs_per_step)
    ]


def _grouped(
    samples: Sequence[Located], budget: int, seed: int, epoch: int, size: int
) -> Iterator[list[tuple[Located, ...]]]:
    packs = plan_packs([sample.rows for sample in samples], budget, seed, epoch)
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
