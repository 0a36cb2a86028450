"""Rows of public benchmarks and of users' own traffic, in the shapes that their files have.

Nothing is shipped: a file is read where it lies (docs/bench.md names them). The bench measures
these prompts and `aerie.prompts.contamination` keeps them out of training, so both read them here.
"""

import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aerie.errors import DataError
from aerie.prompts.read import as_text
from aerie.prompts.rejected import Rejected
from aerie.prompts.tools import read_tools
from aerie.prompts.unpack import batch_rows, open_gzip

# MT-Bench and SPEED-Bench; traffic; HumanEval and AIME; GSM8K and BFCL; MATH-500; SWE-bench.
PROMPT_KEYS = ("turns", "messages", "prompt", "question", "problem", "problem_statement")
Message = dict[str, Any]


@dataclass(frozen=True)
class Asked:
    """What a row asks: the conversation so far, then what the user says turn by turn.

    `turns` is empty where the conversation so far ends with a tool's result, which is answered.
    """

    context: list[Message] = field(default_factory=list)
    turns: list[str] = field(default_factory=list)
    tools: list[dict[str, Any]] | None = None

    @property
    def text(self) -> str:
        """Everything that the user says, a turn a line."""
        said = [m["content"] for m in self.context if m["role"] in ("user", "human")]
        return "\n".join([*said, *self.turns])


def read_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each row of a JSON Lines file (also compressed by gzip) or a Parquet file, and its place.

    Raises:
        DataError: the file cannot be read, or a line is no JSON object.
    """
    for number, row in _parquet(path) if path.suffix == ".parquet" else _lines(path):
        where = f"{path}, line {number}"
        if not isinstance(row, dict):
            raise _no_prompt(where, row)
        yield where, row


def asked(row: dict[str, Any], where: str) -> Asked:
    """What `row` asks. `where` names it in errors.

    Raises:
        DataError: it holds none of `PROMPT_KEYS`, or holds it in another shape.
    """
    key = next((key for key in PROMPT_KEYS if row.get(key)), None)
    if key is None:
        raise _no_prompt(where, row)
    try:
        tools = json.loads(read_tools(row.get("tools") or row.get("function"), set()) or "null")
        context, turns = _conversation(key, row[key])
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError, Rejected) as error:
        raise _no_prompt(where, row[key], key) from error
    system = row.get("system")
    first = [{"role": "system", "content": system}] if system else []
    return Asked([*first, *context], turns, tools)


def _conversation(key: str, value: Any) -> tuple[list[Message], list[str]]:
    if isinstance(value, str) and key not in ("turns", "messages"):
        return [], [value]
    if not isinstance(value, list):
        raise TypeError(f"{key} is neither a text nor a list")
    # BFCL: a list of messages for each turn.
    flat = [message for turn in value for message in (turn if isinstance(turn, list) else [turn])]
    if key == "turns" and all(isinstance(turn, str) and turn for turn in flat):
        return [], flat
    messages = [_message(turn) for turn in flat]
    # The answer that is there, if one is, is what the bench asks for anew.
    while messages and messages[-1]["role"] == "assistant":
        messages.pop()
    if not messages:
        raise ValueError("nobody asks anything")
    if messages[-1]["role"] == "user":
        return messages[:-1], [messages[-1]["content"]]
    return messages, []


def _message(turn: Any) -> Message:
    content = turn["content"]
    if turn["role"] in ("user", "human") and not (isinstance(content, str) and content):
        raise TypeError("a user's message has no text")
    return {**turn, "role": "user" if turn["role"] == "human" else turn["role"]}


def _lines(path: Path) -> Iterator[tuple[int, Any]]:
    try:
        with open_gzip(path) if path.suffix == ".gz" else path.open(encoding="utf-8") as stream:
            lines = stream.read().splitlines()
    except (OSError, UnicodeDecodeError, EOFError, zlib.error) as error:
        raise DataError(f"the benchmark {path} cannot be read", saw=error) from error
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                yield number, json.loads(line)
            except (ValueError, RecursionError) as error:
                raise _no_prompt(f"{path}, line {number}", line) from error


def _parquet(path: Path) -> Iterator[tuple[int, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as parquet:
            groups = range(parquet.metadata.num_row_groups)
            rows = batch_rows(path, parquet.metadata, groups, parquet.schema_arrow.names)
            batches = parquet.iter_batches(rows)
            yield from enumerate((row for batch in batches for row in batch.to_pylist()), 1)
    except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
        raise DataError(f"the benchmark {path} cannot be read", saw=error) from error


def _no_prompt(where: str, saw: Any, key: str = "") -> DataError:
    shown = saw if isinstance(saw, str) else as_text(saw)
    return DataError(
        f"{where}{f': `{key}`' * bool(key)} is no benchmark prompt",
        saw=shown[:80],
        expected="an object with one of " + ", ".join(PROMPT_KEYS),
        remedy="correct the line, or leave the file out of the configuration",
    )
