"""Candidates and prompts: tables of normalised prompts, and the reasons for which rows are lost."""

import json
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import pyarrow as pa

from aerie.contracts.tables import read_table, write_table


class Reason(StrEnum):
    """Why a row of a dataset did not become a prompt."""

    NO_MESSAGES = "no_messages"
    NO_USER_TURN = "no_user_turn"
    EMPTY_PROMPT = "empty_prompt"
    CONTENTLESS_PROMPT = "contentless_prompt"
    PLACEHOLDER_PROMPT = "placeholder_prompt"
    PROMPT_TOO_LONG = "prompt_too_long"
    SPECIAL_TOKEN_IN_TEXT = "special_token_in_text"
    MULTIMODAL = "multimodal"
    UNKNOWN_ROLE = "unknown_role"
    SYSTEM_NOT_FIRST = "system_not_first"
    BAD_INNER_JSON = "bad_inner_json"
    BAD_ROW = "bad_row"
    NO_ISSUE_TEXT = "no_issue_text"
    FILTERED = "filtered"
    DUPLICATE = "duplicate"
    BENCHMARK_OVERLAP = "benchmark_overlap"


@dataclass(frozen=True)
class Prompt:
    """A normalised prompt.

    `rank` orders the candidates of a dataset: xxh3-64 of (seed, dataset, key) as int64. `part` is
    -1 until selection. `turns` are the user's, `tools` JSON Schema as a JSON string, `flags` what
    was repaired.
    """

    id: str
    dataset: str
    key: str
    rank: int
    mode: str
    system: str | None
    turns: list[str]
    tools: str | None = None
    flags: tuple[str, ...] = ()
    part: int = -1


PROMPTS = pa.schema(
    [
        ("id", pa.string()),
        ("dataset", pa.string()),
        ("key", pa.string()),
        ("rank", pa.int64()),
        ("mode", pa.string()),
        ("system", pa.string()),
        ("turns", pa.string()),
        ("tools", pa.string()),
        ("flags", pa.string()),
        ("part", pa.int32()),
    ]
)

REJECTS = pa.schema(
    [
        ("id", pa.string()),
        ("dataset", pa.string()),
        ("reason", pa.string()),
        ("detail", pa.string()),
        ("text", pa.string()),
    ]
)


@dataclass(frozen=True)
class Reject:
    """A row that did not become a prompt: where it was, why, and the head of its text."""

    id: str
    dataset: str
    reason: Reason
    detail: str = ""
    text: str = ""


def part_name(part: int) -> str:
    """The name of a part in paths: three digits at least, so that names sort."""
    return f"{part:03d}"


def write_prompts(path: Path, prompts: list[Prompt]) -> None:
    """Write prompts or candidates in their order."""
    rows = [
        {
            **vars(prompt),
            "turns": json.dumps(prompt.turns, ensure_ascii=False),
            "flags": json.dumps(prompt.flags),
        }
        for prompt in prompts
    ]
    write_table(path, rows, PROMPTS)


def read_prompts(path: Path) -> list[Prompt]:
    """Read prompts or candidates.

    Raises:
        ContractError: the file is missing or damaged.
    """
    return [
        Prompt(
            **{**row, "turns": json.loads(row["turns"]), "flags": tuple(json.loads(row["flags"]))}
        )
        for row in read_table(path, PROMPTS)
    ]


def write_rejects(path: Path, rejects: list[Reject]) -> None:
    """Write the rows that were lost, with their reasons."""
    write_table(path, (vars(reject) for reject in rejects), REJECTS)


def read_rejects(path: Path) -> list[Reject]:
    """Read the rows that were lost.

    Raises:
        ContractError: the file is missing or damaged.
    """
    return [Reject(**{**row, "reason": Reason(row["reason"])}) for row in read_table(path, REJECTS)]
