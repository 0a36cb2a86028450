"""Where speculation pays: speed-up = AL(k) / R(k, b), for each k and each concurrency b.

R(k, b) is the time of a round in plain decode steps. It comes from benches with and without the
draft, or from a table that was measured with a synthetic acceptance, which needs no draft. Between
measured k, R is a line, and between measured b a line over log b. Beyond what was measured nothing
is said.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from aerie.errors import DataError
from aerie.files import read_json


@dataclass(frozen=True)
class Cell:
    """One measured round cost, and where it is from."""

    k: int
    concurrency: int
    round_cost: float
    source: str


@dataclass(frozen=True)
class Costs:
    """R(k, b) wherever it can be known."""

    cells: tuple[Cell, ...]

    def __post_init__(self) -> None:
        for cell in self.cells:
            if not (cell.k > 0 and cell.concurrency > 0 and 0 < cell.round_cost < math.inf):
                raise DataError(
                    f"{cell.source}: no round costs that", saw=cell, expected="numbers above 0"
                )

    @property
    def concurrencies(self) -> list[int]:
        """Where R was measured, ascending."""
        return sorted({cell.concurrency for cell in self.cells})

    def at(self, k: int, concurrency: int) -> float | None:
        """R(k, b), or None outside of what was measured.

        A line to R(0, b) = 1 would promise too much: most of a round is there whatever its k (on an
        H200, Llama 8B, b = 1: R is 1.35 at k = 1 and 1.46 at k = 3).
        """
        points = [
            (math.log(b), cost)
            for b in self.concurrencies
            if (cost := _between(self._measured(b), k)) is not None
        ]
        return _between(points, math.log(concurrency))

    def _measured(self, concurrency: int) -> list[tuple[float, float]]:
        found: dict[int, list[float]] = {}
        for cell in self.cells:
            if cell.concurrency == concurrency:
                found.setdefault(cell.k, []).append(cell.round_cost)
        return sorted((float(k), sum(costs) / len(costs)) for k, costs in found.items())


def read_costs(path: Path) -> list[Cell]:
    """Cells of a table `{"cells": [{"k", "concurrency", "round_cost"}]}`.

    Raises:
        DataError: it is no such table.
    """
    content = read_json(path)
    try:
        return [
            Cell(int(c["k"]), int(c["concurrency"]), float(c["round_cost"]), path.name)
            for c in content["cells"]
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{path} is no table of round costs",
            saw=repr(error),
            expected='{"cells": [{"k": 3, "concurrency": 8, "round_cost": 2.1}]}',
            remedy="docs/bench.md says what makes one",
        ) from error


def costs_of(benches: Mapping[str, Mapping[str, Any]], tables: Iterable[Cell] = ()) -> Costs:
    """The round costs of benches, by their names, and those of tables."""
    cells = [
        Cell(entry["k"], entry["concurrency"], entry["round_cost"], name)
        for name, bench in benches.items()
        for entry in bench.get("grid") or [{**bench, "concurrency": 1}]
        if entry.get("round_cost")
    ]
    return Costs((*cells, *tables))


def accept_lengths(joint: Sequence[float | None]) -> dict[int, float]:
    """AL by k from the joint acceptance at each position: 1 + that of the first k positions.

    Measured for the last k alone. A shorter chain begins its rounds at other places, so its AL is
    an estimate.
    """
    lengths, sum_ = {}, 1.0
    for k, share in enumerate(joint, start=1):
        if share is None:
            break
        sum_ += share
        lengths[k] = sum_
    return lengths


def lengths_of(bench: Mapping[str, Any], domain: str | None = None) -> dict[int, float]:
    """AL by k of all prompts of a bench, or of one domain; measured where its grid has that k."""
    if domain is not None:
        return accept_lengths(bench["domains"][domain].get("joint") or [])
    estimated = accept_lengths([entry.get("joint") for entry in bench.get("positions") or []])
    grid = sorted(bench.get("grid") or [], key=lambda entry: -entry["concurrency"])
    measured = {entry["k"]: entry["accept_length"] for entry in grid}
    return estimated | measured


def measured_chains(bench: Mapping[str, Any]) -> set[int]:
    """The k whose AL a bench has measured; of shorter ones it is an estimate."""
    return {bench["k"], *(entry["k"] for entry in bench.get("grid") or [])}


@dataclass(frozen=True)
class Choice:
    """The best chain at one concurrency; k = 0 means to serve without the draft."""

    concurrency: int
    k: int
    accept_length: float
    round_cost: float
    speedup: float


def surface(lengths: Mapping[int, float], costs: Costs) -> list[Choice]:
    """Every k at every measured concurrency whose R is known."""
    return [choice for b in costs.concurrencies for choice in _known(lengths, costs, b)]


def best(lengths: Mapping[int, float], costs: Costs, concurrency: int) -> Choice:
    """The k that decodes fastest, plain decoding among them.

    Raises:
        DataError: R is not known at this concurrency.
    """
    known = _known(lengths, costs, concurrency)
    if not known:
        raise DataError(
            f"no round cost is known at concurrency {concurrency}",
            saw=f"costs of k = {_list(cell.k for cell in costs.cells)} at concurrency "
            f"{_list(costs.concurrencies)}, accept lengths of k = {_list(lengths)}",
            expected="both, between the least and the greatest that was measured",
            remedy="measure it there, or pass a table with `--costs`; docs/bench.md says how",
        )
    return max([Choice(concurrency, 0, 1.0, 1.0, 1.0), *known], key=lambda c: (c.speedup, -c.k))


def _list(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(set(numbers)))) or "none"


def loses_from(choices: Iterable[Choice]) -> int | None:
    """The least concurrency from which on no chain is faster than plain decoding."""
    by_concurrency: dict[int, float] = {}
    for choice in choices:
        top = by_concurrency.get(choice.concurrency, 0)
        by_concurrency[choice.concurrency] = max(top, choice.speedup)
    losing = None
    for concurrency in sorted(by_concurrency, reverse=True):
        if by_concurrency[concurrency] > 1:
            break
        losing = concurrency
    return losing


def ceiling(coverage: float, k: int) -> float:
    """The highest AL that a map of this coverage allows: 1 + c + c² + … + cᵏ."""
    return sum(coverage**power for power in range(k + 1))


def pay_back(trained_gpu_hours: float, speedup: float) -> float | None:
    """GPU-hours of plain serving after which the draft has saved what it cost; None if never.

    A draft that is 1.3 times as fast does the work of an hour in 1/1.3 of it.
    """
    return trained_gpu_hours / (1 - 1 / speedup) if speedup > 1 else None


def _known(lengths: Mapping[int, float], costs: Costs, concurrency: int) -> list[Choice]:
    return [
        Choice(concurrency, k, length, cost, length / cost)
        for k, length in sorted(lengths.items())
        if (cost := costs.at(k, concurrency)) is not None
    ]


def _between(points: Sequence[tuple[float, float]], x: float) -> float | None:
    """On the line through the neighbours of `x` in ascending `points`; None outside of them."""
    for at, value in points:
        if math.isclose(at, x, abs_tol=1e-12):
            return value
    for (left, low), (right, high) in pairwise(points):
        if left < x < right:
            return low + (high - low) * (x - left) / (right - left)
    return None
