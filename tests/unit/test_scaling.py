"""Scaling: fractions are nested, curves are found again, forecasts cover, the rule stops."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aerie.bench.statistics import Bootstrap, Floats
from aerie.errors import ContractError
from aerie.files import write_json
from aerie.scaling.fit import Form, fit, interval_at, points
from aerie.scaling.fractions import nested
from aerie.scaling.result import data_hours, read_points, stop_rule, summarise

SIZES = [400, 400, 800, 800, 1600, 3200, 6400]
PROMPTS = 60


@dataclass(frozen=True)
class Sample:
    id: str
    dataset: str


SAMPLES = st.lists(
    st.builds(
        Sample,
        st.builds("{}.{}".format, st.integers(0, 40), st.integers(0, 3)),
        st.sampled_from("abc"),
    ),
    unique_by=lambda sample: sample.id,
    min_size=1,
)


@settings(deadline=None)
@given(SAMPLES)
def test_a_fraction_holds_every_smaller_one(samples: list[Sample]) -> None:
    some = {divisor: nested(samples, divisor) for divisor in (1, 2, 4, 16)}
    assert some[1] == samples
    for small, large in ((16, 4), (4, 2), (2, 1)):
        assert set(some[small]) <= set(some[large])
    for dataset in {sample.dataset for sample in samples}:
        count = sum(sample.dataset == dataset for sample in samples)
        assert sum(s.dataset == dataset for s in some[4]) == -(-count // 4)


@settings(deadline=None)
@given(SAMPLES, st.integers(2, 9))
def test_a_fraction_does_not_hang_on_order_or_other_datasets(
    samples: list[Sample], divisor: int
) -> None:
    chosen = set(nested(samples, divisor))
    assert set(nested(samples[::-1], divisor)) == chosen
    only = [sample for sample in samples if sample.dataset == "a"]
    assert set(nested(only, divisor)) == {s for s in chosen if s.dataset == "a"}


Truth = Callable[[float], float]
CURVES: dict[str, Truth] = {
    "log": lambda n: 1.0 + 0.13 * np.log(n),
    "saturating": lambda n: 2.6 - 6 * n**-0.35,
    "flat": lambda n: 2.4 - 60 * n**-0.95,
}


def drafts(seed: int, curve: Truth, noise: float = 0.01) -> tuple[Floats, Floats]:
    """Counts of drafts of `SIZES` samples on prompts of unlike difficulty."""
    generator = np.random.default_rng(seed)
    hard = generator.normal(0, 0.25, size=PROMPTS)
    tokens = generator.integers(100, 400, size=PROMPTS)
    accepted, rounds = [], []
    for size in SIZES:
        length = np.clip(curve(size) + hard + generator.normal(0, noise), 1.02, 3.98)
        of = np.maximum(1, np.round(tokens / length)).astype(int)
        accepted.append(generator.binomial(3 * of, (length - 1) / 3))
        rounds.append(of)
    return np.array(accepted, dtype=np.float64), np.array(rounds, dtype=np.float64)


def expected(curve: Truth, size: float) -> float:
    """Token-weighted: harder prompts take more rounds."""
    hard = np.random.default_rng(9).normal(0, 0.25, size=200_000)
    rounds = 1 / np.clip(curve(size) + hard, 1.02, 3.98)
    return float(len(hard) / rounds.sum())


@pytest.mark.parametrize("name", CURVES)
def test_forecasts_cover_the_curve_that_was_there(name: str) -> None:
    curve = CURVES[name]
    doubled, gain = expected(curve, 12800), expected(curve, 12800) - expected(curve, 6400)
    hits = gains = 0
    tries = 30
    for seed in range(tries):
        bootstrap = Bootstrap(PROMPTS, seed)
        found = points(SIZES, *drafts(seed, curve), bootstrap)
        fitted = fit(found, [6400, 12800])
        assert fitted is not None
        interval = interval_at(fitted, 1, found, bootstrap)
        added = bootstrap.spread(fitted.resampled[:, 1] - fitted.resampled[:, 0])
        assert interval is not None
        assert added is not None
        hits += interval[0] <= doubled <= interval[1]
        gains += added[0] <= gain <= added[1]
    assert hits / tries >= 0.83
    assert gains / tries >= 0.8


@pytest.mark.parametrize(("name", "form"), [("log", Form.LOG_LINEAR), ("flat", Form.SATURATING)])
def test_without_noise_the_curve_is_found_again(name: str, form: Form) -> None:
    curve = CURVES[name]
    sizes = [200, 400, 800, 1600, 3200, 6400]
    rounds = np.full((len(sizes), 4), 1e6)
    accepted = np.array([[curve(size) - 1] * 4 for size in sizes]) * rounds
    fitted = fit(points(sizes, accepted, rounds, Bootstrap(4)), [6400, 12800, 64000])
    assert fitted is not None
    assert fitted.form is form
    at = [curve(6400), curve(12800), curve(64000)]
    assert fitted.lengths == pytest.approx(at, abs=0.01)


def test_the_deviation_of_seeds_is_found_where_sizes_repeat() -> None:
    rounds = np.full((3, 5), 1e6)
    accepted = np.array([[0.5], [0.7], [0.9]]) * rounds
    found = points([10, 10, 20], accepted, rounds, Bootstrap(5))
    assert found.lengths == pytest.approx([1.6, 1.9])
    assert found.seed_deviation == pytest.approx(np.sqrt(0.02))


def test_three_sizes_are_no_curve() -> None:
    rounds = np.full((3, 5), 100.0)
    assert fit(points([1, 2, 4], rounds * 0.5, rounds, Bootstrap(5)), [8]) is None


def build(curve: Truth, noise: float = 0.0, seed: int = 0) -> list[dict[str, Any]]:
    accepted, rounds = drafts(seed, curve, noise)
    return [
        {
            "provenance": {"states": "x"},
            "seed": number,
            "counts": {"samples": size, "datasets": {"a": size // 2, "b": size - size // 2}},
            "held_out": [
                {
                    "prompt": f"p{place}", "dataset": "ab"[place % 2],
                    "accepted": [int(a)], "rounds": int(r),
                }
                for place, (a, r) in enumerate(zip(*counts, strict=True))
            ],
        }
        for number, (size, counts) in enumerate(
            zip(SIZES, zip(accepted, rounds, strict=True), strict=True)
        )
    ]  # fmt: skip


def test_the_rule_stops_a_level_curve_and_not_a_steep_one() -> None:
    steep = summarise(build(lambda n: 0.6 + 0.2 * np.log(n)), 0.02, 310, "GPU-hours")
    assert steep["verdict"]["more"] is True
    assert "costs 310 GPU-hours" in steep["verdict"]["words"]
    level = summarise(build(lambda n: 2.0), 0.05, None, "GPU-hours")
    assert level["verdict"]["more"] is False
    assert level["verdict"]["words"].startswith("Stop: doubling adds less than 0.05")


@pytest.mark.parametrize(
    ("interval", "more"), [([0.03, 0.05], True), ([0.0, 0.01], False), ([0.0, 0.05], None)]
)
def test_the_rule_follows_its_interval(interval: list[float], more: bool | None) -> None:
    group = {"doubling": {"gain": sum(interval) / 2, "gain_ci95": interval}}
    assert stop_rule(group, 0.02, 10, "GPU-hours")["more"] is more


@given(st.tuples(st.floats(-1, 1), st.floats(-1, 1)).map(sorted), st.floats(0.001, 0.5))
def test_the_rule_is_sure_only_beside_its_interval(interval: list[float], least: float) -> None:
    group = {"doubling": {"gain": sum(interval) / 2, "gain_ci95": interval}}
    found = stop_rule(group, least, 310, "GPU-hours")
    low, high = interval
    assert found["more"] is (True if low > least else False if high < least else None)
    head = {True: "More data pays", False: "Stop", None: "Undecided"}[found["more"]]
    assert found["words"].startswith(head)
    assert "costs 310 GPU-hours" in found["words"]


def test_the_rule_fires_where_the_truth_lies_and_seldom_where_it_does_not() -> None:
    """On curves whose gain of doubling is known: far above the least, far below, and at it."""
    curve = CURVES["log"]
    gain = expected(curve, 12800) - expected(curve, 6400)
    verdicts = {
        least: [
            summarise(build(curve, 0.01, seed), least, None, "")["verdict"]["more"]
            for seed in range(20)
        ]
        for least in (gain / 10, gain, gain * 10)
    }
    above, at, below = verdicts.values()
    assert above.count(True) >= 15 and False not in above
    assert below.count(False) >= 15 and True not in below
    # At the least itself either answer is wrong, and one in twenty tries gives one.
    assert at.count(None) >= 16


def test_a_forecast_beyond_the_data_is_refused() -> None:
    result = summarise(build(CURVES["log"]), 0.02, None, "GPU-hours")
    assert set(result["groups"]) == {"overall", "a", "b"}
    by_multiple = {entry["multiple"]: entry for entry in result["groups"]["overall"]["forecast"]}
    assert by_multiple[2]["accept_length"] is not None
    few = build(CURVES["log"])[2:]
    narrow = summarise(few, 0.02, None, "GPU-hours")["groups"]["overall"]
    ten = {entry["multiple"]: entry for entry in narrow["forecast"]}[10]
    assert ten["accept_length"] is None
    assert "a factor of 8.0" in ten["refused"]


def test_points_of_another_build_are_refused(tmp_path: Path) -> None:
    paths = [tmp_path / "1-0.json", tmp_path / "2-0.json"]
    for path, states in zip(paths, "xy", strict=True):
        write_json(path, build(CURVES["log"])[0] | {"provenance": {"states": states}})
    with pytest.raises(ContractError, match="not of the same build"):
        read_points(paths)


def test_hours_come_from_the_benchmarks_of_the_build(tmp_path: Path) -> None:
    assert data_hours(tmp_path, 2, 8) == (None, "GPU-hours")
    for name, seconds in (("responses/a/0", 1800), ("states/a/0", 900), ("draft/main", 1800)):
        path = tmp_path / f"benchmarks/{name}.tsv"
        path.parent.mkdir(parents=True)
        path.write_text(f"s\th:m:s\n{seconds}\t0\n")
    for gpus, expected, unit in ((8, 16.0, "GPU-hours"), (0, 2.0, "hours of this machine")):
        hours, name = data_hours(tmp_path, 2, gpus)
        assert hours == pytest.approx(expected) and name == unit
