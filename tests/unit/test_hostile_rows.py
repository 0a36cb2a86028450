"""Rows, replies and suites of whoever wrote them: a prompt, a reason or a typed error."""

import gzip
import json
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aerie.bench.suite import read_suite
from aerie.engines.base import Request
from aerie.engines.sglang.client import read_reply
from aerie.errors import ConfigError, DataError
from aerie.prompts.adapters import adapter, adapters
from aerie.prompts.candidates import Settings, build
from aerie.prompts.contamination import read_benchmark
from aerie.prompts.read import read_prompt
from aerie.prompts.rejected import Rejected
from aerie.prompts.source import Source
from aerie.prompts.unpack import max_unpacked_bytes
from aerie.responses.message import UnfitMessage, read_record
from aerie.responses.records import show_mask, show_response
from tests.unit.hostile import damaged
from tests.unit.prompts_cases import CASES
from tests.unit.prompts_fixtures import (
    character_limits,
    question,
    word_target,
    write_jsonl,
    write_parquet,
)

LIMITS = character_limits(2000)
WORDS = (
    "user", "human", "assistant", "gpt", "system", "tool", "function", "User ", "text", "[", "{",
    "{}", "[]", "null", '[{"role": "user", "content": "Hi"}]', '[{"type": "text", "text": 3}]',
    '{"name": "f"}{"name": "g"}', "string", "List[str]", "int | None, optional", "list of list of",
    "Literal[1, b'x', ...]", "USER: hello\n\n\nASSISTANT: hi", "ISSUE:\nx\nINSTRUCTIONS:\n",
    "<pr_description>x</pr_description>", "<tools>[{]</tools>", "<think>", "</think>",
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}",
    "continue", "\ud800", "\x00", "a_99999999999999999999", "1e999", "(" * 300, "-" * 3000 + "1",
)  # fmt: skip
KEYS = (
    "role", "from", "content", "value", "text", "type", "name", "tool_calls", "function",
    "parameters", "input_schema", "arguments", "properties", "required", "items", "anyOf", "enum",
    "description", "default", "$ref", "id", "reasoning_content", "toxic", "redacted", "turns",
    "messages", "tools", "prompt", "mode", "domain", "involved_classes",
)  # fmt: skip
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.sampled_from(WORDS),
    st.text(max_size=9),
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=12,
)
TURNS = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(WORDS[:7]) | VALUES, "content": VALUES},
        optional={"tool_calls": VALUES, "reasoning_content": VALUES, "name": VALUES},
    ),
    max_size=4,
)
MAYBE: st.SearchStrategy[Any] = st.booleans()
ANY: st.SearchStrategy[Any] = st.one_of(VALUES, TURNS)
CASES_BY_ADAPTER = {
    name: [line for case in CASES for line in case.lines if case.dataset == name]
    for name in adapters()
}


def mutated(data: st.DataObject, value: Any) -> Any:
    """`value` with something in it replaced."""
    if isinstance(value, dict) and value and data.draw(MAYBE):
        key = data.draw(st.sampled_from(sorted(value)))
        return {**value, key: mutated(data, value[key])}
    if isinstance(value, list) and value and data.draw(MAYBE):
        at = data.draw(st.integers(0, len(value) - 1))
        return [*value[:at], mutated(data, value[at]), *value[at + 1 :]]
    return data.draw(ANY)


@settings(max_examples=150)
@given(data=st.data(), name=st.sampled_from(sorted(adapters())))
def test_any_row_is_a_prompt_or_rejected(name: str, data: st.DataObject) -> None:
    reader = adapter(name)
    valid = [line for line in CASES_BY_ADAPTER[name] if isinstance(line, dict)]
    row: Any = {column: data.draw(ANY) for column in reader.wanted()}
    if valid and data.draw(MAYBE):
        row = mutated(data, data.draw(st.sampled_from(valid)))
    row = {column: row.get(column) if isinstance(row, dict) else row for column in reader.wanted()}
    try:
        prompt = read_prompt(reader, row, LIMITS, max_turns=3)
    except Rejected:
        return
    assert prompt.turns and all(isinstance(turn, str) for turn in prompt.turns)
    # It can be written.
    json.dumps([prompt.turns, prompt.system], ensure_ascii=False).encode()


def nested(levels: int) -> list[str]:
    """Lines of `generic/messages`, each nested so deeply somewhere else."""
    turn = {"role": "user", "content": f"What is {levels}?"}
    calls = '[{"a": ' * levels + "1" + "}]" * levels
    schema = '{"properties": {"a": ' * levels + "{}" + "}}" * levels
    tools = [
        "[" * levels + "]" * levels, f'[{{"name": "f", "parameters": {schema}}}]',
        [{"name": "f", "parameters": {"a": {"type": "list of " * levels}}}],
        [{"name": "f", "parameters": {"a": {"type": "int" + " | int" * levels}}}],
        "-" * levels + "1", "1" + "+1" * levels, "(" * levels,
    ]  # fmt: skip
    return [
        "[" * levels + "]" * levels,
        '{"messages": ' + "[" * levels + "]" * levels + "}",
        json.dumps({"messages": "[" * levels + "]" * levels}),
        '{"messages": [{"role": "user", "content": "x y z", "tool_calls": ' + calls + "}]}",
        *(json.dumps({"messages": [turn], "tools": each}) for each in tools),
    ]


@pytest.mark.parametrize("levels", [150, 400, 900, 20_000])
def test_a_row_that_is_nested_deeply_costs_itself_alone(tmp_path: Path, levels: int) -> None:
    lines = ['{"messages": [{"role": "user", "content": "What is left?"}]}', *nested(levels)]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines), encoding="utf-8")
    wanted = Settings("set", "generic/messages", tmp_path, max_rejected_share=1.0)
    counts = build(wanted, word_target(tmp_path / "target"), tmp_path / "out")["counts"]
    assert counts["candidates"] >= 1
    assert counts["candidates"] + sum(counts["rejects"].values()) == len(lines)


IDS = st.lists(st.one_of(st.integers(-1, 99), LEAVES), max_size=5)
META = st.fixed_dictionaries(
    {
        "id": st.one_of(st.just("r"), VALUES),
        "prompt_tokens": st.one_of(st.just(2), VALUES),
        "completion_tokens": st.one_of(st.integers(0, 5), VALUES),
        "finish_reason": st.one_of(st.just({"type": "stop"}), VALUES),
    }
)
REPLIES = st.one_of(
    VALUES, st.fixed_dictionaries({"output_ids": st.one_of(IDS, VALUES), "meta_info": META})
)


@settings(max_examples=150)
@given(body=REPLIES)
def test_any_reply_is_an_answer_to_the_request_or_none(body: Any) -> None:
    try:
        reply = read_reply(body, "r", Request([1, 2], 4, 0.0, 1.0, 0), 0.1)
    except (ValueError, KeyError, TypeError):
        # What the client takes for an attempt that failed.
        return
    assert 1 <= len(reply.output_ids) <= 4 and all(type(id) is int for id in reply.output_ids)
    assert reply.finish_reason in ("stop", "length")


@settings(max_examples=80)
@given(row=st.dictionaries(st.sampled_from((*KEYS, "message", "finish_reason", "ids")), ANY))
def test_any_record_is_read_or_refused(row: dict[str, Any]) -> None:
    try:
        message = read_record(row)
    except UnfitMessage:
        assert show_response(row)["action"] == "drop"
    else:
        assert isinstance(message.content, str)
    assert show_mask(row)["action"] in ("keep", "drop", "error")


def is_read_or_refused(path: Path) -> None:
    for read in (read_suite, read_benchmark):
        with suppress(DataError):
            read(path)


@settings(max_examples=60)
@given(rows=st.lists(st.one_of(ANY, st.dictionaries(st.sampled_from(KEYS), ANY)), max_size=3))
def test_any_suite_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Any]
) -> None:
    folder = tmp_path_factory.getbasetemp()
    is_read_or_refused(write_jsonl(folder / "suite.jsonl", rows))


@settings(max_examples=60)
@given(data=st.data(), ending=st.sampled_from([".jsonl", ".jsonl.gz", ".parquet"]))
def test_a_damaged_suite_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, ending: str
) -> None:
    rows = [{"id": f"p{n}", "turns": [f"What is {n}?"], "domain": "math"} for n in range(9)]
    path = tmp_path_factory.getbasetemp() / f"damaged{ending}"
    if ending == ".parquet":
        write_parquet(path, rows)
    else:
        text = "".join(json.dumps(row) + "\n" for row in rows).encode()
        path.write_bytes(gzip.compress(text) if ending.endswith("gz") else text)
    path.write_bytes(damaged(data, path.read_bytes()))
    is_read_or_refused(path)


def test_a_suite_of_another_depth(tmp_path: Path) -> None:
    path = tmp_path / "suite.jsonl"
    for levels in (150, 400, 900, 20_000):
        for line in nested(levels):
            path.write_text(line, encoding="utf-8")
            is_read_or_refused(path)


@pytest.fixture
def little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AERIE_MAX_UNPACKED_BYTES", "1000000")


@pytest.mark.usefixtures("little_room")
def test_a_gzip_bomb_is_refused_by_the_name_of_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "suite.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps({"prompt": "a" * 50_000_000}).encode()))
    assert path.stat().st_size < 100_000
    with pytest.raises(DataError, match=r"prompts\.max_unpacked_bytes"):
        read_suite(path)


@pytest.mark.usefixtures("little_room")
def test_a_parquet_bomb_is_refused_by_the_name_of_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    rows = [question("a" * 1_000_000 + str(n)) for n in range(5)]
    pq.write_table(pa.Table.from_pylist(rows), path, compression="zstd", use_dictionary=False)
    assert path.stat().st_size < 20_000
    source = Source(path, adapter("generic/messages"))
    with pytest.raises(DataError, match=r"prompts\.max_unpacked_bytes"):
        [list(source.rows(piece, set())) for piece in source.slices()]
    with pytest.raises(DataError, match=r"prompts\.max_unpacked_bytes"):
        read_suite(path)


@pytest.mark.usefixtures("little_room")
def test_a_value_that_is_repeated_is_unpacked_a_few_times_at_once(tmp_path: Path) -> None:
    """Of 500 rows with one text of 400 KB, a dictionary holds one: all of them are 200 MB."""
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"instruction": pa.array(["a" * 400_000] * 500)}), path)
    before = pa.total_allocated_bytes()
    source = Source(path, adapter("ise-uiuc/Magicoder-Evol-Instruct-110K"))
    (piece,) = source.slices()
    rows = source.rows(piece, set())
    texts = [row.value["instruction"] for row in islice(rows, 50) if row.value]
    assert sum(map(len, texts)) == 20_000_000
    assert pa.total_allocated_bytes() - before < 20_000_000


def test_the_limit_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AERIE_MAX_UNPACKED_BYTES", "a lot")
    with pytest.raises(ConfigError, match="AERIE_MAX_UNPACKED_BYTES"):
        max_unpacked_bytes()
