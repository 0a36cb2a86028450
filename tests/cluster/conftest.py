"""A SLURM for all tests of this folder, and checkouts whose profile asks for what it has."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.cluster.cluster import Cluster, installed

# Builds made without SLURM: the demo, and the tiny one of the workflow's tests.
from tests.demo import local_demo as local_demo
from tests.workflow.conftest import Checkout
from tests.workflow.conftest import built as built

GPU_RULES = ("responses", "states", "draft", "bench")


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if not installed():
        pytest.fail("SLURM is not installed, or this is not root: run `make test-cluster`")
    # No link of pytest's in the paths: munged follows none.
    root = tmp_path_factory.mktemp("slurm").resolve()
    with Cluster(root) as started:
        yield started


class ClusterCheckout(Checkout):
    """A checkout that runs its rules through SLURM."""

    def command(self, *arguments: str) -> list[str]:
        """What `make all PROFILE=profiles/slurm` runs, without its lock."""
        options = ["--workflow-profile", "profiles/slurm", "--nolock"]
        return ["profiles/slurm/launch", "snakemake", *options, *arguments]


def shrink_profile(checkout: Checkout, threads: int) -> None:
    """Give `checkout` the production profile, sized for the one node of the tests.

    `threads` are those that a draft has in the build that this one is compared with.
    """
    path = checkout.folder / "profiles/slurm/config.yaml"
    profile = yaml.safe_load(path.read_text(encoding="utf-8"))
    for rule, resources in profile["set-resources"].items():
        resources.update(mem_mb=1500, runtime="5 * attempt")
        if rule in GPU_RULES:
            resources["gpu"] = 1
    profile["set-threads"] = dict.fromkeys(profile["set-threads"], 1)
    profile["set-threads"] |= {"draft": threads, "bench": threads}
    profile["default-resources"]["mem_mb"] = 500
    profile["slurm-init-seconds-before-status-checks"] = 2
    profile["seconds-between-status-checks"] = 2
    profile["latency-wait"] = 10
    path.write_text(yaml.safe_dump(profile), encoding="utf-8")


@pytest.fixture
def empty_checkout(built: Checkout, tmp_path: Path, cluster: Cluster) -> ClusterCheckout:
    """The tiny build of the workflow's tests with nothing made yet."""
    folder = tmp_path / "checkout"
    shutil.copytree(
        built.folder, folder, symlinks=True, ignore=shutil.ignore_patterns("results", ".snakemake")
    )
    checkout = ClusterCheckout(folder)
    shrink_profile(checkout, threads=1)
    return checkout
