"""Progress on long work: one line a few seconds apart, readable on a terminal and in a log.

Several jobs share a terminal, so a line is printed whole and never redrawn.
"""

import time
from types import TracebackType

from rich.console import Console
from rich.text import Text

_INTERVAL_S = 5.0
_BAR_WIDTH = 24

console = Console(stderr=True, highlight=False)


class Progress:
    """Counts work done and prints how far it is, how fast it goes and how long it will take.

    `unit` is what `advance` counts; `rate_unit` (default: the same) is what the speed counts.
    """

    def __init__(
        self, title: str, total: int, unit: str = "rows", rate_unit: str | None = None
    ) -> None:
        self.title, self.total, self.unit = title, max(total, 1), unit
        self.rate_unit = rate_unit or unit
        self.done, self.amount, self._skipped = 0, 0.0, 0
        self._start = time.monotonic()
        self._printed = self._start

    def __enter__(self) -> "Progress":
        self._print("started")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._print("done" if kind is None else "stopped")

    def skip(self, count: int) -> None:
        """Count work that was found done already: it moves the bar and not the rate."""
        self.done += count
        self._skipped += count

    def advance(self, count: int = 1, amount: float | None = None, note: str = "") -> None:
        """Count `count` units of work, worth `amount` rate units (default: the same)."""
        self.done += count
        self.amount += count if amount is None else amount
        now = time.monotonic()
        if now - self._printed >= _INTERVAL_S and self.done < self.total:
            fresh = self.done - self._skipped
            left = (now - self._start) * (self.total - self.done) / max(fresh, 1)
            minutes, seconds = divmod(round(left), 60)
            self._print(f"{minutes}:{seconds:02d} left" if fresh else "waiting", note)
            self._printed = now

    def _print(self, state: str, note: str = "") -> None:
        elapsed = max(time.monotonic() - self._start, 1e-9)
        filled = round(_BAR_WIDTH * min(self.done / self.total, 1))
        line = Text.assemble(
            self.title,
            (f" {'━' * filled}", "green"),
            (f"{'─' * (_BAR_WIDTH - filled)} ", "dim"),
            f"{self.done:,}/{self.total:,} {self.unit}  ",
        )
        if self.amount:
            line.append(f"{self.amount / elapsed:,.0f} {self.rate_unit}/s  ", "cyan")
        line.append(state)
        if note:
            line.append(f"  {note}")
        console.print(line, soft_wrap=True)
