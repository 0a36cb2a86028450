"""From points to the answer: curves, what more data would give, and when to stop."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from aerie.bench.accept import pair, rounded
from aerie.bench.statistics import Bootstrap, Floats
from aerie.contracts import VERSIONS
from aerie.contracts.sidecar import read_sidecar
from aerie.errors import ContractError
from aerie.files import read_json, write_sealed
from aerie.plan.rates import PHASES, read_rates
from aerie.scaling.fit import LEAST_SIZES, Curve, Form, Points, fit, interval_at, points
from aerie.scaling.settings import ScalingSettings

log = logging.getLogger("aerie")

MULTIPLES = (2, 5, 10)
# A forecast that is no surer than this decides nothing: drafts differ by less.
_WIDEST = 0.25
_BAND = 24
OVERALL = "overall"


def read_points(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """Read the points, fewest samples first.

    Raises:
        ContractError: one is damaged, or they were not made by one recipe on the same data.
    """
    found = [read_json(path) for path in paths]
    for path, point in zip(paths, found, strict=True):
        if point["provenance"] != found[0]["provenance"]:
            raise ContractError(
                f"{path} is not of the same build as {paths[0]}",
                saw=point["provenance"],
                expected=found[0]["provenance"],
                remedy="remove it and run `make scaling` again",
            )
    return sorted(found, key=lambda point: (point["counts"]["samples"], point["seed"]))


def summarise(
    found: Sequence[Mapping[str, Any]], least_gain: float, hours: float | None, unit: str
) -> dict[str, Any]:
    """The content of `scaling.json`, from the points of one build.

    `hours` is what the data that is there has cost, in `unit`: doubling costs it once more.
    """
    trained = set.intersection(*(set(point["counts"]["datasets"]) for point in found))
    datasets = sorted(trained & {entry["dataset"] for entry in found[0]["held_out"]})
    groups = {OVERALL: None} | {name: name for name in datasets}
    curves = {name: _group(found, only) for name, only in groups.items()}
    return {
        "sizes": [point["counts"]["samples"] for point in found],
        "seeds": [point["seed"] for point in found],
        "least_gain": least_gain,
        "doubling_cost": None if hours is None else rounded(hours),
        "cost_unit": unit,
        "verdict": stop_rule(curves[OVERALL], least_gain, hours, unit),
        "groups": curves,
    }


def _group(found: Sequence[Mapping[str, Any]], dataset: str | None) -> dict[str, Any]:
    sizes = [_size(point, dataset) for point in found]
    accepted, rounds = columns(found, dataset)
    bootstrap = Bootstrap(accepted.shape[1])
    every = points(sizes, accepted, rounds, bootstrap)
    largest = float(every.sizes[-1])
    band = np.geomspace(every.sizes[0], largest, _BAND)
    curve = fit(every, [largest, *(largest * m for m in MULTIPLES), *band])
    return {
        "prompts": accepted.shape[1],
        "seed_deviation": rounded(every.seed_deviation),
        "points": [
            {
                "samples": int(size),
                "accept_length": rounded(float(length)),
                "accept_length_ci95": pair(bootstrap.spread(every.resampled[:, place])),
            }
            for place, (size, length) in enumerate(zip(every.sizes, every.lengths, strict=True))
        ],
        **_forecast(every, curve, bootstrap, band),
    }


def _forecast(
    every: Points, curve: Curve | None, bootstrap: Bootstrap, band: Floats
) -> dict[str, Any]:
    if curve is None:
        words = f"{len(every.sizes)} sizes are too few for a curve: {LEAST_SIZES} are needed"
        refused = [
            {"multiple": m, "accept_length": None, "accept_length_ci95": None, "refused": words}
            for m in MULTIPLES
        ]
        return {"form": None, "errors": None, "curve": [], "doubling": None, "forecast": refused}
    start = len(MULTIPLES) + 1
    drawn = [
        {
            "samples": round(float(size)),
            "accept_length": rounded(float(curve.lengths[start + place])),
            "accept_length_ci95": pair(interval_at(curve, start + place, every, bootstrap)),
        }
        for place, size in enumerate(band)
    ]
    gain = curve.resampled[:, 1] - curve.resampled[:, 0]
    return {
        "form": curve.form,
        "errors": {form: rounded(curve.errors[form]) for form in Form},
        "curve": drawn,
        "doubling": {
            "gain": rounded(float(curve.lengths[1] - curve.lengths[0])),
            "gain_ci95": pair(bootstrap.spread(gain)),
        },
        "forecast": [
            _at(multiple, place, every, curve, bootstrap)
            for place, multiple in enumerate(MULTIPLES, start=1)
        ],
    }


def _at(
    multiple: int, place: int, every: Points, curve: Curve, bootstrap: Bootstrap
) -> dict[str, Any]:
    """AL at a multiple of the data, or why nothing is said of it."""
    interval = interval_at(curve, place, every, bootstrap)
    reach = every.sizes[-1] / every.sizes[0]
    refused = None
    if multiple > reach:
        refused = f"the data reach over a factor of {reach:.1f} alone"
    elif interval is None:
        refused = "too few held-out prompts for an interval"
    elif interval[1] - interval[0] > 2 * _WIDEST:
        refused = f"the interval would be {interval[0]:.2f} to {interval[1]:.2f}"
    return {
        "multiple": multiple,
        "accept_length": None if refused else rounded(float(curve.lengths[place])),
        "accept_length_ci95": None if refused else pair(interval),
        "refused": refused,
    }


def stop_rule(
    group: Mapping[str, Any], least_gain: float, hours: float | None, unit: str
) -> dict[str, Any]:
    """Whether to double the data. `more` is None where the interval holds both answers."""
    doubling = group["doubling"]
    if doubling is None or doubling["gain_ci95"] is None:
        reason = "too few sizes" if doubling is None else "too few held-out prompts"
        return {"more": None, "words": f"Undecided: {reason} to say what doubling would add."}
    low, high = doubling["gain_ci95"]
    more = True if low > least_gain else False if high < least_gain else None
    head = {
        True: "More data pays",
        False: f"Stop: doubling adds less than {least_gain:g}",
        None: "Undecided",
    }[more]
    cost = "" if hours is None else f" and costs {hours:,.3g} {unit}"
    words = (
        f"{head}: doubling adds {doubling['gain']:.3f} to the accept length "
        f"(95 % interval {low:.3f} to {high:.3f}){cost}."
    )
    if more is None:
        words += f" It cannot be told from {least_gain:g}; more held-out prompts would."
    return {"more": more, "words": words}


def _size(point: Mapping[str, Any], dataset: str | None) -> int:
    samples = (
        point["counts"]["samples"] if dataset is None else point["counts"]["datasets"][dataset]
    )
    return int(samples)


def columns(found: Sequence[Mapping[str, Any]], dataset: str | None) -> tuple[Floats, Floats]:
    """Accepted draft tokens and rounds, float64 [points, prompts]: turns of a prompt together.

    Of all held-out prompts, or of one dataset's.
    """
    accepted, rounds = [], []
    for point in found:
        sums: dict[str, list[int]] = {}
        for entry in point["held_out"]:
            if dataset in (None, entry["dataset"]):
                both = sums.setdefault(entry["prompt"], [0, 0])
                both[0] += sum(entry["accepted"])
                both[1] += entry["rounds"]
        accepted.append([both[0] for both in sums.values()])
        rounds.append([both[1] for both in sums.values()])
    return np.array(accepted, dtype=np.float64), np.array(rounds, dtype=np.float64)


def write_scaling(
    settings: ScalingSettings,
    paths: Sequence[Path],
    manifest: Path,
    work: Path,
    gpus: int,
    out: Path,
) -> None:
    """Read the points and write `scaling.json`; the verdict is logged too.

    Raises:
        ContractError: a point is damaged or of another build.
    """
    parts = read_sidecar(manifest, "manifest")["counts"]["parts"]
    hours, unit = data_hours(work, parts, gpus)
    content = summarise(read_points(paths), settings.least_gain, hours, unit)
    write_sealed(out, {"artifact": "scaling", "contract": VERSIONS["scaling"], **content})
    log.info("%s", content["verdict"]["words"])


def data_hours(work: Path, parts: int, gpus: int) -> tuple[float | None, str]:
    """What answers, states and draft of this build took, by Snakemake's benchmarks; and the unit.

    None where one of them was not timed. A job that was resumed is timed from there on.
    """
    seconds = read_rates(work, {}, {}, {}).seconds
    unit = "GPU-hours" if gpus else "hours of this machine"
    if any(phase not in seconds for phase in PHASES):
        return None, unit
    spent = parts * (seconds["responses"] + seconds["states"]) + seconds["draft"]
    return spent / 3600 * max(gpus, 1), unit
