"""The demo through SLURM: the real small model, the same artifacts as on one machine."""

from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.conftest import ClusterCheckout, shrink_profile
from tests.demo import Demo, copy_demo

pytestmark = [pytest.mark.engine, pytest.mark.workflow, pytest.mark.slow]


class ClusterDemo(Demo, ClusterCheckout):
    """The demo through SLURM."""


def test_demo_has_the_digests_of_one_machine(
    local_demo: Demo, cluster: Cluster, tmp_path: Path
) -> None:
    """All of prompts, responses, states, map and draft; a bench has times and is not compared."""
    demo = ClusterDemo(copy_demo(tmp_path / "checkout").folder)
    shrink_profile(demo, threads=2)
    run = demo.snakemake()
    assert run.code == 0, run.text + cluster.describe()
    expected = local_demo.digests()
    assert len(expected) > 20
    assert demo.digests() == expected
    submitted = {job.rule.split()[0] for job in cluster.jobs()}
    assert {"target", "candidates", "responses", "states", "draft", "bench"} <= submitted
