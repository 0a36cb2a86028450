"""`aerie gc` and `aerie du` in a real build: nothing that was removed is missed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.workflow.conftest import WORK, Checkout

pytestmark = [pytest.mark.workflow, pytest.mark.slow]


def aerie(checkout: Checkout, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "aerie", *arguments],
        cwd=checkout.folder,
        env=checkout.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def files(work: Path) -> set[str]:
    return {str(path.relative_to(work)) for path in work.rglob("*") if path.is_file()}


def make_old(work: Path, seconds: float) -> None:
    """Move all times into the past, by the same amount: Snakemake compares them."""
    for path in (work, *work.rglob("*")):
        changed = path.stat().st_mtime - seconds
        os.utime(path, (changed, changed))


def test_a_smaller_mix_frees_its_states_and_pays_for_nothing_twice(checkout: Checkout) -> None:
    work = checkout.work
    checkout.configure(datasets__second__take=4)
    assert checkout.snakemake().code == 0
    before, answers = files(work), sum(1 for _ in work.glob("responses/*/*.parquet"))
    assert "everything is needed" in aerie(checkout, "gc", str(WORK))
    make_old(work, 2 * 3600)

    dry = aerie(checkout, "gc", str(WORK), "--config", "config.yaml", "--list")
    assert files(work) == before
    aerie(checkout, "gc", str(WORK), "--config", "config.yaml", "--delete")
    removed = before - files(work)
    assert removed and all(name in dry for name in removed)
    assert {name.split("/")[0] for name in removed} == {"states", "journal", "logs"}
    of_states = {name for name in removed if name.startswith("states/")}
    assert of_states == {name for name in before if name.startswith("states/second/001/")}
    assert "journal/responses/second/001.jsonl" in removed
    assert sum(1 for _ in work.glob("responses/*/*.parquet")) == answers
    assert "0 damaged" in aerie(checkout, "verify", str(WORK))
    assert checkout.snakemake().jobs == []

    # What was answered is not asked again when the mix grows back; what was removed is captured.
    checkout.configure(datasets__second__take=8)
    again = checkout.snakemake()
    assert again.code == 0, again.text
    assert not [job for job in again.jobs if job.startswith("responses")]
    assert [job for job in again.jobs if job.startswith("states")] == ["states second 001"]
    assert "0 damaged" in aerie(checkout, "verify", str(WORK))


def test_du_says_what_a_build_has_and_lacks(checkout: Checkout) -> None:
    index = checkout.work / "states/second/001/index.json"
    tokens = json.loads(index.read_text(encoding="utf-8"))["counts"]["tokens"]
    assert "nothing is missing" in aerie(checkout, "du", str(WORK))
    index.unlink()
    said = aerie(checkout, "du", str(WORK))
    assert "still to come" in said
    (row,) = [line for line in said.splitlines() if "exact" in line]
    assert "second" in row and f" {tokens:,} " in row
