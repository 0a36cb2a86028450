"""Answers as chat messages and as masked ids: what is kept, repaired and dropped, and why."""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerie.contracts.responses import ResponseReason as Reason
from aerie.responses.message import (
    SECTION_BEGIN,
    SECTION_END,
    THINK_CLOSE,
    UnfitMessage,
    read_message,
)
from aerie.responses.records import show_mask, show_response

BAD_ROWS = Path(__file__).parent.parent / "fixtures" / "bad_rows"
SHOWN = {"responses__kimi_k25.jsonl": show_response, "masks__kimi_k25.jsonl": show_mask}
ROWS = {name: (BAD_ROWS / name).read_text(encoding="utf-8").splitlines() for name in SHOWN}
EXPECTED = [
    row
    for row in json.loads((BAD_ROWS / "expected.json").read_text(encoding="utf-8"))["rows"]
    if row["file"] in SHOWN
]


def test_every_row_has_an_expectation() -> None:
    assert len(EXPECTED) == sum(map(len, ROWS.values())) > 0


@pytest.mark.parametrize("expected", EXPECTED, ids=lambda row: row["row_id"])
def test_reported_bad_rows(expected: dict[str, Any]) -> None:
    row = json.loads(ROWS[expected["file"]][expected["line"] - 1])
    got = SHOWN[expected["file"]](row)
    names = ("action", "reason", "flags")
    assert {name: got[name] for name in names} == {name: expected[name] for name in names}
    for name, value in (expected["expect"] or {}).items():
        assert got[name] == value, expected["problem"]


def section(*calls: tuple[str, str]) -> str:
    written = (
        f"<|tool_call_begin|>{id}<|tool_call_argument_begin|>{arguments}<|tool_call_end|>"
        for id, arguments in calls
    )
    return SECTION_BEGIN + "".join(written) + SECTION_END


def call(id: Any, name: Any, arguments: Any = "{}") -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def record(content: Any, reasoning: Any = None, calls: Any = None, **changes: Any) -> Any:
    message = {
        "role": "assistant",
        "content": content,
        "reasoning_content": reasoning,
        "tool_calls": calls,
    }
    finish = "tool_calls" if calls else "stop"
    return {"thinking": True, "finish_reason": finish, "message": message, **changes}


LS = section(("functions.ls:0", '{"p": "."}'))
KEPT: dict[str, tuple[Any, tuple[str | None, str, list[list[str]]]]] = {
    "no opening tag": (record("R</think>A"), ("R", "A", [])),
    "an opening tag": (record("<think>R</think>A"), ("R", "A", [])),
    "parsed by the server": (record("A", "R"), ("R", "A", [])),
    "an empty reasoning_content beside tags": (record("R</think>A", ""), ("R", "A", [])),
    "thinking nothing": (record("</think>A"), ("", "A", [])),
    "white space is content": (record("R\n</think>\n\nA "), ("R\n", "\n\nA ", [])),
    "instant": (record("A", thinking=False), (None, "A", [])),
    "instant with an empty field": (record("A", "", thinking=False), (None, "A", [])),
    "content parts": (
        record([{"type": "text", "text": "R</think>"}, {"type": "text", "text": "A"}]),
        ("R", "A", []),
    ),
    "a section of calls": (
        record(f"R</think>{LS}", finish_reason="tool_calls"),
        ("R", "", [["functions.ls:0", "ls", '{"p": "."}']]),
    ),
    "a section that the server called a stop": (
        record(f"R</think>Looking.{LS}"),
        ("R", "Looking.", [["functions.ls:0", "ls", '{"p": "."}']]),
    ),
    "two calls on lines of their own": (
        record(
            section(("functions.a:3", "{}"), ("functions.b.c:4", "{}")).replace("|><|", "|>\n<|"),
            "R",
        ),
        ("R", "", [["functions.a:3", "a", "{}"], ["functions.b.c:4", "b.c", "{}"]]),
    ),
    "content null with calls": (
        record(None, "R", [call("functions.ls:0", "ls")]),
        ("R", "", [["functions.ls:0", "ls", "{}"]]),
    ),
    "instant with calls": (
        record(None, None, [call("functions.ls:7", "ls")], thinking=False),
        (None, "", [["functions.ls:7", "ls", "{}"]]),
    ),
    "calls as a JSON string": (
        record("", "R", json.dumps([call("functions.ls:0", "ls")])),
        ("R", "", [["functions.ls:0", "ls", "{}"]]),
    ),
    "arguments as an object": (
        record("", "R", [call("functions.ls:0", "ls", {"p": "é\n"})]),
        ("R", "", [["functions.ls:0", "ls", '{"p": "é\\n"}']]),
    ),
    "arguments keep their spelling": (
        record("", "R", [call("functions.w:0", "w", '{ "b":1.0,\n "a" : "\\u00e9\\\\n" }')]),
        ("R", "", [["functions.w:0", "w", '{ "b":1.0,\n "a" : "\\u00e9\\\\n" }']]),
    ),
    "HTML is no markup": (record("<b>A</b> [3, 1, 2]", "R"), ("R", "<b>A</b> [3, 1, 2]", [])),
    "ids that agree": (record("A", "R", output_ids=[1, 2], text_ids=[1, 2]), ("R", "A", [])),
}


@pytest.mark.parametrize("name", KEPT)
def test_kept(name: str) -> None:
    row, (reasoning, content, calls) = KEPT[name]
    assert show_response(row) == {
        "action": "keep",
        "reason": None,
        "flags": [],
        "reasoning": reasoning,
        "content": content,
        "tool_calls": calls,
    }


@pytest.mark.parametrize(
    ("id", "name", "found"),
    [
        ("call_8f3a", "ls", "functions.ls:0"),
        ("call_1", "ls", "functions.ls:0"),
        ("functions_ls_4", "ls", "functions.ls:4"),
        ("functions.ls_4", "ls", "functions.ls:4"),
        ("functions_mcp_fs_read_2", "mcp.fs-read", "functions.mcp.fs-read:2"),
        ("ls:2", "ls", "functions.ls:2"),
        (" functions.ls:0 ", "ls", "functions.ls:0"),
        ("functions.cat:0", "ls", "functions.ls:0"),
        ("", "ls", "functions.ls:0"),
        (None, "ls", "functions.ls:0"),
        (17, "ls", "functions.ls:0"),
    ],
)
def test_ids_that_are_not_canonical_are_rewritten(id: Any, name: str, found: str) -> None:
    got = show_response(record(None, "R", [call(id, name)]))
    assert (got["action"], got["reason"]) == ("repair", "tool_id_rewritten")
    assert got["flags"] == ["tool_id_rewritten"]
    assert got["tool_calls"] == [[found, name, "{}"]]


def test_the_index_counts_all_calls_of_the_conversation() -> None:
    calls = [call("call_a", "ls"), call("functions.ls:8", "ls"), call("call_b", "cat")]
    message = read_message(record(None, "R", calls)["message"], thinking=True, calls_before=3)
    assert [each.id for each in message.tool_calls] == [
        "functions.ls:3",
        "functions.ls:8",
        "functions.cat:9",
    ]


@pytest.mark.parametrize("id", ["ls:3", "functions_ls_3", "functions.ls_3", " functions.ls:3\n"])
def test_ids_in_a_section_name_the_function(id: str) -> None:
    got = show_response(record(f"R</think>{section((id, '{}'))}"))
    assert got["reason"] == "tool_id_rewritten"
    assert got["tool_calls"] == [["functions.ls:3", "ls", "{}"]]


@pytest.mark.parametrize("tail", ["<|im_end|>", "<|im_end|>\n", "<|im_end|><|im_end|>"])
@pytest.mark.parametrize("start", ["R</think>A ", f"R</think>{LS}"])
def test_text_of_the_end_token_is_removed(start: str, tail: str) -> None:
    got, without = show_response(record(start + tail)), show_response(record(start))
    assert (got["action"], got["flags"]) == ("repair", ["end_token_text_removed"])
    assert [got[name] for name in ("reasoning", "content", "tool_calls")] == [
        without[name] for name in ("reasoning", "content", "tool_calls")
    ]


def test_two_repairs_are_both_named() -> None:
    got = show_response(record("A<|im_end|>", "R", [call("call_1", "ls")]))
    assert got["flags"] == ["tool_id_rewritten", "end_token_text_removed"]
    assert got["reason"] == "tool_id_rewritten"


DROPPED: dict[str, tuple[Any, Reason]] = {
    "an error": (record("A", "R", error="HTTP 500"), Reason.REQUEST_FAILED),
    "no message": (record("A", message=None), Reason.REQUEST_FAILED),
    "never finished": (record("A", "R", finish_reason=None), Reason.REQUEST_FAILED),
    "aborted": (record("A", "R", finish_reason="abort"), Reason.REQUEST_FAILED),
    "cut while thinking": (record("I keep", finish_reason="length"), Reason.TRUNCATED),
    "cut while answering": (record("R</think>A", finish_reason="length"), Reason.TRUNCATED),
    "cut in a call": (
        record(f"R</think>{LS[:-30]}", finish_reason="length"),
        Reason.TRUNCATED,
    ),
    "no end of thinking": (record("I think so."), Reason.MISSING_THINK_CLOSE),
    "opened and never closed": (record("<think>I think so."), Reason.MISSING_THINK_CLOSE),
    "no end of thinking before a section": (
        record(f"Need listing.{LS}", finish_reason="tool_calls"),
        Reason.MISSING_THINK_CLOSE,
    ),
    "a section inside the reasoning": (record(f"R{LS}</think>"), Reason.MISSING_THINK_CLOSE),
    "all of it taken for reasoning": (record("A", f"R{LS}"), Reason.MISSING_THINK_CLOSE),
    "calls without reasoning": (
        record(None, None, [call("functions.ls:0", "ls")]),
        Reason.MISSING_THINK_CLOSE,
    ),
    "closed twice": (record("R</think>A</think>B"), Reason.MALFORMED_THINK),
    "opened twice": (record("<think><think>R</think>A"), Reason.MALFORMED_THINK),
    "opened late": (record("R<think>S</think>A"), Reason.MALFORMED_THINK),
    "opened again": (record("R</think>A<think>"), Reason.MALFORMED_THINK),
    "tags beside parsed reasoning": (record("S</think>A", "R"), Reason.MALFORMED_THINK),
    "tags inside parsed reasoning": (record("A", "<think>R"), Reason.MALFORMED_THINK),
    "instant, parsed": (record("A", "R", thinking=False), Reason.THINK_IN_INSTANT_MODE),
    "instant, closed": (record("R</think>A", thinking=False), Reason.THINK_IN_INSTANT_MODE),
    "instant, opened": (record("<think>R", thinking=False), Reason.THINK_IN_INSTANT_MODE),
    "thinking only": (record(None, "R"), Reason.EMPTY_ANSWER),
    "thinking only, as text": (record("R</think>\n"), Reason.EMPTY_ANSWER),
    "nothing": (record(None), Reason.EMPTY_ANSWER),
    "white space": (record(" \n", thinking=False), Reason.EMPTY_ANSWER),
    "only the end token": (record("<|im_end|>", thinking=False), Reason.EMPTY_ANSWER),
    "a turn after the end": (record("A<|im_end|><|im_user|>B", "R"), Reason.SPECIAL_TOKEN_IN_TEXT),
    "a section that is not closed": (record(LS[:-26], "R"), Reason.SPECIAL_TOKEN_IN_TEXT),
    "text after the section": (record(LS + "B", "R"), Reason.SPECIAL_TOKEN_IN_TEXT),
    "two sections": (record(LS + LS, "R"), Reason.SPECIAL_TOKEN_IN_TEXT),
    "calls twice": (
        record(LS, "R", [call("functions.ls:0", "ls")]),
        Reason.SPECIAL_TOKEN_IN_TEXT,
    ),
    "an empty section": (record(SECTION_BEGIN + SECTION_END, "R"), Reason.MALFORMED_TOOL_CALL),
    "calls that were lost": (
        record("A", "R", finish_reason="tool_calls"),
        Reason.MALFORMED_TOOL_CALL,
    ),
    "no name": (record(None, "R", [call("functions.ls:0", None)]), Reason.MALFORMED_TOOL_CALL),
    "a call that is text": (record(None, "R", ["ls"]), Reason.MALFORMED_TOOL_CALL),
    "calls that are no list": (record(None, "R", 7), Reason.MALFORMED_TOOL_CALL),
    "an id that names nothing": (
        record(section(("call_1", "{}")), "R"),
        Reason.MALFORMED_TOOL_CALL,
    ),
    "bytes that are no character": (record("caf\ufffd", "R"), Reason.RETOKENISATION_MISMATCH),
    "half a pair": (record("A", "R\ud83d"), Reason.RETOKENISATION_MISMATCH),
    "ids that differ": (
        record("A", "R", output_ids=[1, 2, 3], text_ids=[1, 4]),
        Reason.RETOKENISATION_MISMATCH,
    ),
    "an image": (record([{"type": "image_url", "image_url": "x"}], "R"), Reason.BAD_CONTENT),
}


@pytest.mark.parametrize("name", DROPPED)
def test_dropped(name: str) -> None:
    row, reason = DROPPED[name]
    got = show_response(row)
    assert (got["action"], got["reason"], got["content"]) == ("drop", reason, None)


@pytest.mark.parametrize(
    "arguments", ["", "null", "[1]", '"{}"', "{'p': 1}", '{"p": ', '{"p": NaN}', None, 3, "{}{}"]
)
def test_arguments_are_a_json_object(arguments: Any) -> None:
    got = show_response(record(None, "R", [call("functions.ls:0", "ls", arguments)]))
    assert got["reason"] == "bad_tool_arguments"
    if isinstance(arguments, str):
        raw = show_response(record(section(("functions.ls:0", arguments)), "R"))
        assert raw["reason"] == "bad_tool_arguments"


plain_text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="<>[]\ufffd"))
some_json = st.dictionaries(plain_text, st.integers() | plain_text | st.booleans(), max_size=3)
some_names = st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_.-]{0,9}", fullmatch=True)


@given(
    reasoning=plain_text,
    content=plain_text,
    calls=st.lists(st.tuples(some_names, some_json), max_size=3),
)
def test_what_kimi_writes_is_read_back_as_it_was(
    reasoning: str, content: str, calls: list[tuple[str, dict[str, Any]]]
) -> None:
    pairs = [
        (f"functions.{name}:{index}", json.dumps(arguments))
        for index, (name, arguments) in enumerate(calls)
    ]
    said = reasoning + THINK_CLOSE + content + (section(*pairs) if pairs else "")
    if not content.strip() and not calls:
        with pytest.raises(UnfitMessage):
            read_message({"content": said}, thinking=True)
        return
    message = read_message({"content": said}, thinking=True)
    assert (message.reasoning, message.content, message.flags) == (reasoning, content, ())
    assert [(each.id, each.arguments) for each in message.tool_calls] == pairs
    assert [each.name for each in message.tool_calls] == [name for name, _ in calls]
    chat = message.as_chat()
    # A server that parses says the same.
    if reasoning:
        assert read_message(chat, thinking=True) == message


@given(st.recursive(st.none() | st.text() | st.integers(), lambda each: st.lists(each)))
def test_any_message_is_read_or_refused(value: Any) -> None:
    for name in ("content", "reasoning_content", "tool_calls"):
        # Any other exception fails the test.
        with contextlib.suppress(UnfitMessage):
            message = read_message({"content": "A", name: value}, thinking=False)
            assert message.content.strip() or message.tool_calls


@pytest.mark.parametrize(
    ("ids", "prompt", "outcome"),
    [
        ([163606, 1, 163607, 2, 163586], 1, [0, 1, 1, 1, 1]),
        ([163606, 163607, 2, 163586], 2, [0, 0, 1, 1]),
        ([5, 2, 163586], 1, [0, 1, 1]),
        ([163606, 1, 2, 163586], 1, "missing_think_close"),
        ([163606, 1, 163607, 2, 163607, 163586], 1, "malformed_think"),
        ([163606, 163607, 1, 163607, 163586], 2, "think_in_instant_mode"),
        ([163606, 1, 163607, 2], 1, "no_end_token"),
        ([163606, 1, 163840, 163607, 163586], 1, "token_out_of_range"),
        ([163606, -1, 163607, 163586], 1, "token_out_of_range"),
        ([163606], 1, "empty_mask"),
        ([163606], 5, "empty_mask"),
        ([], 0, "empty_mask"),
    ],
)
def test_masks(ids: list[int], prompt: int, outcome: Any) -> None:
    got = show_mask({"ids": ids, "prompt_len": prompt})
    if isinstance(outcome, str):
        assert got == {"action": "drop", "reason": outcome, "flags": [], "mask": None}
    else:
        assert got == {"action": "keep", "reason": None, "flags": [], "mask": outcome}


@pytest.mark.parametrize("row", [{}, {"ids": "x", "prompt_len": 0}, {"ids": [1], "prompt_len": -1}])
def test_a_mask_needs_ids(row: dict[str, Any]) -> None:
    assert show_mask(row)["action"] == "error"


@given(st.lists(st.integers(0, 9), min_size=1, max_size=9), st.data())
def test_ids_and_mask_are_shifted_together(ids: list[int], data: st.DataObject) -> None:
    prompt = data.draw(st.integers(0, len(ids) - 1))
    got = show_mask({"ids": ids, "prompt_len": prompt, "ttt_shift": True})
    pairs = list(zip(got["target_ids"], got["target_mask"], strict=True))
    assert pairs == [*[(id, int(at >= prompt)) for at, id in enumerate(ids)][1:], (0, 0)]
