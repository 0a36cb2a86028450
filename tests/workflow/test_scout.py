"""The scout's jobs: ten searches and a report, forced by `make scout`, cheap the second time."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from aerie.scout.categories import CATEGORIES
from tests.loopback_hub import LoopbackHub
from tests.unit.scout_fixtures import asked, populate
from tests.workflow.conftest import COPIED, ROOT, Checkout, tiny_config

pytestmark = pytest.mark.workflow

# What `make scout` gives to Snakemake; the first test compares.
FORCED = ("--forcerun", "scout_category", "--", "scout")
JOBS = sorted(["scout", *(f"scout_category {key}" for key in CATEGORIES)])


@dataclass
class Online(Checkout):
    """A checkout whose Hub is on loopback."""

    hub: LoopbackHub
    offline: str = "0"

    def environment(self) -> dict[str, str]:
        here = {"HF_ENDPOINT": self.hub.url, "HF_HUB_OFFLINE": self.offline}
        return {**super().environment(), **here}


@pytest.fixture
def online(tmp_path: Path) -> Iterator[Online]:
    folder = tmp_path / "checkout"
    for name in COPIED:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
        folder.mkdir(exist_ok=True)
        copy(ROOT / name, folder / name)
    suite = folder / "data/heldout.jsonl"
    suite.parent.mkdir()
    suite.write_text("{}\n", encoding="utf-8")
    config = yaml.safe_dump(tiny_config(tmp_path / "no-checkpoint"), sort_keys=False)
    (folder / "config.yaml").write_text(config, encoding="utf-8")
    with LoopbackHub() as hub:
        populate(hub, fillers=3)
        yield Online(folder, hub)


def test_make_forces_the_searches() -> None:
    printed = subprocess.run(
        ["make", "--dry-run", "scout", "CONFIG=demo/config.yaml"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert " ".join(FORCED) in " ".join(printed.split())


def test_ten_searches_then_the_cache(online: Online) -> None:
    first = online.snakemake("--cores", "10", *FORCED)
    assert first.code == 0, first.text
    assert first.jobs == JOBS
    report = json.loads((online.work / "scout/report.json").read_text(encoding="utf-8"))
    assert report["datasets"] == 8 and report["failed"] == []
    page = (online.work / "scout/report.md").read_text(encoding="utf-8")
    # Both entries of the tiny mix read this one, which the small Hub lacks.
    assert "| first, second | ise-uiuc/Magicoder-Evol-Instruct-110K | not found" in page
    assert asked(online.hub)

    # What is there is taken, unless the searches are forced.
    online.hub.requests.clear()
    idle = online.snakemake("--", "scout")
    assert idle.code == 0, idle.text
    assert idle.jobs == [] and not online.hub.requests

    online.hub.repositories["lines/coding-rows"].info["downloads"] = 1234
    again = online.snakemake("--cores", "10", *FORCED)
    assert again.jobs == JOBS
    assert online.hub.requests and not asked(online.hub)
    assert "1,234" in (online.work / "scout/report.md").read_text(encoding="utf-8")


def test_a_build_needs_no_scout(online: Online) -> None:
    run = online.snakemake("--dry-run")
    assert run.code == 0, run.text
    assert "target" in run.jobs
    assert not [job for job in run.jobs if job.startswith("scout")]


def test_a_hub_that_refuses_everything_is_one_clear_error(online: Online) -> None:
    online.hub.fail(10_000, status=403)
    run = online.snakemake("--cores", "10", *FORCED)
    assert run.code != 0
    assert "no category could be searched" in run.text
    assert "HTTP 403" in run.text and "remedy" in run.text
    assert "Traceback" not in run.text
    assert not (online.work / "scout/report.md").exists()
    # It passes: the same command continues.
    online.hub.faults.clear()
    assert online.snakemake("--cores", "10", *FORCED).code == 0


def test_offline_says_so(online: Online) -> None:
    online.offline = "1"
    run = online.snakemake("--cores", "10", *FORCED)
    assert run.code != 0
    assert "HF_HUB_OFFLINE" in run.text and "remedy" in run.text
    assert not online.hub.requests
