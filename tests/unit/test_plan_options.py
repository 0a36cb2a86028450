"""What a plan refuses, what it offers instead, and what it predicts of the accept length."""

import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from rich.console import Console

from aerie.config import ROOT, Config
from aerie.errors import ConfigError, GateError
from aerie.plan.accept import Point, forecast, points
from aerie.plan.document import document
from aerie.plan.estimate import estimate
from aerie.plan.facts import Facts
from aerie.plan.options import Option, Problem, find_problems
from aerie.plan.render import markdown, print_summary, sentence
from aerie.plan.run import make_plan, refusal
from tests.unit.plan_fixtures import CHAT, KIMI, REASONING, TB, answers, config, facts

SCHEMA = json.loads((ROOT / "schemas/plan.schema.json").read_text(encoding="utf-8"))
MIX = {CHAT: 60_000, REASONING: 40_000}
SWE = "nebius/SWE-agent-trajectories"


def problems(settings: Config, known: Facts) -> tuple[Problem, ...]:
    return find_problems(settings, known, estimate(settings, known))


def option(problem: Problem, start: str) -> Option:
    return next(each for each in problem.options if each.what.startswith(start))


def test_a_plan_that_fits_has_no_problem() -> None:
    settings = config(MIX)
    assert problems(settings, facts(settings)) == ()


def test_the_longest_answer_of_any_dataset_must_fit_the_context() -> None:
    settings = config(MIX, datasets__d1__max_new_tokens=260_000)
    known = facts(settings)
    (problem,) = problems(settings, known)
    assert problem.kind == "context"
    assert "the largest max_new_tokens 260,000 = 268,192 tokens" in problem.saw
    assert option(problem, "prompts.max_tokens: 2144").fits
    assert not option(problem, "responses.max_new_tokens").fits


def test_a_small_disk_is_refused_with_options_that_fit() -> None:
    settings = config(MIX, responses__max_new_tokens=8192)
    known = facts(settings, free=6 * TB)
    plan = estimate(settings, known)
    (problem,) = find_problems(settings, known, plan)
    assert problem.kind == "disk"
    assert "6.0 TB free" in problem.saw

    fp8 = option(problem, "states.codec: fp8")
    assert fp8.bytes_saved == pytest.approx(plan.storage.states["bf16"].expected / 2, rel=0.01)

    rolling = option(problem, "rolling.budget_bytes")
    assert rolling.fits and "captures states anew in each epoch, up to" in rolling.cost
    budget, shuffle = (int(word) for word in re.findall(r"\d+", rolling.what))
    rolled = config(
        MIX, responses__max_new_tokens=8192, rolling__budget_bytes=budget,
        drafts__main__shuffle_tokens=shuffle,
    )  # fmt: skip
    assert not problems(rolled, known)
    # A window with the samples held out of all, beside them.
    held_out = 0.05 * plan.storage.states["bf16"].expected
    window = shuffle / 0.95 * plan.storage.bytes_per_token["bf16"]
    assert 0.8 * budget < held_out + window < budget
    captured = {work.phase: work for work in estimate(rolled, known).work}["states"]
    assert captured.tokens is not None
    assert captured.tokens.expected == pytest.approx(4 * plan.tokens.expected)

    shorter = option(problem, "responses.max_new_tokens")
    limit = int(shorter.what.split()[-1])
    assert shorter.fits and "of the samples" in shorter.cost
    assert not problems(config(MIX, responses__max_new_tokens=limit), known)
    assert problems(config(MIX, responses__max_new_tokens=2 * limit), known)

    fewer = option(problem, "takes of")
    percent = int(fewer.what.split()[2])
    assert fewer.fits and fewer.bytes_saved > 0 and fewer.gpu_hours_saved > 0
    scaled = {
        share: config({name: take * share // 100 for name, take in MIX.items()},
                      responses__max_new_tokens=8192)
        for share in (percent, percent + 1)
    }  # fmt: skip
    assert not problems(scaled[percent], known)
    assert problems(scaled[percent + 1], known)


def test_what_is_written_needs_no_room_again() -> None:
    settings = config(MIX)
    known = facts(settings, free=TB)
    assert problems(settings, known)
    needed = estimate(settings, known).storage.needed("bf16").expected
    assert not problems(settings, replace(known, present=round(needed)))


def test_a_disk_that_nothing_fits_says_so() -> None:
    settings = config(MIX)
    (problem,) = problems(settings, facts(settings, free=1))
    assert not any(each.fits for each in problem.options[:-1])
    assert not option(problem, "rolling.budget_bytes").fits
    assert problem.options[-1].what.startswith("a larger disk")


def test_a_take_beyond_the_distinct_prompts_is_refused() -> None:
    settings = config({SWE: 15_000})
    (problem,) = problems(settings, facts(settings))
    assert (problem.kind, problem.options[0].what) == ("take", "datasets.d0.take: 6651")
    assert "80,036 runs" in problem.expected
    smaller = config({SWE: 6651})
    assert not problems(smaller, facts(smaller))


def test_a_prompt_and_answer_beyond_the_context_are_refused() -> None:
    settings = config(MIX, prompts__max_tokens=200_000, responses__max_new_tokens=65_536)
    (problem,) = problems(settings, facts(settings))
    assert problem.kind == "context" and "265,536" in problem.saw and "262,144" in problem.expected
    for each in problem.options:
        section, field, value = re.split(r"\.|: ", each.what)
        changed: dict[str, Any] = {
            "prompts__max_tokens": 200_000, "responses__max_new_tokens": 65_536,
            f"{section}__{field}": int(value),
        }  # fmt: skip
        assert not problems(config(MIX, **changed), facts(settings))


def test_gpu_hours_above_the_limit_are_refused() -> None:
    settings = config(MIX, plan__max_gpu_hours=200)
    known = facts(settings, answers(1604))
    (problem,) = problems(settings, known)
    assert problem.kind == "gpu_hours" and problem.saw == "440 GPU-hours"
    assert option(problem, "drafts.*.epochs: 1").gpu_hours_saved == pytest.approx(72, abs=0.1)
    percent = int(option(problem, "takes of").what.split()[2])
    scaled = config({n: t * percent // 100 for n, t in MIX.items()}, plan__max_gpu_hours=200)
    assert not problems(scaled, known)


def test_one_error_names_every_problem() -> None:
    settings = config({SWE: 15_000}, plan__max_gpu_hours=1)
    error = refusal(problems(settings, facts(settings)))
    for text in ("gate: plan: 2 reasons", "datasets.d0.take: 6651", "plan.max_gpu_hours"):
        assert text in str(error)
    single = refusal(problems(config({SWE: 15_000}), facts(settings)))
    assert single.saw == "take 15,000" and "one of" in str(single.remedy)


def test_the_team_s_first_draft_gives_its_round_cost() -> None:
    history = [{"samples": 10_000, "accept_length": 2.1, "plain_tokens_per_s": 90,
                "draft_tokens_per_s": 82.3}]  # fmt: skip
    settings = config(plan__history=history)
    (point,) = points(settings.plan, Path("nowhere"), {})
    assert point.round_cost == pytest.approx(2.1 * 90 / 82.3)
    found = forecast((point,), 100_000, None)
    assert found.round_cost is not None and round(found.round_cost, 2) == 2.30
    assert found.accept_length is None and found.words == "one point gives no slope"
    assert forecast((point,), 100_000, 2.0).round_cost == 2.0


def test_two_points_give_a_line_in_the_logarithm() -> None:
    known = (Point(10_000, 2.1, 2.4, "a"), Point(40_000, 2.5, None, "b"))
    found = forecast(known, 20_000, None)
    assert found.accept_length == pytest.approx(2.3)
    assert found.speedup == pytest.approx(2.3 / 2.4)
    assert found.samples_to_break_even == pytest.approx(10_000 * 2**1.5, rel=0.001)
    assert found.spread is None
    third = forecast((*known, Point(20_000, 2.6, None, "c")), 20_000, None)
    assert third.spread is not None and third.spread > 0.1
    words = sentence(replace(estimate(config(), facts(config())), accept=found))
    assert "2.30" in words and "break-even at about 28,28" in words


@pytest.mark.parametrize(
    ("known", "samples", "words"),
    [
        ((), 1000, "no earlier draft"),
        ((Point(1000, 2.0, None, "a"), Point(1000, 2.1, None, "b")), 1000, "no slope"),
        ((Point(1000, 2.0, None, "a"), Point(2000, 2.1, None, "b")), 20_001, "beyond 20,000"),
    ],
)
def test_a_forecast_is_refused_in_words(known: tuple[Point, ...], samples: int, words: str) -> None:
    found = forecast(known, samples, None)
    assert found.accept_length is None and words in found.words


@pytest.mark.parametrize("free", [0, 100 * TB])
def test_the_document_matches_its_schema_and_is_the_same_twice(free: int) -> None:
    settings = config(MIX)
    contents = []
    for _ in range(2):
        known = facts(settings, free=free)
        plan = estimate(settings, known)
        contents.append(document(plan, find_problems(settings, known, plan)))
    assert contents[0] == contents[1]
    jsonschema.validate(json.loads(json.dumps(contents[0])), SCHEMA)
    assert contents[0]["feasible"] is (free > 0)


@pytest.mark.parametrize("free", [0, 100 * TB])
def test_the_page_is_whole_tables(free: int) -> None:
    settings = config(MIX | {SWE: 15_000})
    known = facts(settings, free=free)
    plan = estimate(settings, known)
    found = find_problems(settings, known, plan)
    page = markdown(plan, found)
    widths: list[int] = []
    for line in page.splitlines():
        widths = [*widths, line.count("|")] if line.startswith("|") else []
        assert len(set(widths)) <= 1, line
    for text in ("## The mix", "## Disk", "## Will it pay?", "## Next", "| d2 |"):
        assert text in page
    assert ("larger disk" in page) is (free == 0)
    stream = io.StringIO()
    print_summary(plan, found, Console(file=stream, width=100))
    assert "does not fit" in stream.getvalue()


def test_a_refused_plan_is_written_all_the_same(tmp_path: Path) -> None:
    shape = KIMI.model_dump()
    settings = config({SWE: 15_000}, work=str(tmp_path / "work"), plan__shape=shape)
    out = tmp_path / "work/plan/plan.json"
    with pytest.raises(GateError, match=r"datasets\.d0\.take"):
        make_plan(settings, out, Console(file=io.StringIO()))
    content = json.loads(out.read_text(encoding="utf-8"))
    assert content["feasible"] is False and content["problems"]
    assert "does not fit" in out.with_suffix(".md").read_text(encoding="utf-8")


def test_an_unknown_target_is_asked_for(tmp_path: Path) -> None:
    settings = config(work=str(tmp_path))
    with pytest.raises(ConfigError, match=r"plan\.shape"):
        make_plan(settings, tmp_path / "plan.json", Console(file=io.StringIO()))
