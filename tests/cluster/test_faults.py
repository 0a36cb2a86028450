"""A build through SLURM that is disturbed ends with the artifacts of an undisturbed one."""

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster, command
from tests.cluster.conftest import ClusterCheckout
from tests.workflow.conftest import Checkout

pytestmark = [pytest.mark.workflow, pytest.mark.slow]


class Build:
    """A build that runs while its cluster is disturbed."""

    def __init__(self, checkout: ClusterCheckout, log: Path) -> None:
        self.log = log
        with log.open("wb") as stream:
            self.process = subprocess.Popen(
                checkout.command(), cwd=checkout.folder, env=checkout.environment(),
                stdout=stream, stderr=stream, start_new_session=True,
            )  # fmt: skip

    def __enter__(self) -> "Build":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    @property
    def text(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")


def test_faults_change_no_digest(
    built: Checkout, empty_checkout: ClusterCheckout, cluster: Cluster, tmp_path: Path
) -> None:
    """A killed job, a drained node, a preemption, a job that hangs, and Snakemake itself killed."""
    with Build(empty_checkout, tmp_path / "first.log") as build:
        killed = cluster.wait_for("responses", "RUNNING")
        cluster.drain()
        cluster.kill(killed)
        # Snakemake submits it again, and a drained node takes nothing.
        retry = cluster.wait_for(killed.rule, "PENDING", after=killed.id)
        assert "DRAIN" in command("sinfo", "--noheader", "--partition=gpu", "-o%T").upper()
        assert cluster.state(retry) == "PENDING"
        cluster.resume()

        preempted = cluster.wait_for("responses", "RUNNING", after=killed.id)
        command("scontrol", "requeue", preempted.id)
        cluster.wait_for(preempted.rule, "PENDING", after=str(int(preempted.id) - 1))

        hanging = cluster.wait_for("states", "RUNNING")
        granted = cluster.minutes(hanging)
        cluster.stop(hanging)
        # The limit itself is hit, only sooner: a minute is the least that SLURM knows.
        command("scontrol", "update", f"JobId={hanging.id}", "TimeLimit=1")
        cluster.wait_for(hanging.rule, "TIMEOUT")
        again = cluster.wait_for(hanging.rule, "PENDING", "RUNNING", "COMPLETED", after=hanging.id)
        assert cluster.minutes(again) == 2 * granted

        orphan = cluster.wait_for("draft", "RUNNING")
        assert build.process.poll() is None, build.text

    assert cluster.state(orphan) in {"RUNNING", "COMPLETED"}
    run = empty_checkout.snakemake()
    assert run.code == 0, run.text + cluster.describe()
    # It waited for the job that had outlived its Snakemake instead of running it twice at a time.
    assert re.search(rf"waiting for jobs of an earlier build.*\b{orphan.id}\b", run.text)
    assert "draft main" not in run.jobs
    assert cluster.state(orphan) == cluster.state(preempted) == "COMPLETED"
    assert empty_checkout.digests() == built.digests()

    run = empty_checkout.snakemake()
    assert "Nothing to be done" in run.text
