"""The demo through SLURM: the real small model, the same artifacts as on one machine."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from aerie.config import ROOT
from tests.cluster.cluster import Cluster
from tests.cluster.conftest import ClusterCheckout, shrink_profile
from tests.workflow.conftest import COPIED, Checkout

pytestmark = [pytest.mark.engine, pytest.mark.workflow, pytest.mark.slow]


@dataclass
class Demo(Checkout):
    """A checkout that builds the demo."""

    @property
    def work(self) -> Path:
        return self.folder / "results/demo"

    def command(self, *arguments: str) -> list[str]:
        return [*super().command(*arguments), "--configfile", "demo/config.yaml"]


class ClusterDemo(Demo, ClusterCheckout):
    """The same through SLURM."""


def test_demo_has_the_digests_of_one_machine(cluster: Cluster, tmp_path: Path) -> None:
    """All of prompts, responses, states, map and draft; a bench has times and is not compared."""
    folder = tmp_path / "checkout"
    for name in (*COPIED, "demo"):
        source = ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copy2)(source, folder / name)
    local = Demo(folder)
    run = local.snakemake()
    assert run.code == 0, run.text
    expected = local.digests()
    shutil.rmtree(local.work)
    shutil.rmtree(folder / ".snakemake")

    through_slurm = ClusterDemo(folder)
    shrink_profile(through_slurm)
    run = through_slurm.snakemake()
    assert run.code == 0, run.text + cluster.describe()
    assert len(expected) > 40
    assert through_slurm.digests() == expected
    submitted = {job.rule.split()[0] for job in cluster.jobs()}
    assert {"target", "candidates", "responses", "states", "draft", "bench"} <= submitted
