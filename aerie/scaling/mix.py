"""Which dataset helps which domain: drafts with and without each dataset, judged alike.

Leave one out, on a fraction of the data: what the others lose and gain by it is the difference of
accept lengths on the same held-out prompts. The draft without a dataset is trained on less, as it
would be if the dataset were dropped.
"""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from aerie.bench.accept import pair, rounded
from aerie.bench.statistics import Bootstrap, Floats, Interval
from aerie.contracts import VERSIONS
from aerie.errors import ContractError
from aerie.files import write_sealed
from aerie.scaling.result import OVERALL, columns, read_points

log = logging.getLogger("aerie")


def effects(
    everything: Sequence[Mapping[str, Any]], without: Mapping[str, Sequence[Mapping[str, Any]]]
) -> list[dict[str, Any]]:
    """What each dataset of `without` gives to each domain, from points of several seeds each."""
    domains = sorted({entry["dataset"] for entry in everything[0]["held_out"]})
    groups = [_Group(name, everything, without) for name in (OVERALL, *domains)]
    return [group.effect(dataset) for dataset in without for group in groups]


class _Group:
    """The held-out prompts of one domain, and the drafts' counts on them.

    Drafts of one mix differ by their seed. That deviation is pooled over the mixes and drawn by
    Student's distribution: it is known from few drafts, and held-out prompts cannot show it.
    """

    def __init__(
        self,
        name: str,
        everything: Sequence[Mapping[str, Any]],
        without: Mapping[str, Sequence[Mapping[str, Any]]],
    ) -> None:
        only = None if name == OVERALL else name
        mixes = {None: everything} | dict(without)
        counts = {mix: columns(points, only) for mix, points in mixes.items()}
        alone = {mix: 1 + a.sum(1) / r.sum(1) for mix, (a, r) in counts.items()}
        left = np.concatenate([lengths - lengths.mean() for lengths in alone.values()])
        freedom = len(left) - len(alone)
        self._name, self._counts = name, counts
        self._lengths = {mix: float(lengths.mean()) for mix, lengths in alone.items()}
        self._seeds = {mix: len(lengths) for mix, lengths in alone.items()}
        self._deviation = float(np.sqrt((left**2).sum() / freedom))
        self._bootstrap = Bootstrap(counts[None][0].shape[1])
        # Mixes share no draft, but each difference shares the drafts of the whole mix.
        generator = np.random.default_rng(len(left))
        self._noise: Floats = generator.standard_t(freedom, size=len(self._bootstrap.weights))

    def effect(self, dataset: str) -> dict[str, Any]:
        gain = self._lengths[None] - self._lengths[dataset]
        seeds = 1 / self._seeds[None] + 1 / self._seeds[dataset]
        drawn = self._drawn(None) - self._drawn(dataset)
        noise = self._noise * self._deviation * np.sqrt(seeds)
        interval = self._bootstrap.spread(drawn + noise)
        return {
            "left_out": dataset,
            "domain": self._name,
            "prompts": self._bootstrap.weights.shape[1],
            "accept_length": rounded(self._lengths[None]),
            "accept_length_without": rounded(self._lengths[dataset]),
            "gain": rounded(gain),
            "gain_ci95": pair(interval),
            "seed_deviation": rounded(self._deviation),
            "verdict": verdict(interval),
        }

    def _drawn(self, mix: str | None) -> Floats:
        """AL in each resample of the prompts, float64 [R]: the mean over the seeds."""
        accepted, rounds = self._counts[mix]
        weights = self._bootstrap.weights
        # A resample may hold no rounds; it says nothing and is left out.
        with np.errstate(divide="ignore", invalid="ignore"):
            lengths = 1 + (weights @ accepted.T) / (weights @ rounds.T)
        return np.asarray(lengths.mean(1), dtype=np.float64)


def verdict(interval: Interval | None) -> str:
    """`helps`, `hurts`, or `undecided` where the interval holds zero or there is none."""
    if interval is None or interval[0] <= 0 <= interval[1]:
        return "undecided"
    return "helps" if interval[0] > 0 else "hurts"


def write_mix(paths: Sequence[Path], without: Sequence[Path], out: Path) -> None:
    """Read the points of the whole mix and those without a dataset, and write `mix_study.json`.

    Raises:
        ContractError: a point is damaged or of another build, or they differ in their fraction.
    """
    found = read_points([*paths, *without])
    divisors = {point["divisor"] for point in found}
    if len(divisors) > 1:
        raise ContractError(
            "the points of the mix study are not of one fraction",
            saw=f"one in {', '.join(map(str, sorted(divisors)))}",
            remedy="remove mix_study/ and run `make mix-study` again",
        )
    everything = [point for point in found if point.get("without") is None]
    names = sorted({point["without"] for point in found if point.get("without") is not None})
    grouped = {name: [point for point in found if point.get("without") == name] for name in names}
    content = {
        "artifact": "mix_study",
        "contract": VERSIONS["mix_study"],
        "divisor": divisors.pop(),
        "seeds": len(everything),
        "samples": everything[0]["counts"]["datasets"],
        "effects": effects(everything, grouped),
    }
    write_sealed(out, content)
    for effect in content["effects"]:
        log.info("%s", words(effect))


def words(effect: Mapping[str, Any]) -> str:
    """One effect as a line."""
    interval = effect["gain_ci95"]
    held = f"{interval[0]:+.3f} to {interval[1]:+.3f}" if interval else "too few held-out prompts"
    return (
        f"{effect['left_out']} {effect['verdict']} {effect['domain']}: "
        f"{effect['gain']:+.3f} accept length ({held})"
    )
