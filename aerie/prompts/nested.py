"""Values inside the columns of a row: JSON in text, and the padding that Arrow leaves."""

import ast
import json
from typing import Any

from aerie.contracts.prompts import Reason
from aerie.prompts.rejected import Rejected


def inner_json(text: str, column: str) -> Any:
    """The value of a JSON text.

    Raises:
        Rejected: it is not JSON.
    """
    try:
        return json.loads(text, strict=False)
    except (ValueError, RecursionError) as error:
        raise Rejected(Reason.BAD_INNER_JSON, f"{column}: {error}") from error


def inner_value(text: str, column: str) -> Any:
    """The same for text that may also be a Python literal, or several JSON objects in a row.

    Raises:
        Rejected: it is none of them.
    """
    try:
        return inner_json(text, column)
    except Rejected as error:
        if objects := json_objects(text):
            return objects
        try:
            return ast.literal_eval(text.strip())
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            raise error from None


def json_objects(text: str) -> list[Any]:
    """JSON objects that follow one another, apart by white space or commas; else none."""
    decoder = json.JSONDecoder(strict=False)
    found, at = [], 0
    while rest := text[at:].lstrip(" \t\r\n,"):
        if not rest.startswith("{"):
            return []
        at = len(text) - len(rest)
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            return []
        found.append(value)
    return found


def without_none(value: Any) -> Any:
    """`value` without the entries of its objects that are None.

    Arrow gives every object of a column the keys of all of them, with None where one had none.
    """
    if isinstance(value, dict):
        return {key: without_none(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_none(item) for item in value]
    return value
