"""How well a dataset fits a category: three criteria, each the mean of a few plain measures.

docs/scout.md has the same table for people; tests/unit/test_scout_score.py compares the two.
Every measure is in [0, 1] and says in words what it saw. What nobody states counts as UNKNOWN:
less than average, since a person will have to find it out, and more than what is known to be bad.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import mean

from aerie.scout.adapters import Fit
from aerie.scout.categories import Category
from aerie.scout.details import Details
from aerie.scout.listing import Listed, bounds_of, middle

UNKNOWN = 0.3

_OTHER_MODALITIES = {"image", "video", "audio", "3d", "document"}
_PERMISSIVE = re.compile(
    r"apache-2|mit$|bsd|cc0|cc-by-\d|cc-by$|odc-by|pddl|unlicense|isc$|cdla-permissive|openrail\+\+"
)
_SHARE_ALIKE = re.compile(r"-sa|odbl|gpl|cdla-sharing|mpl")
_RESTRICTED = re.compile(r"-nc|-nd|non-?commercial|research")
# Columns of rows that are runs: several rows to one task.
_RUNS = {"trajectory", "trajectory_id", "traj_id", "trial_uid", "model_patch", "exit_status"}


@dataclass(frozen=True)
class Measure:
    """One figure in [0, 1] and what it is from, in words."""

    name: str
    value: float
    reason: str


@dataclass(frozen=True)
class Score:
    """The relevance of one dataset for one category.

    `value` is the weighted mean of the criteria, a criterion is the mean of its measures.
    """

    value: float
    criteria: dict[str, float]
    measures: dict[str, tuple[Measure, ...]]

    def reasons(self) -> list[str]:
        """Every measure as `criterion / measure 0.50: why`."""
        return [
            f"{criterion} / {measure.name} {measure.value:.2f}: {measure.reason}"
            for criterion, measures in self.measures.items()
            for measure in measures
        ]


def score(
    listed: Listed,
    details: Details | None,
    fit: Fit,
    category: Category,
    traffic: Iterable[str],
    weights: Mapping[str, float],
) -> Score:
    """Score a dataset; without `details`, by its listing alone, which chooses what is looked into.

    `traffic` are words that mark what the target is used for, `weights` has one of each criterion.
    """
    measures = {
        "diversity": _diversity(listed, details),
        "quality": _quality(listed, details, fit),
        "match": _match(listed, category, tuple(traffic)),
    }
    criteria = {
        criterion: round(mean(measure.value for measure in each), 4)
        for criterion, each in measures.items()
    }
    total = sum(weights[criterion] for criterion in criteria)
    value = sum(weights[criterion] * each for criterion, each in criteria.items()) / total
    return Score(round(value, 4), criteria, measures)


def _diversity(listed: Listed, details: Details | None) -> tuple[Measure, ...]:
    return _size(listed, details), _breadth(listed, details), _distinct(details)


def _quality(listed: Listed, details: Details | None, fit: Fit) -> tuple[Measure, ...]:
    return _adoption(listed), _readable(fit), _documented(listed, details), _usable(listed, details)


def _match(listed: Listed, category: Category, traffic: tuple[str, ...]) -> tuple[Measure, ...]:
    return (
        _terms(listed, category),
        _found(listed),
        _traffic(listed, traffic),
        _text_only(listed),
    )


def _size(listed: Listed, details: Details | None) -> Measure:
    rows, source = (details.rows, details.rows_from) if details else (None, "unknown")
    bounds = bounds_of(next(iter(listed.tagged("size_categories")), ""))
    if rows is None and bounds:
        rows, source = middle(bounds), "tag"
    if not rows:
        return Measure("size", UNKNOWN, "rows unknown")
    value = min(1.0, max(0.0, (math.log10(rows) - 3) / 3))
    return Measure("size", round(value, 4), f"{rows:,} rows ({source})")


def _breadth(listed: Listed, details: Details | None) -> Measure:
    kinds = {
        "languages": len(listed.tagged("language")),
        "tasks": len(listed.tagged("task_categories")),
        "configurations": len(details.configurations) if details else 0,
    }
    count = sum(kinds.values())
    if not count:
        return Measure("breadth", UNKNOWN, "no language, task or configuration is stated")
    reason = ", ".join(f"{name} {number}" for name, number in kinds.items() if number)
    return Measure("breadth", round(1 - 1 / count, 4), reason)


def _distinct(details: Details | None) -> Measure:
    if details is None or not details.columns:
        return Measure("distinct", UNKNOWN, "columns unknown")
    if runs := sorted(_RUNS & set(details.columns)):
        return Measure("distinct", 0.0, f"rows are runs over shared tasks ({', '.join(runs)})")
    return Measure("distinct", 1.0, "no column says that rows share a task")


def _adoption(listed: Listed) -> Measure:
    if listed.downloads is None and listed.likes is None:
        return Measure("adoption", UNKNOWN, "neither downloads nor likes are known")
    downloads, likes = listed.downloads or 0, listed.likes or 0
    value = (min(1, math.log10(1 + downloads) / 5) + min(1, math.log10(1 + likes) / 3)) / 2
    return Measure("adoption", round(value, 4), f"{downloads:,} downloads a month, {likes:,} likes")


def _readable(fit: Fit) -> Measure:
    values = {"exact": 1.0, "family": 0.7, "none": 0.0, "unknown": UNKNOWN}
    return Measure("readable", values[fit.kind], fit.reason)


def _documented(listed: Listed, details: Details | None) -> Measure:
    stated = {
        "licence": _licence(listed, details) != "unknown",
        "size": bool(listed.tagged("size_categories") or (details and details.rows)),
        "columns": bool(details and details.columns),
        "description": len(listed.description) >= 40,
    }
    missing = [name for name, known in stated.items() if not known]
    reason = "no " + ", no ".join(missing) if missing else "licence, size, columns, description"
    return Measure("documented", 1 - len(missing) / len(stated), reason)


def _usable(listed: Listed, details: Details | None) -> Measure:
    licence = _licence(listed, details).lower()
    if licence == "unknown":
        value = UNKNOWN
    elif _RESTRICTED.search(licence):
        value = 0.0
    elif _SHARE_ALIKE.search(licence):
        value = 0.7
    else:
        value = 1.0 if _PERMISSIVE.match(licence) else 0.4
    access = {"no": 1.0, "auto": 0.8}.get(listed.gated, 0.5)
    gate = "" if listed.gated == "no" else f", gated ({listed.gated})"
    return Measure("usable", round(value * access, 4), f"licence {licence}{gate}")


def _terms(listed: Listed, category: Category) -> Measure:
    return _share("terms", listed, category.terms, 2, "no word of the category")


def _traffic(listed: Listed, traffic: tuple[str, ...]) -> Measure:
    return _share("traffic", listed, traffic, 3, "no word of the target's traffic")


def _share(name: str, listed: Listed, words: tuple[str, ...], enough: int, none: str) -> Measure:
    text = listed.words()
    hits = [word for word in words if re.search(rf"(?<![a-z0-9]){re.escape(word.lower())}", text)]
    return Measure(name, round(min(1, len(hits) / enough), 4), ", ".join(hits) or none)


def _found(listed: Listed) -> Measure:
    value = min(1.0, len(listed.found_by) / 2)
    return Measure("found", value, f"by {', '.join(listed.found_by) or 'nothing'}")


def _text_only(listed: Listed) -> Measure:
    others = sorted(_OTHER_MODALITIES & set(listed.tagged("modality")))
    reason = f"also {', '.join(others)}" if others else "no tag of another modality"
    return Measure("text", 0.0 if others else 1.0, reason)


def _licence(listed: Listed, details: Details | None) -> str:
    stated = next(iter(listed.tagged("license")), "unknown")
    return details.licence if details and details.licence != "unknown" else stated
