"""A whole build with the production engine, as one host runs it: one server a phase."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from aerie.engines.sglang.settings import SglangSettings
from tests.workflow.conftest import Checkout
from tests.workflow.conftest import built as built  # a complete tiny build of the embedded engine


@pytest.fixture
def served(built: Checkout, settings: SglangSettings, tmp_path: Path) -> Checkout:
    """The tiny build with nothing made yet, and SGLang to make it."""
    folder = tmp_path / "checkout"
    ignored = shutil.ignore_patterns("results", ".snakemake")
    shutil.copytree(built.folder, folder, symlinks=True, ignore=ignored)
    checkout = Checkout(folder)
    checkout.configure(engine="sglang", sglang=settings.model_dump(mode="json"))
    checkout.configure(bench__concurrency=[1, 2])
    return checkout


def run_phase(checkout: Checkout, phase: str) -> "subprocess.CompletedProcess[str]":
    """What `make all` runs for a phase that needs a server (scripts/phases)."""
    snakemake = checkout.command("--", f"all_{phase}")
    words = ["-m", "aerie", "with-server", phase, "--config", "config.yaml", "--", *snakemake]
    return checkout.call(sys.executable, *words)


def test_a_build_has_the_embedded_engines_answers(built: Checkout, served: Checkout) -> None:
    assert served.snakemake("--", "all_prompts").code == 0
    for phase, jobs in (("responses", 4), ("states", 4)):
        done = run_phase(served, phase)
        assert done.returncode == 0, done.stdout
        # Four parts, one server.
        assert done.stdout.count("ready at") == 1
        assert len(list(served.work.glob(f"{phase}/*/00[01]*"))) >= jobs
    rest = served.snakemake()
    assert rest.code == 0, rest.text
    assert {job.split()[0] for job in rest.jobs} >= {"counts", "map", "draft", "bench", "report"}
    assert not {"responses", "states"} & {job.split()[0] for job in rest.jobs}
    for answers in built.work.glob("responses/*/*.parquet"):
        # In float32 both engines say the same, so the tables are the same bytes.
        twin = served.work / answers.relative_to(built.work)
        assert twin.read_bytes() == answers.read_bytes()
    result = json.loads((served.work / "bench/main/heldout.json").read_text(encoding="utf-8"))
    assert result["engine"] == "sglang" and result["equal_outputs"]["rate"] == 1
    assert result["parity"]["apart"] < 1e-4
    assert served.snakemake().jobs == []
