"""Which adapter would read a dataset: the one of its id, or the family that its columns suggest."""

from collections.abc import Iterable
from dataclasses import dataclass

from aerie.prompts.adapters import adapters

# In order: a trajectory also holds messages, and an issue is the better prompt.
_FAMILIES = (
    ("issue", ("problem_statement", "trajectory")),
    ("messages", ("messages", "conversations", "conversation")),
    ("instruction", ("instruction", "prompt", "question", "problem", "query", "input")),
)


@dataclass(frozen=True)
class Fit:
    """`kind` is `exact` (an adapter of this id), `family`, `none` (no column fits) or `unknown`."""

    kind: str
    adapter: str | None
    reason: str


def fit(id: str, columns: Iterable[str]) -> Fit:
    """How a dataset would be read, by its id and the columns that are known of it."""
    if id in adapters():
        return Fit("exact", id, "Aerie has its adapter")
    columns = tuple(columns)
    for family, names in _FAMILIES:
        for name in names:
            if name in columns:
                reason = f"no adapter yet; its column `{name}` fits the family `{family}`"
                return Fit("family", family, reason)
    if columns:
        return Fit("none", None, f"no column of a known family among {', '.join(columns)}")
    return Fit("unknown", None, "columns unknown")
