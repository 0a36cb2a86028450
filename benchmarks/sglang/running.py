"""One call of the H200 run: where it works, how long it may, its servers, and what it has found."""

import argparse
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from aerie.config import ROOT, BenchSettings, ResponsesSettings
from aerie.contracts.layers import choose_layers
from aerie.engines.sglang.capture import new_spool
from aerie.engines.sglang.fleet import Fleet, servers
from aerie.engines.sglang.settings import URLS, SglangSettings
from aerie.engines.sglang.spool import Spool
from aerie.engines.sglang.wanted import Wanted
from aerie.errors import AerieError
from aerie.files import write_json
from aerie.target import Target, read_target
from aerie.train.settings import DraftSettings

log = logging.getLogger("aerie")

RESPONSES = ResponsesSettings(keep_truncated=True, max_rejected_share=0.95)


class OutOfTime(Exception):
    """The budget of this call is used up; the next one goes on."""


@dataclass
class Run:
    """One call: where it works, when it must end, and what is known so far."""

    work: Path
    out: Path
    deadline: float
    options: argparse.Namespace
    settings: SglangSettings
    result: dict[str, Any]

    @property
    def target_file(self) -> Path:
        return self.work / "target/target.json"

    @property
    def target(self) -> Target:
        return read_target(self.target_file)

    @property
    def prompts(self) -> list[Path]:
        """Sidecars of all parts of prompts."""
        return sorted(self.work.glob("prompts/*/*.json"))

    @property
    def responses(self) -> ResponsesSettings:
        return RESPONSES.model_copy(update={"max_new_tokens": self.options.new_tokens})

    @property
    def suite(self) -> Path:
        """What is measured and never trained on."""
        return self.work / "heldout.jsonl"

    @property
    def draft(self) -> DraftSettings:
        # The chain of the bench is 3 long. At this size a wide layer costs a round no time.
        return DraftSettings(
            steps=4, epochs=self.options.epochs, learning_rate=1e-3,
            pack_tokens=self.options.pack_tokens, intermediate_size=4096, eval_share=0.02,
            checkpoint_every=200, export="best",
        )  # fmt: skip

    @property
    def bench(self) -> BenchSettings:
        options = self.options
        return BenchSettings(
            suites={"heldout": str(self.suite)}, k=3, max_new_tokens=min(options.new_tokens, 256),
            repeats=options.repeats, timed_prompts=options.timed_prompts,
            concurrency=tuple(options.concurrency), min_accept_length=1.05,
            simulated_tolerance=0.05,
        )  # fmt: skip

    def of_parts(self, phase: str, name: str = "") -> list[Path]:
        """A path of `phase` for each part: `<phase>/<dataset>/<part>.json` or a file below it."""
        parts = [path.relative_to(self.work / "prompts") for path in self.prompts]
        return [
            self.work / phase / (part.with_suffix("") / name if name else part) for part in parts
        ]

    @property
    def left(self) -> float:
        return self.deadline - time.monotonic()

    def save(self) -> None:
        write_json(self.out, self.result)

    def note(self, step: str, **facts: Any) -> None:
        self.result.setdefault("steps", {}).setdefault(step, {}).update(facts)
        self.save()

    def script(self, name: str, *arguments: object) -> None:
        """Run one of Aerie's scripts, as a rule does; told to end when the time is over.

        Raises:
            OutOfTime: it was.
        """
        command = [sys.executable, str(ROOT / "scripts" / f"{name}.py"), *map(str, arguments)]
        command += ["--log", str(self.work / "logs" / f"{name}.log")]
        process = subprocess.Popen(command, cwd=ROOT)
        try:
            status = process.wait(timeout=max(self.left, 1))
        except subprocess.TimeoutExpired:
            process.terminate()
            process.wait()
            raise OutOfTime(name) from None
        if status:
            raise subprocess.CalledProcessError(status, command)


def versions(settings: SglangSettings) -> dict[str, Any]:
    """Versions of what runs, the GPU, and the command line."""
    import torch

    names = ("torch", "sglang", "transformers", "triton")
    script = (
        "import importlib.metadata as m, json; "
        f"print(json.dumps({{n: m.version(n) for n in {names}}}))"
    )
    found = subprocess.run(
        [settings.python, "-c", script], capture_output=True, text=True, check=True
    )
    return {
        "versions": json.loads(found.stdout),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none: the CPU",
        "command": " ".join(sys.argv),
    }


@contextmanager
def serving(run: Run, wanted: Wanted, name: str, count: int = 1) -> Iterator[Fleet]:
    """`count` servers on the GPU that this script and the scripts that it runs share."""

    def start(number: int) -> Fleet:
        log_file = run.work / "logs" / f"server-{name}-{number}.log"
        return stack.enter_context(servers(run.settings, wanted, log_file, own=True))

    with ExitStack() as stack:
        with ThreadPoolExecutor(count) as pool:
            fleets = [*pool.map(start, range(count))]
        fleet = Fleet(
            [endpoint for each in fleets for endpoint in each.endpoints],
            [info for each in fleets for info in each.infos],
        )
        os.environ[URLS] = ",".join(fleet.urls)
        try:
            yield fleet
        finally:
            del os.environ[URLS]


@contextmanager
def capturing(run: Run) -> Iterator[tuple[Fleet, Spool]]:
    """A server that gives its states to this script and to the scripts that it runs."""
    target = run.target
    spool = new_spool(target, choose_layers(target.layers), run.settings)
    log_file = run.work / "logs/server-capture.log"
    try:
        with servers(run.settings, Wanted.capture(target, spool), log_file, own=True) as fleet:
            variables = spool.variables() | {URLS: ",".join(fleet.urls)}
            os.environ.update(variables)
            try:
                yield fleet, spool
            finally:
                for name in variables:
                    del os.environ[name]
    finally:
        spool.remove()


@contextmanager
def without_capture(run: Run) -> Iterator[Fleet]:
    """A plain server with what a capture server is told and captures nothing."""
    same = ("--disable-radix-cache", "--disable-cuda-graph")
    plain = run.settings.model_copy(update={"arguments": (*run.settings.arguments, *same)})
    log_file = run.work / "logs/server-prefill.log"
    with servers(plain, Wanted.plain(run.target), log_file, own=True) as fleet:
        yield fleet


def measured(run: Run, figure: str, measure: Callable[[], dict[str, Any]]) -> None:
    """Keep `figure` of what `measure` gives, and the rest in its step.

    Why it could not be measured is a result as well, and costs no later step.
    """
    try:
        found = measure()
    except (subprocess.CalledProcessError, httpx2.HTTPError, AerieError) as error:
        log.error("%s: %s", figure, error)
        run.note(figure, error=str(error))
        return
    run.result[figure] = found.pop(figure)
    run.note(figure, **found)
