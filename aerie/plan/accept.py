"""The accept length that earlier drafts predict, and the one at which a draft begins to pay.

The speed-up is AL / R, so AL = R is the break-even.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aerie.files import read_json
from aerie.plan.settings import PlanSettings

# A line through the logarithm of the samples holds near the points and not far beyond them.
_FARTHEST = 10


@dataclass(frozen=True)
class Point:
    """What one draft reached; `round_cost` is R where it was measured."""

    samples: int
    accept_length: float
    round_cost: float | None
    source: str


@dataclass(frozen=True)
class Forecast:
    """What the points say of a draft on `samples` samples.

    `accept_length` is None where they say nothing, and `words` say why. `spread` is the root mean
    square distance of the points from the line, None where the line must pass through them.
    """

    samples: int
    accept_length: float | None
    spread: float | None
    round_cost: float | None
    round_cost_source: str | None
    speedup: float | None
    samples_to_break_even: int | None
    words: str


def points(
    settings: PlanSettings, work: Path, drafts: dict[Path, dict[str, Any]]
) -> tuple[Point, ...]:
    """Points of `plan.history`, then one for each bench under `work`."""
    found = [
        Point(
            point.samples,
            point.accept_length,
            point.accept_length * point.plain_tokens_per_s / point.draft_tokens_per_s
            if point.plain_tokens_per_s and point.draft_tokens_per_s
            else None,
            f"plan.history: {point.note}" if point.note else "plan.history",
        )
        for point in settings.history
    ]
    for path, draft in drafts.items():
        for bench in sorted(work.glob(f"bench/{path.parent.name}/*.json")):
            content = read_json(bench)
            # A result that its gate refused lies beside the others.
            if content.get("artifact") == "bench" and not bench.stem.endswith(".failed"):
                name = bench.relative_to(work).as_posix()
                samples = draft["counts"]["samples"]
                found.append(Point(samples, content["accept_length"], content["round_cost"], name))
    return tuple(found)


def forecast(found: tuple[Point, ...], samples: int, round_cost: float | None) -> Forecast:
    """What `found` predict for `samples` samples; `round_cost` goes before a measured one."""
    cost, source = round_cost, "plan.round_cost" if round_cost else None
    for point in found:
        # The last one: a bench of this work folder comes after what was told.
        if not round_cost and point.round_cost:
            cost, source = point.round_cost, point.source
    line = _line(found)
    refusal = _refusal(found, samples, line)
    length = spread = needed = None
    if line and not refusal:
        start, slope = line
        length = max(start + slope * math.log(samples), 1.0)
        left = [p.accept_length - start - slope * math.log(p.samples) for p in found]
        spread = math.sqrt(sum(x * x for x in left) / len(left)) if len(left) > 2 else None
        if cost and slope > 0:
            exponent = (cost - start) / slope
            farthest = _FARTHEST * max(point.samples for point in found)
            needed = math.ceil(math.exp(exponent)) if exponent < math.log(farthest) else None
    speedup = length / cost if length and cost else None
    words = refusal or f"a line through {len(found)} points, linear in the logarithm of the samples"
    return Forecast(samples, length, spread, cost, source, speedup, needed, words)


def _line(found: tuple[Point, ...]) -> tuple[float, float] | None:
    """Least squares AL = start + slope * ln(samples); None unless two amounts of data differ."""
    if len({point.samples for point in found}) < 2:
        return None
    x = [math.log(point.samples) for point in found]
    y = [point.accept_length for point in found]
    middle, height = sum(x) / len(x), sum(y) / len(y)
    slope = sum((a - middle) * (b - height) for a, b in zip(x, y, strict=True))
    slope /= sum((a - middle) ** 2 for a in x)
    return height - slope * middle, slope


def _refusal(
    found: tuple[Point, ...], samples: int, line: tuple[float, float] | None
) -> str | None:
    if not found:
        return "no earlier draft is known"
    if line is None:
        return (
            "one point gives no slope"
            if len(found) == 1
            else "all points have the same number of samples, which gives no slope"
        )
    farthest = _FARTHEST * max(point.samples for point in found)
    if samples > farthest:
        return (
            f"the points end at {farthest // _FARTHEST:,} samples; a line through them says "
            f"nothing beyond {farthest:,}"
        )
    return None
