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


def run_and_kill(checkout: Checkout, seconds: float) -> bool:
    """Start the build, SIGKILL it with all that it started; False if it had ended before.

    Without Snakemake's lock, as the Makefile runs it: that lock outlives a kill.
    """
    with (checkout.folder / "killed.log").open("ab") as log:
        process = subprocess.Popen(
            checkout.command("--nolock"),
            cwd=checkout.folder,
            env=checkout.environment(),
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
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
    killed = sum(run_and_kill(checkout, moments.uniform(4, 14)) for _ in range(KILLS))
    assert killed >= KILLS // 2
    run = checkout.snakemake("--nolock")
    assert run.code == 0, run.text
    assert checkout.digests() == built.digests()
