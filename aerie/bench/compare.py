"""Two drafts on the same prompts: the difference of their accept lengths, paired by prompt.

Prompts differ far more than drafts do. Paired, a prompt is hard or easy for both, and what is left
is the difference between the drafts: far fewer prompts show it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from aerie.bench.statistics import (
    Bootstrap,
    Floats,
    Interval,
    deviation,
    prompts_for_difference,
    prompts_for_half_width,
)
from aerie.contracts import VERSIONS
from aerie.errors import DataError
from aerie.files import read_json

# What must be equal, or the difference is not one of drafts.
_SAME = (
    ("contract",), ("k",), ("sampling",), ("digests", "target"), ("digests", "suite"),
)  # fmt: skip


@dataclass(frozen=True)
class Counts:
    """Accepted draft tokens and rounds of each prompt, in one order: float64 [n]."""

    prompts: tuple[str, ...]
    domains: tuple[str, ...]
    accepted: Floats
    rounds: Floats

    @property
    def accept_length(self) -> float:
        """Token-weighted."""
        return float(1 + self.accepted.sum() / self.rounds.sum())

    def of(self, prompts: Sequence[str]) -> "Counts":
        """The same of some prompts only, in their order."""
        places = {prompt: place for place, prompt in enumerate(self.prompts)}
        at = [places[prompt] for prompt in prompts]
        domains = tuple(self.domains[place] for place in at)
        return Counts(tuple(prompts), domains, self.accepted[at], self.rounds[at])


@dataclass(frozen=True)
class Difference:
    """Accept lengths of both drafts on the prompts that count in both, and their difference."""

    name: str
    prompts: int
    before: float
    after: float
    difference: float
    interval: Interval | None
    spread: float | None

    @property
    def words(self) -> str:
        """What may be said of it."""
        if self.interval is None:
            return "too few prompts"
        if self.interval[0] > 0:
            return "better"
        return "worse" if self.interval[1] < 0 else "undecided"


def read_bench(path: Path) -> dict[str, Any]:
    """Read a bench JSON that names each request.

    Raises:
        ContractError: it is missing or no JSON.
        DataError: it is another artifact, or of a version without prompts.
    """
    bench = read_json(path)
    if not isinstance(bench, dict) or bench.get("artifact") != "bench":
        raise DataError(f"{path} is no bench JSON", expected="bench/<run>/<suite>.json")
    if any("prompt" not in request for request in bench["requests"]):
        raise DataError(
            f"{path} is of an older Aerie: its requests name no prompts",
            saw=f"contract {bench['contract']}",
            expected=f"contract {VERSIONS['bench']}",
            remedy="run the bench again: it is cheap beside the draft",
        )
    return bench


def counts_of(bench: dict[str, Any]) -> Counts:
    """Counts of the prompts of a bench, without degenerate answers."""
    found: dict[str, list[Any]] = {}
    for request in bench["requests"]:
        if request["degenerate"] is None and request["rounds"]:
            entry = found.setdefault(request["prompt"], [request["domain"], 0, 0])
            entry[1] += request["accepted"]
            entry[2] += request["rounds"]
    return Counts(
        tuple(found),
        tuple(entry[0] for entry in found.values()),
        np.array([entry[1] for entry in found.values()], dtype=np.float64),
        np.array([entry[2] for entry in found.values()], dtype=np.float64),
    )


def compare(before: dict[str, Any], after: dict[str, Any]) -> list[Difference]:
    """The difference overall, then of each domain.

    Raises:
        DataError: the two were not measured alike, or share no prompt.
    """
    for keys in _SAME:
        values = [_at(bench, keys) for bench in (before, after)]
        if values[0] != values[1]:
            raise DataError(
                f"the two benches differ in {'.'.join(keys)}",
                saw=f"{values[0]} and {values[1]}",
                expected="the same in both: else more than the draft differs",
                remedy="run both benches with one configuration",
            )
    both = counts_of(before), counts_of(after)
    shared = [prompt for prompt in both[0].prompts if prompt in set(both[1].prompts)]
    if not shared:
        raise DataError("the two benches share no prompt that counts")
    first, second = (counts.of(shared) for counts in both)
    domains = sorted(set(first.domains))
    groups = [("overall", shared)] + [
        (name, [p for p, d in zip(shared, first.domains, strict=True) if d == name])
        for name in domains
    ]
    return [_difference(name, first.of(some), second.of(some)) for name, some in groups]


def _difference(name: str, before: Counts, after: Counts) -> Difference:
    bootstrap = Bootstrap(len(before.prompts))
    interval = bootstrap.interval(
        lambda a, b, c, d: c / d - a / b,
        before.accepted.tolist(), before.rounds.tolist(),
        after.accepted.tolist(), after.rounds.tolist(),
    )  # fmt: skip
    lengths = before.accept_length, after.accept_length
    difference = lengths[1] - lengths[0]
    spread = paired_deviation(before, after) if len(before.prompts) > 1 else None
    return Difference(name, len(before.prompts), *lengths, difference, interval, spread)


def paired_deviation(before: Counts, after: Counts) -> float:
    """As `deviation`, of the difference of two drafts on the same prompts."""
    left = [
        (c.accepted - c.rounds * c.accepted.sum() / c.rounds.sum()) / c.rounds.mean()
        for c in (before, after)
    ]
    return float((left[1] - left[0]).std(ddof=1))


@dataclass(frozen=True)
class Size:
    """How many prompts it takes; `paired` is None until two drafts were measured."""

    known_from: int
    spread: float
    interval: int
    unpaired: int
    paired: int | None


def size(bench: dict[str, Any], difference: float, other: dict[str, Any] | None = None) -> Size:
    """Prompts until `difference` of AL is seen, by the spread that a bench has shown.

    Raises:
        DataError: the bench has fewer than two prompts, or `other` is not comparable with it.
    """
    counts = counts_of(bench)
    if len(counts.prompts) < 2:
        raise DataError("one prompt says nothing of the spread", remedy="measure ten at least")
    spread = deviation(counts.accepted.tolist(), counts.rounds.tolist())
    paired = compare(bench, other)[0].spread if other else None
    return Size(
        len(counts.prompts),
        spread,
        prompts_for_half_width(spread, difference),
        prompts_for_difference(math.sqrt(2) * spread, difference),
        None if paired is None else prompts_for_difference(paired, difference),
    )


def _at(bench: dict[str, Any], keys: tuple[str, ...]) -> Any:
    for key in keys:
        bench = bench[key]
    return bench
