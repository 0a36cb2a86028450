"""Accept length of what was measured: overall and by group, each with an interval by prompt."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from aerie.bench.statistics import Bootstrap, Interval
from aerie.train.tally import Tally

# Tokens of the prompt from which a row of `contexts` begins.
CONTEXTS = {
    "under 1K": 0,
    "1K to 4K": 1024,
    "4K to 16K": 4096,
    "16K to 64K": 16384,
    "64K on": 65536,
}


@dataclass
class Measured:
    """What was measured on one answer. Seconds: one entry a repeat, none if it was not timed.

    `prompt` is the id of its prompt, which several answers of one conversation share;
    `degenerate` is why it does not count.
    """

    id: str
    domain: str
    tally: Tally
    output_ids: list[int]
    plain_ids: list[int] = field(default_factory=list)
    plain_seconds: list[float] = field(default_factory=list)
    draft_seconds: list[float] = field(default_factory=list)
    prompt: str = ""
    mode: str = "instant"
    prompt_ids: list[int] = field(default_factory=list)
    degenerate: str | None = None

    def __post_init__(self) -> None:
        self.prompt = self.prompt or self.id

    @property
    def timed(self) -> bool:
        """Whether the prompt was run with and without the draft, and decoded at all."""
        return bool(self.plain_seconds) and len(self.plain_ids) > 1 and self.tally.rounds > 0


Figure = Callable[[Measured], float]


class Clusters:
    """Answers, grouped by prompt for the bootstrap: the turns of one conversation are alike."""

    def __init__(self, measured: Sequence[Measured]) -> None:
        self._measured = measured
        places: dict[str, int] = {}
        self._places = [places.setdefault(each.prompt, len(places)) for each in measured]
        self.count = len(places)
        self.bootstrap = Bootstrap(self.count)

    def sums(self, values: Iterable[float]) -> list[float]:
        """`values`, one for each answer, summed by prompt."""
        sums = np.bincount(self._places, weights=list(values), minlength=self.count)
        return [float(value) for value in sums]

    def ratio(
        self,
        above: Callable[[Measured], float],
        below: Callable[[Measured], float],
        plus: float = 0,
    ) -> tuple[float | None, list[float] | None]:
        """`plus` + Σ above / Σ below over all answers, and its interval."""
        tops, bottoms = map(above, self._measured), map(below, self._measured)
        a, b = self.sums(tops), self.sums(bottoms)
        if not sum(b):
            return None, None
        interval = self.bootstrap.interval(lambda x, y: plus + x / y, a, b)
        if interval:
            # Few prompts give a symmetric interval, and no sum here is negative.
            interval = max(interval[0], plus), interval[1]
        return rounded(plus + sum(a) / sum(b)), pair(interval)


def accept_length(measured: Sequence[Measured]) -> dict[str, Any]:
    """Both means of the accept length: token-weighted, and of the answers."""
    answered = [each for each in measured if each.tally.rounds]
    clusters = Clusters(answered)
    length, length_ci = clusters.ratio(gained, rounds, plus=1)
    by_request, by_request_ci = clusters.ratio(lambda m: m.tally.accept_length, lambda m: 1)
    return {
        "accept_length": length,
        "accept_length_ci95": length_ci,
        "accept_length_by_request": by_request,
        "accept_length_by_request_ci95": by_request_ci,
    }


def groups(measured: Sequence[Measured]) -> dict[str, dict[str, Any]]:
    """The accept length by mode and by context length."""
    return {
        "modes": _groups(measured, lambda each: each.mode),
        "contexts": _groups(measured, _context),
    }


def by_domain(measured: Sequence[Measured]) -> dict[str, list[Measured]]:
    """The answers of each domain that has rounds, sorted by its name."""
    found = _grouped(measured, lambda each: each.domain)
    return {name: found[name] for name in sorted(found)}


def group(measured: Sequence[Measured]) -> dict[str, Any]:
    """What is said of every group of answers."""
    lengths = accept_length(measured)
    return {
        "accept_length": lengths["accept_length"],
        "accept_length_ci95": lengths["accept_length_ci95"],
        "joint": [entry["joint"] for entry in positions(measured)],
        "rounds": sum(map(rounds, measured)),
        "prompts": Clusters(measured).count,
        "answers": len(measured),
    }


def positions(measured: Sequence[Measured]) -> list[dict[str, Any]]:
    """Acceptance at each draft position, joint and conditional."""
    clusters, overall = Clusters(measured), total(measured)
    result = []
    for place in range(overall.k):
        joint, joint_ci = clusters.ratio(_at("accepted", place), rounds)
        conditional, conditional_ci = clusters.ratio(_at("accepted", place), _at("reached", place))
        result.append(
            {
                "position": place + 1,
                "reached": overall.reached[place],
                "accepted": overall.accepted[place],
                "conditional": conditional,
                "conditional_ci95": conditional_ci,
                "joint": joint,
                "joint_ci95": joint_ci,
            }
        )
    return result


def total(measured: Sequence[Measured]) -> Tally:
    """All rounds together."""
    overall = Tally(max((each.tally.k for each in measured), default=0))
    for each in measured:
        overall.add(each.tally)
    return overall


def gained(each: Measured) -> float:
    """Draft tokens that the target kept."""
    return sum(each.tally.accepted)


def rounds(each: Measured) -> int:
    """Rounds of an answer."""
    return each.tally.rounds


def pair(interval: Interval | None) -> list[float] | None:
    """An interval as JSON has it."""
    return [rounded(value) for value in interval] if interval else None


def rounded(value: float) -> float:
    """As many digits as a figure of the bench is given with."""
    return round(value, 4)


def _at(which: str, place: int) -> Figure:
    return lambda each: float(getattr(each.tally, which)[place])


def _context(each: Measured) -> str:
    return [name for name, least in CONTEXTS.items() if len(each.prompt_ids) >= least][-1]


def _grouped(
    measured: Sequence[Measured], key: Callable[[Measured], str]
) -> dict[str, list[Measured]]:
    found: dict[str, list[Measured]] = {}
    for each in measured:
        found.setdefault(key(each), []).append(each)
    return {name: some for name, some in found.items() if any(map(rounds, some))}


def _groups(measured: Sequence[Measured], key: Callable[[Measured], str]) -> dict[str, Any]:
    return {name: group(some) for name, some in _grouped(measured, key).items()}
