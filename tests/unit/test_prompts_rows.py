"""Rows in the real schemas, whole and broken, through `aerie normalise`."""

import json
import re
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aerie.contracts.prompts import NOTES, Flag, Reason
from aerie.errors import ConfigError
from aerie.prompts import inspect
from aerie.prompts.adapters import Category, adapter, adapters, base, families
from aerie.prompts.inspect import normalise_file
from aerie.prompts.meanings import FLAGS, REASONS
from aerie.prompts.normalise import normalise
from tests.unit.prompts_cases import CASES, Case, keep
from tests.unit.prompts_fixtures import write_jsonl

BAD_ROWS = Path(__file__).parent.parent / "fixtures" / "bad_rows"
DOCS = Path(__file__).parent.parent.parent / "docs"
EXPECTED: dict[str, list[dict[str, Any]]] = defaultdict(list)
for _row in json.loads((BAD_ROWS / "expected.json").read_text(encoding="utf-8"))["rows"]:
    EXPECTED[_row["file"]].append(_row)
# What a target answers and what is supervised of it are no prompts.
_OTHERS = ("masks__", "responses__")


@pytest.mark.parametrize("name", sorted(name for name in EXPECTED if not name.startswith(_OTHERS)))
def test_reported_bad_rows(name: str) -> None:
    got = {one["line"]: one for one in normalise_file(name[: -len(".jsonl")], BAD_ROWS / name)}
    assert got.keys() == {row["line"] for row in EXPECTED[name]}
    for row in EXPECTED[name]:
        outcome = got[row["line"]]
        wanted = {"action": row["action"], "reason": row["reason"], "flags": sorted(row["flags"])}
        wanted |= row["expect"] or {}
        assert {key: outcome[key] for key in wanted} == wanted, row["problem"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.dataset}: {case.kind}")
def test_rows_of_the_same_kinds(case: Case, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    lines = [line if isinstance(line, str) else json.dumps(line) for line in case.lines]
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="")
    got = list(normalise_file(case.dataset, file))
    assert [one["line"] for one in got] == list(range(1, len(lines) + 1))
    assert [{key: one[key] for key in keep()} for one in got] == case.outcomes


def test_every_dataset_has_rows_here() -> None:
    tried = {case.dataset for case in CASES} | {name[:-6].replace("__", "/") for name in EXPECTED}
    assert set(adapters()) <= tried


def test_every_reason_and_flag_of_a_row_is_met_here() -> None:
    rows = [row for rows in EXPECTED.values() for row in rows]
    rows += [outcome for case in CASES for outcome in case.outcomes]
    met = {row["reason"] for row in rows} | {flag for row in rows for flag in row["flags"]}
    # These need a target, a mix, or a limit on turns.
    elsewhere = {"refused_by_template", "near_duplicate", "later_turns_dropped"}
    assert {*Reason, *Flag} - met == elsewhere


def test_what_adapters_say_of_themselves() -> None:
    for id, reader in adapters().items():
        assert isinstance(reader.category, Category), id
        assert reader.licence and reader.files and reader.columns
        assert reader.attribution or id.startswith("generic/")
        assert {*reader.one_of, *filter(None, [reader.stratum])} <= set(reader.wanted()), id
        assert len(set(reader.wanted())) == len(reader.wanted())
        assert reader.share_alike == ("-SA-" in reader.licence)


def test_answers_that_a_dataset_claims_to_be_the_targets() -> None:
    answer = "<think>hm</think>Scattering."
    turns = [{"from": "human", "value": "Why is it blue?"}, {"from": "gpt", "value": answer}]
    taught = [{"from": "system", "value": "Call <tools>."}, *turns]

    def native(id: str, conversations: list[dict[str, str]]) -> str | None:
        reader = adapter(id)
        row = dict.fromkeys(reader.wanted()) | {"conversations": conversations}
        return normalise(reader.find(row), keeps_system=reader.keeps_system, max_turns=4).native

    claimed = [{"reasoning": None, "content": answer, "tool_calls": None}]
    assert json.loads(native("lightseekorg/kimi-mtp-dataset", turns) or "") == claimed
    # It answered a system text that is not asked again.
    assert native("lambda/hermes-agent-reasoning-traces", taught) is None
    assert native("mlabonne/open-perfectblend", turns) is None


def test_a_row_says_what_it_is_spread_by() -> None:
    for id, reader in adapters().items():
        if reader.stratum is None:
            continue
        text = (
            "Why so?"
            if reader.stratum != "language"
            else "<issue_description>A</issue_description>"
        )
        turn = [{"role": "user", "content": text}]
        row: dict[str, Any] = dict.fromkeys(reader.wanted(), turn)
        row |= dict.fromkeys(("input", "problem_statement", "before_code"), text)
        row |= {"tools": None, "toxic": None, "redacted": None, reader.stratum: "x"}
        assert reader().find(row).stratum == "x", id
        assert reader().find({**row, reader.stratum: None}).stratum is None, id


def test_columns_that_a_file_lacks() -> None:
    traces = adapters()["nvidia/Open-SWE-Traces"]
    assert traces.lacks(["instance_id", "messages"]) is None
    assert traces.lacks(["instance_id", "trajectory", "tools"]) is None
    assert traces.lacks(["instance_id", "turns"]) == "trajectory or messages"
    assert traces.lacks(["messages"]) == "instance_id"


def test_ids_of_adapters() -> None:
    assert adapter("generic/my_own").id == "generic/messages"
    with pytest.raises(ConfigError, match="HuggingFaceH4/ultrachat_200k") as error:
        adapter("somebody/unknown")
    assert "somebody/unknown" in str(error.value)


def test_every_word_is_explained_in_the_docs() -> None:
    assert set(REASONS) == set(Reason)
    assert set(FLAGS) == set(Flag)
    # The page says that the notes are the last ones.
    assert set(list(Flag)[-len(NOTES) :]) == NOTES
    page = (DOCS / "prompts.md").read_text(encoding="utf-8")
    words = [*REASONS.items(), *FLAGS.items()]
    missing = [name for name, said in words if f"| `{name}` | {said} |" not in page]
    assert not missing


def test_the_adapter_of_the_docs_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (DOCS / "adding-a-dataset.md").read_text(encoding="utf-8")
    simple, whole = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    monkeypatch.setattr(base, "REGISTRY", registry := dict(base.REGISTRY))
    monkeypatch.setattr("aerie.prompts.adapters.REGISTRY", registry)
    names = {**vars(base), **vars(families)}
    exec(simple, names)
    exec(whole, names)
    tasks = write_jsonl(tmp_path / "tasks.jsonl", [{"question": "Sort a list", "language": "go"}])
    assert [one["user_turns"] for one in normalise_file("somebody/code-tasks", tasks)] == [
        ["Sort a list"]
    ]
    turns = [{"role": "user", "content": "Who are you?"}]
    rows = [{"dialogue": turns, "persona": "Be Ann.", "quality": q} for q in ("high", "low")]
    good, bad = normalise_file("somebody/dialogues", write_jsonl(tmp_path / "d.jsonl", rows))
    assert (good["system"], bad["reason"]) == ("Be Ann.", "filtered")


@pytest.mark.parametrize(
    ("dataset", "row", "id"),
    [
        ("nvidia/Open-SWE-Traces", {"instance_id": "i", "trajectory_id": "t"}, "t"),
        ("nebius/SWE-agent-trajectories", {"instance_id": "i"}, "i"),
        ("allenai/WildChat-1M", {"conversation_hash": "h"}, "h"),
        ("Salesforce/xlam-function-calling-60k", {"id": 7}, 7),
        ("generic/messages", {"uuid": "u"}, "u"),
        ("generic/messages", {"id": None}, None),
    ],
)
def test_a_row_keeps_its_own_id(dataset: str, row: dict[str, Any], id: Any, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(row) + "\n", encoding="utf-8")
    assert next(normalise_file(dataset, file))["id"] == id


def test_files_that_hold_no_prompts_have_readers_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader: Callable[[dict[str, Any]], dict[str, Any]] = lambda row: {"action": "keep", **row}  # noqa: E731
    monkeypatch.setitem(inspect.READERS, "special/rows", reader)
    file = tmp_path / "rows.jsonl"
    file.write_text('{"id": "a", "x": 1}\n{\n', encoding="utf-8")
    first, second = normalise_file("special__rows", file)
    assert first == {"line": 1, "id": "a", "action": "keep", "x": 1}
    assert (second["action"], second["reason"]) == ("error", "bad_json")
