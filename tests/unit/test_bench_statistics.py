"""Intervals, comparisons and sizes against simulated data whose truth is known."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aerie.bench.compare import compare, size
from aerie.bench.statistics import (
    Bootstrap,
    Floats,
    deviation,
    prompts_for_difference,
    prompts_for_half_width,
)
from aerie.errors import DataError

K = 3


def answers(generator: np.random.Generator, skill: Floats) -> tuple[Floats, Floats]:
    """Accepted draft tokens and rounds of one answer a prompt; `skill` is its acceptance."""
    rounds = generator.integers(10, 80, size=len(skill))
    accepted = [
        (generator.random((n, K)) < p).cumprod(1).sum() for n, p in zip(rounds, skill, strict=True)
    ]
    return np.array(accepted, dtype=np.float64), rounds.astype(np.float64)


def truth(skill: Floats) -> float:
    return float(1 + np.mean(sum(skill**i for i in range(1, K + 1))))


@pytest.mark.parametrize("prompts", [3, 6, 12, 40])
def test_intervals_cover_at_their_rate_however_few_prompts(prompts: int) -> None:
    generator = np.random.default_rng(prompts)
    length = truth(generator.beta(4, 8, size=400_000))
    hits = 0
    for trial in range(250):
        accepted, rounds = answers(generator, generator.beta(4, 8, size=prompts))
        found = Bootstrap(prompts, trial).interval(
            lambda a, r: 1 + a / r, accepted.tolist(), rounds.tolist()
        )
        assert found is not None
        hits += found[0] <= length <= found[1]
    # Three deviations of a share of 250 tries about 95 %; few prompts may cost 3 % more.
    assert 0.88 <= hits / 250 <= 0.995


def test_prompts_and_not_rounds_are_drawn() -> None:
    """Rounds of one prompt are alike: an interval by rounds would be far too narrow."""
    generator = np.random.default_rng(3)
    accepted, rounds = answers(generator, generator.beta(4, 8, size=40))
    found = Bootstrap(40).interval(lambda a, r: 1 + a / r, accepted.tolist(), rounds.tolist())
    assert found is not None
    by_rounds = 2 * 1.96 / math.sqrt(rounds.sum())
    assert found[1] - found[0] > 1.5 * by_rounds


def test_two_clusters_and_resamples_of_nothing_have_no_interval() -> None:
    assert Bootstrap(2).interval(lambda a: a, [1.0, 2.0]) is None
    assert Bootstrap(0).interval(lambda a: a, []) is None
    assert Bootstrap(4).interval(lambda a, b: a / b, [0.0] * 4, [0.0] * 4) is None


def bench(prompts: list[str], accepted: Floats, rounds: Floats, **changes: Any) -> dict[str, Any]:
    return {
        "artifact": "bench",
        "contract": 2,
        "k": K,
        "sampling": {"temperature": 0},
        "digests": {"target": "t", "suite": "s"},
        "requests": [
            {
                "prompt": name, "domain": name[0], "degenerate": None,
                "accepted": int(a), "rounds": int(r),
            }
            for name, a, r in zip(prompts, accepted, rounds, strict=True)
        ],
    } | changes  # fmt: skip


def pair_of_drafts(seed: int, prompts: int, gain: float) -> tuple[dict[str, Any], dict[str, Any]]:
    generator = np.random.default_rng(seed)
    skill = generator.beta(4, 8, size=prompts)
    names = [f"{'ab'[n % 2]}{n}" for n in range(prompts)]
    before, after = answers(generator, skill), answers(generator, np.clip(skill + gain, 0, 1))
    return bench(names, *before), bench(names, *after)


def test_a_paired_difference_covers_the_truth_and_is_narrower() -> None:
    skill = np.random.default_rng(0).beta(4, 8, size=400_000)
    difference = truth(skill + 0.03) - truth(skill)
    hits, narrower = 0, 0
    for seed in range(120):
        before, after = pair_of_drafts(seed, 40, 0.03)
        overall, *domains = compare(before, after)
        assert [found.name for found in domains] == ["a", "b"]
        assert overall.interval is not None
        hits += overall.interval[0] <= difference <= overall.interval[1]
        counts = [
            deviation([r["accepted"] for r in b["requests"]], [r["rounds"] for r in b["requests"]])
            for b in (before, after)
        ]
        apart = 2 * 1.96 * math.hypot(*counts) / math.sqrt(40)
        narrower += overall.interval[1] - overall.interval[0] < apart
    assert 0.88 <= hits / 120 <= 1
    assert narrower > 100


def test_a_draft_compared_with_itself_differs_by_nothing() -> None:
    before, _ = pair_of_drafts(1, 20, 0)
    overall = compare(before, before)[0]
    assert (overall.difference, overall.interval) == (0, (0, 0))
    assert overall.words == "undecided"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"k": 4}, "k"),
        ({"sampling": {"temperature": 1}}, "sampling"),
        ({"digests": {"target": "other", "suite": "s"}}, "digests.target"),
    ],
)
def test_benches_of_other_protocols_are_not_compared(change: dict[str, Any], named: str) -> None:
    before, after = pair_of_drafts(1, 10, 0)
    with pytest.raises(DataError, match=f"differ in {named}"):
        compare(before, after | change)


def test_degenerate_answers_are_not_compared() -> None:
    before, after = pair_of_drafts(1, 10, 0)
    after["requests"][0] |= {"degenerate": "loop", "accepted": 10_000}
    assert compare(before, after)[0].prompts == 9


def test_the_size_that_is_said_finds_the_difference() -> None:
    """Four of five tries, on as many prompts as the helper asks for."""
    gain = 0.05
    skill = np.random.default_rng(0).beta(4, 8, size=400_000)
    difference = truth(skill + gain) - truth(skill)
    said = size(*pair_of_drafts(5, 400, gain)[:1], difference, pair_of_drafts(5, 400, gain)[1])
    assert said.paired is not None
    assert said.paired < said.unpaired
    seen = 0
    for seed in range(100):
        interval = compare(*pair_of_drafts(1000 + seed, said.paired, gain))[0].interval
        seen += interval is not None and interval[0] > 0
    assert 0.66 <= seen / 100 <= 0.94


@settings(max_examples=50, deadline=None)
@given(st.floats(0.05, 2), st.floats(0.01, 0.5))
def test_half_the_difference_takes_four_times_the_prompts(spread: float, aim: float) -> None:
    whole, half = prompts_for_difference(spread, aim), prompts_for_difference(spread, aim / 2)
    assert whole <= half <= 4 * whole
    assert prompts_for_half_width(spread, aim) <= whole
