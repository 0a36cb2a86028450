"""How fast a host gets through tokens: measured in this work folder, told, or the team's estimate.

A token is one of prompt or answer in every phase, so that a rate needs no split of the two.
"""

import csv
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from aerie.contracts.sidecar import read_sidecar
from aerie.plan.lengths import Range
from aerie.plan.settings import PlanSettings

Phase = Literal["responses", "states", "draft"]
PHASES: tuple[Phase, ...] = ("responses", "states", "draft")

# The team's estimates for Kimi-K2.5 on one host: hours for 100K samples of 1,604 tokens (which is
# what their 9.2 TB come to), generation at concurrency 128, and training for 3 to 5 epochs.
TEAM_SAMPLES = 100_000
TEAM_TOKENS_PER_SAMPLE = 1604
TEAM_HOURS: dict[Phase, float] = {"responses": 24, "states": 19, "draft": 12}
TEAM_EPOCHS = (3, 4, 5)


@dataclass(frozen=True)
class Rate:
    """Tokens a second of one host; for `draft` tokens of all epochs."""

    tokens_per_s: Range
    basis: str
    source: str


@dataclass(frozen=True)
class Rates:
    """Rates that this work folder has measured, and mean seconds of a job of the other rules."""

    measured: dict[Phase, Rate] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


def rate(phase: Phase, rates: Rates, settings: PlanSettings) -> Rate:
    """The best that is known: measured here, else told by `plan.rates`, else the team's."""
    if phase in rates.measured:
        return rates.measured[phase]
    if told := settings.rates.get(phase):
        return Rate(Range.exactly(told.tokens_per_s), "measured", f"plan.rates: {told.source}")
    tokens = TEAM_SAMPLES * TEAM_TOKENS_PER_SAMPLE / (TEAM_HOURS[phase] * 3600)
    epochs = TEAM_EPOCHS if phase == "draft" else (1, 1, 1)
    return Rate(
        Range(*(tokens * count for count in epochs)),
        "estimate",
        f"the team's {TEAM_HOURS[phase]:g} h for {TEAM_SAMPLES // 1000}K samples of Kimi-K2.5",
    )


def read_rates(
    work: Path,
    responses: dict[Path, dict[str, Any]],
    states: dict[Path, dict[str, Any]],
    drafts: dict[Path, dict[str, Any]],
) -> Rates:
    """Rates by Snakemake's benchmarks under `work` and the counts of the sidecars.

    A job that was resumed is timed from there on and makes a rate look better than it is.
    """
    benchmarks = work / "benchmarks"
    parts: dict[Phase, list[tuple[float, float | None]]] = {
        "responses": [
            (
                _generated_tokens(content["counts"]),
                _seconds(benchmarks / "responses" / path.parent.name / f"{path.stem}.tsv"),
            )
            for path, content in responses.items()
        ],
        "states": [
            (
                content["counts"]["tokens"],
                _seconds(benchmarks / "states" / path.parts[-3] / f"{path.parent.name}.tsv"),
            )
            for path, content in states.items()
        ],
        "draft": [
            (_trained_tokens(work, content), _seconds(benchmarks / f"draft/{path.parent.name}.tsv"))
            for path, content in drafts.items()
        ],
    }
    measured = {phase: found for phase in PHASES if (found := _rate(phase, parts[phase]))}
    return Rates(measured, _mean_seconds(benchmarks))


def _rate(phase: Phase, parts: Iterable[tuple[float, float | None]]) -> Rate | None:
    timed = [(tokens, seconds) for tokens, seconds in parts if tokens and seconds]
    if not timed:
        return None
    each = [tokens / seconds for tokens, seconds in timed]
    total = sum(tokens for tokens, _ in timed) / sum(seconds for _, seconds in timed)
    jobs = f"{len(timed)} job{'s'[: len(timed) > 1]}"
    return Rate(Range(min(each), total, max(each)), "measured", f"{jobs} of this work folder")


def _generated_tokens(counts: dict[str, Any]) -> float:
    """Tokens that the target worked through: answers that the dataset brought cost it nothing."""
    rows = max(counts["rows"], 1)
    share = 1 - counts["native"]["used"] / rows
    return float((counts["prompt_tokens"] + counts["output_tokens"]) * share)


def _trained_tokens(work: Path, draft: dict[str, Any]) -> float:
    """Tokens that a draft was trained on, all epochs; 0 if the states have changed since."""
    manifest = work / "states/manifest.json"
    if not manifest.exists():
        return 0
    counts, trained = read_sidecar(manifest, "manifest")["counts"], draft["counts"]
    # A sample that is held out is in the manifest and trains nothing.
    if not counts["samples"] or trained["samples"] + trained["held_out"] != counts["samples"]:
        return 0
    tokens = counts["tokens"] * trained["samples"] / counts["samples"]
    return float(tokens * draft["provenance"]["settings"]["epochs"])


def _mean_seconds(benchmarks: Path) -> dict[str, float]:
    """Mean seconds of a job by the name of its rule, which is where its benchmark lies."""
    found: dict[str, list[float]] = {}
    for path in sorted(benchmarks.rglob("*.tsv")):
        seconds = _seconds(path)
        if seconds is not None:
            rule = Path(path.relative_to(benchmarks).parts[0]).stem
            found.setdefault(rule, []).append(seconds)
    return {rule: sum(values) / len(values) for rule, values in found.items()}


def _seconds(path: Path) -> float | None:
    """Seconds of a job by its Snakemake benchmark; None where there is none."""
    if not path.exists():
        return None
    with path.open(encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream, delimiter="\t"):
            try:
                return float(row["s"])
            except (KeyError, TypeError, ValueError):
                return None
    return None
