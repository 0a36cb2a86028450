"""A draft that is trained while its states come and go, window by window.

Captures are what scripts/states.py does, trainings what scripts/draft.py does up to a step. The
order is that of a training with all states and the same `shuffle_tokens`, so the draft is the same.
A run that was killed goes on from its last checkpoint.
"""

import fcntl
import logging
import os
import shlex
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from aerie.contracts.vocab import read_vouched_map
from aerie.engines import STREAMING
from aerie.engines.sglang.settings import SglangSettings
from aerie.errors import ConfigError
from aerie.rolling.children import Children
from aerie.rolling.cost import Cost
from aerie.rolling.parts import RollingPart, plan_part, source_of
from aerie.rolling.room import check_room
from aerie.rolling.store import Store
from aerie.states.settings import StatesSettings, capture_threads
from aerie.target import Target, read_target
from aerie.train.checkpoint import resumable_step
from aerie.train.data import split
from aerie.train.run import run_contract
from aerie.train.schedule import Window, plan_steps, windows_of
from aerie.train.settings import DraftSettings
from aerie.train.source import TrainingSource
from aerie.train.start import draft_config

log = logging.getLogger("aerie")


@dataclass(frozen=True)
class Rolling:
    """A rolling run: what it reads, where it works and how.

    `responses` are sidecars of parts, `states` the folder that their states come and go in,
    `journal` what a second run continues from, `logs` where captures and trainings write theirs.
    `trainer` starts a script that trains, `scripts` is the folder of those, `out` draft.json.
    """

    responses: Sequence[Path]
    target: Path
    map: Path
    draft: DraftSettings
    settings: StatesSettings
    engine: str
    greedy: bool
    threads: int
    states: Path
    journal: Path
    checkpoints: Path
    tracking: Path
    logs: Path
    trainer: str
    scripts: Path
    out: Path

    @property
    def samples(self) -> Path:
        """Where trainings read what they train on."""
        return self.journal / "samples.json"

    def run(self, budget: int) -> None:
        """Train the draft with at most `budget` bytes of states on the disk at a time.

        Raises:
            AerieError: a capture or a training failed.
            ConfigError: the draft does not say what is shuffled together.
            ContractError: an input is damaged.
            GateError: the states of a window are larger than the budget.
            SystemExit: the process was told to end; a second run continues.
        """
        if self.draft.shuffle_tokens is None:
            raise ConfigError(
                "rolling capture needs a draft that shuffles some parts at a time",
                saw="no shuffle_tokens",
                expected="shuffle_tokens of the draft",
                remedy="`make plan` says what fits into rolling.budget_bytes",
            )
        with _alone(self.states), Children() as children:
            self._run(budget, children)

    def _run(self, budget: int, children: Children) -> None:
        target = read_target(self.target)
        parts = self._parts(target)
        source = source_of(parts)
        source.write(self.samples)
        windows = self._windows(source)
        held_out = sum(part.held_out_bytes for part in parts)
        check_room(windows, {part.folder: part.bytes for part in parts}, held_out, budget)
        capture = Capture(self, target, parts[0], children)
        # Read before anything is counted on top.
        cost = Cost.read(self._cost)
        store = Store(parts, self.states, budget, capture, cost, self._cost)
        step = self._resumable(target, source)
        first = next((n for n, each in enumerate(windows) if each.end > step), len(windows))
        for number, window in enumerate(windows[first:], start=first):
            log.info("window %d of %d: %d parts", number + 1, len(windows), len(window.parts))
            store.bring(windows[number:])
            self._train(window.end, children, cost)
        if first == len(windows):
            # Killed in the export.
            self._train(windows[-1].end, children, cost)
        cost.write(
            self.out.with_name("rolling.json"), budget=budget, windows=len(windows),
            epochs=self.draft.epochs,
        )  # fmt: skip
        for folder in (self.checkpoints, self.journal):
            shutil.rmtree(folder, ignore_errors=True)

    @property
    def _cost(self) -> Path:
        return self.journal / "cost.json"

    def _parts(self, target: Target) -> list[RollingPart]:
        held_out = self.journal / "held_out"
        parts = [
            plan_part(path, target, self.settings, self.draft.eval_share, self.states, held_out)
            for path in self.responses
        ]
        # As the manifest of all states would name them.
        return sorted(parts, key=lambda part: f"{part.name}/index.json")

    def _windows(self, source: TrainingSource) -> list[Window]:
        draft = self.draft
        training, _ = split(source.samples, draft.eval_share)
        steps = plan_steps(
            training, draft.pack_tokens, draft.seed, draft.epochs, draft.accumulate * draft.gpus,
            draft.shuffle_tokens,
        )  # fmt: skip
        return windows_of(steps)

    def _resumable(self, target: Target, source: TrainingSource) -> int:
        config = draft_config(target, self.draft, read_vouched_map(self.map), source.layers)
        contract = run_contract(self.draft, config, target, self.map, source, self.draft.gpus)
        return resumable_step(self.checkpoints, contract)

    def _train(self, until: int, children: Children, cost: Cost) -> None:
        start, log_file = time.monotonic(), self.logs / "train.log"
        words = {
            "--log": log_file,
            "--threads": self.threads,
            "--settings": self.draft.as_json(),
            "--samples": self.samples,
            "--until": until,
            "--map": self.map,
            "--target": self.target,
            "--checkpoints": self.checkpoints,
            "--tracking": self.tracking,
            "--out": self.out,
        }
        command = [*shlex.split(self.trainer), str(self.scripts / "draft.py")]
        children.run("the training", [*command, *_options(words)], os.environ, log_file)
        cost.training_s += time.monotonic() - start
        cost.save(self._cost)


@dataclass
class Capture:
    """Captures parts as their rule does; `any_part` is one of them."""

    rolling: Rolling
    target: Target
    any_part: RollingPart
    children: Children

    def __post_init__(self) -> None:
        self._environment: dict[str, str] = {}

    @contextmanager
    def ready(self) -> Iterator[None]:
        """One server for several parts, where the engine is one."""
        server: AbstractContextManager[dict[str, str]] = nullcontext({})
        if self.rolling.engine in STREAMING:
            from aerie.engines.sglang.hold import capture_server

            log_file = self.rolling.logs / "server.log"
            settings = SglangSettings.from_environment()
            server = capture_server(self.target, self.any_part.layers, settings, log_file)
        with server as variables:
            self._environment = variables
            yield

    def part(self, part: RollingPart) -> None:
        """Capture one part; what is there and right is kept."""
        rolling = self.rolling
        log_file = rolling.logs / f"{part.name.replace('/', '-')}.log"
        words = {
            "--log": log_file,
            "--threads": min(rolling.threads, capture_threads(rolling.engine)),
            "--responses": part.responses,
            "--target": rolling.target,
            "--settings": rolling.settings.as_json(),
            "--engine": rolling.engine,
            "--out": part.index,
        }
        answers = "--greedy" if rolling.greedy else "--sampled"
        command = [sys.executable, str(rolling.scripts / "states.py"), *_options(words), answers]
        environment = {**os.environ, **self._environment}
        self.children.run(f"the capture of {part.name}", command, environment, log_file)


def _options(words: dict[str, object]) -> list[str]:
    return [str(word) for pair in words.items() for word in pair]


@contextmanager
def _alone(states: Path) -> Iterator[None]:
    """Wait until no other draft of this work folder does: each would remove the other's states."""
    states.mkdir(parents=True, exist_ok=True)
    with (states / ".rolling.lock").open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.info("waiting for another draft that captures its states as it goes")
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield
