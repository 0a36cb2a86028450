"""The CPU image as a SIF and in Docker, from one definition: same packages, same artifacts."""

import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest

from aerie.images.lockfile import read_images
from aerie.pins import read_pins
from tests.containers.conftest import run, with_images
from tests.demo import Demo, copy_demo
from tests.workflow.conftest import ROOT, Checkout

pytestmark = [pytest.mark.containers, pytest.mark.slow]

# What is the same wherever it is made, byte for byte. A bench and a training log hold times.
ARTIFACTS = (
    "target/*", "candidates/*/*", "prompts/*/*", "responses/*/*", "vocab/**/*", "states/*/*/*",
    "draft/*/draft.json", "draft/*/config.json", "draft/*/model.safetensors", "lock.json",
)  # fmt: skip
LOCK = "results/demo/lock.json"
PACKAGES = (
    "import importlib.metadata as m, json;"
    "print(json.dumps({d.metadata['Name']: d.version for d in m.distributions()}))"
)


def digests(work: Path) -> dict[str, str]:
    """SHA-256 of every file that is compared, by its path in the work folder."""
    return {
        str(path.relative_to(work)): hashlib.sha256(path.read_bytes()).hexdigest()
        for pattern in ARTIFACTS
        for path in sorted(work.glob(pattern))
        if path.is_file()
    }


def others(checkout: Path) -> set[str]:
    """What lies in a checkout beside results and Snakemake's own notes."""
    return {
        str(path.relative_to(checkout))
        for path in checkout.rglob("*")
        if path.relative_to(checkout).parts[0] not in {"results", ".snakemake"}
    }


@pytest.fixture
def inside(local_demo: Demo, tmp_path: Path) -> Demo:
    """The demo with a target and answers, the journal's: what no image holds, and what takes long.

    The demo's target is made of a Python package; answers of a tiny target are made in a container
    below.
    """
    demo = copy_demo(tmp_path / "checkout")
    for name in ("target", "journal/responses"):
        shutil.copytree(local_demo.work / name, demo.work / name)
    return demo


def test_both_images_hold_what_is_pinned(images: Path, docker: dict[str, str]) -> None:
    image = read_images(images)["cpu"]
    python = ["python", "-c", PACKAGES]
    sif = json.loads(run(["apptainer", "exec", images / image.file, *python]))
    tag = ["docker", "run", "--rm", "--network", "none", image.tag]
    assert sif == json.loads(run([*tag, *python], env=docker))
    found = {name.lower().replace("_", "-").replace(".", "-"): sif[name] for name in sif}
    pins = read_pins(ROOT / "requirements/run.txt")
    assert {name: found[name].partition("+")[0] for name in pins} == pins


def test_images_hold_neither_aerie_nor_what_made_them(images: Path) -> None:
    sif = images / read_images(images)["cpu"].file
    code = (
        "import importlib.util as u, pathlib, sys;"
        "sys.exit(u.find_spec('aerie') is not None or pathlib.Path('/build').exists())"
    )
    run(["apptainer", "exec", "--contain", "--cleanenv", sif, "python", "-c", code])


def test_the_demo_is_the_same_in_apptainer(local_demo: Demo, inside: Demo, images: Path) -> None:
    with_images(inside.folder, images)
    before = others(inside.folder)
    done = inside.snakemake("--sdm", "apptainer", "--", "all_drafts", LOCK)
    assert done.code == 0, done.text
    assert "Activating singularity image" in done.text
    found = digests(inside.work)
    assert found == digests(local_demo.work)
    assert {"vocab/map.safetensors", "draft/main/model.safetensors", "lock.json"} < set(found)
    assert others(inside.folder) == before
    # With containers and without share one result tree.
    done = inside.snakemake("--dry-run", "--", "all_drafts", LOCK)
    assert "Nothing to be done" in done.text


def test_the_demo_is_the_same_in_docker(
    local_demo: Demo, inside: Demo, docker: dict[str, str]
) -> None:
    """Up to the map; the same packages as in Apptainer make states and drafts."""
    before = others(inside.folder)
    variables = docker | inside.environment() | {
        "RUNTIME": "docker", "DOCKER_ARGS": "--network none",
    }  # fmt: skip
    command = ["scripts/phases", "demo/config.yaml", *inside.command("--", "all_map", LOCK)]
    run(command, cwd=inside.folder, env=variables)
    expected = digests(local_demo.work)
    found = digests(inside.work)
    assert found == {name: expected[name] for name in found}
    assert {"vocab/map.safetensors", "lock.json"} < set(found)
    assert others(inside.folder) == before
    assert {path.stat().st_uid for path in inside.folder.rglob("*")} == {os.getuid()}


def test_a_whole_build_is_the_same_in_apptainer(
    built: Checkout, images: Path, tmp_path: Path
) -> None:
    """States, draft and bench too: the same build of torch on the same processor."""
    checkout = Checkout(tmp_path / "checkout")
    ignored = shutil.ignore_patterns("results", ".snakemake")
    shutil.copytree(built.folder, checkout.folder, symlinks=True, ignore=ignored)
    with_images(checkout.folder, images)
    done = checkout.snakemake("--sdm", "apptainer")
    assert done.code == 0, done.text
    assert checkout.digests() == built.digests()


def test_an_image_that_is_not_built_is_named_before_anything_runs(inside: Demo) -> None:
    done = inside.snakemake("--sdm", "apptainer")
    assert done.code == 1
    assert "make images IMAGES=cpu" in done.text
    assert not (inside.work / "candidates").exists()
