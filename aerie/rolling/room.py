"""Which states have to go before others come: pure arithmetic, in bytes."""

from collections.abc import Mapping, Sequence, Set
from pathlib import Path

from aerie.errors import GateError
from aerie.train.schedule import Window


def removed_first(
    held: Mapping[Path, int],
    wanted: Mapping[Path, int],
    room: int,
    upcoming: Sequence[Set[Path]],
) -> list[Path]:
    """Parts of `held` to be removed, in order, so that it and `wanted` take `room` at most.

    What is needed last goes first (L. A. Belady, 1966: of parts of one size, no other choice
    captures fewer), and before it what no window of `upcoming` needs. Of two that are needed at
    once the larger goes.
    """
    sizes = {**held, **wanted}
    excess = sum(sizes.values()) - room
    next_use = {
        part: next((n for n, parts in enumerate(upcoming) if part in parts), len(upcoming))
        for part in held.keys() - wanted.keys()
    }
    removed = []
    for part in sorted(next_use, key=lambda part: (-next_use[part], -held[part], part)):
        if excess <= 0:
            break
        removed.append(part)
        excess -= held[part]
    return removed


def check_room(
    windows: Sequence[Window], sizes: Mapping[Path, int], held_out: int, budget: int
) -> None:
    """Check that the states of each window, and of each part alone, fit beside those held out.

    Raises:
        GateError: they do not; it says what would.
    """
    largest = max(
        [sum(sizes[part] for part in window.parts) for window in windows] + [*sizes.values()]
    )
    if held_out + largest <= budget:
        return
    part = max(sizes.values())
    raise GateError(
        "rolling",
        "the states that are trained on together are larger than the budget",
        saw=f"{largest:,} bytes of the largest window, {held_out:,} of samples held out",
        expected=f"at most {budget:,} (rolling.budget_bytes)",
        remedy=f"one of\n    - rolling.budget_bytes: {held_out + largest}, if the disk has them\n"
        "    - a smaller `shuffle_tokens` of the draft: less is shuffled together; one part is the "
        f"least, and takes {held_out + part:,} bytes with the samples held out\n"
        "    - a smaller `states.codec`: fp8 takes half of bf16, teacher less than fp8",
    )
