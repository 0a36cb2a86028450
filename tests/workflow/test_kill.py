"""A build that is killed again and again ends with the artifacts of an undisturbed one."""

import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.workflow.conftest import Checkout

pytestmark = [pytest.mark.workflow, pytest.mark.slow]

KILLS = 10


def files(checkout: Checkout) -> int:
    """How many files the build has left so far; folders may go while they are counted."""
    return sum(len(names) for _, _, names in os.walk(checkout.work))


def run_and_kill(checkout: Checkout, new_files: int, seconds: float) -> bool:
    """Start the build, SIGKILL it with all that it started; False if it had ended before.

    The moment is `seconds` after the build has left `new_files` more, since a moment of the clock
    would be past the end of the build on a fast machine and before its first job on a slow one.
    Without Snakemake's lock, as the Makefile runs it: that lock outlives a kill.
    """
    enough = files(checkout) + new_files
    with (checkout.folder / "killed.log").open("ab") as log:
        process = subprocess.Popen(
            checkout.command("--nolock"),
            cwd=checkout.folder,
            env=checkout.environment(),
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        while process.poll() is None and files(checkout) < enough:
            time.sleep(0.02)
        time.sleep(seconds)
        running = process.poll() is None
        if running:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return running


def test_ten_kills_change_no_digest(built: Checkout, tmp_path: Path) -> None:
    checkout = Checkout(tmp_path / "checkout")
    shutil.copytree(built.folder, checkout.folder, symlinks=True)
    shutil.rmtree(checkout.folder / "results")
    shutil.rmtree(checkout.folder / ".snakemake")
    moments = random.Random(0)
    killed = [
        run_and_kill(checkout, moments.randint(1, 12), moments.uniform(0, 1)) for _ in range(KILLS)
    ]
    assert sum(killed) >= KILLS // 2, (checkout.folder / "killed.log").read_text()
    run = checkout.snakemake("--nolock")
    assert run.code == 0, run.text
    assert checkout.digests() == built.digests()
