"""What was tried and what became of it; the table, and results/faults.json."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

OUTCOMES = ("recovered", "refused_clearly", "lost", "wrong")


@dataclass
class Row:
    """Counts of one kind of fault.

    `recovered`: the artifacts are those of an undisturbed run. `refused_clearly`: the build stopped
    with a message that names the cause. `lost`: something that was finished is gone. `wrong`: other
    artifacts than those of an undisturbed run, or an error that is none of Aerie's.
    """

    kind: str
    tried: int = 0
    recovered: int = 0
    refused_clearly: int = 0
    lost: int = 0
    wrong: int = 0


class Ledger:
    """Rows by kind, and notes on what went wrong."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}
        self.notes: list[str] = []

    def add(self, kind: str, outcome: str, note: str = "") -> None:
        row = self.rows.setdefault(kind, Row(kind))
        row.tried += 1
        setattr(row, outcome, getattr(row, outcome) + 1)
        if outcome in ("lost", "wrong"):
            self.notes.append(f"{kind}: {outcome}: {note}")

    def bad(self, kind: str) -> list[str]:
        return [note for note in self.notes if note.startswith(f"{kind}:")]

    def table(self) -> str:
        heads = ("kind", "tried", *OUTCOMES)
        rows = [[str(value) for value in asdict(row).values()] for row in self.rows.values()]
        totals = [sum(getattr(row, name) for row in self.rows.values()) for name in heads[1:]]
        rows.append(["all", *map(str, totals)])
        widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
        lines = [
            "  ".join(
                cell.ljust(width) if not at else cell.rjust(width)
                for at, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
            for row in (heads, *rows)
        ]
        return "\n".join(lines)

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        content = [asdict(row) for row in self.rows.values()]
        path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
