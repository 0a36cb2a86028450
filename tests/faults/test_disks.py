"""A full disk and a folder that cannot be written stop a phase with a message; then it goes on."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.capabilities import mounted
from tests.faults.ledger import Ledger
from tests.faults.runs import Job, Runner, tree
from tests.workflow.conftest import Checkout

_SPACE = 48_000_000


@pytest.fixture
def disk(runner: Runner, tmp_path: Path) -> Iterator[Checkout]:
    """A copy of the build whose results lie on a disk of their own."""
    checkout = runner.copy(tmp_path / "checkout")
    results = checkout.folder / "results"
    shutil.rmtree(results)
    results.mkdir()
    with mounted(results, _SPACE):
        shutil.copytree(runner.checkout.work, checkout.work, symlinks=True)
        yield checkout


@contextmanager
def filled(checkout: Checkout, free: int) -> Iterator[None]:
    """The disk with so many bytes left."""
    filler = checkout.folder / "results/filler"
    with filler.open("wb") as stream:
        there = os.statvfs(filler)
        os.posix_fallocate(stream.fileno(), 0, there.f_bavail * there.f_frsize - free)
    try:
        yield
    finally:
        filler.unlink()


def outcome(
    runner: Runner, checkout: Checkout, job: Job, reference: dict[str, str], text: str, code: int
) -> tuple[str, str]:
    """What a run that met a fault did, and whether the next one without it repairs everything."""
    again = runner.run(checkout, job)
    found = tree(checkout.work)
    if again.code:
        return "wrong", f"{job.name} does not go on\n{again.text[-800:]}"
    if other := [name for name, digest in reference.items() if found.get(name) != digest]:
        return ("lost" if set(other) - set(found) else "wrong"), f"{job.name}: {other}"
    if code and ("Traceback" in text or "remedy:" not in text):
        return "wrong", f"{job.name} stops without a message\n{text[-800:]}"
    return ("refused_clearly" if code else "recovered"), ""


def test_full_disk(
    runner: Runner, reference: dict[str, str], ledger: Ledger, disk: Checkout
) -> None:
    for job in runner.one_of_each():
        for free in (0, 16384):
            clean = [disk.folder / name for name in job.outputs]
            for path in clean:
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
            with filled(disk, free):
                ended = runner.run(disk, job)
            ledger.add("full disk", *outcome(runner, disk, job, reference, ended.text, ended.code))
    assert not ledger.bad("full disk")


def test_read_only(
    runner: Runner, reference: dict[str, str], ledger: Ledger, disk: Checkout
) -> None:
    results = str(disk.folder / "results")
    for job in runner.one_of_each():
        subprocess.run(["mount", "-o", "remount,ro", results], check=True)
        ended = runner.run(disk, job, fresh=False)
        subprocess.run(["mount", "-o", "remount,rw", results], check=True)
        ledger.add(
            "read-only folder", *outcome(runner, disk, job, reference, ended.text, ended.code)
        )
    assert not ledger.bad("read-only folder")
