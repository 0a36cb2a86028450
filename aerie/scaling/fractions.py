"""Nested fractions of the training samples: 1/16 is a part of 1/8, and so on, by construction."""

from collections.abc import Sequence
from typing import Protocol, TypeVar

import xxhash


class Sample(Protocol):
    """What a fraction is decided by."""

    @property
    def id(self) -> str:
        """`<prompt>.<turn>`."""
        ...

    @property
    def dataset(self) -> str:
        """The dataset that it is from."""
        ...


S = TypeVar("S", bound=Sample)


def nested(samples: Sequence[S], divisor: int) -> list[S]:
    """The first 1/`divisor` of each dataset's samples, in the order of `samples`.

    First by a hash of the prompt's id, so that a fraction is a random one, its conversations stay
    whole but for the last, and neither files nor other datasets decide it. At least one sample of
    each dataset.
    """
    datasets: dict[str, list[S]] = {}
    for sample in samples:
        datasets.setdefault(sample.dataset, []).append(sample)
    chosen = {
        sample.id
        for some in datasets.values()
        for sample in sorted(some, key=_rank)[: -(-len(some) // divisor)]
    }
    return [sample for sample in samples if sample.id in chosen]


def _rank(sample: Sample) -> tuple[int, str]:
    return xxhash.xxh3_64_intdigest(prompt_of(sample.id).encode()), sample.id


def prompt_of(sample: str) -> str:
    """The prompt that a sample is an answer to."""
    return sample.rpartition(".")[0]
