"""Another recipe of an image makes stale exactly the phases that run in it."""

import re
import subprocess
from pathlib import Path

import pytest

from aerie.files import digest_bytes
from aerie.images.lockfile import LOCK, read_images
from tests.workflow.conftest import Checkout

pytestmark = pytest.mark.workflow

OF_SGLANG = {"serve": {"responses", "states", "bench"}, "train": {"draft"}}
CHEAP = {"candidates", "prompts", "overlap", "counts", "map", "manifest", "report"}


def another_recipe(folder: Path, name: str) -> None:
    path = folder / LOCK
    text = path.read_text(encoding="utf-8")
    old = read_images(folder)[name].recipe
    new = f"sha256:{digest_bytes(old.encode()) * 2}"
    path.write_text(text.replace(old, new), encoding="utf-8")


def changed_params(text: str) -> set[str]:
    """Rules that a dry run would run since their params have changed."""
    blocks = re.split(r"^(?:local)?(?:rule|checkpoint) ", text, flags=re.MULTILINE)[1:]
    return {
        block.split(":", 1)[0]
        for block in blocks
        if re.search(r"reason: .*Params have changed", block)
    }


def changed_alone(checkout: Checkout) -> set[str]:
    """The same for each costly phase with all others left as they are.

    A dry run of all of them would not do: of a job that follows a stale one it gives that for the
    reason.
    """
    phases = set[str]().union(*OF_SGLANG.values())
    texts = (
        checkout.snakemake("--dry-run", "--allowed-rules", "all", each).text for each in phases
    )
    return set[str]().union(*map(changed_params, texts))


def test_with_the_embedded_engine_all_run_in_one(checkout: Checkout) -> None:
    another_recipe(checkout.folder, "serve")
    run = checkout.snakemake("--dry-run")
    # The lock of the build names all images, whatever runs in them.
    assert {job.split()[0] for job in run.jobs} <= {"lock", "report"}, run.text
    assert not changed_params(run.text)
    another_recipe(checkout.folder, "cpu")
    found = changed_params(checkout.snakemake("--dry-run").text)
    # What stands behind a checkpoint is looked at when that was made.
    assert "candidates" in found and found <= CHEAP | {"responses", "states", "draft", "bench"}


@pytest.mark.parametrize("name", sorted(OF_SGLANG))
def test_a_server_s_image_is_that_of_its_phases(checkout: Checkout, name: str) -> None:
    """With the results taken for SGLang's, since another engine is another param."""
    checkout.configure(engine="sglang")
    touched = checkout.snakemake("--touch")
    assert touched.code == 0, touched.text
    assert not changed_alone(checkout)
    another_recipe(checkout.folder, name)
    assert changed_alone(checkout) == OF_SGLANG[name]


def test_without_a_gpu_a_server_is_refused_in_the_doctor_s_words(checkout: Checkout) -> None:
    checkout.configure(engine="sglang")
    command = ["scripts/phases", "config.yaml", *checkout.command()]
    environment = checkout.environment() | {"PATH": path_without_gpus(checkout)}
    done = subprocess.run(
        command,
        cwd=checkout.folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "gate: doctor" in done.stderr and "make demo" in done.stderr
    assert "no nvidia-smi" in done.stderr
    assert "rule" not in done.stdout


def path_without_gpus(checkout: Checkout) -> str:
    """The environment's programs and the system's, without any that would find a GPU."""
    folder = checkout.folder / "bin"
    folder.mkdir()
    for name in ("bash", "env", "grep", "id", "git"):
        for place in ("/usr/bin", "/bin"):
            if Path(place, name).exists() and not (folder / name).exists():
                (folder / name).symlink_to(Path(place, name))
    return f"{checkout.environment()['PATH'].split(':')[0]}:{folder}"


def test_two_builds_with_one_lock_have_the_same_prompts_and_map(checkout: Checkout) -> None:
    """From the same responses: the second build finds them in its journal."""
    first = {
        path: path.read_bytes()
        for pattern in ("prompts/*/*", "vocab/**/*", "lock.json")
        for path in sorted(checkout.work.glob(pattern))
        if path.is_file()
    }
    for name in ("candidates", "prompts", "responses", "vocab", "lock.json"):
        path = checkout.work / name
        subprocess.run(["rm", "-r", str(path)], check=True)
    run = checkout.snakemake(
        "--", "all_map", str(checkout.work.relative_to(checkout.folder) / "lock.json")
    )
    assert run.code == 0, run.text
    assert {path: path.read_bytes() for path in first} == first
    check = subprocess.run(
        ["python", "-m", "aerie", "lock", "--check"],
        cwd=checkout.folder,
        env=checkout.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert check.returncode == 0, check.stdout + check.stderr


def test_the_lock_s_check_names_what_changed(checkout: Checkout) -> None:
    checkout.configure(vocab={"size": 64, "floor": 0.0, "dataset_floor": 0.0})
    another_recipe(checkout.folder, "train")
    check = subprocess.run(
        ["python", "-m", "aerie", "lock", "--check"],
        cwd=checkout.folder,
        env=checkout.environment() | {"COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert check.returncode == 1
    assert "settings.vocab" in check.stdout and "images.train" in check.stdout
    assert "2 inputs are not what" in check.stdout
