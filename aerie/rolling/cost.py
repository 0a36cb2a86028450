"""What rolling capture costs: kept while it runs, then written as `rolling.json` by the draft."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from aerie.contracts import VERSIONS
from aerie.files import read_json, write_json, write_sealed


@dataclass
class Cost:
    """`captures` counts, by part, how often its states were written; `bytes_written` are theirs and
    those of samples held out; `peak_bytes` is the most that lay on the disk. Seconds are of
    captures and trainings that ended: work that was cut off by a kill is not in them.
    """

    captures: dict[str, int] = field(default_factory=dict)
    bytes_written: int = 0
    peak_bytes: int = 0
    capture_s: float = 0.0
    training_s: float = 0.0

    @classmethod
    def read(cls, path: Path) -> "Cost":
        """What `save` wrote; nothing, where there is no such file.

        Raises:
            ContractError: it is damaged.
        """
        return cls(**read_json(path)) if path.exists() else cls()

    def save(self, path: Path) -> None:
        """Keep it, so that a second run of a killed one counts on."""
        write_json(path, asdict(self))

    def write(self, out: Path, *, budget: int, windows: int, epochs: int) -> None:
        """Write `rolling.json`; `windows` are those of all `epochs`."""
        content: dict[str, Any] = {
            "artifact": "rolling",
            "contract": VERSIONS["rolling"],
            "budget_bytes": budget,
            "windows": windows,
            "epochs": epochs,
            **asdict(self),
        }
        content["capture_s"] = round(self.capture_s, 1)
        content["training_s"] = round(self.training_s, 1)
        write_sealed(out, content)
