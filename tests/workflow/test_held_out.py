"""Prompts that are held out of the mix: measured, never trained on, and the same at every take."""

import json

import pytest

from aerie.contracts.prompts import read_prompts
from aerie.files import read_json
from tests.workflow.conftest import Checkout

pytestmark = pytest.mark.workflow


def test_the_suite_of_the_mix_is_measured_and_not_trained_on(checkout: Checkout) -> None:
    checkout.configure(bench__held_out=2)
    run = checkout.snakemake()
    assert run.code == 0, run.text
    assert {"mix_suite", "bench main mix"} <= set(run.jobs)
    suite = checkout.work / "suites/mix.jsonl"
    held = suite.read_bytes()
    rows = [json.loads(line) for line in held.splitlines()]
    assert [row["domain"] for row in rows] == ["first", "first", "second", "second"]
    tables = checkout.work.glob("prompts/*/*.parquet")
    trained = {
        turn
        for table in tables
        if table.name != "rejects.parquet"
        for row in read_prompts(table)
        for turn in row.turns
    }
    assert len(trained) >= 16 and trained.isdisjoint(turn for row in rows for turn in row["turns"])
    bench = read_json(checkout.work / "bench/main/mix.json")
    assert set(bench["domains"]) == {"first", "second"}
    # A larger take holds out the same prompts: the suite is not made again.
    checkout.configure(datasets__first__take=12)
    run = checkout.snakemake("--until", "mix_suite")
    assert run.code == 0, run.text
    assert run.jobs == ["prompts first"]
    assert suite.read_bytes() == held
