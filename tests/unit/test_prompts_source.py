"""Reading of downloaded folders: what works, and one clear error for each thing that does not."""

import json
import socket
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aerie.errors import DataError
from aerie.prompts.adapters import adapter
from aerie.prompts.jsontext import BadLine, DamagedArray, decode
from aerie.prompts.source import Row, Source
from tests.unit.prompts_fixtures import question, write_jsonl, write_parquet


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("the network was used")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def read(folder: Path, id: str = "generic/messages") -> list[Row]:
    source = Source(folder, adapter(id))
    found: list[Row] = []
    for file in source.files:
        seen: set[str] = set()
        for piece in source.slices():
            if piece.file == file:
                found += source.rows(piece, seen)
        source.check_columns(file, seen)
    return found


def error_of(folder: Path, id: str = "generic/messages") -> str:
    with pytest.raises(DataError) as error:
        read(folder, id)
    assert "remedy:" in str(error.value)
    return str(error.value)


def test_parquet_gives_the_needed_columns_of_all_files_in_order(tmp_path: Path) -> None:
    for number in (1, 0):
        row = {**question(f"Q{number}"), "huge": "x" * 100}
        write_parquet(tmp_path / f"data/train-{number}.parquet", [row, row])
    rows = read(tmp_path)
    assert [row.id for row in rows] == [
        f"data/train-{n}.parquet:{i}" for n in (0, 1) for i in (1, 2)
    ]
    assert rows[2].value == {**question("Q1"), "tools": None}


def test_jsonl_keeps_good_rows_beside_bad_ones(tmp_path: Path) -> None:
    good = json.dumps(question("lone \ud83d, line\u2028separator"), ensure_ascii=True)
    raw = json.dumps({**question("line\u2028separator"), "score": float("nan")}, ensure_ascii=False)
    lines = ["\ufeff" + good, "", '{"messages": [{"role"', "[1]", raw, "7"]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines), encoding="utf-8")
    rows = read(tmp_path)
    assert [row.id.split(":")[1] for row in rows] == ["1", "3", "4", "5", "6"]
    assert [row.value is None for row in rows] == [False, True, True, False, True]
    assert rows[0].value == {**question("lone \ud83d, line\u2028separator"), "tools": None}
    assert rows[1].problem.startswith("not JSON: ")
    assert rows[1].text == lines[2]
    assert rows[4].problem == "the row is int, not an object"


def test_a_byte_that_is_no_utf8_costs_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_bytes(
        b'{"messages": "a\xffb"}\n' + json.dumps(question("x")).encode()
    )
    first, second = read(tmp_path)
    assert first.value == {"messages": "a\ufffdb", "tools": None}
    assert second.value == {**question("x"), "tools": None}


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    lines=st.lists(st.sampled_from(["", "{", '{"messages": 1}', "[]", "\ufeff{}", "é" * 9])),
    end=st.booleans(),
    size=st.integers(1, 40),
)
def test_slices_change_no_row(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], end: bool, size: int
) -> None:
    """However a file is cut, its rows are those of the file read whole."""
    file = tmp_path_factory.mktemp("slices") / "rows.jsonl"
    text = "\n".join(["{}", *lines]) + "\n" * end
    file.write_text(text, encoding="utf-8")
    source = Source(file, adapter("generic/messages"))
    whole = [(number, value) for number, value in decode(iter(text.split("\n")))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("aerie.prompts.source._SLICE_BYTES", size)
        slices = source.slices()
    rows = [row for piece in slices for row in source.rows(piece, set())]
    assert [row.id for row in rows] == [f"rows.jsonl:{number}" for number, _ in whole]
    assert [row.value is not None for row in rows] == [isinstance(v, dict) for _, v in whole]
    assert slices[0].first == 1
    assert sum(piece.rows for piece in slices) == text.count("\n") + (not text.endswith("\n"))


def _messages(number: int) -> list[dict[str, Any]] | None:
    if number % 7 == 3:
        return None
    content = None if number % 5 == 1 else f"t{number}"
    return [{"role": "user", "content": content, "n": [1, None]}] * (number % 4)


@pytest.mark.parametrize("rows", [1, 5, 3000])
@pytest.mark.parametrize("text", [pa.string(), pa.large_string()])
def test_nested_columns_are_as_arrow_gives_them(
    tmp_path: Path, rows: int, text: pa.DataType
) -> None:
    kind = pa.struct([("role", pa.string()), ("content", text), ("n", pa.list_(pa.int8()))])
    schema = pa.schema([("messages", pa.list_(kind)), ("tools", pa.large_list(text))])
    values = [
        {"messages": _messages(n), "tools": None if n % 3 else [f"a{n}"]} for n in range(rows)
    ]
    table = pa.Table.from_pylist(values, schema=schema)
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=700)
    assert [row.value for row in read(tmp_path)] == table.to_pylist()


def sharegpt(folder: Path, text: str) -> Path:
    file = folder / "ShareGPT_V3_unfiltered_cleaned_split.json"
    file.write_text(text, encoding="utf-8")
    return file


SHAREGPT = "anon8231489123/ShareGPT_Vicuna_unfiltered"


@pytest.mark.parametrize("indent", [None, 2])
def test_json_array(tmp_path: Path, indent: int | None) -> None:
    values = [{"id": f"a_{n}", "conversations": [{"value": "\ud83d ]["}]} for n in range(50)]
    sharegpt(tmp_path, json.dumps([*values, "odd"], indent=indent))
    rows = read(tmp_path, SHAREGPT)
    assert [row.value for row in rows[:-1]] == values
    assert rows[-1].value is None
    assert [row.id.split(":")[1] for row in rows] == [str(n) for n in range(1, 52)]


@pytest.mark.parametrize("cut", [1, 40, 200])
def test_truncated_json_array(tmp_path: Path, cut: int) -> None:
    text = json.dumps([{"id": "a", "conversations": []}] * 9, indent=2)
    file = sharegpt(tmp_path, text[:-cut])
    assert f"{file} is damaged or was not downloaded whole" in error_of(tmp_path, SHAREGPT)
    assert "at element" in error_of(tmp_path, SHAREGPT)


def test_truncated_parquet(tmp_path: Path) -> None:
    file = write_parquet(tmp_path / "a.parquet", [question("x")] * 100)
    file.write_bytes(file.read_bytes()[:-20])
    assert f"{file} is damaged" in error_of(tmp_path)


def test_parquet_damaged_inside(tmp_path: Path) -> None:
    file = write_parquet(tmp_path / "a.parquet", [question(f"question {n}") for n in range(2000)])
    content = bytearray(file.read_bytes())
    content[4:4000] = b"\xff" * 3996
    file.write_bytes(content)
    assert f"{file} is damaged" in error_of(tmp_path)


def test_missing_folder_files_and_columns(tmp_path: Path) -> None:
    message = error_of(tmp_path / "none", SHAREGPT)
    assert (
        f"{tmp_path / 'none'}" in message
        and f"hf download --repo-type dataset {SHAREGPT}" in message
    )
    (tmp_path / "README.md").touch()
    message = error_of(tmp_path)
    assert "saw:      README.md" in message and "**/*.jsonl" in message
    file = write_parquet(tmp_path / "a.parquet", [{"chat": "x"}])
    message = error_of(tmp_path)
    assert f"{file}: the column 'messages' is missing" in message and "columns chat" in message
    file.unlink()
    file = write_jsonl(tmp_path / "a.jsonl", [{"chat": "x"}, {"talk": 1}])
    message = error_of(tmp_path)
    assert (
        f"{file}: the column 'messages' is missing" in message and "columns chat, talk" in message
    )
    write_jsonl(tmp_path / "a.jsonl", [{"chat": "x"}, {"messages": []}])
    assert read(tmp_path)[0].value == {"messages": None, "tools": None}


def test_empty_file(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").touch()
    assert "0 bytes" in error_of(tmp_path)


def test_decode_alone() -> None:
    assert next(decode(iter(["", "{}", "x"]))) == (2, {})
    assert isinstance(list(decode(iter(["{}", "x"])))[1][1], BadLine)
    assert list(decode(iter([" ", "[", "]"]))) == []
    with pytest.raises(DamagedArray, match="element 2"):
        list(decode(iter(["[{},", "{]"])))
    with pytest.raises(DamagedArray, match="after the end"):
        list(decode(iter(["[1]", "{}"])))
