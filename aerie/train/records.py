"""Figures of training steps: kept on the device, read a few steps later, so that none waits."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from aerie.train.schedule import Step

_READ_EVERY = 10
_RECORDS = 1000


@dataclass(frozen=True)
class Record:
    """One step: its number from 1, learning rate, and active rows of each training-time-test step.

    `figures` [3 + 2 steps]: gradient norm, whether the step was taken, loss, the loss of each
    training-time-test step, and the rows whose best token was the target's.
    """

    number: int
    rate: float
    counts: list[int]
    figures: Tensor


class Records:
    """Steps whose figures were not read yet."""

    def __init__(self, total: int) -> None:
        self._every = max(1, total // _RECORDS)
        self._waiting: list[tuple[Record, Step]] = []
        self.note = ""

    @property
    def full(self) -> bool:
        """Whether it is time to read."""
        return len(self._waiting) >= _READ_EVERY

    def add(self, record: Record, step: Step) -> None:
        """Keep a step's figures."""
        self._waiting.append((record, step))

    def read(self, ends_epoch: Callable[[int], bool]) -> tuple[list[dict[str, Any]], list[int]]:
        """Lines for `train.jsonl` (about 1,000 of a run and the last of each epoch), and the steps
        that were not taken.
        """
        if not self._waiting:
            return [], []
        figures = torch.stack([record.figures for record, _ in self._waiting]).tolist()
        lines, skipped = [], []
        for (record, step), values in zip(self._waiting, figures, strict=True):
            if not values[1]:
                skipped.append(record.number)
            elif (record.number - 1) % self._every == 0 or ends_epoch(record.number - 1):
                lines.append(_line(record, step, values))
            self.note = f"loss {values[2]:.3f}"
        self._waiting.clear()
        return lines, skipped


def _line(record: Record, step: Step, values: list[float]) -> dict[str, Any]:
    norm, _, loss, *rest = values
    losses, correct = rest[: len(record.counts)], rest[len(record.counts) :]
    return {
        "step": record.number,
        "epoch": step.epoch,
        "tokens": step.tokens,
        "supervised": record.counts[0],
        "loss": round(loss, 6),
        "losses": [round(each, 6) for each in losses],
        "learning_rate": record.rate,
        "gradient_norm": round(norm, 6),
        "accuracy": [
            round(hits / max(count, 1), 4)
            for hits, count in zip(correct, record.counts, strict=True)
        ],
    }
