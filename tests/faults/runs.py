"""The phases of a tiny build as commands that can be run alone, and what they leave."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aerie.files import digest_file
from tests.workflow.conftest import ROOT, Checkout

_JOB = re.compile(r"^\[.*\]\n(?:local)?(?:rule|checkpoint) (\w+):\n", re.MULTILINE)
_SCRIPT = re.compile(r"python (scripts/\w+\.py\b(?:[^\n]*\\\n)*[^\n]*)")
_DIRNAME = re.compile(r"\$\(dirname ([^)]+)\)")
# The order in which data flows.
PHASES = ("target", "candidates", "prompts", "overlap", "responses", "counts", "map", "states",
          "manifest", "draft", "bench", "lock", "report")  # fmt: skip
# What a build leaves beside its artifacts.
_ASIDE = ("logs", "benchmarks", "journal", "tracking")


@dataclass(frozen=True)
class Job:
    """One job of the build: its rule, the arguments of its script and its declared outputs."""

    rule: str
    arguments: list[str]
    outputs: list[str]

    @property
    def name(self) -> str:
        return f"{self.rule} {self.outputs[0]}"


@dataclass(frozen=True)
class Ended:
    """How a run ended. `code` is negative after a signal."""

    code: int
    seconds: float
    hung: bool
    text: str
    events: int

    @property
    def killed(self) -> bool:
        return self.code < 0

    @property
    def clear(self) -> bool:
        """Whether it stopped with an error that is meant for people."""
        own = re.search(r"^\w+: .+\n  +(saw|expected|remedy):", self.text, re.MULTILINE)
        return self.code == 1 and bool(own) and "this is a fault of Aerie" not in self.text


def jobs_of(text: str) -> list[Job]:
    """The jobs that Snakemake printed with `--printshellcmds`, in the order of the phases."""
    jobs = []
    pieces = _JOB.split(text)[1:]
    for rule, body in zip(pieces[::2], pieces[1::2], strict=True):
        script, outputs = _SCRIPT.search(body), re.search(r"^    output: (.+)$", body, re.MULTILINE)
        if script and outputs and rule in PHASES:
            line = _DIRNAME.sub(lambda found: str(Path(found[1].strip("'")).parent), script[1])
            words = shlex.split(line.replace("\\\n", " "))
            jobs.append(Job(rule, words, [name.strip() for name in outputs[1].split(",")]))
    return sorted({job.name: job for job in jobs}.values(), key=lambda job: PHASES.index(job.rule))


def tree(work: Path) -> dict[str, str]:
    """The digest of every artifact of a build, by its path."""
    return {
        str(path.relative_to(work)): digest_file(path)
        for path in sorted(work.rglob("*"))
        if path.is_file()
        and path.relative_to(work).parts[0] not in _ASIDE
        and not any(part.startswith(".") for part in path.relative_to(work).parts)
    }


@dataclass
class Runner:
    """A zygote, and the jobs of one finished build with what they left."""

    checkout: Checkout
    jobs: list[Job]
    logs: Path
    seconds: dict[str, float] = field(default_factory=dict)
    events: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._zygote = subprocess.Popen(
            [sys.executable, str(ROOT / "tests/faults/zygote.py")],
            cwd=self.checkout.folder,
            env={**self.checkout.environment(), "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._zygote.stdout is not None
        assert self._zygote.stdout.readline() == "ready\n"

    def close(self) -> None:
        assert self._zygote.stdin is not None
        self._zygote.stdin.close()
        self._zygote.wait()

    def copy(self, folder: Path) -> Checkout:
        """A copy of the finished build, to be disturbed."""
        shutil.copytree(self.checkout.folder, folder, symlinks=True,
                        ignore=shutil.ignore_patterns(".snakemake"))  # fmt: skip
        return Checkout(folder)

    def run(
        self,
        checkout: Checkout,
        job: Job,
        *,
        event: int | None = None,
        seconds: float | None = None,
        jumps: int = 0,
        fresh: bool = True,
    ) -> Ended:
        """Run a job as Snakemake does, which removes its outputs first.

        It is killed before its file event number `event`, or after `seconds`.
        """
        for name in job.outputs if fresh else ():
            path = checkout.folder / name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        log = self.logs / "run.log"
        log.with_name("run.log.events").unlink(missing_ok=True)
        order = {
            "arguments": job.arguments, "folder": str(checkout.folder), "log": str(log),
            "event": event, "seconds": seconds, "jumps": jumps, "limit": 240,
        }  # fmt: skip
        reply = self._ask(order)
        counted = log.with_name("run.log.events")
        events = int(counted.read_text()) if counted.exists() else 0
        return Ended(**reply, text=log.read_text(errors="replace"), events=events)

    def _ask(self, order: dict[str, Any]) -> dict[str, Any]:
        assert self._zygote.stdin is not None and self._zygote.stdout is not None
        self._zygote.stdin.write(json.dumps(order) + "\n")
        self._zygote.stdin.flush()
        reply: dict[str, Any] = json.loads(self._zygote.stdout.readline())
        return reply

    def one_of_each(self) -> list[Job]:
        """The last job of each phase: the one with something before it."""
        return list({job.rule: job for job in self.jobs}.values())
