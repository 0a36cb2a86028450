"""The profile of a cluster: whole, consistent with the rules and with the local one, and pinned."""

import importlib.metadata
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from aerie.config import ROOT
from tests.cluster.conftest import GPU_RULES, ClusterCheckout


def profile(name: str) -> dict[str, Any]:
    path = ROOT / "profiles" / name / "config.yaml"
    return dict(yaml.safe_load(path.read_text(encoding="utf-8")))


def rules() -> set[str]:
    text = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "rules").glob("*.smk"))
    return set(re.findall(r"^(?:rule|checkpoint) (\w+):", text, re.MULTILINE))


def test_names_are_those_of_rules() -> None:
    cluster = profile("slurm")
    assert {*cluster["set-resources"], *cluster["set-threads"]} <= rules()


def test_staleness_is_the_same_everywhere() -> None:
    """Or a build that moves to a cluster would begin again."""
    local, cluster = profile("default"), profile("slurm")
    for key in ("rerun-triggers", "rerun-incomplete", "keep-going"):
        assert local[key] == cluster[key]
    assert not {"keep-incomplete", "cores"} & set(cluster)


def test_gpu_rules_have_one_whole_host() -> None:
    resources = profile("slurm")["set-resources"]
    for rule in GPU_RULES:
        assert (resources[rule]["gpu"], resources[rule]["nodes"]) == (8, 1)
    others = [rule for rule, found in resources.items() if "gpu" in found]
    assert sorted(others) == sorted(GPU_RULES)


def test_requirements_are_complete() -> None:
    pins: dict[str, Requirement] = {}
    own = []
    for name in ("run.txt", "slurm.txt"):
        for line in (ROOT / "requirements" / name).read_text(encoding="utf-8").splitlines():
            if line and line[0] != "#":
                requirement = Requirement(line.split(" #")[0])
                pins[canonicalize_name(requirement.name)] = requirement
                own += [requirement.name] if name == "slurm.txt" else []
    for name in own:
        assert pins[canonicalize_name(name)].specifier.contains(importlib.metadata.version(name))
        for line in importlib.metadata.requires(name) or []:
            needed = Requirement(line)
            if needed.marker is None or needed.marker.evaluate({"extra": ""}):
                version = next(iter(pins[canonicalize_name(needed.name)].specifier)).version
                assert needed.specifier.contains(version), f"{name} needs {line}"


@pytest.mark.workflow
def test_jobs_ask_for_what_the_profile_says(empty_checkout: ClusterCheckout) -> None:
    """With the sizes of production, in a dry run: what sbatch would be given."""
    source = ROOT / "profiles/slurm/config.yaml"
    (empty_checkout.folder / "profiles/slurm/config.yaml").write_bytes(source.read_bytes())
    run = empty_checkout.snakemake("--dry-run")
    assert run.code == 0, run.text
    draft = re.search(r"^rule draft:.*?^    resources: (.*?)$", run.text, re.MULTILINE | re.DOTALL)
    assert draft
    for text in ("gpu=8", "nodes=1", "slurm_partition=gpu", "runtime=1440"):
        assert text in draft[1]


def test_launch_says_when_there_is_no_slurm(tmp_path: Path) -> None:
    """`make all PROFILE=profiles/slurm` on a machine that is not part of a cluster."""
    for tool in ("bash", "env", "awk", "sleep"):
        (tmp_path / tool).symlink_to(next(
            path for folder in os.environ["PATH"].split(os.pathsep)
            if (path := Path(folder) / tool).exists()
        ))  # fmt: skip
    done = subprocess.run(
        [ROOT / "profiles/slurm/launch", sys.executable, "-c", "print('started')"],
        env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "no sbatch" in done.stderr
    assert "remedy" in done.stderr
    assert "started" not in done.stdout
