"""From a row to a prompt that the target takes, for the build and for `aerie normalise`."""

import json
from typing import Any

from aerie.contracts.prompts import Reason
from aerie.prompts.adapters import Adapter
from aerie.prompts.limits import TargetLimits
from aerie.prompts.normalise import Normalised, normalise
from aerie.prompts.rejected import Rejected


def read_prompt(
    reader: Adapter, row: dict[str, Any], limits: TargetLimits, max_turns: int
) -> Normalised:
    """The prompt of a row that holds what the adapter wants, None where a column is missing.

    Raises:
        Rejected: there is none in it that could be asked as it stands.
    """
    try:
        found = reader.find(row)
        prompt = normalise(found, keeps_system=reader.keeps_system, max_turns=max_turns)
        limits.check(prompt)
    except RecursionError as error:
        raise Rejected(Reason.BAD_INNER_JSON, "nested too deeply") from error
    return prompt


def as_text(row: Any, indent: int | None = None) -> str:
    """A row as text for people."""
    try:
        return json.dumps(row, ensure_ascii=False, default=str, indent=indent)
    except RecursionError:
        return "nested too deeply to be shown"
