"""Counting rounds of speculation, simulated and served alike."""

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Tally:
    """Rounds of a walk: `reached[i]` of them proposed a token i, `accepted[i]` of them kept it."""

    k: int
    samples: int = 0
    rounds: int = 0
    reached: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.reached = self.reached or [0] * self.k
        self.accepted = self.accepted or [0] * self.k

    @property
    def accept_length(self) -> float:
        """1 + accepted draft tokens / rounds."""
        return 1 + sum(self.accepted) / max(self.rounds, 1)

    def count(self, accepted: int, possible: int) -> None:
        """Count one round that kept `accepted` of the `possible` draft tokens before the end."""
        self.rounds += 1
        for position in range(min(accepted + 1, possible)):
            self.reached[position] += 1
            self.accepted[position] += position < accepted

    def add(self, other: "Tally") -> None:
        """Add the rounds of `other`."""
        self.samples += other.samples
        self.rounds += other.rounds
        self.reached = [a + b for a, b in zip(self.reached, other.reached, strict=True)]
        self.accepted = [a + b for a, b in zip(self.accepted, other.accepted, strict=True)]

    def as_dict(self) -> dict[str, Any]:
        """For `eval.json`: acceptance is the joint rate of each position."""
        return {
            "accept_length": round(self.accept_length, 4),
            "samples": self.samples,
            "rounds": self.rounds,
            "acceptance": [round(kept / max(self.rounds, 1), 4) for kept in self.accepted],
        }


def walk(prefix: list[int], k: int) -> Tally:
    """Walk the rounds of one sample; `prefix[r]` is how many of k draft tokens row r gets right."""
    tally, row = Tally(k, samples=1), 0
    while row < len(prefix):
        # Draft tokens beyond the end token are no gain, and serving never counts them.
        possible = min(k, len(prefix) - row)
        accepted = min(prefix[row], possible)
        tally.count(accepted, possible)
        row += accepted + 1
    return tally
