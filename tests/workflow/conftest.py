"""A checkout of its own for every workflow test, with a tiny build in it that is complete.

The build is made once; a test gets a copy with the same times and relative paths, so Snakemake
takes it for the same one.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml

from aerie.files import digest_bytes
from tests.conftest import made_once

ROOT = Path(__file__).resolve().parents[2]
COPIED = (
    "Snakefile", "rules", "scripts", "aerie", "schemas", "profiles", "requirements", "containers",
)  # fmt: skip
WORK = Path("results/tiny")
_OF_MAKE = {"MAKEFLAGS", "MAKELEVEL", "MFLAGS", "ARGS"}

SUBJECTS = (
    "sorting a list", "reading a file", "adding two numbers", "reversing a string",
    "finding the largest item", "counting words", "joining two lists", "checking a palindrome",
    "parsing a date", "rounding a price", "splitting a path", "merging two maps",
    "testing for primes", "drawing a line", "closing a socket", "naming a variable",
)  # fmt: skip


@dataclass
class Run:
    """One call of Snakemake: its exit code, what it printed, and the jobs that it started."""

    code: int
    text: str
    jobs: list[str] = field(default_factory=list)


# On two threads, on a busy machine, 3 of some 80 trainings of a tiny draft summed in another order,
# and tests compare its bytes: docs/training.md.
_ONE_THREAD = (
    "draft=1", "bench=1", "scaling_point=1", "scaling_whole=1", "map_study_result=1", "mix_point=1",
)  # fmt: skip


@dataclass
class Checkout:
    """A folder with the workflow and one configuration."""

    folder: Path
    set_threads: ClassVar[tuple[str, ...]] = ("--set-threads", *_ONE_THREAD)

    @property
    def work(self) -> Path:
        return self.folder / WORK

    def configure(self, **changes: Any) -> None:
        """Change the configuration; `a__b=1` sets `a.b`."""
        path = self.folder / "config.yaml"
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
        for name, value in changes.items():
            *parents, last = name.split("__")
            section = config
            for parent in parents:
                section = section.setdefault(parent, {})
            section[last] = value
        path.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")

    def environment(self) -> dict[str, str]:
        binaries = Path(sys.executable).parent
        # Options of the make that runs the tests are not for one that they run.
        inherited = {name: value for name, value in os.environ.items() if name not in _OF_MAKE}
        return {
            **inherited,
            "PATH": f"{binaries}:{os.environ['PATH']}",
            "PYTHONPATH": f"{self.folder}:{self.folder / 'rules'}",
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }

    def command(self, *arguments: str) -> list[str]:
        profile = ["--workflow-profile", "profiles/default"]
        return ["snakemake", *self.set_threads, *profile, "--cores", "2", *arguments]

    def snakemake(self, *arguments: str) -> Run:
        """Run the workflow to its end."""
        done = self.call(*self.command(*arguments))
        return Run(done.returncode, done.stdout, started(done.stdout))

    def call(self, *words: str) -> "subprocess.CompletedProcess[str]":
        """Run a command in the checkout; what it says on either stream is in `stdout`."""
        return subprocess.run(
            words,
            cwd=self.folder,
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )

    def digests(self) -> dict[str, Any]:
        """What every artifact is, by the sidecars that name its content."""
        patterns = (
            "prompts/*/*.json", "responses/*/*.json", "states/*/*/index.json",
            "vocab/map.json", "draft/*/draft.json",
        )  # fmt: skip
        return {
            str(path.relative_to(self.work)): json.loads(path.read_text(encoding="utf-8"))
            for pattern in patterns
            for path in sorted(self.work.glob(pattern))
        }


def add_make(checkout: Checkout) -> None:
    """Give a checkout the Makefile, and this environment as if `make setup` had made it."""
    shutil.copy2(ROOT / "Makefile", checkout.folder / "Makefile")
    environment = checkout.folder / ".venv"
    environment.mkdir()
    for name in ("bin", "lib", "pyvenv.cfg"):
        (environment / name).symlink_to(Path(sys.prefix) / name)
    for stamp in ("run.done", "dev.done"):
        (environment / stamp).touch()


def started(text: str) -> list[str]:
    """The jobs that Snakemake's own log says it started: `rule` or `rule wildcard wildcard`."""
    jobs = []
    blocks = re.split(r"^\[.*\]\n(?=(?:local)?(?:rule|checkpoint) )", text, flags=re.MULTILINE)
    for block in blocks[1:]:
        name = re.match(r"(?:local)?(?:rule|checkpoint) (\w+):", block)
        wildcards = re.search(r"^    wildcards: (.*)$", block, flags=re.MULTILINE)
        values = re.findall(r"=([^,\s]+)", wildcards[1]) if wildcards else []
        if name:
            jobs.append(" ".join([name[1], *values]))
    return sorted(job for job in jobs if job != "all")


def write_dataset(path: Path, rows: int, word: str) -> None:
    """A Magicoder-Evol-Instruct file of prompts that are not near one another."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as stream:
        for number in range(rows):
            subject = SUBJECTS[number % len(SUBJECTS)]
            own = digest_bytes(f"{word} {number}".encode())
            instruction = f"Explain {subject} ({own})."
            stream.write(json.dumps({"instruction": instruction, "response": "-"}) + "\n")


def tiny_config(checkpoint: Path) -> dict[str, Any]:
    entry = {"adapter": "ise-uiuc/Magicoder-Evol-Instruct-110K", "take": 8}
    return {
        "work": str(WORK),
        "target": {"name": "tiny", "dtype": "float32", "source": {"path": str(checkpoint)}},
        "datasets": {name: {**entry, "path": f"data/{name}"} for name in ("first", "second")},
        "prompts": {"part_size": 4, "max_tokens": 256},
        "responses": {
            "max_new_tokens": 12, "batch_size": 4, "keep_truncated": True,
            "max_rejected_share": 1.0, "supervised_band": [0.0, 1.0],
        },
        "vocab": {"size": 128, "floor": 0.0, "dataset_floor": 0.0},
        "drafts": {
            "main": {
                "steps": 2, "epochs": 2, "pack_tokens": 256, "eval_share": 0.2,
                "learning_rate": 0.001, "dtype": "float32", "checkpoint_every": 2,
            }
        },
        "bench": {
            "suites": {"heldout": "data/heldout.jsonl"}, "k": 2, "max_new_tokens": 12,
            "repeats": 1, "timed_prompts": 2, "min_accept_length": 1.0, "simulated_tolerance": 9.0,
        },
    }  # fmt: skip


def make_checkout(folder: Path, tiny_checkpoint: Path) -> Checkout:
    """A checkout in the empty or new folder `folder` in which nothing is built yet."""
    checkout = Checkout(folder)
    checkout.folder.mkdir(exist_ok=True)
    for name in COPIED:
        source = ROOT / name
        copy = shutil.copytree if source.is_dir() else shutil.copy2
        copy(source, checkout.folder / name)
    for name in ("first", "second"):
        write_dataset(checkout.folder / f"data/{name}/data-evol_instruct-decontaminated.jsonl",
                      24, name)  # fmt: skip
    prompts = [
        {"id": f"h{n}", "domain": f"d{n % 2}", "system": None, "turns": [f"How to {n}?"]}
        for n in range(4)
    ]
    suite = checkout.folder / "data/heldout.jsonl"
    suite.write_text("".join(json.dumps(row) + "\n" for row in prompts), encoding="utf-8")
    config = yaml.safe_dump(tiny_config(tiny_checkpoint), sort_keys=False)
    (checkout.folder / "config.yaml").write_text(config, encoding="utf-8")
    return checkout


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path) -> Checkout:
    """A complete tiny build, with the commands of its jobs in its log; do not change it."""

    def build(folder: Path) -> None:
        run = make_checkout(folder, tiny_checkpoint).snakemake("--printshellcmds")
        assert run.code == 0, run.text

    return Checkout(made_once(tmp_path_factory, "tiny-build", build))


@pytest.fixture
def checkout(built: Checkout, tmp_path: Path) -> Checkout:
    """A copy of the complete tiny build, to be changed at will."""
    folder = tmp_path / "checkout"
    shutil.copytree(built.folder, folder, symlinks=True)
    return Checkout(folder)
