"""Numbers as people read them, and careful reading of what may be missing.

A missing number is an em dash everywhere: a report must show what is there, whatever is not.
"""

import math
from collections.abc import Iterable
from typing import Any

DASH = "—"
# Spelt out, since linters and people take it for the letter x.
TIMES = "\N{MULTIPLICATION SIGN}"


def dig(value: Any, *keys: str | int) -> Any:
    """`value[keys[0]][keys[1]]…`, or None where anything on the way is missing."""
    for key in keys:
        if isinstance(value, dict):
            value = value.get(key)
        elif isinstance(value, list) and isinstance(key, int) and -len(value) <= key < len(value):
            value = value[key]
        else:
            return None
    return value


def number(value: Any, *keys: str | int) -> float | None:
    """The finite number at `keys`, or None."""
    found = dig(value, *keys)
    if isinstance(found, bool) or not isinstance(found, int | float) or not math.isfinite(found):
        return None
    return found


def count(value: Any, *keys: str | int) -> int | None:
    """The number at `keys` as an integer, or None."""
    found = number(value, *keys)
    return None if found is None else round(found)


def interval(value: Any, *keys: str | int) -> tuple[float, float] | None:
    """The pair of numbers at `keys`, or None."""
    low, high = number(value, *keys, 0), number(value, *keys, 1)
    return None if low is None or high is None else (low, high)


def table(value: Any, *keys: str | int) -> dict[str, Any]:
    """The object at `keys`, or an empty one."""
    found = dig(value, *keys)
    return found if isinstance(found, dict) else {}


def rows(value: Any, *keys: str | int) -> list[Any]:
    """The list at `keys`, or an empty one."""
    found = dig(value, *keys)
    return found if isinstance(found, list) else []


def total(values: Iterable[float | None]) -> int | None:
    """The sum of what is known, or None if nothing is."""
    known = [value for value in values if value is not None]
    return round(sum(known)) if known else None


def decimal(value: float | None, digits: int = 2) -> str:
    """`1.47`, with separators of thousands."""
    return DASH if value is None else f"{value:,.{digits}f}"


def integer(value: float | None) -> str:
    """`12,345`."""
    return decimal(value, 0)


def significant(value: float | None) -> str:
    """Three significant digits, for speeds: `35.0`, `1,290`."""
    if value is None or value == 0:
        return DASH if value is None else "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return decimal(value, min(digits, 4))


def times(value: float | None) -> str:
    """`1.24` and the sign of multiplication."""
    return DASH if value is None else f"{value:,.2f}{TIMES}"


def percent(value: float | None, digits: int = 1) -> str:
    """A share as `97.0 %`."""
    return DASH if value is None else f"{100 * value:.{digits}f} %"


def between(pair: tuple[float, float] | None, digits: int = 2) -> str:
    """An interval as `[1.42, 1.52]`."""
    return DASH if pair is None else f"[{pair[0]:,.{digits}f}, {pair[1]:,.{digits}f}]"


def with_interval(value: float | None, pair: tuple[float, float] | None) -> str:
    """`1.47 [1.42, 1.52]`, or the number alone where no interval is known."""
    return decimal(value) if pair is None else f"{decimal(value)} {between(pair)}"


def plural(amount: int | None, one: str, many: str | None = None) -> str:
    """`1 prompt`, `2 prompts`."""
    return f"{integer(amount)} {one if amount == 1 else many or one + 's'}"


def listed(values: Iterable[Any]) -> str:
    """`[2, 15, 27]`, or a dash for nothing."""
    found = [shown(value) for value in values]
    return f"[{', '.join(found)}]" if found else DASH


def shown(value: Any) -> str:
    """Any value of a JSON artifact as people read it."""
    if value is None:
        return DASH
    if isinstance(value, list):
        return listed(shown(entry) for entry in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def words(name: str) -> str:
    """A reason or a key for people: `prompt_too_long` as `prompt too long`."""
    return name.replace("_", " ")
