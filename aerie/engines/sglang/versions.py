"""What differs between the versions of SGLang that Aerie supports, in one place."""

import re
from typing import Any

from aerie.errors import EngineError

# The first that reads the layers `[1, 29, 57]` of a Kimi or DeepSeek draft as every other target's.
OLDEST = "0.5.13"
# What images and tests have.
NEWEST = "0.5.23"

# Counts of one request's speculation in `meta_info`: the newest name first.
# 0.5.10 and before: *_accept_token_num and *_draft_token_num; 0.5.12 to 0.5.16 have aliases.
_CORRECT = ("spec_num_correct_drafts", "spec_accepted_drafts", "spec_accept_token_num")
_ROUNDS = ("spec_verify_ct",)
_HISTOGRAM = ("spec_correct_drafts_histogram", "spec_accept_histogram")


def numbers(version: str) -> tuple[int, ...]:
    """The numbers that a version begins with: (0, 5, 12) for `0.5.12.post1`."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, found[0].split("."))) if found else ()


def check_version(version: str) -> None:
    """Refuse a version that Aerie does not know.

    Raises:
        EngineError: it is older than `OLDEST`.
    """
    if numbers(version) < numbers(OLDEST):
        raise EngineError(
            "this version of SGLang is too old",
            saw=version,
            expected=f"{OLDEST} at least; {NEWEST} is what Aerie is tested with",
            remedy="use the image that containers/images.lock.yaml names",
        )


def speculation(meta: dict[str, Any]) -> tuple[int, list[int]]:
    """Rounds of one request, and how many of them kept 0, 1, 2, ... draft tokens.

    The server's own `spec_accept_length` is not used: it counts the prefill's token as a gain.

    Raises:
        EngineError: `meta_info` lacks a count, or its counts do not agree.
    """
    # A request that ended with its first token has no round and no field.
    if meta.get("completion_tokens") == 1:
        return 0, []
    rounds, correct = (_first(meta, names) for names in (_ROUNDS, _CORRECT))
    histogram = list(map(int, _first(meta, _HISTOGRAM)))
    kept = sum(count * number for count, number in enumerate(histogram))
    if (sum(histogram), kept) != (rounds, correct):
        raise EngineError(
            "the server's counts of draft tokens do not agree",
            saw=f"{rounds} rounds and {correct} correct drafts, histogram {histogram}",
            expected="a histogram of these rounds and drafts",
            remedy="report it with the server's version",
        )
    return int(rounds), histogram


def _first(meta: dict[str, Any], names: tuple[str, ...]) -> Any:
    for name in names:
        if name in meta:
            return meta[name]
    raise EngineError(
        "the server counts no draft tokens",
        saw=f"meta_info with {', '.join(sorted(meta))}",
        expected=" or ".join(names),
        remedy="is it the server with the draft? Otherwise report it with the server's version",
    )
