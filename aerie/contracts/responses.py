"""Responses: what the target answered, as the token ids that the engine sampled."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import pyarrow as pa

from aerie.contracts.tables import read_table, readable, write_table


class ResponseReason(StrEnum):
    """Why an answer is not trained on.

    The first group is of any answer, the second of chat messages alone, the third of answers that
    a dataset claims to have from the target.
    """

    TRUNCATED = "truncated"
    NO_END_TOKEN = "no_end_token"
    EMPTY_MASK = "empty_mask"
    MISSING_THINK_CLOSE = "missing_think_close"
    MALFORMED_THINK = "malformed_think"
    THINK_IN_INSTANT_MODE = "think_in_instant_mode"
    EMPTY_ANSWER = "empty_answer"
    REPETITIVE = "repetitive"
    RETOKENISATION_MISMATCH = "retokenisation_mismatch"
    TOKEN_OUT_OF_RANGE = "token_out_of_range"
    PROMPT_TOO_LONG = "prompt_too_long"

    REQUEST_FAILED = "request_failed"
    BAD_CONTENT = "bad_content"
    SPECIAL_TOKEN_IN_TEXT = "special_token_in_text"
    BAD_TOOL_ARGUMENTS = "bad_tool_arguments"
    MALFORMED_TOOL_CALL = "malformed_tool_call"

    OTHER_MODEL = "other_model"
    PROMPT_CHANGED = "prompt_changed"
    MISSING_ANSWER = "missing_answer"
    NO_REASONING = "no_reasoning"
    FOREIGN_MARKUP = "foreign_markup"
    FOREIGN_TOOL_ID = "foreign_tool_id"
    TEMPLATE_MISMATCH = "template_mismatch"


class ResponseFlag(StrEnum):
    """What was repaired in a chat message, the most important first."""

    TOOL_ID_REWRITTEN = "tool_id_rewritten"
    END_TOKEN_TEXT_REMOVED = "end_token_text_removed"


class AnswerSource(StrEnum):
    """Where an answer comes from: the target sampled it here, or a dataset holds it."""

    TARGET = "target"
    DATASET = "dataset"


@dataclass(frozen=True)
class Response:
    """One answer of the target.

    `id` is the prompt's id and the number of the turn, `<prompt>.<turn>`. `prompt_ids` are the
    rendered prompt, `output_ids` what was sampled, end token included. `finish_reason` is `stop`
    or `length`. `text` is for people; training reads ids. `source` says who sampled it: the answers
    of a dataset were sampled elsewhere, with settings that are not known.
    """

    id: str
    dataset: str
    part: int
    mode: str
    prompt_ids: list[int]
    output_ids: list[int]
    finish_reason: str
    request_digest: str
    text: str
    source: AnswerSource = AnswerSource.TARGET


_COLUMNS = [
    ("id", pa.string()),
    ("dataset", pa.string()),
    ("part", pa.int32()),
    ("mode", pa.string()),
    ("prompt_ids", pa.list_(pa.int32())),
    ("output_ids", pa.list_(pa.int32())),
    ("finish_reason", pa.string()),
    ("request_digest", pa.string()),
    ("text", pa.string()),
    ("source", pa.string()),
]
RESPONSES = pa.schema(_COLUMNS)
RESPONSE_REJECTS = pa.schema([*_COLUMNS, ("reason", pa.string())])


def write_responses(path: Path, responses: list[Response]) -> None:
    """Write responses in their order."""
    write_table(path, (vars(response) for response in responses), RESPONSES)


def read_responses(path: Path) -> list[Response]:
    """Read responses.

    Raises:
        ContractError: the file is missing or damaged.
    """
    rows = read_table(path, RESPONSES)
    with readable(path, RESPONSES):
        return [Response(**{**row, "source": AnswerSource(row["source"])}) for row in rows]


def write_response_rejects(path: Path, rejects: list[tuple[Response, ResponseReason]]) -> None:
    """Write the answers that are not trained on, with their reasons."""
    rows = ({**vars(response), "reason": reason} for response, reason in rejects)
    write_table(path, rows, RESPONSE_REJECTS)
