"""Candidates and prompts: tables of normalised prompts, and the reasons for which rows are lost."""

import json
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import pyarrow as pa

from aerie.contracts.tables import read_rows, read_table, readable, write_table


class Reason(StrEnum):
    """Why a row of a dataset did not become a prompt."""

    BAD_JSON = "bad_json"
    NOT_AN_OBJECT = "not_an_object"
    BAD_CONTENT = "bad_content"
    BAD_INNER_JSON = "bad_inner_json"
    NO_MESSAGES = "no_messages"
    NO_USER_TURN = "no_user_turn"
    UNKNOWN_ROLE = "unknown_role"
    SYSTEM_NOT_FIRST = "system_not_first"
    MULTIMODAL = "multimodal"
    EMPTY_PROMPT = "empty_prompt"
    CONTENTLESS_PROMPT = "contentless_prompt"
    PLACEHOLDER_PROMPT = "placeholder_prompt"
    NO_ISSUE_TEXT = "no_issue_text"
    FILTERED = "filtered"
    REDACTED = "redacted"
    TOXIC = "toxic"
    REFUSED_BY_TEMPLATE = "refused_by_template"
    SPECIAL_TOKEN_IN_TEXT = "special_token_in_text"
    PROMPT_TOO_LONG = "prompt_too_long"
    DUPLICATE = "duplicate"
    NEAR_DUPLICATE = "near_duplicate"
    BENCHMARK_OVERLAP = "benchmark_overlap"


class Flag(StrEnum):
    """What was done to a row that became a prompt, or is worth knowing about it.

    In the order of importance: a row is said to be repaired for the first of its flags that is
    not one of `NOTES`.
    """

    NONE_PADDING_REMOVED = "none_padding_removed"
    TOOL_DECLARE_PARSED = "tool_declare_parsed"
    GLAIVE_CHAT_SPLIT = "glaive_chat_split"
    PROMPT_TEMPLATED = "prompt_templated"
    ISSUE_EXTRACTED = "issue_extracted"
    FOREIGN_TOOL_PROMPT_REMOVED = "foreign_tool_prompt_removed"
    FOREIGN_SYSTEM_REMOVED = "foreign_system_removed"
    TOOL_SCHEMA_CONVERTED = "tool_schema_converted"
    TOOLS_MISSING = "tools_missing"
    LEADING_ASSISTANT_STRIPPED = "leading_assistant_stripped"
    MERGED_CONSECUTIVE_TURNS = "merged_consecutive_turns"
    TRAILING_EMPTY_TURN_REMOVED = "trailing_empty_turn_removed"
    BAD_TURN_SKIPPED = "bad_turn_skipped"
    NAME_REMOVED = "name_removed"
    CONTENT_PARTS_JOINED = "content_parts_joined"
    BOM_REMOVED = "bom_removed"
    LONE_SURROGATE_REPLACED = "lone_surrogate_replaced"
    CONTROL_CHARS_REMOVED = "control_chars_removed"
    NEWLINES_NORMALISED = "newlines_normalised"
    NOT_TARGET_NATIVE = "not_target_native"
    JSON_STRING_DECODED = "json_string_decoded"
    CHUNK_CONTINUATION = "chunk_continuation"
    LOOKS_LIKE_STRINGIFIED_PARTS = "looks_like_stringified_parts"
    LATER_TURNS_DROPPED = "later_turns_dropped"


NOTES = frozenset(
    {
        Flag.JSON_STRING_DECODED,
        Flag.CHUNK_CONTINUATION,
        Flag.LOOKS_LIKE_STRINGIFIED_PARTS,
        Flag.LATER_TURNS_DROPPED,
    }
)


@dataclass(frozen=True)
class Prompt:
    """A normalised prompt.

    `rank` orders the candidates of a dataset: xxh3-64 of (seed, dataset, key) as int64. `part` is
    -1 until selection. `turns` are the user's, `tools` JSON Schema as a JSON string, `flags` what
    was repaired. `stratum` is the group that takes turns with the others in the order (a language,
    a domain). `native` holds, as a JSON list with one entry a turn, the answers that the dataset
    claims to have from the target; they count only once they are tested.
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
    stratum: str | None = None
    native: str | None = None
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
        ("stratum", pa.string()),
        ("native", pa.string()),
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
    rows = read_table(path, PROMPTS)
    with readable(path, PROMPTS):
        return [_prompt(row) for row in rows]


def read_prompt_slice(path: Path, start: int, stop: int) -> list[Prompt]:
    """Read some of the candidates, without those that follow them.

    Raises:
        ContractError: the file is missing or damaged.
    """
    rows = read_rows(path, PROMPTS, start, stop)
    with readable(path, PROMPTS):
        return [_prompt(row) for row in rows]


def _prompt(row: dict[str, Any]) -> Prompt:
    turns, flags = json.loads(row["turns"]), tuple(json.loads(row["flags"]))
    return Prompt(**{**row, "turns": turns, "flags": flags})


def write_rejects(path: Path, rejects: list[Reject]) -> None:
    """Write the rows that were lost, with their reasons."""
    write_table(path, (vars(reject) for reject in rejects), REJECTS)


def read_rejects(path: Path) -> list[Reject]:
    """Read the rows that were lost.

    Raises:
        ContractError: the file is missing or damaged.
    """
    rows = read_table(path, REJECTS)
    with readable(path, REJECTS):
        return [Reject(**{**row, "reason": Reason(row["reason"])}) for row in rows]
