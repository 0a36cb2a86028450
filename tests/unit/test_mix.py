"""Mix study: what a dataset gives is found again, intervals cover, and doubt is said."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerie.bench.statistics import Floats
from aerie.errors import ContractError
from aerie.files import read_json, write_json
from aerie.scaling.mix import effects, verdict, write_mix

PROMPTS = 60
SEED_DEVIATION = 0.02
# AL that the drafts of each mix reach on the prompts of datasets a and b.
TRUTH = {None: {"a": 2.4, "b": 2.0}, "a": {"a": 2.1, "b": 2.0}, "b": {"a": 2.4, "b": 1.85}}


class Drafts:
    """Points of drafts on prompts of unlike difficulty, as the trainer would write them."""

    def __init__(self, seed: int, noise: float = SEED_DEVIATION) -> None:
        self._draw, self._noise = np.random.default_rng(seed), noise
        self._hard: Floats = self._draw.normal(0, 0.25, PROMPTS)
        self._tokens = self._draw.integers(100, 400, PROMPTS)

    def point(self, without: str | None, seed: int) -> dict[str, Any]:
        luck = self._draw.normal(0, self._noise)
        held_out = []
        for place in range(PROMPTS):
            dataset = "ab"[place % 2]
            length = np.clip(TRUTH[without][dataset] + self._hard[place] + luck, 1.02, 3.98)
            rounds = max(1, round(self._tokens[place] / length))
            accepted = int(self._draw.binomial(3 * rounds, (length - 1) / 3))
            held_out.append(
                {
                    "prompt": f"p{place}",
                    "dataset": dataset,
                    "rounds": rounds,
                    "accepted": [accepted],
                }
            )
        left_out = {} if without is None else {"without": without}
        return {
            "divisor": 4, "seed": seed, **left_out, "held_out": held_out,
            "counts": {"samples": 10, "datasets": {"a": 5, "b": 5}}, "provenance": {"states": "x"},
        }  # fmt: skip

    def mix(self, without: str | None, seeds: int = 2) -> list[dict[str, Any]]:
        return [self.point(without, seed) for seed in range(seeds)]


def found(seed: int, seeds: int = 2) -> dict[tuple[str, str], dict[str, Any]]:
    drafts = Drafts(seed)
    every = effects(drafts.mix(None, seeds), {name: drafts.mix(name, seeds) for name in "ab"})
    return {(entry["left_out"], entry["domain"]): entry for entry in every}


def gain(left_out: str, domain: str) -> float:
    """The token-weighted truth: harder prompts take more rounds."""
    hard = np.random.default_rng(9).normal(0, 0.25, 200_000)
    lengths = [np.clip(TRUTH[m][domain] + hard, 1.02, 3.98) for m in (None, left_out)]
    with_, without = (float(len(hard) / (1 / length).sum()) for length in lengths)
    return with_ - without


@pytest.mark.parametrize(("left_out", "domain"), [("a", "a"), ("a", "b"), ("b", "b")])
def test_intervals_cover_what_a_dataset_gives(left_out: str, domain: str) -> None:
    truth, tries = gain(left_out, domain), 60
    hits = 0
    for seed in range(tries):
        low, high = found(seed)[left_out, domain]["gain_ci95"]
        hits += low <= truth <= high
    # 95 %: of 60 tries fewer than 53 are seen once in 200.
    assert hits >= 53


def test_each_dataset_helps_its_own_domain_and_is_undecided_of_the_other() -> None:
    several = [found(seed, seeds=3) for seed in range(10)]
    verdicts = {
        pair: [each[pair]["verdict"] for each in several] for pair in (("a", "a"), ("a", "b"))
    }
    assert verdicts["a", "a"].count("helps") >= 9
    assert verdicts["a", "b"].count("undecided") >= 8


@given(st.tuples(st.floats(-1, 1), st.floats(-1, 1)).map(sorted))
def test_a_verdict_never_spans_zero(interval: list[float]) -> None:
    low, high = interval
    expected = "helps" if low > 0 else "hurts" if high < 0 else "undecided"
    assert verdict((low, high)) == expected


def test_without_an_interval_nothing_is_decided() -> None:
    assert verdict(None) == "undecided"


def test_drafts_that_agree_leave_the_prompts_alone_to_differ() -> None:
    """Paired by prompt: where every draft is the same, difficulty of prompts cancels."""
    point = Drafts(0, noise=0.0).point(None, 0)
    every = effects([point, point], {"a": [point, point]})
    assert [entry["gain_ci95"] for entry in every] == [[0.0, 0.0]] * 3
    assert {entry["verdict"] for entry in every} == {"undecided"}


def written(folder: Path, points: list[dict[str, Any]]) -> list[Path]:
    paths = [folder / f"{number}.json" for number in range(len(points))]
    for path, point in zip(paths, points, strict=True):
        write_json(path, point)
    return paths


def test_the_study_is_written_from_its_points(tmp_path: Path) -> None:
    drafts = Drafts(1)
    whole = written(tmp_path / "whole", drafts.mix(None))
    without = written(tmp_path / "without", [*drafts.mix("a"), *drafts.mix("b")])
    write_mix(whole, without, tmp_path / "mix_study.json")
    study = read_json(tmp_path / "mix_study.json")
    assert (study["divisor"], study["seeds"]) == (4, 2)
    assert len(study["effects"]) == 2 * 3
    assert study["effects"][0]["prompts"] == PROMPTS


def test_points_of_two_fractions_are_refused(tmp_path: Path) -> None:
    drafts = Drafts(1)
    whole = written(tmp_path / "whole", drafts.mix(None))
    other = [point | {"divisor": 8} for point in drafts.mix("a")]
    with pytest.raises(ContractError, match="not of one fraction"):
        write_mix(whole, written(tmp_path / "without", other), tmp_path / "out.json")
