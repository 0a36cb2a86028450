"""What becomes of rows, one by one: for a person who tries a dataset, or a row of one.

Only here is the first of two duplicates in a file kept; the build chooses by content.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from aerie.contracts.prompts import NOTES, Flag, Reason
from aerie.errors import DataError
from aerie.prompts.adapters import Adapter, adapter
from aerie.prompts.contamination import Contamination, read_benchmark
from aerie.prompts.jsontext import BOM
from aerie.prompts.limits import TargetLimits
from aerie.prompts.normalise import Normalised, Rejected
from aerie.prompts.read import read_prompt
from aerie.prompts.text import prompt_key
from aerie.responses.records import show_mask, show_response
from aerie.target import read_target

# What files hold that are no datasets of prompts, by the name that is given for DATASET: a function
# that judges one row. It returns `action`, `reason`, `flags` and what it made of the row.
READERS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "responses/kimi_k25": show_response,
    "masks/kimi_k25": show_mask,
}

_IDS = ("id", "uuid", "row_id", "trajectory_id", "traj_id", "conversation_hash", "prompt_id")
_NO_PROMPT: dict[str, Any] = {"system": None, "user_turns": [], "tool_names": []}


class Characters:
    """Counts a token for every character, where there is no target to count by."""

    def __call__(self, prompt: Normalised) -> int:
        return sum(map(len, prompt.turns), len(prompt.system or ""))

    def pieces(self, pieces: list[str]) -> int:
        return sum(map(len, pieces))


class Judge:
    """Judges the rows of one dataset, in their order."""

    def __init__(
        self, reader: Adapter, limits: TargetLimits, benchmarks: Contamination, max_turns: int
    ) -> None:
        self.reader = reader
        self._limits, self._benchmarks, self._max_turns = limits, benchmarks, max_turns
        self._seen: set[str] = set()

    def prompt(self, row: dict[str, Any]) -> Normalised:
        """The prompt of a row as it was read, with columns that the adapter does not want.

        Raises:
            Rejected: it becomes none, or one that an earlier row has given.
        """
        reader = self.reader
        wanted = {column: row.get(column) for column in reader.wanted()}
        prompt = read_prompt(reader, wanted, self._limits, self._max_turns)
        names = {prompt_key(prompt.system, prompt.turns)}
        if prompt.identity is not None:
            names.add(f"identity {prompt.identity}")
        if names & self._seen:
            raise Rejected(Reason.DUPLICATE, "an earlier row has given this prompt")
        for text in prompt.turns:
            if name := self._benchmarks.overlap(text):
                raise Rejected(Reason.BENCHMARK_OVERLAP, f"13 words in a row are in {name}")
        self._seen |= names
        return prompt

    def outcome(self, row: dict[str, Any], bom: bool = False) -> dict[str, Any]:
        """What becomes of a row, as `normalise_file` prints it."""
        result: dict[str, Any] = {"id": self.id_of(row)}
        try:
            prompt = self.prompt(row)
        except Rejected as no:
            return {**result, "action": "drop", "reason": no.reason, "flags": [], **_NO_PROMPT}
        flags = sorted({*prompt.flags, Flag.BOM_REMOVED} if bom else prompt.flags)
        reason = main_flag(flags)
        return {
            **result,
            "action": "repair" if reason else "keep",
            "reason": reason,
            "flags": flags,
            "system": prompt.system,
            "user_turns": prompt.turns,
            "tool_names": [tool["function"]["name"] for tool in (json.loads(prompt.tools or "[]"))],
        }

    def id_of(self, row: dict[str, Any]) -> str | int | None:
        """The row's own id, where it has one."""
        for column in (self.reader.id_column, *_IDS):
            if isinstance(row.get(column), str | int):
                value: str | int = row[column]
                return value
        return None


def main_flag(flags: list[str] | tuple[str, ...]) -> str | None:
    """The repair that says most about a row; None where its flags are notes."""
    return next((flag for flag in Flag if flag in flags and flag not in NOTES), None)


def normalise_file(
    dataset: str,
    file: Path,
    *,
    benchmarks: list[Path] | None = None,
    target: Path | None = None,
    max_chars: int = 100_000,
    max_turns: int = 1000,
) -> Iterator[dict[str, Any]]:
    """What becomes of each line of a JSON Lines file of raw rows, in their order.

    `benchmarks` are by default the files `_bench*.jsonl` beside `file`. `target` is a target.json,
    whose tokenizer then says what is too long instead of `max_chars`.

    Raises:
        ConfigError: there is no such dataset.
        DataError: the file is missing.
    """
    if not file.is_file():
        raise DataError(f"{file} is missing", expected="a JSON Lines file of rows")
    if "/" not in dataset:
        dataset = dataset.replace("__", "/", 1)
    if dataset in READERS:
        judge = READERS[dataset]
        return _lines(file, lambda row, bom: {"id": row.get("id"), **judge(row)})
    if benchmarks is None:
        benchmarks = sorted(file.parent.glob("_bench*.jsonl"))
    texts = [text for path in benchmarks for text in read_benchmark(path)]
    limits = limits_of(target, max_chars)
    return _lines(file, Judge(adapter(dataset), limits, Contamination(texts), max_turns).outcome)


def limits_of(target: Path | None, max_chars: int) -> TargetLimits:
    """The limits of the target that a target.json describes, else of characters alone."""
    if target is not None:
        found = read_target(target)
        return TargetLimits.of(found, found.max_position)
    return TargetLimits(max_chars, (), Characters())


def _lines(
    file: Path, judge: Callable[[dict[str, Any], bool], dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    with file.open(encoding="utf-8", errors="replace", newline="\n") as lines:
        for number, line in enumerate(lines, 1):
            yield {"line": number, **_line(line, judge)}


def _line(line: str, judge: Callable[[dict[str, Any], bool], dict[str, Any]]) -> dict[str, Any]:
    text = line.removeprefix(BOM).strip()
    none = {"id": None, "flags": [], **_NO_PROMPT}
    if not text:
        return {**none, "action": "skip", "reason": "blank_line"}
    try:
        # As the build reads it: control characters inside strings are repaired later.
        row = json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return {**none, "action": "error", "reason": Reason.BAD_JSON}
    if not isinstance(row, dict):
        return {**none, "action": "error", "reason": Reason.NOT_AN_OBJECT}
    return judge(row, line.startswith(BOM))
