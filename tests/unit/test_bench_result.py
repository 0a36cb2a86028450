"""Figures of the bench: formulas, intervals, the verdict and the suites."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aerie.bench.accept import Measured
from aerie.bench.degenerate import Degenerate, degenerate, ends_in_loop
from aerie.bench.result import summarise, verdict
from aerie.bench.run import spread
from aerie.bench.statistics import Bootstrap
from aerie.bench.suite import SuitePrompt, read_suite
from aerie.config import ROOT, BenchSettings
from aerie.errors import DataError, GateError
from aerie.gates.accept import check_accept
from aerie.gates.serving import check_serving
from aerie.train.tally import Tally


def measured(name: str, rounds: list[int], plain_s: float, draft_s: float) -> Measured:
    tally = Tally(3, samples=1)
    for accepted in rounds:
        tally.count(accepted, 3)
    ids = list(range(1 + sum(accepted + 1 for accepted in rounds)))
    return Measured(name, name[0], tally, ids, ids, [plain_s] * 3, [draft_s] * 3)


def test_the_figures_follow_their_definitions() -> None:
    result = summarise([measured("a1", [0, 1, 3], 7.0, 4.5), measured("b1", [2, 0], 4.0, 3.0)], 3)
    assert result["rounds"] == 5
    assert result["accepted"] == 6
    assert result["accept_length"] == pytest.approx(1 + 6 / 5)
    assert result["accept_length_by_request"] == pytest.approx(
        np.mean([1 + 4 / 3, 1 + 2 / 2]), abs=1e-4
    )
    assert result["plain"]["tokens_per_s"] == pytest.approx(11 / 11)
    assert result["draft"]["tokens_per_s"] == pytest.approx(11 / 7.5, abs=1e-4)
    assert result["speedup"] == pytest.approx(11 / 7.5, abs=1e-4)
    assert result["round_cost"] == pytest.approx((7.5 / 5) / (11 / 11))
    # A speed-up is the accept length over the round cost, where no answer is cut at its end.
    assert result["speedup"] == pytest.approx(result["accept_length"] / result["round_cost"], 1e-3)
    assert [p["accepted"] for p in result["positions"]] == [3, 2, 1]
    assert [p["reached"] for p in result["positions"]] == [5, 3, 2]
    assert result["equal_outputs"]["rate"] == 1
    assert set(result["domains"]) == {"a", "b"}


def test_an_interval_covers_at_its_rate() -> None:
    generator = np.random.default_rng(7)
    hits = 0
    for trial in range(200):
        rounds = generator.integers(5, 30, size=60)
        accepted = generator.binomial(rounds * 3, 0.15)
        interval = Bootstrap(60, trial).interval(
            lambda a, r: 1 + a / r, accepted.tolist(), rounds.tolist()
        )
        assert interval is not None
        hits += interval[0] <= 1.45 <= interval[1]
    assert 0.88 <= hits / 200 <= 0.99


def test_one_cluster_has_no_interval() -> None:
    assert Bootstrap(1).interval(lambda a: a, [3.0]) is None


@settings(max_examples=20, deadline=None)
@given(st.floats(0.2, 3.0), st.floats(0.01, 0.5))
def test_the_verdict_follows_the_interval(speedup: float, half: float) -> None:
    interval = [speedup - half, speedup + half]
    figures = {
        "speedup": speedup, "speedup_ci95": interval, "accept_length": 2.0,
        "timed_accept_length": 2.0, "round_cost": 1.5,
    }  # fmt: skip
    pays = verdict(figures, 3)["pays"]
    assert pays is (True if interval[0] > 1 else False if interval[1] < 1 else None)


def test_a_verdict_without_an_interval_promises_nothing() -> None:
    figures = {"speedup": 2.0, "speedup_ci95": None, "accept_length": 2.0, "round_cost": 1.0}
    figures["timed_accept_length"] = 2.0
    told = verdict(figures, 3)
    assert told["pays"] is None
    assert "inf" not in told["words"]


@given(st.floats(1.0, 4.0), st.floats(1.0, 4.0))
def test_the_words_of_a_verdict_multiply_out(length: float, timed: float) -> None:
    """Of an H200 came 2.50 tokens a round, 3.17 steps a round, and 0.70 where 0.79 follows."""
    cost = 3.0
    figures = {
        "speedup": timed / cost, "speedup_ci95": None, "accept_length": length,
        "timed_accept_length": timed, "round_cost": cost,
    }  # fmt: skip
    found = re.search(r"gains (\S+) tokens(?: \((\S+) on the timed prompts\))? and", _told(figures))
    assert found is not None
    assert found[1] == f"{length:.2f}"
    assert (found[2] or found[1]) == f"{timed:.2f}"


def _told(figures: dict[str, Any]) -> str:
    return str(verdict(figures, 3)["words"])


def test_the_accept_gate() -> None:
    good = {"accept_length": 1.5, "simulated_accept_length": 1.45}
    check_accept(good, 1.05, 0.25)
    for bad in (good | {"accept_length": 1.01}, good | {"simulated_accept_length": 2.0}):
        with pytest.raises(GateError, match="`--speculative-algorithm EAGLE` instead of `EAGLE3`"):
            check_accept(bad, 1.05, 0.25)


def test_the_serving_gate() -> None:
    check_serving(21504, 21504)
    with pytest.raises(GateError, match="EAGLE3"):
        check_serving(7168, 21504)


def test_timed_prompts_come_from_the_domains_in_turn() -> None:
    prompts = [SuitePrompt(f"{d}{n}", d, ["x"]) for d in "abc" for n in range(4)]
    chosen = [prompts[n].id for n in spread(prompts, 5)]
    assert chosen == ["a0", "a1", "b0", "b1", "c0"]


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_suites_are_read_per_domain(tmp_path: Path) -> None:
    rows = [{"id": f"{d}{n}", "domain": d, "system": None, "turns": ["x"]} for n in range(3)
            for d in "ab"]  # fmt: skip
    path = write(tmp_path / "s.jsonl", *map(json.dumps, rows))
    assert [prompt.id for prompt in read_suite(path, 2)] == ["a0", "b0", "a1", "b1"]
    assert len(read_suite(path)) == 6


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("{", "line 2"),
        ('{"id": "x"}', "line 2"),
        ('{"id": "x", "domain": "d", "system": null, "turns": []}', "turns"),
        ('{"id": "x", "domain": "d", "system": null, "turns": "text"}', "turns"),
        ("[]", "line 2"),
    ],
)
def test_a_bad_suite_names_its_line(tmp_path: Path, line: str, named: str) -> None:
    good = '{"id": "y", "domain": "d", "system": null, "turns": ["x"]}'
    with pytest.raises(DataError, match=named):
        read_suite(write(tmp_path / "s.jsonl", good, line))


def test_a_missing_or_empty_suite(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="missing"):
        read_suite(tmp_path / "no.jsonl")
    (tmp_path / "empty.jsonl").write_text("", encoding="utf-8")
    with pytest.raises(DataError, match="empty"):
        read_suite(tmp_path / "empty.jsonl")


def test_a_suite_of_conversations_tools_and_modes(tmp_path: Path) -> None:
    call = {"role": "assistant", "content": "", "tool_calls": [{"id": "c"}]}
    rows = [
        {"question_id": 81, "category": "writing", "turns": ["write", "shorten"]},
        {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"},
                      {"role": "assistant", "content": "old"}]},
        {"id": "tool", "mode": "thinking", "messages": [
            {"role": "user", "content": "u"}, call, {"role": "tool", "content": "42"}]},
        {"id": "bfcl", "question": [[{"role": "user", "content": "area?"}]], "function": [
            {"name": "area", "parameters": {"type": "dict", "properties": {}}}]},
    ]  # fmt: skip
    mt, own, tool, bfcl = read_suite(write(tmp_path / "mine.jsonl", *map(json.dumps, rows)))
    assert (mt.id, mt.domain, mt.answers) == ("81", "writing", 2)
    assert mt.messages(["long"])[1:] == [
        {"role": "assistant", "content": "long"}, {"role": "user", "content": "shorten"}
    ]  # fmt: skip
    assert (own.id, own.domain) == ("mine-1", "mine")
    assert [message["role"] for message in own.messages()] == ["system", "user"]
    assert (tool.mode, tool.answers) == ("thinking", 1)
    assert [message["role"] for message in tool.messages()] == ["user", "assistant", "tool"]
    assert bfcl.tools is not None
    assert bfcl.tools[0]["function"]["parameters"]["type"] == "object"


def test_suites_are_read_where_they_lie(tmp_path: Path) -> None:
    import gzip

    import pyarrow as pa
    import pyarrow.parquet as pq

    packed = tmp_path / "HumanEval.jsonl.gz"
    packed.write_bytes(gzip.compress(b'{"task_id": "HumanEval/0", "prompt": "def f():"}\n'))
    table = tmp_path / "verified.parquet"
    pq.write_table(pa.table({"instance_id": ["a-1"], "problem_statement": ["it fails"]}), table)
    assert read_suite(packed)[0] == SuitePrompt("HumanEval/0", "HumanEval", ["def f():"])
    assert read_suite(table)[0] == SuitePrompt("a-1", "verified", ["it fails"])
    packed.write_bytes(b"no gzip")
    with pytest.raises(DataError, match="cannot be read"):
        read_suite(packed)


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ({"id": "y", "turns": ["x"]}, "the id is taken"),
        ({"id": "x", "turns": ["x"], "mode": "slow"}, "mode"),
        ({"id": "x", "question": [[{"role": "user", "content": "x"}]],
          "involved_classes": ["MathAPI"]}, "simulated environment"),
        ({"id": "x", "messages": [{"role": "assistant", "content": "x"}]}, "messages"),
    ],
)  # fmt: skip
def test_rows_that_cannot_be_measured(tmp_path: Path, row: object, named: str) -> None:
    good = '{"id": "y", "domain": "d", "turns": ["x"]}'
    with pytest.raises(DataError, match=named):
        read_suite(write(tmp_path / "s.jsonl", good, json.dumps(row)))


LOOP = [9, 8, 7, 6] * 12


@pytest.mark.parametrize(
    ("ids", "text", "reason"),
    [
        (list(range(60)), "prose of many words, none of them said twice in a row", None),
        ([*range(30), *LOOP], "x", Degenerate.LOOP),
        ([*range(30), *LOOP, 1], "an end token ends the loop", Degenerate.LOOP),
        ([*LOOP, *LOOP, *range(40, 50)], "x", Degenerate.FEW_DISTINCT),
        (list(range(200)), "ha " * 200, Degenerate.COMPRESSES),
        ([5] * 20, "short answers repeat by chance", None),
    ],
)
def test_degenerate_answers_are_known(ids: list[int], text: str, reason: str | None) -> None:
    assert degenerate(ids, text, BenchSettings(suites={"a": "b"})) == reason


@settings(deadline=None)
@given(st.lists(st.integers(0, 5), max_size=8), st.integers(1, 16), st.integers(0, 3))
def test_whatever_repeats_at_the_end_is_a_loop(head: list[int], period: int, cut: int) -> None:
    unit = [100 + n for n in range(period)]
    repeats = max(6, -(-40 // period))
    ids = head + unit * repeats
    assert ends_in_loop(ids[: len(ids) - min(cut, period)])
    assert not ends_in_loop(head + [100 + n for n in range(200)])


def test_degenerate_answers_count_in_no_figure() -> None:
    good, loop = measured("a1", [0, 1, 2], 7.0, 4.5), measured("a2", [3] * 20, 9.0, 1.0)
    alone = summarise([good], 3)
    loop.degenerate = "loop"
    both = summarise([good, loop], 3)
    for figure in ("accept_length", "rounds", "speedup", "output_tokens", "prompts"):
        assert both[figure] == alone[figure]
    assert both["degenerate"]["answers"] == 1
    assert both["degenerate"]["reasons"] == {"loop": 1}
    assert both["degenerate"]["accept_length_with_them"] > alone["accept_length"]
    assert [request["degenerate"] for request in both["requests"]] == [None, "loop"]


def test_nothing_that_counts_is_no_error() -> None:
    loop = measured("a1", [3], 1.0, 1.0)
    loop.degenerate = "loop"
    result = summarise([loop], 3)
    assert result["accept_length"] is None
    assert result["verdict"]["pays"] is None


def test_modes_contexts_and_conversations() -> None:
    some = [measured(f"a{n}", [n % 3] * 5, 7.0, 4.5) for n in range(6)]
    for number, each in enumerate(some):
        each.mode = "thinking" if number % 2 else "instant"
        each.prompt_ids = [0] * (2000 if number < 2 else 10)
        each.prompt = f"p{number // 2}"
    result = summarise(some, 3)
    assert (result["prompts"], result["answers"]) == (3, 6)
    assert {name: g["answers"] for name, g in result["modes"].items()} == {
        "instant": 3, "thinking": 3
    }  # fmt: skip
    assert {name: g["answers"] for name, g in result["contexts"].items()} == {
        "1K to 4K": 2, "under 1K": 4
    }  # fmt: skip
    # The sum of the joint shares is what the accept length is made of.
    joint = sum(entry["joint"] for entry in result["positions"])
    assert result["accept_length"] == pytest.approx(1 + joint, abs=1e-3)


def test_a_bench_fits_its_schema() -> None:
    """What `summarise` writes is what schemas/bench.schema.json describes."""
    import jsonschema

    schema = json.loads((ROOT / "schemas/bench.schema.json").read_text(encoding="utf-8"))
    parts = {name: schema["properties"][name] for name in schema["properties"]}
    result = summarise([measured(f"a{n}", [n % 3] * 5, 7.0, 4.5) for n in range(6)], 3)
    result["equal_outputs"] |= {"dtype": "float32", "words": "all"}
    for name, value in result.items():
        jsonschema.validate(value, parts[name] | {"$defs": schema["$defs"]})
