"""The arithmetic of the plan: known figures, and what must hold for any mix."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerie.plan.estimate import estimate
from aerie.plan.facts import DatasetFacts, Selected
from aerie.plan.known import KNOWN
from aerie.plan.lengths import (
    CATEGORIES,
    SIGMA,
    Answers,
    Range,
    estimated,
    measured,
    share_above,
    tokens_below,
)
from aerie.plan.settings import Shape
from aerie.plan.storage import CODECS, bytes_per_token
from aerie.prompts.adapters import Category, adapters
from tests.unit.plan_fixtures import CHAT, KIMI, REASONING, TB, answers, config, facts

takes = st.integers(1, 100_000)
limits = st.integers(64, 65_536)


def test_kimi_takes_57_kb_a_token() -> None:
    """Four states of 7,168 values in bf16 are 57,344 bytes; an id and a mask are 5 more."""
    settings = config()
    assert bytes_per_token(KIMI, settings, "bf16") == 57_344 + 5
    assert bytes_per_token(KIMI, settings, "fp8") == 28_672 + 4 * 4 + 5


@pytest.mark.parametrize(("tokens", "terabytes"), [(1604, 9.2), (2469, 14.2), (4000, 22.9)])
def test_100k_samples_take_what_the_reference_says(tokens: int, terabytes: float) -> None:
    settings = config(responses__max_new_tokens=8192)
    plan = estimate(settings, facts(settings, answers(tokens)))
    assert plan.samples == 100_000
    assert round(plan.storage.states["bf16"].expected / TB, 1) == terabytes


def test_the_team_s_case_gives_the_team_s_hours() -> None:
    """100K samples of 1,604 tokens, 4 epochs: 24, 19 and 12 hours of a host."""
    settings = config(plan__hosts=2)
    plan = estimate(settings, facts(settings, answers(1604)))
    work = {work.phase: work for work in plan.work if work.tokens}
    hours = {phase: work.hours.expected for phase, work in work.items() if work.hours}
    assert hours == {
        "responses": pytest.approx(24),
        "states": pytest.approx(19),
        "draft": pytest.approx(12),
    }
    assert {each.basis for each in work.values()} == {"estimate"}
    assert plan.gpu_hours.expected == pytest.approx(8 * 55)
    # 50 parts on two hosts; one draft is never split.
    assert plan.hours_on_hosts.expected == pytest.approx(12 + 9.5 + 12)
    draft = work["draft"].hours
    assert draft and [draft.low, draft.high] == pytest.approx([9.6, 16])


@pytest.mark.parametrize(("limit", "share"), [(4096, 0.162), (8192, 0.071), (16384, 0.014)])
def test_log_normal_fits_the_counted_lengths(limit: int, share: float) -> None:
    assert share_above(2643, limit) == pytest.approx(share, abs=0.012)


def test_log_normal_formulas_agree_with_a_sample() -> None:
    mean, limit = 3000.0, 4096
    location = math.log(mean) - SIGMA**2 / 2
    sample = np.random.default_rng(0).lognormal(location, SIGMA, 1_000_000)
    assert share_above(mean, limit) == pytest.approx((sample > limit).mean(), abs=0.002)
    below = float(np.where(sample <= limit, sample, 0).mean())
    assert tokens_below(mean, limit) == pytest.approx(below, rel=0.005)


@given(st.dictionaries(st.sampled_from([CHAT, REASONING]), st.tuples(takes, takes), min_size=1))
def test_a_larger_take_needs_no_less(pairs: dict[str, tuple[int, int]]) -> None:
    plans = []
    for choose in (min, max):
        settings = config({adapter: choose(pair) for adapter, pair in pairs.items()})
        plans.append(estimate(settings, facts(settings)))
    small, large = plans
    assert small.prompts <= large.prompts
    assert small.samples <= large.samples
    for name in ("low", "expected", "high"):
        assert getattr(small.tokens, name) <= getattr(large.tokens, name)
        assert getattr(small.gpu_hours, name) <= getattr(large.gpu_hours, name)
    for codec in CODECS:
        assert small.storage.needed(codec).expected <= large.storage.needed(codec).expected
    for before, after in zip(small.work, large.work, strict=True):
        assert before.jobs <= after.jobs and before.files <= after.files


@given(st.dictionaries(st.sampled_from(sorted(adapters())), takes, min_size=1, max_size=5), limits)
def test_sums_agree_and_ranges_are_in_order(mix: dict[str, int], limit: int) -> None:
    settings = config(mix, responses__max_new_tokens=limit)
    plan = estimate(settings, facts(settings))
    assert plan.tokens.expected == pytest.approx(sum(e.tokens.expected for e in plan.entries))
    assert plan.parts == sum(math.ceil(e.prompts / 2000) for e in plan.entries)
    work = {work.phase: work for work in plan.work}
    assert work["responses"].jobs == work["states"].jobs == plan.parts
    for codec, states in plan.storage.states.items():
        each = plan.storage.bytes_per_token[codec]
        assert states.expected == pytest.approx(plan.tokens.expected * each)
    for entry in plan.entries:
        assert 0 <= entry.lost < 1
        assert entry.tokens.expected <= entry.generated.expected
        assert entry.available is None or entry.prompts <= entry.available
    ranges = [plan.tokens, plan.hours, plan.gpu_hours, *plan.storage.states.values()]
    ranges += [entry.tokens_per_sample for entry in plan.entries]
    for each_range in ranges:
        assert 0 <= each_range.low <= each_range.expected <= each_range.high


@given(st.integers(64, 16384), st.integers(8, 128))
def test_twice_the_width_takes_twice_the_bytes(width: int, layers: int) -> None:
    settings = config()
    plans = [
        estimate(
            settings,
            facts(settings, shape=Shape(layers=layers, hidden_size=hidden, max_position=8192)),
        )
        for hidden in (width, 2 * width)
    ]
    narrow, wide = (plan.storage.states["bf16"].expected for plan in plans)
    assert wide / narrow == pytest.approx(2, rel=0.01)


@given(
    st.lists(st.tuples(st.integers(1, 5000), st.integers(1, 5000)), min_size=1, max_size=50),
    limits,
    st.booleans(),
)
def test_measured_lengths_are_the_counts(
    pairs: list[tuple[int, int]], limit: int, keep: bool
) -> None:
    prompts, outputs = (np.array(column) for column in zip(*pairs, strict=True))
    lengths = measured(Answers(prompts, outputs), limit, keep)
    kept = [p + min(o, limit) for p, o in pairs if keep or o <= limit]
    assert lengths.kept.expected * len(pairs) == pytest.approx(sum(kept))
    assert lengths.lost == pytest.approx(0 if keep else 1 - len(kept) / len(pairs))
    assert lengths.kept.low <= lengths.kept.expected <= lengths.kept.high


@given(st.sampled_from(list(Category)), st.floats(0, 20_000), limits, st.booleans())
def test_an_estimate_holds_the_prompt(
    category: Category, prompt: float, limit: int, keep: bool
) -> None:
    lengths = estimated(category, prompt, limit, keep)
    assert lengths.generated.low > prompt
    assert lengths.kept.expected <= lengths.generated.expected
    assert keep or 0 < lengths.lost < 1


def test_without_a_limit_an_estimate_is_the_category_s() -> None:
    low, high = CATEGORIES[Category.REASONING]
    lengths = estimated(Category.REASONING, 0.0, 1 << 30, False)
    for saw, expected in zip(
        vars(lengths.kept).values(), (low, (low + high) / 2, high), strict=True
    ):
        assert saw == pytest.approx(expected)


def test_a_selection_that_is_there_is_taken_as_it_is() -> None:
    found = Selected(take=5000, part_size=2000, prompts=5730, parts=3, available=9000)
    settings = config({CHAT: 5000})
    plan = estimate(settings, facts(settings, DatasetFacts(candidates=9100, selected=found)))
    entry = plan.entries[0]
    assert (entry.prompts, entry.parts, entry.available) == (5730, 3, 9000)
    assert entry.available_basis == "measured"
    larger = config({CHAT: 20_000})
    plan = estimate(larger, facts(larger, DatasetFacts(candidates=9100, selected=found)))
    assert (plan.prompts, plan.parts) == (9000, 5)


def test_a_take_is_met_with_whole_parts() -> None:
    settings = config({CHAT: 2500})
    plan = estimate(settings, facts(settings, DatasetFacts(turns=1.5)))
    assert (plan.prompts, plan.parts) == (4000, 2)
    assert plan.samples == pytest.approx(6000 * (1 - plan.entries[0].lost), abs=1)


def test_known_datasets_have_adapters() -> None:
    assert set(KNOWN) <= set(adapters())


def test_a_range_over_a_rate_is_a_range_of_times() -> None:
    assert Range(10, 20, 40).over(Range(1, 2, 5)) == Range(2, 10, 40)
