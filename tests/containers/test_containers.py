"""The CPU image as a SIF and in Docker, from one definition: same packages, same artifacts."""

import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest

from aerie.images.lockfile import read_images
from aerie.pins import read_pins
from tests.containers.conftest import (
    ROOT,
    environment,
    new_checkout,
    run,
    snakemake,
    with_images,
)
from tests.workflow.conftest import Checkout

pytestmark = [pytest.mark.containers, pytest.mark.slow]

ARTIFACTS = (
    "target/*",
    "candidates/*/*",
    "prompts/*/*",
    "responses/*/*",
    "vocab/**/*",
    "lock.json",
)
PACKAGES = (
    "import importlib.metadata as m, json;"
    "print(json.dumps({d.metadata['Name']: d.version for d in m.distributions()}))"
)


def digests(work: Path) -> dict[str, str]:
    """SHA-256 of every file of the phases that need no GPU, by its path in the work folder."""
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


@pytest.fixture(scope="module")
def outside(tools: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo up to its map, built by this machine's own Python."""
    checkout = new_checkout(tmp_path_factory.mktemp("outside") / "checkout")
    run(snakemake(), cwd=checkout, env=environment(checkout))
    return checkout


@pytest.fixture
def inside(outside: Path, tmp_path: Path) -> Path:
    """A checkout with the target of `outside`, and its answers in the journal.

    The demo's target is made of a Python package that no image holds.
    """
    checkout = new_checkout(tmp_path / "checkout")
    for name in ("target", "journal/responses"):
        shutil.copytree(outside / "results/demo" / name, checkout / "results/demo" / name)
    return checkout


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


def test_the_demo_is_the_same_in_apptainer(outside: Path, inside: Path, images: Path) -> None:
    with_images(inside, images)
    before = others(inside)
    text = run(snakemake("--sdm", "apptainer"), cwd=inside, env=environment(inside))
    assert "Activating singularity image" in text
    found = digests(inside / "results/demo")
    assert found == digests(outside / "results/demo")
    assert {"vocab/map.safetensors", "lock.json"} < set(found)
    assert others(inside) == before
    # With containers and without share one result tree.
    done = run(snakemake("--dry-run"), cwd=inside, env=environment(inside))
    assert "Nothing to be done" in done


def test_the_demo_is_the_same_in_docker(
    outside: Path, inside: Path, docker: dict[str, str]
) -> None:
    before = others(inside)
    variables = environment(inside, docker) | {
        "RUNTIME": "docker", "DOCKER_ARGS": "--network none",
    }  # fmt: skip
    command = ["scripts/phases", "demo/config.yaml", *snakemake()]
    run(command, cwd=inside, env=variables)
    assert digests(inside / "results/demo") == digests(outside / "results/demo")
    assert others(inside) == before
    assert {path.stat().st_uid for path in inside.rglob("*")} == {os.getuid()}


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


def test_an_image_that_is_not_built_is_named_before_anything_runs(inside: Path) -> None:
    command = " ".join(snakemake("--sdm", "apptainer"))
    shell = f"! {command} > out 2>&1 && cat out"
    text = run(["bash", "-c", shell], cwd=inside, env=environment(inside))
    assert "make images IMAGES=cpu" in text
    assert not (inside / "results/demo/candidates").exists()
