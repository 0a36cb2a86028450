"""Rows in the real schemas, whole and broken, through adapter and normaliser."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from aerie.contracts.prompts import Reason
from aerie.errors import ConfigError
from aerie.prompts.adapters import adapter, adapters
from aerie.prompts.jsontext import BadLine, decode
from aerie.prompts.normalise import Normalised, Rejected, normalise
from aerie.prompts.text import prompt_key
from tests.unit.prompts_fixtures import character_limits

BAD_ROWS = Path(__file__).parent.parent / "fixtures" / "bad_rows"
EXPECTED: dict[str, dict[int, Any]] = defaultdict(dict)
for _row in json.loads((BAD_ROWS / "expected.json").read_text(encoding="utf-8"))["rows"]:
    EXPECTED[_row["file"]][_row["line"]] = _row

MIX = [id for id in adapters() if not id.startswith("generic/")]


def prompt_of(id: str, row: dict[str, Any]) -> Normalised:
    reader = adapter(id)
    columns = (*reader.columns, *reader.optional)
    found = reader.find({column: row.get(column) for column in columns})
    prompt = normalise(found, keeps_system=reader.keeps_system, max_turns=8)
    character_limits().check(prompt)
    return prompt


def outcomes(file: Path) -> dict[int, Any]:
    """What becomes of each line: a prompt, a reason, or a bad line; duplicates in line order."""
    id = file.stem.replace("__", "/")
    seen: set[str] = set()
    result: dict[int, Any] = {}
    with file.open(encoding="utf-8", newline="\n") as lines:
        for number, row in decode(lines):
            if isinstance(row, BadLine):
                result[number] = row
                continue
            try:
                prompt = prompt_of(id, row)
            except Rejected as no:
                result[number] = no.reason
                continue
            names = {prompt_key(prompt.system, prompt.turns), f"identity {prompt.identity}"}
            names -= {"identity None"}
            result[number] = Reason.DUPLICATE if names & seen else prompt
            seen |= names
    return result


def describe(outcome: Any) -> Any:
    if isinstance(outcome, Normalised):
        tools = json.loads(outcome.tools or "[]")
        return {
            "system": outcome.system,
            "user_turns": outcome.turns,
            "tool_names": [tool["function"]["name"] for tool in tools],
        }
    return "error" if isinstance(outcome, BadLine) else str(outcome)


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_reported_bad_rows(name: str) -> None:
    got = outcomes(BAD_ROWS / name)
    for line, expected in EXPECTED[name].items():
        where = f"{name}:{line} ({expected['problem']})"
        match expected["action"]:
            case "keep" | "repair":
                assert describe(got[line]) == expected["expect"], where
                assert sorted(got[line].flags) == sorted(expected["flags"]), where
            case "drop":
                assert got[line] == Reason(expected["reason"]), where
            case "error":
                assert isinstance(got[line], BadLine), where
            case "skip":
                assert line not in got, where
    assert set(got) <= set(EXPECTED[name])


def test_the_ten_datasets_have_adapters_and_unknown_ones_are_named() -> None:
    assert len(MIX) == 10
    for reader in adapters().values():
        assert reader.category and reader.licence and reader.files and reader.columns
    with pytest.raises(ConfigError, match="HuggingFaceH4/ultrachat_200k") as error:
        adapter("somebody/unknown")
    assert "somebody/unknown" in str(error.value)


def issue_row(text: str) -> dict[str, Any]:
    turn = {"cutoff_date": None, "mask": False, "system_prompt": None}
    system = {**turn, "role": "system", "system_prompt": "SETTING: …", "text": None}
    return {"instance_id": "a__b-1", "trajectory": [system, {**turn, "role": "user", "text": text}]}


def chat(*turns: tuple[str, Any]) -> dict[str, Any]:
    return {"conversations": [{"from": role, "value": value} for role, value in turns]}


@pytest.mark.parametrize(
    ("id", "row", "turns", "flags"),
    [
        (
            "open-r1/Mixture-of-Thoughts",
            {
                "messages": [
                    {"role": "system", "content": "Think in tags."},
                    {"role": "user", "content": "Why is the sky blue?"},
                    {"role": "assistant", "content": "<think>\nhm\n</think>\nScattering."},
                ]
            },
            ["Why is the sky blue?"],
            {"foreign_system_removed"},
        ),
        (
            "open-thoughts/OpenThoughts-114k",
            {
                "system": "Use <|begin_of_thought|>.",
                **chat(("user", "Return your final response within \\boxed{}. 1+1?")),
            },
            ["Return your final response within \\boxed{}. 1+1?"],
            {"foreign_system_removed"},
        ),
        (
            "ise-uiuc/Magicoder-Evol-Instruct-110K",
            {"instruction": "Sort a list in Go.", "response": None},
            ["Sort a list in Go."],
            set(),
        ),
        ("BAAI/Infinity-Instruct", chat(("human", "\ufeffHi\r\nyou")), ["\ufeffHi\nyou"], None),
        (
            "nebius/SWE-agent-trajectories",
            issue_row("ISSUE:\r\nINSTRUCTIONS: are ignored\n\nINSTRUCTIONS:\nNow, …\nbash-$"),
            ["INSTRUCTIONS: are ignored"],
            {"issue_extracted", "newlines_normalised"},
        ),
    ],
)
def test_rows_in_the_real_schemas(
    id: str, row: dict[str, Any], turns: list[str], flags: set[str] | None
) -> None:
    prompt = prompt_of(id, row)
    assert prompt.system is None
    assert prompt.turns == turns
    assert flags is None or set(prompt.flags) == flags


@pytest.mark.parametrize(
    ("id", "row", "reason"),
    [
        ("nvidia/OpenCodeInstruct", {"input": "-"}, Reason.PLACEHOLDER_PROMPT),
        ("nvidia/OpenCodeInstruct", {"input": None}, Reason.EMPTY_PROMPT),
        (
            "nvidia/OpenCodeInstruct",
            {"input": "Sort.", "average_test_score": "0.5"},
            Reason.FILTERED,
        ),
        ("open-thoughts/OpenThoughts-114k", chat(("moderator", "x")), Reason.UNKNOWN_ROLE),
        ("nebius/SWE-agent-trajectories", issue_row("ISSUE:\n\nINSTRUCTIONS:"), "empty_prompt"),
        ("nebius/SWE-agent-trajectories", issue_row("hello"), Reason.NO_ISSUE_TEXT),
        ("nebius/SWE-agent-trajectories", issue_row(""), Reason.EMPTY_PROMPT),
        ("BAAI/Infinity-Instruct", chat(("gpt", "Hi.")), Reason.NO_USER_TURN),
        ("BAAI/Infinity-Instruct", {"conversations": "{broken"}, Reason.BAD_INNER_JSON),
        ("BAAI/Infinity-Instruct", chat(("human", 7)), Reason.BAD_CONTENT),
    ],
)
def test_rejected_rows(id: str, row: dict[str, Any], reason: Reason) -> None:
    with pytest.raises(Rejected) as no:
        prompt_of(id, row)
    assert no.value.reason == reason


@pytest.mark.parametrize("score", ["1.0", 0.9, None, "unknown"])
def test_a_score_that_is_good_or_absent_is_kept(score: Any) -> None:
    row = {"input": "Sort.", "average_test_score": score}
    assert prompt_of("nvidia/OpenCodeInstruct", row).turns == ["Sort."]
