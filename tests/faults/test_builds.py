"""Two builds in one folder, and a folder whose name is awkward."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.faults.ledger import Ledger
from tests.faults.runs import Runner, tree
from tests.workflow.conftest import Checkout, make_checkout


def start(checkout: Checkout, log: Path, command: list[str]) -> "subprocess.Popen[bytes]":
    with log.open("wb") as stream:
        return subprocess.Popen(
            command, cwd=checkout.folder, env=checkout.environment(), stdout=stream, stderr=stream
        )


@pytest.mark.parametrize("lock", ["make's", "Snakemake's"])
def test_two_builds_in_one_folder(
    runner: Runner, reference: dict[str, str], ledger: Ledger, tmp_path: Path, lock: str
) -> None:
    """The second waits where make starts it, and is refused where Snakemake is called alone."""
    checkout = runner.copy(tmp_path / "checkout")
    shutil.rmtree(checkout.work / "responses")
    shutil.rmtree(checkout.work / "vocab")
    (checkout.folder / ".snakemake").mkdir(exist_ok=True)
    command = checkout.command("--until", "map")
    if lock == "make's":
        command = ["flock", ".snakemake/build.lock", *command, "--nolock"]
    logs = [tmp_path / f"{number}.log" for number in range(2)]
    builds = [start(checkout, log, command) for log in logs]
    codes = [build.wait() for build in builds]
    texts = [log.read_text(errors="replace") for log in logs]
    found = tree(checkout.work)
    same = all(found.get(name) == digest for name, digest in reference.items())
    for code, text in zip(codes, texts, strict=True):
        refused = bool(code) and bool(re.search(r"cannot be locked|Error: Directory", text))
        good = same and (code == 0 or refused) and 0 in codes
        outcome = ("refused_clearly" if refused else "recovered") if good else "wrong"
        ledger.add("two builds in one folder", outcome, f"{codes} {same} {text[-1500:]}")
    assert not ledger.bad("two builds")


def test_a_path_with_spaces_and_other_letters(
    runner: Runner, reference: dict[str, str], ledger: Ledger, tmp_path: Path
) -> None:
    original = runner.checkout.folder / "config.yaml"
    parent = tmp_path / "an aerie, 鷲の巣 'x' ünï"
    parent.mkdir()
    checkpoint = parent / "the checkpoint"
    source = re.search(r"path: (.*)", original.read_text(encoding="utf-8"))
    assert source
    shutil.copytree(source[1].strip(), checkpoint)
    checkout = make_checkout(parent / "check out", checkpoint)
    run = checkout.snakemake()
    found = tree(checkout.work)
    other = [name for name, digest in reference.items() if found.get(name) != digest]
    good = run.code == 0 and not other
    note = f"{other} {run.text[-1500:]}"
    ledger.add("path with spaces and non-ASCII", "recovered" if good else "wrong", note)
    assert good, note
