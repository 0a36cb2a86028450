"""`make plan` before a build and after it: estimates become measured, and nothing else runs."""

import json
import re
import subprocess
from typing import Any

import jsonschema
import pytest

from tests.workflow.conftest import ROOT, Checkout, Run

pytestmark = pytest.mark.workflow


def plan(checkout: Checkout, work: str = "results/tiny") -> tuple[Run, dict[str, Any]]:
    run = checkout.snakemake("--nolock", "--force", "--", "plan")
    path = checkout.folder / work / "plan/plan.json"
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    schema = json.loads((ROOT / "schemas/plan.schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(content, schema)
    return run, content


def phase(content: dict[str, Any], name: str) -> dict[str, Any]:
    work: dict[str, Any] = next(each for each in content["work"] if each["phase"] == name)
    return work


def test_estimates_become_measured(checkout: Checkout) -> None:
    checkout.configure(work="results/other")
    run, before = plan(checkout, "results/other")
    assert run.code == 0, run.text
    assert run.jobs == ["plan"]
    assert before["feasible"] and before["totals"]["basis"] == "estimate"
    assert before["target"]["source"] == "the checkpoint's config.json"
    assert phase(before, "responses")["basis"] == "estimate"
    assert not list((checkout.folder / "results/other/target").glob("*"))

    checkout.configure(work="results/tiny")
    run, after = plan(checkout)
    assert run.code == 0, run.text
    assert after["totals"]["basis"] == "measured"
    assert after["target"]["source"] == "target.json"
    indexes = [
        json.loads(path.read_text(encoding="utf-8"))["counts"]
        for path in checkout.work.glob("states/*/*/index.json")
    ]
    assert after["totals"]["tokens"]["expected"] == sum(counts["tokens"] for counts in indexes)
    assert after["totals"]["samples"] == sum(counts["samples"] for counts in indexes)
    written = sum(counts["bytes"] for counts in indexes)
    assert after["storage"]["states"]["bf16"]["expected"] == pytest.approx(written, rel=0.05)
    for name in ("responses", "states", "draft"):
        assert phase(after, name)["basis"] == "measured"
        assert phase(after, name)["done"] == phase(after, name)["jobs"]
    (bench,) = checkout.work.glob("bench/main/*.json")
    measured = json.loads(bench.read_text(encoding="utf-8"))
    assert after["accept"]["round_cost"] == measured["round_cost"]
    assert after["accept"]["words"] == "one point gives no slope"
    for text in ("Plan: tiny", "The plan fits", "plan/plan.md"):
        assert text in run.text

    assert checkout.snakemake().jobs == []


def test_a_plan_that_cannot_work_stops_with_its_options(checkout: Checkout) -> None:
    checkout.configure(datasets__first__take=40)
    run, content = plan(checkout)
    assert run.code != 0
    assert content["feasible"] is False
    found = content["problems"][0]
    assert found["kind"] == "take"
    # What is there, by the candidates of the build.
    option = re.fullmatch(r"datasets\.first\.take: (\d+)", found["options"][0]["what"])
    assert option and int(option[1]) == content["entries"][0]["available"]
    assert option[0] in run.text and "gate: plan" in run.text
    assert "does not fit" in (checkout.work / "plan/plan.md").read_text(encoding="utf-8")


def test_make_has_a_plan_and_a_dry_run() -> None:
    for target, words in (("plan", "--force  -- plan"), ("dry-run", "--dry-run")):
        command = ["make", "--dry-run", target, "CONFIG=demo/config.yaml"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        assert words in done.stdout
