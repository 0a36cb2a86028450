"""Bad input ends in one clear message and loses nothing."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.workflow.conftest import Checkout

pytestmark = pytest.mark.workflow

DATA = "data/{}/data-evol_instruct-decontaminated.jsonl"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"colour": "red"}, ["colour", "unknown key", "line:"]),
        ({"vocab__size": 100}, ["vocab.size", "100", "multiple of 64"]),
        ({"datasets__first__take": 0}, ["datasets.first.take", "remedy"]),
        ({"responses__temperatur": 1}, ["responses.temperatur", "temperature"]),
    ],
)
def test_a_wrong_configuration_stops_before_any_job(
    checkout: Checkout, change: dict[str, Any], named: list[str]
) -> None:
    checkout.configure(**change)
    run = checkout.snakemake("--dry-run")
    assert run.code != 0
    assert run.jobs == []
    for text in named:
        assert text in run.text
    assert "Traceback" not in run.text


def lose_the_dataset(checkout: Checkout) -> None:
    (checkout.folder / DATA.format("first")).unlink()


def ask_for_another_adapter(checkout: Checkout) -> None:
    checkout.configure(datasets__first__adapter="nobody/nothing")


def ask_for_a_map_beyond_the_vocabulary(checkout: Checkout) -> None:
    checkout.configure(vocab__size=6400)


def ask_for_a_layer_that_is_not_there(checkout: Checkout) -> None:
    checkout.configure(states__layers=[2, 4, 64])


def truncate_a_states_file(checkout: Checkout) -> None:
    file = next((checkout.work / "states/first/000").glob("*.safetensors"))
    file.write_bytes(file.read_bytes()[:-100])
    checkout.configure(drafts__main__epochs=1)


def lose_the_suite(checkout: Checkout) -> None:
    (checkout.folder / "data/heldout.jsonl").unlink()


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (lose_the_dataset, ["data-evol_instruct-decontaminated.jsonl"]),
        (ask_for_another_adapter, ["nobody/nothing", "ise-uiuc/Magicoder-Evol-Instruct-110K"]),
        (ask_for_a_map_beyond_the_vocabulary, ["6400", "512"]),
        (ask_for_a_layer_that_is_not_there, ["states.layers", "[2, 4, 64]", "remedy"]),
        (truncate_a_states_file, ["not a whole states file", "make verify ARGS=--repair"]),
        (lose_the_suite, ["bench.suites.heldout", "data/heldout.jsonl", "remedy"]),
    ],
)
def test_bad_input_names_itself(
    checkout: Checkout, spoil: Callable[[Checkout], None], named: list[str]
) -> None:
    spoil(checkout)
    run = checkout.snakemake()
    assert run.code != 0
    for text in named:
        assert text in run.text, run.text
    assert "this is a fault of Aerie" not in run.text


def test_a_malformed_row_is_rejected_and_the_others_go_on(checkout: Checkout) -> None:
    file = checkout.folder / DATA.format("first")
    file.write_text(file.read_text(encoding="utf-8") + "{not json\n", encoding="utf-8")
    run = checkout.snakemake("--until", "prompts")
    assert run.code == 0, run.text
    sidecar = checkout.work / "candidates/first/candidates.json"
    counts = json.loads(sidecar.read_text(encoding="utf-8"))["counts"]
    assert counts["rejects"] == {"bad_json": 1}
    assert counts["candidates"] == 24


def test_verify_repairs_and_the_build_goes_on(checkout: Checkout) -> None:
    before = checkout.digests()
    truncate_a_states_file(checkout)
    checkout.configure(drafts__main__epochs=2)
    work = str(checkout.work.relative_to(checkout.folder))
    verify = [sys.executable, "-m", "aerie", "verify", work]
    found = subprocess.run(
        verify, cwd=checkout.folder, env=checkout.environment(), capture_output=True, check=False
    )
    assert found.returncode == 1
    subprocess.run(
        [*verify, "--repair"], cwd=checkout.folder, env=checkout.environment(), check=True
    )
    run = checkout.snakemake()
    assert run.code == 0, run.text
    # States that come out the same train no draft.
    assert run.jobs == ["bench main heldout", "manifest", "report", "states first 000"]
    assert checkout.digests() == before
    assert not list(Path(checkout.work).rglob("*.tmp"))
