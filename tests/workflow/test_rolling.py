"""Rolling capture in the workflow: the draft of all states, within the budget, whatever happens."""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from aerie.config import load
from aerie.files import digest_file, read_json
from aerie.storage.garbage import find_garbage
from aerie.storage.usage import forecast
from aerie.verify import verify
from tests.workflow.conftest import ROOT, Checkout

pytestmark = [pytest.mark.workflow, pytest.mark.slow]

# The tiny build has four parts of 236 to 320 tokens, some of them held out: two are a window. Their
# states and those of all samples held out fit into the budget, three do not.
SHUFFLE_TOKENS = 560
BUDGET = 480_000
PARTS = ["first/000", "first/001", "second/000", "second/001"]


def draft_of(checkout: Checkout) -> dict[str, str]:
    """Digests of what a draft is."""
    names = ("model.safetensors", "train.jsonl", "eval.json")
    return {name: digest_file(checkout.work / "draft/main" / name) for name in names}


def cost_of(checkout: Checkout) -> dict[str, Any]:
    return dict(read_json(checkout.work / "draft/main/rolling.json"))


@pytest.fixture(scope="module")
def exact(built: Checkout, tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """The tiny build, its draft trained on all states in windows of two parts; do not change it."""
    checkout = Checkout(tmp_path_factory.mktemp("exact") / "checkout")
    shutil.copytree(built.folder, checkout.folder, symlinks=True)
    before = draft_of(checkout)
    checkout.configure(drafts__main__shuffle_tokens=SHUFFLE_TOKENS)
    run = checkout.snakemake("--", "all_drafts")
    assert run.jobs == ["all_drafts", "draft main"], run.text
    assert draft_of(checkout) != before, "the order is another one"
    return checkout


@pytest.fixture
def rolling(exact: Checkout, tmp_path: Path) -> Checkout:
    """The same with rolling capture, without states and draft."""
    checkout = Checkout(tmp_path / "checkout")
    shutil.copytree(exact.folder, checkout.folder, symlinks=True)
    checkout.configure(rolling__budget_bytes=BUDGET)
    for name in ("states", "draft"):
        shutil.rmtree(checkout.work / name)
    return checkout


def test_the_draft_is_that_of_all_states(exact: Checkout, rolling: Checkout) -> None:
    run = rolling.snakemake()
    assert run.code == 0, run.text
    assert "draft main" in run.jobs
    assert not any(job.startswith(("states", "manifest", "responses")) for job in run.jobs)
    assert draft_of(rolling) == draft_of(exact)

    cost = cost_of(rolling)
    schema = json.loads((ROOT / "schemas/rolling.schema.json").read_text(encoding="utf-8"))
    written = (rolling.work / "draft/main/rolling.json").read_text(encoding="utf-8")
    jsonschema.validate(json.loads(written), schema)
    assert cost["peak_bytes"] <= cost["budget_bytes"] == BUDGET
    assert sorted(cost["captures"]) == PARTS
    # Each once in each of two epochs, but what was still there when the second one began.
    assert 4 < sum(cost["captures"].values()) < 8
    assert cost["windows"] == 4 and cost["capture_s"] > 0 and cost["training_s"] > 0
    assert cost["bytes_written"] > BUDGET
    page = (rolling.work / "report/index.html").read_text(encoding="utf-8")
    assert "Rolling capture" in page and "captured while the draft was trained" in page

    assert not (rolling.work / "journal/rolling/main").exists()
    assert not (rolling.work / "journal/draft/main").exists()
    assert verify(rolling.work).findings == []
    left = sorted(str(path.parent.relative_to(rolling.work / "states"))
                  for path in rolling.work.glob("states/*/*/index.json"))  # fmt: skip
    assert 1 <= len(left) < len(PARTS)
    # What is left was kept for a next draft: there is none.
    later = time.time() + 7200
    garbage = find_garbage(rolling.work, load(rolling.folder / "config.yaml"), later)
    found = {entry.path.parent for entry in garbage if entry.kind == "states"}
    assert sorted(f"{path.relative_to('states')}" for path in found) == left
    assert forecast(rolling.work) == []

    again = rolling.snakemake()
    assert again.jobs == [], again.text
    # How much may be there at a time changes no draft; what it is made of does.
    rolling.configure(rolling__budget_bytes=BUDGET + 1)
    assert rolling.snakemake("--dry-run").jobs == []
    refused = rolling.snakemake("--", "scaling")
    assert refused.code != 0 and "never there all at once" in refused.text
    rolling.configure(drafts__main__learning_rate=0.002)
    changed = rolling.snakemake("--dry-run", "--", "all_drafts")
    assert changed.jobs == ["all_drafts", "draft main"], changed.text
    rolling.configure(drafts__main__learning_rate=0.001)
    assert rolling.snakemake("--dry-run", "--", "all_drafts").jobs == []
    answers = rolling.work / "responses/first/000.json"
    answers.write_text(answers.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    changed = rolling.snakemake("--dry-run", "--", "all_drafts")
    assert "draft main" in changed.jobs, changed.text
    assert not any(job.startswith(("states", "manifest")) for job in changed.jobs)


def kill_when(checkout: Checkout, moment: Callable[[], bool]) -> int:
    """SIGKILL the build, with all that it started, when `moment` has come. Returns the most bytes
    of states that were seen on the disk.
    """
    peak = 0
    with (checkout.folder / "killed.log").open("ab") as log:
        process = subprocess.Popen(
            checkout.command("--nolock", "--", "all_drafts"),
            cwd=checkout.folder,
            env=checkout.environment(),
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        while process.poll() is None and not moment():
            peak = max(peak, states_bytes(checkout))
            time.sleep(0.01)
        assert process.poll() is None, (checkout.folder / "killed.log").read_text()
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return peak


def states_bytes(checkout: Checkout) -> int:
    """Bytes of states now, of those held out and those that are being written too."""
    found = 0
    for top in ("states", "journal/rolling"):
        for folder, _, names in os.walk(checkout.work / top):
            for name in names:
                try:
                    found += os.stat(os.path.join(folder, name)).st_size
                except FileNotFoundError:
                    continue
    return found


def test_killed_in_captures_and_in_trainings_it_goes_on(exact: Checkout, rolling: Checkout) -> None:
    journal = rolling.work / "journal"

    def captured(times: int) -> bool:
        try:
            cost = json.loads((journal / "rolling/main/cost.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            return False
        return bool(sum(cost["captures"].values()) >= times)

    def writing() -> bool:
        """In the middle of the third capture."""
        return captured(2) and any(rolling.work.glob("states/*/*/.*.tmp"))

    peak = kill_when(rolling, lambda: captured(1))
    # Files are there for some milliseconds only: where none is seen, the capture ends first.
    peak = max(peak, kill_when(rolling, lambda: writing() or captured(3)))
    steps = sorted(path.name for path in (journal / "draft/main").glob("step-*"))
    assert steps, "the second run has trained on the first window"
    peak = max(peak, kill_when(rolling, lambda: captured(5)))
    # A sample that was held out is lost, and its states are gone: they are captured once more.
    lost = sorted((journal / "rolling/main/held_out").glob("*/*/*.safetensors"))[0]
    lost.unlink()
    run = rolling.snakemake("--nolock", "--", "all_drafts")
    assert run.code == 0, run.text
    assert draft_of(rolling) == draft_of(exact)
    assert max(peak, cost_of(rolling)["peak_bytes"]) <= BUDGET


def test_a_budget_below_a_window_is_refused_before_anything_is_captured(
    rolling: Checkout,
) -> None:
    rolling.configure(rolling__budget_bytes=100_000)
    run = rolling.snakemake("--", "all_drafts")
    assert run.code != 0
    assert "larger than the budget" in run.text and "rolling.budget_bytes: " in run.text
    assert not list(rolling.work.glob("states/*/*"))
    rolling.configure(drafts__main__shuffle_tokens=None)
    run = rolling.snakemake("--dry-run")
    assert run.code != 0 and "`rolling` needs `shuffle_tokens` of each draft: main" in run.text
