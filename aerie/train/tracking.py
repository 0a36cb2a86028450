"""What a run shows while it trains. A tracker that fails is dropped and the run goes on."""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import torch

from aerie.contracts.draft import DraftConfig
from aerie.train.flops import step_flops
from aerie.train.ranks import Ranks
from aerie.train.schedule import Step
from aerie.train.speed import Speed, matrix_rate
from aerie.train.trackers import Maker, Tracker

log = logging.getLogger("aerie")

_T = TypeVar("_T")


class Tracking:
    """The trackers of a run, and its speed. Without `makers` nothing is measured or written."""

    def __init__(self, makers: Mapping[str, Maker] | None = None) -> None:
        self._makers = dict(makers or {})
        self._trackers: dict[str, Tracker] = {}
        self._speed: Speed | None = None
        self._count: Callable[[Step], int]

    def start(
        self, step: int, config: DraftConfig, steps: int, dtype: torch.dtype, ranks: Ranks
    ) -> None:
        """Open the trackers for a run that goes on after `step`, and measure the matrix rate."""
        if not self._makers or not ranks.leads:
            return
        for name, make in self._makers.items():
            tracker = self._guarded(name, partial(make, step))
            if tracker is not None:
                self._trackers[name] = tracker
        rate = self._guarded("the matrix rate", partial(matrix_rate, dtype, ranks.device))
        if rate is None:
            self.close()
            return
        log.info("matrix products run at %.3g TFLOP/s on %s", rate / 1e12, ranks.device)
        self._count = partial(step_flops, config, steps)
        self._speed = Speed(rate * ranks.world)
        self._write(step, {"speed/matrix_tflops": rate / 1e12})

    def restart(self, waited: float) -> None:
        """The time until now was spent on something that is no step."""
        if self._speed:
            self._speed.restart(waited)

    def add(self, step: Step) -> None:
        """Count a step; `read` shows it."""
        if self._speed:
            self._speed.add(step.tokens, self._count(step))

    def read(self, lines: Sequence[dict[str, Any]], waited: float) -> None:
        """Show lines of `train.jsonl`, and with the last one the speed since the last time."""
        if not self._speed or not lines:
            return
        for line in lines:
            values = _flat(line)
            if line is lines[-1]:
                speed = self._speed.read(waited)
                values |= {f"speed/{name}": value for name, value in speed.items()}
            self._write(line["step"], values)

    def evaluated(self, step: int, result: dict[str, Any]) -> None:
        """Show an entry of `eval.json`."""
        tallies = {"held_out": result["overall"]}
        tallies |= {f"held_out/{name}": tally for name, tally in result["datasets"].items()}
        values = {}
        for name, tally in tallies.items():
            values[f"{name}/accept_length"] = tally["accept_length"]
            for position, share in enumerate(tally["acceptance"], start=1):
                values[f"{name}/acceptance_{position}"] = share
        self._write(step, values)

    def close(self) -> None:
        """Close all trackers; safe to call twice."""
        while self._trackers:
            name, tracker = self._trackers.popitem()
            self._guarded(name, tracker.close)

    def _write(self, step: int, values: dict[str, float]) -> None:
        for name, tracker in list(self._trackers.items()):
            self._guarded(name, partial(tracker.write, step, values))

    def _guarded(self, name: str, action: Callable[[], _T]) -> _T | None:
        try:
            return action()
        # Packages of others, over networks and shared disks, may raise anything; days of training
        # are worth more than a curve.
        except Exception as error:
            self._trackers.pop(name, None)
            log.warning("%s failed and is dropped, training goes on: %r", name, error)
            return None


def _flat(line: dict[str, Any]) -> dict[str, float]:
    values = {
        "train/loss": line["loss"],
        "train/gradient_norm": line["gradient_norm"],
        "train/learning_rate": line["learning_rate"],
        "train/epoch": line["epoch"],
    }
    for name in ("losses", "accuracy"):
        for step, value in enumerate(line[name]):
            values[f"{name}/step_{step}"] = value
    return values
