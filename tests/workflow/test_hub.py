"""Datasets from the Hub in a build: fetched once, pinned, and refetched only where it was asked."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from tests.loopback_hub import LoopbackHub
from tests.workflow.conftest import (
    COPIED,
    ROOT,
    SUBJECTS,
    Checkout,
    Run,
    tiny_config,
    write_dataset,
)

pytestmark = [pytest.mark.workflow, pytest.mark.slow]

TRAJECTORIES = "nebius/SWE-agent-trajectories"
LINES = "data-evol_instruct-decontaminated.jsonl"


@dataclass
class OnlineCheckout(Checkout):
    """A checkout whose jobs reach a Hub on loopback."""

    endpoint: str
    offline: bool = False

    def environment(self) -> dict[str, str]:
        return super().environment() | {
            "HF_ENDPOINT": self.endpoint,
            "HF_HUB_OFFLINE": str(int(self.offline)),
        }

    def prompts(self) -> Run:
        """Build the sources and prompts of both datasets."""
        names = ("first", "second")
        paths = [f"sources/{name}/source.json" for name in names]
        paths += [f"prompts/{name}" for name in names]
        run = self.snakemake("--", *(f"results/tiny/{path}" for path in paths))
        assert "Traceback" not in run.text, run.text
        return run

    def commit(self, name: str) -> str:
        sidecar = self.work / "sources" / name / "source.json"
        return str(json.loads(sidecar.read_text(encoding="utf-8"))["provenance"]["commit"])


def instructions(folder: Path, word: str) -> bytes:
    path = folder / f"{word}.jsonl"
    write_dataset(path, 24, word)
    return path.read_bytes()


def trajectories(folder: Path) -> bytes:
    texts = [f"ISSUE:\nFix {subject}, please.\nINSTRUCTIONS:\nGo." for subject in SUBJECTS]
    table = pa.table(
        {
            "instance_id": [f"acme__lib-{number}" for number in range(len(texts))],
            "trajectory": [[{"role": "user", "text": text}] for text in texts],
            "eval_logs": ["never read" * 1000] * len(texts),
        }
    )
    pq.write_table(table, folder / "t.parquet")
    return (folder / "t.parquet").read_bytes()


@pytest.fixture
def online(tmp_path: Path, tiny_checkpoint: Path, loopback: LoopbackHub) -> OnlineCheckout:
    """A checkout with two datasets of the Hub, and nothing built."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    for name in COPIED:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
        copy(ROOT / name, folder / name)
    loopback.add("acme/first", {LINES: instructions(tmp_path, "first"), "README.md": b"card"})
    loopback.add(TRAJECTORIES, {"data/train-0.parquet": trajectories(tmp_path)})
    config = tiny_config(tiny_checkpoint)
    config["datasets"] = {
        "first": {**config["datasets"]["first"], "repo": "acme/first"},
        "second": {"adapter": TRAJECTORIES, "take": 8},
    }
    del config["datasets"]["first"]["path"]
    (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    suite = {"id": "h", "domain": "d", "system": None, "turns": ["How?"]}
    (folder / "data").mkdir()
    (folder / "data/heldout.jsonl").write_text(json.dumps(suite) + "\n", encoding="utf-8")
    return OnlineCheckout(folder, loopback.url)


def test_datasets_come_from_the_hub(
    online: OnlineCheckout, loopback: LoopbackHub, tmp_path: Path
) -> None:
    run = online.prompts()
    assert run.code == 0, run.text
    names = ("first", "second")
    steps = ("candidates", "prompts", "source")
    assert run.jobs == sorted([*(f"{step} {name}" for step in steps for name in names), "target"])
    pinned = loopback.repositories["acme/first"].branches["main"]
    assert online.commit("first") == pinned
    candidates = json.loads((online.work / "candidates/first/candidates.json").read_text("utf-8"))
    assert candidates["provenance"]["origin"]["commit"] == pinned
    assert candidates["counts"]["rows"] == 24
    local = online.work / "sources/second/files/data/train-0.parquet"
    assert "eval_logs" not in pq.read_schema(local).names
    assert "trajectory" in pq.read_schema(local).names

    # A second run starts no job, also when the branch has moved and the Hub is away.
    first = loopback.repositories["acme/first"]
    commit = first.commit({LINES: instructions(tmp_path, "other")})
    loopback.requests.clear()
    assert online.prompts().jobs == []
    # Not even the files that Snakemake itself removes before a job move it.
    online.offline = True
    (online.work / "sources/first/source.json").unlink()
    again = online.prompts()
    assert again.code == 0, again.text
    assert "source first" in again.jobs and "candidates second" not in again.jobs
    assert online.commit("first") == pinned
    assert loopback.requests == []

    # It moves when it is asked to, and the other dataset is left alone.
    online.offline = False
    online.configure(datasets__first__revision=commit)
    moved = online.prompts()
    assert moved.code == 0, moved.text
    # Its prompts come first, so the second dataset is selected again; it is not read again.
    assert {"source first", "candidates first", "prompts first"} <= set(moved.jobs)
    assert {"source second", "candidates second"}.isdisjoint(moved.jobs)
    assert online.commit("first") == commit
    assert not [one for one in loopback.requests if "SWE-agent" in one.path]


def test_a_failed_download_says_what_to_do(online: OnlineCheckout, loopback: LoopbackHub) -> None:
    repository = loopback.repositories["acme/first"]
    repository.gated = "manual"
    online.configure(datasets__first__revision="gone")
    run = online.prompts()
    assert run.code != 0
    assert "has no revision 'gone'" in run.text
    online.configure(datasets__first__revision="main")
    run = online.prompts()
    assert run.code != 0
    assert f"accept the terms at {loopback.url}/datasets/acme/first" in run.text
    assert "candidates first" not in run.jobs
    # Put right, the same command goes on.
    repository.gated = False
    assert online.prompts().code == 0


def test_a_local_dataset_is_not_from_the_hub(online: OnlineCheckout) -> None:
    online.configure(datasets__first__path="data", datasets__first__revision="main")
    run = online.snakemake("--dry-run")
    assert run.code != 0
    for text in ("datasets.first.repo", "not both", "`path` alone"):
        assert text in run.text
