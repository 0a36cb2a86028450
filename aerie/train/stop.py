"""Ending on request: SLURM sends SIGTERM before it takes a node back."""

import logging
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

import torch

from aerie.processes import REQUEUE
from aerie.train.ranks import Ranks


class Preempted(Exception):
    """A run was told to end and has written a checkpoint; starting it again continues it."""

    def __init__(self, step: int) -> None:
        super().__init__(f"told to end; the checkpoint after step {step} is written")


@contextmanager
def requeued() -> Iterator[None]:
    """What a script does inside ends it with `REQUEUE` if it was told to end."""
    try:
        yield
    except Preempted as preempted:
        logging.getLogger("aerie").info("%s", preempted)
        sys.exit(REQUEUE)


class Stop:
    """While entered, SIGTERM is remembered instead of ending the process."""

    def __init__(self) -> None:
        self._asked = False
        self._before: Any = None

    def __enter__(self) -> "Stop":
        self._before = signal.signal(signal.SIGTERM, self._remember)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        signal.signal(signal.SIGTERM, self._before)

    def asked(self, ranks: Ranks) -> bool:
        """Whether any rank was told to end: all of them stop after the same step."""
        if ranks.world == 1:
            return self._asked
        votes = torch.tensor(float(self._asked), device=ranks.device)
        ranks.sum_(votes)
        return bool(votes > 0)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self._asked = True
