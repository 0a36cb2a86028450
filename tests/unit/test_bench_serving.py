"""The served bench, without servers: which answers its figures come from."""

from pathlib import Path
from typing import Any, cast

import pytest

from aerie.bench import serving
from aerie.bench.accept import Measured
from aerie.bench.serving import Served, ServedBench
from aerie.bench.suite import SuitePrompt
from aerie.config import BenchSettings
from aerie.engines.sglang.client import Reply
from aerie.engines.transformers.speculate import ServedDraft
from aerie.target import Target
from aerie.train.tally import Tally

SETTINGS = BenchSettings(suites={"tiny": "-"}, k=3, concurrency=(1,), repeats=1)
LOOP = [5, 6] * 40
FRESH = list(range(5, 85))


def reply(ids: list[int], seconds: float, histogram: list[int] | None = None) -> Reply:
    meta: dict[str, Any] = {"completion_tokens": len(ids)}
    if histogram:
        kept = sum(number * count for number, count in enumerate(histogram))
        meta |= {"spec_verify_ct": sum(histogram), "spec_num_correct_drafts": kept}
        meta["spec_correct_drafts_histogram"] = histogram
    return Reply(ids, "length", meta, seconds)


def served(k: int, *replies: Reply) -> Served:
    seconds = sum(each.latency_s for each in replies)
    return Served(k, {1: [serving._Pass(list(replies), seconds)]})


@pytest.fixture
def bench(tiny_target: Target, tmp_path: Path) -> ServedBench:
    prompts = [SuitePrompt(f"p{number}", "d", ["What is a nest?"]) for number in range(2)]
    draft = cast(ServedDraft, None)
    bench = ServedBench(tiny_target, tmp_path, draft, SETTINGS, prompts, [0, 1], tmp_path)
    bench._first = {
        number: Measured(f"p{number}", "d", Tally(3, samples=1), LOOP, degenerate="loop")
        for number in range(2)
    }
    return bench


def test_the_answer_that_is_timed_is_the_one_that_is_judged(bench: ServedBench) -> None:
    plain = served(0, reply(FRESH, 4), reply(FRESH, 4))
    draft = served(3, reply(FRESH, 2, [0, 0, 0, 20]), reply(LOOP, 1, [0, 0, 0, 20]))
    assert bench._add_timed(plain, draft) == [0]
    assert [bench._first[number].degenerate for number in range(2)] == [None, "loop"]


def test_a_loop_counts_in_no_speedup(bench: ServedBench) -> None:
    plain = served(0, reply(FRESH, 4), reply(LOOP, 4))
    draft = served(3, reply(FRESH, 2, [40, 0, 0, 10]), reply(LOOP, 1, [0, 0, 0, 20]))
    row = serving._entry(plain, draft, 1, 2, bench._add_timed(plain, draft))
    assert row["speedup"] == 2.0
    assert row["accept_length"] == 1 + 30 / 50
    assert row["draft"]["tokens_per_s"] == pytest.approx(160 / 3, abs=0.01)
