"""Answers that say nothing any more: a loop is easy to guess, so it inflates the accept length.

They are left out of every figure, counted, and named in the bench JSON.
"""

from enum import StrEnum

import numpy as np

from aerie.config import BenchSettings
from aerie.responses.checks import compression, distinct_share

# Shorter answers repeat and compress by chance.
_LEAST_TOKENS = 32
_LONGEST_PERIOD = 64
_LEAST_REPEATS = 4


class Degenerate(StrEnum):
    """Why an answer does not count."""

    LOOP = "loop"
    FEW_DISTINCT = "few_distinct"
    COMPRESSES = "compresses"


def degenerate(output_ids: list[int], text: str, settings: BenchSettings) -> Degenerate | None:
    """The first reason not to count an answer of these ids, or None."""
    if len(output_ids) < _LEAST_TOKENS:
        return None
    if ends_in_loop(output_ids):
        return Degenerate.LOOP
    if distinct_share(output_ids) < settings.min_distinct:
        return Degenerate.FEW_DISTINCT
    if compression(text) > settings.max_compression:
        return Degenerate.COMPRESSES
    return None


def ends_in_loop(output_ids: list[int]) -> bool:
    """Whether the answer ends with the same tokens four times over, 32 tokens at least.

    The end token, if there is one, ends the loop and is looked past.
    """
    return any(_loops(np.asarray(ids, dtype=np.int64)) for ids in (output_ids, output_ids[:-1]))


def _loops(ids: "np.typing.NDArray[np.int64]") -> bool:
    for period in range(1, min(_LONGEST_PERIOD, len(ids) // _LEAST_REPEATS) + 1):
        needed = max(_LEAST_TOKENS, _LEAST_REPEATS * period)
        tail = ids[-needed:]
        if len(tail) == needed and bool((tail[period:] == tail[:-period]).all()):
            return True
    return False
