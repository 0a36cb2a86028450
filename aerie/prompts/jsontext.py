"""JSON Lines and JSON arrays, decoded as their lines arrive.

Python's decoder is used because it takes what datasets hold and stricter ones refuse: lone
surrogates, NaN, control characters inside strings.
"""

import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

BOM = "\ufeff"
_BETWEEN = re.compile(r"[\s,]*")


@dataclass(frozen=True)
class BadLine:
    """A line that is not JSON."""

    text: str
    problem: str


class DamagedArray(ValueError):
    """A JSON array that cannot be read to its end."""


def decode(lines: Iterator[str]) -> Iterator[tuple[int, Any]]:
    """Number and value of each row: by line in JSON Lines, by element in an array; from 1.

    A line that is not JSON gives a `BadLine`; blank lines are no rows.

    Raises:
        DamagedArray: an array is cut off or one of its elements is not JSON.
    """
    for number, line in enumerate(lines, 1):
        line = line.removeprefix(BOM).strip()
        if line.startswith("["):
            yield from _elements(itertools.chain([line[1:]], lines))
            return
        if line:
            yield from decode_lines(itertools.chain([line], lines), number)
            return


def decode_lines(lines: Iterator[str], start: int) -> Iterator[tuple[int, Any]]:
    """The same for lines of JSON Lines from within a file; `start` is the number of the first."""
    for number, line in enumerate(lines, start):
        line = line.removeprefix(BOM)
        if not line.strip():
            continue
        try:
            yield number, json.loads(line, strict=False)
        except (ValueError, RecursionError) as error:
            yield number, BadLine(line, f"not JSON: {error}")


def _elements(lines: Iterator[str]) -> Iterator[tuple[int, Any]]:
    decoder = json.JSONDecoder(strict=False)
    number, tried, problem = 0, 0, "no end"
    pieces: list[str] = []
    size = 0
    for line in itertools.chain(lines, (None,)):
        if line is not None:
            pieces.append(line)
            size += len(line) + 1
            # Trying again at each line of a long element would take quadratic time.
            if size < 2 * tried:
                continue
        text = "\n".join(pieces)
        position = _skip(text, 0)
        while position < len(text) and text[position] != "]":
            try:
                value, position = decoder.raw_decode(text, position)
            except (ValueError, RecursionError) as error:
                problem = str(error)
                break
            number += 1
            yield number, value
            position = _skip(text, position)
        if text[position : position + 1] == "]":
            if text[position + 1 :].strip() or any(rest and rest.strip() for rest in lines):
                raise DamagedArray(f"more text after the end, element {number}")
            return
        pieces = [text[position:]]
        size = tried = len(pieces[0])
    raise DamagedArray(f"cut off or not JSON at element {number + 1}: {problem}")


def _skip(text: str, position: int) -> int:
    match = _BETWEEN.match(text, position)
    return match.end() if match else position
