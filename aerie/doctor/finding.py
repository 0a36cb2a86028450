"""What the doctor found: one line, and where something is missing the remedy."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    `ok` is as it should be, `note` works but is worth knowing, `miss` stops the build. All but `ok`
    have a remedy.
    """

    name: str
    level: Literal["ok", "note", "miss"]
    saw: str
    remedy: str = ""
